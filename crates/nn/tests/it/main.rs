//! Integration tests of `nn`.
mod tokenizer;
