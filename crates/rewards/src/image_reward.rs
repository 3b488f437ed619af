//! ImageReward-v1.0 (Xu et al. 2023): BLIP reads the prompt beside the picture, a chain of linear layers turns the state
//! of the first token into a number, and that is shifted and scaled to mean 0 and deviation 1 over the authors' data:
//! about −2.3 to 2.0, greater is better.
//!
//! The text encoder sees 35 word pieces and nothing of what comes after; [`TruncationReport`] counts such prompts.

use std::path::{Path, PathBuf};

use burn::tensor::{Device, Tensor, TensorData};
use nn::tokenizer::Tokenizer;
use nn::weights::{Weights, WeightsError, read_config};
use rayon::prelude::*;
use serde::Deserialize;

use crate::blip::{BertConfig, BlipText, BlipVision, BlipVisionConfig};
use crate::error::RewardError;
use crate::files::{find_file, side, weights_error};
use crate::head::LinearChain;
use crate::pictures::Picture;
use crate::preprocess::Preprocessor;
use crate::scorer::{ModelSize, Scorer, TruncationReport, check_call, check_scores};

/// Mean and standard deviation of the raw score over the authors' data, as their program has them.
const MEAN: f64 = 0.167_173_628_300_524_26;
const DEVIATION: f64 = 1.033_339_496_605_407_2;
/// Pairs per forward pass.
const MICRO_BATCH: usize = 16;
/// The names that the checkpoint's publishers give the file.
const FILE_NAMES: [&str; 1] = ["ImageReward.pt"];

/// Sizes of an ImageReward model.
#[derive(Debug, Clone, PartialEq)]
pub struct ImageRewardConfig {
    /// The vision tower.
    pub vision: BlipVisionConfig,
    /// The text encoder.
    pub text: BertConfig,
    /// Word pieces that are read, the two that frame every text included.
    pub max_text_length: usize,
    /// Width of two projections that the file has and the score does not use.
    pub projection: usize,
}

/// What a `vision_config.json` says beside the vision tower's sizes.
#[derive(Deserialize)]
struct Extra {
    max_text_length: usize,
    proj_dim: usize,
}

impl ImageRewardConfig {
    /// The released model.
    #[must_use]
    pub fn released() -> Self {
        Self {
            vision: BlipVisionConfig::large(),
            text: BertConfig::base(),
            max_text_length: 35,
            projection: 256,
        }
    }

    /// Reads `med_config.json` and `vision_config.json` of a folder. The released folder has the first only, and a
    /// folder that has neither is taken for the released model: the sizes are then checked by the weights.
    ///
    /// # Errors
    ///
    /// A file is malformed or its sizes make no network.
    pub fn read(dir: &Path) -> Result<Self, WeightsError> {
        let vision = dir.join("vision_config.json");
        let mut config = Self {
            vision: BlipVisionConfig::read_or_large(&vision)?,
            text: BertConfig::read_or_base(&dir.join("med_config.json"))?,
            ..Self::released()
        };
        if vision.exists() {
            let extra: Extra = read_config(&vision)?;
            config.max_text_length = extra.max_text_length;
            config.projection = extra.proj_dim;
        }
        Ok(config)
    }
}

/// The networks behind the score.
#[derive(Debug)]
pub struct ImageRewardModel {
    /// The vision tower.
    pub vision: BlipVision,
    /// The text encoder.
    pub text: BlipText,
    /// The head.
    pub head: LinearChain,
}

impl ImageRewardModel {
    /// Reads `blip.*` and `mlp.*`.
    ///
    /// # Errors
    ///
    /// A tensor is missing or misshapen.
    pub fn load(weights: &Weights, config: &ImageRewardConfig) -> Result<Self, WeightsError> {
        let blip = weights.scope("blip");
        let (picture, text) = (config.vision.embed_dim, config.text.hidden_size);
        // Left over from BLIP's contrastive training. They are not used, but a file without them is another model.
        for (name, width) in [("vision_proj", picture), ("text_proj", text)] {
            let unused = blip.scope(name);
            unused.values("weight", &[config.projection, width])?;
            unused.values("bias", &[config.projection])?;
        }
        Ok(Self {
            vision: BlipVision::load(&blip.scope("visual_encoder"), &config.vision)?,
            text: BlipText::load(&blip.scope("text_encoder"), &config.text, picture)?,
            head: LinearChain::load(&weights.scope("mlp"), text)?,
        })
    }
}

/// A checkpoint that was found and checked, its weights not read yet.
pub struct ImageRewardSource {
    name: String,
    file: PathBuf,
    config: ImageRewardConfig,
    weights: Weights,
    tokenizer: Tokenizer,
    preprocessor: Preprocessor,
    device: Device,
}

impl ImageRewardSource {
    /// Finds `ImageReward.pt` at `path`, which is the file or its folder, and BERT's vocabulary at `vocabulary`, beside
    /// the file, or built in.
    ///
    /// # Errors
    ///
    /// A file is missing, malformed, or of another kind.
    pub fn find(name: &str, path: &Path, vocabulary: Option<&Path>, device: &Device) -> Result<Self, RewardError> {
        let file = find_file(name, path, &FILE_NAMES)?;
        let weights = Weights::open_file(&file, device).map_err(|source| weights_error(name, source))?;
        let dir = file.parent().unwrap_or(Path::new("."));
        let config = ImageRewardConfig::read(dir).map_err(|source| weights_error(name, source))?;
        let beside = dir.join("vocab.txt");
        let tokenizer = match vocabulary.or(beside.is_file().then_some(beside.as_path())) {
            Some(path) => Tokenizer::bert(path),
            None => Tokenizer::built_in_bert(),
        };
        let tokenizer = tokenizer.map_err(|source| RewardError::Tokenizer {
            scorer: name.to_owned(),
            source,
        })?;
        if tokenizer.largest_id() as usize >= config.text.vocab_size {
            return Err(RewardError::Mismatch {
                scorer: name.to_owned(),
                path: file,
                why: format!(
                    "the vocabulary's largest id is {}, but the model's token table has {} rows; it needs the vocabulary of bert-base-uncased",
                    tokenizer.largest_id(),
                    config.text.vocab_size
                ),
            });
        }
        Ok(Self {
            name: name.to_owned(),
            preprocessor: Preprocessor::open_ai(side(name, &file, config.vision.img_size)?),
            file,
            config,
            weights,
            tokenizer,
            device: device.clone(),
        })
    }

    /// Reads the weights.
    ///
    /// # Errors
    ///
    /// They do not fit the sizes.
    pub fn load(self) -> Result<ImageReward, RewardError> {
        let failed = |source| weights_error(&self.name, source);
        let model = ImageRewardModel::load(&self.weights, &self.config).map_err(failed)?;
        let size = ModelSize::of(&self.weights);
        self.weights.finish().map_err(failed)?;
        Ok(ImageReward {
            name: self.name,
            file: self.file,
            model,
            size,
            limit: self.config.max_text_length,
            tokenizer: self.tokenizer,
            preprocessor: self.preprocessor,
            device: self.device,
            micro_batch: MICRO_BATCH,
            prompts: Vec::new(),
        })
    }
}

/// ImageReward as a reward.
#[derive(Debug)]
pub struct ImageReward {
    name: String,
    file: PathBuf,
    model: ImageRewardModel,
    size: ModelSize,
    limit: usize,
    tokenizer: Tokenizer,
    preprocessor: Preprocessor,
    device: Device,
    micro_batch: usize,
    /// Token ids of every prepared prompt, and how many of them are not padding.
    prompts: Vec<(Vec<u32>, usize)>,
}

impl ImageReward {
    /// Finds and loads a checkpoint; see [`ImageRewardSource::find`].
    ///
    /// # Errors
    ///
    /// As for [`ImageRewardSource::find`] and [`ImageRewardSource::load`].
    pub fn open(name: &str, path: &Path, vocabulary: Option<&Path>, device: &Device) -> Result<Self, RewardError> {
        ImageRewardSource::find(name, path, vocabulary, device)?.load()
    }

    /// The same with another number of pairs per forward pass (at least 1).
    #[must_use]
    pub fn with_micro_batch(mut self, rows: usize) -> Self {
        self.micro_batch = rows.max(1);
        self
    }

    /// Scores of some pictures, each beside its prompt.
    fn score_part(&self, pictures: &[Picture], prompts: &[usize]) -> Result<Vec<f64>, RewardError> {
        let [width, height] = self.preprocessor.size().map(|side| side as usize);
        let pixels: Vec<Vec<f32>> = pictures.par_iter().map(|p| self.preprocessor.pixels(p)).collect();
        let data = TensorData::new(pixels.concat(), [pictures.len(), 3, height, width]);
        let tokens = self.model.vision.forward(Tensor::from_data(data, &self.device));
        let (ids, lengths): (Vec<Vec<u32>>, Vec<usize>) = prompts.iter().map(|p| self.prompts[*p].clone()).unzip();
        let states = self.model.text.forward(&ids, &lengths, &tokens, &self.device);
        let width = states.dims()[1];
        let states = states.into_data().convert::<f32>().try_to_vec::<f32>();
        let states = states.map_err(|_| RewardError::Unreadable {
            scorer: self.name.clone(),
        })?;
        let score = |state: &[f32]| (self.model.head.score(state) - MEAN) / DEVIATION;
        Ok(states.chunks_exact(width).map(score).collect())
    }
}

impl Scorer for ImageReward {
    fn name(&self) -> &str {
        &self.name
    }

    fn description(&self) -> String {
        let file = self.file.file_name().unwrap_or_default().to_string_lossy();
        format!("ImageReward of {file}, standardised, about -2.3 to 2.0")
    }

    fn model_size(&self) -> Option<ModelSize> {
        Some(self.size)
    }

    fn prepare(&mut self, prompts: &[String]) -> Result<TruncationReport, RewardError> {
        let batch = self
            .tokenizer
            .encode_batch(prompts, self.limit)
            .map_err(|source| RewardError::Tokenizer {
                scorer: self.name.clone(),
                source,
            })?;
        self.prompts = batch.ids.into_iter().zip(batch.lengths).collect();
        Ok(TruncationReport {
            scorer: self.name.clone(),
            prompts: prompts.len(),
            limit: Some(self.limit),
            truncated: batch.truncated,
        })
    }

    fn score(&self, pictures: &[Picture], prompts: &[usize]) -> Result<Vec<f64>, RewardError> {
        check_call(&self.name, pictures, prompts, self.prompts.len())?;
        let parts = pictures.chunks(self.micro_batch).zip(prompts.chunks(self.micro_batch));
        let mut scores = Vec::with_capacity(pictures.len());
        for (pictures, prompts) in parts {
            scores.extend(self.score_part(pictures, prompts)?);
        }
        check_scores(&self.name, scores, prompts)
    }
}
