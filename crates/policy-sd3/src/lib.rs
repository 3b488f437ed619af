//! The Stable Diffusion 3 family as a policy: networks, schedules, transition kernels, LoRA, weight files.
//!
//! Invariant: nothing here knows rewards, optimisers or configuration files of experiments.

pub mod adapter;
pub mod guidance;
pub mod kernel;
pub mod lora;
pub mod pipeline;
pub mod schedule;
pub mod text;
pub mod transformer;
pub mod vae;
