//! CLIP's byte-pair encoding as OpenAI's own program and open_clip do it, for models that come without tokenizer files.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek};
use std::path::Path;
use std::sync::LazyLock;

use flate2::read::GzDecoder;
use regex::Regex;
use tokenizers::Model;
use tokenizers::models::ModelWrapper;
use tokenizers::models::bpe::{BPE, Merges, Vocab};

use super::TokenizerError;
use super::cleaning::clean;
use super::clip::{END, END_OF_WORD, START, byte_pairs};
use super::folder::read_pipeline;

/// Special tokens as they are written in a text. Those of the Hugging Face vocabulary are plain text here.
const WRITTEN_START: &str = "<start_of_text>";
const WRITTEN_END: &str = "<end_of_text>";
/// The names of the vocabulary file in open_clip and in OpenAI's repository.
const VOCABULARIES: [&str; 2] = ["bpe_simple_vocab_16e6.txt.gz", "bpe_simple_vocab_16e6.txt"];
/// The list of merges of OpenAI's CLIP, compressed, and what errors call it.
const BUILT_IN: &[u8] = include_bytes!("../../vocabularies/clip_merges.txt.gz");
pub(super) const BUILT_IN_NAME: &str = "the built-in vocabulary of CLIP";
/// Merges of that file that CLIP uses, which is about a fifth of them.
const MERGES: usize = 48_894;
/// What can be named, and where it comes from.
const ACCEPTED: &str = "name a folder that holds tokenizer.json, or vocab.json and merges.txt, of a Hugging Face CLIP \
                        model (openai/clip-vit-large-patch14, or `tokenizer` of an SD3 pipeline), or the file \
                        bpe_simple_vocab_16e6.txt.gz of the Python package open_clip_torch or of github.com/openai/CLIP";

/// Cleans a text, cuts it into words and these into byte pairs.
#[derive(Debug, Clone)]
pub(super) struct OpenClip {
    model: BPE,
    /// The letter of the vocabulary that stands for each byte.
    letters: [char; 256],
    pub(super) start: u32,
    pub(super) end: u32,
}

impl OpenClip {
    /// Opens a folder with a CLIP tokenizer of either kind, or a list of merges, plain or compressed.
    pub(super) fn open(path: &Path) -> Result<Self, TokenizerError> {
        let letters = letters();
        let vocabulary = if path.is_dir() {
            read_folder(path, &letters)?
        } else {
            read_merges(path, &letters)?
        };
        Self::new(path, letters, vocabulary)
    }

    /// The vocabulary that the program carries.
    pub(super) fn built_in() -> Result<Self, TokenizerError> {
        Self::new(Path::new(BUILT_IN_NAME), letters(), built_in_vocabulary()?)
    }

    fn new(path: &Path, letters: [char; 256], (model, [start, end]): Vocabulary) -> Result<Self, TokenizerError> {
        // Bytes without a token would vanish from texts without a word.
        let mut symbols = letters
            .iter()
            .flat_map(|letter| [letter.to_string(), format!("{letter}{END_OF_WORD}")]);
        if let Some(missing) = symbols.find(|symbol| model.token_to_id(symbol).is_none()) {
            let why =
                format!("has no token `{missing}`, so this is not the vocabulary of a CLIP tokenizer; {ACCEPTED}");
            return Err(TokenizerError::invalid(path, why));
        }
        Ok(Self {
            model,
            letters,
            start,
            end,
        })
    }

    /// The ids of a text, without those of its start and end.
    pub(super) fn ids(&self, text: &str) -> Result<Vec<u32>, tokenizers::Error> {
        let mut ids = Vec::new();
        for word in words(&clean(text)) {
            match word {
                WRITTEN_START => ids.push(self.start),
                WRITTEN_END => ids.push(self.end),
                _ => {
                    let letters: String = word.bytes().map(|byte| self.letters[usize::from(byte)]).collect();
                    ids.extend(self.model.tokenize(&letters)?.into_iter().map(|token| token.id));
                }
            }
        }
        Ok(ids)
    }

    /// The largest id that can come out.
    pub(super) fn largest_id(&self) -> u32 {
        let ids = self.model.get_vocab().into_values();
        ids.chain([self.start, self.end]).max().unwrap_or(0)
    }
}

/// Words as CLIP cuts them, and special tokens unless other signs precede them.
///
/// The original ignores case, which matters for two characters of the small letters that it gets: by Unicode's rules
/// the long s is a case of s, and the combining iota (U+0345), itself a mark, one of the letter iota, so that it falls
/// into no class and is left out.
fn words(text: &str) -> impl Iterator<Item = &str> {
    static WORDS: LazyLock<Regex> = LazyLock::new(|| {
        let special = "<[sſ]tart_of_text>|<end_of_text>";
        let contractions = "'[sſ]|'t|'re|'ve|'m|'ll|'d";
        let pattern = format!(r"{special}|{contractions}|\p{{L}}+|\p{{N}}|[^\s\p{{L}}\p{{N}}\u{{345}}]+");
        Regex::new(&pattern).expect("a valid pattern")
    });
    WORDS.find_iter(text).map(|word| word.as_str())
}

/// The letters that stand for the bytes: themselves where they are printable, else those from 256 on.
fn letters() -> [char; 256] {
    let mut others = '\u{100}'..;
    std::array::from_fn(|byte| match byte as u8 {
        byte @ (b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff) => char::from(byte),
        _ => others.next().unwrap_or_default(),
    })
}

/// The byte pairs of a vocabulary, and the ids of start and end.
pub(super) type Vocabulary = (BPE, [u32; 2]);

fn read_folder(dir: &Path, letters: &[char; 256]) -> Result<Vocabulary, TokenizerError> {
    let whole = dir.join("tokenizer.json");
    let (vocab, merges) = (dir.join("vocab.json"), dir.join("merges.txt"));
    if whole.exists() {
        read_tokenizer(&whole)
    } else if vocab.exists() && merges.exists() {
        byte_pairs(&vocab, &merges, [START, END], None)
    } else {
        let list = VOCABULARIES
            .into_iter()
            .map(|name| dir.join(name))
            .find(|path| path.exists());
        let list = list.ok_or_else(|| TokenizerError::missing(dir, format!("no CLIP vocabulary here; {ACCEPTED}")))?;
        read_merges(&list, letters)
    }
}

/// The byte pairs that the program carries, and the ids of start and end.
pub(super) fn built_in_vocabulary() -> Result<Vocabulary, TokenizerError> {
    let list = BufReader::new(GzDecoder::new(BUILT_IN));
    parse_merges(Path::new(BUILT_IN_NAME), list, &letters())
}

/// The vocabulary inside a `tokenizer.json`.
fn read_tokenizer(path: &Path) -> Result<Vocabulary, TokenizerError> {
    let pipeline = read_pipeline(path)?;
    let invalid = || TokenizerError::invalid(path, format!("not the tokenizer of a CLIP model; {ACCEPTED}"));
    let (Some(start), Some(end)) = (pipeline.token_to_id(START), pipeline.token_to_id(END)) else {
        return Err(invalid());
    };
    let ModelWrapper::BPE(model) = pipeline.get_model() else {
        return Err(invalid());
    };
    let has_prefix = model
        .continuing_subword_prefix
        .as_deref()
        .is_some_and(|prefix| !prefix.is_empty());
    let has_suffix = model.end_of_word_suffix.as_deref() == Some(END_OF_WORD);
    if has_prefix || !has_suffix || model.ignore_merges || model.dropout.is_some() {
        return Err(invalid());
    }
    Ok((model.clone(), [start, end]))
}

/// The vocabulary of a list of merges, one a line under a heading: the letters, the letters that end words, what the
/// merges make, start and end. open_clip's file and a `merges.txt` of CLIP begin with the same lines.
fn read_merges(path: &Path, letters: &[char; 256]) -> Result<Vocabulary, TokenizerError> {
    let io = |error| TokenizerError::io(path, error);
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Err(TokenizerError::missing(
                path,
                format!("no such file or folder; {ACCEPTED}"),
            ));
        }
        Err(error) => return Err(io(error)),
    };
    let mut magic = Vec::new();
    file.by_ref().take(2).read_to_end(&mut magic).map_err(io)?;
    file.rewind().map_err(io)?;
    let reader: Box<dyn Read> = match magic.as_slice() {
        [0x1f, 0x8b] => Box::new(GzDecoder::new(file)),
        _ => Box::new(file),
    };
    parse_merges(path, BufReader::new(reader), letters)
}

/// The vocabulary of a list of merges, which `path` names in errors.
fn parse_merges(path: &Path, list: impl BufRead, letters: &[char; 256]) -> Result<Vocabulary, TokenizerError> {
    let invalid = |why: String| TokenizerError::invalid(path, format!("{why}; {ACCEPTED}"));
    let mut merges = Merges::with_capacity(MERGES);
    for (index, line) in list.lines().take(1 + MERGES).enumerate() {
        let line = line.map_err(|e| invalid(format!("not a list of merges: {e}")))?;
        match line.split_once(' ') {
            // Without its heading every merge would have the rank of the one before it.
            _ if index == 0 && !line.contains("#version") => {
                return Err(invalid(
                    "not a list of merges, whose first line names a #version".to_owned(),
                ));
            }
            _ if index == 0 => {}
            Some((first, second)) => merges.push((first.to_owned(), second.to_owned())),
            None => break,
        }
    }
    if merges.len() < MERGES {
        let found = merges.len();
        return Err(invalid(format!("cut short: {found} merges where CLIP has {MERGES}")));
    }

    let mut sorted = *letters;
    sorted.sort_unstable();
    let single = sorted.iter().map(char::to_string);
    let last = sorted.iter().map(|letter| format!("{letter}{END_OF_WORD}"));
    let merged = merges.iter().map(|(first, second)| format!("{first}{second}"));
    let vocab: Vocab = single.chain(last).chain(merged).zip(0..).collect();
    let start = 512 + MERGES as u32;
    let model = BPE::builder()
        .vocab_and_merges(vocab, merges)
        .end_of_word_suffix(END_OF_WORD.to_owned())
        .build()
        .map_err(|e| invalid(format!("not CLIP's merges: {e}")))?;
    Ok((model, [start, start + 1]))
}
