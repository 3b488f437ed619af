//! A rough estimate of the memory that training takes. It reads sizes, never weights.
//!
//! The terms that grow with the settings are right to within a factor of two or so: enough to see that a micro-batch is
//! far too large, not enough to fill a device to the last megabyte.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use policy_sd3::transformer::TransformerConfig;
use serde_json::{Value, json};
use trainer::config::Experiment;
use tree_core::Plan;

/// Bytes of an f32, the type of everything here.
const FLOAT: u64 = 4;
/// Values that a block keeps for its backward pass, per token and in widths of the stream: norms, projections, and the
/// hidden layer, which is four times as wide.
const KEPT_PER_TOKEN: u64 = 30;
/// Score matrices that attention keeps for its backward pass, per head.
const KEPT_SCORES: u64 = 3;
/// Feature maps of the finest resolution that the decoder holds at one time.
const DECODER_MAPS: u64 = 4;

/// Bytes by what they are for.
pub(crate) struct Memory {
    /// Weights of the model and of the rewards.
    weights: u64,
    /// Trained parameters with gradient, moments and average.
    optimiser: u64,
    /// Latents and pictures that a rollout leaves for the update.
    rollout: u64,
    /// Activations of one micro-batch, in the update or in the decoder, whichever is larger.
    micro_batch: u64,
}

impl Memory {
    fn total(&self) -> u64 {
        self.weights + self.optimiser + self.rollout + self.micro_batch
    }

    pub(crate) fn as_json(&self) -> Value {
        json!({
            "weights_bytes": self.weights,
            "optimiser_bytes": self.optimiser,
            "rollout_bytes": self.rollout,
            "micro_batch_bytes": self.micro_batch,
            "total_bytes": self.total(),
        })
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "about {} (weights {}, optimiser {}, rollout {}, a micro-batch {})",
            bytes(self.total()),
            bytes(self.weights),
            bytes(self.optimiser),
            bytes(self.rollout),
            bytes(self.micro_batch)
        )
    }
}

/// The estimate for iterations of `plan`; none if a configuration of the model cannot be read.
pub(crate) fn estimate(experiment: &Experiment, plan: &Plan) -> Option<Memory> {
    let config = &experiment.config;
    let model = &config.model.path;
    let network = TransformerConfig::read(&model.join("transformer")).ok()?;
    let maps = json_at(&model.join("vae/config.json"))?["block_out_channels"]
        .as_array()?
        .clone();
    let factor = 1_u64 << maps.len().saturating_sub(1).min(16);
    let finest = maps.first()?.as_u64()?;

    let latent_side = config
        .model
        .size
        .map_or(network.sample_size as u64, |pixels| pixels as u64 / factor);
    let pixels = (latent_side * factor).pow(2);
    let latent = network.in_channels as u64 * latent_side.pow(2) * FLOAT;
    let width = network.width() as u64;
    let blocks = network.num_layers as u64;

    let transformer = parameters(&model.join("transformer"))?;
    let mut weights = transformer;
    for part in ["vae", "text_encoder", "text_encoder_2", "text_encoder_3"] {
        let skipped = part == "text_encoder_3" && !config.model.use_t5;
        if !skipped && model.join(part).is_dir() {
            weights += parameters(&model.join(part))?;
        }
    }
    for spec in config.rewards.values() {
        weights += spec.path.as_deref().and_then(parameters).unwrap_or(0);
    }

    // Eight adapted projections per block, each with two factors.
    let trained = config
        .lora
        .as_ref()
        .map_or(transformer, |lora| blocks * 8 * 2 * width * lora.rank as u64);
    let copies = 4 + u64::from(config.train.ema_decay.is_some());

    let prompts = config.prompts.per_iteration as u64 * config.tree.roots as u64;
    let kept = |step: usize| (plan.width(step) + plan.width(step + 1)) as u64;
    let nodes: u64 = plan.stochastic_steps().map(kept).sum();
    let pictures = plan.counts_per_tree().leaves as u64 * pixels * 3;

    let text = json_at(&model.join("text_encoder/config.json"))
        .and_then(|encoder| encoder["max_position_embeddings"].as_u64())
        .unwrap_or(77);
    // Without T5 its tokens are all zero, and the network works on one of them.
    let t5 = config.model.use_t5 && model.join("text_encoder_3").is_dir();
    let tokens =
        (latent_side / network.patch_size as u64).pow(2) + text + if t5 { config.model.t5_tokens as u64 } else { 1 };
    let rows = config.train.micro_batch as u64 * if config.sampling.guidance > 1.0 { 2 } else { 1 };
    let attention = network.num_attention_heads as u64 * tokens.pow(2) * KEPT_SCORES;
    let update = rows * blocks * (tokens * width * KEPT_PER_TOKEN + attention) * FLOAT;
    let decoder = config.train.micro_batch as u64 * finest * pixels * DECODER_MAPS * FLOAT;

    Some(Memory {
        weights: weights * FLOAT,
        optimiser: trained * copies * FLOAT,
        rollout: prompts * (nodes * latent + pictures),
        micro_batch: update.max(decoder),
    })
}

fn json_at(path: &Path) -> Option<Value> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// Values in all safetensors files of a folder, counted from the files' headers.
fn parameters(folder: &Path) -> Option<u64> {
    let mut count = 0;
    for entry in folder.read_dir().ok()? {
        let path = entry.ok()?.path();
        if path.extension().is_some_and(|ending| ending == "safetensors") {
            count += parameters_of_file(&path)?;
        }
    }
    Some(count)
}

fn parameters_of_file(path: &Path) -> Option<u64> {
    /// No real header is larger; a damaged length must not ask for all memory.
    const LONGEST_HEADER: u64 = 100 << 20;
    let mut file = File::open(path).ok()?;
    let mut length = [0; 8];
    file.read_exact(&mut length).ok()?;
    let length = u64::from_le_bytes(length);
    if length > LONGEST_HEADER {
        return None;
    }
    let mut header = Vec::new();
    file.take(length).read_to_end(&mut header).ok()?;
    let header: Value = serde_json::from_slice(&header).ok()?;
    let shapes = header
        .as_object()?
        .values()
        .filter_map(|tensor| tensor["shape"].as_array());
    Some(
        shapes
            .map(|shape| shape.iter().filter_map(Value::as_u64).product::<u64>())
            .sum(),
    )
}

fn bytes(count: u64) -> String {
    let count = count as f64;
    match count {
        0.0..1e6 => format!("{:.0} kB", count / 1e3),
        1e6..1e9 => format!("{:.0} MB", count / 1e6),
        _ => format!("{:.1} GB", count / 1e9),
    }
}
