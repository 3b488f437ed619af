//! Reading an ONNX file, and refusing what is no recogniser of the PP-OCR family before anything is computed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use tract_onnx::pb::tensor_shape_proto::dimension;
use tract_onnx::pb::type_proto::Value;
use tract_onnx::pb::{GraphProto, ModelProto, ValueInfoProto};
use tract_onnx::prelude::Framework;

use super::OcrModelError;
use super::ctc::Alphabet;
use super::line::HEIGHT;
use super::recogniser::classes_differ;

/// Key of the list of characters in the file's metadata.
const LIST_KEY: &str = "character";
/// Names under which the list may lie beside the file instead.
const LIST_FILES: [&str; 2] = ["keys.txt", "dict.txt"];
/// ONNX's number for f32.
const FLOAT: i32 = 1;

/// A file that holds a recogniser, as far as can be told without running it.
pub(super) struct ModelFile {
    pub(super) path: PathBuf,
    pub(super) content: ModelProto,
    pub(super) alphabet: Alphabet,
}

impl ModelFile {
    /// Reads the file, or the only ONNX file of a folder.
    pub(super) fn read(path: &Path) -> Result<Self, OcrModelError> {
        let path = locate(path)?;
        let bytes = fs::read(&path).map_err(|source| io_error(&path, source))?;
        let content = parse(&bytes).map_err(|why| invalid(&path, why))?;
        let alphabet = read_alphabet(&path, &content)?;
        check_graph(content.graph.as_ref(), &alphabet).map_err(|why| invalid(&path, why))?;
        Ok(Self {
            path,
            content,
            alphabet,
        })
    }
}

pub(super) fn invalid(path: &Path, why: impl Into<String>) -> OcrModelError {
    OcrModelError::Invalid {
        path: path.to_owned(),
        why: why.into(),
    }
}

fn io_error(path: &Path, source: io::Error) -> OcrModelError {
    OcrModelError::Io {
        path: path.to_owned(),
        source,
    }
}

fn locate(path: &Path) -> Result<PathBuf, OcrModelError> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(path).map_err(|source| io_error(path, source))? {
        let file = entry.map_err(|source| io_error(path, source))?.path();
        if file.extension().is_some_and(|ending| ending == "onnx") {
            found.push(file);
        }
    }
    found.sort();
    match &found[..] {
        [file] => Ok(file.clone()),
        [] => Err(invalid(
            path,
            "no .onnx file lies in this folder; name the recogniser's file",
        )),
        _ => {
            let names = found.iter().filter_map(|file| file.file_name());
            let names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
            Err(invalid(
                path,
                format!(
                    "there are several .onnx files ({}); name the recogniser's",
                    names.join(", ")
                ),
            ))
        }
    }
}

/// The file's message, if it is one.
fn parse(bytes: &[u8]) -> Result<ModelProto, String> {
    let start = String::from_utf8_lossy(&bytes[..bytes.len().min(64)]).to_lowercase();
    if bytes.is_empty() {
        return Err("the file is empty; download it again".to_owned());
    }
    if start.starts_with("version https://git-lfs") {
        return Err("a Git LFS pointer, not the model; fetch the real file with `git lfs pull`".to_owned());
    }
    if start.trim_start().starts_with("<!doctype") || start.trim_start().starts_with("<html") {
        return Err(
            "an HTML page, not an ONNX file; the download was answered with a web page, often for a missing login"
                .to_owned(),
        );
    }
    let content = tract_onnx::onnx().proto_model_for_read(&mut &bytes[..]);
    let content = content.map_err(|e| format!("not an ONNX file, or cut off ({}); download it again", one_line(&e)))?;
    // An empty message is a valid one, and so is one whose end is missing between two fields.
    if content.graph.is_none() || content.opset_import.is_empty() {
        return Err("the ONNX file has no graph or no version of its operators; download it again".to_owned());
    }
    Ok(content)
}

/// What an error of the engine says at its outside and at its root.
pub(super) fn one_line(error: &tract_onnx::prelude::TractError) -> String {
    let (outside, root) = (error.to_string(), error.root_cause().to_string());
    let text = if outside == root {
        outside
    } else {
        format!("{outside}: {root}")
    };
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn read_alphabet(path: &Path, content: &ModelProto) -> Result<Alphabet, OcrModelError> {
    if let Some(entry) = content.metadata_props.iter().find(|entry| entry.key == LIST_KEY) {
        return Ok(Alphabet::parse(&entry.value));
    }
    let beside = LIST_FILES.map(|name| path.with_file_name(name));
    let list = match beside.each_ref().map(|file| file.is_file()) {
        [true, true] => {
            return Err(invalid(
                path,
                "both keys.txt and dict.txt lie beside the file; remove the one that belongs to another model",
            ));
        }
        [true, false] => &beside[0],
        [false, true] => &beside[1],
        [false, false] => {
            return Err(invalid(
                path,
                format!(
                    "no list of characters: the metadata have no `{LIST_KEY}`, and there is no keys.txt or dict.txt \
                     beside the file; put the model's dictionary there, one character a line"
                ),
            ));
        }
    };
    let text = fs::read_to_string(list).map_err(|source| invalid(list, format!("{source}; it must be UTF-8")))?;
    // Editors put a byte order mark before the first character.
    Ok(Alphabet::parse(text.strip_prefix('\u{feff}').unwrap_or(&text)))
}

/// Checks what the graph says of its input and output.
fn check_graph(graph: Option<&GraphProto>, alphabet: &Alphabet) -> Result<(), String> {
    let Some(graph) = graph else {
        return Err("there is no graph".to_owned());
    };
    // Weights may be listed among the inputs.
    let is_weight = |input: &&ValueInfoProto| graph.initializer.iter().any(|weight| weight.name == input.name);
    let inputs: Vec<&ValueInfoProto> = graph.input.iter().filter(|input| !is_weight(input)).collect();
    let wanted = format!("[1, 3, {HEIGHT}, any width] f32");
    match inputs[..] {
        [input] if takes_lines(input) => {}
        _ => {
            let found = describe(&inputs);
            return Err(format!(
                "not a text recogniser for lines: the input is {found}, and must be {wanted}"
            ));
        }
    }
    let outputs: Vec<&ValueInfoProto> = graph.output.iter().collect();
    let classes = alphabet.classes() as i64;
    match outputs[..] {
        [output] if gives_steps(output) => {}
        _ => {
            let found = describe(&outputs);
            return Err(format!(
                "not a text recogniser: the output is {found}, and must be [1, steps, classes] f32"
            ));
        }
    }
    if let Some(found) = dimensions(outputs[0])
        .and_then(|dimensions| dimensions[2])
        .filter(|found| *found != classes)
    {
        return Err(classes_differ(found, alphabet.classes()));
    }
    let name = &outputs[0].name;
    let made = |node: &tract_onnx::pb::NodeProto| node.output.contains(name);
    if !graph.node.iter().any(made) {
        return Err(format!(
            "no node makes the output `{name}`; the file is damaged, download it again"
        ));
    }
    Ok(())
}

fn takes_lines(input: &ValueInfoProto) -> bool {
    let fits = |found: Option<i64>, wanted: usize| found.is_none_or(|found| found == wanted as i64);
    match dimensions(input).as_deref() {
        Some([batch, channels, height, width]) => {
            fits(*batch, 1) && fits(*channels, 3) && fits(*height, HEIGHT) && width.is_none()
        }
        _ => false,
    }
}

fn gives_steps(output: &ValueInfoProto) -> bool {
    dimensions(output).is_some_and(|dimensions| dimensions.len() == 3)
}

/// The dimensions of a value that is an f32 tensor; none for those that are not fixed.
fn dimensions(value: &ValueInfoProto) -> Option<Vec<Option<i64>>> {
    let Value::TensorType(tensor) = value.r#type.as_ref()?.value.as_ref()?;
    if tensor.elem_type != FLOAT {
        return None;
    }
    let fixed = |value: &Option<dimension::Value>| match value {
        Some(dimension::Value::DimValue(length)) if *length > 0 => Some(*length),
        _ => None,
    };
    Some(
        tensor
            .shape
            .as_ref()?
            .dim
            .iter()
            .map(|dimension| fixed(&dimension.value))
            .collect(),
    )
}

fn describe(values: &[&ValueInfoProto]) -> String {
    let shapes = values.iter().map(|value| match dimensions(value) {
        None => format!("`{}` (no f32 tensor)", value.name),
        Some(dimensions) => {
            let lengths = dimensions
                .iter()
                .map(|length| length.map_or("?".to_owned(), |length| length.to_string()));
            format!("`{}` [{}]", value.name, lengths.collect::<Vec<_>>().join(", "))
        }
    });
    let shapes: Vec<String> = shapes.collect();
    if shapes.is_empty() {
        "none".to_owned()
    } else {
        shapes.join(" and ")
    }
}
