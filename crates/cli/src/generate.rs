//! `treegrpo generate`

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Result, bail};
use burn::tensor::Device;
use clap::Args;
use image::RgbImage;
use policy_sd3::kernel::{Kernel, LogProb};
use policy_sd3::pipeline::Pipeline;
use policy_sd3::schedule::{Schedule, ScheduleKind, TimestepRounding};
use policy_sd3::{adapter, lora};
use trainer::noise::{self, Place, Purpose};
use trainer::rollout::Sampling;
use trainer::{evaluate, files};

use crate::device::DeviceArgument;
use crate::prompts::PromptArguments;
use crate::{output, progress};

/// Draw pictures with a model, and with an adapter that a run has trained
///
/// One prompt gives one picture, several give a grid in rows of eight. The same arguments give the same file: the noise
/// of a picture depends on the seed and on the place of its prompt, and on nothing else.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Generate {
    /// Folder of the model, in diffusers' layout
    #[arg(long, value_name = "DIR")]
    model: PathBuf,
    /// Folder of an adapter, in PEFT's or diffusers' layout
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
    #[command(flatten)]
    prompts: PromptArguments,
    /// Seed of the noise
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Denoising steps
    #[arg(long, default_value_t = 28)]
    steps: usize,
    /// Guidance scale; 1 is no guidance
    #[arg(long, default_value_t = 4.5)]
    guidance: f64,
    /// Side of the picture in pixels; the model's own when absent
    #[arg(long, value_name = "PIXELS")]
    size: Option<usize>,
    /// Tokens of T5's part of the text, or zero tokens in its place
    #[arg(long, value_name = "COUNT", default_value_t = 256)]
    t5_tokens: usize,
    /// Leave T5 out even if the model has it
    #[arg(long)]
    no_t5: bool,
    /// Pictures that go through the network together; only memory and time depend on it
    #[arg(long, value_name = "COUNT", default_value_t = 16)]
    micro_batch: usize,
    /// The PNG file to write
    #[arg(long, value_name = "FILE.png")]
    out: PathBuf,
    #[command(flatten)]
    device: DeviceArgument,
}

const EXAMPLES: &str = "\
Examples:
  treegrpo generate --model assets/emoji-sd3 --prompt \"flat icon of a cat\" --guidance 3.5 --out cat.png
  treegrpo generate --model assets/emoji-sd3 --adapter runs/emoji/checkpoints/best \\
      --prompts assets/emoji-sd3/prompts/eval.txt --seed 1 --out grid.png";

impl Generate {
    pub(crate) fn run(self) -> Result<()> {
        let prompts = self.check()?;
        let device = self.device.open()?;
        Pipeline::check(&self.model, &device)?;
        let spinner = progress::spinner("loading the model");
        let (pictures, truncated) = self.draw(&prompts, &device, &spinner)?;
        spinner.finish_and_clear();
        let mut told = String::new();
        if let Some(picture) = files::grid(&pictures) {
            output::write_png(&self.out, &picture)?;
            let (width, height) = picture.dimensions();
            write!(told, "{}: {width} x {height} pixels", self.out.display())?;
        }
        if prompts.len() > 1 {
            write!(
                told,
                ", {} pictures in rows of eight, in the prompts' order",
                prompts.len()
            )?;
        }
        told.push('\n');
        if truncated > 0 {
            writeln!(
                told,
                "note: {truncated} of {} prompts are longer than the tokenizers' limit and lose their end",
                prompts.len()
            )?;
        }
        output::print(&told)
    }

    /// What can be wrong with the arguments alone. Gives the prompts.
    fn check(&self) -> Result<Vec<String>> {
        output::check_png(&self.out)?;
        let prompts = self.prompts.read_some()?;
        if !(1..=1000).contains(&self.steps) {
            bail!("--steps {}: use 1 to 1000", self.steps);
        }
        if !(self.guidance.is_finite() && self.guidance >= 1.0) {
            bail!("--guidance {}: use 1 for no guidance or a larger number", self.guidance);
        }
        if self.t5_tokens == 0 || self.micro_batch == 0 {
            bail!("--t5-tokens and --micro-batch must be at least 1");
        }
        if !self.model.join("model_index.json").is_file() {
            let state = if self.model.is_dir() {
                "holds no model_index.json"
            } else {
                "there is no such folder"
            };
            bail!(
                "--model {}: {state}; name a pipeline folder in diffusers' layout",
                self.model.display()
            );
        }
        if let Some(adapter) = &self.adapter
            && !adapter.is_dir()
        {
            bail!(
                "--adapter {}: there is no such folder; name one that holds {} or {}",
                adapter.display(),
                adapter::PEFT_WEIGHTS,
                adapter::DIFFUSERS_WEIGHTS
            );
        }
        Ok(prompts)
    }

    /// The pictures in the prompts' order, and how many prompts were cut off.
    fn draw(
        &self,
        prompts: &[String],
        device: &Device,
        spinner: &indicatif::ProgressBar,
    ) -> Result<(Vec<RgbImage>, usize)> {
        let mut pipeline = Pipeline::open(&self.model, self.t5_tokens, !self.no_t5, device)?;
        if let Some(folder) = &self.adapter {
            adapter::read(folder, &mut pipeline.transformer, &mut pipeline.keys, device)?;
        }
        let sampling = Sampling {
            schedule: Schedule::new(
                ScheduleKind::Diffusers,
                &pipeline.scheduler,
                self.steps,
                TimestepRounding::Exact,
            )?,
            kernel: Kernel::Ode,
            noise_level: 0.0,
            guidance: self.guidance,
            log_prob: LogProb::default(),
            shape: pipeline.latent_shape(self.size)?,
            micro_batch: self.micro_batch,
        };
        let truncated = pipeline.text.count_truncated(prompts)?;
        let (table, _) = pipeline.encode(prompts)?;
        spinner.set_message(format!("drawing {} in {} steps", prompts.len(), self.steps));
        let places = (0..prompts.len() as u64).map(|prompt| Place {
            prompt,
            ..Place::of_iteration(Purpose::Generation, 0)
        });
        let noise = noise::normal(self.seed, places, sampling.shape, device);
        let rows: Vec<usize> = (0..prompts.len()).collect();
        // The adapter's products are added into the weights once instead of at every step.
        let network = lora::merge(&pipeline.transformer);
        let latents = sampling.deterministic(&network, noise, &table, &rows)?;
        Ok((evaluate::draw(&pipeline, &latents, self.micro_batch)?, truncated))
    }
}
