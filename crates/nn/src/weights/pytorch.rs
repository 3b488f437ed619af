//! PyTorch files: finding the state dict in one, without running anything of it.
//!
//! The crate `pytorch-reader` parses the pickle and reads the storages. What is added here is strictness: the pickle may
//! ask for nothing but tensors ([`globals`]), and what it holds must be a dictionary of tensors, bare or in one of the
//! wrappers that training programs put around it.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufReader, ErrorKind, Read};
use std::path::Path;

use pytorch_reader::{DType, MAX_PICKLE_SIZE, PickleError, PickleValue, PytorchError, PytorchReader, Tensor};
use zip::ZipArchive;
use zip::result::ZipError;

use super::error::WeightsError;
use super::files::{Element, Entry, Place};
use super::format::Container;
use super::globals;

/// The keys under which training programs keep a state dict beside other things.
const WRAPPERS: [&str; 3] = ["state_dict", "module", "model"];
/// Version numbers of the modules, which PyTorch attaches to a state dict. The reader shows them as an entry of it.
const METADATA: &str = "_metadata";
/// What the reader calls a tensor among values that are none.
const TENSOR: &str = "torch.Tensor";
/// Number of pickles before the tensors of an old file: magic number, version, system, dictionary, list of storages.
const LEGACY_PICKLES: usize = 5;
/// As many top-level keys are listed.
const LISTED_KEYS: usize = 8;

/// The tensors of a PyTorch file by their keys, and what was taken off around them. No value is read.
pub(super) fn read_header(
    path: &Path,
    container: Container,
) -> Result<(BTreeMap<String, Entry>, Option<String>), WeightsError> {
    check_globals(path, container)?;
    let refused = |error| refuse(path, error);
    let state_dict = |why| WeightsError::StateDict {
        path: path.to_owned(),
        why,
    };
    // The pickle is parsed twice, once to see all that it holds and once for the tensors; neither reads a value.
    let root = match PytorchReader::read_pickle_data(path, None).map_err(refused)? {
        PickleValue::Dict(root) => root,
        other => {
            let found = describe(&other);
            return Err(state_dict(format!(
                "it holds {found} instead of a dictionary of tensors; save the model's state_dict()"
            )));
        }
    };
    let found = find_tensors(&root).map_err(state_dict)?;
    let reader = match found.wrapper {
        Some(key) => PytorchReader::with_top_level_key(path, key),
        None => PytorchReader::new(path),
    };
    let tensors = reader.map_err(refused)?.into_tensors();
    // A call of the class itself looks like a tensor in the first parse and is none in the second.
    if let Some(key) = found.keys.iter().find(|key| !tensors.contains_key(**key)) {
        return Err(state_dict(format!("`{key}` is no tensor that can be read")));
    }
    let entries = tensors.into_iter().map(|(key, tensor)| {
        let entry = Entry {
            file: path.to_owned(),
            shape: tensor.shape().to_vec(),
            element: element(tensor.dtype()),
            place: Place::Storage(tensor),
        };
        (key, entry)
    });
    Ok((entries.collect(), found.taken_off()))
}

/// The bytes of one tensor, row-major and little-endian.
pub(super) fn read(path: &Path, tensor: &Tensor) -> Result<Vec<u8>, WeightsError> {
    let mut bytes = tensor.read().map_err(|source| match source.kind() {
        ErrorKind::InvalidData | ErrorKind::UnexpectedEof => broken(path, source),
        _ => WeightsError::Io {
            path: path.to_owned(),
            source,
        },
    })?;
    // The reader hands over native order.
    if cfg!(target_endian = "big") {
        for element in bytes.chunks_exact_mut(tensor.dtype().size()) {
            element.reverse();
        }
    }
    Ok(bytes)
}

/// Refuses a file whose pickle asks for anything that tensors do not need.
fn check_globals(path: &Path, container: Container) -> Result<(), WeightsError> {
    let foreign = match container {
        Container::Zip => first_foreign_in_zip(path)?,
        Container::Legacy => first_foreign_in_legacy(path).map_err(|source| broken(path, source))?,
    };
    match foreign {
        Some(global) => Err(WeightsError::foreign_global(path, &global)),
        None => Ok(()),
    }
}

fn first_foreign_in_zip(path: &Path) -> Result<Option<String>, WeightsError> {
    let zip_error = |error: ZipError| broken(path, error);
    let file = File::open(path).map_err(|source| WeightsError::Io {
        path: path.to_owned(),
        source,
    })?;
    let mut archive = ZipArchive::new(BufReader::new(file)).map_err(zip_error)?;
    let mut names = Vec::new();
    for name in archive.file_names() {
        names.push(name.map_err(zip_error)?.to_string());
    }
    let has = |ending: &str| names.iter().any(|name| is_entry(name, ending));
    if has("constants.pkl") && names.iter().any(|name| name.contains("/code/")) {
        return Err(WeightsError::TorchScript { path: path.to_owned() });
    }
    if !has("data.pkl") {
        return Err(WeightsError::NotWeights {
            path: path.to_owned(),
            what: "a zip archive that torch.save did not write",
            fix: "unpack it and point the path at the weights",
        });
    }
    for name in names.iter().filter(|name| is_entry(name, "data.pkl")) {
        let entry = archive.by_name(name).map_err(zip_error)?;
        // A packed entry can become any length. The reader takes no more than this of it.
        let mut pickle = BufReader::new(entry.take(MAX_PICKLE_SIZE));
        let foreign = globals::first_foreign(&mut pickle).map_err(|source| broken(path, source))?;
        if foreign.is_some() {
            return Ok(foreign);
        }
    }
    Ok(None)
}

/// Whether an entry of an archive has this file name, in whatever folder.
fn is_entry(name: &str, file: &str) -> bool {
    name.strip_suffix(file)
        .is_some_and(|folder| folder.is_empty() || folder.ends_with('/'))
}

fn first_foreign_in_legacy(path: &Path) -> std::io::Result<Option<String>> {
    let mut file = BufReader::new(File::open(path)?);
    for _ in 0..LEGACY_PICKLES {
        let foreign = globals::first_foreign(&mut file)?;
        if foreign.is_some() {
            return Ok(foreign);
        }
    }
    Ok(None)
}

/// Where the tensors are in the dictionary that a file holds.
#[derive(Debug)]
struct Found<'a> {
    /// The key they are under, if they are not at the top.
    wrapper: Option<&'static str>,
    /// The keys of the tensors.
    keys: Vec<&'a String>,
    /// What is at the top beside the wrapper.
    beside: Vec<&'a String>,
}

impl Found<'_> {
    /// What was taken off, for the reader of a log.
    fn taken_off(&self) -> Option<String> {
        let outer = format!("the key `{}` around them", self.wrapper?);
        if self.beside.is_empty() {
            return Some(outer);
        }
        let beside: Vec<String> = self.beside.iter().map(|key| format!("`{key}`")).collect();
        Some(format!("{outer} with {} beside it", beside.join(", ")))
    }
}

/// Finds the one dictionary of nothing but tensors: the root itself, or one under a known key.
fn find_tensors(root: &HashMap<String, PickleValue>) -> Result<Found<'_>, String> {
    if let Some(keys) = tensor_keys(root) {
        return Ok(Found {
            wrapper: None,
            keys,
            beside: Vec::new(),
        });
    }
    let mut wrapped = WRAPPERS.iter().filter_map(|wrapper| match root.get(*wrapper) {
        Some(PickleValue::Dict(inner)) => tensor_keys(inner).map(|keys| (*wrapper, keys)),
        _ => None,
    });
    match (wrapped.next(), wrapped.next()) {
        (Some((wrapper, keys)), None) => Ok(Found {
            wrapper: Some(wrapper),
            keys,
            beside: own_keys(root).into_iter().filter(|key| *key != wrapper).collect(),
        }),
        (Some((one, _)), Some((other, _))) => Err(format!(
            "both `{one}` and `{other}` are state dicts; save the one that is meant alone"
        )),
        (None, _) => Err(not_a_state_dict(root)),
    }
}

/// The keys of a dictionary in which every value is a tensor; none if another value is among them, or no tensor.
fn tensor_keys(dictionary: &HashMap<String, PickleValue>) -> Option<Vec<&String>> {
    let keys = own_keys(dictionary);
    (!keys.is_empty() && keys.iter().all(|key| is_tensor(&dictionary[*key]))).then_some(keys)
}

fn is_tensor(value: &PickleValue) -> bool {
    matches!(value, PickleValue::Unsupported(kind) if kind == TENSOR)
}

/// The keys of a dictionary in order, without what PyTorch attached.
fn own_keys(dictionary: &HashMap<String, PickleValue>) -> Vec<&String> {
    let mut keys: Vec<&String> = dictionary.keys().filter(|key| *key != METADATA).collect();
    keys.sort();
    keys
}

/// Says what a dictionary holds that is neither a state dict nor a wrapper of one.
fn not_a_state_dict(root: &HashMap<String, PickleValue>) -> String {
    let keys = own_keys(root);
    // What disturbs comes first: in a state dict with one entry too many, that entry is the news.
    let (tensors, others): (Vec<&String>, Vec<&String>) = keys.iter().partition(|key| is_tensor(&root[**key]));
    let listed: Vec<String> = others
        .iter()
        .chain(&tensors)
        .take(LISTED_KEYS)
        .map(|key| format!("`{}` ({})", key.escape_debug(), describe(&root[*key])))
        .collect();
    let more = match keys.len().saturating_sub(LISTED_KEYS) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let list = if listed.is_empty() {
        "nothing".to_owned()
    } else {
        listed.join(", ")
    };
    format!(
        "neither a dictionary of tensors nor one under `state_dict`, `module` or `model`; its top level holds \
         {list}{more}; save the model's state_dict() alone"
    )
}

/// What a value is, with its article.
fn describe(value: &PickleValue) -> String {
    match value {
        PickleValue::None => "None".to_owned(),
        PickleValue::Bool(_) | PickleValue::Int(_) | PickleValue::Float(_) => "a number".to_owned(),
        PickleValue::String(_) | PickleValue::Bytes(_) => "text".to_owned(),
        PickleValue::List(_) => "a list".to_owned(),
        PickleValue::Dict(inner) if own_keys(inner).iter().all(|key| is_tensor(&inner[*key])) => {
            "a dictionary".to_owned()
        }
        PickleValue::Dict(_) => "a dictionary with other things than tensors".to_owned(),
        PickleValue::Unsupported(kind) if kind == TENSOR => "a tensor".to_owned(),
        PickleValue::Unsupported(kind) => format!("a {kind}"),
    }
}

fn element(dtype: DType) -> Element {
    match dtype {
        DType::F32 => Element::F32,
        DType::F16 => Element::F16,
        DType::BF16 => Element::Bf16,
        other => Element::Other(format!("{other:?}").to_uppercase()),
    }
}

fn refuse(path: &Path, error: PytorchError) -> WeightsError {
    match error {
        PytorchError::Io(source) if source.raw_os_error().is_some() => WeightsError::Io {
            path: path.to_owned(),
            source,
        },
        PytorchError::Pickle(PickleError::UnsupportedType(kind)) => WeightsError::foreign_global(path, &kind),
        other => broken(path, other),
    }
}

fn broken(path: &Path, why: impl std::fmt::Display) -> WeightsError {
    // A damaged file may put anything into the reader's words; the message stays one line.
    let why: String = why.to_string().chars().filter(|c| !c.is_control()).collect();
    WeightsError::Broken {
        path: path.to_owned(),
        format: "PyTorch",
        why,
    }
}
