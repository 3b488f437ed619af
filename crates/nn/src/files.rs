//! Writing files so that a reader sees the old one or the new one, never a part.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Writes `bytes` to a file beside `path`, syncs it and renames it to `path`. The file has the permissions that any
/// new file of the user has.
///
/// # Errors
///
/// The folder is missing or cannot be written to; what stood at `path` is then untouched.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let (mut file, scratch) = create_beside(path)?;
    let result = file
        .write_all(bytes)
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&scratch, path));
    if result.is_err() {
        // The first error is the one worth telling; a scratch file that stays behind does no harm.
        let _ = fs::remove_file(&scratch);
    }
    result
}

/// A new file in the folder of `path`, hidden and of a name that nobody else has.
fn create_beside(path: &Path) -> io::Result<(File, PathBuf)> {
    let name = path
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    for attempt in 0..1000 {
        let scratch = path.with_file_name(format!(".{name}.{}-{attempt}", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).open(&scratch) {
            Ok(file) => return Ok((file, scratch)),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
    Err(io::Error::new(
        io::ErrorKind::AlreadyExists,
        "no free name for a scratch file beside it",
    ))
}
