//! What a run reports: one record per iteration, one per evaluation.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::evaluate::Summary;

/// One iteration's numbers, named as users know them. `docs/metrics.md` explains each.
#[derive(Debug, Clone, Default)]
pub struct IterationMetrics {
    /// Iteration, counted from 1.
    pub iteration: u64,
    /// Scalars by name, in a fixed order.
    pub values: BTreeMap<String, f64>,
    /// Indices of the prompts in their file.
    pub prompts: Vec<usize>,
    /// The stochastic steps.
    pub window: Vec<usize>,
}

impl IterationMetrics {
    /// Sets a value.
    pub fn set(&mut self, name: impl Into<String>, value: f64) {
        self.values.insert(name.into(), value);
    }

    /// A value, for printing.
    #[must_use]
    pub fn get(&self, name: &str) -> f64 {
        self.values.get(name).copied().unwrap_or(f64::NAN)
    }

    /// The record of `metrics.jsonl`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        object.insert("kind".into(), json!("iteration"));
        object.insert("iteration".into(), json!(self.iteration));
        object.insert("window".into(), json!(self.window));
        object.insert("prompts".into(), json!(self.prompts));
        for (name, value) in &self.values {
            object.insert(name.clone(), json!(value));
        }
        Value::Object(object)
    }
}

/// One evaluation's numbers.
#[derive(Debug, Clone)]
pub struct EvaluationMetrics {
    /// Iterations done before it.
    pub iteration: u64,
    /// Per reward and part of the prompts.
    pub rewards: BTreeMap<String, BTreeMap<String, Summary>>,
    /// Pictures without a finite score, per reward that has such.
    pub non_finite: BTreeMap<String, usize>,
    /// Prompts, counted from 0, that have no finite score of a reward and are in none of its means.
    pub left_out: BTreeMap<String, Vec<usize>>,
    /// How the pictures were made, so that the numbers can be had again.
    pub settings: Value,
    /// Time it took.
    pub seconds: f64,
}

impl EvaluationMetrics {
    /// The record of `metrics.jsonl`: `eval/<reward>` is the mean over all prompts.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut object = Map::new();
        object.insert("kind".into(), json!("eval"));
        object.insert("iteration".into(), json!(self.iteration));
        for (reward, parts) in &self.rewards {
            let gaps = self.non_finite.get(reward).copied().unwrap_or(0);
            object.insert(format!("eval/{reward}/non_finite"), json!(gaps));
            for (part, summary) in parts {
                let name = match part.as_str() {
                    "all" => format!("eval/{reward}"),
                    part => format!("eval/{reward}/{part}"),
                };
                object.insert(name.clone(), json!(summary.mean));
                object.insert(format!("{name}/standard_error"), json!(summary.standard_error));
                object.insert(format!("{name}/change"), json!(summary.change));
                object.insert(
                    format!("{name}/change_standard_error"),
                    json!(summary.change_standard_error),
                );
            }
        }
        if !self.left_out.is_empty() {
            object.insert("left_out".into(), json!(self.left_out));
        }
        object.insert("seconds/evaluate".into(), json!(self.seconds));
        object.insert("settings".into(), self.settings.clone());
        Value::Object(object)
    }
}

/// Who wants to know how a run goes. The trainer prints nothing itself.
pub trait Observer {
    /// A line worth telling once: sizes, truncations, warnings.
    fn note(&mut self, line: &str);
    /// A stage of the current iteration begins.
    fn stage(&mut self, iteration: u64, stage: &'static str);
    /// An iteration is done.
    fn iteration(&mut self, metrics: &IterationMetrics);
    /// An evaluation is done.
    fn evaluation(&mut self, metrics: &EvaluationMetrics);
}
