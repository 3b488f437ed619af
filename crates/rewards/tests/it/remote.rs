//! A service as a reward, over loopback: the example server in Python (`example`), and, for what Python hides, a service
//! that does on the wire what the test says.

mod example;
mod python;
mod service;
mod settings;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use image::{ImageFormat, Rgb, RgbImage, Rgba, RgbaImage};
use rewards::remote::{LARGEST_REPLY, RemoteFailure, RemoteScore, RemoteSettings};
use rewards::{Picture, RewardError, Scorer};
use serde_json::{Value, json};

use self::service::{Answer, Service, answer, reply};

/// Settings with two repetitions that hardly wait.
fn settings(url: &str) -> RemoteSettings {
    RemoteSettings {
        retries: 2,
        backoff_seconds: 0.001,
        backoff_limit_seconds: 0.002,
        ..RemoteSettings::new(url)
    }
}

/// A reward with these prompts prepared.
fn scorer(settings: &RemoteSettings, prompts: &[&str]) -> RemoteScore {
    let mut scorer = RemoteScore::new("judge", settings).expect("settings that make sense");
    let prompts: Vec<String> = prompts.iter().map(|prompt| (*prompt).to_owned()).collect();
    let report = scorer.prepare(&prompts).expect("prepared");
    assert_eq!((report.prompts, report.limit), (prompts.len(), None));
    scorer
}

/// Pictures of one pixel, grey with these levels.
fn greys(levels: &[u8]) -> Vec<Picture> {
    levels
        .iter()
        .map(|level| RgbImage::from_pixel(1, 1, Rgb([*level; 3])).into())
        .collect()
}

/// Scores one picture against one prompt at a service with these answers: the result, and the number of connections.
fn ask(answers: Vec<Answer>) -> (Result<Vec<f64>, RewardError>, usize) {
    let service = Service::start(answers);
    let scores = scorer(&settings(&service.url()), &["a"]).score(&greys(&[0]), &[0]);
    (scores, service.connections())
}

/// What happened at the last attempt, the number of attempts, and the message.
#[track_caller]
fn failure<T: std::fmt::Debug>(result: Result<T, RewardError>) -> (RemoteFailure, u32, String) {
    let error = result.expect_err("a failure");
    let message = error.to_string();
    assert!(!message.contains('\n'), "{message}");
    match error {
        RewardError::Remote { attempts, source, .. } => (source, attempts, message),
        other => panic!("another error: {other}"),
    }
}

/// The scores' bodies as the service got them: images decoded.
fn images(body: &Value) -> Vec<RgbImage> {
    let files = body["images"].as_array().expect("a list");
    let decode = |file: &Value| {
        let file = STANDARD.decode(file.as_str().expect("text")).expect("Base64");
        let picture = image::load_from_memory_with_format(&file, ImageFormat::Png).expect("a PNG file");
        assert_eq!(picture.color(), image::ColorType::Rgb8);
        picture.to_rgb8()
    };
    files.iter().map(decode).collect()
}

/// Ten times the picture's level plus the number that its prompt is.
fn level_and_prompt(body: &Value) -> Vec<f64> {
    let prompts = body["prompts"].as_array().expect("a list");
    let number = |prompt: &Value| prompt.as_str().expect("text").parse::<f64>().expect("a number");
    let pairs = images(body).into_iter().zip(prompts);
    pairs
        .map(|(image, prompt)| 10.0 * f64::from(image.get_pixel(0, 0).0[0]) + number(prompt))
        .collect()
}

#[test]
fn a_request_is_what_the_protocol_says() {
    let service = Service::start(vec![reply(r#"{"scores": [1, 2]}"#)]);
    let faint = RgbaImage::from_pixel(2, 1, Rgba([10, 20, 30, 51]));
    let noise = RgbImage::from_fn(3, 5, |x, y| Rgb([(x * 80) as u8, (y * 60) as u8, 7]));
    let scorer = scorer(&settings(&service.url()), &["a cat", "ein Hündchen"]);
    let scores = scorer.score(&[faint.into(), noise.clone().into()], &[1, 0]);
    assert_eq!(scores.expect("scores"), [1.0, 2.0]);

    let request = &service.received()[0];
    let head = request.head.to_ascii_lowercase();
    assert!(head.starts_with("post /score http/1.1\r\n"), "{head}");
    assert!(head.contains("\r\ncontent-type: application/json\r\n"), "{head}");
    assert!(head.contains(&format!("\r\nhost: {}\r\n", service.address)), "{head}");
    assert!(!head.contains("authorization"), "{head}");
    let keys: Vec<&String> = request.body.as_object().expect("an object").keys().collect();
    assert_eq!(keys, ["version", "reward", "prompts", "images"]);
    assert_eq!(request.body["version"], json!(1));
    assert_eq!(request.body["reward"], json!("judge"));
    assert_eq!(request.body["prompts"], json!(["ein Hündchen", "a cat"]));
    // 0.2·10 + 0.8·255 = 206, 0.2·20 + 204 = 208, 0.2·30 + 204 = 210.
    let over_white = RgbImage::from_pixel(2, 1, Rgb([206, 208, 210]));
    assert_eq!(images(&request.body), [over_white, noise]);
}

#[test]
fn batches_come_in_order_and_change_nothing() {
    let levels = [5, 4, 3, 2, 1];
    let prompts = [2, 0, 1, 1, 2];
    let expected = [57.0, 49.0, 38.0, 28.0, 17.0];
    for (batch, sizes) in [
        (1, &[1, 1, 1, 1, 1][..]),
        (2, &[2, 2, 1]),
        (3, &[3, 2]),
        (5, &[5]),
        (1024, &[5]),
    ] {
        let service = Service::start(sizes.iter().map(|_| Answer::Scores(level_and_prompt)).collect());
        let settings = RemoteSettings {
            batch,
            ..settings(&service.url())
        };
        let scores = scorer(&settings, &["9", "8", "7"]).score(&greys(&levels), &prompts);
        assert_eq!(scores.expect("scores"), expected, "batches of {batch}");
        let received: Vec<usize> = service
            .received()
            .iter()
            .map(|request| images(&request.body).len())
            .collect();
        assert_eq!(received, sizes);
    }
}

/// Samples are counted from the beginning of the call, not of the batch.
#[test]
fn a_bad_score_in_a_later_batch_is_found_again() {
    let service = Service::start(vec![reply(r#"{"scores": [1, 2]}"#), reply(r#"{"scores": [3, NaN]}"#)]);
    let settings = RemoteSettings {
        batch: 2,
        ..settings(&service.url())
    };
    let scores = scorer(&settings, &["a", "b"]).score(&greys(&[0; 5]), &[0, 0, 0, 1, 0]);
    let (found, _, message) = failure(scores);
    assert!(
        matches!(
            found,
            RemoteFailure::NotANumber {
                sample: 3,
                prompt: 1,
                ..
            }
        ),
        "{message}"
    );
    assert_eq!(service.connections(), 2);
}

#[test]
fn what_may_pass_is_asked_again() {
    let fine = || reply(r#"{"scores": [0.25]}"#);
    let status = |status| answer(status, "", "");
    let cut = || Answer::Bytes(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{\"scores\": [0.25]}".to_vec());
    for answers in [
        vec![
            status("503 Service Unavailable"),
            status("503 Service Unavailable"),
            fine(),
        ],
        vec![
            status("500 Internal Server Error"),
            status("429 Too Many Requests"),
            fine(),
        ],
        vec![status("408 Request Timeout"), fine()],
        // Closed without a word, in the middle of the answer, and reset.
        vec![Answer::Bytes(Vec::new()), fine()],
        vec![cut(), cut(), fine()],
        vec![Answer::Reset, fine()],
    ] {
        let expected = answers.len();
        let (scores, connections) = ask(answers);
        assert_eq!(scores.expect("scores"), [0.25]);
        assert_eq!(connections, expected);
    }
}

/// The service would answer the same again, so asking again would only take longer.
#[test]
fn what_does_not_pass_is_told_at_once() {
    for (bad, expected) in [
        (
            answer("400 Bad Request", "", "{\"error\": \"no such reward\"}"),
            "status 400: no such reward",
        ),
        (
            answer("401 Unauthorized", "", ""),
            "status 401; see the service's own messages",
        ),
        (
            answer("404 Not Found", "", "<h1>Not\r\nFound</h1>"),
            "status 404: <h1>Not Found</h1>",
        ),
        (
            answer("413 Content Too Large", "", "too large"),
            "status 413: too large",
        ),
        (
            answer(
                "302 Found",
                "Location: http://user:secret@elsewhere/?key=secret\r\n",
                "",
            ),
            "redirects (status 302) to http://***@elsewhere/?***;",
        ),
        (answer("204 No Content", "", ""), "no JSON object"),
        (reply("{\"scores\": [0.5, 0.5]}"), "2 scores for 1 pictures"),
        (
            reply("{\"scores\": [\"0.5\"]}"),
            "gave \"0.5\" as the score of sample 0 (prompt 0)",
        ),
        (reply("{\"scores\": [null]}"), "gave null as"),
        (reply("{\"scores\": [0.5"), "EOF"),
        (
            Answer::Bytes(b"SSH-2.0-OpenSSH_9.6\r\n\r\n".to_vec()),
            "cannot be talked to: protocol",
        ),
    ] {
        // A second answer is there, and not asked for.
        let (scores, connections) = ask(vec![bad, reply("{\"scores\": [0.25]}")]);
        let (failure, attempts, message) = failure(scores);
        assert!(message.contains(expected), "{message}, expected {expected}");
        assert!(
            message.starts_with("reward `judge`: the service at http://127.0.0.1:"),
            "{message}"
        );
        assert!(!failure.may_pass() && !message.contains("secret"), "{message}");
        assert_eq!((attempts, connections), (1, 1), "{message}");
    }
}

#[test]
fn repetitions_end() {
    let busy = |text: &str| answer("503 Service Unavailable", "", &format!("{{\"error\": \"{text}\"}}"));
    let (scores, connections) = ask(vec![
        busy("first"),
        busy("second"),
        busy("third"),
        reply("{\"scores\": [1]}"),
    ]);
    let (_, attempts, message) = failure(scores);
    assert!(message.ends_with("status 503: third (after 3 attempts)"), "{message}");
    assert_eq!((attempts, connections), (3, 3));

    let service = Service::start(vec![busy("only"), reply("{\"scores\": [1]}")]);
    let once = RemoteSettings {
        retries: 0,
        ..settings(&service.url())
    };
    let (_, attempts, _) = failure(scorer(&once, &["a"]).score(&greys(&[0]), &[0]));
    assert_eq!(attempts, 1);
}

/// An hour is asked for. The limit of two milliseconds holds, or the test would not end; that shorter wishes are
/// followed is pinned where waits are computed.
#[test]
fn a_wish_to_wait_is_followed_within_the_limit() {
    let wait = |wish: &str| answer("429 Too Many Requests", &format!("Retry-After: {wish}\r\n"), "");
    let (scores, connections) = ask(vec![
        wait("3600"),
        wait("Fri, 31 Dec 2100 23:59:59 GMT"),
        reply("{\"scores\": [1]}"),
    ]);
    assert_eq!(scores.expect("scores"), [1.0]);
    assert_eq!(connections, 3);
    let (scores, _) = ask(vec![wait("7"), wait("7"), wait("7")]);
    let (found, ..) = failure(scores);
    let RemoteFailure::Status { retry_after, .. } = found else {
        panic!("another failure: {found}");
    };
    assert_eq!(retry_after, Some(7));
}

#[test]
fn replies_may_be_chunked_or_end_with_the_connection() {
    for bytes in [
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nb\r\n{\"scores\": \r\n7\r\n[0.25]}\r\n0\r\n\r\n",
        "HTTP/1.0 200 OK\r\n\r\n{\"scores\": [0.25]}",
        "HTTP/1.1 201 Created\r\nConnection: close\r\n\r\n\n {\"scores\":[25e-2]}\n",
    ] {
        let (scores, _) = ask(vec![Answer::Bytes(bytes.as_bytes().to_vec())]);
        assert_eq!(scores.expect("scores"), [0.25]);
    }
}

#[test]
fn no_more_of_a_reply_is_read_than_scores_can_take() {
    let limit = usize::try_from(LARGEST_REPLY).expect("a size");
    let padded = |length: usize| format!("{{\"scores\": [0.25]}}{}", " ".repeat(length - 18));
    let (scores, _) = ask(vec![reply(&padded(limit))]);
    assert_eq!(scores.expect("scores"), [0.25]);
    let endless = format!("HTTP/1.1 200 OK\r\n\r\n{}", padded(2 * limit));
    for long in [reply(&padded(limit + 1)), Answer::Bytes(endless.into_bytes())] {
        let (found, attempts, message) = failure(ask(vec![long]).0);
        assert!(
            matches!(found, RemoteFailure::TooLong { limit: LARGEST_REPLY }),
            "{message}"
        );
        assert_eq!(attempts, 1);
    }
}

/// The limit is one for the whole attempt: a service that sends a little now and then does not extend it.
#[test]
fn a_dripping_reply_ends_at_the_time_limit() {
    let service = Service::start(vec![Answer::Drip]);
    let settings = RemoteSettings {
        timeout_seconds: 0.1,
        retries: 0,
        ..settings(&service.url())
    };
    let (found, _, message) = failure(scorer(&settings, &["a"]).score(&greys(&[0]), &[0]));
    assert!(matches!(found, RemoteFailure::TimedOut { .. }), "{message}");
}

#[test]
fn a_service_without_tls_is_told() {
    let service = Service::start(vec![Answer::NoTls]);
    let settings = settings(&format!("https://{}/", service.address));
    let (found, attempts, message) = failure(scorer(&settings, &["a"]).score(&greys(&[0]), &[0]));
    assert!(matches!(found, RemoteFailure::Transport { .. }), "{message}");
    assert!(message.contains("http or https"), "{message}");
    assert_eq!(attempts, 1);
}

#[test]
fn a_check_asks_once_for_no_scores() {
    let check = |answers| {
        let service = Service::start(answers);
        let checked = RemoteScore::new("judge", &settings(&service.url()))
            .expect("settings")
            .check();
        (checked, service)
    };
    let (checked, service) = check(vec![reply("{\"scores\": []}")]);
    checked.expect("a service");
    let expected = json!({ "version": 1, "reward": "judge", "prompts": [], "images": [] });
    assert_eq!(service.received()[0].body, expected);

    let (checked, _) = check(vec![reply("{\"scores\": [0.5]}")]);
    assert!(failure(checked).2.contains("gave 1 scores for 0 pictures"));
    let (checked, service) = check(vec![
        answer("503 Service Unavailable", "", "loading"),
        reply("{\"scores\": []}"),
    ]);
    assert!(failure(checked).2.ends_with("status 503: loading"));
    assert_eq!(service.connections(), 1);

    // Nobody listens where a service was.
    let gone = Service::start(vec![]).url();
    let checked = RemoteScore::new("judge", &settings(&gone)).expect("settings").check();
    let (found, attempts, message) = failure(checked);
    assert!(matches!(found, RemoteFailure::Unreachable { .. }), "{message}");
    assert_eq!(attempts, 1);
}

/// Calls that make no sense are refused before anything is sent; no pictures need no service.
#[test]
fn nothing_is_sent_without_need() {
    let gone = Service::start(vec![]).url();
    let scorer = scorer(&settings(&gone), &["a"]);
    assert_eq!(scorer.score(&[], &[]).expect("no scores"), Vec::<f64>::new());
    let error = scorer.score(&greys(&[0]), &[1]).expect_err("an unknown prompt");
    assert!(matches!(error, RewardError::UnknownPrompt { .. }), "{error}");
    let error = scorer.score(&greys(&[0]), &[]).expect_err("unequal lengths");
    assert!(matches!(error, RewardError::Lengths { .. }), "{error}");
    let error = scorer
        .score(&[RgbImage::new(0, 4).into()], &[0])
        .expect_err("no pixels");
    assert!(matches!(error, RewardError::Picture { sample: 0, .. }), "{error}");
}
