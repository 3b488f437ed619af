//! From the file to an experiment that can run: overrides, checks, built objects.

use std::path::{Path, PathBuf};

use tree_core::{ClippedObjective, Plan, WindowLaw};

use super::check::Check;
use super::error::ConfigError;
use super::parse::parse;
use super::prompts::{PromptFile, read_prompts};
use super::{BackupName, ExperimentConfig, LawName};
use crate::credit::CreditRule;
use crate::optimiser::OptimiserConfig;

/// Step size of AdamW for an adapter, as Flow-GRPO sets it.
const LORA_LEARNING_RATE: f64 = 3e-4;
/// Step size of AdamW for all weights, as the TreeGRPO program sets it.
const FULL_LEARNING_RATE: f64 = 1e-5;

/// A checked experiment. Nothing in it needs a model to be loaded.
#[derive(Debug, Clone)]
pub struct Experiment {
    /// The configuration, overrides applied.
    pub config: ExperimentConfig,
    /// The file it came from.
    pub origin: PathBuf,
    /// Training prompts.
    pub train_prompts: PromptFile,
    /// Evaluation prompts, if there are any.
    pub eval_prompts: Option<PromptFile>,
    /// Law of the window.
    pub window_law: WindowLaw,
    /// Scores to advantages.
    pub credit: CreditRule,
    /// The clipped objective.
    pub objective: ClippedObjective,
    /// The optimiser.
    pub optimiser: OptimiserConfig,
    /// Settings that are there and have no effect, each with the reason.
    pub idle_settings: Vec<String>,
}

impl Experiment {
    /// Reads, overrides and checks a configuration file. `settings` are `key=value` pairs with dotted keys and TOML
    /// values; a value that is no TOML is taken as a string.
    ///
    /// # Errors
    ///
    /// One line that names file, line or key, and the fix.
    pub fn open(path: &Path, settings: &[String]) -> Result<Self, ConfigError> {
        let shown = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let text = std::fs::read_to_string(path).map_err(|e| ConfigError::Read {
            path: shown.clone(),
            why: match e.kind() {
                std::io::ErrorKind::InvalidData => "is not UTF-8; save it as UTF-8".into(),
                _ => format!("{e}; name a configuration file such as configs/emoji.toml"),
            },
        })?;
        Self::new(parse(&text, &shown, settings)?, &shown)
    }

    /// Checks a configuration.
    ///
    /// # Errors
    ///
    /// As for [`Experiment::open`].
    pub fn new(config: ExperimentConfig, origin: &Path) -> Result<Self, ConfigError> {
        let check = Check {
            config: &config,
            origin,
        };
        check.model()?;
        check.rewards()?;
        check.sampling()?;
        check.training()?;
        check.evaluation()?;
        check.credit()?;
        let window_law = check.window_law()?;
        let mix = check.reward_mix()?;
        let backup = config.credit.backup();
        if let tree_core::Backup::Softmax { temperature, .. } = backup
            && !(temperature.is_finite() && temperature > 0.0)
        {
            return Err(check.value("credit.temperature", format!("is {temperature}; use a positive number")));
        }
        let objective = ClippedObjective::new(config.train.clip_range, config.train.advantage_clamp).map_err(|e| {
            let key = match e {
                tree_core::ObjectiveError::AdvantageClamp { .. } => "train.advantage_clamp",
                _ => "train.clip_range",
            };
            check.value(key, e.to_string())
        })?;
        check.paths()?;
        let train_prompts = read_prompts(&config.prompts.train)?;
        let train_count = train_prompts.prompts.len();
        let eval_prompts = config.prompts.eval.as_deref().map(read_prompts).transpose()?;
        check.eval_groups(eval_prompts.as_ref())?;
        let optimiser = OptimiserConfig {
            learning_rate: config.train.learning_rate.unwrap_or(match config.lora {
                Some(_) => LORA_LEARNING_RATE,
                None => FULL_LEARNING_RATE,
            }),
            beta_1: config.train.betas[0],
            beta_2: config.train.betas[1],
            epsilon: config.train.epsilon,
            weight_decay: config.train.weight_decay,
            gradient_clip: config.train.gradient_clip,
        };
        let credit = CreditRule {
            normalisation: config.credit.normalisation,
            mix,
            backup,
            credit: config.credit.rule,
            non_finite_scores: config.credit.non_finite_scores,
        };
        let experiment = Self {
            origin: origin.to_owned(),
            window_law,
            credit,
            objective,
            optimiser,
            train_prompts,
            eval_prompts,
            idle_settings: idle_settings(&config, train_count),
            config,
        };
        // Building the plans of the first and the last start shows impossible trees before a model is loaded.
        for start in [0, experiment.starts().saturating_sub(1)] {
            experiment.check_plan(&experiment.plan_at(start)?)?;
        }
        experiment.check_evaluation_size()?;
        Ok(experiment)
    }

    /// How many places the window can start at.
    #[must_use]
    pub fn starts(&self) -> usize {
        self.config.sampling.steps.saturating_sub(self.config.tree.window)
    }

    /// The plan of an iteration whose window starts at `start`.
    ///
    /// # Errors
    ///
    /// The tree is impossible.
    pub fn plan_at(&self, start: usize) -> Result<Plan, ConfigError> {
        let tree = &self.config.tree;
        let stochastic: Vec<usize> = (start..start + tree.window).collect();
        Plan::windowed(self.config.sampling.steps, &stochastic, tree.children, tree.roots).map_err(|e| {
            ConfigError::Value {
                path: self.origin.clone(),
                key: "tree".into(),
                why: e.to_string(),
            }
        })
    }

    /// Whether an iteration of the plan can be counted, and whether any edge can teach anything.
    fn check_plan(&self, plan: &Plan) -> Result<(), ConfigError> {
        let wrong = |key: &str, why: String| ConfigError::Value {
            path: self.origin.clone(),
            key: key.into(),
            why,
        };
        plan.counts(self.config.prompts.per_iteration)
            .map_err(|e| wrong("prompts.per_iteration", e.to_string()))?;
        let factors = plan.level_factors(self.config.credit.rule, self.config.credit.level_weight);
        if factors.iter().all(|factor| *factor == 0.0) {
            let why =
                "gives every edge an advantage of 0 here, because it compares siblings and tree.children is 1; use \
                       trajectory or subtree for chains"
                    .to_owned();
            return Err(wrong("credit.rule", why));
        }
        Ok(())
    }

    /// Whether the pictures of an evaluation can be counted.
    fn check_evaluation_size(&self) -> Result<(), ConfigError> {
        let prompts = self.eval_prompts.as_ref().map_or(0, |file| file.prompts.len());
        let each = self.config.evaluation.pictures_per_prompt;
        match prompts
            .checked_mul(each)
            .is_some_and(|pictures| pictures <= u32::MAX as usize)
        {
            true => Ok(()),
            false => Err(ConfigError::Value {
                path: self.origin.clone(),
                key: "evaluation.pictures_per_prompt".into(),
                why: format!("is {each}, which for {prompts} prompts is more pictures than can be numbered; use fewer"),
            }),
        }
    }

    /// η of the kernel.
    #[must_use]
    pub fn noise_level(&self) -> f64 {
        let sampling = &self.config.sampling;
        sampling
            .noise_level
            .unwrap_or_else(|| sampling.kernel.default_noise_level())
    }

    /// The configuration as TOML, every key written out.
    ///
    /// # Errors
    ///
    /// It cannot be written as TOML.
    pub fn resolved(&self) -> Result<String, ConfigError> {
        let mut config = self.config.clone();
        config.sampling.noise_level = Some(self.noise_level());
        config.train.learning_rate = Some(self.optimiser.learning_rate);
        toml::to_string_pretty(&config).map_err(|e| ConfigError::Read {
            path: self.origin.clone(),
            why: format!("cannot be written out: {e}"),
        })
    }
}

/// Settings that belong to a choice that was not made. They are told, not refused, so that a law can be changed by an
/// override without editing the file.
fn idle_settings(config: &ExperimentConfig, train_prompts: usize) -> Vec<String> {
    let (tree, credit) = (&config.tree, &config.credit);
    let law = tree.window_law;
    let softmax = credit.backup == BackupName::Softmax;
    [
        (
            tree.window_ratio.is_some() && law != LawName::Geometric,
            "tree.window_ratio",
            "tree.window_law = \"geometric\"",
        ),
        (
            tree.window_start.is_some() && law != LawName::Fixed,
            "tree.window_start",
            "tree.window_law = \"fixed\"",
        ),
        (
            tree.window_every.is_some() && law != LawName::Shifting,
            "tree.window_every",
            "tree.window_law = \"shifting\"",
        ),
        (
            tree.window_by.is_some() && law != LawName::Shifting,
            "tree.window_by",
            "tree.window_law = \"shifting\"",
        ),
        (
            tree.window_at_end.is_some() && law != LawName::Shifting,
            "tree.window_at_end",
            "tree.window_law = \"shifting\"",
        ),
        (
            credit.temperature.is_some() && !softmax,
            "credit.temperature",
            "credit.backup = \"softmax\"",
        ),
        (
            credit.log_prob_reduction.is_some() && !softmax,
            "credit.log_prob_reduction",
            "credit.backup = \"softmax\"",
        ),
    ]
    .into_iter()
    .filter(|(idle, ..)| *idle)
    .map(|(_, key, needs)| format!("{key} has no effect, because it needs {needs}"))
    .chain((config.prompts.per_iteration > train_prompts).then(|| {
        format!(
            "prompts.per_iteration is {}, but the file has {train_prompts} prompts: some come several times in an iteration",
            config.prompts.per_iteration
        )
    }))
    .collect()
}
