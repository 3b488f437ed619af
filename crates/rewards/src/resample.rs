//! Bicubic resampling of 8-bit pictures, bit for bit as Pillow does it.
//!
//! Reward models were trained on pictures that Pillow shrank, and "bicubic" means other things elsewhere: Pillow's kernel
//! is Keys' with a = −½ (PyTorch's has −¾), widened by the scale when shrinking (so it does not alias), applied along one
//! axis and then the other, in fixed-point numbers of 22 fractional bits, with an 8-bit picture in between.
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
    let size = [picture.width(), picture.height()];
    let taps = |axis: usize| {
        let wanted = target.offset[axis] as usize..(target.offset[axis] + target.size[axis]) as usize;
        taps(size[axis] as usize, target.full[axis] as usize, wanted)
    };
    let (mut columns, mut rows) = (taps(0), taps(1));
    // Only what some wanted pixel needs is filtered.
    let (across, down) = (move_to_start(&mut columns), move_to_start(&mut rows));
    let stride = size[0] as usize * 3;
    let lines: Vec<&[u8]> = picture.as_raw()[down.start * stride..down.end * stride]
        .chunks_exact(stride)
        .map(|line| &line[across.start * 3..across.end * 3])
        .collect();
    let lines = if shrinks_mostly_in_height(size, target.full) {
        filter_rows(&filter_columns(&lines, &rows), &columns)
    } else {
        filter_columns(&filter_rows(&lines, &columns), &rows)
    };
    // The buffer has exactly the size asked for, so the picture always comes to be.
    RgbImage::from_raw(target.size[0], target.size[1], lines.concat()).unwrap_or_default()
}

/// Whether Pillow filters along columns first: since version 13 it does when that saves work, by this measure. Earlier
/// versions never did; because of the 8-bit picture in between, the order can change a level by one.
fn shrinks_mostly_in_height(from: [u32; 2], to: [u32; 2]) -> bool {
    let [lost_width, lost_height] = [0, 1].map(|axis| i64::from(from[axis]) - i64::from(to[axis]));
    lost_height > 0 && lost_height > 2 * lost_width
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

/// Shifts taps so that the first input pixel that any of them needs is number 0; returns the range that they need.
fn move_to_start(taps: &mut [Taps]) -> Range<usize> {
    let start = taps.iter().map(|t| t.first).min().unwrap_or(0);
    let end = taps.iter().map(|t| t.first + t.weights.len()).max().unwrap_or(0);
    taps.iter_mut().for_each(|t| t.first -= start);
    start..end
}

/// Every line of RGB triples filtered along itself.
fn filter_rows<L: AsRef<[u8]>>(lines: &[L], columns: &[Taps]) -> Vec<Vec<u8>> {
    let pixel = |line: &[u8], taps: &Taps| {
        let mut sums = [HALF; 3];
        for (pixel, weight) in line[taps.first * 3..].chunks_exact(3).zip(&taps.weights) {
            for (sum, level) in sums.iter_mut().zip(pixel) {
                *sum += i32::from(*level) * weight;
            }
        }
        sums.map(to_level)
    };
    lines
        .iter()
        .map(|line| columns.iter().flat_map(|taps| pixel(line.as_ref(), taps)).collect())
        .collect()
}

/// Lines of equal length filtered across each other.
fn filter_columns<L: AsRef<[u8]>>(lines: &[L], rows: &[Taps]) -> Vec<Vec<u8>> {
    let length = lines.first().map_or(0, |line| line.as_ref().len());
    let row = |taps: &Taps| {
        let mut sums = vec![HALF; length];
        for (line, weight) in lines[taps.first..].iter().zip(&taps.weights) {
            for (sum, level) in sums.iter_mut().zip(line.as_ref()) {
                *sum += i32::from(*level) * weight;
            }
        }
        sums.into_iter().map(to_level).collect()
    };
    rows.iter().map(row).collect()
}

/// One half in fixed point; sums start here so that dropping the fraction rounds.
const HALF: i32 = 1 << (FRACTION_BITS - 1);

/// A fixed-point sum to a level. The kernel's negative lobes overshoot, hence the clamp.
fn to_level(sum: i32) -> u8 {
    (sum >> FRACTION_BITS).clamp(0, 255) as u8
}
