//! The schedule of plain diffusion and its stochastic step.

use super::{Kernel, KernelError, Transition};

/// Timesteps and cumulative products ᾱ of a DDIM run (arXiv 2010.02502) of an ε-predicting network.
///
/// Here `x_t = √ᾱ·x0 + √(1−ᾱ)·ε`, and the prediction of a [`Transition`] is ε.
#[derive(Debug, Clone, PartialEq)]
pub struct DdimSchedule {
    timesteps: Vec<usize>,
    alphas: Vec<f64>,
    alphas_next: Vec<f64>,
}

impl DdimSchedule {
    /// Stable Diffusion 1.5: 1000 training steps, `√β` spaced equally from √0.00085 to √0.012.
    ///
    /// # Errors
    ///
    /// As for [`DdimSchedule::leading`].
    pub fn stable_diffusion_1_5(steps: usize) -> Result<Self, KernelError> {
        Self::leading(&scaled_linear_alphas(0.000_85, 0.012, 1000), steps)
    }

    /// Leading spacing with offset 1: timesteps `i·⌊N/steps⌋ + 1` in falling order. A step ends one spacing lower, and
    /// the last, which would fall below it, ends at timestep 0 of the table, whose ᾱ is below 1: some noise stays.
    ///
    /// `alphas` holds ᾱ of all N training steps.
    ///
    /// # Errors
    ///
    /// `steps` is 0 or too many for the table, or the table does not fall strictly within 0 and 1.
    pub fn leading(alphas: &[f64], steps: usize) -> Result<Self, KernelError> {
        for (entry, &value) in alphas.iter().enumerate() {
            let below = if entry == 0 { 1.0 } else { alphas[entry - 1] };
            if !(value > 0.0 && value < below) {
                return Err(KernelError::Alphas { entry, value });
            }
        }
        let train_steps = alphas.len();
        let spacing = train_steps.checked_div(steps).unwrap_or(0);
        if spacing == 0 || (steps - 1) * spacing + 1 >= train_steps {
            return Err(KernelError::DdimSteps {
                steps,
                train_steps,
                most: train_steps.saturating_sub(1),
            });
        }
        let timesteps: Vec<usize> = (0..steps).rev().map(|i| i * spacing + 1).collect();
        Ok(Self {
            alphas: timesteps.iter().map(|&t| alphas[t]).collect(),
            alphas_next: timesteps.iter().map(|&t| alphas[t.saturating_sub(spacing)]).collect(),
            timesteps,
        })
    }

    /// Number of steps.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.timesteps.len()
    }

    /// What the network is told at each step, in falling order.
    #[must_use]
    pub fn timesteps(&self) -> &[usize] {
        &self.timesteps
    }

    /// ᾱ where step `step` starts.
    ///
    /// # Panics
    ///
    /// There is no such step.
    #[must_use]
    pub fn alpha(&self, step: usize) -> f64 {
        self.alphas[step]
    }

    /// ᾱ' where step `step` ends.
    ///
    /// # Panics
    ///
    /// There is no such step.
    #[must_use]
    pub fn alpha_next(&self, step: usize) -> f64 {
        self.alphas_next[step]
    }

    /// The transition of step `step`:
    /// `mean = √ᾱ'·x̂0 + √(1−ᾱ'−std²)·ε̂`, `x̂0 = (x − √(1−ᾱ)·ε̂)/√ᾱ`,
    /// `std = η·√((1−ᾱ')/(1−ᾱ)·(1−ᾱ/ᾱ'))`.
    ///
    /// # Errors
    ///
    /// The step is out of range, or η is not above 0 or so large that std² exceeds 1 − ᾱ'.
    pub fn transition(&self, step: usize, noise_level: f64) -> Result<Transition, KernelError> {
        if step >= self.steps() {
            return Err(KernelError::Step {
                step,
                steps: self.steps(),
            });
        }
        Kernel::Ddim.check_noise_level(noise_level)?;
        let (alpha, next) = (self.alphas[step], self.alphas_next[step]);
        let std = noise_level * ((1.0 - next) / (1.0 - alpha) * (1.0 - alpha / next)).sqrt();
        let direction = 1.0 - next - std * std;
        if direction < 0.0 {
            let range = "low enough that std² stays below 1 − ᾱ' (1 always is)";
            return Err(KernelError::NoiseLevel {
                kernel: Kernel::Ddim.name(),
                noise_level,
                range,
            });
        }
        let transition = Transition {
            a: (next / alpha).sqrt(),
            b: direction.sqrt() - (next * (1.0 - alpha) / alpha).sqrt(),
            std,
        };
        transition.check(Kernel::Ddim, noise_level, Some(step))?;
        Ok(transition)
    }
}

/// ᾱ of a diffusion whose `√β` are spaced equally.
fn scaled_linear_alphas(first: f64, last: f64, train_steps: usize) -> Vec<f64> {
    let (first, last) = (first.sqrt(), last.sqrt());
    let spacing = (last - first) / (train_steps - 1) as f64;
    (0..train_steps)
        .scan(1.0, |product, step| {
            let root = if step + 1 == train_steps {
                last
            } else {
                first + step as f64 * spacing
            };
            *product *= 1.0 - root * root;
            Some(*product)
        })
        .collect()
}
