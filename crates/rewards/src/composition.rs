//! Rewards by name: what a configuration says about each, how it is built, and all of them together.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use burn::tensor::Device;
use serde::{Deserialize, Serialize};

use crate::clip_score::{ClipScore, CosineScale};
use crate::error::RewardError;
use crate::jpeg::{JpegGoal, JpegScore};
use crate::pictures::Picture;
use crate::pixel::{PixelScore, PixelStatistic};
use crate::scorer::{Scorer, TruncationReport, check_scores};

/// What computes a reward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum RewardKind {
    /// `clip-score`: cosine of a CLIP model's features; needs a path.
    ClipScore,
    /// `pick-score`: the same times the model's `exp(logit_scale)`; needs a path.
    PickScore,
    /// `jpeg-compressibility`: minus the JPEG file's size in kB.
    JpegCompressibility,
    /// `jpeg-incompressibility`: the JPEG file's size in kB.
    JpegIncompressibility,
    /// `brightness`: mean luma, 0 to 1.
    Brightness,
    /// `contrast`: standard deviation of luma, 0 to ½.
    Contrast,
    /// `colourfulness`: Hasler and Süsstrunk's measure, 0 to about 150.
    Colourfulness,
}

impl RewardKind {
    /// Every kind.
    pub const ALL: [Self; 7] = [
        Self::ClipScore,
        Self::PickScore,
        Self::JpegCompressibility,
        Self::JpegIncompressibility,
        Self::Brightness,
        Self::Contrast,
        Self::Colourfulness,
    ];

    /// The kind's name in configurations.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClipScore => "clip-score",
            Self::PickScore => "pick-score",
            Self::JpegCompressibility => "jpeg-compressibility",
            Self::JpegIncompressibility => "jpeg-incompressibility",
            Self::Brightness => "brightness",
            Self::Contrast => "contrast",
            Self::Colourfulness => "colourfulness",
        }
    }

    /// Whether the kind reads a model from a path.
    #[must_use]
    pub fn needs_path(self) -> bool {
        matches!(self, Self::ClipScore | Self::PickScore)
    }
}

impl fmt::Display for RewardKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<RewardKind> for String {
    fn from(kind: RewardKind) -> Self {
        kind.as_str().to_owned()
    }
}

impl TryFrom<String> for RewardKind {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name).ok_or_else(|| {
            let known = Self::ALL.map(|kind| format!("`{kind}`")).join(", ");
            format!("there is no reward kind `{name}`; the kinds are {known}")
        })
    }
}

/// What a configuration says about one reward.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RewardSpec {
    /// What computes it.
    pub kind: RewardKind,
    /// The model's folder, for the kinds that have a model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// Its weight among the rewards that are trained on; finite and not 0. A negative weight trains against it.
    #[serde(default = "default_weight")]
    pub weight: f64,
    /// Whether it is only computed in evaluations and never trained on; its weight then means nothing.
    #[serde(default)]
    pub eval_only: bool,
}

fn default_weight() -> f64 {
    1.0
}

/// Checks a reward's settings alone: name, weight, and whether it has a path if and only if its kind needs one.
///
/// # Errors
///
/// Names the reward and what is wrong.
pub fn check_settings(name: &str, spec: &RewardSpec) -> Result<(), RewardError> {
    model_folder(name, spec).map(|_| ())
}

/// Checks a reward's settings and files without reading a model: the weight, the path, every configuration file and
/// the headers of weight files.
///
/// # Errors
///
/// Names the reward and what is wrong.
pub fn check(name: &str, spec: &RewardSpec, device: &Device) -> Result<(), RewardError> {
    match model_folder(name, spec)? {
        Some(dir) => ClipScore::check(name, dir, device),
        None => Ok(()),
    }
}

/// Builds a reward.
///
/// # Errors
///
/// As for [`check`], and the model's weights may not fit it.
pub fn build(name: &str, spec: &RewardSpec, device: &Device) -> Result<Box<dyn Scorer>, RewardError> {
    let dir = model_folder(name, spec)?;
    let clip = |scale| -> Result<Box<dyn Scorer>, RewardError> {
        let Some(dir) = dir else {
            return Err(path_missing(name, spec.kind));
        };
        Ok(Box::new(ClipScore::open(name, dir, scale, device)?))
    };
    let pixel = |statistic| -> Result<Box<dyn Scorer>, RewardError> { Ok(Box::new(PixelScore::new(name, statistic))) };
    match spec.kind {
        RewardKind::ClipScore => clip(CosineScale::One),
        RewardKind::PickScore => clip(CosineScale::LogitScale),
        RewardKind::JpegCompressibility => Ok(Box::new(JpegScore::new(name, JpegGoal::Small))),
        RewardKind::JpegIncompressibility => Ok(Box::new(JpegScore::new(name, JpegGoal::Large))),
        RewardKind::Brightness => pixel(PixelStatistic::Brightness),
        RewardKind::Contrast => pixel(PixelStatistic::Contrast),
        RewardKind::Colourfulness => pixel(PixelStatistic::Colourfulness),
    }
}

/// Which rewards are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Those that are trained on.
    Training,
    /// All of them.
    Evaluation,
}

/// The scores of one reward.
#[derive(Debug, Clone, PartialEq)]
pub struct RewardScores {
    /// Name of the reward.
    pub name: String,
    /// Its weight.
    pub weight: f64,
    /// Whether it is never trained on.
    pub eval_only: bool,
    /// One score per sample, in the order of the call, unweighted.
    pub values: Vec<f64>,
}

/// Several rewards, each with its weight, in the order of their names.
pub struct RewardSet {
    members: BTreeMap<String, Member>,
}

struct Member {
    scorer: Box<dyn Scorer>,
    weight: f64,
    eval_only: bool,
}

impl RewardSet {
    /// Builds every reward. All are [checked](check) before the first model is read.
    ///
    /// # Errors
    ///
    /// There is none, or one of them cannot be built.
    pub fn build(specs: &BTreeMap<String, RewardSpec>, device: &Device) -> Result<Self, RewardError> {
        for (name, spec) in specs {
            check(name, spec, device)?;
        }
        let members = specs
            .iter()
            .map(|(name, spec)| Ok((build(name, spec, device)?, spec.weight, spec.eval_only)));
        Self::new(members.collect::<Result<_, RewardError>>()?)
    }

    /// A set of given scorers with weight and `eval_only`.
    ///
    /// # Errors
    ///
    /// There is none, two have one name, or a weight is 0 or not finite.
    pub fn new(scorers: Vec<(Box<dyn Scorer>, f64, bool)>) -> Result<Self, RewardError> {
        let mut members = BTreeMap::new();
        for (scorer, weight, eval_only) in scorers {
            let name = scorer.name().to_owned();
            check_name(&name)?;
            check_weight(&name, weight)?;
            if members
                .insert(
                    name.clone(),
                    Member {
                        scorer,
                        weight,
                        eval_only,
                    },
                )
                .is_some()
            {
                return Err(spec_error(&name, "there are two of this name; rename one".to_owned()));
            }
        }
        if members.is_empty() {
            Err(RewardError::NoRewards)
        } else {
            Ok(Self { members })
        }
    }

    /// Weight of every reward that is trained on, by name; empty if all are `eval_only`.
    #[must_use]
    pub fn weights(&self) -> BTreeMap<&str, f64> {
        self.members
            .iter()
            .filter(|(_, m)| !m.eval_only)
            .map(|(name, m)| (name.as_str(), m.weight))
            .collect()
    }

    /// Name and [description](Scorer::description) of every reward.
    #[must_use]
    pub fn descriptions(&self) -> Vec<(&str, String)> {
        self.members
            .iter()
            .map(|(name, member)| (name.as_str(), member.scorer.description()))
            .collect()
    }

    /// Encodes all prompts with every reward, in place of those of an earlier call.
    ///
    /// # Errors
    ///
    /// As for [`Scorer::prepare`].
    pub fn prepare(&mut self, prompts: &[String]) -> Result<Vec<TruncationReport>, RewardError> {
        self.members
            .values_mut()
            .map(|member| member.scorer.prepare(prompts))
            .collect()
    }

    /// The scores of every reward that the purpose asks for; arguments as for [`Scorer::score`].
    ///
    /// # Errors
    ///
    /// As for [`Scorer::score`].
    pub fn score(
        &self,
        pictures: &[Picture],
        prompts: &[usize],
        purpose: Purpose,
    ) -> Result<Vec<RewardScores>, RewardError> {
        let wanted = self
            .members
            .iter()
            .filter(|(_, m)| purpose == Purpose::Evaluation || !m.eval_only);
        let scores = wanted.map(|(name, member)| {
            // Checked here once more, because a scorer of another crate may not keep the trait's promises.
            let values = check_scores(name, member.scorer.score(pictures, prompts)?, prompts)?;
            Ok(RewardScores {
                name: name.clone(),
                weight: member.weight,
                eval_only: member.eval_only,
                values,
            })
        });
        scores.collect()
    }
}

/// The rewards as a formula: `0.2·clip + 0.8·hps (evaluated only: brightness)`.
impl fmt::Display for RewardSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let terms: Vec<String> = self
            .weights()
            .iter()
            .map(|(name, weight)| format!("{weight}·{name}"))
            .collect();
        let rest: Vec<&str> = self
            .members
            .iter()
            .filter(|(_, m)| m.eval_only)
            .map(|(name, _)| name.as_str())
            .collect();
        f.write_str(&terms.join(" + "))?;
        match (terms.is_empty(), rest.is_empty()) {
            (_, true) => Ok(()),
            (true, false) => write!(f, "evaluated only: {}", rest.join(", ")),
            (false, false) => write!(f, " (evaluated only: {})", rest.join(", ")),
        }
    }
}

impl fmt::Debug for RewardSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.descriptions()).finish()
    }
}

/// Checks what concerns no file; gives the model's folder where the kind has one.
fn model_folder<'a>(name: &str, spec: &'a RewardSpec) -> Result<Option<&'a Path>, RewardError> {
    check_name(name)?;
    check_weight(name, spec.weight)?;
    match (&spec.path, spec.kind.needs_path()) {
        (Some(_), false) => Err(spec_error(
            name,
            format!("kind `{}` has no model, so `path` means nothing; remove it", spec.kind),
        )),
        (None, true) => Err(path_missing(name, spec.kind)),
        (path, _) => Ok(path.as_deref()),
    }
}

fn path_missing(name: &str, kind: RewardKind) -> RewardError {
    spec_error(
        name,
        format!("kind `{kind}` needs `path`, the folder of a Hugging Face CLIP model"),
    )
}

/// Names become metric names and file names.
fn check_name(name: &str) -> Result<(), RewardError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if !name.is_empty() && name.chars().all(fits) {
        return Ok(());
    }
    Err(spec_error(
        name,
        "the name may hold letters, digits, `-`, `_` and `.` only, and at least one".to_owned(),
    ))
}

fn check_weight(name: &str, weight: f64) -> Result<(), RewardError> {
    if weight.is_finite() && weight != 0.0 {
        return Ok(());
    }
    Err(spec_error(
        name,
        format!("weight {weight} trains on nothing; give a finite weight other than 0, or set `eval_only = true`"),
    ))
}

fn spec_error(name: &str, why: String) -> RewardError {
    RewardError::Spec {
        scorer: name.to_owned(),
        why,
    }
}
