//! Residual block, attention over positions, and changes of resolution.

use burn::module::Module;
use burn::tensor::ops::PadMode;
use burn::tensor::{Device, Tensor, TensorData};
use nn::attention::attention;
use nn::layers::{Conv2d, GroupNorm, Linear};
use nn::weights::{Weights, WeightsError};

use super::host::{Block, Convolution, Normalisation, Padded, Picture, numbers};

/// The reference's ε of every group normalisation in the autoencoder.
pub(super) const EPSILON: f64 = 1e-6;

/// Normalise, activate, convolve, twice, added to the input.
#[derive(Module, Debug)]
pub(super) struct ResidualBlock {
    norm1: GroupNorm,
    conv1: Conv2d,
    norm2: GroupNorm,
    conv2: Conv2d,
    conv_shortcut: Option<Conv2d>,
}

impl ResidualBlock {
    pub(super) fn load(weights: &Weights, [inputs, outputs]: [usize; 2], groups: usize) -> Result<Self, WeightsError> {
        let shortcut = || Conv2d::load(&weights.scope("conv_shortcut"), [inputs, outputs], 1, 1, 0);
        Ok(Self {
            norm1: GroupNorm::load(&weights.scope("norm1"), groups, inputs, EPSILON)?,
            conv1: Conv2d::load(&weights.scope("conv1"), [inputs, outputs], 3, 1, 1)?,
            norm2: GroupNorm::load(&weights.scope("norm2"), groups, outputs, EPSILON)?,
            conv2: Conv2d::load(&weights.scope("conv2"), [outputs, outputs], 3, 1, 1)?,
            conv_shortcut: (inputs != outputs).then(shortcut).transpose()?,
        })
    }

    /// `[batch, in, height, width]` to `[batch, out, height, width]`.
    pub(super) fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let hidden = self.conv1.forward(self.norm1.forward_silu(x.clone()));
        let hidden = self.conv2.forward(self.norm2.forward_silu(hidden));
        let skipped = match &self.conv_shortcut {
            Some(conv) => conv.forward(x),
            None => x,
        };
        hidden + skipped
    }

    /// The block on plain numbers.
    pub(super) fn host(&self) -> Block {
        Block {
            norm1: Normalisation::new(&self.norm1),
            conv1: Convolution::new(&self.conv1),
            norm2: Normalisation::new(&self.norm2),
            conv2: Convolution::new(&self.conv2),
            shortcut: self.conv_shortcut.as_ref().map(Convolution::new),
        }
    }
}

/// Single-headed attention of every position to every position, added to the input.
#[derive(Module, Debug)]
pub(super) struct PositionAttention {
    group_norm: GroupNorm,
    to_q: Linear,
    to_k: Linear,
    to_v: Linear,
    to_out: Linear,
}

impl PositionAttention {
    fn load(weights: &Weights, channels: usize, groups: usize) -> Result<Self, WeightsError> {
        let linear = |name: &str| Linear::load(&weights.scope(name), channels, channels);
        Ok(Self {
            group_norm: GroupNorm::load(&weights.scope("group_norm"), groups, channels, EPSILON)?,
            to_q: linear("to_q")?,
            to_k: linear("to_k")?,
            to_v: linear("to_v")?,
            to_out: linear("to_out.0")?,
        })
    }

    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let shape = x.dims();
        let [batch, channels, height, width] = shape;
        let positions: Tensor<3> = self
            .group_norm
            .forward(x.clone())
            .reshape([batch, channels, height * width])
            .swap_dims(1, 2);
        let one_head = |linear: &Linear| linear.forward(positions.clone()).unsqueeze_dim::<4>(1);
        let mixed = attention(
            one_head(&self.to_q),
            one_head(&self.to_k),
            one_head(&self.to_v),
            None,
            None,
        );
        let mixed = self.to_out.forward(mixed.squeeze_dim::<3>(1));
        mixed.swap_dims(1, 2).reshape(shape) + x
    }
}

/// The block between encoder and decoder halves at the coarsest resolution.
#[derive(Module, Debug)]
pub(super) struct MiddleBlock {
    first: ResidualBlock,
    attention: Option<PositionAttention>,
    second: ResidualBlock,
}

impl MiddleBlock {
    pub(super) fn load(
        weights: &Weights,
        channels: usize,
        groups: usize,
        with_attention: bool,
    ) -> Result<Self, WeightsError> {
        let attention = || PositionAttention::load(&weights.scope("attentions.0"), channels, groups);
        Ok(Self {
            first: ResidualBlock::load(&weights.scope("resnets.0"), [channels; 2], groups)?,
            attention: with_attention.then(attention).transpose()?,
            second: ResidualBlock::load(&weights.scope("resnets.1"), [channels; 2], groups)?,
        })
    }

    pub(super) fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let x = self.first.forward(x);
        let x = match &self.attention {
            Some(attention) => attention.forward(x),
            None => x,
        };
        self.second.forward(x)
    }

    pub(super) fn host(&self) -> HostMiddle<'_> {
        let device = self.first.conv1.weight().device();
        HostMiddle {
            first: self.first.host(),
            attention: self.attention.as_ref(),
            second: self.second.host(),
            device,
        }
    }
}

/// The middle block on plain numbers, but for its attention, which is a matter of matrix products.
#[derive(Debug)]
pub(super) struct HostMiddle<'a> {
    first: Block,
    attention: Option<&'a PositionAttention>,
    second: Block,
    device: Device,
}

impl HostMiddle<'_> {
    pub(super) fn apply(&self, x: Picture, padded: &mut Padded, threads: usize) -> Picture {
        let x = self.first.apply(x, padded, threads);
        let x = match self.attention {
            Some(attention) => {
                let shape = [1, x.channels, x.height, x.width];
                let tensor = Tensor::from_data(TensorData::new(x.values, shape), &self.device);
                Picture {
                    values: numbers(attention.forward(tensor)),
                    ..x
                }
            }
            None => x,
        };
        self.second.apply(x, padded, threads)
    }
}

/// All residual blocks of one resolution, and the convolution that follows a change of it.
#[derive(Module, Debug)]
pub(super) struct Level {
    resnets: Vec<ResidualBlock>,
    resample: Option<Conv2d>,
}

impl Level {
    /// A level of the encoder; all but the last halve the resolution.
    pub(super) fn load_down(
        weights: &Weights,
        channels: [usize; 2],
        layers: usize,
        groups: usize,
        halves: bool,
    ) -> Result<Self, WeightsError> {
        let width = channels[1];
        let resample = || Conv2d::load(&weights.scope("downsamplers.0.conv"), [width, width], 3, 2, 0);
        Ok(Self {
            resnets: load_resnets(weights, channels, layers, groups)?,
            resample: halves.then(resample).transpose()?,
        })
    }

    /// A level of the decoder; all but the last double the resolution.
    pub(super) fn load_up(
        weights: &Weights,
        channels: [usize; 2],
        layers: usize,
        groups: usize,
        doubles: bool,
    ) -> Result<Self, WeightsError> {
        let width = channels[1];
        let resample = || Conv2d::load(&weights.scope("upsamplers.0.conv"), [width, width], 3, 1, 1);
        Ok(Self {
            resnets: load_resnets(weights, channels, layers, groups)?,
            resample: doubles.then(resample).transpose()?,
        })
    }

    pub(super) fn forward_down(&self, x: Tensor<4>) -> Tensor<4> {
        let x = self.resnets.iter().fold(x, |x, block| block.forward(x));
        match &self.resample {
            // One row below and one column to the right, and none on the other sides.
            Some(conv) => conv.forward(x.pad((0, 1, 0, 1), PadMode::Constant(0.0))),
            None => x,
        }
    }

    pub(super) fn forward_up(&self, x: Tensor<4>) -> Tensor<4> {
        let x = self.resnets.iter().fold(x, |x, block| block.forward(x));
        match &self.resample {
            Some(conv) => conv.forward(double_resolution(x)),
            None => x,
        }
    }

    /// A level of the decoder on plain numbers.
    pub(super) fn host_up(&self) -> HostLevel {
        HostLevel {
            blocks: self.resnets.iter().map(ResidualBlock::host).collect(),
            upsample: self.resample.as_ref().map(Convolution::new),
        }
    }
}

/// A level of the decoder on plain numbers.
#[derive(Debug)]
pub(super) struct HostLevel {
    blocks: Vec<Block>,
    upsample: Option<Convolution>,
}

impl HostLevel {
    pub(super) fn apply(&self, x: Picture, padded: &mut Padded, threads: usize) -> Picture {
        let x = self.blocks.iter().fold(x, |x, block| block.apply(x, padded, threads));
        match &self.upsample {
            Some(conv) => {
                padded.fill_doubled(&x);
                conv.apply(padded, threads)
            }
            None => x,
        }
    }
}

fn load_resnets(
    weights: &Weights,
    [inputs, outputs]: [usize; 2],
    layers: usize,
    groups: usize,
) -> Result<Vec<ResidualBlock>, WeightsError> {
    (0..layers)
        .map(|layer| {
            let inputs = if layer == 0 { inputs } else { outputs };
            ResidualBlock::load(
                &weights.scope(format_args!("resnets.{layer}")),
                [inputs, outputs],
                groups,
            )
        })
        .collect()
}

/// Every pixel becomes two by two of the same value.
fn double_resolution(x: Tensor<4>) -> Tensor<4> {
    let [batch, channels, height, width] = x.dims();
    // A broadcast view and one copy, which every backend does at the speed of memory.
    let pairs: Tensor<6> = x.reshape([batch, channels, height, 1, width, 1]);
    pairs
        .expand([batch, channels, height, 2, width, 2])
        .reshape([batch, channels, 2 * height, 2 * width])
}
