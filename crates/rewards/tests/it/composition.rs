//! Rewards by name.

use std::collections::BTreeMap;
use std::path::PathBuf;

use burn::tensor::Device;
use image::{Rgb, RgbImage};
use rewards::{
    Picture, Purpose, RewardError, RewardKind, RewardSet, RewardSpec, Scorer, TruncationReport, build, check,
};

use crate::fixture::{emoji, folder};

fn spec(kind: RewardKind) -> RewardSpec {
    RewardSpec::new(kind)
}

fn parse(json: &str) -> Result<RewardSpec, String> {
    serde_json::from_str(json).map_err(|e| e.to_string())
}

/// A scorer that gives what it was told to.
struct Fixed(&'static str, Vec<f64>);

impl Scorer for Fixed {
    fn name(&self) -> &str {
        self.0
    }

    fn description(&self) -> String {
        "fixed".to_owned()
    }

    fn prepare(&mut self, prompts: &[String]) -> Result<TruncationReport, RewardError> {
        Ok(TruncationReport::without_text(self.0, prompts.len()))
    }

    fn score(&self, _: &[Picture], _: &[usize]) -> Result<Vec<f64>, RewardError> {
        Ok(self.1.clone())
    }
}

#[test]
fn specs_are_read_strictly() {
    let full = parse(r#"{"kind": "clip-score", "path": "models/clip", "weight": 0.2, "eval_only": true}"#);
    let expected = RewardSpec {
        weight: 0.2,
        eval_only: true,
        ..spec(RewardKind::ClipScore).with_path("models/clip")
    };
    assert_eq!(full, Ok(expected));
    assert_eq!(parse(r#"{"kind": "brightness"}"#), Ok(spec(RewardKind::Brightness)));

    let unknown = parse(r#"{"kind": "clipscore"}"#).expect_err("an unknown kind");
    for kind in RewardKind::ALL {
        assert!(unknown.contains(kind.as_str()), "{unknown}");
    }
    assert!(
        parse(r#"{"kind": "brightness", "wieght": 2}"#)
            .expect_err("a typo")
            .contains("wieght")
    );
}

/// Every kind whose model the fixtures or the shipped assets have. Text recognition and remote services are built in
/// tests of their own.
#[test]
fn every_kind_is_built_by_its_name() {
    let device = Device::flex();
    for kind in RewardKind::ALL {
        assert_eq!(RewardKind::try_from(kind.to_string()), Ok(kind));
        let path = match kind {
            RewardKind::ClipScore | RewardKind::PickScore | RewardKind::PickScore26 => Some(emoji().join("scorer")),
            RewardKind::Hps => Some(folder("hps")),
            RewardKind::Aesthetic => Some(folder("aesthetic")),
            RewardKind::ImageReward => Some(folder("imagereward")),
            RewardKind::Ocr | RewardKind::Remote => continue,
            _ => None,
        };
        let clip = (kind == RewardKind::Aesthetic).then(|| folder("clip_l"));
        let spec = RewardSpec {
            path,
            clip,
            ..spec(kind)
        };
        check("x-1", &spec, &device).expect("valid");
        let mut scorer = build("x-1", &spec, &device).expect("built");
        assert_eq!(scorer.name(), "x-1");
        assert_eq!(scorer.model_size().is_some(), kind.model().is_some(), "{kind}");
        scorer
            .prepare(&["a cat".to_owned(), "two dogs".to_owned()])
            .expect("prepared");
        let picture = Picture::from(RgbImage::from_fn(64, 64, |x, y| Rgb([200, x as u8 * 3, y as u8 * 3])));
        let scores = scorer.score(&[picture.clone(), picture], &[0, 1]).expect("scores");
        assert!(scores.iter().all(|score| score.is_finite()), "{kind}: {scores:?}");
        assert_eq!(scores[0] != scores[1], kind.reads_prompts(), "{kind}: {scores:?}");
    }
}

/// PickScore's two scales and the plain cosine are one number: 100·c, 100·c/26 and c, were the logit scale ln 100.
#[test]
fn the_scales_of_pick_score_differ_by_their_factor() {
    let [cosine, raw, by_26] = [RewardKind::ClipScore, RewardKind::PickScore, RewardKind::PickScore26].map(|kind| {
        let spec = spec(kind).with_path(emoji().join("scorer"));
        let mut scorer = build("x", &spec, &Device::flex()).expect("built");
        scorer.prepare(&["a cat".to_owned()]).expect("prepared");
        let picture = Picture::from(RgbImage::from_fn(64, 64, |x, y| Rgb([200, x as u8 * 3, y as u8 * 3])));
        scorer.score(&[picture], &[0]).expect("a score")[0]
    });
    assert!((raw / by_26 - 26.0).abs() < 1e-9);
    assert!(raw.abs() > cosine.abs());
}

#[test]
fn settings_that_make_no_reward_are_refused() {
    let device = Device::flex();
    let refused = |name: &str, spec: RewardSpec, expected: &str| {
        for error in [check(name, &spec, &device), build(name, &spec, &device).map(drop)] {
            let error = error.expect_err("refused").to_string();
            assert!(
                error.contains(expected) && error.contains(&format!("`{name}`")),
                "{error}"
            );
        }
    };
    let brightness = spec(RewardKind::Brightness);
    for weight in [0.0, -0.0, f64::NAN, f64::INFINITY] {
        refused(
            "a",
            RewardSpec {
                weight,
                ..brightness.clone()
            },
            "eval_only",
        );
    }
    refused(
        "a",
        RewardSpec {
            path: Some(PathBuf::from("x")),
            ..brightness.clone()
        },
        "remove it",
    );
    refused("a", spec(RewardKind::ClipScore), "needs `path`");
    refused("a", spec(RewardKind::Aesthetic).with_path("x"), "needs `clip`");
    refused("a", spec(RewardKind::Remote), "`remote`");
    let with_clip = RewardSpec {
        clip: Some(PathBuf::from("x")),
        ..spec(RewardKind::Hps).with_path("x")
    };
    refused("a", with_clip, "`clip` means nothing");
    let with_vocabulary = RewardSpec {
        vocabulary: Some(PathBuf::from("x")),
        ..brightness.clone()
    };
    refused("a", with_vocabulary, "`vocabulary` means nothing");
    refused("", brightness.clone(), "the name");
    refused("a/b", brightness, "the name");
    let absent = RewardSpec {
        path: Some(emoji().join("no-such-folder")),
        ..spec(RewardKind::ClipScore)
    };
    refused("clip", absent, "no-such-folder");
}

#[test]
fn a_set_scores_in_the_order_of_names_and_keeps_weights_by_name() {
    let specs: BTreeMap<String, RewardSpec> = [
        (
            "z-bright".to_owned(),
            RewardSpec {
                weight: 3.0,
                ..spec(RewardKind::Brightness)
            },
        ),
        (
            "a-colour".to_owned(),
            RewardSpec {
                weight: -2.0,
                ..spec(RewardKind::Colourfulness)
            },
        ),
        (
            "m-jpeg".to_owned(),
            RewardSpec {
                eval_only: true,
                ..spec(RewardKind::JpegCompressibility)
            },
        ),
    ]
    .into();
    let mut set = RewardSet::build(&specs, &Device::flex()).expect("a set");
    assert_eq!(set.to_string(), "-2·a-colour + 3·z-bright (evaluated only: m-jpeg)");
    assert_eq!(set.weights(), [("a-colour", -2.0), ("z-bright", 3.0)].into());
    let reports = set.prepare(&["a".to_owned(), "b".to_owned()]).expect("prepared");
    assert_eq!(reports.len(), 3);
    assert!(
        reports
            .iter()
            .all(|report| report.prompts == 2 && report.limit.is_none())
    );

    let pictures = [RgbImage::from_pixel(8, 8, Rgb([255; 3])), RgbImage::new(8, 8)].map(Picture::from);
    let scores = set.score(&pictures, &[1, 0], Purpose::Training).expect("scores");
    let found: Vec<_> = scores
        .iter()
        .map(|s| (s.name.as_str(), s.weight, s.values.as_slice()))
        .collect();
    assert_eq!(
        found,
        [("a-colour", -2.0, &[0.0, 0.0][..]), ("z-bright", 3.0, &[1.0, 0.0][..])]
    );
    let all = set.score(&pictures, &[1, 0], Purpose::Evaluation).expect("scores");
    assert_eq!(all.len(), 3);
    assert!(all[1].eval_only && all[1].values.iter().all(|kilobytes| *kilobytes < 0.0));
}

#[test]
fn sets_that_make_no_sense_are_refused() {
    assert!(matches!(
        RewardSet::build(&BTreeMap::new(), &Device::flex()),
        Err(RewardError::NoRewards)
    ));
    let fixed = |name| -> (Box<dyn Scorer>, f64, bool) { (Box::new(Fixed(name, vec![])), 1.0, false) };
    let error = RewardSet::new(vec![fixed("a"), fixed("a")]).expect_err("two of one name");
    assert!(error.to_string().contains("two of this name"), "{error}");
    let (scorer, _, _) = fixed("a");
    assert!(RewardSet::new(vec![(scorer, f64::NAN, false)]).is_err());
}

#[test]
fn bad_scores_of_any_scorer_are_errors() {
    let set = |values: Vec<f64>| RewardSet::new(vec![(Box::new(Fixed("odd", values)), 1.0, false)]).expect("a set");
    let pictures = [RgbImage::new(2, 2), RgbImage::new(2, 2)].map(Picture::from);
    let error = set(vec![0.5, f64::NAN])
        .score(&pictures, &[7, 9], Purpose::Training)
        .expect_err("NaN");
    assert!(
        matches!(
            error,
            RewardError::NonFinite {
                sample: 1,
                prompt: 9,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("`odd`, sample 1 (prompt 9)"), "{error}");
    let gaps = set(vec![0.5, f64::NAN])
        .score_with_gaps(&pictures, &[7, 9], Purpose::Training)
        .expect("gaps are handed on");
    assert!(gaps[0].values[0] == 0.5 && gaps[0].values[1].is_nan());
    let error = set(vec![0.5])
        .score_with_gaps(&pictures, &[7, 9], Purpose::Training)
        .expect_err("one score for two");
    assert!(
        matches!(
            error,
            RewardError::Count {
                scores: 1,
                samples: 2,
                ..
            }
        ),
        "{error}"
    );
}
