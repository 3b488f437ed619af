//! CLIP models in OpenCLIP's naming: parity with OpenCLIP, agreement with the same model in Hugging Face's naming, and
//! files that do not fit.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::tensor::{Device, Tensor, TensorData};
use nn::activation::Activation;
use nn::clip::{ClipModel, ClipModelConfig};
use nn::weights::{Weights, transpose};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

use crate::fixture::{Fixture, own, root};

/// The reference's own f32 values are 5e-6 away from f64.
const TOLERANCE: f32 = 2e-5;

fn hps(config: &ClipModelConfig) -> ClipModel {
    let path = root().join("rewards/hps/HPS_v2.1_compressed.pt");
    ClipModel::open_file(&path, config, &Device::flex()).expect("the fixture")
}

fn hps_config() -> ClipModelConfig {
    ClipModelConfig::read_open_clip(&root().join("rewards/hps/model_config.json")).expect("the configuration")
}

fn host(features: Tensor<2>) -> Vec<f32> {
    features.into_data().try_to_vec().expect("f32 data")
}

fn largest_difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len(), "element counts differ");
    let differences = found
        .iter()
        .zip(expected)
        .map(|(found, expected)| (found - expected).abs());
    differences.fold(0.0, f32::max)
}

/// Features of the fixture's pictures and captions, image and text.
fn features(model: &ClipModel, fixture: &Fixture) -> [Vec<f32>; 2] {
    let device = Device::flex();
    let (shape, values) = fixture.tensor("pixels");
    let pixels = Tensor::from_data(TensorData::new(values.clone(), shape.clone()), &device);
    let text = model.text.forward(&fixture.token_ids(), &device);
    [host(model.vision.forward(pixels).projected), host(text.projected)]
}

fn check_parity(name: &str, model: &ClipModel) {
    let fixture = Fixture::read(name);
    for (found, key) in features(model, &fixture)
        .iter()
        .zip(["image_features", "text_features"])
    {
        let difference = largest_difference(found, &fixture.tensor(key).1);
        println!("{name} {key}: largest difference {difference:e} (tolerance {TOLERANCE:e})");
        // Written so that a NaN fails.
        assert!(difference <= TOLERANCE, "{name} {key}: {difference}");
    }
}

#[test]
fn parity_of_hps_features() {
    check_parity("hps", &hps(&hps_config()));
}

#[test]
fn parity_of_dfn5b_features() {
    let model = ClipModel::open(&root().join("rewards/dfn5b"), &Device::flex()).expect("the fixture's folder");
    check_parity("dfn5b", &model);
}

/// The activation is the configuration's: with the other GELU the features are visibly wrong.
#[test]
fn the_activation_comes_from_the_configuration() {
    let mut config = hps_config();
    assert_eq!(config.vision.hidden_act, Activation::Gelu);
    config.vision.hidden_act = Activation::QuickGelu;
    config.text.hidden_act = Activation::QuickGelu;
    let fixture = Fixture::read("hps");
    for (found, key) in features(&hps(&config), &fixture)
        .iter()
        .zip(["image_features", "text_features"])
    {
        assert!(largest_difference(found, &fixture.tensor(key).1) > 1e-3, "{key}");
    }
}

/// Tensors by key: shape and values, row-major.
type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

/// A model whose matrices are square wherever they can be, so that no shape betrays a transpose.
fn square_config() -> ClipModelConfig {
    let mut config = ClipModelConfig::vit_l_14();
    for (width, heads, inner, layers) in [
        (
            &mut config.text.hidden_size,
            &mut config.text.num_attention_heads,
            &mut config.text.intermediate_size,
            &mut config.text.num_hidden_layers,
        ),
        (
            &mut config.vision.hidden_size,
            &mut config.vision.num_attention_heads,
            &mut config.vision.intermediate_size,
            &mut config.vision.num_hidden_layers,
        ),
    ] {
        (*width, *heads, *inner, *layers) = (12, 3, 12, 2);
    }
    (config.text.vocab_size, config.text.max_position_embeddings) = (12, 12);
    (config.vision.image_size, config.vision.patch_size) = (14, 7);
    (config.text.projection_dim, config.vision.projection_dim) = (12, 12);
    config
}

/// Seeded tensors of that model under Hugging Face's names.
fn hugging_face_tensors() -> Tensors {
    let device = Device::flex();
    let blank = Weights::blank(&device);
    ClipModel::load(&blank, &square_config()).expect("blank weights");
    let seeded = Weights::seeded(11, 1.0, &device);
    let asked = blank.asked().into_iter();
    asked
        .map(|(key, shape)| {
            let values = seeded.values(&key, &shape).expect("invented values");
            (key, (shape, values))
        })
        .collect()
}

/// The same tensors under OpenCLIP's names, by the definition of the two layouts: query, key and value lie one below the
/// other, and the projections are transposed.
fn open_clip_tensors(hugging_face: &Tensors) -> Tensors {
    let mut named = Tensors::new();
    for (key, (shape, values)) in hugging_face {
        let turned = || {
            let shape = shape.iter().rev().copied().collect();
            (shape, transpose(values, shape_rows(hugging_face, key)))
        };
        match key.as_str() {
            "text_projection.weight" => drop(named.insert("text_projection".to_owned(), turned())),
            "visual_projection.weight" => drop(named.insert("visual.proj".to_owned(), turned())),
            // Gathered below, in their order.
            _ if [".q_proj.", ".k_proj.", ".v_proj."]
                .iter()
                .any(|part| key.contains(part)) => {}
            _ => drop(named.insert(open_clip_name(key), (shape.clone(), values.clone()))),
        }
    }
    for (tower, root) in [("text_model", ""), ("vision_model", "visual.")] {
        for layer in 0..2 {
            for part in ["weight", "bias"] {
                let of =
                    |letter| &hugging_face[&format!("{tower}.encoder.layers.{layer}.self_attn.{letter}_proj.{part}")];
                let mut shape = of('q').0.clone();
                shape[0] *= 3;
                let values = ['q', 'k', 'v'].map(|letter| of(letter).1.clone()).concat();
                let key = format!("{root}transformer.resblocks.{layer}.attn.in_proj_{part}");
                named.insert(key, (shape, values));
            }
        }
    }
    named
}

fn shape_rows(tensors: &Tensors, key: &str) -> usize {
    tensors[key].0[0]
}

fn open_clip_name(key: &str) -> String {
    let renamed = [
        ("vision_model.embeddings.class_embedding", "visual.class_embedding"),
        ("vision_model.embeddings.patch_embedding", "visual.conv1"),
        (
            "vision_model.embeddings.position_embedding.weight",
            "visual.positional_embedding",
        ),
        ("vision_model.pre_layrnorm", "visual.ln_pre"),
        ("vision_model.post_layernorm", "visual.ln_post"),
        ("vision_model.encoder.layers", "visual.transformer.resblocks"),
        ("text_model.embeddings.token_embedding", "token_embedding"),
        (
            "text_model.embeddings.position_embedding.weight",
            "positional_embedding",
        ),
        ("text_model.final_layer_norm", "ln_final"),
        ("text_model.encoder.layers", "transformer.resblocks"),
        ("layer_norm", "ln_"),
        ("self_attn.out_proj", "attn.out_proj"),
        ("mlp.fc1", "mlp.c_fc"),
        ("mlp.fc2", "mlp.c_proj"),
    ];
    renamed
        .iter()
        .fold(key.to_owned(), |key, (from, to)| key.replace(from, to))
}

fn write(dir: &Path, name: &str, tensors: &Tensors) -> PathBuf {
    let bytes = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let stored: Vec<(&String, &Vec<usize>, Vec<u8>)> = tensors
        .iter()
        .map(|(key, (shape, values))| (key, shape, bytes(values)))
        .collect();
    let views = stored.iter().map(|(key, shape, bytes)| {
        let view = TensorView::new(Dtype::F32, (*shape).clone(), bytes).expect("bytes that fit the shape");
        (*key, view)
    });
    let path = dir.join(name);
    safetensors::serialize_to_file(views, None, &path).expect("a written file");
    path
}

/// Image and text features of one picture and one text.
fn outputs(path: &Path) -> [Vec<f32>; 2] {
    let device = Device::flex();
    let model = ClipModel::open_file(path, &square_config(), &device).expect("a model");
    let pixels: Vec<f32> = (0..3 * 14 * 14).map(|i| (i * 37 % 101) as f32 / 50.0 - 1.0).collect();
    let pixels = Tensor::from_data(TensorData::new(pixels, [1, 3, 14, 14]), &device);
    let text = model.text.forward(&[vec![9, 3, 5, 11, 0, 0]], &device);
    [host(model.vision.forward(pixels).projected), host(text.projected)]
}

/// The key of a tensor, the tower whose features it makes (0 pictures, 1 texts), and what is done to its values.
type Mistake<'a> = (&'a str, usize, &'a dyn Fn(&[f32]) -> Vec<f32>);

/// One model in both namings gives the same features to the bit. Every matrix is square, so this is where a transpose
/// too many or too few would show, or query, key and value in another order; the second half makes each of these
/// mistakes in the file and sees it in the features.
#[test]
fn both_namings_of_one_model_agree() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let hugging_face = hugging_face_tensors();
    let open_clip = open_clip_tensors(&hugging_face);
    let expected = outputs(&write(dir.path(), "hf.safetensors", &hugging_face));
    assert_eq!(outputs(&write(dir.path(), "open.safetensors", &open_clip)), expected);

    let swap_thirds = |values: &[f32]| {
        let third = values.len() / 3;
        [&values[third..2 * third], &values[..third], &values[2 * third..]].concat()
    };
    let turn = |values: &[f32]| transpose(values, 12);
    let mistakes: [Mistake; 6] = [
        ("visual.proj", 0, &turn),
        ("text_projection", 1, &turn),
        ("visual.transformer.resblocks.1.attn.out_proj.weight", 0, &turn),
        ("transformer.resblocks.0.mlp.c_fc.weight", 1, &turn),
        ("visual.transformer.resblocks.0.attn.in_proj_weight", 0, &swap_thirds),
        ("transformer.resblocks.1.attn.in_proj_bias", 1, &swap_thirds),
    ];
    for (key, tower, mistake) in mistakes {
        let mut wrong = open_clip.clone();
        let (_, values) = wrong.get_mut(key).expect(key);
        *values = mistake(values);
        let found = outputs(&write(dir.path(), "wrong.safetensors", &wrong));
        let difference = largest_difference(&found[tower], &expected[tower]);
        assert!(difference > 1e-3, "{key}: {difference}");
        assert_eq!(found[1 - tower], expected[1 - tower], "{key}");
    }
}

/// The text tower below `text.`, everything below `module.`, and what older files carry beside the weights, make no
/// difference.
#[test]
fn variants_of_the_naming_are_read() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let open_clip = open_clip_tensors(&hugging_face_tensors());
    let expected = outputs(&write(dir.path(), "open.safetensors", &open_clip));
    let renamed = |rename: &dyn Fn(&str) -> String| -> Tensors {
        let tensors = open_clip.iter();
        tensors.map(|(key, tensor)| (rename(key), tensor.clone())).collect()
    };
    let mut own_class = renamed(&|key| {
        if key.starts_with("visual.") || key == "logit_scale" {
            key.to_owned()
        } else {
            format!("text.{key}")
        }
    });
    own_class.insert("text.attn_mask".to_owned(), (vec![12, 12], vec![0.0; 144]));
    let wrapped = renamed(&|key| format!("module.{key}"));
    let mut openai = open_clip.clone();
    for name in ["input_resolution", "context_length", "vocab_size"] {
        openai.insert(name.to_owned(), (vec![], vec![1.0]));
    }
    openai.insert("attn_mask".to_owned(), (vec![12, 12], vec![0.0; 144]));
    for (name, tensors) in [("own class", own_class), ("wrapped", wrapped), ("openai", openai)] {
        assert_eq!(outputs(&write(dir.path(), name, &tensors)), expected, "{name}");
    }
}

/// A file that does not fit is refused with file and key.
#[test]
fn files_that_do_not_fit_are_refused() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let open_clip = open_clip_tensors(&hugging_face_tensors());
    let refused = |change: &dyn Fn(&mut Tensors), config: &ClipModelConfig, expected: &[&str]| {
        let mut tensors = open_clip.clone();
        change(&mut tensors);
        let path = write(dir.path(), "clip.safetensors", &tensors);
        let error = ClipModel::open_file(&path, config, &Device::flex())
            .expect_err("a file that does not fit")
            .to_string();
        for part in [expected, &["clip.safetensors"]].concat() {
            assert!(error.contains(part), "`{part}` is missing in: {error}");
        }
    };
    let config = square_config();
    let key = "visual.transformer.resblocks.1.attn.in_proj_weight";
    refused(&|tensors| drop(tensors.remove(key)), &config, &[key, "is missing"]);
    let extra = |tensors: &mut Tensors| drop(tensors.insert("visual.extra".to_owned(), (vec![1], vec![0.0])));
    refused(&extra, &config, &["`visual.extra`", "1 tensor(s) are not used"]);
    let deeper = |tensors: &mut Tensors| {
        let copy = tensors["transformer.resblocks.1.ln_1.bias"].clone();
        tensors.insert("transformer.resblocks.2.ln_1.bias".to_owned(), copy);
    };
    refused(&deeper, &config, &["`transformer.resblocks.2.ln_1.bias`"]);
    let mut larger = config.clone();
    larger.vision.image_size = 21;
    refused(
        &|_| (),
        &larger,
        &["`visual.positional_embedding`", "[5, 12]", "[10, 12]"],
    );
    let mut wider = config.clone();
    wider.text.projection_dim = 16;
    refused(&|_| (), &wider, &["`text_projection`", "[12, 12]", "[12, 16]"]);
    // A projection that is not square and lies the wrong way round shows by its shape.
    let turned = |tensors: &mut Tensors| {
        tensors.insert("text_projection".to_owned(), (vec![16, 12], vec![0.0; 192]));
    };
    refused(&turned, &wider, &["`text_projection`", "[16, 12]", "[12, 16]"]);
    let neither = |tensors: &mut Tensors| tensors.retain(|key, _| key.starts_with("visual.ln"));
    refused(
        &neither,
        &config,
        &["`text_model.embeddings.token_embedding.weight` is missing"],
    );
}

/// A folder is opened by the files that it holds; where both kinds are, they are the same model.
#[test]
fn folders_of_both_kinds_open() {
    let device = Device::flex();
    let rewards = own().join("rewards");
    let side = |dir: &Path| {
        ClipModel::open(dir, &device)
            .expect("a folder")
            .vision
            .config()
            .image_size
    };
    assert_eq!(side(&rewards.join("clip_l")), 28);
    assert_eq!(side(&rewards.join("dfn5b")), 42);

    let dir = tempfile::tempdir().expect("a temporary folder");
    let copy = |from: &str| {
        let from = rewards.join(from);
        std::fs::copy(&from, dir.path().join(from.file_name().expect("a name"))).expect("a copy");
    };
    let error = |dir: &Path| {
        ClipModel::open(dir, &device)
            .expect_err("an incomplete folder")
            .to_string()
    };
    assert!(
        error(dir.path()).contains("no model.safetensors"),
        "{}",
        error(dir.path())
    );
    copy("dfn5b/open_clip_config.json");
    assert!(error(dir.path()).contains("no open_clip_model.safetensors"));
    // A configuration of the other kind alone changes nothing.
    copy("clip_l/config.json");
    copy("dfn5b/open_clip_pytorch_model.bin");
    assert_eq!(side(dir.path()), 42);
    copy("clip_l/model.safetensors");
    assert_eq!(side(dir.path()), 28);
    std::fs::remove_file(dir.path().join("config.json")).expect("a removed file");
    assert_eq!(side(dir.path()), 42);
    let path = dir.path().join("open_clip_config.json");
    let siglip = r#"{"model_cfg": {"embed_dim": 8, "init_logit_bias": -10, "vision_cfg": {}, "text_cfg": {}}}"#;
    std::fs::write(path, siglip).expect("a written file");
    let message = error(dir.path());
    assert!(
        message.contains("open_clip_config.json") && message.contains("init_logit_bias is -10"),
        "{message}"
    );
}
