//! The kinds of rewards, and what each of them needs to know.

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// What computes a reward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum RewardKind {
    /// `clip-score`: cosine of a CLIP model's features.
    ClipScore,
    /// `pick-score`: the same times the model's `exp(logit_scale)`; PickScore's own scale, about 16 to 26.
    PickScore,
    /// `pick-score-26`: `pick-score` divided by 26, the scale that most RL programs log.
    PickScore26,
    /// `hps`: cosine of HPS-v2's or HPS-v2.1's features.
    Hps,
    /// `aesthetic`: LAION's aesthetic predictor on a CLIP model's picture feature.
    Aesthetic,
    /// `image-reward`: ImageReward-v1.0.
    ImageReward,
    /// `ocr`: how well the text that the prompt asks for can be read in the picture.
    Ocr,
    /// `remote`: what a service answers over HTTP.
    Remote,
    /// `jpeg-compressibility`: minus the JPEG file's size in kB.
    JpegCompressibility,
    /// `jpeg-incompressibility`: the JPEG file's size in kB.
    JpegIncompressibility,
    /// `brightness`: mean luma, 0 to 1.
    Brightness,
    /// `contrast`: standard deviation of luma, 0 to ½.
    Contrast,
    /// `colourfulness`: Hasler and Süsstrunk's measure, 0 to about 150.
    Colourfulness,
}

impl RewardKind {
    /// Every kind.
    pub const ALL: [Self; 13] = [
        Self::ClipScore,
        Self::PickScore,
        Self::PickScore26,
        Self::Hps,
        Self::Aesthetic,
        Self::ImageReward,
        Self::Ocr,
        Self::Remote,
        Self::JpegCompressibility,
        Self::JpegIncompressibility,
        Self::Brightness,
        Self::Contrast,
        Self::Colourfulness,
    ];

    /// The kind's name in configurations.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ClipScore => "clip-score",
            Self::PickScore => "pick-score",
            Self::PickScore26 => "pick-score-26",
            Self::Hps => "hps",
            Self::Aesthetic => "aesthetic",
            Self::ImageReward => "image-reward",
            Self::Ocr => "ocr",
            Self::Remote => "remote",
            Self::JpegCompressibility => "jpeg-compressibility",
            Self::JpegIncompressibility => "jpeg-incompressibility",
            Self::Brightness => "brightness",
            Self::Contrast => "contrast",
            Self::Colourfulness => "colourfulness",
        }
    }

    /// What the kind's `path` names, if it reads a model.
    #[must_use]
    pub fn model(self) -> Option<&'static str> {
        match self {
            Self::ClipScore | Self::PickScore | Self::PickScore26 => {
                Some("a CLIP model: a Hugging Face or open_clip folder, or a state dict of OpenAI's ViT-L/14")
            }
            Self::Hps => Some("HPS_v2.1_compressed.pt (or HPS_v2_compressed.pt) or its folder"),
            Self::Aesthetic => Some("the head sac+logos+ava1-l14-linearMSE.pth"),
            Self::ImageReward => Some("ImageReward.pt or its folder"),
            Self::Ocr => Some("an ONNX text recogniser such as ch_PP-OCRv4_rec_infer.onnx"),
            Self::Remote
            | Self::JpegCompressibility
            | Self::JpegIncompressibility
            | Self::Brightness
            | Self::Contrast
            | Self::Colourfulness => None,
        }
    }

    /// The kind of a model's file or folder, by the names that the models' publishers gave their files; `clip-score`
    /// where they tell nothing.
    #[must_use]
    pub fn of_checkpoint(path: &Path) -> Self {
        let of_file = |name: &str| match name {
            "HPS_v2.1_compressed.pt" | "HPS_v2_compressed.pt" => Some(Self::Hps),
            "ImageReward.pt" => Some(Self::ImageReward),
            _ if name.ends_with("MSE.pth") => Some(Self::Aesthetic),
            _ if name.ends_with(".onnx") => Some(Self::Ocr),
            _ => None,
        };
        let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        let inside = path.read_dir().into_iter().flatten().flatten();
        let kinds = std::iter::once(path.to_owned())
            .chain(inside.map(|entry| entry.path()))
            .filter_map(|path| of_file(&name(&path)?));
        // The order of a folder's entries is the system's, so the least of several is taken.
        kinds.min().unwrap_or(Self::ClipScore)
    }

    /// Whether the kind's model needs CLIP's or BERT's vocabulary, and so takes `vocabulary`.
    #[must_use]
    pub fn takes_vocabulary(self) -> bool {
        match self {
            Self::ClipScore | Self::PickScore | Self::PickScore26 | Self::Hps | Self::ImageReward => true,
            Self::Aesthetic
            | Self::Ocr
            | Self::Remote
            | Self::JpegCompressibility
            | Self::JpegIncompressibility
            | Self::Brightness
            | Self::Contrast
            | Self::Colourfulness => false,
        }
    }

    /// Whether the score depends on the prompt.
    #[must_use]
    pub fn reads_prompts(self) -> bool {
        self.takes_vocabulary() || matches!(self, Self::Ocr | Self::Remote)
    }
}

impl fmt::Display for RewardKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<RewardKind> for String {
    fn from(kind: RewardKind) -> Self {
        kind.as_str().to_owned()
    }
}

impl TryFrom<String> for RewardKind {
    type Error = String;

    fn try_from(name: String) -> Result<Self, String> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name).ok_or_else(|| {
            let known = Self::ALL.map(|kind| format!("`{kind}`")).join(", ");
            format!("there is no reward kind `{name}`; the kinds are {known}")
        })
    }
}
