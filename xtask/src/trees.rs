//! Folder trees: what they hold and how two of them differ.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// How a copy differs from its source, as paths relative to both.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Differences {
    pub(crate) missing: Vec<PathBuf>,
    pub(crate) changed: Vec<PathBuf>,
    pub(crate) unknown: Vec<PathBuf>,
}

/// Compares two folders file by file and byte by byte.
pub(crate) fn differences(source: &Path, copy: &Path) -> Result<Differences> {
    let (in_source, in_copy) = (files(source, &[])?, files(copy, &[])?);
    let mut changed = Vec::new();
    for path in in_source.intersection(&in_copy) {
        if read(&source.join(path))? != read(&copy.join(path))? {
            changed.push(path.clone());
        }
    }
    Ok(Differences {
        missing: in_source.difference(&in_copy).cloned().collect(),
        changed,
        unknown: in_copy.difference(&in_source).cloned().collect(),
    })
}

/// All files below `folder`, relative to it; none when it does not exist. Folders whose name is in `skipped` are left
/// out.
pub(crate) fn files(folder: &Path, skipped: &[&str]) -> Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    let mut pending = vec![folder.to_owned()];
    while let Some(current) = pending.pop() {
        if !current.exists() {
            continue;
        }
        for entry in fs::read_dir(&current).with_context(|| format!("cannot list {}", current.display()))? {
            let entry = entry?;
            let path = entry.path();
            if !entry.file_type()?.is_dir() {
                found.insert(path.strip_prefix(folder)?.to_owned());
            } else if !skipped.iter().any(|name| entry.file_name() == *name) {
                pending.push(path);
            }
        }
    }
    Ok(found)
}

/// Copies one file and creates the folders it needs.
pub(crate) fn copy(source: &Path, target: &Path) -> Result<()> {
    if let Some(folder) = target.parent() {
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    }
    // Not `fs::copy`: that would carry over the permissions, and the source may be read-only.
    fs::write(target, read(source)?).with_context(|| format!("cannot write {}", target.display()))
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use xshell::Shell;

    use super::*;

    #[test]
    fn every_kind_of_difference_is_named() {
        let shell = Shell::new().unwrap();
        let scratch = shell.create_temp_dir().unwrap();
        let (source, target) = (scratch.path().join("source"), scratch.path().join("target"));
        for (path, content) in [
            ("source/same", "1"),
            ("source/deep/changed", "2"),
            ("source/deep/missing", "3"),
        ] {
            shell.write_file(scratch.path().join(path), content).unwrap();
        }
        for (path, content) in [
            ("target/same", "1"),
            ("target/deep/changed", "4"),
            ("target/unknown", "5"),
        ] {
            shell.write_file(scratch.path().join(path), content).unwrap();
        }

        let expected = Differences {
            missing: vec!["deep/missing".into()],
            changed: vec!["deep/changed".into()],
            unknown: vec!["unknown".into()],
        };
        assert_eq!(differences(&source, &target).unwrap(), expected);

        for path in ["deep/missing", "deep/changed"] {
            copy(&source.join(path), &target.join(path)).unwrap();
        }
        let expected = Differences {
            unknown: vec!["unknown".into()],
            ..Differences::default()
        };
        assert_eq!(differences(&source, &target).unwrap(), expected);
    }

    #[test]
    fn a_folder_that_does_not_exist_is_empty() {
        assert!(files(Path::new("no such folder"), &[]).unwrap().is_empty());
    }
}
