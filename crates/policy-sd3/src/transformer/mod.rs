//! MMDiT-X, the velocity network of Stable Diffusion 3 and 3.5 ("Scaling Rectified Flow Transformers", arXiv 2403.03206;
//! dual attention and query/key normalisation as in SD3.5-medium).
//!
//! Two streams of tokens, picture and text, pass through a stack of blocks that attend to each other. Without a T5
//! encoder the text stream ends in zero tokens that carry no position: they are equal in every block, so one of them
//! stands for all, with `ln n` added to the logits of its key. That is exact, not an approximation.

mod block;
mod embed;

use std::path::Path;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use nn::layers::Linear;
use nn::weights::{ParameterKeys, Weights, WeightsError, read_config};
use serde::Deserialize;

use crate::lora::LoraLinear;
use block::Continuous;
pub use block::{Block, Condition, Streams};
pub use embed::time_projection;
use embed::{ConditionEmbedder, PatchEmbedder};

/// Sizes of a transformer, from its `config.json`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct TransformerConfig {
    /// Latent channels read.
    pub in_channels: usize,
    /// Latent channels written; `in_channels` when absent.
    pub out_channels: Option<usize>,
    /// Side of a square patch, in latent pixels.
    pub patch_size: usize,
    /// Blocks.
    pub num_layers: usize,
    /// Width of one attention head.
    pub attention_head_dim: usize,
    /// Attention heads.
    pub num_attention_heads: usize,
    /// Width of the text tokens read.
    pub joint_attention_dim: usize,
    /// Width of the text tokens inside; must be heads × head width.
    pub caption_projection_dim: usize,
    /// Width of the pooled text embedding.
    pub pooled_projection_dim: usize,
    /// Side of the position table, in patches.
    pub pos_embed_max_size: usize,
    /// Side of the pictures the model was made for, in latent pixels.
    pub sample_size: usize,
    /// Blocks with a second attention over the picture alone.
    #[serde(default)]
    pub dual_attention_layers: Vec<usize>,
    /// Normalisation of queries and keys: none or `rms_norm`.
    #[serde(default)]
    pub qk_norm: Option<String>,
}

impl TransformerConfig {
    /// Width of both streams.
    #[must_use]
    pub fn width(&self) -> usize {
        self.attention_head_dim * self.num_attention_heads
    }

    /// Reads and checks `config.json` in `dir`.
    ///
    /// # Errors
    ///
    /// The file is missing or malformed, or describes a network of another family.
    pub fn read(dir: &Path) -> Result<Self, WeightsError> {
        let path = dir.join("config.json");
        let config: Self = read_config(&path)?;
        let wrong = |why: String| {
            Err(WeightsError::Config {
                path: path.clone(),
                why,
            })
        };
        if config.caption_projection_dim != config.width() {
            return wrong(format!(
                "caption_projection_dim is {}, but heads × head width is {}; the two streams must be equally wide",
                config.caption_projection_dim,
                config.width()
            ));
        }
        if !matches!(config.qk_norm.as_deref(), None | Some("rms_norm")) {
            return wrong(format!(
                "qk_norm is {:?}; only null and \"rms_norm\" are known",
                config.qk_norm
            ));
        }
        if config.patch_size == 0 || config.num_layers == 0 || config.num_attention_heads == 0 {
            return wrong("patch_size, num_layers and num_attention_heads must be at least 1".into());
        }
        if let Some(layer) = config.dual_attention_layers.iter().find(|l| **l >= config.num_layers) {
            return wrong(format!(
                "dual_attention_layers names block {layer} of {}",
                config.num_layers
            ));
        }
        Ok(config)
    }
}

/// What the network is conditioned on: one row per distinct (prompt, step), shared by all nodes that name it.
#[derive(Debug, Clone)]
pub struct Conditioning {
    /// Text tokens `[rows, tokens, joint width]`.
    pub sequence: Tensor<3>,
    /// Pooled text embedding `[rows, pooled width]`.
    pub pooled: Tensor<2>,
    /// All-zero tokens that follow `sequence` and are not stored in it.
    pub zero_tokens: usize,
}

/// The velocity network.
#[derive(Module, Debug)]
pub struct Transformer {
    patches: PatchEmbedder,
    condition: ConditionEmbedder,
    context_embedder: Linear,
    blocks: Vec<Block>,
    norm_out: Continuous,
    proj_out: Linear,
    patch_size: usize,
    out_channels: usize,
    heads: usize,
}

impl Transformer {
    /// Builds the network from its weights, strictly: every tensor of a file must be used.
    ///
    /// # Errors
    ///
    /// A tensor is missing, left over or misshapen.
    pub fn load(weights: Weights, config: &TransformerConfig) -> Result<(Self, ParameterKeys), WeightsError> {
        let width = config.width();
        let out_channels = config.out_channels.unwrap_or(config.in_channels);
        let patch = config.patch_size;
        let blocks = (0..config.num_layers)
            .map(|layer| Block::load(&weights.scope(format!("transformer_blocks.{layer}")), config, layer))
            .collect::<Result<Vec<_>, _>>()?;
        let network = Self {
            patches: PatchEmbedder::load(&weights.scope("pos_embed"), config)?,
            condition: ConditionEmbedder::load(&weights.scope("time_text_embed"), config)?,
            context_embedder: Linear::load(&weights.scope("context_embedder"), config.joint_attention_dim, width)?,
            blocks,
            norm_out: Continuous::load(&weights.scope("norm_out"), width)?,
            proj_out: Linear::load(&weights.scope("proj_out"), width, patch * patch * out_channels)?,
            patch_size: patch,
            out_channels,
            heads: config.num_attention_heads,
        };
        Ok((network, weights.finish()?))
    }

    /// Reads the `transformer` folder of a pipeline.
    ///
    /// # Errors
    ///
    /// As for [`Transformer::load`] and [`TransformerConfig::read`].
    pub fn open(dir: &Path, device: &Device) -> Result<(Self, TransformerConfig, ParameterKeys), WeightsError> {
        let config = TransformerConfig::read(dir)?;
        let weights = Weights::open(dir, "diffusion_pytorch_model", device)?;
        let (network, keys) = Self::load(weights, &config)?;
        Ok((network, config, keys))
    }

    /// The velocity at `latents` (`[batch, channels, height, width]`), of the same shape.
    ///
    /// `rows[b]` is the row of `conditioning` for batch entry `b`; `timesteps[r]` is the time of that row on the
    /// 0…1000 scale (1000·σ, not rounded to an integer).
    #[must_use]
    pub fn forward(
        &self,
        latents: Tensor<4>,
        timesteps: &[f64],
        conditioning: &Conditioning,
        rows: &[usize],
    ) -> Tensor<4> {
        let [_, _, height, width] = latents.dims();
        let condition = self.condition(timesteps, conditioning, rows);
        let mut streams = self.embed(latents, conditioning, rows);
        for block in &self.blocks {
            streams = block.forward(streams, &condition, self.heads);
        }
        let out = self.norm_out.forward(streams.image, &condition);
        self.unpatch(
            self.proj_out.forward(out),
            height / self.patch_size,
            width / self.patch_size,
        )
    }

    /// The condition vector of every batch entry: embedded time plus embedded pooled text.
    #[must_use]
    pub fn condition(&self, timesteps: &[f64], conditioning: &Conditioning, rows: &[usize]) -> Condition {
        Condition::new(self.condition.forward(timesteps, conditioning.pooled.clone()), rows)
    }

    /// Both streams before the first block.
    #[must_use]
    pub fn embed(&self, latents: Tensor<4>, conditioning: &Conditioning, rows: &[usize]) -> Streams {
        let device = latents.device();
        // Text tokens are embedded once per distinct row and copied to the nodes afterwards.
        let mut text = self.context_embedder.forward(conditioning.sequence.clone());
        let image = self.patches.forward(latents);
        let mut key_bias = None;
        if conditioning.zero_tokens > 0 {
            let [distinct, tokens, joint] = conditioning.sequence.dims();
            let zero = Tensor::zeros([distinct, 1, joint], &device);
            text = Tensor::cat(vec![text, self.context_embedder.forward(zero)], 1);
            let keys = image.dims()[1] + tokens + 1;
            key_bias = Some(repeated_key_bias(keys, conditioning.zero_tokens, &device));
        }
        Streams {
            image,
            text: Some(block::gather(text, rows)),
            key_bias,
        }
    }

    /// The blocks, in order.
    #[must_use]
    pub fn blocks(&self) -> &[Block] {
        &self.blocks
    }

    /// Attention heads.
    #[must_use]
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// Every attention projection that takes an adapter, with its key, such as
    /// `transformer_blocks.0.attn.to_q`.
    pub fn adapted_layers(&self) -> impl Iterator<Item = (String, &LoraLinear)> {
        self.blocks.iter().enumerate().flat_map(|(i, block)| {
            block
                .adapted_layers()
                .map(move |(name, layer)| (format!("transformer_blocks.{i}.attn.{name}"), layer))
        })
    }

    /// As [`Transformer::adapted_layers`], to change them.
    pub fn adapted_layers_mut(&mut self) -> impl Iterator<Item = (String, &mut LoraLinear)> {
        self.blocks.iter_mut().enumerate().flat_map(|(i, block)| {
            block
                .adapted_layers_mut()
                .map(move |(name, layer)| (format!("transformer_blocks.{i}.attn.{name}"), layer))
        })
    }

    /// `[batch, patches, patch·patch·channels]` to `[batch, channels, height, width]`.
    fn unpatch(&self, x: Tensor<3>, rows: usize, columns: usize) -> Tensor<4> {
        let [batch, ..] = x.dims();
        let (patch, channels) = (self.patch_size, self.out_channels);
        x.reshape([batch, rows, columns, patch, patch, channels])
            .permute([0, 5, 1, 3, 2, 4])
            .reshape([batch, channels, rows * patch, columns * patch])
    }
}

/// A bias `[1, 1, 1, keys]` that lets the last key count `copies` times: `Σ n·e^l = Σ e^(l + ln n)`.
fn repeated_key_bias(keys: usize, copies: usize, device: &Device) -> Tensor<4> {
    let mut bias = vec![0.0f32; keys];
    if let Some(last) = bias.last_mut() {
        *last = (copies as f32).ln();
    }
    Tensor::<1>::from_floats(bias.as_slice(), device).reshape([1, 1, 1, keys])
}
