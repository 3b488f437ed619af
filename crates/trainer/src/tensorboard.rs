//! TensorBoard event files: scalars only.
//!
//! A file is a sequence of records, each a length, a masked CRC-32C of the length, the bytes of an `Event` message and
//! a masked CRC-32C of them. The message is protobuf; the few fields that scalars need are written by hand.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

/// An event file that is appended to.
#[derive(Debug)]
pub struct EventFile {
    file: File,
}

/// File name; the part after `tfevents.` may be anything, and one name serves all sessions of a run.
const NAME: &str = "events.out.tfevents.treegrpo";

impl EventFile {
    /// Opens the event file of a folder for appending, and begins it if it is new.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn open(dir: &Path) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(dir.join(NAME))?;
        let mut events = Self { file };
        if events.file.metadata()?.len() == 0 {
            let mut event = time_field();
            // Field 3, `file_version`.
            bytes_field(&mut event, 3, b"brain.Event:2");
            events.write(&event)?;
        }
        Ok(events)
    }

    /// Appends scalars under one step.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn scalars<'a>(&mut self, step: u64, values: impl IntoIterator<Item = (&'a str, f64)>) -> io::Result<()> {
        let mut summary = Vec::new();
        for (name, value) in values {
            let mut entry = Vec::new();
            // Value.tag = 1, Value.simple_value = 2 (fixed 32 bits).
            bytes_field(&mut entry, 1, name.as_bytes());
            entry.push(2 << 3 | 5);
            entry.extend_from_slice(&(value as f32).to_le_bytes());
            bytes_field(&mut summary, 1, &entry);
        }
        let mut event = time_field();
        // Event.step = 2 (varint), Event.summary = 5.
        event.push(2 << 3);
        varint(&mut event, step);
        bytes_field(&mut event, 5, &summary);
        self.write(&event)
    }

    fn write(&mut self, event: &[u8]) -> io::Result<()> {
        let length = (event.len() as u64).to_le_bytes();
        let mut record = Vec::with_capacity(event.len() + 16);
        record.extend_from_slice(&length);
        record.extend_from_slice(&masked_crc(&length).to_le_bytes());
        record.extend_from_slice(event);
        record.extend_from_slice(&masked_crc(event).to_le_bytes());
        self.file.write_all(&record)
    }
}

/// Event.wall_time = 1, a double.
fn time_field() -> Vec<u8> {
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0.0, |t| t.as_secs_f64());
    let mut event = vec![1 << 3 | 1];
    event.extend_from_slice(&seconds.to_le_bytes());
    event
}

/// A length-delimited field.
fn bytes_field(message: &mut Vec<u8>, field: u8, bytes: &[u8]) {
    message.push(field << 3 | 2);
    varint(message, bytes.len() as u64);
    message.extend_from_slice(bytes);
}

fn varint(message: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        message.push(value as u8 | 0x80);
        value >>= 7;
    }
    message.push(value as u8);
}

/// CRC-32C, rotated and offset as the format asks.
fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}
