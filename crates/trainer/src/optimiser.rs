//! One optimiser step on the flat vector of trained parameters: finite check, global-norm clipping, AdamW, EMA.

use burn::optim::{AdamW, AdamWConfig, AdamWState, AdaptiveMomentumState, Optimizer};
use burn::tensor::{Device, Tensor};
use serde::{Deserialize, Serialize};

use crate::error::TrainError;
use crate::metrics::Observer;
use crate::parameters::Layout;

/// Settings of the optimiser.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct OptimiserConfig {
    /// Step size.
    pub learning_rate: f64,
    /// Decay of the first moment.
    pub beta_1: f64,
    /// Decay of the second moment.
    pub beta_2: f64,
    /// Added to the root of the second moment. Log-probs are means over dimensions, so gradients can be small: keep
    /// it well below the logged gradient norm.
    pub epsilon: f64,
    /// Decoupled weight decay.
    pub weight_decay: f64,
    /// Largest global norm of the gradient; larger ones are scaled down to it.
    pub gradient_clip: f64,
}

/// Trained parameters, their averages and the optimiser's moments. Everything is f32 and flat.
#[derive(Clone)]
pub struct OptimiserState {
    /// The parameters.
    pub parameters: Tensor<1>,
    /// Their exponential moving average, if one is kept.
    pub average: Option<Tensor<1>>,
    /// First and second moment; none before the first step.
    pub moments: Option<[Tensor<1>; 2]>,
    /// Steps taken.
    pub steps: u64,
}

/// What a step did, for the log.
#[derive(Debug, Clone, Copy)]
pub struct StepReport {
    /// Global norm of the gradient before clipping.
    pub gradient_norm: f64,
    /// Norm of the change of the parameters.
    pub change_norm: f64,
}

/// Applies steps to a state.
pub struct Optimiser {
    adam: AdamW,
    config: OptimiserConfig,
    average_decay: Option<f64>,
}

impl OptimiserState {
    /// A state before the first step.
    #[must_use]
    pub fn new(parameters: Tensor<1>, with_average: bool) -> Self {
        // The average is a value of its own: burn's tensors are never changed in place, so it cannot alias.
        let average = with_average.then(|| parameters.clone());
        Self {
            parameters,
            average,
            moments: None,
            steps: 0,
        }
    }

    /// Makes the average fit a setting that changed between sessions, and says so: one that is not wanted any more is
    /// dropped, one that is newly wanted begins at the parameters.
    pub fn keep_average(&mut self, wanted: bool, observer: &mut dyn Observer) {
        match (wanted, self.average.is_some()) {
            (true, false) => {
                observer.note(&format!(
                    "the average of the parameters begins at optimiser step {}",
                    self.steps
                ));
                self.average = Some(self.parameters.clone());
            }
            (false, true) => {
                observer.note("train.ema_decay is off, so the checkpoint's average of the parameters is dropped");
                self.average = None;
            }
            _ => {}
        }
    }

    /// What evaluation and published adapters use: the average if one is kept.
    #[must_use]
    pub fn published(&self) -> &Tensor<1> {
        self.average.as_ref().unwrap_or(&self.parameters)
    }
}

impl Optimiser {
    /// An optimiser; with `average_decay`, every step also moves the average.
    #[must_use]
    pub fn new(config: OptimiserConfig, average_decay: Option<f64>) -> Self {
        let adam = AdamWConfig::new()
            .with_beta_1(config.beta_1 as f32)
            .with_beta_2(config.beta_2 as f32)
            .with_epsilon(config.epsilon as f32)
            .with_weight_decay(config.weight_decay as f32)
            .build();
        Self {
            adam,
            config,
            average_decay,
        }
    }

    /// One step. The state is left alone when the gradient is not finite.
    ///
    /// # Errors
    ///
    /// [`TrainError::NonFiniteGradient`] names the first tensor that holds such a value.
    pub fn step(
        &self,
        state: &mut OptimiserState,
        gradient: Tensor<1>,
        layout: &Layout,
    ) -> Result<StepReport, TrainError> {
        let gradient_norm = norm(&gradient)?;
        if !gradient_norm.is_finite() {
            return Err(non_finite(&gradient, layout));
        }
        let scale = if gradient_norm > self.config.gradient_clip {
            // PyTorch's clip_grad_norm_ adds 1e-6 to the norm; parity of the update asks for the same.
            self.config.gradient_clip / (gradient_norm + 1e-6)
        } else {
            1.0
        };
        let gradient = if scale == 1.0 { gradient } else { gradient * scale };
        let moments = state.moments.take().map(|[moment_1, moment_2]| {
            AdamWState::new(AdaptiveMomentumState {
                time: state.steps as usize,
                moment_1,
                moment_2,
                max_moment_2: None,
            })
        });
        let before = state.parameters.clone();
        let (after, moments) = self
            .adam
            .step(self.config.learning_rate, before.clone(), gradient, moments);
        state.moments = moments.map(|m| [m.momentum.moment_1, m.momentum.moment_2]);
        state.steps += 1;
        let change_norm = norm(&(after.clone() - before))?;
        if let (Some(decay), Some(average)) = (self.average_decay, &mut state.average) {
            let decay = warmed_up(decay, state.steps);
            *average = average.clone() * decay + after.clone() * (1.0 - decay);
        }
        state.parameters = after;
        Ok(StepReport {
            gradient_norm,
            change_norm,
        })
    }
}

/// The decay of an average after `steps` steps: an average over few values must not cling to the first of them.
fn warmed_up(decay: f64, steps: u64) -> f64 {
    let steps = steps as f64;
    decay.min((1.0 + steps) / (10.0 + steps))
}

/// The Euclidean norm, summed in f64 on the host so that neither order nor size costs digits.
fn norm(vector: &Tensor<1>) -> Result<f64, TrainError> {
    let values: Vec<f32> = to_host(vector)?;
    Ok(values.iter().map(|v| f64::from(*v) * f64::from(*v)).sum::<f64>().sqrt())
}

fn non_finite(gradient: &Tensor<1>, layout: &Layout) -> TrainError {
    let values = to_host(gradient).unwrap_or_default();
    let element = values.iter().position(|v| !v.is_finite()).unwrap_or(0);
    TrainError::NonFiniteGradient {
        tensor: layout.name_of(element).to_owned(),
    }
}

/// The values of a flat vector.
///
/// # Errors
///
/// The device did not hand them over.
pub fn to_host(vector: &Tensor<1>) -> Result<Vec<f32>, TrainError> {
    vector
        .to_data()
        .try_to_vec()
        .map_err(|e| TrainError::Device(format!("{e:?}")))
}

/// A flat vector on a device.
#[must_use]
pub fn to_device(values: Vec<f32>, device: &Device) -> Tensor<1> {
    Layout::tensor(values, device)
}
