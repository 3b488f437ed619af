//! The names and shapes that the loaders ask for, at the sizes of the released models, against the lists of names and
//! shapes that the reference libraries give.

use std::collections::BTreeMap;

use burn::tensor::Device;
use nn::clip::{ClipModel, ClipModelConfig};
use nn::weights::{Weights, WeightsError};

use crate::fixture::root;

/// What `load` asks for must be exactly what the list names.
#[track_caller]
fn check(list: &str, load: impl Fn(&Weights) -> Result<ClipModel, WeightsError>) {
    let list = root().join(format!("full_size/{list}.json"));
    let Ok(text) = std::fs::read_to_string(list) else {
        // Only the project's own fixture folder carries the full-size lists.
        return;
    };
    let expected: BTreeMap<String, Vec<usize>> = serde_json::from_str(&text).expect("names and shapes");
    let weights = Weights::blank(&Device::flex());
    load(&weights).expect("blank weights");
    assert_eq!(weights.asked(), expected);
}

#[test]
fn hps_is_open_clip_vit_h_14() {
    check("hpsv2_open_clip_vit_h14", |weights| {
        ClipModel::load_open_clip(weights, &ClipModelConfig::vit_h_14())
    });
}

#[test]
fn dfn5b_is_open_clip_vit_h_14_378() {
    check("dfn5b_open_clip_vit_h14_378_quickgelu", |weights| {
        ClipModel::load_open_clip(weights, &ClipModelConfig::vit_h_14_378_quickgelu())
    });
}

#[test]
fn pickscore_is_vit_h_14_in_hugging_face_names() {
    check("pickscore_clip_vit_h14_hf", |weights| {
        ClipModel::load(weights, &ClipModelConfig::vit_h_14())
    });
}

#[test]
fn openai_is_vit_l_14_in_hugging_face_names() {
    check("clip_vit_l14_hf", |weights| {
        ClipModel::load(weights, &ClipModelConfig::vit_l_14())
    });
}
