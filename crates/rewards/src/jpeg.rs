//! JPEG size as a reward, after DDPO (Black et al. 2023): compressibility is minus the size of the picture's JPEG file,
//! incompressibility is the size, in kilobytes of 1000 bytes, at quality 95.
//!
//! The file is that of Pillow's `save(format="JPEG", quality=95)`: chroma at half resolution, the standard's Huffman
//! tables, the slow integer transform. On pictures whose sides are multiples of 16 the encoder gives the same bytes by
//! itself. On others it fills the last blocks differently from libjpeg, so the picture is handed over with those blocks
//! already filled in libjpeg's way (`Padded`). The sizes then agree to the byte with Pillow 13's (libjpeg-turbo 3.2) on
//! the six reference pictures and on noise, flat and gradient pictures of all sides from 1 to 40.

use image::RgbImage;
use jpeg_encoder::{ChromaSubsamplingMethod, Encoder, EncodingError, ImageBuffer, JpegColorType, SamplingFactor};
use rayon::prelude::*;

use crate::error::RewardError;
use crate::pictures::{Picture, Transparency};
use crate::scorer::{Scorer, TruncationReport, check_call, check_scores};

/// DDPO's quality setting.
pub const QUALITY: u8 = 95;

/// Whether small or large files are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JpegGoal {
    /// Compressibility: minus the size.
    Small,
    /// Incompressibility: the size.
    Large,
}

/// The size of a picture's JPEG file as a reward.
#[derive(Debug, Clone)]
pub struct JpegScore {
    name: String,
    goal: JpegGoal,
    prepared: usize,
}

impl JpegScore {
    /// A reward of this name.
    #[must_use]
    pub fn new(name: &str, goal: JpegGoal) -> Self {
        Self {
            name: name.to_owned(),
            goal,
            prepared: 0,
        }
    }
}

impl Scorer for JpegScore {
    fn name(&self) -> &str {
        &self.name
    }

    fn description(&self) -> String {
        let sign = if self.goal == JpegGoal::Small {
            "minus the size"
        } else {
            "size"
        };
        format!("{sign} of the JPEG file at quality {QUALITY}, in kB")
    }

    fn prepare(&mut self, prompts: &[String]) -> Result<TruncationReport, RewardError> {
        self.prepared = prompts.len();
        Ok(TruncationReport::without_text(&self.name, prompts.len()))
    }

    fn score(&self, pictures: &[Picture], prompts: &[usize]) -> Result<Vec<f64>, RewardError> {
        check_call(&self.name, pictures, prompts, self.prepared)?;
        let sign = if self.goal == JpegGoal::Small { -1.0 } else { 1.0 };
        let size = |picture: &Picture| jpeg_bytes(&picture.rgb(Transparency::OverWhite));
        let sizes: Vec<Result<usize, JpegError>> = pictures.par_iter().map(size).collect();
        let scores = sizes.into_iter().enumerate().map(|(sample, size)| {
            let bytes = size.map_err(|e| RewardError::Picture {
                scorer: self.name.clone(),
                sample,
                prompt: prompts[sample],
                why: e.to_string(),
            })?;
            Ok(sign * bytes as f64 / 1000.0)
        });
        check_scores(&self.name, scores.collect::<Result<_, RewardError>>()?, prompts)
    }
}

/// Why a picture has no JPEG file; reads as the end of a sentence about the picture.
#[derive(Debug, thiserror::Error)]
pub enum JpegError {
    /// A side does not fit the format.
    #[error("is {width} x {height} pixels, and a JPEG file holds from 1 to {LARGEST_SIDE} a side")]
    Size {
        /// Width in pixels.
        width: u32,
        /// Height in pixels.
        height: u32,
    },
    /// The encoder refused it.
    #[error("could not be written as JPEG: {0}")]
    Encoder(#[from] EncodingError),
}

/// The longest side: the format's 65,535, less what rounding up to whole blocks may add.
pub const LARGEST_SIDE: u32 = 65_520;

/// Size in bytes of the picture's JPEG file.
///
/// # Errors
///
/// A side is 0 or longer than [`LARGEST_SIDE`].
pub fn jpeg_bytes(picture: &RgbImage) -> Result<usize, JpegError> {
    let (width, height) = picture.dimensions();
    if ![width, height].iter().all(|side| (1..=LARGEST_SIDE).contains(side)) {
        return Err(JpegError::Size { width, height });
    }
    let mut file = Vec::new();
    let mut encoder = Encoder::new(&mut file, QUALITY);
    encoder.set_sampling_factor(SamplingFactor::F_2_2);
    encoder.set_chroma_subsampling_method(ChromaSubsamplingMethod::Average);
    encoder.encode_image(Padded::new(picture))?;
    Ok(file.len())
}

/// Side of a block that is transformed.
const BLOCK: usize = 8;
/// Side of the unit that is coded together: four blocks of luma, one of each chroma.
const UNIT: usize = 2 * BLOCK;
/// Divisor of the mean luma of a block at quality 95 (the table's 16, times 10 %, rounded).
const MEAN_DIVISOR: i32 = 2;

/// A picture in Y, Cb and Cr, filled up to whole coding units as libjpeg does it.
///
/// Beyond the right and bottom edge libjpeg repeats the last column and the last row (of chroma: the last pair of rows,
/// because rows are repeated after halving) up to a whole block. A luma block that lies wholly outside is not
/// transformed at all: it gets the coded mean of the block before it, and nothing else. Here that is a block whose
/// pixels have just that mean and no coefficient that survives rounding.
struct Padded {
    width: usize,
    height: usize,
    planes: [Vec<u8>; 3],
}

impl Padded {
    fn new(picture: &RgbImage) -> Self {
        let [inner_width, inner_height] = [picture.width() as usize, picture.height() as usize];
        let (width, height) = (inner_width.next_multiple_of(UNIT), inner_height.next_multiple_of(UNIT));
        let mut planes: [Vec<u8>; 3] = std::array::from_fn(|_| Vec::with_capacity(width * height));
        for y in 0..height {
            let luma_row = y.min(inner_height - 1);
            // The last pair of rows, or the last row twice where the height is odd.
            let last_pair = (inner_height - 1) / 2 * 2;
            let chroma_row = (if y < last_pair { y } else { last_pair + y % 2 }).min(inner_height - 1);
            for x in 0..width {
                let column = x.min(inner_width - 1) as u32;
                let levels = |row: usize| to_ycbcr(picture.get_pixel(column, row as u32).0);
                let (luma, chroma) = (levels(luma_row), levels(chroma_row));
                planes[0].push(luma[0]);
                planes[1].push(chroma[1]);
                planes[2].push(chroma[2]);
            }
        }
        let mut padded = Self { width, height, planes };
        padded.fill_outer_blocks(inner_width.div_ceil(BLOCK), inner_height.div_ceil(BLOCK));
        padded
    }

    /// Gives the luma blocks outside of `columns` by `rows` blocks the coded mean of the block before them.
    fn fill_outer_blocks(&mut self, columns: usize, rows: usize) {
        for unit_row in 0..self.height / UNIT {
            for unit_column in 0..self.width / UNIT {
                let mut before = 0;
                for block in 0..4 {
                    let (row, column) = (2 * unit_row + block / 2, 2 * unit_column + block % 2);
                    if row < rows && column < columns {
                        before = self.coded_mean(row, column);
                    } else {
                        self.fill_block(row, column, before);
                    }
                }
            }
        }
    }

    /// The block's first coefficient as it is coded: the sum of the levels around 128, divided by 8 (the transform) and
    /// by the table's entry, rounded half away from zero.
    fn coded_mean(&self, row: usize, column: usize) -> i32 {
        let at = row * BLOCK * self.width + column * BLOCK;
        let lines = (0..BLOCK).map(|y| &self.planes[0][at + y * self.width..][..BLOCK]);
        let sum: i32 = lines.flatten().map(|level| i32::from(*level) - 128).sum();
        let divisor = MEAN_DIVISOR * BLOCK as i32;
        sum.signum() * ((sum.abs() + divisor / 2) / divisor)
    }

    fn fill_block(&mut self, row: usize, column: usize, coded_mean: i32) {
        let sum = coded_mean * MEAN_DIVISOR * BLOCK as i32;
        let pixels = (BLOCK * BLOCK) as i32;
        let (level, rest) = (128 + sum.div_euclid(pixels), sum.rem_euclid(pixels));
        let at = row * BLOCK * self.width + column * BLOCK;
        for y in 0..BLOCK {
            for x in 0..BLOCK {
                // The rest is 0, 16, 32 or 48 of the 64 pixels. Spread as evenly as can be, it leaves only
                // coefficients that the table rounds to zero.
                let place = [0, 32, 48, 16][2 * (y % 2) + x % 2];
                let raised = i32::from(place < rest);
                self.planes[0][at + y * self.width + x] = (level + raised).clamp(0, 255) as u8;
            }
        }
    }
}

impl ImageBuffer for Padded {
    fn get_jpeg_color_type(&self) -> JpegColorType {
        JpegColorType::Ycbcr
    }

    fn width(&self) -> u16 {
        self.width as u16
    }

    fn height(&self) -> u16 {
        self.height as u16
    }

    fn fill_buffers(&self, y: u16, buffers: &mut [Vec<u8>; 4]) {
        let row = usize::from(y) * self.width..(usize::from(y) + 1) * self.width;
        for (buffer, plane) in buffers.iter_mut().zip(&self.planes) {
            buffer.extend_from_slice(&plane[row.clone()]);
        }
    }
}

/// The JFIF conversion with 16 fractional bits, rounded as libjpeg rounds it.
fn to_ycbcr([r, g, b]: [u8; 3]) -> [u8; 3] {
    const HALF: i32 = 1 << 15;
    const CENTRE: i32 = 128 << 16;
    let [r, g, b] = [r, g, b].map(i32::from);
    [
        (19_595 * r + 38_470 * g + 7_471 * b + HALF) >> 16,
        (-11_059 * r - 21_709 * g + 32_768 * b + CENTRE + HALF - 1) >> 16,
        (32_768 * r - 27_439 * g - 5_329 * b + CENTRE + HALF - 1) >> 16,
    ]
    .map(|level| level as u8)
}
