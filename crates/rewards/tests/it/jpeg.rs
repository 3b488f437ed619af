//! JPEG sizes against Pillow's.

use image::{Rgb, RgbImage};
use rewards::jpeg::{JpegGoal, JpegScore, jpeg_bytes};
use rewards::pictures::{Transparency, narrow};
use rewards::pixel::{PixelScore, PixelStatistic};
use rewards::{Picture, RewardError, Scorer};

use crate::fixture::folder;

/// The picture whose sizes Pillow 13.0.0 was asked for.
fn pattern(width: u32, height: u32) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| {
        Rgb([0, 1, 2].map(|c| ((x * 37 + y * 91 + c * 53 + x * y * 7) % 256) as u8))
    })
}

/// Sides inside one block, inside one coding unit, odd, even, whole.
#[test]
fn parity_of_sizes_with_pillow() {
    let expected = [
        (1, 1, 634),
        (17, 9, 886),
        (33, 24, 1642),
        (64, 64, 5137),
        (512, 512, 290_592),
        (513, 257, 148_772),
    ];
    for (width, height, bytes) in expected {
        assert_eq!(
            jpeg_bytes(&pattern(width, height)).expect("a size"),
            bytes,
            "{width} x {height}"
        );
    }
}

/// The project's own reference pictures; another set has other pictures, and no sizes are stored with it.
#[test]
fn parity_of_reference_pictures_with_pillow() {
    if std::env::var_os("PARITY_FIXTURES").is_some() {
        return;
    }
    let expected = [
        ("square", 3751),
        ("tall", 2578),
        ("wide", 4227),
        ("rgba", 2958),
        ("grey", 2615),
        ("tiny", 741),
    ];
    for (name, bytes) in expected {
        let picture = image::open(folder("images").join(format!("{name}.png"))).expect("a picture");
        // The sizes are those of Pillow's plain conversion, which drops transparency.
        let picture = narrow(&picture).rgb(Transparency::Dropped).into_owned();
        assert_eq!(jpeg_bytes(&picture).expect("a size"), bytes, "{name}");
    }
}

#[test]
fn both_goals_are_kilobytes_of_opposite_sign() {
    let pictures = [pattern(64, 64), RgbImage::new(64, 64)].map(Picture::from);
    let scores = [JpegGoal::Small, JpegGoal::Large].map(|goal| {
        let mut scorer = JpegScore::new("jpeg", goal);
        scorer.prepare(&["a".to_owned()]).expect("prepared");
        scorer.score(&pictures, &[0, 0]).expect("scores")
    });
    assert_eq!(scores[0][0], -5.137);
    assert_eq!(scores[1][0], 5.137);
    assert!(scores[0][1] > scores[0][0], "a black picture compresses better");
}

#[test]
fn pictures_that_no_file_holds_are_refused() {
    let mut scorer = JpegScore::new("jpeg", JpegGoal::Small);
    scorer.prepare(&["a".to_owned()]).expect("prepared");
    let error = scorer
        .score(
            &[RgbImage::new(2, 2), RgbImage::new(70_000, 1)].map(Picture::from),
            &[0, 0],
        )
        .expect_err("too wide");
    assert!(matches!(error, RewardError::Picture { sample: 1, .. }), "{error}");
    assert!(error.to_string().contains("70000 x 1"), "{error}");
}

#[test]
fn rewards_without_a_model_check_their_calls_too() {
    let scorer = PixelScore::new("bright", PixelStatistic::Brightness);
    let error = scorer
        .score(&[RgbImage::new(1, 1).into()], &[0])
        .expect_err("nothing was prepared");
    assert!(
        matches!(error, RewardError::UnknownPrompt { prepared: 0, .. }),
        "{error}"
    );
}
