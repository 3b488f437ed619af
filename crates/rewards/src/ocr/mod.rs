//! Text recognition as a reward: how much of the text that a prompt puts in quotes can be read on the picture.
//!
//! It is the OCR accuracy of Flow-GRPO (Liu et al. 2025, arXiv 2505.05470), from 0 to 1; [`wanted`] has the equation.
//! The recogniser is a network of the PP-OCR family in an ONNX file that the user names, run on the CPU by `tract`. That
//! engine is large, so it is compiled with the feature `ocr` only; without it, opening a recogniser is an error that
//! says so, and all else here works.
//!
//! ```text
//! prompt ── wanted::quoted ─────────────────────────────────────────┐
//!                                                                   ├─► accuracy
//! picture ── line::Line ── network ── probabilities ── ctc ── text ─┘
//! ```
//!
//! The picture is read as *one line of text*: there is no detector that looks for text in it. That fits small pictures
//! which show a word and little else. A scene with a small sign needs a whole OCR program, which can serve as a remote
//! scorer.

pub mod ctc;
pub mod line;
#[cfg(feature = "ocr")]
mod onnx;
#[cfg(feature = "ocr")]
mod recogniser;
pub mod wanted;

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use image::RgbImage;
use rayon::prelude::*;

pub use self::ctc::{Alphabet, Reading};
use self::line::NoLine;
#[cfg(feature = "ocr")]
pub use self::recogniser::Recogniser;
use self::wanted::{Wanted, normalised};
use crate::error::RewardError;
use crate::pictures::{Picture, Transparency};
use crate::scorer::{Scorer, TruncationReport, check_call, check_scores};

/// Why a recogniser cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OcrModelError {
    /// The program has no engine for ONNX files.
    #[error("this program was built without the text recogniser; build it with `--features ocr`")]
    NotCompiled,
    /// A file or folder could not be read.
    #[error("{}: {source}; name the recogniser's .onnx file, or the folder that holds it", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is no recogniser, or one of a kind that is not supported.
    #[error("{}: {why}", path.display())]
    Invalid {
        /// The file or folder.
        path: PathBuf,
        /// What is wrong and what to do.
        why: String,
    },
}

/// Why a picture could not be read; reads as the end of a sentence about the picture.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It is no line of text.
    #[error(transparent)]
    Line(#[from] NoLine),
    /// The network failed on it.
    #[error("could not be read by the recogniser: {0}")]
    Network(String),
}

/// Reads pictures that show one line of text. `Recogniser` (feature `ocr`) is the one that comes with this crate.
pub trait TextReader: Send + Sync {
    /// What stands on the picture. The answer depends on the picture alone.
    ///
    /// # Errors
    ///
    /// The picture cannot be read.
    fn read(&self, picture: &RgbImage) -> Result<Reading, ReadError>;

    /// The characters that it can give.
    fn alphabet(&self) -> &Alphabet;

    /// What it is, in a few words.
    fn description(&self) -> String;
}

/// OCR accuracy as a reward.
pub struct OcrScore {
    name: String,
    reader: Box<dyn TextReader>,
    /// What every prepared prompt wants.
    wanted: Vec<Wanted>,
}

impl OcrScore {
    /// Opens the recogniser in an ONNX file, or in a folder that holds one ONNX file.
    ///
    /// # Errors
    ///
    /// The file is missing, damaged, or no recogniser, or the program was built without the feature `ocr`.
    pub fn open(name: &str, path: &Path) -> Result<Self, RewardError> {
        let reader = open_reader(path).map_err(|source| model_error(name, source))?;
        Ok(Self::with_reader(name, reader))
    }

    /// Checks the file without building the network.
    ///
    /// # Errors
    ///
    /// As for [`OcrScore::open`].
    pub fn check(name: &str, path: &Path) -> Result<(), RewardError> {
        check_reader(path).map_err(|source| model_error(name, source))
    }

    /// A reward of this name with any reader.
    #[must_use]
    pub fn with_reader(name: &str, reader: Box<dyn TextReader>) -> Self {
        Self {
            name: name.to_owned(),
            reader,
            wanted: Vec::new(),
        }
    }

    fn wanted(&self, prompts: &[String]) -> Result<Vec<Wanted>, RewardError> {
        let wanted = prompts.iter().enumerate().map(|(prompt, text)| {
            Wanted::of(text).map_err(|source| RewardError::Quotes {
                scorer: self.name.clone(),
                prompt,
                text: text.clone(),
                source,
            })
        });
        wanted.collect()
    }

    fn accuracy(&self, picture: &Picture, prompt: usize) -> Result<f64, ReadError> {
        let reading = self.reader.read(&picture.rgb(Transparency::OverWhite))?;
        Ok(self.wanted[prompt].accuracy(&reading.text))
    }
}

impl Scorer for OcrScore {
    fn name(&self) -> &str {
        &self.name
    }

    fn description(&self) -> String {
        format!("OCR accuracy, 0 to 1, by {}", self.reader.description())
    }

    /// Refuses prompts without text in quotes, and tells of those that want a character which the recogniser does not
    /// know: their score stays below 1, whatever the picture shows.
    fn check_prompts(&self, prompts: &[String]) -> Result<Vec<String>, RewardError> {
        let wanted = self.wanted(prompts)?;
        // Texts are compared in lower case, so a character that is known in upper case alone counts as well.
        let known = normalised(&self.reader.alphabet().characters().collect::<String>());
        let known: HashSet<char> = known.chars().collect();
        let mut strange = BTreeSet::new();
        let mut concerned = Vec::new();
        for (prompt, text) in wanted.iter().enumerate() {
            let unknown: Vec<char> = text.normalised().chars().filter(|c| !known.contains(c)).collect();
            if !unknown.is_empty() {
                concerned.push(prompt);
                strange.extend(unknown);
            }
        }
        let Some(first) = concerned.first() else {
            return Ok(Vec::new());
        };
        Ok(vec![format!(
            "{}: {} of {} prompts want characters that the recogniser does not know and never score 1 (first: prompt \
             {first}; the characters: {})",
            self.name,
            concerned.len(),
            prompts.len(),
            String::from_iter(strange)
        )])
    }

    fn prepare(&mut self, prompts: &[String]) -> Result<TruncationReport, RewardError> {
        self.wanted = self.wanted(prompts)?;
        Ok(TruncationReport::without_text(&self.name, prompts.len()))
    }

    fn score(&self, pictures: &[Picture], prompts: &[usize]) -> Result<Vec<f64>, RewardError> {
        check_call(&self.name, pictures, prompts, self.wanted.len())?;
        let pairs: Vec<(&Picture, usize)> = pictures.iter().zip(prompts.iter().copied()).collect();
        let scores: Vec<Result<f64, ReadError>> = pairs
            .par_iter()
            .map(|(picture, prompt)| self.accuracy(picture, *prompt))
            .collect();
        let scores = scores.into_iter().enumerate().map(|(sample, score)| {
            score.map_err(|error| RewardError::Picture {
                scorer: self.name.clone(),
                sample,
                prompt: prompts[sample],
                why: error.to_string(),
            })
        });
        check_scores(&self.name, scores.collect::<Result<_, RewardError>>()?, prompts)
    }
}

fn model_error(scorer: &str, source: OcrModelError) -> RewardError {
    RewardError::Recogniser {
        scorer: scorer.to_owned(),
        source,
    }
}

#[cfg(feature = "ocr")]
fn open_reader(path: &Path) -> Result<Box<dyn TextReader>, OcrModelError> {
    Ok(Box::new(Recogniser::open(path)?))
}

#[cfg(feature = "ocr")]
fn check_reader(path: &Path) -> Result<(), OcrModelError> {
    Recogniser::check(path)
}

#[cfg(not(feature = "ocr"))]
fn open_reader(_: &Path) -> Result<Box<dyn TextReader>, OcrModelError> {
    Err(OcrModelError::NotCompiled)
}

#[cfg(not(feature = "ocr"))]
fn check_reader(_: &Path) -> Result<(), OcrModelError> {
    Err(OcrModelError::NotCompiled)
}
