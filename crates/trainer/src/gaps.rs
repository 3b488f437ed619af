//! Scores that could not be had, and what is left to train on.

use std::collections::{BTreeMap, BTreeSet};

use rewards::RewardScores;
use serde::{Deserialize, Serialize};
use tree_core::MixError;

use crate::error::TrainError;

/// What happens when a reward gives a picture no finite score. A failed scorer is an error under every rule; only
/// values are concerned. No rule puts a number in the place of a missing one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NonFiniteScores {
    /// The run stops and names reward, picture, prompt and value.
    #[default]
    Error,
    /// The leaf counts for nothing, as if it had not been drawn.
    #[serde(alias = "drop_sample")]
    DropSample,
    /// All leaves of its prompt count for nothing, in all trees.
    #[serde(alias = "drop_group")]
    DropGroup,
}

/// A score that is not finite.
#[derive(Debug, Clone, PartialEq)]
pub struct Gap {
    /// The reward.
    pub reward: String,
    /// Place of the picture among those that were scored together.
    pub sample: usize,
    /// Index of its prompt in its file, counted from 0.
    pub prompt: usize,
    /// NaN or an infinity.
    pub value: f64,
}

/// Which leaves of an iteration are trained on.
#[derive(Debug, Clone, PartialEq)]
pub struct Selection {
    /// Whether a leaf is trained on, one per leaf.
    pub kept: Vec<bool>,
    /// Leaves without a finite score, per reward that is trained on.
    pub non_finite: BTreeMap<String, usize>,
    /// The first gap, in the order of the rewards' names.
    pub first: Option<Gap>,
    /// The prompts of which no leaf is trained on, as indices in their file, ascending.
    pub dropped_prompts: Vec<usize>,
}

impl NonFiniteScores {
    /// Chooses the leaves to train on. `prompts` holds the index of every leaf's prompt in its file; its leaves are one
    /// group, however many trees they hang on. A leaf that lacks one of several rewards is dropped for all of them. A
    /// prompt with fewer than two leaves left has nothing to compare and is dropped whole.
    ///
    /// # Errors
    ///
    /// Under [`NonFiniteScores::Error`] the first score that is not finite; otherwise, if no leaf is left; and a reward
    /// that scored another number of leaves.
    pub fn select(self, rewards: &[&RewardScores], prompts: &[usize]) -> Result<Selection, TrainError> {
        let mut kept = vec![true; prompts.len()];
        let mut non_finite = BTreeMap::new();
        let mut first = None;
        for reward in rewards {
            if reward.values.len() != prompts.len() {
                return Err(TrainError::Mix(MixError::Length {
                    name: reward.name.clone(),
                    expected: prompts.len(),
                    got: reward.values.len(),
                }));
            }
            let gaps = self.gaps(&reward.name, &reward.values, prompts, 0)?;
            for gap in &gaps {
                kept[gap.sample] = false;
            }
            non_finite.insert(reward.name.clone(), gaps.len());
            first = first.or(gaps.into_iter().next());
        }
        let Some(gap) = first else {
            return Ok(Selection {
                kept,
                non_finite,
                first: None,
                dropped_prompts: Vec::new(),
            });
        };
        let mut left: BTreeMap<usize, [usize; 2]> = BTreeMap::new();
        for (prompt, kept) in prompts.iter().zip(&kept) {
            left.entry(*prompt).or_default()[usize::from(*kept)] += 1;
        }
        let is_dropped = |[gone, left]: &[usize; 2]| *left < 2 || (self == Self::DropGroup && *gone > 0);
        let dropped = left.iter().filter(|(_, counts)| is_dropped(counts));
        let dropped: BTreeSet<usize> = dropped.map(|(prompt, _)| *prompt).collect();
        for (prompt, kept) in prompts.iter().zip(&mut kept) {
            *kept &= !dropped.contains(prompt);
        }
        if !kept.contains(&true) {
            return Err(TrainError::NothingLeft {
                leaves: prompts.len(),
                prompts: left.len(),
                gaps: counts(&non_finite, &gap),
            });
        }
        Ok(Selection {
            kept,
            non_finite,
            first: Some(gap),
            dropped_prompts: dropped.into_iter().collect(),
        })
    }

    /// The scores of a reward that are not finite. `first` is the number of the first picture.
    ///
    /// # Errors
    ///
    /// Under [`NonFiniteScores::Error`] the first of them.
    pub fn gaps(self, reward: &str, scores: &[f64], prompts: &[usize], first: usize) -> Result<Vec<Gap>, TrainError> {
        let places = scores.iter().zip(prompts).enumerate();
        let gaps: Vec<Gap> = places
            .filter(|(_, (score, _))| !score.is_finite())
            .map(|(place, (score, prompt))| Gap {
                reward: reward.to_owned(),
                sample: first + place,
                prompt: *prompt,
                value: *score,
            })
            .collect();
        match (self, gaps.first()) {
            (Self::Error, Some(gap)) => Err(TrainError::NonFiniteScore(gap.clone())),
            _ => Ok(gaps),
        }
    }
}

impl Selection {
    /// Whether every leaf is trained on.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.first.is_none()
    }

    /// Leaves that are not trained on.
    #[must_use]
    pub fn dropped_leaves(&self) -> usize {
        self.kept.iter().filter(|kept| !**kept).count()
    }

    /// What was dropped and why, in one line; none if nothing was.
    #[must_use]
    pub fn describe(&self) -> Option<String> {
        let gap = self.first.as_ref()?;
        let prompts = match self.dropped_prompts.as_slice() {
            [] => String::new(),
            dropped => format!(", among them all leaves of {}", numbered("prompt", dropped)),
        };
        Some(format!(
            "{} of {} leaves were dropped{prompts}, because these rewards gave no finite score: {}",
            self.dropped_leaves(),
            self.kept.len(),
            counts(&self.non_finite, gap)
        ))
    }
}

impl std::fmt::Display for Gap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            reward,
            sample,
            prompt,
            value,
        } = self;
        write!(f, "reward `{reward}`, sample {sample} of prompt {prompt}: {value}")
    }
}

/// How many leaves each reward gave no finite score, and the first of them.
fn counts(non_finite: &BTreeMap<String, usize>, first: &Gap) -> String {
    let counts = non_finite.iter().filter(|(_, count)| **count > 0);
    let counts: Vec<String> = counts.map(|(name, count)| format!("`{name}` for {count}")).collect();
    format!("{} (first: {first})", counts.join(", "))
}

/// `prompt 3`, or `prompts 3, 4 and 9`.
pub(crate) fn numbered(what: &str, numbers: &[usize]) -> String {
    match numbers {
        [] => format!("no {what}"),
        [only] => format!("{what} {only}"),
        [most @ .., last] => {
            let most: Vec<String> = most.iter().map(usize::to_string).collect();
            format!("{what}s {} and {last}", most.join(", "))
        }
    }
}
