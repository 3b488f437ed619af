//! Integration tests of `policy-sd3`.

mod adapter;
mod fixture;
mod full_size;
mod kernel;
mod schedule;
mod text;
mod transformer;
mod vae;
