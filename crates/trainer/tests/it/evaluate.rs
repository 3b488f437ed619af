//! Evaluation: every prompt counts once, the numbers can be had again, and the mean is what it says.

use std::collections::BTreeMap;

use burn::tensor::Device;
use policy_sd3::kernel::{Kernel, LogProb};
use policy_sd3::pipeline::Pipeline;
use policy_sd3::schedule::Schedule;
use rewards::RewardSet;
use rewards::pixel::{PixelScore, PixelStatistic};
use trainer::evaluate::{EvaluationScores, Evaluator, summarise};
use trainer::rollout::Sampling;

use crate::fixture::assert_near;
use crate::toy_folder::ToyFolder;

struct Stage {
    pipeline: Pipeline,
    rewards: RewardSet,
    prompts: Vec<String>,
    _folder: ToyFolder,
}

impl Stage {
    fn new() -> Self {
        let folder = ToyFolder::new();
        let pipeline = Pipeline::open(&folder.path("model"), 2, true, &Device::flex()).expect("a pipeline");
        let scorer = PixelScore::new("bright", PixelStatistic::Brightness);
        let rewards = RewardSet::new(vec![(Box::new(scorer), 1.0, false)]).expect("a reward");
        let prompts = ["a red dot", "a blue dot", "a dot", "two dots", "a red dot"]
            .map(str::to_owned)
            .to_vec();
        Self {
            pipeline,
            rewards,
            prompts,
            _folder: folder,
        }
    }

    fn run(&mut self, prompts: &[String], pictures_per_prompt: usize, micro_batch: usize) -> Vec<f64> {
        let sampling = Sampling {
            schedule: Schedule::diffusers(3, 3.0, 1000).expect("a schedule"),
            kernel: Kernel::FlowSde,
            noise_level: 0.7,
            guidance: 1.5,
            log_prob: LogProb::default(),
            shape: self.pipeline.latent_shape(None).expect("a shape"),
            micro_batch,
        };
        let evaluator =
            Evaluator::new(&self.pipeline, prompts.to_vec(), sampling, pictures_per_prompt, 3).expect("an evaluator");
        let network = &self.pipeline.transformer;
        let (scores, kept) = evaluator
            .run(network, &self.pipeline, &mut self.rewards, 2, &Device::flex())
            .expect("scores");
        assert_eq!(kept.len(), 2);
        scores.per_prompt["bright"].clone()
    }
}

/// Five prompts in micro-batches of two give five scores, no more and no fewer, whose mean is that of any other
/// micro-batch; asked again they are the same to the bit.
#[test]
fn every_prompt_counts_once() {
    let mut stage = Stage::new();
    let prompts = stage.prompts.clone();
    let scores = stage.run(&prompts, 1, 2);
    assert_eq!(scores.len(), 5);
    assert_eq!(stage.run(&prompts, 1, 2), scores);
    // A level of an 8-bit picture may flip by rounding: 1/255 of one of 256 pixels' channels.
    for (a, b) in stage.run(&prompts, 1, 64).iter().zip(&scores) {
        assert_near("score", *a, *b, 1e-4);
    }
    // Prompts are told apart by index: equal texts get different noise and so different pictures.
    assert_ne!(scores[0], scores[4]);
}

/// A prompt's score does not depend on the prompts after it.
#[test]
fn prompts_do_not_depend_on_each_other() {
    let mut stage = Stage::new();
    let prompts = stage.prompts.clone();
    let all = stage.run(&prompts, 1, 64);
    let some = stage.run(&prompts[..2], 1, 64);
    assert_near("first", some[0], all[0], 1e-4);
    assert_near("second", some[1], all[1], 1e-4);
}

/// Several pictures per prompt are averaged into one score, and the first of them is the single picture's.
#[test]
fn pictures_of_a_prompt_are_averaged() {
    let mut stage = Stage::new();
    let prompts = stage.prompts.clone();
    let (one, two) = (stage.run(&prompts, 1, 64), stage.run(&prompts, 2, 64));
    assert_eq!(two.len(), 5);
    assert_ne!(one, two);
}

/// By hand: scores 1, 2, 6 have mean 3 and variance (4 + 1 + 9)/2 = 7, so a standard error of √(7/3). Against 0, 2, 4
/// the changes are 1, 0, 2: mean 1, variance 1, standard error √(1/3).
#[test]
fn summary_by_hand() {
    let summary = summarise(&[1.0, 2.0, 6.0], &[0.0, 2.0, 4.0]);
    assert_near("mean", summary.mean, 3.0, 1e-12);
    assert_near("error", summary.standard_error, (7.0f64 / 3.0).sqrt(), 1e-12);
    assert_near("change", summary.change, 1.0, 1e-12);
    assert_near(
        "error of the change",
        summary.change_standard_error,
        (1.0f64 / 3.0).sqrt(),
        1e-12,
    );
    assert_eq!(
        summarise(&[5.0], &[5.0]).standard_error,
        0.0,
        "one prompt has no spread, and no NaN"
    );
}

/// By hand, with gaps: of the scores 1, –, 6, 5 against –, 2, 4, 4 the first evaluation has the mean 10/3 and this one
/// 4, but prompts 0 and 1 have one score each and are not compared: the changes are 2 and 1, their mean 1.5, their
/// standard error ½. To be compared with other evaluations, the mean is 10/3 + 1.5.
#[test]
fn gaps_are_in_no_mean() {
    let (now, before) = ([1.0, f64::NAN, 6.0, 5.0], [f64::NAN, 2.0, 4.0, 4.0]);
    let summary = summarise(&now, &before);
    assert_near("mean", summary.mean, 4.0, 1e-12);
    assert_near("error", summary.standard_error, (7.0f64 / 3.0).sqrt(), 1e-12);
    assert_near("change", summary.change, 1.5, 1e-12);
    assert_near("error of the change", summary.change_standard_error, 0.5, 1e-12);

    let scores = |values: &[f64]| EvaluationScores {
        per_prompt: BTreeMap::from([("r".to_owned(), values.to_vec())]),
        ..EvaluationScores::default()
    };
    let mean = |now: &[f64], before: &[f64]| scores(now).comparable_mean(&scores(before), "r");
    assert_near("comparable", mean(&now, &before), 10.0 / 3.0 + 1.5, 1e-12);
    assert_eq!(mean(&[1.0, 2.0], &[5.0, 5.0]), 1.5, "without gaps it is the mean");
    assert!(mean(&[f64::NAN; 2], &[5.0, 5.0]).is_nan());
    assert_eq!(scores(&now).left_out(), [("r".to_owned(), vec![1])].into());
    assert!(scores(&[1.0]).left_out().is_empty());

    let nothing = summarise(&[f64::NAN; 2], &[1.0, 2.0]);
    assert!(nothing.mean.is_nan() && nothing.standard_error.is_nan() && nothing.change.is_nan());
}

/// Parts of the evaluation file are named by their first and last line, both included.
#[test]
fn groups_are_lines_of_the_file() {
    let scores = |values: &[f64]| EvaluationScores {
        per_prompt: BTreeMap::from([("r".to_owned(), values.to_vec())]),
        ..EvaluationScores::default()
    };
    let groups = BTreeMap::from([("head".to_owned(), [1, 2]), ("tail".to_owned(), [3, 5])]);
    let summaries = scores(&[1.0, 2.0, 3.0, 4.0, 5.0]).summaries(&scores(&[0.0; 5]), &groups);
    let mean = |part: &str| summaries["r"][part].mean;
    assert_eq!((mean("all"), mean("head"), mean("tail")), (3.0, 1.5, 4.0));
}
