//! What holds for every CLIP reward, tried on the shipped one.

use std::time::Instant;

use burn::tensor::Device;
use image::{Rgb, RgbImage};
use rewards::clip_score::{ClipScore, CosineScale};
use rewards::{Picture, RewardError, Scorer};

use crate::fixture::{Fixture, emoji, folder};

/// The shipped scorer with some captions prepared.
fn scorer(captions: &[&str]) -> ClipScore {
    let mut scorer =
        ClipScore::open("clip-emoji", &emoji().join("scorer"), CosineScale::One, &Device::flex()).expect("the scorer");
    let captions: Vec<String> = captions.iter().map(|caption| (*caption).to_owned()).collect();
    scorer.prepare(&captions).expect("the captions");
    scorer
}

fn pattern(width: u32, height: u32, seed: u32) -> Picture {
    let pixel = |x: u32, y: u32| Rgb([0, 1, 2].map(|c| ((x * 37 + y * 91 + c * 53 + x * y * (7 + seed)) % 256) as u8));
    RgbImage::from_fn(width, height, pixel).into()
}

#[test]
fn a_score_does_not_depend_on_the_batch() {
    let pictures: Vec<Picture> = (0..70).map(|seed| pattern(64, 64, seed)).collect();
    let prompts: Vec<usize> = (0..70).map(|sample| sample % 3).collect();
    let captions = [
        "flat icon of a cat",
        "glossy 3d render of a red apple",
        "retro emoji of rain",
    ];
    let together = scorer(&captions).score(&pictures, &prompts).expect("scores");
    for rows in [1, 7, 1000] {
        let other = scorer(&captions)
            .with_micro_batch(rows)
            .score(&pictures, &prompts)
            .expect("scores");
        for (a, b) in together.iter().zip(&other) {
            assert!((a - b).abs() <= 1e-6, "{a} and {b} with {rows} rows a batch");
        }
    }
    let scorer = scorer(&captions);
    for sample in [0, 31, 32, 69] {
        let alone = scorer
            .score(&pictures[sample..=sample], &prompts[sample..=sample])
            .expect("a score");
        assert!((alone[0] - together[sample]).abs() <= 1e-6);
    }
    assert!(scorer.score(&[], &[]).expect("no scores").is_empty());
}

#[test]
fn odd_pictures_are_scored() {
    let scorer = scorer(&["flat icon of a cat"]);
    for (width, height) in [(1, 1), (1, 300), (4000, 30), (30, 4000), (63, 64), (64, 64), (129, 128)] {
        let score = scorer.score(&[pattern(width, height, 1)], &[0]).expect("a score");
        assert!((-1.0..=1.0).contains(&score[0]), "{width} x {height}: {}", score[0]);
    }
    let error = scorer
        .score(&[pattern(4, 4, 0), RgbImage::new(0, 5).into()], &[0, 0])
        .expect_err("no pixels");
    assert!(
        matches!(
            error,
            RewardError::Picture {
                sample: 1,
                prompt: 0,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("clip-emoji"), "{error}");
}

#[test]
fn odd_captions_are_scored_and_long_ones_counted() {
    let long = "x ".repeat(80);
    let digits = "7".repeat(60);
    let fox = "🦊".repeat(500);
    let captions = [
        "",
        " ",
        "🦊☕",
        "a\u{0}b\u{7}\u{1b}[31m",
        "<|endoftext|> a cat",
        &long,
        &digits,
        &fox,
        "a cat",
    ];
    let captions: Vec<String> = captions.iter().map(|caption| (*caption).to_owned()).collect();
    let mut scorer =
        ClipScore::open("clip-emoji", &emoji().join("scorer"), CosineScale::One, &Device::flex()).expect("the scorer");
    let report = scorer.prepare(&captions).expect("the captions");
    let cut: Vec<usize> = report.truncated.iter().map(|text| text.index).collect();
    assert!([5, 6, 7].iter().all(|long| cut.contains(long)), "{cut:?}");
    assert!([0, 1, 8].iter().all(|short| !cut.contains(short)), "{cut:?}");
    assert!(
        report.to_string().contains("clip-emoji: does not see the end of"),
        "{report}"
    );

    let pictures = vec![pattern(64, 64, 0); captions.len()];
    let prompts: Vec<usize> = (0..captions.len()).collect();
    let scores = scorer.score(&pictures, &prompts).expect("scores");
    assert!(scores.iter().all(|score| score.is_finite()));
    assert_eq!(scores[0], scores[1], "blank captions are one caption");
}

#[test]
fn what_lies_behind_the_limit_changes_nothing() {
    let start = "red ".repeat(30);
    let scorer = scorer(&[&format!("{start} cat"), &format!("{start} dog"), "dog"]);
    let pictures = vec![pattern(64, 64, 3); 3];
    let scores = scorer.score(&pictures, &[0, 1, 2]).expect("scores");
    assert_eq!(scores[0], scores[1]);
    assert_ne!(scores[0], scores[2]);
}

#[test]
fn calls_that_do_not_pair_up_are_refused() {
    let scorer = scorer(&["a cat", "a dog"]);
    let picture = pattern(64, 64, 0);
    let error = scorer
        .score(std::slice::from_ref(&picture), &[0, 1])
        .expect_err("two prompts for one picture");
    assert!(
        matches!(
            error,
            RewardError::Lengths {
                pictures: 1,
                prompts: 2,
                ..
            }
        ),
        "{error}"
    );
    let error = scorer
        .score(&[picture.clone(), picture], &[0, 2])
        .expect_err("two prompts only");
    assert!(
        matches!(
            error,
            RewardError::UnknownPrompt {
                sample: 1,
                prompt: 2,
                prepared: 2,
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn preparing_again_replaces_the_prompts() {
    let mut scorer = scorer(&["a cat", "a dog"]);
    scorer.prepare(&["a tree".to_owned()]).expect("a caption");
    let picture = [pattern(64, 64, 0)];
    assert!(scorer.score(&picture, &[0]).is_ok());
    assert!(scorer.score(&picture, &[1]).is_err());
}

#[test]
fn both_shipped_scorers_differ_and_open() {
    let captions = ["flat icon of a red apple".to_owned()];
    let picture = [pattern(64, 64, 5)];
    let scores = ["scorer", "scorer_heldout"].map(|name| {
        let mut scorer =
            ClipScore::open(name, &emoji().join(name), CosineScale::One, &Device::flex()).expect("the scorer");
        scorer.prepare(&captions).expect("the caption");
        assert!(scorer.description().contains("64 pixels"), "{}", scorer.description());
        scorer.score(&picture, &[0]).expect("a score")[0]
    });
    assert_ne!(scores[0], scores[1]);
}

/// Activations by the checkpoint's configuration: with the other GELU the features are visibly different.
#[test]
fn the_activation_comes_from_the_configuration() {
    let dir = crate::fixture::copy(&folder("clip_l"));
    let fixture = Fixture::read("clip_l");
    let path = dir.path().join("config.json");
    let text = std::fs::read_to_string(&path).expect("the configuration");
    let swapped = if text.contains("\"quick_gelu\"") {
        text.replace("\"quick_gelu\"", "\"gelu\"")
    } else {
        text.replace("\"gelu\"", "\"quick_gelu\"")
    };
    std::fs::write(&path, swapped).expect("written");
    let features = rewards::clip::ClipFeatures::open("x", dir.path(), &Device::flex()).expect("the model");
    let found = features.pictures(&fixture.pictures()).expect("features").concat();
    let expected = fixture.rows("image_features").concat();
    let largest = found
        .iter()
        .zip(&expected)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    assert!(largest > 1e-3, "{largest}");
}

/// Not a check: prints how long a tree's leaves take, for `--nocapture`.
#[test]
fn time_of_a_trees_leaves() {
    let scorer = scorer(&["flat icon of a cat"]);
    for count in [27, 108] {
        let pictures: Vec<Picture> = (0..count).map(|seed| pattern(64, 64, seed)).collect();
        let prompts = vec![0; pictures.len()];
        let start = Instant::now();
        let scores = scorer.score(&pictures, &prompts).expect("scores");
        println!("{} pictures of 64 x 64: {:?}", scores.len(), start.elapsed());
    }
}
