//! Integration tests of `trainer`.

mod config;
mod credit;
mod diversity;
mod evaluate;
mod fixture;
mod gappy_run;
mod gaps;
mod noise;
mod optimiser;
mod parity;
mod prompts;
mod rollout;
mod run;
mod state;
mod tensorboard;
mod toy;
mod toy_folder;
mod update;
mod watch;
