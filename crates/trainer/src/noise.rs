//! Noise as a function.
//!
//! Every normal number of a run is a function of (seed, purpose, iteration, prompt, tree, step, node), drawn from a
//! counter-based generator on the host. So it is the same on every device, for every batch size, thread count and world
//! size, and two places of a run never share noise unless the method says so.

use burn::tensor::{Device, Tensor, TensorData};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, StandardNormal};

/// What the numbers are for. Different purposes never meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// The initial noise of a training tree.
    Root = 1,
    /// The noise of a stochastic step.
    Step = 2,
    /// The initial noise of an evaluation picture.
    Evaluation = 3,
    /// The order of the prompts.
    Prompts = 4,
    /// The window of an iteration.
    Window = 5,
    /// Which training nodes go into which optimiser step.
    Updates = 6,
    /// The initial noise of a picture asked for by a user.
    Generation = 7,
}

/// The place of a block of noise in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// What it is for.
    pub purpose: Purpose,
    /// Iteration, counted from 0; for evaluations the picture's number.
    pub iteration: u64,
    /// Index of the prompt in its file.
    pub prompt: u64,
    /// Tree of the prompt.
    pub tree: u32,
    /// Step of the trajectory.
    pub step: u16,
    /// Number of the node among those of its tree at its level.
    pub node: u32,
}

impl Place {
    /// A place that only its purpose and iteration tell apart.
    #[must_use]
    pub fn of_iteration(purpose: Purpose, iteration: u64) -> Self {
        Self {
            purpose,
            iteration,
            prompt: 0,
            tree: 0,
            step: 0,
            node: 0,
        }
    }
}

/// The generator of a place.
///
/// Key and stream of ChaCha hold the coordinates themselves, not a hash of them, so distinct places have distinct
/// streams without a chance of collision.
#[must_use]
pub fn generator(seed: u64, place: Place) -> ChaCha8Rng {
    let mut key = [0u8; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    key[8..16].copy_from_slice(&place.iteration.to_le_bytes());
    key[16..24].copy_from_slice(&place.prompt.to_le_bytes());
    key[24..28].copy_from_slice(&place.tree.to_le_bytes());
    key[28] = place.purpose as u8;
    let mut generator = ChaCha8Rng::from_seed(key);
    generator.set_stream(u64::from(place.step) << 32 | u64::from(place.node));
    generator
}

/// Independent standard normal values, one block of `shape` (`[channels, height, width]`) per place, stacked to
/// `[places, channels, height, width]`.
#[must_use]
pub fn normal(seed: u64, places: impl IntoIterator<Item = Place>, shape: [usize; 3], device: &Device) -> Tensor<4> {
    let count: usize = shape.iter().product();
    let mut values: Vec<f32> = Vec::new();
    let mut blocks = 0;
    for place in places {
        let mut generator = generator(seed, place);
        values.extend((0..count).map(|_| -> f32 { StandardNormal.sample(&mut generator) }));
        blocks += 1;
    }
    Tensor::from_data(TensorData::new(values, [blocks, shape[0], shape[1], shape[2]]), device)
}

/// One number of `[0, 1)`.
#[must_use]
pub fn uniform(seed: u64, place: Place) -> f64 {
    generator(seed, place).random()
}

/// A permutation of `0..count` (Fisher and Yates).
#[must_use]
pub fn permutation(seed: u64, place: Place, count: usize) -> Vec<usize> {
    let mut generator = generator(seed, place);
    let mut order: Vec<usize> = (0..count).collect();
    for last in (1..count).rev() {
        order.swap(last, generator.random_range(0..=last));
    }
    order
}
