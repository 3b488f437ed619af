//! A folder of its own for every test, a small configuration in it, and ways to run the program there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use tempfile::TempDir;

/// A folder where the program runs.
pub(crate) struct Folder {
    dir: TempDir,
}

impl Folder {
    /// A new folder with a tiny experiment, `tiny.toml`, on the shipped model.
    pub(crate) fn new() -> Self {
        let folder = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        folder.write("train.txt", "flat icon of a cat\nflat icon of a dog\n");
        folder.write("eval.txt", "flat icon of a fox\nsoft icon of a red apple\n");
        folder.write("tiny.toml", tiny_config());
        folder
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        fs::write(self.path(name), content).unwrap();
    }

    #[track_caller]
    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// Runs the program here.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_treegrpo"))
            .args(arguments)
            .current_dir(self.dir.path())
            .output()
            .unwrap()
    }

    /// Runs the program, which must succeed, and gives what it printed.
    #[track_caller]
    pub(crate) fn succeed(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?} failed: {errors}");
        assert_eq!(errors, "", "{arguments:?} complains");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs the program, which must fail with one line that holds all of `parts`.
    #[track_caller]
    pub(crate) fn fail(&self, arguments: &[&str], parts: &[&str]) {
        let output = self.run(arguments);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{arguments:?}: {errors}");
        assert!(errors.starts_with("error: "), "{arguments:?}: {errors}");
        for part in parts {
            assert!(errors.contains(part), "{arguments:?}: no `{part}` in: {errors}");
        }
    }
}

/// A file of the shipped model.
pub(crate) fn asset(name: &str) -> String {
    let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/emoji-sd3");
    assets.join(name).canonicalize().unwrap().display().to_string()
}

fn tiny_config() -> String {
    format!(
        r#"[model]
path = '{model}'
t5_tokens = 16

[prompts]
train = "train.txt"
eval = "eval.txt"
per_iteration = 1
eval_groups = {{ "unseen objects" = [1, 1] }}

[sampling]
steps = 3
guidance = 1.0

[tree]
children = 2
window = 1

[rewards.clip]
kind = "clip-score"
path = '{scorer}'

[rewards.size]
kind = "jpeg-compressibility"
eval_only = true

[train]
iterations = 2
micro_batch = 8

[lora]
rank = 2
alpha = 4.0

[evaluation]
every = 2
"#,
        model = asset(""),
        scorer = asset("scorer"),
    )
}
