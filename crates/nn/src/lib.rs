//! What the policy and the rewards share, and neither may take from the other: strict reading of weight files, layers,
//! CLIP transformers, tokenizers and pictures.
//!
//! Invariant: nothing here knows a policy, a reward or a trainer.

pub mod activation;
pub mod attention;
pub mod clip;
pub mod files;
pub mod fused;
pub mod layers;
pub mod pixels;
pub mod tokenizer;
pub mod weights;
