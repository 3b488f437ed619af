//! A run's state on disk: what an interrupted run needs to go on, and the adapter that users load.
//!
//! A checkpoint is a folder that appears by rename, so it is whole or absent. `docs/file-formats.md` describes it.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use policy_sd3::adapter::{self, StoredTensor, write_safetensors};
use policy_sd3::lora::LoraConfig;
use safetensors::SafeTensors;
use serde::{Deserialize, Serialize};
use tree_core::RunningRewards;

use crate::error::TrainError;
use crate::evaluate::EvaluationScores;
use crate::optimiser::{OptimiserState, to_device, to_host};
use crate::parameters::Layout;

/// Version of the folder's format.
const FORMAT: u32 = 1;
/// TOML, because every finite f64 comes back from it as the same bits.
const STATE_TOML: &str = "state.toml";
const STATE_TENSORS: &str = "state.safetensors";

/// The part of the state that is not tensors.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RunState {
    /// Format version.
    pub format: u32,
    /// Iterations done.
    pub iteration: u64,
    /// Optimiser steps done.
    pub optimiser_steps: u64,
    /// Memory of running reward statistics.
    pub running: RunningRewards,
    /// Scores of the first evaluation, which all later ones are compared with.
    pub first_evaluation: Option<EvaluationScores>,
    /// How those pictures were made, as JSON. An evaluation made otherwise cannot be compared with it.
    pub evaluation_settings: Option<String>,
    /// Best mean of the trained rewards at an evaluation so far.
    pub best: Option<f64>,
    /// Whether the tensors hold an average of the parameters.
    pub has_average: bool,
}

impl RunState {
    /// A state before the first iteration.
    #[must_use]
    pub fn new(has_average: bool) -> Self {
        Self {
            format: FORMAT,
            iteration: 0,
            optimiser_steps: 0,
            running: RunningRewards::default(),
            first_evaluation: None,
            evaluation_settings: None,
            best: None,
            has_average,
        }
    }
}

/// How the trained tensors are published beside the state.
#[derive(Debug, Clone)]
pub enum Published {
    /// As an adapter, in both layouts.
    Adapter(LoraConfig),
    /// As a whole weight file of the transformer.
    Transformer {
        /// What the file holds beside the trained tensors.
        constants: BTreeMap<String, StoredTensor>,
    },
}

/// Writes a checkpoint folder `dir`, replacing one that is there.
///
/// # Errors
///
/// A file cannot be written; the folder is then as it was.
pub fn save(
    dir: &Path,
    state: &RunState,
    optimiser: &OptimiserState,
    layout: &Layout,
    published: &Published,
    base_model: &str,
) -> Result<(), TrainError> {
    let failed = |path: &Path, why: std::io::Error| TrainError::File {
        path: path.to_owned(),
        why: format!("could not be written: {why}"),
    };
    let parent = dir.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(parent).map_err(|e| failed(parent, e))?;
    let scratch = tempfile::Builder::new()
        .prefix(".checkpoint-")
        .tempdir_in(parent)
        .map_err(|e| failed(parent, e))?;
    let new = scratch.path().join("new");
    std::fs::create_dir(&new).map_err(|e| failed(&new, e))?;

    let raw = to_host(&optimiser.parameters)?;
    let mut groups: Vec<(&str, Vec<f32>)> = vec![("parameters", raw.clone())];
    if let Some([moment_1, moment_2]) = &optimiser.moments {
        groups.push(("moment_1", to_host(moment_1)?));
        groups.push(("moment_2", to_host(moment_2)?));
    }
    if let Some(average) = &optimiser.average {
        groups.push(("average", to_host(average)?));
    }
    let mut tensors: BTreeMap<String, StoredTensor> = BTreeMap::new();
    for (group, flat) in &groups {
        tensors.extend(
            layout
                .to_stored(flat)
                .into_iter()
                .map(|(key, tensor)| (format!("{group}/{key}"), tensor)),
        );
    }
    let borrowed = tensors.iter().map(|(key, tensor)| (key.clone(), tensor)).collect();
    write_safetensors(&new.join(STATE_TENSORS), &borrowed, HashMap::new())?;
    let counters = toml::to_string(state).map_err(|e| TrainError::File {
        path: new.join(STATE_TOML),
        why: e.to_string(),
    })?;
    std::fs::write(new.join(STATE_TOML), counters).map_err(|e| failed(&new.join(STATE_TOML), e))?;

    let ready = to_host(optimiser.published())?;
    let ready = layout.to_stored(&ready);
    match published {
        Published::Adapter(config) => {
            adapter::write(&new, &ready, config, base_model)?;
            if optimiser.average.is_some() {
                // The averaged adapter is what evaluation uses; the raw one lies beside it under its own name.
                let raw_dir = new.join("raw");
                std::fs::create_dir(&raw_dir).map_err(|e| failed(&raw_dir, e))?;
                adapter::write(&raw_dir, &layout.to_stored(&raw), config, base_model)?;
            }
        }
        Published::Transformer { constants } => {
            let borrowed = ready
                .iter()
                .chain(constants)
                .map(|(key, tensor)| (key.clone(), tensor))
                .collect();
            write_safetensors(
                &new.join("diffusion_pytorch_model.safetensors"),
                &borrowed,
                HashMap::new(),
            )?;
        }
    }

    // Renaming over a folder that is not empty is refused, so the old one steps aside first. It has a name that `load`
    // knows, because the process may be killed before the new one is in its place.
    let old = aside(dir);
    if dir.exists() {
        if old.exists() {
            std::fs::remove_dir_all(&old).map_err(|e| failed(&old, e))?;
        }
        std::fs::rename(dir, &old).map_err(|e| failed(dir, e))?;
    }
    std::fs::rename(&new, dir).map_err(|e| {
        let _ = std::fs::rename(&old, dir);
        failed(dir, e)
    })?;
    if old.exists() {
        std::fs::remove_dir_all(&old).map_err(|e| failed(&old, e))?;
    }
    Ok(())
}

/// Where the old checkpoint is while a new one takes its place.
fn aside(dir: &Path) -> PathBuf {
    dir.with_extension("previous")
}

/// Reads a checkpoint folder.
///
/// # Errors
///
/// A part is missing or does not belong to this network; nothing is replaced by a fresh start.
pub fn load(dir: &Path, layout: &Layout, device: &Device) -> Result<(RunState, OptimiserState), TrainError> {
    let old = aside(dir);
    let dir = if !dir.exists() && old.exists() { &old } else { dir };
    let toml_path = dir.join(STATE_TOML);
    let wrong = |path: &Path, why: String| TrainError::File {
        path: path.to_owned(),
        why,
    };
    let text = std::fs::read_to_string(&toml_path)
        .map_err(|e| wrong(&toml_path, format!("{e}; there is no checkpoint to resume from")))?;
    let state: RunState = toml::from_str(&text).map_err(|e| {
        wrong(
            &toml_path,
            format!("is not a checkpoint of this version: {}", e.message()),
        )
    })?;
    if state.format != FORMAT {
        return Err(wrong(
            &toml_path,
            format!("has format {}, this version reads {FORMAT}", state.format),
        ));
    }
    let path = dir.join(STATE_TENSORS);
    let mut groups = read_groups(&path)?;
    let mut take = |group: &str| -> Result<Option<burn::tensor::Tensor<1>>, TrainError> {
        groups
            .remove(group)
            .map(|tensors| {
                let flat = layout
                    .from_stored(&tensors)
                    .map_err(|why| format!("{why}; was the adapter's rank changed?"))?;
                match flat.iter().position(|value| !value.is_finite()) {
                    Some(element) => Err(format!(
                        "`{}` is not finite; the file is damaged",
                        layout.name_of(element)
                    )),
                    None => Ok(to_device(flat, device)),
                }
            })
            .transpose()
            .map_err(|why| wrong(&path, format!("{group}: {why}")))
    };
    let missing = |group: &str| wrong(&path, format!("holds no `{group}`; the checkpoint is incomplete"));
    let parameters = take("parameters")?.ok_or_else(|| missing("parameters"))?;
    let moments = match (state.optimiser_steps, take("moment_1")?, take("moment_2")?) {
        (0, _, _) => None,
        (_, Some(moment_1), Some(moment_2)) => Some([moment_1, moment_2]),
        _ => return Err(missing("moment_1 and moment_2")),
    };
    let average = match (state.has_average, take("average")?) {
        (true, None) => return Err(missing("average")),
        (true, average) => average,
        (false, _) => None,
    };
    let optimiser = OptimiserState {
        parameters,
        average,
        moments,
        steps: state.optimiser_steps,
    };
    Ok((state, optimiser))
}

type Groups = BTreeMap<String, BTreeMap<String, StoredTensor>>;

/// The tensors of a state file, by group.
fn read_groups(path: &PathBuf) -> Result<Groups, TrainError> {
    let wrong = |why: String| TrainError::File {
        path: path.clone(),
        why,
    };
    let bytes = std::fs::read(path).map_err(|e| wrong(format!("{e}; the checkpoint is incomplete")))?;
    let file = SafeTensors::deserialize(&bytes).map_err(|e| wrong(format!("is damaged: {e}")))?;
    let mut groups = Groups::new();
    for (key, view) in file.tensors() {
        let (group, name) = key
            .split_once('/')
            .ok_or_else(|| wrong(format!("holds `{key}`, which has no group")))?;
        if view.dtype() != safetensors::Dtype::F32 {
            return Err(wrong(format!("`{key}` is {:?}; the state is F32", view.dtype())));
        }
        let values = view
            .data()
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect::<Vec<_>>();
        groups
            .entry(group.to_owned())
            .or_default()
            .insert(name.to_owned(), (view.shape().to_vec(), values));
    }
    Ok(groups)
}
