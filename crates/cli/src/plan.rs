//! `treegrpo plan`: what a configuration costs, before anything is loaded.

pub(crate) mod memory;

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use serde_json::{Map, Value, json};
use trainer::config::Experiment;
use tree_core::{Counts, Plan, WindowLaw};

use self::memory::Memory;
use crate::output;

/// Show what a configuration comes to: leaves, evaluations, edges, optimiser steps, memory
///
/// An evaluation is one node's guided velocity, both halves of guidance together. The window's start varies; the totals
/// are those of the first start that the law allows, and a table gives every start with its share of the iterations.
#[derive(Args)]
pub(crate) struct PlanCommand {
    /// Configuration file
    config: PathBuf,
    /// Override a key of the configuration; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A place of the window, and what an iteration there costs.
struct Start {
    start: usize,
    /// Expected share of the run's iterations.
    probability: f64,
    plan: Plan,
    per_iteration: Counts,
}

/// Everything that is shown.
struct Costs {
    experiment: Experiment,
    starts: Vec<Start>,
    /// Place among `starts` of the first that can occur.
    first: usize,
    memory: Option<Memory>,
}

impl PlanCommand {
    pub(crate) fn run(self) -> Result<()> {
        let costs = Costs::of(Experiment::open(&self.config, &self.settings)?)?;
        match self.json {
            true => output::print(&format!("{:#}\n", costs.as_json())),
            false => output::print(&costs.as_text()?),
        }
    }
}

impl Costs {
    fn of(experiment: Experiment) -> Result<Self> {
        let prompts = experiment.config.prompts.per_iteration;
        let mut starts = Vec::new();
        for (start, probability) in shares(&experiment)?.into_iter().enumerate() {
            let plan = experiment.plan_at(start)?;
            let per_iteration = plan.counts(prompts).context("prompts.per_iteration")?;
            starts.push(Start {
                start,
                probability,
                plan,
                per_iteration,
            });
        }
        // Every law puts all its mass somewhere, so there is such a start.
        let first = starts.iter().position(|start| start.probability > 0.0).unwrap_or(0);
        let memory = memory::estimate(&experiment, &starts[first].plan);
        Ok(Self {
            experiment,
            starts,
            first,
            memory,
        })
    }

    fn first(&self) -> &Start {
        &self.starts[self.first]
    }

    /// Expected evaluations of a tree, the window being drawn by its law.
    fn expected_evaluations(&self) -> f64 {
        let of = |start: &Start| start.probability * start.plan.counts_per_tree().evaluations as f64;
        self.starts.iter().map(of).sum()
    }

    fn trees_per_iteration(&self) -> usize {
        self.experiment.config.tree.roots * self.experiment.config.prompts.per_iteration
    }

    /// An iteration has at most as many optimiser steps as training nodes.
    fn steps_per_iteration(&self) -> usize {
        self.experiment
            .config
            .train
            .updates_per_iteration
            .min(self.first().per_iteration.training_nodes)
    }

    fn level_factors(&self, start: &Start) -> Vec<f64> {
        let credit = &self.experiment.config.credit;
        start.plan.level_factors(credit.rule, credit.level_weight)
    }

    /// Pictures of one evaluation, and how often the run evaluates: before the first iteration, every so often, and
    /// after the last.
    fn evaluations(&self) -> Option<(usize, u64)> {
        let config = &self.experiment.config;
        let prompts = self.experiment.eval_prompts.as_ref()?.prompts.len();
        let times = 1 + config.train.iterations.div_ceil(config.evaluation.every);
        Some((prompts * config.evaluation.pictures_per_prompt, times))
    }

    fn as_json(&self) -> Value {
        let config = &self.experiment.config;
        let trees = self.trees_per_iteration() as f64;
        let mut object = Map::new();
        object.insert("config".into(), json!(self.experiment.origin));
        object.insert("window_start".into(), json!(self.first().start));
        self.describe(self.first(), &mut object);
        object.insert(
            "expected_evaluations_per_tree".into(),
            json!(self.expected_evaluations()),
        );
        object.insert(
            "expected_evaluations_per_iteration".into(),
            json!(self.expected_evaluations() * trees),
        );
        object.insert("steps".into(), json!(config.sampling.steps));
        object.insert("children".into(), json!(config.tree.children));
        object.insert("window".into(), json!(config.tree.window));
        object.insert("trees_per_prompt".into(), json!(config.tree.roots));
        object.insert("prompts_per_iteration".into(), json!(config.prompts.per_iteration));
        object.insert(
            "training_prompts".into(),
            json!(self.experiment.train_prompts.prompts.len()),
        );
        object.insert("iterations".into(), json!(config.train.iterations));
        object.insert(
            "optimiser_steps_per_iteration".into(),
            json!(self.steps_per_iteration()),
        );
        let steps = config
            .train
            .iterations
            .saturating_mul(self.steps_per_iteration() as u64);
        object.insert("optimiser_steps".into(), json!(steps));
        if let Some((pictures, times)) = self.evaluations() {
            object.insert("evaluation_pictures".into(), json!(pictures));
            object.insert("evaluation_times".into(), json!(times));
        }
        object.insert("window_law".into(), json!(self.experiment.window_law));
        let mass: Vec<f64> = self.starts.iter().map(|start| start.probability).collect();
        object.insert("window_probabilities".into(), json!(mass));
        let starts = self.starts.iter().map(|start| {
            let mut object = Map::new();
            object.insert("start".into(), json!(start.start));
            object.insert("probability".into(), json!(start.probability));
            self.describe(start, &mut object);
            Value::Object(object)
        });
        object.insert("starts".into(), starts.collect());
        object.insert(
            "memory".into(),
            self.memory.as_ref().map_or(Value::Null, Memory::as_json),
        );
        Value::Object(object)
    }

    /// What is said of each start, and of the first one at the top.
    fn describe(&self, start: &Start, object: &mut Map<String, Value>) {
        for (unit, counts) in [
            ("tree", start.plan.counts_per_tree()),
            ("iteration", start.per_iteration),
        ] {
            object.insert(format!("leaves_per_{unit}"), json!(counts.leaves));
            object.insert(format!("evaluations_per_{unit}"), json!(counts.evaluations));
            object.insert(format!("training_nodes_per_{unit}"), json!(counts.training_nodes));
            object.insert(format!("edges_per_{unit}"), json!(counts.edges));
        }
        object.insert("widths".into(), json!(start.plan.widths()));
        object.insert("level_factors".into(), json!(self.level_factors(start)));
    }

    fn as_text(&self) -> Result<String> {
        let config = &self.experiment.config;
        let first = self.first();
        let mut text = String::new();
        writeln!(text, "{}", self.experiment.origin.display())?;
        writeln!(
            text,
            "{} steps, of them {} in a row stochastic with {} children each; {} per prompt, {} per iteration, {}",
            config.sampling.steps,
            config.tree.window,
            config.tree.children,
            count(config.tree.roots, "tree"),
            count(config.prompts.per_iteration, "prompt"),
            count(config.train.iterations as usize, "iteration"),
        )?;
        writeln!(
            text,
            "\n{:<16} {:>12} {:>14}   (window at step {})",
            "", "per tree", "per iteration", first.start
        )?;
        let (tree, iteration) = (first.plan.counts_per_tree(), first.per_iteration);
        for (name, per_tree, per_iteration) in [
            ("leaves", tree.leaves, iteration.leaves),
            ("evaluations", tree.evaluations, iteration.evaluations),
            ("training nodes", tree.training_nodes, iteration.training_nodes),
            ("edges", tree.edges, iteration.edges),
        ] {
            writeln!(text, "{name:<16} {per_tree:>12} {per_iteration:>14}")?;
        }
        writeln!(
            text,
            "\n{:<16} {:>12} {:>14} {:>12}",
            "window", "evaluations", "per iteration", "probability"
        )?;
        for start in &self.starts {
            let window = format!("{}-{}", start.start, start.start + config.tree.window - 1);
            let evaluations = start.plan.counts_per_tree().evaluations;
            writeln!(
                text,
                "{window:<16} {evaluations:>12} {:>14} {:>12.4}",
                start.per_iteration.evaluations, start.probability
            )?;
        }
        let expected = self.expected_evaluations();
        writeln!(
            text,
            "{:<16} {expected:>12.1} {:>14.1}",
            "expected",
            expected * self.trees_per_iteration() as f64
        )?;
        let widths: Vec<String> = first.plan.widths().iter().map(ToString::to_string).collect();
        writeln!(text, "\nnodes per level   {}", widths.join(" "))?;
        let factors: Vec<String> = self
            .level_factors(first)
            .iter()
            .map(|factor| format!("{factor:.3}"))
            .collect();
        writeln!(
            text,
            "level factors     {} (credit {}, level weight {})",
            factors.join(" "),
            name_of(json!(config.credit.rule)),
            name_of(json!(config.credit.level_weight))
        )?;
        let steps = self.steps_per_iteration();
        writeln!(
            text,
            "optimiser steps   {} ({steps} per iteration)",
            config.train.iterations.saturating_mul(steps as u64)
        )?;
        if let Some((pictures, times)) = self.evaluations() {
            writeln!(text, "evaluation        {times} times {pictures} pictures")?;
        }
        match &self.memory {
            Some(memory) => writeln!(text, "memory            {memory}")?,
            None => writeln!(
                text,
                "memory            unknown: the model's configuration could not be read"
            )?,
        }
        Ok(text)
    }
}

/// The expected share of the run's iterations, for every start.
fn shares(experiment: &Experiment) -> Result<Vec<f64>> {
    /// A shifting window comes back to where it was or has long stopped after so many iterations.
    const MOST_ITERATIONS: u64 = 10_000_000;
    let config = &experiment.config;
    let (law, steps, window) = (experiment.window_law, config.sampling.steps, config.tree.window);
    if !matches!(law, WindowLaw::Shifting { .. }) {
        return Ok(law.probabilities(steps, window, 0)?);
    }
    let iterations = config.train.iterations.clamp(1, MOST_ITERATIONS);
    let mut shares = vec![0.0; experiment.starts()];
    for iteration in 0..iterations {
        shares[law.draw(steps, window, iteration, 0.0)?] += 1.0;
    }
    shares.iter_mut().for_each(|share| *share /= iterations as f64);
    Ok(shares)
}

/// The name of a setting as configurations write it.
fn name_of(setting: Value) -> String {
    match setting {
        Value::String(name) => name,
        other => other.to_string(),
    }
}

fn count(number: usize, what: &str) -> String {
    format!("{number} {what}{}", if number == 1 { "" } else { "s" })
}
