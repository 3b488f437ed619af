//! `cargo xtask bench`

mod peer;
mod record;

use anyhow::Result;
use clap::{Args, Subcommand};
use xshell::{Shell, cmd};

use crate::command;

/// Run the criterion benches and compare them with the recorded run, or compare a whole iteration with PyTorch
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Bench {
    /// Only benches whose name contains this
    filter: Option<String>,
    /// Take this run's times as the ones that later runs are compared with (benches/recorded.json)
    #[arg(long)]
    record: bool,
    #[command(subcommand)]
    against: Option<Against>,
}

#[derive(Subcommand)]
enum Against {
    Peer(peer::Peer),
}

impl Bench {
    pub(crate) fn run(self, shell: &Shell) -> Result<()> {
        if let Some(Against::Peer(peer)) = self.against {
            return peer.run(shell);
        }
        let begin = std::time::SystemTime::now();
        let filter = self
            .filter
            .map(|filter| ["--".to_owned(), filter])
            .into_iter()
            .flatten();
        command::run(cmd!(shell, "cargo bench --package benches {filter...}"))?;
        record::report(begin, self.record)
    }
}
