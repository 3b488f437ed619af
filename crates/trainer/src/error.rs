//! Why a run stopped. Every message says what, where and what to do.

use std::path::PathBuf;

use nn::pixels::PixelError;
use nn::weights::WeightsError;
use policy_sd3::adapter::AdapterError;
use policy_sd3::kernel::KernelError;

use crate::gaps::Gap;

/// Why training, sampling or evaluation stopped.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    /// A weight file is at fault.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// An adapter folder is at fault.
    #[error(transparent)]
    Adapter(#[from] AdapterError),
    /// A transition cannot be taken.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// A decoded picture is none.
    #[error(transparent)]
    Pixels(#[from] PixelError),
    /// A scorer failed.
    #[error(transparent)]
    Reward(#[from] rewards::RewardError),
    /// The text could not be encoded.
    #[error(transparent)]
    Text(#[from] policy_sd3::text::TextError),
    /// The schedule cannot be built.
    #[error(transparent)]
    Schedule(#[from] policy_sd3::schedule::ScheduleError),
    /// A plan cannot be built.
    #[error(transparent)]
    Plan(#[from] tree_core::PlanError),
    /// A window cannot be placed.
    #[error(transparent)]
    Window(#[from] tree_core::WindowError),
    /// A forest cannot be built.
    #[error(transparent)]
    Forest(#[from] tree_core::ForestError),
    /// Rewards cannot be mixed.
    #[error(transparent)]
    Mix(#[from] tree_core::MixError),
    /// Values cannot be carried up the trees.
    #[error(transparent)]
    Backup(#[from] tree_core::BackupError),
    /// A score is NaN or infinite, and no rule says what to do then.
    #[error(
        "{0}, which is no score; mend the scorer, or have such pictures left out with credit.non_finite_scores = \"drop-sample\" or \"drop-group\""
    )]
    NonFiniteScore(Gap),
    /// Every leaf of an iteration was dropped.
    #[error(
        "no leaf is left to train on: of {leaves} leaves of {prompts} prompts, no finite score came from {gaps}, and credit.non_finite_scores drops them; mend the scorer"
    )]
    NothingLeft {
        /// Leaves of the iteration.
        leaves: usize,
        /// Its prompts.
        prompts: usize,
        /// Rewards, each with the number of leaves that it gave no finite score, and the first of these.
        gaps: String,
    },
    /// Rewards that were given to a run are not those of its configuration.
    #[error(
        "the rewards that were given are {given}, but the configuration asks for {expected}; give the same names, weights and eval_only"
    )]
    OtherRewards {
        /// Those of the configuration.
        expected: String,
        /// Those that were given.
        given: String,
    },
    /// An edge has no loss.
    #[error("iteration {iteration}, step {step}: {source}")]
    Objective {
        /// The iteration.
        iteration: u64,
        /// The step of the edge.
        step: usize,
        /// What is wrong.
        source: tree_core::ObjectiveError,
    },
    /// A gradient holds NaN or infinity. The parameters were not changed.
    #[error(
        "the gradient of `{tensor}` is not finite; the parameters were left as they were: lower train.learning_rate or sampling.noise_level"
    )]
    NonFiniteGradient {
        /// The first such tensor.
        tensor: String,
    },
    /// A velocity or latent holds NaN or infinity.
    #[error(
        "step {step}: the {what} of prompt {prompt} is not finite; the weights have diverged: resume from an earlier checkpoint with a lower train.learning_rate"
    )]
    NonFinite {
        /// What it is.
        what: &'static str,
        /// The step.
        step: usize,
        /// Index of the prompt in its file.
        prompt: usize,
    },
    /// The first update's ratio is not 1, so the replay is not the rollout.
    #[error(
        "iteration {iteration}: the ratio of the first update must be 1, but step {step} (σ = {sigma:.6}, std = {std:.6}) has log-prob {replayed:.9} against {stored:.9} in the rollout, more than {limit:e} apart; rollout and update do not compute the same network"
    )]
    Ratio {
        /// The iteration.
        iteration: u64,
        /// The step.
        step: usize,
        /// σ of the step.
        sigma: f64,
        /// Standard deviation of the step.
        std: f64,
        /// Log-prob of the rollout.
        stored: f64,
        /// Log-prob of the update.
        replayed: f64,
        /// Largest |ratio − 1| allowed.
        limit: f64,
    },
    /// The device did not hand data over.
    #[error("the device did not return a result: {0}")]
    Device(String),
    /// A file of the run could not be read or written.
    #[error("{}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong and what to do.
        why: String,
    },
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] crate::config::ConfigError),
}
