//! What a statement does, from its first words.
//!
//! Two things depend on it: whether the server's row count is of rows that changed, and whether a cursor can read
//! it. Neither is a matter of safety, so a small scanner does: the server has the last word on both.

/// What a statement does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Reads,
    Modifies,
    /// A query whose WITH may write.
    Unclear,
}

pub(super) fn kind(sql: &str) -> Kind {
    let mut words = Words { rest: sql, depth: 0 };
    match words.next_word(|_| true).as_str() {
        "select" | "values" | "table" | "show" | "explain" | "fetch" => Kind::Reads,
        "with" => {
            // The statement after the WITH list stands outside all parentheses.
            let main = words.next_word(|word| {
                matches!(word, "select" | "values" | "table" | "insert" | "update" | "delete" | "merge")
            });
            if matches!(main.as_str(), "select" | "values" | "table") { Kind::Unclear } else { Kind::Modifies }
        }
        _ => Kind::Modifies,
    }
}

struct Words<'a> {
    rest: &'a str,
    depth: usize,
}

impl Words<'_> {
    /// The next word that is wanted, in lower case and outside parentheses; empty at the end. Parentheses before
    /// the first word do not count: `(SELECT 1) UNION ...` is a query.
    fn next_word(&mut self, wanted: impl Fn(&str) -> bool) -> String {
        let mut first = self.depth == 0;
        while let Some(c) = self.rest.chars().next() {
            if c.is_ascii_alphabetic() || c == '_' {
                let end =
                    self.rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c == '$')).unwrap_or(self.rest.len());
                let word = self.rest[..end].to_ascii_lowercase();
                self.rest = &self.rest[end..];
                if self.depth == 0 && wanted(&word) {
                    return word;
                }
                first = false;
                continue;
            }
            match c {
                '(' if first => {}
                '(' => self.depth += 1,
                ')' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
            self.rest = skip(self.rest);
            first = first && matches!(c, '(' | ' ' | '\t' | '\n' | '\r' | '-' | '/');
            if self.depth > 0 {
                first = false;
            }
        }
        String::new()
    }
}

/// The text after the token at its beginning: a quoted text, a comment, or one character.
fn skip(text: &str) -> &str {
    let after = |close: &str, from: usize| text[from..].find(close).map_or("", |at| &text[from + at + close.len()..]);
    if text.starts_with("--") {
        return after("\n", 2);
    }
    if text.starts_with("/*") {
        return after("*/", 2);
    }
    match text.chars().next() {
        Some('\'') => after("'", 1),
        Some('"') => after("\"", 1),
        Some('$') => match dollar_tag(text) {
            Some(tag) => after(tag, tag.len()),
            None => &text[1..],
        },
        Some(c) => &text[c.len_utf8()..],
        None => "",
    }
}

/// The opening of a dollar-quoted text: `$$` or `$tag$`.
fn dollar_tag(text: &str) -> Option<&str> {
    let end = text[1..].find('$')? + 2;
    let tag = &text[..end];
    let plain = tag[1..end - 1].chars().all(|c| c.is_alphanumeric() || c == '_');
    let number = tag[1..end - 1].starts_with(|c: char| c.is_ascii_digit());
    (plain && !number).then_some(tag)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_words_tell() {
        let cases = [
            ("SELECT 1", Kind::Reads),
            ("  -- c\n (select 1) union select 2", Kind::Reads),
            ("/* x */ VALUES (1)", Kind::Reads),
            ("insert into t values ('select')", Kind::Modifies),
            ("with a as (select 1) select * from a", Kind::Unclear),
            ("with a as (delete from t returning *) select * from a", Kind::Unclear),
            ("with a(select_) as (select 'x)' || $$)$$) update t set a = 1", Kind::Modifies),
            ("update t set a = $1", Kind::Modifies),
            ("", Kind::Modifies),
        ];
        for (sql, expected) in cases {
            assert_eq!(kind(sql), expected, "{sql}");
        }
    }
}
