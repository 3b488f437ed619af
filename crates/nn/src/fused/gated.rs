//! `x·σ(a·x + b·x³)`: SiLU, QuickGELU and the tanh GELU are all of this form.

use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind, unary};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, backend_extension};
use burn::tensor::Tensor;

/// Coefficients of a gate `σ(linear·x + cubic·x³)`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gate {
    /// Of x.
    pub linear: f32,
    /// Of x³.
    pub cubic: f32,
}

impl Gate {
    /// SiLU, `x·σ(x)`.
    pub const SILU: Self = Self {
        linear: 1.0,
        cubic: 0.0,
    };
    /// QuickGELU, `x·σ(1.702·x)`.
    pub const QUICK_GELU: Self = Self {
        linear: 1.702,
        cubic: 0.0,
    };
    /// GELU by the tanh approximation: `½(1 + tanh u) = σ(2u)` with `u = √(2/π)·(x + 0.044715·x³)`.
    pub const GELU_TANH: Self = Self {
        linear: 1.595_769_121_605_730_7_f64 as f32,
        cubic: 0.071_354_816_272_600_25_f64 as f32,
    };
}

/// `x·σ(linear·x + cubic·x³)` of every element.
#[must_use]
pub fn gated<const D: usize>(x: Tensor<D>, gate: Gate) -> Tensor<D> {
    Tensor::from_dispatch(<Dispatch as FusedOps>::gated(
        x.into_dispatch(),
        gate.linear,
        gate.cubic,
    ))
}

/// Operations with a faster form on the CPU.
#[backend_extension(
    Flex: cfg(feature = "flex"),
    Cube: cfg(feature = "cuda"),
    LibTorch: cfg(feature = "tch"),
    Autodiff
)]
pub(crate) trait FusedOps: Backend {
    /// `x·σ(linear·x + cubic·x³)`.
    fn gated(x: FloatTensor<Self>, linear: f32, cubic: f32) -> FloatTensor<Self> {
        let gate = gate::<Self>(x.clone(), linear, cubic);
        Self::float_mul(x, gate)
    }

    /// Its derivative times `upstream`: `σ + x·σ·(1−σ)·(linear + 3·cubic·x²)`.
    fn gated_backward(x: FloatTensor<Self>, upstream: FloatTensor<Self>, linear: f32, cubic: f32) -> FloatTensor<Self> {
        let gate = gate::<Self>(x.clone(), linear, cubic);
        let square = Self::float_mul(x.clone(), x.clone());
        let slope = Self::float_add_scalar(Self::float_mul_scalar(square, (3.0 * cubic).into()), linear.into());
        let rest = Self::float_add_scalar(Self::float_neg(gate.clone()), 1.0f32.into());
        let inner = Self::float_mul(Self::float_mul(x, rest), slope);
        let derivative = Self::float_mul(gate, Self::float_add_scalar(inner, 1.0f32.into()));
        Self::float_mul(derivative, upstream)
    }
}

/// `σ(linear·x + cubic·x³)` by plain operations.
fn gate<B: Backend>(x: FloatTensor<B>, linear: f32, cubic: f32) -> FloatTensor<B> {
    let square = B::float_mul(x.clone(), x.clone());
    let factor = B::float_add_scalar(B::float_mul_scalar(square, cubic.into()), linear.into());
    B::sigmoid(B::float_mul(x, factor))
}

#[cfg(feature = "cuda")]
impl FusedOps for burn::backend::Cuda {}
#[cfg(feature = "tch")]
#[allow(deprecated)] // LibTorch is kept for comparison; see docs/decisions/0001.
impl FusedOps for burn::backend::LibTorch {}

impl<B: Backend + FusedOps, C: CheckpointStrategy> FusedOps for Autodiff<B, C> {
    fn gated(x: FloatTensor<Self>, linear: f32, cubic: f32) -> FloatTensor<Self> {
        #[derive(Debug)]
        struct Gated;

        impl<B: Backend + FusedOps> Backward<B, 1> for Gated {
            type State = (FloatTensor<B>, f32, f32);

            fn backward(self, ops: Ops<Self::State, 1>, grads: &mut Gradients, _: &mut Checkpointer) {
                let (x, linear, cubic) = ops.state;
                unary::<B, _>(ops.parents, ops.node, grads, |upstream| {
                    B::gated_backward(x, upstream, linear, cubic)
                });
            }
        }

        match Gated.prepare::<C>([x.node()]).compute_bound().stateful() {
            OpsKind::Tracked(prep) => {
                let input = x.primitive().clone();
                prep.finish((input.clone(), linear, cubic), B::gated(input, linear, cubic))
            }
            OpsKind::UnTracked(prep) => prep.finish(B::gated(x.into_primitive(), linear, cubic)),
        }
    }
}
