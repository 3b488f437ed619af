//! The folder of a run: `config.toml`, `metrics.jsonl`, `events.out.tfevents.*`, `samples/`, `checkpoints/`.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use image::RgbImage;
use serde_json::Value;

use crate::error::TrainError;
use crate::metrics::EvaluationMetrics;
use crate::tensorboard::EventFile;

/// Name of the metrics file.
pub const METRICS: &str = "metrics.jsonl";

/// A run's folder.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    /// Held while the run lives. The system lets go of it when the process ends, however it ends.
    lock: Option<File>,
}

impl RunFolder {
    /// Names the folder of a new run, or of a run to be resumed. Nothing is written yet.
    ///
    /// # Errors
    ///
    /// A new run would write into a folder that holds a run.
    pub fn open(path: &Path, resume: bool) -> Result<Self, TrainError> {
        let folder = Self {
            path: path.to_owned(),
            lock: None,
        };
        if !resume && folder.metrics().exists() {
            let why = "holds a run already; resume it with --resume, or name another folder with --out".to_owned();
            return Err(TrainError::File {
                path: path.to_owned(),
                why,
            });
        }
        Ok(folder)
    }

    /// Makes the folder and takes its lock. A new run calls this once everything is loaded, so that a failed start
    /// leaves nothing behind.
    ///
    /// # Errors
    ///
    /// The folder cannot be made, or another process is writing to it.
    pub fn create(&mut self, resume: bool) -> Result<(), TrainError> {
        for dir in [
            self.path.clone(),
            self.path.join("samples"),
            self.path.join("checkpoints"),
        ] {
            std::fs::create_dir_all(&dir).map_err(|e| self.failed(&dir, &e))?;
        }
        let path = self.path.join("lock");
        let file = File::create(&path).map_err(|e| self.failed(&path, &e))?;
        let why = match file.try_lock() {
            Ok(()) if resume || !self.metrics().exists() => {
                self.lock = Some(file);
                return Ok(());
            }
            // Another run began and ended here while this one was loading.
            Ok(()) => "holds a run already; resume it with --resume, or name another folder with --out".to_owned(),
            Err(TryLockError::WouldBlock) => {
                "is being written by another run; wait for it, or name another folder with --out".to_owned()
            }
            Err(TryLockError::Error(e)) => format!("cannot be locked: {e}"),
        };
        Err(TrainError::File {
            path: self.path.clone(),
            why,
        })
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The metrics file.
    #[must_use]
    pub fn metrics(&self) -> PathBuf {
        self.path.join(METRICS)
    }

    /// The folder of a checkpoint, `last` or `best`.
    #[must_use]
    pub fn checkpoint(&self, name: &str) -> PathBuf {
        self.path.join("checkpoints").join(name)
    }

    /// Writes the resolved configuration.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write_config(&self, toml: &str) -> Result<(), TrainError> {
        let path = self.path.join("config.toml");
        nn::files::write(&path, toml.as_bytes()).map_err(|e| self.failed(&path, &e))
    }

    /// Appends one object to the metrics.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn append_metrics(&self, object: &Value) -> Result<(), TrainError> {
        let path = self.metrics();
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(|e| self.failed(&path, &e))?;
        // One call per line, so that an interrupted run leaves whole lines.
        file.write_all(format!("{object}\n").as_bytes())
            .map_err(|e| self.failed(&path, &e))
    }

    /// Drops the records of iterations after `iteration`, which a resumed run computes again.
    ///
    /// # Errors
    ///
    /// The file cannot be read or written.
    pub fn truncate_metrics(&self, iteration: u64) -> Result<(), TrainError> {
        let path = self.metrics();
        let text = std::fs::read_to_string(&path).map_err(|e| TrainError::File {
            path: path.clone(),
            why: format!("could not be read: {e}; a run without its metrics cannot go on, begin a new one with --out"),
        })?;
        let kept: String = text
            .lines()
            .filter(|line| {
                let record: Option<Value> = serde_json::from_str(line).ok();
                record
                    .and_then(|r| r["iteration"].as_u64())
                    .is_some_and(|number| number <= iteration)
            })
            .flat_map(|line| [line, "\n"])
            .collect();
        nn::files::write(&path, kept.as_bytes()).map_err(|e| self.failed(&path, &e))
    }

    /// Appends an iteration's scalars for TensorBoard.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn append_scalars(&self, step: u64, values: &BTreeMap<String, f64>) -> Result<(), TrainError> {
        let mut events = EventFile::open(&self.path).map_err(|e| self.failed(&self.path, &e))?;
        events
            .scalars(step, values.iter().map(|(k, v)| (k.as_str(), *v)))
            .map_err(|e| self.failed(&self.path, &e))
    }

    /// Appends an evaluation's scalars for TensorBoard.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn append_evaluation(&self, metrics: &EvaluationMetrics) -> Result<(), TrainError> {
        let mut values = BTreeMap::new();
        for (reward, parts) in &metrics.rewards {
            for (part, summary) in parts {
                let name = if part == "all" {
                    format!("eval/{reward}")
                } else {
                    format!("eval/{reward}/{part}")
                };
                values.insert(name, summary.mean);
            }
        }
        self.append_scalars(metrics.iteration, &values)
    }

    /// Writes the pictures of an evaluation as one grid.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn write_samples(&self, iteration: u64, pictures: &[RgbImage]) -> Result<(), TrainError> {
        let path = self.path.join("samples").join(format!("iteration-{iteration:06}.png"));
        match grid(pictures) {
            Some(grid) => grid.save(&path).map_err(|e| TrainError::File {
                path,
                why: format!("could not be written: {e}"),
            }),
            None => Ok(()),
        }
    }

    fn failed(&self, path: &Path, error: &std::io::Error) -> TrainError {
        TrainError::File {
            path: path.to_owned(),
            why: format!("could not be written: {error}"),
        }
    }
}

/// Pictures of one size in rows of up to eight, two pixels apart; none without pictures.
#[must_use]
pub fn grid(pictures: &[RgbImage]) -> Option<RgbImage> {
    const COLUMNS: usize = 8;
    const GAP: u32 = 2;
    let (width, height) = pictures.first()?.dimensions();
    let columns = pictures.len().min(COLUMNS) as u32;
    let rows = pictures.len().div_ceil(COLUMNS) as u32;
    let mut grid = RgbImage::from_pixel(
        columns * (width + GAP) - GAP,
        rows * (height + GAP) - GAP,
        image::Rgb([255, 255, 255]),
    );
    for (i, picture) in pictures.iter().enumerate() {
        let (column, row) = ((i % COLUMNS) as u32, (i / COLUMNS) as u32);
        image::imageops::replace(
            &mut grid,
            picture,
            i64::from(column * (width + GAP)),
            i64::from(row * (height + GAP)),
        );
    }
    Some(grid)
}
