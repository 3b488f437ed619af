//! A tokenizer's folder as Hugging Face's libraries write it.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokenizers::AddedToken;

use super::TokenizerError;
use super::clip;

/// A `model_max_length` above this is a placeholder for "no limit".
const LONGEST_MEANT: f64 = 1e9;

/// A tokenizer that neither pads nor truncates, and what its folder says beside.
pub(super) struct Folder {
    pub(super) pipeline: tokenizers::Tokenizer,
    pub(super) pad: u32,
    pub(super) max_length: Option<usize>,
}

/// Opens a folder with `tokenizer.json`, or with CLIP's `vocab.json` and `merges.txt`.
pub(super) fn open(dir: &Path) -> Result<Folder, TokenizerError> {
    let config_path = dir.join("tokenizer_config.json");
    let config: Settings = read_json(&config_path)?.unwrap_or_default();
    let map: Settings = read_json(&dir.join("special_tokens_map.json"))?.unwrap_or_default();

    let whole = dir.join("tokenizer.json");
    let (vocab, merges) = (dir.join("vocab.json"), dir.join("merges.txt"));
    let is_clip = !whole.exists();
    let mut pipeline = if !is_clip {
        read_pipeline(&whole)?
    } else if vocab.exists() && merges.exists() {
        clip::pipeline(&vocab, &merges, &config, &map)?
    } else {
        let why = "no tokenizer.json here, nor both vocab.json and merges.txt; \
                   copy the tokenizer's files of the same checkpoint into this folder";
        return Err(TokenizerError::missing(dir, why));
    };
    let invalid = |why: String| TokenizerError::invalid(&config_path, why);
    // Padding and truncation are done here, so that both can be counted.
    pipeline.with_padding(None);
    pipeline.with_truncation(None).map_err(|e| invalid(e.to_string()))?;

    add_special_tokens(&mut pipeline, &config, &map).map_err(invalid)?;
    let pad = config
        .pad_token
        .as_ref()
        .or(map.pad_token.as_ref())
        .map(TokenName::content);
    let pad = match pad {
        Some(name) => name,
        None if is_clip => clip::END,
        None => {
            return Err(invalid(
                "no pad_token is named; add `\"pad_token\": \"…\"` to this file".to_owned(),
            ));
        }
    };
    let pad = pipeline
        .token_to_id(pad)
        .ok_or_else(|| invalid(format!("pad_token `{pad}` is not in the vocabulary")))?;

    let max_length = match config.model_max_length {
        Some(length) if length < 1.0 => return Err(invalid(format!("model_max_length {length} holds no token"))),
        Some(length) if length <= LONGEST_MEANT => Some(length as usize),
        _ => None,
    };
    Ok(Folder {
        pipeline,
        pad,
        max_length,
    })
}

/// Reads a `tokenizer.json`.
pub(super) fn read_pipeline(path: &Path) -> Result<tokenizers::Tokenizer, TokenizerError> {
    tokenizers::Tokenizer::from_file(path).map_err(|e| TokenizerError::invalid(path, format!("not a tokenizer: {e}")))
}

/// What `tokenizer_config.json` and `special_tokens_map.json` say that is used.
#[derive(Debug, Default, Deserialize)]
pub(super) struct Settings {
    model_max_length: Option<f64>,
    pub(super) bos_token: Option<TokenName>,
    pub(super) eos_token: Option<TokenName>,
    pub(super) unk_token: Option<TokenName>,
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
pub(super) enum TokenName {
    Plain(String),
    Full(TokenFlags),
}

impl TokenName {
    pub(super) fn content(&self) -> &str {
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
pub(super) struct TokenFlags {
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
pub(super) fn read_json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, TokenizerError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(TokenizerError::io(path, error)),
    };
    let parsed = serde_json::from_str(&text);
    parsed
        .map(Some)
        .map_err(|e| TokenizerError::invalid(path, format!("not the JSON that a tokenizer's folder holds: {e}")))
}
