//! `treegrpo score --check`

use anyhow::{Result, bail};
use burn::tensor::Device;
use rewards::reference::check_reference;
use serde_json::json;

use crate::output;

/// Loads a scorer, runs the reference cases and prints what came out. Fails if the model is not a released one.
pub(super) fn run(argument: &str, as_json: bool, device: &Device) -> Result<()> {
    let (name, spec) = super::scorer::parse("--check", argument)?;
    let mut scorer = rewards::build(&name, &spec, device)?;
    let report = check_reference(spec.kind, scorer.as_mut())?;
    if as_json {
        let answer = json!({
            "scorer": scorer.description(),
            "parameters": report.size.parameters,
            "tensors": report.size.tensors,
            "known_as": report.known.map(|known| known.name),
            "expected_range": report.known.map(|known| known.band),
            "scores": report.scores,
            "passes": report.passes(),
        });
        output::print(&format!("{answer:#}\n"))?;
    } else {
        output::print(&format!("{}\n{report}\n", scorer.description()))?;
    }
    if !report.passes() {
        bail!("--check {argument}: the loaded model is not a released one; see the lines above");
    }
    Ok(())
}
