//! From scores to leaf advantages.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

/// How scores become advantages: `A = (score - mean) / (std + epsilon)`.
///
/// The default is that of the TreeGRPO paper: mean and population std over all leaves of one prompt (all its trees),
/// epsilon 1e-8. Everything is computed in f64 and in two passes.
///
/// ```
/// use tree_core::Normalisation;
///
/// let advantages = Normalisation::default().advantages(&[1.0, 3.0, 0.8, 0.8], &[0, 0, 1, 1])?;
/// assert!((advantages.values[1] - 1.0).abs() < 1e-7);
/// // Equal scores say nothing: exactly 0, and the group is counted.
/// assert_eq!(advantages.values[2..], [0.0, 0.0]);
/// assert_eq!(advantages.statistics.zero_std_fraction(), 0.5);
/// # Ok::<(), tree_core::AdvantageError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Normalisation {
    /// Over what the mean and the std are taken.
    pub scope: Scope,
    /// Which std.
    pub std: StdKind,
    /// Added to the std, in units of the score.
    pub epsilon: f64,
    /// A std of at most `floor · |mean|` counts as 0 and its advantages are exactly 0. The default, 2⁻²³, is the
    /// relative spacing of f32 numbers: scorers compute in f32, so a smaller spread is their rounding, and dividing by
    /// it would turn noise into advantages of the size of real ones.
    pub floor: f64,
}

/// Over what the mean and the std of the scores are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Scope {
    /// Mean and std of the group: all leaves of one prompt (TreeGRPO, DanceGRPO).
    #[default]
    Group,
    /// Mean of the group, std of the whole batch (Flow-GRPO, where the option is called `global_std`). Groups keep
    /// their relative spread, so a prompt on which all leaves are nearly alike weighs little.
    #[serde(alias = "global_std")]
    GroupMeanBatchStd,
    /// Mean and std of the whole batch.
    Batch,
    /// Mean and std of the last `window` scores of the group, over iterations (DDPO); until it has `min_count` of them,
    /// those of the batch. Needs [`Normalisation::advantages_with`].
    Running {
        /// Scores kept per group.
        window: usize,
        /// Scores a group must have before its own statistics are used.
        min_count: usize,
    },
}

/// Which standard deviation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StdKind {
    /// Divides by n.
    #[default]
    Population,
    /// Divides by n - 1.
    Sample,
}

/// Advantages, and the statistics of the scores that tell whether they mean anything.
#[derive(Clone, Debug, PartialEq)]
pub struct Advantages {
    /// One per score, in their order.
    pub values: Vec<f64>,
    /// For the log.
    pub statistics: ScoreStatistics,
}

/// Statistics of one batch of scores. `group_std` and `batch_std` are different things and are kept apart.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScoreStatistics {
    /// Scores.
    pub count: usize,
    /// Groups.
    pub groups: usize,
    /// Groups whose scores do not vary (std at or below the floor).
    pub zero_std_groups: usize,
    /// Scores of the smallest group.
    pub smallest_group: usize,
    /// Scores of the largest group.
    pub largest_group: usize,
    /// The mean of the groups' own stds.
    pub mean_group_std: f64,
    /// The mean of all scores.
    pub batch_mean: f64,
    /// The std of all scores, groups ignored.
    pub batch_std: f64,
}

/// The scores that running statistics remember, by group. It is part of a run's state: store it with the checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RunningStatistics {
    scores: BTreeMap<usize, VecDeque<f64>>,
}

/// Why there are no advantages.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum AdvantageError {
    /// Nothing to normalise.
    #[error("there are no scores to normalise")]
    Empty,
    /// Scores and groups do not belong together.
    #[error("{scores} scores were given with {groups} group numbers; give one group number per score")]
    Length {
        /// Scores given.
        scores: usize,
        /// Group numbers given.
        groups: usize,
    },
    /// A NaN or an infinity.
    #[error(
        "score {index} (group {group}) is {value}; find out why the scorer failed there, or drop the sample before this"
    )]
    NonFinite {
        /// Where it stands among the scores.
        index: usize,
        /// Its group.
        group: usize,
        /// The score.
        value: f64,
    },
    /// Nothing to compare a score with.
    #[error(
        "group {group} has 1 score, but it needs at least two leaves per prompt; use more trees or more \
         children, or normalise over the batch"
    )]
    SingleScore {
        /// The group.
        group: usize,
    },
    /// A batch of one.
    #[error("a single score cannot be normalised over its batch; use two or more")]
    SingleBatch,
    /// Scores so large that their spread is not a number.
    #[error("scores as large as {largest:e} have no spread that f64 can hold; scale the reward down")]
    Overflow {
        /// The largest magnitude among the scores.
        largest: f64,
    },
    /// A setting that makes no sense.
    #[error("{name} of the normalisation must be finite and not negative, not {value}")]
    Setting {
        /// Which one.
        name: &'static str,
        /// Its value.
        value: f64,
    },
    /// Running statistics that can never be used.
    #[error(
        "running statistics keep {window} scores per group but want {min_count} before they are used; use 2 <= \
         min_count <= window"
    )]
    Window {
        /// Scores kept.
        window: usize,
        /// Scores wanted.
        min_count: usize,
    },
    /// Running statistics without their memory.
    #[error(
        "running statistics need the memory of earlier iterations; call advantages_with and keep its RunningStatistics"
    )]
    NeedsHistory,
}

impl Default for Normalisation {
    fn default() -> Self {
        Self {
            scope: Scope::Group,
            std: StdKind::Population,
            epsilon: 1e-8,
            floor: f64::from(f32::EPSILON),
        }
    }
}

impl Normalisation {
    /// The advantages of scores, each with the number of its group, in any order.
    ///
    /// # Errors
    ///
    /// Refuses an empty batch, lists of different lengths, non-finite scores (with their index), groups of one,
    /// settings that make no sense, and [`Scope::Running`], which needs [`Normalisation::advantages_with`].
    pub fn advantages(&self, scores: &[f64], groups: &[usize]) -> Result<Advantages, AdvantageError> {
        if matches!(self.scope, Scope::Running { .. }) {
            return Err(AdvantageError::NeedsHistory);
        }
        self.advantages_with(scores, groups, &mut RunningStatistics::default())
    }

    /// Like [`Normalisation::advantages`], with the memory that [`Scope::Running`] needs; the other scopes leave it
    /// alone. Under running statistics the group numbers must mean the same prompts in every iteration.
    ///
    /// # Errors
    ///
    /// Those of [`Normalisation::advantages`]. The memory does not change when there is an error.
    pub fn advantages_with(
        &self,
        scores: &[f64],
        groups: &[usize],
        history: &mut RunningStatistics,
    ) -> Result<Advantages, AdvantageError> {
        self.normalise(scores, groups, history, |_, _| {})
    }

    /// Like [`Normalisation::advantages_with`], and tells of every score, by its index, the line that it was put on.
    pub(crate) fn normalise(
        &self,
        scores: &[f64],
        groups: &[usize],
        history: &mut RunningStatistics,
        mut tell: impl FnMut(usize, Line),
    ) -> Result<Advantages, AdvantageError> {
        self.check(scores, groups)?;
        let members = Members::new(groups);
        let batch = self.moments(scores.iter().copied(), scores.len());
        let moments = |indices: &[usize]| self.moments(indices.iter().map(|&index| scores[index]), indices.len());
        let own: Vec<Moments> = members.groups().map(|(_, indices)| moments(indices)).collect();
        if own.iter().chain([&batch]).any(|moments| !moments.std.is_finite()) {
            let largest = scores.iter().fold(0.0, |largest: f64, score| largest.max(score.abs()));
            return Err(AdvantageError::Overflow { largest });
        }
        let single = members.groups().find(|(_, indices)| indices.len() < 2);
        let needs_pairs = matches!(self.scope, Scope::Group | Scope::GroupMeanBatchStd);
        if let (true, Some((group, _))) = (needs_pairs, single) {
            return Err(AdvantageError::SingleScore { group });
        }
        if self.scope == Scope::Batch && scores.len() < 2 {
            return Err(AdvantageError::SingleBatch);
        }

        let mut values = vec![0.0; scores.len()];
        for ((group, indices), &own) in members.groups().zip(&own) {
            let used = match self.scope {
                Scope::Group => own,
                // A group that does not vary has only rounding left after its mean is taken away.
                Scope::GroupMeanBatchStd if own.flat => own,
                Scope::GroupMeanBatchStd => Moments {
                    mean: own.mean,
                    ..batch
                },
                Scope::Batch => batch,
                Scope::Running { window, min_count } => {
                    let new = indices.iter().map(|&index| scores[index]);
                    let kept = history.remember(group, new, window);
                    if kept.len() < min_count {
                        batch
                    } else {
                        self.moments(kept.iter().copied(), kept.len())
                    }
                }
            };
            let line = Line {
                mean: used.mean,
                factor: if used.flat {
                    0.0
                } else {
                    1.0 / (used.std + self.epsilon)
                },
            };
            indices.iter().for_each(|&index| tell(index, line));
            if used.flat {
                continue;
            }
            for &index in indices {
                values[index] = (scores[index] - used.mean) / (used.std + self.epsilon);
            }
        }
        let sizes = || members.groups().map(|(_, indices)| indices.len());
        let statistics = ScoreStatistics {
            count: scores.len(),
            groups: own.len(),
            zero_std_groups: own.iter().filter(|moments| moments.flat).count(),
            smallest_group: sizes().min().unwrap_or(0),
            largest_group: sizes().max().unwrap_or(0),
            mean_group_std: own.iter().map(|moments| moments.std).sum::<f64>() / own.len() as f64,
            batch_mean: batch.mean,
            batch_std: batch.std,
        };
        Ok(Advantages { values, statistics })
    }

    /// Checks the settings and the scores before anything is computed or remembered.
    fn check(&self, scores: &[f64], groups: &[usize]) -> Result<(), AdvantageError> {
        self.check_settings()?;
        if scores.len() != groups.len() {
            return Err(AdvantageError::Length {
                scores: scores.len(),
                groups: groups.len(),
            });
        }
        if scores.is_empty() {
            return Err(AdvantageError::Empty);
        }
        match scores.iter().position(|score| !score.is_finite()) {
            Some(index) => Err(AdvantageError::NonFinite {
                index,
                group: groups[index],
                value: scores[index],
            }),
            None => Ok(()),
        }
    }

    /// Checks the settings alone, for rules that were read from a file.
    ///
    /// # Errors
    ///
    /// Refuses an epsilon or floor that is negative or not finite, and running statistics that could never be used.
    pub fn check_settings(&self) -> Result<(), AdvantageError> {
        for (name, value) in [("epsilon", self.epsilon), ("floor", self.floor)] {
            if !(value.is_finite() && value >= 0.0) {
                return Err(AdvantageError::Setting { name, value });
            }
        }
        if let Scope::Running { window, min_count } = self.scope
            && !(2..=window).contains(&min_count)
        {
            return Err(AdvantageError::Window { window, min_count });
        }
        Ok(())
    }

    /// Mean and std in two passes. The mean is taken relative to the first value, so that equal values have exactly
    /// that value as their mean and exactly 0 as their std, whatever their number.
    fn moments(&self, values: impl Iterator<Item = f64> + Clone, count: usize) -> Moments {
        let n = count as f64;
        let first = values.clone().next().unwrap_or(0.0);
        let mean = first + values.clone().map(|value| value - first).sum::<f64>() / n;
        let squares = values.map(|value| (value - mean).powi(2)).sum::<f64>();
        let divisor = match self.std {
            StdKind::Population => n,
            // A single value has no sample std; it does not vary, which 0 says as well.
            StdKind::Sample => (n - 1.0).max(1.0),
        };
        let std = (squares / divisor).sqrt();
        Moments {
            mean,
            std,
            flat: std <= self.floor * mean.abs(),
        }
    }
}

impl ScoreStatistics {
    /// The share of groups whose scores do not vary, from 0 to 1: those prompts teach nothing in this iteration.
    #[must_use]
    pub fn zero_std_fraction(&self) -> f64 {
        self.zero_std_groups as f64 / self.groups as f64
    }
}

impl RunningStatistics {
    /// How many scores are remembered for a group.
    #[must_use]
    pub fn count(&self, group: usize) -> usize {
        self.scores.get(&group).map_or(0, VecDeque::len)
    }

    /// Adds scores to a group and forgets its oldest ones beyond `window`.
    fn remember(&mut self, group: usize, new: impl Iterator<Item = f64>, window: usize) -> &VecDeque<f64> {
        let kept = self.scores.entry(group).or_default();
        kept.extend(new);
        kept.drain(..kept.len().saturating_sub(window));
        kept
    }
}

/// The line `factor · (score - mean)` on which an advantage lies.
#[derive(Clone, Copy, Default)]
pub(crate) struct Line {
    pub(crate) mean: f64,
    /// 0 where the scores do not vary.
    pub(crate) factor: f64,
}

#[derive(Clone, Copy)]
struct Moments {
    mean: f64,
    std: f64,
    /// Whether the std is at or below the floor.
    flat: bool,
}

/// The indices of the scores of every group, groups in order of first appearance, in three flat arrays.
struct Members {
    labels: Vec<usize>,
    /// Indices of scores, sorted by group and ascending in each.
    indices: Vec<usize>,
    /// Where the indices of each group end.
    ends: Vec<usize>,
}

impl Members {
    fn new(groups: &[usize]) -> Self {
        let mut slot_of = BTreeMap::new();
        let (mut labels, mut sizes) = (Vec::new(), Vec::<usize>::new());
        let mut slots = Vec::with_capacity(groups.len());
        let mut last = None;
        for &group in groups {
            // Leaves of one prompt mostly stand side by side, so the map is rarely asked.
            let slot = match last {
                Some((label, slot)) if label == group => slot,
                _ => *slot_of.entry(group).or_insert_with(|| {
                    labels.push(group);
                    sizes.push(0);
                    labels.len() - 1
                }),
            };
            last = Some((group, slot));
            sizes[slot] += 1;
            slots.push(slot);
        }
        // A counting sort. The cursor of a group begins where the group does and stops where it ends.
        let mut total = 0;
        let mut cursors: Vec<usize> = Vec::with_capacity(sizes.len());
        for size in sizes {
            cursors.push(total);
            total += size;
        }
        let mut indices = vec![0; groups.len()];
        for (index, slot) in slots.into_iter().enumerate() {
            indices[cursors[slot]] = index;
            cursors[slot] += 1;
        }
        Self {
            labels,
            indices,
            ends: cursors,
        }
    }

    /// The number and the indices of every group.
    fn groups(&self) -> impl Iterator<Item = (usize, &[usize])> + '_ {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        let ranges = starts.zip(&self.ends);
        self.labels
            .iter()
            .zip(ranges)
            .map(|(&label, (start, &end))| (label, &self.indices[start..end]))
    }
}
