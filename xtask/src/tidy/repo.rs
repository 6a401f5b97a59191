//! The files of the project, in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

/// Folders that are not ours to check: what git keeps, what is built, what the demo writes.
const SKIPPED: [&str; 3] = [".git", "target", "isles-data"];

/// Something wrong, at a line of a file; line 0 is the file as a whole.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) path: String,
    pub(super) line: usize,
    pub(super) what: String,
}

impl Finding {
    pub(super) fn new(path: &str, line: usize, what: impl Into<String>) -> Finding {
        Finding { path: path.into(), line, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.what),
            line => write!(f, "{}:{line}: {}", self.path, self.what),
        }
    }
}

/// All text files, by their path from the root, with `/` between its parts.
#[derive(Debug, Default)]
pub(super) struct Repo {
    files: BTreeMap<String, String>,
    /// Files that are no text, and every folder.
    others: BTreeSet<String>,
}

impl Repo {
    pub(super) fn read(root: &Path) -> io::Result<Repo> {
        let mut repo = Repo::default();
        repo.read_folder(root, "")?;
        Ok(repo)
    }

    fn read_folder(&mut self, folder: &Path, prefix: &str) -> io::Result<()> {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let name = entry.file_name().to_string_lossy().into_owned();
            let path = format!("{prefix}{name}");
            let kind = entry.file_type()?;
            if kind.is_dir() && !SKIPPED.contains(&name.as_str()) {
                self.others.insert(path.clone());
                self.read_folder(&entry.path(), &format!("{path}/"))?;
            } else if kind.is_file() && name != SKIPPED[0] {
                self.read_file(&entry.path(), path)?;
            }
        }
        Ok(())
    }

    fn read_file(&mut self, file: &Path, path: String) -> io::Result<()> {
        match String::from_utf8(fs::read(file)?) {
            Ok(text) => {
                self.files.insert(path, text);
            }
            Err(_) => {
                self.others.insert(path);
            }
        }
        Ok(())
    }

    /// Files in path order.
    pub(super) fn files(&self) -> impl Iterator<Item = (&str, &str)> {
        self.files.iter().map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Files whose names end in `.ending`.
    pub(super) fn files_of(&self, ending: &str) -> impl Iterator<Item = (&str, &str)> {
        self.files().filter(move |(path, _)| path.rsplit_once('.').is_some_and(|(_, of)| of == ending))
    }

    pub(super) fn text(&self, path: &str) -> Option<&str> {
        self.files.get(path).map(String::as_str)
    }

    /// Whether there is a file or folder of this path.
    pub(super) fn has(&self, path: &str) -> bool {
        self.files.contains_key(path) || self.others.contains(path)
    }
}

/// Lines with their numbers, from 1.
pub(super) fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.split('\n'))
}

#[cfg(test)]
impl Repo {
    /// A repository of these files.
    pub(super) fn of(files: &[(&str, &str)]) -> Repo {
        let mut repo = Repo::default();
        for (path, text) in files {
            repo.files.insert((*path).into(), (*text).into());
            let folders = path.match_indices('/').map(|(at, _)| path[..at].to_string());
            repo.others.extend(folders);
        }
        repo
    }
}

/// The findings of a rule, as text.
#[cfg(test)]
pub(super) fn found(rule: fn(&Repo) -> Vec<Finding>, files: &[(&str, &str)]) -> Vec<String> {
    rule(&Repo::of(files)).iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repository_is_read_with_its_folders() {
        let repo = Repo::read(Path::new(env!("CARGO_MANIFEST_DIR"))).expect("this crate can be read");
        assert!(repo.text("src/tidy/repo.rs").is_some_and(|text| text.contains("a_repository_is_read")));
        assert!(repo.has("src/tidy") && !repo.has("src/nothing"));
    }
}
