//! Levels to the numbers that a model takes, by mean and deviation of the pictures it was trained on.

use super::geometry::Place;

/// Mean of the pictures that OpenAI's CLIP models were trained on. Those that came after kept it.
pub(super) const CLIP_MEAN: [f32; 3] = [0.481_454_66, 0.457_827_5, 0.408_210_73];
/// Standard deviation of the same pictures.
pub(super) const CLIP_DEVIATION: [f32; 3] = [0.268_629_54, 0.261_302_6, 0.275_777_1];

/// `(x − mean) / deviation` of each channel, in f32.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Normalisation {
    mean: [f32; 3],
    deviation: [f32; 3],
    /// The normalised value of every level of every channel.
    levels: [Vec<f32>; 3],
}

impl Normalisation {
    /// With the number that each level stands for.
    pub(super) fn new(mean: [f32; 3], deviation: [f32; 3], number: impl Fn(u8) -> f32) -> Self {
        let level = |channel: usize, level| (number(level) - mean[channel]) / deviation[channel];
        Self {
            mean,
            deviation,
            levels: [0, 1, 2].map(|channel| (0..=u8::MAX).map(|l| level(channel, l)).collect()),
        }
    }

    /// Levels 0 … 255 stand for 0 … 1, divided in f32 as `torchvision` does it.
    pub(super) fn of_tensors(mean: [f32; 3], deviation: [f32; 3]) -> Self {
        Self::new(mean, deviation, |level| f32::from(level) / 255.0)
    }

    /// # Errors
    ///
    /// A deviation is not positive, or something is not finite.
    pub(super) fn check(self) -> Result<Self, String> {
        let positive = self.deviation.iter().all(|s| s.is_finite() && *s > 0.0);
        if positive && self.levels.iter().flatten().all(|value| value.is_finite()) {
            return Ok(self);
        }
        Err("mean, standard deviation and scale of the pixels must be finite, and the deviation positive".to_owned())
    }

    /// A picture of levels, red, green and blue of each pixel together, as `[3, height, width]` of `size`.
    pub(super) fn levels(&self, levels: &[u8], place: Place, size: [u32; 2]) -> Vec<f32> {
        self.spread(levels, place, size, |channel, level| {
            self.levels[channel][usize::from(level)]
        })
    }

    /// The same of numbers, which need not be within 0 … 1.
    pub(super) fn numbers(&self, numbers: &[f32], place: Place, size: [u32; 2]) -> Vec<f32> {
        self.spread(numbers, place, size, |channel, x| {
            (x - self.mean[channel]) / self.deviation[channel]
        })
    }

    /// Channels apart, in a margin of black.
    fn spread<S: Copy>(
        &self,
        samples: &[S],
        place: Place,
        [width, height]: [u32; 2],
        value: impl Fn(usize, S) -> f32,
    ) -> Vec<f32> {
        let [left, top] = place.margin.map(|margin| margin as usize);
        let [width, height, columns] = [width, height, place.target.size[0]].map(|side| side as usize);
        let plane = |channel: usize| {
            let mut plane = vec![self.levels[channel][0]; width * height];
            let lines = plane.chunks_exact_mut(width).skip(top);
            for (line, samples) in lines.zip(samples.chunks_exact(3 * columns)) {
                let samples = samples.iter().skip(channel).step_by(3);
                for (pixel, sample) in line[left..].iter_mut().zip(samples) {
                    *pixel = value(channel, *sample);
                }
            }
            plane
        };
        [0, 1, 2].map(plane).concat()
    }
}
