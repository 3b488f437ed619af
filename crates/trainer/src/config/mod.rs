//! The configuration of an experiment: what a user writes, key by key, and what is wrong with it.
//!
//! Two levels. [`ExperimentConfig`] is the TOML file as it stands, unknown keys refused. [`Experiment`] is what comes
//! of it after every check that needs no model: built plans, laws, objectives and the prompts themselves.

mod check;
mod error;
mod experiment;
mod parse;
mod prompts;

use std::collections::BTreeMap;
use std::path::PathBuf;

use policy_sd3::kernel::{Density, Kernel, Reduction};
use policy_sd3::lora::LoraInit;
use policy_sd3::schedule::ScheduleKind;
use rewards::RewardSpec;
use serde::{Deserialize, Serialize};
use tree_core::{AtEnd, Backup, Credit, LevelWeight, LogProbReduction, Mix, Normalisation};

use crate::gaps::NonFiniteScores;

pub use error::ConfigError;
pub use experiment::Experiment;
pub use prompts::{PromptFile, read_prompts};

/// A configuration file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExperimentConfig {
    /// The model that is trained.
    pub model: ModelConfig,
    /// What it is asked for.
    pub prompts: PromptsConfig,
    /// How it samples.
    #[serde(default)]
    pub sampling: SamplingConfig,
    /// The shape of the trees.
    #[serde(default)]
    pub tree: TreeConfig,
    /// From scores to advantages.
    #[serde(default)]
    pub credit: CreditConfig,
    /// The rewards, by name.
    pub rewards: BTreeMap<String, RewardSpec>,
    /// The update.
    #[serde(default)]
    pub train: TrainConfig,
    /// The adapter; without this table all weights of the transformer are trained.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lora: Option<LoraTable>,
    /// The evaluation.
    #[serde(default)]
    pub evaluation: EvaluationConfig,
}

/// `[model]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Folder of the pipeline, in diffusers' layout.
    pub path: PathBuf,
    /// Side of the pictures in pixels; the model's own size when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<usize>,
    /// Tokens of T5's part of the sequence, or zero tokens in its place (diffusers' `max_sequence_length`).
    #[serde(default = "default_t5_tokens")]
    pub t5_tokens: usize,
    /// Whether to use T5 if the pipeline has it.
    #[serde(default = "yes")]
    pub use_t5: bool,
}

/// `[prompts]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PromptsConfig {
    /// Text file of the training prompts, one per line.
    pub train: PathBuf,
    /// Text file of the evaluation prompts; no evaluation when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval: Option<PathBuf>,
    /// Prompts drawn per iteration, without replacement until all were seen.
    #[serde(default = "default_per_iteration")]
    pub per_iteration: usize,
    /// Parts of the evaluation file that are reported apart: name to first and last line, counted from 1.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub eval_groups: BTreeMap<String, [usize; 2]>,
}

/// `[sampling]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingConfig {
    /// Denoising steps.
    pub steps: usize,
    /// Guidance scale, in rollout and update alike; 1 is no guidance.
    pub guidance: f64,
    /// Kernel of the stochastic steps.
    pub kernel: Kernel,
    /// Its η; the kernel's own default when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub noise_level: Option<f64>,
    /// σ table.
    pub schedule: ScheduleKind,
    /// Form of the log-prob.
    pub density: Density,
    /// Reduction of the log-prob over the elements of a latent.
    pub reduction: Reduction,
}

/// `[tree]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TreeConfig {
    /// Trees per prompt.
    pub roots: usize,
    /// Children per node in the window.
    pub children: usize,
    /// Stochastic steps in a row.
    pub window: usize,
    /// Where the window starts.
    pub window_law: LawName,
    /// Ratio of `geometric`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_ratio: Option<f64>,
    /// Start of `fixed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_start: Option<usize>,
    /// Iterations between two moves of `shifting`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_every: Option<u64>,
    /// Steps per move of `shifting`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_by: Option<u64>,
    /// What `shifting` does at the last place.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_at_end: Option<AtEnd>,
}

/// Names of the window laws.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LawName {
    /// Early starts are likelier, by a constant ratio (the paper's).
    Geometric,
    /// Moves on with the iterations (the released program's).
    Shifting,
    /// Every start is equally likely.
    Uniform,
    /// Always the same start.
    Fixed,
}

/// `[credit]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CreditConfig {
    /// How values go up the tree.
    pub backup: BackupName,
    /// Temperature of `softmax`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// What `softmax` compares.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_prob_reduction: Option<LogProbReduction>,
    /// How edges get their advantage.
    pub rule: Credit,
    /// How the levels of the window are weighed.
    pub level_weight: LevelWeight,
    /// Where several rewards are mixed.
    pub mix: Mix,
    /// What becomes of pictures without a finite score.
    pub non_finite_scores: NonFiniteScores,
    /// How scores become leaf advantages.
    pub normalisation: Normalisation,
}

/// Names of the backups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackupName {
    /// Equal weights.
    Mean,
    /// Softmax of the log-probs.
    Softmax,
}

impl CreditConfig {
    /// The backup that the keys describe.
    #[must_use]
    pub fn backup(&self) -> Backup {
        match self.backup {
            BackupName::Mean => Backup::Mean,
            BackupName::Softmax => Backup::Softmax {
                temperature: self.temperature.unwrap_or(1.0),
                reduction: self.log_prob_reduction.unwrap_or_default(),
            },
        }
    }
}

/// `[train]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainConfig {
    /// Iterations: one rollout and its updates each.
    pub iterations: u64,
    /// Optimiser steps per iteration; with 1 the ratio is 1 by construction.
    pub updates_per_iteration: usize,
    /// Seed of everything random.
    pub seed: u64,
    /// Nodes that go through the network together.
    pub micro_batch: usize,
    /// Step size of AdamW; 3e-4 for an adapter and 1e-5 for all weights when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub learning_rate: Option<f64>,
    /// Decays of AdamW's moments.
    pub betas: [f64; 2],
    /// AdamW's ε.
    pub epsilon: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Largest global norm of the gradient.
    pub gradient_clip: f64,
    /// ε of the clipped ratio.
    pub clip_range: f64,
    /// Largest magnitude of an advantage.
    pub advantage_clamp: f64,
    /// Factor of the divergence from the untrained model, `mean((mean−reference)²)/(2·std²)`; 0 is off.
    pub kl_beta: f64,
    /// Decay of the average of the parameters; no average when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ema_decay: Option<f64>,
    /// Largest |ratio − 1| allowed at the first update of an iteration.
    pub ratio_limit: f64,
    /// Iterations between two checkpoints; the last one is always written.
    pub checkpoint_every: u64,
}

/// `[lora]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LoraTable {
    /// Inner width.
    pub rank: usize,
    /// Scale times rank.
    pub alpha: f64,
    /// How A starts.
    pub init: LoraInit,
    /// Folder of an adapter to start from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
}

/// `[evaluation]`
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EvaluationConfig {
    /// Iterations between two evaluations; there is always one before the first iteration and one after the last.
    pub every: u64,
    /// Steps; those of the training when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<usize>,
    /// Guidance; that of the training when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guidance: Option<f64>,
    /// Pictures per prompt.
    pub pictures_per_prompt: usize,
    /// Seed of the pictures' noise. It is not the run's, so that runs of several seeds are judged on equal terms.
    pub seed: u64,
    /// Prompts whose pictures are kept as a grid, from the first on.
    pub samples: usize,
}

fn default_t5_tokens() -> usize {
    256
}

fn default_per_iteration() -> usize {
    8
}

fn yes() -> bool {
    true
}

impl Default for SamplingConfig {
    fn default() -> Self {
        Self {
            steps: 10,
            guidance: 4.5,
            kernel: Kernel::FlowSde,
            noise_level: None,
            schedule: ScheduleKind::Diffusers,
            density: Density::default(),
            reduction: Reduction::default(),
        }
    }
}

impl Default for TreeConfig {
    fn default() -> Self {
        Self {
            roots: 1,
            children: 3,
            window: 3,
            window_law: LawName::Geometric,
            window_ratio: None,
            window_start: None,
            window_every: None,
            window_by: None,
            window_at_end: None,
        }
    }
}

impl Default for CreditConfig {
    fn default() -> Self {
        Self {
            backup: BackupName::Mean,
            temperature: None,
            log_prob_reduction: None,
            rule: Credit::Subtree,
            level_weight: LevelWeight::Path,
            mix: Mix::Advantage,
            non_finite_scores: NonFiniteScores::Error,
            normalisation: Normalisation::default(),
        }
    }
}

impl Default for TrainConfig {
    fn default() -> Self {
        Self {
            iterations: 100,
            updates_per_iteration: 1,
            seed: 0,
            micro_batch: 64,
            learning_rate: None,
            betas: [0.9, 0.999],
            epsilon: 1e-8,
            weight_decay: 1e-4,
            gradient_clip: 1.0,
            clip_range: 1e-4,
            advantage_clamp: 5.0,
            kl_beta: 0.0,
            ema_decay: None,
            ratio_limit: 1e-5,
            checkpoint_every: 10,
        }
    }
}

impl Default for LoraTable {
    fn default() -> Self {
        Self {
            rank: 32,
            alpha: 64.0,
            init: LoraInit::Gaussian,
            path: None,
        }
    }
}

impl Default for EvaluationConfig {
    fn default() -> Self {
        Self {
            every: 20,
            steps: None,
            guidance: None,
            pictures_per_prompt: 1,
            seed: 0,
            samples: 24,
        }
    }
}
