//! What is left of a forest when some of its leaves are dropped.

use crate::forest::{Forest, ForestError};
use crate::plan::{LevelWeight, Plan};

/// A forest without some of its leaves, and without the nodes that had no others below them.
///
/// A leaf whose score could not be had must count for nothing: in no mean or deviation, no backup, no baseline and no
/// gradient. No rule has to know of such leaves, because all of them run on this smaller forest, and their results are
/// put back into the places of the whole one. So dropping a leaf is the same as never having drawn it.
///
/// ```
/// use tree_core::{Backup, Credit, EdgeLogProbs, Forest, Normalisation, Subforest};
///
/// let mut forest = Forest::new([(0, ())])?;
/// forest.grow(|_, ()| 2, |_, (), _| ())?;
/// forest.grow(|_, ()| 2, |_, (), _| ())?;
/// let scores = [1.0, f64::NAN, 5.0, 3.0];
/// let left = Subforest::new(&forest, &scores.map(f64::is_finite))?;
///
/// // The mean of 1, 5 and 3 is 3 and their std √(8/3) = 1.632993.
/// let advantages = Normalisation::default().advantages(&left.of_leaves(&scores), &left.forest().leaf_groups())?;
/// let values = Backup::Mean.values(left.forest(), &advantages.values, EdgeLogProbs::NONE)?;
/// let edges = left.to_whole(&Credit::Siblings.edges(left.forest(), &values)?);
/// // Node 1 has only the leaf with score 1 left: -2 against the +1 of its sibling, and the leaf an only child.
/// assert!((edges[1] + 3.0 / 1.632993).abs() < 1e-6);
/// assert_eq!(edges[3..5], [0.0, 0.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subforest {
    /// Every node carries its number in the whole forest, ascending.
    forest: Forest<usize>,
    /// For every leaf of the whole forest, whether it is left.
    kept: Vec<bool>,
    /// Nodes of the whole forest.
    whole: usize,
}

impl Subforest {
    /// The forest with those leaves only for which `kept`, in the order of [`Forest::leaves`], is true. Groups keep
    /// their numbers.
    ///
    /// # Errors
    ///
    /// Refuses a slice that does not hold one entry per leaf, and dropping them all.
    pub fn new<T>(whole: &Forest<T>, kept: &[bool]) -> Result<Self, ForestError> {
        if kept.len() != whole.leaf_count() {
            return Err(ForestError::KeptLength {
                expected: whole.leaf_count(),
                got: kept.len(),
            });
        }
        let mut left = vec![false; whole.len()];
        for (leaf, &kept) in whole.leaves().zip(kept) {
            left[leaf] = kept;
        }
        // Children have higher numbers than their parents, so one pass from the end reaches the roots.
        for node in (0..whole.len()).rev() {
            if let (true, Some(parent)) = (left[node], whole.parent(node)) {
                left[parent] = true;
            }
        }
        let roots = whole.level(0).filter(|&root| left[root]);
        let mut forest = match Forest::new(roots.map(|root| (whole.group(root), root))) {
            Err(ForestError::NoRoots) => return Err(ForestError::NothingKept),
            forest => forest?,
        };
        loop {
            let level = forest.level(forest.levels() - 1);
            let children = |&node: &usize| whole.children(node).filter(|&child| left[child]);
            let parents = &forest.payloads()[level];
            let counts: Vec<usize> = parents.iter().map(|node| children(node).count()).collect();
            let nodes: Vec<usize> = parents.iter().flat_map(children).collect();
            if forest.grow_from(&counts, nodes)?.is_empty() {
                break;
            }
        }
        Ok(Self {
            forest,
            kept: kept.to_vec(),
            whole: whole.len(),
        })
    }

    /// The smaller forest. Every node carries its number in the whole one.
    #[must_use]
    pub fn forest(&self) -> &Forest<usize> {
        &self.forest
    }

    /// The entries of the leaves that are left, from one entry per leaf of the whole forest.
    ///
    /// # Panics
    ///
    /// If there are not as many entries as the whole forest has leaves.
    #[must_use]
    pub fn of_leaves<V: Copy>(&self, entries: &[V]) -> Vec<V> {
        assert_eq!(entries.len(), self.kept.len(), "one entry per leaf of the whole forest");
        let left = entries.iter().zip(&self.kept).filter(|(_, kept)| **kept);
        left.map(|(entry, _)| *entry).collect()
    }

    /// The entries of the nodes that are left, from one entry per node of the whole forest.
    ///
    /// # Panics
    ///
    /// If there are not as many entries as the whole forest has nodes.
    #[must_use]
    pub fn of_nodes<V: Copy>(&self, entries: &[V]) -> Vec<V> {
        assert_eq!(entries.len(), self.whole, "one entry per node of the whole forest");
        self.forest.payloads().iter().map(|&node| entries[node]).collect()
    }

    /// One value per node of the whole forest, from one per node that is left; exactly 0 for those that are gone.
    ///
    /// # Panics
    ///
    /// If there are not as many values as nodes are left.
    #[must_use]
    pub fn to_whole(&self, values: &[f64]) -> Vec<f64> {
        assert_eq!(values.len(), self.forest.len(), "one value per node that is left");
        let mut whole = vec![0.0; self.whole];
        for (&node, &value) in self.forest.payloads().iter().zip(values) {
            whole[node] = value;
        }
        whole
    }

    /// What the coefficients of [`Plan::edge_weights`] are multiplied by for a forest of `plan` that lost these leaves:
    /// one factor per node of the whole forest, of the edge above it, exactly 0 where it is gone.
    ///
    /// The coefficients are means, and a mean is over what is there. Under [`LevelWeight::Path`] the factor is the
    /// number of a prompt's edges in the level over the number that is left of them, so that the coefficients of a
    /// level sum to 1 again; under [`LevelWeight::Node`] it is the same ratio of training nodes. It is exactly 1 for a
    /// prompt that lost nothing. The entries of roots mean nothing.
    ///
    /// # Panics
    ///
    /// If the forest has more levels than the plan makes.
    #[must_use]
    pub fn edge_factors(&self, plan: &Plan, weight: LevelWeight) -> Vec<f64> {
        let forest = &self.forest;
        let groups = forest.groups().len();
        let count = |nodes: std::ops::Range<usize>| {
            let mut counts = vec![0_usize; groups];
            nodes.for_each(|node| counts[forest.group_slot(node)] += 1);
            counts
        };
        let mut training_nodes = vec![0; groups];
        for step in plan.stochastic_steps().filter(|&step| step < forest.levels()) {
            for (sum, count) in training_nodes.iter_mut().zip(count(forest.level(step))) {
                *sum += count;
            }
        }
        let mut factors = vec![1.0; forest.len()];
        for level in 1..forest.levels() {
            let (all, left) = match weight {
                LevelWeight::Path => (plan.roots() * plan.width(level), count(forest.level(level))),
                LevelWeight::Node => (plan.counts_per_prompt().training_nodes, training_nodes.clone()),
            };
            for node in forest.level(level) {
                factors[node] = all as f64 / left[forest.group_slot(node)] as f64;
            }
        }
        self.to_whole(&factors)
    }
}
