//! Resizing as PyTorch does it with a tensor of floating point numbers, antialiased.
//!
//! It is `torch.nn.functional.interpolate(mode="bicubic", antialias=True)`, which is what `torchvision`'s `resize` makes
//! of a tensor since version 0.17. All of it is in f32, the weights too: at the far end of a large picture their rounding
//! shows. Nothing is rounded to levels or clamped in between, so the numbers overshoot 0 … 1 near edges.
//!
//! One fault is not followed. Where the new width is 1, PyTorch (2.15) makes the first row of every row, whatever the
//! picture holds; here such a column is filtered like any other.

use image::RgbImage;

use super::{Arithmetic, SUPPORT, Taps, Target, filter_columns, filter_line};

/// Resizes a picture that has pixels to `target.full` and returns the part that is wanted, levels 0 … 255 as 0 … 1, as
/// `[height, width, 3]`.
pub(crate) fn bicubic(picture: &RgbImage, target: Target) -> Vec<f32> {
    let [columns, rows] = [picture.width(), picture.height()].map(|side| side as usize);
    let [columns, rows] = [(0, columns), (1, rows)].map(|(axis, input)| taps(input, axis, target));
    // One line at a time becomes floating point numbers, which take four times the room.
    let line = |line: &[u8]| {
        let line: Vec<f32> = line.iter().map(|level| f32::from(*level) / 255.0).collect();
        filter_line::<Floats, 3>(&line, &columns)
    };
    let lines: Vec<Vec<f32>> = picture
        .as_raw()
        .chunks_exact(picture.width() as usize * 3)
        .map(line)
        .collect();
    filter_columns::<Floats>(&lines, &rows).concat()
}

/// Taps of the wanted outputs along an axis of `input` pixels.
fn taps(input: usize, axis: usize, target: Target) -> Vec<Taps<f32>> {
    let scale = input as f32 / target.full[axis] as f32;
    let stretch = scale.max(1.0);
    let support = SUPPORT * stretch;
    target
        .wanted(axis)
        .map(|position| {
            let centre = scale * (position as f32 + 0.5);
            let first = (centre - support + 0.5) as usize;
            let end = ((centre + support + 0.5) as usize).min(input);
            let raw: Vec<f32> = (first..end)
                .map(|pixel| kernel((pixel as f32 - centre + 0.5) * (1.0 / stretch)))
                .collect();
            let total: f32 = raw.iter().sum();
            Taps {
                first,
                weights: raw.iter().map(|weight| weight / total).collect(),
            }
        })
        .collect()
}

/// Keys' kernel again, with the products in PyTorch's order.
fn kernel(x: f32) -> f32 {
    const A: f32 = -0.5;
    let x = x.abs();
    if x < 1.0 {
        ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0
    } else if x < 2.0 {
        ((A * x - 5.0 * A) * x + 8.0 * A) * x - 4.0 * A
    } else {
        0.0
    }
}

/// Floating point samples.
struct Floats;

impl Arithmetic for Floats {
    type Sample = f32;
    type Weight = f32;
    type Sum = f32;
    const START: f32 = 0.0;

    fn add(sum: f32, sample: f32, weight: f32) -> f32 {
        sum + sample * weight
    }

    fn finish(sum: f32) -> f32 {
        sum
    }
}
