//! What can be wrong with a configuration or a prompt file.

use std::path::PathBuf;

/// Why an experiment cannot start. Each is one line: file, line or key, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file could not be read.
    #[error("{}: {why}", path.display())]
    Read {
        /// The file, made absolute.
        path: PathBuf,
        /// What is wrong and what to do.
        why: String,
    },
    /// The file is not TOML, or a key is unknown or of the wrong type.
    #[error("{}, line {line}: {why}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1.
        line: usize,
        /// What is wrong.
        why: String,
    },
    /// An override is malformed or names an unknown key.
    #[error("--set {setting}: {why}")]
    Override {
        /// What the user wrote.
        setting: String,
        /// What is wrong and what to do.
        why: String,
    },
    /// A value makes no sense.
    #[error("{}: {key}: {why}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The key, dotted.
        key: String,
        /// What is wrong and what to do.
        why: String,
    },
    /// A prompt file has a bad line.
    #[error("{}, line {line}: {why}", path.display())]
    Prompt {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1.
        line: usize,
        /// What is wrong and what to do.
        why: String,
    },
    /// A reward is badly configured.
    #[error(transparent)]
    Reward(#[from] rewards::RewardError),
    /// A configuration file of the model is missing or malformed.
    #[error(transparent)]
    Model(#[from] nn::weights::WeightsError),
}
