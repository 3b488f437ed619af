//! A scorer as one command line argument.

use std::path::Path;

use anyhow::{Context, Result, bail};
use rewards::{RewardKind, RewardSpec};

/// Reads `[NAME=][KIND:]PATH[,clip=PATH][,vocabulary=PATH]`, `[NAME=]KIND` or `[NAME=]URL`. `flag` is the argument's own
/// name, for errors. The name is the kind's where none is given.
pub(super) fn parse(flag: &str, argument: &str) -> Result<(String, RewardSpec)> {
    parse_unchecked(argument).with_context(|| format!("{flag} {argument}"))
}

fn parse_unchecked(argument: &str) -> Result<(String, RewardSpec)> {
    let mut parts = argument.split(',');
    let first = parts.next().unwrap_or_default();
    // A URL or a path may hold `=` itself; a name may not hold what they begin with.
    let (name, value) = match first.split_once('=') {
        Some((name, value)) if !name.contains(['/', ':']) => (Some(name), value),
        _ => (None, first),
    };
    let mut spec = spec_of(name, value)?;
    for part in parts {
        match part.split_once('=') {
            Some(("clip", path)) => spec.clip = Some(path.into()),
            Some(("vocabulary", path)) => spec.vocabulary = Some(path.into()),
            _ => bail!("`{part}` is neither clip=PATH nor vocabulary=PATH"),
        }
    }
    let name = name.map_or_else(|| spec.kind.to_string(), str::to_owned);
    rewards::check_settings(&name, &spec)?;
    Ok((name, spec))
}

fn spec_of(name: Option<&str>, value: &str) -> Result<RewardSpec> {
    if value.starts_with("http://") || value.starts_with("https://") {
        return Ok(RewardSpec::remote(value));
    }
    if value == "jpeg" {
        return Ok(RewardSpec::new(RewardKind::JpegCompressibility));
    }
    let path = Path::new(value);
    if path.exists() {
        // A name that is itself a kind with a model says what the model computes.
        let named = name.and_then(|name| RewardKind::try_from(name.to_owned()).ok());
        let kind = named
            .filter(|kind| kind.model().is_some())
            .unwrap_or_else(|| RewardKind::of_checkpoint(path));
        return Ok(RewardSpec::new(kind).with_path(path));
    }
    if let Some((kind, path)) = value.split_once(':') {
        let kind = RewardKind::try_from(kind.to_owned()).map_err(anyhow::Error::msg)?;
        return Ok(RewardSpec::new(kind).with_path(path));
    }
    match RewardKind::try_from(value.to_owned()) {
        Ok(kind) => match kind.model() {
            None => Ok(RewardSpec::new(kind)),
            Some(model) => bail!("`{kind}` needs {model}; write it as NAME={kind}:PATH"),
        },
        // One word is more likely a misspelt kind than a file.
        Err(why) if name.is_none() && !value.contains(['/', '.']) => bail!(why),
        Err(_) => {
            let shown = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
            bail!(
                "there is no file or folder {}; name a scorer's model, such as the folder of a CLIP model",
                shown.display()
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_names_and_extras_are_told_apart() {
        let (name, spec) = parse("--scorer", "jpeg").expect("a kind");
        assert_eq!(
            (name.as_str(), spec.kind),
            ("jpeg-compressibility", RewardKind::JpegCompressibility)
        );
        let (name, spec) = parse("--scorer", "size=jpeg").expect("a named kind");
        assert_eq!((name.as_str(), spec.kind), ("size", RewardKind::JpegCompressibility));
        let (name, spec) = parse("--scorer", "beauty=aesthetic:no/head.pth,clip=no/clip").expect("a model");
        assert_eq!((name.as_str(), spec.kind), ("beauty", RewardKind::Aesthetic));
        assert_eq!(spec.path.as_deref(), Some(Path::new("no/head.pth")));
        assert_eq!(spec.clip.as_deref(), Some(Path::new("no/clip")));
        let (name, spec) = parse("--scorer", "http://127.0.0.1:1/a?b=c").expect("a service");
        assert_eq!((name.as_str(), spec.kind), ("remote", RewardKind::Remote));
    }

    #[test]
    fn what_makes_no_scorer_is_refused() {
        for (argument, part) in [
            ("sharpness", "`jpeg-compressibility`"),
            ("hps", "NAME=hps:PATH"),
            ("a=b:no/path", "no reward kind `b`"),
            ("clip=absent", "no file or folder"),
            ("jpeg,speed=3", "`speed=3`"),
            ("jpeg,clip=x", "means nothing"),
            ("aesthetic:no/head.pth", "needs `clip`"),
        ] {
            let why = format!("{:#}", parse("--scorer", argument).expect_err("refused"));
            assert!(why.contains(part), "{argument}: {why}");
        }
    }
}
