//! The program as its users meet it: every test runs the real binary.

mod bad_input;
mod pictures;
mod plan;
mod support;
mod train;
