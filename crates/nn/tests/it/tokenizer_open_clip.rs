//! The CLIP tokenizer of open_clip: odd texts against its own ids, the forms of its vocabulary, lengths and errors.

use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use nn::tokenizer::{Tokenizer, TokenizerError};
use proptest::prelude::*;
use tokenizers::AddedToken;
use tokenizers::models::bpe::BPE;

const START: u32 = 49406;
const END: u32 = 49407;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// CLIP's vocabulary in the form of Hugging Face.
fn vocabulary() -> PathBuf {
    root().join("fixtures/sd3/tokenizer")
}

fn open() -> Tokenizer {
    Tokenizer::open_clip(&vocabulary()).expect("the fixture's vocabulary")
}

/// Runs over every text and reports all that differ at once.
#[track_caller]
fn assert_all<T: PartialEq + std::fmt::Debug>(rows: impl Iterator<Item = (String, T, T)>) {
    let wrong: Vec<String> = rows
        .filter(|(_, found, expected)| found != expected)
        .map(|(text, found, expected)| format!("{text:?}\n  found    {found:?}\n  expected {expected:?}"))
        .collect();
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// Texts with mojibake, entities and escapes; `tools/odd_texts.py` has written down what open_clip makes of them.
#[test]
fn parity_ids_of_odd_texts() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/odd_texts.jsonl");
    let lines = std::fs::read_to_string(path).expect("the texts");
    let rows: Vec<(String, Vec<u32>)> = lines
        .lines()
        .map(|line| serde_json::from_str(line).expect("a row"))
        .collect();
    assert!(rows.len() > 400, "{} rows", rows.len());
    let tokenizer = open();
    assert_all(rows.into_iter().map(|(text, expected)| {
        let found = tokenizer.encode(&text).expect("ids");
        (text, found, expected)
    }));
}

#[test]
fn texts_are_repaired_and_cleaned() {
    let tokenizer = open();
    let pairs = [
        ("  Two\t\n\u{3000}Words\u{1f} ", "two words"),
        ("cafÃ© â€œquotedâ€\u{9d} itâ€™s", "café \"quoted\" it's"),
        // UTF-8 read as windows-1252, twice.
        ("cafÃƒÂ©", "café"),
        ("ﬁne ＡＢＣ ‘x’", "fine abc 'x'"),
        ("\u{1b}[1;31mred\u{1b}[0m\u{0}\u{feff}", "red"),
        ("e\u{301}", "é"),
        ("ΣΊΣΥΦΟΣ", "σίσυφος"),
        // Once by ftfy until nothing changes, and twice without need of a semicolon.
        ("&amp;amp;amp;lt; &NTILDE;", "< ñ"),
        ("<b> &amp;amp; &copy &notit;", "<b> & © ¬it;"),
        // Windows-1252 by its number; numbers that are no characters; numbers that are controls.
        ("&#150;&#xD800;&#99999999999;&#7;x", "–\u{fffd}\u{fffd}x"),
        // Not an entity, and not one without its semicolon.
        ("&nosuch; &Aacut", "&nosuch; &aacut"),
    ];
    assert_all(pairs.into_iter().map(|(text, clean)| {
        let encode = |text: &str| tokenizer.encode(text).expect("ids");
        (text.to_owned(), encode(text), encode(clean))
    }));
    // The pairs say something only if what is compared with is not itself changed into something else.
    assert_ne!(
        tokenizer.encode("café").expect("ids"),
        tokenizer.encode("cafa©").expect("ids")
    );
}

#[test]
fn special_tokens_in_a_text_are_those_of_open_clip() {
    let tokenizer = open();
    let encode = |text: &str| tokenizer.encode(text).expect("ids");
    let cat = encode("cat")[1];
    assert_eq!(encode("<start_of_text>cat<END_OF_TEXT>"), [START, START, cat, END, END]);
    // A run of signs takes the bracket with it.
    assert!(!encode("!<end_of_text>")[..5].contains(&END));
    let plain = encode("<|startoftext|> <|endoftext|>");
    assert_eq!(plain.iter().filter(|id| **id >= START).count(), 2, "{plain:?}");
    // `!` is an ordinary sign, although its letter is the padding.
    assert_eq!(encode("!"), [START, 256, END]);
}

#[test]
fn long_texts_keep_start_and_end() {
    let tokenizer = open();
    let cat = tokenizer.encode("cat").expect("ids")[1];
    let batch = tokenizer
        .encode_batch(
            &["cat ".repeat(80), "cat ".repeat(75), "cat".to_owned(), String::new()],
            77,
        )
        .expect("ids");
    let full: Vec<u32> = [vec![START], vec![cat; 75], vec![END]].concat();
    assert_eq!(batch.ids[..2], [full.clone(), full]);
    assert_eq!(batch.ids[2], [vec![START, cat, END], vec![0; 74]].concat());
    assert_eq!(batch.ids[3], [vec![START, END], vec![0; 75]].concat());
    assert_eq!(batch.lengths, [77, 77, 3, 2]);
    assert_eq!(batch.truncated.len(), 1);
    assert_eq!((batch.truncated[0].index, batch.truncated[0].tokens), (0, 82));
    assert_eq!((tokenizer.pad_id(), tokenizer.largest_id()), (0, END));
    assert!(matches!(
        tokenizer.encode_batch(&["cat"], 2),
        Err(TokenizerError::TooShort {
            length: 2,
            added: 2,
            ..
        })
    ));
}

/// Each level of `&amp;` takes a pass, and the passes over one line are limited.
#[test]
fn mistakes_inside_each_other_come_to_an_end() {
    let tokenizer = open();
    let nested = |levels: usize| format!("&{}lt;", "amp;".repeat(levels));
    let small = tokenizer.encode("<").expect("ids");
    assert_eq!(tokenizer.encode(&nested(500)).expect("ids"), small);
    // A hundred thousand passes over so long a line would take an hour.
    for text in [nested(100_000), format!("Ã{}", "ƒ".repeat(100_000))] {
        let batch = tokenizer.encode_batch(&[text], 77).expect("ids");
        assert_eq!(batch.truncated.len(), 1);
    }
}

/// One vocabulary in all the forms that are accepted.
#[test]
fn every_form_of_the_vocabulary_gives_the_same_ids() {
    let (vocab, merges) = (vocabulary().join("vocab.json"), vocabulary().join("merges.txt"));
    let list = std::fs::read(&merges).expect("the merges");
    let dir = tempfile::tempdir().expect("a temporary folder");
    let folder = |name: &str| {
        let path = dir.path().join(name);
        std::fs::create_dir(&path).expect("a folder");
        path
    };

    // As open_clip carries it: with many more merges than CLIP uses.
    let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
    packed
        .write_all(&[&list[..], b"not used\n"].concat())
        .expect("compressed");
    let gz = folder("gz").join("bpe_simple_vocab_16e6.txt.gz");
    std::fs::write(&gz, packed.finish().expect("compressed")).expect("a file");
    let txt = folder("txt").join("bpe_simple_vocab_16e6.txt");
    std::fs::write(&txt, &list).expect("a file");

    let whole = folder("json").join("tokenizer.json");
    let model = BPE::from_file(vocab.to_str().expect("a name"), merges.to_str().expect("a name"))
        .end_of_word_suffix("</w>".to_owned())
        .build()
        .expect("byte pairs");
    let mut pipeline = tokenizers::Tokenizer::new(model);
    let special = ["<|startoftext|>", "<|endoftext|>"].map(|name| AddedToken::from(name, true));
    pipeline.add_special_tokens(special).expect("added tokens");
    pipeline.save(&whole, false).expect("a file");

    let texts = [
        "A photo of two wine glasses!",
        "naïve 日本語 🐈 it's 2024",
        "<end_of_text>",
    ];
    let expected = open().encode_batch(&texts, 77).expect("ids");
    let built_in = Tokenizer::built_in_open_clip().expect("built in");
    assert_eq!(built_in.encode_batch(&texts, 77).expect("ids"), expected);
    let parent = |path: &Path| path.parent().expect("a folder").to_owned();
    for path in [parent(&gz), parent(&txt), parent(&whole), gz, txt, merges] {
        let tokenizer = Tokenizer::open_clip(&path).expect("a vocabulary");
        assert_eq!(
            tokenizer.encode_batch(&texts, 77).expect("ids"),
            expected,
            "{}",
            path.display()
        );
        assert_eq!((tokenizer.largest_id(), tokenizer.dir()), (END, path.as_path()));
    }
}

/// The error of opening a vocabulary: one line that names `file`, holds `words` and says what is accepted.
#[track_caller]
fn refused(path: &Path, file: &str, words: &str) {
    let error = Tokenizer::open_clip(path).expect_err("no vocabulary").to_string();
    assert!(error.contains(file) && error.contains(words), "{error}");
    assert!(!error.contains('\n'), "{error}");
    for accepted in [
        "tokenizer.json",
        "vocab.json and merges.txt",
        "bpe_simple_vocab_16e6.txt.gz",
    ] {
        assert!(error.contains(accepted), "{error}");
    }
}

#[test]
fn errors_say_what_is_accepted_and_where_it_comes_from() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    refused(dir.path(), &dir.path().display().to_string(), "open_clip_torch");
    refused(
        &dir.path().join("absent.txt.gz"),
        "absent.txt.gz",
        "no such file or folder",
    );
    let t5 = root().join("fixtures/sd3/tokenizer_3");
    refused(&t5, "tokenizer.json", "not the tokenizer of a CLIP model");

    let list = std::fs::read_to_string(vocabulary().join("merges.txt")).expect("the merges");
    let short = dir.path().join("bpe_simple_vocab_16e6.txt");
    std::fs::write(&short, &list[..list.len() / 2]).expect("a file");
    refused(dir.path(), "bpe_simple_vocab_16e6.txt", "cut short");
    std::fs::write(&short, list.replacen("\ni n\n", "\ni zzzz\n", 1)).expect("a file");
    refused(&short, "bpe_simple_vocab_16e6.txt", "not CLIP's merges");
    std::fs::write(&short, b"\x1f\x8bnot compressed").expect("a file");
    refused(&short, "bpe_simple_vocab_16e6.txt", "not a list of merges");
    // Without its heading every merge would have the rank of the one before it.
    std::fs::write(&short, list.split_once('\n').expect("lines").1).expect("a file");
    refused(&short, "bpe_simple_vocab_16e6.txt", "names a #version");

    // A vocabulary without all bytes would lose the others.
    let tiny = r#"{"a": 0, "a</w>": 1, "<|startoftext|>": 2, "<|endoftext|>": 3}"#;
    std::fs::write(dir.path().join("vocab.json"), tiny).expect("a file");
    std::fs::write(dir.path().join("merges.txt"), "#version: 0.2\n").expect("a file");
    refused(dir.path(), &dir.path().display().to_string(), "has no token `Ā`");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Any text, read with any wrong encoding, gives ids inside the vocabulary between a start and an end, and the
    /// same ones again beside any other text.
    #[test]
    fn any_text_gives_valid_ids(
        text in prop_oneof![any::<String>(), "[ÃÂâã€™\u{80}-\u{bf}ƒ&amp;#x<>0-9\\x00-\\x20ΣÀ\\n]{0,40}"],
        length in 3_usize..100,
    ) {
        thread_local! {
            static TOKENIZER: Tokenizer = open();
        }
        let misread: String = text.bytes().map(char::from).collect();
        TOKENIZER.with(|tokenizer| {
            for text in [text, misread] {
                let batch = tokenizer.encode_batch(&[&text, "a cat", &text], length).expect("ids");
                let whole = tokenizer.encode(&text).expect("ids");
                let kept = whole.len().min(length);
                prop_assert_eq!(batch.ids[0].len(), length);
                prop_assert_eq!(&batch.ids[0], &batch.ids[2]);
                prop_assert_eq!(batch.lengths[0], kept);
                prop_assert_eq!(&batch.ids[0][..kept - 1], &whole[..kept - 1]);
                prop_assert_eq!((whole[0], batch.ids[0][kept - 1]), (START, END));
                prop_assert!(whole.iter().all(|id| *id <= END));
                prop_assert!(batch.ids[0][kept..].iter().all(|id| *id == 0));
            }
            Ok(())
        })?;
    }
}
