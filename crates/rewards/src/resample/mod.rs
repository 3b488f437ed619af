//! Bicubic resampling as the reward models' own programs do it.
//!
//! "Bicubic" means other things elsewhere, and a reward model is only itself on pictures that were shrunk as its training
//! pictures were. Two programs do it: [`pillow`] on 8-bit pictures in fixed-point numbers, and [`tensor`] on floating
//! point numbers as PyTorch does. Both use Keys' kernel with a = −½, widened by the scale when shrinking (so it does not
//! alias), along one axis and then the other; what they share is here.
//!
//! Only a window of the resized picture is computed, because a centre crop often follows: a picture of 4000 × 30 pixels
//! costs no more than the square cut out of it.

use std::ops::Range;

pub(crate) mod pillow;
pub(crate) mod tensor;

/// The kernel is zero farther from its centre than this, in pixels of the smaller grid.
const SUPPORT: f32 = 2.0;

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

impl Target {
    /// The wanted outputs along an axis.
    fn wanted(&self, axis: usize) -> Range<usize> {
        self.offset[axis] as usize..(self.offset[axis] + self.size[axis]) as usize
    }
}

/// The input pixels that make one output pixel.
struct Taps<W> {
    /// The first input pixel.
    first: usize,
    /// Weight of each from there on.
    weights: Vec<W>,
}

impl<W: Copy> Taps<W> {
    /// The same taps with other numbers.
    fn map<V>(&self, convert: impl Fn(W) -> V) -> Taps<V> {
        Taps {
            first: self.first,
            weights: self.weights.iter().map(|weight| convert(*weight)).collect(),
        }
    }
}

/// Numbers that samples are weighed and added up in.
trait Arithmetic {
    /// One level of one channel.
    type Sample: Copy;
    /// What a sample is multiplied by.
    type Weight: Copy;
    /// What the products add up to.
    type Sum: Copy;
    /// The sum of nothing.
    const START: Self::Sum;

    /// Adds one product.
    fn add(sum: Self::Sum, sample: Self::Sample, weight: Self::Weight) -> Self::Sum;

    /// The sample that a finished sum stands for.
    fn finish(sum: Self::Sum) -> Self::Sample;
}

/// Every line of interleaved channels filtered along itself.
fn filter_lines<A: Arithmetic, const CHANNELS: usize>(
    lines: &[impl AsRef<[A::Sample]>],
    columns: &[Taps<A::Weight>],
) -> Vec<Vec<A::Sample>> {
    let filter = |line| filter_line::<A, CHANNELS>(line, columns);
    lines.iter().map(|line| filter(line.as_ref())).collect()
}

/// One line of interleaved channels filtered along itself.
fn filter_line<A: Arithmetic, const CHANNELS: usize>(
    line: &[A::Sample],
    columns: &[Taps<A::Weight>],
) -> Vec<A::Sample> {
    let pixel = |taps: &Taps<A::Weight>| {
        let mut sums = [A::START; CHANNELS];
        let pixels = line[taps.first * CHANNELS..].chunks_exact(CHANNELS);
        for (pixel, weight) in pixels.zip(&taps.weights) {
            for (sum, sample) in sums.iter_mut().zip(pixel) {
                *sum = A::add(*sum, *sample, *weight);
            }
        }
        sums.map(A::finish)
    };
    columns.iter().flat_map(pixel).collect()
}

/// Lines of equal length filtered across each other.
fn filter_columns<A: Arithmetic>(lines: &[impl AsRef<[A::Sample]>], rows: &[Taps<A::Weight>]) -> Vec<Vec<A::Sample>> {
    let length = lines.first().map_or(0, |line| line.as_ref().len());
    let row = |taps: &Taps<A::Weight>| {
        let mut sums = vec![A::START; length];
        for (line, weight) in lines[taps.first..].iter().zip(&taps.weights) {
            for (sum, sample) in sums.iter_mut().zip(line.as_ref()) {
                *sum = A::add(*sum, *sample, *weight);
            }
        }
        sums.into_iter().map(A::finish).collect()
    };
    rows.iter().map(row).collect()
}
