//! What leaves the program: text, one-line errors, pictures.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use image::{ImageFormat, RgbImage};

/// Writes to standard output.
///
/// # Errors
///
/// It cannot be written to; see [`is_closed_pipe`].
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Whether the error only says that nobody reads our output any more.
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error
        .downcast_ref::<io::Error>()
        .is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}

/// The error with all its causes, on one line.
pub(crate) fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        // Many errors quote their cause in their own text; it is not said twice.
        if line.is_empty() {
            line = text;
        } else if !line.contains(&text) {
            line = format!("{line}: {text}");
        }
    }
    line
}

/// Refuses a picture file that could not be written later: its ending must be `.png`, its folder must exist.
///
/// # Errors
///
/// One of the two does not hold.
pub(crate) fn check_png(path: &Path) -> Result<()> {
    let ending = path.extension().map(|e| e.to_string_lossy().to_lowercase());
    if ending.as_deref() != Some("png") {
        bail!(
            "--out {}: pictures are written as PNG; end the name in .png",
            path.display()
        );
    }
    if path.is_dir() {
        bail!("--out {}: is a folder; name a file", path.display());
    }
    let folder = folder_of(path);
    if !folder.is_dir() {
        bail!(
            "--out {}: there is no folder {}; make it first or name another",
            path.display(),
            folder.display()
        );
    }
    Ok(())
}

/// Writes a picture. A reader sees the old file or the new one, never a part.
///
/// # Errors
///
/// The file cannot be written.
pub(crate) fn write_png(path: &Path, picture: &RgbImage) -> Result<()> {
    let mut bytes = io::Cursor::new(Vec::new());
    picture.write_to(&mut bytes, ImageFormat::Png)?;
    write(path, bytes.get_ref())
}

/// Writes a file beside its target and renames it.
///
/// # Errors
///
/// The file cannot be written.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let written = nn::files::write(path, bytes);
    written.with_context(|| format!("{}: could not be written", path.display()))
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_become_one_line_that_says_nothing_twice() {
        let cause = io::Error::other("the disk\nis full");
        let error = anyhow::Error::new(cause).context("a.png: could not be written");
        assert_eq!(one_line(&error), "a.png: could not be written: the disk is full");
        let quoting = anyhow::anyhow!("the disk is full").context("a.png: the disk is full; free some space");
        assert_eq!(one_line(&quoting), "a.png: the disk is full; free some space");
    }
}
