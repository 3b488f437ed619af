//! What kind of file this is, from its first bytes. The file's name says nothing.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use super::error::WeightsError;
use super::globals;

/// A format that tensors are read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    /// A header in JSON, then the tensors.
    Safetensors,
    /// What `torch.save` writes.
    Torch(Container),
}

/// What a PyTorch file keeps its pickle and its tensors in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Container {
    /// Since PyTorch 1.6: a zip archive.
    Zip,
    /// Before: five pickles, then the tensors.
    Legacy,
}

/// Length of the little-endian header size that opens every safetensors file.
pub(super) const HEADER_SIZE_BYTES: u64 = 8;
/// The safetensors format's own limit; a larger value means the first eight bytes are something else.
pub(super) const MAX_HEADER_BYTES: u64 = 100_000_000;

/// The number that opens an old PyTorch file, as pickles of protocol 2 and later spell it.
const LEGACY_MAGIC: [u8; 10] = [0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19];
/// The same number as pickles of protocol 0 and 1 spell it.
const LEGACY_MAGIC_TEXT: &[u8] = b"119547037146038801333356";
/// Later than this the number does not begin, whatever the protocol.
const LEGACY_MAGIC_WITHIN: usize = 64;
/// Where a tar archive has its mark, and the mark.
const TAR_MARK: (usize, &[u8]) = (257, b"ustar");
/// As many bytes as any format needs to be recognised.
const START_BYTES: u64 = 512;

/// Recognises the format of a file.
///
/// # Errors
///
/// It cannot be read, or is something else, which is named.
pub(super) fn recognise(path: &Path) -> Result<Format, WeightsError> {
    let io = |source| WeightsError::Io {
        path: path.to_owned(),
        source,
    };
    let mut file = File::open(path).map_err(io)?;
    let mut start = Vec::new();
    (&mut file).take(START_BYTES).read_to_end(&mut start).map_err(io)?;
    if is_safetensors(&start) {
        return Ok(Format::Safetensors);
    }
    if start.starts_with(b"PK\x03\x04") || start.starts_with(b"PK\x05\x06") {
        return Ok(Format::Torch(Container::Zip));
    }
    if is_legacy(&start) {
        return Ok(Format::Torch(Container::Legacy));
    }
    let (what, fix) = match name_other(&start) {
        Some(other) => other,
        None => {
            // A pickle begins with almost anything; whether it is one shows when it is taken apart.
            file.seek(SeekFrom::Start(0)).map_err(io)?;
            match globals::first_foreign(&mut BufReader::new(file)) {
                Ok(Some(global)) => return Err(WeightsError::foreign_global(path, &global)),
                Ok(None) => (
                    "a Python pickle that holds no tensor data",
                    "point the path at the file that torch.save wrote",
                ),
                Err(_) => (
                    "a file of no known format",
                    "point the path at the weights, or download them again",
                ),
            }
        }
    };
    Err(WeightsError::NotWeights {
        path: path.to_owned(),
        what,
        fix,
    })
}

/// The first bytes of a safetensors file are a number and can look like anything; its header opens with a brace.
fn is_safetensors(start: &[u8]) -> bool {
    let size = start.first_chunk::<8>().map_or(u64::MAX, |b| u64::from_le_bytes(*b));
    size <= MAX_HEADER_BYTES && start.get(HEADER_SIZE_BYTES as usize) == Some(&b'{')
}

fn is_legacy(start: &[u8]) -> bool {
    let start = &start[..start.len().min(LEGACY_MAGIC_WITHIN)];
    let holds = |mark: &[u8]| start.windows(mark.len()).any(|bytes| bytes == mark);
    holds(&LEGACY_MAGIC) || holds(LEGACY_MAGIC_TEXT)
}

/// What else is often found under the name of a weight file, and what to do then.
fn name_other(start: &[u8]) -> Option<(&'static str, &'static str)> {
    let text = String::from_utf8_lossy(&start[..start.len().min(64)]).to_lowercase();
    let (tar_at, tar) = TAR_MARK;
    if start.is_empty() {
        Some(("an empty file", "download it again"))
    } else if text.starts_with("version https://git-lfs") {
        Some(("a Git LFS pointer", "fetch the real file with `git lfs pull`"))
    } else if text.trim_start().starts_with("<!doctype") || text.trim_start().starts_with("<html") {
        Some((
            "an HTML page",
            "the download was answered with a web page, often for a missing login; download it again",
        ))
    } else if text.trim_start().starts_with('{') {
        Some(("a JSON file", "point the path at the weights"))
    } else if start.get(tar_at..tar_at + tar.len()) == Some(tar) {
        Some(("a tar archive", "unpack it and point the path at the weights"))
    } else {
        None
    }
}
