//! The trait behind which every reward lies, and the checks that they share.

use std::fmt;
use std::ops::Add;

use nn::tokenizer::TruncatedText;
use nn::weights::Weights;

use crate::error::RewardError;
use crate::pictures::Picture;

/// One reward.
///
/// # Example
///
/// ```
/// use image::RgbImage;
/// use rewards::Scorer;
/// use rewards::pixel::{PixelStatistic, PixelScore};
///
/// let mut scorer = PixelScore::new("brightness", PixelStatistic::Brightness);
/// scorer.prepare(&["a white wall".to_owned()])?;
/// let white = RgbImage::from_pixel(4, 4, image::Rgb([255; 3]));
/// assert_eq!(scorer.score(&[white.into()], &[0])?, [1.0]);
/// # Ok::<(), rewards::RewardError>(())
/// ```
///
/// Pictures and prompts cannot be exchanged by mistake:
///
/// ```compile_fail
/// # use rewards::{RewardError, Scorer};
/// fn swapped(scorer: &dyn Scorer, pictures: &[rewards::Picture], prompts: &[usize]) -> Result<Vec<f64>, RewardError> {
///     scorer.score(prompts, pictures)
/// }
/// ```
pub trait Scorer: Send {
    /// The name under which the reward is configured and logged (`reward/<name>`).
    fn name(&self) -> &str;

    /// What computes the score, in a few words: model, sizes, unit. Two rewards of one kind but of different models
    /// differ here.
    fn description(&self) -> String;

    /// How large the model behind the score is; `None` if there is none, or if it is not here.
    fn model_size(&self) -> Option<ModelSize> {
        None
    }

    /// Looks at all prompts of a run before it starts, without encoding them. Gives a line for whatever the user should
    /// know about them; most rewards have nothing to say.
    ///
    /// # Errors
    ///
    /// There is a prompt that the reward can never score.
    fn check_prompts(&self, _prompts: &[String]) -> Result<Vec<String>, RewardError> {
        Ok(Vec::new())
    }

    /// Encodes all prompts, in place of those of an earlier call. Later calls of [`Scorer::score`] name a prompt by its
    /// index in this list.
    ///
    /// # Errors
    ///
    /// The tokenizer or the model refuses a prompt.
    fn prepare(&mut self, prompts: &[String]) -> Result<TruncationReport, RewardError>;

    /// One score per picture: `pictures[i]` against prompt number `prompts[i]`. Greater is better.
    ///
    /// A score that is not finite is a gap: this picture has none. It is handed on as it is, because what follows from
    /// it is for the caller to say; see [`RewardSet`](crate::RewardSet). Nothing else stands for a missing score.
    ///
    /// # Errors
    ///
    /// The lists differ in length, a prompt's number was not prepared, a picture has no pixels, or the scores could not
    /// be computed at all. Sample numbers in errors are places in `pictures`.
    fn score(&self, pictures: &[Picture], prompts: &[usize]) -> Result<Vec<f64>, RewardError>;
}

/// How large a model is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ModelSize {
    /// Numbers in all tensors together, buffers aside.
    pub parameters: u64,
    /// How many tensors.
    pub tensors: usize,
}

impl ModelSize {
    /// The size of everything that was read from `weights` so far.
    #[must_use]
    pub fn of(weights: &Weights) -> Self {
        let asked = weights.asked();
        let count = |shape: &Vec<usize>| shape.iter().product::<usize>() as u64;
        Self {
            parameters: asked.values().map(count).sum(),
            tensors: asked.len(),
        }
    }
}

impl Add for ModelSize {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            parameters: self.parameters + other.parameters,
            tensors: self.tensors + other.tensors,
        }
    }
}

/// How much of the prompts a reward reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TruncationReport {
    /// Name of the reward.
    pub scorer: String,
    /// How many prompts were prepared.
    pub prompts: usize,
    /// The greatest number of tokens it reads, its start and end tokens included; `None` if it reads no text, or if a
    /// service reads it, which does not say how much.
    pub limit: Option<usize>,
    /// The prompts whose end it does not see, in order, each with its whole length in tokens.
    pub truncated: Vec<TruncatedText>,
}

impl TruncationReport {
    /// The report of a reward that does not look at the prompts.
    #[must_use]
    pub fn without_text(scorer: &str, prompts: usize) -> Self {
        Self::without_limit(scorer, prompts)
    }

    /// The report of a reward that hands whole prompts on, and does not know how much of them is read.
    #[must_use]
    pub fn without_limit(scorer: &str, prompts: usize) -> Self {
        Self {
            scorer: scorer.to_owned(),
            prompts,
            limit: None,
            truncated: Vec::new(),
        }
    }
}

impl fmt::Display for TruncationReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            scorer,
            prompts,
            limit,
            truncated,
        } = self;
        let Some(limit) = limit else {
            return write!(f, "{scorer}: cuts no prompt off");
        };
        match truncated.iter().max_by_key(|text| text.tokens) {
            None => write!(
                f,
                "{scorer}: reads all {prompts} prompts whole (at most {limit} tokens)"
            ),
            Some(longest) => write!(
                f,
                "{scorer}: does not see the end of {} of {prompts} prompts, which exceed its {limit} tokens \
                 (longest: prompt {} with {})",
                truncated.len(),
                longest.index,
                longest.tokens
            ),
        }
    }
}

/// Checks the arguments of a [`Scorer::score`] call against the number of prepared prompts.
pub(crate) fn check_call(
    scorer: &str,
    pictures: &[Picture],
    prompts: &[usize],
    prepared: usize,
) -> Result<(), RewardError> {
    let scorer = || scorer.to_owned();
    if pictures.len() != prompts.len() {
        return Err(RewardError::Lengths {
            scorer: scorer(),
            pictures: pictures.len(),
            prompts: prompts.len(),
        });
    }
    for (sample, (picture, prompt)) in pictures.iter().zip(prompts).enumerate() {
        if *prompt >= prepared {
            return Err(RewardError::UnknownPrompt {
                scorer: scorer(),
                sample,
                prompt: *prompt,
                prepared,
            });
        }
        let (width, height) = picture.dimensions();
        if width == 0 || height == 0 {
            return Err(RewardError::Picture {
                scorer: scorer(),
                sample,
                prompt: *prompt,
                why: format!("is {width} x {height} pixels"),
            });
        }
    }
    Ok(())
}

/// Hands scores on if there is one per sample, gaps included.
pub(crate) fn check_scores(scorer: &str, scores: Vec<f64>, prompts: &[usize]) -> Result<Vec<f64>, RewardError> {
    if scores.len() != prompts.len() {
        return Err(RewardError::Count {
            scorer: scorer.to_owned(),
            scores: scores.len(),
            samples: prompts.len(),
        });
    }
    Ok(scores)
}

/// Refuses scores with a gap.
pub(crate) fn check_finite(scorer: &str, scores: &[f64], prompts: &[usize]) -> Result<(), RewardError> {
    match scores.iter().position(|score| !score.is_finite()) {
        None => Ok(()),
        Some(sample) => Err(RewardError::NonFinite {
            scorer: scorer.to_owned(),
            sample,
            prompt: prompts[sample],
            value: scores[sample],
        }),
    }
}
