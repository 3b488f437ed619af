//! CLIPScore and PickScore: how well a CLIP model thinks that a picture fits its prompt.
//!
//! The score is the cosine of the two projected features, `f·t / (|f|·|t|)`, of a Hugging Face `CLIPModel`; PickScore
//! multiplies it by the model's own `exp(logit_scale)`. "CLIPScore" names no model: OpenAI's ViT-L/14 gives about
//! 0.20–0.32, others up to 0.42, so name the reward after the model (`clip-l14`). The factor 2.5 and the cut at 0 of
//! Hessel et al. (2021) are left out, as RL code does: an advantage does not change with them.

use std::path::Path;

use burn::tensor::Device;
use nn::tokenizer::Tokenizer;

use crate::clip::{ClipFeatures, open_tokenizer};
use crate::error::RewardError;
use crate::pictures::Picture;
use crate::scorer::{Scorer, TruncationReport, check_call, check_scores};

/// What the cosine is multiplied by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CosineScale {
    /// Nothing: −1 to 1.
    One,
    /// `exp(logit_scale)` of the model's file, about 100 for released models.
    LogitScale,
}

/// A CLIP model as a reward.
#[derive(Debug)]
pub struct ClipScore {
    name: String,
    features: ClipFeatures,
    tokenizer: Tokenizer,
    scale: CosineScale,
    /// The feature of every prepared prompt.
    prompts: Vec<Vec<f32>>,
}

impl ClipScore {
    /// Opens a Hugging Face `CLIPModel` folder: `config.json`, `model.safetensors`, `preprocessor_config.json` and the
    /// tokenizer's files.
    ///
    /// # Errors
    ///
    /// A file is missing, damaged, or does not fit the others.
    pub fn open(name: &str, dir: &Path, scale: CosineScale, device: &Device) -> Result<Self, RewardError> {
        let features = ClipFeatures::open(name, dir, device)?;
        let tokenizer = features.open_tokenizer(dir)?;
        Ok(Self {
            name: name.to_owned(),
            features,
            tokenizer,
            scale,
            prompts: Vec::new(),
        })
    }

    /// Checks the folder without reading a weight.
    ///
    /// # Errors
    ///
    /// As for [`ClipScore::open`].
    pub fn check(name: &str, dir: &Path, device: &Device) -> Result<(), RewardError> {
        ClipFeatures::check(name, dir, device)?;
        open_tokenizer(name, dir).map(drop)
    }

    /// The same with another number of pictures or texts per forward pass.
    #[must_use]
    pub fn with_micro_batch(mut self, rows: usize) -> Self {
        self.features = self.features.with_micro_batch(rows);
        self
    }

    /// The longest text that is read, in tokens.
    fn limit(&self) -> usize {
        let positions = self.features.model().text.config().max_position_embeddings;
        self.tokenizer
            .max_length()
            .map_or(positions, |length| length.min(positions))
    }

    fn factor(&self) -> f64 {
        match self.scale {
            CosineScale::One => 1.0,
            CosineScale::LogitScale => f64::from(self.features.model().logit_scale()).exp(),
        }
    }
}

impl Scorer for ClipScore {
    fn name(&self) -> &str {
        &self.name
    }

    fn description(&self) -> String {
        let vision = self.features.model().vision.config();
        let tower = format!(
            "CLIP with {} layers of width {}, patches of {} in pictures of {} pixels, {} activation",
            vision.num_hidden_layers,
            vision.hidden_size,
            vision.patch_size,
            vision.image_size,
            match vision.hidden_act {
                nn::activation::Activation::QuickGelu => "quick_gelu".to_owned(),
                other => format!("{other:?}").to_lowercase(),
            }
        );
        match self.scale {
            CosineScale::One => format!("cosine of {tower}"),
            CosineScale::LogitScale => format!("{:.2} times the cosine of {tower}", self.factor()),
        }
    }

    fn prepare(&mut self, prompts: &[String]) -> Result<TruncationReport, RewardError> {
        let limit = self.limit();
        let tokens = self
            .tokenizer
            .encode_batch(prompts, limit)
            .map_err(|source| RewardError::Tokenizer {
                scorer: self.name.clone(),
                source,
            })?;
        self.prompts = self.features.texts(&tokens.ids)?;
        Ok(TruncationReport {
            scorer: self.name.clone(),
            prompts: prompts.len(),
            limit: Some(limit),
            truncated: tokens.truncated,
        })
    }

    fn score(&self, pictures: &[Picture], prompts: &[usize]) -> Result<Vec<f64>, RewardError> {
        check_call(&self.name, pictures, prompts, self.prompts.len())?;
        let features = self.features.pictures(pictures)?;
        let factor = self.factor();
        let pairs = features.iter().zip(prompts);
        let scores = pairs
            .map(|(feature, prompt)| factor * cosine(feature, &self.prompts[*prompt]))
            .collect();
        check_scores(&self.name, scores, prompts)
    }
}

/// `a·b / (|a|·|b|)` of two features of one length, in f64; NaN if one of them is zero.
#[must_use]
pub fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}
