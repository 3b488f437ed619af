//! Tokenizers at the edges: odd texts, broken folders, lengths.

use std::path::{Path, PathBuf};

use nn::tokenizer::{Tokenizer, TokenizerError};
use proptest::prelude::*;

/// The project's own fixture: these tests are about odd texts and folders, not about reference values.
fn pipeline() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/sd3")
}

fn open(name: &str) -> Tokenizer {
    Tokenizer::open(&pipeline().join(name)).expect("the fixture's tokenizer")
}

/// The smallest CLIP-like folder: eight tokens, one merge.
fn tiny_clip() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let vocab =
        r#"{"!": 0, "a": 1, "b": 2, "a</w>": 3, "b</w>": 4, "ab</w>": 5, "<|startoftext|>": 6, "<|endoftext|>": 7}"#;
    write(dir.path(), "vocab.json", vocab);
    write(dir.path(), "merges.txt", "#version: 0.2\na b</w>\n");
    write(
        dir.path(),
        "tokenizer_config.json",
        r#"{"model_max_length": 6, "pad_token": "!"}"#,
    );
    dir
}

fn write(dir: &Path, name: &str, text: &str) {
    std::fs::write(dir.join(name), text).expect("a written file");
}

/// The error of opening a folder, which must name `file` and hold `words`.
#[track_caller]
fn refused(dir: &Path, file: &str, words: &str) {
    let error = Tokenizer::open(dir).expect_err("the folder is broken").to_string();
    assert!(error.contains(file) && error.contains(words), "{error}");
}

#[test]
fn a_tiny_folder_is_read_as_it_says() {
    let dir = tiny_clip();
    let tokenizer = Tokenizer::open(dir.path()).expect("a tokenizer");
    assert_eq!(
        (tokenizer.pad_id(), tokenizer.max_length(), tokenizer.largest_id()),
        (0, Some(6), 7)
    );
    // Upper case, composed spaces and the pad token inside the text.
    assert_eq!(tokenizer.encode("  AB\t\n b!a").expect("ids"), [6, 5, 4, 0, 3, 7]);
    let batch = tokenizer.encode_batch(&["a", "ab ab ab ab ab"], 6).expect("ids");
    assert_eq!(batch.ids, [vec![6, 3, 7, 0, 0, 0], vec![6, 5, 5, 5, 5, 7]]);
    assert_eq!(batch.lengths, [3, 6]);
    assert_eq!(batch.truncated.len(), 1);
    assert_eq!((batch.truncated[0].index, batch.truncated[0].tokens), (1, 7));
}

#[test]
fn the_empty_text_is_only_what_the_tokenizer_adds() {
    for name in ["tokenizer", "tokenizer_2", "tokenizer_3"] {
        let tokenizer = open(name);
        let whole = tokenizer.encode("").expect("ids");
        let batch = tokenizer.encode_batch(&[""], 9).expect("ids");
        assert_eq!(batch.ids[0][..whole.len()], whole, "{name}");
        assert!(
            batch.ids[0][whole.len()..].iter().all(|id| *id == tokenizer.pad_id()),
            "{name}"
        );
        assert!(batch.truncated.is_empty(), "{name}");
    }
    // CLIP drops blanks; T5 has a piece for them.
    let clip = open("tokenizer");
    assert_eq!(clip.encode(" \t\n").expect("ids"), clip.encode("").expect("ids"));
}

#[test]
fn very_long_texts_are_cut_and_counted() {
    let words = "a detailed painting of a castle, ".repeat(4000);
    let one_word = "x".repeat(60_000);
    for name in ["tokenizer", "tokenizer_2", "tokenizer_3"] {
        let tokenizer = open(name);
        let length = tokenizer.max_length().expect("the fixture names a length");
        let batch = tokenizer.encode_batch(&[&words, &one_word], length).expect("ids");
        assert_eq!(batch.truncated.len(), 2, "{name}");
        for (row, text) in batch.ids.iter().zip([&words, &one_word]) {
            let whole = tokenizer.encode(text).expect("ids");
            assert_eq!(row.len(), length, "{name}");
            assert_eq!(row.last(), whole.last(), "{name}: the end token is kept");
            assert_eq!(row[..length - 1], whole[..length - 1], "{name}");
        }
    }
}

#[test]
fn a_length_without_room_for_text_is_refused() {
    let error = open("tokenizer")
        .encode_batch(&["a cat"], 2)
        .expect_err("two tokens are the tokenizer's own");
    assert!(
        matches!(
            error,
            TokenizerError::TooShort {
                length: 2,
                added: 2,
                ..
            }
        ),
        "{error}"
    );
    assert!(open("tokenizer_3").encode_batch(&["a cat"], 1).is_err());
}

#[test]
fn errors_name_the_file_and_the_fix() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    refused(
        dir.path(),
        &dir.path().display().to_string(),
        "no tokenizer.json here, nor both vocab.json and merges.txt",
    );
    refused(&dir.path().join("absent"), "absent", "copy the tokenizer's files");

    let dir = tiny_clip();
    std::fs::remove_file(dir.path().join("merges.txt")).expect("a removed file");
    refused(dir.path(), "merges.txt", "copy the tokenizer's files");
    write(dir.path(), "merges.txt", "#version: 0.2\nq z\n");
    refused(dir.path(), "merges.txt", "does not fit vocab.json");
    write(dir.path(), "merges.txt", "#version: 0.2\none two three\n");
    refused(dir.path(), "merges.txt", "does not fit vocab.json");

    let dir = tiny_clip();
    write(dir.path(), "vocab.json", r#"{"a": 0}"#);
    refused(dir.path(), "vocab.json", "<|startoftext|>");
    write(dir.path(), "vocab.json", "<html>");
    refused(dir.path(), "vocab.json", "not the JSON");

    let dir = tiny_clip();
    write(
        dir.path(),
        "tokenizer_config.json",
        r#"{"model_max_length": 0, "pad_token": "!"}"#,
    );
    refused(dir.path(), "tokenizer_config.json", "model_max_length");
    let other = r#"{"added_tokens_decoder": {"5": {"content": "<|endoftext|>", "special": true}}}"#;
    write(dir.path(), "tokenizer_config.json", other);
    refused(dir.path(), "tokenizer_config.json", "different tokenizers");

    let dir = tempfile::tempdir().expect("a temporary folder");
    write(dir.path(), "tokenizer.json", "{");
    refused(dir.path(), "tokenizer.json", "not a tokenizer");
    std::fs::copy(
        pipeline().join("tokenizer_3/tokenizer.json"),
        dir.path().join("tokenizer.json"),
    )
    .expect("a copy");
    refused(dir.path(), "tokenizer_config.json", "pad_token");
    write(
        dir.path(),
        "tokenizer_config.json",
        r#"{"pad_token": "<pad>", "model_max_length": 1e30}"#,
    );
    assert_eq!(Tokenizer::open(dir.path()).expect("a tokenizer").max_length(), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any text, control characters included, gives `length` ids inside the vocabulary, and the same ones again
    /// beside any other text.
    #[test]
    fn any_text_gives_valid_ids(text in any::<String>(), other in "\\PC{0,40}", length in 3_usize..100) {
        thread_local! {
            static TOKENIZERS: Vec<Tokenizer> = ["tokenizer", "tokenizer_2", "tokenizer_3"].map(open).into();
        }
        TOKENIZERS.with(|tokenizers| {
            for tokenizer in tokenizers {
                let batch = tokenizer.encode_batch(&[&text, &other, &text], length).expect("ids");
                for row in &batch.ids {
                    prop_assert_eq!(row.len(), length);
                    prop_assert!(row.iter().all(|id| *id <= tokenizer.largest_id()));
                }
                prop_assert_eq!(&batch.ids[0], &batch.ids[2]);
                let whole = tokenizer.encode(&text).expect("ids");
                prop_assert_eq!(batch.lengths[0], whole.len().min(length));
                let cut = batch.truncated.iter().find(|t| t.index == 0);
                prop_assert_eq!(cut.map(|t| t.tokens), (whole.len() > length).then_some(whole.len()));
            }
            Ok(())
        })?;
    }
}
