//! `treegrpo train` and `treegrpo report`

use serde_json::Value;

use crate::support::{Folder, asset};

fn records(folder: &Folder, run: &str) -> Vec<Value> {
    let text = folder.read(&format!("{run}/metrics.jsonl"));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_run_leaves_what_the_design_says_and_can_go_on() {
    let folder = Folder::new();
    let told = folder.succeed(&["train", "tiny.toml"]);
    for part in [
        "run in runs/tiny",
        "evaluation before the first iteration",
        "iteration 1/2  window",
        "evaluation after iteration 2 of 2",
        "clip (trained)",
        "size (held out)",
        "unseen objects",
        "runs/tiny/checkpoints/best",
        "runs/tiny/report.html",
    ] {
        assert!(told.contains(part), "no `{part}` in:\n{told}");
    }
    for file in [
        "config.toml",
        "report.html",
        "samples/iteration-000000.png",
        "samples/iteration-000002.png",
        "checkpoints/last/adapter_model.safetensors",
        "checkpoints/last/adapter_config.json",
        "checkpoints/last/pytorch_lora_weights.safetensors",
        "checkpoints/best/adapter_model.safetensors",
    ] {
        assert!(folder.path("runs/tiny").join(file).is_file(), "no {file}");
    }
    let events = folder.path("runs/tiny").read_dir().unwrap();
    let is_events = |name: &str| name.starts_with("events.out.tfevents.");
    assert!(
        events
            .into_iter()
            .any(|e| is_events(&e.unwrap().file_name().display().to_string()))
    );

    let all = records(&folder, "runs/tiny");
    let kinds: Vec<&str> = all.iter().map(|r| r["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["eval", "iteration", "iteration", "eval"]);
    for name in [
        "reward/clip",
        "approx_kl",
        "clip_fraction",
        "ratio_min",
        "ratio_mean",
        "ratio_max",
        "zero_std_fraction",
        "grad_norm",
        "ess",
        "evaluations",
        "seconds/rollout",
        "seconds/total",
        "window",
        "prompts",
    ] {
        assert!(!all[1][name].is_null(), "no {name}");
    }
    for name in [
        "eval/clip",
        "eval/size",
        "eval/clip/unseen objects",
        "eval/clip/change_standard_error",
        "settings",
    ] {
        assert!(!all[3][name].is_null(), "no {name}");
    }

    // Once more with the defaults: the first run stays as it is.
    let again = folder.succeed(&["train", "tiny.toml", "--set", "train.iterations=1"]);
    assert!(again.contains("run in runs/tiny-2"), "{again}");
    assert_eq!(records(&folder, "runs/tiny").len(), 4);
    folder.fail(
        &["train", "tiny.toml", "--out", "runs/tiny"],
        &["runs/tiny", "--resume", "--out"],
    );

    // A finished run goes on when it is given more iterations, and only then.
    let resume = ["train", "tiny.toml", "--resume", "--out", "runs/tiny", "--set"];
    folder.succeed(&[&resume[..], &["train.iterations=2"]].concat());
    assert_eq!(records(&folder, "runs/tiny").len(), 4);
    folder.succeed(&[&resume[..], &["train.iterations=3"]].concat());
    let iterations: Vec<u64> = records(&folder, "runs/tiny")
        .iter()
        .map(|r| r["iteration"].as_u64().unwrap())
        .collect();
    assert_eq!(iterations, [0, 1, 2, 2, 3, 3]);
    let resumed = folder.succeed(&["train", "tiny.toml", "--resume", "--set", "train.iterations=1"]);
    assert!(
        resumed.contains("run in runs/tiny-2"),
        "the newest run goes on: {resumed}"
    );

    // The adapter is one that `generate` reads.
    let model = asset("");
    folder.succeed(&[
        "generate",
        "--model",
        &model,
        "--adapter",
        "runs/tiny/checkpoints/best",
        "--prompt",
        "flat icon of a cat",
        "--steps",
        "1",
        "--out",
        "a.png",
    ]);

    // The page can be written again, also for a run whose last line was cut off, and needs nothing beside itself.
    let metrics = folder.read("runs/tiny/metrics.jsonl");
    folder.write("runs/tiny/metrics.jsonl", format!("{metrics}{{\"kind\": \"iter"));
    folder.succeed(&["report", "runs/tiny"]);
    let page = folder.read("runs/tiny/report.html");
    for part in [
        "clip (trained)",
        "size (held out)",
        "<svg",
        "data:image/png;base64,",
        "kind = ",
    ] {
        assert!(page.contains(part), "no `{part}`");
    }
    assert!(
        !page.contains("http") && !page.contains("NaN"),
        "the page asks for something outside, or shows NaN"
    );
}

#[test]
fn the_help_and_the_version_are_printed() {
    let folder = Folder::new();
    assert!(folder.succeed(&["--version"]).starts_with("treegrpo "));
    for command in ["train", "plan", "generate", "score", "report"] {
        assert!(folder.succeed(&["--help"]).contains(command));
        assert!(folder.succeed(&[command, "--help"]).contains("Usage: treegrpo"));
    }
}
