//! From scores to the advantage of every edge: normalise, mix, back up, give credit. All of it is `tree-core`'s; this
//! module only keeps what the log shows.

use policy_sd3::kernel::Reduction;
use rewards::RewardScores;
use tree_core::{Backup, Credit, EdgeLogProbs, MixedAdvantages, Normalisation, RewardMix, RunningRewards};

use crate::error::TrainError;
use crate::rollout::{Rollout, Sampling};

/// How scores become advantages.
#[derive(Debug, Clone)]
pub struct CreditRule {
    /// Leaf advantages.
    pub normalisation: Normalisation,
    /// Several rewards.
    pub mix: RewardMix,
    /// Leaf values to node values.
    pub backup: Backup,
    /// Node values to edge advantages.
    pub credit: Credit,
}

/// Advantages of a rollout, and what they came from.
#[derive(Debug, Clone)]
pub struct EdgeAdvantages {
    /// Advantage of the edge above every node.
    pub edges: Vec<f64>,
    /// Leaf advantages and statistics of the scores.
    pub mixed: MixedAdvantages,
    /// Mean effective number of children behind a branching node's value.
    pub effective_sample_size: f64,
    /// Standard deviation, over the nodes of a prompt, of the values after each stochastic step.
    pub value_std: Vec<(usize, f64)>,
}

impl CreditRule {
    /// The advantages of a rollout's edges. `scores` has one value per leaf and reward; `indices` are the prompts'
    /// places in their file, one per row of the prompt table.
    ///
    /// # Errors
    ///
    /// A score is not finite, or a name or length does not fit.
    pub fn advantages(
        &self,
        rollout: &Rollout,
        scores: &[RewardScores],
        running: &mut RunningRewards,
        sampling: &Sampling,
        indices: &[usize],
    ) -> Result<EdgeAdvantages, TrainError> {
        let forest = &rollout.forest;
        let named: Vec<(&str, &[f64])> = scores
            .iter()
            .filter(|s| !s.eval_only)
            .map(|s| (s.name.as_str(), s.values.as_slice()))
            .collect();
        // Statistics that outlive the iteration are kept per prompt of the file, not per place in the iteration.
        let groups: Vec<usize> = rollout.leaf_prompts.iter().map(|row| indices[*row]).collect();
        let mixed = self
            .mix
            .advantages_with(&self.normalisation, &named, &groups, running)?;
        let dimensions: usize = sampling.shape.iter().product();
        let reduced_by = match sampling.log_prob.reduction {
            Reduction::Mean => 1.0,
            Reduction::Sum => dimensions as f64,
        };
        // Log-probs of the deterministic edges do not exist and are never looked at.
        let mut log_probs = vec![0.0; forest.len()];
        for level in &rollout.levels {
            for (slot, log_prob) in log_probs[level.edges()].iter_mut().zip(&level.log_probs) {
                *slot = log_prob / reduced_by;
            }
        }
        let log_probs = EdgeLogProbs {
            mean_reduced: &log_probs,
            dimensions,
        };
        let values = self.backup.values(forest, &mixed.values, log_probs)?;
        let edges = self.credit.edges(forest, &values)?;
        let sizes = self.backup.effective_sample_sizes(forest, log_probs)?;
        let branching: Vec<f64> = sizes.into_iter().flatten().collect();
        // An empty sum of floats is −0, which would show.
        let effective_sample_size = branching.iter().fold(0.0, |sum, size| sum + size) / branching.len().max(1) as f64;
        let value_std = rollout
            .levels
            .iter()
            .map(|level| {
                let nodes = level.edges();
                (
                    level.step,
                    std_within_groups(&values[nodes.clone()], nodes.map(|n| forest.group(n))),
                )
            })
            .collect();
        Ok(EdgeAdvantages {
            edges,
            mixed,
            effective_sample_size,
            value_std,
        })
    }
}

/// Root of the mean squared deviation of values from the mean of their own group.
fn std_within_groups(values: &[f64], groups: impl Iterator<Item = usize>) -> f64 {
    let mut sums: std::collections::BTreeMap<usize, (f64, f64)> = std::collections::BTreeMap::new();
    let groups: Vec<usize> = groups.collect();
    for (value, group) in values.iter().zip(&groups) {
        let entry = sums.entry(*group).or_default();
        entry.0 += value;
        entry.1 += 1.0;
    }
    let squares: f64 = values
        .iter()
        .zip(&groups)
        .map(|(value, group)| {
            let (sum, count) = sums[group];
            (value - sum / count).powi(2)
        })
        .sum();
    (squares / values.len().max(1) as f64).sqrt()
}
