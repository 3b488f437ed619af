//! A rough estimate of the memory that training takes. It reads sizes, never weights.
//!
//! The terms that grow with the settings are right to within a factor of two or so: enough to see that a micro-batch is
//! far too large, not enough to fill a device to the last megabyte.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Result, bail};
use policy_sd3::transformer::TransformerConfig;
use serde_json::{Value, json};
use trainer::config::Experiment;
use tree_core::Plan;

/// Bytes of an f32, the type of everything here.
const FLOAT: f64 = 4.0;
/// Values that a block keeps for its backward pass, per token and in widths of the stream: norms, projections, and the
/// hidden layer, which is four times as wide.
const KEPT_PER_TOKEN: f64 = 30.0;
/// Score matrices that attention keeps for its backward pass, per head.
const KEPT_SCORES: f64 = 3.0;
/// Feature maps of the finest resolution that the decoder holds at one time.
const DECODER_MAPS: f64 = 4.0;

/// Bytes by what they are for, as floats: absurd settings must give absurd numbers and not an overflow.
pub(crate) struct Memory {
    /// Weights of the model and of the rewards.
    weights: f64,
    /// Trained parameters with gradient, moments and average.
    optimiser: f64,
    /// Latents and pictures that a rollout leaves for the update.
    rollout: f64,
    /// Activations of the micro-batches under way, in the update or in the decoder, whichever is larger.
    activations: f64,
}

impl Memory {
    fn total(&self) -> f64 {
        self.weights + self.optimiser + self.rollout + self.activations
    }

    /// Refuses what this machine's memory cannot hold by a wide margin, before anything is loaded.
    ///
    /// # Errors
    ///
    /// Half of the estimate, which is right to within a factor of two or so, exceeds the memory there is.
    pub(crate) fn check_fits(&self) -> Result<()> {
        match physical_memory() {
            Some(there) if self.total() / 2.0 > there => bail!(
                "this configuration needs {self}, and the machine has {}; lower prompts.per_iteration, tree.children, \
                 tree.window, train.micro_batch or lora.rank",
                bytes(there)
            ),
            _ => Ok(()),
        }
    }

    pub(crate) fn as_json(&self) -> Value {
        json!({
            "weights_bytes": self.weights as u64,
            "optimiser_bytes": self.optimiser as u64,
            "rollout_bytes": self.rollout as u64,
            "activations_bytes": self.activations as u64,
            "total_bytes": self.total() as u64,
        })
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "about {} (weights {}, optimiser {}, rollout {}, activations {})",
            bytes(self.total()),
            bytes(self.weights),
            bytes(self.optimiser),
            bytes(self.rollout),
            bytes(self.activations)
        )
    }
}

/// Bytes of the machine's memory, where the system tells.
fn physical_memory() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemTotal:"))?;
    let kibibytes: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kibibytes * 1024.0)
}

/// The estimate for iterations of `plan`; none if a configuration of the model cannot be read.
pub(crate) fn estimate(experiment: &Experiment, plan: &Plan) -> Option<Memory> {
    let config = &experiment.config;
    let model = &config.model.path;
    let network = TransformerConfig::read(&model.join("transformer")).ok()?;
    let maps = json_at(&model.join("vae/config.json"))?["block_out_channels"]
        .as_array()?
        .clone();
    let factor = f64::from(1_u32 << maps.len().saturating_sub(1).min(16));
    let finest = maps.first()?.as_f64()?;

    let latent_side = config
        .model
        .size
        .map_or(network.sample_size as f64, |pixels| pixels as f64 / factor);
    let pixels = (latent_side * factor).powi(2);
    let latent = network.in_channels as f64 * latent_side.powi(2) * FLOAT;
    let width = network.width() as f64;
    let blocks = network.num_layers as f64;

    let transformer = parameters(&model.join("transformer"))?;
    let mut weights = transformer;
    for part in ["vae", "text_encoder", "text_encoder_2", "text_encoder_3"] {
        let skipped = part == "text_encoder_3" && !config.model.use_t5;
        if !skipped && model.join(part).is_dir() {
            weights += parameters(&model.join(part))?;
        }
    }
    for spec in config.rewards.values() {
        weights += spec.path.as_deref().and_then(parameters).unwrap_or(0.0);
    }

    // Eight adapted projections per block, each with two factors.
    let trained = config
        .lora
        .as_ref()
        .map_or(transformer, |lora| blocks * 16.0 * width * lora.rank as f64);
    let copies = if config.train.ema_decay.is_some() { 5.0 } else { 4.0 };

    let prompts = config.prompts.per_iteration as f64 * config.tree.roots as f64;
    let kept = |step: usize| (plan.width(step) + plan.width(step + 1)) as f64;
    let nodes: f64 = plan.stochastic_steps().map(kept).sum();
    let pictures = plan.counts_per_tree().leaves as f64 * pixels * 3.0;

    let text = json_at(&model.join("text_encoder/config.json"))
        .and_then(|encoder| encoder["max_position_embeddings"].as_f64())
        .unwrap_or(77.0);
    // Without T5 its tokens are all zero, and the network works on one of them.
    let t5 = config.model.use_t5 && model.join("text_encoder_3").is_dir();
    let tokens =
        (latent_side / network.patch_size as f64).powi(2) + text + if t5 { config.model.t5_tokens as f64 } else { 1.0 };
    let halves = if config.sampling.guidance > 1.0 { 2.0 } else { 1.0 };
    // On the CPU every thread works on a micro-batch of its own.
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let at_once = config.train.micro_batch as f64 * threads as f64;
    let rows = halves * at_once.min(prompts * plan.counts_per_tree().training_nodes as f64);
    let attention = network.num_attention_heads as f64 * tokens.powi(2) * KEPT_SCORES;
    let update = rows * blocks * (tokens * width * KEPT_PER_TOKEN + attention) * FLOAT;
    let leaves = at_once.min(prompts * plan.counts_per_tree().leaves as f64);
    let decoder = leaves * finest * pixels * DECODER_MAPS * FLOAT;

    Some(Memory {
        weights: weights * FLOAT,
        optimiser: trained * copies * FLOAT,
        rollout: prompts * (nodes * latent + pictures),
        activations: update.max(decoder),
    })
}

fn json_at(path: &Path) -> Option<Value> {
    serde_json::from_slice(&std::fs::read(path).ok()?).ok()
}

/// Values in all safetensors files of a folder, counted from the files' headers.
fn parameters(folder: &Path) -> Option<f64> {
    let mut count = 0.0;
    for entry in folder.read_dir().ok()? {
        let path = entry.ok()?.path();
        if path.extension().is_some_and(|ending| ending == "safetensors") {
            count += parameters_of_file(&path)?;
        }
    }
    Some(count)
}

fn parameters_of_file(path: &Path) -> Option<f64> {
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
            .map(|shape| shape.iter().filter_map(Value::as_f64).product::<f64>())
            .sum(),
    )
}

fn bytes(count: f64) -> String {
    match count {
        0.0..1e6 => format!("{:.0} kB", count / 1e3),
        1e6..1e9 => format!("{:.0} MB", count / 1e6),
        _ => format!("{:.1} GB", count / 1e9),
    }
}
