//! Scaled dot-product attention and the reshaping around it.

use burn::tensor::Tensor;
use burn::tensor::module;
use burn::tensor::ops::AttentionModuleOptions;

/// `[batch, tokens, heads·width]` to `[batch, heads, tokens, width]`.
#[must_use]
pub fn split_heads(x: Tensor<3>, heads: usize) -> Tensor<4> {
    let [batch, tokens, width] = x.dims();
    x.reshape([batch, tokens, heads, width / heads]).swap_dims(1, 2)
}

/// `[batch, heads, tokens, width]` to `[batch, tokens, heads·width]`.
#[must_use]
pub fn merge_heads(x: Tensor<4>) -> Tensor<3> {
    let [batch, heads, tokens, width] = x.dims();
    x.swap_dims(1, 2).reshape([batch, tokens, heads * width])
}

/// `softmax(q·kᵀ·scale + bias)·v`, all of shape `[batch, heads, tokens, width]`.
///
/// `bias` broadcasts over `[batch, heads, query tokens, key tokens]`; `scale` is `1/√width` unless given.
#[must_use]
pub fn attention(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, bias: Option<Tensor<4>>, scale: Option<f64>) -> Tensor<4> {
    let [batch, heads, queries, _] = q.dims();
    let keys = k.dims()[2];
    let bias = bias.map(|bias| bias.expand([batch, heads, queries, keys]));
    let options = AttentionModuleOptions {
        scale,
        softcap: None,
        is_causal: false,
    };
    module::attention(q, k, v, None, bias, options)
}

/// A bias that lets token `i` see tokens `0..=i` only, `[1, 1, tokens, tokens]`.
///
/// A large negative number stands for −∞, so that no backend meets `∞ − ∞`.
#[must_use]
pub fn causal_bias(tokens: usize, device: &burn::tensor::Device) -> Tensor<4> {
    let values: Vec<f32> = (0..tokens)
        .flat_map(|row| (0..tokens).map(move |column| if column > row { -1e30 } else { 0.0 }))
        .collect();
    Tensor::<1>::from_floats(values.as_slice(), device).reshape([1, 1, tokens, tokens])
}
