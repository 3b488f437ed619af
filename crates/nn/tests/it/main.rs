//! Integration tests of `nn`.
mod clip;
mod fixture;
mod fused;
mod pytorch;
mod tokenizer;
mod weights;
