//! What is read of the autoencoder's `config.json`.

use serde::Deserialize;

/// Sizes and scaling of an `AutoencoderKL`. Keys that a file leaves out take the reference class' defaults; unknown keys
/// are left alone.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(default)]
pub struct VaeConfig {
    /// Class that the file was written by.
    #[serde(rename = "_class_name")]
    pub class_name: Option<String>,
    /// Channels of a picture; 3.
    pub in_channels: usize,
    /// Channels of a decoded picture; 3.
    pub out_channels: usize,
    /// Channels of a latent.
    pub latent_channels: usize,
    /// Channels of each resolution, finest first. There is a factor of 2 between neighbours.
    pub block_out_channels: Vec<usize>,
    /// Residual blocks per resolution in the encoder; the decoder has one more.
    pub layers_per_block: usize,
    /// Groups of every group normalisation.
    pub norm_num_groups: usize,
    /// Kind of each resolution of the encoder; only `DownEncoderBlock2D`.
    pub down_block_types: Option<Vec<String>>,
    /// Kind of each resolution of the decoder; only `UpDecoderBlock2D`.
    pub up_block_types: Option<Vec<String>>,
    /// Activation; only `silu`.
    pub act_fn: String,
    /// Whether the middle blocks attend over all positions.
    pub mid_block_add_attention: bool,
    /// Whether a 1×1 convolution follows the encoder.
    pub use_quant_conv: bool,
    /// Whether a 1×1 convolution precedes the decoder.
    pub use_post_quant_conv: bool,
    /// Factor that makes latents of unit size.
    pub scaling_factor: f64,
    /// What is subtracted before that factor is applied.
    pub shift_factor: Option<f64>,
    /// Per-channel mean of latents; not supported.
    pub latents_mean: Option<Vec<f64>>,
    /// Per-channel deviation of latents; not supported.
    pub latents_std: Option<Vec<f64>>,
}

impl Default for VaeConfig {
    fn default() -> Self {
        Self {
            class_name: None,
            in_channels: 3,
            out_channels: 3,
            latent_channels: 4,
            block_out_channels: vec![64],
            layers_per_block: 1,
            norm_num_groups: 32,
            down_block_types: None,
            up_block_types: None,
            act_fn: "silu".to_owned(),
            mid_block_add_attention: true,
            use_quant_conv: true,
            use_post_quant_conv: true,
            scaling_factor: 0.182_15,
            shift_factor: None,
            latents_mean: None,
            latents_std: None,
        }
    }
}

impl VaeConfig {
    /// Pixels per latent along each side.
    #[must_use]
    pub fn spatial_factor(&self) -> usize {
        1 << self.block_out_channels.len().saturating_sub(1)
    }

    /// Refuses what is not supported.
    ///
    /// # Errors
    ///
    /// A line that names the key, what it holds and what is supported.
    pub fn check(&self) -> Result<(), String> {
        if let Some(class) = self.class_name.as_deref().filter(|class| *class != "AutoencoderKL") {
            return Err(format!("`_class_name` is {class}, only AutoencoderKL is supported"));
        }
        if self.in_channels != 3 || self.out_channels != 3 {
            return Err(format!(
                "`in_channels` is {} and `out_channels` is {}; pictures have 3 channels",
                self.in_channels, self.out_channels
            ));
        }
        if self.act_fn != "silu" && self.act_fn != "swish" {
            return Err(format!("`act_fn` is {}, only silu is supported", self.act_fn));
        }
        let count = self.block_out_channels.len();
        if !(1..=8).contains(&count) || self.latent_channels == 0 || self.layers_per_block == 0 {
            return Err(format!(
                "{count} resolutions (`block_out_channels`, 1 to 8), {} blocks each (`layers_per_block`) and {} latent \
                 channels (`latent_channels`) make no autoencoder; these must be at least 1",
                self.layers_per_block, self.latent_channels
            ));
        }
        let groups = self.norm_num_groups;
        if let Some(width) = self
            .block_out_channels
            .iter()
            .find(|w| groups == 0 || **w == 0 || *w % groups != 0)
        {
            return Err(format!(
                "`block_out_channels` holds {width}, which {groups} groups (`norm_num_groups`) do not divide"
            ));
        }
        for (key, kinds, known) in [
            ("down_block_types", &self.down_block_types, "DownEncoderBlock2D"),
            ("up_block_types", &self.up_block_types, "UpDecoderBlock2D"),
        ] {
            let Some(kinds) = kinds else { continue };
            if let Some(kind) = kinds.iter().find(|kind| *kind != known) {
                return Err(format!("`{key}` holds {kind}, only {known} is supported"));
            }
            if kinds.len() != count {
                return Err(format!(
                    "`{key}` has {} entries, `block_out_channels` has {count}",
                    kinds.len()
                ));
            }
        }
        if !(self.scaling_factor.is_finite() && self.scaling_factor > 0.0) {
            return Err(format!(
                "`scaling_factor` is {}; it must be a positive number",
                self.scaling_factor
            ));
        }
        if self.shift_factor.is_some_and(|shift| !shift.is_finite()) {
            return Err("`shift_factor` is not finite".to_owned());
        }
        if self.latents_mean.is_some() || self.latents_std.is_some() {
            return Err(
                "`latents_mean` and `latents_std` are set; only one scale and shift for all channels are supported"
                    .to_owned(),
            );
        }
        Ok(())
    }
}
