//! `treegrpo score`

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use rewards::{Purpose, RewardKind, RewardScores, RewardSet, RewardSpec, pictures};
use serde_json::{Map, Value, json};

use crate::device::DeviceArgument;
use crate::output;
use crate::prompts::PromptArguments;

/// Score pictures against prompts
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Score {
    /// A scorer: NAME=DIR for the CLIP model in DIR (its score is called NAME), or a kind without a model, such as jpeg;
    /// may be given several times
    #[arg(long = "scorer", value_name = "NAME=DIR|KIND", required = true)]
    scorers: Vec<String>,
    /// A picture (PNG or JPEG), or a folder of them in the order of their names; may be given several times
    #[arg(long = "image", value_name = "FILE", required = true)]
    images: Vec<PathBuf>,
    #[command(flatten)]
    prompts: PromptArguments,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    device: DeviceArgument,
}

const EXAMPLES: &str = "\
Give one prompt for all pictures, or one per picture. `pick-score=DIR` scores with PickScore's scale instead of the plain
cosine. Kinds without a model: jpeg-compressibility (jpeg for short), jpeg-incompressibility, brightness, contrast,
colourfulness; `NAME=KIND` gives such a score another name.

Examples:
  treegrpo score --scorer clip=assets/emoji-sd3/scorer --image cat.png --prompt \"flat icon of a cat\"
  treegrpo score --scorer clip=assets/emoji-sd3/scorer --scorer jpeg --image pictures/ --prompts prompts.txt --json";

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
            let (name, spec) = parse_scorer(argument)?;
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
            if let Some((name, _)) = specs.iter().find(|(_, spec)| spec.kind.needs_path()) {
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

/// `NAME=DIR`, `NAME=KIND` or `KIND`.
fn parse_scorer(argument: &str) -> Result<(String, RewardSpec)> {
    let spec = |kind, path| RewardSpec {
        kind,
        path,
        weight: 1.0,
        eval_only: false,
    };
    let Some((name, value)) = argument.split_once('=') else {
        let kind = kind_without_model(argument).map_err(|why| anyhow::anyhow!("--scorer {argument}: {why}"))?;
        return Ok((kind.to_string(), spec(kind, None)));
    };
    let folder = Path::new(value);
    if folder.is_dir() {
        // A name that is itself the kind of a model says how that model's cosine is scaled.
        let kind = RewardKind::try_from(name.to_owned())
            .ok()
            .filter(|kind| kind.needs_path());
        return Ok((
            name.to_owned(),
            spec(kind.unwrap_or(RewardKind::ClipScore), Some(folder.to_owned())),
        ));
    }
    match kind_without_model(value) {
        Ok(kind) => Ok((name.to_owned(), spec(kind, None))),
        Err(_) => {
            let shown = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
            bail!(
                "--scorer {argument}: there is no folder {}; name the folder of a Hugging Face CLIP model",
                shown.display()
            )
        }
    }
}

fn kind_without_model(word: &str) -> Result<RewardKind, String> {
    let kind = match word {
        "jpeg" => RewardKind::JpegCompressibility,
        _ => RewardKind::try_from(word.to_owned())?,
    };
    match kind.needs_path() {
        true => Err(format!(
            "`{kind}` needs a model; write it as NAME=DIR, for example {kind}=assets/emoji-sd3/scorer"
        )),
        false => Ok(kind),
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
