//! OpenCLIP's model configurations, for the models that are plain transformers.

use std::fmt;

use serde_json::{Map, Value};

use crate::activation::Activation;
use crate::clip::ClipModelConfig;
use crate::clip::text::ClipTextConfig;
use crate::clip::vision::ClipVisionConfig;

/// ε of every norm; `norm_kwargs`, which could change it, is refused.
const EPSILON: f64 = 1e-5;

/// The one value of a field that makes the network that is built: OpenCLIP's default.
#[derive(Debug, Clone, Copy)]
enum Only {
    /// Nothing. Every field may be null or absent, and mean its default.
    Null,
    False,
    Word(&'static str),
}

impl Only {
    fn is(self, value: &Value) -> bool {
        match self {
            _ if value.is_null() => true,
            Self::Null => false,
            Self::False => *value == Value::Bool(false),
            Self::Word(word) => value == word,
        }
    }
}

impl fmt::Display for Only {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("null"),
            Self::False => f.write_str("false"),
            Self::Word(word) => write!(f, "{word:?}"),
        }
    }
}

/// Fields of which any other value makes another network: those of `CLIP`, `CLIPVisionCfg` and `CLIPTextCfg`.
const MODEL_FIXED: [(&str, Only); 3] = [
    ("init_logit_bias", Only::Null),
    ("multimodal_cfg", Only::Null),
    ("nonscalar_logit_scale", Only::False),
];
const VISION_FIXED: [(&str, Only); 9] = [
    ("act_kwargs", Only::Null),
    ("attentional_pool", Only::False),
    ("final_ln_after_pool", Only::False),
    ("ls_init_value", Only::Null),
    ("no_ln_pre", Only::False),
    ("norm_kwargs", Only::Null),
    ("pool_type", Only::Word("tok")),
    ("pos_embed_type", Only::Word("learnable")),
    ("timm_model_name", Only::Null),
];
const TEXT_FIXED: [(&str, Only); 12] = [
    ("act_kwargs", Only::Null),
    ("embed_cls", Only::False),
    ("final_ln_after_pool", Only::False),
    ("hf_model_name", Only::Null),
    ("hf_tokenizer_name", Only::Null),
    ("ls_init_value", Only::Null),
    ("no_causal_mask", Only::False),
    ("norm_kwargs", Only::Null),
    ("pool_type", Only::Word("argmax")),
    ("proj_bias", Only::False),
    ("proj_type", Only::Word("linear")),
    ("tokenizer_kwargs", Only::Null),
];
/// Of the attention, in both towers.
const BLOCK_FIXED: [(&str, Only); 7] = [
    ("block_type", Only::Null),
    ("qk_norm", Only::False),
    ("scale_attn", Only::False),
    ("scale_attn_inner", Only::False),
    ("scale_fc", Only::False),
    ("scale_heads", Only::False),
    ("scaled_cosine_attn", Only::False),
];

/// Fields that are read.
const MODEL_READ: [&str; 4] = ["embed_dim", "quick_gelu", "text_cfg", "vision_cfg"];
const VISION_READ: [&str; 6] = ["head_width", "image_size", "layers", "mlp_ratio", "patch_size", "width"];
const TEXT_READ: [&str; 6] = ["context_length", "heads", "layers", "mlp_ratio", "vocab_size", "width"];

/// Fields that may say anything, as they concern training, the form of the output, or models that are refused.
const MODEL_FREE: [&str; 4] = ["cast_dtype", "custom_text", "init_logit_scale", "output_dict"];
const VISION_FREE: [&str; 10] = [
    "attn_pooler_heads",
    "attn_pooler_queries",
    "output_tokens",
    "patch_dropout",
    "timm_drop",
    "timm_drop_path",
    "timm_model_pretrained",
    "timm_pool",
    "timm_proj",
    "timm_proj_bias",
];
const TEXT_FREE: [&str; 7] = [
    "eos_id",
    "hf_model_pretrained",
    "hf_pooler_type",
    "hf_proj_type",
    "output_tokens",
    "pad_id",
    "tokenizer_mode",
];

/// Reads `open_clip_config.json`, whose `model_cfg` is the model's configuration, or that configuration by itself.
///
/// # Errors
///
/// A sentence about the first field that is missing, malformed or not supported.
pub(in crate::clip) fn config(json: &Value) -> Result<ClipModelConfig, String> {
    let whole = Section::new("", Some(json.get("model_cfg").unwrap_or(json)))?;
    let vision = Section::new("vision_cfg", whole.fields.get("vision_cfg"))?;
    let text = Section::new("text_cfg", whole.fields.get("text_cfg"))?;
    whole.check(&[&MODEL_READ, &MODEL_FREE], &[&MODEL_FIXED])?;
    vision.check(&[&VISION_READ, &VISION_FREE], &[&VISION_FIXED, &BLOCK_FIXED])?;
    text.check(&[&TEXT_READ, &TEXT_FREE], &[&TEXT_FIXED, &BLOCK_FIXED])?;

    let projection_dim = whole.whole("embed_dim", None)?;
    let hidden_act = match whole.fields.get("quick_gelu") {
        None | Some(Value::Null | Value::Bool(false)) => Activation::Gelu,
        Some(Value::Bool(true)) => Activation::QuickGelu,
        Some(other) => return Err(format!("quick_gelu is {other}; true or false is needed")),
    };
    let text_width = text.whole("width", Some(512))?;
    let vision_width = vision.whole("width", Some(768))?;
    let head_width = vision.whole("head_width", Some(64))?;
    if head_width == 0 || head_width > vision_width {
        return Err(format!(
            "vision_cfg.head_width is {head_width}, which makes no heads of width {vision_width}"
        ));
    }
    let config = ClipModelConfig {
        text: ClipTextConfig {
            vocab_size: text.whole("vocab_size", Some(49408))?,
            hidden_size: text_width,
            intermediate_size: text.inner_width(text_width)?,
            num_hidden_layers: text.whole("layers", Some(12))?,
            num_attention_heads: text.whole("heads", Some(8))?,
            max_position_embeddings: text.whole("context_length", Some(77))?,
            hidden_act,
            layer_norm_eps: EPSILON,
            // The feature is taken at the largest id.
            eos_token_id: None,
            projection_dim,
        },
        vision: ClipVisionConfig {
            hidden_size: vision_width,
            intermediate_size: vision.inner_width(vision_width)?,
            num_hidden_layers: vision.whole("layers", Some(12))?,
            num_attention_heads: vision_width / head_width,
            num_channels: 3,
            image_size: vision.whole("image_size", Some(224))?,
            patch_size: vision.whole("patch_size", Some(16))?,
            hidden_act,
            layer_norm_eps: EPSILON,
            projection_dim,
        },
    };
    config.check("text_cfg", "vision_cfg")?;
    Ok(config)
}

/// One object of the configuration, with its name for errors.
struct Section<'a> {
    name: &'static str,
    fields: &'a Map<String, Value>,
}

impl<'a> Section<'a> {
    fn new(name: &'static str, value: Option<&'a Value>) -> Result<Self, String> {
        match value {
            Some(Value::Object(fields)) => Ok(Self { name, fields }),
            _ if name.is_empty() => Err("the model's configuration is no object".to_owned()),
            _ => Err(format!(
                "there is no {name}; OpenCLIP's configuration of a model with both towers is needed"
            )),
        }
    }

    /// The name of a field with its section's.
    fn field(&self, name: &str) -> String {
        match self.name {
            "" => name.to_owned(),
            section => format!("{section}.{name}"),
        }
    }

    /// Refuses what would make another network than the one that is built.
    fn check(&self, accepted: &[&[&str]], fixed: &[&[(&str, Only)]]) -> Result<(), String> {
        let (accepted, fixed) = (accepted.concat(), fixed.concat());
        for (name, value) in self.fields {
            let only = fixed.iter().find(|(known, _)| known == name).map(|(_, only)| *only);
            match only {
                Some(only) if only.is(value) => {}
                Some(only) => return Err(format!("{} is {value}; only {only} is supported", self.field(name))),
                None if accepted.contains(&name.as_str()) => {}
                None => return Err(format!("{} is not supported", self.field(name))),
            }
        }
        Ok(())
    }

    fn whole(&self, name: &str, default: Option<usize>) -> Result<usize, String> {
        match self.fields.get(name) {
            None | Some(Value::Null) => default.ok_or_else(|| format!("{} is missing", self.field(name))),
            Some(value) => value
                .as_u64()
                .map(|number| number as usize)
                .ok_or_else(|| format!("{} is {value}; only a whole number is supported", self.field(name))),
        }
    }

    /// Width inside the feed-forward part: `mlp_ratio` times the width, rounded down.
    fn inner_width(&self, width: usize) -> Result<usize, String> {
        let ratio = match self.fields.get("mlp_ratio") {
            None | Some(Value::Null) => 4.0,
            Some(value) => value
                .as_f64()
                .filter(|ratio| *ratio > 0.0)
                .ok_or_else(|| format!("{} is {value}; a positive number is needed", self.field("mlp_ratio")))?,
        };
        Ok((width as f64 * ratio) as usize)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The released configurations, as OpenCLIP's repository holds them, are the named constructors.
    #[test]
    fn released_configurations_are_the_constructors() {
        let h14 = |side: u32, quick: Option<bool>| {
            let mut json = json!({
                "embed_dim": 1024,
                "vision_cfg": { "image_size": side, "layers": 32, "width": 1280, "head_width": 80, "patch_size": 14 },
                "text_cfg": { "context_length": 77, "vocab_size": 49408, "width": 1024, "heads": 16, "layers": 24 },
            });
            if let Some(quick) = quick {
                json["quick_gelu"] = quick.into();
            }
            json
        };
        let l14 = json!({
            "embed_dim": 768, "quick_gelu": true,
            "vision_cfg": { "image_size": 224, "layers": 24, "width": 1024, "patch_size": 14 },
            "text_cfg": { "context_length": 77, "vocab_size": 49408, "width": 768, "heads": 12, "layers": 12 },
        });
        assert_eq!(config(&h14(224, None)), Ok(ClipModelConfig::vit_h_14()));
        assert_eq!(
            config(&h14(378, Some(true))),
            Ok(ClipModelConfig::vit_h_14_378_quickgelu())
        );
        assert_eq!(config(&l14), Ok(ClipModelConfig::vit_l_14()));
    }

    /// `{"model_cfg": …, "preprocess_cfg": …}` holds the same thing one level down.
    #[test]
    fn hub_form_and_bare_form_agree() {
        let bare = json!({ "embed_dim": 64, "vision_cfg": {}, "text_cfg": {} });
        let hub = json!({ "model_cfg": bare, "preprocess_cfg": { "mean": [0.5, 0.5, 0.5] } });
        assert_eq!(config(&bare), config(&hub));
        assert!(config(&bare).is_ok());
    }

    /// Absent fields have the defaults of `CLIPVisionCfg` and `CLIPTextCfg`: 768 / 64 = 12 heads, 4 · 768 = 3072 inside,
    /// 14 · 14 + 1 = 197 tokens.
    #[test]
    fn absent_fields_have_the_library_defaults() {
        let found = config(&json!({ "embed_dim": 64, "vision_cfg": {}, "text_cfg": {} })).expect("a configuration");
        let ClipModelConfig { text, vision } = found;
        assert_eq!((vision.hidden_size, vision.num_attention_heads), (768, 12));
        assert_eq!((vision.intermediate_size, vision.num_hidden_layers), (3072, 12));
        assert_eq!((vision.tokens(), vision.hidden_act), (197, Activation::Gelu));
        assert_eq!((text.hidden_size, text.num_attention_heads), (512, 8));
        assert_eq!((text.max_position_embeddings, text.vocab_size), (77, 49408));
        assert_eq!((text.projection_dim, vision.projection_dim), (64, 64));
        let ratio = json!({ "embed_dim": 64, "vision_cfg": { "width": 128, "mlp_ratio": 3.5 }, "text_cfg": {} });
        assert_eq!(config(&ratio).expect("a configuration").vision.intermediate_size, 448);
    }

    /// Other kinds of towers are refused by the field that asks for them; a field at its default asks for nothing.
    #[test]
    fn other_networks_are_refused_by_name() {
        let with = |section: &str, field: &str, value: Value| {
            let mut json = json!({ "embed_dim": 64, "vision_cfg": {}, "text_cfg": {} });
            match section {
                "" => json[field] = value,
                section => json[section][field] = value,
            }
            config(&json)
        };
        let refused = |section: &str, field: &str, value: Value| {
            let why = with(section, field, value).expect_err("another network");
            assert!(why.contains(field), "{why}");
            assert!(why.contains(section), "{why}");
        };
        refused("vision_cfg", "timm_model_name", json!("vit_base_patch16_siglip_224"));
        refused("vision_cfg", "layers", json!([3, 4, 6, 3]));
        refused("vision_cfg", "image_size", json!([224, 448]));
        refused("vision_cfg", "attentional_pool", json!(true));
        refused("vision_cfg", "ls_init_value", json!(0.1));
        refused("vision_cfg", "qk_norm", json!(true));
        refused("vision_cfg", "from_the_future", json!(false));
        refused("vision_cfg", "patch_size", json!(0));
        refused("vision_cfg", "head_width", json!(0));
        refused("vision_cfg", "head_width", json!(769));
        refused("text_cfg", "hf_model_name", json!("roberta-base"));
        refused("text_cfg", "hf_tokenizer_name", json!("timm/ViT-B-16-SigLIP"));
        refused("text_cfg", "pool_type", json!("last"));
        refused("text_cfg", "no_causal_mask", json!(true));
        refused("text_cfg", "norm_kwargs", json!({ "eps": 1e-6 }));
        refused("text_cfg", "mlp_ratio", json!(-1));
        refused("text_cfg", "heads", json!(7));
        refused("", "init_logit_bias", json!(-10));
        refused("", "multimodal_cfg", json!({}));
        refused("", "quick_gelu", json!("yes"));
        refused("", "embed_dim", Value::Null);
        refused("", "text_cfg", Value::Null);
        refused("", "vision_cfg", json!([]));
        for (section, field, value) in [
            ("vision_cfg", "pool_type", json!("tok")),
            ("vision_cfg", "timm_model_name", Value::Null),
            ("text_cfg", "no_causal_mask", json!(false)),
            ("text_cfg", "eos_id", json!(2)),
            ("", "custom_text", json!(true)),
        ] {
            assert!(with(section, field, value).is_ok(), "{field}");
        }
    }
}
