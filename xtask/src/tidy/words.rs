//! Words that do not belong into a product: places on somebody's machine, and talk about how the work was done.

use super::repo::{Finding, Repo, lines};

/// Written in two parts, so that this list does not find itself. Compared without regard to case.
const WORDS: [&str; 5] = [
    concat!("/ro", "ot/"),
    concat!("/ho", "me/"),
    concat!("/tmp/", "wt-"),
    concat!("as of this ", "session"),
    concat!("another ", "engineer"),
];

pub(super) fn words(repo: &Repo) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in repo.files() {
        for (line, content) in lines(text) {
            let content = content.to_lowercase();
            let known = WORDS.iter().filter(|word| content.contains(**word));
            findings.extend(known.map(|word| Finding::new(path, line, format!("\"{word}\" does not belong here"))));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::repo::found;
    use super::*;

    #[test]
    fn each_word_is_found_whatever_its_case() {
        for word in WORDS {
            let text = format!("one\nSee {}.\n", word.to_uppercase());
            assert_eq!(found(words, &[("a.md", &text)]), [format!("a.md:2: \"{word}\" does not belong here")]);
        }
    }

    #[test]
    fn a_word_that_is_only_alike_is_another_word() {
        assert!(found(words, &[("a.md", "other engineers, at home or in the root\n")]).is_empty());
    }
}
