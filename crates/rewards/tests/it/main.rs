//! Integration tests of `rewards`.
mod clip_score;
mod composition;
mod damage;
mod fixture;
mod jpeg;
mod parity;
mod pictures;
mod preprocess;
mod resample;
