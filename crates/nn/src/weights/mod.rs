//! Strict reading of weights.
//!
//! A network is built by asking a [`Weights`] for each of its tensors by key and shape. Where the values come from is
//! the source's affair: files, a seed (toy networks in tests), or nowhere (a list of what would be asked for). So the
//! expected keys and shapes of a network are written once, in its constructor. Files are safetensors or what PyTorch's
//! `torch.save` wrote; nothing of a pickle is ever run.
//!
//! Invariant: nothing is initialised at random in place of a missing tensor, and [`Weights::finish`] refuses a file
//! that holds tensors nobody asked for.

mod error;
mod files;
mod format;
mod globals;
mod pytorch;
mod safetensors;
mod stacked;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use burn::module::{Param, ParamId};
use burn::tensor::{Device, Tensor, TensorData};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};
use serde::de::DeserializeOwned;

pub use error::WeightsError;
use files::Files;

/// A parameter's name in its file, kept so that trained values can be written back under it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ParameterKey {
    /// Key in the weight file.
    pub key: String,
    /// Shape in the weight file.
    pub shape: Vec<usize>,
    /// Whether the file stores the transpose (`[out, in…]`) of the parameter (`[in…, out]`).
    pub transposed: bool,
}

/// Where every parameter of a network came from, by parameter id.
pub type ParameterKeys = HashMap<ParamId, ParameterKey>;

/// A source of tensors, seen from below one key prefix.
#[derive(Clone)]
pub struct Weights {
    prefix: String,
    shared: Rc<Shared>,
}

struct Shared {
    source: Source,
    device: Device,
    asked: RefCell<BTreeMap<String, Vec<usize>>>,
    keys: RefCell<ParameterKeys>,
    ignored: RefCell<BTreeSet<String>>,
}

enum Source {
    Files(Files),
    Seeded { seed: u64, scale: f32 },
    Blank,
}

impl Weights {
    /// Opens the weights of a folder: `stem.safetensors`, or `stem.bin`, `.pt` or `.pth` as PyTorch writes them, or the
    /// shards of `stem.safetensors.index.json` or `stem.bin.index.json`. For a stem that ends in `model` the names
    /// that PyTorch's own files have are tried as well: `pytorch_model.bin` for `model`. Where there are several,
    /// safetensors are preferred to pickles, and single files to shards.
    ///
    /// What a file is, its first bytes say and not its name. Only headers are read.
    ///
    /// # Errors
    ///
    /// The folder has no such file, or a file is damaged, something else than weights, or asks for more than tensors.
    pub fn open(dir: &Path, stem: &str, device: &Device) -> Result<Self, WeightsError> {
        Ok(Self::new(Source::Files(Files::open_folder(dir, stem)?), device))
    }

    /// Opens one file: safetensors, or what `torch.save` wrote of a state dict. That may lie under `state_dict`, `module`
    /// or `model`, and its keys may all begin with `module.`; see [`Weights::wrapper`].
    ///
    /// # Errors
    ///
    /// As for [`Weights::open`].
    pub fn open_file(path: &Path, device: &Device) -> Result<Self, WeightsError> {
        Ok(Self::new(Source::Files(Files::open_file(path)?), device))
    }

    /// Invents every tensor from a seed and its key: normal values of deviation `scale / √columns` for matrices and
    /// kernels, `1 ± 0.1` for vectors called `weight`, `± 0.1` for other vectors.
    ///
    /// The values depend on the key, not on the order of the questions.
    #[must_use]
    pub fn seeded(seed: u64, scale: f32, device: &Device) -> Self {
        Self::new(Source::Seeded { seed, scale }, device)
    }

    /// A source that has no values: parameters stay unallocated, and [`Weights::asked`] lists what a network of this
    /// configuration would read.
    #[must_use]
    pub fn blank(device: &Device) -> Self {
        Self::new(Source::Blank, device)
    }

    fn new(source: Source, device: &Device) -> Self {
        let shared = Shared {
            source,
            device: device.clone(),
            asked: RefCell::default(),
            keys: RefCell::default(),
            ignored: RefCell::default(),
        };
        Self {
            prefix: String::new(),
            shared: Rc::new(shared),
        }
    }

    /// The device that tensors are created on.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.shared.device
    }

    /// The same source below `name.`; an empty name changes nothing.
    #[must_use]
    pub fn scope(&self, name: impl std::fmt::Display) -> Self {
        let prefix = format!("{}{name}.", self.prefix);
        Self {
            prefix: if prefix == "." { String::new() } else { prefix },
            shared: self.shared.clone(),
        }
    }

    /// Whether the source has this tensor. Only files can lack one.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        match &self.shared.source {
            Source::Files(files) => files.entries.contains_key(&self.key(name)),
            Source::Seeded { .. } | Source::Blank => true,
        }
    }

    /// What stood around the tensors of a single file and was taken off, such as a key `state_dict`, with what is left
    /// out beside it. For the reader of a log.
    #[must_use]
    pub fn wrapper(&self) -> Option<&str> {
        match &self.shared.source {
            Source::Files(files) => files.wrapper.as_deref(),
            Source::Seeded { .. } | Source::Blank => None,
        }
    }

    /// Declares that a stored tensor is known and not needed, such as the position ids of old CLIP files.
    pub fn ignore(&self, name: &str) {
        self.shared.ignored.borrow_mut().insert(self.key(name));
    }

    /// The tensor `name` as a frozen parameter.
    ///
    /// # Errors
    ///
    /// It is missing, misshapen, of an unread type, or holds non-finite values.
    pub fn parameter<const D: usize>(&self, name: &str, shape: [usize; D]) -> Result<Param<Tensor<D>>, WeightsError> {
        if let Source::Blank = self.shared.source {
            return Ok(self.blank_parameter(name, shape, &shape, false));
        }
        let tensor = self.tensor(name, shape)?;
        Ok(self.register(name, tensor, &shape, false))
    }

    /// The matrix `name`, stored as `[out, in…]`, as a frozen parameter of shape `[in…, out]` with the inputs flattened:
    /// PyTorch keeps a linear layer's weight as `[out, in]`, burn as `[in, out]`.
    ///
    /// # Errors
    ///
    /// As for [`Weights::parameter`].
    pub fn transposed(&self, name: &str, stored: &[usize]) -> Result<Param<Tensor<2>>, WeightsError> {
        let outputs = stored.first().copied().unwrap_or(1);
        let inputs: usize = stored.iter().skip(1).product();
        if let Source::Blank = self.shared.source {
            return Ok(self.blank_parameter(name, [inputs, outputs], stored, true));
        }
        let values = self.values(name, stored)?;
        // Transposed on the host, once, so that every later product reads a contiguous matrix.
        let tensor = Tensor::from_data(
            TensorData::new(transpose(&values, outputs), [inputs, outputs]),
            self.device(),
        );
        Ok(self.register(name, tensor, stored, true))
    }

    /// The tensor `name` as a constant that is never trained.
    ///
    /// # Errors
    ///
    /// As for [`Weights::parameter`].
    pub fn tensor<const D: usize>(&self, name: &str, shape: [usize; D]) -> Result<Tensor<D>, WeightsError> {
        let values = self.values(name, &shape)?;
        Ok(Tensor::from_data(TensorData::new(values, shape), &self.shared.device))
    }

    /// The values of the tensor `name` in row-major order.
    ///
    /// # Errors
    ///
    /// As for [`Weights::parameter`].
    pub fn values(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>, WeightsError> {
        let key = self.note(name, shape);
        match &self.shared.source {
            Source::Seeded { seed, scale } => Ok(invent(*seed, *scale, &key, shape)),
            Source::Blank => Ok(vec![0.0; shape.iter().product()]),
            Source::Files(files) => {
                let Some(entry) = files.entries.get(&key) else {
                    let near = nearest(&key, files.entries.keys());
                    return Err(WeightsError::Missing {
                        path: files.origin.clone(),
                        key,
                        near,
                    });
                };
                if entry.shape != shape {
                    return Err(WeightsError::Shape {
                        path: entry.file.clone(),
                        key,
                        found: entry.shape.clone(),
                        expected: shape.to_vec(),
                    });
                }
                files.read(&key, entry)
            }
        }
    }

    /// Shape of a stored tensor, for the few networks whose size is written nowhere else.
    #[must_use]
    pub fn stored_shape(&self, name: &str) -> Option<Vec<usize>> {
        match &self.shared.source {
            Source::Files(files) => files.entries.get(&self.key(name)).map(|e| e.shape.clone()),
            Source::Seeded { .. } | Source::Blank => None,
        }
    }

    /// Every key that was asked for so far, with its shape.
    #[must_use]
    pub fn asked(&self) -> BTreeMap<String, Vec<usize>> {
        self.shared.asked.borrow().clone()
    }

    /// Ends the reading: every tensor of the files must have been asked for or [ignored](Self::ignore).
    ///
    /// # Errors
    ///
    /// Names how many tensors nobody asked for, and the first.
    pub fn finish(self) -> Result<ParameterKeys, WeightsError> {
        if let Source::Files(files) = &self.shared.source {
            let asked = self.shared.asked.borrow();
            let ignored = self.shared.ignored.borrow();
            let unused: Vec<&String> = files
                .entries
                .keys()
                .filter(|k| !asked.contains_key(*k) && !ignored.contains(*k))
                .collect();
            if let Some(first) = unused.first() {
                return Err(WeightsError::Unused {
                    path: files.origin.clone(),
                    count: unused.len(),
                    key: first.escape_debug().to_string(),
                    near: nearest(first, asked.keys()),
                });
            }
        }
        Ok(self.shared.keys.take())
    }

    fn key(&self, name: &str) -> String {
        if name.is_empty() {
            self.prefix.trim_end_matches('.').to_owned()
        } else {
            format!("{}{name}", self.prefix)
        }
    }

    /// Wraps a tensor as a frozen parameter and notes its key.
    fn register<const D: usize>(
        &self,
        name: &str,
        tensor: Tensor<D>,
        stored: &[usize],
        transposed: bool,
    ) -> Param<Tensor<D>> {
        let id = ParamId::new();
        let key = ParameterKey {
            key: self.key(name),
            shape: stored.to_vec(),
            transposed,
        };
        self.shared.keys.borrow_mut().insert(id, key);
        // `initialized` takes the training state of the tensor, which is off on a device without autodiff.
        Param::initialized(id, tensor)
    }
}

impl Weights {
    /// A parameter whose values are never made, for [`Weights::blank`].
    fn blank_parameter<const D: usize>(
        &self,
        name: &str,
        shape: [usize; D],
        stored: &[usize],
        transposed: bool,
    ) -> Param<Tensor<D>> {
        let id = ParamId::new();
        let key = ParameterKey {
            key: self.note(name, stored),
            shape: stored.to_vec(),
            transposed,
        };
        self.shared.keys.borrow_mut().insert(id, key);
        self.blank_values(id, shape)
    }

    fn blank_values<const D: usize>(&self, id: ParamId, shape: [usize; D]) -> Param<Tensor<D>> {
        let zeros = move |device: &Device, _: bool| Tensor::zeros(shape, device);
        Param::uninitialized(id, zeros, self.shared.device.clone(), false, shape.into())
    }

    /// Notes that a tensor was asked for, and returns its key.
    fn note(&self, name: &str, stored: &[usize]) -> String {
        let key = self.key(name);
        self.shared.asked.borrow_mut().insert(key.clone(), stored.to_vec());
        key
    }
}

/// Whether a folder has files that [`Weights::open`] would open.
#[must_use]
pub(crate) fn exist(dir: &Path, stem: &str) -> bool {
    files::find(dir, stem).is_some()
}

/// Reads a JSON configuration that lies beside weights.
///
/// # Errors
///
/// The file is missing, is not JSON, or lacks a field.
pub fn read_config<T: DeserializeOwned>(path: &Path) -> Result<T, WeightsError> {
    let text = std::fs::read_to_string(path).map_err(|source| match source.kind() {
        std::io::ErrorKind::NotFound => WeightsError::Config {
            path: PathBuf::from(path),
            why: "there is no such file; is the path right and the download complete?".into(),
        },
        _ => WeightsError::Io {
            path: path.to_owned(),
            source,
        },
    })?;
    serde_json::from_str(&text).map_err(|e| WeightsError::Config {
        path: PathBuf::from(path),
        why: e.to_string(),
    })
}

/// The transpose of a row-major matrix of `rows` rows.
#[must_use]
pub fn transpose(values: &[f32], rows: usize) -> Vec<f32> {
    let columns = values.len() / rows.max(1);
    let mut turned = Vec::with_capacity(values.len());
    for column in 0..columns {
        turned.extend((0..rows).map(|row| values[row * columns + column]));
    }
    turned
}

/// A seeded tensor; see [`Weights::seeded`].
fn invent(seed: u64, scale: f32, key: &str, shape: &[usize]) -> Vec<f32> {
    // The key's bytes fill the generator's seed, so that equal keys agree whatever was asked before.
    let mut state = [0u8; 32];
    state[..8].copy_from_slice(&seed.to_le_bytes());
    for (i, byte) in key.bytes().enumerate() {
        let slot = &mut state[8 + i % 24];
        *slot = slot.wrapping_mul(31).wrapping_add(byte);
    }
    let mut random = ChaCha8Rng::from_seed(state);
    let count: usize = shape.iter().product();
    let columns: usize = shape.iter().skip(1).product::<usize>().max(1);
    let (centre, spread) = match shape.len() {
        0 | 1 if key.ends_with("weight") => (1.0, 0.1),
        0 | 1 => (0.0, 0.1),
        _ => (0.0, scale / (columns as f32).sqrt()),
    };
    (0..count)
        .map(|_| {
            let z: f32 = StandardNormal.sample(&mut random);
            centre + spread * z
        })
        .collect()
}

/// The most similar of `keys`, as the tail of a sentence.
fn nearest<'a>(key: &str, keys: impl Iterator<Item = &'a String>) -> String {
    keys.map(|k| (strsim::jaro_winkler(key, k), k))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        // A damaged file may name its tensors in any way, and an error is one line.
        .map(|(_, k)| format!(" (nearest: `{}`)", k.escape_debug()))
        .unwrap_or_default()
}
