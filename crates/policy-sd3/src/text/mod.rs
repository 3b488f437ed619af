//! Prompts to conditioning: two CLIP towers side by side, then T5 along the sequence.
//!
//! Invariant: every prompt is padded to the same lengths, so its result does not depend on the prompts beside it.

pub mod t5;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use burn::tensor::{Device, Int, Tensor, TensorData};
use nn::clip::text::{ClipText, ClipTextOutput};
use nn::tokenizer::{Tokenizer, TokenizerError, TruncatedText};
use nn::weights::{WeightsError, read_config};
use serde_json::Value;

use t5::T5Encoder;

/// Why prompts could not be encoded.
#[derive(Debug, thiserror::Error)]
pub enum TextError {
    /// An encoder's weights or configuration.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// A tokenizer's files, or a text that it refuses.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// Parts of the pipeline do not fit each other.
    #[error("{}: {why}", path.display())]
    Mismatch {
        /// The file or folder that has to change.
        path: PathBuf,
        /// What does not fit and what to do.
        why: String,
    },
    /// No prompt was given.
    #[error("there is no prompt to encode; give at least one (an empty text counts)")]
    NoPrompts,
    /// A micro-batch of no prompts.
    #[error("the text encoders' micro-batch is 0; set it to at least 1")]
    EmptyMicroBatch,
}

/// How a pipeline's text encoders are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextSettings {
    /// Width of the sequence that the transformer takes (`joint_attention_dim`).
    pub joint_width: usize,
    /// Tokens of the T5 part (`max_sequence_length`), real or all zero.
    pub t5_tokens: usize,
    /// Whether to use T5 if the pipeline has it. Without it, its part is zero tokens.
    pub use_t5: bool,
    /// Prompts that go through the encoders together.
    pub micro_batch: usize,
}

/// What the transformer is told about a list of prompts.
#[derive(Debug, Clone)]
pub struct PromptEmbeddings {
    /// `[prompts, tokens, joint width]`: the CLIP tokens, then T5's if there is a T5.
    pub sequence: Tensor<3>,
    /// `[prompts, pooled width]`: both CLIP towers' projected features side by side.
    pub pooled: Tensor<2>,
    /// How many all-zero tokens follow the sequence. They are not stored; all prompts have the same number.
    pub zero_tokens: usize,
    /// Every cut of a prompt, in the order of the prompts.
    pub truncated: Vec<TruncatedPrompt>,
}

impl PromptEmbeddings {
    /// The sequence with its zero tokens spelt out, `[prompts, tokens + zero tokens, joint width]`.
    #[must_use]
    pub fn with_zero_tokens(&self) -> Tensor<3> {
        if self.zero_tokens == 0 {
            return self.sequence.clone();
        }
        let [prompts, _, width] = self.sequence.dims();
        let zeros = Tensor::zeros([prompts, self.zero_tokens, width], &self.sequence.device());
        Tensor::cat(vec![self.sequence.clone(), zeros], 1)
    }
}

/// A prompt that one of the tokenizers cut off.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TruncatedPrompt {
    /// Its place in the list.
    pub prompt: usize,
    /// Folder of the tokenizer that cut it.
    pub tokenizer: &'static str,
    /// Tokens of the whole prompt.
    pub tokens: usize,
    /// Tokens that were kept.
    pub kept: usize,
}

/// The text encoders and tokenizers of a pipeline folder.
#[derive(Debug)]
pub struct TextEncoders {
    clip: [ClipPart; 2],
    t5: Option<T5Part>,
    clip_tokens: usize,
    settings: TextSettings,
    device: Device,
}

#[derive(Debug)]
struct ClipPart {
    tokenizer: Tokenizer,
    tower: ClipText,
}

#[derive(Debug)]
struct T5Part {
    tokenizer: Tokenizer,
    encoder: T5Encoder,
}

/// Folders of the tokenizers, in the order CLIP, CLIP, T5.
const TOKENIZERS: [&str; 3] = ["tokenizer", "tokenizer_2", "tokenizer_3"];
/// Folders of the encoders, in the same order.
const ENCODERS: [&str; 3] = ["text_encoder", "text_encoder_2", "text_encoder_3"];

impl TextEncoders {
    /// Opens `text_encoder`, `text_encoder_2` and, if it is there and wanted, `text_encoder_3` of a pipeline folder,
    /// each with its tokenizer. T5 is absent if `model_index.json` says `[null, null]` or its folder does not exist;
    /// [`TextEncoders::has_t5`] tells.
    ///
    /// # Errors
    ///
    /// A file is missing or damaged, or the parts do not fit each other or the joint width.
    pub fn open(pipeline: &Path, settings: TextSettings, device: &Device) -> Result<Self, TextError> {
        if settings.micro_batch == 0 {
            return Err(TextError::EmptyMicroBatch);
        }
        let part = |number: usize| -> Result<ClipPart, TextError> {
            let tokenizer = Tokenizer::open(&pipeline.join(TOKENIZERS[number]))?;
            let dir = pipeline.join(ENCODERS[number]);
            let tower = ClipText::open(&dir, device)?;
            check_vocabulary(&tokenizer, tower.config().vocab_size, &dir)?;
            Ok(ClipPart { tokenizer, tower })
        };
        let clip = [part(0)?, part(1)?];
        let clip_tokens = clip_length(&clip)?;
        let side_by_side: usize = clip.iter().map(|c| c.tower.config().hidden_size).sum();
        if side_by_side > settings.joint_width {
            return Err(TextError::Mismatch {
                path: pipeline.join(ENCODERS[1]).join("config.json"),
                why: format!(
                    "the two CLIP towers are {side_by_side} wide together, the transformer's joint_attention_dim is only {}; the parts are of different pipelines",
                    settings.joint_width
                ),
            });
        }
        let t5 = if settings.use_t5 && pipeline_has_t5(pipeline)? {
            Some(open_t5(pipeline, settings.joint_width, device)?)
        } else {
            None
        };
        Ok(Self {
            clip,
            t5,
            clip_tokens,
            settings,
            device: device.clone(),
        })
    }

    /// Whether T5 takes part.
    #[must_use]
    pub fn has_t5(&self) -> bool {
        self.t5.is_some()
    }

    /// Tokens of the CLIP part of the sequence.
    #[must_use]
    pub fn clip_tokens(&self) -> usize {
        self.clip_tokens
    }

    /// Width of the pooled features.
    #[must_use]
    pub fn pooled_width(&self) -> usize {
        self.clip.iter().map(|c| c.tower.config().projection_dim).sum()
    }

    /// Encodes prompts, each distinct text once, in micro-batches.
    ///
    /// # Errors
    ///
    /// There is no prompt, or a tokenizer refuses one.
    pub fn encode(&self, prompts: &[String]) -> Result<PromptEmbeddings, TextError> {
        if prompts.is_empty() {
            return Err(TextError::NoPrompts);
        }
        let mut distinct: Vec<&str> = Vec::new();
        let mut places: HashMap<&str, usize> = HashMap::new();
        let rows: Vec<usize> = prompts
            .iter()
            .map(|prompt| {
                *places.entry(prompt).or_insert_with(|| {
                    distinct.push(prompt);
                    distinct.len() - 1
                })
            })
            .collect();

        let mut cuts: Vec<Vec<(&'static str, usize, usize)>> = vec![Vec::new(); distinct.len()];
        let mut sequences = Vec::new();
        let mut pooled = Vec::new();
        for (number, texts) in distinct.chunks(self.settings.micro_batch).enumerate() {
            let first = number * self.settings.micro_batch;
            let mut note = |tokenizer: &'static str, truncated: &[TruncatedText], kept: usize| {
                for cut in truncated {
                    cuts[first + cut.index].push((tokenizer, cut.tokens, kept));
                }
            };
            let (sequence, features) = self.encode_together(texts, &mut note)?;
            sequences.push(sequence);
            pooled.push(features);
        }
        let (mut sequence, mut pooled) = (Tensor::cat(sequences, 0), Tensor::cat(pooled, 0));
        if distinct.len() < prompts.len() {
            let indices = rows.iter().map(|row| *row as i32).collect();
            let indices = Tensor::<1, Int>::from_data(TensorData::new(indices, [rows.len()]), &self.device);
            sequence = sequence.select(0, indices.clone());
            pooled = pooled.select(0, indices);
        }
        let truncated = rows.iter().enumerate().flat_map(|(prompt, row)| {
            cuts[*row]
                .iter()
                .map(move |&(tokenizer, tokens, kept)| TruncatedPrompt {
                    prompt,
                    tokenizer,
                    tokens,
                    kept,
                })
        });
        let zero_tokens = if self.t5.is_some() { 0 } else { self.settings.t5_tokens };
        Ok(PromptEmbeddings {
            sequence,
            pooled,
            zero_tokens,
            truncated: truncated.collect(),
        })
    }

    /// How many prompts at least one tokenizer would cut.
    ///
    /// # Errors
    ///
    /// A tokenizer refuses a prompt.
    pub fn count_truncated(&self, prompts: &[String]) -> Result<usize, TextError> {
        let mut cut = HashSet::new();
        for part in &self.clip {
            let batch = part.tokenizer.encode_batch(prompts, self.clip_tokens)?;
            cut.extend(batch.truncated.iter().map(|t| t.index));
        }
        if let Some(t5) = &self.t5 {
            let batch = t5.tokenizer.encode_batch(prompts, self.settings.t5_tokens)?;
            cut.extend(batch.truncated.iter().map(|t| t.index));
        }
        Ok(cut.len())
    }

    /// Sequence and pooled features of one micro-batch; `note` takes what the tokenizers cut.
    fn encode_together(
        &self,
        texts: &[&str],
        note: &mut impl FnMut(&'static str, &[TruncatedText], usize),
    ) -> Result<(Tensor<3>, Tensor<2>), TextError> {
        let mut outputs: Vec<ClipTextOutput> = Vec::with_capacity(2);
        for (part, folder) in self.clip.iter().zip(TOKENIZERS) {
            let batch = part.tokenizer.encode_batch(texts, self.clip_tokens)?;
            note(folder, &batch.truncated, self.clip_tokens);
            outputs.push(part.tower.forward(&batch.ids, &self.device));
        }
        let pooled = Tensor::cat(outputs.iter().map(|o| o.projected.clone()).collect(), 1);
        let mut columns: Vec<Tensor<3>> = outputs.into_iter().map(|o| o.penultimate).collect();
        let filled: usize = columns.iter().map(|c| c.dims()[2]).sum();
        if filled < self.settings.joint_width {
            let rest = [texts.len(), self.clip_tokens, self.settings.joint_width - filled];
            columns.push(Tensor::zeros(rest, &self.device));
        }
        let mut sequence = Tensor::cat(columns, 2);
        if let Some(t5) = &self.t5 {
            let batch = t5.tokenizer.encode_batch(texts, self.settings.t5_tokens)?;
            note(TOKENIZERS[2], &batch.truncated, self.settings.t5_tokens);
            sequence = Tensor::cat(vec![sequence, t5.encoder.forward(&batch.ids, &self.device)], 1);
        }
        Ok((sequence, pooled))
    }
}

/// The length that both CLIP tokenizers pad to: the first tokenizer's, as the pipelines do it.
fn clip_length(clip: &[ClipPart; 2]) -> Result<usize, TextError> {
    let longest = |part: &ClipPart| part.tower.config().max_position_embeddings;
    let fits = clip.iter().map(longest).fold(usize::MAX, usize::min);
    match clip[0].tokenizer.max_length() {
        Some(length) if length > fits => Err(TextError::Mismatch {
            path: clip[0].tokenizer.dir().join("tokenizer_config.json"),
            why: format!(
                "model_max_length is {length}, the text encoders have only {fits} positions; set it to {fits}"
            ),
        }),
        Some(length) => Ok(length),
        None => Ok(fits),
    }
}

/// Whether the pipeline has a T5: what `model_index.json` says, or, without one, whether the folder is there.
///
/// # Errors
///
/// The index names a T5 whose folder is missing: the download is incomplete, and nothing stands in for a part.
fn pipeline_has_t5(pipeline: &Path) -> Result<bool, TextError> {
    let folder = pipeline.join(ENCODERS[2]);
    let index = pipeline.join("model_index.json");
    if !index.exists() {
        return Ok(folder.is_dir());
    }
    let index: Value = read_config(&index)?;
    // `["transformers", "T5EncoderModel"]`, or two nulls when the pipeline was saved without it.
    let class = index.get(ENCODERS[2]).and_then(|entry| entry.get(1));
    let named = !class.is_none_or(Value::is_null);
    if named && !folder.is_dir() {
        return Err(TextError::Mismatch {
            path: folder,
            why: "model_index.json names a T5 encoder, but its folder is missing; complete the download, or set \
                  model.use_t5 = false to do without it"
                .into(),
        });
    }
    Ok(named)
}

fn open_t5(pipeline: &Path, joint_width: usize, device: &Device) -> Result<T5Part, TextError> {
    let dir = pipeline.join(ENCODERS[2]);
    let tokenizer = Tokenizer::open(&pipeline.join(TOKENIZERS[2]))?;
    let encoder = T5Encoder::open(&dir, device)?;
    check_vocabulary(&tokenizer, encoder.config().vocab_size, &dir)?;
    let width = encoder.config().d_model;
    if width != joint_width {
        return Err(TextError::Mismatch {
            path: dir.join("config.json"),
            why: format!(
                "d_model is {width}, the transformer's joint_attention_dim {joint_width}; the parts are of different pipelines"
            ),
        });
    }
    Ok(T5Part { tokenizer, encoder })
}

/// Every id that the tokenizer can give must have a row in the token table.
fn check_vocabulary(tokenizer: &Tokenizer, rows: usize, encoder: &Path) -> Result<(), TextError> {
    if (tokenizer.largest_id() as usize) < rows {
        return Ok(());
    }
    Err(TextError::Mismatch {
        path: encoder.join("config.json"),
        why: format!(
            "vocab_size is {rows}, but the tokenizer in {} gives ids up to {}; they are of different pipelines",
            tokenizer.dir().display(),
            tokenizer.largest_id()
        ),
    })
}
