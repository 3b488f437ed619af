//! Checks of the workspace itself, as ordinary tests. A failure says what to edit.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use xshell::{Shell, cmd};

use crate::trees;

/// What a crate must not know, by the folder of its manifest: names of packages, and why.
const FORBIDDEN: [(&str, &[&str], &str); 5] = [
    (
        "crates/tree-core",
        &[
            "burn",
            "image",
            "tokenizers",
            "safetensors",
            "nn",
            "policy-sd3",
            "rewards",
            "trainer",
            "treegrpo-cli",
        ],
        "tree-core knows neither tensors nor pictures nor text: it serves any search tree",
    ),
    (
        "crates/nn",
        &["policy-sd3", "rewards", "trainer", "treegrpo-cli"],
        "nn lies below the policy and the rewards",
    ),
    (
        "crates/policy-sd3",
        &["rewards", "trainer", "treegrpo-cli"],
        "the policy draws pictures and does not know how they are judged or how it is trained",
    ),
    (
        "crates/rewards",
        &["policy-sd3", "trainer", "treegrpo-cli"],
        "a reward sees pictures and prompts and does not know who drew them",
    ),
    (
        "crates/trainer",
        &["treegrpo-cli", "clap", "indicatif"],
        "the trainer has no command line and no terminal",
    ),
];

/// All that xtask may use: it must compile in seconds.
const XTASK_DEPENDENCIES: [&str; 4] = ["anyhow", "clap", "xshell", "serde_json"];

/// The only manifests that may name anyhow: libraries return typed errors.
const ANYHOW_USERS: [&str; 2] = ["crates/cli", "xtask"];

const LONGEST_RUST_FILE: usize = 600;

/// Folders that hold nothing of the project.
const SKIPPED_FOLDERS: [&str; 5] = [".git", "target", "runs", ".venv", "__pycache__"];

#[test]
fn crates_do_not_know_what_they_must_not() {
    let mut problems = Vec::new();
    for (folder, forbidden, reason) in FORBIDDEN {
        for name in dependencies(&read(format!("{folder}/Cargo.toml"))) {
            if forbidden.contains(&name.as_str()) {
                problems.push(format!("remove `{name}` from {folder}/Cargo.toml: {reason}"));
            }
        }
    }
    report(problems);
}

#[test]
fn xtask_stays_small() {
    let problems = dependencies(&read("xtask/Cargo.toml"))
        .into_iter()
        .filter(|name| !XTASK_DEPENDENCIES.contains(&name.as_str()))
        .map(|name| format!("remove `{name}` from xtask/Cargo.toml: xtask must compile in seconds"));
    report(problems.collect());
}

#[test]
fn libraries_return_typed_errors() {
    let mut problems = Vec::new();
    for manifest in project_files("toml").iter().filter(|path| path.ends_with("Cargo.toml")) {
        let allowed = ANYHOW_USERS
            .iter()
            .any(|folder| manifest.parent() == Some(Path::new(folder)));
        // The workspace's own manifest lists it for the two that may use it.
        let is_root = manifest == Path::new("Cargo.toml");
        if !allowed && !is_root && dependencies(&read(manifest)).iter().any(|name| name == "anyhow") {
            problems.push(format!(
                "replace `anyhow` by `thiserror` in {}: only cli and xtask use it",
                manifest.display()
            ));
        }
    }
    report(problems);
}

#[test]
fn rust_files_can_be_read_in_one_sitting() {
    let mut problems = Vec::new();
    for path in project_files("rs") {
        let lines = read(&path).lines().count();
        if lines > LONGEST_RUST_FILE {
            problems.push(format!(
                "split {}: {lines} lines, at most {LONGEST_RUST_FILE} are allowed",
                path.display()
            ));
        }
    }
    report(problems);
}

#[test]
fn nothing_is_left_unfinished() {
    // Put together here so that this file does not find itself.
    let marks = [["to", "do!"], ["unimple", "mented!"], ["#[ig", "nore"]].map(|halves| halves.concat());
    let mut problems = Vec::new();
    for path in project_files("rs") {
        for (number, line) in read(&path).lines().enumerate() {
            for mark in marks.iter().filter(|mark| line.contains(mark.as_str())) {
                problems.push(format!(
                    "{}:{}: finish or remove what stands behind `{mark}`",
                    path.display(),
                    number + 1
                ));
            }
        }
    }
    report(problems);
}

#[test]
fn no_file_names_the_place_where_it_was_written() {
    let mut problems = Vec::new();
    for path in trees::files(&crate::workspace_root(), &SKIPPED_FOLDERS).unwrap() {
        let Some(text) = text(&path) else { continue };
        for (number, line) in text.lines().enumerate() {
            if let Some(place) = machine_path(line) {
                problems.push(format!(
                    "{}:{}: replace `{place}` by a path relative to the repository",
                    path.display(),
                    number + 1
                ));
            }
        }
    }
    report(problems);
}

#[test]
fn changes_are_written_down() {
    let changelog = read_if_present("CHANGELOG.md").unwrap_or_default();
    assert!(
        changelog.contains("## [Unreleased]"),
        "CHANGELOG.md: keep a section `## [Unreleased]`, and describe there what users will notice"
    );
}

/// burn takes minutes to compile, and a single feature that the tests add to one of its dependencies has cargo compile
/// it a second time beside the one of `cargo xtask train`.
#[test]
fn training_and_tests_share_one_compiled_burn() {
    check_one_burn(
        "the tests",
        &["--edges", "normal,build,dev", "--workspace", "--exclude", "benches"],
        "--workspace --exclude benches",
    );
}

/// Compares the crates below burn as `cargo xtask train` compiles them with those of another selection of packages.
#[track_caller]
fn check_one_burn(purpose: &str, arguments: &[&str], selection: &str) {
    let trained = compiled(&["--edges", "normal,build", "--package", "treegrpo-cli"]);
    let others = compiled(arguments);
    let burn = compiled(&["--edges", "normal,build", "--package", "burn"]);
    if !trained.iter().any(|(name, _)| name == "burn") {
        return; // The binary does not use it, so there is nothing to share.
    }

    let mut problems = Vec::new();
    for (name, build) in trained
        .difference(&others)
        .filter(|(name, _)| burn.iter().any(|(below, _)| below == name))
    {
        let found = others.iter().filter(|(other, _)| other == name);
        let found: Vec<&str> = found.map(|(_, build)| build.as_str()).collect();
        problems.push(format!(
            "`{name}` is compiled as {build} for training and as {} for {purpose}. See who asks for it with\n  \
             cargo tree {selection} --edges features --invert {name}\nand drop what is too much, or give the same \
             features to a crate that `nn` names for this purpose",
            found.join(" and ")
        ));
    }
    report(problems);
}

/// The packages cargo compiles, each with its version and features.
fn compiled(arguments: &[&str]) -> BTreeSet<(String, String)> {
    let shell = Shell::new().unwrap();
    shell.change_dir(crate::workspace_root());
    let command = cmd!(shell, "cargo tree --quiet --prefix none --format").arg("{p} [{f}]");
    let listing = command.args(arguments).quiet().read().unwrap();
    let packages = listing.lines().map(|line| line.trim_end_matches(" (*)"));
    packages
        .filter_map(|line| line.split_once(' '))
        .map(|(name, build)| (name.to_owned(), build.to_owned()))
        .collect()
}

#[track_caller]
fn report(problems: Vec<String>) {
    assert!(problems.is_empty(), "\n\n{}\n", problems.join("\n"));
}

/// All files of the project with this extension, relative to its root.
fn project_files(extension: &str) -> Vec<PathBuf> {
    let files = trees::files(&crate::workspace_root(), &SKIPPED_FOLDERS).unwrap();
    files
        .into_iter()
        .filter(|path| path.extension().is_some_and(|found| found == extension))
        .collect()
}

#[track_caller]
fn read(path: impl AsRef<Path>) -> String {
    let path = path.as_ref();
    read_if_present(path).unwrap_or_else(|| panic!("cannot read {}", path.display()))
}

fn read_if_present(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(crate::workspace_root().join(path)).ok()
}

/// The content of a text file; none for files of numbers.
fn text(path: &Path) -> Option<String> {
    let bytes = fs::read(crate::workspace_root().join(path)).ok()?;
    let is_binary = bytes.iter().take(8192).any(|byte| *byte == 0);
    (!is_binary).then(|| String::from_utf8_lossy(&bytes).into_owned())
}

/// The first absolute path in `line` that only exists where somebody worked.
fn machine_path(line: &str) -> Option<String> {
    // A name or a variable before the first slash makes the path a relative one; a slash, as in `file://`, does not.
    let continues_a_path = |character: char| character.is_alphanumeric() || "_-.*})]".contains(character);
    ["work", "root", "farm"]
        .into_iter()
        .map(|name| format!("/{name}/"))
        .find(|place| {
            let mut found = line.match_indices(place.as_str());
            found.any(|(position, _)| !line[..position].ends_with(continues_a_path))
        })
}

/// The packages in a manifest's dependency tables of any kind, by their real names.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let mut in_table = false;
    for line in manifest
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        if let Some(header) = line.strip_prefix('[') {
            let header = header.trim_end_matches(']');
            in_table = header.ends_with("dependencies");
            // `[dependencies.NAME]`
            if let Some((_, name)) = header.split_once("dependencies.") {
                found.push(name.to_owned());
            }
        } else if in_table {
            let name = line.split(['.', '=', ' ']).next().unwrap_or_default();
            let renamed = line
                .split_once("package = \"")
                .and_then(|(_, rest)| rest.split_once('"'));
            found.push(
                renamed
                    .map_or(name, |(package, _)| package)
                    .trim_matches('"')
                    .to_owned(),
            );
        }
    }
    found
}

#[test]
fn dependencies_are_found_in_every_table() {
    let manifest = "
        [package]
        name = \"example\"
        [dependencies]
        one.workspace = true
        two = { version = \"1\", package = \"real\" }
        # not = \"this\"
        [dev-dependencies]
        three = \"3\"
        [target.'cfg(unix)'.build-dependencies]
        four = \"4\"
        [dependencies.five]
        version = \"5\"
        [features]
        default = []
    ";
    assert_eq!(dependencies(manifest), ["one", "real", "three", "four", "five"]);
}

#[test]
fn only_absolute_paths_are_machine_paths() {
    let slash = "/";
    for (line, expected) in [
        ("see `SworkSmain.rs`", Some("SworkS")),
        ("file:SSSrootSx", Some("SrootS")),
        ("cratesSworkSsrc", None),
        ("..SfarmSx and $DIRSworkSx", None),
        ("--work DIR", None),
    ] {
        let line = line.replace('S', slash);
        assert_eq!(
            machine_path(&line),
            expected.map(|place| place.replace('S', slash)),
            "{line}"
        );
    }
}
