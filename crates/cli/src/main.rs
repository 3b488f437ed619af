//! `treegrpo`: train image generators by search trees, and look at what came of it.
//!
//! `main` reads the arguments, runs one command and turns whatever went wrong into one line. Each command is a module.
//!
//! Invariant: only this crate knows command lines, terminals and HTML, and it holds no mathematics of the method.

mod device;
mod generate;
mod output;
mod plan;
mod progress;
mod prompts;
mod report;
mod score;
mod train;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// The system's allocator gives large blocks back to the kernel and takes them again, zeroed page by page. A product
/// whose output is a few MB spends half of its time on those page faults; mimalloc keeps the pages.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Train image generators of the Stable Diffusion 3 family by reinforcement learning on search trees
#[derive(Parser)]
#[command(name = "treegrpo", version, arg_required_else_help = true, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  treegrpo plan configs/emoji.toml
  treegrpo train configs/emoji.toml --set train.iterations=20
  treegrpo generate --model assets/emoji-sd3 --adapter runs/emoji/checkpoints/best --prompt \"flat icon of a cat\" --out cat.png
  treegrpo score --scorer clip=assets/emoji-sd3/scorer --image cat.png --prompt \"flat icon of a cat\"";

#[derive(Subcommand)]
enum Command {
    Train(train::Train),
    Plan(plan::PlanCommand),
    Generate(generate::Generate),
    Score(score::Score),
    Report(report::Report),
}

fn main() -> ExitCode {
    let result = match Arguments::parse().command {
        Command::Train(command) => command.run(),
        Command::Plan(command) => command.run(),
        Command::Generate(command) => command.run(),
        Command::Score(command) => command.run(),
        Command::Report(command) => command.run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read our output has seen enough, as `head` has after ten lines.
        Err(error) if output::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {}", output::one_line(&error));
            ExitCode::FAILURE
        }
    }
}
