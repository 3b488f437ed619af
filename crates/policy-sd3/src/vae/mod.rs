//! The autoencoder between pixels and latents: diffusers' `AutoencoderKL` (arXiv 2112.10752), as SD3 uses it with 16
//! latent channels and without quantising convolutions.
//!
//! Names and shapes of the weights are those of diffusers' files. Only the decoder is on the path of a rollout; it is
//! never trained and runs on a device without autodiff.

mod blocks;
mod coder;
mod config;
mod host;

use std::path::Path;

use burn::module::Module;
#[cfg(feature = "flex")]
use burn::tensor::DType;
use burn::tensor::{Device, Tensor, TensorData};
use nn::layers::Conv2d;
use nn::weights::{Weights, WeightsError, read_config};

use coder::{Decoder, Encoder};

pub use config::VaeConfig;

/// Encoder and decoder with their scaling.
#[derive(Module, Debug)]
pub struct Vae {
    encoder: Encoder,
    decoder: Decoder,
    quant_conv: Option<Conv2d>,
    post_quant_conv: Option<Conv2d>,
    latent_channels: usize,
    spatial_factor: usize,
    scaling_factor: f64,
    shift_factor: f64,
}

impl Vae {
    /// Reads `config.json` and the weights of a pipeline's `vae` folder.
    ///
    /// # Errors
    ///
    /// A file is missing or damaged, the configuration asks for what is not supported, or the weights do not belong to
    /// it: every tensor must be there, and no other.
    pub fn open(dir: &Path, device: &Device) -> Result<Self, WeightsError> {
        let path = dir.join("config.json");
        let config: VaeConfig = read_config(&path)?;
        config.check().map_err(|why| WeightsError::Config { path, why })?;
        let weights = Weights::open(dir, "diffusion_pytorch_model", device)?;
        let vae = Self::load(&weights, &config)?;
        weights.finish()?;
        Ok(vae)
    }

    /// Builds the autoencoder of a configuration that passed [`VaeConfig::check`] from its weights.
    ///
    /// # Errors
    ///
    /// A tensor is missing or misshapen.
    pub fn load(weights: &Weights, config: &VaeConfig) -> Result<Self, WeightsError> {
        let latent = config.latent_channels;
        let quant = |name: &str, channels: usize, used: bool| {
            used.then(|| Conv2d::load(&weights.scope(name), [channels, channels], 1, 1, 0))
                .transpose()
        };
        Ok(Self {
            encoder: Encoder::load(&weights.scope("encoder"), config)?,
            decoder: Decoder::load(&weights.scope("decoder"), config)?,
            quant_conv: quant("quant_conv", 2 * latent, config.use_quant_conv)?,
            post_quant_conv: quant("post_quant_conv", latent, config.use_post_quant_conv)?,
            latent_channels: latent,
            spatial_factor: config.spatial_factor(),
            scaling_factor: config.scaling_factor,
            shift_factor: config.shift_factor.unwrap_or(0.0),
        })
    }

    /// Latents of the policy to pictures: `[batch, channels, height, width]` to
    /// `[batch, 3, factor·height, factor·width]`, values around −1…1, not clamped.
    ///
    /// The policy's latents are normalised; `z/scaling_factor + shift_factor` undoes that before decoding.
    #[must_use]
    pub fn decode(&self, latents: Tensor<4>) -> Tensor<4> {
        self.decode_raw(latents / self.scaling_factor + self.shift_factor)
    }

    /// Latents as the encoder gives them to pictures, without scaling; shapes as for [`Vae::decode`].
    #[must_use]
    pub fn decode_raw(&self, latents: Tensor<4>) -> Tensor<4> {
        let latents = match &self.post_quant_conv {
            Some(conv) => conv.forward(latents),
            None => latents,
        };
        if on_plain_cpu(&latents) {
            return self.decode_on_host(latents);
        }
        // A few pictures at a time bound the memory whatever the batch.
        let [batch, _, height, width] = latents.dims();
        let pixels = height * width * self.spatial_factor * self.spatial_factor;
        let at_once = (PIXELS_AT_ONCE / pixels.max(1)).clamp(1, batch.max(1));
        if at_once >= batch {
            return self.decoder.forward(latents);
        }
        Tensor::cat(
            latents
                .split(at_once, 0)
                .into_iter()
                .map(|chunk| self.decoder.forward(chunk))
                .collect(),
            0,
        )
    }

    /// Pictures to the posterior of the encoder: `[batch, 3, height, width]`, values in −1…1, to mean and log-variance,
    /// each `[batch, channels, height/factor, width/factor]`, unscaled.
    ///
    /// The policy's latent is `(z − shift_factor)·scaling_factor`; see [`Vae::normalise`].
    #[must_use]
    pub fn encode(&self, pixels: Tensor<4>) -> (Tensor<4>, Tensor<4>) {
        let moments = self.encoder.forward(pixels);
        let moments = match &self.quant_conv {
            Some(conv) => conv.forward(moments),
            None => moments,
        };
        let log_variance = moments.clone().narrow(1, self.latent_channels, self.latent_channels);
        let mean = moments.narrow(1, 0, self.latent_channels);
        // The reference bounds the log-variance so that its exponential stays finite.
        (mean, log_variance.clamp(-30.0, 20.0))
    }

    /// The encoder's latents as the policy sees them, `(z − shift_factor)·scaling_factor`: the inverse of what
    /// [`Vae::decode`] does first.
    #[must_use]
    pub fn normalise(&self, latents: Tensor<4>) -> Tensor<4> {
        (latents - self.shift_factor) * self.scaling_factor
    }

    /// Pixels per latent along each side, 8 for SD3.
    #[must_use]
    pub fn spatial_factor(&self) -> usize {
        self.spatial_factor
    }

    /// Channels of a latent, 16 for SD3.
    #[must_use]
    pub fn latent_channels(&self) -> usize {
        self.latent_channels
    }

    /// The decoder on plain numbers, each thread with its share of the pictures.
    fn decode_on_host(&self, latents: Tensor<4>) -> Tensor<4> {
        let [batch, channels, height, width] = latents.dims();
        let device = latents.device();
        let latents = host::numbers(latents);
        let shape = [batch, 3, height * self.spatial_factor, width * self.spatial_factor];
        let mut pixels = vec![0.0; shape.iter().product()];
        if pixels.is_empty() {
            return Tensor::from_data(TensorData::new(pixels, shape), &device);
        }
        let (latent_size, picture_size) = (latents.len() / batch, pixels.len() / batch);
        let decoder = &self.decoder.host();
        let threads = host::threads();
        // Threads that no picture is left for help within the pictures.
        let (at_once, threads_each) = (threads.min(batch), threads.div_ceil(batch));
        let each = batch.div_ceil(at_once);
        std::thread::scope(|scope| {
            for (latents, pixels) in latents
                .chunks(each * latent_size)
                .zip(pixels.chunks_mut(each * picture_size))
            {
                scope.spawn(move || {
                    let mut padded = host::Padded::default();
                    let pairs = latents
                        .chunks_exact(latent_size)
                        .zip(pixels.chunks_exact_mut(picture_size));
                    for (latent, target) in pairs {
                        let latent = host::Picture {
                            channels,
                            height,
                            width,
                            values: latent.to_vec(),
                        };
                        target.copy_from_slice(&decoder.apply(&latent, &mut padded, threads_each).values);
                    }
                });
            }
        });
        Tensor::from_data(TensorData::new(pixels, shape), &device)
    }
}

/// Pixels that are decoded together.
const PIXELS_AT_ONCE: usize = 64 * 64 * 64;

/// Whether a tensor's values lie in this process' memory as f32, without a tape.
#[cfg(feature = "flex")]
fn on_plain_cpu(tensor: &Tensor<4>) -> bool {
    let device = tensor.device();
    device == Device::flex() && !device.is_autodiff() && tensor.dtype() == DType::F32
}

/// Without the CPU backend there is no such tensor.
#[cfg(not(feature = "flex"))]
fn on_plain_cpu(_: &Tensor<4>) -> bool {
    false
}
