//! How different the leaves of a prompt are.

use burn::tensor::Tensor;

use crate::error::TrainError;

/// Root-mean-square difference, per latent element, between two leaves of a prompt, averaged over all pairs of a prompt
/// (in the mean square) and over prompts.
///
/// Independent samples of unit latents are √2 apart; near 0 a prompt's pictures are copies of each other, and there is
/// nothing to compare. `leaves` is `[leaves, channels, height, width]`, `prompts[l]` the prompt of leaf l.
///
/// # Errors
///
/// The device did not hand the latents over.
pub fn latent_diversity(leaves: &Tensor<4>, prompts: &[usize]) -> Result<f64, TrainError> {
    let [count, channels, height, width] = leaves.dims();
    let elements = channels * height * width;
    let values: Vec<f32> = leaves
        .to_data()
        .try_to_vec()
        .map_err(|e| TrainError::Device(format!("{e:?}")))?;
    let mut groups: std::collections::BTreeMap<usize, Vec<usize>> = std::collections::BTreeMap::new();
    for (leaf, prompt) in prompts.iter().enumerate().take(count) {
        groups.entry(*prompt).or_default().push(leaf);
    }
    let distances = groups.values().filter(|members| members.len() > 1).map(|members| {
        let of = |leaf: &usize, element: usize| f64::from(values[leaf * elements + element]);
        let squares: f64 = (0..elements)
            .map(|element| {
                let mean = members.iter().map(|leaf| of(leaf, element)).sum::<f64>() / members.len() as f64;
                members
                    .iter()
                    .map(|leaf| (of(leaf, element) - mean).powi(2))
                    .sum::<f64>()
            })
            .sum();
        // The mean squared difference of two members is twice their sample variance.
        (2.0 * squares / (members.len() - 1) as f64 / elements as f64).sqrt()
    });
    let distances: Vec<f64> = distances.collect();
    Ok(distances.iter().sum::<f64>() / distances.len().max(1) as f64)
}
