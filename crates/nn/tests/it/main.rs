//! Integration tests of `nn`.
mod fixture;
mod fused;
mod pytorch;
mod tokenizer;
mod weights;
