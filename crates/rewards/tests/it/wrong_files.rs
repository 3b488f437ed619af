//! Files that are not the ones that are meant: the error names the reward, the file and, where there is one, the key, and
//! nothing is ever scored with weights that were not read.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::Device;
use rewards::{RewardKind, RewardSpec, build, check};
use safetensors::tensor::TensorView;

use crate::fixture::{copy, emoji, folder};

/// Builds the reward and expects an error that holds all of `parts`. `early` says whether the check without weights must
/// already find it.
#[track_caller]
fn refused(spec: &RewardSpec, early: bool, parts: &[&str]) {
    let device = Device::flex();
    let built = build("mine", spec, &device).map(drop).expect_err("refused").to_string();
    let checked = check("mine", spec, &device);
    assert_eq!(checked.is_err(), early, "{checked:?}");
    assert!(built.contains("`mine`"), "{built}");
    for part in parts {
        assert!(built.contains(part), "`{part}` is not in: {built}");
    }
}

/// A weight file of given names and shapes, all zeros. What a file holds decides how it is read, not its ending.
fn write_zeros(path: &Path, shapes: &[(String, Vec<usize>)]) {
    let zeros: Vec<Vec<u8>> = shapes
        .iter()
        .map(|(_, s)| vec![0; 4 * s.iter().product::<usize>()])
        .collect();
    let views: BTreeMap<String, TensorView<'_>> = shapes
        .iter()
        .zip(&zeros)
        .map(|((key, shape), zeros)| {
            let view = TensorView::new(safetensors::Dtype::F32, shape.clone(), zeros);
            (key.clone(), view.expect("as many bytes as the shape says"))
        })
        .collect();
    safetensors::serialize_to_file(views, None, path).expect("written");
}

/// Names and shapes of a chain of linear layers at these places.
fn chain(places: [usize; 5], inputs: usize) -> Vec<(String, Vec<usize>)> {
    let widths = [inputs, 1024, 128, 64, 16, 1];
    let layer = |(i, place): (usize, usize)| {
        [
            (format!("layers.{place}.weight"), vec![widths[i + 1], widths[i]]),
            (format!("layers.{place}.bias"), vec![widths[i + 1]]),
        ]
    };
    places.into_iter().enumerate().flat_map(layer).collect()
}

fn hps(path: impl AsRef<Path>) -> RewardSpec {
    RewardSpec::new(RewardKind::Hps).with_path(path.as_ref())
}

fn aesthetic(head: &Path, clip: &Path) -> RewardSpec {
    RewardSpec {
        clip: Some(clip.to_owned()),
        ..RewardSpec::new(RewardKind::Aesthetic).with_path(head)
    }
}

#[test]
fn another_models_file_is_refused_by_its_keys() {
    let image_reward = folder("imagereward").join("ImageReward.pt");
    refused(&hps(&image_reward), false, &["ImageReward.pt", "is missing"]);
    let hps_file = folder("hps").join("HPS_v2.1_compressed.pt");
    let spec = RewardSpec::new(RewardKind::ImageReward).with_path(&hps_file);
    refused(&spec, false, &["HPS_v2.1_compressed.pt", "`blip.", "is missing"]);
    refused(
        &aesthetic(&hps_file, &folder("clip_l")),
        false,
        &["layers.0.weight", "is missing"],
    );
    let spec = RewardSpec::new(RewardKind::ClipScore).with_path(&image_reward);
    refused(&spec, true, &["ImageReward.pt", "config.json"]);
}

#[test]
fn folders_without_the_file_name_it() {
    let empty = tempfile::tempdir().expect("a folder");
    refused(&hps(empty.path()), true, &["HPS_v2.1_compressed.pt", "no "]);
    refused(
        &hps("no/such/place"),
        true,
        &["no/such/place", "HPS_v2.1_compressed.pt"],
    );
    let spec = RewardSpec::new(RewardKind::ImageReward).with_path(empty.path());
    refused(&spec, true, &["ImageReward.pt"]);
}

/// The head with ReLUs has the same layers at other places; an affine chain would read nothing of it or give other scores.
#[test]
fn the_aesthetic_head_with_relus_is_refused() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("ava+logos-l14-reluMSE.pth");
    write_zeros(&file, &chain([0, 3, 6, 9, 11], 20));
    refused(
        &aesthetic(&file, &folder("clip_l")),
        true,
        &["reluMSE.pth", "ReLUs", "linearMSE"],
    );
}

/// A head for ViT-B/32 has 512 inputs, one for ViT-L/14 has 768: both widths are named.
#[test]
fn a_head_for_another_clip_is_refused_with_both_widths() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("sac+logos+ava1-l14-linearMSE.pth");
    write_zeros(&file, &chain([0, 2, 4, 6, 7], 512));
    refused(
        &aesthetic(&file, &emoji().join("scorer")),
        false,
        &["layers.0.weight", "[1024, 512]"],
    );
}

#[test]
fn what_is_no_weight_file_is_named_as_what_it_is() {
    let dir = copy(&folder("hps"));
    let file = dir.path().join("HPS_v2.1_compressed.pt");
    for (content, parts) in [
        (&b""[..], ["empty", "HPS_v2.1_compressed.pt"]),
        (b"<!DOCTYPE html><html>", ["HTML", "download"]),
        (
            b"version https://git-lfs.github.com/spec/v1\n",
            ["Git LFS", "git lfs pull"],
        ),
    ] {
        std::fs::write(&file, content).expect("written");
        refused(&hps(dir.path()), true, &parts);
    }
    let whole = std::fs::read(folder("hps").join("HPS_v2.1_compressed.pt")).expect("the file");
    std::fs::write(&file, &whole[..whole.len() / 2]).expect("written");
    refused(&hps(dir.path()), true, &["HPS_v2.1_compressed.pt"]);
}

/// Sizes that differ from the configuration's, as with a transposed projection: `visual.proj` is `[width, projection]`.
#[test]
fn a_model_of_other_sizes_is_refused_with_both_shapes() {
    let dir = copy(&folder("hps"));
    std::fs::remove_file(dir.path().join("model_config.json")).expect("removed");
    // Without the file beside it the released ViT-H/14 is meant, and this is a tiny one.
    refused(
        &hps(dir.path()),
        false,
        &["HPS_v2.1_compressed.pt", "has shape", "asks for"],
    );
}
