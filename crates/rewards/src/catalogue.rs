//! From a reward's settings to its scorer: the one place that knows every kind.

use burn::tensor::Device;

use crate::aesthetic::AestheticSource;
use crate::clip::ClipSource;
use crate::clip_score::{ClipScore, CosineScale};
use crate::error::RewardError;
use crate::image_reward::ImageRewardSource;
use crate::jpeg::{JpegGoal, JpegScore};
use crate::kind::RewardKind;
use crate::ocr::OcrScore;
use crate::pixel::{PixelScore, PixelStatistic};
use crate::remote::RemoteScore;
use crate::scorer::Scorer;
use crate::spec::{RewardSpec, check_settings, model_path, spec_error};

/// Checks a reward's settings and files without reading a model: every configuration file and the headers of weight
/// files; for a service, that it answers.
///
/// # Errors
///
/// Names the reward and what is wrong.
pub fn check(name: &str, spec: &RewardSpec, device: &Device) -> Result<(), RewardError> {
    match find(name, spec, device)? {
        Found::Remote(scorer) => scorer.check(),
        _ => Ok(()),
    }
}

/// Builds a reward.
///
/// # Errors
///
/// As for [`check`], and the model's weights may not fit it.
pub fn build(name: &str, spec: &RewardSpec, device: &Device) -> Result<Box<dyn Scorer>, RewardError> {
    Ok(match find(name, spec, device)? {
        Found::Clip(source, scale) => Box::new(ClipScore::new(source.load()?, scale)),
        Found::Aesthetic(source) => Box::new(source.load()?),
        Found::ImageReward(source) => Box::new(source.load()?),
        Found::Remote(scorer) => Box::new(scorer),
        Found::Whole(scorer) => scorer,
    })
}

/// A reward whose files were found and whose weights were not read yet.
enum Found {
    Clip(ClipSource, CosineScale),
    Aesthetic(AestheticSource),
    ImageReward(ImageRewardSource),
    Remote(RemoteScore),
    /// One that reads no weights.
    Whole(Box<dyn Scorer>),
}

fn find(name: &str, spec: &RewardSpec, device: &Device) -> Result<Found, RewardError> {
    check_settings(name, spec).map_err(|error| error.of(name))?;
    let vocabulary = spec.vocabulary.as_deref();
    let clip = |scale| -> Result<Found, RewardError> {
        let source = ClipSource::find(name, model_path(name, spec)?, vocabulary, device)?;
        Ok(Found::Clip(source, scale))
    };
    let jpeg = |goal| Found::Whole(Box::new(JpegScore::new(name, goal)));
    let pixel = |statistic| Found::Whole(Box::new(PixelScore::new(name, statistic)));
    Ok(match spec.kind {
        RewardKind::ClipScore => clip(CosineScale::One)?,
        RewardKind::PickScore => clip(CosineScale::LogitScale)?,
        RewardKind::PickScore26 => clip(CosineScale::LogitScaleBy26)?,
        RewardKind::Hps => {
            let source = ClipSource::find_hps(name, model_path(name, spec)?, vocabulary, device)?;
            Found::Clip(source, CosineScale::One)
        }
        RewardKind::Aesthetic => {
            let Some(clip) = &spec.clip else {
                return Err(spec_error(name, "kind `aesthetic` needs `clip`".to_owned()));
            };
            Found::Aesthetic(AestheticSource::find(name, model_path(name, spec)?, clip, device)?)
        }
        RewardKind::ImageReward => Found::ImageReward(ImageRewardSource::find(
            name,
            model_path(name, spec)?,
            vocabulary,
            device,
        )?),
        RewardKind::Ocr => Found::Whole(Box::new(OcrScore::open(name, model_path(name, spec)?)?)),
        RewardKind::Remote => {
            let Some(settings) = &spec.remote else {
                return Err(spec_error(name, "kind `remote` needs the table `remote`".to_owned()));
            };
            Found::Remote(RemoteScore::new(name, settings)?)
        }
        RewardKind::JpegCompressibility => jpeg(JpegGoal::Small),
        RewardKind::JpegIncompressibility => jpeg(JpegGoal::Large),
        RewardKind::Brightness => pixel(PixelStatistic::Brightness),
        RewardKind::Contrast => pixel(PixelStatistic::Contrast),
        RewardKind::Colourfulness => pixel(PixelStatistic::Colourfulness),
    })
}
