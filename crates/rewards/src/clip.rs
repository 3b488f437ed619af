//! CLIP features of pictures and texts: a CLIP model with the preprocessing and the tokenizer it was trained with.

use std::fmt;
use std::path::{Path, PathBuf};

use burn::tensor::{Device, Tensor, TensorData};
use nn::activation::Activation;
use nn::clip::{ClipModel, ClipModelConfig};
use nn::tokenizer::{Tokenizer, TokenizerError};
use nn::weights::Weights;
use rayon::prelude::*;

use crate::error::RewardError;
use crate::files::{find_file, side, weights_error};
use crate::pictures::Picture;
use crate::preprocess::{PreprocessError, Preprocessor};
use crate::scorer::ModelSize;

/// Rows per forward pass unless [`ClipFeatures::with_micro_batch`] says otherwise: enough to keep the matrix products
/// busy, few enough for a large tower's activations.
const MICRO_BATCH: usize = 32;
/// Rows of the token table of every model with OpenAI's vocabulary.
const CLIP_VOCABULARY: usize = 49_408;
/// The names that the publishers of HPS-v2 give the files.
const HPS_FILES: [&str; 2] = ["HPS_v2.1_compressed.pt", "HPS_v2_compressed.pt"];

/// A CLIP model that was found and checked, its weights not read yet.
pub struct ClipSource {
    name: String,
    origin: PathBuf,
    config: ClipModelConfig,
    weights: Weights,
    preprocessor: Preprocessor,
    tokenizer: Tokenizer,
    device: Device,
}

impl ClipSource {
    /// Finds a CLIP model: a Hugging Face `CLIPModel` folder, an open_clip folder, one of their weight files, or a
    /// state dict of OpenAI's ViT-L/14. `name` is the reward's, for its errors; `vocabulary` overrules the model's own and the built-in one.
    ///
    /// # Errors
    ///
    /// A file is missing, malformed, or does not fit the others.
    pub fn find(name: &str, path: &Path, vocabulary: Option<&Path>, device: &Device) -> Result<Self, RewardError> {
        let failed = |source| weights_error(name, source);
        let file = path.is_file();
        let dir = if file {
            path.parent().unwrap_or(Path::new("."))
        } else {
            path
        };
        let (hugging_face, open_clip) = (dir.join("config.json"), dir.join("open_clip_config.json"));
        let (config, weights) = if !file {
            ClipModel::find(dir, device).map_err(failed)?
        } else {
            let weights = Weights::open_file(path, device).map_err(failed)?;
            let config = match (is_open_clip(&weights), hugging_face.exists(), open_clip.exists()) {
                (true, _, true) => ClipModelConfig::read_open_clip(&open_clip).map_err(failed)?,
                (false, true, _) => ClipModelConfig::read(&hugging_face).map_err(failed)?,
                (open_clip, ..) => openai(name, path, &weights, open_clip)?,
            };
            (config, weights)
        };
        let preprocessor_failed = |source: PreprocessError| RewardError::Preprocess {
            scorer: name.to_owned(),
            source,
        };
        let from_open_clip = is_open_clip(&weights);
        let preprocessor = match (from_open_clip, open_clip.exists()) {
            (true, true) => Preprocessor::open_clip(&open_clip),
            (true, false) => Ok(Preprocessor::open_ai(side(name, path, config.vision.image_size)?)),
            (false, _) => Preprocessor::hugging_face(&dir.join("preprocessor_config.json")),
        };
        let tokenizer = match (vocabulary, from_open_clip) {
            (Some(path), _) if from_open_clip => Tokenizer::open_clip(path),
            (Some(path), _) => Tokenizer::open(path),
            (None, true) => Tokenizer::built_in_open_clip(),
            (None, false) => match Tokenizer::open(dir) {
                // The folder holds none, and this table's size is that of OpenAI's vocabulary.
                Err(TokenizerError::Missing { .. }) if config.text.vocab_size == CLIP_VOCABULARY => {
                    Tokenizer::built_in_clip()
                }
                opened => opened,
            },
        };
        Self {
            name: name.to_owned(),
            origin: path.to_owned(),
            config,
            weights,
            preprocessor: preprocessor.map_err(preprocessor_failed)?,
            tokenizer: tokenizer.map_err(|source| tokenizer_error(name, source))?,
            device: device.clone(),
        }
        .checked()
    }

    /// Finds HPS-v2.1 or HPS-v2 at `path`, which is the file or its folder. A `model_config.json` beside the file gives
    /// other sizes than the released ViT-H/14's.
    ///
    /// # Errors
    ///
    /// As for [`ClipSource::find`].
    pub fn find_hps(name: &str, path: &Path, vocabulary: Option<&Path>, device: &Device) -> Result<Self, RewardError> {
        let failed = |source| weights_error(name, source);
        let file = find_file(name, path, &HPS_FILES)?;
        let weights = Weights::open_file(&file, device).map_err(failed)?;
        let beside = file.with_file_name("model_config.json");
        let config = if beside.is_file() {
            ClipModelConfig::read_open_clip(&beside).map_err(failed)?
        } else {
            ClipModelConfig::vit_h_14()
        };
        let tokenizer = match vocabulary {
            Some(path) => Tokenizer::open_clip(path),
            None => Tokenizer::built_in_open_clip(),
        };
        Self {
            name: name.to_owned(),
            preprocessor: Preprocessor::hps(side(name, &file, config.vision.image_size)?),
            origin: file,
            config,
            weights,
            tokenizer: tokenizer.map_err(|source| tokenizer_error(name, source))?,
            device: device.clone(),
        }
        .checked()
    }

    /// The model's sizes.
    #[must_use]
    pub fn config(&self) -> &ClipModelConfig {
        &self.config
    }

    /// Reads the weights.
    ///
    /// # Errors
    ///
    /// They do not fit the sizes.
    pub fn load(self) -> Result<ClipFeatures, RewardError> {
        let failed = |source| weights_error(&self.name, source);
        let model = ClipModel::load(&self.weights, &self.config).map_err(failed)?;
        let size = ModelSize::of(&self.weights);
        self.weights.finish().map_err(failed)?;
        Ok(ClipFeatures {
            name: self.name,
            origin: self.origin,
            model,
            size,
            preprocessor: self.preprocessor,
            tokenizer: self.tokenizer,
            device: self.device,
            micro_batch: MICRO_BATCH,
        })
    }

    /// Whether the parts fit each other.
    fn checked(self) -> Result<Self, RewardError> {
        let mismatch = |why: String| {
            Err(RewardError::Mismatch {
                scorer: self.name.clone(),
                path: self.origin.clone(),
                why,
            })
        };
        let side = self.config.vision.image_size;
        let [width, height] = self.preprocessor.size();
        if [width as usize, height as usize] != [side; 2] {
            return mismatch(format!(
                "the preprocessing makes pictures of {width} x {height}, but the model's image_size is {side}; take both \
                 from one checkpoint"
            ));
        }
        let rows = self.config.text.vocab_size;
        if self.tokenizer.largest_id() as usize >= rows {
            return mismatch(format!(
                "the tokenizer's largest id is {}, but the model's token table has {rows} rows; take both from one \
                 checkpoint, or name the vocabulary",
                self.tokenizer.largest_id()
            ));
        }
        Ok(self)
    }
}

/// Whether the names are open_clip's and OpenAI's.
fn is_open_clip(weights: &Weights) -> bool {
    weights.stored_shape("visual.conv1.weight").is_some()
}

/// The sizes of a weight file without a configuration, which only OpenAI's ViT-L/14 may be.
fn openai(name: &str, path: &Path, weights: &Weights, open_clip: bool) -> Result<ClipModelConfig, RewardError> {
    let config = ClipModelConfig::vit_l_14();
    let expected = [config.vision.hidden_size, config.vision.projection_dim];
    if weights
        .stored_shape("visual.proj")
        .is_some_and(|shape| shape == expected)
    {
        return Ok(config);
    }
    let wanted = if open_clip {
        "open_clip_config.json"
    } else {
        "config.json"
    };
    Err(RewardError::Mismatch {
        scorer: name.to_owned(),
        path: path.to_owned(),
        why: format!(
            "there is no {wanted} beside this file, and it is not OpenAI's ViT-L/14; copy that file of the same checkpoint"
        ),
    })
}

fn tokenizer_error(name: &str, source: TokenizerError) -> RewardError {
    RewardError::Tokenizer {
        scorer: name.to_owned(),
        source,
    }
}

/// A CLIP model with its preprocessing and tokenizer, for whoever needs its features.
#[derive(Debug)]
pub struct ClipFeatures {
    name: String,
    origin: PathBuf,
    model: ClipModel,
    size: ModelSize,
    preprocessor: Preprocessor,
    tokenizer: Tokenizer,
    device: Device,
    micro_batch: usize,
}

impl ClipFeatures {
    /// Finds and loads a CLIP model; see [`ClipSource::find`].
    ///
    /// # Errors
    ///
    /// As for [`ClipSource::find`] and [`ClipSource::load`].
    pub fn open(name: &str, path: &Path, device: &Device) -> Result<Self, RewardError> {
        ClipSource::find(name, path, None, device)?.load()
    }

    /// The same with another number of pictures or texts per forward pass (at least 1). Features do not depend on it but
    /// for rounding.
    #[must_use]
    pub fn with_micro_batch(mut self, rows: usize) -> Self {
        self.micro_batch = rows.max(1);
        self
    }

    /// The reward's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &ClipModel {
        &self.model
    }

    /// The model's size.
    #[must_use]
    pub fn size(&self) -> ModelSize {
        self.size
    }

    /// The tokenizer.
    #[must_use]
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The longest text that is read, in tokens.
    #[must_use]
    pub fn text_limit(&self) -> usize {
        let positions = self.model.text.config().max_position_embeddings;
        self.tokenizer
            .max_length()
            .map_or(positions, |length| length.min(positions))
    }

    /// What the model is, for descriptions.
    #[must_use]
    pub fn tower(&self) -> impl fmt::Display + '_ {
        Tower(self)
    }

    /// The projected feature of each picture, not normalised, `[pictures][projection]`.
    ///
    /// # Errors
    ///
    /// The device does not hand its data over.
    ///
    /// # Panics
    ///
    /// A picture has no pixels.
    pub fn pictures(&self, pictures: &[Picture]) -> Result<Vec<Vec<f32>>, RewardError> {
        let [width, height] = self.preprocessor.size().map(|side| side as usize);
        let mut features = Vec::with_capacity(pictures.len());
        for part in pictures.chunks(self.micro_batch) {
            let pixels: Vec<Vec<f32>> = part
                .par_iter()
                .map(|picture| self.preprocessor.pixels(picture))
                .collect();
            let data = TensorData::new(pixels.concat(), [part.len(), 3, height, width]);
            let output = self.model.vision.forward(Tensor::from_data(data, &self.device));
            features.extend(self.rows(output.projected)?);
        }
        Ok(features)
    }

    /// The projected feature of each text, given as equally long token sequences, not normalised,
    /// `[texts][projection]`.
    ///
    /// # Errors
    ///
    /// The device does not hand its data over.
    ///
    /// # Panics
    ///
    /// The sequences differ in length, are too long for the position table, or hold an id outside the token table.
    pub fn texts(&self, ids: &[Vec<u32>]) -> Result<Vec<Vec<f32>>, RewardError> {
        let mut features = Vec::with_capacity(ids.len());
        for part in ids.chunks(self.micro_batch) {
            let output = self.model.text.forward(part, &self.device);
            features.extend(self.rows(output.projected)?);
        }
        Ok(features)
    }

    /// `[rows, width]` on the device to rows on the host.
    fn rows(&self, features: Tensor<2>) -> Result<Vec<Vec<f32>>, RewardError> {
        let width = features.dims()[1];
        let values: Vec<f32> =
            features
                .into_data()
                .convert::<f32>()
                .try_to_vec()
                .map_err(|_| RewardError::Unreadable {
                    scorer: self.name.clone(),
                })?;
        Ok(values.chunks_exact(width.max(1)).map(<[f32]>::to_vec).collect())
    }
}

/// Says which model it is: a score's range depends on it.
struct Tower<'a>(&'a ClipFeatures);

impl fmt::Display for Tower<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let vision = self.0.model.vision.config();
        let activation = match vision.hidden_act {
            Activation::QuickGelu => "quick_gelu".to_owned(),
            other => format!("{other:?}").to_lowercase(),
        };
        let origin = self.0.origin.file_name().unwrap_or_default().to_string_lossy();
        write!(
            f,
            "CLIP {origin} with {} layers of width {}, patches of {} in pictures of {} pixels, {activation} activation",
            vision.num_hidden_layers, vision.hidden_size, vision.patch_size, vision.image_size,
        )
    }
}
