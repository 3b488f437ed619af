//! Configurations: what is accepted, and for everything else one line that names file, line or key, and the fix.

use std::path::Path;

use tempfile::TempDir;
use trainer::config::{ConfigError, Experiment};
use trainer::gaps::NonFiniteScores;
use tree_core::Plan;

const BASE: &str = r#"[model]
path = "MODEL"

[prompts]
train = "PROMPTS"
eval = "PROMPTS"
per_iteration = 2

[sampling]
steps = 5

[tree]
children = 2
window = 2

[rewards.bright]
kind = "brightness"

[train]
iterations = 3

[lora]
rank = 2
alpha = 4
"#;

/// A folder with a model that is not one, three prompts and the configuration.
struct Files(TempDir);

impl Files {
    fn new(text: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let model = dir.path().join("model");
        std::fs::create_dir(&model).expect("a folder");
        std::fs::write(model.join("model_index.json"), "{}").expect("written");
        let prompts = dir.path().join("prompts.txt");
        std::fs::write(&prompts, "a cat\na dog\na bird\n").expect("written");
        let escaped = |path: &Path| path.display().to_string().replace('\\', "\\\\");
        let text = text
            .replace("MODEL", &escaped(&model))
            .replace("PROMPTS", &escaped(&prompts));
        std::fs::write(dir.path().join("toy.toml"), text).expect("written");
        Self(dir)
    }

    fn open(&self, settings: &[&str]) -> Result<Experiment, ConfigError> {
        let settings: Vec<String> = settings.iter().map(|s| (*s).to_owned()).collect();
        Experiment::open(&self.0.path().join("toy.toml"), &settings)
    }
}

#[track_caller]
fn check_message(result: Result<Experiment, ConfigError>, expected: &[&str]) {
    let message = match result {
        Ok(_) => panic!("accepted, but `{expected:?}` was expected"),
        Err(error) => error.to_string(),
    };
    assert!(!message.contains('\n'), "more than one line: {message}");
    for part in expected {
        assert!(message.contains(part), "`{part}` is missing in: {message}");
    }
}

/// The base configuration with one text replaced must be refused.
#[track_caller]
fn check_refused(from: &str, to: &str, expected: &[&str]) {
    assert!(BASE.contains(from), "the base has no `{from}`");
    check_message(
        Files::new(&BASE.replacen(from, to, 1)).open(&[]),
        &[expected, &["toy.toml"]].concat(),
    );
}

/// The base configuration with one override must be refused.
#[track_caller]
fn check_setting_refused(setting: &str, expected: &[&str]) {
    check_message(Files::new(BASE).open(&[setting]), expected);
}

/// The base is accepted, with the defaults that its sections document.
#[test]
fn base_is_accepted() {
    let experiment = Files::new(BASE).open(&[]).expect("a valid configuration");
    assert_eq!(experiment.train_prompts.prompts, ["a cat", "a dog", "a bird"]);
    assert_eq!(experiment.starts(), 3);
    assert_eq!(
        experiment.plan_at(1).expect("a plan"),
        Plan::windowed(5, &[1, 2], 2, 1).expect("a plan")
    );
    // An adapter learns at another rate than all weights do.
    assert_eq!(experiment.optimiser.learning_rate, 3e-4);
    let all_weights = BASE.replace("[lora]\nrank = 2\nalpha = 4\n", "");
    assert_eq!(
        Files::new(&all_weights)
            .open(&[])
            .expect("a valid configuration")
            .optimiser
            .learning_rate,
        1e-5
    );
}

/// Keys that do not exist are named with their line and the key that was probably meant.
#[test]
fn unknown_keys_are_named() {
    check_refused(
        "iterations = 3",
        "iteration = 3",
        &["line 20", "`iteration`", "did you mean `iterations`?"],
    );
    check_refused(
        "[sampling]",
        "[samplng]",
        &["line 9", "`samplng`", "did you mean `sampling`?"],
    );
    check_refused(
        "kind = \"brightness\"",
        "kind = \"brightness\"\nwieght = 2.0",
        &["line 18", "`weight`?"],
    );
    check_refused("rank = 2", "rnk = 2", &["line 23", "`rank`"]);
    check_refused("steps = 5", "steps = 5\nzzz = 1", &["line 11", "`zzz`"]);
    check_refused(
        "[tree]",
        "[tree]\nwindow_law = \"geometrical\"",
        &["line 13", "did you mean `geometric`?"],
    );
}

/// A value of the wrong type is named with its line, and so is a file that is no TOML.
#[test]
fn wrong_types_are_named() {
    check_refused("iterations = 3", "iterations = \"three\"", &["line 20", "three"]);
    check_refused("iterations = 3", "iterations = 2.5", &["line 20", "2.5"]);
    check_refused("iterations = 3", "iterations = -3", &["line 20", "-3"]);
    check_refused("rank = 2", "rank = [2]", &["line 23"]);
    check_refused("steps = 5", "steps = ", &["line 10"]);
    check_refused("steps = 5", "steps = 5\nsteps = 6", &["line 11", "duplicate"]);
    check_refused("[prompts]\ntrain = \"PROMPTS\"", "[prompts]", &["line 4", "`train`"]);
    check_refused("[rewards.bright]\nkind = \"brightness\"", "", &["`rewards`"]);
}

/// A line number survives an override elsewhere, and Windows line ends do not shift it.
#[test]
fn lines_are_those_of_the_file() {
    let misspelt = BASE.replacen("iterations = 3", "iteration = 3", 1);
    check_message(
        Files::new(&misspelt).open(&["sampling.steps=6"]),
        &["toy.toml, line 20", "did you mean `iterations`?"],
    );
    check_message(
        Files::new(&misspelt.replace('\n', "\r\n")).open(&[]),
        &["line 20", "`iteration`"],
    );
    let valid = Files::new(&BASE.replace('\n', "\r\n")).open(&[]);
    assert_eq!(valid.expect("a valid configuration").config.train.iterations, 3);
}

/// Trees that cannot be grown or cannot teach.
#[test]
fn impossible_trees_are_refused() {
    check_refused("window = 2", "window = 5", &["tree.window", "is 5", "at most 4"]);
    check_refused("window = 2", "window = 0", &["tree.window", "use 1 or more"]);
    check_refused("children = 2", "children = 0", &["tree.children", "use 2 or more"]);
    check_refused(
        "children = 2",
        "children = 1",
        &["tree.children", "one leaf per prompt", "use 2 or more"],
    );
    check_refused(
        "children = 2",
        "children = 2\nroots = 0",
        &["tree.roots", "at least one tree"],
    );
    let fixed = "window = 2\nwindow_law = \"fixed\"";
    check_refused("window = 2", fixed, &["tree.window_start", "is missing"]);
    check_refused(
        "window = 2",
        &format!("{fixed}\nwindow_start = 3"),
        &["tree.window_start", "at step 2 at the latest, not at 3"],
    );
    check_refused(
        "window = 2",
        "window = 2\nwindow_ratio = 1.0",
        &["tree.window_ratio", "between 0 and 1"],
    );
    check_refused("window = 2", "window = 40\nroots = 1", &["tree.window", "is 40"]);
    // Chains are trees of one child: several roots make them comparable.
    Files::new(&BASE.replace("children = 2", "children = 1\nroots = 4"))
        .open(&[])
        .expect("four chains");
}

/// A setting of a choice that was not made is told, so that an override of the choice needs no second edit.
#[test]
fn idle_settings_are_told() {
    let experiment = Files::new(BASE)
        .open(&["tree.window_start=1"])
        .expect("a valid configuration");
    let [line] = &experiment.idle_settings[..] else {
        panic!("{:?}", experiment.idle_settings)
    };
    assert!(
        line.contains("tree.window_start has no effect") && line.contains("\"fixed\""),
        "{line}"
    );
    assert!(
        Files::new(BASE)
            .open(&[])
            .expect("a valid configuration")
            .idle_settings
            .is_empty()
    );
}

/// The last start of the window is the last that leaves a deterministic step.
#[test]
fn window_may_reach_up_to_the_last_step() {
    let widest = Files::new(BASE)
        .open(&["tree.window=4"])
        .expect("a valid configuration");
    assert_eq!(widest.starts(), 1);
    let fixed = ["tree.window_law=fixed", "tree.window_start=2"];
    let last = Files::new(BASE).open(&fixed).expect("a valid configuration");
    let start = last.window_law.draw(5, 2, 0, 0.9).expect("a start");
    assert_eq!(
        last.plan_at(start)
            .expect("a plan")
            .stochastic_steps()
            .collect::<Vec<_>>(),
        [2, 3]
    );
}

/// Sampling that makes no sense.
#[test]
fn impossible_sampling_is_refused() {
    check_refused("steps = 5", "steps = 1", &["sampling.steps", "2 or more"]);
    check_refused("steps = 5", "steps = 2000", &["sampling.steps", "at most 1000"]);
    check_refused("steps = 5", "steps = 5\nguidance = 0.5", &["sampling.guidance", "0.5"]);
    check_refused("steps = 5", "steps = 5\nguidance = nan", &["sampling.guidance"]);
    check_refused(
        "steps = 5",
        "steps = 5\nnoise_level = 0.0",
        &["sampling.noise_level", "positive"],
    );
    check_refused(
        "steps = 5",
        "steps = 5\nkernel = \"ode\"",
        &["sampling.kernel", "deterministic", "flow-sde"],
    );
    check_refused(
        "steps = 5",
        "steps = 5\nkernel = \"ddim\"",
        &["sampling.kernel", "predict noise"],
    );
    check_refused(
        "steps = 5",
        "steps = 5\nkernel = \"flow_sde\"",
        &["line 11", "did you mean `flow-sde`?"],
    );
}

/// Training settings that make no sense.
#[test]
fn impossible_training_is_refused() {
    let with =
        |line: &str, expected: &[&str]| check_refused("iterations = 3", &format!("iterations = 3\n{line}"), expected);
    check_refused("iterations = 3", "iterations = 0", &["train.iterations", "1 or more"]);
    check_refused(
        "per_iteration = 2",
        "per_iteration = 0",
        &["prompts.per_iteration", "1 or more"],
    );
    with("updates_per_iteration = 0", &["train.updates_per_iteration"]);
    with("micro_batch = 0", &["train.micro_batch"]);
    with("checkpoint_every = 0", &["train.checkpoint_every"]);
    with("learning_rate = 0.0", &["train.learning_rate", "positive"]);
    with("learning_rate = inf", &["train.learning_rate"]);
    with("gradient_clip = -1.0", &["train.gradient_clip"]);
    with("weight_decay = -1.0", &["train.weight_decay"]);
    with("kl_beta = -0.1", &["train.kl_beta", "0 (off)"]);
    with("betas = [0.9, 1.0]", &["train.betas", "0..1"]);
    with("ema_decay = 1.0", &["train.ema_decay", "below 1"]);
    with("clip_range = 1e-6", &["train.clip_range", "train.ratio_limit"]);
    with("clip_range = 1.5", &["train", "between 0 and 1"]);
    with("advantage_clamp = 0.0", &["train", "advantage clamp"]);
    check_refused("rank = 2", "rank = 0", &["lora.rank", "at least 1"]);
    check_refused("alpha = 4", "alpha = 0", &["lora.alpha", "positive"]);
}

/// Paths that lead nowhere are shown in full.
#[test]
fn missing_files_are_named() {
    let here = std::env::current_dir()
        .expect("a current folder")
        .join("no/such")
        .display()
        .to_string();
    check_refused("\"MODEL\"", "\"no/such\"", &["model.path", &here, "diffusers"]);
    check_refused(
        "path = \"MODEL\"",
        "path = \".\"",
        &["model.path", "no model_index.json"],
    );
    check_message(
        Files::new(&BASE.replacen("\"PROMPTS\"", "\"no/such\"", 1)).open(&[]),
        &[&here, "one prompt per line"],
    );
    let gone = Experiment::open(Path::new("no/such"), &[]);
    check_message(gone, &[&here, "configs/emoji.toml"]);
}

/// Rewards that do not exist, have no model or cannot be weighed.
#[test]
fn bad_rewards_are_refused() {
    check_refused(
        "\"brightness\"",
        "\"britghness\"",
        &["line 17", "no reward kind `britghness`", "`brightness`"],
    );
    check_refused(
        "kind = \"brightness\"",
        "kind = \"brightness\"\neval_only = true",
        &["rewards"],
    );
    check_refused(
        "kind = \"brightness\"",
        "kind = \"brightness\"\nweight = 0.0",
        &["rewards", "weight"],
    );
    check_refused(
        "kind = \"brightness\"",
        "kind = \"brightness\"\nweight = nan",
        &["rewards", "weight"],
    );
    check_refused("kind = \"brightness\"", "", &["line 16", "`kind`"]);
}

/// Parts of the evaluation file must lie in it.
#[test]
fn evaluation_groups_lie_in_the_file() {
    let with = |range: &str| format!("iterations = 3\n\n[prompts.eval_groups]\nhead = {range}");
    for range in ["[0, 1]", "[2, 1]", "[1, 4]"] {
        check_refused(
            "iterations = 3",
            &with(range),
            &["prompts.eval_groups", "`head`", "1 to 3"],
        );
    }
    Files::new(&BASE.replacen("iterations = 3", &with("[1, 3]"), 1))
        .open(&[])
        .expect("the whole file");
}

/// Evaluation settings that make no sense.
#[test]
fn impossible_evaluation_is_refused() {
    let with = |line: &str, key: &str| check_refused("[lora]", &format!("[evaluation]\n{line}\n\n[lora]"), &[key]);
    with("every = 0", "evaluation.every");
    with("pictures_per_prompt = 0", "evaluation.pictures_per_prompt");
    with("steps = 0", "evaluation.steps");
    with("guidance = 0.0", "evaluation.guidance");
}

/// Overrides are typed, may name text without quotes, and apply in order.
#[test]
fn overrides_apply() {
    let settings = [
        "train.iterations=7",
        "train.iterations=8",
        "tree.window_law=uniform",
        "rewards.bright.weight=0.5",
    ];
    let config = Files::new(BASE).open(&settings).expect("a valid configuration").config;
    assert_eq!(config.train.iterations, 8);
    assert_eq!(config.rewards["bright"].weight, 0.5);
    let added = ["rewards.dark.kind=brightness", "rewards.dark.weight=-1"];
    assert_eq!(
        Files::new(BASE)
            .open(&added)
            .expect("a valid configuration")
            .config
            .rewards["dark"]
            .weight,
        -1.0
    );
}

/// An override that is malformed, names no key, has the wrong type or makes no sense is quoted.
#[test]
fn bad_overrides_are_quoted() {
    check_setting_refused("train.iterations", &["--set train.iterations", "key=value"]);
    check_setting_refused("=3", &["--set =3", "key is empty"]);
    check_setting_refused("train.=3", &["--set train.=3", "key is empty"]);
    check_setting_refused(
        "train.iteratons=3",
        &["--set train.iteratons=3", "did you mean `iterations`?"],
    );
    check_setting_refused(
        "trian.iterations=3",
        &["--set trian.iterations=3", "did you mean `train`?"],
    );
    check_setting_refused(
        "train.iterations.x=3",
        &["--set train.iterations.x=3", "`iterations` is a value"],
    );
    check_setting_refused("train.iterations=many", &["--set train.iterations=many", "many"]);
    check_setting_refused("train.iterations=0", &["train.iterations", "1 or more"]);
}

/// The shipped configuration is valid, and its resolved form, every key written out, is the same configuration.
#[test]
fn shipped_configuration_is_valid() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let model = root.join("assets/emoji-sd3");
    let path = |key: &str, name: &str| format!("{key}={}", model.join(name).display());
    let settings = [
        path("model.path", ""),
        path("prompts.train", "prompts/train.txt"),
        path("prompts.eval", "prompts/eval.txt"),
        path("rewards.clip.path", "scorer"),
        path("rewards.clip-heldout.path", "scorer_heldout"),
    ];
    let shipped = Experiment::open(&root.join("configs/emoji.toml"), &settings).expect("a valid configuration");
    let resolved = shipped.resolved().expect("TOML");
    let dir = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(dir.path().join("config.toml"), &resolved).expect("written");
    let again = Experiment::open(&dir.path().join("config.toml"), &[]).expect("a valid configuration");
    assert_eq!(again.resolved().expect("TOML"), resolved);
    let mut expected = shipped.config.clone();
    expected.sampling.noise_level = Some(shipped.noise_level());
    expected.train.learning_rate = Some(shipped.optimiser.learning_rate);
    assert_eq!(again.config, expected);
    for key in [
        "clip_range",
        "weight_decay",
        "ratio_limit",
        "normalisation",
        "density",
        "reduction",
    ] {
        assert!(resolved.contains(key), "`{key}` is not written out");
    }
}

/// What would only fail, or say nothing, after the model was loaded is refused before, under the key that is at fault.
#[test]
fn late_mistakes_are_found_early() {
    check_setting_refused(
        "credit.normalisation.epsilon=-1",
        &["credit.normalisation", "epsilon", "-1"],
    );
    check_setting_refused(
        "credit.normalisation.scope={running={window=0,min_count=2}}",
        &["credit.normalisation"],
    );
    check_setting_refused(
        "evaluation.pictures_per_prompt=4000000000000000000",
        &["evaluation.pictures_per_prompt"],
    );
    check_setting_refused("prompts.per_iteration=9223372036854775807", &["prompts.per_iteration"]);
    check_setting_refused("rewards.bright.eval_only=true", &["rewards", "eval_only"]);
    check_setting_refused("rewards.bright.path=somewhere", &["rewards.bright.path", "brightness"]);
    check_setting_refused("prompts.eval=", &["prompts.eval", "is empty"]);
    check_setting_refused("train.clip_range=2", &["train.clip_range"]);
    check_setting_refused("train.advantage_clamp=0", &["train.advantage_clamp"]);
}

/// The noise of `cps` is a share, so more than 1 is refused, and the message says what is common.
#[test]
fn noise_of_cps_is_at_most_one() {
    let settings = ["sampling.kernel=cps", "sampling.noise_level=2"];
    check_message(Files::new(BASE).open(&settings), &["sampling.noise_level", "at most 1"]);
}

/// Chains have no siblings, so a rule that compares siblings would train on zeros without a word.
#[test]
fn rules_that_compare_siblings_need_some() {
    for rule in ["siblings", "temporal"] {
        let rule = format!("credit.rule={rule}");
        let settings = ["tree.children=1", "tree.roots=4", &rule];
        check_message(Files::new(BASE).open(&settings), &["credit.rule", "tree.children is 1"]);
    }
    let chains = ["tree.children=1", "tree.roots=4", "credit.rule=trajectory"];
    Files::new(BASE)
        .open(&chains)
        .expect("chains with the leaf's advantage on every edge");
}

/// A group's name becomes part of a metric's name, so it must not be that of one of its own statistics.
#[test]
fn evaluation_groups_cannot_take_the_names_of_metrics() {
    for name in ["change", "standard_error", "non_finite", "all", "a/b", " "] {
        let setting = format!("prompts.eval_groups={{\"{name}\"=[1,2]}}");
        check_message(
            Files::new(BASE).open(&[&setting]),
            &["prompts.eval_groups", "cannot name a group"],
        );
    }
}

/// What becomes of scores that are not finite is a name, with a dash or as others write it; the default stops the run.
#[test]
fn non_finite_scores_have_a_rule() {
    let rule = |settings: &[&str]| {
        let experiment = Files::new(BASE).open(settings).expect("a valid configuration");
        experiment.credit.non_finite_scores
    };
    assert_eq!(rule(&[]), NonFiniteScores::Error);
    assert_eq!(
        rule(&["credit.non_finite_scores=drop-sample"]),
        NonFiniteScores::DropSample
    );
    assert_eq!(
        rule(&["credit.non_finite_scores=drop_group"]),
        NonFiniteScores::DropGroup
    );
    check_setting_refused(
        "credit.non_finite_scores=ignore",
        &["credit.non_finite_scores", "drop-sample"],
    );
}

/// Weights belong to names: a = 1 and b = 10 with the weights 2 and 3 give 32, in whatever order the tables stand.
#[test]
fn weights_follow_the_names_of_rewards() {
    let settings = [
        "rewards={b={kind=\"brightness\",weight=3},a={kind=\"contrast\",weight=2}}",
        "credit.mix=reward",
    ];
    let mix = Files::new(BASE)
        .open(&settings)
        .expect("a valid configuration")
        .credit
        .mix;
    assert_eq!(mix.formula(), "A = normalise(2 * a + 3 * b)");
    assert_eq!(
        mix.weighted_scores(&[("b", &[10.0]), ("a", &[1.0])])
            .expect("both rewards"),
        [32.0]
    );
}

/// An override is one value: what follows a line break is not dropped silently.
#[test]
fn an_override_is_one_value() {
    check_setting_refused("sampling.steps=4\ntree.window=1", &["--set sampling.steps"]);
}

/// More prompts per iteration than there are is allowed, and told.
#[test]
fn more_prompts_than_there_are_is_told() {
    let experiment = Files::new(BASE).open(&["prompts.per_iteration=7"]).expect("valid");
    assert!(
        experiment
            .idle_settings
            .iter()
            .any(|line| line.contains("per_iteration is 7"))
    );
}
