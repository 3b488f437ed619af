//! From initial noise to leaves: the forest grows level by level, all trees of all prompts together.
//!
//! Invariant: no operation here runs on a device that tracks gradients.

use std::collections::HashMap;
use std::ops::Range;

use burn::tensor::{Device, Tensor};
use policy_sd3::guidance::{PromptTable, guided_velocity};
use policy_sd3::kernel::{Kernel, LogProb, Transition};
use policy_sd3::schedule::Schedule;
use policy_sd3::transformer::Transformer;
use rayon::prelude::*;
use tree_core::{Forest, Plan};

use crate::error::TrainError;
use crate::noise::{self, Place, Purpose};

/// How a policy samples. Rollout, evaluation and generation share it, so they cannot differ.
#[derive(Debug, Clone)]
pub struct Sampling {
    /// σ table and network times.
    pub schedule: Schedule,
    /// Kernel of the stochastic steps.
    pub kernel: Kernel,
    /// Its η.
    pub noise_level: f64,
    /// Guidance scale.
    pub guidance: f64,
    /// What a log-prob means.
    pub log_prob: LogProb,
    /// `[channels, height, width]` of the latents.
    pub shape: [usize; 3],
    /// Nodes that go through the network together. Only memory and time depend on it.
    pub micro_batch: usize,
}

/// The prompts of a rollout.
#[derive(Debug, Clone)]
pub struct Prompts<'a> {
    /// Their embeddings.
    pub table: &'a PromptTable,
    /// Their indices in the prompt file, one per row of the table. Noise is keyed by them.
    pub indices: &'a [usize],
}

/// A level of nodes that took a stochastic step: what the update replays.
#[derive(Debug, Clone)]
pub struct StochasticLevel {
    /// The step.
    pub step: usize,
    /// Number of the first child in the forest; the others follow it, in the order of [`Self::children`].
    pub first_child: usize,
    /// The step's coefficients, as they were used.
    pub transition: Transition,
    /// The network's time at the step.
    pub timestep: f64,
    /// σ of the step.
    pub sigma: f64,
    /// Children of every parent.
    pub children_per_node: usize,
    /// Row of the prompt table, per parent.
    pub prompts: Vec<usize>,
    /// Latents before the step `[parents, channels, height, width]`.
    pub parents: Tensor<4>,
    /// Latents after it `[parents·children, channels, height, width]`, siblings side by side.
    pub children: Tensor<4>,
    /// Log-prob of every child.
    pub log_probs: Vec<f64>,
}

/// What a rollout leaves behind.
#[derive(Debug, Clone)]
pub struct Rollout {
    /// The trees. Row r of a level's tensors is node `level.start + r`.
    pub forest: Forest<()>,
    /// The stochastic levels, first to last.
    pub levels: Vec<StochasticLevel>,
    /// Latents of the leaves `[leaves, channels, height, width]`.
    pub leaves: Tensor<4>,
    /// Row of the prompt table, per leaf.
    pub leaf_prompts: Vec<usize>,
    /// Guided velocities that were computed.
    pub evaluations: usize,
}

impl StochasticLevel {
    /// The nodes of the forest that the children are, which also number the edges above them.
    #[must_use]
    pub fn edges(&self) -> Range<usize> {
        self.first_child..self.first_child + self.log_probs.len()
    }
}

impl Sampling {
    /// The guided velocity of every node of a level, in micro-batches.
    #[must_use]
    pub fn velocity(
        &self,
        network: &Transformer,
        latents: &Tensor<4>,
        step: usize,
        table: &PromptTable,
        prompts: &[usize],
    ) -> Tensor<4> {
        let timestep = self.schedule.timestep(step);
        let parts = in_parallel(&self.split(prompts.len(), &latents.device()), |part| {
            let some = latents.clone().narrow(0, part.start, part.len());
            guided_velocity(network, some, timestep, table, &prompts[part], self.guidance)
        });
        Tensor::cat(parts, 0)
    }

    /// The micro-batches of a level of `nodes` nodes: none larger than the setting, and on the CPU at least one for
    /// every thread.
    ///
    /// On the CPU most operations of the engine run on one thread, so threads are better spent on micro-batches side by
    /// side than inside each product. Results are put together in order, so timing does not matter.
    #[must_use]
    pub fn split(&self, nodes: usize, device: &Device) -> Vec<Range<usize>> {
        let threads = if is_host(device) {
            rayon::current_num_threads()
        } else {
            1
        };
        let parts = nodes
            .div_ceil(self.micro_batch.max(1))
            .next_multiple_of(threads)
            .min(nodes)
            .max(1);
        (0..parts)
            .map(|part| part * nodes / parts..(part + 1) * nodes / parts)
            .collect()
    }

    /// Runs the deterministic steps from noise to data: evaluation and generation.
    ///
    /// # Errors
    ///
    /// A latent is not finite.
    pub fn deterministic(
        &self,
        network: &Transformer,
        noise: Tensor<4>,
        table: &PromptTable,
        prompts: &[usize],
    ) -> Result<Tensor<4>, TrainError> {
        let mut latents = noise;
        for step in 0..self.schedule.steps() {
            let velocity = self.velocity(network, &latents, step, table, prompts);
            latents = Kernel::Ode
                .transition(&self.schedule, step, 0.0)?
                .mean(latents, velocity);
        }
        Ok(latents)
    }
}

/// What keys the noise of a rollout, beside its prompts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draw {
    /// Seed of the run.
    pub seed: u64,
    /// Iteration, counted from 0.
    pub iteration: u64,
}

/// Grows the trees that `plan` describes for every prompt.
///
/// # Errors
///
/// The plan and the schedule disagree, a step has no density, or a latent is not finite.
pub fn roll_out(
    network: &Transformer,
    plan: &Plan,
    sampling: &Sampling,
    prompts: &Prompts<'_>,
    draw: Draw,
    device: &Device,
) -> Result<Rollout, TrainError> {
    let Draw { seed, iteration } = draw;
    let forest = Forest::from_plan(plan, prompts.indices.len())?;
    let roots = forest.level(0);
    let copies = earlier_copies(prompts.indices);
    let tree_of = |node: usize| {
        let tree = forest.tree(node);
        (copies[tree / plan.roots()] * plan.roots() + tree % plan.roots()) as u32
    };
    // One initial noise per tree.
    let root_places = roots.clone().map(|node| Place {
        purpose: Purpose::Root,
        iteration,
        prompt: prompts.indices[forest.group(node)] as u64,
        tree: tree_of(node),
        step: 0,
        node: 0,
    });
    let mut latents = noise::normal(seed, root_places, sampling.shape, device);
    let mut rows: Vec<usize> = roots.map(|node| forest.group(node)).collect();
    let mut levels = Vec::new();
    let mut evaluations = 0;

    for step in 0..plan.steps().len() {
        // One evaluation of the network serves all children of a node.
        let velocity = sampling.velocity(network, &latents, step, prompts.table, &rows);
        evaluations += rows.len();
        if !plan.is_stochastic(step) {
            latents = Kernel::Ode
                .transition(&sampling.schedule, step, 0.0)?
                .mean(latents, velocity);
            continue;
        }
        let transition = sampling
            .kernel
            .transition(&sampling.schedule, step, sampling.noise_level)?;
        let children_per_node = plan.children(step);
        let next = forest.level(step + 1);
        let places = next.clone().map(|node| Place {
            purpose: Purpose::Step,
            iteration,
            prompt: prompts.indices[forest.group(node)] as u64,
            tree: tree_of(node),
            step: step as u16,
            node: ((node - next.start) % plan.width(step + 1)) as u32,
        });
        let noise = noise::normal(seed, places, sampling.shape, device);
        let mean = repeat_rows(transition.mean(latents.clone(), velocity), children_per_node);
        let children = transition.sample(mean.clone(), noise);
        // The children are stored in f32, the type they are made in, so their density is that of what is stored.
        let log_probs = to_f64(transition.log_prob(children.clone(), mean, sampling.log_prob)?)?;
        if let Some(bad) = log_probs.iter().position(|value| !value.is_finite()) {
            let prompt = prompts.indices[rows[bad / children_per_node]];
            return Err(TrainError::NonFinite {
                what: "velocity",
                step,
                prompt,
            });
        }
        let child_rows = rows
            .iter()
            .flat_map(|row| std::iter::repeat_n(*row, children_per_node))
            .collect();
        levels.push(StochasticLevel {
            step,
            first_child: next.start,
            transition,
            timestep: sampling.schedule.timestep(step),
            sigma: sampling.schedule.sigma(step),
            children_per_node,
            prompts: std::mem::replace(&mut rows, child_rows),
            parents: latents,
            children: children.clone(),
            log_probs,
        });
        latents = children;
    }
    Ok(Rollout {
        forest,
        levels,
        leaves: latents,
        leaf_prompts: rows,
        evaluations,
    })
}

/// For every prompt of an iteration, how often it came before in the same iteration. Its trees are then further trees
/// of the prompt, with noise of their own.
fn earlier_copies(indices: &[usize]) -> Vec<usize> {
    let mut seen: HashMap<usize, usize> = HashMap::new();
    let count = |index: &usize| {
        let times = seen.entry(*index).or_default();
        *times += 1;
        *times - 1
    };
    indices.iter().map(count).collect()
}

/// Runs independent micro-batches, on the CPU side by side, and returns their results in order.
pub(crate) fn in_parallel<T: Send>(parts: &[Range<usize>], work: impl Fn(Range<usize>) -> T + Sync) -> Vec<T> {
    match parts {
        [only] => vec![work(only.clone())],
        _ => parts.par_iter().map(|part| work(part.clone())).collect(),
    }
}

/// Whether a device computes on the host's own threads.
fn is_host(device: &Device) -> bool {
    #[cfg(feature = "flex")]
    {
        *device == Device::flex()
    }
    #[cfg(not(feature = "flex"))]
    {
        let _ = device;
        false
    }
}

/// Every row `times` times, copies side by side: `[n, c, h, w]` to `[n·times, c, h, w]`.
#[must_use]
pub fn repeat_rows(x: Tensor<4>, times: usize) -> Tensor<4> {
    let [rows, channels, height, width] = x.dims();
    x.unsqueeze_dim::<5>(1)
        .repeat_dim(1, times)
        .reshape([rows * times, channels, height, width])
}

/// A vector's values, widened.
///
/// # Errors
///
/// The device did not hand them over.
pub fn to_f64(vector: Tensor<1>) -> Result<Vec<f64>, TrainError> {
    let values: Vec<f32> = vector
        .into_data()
        .try_to_vec()
        .map_err(|e| TrainError::Device(format!("{e:?}")))?;
    Ok(values.into_iter().map(f64::from).collect())
}
