//! A seeded network of SD3.5's shape, small enough for thousands of evaluations a second, with an adapter that acts.

use burn::tensor::{Device, Tensor};
use nn::weights::Weights;
use policy_sd3::guidance::PromptTable;
use policy_sd3::kernel::{Kernel, LogProb};
use policy_sd3::lora::{self, LoraConfig, LoraInit};
use policy_sd3::schedule::Schedule;
use policy_sd3::text::PromptEmbeddings;
use policy_sd3::transformer::{Transformer, TransformerConfig};
use trainer::optimiser::{to_device, to_host};
use trainer::parameters::Layout;
use trainer::rollout::{Draw, Prompts, Rollout, Sampling, roll_out};
use trainer::update::{Objective, Update};
use tree_core::{ClippedObjective, LevelWeight, Plan};

pub(crate) const LORA: LoraConfig = LoraConfig {
    rank: 2,
    alpha: 4.0,
    init: LoraInit::Kaiming,
};
pub(crate) const DRAW: Draw = Draw { seed: 11, iteration: 4 };
/// Indices of the toy's prompts in an imagined file.
pub(crate) const INDICES: [usize; 3] = [7, 2, 19];

pub(crate) struct Toy {
    pub(crate) device: Device,
    pub(crate) network: Transformer,
    pub(crate) layout: Layout,
    pub(crate) table: PromptTable,
    pub(crate) sampling: Sampling,
}

impl Toy {
    /// A toy that samples in this many steps.
    pub(crate) fn new(steps: usize) -> Self {
        let device = Device::flex();
        let config = TransformerConfig {
            in_channels: 4,
            out_channels: None,
            patch_size: 2,
            num_layers: 2,
            attention_head_dim: 8,
            num_attention_heads: 2,
            joint_attention_dim: 12,
            caption_projection_dim: 16,
            pooled_projection_dim: 10,
            pos_embed_max_size: 4,
            sample_size: 8,
            dual_attention_layers: vec![0],
            qk_norm: Some("rms_norm".into()),
        };
        let (mut network, mut keys) =
            Transformer::load(Weights::seeded(7, 1.0, &device), &config).expect("a seeded network");
        lora::attach(&mut network, &mut keys, &LORA, 3, &device);
        let layout = Layout::of(&network, &keys);
        let network = nudged(&layout, network, 0.3);
        let sampling = Sampling {
            schedule: Schedule::diffusers(steps, 3.0, 1000).expect("a schedule"),
            kernel: Kernel::FlowSde,
            noise_level: 0.7,
            guidance: 2.0,
            log_prob: LogProb::default(),
            shape: [4, 4, 4],
            micro_batch: 64,
        };
        let table = table(&[0, 1, 2], &device);
        Self {
            device,
            network,
            layout,
            table,
            sampling,
        }
    }

    /// Rolls out the plan for the prompts of the table, with adapters merged as a run does it.
    pub(crate) fn roll_out(&self, plan: &Plan, sampling: &Sampling) -> Rollout {
        self.roll_out_for(plan, sampling, &self.table, &INDICES, DRAW)
    }

    pub(crate) fn roll_out_for(
        &self,
        plan: &Plan,
        sampling: &Sampling,
        table: &PromptTable,
        indices: &[usize],
        draw: Draw,
    ) -> Rollout {
        let prompts = Prompts { table, indices };
        roll_out(
            &lora::merge(&self.network),
            plan,
            sampling,
            &prompts,
            draw,
            &self.device,
        )
        .expect("a rollout")
    }

    pub(crate) fn update<'a>(&'a self, sampling: &'a Sampling, objective: &'a Objective) -> Update<'a> {
        Update {
            network: &self.network,
            reference: None,
            layout: &self.layout,
            sampling,
            table: &self.table,
            objective,
            edge_factors: None,
            iteration: 5,
        }
    }
}

/// Embeddings of some rows of one imagined list of prompts, and of the empty prompt.
pub(crate) fn table(rows: &[usize], device: &Device) -> PromptTable {
    let all: Tensor<3> = waves([4, 5, 12], 0.0, device);
    let all_pooled: Tensor<2> = waves([4, 10], 1.0, device);
    let rows: Vec<usize> = rows.iter().copied().chain([3]).collect();
    PromptTable::new(&PromptEmbeddings {
        sequence: Tensor::cat(rows.iter().map(|r| all.clone().narrow(0, *r, 1)).collect(), 0),
        pooled: Tensor::cat(rows.iter().map(|r| all_pooled.clone().narrow(0, *r, 1)).collect(), 0),
        zero_tokens: 3,
        truncated: Vec::new(),
    })
}

/// Values between −1 and 1 without a pattern that matters.
pub(crate) fn waves<const D: usize>(shape: [usize; D], phase: f32, device: &Device) -> Tensor<D> {
    let count = shape.iter().product::<usize>();
    let values: Vec<f32> = (0..count).map(|i| (i as f32 * 1.7 + phase).sin()).collect();
    Tensor::<1>::from_floats(values.as_slice(), device).reshape(shape)
}

/// The network with every trained value moved by up to `amount`.
pub(crate) fn nudged(layout: &Layout, network: Transformer, amount: f32) -> Transformer {
    let mut values = to_host(&layout.gather(&network)).expect("values");
    for (i, value) in values.iter_mut().enumerate() {
        *value += amount * (i as f32 * 0.9).sin();
    }
    layout.scatter(network, &to_device(values, &Device::flex()))
}

/// An objective with the weights of a plan.
pub(crate) fn objective(plan: &Plan, clip_range: f64) -> Objective {
    Objective {
        clipped: ClippedObjective::new(clip_range, 5.0).expect("an objective"),
        edge_weights: plan.edge_weights(LevelWeight::Path),
        kl_beta: 0.0,
    }
}

/// Advantages of both signs for every edge of a rollout.
pub(crate) fn advantages(rollout: &Rollout) -> Vec<f64> {
    (0..rollout.forest.len())
        .map(|node| (node as f64 * 2.3).sin() * 1.5)
        .collect()
}

/// The largest difference over the norm of the second.
#[track_caller]
pub(crate) fn relative_difference(a: &Tensor<1>, b: &Tensor<1>) -> f64 {
    let (a, b) = (to_host(a).expect("values"), to_host(b).expect("values"));
    assert_eq!(a.len(), b.len());
    let difference: f64 = a.iter().zip(&b).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    difference.sqrt() / crate::fixture::norm(&b)
}
