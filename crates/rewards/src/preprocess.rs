//! CLIP's preprocessing: shortest side to the model's size by Pillow's bicubic, centre crop, rescale,
//! normalise.
//!
//! The settings come from the model's own `preprocessor_config.json`, in the style of old releases (`"size": 224`) or
//! new ones (`"size": {"shortest_edge": 224}`); absent fields have the values that `CLIPImageProcessor` gives them.

use std::path::{Path, PathBuf};

use image::RgbImage;
use serde::Deserialize;
use serde_json::Value;

use crate::pictures::{Picture, Transparency};
use crate::resample::{Target, bicubic};

/// Why a `preprocessor_config.json` cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PreprocessError {
    /// The file could not be read.
    #[error("{}: {source}; copy the preprocessor_config.json of the same checkpoint into this folder", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is malformed or asks for what is not supported.
    #[error("{}: {why}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong and what to do.
        why: String,
    },
}

/// Pictures to the normalised pixels of a CLIP vision tower.
#[derive(Debug, Clone, PartialEq)]
pub struct ClipPreprocessor {
    resize: Resize,
    /// Width and height.
    crop: [u32; 2],
    /// The normalised value of every level of every channel. The arithmetic is that of the reference: rescaled in
    /// f64, rounded to f32, then shifted and divided in f32.
    levels: [Vec<f32>; 3],
}

impl ClipPreprocessor {
    /// Reads `preprocessor_config.json`.
    ///
    /// # Errors
    ///
    /// The file is missing, malformed, or asks for what is not supported (another filter than bicubic, a crop larger
    /// than the picture).
    pub fn read(path: &Path) -> Result<Self, PreprocessError> {
        let text = std::fs::read_to_string(path).map_err(|source| PreprocessError::Io {
            path: path.to_owned(),
            source,
        })?;
        Self::parse(&text).map_err(|why| PreprocessError::Invalid {
            path: path.to_owned(),
            why,
        })
    }

    /// Width and height of what comes out.
    #[must_use]
    pub fn size(&self) -> [u32; 2] {
        self.crop
    }

    /// One picture, transparent pixels over white, as `[3, height, width]` of [`Self::size`], row-major, normalised (about −1.8 … 2.2).
    ///
    /// # Panics
    ///
    /// The picture has no pixels.
    #[must_use]
    pub fn pixels(&self, picture: &Picture) -> Vec<f32> {
        let small = self.cut(&picture.rgb(Transparency::OverWhite));
        let levels = small.as_raw();
        self.levels
            .iter()
            .enumerate()
            .flat_map(|(channel, table)| {
                levels
                    .iter()
                    .skip(channel)
                    .step_by(3)
                    .map(|level| table[usize::from(*level)])
            })
            .collect()
    }

    /// The resized and cropped picture, before normalisation.
    ///
    /// # Panics
    ///
    /// The picture has no pixels.
    #[must_use]
    pub fn cut(&self, picture: &RgbImage) -> RgbImage {
        let (width, height) = picture.dimensions();
        assert!(width > 0 && height > 0, "a picture without pixels cannot be resized");
        let full = self.resize.apply([width, height]);
        // Half of an odd rest goes to the right and bottom.
        let offset = [(full[0] - self.crop[0]) / 2, (full[1] - self.crop[1]) / 2];
        bicubic(
            picture,
            Target {
                full,
                offset,
                size: self.crop,
            },
        )
    }

    fn parse(text: &str) -> Result<Self, String> {
        let settings: Settings =
            serde_json::from_str(text).map_err(|e| format!("not a preprocessor's settings: {e}"))?;
        if !settings.do_resize {
            return Err("do_resize is false; pictures of the wrong size could not be scored".to_owned());
        }
        if settings.resample != BICUBIC {
            return Err(format!(
                "resample is {}; only {BICUBIC} (bicubic) is supported",
                settings.resample
            ));
        }
        let resize = Resize::parse(&settings.size)?;
        let crop = match (settings.do_center_crop, resize) {
            (true, _) => both_sides(&settings.crop_size).ok_or_else(|| {
                format!(
                    "crop_size {} is neither a side nor height and width",
                    settings.crop_size
                )
            })?,
            (false, Resize::Exact(size)) => size,
            (false, Resize::Shortest(_)) => {
                return Err("do_center_crop is false, so pictures would come out in different sizes".to_owned());
            }
        };
        let least = match resize {
            Resize::Exact(size) => size,
            Resize::Shortest(side) => [side; 2],
        };
        if crop.contains(&0) || crop[0] > least[0] || crop[1] > least[1] {
            return Err(format!(
                "crop_size {} must be from 1 to size {}",
                settings.crop_size, settings.size
            ));
        }
        let factor = if settings.do_rescale {
            settings.rescale_factor
        } else {
            1.0
        };
        let (mean, deviation) = if settings.do_normalize {
            (settings.image_mean, settings.image_std)
        } else {
            ([0.0; 3], [1.0; 3])
        };
        if !factor.is_finite()
            || mean.iter().any(|m| !m.is_finite())
            || deviation.iter().any(|s| !s.is_finite() || *s <= 0.0)
        {
            return Err("rescale_factor, image_mean and image_std must be finite, and image_std positive".to_owned());
        }
        let levels = [0, 1, 2].map(|channel| {
            let normalise = |level: u8| ((f64::from(level) * factor) as f32 - mean[channel]) / deviation[channel];
            (0..=u8::MAX).map(normalise).collect()
        });
        Ok(Self { resize, crop, levels })
    }
}

/// Pillow's number of the filter.
const BICUBIC: u32 = 3;

/// What becomes of a picture's width and height.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resize {
    /// The shorter side gets this length, the other keeps the proportions, its fraction dropped.
    Shortest(u32),
    /// Width and height, whatever the proportions.
    Exact([u32; 2]),
}

impl Resize {
    fn parse(size: &Value) -> Result<Self, String> {
        // A bare number means the shorter side, as in old releases.
        let shortest = side(size).or_else(|| side(size.get("shortest_edge")?));
        let resize = shortest
            .map(Self::Shortest)
            .or_else(|| both_sides(size).map(Self::Exact));
        resize.ok_or_else(|| format!("size {size} is neither a side, nor shortest_edge, nor height and width"))
    }

    fn apply(self, [width, height]: [u32; 2]) -> [u32; 2] {
        let side = match self {
            Self::Exact(size) => return size,
            Self::Shortest(side) => side,
        };
        let scaled = |long: u32, short: u32| {
            u32::try_from(u64::from(side) * u64::from(long) / u64::from(short)).unwrap_or(u32::MAX)
        };
        if width <= height {
            [side, scaled(height, width)]
        } else {
            [scaled(width, height), side]
        }
    }
}

/// A length in pixels.
fn side(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|side| u32::try_from(side).ok())
}

/// Width and height from one side or from both.
fn both_sides(value: &Value) -> Option<[u32; 2]> {
    match side(value) {
        Some(side) => Some([side; 2]),
        None => Some([side(value.get("width")?)?, side(value.get("height")?)?]),
    }
}

/// The fields that are used. Flags that only concern file formats or tensors of other libraries are left out.
#[derive(Deserialize)]
#[serde(default)]
struct Settings {
    do_resize: bool,
    size: Value,
    resample: u32,
    do_center_crop: bool,
    crop_size: Value,
    do_rescale: bool,
    rescale_factor: f64,
    do_normalize: bool,
    image_mean: [f32; 3],
    image_std: [f32; 3],
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            do_resize: true,
            size: 224.into(),
            resample: BICUBIC,
            do_center_crop: true,
            crop_size: 224.into(),
            do_rescale: true,
            rescale_factor: 1.0 / 255.0,
            do_normalize: true,
            // Mean and deviation of the pictures that OpenAI's models were trained on.
            image_mean: [0.481_454_66, 0.457_827_5, 0.408_210_73],
            image_std: [0.268_629_54, 0.261_302_6, 0.275_777_1],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_and_new_styles_agree() {
        let old = ClipPreprocessor::parse(r#"{"size": 32, "crop_size": 32, "resample": 3}"#).expect("old style");
        let new = ClipPreprocessor::parse(
            r#"{"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}, "do_convert_rgb": true}"#,
        )
        .expect("new style");
        assert_eq!(old, new);
        assert_eq!(ClipPreprocessor::parse("{}").expect("all absent").size(), [224, 224]);
    }

    #[test]
    fn the_longer_side_loses_its_fraction() {
        let shortest = Resize::Shortest(28);
        assert_eq!(shortest.apply([40, 62]), [28, 43], "43.4");
        assert_eq!(shortest.apply([97, 48]), [56, 28], "56.58");
        assert_eq!(shortest.apply([28, 28]), [28, 28]);
        assert_eq!(shortest.apply([4000, 1]), [112_000, 28]);
        assert_eq!(Resize::Exact([3, 4]).apply([4000, 1]), [3, 4]);
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        let refused = |text: &str, expected: &str| {
            let why = ClipPreprocessor::parse(text).expect_err("refused");
            assert!(why.contains(expected), "{why}");
        };
        refused("<!doctype html>", "not a preprocessor");
        refused(r#"{"resample": 2}"#, "bicubic");
        refused(r#"{"size": {"longest_edge": 224}}"#, "longest_edge");
        refused(r#"{"size": 32, "crop_size": 33}"#, "crop_size 33");
        refused(r#"{"size": 32, "crop_size": 0}"#, "crop_size 0");
        refused(r#"{"size": 32, "do_center_crop": false}"#, "different sizes");
        refused(r#"{"do_resize": false}"#, "do_resize");
        refused(r#"{"image_std": [1, 1, 0]}"#, "positive");
        refused(r#"{"image_mean": [0, 0]}"#, "length");
    }
}
