//! The tokenizers of reward models against the reference libraries: open_clip's, BERT's and Hugging Face's CLIP.

use std::path::{Path, PathBuf};

use nn::tokenizer::{Tokenizer, TokenizerError};
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

/// The number of tokens of each text that are its own; a padding mask is made of it.
#[test]
fn lengths_leave_padding_out() {
    let tokenizer = Tokenizer::built_in_bert().expect("built in");
    let long = "red ".repeat(50);
    let batch = tokenizer.encode_batch(&["a cat", "", &long], 35).expect("ids");
    // [CLS] a cat [SEP]; [CLS] [SEP]; cut to 35.
    assert_eq!(batch.lengths, [4, 2, 35]);
    assert_eq!(batch.ids[2][34], 102, "a text that is cut still ends with [SEP]");
    assert_eq!((batch.truncated[0].index, batch.truncated[0].tokens), (2, 52));
}

/// What open_clip's cleaning does that Hugging Face's tokenizer does not: entities twice, mojibake, full-width letters.
#[test]
fn open_clip_repairs_texts_first() {
    let tokenizer = Tokenizer::built_in_open_clip().expect("built in");
    for (odd, plain) in [
        ("fish &amp;amp; chips", "fish & chips"),
        ("caf\u{c3}\u{a9}", "café"),
        ("ｆｕｌｌ ｗｉｄｔｈ", "full width"),
        ("\u{201c}quoted\u{201d}", "\"quoted\""),
        ("  A\tCAT\n", "a cat"),
    ] {
        let [odd_ids, plain_ids] = [odd, plain].map(|text| tokenizer.encode(text).expect("ids"));
        assert_eq!(odd_ids, plain_ids, "{odd:?}");
    }
}

#[test]
fn a_missing_or_wrong_vocabulary_says_what_is_accepted() {
    let empty = tempfile::tempdir().expect("a folder");
    let missing = |error: TokenizerError, part: &str| {
        let text = error.to_string();
        assert!(text.contains(part), "{text}");
    };
    for path in [empty.path().to_owned(), empty.path().join("absent.txt")] {
        missing(
            Tokenizer::open_clip(&path).expect_err("nothing there"),
            "bpe_simple_vocab_16e6.txt.gz",
        );
        missing(Tokenizer::bert(&path).expect_err("nothing there"), "bert-base-uncased");
    }
    let wrong = empty.path().join("words.txt");
    std::fs::write(&wrong, "one\ntwo\n").expect("written");
    missing(Tokenizer::open_clip(&wrong).expect_err("no merges"), "merges");
    missing(Tokenizer::bert(&wrong).expect_err("no vocabulary"), "[PAD]");
}
