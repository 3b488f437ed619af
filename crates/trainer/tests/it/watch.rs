//! What is told about rewards that teach nothing.

use rewards::RewardScores;
use trainer::gaps::NonFiniteScores;
use trainer::watch::{Watch, homogeneous_share};
use tree_core::{Mix, Normalisation, RewardMix};

use crate::fixture::assert_near;

/// The lines about an iteration of prompts with `leaves` leaves each.
fn look(watch: &mut Watch, leaves: usize, values: &[f64]) -> Vec<String> {
    let scores = [RewardScores {
        name: "r".into(),
        weight: 1.0,
        eval_only: false,
        values: values.to_vec(),
    }];
    let prompts: Vec<usize> = (0..values.len()).map(|leaf| leaf / leaves).collect();
    let selection = NonFiniteScores::Error
        .select(&scores.iter().collect::<Vec<_>>(), &prompts)
        .expect("finite scores");
    let mix = RewardMix::new(Mix::Advantage, [("r", 1.0)]).expect("a mix");
    let mixed = mix.advantages(&Normalisation::default(), &[("r", values)], &prompts);
    watch.look(&scores, &mixed.expect("finite scores"), &selection)
}

/// A reward that varies everywhere is not spoken of; one that does not is counted in groups.
#[test]
fn groups_without_variance_are_counted() {
    let mut watch = Watch::default();
    assert!(look(&mut watch, 2, &[0.1, 0.2, 0.3, 0.4]).is_empty());
    assert_eq!(
        look(&mut watch, 2, &[0.1, 0.2, 0.3, 0.3]),
        ["reward `r` has no variance in 1 of 2 groups"]
    );
}

/// A reward of .5 everywhere is warned about after 3, 6, 12 iterations, and a single iteration with variance starts the
/// count anew.
#[test]
fn a_constant_reward_is_warned_about() {
    let mut watch = Watch::default();
    let mut warned = |values: &[f64]| {
        look(&mut watch, 2, values)
            .iter()
            .any(|line| line.starts_with("WARNING"))
    };
    let warnings: Vec<usize> = (1..=13).filter(|_| warned(&[0.5; 4])).collect();
    assert_eq!(warnings, [3, 6, 12]);
    assert!(!warned(&[0.5, 0.5, 0.4, 0.5]));
    assert_eq!((1..=4).filter(|_| warned(&[0.5; 4])).collect::<Vec<_>>(), [3]);
}

/// With probability .18, groups of 2 are alike in .18² + .82² = .7048 of all cases, groups of 8 in .82⁸ = .2044.
#[test]
fn share_of_groups_that_are_alike() {
    assert_near("2 leaves", homogeneous_share(0.18, 2.0), 0.7048, 1e-12);
    assert_near("8 leaves", homogeneous_share(0.18, 8.0), 0.2044, 1e-4);
    assert_near("fair coin", homogeneous_share(0.5, 3.0), 0.25, 1e-12);
}

/// A reward with two values is explained once: 18 of 100 leaves in groups of two leave 70 % silent, and twelve leaves
/// are the first with .82¹² = .092, below a tenth. Where there are enough leaves no advice is given, and a reward with
/// three values is none with two.
#[test]
fn two_values_are_explained_once() {
    let mut watch = Watch::default();
    let mut values = [0.0; 100];
    values[..36].chunks_mut(2).for_each(|pair| pair[1] = 1.0);
    let expected = "reward `r` has two values, the larger one in 18 % of the leaves: with 2 leaves per prompt at least \
                    70 % of the prompts are expected to say nothing, with 12 it would be 9 %; use more children, a \
                    wider window or more trees";
    let lines = look(&mut watch, 2, &values);
    assert_eq!(lines, ["reward `r` has no variance in 32 of 50 groups", expected]);
    assert_eq!(look(&mut watch, 2, &values).len(), 1, "told once");

    let lines = look(&mut Watch::default(), 20, &values);
    let line = lines.iter().find(|line| line.contains("two values")).expect("a line");
    assert!(
        line.ends_with("at least 2 % of the prompts are expected to say nothing"),
        "{line}"
    );
    values[0] = 0.5;
    assert!(
        !look(&mut Watch::default(), 2, &values)
            .iter()
            .any(|line| line.contains("two values"))
    );
    // Few leaves of a fine reward can be alike by chance.
    assert!(
        !look(&mut Watch::default(), 2, &[0.1, 0.2, 0.2, 0.1])
            .iter()
            .any(|line| line.contains("two"))
    );
}
