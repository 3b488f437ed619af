//! Integration tests of `nn`.
mod fused;
mod tokenizer;
mod weights;
