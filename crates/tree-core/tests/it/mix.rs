//! Rewards by name and weight.

use tree_core::{AdvantageError, Mix, MixError, Normalisation, RewardMix, RunningRewards, Scope};

use crate::support::assert_all_close;

fn mix(mix: Mix) -> RewardMix {
    RewardMix::new(mix, [("a", 2.0), ("b", 3.0)]).expect("valid weights")
}

/// Pins weights to names: rewards a = 1, b = 10 with weights a = 2, b = 3 give 32 in either order. Exchanged they
/// would give 23.
#[test]
fn weights_follow_names() {
    for scores in [[("a", &[1.0][..]), ("b", &[10.0])], [("b", &[10.0]), ("a", &[1.0])]] {
        assert_eq!(mix(Mix::Reward).weighted_scores(&scores), Ok(vec![32.0]));
    }
}

/// Pins the two modes. Scores a = (0, 2), b = (30, 10): normalised a = (-1, 1), b = (1, -1), so mixing advantages gives
/// 2·(-1) + 3·1 = 1 and -1. Mixing rewards gives 90 and 34, normalised 1 and -1: here the scale of b decides alone.
#[test]
fn both_modes_by_hand() {
    let normalisation = Normalisation {
        epsilon: 0.0,
        ..Normalisation::default()
    };
    let scores = [("a", &[0.0, 2.0][..]), ("b", &[30.0, 10.0])];
    let advantage = mix(Mix::Advantage)
        .advantages(&normalisation, &scores, &[0, 0])
        .expect("valid scores");
    assert_all_close(&advantage.values, &[1.0, -1.0], 1e-12);
    assert_all_close(&advantage.weighted_scores, &[90.0, 34.0], 1e-12);
    assert_eq!(advantage.rewards[1].0, "b");
    assert_all_close(
        &[advantage.rewards[1].1.batch_mean, advantage.total.batch_mean],
        &[20.0, 62.0],
        1e-12,
    );
    // A large weight shows that advantages are not normalised again.
    let weights = [("a", 20.0), ("b", 3.0)];
    let again = |mix| {
        let mix = RewardMix::new(mix, weights).expect("valid weights");
        mix.advantages(&normalisation, &scores, &[0, 0])
            .expect("valid scores")
            .values
    };
    assert_all_close(&again(Mix::Advantage), &[-17.0, 17.0], 1e-12);
    assert_all_close(&again(Mix::Reward), &[1.0, -1.0], 1e-12);
}

/// Pins the formula that is shown before a run.
#[test]
fn formulas() {
    assert_eq!(mix(Mix::Advantage).formula(), "A = 2 * normalise(a) + 3 * normalise(b)");
    assert_eq!(mix(Mix::Reward).formula(), "A = normalise(2 * a + 3 * b)");
}

/// Pins every refusal.
#[test]
fn refusals() {
    let new = |weights: &[(&str, f64)]| RewardMix::new(Mix::Reward, weights.iter().copied()).expect_err("refused");
    assert_eq!(new(&[]), MixError::NoRewards);
    assert_eq!(new(&[("a", 1.0), ("a", 2.0)]), MixError::Duplicate { name: "a".into() });
    assert!(matches!(new(&[("a", f64::NAN)]), MixError::Weight { .. }));
    assert_eq!(new(&[("a", 0.0), ("b", 0.0)]), MixError::AllZero);

    let one = &[1.0][..];
    let sum = |scores: &[(&str, &[f64])]| mix(Mix::Reward).weighted_scores(scores).expect_err("refused");
    let unknown = sum(&[("a", one), ("b", one), ("c", one)]);
    assert_eq!(
        unknown.to_string(),
        "scores came for reward `c`, which has no weight; the weights name `a`, `b`"
    );
    assert_eq!(sum(&[("a", one)]), MixError::Missing { name: "b".into() });
    assert_eq!(
        sum(&[("a", one), ("b", one), ("a", one)]),
        MixError::Duplicate { name: "a".into() }
    );
    let lengths = sum(&[("a", one), ("b", &[1.0, 2.0])]);
    assert_eq!(
        lengths,
        MixError::Length {
            name: "b".into(),
            expected: 1,
            got: 2
        }
    );

    let scores = [("a", &[1.0, 2.0][..]), ("b", &[1.0, f64::NAN])];
    let bad = mix(Mix::Advantage)
        .advantages(&Normalisation::default(), &scores, &[0, 0])
        .expect_err("refused");
    assert!(
        matches!(&bad, MixError::Advantage { name, source: AdvantageError::NonFinite { index: 1, .. } } if name == "b")
    );
}

/// Pins that a batch with one bad reward is remembered for none, so that it may be repeated.
#[test]
fn running_memory_is_all_or_nothing() {
    let scope = Scope::Running {
        window: 4,
        min_count: 2,
    };
    let normalisation = Normalisation {
        scope,
        ..Normalisation::default()
    };
    let mut running = RunningRewards::default();
    let bad = [("a", &[1.0, 2.0][..]), ("b", &[1.0, f64::NAN])];
    assert!(
        mix(Mix::Advantage)
            .advantages_with(&normalisation, &bad, &[0, 0], &mut running)
            .is_err()
    );
    assert_eq!(running, RunningRewards::default());
    let good = [("a", &[1.0, 2.0][..]), ("b", &[1.0, 3.0])];
    let result = mix(Mix::Advantage).advantages_with(&normalisation, &good, &[0, 0], &mut running);
    assert_all_close(&result.expect("valid scores").values, &[-5.0, 5.0], 1e-6);
    let text = serde_json::to_string(&running).expect("plain data");
    assert_eq!(
        serde_json::from_str::<RunningRewards>(&text).expect("what was stored can be read"),
        running
    );
}
