//! LAION's aesthetic predictor ("improved-aesthetic-predictor", v2): a chain of linear layers on the normalised picture
//! feature of OpenAI's CLIP ViT-L/14. The score has no bounds and is typically 4.5 to 7. It does not look at the prompt.
//!
//! The head of the same release with ReLUs between its layers computes something else and is refused.

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use nn::weights::Weights;

use crate::clip::{ClipFeatures, ClipSource};
use crate::error::RewardError;
use crate::files::{find_file, weights_error};
use crate::head::LinearChain;
use crate::pictures::Picture;
use crate::scorer::{ModelSize, Scorer, TruncationReport, check_call, check_scores};

/// The names that the heads' publisher gives the files; both are affine, and their features are the same.
const FILE_NAMES: [&str; 2] = ["sac+logos+ava1-l14-linearMSE.pth", "ava+logos-l14-linearMSE.pth"];

/// A head and its CLIP model that were found and checked, their weights not read yet.
pub struct AestheticSource {
    name: String,
    file: PathBuf,
    head: Weights,
    clip: ClipSource,
}

impl AestheticSource {
    /// Finds the head at `path`, which is the file or its folder, and the CLIP model at `clip`.
    ///
    /// # Errors
    ///
    /// A file is missing, malformed, or of another kind.
    pub fn find(name: &str, path: &Path, clip: &Path, device: &Device) -> Result<Self, RewardError> {
        let file = find_file(name, path, &FILE_NAMES)?;
        let head = Weights::open_file(&file, device).map_err(|source| weights_error(name, source))?;
        // With ReLUs and dropouts between the layers, the second linear layer is number 3 of the chain, without them 2.
        if head.has("layers.3.weight") && !head.has("layers.2.weight") {
            return Err(RewardError::Mismatch {
                scorer: name.to_owned(),
                path: file,
                why: format!(
                    "this head has ReLUs between its layers and would give other scores; use {}",
                    FILE_NAMES[0]
                ),
            });
        }
        Ok(Self {
            name: name.to_owned(),
            file,
            head,
            clip: ClipSource::find(name, clip, None, device)?,
        })
    }

    /// Reads the weights.
    ///
    /// # Errors
    ///
    /// They do not fit the sizes, or the head was trained on features of another width.
    pub fn load(self) -> Result<Aesthetic, RewardError> {
        let failed = |source| weights_error(&self.name, source);
        // The head is small: one that does not fit is found before the CLIP model is read.
        let head = LinearChain::load(&self.head, self.clip.config().vision.projection_dim).map_err(failed)?;
        let size = ModelSize::of(&self.head);
        self.head.finish().map_err(failed)?;
        let clip = self.clip.load()?;
        Ok(Aesthetic {
            name: self.name,
            file: self.file,
            size: size + clip.size(),
            head,
            clip,
            prepared: 0,
        })
    }
}

/// The aesthetic predictor as a reward.
#[derive(Debug)]
pub struct Aesthetic {
    name: String,
    file: PathBuf,
    size: ModelSize,
    head: LinearChain,
    clip: ClipFeatures,
    prepared: usize,
}

impl Aesthetic {
    /// Finds and loads a head and its CLIP model; see [`AestheticSource::find`].
    ///
    /// # Errors
    ///
    /// As for [`AestheticSource::find`] and [`AestheticSource::load`].
    pub fn open(name: &str, path: &Path, clip: &Path, device: &Device) -> Result<Self, RewardError> {
        AestheticSource::find(name, path, clip, device)?.load()
    }

    /// The same with another number of pictures per forward pass (at least 1).
    #[must_use]
    pub fn with_micro_batch(mut self, rows: usize) -> Self {
        self.clip = self.clip.with_micro_batch(rows);
        self
    }

    /// The score of a picture feature, which need not be normalised.
    #[must_use]
    pub fn score_feature(&self, feature: &[f32]) -> f64 {
        let length = feature.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
        let direction: Vec<f32> = feature.iter().map(|x| (f64::from(*x) / length) as f32).collect();
        self.head.score(&direction)
    }
}

impl Scorer for Aesthetic {
    fn name(&self) -> &str {
        &self.name
    }

    fn description(&self) -> String {
        let file = self.file.file_name().unwrap_or_default().to_string_lossy();
        format!("aesthetic predictor {file} on {}", self.clip.tower())
    }

    fn model_size(&self) -> Option<ModelSize> {
        Some(self.size)
    }

    fn prepare(&mut self, prompts: &[String]) -> Result<TruncationReport, RewardError> {
        self.prepared = prompts.len();
        Ok(TruncationReport::without_text(&self.name, prompts.len()))
    }

    fn score(&self, pictures: &[Picture], prompts: &[usize]) -> Result<Vec<f64>, RewardError> {
        check_call(&self.name, pictures, prompts, self.prepared)?;
        let features = self.clip.pictures(pictures)?;
        let scores = features.iter().map(|feature| self.score_feature(feature)).collect();
        check_scores(&self.name, scores, prompts)
    }
}
