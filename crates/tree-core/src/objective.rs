//! The clipped objective, its derivative, and what to log about ratios.

use serde::{Deserialize, Serialize};

/// The clipped surrogate loss of one edge: `L = -min(ρ·A, clip(ρ, 1-ε, 1+ε)·A)` with `ρ = exp(log_prob - old_log_prob)`
/// and A clamped to `±advantage_clamp`.
///
/// The clip is one-sided: it acts where the ratio has already moved the way the advantage points (ρ > 1+ε for A > 0,
/// ρ < 1-ε for A < 0), and never keeps a ratio from coming back.
///
/// ```
/// use tree_core::ClippedObjective;
///
/// let objective = ClippedObjective::new(0.2, 5.0)?;
/// let edge = objective.edge(-1.0, -1.0, 2.0)?;
/// assert_eq!((edge.ratio, edge.loss, edge.derivative, edge.clipped), (1.0, -2.0, -2.0, false));
/// # Ok::<(), tree_core::ObjectiveError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClippedObjective {
    /// `ε`, above 0 and below 1. Mean-reduced log-probs of images need 1e-5 to 1e-3, log-probs of tokens about 0.2.
    pub clip_range: f64,
    /// Largest magnitude of an advantage, positive; infinity switches the clamp off.
    pub advantage_clamp: f64,
}

/// The loss of one edge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EdgeLoss {
    /// `L`.
    pub loss: f64,
    /// `dL/d log_prob`: `-A·ρ` where the clip does not act, 0 where it does.
    pub derivative: f64,
    /// `ρ`.
    pub ratio: f64,
    /// `ln ρ`, which keeps the digits that ρ loses next to 1.
    pub log_ratio: f64,
    /// Whether the clip acts, so that the edge teaches nothing.
    pub clipped: bool,
    /// Whether ρ lies outside `1-ε ..= 1+ε`, on whichever side. Some programs log this as their clip fraction.
    pub outside: bool,
}

/// The divergence of two Gaussians with equal std, per dimension.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GaussianKl {
    /// In nats per dimension.
    pub value: f64,
    /// The derivative in the mean squared difference of the means.
    pub derivative: f64,
}

/// Why a loss has no value.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectiveError {
    /// A clip range that does not clip.
    #[error("the clip range must lie strictly between 0 and 1, not {clip_range}")]
    ClipRange {
        /// The clip range given.
        clip_range: f64,
    },
    /// A clamp that lets nothing through.
    #[error("the advantage clamp must be positive, not {advantage_clamp}; use infinity for no clamp")]
    AdvantageClamp {
        /// The clamp given.
        advantage_clamp: f64,
    },
    /// A loss that is no number.
    #[error(
        "the loss of an edge is not finite: log-prob {log_prob}, log-prob at rollout {old_log_prob}, advantage \
         {advantage}; the policy has diverged or a value is corrupt"
    )]
    NonFinite {
        /// Under the policy that is trained.
        log_prob: f64,
        /// Under the policy that sampled.
        old_log_prob: f64,
        /// Before it is clamped.
        advantage: f64,
    },
    /// Means or a std between which there is no divergence.
    #[error(
        "no divergence for a mean squared difference of {mean_squared_difference} and a std of {std}; the first must \
         be finite and not negative, the second positive (deterministic steps have none)"
    )]
    Divergence {
        /// Mean over the dimensions of the squared difference of the means.
        mean_squared_difference: f64,
        /// The std of the step.
        std: f64,
    },
}

impl ClippedObjective {
    /// An objective with a clip range and a clamp of the advantages.
    ///
    /// # Errors
    ///
    /// Refuses a clip range outside (0, 1) and a clamp that is not positive.
    pub fn new(clip_range: f64, advantage_clamp: f64) -> Result<Self, ObjectiveError> {
        let objective = Self {
            clip_range,
            advantage_clamp,
        };
        objective.check()?;
        Ok(objective)
    }

    /// Checks the settings, for objectives that were read from a file.
    ///
    /// # Errors
    ///
    /// Those of [`ClippedObjective::new`].
    pub fn check(&self) -> Result<(), ObjectiveError> {
        let Self {
            clip_range,
            advantage_clamp,
        } = *self;
        if !(clip_range > 0.0 && clip_range < 1.0) {
            return Err(ObjectiveError::ClipRange { clip_range });
        }
        if advantage_clamp.is_nan() || advantage_clamp <= 0.0 {
            return Err(ObjectiveError::AdvantageClamp { advantage_clamp });
        }
        Ok(())
    }

    /// The loss of one edge and its derivative in `log_prob`. Both log-probs must be reduced alike, in nats.
    ///
    /// # Errors
    ///
    /// [`ObjectiveError::NonFinite`] if an input is not finite or the loss overflows.
    #[inline]
    pub fn edge(&self, log_prob: f64, old_log_prob: f64, advantage: f64) -> Result<EdgeLoss, ObjectiveError> {
        let non_finite = ObjectiveError::NonFinite {
            log_prob,
            old_log_prob,
            advantage,
        };
        if !(log_prob.is_finite() && old_log_prob.is_finite()) {
            return Err(non_finite);
        }
        self.edge_of_log_ratio(log_prob - old_log_prob, advantage)
            .map_err(|_| non_finite)
    }

    /// The loss of one edge and its derivative in the log-ratio, for objectives that change the ratio first (see
    /// [`guarded_log_ratio`]).
    ///
    /// # Errors
    ///
    /// [`ObjectiveError::NonFinite`] if an input is not finite or the loss overflows; the log-ratio is reported as a
    /// log-prob against 0.
    #[inline]
    pub fn edge_of_log_ratio(&self, log_ratio: f64, advantage: f64) -> Result<EdgeLoss, ObjectiveError> {
        let non_finite = ObjectiveError::NonFinite {
            log_prob: log_ratio,
            old_log_prob: 0.0,
            advantage,
        };
        if !(log_ratio.is_finite() && advantage.is_finite()) {
            return Err(non_finite);
        }
        let clamped = advantage.max(-self.advantage_clamp).min(self.advantage_clamp);
        let ratio = log_ratio.exp();
        let (above, below) = (ratio > 1.0 + self.clip_range, ratio < 1.0 - self.clip_range);
        let clipped = (above && clamped > 0.0) || (below && clamped < 0.0);
        let (loss, derivative) = match clipped {
            true if above => (-(1.0 + self.clip_range) * clamped, 0.0),
            true => (-(1.0 - self.clip_range) * clamped, 0.0),
            // A zero advantage is worth nothing even at an infinite ratio.
            false if clamped == 0.0 => (0.0, 0.0),
            false => (-ratio * clamped, -clamped * ratio),
        };
        if !loss.is_finite() {
            return Err(non_finite);
        }
        Ok(EdgeLoss {
            loss,
            derivative,
            ratio,
            log_ratio,
            clipped,
            outside: above || below,
        })
    }
}

/// `KL = msd / (2·std²)` per dimension between two steps with the same std, whose means differ by `msd` (the mean over
/// the dimensions of the squared difference). `std` is that of the step itself, its time increment included.
///
/// # Errors
///
/// Refuses a negative or non-finite difference and a std that is not positive and finite.
pub fn gaussian_kl(mean_squared_difference: f64, std: f64) -> Result<GaussianKl, ObjectiveError> {
    check_divergence(mean_squared_difference, std)?;
    let derivative = 0.5 / (std * std);
    Ok(GaussianKl {
        value: mean_squared_difference * derivative,
        derivative,
    })
}

/// The log-ratio of GRPO-Guard: `(log_prob - old_log_prob + msd/(2·std²))·std`, where `msd` is the mean squared
/// difference between the means of the trained and the sampling policy.
///
/// The plain log-ratio lies below 0 on average by just that divergence, and spreads by `1/std`; both corrections make
/// the clip act alike on both sides and at all steps. Chain rule: `std` towards `log_prob`, `1/(2·std)` towards `msd`.
///
/// # Errors
///
/// Those of [`gaussian_kl`].
pub fn guarded_log_ratio(
    log_prob: f64,
    old_log_prob: f64,
    mean_squared_difference: f64,
    std: f64,
) -> Result<f64, ObjectiveError> {
    let bias = gaussian_kl(mean_squared_difference, std)?.value;
    Ok((log_prob - old_log_prob + bias) * std)
}

fn check_divergence(mean_squared_difference: f64, std: f64) -> Result<(), ObjectiveError> {
    let valid = mean_squared_difference.is_finite() && mean_squared_difference >= 0.0 && std.is_finite() && std > 0.0;
    if valid {
        Ok(())
    } else {
        Err(ObjectiveError::Divergence {
            mean_squared_difference,
            std,
        })
    }
}
