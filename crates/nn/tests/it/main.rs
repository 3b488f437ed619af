//! Integration tests of `nn`.
mod tokenizer;
mod weights;
