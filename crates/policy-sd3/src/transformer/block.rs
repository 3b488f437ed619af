//! One block: both streams are modulated, attend to each other jointly, and pass a feed-forward layer.

use burn::module::Module;
use burn::tensor::{Int, Tensor, TensorData};
use nn::activation::{gelu_tanh, silu};
use nn::attention::{attention, merge_heads, split_heads};
use nn::layers::{LayerNorm, Linear, RmsNorm};
use nn::weights::{Weights, WeightsError};

use super::TransformerConfig;
use crate::lora::LoraLinear;

/// Epsilon of every normalisation in the network.
const EPSILON: f64 = 1e-6;

/// The two token streams between blocks.
#[derive(Debug, Clone)]
pub struct Streams {
    /// Picture tokens `[batch, patches, width]`.
    pub image: Tensor<3>,
    /// Text tokens `[batch, tokens, width]`; none after the last block.
    pub text: Option<Tensor<3>>,
    /// Added to the attention logits of every key, `[1, 1, 1, patches + tokens]`.
    pub key_bias: Option<Tensor<4>>,
}

/// What modulates the streams: one vector per distinct (prompt, step), named by every batch entry.
#[derive(Debug, Clone)]
pub struct Condition {
    activated: Tensor<2>,
    rows: Vec<usize>,
}

impl Condition {
    /// `vectors` is `[rows, width]`; `rows[b]` is the row of batch entry `b`.
    #[must_use]
    pub fn new(vectors: Tensor<2>, rows: &[usize]) -> Self {
        Self {
            activated: silu(vectors),
            rows: rows.to_vec(),
        }
    }

    /// `PARTS` modulation vectors, each `[batch, 1, width]`.
    fn project<const PARTS: usize>(&self, layer: &Linear) -> [Tensor<3>; PARTS] {
        // Projected once per distinct row and copied to the nodes, in place of once per node.
        let all = gather(layer.forward(self.activated.clone()).unsqueeze_dim::<3>(1), &self.rows);
        let width = all.dims()[2] / PARTS;
        std::array::from_fn(|part| all.clone().narrow(2, part * width, width))
    }
}

/// Copies rows of the first dimension: `[distinct, a, b]` to `[rows, a, b]`. A single row is left to broadcast only
/// when it already fits.
pub(super) fn gather(x: Tensor<3>, rows: &[usize]) -> Tensor<3> {
    if rows.iter().copied().eq(0..x.dims()[0]) {
        return x;
    }
    let rows: Vec<i64> = rows.iter().map(|row| *row as i64).collect();
    let indices = Tensor::<1, Int>::from_data(TensorData::new(rows.clone(), [rows.len()]), &x.device());
    x.select(0, indices)
}

/// A normalisation without parameters.
pub(super) fn plain_norm(width: usize) -> LayerNorm {
    LayerNorm::plain(width, EPSILON)
}

/// `norm(x)·(1 + scale) + shift`.
fn modulate(normalised: Tensor<3>, shift: Tensor<3>, scale: Tensor<3>) -> Tensor<3> {
    normalised * (scale + 1.0) + shift
}

/// The modulated normalisation before the network's output, and of the text in the last block: scale, then shift.
#[derive(Module, Debug)]
pub(super) struct Continuous {
    linear: Linear,
    norm: LayerNorm,
}

impl Continuous {
    pub(super) fn load(weights: &Weights, width: usize) -> Result<Self, WeightsError> {
        Ok(Self {
            linear: Linear::load(&weights.scope("linear"), width, 2 * width)?,
            norm: plain_norm(width),
        })
    }

    pub(super) fn forward(&self, x: Tensor<3>, condition: &Condition) -> Tensor<3> {
        let [scale, shift] = condition.project(&self.linear);
        modulate(self.norm.forward(x), shift, scale)
    }
}

/// Two layers with a tanh GELU between, four times as wide inside.
#[derive(Module, Debug)]
struct FeedForward {
    up: Linear,
    down: Linear,
}

impl FeedForward {
    fn load(weights: &Weights, width: usize) -> Result<Self, WeightsError> {
        Ok(Self {
            up: Linear::load(&weights.scope("net.0.proj"), width, 4 * width)?,
            down: Linear::load(&weights.scope("net.2"), 4 * width, width)?,
        })
    }

    fn forward(&self, x: Tensor<3>) -> Tensor<3> {
        self.down.forward(gelu_tanh(self.up.forward(x)))
    }
}

/// Queries, keys and values of one stream, with optional normalisation of queries and keys per head.
#[derive(Module, Debug)]
struct Projections {
    q: LoraLinear,
    k: LoraLinear,
    v: LoraLinear,
    norm_q: Option<RmsNorm>,
    norm_k: Option<RmsNorm>,
}

impl Projections {
    /// `names` are the file's names of q, k, v and of the two norms.
    fn load(weights: &Weights, config: &TransformerConfig, names: [&str; 5]) -> Result<Self, WeightsError> {
        let width = config.width();
        let linear = |name: &str| LoraLinear::load(&weights.scope(name), width, width);
        let norm = |name: &str| match config.qk_norm {
            Some(_) => RmsNorm::load(&weights.scope(name), config.attention_head_dim, EPSILON).map(Some),
            None => Ok(None),
        };
        Ok(Self {
            q: linear(names[0])?,
            k: linear(names[1])?,
            v: linear(names[2])?,
            norm_q: norm(names[3])?,
            norm_k: norm(names[4])?,
        })
    }

    fn queries(&self, x: Tensor<3>, heads: usize) -> Tensor<4> {
        normalised(&self.norm_q, self.q.forward(x), heads)
    }

    fn keys(&self, x: Tensor<3>, heads: usize) -> Tensor<4> {
        normalised(&self.norm_k, self.k.forward(x), heads)
    }

    fn values(&self, x: Tensor<3>, heads: usize) -> Tensor<4> {
        split_heads(self.v.forward(x), heads)
    }
}

fn normalised(norm: &Option<RmsNorm>, x: Tensor<3>, heads: usize) -> Tensor<4> {
    let x = split_heads(x, heads);
    match norm {
        Some(norm) => norm.forward(x),
        None => x,
    }
}

/// The second attention of the first blocks of SD3.5-medium: the picture attends to itself alone.
#[derive(Module, Debug)]
struct DualAttention {
    projections: Projections,
    out: LoraLinear,
}

/// The text side of a block that passes text on.
#[derive(Module, Debug)]
struct TextTail {
    modulation: Linear,
    out: LoraLinear,
    feed_forward: FeedForward,
}

/// How the text enters a block: fully modulated, or, in the last one, only as keys and values.
#[derive(Module, Debug)]
#[allow(clippy::large_enum_variant)] // There is one per block, and it holds handles to tensors only.
enum TextSide {
    Full(TextTail),
    PreOnly(Continuous),
}

/// One block of the network.
#[derive(Module, Debug)]
pub struct Block {
    modulation: Linear,
    norm: LayerNorm,
    image: Projections,
    image_out: LoraLinear,
    dual: Option<DualAttention>,
    feed_forward: FeedForward,
    text: Projections,
    text_side: TextSide,
}

impl Block {
    pub(super) fn load(weights: &Weights, config: &TransformerConfig, layer: usize) -> Result<Self, WeightsError> {
        let width = config.width();
        let attn = weights.scope("attn");
        let output = |w: &Weights, name: &str| LoraLinear::load(&w.scope(name), width, width);
        let has_dual = config.dual_attention_layers.contains(&layer);
        let dual = if has_dual {
            let attn2 = weights.scope("attn2");
            let projections = Projections::load(&attn2, config, ["to_q", "to_k", "to_v", "norm_q", "norm_k"])?;
            Some(DualAttention {
                projections,
                out: output(&attn2, "to_out.0")?,
            })
        } else {
            None
        };
        let norm1_context = weights.scope("norm1_context");
        let text_side = if layer + 1 == config.num_layers {
            TextSide::PreOnly(Continuous::load(&norm1_context, width)?)
        } else {
            TextSide::Full(TextTail {
                modulation: Linear::load(&norm1_context.scope("linear"), width, 6 * width)?,
                out: output(&attn, "to_add_out")?,
                feed_forward: FeedForward::load(&weights.scope("ff_context"), width)?,
            })
        };
        let parts = if has_dual { 9 } else { 6 };
        let text_names = ["add_q_proj", "add_k_proj", "add_v_proj", "norm_added_q", "norm_added_k"];
        Ok(Self {
            modulation: Linear::load(&weights.scope("norm1.linear"), width, parts * width)?,
            norm: plain_norm(width),
            image: Projections::load(&attn, config, ["to_q", "to_k", "to_v", "norm_q", "norm_k"])?,
            image_out: output(&attn, "to_out.0")?,
            dual,
            feed_forward: FeedForward::load(&weights.scope("ff"), width)?,
            text: Projections::load(&attn, config, text_names)?,
            text_side,
        })
    }

    /// Both streams through the block.
    #[must_use]
    pub fn forward(&self, streams: Streams, condition: &Condition, heads: usize) -> Streams {
        let Streams {
            image,
            text: Some(text),
            key_bias,
        } = streams
        else {
            // Only the last block drops the text, and nothing follows it.
            return streams;
        };
        let normalised_image = self.norm.forward(image.clone());
        let (modulation, second): ([Tensor<3>; 6], _) = match &self.dual {
            Some(dual) => {
                let [a, b, c, d, e, f, shift, scale, gate] = condition.project::<9>(&self.modulation);
                let x = modulate(normalised_image.clone(), shift, scale);
                let (q, k) = (
                    dual.projections.queries(x.clone(), heads),
                    dual.projections.keys(x.clone(), heads),
                );
                let attended = attention(q, k, dual.projections.values(x, heads), None, None);
                ([a, b, c, d, e, f], Some(dual.out.forward(merge_heads(attended)) * gate))
            }
            None => (condition.project::<6>(&self.modulation), None),
        };
        let [shift, scale, gate, shift_mlp, scale_mlp, gate_mlp] = modulation;
        let x = modulate(normalised_image, shift, scale);

        let tail = match &self.text_side {
            TextSide::Full(tail) => {
                let modulation = condition.project::<6>(&tail.modulation);
                Some((tail, modulation))
            }
            TextSide::PreOnly(_) => None,
        };
        let y = match (&self.text_side, &tail) {
            (TextSide::PreOnly(norm), _) => norm.forward(text.clone(), condition),
            (_, Some((_, [shift, scale, ..]))) => {
                modulate(self.norm.forward(text.clone()), shift.clone(), scale.clone())
            }
            (TextSide::Full(_), None) => text.clone(),
        };

        let image_tokens = x.dims()[1];
        let k = Tensor::cat(
            vec![self.image.keys(x.clone(), heads), self.text.keys(y.clone(), heads)],
            2,
        );
        let v = Tensor::cat(
            vec![self.image.values(x.clone(), heads), self.text.values(y.clone(), heads)],
            2,
        );
        let mut q = self.image.queries(x, heads);
        if tail.is_some() {
            // In the last block nobody reads what the text tokens gather, so they ask nothing.
            q = Tensor::cat(vec![q, self.text.queries(y, heads)], 2);
        }
        let attended = merge_heads(attention(q, k, v, key_bias.clone(), None));
        let from_image = attended.clone().narrow(1, 0, image_tokens);

        let mut image = image + self.image_out.forward(from_image) * gate;
        if let Some(second) = second {
            image = image + second;
        }
        let inner = modulate(self.norm.forward(image.clone()), shift_mlp, scale_mlp);
        let image = image + self.feed_forward.forward(inner) * gate_mlp;

        let text = tail.map(|(tail, [_, _, gate, shift_mlp, scale_mlp, gate_mlp])| {
            let text_tokens = text.dims()[1];
            let from_text = attended.narrow(1, image_tokens, text_tokens);
            let text = text + tail.out.forward(from_text) * gate;
            let inner = modulate(self.norm.forward(text.clone()), shift_mlp, scale_mlp);
            text + tail.feed_forward.forward(inner) * gate_mlp
        });
        Streams { image, text, key_bias }
    }

    /// The projections of the joint attention, by their names in the file.
    pub(super) fn adapted_layers(&self) -> impl Iterator<Item = (&'static str, &LoraLinear)> {
        let tail = match &self.text_side {
            TextSide::Full(tail) => Some(("to_add_out", &tail.out)),
            TextSide::PreOnly(_) => None,
        };
        let (image, text) = (&self.image, &self.text);
        [
            ("to_q", &image.q),
            ("to_k", &image.k),
            ("to_v", &image.v),
            ("to_out.0", &self.image_out),
            ("add_q_proj", &text.q),
            ("add_k_proj", &text.k),
            ("add_v_proj", &text.v),
        ]
        .into_iter()
        .chain(tail)
    }

    /// As [`Block::adapted_layers`], to change them.
    pub(super) fn adapted_layers_mut(&mut self) -> impl Iterator<Item = (&'static str, &mut LoraLinear)> {
        let tail = match &mut self.text_side {
            TextSide::Full(tail) => Some(("to_add_out", &mut tail.out)),
            TextSide::PreOnly(_) => None,
        };
        let (image, text) = (&mut self.image, &mut self.text);
        [
            ("to_q", &mut image.q),
            ("to_k", &mut image.k),
            ("to_v", &mut image.v),
            ("to_out.0", &mut self.image_out),
            ("add_q_proj", &mut text.q),
            ("add_k_proj", &mut text.k),
            ("add_v_proj", &mut text.v),
        ]
        .into_iter()
        .chain(tail)
    }
}
