//! Writes the velocity of a pipeline with an adapter at seeded inputs, for `tools/check_adapter.py` to compare with
//! diffusers and PEFT.
//!
//! ```text
//! cargo run --release --package policy-sd3 --example velocity -- MODEL ADAPTER OUT.safetensors
//! ```

use std::collections::{BTreeMap, HashMap};
use std::error::Error;
use std::path::Path;

use burn::tensor::{Device, Tensor};
use policy_sd3::adapter::{self, StoredTensor, write_safetensors};
use policy_sd3::transformer::{Conditioning, Transformer};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, adapter_dir, out] = arguments.as_slice() else {
        return Err("usage: velocity MODEL ADAPTER OUT.safetensors".into());
    };
    let device = Device::flex();
    let (mut network, config, mut keys) = Transformer::open(&Path::new(model).join("transformer"), &device)?;
    let lora = adapter::read(Path::new(adapter_dir), &mut network, &mut keys, &device)?;
    println!("adapter of rank {} and alpha {}", lora.rank, lora.alpha);

    let side = config.sample_size;
    let latents = ramp([2, config.in_channels, side, side], 0.37, &device);
    let conditioning = Conditioning {
        sequence: ramp([2, 24, config.joint_attention_dim], 0.61, &device),
        pooled: ramp([2, config.pooled_projection_dim], 0.83, &device),
        zero_tokens: 0,
    };
    let times = [250.0, 875.5];
    let velocity = network.forward(latents.clone(), &times, &conditioning, &[0, 1]);

    let mut tensors: BTreeMap<&str, StoredTensor> = BTreeMap::new();
    tensors.insert("latents", stored(latents)?);
    tensors.insert("sequence", stored(conditioning.sequence)?);
    tensors.insert("pooled", stored(conditioning.pooled)?);
    tensors.insert("timesteps", (vec![2], times.iter().map(|t| *t as f32).collect()));
    tensors.insert("velocity", stored(velocity)?);
    let borrowed = tensors
        .iter()
        .map(|(key, tensor)| ((*key).to_owned(), tensor))
        .collect();
    write_safetensors(Path::new(out), &borrowed, HashMap::new())?;
    Ok(())
}

/// Values between −1.5 and 1.5 without a pattern that a network could be indifferent to.
fn ramp<const D: usize>(shape: [usize; D], step: f32, device: &Device) -> Tensor<D> {
    let count: usize = shape.iter().product();
    let values: Vec<f32> = (0..count)
        .map(|i| 1.5 * (i as f32 * step + (i as f32 * 0.013).sin()).sin())
        .collect();
    Tensor::<1>::from_floats(values.as_slice(), device).reshape(shape)
}

fn stored<const D: usize>(tensor: Tensor<D>) -> Result<StoredTensor, Box<dyn Error>> {
    let shape = tensor.dims().to_vec();
    let values = tensor.into_data().try_to_vec::<f32>().map_err(|e| format!("{e:?}"))?;
    Ok((shape, values))
}
