//! Integration tests of `trainer`.
