//! Picture files of any kind to the 8-bit RGB that rewards see.

use std::io::Cursor;
use std::path::Path;

use image::error::DecodingError;
use image::{DynamicImage, ImageBuffer, ImageError, ImageFormat, ImageReader, Luma, Rgb, RgbImage, Rgba, RgbaImage};

use crate::error::RewardError;

/// What becomes of transparent pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transparency {
    /// They lie on white, as today's Hugging Face image processors do it.
    OverWhite,
    /// Their stored colour shows, as Pillow's plain conversion does it.
    Dropped,
}

/// Opens a PNG or JPEG file; transparent pixels lie on white. What the file holds decides, not its ending.
///
/// # Errors
///
/// The file is missing, is no picture, or is cut off.
pub fn open(path: &Path) -> Result<RgbImage, RewardError> {
    let error = |source| RewardError::Open {
        path: path.to_owned(),
        source,
    };
    let bytes = std::fs::read(path).map_err(image::ImageError::from).map_err(error)?;
    if is_cut_jpeg(&bytes) {
        // The decoder fills what is missing with grey, and a score of that would be a made-up one.
        let why = DecodingError::new(ImageFormat::Jpeg.into(), "the file is cut off before its end");
        return Err(error(ImageError::Decoding(why)));
    }
    let reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format();
    let picture = reader
        .map_err(image::ImageError::from)
        .and_then(ImageReader::decode)
        .map_err(error)?;
    Ok(to_rgb(&picture, Transparency::OverWhite))
}

/// Whether a JPEG file has no end marker after its last scan. In the scan's data the byte 0xFF is always followed by 0,
/// so the marker cannot occur there by chance; whatever follows the marker is ignored, as every reader does.
fn is_cut_jpeg(bytes: &[u8]) -> bool {
    if !bytes.starts_with(&[0xFF, 0xD8]) {
        return false;
    }
    let last_scan = bytes.windows(2).rposition(|pair| pair == [0xFF, 0xDA]);
    last_scan.is_none_or(|scan| !bytes[scan..].windows(2).any(|pair| pair == [0xFF, 0xD9]))
}

/// A decoded picture to 8-bit RGB as Pillow converts it, because the reward models' own programs do.
///
/// Grey becomes three equal channels. 16-bit colour keeps its upper byte. 16-bit grey without transparency is clamped
/// at 255, not scaled, so that nearly all such pictures come out white; it is Pillow's behaviour, and scaling such
/// pictures to 8 bits beforehand avoids it.
#[must_use]
pub fn to_rgb(picture: &DynamicImage, transparency: Transparency) -> RgbImage {
    let narrow = match picture {
        DynamicImage::ImageLuma16(grey) => return clamp_grey(grey),
        DynamicImage::ImageLumaA16(_) | DynamicImage::ImageRgb16(_) | DynamicImage::ImageRgba16(_) => {
            upper_bytes(&picture.to_rgba16())
        }
        other if other.color().has_alpha() => other.to_rgba8(),
        other => return other.to_rgb8(),
    };
    RgbImage::from_fn(narrow.width(), narrow.height(), |x, y| {
        let [red, green, blue, alpha] = narrow.get_pixel(x, y).0;
        Rgb(match transparency {
            Transparency::OverWhite => [red, green, blue].map(|level| over_white(level, alpha)),
            Transparency::Dropped => [red, green, blue],
        })
    })
}

fn clamp_grey(picture: &ImageBuffer<Luma<u16>, Vec<u16>>) -> RgbImage {
    RgbImage::from_fn(picture.width(), picture.height(), |x, y| {
        Rgb([picture.get_pixel(x, y).0[0].min(255) as u8; 3])
    })
}

fn upper_bytes(picture: &ImageBuffer<Rgba<u16>, Vec<u16>>) -> RgbaImage {
    RgbaImage::from_fn(picture.width(), picture.height(), |x, y| {
        Rgba(picture.get_pixel(x, y).0.map(|level| (level >> 8) as u8))
    })
}

/// `(α·level + (255 − α)·255) / 255`, rounded to the nearest.
fn over_white(level: u8, alpha: u8) -> u8 {
    let (level, alpha) = (u32::from(level), u32::from(alpha));
    ((alpha * level + (255 - alpha) * 255 + 127) / 255) as u8
}
