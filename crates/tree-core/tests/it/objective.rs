//! The clipped objective and the divergences: values by hand, derivatives by finite differences.

use proptest::prelude::*;
use tree_core::{ClippedObjective, EdgeLoss, ObjectiveError, gaussian_kl, guarded_log_ratio};

use crate::support::assert_close;

fn objective(clip_range: f64) -> ClippedObjective {
    ClippedObjective::new(clip_range, 5.0).expect("valid settings")
}

/// The loss at a given ratio, with a clip range of .2.
fn at_ratio(ratio: f64, advantage: f64) -> EdgeLoss {
    objective(0.2).edge(ratio.ln() - 3.0, -3.0, advantage).expect("finite")
}

/// Pins the four corners of the clip, with ε = .2:
/// A = 2, ρ = 1.5: min(3, 1.2·2 = 2.4) = 2.4, the clip acts, L = -2.4, dL = 0;
/// A = 2, ρ = .5: min(1, .8·2 = 1.6) = 1, it does not, L = -1, dL = -A·ρ = -1;
/// A = -2, ρ = 1.5: min(-3, -2.4) = -3, it does not, L = 3, dL = 3;
/// A = -2, ρ = .5: min(-1, -1.6) = -1.6, it acts, L = 1.6, dL = 0.
#[test]
fn four_corners() {
    for (advantage, ratio, loss, derivative, clipped) in [
        (2.0, 1.5, -2.4, 0.0, true),
        (2.0, 0.5, -1.0, -1.0, false),
        (-2.0, 1.5, 3.0, 3.0, false),
        (-2.0, 0.5, 1.6, 0.0, true),
        (2.0, 1.1, -2.2, -2.2, false),
    ] {
        let edge = at_ratio(ratio, advantage);
        assert_close(edge.loss, loss, 1e-12);
        assert_close(edge.derivative, derivative, 1e-12);
        assert_close(edge.ratio, ratio, 1e-12);
        assert_eq!(
            (edge.clipped, edge.outside),
            (clipped, ratio != 1.1),
            "ratio {ratio}, advantage {advantage}"
        );
    }
}

/// Pins the first update: equal log-probs have a ratio of exactly 1, a loss of -A and a derivative of -A.
#[test]
fn first_update() {
    let edge = objective(1e-5).edge(-1.234_567, -1.234_567, 0.7).expect("finite");
    assert_eq!(
        (edge.ratio, edge.log_ratio, edge.loss, edge.derivative, edge.clipped),
        (1.0, 0.0, -0.7, -0.7, false)
    );
}

/// Pins the clamp: an advantage of 6.5 counts as 5.
#[test]
fn advantages_are_clamped() {
    assert_close(at_ratio(1.0, 6.5).loss, -5.0, 0.0);
    assert_close(at_ratio(1.0, -6.5).derivative, 5.0, 0.0);
    let unclamped = ClippedObjective::new(0.2, f64::INFINITY).expect("valid settings");
    assert_close(unclamped.edge(0.0, 0.0, 6.5).expect("finite").loss, -6.5, 0.0);
}

/// Pins what happens far from the sampling policy: an infinite ratio is clipped where the clip acts, worth nothing at
/// advantage 0, and an error where the loss has no bound.
#[test]
fn overflowing_ratios() {
    assert_close(
        objective(0.2).edge(1000.0, 0.0, 1.0).expect("clipped").loss,
        -1.2,
        1e-15,
    );
    assert_eq!(
        objective(0.2).edge(1000.0, 0.0, 0.0).expect("worth nothing").derivative,
        0.0
    );
    let error = objective(0.2).edge(1000.0, 0.0, -1.0).expect_err("no bound");
    assert_eq!(
        error,
        ObjectiveError::NonFinite {
            log_prob: 1000.0,
            old_log_prob: 0.0,
            advantage: -1.0
        }
    );
}

/// Pins every refusal.
#[test]
fn refusals() {
    for clip_range in [0.0, 1.0, -0.1, f64::INFINITY] {
        assert_eq!(
            ClippedObjective::new(clip_range, 5.0),
            Err(ObjectiveError::ClipRange { clip_range })
        );
    }
    assert!(matches!(
        ClippedObjective::new(0.2, 0.0),
        Err(ObjectiveError::AdvantageClamp { .. })
    ));
    assert!(matches!(
        ClippedObjective::new(0.2, f64::NAN),
        Err(ObjectiveError::AdvantageClamp { .. })
    ));
    for (log_prob, old, advantage) in [(f64::NAN, 0.0, 1.0), (0.0, f64::INFINITY, 1.0), (0.0, 0.0, f64::NAN)] {
        let edge = objective(0.2).edge(log_prob, old, advantage);
        assert!(matches!(edge, Err(ObjectiveError::NonFinite { .. })), "{edge:?}");
    }
    for (difference, std) in [(-1.0, 1.0), (f64::NAN, 1.0), (1.0, 0.0), (1.0, f64::NAN)] {
        assert!(matches!(
            gaussian_kl(difference, std),
            Err(ObjectiveError::Divergence { .. })
        ));
    }
}

/// Pins the divergence: means .3 apart in every dimension and std .5 give .09/(2·.25) = .18 nats and the slope 2.
#[test]
fn divergence_by_hand() {
    let kl = gaussian_kl(0.09, 0.5).expect("valid");
    assert_close(kl.value, 0.18, 1e-15);
    assert_close(kl.derivative, 2.0, 1e-15);
}

/// Pins GRPO-Guard's log-ratio: (-1.1 + 1.0 + .18)·.5 = .04.
#[test]
fn guarded_ratio_by_hand() {
    assert_close(guarded_log_ratio(-1.1, -1.0, 0.09, 0.5).expect("valid"), 0.04, 1e-15);
}

proptest! {
    /// Pins that clipping is one-sided: it never acts on the way back to 1, never makes the loss smaller, and an edge
    /// it acts on teaches nothing.
    #[test]
    fn clipping_is_one_sided(log_ratio in -2.0..2.0_f64, advantage in -8.0..8.0_f64, clip_range in 1e-5..0.9_f64) {
        let edge = objective(clip_range).edge(log_ratio - 1.0, -1.0, advantage).expect("finite");
        let clamped = advantage.clamp(-5.0, 5.0);
        let unclipped = -edge.ratio * clamped;
        let clip = -edge.ratio.clamp(1.0 - clip_range, 1.0 + clip_range) * clamped;
        prop_assert!((edge.loss - unclipped.max(clip)).abs() < 1e-12);
        prop_assert!(edge.loss >= unclipped - 1e-12);
        if edge.clipped {
            prop_assert!((edge.ratio - 1.0) * advantage > 0.0 && edge.outside);
            prop_assert_eq!(edge.derivative, 0.0);
        } else {
            prop_assert!((edge.derivative - unclipped).abs() < 1e-12);
        }
    }

    /// Pins the derivative to central differences of the loss, away from the two kinks.
    #[test]
    fn derivative_is_that_of_the_loss(
        log_ratio in -2.0..2.0_f64, advantage in -8.0..8.0_f64, clip_range in 1e-3..0.9_f64,
    ) {
        const STEP: f64 = 1e-5;
        let kinks = [(1.0 + clip_range).ln(), (1.0 - clip_range).ln()];
        prop_assume!(kinks.iter().all(|kink| (log_ratio - kink).abs() > 2.0 * STEP));
        let loss = |log_prob: f64| objective(clip_range).edge(log_prob, 0.0, advantage).expect("finite").loss;
        let difference = (loss(log_ratio + STEP) - loss(log_ratio - STEP)) / (2.0 * STEP);
        let derivative = objective(clip_range).edge(log_ratio, 0.0, advantage).expect("finite").derivative;
        prop_assert!((difference - derivative).abs() < 1e-6, "{} and {}", difference, derivative);
    }
}
