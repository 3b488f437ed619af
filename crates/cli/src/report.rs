//! `treegrpo report`: a run as one page of HTML that needs no network and no other file.

mod history;
mod plot;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;

pub(crate) use self::history::History;
use self::plot::{Series, svg};
use crate::output;

/// Write report.html into the folder of a run, whether it is done or not
#[derive(Args)]
pub(crate) struct Report {
    /// Folder of the run
    #[arg(value_name = "RUN_DIR")]
    run: PathBuf,
}

impl Report {
    pub(crate) fn run(self) -> Result<()> {
        let page = write(&self.run, &History::read(&self.run)?)?;
        output::print(&format!("{}\n", page.display()))
    }
}

/// Writes the page and gives its path.
///
/// # Errors
///
/// A file of the run cannot be read, or the page cannot be written.
pub(crate) fn write(run: &Path, history: &History) -> Result<PathBuf> {
    let page = run.join("report.html");
    output::write(&page, html(run, history)?.as_bytes())?;
    Ok(page)
}

fn html(run: &Path, history: &History) -> Result<String> {
    let name = run.file_name().unwrap_or_default().to_string_lossy();
    let title = format!("treegrpo run {}", escape(&name));
    let done = history.iterations.last().map_or(0, |record| record.iteration);
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n<title>{title}</title>\n<style>{STYLE}</style>\n\
         <h1>{title}</h1>\n<p>{done} iterations, {} evaluations.</p>\n",
        history.evaluations.len()
    );
    results(&mut page, history)?;
    pictures(&mut page, run)?;
    plots(&mut page, history)?;
    if let Some(evaluation) = history.evaluations.last() {
        let settings = evaluation
            .value("settings")
            .map_or_else(String::new, |settings| format!("{settings:#}"));
        writeln!(
            page,
            "<h2>How the evaluations are made</h2>\n<pre>{}</pre>",
            escape(&settings)
        )?;
    }
    let config = run.join("config.toml");
    if config.exists() {
        let text = fs::read_to_string(&config).with_context(|| format!("{}: cannot be read", config.display()))?;
        writeln!(page, "<h2>Configuration</h2>\n<pre>{}</pre>", escape(&text))?;
    }
    page.push_str("</html>\n");
    Ok(page)
}

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#222}\
    table{border-collapse:collapse}td,th{padding:.2rem .8rem;text-align:right;border-bottom:1px solid #ddd}\
    td:first-child,th:first-child{text-align:left}.part td:first-child{padding-left:2rem}\
    pre{background:#f5f5f5;padding:1rem;overflow:auto;font-size:13px}img{max-width:100%}\
    .plots{display:grid;grid-template-columns:repeat(auto-fill,minmax(26rem,1fr));gap:1rem}svg{width:100%}";

/// Before and after, per reward and part of the evaluation prompts.
fn results(page: &mut String, history: &History) -> Result<()> {
    let results = history.results();
    if results.is_empty() {
        return Ok(());
    }
    page.push_str(
        "<h2>Evaluation before and after</h2>\n<table>\n<tr><th>reward</th><th>before</th><th>after</th><th>change</th>\
         <th>in standard errors</th></tr>\n",
    );
    for result in results {
        let (class, name) = match &result.part {
            Some(part) => ("part", escape(part)),
            None if result.trained => ("", format!("{} (trained)", escape(&result.reward))),
            None => ("", format!("{} (held out)", escape(&result.reward))),
        };
        let error = result.change.standard_error;
        let multiple = if error > 0.0 {
            format!("{:+.1}", result.change.mean / error)
        } else {
            "–".to_owned()
        };
        writeln!(
            page,
            "<tr class=\"{class}\"><td>{name}</td><td>{:.4} ± {:.4}</td><td>{:.4} ± {:.4}</td>\
             <td>{:+.4} ± {error:.4}</td><td>{multiple}</td></tr>",
            result.before.mean,
            result.before.standard_error,
            result.after.mean,
            result.after.standard_error,
            result.change.mean
        )?;
    }
    page.push_str("</table>\n<p>± is one standard error over prompts; changes are paired prompt by prompt.</p>\n");
    let ends = [
        ("before", history.evaluations.first()),
        ("after", history.evaluations.last()),
    ];
    for (when, record) in ends {
        if let Some(left_out) = record.and_then(|record| record.value("left_out")) {
            let left_out = escape(&left_out.to_string());
            writeln!(
                page,
                "<p>Prompts without a score {when}, counted from 0, which are in none of the means: {left_out}</p>"
            )?;
        }
    }
    Ok(())
}

/// The first and the last grid of sample pictures: the same prompts and the same noise.
fn pictures(page: &mut String, run: &Path) -> Result<()> {
    let folder = run.join("samples");
    let mut grids = Vec::new();
    if folder.is_dir() {
        let unreadable = || format!("{}: cannot be read", folder.display());
        for entry in folder.read_dir().with_context(unreadable)? {
            let path = entry.with_context(unreadable)?.path();
            if path.extension().is_some_and(|ending| ending == "png") {
                grids.push(path);
            }
        }
    }
    // Their names carry the iteration with leading zeros.
    grids.sort();
    let ends: Vec<&PathBuf> = match grids.as_slice() {
        [] => return Ok(()),
        [only] => vec![only],
        [first, .., last] => vec![first, last],
    };
    page.push_str("<h2>Samples, same prompts and same noise</h2>\n");
    for path in ends {
        let bytes = fs::read(path).with_context(|| format!("{}: cannot be read", path.display()))?;
        let name = escape(&path.file_stem().unwrap_or_default().to_string_lossy());
        writeln!(
            page,
            "<figure><img alt=\"{name}\" src=\"data:image/png;base64,{}\"><figcaption>{name}</figcaption></figure>",
            base64(&bytes)
        )?;
    }
    Ok(())
}

fn plots(page: &mut String, history: &History) -> Result<()> {
    page.push_str("<h2>Course of the run</h2>\n<div class=\"plots\">\n");
    for reward in history.rewards() {
        let training = history.iteration_series(&format!("reward/{reward}"));
        let (points, errors) = history.evaluation_series(&format!("eval/{reward}"));
        let series = [
            Series {
                name: "training prompts, stochastic",
                points: training,
                errors: Vec::new(),
            },
            Series {
                name: "evaluation ± standard error",
                points,
                errors,
            },
        ];
        page.push_str(&svg(&escape(&reward), &series));
    }
    let one = |name: &'static str| Series {
        name,
        points: history.iteration_series(name),
        errors: Vec::new(),
    };
    let from_one = |name: &'static str| {
        let mut series = one(name);
        series.points.iter_mut().for_each(|(_, ratio)| *ratio -= 1.0);
        series
    };
    let ratios = [from_one("ratio_min"), from_one("ratio_mean"), from_one("ratio_max")];
    page.push_str(&svg("ratio of the last update, minus 1", &ratios));
    for (title, name) in [
        ("approximate divergence from the rollout's policy", "approx_kl"),
        ("share of edges beyond the clip range", "clip_fraction"),
        ("norm of the gradient", "grad_norm"),
        ("change of the parameters", "parameter_change"),
        ("share of prompts whose leaves score alike", "zero_std_fraction"),
        ("effective children behind a value", "ess"),
    ] {
        page.push_str(&svg(title, &[one(name)]));
    }
    for (title, prefix, suffix) in [
        ("deviation of a reward within a prompt", "reward/", "/group_std"),
        ("share of the advantage", "reward/", "/advantage_share"),
        ("seconds per stage", "seconds/", ""),
    ] {
        let names = history.names(prefix, suffix);
        let series = names.iter().map(|name| Series {
            name,
            points: history.iteration_series(name),
            errors: Vec::new(),
        });
        page.push_str(&svg(title, &series.collect::<Vec<_>>()));
    }
    page.push_str("</div>\n");
    Ok(())
}

/// Text as HTML shows it literally, in elements and in attributes.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
}

/// RFC 4648. Pictures are the only use, so it is not worth a dependency.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = chunk.iter().fold(0_u32, |group, byte| group << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let letter = ALPHABET[(group >> (18 - 6 * place) & 63) as usize];
            text.push(if place <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_without_a_score_are_named_and_shares_are_drawn() {
        let folder = tempfile::tempdir().unwrap();
        let evaluation = |iteration: u64, rest: &str| {
            format!(
                "{{\"kind\":\"eval\",\"iteration\":{iteration},\"eval/r\":0.5,\"eval/r/standard_error\":0.1,\
                 \"eval/r/change\":0.2,\"eval/r/change_standard_error\":0.1{rest}}}\n"
            )
        };
        let iteration = "{\"kind\":\"iteration\",\"iteration\":1,\"reward/r/advantage_share\":0.7}\n";
        let lines = [
            evaluation(0, ",\"left_out\":{\"r\":[3,8]}"),
            iteration.to_owned(),
            evaluation(1, ""),
        ];
        fs::write(folder.path().join("metrics.jsonl"), lines.concat()).unwrap();
        let page = html(folder.path(), &History::read(folder.path()).unwrap()).unwrap();
        let named = "without a score before, counted from 0, which are in none of the means: {&quot;r&quot;:[3,8]}";
        assert!(page.contains(named), "{page}");
        assert!(!page.contains("without a score after"));
        assert!(page.contains("share of the advantage"));
    }

    #[test]
    fn bytes_are_encoded_as_the_standard_shows() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn markup_in_names_is_only_text() {
        assert_eq!(escape("<b a=\"1\">&"), "&lt;b a=&quot;1&quot;&gt;&amp;");
    }
}
