//! CLIP: the pre-norm layers that the text and the vision tower share, the towers, and whole models.
//!
//! Loading by Hugging Face's names stands with each part; `open_clip` fills the same parts by OpenCLIP's and OpenAI's
//! names.

mod model;
mod open_clip;
pub mod text;
pub mod vision;

use burn::module::Module;
use burn::tensor::Tensor;

use crate::activation::Activation;
use crate::attention::{attention, merge_heads, split_heads};
use crate::layers::{LayerNorm, Linear};
use crate::weights::{Weights, WeightsError};

pub use model::{ClipModel, ClipModelConfig};

/// Sizes of a stack of CLIP layers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClipEncoderConfig {
    /// Width of the residual stream.
    pub width: usize,
    /// Attention heads; they divide the width.
    pub heads: usize,
    /// Number of layers.
    pub layers: usize,
    /// Width inside the feed-forward part.
    pub intermediate: usize,
    /// Activation of the feed-forward part.
    pub activation: Activation,
    /// ε of every layer normalisation.
    pub epsilon: f64,
}

impl ClipEncoderConfig {
    /// Checks what no tensor's shape can show.
    ///
    /// # Errors
    ///
    /// A sentence about the first value that makes no network; the caller knows the file it came from.
    pub fn check(&self) -> Result<(), String> {
        if self.layers == 0 {
            return Err("num_hidden_layers is 0; a tower needs at least one layer".to_owned());
        }
        if self.heads == 0 || self.width == 0 || !self.width.is_multiple_of(self.heads) {
            return Err(format!(
                "num_attention_heads {} does not divide hidden_size {}; correct one of them",
                self.heads, self.width
            ));
        }
        Ok(())
    }
}

/// One pre-norm layer: attention and a feed-forward part, each added to the stream.
#[derive(Module, Debug)]
pub struct ClipLayer {
    norm1: LayerNorm,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    norm2: LayerNorm,
    widen: Linear,
    narrow: Linear,
    heads: usize,
    #[module(skip)]
    activation: Activation,
}

impl ClipLayer {
    /// Reads `layer_norm1`, `self_attn.{q,k,v,out}_proj`, `layer_norm2` and `mlp.fc1`, `mlp.fc2`.
    ///
    /// # Errors
    ///
    /// A tensor is missing or misshapen.
    pub fn load(weights: &Weights, config: &ClipEncoderConfig) -> Result<Self, WeightsError> {
        let width = config.width;
        let projection = |name: &str| Linear::load(&weights.scope(format!("self_attn.{name}_proj")), width, width);
        Ok(Self {
            norm1: LayerNorm::load(&weights.scope("layer_norm1"), width, config.epsilon)?,
            query: projection("q")?,
            key: projection("k")?,
            value: projection("v")?,
            output: projection("out")?,
            norm2: LayerNorm::load(&weights.scope("layer_norm2"), width, config.epsilon)?,
            widen: Linear::load(&weights.scope("mlp.fc1"), width, config.intermediate)?,
            narrow: Linear::load(&weights.scope("mlp.fc2"), config.intermediate, width)?,
            heads: config.heads,
            activation: config.activation,
        })
    }

    /// `[batch, tokens, width]` to the same; `bias` is added to the attention scores and broadcasts over
    /// `[batch, heads, tokens, tokens]`.
    #[must_use]
    pub fn forward(&self, x: Tensor<3>, bias: Option<Tensor<4>>) -> Tensor<3> {
        let normed = self.norm1.forward(x.clone());
        let q = split_heads(self.query.forward(normed.clone()), self.heads);
        let k = split_heads(self.key.forward(normed.clone()), self.heads);
        let v = split_heads(self.value.forward(normed), self.heads);
        let x = x + self.output.forward(merge_heads(attention(q, k, v, bias, None)));
        let inner = self
            .activation
            .forward(self.widen.forward(self.norm2.forward(x.clone())));
        x + self.narrow.forward(inner)
    }
}

/// The two ends of a stack of layers that anybody reads.
#[derive(Debug, Clone)]
pub struct ClipEncoderOutput {
    /// The stream before the last layer (`hidden_states[-2]`), without any final norm, `[batch, tokens, width]`.
    pub penultimate: Tensor<3>,
    /// The stream after the last layer, without any final norm, `[batch, tokens, width]`.
    pub last: Tensor<3>,
}

/// A stack of [`ClipLayer`]s.
#[derive(Module, Debug)]
pub struct ClipEncoder {
    layers: Vec<ClipLayer>,
}

impl ClipEncoder {
    /// Reads `layers.{i}`.
    ///
    /// # Errors
    ///
    /// A tensor is missing or misshapen.
    pub fn load(weights: &Weights, config: &ClipEncoderConfig) -> Result<Self, WeightsError> {
        let layers = (0..config.layers).map(|i| ClipLayer::load(&weights.scope(format!("layers.{i}")), config));
        Ok(Self {
            layers: layers.collect::<Result<_, _>>()?,
        })
    }

    /// `[batch, tokens, width]` through every layer; `bias` as for [`ClipLayer::forward`].
    #[must_use]
    pub fn forward(&self, x: Tensor<3>, bias: Option<Tensor<4>>) -> ClipEncoderOutput {
        let mut output = ClipEncoderOutput {
            penultimate: x.clone(),
            last: x,
        };
        for layer in &self.layers {
            let next = layer.forward(output.last.clone(), bias.clone());
            output = ClipEncoderOutput {
                penultimate: output.last,
                last: next,
            };
        }
        output
    }
}
