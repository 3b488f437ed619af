//! Signs that rewards teach nothing, told while a run goes on.

use std::collections::{BTreeMap, BTreeSet};

use rewards::RewardScores;
use tree_core::MixedAdvantages;

use crate::gaps::Selection;

/// Iterations in a row without any variance after which a reward is warned about; again when they have doubled.
const PATIENCE: u64 = 3;
/// Leaves below which two different scores are no sign of a reward with two values.
const LEAVES_FOR_TWO_VALUES: usize = 8;
/// Share of prompts without variance that is called bearable when a number of leaves is advised.
const BEARABLE_SHARE: f64 = 0.1;

/// Looks at the scores of one iteration after the other. What it remembers changes no number of the run, so it is not
/// part of the stored state.
#[derive(Debug, Clone, Default)]
pub struct Watch {
    /// Iterations in a row in which no prompt had any variance, per reward.
    flat_for: BTreeMap<String, u64>,
    /// Rewards that were said to have two values.
    two_valued: BTreeSet<String>,
}

impl Watch {
    /// What should be told about an iteration, a line each. Its scores are all leaves', the statistics those of the
    /// leaves that are trained on.
    pub fn look(&mut self, scores: &[RewardScores], mixed: &MixedAdvantages, selection: &Selection) -> Vec<String> {
        let mut lines: Vec<String> = selection.describe().into_iter().collect();
        for (name, statistics) in &mixed.rewards {
            let (flat, groups) = (statistics.zero_std_groups, statistics.groups);
            if flat > 0 {
                lines.push(format!("reward `{name}` has no variance in {flat} of {groups} groups"));
            }
            let flat_for = self.flat_for.entry(name.clone()).or_default();
            *flat_for = if flat == groups { *flat_for + 1 } else { 0 };
            if is_told(*flat_for) {
                lines.push(format!(
                    "WARNING: reward `{name}` has had no variance in any group for {flat_for} iterations, so nothing is \
                     learnt from it; look at its scores with `treegrpo score`, raise sampling.noise_level, or use more \
                     leaves per prompt"
                ));
            }
            let own = scores.iter().find(|reward| reward.name == *name);
            let kept = own
                .into_iter()
                .flat_map(|reward| reward.values.iter().zip(&selection.kept));
            let kept: Vec<f64> = kept.filter(|(_, kept)| **kept).map(|(score, _)| *score).collect();
            if let Some(share) = upper_share(&kept)
                && self.two_valued.insert(name.clone())
            {
                let leaves = statistics.count as f64 / groups as f64;
                lines.push(two_values_line(name, share, leaves));
            }
        }
        lines
    }
}

/// Whether a row of flat iterations is this long for the first time, or twice as long as when it was last told.
fn is_told(flat_for: u64) -> bool {
    flat_for.is_multiple_of(PATIENCE) && (flat_for / PATIENCE).is_power_of_two()
}

/// The share of the larger of two scores, if there are exactly two and enough leaves to say so.
fn upper_share(scores: &[f64]) -> Option<f64> {
    let (low, high) = scores
        .iter()
        .fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), &score| {
            (low.min(score), high.max(score))
        });
    let two = low < high && scores.iter().all(|score| *score == low || *score == high);
    let upper = scores.iter().filter(|score| **score == high).count();
    (two && scores.len() >= LEAVES_FOR_TWO_VALUES).then(|| upper as f64 / scores.len() as f64)
}

/// The expected share of groups of `leaves` independent leaves whose scores are all alike, when one of two scores has
/// the probability `share`: `p^G + (1 - p)^G`.
#[must_use]
pub fn homogeneous_share(share: f64, leaves: f64) -> f64 {
    share.powf(leaves) + (1.0 - share).powf(leaves)
}

/// Says what a reward with two values leads to, and how many leaves would help.
fn two_values_line(name: &str, share: f64, leaves: f64) -> String {
    let percent = |share: f64| format!("{:.0} %", 100.0 * share);
    let expected = homogeneous_share(share, leaves);
    let mut line = format!(
        "reward `{name}` has two values, the larger one in {} of the leaves: with {leaves:.0} leaves per prompt at least \
         {} of the prompts are expected to say nothing",
        percent(share),
        percent(expected)
    );
    // The share falls towards 0, because neither value has the probability 1.
    let enough = |leaves: &f64| homogeneous_share(share, *leaves) <= BEARABLE_SHARE;
    if let (false, Some(wanted)) = (enough(&leaves), (2_u32..).map(f64::from).find(enough)) {
        line.push_str(&format!(
            ", with {wanted:.0} it would be {}; use more children, a wider window or more trees",
            percent(homogeneous_share(share, wanted))
        ));
    }
    line
}
