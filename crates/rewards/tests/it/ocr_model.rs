//! The reward `ocr` with a real network, whose file the variable `OCR_MODEL` names: PP-OCRv4's recogniser as the package
//! rapidocr-onnxruntime carries it. `cargo xtask ocr-check` fetches it and runs these tests; they exist with the feature
//! `ocr` only.

use std::fs;
use std::path::{Path, PathBuf};

use image::{Rgb, RgbImage};
use rewards::ocr::line::Line;
use rewards::ocr::{OcrScore, Reading, Recogniser, TextReader};
use rewards::pictures::{Transparency, open};
use rewards::{Picture, Scorer};
use serde_json::Value;

use crate::ocr::reference;

/// Largest difference of a probability from ONNX Runtime's.
const TOLERANCE: f64 = 1e-4;

fn model() -> PathBuf {
    let path = std::env::var_os("OCR_MODEL");
    PathBuf::from(path.expect("OCR_MODEL must name the recogniser's file; run `cargo xtask ocr-check`"))
}

/// Opens a path that holds no recogniser, and expects an error with all of `expected`, without opening and with.
#[track_caller]
fn check_refused(path: &Path, expected: &[&str]) {
    let checked = OcrScore::check("text", path).expect_err("refused by the check");
    let opened = OcrScore::open("text", path).map(drop).expect_err("refused");
    for message in [checked.to_string(), opened.to_string()] {
        assert!(message.contains("reward `text`"), "{message}");
        assert!(!message.contains('\n'), "{message}");
        for part in expected {
            assert!(message.contains(part), "{part} is not in: {message}");
        }
    }
}

#[test]
fn files_of_another_kind_are_recognised() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("recogniser.onnx");
    check_refused(
        &file,
        &["recogniser.onnx", "No such file", "name the recogniser's .onnx file"],
    );
    check_refused(dir.path(), &["no .onnx file"]);
    for (content, expected) in [
        ("", "the file is empty"),
        ("<!DOCTYPE html><html></html>", "HTML page"),
        (
            "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
            "git lfs pull",
        ),
        ("some notes", "not an ONNX file, or cut off"),
        // A field that the format does not know, and nothing else: formally a message.
        ("\u{78}\u{1}", "no graph"),
    ] {
        fs::write(&file, content).expect("written");
        check_refused(&file, &["recogniser.onnx", expected]);
    }
    fs::write(dir.path().join("detector.onnx"), "").expect("written");
    check_refused(dir.path(), &["detector.onnx, recogniser.onnx", "name the recogniser's"]);
}

/// The package has a detector and a classifier of the same family beside the recogniser.
#[test]
fn other_networks_are_refused_by_their_ends() {
    let beside = |name| model().with_file_name(name);
    check_refused(
        &beside("ch_PP-OCRv4_det_infer.onnx"),
        &["ch_PP-OCRv4_det_infer.onnx", "no list of characters"],
    );
    check_refused(model().parent().expect("a folder"), &["several .onnx files"]);

    // With a list of characters it is their input and output that tell.
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("model.onnx");
    fs::write(dir.path().join("dict.txt"), "a\nb\n").expect("written");
    for name in ["ch_PP-OCRv4_det_infer.onnx", "ch_ppocr_mobile_v2.0_cls_infer.onnx"] {
        fs::copy(beside(name), &file).expect("copied");
        check_refused(&file, &["not a text recogniser", "the output is `"]);
    }
}

/// A copy of the recogniser in a folder of its own, with its bytes changed.
fn copy(change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    let bytes = fs::read(model()).expect("the recogniser");
    fs::write(dir.path().join("model.onnx"), change(bytes)).expect("written");
    dir
}

/// Gives the list of characters in the metadata a name under which nobody looks for it.
fn without_list(mut bytes: Vec<u8>) -> Vec<u8> {
    let key = b"\x0a\x09character";
    let place = bytes.windows(key.len()).position(|window| window == key);
    bytes[place.expect("the metadata's key") + 2] = b'C';
    bytes
}

#[test]
fn cut_files_are_refused() {
    for length in [1000, 5_000_000, 10_800_000] {
        let dir = copy(|bytes| bytes[..length].to_vec());
        check_refused(dir.path(), &["model.onnx", "download it again"]);
    }
}

/// Only making the network ready shows this; it happens before anything is scored as well.
#[test]
fn networks_that_cannot_be_run_are_refused() {
    let dir = copy(|mut bytes| {
        // The node's field 4, its operator, becomes one that does not exist.
        let operator = b"\x22\x0bHardSigmoid";
        let place = bytes.windows(operator.len()).position(|window| window == operator);
        bytes[place.expect("the operator") + 2] = b'X';
        bytes
    });
    OcrScore::check("text", dir.path()).expect("the file's ends fit");
    let error = OcrScore::open("text", dir.path()).map(drop).expect_err("refused");
    let message = error.to_string();
    for part in [
        "reward `text`",
        "model.onnx",
        "the network cannot be run",
        "XardSigmoid",
        "take another recogniser",
    ] {
        assert!(message.contains(part), "{part} is not in: {message}");
    }
    assert!(!message.contains('\n'), "{message}");
}

#[test]
fn the_list_may_lie_beside_the_file() {
    let dir = copy(without_list);
    check_refused(dir.path(), &["no list of characters", "keys.txt"]);

    let bytes = fs::read(model()).expect("the recogniser");
    let whole = Recogniser::open(&model()).expect("opened");
    // The last character is the space, which no list holds.
    let characters: Vec<&str> = whole.alphabet().characters().collect();
    let list = characters[..characters.len() - 1].join("\n");
    fs::write(dir.path().join("keys.txt"), format!("\u{feff}{list}\n")).expect("written");
    let beside = Recogniser::open(dir.path()).expect("opened");
    assert_eq!(beside.alphabet(), whole.alphabet());

    fs::write(dir.path().join("dict.txt"), &list).expect("written");
    check_refused(dir.path(), &["both keys.txt and dict.txt"]);
    fs::remove_file(dir.path().join("keys.txt")).expect("removed");
    fs::write(dir.path().join("dict.txt"), "a\nb\n").expect("written");
    check_refused(dir.path(), &["6625 classes", "makes 4"]);
    fs::write(dir.path().join("dict.txt"), &bytes[..100]).expect("written");
    check_refused(dir.path(), &["dict.txt", "UTF-8"]);
}

/// Texts, classes and probabilities are those of rapidocr with ONNX Runtime, and so are the scores.
#[test]
fn parity_with_rapidocr() {
    let recogniser = Recogniser::open(&model()).expect("opened");
    let (folder, expected) = reference();
    let numbers = |value: &Value| -> Vec<f64> {
        let values = value.as_array().expect("a list");
        values.iter().map(|number| number.as_f64().expect("a number")).collect()
    };
    let prompts = expected["prompts"].as_array().expect("prompts");
    let prompts: Vec<String> = prompts
        .iter()
        .map(|text| text.as_str().expect("a text").to_owned())
        .collect();
    let mut scorer = OcrScore::open("text", &model()).expect("opened");
    scorer.prepare(&prompts).expect("prepared");
    for (name, expected) in expected["pictures"].as_object().expect("pictures") {
        let picture = open(&folder.join(format!("{name}.png"))).expect("a picture");
        let flat = picture.rgb(Transparency::OverWhite);
        let found = recogniser
            .probabilities(&Line::new(&flat).expect("a line"))
            .expect("read");
        if let Some(folder) = std::env::var_os("OCR_PROBABILITIES") {
            let bytes: Vec<u8> = found.iter().flat_map(|value| value.to_le_bytes()).collect();
            fs::write(Path::new(&folder).join(format!("{name}.f32")), bytes).expect("written");
        }
        let (classes, probabilities) = (numbers(&expected["classes"]), numbers(&expected["probabilities"]));
        let steps: Vec<&[f32]> = found.chunks_exact(recogniser.alphabet().classes()).collect();
        assert_eq!(steps.len(), classes.len(), "{name}");
        for (step, (class, probability)) in steps.iter().zip(classes.iter().zip(probabilities)) {
            let greatest = step.iter().copied().fold(0.0, f32::max);
            assert!(
                (f64::from(greatest) - probability).abs() < TOLERANCE,
                "{name}: {greatest}, expected {probability}"
            );
            assert_eq!(step[*class as usize], greatest, "{name}: the likeliest class");
            let sum: f64 = step.iter().map(|value| f64::from(*value)).sum();
            assert!(
                (sum - 1.0).abs() < TOLERANCE,
                "{name}: probabilities of a step add up to {sum}"
            );
        }
        let Reading { text, confidence } = recogniser.read(&flat).expect("read");
        assert_eq!(Value::from(text), expected["text"], "{name}");
        assert!(
            (confidence - expected["confidence"].as_f64().expect("a number")).abs() < TOLERANCE,
            "{name}"
        );

        let pictures = vec![picture.clone(); prompts.len()];
        let pairs: Vec<usize> = (0..prompts.len()).collect();
        let scores = scorer.score(&pictures, &pairs).expect("scores");
        for (score, expected) in scores.iter().zip(numbers(&expected["accuracy"])) {
            assert!((score - expected).abs() < 1e-12, "{name}: {score}, expected {expected}");
        }
    }
}

/// Pictures of many widths, side by side: each is read as it is alone, to the last bit, whatever else is read at the same
/// time and however often its network was made ready.
#[test]
fn a_reading_does_not_depend_on_its_neighbours() {
    let recogniser = Recogniser::open(&model()).expect("opened");
    let (folder, _) = reference();
    let hello = open(&folder.join("hello.png")).expect("a picture");
    let hello = hello.rgb(Transparency::OverWhite).into_owned();
    // Ten widths are more than the networks that are kept.
    let pictures: Vec<RgbImage> = (0..10)
        .map(|number| {
            RgbImage::from_fn(320 + 7 * number, 48, |x, y| match hello.get_pixel_checked(x, y) {
                Some(pixel) => *pixel,
                None => Rgb([255; 3]),
            })
        })
        .collect();
    let read = |picture: &RgbImage| recogniser.read(picture).expect("read");
    let alone: Vec<Reading> = pictures.iter().map(read).collect();
    assert!(alone.iter().all(|reading| reading.text.contains("Hello")), "{alone:?}");
    let together: Vec<Reading> = std::thread::scope(|scope| {
        let threads: Vec<_> = pictures
            .iter()
            .rev()
            .map(|picture| scope.spawn(move || read(picture)))
            .collect();
        threads
            .into_iter()
            .rev()
            .map(|thread| thread.join().expect("read"))
            .collect()
    });
    assert_eq!(alone, together);

    let mut scorer = OcrScore::open("text", &model()).expect("opened");
    scorer
        .prepare(&[r#"a card with "Hello World""#.to_owned(), r#""yellow""#.to_owned()])
        .expect("prepared");
    let batch: Vec<Picture> = pictures.into_iter().map(Picture::from).collect();
    let prompts: Vec<usize> = (0..batch.len()).map(|number| number % 2).collect();
    let whole = scorer.score(&batch, &prompts).expect("scores");
    let mut parts = Vec::new();
    for (pictures, prompts) in batch.chunks(5).zip(prompts.chunks(5)) {
        parts.extend(scorer.score(pictures, prompts).expect("scores"));
    }
    assert_eq!(whole, parts);
    assert!(whole.iter().step_by(2).all(|score| *score == 1.0), "{whole:?}");
}

#[test]
fn the_description_names_the_network() {
    let scorer = OcrScore::open("text", &model()).expect("opened");
    let expected = "OCR accuracy, 0 to 1, by ch_PP-OCRv4_rec_infer, which knows 6624 characters";
    assert_eq!(scorer.description(), expected);
}
