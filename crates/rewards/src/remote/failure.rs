//! What can go wrong with a call, and which of it may be over a moment later.

use std::io::ErrorKind;
use std::time::Duration;

/// What happened at an attempt to have pictures scored by a service. Reads as the end of a sentence that begins with the
/// service's address.
#[derive(Debug, thiserror::Error)]
pub enum RemoteFailure {
    /// There was no connection.
    #[error("cannot be reached: {why}; see that the service runs and that `url` is right")]
    Unreachable {
        /// What the system says.
        why: String,
    },
    /// The connection ended before the answer was complete.
    #[error(
        "broke the connection off: {why}; see the service's own messages, and that it takes requests of {megabytes:.1} \
         MB (a lower `batch` makes them smaller)"
    )]
    Broken {
        /// What the system says.
        why: String,
        /// Size of the request in megabytes.
        megabytes: f64,
    },
    /// The answer was not complete in time.
    #[error("did not answer within {seconds} s; raise `timeout_seconds` or lower `batch`")]
    TimedOut {
        /// The limit.
        seconds: f64,
    },
    /// Something on the way that does not pass by itself: a certificate, an answer that is not HTTP.
    #[error("cannot be talked to: {why}; see that `url` names the service, with http or https as it expects")]
    Transport {
        /// What the HTTP client says.
        why: String,
    },
    /// The service refused, or could not score.
    #[error("answered with status {status}{}", said(text))]
    Status {
        /// The HTTP status.
        status: u16,
        /// What the service said about it, on one line and cut off; may be empty.
        text: String,
        /// How many seconds the service asked to wait, in `Retry-After`.
        retry_after: Option<u64>,
    },
    /// The service is elsewhere. Redirections are not followed, since they turn a POST into a GET and would hand the
    /// headers to a server that the configuration does not name.
    #[error("redirects (status {status}) to {to}; set `url` to where the service is")]
    Redirect {
        /// The HTTP status.
        status: u16,
        /// Where to; may be empty.
        to: String,
    },
    /// The answer is too long for so many scores.
    #[error(
        "answered with more than {limit} bytes, which cannot be a list of scores; see that `url` names the service"
    )]
    TooLong {
        /// The most that is read.
        limit: u64,
    },
    /// The answer cannot be read.
    #[error("answered with something that is not {{\"scores\": [..]}}: {why}, in `{start}`")]
    Malformed {
        /// What is wrong with it.
        why: String,
        /// How the answer begins.
        start: String,
    },
    /// Another number of scores than of pictures.
    #[error("gave {scores} scores for {samples} pictures; it must give one per picture, in their order")]
    Count {
        /// How many scores.
        scores: usize,
        /// How many pictures were sent.
        samples: usize,
    },
    /// A score that is no number.
    #[error("gave {value} as the score of sample {sample} (prompt {prompt}); every score must be a finite JSON number")]
    NotANumber {
        /// Place of the picture in the call of [`Scorer::score`](crate::Scorer::score).
        sample: usize,
        /// The prompt's number.
        prompt: usize,
        /// What stands in its place.
        value: String,
    },
}

impl RemoteFailure {
    /// Whether the same call may succeed a moment later: no connection, a broken one, no answer in time, and the
    /// statuses 408, 429 and from 500. Whatever the service would say again to the same call is not repeated.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Broken { .. } | Self::TimedOut { .. } => true,
            Self::Status { status, .. } => matches!(status, 408 | 429 | 500..),
            _ => false,
        }
    }

    /// How long the service asked to wait.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => retry_after.map(Duration::from_secs),
            _ => None,
        }
    }

    /// What the HTTP client met, at a request of so many bytes.
    pub(super) fn from_client(error: ureq::Error, timeout: Duration, bytes: usize) -> Self {
        match error {
            ureq::Error::Timeout(_) => Self::TimedOut {
                seconds: timeout.as_secs_f64(),
            },
            ureq::Error::BodyExceedsLimit(limit) => Self::TooLong { limit },
            ureq::Error::HostNotFound | ureq::Error::ConnectionFailed => Self::Unreachable { why: error.to_string() },
            ureq::Error::Io(error) => Self::from_system(&error, timeout, bytes),
            other => Self::Transport { why: other.to_string() },
        }
    }

    fn from_system(error: &std::io::Error, timeout: Duration, bytes: usize) -> Self {
        let why = error.to_string();
        match error.kind() {
            ErrorKind::TimedOut | ErrorKind::WouldBlock => Self::TimedOut {
                seconds: timeout.as_secs_f64(),
            },
            ErrorKind::BrokenPipe
            | ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionReset
            | ErrorKind::NotConnected
            | ErrorKind::UnexpectedEof
            | ErrorKind::WriteZero => Self::Broken {
                why,
                megabytes: bytes as f64 / 1e6,
            },
            // TLS reports what it does not accept as invalid data.
            ErrorKind::InvalidData | ErrorKind::InvalidInput | ErrorKind::PermissionDenied | ErrorKind::Unsupported => {
                Self::Transport { why }
            }
            // Among them a name that is not found, which has no kind of its own and passes when the name server is back.
            _ => Self::Unreachable { why },
        }
    }
}

fn said(text: &str) -> String {
    if text.is_empty() {
        "; see the service's own messages".to_owned()
    } else {
        format!(": {text}")
    }
}

/// The longest quotation from an answer, in characters.
const LONGEST_QUOTATION: usize = 300;

/// The beginning of a text on one line, for a message.
pub(super) fn quotation(text: &str) -> String {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control());
    let line = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LONGEST_QUOTATION) {
        Some((end, _)) => format!("{} …", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_failures_that_may_pass_are_repeated() {
        let status = |status| RemoteFailure::Status {
            status,
            text: String::new(),
            retry_after: None,
        };
        for (number, expected) in [
            (400, false),
            (401, false),
            (404, false),
            (408, true),
            (413, false),
            (429, true),
            (499, false),
            (500, true),
            (503, true),
            (599, true),
        ] {
            assert_eq!(status(number).may_pass(), expected, "{number}");
        }
        let from = |kind| RemoteFailure::from_client(ureq::Error::Io(kind), Duration::from_secs(1), 0).may_pass();
        for kind in [
            ErrorKind::ConnectionRefused,
            ErrorKind::ConnectionReset,
            ErrorKind::UnexpectedEof,
            ErrorKind::HostUnreachable,
            ErrorKind::TimedOut,
        ] {
            assert!(from(kind.into()), "{kind}");
        }
        // How a certificate arrives that is not trusted.
        assert!(!from(ErrorKind::InvalidData.into()));
    }

    #[test]
    fn quotations_are_one_short_line() {
        assert_eq!(
            quotation(" Traceback:\r\n  line\t1\u{1b}[0m\0 "),
            "Traceback: line 1 [0m"
        );
        let long = quotation(&"ä".repeat(1000));
        assert_eq!(long.chars().count(), LONGEST_QUOTATION + 2);
    }
}
