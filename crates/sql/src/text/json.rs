//! JSON as PostgreSQL has it: `json` is a text that was checked, `jsonb` a value with one text form.
//!
//! Numbers keep their digits (`1.10` stays `1.10`), for they are numerics. In a `jsonb`, keys of an object are ordered
//! by length and then by bytes, the last of equal keys wins, and the text has one space after each colon and comma.

use isles_kernel::error::SqlError;
use isles_kernel::value::Numeric;
use std::cmp::Ordering;
use std::fmt::Write;

/// Deeper documents are refused, as PostgreSQL refuses them by the size of its stack.
const MAX_DEPTH: usize = 1_000;

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Json {
    Null,
    Bool(bool),
    Number(Numeric),
    Text(String),
    Array(Vec<Json>),
    /// In the order of the text, or for a `jsonb` in its own.
    Object(Vec<(String, Json)>),
}

/// Whether a document is `json`, which keeps what was written, or `jsonb`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flavour {
    Json,
    Jsonb,
}

fn refused(detail: impl Into<String>) -> SqlError {
    SqlError::new("22P02", "invalid input syntax for type json").with_detail(detail)
}

struct Parser<'a> {
    text: &'a str,
    at: usize,
    flavour: Flavour,
    depth: usize,
}

/// A part of a document, with the text that it was.
pub(crate) struct Member<'a> {
    pub(crate) key: Option<String>,
    pub(crate) text: &'a str,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn spaces(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// The token that is in the way, as PostgreSQL quotes it.
    fn token(&self) -> String {
        let rest = &self.text[self.at..];
        let word = rest.find(|c: char| !(c.is_alphanumeric() || c == '_' || c as u32 > 127)).unwrap_or(rest.len());
        match word {
            0 => rest.chars().next().map(String::from).unwrap_or_default(),
            end => rest[..end].to_string(),
        }
    }

    fn unexpected(&self, wanted: &str) -> SqlError {
        match self.at >= self.text.len() {
            true => refused("The input string ended unexpectedly."),
            false => refused(format!("Expected {wanted}, but found \"{}\".", self.token())),
        }
    }

    fn value(&mut self) -> Result<Json, SqlError> {
        self.spaces();
        match self.peek() {
            Some(b'{') => self.nested(Parser::object),
            Some(b'[') => self.nested(Parser::array),
            Some(b'"') => Ok(Json::Text(self.string()?)),
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(c) if c.is_ascii_alphabetic() => self.word(),
            None => Err(refused("The input string ended unexpectedly.")),
            Some(_) => Err(refused(format!("Token \"{}\" is invalid.", self.token()))).map_err(|error| {
                if b"]},:".contains(&self.peek().unwrap_or(0)) { self.unexpected("JSON value") } else { error }
            }),
        }
    }

    fn nested(&mut self, read: impl Fn(&mut Self) -> Result<Json, SqlError>) -> Result<Json, SqlError> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(SqlError::new("54001", "stack depth limit exceeded"));
        }
        let value = read(self)?;
        self.depth -= 1;
        Ok(value)
    }

    fn word(&mut self) -> Result<Json, SqlError> {
        let token = self.token();
        let value = match token.as_str() {
            "true" => Json::Bool(true),
            "false" => Json::Bool(false),
            "null" => Json::Null,
            _ => return Err(refused(format!("Token \"{token}\" is invalid."))),
        };
        self.at += token.len();
        Ok(value)
    }

    fn number(&mut self) -> Result<Json, SqlError> {
        let start = self.at;
        let digits = |parser: &mut Self| {
            let from = parser.at;
            while parser.peek().is_some_and(|c| c.is_ascii_digit()) {
                parser.at += 1;
            }
            parser.at - from
        };
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        let leading_zero = self.peek() == Some(b'0');
        let whole = digits(self);
        let mut valid = whole > 0 && !(leading_zero && whole > 1);
        if self.peek() == Some(b'.') {
            self.at += 1;
            valid &= digits(self) > 0;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            valid &= digits(self) > 0;
        }
        let trailing = self.peek().is_some_and(|c| c.is_ascii_alphanumeric() || c == b'_' || c > 127);
        if !valid || trailing {
            while self.peek().is_some_and(|c| c.is_ascii_alphanumeric() || c == b'_' || c > 127) {
                self.at += 1;
            }
            return Err(refused(format!("Token \"{}\" is invalid.", &self.text[start..self.at])));
        }
        let text = &self.text[start..self.at];
        match Numeric::parse(text) {
            Ok(number) => Ok(Json::Number(number)),
            // A `json` is only checked, and its numbers may be of any size.
            Err(_) if self.flavour == Flavour::Json => Ok(Json::Null),
            Err(_) => Err(SqlError::new("22003", "value overflows numeric format")),
        }
    }

    fn string(&mut self) -> Result<String, SqlError> {
        let start = self.at;
        self.at += 1;
        let mut out = String::new();
        loop {
            let rest = &self.text[self.at..];
            let c = rest.chars().next().ok_or_else(|| refused("The input string ended unexpectedly."));
            let c = c.map_err(|_| refused(format!("Token \"{}\" is invalid.", &self.text[start..])))?;
            self.at += c.len_utf8();
            match c {
                '"' => return Ok(out),
                '\\' => self.escape(&mut out)?,
                c if (c as u32) < 0x20 => {
                    return Err(refused(format!("Character with value 0x{:02x} must be escaped.", c as u32)));
                }
                c => out.push(c),
            }
        }
    }

    fn escape(&mut self, out: &mut String) -> Result<(), SqlError> {
        let c = self.text[self.at..].chars().next().ok_or_else(|| refused("The input string ended unexpectedly."))?;
        self.at += c.len_utf8();
        out.push(match c {
            '"' | '\\' | '/' => c,
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => return self.unicode(out),
            _ => return Err(refused(format!("Escape sequence \"\\{c}\" is invalid."))),
        });
        Ok(())
    }

    fn hex(&mut self) -> Result<u32, SqlError> {
        let digits = self.text.get(self.at..self.at + 4).filter(|text| text.bytes().all(|b| b.is_ascii_hexdigit()));
        let digits = digits.ok_or_else(|| refused("\"\\u\" must be followed by four hexadecimal digits."))?;
        self.at += 4;
        u32::from_str_radix(digits, 16).map_err(|_| refused("\"\\u\" must be followed by four hexadecimal digits."))
    }

    fn unicode(&mut self, out: &mut String) -> Result<(), SqlError> {
        let first = self.hex()?;
        let low = || refused("Unicode low surrogate must follow a high surrogate.");
        if self.flavour == Flavour::Json && (0xD800..=0xDFFF).contains(&first) {
            // A `json` is kept as it was written; half a character matters only to who takes it out.
            out.push(char::REPLACEMENT_CHARACTER);
            return Ok(());
        }
        let code = match first {
            0xD800..=0xDBFF => {
                if !self.text[self.at..].starts_with("\\u") {
                    return Err(low());
                }
                self.at += 2;
                let second = self.hex()?;
                if !(0xDC00..=0xDFFF).contains(&second) {
                    return Err(low());
                }
                0x10000 + ((first - 0xD800) << 10) + (second - 0xDC00)
            }
            0xDC00..=0xDFFF => return Err(low()),
            0 if self.flavour == Flavour::Jsonb => {
                return Err(SqlError::new("22P05", "unsupported Unicode escape sequence")
                    .with_detail("\\u0000 cannot be converted to text."));
            }
            code => code,
        };
        out.extend(char::from_u32(code));
        Ok(())
    }

    fn array(&mut self) -> Result<Json, SqlError> {
        let mut members = Vec::new();
        self.members(b']', |parser| {
            members.push(parser.value()?);
            Ok(())
        })?;
        Ok(Json::Array(members))
    }

    fn object(&mut self) -> Result<Json, SqlError> {
        let mut members = Vec::new();
        self.members(b'}', |parser| {
            let key = parser.key()?;
            members.push((key, parser.value()?));
            Ok(())
        })?;
        Ok(Json::Object(if self.flavour == Flavour::Jsonb { canonical(members) } else { members }))
    }

    fn key(&mut self) -> Result<String, SqlError> {
        self.spaces();
        if self.peek() != Some(b'"') {
            return Err(self.unexpected("string"));
        }
        let key = self.string()?;
        self.spaces();
        if self.peek() != Some(b':') {
            return Err(self.unexpected("\":\""));
        }
        self.at += 1;
        Ok(key)
    }

    fn members(&mut self, end: u8, mut read: impl FnMut(&mut Self) -> Result<(), SqlError>) -> Result<(), SqlError> {
        self.at += 1;
        self.spaces();
        if self.peek() == Some(end) {
            self.at += 1;
            return Ok(());
        }
        if end == b'}' && self.peek() != Some(b'"') && self.peek().is_some() {
            return Err(self.unexpected("string or \"}\""));
        }
        loop {
            read(self)?;
            self.spaces();
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(c) if c == end => {
                    self.at += 1;
                    return Ok(());
                }
                _ => return Err(self.unexpected(if end == b']' { "\",\" or \"]\"" } else { "\",\" or \"}\"" })),
            }
        }
    }

    fn end(&mut self) -> Result<(), SqlError> {
        self.spaces();
        match self.at >= self.text.len() {
            true => Ok(()),
            false => Err(refused(format!("Expected end of input, but found \"{}\".", self.token()))),
        }
    }
}

/// An object's members as a `jsonb` keeps them.
pub(crate) fn canonical(mut members: Vec<(String, Json)>) -> Vec<(String, Json)> {
    // Stable, so that of equal keys the last comes last.
    members.sort_by(|(a, _), (b, _)| key_order(a, b));
    let mut kept: Vec<(String, Json)> = Vec::with_capacity(members.len());
    for member in members {
        match kept.last_mut() {
            Some(last) if last.0 == member.0 => *last = member,
            _ => kept.push(member),
        }
    }
    kept
}

fn key_order(a: &str, b: &str) -> Ordering {
    a.len().cmp(&b.len()).then_with(|| a.as_bytes().cmp(b.as_bytes()))
}

pub(crate) fn parse(text: &str, flavour: Flavour) -> Result<Json, SqlError> {
    let mut parser = Parser { text, at: 0, flavour, depth: 0 };
    let value = parser.value()?;
    parser.end()?;
    Ok(value)
}

/// The members of an array or object, each with its text as it stands; none for a scalar.
pub(crate) fn members(text: &str) -> Result<Option<Vec<Member<'_>>>, SqlError> {
    let mut parser = Parser { text, at: 0, flavour: Flavour::Json, depth: 0 };
    parser.spaces();
    let end = match parser.peek() {
        Some(b'{') => b'}',
        Some(b'[') => b']',
        _ => return Ok(None),
    };
    let mut found = Vec::new();
    parser.members(end, |parser| {
        let key = if end == b'}' { Some(parser.key()?) } else { None };
        parser.spaces();
        let start = parser.at;
        parser.value()?;
        found.push(Member { key, text: &text[start..parser.at] });
        Ok(())
    })?;
    Ok(Some(found))
}

/// A text as a JSON string.
pub(crate) fn write_text(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.push('"');
}

/// A document as PostgreSQL shows a `jsonb`.
pub(crate) fn write(out: &mut String, json: &Json) {
    match json {
        Json::Null => out.push_str("null"),
        Json::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Json::Number(n) => out.push_str(n.as_str()),
        Json::Text(s) => write_text(out, s),
        Json::Array(members) => {
            out.push('[');
            for (at, member) in members.iter().enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                write(out, member);
            }
            out.push(']');
        }
        Json::Object(members) => {
            out.push('{');
            for (at, (key, member)) in members.iter().enumerate() {
                out.push_str(if at > 0 { ", " } else { "" });
                write_text(out, key);
                out.push_str(": ");
                write(out, member);
            }
            out.push('}');
        }
    }
}

pub(crate) fn text_of(json: &Json) -> String {
    let mut out = String::new();
    write(&mut out, json);
    out
}

/// A `jsonb`'s text from any JSON text.
pub(crate) fn canonical_text(text: &str) -> Result<String, SqlError> {
    parse(text, Flavour::Jsonb).map(|json| text_of(&json))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jsonb_has_one_text() {
        for (given, shown) in [
            (r#" {"b":1,"a":2, "b" : 3} "#, r#"{"a": 2, "b": 3}"#),
            (r#"{"bb":1,"c":1.10,"a":1e2}"#, r#"{"a": 100, "c": 1.10, "bb": 1}"#),
            ("[1,\"\\u00e9\\n\",null,true]", "[1, \"é\\n\", null, true]"),
            ("\"\\ud83d\\ude00\"", "\"😀\""),
        ] {
            assert_eq!(canonical_text(given).as_deref(), Ok(shown));
        }
    }

    #[test]
    fn what_is_no_json_is_refused_with_the_reason() {
        for (given, detail) in [
            ("", "The input string ended unexpectedly."),
            ("{", "The input string ended unexpectedly."),
            ("nul", "Token \"nul\" is invalid."),
            ("[1,]", "Expected JSON value, but found \"]\"."),
            ("{1}", "Expected string or \"}\", but found \"1\"."),
            ("{\"a\"}", "Expected \":\", but found \"}\"."),
            ("1 2", "Expected end of input, but found \"2\"."),
            ("01", "Token \"01\" is invalid."),
        ] {
            let error = parse(given, Flavour::Json).expect_err(given);
            assert_eq!((error.sqlstate, error.detail.as_deref()), ("22P02", Some(detail)), "{given}");
        }
    }
}
