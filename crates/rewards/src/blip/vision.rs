//! BLIP's vision tower: a pre-norm vision transformer that hands on every token.

use std::path::Path;

use burn::module::{Module, Param};
use burn::tensor::Tensor;
use nn::activation::Activation;
use nn::attention::{attention, merge_heads, split_heads};
use nn::layers::{Conv2d, LayerNorm, Linear};
use nn::weights::{Weights, WeightsError, read_config};
use serde::Deserialize;

/// Sizes of the tower. The released program has those of BLIP-large written in its code, so a file with other sizes is
/// only found beside small models.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct BlipVisionConfig {
    /// Side of the square pictures, in pixels.
    pub img_size: usize,
    /// Side of a square patch, in pixels.
    pub patch_size: usize,
    /// Width of the residual stream.
    pub embed_dim: usize,
    /// Number of layers.
    pub depth: usize,
    /// Attention heads of every layer.
    pub num_heads: usize,
    /// Width inside the feed-forward part, as a multiple of `embed_dim`.
    pub mlp_ratio: usize,
    /// ε of every layer normalisation.
    pub layer_norm_eps: f64,
}

impl BlipVisionConfig {
    /// BLIP-large: ViT-L/16 at 224 pixels.
    #[must_use]
    pub fn large() -> Self {
        Self {
            img_size: 224,
            patch_size: 16,
            embed_dim: 1024,
            depth: 24,
            num_heads: 16,
            mlp_ratio: 4,
            layer_norm_eps: 1e-6,
        }
    }

    /// Reads the file if there is one, else takes [`Self::large`].
    ///
    /// # Errors
    ///
    /// The file is malformed or its sizes make no network.
    pub fn read_or_large(path: &Path) -> Result<Self, WeightsError> {
        if !path.exists() {
            return Ok(Self::large());
        }
        let config: Self = read_config(path)?;
        config.check().map_err(|why| WeightsError::Config {
            path: path.to_owned(),
            why,
        })?;
        Ok(config)
    }

    /// Tokens per picture: its patches and the class token.
    #[must_use]
    pub fn tokens(&self) -> usize {
        let side = self.img_size / self.patch_size;
        side * side + 1
    }

    fn check(&self) -> Result<(), String> {
        if self.patch_size == 0 || self.img_size < self.patch_size {
            return Err(format!(
                "patch_size {} does not fit into img_size {}; correct one of them",
                self.patch_size, self.img_size
            ));
        }
        if self.num_heads == 0 || self.embed_dim == 0 || !self.embed_dim.is_multiple_of(self.num_heads) {
            return Err(format!(
                "num_heads {} does not divide embed_dim {}; correct one of them",
                self.num_heads, self.embed_dim
            ));
        }
        Ok(())
    }
}

/// The vision tower.
#[derive(Module, Debug)]
pub struct BlipVision {
    patches: Conv2d,
    class: Param<Tensor<3>>,
    positions: Param<Tensor<3>>,
    layers: Vec<Layer>,
    norm: LayerNorm,
}

impl BlipVision {
    /// Reads `patch_embed.proj`, `cls_token`, `pos_embed`, `blocks.{i}` and `norm`.
    ///
    /// # Errors
    ///
    /// A tensor is missing or misshapen.
    pub fn load(weights: &Weights, config: &BlipVisionConfig) -> Result<Self, WeightsError> {
        let (width, patch) = (config.embed_dim, config.patch_size);
        let layers = (0..config.depth).map(|i| Layer::load(&weights.scope(format!("blocks.{i}")), config));
        Ok(Self {
            patches: Conv2d::load(&weights.scope("patch_embed.proj"), [3, width], patch, patch, 0)?,
            class: weights.parameter("cls_token", [1, 1, width])?,
            positions: weights.parameter("pos_embed", [1, config.tokens(), width])?,
            layers: layers.collect::<Result<_, _>>()?,
            norm: LayerNorm::load(&weights.scope("norm"), width, config.layer_norm_eps)?,
        })
    }

    /// Normalised pictures, `[batch, 3, img_size, img_size]`, to the features of all their tokens,
    /// `[batch, tokens, embed_dim]`.
    #[must_use]
    pub fn forward(&self, pixels: Tensor<4>) -> Tensor<3> {
        let batch = pixels.dims()[0];
        // [batch, width, rows, columns] to [batch, patches, width], row by row.
        let patches = self.patches.forward(pixels).flatten::<3>(2, 3).swap_dims(1, 2);
        let width = patches.dims()[2];
        let class = self.class.val().expand([batch, 1, width]);
        let x = Tensor::cat(vec![class, patches], 1) + self.positions.val();
        let last = self.layers.iter().fold(x, |x, layer| layer.forward(x));
        self.norm.forward(last)
    }
}

#[derive(Module, Debug)]
struct Layer {
    norm1: LayerNorm,
    /// Query, key and value side by side.
    projections: Linear,
    output: Linear,
    norm2: LayerNorm,
    widen: Linear,
    narrow: Linear,
    heads: usize,
}

impl Layer {
    fn load(weights: &Weights, config: &BlipVisionConfig) -> Result<Self, WeightsError> {
        let width = config.embed_dim;
        let inner = width * config.mlp_ratio;
        Ok(Self {
            norm1: LayerNorm::load(&weights.scope("norm1"), width, config.layer_norm_eps)?,
            projections: Linear::load(&weights.scope("attn.qkv"), width, 3 * width)?,
            output: Linear::load(&weights.scope("attn.proj"), width, width)?,
            norm2: LayerNorm::load(&weights.scope("norm2"), width, config.layer_norm_eps)?,
            widen: Linear::load(&weights.scope("mlp.fc1"), width, inner)?,
            narrow: Linear::load(&weights.scope("mlp.fc2"), inner, width)?,
            heads: config.num_heads,
        })
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        let width = x.dims()[2];
        let all = self.projections.forward(self.norm1.forward(x.clone()));
        let [q, k, v] = [0, 1, 2].map(|part| split_heads(all.clone().narrow(2, part * width, width), self.heads));
        let x = x + self.output.forward(merge_heads(attention(q, k, v, None, None)));
        let inner = Activation::Gelu.forward(self.widen.forward(self.norm2.forward(x.clone())));
        x + self.narrow.forward(inner)
    }
}
