//! Rollouts: what they cost, what their noise is, and what they must not depend on.

use std::collections::HashSet;

use burn::tensor::Tensor;
use policy_sd3::guidance::guided_velocity;
use policy_sd3::kernel::Kernel;
use policy_sd3::lora;
use trainer::rollout::{Draw, Rollout, Sampling};
use trainer::run::draw_prompts;
use trainer::update::training_nodes;
use tree_core::Plan;

use crate::fixture::{assert_close, host, largest_difference};
use crate::toy::{DRAW, INDICES, Toy, advantages, objective, table};

fn window(start: usize, width: usize) -> Vec<usize> {
    (start..start + width).collect()
}

/// For every start of the window, rollout and update run exactly as many evaluations as the plan counts, which is
/// `i + Σ_{j<w} k^j + k^w·(T−i−w)` of a tree in the rollout and `(k^w − 1)/(k − 1)` in the update.
#[test]
fn evaluations_are_those_of_the_plan() {
    let toy = Toy::new(10);
    let expected = [202, 176, 150, 124, 98, 72, 46];
    for (start, evaluations) in expected.into_iter().enumerate() {
        let (steps, children, width) = (10, 3usize, 3);
        let plan = Plan::windowed(steps, &window(start, width), children, 1).expect("a plan");
        let rollout = toy.roll_out_for(&plan, &toy.sampling, &table(&[0], &toy.device), &[5], DRAW);
        let inside: usize = (0..width as u32).map(|j| children.pow(j)).sum();
        assert_eq!(evaluations, start + inside + children.pow(3) * (steps - start - width));
        assert_eq!(rollout.evaluations, evaluations, "start {start}");
        assert_eq!(
            rollout.evaluations,
            plan.counts_per_prompt().evaluations,
            "start {start}"
        );
        assert_eq!(rollout.leaves.dims(), [27, 4, 4, 4]);
        assert_eq!(rollout.forest.leaf_count(), 27);

        let objective = objective(&plan, 0.2);
        let nodes = training_nodes(&rollout);
        let update = toy.update(&toy.sampling, &objective);
        let gradient = update
            .gradient(&rollout, &advantages(&rollout), &nodes, 1.0)
            .expect("a gradient");
        assert_eq!((nodes.len(), gradient.nodes), (13, 13), "start {start}");
        assert_eq!(gradient.ratios.count(), 39);
    }
}

/// Several prompts with several trees each: counts multiply, every leaf knows its prompt, and no prompt is dropped.
#[test]
fn trees_and_prompts_multiply() {
    let toy = Toy::new(4);
    let plan = Plan::windowed(4, &[1], 2, 2).expect("a plan");
    let rollout = toy.roll_out(&plan, &toy.sampling);
    assert_eq!(
        rollout.evaluations,
        plan.counts(INDICES.len()).expect("counts").evaluations
    );
    assert_eq!(rollout.leaf_prompts, [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]);
    assert_eq!(rollout.levels[0].prompts, [0, 0, 1, 1, 2, 2]);
}

fn blocks(tensor: &Tensor<4>) -> Vec<Vec<u32>> {
    let size: usize = tensor.dims()[1..].iter().product();
    host(tensor.clone())
        .chunks(size)
        .map(|block| block.iter().map(|v| v.to_bits()).collect())
        .collect()
}

/// The standardised noise that made a level's children.
fn drawn_noise(toy: &Toy, rollout: &Rollout, level: usize) -> Vec<Vec<u32>> {
    let level = &rollout.levels[level];
    let network = lora::merge(&toy.network);
    let velocity = toy
        .sampling
        .velocity(&network, &level.parents, level.step, &toy.table, &level.prompts);
    let mean = trainer::rollout::repeat_rows(
        level.transition.mean(level.parents.clone(), velocity),
        level.children_per_node,
    );
    // Rounded to three decimals, so that equal noise at different means would still be found equal.
    let noise = (level.children.clone() - mean) / level.transition.std;
    blocks(&((noise * 1000.0).round() + 0.0))
}

/// No two trees share their first noise, and no two children of a rollout share theirs: not siblings, cousins, trees,
/// prompts, steps or iterations.
#[test]
fn nothing_shares_noise() {
    let toy = Toy::new(5);
    let plan = Plan::windowed(5, &[0, 1], 2, 2).expect("a plan");
    let mut seen = HashSet::new();
    let mut count = 0;
    for iteration in 0..2 {
        let draw = Draw { seed: 11, iteration };
        let rollout = toy.roll_out_for(&plan, &toy.sampling, &toy.table, &INDICES, draw);
        let drawn = [
            blocks(&rollout.levels[0].parents),
            drawn_noise(&toy, &rollout, 0),
            drawn_noise(&toy, &rollout, 1),
        ];
        for block in drawn.into_iter().flatten() {
            count += 1;
            seen.insert(block);
        }
    }
    assert_eq!(count, 2 * (6 + 12 + 24));
    assert_eq!(seen.len(), count);
}

/// A prompt that comes twice in one iteration grows further trees, not the same ones again.
#[test]
fn a_prompt_that_comes_twice_grows_other_trees() {
    let toy = Toy::new(4);
    let plan = Plan::windowed(4, &[1], 2, 2).expect("a plan");
    let rollout = toy.roll_out_for(&plan, &toy.sampling, &table(&[0, 1, 0], &toy.device), &[4, 9, 4], DRAW);
    let distinct: HashSet<_> = blocks(&rollout.leaves).into_iter().collect();
    assert_eq!(distinct.len(), 12);
}

/// Latents, means and densities are the same for every micro-batch.
#[test]
fn micro_batch_does_not_matter() {
    let toy = Toy::new(5);
    let plan = Plan::windowed(5, &[1, 2], 3, 1).expect("a plan");
    let whole = toy.roll_out(&plan, &toy.sampling);
    for micro_batch in [1, 4, 7] {
        let sampling = Sampling {
            micro_batch,
            ..toy.sampling.clone()
        };
        let split = toy.roll_out(&plan, &sampling);
        let what = format!("leaves in micro-batches of {micro_batch}");
        assert_close(&what, &host(split.leaves), &host(whole.leaves.clone()), 1e-5);
        for (a, b) in split.levels.iter().zip(&whole.levels) {
            for (a, b) in a.log_probs.iter().zip(&b.log_probs) {
                assert!((a - b).abs() < 1e-5, "{a} and {b}");
            }
        }
    }
}

/// A prompt's latents do not depend on which prompts share its iteration, nor on its place among them.
#[test]
fn company_does_not_matter() {
    let toy = Toy::new(5);
    let plan = Plan::windowed(5, &[0, 1], 2, 2).expect("a plan");
    let together = toy.roll_out(&plan, &toy.sampling);
    let alone = toy.roll_out_for(&plan, &toy.sampling, &table(&[1], &toy.device), &INDICES[1..2], DRAW);
    let leaves = plan.counts_per_prompt().leaves;
    let own = together.leaves.narrow(0, leaves, leaves);
    assert_close("one prompt alone", &host(alone.leaves), &host(own), 1e-5);
}

/// The deterministic tail of a rollout is what evaluation's sampler does from the same latents: the steps after the
/// window, bit for bit.
#[test]
fn tail_is_the_evaluation_sampler() {
    let toy = Toy::new(5);
    let plan = Plan::windowed(5, &[1], 2, 1).expect("a plan");
    let rollout = toy.roll_out(&plan, &toy.sampling);
    let network = lora::merge(&toy.network);
    let mut latents = rollout.levels[0].children.clone();
    for step in 2..5 {
        let velocity = toy
            .sampling
            .velocity(&network, &latents, step, &toy.table, &rollout.leaf_prompts);
        latents = Kernel::Ode
            .transition(&toy.sampling.schedule, step, 0.0)
            .expect("a step")
            .mean(latents, velocity);
    }
    assert_eq!(host(latents), host(rollout.leaves));
}

/// The guided velocity is `v_u + g·(v_c − v_u)` with v_u of the empty prompt's row; at a guidance of 1 it is v_c to the
/// bit, and swapping the two changes it.
#[test]
fn guidance_combines_both_halves() {
    let toy = Toy::new(4);
    let latents = crate::toy::waves([2, 4, 4, 4], 0.5, &toy.device);
    let velocity = |rows: [usize; 2], guidance: f64| {
        host(guided_velocity(
            &toy.network,
            latents.clone(),
            700.0,
            &toy.table,
            &rows,
            guidance,
        ))
    };
    // Row 3 of the table is the empty prompt's.
    let (conditional, unconditional) = (velocity([0, 2], 1.0), velocity([3, 3], 1.0));
    assert_eq!(velocity([0, 2], 0.5), conditional);
    let combine = |c: &[f32], u: &[f32]| c.iter().zip(u).map(|(c, u)| u + 3.0 * (c - u)).collect::<Vec<_>>();
    assert_close(
        "guided",
        &velocity([0, 2], 3.0),
        &combine(&conditional, &unconditional),
        1e-5,
    );
    assert!(largest_difference(&velocity([0, 2], 3.0), &combine(&unconditional, &conditional)) > 1e-2);
}

/// The rollout of moved weights is another one: nothing holds on to the weights of the start.
#[test]
fn rollout_sees_new_weights() {
    let mut toy = Toy::new(4);
    let plan = Plan::windowed(4, &[1], 2, 1).expect("a plan");
    let before = host(toy.roll_out(&plan, &toy.sampling).leaves);
    toy.network = crate::toy::nudged(&toy.layout, toy.network, 0.01);
    let after = host(toy.roll_out(&plan, &toy.sampling).leaves);
    assert!(before.iter().zip(&after).any(|(a, b)| (a - b).abs() > 1e-5));
    assert!(
        !toy.roll_out(&plan, &toy.sampling).leaves.is_autodiff(),
        "sampling tracks no gradients"
    );
}

/// Whatever the numbers, every prompt comes once per pass through the file, and the draw is a function of its
/// arguments.
#[test]
fn prompts_come_once_per_pass() {
    for (per_iteration, prompts) in [(3, 5), (1, 4), (5, 5), (7, 5), (8, 2)] {
        let iterations = 2 * prompts as u64;
        let draws: Vec<Vec<usize>> = (0..iterations)
            .map(|i| draw_prompts(9, i, per_iteration, prompts))
            .collect();
        assert!(draws.iter().all(|draw| draw.len() == per_iteration));
        let walk: Vec<usize> = draws.concat();
        for pass in walk.chunks_exact(prompts) {
            let distinct: HashSet<_> = pass.iter().collect();
            assert_eq!(distinct.len(), prompts, "{per_iteration} of {prompts}: {pass:?}");
        }
        assert_eq!(
            draw_prompts(9, 1, per_iteration, prompts),
            draws[1],
            "asked out of order"
        );
    }
}

/// Passes differ in their order, iterations in their prompts, and seeds in both.
#[test]
fn prompts_differ_by_iteration_and_seed() {
    let pass = |seed, number| draw_prompts(seed, number, 50, 50);
    assert_ne!(pass(1, 0), pass(1, 1));
    assert_ne!(pass(1, 0), pass(2, 0));
    assert_ne!(draw_prompts(1, 0, 3, 50), draw_prompts(1, 1, 3, 50));
    assert_ne!(pass(1, 0), (0..50).collect::<Vec<_>>());
}
