//! TensorBoard's event file, read back by a reader that shares no code with the writer.

use trainer::tensorboard::EventFile;

/// CRC-32C bit by bit (Castagnoli's polynomial, reflected).
fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 {
                (crc >> 1) ^ 0x82f6_3b78
            } else {
                crc >> 1
            };
        }
    }
    !crc
}

/// The check value of the algorithm's definition.
#[test]
fn reader_knows_crc_32c() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
}

/// The frames of a file, lengths and both checksums verified.
pub(crate) fn frames(mut bytes: &[u8]) -> Vec<Vec<u8>> {
    let masked = |bytes: &[u8]| {
        let crc = crc32c(bytes);
        crc.rotate_right(15).wrapping_add(0xa282_ead8)
    };
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let length = u64::from_le_bytes(bytes[..8].try_into().expect("a length")) as usize;
        let crc = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("a checksum"));
        assert_eq!(crc(8), masked(&bytes[..8]), "checksum of the length");
        let data = &bytes[12..12 + length];
        assert_eq!(crc(12 + length), masked(data), "checksum of the data");
        frames.push(data.to_vec());
        bytes = &bytes[16 + length..];
    }
    frames
}

/// A protobuf field: number and content.
#[derive(Debug, PartialEq)]
enum Field {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    Bytes(Vec<u8>),
}

fn fields(mut bytes: &[u8]) -> Vec<(u64, Field)> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let (byte, rest) = bytes.split_first().expect("a byte");
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        value
    }
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let mut take = |count: usize| {
            let (taken, rest) = bytes.split_at(count);
            bytes = rest;
            taken
        };
        let field = match tag & 7 {
            1 => Field::Fixed64(u64::from_le_bytes(take(8).try_into().expect("eight bytes"))),
            5 => Field::Fixed32(u32::from_le_bytes(take(4).try_into().expect("four bytes"))),
            0 => Field::Varint(varint(&mut bytes)),
            2 => {
                let length = varint(&mut bytes) as usize;
                let (taken, rest) = bytes.split_at(length);
                bytes = rest;
                Field::Bytes(taken.to_vec())
            }
            other => panic!("wire type {other}"),
        };
        fields.push((tag >> 3, field));
    }
    fields
}

fn bytes_of(fields: &[(u64, Field)], number: u64) -> &[u8] {
    fields
        .iter()
        .find_map(|(n, field)| match field {
            Field::Bytes(bytes) if *n == number => Some(&bytes[..]),
            _ => None,
        })
        .unwrap_or_else(|| panic!("no field {number}"))
}

/// Step and scalars of an event.
pub(crate) fn scalars(frame: &[u8]) -> (u64, Vec<(String, f32)>) {
    let event = fields(frame);
    assert!(
        matches!(event[0], (1, Field::Fixed64(seconds)) if f64::from_bits(seconds) > 1.6e9),
        "the wall time"
    );
    let step = event.iter().find_map(|(n, field)| match field {
        Field::Varint(step) if *n == 2 => Some(*step),
        _ => None,
    });
    let values = fields(bytes_of(&event, 5)).into_iter().map(|(number, value)| {
        assert_eq!(number, 1);
        let Field::Bytes(value) = value else {
            panic!("a message was expected")
        };
        let value = fields(&value);
        let number = value.iter().find_map(|(n, field)| match field {
            Field::Fixed32(bits) if *n == 2 => Some(f32::from_bits(*bits)),
            _ => None,
        });
        (
            String::from_utf8(bytes_of(&value, 1).to_vec()).expect("UTF-8"),
            number.expect("a simple value"),
        )
    });
    (step.expect("a step"), values.collect())
}

/// The only file of a folder, which TensorBoard finds by a part of its name.
pub(crate) fn event_file(dir: &std::path::Path) -> Vec<u8> {
    let mut found = std::fs::read_dir(dir)
        .expect("the folder")
        .map(|entry| entry.expect("an entry").path());
    let file = found.find(|path| {
        path.file_name()
            .is_some_and(|n| n.to_string_lossy().contains("tfevents"))
    });
    std::fs::read(file.expect("an event file")).expect("the file")
}

/// The file opens with its version; steps above 127 and names with two bytes per letter come back; a second session
/// appends without a second version.
#[test]
fn events_come_back() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    EventFile::open(dir.path())
        .expect("a new file")
        .scalars(1, [("loss", -0.5), ("σ", 1e-9)])
        .expect("written");
    let long = "x".repeat(300);
    let mut second = EventFile::open(dir.path()).expect("the same file");
    second
        .scalars(70_000, [(long.as_str(), f64::from(f32::MAX))])
        .expect("written");
    let frames = frames(&event_file(dir.path()));
    assert_eq!(frames.len(), 3);
    assert_eq!(bytes_of(&fields(&frames[0]), 3), b"brain.Event:2");
    assert_eq!(
        scalars(&frames[1]),
        (1, vec![("loss".to_owned(), -0.5), ("σ".to_owned(), 1e-9)])
    );
    assert_eq!(scalars(&frames[2]), (70_000, vec![(long, f32::MAX)]));
}

/// A run's event file holds its metrics under their names.
#[test]
fn a_run_writes_its_scalars() {
    let toy = crate::toy_folder::ToyFolder::new();
    let recorder = toy.run("run", false, &["train.iterations=1"]).expect("a run");
    let events: Vec<_> = frames(&event_file(&toy.path("run")))[1..]
        .iter()
        .map(|frame| scalars(frame))
        .collect();
    assert_eq!(events.iter().map(|e| e.0).collect::<Vec<_>>(), [0, 1, 1]);
    let expected: Vec<(String, f32)> = recorder.iterations[0]
        .values
        .iter()
        .map(|(name, value)| (name.clone(), *value as f32))
        .collect();
    assert_eq!(events[1].1, expected);
    let mean = recorder.evaluations[1].rewards["bright"]["all"].mean as f32;
    assert!(events[2].1.contains(&("eval/bright".to_owned(), mean)));
}
