//! What a run tells: its sizes at the start, and the numbers of every iteration under the names users know.

use std::time::Instant;

use rewards::RewardScores;

use super::{Run, UpdateOutcome};
use crate::credit::EdgeAdvantages;
use crate::error::TrainError;
use crate::gaps::numbered;
use crate::metrics::{IterationMetrics, Observer};
use crate::rollout::Rollout;

impl Run {
    /// Puts an iteration's numbers under their names.
    pub(super) fn fill(
        &self,
        metrics: &mut IterationMetrics,
        rollout: &Rollout,
        scores: &[RewardScores],
        advantages: &EdgeAdvantages,
        outcome: &UpdateOutcome,
    ) {
        let selection = &advantages.selection;
        for reward in scores {
            // A dropped leaf is in no statistic, although another reward may have scored it.
            let kept = reward.values.iter().zip(&selection.kept).filter(|(_, kept)| **kept);
            let mean = kept.clone().map(|(score, _)| score).sum::<f64>() / kept.count() as f64;
            metrics.set(format!("reward/{}", reward.name), mean);
        }
        for ((name, statistics), share) in advantages.mixed.rewards.iter().zip(&advantages.mixed.shares) {
            let mut set = |what: &str, value| metrics.set(format!("reward/{name}/{what}"), value);
            set("group_std", statistics.mean_group_std);
            set("batch_std", statistics.batch_std);
            set("zero_std_fraction", statistics.zero_std_fraction());
            set("advantage_share", *share);
            set(
                "non_finite",
                selection.non_finite.get(name).copied().unwrap_or(0) as f64,
            );
        }
        metrics.set("dropped_samples", selection.dropped_leaves() as f64);
        metrics.set("dropped_groups", selection.dropped_prompts.len() as f64);
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
    pub(super) fn tell_sizes(&self, observer: &mut dyn Observer) -> Result<(), TrainError> {
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
        for (file, prompts) in [
            Some(&self.experiment.train_prompts),
            self.experiment.eval_prompts.as_ref(),
        ]
        .into_iter()
        .flatten()
        .map(|f| (&f.path, &f.prompts))
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
}

/// What an evaluation says of a reward that gave some pictures no finite score.
pub(super) fn gaps_line(reward: &str, pictures: usize, left_out: &[usize]) -> String {
    let mut line = format!("evaluation: reward `{reward}` gave no finite score for {pictures} pictures");
    if !left_out.is_empty() {
        line.push_str(&format!(
            "; {} of the evaluation file, counted from 0, has none at all and is left out of its means",
            numbered("prompt", left_out)
        ));
    }
    line
}

/// Seconds per stage.
#[derive(Default)]
pub(super) struct Clock {
    stages: Vec<(&'static str, f64)>,
}

impl Clock {
    pub(super) fn time<T>(&mut self, stage: &'static str, work: impl FnOnce() -> T) -> T {
        let begin = Instant::now();
        let result = work();
        self.stages.push((stage, begin.elapsed().as_secs_f64()));
        result
    }

    pub(super) fn fill(&self, metrics: &mut IterationMetrics) {
        for (stage, seconds) in &self.stages {
            metrics.set(format!("seconds/{stage}"), *seconds);
        }
        metrics.set("seconds/total", self.stages.iter().map(|(_, seconds)| seconds).sum());
        if let Some(megabytes) = peak_memory() {
            metrics.set("memory/peak_mb", megabytes);
        }
    }
}

/// The process's largest resident set so far, in MiB, where the system tells it (Linux does).
fn peak_memory() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes / 1024.0)
}
