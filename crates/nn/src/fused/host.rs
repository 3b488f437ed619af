//! The CPU forms. Loops are written so that the compiler turns them into vector instructions: no branch, no call.

use burn::backend::flex::{Flex, FlexTensor};
use burn::backend::tensor::FloatTensor;
use burn::backend::{DType, TensorMetadata};

use super::gated::FusedOps;

impl FusedOps for Flex {
    fn gated(x: FloatTensor<Self>, linear: f32, cubic: f32) -> FloatTensor<Self> {
        let mut x = owned_f32(x);
        for value in x.storage_mut::<f32>() {
            let x = *value;
            *value = x * sigmoid(x * (cubic * x * x + linear));
        }
        x
    }

    fn gated_backward(x: FloatTensor<Self>, upstream: FloatTensor<Self>, linear: f32, cubic: f32) -> FloatTensor<Self> {
        let x = owned_f32(x);
        let mut upstream = owned_f32(upstream);
        for (value, x) in upstream.storage_mut::<f32>().iter_mut().zip(x.storage::<f32>()) {
            let x = *x;
            let gate = sigmoid(x * (cubic * x * x + linear));
            let inner = x * (1.0 - gate) * (3.0 * cubic * x * x + linear);
            *value *= gate * (1.0 + inner);
        }
        upstream
    }
}

/// A contiguous f32 tensor whose storage is exactly its elements.
fn owned_f32(tensor: FlexTensor) -> FlexTensor {
    assert_eq!(tensor.dtype(), DType::F32, "the CPU runs activations in f32");
    let whole = tensor.is_contiguous() && tensor.storage::<f32>().len() == tensor.shape().num_elements();
    if whole { tensor } else { tensor.to_contiguous() }
}

/// `1 / (1 + e^−x)`.
#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exponential(-x))
}

/// `e^x` to about 1e-7 relative, for any finite x; saturates where f32 does.
///
/// `e^x = 2^n·e^r` with `n = round(x / ln 2)` and |r| ≤ ½·ln 2, `e^r` by its Taylor polynomial of degree 7 and `2^n` by
/// writing n into the exponent's bits.
#[inline(always)]
fn exponential(x: f32) -> f32 {
    // ln 2 in two parts, so that n·ln 2 is exact in the first.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    // Adding and taking away 1.5·2²³ rounds to the nearest integer.
    const ROUND: f32 = 12_582_912.0;
    let x = x.clamp(-87.0, 88.0);
    let n = x * std::f32::consts::LOG2_E + ROUND - ROUND;
    let r = fused(n, -LN_2_LOW, fused(n, -LN_2_HIGH, x));
    let mut p = 1.0 / 5040.0;
    for coefficient in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        p = fused(p, r, coefficient);
    }
    p * f32::from_bits(((n as i32 + 127) as u32) << 23)
}

/// `a·b + c`, in one instruction where the machine has it. Where it has not, `mul_add` would call a slow exact routine.
#[inline(always)]
fn fused(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(target_feature = "fma") {
        a.mul_add(b, c)
    } else {
        a * b + c
    }
}

#[cfg(test)]
mod tests {
    use super::{exponential, sigmoid};

    /// The polynomial agrees with the C library's exponential to three units in the last place, and saturates.
    #[test]
    fn exponential_is_exact_to_f32() {
        for i in -8700..=8800 {
            let x = i as f32 / 100.0;
            let exact = f64::from(x).exp();
            let relative = (f64::from(exponential(x)) - exact).abs() / exact;
            assert!(relative < 4e-7, "e^{x}: relative error {relative:e}");
        }
        assert_eq!(sigmoid(-1e30), 1.0 / (1.0 + exponential(88.0)));
        assert_eq!(sigmoid(1e30), 1.0);
    }
}
