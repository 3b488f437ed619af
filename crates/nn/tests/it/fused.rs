//! The fused operations against the plain tensor operations that define them.

use burn::tensor::{Device, Tensor, activation};
use nn::fused::{Gate, gated};
use proptest::prelude::*;

const GATES: [Gate; 3] = [Gate::SILU, Gate::QUICK_GELU, Gate::GELU_TANH];

/// `x·σ(linear·x + cubic·x³)` by plain operations.
fn plain(x: Tensor<1>, gate: Gate) -> Tensor<1> {
    let inner = x.clone() * (x.clone() * x.clone() * gate.cubic + gate.linear);
    x * activation::sigmoid(inner)
}

fn host(x: Tensor<1>) -> Vec<f32> {
    x.into_data().try_to_vec().expect("f32 data")
}

/// Both sides round in f32, and a slope multiplies the rounding of the gate's argument, up to 4e-7, by the argument's own
/// slope times x, up to about 10 where the gate is not shut or open yet. A wrong formula is off by 1e-3 and more.
#[track_caller]
fn assert_close(found: &[f32], expected: &[f32]) {
    for (found, expected) in found.iter().zip(expected) {
        let scale = 1.0f32.max(expected.abs());
        assert!((found - expected).abs() <= 1e-5 * scale, "{found} is not {expected}");
    }
}

proptest! {
    /// Value and derivative agree with the definition over the range that activations take, for every gate.
    #[test]
    fn gated_agrees_with_plain_operations(values in prop::collection::vec(-30.0f32..30.0, 1..200)) {
        let device = Device::flex().autodiff();
        for gate in GATES {
            let run = |f: &dyn Fn(Tensor<1>) -> Tensor<1>| {
                let x = Tensor::<1>::from_floats(values.as_slice(), &device).require_grad();
                let y = f(x.clone());
                // Weights of several sizes, so that the upstream gradient is not one everywhere.
                let weights = Tensor::<1>::from_floats(values.as_slice(), &device) * 0.1 + 1.0;
                let gradients = (y.clone() * weights).sum().backward();
                (host(y.inner()), host(x.grad(&gradients).expect("a tracked input")))
            };
            let (value, slope) = run(&|x| gated(x, gate));
            let (expected_value, expected_slope) = run(&|x| plain(x, gate));
            assert_close(&value, &expected_value);
            assert_close(&slope, &expected_slope);
        }
    }
}

/// Far from zero the gate is open or shut, and nothing overflows: x·σ(…) is x or 0, its slope 1 or 0.
#[test]
fn gated_saturates_without_overflow() {
    let device = Device::flex().autodiff();
    for gate in GATES {
        let x = Tensor::<1>::from_floats([-1e4, -200.0, 200.0, 1e4], &device).require_grad();
        let y = gated(x.clone(), gate);
        let gradients = y.clone().sum().backward();
        assert_close(&host(y.inner()), &[0.0, 0.0, 200.0, 1e4]);
        assert_close(
            &host(x.grad(&gradients).expect("a tracked input")),
            &[0.0, 0.0, 1.0, 1.0],
        );
    }
}

/// A view is gated like a copy of it, and the tensor that it looks into stays as it was.
#[test]
fn gated_leaves_shared_storage_alone() {
    let device = Device::flex();
    let whole = Tensor::<2>::from_floats([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], &device);
    let column = whole.clone().transpose().narrow(0, 1, 1).reshape([2]);
    let expected = host(plain(Tensor::from_floats([2.0, 5.0], &device), Gate::SILU));
    assert_close(&host(gated(column, Gate::SILU)), &expected);
    assert_eq!(
        whole.into_data().try_to_vec::<f32>().expect("f32 data"),
        [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]
    );
}
