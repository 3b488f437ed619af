//! The autoencoder against diffusers.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::{Device, Distribution, Tensor};
use nn::pixels::to_pictures;
use nn::weights::Weights;
use policy_sd3::vae::{Vae, VaeConfig};

use crate::fixture::{Fixture, assert_close, largest_difference, root};

fn open(device: &Device) -> Vae {
    Vae::open(&root().join("sd3/vae"), device).expect("the fixture loads")
}

#[test]
fn vae_parity_of_decoder_and_encoder() {
    let device = Device::flex();
    let (vae, fixture) = (open(&device), Fixture::read("sd3_io"));
    let decoded = vae.decode_raw(fixture.tensor("in.vae.latent", &device));
    assert_close("decoded", decoded, fixture.values("vae.decoded"), 2e-5);
    let (mean, log_variance) = vae.encode(fixture.tensor("in.vae.image", &device));
    assert_close("mean", mean, fixture.values("vae.encoded_mean"), 2e-5);
    assert_close("log-variance", log_variance, fixture.values("vae.encoded_logvar"), 2e-5);
}

/// Final latents of the reference's sampling run to pixels, and to the very 8-bit picture up to rounding.
#[test]
fn vae_parity_of_the_sampled_picture() {
    let device = Device::flex();
    let (vae, fixture) = (open(&device), Fixture::read("sd3_io"));
    let trajectory: Tensor<5> = fixture.tensor("sampling.latents", &device);
    let last = trajectory.dims()[0] - 1;
    let decoded = vae.decode(trajectory.narrow(0, last, 1).squeeze_dim(0));
    assert_close("decoded", decoded.clone(), fixture.values("sampling.decoded"), 3e-4);

    let picture = to_pictures(decoded).expect("a picture").remove(0);
    let expected = fixture.values("sampling.image");
    assert_eq!(picture.as_raw().len(), expected.len());
    let differences: Vec<f32> = picture
        .as_raw()
        .iter()
        .zip(expected)
        .map(|(a, b)| (f32::from(*a) - b).abs())
        .filter(|d| *d > 0.0)
        .collect();
    assert!(differences.iter().all(|d| *d <= 1.0), "a level is off by more than one");
    assert!(
        differences.len() * 1000 <= expected.len(),
        "{} of {} levels differ",
        differences.len(),
        expected.len()
    );
}

/// Undoing the scaling and applying it are inverse, and `decode` is the raw decoder after the former.
#[test]
fn scaling_is_undone_before_decoding() {
    let device = Device::flex();
    let vae = open(&device);
    let fixture = Fixture::read("sd3_io");
    let latents: Tensor<4> = fixture.tensor("in.vae.latent", &device);
    let raw = vae
        .decode_raw(latents.clone())
        .into_data()
        .try_to_vec::<f32>()
        .expect("f32 data");
    assert_close("decoded", vae.decode(vae.normalise(latents)), &raw, 2e-5);
}

/// A configuration with everything that SD3 leaves out: quantising convolutions, no attention, other depths.
fn small_config() -> VaeConfig {
    let text = r#"{"block_out_channels": [4, 8, 6], "layers_per_block": 2, "norm_num_groups": 2, "latent_channels": 3,
        "mid_block_add_attention": false, "scaling_factor": 0.5, "shift_factor": null, "a_key_of_the_future": []}"#;
    let config: VaeConfig = serde_json::from_str(text).expect("a configuration");
    config.check().expect("it is supported");
    config
}

/// A picture does not depend on what it is decoded with: its values are the same bits in any batch.
#[test]
fn pictures_do_not_depend_on_the_batch() {
    let device = Device::flex();
    let vae = Vae::load(&Weights::seeded(1, 1.0, &device), &small_config()).expect("seeded weights");
    assert_eq!(vae.spatial_factor(), 4);
    let latents = Tensor::<4>::random([7, 3, 24, 20], Distribution::Normal(0.0, 1.0), &device);
    let together = vae.decode(latents.clone());
    assert_eq!(together.dims(), [7, 3, 96, 80]);
    for picture in 0..7 {
        let alone = vae
            .decode(latents.clone().narrow(0, picture, 1))
            .into_data()
            .try_to_vec::<f32>()
            .expect("f32 data");
        assert_eq!(largest_difference(together.clone().narrow(0, picture, 1), &alone), 0.0);
    }
    let (mean, log_variance) = vae.encode(together);
    assert_eq!((mean.dims(), log_variance.dims()), ([7, 3, 24, 20], [7, 3, 24, 20]));
}

/// The CPU backend decodes on plain numbers; the layers as tensors, which a device with a tape takes, say the same.
#[test]
fn both_forms_of_the_decoder_agree() {
    let device = Device::flex();
    let config = VaeConfig {
        mid_block_add_attention: true,
        ..small_config()
    };
    for [height, width] in [[6, 5], [16, 9], [3, 40]] {
        let latents = Tensor::<4>::random([2, 3, height, width], Distribution::Normal(0.0, 1.0), &device);
        let vae = Vae::load(&Weights::seeded(2, 1.0, &device), &config).expect("seeded weights");
        let plain = vae
            .decode(latents.clone())
            .into_data()
            .try_to_vec::<f32>()
            .expect("f32 data");
        let taped = device.clone().autodiff();
        let vae = Vae::load(&Weights::seeded(2, 1.0, &taped), &config).expect("seeded weights");
        let decoded = vae.decode(latents.autodiff());
        assert_eq!(decoded.dims(), [2, 3, 4 * height, 4 * width]);
        assert_close("decoded", decoded.inner(), &plain, 2e-5);
    }
}

/// The autoencoder of SD3.5 asks for exactly the tensors of its file.
#[test]
fn full_size_keys_and_shapes_are_those_of_the_released_file() {
    let listed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/full_size/sd3_vae.json");
    let text = std::fs::read_to_string(listed).expect("the list of keys");
    let expected: BTreeMap<String, Vec<usize>> = serde_json::from_str(&text).expect("keys with shapes");
    let config = VaeConfig {
        latent_channels: 16,
        block_out_channels: vec![128, 256, 512, 512],
        layers_per_block: 2,
        use_quant_conv: false,
        use_post_quant_conv: false,
        ..VaeConfig::default()
    };
    let weights = Weights::blank(&Device::flex());
    Vae::load(&weights, &config).expect("blank weights");
    assert_eq!(weights.asked(), expected);
}

#[test]
fn unsupported_autoencoders_are_refused_by_key() {
    for (key, value) in [
        ("_class_name", r#""AutoencoderTiny""#),
        ("act_fn", r#""relu""#),
        ("block_out_channels", "[30, 64]"),
        ("block_out_channels", "[]"),
        ("layers_per_block", "0"),
        ("norm_num_groups", "0"),
        ("down_block_types", r#"["AttnDownEncoderBlock2D"]"#),
        ("up_block_types", r#"["UpDecoderBlock2D", "UpDecoderBlock2D"]"#),
        ("scaling_factor", "0.0"),
        ("latents_mean", "[0.0]"),
        ("in_channels", "4"),
    ] {
        let config: VaeConfig = serde_json::from_str(&format!(r#"{{"{key}": {value}}}"#)).expect("JSON");
        let why = config.check().expect_err("a refusal");
        assert!(why.contains(key), "{key}: {why}");
    }
}
