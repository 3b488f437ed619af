//! How a run shows itself: a bar on a terminal, plain lines elsewhere.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _, stderr, stdout};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use trainer::evaluate::Summary;
use trainer::metrics::{EvaluationMetrics, IterationMetrics, Observer};

/// Prints what the trainer reports.
pub(crate) struct Progress {
    iterations: u64,
    held_out: BTreeSet<String>,
    bar: Option<ProgressBar>,
    /// When the first iteration of this process began: evaluations before it say nothing about the time to come.
    begin: Option<Instant>,
    /// Iterations of this process, which may have resumed an older one's.
    done: u64,
}

impl Progress {
    /// A display of a run of that many iterations, where the rewards in `held_out` are never trained on.
    pub(crate) fn new(iterations: u64, held_out: BTreeSet<String>) -> Self {
        // The bar is drawn on standard error, the lines go to standard output; both must be the terminal to mix.
        let bar = (stdout().is_terminal() && stderr().is_terminal()).then(|| {
            let bar = ProgressBar::new(iterations);
            if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len}  {msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_secs(1));
            bar
        });
        Self {
            iterations,
            held_out,
            bar,
            begin: None,
            done: 0,
        }
    }

    /// Prints lines, above the bar if there is one.
    pub(crate) fn say(&self, text: &str) {
        let write = || {
            let mut out = stdout().lock();
            // A reader that went away must not end a training run.
            let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
        };
        match &self.bar {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    fn time_left(&self, iteration: u64) -> Option<Duration> {
        let elapsed = self.begin?.elapsed().as_secs_f64();
        let left = self.iterations.saturating_sub(iteration) as f64;
        Duration::try_from_secs_f64(elapsed / self.done as f64 * left).ok()
    }
}

impl Observer for Progress {
    fn note(&mut self, line: &str) {
        self.say(&format!("{line}\n"));
    }

    fn stage(&mut self, iteration: u64, stage: &'static str) {
        if stage != "evaluate" {
            self.begin.get_or_insert_with(Instant::now);
        }
        if let Some(bar) = &self.bar {
            bar.set_position(iteration);
            bar.set_message(stage);
        }
    }

    fn iteration(&mut self, metrics: &IterationMetrics) {
        self.done += 1;
        let line = iteration_line(metrics, self.iterations, self.time_left(metrics.iteration));
        if let Some(bar) = &self.bar {
            bar.set_position(metrics.iteration);
        }
        self.say(&line);
    }

    fn evaluation(&mut self, metrics: &EvaluationMetrics) {
        let mut text = match metrics.iteration {
            0 => "evaluation before the first iteration".to_owned(),
            n => format!("evaluation after iteration {n} of {}", self.iterations),
        };
        text.push_str(&format!(
            ", {}\n",
            duration(Duration::try_from_secs_f64(metrics.seconds).ok())
        ));
        for (reward, parts) in &metrics.rewards {
            let name = if self.held_out.contains(reward) {
                format!("{reward} (held out)")
            } else {
                reward.clone()
            };
            // `all` sorts among the parts; it stands for the reward itself.
            if let Some(all) = parts.get("all") {
                text.push_str(&evaluation_line(&name, all, metrics.iteration > 0));
            }
            for (part, summary) in parts.iter().filter(|(part, _)| part.as_str() != "all") {
                text.push_str(&evaluation_line(&format!("  {part}"), summary, metrics.iteration > 0));
            }
        }
        self.say(&text);
    }
}

/// A sign of life for work of unknown length; invisible where nobody looks.
pub(crate) fn spinner(message: &'static str) -> ProgressBar {
    if !stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let spinner = ProgressBar::new_spinner();
    spinner.set_message(message);
    spinner.enable_steady_tick(Duration::from_millis(100));
    spinner
}

/// A length of time in words, rounded to what one wants to know of it.
pub(crate) fn duration(time: Option<Duration>) -> String {
    let Some(time) = time else {
        return "an unknown time".to_owned();
    };
    let seconds = time.as_secs();
    match seconds {
        0..10 => format!("{:.1} s", time.as_secs_f64()),
        10..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// A change with its standard error, and in multiples of it.
pub(crate) fn change(change: f64, standard_error: f64) -> String {
    if standard_error > 0.0 {
        let multiple = change / standard_error;
        format!("{change:+.4} ± {standard_error:.4} ({multiple:+.1} standard errors)")
    } else {
        format!("{change:+.4}")
    }
}

fn iteration_line(metrics: &IterationMetrics, iterations: u64, left: Option<Duration>) -> String {
    let mut line = format!("iteration {}/{iterations}", metrics.iteration);
    if let (Some(first), Some(last)) = (metrics.window.first(), metrics.window.last()) {
        line.push_str(&format!("  window {first}-{last}"));
    }
    for (name, mean) in &metrics.values {
        // `reward/<name>` and, below it, `reward/<name>/group_std`.
        if let Some(reward) = name.strip_prefix("reward/").filter(|rest| !rest.contains('/')) {
            let deviation = metrics.get(&format!("reward/{reward}/group_std"));
            line.push_str(&format!("  {reward} {mean:.4} (group std {deviation:.4})"));
        }
    }
    // Ratios stay so near to 1 that only their distance from it can be read.
    let [lowest, highest] = ["ratio_min", "ratio_max"].map(|name| metrics.get(name) - 1.0);
    let _ = writeln!(
        line,
        "  grad norm {:.2e}  ratio 1{lowest:+.1e}…1{highest:+.1e}  {:.1} s, {} left",
        metrics.get("grad_norm"),
        metrics.get("seconds/total"),
        duration(left)
    );
    line
}

fn evaluation_line(name: &str, summary: &Summary, compare: bool) -> String {
    let mut line = format!("  {name:<28} {:.4} ± {:.4}", summary.mean, summary.standard_error);
    if compare {
        line.push_str("   change ");
        line.push_str(&change(summary.change, summary.change_standard_error));
    }
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rounded_to_what_matters() {
        let shown = |seconds| duration(Some(Duration::from_secs_f64(seconds)));
        assert_eq!(shown(3.21), "3.2 s");
        assert_eq!(shown(59.9), "59 s");
        assert_eq!(shown(61.0), "1 min 01 s");
        assert_eq!(shown(7260.0), "2 h 01 min");
    }

    #[test]
    fn an_iteration_is_one_line_with_small_ratios_readable() {
        let mut metrics = IterationMetrics {
            iteration: 3,
            window: vec![1, 2, 3],
            ..IterationMetrics::default()
        };
        for (name, value) in [
            ("reward/clip", 0.5),
            ("reward/clip/group_std", 0.0125),
            ("grad_norm", 0.000_123),
            ("ratio_min", 1.0 - 2.0e-5),
            ("ratio_max", 1.0 + 1.0e-4),
            ("seconds/total", 2.0),
        ] {
            metrics.set(name, value);
        }
        assert_eq!(
            iteration_line(&metrics, 10, Some(Duration::from_secs(14))),
            "iteration 3/10  window 1-3  clip 0.5000 (group std 0.0125)  grad norm 1.23e-4  \
             ratio 1-2.0e-5…1+1.0e-4  2.0 s, 14 s left\n"
        );
    }

    #[test]
    fn changes_are_told_in_their_standard_errors() {
        assert_eq!(change(0.02, 0.005), "+0.0200 ± 0.0050 (+4.0 standard errors)");
        assert_eq!(change(-0.02, 0.0), "-0.0200");
    }
}
