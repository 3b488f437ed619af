//! `cargo xtask ci`

use anyhow::Result;
use clap::Args;
use xshell::{Shell, cmd};

use crate::command::{run, run_with};
use crate::test::Test;

/// Run all that must pass before a change is merged
#[derive(Args)]
pub(crate) struct Ci {}

impl Ci {
    pub(crate) fn run(self, shell: &Shell) -> Result<()> {
        // Cheap checks come first. Documentation is built with the release profile like all else, so that it finds the
        // dependencies already checked by clippy.
        run(cmd!(shell, "cargo fmt --all --check"))?;
        run(cmd!(
            shell,
            "cargo clippy --release --workspace --all-targets -- -D warnings"
        ))?;
        run_with(
            &[("RUSTDOCFLAGS", "-D warnings")],
            cmd!(shell, "cargo doc --release --no-deps --workspace"),
        )?;
        Test::default().run(shell)?;
        run(cmd!(
            shell,
            "cargo run --release --package treegrpo-cli --bin treegrpo -- plan configs/emoji.toml"
        ))?;
        check_cuda(shell)
    }
}

/// Keeps the CUDA feature compiling on machines that have neither a GPU nor the CUDA toolkit.
///
/// burn's `cuda` feature links an LLVM that a build script downloads. With `DOCS_RS` set the build scripts skip that,
/// which is enough for a type check and for nothing more: hence the folder of its own, where no binary is ever built.
/// `CUDARC_CUDA_VERSION` picks the bindings that would otherwise be picked by the toolkit found.
fn check_cuda(shell: &Shell) -> Result<()> {
    run_with(
        &[("DOCS_RS", "1"), ("CUDARC_CUDA_VERSION", "13000")],
        cmd!(
            shell,
            "cargo check --target-dir target/cuda-check --package treegrpo-cli --features cuda"
        ),
    )
}
