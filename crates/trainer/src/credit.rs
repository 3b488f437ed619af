//! From scores to the advantage of every edge: normalise, mix, back up, give credit. All of it is `tree-core`'s; this
//! module only keeps what the log shows.

use policy_sd3::kernel::Reduction;
use rewards::RewardScores;
use tree_core::{
    Backup, Credit, EdgeLogProbs, Forest, LevelWeight, MixedAdvantages, Normalisation, Plan, RewardMix, RunningRewards,
    Subforest,
};

use crate::error::TrainError;
use crate::gaps::{NonFiniteScores, Selection};
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
    /// What becomes of leaves without a score.
    pub non_finite_scores: NonFiniteScores,
}

/// Advantages of a rollout, and what they came from.
#[derive(Debug, Clone)]
pub struct EdgeAdvantages {
    /// Advantage of the edge above every node; 0 where the leaves below are dropped.
    pub edges: Vec<f64>,
    /// Leaf advantages and statistics of the scores, of the leaves that are trained on.
    pub mixed: MixedAdvantages,
    /// Mean effective number of children behind a branching node's value.
    pub effective_sample_size: f64,
    /// Standard deviation, over the nodes of a prompt, of the values after each stochastic step.
    pub value_std: Vec<(usize, f64)>,
    /// Which leaves are trained on.
    pub selection: Selection,
    /// The trees without the dropped leaves; none if all are trained on.
    pub left: Option<Subforest>,
}

impl CreditRule {
    /// The advantages of a rollout's edges. `scores` has one value per leaf and reward; `indices` are the prompts'
    /// places in their file, one per row of the prompt table.
    ///
    /// # Errors
    ///
    /// A score is not finite and the rule is to stop then, no leaf is left, or a name or length does not fit. The
    /// memory of running statistics is then as it was.
    pub fn advantages(
        &self,
        rollout: &Rollout,
        scores: &[RewardScores],
        running: &mut RunningRewards,
        sampling: &Sampling,
        indices: &[usize],
    ) -> Result<EdgeAdvantages, TrainError> {
        let forest = &rollout.forest;
        let trained: Vec<&RewardScores> = scores.iter().filter(|s| !s.eval_only).collect();
        // Statistics that outlive the iteration are kept per prompt of the file, not per place in the iteration.
        let groups: Vec<usize> = rollout.leaf_prompts.iter().map(|row| indices[*row]).collect();
        let selection = self.non_finite_scores.select(&trained, &groups)?;
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
        let whole = Scored {
            scores: trained.iter().map(|s| (s.name.as_str(), s.values.clone())).collect(),
            groups,
            log_probs,
            dimensions,
        };
        let steps: Vec<usize> = rollout.levels.iter().map(|level| level.step).collect();
        if selection.is_whole() {
            return self.over(forest, &whole, &steps, selection, running);
        }
        let left = Subforest::new(forest, &selection.kept)?;
        let mut found = self.over(left.forest(), &whole.only(&left), &steps, selection, running)?;
        found.edges = left.to_whole(&found.edges);
        found.left = Some(left);
        Ok(found)
    }

    /// The advantages of the edges of a forest all of whose leaves have a score.
    fn over<T>(
        &self,
        forest: &Forest<T>,
        scored: &Scored<'_>,
        steps: &[usize],
        selection: Selection,
        running: &mut RunningRewards,
    ) -> Result<EdgeAdvantages, TrainError> {
        let named: Vec<(&str, &[f64])> = scored.scores.iter().map(|(name, v)| (*name, v.as_slice())).collect();
        let mixed = self
            .mix
            .advantages_with(&self.normalisation, &named, &scored.groups, running)?;
        let log_probs = EdgeLogProbs {
            mean_reduced: &scored.log_probs,
            dimensions: scored.dimensions,
        };
        let values = self.backup.values(forest, &mixed.values, log_probs)?;
        let edges = self.credit.edges(forest, &values)?;
        let sizes = self.backup.effective_sample_sizes(forest, log_probs)?;
        let branching: Vec<f64> = sizes.into_iter().flatten().collect();
        // An empty sum of floats is −0, which would show.
        let effective_sample_size = branching.iter().fold(0.0, |sum, size| sum + size) / branching.len().max(1) as f64;
        let value_std = steps.iter().map(|&step| {
            // The nodes after a step are the level below it.
            let nodes = forest.level(step + 1);
            let groups = nodes.clone().map(|node| forest.group(node));
            (step, std_within_groups(&values[nodes], groups))
        });
        Ok(EdgeAdvantages {
            value_std: value_std.collect(),
            edges,
            mixed,
            effective_sample_size,
            selection,
            left: None,
        })
    }
}

impl EdgeAdvantages {
    /// What the loss of the edge above every node is multiplied by, beside the weight of its step; none if nothing was
    /// dropped. See [`Subforest::edge_factors`].
    #[must_use]
    pub fn edge_factors(&self, plan: &Plan, weight: LevelWeight) -> Option<Vec<f64>> {
        self.left.as_ref().map(|left| left.edge_factors(plan, weight))
    }

    /// Of an iteration's prompts, those of which a leaf is trained on: what the objective is a mean over.
    #[must_use]
    pub fn prompts_left(&self, prompts: usize) -> usize {
        self.left.as_ref().map_or(prompts, |left| left.forest().groups().len())
    }
}

/// What credit is computed from, beside the trees.
struct Scored<'a> {
    /// Per reward one value per leaf.
    scores: Vec<(&'a str, Vec<f64>)>,
    /// One per leaf.
    groups: Vec<usize>,
    /// One per node, of the edge above it, in nats per dimension.
    log_probs: Vec<f64>,
    /// Elements of a latent.
    dimensions: usize,
}

impl Scored<'_> {
    /// The entries of the leaves and nodes that are left.
    fn only(&self, left: &Subforest) -> Self {
        let scores = self.scores.iter().map(|(name, values)| (*name, left.of_leaves(values)));
        Self {
            scores: scores.collect(),
            groups: left.of_leaves(&self.groups),
            log_probs: left.of_nodes(&self.log_probs),
            dimensions: self.dimensions,
        }
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
