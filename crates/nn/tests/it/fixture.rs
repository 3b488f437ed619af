//! Where the reference values are, and reading them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde_json::Value;

/// The folder of reference values: `PARITY_FIXTURES`, or the project's own copy.
pub(crate) fn root() -> PathBuf {
    std::env::var_os("PARITY_FIXTURES").map_or_else(|| own().to_owned(), PathBuf::from)
}

/// The project's own copy, for tests that are about files and not about numbers.
pub(crate) fn own() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures"))
}

/// Inputs and outputs of a reward model.
pub(crate) struct Fixture {
    json: Value,
    tensors: HashMap<String, (Vec<usize>, Vec<f32>)>,
}

impl Fixture {
    /// Reads `rewards/name_io.json` and `.safetensors`.
    pub(crate) fn read(name: &str) -> Self {
        let path = root().join(format!("rewards/{name}_io.json"));
        let text = std::fs::read_to_string(&path).expect("the fixture's JSON file");
        let bytes = std::fs::read(path.with_extension("safetensors")).expect("the fixture's tensors");
        let tensors = SafeTensors::deserialize(&bytes).expect("a safetensors file");
        let tensors = tensors.tensors().into_iter().map(|(key, view)| {
            assert_eq!(view.dtype(), safetensors::Dtype::F32, "{key}");
            let values = view.data().chunks_exact(4);
            let values = values.map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
            (key, (view.shape().to_vec(), values.collect()))
        });
        Self {
            json: serde_json::from_str(&text).expect("valid JSON"),
            tensors: tensors.collect(),
        }
    }

    /// Shape and values of a tensor.
    pub(crate) fn tensor(&self, key: &str) -> &(Vec<usize>, Vec<f32>) {
        self.tensors
            .get(key)
            .unwrap_or_else(|| panic!("the fixture has no tensor {key}"))
    }

    /// Padded and truncated token ids of the captions.
    pub(crate) fn token_ids(&self) -> Vec<Vec<u32>> {
        serde_json::from_value(self.json["expected"]["token_ids"].clone()).expect("rows of ids")
    }
}
