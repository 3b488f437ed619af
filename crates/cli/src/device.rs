//! From `--device` to a device, without ever asking burn for its own choice, which depends on what else was compiled.

use anyhow::{Result, bail};
use burn::tensor::Device;
use clap::Args;

/// Where the networks run.
#[derive(Args)]
pub(crate) struct DeviceArgument {
    /// Device: flex (any CPU), cuda, cuda:N, tch (LibTorch on the CPU) or tch:cuda:N
    #[arg(long, value_name = "DEVICE", default_value = "flex")]
    device: String,
}

impl DeviceArgument {
    /// The device of that name.
    ///
    /// # Errors
    ///
    /// There is no such device, or this program was built without it.
    pub(crate) fn open(&self) -> Result<Device> {
        let name = self.device.as_str();
        let parts: Vec<&str> = name.split(':').collect();
        match parts.as_slice() {
            ["flex"] => flex(),
            ["cuda"] => cuda(0),
            ["cuda", number] => cuda(index(name, number)?),
            ["tch"] => tch(None),
            ["tch", "cuda"] => tch(Some(0)),
            ["tch", "cuda", number] => tch(Some(index(name, number)?)),
            _ => bail!("--device {name}: there is no such device; use flex, cuda, cuda:N, tch or tch:cuda:N"),
        }
    }
}

fn index(name: &str, number: &str) -> Result<usize> {
    match number.parse() {
        Ok(index) => Ok(index),
        Err(_) => bail!("--device {name}: `{number}` is not the number of a GPU; they are counted from 0"),
    }
}

#[cfg(feature = "flex")]
fn flex() -> Result<Device> {
    Ok(Device::flex())
}

#[cfg(not(feature = "flex"))]
fn flex() -> Result<Device> {
    not_built("flex")
}

#[cfg(feature = "cuda")]
fn cuda(index: usize) -> Result<Device> {
    Ok(Device::cuda(index))
}

#[cfg(not(feature = "cuda"))]
fn cuda(_index: usize) -> Result<Device> {
    not_built("cuda")
}

// burn 0.22 still has LibTorch but advises against it. It stays here as an option for comparisons.
#[cfg(feature = "tch")]
#[expect(deprecated, reason = "the only way to this device until burn drops it")]
fn tch(gpu: Option<usize>) -> Result<Device> {
    Ok(match gpu {
        None => Device::libtorch(),
        Some(index) => Device::libtorch_cuda(index),
    })
}

#[cfg(not(feature = "tch"))]
fn tch(_gpu: Option<usize>) -> Result<Device> {
    not_built("tch")
}

#[cfg(not(all(feature = "flex", feature = "cuda", feature = "tch")))]
fn not_built(feature: &str) -> Result<Device> {
    bail!(
        "--device {feature}: this program was built without it; build it with \
         `cargo build --release --package treegrpo-cli --features {feature}`"
    )
}
