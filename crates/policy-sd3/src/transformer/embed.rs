//! From latents, time and pooled text to tokens and the condition vector.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData};
use nn::activation::silu;
use nn::layers::Linear;
use nn::weights::{Weights, WeightsError};

use super::TransformerConfig;

/// Width of the sinusoidal time embedding.
const TIME_CHANNELS: usize = 256;

/// Cuts latents into patches, projects them, and adds the centre crop of the position table.
#[derive(Module, Debug)]
pub(super) struct PatchEmbedder {
    proj: Linear,
    /// `[1, side·side, width]`. A buffer of the checkpoint, not a weight: it is never trained.
    positions: Tensor<3>,
    side: usize,
    patch: usize,
}

impl PatchEmbedder {
    pub(super) fn load(weights: &Weights, config: &TransformerConfig) -> Result<Self, WeightsError> {
        let (width, patch, side) = (config.width(), config.patch_size, config.pos_embed_max_size);
        let proj = weights.scope("proj");
        let weight = proj.transposed("weight", &[width, config.in_channels, patch, patch])?;
        let bias: Param<Tensor<1>> = proj.parameter("bias", [width])?;
        Ok(Self {
            proj: Linear::from_parameters(weight, Some(bias)),
            positions: weights.tensor("pos_embed", [1, side * side, width])?,
            side,
            patch,
        })
    }

    /// `[batch, channels, height, width]` to `[batch, patches, width]`.
    ///
    /// # Panics
    ///
    /// When the picture has more patches on a side than the position table; [`crate::pipeline`] checks sizes first.
    pub(super) fn forward(&self, latents: Tensor<4>) -> Tensor<3> {
        let [batch, channels, height, width] = latents.dims();
        let (rows, columns) = (height / self.patch, width / self.patch);
        let patches = latents
            .reshape([batch, channels, rows, self.patch, columns, self.patch])
            .permute([0, 2, 4, 1, 3, 5])
            .reshape([batch, rows * columns, channels * self.patch * self.patch]);
        self.proj.forward(patches) + self.crop(rows, columns)
    }

    /// The centred `rows × columns` part of the table, `[1, rows·columns, width]`.
    fn crop(&self, rows: usize, columns: usize) -> Tensor<3> {
        assert!(
            rows <= self.side && columns <= self.side,
            "{rows}×{columns} patches exceed the table of {}",
            self.side
        );
        let (top, left) = ((self.side - rows) / 2, (self.side - columns) / 2);
        let width = self.positions.dims()[2];
        self.positions
            .clone()
            .reshape([self.side, self.side, width])
            .slice([top..top + rows, left..left + columns])
            .reshape([1, rows * columns, width])
    }
}

/// Adds the embeddings of time and of the pooled text.
#[derive(Module, Debug)]
pub(super) struct ConditionEmbedder {
    time_1: Linear,
    time_2: Linear,
    text_1: Linear,
    text_2: Linear,
}

impl ConditionEmbedder {
    pub(super) fn load(weights: &Weights, config: &TransformerConfig) -> Result<Self, WeightsError> {
        let width = config.width();
        let time = weights.scope("timestep_embedder");
        let text = weights.scope("text_embedder");
        Ok(Self {
            time_1: Linear::load(&time.scope("linear_1"), TIME_CHANNELS, width)?,
            time_2: Linear::load(&time.scope("linear_2"), width, width)?,
            text_1: Linear::load(&text.scope("linear_1"), config.pooled_projection_dim, width)?,
            text_2: Linear::load(&text.scope("linear_2"), width, width)?,
        })
    }

    /// Times on the 0…1000 scale and pooled text `[rows, pooled]` to condition vectors `[rows, width]`.
    pub(super) fn forward(&self, timesteps: &[f64], pooled: Tensor<2>) -> Tensor<2> {
        let time = self.time_1.forward(time_projection(timesteps, &pooled.device()));
        let text = self.text_1.forward(pooled);
        self.time_2.forward(silu(time)) + self.text_2.forward(silu(text))
    }
}

/// Sinusoidal embedding `[rows, 256]`: cosines, then sines, of `t·10000^(−i/128)`.
///
/// Computed in f32 like the reference: at `t = 1000` the rounding of the product is visible in the fifth decimal, and
/// the networks were trained with it.
#[must_use]
pub fn time_projection(timesteps: &[f64], device: &Device) -> Tensor<2> {
    let half = TIME_CHANNELS / 2;
    let frequencies: Vec<f32> = (0..half)
        .map(|i| (-(10_000f32.ln()) * i as f32 / half as f32).exp())
        .collect();
    let values: Vec<f32> = timesteps
        .iter()
        .flat_map(|t| {
            let angles: Vec<f32> = frequencies.iter().map(|f| *t as f32 * f).collect();
            let cosines: Vec<f32> = angles.iter().map(|a| a.cos()).collect();
            let sines: Vec<f32> = angles.iter().map(|a| a.sin()).collect();
            cosines.into_iter().chain(sines)
        })
        .collect();
    Tensor::from_data(TensorData::new(values, [timesteps.len(), TIME_CHANNELS]), device)
}
