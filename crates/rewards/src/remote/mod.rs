//! Any HTTP service as a reward: pictures and prompts go out as JSON, scores come back.
//!
//! `docs/remote-scorer.md` specifies the protocol, and `examples/reward_server.py` is a complete service. Nothing that
//! comes back is executed or guessed at: a reply is a list of as many finite JSON numbers as there were pictures, or the
//! call fails. A failure that may pass is repeated a bounded number of times, after waits that double up to a limit;
//! whatever the service would answer again is told at once.

mod failure;
mod protocol;
mod settings;

use std::fmt;
use std::thread;

use rayon::prelude::*;
use ureq::http::header::{CONTENT_TYPE, LOCATION, RETRY_AFTER};
use ureq::http::{HeaderMap, HeaderName};
use ureq::{Agent, Body};

pub use self::failure::RemoteFailure;
use self::failure::quotation;
pub use self::protocol::{LARGEST_REPLY, VERSION};
pub use self::settings::RemoteSettings;
use self::settings::{Endpoint, Patience, masked};
use crate::error::RewardError;
use crate::pictures::Picture;
use crate::scorer::{Scorer, TruncationReport, check_call, check_scores};

/// A service as a reward.
///
/// Calls are made one after the other, in the order of the pictures, each over a connection of its own: a connection
/// kept from the last iteration would most likely have been closed by the service. The proxies that the environment
/// may name are not used; the pictures go to the address in the settings and nowhere else.
///
/// # Example
///
/// ```no_run
/// use image::RgbImage;
/// use rewards::Scorer;
/// use rewards::remote::{RemoteScore, RemoteSettings};
///
/// let mut scorer = RemoteScore::new("judge", &RemoteSettings::new("http://localhost:8000/"))?;
/// scorer.check()?;
/// scorer.prepare(&["a red fox".to_owned()])?;
/// let scores = scorer.score(&[RgbImage::new(64, 64).into()], &[0])?;
/// # Ok::<(), rewards::RewardError>(())
/// ```
pub struct RemoteScore {
    name: String,
    endpoint: Endpoint,
    patience: Patience,
    batch: usize,
    agent: Agent,
    prompts: Vec<String>,
}

impl RemoteScore {
    /// A reward of this name. Nothing is sent yet; see [`RemoteScore::check`].
    ///
    /// # Errors
    ///
    /// The address is none, a number is out of its range, or an environment variable that the settings name is not set.
    pub fn new(name: &str, settings: &RemoteSettings) -> Result<Self, RewardError> {
        let wrong = |why| RewardError::Spec {
            scorer: name.to_owned(),
            why,
        };
        let patience = Patience::new(settings).map_err(wrong)?;
        let config = Agent::config_builder()
            .timeout_global(Some(patience.timeout))
            .http_status_as_error(false)
            .max_redirects(0)
            .max_redirects_will_error(false)
            .max_idle_connections(0)
            .proxy(None)
            .user_agent("treegrpo");
        Ok(Self {
            name: name.to_owned(),
            endpoint: Endpoint::new(settings, |variable| std::env::var_os(variable)).map_err(wrong)?,
            patience,
            batch: settings.checked_batch().map_err(wrong)?,
            agent: config.build().into(),
            prompts: Vec::new(),
        })
    }

    /// Asks the service once, without a repetition, for the scores of no pictures. It tells before a long run whether
    /// the service is there and follows the protocol.
    ///
    /// # Errors
    ///
    /// The call fails, or the answer is not an empty list of scores.
    pub fn check(&self) -> Result<(), RewardError> {
        self.call(&[], &[], 0, 0).map(drop)
    }

    /// The scores of the pictures of one call; the first of them is sample number `first`.
    fn call(
        &self,
        pictures: &[Picture],
        prompts: &[usize],
        first: usize,
        retries: u32,
    ) -> Result<Vec<f64>, RewardError> {
        let request = self.request(pictures, prompts, first)?;
        let mut attempts = 1;
        loop {
            let reply = self.post(&request);
            match reply.and_then(|body| protocol::scores(&body, prompts, first, |text| self.quote(text))) {
                Ok(scores) => return Ok(scores),
                Err(failure) if failure.may_pass() && attempts <= retries => {
                    thread::sleep(self.patience.wait(attempts, failure.retry_after()));
                    attempts += 1;
                }
                Err(source) => {
                    return Err(RewardError::Remote {
                        scorer: self.name.clone(),
                        url: self.endpoint.shown.clone(),
                        attempts,
                        source,
                    });
                }
            }
        }
    }

    fn request(&self, pictures: &[Picture], prompts: &[usize], first: usize) -> Result<Vec<u8>, RewardError> {
        let images: Vec<_> = pictures.par_iter().map(protocol::encode).collect();
        let images = images
            .into_iter()
            .zip(prompts)
            .enumerate()
            .map(|(place, (image, prompt))| {
                image.map_err(|error| RewardError::Picture {
                    scorer: self.name.clone(),
                    sample: first + place,
                    prompt: *prompt,
                    why: format!("could not be written as PNG: {error}"),
                })
            });
        let images: Vec<String> = images.collect::<Result<_, _>>()?;
        let texts: Vec<&str> = prompts.iter().map(|prompt| self.prompts[*prompt].as_str()).collect();
        Ok(protocol::request(&self.name, &texts, &images))
    }

    /// One attempt; the body of an answer with a status of success.
    fn post(&self, request: &[u8]) -> Result<Vec<u8>, RemoteFailure> {
        let failed = |error| RemoteFailure::from_client(error, self.patience.timeout, request.len());
        let mut call = self
            .agent
            .post(&self.endpoint.uri)
            .header(CONTENT_TYPE, "application/json");
        for (name, value) in &self.endpoint.headers {
            call = call.header(name, value);
        }
        let (head, body) = call.send(request).map_err(failed)?.into_parts();
        let status = head.status.as_u16();
        if head.status.is_redirection() {
            let to = self.quote(&masked(text(&head.headers, &LOCATION)));
            return Err(RemoteFailure::Redirect { status, to });
        }
        let body = read(body);
        if head.status.is_success() {
            return body.map_err(failed);
        }
        // The status says more than what may have gone wrong with the text behind it.
        Err(RemoteFailure::Status {
            status,
            text: self.quote(&protocol::error_text(&body.unwrap_or_default())),
            retry_after: text(&head.headers, &RETRY_AFTER).trim().parse().ok(),
        })
    }

    /// What the service wrote, for a message.
    fn quote(&self, text: &str) -> String {
        quotation(&self.endpoint.without_secrets(text))
    }
}

/// The whole body, if it is not too long.
fn read(body: Body) -> Result<Vec<u8>, ureq::Error> {
    body.into_with_config().limit(LARGEST_REPLY).read_to_vec()
}

/// A header's value, empty if there is none or it is no text.
fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> &'a str {
    headers
        .get(name)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
}

impl Scorer for RemoteScore {
    fn name(&self) -> &str {
        &self.name
    }

    fn description(&self) -> String {
        format!("scores of the service at {}", self.endpoint.shown)
    }

    fn prepare(&mut self, prompts: &[String]) -> Result<TruncationReport, RewardError> {
        self.prompts = prompts.to_vec();
        Ok(TruncationReport::without_limit(&self.name, prompts.len()))
    }

    fn score(&self, pictures: &[Picture], prompts: &[usize]) -> Result<Vec<f64>, RewardError> {
        check_call(&self.name, pictures, prompts, self.prompts.len())?;
        let mut scores = Vec::with_capacity(pictures.len());
        for (pictures, numbers) in pictures.chunks(self.batch).zip(prompts.chunks(self.batch)) {
            scores.extend(self.call(pictures, numbers, scores.len(), self.patience.retries)?);
        }
        check_scores(&self.name, scores, prompts)
    }
}

impl fmt::Debug for RemoteScore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteScore")
            .field("name", &self.name)
            .field("url", &self.endpoint.shown)
            .field("patience", &self.patience)
            .field("batch", &self.batch)
            .field("prompts", &self.prompts.len())
            .finish_non_exhaustive()
    }
}
