//! What `metrics.jsonl` tells of a run.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::{Map, Value};
use trainer::files::METRICS;

/// A run's records, in order.
pub(crate) struct History {
    pub(crate) iterations: Vec<Record>,
    pub(crate) evaluations: Vec<Record>,
}

/// One line of the file.
pub(crate) struct Record {
    pub(crate) iteration: u64,
    object: Map<String, Value>,
}

/// First and last evaluation of a reward, over all prompts or over a part of them.
pub(crate) struct Comparison {
    pub(crate) reward: String,
    /// Name of the part; none for all prompts.
    pub(crate) part: Option<String>,
    /// Whether the reward was trained on.
    pub(crate) trained: bool,
    pub(crate) before: Estimate,
    pub(crate) after: Estimate,
    pub(crate) change: Estimate,
}

/// A mean with its standard error.
pub(crate) struct Estimate {
    pub(crate) mean: f64,
    pub(crate) standard_error: f64,
}

impl Record {
    pub(crate) fn value(&self, name: &str) -> Option<&Value> {
        self.object.get(name)
    }

    fn number(&self, name: &str) -> Option<f64> {
        self.value(name)?.as_f64()
    }
}

impl History {
    /// Reads the file of the run in `folder`.
    ///
    /// # Errors
    ///
    /// There is none, or a line before the last is no record. The last may be cut off, if the run was.
    pub(crate) fn read(folder: &Path) -> Result<Self> {
        let path = folder.join(METRICS);
        let shown = path.display();
        let text = fs::read_to_string(&path).with_context(|| format!("{shown}: name the folder of a run"))?;
        let mut history = Self {
            iterations: Vec::new(),
            evaluations: Vec::new(),
        };
        let mut lines = text.lines().enumerate().peekable();
        while let Some((number, line)) = lines.next() {
            let object = match serde_json::from_str::<Map<String, Value>>(line) {
                Ok(object) => object,
                Err(_) if lines.peek().is_none() => break,
                Err(error) => bail!("{shown}, line {}: is no JSON object: {error}", number + 1),
            };
            let Some(iteration) = object.get("iteration").and_then(Value::as_u64) else {
                bail!("{shown}, line {}: has no number `iteration`", number + 1);
            };
            let is_evaluation = object.get("kind").and_then(Value::as_str) == Some("eval");
            let record = Record { iteration, object };
            match is_evaluation {
                true => history.evaluations.push(record),
                false => history.iterations.push(record),
            }
        }
        Ok(history)
    }

    /// Every reward that was ever scored.
    pub(crate) fn rewards(&self) -> BTreeSet<String> {
        let of = |records: &[Record], prefix: &str| -> Vec<String> {
            let keys = records.iter().flat_map(|record| record.object.keys());
            let rewards = keys.filter_map(|key| key.strip_prefix(prefix)?.split('/').next());
            rewards.map(str::to_owned).collect()
        };
        let mut rewards: BTreeSet<String> = of(&self.iterations, "reward/").into_iter().collect();
        rewards.extend(of(&self.evaluations, "eval/"));
        rewards
    }

    /// The keys of iterations that begin and end so, each once.
    pub(crate) fn names(&self, prefix: &str, suffix: &str) -> BTreeSet<String> {
        let keys = self.iterations.iter().flat_map(|record| record.object.keys());
        keys.filter(|key| key.starts_with(prefix) && key.ends_with(suffix))
            .cloned()
            .collect()
    }

    /// A value by iteration, where it is a number.
    pub(crate) fn iteration_series(&self, name: &str) -> Vec<(f64, f64)> {
        let point = |record: &Record| Some((record.iteration as f64, record.number(name)?));
        self.iterations.iter().filter_map(point).collect()
    }

    /// A mean and its standard error by iterations done, where both are numbers.
    pub(crate) fn evaluation_series(&self, name: &str) -> (Vec<(f64, f64)>, Vec<f64>) {
        let error = format!("{name}/standard_error");
        let point = |record: &Record| Some(((record.iteration as f64, record.number(name)?), record.number(&error)?));
        self.evaluations.iter().filter_map(point).unzip()
    }

    /// First against last evaluation: rewards by name, each followed by its parts. Empty without two evaluations.
    pub(crate) fn results(&self) -> Vec<Comparison> {
        let [first, .., last] = self.evaluations.as_slice() else {
            return Vec::new();
        };
        let means = last
            .object
            .keys()
            .filter(|key| key.starts_with("eval/") && last.object.contains_key(&format!("{key}/standard_error")));
        let mut results: Vec<Comparison> = means.filter_map(|key| self.compare(first, last, key)).collect();
        results.sort_by(|a, b| (&a.reward, &a.part).cmp(&(&b.reward, &b.part)));
        results
    }

    fn compare(&self, first: &Record, last: &Record, key: &str) -> Option<Comparison> {
        let estimate = |record: &Record, mean: &str, error: &str| {
            let number = |name: &str| record.number(&format!("{key}{name}"));
            Some(Estimate {
                mean: number(mean)?,
                standard_error: number(error)?,
            })
        };
        // A reward's name holds no slash; that of a part may.
        let name = key.strip_prefix("eval/")?;
        let (reward, part) = match name.split_once('/') {
            Some((reward, part)) => (reward, Some(part.to_owned())),
            None => (name, None),
        };
        let trained = self
            .iterations
            .iter()
            .any(|record| record.object.contains_key(&format!("reward/{reward}")));
        Some(Comparison {
            reward: reward.to_owned(),
            part,
            trained,
            before: estimate(first, "", "/standard_error")?,
            after: estimate(last, "", "/standard_error")?,
            change: estimate(last, "/change", "/change_standard_error")?,
        })
    }
}
