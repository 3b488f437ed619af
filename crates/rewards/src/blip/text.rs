//! BLIP's text encoder: BERT (Devlin et al. 2019) with attention to the picture between self-attention and feed-forward
//! part. Each of the three is added to the stream and normalised afterwards.

use std::path::Path;

use burn::module::Module;
use burn::tensor::{Device, Int, Tensor, TensorData};
use nn::activation::Activation;
use nn::attention::{attention, merge_heads, split_heads};
use nn::layers::{Embedding, LayerNorm, Linear};
use nn::weights::{Weights, WeightsError, read_config};
use serde::Deserialize;

/// What a padding token adds to the attention scores of its column: its weight becomes exactly 0 in f32.
const MASKED: f32 = -10_000.0;

/// The fields of `med_config.json` that shape the network.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct BertConfig {
    /// Rows of the token table, BLIP's two added tokens included.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width inside the feed-forward part.
    pub intermediate_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Attention heads of every layer.
    pub num_attention_heads: usize,
    /// Rows of the position table.
    pub max_position_embeddings: usize,
    /// Activation of the feed-forward parts.
    pub hidden_act: Activation,
    /// ε of every layer normalisation.
    pub layer_norm_eps: f64,
}

impl BertConfig {
    /// The configuration of the released ImageReward: BERT-base with two added tokens.
    #[must_use]
    pub fn base() -> Self {
        Self {
            vocab_size: 30_524,
            hidden_size: 768,
            intermediate_size: 3072,
            num_hidden_layers: 12,
            num_attention_heads: 12,
            max_position_embeddings: 512,
            hidden_act: Activation::Gelu,
            layer_norm_eps: 1e-12,
        }
    }

    /// Reads the file if there is one, else takes [`Self::base`].
    ///
    /// # Errors
    ///
    /// The file is malformed or its sizes make no network.
    pub fn read_or_base(path: &Path) -> Result<Self, WeightsError> {
        if !path.exists() {
            return Ok(Self::base());
        }
        let config: Self = read_config(path)?;
        let heads = config.num_attention_heads;
        if heads == 0 || config.hidden_size == 0 || !config.hidden_size.is_multiple_of(heads) {
            return Err(WeightsError::Config {
                path: path.to_owned(),
                why: format!(
                    "num_attention_heads {heads} does not divide hidden_size {}; correct one of them",
                    config.hidden_size
                ),
            });
        }
        Ok(config)
    }
}

/// The text encoder.
#[derive(Module, Debug)]
pub struct BlipText {
    words: Embedding,
    positions: Embedding,
    norm: LayerNorm,
    layers: Vec<Layer>,
}

impl BlipText {
    /// Reads `embeddings` and `encoder.layer.{i}`; `picture_width` is that of the tokens of a picture.
    ///
    /// # Errors
    ///
    /// A tensor is missing or misshapen.
    pub fn load(weights: &Weights, config: &BertConfig, picture_width: usize) -> Result<Self, WeightsError> {
        let embeddings = weights.scope("embeddings");
        // The numbers 0, 1, 2, … as a tensor.
        embeddings.ignore("position_ids");
        let width = config.hidden_size;
        let layers = (0..config.num_hidden_layers)
            .map(|i| Layer::load(&weights.scope(format!("encoder.layer.{i}")), config, picture_width));
        Ok(Self {
            words: Embedding::load(&embeddings.scope("word_embeddings"), config.vocab_size, width)?,
            positions: Embedding::load(
                &embeddings.scope("position_embeddings"),
                config.max_position_embeddings,
                width,
            )?,
            norm: LayerNorm::load(&embeddings.scope("LayerNorm"), width, config.layer_norm_eps)?,
            layers: layers.collect::<Result<_, _>>()?,
        })
    }

    /// The state of the first token of each text beside its picture, `[batch, hidden_size]`.
    ///
    /// `ids` are `[batch][length]`, of which the first `lengths[i]` of text `i` are not padding; `pictures` are the
    /// tokens of one picture per text, `[batch, tokens, picture_width]`.
    ///
    /// # Panics
    ///
    /// The texts differ in length, are too long for the position table, or hold an id outside the token table.
    #[must_use]
    pub fn forward(&self, ids: &[Vec<u32>], lengths: &[usize], pictures: &Tensor<3>, device: &Device) -> Tensor<2> {
        let (batch, length) = (ids.len(), ids.first().map_or(0, Vec::len));
        let flat: Vec<i64> = ids.iter().flatten().map(|id| i64::from(*id)).collect();
        let ids = Tensor::<2, Int>::from_data(TensorData::new(flat, [batch, length]), device);
        let places = self.positions.table().narrow(0, 0, length).unsqueeze::<3>();
        let x = self.norm.forward(self.words.forward(ids) + places);
        let mask: Vec<f32> = lengths
            .iter()
            .flat_map(|real| (0..length).map(move |place| if place < *real { 0.0 } else { MASKED }))
            .collect();
        let mask = Tensor::<4>::from_data(TensorData::new(mask, [batch, 1, 1, length]), device);
        let last = self.layers.iter().fold(x, |x, layer| layer.forward(x, pictures, &mask));
        let width = last.dims()[2];
        last.narrow(1, 0, 1).reshape([batch, width])
    }
}

#[derive(Module, Debug)]
struct Layer {
    itself: Attention,
    picture: Attention,
    widen: Linear,
    narrow: Linear,
    norm: LayerNorm,
    #[module(skip)]
    activation: Activation,
}

impl Layer {
    fn load(weights: &Weights, config: &BertConfig, picture_width: usize) -> Result<Self, WeightsError> {
        let (width, inner) = (config.hidden_size, config.intermediate_size);
        let output = weights.scope("output");
        Ok(Self {
            itself: Attention::load(&weights.scope("attention"), config, width)?,
            picture: Attention::load(&weights.scope("crossattention"), config, picture_width)?,
            widen: Linear::load(&weights.scope("intermediate.dense"), width, inner)?,
            narrow: Linear::load(&output.scope("dense"), inner, width)?,
            norm: LayerNorm::load(&output.scope("LayerNorm"), width, config.layer_norm_eps)?,
            activation: config.hidden_act,
        })
    }

    fn forward(&self, x: Tensor<3>, pictures: &Tensor<3>, mask: &Tensor<4>) -> Tensor<3> {
        let x = self.itself.forward(x.clone(), x, Some(mask.clone()));
        // A picture has no padding.
        let x = self.picture.forward(x, pictures.clone(), None);
        let inner = self.activation.forward(self.widen.forward(x.clone()));
        self.norm.forward(x + self.narrow.forward(inner))
    }
}

/// Attention of the text to something, added to the stream, then normalised.
#[derive(Module, Debug)]
struct Attention {
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    norm: LayerNorm,
    heads: usize,
}

impl Attention {
    /// `source_width` is the width of what is looked at.
    fn load(weights: &Weights, config: &BertConfig, source_width: usize) -> Result<Self, WeightsError> {
        let width = config.hidden_size;
        let (own, output) = (weights.scope("self"), weights.scope("output"));
        Ok(Self {
            query: Linear::load(&own.scope("query"), width, width)?,
            key: Linear::load(&own.scope("key"), source_width, width)?,
            value: Linear::load(&own.scope("value"), source_width, width)?,
            output: Linear::load(&output.scope("dense"), width, width)?,
            norm: LayerNorm::load(&output.scope("LayerNorm"), width, config.layer_norm_eps)?,
            heads: config.num_attention_heads,
        })
    }

    fn forward(&self, x: Tensor<3>, source: Tensor<3>, mask: Option<Tensor<4>>) -> Tensor<3> {
        let q = split_heads(self.query.forward(x.clone()), self.heads);
        let k = split_heads(self.key.forward(source.clone()), self.heads);
        let v = split_heads(self.value.forward(source), self.heads);
        let seen = merge_heads(attention(q, k, v, mask, None));
        self.norm.forward(x + self.output.forward(seen))
    }
}
