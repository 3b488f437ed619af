//! From leaf values to the values of all nodes.

use serde::{Deserialize, Serialize};

use crate::forest::Forest;

/// How a node's value is made of its children's: `value(node) = Σ weight · value(child)`, weights summing to 1. A node
/// with one child has that child's value, whatever the rule; a leaf has its own.
///
/// ```
/// use tree_core::{Backup, EdgeLogProbs, Forest};
///
/// let mut forest = Forest::new([(0, ())])?;
/// forest.grow(|_, ()| 3, |_, (), _| ())?;
/// let values = Backup::Mean.values(&forest, &[1.0, 0.1, -0.2], EdgeLogProbs::NONE)?;
/// assert!((values[0] - 0.3).abs() < 1e-12);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Backup {
    /// Equal weights (the program released with the TreeGRPO paper).
    ///
    /// It is the default, because siblings drawn from one Gaussian differ in log-prob only by the norm of their noise,
    /// which says nothing about how good they are.
    #[default]
    Mean,
    /// `weights = softmax(log_prob / temperature)` over the children of a node (the text of the TreeGRPO paper).
    ///
    /// Watch [`Backup::effective_sample_sizes`]: mean-reduced log-probs make the weights uniform to three digits,
    /// summed ones make them one-hot.
    Softmax {
        /// Positive and finite, in units of the (reduced) log-prob. Large temperatures approach the mean.
        temperature: f64,
        /// How the log-probs are reduced before they are compared.
        #[serde(default)]
        reduction: LogProbReduction,
    },
}

/// How a log-prob is reduced over the dimensions of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LogProbReduction {
    /// The mean over the dimensions, in nats per dimension. What log-probs are stored as.
    #[default]
    Mean,
    /// The sum over the dimensions, in nats: the true log-density.
    Sum,
}

/// The log-probs of the edges of a forest.
#[derive(Clone, Copy, Debug)]
pub struct EdgeLogProbs<'a> {
    /// One per node, of the edge above it, averaged over the dimensions of a sample (in nats per dimension). Entries of
    /// roots and of only children are not looked at and may be anything.
    pub mean_reduced: &'a [f64],
    /// Dimensions of a sample; [`LogProbReduction::Sum`] multiplies by it. Use 1 for log-probs of sequences or moves
    /// that are totals already.
    pub dimensions: usize,
}

/// Why values could not be backed up or credited.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// A slice for other leaves.
    #[error(
        "{got} leaf values were given for a forest of {expected} leaves; give one per leaf, in the order of \
         Forest::leaves"
    )]
    LeafCount {
        /// Leaves of the forest.
        expected: usize,
        /// Values given.
        got: usize,
    },
    /// A slice for other nodes.
    #[error("{got} {what} were given for a forest of {expected} nodes; give one per node")]
    NodeCount {
        /// What the slice holds.
        what: &'static str,
        /// Nodes of the forest.
        expected: usize,
        /// Entries given.
        got: usize,
    },
    /// A NaN or an infinity among the leaf values.
    #[error("the value of leaf {leaf} (node {node}) is {value}; leaf values must be finite")]
    NonFiniteValue {
        /// Its place among the leaves.
        leaf: usize,
        /// Its node.
        node: usize,
        /// The value.
        value: f64,
    },
    /// A NaN or an infinity among the log-probs of siblings.
    #[error(
        "the log-prob of the edge above node {node} is {value}; a softmax backup needs finite log-probs at every \
         branching"
    )]
    NonFiniteLogProb {
        /// The node below the edge.
        node: usize,
        /// The log-prob.
        value: f64,
    },
    /// A temperature that makes no softmax.
    #[error(
        "the temperature of a softmax backup must be positive and finite, not {temperature}; use the mean backup for \
         equal weights"
    )]
    Temperature {
        /// The temperature given.
        temperature: f64,
    },
    /// Log-probs over no dimension.
    #[error("a sample with 0 dimensions has no log-prob; pass the number of elements of a sample")]
    Dimensions,
}

impl EdgeLogProbs<'static> {
    /// No log-probs: enough for [`Backup::Mean`].
    pub const NONE: Self = Self {
        mean_reduced: &[],
        dimensions: 1,
    };
}

impl Backup {
    /// The value of every node, from one finite value per leaf in the order of [`Forest::leaves`]. The mean does not
    /// look at the log-probs.
    ///
    /// # Errors
    ///
    /// Refuses slices of the wrong length, non-finite values and log-probs (naming the node), and a temperature that is
    /// not positive and finite.
    pub fn values<T>(
        &self,
        forest: &Forest<T>,
        leaf_values: &[f64],
        log_probs: EdgeLogProbs<'_>,
    ) -> Result<Vec<f64>, BackupError> {
        let mut values = Vec::new();
        self.values_into(forest, leaf_values, log_probs, &mut values)?;
        Ok(values)
    }

    /// Like [`Backup::values`], into a vector whose memory is used again. After an error its content is unspecified.
    ///
    /// # Errors
    ///
    /// Those of [`Backup::values`].
    pub fn values_into<T>(
        &self,
        forest: &Forest<T>,
        leaf_values: &[f64],
        log_probs: EdgeLogProbs<'_>,
        values: &mut Vec<f64>,
    ) -> Result<(), BackupError> {
        if leaf_values.len() != forest.leaf_count() {
            return Err(BackupError::LeafCount {
                expected: forest.leaf_count(),
                got: leaf_values.len(),
            });
        }
        check_finite(forest, leaf_values)?;
        match self.softmax(forest, log_probs)? {
            None => back_up(forest, leaf_values, values, &Uniform),
            Some(softmax) => back_up(forest, leaf_values, values, &softmax),
        }
    }

    /// The weight of every node in its parent's value; 1 for roots and only children.
    ///
    /// # Errors
    ///
    /// Those of [`Backup::values`] that concern log-probs.
    pub fn weights<T>(&self, forest: &Forest<T>, log_probs: EdgeLogProbs<'_>) -> Result<Vec<f64>, BackupError> {
        let softmax = self.softmax(forest, log_probs)?;
        let mut weights = vec![1.0; forest.len()];
        for node in 0..forest.len() {
            let children = forest.children(node);
            match (&softmax, children.len()) {
                (_, 0 | 1) => {}
                (None, count) => weights[children].fill(1.0 / count as f64),
                (Some(softmax), count) => {
                    let maximum = softmax.maximum(children.start, count)?;
                    let mut total = 0.0;
                    for child in children.clone() {
                        weights[child] = softmax.unnormalised(child, maximum);
                        total += weights[child];
                    }
                    weights[children].iter_mut().for_each(|weight| *weight /= total);
                }
            }
        }
        Ok(weights)
    }

    /// The effective sample size `1 / Σ weight²` of every node with two or more children, none elsewhere. It lies
    /// between 1 (one child decides) and the number of children (all count alike).
    ///
    /// # Errors
    ///
    /// Those of [`Backup::weights`].
    pub fn effective_sample_sizes<T>(
        &self,
        forest: &Forest<T>,
        log_probs: EdgeLogProbs<'_>,
    ) -> Result<Vec<Option<f64>>, BackupError> {
        let weights = self.weights(forest, log_probs)?;
        let size = |node| {
            let children = forest.children(node);
            (children.len() > 1).then(|| 1.0 / weights[children].iter().map(|weight| weight * weight).sum::<f64>())
        };
        Ok((0..forest.len()).map(size).collect())
    }

    /// The checked parts of a softmax; none for the mean.
    fn softmax<'a, T>(
        &self,
        forest: &Forest<T>,
        log_probs: EdgeLogProbs<'a>,
    ) -> Result<Option<Softmax<'a>>, BackupError> {
        let Self::Softmax { temperature, reduction } = *self else {
            return Ok(None);
        };
        if !(temperature.is_finite() && temperature > 0.0) {
            return Err(BackupError::Temperature { temperature });
        }
        if log_probs.dimensions == 0 {
            return Err(BackupError::Dimensions);
        }
        let got = log_probs.mean_reduced.len();
        if got != forest.len() {
            return Err(BackupError::NodeCount {
                what: "edge log-probs",
                expected: forest.len(),
                got,
            });
        }
        let dimensions = match reduction {
            LogProbReduction::Mean => 1.0,
            LogProbReduction::Sum => log_probs.dimensions as f64,
        };
        Ok(Some(Softmax {
            log_probs: log_probs.mean_reduced,
            scale: dimensions / temperature,
        }))
    }
}

/// A softmax over siblings. It is stable because only differences to the largest log-prob are raised.
struct Softmax<'a> {
    log_probs: &'a [f64],
    /// Dimensions summed over, divided by the temperature.
    scale: f64,
}

impl Softmax<'_> {
    /// The largest log-prob of `count` siblings.
    #[inline]
    fn maximum(&self, first: usize, count: usize) -> Result<f64, BackupError> {
        let siblings = &self.log_probs[first..first + count];
        let mut maximum = f64::NEG_INFINITY;
        for (child, &value) in siblings.iter().enumerate() {
            if !value.is_finite() {
                return Err(BackupError::NonFiniteLogProb {
                    node: first + child,
                    value,
                });
            }
            maximum = maximum.max(value);
        }
        Ok(maximum)
    }

    /// The weight of a node before the division by the sum over its siblings.
    #[inline]
    fn unnormalised(&self, node: usize, maximum: f64) -> f64 {
        ((self.log_probs[node] - maximum) * self.scale).exp()
    }
}

/// How siblings are averaged. The number of the first one finds their log-probs.
trait Average {
    /// The average of two or more siblings.
    fn average(&self, first: usize, values: &[f64]) -> Result<f64, BackupError>;

    /// The averages of groups of `K` siblings that lie side by side. A fixed number lets the compiler unroll and
    /// vectorise the loop.
    #[inline]
    fn averages<const K: usize>(
        &self,
        parents: &mut [f64],
        mut first: usize,
        children: &[f64],
    ) -> Result<(), BackupError> {
        for (parent, siblings) in parents.iter_mut().zip(children.as_chunks::<K>().0) {
            *parent = self.average(first, siblings)?;
            first += K;
        }
        Ok(())
    }
}

/// Equal weights.
struct Uniform;

impl Average for Uniform {
    /// The mean, taken relative to the first value: equal values have exactly that value as their mean, so siblings
    /// that agree get a credit of exactly 0 further on.
    #[inline]
    fn average(&self, _: usize, values: &[f64]) -> Result<f64, BackupError> {
        let sum: f64 = values.iter().map(|value| value - values[0]).sum();
        Ok(values[0] + sum / values.len() as f64)
    }
}

impl Average for Softmax<'_> {
    /// The weighted mean, relative to the first value for the same reason.
    #[inline]
    fn average(&self, first: usize, values: &[f64]) -> Result<f64, BackupError> {
        let maximum = self.maximum(first, values.len())?;
        let (mut total, mut sum) = (0.0, 0.0);
        for (child, value) in values.iter().enumerate() {
            let weight = self.unnormalised(first + child, maximum);
            total += weight;
            sum += weight * (value - values[0]);
        }
        Ok(values[0] + sum / total)
    }
}

/// Walks the levels from the last one up.
fn back_up<T>(
    forest: &Forest<T>,
    leaf_values: &[f64],
    values: &mut Vec<f64>,
    rule: &impl Average,
) -> Result<(), BackupError> {
    values.clear();
    values.resize(forest.len(), 0.0);
    // How many leaves lie above the levels that are done.
    let mut leaves = leaf_values.len();
    for level in (0..forest.levels()).rev() {
        let nodes = forest.level(level);
        let (above, below) = values.split_at_mut(nodes.end);
        let parents = &mut above[nodes.clone()];
        match forest.branching(level) {
            Some(0) => {
                leaves -= nodes.len();
                parents.copy_from_slice(&leaf_values[leaves..leaves + nodes.len()]);
            }
            Some(1) => parents.copy_from_slice(&below[..nodes.len()]),
            Some(2) => rule.averages::<2>(parents, nodes.end, below)?,
            Some(3) => rule.averages::<3>(parents, nodes.end, below)?,
            Some(4) => rule.averages::<4>(parents, nodes.end, below)?,
            _ => {
                for node in nodes.clone().rev() {
                    let children = forest.children(node);
                    parents[node - nodes.start] = match children.len() {
                        0 => {
                            leaves -= 1;
                            leaf_values[leaves]
                        }
                        1 => below[children.start - nodes.end],
                        count => rule.average(children.start, &below[children.start - nodes.end..][..count])?,
                    };
                }
            }
        }
    }
    Ok(())
}

/// Refuses NaN and infinities.
fn check_finite<T>(forest: &Forest<T>, leaf_values: &[f64]) -> Result<(), BackupError> {
    // Without an early exit the loop over good values is vectorised; the culprit is sought only when there is one.
    if leaf_values
        .iter()
        .fold(true, |finite, value| finite & value.is_finite())
    {
        return Ok(());
    }
    match forest
        .leaves()
        .zip(leaf_values)
        .enumerate()
        .find(|(_, (_, value))| !value.is_finite())
    {
        Some((leaf, (node, &value))) => Err(BackupError::NonFiniteValue { leaf, node, value }),
        None => Ok(()),
    }
}
