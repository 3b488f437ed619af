//! `open_clip_config.json`, which open_clip writes beside a model's weights.

use serde::Deserialize;
use serde_json::Value;

use super::geometry::{Centre, Frame, Resize};
use super::normalise::{CLIP_DEVIATION, CLIP_MEAN, Normalisation};
use super::{Preprocessor, Resampling};

/// The preprocessing that an `open_clip_config.json` asks for, or what is wrong with it.
pub(super) fn parse(text: &str) -> Result<Preprocessor, String> {
    let config: Config = serde_json::from_str(text).map_err(|e| format!("not a configuration of open_clip: {e}"))?;
    let image_size = config.model_cfg.vision_cfg.image_size;
    let size = both_sides(&image_size).ok_or_else(|| {
        format!("model_cfg.vision_cfg.image_size {image_size} is neither a side nor a height and a width from 1 on")
    })?;
    let settings = config.preprocess_cfg;
    let refuse = |key: &str, value: &dyn std::fmt::Display, what: &str| {
        Err(format!("preprocess_cfg.{key} is {value}; only {what} is supported"))
    };
    // open_clip takes the model's size whatever is written here, so another one would mean a file of another model.
    if let Some(other) = settings.size.filter(|other| both_sides(other) != Some(size)) {
        return refuse("size", &other, &format!("the model's own image_size {image_size}"));
    }
    if let Some(mode) = settings.mode.filter(|mode| mode != "RGB") {
        return refuse("mode", &mode, "RGB");
    }
    // "random" concerns training; open_clip takes bicubic for it otherwise.
    let bicubic = |interpolation: &String| matches!(interpolation.as_str(), "bicubic" | "random");
    if let Some(other) = settings.interpolation.filter(|other| !bicubic(other)) {
        return refuse("interpolation", &other, "bicubic");
    }
    let resize = match settings.resize_mode.as_deref() {
        Some("squash") => Resize::Exact(size),
        None | Some("shortest") if size[0] == size[1] => Resize::Shortest(size[0]),
        None | Some("shortest") => {
            return refuse("resize_mode", &"shortest", "squash for pictures that are not square");
        }
        Some(other) => return refuse("resize_mode", &other, "shortest or squash"),
    };
    let mean = settings.mean.map_or(CLIP_MEAN, Channels::each);
    let deviation = settings.std.map_or(CLIP_DEVIATION, Channels::each);
    Ok(Preprocessor {
        resampling: Resampling::PillowInMode,
        frame: Frame {
            resize,
            size,
            centre: Centre::RoundedToEven,
        },
        normalisation: Normalisation::of_tensors(mean, deviation).check()?,
    })
}

/// Width and height from one side, or from height and width in a list.
fn both_sides(value: &Value) -> Option<[u32; 2]> {
    let side = |value: &Value| u32::try_from(value.as_u64()?).ok().filter(|side| *side > 0);
    match value.as_array().map(Vec::as_slice) {
        None => Some([side(value)?; 2]),
        Some([both]) => Some([side(both)?; 2]),
        Some([height, width]) => Some([side(width)?, side(height)?]),
        Some(_) => None,
    }
}

/// The fields that are used.
#[derive(Deserialize)]
struct Config {
    model_cfg: ModelSettings,
    #[serde(default)]
    preprocess_cfg: Settings,
}

#[derive(Deserialize)]
struct ModelSettings {
    vision_cfg: VisionSettings,
}

#[derive(Deserialize)]
struct VisionSettings {
    image_size: Value,
}

/// All fields that open_clip knows.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    size: Option<Value>,
    mode: Option<String>,
    mean: Option<Channels>,
    std: Option<Channels>,
    interpolation: Option<String>,
    resize_mode: Option<String>,
    /// Colour of the margin that only the mode `longest` draws.
    #[serde(rename = "fill_color")]
    _fill_colour: Option<Value>,
}

/// One number for all channels, or one for each.
#[derive(Deserialize)]
#[serde(untagged)]
enum Channels {
    All(f32),
    Each([f32; 3]),
}

impl Channels {
    fn each(self) -> [f32; 3] {
        match self {
            Self::All(number) => [number; 3],
            Self::Each(numbers) => numbers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A configuration for pictures of this size.
    fn config(size: &str, settings: &str) -> String {
        format!(r#"{{"model_cfg": {{"vision_cfg": {{"image_size": {size}}}}}, "preprocess_cfg": {{{settings}}}}}"#)
    }

    #[test]
    fn absent_fields_are_those_of_openai() {
        let all = r#""size": [32, 32], "mode": "RGB", "mean": [0.48145466, 0.4578275, 0.40821073], "fill_color": 0,
            "std": [0.26862954, 0.26130258, 0.27577711], "interpolation": "bicubic", "resize_mode": "shortest""#;
        let written = parse(&config("32", all)).expect("all fields");
        let nulls = r#""size": null, "mode": null, "interpolation": "random", "resize_mode": null, "std": null"#;
        assert_eq!(written, parse(&config("32", nulls)).expect("no values"));
        assert_eq!(written, Preprocessor::open_ai(32.try_into().expect("positive")));
        let absent = r#"{"model_cfg": {"vision_cfg": {"image_size": 32}}}"#;
        assert_eq!(written, parse(absent).expect("no fields"));
    }

    #[test]
    fn lists_have_the_height_first() {
        let squash = r#""resize_mode": "squash", "size": [24, 32]"#;
        let preprocessor = parse(&config("[24, 32]", squash)).expect("a configuration");
        assert_eq!(preprocessor.size(), [32, 24]);
        assert_eq!(preprocessor.frame.resize, Resize::Exact([32, 24]));
    }

    #[test]
    fn one_number_stands_for_all_channels() {
        let one = parse(&config("8", r#""mean": 0.5, "std": 0.25"#)).expect("numbers");
        let each = parse(&config("8", r#""mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]"#)).expect("lists");
        assert_eq!(one, each);
    }

    #[test]
    fn what_cannot_be_done_is_refused() {
        #[track_caller]
        fn refused(text: &str, expected: &str) {
            let why = parse(text).expect_err("refused");
            assert!(why.contains(expected), "{why}");
        }
        refused("<!doctype html>", "not a configuration of open_clip");
        refused(r#"{"model_cfg": {"vision_cfg": {}}}"#, "image_size");
        refused(&config("0", ""), "image_size 0");
        refused(&config("[8, 8, 8]", ""), "image_size [8,8,8]");
        refused(&config("8", r#""size": 9"#), "preprocess_cfg.size is 9");
        refused(&config("8", r#""mode": "L""#), "preprocess_cfg.mode is L");
        refused(
            &config("8", r#""interpolation": "bilinear""#),
            "interpolation is bilinear",
        );
        refused(&config("8", r#""resize_mode": "longest""#), "resize_mode is longest");
        refused(&config("[8, 9]", ""), "not square");
        refused(&config("8", r#""mean": [0, 0]"#), "Channels");
        refused(&config("8", r#""std": [1, 1, 0]"#), "positive");
        refused(&config("8", r#""mean": 1e39"#), "finite");
        refused(&config("8", r#""crop_pct": 0.9"#), "crop_pct");
    }
}
