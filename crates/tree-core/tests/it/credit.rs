//! Credit rules: values by hand, and what holds for every forest.

use proptest::prelude::*;
use tree_core::{Backup, BackupError, Credit, EdgeLogProbs};

use crate::support::{any_valued_forest, assert_all_close, forest};

/// Pins every rule on one tree. The root (value .3) has the children 1, .1, -.2:
/// temporal 1 - .3 = .7, .1 - .3 = -.2, -.2 - .3 = -.5;
/// siblings 1 - (.1 - .2)/2 = 1.05, .1 - (1 - .2)/2 = -.3, -.2 - (1 + .1)/2 = -.75;
/// per depth: squares .49 + .04 + .25 = .78, sample std √.39 = .6244998, so .7, -.2, -.5 over that.
#[test]
fn one_tree_by_hand() {
    let forest = forest(&[0], &[vec![3]]);
    let values = [0.3, 1.0, 0.1, -0.2];
    let edges = |credit: Credit| credit.edges(&forest, &values).expect("one value per node");
    assert_all_close(&edges(Credit::Subtree), &values, 0.0);
    assert_all_close(&edges(Credit::Trajectory), &values, 0.0);
    assert_all_close(&edges(Credit::Temporal), &[0.3, 0.7, -0.2, -0.5], 1e-15);
    assert_all_close(&edges(Credit::Siblings), &[0.3, 1.05, -0.3, -0.75], 1e-15);
    let std = 0.39_f64.sqrt() + 1e-8;
    assert_all_close(
        &edges(Credit::PerDepth),
        &[0.3, 0.7 / std, -0.2 / std, -0.5 / std],
        1e-15,
    );
}

/// Pins the trajectory rule on chains (DDPO, Flow-GRPO): the leaf's advantage on every edge of its own path.
#[test]
fn chains() {
    let forest = forest(&[0, 0, 1], &[vec![1], vec![1], vec![1]]);
    let values = Backup::Mean
        .values(&forest, &[1.0, -1.0, 0.5], EdgeLogProbs::NONE)
        .expect("finite values");
    let edges = Credit::Trajectory.edges(&forest, &values).expect("one value per node");
    for level in 0..4 {
        assert_eq!(edges[forest.level(level)], [1.0, -1.0, 0.5]);
    }
}

/// Pins the trajectory rule where a tree branches unevenly: the leaves below an edge count one each.
#[test]
fn trajectory_counts_leaves() {
    // The root has nodes 1 and 2; node 1 has 3 and 4; node 3 has the leaves 5 and 6. Leaves: 2, 4, 5, 6.
    let forest = forest(&[0], &[vec![2], vec![2, 0], vec![2, 0]]);
    let values = Backup::Mean
        .values(&forest, &[0.0, 6.0, 1.0, 2.0], EdgeLogProbs::NONE)
        .expect("finite values");
    let edges = Credit::Trajectory.edges(&forest, &values).expect("one value per node");
    // The edge above node 1: (6 + 1 + 2)/3 = 3, where the mean backup has (1.5 + 6)/2 = 3.75.
    assert_all_close(&edges[1..], &[3.0, 0.0, 1.5, 6.0, 1.0, 2.0], 1e-15);
    assert_all_close(&values[1..2], &[3.75], 1e-15);
}

/// Pins BranchGRPO's rule: depths are normalised apart, groups are normalised apart, nodes that are alone get 0, and so
/// do depths that do not vary.
#[test]
fn per_depth() {
    // Two groups. The first root has one child with two leaves (1 and 3); the second root one child with two equal
    // ones.
    let forest = forest(&[0, 1], &[vec![1], vec![2]]);
    let values = Backup::Mean
        .values(&forest, &[1.0, 3.0, 2.0, 2.0], EdgeLogProbs::NONE)
        .expect("finite values");
    let edges = Credit::PerDepth.edges(&forest, &values).expect("one value per node");
    let std = 2.0_f64.sqrt() + 1e-8;
    assert_all_close(&edges[2..], &[0.0, 0.0, -1.0 / std, 1.0 / std, 0.0, 0.0], 1e-15);
}

/// Pins that siblings that agree get exactly 0, whatever their number, so that a node may be skipped.
#[test]
fn agreement_is_exactly_zero() {
    for count in 2..30 {
        let forest = forest(&[0, 0], &[vec![count], vec![1]]);
        let leaves: Vec<f64> = (0..2 * count)
            .map(|leaf| if leaf < count { 0.1 } else { leaf as f64 })
            .collect();
        let values = Backup::Mean
            .values(&forest, &leaves, EdgeLogProbs::NONE)
            .expect("finite values");
        for credit in [Credit::Siblings, Credit::Temporal] {
            let edges = credit.edges(&forest, &values).expect("one value per node");
            assert!(
                edges[2..2 + count].iter().all(|edge| *edge == 0.0),
                "{credit:?} of {count}: {edges:?}"
            );
        }
    }
}

/// Pins the refusal of a slice for another forest, and that it changes nothing.
#[test]
fn refusals() {
    let forest = forest(&[0], &[vec![2]]);
    let mut values = [1.0, 2.0];
    let error = BackupError::NodeCount {
        what: "values",
        expected: 3,
        got: 2,
    };
    assert_eq!(Credit::Siblings.replace(&forest, &mut values), Err(error));
    assert_eq!(values, [1.0, 2.0]);
}

proptest! {
    /// Pins leave-one-out to its definition, its sum of zero per node under the mean backup, and 0 for only children.
    #[test]
    fn siblings((forest, leaves, _) in any_valued_forest()) {
        let values = Backup::Mean.values(&forest, &leaves, EdgeLogProbs::NONE).expect("finite values");
        let edges = Credit::Siblings.edges(&forest, &values).expect("one value per node");
        for node in 0..forest.len() {
            let children = forest.children(node);
            prop_assert!(edges[children.clone()].iter().sum::<f64>().abs() < 1e-12);
            for child in children.clone() {
                let others: Vec<f64> =
                    children.clone().filter(|&other| other != child).map(|other| values[other]).collect();
                let expected = match others.len() {
                    0 => 0.0,
                    count => values[child] - others.iter().sum::<f64>() / count as f64,
                };
                prop_assert!((edges[child] - expected).abs() < 1e-12);
                // Leave-one-out is the difference to the parent, stretched by k/(k - 1).
                if children.len() > 1 {
                    let k = children.len() as f64;
                    prop_assert!((edges[child] - (values[child] - values[node]) * k / (k - 1.0)).abs() < 1e-12);
                }
            }
        }
    }

    /// Pins that temporal credits add up along a path: from the root's value to the leaf's.
    #[test]
    fn temporal_credits_telescope((forest, leaves, logs) in any_valued_forest()) {
        let softmax = Backup::Softmax { temperature: 1.0, reduction: tree_core::LogProbReduction::Mean };
        let logs = EdgeLogProbs { mean_reduced: &logs, dimensions: 1 };
        let values = softmax.values(&forest, &leaves, logs).expect("finite values");
        let mut sums = Credit::Temporal.edges(&forest, &values).expect("one value per node");
        for node in 0..forest.len() {
            if let Some(parent) = forest.parent(node) {
                sums[node] += sums[parent];
            }
            prop_assert!((sums[node] - values[node]).abs() < 1e-12);
        }
    }

    /// Pins that roots keep their value under every rule and that credit is linear in the values, but for the
    /// normalising rule.
    #[test]
    fn roots_and_linearity((forest, leaves, _) in any_valued_forest(), factor in -3.0..3.0_f64) {
        let values = Backup::Mean.values(&forest, &leaves, EdgeLogProbs::NONE).expect("finite values");
        let scaled: Vec<f64> = values.iter().map(|value| factor * value).collect();
        for credit in [Credit::Subtree, Credit::Temporal, Credit::Siblings, Credit::Trajectory, Credit::PerDepth] {
            let edges = credit.edges(&forest, &values).expect("one value per node");
            prop_assert_eq!(&edges[forest.level(0)], &values[forest.level(0)]);
            if credit != Credit::PerDepth {
                let other = credit.edges(&forest, &scaled).expect("one value per node");
                for (edge, other) in edges.iter().zip(other) {
                    prop_assert!((factor * edge - other).abs() < 1e-9);
                }
            }
        }
    }
}
