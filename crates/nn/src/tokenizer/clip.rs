//! CLIP's byte-pair encoding as Hugging Face's fast tokenizer does it.

use std::collections::BTreeMap;
use std::path::Path;

use tokenizers::SplitDelimiterBehavior;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::replace::{Replace, ReplacePattern};
use tokenizers::normalizers::utils::Lowercase;
use tokenizers::normalizers::{NFC, Sequence as Normalizers};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence as Splitters;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::processors::roberta::RobertaProcessing;

use super::TokenizerError;
use super::folder::{Settings, TokenName, read_json};

/// Words as CLIP cuts them: English contractions, runs of letters, single digits, runs of anything else but spaces.
const WORDS: &str = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+";
/// What marks the last symbol of a word.
pub(super) const END_OF_WORD: &str = "</w>";
/// The special tokens where a folder does not name them.
pub(super) const START: &str = "<|startoftext|>";
pub(super) const END: &str = "<|endoftext|>";

/// The whole tokenizer from its two vocabulary files.
pub(super) fn pipeline(
    vocab: &Path,
    merges: &Path,
    config: &Settings,
    map: &Settings,
) -> Result<tokenizers::Tokenizer, TokenizerError> {
    let name = |of: fn(&Settings) -> &Option<TokenName>, default: &str| {
        of(config)
            .as_ref()
            .or(of(map).as_ref())
            .map_or(default, TokenName::content)
            .to_owned()
    };
    let start = name(|s| &s.bos_token, START);
    let end = name(|s| &s.eos_token, END);
    let unknown = name(|s| &s.unk_token, END);
    let (model, [start_id, end_id]) = byte_pairs(vocab, merges, [&start, &end], Some(unknown))?;
    around(model, (start, start_id), (end, end_id), vocab)
}

/// The whole tokenizer around a byte-pair encoding: what comes before it, and the tokens at both ends of a text. `path`
/// is for errors.
pub(super) fn around(
    model: BPE,
    start: (String, u32),
    end: (String, u32),
    path: &Path,
) -> Result<tokenizers::Tokenizer, TokenizerError> {
    // The pattern is a constant that compiles, so an error here cannot come from a user's file.
    let constant = |e: tokenizers::Error| TokenizerError::invalid(path, e.to_string());
    let blanks = Replace::new(ReplacePattern::Regex(r"\s+".to_owned()), " ").map_err(constant)?;
    let words = SplitPattern::Regex(WORDS.to_owned());
    let words = Split::new(words, SplitDelimiterBehavior::Removed, true).map_err(constant)?;

    let mut pipeline = tokenizers::Tokenizer::new(model);
    pipeline
        .with_normalizer(Some(Normalizers::new(vec![
            NFC.into(),
            blanks.into(),
            Lowercase.into(),
        ])))
        .map_err(constant)?;
    pipeline.with_pre_tokenizer(Some(Splitters::new(vec![
        words.into(),
        ByteLevel::new(false, true, true).into(),
    ])));
    pipeline.with_post_processor(Some(RobertaProcessing::new(end, start).trim_offsets(false)));
    Ok(pipeline)
}

/// The byte-pair encoding of two vocabulary files, and the ids of the named tokens.
pub(super) fn byte_pairs(
    vocab: &Path,
    merges: &Path,
    names: [&str; 2],
    unknown: Option<String>,
) -> Result<(BPE, [u32; 2]), TokenizerError> {
    // Looked at first, because the library's own errors do not say which of its two files is at fault.
    let table: BTreeMap<String, u32> = read_json(vocab)?
        .ok_or_else(|| TokenizerError::invalid(vocab, "the file vanished while it was read".to_owned()))?;
    let mut ids = [0; 2];
    for (id, name) in ids.iter_mut().zip(names) {
        *id = *table.get(name).ok_or_else(|| {
            let why = format!("has no token `{name}`; is this the vocabulary of a CLIP tokenizer?");
            TokenizerError::invalid(vocab, why)
        })?;
    }

    let (Some(vocab_name), Some(merges_name)) = (vocab.to_str(), merges.to_str()) else {
        let why = "the path is not valid UTF-8; rename the folder".to_owned();
        return Err(TokenizerError::invalid(vocab, why));
    };
    let mut model = BPE::from_file(vocab_name, merges_name).end_of_word_suffix(END_OF_WORD.to_owned());
    if let Some(unknown) = unknown {
        model = model.unk_token(unknown);
    }
    let model = model
        .build()
        .map_err(|e| TokenizerError::invalid(merges, format!("does not fit vocab.json: {e}; copy both files again")))?;
    Ok((model, ids))
}
