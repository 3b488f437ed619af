//! Layers that are built from a [`Weights`] source and nothing else.

use burn::module::{Module, Param, ParamId};
use burn::tensor::module::{conv2d, embedding, layer_norm, linear};
use burn::tensor::ops::ConvOptions;
use burn::tensor::{Int, Tensor};

use crate::weights::{Weights, WeightsError};

/// `x·W + b`, with `W` of shape `[in, out]`.
#[derive(Module, Debug)]
pub struct Linear {
    weight: Param<Tensor<2>>,
    bias: Option<Param<Tensor<1>>>,
}

impl Linear {
    /// Reads `weight` (stored `[out, in]`) and `bias`.
    ///
    /// # Errors
    ///
    /// A tensor is missing or misshapen.
    pub fn load(weights: &Weights, inputs: usize, outputs: usize) -> Result<Self, WeightsError> {
        let bias = Some(weights.parameter("bias", [outputs])?);
        Ok(Self {
            weight: weights.transposed("weight", &[outputs, inputs])?,
            bias,
        })
    }

    /// Reads `weight` (stored `[out, in]`) of a layer without bias.
    ///
    /// # Errors
    ///
    /// The tensor is missing or misshapen.
    pub fn load_without_bias(weights: &Weights, inputs: usize, outputs: usize) -> Result<Self, WeightsError> {
        Ok(Self {
            weight: weights.transposed("weight", &[outputs, inputs])?,
            bias: None,
        })
    }

    /// A layer of given values, for weights that a file keeps in another form.
    #[must_use]
    pub fn from_parameters(weight: Param<Tensor<2>>, bias: Option<Param<Tensor<1>>>) -> Self {
        Self { weight, bias }
    }

    /// `[…, in]` to `[…, out]`.
    #[must_use]
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        linear(x, self.weight.val(), self.bias.as_ref().map(Param::val))
    }

    /// The layer with `change` (`[in, out]`) added to its weight. The result is not trained.
    #[must_use]
    pub fn add_to_weight(&self, change: Tensor<2>) -> Self {
        let weight = Param::initialized(ParamId::new(), self.weight.val() + change);
        Self {
            weight,
            bias: self.bias.clone(),
        }
    }

    /// `[in, out]` of the weight.
    #[must_use]
    pub fn dims(&self) -> [usize; 2] {
        self.weight.dims()
    }
}

/// Layer normalisation over the last dimension, with or without scale and offset.
#[derive(Module, Debug)]
pub struct LayerNorm {
    scale: Option<Param<Tensor<1>>>,
    offset: Option<Param<Tensor<1>>>,
    width: usize,
    epsilon: f64,
}

impl LayerNorm {
    /// Reads `weight` and `bias`.
    ///
    /// # Errors
    ///
    /// A tensor is missing or misshapen.
    pub fn load(weights: &Weights, width: usize, epsilon: f64) -> Result<Self, WeightsError> {
        let scale = Some(weights.parameter("weight", [width])?);
        let offset = Some(weights.parameter("bias", [width])?);
        Ok(Self {
            scale,
            offset,
            width,
            epsilon,
        })
    }

    /// A normalisation without parameters.
    #[must_use]
    pub fn plain(width: usize, epsilon: f64) -> Self {
        Self {
            scale: None,
            offset: None,
            width,
            epsilon,
        }
    }

    /// `[…, width]` to the same.
    #[must_use]
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let scale = match &self.scale {
            Some(scale) => scale.val(),
            None => Tensor::ones([self.width], &x.device()),
        };
        layer_norm(x, scale, self.offset.as_ref().map(Param::val), self.epsilon)
    }
}

/// `x / √(mean(x²) + ε) · scale` over the last dimension.
#[derive(Module, Debug)]
pub struct RmsNorm {
    scale: Param<Tensor<1>>,
    epsilon: f64,
}

impl RmsNorm {
    /// Reads `weight`.
    ///
    /// # Errors
    ///
    /// The tensor is missing or misshapen.
    pub fn load(weights: &Weights, width: usize, epsilon: f64) -> Result<Self, WeightsError> {
        Ok(Self {
            scale: weights.parameter("weight", [width])?,
            epsilon,
        })
    }

    /// `[…, width]` to the same.
    #[must_use]
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let mean_square = x.clone().square().mean_dim(D - 1);
        x / (mean_square + self.epsilon).sqrt() * self.scale.val().unsqueeze()
    }
}

/// Normalisation over groups of channels of `[batch, channels, height, width]`.
#[derive(Module, Debug)]
pub struct GroupNorm {
    scale: Param<Tensor<1>>,
    offset: Param<Tensor<1>>,
    groups: usize,
    epsilon: f64,
}

impl GroupNorm {
    /// Reads `weight` and `bias`.
    ///
    /// # Errors
    ///
    /// A tensor is missing or misshapen.
    pub fn load(weights: &Weights, groups: usize, channels: usize, epsilon: f64) -> Result<Self, WeightsError> {
        let scale = weights.parameter("weight", [channels])?;
        let offset = weights.parameter("bias", [channels])?;
        Ok(Self {
            scale,
            offset,
            groups,
            epsilon,
        })
    }

    /// Scale and offset per channel.
    #[must_use]
    pub fn scale_and_offset(&self) -> (Tensor<1>, Tensor<1>) {
        (self.scale.val(), self.offset.val())
    }

    /// Number of groups.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.groups
    }

    /// What is added to the variance.
    #[must_use]
    pub fn epsilon(&self) -> f64 {
        self.epsilon
    }

    /// [`GroupNorm::forward`] followed by `x·σ(x)`, as convolutional residual blocks use it.
    #[must_use]
    pub fn forward_silu(&self, x: Tensor<4>) -> Tensor<4> {
        crate::activation::silu(self.forward(x))
    }

    /// `[batch, channels, height, width]` to the same.
    #[must_use]
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let shape = x.dims();
        let [batch, channels, height, width] = shape;
        let grouped = x.reshape([batch, self.groups, channels / self.groups * height * width]);
        // One fused pass normalises every group; the affine part then follows per channel.
        let elements = grouped.dims()[2];
        let ones = Tensor::ones([elements], &grouped.device());
        let normalised = layer_norm(grouped, ones, None, self.epsilon).reshape(shape);
        normalised * self.scale.val().reshape([1, channels, 1, 1]) + self.offset.val().reshape([1, channels, 1, 1])
    }
}

/// A convolution of `[batch, channels, height, width]` with a square kernel.
#[derive(Module, Debug)]
pub struct Conv2d {
    weight: Param<Tensor<4>>,
    bias: Option<Param<Tensor<1>>>,
    stride: usize,
    padding: usize,
}

impl Conv2d {
    /// Reads `weight` (`[out, in, kernel, kernel]`) and `bias`.
    ///
    /// # Errors
    ///
    /// A tensor is missing or misshapen.
    pub fn load(
        weights: &Weights,
        [inputs, outputs]: [usize; 2],
        kernel: usize,
        stride: usize,
        padding: usize,
    ) -> Result<Self, WeightsError> {
        let weight = weights.parameter("weight", [outputs, inputs, kernel, kernel])?;
        let bias = Some(weights.parameter("bias", [outputs])?);
        Ok(Self {
            weight,
            bias,
            stride,
            padding,
        })
    }

    /// Reads `weight` of a convolution without bias.
    ///
    /// # Errors
    ///
    /// The tensor is missing or misshapen.
    pub fn load_without_bias(
        weights: &Weights,
        [inputs, outputs]: [usize; 2],
        kernel: usize,
        stride: usize,
        padding: usize,
    ) -> Result<Self, WeightsError> {
        let weight = weights.parameter("weight", [outputs, inputs, kernel, kernel])?;
        Ok(Self {
            weight,
            bias: None,
            stride,
            padding,
        })
    }

    /// The kernels, `[out, in, kernel, kernel]`.
    #[must_use]
    pub fn weight(&self) -> Tensor<4> {
        self.weight.val()
    }

    /// What is added per output channel, if anything.
    #[must_use]
    pub fn bias(&self) -> Option<Tensor<1>> {
        self.bias.as_ref().map(Param::val)
    }

    /// `[batch, in, height, width]` to `[batch, out, height', width']`.
    #[must_use]
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let options = ConvOptions::new([self.stride; 2], [self.padding; 2], [1, 1], 1);
        conv2d(x, self.weight.val(), self.bias.as_ref().map(Param::val), options)
    }
}

/// A table of vectors looked up by number.
#[derive(Module, Debug)]
pub struct Embedding {
    weight: Param<Tensor<2>>,
}

impl Embedding {
    /// Reads `weight` (`[entries, width]`).
    ///
    /// # Errors
    ///
    /// The tensor is missing or misshapen.
    pub fn load(weights: &Weights, entries: usize, width: usize) -> Result<Self, WeightsError> {
        Ok(Self {
            weight: weights.parameter("weight", [entries, width])?,
        })
    }

    /// A table of given values, `[entries, width]`, for one that a file keeps under a name of its own.
    #[must_use]
    pub fn from_parameter(weight: Param<Tensor<2>>) -> Self {
        Self { weight }
    }

    /// `[batch, length]` numbers to `[batch, length, width]`.
    #[must_use]
    pub fn forward(&self, ids: Tensor<2, Int>) -> Tensor<3> {
        embedding(self.weight.val(), ids)
    }

    /// The whole table.
    #[must_use]
    pub fn table(&self) -> Tensor<2> {
        self.weight.val()
    }
}
