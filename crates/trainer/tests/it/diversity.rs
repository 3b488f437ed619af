//! The diversity of leaves.

use burn::tensor::{Device, Tensor};
use trainer::diversity::latent_diversity;

fn leaves(values: &[f32], elements: usize) -> Tensor<4> {
    Tensor::<1>::from_floats(values, &Device::flex()).reshape([values.len() / elements, 1, 1, elements])
}

/// Two prompts by hand. Prompt 0: leaves (0, 0) and (3, 1), mean square difference (9 + 1)/2 = 5, distance √5.
/// Prompt 1: leaves (1, 1), (1, 1), (1, 4): the three pairs differ by 0, 9/2 and 9/2, mean 3, distance √3.
#[test]
fn distance_by_hand() {
    let found = latent_diversity(
        &leaves(&[0.0, 0.0, 3.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 4.0], 2),
        &[0, 0, 1, 1, 1],
    );
    let expected = (5f64.sqrt() + 3f64.sqrt()) / 2.0;
    assert!((found.expect("host data") - expected).abs() < 1e-12);
}

/// Copies have none, and a prompt with one leaf says nothing.
#[test]
fn copies_have_no_distance() {
    let found = latent_diversity(&leaves(&[0.5, -1.0, 0.5, -1.0, 7.0, 7.0], 2), &[4, 4, 9]);
    assert_eq!(found.expect("host data"), 0.0);
}
