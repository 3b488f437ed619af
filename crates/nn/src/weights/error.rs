//! What can be wrong with a weight file, each with what the user can do about it.

use std::path::{Path, PathBuf};

/// Why weights could not be read.
///
/// Every variant names the file and, where one is at fault, the key.
#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    /// The folder holds none of the accepted file names.
    #[error("{}: no {stem}.safetensors here, no index of its shards, and no {stem}.bin, .pt or .pth{found}; point the path at the folder that holds them", dir.display())]
    NoWeights {
        /// The folder that was searched.
        dir: PathBuf,
        /// File name without its ending.
        stem: String,
        /// What lies there instead, as the tail of a sentence.
        found: String,
    },
    /// The file or folder could not be opened or read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file's first bytes are those of something else.
    #[error("{}: this is {what}, not a weight file; {fix}", path.display())]
    NotWeights {
        /// The file.
        path: PathBuf,
        /// What it is.
        what: &'static str,
        /// What to do.
        fix: &'static str,
    },
    /// The file is a TorchScript archive, such as OpenAI's `ViT-L-14.pt`.
    #[error("{path}: this is a TorchScript archive, a compiled program with its weights inside; write them to a file of their own: python -c \"import sys, torch; torch.save(torch.jit.load(sys.argv[1], map_location='cpu').state_dict(), sys.argv[2])\" '{path}' weights.pt", path = path.display())]
    TorchScript {
        /// The file.
        path: PathBuf,
    },
    /// The file's pickle names a function or class that no tensor needs.
    #[error("{}: its pickle asks for `{global}`, which plain tensors do not need; nothing of it was run. Use a file of the weights alone, from a source that you trust", path.display())]
    ForeignGlobal {
        /// The file.
        path: PathBuf,
        /// Module and name.
        global: String,
    },
    /// The pickle holds something else than a dictionary of tensors.
    #[error("{}: {why}", path.display())]
    StateDict {
        /// The file.
        path: PathBuf,
        /// What it holds instead, and what is accepted.
        why: String,
    },
    /// The file does not parse, or its offsets leave it.
    #[error("{}: broken {format} file: {why}; download it again", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// What its first bytes promise.
        format: &'static str,
        /// What is wrong.
        why: String,
    },
    /// The shard index does not parse or disagrees with the shards.
    #[error("{}: {why}", path.display())]
    Index {
        /// The index file.
        path: PathBuf,
        /// What is wrong and what to do.
        why: String,
    },
    /// The network needs a tensor that the file does not have.
    #[error("{}: tensor `{key}` is missing{near}; is this the right file for this configuration?", path.display())]
    Missing {
        /// The file or folder.
        path: PathBuf,
        /// The key that was looked for.
        key: String,
        /// The nearest unused key, as the tail of a sentence.
        near: String,
    },
    /// A tensor has another shape than the configuration asks for.
    #[error("{}: tensor `{key}` has shape {found:?}, the configuration asks for {expected:?}", path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// The shape in the file.
        found: Vec<usize>,
        /// The shape the network needs.
        expected: Vec<usize>,
    },
    /// A tensor is stored in a type that is not read.
    #[error("{}: tensor `{key}` is stored as {found}; only F32, F16 and BF16 weights are read", path.display())]
    Dtype {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// The stored type.
        found: String,
    },
    /// A tensor holds a NaN or an infinity.
    #[error("{}: tensor `{key}` holds a non-finite value at element {element}; the file is damaged or was saved after a diverged run", path.display())]
    NonFinite {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
        /// Index of the first such value, row-major.
        element: usize,
    },
    /// The file has tensors that the network does not use.
    #[error("{}: {count} tensor(s) are not used by this network, first `{key}`{near}; is this the right file for this configuration?", path.display())]
    Unused {
        /// The file or folder.
        path: PathBuf,
        /// How many.
        count: usize,
        /// The first in alphabetical order.
        key: String,
        /// The nearest key in use, as the tail of a sentence.
        near: String,
    },
    /// A JSON configuration beside the weights is missing, malformed or asks for what is not supported.
    #[error("{}: {why}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong and what to do.
        why: String,
    },
}

impl WeightsError {
    pub(super) fn foreign_global(path: &Path, global: &str) -> Self {
        Self::ForeignGlobal {
            path: path.to_owned(),
            global: global.to_owned(),
        }
    }
}
