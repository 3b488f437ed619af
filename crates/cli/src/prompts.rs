//! Prompts on the command line or in a file.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use trainer::config::read_prompts;

/// `--prompt` and `--prompts`.
#[derive(Args)]
pub(crate) struct PromptArguments {
    /// A prompt; may be given several times
    #[arg(long = "prompt", value_name = "TEXT", conflicts_with = "file")]
    texts: Vec<String>,
    /// Text file with one prompt per line
    #[arg(long = "prompts", value_name = "FILE")]
    file: Option<PathBuf>,
}

impl PromptArguments {
    /// The prompts, in order; none if none were given.
    ///
    /// # Errors
    ///
    /// The file cannot be read or is no prompt file.
    pub(crate) fn read(&self) -> Result<Vec<String>> {
        match &self.file {
            Some(path) => Ok(read_prompts(path)?.prompts),
            None => Ok(self.texts.clone()),
        }
    }

    /// As [`Self::read`], where at least one is needed.
    ///
    /// # Errors
    ///
    /// As for [`Self::read`], or there is none.
    pub(crate) fn read_some(&self) -> Result<Vec<String>> {
        let prompts = self.read()?;
        if prompts.is_empty() {
            bail!("there is no prompt; give one or more with --prompt TEXT, or a file of them with --prompts FILE");
        }
        Ok(prompts)
    }
}
