//! Integration tests of `nn`.
mod clip;
mod fixture;
mod full_size;
mod fused;
mod pytorch;
mod reward_tokenizers;
mod tokenizer;
mod tokenizer_bert;
mod tokenizer_open_clip;
mod weights;
