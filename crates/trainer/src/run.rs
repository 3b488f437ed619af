//! The loop of TreeGRPO, top to bottom: draw the window, plan, roll out, decode, score, credit, update.
//!
//! Nothing here asks which method runs. A method is the plan, the credit rule, the objective and the sampling that the
//! experiment holds.

use std::path::Path;
use std::time::Instant;

use burn::module::Module;
use burn::tensor::Device;
use policy_sd3::adapter;
use policy_sd3::kernel::LogProb;
use policy_sd3::lora::{self, LoraConfig};
use policy_sd3::pipeline::Pipeline;
use policy_sd3::schedule::{Schedule, TimestepRounding};
use policy_sd3::transformer::Transformer;
use rewards::{Purpose as RewardPurpose, RewardScores, RewardSet};
use serde_json::json;
use tree_core::Plan;

use crate::config::Experiment;
use crate::credit::EdgeAdvantages;
use crate::error::TrainError;
use crate::evaluate::{Evaluator, draw};
use crate::files::RunFolder;
use crate::metrics::{EvaluationMetrics, IterationMetrics, Observer};
use crate::noise::{self, Place, Purpose};
use crate::optimiser::{Optimiser, OptimiserState};
use crate::parameters::Layout;
use crate::rollout::{Draw, Prompts, Rollout, Sampling, roll_out};
use crate::state::{self, Published, RunState};
use crate::update::{NodeGradient, Objective, Update, training_nodes};

/// A run: everything that is loaded once, and the state that changes.
pub struct Run {
    experiment: Experiment,
    pipeline: Pipeline,
    rewards: RewardSet,
    evaluator: Option<Evaluator>,
    sampling: Sampling,
    layout: Layout,
    /// The network without what is trained, if a divergence from it is asked for.
    reference: Option<Transformer>,
    optimiser: Optimiser,
    parameters: OptimiserState,
    state: RunState,
    published: Published,
    folder: RunFolder,
    device: Device,
}

/// What an iteration's update did, over all its optimiser steps.
struct UpdateOutcome {
    first: NodeGradient,
    last: NodeGradient,
    loss: f64,
    training_nodes: usize,
    gradient_norm: f64,
    change_norm: f64,
}

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
        let folder = RunFolder::open(out, resume)?;
        let mut pipeline = Pipeline::open(&config.model.path, config.model.t5_tokens, config.model.use_t5, device)?;
        let rewards = RewardSet::build(&config.rewards, device)?;
        let sampling = sampling(&experiment, &pipeline)?;

        let published = prepare_training(&experiment, &mut pipeline, device)?;
        let layout = Layout::of(&pipeline.transformer, &pipeline.keys);
        let reference = (config.train.kl_beta > 0.0).then(|| lora::detach(&pipeline.transformer));
        let optimiser = Optimiser::new(experiment.optimiser, config.train.ema_decay);
        let mut state = RunState::new(config.train.ema_decay.is_some());
        let mut parameters = OptimiserState::new(layout.gather(&pipeline.transformer), state.has_average);
        if resume {
            (state, parameters) = state::load(&folder.checkpoint("last"), &layout, device)?;
            pipeline.transformer = layout.scatter(pipeline.transformer, &parameters.parameters);
            parameters.keep_average(config.train.ema_decay.is_some(), observer);
            state.has_average = parameters.average.is_some();
            check_same_evaluation(&experiment, &state, &folder)?;
            folder.truncate_metrics(state.iteration)?;
        }
        folder.create()?;
        folder.write_config(&experiment.resolved()?)?;

        let evaluator = experiment
            .eval_prompts
            .as_ref()
            .map(|file| {
                let evaluation = &config.evaluation;
                let mut sampling = sampling.clone();
                sampling.guidance = evaluation.guidance.unwrap_or(sampling.guidance);
                if let Some(steps) = evaluation.steps {
                    sampling.schedule =
                        Schedule::new(config.sampling.schedule, &pipeline.scheduler, steps, TimestepRounding::Exact)?;
                }
                Evaluator::new(
                    &pipeline,
                    file.prompts.clone(),
                    sampling,
                    evaluation.pictures_per_prompt,
                    evaluation.seed,
                )
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
            device: device.clone(),
            experiment,
        };
        run.tell_sizes(observer)?;
        Ok(run)
    }

    /// Trains to the last iteration. Evaluates before the first and after the last.
    ///
    /// # Errors
    ///
    /// Whatever stopped the run. The last checkpoint stays as it is.
    pub fn train(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let config = self.experiment.config.clone();
        let total = config.train.iterations;
        if self.state.iteration == 0 && self.state.first_evaluation.is_none() {
            self.evaluate(observer)?;
            self.save("last")?;
        }
        while self.state.iteration < total {
            let metrics = self.iterate(observer)?;
            self.folder.append_metrics(&metrics.to_json())?;
            self.folder.append_scalars(metrics.iteration, &metrics.values)?;
            observer.iteration(&metrics);
            self.state.iteration += 1;
            let done = self.state.iteration;
            let last = done == total;
            if self.evaluator.is_some() && (last || done.is_multiple_of(config.evaluation.every)) {
                self.evaluate(observer)?;
            }
            if last || done.is_multiple_of(config.train.checkpoint_every) {
                self.save("last")?;
            }
        }
        Ok(())
    }

    /// One iteration: a rollout and its updates.
    fn iterate(&mut self, observer: &mut dyn Observer) -> Result<IterationMetrics, TrainError> {
        let iteration = self.state.iteration;
        let mut clock = Clock::default();
        let mut metrics = IterationMetrics { iteration: iteration + 1, ..IterationMetrics::default() };

        // 1. Draw the window and the prompts, and plan the trees.
        let plan = self.draw_plan(iteration)?;
        let indices = self.draw_prompts(iteration);
        let texts: Vec<String> =
            indices.iter().map(|i| self.experiment.train_prompts.prompts[*i].clone()).collect();

        // 2. Roll out level by level, all prompts' trees together.
        observer.stage(iteration, "encode");
        let (table, _) = clock.time("encode", || self.pipeline.encode(&texts))?;
        observer.stage(iteration, "rollout");
        let prompts = Prompts { table: &table, indices: &indices };
        let draw_key = Draw { seed: self.experiment.config.train.seed, iteration };
        let rollout = clock.time("rollout", || {
            // Sampling needs no adapters: their products are added into the weights once.
            let network = lora::merge(&self.pipeline.transformer);
            roll_out(&network, &plan, &self.sampling, &prompts, draw_key, &self.device)
        })?;

        // 3. Decode and score the leaves.
        observer.stage(iteration, "decode");
        let pictures =
            clock.time("decode", || draw(&self.pipeline, &rollout.leaves, self.sampling.micro_batch))?;
        observer.stage(iteration, "score");
        let scores = clock.time("score", || {
            self.rewards.prepare(&texts)?;
            self.rewards.score(&pictures, &rollout.leaf_prompts, RewardPurpose::Training)
        })?;

        // 4. Give every edge its credit.
        let advantages =
            self.experiment.credit.advantages(&rollout, &scores, &mut self.state.running, &self.sampling, &indices)?;

        // 5. Update.
        observer.stage(iteration, "update");
        let outcome = clock.time("update", || self.update(&plan, &rollout, &advantages, &table, indices.len()))?;

        metrics.window = plan.stochastic_steps().collect();
        metrics.prompts = indices;
        self.fill(&mut metrics, &rollout, &scores, &advantages, &outcome);
        clock.fill(&mut metrics);
        Ok(metrics)
    }

    /// The optimiser steps of one rollout.
    fn update(
        &mut self,
        plan: &Plan,
        rollout: &Rollout,
        advantages: &EdgeAdvantages,
        table: &policy_sd3::guidance::PromptTable,
        prompts: usize,
    ) -> Result<UpdateOutcome, TrainError> {
        let train = &self.experiment.config.train;
        let iteration = self.state.iteration;
        let objective = Objective {
            clipped: self.experiment.objective,
            edge_weights: plan.edge_weights(self.experiment.config.credit.level_weight),
            kl_beta: train.kl_beta,
        };
        let nodes = training_nodes(rollout);
        let place = Place::of_iteration(Purpose::Updates, iteration);
        // Steps see a random part of the nodes each; with one step the order does not matter and stays as it is.
        let steps = train.updates_per_iteration.min(nodes.len()).max(1);
        let order = if steps == 1 {
            (0..nodes.len()).collect()
        } else {
            noise::permutation(train.seed, place, nodes.len())
        };
        let mut outcome: Option<UpdateOutcome> = None;
        for step in 0..steps {
            // Parts differ by at most one node, and every node is in exactly one.
            let part = order[step * nodes.len() / steps..(step + 1) * nodes.len() / steps].iter();
            let part: Vec<_> = part.map(|i| nodes[*i]).collect();
            let scale = steps as f64 / prompts as f64;
            let update = Update {
                network: &self.pipeline.transformer,
                reference: self.reference.as_ref(),
                layout: &self.layout,
                sampling: &self.sampling,
                table,
                objective: &objective,
                iteration: iteration + 1,
            };
            let gradient = update.gradient(rollout, &advantages.edges, &part, scale)?;
            if step == 0 {
                update.check_first_ratio(rollout, &gradient, train.ratio_limit)?;
            }
            let report = self.optimiser.step(&mut self.parameters, gradient.gradient.clone(), &self.layout)?;
            self.pipeline.transformer =
                self.layout.scatter(self.pipeline.transformer.clone(), &self.parameters.parameters);
            self.state.optimiser_steps = self.parameters.steps;
            outcome = Some(match outcome {
                None => UpdateOutcome {
                    loss: gradient.loss,
                    training_nodes: gradient.nodes,
                    gradient_norm: report.gradient_norm,
                    change_norm: report.change_norm,
                    first: gradient.clone(),
                    last: gradient,
                },
                Some(so_far) => UpdateOutcome {
                    loss: so_far.loss + gradient.loss,
                    training_nodes: so_far.training_nodes + gradient.nodes,
                    gradient_norm: so_far.gradient_norm.max(report.gradient_norm),
                    change_norm: so_far.change_norm + report.change_norm,
                    first: so_far.first,
                    last: gradient,
                },
            });
        }
        // A plan has at least one training node, so there was at least one step.
        outcome.ok_or(TrainError::Plan(tree_core::PlanError::NothingStochastic))
    }

    /// Draws the evaluation's pictures with the published weights, and remembers the best.
    fn evaluate(&mut self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let Some(evaluator) = &self.evaluator else { return Ok(()) };
        observer.stage(self.state.iteration, "evaluate");
        let begin = Instant::now();
        // A value of its own: the trained network is never swapped out.
        let network = self.layout.scatter(self.pipeline.transformer.clone(), self.parameters.published());
        let network = lora::merge(&network);
        let config = &self.experiment.config;
        let (scores, pictures) =
            evaluator.run(&network, &self.pipeline, &mut self.rewards, config.evaluation.samples, &self.device)?;
        self.folder.write_samples(self.state.iteration, &pictures)?;
        let first = self.state.first_evaluation.get_or_insert_with(|| scores.clone());
        let summaries = scores.summaries(first, &config.prompts.eval_groups);
        let trained: f64 =
            self.rewards.weights().iter().filter_map(|(name, w)| summaries.get(*name).map(|s| w * s["all"].mean)).sum();
        let metrics = EvaluationMetrics {
            iteration: self.state.iteration,
            rewards: summaries,
            settings: json!({
                "prompts": evaluator.prompts().len(),
                "pictures_per_prompt": config.evaluation.pictures_per_prompt,
                "steps": config.evaluation.steps.unwrap_or(config.sampling.steps),
                "guidance": config.evaluation.guidance.unwrap_or(config.sampling.guidance),
                "schedule": config.sampling.schedule,
                "seed": config.evaluation.seed,
                "latent_shape": self.sampling.shape,
                "weights": if self.parameters.average.is_some() { "average" } else { "raw" },
                "rewards": self.rewards.descriptions().into_iter().collect::<std::collections::BTreeMap<_, _>>(),
            }),
            seconds: begin.elapsed().as_secs_f64(),
        };
        self.folder.append_metrics(&metrics.to_json())?;
        self.folder.append_evaluation(&metrics)?;
        observer.evaluation(&metrics);
        if self.state.best.is_none_or(|best| trained > best) {
            self.state.best = Some(trained);
            self.save("best")?;
        }
        Ok(())
    }

    fn save(&self, name: &str) -> Result<(), TrainError> {
        state::save(
            &self.folder.checkpoint(name),
            &self.state,
            &self.parameters,
            &self.layout,
            &self.published,
            &self.experiment.config.model.path.display().to_string(),
        )
    }

    /// The plan of an iteration, its window drawn.
    fn draw_plan(&self, iteration: u64) -> Result<Plan, TrainError> {
        let config = &self.experiment.config;
        let place = Place::of_iteration(Purpose::Window, iteration);
        let start = self.experiment.window_law.draw(
            config.sampling.steps,
            config.tree.window,
            iteration,
            noise::uniform(config.train.seed, place),
        )?;
        Ok(self.experiment.plan_at(start)?)
    }

    /// The prompts of an iteration: a walk through one permutation of the file after another, so that every prompt is
    /// seen once before any is seen twice. A pure function of seed and iteration.
    fn draw_prompts(&self, iteration: u64) -> Vec<usize> {
        let config = &self.experiment.config;
        draw_prompts(
            config.train.seed,
            iteration,
            config.prompts.per_iteration,
            self.experiment.train_prompts.prompts.len(),
        )
    }

    /// Puts an iteration's numbers under their names.
    fn fill(
        &self,
        metrics: &mut IterationMetrics,
        rollout: &Rollout,
        scores: &[RewardScores],
        advantages: &EdgeAdvantages,
        outcome: &UpdateOutcome,
    ) {
        for reward in scores {
            let mean = reward.values.iter().sum::<f64>() / reward.values.len() as f64;
            metrics.set(format!("reward/{}", reward.name), mean);
        }
        for (name, statistics) in &advantages.mixed.rewards {
            metrics.set(format!("reward/{name}/group_std"), statistics.mean_group_std);
            metrics.set(format!("reward/{name}/batch_std"), statistics.batch_std);
        }
        for (step, std) in &advantages.value_std {
            metrics.set(format!("value_std/step_{step}"), *std);
        }
        metrics.set("zero_std_fraction", advantages.mixed.total.zero_std_fraction());
        metrics.set("ess", advantages.effective_sample_size);
        metrics.set("evaluations", rollout.evaluations as f64);
        metrics.set("leaves", rollout.leaf_prompts.len() as f64);
        metrics.set("training_nodes", outcome.training_nodes as f64);
        metrics.set("loss", outcome.loss);
        metrics.set("grad_norm", outcome.gradient_norm);
        metrics.set("parameter_change", outcome.change_norm);
        metrics.set("kl", outcome.last.kl);
        // The first update is on the policy's own samples, so its ratio only shows rounding; the last one moves.
        let (first, last) = (&outcome.first.ratios, &outcome.last.ratios);
        metrics.set("first_ratio_error", outcome.first.worst.map_or(0.0, |w| w.distance));
        metrics.set("ratio_min", 1.0 + last.minimum());
        metrics.set("ratio_mean", 1.0 + last.mean());
        metrics.set("ratio_max", 1.0 + last.maximum());
        metrics.set("ratio_std", last.std());
        metrics.set("approx_kl", last.approx_kl());
        metrics.set("clip_fraction", last.clip_fraction());
        metrics.set("first_approx_kl", first.approx_kl());
    }

    /// What a user should know before the run starts.
    fn tell_sizes(&self, observer: &mut dyn Observer) -> Result<(), TrainError> {
        let config = &self.experiment.config;
        let plan = self.experiment.plan_at(0)?;
        let counts = plan.counts(config.prompts.per_iteration)?;
        observer.note(&format!(
            "{} trained parameters in {} tensors; rewards: {}; {}",
            self.layout.len(),
            self.layout.entries().len(),
            self.rewards,
            self.experiment.credit.mix.formula()
        ));
        observer.note(&format!(
            "{} prompts per iteration × {} leaves; a window at step 0 costs {} evaluations and {} training nodes",
            config.prompts.per_iteration,
            plan.counts_per_prompt().leaves,
            counts.evaluations,
            counts.training_nodes
        ));
        for line in &self.experiment.idle_settings {
            observer.note(line);
        }
        if config.train.updates_per_iteration == 1 {
            observer.note("one update per iteration: the ratio is 1 at every update, and the clip never acts");
        }
        let all = &self.experiment.train_prompts;
        if all.blank_lines + all.duplicates > 0 {
            observer.note(&format!(
                "{}: {} prompts, {} blank lines passed over, {} with the text of an earlier one (kept)",
                all.path.display(),
                all.prompts.len(),
                all.blank_lines,
                all.duplicates
            ));
        }
        for (file, prompts) in
            [Some(&self.experiment.train_prompts), self.experiment.eval_prompts.as_ref()].into_iter().flatten().map(|f| (&f.path, &f.prompts))
        {
            let truncated = self.pipeline.text.count_truncated(prompts)?;
            if truncated > 0 {
                observer.note(&format!(
                    "{}: {truncated} of {} prompts are longer than the tokenizers' limit and lose their end",
                    file.display(),
                    prompts.len()
                ));
            }
        }
        Ok(())
    }

    /// The folder that the run writes.
    #[must_use]
    pub fn folder(&self) -> &RunFolder {
        &self.folder
    }
}

/// A run that goes on is compared with its first evaluation, prompt by prompt, so the prompts must be the same.
fn check_same_evaluation(experiment: &Experiment, state: &RunState, folder: &RunFolder) -> Result<(), TrainError> {
    let now = experiment.eval_prompts.as_ref().map_or(0, |file| file.prompts.len());
    let then = state.first_evaluation.as_ref().and_then(|first| first.per_prompt.values().next()).map(Vec::len);
    match then {
        Some(then) if then != now && now > 0 => Err(TrainError::File {
            path: folder.path().to_owned(),
            why: format!(
                "was evaluated on {then} prompts, the evaluation file now has {now}; resume with the same file, or \
                 begin a new run with --out"
            ),
        }),
        _ => Ok(()),
    }
}

/// The prompts of an iteration; see [`Run::draw_prompts`].
#[must_use]
pub fn draw_prompts(seed: u64, iteration: u64, per_iteration: usize, prompts: usize) -> Vec<usize> {
    let first = iteration * per_iteration as u64;
    let mut drawn = Vec::with_capacity(per_iteration);
    let mut pass = None;
    for position in first..first + per_iteration as u64 {
        let wanted = position / prompts as u64;
        let order = match &pass {
            Some((number, order)) if *number == wanted => order,
            _ => {
                let order = noise::permutation(seed, Place::of_iteration(Purpose::Prompts, wanted), prompts);
                &pass.insert((wanted, order)).1
            }
        };
        drawn.push(order[(position % prompts as u64) as usize]);
    }
    drawn
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
        log_prob: LogProb { density: config.sampling.density, reduction: config.sampling.reduction },
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
                    let config = LoraConfig { rank: table.rank, alpha: table.alpha, init: table.init };
                    let seed = experiment.config.train.seed;
                    lora::attach(&mut pipeline.transformer, &mut pipeline.keys, &config, seed, device);
                    config
                }
            };
            Ok(Published::Adapter(config))
        }
        None => {
            pipeline.transformer = pipeline.transformer.clone().unfreeze();
            Ok(Published::Transformer { constants: pipeline.transformer_constants(device)? })
        }
    }
}

/// Seconds per stage.
#[derive(Default)]
struct Clock {
    stages: Vec<(&'static str, f64)>,
}

impl Clock {
    fn time<T>(&mut self, stage: &'static str, work: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let result = work();
        self.stages.push((stage, begin.elapsed().as_secs_f64()));
        result
    }

    fn fill(&self, metrics: &mut IterationMetrics) {
        for (stage, seconds) in &self.stages {
            metrics.set(format!("seconds/{stage}"), *seconds);
        }
        metrics.set("seconds/total", self.stages.iter().map(|(_, seconds)| seconds).sum());
    }
}
