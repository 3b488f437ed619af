//! One step as three numbers, and what follows from them.

use burn::tensor::Tensor;
use serde::{Deserialize, Serialize};

use super::{Kernel, KernelError};

/// A step `x' = a·x + b·v + std·ξ` with `ξ ~ N(0, I)`, where `v` is the network's prediction (the guided velocity, or
/// the noise for DDIM).
///
/// `∂mean/∂v = b`. The coefficients are in double precision; tensors are taken as they come, which should be f32.
/// Functions whose name ends in `_f64` do the same on one row of plain numbers, for references and small analyses.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Transition {
    /// Factor of the latent.
    pub a: f64,
    /// Factor of the prediction, and derivative of the mean in it.
    pub b: f64,
    /// Standard deviation of the outcome around its mean, the same for every element; 0 for a deterministic step.
    pub std: f64,
}

/// Which function of outcome and mean counts as the log-probability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Density {
    /// `−(x'−mean)²/(2·std²) − ln std − ½·ln 2π`, the log-density of the step.
    #[default]
    Gaussian,
    /// `−(x'−mean)²`, without variance and constants, as published programs with the `cps` kernel use (Flow-CPS,
    /// arXiv 2509.05952). It is no density; clip ranges for it differ from those of the other form.
    Unscaled,
}

/// How elements of one sample are put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reduction {
    /// Mean over the elements. Published clip ranges (1e-5 to 1e-3) belong to it.
    #[default]
    Mean,
    /// Sum over the elements: the log-density of the sample as a whole.
    Sum,
}

/// What a log-probability means in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogProb {
    /// Form of the density.
    pub density: Density,
    /// Reduction over the elements of a sample.
    pub reduction: Reduction,
}

impl LogProb {
    /// `(factor, constant)` such that a sample's value is `factor·mean((x'−mean)²) + constant`.
    fn scale(self, std: f64, elements: usize) -> (f64, f64) {
        let (factor, constant) = match self.density {
            Density::Gaussian => (-0.5 / (std * std), -std.ln() - 0.5 * std::f64::consts::TAU.ln()),
            Density::Unscaled => (-1.0, 0.0),
        };
        match self.reduction {
            Reduction::Mean => (factor, constant),
            Reduction::Sum => (factor * elements as f64, constant * elements as f64),
        }
    }
}

impl Transition {
    /// Whether the step has noise.
    #[must_use]
    pub fn is_stochastic(&self) -> bool {
        self.std > 0.0
    }

    /// Mean of the outcome, `a·x + b·v`, of the shape of both.
    ///
    /// # Panics
    ///
    /// The shapes differ, as for every function of two tensors here.
    #[must_use]
    pub fn mean<const D: usize>(&self, x: Tensor<D>, v: Tensor<D>) -> Tensor<D> {
        // A factor of 1 is left out, so that a deterministic step is exactly x + dt·v.
        let kept = if self.a == 1.0 { x } else { x * self.a };
        kept + v * self.b
    }

    /// An outcome, `mean + std·noise`; a deterministic step returns the mean.
    ///
    /// Round the result to the type that it is stored in *before* its log-probability is taken, or the ratio of the
    /// first update is not 1.
    #[must_use]
    pub fn sample<const D: usize>(&self, mean: Tensor<D>, noise: Tensor<D>) -> Tensor<D> {
        if self.is_stochastic() {
            mean + noise * self.std
        } else {
            mean
        }
    }

    /// Log-probability of the outcomes of each row, `[batch, …]` to `[batch]`.
    ///
    /// # Errors
    ///
    /// [`KernelError::NoDensity`] for a deterministic step.
    pub fn log_prob<const D: usize>(
        &self,
        sample: Tensor<D>,
        mean: Tensor<D>,
        kind: LogProb,
    ) -> Result<Tensor<1>, KernelError> {
        self.require_noise()?;
        let [batch, elements] = rows(&sample);
        let (factor, constant) = kind.scale(self.std, elements);
        let square = (sample - mean).reshape([batch, elements]).square();
        Ok(square.mean_dim(1).reshape([batch]) * factor + constant)
    }

    /// Derivative of each row's log-probability in the prediction `v`, of the shape of `sample`.
    ///
    /// For the Gaussian mean over n elements it is `b·(x'−mean)/(std²·n)`.
    ///
    /// # Errors
    ///
    /// [`KernelError::NoDensity`] for a deterministic step.
    pub fn log_prob_derivative<const D: usize>(
        &self,
        sample: Tensor<D>,
        mean: Tensor<D>,
        kind: LogProb,
    ) -> Result<Tensor<D>, KernelError> {
        self.require_noise()?;
        let [_, elements] = rows(&sample);
        Ok((sample - mean) * self.derivative_factor(kind, elements))
    }

    /// Divergence of the step under two means, `(mean−reference)²/(2·std²)` reduced over the elements, `[batch, …]` to
    /// `[batch]`. Its derivative in the prediction is [`Transition::divergence_derivative`].
    ///
    /// # Errors
    ///
    /// [`KernelError::NoDensity`] for a deterministic step.
    pub fn divergence<const D: usize>(
        &self,
        mean: Tensor<D>,
        reference: Tensor<D>,
        reduction: Reduction,
    ) -> Result<Tensor<1>, KernelError> {
        self.require_noise()?;
        let [batch, elements] = rows(&mean);
        let (factor, _) = LogProb {
            density: Density::Gaussian,
            reduction,
        }
        .scale(self.std, elements);
        let square = (mean - reference).reshape([batch, elements]).square();
        Ok(square.mean_dim(1).reshape([batch]) * -factor)
    }

    /// Derivative of each row's divergence in the prediction that gave `mean`, of the shape of `mean`.
    ///
    /// # Errors
    ///
    /// [`KernelError::NoDensity`] for a deterministic step.
    pub fn divergence_derivative<const D: usize>(
        &self,
        mean: Tensor<D>,
        reference: Tensor<D>,
        reduction: Reduction,
    ) -> Result<Tensor<D>, KernelError> {
        self.require_noise()?;
        let [_, elements] = rows(&mean);
        let kind = LogProb {
            density: Density::Gaussian,
            reduction,
        };
        Ok((mean - reference) * self.derivative_factor(kind, elements))
    }

    /// [`Transition::mean`] of plain numbers.
    #[must_use]
    pub fn mean_f64(&self, x: &[f64], v: &[f64]) -> Vec<f64> {
        assert_eq!(x.len(), v.len(), "latent and prediction have different sizes");
        x.iter().zip(v).map(|(x, v)| self.a * x + self.b * v).collect()
    }

    /// [`Transition::sample`] of plain numbers.
    #[must_use]
    pub fn sample_f64(&self, mean: &[f64], noise: &[f64]) -> Vec<f64> {
        assert_eq!(mean.len(), noise.len(), "mean and noise have different sizes");
        mean.iter()
            .zip(noise)
            .map(|(mean, noise)| mean + self.std * noise)
            .collect()
    }

    /// [`Transition::log_prob`] of one row of plain numbers.
    ///
    /// # Errors
    ///
    /// [`KernelError::NoDensity`] for a deterministic step.
    pub fn log_prob_f64(&self, sample: &[f64], mean: &[f64], kind: LogProb) -> Result<f64, KernelError> {
        self.require_noise()?;
        assert_eq!(sample.len(), mean.len(), "outcome and mean have different sizes");
        let (factor, constant) = kind.scale(self.std, sample.len());
        let total: f64 = sample.iter().zip(mean).map(|(x, mean)| (x - mean) * (x - mean)).sum();
        Ok(factor * total / sample.len() as f64 + constant)
    }

    /// [`Transition::log_prob_derivative`] of one row of plain numbers.
    ///
    /// # Errors
    ///
    /// [`KernelError::NoDensity`] for a deterministic step.
    pub fn log_prob_derivative_f64(
        &self,
        sample: &[f64],
        mean: &[f64],
        kind: LogProb,
    ) -> Result<Vec<f64>, KernelError> {
        self.require_noise()?;
        assert_eq!(sample.len(), mean.len(), "outcome and mean have different sizes");
        let factor = self.derivative_factor(kind, sample.len());
        Ok(sample.iter().zip(mean).map(|(x, mean)| factor * (x - mean)).collect())
    }

    /// Refuses a standard deviation that no density can be taken with.
    pub(super) fn check(&self, kernel: Kernel, noise_level: f64, step: Option<usize>) -> Result<(), KernelError> {
        if self.std.is_finite() && self.std > 0.0 && self.a.is_finite() && self.b.is_finite() {
            return Ok(());
        }
        let at = step.map(|step| format!(" at step {step}")).unwrap_or_default();
        Err(KernelError::Deviation {
            kernel: kernel.name(),
            noise_level,
            std: self.std,
            at,
        })
    }

    fn require_noise(&self) -> Result<(), KernelError> {
        if self.is_stochastic() {
            Ok(())
        } else {
            Err(KernelError::NoDensity)
        }
    }

    /// What `x' − mean` is multiplied by in the derivative of the log-probability in v.
    fn derivative_factor(&self, kind: LogProb, elements: usize) -> f64 {
        let (factor, _) = kind.scale(self.std, elements);
        // d/dv of factor·(x'−mean)²/n, with dmean/dv = b.
        -2.0 * factor * self.b / elements as f64
    }
}

/// `[rows, elements of a row]` of a tensor whose first dimension is the batch.
fn rows<const D: usize>(tensor: &Tensor<D>) -> [usize; 2] {
    let dims = tensor.dims();
    [dims[0], dims[1..].iter().product()]
}
