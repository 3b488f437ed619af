//! What a full-size ViT-H/14 scorer costs, without its weights: writes random f16 weights under the names and shapes of
//! HPS-v2.1's file, loads them as that scorer does, and scores eight pictures. Prints times and the peak of memory.
//!
//! ```text
//! cargo run --release -p rewards --example full_size -- target/full-size
//! ```
//!
//! The folder needs 2 GB of disk. A file that is already there is used again.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::Instant;

use burn::tensor::Device;
use image::{Rgb, RgbImage};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use rewards::{Picture, RewardKind, RewardSpec, build};
use safetensors::Dtype;
use safetensors::tensor::TensorView;

const PICTURES: u32 = 8;

fn main() -> Result<(), Box<dyn Error>> {
    let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) else {
        return Err("name a folder for the weights, such as target/full-size".into());
    };
    let file = folder.join("HPS_v2.1_compressed.pt");
    if !file.exists() {
        std::fs::create_dir_all(&folder)?;
        let begin = Instant::now();
        write_weights(&file)?;
        println!("wrote {} in {:.1} s", file.display(), begin.elapsed().as_secs_f64());
        println!("peak memory of writing: {}", peak_memory());
        println!("run the same command again to measure the scorer alone");
        return Ok(());
    }

    let begin = Instant::now();
    let mut scorer = build(
        "hps",
        &RewardSpec::new(RewardKind::Hps).with_path(&file),
        &Device::flex(),
    )?;
    println!("{}", scorer.description());
    println!(
        "load: {:.1} s, peak memory {}",
        begin.elapsed().as_secs_f64(),
        peak_memory()
    );
    let begin = Instant::now();
    scorer.prepare(&["a red fox in the snow".to_owned()])?;
    println!("one prompt: {:.2} s", begin.elapsed().as_secs_f64());
    let pictures: Vec<Picture> = (0..PICTURES).map(picture).collect();
    let begin = Instant::now();
    let scores = scorer.score(&pictures, &vec![0; pictures.len()])?;
    println!(
        "{PICTURES} pictures of 512 x 512: {:.1} s, peak memory {}",
        begin.elapsed().as_secs_f64(),
        peak_memory()
    );
    println!("scores (of random weights): {scores:.4?}");
    Ok(())
}

fn picture(seed: u32) -> Picture {
    RgbImage::from_fn(512, 512, |x, y| {
        Rgb([0, 1, 2].map(|c| ((x * 37 + y * 91 + c * 53 + x * y * (7 + seed)) % 256) as u8))
    })
    .into()
}

/// Random weights as a file of the true names and shapes. It is a safetensors file under the name of the released one:
/// what a file holds decides how it is read, not its ending.
fn write_weights(path: &Path) -> Result<(), Box<dyn Error>> {
    let list = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/full_size/hpsv2_open_clip_vit_h14.json");
    let shapes: BTreeMap<String, Vec<usize>> = serde_json::from_str(&std::fs::read_to_string(list)?)?;
    let shapes: Vec<(String, Vec<usize>)> = shapes.into_iter().collect();
    let tensors: Vec<(String, Vec<usize>, Vec<u8>)> = shapes
        .into_par_iter()
        .enumerate()
        .map(|(number, (key, shape))| {
            let bytes = random(number as u64, &key, shape.iter().product());
            (key, shape, bytes)
        })
        .collect();
    let views: Vec<(String, TensorView<'_>)> = tensors
        .iter()
        .map(|(key, shape, bytes)| Ok((key.clone(), TensorView::new(Dtype::F16, shape.clone(), bytes)?)))
        .collect::<Result<_, safetensors::SafeTensorError>>()?;
    safetensors::serialize_to_file(views, None, path)?;
    Ok(())
}

/// Values from −0.03 to 0.03, around 1 for the scales of norms, so that activations stay finite.
fn random(seed: u64, key: &str, count: usize) -> Vec<u8> {
    let mut generator = ChaCha8Rng::seed_from_u64(seed);
    let centre = if key.contains("ln_") && key.ends_with("weight") {
        1.0
    } else {
        0.0
    };
    (0..count)
        .flat_map(|_| half::f16::from_f32(centre + generator.random_range(-0.03f32..0.03)).to_le_bytes())
        .collect()
}

/// The greatest resident set so far, where the system tells it.
fn peak_memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<f64>().ok());
    kilobytes.map_or("unknown".to_owned(), |kb| format!("{:.2} GiB", kb / (1 << 20) as f64))
}
