//! What holds for every transition: densities, derivatives, and finite coefficients.

use burn::tensor::Device;
use policy_sd3::kernel::{DdimSchedule, Density, FlowStep, Kernel, LogProb, Reduction, Transition};
use policy_sd3::schedule::Schedule;
use proptest::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

use super::{MEAN, tensor, values};

fn normals(seed: u64, count: usize) -> Vec<f64> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| StandardNormal.sample(&mut random)).collect()
}

/// A stochastic kernel, one of its transitions, and what it came from.
fn any_transition() -> impl Strategy<Value = (Kernel, Transition)> {
    let kernels = prop::sample::select(vec![Kernel::FlowSde, Kernel::DanceSde, Kernel::Cps, Kernel::Ddim]);
    (kernels, 2usize..50, 0.5f64..10.0, 0.0f64..1.0, 0.05f64..1.0).prop_map(
        |(kernel, steps, shift, place, noise_level)| {
            let step = (place * (steps - 1) as f64) as usize;
            let transition = if kernel == Kernel::Ddim {
                DdimSchedule::stable_diffusion_1_5(steps)
                    .expect("a schedule")
                    .transition(step, noise_level)
            } else {
                let schedule = Schedule::diffusers(steps, shift, 1000).expect("a schedule");
                kernel.transition(&schedule, step, noise_level)
            };
            (kernel, transition.expect("a transition"))
        },
    )
}

fn any_kind() -> impl Strategy<Value = LogProb> {
    let densities = prop::sample::select(vec![Density::Gaussian, Density::Unscaled]);
    let reductions = prop::sample::select(vec![Reduction::Mean, Reduction::Sum]);
    (densities, reductions).prop_map(|(density, reduction)| LogProb { density, reduction })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Own outcomes have the mean log-density −½ − ln(std·√2π): noise and density use the same deviation.
    #[test]
    fn own_outcomes_have_the_entropy_of_the_density((kernel, transition) in any_transition(), seed in any::<u64>()) {
        let count = 4096;
        let [x, v, z] = [0, 1, 2].map(|stream| normals(seed ^ stream, count));
        let mean = transition.mean_f64(&x, &v);
        let sample = transition.sample_f64(&mean, &z);
        let found = transition.log_prob_f64(&sample, &mean, MEAN).expect("a density");
        let expected = -0.5 - (transition.std * std::f64::consts::TAU.sqrt()).ln();
        // The mean of ½·z² over 4096 values deviates by .011; five times that is never seen.
        prop_assert!((found - expected).abs() < 0.055, "{kernel}: {found} instead of {expected}");
    }

    /// The derivative in v equals the slope between two nearby predictions, and the tensor code equals it in f32.
    #[test]
    fn derivative_is_the_slope_in_the_prediction(
        (kernel, transition) in any_transition(),
        kind in any_kind(),
        seed in any::<u64>(),
    ) {
        let count = 6;
        let [x, v, z] = [0, 1, 2].map(|stream| normals(seed ^ stream, count));
        let mean = transition.mean_f64(&x, &v);
        let sample = transition.sample_f64(&mean, &z);
        let derivative = transition.log_prob_derivative_f64(&sample, &mean, kind).expect("a derivative");
        let scale = derivative.iter().fold(0.0f64, |largest, d| largest.max(d.abs()));
        for element in 0..count {
            // The log-probability is quadratic in v, so a central difference is exact at any distance.
            let distance = 0.1 * transition.std / transition.b.abs().max(1e-3);
            let [above, below] = [distance, -distance].map(|by| {
                let mut v = v.clone();
                v[element] += by;
                transition.log_prob_f64(&sample, &transition.mean_f64(&x, &v), kind).expect("a density")
            });
            let slope = (above - below) / (2.0 * distance);
            prop_assert!((slope - derivative[element]).abs() <= 1e-6 * scale, "{kernel}: {slope} {derivative:?}");
        }

        let device = Device::flex();
        let [sample, mean] = [sample, mean].map(|row| tensor(&[row], &device));
        let found = values(transition.log_prob_derivative(sample, mean, kind).expect("a derivative"));
        for (found, expected) in found.iter().zip(&derivative) {
            prop_assert!((found - expected).abs() <= 2e-6 * scale * (1.0 / transition.std).max(1.0));
        }
    }

    /// The divergence of two means uses the step's own deviation, and its derivative is that of minus the log-density.
    #[test]
    fn divergence_uses_the_deviation_of_its_step((_, transition) in any_transition(), seed in any::<u64>()) {
        let device = Device::flex();
        let [mean, reference] = [0, 1].map(|stream| normals(seed ^ stream, 5));
        let square: f64 = mean.iter().zip(&reference).map(|(a, b)| (a - b) * (a - b)).sum();
        let expected = square / (2.0 * transition.std * transition.std);
        let [mean, reference] = [mean, reference].map(|row| tensor(&[row], &device));
        for (reduction, expected) in [(Reduction::Sum, expected), (Reduction::Mean, expected / 5.0)] {
            let found = transition.divergence(mean.clone(), reference.clone(), reduction).expect("a divergence");
            prop_assert!((values(found)[0] / expected - 1.0).abs() < 1e-5);
            let kind = LogProb { density: Density::Gaussian, reduction };
            let found = transition.divergence_derivative(mean.clone(), reference.clone(), reduction);
            let mirrored = transition.log_prob_derivative(mean.clone(), reference.clone(), kind);
            prop_assert_eq!(values(found.expect("a derivative")), values(mirrored.expect("a derivative")));
        }
    }

    /// Coefficients-preserving steps are finite for every noise level from 0 to 1, both ends included.
    #[test]
    fn cps_is_finite_for_every_noise_level(
        sigma in 0.0f64..=1.0,
        share in 0.0f64..1.0,
        noise_level in prop_oneof![Just(0.0), Just(1.0), 0.0f64..=1.0],
    ) {
        let sigma_next = sigma * share;
        let levels = FlowStep { sigma, sigma_next, sigma_below_one: sigma };
        let transition = Kernel::Cps.coefficients(levels, noise_level).expect("coefficients");
        for value in [transition.a, transition.b, transition.std] {
            prop_assert!(value.is_finite());
        }
        // Signal and noise keep the shares of the next level: what is not drawn anew is kept.
        let kept = transition.a - (1.0 - sigma_next);
        prop_assert!((kept * kept + transition.std * transition.std - sigma_next * sigma_next).abs() < 1e-12);
    }
}
