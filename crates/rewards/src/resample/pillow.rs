//! Resizing bit for bit as Pillow does it.
//!
//! Its filter works in fixed-point numbers of 22 fractional bits with an 8-bit picture between the two axes.
//! General-purpose crates use other fixed-point widths and differ by a level here and there. What it does with a picture
//! depends on how the file holds it: colours with alpha are multiplied by it first, 16-bit grey is filtered in floating
//! point, and colours from a table are not filtered at all.

use std::ops::Range;

use image::{Rgb, RgbImage, Rgba, RgbaImage};

use crate::pictures::DeepGrey;

use super::{Arithmetic, SUPPORT, Taps, Target, filter_columns, filter_lines};

/// Resizes a picture that has pixels to `target.full` and returns the part that is wanted.
pub(crate) fn bicubic(picture: &RgbImage, target: Target) -> RgbImage {
    let plan = Plan::new(picture.dimensions(), target);
    let lines: Vec<&[u8]> = plan.lines::<_, 3>(picture.as_raw()).collect();
    from_raw(target, plan.filter::<Bytes, 3>(&lines, Bytes::weight))
}

/// The same with alpha, which is then dropped. Colours are multiplied by alpha for the resizing, so that what cannot be
/// seen has no part in what can; where a picture keeps its size they are left alone.
pub(crate) fn bicubic_with_alpha(picture: &RgbaImage, target: Target) -> RgbImage {
    if <[u32; 2]>::from(picture.dimensions()) == target.full {
        let [left, top] = target.offset;
        return RgbImage::from_fn(target.size[0], target.size[1], |x, y| {
            opaque(*picture.get_pixel(left + x, top + y))
        });
    }
    let plan = Plan::new(picture.dimensions(), target);
    let lines: Vec<Vec<u8>> = plan
        .lines::<_, 4>(picture.as_raw())
        .map(|line| line.chunks_exact(4).flat_map(premultiplied).collect())
        .collect();
    let small: Vec<u8> = plan.filter::<Bytes, 4>(&lines, Bytes::weight);
    from_raw(target, small.chunks_exact(4).flat_map(divided).collect())
}

/// The same for 16-bit grey.
pub(crate) fn bicubic_deep(picture: &DeepGrey, target: Target) -> DeepGrey {
    let plan = Plan::new(picture.dimensions(), target);
    let lines: Vec<&[u16]> = plan.lines::<_, 1>(picture.as_raw()).collect();
    let samples = plan.filter::<Words, 1>(&lines, |weight| weight);
    DeepGrey::from_raw(target.size[0], target.size[1], samples).unwrap_or_default()
}

/// The part that is wanted of a picture whose every pixel is the nearest one of `picture`, which has pixels.
pub(crate) fn nearest(picture: &RgbImage, target: Target) -> RgbImage {
    let size = <[u32; 2]>::from(picture.dimensions());
    let [columns, rows] = [0, 1].map(|axis| nearest_pixels(size[axis], target.full[axis], target.wanted(axis)));
    RgbImage::from_fn(target.size[0], target.size[1], |x, y| {
        *picture.get_pixel(columns[x as usize], rows[y as usize])
    })
}

/// Input pixel of each `wanted` output. Pillow steps from centre to centre, so rounding errors add up as they do there.
fn nearest_pixels(input: u32, output: u32, wanted: Range<usize>) -> Vec<u32> {
    let step = f64::from(input) / f64::from(output);
    std::iter::successors(Some(step * 0.5), |centre| Some(centre + step))
        .take(wanted.end)
        .skip(wanted.start)
        .map(|centre| (centre as u32).min(input - 1))
        .collect()
}

/// A buffer of exactly the wanted size as a picture.
fn from_raw(target: Target, samples: Vec<u8>) -> RgbImage {
    RgbImage::from_raw(target.size[0], target.size[1], samples).unwrap_or_default()
}

/// The taps along both axes, and which part of the picture they need.
struct Plan {
    columns: Vec<Taps<f64>>,
    rows: Vec<Taps<f64>>,
    /// Width of the picture.
    width: usize,
    across: Range<usize>,
    down: Range<usize>,
    columns_first: bool,
}

impl Plan {
    fn new((width, height): (u32, u32), target: Target) -> Self {
        let size = [width, height];
        let taps = |axis: usize| taps(size[axis] as usize, target.full[axis] as usize, target.wanted(axis));
        let (mut columns, mut rows) = (taps(0), taps(1));
        Self {
            across: move_to_start(&mut columns),
            down: move_to_start(&mut rows),
            columns,
            rows,
            width: width as usize,
            columns_first: shrinks_mostly_in_height(size, target.full),
        }
    }

    /// The part of a picture's lines that is needed.
    fn lines<'a, S, const CHANNELS: usize>(&self, samples: &'a [S]) -> impl Iterator<Item = &'a [S]> {
        let across = self.across.start * CHANNELS..self.across.end * CHANNELS;
        samples
            .chunks_exact(self.width * CHANNELS)
            .skip(self.down.start)
            .take(self.down.len())
            .map(move |line| &line[across.clone()])
    }

    /// Filters lines along both axes, with weights in the numbers of `A`.
    fn filter<A: Arithmetic, const CHANNELS: usize>(
        &self,
        lines: &[impl AsRef<[A::Sample]>],
        weight: impl Fn(f64) -> A::Weight,
    ) -> Vec<A::Sample> {
        let convert = |taps: &[Taps<f64>]| -> Vec<_> { taps.iter().map(|taps| taps.map(&weight)).collect() };
        let (columns, rows) = (convert(&self.columns), convert(&self.rows));
        if self.columns_first {
            filter_lines::<A, CHANNELS>(&filter_columns::<A>(lines, &rows), &columns).concat()
        } else {
            filter_columns::<A>(&filter_lines::<A, CHANNELS>(lines, &columns), &rows).concat()
        }
    }
}

/// Whether Pillow filters along columns first: since version 13 it does when that saves work, by this measure. Earlier
/// versions never did; because of the rounded picture in between, the order can change a level by one.
fn shrinks_mostly_in_height(from: [u32; 2], to: [u32; 2]) -> bool {
    let [lost_width, lost_height] = [0, 1].map(|axis| i64::from(from[axis]) - i64::from(to[axis]));
    lost_height > 0 && lost_height > 2 * lost_width
}

/// Taps of the `wanted` outputs when `input` pixels become `output`.
fn taps(input: usize, output: usize, wanted: Range<usize>) -> Vec<Taps<f64>> {
    let scale = input as f64 / output as f64;
    // Shrinking widens the kernel so that every input pixel counts; enlarging leaves it as it is.
    let stretch = scale.max(1.0);
    let support = f64::from(SUPPORT) * stretch;
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
                weights: raw.iter().map(|weight| weight / total).collect(),
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

/// Shifts taps so that the first input pixel that any of them needs is number 0; returns the range that they need.
fn move_to_start(taps: &mut [Taps<f64>]) -> Range<usize> {
    let start = taps.iter().map(|t| t.first).min().unwrap_or(0);
    let end = taps.iter().map(|t| t.first + t.weights.len()).max().unwrap_or(0);
    taps.iter_mut().for_each(|t| t.first -= start);
    start..end
}

/// 8-bit samples, added up in fixed point.
struct Bytes;

/// Fractional bits of the fixed-point weights.
const FRACTION_BITS: u32 = 22;

impl Bytes {
    /// Fixed point, rounded half away from zero.
    fn weight(weight: f64) -> i32 {
        (weight * f64::from(1 << FRACTION_BITS)).round() as i32
    }
}

impl Arithmetic for Bytes {
    type Sample = u8;
    type Weight = i32;
    type Sum = i32;
    /// One half, so that dropping the fraction rounds.
    const START: i32 = 1 << (FRACTION_BITS - 1);

    fn add(sum: i32, sample: u8, weight: i32) -> i32 {
        sum + i32::from(sample) * weight
    }

    /// The kernel's negative lobes overshoot, hence the clamp.
    fn finish(sum: i32) -> u8 {
        (sum >> FRACTION_BITS).clamp(0, 255) as u8
    }
}

/// 16-bit samples, added up in floating point.
struct Words;

impl Arithmetic for Words {
    type Sample = u16;
    type Weight = f64;
    type Sum = f64;
    const START: f64 = 0.0;

    fn add(sum: f64, sample: u16, weight: f64) -> f64 {
        sum + f64::from(sample) * weight
    }

    /// Casts to unsigned saturate, which is the clamp.
    fn finish(sum: f64) -> u16 {
        sum.round() as u16
    }
}

/// Red, green and blue without alpha.
fn opaque(Rgba([red, green, blue, _]): Rgba<u8>) -> Rgb<u8> {
    Rgb([red, green, blue])
}

/// Colours multiplied by alpha, `level·alpha/255` rounded to the nearest.
fn premultiplied(pixel: &[u8]) -> [u8; 4] {
    let alpha = pixel[3];
    let times = |level: u8| {
        let product = u32::from(level) * u32::from(alpha) + 128;
        ((product + (product >> 8)) >> 8) as u8
    };
    [times(pixel[0]), times(pixel[1]), times(pixel[2]), alpha]
}

/// Colours divided by alpha again, their fraction dropped, without alpha. Where nothing shows there is nothing to divide
/// by, and the colours stay.
fn divided(pixel: &[u8]) -> [u8; 3] {
    let over = |level: u8| match pixel[3] {
        0 | 255 => level,
        alpha => (255 * u32::from(level) / u32::from(alpha)).min(255) as u8,
    };
    [over(pixel[0]), over(pixel[1]), over(pixel[2])]
}
