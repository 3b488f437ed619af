//! The update: the ratio of the first one, what its gradient must not depend on, the loss by hand, the divergence.

use policy_sd3::lora;
use policy_sd3::transformer::Transformer;
use trainer::TrainError;
use trainer::optimiser::{Optimiser, OptimiserConfig, OptimiserState, to_device, to_host};
use trainer::rollout::{Rollout, Sampling};
use trainer::update::{NodeGradient, Objective, Update, training_nodes};
use tree_core::Plan;

use crate::fixture::{assert_near, host, norm};
use crate::toy::{DRAW, Toy, advantages, nudged, objective, relative_difference, table, waves};

fn plan() -> Plan {
    Plan::windowed(6, &[0, 1, 3], 2, 1).expect("a plan")
}

fn gradient(update: &Update<'_>, rollout: &Rollout, advantages: &[f64]) -> NodeGradient {
    update
        .gradient(rollout, advantages, &training_nodes(rollout), 1.0)
        .expect("a finite gradient")
}

/// A rollout in micro-batches of 6 with merged adapters, replayed with carried adapters in micro-batches of any size,
/// has ratio 1 within the limit of f32, on every edge.
#[test]
fn first_ratio_is_one_for_every_micro_batch() {
    let toy = Toy::new(6);
    let objective = objective(&plan(), 1e-4);
    let rollout = toy.roll_out(
        &plan(),
        &Sampling {
            micro_batch: 6,
            ..toy.sampling.clone()
        },
    );
    for micro_batch in [1, 2, 6, 64] {
        let sampling = Sampling {
            micro_batch,
            ..toy.sampling.clone()
        };
        let update = toy.update(&sampling, &objective);
        let found = gradient(&update, &rollout, &advantages(&rollout));
        let worst = found.worst.expect("edges");
        println!("micro-batch {micro_batch}: {:e}", worst.distance);
        assert!(worst.distance <= 1e-5, "micro-batch {micro_batch}: {worst:?}");
        assert!(found.ratios.maximum().max(-found.ratios.minimum()) <= 1e-5);
        assert_eq!(found.ratios.clip_fraction(), 0.0);
        update.check_first_ratio(&rollout, &found, 1e-5).expect("a ratio of 1");
    }
}

/// When rollout and update do not compute the same network, the check names iteration, step, σ, std and both values.
#[test]
fn a_first_ratio_other_than_one_stops_the_run() {
    let mut toy = Toy::new(6);
    let objective = objective(&plan(), 0.2);
    let rollout = toy.roll_out(&plan(), &toy.sampling);
    toy.network = nudged(&toy.layout, toy.network, 0.05);
    let update = toy.update(&toy.sampling, &objective);
    let found = gradient(&update, &rollout, &advantages(&rollout));
    let worst = found.worst.expect("edges");
    let error = update
        .check_first_ratio(&rollout, &found, 1e-5)
        .expect_err("a moved network");
    let level = &rollout.levels[worst.level];
    assert!(matches!(error, TrainError::Ratio { iteration: 5, step, .. } if step == level.step));
    let message = error.to_string();
    let parts = [
        "iteration 5".to_owned(),
        format!("step {}", level.step),
        format!("σ = {:.6}", level.sigma),
        format!("std = {:.6}", level.transition.std),
        format!("{:.9}", worst.stored),
        format!("{:.9}", worst.replayed),
    ];
    for part in parts {
        assert!(message.contains(&part), "`{part}` is missing in: {message}");
    }
    assert!(worst.distance > 1e-5 && level.log_probs.contains(&worst.stored));
}

/// The gradient, the loss and the ratios are the same for every micro-batch; a last part that is not full counts too.
#[test]
fn gradient_does_not_depend_on_the_micro_batch() {
    let toy = Toy::new(6);
    let objective = Objective {
        kl_beta: 0.3,
        ..objective(&plan(), 0.2)
    };
    let rollout = toy.roll_out(&plan(), &toy.sampling);
    let reference = lora::detach(&toy.network);
    let with = |micro_batch: usize| {
        let sampling = Sampling {
            micro_batch,
            ..toy.sampling.clone()
        };
        let update = Update {
            reference: Some(&reference),
            ..toy.update(&sampling, &objective)
        };
        gradient(&update, &rollout, &advantages(&rollout))
    };
    let whole = with(64);
    assert!(norm(&to_host(&whole.gradient).expect("values")) > 1e-4);
    for micro_batch in [1, 7] {
        let split = with(micro_batch);
        let difference = relative_difference(&split.gradient, &whole.gradient);
        println!("micro-batch {micro_batch}: {difference:e}");
        assert!(difference <= 1e-5, "micro-batch {micro_batch}: {difference:e}");
        assert_near("loss", split.loss, whole.loss, 1e-6);
        assert_near("divergence", split.kl, whole.kl, 1e-6 * whole.kl);
        assert_eq!((split.nodes, split.ratios.count()), (whole.nodes, whole.ratios.count()));
    }
}

/// Gradients of parts of the nodes add up to that of all, so several optimiser steps leave no node out.
#[test]
fn parts_add_up() {
    let toy = Toy::new(6);
    let objective = objective(&plan(), 0.2);
    let rollout = toy.roll_out(&plan(), &toy.sampling);
    let update = toy.update(&toy.sampling, &objective);
    let values = advantages(&rollout);
    let nodes = training_nodes(&rollout);
    assert_eq!(nodes.len(), plan().counts(3).expect("counts").training_nodes);
    // Every third node, so that a part has gaps in its levels.
    let sum = (0..3)
        .map(|part| {
            let some: Vec<_> = nodes.iter().copied().skip(part).step_by(3).collect();
            update
                .gradient(&rollout, &values, &some, 1.0)
                .expect("a gradient")
                .gradient
        })
        .reduce(|a, b| a + b)
        .expect("three parts");
    let whole = gradient(&update, &rollout, &values);
    let difference = relative_difference(&sum, &whole.gradient);
    assert!(difference <= 1e-5, "{difference:e}");
}

/// The loss by hand. One prompt, one stochastic step with two children, ratio 1, advantages 10 (clamped to 5) and −3,
/// weight ½ per edge: −½·5 + ½·3 = −1; a scale of 4 makes it −4.
#[test]
fn loss_of_one_node_by_hand() {
    let toy = Toy::new(3);
    let plan = Plan::windowed(3, &[0], 2, 1).expect("a plan");
    let objective = objective(&plan, 0.2);
    let rollout = toy.roll_out_for(&plan, &toy.sampling, &table(&[0], &toy.device), &[0], DRAW);
    let mut edges = vec![f64::NAN; rollout.forest.len()];
    edges[rollout.levels[0].edges()].copy_from_slice(&[10.0, -3.0]);
    let update = toy.update(&toy.sampling, &objective);
    let found = update
        .gradient(&rollout, &edges, &training_nodes(&rollout), 4.0)
        .expect("a gradient");
    assert_near("loss", found.loss, -4.0, 1e-5);
}

/// The gradient is the derivative of the loss: along it, a central difference gives its squared norm.
#[test]
fn gradient_is_the_slope_of_the_loss() {
    let mut toy = Toy::new(6);
    let reference = lora::detach(&toy.network);
    let objective = Objective {
        kl_beta: 0.5,
        ..objective(&plan(), 0.5)
    };
    let rollout = toy.roll_out(&plan(), &toy.sampling);
    let values = advantages(&rollout);
    let start = toy.layout.gather(&toy.network);
    let along = |toy: &Toy| {
        let update = Update {
            reference: Some(&reference),
            ..toy.update(&toy.sampling, &objective)
        };
        gradient(&update, &rollout, &values)
    };
    let slope = along(&toy).gradient;
    let size = norm(&to_host(&slope).expect("values"));
    let length = 2e-2;
    let mut loss_at = |distance: f64| {
        let moved = start.clone() + slope.clone() * (distance / size);
        toy.network = toy.layout.scatter(toy.network.clone(), &moved);
        along(&toy).loss
    };
    let difference = (loss_at(length) - loss_at(-length)) / (2.0 * length);
    println!("slope {difference}, norm {size}");
    assert!(
        (difference / size - 1.0).abs() < 1e-2,
        "slope {difference}, norm of the gradient {size}"
    );
}

/// With advantages of 0 and no divergence there is nothing to learn: loss and gradient are exactly 0.
#[test]
fn no_advantage_and_no_divergence_is_exactly_zero() {
    let toy = Toy::new(6);
    let objective = objective(&plan(), 0.2);
    let rollout = toy.roll_out(&plan(), &toy.sampling);
    let found = gradient(
        &toy.update(&toy.sampling, &objective),
        &rollout,
        &vec![0.0; rollout.forest.len()],
    );
    assert_eq!(found.loss, 0.0);
    assert!(to_host(&found.gradient).expect("values").iter().all(|v| *v == 0.0));
}

/// The divergence alone has a gradient, one step along it brings the policy nearer to the reference, and its value is
/// `mean((mean−reference)²)/(2·std²)`, the mean over the training nodes.
#[test]
fn divergence_pulls_back_to_the_reference() {
    let mut toy = Toy::new(6);
    let reference = lora::detach(&toy.network);
    let objective = Objective {
        kl_beta: 1.0,
        ..objective(&plan(), 0.2)
    };
    let rollout = toy.roll_out(&plan(), &toy.sampling);
    let zero = vec![0.0; rollout.forest.len()];
    let measure = |toy: &Toy| {
        let update = Update {
            reference: Some(&reference),
            ..toy.update(&toy.sampling, &objective)
        };
        gradient(&update, &rollout, &zero)
    };
    let before = measure(&toy);
    let (mut sum, mut nodes) = (0.0, 0.0);
    for level in &rollout.levels {
        let velocity = |network| {
            host(
                toy.sampling
                    .velocity(network, &level.parents, level.step, &toy.table, &level.prompts),
            )
        };
        let (ours, theirs) = (velocity(&toy.network), velocity(&reference));
        let squares: f64 = ours.iter().zip(&theirs).map(|(a, b)| f64::from(a - b).powi(2)).sum();
        let per_node = ours.len() as f64 / level.prompts.len() as f64;
        // The means differ by b times the difference of the velocities.
        sum += squares / per_node * level.transition.b.powi(2) / (2.0 * level.transition.std.powi(2));
        nodes += level.prompts.len() as f64;
    }
    assert_near("divergence", before.kl, sum / nodes, 1e-4 * before.kl);
    assert!(before.kl > 0.0 && norm(&to_host(&before.gradient).expect("values")) > 0.0);

    let config = OptimiserConfig {
        learning_rate: 1e-3,
        beta_1: 0.9,
        beta_2: 0.999,
        epsilon: 1e-8,
        weight_decay: 0.0,
        gradient_clip: 1.0,
    };
    let mut state = OptimiserState::new(toy.layout.gather(&toy.network), false);
    Optimiser::new(config, None)
        .step(&mut state, before.gradient, &toy.layout)
        .expect("a step");
    toy.network = toy.layout.scatter(toy.network.clone(), &state.parameters);
    let after = measure(&toy);
    assert!(after.kl < before.kl, "{} after a step, {} before", after.kl, before.kl);
}

/// The reference is the base to the bit whatever the adapter holds, and the policy is not.
#[test]
fn reference_is_the_base_network() {
    let mut toy = Toy::new(3);
    let velocity = |toy: &Toy, network: &Transformer| {
        let latents = waves([1, 4, 4, 4], 0.0, &toy.device);
        host(toy.sampling.velocity(network, &latents, 1, &toy.table, &[1]))
    };
    let reference = lora::detach(&toy.network);
    let at_start = velocity(&toy, &reference);
    toy.network = nudged(&toy.layout, toy.network, 0.2);
    assert_eq!(velocity(&toy, &lora::detach(&toy.network)), at_start);
    assert_ne!(velocity(&toy, &toy.network), at_start);
    let zeros = to_device(vec![0.0; toy.layout.len()], &toy.device);
    let off = toy.layout.scatter(toy.network.clone(), &zeros);
    assert_eq!(velocity(&toy, &off), at_start, "an adapter of zeros adds nothing");
}

/// A log-prob that is not finite stops the update with iteration and step.
#[test]
fn non_finite_values_stop_the_update() {
    let toy = Toy::new(6);
    let objective = objective(&plan(), 0.2);
    let mut rollout = toy.roll_out(&plan(), &toy.sampling);
    let values = advantages(&rollout);
    rollout.levels[1].log_probs[0] = f64::NAN;
    let update = toy.update(&toy.sampling, &objective);
    let error = update
        .gradient(&rollout, &values, &training_nodes(&rollout), 1.0)
        .expect_err("a bad value");
    let message = error.to_string();
    assert!(
        message.contains("iteration 5, step 1") && message.contains("not finite"),
        "{message}"
    );
}
