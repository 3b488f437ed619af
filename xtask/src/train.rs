//! `cargo xtask train`

use anyhow::Result;
use clap::Args;
use xshell::{Shell, cmd};

use crate::command;

/// Train on the shipped small model (configs/emoji.toml)
#[derive(Args)]
pub(crate) struct Train {
    /// Passed on to `treegrpo train`, such as `--out runs/first --set train.seed=2`; see `cargo xtask train -- --help`
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl Train {
    pub(crate) fn run(self, shell: &Shell) -> Result<()> {
        let arguments = self.arguments;
        command::run(cmd!(
            shell,
            "cargo run --release --package treegrpo-cli --bin treegrpo -- train configs/emoji.toml {arguments...}"
        ))
    }
}
