//! Low-rank adapters ("LoRA", arXiv 2106.09685) on the attention projections.
//!
//! The layer computes `x·W + s·(x·A)·B` and never forms `W + s·A·B` while training: the base weight stays frozen and
//! untracked, so no gradient of its size exists. [`merge`] forms the sum once per rollout instead, on weights that are
//! not trained.

use burn::module::{Module, Param, ParamId};
use burn::tensor::{Device, Tensor, TensorData};
use nn::layers::Linear;
use nn::weights::{ParameterKey, ParameterKeys, Weights, WeightsError};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Normal, Uniform};
use serde::{Deserialize, Serialize};

use crate::transformer::Transformer;

/// The projections of a block's joint attention that carry an adapter, by their names in the checkpoint.
pub const ADAPTED_LAYERS: [&str; 8] = [
    "to_q",
    "to_k",
    "to_v",
    "to_out.0",
    "add_q_proj",
    "add_k_proj",
    "add_v_proj",
    "to_add_out",
];

/// How the factor A starts; B starts at zero, so a new adapter changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LoraInit {
    /// Normal values of deviation `1/rank`: PEFT's `gaussian`, which Flow-GRPO uses.
    #[default]
    Gaussian,
    /// Uniform in `±1/√inputs`: PEFT's default (Kaiming with `a = √5`).
    Kaiming,
}

/// Size and start of an adapter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LoraConfig {
    /// Inner width of the two factors.
    pub rank: usize,
    /// The product is scaled by `alpha / rank`.
    pub alpha: f64,
    /// How A starts.
    pub init: LoraInit,
}

impl LoraConfig {
    /// `alpha / rank`.
    #[must_use]
    pub fn scale(&self) -> f64 {
        self.alpha / self.rank as f64
    }
}

/// The two factors of one adapted layer.
#[derive(Module, Debug)]
pub struct LoraFactors {
    /// `[inputs, rank]`.
    pub a: Param<Tensor<2>>,
    /// `[rank, outputs]`.
    pub b: Param<Tensor<2>>,
    scale: f64,
}

/// A linear layer that may carry an adapter.
#[derive(Module, Debug)]
pub struct LoraLinear {
    base: Linear,
    lora: Option<LoraFactors>,
}

impl LoraLinear {
    /// Reads the base layer.
    ///
    /// # Errors
    ///
    /// A tensor is missing or misshapen.
    pub fn load(weights: &Weights, inputs: usize, outputs: usize) -> Result<Self, WeightsError> {
        Ok(Self {
            base: Linear::load(weights, inputs, outputs)?,
            lora: None,
        })
    }

    /// `[…, inputs]` to `[…, outputs]`.
    #[must_use]
    pub fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        match &self.lora {
            None => self.base.forward(x),
            Some(lora) => {
                let [batch, tokens, inputs] = x.dims();
                let base = self.base.forward(x.clone());
                let low = x.reshape([batch * tokens, inputs]).matmul(lora.a.val());
                let [_, outputs] = self.base.dims();
                base + (low.matmul(lora.b.val()) * lora.scale).reshape([batch, tokens, outputs])
            }
        }
    }

    /// `[inputs, outputs]`.
    #[must_use]
    pub fn dims(&self) -> [usize; 2] {
        self.base.dims()
    }

    /// The factors, if the layer carries an adapter.
    #[must_use]
    pub fn factors(&self) -> Option<&LoraFactors> {
        self.lora.as_ref()
    }

    /// The layer with the adapter's product added to its weight, and no adapter.
    fn merged(&self) -> Self {
        let base = match &self.lora {
            None => self.base.clone(),
            Some(lora) => self.base.add_to_weight(lora.a.val().matmul(lora.b.val()) * lora.scale),
        };
        Self { base, lora: None }
    }
}

/// Gives every adapted layer fresh factors, trainable, and notes their keys.
///
/// The values are a function of the seed and the layer's key alone.
pub fn attach(network: &mut Transformer, keys: &mut ParameterKeys, config: &LoraConfig, seed: u64, device: &Device) {
    for (name, layer) in network.adapted_layers_mut() {
        let [inputs, outputs] = layer.base.dims();
        let a = initial_values(config, seed, &name, inputs);
        let b = vec![0.0; config.rank * outputs];
        attach_values(layer, keys, &name, config, a, b, device);
    }
}

/// Gives one layer the factors `a` (`[inputs, rank]`) and `b` (`[rank, outputs]`), row-major.
pub(crate) fn attach_values(
    layer: &mut LoraLinear,
    keys: &mut ParameterKeys,
    name: &str,
    config: &LoraConfig,
    a: Vec<f32>,
    b: Vec<f32>,
    device: &Device,
) {
    let [inputs, outputs] = layer.base.dims();
    let mut factor = |values: Vec<f32>, shape: [usize; 2], letter: &str| {
        let id = ParamId::new();
        let key = format!("{name}.lora_{letter}.weight");
        keys.insert(
            id,
            ParameterKey {
                key,
                shape: vec![shape[1], shape[0]],
                transposed: true,
            },
        );
        let tensor = Tensor::from_data(TensorData::new(values, shape), device);
        // Marked trainable: `Module::train` will track it, and only it.
        Param::initialized(id, tensor).set_require_grad(true)
    };
    layer.lora = Some(LoraFactors {
        a: factor(a, [inputs, config.rank], "A"),
        b: factor(b, [config.rank, outputs], "B"),
        scale: config.scale(),
    });
}

/// The network with every adapter added into its weights: what samples when only sampling is wanted.
#[must_use]
pub fn merge(network: &Transformer) -> Transformer {
    let mut merged = network.clone();
    for (_, layer) in merged.adapted_layers_mut() {
        *layer = layer.merged();
    }
    merged
}

/// The network without its adapters.
#[must_use]
pub fn detach(network: &Transformer) -> Transformer {
    let mut base = network.clone();
    for (_, layer) in base.adapted_layers_mut() {
        layer.lora = None;
    }
    base
}

/// The starting values of A, `[inputs, rank]` row-major.
fn initial_values(config: &LoraConfig, seed: u64, name: &str, inputs: usize) -> Vec<f32> {
    let mut state = [0u8; 32];
    state[..8].copy_from_slice(&seed.to_le_bytes());
    for (i, byte) in name.bytes().enumerate() {
        let slot = &mut state[8 + i % 24];
        *slot = slot.wrapping_mul(31).wrapping_add(byte);
    }
    let mut random = ChaCha8Rng::from_seed(state);
    let count = inputs * config.rank;
    let bound = 1.0 / (inputs as f32).sqrt();
    // Both distributions have fixed, positive, finite parameters, for which the constructors cannot fail.
    match config.init {
        LoraInit::Gaussian => match Normal::new(0.0, 1.0 / config.rank as f32) {
            Ok(normal) => (0..count).map(|_| normal.sample(&mut random)).collect(),
            Err(_) => vec![0.0; count],
        },
        LoraInit::Kaiming => match Uniform::new_inclusive(-bound, bound) {
            Ok(uniform) => (0..count).map(|_| uniform.sample(&mut random)).collect(),
            Err(_) => vec![0.0; count],
        },
    }
}
