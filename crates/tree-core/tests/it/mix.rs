//! Rewards by name and weight.

use proptest::prelude::*;
use tree_core::{AdvantageError, Mix, MixError, MixedAdvantages, Normalisation, RewardMix, RunningRewards, Scope};

use crate::support::{assert_all_close, assert_close};

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

fn mixed(mode: Mix, scores: &[(&str, &[f64])], groups: &[usize]) -> MixedAdvantages {
    mix(mode)
        .advantages(&Normalisation::default(), scores, groups)
        .expect("valid scores")
}

/// Pins that the scale of a reward means nothing where advantages are mixed, and everything where rewards are: scores
/// like those of ImageReward (around 0, spread 1) and of HPS (.28 ± .01), the former times 100.
#[test]
fn a_rewards_scale_matters_in_one_mode_only() {
    let groups = [0, 0, 0, 1, 1, 1];
    let a = [-0.9, 0.2, 1.4, 0.3, -1.1, 0.1];
    let b = [0.285, 0.29, 0.271, 0.28, 0.292, 0.277];
    let larger = a.map(|score| 100.0 * score);
    let values = |mode, a: &[f64]| mixed(mode, &[("a", a), ("b", &b)], &groups).values;
    // The epsilon of 1e-8 is not scaled along, which a deviation of 1 feels in the eighth digit.
    assert_all_close(&values(Mix::Advantage, &larger), &values(Mix::Advantage, &a), 1e-7);
    let (small, large) = (values(Mix::Reward, &a), values(Mix::Reward, &larger));
    assert!(
        small
            .iter()
            .zip(&large)
            .any(|(small, large)| (small - large).abs() > 1e-3)
    );
}

/// Pins that a score below 0 is a score like any other: -2.28, -0.5 and -1.1 have the mean -1.2933333 and the
/// deviation √(((-0.9866667)² + 0.7933333² + 0.1933333²)/3) = √(1.6402667/3) = 0.7394293, so the best is the second.
#[test]
fn negative_scores_are_scores() {
    let scores = [-2.28, -0.5, -1.1];
    let only = RewardMix::new(Mix::Advantage, [("a", 1.0)]).expect("valid weights");
    let mixed = only
        .advantages(&Normalisation::default(), &[("a", &scores)], &[0; 3])
        .expect("valid scores");
    assert_all_close(&mixed.values, &[-1.334362, 1.072899, 0.261463], 1e-6);
    assert_close(mixed.rewards[0].1.batch_mean, -3.88 / 3.0, 1e-15);
}

/// Pins the shares. a = (-1, -1, 1, 1) and b = (-1, 1, -1, 1) do not covary and have deviation 1, so with the weights 2
/// and 3 their parts of the variance are 4 and 9 of 13, in either mode. Where rewards are mixed, b times 10 makes that 4
/// and 900 of 904.
#[test]
fn shares_of_independent_rewards() {
    let (a, b) = ([-1.0, -1.0, 1.0, 1.0], [-1.0, 1.0, -1.0, 1.0]);
    let shares = |mode, b: &[f64]| mixed(mode, &[("a", &a), ("b", b)], &[0; 4]).shares;
    let ten = b.map(|score| 10.0 * score);
    assert_all_close(&shares(Mix::Advantage, &b), &[4.0 / 13.0, 9.0 / 13.0], 1e-7);
    assert_all_close(&shares(Mix::Advantage, &ten), &[4.0 / 13.0, 9.0 / 13.0], 1e-7);
    assert_all_close(&shares(Mix::Reward, &b), &[4.0 / 13.0, 9.0 / 13.0], 1e-7);
    assert_all_close(&shares(Mix::Reward, &ten), &[4.0 / 904.0, 900.0 / 904.0], 1e-7);
}

/// Pins the shares of rewards that contradict each other: a = (-1, 1) and b = (1, -1) with the weights 2 and 3 give
/// A = (1, -1), to which a adds (-2, 2), which is -2 times A, and b 3 times A. A reward that does not vary adds
/// nothing, one that is alone everything, and where nothing varies there is nothing to share.
#[test]
fn shares_of_contradicting_and_constant_rewards() {
    let shares = |a: &[f64], b: &[f64]| mixed(Mix::Advantage, &[("a", a), ("b", b)], &[0, 0]).shares;
    assert_all_close(&shares(&[0.0, 2.0], &[30.0, 10.0]), &[-2.0, 3.0], 1e-7);
    assert_eq!(shares(&[0.3, 0.3], &[30.0, 10.0]), [0.0, 1.0]);
    assert_eq!(shares(&[0.3, 0.3], &[2.0, 2.0]), [0.0, 0.0]);
    let only = RewardMix::new(Mix::Advantage, [("a", -0.7)]).expect("valid weights");
    let alone = only.advantages(&Normalisation::default(), &[("a", &[0.1, 0.5, 0.2])], &[0; 3]);
    assert_eq!(alone.expect("valid scores").shares, [1.0]);
}

proptest! {
    /// Shares add up to 1 in both modes and under every scope.
    #[test]
    fn shares_add_up(
        a in prop::collection::vec(-1.0..1.0_f64, 12),
        b in prop::collection::vec(20.0..30.0_f64, 12),
        groups in prop::collection::vec(0_usize..2, 8),
    ) {
        // Both groups have two scores at least.
        let groups = [vec![0, 0, 1, 1], groups].concat();
        let running = Scope::Running { window: 4, min_count: 3 };
        for scope in [Scope::Group, Scope::GroupMeanBatchStd, Scope::Batch, running] {
            let normalisation = Normalisation { scope, ..Normalisation::default() };
            for mode in [Mix::Advantage, Mix::Reward] {
                let mixed = mix(mode)
                    .advantages_with(&normalisation, &[("a", &a), ("b", &b)], &groups, &mut RunningRewards::default())
                    .expect("valid scores");
                let sum: f64 = mixed.shares.iter().sum();
                prop_assert!((sum - 1.0).abs() < 1e-9, "{mode:?}, {scope:?}: {:?}", mixed.shares);
            }
        }
    }
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
