//! Integration tests of `tree-core`, in one binary.

mod advantage;
mod backup;
mod credit;
mod forest;
mod mix;
mod objective;
mod parity;
mod plan;
mod ratio;
mod subforest;
mod support;
mod toy;
mod window;
