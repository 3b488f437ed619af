//! Prompt files: one prompt per line, read whole and checked before anything else happens.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use super::error::ConfigError;

/// A prompt file's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PromptFile {
    /// The file.
    pub path: PathBuf,
    /// The prompts, in order. Their index is their identity, so equal texts stay two prompts.
    pub prompts: Vec<String>,
    /// Blank lines that were passed over.
    pub blank_lines: usize,
    /// Prompts whose text an earlier one has too.
    pub duplicates: usize,
}

/// Reads a prompt file: UTF-8 with or without a byte-order mark, lines ended by `\n` or `\r\n` and by nothing else,
/// blank lines passed over, texts otherwise untouched.
///
/// # Errors
///
/// The file cannot be read, is not UTF-8 (with line and byte), or holds no prompt.
pub fn read_prompts(path: &Path) -> Result<PromptFile, ConfigError> {
    let shown = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let read_error = |why: String| ConfigError::Read {
        path: shown.clone(),
        why,
    };
    if path.is_dir() {
        return Err(read_error(
            "is a folder; name a text file with one prompt per line".into(),
        ));
    }
    let bytes =
        std::fs::read(path).map_err(|e| read_error(format!("{e}; name a text file with one prompt per line")))?;
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&bytes);
    if bytes.starts_with(&[0xFF, 0xFE]) || bytes.starts_with(&[0xFE, 0xFF]) {
        return Err(ConfigError::Prompt {
            path: shown,
            line: 1,
            why: "the file is UTF-16; save it as UTF-8".into(),
        });
    }
    let text = std::str::from_utf8(bytes).map_err(|e| {
        let at = e.valid_up_to();
        let line_start = bytes[..at].iter().rposition(|b| *b == b'\n').map_or(0, |n| n + 1);
        ConfigError::Prompt {
            path: shown.clone(),
            line: 1 + bytes[..at].iter().filter(|b| **b == b'\n').count(),
            why: format!(
                "byte {} of the line is {:#04x}, which is not UTF-8 (Windows-1252 or Latin-1?); save the file as UTF-8",
                at - line_start + 1,
                bytes[at]
            ),
        }
    })?;
    let mut seen = HashSet::new();
    let (mut prompts, mut blank_lines, mut duplicates) = (Vec::new(), 0, 0);
    let lines = text.strip_suffix('\n').unwrap_or(text);
    for line in lines.split('\n') {
        let line = line.strip_suffix('\r').unwrap_or(line);
        if line.trim().is_empty() {
            blank_lines += 1;
        } else {
            duplicates += usize::from(!seen.insert(line));
            prompts.push(line.to_owned());
        }
    }
    if prompts.is_empty() {
        return Err(read_error("holds no prompt; write one per line".into()));
    }
    Ok(PromptFile {
        path: shown,
        prompts,
        blank_lines,
        duplicates,
    })
}
