//! Search trees for reinforcement learning, without the learner.
//!
//! A policy that samples step by step (tokens, moves, denoising steps) can be trained on *trees* of samples: several
//! branches share their beginning, so their scores tell which step made the difference, and the shared part is computed
//! once. This crate holds what every such method needs and knows nothing else: no tensors, no networks, no files, no
//! threads and no source of randomness.
//!
//! The parts follow the order of an iteration:
//!
//! 1. [`Plan`] says how many trees there are and what every step does, and counts what that costs. [`WindowLaw`] places
//!    the window of stochastic steps.
//! 2. [`Forest`] holds the trees: ragged, breadth-first, with any payload per node, grown level by level. [`Subforest`]
//!    is what is left of one when some leaves have no score.
//! 3. [`Normalisation`] turns the leaves' scores into advantages, [`RewardMix`] does so for several rewards by name.
//! 4. [`Backup`] carries leaf values up to all nodes; its effective sample size tells how many children really count.
//! 5. [`Credit`] turns node values into the advantage of every edge.
//! 6. [`ClippedObjective`] gives the loss of an edge and its derivative in the log-prob, and [`RatioStatistics`] what
//!    to log.
//!
//! TreeGRPO, DDPO, Flow-GRPO, DanceGRPO, MixGRPO and BranchGRPO differ only in the plan, the normalisation and the
//! credit rule, so none of them has code of its own here. The equations are those of the TreeGRPO paper (arXiv
//! 2512.08153) unless an item says otherwise.
//!
//! # Conventions
//!
//! Everything is f64. Per-node slices are in node order, per-leaf slices in the order of [`Forest::leaves`]; the entry
//! of an edge is that of the node below it. Log-probs are natural. Wrong input from outside is an error that says what
//! to do; a node number that does not exist panics, as with slices.
//!
//! The crate needs `std`: exponentials and roots are not in `core`, and bringing them along would cost every user a
//! dependency.

mod advantage;
mod backup;
mod credit;
mod forest;
mod mix;
mod objective;
mod plan;
mod ratio;
mod subforest;
mod window;

pub use advantage::{AdvantageError, Advantages, Normalisation, RunningStatistics, Scope, ScoreStatistics, StdKind};
pub use backup::{Backup, BackupError, EdgeLogProbs, LogProbReduction};
pub use credit::Credit;
pub use forest::{Forest, ForestError};
pub use mix::{Mix, MixError, MixedAdvantages, RewardMix, RunningRewards};
pub use objective::{ClippedObjective, EdgeLoss, GaussianKl, ObjectiveError, gaussian_kl, guarded_log_ratio};
pub use plan::{Counts, LevelWeight, Plan, PlanError, Step};
pub use ratio::RatioStatistics;
pub use subforest::Subforest;
pub use window::{AtEnd, WindowError, WindowLaw};

/// The README's examples, compiled and run as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
