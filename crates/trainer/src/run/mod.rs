//! The loop of TreeGRPO, top to bottom: draw the window, plan, roll out, decode, score, credit, update.
//!
//! Nothing here asks which method runs. A method is the plan, the credit rule, the objective and the sampling that the
//! experiment holds.

mod open;
mod report;

use std::collections::BTreeMap;
use std::time::Instant;

use burn::tensor::Device;
use policy_sd3::lora;
use policy_sd3::pipeline::Pipeline;
use policy_sd3::transformer::Transformer;
use rewards::{Picture, Purpose as RewardPurpose, RewardSet};
use serde_json::{Value, json};
use tree_core::Plan;

use crate::config::Experiment;
use crate::credit::EdgeAdvantages;
use crate::diversity::latent_diversity;
use crate::error::TrainError;
use crate::evaluate::{Evaluator, draw};
use crate::files::RunFolder;
use crate::metrics::{EvaluationMetrics, IterationMetrics, Observer};
use crate::noise::{self, Place, Purpose};
use crate::optimiser::{Optimiser, OptimiserState};
use crate::parameters::Layout;
use crate::rollout::{Draw, Prompts, Rollout, Sampling, roll_out};
use crate::state::{self, Published, RunState};
use crate::update::{NodeGradient, Objective, Update, nodes_left};
use crate::watch::Watch;
use report::{Clock, gaps_line};

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
    watch: Watch,
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
        let mut metrics = IterationMetrics {
            iteration: iteration + 1,
            ..IterationMetrics::default()
        };

        // 1. Draw the window and the prompts, and plan the trees.
        let plan = self.draw_plan(iteration)?;
        let indices = self.draw_prompts(iteration);
        let texts: Vec<String> = indices
            .iter()
            .map(|i| self.experiment.train_prompts.prompts[*i].clone())
            .collect();

        // 2. Roll out level by level, all prompts' trees together.
        observer.stage(iteration, "encode");
        let (table, _) = clock.time("encode", || self.pipeline.encode(&texts))?;
        observer.stage(iteration, "rollout");
        let prompts = Prompts {
            table: &table,
            indices: &indices,
        };
        let draw_key = Draw {
            seed: self.experiment.config.train.seed,
            iteration,
        };
        let rollout = clock.time("rollout", || {
            // Sampling needs no adapters: their products are added into the weights once.
            let network = lora::merge(&self.pipeline.transformer);
            roll_out(&network, &plan, &self.sampling, &prompts, draw_key, &self.device)
        })?;

        // 3. Decode and score the leaves.
        observer.stage(iteration, "decode");
        let pictures = clock.time("decode", || {
            draw(&self.pipeline, &rollout.leaves, self.sampling.micro_batch)
        })?;
        let pictures: Vec<Picture> = pictures.into_iter().map(Picture::from).collect();
        observer.stage(iteration, "score");
        let scores = clock.time("score", || {
            self.rewards.prepare(&texts)?;
            self.rewards
                .score_with_gaps(&pictures, &rollout.leaf_prompts, RewardPurpose::Training)
        })?;

        // 4. Give every edge its credit.
        let advantages =
            self.experiment
                .credit
                .advantages(&rollout, &scores, &mut self.state.running, &self.sampling, &indices)?;
        for line in self.watch.look(&scores, &advantages.mixed, &advantages.selection) {
            observer.note(&format!("iteration {}: {line}", iteration + 1));
        }

        // 5. Update.
        observer.stage(iteration, "update");
        let outcome = clock.time("update", || {
            self.update(&plan, &rollout, &advantages, &table, indices.len())
        })?;

        metrics.window = plan.stochastic_steps().collect();
        metrics.set("diversity", latent_diversity(&rollout.leaves, &rollout.leaf_prompts)?);
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
        let edge_factors = advantages.edge_factors(plan, self.experiment.config.credit.level_weight);
        let edge_factors = edge_factors.as_deref();
        let nodes = nodes_left(rollout, edge_factors);
        // The objective is a mean over prompts, and one that is dropped is not there.
        let prompts = advantages.prompts_left(prompts);
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
                edge_factors,
                iteration: iteration + 1,
            };
            let gradient = update.gradient(rollout, &advantages.edges, &part, scale)?;
            if step == 0 {
                update.check_first_ratio(rollout, &gradient, train.ratio_limit)?;
            }
            let report = self
                .optimiser
                .step(&mut self.parameters, gradient.gradient.clone(), &self.layout)?;
            self.pipeline.transformer = self
                .layout
                .scatter(self.pipeline.transformer.clone(), &self.parameters.parameters);
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
        let Some(evaluator) = &self.evaluator else {
            return Ok(());
        };
        observer.stage(self.state.iteration, "evaluate");
        let begin = Instant::now();
        let evaluation_settings = self.evaluation_settings();
        let mut settings = evaluation_settings.clone();
        settings["weights"] = json!(if self.parameters.average.is_some() {
            "average"
        } else {
            "raw"
        });
        // A value of its own: the trained network is never swapped out.
        let network = self
            .layout
            .scatter(self.pipeline.transformer.clone(), self.parameters.published());
        let network = lora::merge(&network);
        let config = &self.experiment.config;
        let (scores, pictures) = evaluator.run(
            &network,
            &self.pipeline,
            &mut self.rewards,
            config.evaluation.samples,
            &self.device,
        )?;
        self.folder.write_samples(self.state.iteration, &pictures)?;
        let first = self.state.first_evaluation.get_or_insert_with(|| scores.clone());
        self.state
            .evaluation_settings
            .get_or_insert_with(|| evaluation_settings.to_string());
        let summaries = scores.summaries(first, &config.prompts.eval_groups);
        let weights = self.rewards.weights().into_iter();
        let trained: f64 = weights.map(|(name, w)| w * scores.comparable_mean(first, name)).sum();
        let left_out = scores.left_out();
        for (reward, pictures) in &scores.non_finite {
            let prompts = left_out.get(reward).map(Vec::as_slice).unwrap_or_default();
            observer.note(&gaps_line(reward, *pictures, prompts));
        }
        let metrics = EvaluationMetrics {
            iteration: self.state.iteration,
            rewards: summaries,
            non_finite: scores.non_finite,
            left_out,
            settings,
            seconds: begin.elapsed().as_secs_f64(),
        };
        self.folder.append_metrics(&metrics.to_json())?;
        self.folder.append_evaluation(&metrics)?;
        observer.evaluation(&metrics);
        if trained.is_finite() && self.state.best.is_none_or(|best| trained > best) {
            self.state.best = Some(trained);
            self.save("best")?;
        }
        Ok(())
    }

    /// How the evaluation's pictures are made and scored: what two evaluations must share to be compared.
    fn evaluation_settings(&self) -> Value {
        let config = &self.experiment.config;
        json!({
            "prompts": self.evaluator.as_ref().map_or(0, |evaluator| evaluator.prompts().len()),
            "pictures_per_prompt": config.evaluation.pictures_per_prompt,
            "steps": config.evaluation.steps.unwrap_or(config.sampling.steps),
            "guidance": config.evaluation.guidance.unwrap_or(config.sampling.guidance),
            "schedule": config.sampling.schedule,
            "seed": config.evaluation.seed,
            "latent_shape": self.sampling.shape,
            "rewards": self.rewards.descriptions().into_iter().collect::<BTreeMap<_, _>>(),
        })
    }

    /// A run that goes on is compared with its first evaluation, prompt by prompt, so both must be made alike.
    ///
    /// # Errors
    ///
    /// Names the setting that differs.
    fn check_same_evaluation(&self) -> Result<(), TrainError> {
        let (Some(then), true) = (&self.state.evaluation_settings, self.evaluator.is_some()) else {
            return Ok(());
        };
        let then: Value = serde_json::from_str(then).unwrap_or_default();
        let now = self.evaluation_settings();
        let differs = now
            .as_object()
            .into_iter()
            .flatten()
            .find(|(key, value)| then[key.as_str()] != **value);
        match differs {
            None => Ok(()),
            Some((key, value)) => Err(TrainError::File {
                path: self.folder.path().to_owned(),
                why: format!(
                    "was first evaluated with {key} = {}, now it would be {value}, which cannot be compared; resume with \
                     the settings of its config.toml, or begin a new run with --out",
                    then[key.as_str()]
                ),
            }),
        }
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

    /// The prompts of an iteration; see [`draw_prompts`].
    fn draw_prompts(&self, iteration: u64) -> Vec<usize> {
        let config = &self.experiment.config;
        draw_prompts(
            config.train.seed,
            iteration,
            config.prompts.per_iteration,
            self.experiment.train_prompts.prompts.len(),
        )
    }

    /// The folder that the run writes.
    #[must_use]
    pub fn folder(&self) -> &RunFolder {
        &self.folder
    }
}

/// The prompts of an iteration: a walk through one permutation of the file after another, so that every prompt is seen
/// once before any is seen twice. A pure function of seed and iteration.
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
