//! Scores of pictures against the prompts they were made from.
//!
//! A [`Scorer`] is one reward: a CLIP model's cosine, the size of a JPEG file, the brightness. Everything that trains
//! or evaluates sees rewards only through that trait, so a new reward is a new implementation and a new
//! [`RewardKind`], and nothing else changes.
//!
//! The way of a picture:
//!
//! ```text
//! file ── pictures::open ─┐
//!                         ├─► Picture ── preprocess (resample, crop, normalise) ─► tower ─► feature ─┐
//! decoder ── nn::pixels ──┘                                                                          ├─► score
//! prompt ── tokenizer (counted when cut off) ─► tower ─► feature, once per prompt ───────────────────┘
//! ```
//!
//! Decisions that hold for every reward here:
//!
//! * **8-bit pictures.** What is scored is what is saved: the decoder's output is rounded once, by [`nn::pixels`], and
//!   no reward sees anything finer.
//! * **Prompts by index.** [`Scorer::prepare`] takes all prompts and encodes each once; [`Scorer::score`] names them by
//!   their place in that list, so two prompts of equal text stay two prompts.
//! * **Pairs, not products.** Picture `i` is compared with prompt `i` of the call only; the result does not depend on
//!   what else is in the call, nor on the size of the internal micro-batches (to 1e-6, the rounding of a matrix
//!   product).
//! * **No stand-ins.** A missing file, a missing or unused tensor, an unknown kind, a weight of zero and a score that is
//!   not finite are errors that name the reward and, where there is one, the sample and its prompt. Only who asks for
//!   [gaps](RewardSet::score_with_gaps) gets scores that are not finite, as they are.
//! * **What a model does not see is said.** Text models cut long prompts off; [`TruncationReport`] counts them.
//!
//! How several rewards become one advantage is not decided here: [`RewardSet`] gives the scores of each reward on its
//! own, beside its weight.
//!
//! Invariant: this crate knows neither the policy nor the trainer.

pub mod aesthetic;
pub mod blip;
mod catalogue;
pub mod clip;
pub mod clip_score;
mod composition;
mod error;
mod files;
mod head;
pub mod image_reward;
pub mod jpeg;
mod kind;
pub mod ocr;
pub mod pictures;
pub mod pixel;
pub mod preprocess;
pub mod reference;
pub mod remote;
mod resample;
mod scorer;
mod spec;

pub use catalogue::{build, check};
pub use composition::{Purpose, RewardScores, RewardSet};
pub use error::RewardError;
pub use head::LinearChain;
pub use kind::RewardKind;
pub use pictures::Picture;
pub use scorer::{ModelSize, Scorer, TruncationReport};
pub use spec::{RewardSpec, SettingError, check_settings};
