//! The scorers of the paper against the reference libraries, from the files as they are published.

use burn::tensor::{Device, Tensor, TensorData};
use nn::weights::Weights;
use rewards::aesthetic::Aesthetic;
use rewards::clip::{ClipFeatures, ClipSource};
use rewards::clip_score::{ClipScore, CosineScale, cosine};
use rewards::image_reward::{ImageReward, ImageRewardConfig, ImageRewardModel};
use rewards::{Picture, Scorer};

use crate::fixture::{Fixture, assert_close, folder};

/// Features, the matrix of cosines, and the way from picture files and captions to scores.
fn check_clip(model: &str, features: ClipFeatures) {
    let fixture = Fixture::read(model);
    let pictures = features.pictures(&fixture.pictures()).expect("picture features");
    let texts = features.texts(&fixture.token_ids()).expect("text features");
    for (what, found) in [("image_features", &pictures), ("text_features", &texts)] {
        let expected = fixture.rows(what).concat();
        assert_close(&format!("{model} {what}"), &found.concat(), &expected, 2e-5);
    }
    for (i, picture) in pictures.iter().enumerate() {
        let row: Vec<f32> = texts.iter().map(|text| cosine(picture, text) as f32).collect();
        let expected = fixture.rows("cosine_matrix")[i];
        assert_close(&format!("{model} cosine_matrix[{i}]"), &row, expected, 1e-5);
    }
    check_scores(model, &mut ClipScore::new(features, CosineScale::One), 1e-5);
}

/// Scores of picture `i` with caption `i`.
fn check_scores(model: &str, scorer: &mut dyn Scorer, tolerance: f32) {
    let fixture = Fixture::read(model);
    scorer.prepare(&fixture.captions()).expect("the captions");
    let pictures = fixture.pictures();
    let prompts: Vec<usize> = (0..pictures.len()).collect();
    let scores = scorer.score(&pictures, &prompts).expect("scores");
    let scores: Vec<f32> = scores.into_iter().map(|score| score as f32).collect();
    assert_close(
        &format!("{model} scores"),
        &scores,
        &fixture.rows("scores").concat(),
        tolerance,
    );
}

#[test]
fn parity_of_hps() {
    let source = ClipSource::find_hps("hps", &folder("hps"), None, &Device::flex()).expect("the files");
    check_clip("hps", source.load().expect("the weights"));
}

#[test]
fn parity_of_dfn5b() {
    check_clip(
        "dfn5b",
        ClipFeatures::open("dfn5b", &folder("dfn5b"), &Device::flex()).expect("the model"),
    );
}

#[test]
fn parity_of_aesthetic() {
    let fixture = Fixture::read("aesthetic");
    let scorer = Aesthetic::open("aesthetic", &folder("aesthetic"), &folder("clip_l"), &Device::flex());
    let mut scorer = scorer.expect("the head and its CLIP model");
    let features = fixture.rows("image_features_normalized");
    let scores: Vec<f32> = features
        .iter()
        .map(|feature| scorer.score_feature(feature) as f32)
        .collect();
    let expected = fixture.rows("scores").concat();
    assert_close("aesthetic head", &scores, &expected, 1e-5);

    scorer.prepare(&["never looked at".to_owned()]).expect("prepared");
    let pictures = fixture.pictures();
    let scores = scorer.score(&pictures, &vec![0; pictures.len()]).expect("scores");
    let scores: Vec<f32> = scores.into_iter().map(|score| score as f32).collect();
    assert_close("aesthetic scores", &scores, &expected, 1e-4);
}

#[test]
fn parity_of_image_reward() {
    let fixture = Fixture::read("imagereward");
    let device = Device::flex();
    let dir = folder("imagereward");
    let config = ImageRewardConfig::read(&dir).expect("the sizes");
    let weights = Weights::open_file(&dir.join("ImageReward.pt"), &device).expect("the weights");
    let model = ImageRewardModel::load(&weights, &config).expect("the model");
    weights.finish().expect("nothing is left over");

    let pixels = fixture.rows("pixels");
    let side = config.vision.img_size;
    let data = TensorData::new(pixels.concat(), [pixels.len(), 3, side, side]);
    let tokens = model.vision.forward(Tensor::from_data(data, &device));
    let found: Vec<f32> = tokens.clone().into_data().try_to_vec().expect("features");
    assert_close("image_features", &found, &fixture.rows("image_features").concat(), 2e-5);

    // Every picture beside every caption.
    let ids = fixture.token_ids();
    let lengths: Vec<usize> = ids
        .iter()
        .map(|row| row.iter().filter(|id| **id != 0).count())
        .collect();
    let count = pixels.len();
    for picture in 0..count {
        let same = tokens.clone().narrow(0, picture, 1).repeat_dim(0, ids.len());
        let states = model.text.forward(&ids, &lengths, &same, &device);
        let found: Vec<f32> = states.into_data().try_to_vec().expect("features");
        assert_close("text_features", &found, fixture.rows("text_features")[picture], 2e-5);
    }
    let mut scorer = ImageReward::open("image-reward", &dir, None, &device).expect("the scorer");
    check_scores("imagereward", &mut scorer, 2e-4);

    // The matrix of scores, pair by pair in one call.
    let pictures = fixture.pictures();
    let captions = ids.len();
    let pairs: Vec<(usize, usize)> = (0..count).flat_map(|i| (0..captions).map(move |j| (i, j))).collect();
    let all: Vec<Picture> = pairs.iter().map(|(picture, _)| pictures[*picture].clone()).collect();
    let prompts: Vec<usize> = pairs.iter().map(|(_, caption)| *caption).collect();
    let scores = scorer.score(&all, &prompts).expect("scores");
    let scores: Vec<f32> = scores.into_iter().map(|score| score as f32).collect();
    assert_close("score_matrix", &scores, &fixture.rows("score_matrix").concat(), 2e-4);
}

/// A tree's 27 leaves in one call, and the same one by one, in sevens, and in another order.
#[test]
fn scores_do_not_depend_on_the_batch() {
    let fixture = Fixture::read("hps");
    let device = Device::flex();
    let pictures: Vec<Picture> = fixture.pictures().into_iter().cycle().take(27).collect();
    let captions = fixture.captions();
    let prompts: Vec<usize> = (0..27).map(|leaf| leaf % captions.len()).collect();
    let hps = || {
        ClipSource::find_hps("hps", &folder("hps"), None, &device)
            .and_then(ClipSource::load)
            .expect("hps")
    };
    let aesthetic = || Aesthetic::open("a", &folder("aesthetic"), &folder("clip_l"), &device).expect("aesthetic");
    let image_reward = || ImageReward::open("i", &folder("imagereward"), None, &device).expect("image-reward");
    let open = |rows: usize| -> [Box<dyn Scorer>; 3] {
        [
            Box::new(ClipScore::new(hps().with_micro_batch(rows), CosineScale::One)),
            Box::new(aesthetic().with_micro_batch(rows)),
            Box::new(image_reward().with_micro_batch(rows)),
        ]
    };
    let together = open(27).map(|mut scorer| {
        scorer.prepare(&captions).expect("prepared");
        scorer.score(&pictures, &prompts).expect("scores")
    });
    for rows in [1, 7] {
        for (mut scorer, expected) in open(rows).into_iter().zip(&together) {
            scorer.prepare(&captions).expect("prepared");
            let scores = scorer.score(&pictures, &prompts).expect("scores");
            for (a, b) in scores.iter().zip(expected) {
                assert!(
                    (a - b).abs() <= 1e-6,
                    "{}: {a} and {b} in batches of {rows}",
                    scorer.name()
                );
            }
        }
    }
    for (mut scorer, expected) in open(27).into_iter().zip(&together) {
        scorer.prepare(&captions).expect("prepared");
        let turned: Vec<Picture> = pictures.iter().rev().cloned().collect();
        let numbers: Vec<usize> = prompts.iter().rev().copied().collect();
        let scores = scorer.score(&turned, &numbers).expect("scores");
        for (a, b) in scores.iter().rev().zip(expected) {
            assert!((a - b).abs() <= 1e-6, "{}: {a} and {b} in another order", scorer.name());
        }
    }
}

/// ImageReward reads 35 word pieces: what comes after them changes nothing, and is counted.
#[test]
fn image_reward_does_not_see_the_end_of_long_prompts() {
    let mut scorer = ImageReward::open("i", &folder("imagereward"), None, &Device::flex()).expect("the scorer");
    let start = "red ".repeat(33);
    let captions = [format!("{start}cat"), format!("{start}dog"), "dog".to_owned()];
    let report = scorer.prepare(&captions).expect("prepared");
    let cut: Vec<usize> = report.truncated.iter().map(|text| text.index).collect();
    assert_eq!((report.limit, cut), (Some(35), vec![0, 1]));
    let picture = Fixture::read("imagereward").pictures().remove(0);
    let scores = scorer.score(&vec![picture; 3], &[0, 1, 2]).expect("scores");
    assert_eq!(scores[0], scores[1]);
    assert_ne!(scores[0], scores[2]);
}
