//! The update: one forward and one backward of the network per node, whatever its number of children.
//!
//! All k log-probs of a node depend on the parameters through the node's one mean. So the objective's derivative in the
//! velocity is formed outside of the tape, `∂L/∂v = Σ_b c_b·∂logp_b/∂v`, and the tape sees a single product with it.

use burn::module::Module;
use burn::tensor::{Int, Tensor, TensorData};
use policy_sd3::guidance::{PromptTable, guided_velocity};
use policy_sd3::kernel::Reduction;
use policy_sd3::transformer::Transformer;
use tree_core::{ClippedObjective, RatioStatistics};

use crate::error::TrainError;
use crate::parameters::Layout;
use crate::rollout::{Rollout, Sampling, StochasticLevel, in_parallel, repeat_rows, to_f64};

/// The objective of an update.
#[derive(Debug, Clone)]
pub struct Objective {
    /// The clipped ratio objective of an edge.
    pub clipped: ClippedObjective,
    /// Weight of an edge's loss, per step of the plan.
    pub edge_weights: Vec<f64>,
    /// Factor of the divergence from the reference policy; 0 leaves it out.
    pub kl_beta: f64,
}

/// A training node: level among the rollout's stochastic levels, and row in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrainingNode {
    /// Index into [`Rollout::levels`].
    pub level: usize,
    /// Row of [`StochasticLevel::parents`].
    pub row: usize,
}

/// Gradient of the objective over some training nodes, and what to log.
#[derive(Debug, Clone)]
pub struct NodeGradient {
    /// Of the loss in the flat vector of trained parameters.
    pub gradient: Tensor<1>,
    /// The loss.
    pub loss: f64,
    /// Mean divergence from the reference over the edges' nodes, in nats per dimension.
    pub kl: f64,
    /// Ratios of the edges.
    pub ratios: RatioStatistics,
    /// Largest |ratio − 1|, and where.
    pub worst: Option<WorstRatio>,
    /// Nodes that were evaluated.
    pub nodes: usize,
}

/// The edge whose ratio is farthest from 1.
#[derive(Debug, Clone, Copy)]
pub struct WorstRatio {
    /// |ratio − 1|.
    pub distance: f64,
    /// Its level among the rollout's stochastic levels.
    pub level: usize,
    /// Log-prob of the rollout.
    pub stored: f64,
    /// Log-prob of the update.
    pub replayed: f64,
}

impl WorstRatio {
    /// The one that is farther from 1; a NaN is farther than anything.
    fn larger(self, other: Self) -> Self {
        if other.distance > self.distance || other.distance.is_nan() {
            other
        } else {
            self
        }
    }
}

impl NodeGradient {
    /// Adds another part; `kl` is a sum until all parts are added.
    fn add(&mut self, part: Self) {
        self.gradient = self.gradient.clone() + part.gradient;
        self.loss += part.loss;
        self.kl += part.kl;
        self.ratios.merge(&part.ratios);
        self.nodes += part.nodes;
        self.worst = match (self.worst, part.worst) {
            (Some(a), Some(b)) => Some(a.larger(b)),
            (a, b) => a.or(b),
        };
    }
}

/// What an update works on.
pub struct Update<'a> {
    /// The policy, on a plain device.
    pub network: &'a Transformer,
    /// The policy without what is trained; needed for the divergence only.
    pub reference: Option<&'a Transformer>,
    /// The trained parameters.
    pub layout: &'a Layout,
    /// How the policy samples.
    pub sampling: &'a Sampling,
    /// The prompts of the rollout.
    pub table: &'a PromptTable,
    /// The objective.
    pub objective: &'a Objective,
    /// What the loss of the edge above every node of the forest is multiplied by, beside the weight of its step; 0 for
    /// an edge that is dropped. None if none is, which is the same as 1 everywhere.
    pub edge_factors: Option<&'a [f64]>,
    /// Iteration, for messages.
    pub iteration: u64,
}

/// Every training node of a rollout, level by level.
#[must_use]
pub fn training_nodes(rollout: &Rollout) -> Vec<TrainingNode> {
    let nodes =
        |(level, l): (usize, &StochasticLevel)| (0..l.prompts.len()).map(move |row| TrainingNode { level, row });
    rollout.levels.iter().enumerate().flat_map(nodes).collect()
}

/// The training nodes below which an edge is left; the others would teach nothing and need not be evaluated. See
/// [`Update::edge_factors`].
#[must_use]
pub fn nodes_left(rollout: &Rollout, edge_factors: Option<&[f64]>) -> Vec<TrainingNode> {
    let mut nodes = training_nodes(rollout);
    if let Some(factors) = edge_factors {
        nodes.retain(|node| {
            let level = &rollout.levels[node.level];
            let first = level.first_child + node.row * level.children_per_node;
            factors[first..first + level.children_per_node]
                .iter()
                .any(|factor| *factor != 0.0)
        });
    }
    nodes
}

impl Update<'_> {
    /// The gradient of `scale·Σ weight·factor·L(edge)` over the edges below `nodes`.
    ///
    /// `advantages` holds one value per node of the forest, of the edge above it. The result is the same for every
    /// micro-batch size, up to the rounding of a sum.
    ///
    /// # Errors
    ///
    /// A log-prob or advantage is not finite.
    pub fn gradient(
        &self,
        rollout: &Rollout,
        advantages: &[f64],
        nodes: &[TrainingNode],
        scale: f64,
    ) -> Result<NodeGradient, TrainError> {
        let device = rollout.leaves.device();
        let mut total = NodeGradient {
            gradient: Tensor::zeros([self.layout.len()], &device),
            loss: 0.0,
            kl: 0.0,
            ratios: RatioStatistics::default(),
            worst: None,
            nodes: 0,
        };
        for (index, level) in rollout.levels.iter().enumerate() {
            let rows: Vec<usize> = nodes.iter().filter(|n| n.level == index).map(|n| n.row).collect();
            if rows.is_empty() {
                continue;
            }
            let edges = &advantages[level.edges()];
            let parts = self.sampling.split(rows.len(), &device);
            let parts = in_parallel(&parts, |part| self.micro_batch(index, level, edges, &rows[part], scale));
            // Added in order, so that the sum does not depend on which thread was first.
            for part in parts {
                total.add(part?);
            }
        }
        if total.nodes > 0 {
            total.kl /= total.nodes as f64;
        }
        Ok(total)
    }

    /// One micro-batch of nodes of one level.
    fn micro_batch(
        &self,
        index: usize,
        level: &StochasticLevel,
        edges: &[f64],
        rows: &[usize],
        scale: f64,
    ) -> Result<NodeGradient, TrainError> {
        // A tracked copy of its own: the parameters' values are shared, the tape is not.
        let tracked = self.network.clone().train();
        let k = level.children_per_node;
        let parents = pick_rows(&level.parents, rows);
        let children_rows: Vec<usize> = rows.iter().flat_map(|row| row * k..(row + 1) * k).collect();
        let children = pick_rows(&level.children, &children_rows);
        let prompts: Vec<usize> = rows.iter().map(|row| level.prompts[*row]).collect();

        let velocity = guided_velocity(
            &tracked,
            parents.clone().autodiff(),
            level.timestep,
            self.table,
            &prompts,
            self.sampling.guidance,
        );
        let node_means = level
            .transition
            .mean(parents.clone(), velocity.clone().without_autodiff());
        let means = repeat_rows(node_means.clone(), k);
        let kind = self.sampling.log_prob;
        let log_probs = to_f64(level.transition.log_prob(children.clone(), means.clone(), kind)?)?;

        // c_b = dL/dlogp_b of every child, weighted; the host does this in f64.
        let weight = self.objective.edge_weights[level.step] * scale;
        let edge_factors = self.edge_factors.map(|factors| &factors[level.edges()]);
        let (mut loss, mut kl) = (0.0, 0.0);
        let mut ratios = RatioStatistics::default();
        let mut worst: Option<WorstRatio> = None;
        let mut factors = Vec::with_capacity(children_rows.len());
        for (row, replayed) in children_rows.iter().zip(&log_probs) {
            let factor = edge_factors.map_or(1.0, |factors| factors[*row]);
            if factor == 0.0 {
                // A dropped edge is in no statistic either.
                factors.push(0.0);
                continue;
            }
            let weight = weight * factor;
            let stored = level.log_probs[*row];
            let edge = self
                .objective
                .clipped
                .edge(*replayed, stored, edges[*row])
                .map_err(|source| TrainError::Objective {
                    iteration: self.iteration,
                    step: level.step,
                    source,
                })?;
            loss += weight * edge.loss;
            ratios.record(&edge);
            let found = WorstRatio {
                distance: edge.log_ratio.exp_m1().abs(),
                level: index,
                stored,
                replayed: *replayed,
            };
            worst = Some(worst.map_or(found, |w| w.larger(found)));
            factors.push((weight * edge.derivative) as f32);
        }
        let per_child = level.transition.log_prob_derivative(children, means, kind)?;
        let count = factors.len();
        let factors = Tensor::<1>::from_data(TensorData::new(factors, [count]), &per_child.device());
        let weighted = per_child * factors.reshape([count, 1, 1, 1]);
        let [_, channels, height, width] = weighted.dims();
        let mut upstream = weighted
            .reshape([rows.len(), k, channels, height, width])
            .sum_dim(1)
            .reshape([rows.len(), channels, height, width]);

        if let (true, Some(reference)) = (self.objective.kl_beta > 0.0, self.reference) {
            let other = guided_velocity(
                reference,
                parents.clone(),
                level.timestep,
                self.table,
                &prompts,
                self.sampling.guidance,
            );
            let reference_means = level.transition.mean(parents, other);
            let divergence = to_f64(level.transition.divergence(
                node_means.clone(),
                reference_means.clone(),
                Reduction::Mean,
            )?)?;
            kl = divergence.iter().sum::<f64>();
            // Every one of the node's edges carries the divergence, as it carries its clipped loss.
            let factor = self.objective.kl_beta * weight * k as f64;
            let slope = level
                .transition
                .divergence_derivative(node_means, reference_means, Reduction::Mean)?;
            match edge_factors {
                None => {
                    loss += factor * kl;
                    upstream = upstream + slope * factor;
                }
                Some(factors) => {
                    // The mean of its edges' factors, of which those of dropped edges are 0.
                    let mean = |row: &usize| factors[row * k..(row + 1) * k].iter().sum::<f64>() / k as f64;
                    let own: Vec<f64> = rows.iter().map(|row| factor * mean(row)).collect();
                    loss += own.iter().zip(&divergence).map(|(own, kl)| own * kl).sum::<f64>();
                    let own: Vec<f32> = own.into_iter().map(|own| own as f32).collect();
                    let own = Tensor::<1>::from_data(TensorData::new(own, [rows.len()]), &slope.device());
                    upstream = upstream + slope * own.reshape([rows.len(), 1, 1, 1]);
                }
            }
        }

        // The product's derivative in the velocity is `upstream`, so the tape carries it to the parameters.
        let gradients = (velocity * upstream.autodiff()).sum().backward();
        let gradient = self.layout.gradients(&tracked, &gradients, &level.parents.device());
        Ok(NodeGradient {
            gradient,
            loss,
            kl,
            ratios,
            worst,
            nodes: rows.len(),
        })
    }

    /// The policy is on its own samples at the first update, so every ratio must be 1 up to rounding.
    ///
    /// # Errors
    ///
    /// [`TrainError::Ratio`] with the step and both values.
    pub fn check_first_ratio(&self, rollout: &Rollout, gradient: &NodeGradient, limit: f64) -> Result<(), TrainError> {
        match gradient.worst {
            Some(worst) if worst.distance > limit || worst.distance.is_nan() => {
                let level = &rollout.levels[worst.level];
                Err(TrainError::Ratio {
                    iteration: self.iteration,
                    step: level.step,
                    sigma: level.sigma,
                    std: level.transition.std,
                    stored: worst.stored,
                    replayed: worst.replayed,
                    limit,
                })
            }
            _ => Ok(()),
        }
    }
}

/// Some rows of the first dimension; a run of neighbours is a view, not a copy.
fn pick_rows(x: &Tensor<4>, rows: &[usize]) -> Tensor<4> {
    let (Some(first), Some(last)) = (rows.first(), rows.last()) else {
        return x.clone().narrow(0, 0, 0);
    };
    if rows.iter().copied().eq(*first..=*last) {
        return x.clone().narrow(0, *first, rows.len());
    }
    let indices: Vec<i64> = rows.iter().map(|row| *row as i64).collect();
    x.clone().select(
        0,
        Tensor::<1, Int>::from_data(TensorData::new(indices, [rows.len()]), &x.device()),
    )
}
