//! Tokenizers and text encoders against the reference values.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::tensor::{Device, Tensor};
use nn::clip::text::ClipText;
use nn::tokenizer::Tokenizer;
use policy_sd3::text::t5::T5Encoder;
use policy_sd3::text::{PromptEmbeddings, TextEncoders, TextError, TextSettings};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use crate::fixture::{Fixture, assert_close, root};

/// The reference's own f32 values are 5e-6 away from f64.
const TOLERANCE: f32 = 2e-5;

fn pipeline() -> PathBuf {
    root().join("sd3")
}

/// The project's own copy of the fixture, whose files are known to be single ones.
fn own_pipeline() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/sd3")
}

fn shipped_pipeline() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/emoji-sd3")
}

fn ids(value: &Value) -> Vec<u32> {
    serde_json::from_value(value.clone()).expect("a list of ids")
}

fn all_ids(value: &Value) -> Vec<Vec<u32>> {
    serde_json::from_value(value.clone()).expect("a list of lists of ids")
}

fn prompts(fixture: &Fixture) -> Vec<String> {
    serde_json::from_value(fixture.inputs["prompts"].clone()).expect("a list of prompts")
}

/// `joint_attention_dim` of a pipeline folder.
fn joint_width(pipeline: &Path) -> usize {
    let text = std::fs::read_to_string(pipeline.join("transformer/config.json")).expect("a configuration");
    let config: Value = serde_json::from_str(&text).expect("valid JSON");
    config["joint_attention_dim"].as_u64().expect("a number") as usize
}

fn settings(fixture: &Fixture) -> TextSettings {
    TextSettings {
        joint_width: joint_width(&pipeline()),
        t5_tokens: fixture.inputs["t5_length"].as_u64().expect("a number") as usize,
        use_t5: true,
        micro_batch: 4,
    }
}

/// Values of a tensor as raw bits, for comparisons that allow no difference at all.
fn bits<const D: usize>(tensor: Tensor<D>) -> Vec<u32> {
    tensor
        .into_data()
        .try_to_vec::<f32>()
        .expect("f32 data")
        .into_iter()
        .map(f32::to_bits)
        .collect()
}

fn row(embeddings: &PromptEmbeddings, index: usize) -> (Vec<u32>, Vec<u32>) {
    let sequence = embeddings.sequence.clone().narrow(0, index, 1);
    (bits(sequence), bits(embeddings.pooled.clone().narrow(0, index, 1)))
}

#[test]
fn parity_ids_of_every_string() {
    let fixture = Fixture::read("tokenizers");
    let strings: Vec<String> = serde_json::from_value(fixture.inputs["strings"].clone()).expect("strings");
    let expected = fixture.expected["ids"].as_array().expect("one entry per string");
    assert_eq!(strings.len(), expected.len());
    let open = |name: &str| Tokenizer::open(&pipeline().join(name)).expect("the fixture's tokenizer");
    let (clip, zero, t5) = (open("tokenizer"), open("tokenizer_2"), open("tokenizer_3"));
    let mut wrong = Vec::new();
    for (text, expected) in strings.iter().zip(expected) {
        let padded = |tokenizer: &Tokenizer, key: &str| {
            let length = expected[key].as_array().expect("a list of ids").len();
            tokenizer.encode_batch(&[text], length).expect("ids").ids.remove(0)
        };
        let found = [
            ("clip", clip.encode(text).expect("ids")),
            ("clip_pad_eos", padded(&clip, "clip_pad_eos")),
            ("clip_pad_zero", padded(&zero, "clip_pad_zero")),
            ("t5", t5.encode(text).expect("ids")),
        ];
        for (key, found) in found {
            let expected = ids(&expected[key]);
            if found != expected {
                wrong.push(format!(
                    "{key} of {text:?}\n  found    {found:?}\n  expected {expected:?}"
                ));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {} differ:\n{}",
        wrong.len(),
        strings.len() * 4,
        wrong.join("\n")
    );
}

#[test]
fn parity_padded_prompt_ids() {
    let fixture = Fixture::read("sd3_io");
    let prompts = prompts(&fixture);
    for (folder, key) in [
        ("tokenizer", "clip_1"),
        ("tokenizer_2", "clip_2"),
        ("tokenizer_3", "t5"),
    ] {
        let expected = all_ids(&fixture.expected["tokens"][key]);
        let tokenizer = Tokenizer::open(&pipeline().join(folder)).expect("the fixture's tokenizer");
        let found = tokenizer.encode_batch(&prompts, expected[0].len()).expect("ids");
        assert_eq!(found.ids, expected, "{folder}");
        for (index, prompt) in prompts.iter().enumerate() {
            let whole = tokenizer.encode(prompt).expect("ids").len();
            let cut = found.truncated.iter().find(|t| t.index == index).map(|t| t.tokens);
            assert_eq!(
                cut,
                (whole > expected[0].len()).then_some(whole),
                "{folder}: {prompt:?}"
            );
        }
    }
}

#[test]
fn parity_clip_towers() {
    let fixture = Fixture::read("sd3_io");
    let device = Device::flex();
    for (folder, key) in [("text_encoder", "clip_1"), ("text_encoder_2", "clip_2")] {
        let tower = ClipText::open(&pipeline().join(folder), &device).expect("the fixture's tower");
        let output = tower.forward(&all_ids(&fixture.expected["tokens"][key]), &device);
        let name = format!("text.{key}.penultimate");
        assert_close(&name, output.penultimate, fixture.values(&name), TOLERANCE);
        let name = format!("text.{key}.pooled");
        assert_close(&name, output.projected, fixture.values(&name), TOLERANCE);
    }
}

#[test]
fn parity_t5_encoder() {
    let fixture = Fixture::read("sd3_io");
    let device = Device::flex();
    let encoder = T5Encoder::open(&pipeline().join("text_encoder_3"), &device).expect("the fixture's encoder");
    let found = encoder.forward(&all_ids(&fixture.expected["tokens"]["t5"]), &device);
    assert_close("text.t5", found, fixture.values("text.t5"), TOLERANCE);
}

#[test]
fn parity_prompt_embeddings() {
    let fixture = Fixture::read("sd3_io");
    let device = Device::flex();
    let encoders = TextEncoders::open(&pipeline(), settings(&fixture), &device).expect("the fixture's encoders");
    assert!(encoders.has_t5());
    let found = encoders.encode(&prompts(&fixture)).expect("embeddings");
    assert_eq!(found.zero_tokens, 0);
    assert_eq!(found.pooled.dims()[1], encoders.pooled_width());
    assert_close(
        "prompt_embeds",
        found.with_zero_tokens(),
        fixture.values("text.prompt_embeds"),
        TOLERANCE,
    );
    assert_close(
        "pooled",
        found.pooled,
        fixture.values("text.pooled_prompt_embeds"),
        TOLERANCE,
    );
}

#[test]
fn a_prompt_does_not_depend_on_its_neighbours_and_repeats_are_equal() {
    let fixture = Fixture::read("sd3_io");
    let device = Device::flex();
    let list = prompts(&fixture);
    let settings = settings(&fixture);
    let open = |micro_batch| {
        TextEncoders::open(
            &pipeline(),
            TextSettings {
                micro_batch,
                ..settings
            },
            &device,
        )
        .expect("encoders")
    };
    let alone = open(1).encode(&list).expect("embeddings");
    let mut doubled = list.clone();
    doubled.extend(list.iter().rev().cloned());
    let together = open(list.len()).encode(&doubled).expect("embeddings");
    assert_eq!(together.sequence.dims()[0], doubled.len());
    for index in 0..list.len() {
        let expected = row(&alone, index);
        assert!(
            row(&together, index) == expected,
            "prompt {index} differs beside others"
        );
        assert!(
            row(&together, doubled.len() - 1 - index) == expected,
            "the repeat of prompt {index} differs"
        );
        let cuts = |list: &PromptEmbeddings, index: usize| -> Vec<(&str, usize, usize)> {
            let of = list.truncated.iter().filter(|t| t.prompt == index);
            of.map(|t| (t.tokenizer, t.tokens, t.kept)).collect()
        };
        assert_eq!(cuts(&together, index), cuts(&alone, index));
        assert_eq!(cuts(&together, doubled.len() - 1 - index), cuts(&alone, index));
    }
}

#[test]
fn without_t5_its_tokens_are_counted_and_not_stored() {
    let fixture = Fixture::read("sd3_io");
    let device = Device::flex();
    let settings = settings(&fixture);
    let with = TextEncoders::open(&pipeline(), settings, &device).expect("encoders");
    let without = TextEncoders::open(
        &pipeline(),
        TextSettings {
            use_t5: false,
            ..settings
        },
        &device,
    )
    .expect("same");
    assert!(!without.has_t5());
    let list = prompts(&fixture);
    let (with, without) = (
        with.encode(&list).expect("embeddings"),
        without.encode(&list).expect("embeddings"),
    );
    let clip = without.sequence.dims()[1];
    assert_eq!(without.zero_tokens, settings.t5_tokens);
    assert_eq!(
        bits(without.sequence.clone()),
        bits(with.sequence.slice([0..list.len(), 0..clip]))
    );
    let spelt_out = without.with_zero_tokens();
    assert_eq!(
        spelt_out.dims(),
        [list.len(), clip + settings.t5_tokens, settings.joint_width]
    );
    let tail = spelt_out.slice([0..list.len(), clip..clip + settings.t5_tokens]);
    assert_eq!(tail.abs().max().into_scalar::<f32>(), 0.0);
}

#[test]
fn the_shipped_pipeline_has_no_t5_and_its_own_lengths() {
    let pipeline = shipped_pipeline();
    let device = Device::flex();
    let settings = TextSettings {
        joint_width: joint_width(&pipeline),
        t5_tokens: 16,
        use_t5: true,
        micro_batch: 8,
    };
    let encoders = TextEncoders::open(&pipeline, settings, &device).expect("the shipped encoders");
    assert!(!encoders.has_t5());
    let long = "flat icon of a red apple and ".repeat(9);
    let list = ["flat icon of a red apple".to_owned(), long, String::new()];
    let found = encoders.encode(&list).expect("embeddings");
    assert_eq!(found.sequence.dims(), [3, encoders.clip_tokens(), settings.joint_width]);
    assert_eq!(found.zero_tokens, 16);
    let cut: Vec<(usize, &str, usize)> = found
        .truncated
        .iter()
        .map(|t| (t.prompt, t.tokenizer, t.kept))
        .collect();
    assert_eq!(
        cut,
        [
            (1, "tokenizer", encoders.clip_tokens()),
            (1, "tokenizer_2", encoders.clip_tokens())
        ]
    );
    assert!(matches!(encoders.encode(&[]), Err(TextError::NoPrompts)));
}

#[test]
fn parts_of_different_pipelines_are_refused() {
    let fixture = Fixture::read("sd3_io");
    let settings = settings(&fixture);
    let device = Device::flex();
    let wider = TextSettings {
        joint_width: settings.joint_width + 1,
        ..settings
    };
    let error = TextEncoders::open(&pipeline(), wider, &device)
        .expect_err("T5 is not that wide")
        .to_string();
    assert!(
        error.contains("text_encoder_3") && error.contains("joint_attention_dim"),
        "{error}"
    );
    let narrower = TextSettings {
        joint_width: 1,
        ..settings
    };
    let error = TextEncoders::open(&pipeline(), narrower, &device)
        .expect_err("CLIP is wider")
        .to_string();
    assert!(error.contains("joint_attention_dim is only 1"), "{error}");
}

/// A copy of an encoder's folder whose weights went through `change`.
fn changed_copy(folder: &str, change: impl FnOnce(&mut BTreeMap<String, Stored>)) -> tempfile::TempDir {
    let source = own_pipeline().join(folder);
    let copy = tempfile::tempdir().expect("a temporary folder");
    std::fs::copy(source.join("config.json"), copy.path().join("config.json")).expect("a copied configuration");
    let bytes = std::fs::read(source.join("model.safetensors")).expect("the fixture's weights");
    let tensors = SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let mut tensors: BTreeMap<String, Stored> = tensors
        .iter()
        .map(|(key, view)| {
            (
                key.to_owned(),
                (view.dtype(), view.shape().to_vec(), view.data().to_vec()),
            )
        })
        .collect();
    change(&mut tensors);
    let views = tensors.iter().map(|(key, (dtype, shape, data))| {
        (
            key,
            TensorView::new(*dtype, shape.clone(), data).expect("data of that shape"),
        )
    });
    safetensors::serialize_to_file(views, None, &copy.path().join("model.safetensors")).expect("a written file");
    copy
}

/// Element type, shape and bytes of a tensor.
type Stored = (Dtype, Vec<usize>, Vec<u8>);

#[test]
fn both_names_of_the_t5_table_are_read() {
    let device = Device::flex();
    let ids = [vec![3_u32, 1, 0, 0]];
    let run = |dir: &Path| {
        bits(
            T5Encoder::open(dir, &device)
                .expect("an encoder")
                .forward(&ids, &device),
        )
    };
    let expected = run(&own_pipeline().join("text_encoder_3"));
    let (first, second) = ("shared.weight", "encoder.embed_tokens.weight");
    let table = |tensors: &mut BTreeMap<String, Stored>| {
        [first, second]
            .into_iter()
            .find_map(|key| tensors.remove(key))
            .expect("the table under one of its names")
    };
    let renamed = changed_copy("text_encoder_3", |tensors| {
        let table = table(tensors);
        tensors.insert(second.to_owned(), table);
    });
    assert!(run(renamed.path()) == expected);
    let doubled = changed_copy("text_encoder_3", |tensors| {
        let table = table(tensors);
        tensors.insert(first.to_owned(), table.clone());
        tensors.insert(second.to_owned(), table);
    });
    assert!(run(doubled.path()) == expected);
    let without = changed_copy("text_encoder_3", |tensors| {
        table(tensors);
    });
    let error = T5Encoder::open(without.path(), &device)
        .expect_err("there is no table")
        .to_string();
    assert!(error.contains("shared.weight"), "{error}");
}

#[test]
fn position_ids_of_old_files_are_accepted_and_other_extra_tensors_are_not() {
    let device = Device::flex();
    let ids = [vec![5_u32, 7, 1]];
    let run = |dir: &Path| {
        bits(
            ClipText::open(dir, &device)
                .expect("a tower")
                .forward(&ids, &device)
                .projected,
        )
    };
    let numbers: Vec<u8> = (0..4_i64).flat_map(i64::to_le_bytes).collect();
    let numbers: Stored = (Dtype::I64, vec![1, 4], numbers);
    let old = changed_copy("text_encoder", |tensors| {
        tensors.insert("text_model.embeddings.position_ids".to_owned(), numbers.clone());
    });
    assert!(run(old.path()) == run(&own_pipeline().join("text_encoder")));
    let strange = changed_copy("text_encoder", |tensors| {
        tensors.insert("text_model.embeddings.other".to_owned(), numbers);
    });
    let error = ClipText::open(strange.path(), &device)
        .expect_err("an unknown tensor")
        .to_string();
    assert!(error.contains("text_model.embeddings.other"), "{error}");
}
