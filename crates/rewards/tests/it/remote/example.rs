//! The example server, with scorers that work and scorers that do not.

use image::{Rgb, RgbImage, Rgba, RgbaImage};
use rewards::pictures::Transparency;
use rewards::pixel::PixelStatistic;
use rewards::remote::{RemoteFailure, RemoteSettings};
use rewards::{Picture, Purpose, RewardSet, Scorer};

use super::python::PythonService;
use super::{failure, greys, scorer, settings};

#[test]
fn the_example_server_sees_the_pictures_pixel_by_pixel() {
    let service = PythonService::start("brightness");
    let pattern = RgbImage::from_fn(37, 23, |x, y| {
        Rgb([0, 1, 2].map(|c| ((x * 37 + y * 91 + c * 53) % 256) as u8))
    });
    let gradient = RgbImage::from_fn(16, 16, |x, y| Rgb([(x * 16) as u8, (y * 16) as u8, 128]));
    let glass = RgbaImage::from_fn(5, 4, |x, y| Rgba([200, 10, (y * 40) as u8, (x * 60) as u8]));
    let pictures = [pattern.into(), gradient.into(), Picture::from(glass)];

    let mut scorer = scorer(&settings(&service.url), &["a", "b"]);
    scorer.check().expect("a service");
    let scores = scorer.score(&pictures, &[0, 1, 0]).expect("scores");
    for (score, picture) in scores.iter().zip(&pictures) {
        let expected = PixelStatistic::Brightness.of(&picture.rgb(Transparency::OverWhite));
        assert!((score - expected).abs() < 1e-12, "{score}, expected {expected}");
    }

    // As one reward among others.
    scorer.prepare(&[]).expect("prepared");
    let mut set = RewardSet::new(vec![(Box::new(scorer), 2.0, false)]).expect("a set");
    set.prepare(&["c".to_owned()]).expect("prepared");
    let all = set.score(&pictures[..1], &[0], Purpose::Training).expect("scores");
    assert_eq!((all[0].name.as_str(), &all[0].values[..]), ("judge", &scores[..1]));
}

/// JSON carries every text; 1, 4 and 2 bytes for the letters of the last one.
#[test]
fn the_example_server_gets_prompts_as_they_are() {
    let service = PythonService::start("prompt_bytes");
    let prompts = ["", "a \"quoted\"\tC:\\path\nline", "a😀é"];
    let scores = scorer(&settings(&service.url), &prompts).score(&greys(&[1, 2, 3, 4]), &[2, 0, 1, 2]);
    assert_eq!(scores.expect("scores"), [7.0, 0.0, prompts[1].len() as f64, 7.0]);
}

#[test]
fn faults_of_a_python_scorer_are_told() {
    let service = PythonService::start("fault");
    let two = |kind: &str| {
        let scorer = scorer(&settings(&service.url), &["fine", kind]);
        failure(scorer.score(&greys(&[1, 2]), &[1, 0]))
    };
    let (found, attempts, message) = two("short");
    assert!(
        matches!(found, RemoteFailure::Count { scores: 1, samples: 2 }),
        "{message}"
    );
    assert_eq!(attempts, 1);

    let (found, attempts, message) = two("nan");
    assert!(
        matches!(
            found,
            RemoteFailure::NotANumber {
                sample: 1,
                prompt: 0,
                ..
            }
        ),
        "{message}"
    );
    assert!(message.contains("gave NaN (which Python writes"), "{message}");
    assert_eq!(attempts, 1);

    // The service cannot know whether an exception passes, so its 500 is asked again.
    for (kind, expected) in [("raise", "RuntimeError: no model was loaded"), ("none", "TypeError: ")] {
        let (found, attempts, message) = two(kind);
        assert!(matches!(found, RemoteFailure::Status { status: 500, .. }), "{message}");
        assert!(
            message.contains(expected) && message.contains("after 3 attempts"),
            "{message}"
        );
        assert_eq!(attempts, 3);
    }

    // The process ends in the middle of the first attempt, and nobody listens at the others.
    let (found, attempts, message) = two("gone");
    assert!(matches!(found, RemoteFailure::Unreachable { .. }), "{message}");
    assert!(message.contains("see that the service runs"), "{message}");
    assert_eq!(attempts, 3);
}

#[test]
fn a_python_server_that_answers_no_json_is_quoted() {
    let service = PythonService::start("fault");
    let scores = scorer(&settings(&service.url), &["garbage"]).score(&greys(&[1]), &[0]);
    let (found, attempts, message) = failure(scores);
    assert!(matches!(found, RemoteFailure::Malformed { .. }), "{message}");
    assert!(message.contains("in `<html>hello</html>`"), "{message}");
    assert_eq!(attempts, 1);
}

#[test]
fn a_slow_python_scorer_is_not_waited_for() {
    let service = PythonService::start("fault");
    let settings = RemoteSettings {
        timeout_seconds: 0.1,
        retries: 1,
        ..settings(&service.url)
    };
    let scores = scorer(&settings, &["slow"]).score(&greys(&[1]), &[0]);
    let (found, attempts, message) = failure(scores);
    assert!(matches!(found, RemoteFailure::TimedOut { .. }), "{message}");
    assert!(message.contains("within 0.1 s; raise `timeout_seconds`"), "{message}");
    assert_eq!(attempts, 2);
}
