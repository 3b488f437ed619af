//! The header of a safetensors file.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::Metadata;

use super::error::WeightsError;
use super::files::{Element, Entry, Place};
use super::format::{HEADER_SIZE_BYTES, MAX_HEADER_BYTES};

/// Parses the header and checks it against the file's length.
pub(super) fn read_header(path: &Path) -> Result<BTreeMap<String, Entry>, WeightsError> {
    let io = |source| WeightsError::Io {
        path: path.to_owned(),
        source,
    };
    let broken = |why: String| WeightsError::Broken {
        path: path.to_owned(),
        format: "safetensors",
        why,
    };
    let mut file = File::open(path).map_err(io)?;
    let file_length = file.metadata().map_err(io)?.len();
    let mut size = [0; HEADER_SIZE_BYTES as usize];
    file.read_exact(&mut size).map_err(io)?;
    let size = u64::from_le_bytes(size);
    if size > MAX_HEADER_BYTES || size + HEADER_SIZE_BYTES > file_length {
        return Err(broken(format!(
            "its header claims {size} bytes, the file has {file_length}"
        )));
    }
    file.seek(SeekFrom::Start(HEADER_SIZE_BYTES)).map_err(io)?;
    let mut header = vec![0; size as usize];
    file.read_exact(&mut header).map_err(io)?;
    // Deserialising checks that the tensors lie side by side without gaps and have the sizes their shapes say.
    let metadata: Metadata = serde_json::from_slice(&header).map_err(|e| broken(e.to_string()))?;
    let data_begin = size + HEADER_SIZE_BYTES;
    let data_length = metadata.data_len() as u64;
    if data_begin + data_length != file_length {
        return Err(broken(format!(
            "its header describes {} bytes, the file has {file_length}: it is truncated or has bytes appended",
            data_begin + data_length
        )));
    }
    let tensors = metadata.tensors().into_iter().map(|(key, info)| {
        let (from, to) = info.data_offsets;
        let entry = Entry {
            file: path.to_owned(),
            shape: info.shape.clone(),
            element: element(info.dtype),
            place: Place::Range {
                begin: data_begin + from as u64,
                length: to - from,
            },
        };
        (key, entry)
    });
    Ok(tensors.collect())
}

fn element(dtype: Dtype) -> Element {
    match dtype {
        Dtype::F32 => Element::F32,
        Dtype::F16 => Element::F16,
        Dtype::BF16 => Element::Bf16,
        other => Element::Other(format!("{other:?}")),
    }
}
