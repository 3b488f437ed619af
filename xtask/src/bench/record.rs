//! The times of a run of the benches beside those of the recorded run, as ratios.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result};
use serde_json::Value;

/// Where criterion leaves its estimates.
const ESTIMATES: &str = "target/criterion";
/// The recorded run: median nanoseconds by the bench's name.
const RECORDED: &str = "benches/recorded.json";

/// Prints a line per bench that ran since `begin`: its median, and its ratio to the recorded one. With `record` this run's
/// medians then take the place of the recorded ones.
pub(super) fn report(begin: SystemTime, record: bool) -> Result<()> {
    let mut recorded = read_recorded(Path::new(RECORDED))?;
    let medians = read_medians(Path::new(ESTIMATES), begin)?;
    println!("{:<60} {:>12} {:>8}", "bench", "median", "ratio");
    for (name, median) in &medians {
        let ratio = recorded
            .get(name)
            .map_or("new".to_owned(), |old| format!("{:.2}", median / old));
        println!("{name:<60} {:>12} {ratio:>8}", show(*median));
    }
    println!("the ratio is to the run recorded in {RECORDED}; it means something on the machine that recorded it only");
    if record {
        recorded.extend(medians);
        let text = serde_json::to_string_pretty(&recorded)? + "\n";
        fs::write(RECORDED, text).with_context(|| format!("{RECORDED} cannot be written"))?;
        println!("recorded in {RECORDED}");
    }
    Ok(())
}

fn read_recorded(path: &Path) -> Result<BTreeMap<String, f64>> {
    if !path.exists() {
        return Ok(BTreeMap::new());
    }
    let text = fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is not a table of times", path.display()))
}

/// The medians that were written since `begin`, in nanoseconds, by the benches' names.
fn read_medians(root: &Path, begin: SystemTime) -> Result<BTreeMap<String, f64>> {
    let mut medians = BTreeMap::new();
    for folder in new_folders(root)? {
        let (estimates, benchmark) = (folder.join("estimates.json"), folder.join("benchmark.json"));
        let (Ok(text), Ok(about)) = (fs::read_to_string(&estimates), fs::read_to_string(&benchmark)) else {
            continue;
        };
        if fs::metadata(&estimates)?.modified()? < begin {
            continue;
        }
        let (text, about): (Value, Value) = (serde_json::from_str(&text)?, serde_json::from_str(&about)?);
        let name = about["full_id"].as_str().unwrap_or_default().to_owned();
        if let Some(median) = text["median"]["point_estimate"].as_f64() {
            medians.insert(name, median);
        }
    }
    Ok(medians)
}

/// Every folder called `new` below `root`: criterion's name for the last run of a bench.
fn new_folders(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![root.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("{} cannot be read", folder.display()))? {
            let path = entry?.path();
            match path.is_dir() {
                true if path.ends_with("new") => found.push(path),
                true => open.push(path),
                false => {}
            }
        }
    }
    Ok(found)
}

fn show(nanoseconds: f64) -> String {
    match nanoseconds {
        n if n < 1e3 => format!("{n:.1} ns"),
        n if n < 1e6 => format!("{:.2} µs", n / 1e3),
        n if n < 1e9 => format!("{:.2} ms", n / 1e6),
        n => format!("{:.3} s", n / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_in_the_unit_that_fits() {
        assert_eq!(show(12.34), "12.3 ns");
        assert_eq!(show(12_340.0), "12.34 µs");
        assert_eq!(show(12_340_000.0), "12.34 ms");
        assert_eq!(show(1.5e9), "1.500 s");
    }
}
