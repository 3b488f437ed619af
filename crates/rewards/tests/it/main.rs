//! Integration tests of `rewards`.
mod clip_score;
mod composition;
mod damage;
mod fixture;
mod jpeg;
mod models;
mod ocr;
#[cfg(feature = "ocr")]
mod ocr_model;
mod parity;
mod pictures;
mod preprocess;
mod reference;
mod remote;
mod resample;
mod wrong_files;
