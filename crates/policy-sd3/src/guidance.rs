//! Classifier-free guidance: the one function through which rollout, update and evaluation ask for a velocity.

use burn::tensor::{Int, Tensor, TensorData};

use crate::text::PromptEmbeddings;
use crate::transformer::{Conditioning, Transformer};

/// Embeddings of some prompts and of the empty prompt that guidance starts from.
#[derive(Debug, Clone)]
pub struct PromptTable {
    /// One row per prompt, then the empty prompt's row.
    rows: Conditioning,
    prompts: usize,
}

impl PromptTable {
    /// A table of embeddings whose last row is that of the negative (empty) prompt.
    #[must_use]
    pub fn new(embeddings: &PromptEmbeddings) -> Self {
        let rows = Conditioning {
            sequence: embeddings.sequence.clone(),
            pooled: embeddings.pooled.clone(),
            zero_tokens: embeddings.zero_tokens,
        };
        let prompts = rows.pooled.dims()[0] - 1;
        Self { rows, prompts }
    }

    /// Number of prompts, the empty one not counted.
    #[must_use]
    pub fn len(&self) -> usize {
        self.prompts
    }

    /// Whether there is no prompt.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.prompts == 0
    }

    /// The rows that some batch entries name, each once, and for every entry its place among them.
    fn pick(&self, rows: &[usize], like: &Tensor<4>) -> (Conditioning, Vec<usize>) {
        let mut distinct = rows.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        let places = rows.iter().map(|row| distinct.partition_point(|d| d < row)).collect();
        let indices: Vec<i64> = distinct.iter().map(|row| *row as i64).collect();
        let indices =
            Tensor::<1, Int>::from_data(TensorData::new(indices, [distinct.len()]), &self.rows.pooled.device());
        let mut picked = Conditioning {
            sequence: self.rows.sequence.clone().select(0, indices.clone()),
            pooled: self.rows.pooled.clone().select(0, indices),
            zero_tokens: self.rows.zero_tokens,
        };
        if like.is_autodiff() {
            picked.sequence = picked.sequence.autodiff();
            picked.pooled = picked.pooled.autodiff();
        }
        (picked, places)
    }
}

/// The guided velocity `v_u + g·(v_c − v_u)` at `latents` (`[nodes, channels, height, width]`), of the same shape.
///
/// `prompts[n]` is the row of node n in the table; `timestep` is 1000·σ. Both halves go through the network in one
/// batch. At a guidance of 1 or less the velocity is the conditional one, and the other half is not computed.
///
/// On a network that tracks gradients, give tracked latents; the gradient flows through both halves.
#[must_use]
pub fn guided_velocity(
    network: &Transformer,
    latents: Tensor<4>,
    timestep: f64,
    table: &PromptTable,
    prompts: &[usize],
    guidance: f64,
) -> Tensor<4> {
    if guidance <= 1.0 {
        let (conditioning, places) = table.pick(prompts, &latents);
        let times = vec![timestep; conditioning.pooled.dims()[0]];
        return network.forward(latents, &times, &conditioning, &places);
    }
    let nodes = prompts.len();
    let mut rows = vec![table.len(); nodes];
    rows.extend_from_slice(prompts);
    let both = Tensor::cat(vec![latents.clone(), latents], 0);
    let (conditioning, places) = table.pick(&rows, &both);
    let times = vec![timestep; conditioning.pooled.dims()[0]];
    let velocity = network.forward(both, &times, &conditioning, &places);
    let unconditional = velocity.clone().narrow(0, 0, nodes);
    let conditional = velocity.narrow(0, nodes, nodes);
    unconditional.clone() + (conditional - unconditional) * guidance
}
