//! From node values to edge advantages.

use serde::{Deserialize, Serialize};

use crate::backup::BackupError;
use crate::forest::Forest;

/// The advantage of the edge above a node, from the values that a [`Backup`](crate::Backup) gave to all nodes.
///
/// A root has no edge above it; under every rule its entry is its value, and nothing is trained with it.
///
/// ```
/// use tree_core::{Credit, Forest};
///
/// let mut forest = Forest::new([(0, ())])?;
/// forest.grow(|_, ()| 3, |_, (), _| ())?;
/// // 1 - (0.1 - 0.2)/2 = 1.05, 0.1 - (1 - 0.2)/2 = -0.3, -0.2 - (1 + 0.1)/2 = -0.75
/// let edges = Credit::Siblings.edges(&forest, &[0.3, 1.0, 0.1, -0.2])?;
/// assert!((edges[1] - 1.05).abs() < 1e-12 && (edges[2] + 0.3).abs() < 1e-12 && (edges[3] + 0.75).abs() < 1e-12);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Credit {
    /// `value(child)`: how good the leaves below are (the TreeGRPO paper).
    #[default]
    Subtree,
    /// `value(child) - value(parent)`: what the step changed. The credits of a path add up to the leaf's value.
    Temporal,
    /// `value(child) - mean(value of the other siblings)`: leave-one-out. Unbiased, free of the variance of the
    /// parent's value, exactly 0 where all siblings agree, and 0 for an only child. Under the mean backup the credits
    /// of siblings sum to 0.
    Siblings,
    /// The leaf's value on every edge of its path (DDPO, Flow-GRPO, DanceGRPO, MixGRPO), meant for chains. In a tree
    /// that branches, an edge gets the plain mean over all leaves below it, each leaf counting once; that differs from
    /// [`Credit::Subtree`] where the tree is ragged or the backup is a softmax.
    Trajectory,
    /// Values normalised over all nodes of the same level in the same group (BranchGRPO, where a group is one tree):
    /// `(value - mean) / (sample std + 1e-8)`, and 0 where the std is below 1e-6 or the node is alone.
    PerDepth,
}

impl Credit {
    /// The advantage of the edge above every node, from one value per node.
    ///
    /// # Errors
    ///
    /// Refuses a slice that does not hold one value per node.
    pub fn edges<T>(&self, forest: &Forest<T>, values: &[f64]) -> Result<Vec<f64>, BackupError> {
        let mut edges = values.to_vec();
        self.replace(forest, &mut edges)?;
        Ok(edges)
    }

    /// Like [`Credit::edges`], in place of the values, so that nothing large is allocated.
    ///
    /// # Errors
    ///
    /// Those of [`Credit::edges`], before anything has changed.
    pub fn replace<T>(&self, forest: &Forest<T>, values: &mut [f64]) -> Result<(), BackupError> {
        if values.len() != forest.len() {
            return Err(BackupError::NodeCount {
                what: "values",
                expected: forest.len(),
                got: values.len(),
            });
        }
        match self {
            Self::Subtree => {}
            Self::Temporal => temporal(forest, values),
            Self::Siblings => siblings(forest, values),
            Self::Trajectory => trajectory(forest, values),
            Self::PerDepth => per_depth(forest, values),
        }
        Ok(())
    }
}

/// The differences of children and parents, from the last level up, where parents are still values.
fn temporal<T>(forest: &Forest<T>, values: &mut [f64]) {
    for node in (0..forest.len()).rev() {
        let parent = values[node];
        values[forest.children(node)]
            .iter_mut()
            .for_each(|child| *child -= parent);
    }
}

/// Leave-one-out over all siblings.
fn siblings<T>(forest: &Forest<T>, values: &mut [f64]) {
    for level in 0..forest.levels() - 1 {
        let children = &mut values[forest.level(level + 1)];
        match forest.branching(level) {
            // A fixed number of siblings lets the compiler unroll and vectorise.
            Some(2) => children
                .as_chunks_mut::<2>()
                .0
                .iter_mut()
                .for_each(|siblings| leave_one_out(siblings)),
            Some(3) => children
                .as_chunks_mut::<3>()
                .0
                .iter_mut()
                .for_each(|siblings| leave_one_out(siblings)),
            Some(4) => children
                .as_chunks_mut::<4>()
                .0
                .iter_mut()
                .for_each(|siblings| leave_one_out(siblings)),
            _ => forest
                .level(level)
                .for_each(|node| leave_one_out(&mut values[forest.children(node)])),
        }
    }
}

/// Turns the values of siblings into `value - mean of the others`, in one pass over each.
///
/// With `d = value - first`, that is `(n·d - Σd) / (n - 1)`: exactly 0 when all agree, which the difference of two
/// means is not.
#[inline]
fn leave_one_out(siblings: &mut [f64]) {
    let [first, _, ..] = *siblings else {
        siblings.fill(0.0);
        return;
    };
    let count = siblings.len() as f64;
    let total: f64 = siblings.iter().map(|value| value - first).sum();
    for value in siblings {
        *value = (count * (*value - first) - total) / (count - 1.0);
    }
}

/// The mean over the leaves below each edge, every leaf counting once.
fn trajectory<T>(forest: &Forest<T>, values: &mut [f64]) {
    // Sums of leaf values go up first, and become means on a second pass.
    let roots = values[forest.level(0)].to_vec();
    let mut leaves = vec![1_u32; forest.len()];
    for node in (0..forest.len()).rev() {
        let children = forest.children(node);
        if !children.is_empty() {
            values[node] = values[children.clone()].iter().sum();
            leaves[node] = leaves[children].iter().sum();
        }
    }
    for (value, &count) in values.iter_mut().zip(&leaves) {
        *value /= f64::from(count);
    }
    values[forest.level(0)].copy_from_slice(&roots);
}

/// Values normalised over the nodes of one level and one group.
fn per_depth<T>(forest: &Forest<T>, values: &mut [f64]) {
    const EPSILON: f64 = 1e-8;
    const FLOOR: f64 = 1e-6;
    let groups = forest.groups().len();
    let mut counts = vec![0.0; groups];
    let mut means = vec![0.0; groups];
    let mut scales = vec![0.0; groups];
    for level in 1..forest.levels() {
        counts.fill(0.0);
        means.fill(0.0);
        scales.fill(0.0);
        // Two passes, because a sum of squares loses the digits that small differences consist of.
        for node in forest.level(level) {
            let slot = forest.group_slot(node);
            counts[slot] += 1.0;
            means[slot] += values[node];
        }
        for (mean, count) in means.iter_mut().zip(&counts) {
            *mean /= f64::max(*count, 1.0);
        }
        for node in forest.level(level) {
            let slot = forest.group_slot(node);
            scales[slot] += (values[node] - means[slot]).powi(2);
        }
        // From sums of squares to factors: 0 where the level does not vary.
        for (scale, count) in scales.iter_mut().zip(&counts) {
            let std = (*scale / f64::max(count - 1.0, 1.0)).sqrt();
            *scale = if std < FLOOR { 0.0 } else { 1.0 / (std + EPSILON) };
        }
        for node in forest.level(level) {
            let slot = forest.group_slot(node);
            values[node] = (values[node] - means[slot]) * scales[slot];
        }
    }
}
