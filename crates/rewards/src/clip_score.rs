//! CLIPScore and PickScore: how well a CLIP model thinks that a picture fits its prompt.
//!
//! The score is the cosine of the two projected features, `f·t / (|f|·|t|)`; PickScore
//! multiplies it by the model's own `exp(logit_scale)`. "CLIPScore" names no model: OpenAI's ViT-L/14 gives about
//! 0.20–0.32, others up to 0.42, so name the reward after the model (`clip-l14`). The factor 2.5 and the cut at 0 of
//! Hessel et al. (2021) are left out, as RL code does: an advantage does not change with them.

use std::path::Path;

use burn::tensor::Device;

use crate::clip::{ClipFeatures, ClipSource};
use crate::error::RewardError;
use crate::pictures::Picture;
use crate::scorer::{ModelSize, Scorer, TruncationReport, check_call, check_scores};

/// What the cosine is multiplied by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CosineScale {
    /// Nothing: −1 to 1.
    One,
    /// `exp(logit_scale)` of the model's file, about 100 for released models.
    LogitScale,
    /// The same divided by 26, about the greatest PickScore that pictures reach.
    LogitScaleBy26,
}

/// A CLIP model as a reward.
#[derive(Debug)]
pub struct ClipScore {
    features: ClipFeatures,
    scale: CosineScale,
    /// The feature of every prepared prompt.
    prompts: Vec<Vec<f32>>,
}

impl ClipScore {
    /// A reward of this model.
    #[must_use]
    pub fn new(features: ClipFeatures, scale: CosineScale) -> Self {
        Self {
            features,
            scale,
            prompts: Vec::new(),
        }
    }

    /// Finds and loads a CLIP model; see [`ClipSource::find`].
    ///
    /// # Errors
    ///
    /// A file is missing, damaged, or does not fit the others.
    pub fn open(name: &str, path: &Path, scale: CosineScale, device: &Device) -> Result<Self, RewardError> {
        Ok(Self::new(ClipFeatures::open(name, path, device)?, scale))
    }

    /// Checks the files without reading a weight.
    ///
    /// # Errors
    ///
    /// As for [`ClipScore::open`].
    pub fn check(name: &str, path: &Path, device: &Device) -> Result<(), RewardError> {
        ClipSource::find(name, path, None, device).map(drop)
    }

    /// The same with another number of pictures or texts per forward pass.
    #[must_use]
    pub fn with_micro_batch(mut self, rows: usize) -> Self {
        self.features = self.features.with_micro_batch(rows);
        self
    }

    fn factor(&self) -> f64 {
        let logit_scale = || f64::from(self.features.model().logit_scale()).exp();
        match self.scale {
            CosineScale::One => 1.0,
            CosineScale::LogitScale => logit_scale(),
            CosineScale::LogitScaleBy26 => logit_scale() / 26.0,
        }
    }
}

impl Scorer for ClipScore {
    fn name(&self) -> &str {
        self.features.name()
    }

    fn description(&self) -> String {
        match self.scale {
            CosineScale::One => format!("cosine of {}", self.features.tower()),
            CosineScale::LogitScale | CosineScale::LogitScaleBy26 => {
                format!("{:.2} times the cosine of {}", self.factor(), self.features.tower())
            }
        }
    }

    fn model_size(&self) -> Option<ModelSize> {
        Some(self.features.size())
    }

    fn prepare(&mut self, prompts: &[String]) -> Result<TruncationReport, RewardError> {
        let limit = self.features.text_limit();
        let tokens = self
            .features
            .tokenizer()
            .encode_batch(prompts, limit)
            .map_err(|source| RewardError::Tokenizer {
                scorer: self.name().to_owned(),
                source,
            })?;
        self.prompts = self.features.texts(&tokens.ids)?;
        Ok(TruncationReport {
            scorer: self.name().to_owned(),
            prompts: prompts.len(),
            limit: Some(limit),
            truncated: tokens.truncated,
        })
    }

    fn score(&self, pictures: &[Picture], prompts: &[usize]) -> Result<Vec<f64>, RewardError> {
        check_call(self.name(), pictures, prompts, self.prompts.len())?;
        let features = self.features.pictures(pictures)?;
        let factor = self.factor();
        let pairs = features.iter().zip(prompts);
        let scores = pairs
            .map(|(feature, prompt)| factor * cosine(feature, &self.prompts[*prompt]))
            .collect();
        check_scores(self.name(), scores, prompts)
    }
}

/// `a·b / (|a|·|b|)` of two features of one length, in f64; NaN if one of them is zero.
#[must_use]
pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}
