//! Weight files, whole and damaged. A damaged one is refused with one line that names file, key and what to do.

use std::collections::HashMap;
use std::path::Path;

use burn::tensor::Device;
use nn::weights::{Weights, WeightsError, transpose};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use tempfile::TempDir;

const STEM: &str = "model";

/// A tensor for a file: name, type, shape and bytes.
type Stored<'a> = (&'a str, Dtype, Vec<usize>, Vec<u8>);

fn f32_tensor<'a>(name: &'a str, shape: &[usize], values: &[f32]) -> Stored<'a> {
    (
        name,
        Dtype::F32,
        shape.to_vec(),
        values.iter().flat_map(|v| v.to_le_bytes()).collect(),
    )
}

fn safetensors_file(tensors: &[Stored]) -> Vec<u8> {
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (
            *name,
            TensorView::new(*dtype, shape.clone(), bytes).expect("bytes that fit the shape"),
        )
    });
    safetensors::serialize(views.collect::<HashMap<_, _>>(), None).expect("a safetensors file")
}

/// The file that most tests damage: a matrix and a vector.
fn whole_file() -> Vec<u8> {
    safetensors_file(&[
        f32_tensor("layer.weight", &[2, 3], &[1., 2., 3., 4., 5., 6.]),
        f32_tensor("layer.bias", &[2], &[7., 8.]),
    ])
}

/// A folder that holds these files.
fn folder(files: &[(&str, &[u8])]) -> TempDir {
    let dir = tempfile::tempdir().expect("a temporary folder");
    for (name, bytes) in files {
        std::fs::write(dir.path().join(name), bytes).expect("a written file");
    }
    dir
}

/// Reads the two tensors of [`whole_file`] as a network would.
fn read_all(dir: &Path) -> Result<Vec<f32>, WeightsError> {
    let weights = Weights::open(dir, STEM, &Device::flex())?;
    let layer = weights.scope("layer");
    let mut values = layer.values("weight", &[2, 3])?;
    values.extend(layer.values("bias", &[2])?);
    drop(layer);
    weights.finish()?;
    Ok(values)
}

/// Reading the folder must fail with one line that holds every part of `expected`.
#[track_caller]
fn check_refused(dir: &TempDir, expected: &[&str]) {
    let message = read_all(dir.path()).expect_err("damaged weights").to_string();
    assert!(!message.contains('\n'), "more than one line: {message}");
    for part in expected {
        assert!(message.contains(part), "`{part}` is missing in: {message}");
    }
}

#[track_caller]
fn check_file_refused(bytes: &[u8], expected: &[&str]) {
    let dir = folder(&[("model.safetensors", bytes)]);
    check_refused(&dir, &[expected, &["model.safetensors"]].concat());
}

/// An undamaged file gives its values, row by row.
#[test]
fn whole_file_is_read() {
    let dir = folder(&[("model.safetensors", &whole_file())]);
    assert_eq!(
        read_all(dir.path()).expect("whole weights"),
        [1., 2., 3., 4., 5., 6., 7., 8.]
    );
}

/// A download that broke off, or bytes after the end, are seen from the header without reading a weight.
#[test]
fn truncated_and_extended_files_are_refused() {
    let file = whole_file();
    check_file_refused(&file[..file.len() - 1], &["truncated", "download it again"]);
    check_file_refused(&file[..40], &["its header claims", "download it again"]);
    check_file_refused(&file[..5], &["no known format", "download them again"]);
    check_file_refused(&[&file[..], &[0, 0]].concat(), &["bytes appended"]);
}

/// What is saved under the name of a weight file by mistake is called by its name, with the way out.
#[test]
fn other_formats_are_named() {
    check_file_refused(b"", &["an empty file", "download it again"]);
    check_file_refused(
        b"<!DOCTYPE html><html><body>Sign in</body></html>",
        &["an HTML page", "login"],
    );
    check_file_refused(b"\n <html lang=\"en\">", &["an HTML page"]);
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12345\n";
    check_file_refused(pointer, &["a Git LFS pointer", "git lfs pull"]);
    check_file_refused(br#"{"metadata": {"total_size": 12}}"#, &["a JSON file"]);
    check_file_refused(&[0xA5; 100], &["a file of no known format"]);
}

/// A header of 640 bytes begins with the two bytes that also begin a pickle; it is a safetensors file all the same.
#[test]
fn header_of_640_bytes_is_not_taken_for_a_pickle() {
    let file = whole_file();
    let size = u64::from_le_bytes(file[..8].try_into().expect("eight bytes")) as usize;
    let mut padded = 640u64.to_le_bytes().to_vec();
    padded.extend_from_slice(&file[8..8 + size]);
    padded.resize(8 + 640, b' ');
    padded.extend_from_slice(&file[8 + size..]);
    assert_eq!(padded[..2], [0x80, 0x02]);
    let dir = folder(&[("model.safetensors", &padded)]);
    assert_eq!(read_all(dir.path()).expect("a padded header")[7], 8.0);
}

/// A header that is no JSON, overlaps its tensors or lies about their size is refused.
#[test]
fn broken_headers_are_refused() {
    let with_header = |header: &str, data: usize| {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(header.as_bytes());
        file.resize(file.len() + data, 0);
        file
    };
    check_file_refused(&with_header("{not json}", 4), &["broken safetensors file"]);
    let wrong_size = r#"{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}"#;
    check_file_refused(&with_header(wrong_size, 8), &["broken safetensors file"]);
    let gap = r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}"#;
    check_file_refused(&with_header(gap, 8), &["broken safetensors file"]);
}

/// A missing, a misshapen and a left-over tensor are named, with the nearest key that might be meant.
#[test]
fn keys_and_shapes_are_strict() {
    let weight = || f32_tensor("layer.weight", &[2, 3], &[0.0; 6]);
    let bias = || f32_tensor("layer.bias", &[2], &[0.0; 2]);
    let misspelt = safetensors_file(&[weight(), f32_tensor("layer.bais", &[2], &[0.0; 2])]);
    check_file_refused(&misspelt, &["tensor `layer.bias` is missing", "nearest: `layer.bais`"]);
    let turned = safetensors_file(&[f32_tensor("layer.weight", &[3, 2], &[0.0; 6]), bias()]);
    check_file_refused(&turned, &["`layer.weight` has shape [3, 2]", "asks for [2, 3]"]);
    let extra = safetensors_file(&[
        weight(),
        bias(),
        f32_tensor("layer.biases", &[1], &[0.0]),
        f32_tensor("other", &[1], &[0.0]),
    ]);
    let dir = folder(&[("model.safetensors", &extra)]);
    check_refused(
        &dir,
        &[
            "2 tensor(s) are not used",
            "first `layer.biases`",
            "nearest: `layer.bias`",
        ],
    );
}

/// A tensor that is known and not needed may be left over; only that one.
#[test]
fn ignored_tensors_may_be_left_over() {
    let file = safetensors_file(&[
        f32_tensor("used", &[1], &[1.0]),
        ("position_ids", Dtype::I64, vec![1], vec![0; 8]),
    ]);
    let dir = folder(&[("model.safetensors", &file)]);
    let weights = Weights::open(dir.path(), STEM, &Device::flex()).expect("whole weights");
    weights.values("used", &[1]).expect("the tensor");
    weights.ignore("position_ids");
    weights.finish().expect("nothing else is left over");
}

/// NaN and infinity are refused with the tensor and the element.
#[test]
fn non_finite_values_are_refused() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let file = safetensors_file(&[
            f32_tensor("layer.weight", &[2, 3], &[0.0; 6]),
            f32_tensor("layer.bias", &[2], &[0.0, bad]),
        ]);
        check_file_refused(
            &file,
            &["tensor `layer.bias` holds a non-finite value at element 1", "damaged"],
        );
    }
}

/// Integers and doubles are no weights; nothing is cast silently.
#[test]
fn other_types_are_refused() {
    let file = safetensors_file(&[
        ("layer.weight", Dtype::F64, vec![2, 3], vec![0; 48]),
        f32_tensor("layer.bias", &[2], &[0.0; 2]),
    ]);
    check_file_refused(&file, &["tensor `layer.weight` is stored as F64", "F32, F16 and BF16"]);
}

/// Every finite f16 and bf16 widens to the f32 of the same value, by the definition of the formats.
#[test]
fn half_types_widen_exactly() {
    // Sign, `exponent_bits` of exponent with this bias, the rest mantissa; exponent 0 has no implied leading 1.
    let by_definition = |bits: u16, mantissa_bits: i32, bias: i32| -> f64 {
        let exponent = i32::from((bits & 0x7fff) >> mantissa_bits);
        let mantissa = f64::from(bits & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
        let magnitude = if exponent == 0 {
            mantissa * 2f64.powi(1 - bias)
        } else {
            (1.0 + mantissa) * 2f64.powi(exponent - bias)
        };
        if bits & 0x8000 == 0 { magnitude } else { -magnitude }
    };
    for (dtype, mantissa_bits, bias) in [(Dtype::F16, 10, 15), (Dtype::BF16, 7, 127)] {
        let largest_exponent = 0x7fffu16 >> mantissa_bits;
        let patterns: Vec<u16> = (0..=u16::MAX)
            .filter(|b| (b & 0x7fff) >> mantissa_bits != largest_exponent)
            .collect();
        let bytes = patterns.iter().flat_map(|b| b.to_le_bytes()).collect();
        let dir = folder(&[(
            "model.safetensors",
            &safetensors_file(&[("x", dtype, vec![patterns.len()], bytes)]),
        )]);
        let weights = Weights::open(dir.path(), STEM, &Device::flex()).expect("whole weights");
        let values = weights.values("x", &[patterns.len()]).expect("finite values");
        for (bits, value) in patterns.iter().zip(values) {
            assert_eq!(
                f64::from(value),
                by_definition(*bits, mantissa_bits, bias),
                "{dtype:?} {bits:#06x}"
            );
        }
    }
}

/// f32 values come back bit for bit, subnormals and minus zero included.
#[test]
fn f32_is_read_bit_for_bit() {
    let values = [0.0, -0.0, f32::MIN_POSITIVE / 8.0, f32::MAX, -1.000_000_1];
    let dir = folder(&[(
        "model.safetensors",
        &safetensors_file(&[f32_tensor("x", &[5], &values)]),
    )]);
    let weights = Weights::open(dir.path(), STEM, &Device::flex()).expect("whole weights");
    let read = weights.values("x", &[5]).expect("finite values");
    assert_eq!(read.map_bits(), values.map_bits());
}

/// Bits of floats, so that `-0.0` and `0.0` differ.
trait MapBits {
    fn map_bits(&self) -> Vec<u32>;
}

impl<T: AsRef<[f32]>> MapBits for T {
    fn map_bits(&self) -> Vec<u32> {
        self.as_ref().iter().map(|v| v.to_bits()).collect()
    }
}

const INDEX: &str = "model.safetensors.index.json";

fn index(map: &[(&str, &str)]) -> Vec<u8> {
    let map: HashMap<&str, &str> = map.iter().copied().collect();
    serde_json::json!({"metadata": {"total_size": 32}, "weight_map": map})
        .to_string()
        .into_bytes()
}

fn shards() -> [Vec<u8>; 2] {
    [
        safetensors_file(&[f32_tensor("layer.weight", &[2, 3], &[1., 2., 3., 4., 5., 6.])]),
        safetensors_file(&[f32_tensor("layer.bias", &[2], &[7., 8.])]),
    ]
}

const RIGHT_MAP: [(&str, &str); 2] = [("layer.weight", "a.safetensors"), ("layer.bias", "b.safetensors")];

/// Shards together give what one file gives.
#[test]
fn shards_are_read() {
    let [a, b] = shards();
    let dir = folder(&[
        (INDEX, &index(&RIGHT_MAP)),
        ("a.safetensors", &a),
        ("b.safetensors", &b),
    ]);
    assert_eq!(
        read_all(dir.path()).expect("whole shards"),
        [1., 2., 3., 4., 5., 6., 7., 8.]
    );
}

/// A shard that is missing or damaged, and an index that is older than its shards, are named.
#[test]
fn shards_and_index_must_agree() {
    let [a, b] = shards();
    let map = index(&RIGHT_MAP);
    check_refused(
        &folder(&[(INDEX, &map), ("a.safetensors", &a)]),
        &[INDEX, "b.safetensors", "not there", "incomplete"],
    );
    let short = &b[..b.len() - 1];
    let damaged = folder(&[(INDEX, &map), ("a.safetensors", &a), ("b.safetensors", short)]);
    check_refused(&damaged, &["b.safetensors", "truncated"]);
    let stale = folder(&[(INDEX, &map), ("a.safetensors", &a), ("b.safetensors", &a)]);
    check_refused(
        &stale,
        &[
            INDEX,
            "`layer.bias` is in b.safetensors, but it is not",
            "different downloads",
        ],
    );
    let short_map = index(&RIGHT_MAP[..1]);
    let both = safetensors_file(&[
        f32_tensor("layer.weight", &[2, 3], &[0.0; 6]),
        f32_tensor("layer.bias", &[2], &[0.0; 2]),
    ]);
    let unlisted = folder(&[(INDEX, &short_map), ("a.safetensors", &both)]);
    check_refused(&unlisted, &[INDEX, "does not list `layer.bias`", "a.safetensors"]);
    check_refused(&folder(&[(INDEX, b"<html>")]), &[INDEX, "not a shard index"]);
    let escape = index(&[("layer.weight", "../a.safetensors")]);
    check_refused(
        &folder(&[(INDEX, &escape)]),
        &[INDEX, "`../a.safetensors`", "not a plain file name"],
    );
}

/// A folder without weights says what it holds instead; a path that is no folder says so.
#[test]
fn missing_files_are_named() {
    let dir = folder(&[("weights.ckpt", b"PK\x03\x04"), ("readme.md", b"")]);
    check_refused(&dir, &["no model.safetensors", "found weights.ckpt"]);
    let gone = dir.path().join("nowhere");
    let message = read_all(&gone).expect_err("no folder").to_string();
    assert!(
        message.contains("nowhere") && message.contains("there is no such folder"),
        "{message}"
    );
}

/// Seeded weights depend on seed and key, not on the order of the questions; blank ones list what was asked.
#[test]
fn invented_weights_depend_on_their_key_only() {
    let device = Device::flex();
    let (one, other) = (Weights::seeded(1, 1.0, &device), Weights::seeded(1, 1.0, &device));
    let (a, b) = (
        one.values("a", &[2, 2]).expect("invented"),
        one.values("b", &[2, 2]).expect("invented"),
    );
    assert_eq!(other.values("b", &[2, 2]).expect("invented"), b);
    assert_eq!(other.values("a", &[2, 2]).expect("invented"), a);
    assert_ne!(a, b);
    assert_ne!(
        Weights::seeded(2, 1.0, &device).values("a", &[2, 2]).expect("invented"),
        a
    );
    let blank = Weights::blank(&device);
    blank.scope("x").transposed("weight", &[3, 2]).expect("blank");
    assert_eq!(
        blank.asked().into_iter().collect::<Vec<_>>(),
        [("x.weight".to_owned(), vec![3, 2])]
    );
}

/// `[[1, 2, 3], [4, 5, 6]]` turned is `[[1, 4], [2, 5], [3, 6]]`, and turning twice changes nothing.
#[test]
fn transpose_by_hand() {
    let turned = transpose(&[1., 2., 3., 4., 5., 6.], 2);
    assert_eq!(turned, [1., 4., 2., 5., 3., 6.]);
    assert_eq!(transpose(&turned, 3), [1., 2., 3., 4., 5., 6.]);
}
