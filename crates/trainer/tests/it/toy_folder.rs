//! A whole toy pipeline on disk, with prompts and a configuration: what a run needs, at a size that trains in seconds.

use std::path::{Path, PathBuf};

use burn::tensor::Device;
use nn::clip::text::{ClipText, ClipTextConfig};
use nn::weights::{Weights, read_config};
use policy_sd3::adapter::{StoredTensor, write_safetensors};
use policy_sd3::transformer::{Transformer, TransformerConfig};
use policy_sd3::vae::{Vae, VaeConfig};
use serde_json::{Value, json};
use tempfile::TempDir;
use trainer::config::Experiment;
use trainer::metrics::{EvaluationMetrics, IterationMetrics, Observer};
use trainer::run::Run;

/// The pipeline that the project ships, whose tokenizers are small.
fn shipped() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/emoji-sd3")
}

/// A temporary folder with `model/`, `train.txt`, `eval.txt` and `toy.toml`.
pub(crate) struct ToyFolder {
    dir: TempDir,
}

impl ToyFolder {
    pub(crate) fn new() -> Self {
        let folder = Self {
            dir: tempfile::tempdir().expect("a temporary folder"),
        };
        write_pipeline(&folder.path("model"));
        folder.write("train.txt", "a red dot\na blue dot\na green dot\na grey dot\na dot\n");
        folder.write(
            "eval.txt",
            "a pink dot\na dot on a dot\nno dot\ntwo dots\na dotted line\n",
        );
        let quoted = |name: &str| toml::Value::String(folder.path(name).display().to_string()).to_string();
        let text = format!(
            r#"[model]
path = {model}
t5_tokens = 2

[prompts]
train = {train}
eval = {eval}
per_iteration = 3

[sampling]
steps = 4
guidance = 1.5

[tree]
children = 3
window = 2

[rewards.bright]
kind = "brightness"

[train]
iterations = 4
seed = 1
learning_rate = 1e-2

[lora]
rank = 4
alpha = 8

[evaluation]
every = 2
samples = 2
"#,
            model = quoted("model"),
            train = quoted("train.txt"),
            eval = quoted("eval.txt"),
        );
        folder.write("toy.toml", &text);
        folder
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).expect("a written file");
    }

    pub(crate) fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    pub(crate) fn experiment(&self, settings: &[&str]) -> Experiment {
        let settings: Vec<String> = settings.iter().map(|s| (*s).to_owned()).collect();
        Experiment::open(&self.path("toy.toml"), &settings).expect("a valid configuration")
    }

    /// Runs the configuration with overrides into the folder `out`, from a checkpoint if asked to. Gives the message of
    /// what stopped the run.
    pub(crate) fn run(&self, out: &str, resume: bool, settings: &[&str]) -> Result<Recorder, String> {
        let mut recorder = Recorder::default();
        let experiment = self.experiment(settings);
        let run = Run::open(experiment, &self.path(out), resume, &Device::flex(), &mut recorder);
        let mut run = run.map_err(|error| error.to_string())?;
        run.train(&mut recorder).map_err(|error| error.to_string())?;
        Ok(recorder)
    }

    /// The records of a run's `metrics.jsonl`.
    pub(crate) fn records(&self, out: &str) -> Vec<Value> {
        let text = String::from_utf8(self.read(&format!("{out}/metrics.jsonl"))).expect("UTF-8");
        text.lines()
            .map(|line| serde_json::from_str(line).expect("a JSON object per line"))
            .collect()
    }
}

/// Keeps what a run reports.
#[derive(Default)]
pub(crate) struct Recorder {
    pub(crate) notes: Vec<String>,
    pub(crate) iterations: Vec<IterationMetrics>,
    pub(crate) evaluations: Vec<EvaluationMetrics>,
}

impl Observer for Recorder {
    fn note(&mut self, line: &str) {
        self.notes.push(line.to_owned());
    }

    fn stage(&mut self, _: u64, _: &'static str) {}

    fn iteration(&mut self, metrics: &IterationMetrics) {
        self.iterations.push(metrics.clone());
    }

    fn evaluation(&mut self, metrics: &EvaluationMetrics) {
        self.evaluations.push(metrics.clone());
    }
}

/// Writes a pipeline of seeded weights: 4 latent channels, pictures of 16 × 16 pixels.
fn write_pipeline(dir: &Path) {
    let part = |name: &str, config: Value| {
        let part = dir.join(name);
        std::fs::create_dir_all(&part).expect("a folder");
        std::fs::write(part.join("config.json"), config.to_string()).expect("a written file");
        part
    };
    for name in ["model_index.json", "scheduler/scheduler_config.json"] {
        let target = dir.join(name);
        std::fs::create_dir_all(target.parent().expect("a folder")).expect("a folder");
        std::fs::copy(shipped().join(name), target).expect("a copied file");
    }
    for tokenizer in ["tokenizer", "tokenizer_2"] {
        std::fs::create_dir_all(dir.join(tokenizer)).expect("a folder");
        for file in std::fs::read_dir(shipped().join(tokenizer)).expect("the shipped tokenizer") {
            let file = file.expect("a file");
            std::fs::copy(file.path(), dir.join(tokenizer).join(file.file_name())).expect("a copied file");
        }
    }
    for (seed, name) in [(1, "text_encoder"), (2, "text_encoder_2")] {
        let config = json!({
            "vocab_size": 2048, "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2,
            "num_attention_heads": 2, "max_position_embeddings": 16, "hidden_act": "gelu", "layer_norm_eps": 1e-5,
            "eos_token_id": 2047, "projection_dim": 8,
        });
        let part = part(name, config);
        let config: ClipTextConfig = read_config(&part.join("config.json")).expect("a configuration");
        write_seeded(&part.join("model.safetensors"), seed, |weights| {
            ClipText::load(&weights, &config).expect("blank weights");
        });
    }
    let transformer = part(
        "transformer",
        json!({
            "in_channels": 4, "out_channels": 4, "patch_size": 2, "num_layers": 2, "attention_head_dim": 8,
            "num_attention_heads": 2, "joint_attention_dim": 20, "caption_projection_dim": 16,
            "pooled_projection_dim": 16, "pos_embed_max_size": 4, "sample_size": 8, "dual_attention_layers": [0],
            "qk_norm": "rms_norm",
        }),
    );
    let config = TransformerConfig::read(&transformer).expect("a configuration");
    write_seeded(&transformer.join("diffusion_pytorch_model.safetensors"), 3, |weights| {
        Transformer::load(weights, &config).expect("blank weights");
    });
    let vae = part(
        "vae",
        json!({
            "in_channels": 3, "out_channels": 3, "latent_channels": 4, "block_out_channels": [8, 8],
            "layers_per_block": 1, "norm_num_groups": 2, "act_fn": "silu", "mid_block_add_attention": true,
            "use_quant_conv": false, "use_post_quant_conv": false, "scaling_factor": 1.0, "shift_factor": 0.0,
        }),
    );
    let config: VaeConfig = read_config(&vae.join("config.json")).expect("a configuration");
    write_seeded(&vae.join("diffusion_pytorch_model.safetensors"), 4, |weights| {
        Vae::load(&weights, &config).expect("blank weights");
    });
}

/// Writes seeded values for every tensor that `load` asks for.
fn write_seeded(path: &Path, seed: u64, load: impl FnOnce(Weights)) {
    let device = Device::flex();
    let blank = Weights::blank(&device);
    load(blank.clone());
    let seeded = Weights::seeded(seed, 1.0, &device);
    let tensors: Vec<(String, StoredTensor)> = blank
        .asked()
        .into_iter()
        .map(|(key, shape)| {
            let values = seeded.values(&key, &shape).expect("invented values");
            (key, (shape, values))
        })
        .collect();
    let borrowed = tensors.iter().map(|(key, tensor)| (key.clone(), tensor)).collect();
    write_safetensors(path, &borrowed, std::collections::HashMap::new()).expect("a written file");
}
