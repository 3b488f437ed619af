//! What several test modules share.

use proptest::prelude::*;
use tree_core::Forest;

/// Fails with both numbers when they differ by more than `tolerance`.
#[track_caller]
pub(crate) fn assert_close(got: f64, expected: f64, tolerance: f64) {
    assert!(
        (got - expected).abs() <= tolerance,
        "got {got}, expected {expected}, tolerance {tolerance}"
    );
}

/// [`assert_close`] for slices of the same length.
#[track_caller]
pub(crate) fn assert_all_close(got: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len(), "lengths differ: {got:?} and {expected:?}");
    for (index, (&got, &expected)) in got.iter().zip(expected).enumerate() {
        assert!(
            (got - expected).abs() <= tolerance,
            "entry {index}: got {got}, expected {expected}"
        );
    }
}

/// A forest from the groups of its roots and, per level, child counts that are repeated over the level's nodes.
pub(crate) fn forest(groups: &[usize], levels: &[Vec<usize>]) -> Forest<()> {
    let mut forest = Forest::new(groups.iter().map(|&group| (group, ()))).expect("at least one root");
    for counts in levels {
        let first = forest.level(forest.levels() - 1).start;
        forest
            .grow(|node, ()| counts[(node - first) % counts.len()], |_, (), _| ())
            .expect("a small forest");
    }
    forest
}

/// Ragged forests of a few hundred nodes at most, with one-child nodes and leaves at several levels.
pub(crate) fn any_forest() -> impl Strategy<Value = Forest<()>> {
    let groups = prop::collection::vec(0_usize..3, 1..5);
    let levels = prop::collection::vec(prop::collection::vec(0_usize..4, 1..6), 0..5);
    (groups, levels).prop_map(|(groups, levels)| forest(&groups, &levels))
}

/// A forest, one value per leaf and one log-prob per node.
pub(crate) fn any_valued_forest() -> impl Strategy<Value = (Forest<()>, Vec<f64>, Vec<f64>)> {
    any_forest().prop_flat_map(|forest| {
        let (leaves, nodes) = (forest.leaf_count(), forest.len());
        let values = prop::collection::vec(-5.0..5.0_f64, leaves);
        let log_probs = prop::collection::vec(-3.0..3.0_f64, nodes);
        (Just(forest), values, log_probs)
    })
}

/// A generator of standard normal numbers: SplitMix64 and the polar method. Small enough to need no dependency.
pub(crate) struct Normal {
    state: u64,
    spare: Option<f64>,
}

impl Normal {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            state: seed,
            spare: None,
        }
    }

    pub(crate) fn uniform(&mut self) -> f64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((mixed ^ (mixed >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn next(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        loop {
            let (x, y) = (2.0 * self.uniform() - 1.0, 2.0 * self.uniform() - 1.0);
            let square = x * x + y * y;
            if square > 0.0 && square < 1.0 {
                let factor = (-2.0 * square.ln() / square).sqrt();
                self.spare = Some(y * factor);
                return x * factor;
            }
        }
    }
}
