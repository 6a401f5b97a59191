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
    let (mut statements, mut begin, mut at, mut filled) = (Vec::new(), 0, 0, false);
    while let Some(c) = text[at..].chars().next() {
        let before = text[begin..at].chars().next_back();
        at = match c {
            ';' => {
                if std::mem::take(&mut filled) {
                    statements.push(text[begin..=at].trim().to_owned());
                }
                begin = at + 1;
                begin
            }
            '-' if text[at..].starts_with("--") => end_of_line(text, at),
            '/' if text[at..].starts_with("/*") => end_of_comment(text, at),
            '\'' | '"' => {
                filled = true;
                let escapes = c == '\'' && matches!(before, Some('e' | 'E'));
                end_of_quote(text, at, c, escapes)
            }
            '$' if !before.is_some_and(|c| c.is_alphanumeric() || c == '_') => {
                filled = true;
                end_of_dollars(text, at)
            }
            _ => {
                filled |= !c.is_whitespace();
                at + c.len_utf8()
            }
        };
    }
    let rest = if filled { text[begin..].trim().to_owned() } else { String::new() };
    Split { statements, rest }
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
