//! Opening a run: everything is checked and loaded here, once, before anything is written.

use std::path::Path;

use burn::module::Module;
use burn::tensor::Device;
use policy_sd3::adapter;
use policy_sd3::kernel::LogProb;
use policy_sd3::lora::{self, LoraConfig};
use policy_sd3::pipeline::Pipeline;
use policy_sd3::schedule::{Schedule, TimestepRounding};
use rewards::RewardSet;

use super::Run;
use crate::config::Experiment;
use crate::error::TrainError;
use crate::evaluate::Evaluator;
use crate::files::RunFolder;
use crate::metrics::Observer;
use crate::optimiser::{Optimiser, OptimiserState};
use crate::parameters::Layout;
use crate::rollout::Sampling;
use crate::state::{self, Published, RunState};
use crate::watch::Watch;

impl Run {
    /// Loads the model and the rewards. Nothing is written yet, except that the run's folder is made.
    ///
    /// # Errors
    ///
    /// A file of the model, of a reward or of the checkpoint is missing or damaged, or the parts do not fit.
    pub fn open(
        experiment: Experiment,
        out: &Path,
        resume: bool,
        device: &Device,
        observer: &mut dyn Observer,
    ) -> Result<Self, TrainError> {
        let config = &experiment.config;
        // Every file's header is looked at before the first weight is read.
        Pipeline::check(&config.model.path, device)?;
        for (name, spec) in &config.rewards {
            rewards::check(name, spec, device)?;
        }
        let mut folder = RunFolder::open(out, resume)?;
        let mut pipeline = Pipeline::open(&config.model.path, config.model.t5_tokens, config.model.use_t5, device)?;
        let rewards = RewardSet::build(&config.rewards, device)?;
        let sampling = sampling(&experiment, &pipeline)?;

        let published = prepare_training(&experiment, &mut pipeline, device)?;
        let layout = Layout::of(&pipeline.transformer, &pipeline.keys);
        let reference = (config.train.kl_beta > 0.0).then(|| lora::detach(&pipeline.transformer));
        let optimiser = Optimiser::new(experiment.optimiser, config.train.ema_decay);
        let mut state = RunState::new(config.train.ema_decay.is_some());
        let mut parameters = OptimiserState::new(layout.gather(&pipeline.transformer), state.has_average);
        // A run that goes on rewrites its metrics, so its folder is taken before that.
        folder.create(resume)?;
        if resume {
            (state, parameters) = state::load(&folder.checkpoint("last"), &layout, device)?;
            pipeline.transformer = layout.scatter(pipeline.transformer, &parameters.parameters);
            parameters.keep_average(config.train.ema_decay.is_some(), observer);
            state.has_average = parameters.average.is_some();
            folder.truncate_metrics(state.iteration)?;
        }
        folder.write_config(&experiment.resolved()?)?;

        let evaluator = experiment
            .eval_prompts
            .as_ref()
            .map(|file| {
                let evaluation = &config.evaluation;
                let mut sampling = sampling.clone();
                sampling.guidance = evaluation.guidance.unwrap_or(sampling.guidance);
                if let Some(steps) = evaluation.steps {
                    sampling.schedule = Schedule::new(
                        config.sampling.schedule,
                        &pipeline.scheduler,
                        steps,
                        TimestepRounding::Exact,
                    )?;
                }
                Evaluator::new(
                    &pipeline,
                    file.prompts.clone(),
                    sampling,
                    evaluation.pictures_per_prompt,
                    evaluation.seed,
                )
                .map(|evaluator| evaluator.with_non_finite_scores(config.credit.non_finite_scores))
            })
            .transpose()?;

        let run = Self {
            pipeline,
            rewards,
            evaluator,
            sampling,
            layout,
            reference,
            optimiser,
            parameters,
            state,
            published,
            folder,
            watch: Watch::default(),
            device: device.clone(),
            experiment,
        };
        if resume {
            run.check_same_evaluation()?;
            observer.note(&format!("going on after iteration {}", run.state.iteration));
        }
        run.tell_sizes(observer)?;
        Ok(run)
    }

    /// Scores with these rewards instead of those that the configuration describes: for scorers of other crates, which
    /// no configuration can name.
    ///
    /// # Errors
    ///
    /// They do not have the names, the weights and the `eval_only` of the configuration's, by which they are mixed.
    pub fn with_rewards(mut self, rewards: RewardSet) -> Result<Self, TrainError> {
        let (expected, given) = (self.rewards.to_string(), rewards.to_string());
        if expected != given {
            return Err(TrainError::OtherRewards { expected, given });
        }
        self.rewards = rewards;
        Ok(self)
    }
}

/// How the policy samples in rollout and update.
fn sampling(experiment: &Experiment, pipeline: &Pipeline) -> Result<Sampling, TrainError> {
    let config = &experiment.config;
    Ok(Sampling {
        schedule: Schedule::new(
            config.sampling.schedule,
            &pipeline.scheduler,
            config.sampling.steps,
            TimestepRounding::Exact,
        )?,
        kernel: config.sampling.kernel,
        noise_level: experiment.noise_level(),
        guidance: config.sampling.guidance,
        log_prob: LogProb {
            density: config.sampling.density,
            reduction: config.sampling.reduction,
        },
        shape: pipeline.latent_shape(config.model.size)?,
        micro_batch: config.train.micro_batch,
    })
}

/// Marks what is trained: a fresh or given adapter, or all weights.
fn prepare_training(
    experiment: &Experiment,
    pipeline: &mut Pipeline,
    device: &Device,
) -> Result<Published, TrainError> {
    match &experiment.config.lora {
        Some(table) => {
            let config = match &table.path {
                Some(path) => adapter::read(path, &mut pipeline.transformer, &mut pipeline.keys, device)?,
                None => {
                    let config = LoraConfig {
                        rank: table.rank,
                        alpha: table.alpha,
                        init: table.init,
                    };
                    let seed = experiment.config.train.seed;
                    lora::attach(&mut pipeline.transformer, &mut pipeline.keys, &config, seed, device);
                    config
                }
            };
            Ok(Published::Adapter(config))
        }
        None => {
            pipeline.transformer = pipeline.transformer.clone().unfreeze();
            Ok(Published::Transformer {
                constants: pipeline.transformer_constants(device)?,
            })
        }
    }
}
