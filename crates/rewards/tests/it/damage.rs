//! Model folders with something wrong in them: the error names the reward, the file and, where there is one, the key.

use std::collections::HashMap;
use std::path::Path;

use burn::tensor::Device;
use rewards::RewardError;
use rewards::clip_score::{ClipScore, CosineScale};
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;

use crate::fixture::{copy, emoji};

/// Damages a copy of the shipped scorer and expects an error that holds all of `expected`. `early` says whether the
/// check without weights must already find it.
#[track_caller]
fn check(damage: impl FnOnce(&Path), early: bool, expected: &[&str]) {
    let dir = copy(&emoji().join("scorer"));
    damage(dir.path());
    let device = Device::flex();
    let opened = ClipScore::open("clip-emoji", dir.path(), CosineScale::One, &device).map(drop);
    let checked = ClipScore::check("clip-emoji", dir.path(), &device);
    assert_eq!(checked.is_err(), early, "{checked:?}");
    let errors = [
        opened.expect_err("damaged"),
        checked.err().unwrap_or(RewardError::NoRewards),
    ];
    for error in errors.iter().take(1 + usize::from(early)).map(ToString::to_string) {
        assert!(error.contains("`clip-emoji`"), "{error}");
        assert!(expected.iter().all(|part| error.contains(part)), "{error}");
    }
}

/// Rewrites the weights with some tensors under other names, `None` for none at all.
fn rename(dir: &Path, new_name: impl Fn(&str) -> Option<String>) {
    let path = dir.join("model.safetensors");
    let bytes = std::fs::read(&path).expect("the weights");
    let tensors = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let renamed: HashMap<String, TensorView<'_>> = tensors
        .tensors()
        .into_iter()
        .filter_map(|(key, view)| Some((new_name(&key)?, view)))
        .collect();
    std::fs::write(&path, safetensors::serialize(renamed, None).expect("serialised")).expect("written");
}

fn write(dir: &Path, name: &str, text: &str) {
    std::fs::write(dir.join(name), text).expect("written");
}

#[test]
fn missing_files_are_named() {
    for name in ["config.json", "model.safetensors", "preprocessor_config.json"] {
        let stem = name.split('.').next().unwrap_or(name);
        check(
            |dir| std::fs::remove_file(dir.join(name)).expect("removed"),
            true,
            &[stem],
        );
    }
    let no_tokenizer = |dir: &Path| {
        for name in ["tokenizer.json", "vocab.json"] {
            std::fs::remove_file(dir.join(name)).expect("removed");
        }
    };
    check(no_tokenizer, true, &["tokenizer.json"]);
}

#[test]
fn files_of_another_kind_are_recognised() {
    check(
        |dir| write(dir, "model.safetensors", "<!DOCTYPE html><html></html>"),
        true,
        &["model.safetensors", "not a"],
    );
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
    check(
        |dir| write(dir, "model.safetensors", pointer),
        true,
        &["model.safetensors", "not a"],
    );
    check(|dir| write(dir, "config.json", "<html>"), true, &["config.json"]);
    check(
        |dir| write(dir, "config.json", r#"{"model_type": "blip"}"#),
        true,
        &["blip"],
    );
    check(
        |dir| write(dir, "preprocessor_config.json", "[]"),
        true,
        &["preprocessor_config.json"],
    );
}

#[test]
fn truncated_weights_are_refused() {
    let truncate = |dir: &Path| {
        let file = std::fs::File::options()
            .write(true)
            .open(dir.join("model.safetensors"))
            .expect("opened");
        file.set_len(100_000).expect("truncated");
    };
    check(truncate, true, &["model.safetensors"]);
}

#[test]
fn missing_and_extra_tensors_are_named() {
    let visual = "visual_projection.weight";
    check(
        |dir| rename(dir, |key| (key != visual).then(|| key.to_owned())),
        false,
        &["model.safetensors", visual],
    );
    let doubled = |dir: &Path| {
        // A tensor under a name that no network asks for.
        rename(dir, |key| {
            Some(if key == "logit_scale" {
                "logit_scales".to_owned()
            } else {
                key.to_owned()
            })
        });
    };
    check(doubled, false, &["logit_scale"]);
    let path = "vision_model.encoder.layers.0.mlp.fc1.weight";
    check(
        |dir| rename(dir, |key| Some(key.replace("fc1", "fc9"))),
        false,
        &["fc1"],
    );
    check(
        |dir| rename(dir, |key| (key != path).then(|| key.to_owned())),
        false,
        &[path],
    );
}

#[test]
fn files_that_do_not_fit_each_other_are_refused() {
    check(
        |dir| write(dir, "preprocessor_config.json", "{}"),
        true,
        &["224 x 224", "64"],
    );
    let smaller = |dir: &Path| {
        let config = std::fs::read_to_string(dir.join("config.json")).expect("read");
        write(
            dir,
            "config.json",
            &config.replace("\"vocab_size\": 2048", "\"vocab_size\": 2047"),
        );
    };
    check(smaller, true, &["2047"]);
}
