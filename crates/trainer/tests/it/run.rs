//! Whole runs on a toy pipeline: that they learn, that they report what they did, that they can be resumed.

use std::path::Path;

use serde_json::Value;
use trainer::files::RunFolder;
use trainer::run::Run;

use crate::toy_folder::{Recorder, ToyFolder};

/// A toy run learns: the brightness of held-out prompts' pictures rises well beyond its standard error.
#[test]
fn a_toy_run_reaches_its_reward() {
    let toy = ToyFolder::new();
    let settings = [
        "train.iterations=60",
        "evaluation.every=60",
        "train.checkpoint_every=100",
        "train.learning_rate=0.03",
    ];
    let recorder = toy.run("run", false, &settings).expect("a run");
    let [before, after] = &recorder.evaluations[..] else {
        panic!("{} evaluations, not 2", recorder.evaluations.len());
    };
    let (before, after) = (before.rewards["bright"]["all"], after.rewards["bright"]["all"]);
    println!("{before:?}\n{after:?}");
    // Two deviations between the pictures of the untrained model.
    let far = 2.0 * before.standard_error * 5f64.sqrt();
    assert!(
        after.change > far.max(0.04),
        "brightness went from {} to {}",
        before.mean,
        after.mean
    );
    assert!(after.change > 5.0 * after.change_standard_error);
    assert!((after.mean - before.mean - after.change).abs() < 1e-9);
}

/// Every iteration reports what the plan promised: evaluations, leaves, training nodes, a first ratio of 1, and with
/// one update per iteration a ratio that stays there. Prompts and windows differ by iteration.
#[test]
fn iterations_report_what_they_did() {
    let toy = ToyFolder::new();
    let recorder = toy.run("run", false, &["train.iterations=5"]).expect("a run");
    let experiment = toy.experiment(&[]);
    assert_eq!(recorder.iterations.len(), 5);
    for (i, metrics) in recorder.iterations.iter().enumerate() {
        assert_eq!(metrics.iteration, i as u64 + 1);
        let plan = experiment.plan_at(metrics.window[0]).expect("a plan");
        assert_eq!(metrics.window, plan.stochastic_steps().collect::<Vec<_>>());
        let counts = plan.counts(3).expect("counts");
        for (name, expected) in [
            ("evaluations", counts.evaluations),
            ("leaves", counts.leaves),
            ("training_nodes", counts.training_nodes),
        ] {
            assert_eq!(metrics.get(name), expected as f64, "{name}");
        }
        assert!(metrics.get("first_ratio_error") <= 1e-5);
        assert!((metrics.get("ratio_mean") - 1.0).abs() <= 1e-5);
        assert!(metrics.get("grad_norm") > 0.0 && metrics.get("parameter_change") > 0.0);
        assert_eq!(metrics.prompts.len(), 3);
    }
    let prompts: Vec<_> = recorder.iterations.iter().map(|m| m.prompts.clone()).collect();
    let mut once: Vec<usize> = prompts.concat();
    assert_ne!(prompts[0], prompts[1]);
    once.truncate(5);
    once.sort_unstable();
    assert_eq!(once, [0, 1, 2, 3, 4], "every prompt once before any twice");
    assert!(
        recorder
            .notes
            .iter()
            .any(|note| note.contains("the ratio is 1 at every update")),
        "{:?}",
        recorder.notes
    );
    assert_eq!(
        recorder.evaluations.iter().map(|e| e.iteration).collect::<Vec<_>>(),
        [0, 2, 4, 5]
    );
}

/// With several updates per iteration the first ratio is 1 and the last is not, every node is trained once, and the
/// average of the parameters moves with every optimiser step.
#[test]
fn several_updates_move_the_ratio() {
    let toy = ToyFolder::new();
    let settings = [
        "train.iterations=2",
        "train.updates_per_iteration=3",
        "train.ema_decay=0.5",
    ];
    let recorder = toy.run("run", false, &settings).expect("a run");
    for metrics in &recorder.iterations {
        assert!(metrics.get("first_ratio_error") <= 1e-5);
        assert!(
            (metrics.get("ratio_max") - 1.0)
                .abs()
                .max((metrics.get("ratio_min") - 1.0).abs())
                > 1e-5
        );
        let counts = toy
            .experiment(&[])
            .plan_at(metrics.window[0])
            .expect("a plan")
            .counts(3)
            .expect("counts");
        assert_eq!(metrics.get("training_nodes"), counts.training_nodes as f64);
    }
    let state = String::from_utf8(toy.read("run/checkpoints/last/state.toml")).expect("UTF-8");
    assert!(
        state.contains("iteration = 2\n") && state.contains("optimiser_steps = 6\n"),
        "{state}"
    );
}

/// The whole configuration lies beside the run and opens to the same one.
#[test]
fn a_run_leaves_its_files() {
    let toy = ToyFolder::new();
    toy.run("run", false, &["train.iterations=1", "train.ema_decay=0.9"])
        .expect("a run");
    let files = [
        "config.toml",
        "metrics.jsonl",
        "samples/iteration-000000.png",
        "samples/iteration-000001.png",
        "checkpoints/last/state.toml",
        "checkpoints/last/state.safetensors",
        "checkpoints/last/adapter_model.safetensors",
        "checkpoints/last/adapter_config.json",
        "checkpoints/last/pytorch_lora_weights.safetensors",
        "checkpoints/last/raw/adapter_model.safetensors",
        "checkpoints/best/adapter_model.safetensors",
    ];
    for file in files {
        assert!(toy.path("run").join(file).is_file(), "{file} is missing");
    }
    let scratch = std::fs::read_dir(toy.path("run/checkpoints"))
        .expect("the folder")
        .count();
    assert_eq!(scratch, 2, "only `last` and `best`, no scratch folders");
    let resolved = trainer::config::Experiment::open(&toy.path("run/config.toml"), &[]).expect("a valid configuration");
    assert_eq!(resolved.config.train.ema_decay, Some(0.9));
    let kinds: Vec<_> = toy
        .records("run")
        .iter()
        .map(|r| (r["kind"].clone(), r["iteration"].clone()))
        .collect();
    let expected: [(Value, Value); 3] = [
        ("eval".into(), 0.into()),
        ("iteration".into(), 1.into()),
        ("eval".into(), 1.into()),
    ];
    assert_eq!(kinds, expected);
}

/// The published adapter is what was evaluated: another run that starts from it begins at the numbers at which the
/// first one ended.
#[test]
fn published_adapter_gives_the_evaluated_pictures() {
    let toy = ToyFolder::new();
    let first = toy
        .run("run", false, &["train.iterations=3", "train.ema_decay=0.5"])
        .expect("a run");
    let path = format!("lora.path={}", toy.path("run/checkpoints/last").display());
    let second = toy.run("again", false, &["train.iterations=1", &path]).expect("a run");
    let mean = |recorder: &Recorder, at: usize| recorder.evaluations[at].rewards["bright"]["all"].mean;
    assert!((mean(&first, 2) - mean(&second, 0)).abs() < 1e-6);
    assert_ne!(mean(&first, 0), mean(&first, 2));
}

fn same_file(toy: &ToyFolder, a: &str, b: &str, name: &str) {
    assert!(
        toy.read(&format!("{a}/{name}")) == toy.read(&format!("{b}/{name}")),
        "{name} differs"
    );
}

/// Records without what the clock says.
fn timeless(records: Vec<Value>) -> Vec<Value> {
    let timeless = |mut record: Value| {
        if let Some(object) = record.as_object_mut() {
            object.retain(|key, _| !key.starts_with("seconds") && !key.starts_with("memory"));
        }
        record
    };
    records.into_iter().map(timeless).collect()
}

const FOUR: [&str; 3] = ["train.iterations=4", "train.checkpoint_every=2", "train.ema_decay=0.9"];

/// Two iterations, a new process, two more: weights, moments, average, counters, prompts, windows and metrics are those
/// of four straight iterations, bit for bit.
#[test]
fn resumed_run_is_the_straight_run() {
    let toy = ToyFolder::new();
    toy.run("straight", false, &FOUR).expect("a run");
    toy.run("halves", false, &["train.iterations=2", FOUR[1], FOUR[2]])
        .expect("the first half");
    let second = toy.run("halves", true, &FOUR).expect("the second half");
    assert_eq!(
        second.iterations.iter().map(|m| m.iteration).collect::<Vec<_>>(),
        [3, 4]
    );
    for name in [
        "state.safetensors",
        "state.toml",
        "adapter_model.safetensors",
        "raw/adapter_model.safetensors",
    ] {
        same_file(&toy, "straight", "halves", &format!("checkpoints/last/{name}"));
    }
    same_file(&toy, "straight", "halves", "checkpoints/best/state.safetensors");
    assert_eq!(timeless(toy.records("straight")), timeless(toy.records("halves")));
    let sizes = |out: &str| toy.read(&format!("{out}/checkpoints/last/state.safetensors")).len();
    assert_eq!(
        sizes("straight"),
        sizes("halves"),
        "the state does not grow by being resumed"
    );
}

/// A run that dies after its last checkpoint, in the middle of a line, loses only what came after the checkpoint.
#[test]
fn records_after_the_checkpoint_are_dropped() {
    let toy = ToyFolder::new();
    toy.run("straight", false, &FOUR).expect("a run");
    toy.run("killed", false, &["train.iterations=2", FOUR[1], FOUR[2]])
        .expect("the first half");
    let mut metrics = toy.read("killed/metrics.jsonl");
    metrics.extend_from_slice(b"{\"kind\":\"iteration\",\"iteration\":3,\"loss\":1.0}\n{\"kind\":\"iter");
    std::fs::write(toy.path("killed/metrics.jsonl"), metrics).expect("a written file");
    toy.run("killed", true, &FOUR).expect("the second half");
    assert_eq!(timeless(toy.records("straight")), timeless(toy.records("killed")));
    same_file(&toy, "straight", "killed", "checkpoints/last/state.safetensors");
}

/// Evaluating more often changes neither the raw weights nor the moments nor the average.
#[test]
fn evaluations_leave_the_training_alone() {
    let toy = ToyFolder::new();
    toy.run("seldom", false, &["evaluation.every=100", "train.ema_decay=0.9"])
        .expect("a run");
    toy.run("often", false, &["evaluation.every=1", "train.ema_decay=0.9"])
        .expect("a run");
    same_file(&toy, "seldom", "often", "checkpoints/last/state.safetensors");
}

/// The micro-batch is a memory knob: it needs no divisibility and changes the result by rounding only.
#[test]
fn micro_batch_needs_no_divisibility() {
    let toy = ToyFolder::new();
    let mean = |out: &str, setting: &str| {
        let recorder = toy.run(out, false, &["train.iterations=2", setting]).expect("a run");
        (
            recorder.evaluations[1].rewards["bright"]["all"].mean,
            recorder.iterations[0].get("loss"),
        )
    };
    let (a, b) = (
        mean("whole", "train.micro_batch=64"),
        mean("fives", "train.micro_batch=5"),
    );
    assert!((a.0 - b.0).abs() < 1e-3 && (a.1 - b.1).abs() < 1e-5, "{a:?} and {b:?}");
}

/// All weights can be trained as well; the transformer is then published whole and can be used in place of the old.
#[test]
fn all_weights_can_be_trained() {
    let toy = ToyFolder::new();
    let text = String::from_utf8(toy.read("toy.toml")).expect("UTF-8");
    toy.write(
        "toy.toml",
        &text
            .replace("[lora]\nrank = 4\nalpha = 8\n", "")
            .replace("1e-2", "1e-3"),
    );
    let first = toy.run("run", false, &["train.iterations=2"]).expect("a run");
    let name = "diffusion_pytorch_model.safetensors";
    std::fs::copy(
        toy.path("run/checkpoints/last").join(name),
        toy.path("model/transformer").join(name),
    )
    .expect("copied");
    let second = toy
        .run("again", false, &["train.iterations=1"])
        .expect("the published file is whole");
    let mean = |recorder: &Recorder, at: usize| recorder.evaluations[at].rewards["bright"]["all"].mean;
    assert_eq!(mean(&first, 1), mean(&second, 0));
}

#[track_caller]
fn check_refused(toy: &ToyFolder, out: &str, resume: bool, settings: &[&str], expected: &[&str]) {
    let Err(message) = toy.run(out, resume, settings) else {
        panic!("the run was not refused")
    };
    assert!(!message.contains('\n'), "more than one line: {message}");
    for part in expected {
        assert!(message.contains(part), "`{part}` is missing in: {message}");
    }
}

/// A folder that holds a run is not written over, and one that holds none cannot be resumed.
#[test]
fn folders_are_not_mixed_up() {
    let toy = ToyFolder::new();
    toy.run("run", false, &["train.iterations=1"]).expect("a run");
    check_refused(
        &toy,
        "run",
        false,
        &[],
        &["run: holds a run already", "--resume", "--out"],
    );
    check_refused(&toy, "nothing", true, &[], &["no checkpoint to resume from"]);
}

/// A model part that is missing or damaged stops the run before anything is written.
#[test]
fn damaged_models_are_refused() {
    let damage = |file: &str, bytes: Option<&[u8]>, expected: &[&str]| {
        let toy = ToyFolder::new();
        let path = toy.path("model").join(file);
        match bytes {
            Some(bytes) => std::fs::write(&path, bytes).expect("written"),
            None => std::fs::remove_file(&path).expect("removed"),
        }
        check_refused(&toy, "run", false, &[], expected);
        assert!(!Path::new(&toy.path("run/metrics.jsonl")).exists());
    };
    damage(
        "transformer/diffusion_pytorch_model.safetensors",
        None,
        &["transformer", "no diffusion_pytorch_model.safetensors"],
    );
    damage(
        "vae/diffusion_pytorch_model.safetensors",
        Some(b"<html>"),
        &["vae", "an HTML page"],
    );
    damage(
        "text_encoder/model.safetensors",
        Some(b""),
        &["text_encoder", "an empty file"],
    );
    damage("vae/config.json", Some(b"{"), &["vae", "config.json"]);
    damage("tokenizer/tokenizer.json", Some(b"{"), &["tokenizer.json"]);
}

/// A session that wants an average begins one and says so; one that wants none drops it and says so. Either way the
/// next checkpoint can be resumed.
#[test]
fn average_may_change_between_sessions() {
    let toy = ToyFolder::new();
    let session = |iterations: &str, settings: &[&str]| {
        let settings = [&[iterations], settings].concat();
        toy.run("run", iterations != "train.iterations=1", &settings)
            .expect("a session")
            .notes
            .join("\n")
    };
    let average = |notes: &str| notes.contains("average of the parameters");
    assert!(!average(&session("train.iterations=1", &[])));
    assert!(session("train.iterations=2", &["train.ema_decay=0.9"]).contains("begins at optimiser step 1"));
    assert!(!average(&session("train.iterations=3", &["train.ema_decay=0.9"])));
    assert!(session("train.iterations=4", &[]).contains("is dropped"));
    assert!(!average(&session("train.iterations=5", &[])));
}

/// A run is not resumed against an evaluation file of another length, with which no comparison makes sense.
#[test]
fn evaluation_file_must_stay_the_same() {
    let toy = ToyFolder::new();
    toy.run("run", false, &["train.iterations=1"]).expect("a run");
    toy.write("eval.txt", "only one\n");
    check_refused(
        &toy,
        "run",
        true,
        &["train.iterations=2"],
        &["evaluated with prompts = 5", "would be 1", "--out"],
    );
}

/// Nor with another way of drawing: the change since the first evaluation would be that of the drawing.
#[test]
fn evaluations_must_be_made_alike() {
    let toy = ToyFolder::new();
    toy.run("run", false, &["train.iterations=1"]).expect("a run");
    let settings = ["train.iterations=2", "evaluation.seed=9"];
    check_refused(
        &toy,
        "run",
        true,
        &settings,
        &["evaluated with seed = 0", "would be 9", "--out"],
    );
}

/// Two runs never write into one folder: the second finds it locked, and the lock ends with its process or value.
#[test]
fn a_folder_has_one_writer() {
    let toy = ToyFolder::new();
    let path = toy.path("shared");
    let mut first = RunFolder::open(&path, false).expect("a free folder");
    let mut second = RunFolder::open(&path, false).expect("still free");
    first.create(false).expect("the lock");
    let message = second.create(false).expect_err("locked").to_string();
    assert!(message.contains("is being written by another run"), "{message}");
    drop(first);
    second.create(false).expect("free again");
}

/// A checkpoint of another adapter rank does not fit and says why.
#[test]
fn checkpoint_of_another_rank_is_refused() {
    let toy = ToyFolder::new();
    toy.run("run", false, &["train.iterations=1"]).expect("a run");
    check_refused(
        &toy,
        "run",
        true,
        &["lora.rank=2"],
        &["state.safetensors", "has shape", "rank"],
    );
    // The refusal is no crash in the middle: the checkpoint still serves its own configuration.
    let experiment = toy.experiment(&["train.iterations=1"]);
    let mut recorder = Recorder::default();
    Run::open(
        experiment,
        &toy.path("run"),
        true,
        &burn::tensor::Device::flex(),
        &mut recorder,
    )
    .expect("resumed");
}
