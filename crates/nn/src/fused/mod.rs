//! Operations that the CPU engine would take in many passes, or element by element through the C library, done in one.
//!
//! Each is a method of the trait `FusedOps` with a default body of plain tensor operations, which is the reference and what
//! every other device runs; the CPU backend overrides it, and a property test holds the two together. The derivative is
//! an operation of the same kind.

mod gated;
#[cfg(feature = "flex")]
mod host;

pub use gated::{Gate, gated};
