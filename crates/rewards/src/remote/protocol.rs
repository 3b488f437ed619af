//! The bodies of requests and replies. `docs/remote-scorer.md` is their specification.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::{ExtendedColorType, ImageEncoder, ImageError};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::failure::RemoteFailure;
use crate::pictures::{Picture, Transparency};

/// The version of the protocol, which every request names.
pub const VERSION: u32 = 1;

/// The most bytes of a reply that are read: 1 MiB, a kibibyte for each of the most pictures in a call.
pub const LARGEST_REPLY: u64 = 1 << 20;

#[derive(Serialize)]
struct Request<'a> {
    version: u32,
    reward: &'a str,
    prompts: &'a [&'a str],
    images: &'a [String],
}

/// The body of a request; one prompt per image.
pub(super) fn request(reward: &str, prompts: &[&str], images: &[String]) -> Vec<u8> {
    let request = Request {
        version: VERSION,
        reward,
        prompts,
        images,
    };
    serde_json::to_vec(&request).expect("a number and texts always have a JSON form")
}

/// A picture as a request holds it: a PNG file of 8-bit red, green and blue, in Base64.
///
/// Transparent pixels lie on white, as for every reward that says nothing else.
pub(super) fn encode(picture: &Picture) -> Result<String, ImageError> {
    let picture = picture.rgb(Transparency::OverWhite);
    let mut file = Vec::new();
    // The file is read once and thrown away, so time counts and size hardly does.
    PngEncoder::new_with_quality(&mut file, CompressionType::Fast, FilterType::Adaptive).write_image(
        &picture,
        picture.width(),
        picture.height(),
        ExtendedColorType::Rgb8,
    )?;
    Ok(STANDARD.encode(file))
}

/// What a reply may hold; further keys are the service's own affair.
#[derive(Deserialize)]
struct Reply {
    scores: Option<Value>,
    error: Option<Value>,
}

/// The scores in a reply. `prompts` has the prompt's number of every picture that was sent; the first of them is sample
/// number `first`. `quote` makes a short line of what a service wrote.
pub(super) fn scores(
    body: &[u8],
    prompts: &[usize],
    first: usize,
    quote: impl Fn(&str) -> String,
) -> Result<Vec<f64>, RemoteFailure> {
    let brief = |value: &Value| quote(&value.to_string());
    let malformed = |why: String| RemoteFailure::Malformed {
        why,
        start: quote(&String::from_utf8_lossy(body)),
    };
    let text = std::str::from_utf8(body).map_err(|error| malformed(error.to_string()))?;
    // Serde would also take a list of the values for the object.
    if !text.trim_start().starts_with('{') {
        return Err(malformed("no JSON object".to_owned()));
    }
    // A constant that is no JSON is no reason to be vague: with it as text the list can be read, and the sample named.
    let (Reply { scores, error }, has_constants) = match serde_json::from_str(text) {
        Ok(reply) => (reply, false),
        Err(error) => match quote_constants(text).and_then(|quoted| serde_json::from_str(&quoted).ok()) {
            Some(reply) => (reply, true),
            None => return Err(malformed(error.to_string())),
        },
    };
    if let Some(error) = error {
        return Err(malformed(format!(
            "it tells an error ({}) with a status of success",
            brief(&error)
        )));
    }
    let values = match scores {
        Some(Value::Array(values)) => values,
        Some(other) => return Err(malformed(format!("`scores` is {}, no list", brief(&other)))),
        None => return Err(malformed("there is no `scores`".to_owned())),
    };
    if values.len() != prompts.len() {
        return Err(RemoteFailure::Count {
            scores: values.len(),
            samples: prompts.len(),
        });
    }
    let numbers = values.iter().enumerate().map(|(place, value)| {
        let number = value.as_f64().filter(|number| number.is_finite());
        number.ok_or_else(|| RemoteFailure::NotANumber {
            sample: first + place,
            prompt: prompts[place],
            value: match value {
                Value::String(text) if has_constants && CONSTANTS.contains(&text.as_str()) => {
                    format!("{text} (which Python writes and JSON does not have)")
                }
                other => brief(other),
            },
        })
    });
    let numbers = numbers.collect::<Result<_, _>>()?;
    if has_constants {
        return Err(malformed(
            "NaN and Infinity are no JSON, although Python writes them".to_owned(),
        ));
    }
    Ok(numbers)
}

/// What Python's `json` module, by default, writes for numbers that are not finite.
const CONSTANTS: [&str; 3] = ["-Infinity", "Infinity", "NaN"];

/// The text with these constants as strings; nothing if it has none outside of strings.
fn quote_constants(text: &str) -> Option<String> {
    let mut quoted = String::with_capacity(text.len());
    let (mut in_string, mut escaped, mut found) = (false, false, false);
    let mut rest = text;
    while let Some(character) = rest.chars().next() {
        let constant = CONSTANTS.into_iter().find(|constant| rest.starts_with(constant));
        if let (false, Some(constant)) = (in_string, constant) {
            found = true;
            quoted.extend(["\"", constant, "\""]);
            rest = &rest[constant.len()..];
            continue;
        }
        if character == '"' && !escaped {
            in_string = !in_string;
        }
        escaped = in_string && character == '\\' && !escaped;
        quoted.push(character);
        rest = &rest[character.len_utf8()..];
    }
    found.then_some(quoted)
}

/// What a service says about a status that is no success: the text of `{"error": ..}`, or the body as it is.
pub(super) fn error_text(body: &[u8]) -> String {
    match serde_json::from_slice(body) {
        Ok(Reply {
            error: Some(Value::String(text)),
            ..
        }) => text,
        _ => String::from_utf8_lossy(body).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(body: &str, prompts: &[usize]) -> Result<Vec<f64>, String> {
        scores(body.as_bytes(), prompts, 10, str::to_owned).map_err(|failure| failure.to_string())
    }

    #[test]
    fn scores_are_finite_json_numbers() {
        assert_eq!(read(r#"{"scores": []}"#, &[]), Ok(vec![]));
        let all = read(
            r#"{"scores": [1, -2.5, 3e-4, 0], "seconds": 0.2, "note": "NaN"}"#,
            &[0; 4],
        );
        assert_eq!(all, Ok(vec![1.0, -2.5, 3e-4, 0.0]));
    }

    /// The second of two pictures, which is sample 11 and was made from prompt 7, has no score.
    #[test]
    fn what_is_no_number_is_named_with_sample_and_prompt() {
        for (value, expected) in [
            ("NaN", "gave NaN (which Python writes and JSON does not have) as"),
            ("Infinity", "gave Infinity (which Python"),
            ("-Infinity", "gave -Infinity (which Python"),
            ("null", "gave null as"),
            ("true", "gave true as"),
            ("\"NaN\"", "gave \"NaN\" as"),
            ("\"0.5\"", "gave \"0.5\" as"),
            ("[0.5]", "gave [0.5] as"),
        ] {
            let message = read(&format!(r#"{{"scores": [0.5, {value}]}}"#), &[3, 7]).expect_err("no number");
            assert!(
                message.contains(expected) && message.contains("sample 11 (prompt 7)"),
                "{message}"
            );
        }
    }

    #[test]
    fn other_replies_are_refused() {
        for (body, expected) in [
            ("", "no JSON object"),
            ("<html>Welcome</html>", "in `<html>Welcome</html>`"),
            ("[[0.5], null]", "no JSON object"),
            ("{}", "there is no `scores`"),
            (r#"{"scores": null}"#, "there is no `scores`"),
            (r#"{"scores": 0.5}"#, "`scores` is 0.5, no list"),
            (r#"{"scores": {"0": 0.5}}"#, "no list"),
            (r#"{"scores": [0.5]"#, "EOF while parsing"),
            (r#"{"scores": [0.5]} {}"#, "trailing characters"),
            (r#"{"scores": [0.5], "scores": [0.6]}"#, "duplicate field `scores`"),
            (r#"{"scores": [1e999]}"#, "number out of range"),
            (r#"{"scores": [.5]}"#, "expected value"),
            (r#"{"scores": [0.5], "error": "no model"}"#, "an error (\"no model\")"),
            (r#"{"scores": [0.5], "loss": NaN}"#, "Python writes them"),
            (r#"{"scores": [0.5, 0.6]}"#, "gave 2 scores for 1 pictures"),
            (r#"{"scores": []}"#, "gave 0 scores for 1 pictures"),
        ] {
            let message = read(body, &[0]).expect_err("refused");
            assert!(message.contains(expected), "{body}: {message}");
        }
        // Deep nesting must not exhaust the stack.
        assert!(read(&format!("{{\"scores\": {}", "[".repeat(100_000)), &[0]).is_err());
        let latin = scores(b"{\"scores\": [0.5], \"caf\xe9\": 1}", &[0], 0, str::to_owned).expect_err("no UTF-8");
        assert!(latin.to_string().contains("utf-8"), "{latin}");
    }

    #[test]
    fn errors_are_told_in_the_service_s_words() {
        assert_eq!(error_text(br#"{"error": "no \"model\""}"#), "no \"model\"");
        assert_eq!(error_text(br#"{"detail": "no model"}"#), r#"{"detail": "no model"}"#);
        assert_eq!(error_text(b"Bad Gateway"), "Bad Gateway");
    }

    proptest! {
        /// Inside of strings nothing is a constant, whatever quotes and backslashes stand there.
        #[test]
        fn constants_are_found_outside_of_strings_only(text in r#"([\\"a]|NaN|-?Infinity){0,12}"#) {
            let string = Value::String(text).to_string();
            prop_assert_eq!(quote_constants(&format!("[{string}, 1]")), None);
            let expected = format!("[{string}, \"-Infinity\", {string}]");
            prop_assert_eq!(quote_constants(&format!("[{string}, -Infinity, {string}]")), Some(expected));
        }

        /// No reply makes the reader panic.
        #[test]
        fn any_reply_is_read_or_refused(body in prop::collection::vec(any::<u8>(), 0..64)) {
            let _ = scores(&body, &[0], 0, str::to_owned);
            let _ = scores(&[b"{\"scores\": [", body.as_slice()].concat(), &[0], 0, str::to_owned);
        }
    }
}
