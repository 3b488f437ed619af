//! CLIP features of pictures and texts: a Hugging Face `CLIPModel` folder with its preprocessing.

use std::path::Path;

use burn::tensor::{Device, Tensor, TensorData};
use nn::clip::{ClipModel, ClipModelConfig};
use nn::tokenizer::Tokenizer;
use nn::weights::Weights;
use rayon::prelude::*;

use crate::error::RewardError;
use crate::pictures::Picture;
use crate::preprocess::Preprocessor;

/// Rows per forward pass unless [`ClipFeatures::with_micro_batch`] says otherwise: enough to keep the matrix products
/// busy, few enough for a large tower's activations.
const MICRO_BATCH: usize = 32;

/// A CLIP model with its preprocessing, for whoever needs its features.
#[derive(Debug)]
pub struct ClipFeatures {
    name: String,
    model: ClipModel,
    preprocessor: Preprocessor,
    device: Device,
    micro_batch: usize,
}

impl ClipFeatures {
    /// Opens a folder with `config.json`, `preprocessor_config.json` and `model.safetensors` (or its shards). `name` is
    /// the reward's, for its errors.
    ///
    /// # Errors
    ///
    /// A file is missing, damaged, or does not fit the others.
    pub fn open(name: &str, dir: &Path, device: &Device) -> Result<Self, RewardError> {
        let scorer = || name.to_owned();
        let preprocessor = read_preprocessor(name, dir)?;
        let model = ClipModel::open(dir, device).map_err(|source| RewardError::Weights {
            scorer: scorer(),
            source,
        })?;
        check_sizes(name, dir, &preprocessor, model.vision.config().image_size)?;
        Ok(Self {
            name: scorer(),
            model,
            preprocessor,
            device: device.clone(),
            micro_batch: MICRO_BATCH,
        })
    }

    /// Checks everything that can be checked without reading a weight: that all files are there, that the
    /// configurations are valid and fit each other, and that the weight files' headers are whole.
    ///
    /// # Errors
    ///
    /// As for [`ClipFeatures::open`].
    pub fn check(name: &str, dir: &Path, device: &Device) -> Result<(), RewardError> {
        let weights_error = |source| RewardError::Weights {
            scorer: name.to_owned(),
            source,
        };
        // The weights first: a wrong folder is then reported as such, not as one that lacks a small file.
        Weights::open(dir, "model", device).map_err(weights_error)?;
        let config = ClipModelConfig::read(&dir.join("config.json")).map_err(weights_error)?;
        let preprocessor = read_preprocessor(name, dir)?;
        check_sizes(name, dir, &preprocessor, config.vision.image_size)
    }

    /// The same with another number of pictures or texts per forward pass (at least 1). Features do not depend on it but
    /// for rounding.
    #[must_use]
    pub fn with_micro_batch(mut self, rows: usize) -> Self {
        self.micro_batch = rows.max(1);
        self
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &ClipModel {
        &self.model
    }

    /// The preprocessing of pictures.
    #[must_use]
    pub fn preprocessor(&self) -> &Preprocessor {
        &self.preprocessor
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

    /// Opens the tokenizer of the same folder. Its ids must fit the model's token table.
    ///
    /// # Errors
    ///
    /// Its files are missing or malformed, or it belongs to another model.
    pub fn open_tokenizer(&self, dir: &Path) -> Result<Tokenizer, RewardError> {
        let tokenizer = open_tokenizer(&self.name, dir)?;
        let rows = self.model.text.config().vocab_size;
        if tokenizer.largest_id() as usize >= rows {
            return Err(RewardError::Mismatch {
                scorer: self.name.clone(),
                path: dir.to_owned(),
                why: format!(
                    "the tokenizer's largest id is {}, but the model's token table has {rows} rows; \
                     take both from one checkpoint",
                    tokenizer.largest_id()
                ),
            });
        }
        Ok(tokenizer)
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

/// Opens the tokenizer of a model's folder.
pub(crate) fn open_tokenizer(name: &str, dir: &Path) -> Result<Tokenizer, RewardError> {
    Tokenizer::open(dir).map_err(|source| RewardError::Tokenizer {
        scorer: name.to_owned(),
        source,
    })
}

fn read_preprocessor(name: &str, dir: &Path) -> Result<Preprocessor, RewardError> {
    Preprocessor::hugging_face(&dir.join("preprocessor_config.json")).map_err(|source| RewardError::Preprocess {
        scorer: name.to_owned(),
        source,
    })
}

/// The preprocessing must make pictures of the size that the tower takes.
fn check_sizes(name: &str, dir: &Path, preprocessor: &Preprocessor, side: usize) -> Result<(), RewardError> {
    let [width, height] = preprocessor.size();
    if [width as usize, height as usize] == [side; 2] {
        return Ok(());
    }
    Err(RewardError::Mismatch {
        scorer: name.to_owned(),
        path: dir.to_owned(),
        why: format!(
            "preprocessor_config.json makes pictures of {width} x {height}, but config.json's image_size is {side}; \
             take both from one checkpoint"
        ),
    })
}
