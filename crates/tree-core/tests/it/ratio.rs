//! Ratio statistics: values by hand, digits next to 1, and merging.

use proptest::prelude::*;
use tree_core::{ClippedObjective, EdgeLoss, RatioStatistics};

use crate::support::assert_close;

fn edge(log_ratio: f64, advantage: f64) -> EdgeLoss {
    ClippedObjective::new(0.2, 5.0)
        .expect("valid settings")
        .edge(log_ratio, 0.0, advantage)
        .expect("finite")
}

fn gather(edges: &[EdgeLoss]) -> RatioStatistics {
    let mut statistics = RatioStatistics::default();
    edges.iter().for_each(|edge| statistics.record(edge));
    statistics
}

/// Pins every number on four edges with ratios 1.5, 1.5, .5, 1: A = 1 is clipped above, A = -1 is not, A = -1 is
/// clipped below, the last is inside. Mean of ρ - 1: (.5 + .5 - .5 + 0)/4 = .125; squares .140625·2 + .390625 + .015625
/// = .6875, so the std is √.171875.
#[test]
fn by_hand() {
    let edges = [(1.5_f64, 1.0), (1.5, -1.0), (0.5, -1.0), (1.0, 1.0)].map(|(ratio, a)| edge(ratio.ln(), a));
    let statistics = gather(&edges);
    assert_eq!(statistics.count(), 4);
    assert_close(statistics.minimum(), -0.5, 1e-15);
    assert_close(statistics.mean(), 0.125, 1e-15);
    assert_close(statistics.maximum(), 0.5, 1e-15);
    assert_close(statistics.std(), 0.171_875_f64.sqrt(), 1e-15);
    assert_close(statistics.clip_fraction_above(), 0.25, 0.0);
    assert_close(statistics.clip_fraction_below(), 0.25, 0.0);
    assert_close(statistics.clip_fraction(), 0.5, 0.0);
    assert_close(statistics.outside_fraction(), 0.75, 0.0);
    let squares = 2.0 * 1.5_f64.ln().powi(2) + 0.5_f64.ln().powi(2);
    assert_close(statistics.approx_kl(), squares / 8.0, 1e-15);
}

/// Pins the digits next to 1: a log-ratio of 1e-12 is kept whole, where `ρ - 1` from a rounded ρ has three digits.
#[test]
fn digits_next_to_one() {
    let statistics = gather(&[edge(1e-12, 1.0), edge(3e-12, 1.0)]);
    assert_close(statistics.mean(), 2e-12, 1e-23);
    assert_close(statistics.std(), 1e-12, 1e-23);
}

/// Pins that no edges give zeros and no NaN.
#[test]
fn empty() {
    let statistics = RatioStatistics::default();
    assert_eq!(
        (
            statistics.mean(),
            statistics.std(),
            statistics.clip_fraction(),
            statistics.approx_kl()
        ),
        (0.0, 0.0, 0.0, 0.0)
    );
}

proptest! {
    /// Pins that statistics gathered apart and merged are those gathered together.
    #[test]
    fn merging(edges in prop::collection::vec((-1.0..1.0_f64, -2.0..2.0_f64), 0..40), cut in 0_usize..40) {
        let edges: Vec<EdgeLoss> = edges.into_iter().map(|(log_ratio, advantage)| edge(log_ratio, advantage)).collect();
        let cut = cut.min(edges.len());
        let mut merged = gather(&edges[..cut]);
        merged.merge(&gather(&edges[cut..]));
        let together = gather(&edges);
        prop_assert_eq!(merged.count(), together.count());
        prop_assert_eq!(merged.minimum(), together.minimum());
        prop_assert_eq!(merged.maximum(), together.maximum());
        prop_assert_eq!(merged.clip_fraction(), together.clip_fraction());
        prop_assert!((merged.mean() - together.mean()).abs() < 1e-12);
        prop_assert!((merged.std() - together.std()).abs() < 1e-12);
        prop_assert!((merged.approx_kl() - together.approx_kl()).abs() < 1e-12);
    }
}
