//! The reward `ocr` without a network: prompts, pictures as lines, and scores by a reader that is not one.

use std::path::Path;

use image::{Rgb, RgbImage, Rgba, RgbaImage};
use rewards::ocr::line::{HEIGHT, Line, NoLine};
use rewards::ocr::wanted::{NoWantedText, quoted};
use rewards::ocr::{Alphabet, OcrScore, ReadError, Reading, TextReader};
use rewards::pictures::{Transparency, open};
use rewards::{Picture, RewardError, Scorer};
use serde_json::Value;

/// The folder of reference pictures, and what `tools/ocr_reference.py` says of them.
pub(crate) fn reference() -> (std::path::PathBuf, Value) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ocr");
    let text = std::fs::read_to_string(folder.join("expected.json")).expect("expected.json");
    (folder, serde_json::from_str(&text).expect("valid JSON"))
}

/// "Reads" the text whose number is the red level of the first pixel; pictures that are no lines are refused.
struct Fake {
    texts: &'static [&'static str],
    alphabet: Alphabet,
}

impl TextReader for Fake {
    fn read(&self, picture: &RgbImage) -> Result<Reading, ReadError> {
        Line::new(picture)?;
        let text = self.texts[usize::from(picture.get_pixel(0, 0).0[0])].to_owned();
        Ok(Reading { text, confidence: 1.0 })
    }

    fn alphabet(&self) -> &Alphabet {
        &self.alphabet
    }

    fn description(&self) -> String {
        "a fake".to_owned()
    }
}

fn scorer(texts: &'static [&'static str]) -> OcrScore {
    let alphabet = Alphabet::parse("a\nB\nc\n1");
    OcrScore::with_reader("ocr", Box::new(Fake { texts, alphabet }))
}

fn shows(text: u8) -> Picture {
    RgbImage::from_pixel(8, 8, Rgb([text, 0, 0])).into()
}

fn prompts<const N: usize>(texts: [&str; N]) -> Vec<String> {
    texts.map(str::to_owned).to_vec()
}

#[test]
fn scores_are_accuracies_of_pairs() {
    let mut scorer = scorer(&["Oven", "we are OPEN", ""]);
    scorer
        .prepare(&prompts([r#"a sign "Open""#, r#"an "oven""#]))
        .expect("prepared");
    let pictures = [shows(0), shows(0), shows(1), shows(1), shows(2)];
    let scores = scorer.score(&pictures, &[0, 1, 0, 1, 1]).expect("scores");
    // `weareopen` contains `open`; from it to `oven` are 6 edits, more than the 4 letters.
    assert_eq!(scores, [0.75, 1.0, 1.0, 0.0, 0.0]);
    for (picture, (prompt, score)) in pictures.iter().zip([0, 1, 0, 1, 1].into_iter().zip(scores)) {
        let alone = scorer.score(std::slice::from_ref(picture), &[prompt]).expect("a score");
        assert_eq!(alone, [score], "alone as among others");
    }
}

#[test]
fn prompts_without_quotes_are_refused_by_name() {
    let texts = prompts([
        r#"a sign "Open""#,
        "a very long prompt about a cat that sits on a mat beside a hat and a bat",
    ]);
    let mut scorer = scorer(&[]);
    let errors = [
        scorer.prepare(&texts).expect_err("refused"),
        scorer.check_prompts(&texts).expect_err("refused"),
    ];
    for error in errors {
        let expected = "reward `ocr`, prompt 1 (\"a very long prompt about a cat that sits on a mat beside a h\"…): the \
                        prompt has no text in double quotes; write what the picture shall say like \"this\"";
        assert_eq!(error.to_string(), expected);
        let source = NoWantedText::NoQuotes;
        assert!(matches!(error, RewardError::Quotes { prompt: 1, source: found, .. } if found == source));
    }
    let error = scorer
        .score(&[shows(0)], &[0])
        .expect_err("a failed call prepares nothing");
    assert!(
        matches!(error, RewardError::UnknownPrompt { prepared: 0, .. }),
        "{error}"
    );
}

#[test]
fn characters_that_cannot_be_read_are_told() {
    let scorer = scorer(&[]);
    let known = prompts([r#""ab C1""#, r#""A""#]);
    assert!(scorer.check_prompts(&known).expect("fine").is_empty());
    let strange = prompts([r#""ab""#, r#""½a""#, r#""b₂½""#]);
    let remarks = scorer.check_prompts(&strange).expect("only told");
    let expected = "ocr: 2 of 3 prompts want characters that the recogniser does not know and never score 1 (first: \
                    prompt 1; the characters: ½₂)";
    assert_eq!(remarks, [expected]);
}

#[test]
fn pictures_that_are_no_lines_are_named() {
    let mut scorer = scorer(&["a"]);
    scorer.prepare(&prompts([r#""a""#])).expect("prepared");
    let pictures = [shows(0), RgbImage::new(1000, 10).into()];
    let error = scorer.score(&pictures, &[0, 0]).expect_err("too long");
    assert!(
        matches!(
            error,
            RewardError::Picture {
                sample: 1,
                prompt: 0,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("the picture is 1000 x 10 pixels"), "{error}");
    assert!(matches!(
        Line::new(&RgbImage::new(1000, 10)),
        Err(NoLine::TooLong { .. })
    ));
}

#[test]
fn transparent_pixels_lie_on_white() {
    // Fully transparent, stored colour red 1: over white the first pixel's red is 255, which names no text.
    let glass: Picture = RgbaImage::from_pixel(8, 8, Rgba([1, 0, 0, 0])).into();
    let texts: &'static [&'static str] = {
        let mut texts = ["nothing"; 256];
        texts[255] = "white";
        Box::leak(Box::new(texts))
    };
    let mut scorer = scorer(texts);
    scorer.prepare(&prompts([r#""white""#])).expect("prepared");
    assert_eq!(scorer.score(&[glass], &[0]).expect("a score"), [1.0]);
}

#[test]
fn reports_cut_no_prompt_off() {
    let report = scorer(&[]).prepare(&prompts([r#""a""#])).expect("prepared");
    assert_eq!((report.prompts, report.truncated.len()), (1, 0));
}

/// The resized pixels are OpenCV's to the last bit: their sums agree.
#[test]
fn parity_of_lines_with_opencv() {
    let (folder, expected) = reference();
    let pictures = expected["pictures"].as_object().expect("pictures");
    assert!(pictures.len() >= 9);
    for (name, expected) in pictures {
        let picture = open(&folder.join(format!("{name}.png"))).expect("a picture");
        let line = Line::new(&picture.rgb(Transparency::OverWhite)).expect("a line");
        assert_eq!(Value::from(line.width), expected["width"], "{name}");
        let text_width = expected["resized"][0].as_u64().expect("a width") as usize;
        let (mut sum, mut places) = (0, 0);
        for y in 0..HEIGHT {
            for x in 0..text_width {
                for channel in 0..3 {
                    let value = line.values[(channel * HEIGHT + y) * line.width + x];
                    let level = ((value * 0.5 + 0.5) * 255.0).round() as u64;
                    let place = ((y * text_width + x) * 3 + channel + 1) as u64;
                    sum += level;
                    places = (places + place * level) % (1 << 32);
                }
            }
        }
        assert_eq!(Value::from(sum), expected["resized"][1], "{name}");
        assert_eq!(Value::from(places), expected["resized"][2], "{name}");
    }
}

/// Flow-GRPO's own test prompts, one a line and the last one without a line's end.
#[test]
fn real_prompts_all_want_a_text() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/real/ocr_test.txt");
    let Ok(text) = std::fs::read_to_string(&path) else {
        eprintln!("{} is not there: nothing to read", path.display());
        return;
    };
    let wanted: Vec<&str> = text.lines().map(|prompt| quoted(prompt).expect(prompt)).collect();
    assert_eq!(wanted.len(), 1018);
    assert_eq!(
        wanted[..3],
        ["Spring Collection 2024", "Step Goal Achieved", "Forever Yours"]
    );
    for (prompt, wanted) in text.lines().zip(wanted) {
        assert_eq!(prompt.split('"').nth(1), Some(wanted), "as Flow-GRPO cuts it out");
    }
}

#[cfg(not(feature = "ocr"))]
#[test]
fn a_program_without_the_engine_says_so() {
    let path = Path::new("recogniser.onnx");
    for error in [
        OcrScore::check("text", path).err(),
        OcrScore::open("text", path).map(drop).err(),
    ] {
        let message = error.expect("refused").to_string();
        assert!(
            message.contains("reward `text`") && message.contains("--features ocr"),
            "{message}"
        );
    }
}
