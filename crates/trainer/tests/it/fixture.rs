//! Reading the reference fixtures: a JSON file and, beside it, a safetensors file of the same name.

use std::collections::HashMap;
use std::path::PathBuf;

use burn::tensor::{Device, Tensor, TensorData};
use safetensors::SafeTensors;
use serde_json::Value;

/// The folder of reference values: `PARITY_FIXTURES`, or the project's own copy.
pub(crate) fn root() -> PathBuf {
    std::env::var_os("PARITY_FIXTURES").map_or_else(
        || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures"),
        PathBuf::from,
    )
}

/// One fixture: `inputs` and `expected` of the JSON file, and the tensors.
pub(crate) struct Fixture {
    pub(crate) inputs: Value,
    pub(crate) expected: Value,
    tensors: HashMap<String, (Vec<usize>, Vec<f32>)>,
}

impl Fixture {
    /// Reads `name.json` and `name.safetensors`.
    pub(crate) fn read(name: &str) -> Self {
        let text = std::fs::read_to_string(root().join(format!("{name}.json"))).expect("the fixture's JSON file");
        let mut json: Value = serde_json::from_str(&text).expect("valid JSON");
        let bytes = std::fs::read(root().join(format!("{name}.safetensors"))).expect("the fixture's tensors");
        let tensors = SafeTensors::deserialize(&bytes)
            .expect("a safetensors file")
            .tensors()
            .into_iter();
        let tensors = tensors.map(|(key, view)| {
            let values = match view.dtype() {
                safetensors::Dtype::F32 => view
                    .data()
                    .chunks_exact(4)
                    .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                    .collect(),
                safetensors::Dtype::U8 => view.data().iter().map(|b| f32::from(*b)).collect(),
                other => panic!("{key}: unexpected type {other:?}"),
            };
            (key, (view.shape().to_vec(), values))
        });
        let tensors = tensors.collect();
        Self {
            inputs: json["inputs"].take(),
            expected: json["expected"].take(),
            tensors,
        }
    }

    /// Values of a tensor in row-major order.
    pub(crate) fn values(&self, key: &str) -> &[f32] {
        &self
            .tensors
            .get(key)
            .unwrap_or_else(|| panic!("the fixture has no tensor {key}"))
            .1
    }

    /// A tensor on a device.
    pub(crate) fn tensor<const D: usize>(&self, key: &str, device: &Device) -> Tensor<D> {
        let (shape, values) = self
            .tensors
            .get(key)
            .unwrap_or_else(|| panic!("the fixture has no tensor {key}"));
        Tensor::from_data(TensorData::new(values.clone(), shape.clone()), device)
    }

    /// The tensors whose key begins with `prefix`, by the rest of their key.
    pub(crate) fn below(&self, prefix: &str) -> HashMap<&str, &[f32]> {
        let named = self
            .tensors
            .iter()
            .filter_map(|(key, (_, values))| Some((key.strip_prefix(prefix)?, &values[..])));
        named.collect()
    }
}

pub(crate) fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("a number was expected, not {value}"))
}

pub(crate) fn numbers(value: &Value) -> Vec<f64> {
    list(value).iter().map(number).collect()
}

pub(crate) fn index(value: &Value) -> usize {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("a whole number was expected, not {value}")) as usize
}

pub(crate) fn list(value: &Value) -> &[Value] {
    value
        .as_array()
        .unwrap_or_else(|| panic!("a list was expected, not {value}"))
}

/// The values of a tensor.
pub(crate) fn host<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().try_to_vec().expect("f32 data")
}

/// The largest absolute difference; the element counts must agree. NaN makes it infinite.
#[track_caller]
pub(crate) fn largest_difference(found: &[f32], expected: &[f32]) -> f32 {
    assert_eq!(found.len(), expected.len(), "element counts differ");
    let differences = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    differences.fold(
        0.0,
        |largest, d| if d.is_nan() { f32::INFINITY } else { largest.max(d) },
    )
}

/// Fails when values are farther from reference values than `tolerance`, or not finite.
#[track_caller]
pub(crate) fn assert_close(what: &str, found: &[f32], expected: &[f32], tolerance: f32) {
    let difference = largest_difference(found, expected);
    println!("{what}: {difference:e} of {tolerance:e}");
    assert!(
        difference <= tolerance,
        "{what}: largest difference {difference:e} exceeds {tolerance:e}"
    );
}

/// As [`assert_close`], for one number.
#[track_caller]
pub(crate) fn assert_near(what: &str, found: f64, expected: f64, tolerance: f64) {
    println!("{what}: {:e} of {tolerance:e}", (found - expected).abs());
    // The negated comparison also catches NaN.
    assert!(
        (found - expected).abs() <= tolerance,
        "{what}: {found} is farther from {expected} than {tolerance:e}"
    );
}

/// The Euclidean norm.
pub(crate) fn norm(values: &[f32]) -> f64 {
    values.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt()
}
