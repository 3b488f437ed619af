//! What a configuration says about one reward.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::RewardError;
use crate::kind::RewardKind;
use crate::remote::RemoteSettings;

/// The settings of one reward.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RewardSpec {
    /// What computes it.
    pub kind: RewardKind,
    /// The model's file or folder, for the kinds that [have a model](RewardKind::model).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// For `aesthetic`: the CLIP model whose picture features the head was trained on, OpenAI's ViT-L/14.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clip: Option<PathBuf>,
    /// The vocabulary of a model whose files do not hold one, in place of the built-in one: a folder with CLIP's
    /// `vocab.json` and `merges.txt` or its `bpe_simple_vocab_16e6.txt.gz`; for `image-reward` BERT's `vocab.txt`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vocabulary: Option<PathBuf>,
    /// Its weight among the rewards that are trained on; finite and not 0. A negative weight trains against it.
    #[serde(default = "default_weight")]
    pub weight: f64,
    /// Whether it is only computed in evaluations and never trained on; its weight then means nothing.
    #[serde(default)]
    pub eval_only: bool,
    /// For `remote`: the service.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<RemoteSettings>,
}

fn default_weight() -> f64 {
    1.0
}

impl RewardSpec {
    /// A reward of this kind with weight 1 and nothing else said.
    #[must_use]
    pub fn new(kind: RewardKind) -> Self {
        Self {
            kind,
            path: None,
            clip: None,
            vocabulary: None,
            weight: default_weight(),
            eval_only: false,
            remote: None,
        }
    }

    /// The service at `url`, with the default time-outs and retries.
    #[must_use]
    pub fn remote(url: &str) -> Self {
        Self {
            remote: Some(RemoteSettings::new(url)),
            ..Self::new(RewardKind::Remote)
        }
    }

    /// The same with a model.
    #[must_use]
    pub fn with_path(mut self, path: impl Into<PathBuf>) -> Self {
        self.path = Some(path.into());
        self
    }
}

/// What is wrong with a setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct SettingError {
    /// The setting, by its name in [`RewardSpec`]; `None` if it is the reward's name.
    pub setting: Option<&'static str>,
    /// What is wrong and what to do.
    pub why: String,
}

/// Checks a reward's settings alone: name, weight, and whether everything is there that its kind needs and nothing that
/// means nothing to it.
///
/// # Errors
///
/// Names the setting, what is wrong and what to do.
pub fn check_settings(name: &str, spec: &RewardSpec) -> Result<(), SettingError> {
    check_name(name)?;
    check_weight(spec.weight)?;
    let kind = spec.kind;
    let wrong = |setting: &'static str, why: String| {
        Err(SettingError {
            setting: Some(setting),
            why,
        })
    };
    match (&spec.path, kind.model()) {
        (Some(_), None) => {
            return wrong(
                "path",
                format!("kind `{kind}` has no model, so `path` means nothing; remove it"),
            );
        }
        (None, Some(model)) => return wrong("path", format!("kind `{kind}` needs `path`: {model}")),
        _ => {}
    }
    match (&spec.clip, kind == RewardKind::Aesthetic) {
        (Some(_), false) => return wrong("clip", format!("`clip` means nothing to kind `{kind}`; remove it")),
        (None, true) => {
            let why = format!("kind `{kind}` needs `clip`: the CLIP model under its head, OpenAI's ViT-L/14");
            return wrong("clip", why);
        }
        _ => {}
    }
    if spec.vocabulary.is_some() && !kind.takes_vocabulary() {
        let why = format!("`vocabulary` means nothing to kind `{kind}`, which tokenizes no text; remove it");
        return wrong("vocabulary", why);
    }
    match (&spec.remote, kind == RewardKind::Remote) {
        (Some(_), false) => wrong("remote", format!("`remote` means nothing to kind `{kind}`; remove it")),
        (None, true) => wrong(
            "remote",
            format!("kind `{kind}` needs the table `remote` with the service's `url`"),
        ),
        _ => Ok(()),
    }
}

/// The file or folder of a kind that has a model.
pub(crate) fn model_path<'a>(name: &str, spec: &'a RewardSpec) -> Result<&'a Path, RewardError> {
    spec.path
        .as_deref()
        .ok_or_else(|| spec_error(name, format!("kind `{}` needs `path`", spec.kind)))
}

/// Names become metric names and file names.
pub(crate) fn check_name(name: &str) -> Result<(), SettingError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if !name.is_empty() && name.chars().all(fits) {
        return Ok(());
    }
    Err(SettingError {
        setting: None,
        why: "the name may hold letters, digits, `-`, `_` and `.` only, and at least one".to_owned(),
    })
}

pub(crate) fn check_weight(weight: f64) -> Result<(), SettingError> {
    if weight.is_finite() && weight != 0.0 {
        return Ok(());
    }
    Err(SettingError {
        setting: Some("weight"),
        why: format!("weight {weight} trains on nothing; give a finite weight other than 0, or set `eval_only = true`"),
    })
}

impl SettingError {
    /// The same as an error of the reward `name`.
    pub(crate) fn of(self, name: &str) -> RewardError {
        spec_error(name, self.why)
    }
}

pub(crate) fn spec_error(name: &str, why: String) -> RewardError {
    RewardError::Spec {
        scorer: name.to_owned(),
        why,
    }
}
