//! Optimiser steps by hand, the average of the parameters, and gradients that must not be taken.

use burn::tensor::Device;
use trainer::optimiser::{Optimiser, OptimiserConfig, OptimiserState, to_device, to_host};
use trainer::parameters::Layout;

use crate::fixture::assert_near;
use crate::toy::Toy;

const CONFIG: OptimiserConfig = OptimiserConfig {
    learning_rate: 0.1,
    beta_1: 0.9,
    beta_2: 0.999,
    epsilon: 1e-8,
    weight_decay: 0.01,
    gradient_clip: 1.0,
};

fn bits(state: &OptimiserState) -> Vec<Vec<u32>> {
    let [moment_1, moment_2] = state.moments.clone().expect("moments");
    let average = state.average.clone().expect("an average");
    let values = [&state.parameters, &average, &moment_1, &moment_2].map(|t| to_host(t).expect("values"));
    values
        .iter()
        .map(|values| values.iter().map(|v| v.to_bits()).collect())
        .collect()
}

fn gradient(layout: &Layout, value: impl Fn(usize) -> f32) -> burn::tensor::Tensor<1> {
    to_device((0..layout.len()).map(value).collect(), &Device::flex())
}

/// Two steps of AdamW by hand for one coordinate. θ = 2, gradient 0.5 both times, norm below the clip:
/// step 1: m = .05, v = .00025, m̂ = .5, v̂ = .25, θ = 2 − .1·.01·2 − .1·.5/.5 = 1.898;
/// step 2: the corrected moments stay .5 and .25, θ = 1.898 − .1·.01·1.898 − .1 = 1.796102.
#[test]
fn two_steps_by_hand() {
    let toy = Toy::new(3);
    let mut state = OptimiserState::new(gradient(&toy.layout, |_| 2.0), false);
    let optimiser = Optimiser::new(CONFIG, None);
    for expected in [1.898, 1.796_102] {
        let only_first = gradient(&toy.layout, |i| if i == 0 { 0.5 } else { 0.0 });
        let report = optimiser.step(&mut state, only_first, &toy.layout).expect("a step");
        assert_near("norm", report.gradient_norm, 0.5, 1e-7);
        let values = to_host(&state.parameters).expect("values");
        assert_near("first", f64::from(values[0]), expected, 1e-6);
    }
    // The others only decay: 2·(1 − .001)².
    assert_near(
        "second",
        f64::from(to_host(&state.parameters).expect("values")[1]),
        2.0 * 0.999f64.powi(2),
        1e-6,
    );
    assert_eq!(state.steps, 2);
}

/// A gradient above the clip is scaled to it as a whole: the first moment after one step is a tenth of a vector of
/// norm 1, in the gradient's direction. The reported norm is that before the clip.
#[test]
fn clip_scales_the_whole_gradient() {
    let toy = Toy::new(3);
    let mut state = OptimiserState::new(gradient(&toy.layout, |_| 0.0), false);
    let big = gradient(&toy.layout, |i| if i < 2 { [300.0, -400.0][i] } else { 0.0 });
    let report = Optimiser::new(CONFIG, None)
        .step(&mut state, big, &toy.layout)
        .expect("a step");
    assert_near("norm", report.gradient_norm, 500.0, 1e-3);
    let [moment, _] = state.moments.expect("moments").map(|m| to_host(&m).expect("values"));
    assert_near("moment of the first", f64::from(moment[0]), 0.06, 1e-7);
    assert_near("moment of the second", f64::from(moment[1]), -0.08, 1e-7);
}

/// The average moves once per optimiser step, with a decay that is warmed up: (1 + n)/(10 + n) after step n until that
/// exceeds the setting. It is a value of its own: it starts at the parameters and then lags behind them.
#[test]
fn average_moves_with_every_step() {
    let toy = Toy::new(3);
    let mut state = OptimiserState::new(gradient(&toy.layout, |_| 1.0), true);
    let optimiser = Optimiser::new(CONFIG, Some(0.25));
    let mut expected = 1.0;
    for (step, decay) in [(1u64, 2.0 / 11.0), (2, 0.25), (3, 0.25)] {
        optimiser
            .step(&mut state, gradient(&toy.layout, |_| 1e-3), &toy.layout)
            .expect("a step");
        let value = f64::from(to_host(&state.parameters).expect("values")[5]);
        expected = expected * decay + value * (1.0 - decay);
        let average = f64::from(to_host(state.average.as_ref().expect("an average")).expect("values")[5]);
        assert_near("average", average, expected, 1e-6);
        assert!(average > value, "the average lags behind");
        assert_eq!(state.steps, step);
    }
    assert_eq!(
        to_host(state.published()).expect("values"),
        to_host(&state.average.clone().expect("an average")).expect("values")
    );
}

/// A gradient with NaN or infinity is refused by the name of its tensor, and leaves parameters, moments, average and
/// counter as they were, to the bit.
#[test]
fn non_finite_gradients_change_nothing() {
    let toy = Toy::new(3);
    let optimiser = Optimiser::new(CONFIG, Some(0.9));
    let mut state = OptimiserState::new(toy.layout.gather(&toy.network), true);
    optimiser
        .step(&mut state, gradient(&toy.layout, |i| (i as f32).sin()), &toy.layout)
        .expect("a step");
    let before = bits(&state);
    let entry = &toy.layout.entries()[3];
    // The first, an inner and the last element of the tensor.
    for element in [entry.offset, entry.offset + 1, entry.offset + entry.length - 1] {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let damaged = gradient(&toy.layout, |i| if i == element { bad } else { 0.1 });
            let error = optimiser
                .step(&mut state, damaged, &toy.layout)
                .expect_err("a bad gradient")
                .to_string();
            assert!(error.contains(&format!("`{}`", entry.key)), "{error}");
            assert!(
                error.contains("not finite") && error.contains("train.learning_rate"),
                "{error}"
            );
            assert_eq!((bits(&state), state.steps), (before.clone(), 1));
        }
    }
    optimiser
        .step(&mut state, gradient(&toy.layout, |_| 0.1), &toy.layout)
        .expect("the next good one");
}

/// Gathering, scattering and the file's layout are inverse to each other; names follow the offsets.
#[test]
fn layout_goes_both_ways() {
    let toy = Toy::new(3);
    let flat: Vec<f32> = (0..toy.layout.len()).map(|i| i as f32).collect();
    let network = toy
        .layout
        .scatter(toy.network.clone(), &to_device(flat.clone(), &toy.device));
    assert_eq!(to_host(&toy.layout.gather(&network)).expect("values"), flat);
    let stored = toy.layout.to_stored(&flat);
    assert_eq!(toy.layout.from_stored(&stored).expect("the same network"), flat);
    for entry in toy.layout.entries() {
        assert_eq!(toy.layout.name_of(entry.offset), entry.key);
        assert_eq!(toy.layout.name_of(entry.offset + entry.length - 1), entry.key);
        assert_eq!(stored[&entry.key].0, entry.stored_shape);
    }
    // B is [rank, outputs] in the network and [outputs, rank] in the file: element (r, o) moves to (o, r).
    let entry = toy
        .layout
        .entries()
        .iter()
        .find(|e| e.key.ends_with("to_q.lora_B.weight"))
        .expect("an adapter");
    let [rank, outputs] = [entry.shape[0], entry.shape[1]];
    assert_eq!(entry.stored_shape, [outputs, rank]);
    assert_eq!(stored[&entry.key].1[1], (entry.offset + outputs) as f32);
}
