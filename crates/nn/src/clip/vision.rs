//! The CLIP vision tower: patches and a class token, pre-norm layers, projection of the class token.
//!
//! The tower's arithmetic ([`ClipVision::forward`]) knows nothing of how a file names its tensors: a loader fills
//! `ClipVisionParts`. The one here reads Hugging Face's naming, `open_clip` the other one.

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use serde::Deserialize;

use super::{ClipEncoder, ClipEncoderConfig};
use crate::activation::Activation;
use crate::layers::{Conv2d, Embedding, LayerNorm, Linear};
use crate::weights::{Weights, WeightsError};

/// The fields of `vision_config` in a Hugging Face CLIP `config.json` that shape the network.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ClipVisionConfig {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width inside the feed-forward part.
    pub intermediate_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Attention heads of every layer.
    pub num_attention_heads: usize,
    /// Colour channels of a picture; only 3 is supported.
    pub num_channels: usize,
    /// Side of the square pictures, in pixels.
    pub image_size: usize,
    /// Side of a square patch, in pixels. A rest at the right and bottom edge is not seen.
    pub patch_size: usize,
    /// Activation of the feed-forward parts.
    pub hidden_act: Activation,
    /// ε of every layer normalisation.
    pub layer_norm_eps: f64,
    /// Width of the projected feature. A whole `CLIPModel` overrules it with its own `projection_dim`.
    pub projection_dim: usize,
}

impl ClipVisionConfig {
    /// Sizes of the stack of layers.
    #[must_use]
    pub fn encoder(&self) -> ClipEncoderConfig {
        ClipEncoderConfig {
            width: self.hidden_size,
            heads: self.num_attention_heads,
            layers: self.num_hidden_layers,
            intermediate: self.intermediate_size,
            activation: self.hidden_act,
            epsilon: self.layer_norm_eps,
        }
    }

    /// Rows of the position table: one per patch and one for the class token.
    #[must_use]
    pub fn tokens(&self) -> usize {
        let side = self.image_size / self.patch_size;
        side * side + 1
    }

    /// Checks what no tensor's shape can show.
    ///
    /// # Errors
    ///
    /// A sentence about the first value that makes no network; the caller knows the file it came from.
    pub fn check(&self) -> Result<(), String> {
        if self.num_channels != 3 {
            return Err(format!(
                "num_channels is {}; only pictures of 3 channels are supported",
                self.num_channels
            ));
        }
        if self.patch_size == 0 || self.image_size < self.patch_size {
            return Err(format!(
                "patch_size {} does not fit into image_size {}; correct one of them",
                self.patch_size, self.image_size
            ));
        }
        self.encoder().check()
    }
}

/// The tensors of a vision tower, whatever their file called them.
pub(super) struct ClipVisionParts {
    /// Patches to vectors: a convolution without bias whose stride is its kernel.
    pub(super) patches: Conv2d,
    /// The class token, `[width]`.
    pub(super) class: Param<Tensor<1>>,
    /// Position table, `[patches + 1, width]`; row 0 belongs to the class token.
    pub(super) positions: Embedding,
    /// Norm before the first layer.
    pub(super) pre_norm: LayerNorm,
    /// The layers.
    pub(super) encoder: ClipEncoder,
    /// Norm of the class token after the last layer.
    pub(super) post_norm: LayerNorm,
    /// Projection of the class token, without bias.
    pub(super) projection: Linear,
}

/// What the vision tower says about a batch of pictures.
#[derive(Debug, Clone)]
pub struct ClipVisionOutput {
    /// The class token after the last layer and the final norm, `[batch, width]`.
    pub pooled: Tensor<2>,
    /// `pooled` after the projection (`image_embeds` before it is normalised), `[batch, projection]`.
    pub projected: Tensor<2>,
}

/// A CLIP vision tower with projection (Radford et al. 2021, section 2.4: a pre-norm vision transformer with an
/// additional norm before the first layer).
#[derive(Module, Debug)]
pub struct ClipVision {
    patches: Conv2d,
    class: Param<Tensor<1>>,
    positions: Embedding,
    pre_norm: LayerNorm,
    encoder: ClipEncoder,
    post_norm: LayerNorm,
    projection: Linear,
    #[module(skip)]
    config: ClipVisionConfig,
}

impl ClipVision {
    /// Reads `vision_model.*` and `visual_projection.weight`. The configuration must have been
    /// [checked](ClipVisionConfig::check).
    ///
    /// # Errors
    ///
    /// A tensor is missing or misshapen.
    pub fn load(weights: &Weights, config: &ClipVisionConfig) -> Result<Self, WeightsError> {
        let model = weights.scope("vision_model");
        let embeddings = model.scope("embeddings");
        // Files of older releases carry the numbers 0, 1, 2, … as a tensor.
        embeddings.ignore("position_ids");
        let (width, epsilon) = (config.hidden_size, config.layer_norm_eps);
        let channels = [config.num_channels, width];
        let patch = config.patch_size;
        let parts = ClipVisionParts {
            patches: Conv2d::load_without_bias(&embeddings.scope("patch_embedding"), channels, patch, patch, 0)?,
            class: embeddings.parameter("class_embedding", [width])?,
            positions: Embedding::load(&embeddings.scope("position_embedding"), config.tokens(), width)?,
            // The misspelling is that of the files.
            pre_norm: LayerNorm::load(&model.scope("pre_layrnorm"), width, epsilon)?,
            encoder: ClipEncoder::load(&model.scope("encoder"), &config.encoder())?,
            post_norm: LayerNorm::load(&model.scope("post_layernorm"), width, epsilon)?,
            projection: Linear::load_without_bias(&weights.scope("visual_projection"), width, config.projection_dim)?,
        };
        Ok(Self::from_parts(parts, config))
    }

    /// A tower of given tensors, which must have the sizes that the configuration says.
    pub(super) fn from_parts(parts: ClipVisionParts, config: &ClipVisionConfig) -> Self {
        Self {
            patches: parts.patches,
            class: parts.class,
            positions: parts.positions,
            pre_norm: parts.pre_norm,
            encoder: parts.encoder,
            post_norm: parts.post_norm,
            projection: parts.projection,
            config: config.clone(),
        }
    }

    /// The configuration that the tower was built from.
    #[must_use]
    pub fn config(&self) -> &ClipVisionConfig {
        &self.config
    }

    /// Runs normalised pictures, `[batch, 3, image_size, image_size]`.
    ///
    /// # Panics
    ///
    /// The pictures have another shape.
    #[must_use]
    pub fn forward(&self, pixels: Tensor<4>) -> ClipVisionOutput {
        let [batch, channels, height, width] = pixels.dims();
        let side = self.config.image_size;
        assert!(
            [channels, height, width] == [self.config.num_channels, side, side],
            "pictures of [{channels}, {height}, {width}] do not fit a tower for [3, {side}, {side}]"
        );
        let hidden = self.config.hidden_size;
        // [batch, hidden, rows, columns] to [batch, patches, hidden], row by row.
        let patches = self.patches.forward(pixels).flatten::<3>(2, 3).swap_dims(1, 2);
        let class = self.class.val().reshape([1, 1, hidden]).expand([batch, 1, hidden]);
        let x = Tensor::cat(vec![class, patches], 1) + self.positions.table().unsqueeze::<3>();
        let last = self.encoder.forward(self.pre_norm.forward(x), None).last;
        let class = last.narrow(1, 0, 1).reshape([batch, hidden]);
        let pooled = self.post_norm.forward(class);
        let projected = self.projection.forward(pooled.clone());
        ClipVisionOutput { pooled, projected }
    }
}
