//! The T5 encoder: no positions but a learnt bias by distance, RMS norms, no scale in the attention, no biases.

use std::path::Path;

use burn::module::{Module, Param};
use burn::tensor::{Device, Int, Tensor, TensorData};
use nn::activation::Activation;
use nn::attention::{attention, merge_heads, split_heads};
use nn::clip::text::id_tensor;
use nn::layers::{Embedding, Linear, RmsNorm};
use nn::weights::{Weights, WeightsError, read_config};
use serde::Deserialize;

/// The fields of a Hugging Face T5 `config.json` that shape the encoder.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct T5Config {
    /// Rows of the token table, which may be more than the tokenizer has pieces.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub d_model: usize,
    /// Width of one attention head. All heads together may be wider or narrower than the stream.
    pub d_kv: usize,
    /// Width inside the feed-forward part.
    pub d_ff: usize,
    /// Number of layers.
    pub num_layers: usize,
    /// Attention heads of every layer.
    pub num_heads: usize,
    /// Buckets of distances, half of them for each direction.
    #[serde(default = "default_buckets")]
    pub relative_attention_num_buckets: usize,
    /// Distance from which on all share the last bucket.
    #[serde(default = "default_distance")]
    pub relative_attention_max_distance: usize,
    /// ε of every norm.
    #[serde(default = "default_epsilon")]
    pub layer_norm_epsilon: f64,
    /// Shape of the feed-forward part.
    #[serde(default)]
    pub feed_forward_proj: FeedForward,
}

/// The feed-forward part as `feed_forward_proj` spells it: an activation's name, behind `gated-` if a second matrix
/// gates it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct FeedForward {
    /// Activation after the first matrix.
    pub activation: Activation,
    /// Whether the activation's result is multiplied with the product of a second matrix.
    pub gated: bool,
}

impl Default for FeedForward {
    /// What T5 v1.0 uses, whose configurations do not name it.
    fn default() -> Self {
        Self {
            activation: Activation::Relu,
            gated: false,
        }
    }
}

impl TryFrom<String> for FeedForward {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        // "gated-gelu" has always meant the tanh approximation; plain "gelu" is the exact function.
        let (activation, gated) = match name.as_str() {
            "relu" => (Activation::Relu, false),
            "gelu" => (Activation::Gelu, false),
            "gelu_new" => (Activation::GeluTanh, false),
            "silu" | "swish" => (Activation::Silu, false),
            "gated-relu" => (Activation::Relu, true),
            "gated-gelu" | "gated-gelu_new" => (Activation::GeluTanh, true),
            "gated-silu" | "gated-swish" => (Activation::Silu, true),
            other => {
                return Err(format!(
                    "feed_forward_proj `{other}` is not known; use relu, gelu, gelu_new or silu, or one of them behind `gated-`"
                ));
            }
        };
        Ok(Self { activation, gated })
    }
}

impl T5Config {
    /// Checks what no tensor's shape can show.
    fn check(&self) -> Result<(), String> {
        let exact = self.relative_attention_num_buckets / 4;
        if exact == 0 || self.relative_attention_max_distance <= exact {
            return Err(format!(
                "relative_attention_num_buckets {} and relative_attention_max_distance {} leave no room for distances",
                self.relative_attention_num_buckets, self.relative_attention_max_distance
            ));
        }
        if self.num_layers == 0 || self.num_heads == 0 || self.d_kv == 0 {
            return Err("num_layers, num_heads and d_kv must be at least 1".to_owned());
        }
        Ok(())
    }

    /// Bucket of the key at `offset` (key position minus query position).
    fn bucket(&self, offset: i64) -> usize {
        let half = self.relative_attention_num_buckets / 2;
        let exact = half / 2;
        let distance = offset.unsigned_abs() as usize;
        let within = if distance < exact {
            distance
        } else {
            // Logarithmic up to the greatest distance. In f32, because the reference rounds there.
            let span = (self.relative_attention_max_distance as f64 / exact as f64).ln() as f32;
            let grown = (distance as f32 / exact as f32).ln() / span * (half - exact) as f32;
            (exact + grown as usize).min(half - 1)
        };
        if offset > 0 { half + within } else { within }
    }
}

/// A T5 encoder.
#[derive(Module, Debug)]
pub struct T5Encoder {
    tokens: Embedding,
    /// `[buckets, heads]`: the first layer's table, which all layers use.
    distance_bias: Param<Tensor<2>>,
    layers: Vec<T5Layer>,
    final_norm: RmsNorm,
    #[module(skip)]
    config: T5Config,
}

#[derive(Module, Debug)]
struct T5Layer {
    attention_norm: RmsNorm,
    query: Linear,
    key: Linear,
    value: Linear,
    output: Linear,
    feed_forward_norm: RmsNorm,
    /// The matrix in front of the activation.
    widen: Linear,
    /// The matrix whose product the activation's result is multiplied with, if the part is gated.
    gate: Option<Linear>,
    narrow: Linear,
    heads: usize,
    #[module(skip)]
    activation: Activation,
}

impl T5Encoder {
    /// Opens a folder with `config.json` and `model.safetensors` (or its shards) of a `T5EncoderModel`.
    ///
    /// # Errors
    ///
    /// The configuration or the weights are missing, damaged or do not fit each other.
    pub fn open(dir: &Path, device: &Device) -> Result<Self, WeightsError> {
        let path = dir.join("config.json");
        let config: T5Config = read_config(&path)?;
        config.check().map_err(|why| WeightsError::Config { path, why })?;
        let weights = Weights::open(dir, "model", device)?;
        let encoder = Self::load(&weights, &config)?;
        weights.finish()?;
        Ok(encoder)
    }

    /// Reads `shared` (or `encoder.embed_tokens`, which is the same table), `encoder.block.*` and
    /// `encoder.final_layer_norm`.
    ///
    /// # Errors
    ///
    /// A tensor is missing or misshapen.
    pub fn load(weights: &Weights, config: &T5Config) -> Result<Self, WeightsError> {
        let encoder = weights.scope("encoder");
        // The table is stored under one of two names, or under both.
        let tokens = if weights.has("shared.weight") || !encoder.has("embed_tokens.weight") {
            encoder.ignore("embed_tokens.weight");
            weights.scope("shared")
        } else {
            encoder.scope("embed_tokens")
        };
        let bias = encoder.scope("block.0.layer.0.SelfAttention.relative_attention_bias");
        let layers = (0..config.num_layers).map(|i| T5Layer::load(&encoder.scope(format!("block.{i}")), config));
        Ok(Self {
            tokens: Embedding::load(&tokens, config.vocab_size, config.d_model)?,
            distance_bias: bias.parameter("weight", [config.relative_attention_num_buckets, config.num_heads])?,
            layers: layers.collect::<Result<_, _>>()?,
            final_norm: RmsNorm::load(
                &encoder.scope("final_layer_norm"),
                config.d_model,
                config.layer_norm_epsilon,
            )?,
            config: config.clone(),
        })
    }

    /// The configuration that the encoder was built from.
    #[must_use]
    pub fn config(&self) -> &T5Config {
        &self.config
    }

    /// Runs equally long token sequences `[batch][tokens]` to `[batch, tokens, d_model]`. Padding is attended to like
    /// any other token.
    ///
    /// # Panics
    ///
    /// There is no sequence, or they differ in length or hold an id outside the token table.
    #[must_use]
    pub fn forward(&self, ids: &[Vec<u32>], device: &Device) -> Tensor<3> {
        let rows = self.config.vocab_size;
        assert!(
            ids.iter().flatten().all(|id| (*id as usize) < rows),
            "a token id is outside the table of {rows} rows"
        );
        let ids = id_tensor(ids, device);
        let bias = self.attention_bias(ids.dims()[1], device);
        let mut x = self.tokens.forward(ids);
        for layer in &self.layers {
            x = layer.forward(x, bias.clone());
        }
        self.final_norm.forward(x)
    }

    /// What is added to every layer's attention scores, `[1, heads, tokens, tokens]`.
    fn attention_bias(&self, tokens: usize, device: &Device) -> Tensor<4> {
        let heads = self.config.num_heads;
        let positions = 0..tokens as i64;
        let buckets: Vec<i32> = positions
            .clone()
            .flat_map(|query| positions.clone().map(move |key| key - query))
            .map(|offset| self.config.bucket(offset) as i32)
            .collect();
        let buckets = Tensor::<1, Int>::from_data(TensorData::new(buckets, [tokens * tokens]), device);
        let bias = self.distance_bias.val().select(0, buckets);
        bias.swap_dims(0, 1).reshape([1, heads, tokens, tokens])
    }
}

impl T5Layer {
    fn load(weights: &Weights, config: &T5Config) -> Result<Self, WeightsError> {
        let width = config.d_model;
        let inner = config.num_heads * config.d_kv;
        let attention = weights.scope("layer.0.SelfAttention");
        let dense = weights.scope("layer.1.DenseReluDense");
        let FeedForward { activation, gated } = config.feed_forward_proj;
        let linear = |weights: &Weights, name: &str, inputs, outputs| {
            Linear::load_without_bias(&weights.scope(name), inputs, outputs)
        };
        let norm = |name: &str| RmsNorm::load(&weights.scope(name), width, config.layer_norm_epsilon);
        Ok(Self {
            attention_norm: norm("layer.0.layer_norm")?,
            query: linear(&attention, "q", width, inner)?,
            key: linear(&attention, "k", width, inner)?,
            value: linear(&attention, "v", width, inner)?,
            output: linear(&attention, "o", inner, width)?,
            feed_forward_norm: norm("layer.1.layer_norm")?,
            widen: linear(&dense, if gated { "wi_0" } else { "wi" }, width, config.d_ff)?,
            gate: if gated {
                Some(linear(&dense, "wi_1", width, config.d_ff)?)
            } else {
                None
            },
            narrow: linear(&dense, "wo", config.d_ff, width)?,
            heads: config.num_heads,
            activation,
        })
    }

    fn forward(&self, x: Tensor<3>, bias: Tensor<4>) -> Tensor<3> {
        let normed = self.attention_norm.forward(x.clone());
        let q = split_heads(self.query.forward(normed.clone()), self.heads);
        let k = split_heads(self.key.forward(normed.clone()), self.heads);
        let v = split_heads(self.value.forward(normed), self.heads);
        let mixed = merge_heads(attention(q, k, v, Some(bias), Some(1.0)));
        let x = x + self.output.forward(mixed);
        let normed = self.feed_forward_norm.forward(x.clone());
        let mut inner = self.activation.forward(self.widen.forward(normed.clone()));
        if let Some(gate) = &self.gate {
            inner = inner * gate.forward(normed);
        }
        x + self.narrow.forward(inner)
    }
}

fn default_buckets() -> usize {
    32
}

fn default_distance() -> usize {
    128
}

fn default_epsilon() -> f64 {
    1e-6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(extra: serde_json::Value) -> Result<T5Config, serde_json::Error> {
        let mut fields = serde_json::json!({
            "vocab_size": 9, "d_model": 6, "d_kv": 4, "d_ff": 5, "num_layers": 2, "num_heads": 3
        });
        for (name, value) in extra.as_object().expect("an object") {
            fields[name] = value.clone();
        }
        serde_json::from_value(fields)
    }

    /// Values worked out by hand from the definition: 16 buckets a side, 8 of them exact, the rest up to 128.
    #[test]
    fn distances_fall_into_the_documented_buckets() {
        let config = config(serde_json::json!({})).expect("every other field has a default");
        let found: Vec<usize> = [0, -1, -7, -8, -11, -12, -16, -32, -64, -127, -128, -5000, 1, 8, 5000]
            .map(|o| config.bucket(o))
            .into();
        assert_eq!(found, [0, 1, 7, 8, 8, 9, 10, 12, 14, 15, 15, 15, 17, 24, 31]);
    }

    #[test]
    fn feed_forward_names_choose_the_matrices() {
        let device = Device::flex();
        for (name, gated) in [
            ("relu", false),
            ("gelu", false),
            ("gated-gelu", true),
            ("gated-silu", true),
        ] {
            let config = config(serde_json::json!({ "feed_forward_proj": name })).expect("a known name");
            let weights = Weights::seeded(1, 1.0, &device);
            // Three heads of four are wider than the stream of six.
            let encoder = T5Encoder::load(&weights, &config).expect("a seeded encoder");
            assert_eq!(
                encoder.forward(&[vec![1, 2, 8, 0], vec![3; 4]], &device).dims(),
                [2, 4, 6]
            );
            let dense = "encoder.block.1.layer.1.DenseReluDense";
            assert_eq!(
                weights.asked().contains_key(&format!("{dense}.wi_1.weight")),
                gated,
                "{name}"
            );
            assert_eq!(
                weights.asked().contains_key(&format!("{dense}.wi.weight")),
                !gated,
                "{name}"
            );
        }
        let error = config(serde_json::json!({ "feed_forward_proj": "gated-sine" })).expect_err("no such function");
        assert!(error.to_string().contains("gated-sine"), "{error}");
    }
}
