//! Transition kernels: how a latent moves from one noise level to the next, and how likely the move was.
//!
//! Every kernel here has a mean that is affine in the latent and in the network's prediction, and one standard
//! deviation for all elements. So a step is three numbers, a [`Transition`], and everything that sampling, densities and
//! gradients need follows from them.
//!
//! Invariant: a density uses the standard deviation of its own transition and no other.

mod ddim;
mod error;
mod transition;

use serde::{Deserialize, Serialize};

use crate::schedule::Schedule;

pub use ddim::DdimSchedule;
pub use error::KernelError;
pub use transition::{Density, LogProb, Reduction, Transition};

/// A family of transitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kernel {
    /// Euler step of the probability-flow equation: deterministic, one child, no density.
    Ode,
    /// Flow-GRPO's stochastic equation (arXiv 2505.05470), which the TreeGRPO release uses too.
    FlowSde,
    /// DanceGRPO's stochastic equation (arXiv 2505.07818): noise of the same rate at every level.
    DanceSde,
    /// Coefficients-preserving sampling (Flow-CPS, arXiv 2509.05952): exactly the noise that the next level asks for.
    Cps,
    /// DDIM of plain ε-predicting diffusion (arXiv 2010.02502), the kernel of DDPO. It walks a [`DdimSchedule`].
    Ddim,
}

/// Noise levels that one step of a flow model goes between.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FlowStep {
    /// σ, where the step starts.
    pub sigma: f64,
    /// σ', where it ends.
    pub sigma_next: f64,
    /// What replaces σ in Flow-SDE's `1 − σ`: see [`Schedule::sigma_below_one`].
    pub sigma_below_one: f64,
}

impl Kernel {
    /// All kernels.
    pub const ALL: [Self; 5] = [Self::Ode, Self::FlowSde, Self::DanceSde, Self::Cps, Self::Ddim];

    /// The name that configurations use.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ode => "ode",
            Self::FlowSde => "flow-sde",
            Self::DanceSde => "dance-sde",
            Self::Cps => "cps",
            Self::Ddim => "ddim",
        }
    }

    /// Whether a step has several possible outcomes, and so a density.
    #[must_use]
    pub fn is_stochastic(self) -> bool {
        self != Self::Ode
    }

    /// The noise level η that the kernel's authors use: .7, .3, .8 and 1; 0 for the deterministic step.
    #[must_use]
    pub fn default_noise_level(self) -> f64 {
        match self {
            Self::Ode => 0.0,
            Self::FlowSde => 0.7,
            Self::DanceSde => 0.3,
            Self::Cps => 0.8,
            Self::Ddim => 1.0,
        }
    }

    /// The transition of step `step` (0-based) of a flow model's schedule.
    ///
    /// `noise_level` is η; [`Kernel::Ode`] ignores it. A stochastic kernel is given only with a positive, finite
    /// standard deviation.
    ///
    /// # Errors
    ///
    /// The step is out of range; a stochastic kernel is asked for the last step, whose outcome must be data without
    /// noise; the noise level does not suit the kernel; the kernel is [`Kernel::Ddim`], which has no flow schedule.
    pub fn transition(self, schedule: &Schedule, step: usize, noise_level: f64) -> Result<Transition, KernelError> {
        if step >= schedule.steps() {
            return Err(KernelError::Step {
                step,
                steps: schedule.steps(),
            });
        }
        if self.is_stochastic() && self != Self::Ddim && step + 1 == schedule.steps() {
            return Err(KernelError::LastStep {
                kernel: self.name(),
                step,
            });
        }
        let levels = FlowStep {
            sigma: schedule.sigma(step),
            sigma_next: schedule.sigma_next(step),
            sigma_below_one: schedule.sigma_below_one(step),
        };
        let transition = self.coefficients(levels, noise_level)?;
        if self.is_stochastic() {
            transition.check(self, noise_level, Some(step))?;
        }
        Ok(transition)
    }

    /// The bare coefficients between two noise levels, for any pair of levels.
    ///
    /// With `dt = σ'−σ < 0` and `s = η·√(σ/(1−σ̃))`:
    ///
    /// | kernel | mean | std |
    /// |---|---|---|
    /// | `ode` | `x + dt·v` | 0 |
    /// | `flow-sde` | `x·(1 + s²·dt/(2σ)) + v·(1 + s²·(1−σ)/(2σ))·dt` | `s·√−dt` |
    /// | `dance-sde` | `x + dt·v − ½·η²·dt·score`, `score = −(x + (1−σ)·v)/σ` | `η·√−dt` |
    /// | `cps` | `(1−σ')·x0 + σ'·cos(ηπ/2)·ε`, `x0 = x − σ·v`, `ε = x + (1−σ)·v` | `σ'·sin(ηπ/2)` |
    ///
    /// Unlike [`Kernel::transition`], this gives the last step and a standard deviation of 0 where the formula does.
    ///
    /// # Errors
    ///
    /// The noise level is negative, not finite, or above 1 for `cps`; or the kernel is [`Kernel::Ddim`].
    pub fn coefficients(self, levels: FlowStep, noise_level: f64) -> Result<Transition, KernelError> {
        let FlowStep {
            sigma,
            sigma_next,
            sigma_below_one,
        } = levels;
        if self.is_stochastic() {
            self.check_noise_level(noise_level)?;
        }
        let dt = sigma_next - sigma;
        let transition = match self {
            Self::Ode => Transition {
                a: 1.0,
                b: dt,
                std: 0.0,
            },
            Self::FlowSde => {
                let variance_rate = noise_level * noise_level * sigma / (1.0 - sigma_below_one);
                let half = variance_rate / (2.0 * sigma);
                Transition {
                    a: 1.0 + half * dt,
                    b: (1.0 + half * (1.0 - sigma)) * dt,
                    std: (variance_rate * -dt).sqrt(),
                }
            }
            Self::DanceSde => {
                let half = noise_level * noise_level / (2.0 * sigma);
                Transition {
                    a: 1.0 + half * dt,
                    b: (1.0 + half * (1.0 - sigma)) * dt,
                    std: noise_level * (-dt).sqrt(),
                }
            }
            Self::Cps => {
                // The root of σ'² − std² is σ'·cos, which never becomes the root of a negative number.
                let (sine, cosine) = (noise_level * std::f64::consts::FRAC_PI_2).sin_cos();
                let kept = sigma_next * cosine;
                Transition {
                    a: 1.0 - sigma_next + kept,
                    b: (1.0 - sigma) * kept - sigma * (1.0 - sigma_next),
                    std: sigma_next * sine,
                }
            }
            Self::Ddim => return Err(KernelError::NeedsDdimSchedule),
        };
        Ok(transition)
    }

    /// Refuses noise levels outside of what the kernel is defined for.
    fn check_noise_level(self, noise_level: f64) -> Result<(), KernelError> {
        let highest = if self == Self::Cps { 1.0 } else { f64::MAX };
        if (0.0..=highest).contains(&noise_level) {
            Ok(())
        } else {
            let range = if self == Self::Cps {
                "0 to 1"
            } else {
                "0 or more and finite"
            };
            Err(KernelError::NoiseLevel {
                kernel: self.name(),
                noise_level,
                range,
            })
        }
    }
}

impl std::fmt::Display for Kernel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
