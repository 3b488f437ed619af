//! Tokenizers, built from the files that lie in a pipeline's or a model's own folder, or beside a checkpoint.
//!
//! Three kinds, behind one [`Tokenizer`]:
//!
//! - [`Tokenizer::open`]: whatever a Hugging Face folder describes, such as CLIP or T5;
//! - [`Tokenizer::open_clip`]: CLIP as OpenAI's own program and open_clip do it, for checkpoints of theirs;
//! - [`Tokenizer::bert`]: uncased BERT with the tokens of BLIP, for ImageReward.
//!
//! # Where the two CLIP tokenizers differ
//!
//! They share the vocabulary, and for most prompts the ids. A model must get the ids that it was trained with:
//!
//! | in the text | Hugging Face (fast) | open_clip |
//! |---|---|---|
//! | `&amp;`, `&eacute;`, `&#233;` | the characters as written | `&`, `é`, `é`, replaced up to three times over |
//! | mojibake (`Ã©`, `â€™`) | as written | repaired (`é`, `'`) |
//! | curly quotes, ligatures (`ﬁ`), full and half widths | as written | straight quotes, letters, common widths |
//! | control characters, terminal escapes, byte-order marks | as written, but for white space | dropped |
//! | capital sigma at the end of a word | `σ` | `ς` |
//! | `<|startoftext|>`, `<|endoftext|>` | the special token | plain text |
//! | `<start_of_text>`, `<end_of_text>` | plain text | the special token, unless a sign stands right before it |
//! | `!`, where it is the padding token | id 0 | id 256 |
//! | padding | the folder's token | id 0 |
//!
//! Invariant: token ids, vocabulary sizes and special tokens all come from the files, and so does the padding, except
//! that open_clip always pads with zero.

mod bert;
mod cleaning;
mod clip;
mod folder;
mod open_clip;

use std::path::{Path, PathBuf};

use tokenizers::{AddedToken, PostProcessor, TruncationDirection};

use open_clip::OpenClip;

/// Tokens that every released CLIP model reads.
const CLIP_LENGTH: usize = 77;

/// Why a tokenizer could not be opened or used. Every variant names the file or folder.
#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    /// There is no complete set of tokenizer files.
    #[error("{}: {why}", path.display())]
    Missing {
        /// The folder, or the file.
        path: PathBuf,
        /// What was looked for, and where it comes from.
        why: String,
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
        /// The tokenizer's folder or file.
        dir: PathBuf,
        /// The length asked for.
        length: usize,
        /// Tokens that the tokenizer adds to every text.
        added: usize,
    },
    /// The tokenizer refused a text.
    #[error("{}: a text could not be encoded: {why}", dir.display())]
    Encode {
        /// The tokenizer's folder or file.
        dir: PathBuf,
        /// The tokenizer's words.
        why: String,
    },
}

impl TokenizerError {
    fn missing(path: &Path, why: impl Into<String>) -> Self {
        let (path, why) = (path.to_owned(), why.into());
        Self::Missing { path, why }
    }

    fn io(path: &Path, source: std::io::Error) -> Self {
        let path = path.to_owned();
        Self::Io { path, source }
    }

    fn invalid(path: &Path, why: String) -> Self {
        let path = path.to_owned();
        Self::Invalid { path, why }
    }
}

/// Texts of one batch as token ids of one length.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenBatch {
    /// `[texts][length]`.
    pub ids: Vec<Vec<u32>>,
    /// How many of each text's ids are its own, not padding: `[texts]`. The padding follows them, so a mask of ones and
    /// zeros has this many ones.
    pub lengths: Vec<usize>,
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

/// A tokenizer as its files describe it.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    encoder: Encoder,
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
        let folder = folder::open(dir)?;
        Ok(Self::of_pipeline(folder.pipeline, dir, folder.pad, folder.max_length))
    }

    /// Hugging Face's tokenizer of OpenAI's CLIP with the vocabulary that the program carries: 77 tokens, padded with
    /// `<|endoftext|>`. For folders of such models that hold no tokenizer.
    ///
    /// # Errors
    ///
    /// None, unless the program is damaged.
    pub fn built_in_clip() -> Result<Self, TokenizerError> {
        let path = Path::new(open_clip::BUILT_IN_NAME);
        let (model, [start, end]) = open_clip::built_in_vocabulary()?;
        let special = [clip::START, clip::END].map(str::to_owned);
        let [start_name, end_name] = special.clone();
        let mut pipeline = clip::around(model, (start_name, start), (end_name, end), path)?;
        pipeline
            .add_special_tokens(special.map(|name| AddedToken::from(name, true)))
            .map_err(|e| TokenizerError::invalid(path, e.to_string()))?;
        Ok(Self::of_pipeline(pipeline, path, end, Some(CLIP_LENGTH)))
    }

    /// Opens CLIP's vocabulary and encodes as open_clip 3.3 does: texts are repaired and cleaned first, padding is 0.
    ///
    /// Such checkpoints come without tokenizer files, so `vocabulary` names any copy of CLIP's: a folder with
    /// `tokenizer.json`, or with `vocab.json` and `merges.txt`, of a Hugging Face CLIP model; or
    /// `bpe_simple_vocab_16e6.txt.gz` as open_clip and OpenAI's repository carry it, or a folder with that. How many
    /// tokens a model reads is written in its own configuration; it is 77 for all of these.
    ///
    /// Repairing follows ftfy 6.3.1, `html.unescape` and `str` of Python 3.11. What can differ is what their tables
    /// call a letter or a composed character: those of Unicode 14 there, of later versions here.
    ///
    /// # Errors
    ///
    /// Nothing of the kind lies there, or it is not the vocabulary of a CLIP tokenizer.
    pub fn open_clip(vocabulary: &Path) -> Result<Self, TokenizerError> {
        Ok(Self::of_open_clip(OpenClip::open(vocabulary)?, vocabulary))
    }

    /// As [`Tokenizer::open_clip`], with the vocabulary that the program carries: that of OpenAI's CLIP, which all
    /// released models of this kind share.
    ///
    /// # Errors
    ///
    /// None, unless the program is damaged.
    pub fn built_in_open_clip() -> Result<Self, TokenizerError> {
        Ok(Self::of_open_clip(
            OpenClip::built_in()?,
            Path::new(open_clip::BUILT_IN_NAME),
        ))
    }

    /// Opens the `vocab.txt` of uncased BERT, or a folder that holds it, and adds `[DEC]` and `[ENC]` behind its tokens
    /// as BLIP does: 30522 and 30523. How many tokens a model reads is its own affair; ImageReward reads 35.
    ///
    /// The ids are those of the fast `BertTokenizer`. ImageReward's package of 2023 used the slow one, which differs in
    /// two respects: a capital sigma at the end of a word becomes `ς` there, `σ` here, and characters that Unicode
    /// has not assigned, or has assigned since 2016 as marks or punctuation, may be dropped there and unknown here.
    ///
    /// # Errors
    ///
    /// There is no such file, it names a token twice or lacks one that every BERT has.
    pub fn bert(vocabulary: &Path) -> Result<Self, TokenizerError> {
        let (pipeline, pad) = bert::open(vocabulary)?;
        Ok(Self::of_pipeline(pipeline, vocabulary, pad, None))
    }

    /// As [`Tokenizer::bert`], with the vocabulary of bert-base-uncased that the program carries.
    ///
    /// # Errors
    ///
    /// None, unless the program is damaged.
    pub fn built_in_bert() -> Result<Self, TokenizerError> {
        let (pipeline, pad) = bert::built_in()?;
        Ok(Self::of_pipeline(pipeline, Path::new(bert::BUILT_IN_NAME), pad, None))
    }

    fn of_open_clip(encoder: OpenClip, dir: &Path) -> Self {
        Self {
            largest_id: encoder.largest_id(),
            encoder: Encoder::OpenClip(Box::new(encoder)),
            dir: dir.to_owned(),
            pad: 0,
            max_length: None,
        }
    }

    fn of_pipeline(pipeline: tokenizers::Tokenizer, dir: &Path, pad: u32, max_length: Option<usize>) -> Self {
        Self {
            largest_id: pipeline.get_vocab(true).into_values().max().unwrap_or(0),
            encoder: Encoder::Pipeline(Box::new(pipeline)),
            dir: dir.to_owned(),
            pad,
            max_length,
        }
    }

    /// The token ids of one text, with the tokens that the tokenizer adds, neither padded nor truncated.
    ///
    /// # Errors
    ///
    /// The tokenizer refuses the text, which only a damaged vocabulary makes it do.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let encoded = self.encoder.encode(text, usize::MAX);
        encoded.map(|(ids, _)| ids).map_err(|e| self.refused(&e))
    }

    /// The token ids of many texts, each padded or truncated to `length`. A truncated text keeps the tokens that the
    /// tokenizer adds at its ends.
    ///
    /// # Errors
    ///
    /// `length` leaves no room for text, or as for [`Tokenizer::encode`].
    pub fn encode_batch<T: AsRef<str>>(&self, texts: &[T], length: usize) -> Result<TokenBatch, TokenizerError> {
        let added = self.encoder.added();
        if length <= added {
            return Err(TokenizerError::TooShort {
                dir: self.dir.clone(),
                length,
                added,
            });
        }
        let mut batch = TokenBatch::default();
        for (index, text) in texts.iter().enumerate() {
            let encoded = self.encoder.encode(text.as_ref(), length);
            let (mut ids, tokens) = encoded.map_err(|e| self.refused(&e))?;
            if tokens > length {
                batch.truncated.push(TruncatedText { index, tokens });
            }
            batch.lengths.push(ids.len());
            ids.resize(length, self.pad);
            batch.ids.push(ids);
        }
        Ok(batch)
    }

    /// The greatest length that the files name (`model_max_length`), if they do.
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

    /// The folder or file that the tokenizer was opened from.
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

/// What turns a text into ids.
#[derive(Debug, Clone)]
enum Encoder {
    Pipeline(Box<tokenizers::Tokenizer>),
    OpenClip(Box<OpenClip>),
}

impl Encoder {
    /// How many tokens are added to every text.
    fn added(&self) -> usize {
        match self {
            Self::Pipeline(pipeline) => pipeline.get_post_processor().map_or(0, |p| p.added_tokens(false)),
            Self::OpenClip(_) => 2,
        }
    }

    /// The ids of a text, of which the last are left out where there would be more than `length` with those that are
    /// added; and how many there would be without that limit.
    fn encode(&self, text: &str, length: usize) -> Result<(Vec<u32>, usize), tokenizers::Error> {
        let added = self.added();
        let room = length.saturating_sub(added);
        match self {
            Self::Pipeline(pipeline) => {
                let mut content = pipeline.encode(text, false)?;
                let tokens = content.len() + added;
                content.truncate(room, 0, TruncationDirection::Right);
                let whole = pipeline.post_process(content, None, true)?;
                Ok((whole.get_ids().to_vec(), tokens))
            }
            Self::OpenClip(encoder) => {
                let content = encoder.ids(text)?;
                let tokens = content.len() + added;
                let content = content.into_iter().take(room);
                let ids = std::iter::once(encoder.start).chain(content).chain([encoder.end]);
                Ok((ids.collect(), tokens))
            }
        }
    }
}
