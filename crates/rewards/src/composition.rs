//! Several rewards together, by name and weight.

use std::collections::BTreeMap;
use std::fmt;

use burn::tensor::Device;

use crate::catalogue::{build, check};
use crate::error::RewardError;
use crate::pictures::Picture;
use crate::scorer::{Scorer, TruncationReport, check_finite, check_scores};
use crate::spec::{RewardSpec, check_name, check_weight, spec_error};

/// Which rewards are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Those that are trained on.
    Training,
    /// All of them.
    Evaluation,
}

/// The scores of one reward.
#[derive(Debug, Clone, PartialEq)]
pub struct RewardScores {
    /// Name of the reward.
    pub name: String,
    /// Its weight.
    pub weight: f64,
    /// Whether it is never trained on.
    pub eval_only: bool,
    /// One score per sample, in the order of the call, unweighted.
    pub values: Vec<f64>,
}

/// Several rewards, each with its weight, in the order of their names.
pub struct RewardSet {
    members: BTreeMap<String, Member>,
}

struct Member {
    scorer: Box<dyn Scorer>,
    weight: f64,
    eval_only: bool,
}

impl RewardSet {
    /// Builds every reward. All are [checked](check) before the first model is read.
    ///
    /// # Errors
    ///
    /// There is none, or one of them cannot be built.
    pub fn build(specs: &BTreeMap<String, RewardSpec>, device: &Device) -> Result<Self, RewardError> {
        for (name, spec) in specs {
            check(name, spec, device)?;
        }
        let members = specs
            .iter()
            .map(|(name, spec)| Ok((build(name, spec, device)?, spec.weight, spec.eval_only)));
        Self::new(members.collect::<Result<_, RewardError>>()?)
    }

    /// A set of given scorers with weight and `eval_only`.
    ///
    /// # Errors
    ///
    /// There is none, two have one name, or a weight is 0 or not finite.
    pub fn new(scorers: Vec<(Box<dyn Scorer>, f64, bool)>) -> Result<Self, RewardError> {
        let mut members = BTreeMap::new();
        for (scorer, weight, eval_only) in scorers {
            let name = scorer.name().to_owned();
            check_name(&name)
                .and_then(|()| check_weight(weight))
                .map_err(|error| error.of(&name))?;
            if members
                .insert(
                    name.clone(),
                    Member {
                        scorer,
                        weight,
                        eval_only,
                    },
                )
                .is_some()
            {
                return Err(spec_error(&name, "there are two of this name; rename one".to_owned()));
            }
        }
        if members.is_empty() {
            Err(RewardError::NoRewards)
        } else {
            Ok(Self { members })
        }
    }

    /// Weight of every reward that is trained on, by name; empty if all are `eval_only`.
    #[must_use]
    pub fn weights(&self) -> BTreeMap<&str, f64> {
        self.members
            .iter()
            .filter(|(_, m)| !m.eval_only)
            .map(|(name, m)| (name.as_str(), m.weight))
            .collect()
    }

    /// Name and [description](Scorer::description) of every reward.
    #[must_use]
    pub fn descriptions(&self) -> Vec<(&str, String)> {
        self.members
            .iter()
            .map(|(name, member)| (name.as_str(), member.scorer.description()))
            .collect()
    }

    /// Encodes all prompts with every reward, in place of those of an earlier call.
    ///
    /// # Errors
    ///
    /// As for [`Scorer::prepare`].
    pub fn prepare(&mut self, prompts: &[String]) -> Result<Vec<TruncationReport>, RewardError> {
        self.members
            .values_mut()
            .map(|member| member.scorer.prepare(prompts))
            .collect()
    }

    /// The scores of every reward that the purpose asks for, all of them finite; arguments as for [`Scorer::score`].
    ///
    /// # Errors
    ///
    /// As for [`Scorer::score`], and a score that is not finite.
    pub fn score(
        &self,
        pictures: &[Picture],
        prompts: &[usize],
        purpose: Purpose,
    ) -> Result<Vec<RewardScores>, RewardError> {
        let scores = self.score_with_gaps(pictures, prompts, purpose)?;
        for reward in &scores {
            check_finite(&reward.name, &reward.values, prompts)?;
        }
        Ok(scores)
    }

    /// As [`RewardSet::score`], but scores that are not finite are handed on. For callers who drop such samples.
    ///
    /// # Errors
    ///
    /// As for [`Scorer::score`].
    pub fn score_with_gaps(
        &self,
        pictures: &[Picture],
        prompts: &[usize],
        purpose: Purpose,
    ) -> Result<Vec<RewardScores>, RewardError> {
        let wanted = self
            .members
            .iter()
            .filter(|(_, m)| purpose == Purpose::Evaluation || !m.eval_only);
        let scores = wanted.map(|(name, member)| {
            // Checked here once more, because a scorer of another crate may not keep the trait's promises.
            let values = check_scores(name, member.scorer.score(pictures, prompts)?, prompts)?;
            Ok(RewardScores {
                name: name.clone(),
                weight: member.weight,
                eval_only: member.eval_only,
                values,
            })
        });
        scores.collect()
    }
}

/// The rewards as a formula: `0.2·clip + 0.8·hps (evaluated only: brightness)`.
impl fmt::Display for RewardSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let terms: Vec<String> = self
            .weights()
            .iter()
            .map(|(name, weight)| format!("{weight}·{name}"))
            .collect();
        let rest: Vec<&str> = self
            .members
            .iter()
            .filter(|(_, m)| m.eval_only)
            .map(|(name, _)| name.as_str())
            .collect();
        f.write_str(&terms.join(" + "))?;
        match (terms.is_empty(), rest.is_empty()) {
            (_, true) => Ok(()),
            (true, false) => write!(f, "evaluated only: {}", rest.join(", ")),
            (false, false) => write!(f, " (evaluated only: {})", rest.join(", ")),
        }
    }
}

impl fmt::Debug for RewardSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.descriptions()).finish()
    }
}
