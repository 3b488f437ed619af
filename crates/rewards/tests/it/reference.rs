//! Whether a checkpoint is recognised as a released model.

use burn::tensor::Device;
use rewards::reference::{KNOWN, check_reference};
use rewards::{ModelSize, Picture, RewardError, RewardKind, RewardSpec, Scorer, TruncationReport, build};

use crate::fixture::{emoji, folder};

/// A scorer of a given size that scores pair (picture, caption) as it is told to.
struct Posing {
    size: ModelSize,
    own: f64,
    other: f64,
}

impl Scorer for Posing {
    fn name(&self) -> &str {
        "posing"
    }

    fn description(&self) -> String {
        "poses as another".to_owned()
    }

    fn model_size(&self) -> Option<ModelSize> {
        Some(self.size)
    }

    fn prepare(&mut self, prompts: &[String]) -> Result<TruncationReport, RewardError> {
        Ok(TruncationReport::without_text("posing", prompts.len()))
    }

    fn score(&self, pictures: &[Picture], prompts: &[usize]) -> Result<Vec<f64>, RewardError> {
        // The first picture of the call belongs to caption 0.
        let scores = pictures.iter().zip(prompts).map(|(picture, prompt)| {
            let own = (picture == &pictures[0]) == (*prompt == 0);
            if own { self.own } else { self.other }
        });
        Ok(scores.collect())
    }
}

/// Size, range and order are asked for one by one, and one wrong answer is enough.
#[test]
fn a_released_model_passes_and_an_impostor_does_not() {
    for known in KNOWN {
        let kind = known.kinds[0];
        let [low, high] = known.band;
        let middle = (low + high) / 2.0;
        let check = |size: ModelSize, own: f64, other: f64| {
            check_reference(kind, &mut Posing { size, own, other }).expect("a report")
        };
        for size in known.sizes {
            let right = check(*size, middle, low);
            assert!(right.passes(), "{right}");
            assert!(right.to_string().contains("the model that is meant"), "{right}");
            let shifted = check(*size, high + 0.01, low);
            assert!(!shifted.passes() && shifted.to_string().contains("FAIL"), "{shifted}");
            let swapped = check(*size, middle, high);
            assert_eq!(swapped.passes(), !kind.reads_prompts(), "{swapped}");
        }
        let other = ModelSize {
            parameters: known.sizes[0].parameters + 1,
            ..known.sizes[0]
        };
        let report = check(other, middle, low);
        assert!(!report.passes() && report.known.is_none(), "{report}");
        assert!(report.to_string().contains("no released model"), "{report}");
    }
}

/// The sizes are those of the lists of names and shapes of the released files.
#[test]
fn known_sizes_are_those_of_the_full_size_lists() {
    for (list, kind) in [
        ("clip_vit_l14_hf", RewardKind::ClipScore),
        ("dfn5b_open_clip_vit_h14_378_quickgelu", RewardKind::ClipScore),
        ("hpsv2_open_clip_vit_h14", RewardKind::Hps),
        ("pickscore_clip_vit_h14_hf", RewardKind::PickScore),
        ("pickscore_clip_vit_h14_hf", RewardKind::PickScore26),
    ] {
        let path = crate::fixture::root().join("full_size").join(format!("{list}.json"));
        let Ok(text) = std::fs::read_to_string(path) else {
            // Only the project's own fixture folder carries the full-size lists.
            return;
        };
        let shapes: std::collections::BTreeMap<String, Vec<usize>> = serde_json::from_str(&text).expect("shapes");
        let size = ModelSize {
            parameters: shapes
                .values()
                .map(|shape| shape.iter().product::<usize>() as u64)
                .sum(),
            tensors: shapes.len(),
        };
        let known = KNOWN
            .iter()
            .find(|k| k.kinds.contains(&kind) && k.sizes.contains(&size));
        assert!(known.is_some(), "{list}: {size:?}");
    }
}

/// ImageReward's and the aesthetic predictor's sizes, from what their networks ask for.
#[test]
fn known_sizes_are_those_of_the_networks() {
    use nn::weights::Weights;
    use rewards::image_reward::{ImageRewardConfig, ImageRewardModel};

    let weights = Weights::blank(&Device::flex());
    ImageRewardModel::load(&weights, &ImageRewardConfig::released()).expect("blank weights");
    let size = ModelSize::of(&weights);
    assert!(
        KNOWN
            .iter()
            .any(|k| k.kinds == [RewardKind::ImageReward] && k.sizes == [size]),
        "{size:?}"
    );

    let weights = Weights::blank(&Device::flex());
    rewards::LinearChain::load(&weights, 768).expect("blank weights");
    let head = ModelSize::of(&weights);
    let of = |kind| KNOWN.iter().find(|k| k.kinds.contains(&kind)).expect("known").sizes;
    let expected: Vec<ModelSize> = of(RewardKind::ClipScore).iter().map(|clip| *clip + head).collect();
    assert_eq!(of(RewardKind::Aesthetic), expected);
}

/// The small models of the fixtures and the shipped scorer are none of the released ones, and that is said.
#[test]
fn small_models_are_not_taken_for_released_ones() {
    for spec in [
        RewardSpec::new(RewardKind::ClipScore).with_path(emoji().join("scorer")),
        RewardSpec::new(RewardKind::Hps).with_path(folder("hps")),
        RewardSpec::new(RewardKind::ImageReward).with_path(folder("imagereward")),
    ] {
        let mut scorer = build("x", &spec, &Device::flex()).expect("built");
        let report = check_reference(spec.kind, scorer.as_mut()).expect("a report");
        assert!(!report.passes() && report.known.is_none(), "{report}");
    }
    let mut scorer = build("x", &RewardSpec::new(RewardKind::Brightness), &Device::flex()).expect("built");
    let error = check_reference(RewardKind::Brightness, scorer.as_mut()).expect_err("no model");
    assert!(error.to_string().contains("no model"), "{error}");
}
