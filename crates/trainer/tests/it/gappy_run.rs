//! Whole runs with a scorer that has no score for some pictures, and what runs say about their rewards.

use burn::tensor::Device;
use rewards::pixel::{PixelScore, PixelStatistic};
use rewards::{Picture, RewardError, RewardSet, Scorer, TruncationReport};
use serde_json::{Value, json};
use trainer::run::Run;

use crate::toy_folder::{Recorder, ToyFolder};

/// What becomes of a picture's brightness: the scores depend on the number of prompts (3 in training, 5 in
/// evaluations), the picture's place, its prompt's and the brightness.
type Change = fn(usize, usize, usize, f64) -> f64;

/// Brightness, changed.
struct Changed {
    brightness: PixelScore,
    prompts: usize,
    change: Change,
}

impl Scorer for Changed {
    fn name(&self) -> &str {
        self.brightness.name()
    }

    fn description(&self) -> String {
        self.brightness.description()
    }

    fn prepare(&mut self, prompts: &[String]) -> Result<TruncationReport, RewardError> {
        self.prompts = prompts.len();
        self.brightness.prepare(prompts)
    }

    fn score(&self, pictures: &[Picture], prompts: &[usize]) -> Result<Vec<f64>, RewardError> {
        let mut scores = self.brightness.score(pictures, prompts)?;
        for (sample, score) in scores.iter_mut().enumerate() {
            *score = (self.change)(self.prompts, sample, prompts[sample], *score);
        }
        Ok(scores)
    }
}

fn run(toy: &ToyFolder, out: &str, resume: bool, settings: &[&str], change: Change) -> Result<Recorder, String> {
    let mut recorder = Recorder::default();
    let device = Device::flex();
    let opened = Run::open(toy.experiment(settings), &toy.path(out), resume, &device, &mut recorder);
    let changed = Changed {
        brightness: PixelScore::new("bright", PixelStatistic::Brightness),
        prompts: 0,
        change,
    };
    let rewards = RewardSet::new(vec![(Box::new(changed), 1.0, false)]).expect("a reward");
    let run = opened.map_err(|error| error.to_string())?.with_rewards(rewards);
    let mut run = run.map_err(|error| error.to_string())?;
    run.train(&mut recorder).map_err(|e| e.to_string())?;
    Ok(recorder)
}

/// In training, of 27 leaves of three prompts, the three leaves 9 to 11 below the first child of the second prompt.
/// In evaluations the prompt 3.
fn some(prompts: usize, sample: usize, prompt: usize, score: f64) -> f64 {
    match prompts {
        3 if (9..12).contains(&sample) => f64::NAN,
        5 if prompt == 3 => f64::NAN,
        _ => score,
    }
}

const TWO: &str = "train.iterations=2";

/// `drop-sample` trains on the other 24 leaves: the node above the three is not evaluated (3 of 3·(1 + 3) nodes less
/// one are left), every number is finite, and the drop is counted and named. The evaluation leaves the prompt out, of
/// its mean and of the change, and says which.
#[test]
fn dropped_samples_are_counted_and_named() {
    let toy = ToyFolder::new();
    let recorder = run(&toy, "run", false, &[TWO, "credit.non_finite_scores=drop-sample"], some).expect("a run");
    assert_eq!(recorder.iterations.len(), 2);
    for metrics in &recorder.iterations {
        for (name, expected) in [
            ("dropped_samples", 3.0),
            ("dropped_groups", 0.0),
            ("reward/bright/non_finite", 3.0),
            ("reward/bright/advantage_share", 1.0),
            ("leaves", 27.0),
            ("training_nodes", 11.0),
        ] {
            assert_eq!(metrics.get(name), expected, "{name}");
        }
        assert!(
            metrics.values.values().all(|value| value.is_finite()),
            "{:?}",
            metrics.values
        );
        assert!(metrics.get("grad_norm") > 0.0);
        let line = format!(
            "iteration {}: 3 of 27 leaves were dropped, because these rewards gave no finite score: `bright` for 3 \
             (first: reward `bright`, sample 9 of prompt {}: NaN)",
            metrics.iteration, metrics.prompts[1]
        );
        assert!(
            recorder.notes.contains(&line),
            "`{line}` is missing in {:?}",
            recorder.notes
        );
    }
    let evaluation = "evaluation: reward `bright` gave no finite score for 1 pictures; prompt 3 of the evaluation file, \
                      counted from 0, has none at all and is left out of its means";
    assert_eq!(recorder.notes.iter().filter(|note| *note == evaluation).count(), 2);

    let whole = toy.run("whole", false, &[TWO]).expect("a run");
    let records = toy.records("run");
    let text = String::from_utf8(toy.read("run/metrics.jsonl")).expect("UTF-8");
    assert!(!text.contains("null") && !text.contains("NaN"), "{text}");
    let first = &records[0];
    assert_eq!(
        (&first["eval/bright/non_finite"], &first["left_out"]),
        (&json!(1), &json!({"bright": [3]}))
    );
    // The untrained model's pictures are those of a run without gaps, so the mean is over four of the same five.
    let before = |out: &str| toy.records(out)[0]["eval/bright"].as_f64().expect("a number");
    assert_ne!(before("run"), before("whole"));
    assert!((before("run") - before("whole")).abs() < 0.2);
    assert!(
        !toy.records("whole")[0]
            .as_object()
            .expect("an object")
            .contains_key("left_out")
    );
    assert_eq!(whole.iterations[0].get("dropped_samples"), 0.0);
}

/// `drop-group` drops all nine leaves of the prompt, so that two prompts are trained on.
#[test]
fn dropped_groups_are_counted_and_named() {
    let toy = ToyFolder::new();
    let recorder = run(&toy, "run", false, &[TWO, "credit.non_finite_scores=drop-group"], some).expect("a run");
    for metrics in &recorder.iterations {
        let found = [
            "dropped_samples",
            "dropped_groups",
            "reward/bright/non_finite",
            "training_nodes",
        ];
        assert_eq!(found.map(|name| metrics.get(name)), [9.0, 1.0, 3.0, 8.0]);
        let named = format!("among them all leaves of prompt {}", metrics.prompts[1]);
        assert!(
            recorder.notes.iter().any(|note| note.contains(&named)),
            "{:?}",
            recorder.notes
        );
    }
}

/// An iteration of three prompts of which one is dropped is one of the other two: the objective's mean is over two
/// prompts, and scores, credit, update and the evaluation after it are the same. (Prompts are drawn in a fixed order, so
/// those of an iteration of two are the first two of an iteration of three.)
#[test]
fn a_dropped_prompt_might_as_well_not_have_been_drawn() {
    let toy = ToyFolder::new();
    let one_gap: Change = |prompts, sample, _, score| match (prompts, sample) {
        (3, 20) => f64::NAN,
        _ => score,
    };
    let rule = "credit.non_finite_scores=drop-group";
    let settings = [
        "train.iterations=1",
        "train.updates_per_iteration=2",
        "train.kl_beta=0.1",
    ];
    let three = run(&toy, "three", false, &[&settings[..], &[rule]].concat(), one_gap).expect("a run");
    let two = toy
        .run("two", false, &[&settings[..], &["prompts.per_iteration=2"]].concat())
        .expect("a run");
    let (found, expected) = (&three.iterations[0], &two.iterations[0]);
    assert_eq!(found.prompts[..2], expected.prompts);
    assert_eq!(
        (found.get("dropped_groups"), expected.get("dropped_groups")),
        (1.0, 0.0)
    );
    for (name, expected) in &expected.values {
        // These are of what was drawn, not of what was trained on.
        let drawn = [
            "leaves",
            "evaluations",
            "diversity",
            "dropped_groups",
            "dropped_samples",
        ];
        let is_other = |name: &str| {
            drawn.contains(&name)
                || name.starts_with("seconds")
                || name.starts_with("memory")
                || name.ends_with("non_finite")
        };
        let near = (found.get(name) - expected).abs() <= 1e-4 * expected.abs().max(1e-3);
        assert!(near || is_other(name), "{name}: {} and {expected}", found.get(name));
    }
    let change = |recorder: &Recorder| recorder.evaluations[1].rewards["bright"]["all"].change;
    assert!((change(&three) - change(&two)).abs() < 1e-4);
}

/// By default a score that is not finite stops the run, in an evaluation with the prompt of the evaluation file and in
/// training with that of the training file, before anything has changed.
#[test]
fn the_default_is_to_stop() {
    let toy = ToyFolder::new();
    let error = run(&toy, "run", false, &[TWO], some)
        .map(drop)
        .expect_err("an evaluation with a gap");
    assert!(error.contains("reward `bright`, sample 3 of prompt 3: NaN"), "{error}");
    let in_training: Change = |prompts, sample, _, score| match (prompts, sample) {
        (3, 10) => f64::NAN,
        _ => score,
    };
    let error = run(&toy, "again", false, &[TWO], in_training)
        .map(drop)
        .expect_err("an iteration with a gap");
    let first = toy
        .run("whole", false, &["train.iterations=1"])
        .expect("a run")
        .iterations[0]
        .prompts[1];
    assert!(
        error.contains(&format!("reward `bright`, sample 10 of prompt {first}: NaN")),
        "{error}"
    );
    assert!(error.contains("credit.non_finite_scores"), "{error}");
    assert_eq!(toy.records("again").len(), 1, "no iteration was recorded");
}

/// An iteration without any score is no silent step, whichever rule drops its leaves.
#[test]
fn an_iteration_of_which_nothing_is_left_stops_the_run() {
    let all: Change = |prompts, _, _, score| if prompts == 3 { f64::NAN } else { score };
    for rule in ["drop-sample", "drop-group"] {
        let toy = ToyFolder::new();
        let setting = format!("credit.non_finite_scores={rule}");
        let error = run(&toy, "run", false, &[TWO, &setting], all)
            .map(drop)
            .expect_err("nothing is left");
        assert!(
            error.contains("no leaf is left") && error.contains("27 leaves of 3 prompts"),
            "{error}"
        );
        assert_eq!(toy.records("run").len(), 1);
    }
}

/// Scores that are missing in the first evaluation are stored with it: a resumed run is the straight one.
#[test]
fn gaps_survive_a_resumption() {
    let toy = ToyFolder::new();
    let rule = "credit.non_finite_scores=drop-sample";
    run(
        &toy,
        "straight",
        false,
        &["train.iterations=4", "train.checkpoint_every=2", rule],
        some,
    )
    .expect("a run");
    run(&toy, "halves", false, &[TWO, rule], some).expect("the first half");
    run(&toy, "halves", true, &["train.iterations=4", rule], some).expect("the second half");
    let timeless = |out: &str| -> Vec<Value> {
        let mut records = toy.records(out);
        for record in &mut records {
            let object = record.as_object_mut().expect("an object");
            object.retain(|key, _| !key.starts_with("seconds") && !key.starts_with("memory"));
        }
        records
    };
    assert_eq!(timeless("straight"), timeless("halves"));
    for name in ["state.safetensors", "state.toml"] {
        let file = |out: &str| toy.read(&format!("{out}/checkpoints/last/{name}"));
        assert!(file("straight") == file("halves"), "{name} differs");
    }
}

/// Rewards that are always below 0 are as good as others: the best checkpoint is written and belongs to the greatest
/// mean, not to one above 0.
#[test]
fn negative_rewards_have_a_best() {
    let toy = ToyFolder::new();
    let text = String::from_utf8(toy.read("toy.toml")).expect("UTF-8");
    toy.write(
        "toy.toml",
        &text.replace("kind = \"brightness\"", "kind = \"jpeg-compressibility\""),
    );
    let recorder = toy.run("run", false, &["train.iterations=4"]).expect("a run");
    let means: Vec<f64> = recorder
        .evaluations
        .iter()
        .map(|e| e.rewards["bright"]["all"].mean)
        .collect();
    let best = means.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    assert!(best < 0.0, "{means:?}");
    assert!(toy.path("run/checkpoints/best/state.toml").is_file());
    let state = String::from_utf8(toy.read("run/checkpoints/last/state.toml")).expect("UTF-8");
    let state: toml::Table = toml::from_str(&state).expect("TOML");
    assert_eq!(state["best"].as_float(), Some(best));
}

/// Rewards of other names or weights than those of the configuration are not taken in their place.
#[test]
fn other_rewards_are_refused() {
    let toy = ToyFolder::new();
    let mut recorder = Recorder::default();
    let run = Run::open(
        toy.experiment(&[]),
        &toy.path("run"),
        false,
        &Device::flex(),
        &mut recorder,
    )
    .expect("a run");
    let other = PixelScore::new("dark", PixelStatistic::Brightness);
    let rewards = RewardSet::new(vec![(Box::new(other), 1.0, false)]).expect("a reward");
    let error = run
        .with_rewards(rewards)
        .map(drop)
        .expect_err("another name")
        .to_string();
    assert!(error.contains("1·dark") && error.contains("1·bright"), "{error}");
}

/// Of two rewards, each is reported on its own, and their shares of the advantage add up. One that is never trained on
/// has no part in it.
#[test]
fn rewards_are_reported_one_by_one() {
    let toy = ToyFolder::new();
    let settings = [
        "train.iterations=1",
        "rewards.contrast.kind=contrast",
        "rewards.contrast.weight=0.5",
        "rewards.size={kind=\"jpeg-compressibility\",eval_only=true}",
    ];
    let recorder = toy.run("run", false, &settings).expect("a run");
    let metrics = &recorder.iterations[0];
    let of = |reward: &str, what: &str| metrics.get(&format!("reward/{reward}{what}"));
    for reward in ["bright", "contrast"] {
        for what in ["", "/group_std", "/batch_std"] {
            assert!(of(reward, what) > 0.0, "{reward}{what}");
        }
        assert_eq!(
            (of(reward, "/zero_std_fraction"), of(reward, "/non_finite")),
            (0.0, 0.0)
        );
    }
    let shares = of("bright", "/advantage_share") + of("contrast", "/advantage_share");
    assert!((shares - 1.0).abs() < 1e-9, "{shares}");
    assert!(
        metrics.values.keys().all(|name| !name.contains("size")),
        "{:?}",
        metrics.values.keys()
    );
}

/// A reward that gives every picture the same score is told in every iteration and warned about in the third.
#[test]
fn a_reward_without_variance_is_told() {
    let toy = ToyFolder::new();
    let recorder = run(&toy, "run", false, &["train.iterations=3"], |_, _, _, _| 0.5).expect("a run");
    for metrics in &recorder.iterations {
        let line = format!(
            "iteration {}: reward `bright` has no variance in 3 of 3 groups",
            metrics.iteration
        );
        assert!(
            recorder.notes.contains(&line),
            "`{line}` is missing in {:?}",
            recorder.notes
        );
        assert_eq!(metrics.get("reward/bright/zero_std_fraction"), 1.0);
        assert_eq!(
            (metrics.get("loss"), metrics.get("reward/bright/advantage_share")),
            (0.0, 0.0)
        );
    }
    let warned = |note: &&String| note.starts_with("iteration 3: WARNING: reward `bright`");
    assert_eq!(recorder.notes.iter().filter(warned).count(), 1);
}

/// Every number that a run records is explained in the documentation.
#[test]
fn every_metric_is_documented() {
    let toy = ToyFolder::new();
    let settings = [
        "train.iterations=1",
        "prompts.eval_groups={head=[1,2]}",
        "credit.non_finite_scores=drop-sample",
    ];
    run(&toy, "run", false, &settings, some).expect("a run");
    let docs = include_str!("../../../../docs/metrics.md");
    for record in toy.records("run") {
        let object = record.as_object().expect("an object");
        for name in object.keys().filter(|name| name.as_str() != "kind") {
            let name = name.replace("/bright", "/<name>").replace("/head", "/<part>");
            // The statistics of a part are named once for all.
            let name = match name.split_once("/<part>") {
                Some((reward, _)) => format!("{reward}/<part>"),
                None => name,
            };
            let name = match name.split_once("/step_") {
                Some((kind, _)) => format!("{kind}/step_<i>"),
                None => name,
            };
            assert!(
                docs.contains(&format!("`{name}`")),
                "docs/metrics.md does not explain `{name}`"
            );
        }
    }
}
