//! Picture files to RGB as Pillow converts them.

use image::{DynamicImage, GrayImage, ImageBuffer, Luma, LumaA, Rgb, RgbImage, Rgba, RgbaImage};
use rewards::pictures::{Transparency, narrow, open};

/// Levels around the places where the conversions differ.
const LEVELS: [u16; 8] = [0, 127, 128, 255, 256, 0x0180, 0x7fff, 0xffff];
const UPPER_BYTES: [u8; 8] = [0, 0, 0, 0, 1, 1, 127, 255];

/// Writes a picture of one row as PNG, opens it and compares its levels, which all channels must have.
#[track_caller]
fn check(picture: DynamicImage, expected: &[u8]) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("picture.png");
    picture.save(&path).expect("saved");
    let found = open(&path).expect("opened");
    let pixels: Vec<[u8; 3]> = found
        .rgb(Transparency::OverWhite)
        .pixels()
        .map(|pixel| pixel.0)
        .collect();
    let grey: Vec<[u8; 3]> = expected.iter().map(|level| [*level; 3]).collect();
    assert_eq!(pixels, grey);
}

#[test]
fn sixteen_bits_become_eight_as_in_pillow() {
    let width = LEVELS.len() as u32;
    let grey = ImageBuffer::from_fn(width, 1, |x, _| Luma([LEVELS[x as usize]]));
    check(DynamicImage::ImageLuma16(grey), &[0, 127, 128, 255, 255, 255, 255, 255]);
    let grey = ImageBuffer::from_fn(width, 1, |x, _| LumaA([LEVELS[x as usize], 0xffff]));
    check(DynamicImage::ImageLumaA16(grey), &UPPER_BYTES);
    let colour = ImageBuffer::from_fn(width, 1, |x, _| Rgb([LEVELS[x as usize]; 3]));
    check(DynamicImage::ImageRgb16(colour), &UPPER_BYTES);
    let colour = ImageBuffer::from_fn(width, 1, |x, _| {
        let level = LEVELS[x as usize];
        Rgba([level, level, level, 0xffff])
    });
    check(DynamicImage::ImageRgba16(colour), &UPPER_BYTES);
}

#[test]
fn grey_is_repeated_and_transparency_follows_the_wish() {
    check(
        DynamicImage::ImageLuma8(GrayImage::from_fn(3, 1, |x, _| Luma([x as u8 * 100]))),
        &[0, 100, 200],
    );
    // 0.2·10 + 0.8·255 = 206, 0.2·20 + 204 = 208, 0.2·30 + 204 = 210.
    let faint = DynamicImage::ImageRgba8(RgbaImage::from_pixel(2, 1, Rgba([10, 20, 30, 51])));
    let flat = |levels| RgbImage::from_pixel(2, 1, Rgb(levels));
    assert_eq!(*narrow(&faint).rgb(Transparency::OverWhite), flat([206, 208, 210]));
    assert_eq!(*narrow(&faint).rgb(Transparency::Dropped), flat([10, 20, 30]));
}

#[test]
fn what_is_no_picture_is_named() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("page.png");
    assert!(open(&path).expect_err("absent").to_string().contains("page.png"));
    std::fs::write(&path, "<!doctype html>").expect("written");
    assert!(open(&path).expect_err("no picture").to_string().contains("page.png"));
    RgbImage::new(40, 40).save(&path).expect("saved");
    let whole = std::fs::read(&path).expect("read");
    std::fs::write(&path, &whole[..whole.len() / 2]).expect("written");
    assert!(open(&path).expect_err("cut off").to_string().contains("page.png"));
}

/// A JPEG that ends before its end marker is refused, not filled with grey; data after the marker does no harm.
#[test]
fn a_cut_jpeg_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("picture.jpg");
    let noisy = RgbImage::from_fn(64, 64, |x, y| {
        image::Rgb([(x * 37 % 251) as u8, (y * 91 % 241) as u8, (x * y) as u8])
    });
    noisy.save(&path).expect("saved");
    let whole = std::fs::read(&path).expect("read");
    open(&path).expect("a whole file");
    std::fs::write(&path, [&whole[..], b"trailing data"].concat()).expect("written");
    open(&path).expect("data after the end");
    for length in [whole.len() / 2, whole.len() - 2] {
        std::fs::write(&path, &whole[..length]).expect("written");
        let message = open(&path).expect_err("cut off").to_string();
        assert!(
            message.contains("picture.jpg") && message.contains("cut off"),
            "{message}"
        );
    }
}
