//! The two halves of the autoencoder.

use burn::module::Module;
use burn::tensor::Tensor;
use nn::layers::{Conv2d, GroupNorm};
use nn::weights::{Weights, WeightsError};

use super::VaeConfig;
use super::blocks::{EPSILON, HostLevel, HostMiddle, Level, MiddleBlock};
use super::host::{Convolution, Normalisation, Padded, Picture};

/// Pictures to moments of latents.
#[derive(Module, Debug)]
pub(super) struct Encoder {
    conv_in: Conv2d,
    levels: Vec<Level>,
    middle: MiddleBlock,
    norm_out: GroupNorm,
    conv_out: Conv2d,
}

impl Encoder {
    pub(super) fn load(weights: &Weights, config: &VaeConfig) -> Result<Self, WeightsError> {
        let widths = &config.block_out_channels;
        let (groups, last) = (config.norm_num_groups, widths.len() - 1);
        let levels = (0..=last)
            .map(|level| {
                let channels = [widths[level.saturating_sub(1)], widths[level]];
                let weights = weights.scope(format_args!("down_blocks.{level}"));
                Level::load_down(&weights, channels, config.layers_per_block, groups, level < last)
            })
            .collect::<Result<_, _>>()?;
        let coarsest = widths[last];
        Ok(Self {
            conv_in: Conv2d::load(&weights.scope("conv_in"), [config.in_channels, widths[0]], 3, 1, 1)?,
            levels,
            middle: MiddleBlock::load(
                &weights.scope("mid_block"),
                coarsest,
                groups,
                config.mid_block_add_attention,
            )?,
            norm_out: GroupNorm::load(&weights.scope("conv_norm_out"), groups, coarsest, EPSILON)?,
            conv_out: Conv2d::load(
                &weights.scope("conv_out"),
                [coarsest, 2 * config.latent_channels],
                3,
                1,
                1,
            )?,
        })
    }

    /// `[batch, 3, height, width]` to `[batch, 2·latent, height/factor, width/factor]`.
    pub(super) fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let x = self
            .levels
            .iter()
            .fold(self.conv_in.forward(x), |x, level| level.forward_down(x));
        let x = self.middle.forward(x);
        self.conv_out.forward(self.norm_out.forward_silu(x))
    }
}

/// Latents to pictures.
#[derive(Module, Debug)]
pub(super) struct Decoder {
    conv_in: Conv2d,
    middle: MiddleBlock,
    levels: Vec<Level>,
    norm_out: GroupNorm,
    conv_out: Conv2d,
}

impl Decoder {
    pub(super) fn load(weights: &Weights, config: &VaeConfig) -> Result<Self, WeightsError> {
        let widths: Vec<usize> = config.block_out_channels.iter().rev().copied().collect();
        let (groups, last) = (config.norm_num_groups, widths.len() - 1);
        let levels = (0..=last)
            .map(|level| {
                let channels = [widths[level.saturating_sub(1)], widths[level]];
                let weights = weights.scope(format_args!("up_blocks.{level}"));
                Level::load_up(&weights, channels, config.layers_per_block + 1, groups, level < last)
            })
            .collect::<Result<_, _>>()?;
        let (coarsest, finest) = (widths[0], widths[last]);
        Ok(Self {
            conv_in: Conv2d::load(&weights.scope("conv_in"), [config.latent_channels, coarsest], 3, 1, 1)?,
            middle: MiddleBlock::load(
                &weights.scope("mid_block"),
                coarsest,
                groups,
                config.mid_block_add_attention,
            )?,
            levels,
            norm_out: GroupNorm::load(&weights.scope("conv_norm_out"), groups, finest, EPSILON)?,
            conv_out: Conv2d::load(&weights.scope("conv_out"), [finest, config.out_channels], 3, 1, 1)?,
        })
    }

    /// `[batch, latent, height, width]` to `[batch, 3, factor·height, factor·width]`.
    pub(super) fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let x = self.middle.forward(self.conv_in.forward(x));
        let x = self.levels.iter().fold(x, |x, level| level.forward_up(x));
        self.conv_out.forward(self.norm_out.forward_silu(x))
    }
    /// The decoder on plain numbers, with weights laid out for it.
    pub(super) fn host(&self) -> HostDecoder<'_> {
        HostDecoder {
            conv_in: Convolution::new(&self.conv_in),
            middle: self.middle.host(),
            levels: self.levels.iter().map(Level::host_up).collect(),
            norm_out: Normalisation::new(&self.norm_out),
            conv_out: Convolution::new(&self.conv_out),
        }
    }
}

/// The decoder on plain numbers: see [`super::host`].
#[derive(Debug)]
pub(super) struct HostDecoder<'a> {
    conv_in: Convolution,
    middle: HostMiddle<'a>,
    levels: Vec<HostLevel>,
    norm_out: Normalisation,
    conv_out: Convolution,
}

impl HostDecoder<'_> {
    /// One latent to one picture.
    pub(super) fn apply(&self, latent: &Picture, padded: &mut Padded, threads: usize) -> Picture {
        padded.fill(latent);
        let x = self.middle.apply(self.conv_in.apply(padded, threads), padded, threads);
        let x = self.levels.iter().fold(x, |x, level| level.apply(x, padded, threads));
        padded.fill_normalised(&x, &self.norm_out);
        self.conv_out.apply(padded, threads)
    }
}
