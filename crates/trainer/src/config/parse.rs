//! From text and overrides to the raw configuration.

use std::path::Path;

use super::ExperimentConfig;
use super::error::ConfigError;

/// Parses the text, applies the overrides, and refuses unknown keys with a line or the override at fault.
pub(super) fn parse(text: &str, path: &Path, settings: &[String]) -> Result<ExperimentConfig, ConfigError> {
    let syntax = |e: toml::de::Error| {
        let at = e.span().map_or(0, |span| span.start).min(text.len());
        ConfigError::Syntax {
            path: path.to_owned(),
            line: 1 + text[..at].bytes().filter(|b| *b == b'\n').count(),
            why: one_line(e.message()),
        }
    };
    if settings.is_empty() {
        return toml::from_str(text).map_err(syntax);
    }
    let mut table: toml::Table = toml::from_str(text).map_err(syntax)?;
    for setting in settings {
        let wrong = |why: String| ConfigError::Override {
            // What the user wrote may hold line breaks, and a message is one line.
            setting: setting.replace('\n', "\\n"),
            why,
        };
        let (key, value) = setting
            .split_once('=')
            .ok_or_else(|| wrong("write it as key=value, for example train.iterations=10".into()))?;
        let value: toml::Value = format!("value = {value}")
            .parse::<toml::Table>()
            .ok()
            .filter(|table| table.len() == 1)
            .and_then(|mut t| t.remove("value"))
            .unwrap_or_else(|| toml::Value::String(value.to_owned()));
        let mut path: Vec<&str> = key.trim().split('.').collect();
        let last = path
            .pop()
            .filter(|last| !last.is_empty())
            .ok_or_else(|| wrong("the key is empty".into()))?;
        let mut inner = &mut table;
        for part in path {
            inner = inner
                .entry(part)
                .or_insert_with(|| toml::Value::Table(toml::Table::new()))
                .as_table_mut()
                .ok_or_else(|| wrong(format!("`{part}` is a value, not a table")))?;
        }
        inner.insert(last.to_owned(), value);
        // Checked one by one, so that the message names the override that is at fault and not the file.
        if let Err(e) = table.clone().try_into::<ExperimentConfig>()
            && toml::from_str::<ExperimentConfig>(text).is_ok()
        {
            return Err(wrong(one_line(e.message())));
        }
    }
    table.try_into().map_err(|e| {
        // The table has lost the lines. No override is at fault, so the text has the same mistake, and its line.
        syntax(toml::from_str::<ExperimentConfig>(text).err().unwrap_or(e))
    })
}

/// A message without line breaks, with a hint where a known name is near.
fn one_line(message: &str) -> String {
    let mut flat = message.split_whitespace().collect::<Vec<_>>().join(" ");
    // The names of the program's own types say nothing to a user.
    for (jargon, plain) in [
        ("expected usize", "expected a whole number"),
        ("expected u64", "expected a whole number"),
        ("expected f64", "expected a number"),
        ("unit variant", "a plain name"),
        ("struct variant", "a table"),
    ] {
        flat = flat.replace(jargon, plain);
    }
    if let Some(at) = flat.find("expected struct ") {
        flat.replace_range(at.., "expected a table");
    }
    let quoted: Vec<&str> = flat.split('`').skip(1).step_by(2).collect();
    match (flat.starts_with("unknown"), quoted.split_first()) {
        (true, Some((unknown, known))) => {
            let near = known
                .iter()
                .map(|k| (strsim::jaro_winkler(unknown, k), k))
                .filter(|(similarity, _)| *similarity > 0.75)
                .max_by(|a, b| a.0.total_cmp(&b.0));
            match near {
                Some((_, near)) => format!("{flat}; did you mean `{near}`?"),
                None => flat,
            }
        }
        _ => flat,
    }
}
