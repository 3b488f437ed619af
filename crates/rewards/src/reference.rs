//! Is this checkpoint the one that is meant? A model of the right shape with the wrong weights scores without a word, so
//! a released model is recognised by what can be known of it without its file: how many parameters in how many tensors
//! it has, what it gives for a picture that everybody has, and that it tells that picture's caption from another's.

use std::fmt;

use crate::error::RewardError;
use crate::kind::RewardKind;
use crate::pictures::{Picture, narrow};
use crate::scorer::{ModelSize, Scorer};

/// A released model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KnownModel {
    /// What people call it.
    pub name: &'static str,
    /// What it scores as.
    pub kinds: &'static [RewardKind],
    /// Parameters and tensors, without buffers. The same model has more tensors in Hugging Face naming than in
    /// open_clip's, which keeps query, key and value in one.
    pub sizes: &'static [ModelSize],
    /// The least and the greatest score that its users report for pictures that fit their prompts, with some room.
    pub band: [f64; 2],
}

const fn size(parameters: u64, tensors: usize) -> ModelSize {
    ModelSize { parameters, tensors }
}

/// Parameters of CLIP ViT-L/14, and of ViT-H/14 at 224 and at 378 pixels.
const L14: u64 = 427_616_513;
const H14: u64 = 986_109_441;
const H14_378: u64 = 986_714_881;
/// The head of the aesthetic predictor: 768·1024 + 1024 + 1024·128 + 128 + 128·64 + 64 + 64·16 + 16 + 16 + 1.
const AESTHETIC_HEAD: u64 = 927_969;

/// The models that are recognised.
pub const KNOWN: [KnownModel; 8] = [
    KnownModel {
        name: "CLIP ViT-L/14 of OpenAI",
        kinds: &[RewardKind::ClipScore],
        sizes: &[size(L14, 590), size(L14, 446)],
        band: [0.18, 0.40],
    },
    KnownModel {
        name: "CLIP ViT-H/14 at 378 pixels (DFN5B)",
        kinds: &[RewardKind::ClipScore],
        sizes: &[size(H14_378, 686), size(H14_378, 910)],
        band: [0.22, 0.55],
    },
    KnownModel {
        name: "CLIP ViT-H/14 at 224 pixels (LAION, DFN5B)",
        kinds: &[RewardKind::ClipScore],
        sizes: &[size(H14, 686), size(H14, 910)],
        band: [0.18, 0.55],
    },
    KnownModel {
        name: "PickScore v1",
        kinds: &[RewardKind::PickScore],
        sizes: &[size(H14, 910)],
        band: [14.0, 28.0],
    },
    KnownModel {
        name: "PickScore v1",
        kinds: &[RewardKind::PickScore26],
        sizes: &[size(H14, 910)],
        band: [14.0 / 26.0, 28.0 / 26.0],
    },
    KnownModel {
        name: "HPS-v2 or HPS-v2.1",
        kinds: &[RewardKind::Hps],
        sizes: &[size(H14, 686)],
        band: [0.15, 0.42],
    },
    KnownModel {
        name: "the LAION aesthetic predictor v2 on CLIP ViT-L/14",
        kinds: &[RewardKind::Aesthetic],
        sizes: &[size(L14 + AESTHETIC_HEAD, 600), size(L14 + AESTHETIC_HEAD, 456)],
        band: [2.5, 8.0],
    },
    KnownModel {
        name: "ImageReward v1.0",
        kinds: &[RewardKind::ImageReward],
        sizes: &[size(446_665_953, 624)],
        band: [-2.4, 2.2],
    },
];

/// The pictures of the reference cases, each with its caption.
const CASES: [(&[u8], &str); 2] = [
    (
        include_bytes!("../reference/tomato.png"),
        "a 3d icon of a ripe red tomato on a white background",
    ),
    (
        include_bytes!("../reference/dog.png"),
        "a 3d icon of the face of a brown dog on a white background",
    ),
];

/// What a check found out.
#[derive(Debug, Clone, PartialEq)]
pub struct ReferenceReport {
    /// Parameters and tensors of the model.
    pub size: ModelSize,
    /// The released model of this kind and size, if there is one.
    pub known: Option<KnownModel>,
    /// `scores[i][j]`: picture `i` against caption `j`; for a kind that reads no prompts all columns are equal.
    pub scores: [[f64; 2]; 2],
    /// Whether the kind compares pictures with prompts.
    pub reads_prompts: bool,
}

impl ReferenceReport {
    /// Whether every picture's score with its own caption lies in the band of the released model.
    #[must_use]
    pub fn in_band(&self) -> bool {
        let inside = |band: [f64; 2]| (0..CASES.len()).all(|i| (band[0]..=band[1]).contains(&self.scores[i][i]));
        self.known.is_some_and(|known| inside(known.band))
    }

    /// Whether every picture prefers its own caption; `true` for a kind that reads no prompts.
    #[must_use]
    pub fn tells_captions_apart(&self) -> bool {
        let [[a, b], [c, d]] = self.scores;
        !self.reads_prompts || (a > b && d > c)
    }

    /// Whether the loaded model is a released one.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.in_band() && self.tells_captions_apart()
    }
}

/// A line for each question, then the verdict.
impl fmt::Display for ReferenceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = |holds: bool| if holds { "ok  " } else { "FAIL" };
        let ModelSize { parameters, tensors } = self.size;
        match self.known {
            Some(known) => writeln!(f, "ok   {parameters} parameters in {tensors} tensors: {}", known.name)?,
            None => writeln!(
                f,
                "FAIL {parameters} parameters in {tensors} tensors: no released model of this kind has this size"
            )?,
        }
        if let Some(KnownModel { band: [low, high], .. }) = self.known {
            let [own, other] = [self.scores[0][0], self.scores[1][1]];
            writeln!(
                f,
                "{} scores of the reference pictures {own:.4} and {other:.4}, expected from {low:.4} to {high:.4}",
                mark(self.in_band())
            )?;
        }
        if self.reads_prompts {
            let [[a, b], [c, d]] = self.scores;
            writeln!(
                f,
                "{} each picture prefers its own caption: {a:.4} against {b:.4}, {d:.4} against {c:.4}",
                mark(self.tells_captions_apart())
            )?;
        }
        if self.passes() {
            write!(f, "this is the model that is meant")
        } else if self.known.is_some() {
            write!(
                f,
                "the shapes are right but the weights are not those of the released model; download the file again"
            )
        } else {
            write!(
                f,
                "this is not a released model of this kind; it can still be used as a scorer"
            )
        }
    }
}

/// Runs the reference cases.
///
/// # Errors
///
/// The scorer has no model, or fails.
pub fn check_reference(kind: RewardKind, scorer: &mut dyn Scorer) -> Result<ReferenceReport, RewardError> {
    let Some(size) = scorer.model_size() else {
        return Err(RewardError::Spec {
            scorer: scorer.name().to_owned(),
            why: format!("kind `{kind}` has no model that could be checked"),
        });
    };
    let pictures = CASES.iter().map(|(bytes, _)| decode(scorer.name(), bytes));
    let pictures = pictures.collect::<Result<Vec<Picture>, _>>()?;
    let captions: Vec<String> = CASES.iter().map(|(_, caption)| (*caption).to_owned()).collect();
    scorer.prepare(&captions)?;
    // All four pairs in one call: 0-0, 0-1, 1-0, 1-1.
    let pairs = [0, 0, 1, 1].map(|i: usize| pictures[i].clone());
    let scores = scorer.score(&pairs, &[0, 1, 0, 1])?;
    Ok(ReferenceReport {
        size,
        known: KNOWN
            .into_iter()
            .find(|known| known.kinds.contains(&kind) && known.sizes.contains(&size)),
        scores: [[scores[0], scores[1]], [scores[2], scores[3]]],
        reads_prompts: kind.reads_prompts(),
    })
}

fn decode(scorer: &str, bytes: &[u8]) -> Result<Picture, RewardError> {
    let picture = image::load_from_memory(bytes).map_err(|source| RewardError::Spec {
        scorer: scorer.to_owned(),
        why: format!("a built-in reference picture cannot be decoded: {source}"),
    })?;
    Ok(narrow(&picture))
}
