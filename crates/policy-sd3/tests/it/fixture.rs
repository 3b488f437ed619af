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
    /// Reads `name.json` and, if it is there, `name.safetensors`.
    pub(crate) fn read(name: &str) -> Self {
        let text = std::fs::read_to_string(root().join(format!("{name}.json"))).expect("the fixture's JSON file");
        let mut json: Value = serde_json::from_str(&text).expect("valid JSON");
        let mut tensors = HashMap::new();
        if let Ok(bytes) = std::fs::read(root().join(format!("{name}.safetensors"))) {
            for (key, view) in SafeTensors::deserialize(&bytes).expect("a safetensors file").tensors() {
                let values = match view.dtype() {
                    safetensors::Dtype::F32 => view
                        .data()
                        .chunks_exact(4)
                        .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                        .collect(),
                    safetensors::Dtype::U8 => view.data().iter().map(|b| f32::from(*b)).collect(),
                    other => panic!("{key}: unexpected type {other:?}"),
                };
                tensors.insert(key, (view.shape().to_vec(), values));
            }
        }
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
}

/// Largest absolute difference between a tensor and reference values; the element counts must agree.
#[track_caller]
pub(crate) fn largest_difference<const D: usize>(found: Tensor<D>, expected: &[f32]) -> f32 {
    let found: Vec<f32> = found.into_data().try_to_vec().expect("f32 data");
    assert_eq!(found.len(), expected.len(), "element counts differ");
    found
        .iter()
        .zip(expected)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max)
}

/// Fails when a tensor is farther from reference values than `tolerance`, or not finite.
#[track_caller]
pub(crate) fn assert_close<const D: usize>(what: &str, found: Tensor<D>, expected: &[f32], tolerance: f32) {
    let difference = largest_difference(found, expected);
    // The negated comparison also catches NaN.
    assert!(
        difference <= tolerance,
        "{what}: largest difference {difference:e} exceeds {tolerance:e}"
    );
}
