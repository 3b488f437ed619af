//! From the file to an experiment that can run: overrides, checks, built objects.

use std::path::{Path, PathBuf};

use nn::weights::read_config;
use policy_sd3::transformer::TransformerConfig;
use policy_sd3::vae::VaeConfig;
use tree_core::{AtEnd, ClippedObjective, Plan, RewardMix, WindowLaw};

use super::error::ConfigError;
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

/// Parses the text, applies the overrides, and refuses unknown keys with a line or the override at fault.
fn parse(text: &str, path: &Path, settings: &[String]) -> Result<ExperimentConfig, ConfigError> {
    let syntax = |e: toml::de::Error| {
        let at = e.span().map_or(0, |span| span.start).min(text.len());
        ConfigError::Syntax {
            path: path.to_owned(),
            line: 1 + text[..at].bytes().filter(|b| *b == b'\n').count(),
            why: one_line(e.message()),
        }
    };
    if settings.is_empty() {
        return toml::from_str(text).map_err(syntax);
    }
    let mut table: toml::Table = toml::from_str(text).map_err(syntax)?;
    for setting in settings {
        let wrong = |why: String| ConfigError::Override {
            // What the user wrote may hold line breaks, and a message is one line.
            setting: setting.replace('\n', "\\n"),
            why,
        };
        let (key, value) = setting
            .split_once('=')
            .ok_or_else(|| wrong("write it as key=value, for example train.iterations=10".into()))?;
        let value: toml::Value = format!("value = {value}")
            .parse::<toml::Table>()
            .ok()
            .filter(|table| table.len() == 1)
            .and_then(|mut t| t.remove("value"))
            .unwrap_or_else(|| toml::Value::String(value.to_owned()));
        let mut path: Vec<&str> = key.trim().split('.').collect();
        let last = path
            .pop()
            .filter(|last| !last.is_empty())
            .ok_or_else(|| wrong("the key is empty".into()))?;
        let mut inner = &mut table;
        for part in path {
            inner = inner
                .entry(part)
                .or_insert_with(|| toml::Value::Table(toml::Table::new()))
                .as_table_mut()
                .ok_or_else(|| wrong(format!("`{part}` is a value, not a table")))?;
        }
        inner.insert(last.to_owned(), value);
        // Checked one by one, so that the message names the override that is at fault and not the file.
        if let Err(e) = table.clone().try_into::<ExperimentConfig>()
            && toml::from_str::<ExperimentConfig>(text).is_ok()
        {
            return Err(wrong(one_line(e.message())));
        }
    }
    table.try_into().map_err(|e| {
        // The table has lost the lines. No override is at fault, so the text has the same mistake, and its line.
        syntax(toml::from_str::<ExperimentConfig>(text).err().unwrap_or(e))
    })
}

/// A message without line breaks, with a hint where a known name is near.
fn one_line(message: &str) -> String {
    let mut flat = message.split_whitespace().collect::<Vec<_>>().join(" ");
    // The names of the program's own types say nothing to a user.
    for (jargon, plain) in [
        ("expected usize", "expected a whole number"),
        ("expected u64", "expected a whole number"),
        ("expected f64", "expected a number"),
        ("unit variant", "a plain name"),
        ("struct variant", "a table"),
    ] {
        flat = flat.replace(jargon, plain);
    }
    if let Some(at) = flat.find("expected struct ") {
        flat.replace_range(at.., "expected a table");
    }
    let quoted: Vec<&str> = flat.split('`').skip(1).step_by(2).collect();
    match (flat.starts_with("unknown"), quoted.split_first()) {
        (true, Some((unknown, known))) => {
            let near = known
                .iter()
                .map(|k| (strsim::jaro_winkler(unknown, k), k))
                .filter(|(similarity, _)| *similarity > 0.75)
                .max_by(|a, b| a.0.total_cmp(&b.0));
            match near {
                Some((_, near)) => format!("{flat}; did you mean `{near}`?"),
                None => flat,
            }
        }
        _ => flat,
    }
}

/// Checks of single values.
struct Check<'a> {
    config: &'a ExperimentConfig,
    origin: &'a Path,
}

impl Check<'_> {
    fn value(&self, key: impl Into<String>, why: impl Into<String>) -> ConfigError {
        ConfigError::Value {
            path: self.origin.to_owned(),
            key: key.into(),
            why: why.into(),
        }
    }

    fn require(&self, holds: bool, key: &'static str, why: impl FnOnce() -> String) -> Result<(), ConfigError> {
        if holds { Ok(()) } else { Err(self.value(key, why())) }
    }

    fn model(&self) -> Result<(), ConfigError> {
        let model = &self.config.model;
        let index = model.path.join("model_index.json");
        let shown = std::path::absolute(&model.path).unwrap_or_else(|_| model.path.clone());
        self.require(model.path.is_dir(), "model.path", || {
            format!(
                "there is no folder {}; name a pipeline folder in diffusers' layout",
                shown.display()
            )
        })?;
        self.require(index.is_file(), "model.path", || {
            format!(
                "{} holds no model_index.json; name a pipeline folder in diffusers' layout",
                shown.display()
            )
        })?;
        self.require(model.t5_tokens > 0, "model.t5_tokens", || {
            "is 0; use at least 1 (diffusers' default is 256)".into()
        })?;
        self.size()?;
        if let Some(lora) = &self.config.lora {
            if let Some(path) = &lora.path {
                let files = [
                    policy_sd3::adapter::PEFT_WEIGHTS,
                    policy_sd3::adapter::DIFFUSERS_WEIGHTS,
                ];
                self.require(files.iter().any(|file| path.join(file).is_file()), "lora.path", || {
                    format!(
                        "{} holds neither {} nor {}; name the folder of an adapter",
                        path.display(),
                        files[0],
                        files[1]
                    )
                })?;
            }
            self.require(lora.rank > 0, "lora.rank", || {
                "is 0; use at least 1, or leave out [lora] to train all weights".into()
            })?;
            self.require(lora.alpha.is_finite() && lora.alpha > 0.0, "lora.alpha", || {
                format!("is {}; use a positive number (twice the rank is common)", lora.alpha)
            })?;
        }
        Ok(())
    }

    /// Whether the model can draw pictures of the size that is asked for. Its configuration files tell.
    fn size(&self) -> Result<(), ConfigError> {
        let Some(size) = self.config.model.size else {
            return Ok(());
        };
        let dir = &self.config.model.path;
        let transformer = TransformerConfig::read(&dir.join("transformer"))?;
        let factor = read_config::<VaeConfig>(&dir.join("vae").join("config.json"))?.spatial_factor();
        let grain = factor * transformer.patch_size;
        let largest = transformer.pos_embed_max_size * grain;
        self.require(
            size > 0 && size.is_multiple_of(grain) && size <= largest,
            "model.size",
            || format!("is {size}; this model draws pictures whose side is a multiple of {grain}, at most {largest}"),
        )
    }

    /// Whether every reward has what its kind needs.
    fn rewards(&self) -> Result<(), ConfigError> {
        self.require(
            self.config.rewards.values().any(|spec| !spec.eval_only),
            "rewards",
            || "all are eval_only, so there is nothing to train on; leave eval_only out of one".into(),
        )?;
        for (name, spec) in &self.config.rewards {
            let key = format!("rewards.{name}.path");
            let refuse = |why: String| Err(self.value(key.clone(), why));
            match (&spec.path, spec.kind.needs_path()) {
                (None, true) => return refuse(format!("is missing; the kind {} needs a model's folder", spec.kind)),
                (Some(_), false) => return refuse(format!("has no meaning for the kind {}; remove it", spec.kind)),
                (Some(path), true) if !path.join("config.json").is_file() => {
                    let shown = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                    return refuse(format!(
                        "{} holds no config.json; name a CLIPModel folder",
                        shown.display()
                    ));
                }
                _ => {}
            }
            rewards::check_settings(name, spec).map_err(|e| self.value(format!("rewards.{name}"), e.to_string()))?;
        }
        Ok(())
    }

    /// Whether the prompt files are named at all.
    fn paths(&self) -> Result<(), ConfigError> {
        let named = |key: &'static str, path: &Path| {
            self.require(!path.as_os_str().is_empty(), key, || {
                "is empty; name a text file with one prompt per line".into()
            })
        };
        named("prompts.train", &self.config.prompts.train)?;
        self.config
            .prompts
            .eval
            .as_deref()
            .map_or(Ok(()), |path| named("prompts.eval", path))
    }

    /// Settings of the credit rule.
    fn credit(&self) -> Result<(), ConfigError> {
        let normalisation = &self.config.credit.normalisation;
        normalisation
            .check_settings()
            .map_err(|e| self.value("credit.normalisation", e.to_string()))
    }

    fn sampling(&self) -> Result<(), ConfigError> {
        let sampling = &self.config.sampling;
        let tree = &self.config.tree;
        self.require(sampling.steps >= 2, "sampling.steps", || {
            format!(
                "is {}; a window needs at least one step before the last, so use 2 or more",
                sampling.steps
            )
        })?;
        self.require(sampling.steps <= 1000, "sampling.steps", || {
            format!(
                "is {}; the model knows 1000 noise levels, so use at most 1000",
                sampling.steps
            )
        })?;
        self.require(
            sampling.guidance.is_finite() && sampling.guidance >= 1.0,
            "sampling.guidance",
            || format!("is {}; use 1 for no guidance or a larger number", sampling.guidance),
        )?;
        self.require(sampling.kernel.is_stochastic(), "sampling.kernel", || {
            "`ode` is deterministic, so nothing could be trained; use flow-sde, dance-sde or cps".into()
        })?;
        self.require(
            sampling.kernel != policy_sd3::kernel::Kernel::Ddim,
            "sampling.kernel",
            || {
                "`ddim` is for models that predict noise, and this is a flow model; use flow-sde, dance-sde or cps"
                    .into()
            },
        )?;
        if let (Some(level), policy_sd3::kernel::Kernel::Cps) = (sampling.noise_level, sampling.kernel) {
            self.require(level <= 1.0, "sampling.noise_level", || {
                format!("is {level}; the kernel cps takes a number above 0 and at most 1 (0.8 is common)")
            })?;
        }
        if let Some(level) = sampling.noise_level {
            self.require(level.is_finite() && level > 0.0, "sampling.noise_level", || {
                format!("is {level}; use a positive number (flow-sde 0.7, dance-sde 0.3, cps 0.8)")
            })?;
        }
        self.require(tree.roots >= 1, "tree.roots", || {
            "is 0; use at least one tree per prompt".into()
        })?;
        self.require(tree.children >= 1, "tree.children", || "is 0; use 2 or more".into())?;
        self.require(tree.children >= 2 || tree.roots >= 2, "tree.children", || {
            "is 1 with one tree, which leaves one leaf per prompt and nothing to compare; use 2 or more".into()
        })?;
        self.require(tree.window >= 1, "tree.window", || {
            "is 0, which would train nothing; use 1 or more".into()
        })?;
        self.require(tree.window < sampling.steps, "tree.window", || {
            format!(
                "is {}, but of {} steps the last one must stay deterministic; use at most {}",
                tree.window,
                sampling.steps,
                sampling.steps - 1
            )
        })
    }

    fn training(&self) -> Result<(), ConfigError> {
        let train = &self.config.train;
        let positive = |key: &'static str, value: f64| {
            self.require(value.is_finite() && value > 0.0, key, || {
                format!("is {value}; use a positive number")
            })
        };
        self.require(self.config.prompts.per_iteration > 0, "prompts.per_iteration", || {
            "is 0; use 1 or more".into()
        })?;
        self.require(train.iterations > 0, "train.iterations", || {
            "is 0; use 1 or more".into()
        })?;
        self.require(train.updates_per_iteration > 0, "train.updates_per_iteration", || {
            "is 0; use 1 or more".into()
        })?;
        self.require(train.micro_batch > 0, "train.micro_batch", || {
            "is 0; use 1 or more".into()
        })?;
        self.require(train.checkpoint_every > 0, "train.checkpoint_every", || {
            "is 0; use 1 or more".into()
        })?;
        if let Some(rate) = train.learning_rate {
            positive("train.learning_rate", rate)?;
        }
        positive("train.epsilon", train.epsilon)?;
        positive("train.gradient_clip", train.gradient_clip)?;
        positive("train.ratio_limit", train.ratio_limit)?;
        self.require(
            train.weight_decay >= 0.0 && train.weight_decay.is_finite(),
            "train.weight_decay",
            || format!("is {}; use 0 or a small positive number", train.weight_decay),
        )?;
        self.require(
            train.kl_beta >= 0.0 && train.kl_beta.is_finite(),
            "train.kl_beta",
            || format!("is {}; use 0 (off) or a positive number", train.kl_beta),
        )?;
        self.require(
            train.betas.iter().all(|b| (0.0..1.0).contains(b)),
            "train.betas",
            || format!("are {:?}; both must lie in 0..1", train.betas),
        )?;
        if let Some(decay) = train.ema_decay {
            self.require((0.0..1.0).contains(&decay), "train.ema_decay", || {
                format!("is {decay}; use 0 or more, below 1")
            })?;
        }
        // A clip range below the replay's own error would clip every edge of one sign without a word.
        self.require(train.clip_range > train.ratio_limit, "train.clip_range", || {
            format!(
                "is {}, not above train.ratio_limit ({}), the rounding that is tolerated in a ratio",
                train.clip_range, train.ratio_limit
            )
        })
    }

    fn evaluation(&self) -> Result<(), ConfigError> {
        let evaluation = &self.config.evaluation;
        self.require(evaluation.every > 0, "evaluation.every", || {
            "is 0; use 1 or more".into()
        })?;
        self.require(
            evaluation.pictures_per_prompt > 0,
            "evaluation.pictures_per_prompt",
            || "is 0; use 1 or more".into(),
        )?;
        self.require(
            evaluation.steps.is_none_or(|s| (1..=1000).contains(&s)),
            "evaluation.steps",
            || "must lie in 1..=1000".into(),
        )?;
        self.require(
            evaluation.guidance.is_none_or(|g| g.is_finite() && g >= 1.0),
            "evaluation.guidance",
            || "must be 1 (no guidance) or larger".into(),
        )
    }

    fn window_law(&self) -> Result<WindowLaw, ConfigError> {
        let tree = &self.config.tree;
        let law = match tree.window_law {
            LawName::Geometric => WindowLaw::Geometric {
                ratio: tree.window_ratio.unwrap_or(0.5),
            },
            LawName::Shifting => WindowLaw::Shifting {
                every: tree.window_every.unwrap_or(50),
                by: tree.window_by.unwrap_or(1),
                at_end: tree.window_at_end.unwrap_or(AtEnd::Stay),
            },
            LawName::Uniform => WindowLaw::Uniform,
            LawName::Fixed => WindowLaw::Fixed {
                start: tree.window_start.ok_or_else(|| {
                    self.value(
                        "tree.window_start",
                        "is missing; the law \"fixed\" needs the first step of the window",
                    )
                })?,
            },
        };
        law.probabilities(self.config.sampling.steps, tree.window, 0)
            .map_err(|e| {
                let key = match tree.window_law {
                    LawName::Geometric => "tree.window_ratio",
                    LawName::Shifting => "tree.window_every",
                    LawName::Fixed => "tree.window_start",
                    LawName::Uniform => "tree.window",
                };
                self.value(key, e.to_string())
            })?;
        Ok(law)
    }

    fn reward_mix(&self) -> Result<RewardMix, ConfigError> {
        let trained = self.config.rewards.iter().filter(|(_, spec)| !spec.eval_only);
        RewardMix::new(
            self.config.credit.mix,
            trained.map(|(name, spec)| (name.clone(), spec.weight)),
        )
        .map_err(|e| self.value("rewards", e.to_string()))
    }

    fn eval_groups(&self, eval: Option<&PromptFile>) -> Result<(), ConfigError> {
        for (name, [first, last]) in &self.config.prompts.eval_groups {
            // The name becomes part of a metric's, beside those of the group's own statistics.
            let plain = |c: char| c.is_alphanumeric() || " _-.".contains(c);
            let taken = ["all", "change", "standard_error", "change_standard_error"].contains(&name.as_str());
            self.require(!name.trim().is_empty() && name.chars().all(plain) && !taken, "prompts.eval_groups", || {
                format!("`{name}` cannot name a group; use letters, digits, spaces, `-`, `_` and `.`, and not a metric's name")
            })?;
            let count = eval.map_or(0, |file| file.prompts.len());
            self.require(
                *first >= 1 && first <= last && *last <= count,
                "prompts.eval_groups",
                || format!("`{name}` is [{first}, {last}], but the evaluation file has prompts 1 to {count}"),
            )?;
        }
        Ok(())
    }
}
