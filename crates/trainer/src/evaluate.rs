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
}

/// Scores of an evaluation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EvaluationScores {
    /// Per reward, one score per prompt: the mean over its pictures.
    pub per_prompt: BTreeMap<String, Vec<f64>>,
}

/// Mean of a list of scores and of its change, with standard errors.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Mean over the prompts.
    pub mean: f64,
    /// Its standard error.
    pub standard_error: f64,
    /// Mean of the paired difference to the first evaluation of the run.
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
        })
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
    /// A latent, picture or score is not finite.
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
            for reward in rewards.score(&pictures, rows, RewardPurpose::Evaluation)? {
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
                let means = values.chunks(self.pictures_per_prompt);
                (name, means.map(|c| c.iter().sum::<f64>() / c.len() as f64).collect())
            })
            .collect();
        Ok((EvaluationScores { per_prompt }, kept_pictures))
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

/// Mean and standard error of scores and of their paired difference to `before`.
#[must_use]
pub fn summarise(scores: &[f64], before: &[f64]) -> Summary {
    let differences: Vec<f64> = scores
        .iter()
        .zip(before)
        .map(|(after, before)| after - before)
        .collect();
    let (mean, standard_error) = mean_and_error(scores);
    let (change, change_standard_error) = mean_and_error(&differences);
    Summary {
        mean,
        standard_error,
        change,
        change_standard_error,
    }
}

/// Mean, and sample deviation over √n.
fn mean_and_error(values: &[f64]) -> (f64, f64) {
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
