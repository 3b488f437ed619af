//! What can be wrong with a transition.

/// Why there is no transition, or none with a density.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum KernelError {
    /// The step is beyond the schedule.
    #[error("step {step} does not exist: the schedule has {steps} steps, 0 to {}", steps.saturating_sub(1))]
    Step {
        /// The step asked for.
        step: usize,
        /// How many there are.
        steps: usize,
    },
    /// The last step was asked for noise.
    #[error(
        "step {step} is the last one and ends at noise level 0, so it cannot be stochastic ({kernel}); let the window end before it"
    )]
    LastStep {
        /// The kernel asked for.
        kernel: &'static str,
        /// The step.
        step: usize,
    },
    /// The noise level lies outside of the kernel's domain.
    #[error("the noise level of {kernel} is {noise_level}; it must be {range}")]
    NoiseLevel {
        /// The kernel.
        kernel: &'static str,
        /// The level.
        noise_level: f64,
        /// What is allowed, as the tail of a sentence.
        range: &'static str,
    },
    /// The transition has no usable standard deviation.
    #[error(
        "{kernel} with noise level {noise_level} has the standard deviation {std}{at}; a stochastic step needs a positive, finite one"
    )]
    Deviation {
        /// The kernel.
        kernel: &'static str,
        /// The level.
        noise_level: f64,
        /// The standard deviation.
        std: f64,
        /// The step, as the tail of a clause.
        at: String,
    },
    /// A density of a deterministic step.
    #[error("a step without noise has no density; only steps of a stochastic kernel are scored and trained")]
    NoDensity,
    /// DDIM was asked to walk a flow model's schedule.
    #[error("ddim is a kernel of plain diffusion and walks its own schedule; use a flow kernel for a flow model")]
    NeedsDdimSchedule,
    /// A DDIM schedule that cannot be spaced.
    #[error("ddim cannot take {steps} steps of {train_steps} with leading spacing and offset 1; take 1 to {most}")]
    DdimSteps {
        /// Steps asked for.
        steps: usize,
        /// Steps of training.
        train_steps: usize,
        /// The most that can be taken.
        most: usize,
    },
    /// A table of cumulative products that is no such thing.
    #[error("the cumulative products of a diffusion must fall strictly within 0 and 1, but entry {entry} is {value}")]
    Alphas {
        /// The first entry at fault.
        entry: usize,
        /// Its value.
        value: f64,
    },
}
