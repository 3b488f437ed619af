//! Several rewards, mixed by name and weight.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::advantage::{AdvantageError, Advantages, Line, Normalisation, RunningStatistics, ScoreStatistics};

/// Where rewards are mixed: before or after they are normalised.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mix {
    /// `A = Σ weight · normalise(score)`: every reward is normalised on its own, so that its scale does not matter
    /// (the TreeGRPO paper found this the better one). The sum is not normalised again.
    #[default]
    Advantage,
    /// `A = normalise(Σ weight · score)`: raw scores are summed, so rewards of a large scale dominate.
    Reward,
}

/// Rewards by name and weight.
///
/// ```
/// use tree_core::{Mix, Normalisation, RewardMix};
///
/// let mix = RewardMix::new(Mix::Advantage, [("hps", 0.8), ("clip", 0.2)])?;
/// assert_eq!(mix.formula(), "A = 0.8 * normalise(hps) + 0.2 * normalise(clip)");
/// // The scores may come in any order: the names decide.
/// let scores = [("clip", &[20.0, 22.0][..]), ("hps", &[0.3, 0.2])];
/// let mixed = mix.advantages(&Normalisation::default(), &scores, &[0, 0])?;
/// assert!((mixed.values[0] - (0.8 - 0.2)).abs() < 1e-6);
/// # Ok::<(), tree_core::MixError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RewardMix {
    mix: Mix,
    weights: Vec<(String, f64)>,
}

/// Mixed advantages, and what each reward looked like.
#[derive(Clone, Debug, PartialEq)]
pub struct MixedAdvantages {
    /// One per leaf.
    pub values: Vec<f64>,
    /// The weighted sum of the raw scores, one per leaf.
    pub weighted_scores: Vec<f64>,
    /// Per reward, in the order of the weights, the statistics of its scores.
    pub rewards: Vec<(String, ScoreStatistics)>,
    /// Per reward, in the order of the weights, its share of the advantage: `cov(C, A) / var(A)` over all leaves, where
    /// `A = Σ C` is the advantage and `C` what the reward adds to it: `weight · normalise(score)` under
    /// [`Mix::Advantage`], and `weight · (score - mean) / (std + epsilon)` with the std of the weighted sum under
    /// [`Mix::Reward`].
    ///
    /// The shares add up to 1. One lies below 0 when the others outvote the reward, so that on the whole it is trained
    /// against, and above 1 when it outvotes them. All are 0 when the advantages do not vary.
    pub shares: Vec<f64>,
    /// The statistics of the weighted sum of raw scores.
    pub total: ScoreStatistics,
}

/// The memories of running statistics, one per reward and one for their sum. Part of a run's state.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunningRewards {
    rewards: BTreeMap<String, RunningStatistics>,
    total: RunningStatistics,
}

/// Why rewards could not be mixed.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MixError {
    /// No reward at all.
    #[error("no reward is named; give at least one name and weight")]
    NoRewards,
    /// A name that stands twice in the weights or in the scores.
    #[error("reward `{name}` is named twice; name every reward once")]
    Duplicate {
        /// The name.
        name: String,
    },
    /// A weight that is no number.
    #[error("the weight of reward `{name}` is {weight}; use a finite number")]
    Weight {
        /// The name.
        name: String,
        /// The weight given.
        weight: f64,
    },
    /// Weights that are all 0.
    #[error("all reward weights are 0, so nothing would be trained; give at least one reward a weight")]
    AllZero,
    /// Scores for a name without weight.
    #[error("scores came for reward `{name}`, which has no weight; the weights name {known}")]
    Unknown {
        /// The name.
        name: String,
        /// The names with a weight.
        known: String,
    },
    /// A name without scores.
    #[error("reward `{name}` has a weight but no scores came for it; score it, or remove its weight")]
    Missing {
        /// The name.
        name: String,
    },
    /// Two rewards scored different numbers of leaves.
    #[error("reward `{name}` scored {got} leaves where there are {expected}; score every leaf once")]
    Length {
        /// The name.
        name: String,
        /// The leaves.
        expected: usize,
        /// Its scores.
        got: usize,
    },
    /// The scores of one reward could not be normalised.
    #[error("reward `{name}`: {source}")]
    Advantage {
        /// The name.
        name: String,
        /// Why.
        source: AdvantageError,
    },
}

impl RewardMix {
    /// Rewards with their weights. Negative weights make a reward a penalty.
    ///
    /// # Errors
    ///
    /// Refuses an empty list, a name that comes twice, non-finite weights and weights that are all 0.
    pub fn new<N: Into<String>>(mix: Mix, weights: impl IntoIterator<Item = (N, f64)>) -> Result<Self, MixError> {
        let weights: Vec<(String, f64)> = weights
            .into_iter()
            .map(|(name, weight)| (name.into(), weight))
            .collect();
        if weights.is_empty() {
            return Err(MixError::NoRewards);
        }
        refuse_duplicates(weights.iter().map(|(name, _)| name.as_str()))?;
        if let Some((name, weight)) = weights.iter().find(|(_, weight)| !weight.is_finite()) {
            return Err(MixError::Weight {
                name: name.clone(),
                weight: *weight,
            });
        }
        if weights.iter().all(|(_, weight)| *weight == 0.0) {
            return Err(MixError::AllZero);
        }
        Ok(Self { mix, weights })
    }

    /// Where the rewards are mixed.
    #[must_use]
    pub fn mix(&self) -> Mix {
        self.mix
    }

    /// Names and weights, in the order they were given.
    #[must_use]
    pub fn weights(&self) -> &[(String, f64)] {
        &self.weights
    }

    /// The formula that is applied, to be shown before a run.
    #[must_use]
    pub fn formula(&self) -> String {
        let term = |(name, weight): &(String, f64)| match self.mix {
            Mix::Advantage => format!("{weight} * normalise({name})"),
            Mix::Reward => format!("{weight} * {name}"),
        };
        let sum = self.weights.iter().map(term).collect::<Vec<_>>().join(" + ");
        match self.mix {
            Mix::Advantage => format!("A = {sum}"),
            Mix::Reward => format!("A = normalise({sum})"),
        }
    }

    /// The weighted sum of raw scores, one per leaf. `scores` holds one slice per reward, in any order.
    ///
    /// # Errors
    ///
    /// Refuses unknown, missing and repeated names and slices of different lengths.
    pub fn weighted_scores(&self, scores: &[(&str, &[f64])]) -> Result<Vec<f64>, MixError> {
        Ok(weighted_sum(&self.matched(scores)?))
    }

    /// The mixed advantages of leaves whose groups are `groups`. `scores` holds one slice per reward, in any order.
    ///
    /// # Errors
    ///
    /// Those of [`RewardMix::weighted_scores`] and, with the reward's name, of [`Normalisation::advantages`].
    pub fn advantages(
        &self,
        normalisation: &Normalisation,
        scores: &[(&str, &[f64])],
        groups: &[usize],
    ) -> Result<MixedAdvantages, MixError> {
        if matches!(normalisation.scope, crate::Scope::Running { .. }) {
            let name = self.weights[0].0.clone();
            return Err(MixError::Advantage {
                name,
                source: AdvantageError::NeedsHistory,
            });
        }
        self.advantages_with(normalisation, scores, groups, &mut RunningRewards::default())
    }

    /// Like [`RewardMix::advantages`], with the memories that [`Scope::Running`](crate::Scope::Running) needs.
    ///
    /// # Errors
    ///
    /// Those of [`RewardMix::advantages`]. The memories do not change when there is an error.
    pub fn advantages_with(
        &self,
        normalisation: &Normalisation,
        scores: &[(&str, &[f64])],
        groups: &[usize],
        running: &mut RunningRewards,
    ) -> Result<MixedAdvantages, MixError> {
        let matched = self.matched(scores)?;
        // A bad score of the third reward must not leave the first two remembered twice after a retry.
        let mut next = running.clone();
        let mut normalised = Vec::with_capacity(matched.len());
        let mut mixed = vec![0.0; matched[0].scores.len()];
        for &Weighted { name, weight, scores } in &matched {
            let history = next.rewards.entry(name.to_string()).or_default();
            let own = Normalised::new(normalisation, name, scores, groups, history)?;
            for (sum, advantage) in mixed.iter_mut().zip(&own.advantages.values) {
                *sum += weight * advantage;
            }
            normalised.push(own);
        }
        let weighted_scores = weighted_sum(&matched);
        let total = Normalised::new(normalisation, "weighted sum", &weighted_scores, groups, &mut next.total)?;
        *running = next;
        let parts = matched.iter().zip(&normalised);
        let parts = parts.map(|(reward, own)| self.part(reward, own, &total));
        let parts: Vec<Vec<f64>> = parts.collect();
        let values = match self.mix {
            Mix::Advantage => mixed,
            Mix::Reward => total.advantages.values,
        };
        let names = matched.iter().map(|reward| reward.name.to_string());
        let statistics = normalised.iter().map(|own| own.advantages.statistics);
        Ok(MixedAdvantages {
            shares: shares(&parts, &values),
            values,
            weighted_scores,
            rewards: names.zip(statistics).collect(),
            total: total.advantages.statistics,
        })
    }

    /// What a reward adds to the advantage of every leaf.
    fn part(&self, reward: &Weighted<'_>, own: &Normalised, total: &Normalised) -> Vec<f64> {
        match self.mix {
            Mix::Advantage => own.advantages.values.iter().map(|a| reward.weight * a).collect(),
            // The mean of the sum is the sum of the means, so these add up to the advantage as well.
            Mix::Reward => {
                let lines = own.lines.iter().zip(&total.lines);
                let leaves = reward.scores.iter().zip(lines);
                leaves
                    .map(|(score, (own, total))| reward.weight * (score - own.mean) * total.factor)
                    .collect()
            }
        }
    }

    /// Name, weight and scores of every reward, in the order of the weights.
    fn matched<'a>(&'a self, scores: &[(&str, &'a [f64])]) -> Result<Vec<Weighted<'a>>, MixError> {
        refuse_duplicates(scores.iter().map(|(name, _)| *name))?;
        if let Some((name, _)) = scores
            .iter()
            .find(|(name, _)| !self.weights.iter().any(|(known, _)| known == name))
        {
            let known: Vec<String> = self.weights.iter().map(|(name, _)| format!("`{name}`")).collect();
            return Err(MixError::Unknown {
                name: (*name).to_string(),
                known: known.join(", "),
            });
        }
        let mut matched: Vec<Weighted<'_>> = Vec::with_capacity(self.weights.len());
        for (name, weight) in &self.weights {
            let found = scores.iter().find(|(scored, _)| scored == name);
            let (_, values) = found.ok_or_else(|| MixError::Missing { name: name.clone() })?;
            if let Some(first) = matched.first()
                && first.scores.len() != values.len()
            {
                let (expected, got) = (first.scores.len(), values.len());
                return Err(MixError::Length {
                    name: name.clone(),
                    expected,
                    got,
                });
            }
            matched.push(Weighted {
                name,
                weight: *weight,
                scores: values,
            });
        }
        Ok(matched)
    }
}

/// A reward whose scores have found their weight.
struct Weighted<'a> {
    name: &'a str,
    weight: f64,
    scores: &'a [f64],
}

/// The advantages of one reward or of the sum of all, and the line of every leaf.
struct Normalised {
    advantages: Advantages,
    lines: Vec<Line>,
}

impl Normalised {
    fn new(
        normalisation: &Normalisation,
        name: &str,
        scores: &[f64],
        groups: &[usize],
        history: &mut RunningStatistics,
    ) -> Result<Self, MixError> {
        let mut lines = vec![Line::default(); scores.len()];
        let advantages = normalisation
            .normalise(scores, groups, history, |leaf, line| lines[leaf] = line)
            .map_err(|source| MixError::Advantage {
                name: name.to_owned(),
                source,
            })?;
        Ok(Self { advantages, lines })
    }
}

/// `Σ weight · score` for every leaf.
fn weighted_sum(matched: &[Weighted<'_>]) -> Vec<f64> {
    let leaves = matched.first().map_or(0, |reward| reward.scores.len());
    let sum = |leaf: usize| matched.iter().map(|reward| reward.weight * reward.scores[leaf]).sum();
    (0..leaves).map(sum).collect()
}

/// `cov(part, whole) / var(whole)` of every part; 0 where the whole does not vary.
fn shares(parts: &[Vec<f64>], whole: &[f64]) -> Vec<f64> {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let centre = mean(whole);
    let covariance = |part: &[f64]| {
        let own = mean(part);
        let products = part.iter().zip(whole).map(|(p, w)| (p - own) * (w - centre));
        products.sum::<f64>()
    };
    let variance = covariance(whole);
    let share = |part: &Vec<f64>| {
        if variance > 0.0 {
            covariance(part) / variance
        } else {
            0.0
        }
    };
    parts.iter().map(share).collect()
}

fn refuse_duplicates<'a>(names: impl Iterator<Item = &'a str>) -> Result<(), MixError> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(MixError::Duplicate { name: name.to_string() });
        }
    }
    Ok(())
}
