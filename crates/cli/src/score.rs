//! `treegrpo score`

mod reference;
mod scorer;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use rewards::{Purpose, RewardScores, RewardSet, RewardSpec, pictures};
use serde_json::{Map, Value, json};

use crate::device::DeviceArgument;
use crate::output;
use crate::prompts::PromptArguments;

/// Score pictures against prompts, or check a scorer's files
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Score {
    /// A scorer: `[NAME=][KIND:]PATH` for a model, KIND for one without a model, a URL for a service; may be given several
    /// times
    #[arg(long = "scorer", value_name = "SCORER", required_unless_present = "check")]
    scorers: Vec<String>,
    /// A picture (PNG or JPEG), or a folder of them in the order of their names; may be given several times
    #[arg(long = "image", value_name = "FILE", required_unless_present = "check")]
    images: Vec<PathBuf>,
    /// Instead of scoring: load this scorer, score two built-in pictures, and say whether it is a released model
    #[arg(long, value_name = "SCORER", conflicts_with_all = ["scorers", "images"])]
    check: Option<String>,
    #[command(flatten)]
    prompts: PromptArguments,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    device: DeviceArgument,
}

const EXAMPLES: &str = "\
Give one prompt for all pictures, or one per picture.

Kinds with a model: clip-score, pick-score, pick-score-26 (a CLIP model: a Hugging Face or open_clip folder), hps, aesthetic (the head; its CLIP model follows as `,clip=PATH`), image-reward, ocr (an ONNX recogniser).
Without KIND the file's name tells the kind, and a CLIP model gives clip-score. `,vocabulary=PATH` replaces the built-in
vocabulary. Kinds without a model: jpeg-compressibility (jpeg for short), jpeg-incompressibility, brightness, contrast,
colourfulness. A service over HTTP is named by its URL.

Examples:
  treegrpo score --scorer clip=assets/emoji-sd3/scorer --image cat.png --prompt \"flat icon of a cat\"
  treegrpo score --scorer clip=assets/emoji-sd3/scorer --scorer jpeg --image pictures/ --prompts prompts.txt --json
  treegrpo score --scorer hps=models/HPS_v2.1_compressed.pt --image cat.png --prompt \"a cat\"
  treegrpo score --scorer aesthetic:models/sac+logos+ava1-l14-linearMSE.pth,clip=models/clip-vit-large-patch14 --image cat.png
  treegrpo score --scorer judge=http://127.0.0.1:8000/score --image cat.png --prompt \"a cat\"
  treegrpo score --check models/HPS_v2.1_compressed.pt";

/// What is scored against what.
struct Pairs {
    images: Vec<PathBuf>,
    /// One for all pictures, or one per picture.
    prompts: Vec<String>,
}

impl Pairs {
    /// The number of a picture's prompt.
    fn prompt(&self, image: usize) -> usize {
        if self.prompts.len() == 1 { 0 } else { image }
    }
}

impl Score {
    pub(crate) fn run(self) -> Result<()> {
        if let Some(argument) = &self.check {
            return reference::run(argument, self.json, &self.device.open()?);
        }
        let specs = self.specs()?;
        let pairs = self.pairs(&specs)?;
        let device = self.device.open()?;
        for (name, spec) in &specs {
            rewards::check(name, spec, &device)?;
        }
        let opened = pairs.images.iter().map(|image| pictures::open(image));
        let opened = opened.collect::<Result<Vec<_>, _>>()?;

        let mut rewards = RewardSet::build(&specs, &device)?;
        let reports = rewards.prepare(&pairs.prompts)?;
        let numbers: Vec<usize> = (0..opened.len()).map(|image| pairs.prompt(image)).collect();
        let scores = rewards.score(&opened, &numbers, Purpose::Evaluation)?;
        if self.json {
            let truncated: BTreeMap<&str, usize> = reports
                .iter()
                .map(|report| (report.scorer.as_str(), report.truncated.len()))
                .collect();
            let answer = as_json(&pairs, &scores, &rewards, &json!(truncated));
            return output::print(&format!("{answer:#}\n"));
        }
        let mut text = as_table(&pairs, &scores)?;
        for report in reports.iter().filter(|report| !report.truncated.is_empty()) {
            writeln!(text, "note: {report}")?;
        }
        output::print(&text)
    }

    /// The scorers by name.
    fn specs(&self) -> Result<BTreeMap<String, RewardSpec>> {
        let mut specs = BTreeMap::new();
        for argument in &self.scorers {
            let (name, spec) = scorer::parse("--scorer", argument)?;
            if specs.insert(name.clone(), spec).is_some() {
                bail!("--scorer {argument}: there are two scorers called `{name}`; rename one");
            }
        }
        Ok(specs)
    }

    /// Every picture with its prompt.
    fn pairs(&self, specs: &BTreeMap<String, RewardSpec>) -> Result<Pairs> {
        let images = list_images(&self.images)?;
        let mut prompts = self.prompts.read()?;
        if prompts.is_empty() {
            if let Some((name, _)) = specs.iter().find(|(_, spec)| spec.kind.reads_prompts()) {
                bail!("there is no prompt, but `{name}` compares pictures with prompts; give one with --prompt TEXT");
            }
            // The other kinds never look at it.
            prompts.push(String::new());
        }
        if prompts.len() != 1 && prompts.len() != images.len() {
            bail!(
                "there are {} pictures and {} prompts; give one prompt for all pictures, or one per picture",
                images.len(),
                prompts.len()
            );
        }
        Ok(Pairs { images, prompts })
    }
}

/// The picture files that the arguments name, folders replaced by what they hold.
fn list_images(arguments: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut images = Vec::new();
    for path in arguments {
        if path.is_file() {
            images.push(path.clone());
        } else if path.is_dir() {
            let unreadable = || format!("--image {}: cannot be read", path.display());
            let mut inside = Vec::new();
            for entry in path.read_dir().with_context(unreadable)? {
                inside.push(entry.with_context(unreadable)?.path());
            }
            inside.retain(|file| file.is_file() && is_picture(file));
            inside.sort();
            if inside.is_empty() {
                bail!(
                    "--image {}: the folder holds no .png, .jpg or .jpeg file",
                    path.display()
                );
            }
            images.append(&mut inside);
        } else {
            bail!(
                "--image {}: there is no such file; name a PNG or JPEG file, or a folder of them",
                path.display()
            );
        }
    }
    Ok(images)
}

fn is_picture(path: &Path) -> bool {
    let ending = path.extension().map(|e| e.to_string_lossy().to_lowercase());
    matches!(ending.as_deref(), Some("png" | "jpg" | "jpeg"))
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn as_json(pairs: &Pairs, scores: &[RewardScores], rewards: &RewardSet, truncated: &Value) -> Value {
    let images = pairs.images.iter().enumerate().map(|(i, image)| {
        let own: Map<String, Value> = scores.iter().map(|s| (s.name.clone(), json!(s.values[i]))).collect();
        json!({ "image": image, "prompt": pairs.prompts[pairs.prompt(i)], "scores": own })
    });
    let means: Map<String, Value> = scores
        .iter()
        .map(|s| (s.name.clone(), json!(mean(&s.values))))
        .collect();
    let descriptions: BTreeMap<&str, String> = rewards.descriptions().into_iter().collect();
    json!({
        "scorers": descriptions,
        "images": images.collect::<Vec<_>>(),
        "means": means,
        "truncated_prompts": truncated,
    })
}

fn as_table(pairs: &Pairs, scores: &[RewardScores]) -> Result<String> {
    let names: Vec<String> = pairs.images.iter().map(|image| image.display().to_string()).collect();
    let first = names.iter().map(|name| name.chars().count()).max().unwrap_or(0).max(5);
    let widths: Vec<usize> = scores.iter().map(|s| s.name.len().max(10)).collect();
    let mut text = format!("{:first$}", "image");
    for (reward, width) in scores.iter().zip(&widths) {
        write!(text, "  {:>width$}", reward.name)?;
    }
    text.push('\n');
    for (i, name) in names.iter().enumerate() {
        write!(text, "{name:first$}")?;
        for (reward, width) in scores.iter().zip(&widths) {
            write!(text, "  {:>width$.5}", reward.values[i])?;
        }
        text.push('\n');
    }
    if names.len() > 1 {
        write!(text, "{:first$}", "mean")?;
        for (reward, width) in scores.iter().zip(&widths) {
            write!(text, "  {:>width$.5}", mean(&reward.values))?;
        }
        text.push('\n');
    }
    Ok(text)
}
