//! PyTorch files: what is read of them, and as what.

mod craft;
mod real;
mod refused;

use std::path::Path;

use burn::tensor::Device;
use nn::weights::{Weights, WeightsError};
use tempfile::TempDir;

use craft::{archive, dict, floats, int, legacy_file, pickle, state_dict, text, view, view_on, whole, zip_file};

/// A folder with one file.
fn folder(name: &str, bytes: &[u8]) -> TempDir {
    let dir = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(dir.path().join(name), bytes).expect("a written file");
    dir
}

fn open(dir: &TempDir, name: &str) -> Result<Weights, WeightsError> {
    Weights::open_file(&dir.path().join(name), &Device::flex())
}

/// Opens the bytes as a file of this name.
fn opened(name: &str, bytes: &[u8]) -> Result<Weights, WeightsError> {
    // A PyTorch file is kept open, so its folder may go.
    open(&folder(name, bytes), name)
}

/// Opening the bytes as a file of this name must fail with one line that holds the name and every part of `expected`.
#[track_caller]
fn check_refused(name: &str, bytes: &[u8], expected: &[&str]) {
    let message = match opened(name, bytes) {
        Ok(_) => panic!("{name} was opened"),
        Err(error) => error.to_string(),
    };
    check_message(&message, &[expected, &[name]].concat());
}

#[track_caller]
fn check_message(message: &str, expected: &[&str]) {
    assert!(!message.contains('\n'), "more than one line: {message}");
    for part in expected {
        assert!(message.contains(part), "`{part}` is missing in: {message}");
    }
}

/// The matrix and the vector that most tests store, and their storages.
fn layer() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("layer.weight", whole("FloatStorage", "0", &[2, 3])),
        ("layer.bias", whole("FloatStorage", "1", &[2])),
    ]
}

fn layer_storages() -> Vec<(&'static str, Vec<u8>)> {
    vec![("0", floats(&[1., 2., 3., 4., 5., 6.])), ("1", floats(&[7., 8.]))]
}

/// The zip file that holds [`layer`] in this wrapping.
fn layer_file(value: &[u8]) -> Vec<u8> {
    zip_file(value, &layer_storages())
}

const LAYER: [f32; 8] = [1., 2., 3., 4., 5., 6., 7., 8.];

/// Reads [`layer`] as a network would, and makes sure that nothing else was there.
fn read_layer(weights: Weights) -> Result<Vec<f32>, WeightsError> {
    let layer = weights.scope("layer");
    let mut values = layer.values("weight", &[2, 3])?;
    values.extend(layer.values("bias", &[2])?);
    weights.finish()?;
    Ok(values)
}

/// Every container and every way to write the dictionary gives the same values, whatever the file is called.
#[test]
fn both_containers_are_read_under_any_name() {
    let legacy: Vec<(&str, usize, Vec<u8>)> = layer_storages()
        .into_iter()
        .map(|(key, bytes)| (key, 4, bytes))
        .collect();
    let files = [
        layer_file(&dict(&layer())),
        layer_file(&state_dict(&layer())),
        legacy_file(&dict(&layer()), &legacy),
        legacy_file(&state_dict(&layer()), &legacy),
    ];
    for file in &files {
        for name in ["weights.pt", "weights.pth", "weights.bin", "weights.safetensors"] {
            let weights = opened(name, file).expect("a PyTorch file");
            assert_eq!(weights.wrapper(), None);
            assert_eq!(read_layer(weights).expect("whole weights"), LAYER, "{name}");
        }
    }
}

/// The other way round: safetensors called `.pt` are safetensors.
#[test]
fn safetensors_are_read_under_any_name() {
    let values = floats(&[7., 8.]);
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![2], &values).expect("two values");
    let file = safetensors::serialize([("layer.bias", view)], None).expect("a safetensors file");
    for name in ["weights.pt", "weights.bin"] {
        let dir = folder(name, &file);
        let weights = open(&dir, name).expect("a safetensors file");
        assert_eq!(weights.values("layer.bias", &[2]).expect("the vector"), [7., 8.]);
    }
}

/// A transposed view, a row of a matrix and a scalar, two of them in one storage, from a GPU:
/// the storage 0…5 as `[2, 3]` with strides `[1, 2]` is `[[0, 2, 4], [1, 3, 5]]`, and from offset 3 on it is 3, 4, 5.
#[test]
fn views_and_devices_do_not_matter() {
    let value = dict(&[
        ("turned", view_on("cuda:0", "FloatStorage", "0", 6, 0, &[2, 3], &[1, 2])),
        ("tail", view_on("cuda:1", "FloatStorage", "0", 6, 3, &[3], &[1])),
        ("repeated", view("FloatStorage", "1", 1, 0, &[3], &[0])),
        ("scalar", view("FloatStorage", "1", 1, 0, &[], &[])),
    ]);
    let storages = [("0", floats(&[0., 1., 2., 3., 4., 5.])), ("1", floats(&[9.]))];
    let weights = opened("weights.pth", &zip_file(&value, &storages)).expect("a PyTorch file");
    let values = |name, shape: &[usize]| weights.values(name, shape).expect("a tensor");
    assert_eq!(values("turned", &[2, 3]), [0., 2., 4., 1., 3., 5.]);
    assert_eq!(values("tail", &[3]), [3., 4., 5.]);
    assert_eq!(values("repeated", &[3]), [9., 9., 9.]);
    assert_eq!(values("scalar", &[]), [9.]);
}

/// 1.5 and −2 in the half types: f16 has the exponent bias 15 (0x3e00, 0xc000), bf16 is the upper half of an f32.
#[test]
fn half_types_are_widened() {
    for (kind, words) in [
        ("HalfStorage", [0x3e00u16, 0xc000]),
        ("BFloat16Storage", [0x3fc0, 0xc000]),
    ] {
        let bytes = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let file = zip_file(&dict(&[("x", whole(kind, "0", &[2]))]), &[("0", bytes)]);
        let weights = opened("weights.bin", &file).expect("a PyTorch file");
        assert_eq!(weights.values("x", &[2]).expect("values"), [1.5, -2.0], "{kind}");
    }
}

/// Other types are refused by name when they are read, and do not disturb when they are known and not needed.
#[test]
fn other_types_are_refused_when_they_are_read() {
    for (kind, name) in [
        ("DoubleStorage", "F64"),
        ("LongStorage", "I64"),
        ("BoolStorage", "BOOL"),
    ] {
        let file = zip_file(&dict(&[("x", whole(kind, "0", &[1]))]), &[("0", vec![0; 8])]);
        let weights = opened("weights.pt", &file).expect("a PyTorch file");
        let error = weights.values("x", &[1]).expect_err("another type").to_string();
        check_message(&error, &["weights.pt", "`x`", name, "F32, F16 and BF16"]);
        weights.ignore("x");
        weights.finish().expect("nothing is left over");
    }
}

/// What strictness asks of every file holds here too: shapes, missing and left-over keys, values that are no numbers.
#[test]
fn keys_shapes_and_values_are_strict() {
    let weights = || opened("weights.pt", &layer_file(&dict(&layer()))).expect("a PyTorch file");
    let error = weights()
        .values("layer.weight", &[3, 2])
        .expect_err("turned")
        .to_string();
    check_message(&error, &["weights.pt", "`layer.weight` has shape [2, 3]"]);
    let error = weights().values("layer.bais", &[2]).expect_err("misspelt").to_string();
    check_message(
        &error,
        &["weights.pt", "`layer.bais` is missing", "nearest: `layer.bias`"],
    );
    let error = weights().finish().expect_err("nothing was asked for").to_string();
    check_message(&error, &["weights.pt", "2 tensor(s) are not used"]);
    let nan = zip_file(
        &dict(&[("x", whole("FloatStorage", "0", &[2]))]),
        &[("0", floats(&[0.0, f32::NAN]))],
    );
    let weights = opened("weights.pt", &nan).expect("a PyTorch file");
    let error = weights.values("x", &[2]).expect_err("no number").to_string();
    check_message(&error, &["`x`", "non-finite value at element 1"]);
}

/// Opening reads no values: of two storages one is damaged, and only whoever asks for that one is told.
#[test]
fn values_are_read_when_they_are_asked_for() {
    let mut file = layer_file(&dict(&layer()));
    let six = floats(&[6.0]);
    let place = file
        .windows(4)
        .position(|bytes| bytes == six)
        .expect("the last value of the matrix");
    file[place] ^= 1;
    let weights = opened("weights.pt", &file).expect("a PyTorch file");
    assert_eq!(weights.values("layer.bias", &[2]).expect("a whole tensor"), [7., 8.]);
    let error = weights
        .values("layer.weight", &[2, 3])
        .expect_err("a checksum")
        .to_string();
    check_message(&error, &["weights.pt", "layer.weight", "checksum", "download it again"]);
}

/// The wrappers of training programs are taken off, and what was taken off is told.
#[test]
fn known_wrappers_are_taken_off() {
    let prefixed = [
        ("module.layer.weight", layer()[0].1.clone()),
        ("module.layer.bias", layer()[1].1.clone()),
    ];
    let inner = state_dict(&layer());
    let state = dict(&[("exp_avg", whole("FloatStorage", "1", &[2])), ("step", int(3))]);
    let cases: [(Vec<u8>, &[&str]); 7] = [
        (dict(&[("state_dict", inner.clone())]), &["key `state_dict`"]),
        (dict(&[("module", inner.clone())]), &["key `module`"]),
        (dict(&[("model", inner.clone())]), &["key `model`"]),
        (dict(&prefixed), &["prefix `module.`"]),
        (
            dict(&[("state_dict", state_dict(&prefixed))]),
            &["prefix `module.`", "key `state_dict`"],
        ),
        (
            dict(&[("epoch", int(7)), ("state_dict", inner.clone()), ("optimizer", state)]),
            &["key `state_dict`", "`epoch`, `optimizer` beside it"],
        ),
        (
            // An average of the weights, say, is not what the file is for.
            dict(&[("model", inner.clone()), ("average", inner)]),
            &["key `model`", "`average`"],
        ),
    ];
    for (value, told) in cases {
        let weights = opened("weights.pt", &layer_file(&value)).expect("a known wrapper");
        check_message(weights.wrapper().expect("something was taken off"), told);
        assert_eq!(read_layer(weights).expect("whole weights"), LAYER);
    }
}

/// Every other structure is refused with what the file holds.
#[test]
fn other_structures_list_their_keys() {
    let refused = |value: Vec<u8>, expected: &[&str]| check_refused("weights.pt", &layer_file(&value), expected);
    let inner = dict(&layer());
    refused(
        dict(&[("generator", inner.clone()), ("step", int(3))]),
        &["`generator` (a dictionary)", "`step` (a number)", "state_dict()"],
    );
    let mut mixed = layer();
    mixed.push(("epoch", int(3)));
    refused(dict(&mixed), &["`epoch` (a number)", "`layer.bias` (a tensor)"]);
    refused(
        dict(&[("state_dict", dict(&mixed))]),
        &["`state_dict` (a dictionary with other things than tensors)"],
    );
    refused(
        dict(&[("state_dict", inner.clone()), ("model", inner.clone())]),
        &["both `state_dict` and `model`"],
    );
    refused(dict(&[("model", dict(&[("state_dict", inner)]))]), &["`model`"]);
    refused(dict(&[]), &["holds nothing"]);
    refused(dict(&[("state_dict", dict(&[]))]), &["`state_dict`"]);
    refused(text("weights"), &["it holds text"]);
    refused(layer()[0].1.clone(), &["it holds a tensor"]);
    let many: Vec<String> = (0..20).map(|i| format!("part{i:02}")).collect();
    let many: Vec<(&str, Vec<u8>)> = many.iter().map(|key| (key.as_str(), int(0))).collect();
    refused(dict(&many), &["`part00` (a number)", "`part07`", "and 12 more"]);
}

/// Hugging Face's and OpenCLIP's names for PyTorch files are found under the stem of their safetensors, which are
/// preferred.
#[test]
fn folders_are_searched_for_pytorch_files() {
    let file = layer_file(&dict(&layer()));
    for (name, stem) in [
        ("model.bin", "model"),
        ("pytorch_model.bin", "model"),
        ("open_clip_pytorch_model.bin", "open_clip_model"),
        ("diffusion_pytorch_model.bin", "diffusion_pytorch_model"),
        ("best.pth", "best"),
    ] {
        let dir = folder(name, &file);
        let weights = Weights::open(dir.path(), stem, &Device::flex()).expect(name);
        assert_eq!(read_layer(weights).expect("whole weights"), LAYER);
    }
    let dir = folder("pytorch_model.bin", &file);
    std::fs::write(dir.path().join("model.safetensors"), b"").expect("a written file");
    let error = match Weights::open(dir.path(), "model", &Device::flex()) {
        Ok(_) => panic!("the empty file is preferred"),
        Err(error) => error.to_string(),
    };
    check_message(&error, &["model.safetensors", "an empty file"]);
}

/// Shards of `pytorch_model.bin` with their index are read like shards of safetensors.
#[test]
fn shards_of_pytorch_files_are_read() {
    let [weight, bias] = layer().try_into().expect("two tensors");
    let [zero, one] = layer_storages().try_into().expect("two storages");
    let dir = folder("a.bin", &zip_file(&dict(&[weight]), &[zero]));
    std::fs::write(dir.path().join("b.bin"), zip_file(&dict(&[bias]), &[one])).expect("a written file");
    let index = r#"{"weight_map": {"layer.weight": "a.bin", "layer.bias": "b.bin"}}"#;
    std::fs::write(dir.path().join("pytorch_model.bin.index.json"), index).expect("a written file");
    let open = |dir: &Path| Weights::open(dir, "model", &Device::flex());
    assert_eq!(
        read_layer(open(dir.path()).expect("shards")).expect("whole weights"),
        LAYER
    );
    std::fs::remove_file(dir.path().join("b.bin")).expect("a removed file");
    let error = match open(dir.path()) {
        Ok(_) => panic!("a shard is missing"),
        Err(error) => error.to_string(),
    };
    check_message(&error, &["pytorch_model.bin.index.json", "b.bin", "not there"]);
}

/// What lies under the name of a PyTorch file by mistake is called by its name.
#[test]
fn other_formats_are_named() {
    check_refused("weights.pt", b"", &["an empty file", "download it again"]);
    check_refused(
        "weights.pth",
        b"<!DOCTYPE html><html></html>",
        &["an HTML page", "login"],
    );
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0123\nsize 12345\n";
    check_refused("weights.bin", pointer, &["a Git LFS pointer", "git lfs pull"]);
    check_refused("weights.pt", br#"{"weight_map": {}}"#, &["a JSON file"]);
    check_refused("weights.pt", &[0xa5; 300], &["no known format"]);
    let mut tar = vec![0; 1024];
    tar[..8].copy_from_slice(b"data.pkl");
    tar[257..262].copy_from_slice(b"ustar");
    check_refused("weights.pt", &tar, &["a tar archive", "unpack it"]);
    check_refused(
        "weights.pt",
        &archive(&[("readme.txt", b"")]),
        &["a zip archive", "unpack it"],
    );
    check_refused("weights.pt", &archive(&[]), &["a zip archive"]);
    let plain = pickle(&dict(&[("epoch", int(3))]));
    check_refused("weights.pt", &plain, &["a Python pickle", "torch.save"]);
}

/// A TorchScript archive, as OpenAI publishes CLIP, is recognised by its code and answered with the command that writes
/// its weights to a file that is read. The names of the entries are those that `torch.jit.save` writes.
#[test]
fn torchscript_archives_are_named_with_the_way_out() {
    let module = [global_module(), b")\x81".to_vec(), dict(&layer()), b"b".to_vec()].concat();
    let file = archive(&[
        ("ViT-L-14/data/0", &floats(&[0.0; 6])),
        ("ViT-L-14/data/1", &floats(&[0.0; 2])),
        ("ViT-L-14/data.pkl", &pickle(&module)),
        ("ViT-L-14/code/__torch__/clip/model.py", b"class CLIP(Module):\n"),
        ("ViT-L-14/constants.pkl", &pickle(b")")),
        ("ViT-L-14/version", b"2\n"),
    ]);
    check_refused(
        "ViT-L-14.pt",
        &file,
        &["a TorchScript archive", "python -c", "torch.jit.load", "state_dict()"],
    );
}

fn global_module() -> Vec<u8> {
    craft::global("__torch__.clip.model", "CLIP")
}
