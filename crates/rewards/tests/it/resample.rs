//! Resizing and cropping against Pillow, bit for bit.

use image::{ImageBuffer, Luma, Rgb, RgbImage, Rgba, RgbaImage};
use proptest::prelude::*;
use rewards::Picture;
use rewards::preprocess::Preprocessor;

/// A preprocessor from settings in a file.
fn read(settings: &str, read: impl Fn(&std::path::Path) -> Preprocessor) -> Preprocessor {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("settings.json");
    std::fs::write(&path, settings).expect("written");
    read(&path)
}

/// Squares of this side, cut out of the middle, with levels 0 … 255 as they are.
fn crop(side: u32) -> Preprocessor {
    let settings = format!(r#"{{"size": {side}, "crop_size": {side}, "do_rescale": false, "do_normalize": false}}"#);
    read(&settings, |path| {
        Preprocessor::hugging_face(path).expect("the settings")
    })
}

/// Squares of this side from pictures that Pillow sees in their file's mode, with levels as 0 … 1.
fn in_mode(resize_mode: &str, side: u32) -> Preprocessor {
    let settings = format!(
        r#"{{"model_cfg": {{"vision_cfg": {{"image_size": {side}}}}},
             "preprocess_cfg": {{"mean": 0, "std": 1, "resize_mode": "{resize_mode}"}}}}"#
    );
    read(&settings, |path| Preprocessor::open_clip(path).expect("the settings"))
}

/// The levels of a preprocessed picture, red, green and blue of each pixel together.
fn levels(preprocessor: &Preprocessor, picture: impl Into<Picture>, scale: f32) -> Vec<u8> {
    let pixels = preprocessor.pixels(&picture.into());
    let plane = pixels.len() / 3;
    let level = |index: usize| {
        let level = pixels[index % 3 * plane + index / 3] * scale;
        assert!((level - level.round()).abs() < 1e-3, "{level} is no level");
        level.round() as u8
    };
    (0..pixels.len()).map(level).collect()
}

fn cropped(side: u32, picture: impl Into<Picture>) -> Vec<u8> {
    levels(&crop(side), picture, 1.0)
}

fn squashed(side: u32, picture: impl Into<Picture>) -> Vec<u8> {
    levels(&in_mode("squash", side), picture, 255.0)
}

fn cropped_in_mode(side: u32, picture: impl Into<Picture>) -> Vec<u8> {
    levels(&in_mode("shortest", side), picture, 255.0)
}

/// One channel of the picture that Pillow 13.0.0 was given; alpha is the channel after blue.
fn level(x: u32, y: u32, channel: u32) -> u8 {
    ((x * 37 + y * 91 + channel * 53 + x * y * 7) % 256) as u8
}

fn pattern(width: u32, height: u32) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| Rgb([0, 1, 2].map(|c| level(x, y, c))))
}

fn pattern_with_alpha(width: u32, height: u32) -> RgbaImage {
    RgbaImage::from_fn(width, height, |x, y| Rgba([0, 1, 2, 3].map(|c| level(x, y, c))))
}

/// FNV-1a, to compare pictures that are too large to write down.
fn hash(levels: &[u8]) -> u64 {
    levels.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Squashed, then cropped with its proportions kept: hashes of both.
#[track_caller]
fn check_in_mode(picture: impl Into<Picture>, side: u32, squash: u64, shortest: u64) {
    let picture = picture.into();
    let what = format!("{:?} to {side}", picture.dimensions());
    assert_eq!(hash(&squashed(side, picture.clone())), squash, "{what}, squashed");
    assert_eq!(hash(&cropped_in_mode(side, picture)), shortest, "{what}, cropped");
}

#[test]
fn parity_of_a_small_picture_with_pillow() {
    let expected = [
        107, 129, 141, 124, 137, 146, 123, 121, 136, 123, 142, 124, 144, 136, 126, 140, 138, 119, 115, 136, 135, 121,
        122, 120, 152, 124, 132,
    ];
    assert_eq!(cropped(3, pattern(8, 8)), expected);
}

/// A checkerboard of single pixels is the hardest case for a filter: without antialiasing it would stay black and white.
#[test]
fn parity_of_a_checkerboard_with_pillow() {
    let board = RgbImage::from_fn(512, 512, |x, y| Rgb([((x + y) % 2 * 255) as u8; 3]));
    let small = cropped(224, board);
    assert!(small.iter().all(|level| (125..=130).contains(level)));
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
        let found = hash(&cropped(side, pattern(width, height)));
        assert_eq!(found, sum, "{width} x {height} to {side}");
    }
}

/// Pillow multiplies colours by alpha, resizes, and divides again, each with its own rounding. The picture of 64 × 64
/// keeps its size, and so its colours.
#[test]
fn parity_with_alpha() {
    let expected = [
        (512, 512, 224, 0xc7e9_4067_aab3_bda3, 0xc7e9_4067_aab3_bda3),
        (5, 7, 32, 0xd195_ae28_6838_22cd, 0x8699_afb1_07d4_f4fb),
        (64, 64, 64, 0xbdb7_0cca_1271_86a5, 0xbdb7_0cca_1271_86a5),
        (400, 30, 28, 0x836f_4823_545b_a2a0, 0x8b7e_883b_dfc4_4b51),
        (30, 400, 28, 0xeae9_6079_773f_a87b, 0xc180_8304_988c_bc52),
        (97, 48, 28, 0xb24e_bed5_2756_088e, 0x8ae3_f30d_ba48_c9d5),
        (333, 77, 224, 0xf64e_6d4d_946e_dea9, 0x7c05_5c1b_ce26_b342),
    ];
    for (width, height, side, squash, shortest) in expected {
        check_in_mode(pattern_with_alpha(width, height), side, squash, shortest);
    }
}

#[test]
fn parity_of_sixteen_bit_grey() {
    let expected = [
        (64, 48, 28, 0xaf62_fe29_e88c_94a5, 0xd686_b22f_e170_a5a6),
        (48, 64, 28, 0x2f6b_5965_fa3c_efa4, 0xe613_848f_84dd_0069),
        (9, 5, 32, 0x7023_d109_91da_f9a6, 0xa631_fc7e_8b0c_e153),
    ];
    for (width, height, side, squash, shortest) in expected {
        let shade = |x, y| Luma([((x * 37 + y * 91 + x * y * 7) % 400) as u16]);
        let picture = Picture::Deep(ImageBuffer::from_fn(width, height, shade));
        check_in_mode(picture, side, squash, shortest);
    }
}

#[test]
fn parity_of_colours_from_a_table() {
    let expected = [
        (64, 48, 28, 0xfe16_ae1f_0ec1_10a5, 0x42ae_4eda_6239_5315),
        (48, 64, 28, 0x04d0_41a0_d2f8_e125, 0x5b95_f65e_a7a5_5fe5),
        (9, 5, 32, 0x27e5_624c_1797_9bad, 0xc7af_9971_6e77_e9c3),
        (400, 30, 28, 0x2f28_e2d3_b9eb_db01, 0xd948_6092_1c1f_85cd),
    ];
    for (width, height, side, squash, shortest) in expected {
        let mut colours = pattern_with_alpha(width, height);
        // What is transparent has its colour all the same.
        colours.pixels_mut().for_each(|pixel| pixel.0[3] = 0);
        check_in_mode(Picture::Indexed(colours), side, squash, shortest);
    }
}

/// 200·128/255 = 100.4 becomes 100, and 255·100/128 = 199.2 becomes 199; so 100 → 50 → 99 and 50 → 25 → 49. A picture
/// that keeps its size is not multiplied at all, and one that is made colour first is not either.
#[test]
fn colours_are_multiplied_by_alpha_only_for_resizing() {
    let faint = RgbaImage::from_pixel(1, 1, Rgba([200, 100, 50, 128]));
    assert_eq!(squashed(2, faint.clone()), [199, 99, 49].repeat(4));
    assert_eq!(squashed(1, faint.clone()), [200, 100, 50]);
    assert_eq!(squashed(2, Picture::Masked(faint.clone())), [200, 100, 50].repeat(4));
    // 0.502·200 + 0.498·255 = 227.4, and likewise 177.2 and 152.1.
    assert_eq!(cropped(2, faint), [227, 177, 152].repeat(4));
}

/// Four columns become two: the centres 1 and 3 lie in columns 1 and 3. Three become five: 0.3, 0.9, 1.5, 2.1, 2.7.
#[test]
fn colours_from_a_table_are_picked() {
    let columns = |width| RgbaImage::from_fn(width, 1, |x, _| Rgba([x as u8 * 50, 0, 0, 255]));
    let reds = |levels: Vec<u8>| -> Vec<u8> { levels.into_iter().step_by(3).collect() };
    assert_eq!(reds(squashed(2, Picture::Indexed(columns(4)))), [50, 150, 50, 150]);
    assert_eq!(
        reds(squashed(5, Picture::Indexed(columns(3)))),
        [0, 0, 50, 100, 100].repeat(5)
    );
}

/// The two programs crop 29 columns to 28 alike, at 0 (half of 1 is 0.5), and 31 columns not: at 1 and at 2 (1.5).
#[test]
fn the_middle_depends_on_the_program() {
    for (width, down, even) in [(29, 0, 0), (31, 1, 2)] {
        let picture = pattern(width, 28);
        let part = |left: u32| {
            image::imageops::crop_imm(&picture, left, 0, 28, 28)
                .to_image()
                .into_raw()
        };
        assert_eq!(cropped(28, picture.clone()), part(down), "{width}, rounded down");
        assert_eq!(
            cropped_in_mode(28, picture.clone()),
            part(even),
            "{width}, rounded to even"
        );
    }
}

#[test]
fn a_picture_of_the_right_size_is_not_touched() {
    let picture = pattern(64, 64);
    assert_eq!(&cropped(64, picture.clone()), picture.as_raw());
    assert_eq!(&squashed(64, picture.clone()), picture.as_raw());
}

proptest! {
    /// Alpha of 255 throughout is no alpha.
    #[test]
    fn opaque_alpha_changes_nothing(width in 1u32..50, height in 1u32..50, side in 1u32..40) {
        let mut picture = pattern_with_alpha(width, height);
        picture.pixels_mut().for_each(|pixel| pixel.0[3] = 255);
        prop_assert_eq!(squashed(side, picture.clone()), squashed(side, pattern(width, height)));
        prop_assert_eq!(cropped(side, picture), cropped(side, pattern(width, height)));
    }
}
