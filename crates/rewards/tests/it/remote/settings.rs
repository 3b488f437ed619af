//! What settings are read, refused, sent and hidden.

use rewards::remote::{RemoteScore, RemoteSettings};
use rewards::{RewardError, Scorer};
use serde_json::{Value, json};

use super::service::{Service, answer, reply};
use super::{failure, greys, scorer, settings};

/// cargo sets the variable for every test. Its value stands for a secret, which the service repeats in its answers.
#[test]
fn secrets_are_sent_and_never_shown() {
    const VARIABLE: &str = "CARGO_PKG_DESCRIPTION";
    let secret = std::env::var(VARIABLE).expect("the tests are run by cargo");
    let service = Service::start(vec![
        answer(
            "403 Forbidden",
            "",
            &format!("{{\"error\": \"{secret} is not known\"}}"),
        ),
        reply(&format!("{{\"scores\": \"{secret}\"}}")),
    ]);
    let settings = RemoteSettings {
        token_env: Some(VARIABLE.to_owned()),
        headers_env: [("X-Key".to_owned(), VARIABLE.to_owned())].into(),
        ..settings(&format!("{}?key=hidden", service.url()))
    };
    let scorer = scorer(&settings, &["a"]);
    for expected in ["status 403: *** is not known", "`scores` is \"***\", no list"] {
        let (failure, _, message) = failure(scorer.score(&greys(&[0]), &[0]));
        assert!(message.contains(expected), "{message}");
        assert!(message.contains("/score?***"), "{message}");
        for text in [message, format!("{failure:?}{scorer:?}{}", scorer.description())] {
            assert!(!text.contains(&secret) && !text.contains("hidden"), "{text}");
        }
    }
    let head = &service.received()[0].head;
    assert!(head.starts_with("POST /score?key=hidden "), "{head}");
    let head = head.to_ascii_lowercase();
    let secret = secret.to_ascii_lowercase();
    assert!(
        head.contains(&format!("\r\nauthorization: bearer {secret}\r\n")),
        "{head}"
    );
    assert!(head.contains(&format!("\r\nx-key: {secret}\r\n")), "{head}");
}

#[test]
fn settings_are_read_strictly() {
    let read = |json: Value| serde_json::from_value::<RemoteSettings>(json).map_err(|error| error.to_string());
    let url = "http://localhost:8000/";
    assert_eq!(read(json!({ "url": url })), Ok(RemoteSettings::new(url)));
    let full = json!({
        "url": url, "timeout_seconds": 5, "retries": 0, "backoff_seconds": 0.5, "backoff_limit_seconds": 2,
        "batch": 8, "token_env": "TOKEN", "headers_env": { "X-Key": "KEY" },
    });
    let settings = read(full).expect("settings");
    assert_eq!((settings.timeout_seconds, settings.batch), (5.0, 8));
    let written = serde_json::to_value(&settings).expect("a JSON form");
    assert_eq!(read(written), Ok(settings));
    assert!(read(json!({})).expect_err("no address").contains("url"));
    let misspelt = read(json!({ "url": url, "timeout": 5 })).expect_err("an unknown key");
    assert!(
        misspelt.contains("`timeout`") && misspelt.contains("timeout_seconds"),
        "{misspelt}"
    );
}

#[test]
fn settings_without_sense_are_refused_in_one_line() {
    let refused = |change: fn(&mut RemoteSettings), expected: &str| {
        let mut settings = RemoteSettings::new("http://localhost:8000/");
        change(&mut settings);
        let error = RemoteScore::new("judge", &settings).expect_err("refused");
        assert!(matches!(error, RewardError::Spec { .. }), "{error}");
        let message = error.to_string();
        assert!(
            message.starts_with("reward `judge`: ") && message.contains(expected) && !message.contains('\n'),
            "{message}"
        );
    };
    refused(|settings| settings.url = "localhost:8000".to_owned(), "has no scheme");
    refused(|settings| settings.url = "unix:///run/judge".to_owned(), "`url`");
    refused(|settings| settings.timeout_seconds = 0.0, "leaves no time");
    refused(|settings| settings.timeout_seconds = -1.0, "`timeout_seconds` is -1");
    refused(
        |settings| settings.timeout_seconds = f64::NAN,
        "`timeout_seconds` is NaN",
    );
    refused(
        |settings| settings.timeout_seconds = f64::INFINITY,
        "`timeout_seconds` is inf",
    );
    refused(|settings| settings.backoff_seconds = -0.5, "`backoff_seconds` is -0.5");
    refused(
        |settings| settings.backoff_limit_seconds = 1e9,
        "`backoff_limit_seconds` is 1000000000",
    );
    refused(|settings| settings.retries = 1000, "`retries` is 1000; at most 100");
    refused(|settings| settings.batch = 0, "`batch` is 0");
    refused(|settings| settings.batch = 100_000, "`batch` is 100000");
    refused(
        |settings| settings.token_env = Some("NO_SUCH_VARIABLE".to_owned()),
        "\"NO_SUCH_VARIABLE\", which is not set",
    );
}
