//! Noise as a function of its place: distinct, independent, and not a matter of order.

use std::collections::HashSet;

use burn::tensor::Device;
use proptest::prelude::*;
use trainer::noise::{Place, Purpose, normal, permutation, uniform};

use crate::fixture::host;

const PURPOSES: [Purpose; 7] = [
    Purpose::Root,
    Purpose::Step,
    Purpose::Evaluation,
    Purpose::Prompts,
    Purpose::Window,
    Purpose::Updates,
    Purpose::Generation,
];

/// A place for every combination of a few values of every coordinate.
fn places() -> Vec<Place> {
    let mut places = Vec::new();
    for purpose in PURPOSES {
        for iteration in [0, 1, 256] {
            for prompt in [0, 1, 256] {
                for tree in [0, 1, 256] {
                    for step in [0, 1, 256] {
                        for node in [0, 1, 65536] {
                            places.push(Place {
                                purpose,
                                iteration,
                                prompt,
                                tree,
                                step,
                                node,
                            });
                        }
                    }
                }
            }
        }
    }
    places
}

fn block(seed: u64, place: Place, count: usize) -> Vec<f32> {
    host(normal(seed, [place], [1, 1, count], &Device::flex()))
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// Two places never share noise: not by prompt, tree, step, node, iteration, purpose or seed.
#[test]
fn places_are_distinct() {
    let mut seen = HashSet::new();
    let mut count = 0;
    for seed in [0, 1] {
        for place in places() {
            count += 1;
            assert!(seen.insert(bits(&block(seed, place, 4))), "{place:?} shares its noise");
        }
    }
    assert_eq!(seen.len(), count);
}

/// A block is the same alone, among others, and in any order of asking.
#[test]
fn order_and_company_do_not_matter() {
    let all: Vec<Place> = places().into_iter().step_by(97).collect();
    let shape = [2, 3, 2];
    let forward = host(normal(5, all.iter().copied(), shape, &Device::flex()));
    let backward = host(normal(5, all.iter().rev().copied(), shape, &Device::flex()));
    for (i, place) in all.iter().enumerate() {
        let alone = bits(&host(normal(5, [*place], shape, &Device::flex())));
        assert_eq!(bits(&forward[i * 12..][..12]), alone);
        assert_eq!(bits(&backward[(all.len() - 1 - i) * 12..][..12]), alone);
    }
}

/// Blocks of neighbouring places are uncorrelated: |r| < 4/√n for every pair.
#[test]
fn blocks_are_uncorrelated() {
    const COUNT: usize = 4096;
    let first = Place {
        purpose: Purpose::Step,
        iteration: 3,
        prompt: 8,
        tree: 0,
        step: 2,
        node: 1,
    };
    let places = [
        first,
        Place {
            purpose: Purpose::Root,
            ..first
        },
        Place { iteration: 4, ..first },
        Place { prompt: 9, ..first },
        Place { tree: 1, ..first },
        Place { step: 3, ..first },
        Place { node: 2, ..first },
        Place { node: 3, ..first },
    ];
    let blocks: Vec<Vec<f32>> = places.iter().map(|place| block(1, *place, COUNT)).collect();
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(a * b)).sum::<f64>();
    for (i, a) in blocks.iter().enumerate() {
        for (j, b) in blocks.iter().enumerate().skip(i + 1) {
            let correlation = dot(a, b) / (dot(a, a) * dot(b, b)).sqrt();
            assert!(
                correlation.abs() < 4.0 / (COUNT as f64).sqrt(),
                "{i} and {j}: {correlation}"
            );
        }
    }
}

/// The values are standard normal: mean 0, variance 1, fourth moment 3, within four standard errors.
#[test]
fn values_are_standard_normal() {
    let count = 100_000;
    let values = block(2, Place::of_iteration(Purpose::Root, 0), count);
    let moment = |power: i32| values.iter().map(|v| f64::from(*v).powi(power)).sum::<f64>() / count as f64;
    let error = 4.0 / (count as f64).sqrt();
    // Variances of the estimates: 1, 2 and E z⁸ − 9 = 96.
    assert!(moment(1).abs() < error);
    assert!((moment(2) - 1.0).abs() < error * 2f64.sqrt());
    assert!((moment(4) - 3.0).abs() < error * 96f64.sqrt());
}

proptest! {
    /// A permutation holds every number once and is a function of its arguments.
    #[test]
    fn permutations_hold_every_number_once(seed: u64, iteration: u64, count in 0usize..200) {
        let place = Place::of_iteration(Purpose::Updates, iteration);
        let order = permutation(seed, place, count);
        let mut sorted = order.clone();
        sorted.sort_unstable();
        prop_assert_eq!(sorted, (0..count).collect::<Vec<_>>());
        prop_assert_eq!(permutation(seed, place, count), order);
    }

    /// A uniform number lies in [0, 1).
    #[test]
    fn uniform_numbers_lie_below_one(seed: u64, iteration: u64) {
        prop_assert!((0.0..1.0).contains(&uniform(seed, Place::of_iteration(Purpose::Window, iteration))));
    }
}
