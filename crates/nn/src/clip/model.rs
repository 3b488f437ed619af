//! A whole CLIP model: both towers and their logit scale, from a folder or a file in either naming.

use std::path::Path;

use burn::module::Module;
use burn::tensor::Device;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::open_clip;
use super::text::{ClipText, ClipTextConfig};
use super::vision::{ClipVision, ClipVisionConfig};
use crate::activation::Activation;
use crate::weights::{self, Weights, WeightsError, read_config};

/// The sizes of a CLIP model.
#[derive(Debug, Clone, PartialEq)]
pub struct ClipModelConfig {
    /// The text tower; its projection width is the model's.
    pub text: ClipTextConfig,
    /// The vision tower; its projection width is the model's.
    pub vision: ClipVisionConfig,
}

impl ClipModelConfig {
    /// OpenCLIP's `ViT-H-14`, with the exact GELU: LAION-2B, HPS-v2, HPS-v2.1 and PickScore.
    #[must_use]
    pub fn vit_h_14() -> Self {
        Self::released(Released {
            image_size: 224,
            vision: [1280, 16, 32],
            text: [1024, 16, 24],
            projection: 1024,
            activation: Activation::Gelu,
        })
    }

    /// OpenCLIP's `ViT-H-14-378-quickgelu`: DFN5B.
    #[must_use]
    pub fn vit_h_14_378_quickgelu() -> Self {
        let mut config = Self::vit_h_14();
        config.vision.image_size = 378;
        config.vision.hidden_act = Activation::QuickGelu;
        config.text.hidden_act = Activation::QuickGelu;
        config
    }

    /// OpenAI's `ViT-L/14`, with the quick GELU.
    #[must_use]
    pub fn vit_l_14() -> Self {
        Self::released(Released {
            image_size: 224,
            vision: [1024, 16, 24],
            text: [768, 12, 12],
            projection: 768,
            activation: Activation::QuickGelu,
        })
    }

    /// What the released models have in common: patches of 14 pixels, four times the width inside, OpenAI's vocabulary.
    fn released(sizes: Released) -> Self {
        let [width, heads, layers] = sizes.text;
        let text = ClipTextConfig {
            vocab_size: 49408,
            hidden_size: width,
            intermediate_size: 4 * width,
            num_hidden_layers: layers,
            num_attention_heads: heads,
            max_position_embeddings: 77,
            hidden_act: sizes.activation,
            layer_norm_eps: 1e-5,
            eos_token_id: None,
            projection_dim: sizes.projection,
        };
        let [width, heads, layers] = sizes.vision;
        let vision = ClipVisionConfig {
            hidden_size: width,
            intermediate_size: 4 * width,
            num_hidden_layers: layers,
            num_attention_heads: heads,
            num_channels: 3,
            image_size: sizes.image_size,
            patch_size: 14,
            hidden_act: sizes.activation,
            layer_norm_eps: 1e-5,
            projection_dim: sizes.projection,
        };
        Self { text, vision }
    }

    /// Reads and checks the `config.json` of a Hugging Face `CLIPModel`. A field that the file leaves out has the value
    /// that `CLIPConfig` gives it.
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

    /// Reads and checks OpenCLIP's `open_clip_config.json`, or one of its bare model configurations (`ViT-H-14.json`). A
    /// field that the file leaves out has OpenCLIP's default.
    ///
    /// # Errors
    ///
    /// The file is missing, is no JSON, or asks for something else than a plain vision transformer beside a plain text
    /// transformer; the field that does is named.
    pub fn read_open_clip(path: &Path) -> Result<Self, WeightsError> {
        let json: Value = read_config(path)?;
        open_clip::config(&json).map_err(|why| WeightsError::Config {
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
        let config = Self { text, vision };
        config.check("text_config", "vision_config")?;
        Ok(config)
    }

    /// Checks what no tensor's shape can show, with the names that a section has in its file.
    pub(super) fn check(&self, text: &str, vision: &str) -> Result<(), String> {
        self.text.encoder().check().map_err(|why| format!("{text}: {why}"))?;
        self.vision.check().map_err(|why| format!("{vision}: {why}"))
    }
}

/// The sizes that released models differ in: of each tower width, heads and layers.
struct Released {
    image_size: usize,
    vision: [usize; 3],
    text: [usize; 3],
    projection: usize,
    activation: Activation,
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
    /// Opens a folder as it is released: `config.json` and the weights `model` of a Hugging Face `CLIPModel`, or
    /// `open_clip_config.json` and the weights `open_clip_model`. Where both are there, they are the same model twice,
    /// and the first is read. [`Weights::open`] says which files the weights may be.
    ///
    /// # Errors
    ///
    /// The configuration or the weights are missing, damaged or do not fit each other.
    pub fn open(dir: &Path, device: &Device) -> Result<Self, WeightsError> {
        let (config, weights) = Self::find(dir, device)?;
        Self::load_whole(weights, &config)
    }

    /// Opens a single file in either naming, such as HPS-v2.1's or OpenAI's.
    ///
    /// # Errors
    ///
    /// The file is missing, damaged, or does not fit the configuration.
    pub fn open_file(path: &Path, config: &ClipModelConfig, device: &Device) -> Result<Self, WeightsError> {
        Self::load_whole(Weights::open_file(path, device)?, config)
    }

    /// The configuration and the weights that [`ClipModel::open`] would read, for whoever wants to check a folder before.
    ///
    /// # Errors
    ///
    /// As for [`ClipModel::open`], but for what only the tensors can show.
    pub fn find(dir: &Path, device: &Device) -> Result<(ClipModelConfig, Weights), WeightsError> {
        let (config, open_clip_config) = (dir.join("config.json"), dir.join("open_clip_config.json"));
        let hugging_face = config.exists() && weights::exist(dir, "model");
        // The weights first: a wrong folder is then reported as such, not as one that lacks a small file.
        if open_clip_config.exists() && !hugging_face {
            let weights = Weights::open(dir, "open_clip_model", device)?;
            Ok((ClipModelConfig::read_open_clip(&open_clip_config)?, weights))
        } else {
            let weights = Weights::open(dir, "model", device)?;
            Ok((ClipModelConfig::read(&config)?, weights))
        }
    }

    /// Reads both towers and `logit_scale`, in whichever of the two namings the weights are. Weights that are no files
    /// are asked for Hugging Face's names.
    ///
    /// # Errors
    ///
    /// A tensor is missing or misshapen.
    pub fn load(weights: &Weights, config: &ClipModelConfig) -> Result<Self, WeightsError> {
        if weights.stored_shape("visual.conv1.weight").is_some() {
            return Self::load_open_clip(weights, config);
        }
        let text = ClipText::load(weights, &config.text)?;
        let vision = ClipVision::load(weights, &config.vision)?;
        Self::from_towers(text, vision, weights)
    }

    /// Reads both towers and `logit_scale` by OpenCLIP's names, which are OpenAI's too.
    ///
    /// # Errors
    ///
    /// A tensor is missing or misshapen.
    pub fn load_open_clip(weights: &Weights, config: &ClipModelConfig) -> Result<Self, WeightsError> {
        let text = open_clip::text(weights, &config.text)?;
        let vision = open_clip::vision(weights, &config.vision)?;
        Self::from_towers(text, vision, weights)
    }

    /// Loads and makes sure that nothing is left over.
    fn load_whole(weights: Weights, config: &ClipModelConfig) -> Result<Self, WeightsError> {
        let model = Self::load(&weights, config)?;
        weights.finish()?;
        Ok(model)
    }

    fn from_towers(text: ClipText, vision: ClipVision, weights: &Weights) -> Result<Self, WeightsError> {
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
