//! The names and shapes that the text encoders ask for, at the sizes of the released Stable Diffusion 3 and 3.5, against
//! lists of names and shapes that transformers gives. Transformer and autoencoder have such a test with their others.

use std::collections::BTreeMap;

use burn::tensor::Device;
use nn::clip::text::{ClipText, ClipTextConfig};
use nn::weights::Weights;
use policy_sd3::text::t5::{T5Config, T5Encoder};
use serde_json::{Value, from_value, json};

use crate::fixture::root;

/// The names and shapes of a list. Only the project's own fixture folder carries the lists; another one has none.
fn list(name: &str) -> Option<BTreeMap<String, Vec<usize>>> {
    let text = std::fs::read_to_string(root().join(format!("full_size/{name}.json"))).ok()?;
    Some(serde_json::from_str(&text).expect("names and shapes"))
}

#[track_caller]
fn check_clip(name: &str, config: Value) {
    let Some(expected) = list(name) else { return };
    let config: ClipTextConfig = from_value(config).expect("a configuration");
    let weights = Weights::blank(&Device::flex());
    ClipText::load(&weights, &config).expect("blank weights");
    assert_eq!(weights.asked(), expected);
}

#[test]
fn text_encoder_is_clip_l() {
    let config = json!({
        "vocab_size": 49408, "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 12, "max_position_embeddings": 77, "hidden_act": "quick_gelu", "projection_dim": 768,
    });
    check_clip("sd3_text_encoder_clip_l", config);
}

#[test]
fn text_encoder_2_is_clip_g() {
    let config = json!({
        "vocab_size": 49408, "hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32,
        "num_attention_heads": 20, "max_position_embeddings": 77, "hidden_act": "gelu", "projection_dim": 1280,
    });
    check_clip("sd3_text_encoder_2_clip_g", config);
}

/// The list has the token table under both of its names, as the network has; files have it under one, and the loader
/// asks for that one.
#[test]
fn text_encoder_3_is_t5_xxl() {
    let Some(mut expected) = list("sd3_text_encoder_3_t5_xxl") else {
        return;
    };
    let alias = expected.remove("encoder.embed_tokens.weight");
    assert_eq!(alias.as_ref(), expected.get("shared.weight"));
    let config: T5Config = from_value(json!({
        "vocab_size": 32128, "d_model": 4096, "d_kv": 64, "d_ff": 10240, "num_layers": 24, "num_heads": 64,
        "feed_forward_proj": "gated-gelu",
    }))
    .expect("a configuration");
    let weights = Weights::blank(&Device::flex());
    T5Encoder::load(&weights, &config).expect("blank weights");
    assert_eq!(weights.asked(), expected);
}
