//! Preprocessing, features and scores against the reference libraries.

use std::num::NonZeroU32;
use std::path::Path;

use burn::tensor::Device;
use rewards::Scorer;
use rewards::clip::ClipFeatures;
use rewards::clip_score::{ClipScore, CosineScale, cosine};
use rewards::preprocess::Preprocessor;

use crate::fixture::{Fixture, assert_close, folder};

/// A number in one of a model's own configuration files.
fn side(path: &Path, pointer: &str) -> NonZeroU32 {
    let text = std::fs::read_to_string(path).expect("the configuration");
    let json: serde_json::Value = serde_json::from_str(&text).expect("valid JSON");
    let side = json
        .pointer(pointer)
        .and_then(serde_json::Value::as_u64)
        .expect("a side");
    u32::try_from(side).ok().and_then(NonZeroU32::new).expect("a side")
}

/// Pillow's pictures agree exactly; PyTorch adds up in another order, which 1e-5 allows for.
#[test]
fn parity_of_pixels() {
    let check = |model: &str, preprocessor: &Preprocessor, tolerance: f32| {
        let fixture = Fixture::read(model);
        let names = fixture.inputs["images"].as_array().expect("names").clone();
        assert_eq!(names.len(), 6, "{model}");
        for ((picture, expected), name) in fixture.pictures().iter().zip(fixture.rows("pixels")).zip(names) {
            let found = preprocessor.pixels(picture);
            assert_close(&format!("{model} pixels of {name}"), &found, expected, tolerance);
        }
    };
    for model in ["clip_l", "pickscore"] {
        let path = folder(model).join("preprocessor_config.json");
        check(model, &Preprocessor::hugging_face(&path).expect("the settings"), 1e-6);
    }
    let path = folder("dfn5b").join("open_clip_config.json");
    check("dfn5b", &Preprocessor::open_clip(&path).expect("the settings"), 1e-6);
    let image_size = side(&folder("imagereward").join("vision_config.json"), "/img_size");
    check("imagereward", &Preprocessor::open_ai(image_size), 1e-6);
    let image_size = side(&folder("hps").join("model_config.json"), "/vision_cfg/image_size");
    check("hps", &Preprocessor::hps(image_size), 1e-5);
}

#[test]
fn parity_of_features_and_cosines() {
    for model in ["clip_l", "pickscore"] {
        let fixture = Fixture::read(model);
        let features = ClipFeatures::open(model, &folder(model), &Device::flex()).expect("the model");
        let pictures = features.pictures(&fixture.pictures()).expect("picture features");
        let texts = features.texts(&fixture.token_ids()).expect("text features");
        assert_close(
            &format!("{model} image_features"),
            &pictures.concat(),
            &fixture.rows("image_features").concat(),
            2e-5,
        );
        assert_close(
            &format!("{model} text_features"),
            &texts.concat(),
            &fixture.rows("text_features").concat(),
            2e-5,
        );

        let scale = f64::from(features.model().logit_scale()).exp();
        let scaled = fixture.inputs["model"]["scaled"].as_bool().unwrap_or(false);
        for (i, picture) in pictures.iter().enumerate() {
            let cosines: Vec<f64> = texts.iter().map(|text| cosine(picture, text)).collect();
            let row: Vec<f32> = cosines.iter().map(|c| *c as f32).collect();
            assert_close(
                &format!("{model} cosine_matrix[{i}]"),
                &row,
                fixture.rows("cosine_matrix")[i],
                1e-5,
            );
            let factor = if scaled { scale } else { 1.0 };
            let row: Vec<f32> = cosines.iter().map(|c| (c * factor) as f32).collect();
            let tolerance = if scaled { 5e-4 } else { 1e-5 };
            assert_close(
                &format!("{model} score_matrix[{i}]"),
                &row,
                fixture.rows("score_matrix")[i],
                tolerance,
            );
        }
    }
}

/// The whole way, from picture files and captions to scores, with the folder's own tokenizer.
#[test]
fn parity_of_clip_scores_from_captions() {
    let fixture = Fixture::read("clip_l");
    let mut scorer =
        ClipScore::open("clip-l", &folder("clip_l"), CosineScale::One, &Device::flex()).expect("the scorer");
    let captions = fixture.captions();
    let report = scorer.prepare(&captions).expect("the captions");
    let longest = fixture.token_ids()[0].len();
    assert_eq!((report.prompts, report.limit), (captions.len(), Some(longest)));

    let pictures = fixture.pictures();
    let prompts: Vec<usize> = (0..pictures.len()).collect();
    let scores: Vec<f32> = scorer
        .score(&pictures, &prompts)
        .expect("scores")
        .into_iter()
        .map(|score| score as f32)
        .collect();
    assert_close("clip_l scores", &scores, &fixture.rows("scores").concat(), 1e-5);
}
