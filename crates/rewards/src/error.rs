//! What can be wrong with a reward, each with what the user can do about it.

use std::path::PathBuf;

use nn::tokenizer::TokenizerError;
use nn::weights::WeightsError;

use crate::ocr::OcrModelError;
use crate::ocr::wanted::NoWantedText;
use crate::preprocess::PreprocessError;
use crate::remote::RemoteFailure;

/// Why a reward could not be built or could not score.
///
/// Every variant names the reward; those that concern one picture name the sample and its prompt too.
#[derive(Debug, thiserror::Error)]
pub enum RewardError {
    /// The settings of a reward make no reward.
    #[error("reward `{scorer}`: {why}")]
    Spec {
        /// Name of the reward.
        scorer: String,
        /// What is wrong and what to do.
        why: String,
    },
    /// There is nothing to score with.
    #[error("no rewards are given; name at least one")]
    NoRewards,
    /// The model's configuration or weights could not be read.
    #[error("reward `{scorer}`: {source}")]
    Weights {
        /// Name of the reward.
        scorer: String,
        /// What is wrong with the files.
        source: WeightsError,
    },
    /// The tokenizer could not be read, or refused a prompt.
    #[error("reward `{scorer}`: {source}")]
    Tokenizer {
        /// Name of the reward.
        scorer: String,
        /// What is wrong.
        source: TokenizerError,
    },
    /// The preprocessing's configuration could not be read or is not supported.
    #[error("reward `{scorer}`: {source}")]
    Preprocess {
        /// Name of the reward.
        scorer: String,
        /// What is wrong.
        source: PreprocessError,
    },
    /// The text recogniser could not be opened.
    #[error("reward `{scorer}`: {source}")]
    Recogniser {
        /// Name of the reward.
        scorer: String,
        /// What is wrong.
        source: OcrModelError,
    },
    /// A prompt does not say what text is wanted.
    #[error("reward `{scorer}`, prompt {prompt} ({}): the prompt {source}", shortened(text))]
    Quotes {
        /// Name of the reward.
        scorer: String,
        /// The prompt's number.
        prompt: usize,
        /// The prompt.
        text: String,
        /// What is wrong with it.
        source: NoWantedText,
    },
    /// Files of one folder that do not belong together.
    #[error("reward `{scorer}`: {}: {why}", path.display())]
    Mismatch {
        /// Name of the reward.
        scorer: String,
        /// The folder.
        path: PathBuf,
        /// What does not fit.
        why: String,
    },
    /// A picture file could not be read.
    #[error("{}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// What the decoder says.
        source: image::ImageError,
    },
    /// Pictures and prompts do not pair up.
    #[error("reward `{scorer}`: {pictures} pictures but {prompts} prompt numbers; there must be one per picture")]
    Lengths {
        /// Name of the reward.
        scorer: String,
        /// How many pictures.
        pictures: usize,
        /// How many prompts.
        prompts: usize,
    },
    /// A prompt's number is not in the list that was prepared.
    #[error("reward `{scorer}`, sample {sample}: prompt {prompt} is not among the {prepared} prepared ones")]
    UnknownPrompt {
        /// Name of the reward.
        scorer: String,
        /// Place of the picture in the call.
        sample: usize,
        /// The prompt's number.
        prompt: usize,
        /// How many prompts were prepared.
        prepared: usize,
    },
    /// A picture cannot be scored.
    #[error("reward `{scorer}`, sample {sample} (prompt {prompt}): the picture {why}")]
    Picture {
        /// Name of the reward.
        scorer: String,
        /// Place of the picture in the call.
        sample: usize,
        /// The prompt's number.
        prompt: usize,
        /// What is wrong with it, as the end of a sentence.
        why: String,
    },
    /// A score is NaN or infinite.
    #[error("reward `{scorer}`, sample {sample} (prompt {prompt}): the score is {value}")]
    NonFinite {
        /// Name of the reward.
        scorer: String,
        /// Place of the picture in the call.
        sample: usize,
        /// The prompt's number.
        prompt: usize,
        /// The score.
        value: f64,
    },
    /// A scorer gave another number of scores than there were pictures.
    #[error("reward `{scorer}` gave {scores} scores for {samples} samples")]
    Count {
        /// Name of the reward.
        scorer: String,
        /// How many scores.
        scores: usize,
        /// How many samples.
        samples: usize,
    },
    /// A service did not score; nothing is put in place of its scores.
    #[error("reward `{scorer}`: the service at {url} {source}{}", after(*attempts))]
    Remote {
        /// Name of the reward.
        scorer: String,
        /// The service's address, without what may be secret.
        url: String,
        /// How many times it was asked.
        attempts: u32,
        /// What happened the last time.
        source: RemoteFailure,
    },
    /// The device did not hand its data over.
    #[error("reward `{scorer}`: features could not be read back from the device")]
    Unreadable {
        /// Name of the reward.
        scorer: String,
    },
}

fn after(attempts: u32) -> String {
    if attempts == 1 {
        String::new()
    } else {
        format!(" (after {attempts} attempts)")
    }
}

/// The beginning of a text, on one line.
fn shortened(text: &str) -> String {
    const LONGEST: usize = 60;
    let begin: String = text.chars().take(LONGEST).collect();
    let more = if begin.len() < text.len() { "…" } else { "" };
    format!("{begin:?}{more}")
}
