//! Pictures to the numbers that a vision tower takes: resize, crop or pad, normalise.
//!
//! The programs that reward models come from agree in almost everything and differ in what remains, and each difference
//! moves scores. A [`Preprocessor`] therefore is data, with a constructor for each program:
//!
//! | | resizing | to | half of an odd rest | transparency |
//! |---|---|---|---|---|
//! | [`Preprocessor::hugging_face`] | Pillow, 8 bits | shortest side, centre crop | down | over white, before |
//! | [`Preprocessor::open_ai`] | Pillow, in the file's mode | shortest side, centre crop | to even | dropped, after |
//! | [`Preprocessor::open_clip`], `shortest` | Pillow, in the file's mode | shortest side, centre crop | to even | dropped, after |
//! | [`Preprocessor::open_clip`], `squash` | Pillow, in the file's mode | both sides | – | dropped, after |
//! | [`Preprocessor::hps`] | PyTorch, f32, not clamped | longest side, black margin | down | dropped, before |
//!
//! "In the file's mode" means that Pillow sees the picture before it is made red, green and blue: colours with alpha are
//! multiplied by it for the resizing, colours from a table are picked and not mixed, and 16-bit grey stays 16-bit.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use image::RgbImage;

use crate::pictures::{Picture, Transparency, clamp};
use crate::resample::{Target, pillow, tensor};

mod geometry;
mod hugging_face;
mod normalise;
mod open_clip;

use geometry::{Centre, Frame, Resize};
use normalise::{CLIP_DEVIATION, CLIP_MEAN, Normalisation};

/// Why a file of preprocessing settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PreprocessError {
    /// The file could not be read.
    #[error("{}: {source}; copy the file of the same checkpoint into this folder", path.display())]
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

/// Pictures to the normalised pixels of a vision tower.
#[derive(Debug, Clone, PartialEq)]
pub struct Preprocessor {
    resampling: Resampling,
    frame: Frame,
    normalisation: Normalisation,
}

/// Which program resizes, and what it is given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resampling {
    /// Pillow, after transparency has been dealt with.
    Pillow(Transparency),
    /// Pillow, in the mode that the file has. Alpha is dropped afterwards.
    PillowInMode,
    /// PyTorch, after alpha has been dropped.
    Tensor,
}

impl Preprocessor {
    /// As a Hugging Face image processor with this `preprocessor_config.json` does it.
    ///
    /// Both the style of old releases (`"size": 224`) and that of new ones (`"size": {"shortest_edge": 224}`) are read;
    /// absent fields have the values that `CLIPImageProcessor` gives them.
    ///
    /// # Errors
    ///
    /// The file is missing, malformed, or asks for what is not supported (another filter than bicubic, a crop larger
    /// than the picture).
    pub fn hugging_face(path: &Path) -> Result<Self, PreprocessError> {
        read(path, hugging_face::parse)
    }

    /// As open_clip does it for a model with this `open_clip_config.json`: the size is the model's own, everything else
    /// is in `preprocess_cfg`, where absent fields have open_clip's values.
    ///
    /// # Errors
    ///
    /// The file is missing, malformed, or asks for what is not supported (another filter than bicubic, the resize mode
    /// `longest`, a size other than the model's).
    pub fn open_clip(path: &Path) -> Result<Self, PreprocessError> {
        read(path, open_clip::parse)
    }

    /// As OpenAI's own CLIP program does it, for squares of `side` pixels. ImageReward's program is a copy of it, and
    /// the aesthetic predictor's uses it.
    #[must_use]
    pub fn open_ai(side: NonZeroU32) -> Self {
        Self {
            resampling: Resampling::PillowInMode,
            frame: Frame {
                resize: Resize::Shortest(side.get()),
                size: [side.get(); 2],
                centre: Centre::RoundedToEven,
            },
            normalisation: Normalisation::of_tensors(CLIP_MEAN, CLIP_DEVIATION),
        }
    }

    /// As HPS-v2's program does it, for squares of `side` pixels: the longest side is made `side` long, and the rest of
    /// the square is black.
    ///
    /// It differs from that program where that cannot score: a picture whose longest side already is `side` gets its
    /// margin too, alpha is dropped, grey becomes colour, and no side vanishes. Since which release a tensor is
    /// antialiased was `torchvision`'s choice; here it always is.
    #[must_use]
    pub fn hps(side: NonZeroU32) -> Self {
        Self {
            resampling: Resampling::Tensor,
            frame: Frame {
                resize: Resize::Longest(side.get()),
                size: [side.get(); 2],
                centre: Centre::RoundedDown,
            },
            normalisation: Normalisation::of_tensors(CLIP_MEAN, CLIP_DEVIATION),
        }
    }

    /// Width and height of what comes out.
    #[must_use]
    pub fn size(&self) -> [u32; 2] {
        self.frame.size
    }

    /// One picture as `[3, height, width]` of [`Self::size`], row-major, normalised (about −1.8 … 2.2).
    ///
    /// # Panics
    ///
    /// The picture has no pixels.
    #[must_use]
    pub fn pixels(&self, picture: &Picture) -> Vec<f32> {
        let (width, height) = picture.dimensions();
        assert!(width > 0 && height > 0, "a picture without pixels cannot be resized");
        let place = self.frame.place([width, height]);
        let levels = match self.resampling {
            Resampling::Pillow(transparency) => pillow::bicubic(&picture.rgb(transparency), place.target),
            Resampling::PillowInMode => in_mode(picture, place.target),
            Resampling::Tensor => {
                let numbers = tensor::bicubic(&picture.rgb(Transparency::Dropped), place.target);
                return self.normalisation.numbers(&numbers, place, self.frame.size);
            }
        };
        self.normalisation.levels(levels.as_raw(), place, self.frame.size)
    }
}

/// Resized by Pillow as the file holds it, and only then made red, green and blue.
fn in_mode(picture: &Picture, target: Target) -> RgbImage {
    match picture {
        Picture::Opaque(picture) => pillow::bicubic(picture, target),
        Picture::Masked(_) => pillow::bicubic(&picture.rgb(Transparency::Dropped), target),
        Picture::Transparent(picture) => pillow::bicubic_with_alpha(picture, target),
        Picture::Indexed(_) => pillow::nearest(&picture.rgb(Transparency::Dropped), target),
        Picture::Deep(picture) => clamp(&pillow::bicubic_deep(picture, target)),
    }
}

/// Reads a file of settings.
fn read(path: &Path, parse: fn(&str) -> Result<Preprocessor, String>) -> Result<Preprocessor, PreprocessError> {
    let text = std::fs::read_to_string(path).map_err(|source| PreprocessError::Io {
        path: path.to_owned(),
        source,
    })?;
    parse(&text).map_err(|why| PreprocessError::Invalid {
        path: path.to_owned(),
        why,
    })
}
