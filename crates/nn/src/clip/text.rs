//! The CLIP text tower: token and position tables, causal layers, pooling at the end-of-text token, projection.

use std::path::Path;

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor, TensorData};
use serde::Deserialize;

use super::{ClipEncoder, ClipEncoderConfig};
use crate::activation::Activation;
use crate::attention::causal_bias;
use crate::layers::{Embedding, LayerNorm, Linear};
use crate::weights::{Weights, WeightsError, read_config};

/// `eos_token_id` of configurations from before the field meant anything; it asks for the largest id instead.
const LEGACY_END_OF_TEXT: i64 = 2;

/// The fields of a Hugging Face CLIP text `config.json` that shape the network.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ClipTextConfig {
    /// Rows of the token table.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width inside the feed-forward part.
    pub intermediate_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Attention heads of every layer.
    pub num_attention_heads: usize,
    /// Rows of the position table: the longest sequence.
    pub max_position_embeddings: usize,
    /// Activation of the feed-forward parts.
    #[serde(default = "default_activation")]
    pub hidden_act: Activation,
    /// ε of every layer normalisation.
    #[serde(default = "default_epsilon")]
    pub layer_norm_eps: f64,
    /// Id of the token to pool at; 2 or nothing means the position of the largest id.
    #[serde(default)]
    pub eos_token_id: Option<i64>,
    /// Width of the projected feature. A whole `CLIPModel` overrules it with its own `projection_dim`.
    #[serde(default = "default_projection")]
    pub projection_dim: usize,
}

impl ClipTextConfig {
    /// Sizes of the stack of layers.
    #[must_use]
    pub fn encoder(&self) -> ClipEncoderConfig {
        ClipEncoderConfig {
            width: self.hidden_size,
            heads: self.num_attention_heads,
            layers: self.num_hidden_layers,
            intermediate: self.intermediate_size,
            activation: self.hidden_act,
            epsilon: self.layer_norm_eps,
        }
    }

    /// Position that the pooled feature is taken from: the first end-of-text token, or position 0 if there is none.
    fn pooled_position(&self, ids: &[u32]) -> usize {
        let first = |wanted: i64| ids.iter().position(|id| i64::from(*id) == wanted).unwrap_or(0);
        match self.eos_token_id {
            None | Some(LEGACY_END_OF_TEXT) => first(i64::from(ids.iter().copied().max().unwrap_or(0))),
            Some(end) => first(end),
        }
    }
}

/// What the text tower says about a batch of token sequences.
#[derive(Debug, Clone)]
pub struct ClipTextOutput {
    /// The stream before the last layer (`hidden_states[-2]`), without the final norm, `[batch, tokens, width]`.
    pub penultimate: Tensor<3>,
    /// The stream after the last layer and the final norm, `[batch, tokens, width]`.
    pub last: Tensor<3>,
    /// `last` at the end-of-text token, `[batch, width]`.
    pub pooled: Tensor<2>,
    /// `pooled` after the projection (`text_embeds`), `[batch, projection]`.
    pub projected: Tensor<2>,
}

/// The tensors of a text tower, whatever their file called them.
pub(super) struct ClipTextParts {
    /// Token table, `[vocabulary, width]`.
    pub(super) tokens: Embedding,
    /// Position table, `[longest sequence, width]`.
    pub(super) positions: Embedding,
    /// The layers.
    pub(super) encoder: ClipEncoder,
    /// Norm after the last layer.
    pub(super) final_norm: LayerNorm,
    /// Projection of the pooled feature, without bias.
    pub(super) projection: Linear,
}

/// A CLIP text tower with projection.
#[derive(Module, Debug)]
pub struct ClipText {
    tokens: Embedding,
    positions: Embedding,
    encoder: ClipEncoder,
    final_norm: LayerNorm,
    projection: Linear,
    #[module(skip)]
    config: ClipTextConfig,
}

impl ClipText {
    /// Opens a folder with `config.json` and the weights `model` of a `CLIPTextModelWithProjection`.
    ///
    /// # Errors
    ///
    /// The configuration or the weights are missing, damaged or do not fit each other.
    pub fn open(dir: &Path, device: &Device) -> Result<Self, WeightsError> {
        let path = dir.join("config.json");
        let config: ClipTextConfig = read_config(&path)?;
        config
            .encoder()
            .check()
            .map_err(|why| WeightsError::Config { path, why })?;
        let weights = Weights::open(dir, "model", device)?;
        let tower = Self::load(&weights, &config)?;
        weights.finish()?;
        Ok(tower)
    }

    /// Reads `text_model.*` and `text_projection.weight`. The head count must have been [checked](ClipEncoderConfig::check).
    ///
    /// # Errors
    ///
    /// A tensor is missing or misshapen.
    pub fn load(weights: &Weights, config: &ClipTextConfig) -> Result<Self, WeightsError> {
        let model = weights.scope("text_model");
        let embeddings = model.scope("embeddings");
        // Files of older releases carry the numbers 0, 1, 2, … as a tensor.
        embeddings.ignore("position_ids");
        let width = config.hidden_size;
        let parts = ClipTextParts {
            tokens: Embedding::load(&embeddings.scope("token_embedding"), config.vocab_size, width)?,
            positions: Embedding::load(
                &embeddings.scope("position_embedding"),
                config.max_position_embeddings,
                width,
            )?,
            encoder: ClipEncoder::load(&model.scope("encoder"), &config.encoder())?,
            final_norm: LayerNorm::load(&model.scope("final_layer_norm"), width, config.layer_norm_eps)?,
            projection: Linear::load_without_bias(&weights.scope("text_projection"), width, config.projection_dim)?,
        };
        Ok(Self::from_parts(parts, config))
    }

    /// A tower of given tensors, which must have the sizes that the configuration says.
    pub(super) fn from_parts(parts: ClipTextParts, config: &ClipTextConfig) -> Self {
        Self {
            tokens: parts.tokens,
            positions: parts.positions,
            encoder: parts.encoder,
            final_norm: parts.final_norm,
            projection: parts.projection,
            config: config.clone(),
        }
    }

    /// The configuration that the tower was built from.
    #[must_use]
    pub fn config(&self) -> &ClipTextConfig {
        &self.config
    }

    /// Runs equally long token sequences, `[batch][tokens]`. Padding is attended to like any other token.
    ///
    /// # Panics
    ///
    /// There is no sequence, or they differ in length, are longer than the position table, or hold an id outside the
    /// token table.
    #[must_use]
    pub fn forward(&self, ids: &[Vec<u32>], device: &Device) -> ClipTextOutput {
        let batch = ids.len();
        let length = ids.first().map_or(0, Vec::len);
        assert!(
            length > 0 && ids.iter().all(|row| row.len() == length),
            "token sequences of one length are needed"
        );
        let rows = self.config.vocab_size;
        assert!(
            ids.iter().flatten().all(|id| (*id as usize) < rows),
            "a token id is outside the table of {rows} rows"
        );
        let longest = self.config.max_position_embeddings;
        assert!(
            length <= longest,
            "{length} tokens are more than the {longest} that the position table holds"
        );

        let positions = self.positions.table().narrow(0, 0, length).unsqueeze::<3>();
        let x = self.tokens.forward(id_tensor(ids, device)) + positions;
        let states = self.encoder.forward(x, Some(causal_bias(length, device)));
        let last = self.final_norm.forward(states.last);

        let width = self.config.hidden_size;
        let places = ids
            .iter()
            .enumerate()
            .map(|(row, ids)| (row * length + self.config.pooled_position(ids)) as i32);
        let places = Tensor::<1, Int>::from_data(TensorData::new(places.collect(), [batch]), device);
        let pooled = last.clone().reshape([batch * length, width]).select(0, places);
        let projected = self.projection.forward(pooled.clone());
        ClipTextOutput {
            penultimate: states.penultimate,
            last,
            pooled,
            projected,
        }
    }
}

/// Equally long token sequences as a tensor `[batch, tokens]`.
///
/// # Panics
///
/// There is no sequence, or they differ in length.
#[must_use]
pub fn id_tensor(ids: &[Vec<u32>], device: &Device) -> Tensor<2, Int> {
    let length = ids.first().map_or(0, Vec::len);
    assert!(
        length > 0 && ids.iter().all(|row| row.len() == length),
        "token sequences of one length are needed"
    );
    // Vocabularies are far smaller than the range of i32, which every backend has.
    let flat: Vec<i32> = ids.iter().flatten().map(|id| *id as i32).collect();
    Tensor::from_data(TensorData::new(flat, [ids.len(), length]), device)
}

fn default_activation() -> Activation {
    Activation::QuickGelu
}

fn default_epsilon() -> f64 {
    1e-5
}

fn default_projection() -> usize {
    512
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(end: Option<i64>) -> ClipTextConfig {
        let fields = serde_json::json!({
            "vocab_size": 64, "hidden_size": 384, "intermediate_size": 96, "num_hidden_layers": 2,
            "num_attention_heads": 6, "max_position_embeddings": 24, "eos_token_id": end, "projection_dim": 320
        });
        serde_json::from_value(fields).expect("every other field has a default")
    }

    #[test]
    fn pooling_follows_the_configured_end_token() {
        // The largest id stands at place 3, its first copy; token 5 first at place 1.
        let ids = [9, 5, 7, 63, 5, 63];
        for (end, place) in [(Some(2), 3), (None, 3), (Some(63), 3), (Some(5), 1), (Some(40), 0)] {
            assert_eq!(config(end).pooled_position(&ids), place, "{end:?}");
        }
    }

    #[test]
    fn a_row_does_not_depend_on_its_neighbours() {
        let device = Device::flex();
        let tower = ClipText::load(&Weights::seeded(3, 1.0, &device), &config(Some(2))).expect("a seeded tower");
        let rows: Vec<Vec<u32>> = (0..7)
            .map(|row| (0..24).map(|i| (row * 31 + i * 7) % 64).collect())
            .collect();
        let together = tower.forward(&rows, &device);
        let bits = |t: Tensor<2>| -> Vec<u32> {
            t.into_data()
                .try_to_vec::<f32>()
                .expect("f32 data")
                .into_iter()
                .map(f32::to_bits)
                .collect()
        };
        for (index, row) in rows.iter().enumerate() {
            let alone = tower.forward(std::slice::from_ref(row), &device);
            let [_, tokens, width] = together.penultimate.dims();
            let penultimate = together
                .penultimate
                .clone()
                .narrow(0, index, 1)
                .reshape([tokens, width]);
            assert!(
                bits(penultimate) == bits(alone.penultimate.reshape([tokens, width])),
                "row {index}"
            );
            let projected = together.projected.clone().narrow(0, index, 1);
            assert!(bits(projected) == bits(alone.projected), "feature of row {index}");
        }
    }
}
