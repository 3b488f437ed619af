//! Decoded tensors to 8-bit pictures. One function serves saving and scoring, so what is scored is what is saved.

use burn::tensor::Tensor;
use image::RgbImage;

/// A decoder's output to pictures.
///
/// `decoded` is `[batch, 3, height, width]` with values around −1…1; a value becomes `x/2 + ½`, clamped to 0…1, times
/// 255, rounded half to even as the reference pipeline does.
///
/// # Errors
///
/// Names the first picture that holds a non-finite value: clamping would turn it into a colour.
pub fn to_pictures(decoded: Tensor<4>) -> Result<Vec<RgbImage>, PixelError> {
    let [batch, channels, height, width] = decoded.dims();
    if channels != 3 {
        return Err(PixelError::Channels { channels });
    }
    let values: Vec<f32> = decoded
        .into_data()
        .convert::<f32>()
        .try_to_vec()
        .map_err(|_| PixelError::Unreadable)?;
    let plane = height * width;
    (0..batch)
        .map(|picture| {
            let planes = &values[picture * 3 * plane..(picture + 1) * 3 * plane];
            if planes.iter().any(|v| !v.is_finite()) {
                return Err(PixelError::NonFinite { picture });
            }
            Ok(RgbImage::from_fn(width as u32, height as u32, |x, y| {
                let at = y as usize * width + x as usize;
                image::Rgb([0, 1, 2].map(|channel| to_level(planes[channel * plane + at])))
            }))
        })
        .collect()
}

/// One value of a decoded picture to its 8-bit level.
#[must_use]
pub fn to_level(value: f32) -> u8 {
    ((value / 2.0 + 0.5).clamp(0.0, 1.0) * 255.0).round_ties_even() as u8
}

/// Why a decoded tensor is no picture.
#[derive(Debug, thiserror::Error)]
pub enum PixelError {
    /// The tensor has other than three channels.
    #[error("a picture has 3 channels, the decoder gave {channels}")]
    Channels {
        /// How many it has.
        channels: usize,
    },
    /// A pixel is NaN or infinite.
    #[error("picture {picture} of the batch holds a non-finite pixel; the latents or the decoder diverged")]
    NonFinite {
        /// Its place in the batch.
        picture: usize,
    },
    /// The device did not hand its data over.
    #[error("the decoded picture could not be read back from the device")]
    Unreadable,
}
