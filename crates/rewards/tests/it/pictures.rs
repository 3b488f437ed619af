//! Picture files to RGB as Pillow converts them.

use image::{DynamicImage, GrayImage, ImageBuffer, Luma, LumaA, Rgb, RgbImage, Rgba, RgbaImage};
use rewards::Picture;
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

/// Writes a PNG file of one row with the crate's own encoder, which hides nothing, and opens it.
fn open_png(colour: png::ColorType, bits: png::BitDepth, table: &[u8], transparent: &[u8], row: &[u8]) -> Picture {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("picture.png");
    let mut encoder = png::Encoder::new(std::fs::File::create(&path).expect("a file"), 4, 1);
    encoder.set_color(colour);
    encoder.set_depth(bits);
    if !table.is_empty() {
        encoder.set_palette(table.to_vec());
    }
    if !transparent.is_empty() {
        encoder.set_trns(transparent.to_vec());
    }
    let mut writer = encoder.write_header().expect("a header");
    writer.write_image_data(row).expect("written");
    writer.finish().expect("finished");
    open(&path).expect("opened")
}

/// The four pixels with alpha.
fn row(pixels: [[u8; 4]; 4]) -> RgbaImage {
    RgbaImage::from_fn(4, 1, |x, _| Rgba(pixels[x as usize]))
}

/// Pillow resizes each kind in its own way, so what the decoder makes alike is kept apart.
#[test]
fn pictures_stay_of_the_kind_that_their_file_holds() {
    use png::{BitDepth, ColorType};
    let table = [10, 20, 30, 40, 50, 60];
    let [first, second] = [[10, 20, 30, 255], [40, 50, 60, 255]];
    // Indices 0, 1, 1, 0 in two bits each.
    let found = open_png(ColorType::Indexed, BitDepth::Two, &table, &[], &[0b0001_0100]);
    assert_eq!(found, Picture::Indexed(row([first, second, second, first])));
    let found = open_png(ColorType::Indexed, BitDepth::Eight, &table, &[77], &[0, 1, 1, 0]);
    let faint = [10, 20, 30, 77];
    assert_eq!(found, Picture::Indexed(row([faint, second, second, faint])));

    let grey = |level| [level, level, level, 255];
    let found = open_png(ColorType::Grayscale, BitDepth::One, &[], &[], &[0b0110_0000]);
    assert_eq!(found, Picture::Indexed(row([grey(0), grey(255), grey(255), grey(0)])));
    let found = open_png(ColorType::Grayscale, BitDepth::Eight, &[], &[0, 7], &[7, 8, 9, 7]);
    let seven = [7, 7, 7, 0];
    assert_eq!(found, Picture::Masked(row([seven, grey(8), grey(9), seven])));
    let colours = [1, 2, 3, 4, 5, 6, 1, 2, 3, 7, 8, 9];
    let found = open_png(ColorType::Rgb, BitDepth::Eight, &[], &[0, 1, 0, 2, 0, 3], &colours);
    let clear = [1, 2, 3, 0];
    assert_eq!(
        found,
        Picture::Masked(row([clear, [4, 5, 6, 255], clear, [7, 8, 9, 255]]))
    );

    let shades = [0, 7, 1, 0, 0, 8, 0, 7];
    let deep = ImageBuffer::from_fn(4, 1, |x, _| Luma([[7, 256, 8, 7][x as usize]]));
    for transparent in [&[][..], &[0, 7]] {
        let found = open_png(ColorType::Grayscale, BitDepth::Sixteen, &[], transparent, &shades);
        assert_eq!(found, Picture::Deep(deep.clone()));
    }
    let found = open_png(
        ColorType::GrayscaleAlpha,
        BitDepth::Eight,
        &[],
        &[],
        &[1, 2, 3, 4, 5, 6, 7, 255],
    );
    let expected = row([[1, 1, 1, 2], [3, 3, 3, 4], [5, 5, 5, 6], grey(7)]);
    assert_eq!(found, Picture::Transparent(expected));
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
