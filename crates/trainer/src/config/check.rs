//! Checks of single values, each with the key, what is wrong and what to write instead.

use std::path::Path;

use nn::weights::read_config;
use policy_sd3::transformer::TransformerConfig;
use policy_sd3::vae::VaeConfig;
use tree_core::{AtEnd, RewardMix, WindowLaw};

use super::error::ConfigError;
use super::prompts::PromptFile;
use super::{ExperimentConfig, LawName};

/// Checks of single values.
pub(super) struct Check<'a> {
    pub(super) config: &'a ExperimentConfig,
    pub(super) origin: &'a Path,
}

impl Check<'_> {
    pub(super) fn value(&self, key: impl Into<String>, why: impl Into<String>) -> ConfigError {
        ConfigError::Value {
            path: self.origin.to_owned(),
            key: key.into(),
            why: why.into(),
        }
    }

    fn require(&self, holds: bool, key: &'static str, why: impl FnOnce() -> String) -> Result<(), ConfigError> {
        if holds { Ok(()) } else { Err(self.value(key, why())) }
    }

    pub(super) fn model(&self) -> Result<(), ConfigError> {
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
    pub(super) fn rewards(&self) -> Result<(), ConfigError> {
        self.require(
            self.config.rewards.values().any(|spec| !spec.eval_only),
            "rewards",
            || "all are eval_only, so there is nothing to train on; leave eval_only out of one".into(),
        )?;
        for (name, spec) in &self.config.rewards {
            rewards::check_settings(name, spec).map_err(|error| {
                let key = error.setting.map_or_else(String::new, |setting| format!(".{setting}"));
                self.value(format!("rewards.{name}{key}"), error.why)
            })?;
            for (setting, path) in [
                ("path", &spec.path),
                ("clip", &spec.clip),
                ("vocabulary", &spec.vocabulary),
            ] {
                let Some(path) = path.as_ref().filter(|path| !path.exists()) else {
                    continue;
                };
                let shown = std::path::absolute(path).unwrap_or_else(|_| path.clone());
                let model = spec.kind.model().unwrap_or("another one");
                let wanted = if setting == "path" { model } else { "one that is there" };
                return Err(self.value(
                    format!("rewards.{name}.{setting}"),
                    format!("there is no file or folder {}; name {wanted}", shown.display()),
                ));
            }
        }
        Ok(())
    }

    /// Whether the prompt files are named at all.
    pub(super) fn paths(&self) -> Result<(), ConfigError> {
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
    pub(super) fn credit(&self) -> Result<(), ConfigError> {
        let normalisation = &self.config.credit.normalisation;
        normalisation
            .check_settings()
            .map_err(|e| self.value("credit.normalisation", e.to_string()))
    }

    pub(super) fn sampling(&self) -> Result<(), ConfigError> {
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

    pub(super) fn training(&self) -> Result<(), ConfigError> {
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

    pub(super) fn evaluation(&self) -> Result<(), ConfigError> {
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

    pub(super) fn window_law(&self) -> Result<WindowLaw, ConfigError> {
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

    pub(super) fn reward_mix(&self) -> Result<RewardMix, ConfigError> {
        let trained = self.config.rewards.iter().filter(|(_, spec)| !spec.eval_only);
        RewardMix::new(
            self.config.credit.mix,
            trained.map(|(name, spec)| (name.clone(), spec.weight)),
        )
        .map_err(|e| self.value("rewards", e.to_string()))
    }

    pub(super) fn eval_groups(&self, eval: Option<&PromptFile>) -> Result<(), ConfigError> {
        for (name, [first, last]) in &self.config.prompts.eval_groups {
            // The name becomes part of a metric's, beside those of the group's own statistics.
            let plain = |c: char| c.is_alphanumeric() || " _-.".contains(c);
            let taken =
                ["all", "change", "standard_error", "change_standard_error", "non_finite"].contains(&name.as_str());
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
