//! What a compiler does not check.
//!
//! A rule is a function from the [`Repo`] to what it found wrong, and knows nothing of the disk: its test makes a
//! repository of a few lines. In reading order:
//!   * `repo`        the files of the project, in memory
//!   * `sources`     length, leftovers, trailing blanks, limits that nobody explains
//!   * `words`       words that do not belong into a product
//!   * `links`       links and paths in documents
//!   * `crates`      the order of the crates, and the reasons for their dependencies
//!   * `invariants`  numbers and the tests that prove them (I-70)

mod repo;

mod crates;
mod invariants;
mod links;
mod sources;
mod words;

use repo::{Finding, Repo};
use std::path::Path;

type Rule = fn(&Repo) -> Vec<Finding>;

const RULES: [(&str, Rule); 11] = [
    ("short files", sources::short_files),
    ("no leftovers", sources::no_leftovers),
    ("no trailing whitespace", sources::no_trailing_whitespace),
    ("limits are explained", sources::limits_are_explained),
    ("words", words::words),
    ("links", links::links),
    ("paths", links::paths),
    ("order of crates", crates::order),
    ("dependencies", crates::dependencies),
    ("invariants have their tests", invariants::rows_name_tests),
    ("tests have their invariants", invariants::tests_are_in_rows),
];

/// Checks the project in `root` and prints what is wrong with it. True if nothing is.
pub(crate) fn tidy(root: &Path) -> bool {
    let repo = match Repo::read(root) {
        Ok(repo) => repo,
        Err(error) => {
            eprintln!("cannot read {}: {error}", root.display());
            return false;
        }
    };
    if !repo.has("Cargo.toml") {
        eprintln!("{} is not the project's folder", root.display());
        return false;
    }
    let mut count = 0;
    for (name, rule) in RULES {
        for finding in rule(&repo) {
            println!("{finding}  [{name}]");
            count += 1;
        }
    }
    println!("tidy: {} files, {} rules, {count} findings", repo.files().count(), RULES.len());
    count == 0
}
