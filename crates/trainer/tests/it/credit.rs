//! From scores to edges: groups are prompts, equal scores teach nothing, and bad scores stop the run.

use rewards::RewardScores;
use trainer::credit::{CreditRule, EdgeAdvantages};
use trainer::gaps::NonFiniteScores;
use trainer::rollout::{Rollout, Sampling};
use tree_core::{Backup, Credit, LogProbReduction, Mix, Normalisation, Plan, RewardMix, RunningRewards};

use crate::fixture::assert_near;
use crate::toy::{INDICES, Toy};

fn rule(backup: Backup, credit: Credit) -> CreditRule {
    let mix = RewardMix::new(Mix::Advantage, [("main".to_owned(), 2.0)]).expect("a mix");
    CreditRule {
        normalisation: Normalisation::default(),
        mix,
        backup,
        credit,
        non_finite_scores: NonFiniteScores::Error,
    }
}

fn scores(name: &str, values: &[f64], eval_only: bool) -> RewardScores {
    RewardScores {
        name: name.into(),
        weight: 2.0,
        eval_only,
        values: values.to_vec(),
    }
}

fn advantages(rule: &CreditRule, toy: &Toy, rollout: &Rollout, values: &[f64]) -> Result<EdgeAdvantages, String> {
    let given = [
        scores("main", values, false),
        scores("held-out", &vec![f64::MAX; values.len()], true),
    ];
    rule.advantages(rollout, &given, &mut RunningRewards::default(), &toy.sampling, &INDICES)
        .map_err(|error| error.to_string())
}

/// Three prompts, one stochastic step with two children. Scores 1 and 3 normalise to −1 and 1 (times the weight 2),
/// the constant scores of the second prompt to exactly 0 although the batch varies, 7 and 3 to 1 and −1. A reward that
/// is only evaluated counts for nothing.
#[test]
fn edges_by_hand() {
    let toy = Toy::new(3);
    let plan = Plan::windowed(3, &[0], 2, 1).expect("a plan");
    let rollout = toy.roll_out(&plan, &toy.sampling);
    let found = advantages(
        &rule(Backup::Mean, Credit::Subtree),
        &toy,
        &rollout,
        &[1.0, 3.0, 5.6123, 5.6123, 7.0, 3.0],
    );
    let found = found.expect("advantages");
    let edges = &found.edges[rollout.levels[0].edges()];
    for (edge, expected) in edges.iter().zip([-2.0, 2.0, 0.0, 0.0, 2.0, -2.0]) {
        assert_near("edge", *edge, expected, 1e-7);
    }
    assert_eq!((edges[2], edges[3]), (0.0, 0.0));
    assert_near(
        "share without variance",
        found.mixed.total.zero_std_fraction(),
        1.0 / 3.0,
        1e-12,
    );
    assert_near("effective sample size", found.effective_sample_size, 2.0, 1e-12);
}

/// A prompt that comes twice in one iteration is one group: its four leaves are compared with each other.
#[test]
fn a_prompt_that_comes_twice_is_one_group() {
    let toy = Toy::new(3);
    let plan = Plan::windowed(3, &[0], 2, 1).expect("a plan");
    let rollout = toy.roll_out_for(&plan, &toy.sampling, &toy.table, &[4, 9, 4], crate::toy::DRAW);
    let given = [scores("main", &[1.0, 1.0, 0.0, 8.0, 3.0, 3.0], false)];
    let rule = rule(Backup::Mean, Credit::Subtree);
    let found = rule.advantages(
        &rollout,
        &given,
        &mut RunningRewards::default(),
        &toy.sampling,
        &[4, 9, 4],
    );
    // Mean 2 and deviation 1 over 1, 1, 3, 3; times the weight 2.
    let edges = found.expect("advantages").edges;
    for (edge, expected) in edges[rollout.levels[0].edges()]
        .iter()
        .zip([-2.0, -2.0, -2.0, 2.0, 2.0, 2.0])
    {
        assert_near("edge", *edge, expected, 1e-7);
    }
}

/// The value after a stochastic step is the mean of the leaves below it, and siblings' credits sum to zero.
#[test]
fn values_are_means_of_leaves() {
    let toy = Toy::new(4);
    let plan = Plan::windowed(4, &[0, 1], 2, 1).expect("a plan");
    let rollout = toy.roll_out(&plan, &toy.sampling);
    let values: Vec<f64> = (0..12).map(|i| f64::from(i * i % 7)).collect();
    let subtree = advantages(&rule(Backup::Mean, Credit::Subtree), &toy, &rollout, &values).expect("advantages");
    for (edge, leaves) in subtree.edges[rollout.levels[0].edges()]
        .iter()
        .zip(subtree.mixed.values.chunks(2))
    {
        assert_near("value", *edge, f64::midpoint(leaves[0], leaves[1]), 1e-12);
    }
    let siblings = advantages(&rule(Backup::Mean, Credit::Siblings), &toy, &rollout, &values).expect("advantages");
    for level in &rollout.levels {
        for pair in siblings.edges[level.edges()].chunks(2) {
            assert_near("sum of siblings", pair[0] + pair[1], 0.0, 1e-12);
        }
    }
}

/// The softmax backup weighs by the log-probs of the rollout, whichever way they are reduced: a run that sums them
/// gives the values of one that takes their mean.
#[test]
fn softmax_does_not_depend_on_the_reduction() {
    let toy = Toy::new(4);
    let plan = Plan::windowed(4, &[0, 1], 2, 1).expect("a plan");
    let mut summed: Sampling = toy.sampling.clone();
    summed.log_prob.reduction = policy_sd3::kernel::Reduction::Sum;
    let softmax = Backup::Softmax {
        temperature: 0.05,
        reduction: LogProbReduction::Mean,
    };
    let rule = rule(softmax, Credit::Subtree);
    let values: Vec<f64> = (0..12).map(|i| f64::from(i * i % 7)).collect();
    let edges = |sampling: &Sampling| {
        let rollout = toy.roll_out(&plan, sampling);
        let given = [scores("main", &values, false)];
        rule.advantages(&rollout, &given, &mut RunningRewards::default(), sampling, &INDICES)
            .expect("advantages")
    };
    let (mean, sum) = (edges(&toy.sampling), edges(&summed));
    for (a, b) in mean.edges.iter().zip(&sum.edges) {
        assert_near("edge", *a, *b, 1e-4);
    }
    assert!(mean.effective_sample_size < 2.0 - 1e-6, "the weights differ");
}

/// A score that is not finite, a reward without scores and a wrong number of scores are refused by name.
#[test]
fn bad_scores_are_refused() {
    let toy = Toy::new(3);
    let plan = Plan::windowed(3, &[0], 2, 1).expect("a plan");
    let rollout = toy.roll_out(&plan, &toy.sampling);
    let rule = rule(Backup::Mean, Credit::Subtree);
    let refused = |values: &[f64]| advantages(&rule, &toy, &rollout, values).expect_err("bad scores");
    for bad in [f64::NAN, f64::INFINITY] {
        let message = refused(&[0.0, 1.0, bad, 0.0, 0.0, 0.0]);
        assert!(message.contains("main"), "{message}");
    }
    assert!(refused(&[1.0; 5]).contains("main"));
    let other = [scores("other", &[1.0; 6], false)];
    let message = rule.advantages(
        &rollout,
        &other,
        &mut RunningRewards::default(),
        &toy.sampling,
        &INDICES,
    );
    assert!(message.expect_err("no scores").to_string().contains("main"));
}
