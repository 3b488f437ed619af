//! Finding checkpoint files.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use nn::weights::WeightsError;

use crate::error::RewardError;

/// The file that `path` names: itself, or the first of `names` that lies in it.
pub(crate) fn find_file(scorer: &str, path: &Path, names: &[&str]) -> Result<PathBuf, RewardError> {
    if path.is_file() {
        return Ok(path.to_owned());
    }
    let found = names.iter().map(|name| path.join(name)).find(|file| file.is_file());
    found.ok_or_else(|| {
        let shown = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let wanted = names.join(" or ");
        let why = if path.is_dir() {
            format!("there is no {wanted} in this folder; name the file, or the folder that holds it")
        } else {
            format!("there is no such file or folder; name {wanted}, or the folder that holds it")
        };
        RewardError::Mismatch {
            scorer: scorer.to_owned(),
            path: shown,
            why,
        }
    })
}

/// A model's picture side as the preprocessing takes it.
pub(crate) fn side(scorer: &str, path: &Path, size: usize) -> Result<NonZeroU32, RewardError> {
    let side = u32::try_from(size).ok().and_then(NonZeroU32::new);
    side.ok_or_else(|| RewardError::Mismatch {
        scorer: scorer.to_owned(),
        path: path.to_owned(),
        why: format!("a picture side of {size} pixels is impossible; correct the configuration beside this file"),
    })
}

pub(crate) fn weights_error(scorer: &str, source: WeightsError) -> RewardError {
    RewardError::Weights {
        scorer: scorer.to_owned(),
        source,
    }
}
