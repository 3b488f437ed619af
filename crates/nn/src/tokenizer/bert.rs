//! BERT's WordPiece tokenizer, uncased, as BLIP extends it.

use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use tokenizers::AddedToken;
use tokenizers::models::bpe::Vocab;
use tokenizers::models::wordpiece::WordPiece;
use tokenizers::normalizers::BertNormalizer;
use tokenizers::pre_tokenizers::bert::BertPreTokenizer;
use tokenizers::processors::bert::BertProcessing;

use super::TokenizerError;

/// The vocabulary of uncased BERT, compressed.
const BUILT_IN: &[u8] = include_bytes!("../../vocabularies/bert_uncased_vocab.txt.gz");
const UNKNOWN: &str = "[UNK]";
const PADDING: &str = "[PAD]";
const START: &str = "[CLS]";
const END: &str = "[SEP]";
const MASK: &str = "[MASK]";
/// What BLIP adds: the first tokens of a text to be written and of one to be read with a picture.
const ADDED: [&str; 2] = ["[DEC]", "[ENC]"];
/// Words of more characters than this are unknown.
const LONGEST_WORD: usize = 100;
/// What can be named, and where it comes from.
const ACCEPTED: &str = "name vocab.txt of google-bert/bert-base-uncased on Hugging Face, or a folder that holds it";

/// The tokenizer of a `vocab.txt`, one token a line, or of the folder that holds it; and its padding token.
pub(super) fn open(path: &Path) -> Result<(tokenizers::Tokenizer, u32), TokenizerError> {
    let inside = path.join("vocab.txt");
    let path = if path.is_dir() { &inside } else { path };
    let text = std::fs::read_to_string(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => TokenizerError::missing(path, format!("no such file; {ACCEPTED}")),
        _ => TokenizerError::io(path, error),
    })?;
    parse(path, &text)
}

/// The vocabulary that the program carries.
pub(super) fn built_in() -> Result<(tokenizers::Tokenizer, u32), TokenizerError> {
    let path = Path::new(BUILT_IN_NAME);
    let mut text = String::new();
    let mut list = GzDecoder::new(BUILT_IN);
    list.read_to_string(&mut text)
        .map_err(|error| TokenizerError::io(path, error))?;
    parse(path, &text)
}

/// What errors call the built-in vocabulary.
pub(super) const BUILT_IN_NAME: &str = "the built-in vocabulary of BERT";

/// The tokenizer of a vocabulary, one token a line, which `path` names in errors.
fn parse(path: &Path, text: &str) -> Result<(tokenizers::Tokenizer, u32), TokenizerError> {
    let invalid = |why: String| TokenizerError::invalid(path, why);

    let mut vocab = Vocab::default();
    for (token, id) in text.lines().zip(0_u32..) {
        if let Some(earlier) = vocab.insert(token.to_owned(), id) {
            let (first, second) = (earlier + 1, id + 1);
            return Err(invalid(format!(
                "lines {first} and {second} are both {token:?}; {ACCEPTED}"
            )));
        }
    }
    for needed in [PADDING, UNKNOWN, START, END, MASK] {
        if !vocab.contains_key(needed) {
            return Err(invalid(format!("has no token `{needed}`; {ACCEPTED}")));
        }
    }
    let [pad, start, end] = [PADDING, START, END].map(|name| vocab[name]);

    let refused = |e: tokenizers::Error| invalid(e.to_string());
    let model = WordPiece::builder()
        .vocab(vocab)
        .unk_token(UNKNOWN.to_owned())
        .max_input_chars_per_word(LONGEST_WORD)
        .build()
        .map_err(refused)?;
    let mut pipeline = tokenizers::Tokenizer::new(model);
    pipeline
        .with_normalizer(Some(BertNormalizer::new(true, true, None, true)))
        .map_err(refused)?;
    pipeline.with_pre_tokenizer(Some(BertPreTokenizer));
    pipeline.with_post_processor(Some(BertProcessing::new(
        (END.to_owned(), end),
        (START.to_owned(), start),
    )));
    let special = [PADDING, UNKNOWN, START, END, MASK].into_iter().chain(ADDED);
    pipeline
        .add_special_tokens(special.map(|name| AddedToken::from(name, true)))
        .map_err(refused)?;
    Ok((pipeline, pad))
}
