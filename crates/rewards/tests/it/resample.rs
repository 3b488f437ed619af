//! Resizing and cropping against Pillow, bit for bit.

use image::{Rgb, RgbImage};
use proptest::prelude::*;
use rewards::preprocess::ClipPreprocessor;

/// A preprocessor for squares of this side.
fn preprocessor(side: u32) -> ClipPreprocessor {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("preprocessor_config.json");
    std::fs::write(&path, format!(r#"{{"size": {side}, "crop_size": {side}}}"#)).expect("written");
    ClipPreprocessor::read(&path).expect("the settings")
}

/// The picture that Pillow 13.0.0 was given.
fn pattern(width: u32, height: u32) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| {
        Rgb([0, 1, 2].map(|c| ((x * 37 + y * 91 + c * 53 + x * y * 7) % 256) as u8))
    })
}

/// FNV-1a, to compare pictures that are too large to write down.
fn hash(picture: &RgbImage) -> u64 {
    picture.as_raw().iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[test]
fn parity_of_a_small_picture_with_pillow() {
    let expected = [
        107, 129, 141, 124, 137, 146, 123, 121, 136, 123, 142, 124, 144, 136, 126, 140, 138, 119, 115, 136, 135, 121,
        122, 120, 152, 124, 132,
    ];
    assert_eq!(preprocessor(3).cut(&pattern(8, 8)).as_raw(), &expected);
}

/// A checkerboard of single pixels is the hardest case for a filter: without antialiasing it would stay black and white.
#[test]
fn parity_of_a_checkerboard_with_pillow() {
    let board = RgbImage::from_fn(512, 512, |x, y| Rgb([((x + y) % 2 * 255) as u8; 3]));
    let small = preprocessor(224).cut(&board);
    assert!(small.as_raw().iter().all(|level| (125..=130).contains(level)));
    assert_eq!(hash(&small), 0xbcf3_1cc9_7141_b905);
}

#[test]
fn parity_of_many_sizes_with_pillow() {
    let expected = [
        (512, 512, 224, 0x0636_4188_3c69_2725),
        (5, 7, 32, 0x971c_bcd1_02bc_8098),
        (1, 1, 4, 0x1bb7_fbe0_31fa_8135),
        (4000, 30, 28, 0xd252_d98e_0621_51f3),
        (30, 4000, 28, 0xa011_e032_abf0_eec1),
        (97, 48, 28, 0x3569_31af_1b66_0b61),
        (333, 77, 224, 0x1302_4954_bdda_5a71),
        (224, 224, 224, 0x9706_975b_7691_bc65),
        (300, 224, 224, 0x4036_1c22_1a47_f525),
        (2, 2, 7, 0x6a51_b881_9e45_9c91),
    ];
    for (width, height, side, sum) in expected {
        assert_eq!(
            hash(&preprocessor(side).cut(&pattern(width, height))),
            sum,
            "{width} x {height} to {side}"
        );
    }
}

#[test]
fn a_picture_of_the_right_size_is_not_touched() {
    let picture = pattern(64, 64);
    assert_eq!(preprocessor(64).cut(&picture), picture);
}

proptest! {
    #[test]
    fn a_flat_picture_stays_flat(level: [u8; 3], width in 1u32..80, height in 1u32..80, side in 1u32..50) {
        let flat = preprocessor(side).cut(&RgbImage::from_pixel(width, height, Rgb(level)));
        prop_assert_eq!(flat, RgbImage::from_pixel(side, side, Rgb(level)));
    }
}
