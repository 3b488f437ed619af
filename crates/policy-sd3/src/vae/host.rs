//! The decoder's layers on plain numbers, for the CPU backend.
//!
//! A small decoder spends most of its time on a general convolution's rearranging of pixels and on activation functions
//! that take one element at a time. Here one picture stays in cache, a convolution reads it in place, and normalisation
//! and activation are written where the next convolution reads. The tensor code beside it is the definition; a test
//! holds the two together.
//!
//! Invariant: a picture's values depend neither on the number of threads nor on the other pictures of the batch.

use burn::tensor::Tensor;
use nn::layers::{Conv2d, GroupNorm};

/// Output channels that a convolution computes together, as many as keep their sums in registers.
const BLOCK: usize = 4;

/// Neighbouring pixels that are computed together; a convolution takes two such runs at a time.
const RUN: usize = 8;

/// Multiplications below which a second thread costs more than it brings.
const THREAD_WORTHWHILE: usize = 4_000_000;

/// A picture or latent, channel after channel, row after row.
#[derive(Debug, Default, Clone)]
pub(super) struct Picture {
    pub(super) channels: usize,
    pub(super) height: usize,
    pub(super) width: usize,
    pub(super) values: Vec<f32>,
}

impl Picture {
    fn area(&self) -> usize {
        self.height * self.width
    }
}

/// What a convolution reads: a picture with a border of zeros, and rows long enough for whole groups of pixels.
#[derive(Debug, Default)]
pub(super) struct Padded {
    height: usize,
    width: usize,
    stride: usize,
    plane: usize,
    values: Vec<f32>,
}

impl Padded {
    /// The picture as it is.
    pub(super) fn fill(&mut self, picture: &Picture) {
        self.reset(picture.channels, picture.height, picture.width);
        for (channel, plane) in picture.values.chunks_exact(picture.area()).enumerate() {
            for (y, row) in plane.chunks_exact(picture.width).enumerate() {
                self.row(channel, y).copy_from_slice(row);
            }
        }
    }

    /// The picture with every pixel doubled in both directions.
    pub(super) fn fill_doubled(&mut self, picture: &Picture) {
        self.reset(picture.channels, 2 * picture.height, 2 * picture.width);
        for (channel, plane) in picture.values.chunks_exact(picture.area()).enumerate() {
            for (y, row) in plane.chunks_exact(picture.width).enumerate() {
                for y in [2 * y, 2 * y + 1] {
                    for (pair, value) in self.row(channel, y).chunks_exact_mut(2).zip(row) {
                        pair.fill(*value);
                    }
                }
            }
        }
    }

    /// The picture, normalised and activated.
    pub(super) fn fill_normalised(&mut self, picture: &Picture, norm: &Normalisation) {
        self.reset(picture.channels, picture.height, picture.width);
        let planes = picture.values.chunks_exact(picture.area()).zip(norm.factors(picture));
        for (channel, (plane, (scale, offset))) in planes.enumerate() {
            for (y, row) in plane.chunks_exact(picture.width).enumerate() {
                for (target, value) in self.row(channel, y).iter_mut().zip(row) {
                    *target = silu(value * scale + offset);
                }
            }
        }
    }

    fn reset(&mut self, channels: usize, height: usize, width: usize) {
        (self.height, self.width) = (height, width);
        self.stride = width.next_multiple_of(2 * RUN) + 2;
        // A second row below lets an odd height be computed in pairs of rows.
        self.plane = (height + 3) * self.stride;
        self.values.clear();
        self.values.resize(channels * self.plane, 0.0);
    }

    fn row(&mut self, channel: usize, y: usize) -> &mut [f32] {
        let start = channel * self.plane + (y + 1) * self.stride + 1;
        &mut self.values[start..start + self.width]
    }
}

/// Scale and offset per channel, and the groups that share a mean and a variance.
#[derive(Debug)]
pub(super) struct Normalisation {
    groups: usize,
    epsilon: f64,
    scale: Vec<f32>,
    offset: Vec<f32>,
}

impl Normalisation {
    pub(super) fn new(norm: &GroupNorm) -> Self {
        let (scale, offset) = norm.scale_and_offset();
        Self {
            groups: norm.groups(),
            epsilon: norm.epsilon(),
            scale: numbers(scale),
            offset: numbers(offset),
        }
    }

    /// Factor and summand that normalise each channel of a picture.
    fn factors(&self, picture: &Picture) -> Vec<(f32, f32)> {
        let channels_per_group = picture.channels / self.groups;
        let size = channels_per_group * picture.area();
        let mut factors = Vec::with_capacity(picture.channels);
        for (group, values) in picture.values.chunks_exact(size).enumerate() {
            let mean = sum(values, |value| value) / size as f64;
            let centre = mean as f32;
            let variance = sum(values, |value| (value - centre) * (value - centre)) / size as f64;
            for channel in group * channels_per_group..(group + 1) * channels_per_group {
                let scale = f64::from(self.scale[channel]) / (variance + self.epsilon).sqrt();
                factors.push((scale as f32, (f64::from(self.offset[channel]) - mean * scale) as f32));
            }
        }
        factors
    }
}

/// A convolution of stride 1 that keeps the size, with a kernel of 1×1 or 3×3.
#[derive(Debug)]
pub(super) struct Convolution {
    outputs: usize,
    inputs: usize,
    kernel: usize,
    /// `[outputs / BLOCK, inputs, kernel², BLOCK]`, filled up with zeros.
    weight: Vec<f32>,
    /// `[outputs]`, filled up to whole blocks.
    bias: Vec<f32>,
}

impl Convolution {
    pub(super) fn new(conv: &Conv2d) -> Self {
        let weight = conv.weight();
        let [outputs, inputs, kernel, _] = weight.dims();
        let stored = numbers(weight);
        let taps = kernel * kernel;
        let blocks = outputs.div_ceil(BLOCK);
        let mut weight = vec![0.0; blocks * inputs * taps * BLOCK];
        for (output, kernels) in stored.chunks_exact(inputs * taps).enumerate() {
            let block = output / BLOCK * inputs * taps;
            for (tap, value) in kernels.iter().enumerate() {
                weight[(block + tap) * BLOCK + output % BLOCK] = *value;
            }
        }
        let mut bias = conv.bias().map(numbers).unwrap_or_default();
        bias.resize(blocks * BLOCK, 0.0);
        Self {
            outputs,
            inputs,
            kernel,
            weight,
            bias,
        }
    }

    /// Convolves what `input` was filled with. `threads` share the output channels of a large picture.
    pub(super) fn apply(&self, input: &Padded, threads: usize) -> Picture {
        let (height, width) = (input.height, input.width);
        let area = height * width;
        let mut values = vec![0.0; self.outputs * area];
        let blocks = self.outputs.div_ceil(BLOCK);
        let work = self.weight.len() * area;
        let threads = if work / threads < THREAD_WORTHWHILE {
            1
        } else {
            threads.min(blocks)
        };
        let blocks_each = blocks.div_ceil(threads);
        let share = |first_block: usize, planes: &mut [f32]| {
            if self.kernel == 1 {
                self.blocks::<1>(input, first_block, planes);
            } else {
                self.blocks::<3>(input, first_block, planes);
            }
        };
        if threads == 1 {
            share(0, &mut values);
        } else {
            std::thread::scope(|scope| {
                for (part, planes) in values.chunks_mut(blocks_each * BLOCK * area).enumerate() {
                    scope.spawn(move || share(part * blocks_each, planes));
                }
            });
        }
        Picture {
            channels: self.outputs,
            height,
            width,
            values,
        }
    }

    /// Fills whole output planes, starting with those of block `first_block`.
    fn blocks<const K: usize>(&self, input: &Padded, first_block: usize, planes: &mut [f32]) {
        let (height, width) = (input.height, input.width);
        // A tile is two runs of pixels: side by side, or one below the other in narrow pictures.
        let (tile_height, tile_width) = if width <= RUN { (2, RUN) } else { (1, 2 * RUN) };
        let second = if tile_height == 1 { RUN } else { input.stride };
        let block_weights = self.inputs * K * K * BLOCK;
        // A kernel of one pixel starts inside of the border.
        let corner = (1 - K / 2) * (input.stride + 1);
        for y in (0..height).step_by(tile_height) {
            for (block, planes) in planes.chunks_mut(BLOCK * height * width).enumerate() {
                let block = first_block + block;
                let weight = &self.weight[block * block_weights..][..block_weights];
                let bias = run(&self.bias, block * BLOCK);
                for x in (0..width).step_by(tile_width) {
                    let sums = tile::<K>(input, corner + y * input.stride + x, second, weight, bias);
                    for (plane, runs) in planes.chunks_exact_mut(height * width).zip(&sums) {
                        for (index, values) in runs.iter().enumerate() {
                            let (x, y) = if tile_height == 1 {
                                (x + index * RUN, y)
                            } else {
                                (x, y + index)
                            };
                            if y < height && x < width {
                                let columns = RUN.min(width - x);
                                plane[y * width + x..][..columns].copy_from_slice(&values[..columns]);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// Sums of one tile for `BLOCK` output channels. `at` is the first run's upper left tap in the first input plane, and
/// `second` is the distance to the other run.
#[inline(always)]
fn tile<const K: usize>(
    input: &Padded,
    at: usize,
    second: usize,
    weight: &[f32],
    bias: &[f32; BLOCK],
) -> [[[f32; RUN]; 2]; BLOCK] {
    let mut sums = bias.map(|bias| [[bias; RUN]; 2]);
    for (plane, kernels) in input
        .values
        .chunks_exact(input.plane)
        .zip(weight.chunks_exact(K * K * BLOCK))
    {
        for ky in 0..K {
            for kx in 0..K {
                let taps: &[f32; BLOCK] = run(kernels, (ky * K + kx) * BLOCK);
                let start = at + ky * input.stride + kx;
                let pixels = [run(plane, start), run(plane, start + second)];
                for (sums, tap) in sums.iter_mut().zip(taps) {
                    accumulate(&mut sums[0], pixels[0], *tap);
                    accumulate(&mut sums[1], pixels[1], *tap);
                }
            }
        }
    }
    sums
}

/// `sums += pixels·tap`. Of a fixed length, it is one or two vector instructions.
#[inline(always)]
fn accumulate(sums: &mut [f32; RUN], pixels: &[f32; RUN], tap: f32) {
    *sums = std::array::from_fn(|i| multiply_add(pixels[i], tap, sums[i]));
}

/// `N` neighbouring values from `start`: a known length is what lets a loop become vector instructions.
#[inline(always)]
fn run<const N: usize>(values: &[f32], start: usize) -> &[f32; N] {
    values[start..]
        .first_chunk()
        .expect("a tile lies within the padded picture")
}

/// One residual block.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) norm1: Normalisation,
    pub(super) conv1: Convolution,
    pub(super) norm2: Normalisation,
    pub(super) conv2: Convolution,
    pub(super) shortcut: Option<Convolution>,
}

impl Block {
    pub(super) fn apply(&self, x: Picture, padded: &mut Padded, threads: usize) -> Picture {
        padded.fill_normalised(&x, &self.norm1);
        let hidden = self.conv1.apply(padded, threads);
        padded.fill_normalised(&hidden, &self.norm2);
        let mut out = self.conv2.apply(padded, threads);
        let skipped = match &self.shortcut {
            Some(conv) => {
                padded.fill(&x);
                conv.apply(padded, threads)
            }
            None => x,
        };
        for (value, skipped) in out.values.iter_mut().zip(&skipped.values) {
            *value += skipped;
        }
        out
    }
}

/// How many threads to use: what the CPU backend's own thread pool is told, or all processors.
pub(super) fn threads() -> usize {
    let told = std::env::var("RAYON_NUM_THREADS")
        .ok()
        .and_then(|count| count.parse().ok());
    told.filter(|count| *count > 0)
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// A tensor's values; on the CPU backend this copies at most.
pub(super) fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter::<f32>().collect()
}

/// `a·b + c`, rounded once where the processor can do that in one instruction. Elsewhere a single rounding would be a
/// function call.
#[inline(always)]
fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
        a.mul_add(b, c)
    } else {
        a * b + c
    }
}

/// Sum of a function of the values, in double precision above the level of a short run.
fn sum(values: &[f32], of: impl Fn(f32) -> f32) -> f64 {
    const LANES: usize = 16;
    let mut total = 0.0;
    for run in values.chunks(64 * LANES) {
        let mut lanes = [0.0f32; LANES];
        let chunks = run.chunks_exact(LANES);
        for value in chunks.remainder() {
            total += f64::from(of(*value));
        }
        for chunk in chunks {
            for (lane, value) in lanes.iter_mut().zip(chunk) {
                *lane += of(*value);
            }
        }
        total += lanes.iter().map(|lane| f64::from(*lane)).sum::<f64>();
    }
    total
}

/// `x·σ(x)` to f32 accuracy, without a branch or a call, so that a loop over it becomes vector instructions.
#[inline(always)]
fn silu(x: f32) -> f32 {
    x / (1.0 + exponential(-x))
}

/// `eˣ` to about 1e-7 relative, saturating where f32 does.
///
/// `x = k·ln 2 + r` with whole k and |r| ≤ ½·ln 2; `eʳ` is its series to the seventh power and `2ᵏ` is put together
/// from bits. NaN stays NaN.
#[inline(always)]
fn exponential(x: f32) -> f32 {
    // Adding 1.5·2²³ rounds to a whole number, which then stands in the lowest bits.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let x = x.clamp(-87.0, 87.0);
    let shifted = multiply_add(x, std::f32::consts::LOG2_E, ROUND);
    let whole = shifted - ROUND;
    let rest = multiply_add(whole, -LN_2_LOW, multiply_add(whole, -LN_2_HIGH, x));
    let series = [
        1.0 / 5040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ]
    .into_iter()
    .fold(0.0, |series, term| multiply_add(series, rest, term));
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    series * power
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_has_single_precision() {
        for i in -8000..=8000 {
            let x = i as f32 * 0.01;
            let exact = f64::from(x).exp();
            assert!(
                (f64::from(exponential(x)) / exact - 1.0).abs() < 3e-7,
                "{x}: {}",
                exponential(x)
            );
        }
        assert!(exponential(f32::NAN).is_nan());
        assert!(exponential(f32::INFINITY) > 1e37 && exponential(f32::NEG_INFINITY) < 1e-37);
        assert!(silu(f32::NAN).is_nan());
        assert_eq!(silu(0.0), 0.0);
    }
}
