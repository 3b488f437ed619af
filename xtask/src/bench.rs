//! `cargo xtask bench`

use anyhow::Result;
use clap::Args;
use xshell::{Shell, cmd};

use crate::command;

/// Run the criterion benches
#[derive(Args)]
pub(crate) struct Bench {
    /// Only benches whose name contains this
    filter: Option<String>,
}

impl Bench {
    pub(crate) fn run(self, shell: &Shell) -> Result<()> {
        let filter = self
            .filter
            .map(|filter| ["--".to_owned(), filter])
            .into_iter()
            .flatten();
        command::run(cmd!(shell, "cargo bench --package benches {filter...}"))
    }
}
