//! The tokenizers of reward models against the reference libraries: open_clip's, BERT's and Hugging Face's CLIP.

use std::path::{Path, PathBuf};

use nn::tokenizer::Tokenizer;
use serde::Deserialize;

/// Ids of one text by each tokenizer.
#[derive(Deserialize)]
struct Ids {
    clip: Vec<u32>,
    clip_pad_eos: Vec<u32>,
    open_clip: Vec<u32>,
    bert: Vec<u32>,
    bert_35: Vec<u32>,
}

#[derive(Deserialize)]
struct Inputs {
    strings: Vec<String>,
}

#[derive(Deserialize)]
struct Expected {
    ids: Vec<Ids>,
}

#[derive(Deserialize)]
struct Reference {
    inputs: Inputs,
    expected: Expected,
}

fn root() -> PathBuf {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    std::env::var_os("PARITY_FIXTURES").map_or(own, PathBuf::from)
}

fn reference() -> Reference {
    let text = std::fs::read_to_string(root().join("tokenizers.json")).expect("the fixture");
    serde_json::from_str(&text).expect("the fixture's layout")
}

/// Compares one tokenizer with the reference on every text, and says which text differs first.
#[track_caller]
fn check(tokenizer: &Tokenizer, length: Option<usize>, ids: fn(&Ids) -> &Vec<u32>) {
    let Reference { inputs, expected } = reference();
    for (text, expected) in inputs.strings.iter().zip(&expected.ids) {
        let found = match length {
            None => tokenizer.encode(text).expect("ids"),
            Some(length) => tokenizer.encode_batch(&[text], length).expect("ids").ids.remove(0),
        };
        assert_eq!(&found, ids(expected), "{text:?}");
    }
}

#[test]
fn parity_of_open_clip() {
    check(&Tokenizer::built_in_open_clip().expect("built in"), Some(77), |ids| {
        &ids.open_clip
    });
    // The same vocabulary from the files of a Hugging Face folder.
    let folder = Tokenizer::open_clip(&root().join("rewards/clip_l")).expect("a folder");
    check(&folder, Some(77), |ids| &ids.open_clip);
    let list = Tokenizer::open_clip(&root().join("rewards/clip_l/merges.txt")).expect("a list of merges");
    check(&list, Some(77), |ids| &ids.open_clip);
}

#[test]
fn parity_of_bert() {
    for tokenizer in [
        Tokenizer::built_in_bert().expect("built in"),
        Tokenizer::bert(&root().join("rewards/imagereward")).expect("a folder"),
    ] {
        check(&tokenizer, None, |ids| &ids.bert);
        check(&tokenizer, Some(35), |ids| &ids.bert_35);
        assert_eq!(
            tokenizer.largest_id(),
            30_523,
            "[ENC] is the last of the two that BLIP adds"
        );
    }
}

#[test]
fn parity_of_the_built_in_clip() {
    let tokenizer = Tokenizer::built_in_clip().expect("built in");
    check(&tokenizer, None, |ids| &ids.clip);
    check(&tokenizer, Some(77), |ids| &ids.clip_pad_eos);
    assert_eq!(tokenizer.max_length(), Some(77));
}
