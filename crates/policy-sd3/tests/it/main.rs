//! Integration tests of `policy-sd3`.
mod fixture;
mod text;
mod transformer;
mod kernel;
mod schedule;
mod vae;
