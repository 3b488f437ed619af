//! Finding weight files, single or sharded, and reading single tensors out of them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::error::WeightsError;
use super::format::{self, Format};
use super::{pytorch, safetensors};

/// One tensor: its shape, and where its values are.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) file: PathBuf,
    pub(super) shape: Vec<usize>,
    pub(super) element: Element,
    pub(super) place: Place,
}

/// How a tensor's elements are stored.
#[derive(Debug, Clone)]
pub(super) enum Element {
    F32,
    F16,
    Bf16,
    /// A type that is not read, by its name.
    Other(String),
}

/// Where the bytes of a tensor are. Nothing is read until they are asked for.
#[derive(Debug, Clone)]
pub(super) enum Place {
    /// So many bytes of the file, row-major.
    Range { begin: u64, length: usize },
    /// A view of a storage of a PyTorch file.
    Storage(pytorch_reader::Tensor),
}

/// The tensors of every file of a weight set. No weight is read until it is asked for.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) origin: PathBuf,
    pub(super) entries: BTreeMap<String, Entry>,
    /// What stood around the tensors and was taken off.
    pub(super) wrapper: Option<String>,
}

/// The part of a shard index that is used.
#[derive(Deserialize)]
struct ShardIndex {
    weight_map: BTreeMap<String, String>,
}

/// What training programs put before every key when they save the module that wraps the network.
const WRAPPED_PREFIX: &str = "module.";

impl Files {
    /// Opens the first of [`candidates`] that lies in the folder.
    pub(super) fn open_folder(dir: &Path, stem: &str) -> Result<Self, WeightsError> {
        if !dir.is_dir() {
            let source = std::io::Error::new(ErrorKind::NotFound, "there is no such folder; check the path");
            return Err(WeightsError::Io {
                path: dir.to_owned(),
                source,
            });
        }
        let Some(path) = find(dir, stem) else {
            return Err(WeightsError::NoWeights {
                dir: dir.to_owned(),
                stem: stem.to_owned(),
                found: describe_folder(dir),
            });
        };
        if path.extension().is_some_and(|ending| ending == "json") {
            Self::open_shards(dir, &path)
        } else {
            Self::open_file(&path)
        }
    }

    /// Opens one file.
    pub(super) fn open_file(path: &Path) -> Result<Self, WeightsError> {
        let (mut entries, mut wrapper) = read_header(path)?;
        if !entries.is_empty() && entries.keys().all(|key| key.starts_with(WRAPPED_PREFIX)) {
            let strip = |key: String| key[WRAPPED_PREFIX.len()..].to_owned();
            entries = entries.into_iter().map(|(key, entry)| (strip(key), entry)).collect();
            let prefix = format!("the prefix `{WRAPPED_PREFIX}` of every key");
            wrapper = Some(wrapper.map_or(prefix.clone(), |outer| format!("{prefix}, {outer}")));
        }
        Ok(Self {
            origin: path.to_owned(),
            entries,
            wrapper,
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
            // Nothing wraps the tensors of a shard: programs that shard write state dicts. One that is wrapped all
            // the same is read, and the index must then agree with its tensors like any other.
            let (entries, _) = read_header(&path)?;
            shards.insert(shard, entries);
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
            wrapper: None,
        })
    }

    /// Reads one tensor's values, widened to f32 (exact for F32, F16 and BF16).
    pub(super) fn read(&self, key: &str, entry: &Entry) -> Result<Vec<f32>, WeightsError> {
        let widen = match &entry.element {
            Element::F32 => widen_f32,
            Element::F16 => widen_f16,
            Element::Bf16 => widen_bf16,
            Element::Other(found) => {
                return Err(WeightsError::Dtype {
                    path: entry.file.clone(),
                    key: key.to_owned(),
                    found: found.clone(),
                });
            }
        };
        let values: Vec<f32> = match &entry.place {
            Place::Range { begin, length } => {
                let bytes = read_range(&entry.file, *begin, *length);
                widen(&bytes.map_err(|source| WeightsError::Io {
                    path: entry.file.clone(),
                    source,
                })?)
            }
            Place::Storage(tensor) => widen(&pytorch::read(&entry.file, tensor)?),
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

/// The file names that weights of a stem may have, in the order of preference. Python's loaders, too, take safetensors
/// before pickles and a single file before shards.
fn candidates(stem: &str) -> Vec<String> {
    // The same weights that are called `model.safetensors` are called `pytorch_model.bin`.
    let stems = match stem.strip_suffix("model") {
        Some(start) if !stem.ends_with("pytorch_model") => vec![stem.to_owned(), format!("{start}pytorch_model")],
        _ => vec![stem.to_owned()],
    };
    [
        "safetensors",
        "safetensors.index.json",
        "bin",
        "bin.index.json",
        "pt",
        "pth",
    ]
    .iter()
    .flat_map(|ending| stems.iter().map(move |stem| format!("{stem}.{ending}")))
    .collect()
}

/// The weights of this stem in a folder, if there are any: a file, or the index of shards.
pub(super) fn find(dir: &Path, stem: &str) -> Option<PathBuf> {
    let paths = candidates(stem).into_iter().map(|name| dir.join(name));
    paths.into_iter().find(|path| path.exists())
}

/// The tensors of one file by their keys, and what was taken off around them.
fn read_header(path: &Path) -> Result<(BTreeMap<String, Entry>, Option<String>), WeightsError> {
    match format::recognise(path)? {
        Format::Safetensors => Ok((safetensors::read_header(path)?, None)),
        Format::Torch(container) => pytorch::read_header(path, container),
    }
}

fn read_range(path: &Path, begin: u64, length: usize) -> std::io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(begin))?;
    let mut bytes = vec![0; length];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn widen_f32(bytes: &[u8]) -> Vec<f32> {
    let elements = bytes.chunks_exact(4);
    elements.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn widen_f16(bytes: &[u8]) -> Vec<f32> {
    let elements = bytes.chunks_exact(2);
    elements
        .map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32())
        .collect()
}

fn widen_bf16(bytes: &[u8]) -> Vec<f32> {
    let elements = bytes.chunks_exact(2);
    elements
        .map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32())
        .collect()
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
