//! Pictures as rewards get them: of the kind that the file holds, until a reward makes colour without transparency of it.

use std::borrow::Cow;
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

/// One channel of 16 bits.
pub type DeepGrey = ImageBuffer<Luma<u16>, Vec<u16>>;

/// A picture that can be scored, as its file holds it.
///
/// Reward models differ in what they make of transparent pixels, and some resize a picture before they make red, green
/// and blue of it. Pillow, by which they do it, resizes each kind in its own way, so a picture stays of its kind until a
/// reward decides.
#[derive(Debug, Clone, PartialEq)]
pub enum Picture {
    /// Red, green and blue, as generators draw, or grey.
    Opaque(RgbImage),
    /// With alpha, which is 0 where nothing shows; colours are not multiplied by it.
    Transparent(RgbaImage),
    /// One of the colours is declared transparent: alpha is 0 there and 255 elsewhere. Resized as if it were opaque.
    Masked(RgbaImage),
    /// Colours from a table, or black and white of one bit. Such pixels are picked, not mixed, when they are resized.
    Indexed(RgbaImage),
    /// 16-bit grey, which is resized as such. If its file declares a shade transparent, that shows.
    Deep(DeepGrey),
}

impl Picture {
    /// Width and height in pixels.
    #[must_use]
    pub fn dimensions(&self) -> (u32, u32) {
        match self {
            Self::Opaque(picture) => picture.dimensions(),
            Self::Transparent(picture) | Self::Masked(picture) | Self::Indexed(picture) => picture.dimensions(),
            Self::Deep(picture) => picture.dimensions(),
        }
    }

    /// The picture as 8-bit colour without transparency.
    #[must_use]
    pub fn rgb(&self, transparency: Transparency) -> Cow<'_, RgbImage> {
        let picture = match self {
            Self::Opaque(picture) => return Cow::Borrowed(picture),
            Self::Deep(picture) => return Cow::Owned(clamp(picture)),
            Self::Transparent(picture) | Self::Masked(picture) | Self::Indexed(picture) => picture,
        };
        Cow::Owned(RgbImage::from_fn(picture.width(), picture.height(), |x, y| {
            let [red, green, blue, alpha] = picture.get_pixel(x, y).0;
            let over = |level| match transparency {
                Transparency::OverWhite => over_white(level, alpha),
                Transparency::Dropped => level,
            };
            Rgb([red, green, blue].map(over))
        }))
    }
}

impl From<RgbImage> for Picture {
    fn from(picture: RgbImage) -> Self {
        Self::Opaque(picture)
    }
}

impl From<RgbaImage> for Picture {
    fn from(picture: RgbaImage) -> Self {
        Self::Transparent(picture)
    }
}

/// Opens a PNG or JPEG file. What the file holds decides, not its ending.
///
/// # Errors
///
/// The file is missing, is no picture, or is cut off.
pub fn open(path: &Path) -> Result<Picture, RewardError> {
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
    let reader = ImageReader::new(Cursor::new(&bytes)).with_guessed_format();
    let picture = reader
        .map_err(image::ImageError::from)
        .and_then(ImageReader::decode)
        .map_err(error)?;
    Ok(match PngKind::read(&bytes) {
        Some(kind) => kind.picture(&picture),
        None => narrow(&picture),
    })
}

/// The kind of a PNG file's pixels. Decoding hides it: tables are looked up, and a transparent colour becomes alpha.
#[derive(Debug, Clone, Copy)]
struct PngKind {
    bits: u8,
    /// As the format numbers them: 0 grey, 2 colour, 3 table, 4 grey with alpha, 6 colour with alpha.
    colour: u8,
}

impl PngKind {
    /// From the first chunk of a whole file, which always is the header; `None` for other formats.
    fn read(bytes: &[u8]) -> Option<Self> {
        let [bits, colour] = *bytes.strip_prefix(b"\x89PNG\r\n\x1a\n")?.get(16..18)? else {
            return None;
        };
        Some(Self { bits, colour })
    }

    /// What was decoded, as the kind that the file holds.
    fn picture(self, picture: &DynamicImage) -> Picture {
        match (self.colour, self.bits) {
            (3, _) | (0, 1) => Picture::Indexed(picture.to_rgba8()),
            (0, 16) => Picture::Deep(picture.to_luma16()),
            _ => match narrow(picture) {
                Picture::Transparent(picture) if matches!(self.colour, 0 | 2) => Picture::Masked(picture),
                picture => picture,
            },
        }
    }
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

/// A decoded picture as Pillow holds it, because the reward models' own programs use it.
///
/// Grey becomes three equal channels, and 16-bit colour keeps its upper byte. 16-bit grey without transparency is clamped
/// at 255 when it becomes colour, not scaled, so that nearly all such pictures come out white; it is Pillow's behaviour,
/// and scaling such pictures to 8 bits beforehand avoids it.
#[must_use]
pub fn narrow(picture: &DynamicImage) -> Picture {
    match picture {
        DynamicImage::ImageLuma16(grey) => Picture::Deep(grey.clone()),
        DynamicImage::ImageRgb16(_) => drop_alpha(&upper_bytes(&picture.to_rgba16())).into(),
        DynamicImage::ImageLumaA16(_) | DynamicImage::ImageRgba16(_) => upper_bytes(&picture.to_rgba16()).into(),
        other if other.color().has_alpha() => other.to_rgba8().into(),
        other => other.to_rgb8().into(),
    }
}

fn drop_alpha(picture: &RgbaImage) -> RgbImage {
    RgbImage::from_fn(picture.width(), picture.height(), |x, y| {
        let [red, green, blue, _] = picture.get_pixel(x, y).0;
        Rgb([red, green, blue])
    })
}

/// 16-bit grey as 8-bit colour.
pub(crate) fn clamp(picture: &DeepGrey) -> RgbImage {
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
