//! `cargo xtask bench peer`: one iteration of this program and one of PyTorch, diffusers and PEFT, in turn.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use serde_json::{Value, json};
use xshell::{Shell, cmd};

use crate::command;

/// Prompts of an iteration.
const PROMPTS: usize = 4;
/// Iterations of every run of either program. The first is a warm-up and is left out.
const ITERATIONS: usize = 4;
/// What the two programs call the stages that both have.
const STAGES: [(&str, &str); 5] = [
    ("encode", "encode"),
    ("rollout", "rollout"),
    ("decode", "decode"),
    ("score", "score"),
    ("update", "train"),
];
const PYTHON: &str = "target/peer/venv/bin/python";
const PROGRAM: &str = "target/release/treegrpo";

/// Time one TreeGRPO iteration against PyTorch's on this machine: same model, plan, scorer, prompts and threads
#[derive(Args)]
pub(crate) struct Peer {
    /// Pairs of runs per case, ours and PyTorch's in turn
    #[arg(long, default_value_t = 5)]
    pairs: usize,
    /// Where the trees' window begins; may be given several times
    #[arg(long = "start", default_values_t = [0, 2])]
    starts: Vec<usize>,
    /// How PyTorch batches: `level` is the best a PyTorch user would write, `node` is how TreeGRPO's release works
    #[arg(long = "batching", default_values_t = ["level".to_owned(), "node".to_owned()])]
    batchings: Vec<String>,
    /// Threads of either program
    #[arg(long, default_value_t = 2)]
    threads: usize,
}

/// Seconds per stage and in total, the medians of one run, and its peak memory.
#[derive(Debug, Clone)]
struct Times {
    seconds: BTreeMap<&'static str, f64>,
    peak_mb: f64,
}

/// How PyTorch uses two cores.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Cores {
    /// One process with all threads.
    OneProcess,
    /// One process per thread, each with its share of the prompts. The slowest counts; memory adds up.
    ManyProcesses,
}

impl Peer {
    pub(crate) fn run(self, shell: &Shell) -> Result<()> {
        ensure!(self.pairs > 0, "--pairs is 0; use at least 1");
        set_up(shell)?;
        command::run(cmd!(
            shell,
            "cargo build --release --package treegrpo-cli --bin treegrpo"
        ))?;
        let mut results = Vec::new();
        for batching in &self.batchings {
            for start in &self.starts {
                results.push(self.case(batching, *start)?);
            }
        }
        let path = "target/peer/results.json";
        fs::write(path, serde_json::to_string_pretty(&results)? + "\n")?;
        println!("written to {path}");
        Ok(())
    }

    /// Warms up, then runs the pairs.
    fn case(&self, batching: &str, start: usize) -> Result<Value> {
        eprintln!("batching {batching}, window at step {start}: warming up");
        self.ours(start)?;
        let one = self.peer(batching, start, Cores::OneProcess)?;
        let many = self.peer(batching, start, Cores::ManyProcesses)?;
        let (total_of_one, total_of_many) = (one.seconds["total"], many.seconds["total"]);
        let cores = if total_of_many < total_of_one {
            Cores::ManyProcesses
        } else {
            Cores::OneProcess
        };
        eprintln!(
            "PyTorch: {total_of_one:.2} s in one process, {total_of_many:.2} s in {}; the better one stands",
            self.threads
        );
        let mut pairs = Vec::new();
        for pair in 1..=self.pairs {
            let ours = self.ours(start)?;
            let theirs = self.peer(batching, start, cores)?;
            eprintln!(
                "pair {pair}: ours {:.3} s, PyTorch {:.3} s",
                ours.seconds["total"], theirs.seconds["total"]
            );
            pairs.push((ours, theirs));
        }
        Ok(summarise(batching, start, cores, &pairs))
    }

    fn ours(&self, start: usize) -> Result<Times> {
        let out = "target/peer/ours";
        if Path::new(out).exists() {
            fs::remove_dir_all(out)?;
        }
        let status = Command::new(PROGRAM)
            .args(["train", "configs/emoji/peer.toml", "--out", out])
            .args(["--set", &format!("tree.window_start={start}")])
            .args(["--set", &format!("train.iterations={ITERATIONS}")])
            .args(["--set", &format!("prompts.per_iteration={PROMPTS}")])
            .env("RAYON_NUM_THREADS", self.threads.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        ensure!(
            status.success(),
            "{PROGRAM} train configs/emoji/peer.toml failed: {status}"
        );
        let text = fs::read_to_string(Path::new(out).join("metrics.jsonl"))?;
        let rows: Vec<Value> = text.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
        let rows: Vec<&Value> = rows
            .iter()
            .filter(|row| row["seconds/rollout"].is_number())
            .skip(1)
            .collect();
        let mut seconds = BTreeMap::new();
        for (ours, _) in STAGES {
            seconds.insert(
                ours,
                median(rows.iter().filter_map(|row| row[format!("seconds/{ours}")].as_f64())),
            );
        }
        let totals = rows.iter().map(|row| {
            STAGES
                .iter()
                .filter_map(|(s, _)| row[format!("seconds/{s}")].as_f64())
                .sum()
        });
        seconds.insert("total", median(totals));
        let peak = rows
            .iter()
            .filter_map(|row| row["memory/peak_mb"].as_f64())
            .fold(0.0, f64::max);
        Ok(Times { seconds, peak_mb: peak })
    }

    fn peer(&self, batching: &str, start: usize, cores: Cores) -> Result<Times> {
        let (processes, threads) = match cores {
            Cores::OneProcess => (1, self.threads),
            Cores::ManyProcesses => (self.threads, 1),
        };
        let children: Vec<Child> = (0..processes)
            .map(|_| self.start_peer(batching, start, PROMPTS / processes, threads))
            .collect::<Result<_>>()?;
        let mut times: Option<Times> = None;
        for child in children {
            let output = child.wait_with_output()?;
            ensure!(
                output.status.success(),
                "tools/peer_iteration.py failed: {}",
                output.status
            );
            let answer: Value =
                serde_json::from_slice(&output.stdout).context("tools/peer_iteration.py printed no JSON")?;
            let of = |stage: &str| answer["seconds"][stage].as_f64().unwrap_or(f64::NAN);
            let mut seconds: BTreeMap<&'static str, f64> =
                STAGES.iter().map(|(ours, theirs)| (*ours, of(theirs))).collect();
            seconds.insert("total", of("total"));
            let one = Times {
                seconds,
                peak_mb: answer["peak_mb"].as_f64().unwrap_or(f64::NAN),
            };
            times = Some(match times {
                None => one,
                Some(others) => others.beside(&one),
            });
        }
        times.context("PyTorch needs at least one process")
    }

    fn start_peer(&self, batching: &str, start: usize, prompts: usize, threads: usize) -> Result<Child> {
        // One prompt a forward is slow enough for fewer iterations to tell.
        let iterations = if batching == "node" { 2 } else { ITERATIONS };
        let mut command = Command::new(PYTHON);
        command
            .args([
                "tools/peer_iteration.py",
                "--model",
                "assets/emoji-sd3",
                "--scorer",
                "assets/emoji-sd3/scorer",
            ])
            .args([
                "--method",
                "tree",
                "--batching",
                batching,
                "--start",
                &start.to_string(),
            ])
            .args([
                "--prompts",
                &prompts.to_string(),
                "--iterations",
                &iterations.to_string(),
            ])
            .args(["--threads", &threads.to_string()])
            .env("OMP_NUM_THREADS", threads.to_string())
            .env("HF_HUB_OFFLINE", "1")
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        command.spawn().with_context(|| format!("{PYTHON} did not start"))
    }
}

impl Times {
    /// Two processes side by side: the slower one counts, and memory adds up.
    fn beside(&self, other: &Self) -> Self {
        let seconds = self
            .seconds
            .iter()
            .map(|(stage, s)| (*stage, s.max(other.seconds[stage])));
        Self {
            seconds: seconds.collect(),
            peak_mb: self.peak_mb + other.peak_mb,
        }
    }
}

/// Makes the virtual environment once.
fn set_up(shell: &Shell) -> Result<()> {
    if Path::new(PYTHON).exists() {
        return Ok(());
    }
    command::run(cmd!(shell, "python3 -m venv target/peer/venv"))?;
    let installed = command::run(cmd!(
        shell,
        "{PYTHON} -m pip install --quiet --extra-index-url https://download.pytorch.org/whl/cpu -r tools/requirements.txt"
    ));
    if let Err(error) = installed {
        // A half-made environment would be taken for a whole one the next time.
        fs::remove_dir_all("target/peer/venv").ok();
        bail!("{error}");
    }
    Ok(())
}

/// Prints a table and returns the numbers.
fn summarise(batching: &str, start: usize, cores: Cores, pairs: &[(Times, Times)]) -> Value {
    println!(
        "\nTreeGRPO k = 3, w = 3, window at step {start}, {PROMPTS} prompts, PyTorch --batching {batching} ({cores:?}), {} pairs",
        pairs.len()
    );
    println!(
        "{:<8} {:>9} {:>9} {:>7}  {:>15}",
        "stage", "ours, s", "PyTorch", "ratio", "range of ratios"
    );
    let mut stages = serde_json::Map::new();
    let names = STAGES.iter().map(|(ours, _)| *ours).chain(["total"]);
    for name in names {
        let ours = median(pairs.iter().map(|(a, _)| a.seconds[name]));
        let theirs = median(pairs.iter().map(|(_, b)| b.seconds[name]));
        let mut ratios: Vec<f64> = pairs.iter().map(|(a, b)| a.seconds[name] / b.seconds[name]).collect();
        ratios.sort_by(f64::total_cmp);
        let (low, high) = (ratios[0], ratios[ratios.len() - 1]);
        let ratio = median(ratios.iter().copied());
        println!("{name:<8} {ours:>9.3} {theirs:>9.3} {ratio:>7.3}  {low:>6.3} … {high:<6.3}");
        stages.insert(
            name.to_owned(),
            json!({ "ours": ours, "peer": theirs, "ratio": ratio, "least": low, "greatest": high }),
        );
    }
    let peak = |of: fn(&(Times, Times)) -> f64| median(pairs.iter().map(of));
    let (ours, theirs) = (peak(|(a, _)| a.peak_mb), peak(|(_, b)| b.peak_mb));
    println!("{:<8} {ours:>8.0}M {theirs:>8.0}M {:>7.3}", "memory", ours / theirs);
    json!({
        "batching": batching, "start": start, "pairs": pairs.len(), "one_process": cores == Cores::OneProcess,
        "seconds": stages, "peak_mb": { "ours": ours, "peer": theirs, "ratio": ours / theirs },
    })
}

/// The middle one of the values, or the mean of the two in the middle; NaN without values.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => values[n / 2],
        n => (values[n / 2 - 1] + values[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_ones() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0, 2.0, 3.0].into_iter()), 2.5);
    }

    #[test]
    fn processes_side_by_side_take_as_long_as_the_slower_one() {
        let times = |total: f64, peak_mb: f64| Times {
            seconds: BTreeMap::from([("total", total)]),
            peak_mb,
        };
        let both = times(2.0, 100.0).beside(&times(3.0, 150.0));
        assert_eq!((both.seconds["total"], both.peak_mb), (3.0, 250.0));
    }
}
