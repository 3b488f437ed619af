//! Noise schedules of flow models: the table σ_0 > … > σ_T = 0 that sampling walks, and what the network is told.
//!
//! Invariant: a [`Schedule`] is the only source of σ, of its differences and of the network's timesteps. A trajectory
//! stores the object itself, so that replay cannot rebuild a table that differs in the last bits.

use std::path::Path;

use nn::weights::{WeightsError, read_config};
use serde::{Deserialize, Serialize};

/// Noise levels and network timesteps of a sampling run of T steps, in double precision.
///
/// The convention is `x_σ = (1−σ)·x0 + σ·ε`: 1 is pure noise and 0 is data. Step `i` goes from `sigma(i)` to
/// `sigma_next(i)`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Tables")]
pub struct Schedule {
    sigmas: Vec<f64>,
    timesteps: Vec<f64>,
}

/// The two families of tables in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScheduleKind {
    /// The table of diffusers' `FlowMatchEulerDiscreteScheduler`; see [`Schedule::diffusers`].
    #[default]
    Diffusers,
    /// Equal distances from 1 to 0, shifted once; see [`Schedule::linspace`].
    Linspace,
}

/// What the network is told about σ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TimestepRounding {
    /// `N·σ`, N being the number of training steps, as a real number.
    #[default]
    Exact,
    /// `N·σ` cut to an integer, as DanceGRPO, MixGRPO and BranchGRPO do. It tells the network up to one step less noise
    /// than the latent holds.
    Truncated,
}

impl Schedule {
    /// The table of `kind` under a pipeline's scheduler configuration.
    ///
    /// # Errors
    ///
    /// As for [`Schedule::diffusers`] and [`Schedule::linspace`].
    pub fn new(
        kind: ScheduleKind,
        config: &SchedulerConfig,
        steps: usize,
        rounding: TimestepRounding,
    ) -> Result<Self, ScheduleError> {
        let schedule = match kind {
            ScheduleKind::Diffusers => Self::diffusers(steps, config.shift, config.num_train_timesteps)?,
            ScheduleKind::Linspace => Self::linspace(steps, config.shift, config.num_train_timesteps)?,
        };
        Ok(schedule.with_rounding(rounding))
    }

    /// The table of diffusers' `FlowMatchEulerDiscreteScheduler` with a static shift.
    ///
    /// With `bend(u) = shift·u/(1 + (shift−1)·u)`, the scheduler bends its own smallest level `1/train_steps` when it is
    /// made, spaces `steps` levels equally from 1 to that, bends all of them again and appends 0.
    ///
    /// # Errors
    ///
    /// `steps` is 0, `train_steps` is below 2, or `shift` is not a positive number.
    pub fn diffusers(steps: usize, shift: f64, train_steps: usize) -> Result<Self, ScheduleError> {
        check(steps, shift, train_steps)?;
        let smallest = bend(1.0 / train_steps as f64, shift);
        let mut sigmas = Vec::with_capacity(steps + 1);
        for step in 0..steps {
            sigmas.push(bend(spaced(1.0, smallest, steps, step), shift));
        }
        sigmas.push(0.0);
        Self::from_sigmas(sigmas, train_steps)
    }

    /// `steps + 1` levels spaced equally from 1 to 0 and bent once by `shift·u/(1 + (shift−1)·u)`: DanceGRPO
    /// (arXiv 2505.07818), MixGRPO (arXiv 2507.21802) and BranchGRPO (arXiv 2509.06040).
    ///
    /// # Errors
    ///
    /// As for [`Schedule::diffusers`].
    pub fn linspace(steps: usize, shift: f64, train_steps: usize) -> Result<Self, ScheduleError> {
        check(steps, shift, train_steps)?;
        let sigmas = (0..=steps)
            .map(|step| bend(spaced(1.0, 0.0, steps + 1, step), shift))
            .collect();
        Self::from_sigmas(sigmas, train_steps)
    }

    /// A schedule of given noise levels, whose timesteps are `train_steps·σ`.
    ///
    /// # Errors
    ///
    /// There is no step, a level is not finite, the levels do not fall strictly from at most 1, or the last is not 0.
    pub fn from_sigmas(sigmas: Vec<f64>, train_steps: usize) -> Result<Self, ScheduleError> {
        let levels = sigmas.len().saturating_sub(1);
        let timesteps = sigmas[..levels]
            .iter()
            .map(|sigma| sigma * train_steps as f64)
            .collect();
        Self::from_tables(sigmas, timesteps)
    }

    /// A schedule of given noise levels (T + 1) and network timesteps (T).
    ///
    /// # Errors
    ///
    /// As for [`Schedule::from_sigmas`], or the counts disagree, or a timestep is negative or not finite.
    pub fn from_tables(sigmas: Vec<f64>, timesteps: Vec<f64>) -> Result<Self, ScheduleError> {
        if sigmas.len() < 2 {
            return Err(ScheduleError::NoSteps);
        }
        if timesteps.len() + 1 != sigmas.len() {
            return Err(ScheduleError::Counts {
                sigmas: sigmas.len(),
                timesteps: timesteps.len(),
            });
        }
        if !(sigmas[0] > 0.0 && sigmas[0] <= 1.0) {
            return Err(ScheduleError::First { sigma: sigmas[0] });
        }
        for (step, pair) in sigmas.windows(2).enumerate() {
            // A NaN compares false, so it is refused here too.
            let falls = pair[1] < pair[0];
            if !falls {
                return Err(ScheduleError::NotFalling {
                    step,
                    sigma: pair[0],
                    next: pair[1],
                });
            }
        }
        let last = sigmas[sigmas.len() - 1];
        if last != 0.0 {
            return Err(ScheduleError::Last { sigma: last });
        }
        if let Some(step) = timesteps.iter().position(|t| !(t.is_finite() && *t >= 0.0)) {
            return Err(ScheduleError::Timestep {
                step,
                timestep: timesteps[step],
            });
        }
        Ok(Self { sigmas, timesteps })
    }

    /// The same noise levels with timesteps rounded as asked.
    #[must_use]
    pub fn with_rounding(mut self, rounding: TimestepRounding) -> Self {
        if rounding == TimestepRounding::Truncated {
            self.timesteps.iter_mut().for_each(|t| *t = t.trunc());
        }
        self
    }

    /// T, the number of steps.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.timesteps.len()
    }

    /// All T + 1 noise levels, the last being 0.
    #[must_use]
    pub fn sigmas(&self) -> &[f64] {
        &self.sigmas
    }

    /// All T network timesteps.
    #[must_use]
    pub fn timesteps(&self) -> &[f64] {
        &self.timesteps
    }

    /// Noise level σ that step `step` starts from.
    ///
    /// # Panics
    ///
    /// `step` is T or more, as for the other accessors by step.
    #[must_use]
    pub fn sigma(&self, step: usize) -> f64 {
        assert!(
            step < self.steps(),
            "step {step} of a schedule of {} steps",
            self.steps()
        );
        self.sigmas[step]
    }

    /// Noise level σ' that step `step` ends at.
    #[must_use]
    pub fn sigma_next(&self, step: usize) -> f64 {
        self.sigmas[step + 1]
    }

    /// `σ' − σ`, which is negative.
    #[must_use]
    pub fn dt(&self, step: usize) -> f64 {
        self.sigmas[step + 1] - self.sigmas[step]
    }

    /// What the network is told at step `step`, on the scale of its training steps (0 to 1000 for SD3).
    #[must_use]
    pub fn timestep(&self, step: usize) -> f64 {
        self.timesteps[step]
    }

    /// `sigma(step)`, or σ_1 where that is 1: what stands under Flow-SDE's root `√(σ/(1−σ))`, which has a pole at 1
    /// (the substitute of Flow-GRPO, arXiv 2505.05470).
    #[must_use]
    pub fn sigma_below_one(&self, step: usize) -> f64 {
        let sigma = self.sigma(step);
        if sigma == 1.0 { self.sigmas[1] } else { sigma }
    }
}

/// What is read of a pipeline's `scheduler/scheduler_config.json`. Unknown keys are left alone.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub struct SchedulerConfig {
    /// Class that the file was written by.
    #[serde(rename = "_class_name")]
    pub class_name: Option<String>,
    /// Static shift towards high noise; 1 changes nothing.
    pub shift: f64,
    /// Number of steps that the network's timestep counts.
    pub num_train_timesteps: usize,
    /// Shift by resolution; not supported.
    pub use_dynamic_shifting: bool,
    /// Karras' levels; not supported.
    pub use_karras_sigmas: bool,
    /// Exponential levels; not supported.
    pub use_exponential_sigmas: bool,
    /// Beta-distributed levels; not supported.
    pub use_beta_sigmas: bool,
    /// Levels that rise; not supported.
    pub invert_sigmas: bool,
    /// Noise in the scheduler's own step; not supported, the transition kernels do that.
    pub stochastic_sampling: bool,
    /// A last level other than 0; not supported.
    pub shift_terminal: Option<f64>,
}

impl Default for SchedulerConfig {
    /// The defaults of the reference class for keys that a file leaves out.
    fn default() -> Self {
        Self {
            class_name: None,
            shift: 1.0,
            num_train_timesteps: 1000,
            use_dynamic_shifting: false,
            use_karras_sigmas: false,
            use_exponential_sigmas: false,
            use_beta_sigmas: false,
            invert_sigmas: false,
            stochastic_sampling: false,
            shift_terminal: None,
        }
    }
}

impl SchedulerConfig {
    /// Reads `scheduler_config.json` of a pipeline's scheduler folder.
    ///
    /// # Errors
    ///
    /// The file is missing or malformed, or asks for what [`SchedulerConfig::check`] refuses.
    pub fn open(dir: &Path) -> Result<Self, WeightsError> {
        let path = dir.join("scheduler_config.json");
        let config: Self = read_config(&path)?;
        config.check().map_err(|e| WeightsError::Config {
            path,
            why: e.to_string(),
        })?;
        Ok(config)
    }

    /// Refuses what the schedules here do not do.
    ///
    /// # Errors
    ///
    /// Names the key at fault and what to do.
    pub fn check(&self) -> Result<(), ScheduleError> {
        const CLASS: &str = "FlowMatchEulerDiscreteScheduler";
        if let Some(found) = self.class_name.as_deref().filter(|name| *name != CLASS) {
            return Err(ScheduleError::Class {
                found: found.to_owned(),
                expected: CLASS,
            });
        }
        let switches = [
            ("use_dynamic_shifting", self.use_dynamic_shifting),
            ("use_karras_sigmas", self.use_karras_sigmas),
            ("use_exponential_sigmas", self.use_exponential_sigmas),
            ("use_beta_sigmas", self.use_beta_sigmas),
            ("invert_sigmas", self.invert_sigmas),
            ("stochastic_sampling", self.stochastic_sampling),
            ("shift_terminal", self.shift_terminal.is_some()),
        ];
        if let Some((key, _)) = switches.into_iter().find(|(_, on)| *on) {
            return Err(ScheduleError::Unsupported { key });
        }
        check(1, self.shift, self.num_train_timesteps)
    }
}

/// Why there is no schedule.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ScheduleError {
    /// A table without steps.
    #[error("a schedule needs at least one step and two noise levels; ask for more steps")]
    NoSteps,
    /// The shift is zero, negative or not a number.
    #[error("shift is {shift}; it must be a positive number (SD3 uses 3, 1 means no shift)")]
    Shift {
        /// What was given.
        shift: f64,
    },
    /// There are too few training steps to speak of a smallest noise level.
    #[error("num_train_timesteps is {steps}; it must be at least 2 (SD3 uses 1000)")]
    TrainSteps {
        /// What was given.
        steps: usize,
    },
    /// A table starts outside of 0…1.
    #[error("the first noise level is {sigma}; it must be above 0 and at most 1")]
    First {
        /// The level.
        sigma: f64,
    },
    /// Two neighbouring levels do not fall.
    #[error("noise levels must fall strictly, but step {step} goes from {sigma} to {next}")]
    NotFalling {
        /// The step between them.
        step: usize,
        /// Its first level.
        sigma: f64,
        /// Its second level.
        next: f64,
    },
    /// A table ends above 0.
    #[error("the last noise level is {sigma}; it must be exactly 0")]
    Last {
        /// The level.
        sigma: f64,
    },
    /// The two tables do not belong together.
    #[error("{sigmas} noise levels need {} timesteps, there are {timesteps}", sigmas.saturating_sub(1))]
    Counts {
        /// Number of levels.
        sigmas: usize,
        /// Number of timesteps.
        timesteps: usize,
    },
    /// A timestep is negative or not finite.
    #[error("the timestep of step {step} is {timestep}; it must be finite and not negative")]
    Timestep {
        /// The step.
        step: usize,
        /// Its timestep.
        timestep: f64,
    },
    /// The pipeline was made for another scheduler.
    #[error("`_class_name` is {found}, only {expected} is supported; SD3 pipelines ship the latter")]
    Class {
        /// What the file names.
        found: String,
        /// What is read.
        expected: &'static str,
    },
    /// The pipeline's scheduler does what is not done here.
    #[error("`{key}` is set, which is not supported; only a static shift is, so switch it off if the model allows it")]
    Unsupported {
        /// The key in `scheduler_config.json`.
        key: &'static str,
    },
}

/// The stored form, checked when it is read back.
#[derive(Deserialize)]
struct Tables {
    sigmas: Vec<f64>,
    timesteps: Vec<f64>,
}

impl TryFrom<Tables> for Schedule {
    type Error = ScheduleError;

    fn try_from(tables: Tables) -> Result<Self, ScheduleError> {
        Self::from_tables(tables.sigmas, tables.timesteps)
    }
}

fn check(steps: usize, shift: f64, train_steps: usize) -> Result<(), ScheduleError> {
    if steps == 0 {
        return Err(ScheduleError::NoSteps);
    }
    if !(shift.is_finite() && shift > 0.0) {
        return Err(ScheduleError::Shift { shift });
    }
    if train_steps < 2 {
        return Err(ScheduleError::TrainSteps { steps: train_steps });
    }
    Ok(())
}

/// Time shift of a noise level (SD3, arXiv 2403.03206, equation 23).
fn bend(level: f64, shift: f64) -> f64 {
    // Pure noise stays exactly 1 for every shift: Flow-SDE recognises its pole by that.
    if level == 1.0 {
        1.0
    } else {
        shift * level / (1.0 + (shift - 1.0) * level)
    }
}

/// Element `at` of `count` equally spaced values, both ends included and exact.
///
/// The products are taken in the order of the reference's array library: a truncated timestep hangs on the last bit.
fn spaced(first: f64, last: f64, count: usize, at: usize) -> f64 {
    if at == 0 {
        first
    } else if at + 1 == count {
        last
    } else {
        first + at as f64 * ((last - first) / (count - 1) as f64)
    }
}
