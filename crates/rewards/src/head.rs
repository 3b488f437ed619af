//! The chain of linear layers that turns a feature into a score, as LAION's aesthetic predictor and ImageReward have it.

use nn::weights::{Weights, WeightsError};

/// Place of each linear layer in the file (the places between are dropouts, which do nothing here) and its outputs.
const LAYERS: [(usize, usize); 5] = [(0, 1024), (2, 128), (4, 64), (6, 16), (7, 1)];

/// Linear layers without an activation between them: an affine map of the feature, kept as its factors.
///
/// It is computed on the host in f64. A score then rounds nowhere but in its feature, and does not depend on what else is
/// in the batch.
#[derive(Debug, Clone)]
pub struct LinearChain {
    layers: Vec<Layer>,
}

#[derive(Debug, Clone)]
struct Layer {
    /// `[outputs][inputs]`.
    rows: Vec<Vec<f32>>,
    bias: Vec<f32>,
}

impl LinearChain {
    /// Reads `layers.{0,2,4,6,7}` of a chain for features of `inputs` numbers.
    ///
    /// # Errors
    ///
    /// A tensor is missing or misshapen.
    pub fn load(weights: &Weights, inputs: usize) -> Result<Self, WeightsError> {
        let mut width = inputs;
        let layers = LAYERS.map(|(place, outputs)| {
            let layer = weights.scope(format!("layers.{place}"));
            let rows = layer.values("weight", &[outputs, width])?;
            let rows = rows.chunks_exact(width).map(<[f32]>::to_vec).collect();
            width = outputs;
            Ok(Layer {
                rows,
                bias: layer.values("bias", &[outputs])?,
            })
        });
        Ok(Self {
            layers: layers.into_iter().collect::<Result<_, WeightsError>>()?,
        })
    }

    /// The score of a feature of as many numbers as the chain was read for.
    #[must_use]
    pub fn score(&self, feature: &[f32]) -> f64 {
        let start: Vec<f64> = feature.iter().map(|value| f64::from(*value)).collect();
        let end = self.layers.iter().fold(start, |x, layer| layer.forward(&x));
        // The last layer has one output.
        end[0]
    }
}

impl Layer {
    fn forward(&self, x: &[f64]) -> Vec<f64> {
        let row = |(row, bias): (&Vec<f32>, &f32)| {
            let products = row.iter().zip(x).map(|(weight, value)| f64::from(*weight) * value);
            products.sum::<f64>() + f64::from(*bias)
        };
        self.rows.iter().zip(&self.bias).map(row).collect()
    }
}
