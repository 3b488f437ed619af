//! The training loop: rollout of forests, credit, update, evaluation, checkpoints, metrics.
//!
//! [`run`] reads like the method: draw the window, plan, roll out, decode, score, credit, update. Each step is a module
//! of its own; what they do to trees is `tree-core`'s, what they do to pictures is `policy-sd3`'s.
//!
//! Invariant: nothing here knows command lines, terminals or HTML.

pub mod config;
pub mod credit;
pub mod diversity;
mod error;
pub mod evaluate;
pub mod files;
pub mod gaps;
pub mod metrics;
pub mod noise;
pub mod optimiser;
pub mod parameters;
pub mod rollout;
pub mod run;
pub mod state;
pub mod tensorboard;
pub mod update;
pub mod watch;

pub use error::TrainError;
