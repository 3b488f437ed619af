//! What bad input gets: one line that names file, line or key and the fix, and an exit code that is not zero.

use crate::support::{Folder, asset};

/// Both commands that read a configuration must refuse it alike.
#[track_caller]
fn refuse(folder: &Folder, settings: &[&str], parts: &[&str]) {
    for command in ["plan", "train"] {
        let mut arguments = vec![command, "tiny.toml"];
        arguments.extend(settings.iter().flat_map(|setting| ["--set", setting]));
        folder.fail(&arguments, parts);
    }
    assert!(!folder.path("runs").exists(), "a refused run left a folder");
}

/// The tiny configuration with one line replaced, and the number of that line.
#[track_caller]
fn edit(folder: &Folder, from: &str, to: &str) -> String {
    let text = folder.read("tiny.toml");
    let at = text.find(from).unwrap_or_else(|| panic!("no `{from}`"));
    folder.write("tiny.toml", text.replacen(from, to, 1));
    format!("line {}:", text[..at].lines().count() + 1)
}

#[test]
fn a_misspelt_key_is_named_with_its_line_and_the_right_one() {
    let folder = Folder::new();
    let line = edit(&folder, "guidance", "guidence");
    refuse(
        &folder,
        &[],
        &["tiny.toml", &line, "guidence", "did you mean `guidance`?"],
    );
}

#[test]
fn a_value_of_the_wrong_type_is_named_with_its_line() {
    let folder = Folder::new();
    let line = edit(&folder, "steps = 3", "steps = \"three\"");
    refuse(&folder, &[], &["tiny.toml", &line, "expected a whole number"]);
}

#[test]
fn broken_toml_is_named_with_its_line() {
    let folder = Folder::new();
    let line = edit(&folder, "steps = 3", "steps = = 3");
    refuse(&folder, &[], &["tiny.toml", &line]);
}

#[test]
fn a_missing_configuration_names_its_path() {
    Folder::new().fail(&["plan", "absent.toml"], &["absent.toml", "configuration file"]);
}

#[test]
fn overrides_are_checked_and_named() {
    let folder = Folder::new();
    refuse(
        &folder,
        &["train.iteration=3"],
        &["--set train.iteration=3", "did you mean `iterations`?"],
    );
    refuse(&folder, &["train.iterations"], &["--set train.iterations", "key=value"]);
    refuse(
        &folder,
        &["sampling.steps=many"],
        &["--set sampling.steps=many", "expected a whole number"],
    );
}

#[test]
fn impossible_sizes_name_their_key_and_a_possible_one() {
    let folder = Folder::new();
    for (setting, parts) in [
        ("tree.window=3", ["tree.window", "use at most 2"]),
        ("tree.window=0", ["tree.window", "use 1 or more"]),
        ("tree.children=1", ["tree.children", "use 2 or more"]),
        ("tree.roots=0", ["tree.roots", "at least one tree"]),
        ("sampling.steps=1", ["sampling.steps", "use 2 or more"]),
        ("prompts.per_iteration=0", ["prompts.per_iteration", "use 1 or more"]),
        ("lora.rank=0", ["lora.rank", "use at least 1"]),
    ] {
        refuse(&folder, &[setting], &parts);
    }
}

#[test]
fn missing_folders_are_named() {
    let folder = Folder::new();
    refuse(
        &folder,
        &["model.path=absent"],
        &["model.path", "absent", "diffusers' layout"],
    );
    folder.fail(
        &["train", "tiny.toml", "--set", "rewards.clip.path=absent"],
        &["clip", "absent"],
    );
}

#[test]
fn a_damaged_prompt_file_is_named_with_line_and_byte() {
    let folder = Folder::new();
    folder.write("train.txt", b"a dog\na cat\x92s hat\n");
    refuse(
        &folder,
        &[],
        &["train.txt", "line 2", "byte 6", "0x92", "save the file as UTF-8"],
    );
    folder.write("train.txt", b"\xFF\xFEa\0");
    refuse(&folder, &[], &["train.txt", "UTF-16", "save it as UTF-8"]);
    folder.write("train.txt", "\n  \n");
    refuse(&folder, &[], &["train.txt", "no prompt", "one per line"]);
    refuse(
        &folder,
        &["prompts.train=absent.txt"],
        &["absent.txt", "one prompt per line"],
    );
}

#[test]
fn devices_that_do_not_exist_or_were_not_built_are_named() {
    let folder = Folder::new();
    let with = |device| ["train", "tiny.toml", "--device", device];
    folder.fail(&with("gpu"), &["--device gpu", "use flex, cuda"]);
    folder.fail(
        &with("cuda:first"),
        &["--device cuda:first", "`first`", "counted from 0"],
    );
    if cfg!(not(feature = "cuda")) {
        folder.fail(&with("cuda:0"), &["--device cuda", "--features cuda"]);
    }
    if cfg!(not(feature = "tch")) {
        folder.fail(&with("tch"), &["--device tch", "--features tch"]);
    }
}

#[test]
fn a_resume_without_a_run_says_so() {
    let folder = Folder::new();
    folder.fail(&["train", "tiny.toml", "--resume"], &["--resume", "runs/tiny", "--out"]);
    folder.fail(
        &["train", "tiny.toml", "--resume", "--out", "elsewhere"],
        &["--resume", "elsewhere", "checkpoint"],
    );
    assert!(!folder.path("elsewhere").exists());
    folder.fail(
        &["train", "tiny.toml", "--out", "tiny.toml"],
        &["--out tiny.toml", "name a folder"],
    );
}

#[test]
fn generate_refuses_before_it_loads() {
    let folder = Folder::new();
    let model = asset("");
    let with = |extra: &[&str], parts: &[&str]| {
        let mut arguments = vec!["generate", "--model", &model];
        arguments.extend(extra);
        folder.fail(&arguments, parts);
    };
    with(
        &["--prompt", "a", "--out", "a.jpg"],
        &["--out a.jpg", "end the name in .png"],
    );
    with(
        &["--prompt", "a", "--out", "absent/a.png"],
        &["absent", "there is no folder"],
    );
    with(&["--out", "a.png"], &["--prompt TEXT"]);
    with(
        &["--prompt", "a", "--out", "a.png", "--steps", "0"],
        &["--steps 0", "use 1 to 1000"],
    );
    with(
        &["--prompt", "a", "--out", "a.png", "--guidance", "0.5"],
        &["--guidance 0.5", "use 1"],
    );
    with(
        &["--prompt", "a", "--out", "a.png", "--size", "63"],
        &["63 pixels", "multiple of 16"],
    );
    with(
        &["--prompt", "a", "--out", "a.png", "--adapter", "absent"],
        &["--adapter absent", "adapter_model"],
    );
    with(
        &["--prompt", "a", "--out", "a.png", "--adapter", "."],
        &["adapter_model.safetensors"],
    );
    let arguments = ["generate", "--model", "absent", "--prompt", "a", "--out", "a.png"];
    folder.fail(&arguments, &["--model absent", "diffusers' layout"]);
    let arguments = ["generate", "--model", ".", "--prompt", "a", "--out", "a.png"];
    folder.fail(&arguments, &["--model .", "model_index.json"]);
    assert!(!folder.path("a.png").exists());
}

#[test]
fn score_refuses_what_does_not_pair_up() {
    let folder = Folder::new();
    let scorer = format!("clip={}", asset("scorer"));
    let preview = asset("preview.png");
    folder.write("no.png", "text");
    for (arguments, parts) in [
        (
            vec!["--scorer", "sharpness", "--image", &preview],
            vec!["sharpness", "`jpeg-compressibility`", "`clip-score`"],
        ),
        (
            vec!["--scorer", "clip-score", "--image", &preview],
            vec!["clip-score", "NAME=clip-score:PATH"],
        ),
        (
            vec!["--scorer", "clip=absent", "--image", &preview],
            vec!["clip=absent", "no file or folder", "CLIP model"],
        ),
        (
            vec!["--scorer", "a b=jpeg", "--image", &preview],
            vec!["a b", "letters, digits"],
        ),
        (
            vec!["--scorer", &scorer, "--image", &preview],
            vec!["clip", "--prompt TEXT"],
        ),
        (
            vec!["--scorer", "jpeg", "--scorer", "jpeg", "--image", &preview],
            vec!["two scorers", "rename one"],
        ),
        (
            vec!["--scorer", "jpeg", "--image", "absent.png"],
            vec!["absent.png", "there is no such file"],
        ),
        (vec!["--scorer", "jpeg", "--image", "no.png"], vec!["no.png"]),
        (
            vec![
                "--scorer", "jpeg", "--image", &preview, "--prompt", "a", "--prompt", "b",
            ],
            vec!["1 pictures and 2 prompts", "one per picture"],
        ),
    ] {
        folder.fail(&[&["score"], arguments.as_slice()].concat(), &parts);
    }
}

#[test]
fn report_wants_the_folder_of_a_run() {
    let folder = Folder::new();
    folder.fail(&["report", "."], &["metrics.jsonl", "folder of a run"]);
    folder.write("metrics.jsonl", "{\"iteration\": 1}\nnonsense\n{\"iteration\": 2}\n");
    folder.fail(&["report", "."], &["metrics.jsonl, line 2"]);
}

#[test]
fn what_no_machine_can_hold_is_refused_before_loading() {
    let folder = Folder::new();
    for setting in ["prompts.per_iteration=100000000000", "lora.rank=100000000000"] {
        folder.fail(
            &["train", "tiny.toml", "--set", setting],
            &["this configuration needs", "the machine has", "lower"],
        );
        assert!(!folder.path("runs").exists(), "a refused run left a folder");
    }
}
