//! Transition kernels: reference values of every step, refusals, and a toy whose gradient is known.

mod properties;

use burn::tensor::{Device, Tensor, TensorData};
use policy_sd3::kernel::{DdimSchedule, Density, FlowStep, Kernel, KernelError, LogProb, Reduction, Transition};
use policy_sd3::schedule::Schedule;
use serde_json::Value;

use crate::fixture::Fixture;
use crate::schedule::named;

const MEAN: LogProb = LogProb {
    density: Density::Gaussian,
    reduction: Reduction::Mean,
};

/// A JSON list of rows.
fn table(list: &Value) -> Vec<Vec<f64>> {
    let numbers = |row: &Value| {
        row.as_array()
            .expect("a row")
            .iter()
            .map(|v| v.as_f64().expect("a number"))
            .collect()
    };
    list.as_array().expect("rows").iter().map(numbers).collect()
}

fn tensor(rows: &[Vec<f64>], device: &Device) -> Tensor<2> {
    let values: Vec<f32> = rows.iter().flatten().map(|v| *v as f32).collect();
    Tensor::from_data(TensorData::new(values, [rows.len(), rows[0].len()]), device)
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    let values: Vec<f32> = tensor.into_data().try_to_vec().expect("f32 data");
    values.into_iter().map(f64::from).collect()
}

/// Largest difference of two lists, relative where a value exceeds `floor`.
#[track_caller]
fn relative<'a>(found: impl IntoIterator<Item = &'a f64>, expected: &[f64], floor: f64) -> f64 {
    let found: Vec<f64> = found.into_iter().copied().collect();
    assert_eq!(found.len(), expected.len(), "counts differ");
    found
        .iter()
        .zip(expected)
        .map(|(a, b)| (a - b).abs() / b.abs().max(floor))
        .fold(0.0, f64::max)
}

/// One step of the fixture.
struct Case<'a> {
    what: String,
    transition: Transition,
    density: Density,
    x: Vec<Vec<f64>>,
    v: Vec<Vec<f64>>,
    z: Vec<Vec<f64>>,
    expected: &'a Value,
}

impl Case<'_> {
    /// Compares the step in double precision at 1e-10 and on tensors at 1e-6.
    #[track_caller]
    fn check(&self, device: &Device) {
        let Self {
            what,
            transition,
            expected,
            ..
        } = self;
        let expected_std = expected["std"].as_f64().expect("a number");
        assert!(
            relative([&transition.std], &[expected_std], 1e-12) < 1e-10,
            "{what}: std {}",
            transition.std
        );

        let (expected_mean, expected_next) = (table(&expected["mean"]), table(&expected["next"]));
        let mean: Vec<Vec<f64>> = self
            .x
            .iter()
            .zip(&self.v)
            .map(|(x, v)| transition.mean_f64(x, v))
            .collect();
        let next: Vec<Vec<f64>> = mean
            .iter()
            .zip(&self.z)
            .map(|(mean, z)| transition.sample_f64(mean, z))
            .collect();
        // A mean near zero is a difference of larger numbers, hence the floor.
        let difference = relative(mean.iter().flatten(), &expected_mean.concat(), 1e-2);
        assert!(difference < 1e-10, "{what}: mean differs by {difference:e}");
        let difference = relative(next.iter().flatten(), &expected_next.concat(), 1e-2);
        assert!(difference < 1e-10, "{what}: outcome differs by {difference:e}");

        let mean_tensor = transition.mean(tensor(&self.x, device), tensor(&self.v, device));
        let next_tensor = transition.sample(mean_tensor.clone(), tensor(&self.z, device));
        let difference = relative(&values(mean_tensor.clone()), &expected_mean.concat(), 1.0);
        assert!(difference < 1e-6, "{what}: mean differs by {difference:e} in f32");
        let difference = relative(&values(next_tensor.clone()), &expected_next.concat(), 1.0);
        assert!(difference < 1e-6, "{what}: outcome differs by {difference:e} in f32");

        for (key, reduction) in [("logp_mean", Reduction::Mean), ("logp_sum", Reduction::Sum)] {
            let kind = LogProb {
                density: self.density,
                reduction,
            };
            let found = transition.log_prob(next_tensor.clone(), mean_tensor.clone(), kind);
            if !transition.is_stochastic() {
                assert_eq!(found.err(), Some(KernelError::NoDensity), "{what}");
                continue;
            }
            let expected: Vec<f64> = expected[key]
                .as_array()
                .expect("rows")
                .iter()
                .map(|v| v.as_f64().expect("a number"))
                .collect();
            let reference: Vec<f64> = expected_next
                .iter()
                .zip(&mean)
                .map(|(next, mean)| transition.log_prob_f64(next, mean, kind).expect("a density"))
                .collect();
            let difference = relative(&reference, &expected, 1e-2);
            assert!(difference < 1e-10, "{what}: {key} differs by {difference:e}");
            // Outcome minus mean carries the rounding of both, which the standard deviation magnifies.
            let difference = relative(&values(found.expect("a density")), &expected, 1.0);
            let tolerance = 1e-6 * (1.0 / transition.std).max(1.0);
            assert!(difference < tolerance, "{what}: {key} differs by {difference:e} in f32");
        }
    }
}

#[test]
fn kernel_parity_of_every_flow_step() {
    let device = Device::flex();
    let fixture = Fixture::read("sde_steps");
    let shift = fixture.inputs["shift"].as_f64().expect("a shift");
    let cases = fixture.inputs["flow"].as_array().expect("cases");
    for (case, expected) in cases.iter().zip(fixture.expected["flow"].as_array().expect("cases")) {
        let steps = case["n"].as_u64().expect("a number of steps") as usize;
        let schedule = named(case["schedule"].as_str().expect("a name"), steps, shift);
        for sampler in case["samplers"].as_array().expect("names") {
            let name = sampler.as_str().expect("a name");
            let kernel: Kernel = serde_json::from_value(name.replace('_', "-").into()).expect("a known kernel");
            let noise_level = fixture.inputs["eta"][name]
                .as_f64()
                .unwrap_or(kernel.default_noise_level());
            for step in 0..steps {
                // The reference has values for the last step too, which a rollout never takes with noise.
                let levels = FlowStep {
                    sigma: schedule.sigma(step),
                    sigma_next: schedule.sigma_next(step),
                    sigma_below_one: schedule.sigma_below_one(step),
                };
                let transition = kernel.coefficients(levels, noise_level).expect("coefficients");
                match kernel.transition(&schedule, step, noise_level) {
                    Ok(checked) => assert_eq!(checked, transition),
                    Err(why) => assert_eq!(
                        why,
                        KernelError::LastStep {
                            kernel: kernel.name(),
                            step
                        }
                    ),
                }
                let density = if kernel == Kernel::Cps {
                    Density::Unscaled
                } else {
                    Density::Gaussian
                };
                let what = format!("{kernel}, step {step} of {steps}");
                let [x, v, z] = ["x", "v", "z"].map(|key| table(&case[key][step]));
                Case {
                    what,
                    transition,
                    density,
                    x,
                    v,
                    z,
                    expected: &expected[name][step],
                }
                .check(&device);
            }
        }
    }
}

#[test]
fn kernel_parity_of_every_ddim_step() {
    let device = Device::flex();
    let fixture = Fixture::read("sde_steps");
    let noise_level = fixture.inputs["eta"]["ddim"].as_f64().expect("a noise level");
    let cases = fixture.inputs["ddim"].as_array().expect("cases");
    for (case, expected) in cases.iter().zip(fixture.expected["ddim"].as_array().expect("cases")) {
        let steps = case["n"].as_u64().expect("a number of steps") as usize;
        let schedule = DdimSchedule::stable_diffusion_1_5(steps).expect("a schedule");
        let timesteps: Vec<Value> = schedule.timesteps().iter().map(|t| (*t).into()).collect();
        assert_eq!(Value::from(timesteps), expected["timesteps"]);
        for step in 0..steps {
            let expected = &expected["steps"][step];
            let alphas = ["alpha_cumprod", "alpha_cumprod_prev"].map(|key| expected[key].as_f64().expect("a number"));
            assert!(relative(&[schedule.alpha(step), schedule.alpha_next(step)], &alphas, 1e-12) < 1e-10);
            let transition = schedule.transition(step, noise_level).expect("a transition");
            let what = format!("ddim, step {step} of {steps}");
            let [x, v, z] = ["x", "eps", "z"].map(|key| table(&case[key][step]));
            Case {
                what,
                transition,
                density: Density::Gaussian,
                x,
                v,
                z,
                expected,
            }
            .check(&device);
        }
    }
}

/// Values worked out independently, for step 3 of 10.
#[test]
fn golden_values_of_the_stochastic_kernels() {
    let schedule = Schedule::diffusers(10, 3.0, 1000).expect("a schedule");
    let (x, v, next) = ([0.5, -1.0, 2.0, 0.25], [0.1, 0.2, -0.3, 0.4], [0.45, -0.9, 1.8, 0.3]);
    let unscaled = LogProb {
        density: Density::Unscaled,
        reduction: Reduction::Mean,
    };
    for (kernel, kind, mean, std, log_prob) in [
        (
            Kernel::FlowSde,
            MEAN,
            [0.433_664_899_8, -0.900_857_169_3, 1.793_332_496_2, 0.187_496_001_3],
            0.445_897_133_5,
            -0.119_425_205_2,
        ),
        (
            Kernel::DanceSde,
            MEAN,
            [0.491_451_206_0, -1.010_033_092_7, 2.013_283_515_3, 0.221_986_257_4],
            0.077_840_627_0,
            0.284_926_396_2,
        ),
        (
            Kernel::Cps,
            unscaled,
            [0.212_430_209_5, -0.482_877_492_8, 0.951_250_717_1, 0.055_450_165_2],
            0.751_684_895_3,
            -0.252_652_639_6,
        ),
    ] {
        let transition = kernel
            .transition(&schedule, 3, kernel.default_noise_level())
            .expect("a transition");
        let found = transition.mean_f64(&x, &v);
        assert!(relative(&found, &mean, 1.0) < 1e-10, "{kernel}: mean {found:?}");
        assert!((transition.std - std).abs() < 1e-10, "{kernel}: std {}", transition.std);
        let found = transition.log_prob_f64(&next, &found, kind).expect("a density");
        assert!((found - log_prob).abs() < 1e-10, "{kernel}: log-prob {found}");
    }
}

/// The exact velocity of data N(m, s0²) under noise N(0, 1): `v = slope·x + offset`.
fn toy_velocity(sigma: f64) -> (f64, f64) {
    let (mean, deviation) = (0.3, 0.5);
    let signal = (1.0 - sigma) * deviation * deviation;
    let spread = (1.0 - sigma) * signal + sigma * sigma;
    let slope = (sigma - signal) / spread;
    let offset = -sigma * (1.0 - sigma) * mean / spread - mean + (1.0 - sigma) * signal * mean / spread;
    (slope, offset)
}

/// With an affine velocity plus a parameter θ, every step is `x' = A·x + B + C·θ`, and the policy gradient of a window
/// is `Σ_t C_t·Π_{t'>t} A_{t'}` times the gradient of the reward at the expected end.
#[test]
fn the_toy_with_a_known_gradient_is_reproduced() {
    let schedule = Schedule::linspace(10, 3.0, 1000).expect("a schedule");
    let (target, curvature, linear) = (0.6, 3.0, [0.1, 0.2, -0.3, 0.35]);
    for (start, influences, gradient) in [
        (
            0,
            [-0.007_844_302, -0.016_955_186, -0.025_247_284],
            [-0.050_046_772, -0.055_051_449, 0.015_014_032, -0.017_516_370],
        ),
        (
            3,
            [-0.024_700_975, -0.036_533_876, -0.056_169_868],
            [-0.117_404_720, -0.129_145_192, 0.035_221_416, -0.041_091_652],
        ),
    ] {
        let window = start..start + 3;
        let steps: Vec<[f64; 3]> = (0..schedule.steps())
            .map(|step| {
                let kernel = if window.contains(&step) {
                    Kernel::FlowSde
                } else {
                    Kernel::Ode
                };
                let transition = kernel.transition(&schedule, step, 0.7).expect("a transition");
                let (slope, offset) = toy_velocity(schedule.sigma(step));
                if start == 3 && step == 3 {
                    assert!((transition.std - 0.441_459_357).abs() < 1e-9);
                }
                [transition.a + transition.b * slope, transition.b * offset, transition.b]
            })
            .collect();
        if start == 3 {
            let expected = [0.811_075_219, 0.024_130_134, -0.070_738_636];
            assert!(relative(&steps[3], &expected, 1.0) < 1e-9, "{:?}", steps[3]);
        }
        let found: Vec<f64> = window
            .map(|t| steps[t][2] * steps[t + 1..].iter().map(|s| s[0]).product::<f64>())
            .collect();
        assert!(relative(&found, &influences, 1.0) < 1e-9, "start {start}: {found:?}");
        let end = steps.iter().fold(0.0, |x, [a, b, _]| a * x + b);
        assert!((end - 0.3).abs() < 1e-9, "expected end {end}");
        let total: f64 = found.iter().sum();
        let found: Vec<f64> = (0..4)
            .map(|i| total * (linear[i] - if i < 2 { curvature * (end - target) } else { 0.0 }))
            .collect();
        assert!(
            relative(&found, &gradient, 1.0) < 1e-9,
            "start {start}: gradient {found:?}"
        );
    }
}

#[test]
fn impossible_transitions_are_refused() {
    let schedule = Schedule::diffusers(10, 3.0, 1000).expect("a schedule");
    for kernel in [Kernel::FlowSde, Kernel::DanceSde, Kernel::Cps] {
        let level = kernel.default_noise_level();
        let name = kernel.name();
        assert_eq!(
            kernel.transition(&schedule, 10, level),
            Err(KernelError::Step { step: 10, steps: 10 })
        );
        assert_eq!(
            kernel.transition(&schedule, 9, level),
            Err(KernelError::LastStep { kernel: name, step: 9 })
        );
        for level in [f64::NAN, f64::INFINITY, -0.1] {
            let why = kernel.transition(&schedule, 0, level).expect_err("a refusal");
            assert!(matches!(why, KernelError::NoiseLevel { .. }), "{why}");
        }
        let why = kernel.transition(&schedule, 0, 0.0).expect_err("a refusal");
        assert!(matches!(why, KernelError::Deviation { .. }), "{why}");
    }
    let why = Kernel::Cps.transition(&schedule, 0, 1.01).expect_err("a refusal");
    assert!(why.to_string().contains("0 to 1"), "{why}");
    assert!(Kernel::Ode.transition(&schedule, 9, f64::NAN).is_ok());
    assert_eq!(
        Kernel::Ddim.transition(&schedule, 0, 1.0),
        Err(KernelError::NeedsDdimSchedule)
    );
    assert!(matches!(
        DdimSchedule::stable_diffusion_1_5(1000),
        Err(KernelError::DdimSteps { most: 999, .. })
    ));
    assert!(DdimSchedule::stable_diffusion_1_5(999).is_ok());
    assert!(DdimSchedule::stable_diffusion_1_5(0).is_err());
}

/// The first step starts at σ = 1, where `σ/(1−σ)` has a pole: σ_1 takes its place, for every shift.
#[test]
fn the_first_step_is_finite_for_every_shift() {
    for shift in [1.0, 3.0, 10.0] {
        let schedule = Schedule::diffusers(10, shift, 1000).expect("a schedule");
        let transition = Kernel::FlowSde.transition(&schedule, 0, 0.7).expect("a transition");
        // √(1/(1−σ_1))·√(1−σ_1) cancels.
        assert!((transition.std - 0.7).abs() < 1e-12);
    }
}

/// A deterministic step adds dt·v to the very same bits of x.
#[test]
fn a_deterministic_step_is_the_euler_step() {
    let device = Device::flex();
    let schedule = Schedule::diffusers(10, 3.0, 1000).expect("a schedule");
    let transition = Kernel::Ode.transition(&schedule, 4, 0.0).expect("a transition");
    let x = Tensor::<2>::from_floats([[0.1, -0.7, 3.0]], &device);
    let v = Tensor::<2>::from_floats([[1.5, 0.3, -0.2]], &device);
    let expected = x.clone() + v.clone() * schedule.dt(4);
    let mean = transition.mean(x, v);
    assert_eq!(values(mean.clone()), values(expected));
    assert_eq!(
        values(transition.sample(mean.clone(), Tensor::ones([1, 3], &device))),
        values(mean)
    );
}

#[test]
fn names_are_those_of_the_configuration() {
    for kernel in Kernel::ALL {
        assert_eq!(serde_json::to_value(kernel).expect("JSON"), Value::from(kernel.name()));
    }
    assert_eq!(
        serde_json::to_value(MEAN).expect("JSON"),
        serde_json::json!({"density": "gaussian", "reduction": "mean"})
    );
}
