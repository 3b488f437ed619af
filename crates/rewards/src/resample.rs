//! Bicubic resampling of 8-bit pictures, bit for bit as Pillow does it.
//!
//! Reward models were trained on pictures that Pillow shrank, and "bicubic" means other things elsewhere: Pillow's kernel
//! is Keys' with a = −½ (PyTorch's has −¾), widened by the scale when shrinking (so it does not alias), applied first
//! along rows and then along columns, in fixed-point numbers of 22 fractional bits, with an 8-bit picture in between.
//! General-purpose crates use other fixed-point widths and differ by a level here and there.
//!
//! Only a window of the resized picture is computed, because a centre crop follows: a picture of 4000 × 30 pixels
//! costs no more than the square cut out of it.

use std::ops::Range;

use image::RgbImage;

/// Fractional bits of the fixed-point weights.
const FRACTION_BITS: u32 = 22;
/// The kernel is zero farther from its centre than this, in pixels of the smaller grid.
const SUPPORT: f64 = 2.0;

/// What to make of a picture: its whole new size, and the part of that which is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Target {
    /// Width and height of the whole resized picture.
    pub(crate) full: [u32; 2],
    /// Left and top of the wanted part.
    pub(crate) offset: [u32; 2],
    /// Width and height of the wanted part.
    pub(crate) size: [u32; 2],
}

/// Resizes a picture that has pixels to `target.full` and returns the part that is wanted.
pub(crate) fn bicubic(picture: &RgbImage, target: Target) -> RgbImage {
    let taps = |axis: usize, input: u32| {
        let wanted = target.offset[axis] as usize..(target.offset[axis] + target.size[axis]) as usize;
        taps(input as usize, target.full[axis] as usize, wanted)
    };
    let columns = taps(0, picture.width());
    let rows = taps(1, picture.height());
    // Only those input rows are filtered that some wanted row needs.
    let first = rows.iter().map(|t| t.first).min().unwrap_or(0);
    let last = rows.iter().map(|t| t.first + t.weights.len()).max().unwrap_or(0);

    let stride = picture.width() as usize * 3;
    let narrow: Vec<Vec<u8>> = picture.as_raw()[first * stride..last * stride]
        .chunks_exact(stride)
        .map(|line| columns.iter().flat_map(|taps| along_row(line, taps)).collect())
        .collect();
    let pixels = rows
        .iter()
        .flat_map(|taps| along_column(&narrow[taps.first - first..], taps))
        .collect();
    // The buffer has exactly the size asked for, so the picture always comes to be.
    RgbImage::from_raw(target.size[0], target.size[1], pixels).unwrap_or_default()
}

/// The input pixels that make one output pixel.
struct Taps {
    /// The first input pixel.
    first: usize,
    /// Weight of each from there on, in fixed point.
    weights: Vec<i32>,
}

/// Taps of the `wanted` outputs when `input` pixels become `output`.
fn taps(input: usize, output: usize, wanted: Range<usize>) -> Vec<Taps> {
    let scale = input as f64 / output as f64;
    // Shrinking widens the kernel so that every input pixel counts; enlarging leaves it as it is.
    let stretch = scale.max(1.0);
    let support = SUPPORT * stretch;
    wanted
        .map(|position| {
            let centre = (position as f64 + 0.5) * scale;
            // Casts to unsigned saturate at 0, which is where the picture begins.
            let first = (centre - support + 0.5) as usize;
            let end = ((centre + support + 0.5) as usize).min(input);
            let raw: Vec<f64> = (first..end)
                .map(|pixel| kernel((pixel as f64 - centre + 0.5) * (1.0 / stretch)))
                .collect();
            let total: f64 = raw.iter().sum();
            Taps {
                first,
                weights: raw.iter().map(|weight| to_fixed(weight / total)).collect(),
            }
        })
        .collect()
}

/// Keys' cubic convolution kernel (1981) with a = −½, also known as Catmull–Rom.
fn kernel(x: f64) -> f64 {
    const A: f64 = -0.5;
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        (((x - 5.0) * x + 8.0) * x - 4.0) * A
    } else {
        0.0
    }
}

/// Fixed point, rounded half away from zero.
fn to_fixed(weight: f64) -> i32 {
    (weight * f64::from(1 << FRACTION_BITS)).round() as i32
}

/// One output pixel from a row of RGB triples.
fn along_row(line: &[u8], taps: &Taps) -> [u8; 3] {
    let mut sums = [HALF; 3];
    let pixels = line[taps.first * 3..].chunks_exact(3);
    for (pixel, weight) in pixels.zip(&taps.weights) {
        for (sum, level) in sums.iter_mut().zip(pixel) {
            *sum += i32::from(*level) * weight;
        }
    }
    sums.map(to_level)
}

/// One output row from rows of equal length.
fn along_column(lines: &[Vec<u8>], taps: &Taps) -> Vec<u8> {
    let mut sums = vec![HALF; lines.first().map_or(0, Vec::len)];
    for (line, weight) in lines.iter().zip(&taps.weights) {
        for (sum, level) in sums.iter_mut().zip(line) {
            *sum += i32::from(*level) * weight;
        }
    }
    sums.into_iter().map(to_level).collect()
}

/// One half in fixed point; sums start here so that dropping the fraction rounds.
const HALF: i32 = 1 << (FRACTION_BITS - 1);

/// A fixed-point sum to a level. The kernel's negative lobes overshoot, hence the clamp.
fn to_level(sum: i32) -> u8 {
    (sum >> FRACTION_BITS).clamp(0, 255) as u8
}
