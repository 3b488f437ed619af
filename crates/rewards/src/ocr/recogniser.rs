//! The recogniser that comes with this crate: a network of the PP-OCR family, run by tract.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use image::RgbImage;
use tract_onnx::prelude::{
    Datum, DatumExt, Framework, InferenceModel, InferenceModelExt, IntoRunnable, Tensor, TractResult,
    TypedRunnableModel, tvec,
};

use super::ctc::{Alphabet, Reading};
use super::line::{HEIGHT, LEAST_WIDTH, Line};
use super::onnx::{ModelFile, invalid, one_line};
use super::{OcrModelError, ReadError, TextReader};

/// How many networks are kept. Nearly all pictures make lines of one width; each further width takes a third of a second
/// to prepare and some 20 MB to keep.
const KEPT_NETWORKS: usize = 8;

/// A text recogniser in an ONNX file: input `[1, 3, 48, width]` f32, output `[1, steps, classes]` f32, probabilities.
///
/// PP-OCRv4's recognisers fit, and others with the same two ends. The list of characters is the file's metadata entry
/// `character`, one character a line, or `keys.txt` or `dict.txt` beside the file; blank and space are added to it.
pub struct Recogniser {
    path: PathBuf,
    alphabet: Alphabet,
    /// The graph for any width; it cannot be run.
    graph: InferenceModel,
    /// The graph made ready for some widths, the one used last at the end. The engine plans memory and kernels for a
    /// fixed width, and cannot prepare this family's networks for an open one.
    networks: Mutex<Vec<(usize, Arc<TypedRunnableModel>)>>,
}

impl Recogniser {
    /// Opens an ONNX file, or the only one of a folder, and makes it ready for the shortest line.
    ///
    /// # Errors
    ///
    /// The file is missing, damaged, no recogniser of the family, or needs what the engine does not have.
    pub fn open(path: &Path) -> Result<Self, OcrModelError> {
        let file = ModelFile::read(path)?;
        let cannot_run = |e| {
            let why = one_line(&e);
            invalid(
                &file.path,
                format!("the network cannot be run ({why}); download it again, or take another recogniser"),
            )
        };
        let graph = tract_onnx::onnx()
            .model_for_proto_model(&file.content)
            .map_err(cannot_run)?;
        let recogniser = Self {
            path: file.path.clone(),
            alphabet: file.alphabet,
            graph,
            networks: Mutex::default(),
        };
        let network = recogniser.network(LEAST_WIDTH).map_err(cannot_run)?;
        let output = network.model().output_fact(0).map_err(cannot_run)?;
        let shape = output.shape.as_concrete().unwrap_or_default();
        let classes = recogniser.alphabet.classes();
        match shape {
            [1, _, found] if *found == classes && output.datum_type == f32::datum_type() => Ok(recogniser),
            [1, _, found] => Err(invalid(&file.path, classes_differ(*found, classes))),
            _ => Err(invalid(
                &file.path,
                format!("not a text recogniser: a line gives {shape:?}, and must give [1, steps, {classes}] f32"),
            )),
        }
    }

    /// Checks the file without making the network ready.
    ///
    /// # Errors
    ///
    /// As for [`Recogniser::open`], for what can be told from the file.
    pub fn check(path: &Path) -> Result<(), OcrModelError> {
        ModelFile::read(path).map(drop)
    }

    /// Probabilities `[steps, classes]` of a line, row-major.
    ///
    /// # Errors
    ///
    /// The network fails, or gives a value that is not finite.
    pub fn probabilities(&self, line: &Line) -> Result<Vec<f32>, ReadError> {
        let probabilities = self.run(line).map_err(|e| ReadError::Network(one_line(&e)))?;
        match probabilities.iter().find(|value| !value.is_finite()) {
            None => Ok(probabilities),
            Some(value) => Err(ReadError::Network(format!("it gives the probability {value}"))),
        }
    }

    fn run(&self, line: &Line) -> TractResult<Vec<f32>> {
        let input = Tensor::from_shape(&[1, 3, HEIGHT, line.width], &line.values)?;
        let output = self.network(line.width)?.run(tvec!(input.into()))?;
        Ok(output[0].to_plain_array_view::<f32>()?.iter().copied().collect())
    }

    /// The network for lines of a width, made ready unless it is kept.
    fn network(&self, width: usize) -> TractResult<Arc<TypedRunnableModel>> {
        // The list is whole whenever the lock is free, so a thread that failed while holding it does no harm. The lock is
        // held while a network is made ready: others of the same width would only do the same work.
        let mut kept = self.networks.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = match kept.iter().position(|(found, _)| *found == width) {
            Some(place) => kept.remove(place),
            None => (width, self.make_ready(width)?),
        };
        if kept.len() == KEPT_NETWORKS {
            kept.remove(0);
        }
        let network = Arc::clone(&entry.1);
        kept.push(entry);
        Ok(network)
    }

    fn make_ready(&self, width: usize) -> TractResult<Arc<TypedRunnableModel>> {
        let graph = self.graph.clone();
        let graph = graph.with_input_fact(0, f32::fact([1, 3, HEIGHT, width]).into())?;
        graph.into_optimized()?.into_runnable()
    }
}

impl TextReader for Recogniser {
    fn read(&self, picture: &RgbImage) -> Result<Reading, ReadError> {
        let probabilities = self.probabilities(&Line::new(picture)?)?;
        Ok(self.alphabet.decode(&probabilities))
    }

    fn alphabet(&self) -> &Alphabet {
        &self.alphabet
    }

    fn description(&self) -> String {
        let name = self.path.file_stem().unwrap_or_default().to_string_lossy();
        format!("{name}, which knows {} characters", self.alphabet.classes() - 1)
    }
}

/// The message for a list of characters that belongs to another model.
pub(super) fn classes_differ(found: impl std::fmt::Display, listed: usize) -> String {
    format!(
        "the model has {found} classes, but its list of characters makes {listed} (with blank and space); give it the \
         list that it was trained with"
    )
}
