//! Evaluation: deterministic pictures of held-out prompts from fixed noise, scored by every reward.

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor};
use image::RgbImage;
use nn::pixels::to_pictures;
use policy_sd3::guidance::PromptTable;
use policy_sd3::pipeline::Pipeline;
use policy_sd3::transformer::Transformer;
use rewards::pictures::{Picture, Transparency};
use rewards::{Purpose as RewardPurpose, RewardSet};
use serde::{Deserialize, Serialize};

use crate::error::TrainError;
use crate::gaps::NonFiniteScores;
use crate::noise::{self, Place, Purpose};
use crate::rollout::Sampling;

/// Pictures that are drawn and scored together.
const PICTURES_AT_ONCE: usize = 1024;

/// What an evaluation draws. It depends on nothing that training changes, so two evaluations differ by the weights only.
pub struct Evaluator {
    table: PromptTable,
    prompts: Vec<String>,
    sampling: Sampling,
    pictures_per_prompt: usize,
    seed: u64,
    non_finite_scores: NonFiniteScores,
}

/// Scores of an evaluation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct EvaluationScores {
    /// Per reward, one score per prompt: the mean over those of its pictures that have a finite score. NaN where none
    /// has; such a prompt is in no mean.
    pub per_prompt: BTreeMap<String, Vec<f64>>,
    /// Pictures without a finite score, per reward that has such.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub non_finite: BTreeMap<String, usize>,
}

/// Mean of a list of scores and of its change, with standard errors.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Mean over the prompts that have a score; NaN if none has.
    pub mean: f64,
    /// Its standard error.
    pub standard_error: f64,
    /// Mean of the paired difference to the first evaluation of the run, over the prompts that have a score in both.
    pub change: f64,
    /// Standard error of that mean.
    pub change_standard_error: f64,
}

impl Evaluator {
    /// An evaluation of `prompts` under `sampling`, whose stochastic kernel is not used.
    ///
    /// # Errors
    ///
    /// A prompt cannot be encoded.
    pub fn new(
        pipeline: &Pipeline,
        prompts: Vec<String>,
        sampling: Sampling,
        pictures_per_prompt: usize,
        seed: u64,
    ) -> Result<Self, TrainError> {
        let (table, _) = pipeline.encode(&prompts)?;
        Ok(Self {
            table,
            prompts,
            sampling,
            pictures_per_prompt,
            seed,
            non_finite_scores: NonFiniteScores::default(),
        })
    }

    /// Says what becomes of pictures without a finite score: the evaluation stops, as it does when this is not called,
    /// or they are left out of their prompt's mean. There are no groups here, so both ways of dropping mean the same.
    #[must_use]
    pub fn with_non_finite_scores(mut self, rule: NonFiniteScores) -> Self {
        self.non_finite_scores = rule;
        self
    }

    /// The prompts, in order.
    #[must_use]
    pub fn prompts(&self) -> &[String] {
        &self.prompts
    }

    /// Draws and scores all pictures with the given weights. Returns the scores and the first picture of the first
    /// `kept` prompts.
    ///
    /// # Errors
    ///
    /// A latent or picture is not finite, or a score and the rule is to stop then.
    pub fn run(
        &self,
        network: &Transformer,
        pipeline: &Pipeline,
        rewards: &mut RewardSet,
        kept: usize,
        device: &Device,
    ) -> Result<(EvaluationScores, Vec<RgbImage>), TrainError> {
        // Prompt-major: picture p·n + k is the k-th of prompt p.
        let rows: Vec<usize> = (0..self.prompts.len())
            .flat_map(|p| std::iter::repeat_n(p, self.pictures_per_prompt))
            .collect();
        rewards.prepare(&self.prompts)?;
        let mut scores: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        let mut non_finite: BTreeMap<String, usize> = BTreeMap::new();
        let mut kept_pictures = Vec::new();
        // In parts, so that memory does not grow with the number of pictures.
        for (part, rows) in rows.chunks(PICTURES_AT_ONCE).enumerate() {
            let first = part * PICTURES_AT_ONCE;
            let places = rows.iter().enumerate().map(|(i, prompt)| Place {
                purpose: Purpose::Evaluation,
                iteration: ((first + i) % self.pictures_per_prompt) as u64,
                prompt: *prompt as u64,
                tree: 0,
                step: 0,
                node: 0,
            });
            let noise = noise::normal(self.seed, places, self.sampling.shape, device);
            let latents = self.sampling.deterministic(network, noise, &self.table, rows)?;
            let pictures = draw(pipeline, &latents, self.sampling.micro_batch)?;
            let pictures: Vec<Picture> = pictures.into_iter().map(Picture::from).collect();
            for reward in rewards.score_with_gaps(&pictures, rows, RewardPurpose::Evaluation)? {
                let gaps = self.non_finite_scores.gaps(&reward.name, &reward.values, rows, first)?;
                if !gaps.is_empty() {
                    *non_finite.entry(reward.name.clone()).or_default() += gaps.len();
                }
                scores.entry(reward.name).or_default().extend(reward.values);
            }
            let is_first = |place: usize| place.is_multiple_of(self.pictures_per_prompt);
            let shown = pictures.iter().enumerate().filter(|(i, _)| is_first(first + i));
            let shown = shown.map(|(_, picture)| picture.rgb(Transparency::OverWhite).into_owned());
            kept_pictures.extend(shown.take(kept - kept_pictures.len()));
        }
        let per_prompt = scores
            .into_iter()
            .map(|(name, values)| {
                let of_prompts = values.chunks(self.pictures_per_prompt);
                (name, of_prompts.map(mean_of_finite).collect())
            })
            .collect();
        Ok((EvaluationScores { per_prompt, non_finite }, kept_pictures))
    }
}

/// Decodes latents to 8-bit pictures.
///
/// # Errors
///
/// A pixel is not finite.
pub fn draw(pipeline: &Pipeline, latents: &Tensor<4>, micro_batch: usize) -> Result<Vec<RgbImage>, TrainError> {
    Ok(to_pictures(pipeline.decode(latents, micro_batch))?)
}

impl EvaluationScores {
    /// The prompts, counted from 0, that have no finite score of a reward, per reward that has such.
    #[must_use]
    pub fn left_out(&self) -> BTreeMap<String, Vec<usize>> {
        let of = |scores: &Vec<f64>| -> Vec<usize> {
            let places = scores.iter().enumerate();
            places.filter(|(_, s)| !s.is_finite()).map(|(p, _)| p).collect()
        };
        let rewards = self.per_prompt.iter().map(|(name, scores)| (name.clone(), of(scores)));
        rewards.filter(|(_, prompts)| !prompts.is_empty()).collect()
    }

    /// A reward's mean over the prompts, to be compared between evaluations of a run; NaN if there is none.
    ///
    /// If prompts are left out of this evaluation or the first, their means are over different prompts, and leaving out
    /// hard prompts would look like progress. It is then the first one's mean, and to it added the mean change of the
    /// prompts that have a score in both.
    #[must_use]
    pub fn comparable_mean(&self, first: &Self, reward: &str) -> f64 {
        let (Some(scores), Some(before)) = (self.per_prompt.get(reward), first.per_prompt.get(reward)) else {
            return f64::NAN;
        };
        let summary = summarise(scores, before);
        if scores.iter().chain(before).all(|score| score.is_finite()) {
            summary.mean
        } else {
            summarise(before, before).mean + summary.change
        }
    }

    /// Mean and change per reward, over all prompts (`all`) and over each named part of them.
    #[must_use]
    pub fn summaries(
        &self,
        first: &Self,
        groups: &BTreeMap<String, [usize; 2]>,
    ) -> BTreeMap<String, BTreeMap<String, Summary>> {
        self.per_prompt
            .iter()
            .map(|(name, scores)| {
                let before = first.per_prompt.get(name).unwrap_or(scores);
                let mut parts = BTreeMap::from([("all".to_owned(), summarise(scores, before))]);
                for (group, [from, to]) in groups {
                    let range = from - 1..*to;
                    parts.insert(group.clone(), summarise(&scores[range.clone()], &before[range]));
                }
                (name.clone(), parts)
            })
            .collect()
    }
}

/// Mean and standard error of scores and of their paired difference to `before`. Scores that are not finite are in
/// neither, and neither are differences to such.
#[must_use]
pub fn summarise(scores: &[f64], before: &[f64]) -> Summary {
    let differences: Vec<f64> = scores
        .iter()
        .zip(before)
        .map(|(after, before)| after - before)
        .filter(|difference| difference.is_finite())
        .collect();
    let scores: Vec<f64> = scores.iter().copied().filter(|score| score.is_finite()).collect();
    let (mean, standard_error) = mean_and_error(&scores);
    let (change, change_standard_error) = mean_and_error(&differences);
    Summary {
        mean,
        standard_error,
        change,
        change_standard_error,
    }
}

/// The mean of the finite ones among some scores; NaN if there is none.
fn mean_of_finite(scores: &[f64]) -> f64 {
    let finite = scores.iter().filter(|score| score.is_finite());
    finite.clone().sum::<f64>() / finite.count() as f64
}

/// Mean, and sample deviation over √n; NaN without values.
fn mean_and_error(values: &[f64]) -> (f64, f64) {
    if values.is_empty() {
        return (f64::NAN, f64::NAN);
    }
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
    let error = if values.len() > 1 {
        (squares / (count - 1.0) / count).sqrt()
    } else {
        0.0
    };
    (mean, error)
}
