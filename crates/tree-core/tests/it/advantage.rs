//! Leaf advantages: values by hand, equal scores, every scope, refusals and invariants.

use proptest::prelude::*;
use tree_core::{AdvantageError, Normalisation, RunningStatistics, Scope, StdKind};

use crate::support::{assert_all_close, assert_close};

fn with_scope(scope: Scope) -> Normalisation {
    Normalisation {
        scope,
        epsilon: 0.0,
        ..Normalisation::default()
    }
}

/// Pins the paper's rule. Scores 1, 2, 3, 6: mean 3, deviations -2, -1, 0, 3, squares 4 + 1 + 0 + 9 = 14; population
/// std √(14/4) = 1.870829, sample std √(14/3) = 2.160247.
#[test]
fn group_by_hand() {
    let scores = [1.0, 2.0, 3.0, 6.0];
    let result = Normalisation::default()
        .advantages(&scores, &[4; 4])
        .expect("finite scores");
    let std = 1.870_828_693_386_970_7 + 1e-8;
    assert_all_close(&result.values, &[-2.0 / std, -1.0 / std, 0.0, 3.0 / std], 1e-15);
    let sample = Normalisation {
        std: StdKind::Sample,
        epsilon: 0.0,
        ..Normalisation::default()
    };
    let result = sample.advantages(&scores, &[4; 4]).expect("finite scores");
    assert_close(result.values[3], 3.0 / 2.160_246_899_469_287, 1e-15);
}

/// Pins that equal scores give exactly 0. With sums of squares in one pass these groups have a std of 1e-4 to 1e-2 in
/// f32 and advantages of any size.
#[test]
fn equal_scores_give_zero() {
    for (count, score) in [
        (24, 5.6123),
        (12, 21.37),
        (27, 0.8),
        (4, 0.1),
        (7, -1e30),
        (3, 1e-30),
        (5, 0.0),
    ] {
        for score in [score, f64::from(score as f32)] {
            for scope in [Scope::Group, Scope::GroupMeanBatchStd, Scope::Batch] {
                let normalisation = Normalisation {
                    scope,
                    ..Normalisation::default()
                };
                let scores = vec![score; count];
                let result = normalisation
                    .advantages(&scores, &vec![0; count])
                    .expect("finite scores");
                assert!(
                    result.values.iter().all(|value| *value == 0.0),
                    "{count} times {score}: {:?}",
                    result.values
                );
                assert_eq!(result.statistics.zero_std_fraction(), 1.0);
            }
        }
    }
}

/// Pins that a spread which an f32 scorer cannot resolve is not amplified, and that one it can resolve is.
#[test]
fn rounding_is_not_amplified() {
    let next = f64::from(f32::from_bits(5.6123_f32.to_bits() + 1));
    let mut scores = vec![f64::from(5.6123_f32); 24];
    scores[0] = next;
    let result = Normalisation::default()
        .advantages(&scores, &[0; 24])
        .expect("finite scores");
    assert!(result.values.iter().all(|value| *value == 0.0), "{:?}", result.values);
    scores[0] = 5.6133;
    let result = Normalisation::default()
        .advantages(&scores, &[0; 24])
        .expect("finite scores");
    assert!(result.values[0] > 4.0, "{:?}", result.values);
}

/// Pins `global_std`: the mean is the group's, the std that of all scores. Groups (1, 3) and (10, 14): means 2 and 12,
/// batch mean 7, squares 36 + 16 + 9 + 49 = 110, batch std √27.5. The groups' own stds are 1 and 2.
#[test]
fn group_mean_and_batch_std() {
    let (scores, groups) = ([1.0, 10.0, 3.0, 14.0], [0, 1, 0, 1]);
    let result = with_scope(Scope::GroupMeanBatchStd)
        .advantages(&scores, &groups)
        .expect("finite scores");
    let std = 27.5_f64.sqrt();
    assert_all_close(&result.values, &[-1.0 / std, -2.0 / std, 1.0 / std, 2.0 / std], 1e-15);
    let statistics = result.statistics;
    assert_close(statistics.mean_group_std, 1.5, 1e-15);
    assert_close(statistics.batch_std, std, 1e-15);
    assert_eq!(
        (statistics.groups, statistics.smallest_group, statistics.largest_group),
        (2, 2, 2)
    );
    // The whole batch as one group takes the batch's mean as well.
    let result = with_scope(Scope::Batch)
        .advantages(&scores, &groups)
        .expect("finite scores");
    assert_all_close(&result.values, &[-6.0 / std, 3.0 / std, -4.0 / std, 7.0 / std], 1e-15);
}

/// Pins that groups may be ragged and scattered, and that a group without variance is counted and gives 0.
#[test]
fn scattered_groups() {
    let scores = [0.5, 1.0, 0.5, 3.0, 0.5, 5.0];
    let result = with_scope(Scope::Group)
        .advantages(&scores, &[9, 2, 9, 2, 9, 2])
        .expect("finite scores");
    let std = (8.0_f64 / 3.0).sqrt();
    assert_all_close(&result.values, &[0.0, -2.0 / std, 0.0, 0.0, 0.0, 2.0 / std], 1e-15);
    assert_eq!(result.statistics.zero_std_groups, 1);
    assert_close(result.statistics.zero_std_fraction(), 0.5, 0.0);
}

/// Pins DDPO's statistics. Window 4, wanted 4. First iteration: two scores per prompt, so the batch's mean 4 and std
/// √(9+1+1+9)/2 = √5 are used. Second: prompt 0 remembers 1, 3, 5, 7 (mean 4, std √5). Third: the two
/// oldest go, which leaves 5, 7, 9, 11 (mean 8, std √5).
#[test]
fn running_statistics() {
    let normalisation = with_scope(Scope::Running {
        window: 4,
        min_count: 4,
    });
    let mut history = RunningStatistics::default();
    let mut run = |scores: &[f64], groups: &[usize]| {
        normalisation
            .advantages_with(scores, groups, &mut history)
            .expect("finite scores")
            .values
    };
    let std = 5.0_f64.sqrt();
    let first = run(&[1.0, 3.0, 5.0, 7.0], &[0, 0, 1, 1]);
    assert_all_close(&first, &[-3.0 / std, -1.0 / std, 1.0 / std, 3.0 / std], 1e-15);
    assert_all_close(&run(&[5.0, 7.0], &[0, 0]), &[1.0 / std, 3.0 / std], 1e-15);
    assert_all_close(&run(&[9.0, 11.0], &[0, 0]), &[1.0 / std, 3.0 / std], 1e-15);
    assert_eq!((history.count(0), history.count(1), history.count(2)), (4, 2, 0));
    // The memory is part of a checkpoint.
    let text = serde_json::to_string(&history).expect("plain data");
    assert_eq!(
        serde_json::from_str::<RunningStatistics>(&text).expect("what was stored can be read"),
        history
    );
}

/// Pins every refusal, and that a refused batch is not remembered.
#[test]
fn refusals() {
    let normalisation = Normalisation::default();
    let error = |scores: &[f64], groups: &[usize]| normalisation.advantages(scores, groups).expect_err("refused");
    assert_eq!(error(&[], &[]), AdvantageError::Empty);
    assert_eq!(error(&[1.0], &[0, 0]), AdvantageError::Length { scores: 1, groups: 2 });
    assert_eq!(
        error(&[1.0, 2.0, f64::INFINITY], &[0, 0, 7]),
        AdvantageError::NonFinite {
            index: 2,
            group: 7,
            value: f64::INFINITY
        }
    );
    let single = error(&[1.0, 2.0, 3.0], &[0, 0, 7]);
    assert_eq!(single, AdvantageError::SingleScore { group: 7 });
    assert!(
        single.to_string().contains("needs at least two leaves per prompt"),
        "{single}"
    );
    assert_eq!(
        with_scope(Scope::Batch).advantages(&[1.0], &[0]),
        Err(AdvantageError::SingleBatch)
    );
    assert_eq!(
        error(&[1e300, -1e300], &[0, 0]),
        AdvantageError::Overflow { largest: 1e300 }
    );
    let negative = Normalisation {
        epsilon: -1.0,
        ..normalisation
    };
    assert!(matches!(
        negative.advantages(&[1.0, 2.0], &[0, 0]),
        Err(AdvantageError::Setting { .. })
    ));
    let running = with_scope(Scope::Running {
        window: 4,
        min_count: 2,
    });
    assert_eq!(
        running.advantages(&[1.0, 2.0], &[0, 0]),
        Err(AdvantageError::NeedsHistory)
    );
    let mut history = RunningStatistics::default();
    assert!(
        running
            .advantages_with(&[1.0, f64::NAN], &[0, 0], &mut history)
            .is_err()
    );
    assert_eq!(history, RunningStatistics::default());
    let never = with_scope(Scope::Running {
        window: 4,
        min_count: 5,
    });
    let error = never
        .advantages_with(&[1.0, 2.0], &[0, 0], &mut history)
        .expect_err("refused");
    assert_eq!(
        error,
        AdvantageError::Window {
            window: 4,
            min_count: 5
        }
    );
}

proptest! {
    /// Pins the invariants of group advantages: mean 0, std 1 (or all 0), the order of the scores, and indifference to
    /// shift, scale and the order of the leaves.
    #[test]
    fn invariants(
        scores in prop::collection::vec(-10.0..10.0_f64, 2..30), shift in -10.0..10.0_f64, scale in 0.1..10.0_f64,
    ) {
        let groups = vec![0; scores.len()];
        let normalisation = with_scope(Scope::Group);
        let run = |scores: &[f64]| normalisation.advantages(scores, &groups).expect("finite scores").values;
        let values = run(&scores);
        let n = values.len() as f64;
        let variance = values.iter().map(|value| value * value).sum::<f64>() / n;
        prop_assert!((values.iter().sum::<f64>() / n).abs() < 1e-9);
        prop_assert!((variance - 1.0).abs() < 1e-9 || values.iter().all(|value| *value == 0.0));
        let moved = run(&scores.iter().map(|score| scale * score + shift).collect::<Vec<_>>());
        let reversed = run(&scores.iter().rev().copied().collect::<Vec<_>>());
        for i in 0..scores.len() {
            prop_assert!((moved[i] - values[i]).abs() < 1e-6);
            prop_assert!((reversed[scores.len() - 1 - i] - values[i]).abs() < 1e-9);
            for j in 0..scores.len() {
                prop_assert!(scores[i] <= scores[j] || values[i] >= values[j]);
            }
        }
    }

    /// Pins that groups do not see each other: normalising them together or alone is the same.
    #[test]
    fn groups_are_independent(scores in prop::collection::vec((0_usize..3, -10.0..10.0_f64), 2..40)) {
        let (groups, values): (Vec<usize>, Vec<f64>) = scores.iter().copied().unzip();
        let Ok(together) = Normalisation::default().advantages(&values, &groups) else { return Ok(()) };
        for group in 0..3 {
            let own: Vec<usize> = (0..groups.len()).filter(|&index| groups[index] == group).collect();
            if own.is_empty() {
                continue;
            }
            let alone: Vec<f64> = own.iter().map(|&index| values[index]).collect();
            let alone = Normalisation::default().advantages(&alone, &vec![group; own.len()]).expect("two or more");
            for (&index, value) in own.iter().zip(alone.values) {
                prop_assert_eq!(together.values[index], value);
            }
        }
    }
}
