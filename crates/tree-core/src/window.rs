//! Laws for the place of the stochastic window in an iteration.

use serde::{Deserialize, Serialize};

/// Where the window of stochastic steps starts.
///
/// A window of `width` steps in a trajectory of `total_steps` may start at `0 ..= total_steps - width - 1`, so the last
/// step is never inside. A law is a probability mass function over those starts; see [`WindowLaw::probabilities`].
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "law", rename_all = "kebab-case", deny_unknown_fields)]
pub enum WindowLaw {
    /// `Pr[i] = (1 - r)·rⁱ / (1 - r^(T-w))`, the truncated geometric law of the TreeGRPO paper: early windows, where
    /// the trunk is short and the branches differ most, are likelier.
    Geometric {
        /// `r`, strictly between 0 and 1; the paper uses 0.5.
        ratio: f64,
    },
    /// The window starts at 0 and moves `by` steps after every `every` iterations (the program released with the
    /// TreeGRPO paper; the progressive schedule of MixGRPO).
    Shifting {
        /// Iterations between two moves, 1 or more.
        every: u64,
        /// Steps per move.
        by: u64,
        /// What happens when the window has reached its last place.
        #[serde(default)]
        at_end: AtEnd,
    },
    /// Every start is equally likely.
    Uniform,
    /// Always the same start.
    Fixed {
        /// The first step of the window.
        start: usize,
    },
}

/// What a shifting window does beyond its last place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AtEnd {
    /// It stays at the last place.
    #[default]
    Stay,
    /// It begins again at step 0.
    Wrap,
}

/// Why a window could not be placed.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WindowError {
    /// An empty window trains nothing.
    #[error("the window is 0 steps wide and would train nothing; use a width of 1 or more")]
    Empty,
    /// The window leaves no deterministic last step.
    #[error(
        "a window of {width} steps does not fit {total_steps} steps, because the last one must stay deterministic; use \
         at most {} window steps, or at least {} steps", .total_steps.saturating_sub(1), .width.saturating_add(1)
    )]
    TooWide {
        /// Steps of the window.
        width: usize,
        /// Steps of the trajectory.
        total_steps: usize,
    },
    /// A ratio outside the open interval from 0 to 1.
    #[error(
        "the ratio of a geometric window law must lie strictly between 0 and 1, not {ratio}; use the uniform law for \
         equal probabilities and the fixed law for a single start"
    )]
    Ratio {
        /// The ratio given.
        ratio: f64,
    },
    /// A window that should move after every 0 iterations.
    #[error("a shifting window must stay for at least 1 iteration; set `every` to 1 or more")]
    Every,
    /// A fixed start too close to the end.
    #[error("a window of this width can start at step {last} at the latest, not at {start}")]
    StartOutOfRange {
        /// The start given.
        start: usize,
        /// The last start that is possible.
        last: usize,
    },
    /// A number that is not a sample of the unit interval.
    #[error("a uniform number must lie in [0, 1), not {value}")]
    Uniform01 {
        /// The number given.
        value: f64,
    },
}

impl WindowLaw {
    /// The probability of every start `0 ..= total_steps - width - 1` at an iteration (counted from 0).
    ///
    /// The probabilities sum to 1 up to rounding. Laws without chance put 1 on a single start.
    ///
    /// # Errors
    ///
    /// Refuses an empty window, one that leaves no last step outside it, and settings of the law that make no sense.
    pub fn probabilities(&self, total_steps: usize, width: usize, iteration: u64) -> Result<Vec<f64>, WindowError> {
        let starts = starts(total_steps, width)?;
        if let Some(start) = self.certain_start(starts, iteration)? {
            return Ok((0..starts).map(|i| f64::from(u8::from(i == start))).collect());
        }
        Ok((0..starts).map(|i| self.probability(i, starts)).collect())
    }

    /// The start for one number drawn uniformly from `[0, 1)`, by inversion of the cumulative distribution.
    ///
    /// The caller draws the number, so that randomness stays a function of the caller's seed; laws without chance
    /// ignore it. Equal numbers give equal starts.
    ///
    /// # Errors
    ///
    /// Those of [`WindowLaw::probabilities`], and a number outside `[0, 1)`.
    pub fn draw(&self, total_steps: usize, width: usize, iteration: u64, uniform01: f64) -> Result<usize, WindowError> {
        let starts = starts(total_steps, width)?;
        if !(0.0..1.0).contains(&uniform01) {
            return Err(WindowError::Uniform01 { value: uniform01 });
        }
        if let Some(start) = self.certain_start(starts, iteration)? {
            return Ok(start);
        }
        let mut cumulative = 0.0;
        for start in 0..starts {
            cumulative += self.probability(start, starts);
            if uniform01 < cumulative {
                return Ok(start);
            }
        }
        // Rounding can leave the sum of all probabilities a little below 1.
        Ok(starts - 1)
    }

    /// The start of a law without chance, and none for the others. Checks the law's settings on the way.
    fn certain_start(&self, starts: usize, iteration: u64) -> Result<Option<usize>, WindowError> {
        let last = starts - 1;
        match *self {
            Self::Geometric { ratio } if ratio > 0.0 && ratio < 1.0 => Ok(None),
            Self::Geometric { ratio } => Err(WindowError::Ratio { ratio }),
            Self::Uniform => Ok(None),
            Self::Fixed { start } if start <= last => Ok(Some(start)),
            Self::Fixed { start } => Err(WindowError::StartOutOfRange { start, last }),
            Self::Shifting { every: 0, .. } => Err(WindowError::Every),
            Self::Shifting { every, by, at_end } => {
                // In 128 bits neither the product nor the comparison can overflow.
                let moved = u128::from(iteration / every) * u128::from(by);
                let start = match at_end {
                    AtEnd::Stay => moved.min(last as u128),
                    AtEnd::Wrap => moved % starts as u128,
                };
                Ok(Some(start as usize))
            }
        }
    }

    /// The probability of one start under a law of chance.
    fn probability(&self, start: usize, starts: usize) -> f64 {
        match *self {
            Self::Geometric { ratio } => {
                // `1 - r^n` loses all digits when r is close to 1; expm1 and ln keep them.
                let mass = -(starts as f64 * ratio.ln()).exp_m1();
                // Rounding must not make the probability of a single start a little more than 1.
                ((1.0 - ratio) * (start as f64 * ratio.ln()).exp() / mass).min(1.0)
            }
            _ => 1.0 / starts as f64,
        }
    }
}

/// How many starts a window has.
fn starts(total_steps: usize, width: usize) -> Result<usize, WindowError> {
    if width == 0 {
        return Err(WindowError::Empty);
    }
    match total_steps.checked_sub(width) {
        None | Some(0) => Err(WindowError::TooWide { width, total_steps }),
        Some(starts) => Ok(starts),
    }
}
