//! Leaves without a finite score: which are dropped, and that they count for nothing in credit and update.

use policy_sd3::lora;
use rewards::RewardScores;
use trainer::credit::{CreditRule, EdgeAdvantages};
use trainer::gaps::{NonFiniteScores, Selection};
use trainer::optimiser::to_host;
use trainer::rollout::Rollout;
use trainer::update::{NodeGradient, Objective, Update, nodes_left, training_nodes};
use tree_core::{Backup, Credit, LevelWeight, Mix, Normalisation, Plan, RewardMix, RunningRewards, Scope};

use crate::fixture::{assert_near, norm};
use crate::toy::{DRAW, INDICES, Toy, advantages, objective, relative_difference, table};

const GAP: f64 = f64::NAN;

fn scores(name: &str, values: &[f64]) -> RewardScores {
    RewardScores {
        name: name.into(),
        weight: 1.0,
        eval_only: false,
        values: values.to_vec(),
    }
}

fn select(rule: NonFiniteScores, rewards: &[RewardScores], prompts: &[usize]) -> Result<Selection, String> {
    let selection = rule.select(&rewards.iter().collect::<Vec<_>>(), prompts);
    selection.map_err(|error| error.to_string())
}

fn places(marks: &[bool], mark: bool) -> Vec<usize> {
    (0..marks.len()).filter(|&place| marks[place] == mark).collect()
}

/// Prompts 7, 3 and 5 with three leaves each. Reward `a` lacks leaf 1, `b` the leaves 1, 6 and 7. `drop-sample` drops
/// those three and with them leaf 8, whom nobody of prompt 5 is left to be compared with; `drop-group` drops all of
/// prompts 7 and 5. A reward that is infinite has no score either.
#[test]
fn rules_by_hand() {
    let prompts = [7, 7, 7, 3, 3, 3, 5, 5, 5];
    let a = scores("a", &[1.0, GAP, 2.0, 1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
    let b = scores("b", &[1.0, GAP, 2.0, 1.0, 2.0, 3.0, f64::INFINITY, GAP, 3.0]);
    let given = [a, b];
    let sample = select(NonFiniteScores::DropSample, &given, &prompts).expect("leaves are left");
    assert_eq!(places(&sample.kept, false), [1, 6, 7, 8]);
    assert_eq!(sample.non_finite, [("a".to_owned(), 1), ("b".to_owned(), 3)].into());
    assert_eq!(sample.dropped_prompts, [5]);
    assert_eq!((sample.dropped_leaves(), sample.is_whole()), (4, false));
    assert_eq!(
        sample.describe().expect("a description"),
        "4 of 9 leaves were dropped, among them all leaves of prompt 5, because these rewards gave no finite score: `a` \
         for 1, `b` for 3 (first: reward `a`, sample 1 of prompt 7: NaN)"
    );
    let group = select(NonFiniteScores::DropGroup, &given, &prompts).expect("leaves are left");
    assert_eq!(places(&group.kept, true), [3, 4, 5]);
    assert_eq!(group.dropped_prompts, [5, 7]);
    assert_eq!(group.non_finite, sample.non_finite);
    assert!(
        group
            .describe()
            .expect("a description")
            .contains("all leaves of prompts 5 and 7")
    );
}

/// Without gaps every rule keeps every leaf and has nothing to say.
#[test]
fn finite_scores_are_all_kept() {
    for rule in [
        NonFiniteScores::Error,
        NonFiniteScores::DropSample,
        NonFiniteScores::DropGroup,
    ] {
        let whole = select(rule, &[scores("a", &[1.0, 2.0])], &[0, 0]).expect("finite scores");
        assert_eq!((whole.kept.as_slice(), whole.describe()), (&[true, true][..], None));
        assert!(whole.is_whole() && whole.dropped_prompts.is_empty());
        assert_eq!(whole.non_finite, [("a".to_owned(), 0)].into());
    }
}

/// The default stops with reward, sample, prompt of the file, value and key. When nothing is left the message says so
/// and why.
#[test]
fn messages() {
    let refused = |rule: NonFiniteScores, values: &[f64], prompts: &[usize], expected: &[&str]| {
        let error = select(rule, &[scores("clip", values)], prompts).expect_err("refused");
        for part in expected {
            assert!(error.contains(part), "`{part}` is missing in: {error}");
        }
    };
    let (values, prompts) = ([1.0, 2.0, GAP, 3.0, 4.0, GAP], [4, 4, 4, 9, 9, 9]);
    let stopped = [
        "`clip`",
        "sample 2 of prompt 4",
        "NaN",
        "credit.non_finite_scores",
        "drop-sample",
    ];
    refused(NonFiniteScores::default(), &values, &prompts, &stopped);
    let nothing = [
        "no leaf is left",
        "6 leaves of 2 prompts",
        "`clip` for 2",
        "sample 2 of prompt 4",
    ];
    refused(NonFiniteScores::DropGroup, &values, &prompts, &nothing);
    // Two prompts with one leaf each left have nothing to compare.
    let few = ["no leaf is left", "4 leaves of 2 prompts"];
    refused(NonFiniteScores::DropSample, &[1.0, GAP, 3.0, GAP], &[0, 0, 1, 1], &few);
    refused(
        NonFiniteScores::DropSample,
        &[1.0, 2.0],
        &[0, 0, 0],
        &["`clip`", "2 leaves"],
    );
}

fn rule(credit: Credit, scope: Scope, non_finite_scores: NonFiniteScores) -> CreditRule {
    CreditRule {
        normalisation: Normalisation {
            scope,
            ..Normalisation::default()
        },
        mix: RewardMix::new(Mix::Advantage, [("main", 1.0)]).expect("a mix"),
        backup: Backup::Mean,
        credit,
        non_finite_scores,
    }
}

fn credited(
    rule: &CreditRule,
    toy: &Toy,
    rollout: &Rollout,
    indices: &[usize],
    values: &[f64],
) -> (EdgeAdvantages, RunningRewards) {
    let mut running = RunningRewards::default();
    let found = rule.advantages(rollout, &[scores("main", values)], &mut running, &toy.sampling, indices);
    (found.expect("advantages"), running)
}

/// By hand: one prompt, two levels of two children, scores 1, NaN, 5 and 3, as in `tree-core`'s example. The kept ones
/// have the mean 3 and the deviation √(8/3). The values of the two upper nodes are -2 and +1 over that: they differ by
/// ∓3. The lower leaves differ by ±2, and the leaf whose only sibling is dropped gets 0. The prompt counts 1, its upper
/// level has both its edges and its lower level three of four.
#[test]
fn edges_of_a_prompt_with_a_gap_by_hand() {
    let toy = Toy::new(4);
    let plan = Plan::windowed(4, &[0, 1], 2, 1).expect("a plan");
    let rollout = toy.roll_out_for(&plan, &toy.sampling, &table(&[0], &toy.device), &[4], DRAW);
    let rule = rule(Credit::Siblings, Scope::Group, NonFiniteScores::DropSample);
    let (found, _) = credited(&rule, &toy, &rollout, &[4], &[1.0, GAP, 5.0, 3.0]);
    let deviation = (8.0_f64 / 3.0).sqrt();
    let expected = [[-3.0, 3.0].as_slice(), &[0.0, 0.0, 2.0, -2.0]];
    for (level, expected) in rollout.levels.iter().zip(expected) {
        for (edge, expected) in found.edges[level.edges()].iter().zip(expected) {
            assert_near("edge", *edge, expected / deviation, 1e-7);
        }
    }
    let factors = found.edge_factors(&plan, LevelWeight::Path).expect("a leaf is dropped");
    assert_eq!(factors[rollout.levels[0].edges()], [1.0, 1.0]);
    let third = 4.0 / 3.0;
    assert_eq!(factors[rollout.levels[1].edges()], [third, 0.0, third, third]);
    assert_eq!(found.prompts_left(1), 1);
    assert_near("mean", found.mixed.total.batch_mean, 3.0, 1e-12);
    assert_near("effective children", found.effective_sample_size, 2.0, 1e-12);
    // Root mean square over the two nodes, around their mean of -1/2.
    assert_near("deviation of the values", found.value_std[0].1, 1.5 / deviation, 1e-7);
}

/// Dropping a prompt gives the edges, to the bit, of an iteration without it, under every rule, and running statistics
/// remember the others only.
#[test]
fn dropping_a_prompt_is_an_iteration_without_it() {
    let toy = Toy::new(4);
    let plan = Plan::windowed(4, &[0, 1], 2, 2).expect("a plan");
    let all = toy.roll_out(&plan, &toy.sampling);
    let without = [INDICES[0], INDICES[2]];
    let others = toy.roll_out_for(&plan, &toy.sampling, &table(&[0, 2], &toy.device), &without, DRAW);
    let values: Vec<f64> = (0..24).map(|i| f64::from(i * i % 7)).collect();
    let mut with_gap = values.clone();
    with_gap[8 + 3] = GAP;
    let rest = [&values[..8], &values[16..]].concat();
    let running = Scope::Running {
        window: 12,
        min_count: 4,
    };
    for credit in [
        Credit::Subtree,
        Credit::Siblings,
        Credit::Temporal,
        Credit::Trajectory,
        Credit::PerDepth,
    ] {
        for scope in [Scope::Group, Scope::GroupMeanBatchStd, Scope::Batch, running] {
            let rule = rule(credit, scope, NonFiniteScores::DropGroup);
            let (found, memory) = credited(&rule, &toy, &all, &INDICES, &with_gap);
            let (expected, expected_memory) = credited(&rule, &toy, &others, &without, &rest);
            assert_eq!(found.selection.dropped_prompts, [INDICES[1]]);
            assert_eq!(found.prompts_left(3), 2);
            assert_eq!(memory, expected_memory);
            assert_eq!(found.mixed, expected.mixed);
            for (level, other) in all.levels.iter().zip(&others.levels) {
                let count = level.edges().len() / 3;
                let edges = &found.edges[level.edges()];
                assert!(edges[count..2 * count].iter().all(|edge| *edge == 0.0));
                let kept = [&edges[..count], &edges[2 * count..]].concat();
                assert_eq!(kept, expected.edges[other.edges()], "{credit:?}, {scope:?}");
            }
        }
    }
}

/// A memory of scores takes in those that are left and no others, and stays as it was when an iteration is refused.
#[test]
fn running_statistics_remember_no_dropped_leaf() {
    let toy = Toy::new(3);
    let plan = Plan::windowed(3, &[0], 3, 1).expect("a plan");
    let rollout = toy.roll_out_for(&plan, &toy.sampling, &table(&[0], &toy.device), &[4], DRAW);
    let scope = Scope::Running {
        window: 8,
        min_count: 2,
    };
    let (_, memory) = credited(
        &rule(Credit::Subtree, scope, NonFiniteScores::DropSample),
        &toy,
        &rollout,
        &[4],
        &[1.0, GAP, 2.0],
    );
    let json = serde_json::to_value(&memory).expect("JSON");
    assert_eq!(json["rewards"]["main"]["4"], serde_json::json!([1.0, 2.0]));
    assert_eq!(json["total"]["4"], serde_json::json!([1.0, 2.0]));

    let mut untouched = RunningRewards::default();
    let refused = [scores("main", &[GAP, GAP, 2.0])];
    rule(Credit::Subtree, scope, NonFiniteScores::DropSample)
        .advantages(&rollout, &refused, &mut untouched, &toy.sampling, &[4])
        .expect_err("one leaf is left");
    assert_eq!(untouched, RunningRewards::default());
}

fn plan() -> Plan {
    Plan::windowed(6, &[0, 1, 3], 2, 1).expect("a plan")
}

/// The gradient over all nodes that are left.
fn gradient(update: &Update<'_>, rollout: &Rollout, edges: &[f64], scale: f64) -> NodeGradient {
    let nodes = nodes_left(rollout, update.edge_factors);
    update
        .gradient(rollout, edges, &nodes, scale)
        .expect("a finite gradient")
}

/// A prompt that is dropped leaves loss, gradient, ratios and divergence of an iteration without it, the mean over
/// prompts included; its nodes are not evaluated, and even a NaN in its edges would do nothing.
#[test]
fn a_dropped_prompt_is_not_in_the_update() {
    let toy = Toy::new(6);
    let reference = lora::detach(&toy.network);
    let objective = Objective {
        kl_beta: 0.3,
        ..objective(&plan(), 0.2)
    };
    let all = toy.roll_out(&plan(), &toy.sampling);
    let without = table(&[0, 2], &toy.device);
    let others = toy.roll_out_for(&plan(), &toy.sampling, &without, &[INDICES[0], INDICES[2]], DRAW);
    let mut edges = advantages(&all);
    let mut factors = vec![1.0; all.forest.len()];
    let mut of_others = vec![0.0; others.forest.len()];
    for (level, other) in all.levels.iter().zip(&others.levels) {
        let count = level.edges().len() / 3;
        let first = level.first_child;
        let kept = [
            &edges[first..first + count],
            &edges[first + 2 * count..first + 3 * count],
        ]
        .concat();
        of_others[other.edges()].copy_from_slice(&kept);
        edges[first + count..first + 2 * count].fill(f64::NAN);
        factors[first + count..first + 2 * count].fill(0.0);
    }
    let update = Update {
        reference: Some(&reference),
        edge_factors: Some(&factors),
        ..toy.update(&toy.sampling, &objective)
    };
    let found = gradient(&update, &all, &edges, 0.5);
    let update = Update {
        reference: Some(&reference),
        table: &without,
        ..toy.update(&toy.sampling, &objective)
    };
    let expected = gradient(&update, &others, &of_others, 0.5);
    assert_eq!(
        (found.nodes, found.ratios.count()),
        (expected.nodes, expected.ratios.count())
    );
    assert_eq!(found.nodes, 2 * training_nodes(&all).len() / 3);
    assert_near("loss", found.loss, expected.loss, 1e-6);
    assert_near("divergence", found.kl, expected.kl, 1e-6 * expected.kl);
    let difference = relative_difference(&found.gradient, &expected.gradient);
    println!("{difference:e}");
    assert!(difference <= 1e-5 && norm(&to_host(&found.gradient).expect("values")) > 1e-4);
}

/// The factor of an edge multiplies its loss: at ratio 1 that is the same as multiplying its advantage, and a dropped
/// edge has loss and gradient exactly 0.
#[test]
fn factors_multiply_the_loss_of_an_edge() {
    let toy = Toy::new(6);
    let objective = objective(&plan(), 0.2);
    let rollout = toy.roll_out(&plan(), &toy.sampling);
    let edges = advantages(&rollout);
    let factors: Vec<f64> = (0..edges.len()).map(|node| [0.0, 1.5, 1.0][node % 3]).collect();
    let scaled: Vec<f64> = edges.iter().zip(&factors).map(|(edge, factor)| edge * factor).collect();
    let with = |edges: &[f64], factors: Option<&[f64]>| {
        let update = Update {
            edge_factors: factors,
            ..toy.update(&toy.sampling, &objective)
        };
        gradient(&update, &rollout, edges, 1.0)
    };
    let (found, expected) = (with(&edges, Some(&factors)), with(&scaled, None));
    assert_near("loss", found.loss, expected.loss, 1e-9);
    let difference = relative_difference(&found.gradient, &expected.gradient);
    assert!(difference <= 1e-6, "{difference:e}");
    assert!(
        found.ratios.count() < expected.ratios.count(),
        "dropped edges are in no statistic"
    );

    let none = with(&edges, Some(&vec![0.0; edges.len()]));
    assert_eq!((none.nodes, none.loss, none.ratios.count()), (0, 0.0, 0));
    assert!(
        to_host(&none.gradient)
            .expect("values")
            .iter()
            .all(|value| *value == 0.0)
    );
}

/// Factors of 1 change no bit, and a node carries the divergence by the mean of its edges' factors: 2 and 0 are like 1
/// and 1 when the advantages are 0.
#[test]
fn factors_weigh_the_divergence_by_their_mean() {
    let toy = Toy::new(6);
    let reference = lora::detach(&toy.network);
    let objective = Objective {
        kl_beta: 0.3,
        ..objective(&plan(), 0.2)
    };
    let rollout = toy.roll_out(&plan(), &toy.sampling);
    let with = |edges: &[f64], factors: Option<&[f64]>| {
        let update = Update {
            reference: Some(&reference),
            edge_factors: factors,
            ..toy.update(&toy.sampling, &objective)
        };
        gradient(&update, &rollout, edges, 1.0)
    };
    let edges = advantages(&rollout);
    let ones = vec![1.0; edges.len()];
    let (plain, ones) = (with(&edges, None), with(&edges, Some(&ones)));
    assert_near("loss", ones.loss, plain.loss, 1e-12);
    let bits = |found: &NodeGradient| to_host(&found.gradient).expect("values");
    assert_eq!(bits(&ones), bits(&plain));

    let zero = vec![0.0; edges.len()];
    let mut uneven = zero.clone();
    for level in &rollout.levels {
        uneven[level.edges()]
            .chunks_mut(2)
            .for_each(|pair| pair.copy_from_slice(&[2.0, 0.0]));
    }
    let (plain, uneven) = (with(&zero, None), with(&zero, Some(&uneven)));
    assert!(plain.loss > 0.0);
    assert_near("loss", uneven.loss, plain.loss, 1e-9 * plain.loss);
    assert_eq!(uneven.kl, plain.kl);
    let difference = relative_difference(&uneven.gradient, &plain.gradient);
    assert!(difference <= 1e-6, "{difference:e}");
}
