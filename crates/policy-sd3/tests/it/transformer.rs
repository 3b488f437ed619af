//! The transformer against diffusers: embedders, every block's two streams, the velocity, with and without an adapter.

use std::collections::BTreeMap;

use burn::tensor::{Device, Tensor, Tolerance};
use nn::weights::Weights;
use policy_sd3::lora::{self, LoraConfig, LoraInit};
use policy_sd3::transformer::{Conditioning, Transformer, TransformerConfig, time_projection};

use crate::fixture::{Fixture, assert_close, root};

fn open(device: &Device) -> (Transformer, TransformerConfig) {
    let (network, config, _) = Transformer::open(&root().join("sd3/transformer"), device).expect("the fixture loads");
    (network, config)
}

/// The two inputs of different shape that the reference has.
const CASES: [&str; 2] = ["square", "wide"];

/// Every stage of the network, block by block, equals diffusers' within f32 noise.
#[test]
fn transformer_parity_block_by_block() {
    let device = Device::flex();
    let (network, _) = open(&device);
    let fixture = Fixture::read("sd3_io");
    for case in CASES {
        let latents: Tensor<4> = fixture.tensor(&format!("in.dit.{case}.latent"), &device);
        let timesteps: Vec<f64> = fixture
            .values(&format!("in.dit.{case}.timestep"))
            .iter()
            .map(|t| f64::from(*t))
            .collect();
        let rows: Vec<usize> = (0..timesteps.len()).collect();
        let conditioning = Conditioning {
            sequence: fixture.tensor(&format!("in.dit.{case}.embeds"), &device),
            pooled: fixture.tensor(&format!("in.dit.{case}.pooled"), &device),
            zero_tokens: 0,
        };
        let expected = |key: &str| fixture.values(&format!("dit.{case}.{key}"));
        assert_close(
            "time_proj",
            time_projection(&timesteps, &device),
            expected("time_proj"),
            1e-4,
        );
        let condition = network.condition(&timesteps, &conditioning, &rows);
        let mut streams = network.embed(latents.clone(), &conditioning, &rows);
        assert_close("patch_embed", streams.image.clone(), expected("patch_embed"), 1e-4);
        let text = streams.text.clone().expect("the text stream");
        assert_close("context_embed", text, expected("context_embed"), 1e-4);
        for (i, block) in network.blocks().iter().enumerate() {
            streams = block.forward(streams, &condition, network.heads());
            let image = streams.image.clone();
            assert_close(
                &format!("block {i} image"),
                image,
                expected(&format!("block{i}.image")),
                1e-4,
            );
            if let Some(text) = streams.text.clone() {
                assert_close(
                    &format!("block {i} text"),
                    text,
                    expected(&format!("block{i}.text")),
                    1e-4,
                );
            }
        }
        assert!(streams.text.is_none(), "the last block ends the text stream");
        let out = network.forward(latents, &timesteps, &conditioning, &rows);
        assert_close("velocity", out, expected("out"), 1e-4);
    }
}

/// A seeded network of SD3.5's shape, small; T5-less so that zero tokens occur.
pub(crate) fn toy(device: &Device) -> (Transformer, TransformerConfig) {
    let config = TransformerConfig {
        in_channels: 4,
        out_channels: None,
        patch_size: 2,
        num_layers: 3,
        attention_head_dim: 8,
        num_attention_heads: 2,
        joint_attention_dim: 12,
        caption_projection_dim: 16,
        pooled_projection_dim: 10,
        pos_embed_max_size: 6,
        sample_size: 8,
        dual_attention_layers: vec![0],
        qk_norm: Some("rms_norm".into()),
    };
    let (network, _) = Transformer::load(Weights::seeded(7, 1.0, device), &config).expect("a seeded network");
    (network, config)
}

pub(crate) fn ramp<const D: usize>(shape: [usize; D], device: &Device) -> Tensor<D> {
    let count: usize = shape.iter().product();
    let values: Vec<f32> = (0..count).map(|i| ((i * 37 % 101) as f32 / 50.0) - 1.0).collect();
    Tensor::<1>::from_floats(values.as_slice(), device).reshape(shape)
}

fn assert_same<const D: usize>(a: Tensor<D>, b: Tensor<D>, tolerance: f32) {
    a.into_data()
        .assert_approx_eq::<f32>(&b.into_data(), Tolerance::absolute(tolerance));
}

/// One zero token with ln n added to its logit gives what n zero tokens give.
#[test]
fn one_zero_token_stands_for_many() {
    let device = Device::flex();
    let (network, _) = toy(&device);
    let sequence = ramp([2, 5, 12], &device);
    let pooled = ramp([2, 10], &device);
    let latents = ramp([2, 4, 8, 6], &device);
    let merged = Conditioning {
        sequence: sequence.clone(),
        pooled: pooled.clone(),
        zero_tokens: 9,
    };
    let written_out = Conditioning {
        sequence: Tensor::cat(vec![sequence, Tensor::zeros([2, 9, 12], &device)], 1),
        pooled,
        zero_tokens: 0,
    };
    let a = network.forward(latents.clone(), &[700.0, 300.0], &merged, &[0, 1]);
    let b = network.forward(latents, &[700.0, 300.0], &written_out, &[0, 1]);
    assert_same(a, b, 2e-6);
}

/// Batch entries name rows of the conditioning; sharing a row, or reordering the batch, changes nothing.
#[test]
fn shared_rows_equal_copied_rows() {
    let device = Device::flex();
    let (network, _) = toy(&device);
    let (sequence, pooled) = (ramp([2, 5, 12], &device), ramp([2, 10], &device));
    let latents = ramp([3, 4, 8, 8], &device);
    let shared = Conditioning {
        sequence: sequence.clone(),
        pooled: pooled.clone(),
        zero_tokens: 3,
    };
    let copied = Conditioning {
        sequence: Tensor::cat(vec![sequence.clone(), sequence.narrow(0, 1, 1)], 0),
        pooled: Tensor::cat(vec![pooled.clone(), pooled.narrow(0, 1, 1)], 0),
        zero_tokens: 3,
    };
    let a = network.forward(latents.clone(), &[500.0, 500.0], &shared, &[0, 1, 1]);
    let b = network.forward(latents.clone(), &[500.0; 3], &copied, &[0, 1, 2]);
    assert_same(a.clone(), b, 1e-6);
    let turned = latents.flip([0]);
    let c = network.forward(turned, &[500.0, 500.0], &shared, &[1, 1, 0]).flip([0]);
    assert_same(a, c, 1e-6);
}

/// A fresh adapter changes nothing to the bit; a filled one changes the velocity; merging it equals carrying it;
/// detaching it gives the base to the bit.
#[test]
fn adapter_on_off_and_merged() {
    let device = Device::flex();
    let (network, _) = toy(&device);
    let conditioning = Conditioning {
        sequence: ramp([1, 5, 12], &device),
        pooled: ramp([1, 10], &device),
        zero_tokens: 3,
    };
    let run = |n: &Transformer| n.forward(ramp([2, 4, 8, 8], &device), &[400.0], &conditioning, &[0, 0]);
    let base = run(&network);
    let mut adapted = network.clone();
    let config = LoraConfig {
        rank: 3,
        alpha: 6.0,
        init: LoraInit::Kaiming,
    };
    lora::attach(
        &mut adapted,
        &mut BTreeMap::new().into_iter().collect(),
        &config,
        1,
        &device,
    );
    assert_eq!(run(&adapted).into_data(), base.clone().into_data(), "B starts at zero");
    let filled = fill_b(adapted, &device);
    let on = run(&filled);
    let moved: f32 = (on.clone() - base.clone()).abs().max().into_scalar();
    assert!(moved > 1e-3, "the adapter must act, moved {moved}");
    assert_same(run(&lora::merge(&filled)), on, 2e-5);
    assert_eq!(run(&lora::detach(&filled)).into_data(), base.into_data());
}

pub(crate) fn fill_b(network: Transformer, device: &Device) -> Transformer {
    use burn::module::{Module, ModuleMapper, Param};
    struct Fill<'a>(&'a Device);
    impl ModuleMapper for Fill<'_> {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            // Only B of an adapter is exactly zero everywhere.
            let zero: f32 = param.val().abs().max().into_scalar();
            let device = self.0;
            if zero == 0.0 {
                param.map(|t| ramp(t.dims(), device))
            } else {
                param
            }
        }
    }
    network.map(&mut Fill(device))
}

/// The tensor names and shapes that the loader asks for are those of the real SD3.5-medium checkpoint.
#[test]
fn full_size_parity_of_names_and_shapes() {
    let list = root().join("full_size/sd35_medium_transformer.json");
    let Ok(text) = std::fs::read_to_string(list) else {
        // Only the project's own fixture folder carries the full-size lists.
        return;
    };
    let json: serde_json::Value = serde_json::from_str(&text).expect("valid JSON");
    let expected: BTreeMap<String, Vec<usize>> = serde_json::from_value(json).expect("names and shapes");
    let config = TransformerConfig {
        in_channels: 16,
        out_channels: Some(16),
        patch_size: 2,
        num_layers: 24,
        attention_head_dim: 64,
        num_attention_heads: 24,
        joint_attention_dim: 4096,
        caption_projection_dim: 1536,
        pooled_projection_dim: 2048,
        pos_embed_max_size: 384,
        sample_size: 128,
        dual_attention_layers: (0..13).collect(),
        qk_norm: Some("rms_norm".into()),
    };
    let weights = Weights::blank(&Device::flex());
    let asked = weights.clone();
    Transformer::load(weights, &config).expect("blank weights");
    assert_eq!(asked.asked(), expected);
}
