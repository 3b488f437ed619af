//! A whole pipeline folder in the layout of diffusers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::tensor::{Device, Tensor};
use nn::weights::{ParameterKeys, Weights, WeightsError};

use crate::adapter::StoredTensor;
use crate::guidance::PromptTable;
use crate::schedule::SchedulerConfig;
use crate::text::{TextEncoders, TextError, TextSettings, TruncatedPrompt};
use crate::transformer::{Transformer, TransformerConfig};
use crate::vae::Vae;

/// Every part of a Stable Diffusion 3 pipeline.
#[derive(Debug)]
pub struct Pipeline {
    /// The velocity network, on a device that tracks no gradients.
    pub transformer: Transformer,
    /// Its sizes.
    pub config: TransformerConfig,
    /// The names of its parameters.
    pub keys: ParameterKeys,
    /// The autoencoder.
    pub vae: Vae,
    /// Tokenizers and text encoders.
    pub text: TextEncoders,
    /// The scheduler's settings.
    pub scheduler: SchedulerConfig,
    dir: PathBuf,
}

/// The transformer's position table. Its values are computed once, so it is stored and never trained.
const POSITION_TABLE: &str = "pos_embed.pos_embed";
/// Prompts that go through the text encoders together.
const TEXT_MICRO_BATCH: usize = 32;

impl Pipeline {
    /// Opens a pipeline folder. `t5_tokens` is diffusers' `max_sequence_length`: how many tokens T5's part of the
    /// sequence has, or how many zero tokens stand for it.
    ///
    /// # Errors
    ///
    /// A part is missing, damaged, or does not fit the others.
    pub fn open(dir: &Path, t5_tokens: usize, use_t5: bool, device: &Device) -> Result<Self, TextError> {
        let scheduler = SchedulerConfig::open(&dir.join("scheduler"))?;
        let (transformer, config, keys) = Transformer::open(&dir.join("transformer"), device)?;
        let vae = Vae::open(&dir.join("vae"), device)?;
        let settings = TextSettings {
            joint_width: config.joint_attention_dim,
            t5_tokens,
            use_t5,
            micro_batch: TEXT_MICRO_BATCH,
        };
        let text = TextEncoders::open(dir, settings, device)?;
        let mismatch = |why: String| {
            Err(TextError::Mismatch {
                path: dir.to_owned(),
                why,
            })
        };
        if vae.latent_channels() != config.in_channels {
            return mismatch(format!(
                "the autoencoder has {} latent channels, the transformer reads {}; are they of one model?",
                vae.latent_channels(),
                config.in_channels
            ));
        }
        if text.pooled_width() != config.pooled_projection_dim {
            return mismatch(format!(
                "the text encoders give a pooled width of {}, the transformer reads {}; are they of one model?",
                text.pooled_width(),
                config.pooled_projection_dim
            ));
        }
        Ok(Self {
            transformer,
            config,
            keys,
            vae,
            text,
            scheduler,
            dir: dir.to_owned(),
        })
    }

    /// Looks at the configuration and the weight headers of every part, without reading a weight.
    ///
    /// # Errors
    ///
    /// A part is missing, damaged or of an unknown kind.
    pub fn check(dir: &Path, device: &Device) -> Result<(), WeightsError> {
        SchedulerConfig::open(&dir.join("scheduler"))?;
        TransformerConfig::read(&dir.join("transformer"))?;
        Weights::open(&dir.join("transformer"), "diffusion_pytorch_model", device)?;
        Weights::open(&dir.join("vae"), "diffusion_pytorch_model", device)?;
        for encoder in ["text_encoder", "text_encoder_2"] {
            Weights::open(&dir.join(encoder), "model", device)?;
        }
        Ok(())
    }

    /// The tensors of the transformer's files that are no parameters: the position table. A whole file holds them too.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn transformer_constants(&self, device: &Device) -> Result<BTreeMap<String, StoredTensor>, WeightsError> {
        let weights = Weights::open(&self.dir.join("transformer"), "diffusion_pytorch_model", device)?;
        let shape = weights.stored_shape(POSITION_TABLE).unwrap_or_default();
        let values = weights.values(POSITION_TABLE, &shape)?;
        Ok(BTreeMap::from([(POSITION_TABLE.to_owned(), (shape, values))]))
    }

    /// The folder that was opened.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// `[channels, height, width]` of the latents of a square picture of `size` pixels; of the model's own size when
    /// none is given.
    ///
    /// # Errors
    ///
    /// The size is no multiple of a patch, or exceeds the position table.
    pub fn latent_shape(&self, size: Option<usize>) -> Result<[usize; 3], WeightsError> {
        let factor = self.vae.spatial_factor();
        let patch = self.config.patch_size;
        let pixels = size.unwrap_or(self.config.sample_size * factor);
        let largest = self.config.pos_embed_max_size * patch * factor;
        if pixels == 0 || !pixels.is_multiple_of(factor * patch) || pixels > largest {
            let why = format!(
                "pictures of {pixels} pixels cannot be made; the side must be a multiple of {} and at most {largest}",
                factor * patch
            );
            return Err(WeightsError::Config {
                path: self.dir.clone(),
                why,
            });
        }
        Ok([self.config.in_channels, pixels / factor, pixels / factor])
    }

    /// Encodes prompts, and the empty prompt for guidance.
    ///
    /// # Errors
    ///
    /// A tokenizer refuses a prompt.
    pub fn encode(&self, prompts: &[String]) -> Result<(PromptTable, Vec<TruncatedPrompt>), TextError> {
        let mut texts = prompts.to_vec();
        texts.push(String::new());
        let embeddings = self.text.encode(&texts)?;
        Ok((PromptTable::new(&embeddings), embeddings.truncated))
    }

    /// Decodes latents in micro-batches, `[batch, channels, h, w]` to `[batch, 3, height, width]`.
    #[must_use]
    pub fn decode(&self, latents: &Tensor<4>, micro_batch: usize) -> Tensor<4> {
        let batch = latents.dims()[0];
        let parts = (0..batch).step_by(micro_batch.max(1)).map(|start| {
            let length = micro_batch.max(1).min(batch - start);
            self.vae.decode(latents.clone().narrow(0, start, length))
        });
        Tensor::cat(parts.collect(), 0)
    }
}
