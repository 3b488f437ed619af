//! PyTorch files that PyTorch wrote: the reduced copies of released reward models among the fixtures, and one released
//! file, where it is at hand.

use std::path::Path;

use burn::tensor::Device;
use nn::weights::Weights;

use crate::fixture::own;

fn open(path: &Path) -> Weights {
    Weights::open_file(path, &Device::flex()).expect("a released file")
}

/// Reads the head of LAION's aesthetic predictor, a chain of linear layers on features of this width.
fn read_head(weights: Weights, features: usize) {
    let mut inputs = features;
    for (place, outputs) in [(0, 1024), (2, 128), (4, 64), (6, 16), (7, 1)] {
        let layer = weights.scope(format!("layers.{place}"));
        let values = layer.values("weight", &[outputs, inputs]).expect("a matrix");
        assert!(values.iter().any(|value| *value != 0.0));
        layer.values("bias", &[outputs]).expect("a vector");
        inputs = outputs;
    }
    weights.finish().expect("nothing is left over");
}

/// The files of the four reward models that are published as pickles open as they are, in the wrapping they have.
#[test]
fn reduced_copies_of_released_files_open() {
    let rewards = own().join("rewards");
    let hps = open(&rewards.join("hps/HPS_v2.1_compressed.pt"));
    assert_eq!(hps.wrapper(), Some("the key `state_dict` around them"));
    assert_eq!(hps.stored_shape("visual.conv1.weight"), Some(vec![24, 3, 7, 7]));

    let dfn = open(&rewards.join("dfn5b/open_clip_pytorch_model.bin"));
    assert_eq!(dfn.wrapper(), None);
    assert_eq!(dfn.stored_shape("visual.conv1.weight"), Some(vec![16, 3, 7, 7]));

    let blip = open(&rewards.join("imagereward/ImageReward.pt"));
    assert_eq!(blip.wrapper(), None);
    assert_eq!(blip.stored_shape("blip.visual_encoder.cls_token"), Some(vec![1, 1, 16]));
    assert_eq!(
        blip.values("blip.visual_encoder.cls_token", &[1, 1, 16])
            .expect("a token")
            .len(),
        16
    );

    read_head(open(&rewards.join("aesthetic/sac+logos+ava1-l14-linearMSE.pth")), 20);
}

/// The released head itself: 768 inputs, storages from `cuda:0`. It is not in the repository.
#[test]
fn the_released_aesthetic_head_opens() {
    let path = own().join("../../shared/real/sac+logos+ava1-l14-linearMSE.pth");
    if !path.exists() {
        println!("skipped: there is no {}", path.display());
        return;
    }
    read_head(open(&path), 768);
}
