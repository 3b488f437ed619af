//! Reading the reference fixtures: a JSON file and, beside it, a safetensors file of the same name.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use rewards::Picture;
use safetensors::SafeTensors;
use serde_json::Value;

/// The folder of reference values: `PARITY_FIXTURES`, or the project's own copy.
pub(crate) fn root() -> PathBuf {
    std::env::var_os("PARITY_FIXTURES").map_or_else(|| workspace().join("fixtures"), PathBuf::from)
}

/// The shipped scorers' parent folder.
pub(crate) fn emoji() -> PathBuf {
    workspace().join("assets/emoji-sd3")
}

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A folder among the reward fixtures.
pub(crate) fn folder(name: &str) -> PathBuf {
    root().join("rewards").join(name)
}

/// One fixture: `inputs` and `expected` of the JSON file, and the tensors.
pub(crate) struct Fixture {
    pub(crate) inputs: Value,
    pub(crate) expected: Value,
    tensors: HashMap<String, (Vec<usize>, Vec<f32>)>,
}

impl Fixture {
    /// Reads `rewards/name_io.json` and `.safetensors`.
    pub(crate) fn read(name: &str) -> Self {
        let path = folder(&format!("{name}_io.json"));
        let text = std::fs::read_to_string(&path).expect("the fixture's JSON file");
        let mut json: Value = serde_json::from_str(&text).expect("valid JSON");
        let bytes = std::fs::read(path.with_extension("safetensors")).expect("the fixture's tensors");
        let tensors = SafeTensors::deserialize(&bytes).expect("a safetensors file");
        let tensors = tensors.tensors().into_iter().map(|(key, view)| {
            assert_eq!(view.dtype(), safetensors::Dtype::F32, "{key}");
            let values = view
                .data()
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
                .collect();
            (key, (view.shape().to_vec(), values))
        });
        Self {
            inputs: json["inputs"].take(),
            expected: json["expected"].take(),
            tensors: tensors.collect(),
        }
    }

    /// Rows of a matrix, or of whatever else has a first dimension.
    pub(crate) fn rows(&self, key: &str) -> Vec<&[f32]> {
        let (shape, values) = self
            .tensors
            .get(key)
            .unwrap_or_else(|| panic!("the fixture has no tensor {key}"));
        values.chunks_exact(values.len() / shape[0]).collect()
    }

    /// The pictures, in the fixture's order.
    pub(crate) fn pictures(&self) -> Vec<Picture> {
        let open = |name: &str| rewards::pictures::open(&folder("images").join(format!("{name}.png")));
        strings(&self.inputs["images"])
            .iter()
            .map(|name| open(name).expect("a picture"))
            .collect()
    }

    /// The captions, in the fixture's order.
    pub(crate) fn captions(&self) -> Vec<String> {
        strings(&self.inputs["captions"])
    }

    /// Padded and truncated token ids of the captions.
    pub(crate) fn token_ids(&self) -> Vec<Vec<u32>> {
        serde_json::from_value(self.expected["token_ids"].clone()).expect("rows of ids")
    }
}

fn strings(value: &Value) -> Vec<String> {
    serde_json::from_value(value.clone()).expect("a list of strings")
}

/// A copy of a folder of flat files that a test may damage.
pub(crate) fn copy(from: &Path) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a temporary folder");
    for entry in std::fs::read_dir(from).expect("the folder") {
        let path = entry.expect("an entry").path();
        std::fs::copy(&path, copy.path().join(path.file_name().expect("a name"))).expect("a copy");
    }
    copy
}

/// Fails when one of the pairs differs by more than `tolerance`, or is not finite; prints the largest difference.
#[track_caller]
pub(crate) fn assert_close(what: &str, found: &[f32], expected: &[f32], tolerance: f32) {
    assert_eq!(found.len(), expected.len(), "{what}: element counts differ");
    // `max` would drop a NaN, so the comparison is made for each pair.
    let mut largest = 0f32;
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let difference = (found - expected).abs();
        assert!(
            difference <= tolerance,
            "{what}[{index}]: {found} instead of {expected}"
        );
        largest = largest.max(difference);
    }
    println!("{what}: largest difference {largest:e} (tolerance {tolerance:e})");
}
