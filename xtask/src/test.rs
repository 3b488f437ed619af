//! `cargo xtask test`

use anyhow::Result;
use clap::Args;
use xshell::{Shell, cmd};

use crate::command;

/// Run every test of the workspace, documentation examples included
#[derive(Args, Default)]
pub(crate) struct Test {
    /// Passed on to `cargo test`, such as the name of a test
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl Test {
    pub(crate) fn run(self, shell: &Shell) -> Result<()> {
        let arguments = self.arguments;
        // The profile is the one of `cargo xtask train`, and `benches`, which has no tests, is left out: the features
        // that criterion asks of common dependencies would have burn compiled a second time for the tests.
        command::run(cmd!(
            shell,
            "cargo test --release --workspace --exclude benches {arguments...}"
        ))
    }
}
