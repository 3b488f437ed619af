//! The CLIP vision tower, and a whole CLIP model: both towers and their logit scale.
//!
//! The tower's arithmetic ([`ClipVision::forward`]) knows nothing of how a file names its tensors: a loader fills
//! [`ClipVisionParts`]. The one here reads Hugging Face's naming; one for another naming fills the same parts.

use std::path::Path;

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::text::{ClipText, ClipTextConfig};
use super::{ClipEncoder, ClipEncoderConfig};
use crate::activation::Activation;
use crate::layers::{Conv2d, Embedding, LayerNorm, Linear};
use crate::weights::{Weights, WeightsError, read_config};

/// The fields of `vision_config` in a Hugging Face CLIP `config.json` that shape the network.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ClipVisionConfig {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width inside the feed-forward part.
    pub intermediate_size: usize,
    /// Number of layers.
    pub num_hidden_layers: usize,
    /// Attention heads of every layer.
    pub num_attention_heads: usize,
    /// Colour channels of a picture; only 3 is supported.
    pub num_channels: usize,
    /// Side of the square pictures, in pixels.
    pub image_size: usize,
    /// Side of a square patch, in pixels. A rest at the right and bottom edge is not seen.
    pub patch_size: usize,
    /// Activation of the feed-forward parts.
    pub hidden_act: Activation,
    /// ε of every layer normalisation.
    pub layer_norm_eps: f64,
    /// Width of the projected feature. A whole `CLIPModel` overrules it with its own `projection_dim`.
    pub projection_dim: usize,
}

impl ClipVisionConfig {
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

    /// Rows of the position table: one per patch and one for the class token.
    #[must_use]
    pub fn tokens(&self) -> usize {
        let side = self.image_size / self.patch_size;
        side * side + 1
    }

    /// Checks what no tensor's shape can show.
    ///
    /// # Errors
    ///
    /// A sentence about the first value that makes no network; the caller knows the file it came from.
    pub fn check(&self) -> Result<(), String> {
        if self.num_channels != 3 {
            return Err(format!(
                "num_channels is {}; only pictures of 3 channels are supported",
                self.num_channels
            ));
        }
        if self.patch_size == 0 || self.image_size < self.patch_size {
            return Err(format!(
                "patch_size {} does not fit into image_size {}; correct one of them",
                self.patch_size, self.image_size
            ));
        }
        self.encoder().check()
    }
}

/// The tensors of a vision tower, whatever their file called them.
#[derive(Debug)]
pub struct ClipVisionParts {
    /// Patches to vectors: a convolution without bias whose stride is its kernel.
    pub patches: Conv2d,
    /// The class token, `[width]`.
    pub class: Param<Tensor<1>>,
    /// Position table, `[patches + 1, width]`; row 0 belongs to the class token.
    pub positions: Embedding,
    /// Norm before the first layer.
    pub pre_norm: LayerNorm,
    /// The layers.
    pub encoder: ClipEncoder,
    /// Norm of the class token after the last layer.
    pub post_norm: LayerNorm,
    /// Projection of the class token, without bias.
    pub projection: Linear,
}

/// What the vision tower says about a batch of pictures.
#[derive(Debug, Clone)]
pub struct ClipVisionOutput {
    /// The class token after the last layer and the final norm, `[batch, width]`.
    pub pooled: Tensor<2>,
    /// `pooled` after the projection (`image_embeds` before it is normalised), `[batch, projection]`.
    pub projected: Tensor<2>,
}

/// A CLIP vision tower with projection (Radford et al. 2021, section 2.4: a pre-norm vision transformer with an
/// additional norm before the first layer).
#[derive(Module, Debug)]
pub struct ClipVision {
    patches: Conv2d,
    class: Param<Tensor<1>>,
    positions: Embedding,
    pre_norm: LayerNorm,
    encoder: ClipEncoder,
    post_norm: LayerNorm,
    projection: Linear,
    #[module(skip)]
    config: ClipVisionConfig,
}

impl ClipVision {
    /// Reads `vision_model.*` and `visual_projection.weight`. The configuration must have been
    /// [checked](ClipVisionConfig::check).
    ///
    /// # Errors
    ///
    /// A tensor is missing or misshapen.
    pub fn load(weights: &Weights, config: &ClipVisionConfig) -> Result<Self, WeightsError> {
        let model = weights.scope("vision_model");
        let embeddings = model.scope("embeddings");
        // Files of older releases carry the numbers 0, 1, 2, … as a tensor.
        embeddings.ignore("position_ids");
        let (width, epsilon) = (config.hidden_size, config.layer_norm_eps);
        let channels = [config.num_channels, width];
        let patch = config.patch_size;
        let parts = ClipVisionParts {
            patches: Conv2d::load_without_bias(&embeddings.scope("patch_embedding"), channels, patch, patch, 0)?,
            class: embeddings.parameter("class_embedding", [width])?,
            positions: Embedding::load(&embeddings.scope("position_embedding"), config.tokens(), width)?,
            // The misspelling is that of the files.
            pre_norm: LayerNorm::load(&model.scope("pre_layrnorm"), width, epsilon)?,
            encoder: ClipEncoder::load(&model.scope("encoder"), &config.encoder())?,
            post_norm: LayerNorm::load(&model.scope("post_layernorm"), width, epsilon)?,
            projection: Linear::load_without_bias(&weights.scope("visual_projection"), width, config.projection_dim)?,
        };
        Ok(Self::from_parts(parts, config))
    }

    /// A tower of given tensors, which must have the sizes that the configuration says.
    #[must_use]
    pub fn from_parts(parts: ClipVisionParts, config: &ClipVisionConfig) -> Self {
        let ClipVisionParts {
            patches,
            class,
            positions,
            pre_norm,
            encoder,
            post_norm,
            projection,
        } = parts;
        Self {
            patches,
            class,
            positions,
            pre_norm,
            encoder,
            post_norm,
            projection,
            config: config.clone(),
        }
    }

    /// The configuration that the tower was built from.
    #[must_use]
    pub fn config(&self) -> &ClipVisionConfig {
        &self.config
    }

    /// Runs normalised pictures, `[batch, 3, image_size, image_size]`.
    ///
    /// # Panics
    ///
    /// The pictures have another shape.
    #[must_use]
    pub fn forward(&self, pixels: Tensor<4>) -> ClipVisionOutput {
        let [batch, channels, height, width] = pixels.dims();
        let side = self.config.image_size;
        assert!(
            [channels, height, width] == [self.config.num_channels, side, side],
            "pictures of [{channels}, {height}, {width}] do not fit a tower for [3, {side}, {side}]"
        );
        let hidden = self.config.hidden_size;
        // [batch, hidden, rows, columns] to [batch, patches, hidden], row by row.
        let patches = self.patches.forward(pixels).flatten::<3>(2, 3).swap_dims(1, 2);
        let class = self.class.val().reshape([1, 1, hidden]).expand([batch, 1, hidden]);
        let x = Tensor::cat(vec![class, patches], 1) + self.positions.table().unsqueeze::<3>();
        let last = self.encoder.forward(self.pre_norm.forward(x), None).last;
        let class = last.narrow(1, 0, 1).reshape([batch, hidden]);
        let pooled = self.post_norm.forward(class);
        let projected = self.projection.forward(pooled.clone());
        ClipVisionOutput { pooled, projected }
    }
}

/// The configuration of a Hugging Face `CLIPModel`.
#[derive(Debug, Clone, PartialEq)]
pub struct ClipModelConfig {
    /// The text tower; its projection width is the model's.
    pub text: ClipTextConfig,
    /// The vision tower; its projection width is the model's.
    pub vision: ClipVisionConfig,
}

impl ClipModelConfig {
    /// Reads and checks `config.json`. A field that the file leaves out has the value that `CLIPConfig` gives it.
    ///
    /// # Errors
    ///
    /// The file is missing, is no JSON, belongs to another kind of model, or asks for what makes no network.
    pub fn read(path: &Path) -> Result<Self, WeightsError> {
        let json: Value = read_config(path)?;
        Self::from_json(&json).map_err(|why| WeightsError::Config {
            path: path.to_owned(),
            why,
        })
    }

    fn from_json(json: &Value) -> Result<Self, String> {
        if let Some(kind) = json
            .get("model_type")
            .and_then(Value::as_str)
            .filter(|kind| *kind != "clip")
        {
            return Err(format!(
                "model_type is `{kind}`; a whole CLIP model (`clip`) with both towers is needed"
            ));
        }
        if json.get("text_config").is_none() && json.get("vision_config").is_none() {
            return Err("there is neither text_config nor vision_config; a whole CLIP model is needed".to_owned());
        }
        let projection = match json.get("projection_dim") {
            None | Some(Value::Null) => 512,
            Some(value) => value.as_u64().ok_or("projection_dim is not a whole number")? as usize,
        };
        let mut text: ClipTextConfig = tower(json, "text_config", text_defaults())?;
        let mut vision: ClipVisionConfig = tower(json, "vision_config", vision_defaults())?;
        text.projection_dim = projection;
        vision.projection_dim = projection;
        text.encoder().check().map_err(|why| format!("text_config: {why}"))?;
        vision.check().map_err(|why| format!("vision_config: {why}"))?;
        Ok(Self { text, vision })
    }
}

/// A CLIP model: two towers whose projected features are compared by their cosine.
#[derive(Module, Debug)]
pub struct ClipModel {
    /// The text tower.
    pub text: ClipText,
    /// The vision tower.
    pub vision: ClipVision,
    logit_scale: f32,
}

impl ClipModel {
    /// Opens a folder with `config.json` and `model.safetensors` (or its shards) of a Hugging Face `CLIPModel`.
    ///
    /// # Errors
    ///
    /// The configuration or the weights are missing, damaged or do not fit each other.
    pub fn open(dir: &Path, device: &Device) -> Result<Self, WeightsError> {
        let config = ClipModelConfig::read(&dir.join("config.json"))?;
        let weights = Weights::open(dir, "model", device)?;
        let model = Self::load(&weights, &config)?;
        weights.finish()?;
        Ok(model)
    }

    /// Reads both towers and `logit_scale`.
    ///
    /// # Errors
    ///
    /// A tensor is missing or misshapen.
    pub fn load(weights: &Weights, config: &ClipModelConfig) -> Result<Self, WeightsError> {
        let text = ClipText::load(weights, &config.text)?;
        let vision = ClipVision::load(weights, &config.vision)?;
        // A scalar is one value.
        let logit_scale = weights.values("logit_scale", &[])?[0];
        Ok(Self {
            text,
            vision,
            logit_scale,
        })
    }

    /// The natural logarithm of the factor on cosines, as the file stores it.
    #[must_use]
    pub fn logit_scale(&self) -> f32 {
        self.logit_scale
    }
}

/// One tower's configuration: defaults, overruled by `name`, overruled by what old releases wrote as `name_dict`.
fn tower<T: DeserializeOwned>(json: &Value, name: &str, defaults: Value) -> Result<T, String> {
    let mut fields: Map<String, Value> = defaults.as_object().cloned().unwrap_or_default();
    for key in [name.to_owned(), format!("{name}_dict")] {
        match json.get(&key) {
            None | Some(Value::Null) => {}
            Some(Value::Object(given)) => fields.extend(given.iter().map(|(k, v)| (k.clone(), v.clone()))),
            Some(_) => return Err(format!("{key} is not an object")),
        }
    }
    serde_json::from_value(Value::Object(fields)).map_err(|e| format!("{name}: {e}"))
}

/// What `CLIPTextConfig` gives to absent fields. The end-of-text id is left out: without it the largest id is taken,
/// which is the same token for every vocabulary whose last entry it is.
fn text_defaults() -> Value {
    json!({
        "vocab_size": 49408, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12,
        "num_attention_heads": 8, "max_position_embeddings": 77, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5,
        "projection_dim": 512,
    })
}

/// What `CLIPVisionConfig` gives to absent fields.
fn vision_defaults() -> Value {
    json!({
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
        "num_channels": 3, "image_size": 224, "patch_size": 32, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5,
        "projection_dim": 512,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_fields_have_the_library_defaults() {
        let json = json!({ "text_config": {}, "vision_config": { "patch_size": 16 } });
        let config = ClipModelConfig::from_json(&json).expect("a valid configuration");
        assert_eq!(config.vision.tokens(), 14 * 14 + 1);
        assert_eq!((config.text.hidden_size, config.text.num_attention_heads), (512, 8));
        assert_eq!(config.vision.hidden_act, Activation::QuickGelu);
        assert_eq!((config.text.projection_dim, config.vision.projection_dim), (512, 512));
    }

    #[test]
    fn fields_of_old_releases_overrule() {
        let json = json!({
            "projection_dim": 768, "text_config": {}, "vision_config": { "hidden_size": 768 },
            "vision_config_dict": { "hidden_size": 1024, "num_attention_heads": 16 }, "text_config_dict": null,
        });
        let config = ClipModelConfig::from_json(&json).expect("a valid configuration");
        assert_eq!((config.vision.hidden_size, config.vision.projection_dim), (1024, 768));
    }

    #[test]
    fn other_models_and_impossible_sizes_are_refused() {
        let refused = |json: Value, expected: &str| {
            let why = ClipModelConfig::from_json(&json).expect_err("refused");
            assert!(why.contains(expected), "{why}");
        };
        refused(json!({ "model_type": "siglip", "text_config": {} }), "siglip");
        refused(json!({ "hidden_size": 768 }), "neither text_config nor vision_config");
        refused(
            json!({ "vision_config": { "num_attention_heads": 7 } }),
            "does not divide",
        );
        refused(json!({ "vision_config": { "patch_size": 0 } }), "does not fit");
        refused(json!({ "vision_config": { "hidden_act": "mish" } }), "mish");
    }
}
