//! `treegrpo train`

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Result, bail};
use burn::tensor::Device;
use clap::Args;
use trainer::config::Experiment;
use trainer::files::METRICS;
use trainer::run::Run;

use crate::device::DeviceArgument;
use crate::plan::memory;
use crate::progress::{self, Progress};
use crate::report::{self, History};

/// Train a model as a configuration file describes it
///
/// The run's folder holds the resolved configuration, metrics.jsonl, TensorBoard events, sample pictures, checkpoints
/// and, at the end, report.html. A run may be stopped at any moment, by Ctrl-C or otherwise; --resume goes on from its
/// last checkpoint.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Train {
    /// Configuration file
    config: PathBuf,
    /// Folder of the run; `runs/` and the configuration's name when absent, numbered if there is such a run already
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Override a key of the configuration; may be given several times
    #[arg(long = "set", value_name = "KEY=VALUE")]
    settings: Vec<String>,
    /// Go on with the run in --out, or with the newest run of this configuration
    #[arg(long)]
    resume: bool,
    #[command(flatten)]
    device: DeviceArgument,
}

const EXAMPLES: &str = "\
Examples:
  treegrpo train configs/emoji.toml
  treegrpo train configs/emoji.toml --out runs/short --set train.iterations=20 --set sampling.kernel=cps
  treegrpo train configs/emoji.toml --resume --set train.iterations=120";

impl Train {
    pub(crate) fn run(self) -> Result<()> {
        let experiment = Experiment::open(&self.config, &self.settings)?;
        let out = self.folder()?;
        let device = self.device.open()?;
        if let Some(memory) = memory::estimate(&experiment, &experiment.plan_at(0)?) {
            memory.check_fits()?;
        }
        let begin = Instant::now();
        let config = &experiment.config;
        let held_out = config
            .rewards
            .iter()
            .filter(|(_, spec)| spec.eval_only)
            .map(|(name, _)| name.clone());
        let mut progress = Progress::new(config.train.iterations, held_out.collect());

        // The bar goes away before an error is told, or it would be left standing above it.
        let trained = train(experiment, &out, self.resume, &device, &mut progress);
        progress.finish();
        trained?;

        let history = History::read(&out)?;
        let page = report::write(&out, &history)?;
        progress.say(&summary(&out, &page, &history, begin)?);
        Ok(())
    }

    /// The run's folder, chosen if the user named none.
    fn folder(&self) -> Result<PathBuf> {
        let stem = self.config.file_stem().unwrap_or_default();
        let numbered = |number: u32| match number {
            1 => Path::new("runs").join(stem),
            _ => Path::new("runs").join(format!("{}-{number}", stem.display())),
        };
        let holds_run = |folder: &Path| folder.join(METRICS).exists();
        // The numbers have no gaps unless somebody removed a run; then the first gap is filled.
        let free = || {
            (1..)
                .map(numbered)
                .find(|folder| !holds_run(folder))
                .unwrap_or_else(|| numbered(1))
        };
        match (&self.out, self.resume) {
            (Some(out), false) if out.exists() && !out.is_dir() => {
                bail!(
                    "--out {}: is a file; name a folder, which is made if there is none",
                    out.display()
                )
            }
            (Some(out), false) => Ok(out.clone()),
            (None, false) => Ok(free()),
            (given, true) => {
                let newest = || (1..).map(numbered).take_while(|folder| holds_run(folder)).last();
                let Some(folder) = given.clone().or_else(newest) else {
                    bail!(
                        "--resume: there is no run {}; name its folder with --out, or leave --resume out to start one",
                        numbered(1).display()
                    );
                };
                let checkpoint = folder.join("checkpoints").join("last");
                // A run killed in the middle of a save has the previous checkpoint instead, which resuming finds.
                if !checkpoint.is_dir() && !checkpoint.with_extension("previous").is_dir() {
                    bail!(
                        "--resume: there is no checkpoint {}; name the folder of a run with --out, or leave --resume out \
                         to start one",
                        checkpoint.display()
                    );
                }
                Ok(folder)
            }
        }
    }
}

fn train(experiment: Experiment, out: &Path, resume: bool, device: &Device, progress: &mut Progress) -> Result<()> {
    let mut run = Run::open(experiment, out, resume, device, progress)?;
    progress.say(&format!("run in {}\n", out.display()));
    run.train(progress)?;
    Ok(())
}

/// What came of the run, and where it is.
fn summary(out: &Path, page: &Path, history: &History, begin: Instant) -> Result<String> {
    let iterations = history.iterations.last().map_or(0, |record| record.iteration);
    let mut text = format!(
        "done: {iterations} iterations, {} now\n",
        progress::duration(Some(begin.elapsed()))
    );
    let results = history.results();
    if results.is_empty() {
        writeln!(
            text,
            "no evaluation prompts were given (prompts.eval), so nothing was compared"
        )?;
    }
    for result in results {
        let name = match (&result.part, result.trained) {
            (Some(part), _) => format!("  {part}"),
            (None, true) => format!("{} (trained)", result.reward),
            (None, false) => format!("{} (held out)", result.reward),
        };
        writeln!(
            text,
            "  {name:<28} {:.4} → {:.4}   change {}",
            result.before.mean,
            result.after.mean,
            progress::change(result.change.mean, result.change.standard_error)
        )?;
    }
    for (what, path) in [
        ("pictures", out.join("samples")),
        ("best weights", out.join("checkpoints").join("best")),
        ("last weights", out.join("checkpoints").join("last")),
        ("metrics", out.join(METRICS)),
        ("report", page.to_owned()),
    ] {
        if path.exists() {
            writeln!(text, "{what:<13} {}", path.display())?;
        }
    }
    Ok(text)
}
