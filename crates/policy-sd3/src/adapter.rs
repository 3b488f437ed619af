//! Adapters as files: a PEFT folder and diffusers' `pytorch_lora_weights.safetensors`.
//!
//! Both hold the same tensors under different prefixes. PEFT keeps rank and α in `adapter_config.json`, diffusers in
//! the file header's `lora_adapter_metadata`; a reader that ignores the latter takes α = rank, so α is always written.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use nn::files;
use nn::weights::{ParameterKeys, Weights, WeightsError, read_config, transpose};
use safetensors::tensor::{Dtype, TensorView};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::lora::{ADAPTED_LAYERS, LoraConfig, LoraInit, attach_values};
use crate::transformer::Transformer;

/// File name of the weights in a PEFT folder.
pub const PEFT_WEIGHTS: &str = "adapter_model.safetensors";
/// File name of the settings in a PEFT folder.
pub const PEFT_CONFIG: &str = "adapter_config.json";
/// File name that `load_lora_weights` of diffusers and ComfyUI look for.
pub const DIFFUSERS_WEIGHTS: &str = "pytorch_lora_weights.safetensors";

const PEFT_PREFIX: &str = "base_model.model.";
const DIFFUSERS_PREFIX: &str = "transformer.";
/// Entry of the header in which diffusers keeps an adapter's settings, as JSON.
const DIFFUSERS_SETTINGS: &str = "lora_adapter_metadata";

/// Why an adapter could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum AdapterError {
    /// A weight file is at fault.
    #[error(transparent)]
    Weights(#[from] WeightsError),
    /// The folder holds no adapter.
    #[error("{}: holds neither {PEFT_WEIGHTS} nor {DIFFUSERS_WEIGHTS}; point the path at the folder of an adapter", .0.display())]
    NotThere(PathBuf),
    /// The settings are missing, malformed or ask for what is not supported.
    #[error("{}: {why}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong and what to do.
        why: String,
    },
    /// A file could not be written.
    #[error("{}: could not be written: {why}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
}

/// A tensor in the layout of its file: shape and row-major values.
pub type StoredTensor = (Vec<usize>, Vec<f32>);

/// Writes the adapter in both layouts into `dir`, each file by rename.
///
/// `tensors` are keyed `transformer_blocks.0.attn.to_q.lora_A.weight` and shaped as in the files (A `[rank, inputs]`,
/// B `[outputs, rank]`).
///
/// # Errors
///
/// A file cannot be written.
pub fn write(
    dir: &Path,
    tensors: &BTreeMap<String, StoredTensor>,
    config: &LoraConfig,
    base_model: &str,
) -> Result<(), AdapterError> {
    let prefixed = |prefix: &str| -> BTreeMap<String, &StoredTensor> {
        tensors
            .iter()
            .map(|(key, tensor)| (format!("{prefix}{key}"), tensor))
            .collect()
    };
    write_safetensors(&dir.join(PEFT_WEIGHTS), &prefixed(PEFT_PREFIX), HashMap::new())?;
    let targets: Vec<String> = ADAPTED_LAYERS.iter().map(|name| format!("attn.{name}")).collect();
    let init = match config.init {
        LoraInit::Gaussian => json!("gaussian"),
        LoraInit::Kaiming => json!(true),
    };
    let settings = json!({
        "auto_mapping": {
            "base_model_class": "SD3Transformer2DModel",
            "parent_library": "diffusers.models.transformers.transformer_sd3",
        },
        "base_model_name_or_path": base_model,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": init,
        "lora_alpha": config.alpha,
        "lora_dropout": 0.0,
        "peft_type": "LORA",
        "r": config.rank,
        "target_modules": targets,
        "task_type": null,
        "use_dora": false,
        "use_rslora": false,
    });
    write_file(&dir.join(PEFT_CONFIG), format!("{settings:#}\n").as_bytes())?;
    let metadata = json!({
        "transformer.r": config.rank,
        "transformer.lora_alpha": config.alpha,
        "transformer.target_modules": targets,
    });
    let header = HashMap::from([(DIFFUSERS_SETTINGS.to_owned(), metadata.to_string())]);
    write_safetensors(&dir.join(DIFFUSERS_WEIGHTS), &prefixed(DIFFUSERS_PREFIX), header)
}

/// Reads an adapter folder of either layout into the network, strictly: every factor of every adapted layer, no more.
///
/// # Errors
///
/// The folder holds no adapter, a tensor is missing, left over or misshapen, or the settings ask for a variant of LoRA
/// that this network does not have.
pub fn read(
    dir: &Path,
    network: &mut Transformer,
    keys: &mut ParameterKeys,
    device: &Device,
) -> Result<LoraConfig, AdapterError> {
    let peft = dir.join(PEFT_WEIGHTS);
    let diffusers = dir.join(DIFFUSERS_WEIGHTS);
    // The weights are opened first: they know what a file is that is none.
    let (weights, prefix, config) = if peft.exists() {
        (
            Weights::open_file(&peft, device)?,
            PEFT_PREFIX,
            read_peft_config(&dir.join(PEFT_CONFIG))?,
        )
    } else if diffusers.exists() {
        (
            Weights::open_file(&diffusers, device)?,
            DIFFUSERS_PREFIX,
            read_diffusers_header(&diffusers)?,
        )
    } else {
        return Err(AdapterError::NotThere(dir.to_owned()));
    };
    let scope = weights.scope(prefix.trim_end_matches('.'));
    for (name, layer) in network.adapted_layers_mut() {
        let [inputs, outputs] = layer.dims();
        let a = scope.values(&format!("{name}.lora_A.weight"), &[config.rank, inputs])?;
        let b = scope.values(&format!("{name}.lora_B.weight"), &[outputs, config.rank])?;
        let (a, b) = (transpose(&a, config.rank), transpose(&b, outputs));
        attach_values(layer, keys, &name, &config, a, b, device);
    }
    drop(scope);
    weights.finish()?;
    Ok(config)
}

/// Writes f32 tensors as one safetensors file, by rename, with the `format` entry that other readers insist on.
///
/// # Errors
///
/// The file cannot be written.
pub fn write_safetensors(
    path: &Path,
    tensors: &BTreeMap<String, &StoredTensor>,
    mut metadata: HashMap<String, String>,
) -> Result<(), AdapterError> {
    let failed = |why: String| AdapterError::Write {
        path: path.to_owned(),
        why,
    };
    metadata.insert("format".to_owned(), "pt".to_owned());
    let bytes: Vec<(&String, &Vec<usize>, Vec<u8>)> = tensors
        .iter()
        .map(|(key, (shape, values))| (key, shape, values.iter().flat_map(|v| v.to_le_bytes()).collect()))
        .collect();
    let views = bytes
        .iter()
        .map(|(key, shape, data)| {
            let view = TensorView::new(Dtype::F32, (*shape).clone(), data).map_err(|e| failed(e.to_string()))?;
            Ok(((*key).clone(), view))
        })
        .collect::<Result<Vec<_>, AdapterError>>()?;
    let file = safetensors::serialize(views, Some(metadata)).map_err(|e| failed(e.to_string()))?;
    write_file(path, &file)
}

fn write_file(path: &Path, bytes: &[u8]) -> Result<(), AdapterError> {
    files::write(path, bytes).map_err(|why| AdapterError::Write {
        path: path.to_owned(),
        why: why.to_string(),
    })
}

/// The settings that both layouts carry. Everything else in them does not change what the tensors mean.
#[derive(Deserialize)]
struct AdapterSettings {
    r: usize,
    lora_alpha: f64,
    #[serde(default)]
    use_dora: bool,
    #[serde(default)]
    use_rslora: bool,
    #[serde(default)]
    rank_pattern: Option<BTreeMap<String, Value>>,
    #[serde(default)]
    alpha_pattern: Option<BTreeMap<String, Value>>,
}

impl AdapterSettings {
    /// Refuses variants of LoRA that the network does not have.
    fn check(self, path: &Path) -> Result<LoraConfig, AdapterError> {
        let refuse = |why: &str| {
            Err(AdapterError::Config {
                path: path.to_owned(),
                why: why.to_owned(),
            })
        };
        if self.use_dora || self.use_rslora {
            return refuse("use_dora and use_rslora change the layer's arithmetic and are not supported");
        }
        if [self.rank_pattern, self.alpha_pattern]
            .iter()
            .flatten()
            .any(|pattern| !pattern.is_empty())
        {
            return refuse("rank_pattern and alpha_pattern give layers different ranks, which is not supported");
        }
        if self.r == 0 {
            return refuse("r is 0; an adapter needs a rank of at least 1");
        }
        if !(self.lora_alpha.is_finite() && self.lora_alpha > 0.0) {
            return refuse("lora_alpha must be a positive number, or the adapter does nothing");
        }
        Ok(LoraConfig {
            rank: self.r,
            alpha: self.lora_alpha,
            init: LoraInit::default(),
        })
    }
}

fn read_peft_config(path: &Path) -> Result<LoraConfig, AdapterError> {
    read_config::<AdapterSettings>(path)?.check(path)
}

/// Rank and α from the header of a diffusers file.
fn read_diffusers_header(path: &Path) -> Result<LoraConfig, AdapterError> {
    let wrong = |why: String| AdapterError::Config {
        path: path.to_owned(),
        why,
    };
    let bytes = std::fs::read(path).map_err(|source| WeightsError::Io {
        path: path.to_owned(),
        source,
    })?;
    let (_, header) = safetensors::SafeTensors::read_metadata(&bytes).map_err(|e| wrong(e.to_string()))?;
    let entry = header
        .metadata()
        .as_ref()
        .and_then(|m| m.get(DIFFUSERS_SETTINGS))
        .ok_or_else(|| {
            wrong(format!(
                "its header has no `{DIFFUSERS_SETTINGS}`, so rank and alpha are unknown"
            ))
        })?;
    let not_settings = |e: serde_json::Error| wrong(format!("`{DIFFUSERS_SETTINGS}` in its header: {e}"));
    // The settings of all parts of a pipeline lie side by side, told apart by a prefix.
    let all: BTreeMap<String, Value> = serde_json::from_str(entry).map_err(not_settings)?;
    let own = all
        .into_iter()
        .filter_map(|(key, value)| Some((key.strip_prefix(DIFFUSERS_PREFIX)?.to_owned(), value)));
    serde_json::from_value::<AdapterSettings>(Value::Object(own.collect()))
        .map_err(not_settings)?
        .check(path)
}
