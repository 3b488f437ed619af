//! BLIP as ImageReward uses it (Li et al. 2022, "BLIP: Bootstrapping Language-Image Pre-training", the image-grounded
//! text encoder): a vision transformer, and a BERT whose every layer also looks at the picture.
//!
//! Key names are those of `ImageReward.pt`.

pub mod text;
pub mod vision;

pub use text::{BertConfig, BlipText};
pub use vision::{BlipVision, BlipVisionConfig};
