//! Adapter files: the two layouts, what they must carry, and what is refused.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use burn::module::ParamId;
use burn::tensor::{Device, Tensor};
use nn::weights::{ParameterKey, transpose};
use policy_sd3::adapter::{self, DIFFUSERS_WEIGHTS, PEFT_CONFIG, PEFT_WEIGHTS, StoredTensor, write_safetensors};
use policy_sd3::lora::{self, LoraConfig, LoraInit};
use policy_sd3::transformer::{Conditioning, Transformer};
use safetensors::SafeTensors;
use serde_json::Value;
use tempfile::TempDir;

use crate::fixture::{Fixture, root};
use crate::transformer::{fill_b, ramp, toy};

const CONFIG: LoraConfig = LoraConfig {
    rank: 3,
    alpha: 6.0,
    init: LoraInit::Gaussian,
};

/// A toy network whose adapter acts.
fn adapted(device: &Device) -> Transformer {
    let (mut network, _) = toy(device);
    lora::attach(&mut network, &mut HashMap::new(), &CONFIG, 1, device);
    fill_b(network, device)
}

/// An adapter's factors as a file has them: A `[rank, inputs]`, B `[outputs, rank]`.
fn stored(network: &Transformer) -> BTreeMap<String, StoredTensor> {
    let mut tensors = BTreeMap::new();
    for (name, layer) in network.adapted_layers() {
        let factors = layer.factors().expect("an adapter");
        for (letter, factor) in [("A", &factors.a), ("B", &factors.b)] {
            let [inner, outer] = factor.dims();
            let values: Vec<f32> = factor.val().into_data().try_to_vec().expect("f32 data");
            tensors.insert(
                format!("{name}.lora_{letter}.weight"),
                (vec![outer, inner], transpose(&values, inner)),
            );
        }
    }
    tensors
}

fn velocity(network: &Transformer, device: &Device) -> Vec<f32> {
    let conditioning = Conditioning {
        sequence: ramp([1, 5, 12], device),
        pooled: ramp([1, 10], device),
        zero_tokens: 3,
    };
    let out: Tensor<4> = network.forward(ramp([2, 4, 8, 8], device), &[400.0], &conditioning, &[0, 0]);
    out.into_data().try_to_vec().expect("f32 data")
}

/// An adapter folder in both layouts, and the network it came from.
fn written(device: &Device) -> (TempDir, Transformer) {
    let network = adapted(device);
    let dir = tempfile::tempdir().expect("a temporary folder");
    adapter::write(dir.path(), &stored(&network), &CONFIG, "toy").expect("a written adapter");
    (dir, network)
}

fn only_diffusers(dir: &Path) {
    std::fs::remove_file(dir.join(PEFT_WEIGHTS)).expect("removed");
    std::fs::remove_file(dir.join(PEFT_CONFIG)).expect("removed");
}

/// What a folder's adapter makes of a fresh toy network, and the keys that it brings.
fn read(dir: &Path) -> Result<(Transformer, LoraConfig, HashMap<ParamId, ParameterKey>), adapter::AdapterError> {
    let device = Device::flex();
    let (mut network, _) = toy(&device);
    let mut keys = HashMap::new();
    let config = adapter::read(dir, &mut network, &mut keys, &device)?;
    Ok((network, config, keys))
}

/// Either layout gives back the same network to the bit, with α and therefore the strength.
#[test]
fn both_layouts_come_back_to_the_bit() {
    let device = Device::flex();
    let (dir, network) = written(&device);
    for layout in ["PEFT", "diffusers"] {
        if layout == "diffusers" {
            only_diffusers(dir.path());
        }
        let (back, config, keys) = read(dir.path()).expect(layout);
        assert_eq!((config.rank, config.alpha), (CONFIG.rank, CONFIG.alpha), "{layout}");
        assert_eq!(velocity(&back, &device), velocity(&network, &device), "{layout}");
        let mut names: Vec<String> = keys.into_values().map(|key| key.key).collect();
        names.sort();
        assert_eq!(names, stored(&network).into_keys().collect::<Vec<_>>(), "{layout}");
    }
}

fn header(path: &Path) -> HashMap<String, String> {
    let bytes = std::fs::read(path).expect("the file");
    let (_, metadata) = SafeTensors::read_metadata(&bytes).expect("a safetensors file");
    metadata.metadata().clone().expect("a header entry")
}

/// Both files name their format, and the diffusers file carries rank and α, without which α would be taken for the
/// rank and the adapter would act at half its strength.
#[test]
fn headers_carry_what_other_programs_need() {
    let (dir, _) = written(&Device::flex());
    assert_eq!(header(&dir.path().join(PEFT_WEIGHTS))["format"], "pt");
    let diffusers = header(&dir.path().join(DIFFUSERS_WEIGHTS));
    assert_eq!(diffusers["format"], "pt");
    let settings: Value = serde_json::from_str(&diffusers["lora_adapter_metadata"]).expect("JSON");
    assert_eq!(settings["transformer.r"], 3);
    assert_eq!(settings["transformer.lora_alpha"], 6.0);
    let peft: Value =
        serde_json::from_slice(&std::fs::read(dir.path().join(PEFT_CONFIG)).expect("the file")).expect("JSON");
    assert_eq!((&peft["r"], &peft["lora_alpha"]), (&3.into(), &6.0.into()));
}

fn f32_tensors(path: &Path) -> BTreeMap<String, StoredTensor> {
    let bytes = std::fs::read(path).expect("the file");
    let file = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let tensors = file.tensors().into_iter().map(|(key, view)| {
        let values = view
            .data()
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        (key, (view.shape().to_vec(), values))
    });
    tensors.collect()
}

/// The adapters that PEFT and diffusers wrote are read, are the same adapter, and are written again with their own
/// names, shapes and values.
#[test]
fn adapter_parity_of_names_and_values() {
    let device = Device::flex();
    let inputs = Fixture::read("lora_grad").inputs;
    for folder in ["lora_peft", "lora_diffusers"] {
        let (mut network, _, mut keys) =
            Transformer::open(&root().join("sd3/transformer"), &device).expect("the fixture loads");
        let config = adapter::read(&root().join(folder), &mut network, &mut keys, &device).expect(folder);
        assert_eq!(Some(config.rank as u64), inputs["rank"].as_u64(), "{folder}");
        assert_eq!(Some(config.alpha), inputs["alpha"].as_f64(), "{folder}");
        let dir = tempfile::tempdir().expect("a temporary folder");
        adapter::write(dir.path(), &stored(&network), &config, "sd3").expect("a written adapter");
        for (reference, name) in [("lora_peft", PEFT_WEIGHTS), ("lora_diffusers", DIFFUSERS_WEIGHTS)] {
            let expected = f32_tensors(&root().join(reference).join(name));
            assert!(
                f32_tensors(&dir.path().join(name)) == expected,
                "{folder} written as {name} differs"
            );
        }
    }
}

/// Damages a written adapter folder and expects one line that holds every part of `expected`.
#[track_caller]
fn check_refused(damage: impl FnOnce(&Path), expected: &[&str]) {
    let (dir, _) = written(&Device::flex());
    damage(dir.path());
    let message = read(dir.path()).map(drop).expect_err("a damaged adapter").to_string();
    assert!(!message.contains('\n'), "more than one line: {message}");
    for part in expected {
        assert!(message.contains(part), "`{part}` is missing in: {message}");
    }
}

/// Changes keys of `adapter_config.json`.
fn reconfigure(dir: &Path, change: impl FnOnce(&mut Value)) {
    let path = dir.join(PEFT_CONFIG);
    let mut config = serde_json::from_slice(&std::fs::read(&path).expect("the file")).expect("JSON");
    change(&mut config);
    std::fs::write(path, config.to_string()).expect("written");
}

/// Writes the weights of one layout anew, with changed tensors and header entries.
fn rewrite(path: &Path, change: impl FnOnce(&mut BTreeMap<String, StoredTensor>), settings: Option<Value>) {
    let mut tensors = f32_tensors(path);
    change(&mut tensors);
    let borrowed = tensors.iter().map(|(key, tensor)| (key.clone(), tensor)).collect();
    let header = settings
        .map(|s| ("lora_adapter_metadata".to_owned(), s.to_string()))
        .into_iter()
        .collect();
    write_safetensors(path, &borrowed, header).expect("written");
}

/// Missing files and settings that change what the tensors mean.
#[test]
fn peft_settings_are_checked() {
    let absent = |dir: &Path| {
        only_diffusers(dir);
        std::fs::remove_file(dir.join(DIFFUSERS_WEIGHTS)).expect("removed");
    };
    check_refused(
        absent,
        &["holds neither adapter_model.safetensors nor pytorch_lora_weights.safetensors"],
    );
    check_refused(
        |dir| std::fs::remove_file(dir.join(PEFT_CONFIG)).expect("removed"),
        &[PEFT_CONFIG],
    );
    check_refused(
        |dir| std::fs::write(dir.join(PEFT_CONFIG), "{").expect("written"),
        &[PEFT_CONFIG],
    );
    check_refused(
        |dir| reconfigure(dir, |c| drop(c.as_object_mut().map(|c| c.remove("r")))),
        &[PEFT_CONFIG, "`r`"],
    );
    check_refused(|dir| reconfigure(dir, |c| c["r"] = 0.into()), &[PEFT_CONFIG, "r is 0"]);
    check_refused(
        |dir| reconfigure(dir, |c| c["lora_alpha"] = 0.into()),
        &[PEFT_CONFIG, "lora_alpha"],
    );
    check_refused(
        |dir| reconfigure(dir, |c| c["use_dora"] = true.into()),
        &[PEFT_CONFIG, "use_dora"],
    );
    check_refused(
        |dir| reconfigure(dir, |c| c["use_rslora"] = true.into()),
        &[PEFT_CONFIG, "use_rslora"],
    );
    let pattern = |dir: &Path| reconfigure(dir, |c| c["alpha_pattern"] = serde_json::json!({"to_q": 2}));
    check_refused(pattern, &[PEFT_CONFIG, "alpha_pattern"]);
}

/// The diffusers layout is held to the same.
#[test]
fn diffusers_settings_are_checked() {
    let check = |settings: Option<Value>, expected: &[&str]| {
        let damage = |dir: &Path| {
            only_diffusers(dir);
            rewrite(&dir.join(DIFFUSERS_WEIGHTS), |_| {}, settings);
        };
        check_refused(damage, &[expected, &[DIFFUSERS_WEIGHTS]].concat());
    };
    check(None, &["no `lora_adapter_metadata`", "rank and alpha are unknown"]);
    check(Some(serde_json::json!({"transformer.r": 3})), &["`lora_alpha`"]);
    check(Some(serde_json::json!({"unet.r": 3, "unet.lora_alpha": 6})), &["`r`"]);
    let with = |key: &str, value: Value| {
        let mut settings = serde_json::json!({"transformer.r": 3, "transformer.lora_alpha": 6});
        settings[format!("transformer.{key}")] = value;
        Some(settings)
    };
    check(with("r", serde_json::json!(0)), &["r is 0"]);
    check(with("use_dora", serde_json::json!(true)), &["use_dora"]);
    check(with("rank_pattern", serde_json::json!({"to_q": 2})), &["rank_pattern"]);
    let page = |dir: &Path| {
        only_diffusers(dir);
        std::fs::write(dir.join(DIFFUSERS_WEIGHTS), "<!doctype html>").expect("written");
    };
    check_refused(page, &[DIFFUSERS_WEIGHTS, "an HTML page"]);
}

/// No key that fits, one that is missing, left over, misshapen or not finite, and a file that is cut off.
#[test]
fn adapter_tensors_are_strict() {
    let check = |change: &dyn Fn(&mut BTreeMap<String, StoredTensor>), expected: &[&str]| {
        check_refused(
            |dir| rewrite(&dir.join(PEFT_WEIGHTS), change, None),
            &[expected, &[PEFT_WEIGHTS]].concat(),
        );
    };
    let key = "base_model.model.transformer_blocks.1.attn.to_k.lora_B.weight";
    check(
        &|tensors| {
            *tensors = std::mem::take(tensors)
                .into_iter()
                .map(|(key, tensor)| (key.replace("base_model.model.", "unet."), tensor))
                .collect();
        },
        &["is missing", "nearest: `unet."],
    );
    check(&|tensors| drop(tensors.remove(key)), &[key, "is missing"]);
    check(
        &|tensors| drop(tensors.insert("extra".into(), (vec![1], vec![0.0]))),
        &["not used", "`extra`"],
    );
    check(
        &|tensors| tensors.get_mut(key).expect("a factor").1[7] = f32::NAN,
        &[key, "non-finite", "element 7"],
    );
    check_refused(
        |dir| reconfigure(dir, |c| c["r"] = 4.into()),
        &[PEFT_WEIGHTS, "has shape [3, 16]", "asks for [4, 16]"],
    );
    let cut = |dir: &Path| {
        let path = dir.join(PEFT_WEIGHTS);
        let bytes = std::fs::read(&path).expect("the file");
        std::fs::write(&path, &bytes[..bytes.len() / 2]).expect("written");
    };
    check_refused(cut, &[PEFT_WEIGHTS, "truncated"]);
}
