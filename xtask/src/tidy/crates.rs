//! The order of the crates, and the reasons for what they depend on.
//!
//! `ARCHITECTURE.md` lists the crates in a fenced block whose lines begin with their folders; a crate depends only on
//! those above it. For its tests any crate may use the simulator, which comes last.
//!
//! `docs/dependencies.md` has a table row for each foreign crate.

use super::links::spans;
use super::repo::{Finding, Repo, lines};
use std::collections::{BTreeMap, BTreeSet};

const ARCHITECTURE: &str = "ARCHITECTURE.md";
const DEPENDENCIES: &str = "docs/dependencies.md";
const WORKSPACE: &str = "Cargo.toml";
const SIMULATOR: &str = "crates/sim";

/// A crate depends only on those above it in the list.
pub(super) fn order(repo: &Repo) -> Vec<Finding> {
    let listed = listed_crates(repo.text(ARCHITECTURE).unwrap_or_default());
    let place: BTreeMap<&str, usize> = (0..).zip(&listed).map(|(at, folder)| (*folder, at)).collect();
    let folders = own_crates(repo);
    let mut findings = Vec::new();
    for (folder, manifest) in manifests(repo) {
        let Some(at) = place.get(folder) else {
            findings.push(Finding::new(ARCHITECTURE, 0, format!("does not list {folder} among the crates")));
            continue;
        };
        let file = format!("{folder}/Cargo.toml");
        for entry in entries(manifest).filter(|entry| entry.section.ends_with("dependencies")) {
            let Some(needed) = folders.get(entry.name) else { continue };
            let for_tests = entry.section == "dev-dependencies" && needed == SIMULATOR;
            let above = place.get(needed.as_str()).is_some_and(|needed| needed < at);
            if !above && !for_tests {
                findings.push(Finding::new(
                    &file,
                    entry.line,
                    format!("{folder} may not depend on {needed}, which is not above it"),
                ));
            }
        }
    }
    let gone = listed.iter().filter(|folder| !repo.has(&format!("{folder}/Cargo.toml")));
    findings.extend(gone.map(|folder| Finding::new(ARCHITECTURE, 0, format!("lists {folder}, which is no crate"))));
    findings
}

/// Foreign crates come by way of the workspace, and each has its reason.
pub(super) fn dependencies(repo: &Repo) -> Vec<Finding> {
    let own = own_crates(repo);
    let workspace = repo.text(WORKSPACE).unwrap_or_default();
    let foreign: BTreeSet<&str> =
        shared(workspace).map(|entry| entry.name).filter(|name| !own.contains_key(*name)).collect();
    let mut explained = BTreeSet::new();
    let mut findings = Vec::new();
    for (line, content) in lines(repo.text(DEPENDENCIES).unwrap_or_default()) {
        let Some(name) = content.strip_prefix("| `").and_then(|_| spans(content).next()) else { continue };
        explained.insert(name);
        if !foreign.contains(name) {
            findings.push(Finding::new(DEPENDENCIES, line, format!("{name} is no dependency any more")));
        }
    }
    let missing = foreign.iter().filter(|name| !explained.contains(**name));
    findings.extend(missing.map(|name| Finding::new(DEPENDENCIES, 0, format!("has no row for {name}"))));
    for (folder, manifest) in manifests(repo) {
        let file = format!("{folder}/Cargo.toml");
        let stray = entries(manifest).filter(|entry| entry.section.ends_with("dependencies") && !entry.from_workspace);
        findings.extend(
            stray.map(|entry| Finding::new(&file, entry.line, format!("{} must come from the workspace", entry.name))),
        );
    }
    findings
}

/// The folders that the architecture lists, in order.
fn listed_crates(text: &str) -> Vec<&str> {
    let blocks = text.split("```").skip(1).step_by(2);
    let lists = blocks.map(|block| block.lines().skip(1).filter_map(crate_folder).collect::<Vec<_>>());
    lists.max_by_key(Vec::len).unwrap_or_default()
}

fn crate_folder(line: &str) -> Option<&str> {
    line.split(' ').next().filter(|word| word.starts_with("crates/") || *word == "xtask")
}

/// Our own crates: name of the package, folder.
fn own_crates(repo: &Repo) -> BTreeMap<&str, String> {
    let packages = manifests(repo).filter_map(|(folder, manifest)| {
        let name = entries(manifest).find(|entry| entry.section == "package" && entry.name == "name")?;
        Some((name.value.trim_matches('"'), folder.to_string()))
    });
    packages.collect()
}

/// Folder and manifest of each crate.
fn manifests(repo: &Repo) -> impl Iterator<Item = (&str, &str)> {
    repo.files_of("toml").filter_map(|(path, text)| Some((path.strip_suffix("/Cargo.toml")?, text)))
}

fn shared(workspace: &str) -> impl Iterator<Item = Entry<'_>> {
    entries(workspace).filter(|entry| entry.section == "workspace.dependencies")
}

/// A line `name = value` or `name.workspace = true` of a manifest.
struct Entry<'a> {
    line: usize,
    section: &'a str,
    name: &'a str,
    value: &'a str,
    from_workspace: bool,
}

/// The entries of a manifest. Ours have one line each, which is all of TOML that is needed.
fn entries(manifest: &str) -> impl Iterator<Item = Entry<'_>> {
    let mut section = "";
    lines(manifest).filter_map(move |(line, content)| {
        if let Some(name) = content.strip_prefix('[') {
            section = name.trim_end_matches(']');
            return None;
        }
        let (key, value) = content.split_once('=').filter(|_| !content.starts_with('#'))?;
        let (key, value) = (key.trim(), value.trim());
        let (name, field) = key.split_once('.').unwrap_or((key, ""));
        let from_workspace = field == "workspace" || value.contains("workspace = true");
        Some(Entry { line, section, name, value, from_workspace })
    })
}

#[cfg(test)]
mod tests {
    use super::super::repo::found;
    use super::*;

    const LIST: &str = "# Code map\n```text\ncrates/low   the base\ncrates/high  on top\ncrates/sim   for tests\n```\n";
    const WORK: &str = "[workspace.dependencies]\nlow = { path = \"crates/low\" }\nserde = \"1\"\n";

    fn package(name: &str, rest: &str) -> String {
        format!("[package]\nname = \"{name}\"\n{rest}")
    }

    fn check_order(low: &str, high: &str) -> Vec<String> {
        let files = [
            ("ARCHITECTURE.md", LIST),
            ("Cargo.toml", WORK),
            ("crates/low/Cargo.toml", &package("low", low)),
            ("crates/high/Cargo.toml", &package("high", high)),
            ("crates/sim/Cargo.toml", &package("sim", "[dependencies]\nhigh.workspace = true\n")),
        ];
        found(order, &files)
    }

    #[test]
    fn a_crate_depends_only_on_those_above_it() {
        assert!(check_order("", "[dependencies]\nlow.workspace = true\nserde.workspace = true\n").is_empty());
        let found = check_order("[dependencies]\nhigh = { workspace = true }\n", "");
        assert_eq!(found, ["crates/low/Cargo.toml:4: crates/low may not depend on crates/high, which is not above it"]);
    }

    #[test]
    fn tests_may_use_the_simulator_and_nothing_else_below() {
        assert!(check_order("[dev-dependencies]\nsim.workspace = true\n", "").is_empty());
        assert_eq!(check_order("[dependencies]\nsim.workspace = true\n", "").len(), 1);
        assert_eq!(check_order("[dev-dependencies]\nhigh.workspace = true\n", "").len(), 1);
    }

    #[test]
    fn the_list_of_crates_is_the_crates_that_are_there() {
        let found = found(order, &[("ARCHITECTURE.md", LIST), ("crates/new/Cargo.toml", &package("new", ""))]);
        assert_eq!(found[0], "ARCHITECTURE.md: does not list crates/new among the crates");
        assert_eq!(found[1], "ARCHITECTURE.md: lists crates/low, which is no crate");
        assert_eq!(found.len(), 4);
    }

    #[test]
    fn each_dependency_has_its_reason_and_each_reason_its_dependency() {
        let low = package("low", "[dependencies]\nserde.workspace = true\nlibc = \"0.2\"\n");
        let files = [("Cargo.toml", WORK), ("crates/low/Cargo.toml", low.as_str())];
        let of = |reasons: &str| found(dependencies, &[&files[..], &[("docs/dependencies.md", reasons)]].concat());
        let stray = "crates/low/Cargo.toml:5: libc must come from the workspace".to_string();
        assert_eq!(of("| `serde` | why |\n"), std::slice::from_ref(&stray));
        assert_eq!(of(""), ["docs/dependencies.md: has no row for serde".to_string(), stray.clone()]);
        let old = "docs/dependencies.md:2: gone is no dependency any more".to_string();
        assert_eq!(of("| `serde` | why |\n| `gone` | why |\n"), [old, stray]);
    }
}
