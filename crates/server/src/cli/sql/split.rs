//! Where statements end in a text: at a semicolon outside of quotes and comments.

/// Statements, and what comes after the last semicolon.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Split {
    pub(crate) statements: Vec<String>,
    /// Without a semicolon; empty if there are only spaces and comments.
    pub(crate) rest: String,
}

/// Splits a text. Statements that hold nothing are left out.
pub(crate) fn split(text: &str) -> Split {
    let (mut statements, mut rest) = (Vec::new(), text);
    while let Some((statement, after)) = first(rest) {
        statements.push(statement.to_owned());
        rest = after;
    }
    let rest = if holds_nothing(rest) { String::new() } else { rest.trim().to_owned() };
    Split { statements, rest }
}

/// Whether there is nothing but spaces, comments and semicolons.
pub(super) fn holds_nothing(text: &str) -> bool {
    content(text).is_empty()
}

/// A text from where it holds something.
pub(super) fn content(text: &str) -> &str {
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let next = past(text, 0, at, c);
        let is_comment = matches!(c, '-' | '/') && next > at + 1;
        if !is_comment && c != ';' && !c.is_whitespace() {
            return &text[at..];
        }
        at = next;
    }
    ""
}

/// The first statement of a text, up to its semicolon, and what comes after it.
pub(super) fn first(text: &str) -> Option<(&str, &str)> {
    let (mut begin, mut at) = (0, 0);
    while let Some(c) = text[at..].chars().next() {
        let next = past(text, begin, at, c);
        if c == ';' {
            if !holds_nothing(&text[begin..at]) {
                return Some((text[begin..next].trim(), &text[next..]));
            }
            begin = next;
        }
        at = next;
    }
    None
}

/// Words outside of quotes, comments and parentheses, in capitals, each with its place.
pub(super) fn top_level(text: &str) -> Vec<(usize, String)> {
    let (mut words, mut at, mut depth): (Vec<(usize, String)>, _, usize) = (Vec::new(), 0, 0);
    let mut word: Option<usize> = None;
    loop {
        let c = text[at..].chars().next();
        match (c.filter(|c| c.is_alphanumeric() || *c == '_'), word) {
            (Some(_), None) => word = Some(at),
            (None, Some(begin)) => {
                if depth == 0 {
                    words.push((begin, text[begin..at].to_ascii_uppercase()));
                }
                word = None;
            }
            _ => {}
        }
        let Some(c) = c else { return words };
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at = past(text, 0, at, c);
    }
}

pub(super) fn words(text: &str) -> Vec<String> {
    top_level(text).into_iter().map(|(_, word)| word).collect()
}

/// Where what begins with a letter ends: a quote or a comment whole, and else the letter.
fn past(text: &str, begin: usize, at: usize, c: char) -> usize {
    let before = text[begin..at].chars().next_back();
    match c {
        '-' if text[at..].starts_with("--") => end_of_line(text, at),
        '/' if text[at..].starts_with("/*") => end_of_comment(text, at),
        '\'' | '"' => end_of_quote(text, at, c, c == '\'' && matches!(before, Some('e' | 'E'))),
        '$' if !before.is_some_and(|c| c.is_alphanumeric() || c == '_') => end_of_dollars(text, at),
        _ => at + c.len_utf8(),
    }
}

fn end_of_line(text: &str, at: usize) -> usize {
    text[at..].find('\n').map_or(text.len(), |found| at + found)
}

/// Comments nest.
fn end_of_comment(text: &str, at: usize) -> usize {
    let (mut at, mut depth) = (at, 0);
    while at < text.len() {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest.starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += rest.chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

fn end_of_quote(text: &str, at: usize, quote: char, escapes: bool) -> usize {
    let mut chars = text[at + 1..].char_indices();
    while let Some((found, c)) = chars.next() {
        match c {
            '\\' if escapes => {
                chars.next();
            }
            // A doubled quote begins a new part at once, which comes to the same.
            c if c == quote => return at + 1 + found + 1,
            _ => {}
        }
    }
    text.len()
}

/// `$$ … $$` or `$tag$ … $tag$`; a lone dollar is a character.
fn end_of_dollars(text: &str, at: usize) -> usize {
    let rest = &text[at + 1..];
    let tag = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|end| rest[*end..].starts_with('$'));
    let Some(tag) = tag.filter(|_| !rest.starts_with(|c: char| c.is_ascii_digit())) else {
        return at + 1;
    };
    let mark = &text[at..at + tag + 2];
    let body = at + mark.len();
    text[body..].find(mark).map_or(text.len(), |found| body + found + mark.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_end_outside_of_quotes() {
        let check = |text: &str, statements: &[&str], rest: &str| {
            let expected =
                Split { statements: statements.iter().map(|s| (*s).to_owned()).collect(), rest: rest.into() };
            assert_eq!(split(text), expected, "{text}");
        };
        check("select 1; select 2", &["select 1;"], "select 2");
        check(" ; ;\n", &[], "");
        check("select ';'; x", &["select ';';"], "x");
        check("select 'it''s;'; x", &["select 'it''s;';"], "x");
        check("select E'\\';'; x", &["select E'\\';';"], "x");
        check("select \";\"; x", &["select \";\";"], "x");
        check("do $$ a; $$; x", &["do $$ a; $$;"], "x");
        check("do $f$ a; $$ $f$; x", &["do $f$ a; $$ $f$;"], "x");
        check("select $1; x", &["select $1;"], "x");
        check("-- a; b\nselect 1;", &["-- a; b\nselect 1;"], "");
        check("/* a; /* b; */ c; */ select 1;", &["/* a; /* b; */ c; */ select 1;"], "");
        check("-- nothing", &[], "");
        check("select '\u{e4};'; '", &["select '\u{e4};';"], "'");
        check("select 'open; ", &[], "select 'open;");
    }
}
