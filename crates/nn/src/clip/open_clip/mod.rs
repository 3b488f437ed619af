//! CLIP towers by the names that OpenCLIP and OpenAI give their tensors.
//!
//! Two things are stored differently from Hugging Face's files: query, key and value of an attention lie in one matrix
//! `in_proj_weight`, one below the other; and the two projections are applied as `x·W`, so they are not transposed,
//! unlike every other matrix. See OpenCLIP's `model.py` and `transformer.py`.

mod config;

use super::text::{ClipText, ClipTextConfig, ClipTextParts};
use super::vision::{ClipVision, ClipVisionConfig, ClipVisionParts};
use super::{ClipEncoder, ClipEncoderConfig, ClipLayer};
use crate::layers::{Conv2d, Embedding, LayerNorm, Linear};
use crate::weights::{Weights, WeightsError};

pub(super) use config::config;

/// Reads the text tower: `transformer.*`, `token_embedding.weight`, `positional_embedding`, `ln_final.*` and
/// `text_projection`, or the same below `text.`, where models with a text tower of their own class keep them.
pub(super) fn text(weights: &Weights, config: &ClipTextConfig) -> Result<ClipText, WeightsError> {
    let own_class = weights.stored_shape("text.positional_embedding").is_some();
    let weights = if own_class {
        weights.scope("text")
    } else {
        weights.clone()
    };
    // The causal mask, which follows from the length; and what OpenAI's files say about themselves.
    for known in ["attn_mask", "input_resolution", "context_length", "vocab_size"] {
        weights.ignore(known);
    }
    let (width, epsilon) = (config.hidden_size, config.layer_norm_eps);
    let positions = weights.parameter("positional_embedding", [config.max_position_embeddings, width])?;
    let projection = weights.parameter("text_projection", [width, config.projection_dim])?;
    let parts = ClipTextParts {
        tokens: Embedding::load(&weights.scope("token_embedding"), config.vocab_size, width)?,
        positions: Embedding::from_parameter(positions),
        encoder: encoder(&weights.scope("transformer"), &config.encoder())?,
        final_norm: LayerNorm::load(&weights.scope("ln_final"), width, epsilon)?,
        projection: Linear::from_parameters(projection, None),
    };
    Ok(ClipText::from_parts(parts, config))
}

/// Reads the vision tower: `visual.*`.
pub(super) fn vision(weights: &Weights, config: &ClipVisionConfig) -> Result<ClipVision, WeightsError> {
    let weights = weights.scope("visual");
    let (width, epsilon, patch) = (config.hidden_size, config.layer_norm_eps, config.patch_size);
    let channels = [config.num_channels, width];
    let positions = weights.parameter("positional_embedding", [config.tokens(), width])?;
    let projection = weights.parameter("proj", [width, config.projection_dim])?;
    let parts = ClipVisionParts {
        patches: Conv2d::load_without_bias(&weights.scope("conv1"), channels, patch, patch, 0)?,
        class: weights.parameter("class_embedding", [width])?,
        positions: Embedding::from_parameter(positions),
        pre_norm: LayerNorm::load(&weights.scope("ln_pre"), width, epsilon)?,
        encoder: encoder(&weights.scope("transformer"), &config.encoder())?,
        post_norm: LayerNorm::load(&weights.scope("ln_post"), width, epsilon)?,
        projection: Linear::from_parameters(projection, None),
    };
    Ok(ClipVision::from_parts(parts, config))
}

fn encoder(weights: &Weights, config: &ClipEncoderConfig) -> Result<ClipEncoder, WeightsError> {
    let layers = (0..config.layers).map(|i| layer(&weights.scope(format!("resblocks.{i}")), config));
    Ok(ClipEncoder {
        layers: layers.collect::<Result<_, _>>()?,
    })
}

/// Reads `ln_1`, `attn.in_proj_{weight,bias}`, `attn.out_proj`, `ln_2` and `mlp.c_fc`, `mlp.c_proj`.
fn layer(weights: &Weights, config: &ClipEncoderConfig) -> Result<ClipLayer, WeightsError> {
    let (width, epsilon) = (config.width, config.epsilon);
    let attention = weights.scope("attn");
    let [w_q, w_k, w_v] = attention.stacked_matrices("in_proj_weight", [width, width])?;
    let [b_q, b_k, b_v] = attention.stacked_vectors("in_proj_bias", width)?;
    Ok(ClipLayer {
        norm1: LayerNorm::load(&weights.scope("ln_1"), width, epsilon)?,
        query: Linear::from_parameters(w_q, Some(b_q)),
        key: Linear::from_parameters(w_k, Some(b_k)),
        value: Linear::from_parameters(w_v, Some(b_v)),
        output: Linear::load(&attention.scope("out_proj"), width, width)?,
        norm2: LayerNorm::load(&weights.scope("ln_2"), width, epsilon)?,
        widen: Linear::load(&weights.scope("mlp.c_fc"), width, config.intermediate)?,
        narrow: Linear::load(&weights.scope("mlp.c_proj"), config.intermediate, width)?,
        heads: config.heads,
        activation: config.activation,
    })
}
