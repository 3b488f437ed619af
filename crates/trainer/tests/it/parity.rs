//! Loss, gradients, optimiser steps and guided sampling against PyTorch, diffusers and PEFT.

use std::collections::BTreeMap;

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use nn::weights::ParameterKeys;
use policy_sd3::adapter;
use policy_sd3::guidance::{PromptTable, guided_velocity};
use policy_sd3::kernel::{FlowStep, Kernel, LogProb, Transition};
use policy_sd3::pipeline::Pipeline;
use policy_sd3::schedule::{Schedule, ScheduleKind, TimestepRounding};
use policy_sd3::text::PromptEmbeddings;
use policy_sd3::transformer::Transformer;
use serde_json::Value;
use trainer::evaluate::draw;
use trainer::optimiser::{Optimiser, OptimiserConfig, OptimiserState, to_host};
use trainer::parameters::Layout;
use trainer::rollout::{Rollout, Sampling, StochasticLevel, to_f64};
use trainer::update::{NodeGradient, Objective, TrainingNode, Update, training_nodes};
use tree_core::{ClippedObjective, Forest};

use crate::fixture::{Fixture, assert_close, assert_near, host, index, list, norm, number, numbers, root};

/// A gradient may differ by this part of its tensor's norm, or by [`GRADIENT_ABSOLUTE`].
const GRADIENT_RELATIVE: f64 = 1e-3;
const GRADIENT_ABSOLUTE: f64 = 1e-4;

/// The nodes of `lora_grad` as a rollout, and what an update needs besides.
struct Reference {
    fixture: Fixture,
    device: Device,
    nodes: Vec<Value>,
    table: PromptTable,
    sampling: Sampling,
    objective: Objective,
}

impl Reference {
    fn read() -> Self {
        let device = Device::flex();
        let fixture = Fixture::read("lora_grad");
        let nodes = list(&fixture.inputs["nodes"]).to_vec();
        let rows = |name: &'static str| (0..nodes.len()).map(move |n| format!("in.node{n}.{name}"));
        let sequence = rows("embeds")
            .chain(["in.neg_embeds".into()])
            .map(|key| fixture.tensor(&key, &device))
            .collect();
        let pooled = rows("pooled")
            .chain(["in.neg_pooled".into()])
            .map(|key| fixture.tensor(&key, &device))
            .collect();
        let table = PromptTable::new(&PromptEmbeddings {
            sequence: Tensor::cat(sequence, 0),
            pooled: Tensor::cat(pooled, 0),
            zero_tokens: 0,
            truncated: Vec::new(),
        });
        let steps = nodes
            .iter()
            .map(|node| index(&node["step"]) + 1)
            .max()
            .expect("at least one node");
        let [_, channels, height, width] = fixture.tensor::<4>("in.node0.x", &device).dims();
        let inputs = &fixture.inputs;
        let clipped = ClippedObjective::new(number(&inputs["clip_eps"]), number(&inputs["adv_clip"]));
        let sampling = Sampling {
            // The levels carry their own coefficients, so the table only has to exist.
            schedule: Schedule::diffusers(steps + 1, 3.0, 1000).expect("a schedule"),
            kernel: Kernel::FlowSde,
            noise_level: number(&inputs["eta"]),
            guidance: number(&inputs["guidance"]),
            log_prob: LogProb::default(),
            shape: [channels, height, width],
            micro_batch: 1,
        };
        let objective = Objective {
            clipped: clipped.expect("an objective"),
            edge_weights: vec![1.0; steps],
            kl_beta: 0.0,
        };
        Self {
            nodes,
            table,
            sampling,
            objective,
            fixture,
            device,
        }
    }

    fn network(&self, adapter_folder: Option<&str>) -> (Transformer, ParameterKeys) {
        let (mut network, _, mut keys) =
            Transformer::open(&root().join("sd3/transformer"), &self.device).expect("the fixture loads");
        match adapter_folder {
            Some(folder) => {
                adapter::read(&root().join(folder), &mut network, &mut keys, &self.device).expect("the adapter loads");
            }
            None => network = network.unfreeze(),
        }
        (network, keys)
    }

    fn latents(&self, node: usize) -> Tensor<4> {
        self.fixture.tensor(&format!("in.node{node}.x"), &self.device)
    }

    fn children(&self, node: usize) -> Tensor<4> {
        self.fixture.tensor(&format!("in.node{node}.children"), &self.device)
    }

    fn transition(&self, node: usize) -> Transition {
        let node = &self.nodes[node];
        let sigma = number(&node["sigma"]);
        let sigma_below_one = if sigma == 1.0 {
            number(&self.fixture.inputs["sigma_second"])
        } else {
            sigma
        };
        let levels = FlowStep {
            sigma,
            sigma_next: number(&node["sigma_next"]),
            sigma_below_one,
        };
        Kernel::FlowSde
            .coefficients(levels, self.sampling.noise_level)
            .expect("coefficients")
    }

    /// The nodes as one tree each, every node a level of its own, because they lie at different noise levels.
    fn rollout(&self, policy: &str) -> (Rollout, Vec<f64>) {
        let mut forest = Forest::new((0..self.nodes.len()).map(|n| (n, ()))).expect("a forest");
        let count = |n: usize| list(&self.nodes[n]["advantages"]).len();
        forest.grow(|node, ()| count(node), |_, (), _| ()).expect("a level");
        let mut advantages = vec![0.0; forest.len()];
        let levels = self.nodes.iter().enumerate().map(|(n, node)| {
            let edges = forest.children(n);
            advantages[edges.clone()].copy_from_slice(&numbers(&node["advantages"]));
            StochasticLevel {
                step: index(&node["step"]),
                first_child: edges.start,
                transition: self.transition(n),
                timestep: number(&node["timestep"]),
                sigma: number(&node["sigma"]),
                children_per_node: edges.len(),
                prompts: vec![n],
                parents: self.latents(n),
                children: self.children(n),
                log_probs: numbers(&node[format!("old_logp_{policy}")]),
            }
        });
        let levels = levels.collect();
        let rollout = Rollout {
            forest,
            levels,
            leaves: self.children(0),
            leaf_prompts: Vec::new(),
            evaluations: 0,
        };
        (rollout, advantages)
    }

    /// The gradient over some nodes, all of them if none are named.
    fn gradient(&self, policy: &str, network: &Transformer, layout: &Layout, nodes: &[TrainingNode]) -> NodeGradient {
        let (rollout, advantages) = self.rollout(policy);
        let update = Update {
            network,
            reference: None,
            layout,
            sampling: &self.sampling,
            table: &self.table,
            objective: &self.objective,
            edge_factors: None,
            iteration: 1,
        };
        let all = training_nodes(&rollout);
        let nodes = if nodes.is_empty() { &all } else { nodes };
        update
            .gradient(&rollout, &advantages, nodes, 1.0)
            .expect("a finite gradient")
    }

    /// What ratios that may be off by 1e-5 make of the sum of some edges' losses.
    fn loss_tolerance(&self, edges: usize) -> f64 {
        1e-5 * self.objective.clipped.advantage_clamp * edges as f64
    }

    fn edges(&self) -> usize {
        self.nodes.iter().map(|node| list(&node["advantages"]).len()).sum()
    }

    /// Velocities, mean, derivative in the velocity, densities, ratios and losses of every node.
    fn check_nodes(&self, policy: &str, network: &Transformer, layout: &Layout) {
        for (n, expected) in list(&self.fixture.expected[policy]["nodes"]).iter().enumerate() {
            let key = |name: &str| format!("{policy}.node{n}.{name}");
            let values = |name: &str| self.fixture.values(&key(name));
            let (rollout, advantages) = self.rollout(policy);
            let level = &rollout.levels[n];
            let velocity = |row: usize, guidance: f64| {
                guided_velocity(network, self.latents(n), level.timestep, &self.table, &[row], guidance)
            };
            // The row after the prompts is the negative prompt's; at guidance 1 there is one half only.
            assert_close(
                &key("v_neg"),
                &host(velocity(self.nodes.len(), 1.0)),
                values("v_neg"),
                1e-4,
            );
            assert_close(&key("v_pos"), &host(velocity(n, 1.0)), values("v_pos"), 1e-4);
            let guided = velocity(n, self.sampling.guidance);
            assert_close(&key("v"), &host(guided.clone()), values("v"), 5e-4);
            let mean = level.transition.mean(self.latents(n), guided);
            assert_close(&key("mean"), &host(mean.clone()), values("mean"), 5e-4);
            assert_near(&key("std"), level.transition.std, number(&expected["std"]), 1e-6);

            let means = mean.repeat_dim(0, level.children_per_node);
            let kind = self.sampling.log_prob;
            let log_probs = level.transition.log_prob(level.children.clone(), means.clone(), kind);
            let log_probs = to_f64(log_probs.expect("a density")).expect("values");
            let slopes = level
                .transition
                .log_prob_derivative(level.children.clone(), means, kind)
                .expect("a density");
            let slopes: Vec<f32> = host(slopes);
            let mut derivative = vec![0.0; values("v_grad").len()];
            for (child, log_prob) in log_probs.iter().enumerate() {
                let advantage = advantages[level.edges()][child];
                let edge = self
                    .objective
                    .clipped
                    .edge(*log_prob, level.log_probs[child], advantage)
                    .expect("a loss");
                let of = |name: &str| number(&expected[name][child]);
                assert_near(&key("logp"), *log_prob, of("logp"), 1e-5);
                assert_near(&key("ratio"), edge.ratio, of("ratio"), 1e-5);
                let clamp = self.objective.clipped.advantage_clamp;
                assert_near(&key("advantage"), advantage.clamp(-clamp, clamp), of("advantage"), 1e-6);
                assert_near(&key("edge_loss"), edge.loss, of("edge_loss"), 1e-5 * clamp);
                assert_eq!(
                    Some(edge.clipped),
                    expected["clip_acts"][child].as_bool(),
                    "{} of child {child}",
                    key("clip")
                );
                for (sum, slope) in derivative.iter_mut().zip(&slopes[child * values("v_grad").len()..]) {
                    *sum += (edge.derivative * f64::from(*slope)) as f32;
                }
            }
            let tolerance = (GRADIENT_RELATIVE * norm(values("v_grad"))) as f32;
            assert_close(&key("v_grad"), &derivative, values("v_grad"), tolerance);
            let node = self.gradient(policy, network, layout, &[TrainingNode { level: n, row: 0 }]);
            let tolerance = self.loss_tolerance(level.children_per_node);
            assert_near(&key("node_loss"), node.loss, number(&expected["node_loss"]), tolerance);
        }
    }
}

/// A gradient that is exactly zero in the reference must be exactly zero here.
#[track_caller]
fn assert_gradient(what: &str, found: &[f32], expected: &[f32]) {
    let size = norm(expected);
    let tolerance = if size == 0.0 {
        0.0
    } else {
        (GRADIENT_RELATIVE * size).max(GRADIENT_ABSOLUTE)
    };
    assert_close(what, found, expected, tolerance as f32);
}

/// Compares trained tensors with those of the fixture below `prefix`, which must be the same set.
#[track_caller]
fn assert_tensors(
    layout: &Layout,
    flat: &[f32],
    reference: &Fixture,
    prefix: &str,
    check: impl Fn(&str, &[f32], &[f32]),
) {
    let expected = reference.below(prefix);
    let found = layout.to_stored(flat);
    assert_eq!(
        found.len(),
        expected.len(),
        "the trained tensors are not those of {prefix}"
    );
    for (key, (_, values)) in found {
        check(&format!("{prefix}{key}"), &values, expected[key.as_str()]);
    }
}

/// Both adapter layouts: every node's numbers, the total loss, every adapter gradient, its norm, and the weights after
/// one and two steps of clipping and AdamW with gradients computed anew.
#[test]
fn lora_loss_gradient_and_steps_parity() {
    let reference = Reference::read();
    for folder in ["lora_peft", "lora_diffusers"] {
        println!("== {folder}");
        let (mut network, keys) = reference.network(Some(folder));
        let layout = Layout::of(&network, &keys);
        reference.check_nodes("lora", &network, &layout);
        let expected = &reference.fixture.expected["lora"];
        let settings = &reference.fixture.inputs["optimizer"];
        let optimiser = Optimiser::new(
            OptimiserConfig {
                learning_rate: number(&settings["lr"]),
                beta_1: number(&settings["betas"][0]),
                beta_2: number(&settings["betas"][1]),
                epsilon: number(&settings["eps"]),
                weight_decay: number(&settings["weight_decay"]),
                gradient_clip: number(&settings["max_grad_norm"]),
            },
            None,
        );
        let mut state = OptimiserState::new(layout.gather(&network), false);
        for (step, tolerance) in [(1, 1e-5), (2, 3e-5)] {
            let gradient = reference.gradient("lora", &network, &layout, &[]);
            let tolerance_of_sum = reference.loss_tolerance(reference.edges());
            let total = number(&expected[format!("total_loss_step{step}")]);
            assert_near("loss", gradient.loss, total, tolerance_of_sum);
            if step == 1 {
                assert_near(
                    "total loss",
                    gradient.loss,
                    number(&expected["total_loss"]),
                    tolerance_of_sum,
                );
                let mean = gradient.loss / reference.edges() as f64;
                assert_near(
                    "mean loss",
                    mean,
                    number(&expected["mean_loss"]),
                    reference.loss_tolerance(1),
                );
                let flat = to_host(&gradient.gradient).expect("values");
                assert_tensors(
                    &layout,
                    &flat,
                    &reference.fixture,
                    "lora.grad.base_model.model.",
                    assert_gradient,
                );
            }
            let report = optimiser.step(&mut state, gradient.gradient, &layout).expect("a step");
            let norm = number(&expected[format!("grad_norm_step{step}")]);
            assert_near("gradient norm", report.gradient_norm, norm, 1e-3 * norm);
            let flat = to_host(&state.parameters).expect("values");
            let prefix = format!("lora.after{step}.base_model.model.");
            assert_tensors(&layout, &flat, &reference.fixture, &prefix, |what, found, expected| {
                assert_close(what, found, expected, tolerance);
            });
            network = layout.scatter(network, &state.parameters);
        }
    }
}

/// All weights trained: every node's numbers, the norm of every tensor's gradient, five gradients element by element.
/// The trained tensors are those that PyTorch has gradients for, so the position table is not among them.
#[test]
fn full_gradient_parity() {
    let reference = Reference::read();
    let (network, keys) = reference.network(None);
    let layout = Layout::of(&network, &keys);
    reference.check_nodes("full", &network, &layout);
    let expected = &reference.fixture.expected["full"];
    let gradient = reference.gradient("full", &network, &layout, &[]);
    let tolerance = reference.loss_tolerance(reference.edges());
    assert_near("total loss", gradient.loss, number(&expected["total_loss"]), tolerance);
    let flat = to_host(&gradient.gradient).expect("values");
    assert_near(
        "gradient norm",
        norm(&flat),
        number(&expected["grad_norm"]),
        1e-3 * number(&expected["grad_norm"]),
    );
    let found = layout.to_stored(&flat);
    let norms: BTreeMap<String, f64> = serde_json::from_value(expected["grad_norms"].clone()).expect("norms by name");
    let without: Vec<String> = serde_json::from_value(expected["no_grad"].clone()).expect("names");
    for (key, (_, values)) in &found {
        let expected = if without.contains(key) { 0.0 } else { norms[key] };
        assert_near(
            key,
            norm(values),
            expected,
            (GRADIENT_RELATIVE * expected).max(GRADIENT_ABSOLUTE),
        );
    }
    assert_eq!(
        found.len(),
        norms.len() + without.iter().filter(|key| !norms.contains_key(*key)).count()
    );
    let whole = reference.fixture.below("full.grad.");
    assert!(!whole.is_empty());
    for (key, expected) in whole {
        assert_gradient(key, &found[key].1, expected);
    }
}

/// From text to picture: encoding, guided Euler steps one by one and in one call, decoding, rounding.
#[test]
fn guided_sampling_parity() {
    let device = Device::flex();
    let fixture = Fixture::read("sd3_io");
    let settings = &fixture.inputs["sampling"];
    let text = |key: &str| settings[key].as_str().expect("a text").to_owned();
    let pipeline =
        Pipeline::open(&root().join("sd3"), index(&fixture.inputs["t5_length"]), true, &device).expect("a pipeline");
    let table = PromptTable::new(
        &pipeline
            .text
            .encode(&[text("prompt"), text("negative_prompt")])
            .expect("embeddings"),
    );
    let steps = index(&settings["steps"]);
    let schedule = Schedule::new(
        ScheduleKind::Diffusers,
        &pipeline.scheduler,
        steps,
        TimestepRounding::Exact,
    );
    let noise: Tensor<4> = fixture.tensor("in.sampling.noise", &device);
    let [_, channels, height, width] = noise.dims();
    let sampling = Sampling {
        schedule: schedule.expect("a schedule"),
        kernel: Kernel::FlowSde,
        noise_level: 0.7,
        guidance: number(&settings["guidance"]),
        log_prob: LogProb::default(),
        shape: [channels, height, width],
        micro_batch: 64,
    };
    let expected = fixture.values("sampling.latents");
    let size = channels * height * width;
    let mut latents = noise.clone();
    for step in 0..steps {
        let velocity = sampling.velocity(&pipeline.transformer, &latents, step, &table, &[0]);
        let transition = Kernel::Ode.transition(&sampling.schedule, step, 0.0).expect("a step");
        latents = transition.mean(latents, velocity);
        let what = format!("latents after step {step}");
        assert_close(
            &what,
            &host(latents.clone()),
            &expected[(step + 1) * size..(step + 2) * size],
            3e-4,
        );
    }
    let at_once = sampling
        .deterministic(&pipeline.transformer, noise, &table, &[0])
        .expect("finite latents");
    assert_eq!(
        host(at_once.clone()),
        host(latents),
        "the sampler of evaluations takes the same steps"
    );

    assert_close(
        "decoded",
        &host(pipeline.decode(&at_once, 1)),
        fixture.values("sampling.decoded"),
        3e-4,
    );
    let pictures = draw(&pipeline, &at_once, 1).expect("a picture");
    let levels = pictures[0].as_raw();
    let expected = fixture.values("sampling.image");
    assert_eq!(levels.len(), expected.len());
    let differences: Vec<f32> = levels
        .iter()
        .zip(expected)
        .map(|(a, b)| (f32::from(*a) - b).abs())
        .collect();
    let changed = differences.iter().filter(|d| **d > 0.0).count();
    println!("{changed} of {} levels differ", levels.len());
    assert!(differences.iter().all(|d| *d <= 1.0), "a level is off by more than one");
    assert!(
        changed * 1000 <= levels.len(),
        "{changed} of {} levels differ",
        levels.len()
    );
}
