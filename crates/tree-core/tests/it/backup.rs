//! Backups: values by hand, and what holds for every forest.

use proptest::prelude::*;
use tree_core::{Backup, BackupError, EdgeLogProbs, Forest, LogProbReduction};

use crate::support::{any_valued_forest, assert_all_close, assert_close, forest};

const SOFTMAX: Backup = Backup::Softmax {
    temperature: 1.0,
    reduction: LogProbReduction::Mean,
};

fn log_probs(mean_reduced: &[f64]) -> EdgeLogProbs<'_> {
    EdgeLogProbs {
        mean_reduced,
        dimensions: 1,
    }
}

/// Pins the worked example: children 1, .1, -.2 with weights .6, .3, .1 give .6 + .03 - .02 = .61 (and not .64), and an
/// effective sample size of 1/(.36 + .09 + .01) = 2.1739. A softmax of ln(weight) has just these weights.
#[test]
fn worked_example() {
    let forest = forest(&[0], &[vec![3]]);
    let logs = [0.0, 0.6_f64.ln(), 0.3_f64.ln(), 0.1_f64.ln()];
    let weights = SOFTMAX.weights(&forest, log_probs(&logs)).expect("finite log-probs");
    assert_all_close(&weights, &[1.0, 0.6, 0.3, 0.1], 1e-15);
    let values = SOFTMAX
        .values(&forest, &[1.0, 0.1, -0.2], log_probs(&logs))
        .expect("finite log-probs");
    assert_close(values[0], 0.61, 1e-15);
    let sizes = SOFTMAX
        .effective_sample_sizes(&forest, log_probs(&logs))
        .expect("finite log-probs");
    assert_close(sizes[0].expect("a branching node"), 1.0 / 0.46, 1e-12);
    assert_eq!(sizes[1..], [None; 3]);
}

/// Pins a ragged mean. Node 1 has leaves 4 and 5 (values 2 and 4: mean 3), node 2 one child (leaf 6, value 9: passed
/// through), node 3 is a leaf (value 0). The root: (3 + 9 + 0)/3 = 4, and not the mean 15/4 of the leaves.
#[test]
fn ragged_mean() {
    let forest = forest(&[0], &[vec![3], vec![2, 1, 0]]);
    assert_eq!(forest.leaves().collect::<Vec<_>>(), [3, 4, 5, 6]);
    let values = Backup::Mean
        .values(&forest, &[0.0, 2.0, 4.0, 9.0], EdgeLogProbs::NONE)
        .expect("finite values");
    assert_all_close(&values, &[4.0, 3.0, 9.0, 0.0, 2.0, 4.0, 9.0], 1e-15);
}

/// Pins temperature and reduction. Log-probs 0 and -ln 4 at temperature 2 have weights 1 : 4^(-1/2) = 2/3 and 1/3;
/// summed over 4 dimensions 1 : 4^(-4/2) = 16/17 and 1/17.
#[test]
fn temperature_and_reduction() {
    let forest = forest(&[0], &[vec![2]]);
    let logs = [f64::NAN, 0.0, -(4.0_f64.ln())];
    let edges = EdgeLogProbs {
        mean_reduced: &logs,
        dimensions: 4,
    };
    for (reduction, weight) in [
        (LogProbReduction::Mean, 2.0 / 3.0),
        (LogProbReduction::Sum, 16.0 / 17.0),
    ] {
        let backup = Backup::Softmax {
            temperature: 2.0,
            reduction,
        };
        let values = backup.values(&forest, &[1.0, 0.0], edges).expect("finite log-probs");
        assert_close(values[0], weight, 1e-15);
    }
}

/// Pins stability: log-densities of a whole image, around -65,000 nats and 181 apart, are one-hot and not NaN.
#[test]
fn large_log_densities() {
    let forest = forest(&[0], &[vec![3]]);
    let edges = log_probs(&[0.0, -65_181.0, -65_000.0, -65_362.0]);
    let values = SOFTMAX
        .values(&forest, &[1.0, 2.0, 3.0], edges)
        .expect("finite log-probs");
    assert_close(values[0], 2.0, 1e-12);
    let sizes = SOFTMAX
        .effective_sample_sizes(&forest, edges)
        .expect("finite log-probs");
    assert_close(sizes[0].expect("a branching node"), 1.0, 1e-12);
}

/// Pins that children that agree hand their value on to the last bit, for any number of them.
#[test]
fn agreement_is_exact() {
    for count in 2..30 {
        let forest = forest(&[0], &[vec![count]]);
        let logs: Vec<f64> = (0..=count).map(|node| 0.3 * node as f64).collect();
        for backup in [Backup::Mean, SOFTMAX] {
            let values = backup
                .values(&forest, &vec![0.1; count], log_probs(&logs))
                .expect("finite values");
            assert_eq!(values[0], 0.1, "{backup:?} of {count}");
        }
    }
}

/// Pins every refusal, and that entries of roots and only children are not looked at.
#[test]
fn refusals() {
    let forest = forest(&[0], &[vec![1], vec![2]]);
    let values = |backup: Backup, leaves: &[f64], logs: &[f64]| backup.values(&forest, leaves, log_probs(logs));
    let nan = f64::NAN;
    assert!(values(SOFTMAX, &[1.0, 2.0], &[nan, nan, 0.0, 0.0]).is_ok());
    assert_eq!(
        values(Backup::Mean, &[1.0], &[]),
        Err(BackupError::LeafCount { expected: 2, got: 1 })
    );
    assert!(matches!(
        values(SOFTMAX, &[1.0, 2.0], &[]),
        Err(BackupError::NodeCount {
            expected: 4,
            got: 0,
            ..
        })
    ));
    let infinite = BackupError::NonFiniteValue {
        leaf: 1,
        node: 3,
        value: f64::INFINITY,
    };
    assert_eq!(values(Backup::Mean, &[1.0, f64::INFINITY], &[]), Err(infinite));
    assert!(matches!(
        values(SOFTMAX, &[1.0, 2.0], &[nan, nan, 0.0, nan]),
        Err(BackupError::NonFiniteLogProb { node: 3, .. })
    ));
    for temperature in [0.0, -1.0, f64::INFINITY] {
        let backup = Backup::Softmax {
            temperature,
            reduction: LogProbReduction::Mean,
        };
        assert_eq!(
            values(backup, &[1.0, 2.0], &[0.0; 4]),
            Err(BackupError::Temperature { temperature })
        );
    }
    let nothing = EdgeLogProbs {
        mean_reduced: &[0.0; 4],
        dimensions: 0,
    };
    assert_eq!(
        SOFTMAX.values(&forest, &[1.0, 2.0], nothing),
        Err(BackupError::Dimensions)
    );
}

/// Pins the names under which backups are stored.
#[test]
fn stored_names() {
    let read = |text: &str| serde_json::from_str::<Backup>(text).expect("a known backup");
    assert_eq!(read(r#""mean""#), Backup::Mean);
    assert_eq!(read(r#"{"softmax": {"temperature": 1.0}}"#), SOFTMAX);
}

/// A number that looks random, for shuffling.
fn hash(node: usize, seed: u64) -> u64 {
    (node as u64 ^ seed)
        .wrapping_mul(0x9E37_79B9_7F4A_7C15)
        .rotate_left(29)
        .wrapping_mul(0xBF58_476D_1CE4_E5B9)
}

/// The same trees with the children of every node in another order; each node carries its old number.
fn shuffled(forest: &Forest<()>, seed: u64) -> Forest<usize> {
    let mut result = Forest::new(forest.level(0).map(|root| (forest.group(root), root))).expect("roots");
    let child = |&old: &usize, place: usize| {
        let mut children: Vec<usize> = forest.children(old).collect();
        children.sort_by_key(|&child| hash(child, seed));
        children[place]
    };
    while !result
        .grow(|_, &old| forest.children(old).len(), |_, old, place| child(old, place))
        .expect("a small forest")
        .is_empty()
    {}
    result
}

proptest! {
    /// Pins that the weights of siblings are a distribution and that the effective sample size lies in its bounds.
    #[test]
    fn weights_are_a_distribution((forest, _, logs) in any_valued_forest(), temperature in 0.01..100.0_f64) {
        let softmax = Backup::Softmax { temperature, reduction: LogProbReduction::Mean };
        for backup in [Backup::Mean, softmax] {
            let weights = backup.weights(&forest, log_probs(&logs)).expect("finite log-probs");
            let sizes = backup.effective_sample_sizes(&forest, log_probs(&logs)).expect("finite log-probs");
            for (node, size) in sizes.iter().enumerate() {
                let children = forest.children(node);
                let count = children.len();
                if count > 0 {
                    prop_assert!(weights[children.clone()].iter().all(|weight| (0.0..=1.0).contains(weight)));
                    prop_assert!((weights[children].iter().sum::<f64>() - 1.0).abs() < 1e-12);
                }
                prop_assert_eq!(size.is_some(), count > 1);
                if let Some(size) = *size {
                    prop_assert!(size > 1.0 - 1e-12 && size < count as f64 + 1e-12);
                }
            }
        }
    }

    /// Pins the fast path over equal levels to the definition: every value is the weighted sum of the children's.
    #[test]
    fn values_are_weighted_sums((forest, leaves, logs) in any_valued_forest()) {
        for backup in [Backup::Mean, SOFTMAX] {
            let weights = backup.weights(&forest, log_probs(&logs)).expect("finite log-probs");
            let values = backup.values(&forest, &leaves, log_probs(&logs)).expect("finite values");
            for (leaf, value) in forest.leaves().zip(&leaves) {
                prop_assert_eq!(values[leaf], *value);
            }
            for node in (0..forest.len()).filter(|&node| !forest.is_leaf(node)) {
                let sum: f64 = forest.children(node).map(|child| weights[child] * values[child]).sum();
                prop_assert!((values[node] - sum).abs() < 1e-12);
            }
        }
    }

    /// Pins that a value lies between the smallest and the largest leaf below it.
    #[test]
    fn values_are_bounded_by_their_leaves((forest, leaves, logs) in any_valued_forest()) {
        for backup in [Backup::Mean, SOFTMAX] {
            let values = backup.values(&forest, &leaves, log_probs(&logs)).expect("finite values");
            let mut bounds: Vec<(f64, f64)> = values.iter().map(|value| (*value, *value)).collect();
            for node in (0..forest.len()).rev().filter(|&node| !forest.is_leaf(node)) {
                let below = forest.children(node).map(|child| bounds[child]);
                bounds[node] = below.reduce(|a, b| (a.0.min(b.0), a.1.max(b.1))).expect("an inner node");
                prop_assert!(values[node] > bounds[node].0 - 1e-12 && values[node] < bounds[node].1 + 1e-12);
            }
        }
    }

    /// Pins that the order of siblings does not matter.
    #[test]
    fn sibling_order_does_not_matter((forest, leaves, logs) in any_valued_forest(), seed: u64) {
        let other = shuffled(&forest, seed);
        let mut leaf_value = vec![0.0; forest.len()];
        forest.leaves().zip(&leaves).for_each(|(leaf, value)| leaf_value[leaf] = *value);
        let other_leaves: Vec<f64> = other.leaves().map(|leaf| leaf_value[*other.payload(leaf)]).collect();
        let other_logs: Vec<f64> = other.payloads().iter().map(|&old| logs[old]).collect();
        for backup in [Backup::Mean, SOFTMAX] {
            let values = backup.values(&forest, &leaves, log_probs(&logs)).expect("finite values");
            let shuffled = backup.values(&other, &other_leaves, log_probs(&other_logs)).expect("finite values");
            for (node, value) in shuffled.iter().enumerate() {
                prop_assert!((value - values[*other.payload(node)]).abs() < 1e-12);
            }
        }
    }

    /// Pins that the mean backup keeps means: with equal branching every level has the mean of the leaves.
    #[test]
    fn means_are_preserved(
        (children, leaves) in prop::collection::vec(1_usize..6, 1..5).prop_flat_map(|children| {
            let count = children.iter().product::<usize>();
            (Just(children), prop::collection::vec(-5.0..5.0_f64, count))
        }),
    ) {
        let levels: Vec<Vec<usize>> = children.iter().map(|&count| vec![count]).collect();
        let forest = forest(&[0], &levels);
        let values = Backup::Mean.values(&forest, &leaves, EdgeLogProbs::NONE).expect("finite values");
        let mean = leaves.iter().sum::<f64>() / leaves.len() as f64;
        for level in 0..forest.levels() {
            let own = &values[forest.level(level)];
            prop_assert!((own.iter().sum::<f64>() / own.len() as f64 - mean).abs() < 1e-12);
        }
    }

    /// Pins that a hot softmax approaches the mean, and that a common shift of the log-probs changes nothing.
    #[test]
    fn softmax_limits((forest, leaves, logs) in any_valued_forest(), shift in -1e4..1e4_f64) {
        let hot = Backup::Softmax { temperature: 1e9, reduction: LogProbReduction::Mean };
        let hot = hot.values(&forest, &leaves, log_probs(&logs)).expect("finite values");
        let mean = Backup::Mean.values(&forest, &leaves, EdgeLogProbs::NONE).expect("finite values");
        let moved: Vec<f64> = logs.iter().map(|log| log + shift).collect();
        let moved = SOFTMAX.values(&forest, &leaves, log_probs(&moved)).expect("finite values");
        let plain = SOFTMAX.values(&forest, &leaves, log_probs(&logs)).expect("finite values");
        for node in 0..forest.len() {
            prop_assert!((hot[node] - mean[node]).abs() < 1e-6);
            prop_assert!((moved[node] - plain[node]).abs() < 1e-9);
        }
    }
}
