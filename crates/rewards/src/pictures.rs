//! Picture files of any kind to the 8-bit RGB that rewards see.

use std::path::Path;

use image::{DynamicImage, ImageBuffer, ImageReader, Pixel, RgbImage};

use crate::error::RewardError;

/// Opens a PNG or JPEG file. What it holds decides, not its ending.
///
/// # Errors
///
/// The file is missing, is no picture, or is cut off.
pub fn open(path: &Path) -> Result<RgbImage, RewardError> {
    let error = |source| RewardError::Open {
        path: path.to_owned(),
        source,
    };
    let reader = ImageReader::open(path).and_then(ImageReader::with_guessed_format);
    let picture = reader
        .map_err(image::ImageError::from)
        .and_then(ImageReader::decode)
        .map_err(error)?;
    Ok(to_rgb(&picture))
}

/// A decoded picture to 8-bit RGB as Pillow converts it, because the reward models' own programs do.
///
/// Transparency is dropped, not blended: a transparent pixel shows the colour that is stored under it. Grey becomes
/// three equal channels. 16-bit colour keeps its upper byte. 16-bit grey without transparency is clamped at 255, not
/// scaled, so that nearly all such pictures come out white; it is Pillow's behaviour, and scale such pictures to 8 bits
/// beforehand to avoid it.
#[must_use]
pub fn to_rgb(picture: &DynamicImage) -> RgbImage {
    match picture {
        DynamicImage::ImageLuma16(grey) => convert(grey, |level| level.min(255) as u8),
        DynamicImage::ImageLumaA16(grey) => convert(grey, upper_byte),
        DynamicImage::ImageRgb16(colour) => convert(colour, upper_byte),
        DynamicImage::ImageRgba16(colour) => convert(colour, upper_byte),
        other => other.to_rgb8(),
    }
}

fn upper_byte(level: u16) -> u8 {
    (level >> 8) as u8
}

/// Every pixel's first three channels, or its grey three times.
fn convert<P: Pixel<Subpixel = u16>>(
    picture: &ImageBuffer<P, Vec<u16>>,
    narrow: impl Fn(u16) -> u8 + Copy,
) -> RgbImage {
    RgbImage::from_fn(picture.width(), picture.height(), |x, y| {
        let [red, green, blue] = picture.get_pixel(x, y).to_rgb().0;
        image::Rgb([red, green, blue].map(narrow))
    })
}
