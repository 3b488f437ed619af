//! Tokenizers, built from the files that lie in a pipeline's or a model's own folder.
//!
//! Invariant: token ids, vocabulary sizes, padding and special tokens all come from the files.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::replace::{Replace, ReplacePattern};
use tokenizers::normalizers::utils::Lowercase;
use tokenizers::normalizers::{NFC, Sequence as Normalizers};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence as Splitters;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::processors::roberta::RobertaProcessing;
use tokenizers::{AddedToken, PostProcessor, SplitDelimiterBehavior, TruncationDirection};

/// Words as CLIP cuts them: English contractions, runs of letters, single digits, runs of anything else but spaces.
const CLIP_WORDS: &str = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+";
/// CLIP's special tokens where a folder does not name them.
const CLIP_START: &str = "<|startoftext|>";
const CLIP_END: &str = "<|endoftext|>";
/// A `model_max_length` above this is a placeholder for "no limit".
const LONGEST_MEANT: f64 = 1e9;

/// Why a tokenizer could not be opened or used. Every variant names the file or folder.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// The folder holds no complete set of tokenizer files.
    #[error("{}: {missing}; copy the tokenizer's files of the same checkpoint into this folder", dir.display())]
    Missing {
        /// The folder.
        dir: PathBuf,
        /// What was looked for.
        missing: String,
    },
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file does not say what a tokenizer needs.
    #[error("{}: {why}", path.display())]
    Invalid {
        /// The file.
        path: PathBuf,
        /// What is wrong and what to do.
        why: String,
    },
    /// The asked length leaves no room for a single token of text.
    #[error("{}: a length of {length} tokens is too short, this tokenizer adds {added} of its own; ask for more than {added}", dir.display())]
    TooShort {
        /// The tokenizer's folder.
        dir: PathBuf,
        /// The length asked for.
        length: usize,
        /// Tokens that the tokenizer adds to every text.
        added: usize,
    },
    /// The tokenizer refused a text.
    #[error("{}: a text could not be encoded: {why}", dir.display())]
    Encode {
        /// The tokenizer's folder.
        dir: PathBuf,
        /// The tokenizer's words.
        why: String,
    },
}

/// Texts of one batch as token ids of one length.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenBatch {
    /// `[texts][length]`.
    pub ids: Vec<Vec<u32>>,
    /// The texts that were too long, in order.
    pub truncated: Vec<TruncatedText>,
}

/// A text that did not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TruncatedText {
    /// Its place in the batch.
    pub index: usize,
    /// How many tokens the whole text has, those that the tokenizer adds included.
    pub tokens: usize,
}

/// A tokenizer as its folder describes it.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    dir: PathBuf,
    pad: u32,
    max_length: Option<usize>,
    largest_id: u32,
}

impl Tokenizer {
    /// Opens a folder that holds `tokenizer.json`, or CLIP's `vocab.json` and `merges.txt`; beside them
    /// `tokenizer_config.json` and `special_tokens_map.json` name the padding token, the special tokens and the
    /// greatest length.
    ///
    /// # Errors
    ///
    /// A file is missing or malformed, names special tokens that the vocabulary lacks, or no padding token is named.
    pub fn open(dir: &Path) -> Result<Self, TokenizerError> {
        let config_path = dir.join("tokenizer_config.json");
        let config: Settings = read_json(&config_path)?.unwrap_or_default();
        let map: Settings = read_json(&dir.join("special_tokens_map.json"))?.unwrap_or_default();

        let whole = dir.join("tokenizer.json");
        let (vocab, merges) = (dir.join("vocab.json"), dir.join("merges.txt"));
        let is_clip = !whole.exists();
        let mut inner = if !is_clip {
            tokenizers::Tokenizer::from_file(&whole).map_err(|e| TokenizerError::Invalid {
                path: whole,
                why: format!("not a tokenizer: {e}"),
            })?
        } else if vocab.exists() && merges.exists() {
            clip_pipeline(&vocab, &merges, &config, &map)?
        } else {
            let missing = "no tokenizer.json here, nor both vocab.json and merges.txt".to_owned();
            return Err(TokenizerError::Missing {
                dir: dir.to_owned(),
                missing,
            });
        };
        let invalid = |why: String| TokenizerError::Invalid {
            path: config_path.clone(),
            why,
        };
        // Padding and truncation are done here, so that both can be counted.
        inner.with_padding(None);
        inner.with_truncation(None).map_err(|e| invalid(e.to_string()))?;

        add_special_tokens(&mut inner, &config, &map).map_err(invalid)?;
        let pad = config
            .pad_token
            .as_ref()
            .or(map.pad_token.as_ref())
            .map(TokenName::content);
        let pad = match pad {
            Some(name) => name,
            None if is_clip => CLIP_END,
            None => {
                return Err(invalid(
                    "no pad_token is named; add `\"pad_token\": \"…\"` to this file".to_owned(),
                ));
            }
        };
        let pad = inner
            .token_to_id(pad)
            .ok_or_else(|| invalid(format!("pad_token `{pad}` is not in the vocabulary")))?;

        let max_length = match config.model_max_length {
            Some(length) if length < 1.0 => return Err(invalid(format!("model_max_length {length} holds no token"))),
            Some(length) if length <= LONGEST_MEANT => Some(length as usize),
            _ => None,
        };
        let largest_id = inner.get_vocab(true).into_values().max().unwrap_or(0);
        Ok(Self {
            inner,
            dir: dir.to_owned(),
            pad,
            max_length,
            largest_id,
        })
    }

    /// The token ids of one text, with the tokens that the tokenizer adds, neither padded nor truncated.
    ///
    /// # Errors
    ///
    /// The tokenizer refuses the text, which only a damaged vocabulary makes it do.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        Ok(self
            .inner
            .encode(text, true)
            .map_err(|e| self.refused(&e))?
            .get_ids()
            .to_vec())
    }

    /// The token ids of many texts, each padded or truncated to `length`. A truncated text keeps the tokens that the
    /// tokenizer adds at its ends.
    ///
    /// # Errors
    ///
    /// `length` leaves no room for text, or as for [`Tokenizer::encode`].
    pub fn encode_batch<T: AsRef<str>>(&self, texts: &[T], length: usize) -> Result<TokenBatch, TokenizerError> {
        let added = self.inner.get_post_processor().map_or(0, |p| p.added_tokens(false));
        if length <= added {
            return Err(TokenizerError::TooShort {
                dir: self.dir.clone(),
                length,
                added,
            });
        }
        let mut batch = TokenBatch::default();
        for (index, text) in texts.iter().enumerate() {
            let mut content = self.inner.encode(text.as_ref(), false).map_err(|e| self.refused(&e))?;
            let tokens = content.len() + added;
            if tokens > length {
                content.truncate(length - added, 0, TruncationDirection::Right);
                batch.truncated.push(TruncatedText { index, tokens });
            }
            let whole = self
                .inner
                .post_process(content, None, true)
                .map_err(|e| self.refused(&e))?;
            let mut ids = whole.get_ids().to_vec();
            ids.resize(length, self.pad);
            batch.ids.push(ids);
        }
        Ok(batch)
    }

    /// The greatest length that the folder names (`model_max_length`), if it does.
    #[must_use]
    pub fn max_length(&self) -> Option<usize> {
        self.max_length
    }

    /// Id of the padding token.
    #[must_use]
    pub fn pad_id(&self) -> u32 {
        self.pad
    }

    /// The largest id that can come out; a token table needs more rows than this.
    #[must_use]
    pub fn largest_id(&self) -> u32 {
        self.largest_id
    }

    /// The folder that the tokenizer was opened from.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn refused(&self, error: &tokenizers::Error) -> TokenizerError {
        TokenizerError::Encode {
            dir: self.dir.clone(),
            why: error.to_string(),
        }
    }
}

/// What `tokenizer_config.json` and `special_tokens_map.json` say that is used.
#[derive(Debug, Default, Deserialize)]
struct Settings {
    model_max_length: Option<f64>,
    bos_token: Option<TokenName>,
    eos_token: Option<TokenName>,
    unk_token: Option<TokenName>,
    pad_token: Option<TokenName>,
    sep_token: Option<TokenName>,
    cls_token: Option<TokenName>,
    mask_token: Option<TokenName>,
    #[serde(default)]
    additional_special_tokens: Option<Vec<TokenName>>,
    #[serde(default)]
    added_tokens_decoder: BTreeMap<u32, TokenFlags>,
}

impl Settings {
    fn special_tokens(&self) -> impl Iterator<Item = &TokenName> {
        let named = [
            &self.bos_token,
            &self.eos_token,
            &self.unk_token,
            &self.sep_token,
            &self.pad_token,
            &self.cls_token,
            &self.mask_token,
        ];
        named
            .into_iter()
            .flatten()
            .chain(self.additional_special_tokens.iter().flatten())
    }
}

/// A special token, by its text alone or with its flags.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
enum TokenName {
    Plain(String),
    Full(TokenFlags),
}

impl TokenName {
    fn content(&self) -> &str {
        match self {
            Self::Plain(content) => content,
            Self::Full(flags) => &flags.content,
        }
    }

    fn added_token(&self) -> AddedToken {
        match self {
            Self::Plain(content) => AddedToken::from(content, true),
            Self::Full(flags) => flags.added_token().special(true),
        }
    }
}

/// How an added token is looked for in a text.
#[derive(Debug, Clone, Deserialize)]
struct TokenFlags {
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    #[serde(default)]
    normalized: bool,
    #[serde(default)]
    special: bool,
}

impl TokenFlags {
    fn added_token(&self) -> AddedToken {
        AddedToken::from(&self.content, self.special)
            .single_word(self.single_word)
            .lstrip(self.lstrip)
            .rstrip(self.rstrip)
            .normalized(self.normalized)
    }
}

/// CLIP's byte-pair encoding from its two vocabulary files.
fn clip_pipeline(
    vocab: &Path,
    merges: &Path,
    config: &Settings,
    map: &Settings,
) -> Result<tokenizers::Tokenizer, TokenizerError> {
    let invalid = |path: &Path, why: String| TokenizerError::Invalid {
        path: path.to_owned(),
        why,
    };
    let name = |of: fn(&Settings) -> &Option<TokenName>, default: &str| {
        of(config)
            .as_ref()
            .or(of(map).as_ref())
            .map_or(default, TokenName::content)
            .to_owned()
    };
    let start = name(|s| &s.bos_token, CLIP_START);
    let end = name(|s| &s.eos_token, CLIP_END);
    let unknown = name(|s| &s.unk_token, CLIP_END);

    // Looked at first, because the library's own errors do not say which of its two files is at fault.
    let table: BTreeMap<String, u32> =
        read_json(vocab)?.ok_or_else(|| invalid(vocab, "the file vanished while it was read".to_owned()))?;
    let id = |token: &str| {
        table.get(token).copied().ok_or_else(|| {
            invalid(
                vocab,
                format!("has no token `{token}`; is this the vocabulary of a CLIP tokenizer?"),
            )
        })
    };
    let (start_id, end_id) = (id(&start)?, id(&end)?);

    let (Some(vocab_name), Some(merges_name)) = (vocab.to_str(), merges.to_str()) else {
        return Err(invalid(
            vocab,
            "the path is not valid UTF-8; rename the folder".to_owned(),
        ));
    };
    let model = BPE::from_file(vocab_name, merges_name)
        .unk_token(unknown)
        .end_of_word_suffix("</w>".to_owned())
        .build()
        .map_err(|e| invalid(merges, format!("does not fit vocab.json: {e}; copy both files again")))?;

    // The pattern is a constant that compiles, so an error here cannot come from a user's file.
    let constant = |e: tokenizers::Error| invalid(vocab, e.to_string());
    let blanks = Replace::new(ReplacePattern::Regex(r"\s+".to_owned()), " ").map_err(constant)?;
    let words = SplitPattern::Regex(CLIP_WORDS.to_owned());
    let words = Split::new(words, SplitDelimiterBehavior::Removed, true).map_err(constant)?;

    let mut inner = tokenizers::Tokenizer::new(model);
    inner
        .with_normalizer(Some(Normalizers::new(vec![
            NFC.into(),
            blanks.into(),
            Lowercase.into(),
        ])))
        .map_err(constant)?;
    inner.with_pre_tokenizer(Some(Splitters::new(vec![
        words.into(),
        ByteLevel::new(false, true, true).into(),
    ])));
    inner.with_post_processor(Some(
        RobertaProcessing::new((end, end_id), (start, start_id)).trim_offsets(false),
    ));
    Ok(inner)
}

/// Adds the tokens that are found in a text before it is cut into words, where the tokenizer does not have them yet.
///
/// SD3's second tokenizer pads with `!`, which thereby becomes special: every `!` of a prompt turns into the padding
/// token's id.
fn add_special_tokens(inner: &mut tokenizers::Tokenizer, config: &Settings, map: &Settings) -> Result<(), String> {
    let decoder = config.added_tokens_decoder.values().map(TokenFlags::added_token);
    let named = map
        .special_tokens()
        .chain(config.special_tokens())
        .map(TokenName::added_token);
    let mut tokens: Vec<AddedToken> = Vec::new();
    for token in decoder.chain(named) {
        let known = inner.get_added_vocabulary().get_vocab().contains_key(&token.content);
        if !known && !tokens.iter().any(|t| t.content == token.content) {
            tokens.push(token);
        }
    }
    inner.add_tokens(tokens).map_err(|e| e.to_string())?;
    for (id, token) in &config.added_tokens_decoder {
        match inner.token_to_id(&token.content) {
            Some(found) if found == *id => {}
            found => {
                return Err(format!(
                    "added_tokens_decoder gives `{}` the id {id}, the vocabulary {found:?}; the files are of different tokenizers",
                    token.content
                ));
            }
        }
    }
    Ok(())
}

/// Reads a JSON file; `None` if there is none.
fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, TokenizerError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => {
            return Err(TokenizerError::Io {
                path: path.to_owned(),
                source,
            });
        }
    };
    let parsed = serde_json::from_str(&text);
    parsed.map(Some).map_err(|e| TokenizerError::Invalid {
        path: path.to_owned(),
        why: format!("not the JSON that a tokenizer's folder holds: {e}"),
    })
}
