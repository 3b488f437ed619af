//! BERT's tokenizer with BLIP's tokens: odd texts, lengths and errors.

use std::path::{Path, PathBuf};

use nn::tokenizer::{Tokenizer, TokenizerError};

const PAD: u32 = 0;
const UNKNOWN: u32 = 100;
const START: u32 = 101;
const END: u32 = 102;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

fn open() -> Tokenizer {
    Tokenizer::bert(&fixtures().join("rewards/imagereward/vocab.txt")).expect("the fixture's vocabulary")
}

#[test]
fn blip_adds_two_tokens() {
    let tokenizer = open();
    let encode = |text: &str| tokenizer.encode(text).expect("ids");
    let cat = encode("cat")[1];
    assert_eq!(tokenizer.largest_id(), 30523);
    assert_eq!(encode("[DEC]cat [ENC]"), [START, 30522, cat, 30523, END]);
    // In small letters they are brackets around a word.
    assert!(!encode("[dec] [enc]").iter().any(|id| *id > 30521));
    assert_eq!(encode("[CLS][PAD]"), [START, START, PAD, END]);
}

#[test]
fn long_texts_keep_start_and_end() {
    let tokenizer = open();
    let cat = tokenizer.encode("cat").expect("ids")[1];
    let texts = ["cat ".repeat(34), "cat ".repeat(33), "cat".to_owned(), String::new()];
    let batch = tokenizer.encode_batch(&texts, 35).expect("ids");
    let full: Vec<u32> = [vec![START], vec![cat; 33], vec![END]].concat();
    assert_eq!(batch.ids[..2], [full.clone(), full]);
    assert_eq!(batch.ids[2], [vec![START, cat, END], vec![PAD; 32]].concat());
    assert_eq!(batch.ids[3], [vec![START, END], vec![PAD; 33]].concat());
    assert_eq!(batch.lengths, [35, 35, 3, 2]);
    assert_eq!(batch.truncated.len(), 1);
    assert_eq!((batch.truncated[0].index, batch.truncated[0].tokens), (0, 36));
    assert!(matches!(
        tokenizer.encode_batch(&["cat"], 2),
        Err(TokenizerError::TooShort {
            length: 2,
            added: 2,
            ..
        })
    ));
}

#[test]
fn odd_texts_are_cleaned() {
    let tokenizer = open();
    let encode = |text: &str| tokenizer.encode(text).expect("ids");
    // Accents fall off, capitals become small, control characters vanish, Chinese characters stand alone.
    assert_eq!(encode("CAFÉ e\u{301}\0\u{1b}\u{feff}"), encode("cafe e"));
    assert_eq!(encode("\u{301}\u{200b}\0"), [START, END]);
    assert_eq!(encode("日本"), encode("日 本"));
    // A word of more than a hundred characters is unknown, one of a hundred is not.
    assert_eq!(encode(&"x".repeat(101)), [START, UNKNOWN, END]);
    assert!(encode(&"x".repeat(100)).len() > 3);
    assert_eq!(encode("🐈 a").len(), 4);
}

#[test]
fn errors_name_the_file_and_the_fix() {
    #[track_caller]
    fn refused(path: &Path, words: &str) {
        let error = Tokenizer::bert(path).expect_err("no vocabulary").to_string();
        assert!(error.contains("vocab.txt") && error.contains(words), "{error}");
        assert!(error.contains("bert-base-uncased") && !error.contains('\n'), "{error}");
    }
    let dir = tempfile::tempdir().expect("a temporary folder");
    refused(dir.path(), "no such file");
    let file = dir.path().join("vocab.txt");
    refused(&file, "no such file");
    std::fs::write(&file, "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n").expect("a file");
    refused(&file, "has no token `[MASK]`");
    std::fs::write(&file, "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\na\n").expect("a file");
    refused(dir.path(), "lines 6 and 8 are both \"a\"");
    // Windows line ends; the added tokens follow the last line.
    std::fs::write(&file, "[PAD]\r\n[UNK]\r\n[CLS]\r\n[SEP]\r\n[MASK]\r\na\r\n").expect("a file");
    let tokenizer = Tokenizer::bert(&file).expect("a vocabulary");
    assert_eq!(tokenizer.encode("a b [DEC] [ENC]").expect("ids"), [2, 5, 1, 6, 7, 3]);
    assert_eq!(tokenizer.largest_id(), 7);
}
