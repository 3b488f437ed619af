//! `preprocessor_config.json` of Hugging Face's image processors.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::geometry::{Centre, Frame, Resize};
use super::normalise::{CLIP_DEVIATION, CLIP_MEAN, Normalisation};
use super::{Preprocessor, Resampling};
use crate::pictures::Transparency;

/// The preprocessing that a `preprocessor_config.json` asks for, or what is wrong with it.
pub(super) fn parse(text: &str) -> Result<Preprocessor, String> {
    let refused = |e: serde_json::Error| format!("not a preprocessor's settings: {e}");
    // An object first: an empty list would otherwise pass for settings that are all absent.
    let settings: Map<String, Value> = serde_json::from_str(text).map_err(refused)?;
    let settings: Settings = serde_json::from_value(Value::Object(settings)).map_err(refused)?;
    if !settings.do_resize {
        return Err("do_resize is false; pictures of the wrong size could not be scored".to_owned());
    }
    if settings.resample != BICUBIC {
        return Err(format!(
            "resample is {}; only {BICUBIC} (bicubic) is supported",
            settings.resample
        ));
    }
    let resize = parse_size(&settings.size)?;
    let crop = match (settings.do_center_crop, resize) {
        (true, _) => both_sides(&settings.crop_size).ok_or_else(|| {
            format!(
                "crop_size {} is neither a side nor height and width",
                settings.crop_size
            )
        })?,
        (false, Resize::Exact(size)) => size,
        (false, _) => {
            return Err("do_center_crop is false, so pictures would come out in different sizes".to_owned());
        }
    };
    let least = match resize {
        Resize::Exact(size) => size,
        Resize::Shortest(side) | Resize::Longest(side) => [side; 2],
    };
    if crop.contains(&0) || crop[0] > least[0] || crop[1] > least[1] {
        return Err(format!(
            "crop_size {} must be from 1 to size {}",
            settings.crop_size, settings.size
        ));
    }
    let factor = if settings.do_rescale {
        settings.rescale_factor
    } else {
        1.0
    };
    let (mean, deviation) = if settings.do_normalize {
        (settings.image_mean, settings.image_std)
    } else {
        ([0.0; 3], [1.0; 3])
    };
    Ok(Preprocessor {
        resampling: Resampling::Pillow(Transparency::OverWhite),
        frame: Frame {
            resize,
            size: crop,
            centre: Centre::RoundedDown,
        },
        // Rescaled in f64, then rounded to f32, as NumPy does it.
        normalisation: Normalisation::new(mean, deviation, |level| (f64::from(level) * factor) as f32).check()?,
    })
}

/// Pillow's number of the filter.
const BICUBIC: u32 = 3;

/// What a `size` asks for.
fn parse_size(size: &Value) -> Result<Resize, String> {
    // A bare number means the shorter side, as in old releases.
    let shortest = side(size).or_else(|| side(size.get("shortest_edge")?));
    let resize = shortest
        .map(Resize::Shortest)
        .or_else(|| both_sides(size).map(Resize::Exact));
    resize.ok_or_else(|| format!("size {size} is neither a side, nor shortest_edge, nor height and width"))
}

/// A length in pixels.
fn side(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|side| u32::try_from(side).ok())
}

/// Width and height from one side or from both.
fn both_sides(value: &Value) -> Option<[u32; 2]> {
    match side(value) {
        Some(side) => Some([side; 2]),
        None => Some([side(value.get("width")?)?, side(value.get("height")?)?]),
    }
}

/// The fields that are used. Flags that only concern file formats or tensors of other libraries are left out.
#[derive(Deserialize)]
#[serde(default)]
struct Settings {
    do_resize: bool,
    size: Value,
    resample: u32,
    do_center_crop: bool,
    crop_size: Value,
    do_rescale: bool,
    rescale_factor: f64,
    do_normalize: bool,
    image_mean: [f32; 3],
    image_std: [f32; 3],
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            do_resize: true,
            size: 224.into(),
            resample: BICUBIC,
            do_center_crop: true,
            crop_size: 224.into(),
            do_rescale: true,
            rescale_factor: 1.0 / 255.0,
            do_normalize: true,
            image_mean: CLIP_MEAN,
            image_std: CLIP_DEVIATION,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_and_new_styles_agree() {
        let old = parse(r#"{"size": 32, "crop_size": 32, "resample": 3}"#).expect("old style");
        let new = parse(
            r#"{"size": {"shortest_edge": 32}, "crop_size": {"height": 32, "width": 32}, "do_convert_rgb": true}"#,
        )
        .expect("new style");
        assert_eq!(old, new);
        assert_eq!(parse("{}").expect("all absent").size(), [224, 224]);
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        let refused = |text: &str, expected: &str| {
            let why = parse(text).expect_err("refused");
            assert!(why.contains(expected), "{why}");
        };
        refused("<!doctype html>", "not a preprocessor");
        refused(r#"{"resample": 2}"#, "bicubic");
        refused(r#"{"size": {"longest_edge": 224}}"#, "longest_edge");
        refused(r#"{"size": 32, "crop_size": 33}"#, "crop_size 33");
        refused(r#"{"size": 32, "crop_size": 0}"#, "crop_size 0");
        refused(r#"{"size": 32, "do_center_crop": false}"#, "different sizes");
        refused(r#"{"do_resize": false}"#, "do_resize");
        refused(r#"{"image_std": [1, 1, 0]}"#, "positive");
        refused(r#"{"image_mean": [0, 0]}"#, "length");
    }
}
