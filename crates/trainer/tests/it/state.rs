//! Checkpoints: what is saved comes back to the bit, and a part that is missing or wrong is named.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use burn::tensor::Device;
use policy_sd3::adapter::{StoredTensor, write_safetensors};
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use tempfile::TempDir;
use trainer::evaluate::EvaluationScores;
use trainer::optimiser::{Optimiser, OptimiserConfig, OptimiserState, to_device, to_host};
use trainer::state::{Published, RunState, load, save};

use crate::toy::{LORA, Toy};

/// A state after two optimiser steps, with everything in it that a state can hold.
fn trained(toy: &Toy) -> (RunState, OptimiserState) {
    let config = OptimiserConfig {
        learning_rate: 1e-2,
        beta_1: 0.9,
        beta_2: 0.999,
        epsilon: 1e-8,
        weight_decay: 1e-4,
        gradient_clip: 1.0,
    };
    let optimiser = Optimiser::new(config, Some(0.9));
    let mut state = OptimiserState::new(toy.layout.gather(&toy.network), true);
    for step in 0..2 {
        let gradient = (0..toy.layout.len()).map(|i| (i as f32 + step as f32).sin()).collect();
        optimiser
            .step(&mut state, to_device(gradient, &toy.device), &toy.layout)
            .expect("a step");
    }
    let mut run = RunState::new(true);
    (run.iteration, run.optimiser_steps) = (1, 2);
    // Numbers whose shortest decimal form has 16 and 17 digits.
    let scores = (1..2000).map(|i| (f64::from(i) * 0.7).sin() / 3.0).collect();
    run.first_evaluation = Some(EvaluationScores {
        per_prompt: BTreeMap::from([("bright".to_owned(), scores)]),
        non_finite: BTreeMap::new(),
    });
    run.best = Some(0.1 + 0.2);
    (run, state)
}

fn saved(toy: &Toy) -> (TempDir, RunState, OptimiserState) {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (run, state) = trained(toy);
    let published = Published::Adapter(LORA);
    save(&dir.path().join("last"), &run, &state, &toy.layout, &published, "toy").expect("a checkpoint");
    (dir, run, state)
}

fn bits(state: &OptimiserState) -> Vec<Vec<u32>> {
    let mut parts = vec![state.parameters.clone()];
    parts.extend(state.average.clone());
    parts.extend(state.moments.clone().into_iter().flatten());
    parts
        .iter()
        .map(|part| to_host(part).expect("values").iter().map(|v| v.to_bits()).collect())
        .collect()
}

/// Parameters, average, both moments, counters and scores are the same bits after saving and loading.
#[test]
fn checkpoint_comes_back_to_the_bit() {
    let toy = Toy::new(3);
    let (dir, run, state) = saved(&toy);
    let (run_back, state_back) = load(&dir.path().join("last"), &toy.layout, &toy.device).expect("a checkpoint");
    assert_eq!(bits(&state_back), bits(&state));
    assert_eq!(bits(&state).len(), 4);
    assert_eq!(state_back.steps, 2);
    assert_eq!(
        (run_back.iteration, run_back.optimiser_steps, run_back.best),
        (1, 2, run.best)
    );
    let scores = |run: &RunState| {
        let scores = &run.first_evaluation.as_ref().expect("scores").per_prompt["bright"];
        scores.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
    };
    assert_eq!(scores(&run_back), scores(&run));
}

/// A step after loading is the step without: the optimiser does not start cold, although a new process gives every
/// parameter a new id.
#[test]
fn moments_survive_a_new_process() {
    let toy = Toy::new(3);
    let (dir, _, mut straight) = saved(&toy);
    let other = Toy::new(3);
    let (_, mut resumed) = load(&dir.path().join("last"), &other.layout, &other.device).expect("a checkpoint");
    let optimiser = Optimiser::new(
        OptimiserConfig {
            learning_rate: 1e-2,
            beta_1: 0.9,
            beta_2: 0.999,
            epsilon: 1e-8,
            weight_decay: 1e-4,
            gradient_clip: 1.0,
        },
        Some(0.9),
    );
    for (toy, state) in [(&toy, &mut straight), (&other, &mut resumed)] {
        let gradient = (0..toy.layout.len()).map(|i| (i as f32).cos()).collect();
        optimiser
            .step(state, to_device(gradient, &Device::flex()), &toy.layout)
            .expect("a step");
    }
    assert_eq!(bits(&straight), bits(&resumed));
}

/// Saving again replaces the folder as a whole and leaves no scratch behind.
#[test]
fn checkpoint_is_replaced_as_a_whole() {
    let toy = Toy::new(3);
    let (dir, mut run, state) = saved(&toy);
    let last = dir.path().join("last");
    std::fs::write(last.join("stale"), "from before").expect("written");
    run.iteration = 7;
    save(&last, &run, &state, &toy.layout, &Published::Adapter(LORA), "toy").expect("a checkpoint");
    assert!(!last.join("stale").exists());
    assert_eq!(
        load(&last, &toy.layout, &toy.device).expect("a checkpoint").0.iteration,
        7
    );
    assert_eq!(std::fs::read_dir(dir.path()).expect("the folder").count(), 1);
}

/// A process that is killed between the two renames leaves the old checkpoint beside its place, where it is found.
#[test]
fn killed_between_the_renames() {
    let toy = Toy::new(3);
    let (dir, mut run, state) = saved(&toy);
    let (last, aside) = (dir.path().join("last"), dir.path().join("last.previous"));
    std::fs::rename(&last, &aside).expect("renamed");
    assert_eq!(
        load(&last, &toy.layout, &toy.device)
            .expect("the old checkpoint")
            .0
            .iteration,
        1
    );
    // The next save tidies up.
    run.iteration = 2;
    save(&last, &run, &state, &toy.layout, &Published::Adapter(LORA), "toy").expect("a checkpoint");
    assert_eq!(
        load(&last, &toy.layout, &toy.device)
            .expect("the new checkpoint")
            .0
            .iteration,
        2
    );
    assert_eq!(std::fs::read_dir(dir.path()).expect("the folder").count(), 1);
    // A whole checkpoint beats what lies beside it.
    std::fs::create_dir(&aside).expect("made");
    assert_eq!(
        load(&last, &toy.layout, &toy.device)
            .expect("the new checkpoint")
            .0
            .iteration,
        2
    );
    save(&last, &run, &state, &toy.layout, &Published::Adapter(LORA), "toy").expect("a checkpoint");
    assert!(!aside.exists());
}

/// A checkpoint that cannot be written leaves the old one as it was.
#[test]
fn failed_save_leaves_the_old_checkpoint() {
    let toy = Toy::new(3);
    let dir = tempfile::tempdir().expect("a temporary folder");
    let (run, state) = trained(&toy);
    // A file where the parent folder should be.
    let parent = dir.path().join("checkpoints");
    std::fs::write(&parent, "").expect("written");
    let error = save(
        &parent.join("last"),
        &run,
        &state,
        &toy.layout,
        &Published::Adapter(LORA),
        "toy",
    );
    let message = error.expect_err("no folder").to_string();
    assert!(
        message.contains("checkpoints") && message.contains("could not be written"),
        "{message}"
    );
}

/// Damages a checkpoint and expects one line that holds every part of `expected`.
#[track_caller]
fn check_refused(damage: impl FnOnce(&Path), expected: &[&str]) {
    let toy = Toy::new(3);
    let (dir, _, _) = saved(&toy);
    let last = dir.path().join("last");
    damage(&last);
    let message = match load(&last, &toy.layout, &toy.device) {
        Ok(_) => panic!("the checkpoint was not refused"),
        Err(error) => error.to_string(),
    };
    assert!(!message.contains('\n'), "more than one line: {message}");
    for part in expected {
        assert!(message.contains(part), "`{part}` is missing in: {message}");
    }
}

fn change_counters(dir: &Path, change: impl FnOnce(&mut toml::Table)) {
    let path = dir.join("state.toml");
    let mut counters = std::fs::read_to_string(&path).expect("the file").parse().expect("TOML");
    change(&mut counters);
    std::fs::write(path, counters.to_string()).expect("written");
}

/// `state.toml` that is missing, cut off, of another version or with keys that this version does not know.
#[test]
fn counters_are_checked() {
    check_refused(
        |dir| std::fs::remove_file(dir.join("state.toml")).expect("removed"),
        &["state.toml", "no checkpoint"],
    );
    check_refused(
        |dir| std::fs::write(dir.join("state.toml"), "format = ").expect("written"),
        &["state.toml", "not a checkpoint"],
    );
    let change = |key: &'static str, value: i64| {
        move |dir: &Path| change_counters(dir, |c| drop(c.insert(key.into(), value.into())))
    };
    check_refused(change("format", 9), &["state.toml", "format 9", "reads 1"]);
    check_refused(change("extra", 1), &["state.toml", "`extra`"]);
    check_refused(
        |dir| change_counters(dir, |c| drop(c.remove("iteration"))),
        &["state.toml", "`iteration`"],
    );
    check_refused(
        |dir| std::fs::remove_dir_all(dir).expect("removed"),
        &["no checkpoint to resume from"],
    );
}

fn change_tensors(dir: &Path, change: impl FnOnce(&mut BTreeMap<String, StoredTensor>)) {
    let path = dir.join("state.safetensors");
    let bytes = std::fs::read(&path).expect("the file");
    let mut tensors = BTreeMap::new();
    for (key, view) in SafeTensors::deserialize(&bytes).expect("a safetensors file").tensors() {
        let values = view
            .data()
            .chunks_exact(4)
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        tensors.insert(key, (view.shape().to_vec(), values));
    }
    change(&mut tensors);
    let borrowed = tensors.iter().map(|(key, tensor)| (key.clone(), tensor)).collect();
    write_safetensors(&path, &borrowed, HashMap::new()).expect("written");
}

/// Every declared part must be there: nothing is started afresh without a word.
#[test]
fn missing_tensors_are_named() {
    let tensors = "state.safetensors";
    check_refused(
        |dir| std::fs::remove_file(dir.join(tensors)).expect("removed"),
        &[tensors, "incomplete"],
    );
    for (group, named) in [
        ("parameters", "`parameters`"),
        ("moment_1", "moment_1"),
        ("moment_2", "moment_2"),
        ("average", "`average`"),
    ] {
        let drop_group =
            |dir: &Path| change_tensors(dir, |all| all.retain(|key, _| !key.starts_with(&format!("{group}/"))));
        check_refused(drop_group, &[tensors, named, "incomplete"]);
        let one = format!("{group}/transformer_blocks.1.attn.to_v.lora_A.weight");
        let drop_one = |dir: &Path| change_tensors(dir, |all| drop(all.remove(&one).expect("a tensor")));
        check_refused(drop_one, &[tensors, group, "to_v.lora_A.weight` is missing"]);
    }
}

/// Damaged files, wrong shapes and types, and tensors that belong to nothing.
#[test]
fn wrong_tensors_are_named() {
    let tensors = "state.safetensors";
    let cut = |dir: &Path| {
        let path = dir.join(tensors);
        let bytes = std::fs::read(&path).expect("the file");
        std::fs::write(path, &bytes[..bytes.len() - 3]).expect("written");
    };
    check_refused(cut, &[tensors, "damaged"]);
    check_refused(
        |dir| std::fs::write(dir.join(tensors), "").expect("written"),
        &[tensors, "damaged"],
    );
    let key = "parameters/transformer_blocks.0.attn.to_q.lora_A.weight";
    let turned = |dir: &Path| change_tensors(dir, |all| all.get_mut(key).expect("a tensor").0.reverse());
    check_refused(
        turned,
        &[tensors, "to_q.lora_A.weight` has shape [16, 2], not [2, 16]", "rank"],
    );
    let extra = |dir: &Path| {
        change_tensors(dir, |all| {
            drop(all.insert("moment_1/other".into(), (vec![1], vec![0.0])))
        });
    };
    check_refused(extra, &[tensors, "`other` is not a trained tensor"]);
    let stray = |dir: &Path| change_tensors(dir, |all| drop(all.insert("other".into(), (vec![1], vec![0.0]))));
    check_refused(stray, &[tensors, "`other`, which has no group"]);
    let broken = |dir: &Path| change_tensors(dir, |all| all.get_mut(key).expect("a tensor").1[3] = f32::NAN);
    check_refused(broken, &[tensors, "to_q.lora_A.weight", "not finite"]);
    // A state that something cast to bf16 would change the run without a word.
    let cast = |dir: &Path| {
        let bytes = [0u8; 4];
        let view = TensorView::new(Dtype::BF16, vec![2], &bytes).expect("a view");
        let file = safetensors::serialize([("parameters/x", view)], None).expect("a file");
        std::fs::write(dir.join(tensors), file).expect("written");
    };
    check_refused(cast, &[tensors, "BF16", "F32"]);
}
