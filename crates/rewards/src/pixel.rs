//! Rewards that are plain statistics of the pixels. They need no model, cost nothing and are easy to raise, which makes
//! them the first thing to try when a training run does not learn. They do not look at the prompt.

use image::RgbImage;
use rayon::prelude::*;

use crate::error::RewardError;
use crate::pictures::{Picture, Transparency};
use crate::scorer::{Scorer, TruncationReport, check_call, check_scores};

/// A statistic of a picture's pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PixelStatistic {
    /// Mean of Y/255, where Y = 0.299 R + 0.587 G + 0.114 B (ITU-R BT.601). 0 is black, 1 is white.
    Brightness,
    /// Standard deviation (population) of Y/255, the contrast of Peli (1990). From 0 to ½.
    Contrast,
    /// `√(σ_rg² + σ_yb²) + 0.3·√(μ_rg² + μ_yb²)` with rg = R − G and yb = ½(R + G) − B, means μ and population
    /// deviations σ over the pixels, levels from 0 to 255 (Hasler and Süsstrunk 2003, the measure M⁽³⁾). 0 is grey; they
    /// found 15 slightly, 45 averagely and 109 extremely colourful.
    Colourfulness,
}

impl PixelStatistic {
    /// The statistic of a picture that has pixels; NaN for one that has none.
    ///
    /// All sums are of integers, so the result does not depend on the order of the pixels.
    #[must_use]
    pub fn of(self, picture: &RgbImage) -> f64 {
        match self {
            Self::Brightness => Moments::of(picture, luma_thousandths).mean() / LUMA_WHITE,
            Self::Contrast => Moments::of(picture, luma_thousandths).variance().sqrt() / LUMA_WHITE,
            Self::Colourfulness => {
                let red_green = Moments::of(picture, |[r, g, _]| r - g);
                // Doubled, to stay with integers.
                let yellow_blue = Moments::of(picture, |[r, g, b]| r + g - 2 * b);
                let spread = red_green.variance() + yellow_blue.variance() / 4.0;
                let shift = red_green.mean().powi(2) + (yellow_blue.mean() / 2.0).powi(2);
                spread.sqrt() + 0.3 * shift.sqrt()
            }
        }
    }
}

/// A [`PixelStatistic`] as a reward.
#[derive(Debug, Clone)]
pub struct PixelScore {
    name: String,
    statistic: PixelStatistic,
    prepared: usize,
}

impl PixelScore {
    /// A reward of this name.
    #[must_use]
    pub fn new(name: &str, statistic: PixelStatistic) -> Self {
        Self {
            name: name.to_owned(),
            statistic,
            prepared: 0,
        }
    }
}

impl Scorer for PixelScore {
    fn name(&self) -> &str {
        &self.name
    }

    fn description(&self) -> String {
        match self.statistic {
            PixelStatistic::Brightness => "mean luma, 0 to 1".to_owned(),
            PixelStatistic::Contrast => "standard deviation of luma, 0 to 0.5".to_owned(),
            PixelStatistic::Colourfulness => "colourfulness after Hasler and Süsstrunk, 0 to about 150".to_owned(),
        }
    }

    fn prepare(&mut self, prompts: &[String]) -> Result<TruncationReport, RewardError> {
        self.prepared = prompts.len();
        Ok(TruncationReport::without_text(&self.name, prompts.len()))
    }

    fn score(&self, pictures: &[Picture], prompts: &[usize]) -> Result<Vec<f64>, RewardError> {
        check_call(&self.name, pictures, prompts, self.prepared)?;
        let statistic = |picture: &Picture| self.statistic.of(&picture.rgb(Transparency::OverWhite));
        let scores = pictures.par_iter().map(statistic).collect();
        check_scores(&self.name, scores, prompts)
    }
}

/// White in thousandths of a level.
const LUMA_WHITE: f64 = 255_000.0;

/// BT.601 luma in thousandths of a level.
fn luma_thousandths([r, g, b]: [i64; 3]) -> i64 {
    299 * r + 587 * g + 114 * b
}

/// Exact sums of a quantity over the pixels.
struct Moments {
    count: i128,
    sum: i128,
    squares: i128,
}

impl Moments {
    fn of(picture: &RgbImage, quantity: impl Fn([i64; 3]) -> i64) -> Self {
        let mut moments = Self {
            count: 0,
            sum: 0,
            squares: 0,
        };
        for pixel in picture.pixels() {
            let value = quantity(pixel.0.map(i64::from));
            moments.count += 1;
            moments.sum += i128::from(value);
            moments.squares += i128::from(value * value);
        }
        moments
    }

    fn mean(&self) -> f64 {
        self.sum as f64 / self.count as f64
    }

    /// Population variance; the numerator is exact, so equal pixels give exactly 0.
    fn variance(&self) -> f64 {
        (self.count * self.squares - self.sum * self.sum) as f64 / (self.count * self.count) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(pixels: &[[u8; 3]]) -> RgbImage {
        RgbImage::from_raw(pixels.len() as u32, 1, pixels.concat()).expect("three bytes a pixel")
    }

    #[track_caller]
    fn check(statistic: PixelStatistic, pixels: &[[u8; 3]], expected: f64) {
        let found = statistic.of(&picture(pixels));
        assert!(
            (found - expected).abs() < 1e-12,
            "{statistic:?}: {found}, expected {expected}"
        );
    }

    #[test]
    fn brightness_is_mean_luma() {
        check(PixelStatistic::Brightness, &[[0; 3]], 0.0);
        check(PixelStatistic::Brightness, &[[255; 3], [0; 3]], 0.5);
        // 0.299·100 + 0.587·200 + 0.114·50 = 29.9 + 117.4 + 5.7 = 153
        check(PixelStatistic::Brightness, &[[100, 200, 50]], 0.6);
    }

    #[test]
    fn contrast_is_the_deviation_of_luma() {
        check(PixelStatistic::Contrast, &[[17; 3], [17; 3], [17; 3]], 0.0);
        check(PixelStatistic::Contrast, &[[255; 3], [0; 3]], 0.5);
    }

    #[test]
    fn colourfulness_by_hand() {
        check(PixelStatistic::Colourfulness, &[[3; 3], [200; 3]], 0.0);
        // One red pixel: no spread; rg = 255, yb = 127.5; 0.3·√(255² + 127.5²).
        check(
            PixelStatistic::Colourfulness,
            &[[255, 0, 0]],
            0.3 * (255f64.powi(2) + 127.5f64.powi(2)).sqrt(),
        );
        // Red and blue: rg = 255, 0 (mean and deviation 127.5); yb = 127.5, −255 (mean −63.75, deviation 191.25).
        let spread = (127.5f64.powi(2) + 191.25f64.powi(2)).sqrt();
        let shift = (127.5f64.powi(2) + 63.75f64.powi(2)).sqrt();
        check(
            PixelStatistic::Colourfulness,
            &[[255, 0, 0], [0, 0, 255]],
            spread + 0.3 * shift,
        );
    }
}
