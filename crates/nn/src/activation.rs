//! Activation functions, as the checkpoints that use them define them.

use burn::tensor::{Tensor, activation};
use serde::Deserialize;

use crate::fused::{Gate, gated};

/// An activation named by a checkpoint's configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// `x·σ(1.702·x)`: OpenAI's CLIP and what descends from it.
    QuickGelu,
    /// `x·Φ(x)` with the error function: OpenCLIP, LAION's and HPS' towers.
    Gelu,
    /// GELU by its tanh approximation; T5 v1.1 calls it `gelu_new`.
    #[serde(alias = "gelu_new", alias = "gelu_fast", alias = "gelu_approximate")]
    GeluTanh,
    /// `x·σ(x)`, also called swish.
    #[serde(alias = "swish")]
    Silu,
    /// `max(x, 0)`: T5 v1.0.
    Relu,
}

impl Activation {
    /// Applies the function to every element.
    #[must_use]
    pub fn forward<const D: usize>(self, x: Tensor<D>) -> Tensor<D> {
        match self {
            Self::QuickGelu => quick_gelu(x),
            Self::Gelu => activation::gelu(x),
            Self::GeluTanh => gelu_tanh(x),
            Self::Silu => silu(x),
            Self::Relu => activation::relu(x),
        }
    }
}

/// `x·σ(x)`.
#[must_use]
pub fn silu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    gated(x, Gate::SILU)
}

/// `x·σ(1.702·x)`.
#[must_use]
pub fn quick_gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    gated(x, Gate::QUICK_GELU)
}

/// `½·x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))`.
#[must_use]
pub fn gelu_tanh<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    gated(x, Gate::GELU_TANH)
}
