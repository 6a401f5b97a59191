//! Documents that name files which are there.

use super::repo::{Finding, Repo, lines};

/// Endings of files that a document may name.
const ENDINGS: [&str; 5] = [".rs", ".md", ".toml", ".sh", ".yml"];

/// Folders of the project; a path that begins with one of them is meant to exist.
const FOLDERS: [&str; 6] = ["crates/", "docs/", "scripts/", "xtask/", ".ci/", ".cargo/"];

/// Relative links lead to something, and to a heading that is there.
pub(super) fn links(repo: &Repo) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in repo.files_of("md") {
        for (line, content) in prose(text) {
            let targets =
                link_targets(content).filter(|target| !target.contains("://") && !target.starts_with("mailto:"));
            let dead = targets.filter(|target| !leads_somewhere(repo, path, target));
            findings.extend(dead.map(|target| Finding::new(path, line, format!("the link to {target} leads nowhere"))));
        }
    }
    findings
}

/// Paths in backticks exist, from the root or from the document's folder.
pub(super) fn paths(repo: &Repo) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in repo.files_of("md") {
        for (line, content) in prose(text) {
            let missing = spans(content).filter(|span| is_path(span)).filter(|span| !exists(repo, path, span));
            findings.extend(missing.map(|span| Finding::new(path, line, format!("{span} does not exist"))));
        }
    }
    findings
}

/// Lines outside of fenced blocks: what stands in those is output or a picture.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    lines(text).filter(move |(_, content)| {
        let fence = content.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// What the links of a line lead to.
fn link_targets(content: &str) -> impl Iterator<Item = &str> {
    content.split("](").skip(1).filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
}

/// The texts between backticks of a line.
pub(super) fn spans(content: &str) -> impl Iterator<Item = &str> {
    content.split('`').skip(1).step_by(2)
}

fn is_path(span: &str) -> bool {
    let plain = span.chars().all(|c| c.is_ascii_alphanumeric() || "._/-".contains(c));
    // `lib.rs` alone may mean any of many.
    let named = ENDINGS.iter().any(|ending| span.len() > ending.len() && span.ends_with(ending));
    let named = named && (span.contains('/') || !span.ends_with(".rs"));
    plain && (named || FOLDERS.iter().any(|folder| span.starts_with(folder)))
}

fn exists(repo: &Repo, document: &str, span: &str) -> bool {
    let span = span.strip_prefix("./").unwrap_or(span).trim_end_matches('/');
    repo.has(span) || resolve(document, span).is_some_and(|path| repo.has(&path))
}

fn leads_somewhere(repo: &Repo, document: &str, target: &str) -> bool {
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let path = if file.is_empty() { Some(document.to_string()) } else { resolve(document, file) };
    let Some(path) = path.filter(|path| repo.has(path)) else { return false };
    match (anchor, repo.text(&path)) {
        (Some(anchor), Some(text)) => {
            prose(text).any(|(_, content)| heading_anchor(content).as_deref() == Some(anchor))
        }
        (Some(_), None) => false,
        (None, _) => true,
    }
}

/// A path that is given from the folder of `document`; none if it leaves the project.
fn resolve(document: &str, target: &str) -> Option<String> {
    let folder = document.rsplit_once('/').map_or("", |(folder, _)| folder);
    let mut parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            part => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// The name that a heading has in links.
fn heading_anchor(content: &str) -> Option<String> {
    let title = content.strip_prefix('#')?.trim_start_matches('#').strip_prefix(' ')?;
    let kept = title.to_lowercase().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c)).collect::<String>();
    Some(kept.replace(' ', "-"))
}

#[cfg(test)]
mod tests {
    use super::super::repo::found;
    use super::*;

    #[test]
    fn dead_links_are_found_and_living_ones_are_not() {
        let a = "# A title, and more\n[b](docs/b.md) [c](docs/c.md) [out](https://example.org/x)\n[x](#nothing) [y](#a-title-and-more)\n";
        let b = "[up](../a.md#a-title-and-more) [gone](../a.md#gone) [away](../../a.md)\n";
        let dead = |at, to| format!("{at}: the link to {to} leads nowhere");
        let expected = [
            dead("a.md:2", "docs/c.md"),
            dead("a.md:3", "#nothing"),
            dead("docs/b.md:1", "../a.md#gone"),
            dead("docs/b.md:1", "../../a.md"),
        ];
        assert_eq!(found(links, &[("a.md", a), ("docs/b.md", b)]), expected);
    }

    #[test]
    fn paths_in_backticks_exist() {
        let text = "`crates/a/src/lib.rs` `crates/b` `gone.md` `a.md` `cargo xtask` `*.rs` `lib.rs` `./run`\n```\n`docs/gone.md`\n```\n";
        let expected = ["a.md:1: crates/b does not exist", "a.md:1: gone.md does not exist"];
        assert_eq!(found(paths, &[("a.md", text), ("crates/a/src/lib.rs", "")]), expected);
    }

    #[test]
    fn a_path_may_begin_at_the_document() {
        assert!(found(paths, &[("docs/a.md", "`b.md`\n"), ("docs/b.md", "")]).is_empty());
    }
}
