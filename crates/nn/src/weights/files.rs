//! Finding safetensors files, single or sharded, and reading single tensors out of them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::Metadata;
use serde::Deserialize;

use super::error::WeightsError;

/// One tensor's place: which file, which bytes.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) file: PathBuf,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    begin: u64,
    length: usize,
}

/// Header of every file of a weight set. No weight is read until it is asked for.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) origin: PathBuf,
    pub(super) entries: BTreeMap<String, Entry>,
}

/// The part of a `*.safetensors.index.json` that is used.
#[derive(Deserialize)]
struct ShardIndex {
    weight_map: BTreeMap<String, String>,
}

/// Length of the little-endian header size that opens every safetensors file.
const HEADER_SIZE_BYTES: u64 = 8;
/// The format's own limit; a larger value means the first eight bytes are something else.
const MAX_HEADER_BYTES: u64 = 100_000_000;

impl Files {
    /// Opens `dir/stem.safetensors`, or the shards that `dir/stem.safetensors.index.json` names.
    pub(super) fn open_folder(dir: &Path, stem: &str) -> Result<Self, WeightsError> {
        if !dir.is_dir() {
            let source = std::io::Error::new(std::io::ErrorKind::NotFound, "there is no such folder; check the path");
            return Err(WeightsError::Io {
                path: dir.to_owned(),
                source,
            });
        }
        let single = dir.join(format!("{stem}.safetensors"));
        let index = dir.join(format!("{stem}.safetensors.index.json"));
        // Python's loaders prefer the single file when both are there; so do we.
        if single.exists() {
            Self::open_file(&single)
        } else if index.exists() {
            Self::open_shards(dir, &index)
        } else {
            Err(WeightsError::NoWeights {
                dir: dir.to_owned(),
                stem: stem.to_owned(),
                found: describe_folder(dir),
            })
        }
    }

    /// Opens one file.
    pub(super) fn open_file(path: &Path) -> Result<Self, WeightsError> {
        Ok(Self {
            origin: path.to_owned(),
            entries: read_header(path)?,
        })
    }

    fn open_shards(dir: &Path, index_path: &Path) -> Result<Self, WeightsError> {
        let index_error = |why: String| WeightsError::Index {
            path: index_path.to_owned(),
            why,
        };
        let text = std::fs::read_to_string(index_path).map_err(|source| WeightsError::Io {
            path: index_path.to_owned(),
            source,
        })?;
        let index: ShardIndex =
            serde_json::from_str(&text).map_err(|e| index_error(format!("not a shard index: {e}")))?;
        let mut shards: BTreeMap<&str, BTreeMap<String, Entry>> = BTreeMap::new();
        for shard in index.weight_map.values() {
            if shards.contains_key(shard.as_str()) {
                continue;
            }
            // A shard's name is joined to the folder, so it must be a plain file name.
            if Path::new(shard).file_name().is_none_or(|name| name != shard.as_str()) {
                return Err(index_error(format!("names `{shard}`, which is not a plain file name")));
            }
            let path = dir.join(shard);
            if !path.exists() {
                return Err(index_error(format!(
                    "names the shard {shard}, which is not there; is the download incomplete?"
                )));
            }
            shards.insert(shard, read_header(&path)?);
        }
        let mut entries = BTreeMap::new();
        for (key, shard) in &index.weight_map {
            let Some(entry) = shards.get_mut(shard.as_str()).and_then(|s| s.remove(key)) else {
                return Err(index_error(format!(
                    "says that `{key}` is in {shard}, but it is not; the index and the shards are of different downloads"
                )));
            };
            entries.insert(key.clone(), entry);
        }
        for (shard, rest) in shards {
            if let Some(key) = rest.keys().next() {
                return Err(index_error(format!(
                    "does not list `{key}`, which {shard} holds; the index and the shards are of different downloads"
                )));
            }
        }
        Ok(Self {
            origin: dir.to_owned(),
            entries,
        })
    }

    /// Reads one tensor's values, widened to f32 (exact for F32, F16 and BF16).
    pub(super) fn read(&self, key: &str, entry: &Entry) -> Result<Vec<f32>, WeightsError> {
        let io = |source| WeightsError::Io {
            path: entry.file.clone(),
            source,
        };
        let mut file = File::open(&entry.file).map_err(io)?;
        file.seek(SeekFrom::Start(entry.begin)).map_err(io)?;
        let mut bytes = vec![0; entry.length];
        file.read_exact(&mut bytes).map_err(io)?;
        let values: Vec<f32> = match entry.dtype {
            Dtype::F32 => bytes
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect(),
            Dtype::F16 => bytes
                .chunks_exact(2)
                .map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32())
                .collect(),
            Dtype::BF16 => bytes
                .chunks_exact(2)
                .map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32())
                .collect(),
            other => {
                return Err(WeightsError::Dtype {
                    path: entry.file.clone(),
                    key: key.to_owned(),
                    found: format!("{other:?}"),
                });
            }
        };
        match values.iter().position(|v| !v.is_finite()) {
            Some(element) => Err(WeightsError::NonFinite {
                path: entry.file.clone(),
                key: key.to_owned(),
                element,
            }),
            None => Ok(values),
        }
    }
}

/// Parses the header of one safetensors file and checks it against the file's length.
fn read_header(path: &Path) -> Result<BTreeMap<String, Entry>, WeightsError> {
    let io = |source| WeightsError::Io {
        path: path.to_owned(),
        source,
    };
    let broken = |why: String| WeightsError::Broken {
        path: path.to_owned(),
        why,
    };
    let mut file = File::open(path).map_err(io)?;
    let file_length = file.metadata().map_err(io)?.len();
    let mut start = [0; 64];
    let start_length = read_up_to(&mut file, &mut start).map_err(io)?;
    recognise_other_format(path, &start[..start_length])?;
    let Some(size) = start[..start_length].first_chunk::<8>().map(|b| u64::from_le_bytes(*b)) else {
        return Err(broken(format!("only {file_length} bytes long")));
    };
    if size > MAX_HEADER_BYTES || size + HEADER_SIZE_BYTES > file_length {
        return Err(broken(format!(
            "its header claims {size} bytes, the file has {file_length}"
        )));
    }
    file.seek(SeekFrom::Start(HEADER_SIZE_BYTES)).map_err(io)?;
    let mut header = vec![0; size as usize];
    file.read_exact(&mut header).map_err(io)?;
    // Deserialising checks that the tensors lie side by side without gaps and have the sizes their shapes say.
    let metadata: Metadata = serde_json::from_slice(&header).map_err(|e| broken(e.to_string()))?;
    let data_begin = size + HEADER_SIZE_BYTES;
    let data_length = metadata.data_len() as u64;
    if data_begin + data_length != file_length {
        return Err(broken(format!(
            "its header describes {} bytes, the file has {file_length}: it is truncated or has bytes appended",
            data_begin + data_length
        )));
    }
    Ok(metadata
        .tensors()
        .into_iter()
        .map(|(key, info)| {
            let (from, to) = info.data_offsets;
            let entry = Entry {
                file: path.to_owned(),
                dtype: info.dtype,
                shape: info.shape.clone(),
                begin: data_begin + from as u64,
                length: to - from,
            };
            (key, entry)
        })
        .collect())
}

/// Names the true format of a file that only pretends to be safetensors.
fn recognise_other_format(path: &Path, start: &[u8]) -> Result<(), WeightsError> {
    // The first bytes of a safetensors file are a number and can look like anything; its header opens with a brace.
    let size = start.first_chunk::<8>().map_or(u64::MAX, |b| u64::from_le_bytes(*b));
    if size <= MAX_HEADER_BYTES && start.get(HEADER_SIZE_BYTES as usize) == Some(&b'{') {
        return Ok(());
    }
    let other = |what, fix| {
        Err(WeightsError::NotSafetensors {
            path: path.to_owned(),
            what,
            fix,
        })
    };
    let text = String::from_utf8_lossy(start).to_lowercase();
    if start.is_empty() {
        other("an empty file", "download it again")
    } else if text.starts_with("version https://git-lfs") {
        other("a Git LFS pointer", "fetch the real file with `git lfs pull`")
    } else if text.trim_start().starts_with("<!doctype") || text.trim_start().starts_with("<html") {
        other(
            "an HTML page",
            "the download was answered with a web page, often for a missing login; download it again",
        )
    } else if start.starts_with(b"PK\x03\x04") {
        other("a PyTorch zip archive (.bin, .pt)", "save the weights as safetensors")
    } else if start.starts_with(&[0x80, 0x02]) {
        other("an old PyTorch pickle (.bin, .pt)", "save the weights as safetensors")
    } else if start.first() == Some(&b'{') {
        other("a JSON file", "point the path at the weights")
    } else {
        Ok(())
    }
}

/// Fills `buffer` as far as the file reaches.
fn read_up_to(file: &mut File, buffer: &mut [u8]) -> std::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match file.read(&mut buffer[filled..])? {
            0 => break,
            n => filled += n,
        }
    }
    Ok(filled)
}

/// Says which weight-like files a folder holds, so that the error can point at them.
fn describe_folder(dir: &Path) -> String {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .filter(|n| {
            [".safetensors", ".bin", ".pt", ".pth", ".json", ".ckpt"]
                .iter()
                .any(|end| n.ends_with(end))
        })
        .collect();
    names.sort();
    names.truncate(4);
    if names.is_empty() {
        String::new()
    } else {
        format!(" (found {})", names.join(", "))
    }
}
