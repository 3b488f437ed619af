//! The whole way from samples to a gradient, on a problem whose gradient is known exactly.
//!
//! Prior N(0, 1), data N(m, s0²), per coordinate: the velocity is affine, so every step is
//! `x' = A·x + B + C·θ + std·ξ` for a policy that adds θ to the velocity, and the reward
//! `R = l·x_T - ½q·|P(x_T - y)|²` (P: the first two coordinates) has the gradient
//! `Σ_t C_t·Π_{t'>t} A_{t'} · (l - q·P(E x_T - y))` in θ, over the stochastic steps t.

use tree_core::{Backup, ClippedObjective, Credit, EdgeLogProbs, Forest, LevelWeight, Plan, Step};

use crate::support::{Normal, assert_all_close, assert_close};

const STEPS: usize = 10;
const WINDOW: usize = 3;
const CHILDREN: usize = 3;
const DIMENSIONS: usize = 4;
const LINEAR: Vector = [0.1, 0.2, -0.3, 0.35];
const QUADRATIC: f64 = 3.0;
const TARGET: f64 = 0.6;
const MEAN: f64 = 0.3;

type Vector = [f64; DIMENSIONS];

/// One step of the sampler at θ = 0, and how θ enters it.
#[derive(Clone, Copy)]
struct Affine {
    scale: f64,
    shift: f64,
    policy: f64,
    std: f64,
}

impl Affine {
    fn apply(&self, x: &Vector, noise: &Vector) -> Vector {
        std::array::from_fn(|i| self.scale * x[i] + self.shift + self.std * noise[i])
    }
}

/// What a node carries: its state and the noise of the edge above it.
struct State {
    x: Vector,
    noise: Vector,
}

fn sigma(step: usize) -> f64 {
    let u = 1.0 - step as f64 / STEPS as f64;
    3.0 * u / (1.0 + 2.0 * u)
}

/// The deterministic or the Flow-SDE step, η = .7, data std .5.
fn affine(step: usize, stochastic: bool) -> Affine {
    let (now, dt) = (sigma(step), sigma(step + 1) - sigma(step));
    let variance = 0.25;
    let spread = (1.0 - now).powi(2) * variance + now * now;
    let a = now / spread - (1.0 - now) * variance / spread;
    let b = -now * (1.0 - now) * MEAN / spread - MEAN + (1.0 - now).powi(2) * variance * MEAN / spread;
    if !stochastic {
        return Affine {
            scale: 1.0 + dt * a,
            shift: dt * b,
            policy: dt,
            std: 0.0,
        };
    }
    let under_root = if step == 0 { sigma(1) } else { now };
    let s = 0.7 * (now / (1.0 - under_root)).sqrt();
    let policy = (1.0 + s * s * (1.0 - now) / (2.0 * now)) * dt;
    let scale = 1.0 + s * s * dt / (2.0 * now) + policy * a;
    Affine {
        scale,
        shift: policy * b,
        policy,
        std: s * (-dt).sqrt(),
    }
}

/// The steps of a trajectory with a window, `C·ΠA` of each window step, and the exact gradient.
struct Toy {
    start: usize,
    steps: Vec<Affine>,
    gains: Vec<f64>,
}

impl Toy {
    fn new(start: usize) -> Self {
        let window = start..start + WINDOW;
        let steps: Vec<Affine> = (0..STEPS).map(|step| affine(step, window.contains(&step))).collect();
        let after = |step: usize| steps[step + 1..].iter().map(|step| step.scale).product::<f64>();
        let gains = window.map(|step| steps[step].policy * after(step)).collect();
        Self { start, steps, gains }
    }

    fn expected_end(&self) -> f64 {
        self.steps.iter().fold(0.0, |mean, step| step.scale * mean + step.shift)
    }

    /// The gradient with each window step weighed.
    fn gradient(&self, factors: &[f64]) -> Vector {
        let gain: f64 = self.gains.iter().zip(factors).map(|(gain, factor)| gain * factor).sum();
        let pull = QUADRATIC * (self.expected_end() - TARGET);
        std::array::from_fn(|i| gain * (LINEAR[i] - if i < 2 { pull } else { 0.0 }))
    }

    /// Deterministic steps, one after the other.
    fn run(&self, steps: std::ops::Range<usize>, x: Vector) -> Vector {
        self.steps[steps]
            .iter()
            .fold(x, |x, step| step.apply(&x, &[0.0; DIMENSIONS]))
    }

    /// The mean gradient over `trees` trees by way of plan, forest, backup, credit and objective.
    fn estimate(&self, trees: usize, credit: Credit, normal: &mut Normal) -> Vector {
        // The deterministic steps before and after the window are run outside the forest, to keep it small.
        let plan = Plan::new(1, vec![Step::Sde { children: CHILDREN }; WINDOW]).expect("a valid plan");
        let mut draw = || -> Vector { std::array::from_fn(|_| normal.next()) };
        let roots: Vec<(usize, State)> = (0..trees)
            .map(|tree| {
                (
                    tree,
                    State {
                        x: self.run(0..self.start, draw()),
                        noise: [0.0; DIMENSIONS],
                    },
                )
            })
            .collect();
        let mut forest = Forest::new(roots).expect("one root or more");
        for step in 0..WINDOW {
            let affine = self.steps[self.start + step];
            let child = |_, parent: &State, _| {
                let noise = draw();
                State {
                    x: affine.apply(&parent.x, &noise),
                    noise,
                }
            };
            forest.grow(|_, _| plan.children(step), child).expect("a small forest");
        }
        let mut scores: Vec<f64> = forest
            .leaves()
            .map(|leaf| self.reward(&forest.payload(leaf).x))
            .collect();
        // The baseline of the paper, without the division by the std, which would bias the gradient's length.
        for leaves in scores.chunks_mut(plan.counts_per_tree().leaves) {
            let mean = leaves.iter().sum::<f64>() / leaves.len() as f64;
            leaves.iter_mut().for_each(|score| *score -= mean);
        }
        let mut advantages = Backup::Mean
            .values(&forest, &scores, EdgeLogProbs::NONE)
            .expect("finite scores");
        credit.replace(&forest, &mut advantages).expect("one value per node");

        let objective = ClippedObjective::new(0.2, f64::INFINITY).expect("valid settings");
        let mut gradient = [0.0; DIMENSIONS];
        for (step, weight) in plan.edge_weights(LevelWeight::Path).into_iter().enumerate() {
            let affine = self.steps[self.start + step];
            for node in forest.level(step + 1) {
                let edge = objective.edge(0.0, 0.0, advantages[node]).expect("finite");
                // d log_prob/dθ = (x' - mean)/std² · C = noise/std · C; the loss is minimised, so its sign turns.
                for (sum, noise) in gradient.iter_mut().zip(&forest.payload(node).noise) {
                    *sum -= weight * edge.derivative * noise / affine.std * affine.policy;
                }
            }
        }
        gradient.map(|sum| sum / trees as f64)
    }

    fn reward(&self, x: &Vector) -> f64 {
        let end = self.run(self.start + WINDOW..STEPS, *x);
        let linear: f64 = LINEAR.iter().zip(&end).map(|(l, x)| l * x).sum();
        let distance: f64 = end[..2].iter().map(|x| (x - TARGET).powi(2)).sum();
        linear - 0.5 * QUADRATIC * distance
    }
}

/// Pins the toy itself to numbers computed elsewhere.
#[test]
fn exact_gradients() {
    let toy = Toy::new(0);
    assert_all_close(&toy.gains, &[-0.007_844_302, -0.016_955_186, -0.025_247_284], 1e-9);
    assert_close(toy.expected_end(), MEAN, 1e-12);
    assert_all_close(
        &toy.gradient(&[1.0; 3]),
        &[-0.050_046_772, -0.055_051_449, 0.015_014_032, -0.017_516_370],
        1e-9,
    );
    let toy = Toy::new(3);
    assert_all_close(&toy.gains, &[-0.024_700_975, -0.036_533_876, -0.056_169_868], 1e-9);
    assert_all_close(
        &toy.gradient(&[1.0; 3]),
        &[-0.117_404_720, -0.129_145_192, 0.035_221_416, -0.041_091_652],
        1e-9,
    );
    let step = toy.steps[3];
    let got = [step.scale, step.shift, step.policy, step.std];
    assert_all_close(
        &got,
        &[0.811_075_219, 0.024_130_134, -0.070_738_636, 0.441_459_357],
        1e-9,
    );
}

/// Pins the expected gradient of trees: leave-one-out credit finds the exact one, and the paper's credit the one that
/// [`Plan::level_factors`] predicts, `1 - 3^(-l)` per level. Each coordinate must agree within 4.5 standard errors, and
/// these must be small enough to tell the two predictions apart.
#[test]
fn trees_estimate_the_gradient() {
    const BATCHES: usize = 50;
    const TREES: usize = 400;
    let plan = Plan::new(1, vec![Step::Sde { children: CHILDREN }; WINDOW]).expect("a valid plan");
    for start in [0, 3] {
        let toy = Toy::new(start);
        for credit in [Credit::Siblings, Credit::Subtree] {
            let expected = toy.gradient(&plan.level_factors(credit, LevelWeight::Path));
            let mut normal = Normal::new(start as u64);
            let batches: Vec<Vector> = (0..BATCHES).map(|_| toy.estimate(TREES, credit, &mut normal)).collect();
            for i in 0..DIMENSIONS {
                let mean = batches.iter().map(|batch| batch[i]).sum::<f64>() / BATCHES as f64;
                let squares = batches.iter().map(|batch| (batch[i] - mean).powi(2)).sum::<f64>();
                let error = (squares / (BATCHES - 1) as f64 / BATCHES as f64).sqrt();
                let place = format!("{credit:?} at start {start}, coordinate {i}: {mean} ± {error}");
                println!("{place}, expected {}", expected[i]);
                assert!(
                    (mean - expected[i]).abs() < 4.5 * error,
                    "{place}, expected {}",
                    expected[i]
                );
                assert!(
                    i > 1 || error < 0.03 * expected[i].abs(),
                    "{place} is too rough to mean anything"
                );
            }
        }
    }
}
