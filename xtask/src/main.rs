//! The project's tasks: `cargo xtask`, one file per task.
//!
//! A task only prints and runs commands that could be typed by hand. This crate therefore compiles in seconds and must
//! stay so: it links no other crate of the workspace, and above all not burn. `tidy.rs` holds checks that are ordinary
//! tests of this crate.

mod bench;
mod ci;
mod command;
mod fixtures;
mod ocr;
mod test;
#[cfg(test)]
mod tidy;
mod train;
mod trees;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use xshell::Shell;

/// The project's tasks. Every command is printed before it runs, and again when it fails.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", arg_required_else_help = true)]
struct Arguments {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    Train(train::Train),
    Test(test::Test),
    Bench(bench::Bench),
    Ci(ci::Ci),
    Fixtures(fixtures::Fixtures),
    OcrCheck(ocr::OcrCheck),
}

fn main() -> ExitCode {
    match run(Arguments::parse().task) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            for cause in error.chain().skip(1) {
                eprintln!("  {cause}");
            }
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> anyhow::Result<()> {
    let shell = Shell::new()?;
    // Tasks name files from the workspace's root, wherever they are started.
    shell.change_dir(workspace_root());
    match task {
        Task::Train(train) => train.run(&shell),
        Task::Test(test) => test.run(&shell),
        Task::Bench(bench) => bench.run(&shell),
        Task::Ci(ci) => ci.run(&shell),
        Task::Fixtures(fixtures) => fixtures.run(&shell),
        Task::OcrCheck(check) => check.run(&shell),
    }
}

/// The folder of the workspace's `Cargo.toml`.
fn workspace_root() -> PathBuf {
    // Cargo sets the variable when it runs the program; the compiled-in value serves when it is started by hand.
    let manifest_folder = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
    Path::new(&manifest_folder)
        .parent()
        .expect("xtask lies inside the workspace")
        .to_owned()
}
