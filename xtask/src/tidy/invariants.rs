//! Every invariant names tests that exist, and every test that names an invariant is in its row (I-70).
//!
//! `docs/invariants.md` has a table row for each invariant (`I-7`) and each planted bug (`P-3`). The last cell says
//! what proves it, file by file:
//!
//!     `crates/a/tests/b.rs`: `one_test`, `another`    these tests
//!     `crates/a/tests/b.rs`                           all tests of that file whose doc comment names it
//!     not yet: comes with moves                       nothing, or not all of it
//!
//! A test names what it proves at the beginning of its doc comment: `/// I-1, I-2, planted bug 3: why`. A test is a
//! function with a test attribute, or one that the `main.rs` of its folder lists for a macro.

use super::links::spans;
use super::repo::{Finding, Repo, lines};
use std::collections::{BTreeMap, BTreeSet};

const TABLE: &str = "docs/invariants.md";

/// What a row says of one file.
#[derive(Debug, PartialEq, Eq)]
struct Claim<'a> {
    file: &'a str,
    /// None named: all tests of the file that name the invariant.
    tests: Vec<&'a str>,
}

/// A row of the table.
struct RowOf<'a> {
    line: usize,
    id: &'a str,
    claims: Vec<Claim<'a>>,
    /// It says that something is still missing.
    not_yet: bool,
}

/// A test that says what it proves.
struct Named<'a> {
    file: &'a str,
    line: usize,
    test: &'a str,
    ids: Vec<String>,
}

/// What a row claims is there.
pub(super) fn rows_name_tests(repo: &Repo) -> Vec<Finding> {
    let named = named_tests(repo);
    let mut seen = BTreeSet::new();
    let mut findings = Vec::new();
    for row in rows(repo.text(TABLE).unwrap_or_default()) {
        let mut wrong = |what: String| findings.push(Finding::new(TABLE, row.line, format!("{}: {what}", row.id)));
        if !seen.insert(row.id) {
            wrong("has two rows".into());
        }
        if row.claims.is_empty() && !row.not_yet {
            wrong("names no test and does not say \"not yet\"".into());
        }
        for claim in &row.claims {
            missing(repo, &named, row.id, claim).into_iter().for_each(&mut wrong);
        }
    }
    findings
}

/// What a claim names that is not there.
fn missing(repo: &Repo, named: &[Named<'_>], id: &str, claim: &Claim<'_>) -> Vec<String> {
    let file = claim.file;
    let Some(text) = repo.text(file) else { return vec![format!("{file} does not exist")] };
    if claim.tests.is_empty() && !named.iter().any(|test| test.file == file && test.ids.iter().any(|named| named == id))
    {
        return vec![format!("no test of {file} names it")];
    }
    let absent = claim.tests.iter().filter(|test| !text.contains(&format!("fn {test}(")));
    absent.map(|test| format!("there is no test {test} in {file}")).collect()
}

/// What a test claims is in the table.
pub(super) fn tests_are_in_rows(repo: &Repo) -> Vec<Finding> {
    let rows: BTreeMap<_, _> = rows(repo.text(TABLE).unwrap_or_default()).map(|row| (row.id, row.claims)).collect();
    let covers = |claim: &Claim<'_>, test: &Named<'_>| {
        claim.file == test.file && (claim.tests.is_empty() || claim.tests.contains(&test.test))
    };
    let mut findings = Vec::new();
    for test in named_tests(repo) {
        let lost = test
            .ids
            .iter()
            .filter(|id| !rows.get(id.as_str()).is_some_and(|claims| claims.iter().any(|c| covers(c, &test))));
        findings.extend(lost.map(|id| {
            let what = format!("{} names {id}, whose row in {TABLE} does not name it", test.test);
            Finding::new(test.file, test.line, what)
        }));
    }
    findings
}

fn rows(text: &str) -> impl Iterator<Item = RowOf<'_>> {
    lines(text).filter_map(|(line, content)| {
        let cells: Vec<&str> = content.strip_prefix('|')?.strip_suffix('|')?.split('|').map(str::trim).collect();
        let id = cells.first().copied().filter(|id| is_id(id))?;
        let last = cells.last().copied().unwrap_or_default();
        Some(RowOf { line, id, claims: claims(last), not_yet: last.contains("not yet") })
    })
}

/// Files of a cell, each with the names that follow it.
fn claims(cell: &str) -> Vec<Claim<'_>> {
    let mut claims: Vec<Claim<'_>> = Vec::new();
    for span in spans(cell) {
        if span.ends_with(".rs") {
            claims.push(Claim { file: span, tests: Vec::new() });
        } else if let Some(claim) = claims.last_mut().filter(|_| is_name(span)) {
            claim.tests.push(span);
        }
    }
    claims
}

fn is_name(span: &str) -> bool {
    span.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_')
}

/// `I-7`, `I-6a` or `P-3`.
fn is_id(text: &str) -> bool {
    let number = text.strip_prefix("I-").or_else(|| text.strip_prefix("P-")).unwrap_or_default();
    let digits = number.trim_end_matches(|c: char| c.is_ascii_lowercase());
    !digits.is_empty() && number.len() - digits.len() <= 1 && digits.chars().all(|c| c.is_ascii_digit())
}

/// All tests whose doc comments begin with what they prove.
fn named_tests(repo: &Repo) -> Vec<Named<'_>> {
    let mut named = Vec::new();
    for (file, text) in repo.files_of("rs") {
        let listed = file.rsplit_once('/').and_then(|(folder, _)| repo.text(&format!("{folder}/main.rs")));
        let is_listed = |test: &str| listed.is_some_and(|list| lists(list, test));
        let (mut ids, mut is_test) = (Vec::new(), false);
        for (line, content) in lines(text) {
            let content = content.trim_start();
            if let Some(comment) = content.strip_prefix("///") {
                ids.extend(named_ids(comment));
            } else if content.starts_with("#[") {
                is_test = is_test || content.contains("test");
            } else {
                let (ids, is_test) = (std::mem::take(&mut ids), std::mem::take(&mut is_test));
                let test = function_name(content).filter(|test| is_test || is_listed(test));
                named.extend(test.filter(|_| !ids.is_empty()).map(|test| Named { file, line, test, ids }));
            }
        }
    }
    named
}

/// Whether a `main.rs` lists a test, by itself or in its module.
fn lists(list: &str, test: &str) -> bool {
    [' ', ':'].iter().any(|before| list.contains(&format!("{before}{test},")))
}

/// The ids at the beginning of a comment, before its colon; `I-1, I-2 under F3` are two.
fn named_ids(comment: &str) -> Vec<String> {
    let head = comment.split(':').next().unwrap_or_default();
    head.split(',').flat_map(part_ids).collect()
}

fn part_ids(part: &str) -> Vec<String> {
    let part = part.split('.').next().unwrap_or_default().trim();
    let bugs = part.strip_prefix("planted bug").or_else(|| part.strip_prefix("Planted bug"));
    match bugs {
        Some(numbers) => {
            let digits = numbers.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
            digits.map(|digits| format!("P-{digits}")).collect()
        }
        None => part.split(' ').next().filter(|word| is_id(word)).map(String::from).into_iter().collect(),
    }
}

fn function_name(content: &str) -> Option<&str> {
    let (before, rest) = content.split_once("fn ")?;
    let modifiers = ["pub", "pub(crate)", "pub(super)", "async", "unsafe", "const"];
    let is_function = before.split_whitespace().all(|word| modifiers.contains(&word));
    is_function.then(|| rest.split(['(', '<']).next()).flatten()
}

#[cfg(test)]
mod tests {
    use super::super::repo::found;
    use super::*;

    const TESTS: &str = "/// I-1, I-2: why\n#[test]\nfn holds() {}\n\n/// I-2\npub(crate) async fn other(w: W) {}\n\n/// I-1\nfn plain() {}\n";

    fn check(rule: fn(&Repo) -> Vec<Finding>, table: &str) -> Vec<String> {
        let files = [
            ("docs/invariants.md", table),
            ("crates/a/tests/t.rs", TESTS),
            ("crates/a/tests/main.rs", "on_both! {\n    t::other,\n}\n"),
        ];
        found(rule, &files)
    }

    #[test]
    fn rows_that_are_true_are_not_found() {
        let table = "| I-1 | text | `crates/a/tests/t.rs`: `holds`, `plain` |\n| I-2 | text | `crates/a/tests/t.rs` |\n| I-3 | text | not yet: comes with moves |\n";
        assert!(check(rows_name_tests, table).is_empty());
        assert!(check(tests_are_in_rows, table).is_empty());
    }

    #[test]
    fn a_row_that_names_what_is_not_there_is_found() {
        let table = "| I-1 | a | `crates/a/tests/t.rs`: `gone` |\n| I-2 | b | `crates/b/tests/t.rs` |\n| I-3 | c | |\n| I-4 | d | `crates/a/tests/t.rs` |\n| I-4 | e | not yet |\n";
        let at = |line, what: &str| format!("docs/invariants.md:{line}: {what}");
        let expected = [
            at(1, "I-1: there is no test gone in crates/a/tests/t.rs"),
            at(2, "I-2: crates/b/tests/t.rs does not exist"),
            at(3, "I-3: names no test and does not say \"not yet\""),
            at(4, "I-4: no test of crates/a/tests/t.rs names it"),
            at(5, "I-4: has two rows"),
        ];
        assert_eq!(check(rows_name_tests, table), expected);
    }

    #[test]
    fn a_test_whose_row_does_not_name_it_is_found() {
        let table = "| I-1 | a | not yet |\n| I-2 | b | `crates/a/tests/t.rs`: `holds` |\n";
        let lost = |line, test, id| {
            format!("crates/a/tests/t.rs:{line}: {test} names {id}, whose row in docs/invariants.md does not name it")
        };
        assert_eq!(check(tests_are_in_rows, table), [lost(3, "holds", "I-1"), lost(6, "other", "I-2")]);
    }

    #[test]
    fn a_comment_names_an_invariant_only_at_its_beginning() {
        assert_eq!(named_ids(" I-1, I-6a: see I-3"), ["I-1", "I-6a"]);
        assert_eq!(named_ids(" I-1, I-2 under F1 and F2."), ["I-1", "I-2"]);
        assert_eq!(named_ids(" vitess #6622, I-7, planted bugs 1 and 2. All 3 of them."), ["I-7", "P-1", "P-2"]);
        assert!(named_ids(" What must be there (I-29).").is_empty());
        assert!(named_ids(" I-: I-x, I-6ab").is_empty());
    }

    #[test]
    fn functions_of_the_product_are_no_tests() {
        let text = "/// I-9: the fence\npub fn fence() {}\n\n/// I-9\n#[tokio::test]\nasync fn fenced() {}\n";
        let found = found(tests_are_in_rows, &[("crates/a/src/lib.rs", text)]);
        assert_eq!(
            found,
            ["crates/a/src/lib.rs:6: fenced names I-9, whose row in docs/invariants.md does not name it"]
        );
    }
}
