//! What a configuration says about a service, and what becomes of it once it is checked.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use ureq::http::header::{ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING};
use ureq::http::{HeaderName, HeaderValue, Uri};

/// The settings of a [`RemoteScore`](super::RemoteScore). Only `url` has no default.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoteSettings {
    /// Where the service listens, `http://` or `https://`. Name and password do not belong here but in an environment
    /// variable, since settings are stored with a run.
    pub url: String,
    /// How long one attempt may take, from looking up the host to the last byte of the answer, in seconds.
    #[serde(default = "defaults::timeout_seconds")]
    pub timeout_seconds: f64,
    /// How often a call is repeated after a failure that may pass, 0 to 100.
    #[serde(default = "defaults::retries")]
    pub retries: u32,
    /// The wait before the first repetition, in seconds; it doubles with each further one.
    #[serde(default = "defaults::backoff_seconds")]
    pub backoff_seconds: f64,
    /// The longest wait between two attempts, in seconds, whatever the service asks for.
    #[serde(default = "defaults::backoff_limit_seconds")]
    pub backoff_limit_seconds: f64,
    /// The most pictures in one call, 1 to 1024.
    #[serde(default = "defaults::batch")]
    pub batch: usize,
    /// Name of an environment variable; its value is sent as `Authorization: Bearer VALUE`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_env: Option<String>,
    /// Further headers: name of the header to name of the environment variable that holds its value.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers_env: BTreeMap<String, String>,
}

mod defaults {
    pub(super) fn timeout_seconds() -> f64 {
        60.0
    }

    pub(super) fn retries() -> u32 {
        5
    }

    pub(super) fn backoff_seconds() -> f64 {
        1.0
    }

    pub(super) fn backoff_limit_seconds() -> f64 {
        30.0
    }

    pub(super) fn batch() -> usize {
        32
    }
}

/// More repetitions than this help no service and hide that it is gone.
const MOST_RETRIES: u32 = 100;
/// With more pictures than this a call's answer might not fit into [`super::protocol::LARGEST_REPLY`].
const LARGEST_BATCH: usize = 1024;
const DAY_SECONDS: f64 = 86_400.0;
/// What the protocol itself decides.
const RESERVED_HEADERS: [HeaderName; 5] = [ACCEPT, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING];

impl RemoteSettings {
    /// The defaults for a service at this address.
    #[must_use]
    pub fn new(url: &str) -> Self {
        Self {
            url: url.to_owned(),
            timeout_seconds: defaults::timeout_seconds(),
            retries: defaults::retries(),
            backoff_seconds: defaults::backoff_seconds(),
            backoff_limit_seconds: defaults::backoff_limit_seconds(),
            batch: defaults::batch(),
            token_env: None,
            headers_env: BTreeMap::new(),
        }
    }

    /// The pictures of one call, or what is wrong with the setting.
    pub(super) fn checked_batch(&self) -> Result<usize, String> {
        match self.batch {
            1..=LARGEST_BATCH => Ok(self.batch),
            other => Err(format!("`batch` is {other}; give 1 to {LARGEST_BATCH} pictures a call")),
        }
    }
}

/// Where the calls go and what is sent along.
pub(super) struct Endpoint {
    pub(super) uri: Uri,
    /// The address as messages show it.
    pub(super) shown: String,
    /// Each marked as sensitive, so that no formatting shows its value.
    pub(super) headers: Vec<(HeaderName, HeaderValue)>,
    /// The values of the environment variables. A service may repeat them in what it answers.
    secrets: Vec<String>,
}

impl Endpoint {
    /// Checks the address and reads the environment; gives what is wrong as a sentence.
    pub(super) fn new(
        settings: &RemoteSettings,
        environment: impl Fn(&str) -> Option<OsString>,
    ) -> Result<Self, String> {
        let uri = parse_url(&settings.url)?;
        let mut endpoint = Self {
            uri,
            shown: masked(&settings.url),
            headers: Vec::new(),
            secrets: Vec::new(),
        };
        if let Some(variable) = &settings.token_env {
            let token = read(variable, "token_env", &environment)?;
            endpoint.add(AUTHORIZATION, &format!("Bearer {token}"), variable)?;
            endpoint.secrets.push(token);
        }
        for (name, variable) in &settings.headers_env {
            let header = HeaderName::try_from(name.as_str())
                .map_err(|_| format!("`headers_env` names {name:?}, which is no name of a header"))?;
            if RESERVED_HEADERS.contains(&header) {
                return Err(format!(
                    "`headers_env` sets {name}, which the protocol decides; remove it"
                ));
            }
            if endpoint.headers.iter().any(|(other, _)| *other == header) {
                return Err(format!("{name} is set twice; remove one of the settings"));
            }
            let value = read(variable, "headers_env", &environment)?;
            endpoint.add(header, &value, variable)?;
            endpoint.secrets.push(value);
        }
        Ok(endpoint)
    }

    fn add(&mut self, name: HeaderName, value: &str, variable: &str) -> Result<(), String> {
        let mut value = HeaderValue::from_str(value)
            .map_err(|_| format!("the environment variable {variable} holds characters that no header may have"))?;
        value.set_sensitive(true);
        self.headers.push((name, value));
        Ok(())
    }

    /// The text without the values that were read from the environment.
    pub(super) fn without_secrets(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in &self.secrets {
            text = text.replace(secret, "***");
        }
        text
    }
}

fn read(variable: &str, key: &str, environment: impl Fn(&str) -> Option<OsString>) -> Result<String, String> {
    let value = environment(variable).unwrap_or_default();
    if value.is_empty() {
        return Err(format!(
            "`{key}` names the environment variable {variable:?}, which is not set; set it, or remove the key"
        ));
    }
    value
        .into_string()
        .map_err(|_| format!("the environment variable {variable} is no text"))
}

fn parse_url(url: &str) -> Result<Uri, String> {
    let shown = masked(url);
    let wrong = |why: &str| format!("`url` {shown:?} {why}");
    if url.contains('@') {
        return Err(wrong(
            "holds a user's name or a password, which would be stored with the run; put them into an environment \
             variable and name it in `token_env` or `headers_env`",
        ));
    }
    let uri: Uri = url
        .parse()
        .map_err(|e| wrong(&format!("is no address ({e}); write it like http://localhost:8000/")))?;
    match uri.scheme_str() {
        Some("http" | "https") => {}
        Some(_) => return Err(wrong("must begin with http:// or https://")),
        None => return Err(wrong("has no scheme; write it like http://localhost:8000/")),
    }
    let host = uri.host().unwrap_or_default();
    if host.is_empty() {
        return Err(wrong("has no host; write it like http://localhost:8000/"));
    }
    // A port that is no number is otherwise taken for none.
    let has_port = uri.authority().is_some_and(|authority| authority.as_str() != host);
    if has_port && matches!(uri.port_u16(), None | Some(0)) {
        return Err(wrong("has a port that is no number from 1 to 65535"));
    }
    Ok(uri)
}

/// The address without what may be secret: user and password, and what stands behind a question mark.
///
/// It works on the text, because an address that cannot be parsed is shown too.
pub(super) fn masked(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let (user, rest) = rest.rsplit_once('@').map_or(("", rest), |(_, rest)| ("***@", rest));
    let (rest, query) = rest.split_once('?').map_or((rest, ""), |(rest, _)| (rest, "?***"));
    let separator = if scheme.is_empty() { "" } else { "://" };
    format!("{scheme}{separator}{user}{rest}{query}")
}

/// How long to wait for a service.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    pub(super) timeout: Duration,
    pub(super) retries: u32,
    backoff: Duration,
    limit: Duration,
}

impl Patience {
    /// Checks the numbers; gives what is wrong as a sentence.
    pub(super) fn new(settings: &RemoteSettings) -> Result<Self, String> {
        if settings.retries > MOST_RETRIES {
            return Err(format!(
                "`retries` is {}; at most {MOST_RETRIES} are allowed",
                settings.retries
            ));
        }
        if settings.timeout_seconds == 0.0 {
            return Err("`timeout_seconds` is 0, which leaves no time to answer; give more".to_owned());
        }
        Ok(Self {
            timeout: seconds("timeout_seconds", settings.timeout_seconds)?,
            retries: settings.retries,
            backoff: seconds("backoff_seconds", settings.backoff_seconds)?,
            limit: seconds("backoff_limit_seconds", settings.backoff_limit_seconds)?,
        })
    }

    /// The wait after so many failed attempts, at least 1: twice as long each time, at least as long as the service
    /// asked for, and never longer than the limit. It is not random, because one run has one caller.
    pub(super) fn wait(&self, failed: u32, asked: Option<Duration>) -> Duration {
        let factor = 2u32.checked_pow(failed - 1).unwrap_or(u32::MAX);
        let wait = self.backoff.saturating_mul(factor);
        wait.max(asked.unwrap_or_default()).min(self.limit)
    }
}

fn seconds(key: &str, value: f64) -> Result<Duration, String> {
    if (0.0..=DAY_SECONDS).contains(&value) {
        return Ok(Duration::from_secs_f64(value));
    }
    Err(format!(
        "`{key}` is {value}; give a number of seconds up to {DAY_SECONDS}, which is a day"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "s3cret";

    /// An environment with a token, an empty variable and one that no header can hold.
    fn environment(variable: &str) -> Option<OsString> {
        match variable {
            "TOKEN" => Some(SECRET.into()),
            "EMPTY" => Some("".into()),
            "LINES" => Some(format!("{SECRET}\nX-Other: 1").into()),
            _ => None,
        }
    }

    fn endpoint(change: impl FnOnce(&mut RemoteSettings)) -> Result<Endpoint, String> {
        let mut settings = RemoteSettings::new("http://localhost:8000/score");
        change(&mut settings);
        Endpoint::new(&settings, environment)
    }

    #[track_caller]
    fn refused(change: impl FnOnce(&mut RemoteSettings), expected: &str) {
        let message = endpoint(change).map(drop).expect_err("refused");
        assert!(message.contains(expected) && !message.contains('\n'), "{message}");
        assert!(!message.contains(SECRET), "{message}");
    }

    #[test]
    fn addresses_that_are_none_are_refused_without_showing_passwords() {
        for (url, expected) in [
            ("", "is no address"),
            ("http://", "is no address"),
            ("http://:8000/", "has no host"),
            ("http://a b/", "is no address"),
            ("http://localhost:port/", "has a port that is no number"),
            ("http://localhost:70000/", "has a port that is no number"),
            ("http://localhost:0/", "has a port that is no number"),
            ("http://[::1]:/", "has a port that is no number"),
            ("localhost:8000", "has no scheme"),
            ("/score", "has no scheme"),
            ("ftp://localhost/", "must begin with http"),
            ("file:///tmp/scores", "is no address"),
            ("http://me:s3cret@localhost/", "\"http://***@localhost/\""),
            ("http://me:s3cret/@localhost/", "\"http://***@localhost/\""),
            ("me:s3cret@localhost", "\"***@localhost\""),
            ("ftp://localhost/?key=s3cret", "\"ftp://localhost/?***\""),
        ] {
            refused(|settings| settings.url = url.to_owned(), expected);
        }
        for url in [
            "https://[::1]:8443/a?b=c",
            "http://localhost",
            "HTTP://judge.example:80",
        ] {
            assert!(endpoint(|settings| settings.url = url.to_owned()).is_ok(), "{url}");
        }
    }

    #[test]
    fn headers_come_from_the_environment_and_are_shown_nowhere() {
        let endpoint = endpoint(|settings| {
            settings.token_env = Some("TOKEN".to_owned());
            settings.headers_env = [("X-Key".to_owned(), "TOKEN".to_owned())].into();
        })
        .expect("an endpoint");
        let headers: Vec<_> = endpoint
            .headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_bytes()))
            .collect();
        assert_eq!(
            headers,
            [("authorization", &b"Bearer s3cret"[..]), ("x-key", &b"s3cret"[..])]
        );
        assert!(!format!("{:?}", endpoint.headers).contains(SECRET));
        assert_eq!(endpoint.without_secrets("no user s3cret here"), "no user *** here");

        let token = |variable: &str| {
            let variable = Some(variable.to_owned());
            move |settings: &mut RemoteSettings| settings.token_env = variable
        };
        refused(token("ABSENT"), "\"ABSENT\", which is not set");
        refused(token("EMPTY"), "\"EMPTY\", which is not set");
        refused(token("LINES"), "LINES holds characters");
        let header = |name: &str| {
            let table: BTreeMap<_, _> = [(name.to_owned(), "TOKEN".to_owned())].into();
            move |settings: &mut RemoteSettings| {
                settings.token_env = Some("TOKEN".to_owned());
                settings.headers_env = table;
            }
        };
        refused(header("Authorization"), "set twice");
        refused(header("content-length"), "the protocol decides");
        refused(header("two words"), "no name of a header");
    }

    #[test]
    fn waits_double_and_end_at_the_limit() {
        let mut settings = RemoteSettings::new("http://localhost/");
        settings.backoff_seconds = 0.5;
        settings.backoff_limit_seconds = 3.0;
        let patience = Patience::new(&settings).expect("numbers that make sense");
        let waits = [1, 2, 3, 4, 5, 100].map(|failed| patience.wait(failed, None).as_secs_f64());
        assert_eq!(waits, [0.5, 1.0, 2.0, 3.0, 3.0, 3.0]);
        // What the service asks for counts if it is longer, and the limit still holds.
        let asked = [0, 1, 2, 3600].map(|seconds| patience.wait(2, Some(Duration::from_secs(seconds))).as_secs_f64());
        assert_eq!(asked, [1.0, 1.0, 2.0, 3.0]);
    }
}
