//! LIKE, SIMILAR TO and regular expressions.
//!
//! PostgreSQL's regular expressions are translated to those of the `regex` crate, which match in linear time. What has
//! no counterpart there (references to earlier groups, looking ahead or behind) is refused. Where several matches begin
//! at one place, PostgreSQL takes the longest over all alternatives and the crate the first alternative; patterns whose
//! alternatives are beginnings of each other can differ in that.

use super::{Env, Result, at, int, text};
use crate::types::Oid;
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;
use regex::{Regex, RegexBuilder};
use std::cell::RefCell;
use std::collections::HashMap;

type Args<'a> = &'a [Value];
type Types<'a> = &'a [Oid];

/// A compiled pattern larger than this is refused rather than kept.
const MAX_COMPILED_BYTES: usize = 4 << 20;
/// So many compiled patterns are remembered by a thread; a statement has few, and they repeat for each row.
const REMEMBERED: usize = 64;

fn bad_escape() -> SqlError {
    SqlError::new("22025", "LIKE pattern must not end with escape character")
}

/// As SQL's LIKE.
pub fn is_like_text(text: &str, pattern: &str) -> Result<bool> {
    is_like(&chars(text), &chars(pattern))
}

/// Whether a text is like a pattern, with `\` before what stands for itself.
fn is_like(text: &[char], pattern: &[char]) -> Result<bool> {
    let (mut at, mut place) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    loop {
        let step = match pattern.get(place) {
            Some('%') => {
                retry = Some((place + 1, at));
                place += 1;
                continue;
            }
            Some('_') => (at < text.len()).then_some(1),
            Some('\\') => {
                let literal = pattern.get(place + 1).ok_or_else(bad_escape)?;
                (text.get(at) == Some(literal)).then_some(2)
            }
            Some(c) => (text.get(at) == Some(c)).then_some(1),
            None if at == text.len() => return Ok(true),
            None => None,
        };
        match (step, retry) {
            (Some(width), _) => {
                at += 1;
                place += width;
            }
            (None, Some((after, from))) if from < text.len() => {
                retry = Some((after, from + 1));
                (place, at) = (after, from + 1);
            }
            (None, _) => return Ok(false),
        }
    }
}

fn chars(text: &str) -> Vec<char> {
    text.chars().collect()
}

pub(super) fn like<const WANTED: bool>(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    if let (Value::Bytes(data), Value::Bytes(pattern)) = (at(args, 0), at(args, 1)) {
        let wide = |bytes: &[u8]| bytes.iter().map(|byte| char::from(*byte)).collect::<Vec<_>>();
        return Ok(Value::Bool(is_like(&wide(data), &wide(pattern))? == WANTED));
    }
    Ok(Value::Bool(is_like(&chars(text(args, 0)?), &chars(text(args, 1)?))? == WANTED))
}

pub(super) fn like_any_case<const WANTED: bool>(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let fold = |index: usize| text(args, index).map(|text| chars(&text.to_ascii_lowercase()));
    Ok(Value::Bool(is_like(&fold(0)?, &fold(1)?)? == WANTED))
}

/// A pattern whose escape character has become `\`.
pub(super) fn like_escape(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (pattern, escape) = (text(args, 0)?, text(args, 1)?);
    let mut letters = escape.chars();
    let escape = letters.next();
    if letters.next().is_some() {
        return Err(
            SqlError::new("22025", "invalid escape string").with_hint("Escape string must be empty or one character.")
        );
    }
    let mut out = String::new();
    let mut after_escape = false;
    for c in pattern.chars() {
        match c {
            _ if Some(c) == escape && !after_escape => {
                if c != '\\' {
                    out.push('\\');
                } else {
                    out.push(c);
                }
                after_escape = true;
                continue;
            }
            '\\' if !after_escape => out.push_str("\\\\"),
            c => out.push(c),
        }
        after_escape = false;
    }
    Ok(Value::Text(out))
}

/// SIMILAR TO's pattern as a regular expression.
pub(super) fn similar(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let escape = match at(args, 1) {
        Value::Text(escape) => escape.chars().next(),
        _ => Some('\\'),
    };
    let mut out = String::from("^(?:");
    let mut chars = text(args, 0)?.chars();
    let mut in_class = false;
    while let Some(c) = chars.next() {
        match c {
            _ if Some(c) == escape => match chars.next() {
                Some('"') => {
                    return Err(SqlError::unsupported("SQL regular expressions with separators are not supported"));
                }
                Some(c) => {
                    out.push('\\');
                    out.push(c);
                }
                None => return Err(SqlError::new("22025", "invalid escape sequence")),
            },
            ']' if in_class => {
                out.push(c);
                in_class = false;
            }
            c if in_class => {
                if c == '\\' {
                    out.push('\\');
                }
                out.push(c);
            }
            '[' => {
                out.push(c);
                in_class = true;
            }
            '%' => out.push_str(".*"),
            '_' => out.push('.'),
            '(' => out.push_str("(?:"),
            '\\' | '.' | '^' | '$' => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
    }
    out.push_str(")$");
    Ok(Value::Text(out))
}

fn invalid(reason: &str) -> SqlError {
    SqlError::new("2201B", format!("invalid regular expression: {reason}"))
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Options {
    any_case: bool,
    newline: bool,
    partial_newline: bool,
    expanded: bool,
    literal: bool,
    global: bool,
}

fn options(text: &str, function: &str) -> Result<Options> {
    let mut options = Options::default();
    for c in text.chars() {
        match c {
            'g' => options.global = true,
            'i' => options.any_case = true,
            'c' => options.any_case = false,
            'n' | 'm' => options.newline = true,
            'p' => options.partial_newline = true,
            's' => options.newline = false,
            'x' => options.expanded = true,
            't' => options.expanded = false,
            'q' => options.literal = true,
            'e' | 'b' => {}
            _ => return Err(SqlError::new("22023", format!("invalid regular expression option: \"{c}\""))),
        }
    }
    let _ = function;
    Ok(options)
}

/// Writes PostgreSQL's pattern as the crate's.
fn translated(pattern: &str) -> Result<String> {
    let unsupported =
        |what: &str| Err(SqlError::unsupported(format!("{what} in regular expressions are not supported")));
    let mut out = String::new();
    let mut chars = pattern.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' => {
                let c = chars.next().ok_or_else(|| invalid("invalid escape \\ sequence"))?;
                match escape(c, false) {
                    Some(text) => out.push_str(text),
                    None if c.is_ascii_digit() && c != '0' => return unsupported("back references"),
                    None if matches!(c, 'x' | 'u' | 'U') => code(c, &mut chars, &mut out)?,
                    None if c.is_ascii_alphanumeric() => return Err(invalid("invalid escape \\ sequence")),
                    None => out.push_str(&regex::escape(c.encode_utf8(&mut [0; 4]))),
                }
            }
            '[' => class(&mut chars, &mut out)?,
            '(' if chars.peek() == Some(&'?') => {
                let mut ahead = chars.clone();
                ahead.next();
                match ahead.next() {
                    Some(':') => {
                        chars = ahead;
                        out.push_str("(?:");
                    }
                    Some('=' | '!' | '<') => return unsupported("lookahead and lookbehind constraints"),
                    _ => return Err(invalid("quantifier operand invalid")),
                }
            }
            // A brace that begins no bound is a brace.
            '{' if !chars.peek().is_some_and(char::is_ascii_digit) => out.push_str("\\{"),
            '}' if !ends_bound(&out) => out.push_str("\\}"),
            c => out.push(c),
        }
    }
    Ok(out)
}

fn ends_bound(out: &str) -> bool {
    out.rfind('{').is_some_and(|at| {
        let inside = &out[at + 1..];
        !out[..at].ends_with('\\') && !inside.is_empty() && inside.bytes().all(|b| b.is_ascii_digit() || b == b',')
    })
}

fn escape(c: char, in_class: bool) -> Option<&'static str> {
    Some(match (c, in_class) {
        ('d', true) => "0-9",
        ('s', true) => " \\t-\\r",
        ('w', true) => "0-9A-Za-z_",
        ('d', false) => "[0-9]",
        ('D', false) => "[^0-9]",
        ('s', false) => "[ \\t-\\r]",
        ('S', false) => "[^ \\t-\\r]",
        ('w', false) => "[0-9A-Za-z_]",
        ('W', false) => "[^0-9A-Za-z_]",
        ('m', false) => "\\b{start}",
        ('M', false) => "\\b{end}",
        ('y', false) => "\\b",
        ('Y', false) => "\\B",
        ('A', false) => "\\A",
        ('Z', false) => "\\z",
        ('a', _) => "\\x07",
        ('b', _) => "\\x08",
        ('e', _) => "\\x1B",
        ('f', _) => "\\x0C",
        ('n', _) => "\\n",
        ('r', _) => "\\r",
        ('t', _) => "\\t",
        ('v', _) => "\\x0B",
        ('B', false) => "\\\\",
        _ => return None,
    })
}

type Chars<'a> = std::iter::Peekable<std::str::Chars<'a>>;

fn code(kind: char, chars: &mut Chars, out: &mut String) -> Result<()> {
    let most = match kind {
        'u' => 4,
        'U' => 8,
        _ => 255,
    };
    let mut digits = String::new();
    while digits.len() < most {
        match chars.next_if(char::is_ascii_hexdigit) {
            Some(digit) => digits.push(digit),
            None => break,
        }
    }
    let code = u32::from_str_radix(&digits, 16).ok().and_then(char::from_u32);
    let code = code.ok_or_else(|| invalid("invalid escape \\ sequence"))?;
    out.push_str(&regex::escape(code.encode_utf8(&mut [0; 4])));
    Ok(())
}

/// What stands in brackets.
fn class(chars: &mut Chars, out: &mut String) -> Result<()> {
    let unbalanced = || invalid("brackets [] not balanced");
    let rest: String = chars.clone().take(6).collect();
    for (word, meaning) in [("[:<:]]", "\\b{start}"), ("[:>:]]", "\\b{end}")] {
        if rest == word {
            chars.nth(5);
            out.push_str(meaning);
            return Ok(());
        }
    }
    out.push('[');
    if chars.next_if_eq(&'^').is_some() {
        out.push('^');
    }
    let mut first = true;
    loop {
        match chars.next().ok_or_else(unbalanced)? {
            ']' if !first => break,
            '[' if chars.peek() == Some(&':') => {
                out.push('[');
                loop {
                    let c = chars.next().ok_or_else(unbalanced)?;
                    out.push(c);
                    if c == ']' {
                        break;
                    }
                }
            }
            '[' if matches!(chars.peek(), Some('.' | '=')) => {
                return Err(SqlError::unsupported("collating elements in regular expressions are not supported"));
            }
            '\\' => {
                let c = chars.next().ok_or_else(unbalanced)?;
                match escape(c, true) {
                    Some(text) => out.push_str(text),
                    None if matches!(c, 'x' | 'u' | 'U') => code(c, chars, out)?,
                    None if c.is_ascii_alphanumeric() => return Err(invalid("invalid escape \\ sequence")),
                    None => {
                        out.push('\\');
                        out.push(c);
                    }
                }
            }
            // The crate would take these for operators of sets.
            c @ ('[' | ']' | '&' | '~' | '^') => {
                out.push('\\');
                out.push(c);
            }
            c => out.push(c),
        }
        first = false;
    }
    out.push(']');
    Ok(())
}

/// Options at a pattern's beginning, and the pattern after them.
fn leading_options(pattern: &str, mut given: Options) -> Result<(&str, Options)> {
    if let Some(rest) = pattern.strip_prefix("***=") {
        given.literal = true;
        return Ok((rest, given));
    }
    let pattern = pattern.strip_prefix("***:").unwrap_or(pattern);
    let Some(rest) = pattern.strip_prefix("(?") else { return Ok((pattern, given)) };
    let Some(end) = rest.find(')').filter(|end| rest[..*end].bytes().all(|b| b.is_ascii_lowercase())) else {
        return Ok((pattern, given));
    };
    let inner = options(&rest[..end], "regexp")?;
    given.any_case |= inner.any_case;
    given.newline |= inner.newline;
    given.expanded |= inner.expanded;
    given.literal |= inner.literal;
    Ok((&rest[end + 1..], given))
}

fn build(pattern: &str, given: Options) -> Result<Regex> {
    let (pattern, options) = leading_options(pattern, given)?;
    let translated = if options.literal { regex::escape(pattern) } else { translated(pattern)? };
    RegexBuilder::new(&translated)
        .case_insensitive(options.any_case)
        .multi_line(options.newline)
        .dot_matches_new_line(!options.newline && !options.partial_newline)
        .ignore_whitespace(options.expanded)
        .size_limit(MAX_COMPILED_BYTES)
        .build()
        .map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => SqlError::new("54001", "regular expression is too complex"),
            other => invalid(other.to_string().lines().last().unwrap_or("syntax error").trim_start_matches("error: ")),
        })
}

thread_local! {
    /// A pattern is compiled once for the rows of a statement, and not once for each; it depends on nothing else.
    static COMPILED: RefCell<HashMap<(String, Options), Regex>> = RefCell::new(HashMap::new());
}

fn compiled(pattern: &str, options: Options) -> Result<Regex> {
    let key = (pattern.to_string(), options);
    if let Some(found) = COMPILED.with_borrow(|known| known.get(&key).cloned()) {
        return Ok(found);
    }
    let regex = build(pattern, options)?;
    COMPILED.with_borrow_mut(|known| {
        if known.len() >= REMEMBERED {
            known.clear();
        }
        known.insert(key, regex.clone());
    });
    Ok(regex)
}

fn flags(args: Args, index: usize) -> Result<Options> {
    if args.len() > index { options(text(args, index)?, "regexp") } else { Ok(Options::default()) }
}

pub(super) fn matches<const WANTED: bool>(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(Value::Bool(compiled(text(args, 1)?, Options::default())?.is_match(text(args, 0)?) == WANTED))
}

pub(super) fn matches_any_case<const WANTED: bool>(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let options = Options { any_case: true, ..Options::default() };
    Ok(Value::Bool(compiled(text(args, 1)?, options)?.is_match(text(args, 0)?) == WANTED))
}

pub(super) fn regexp_like(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(Value::Bool(compiled(text(args, 1)?, flags(args, 2)?)?.is_match(text(args, 0)?)))
}

/// The first group, or the whole match if there is none.
pub(super) fn substring(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let regex = compiled(text(args, 1)?, Options::default())?;
    let group = usize::from(regex.captures_len() > 1);
    let found = regex.captures(text(args, 0)?).and_then(|captures| captures.get(group));
    Ok(found.map_or(Value::Null, |found| Value::text(found.as_str())))
}

/// The replacement with `\1` and `\&` filled in.
fn fill(out: &mut String, replacement: &str, captures: &regex::Captures) {
    let mut chars = replacement.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, chars.peek().copied()) {
            ('\\', Some('&')) => {
                chars.next();
                out.push_str(captures.get(0).map_or("", |found| found.as_str()));
            }
            ('\\', Some(digit @ '1'..='9')) => {
                chars.next();
                out.push_str(captures.get(digit as usize - '0' as usize).map_or("", |found| found.as_str()));
            }
            ('\\', Some('\\')) => {
                chars.next();
                out.push('\\');
            }
            _ => out.push(c),
        }
    }
}

/// All matches from `start` on. As PostgreSQL, and unlike the crate's own search, an empty match may follow right after
/// another match.
fn occurrences<'a>(regex: &'a Regex, whole: &'a str, start: usize) -> impl Iterator<Item = regex::Captures<'a>> {
    let mut from = start;
    std::iter::from_fn(move || {
        let captures = if from <= whole.len() { regex.captures_at(whole, from)? } else { return None };
        let found = captures.get(0)?;
        let next = whole[found.end()..].chars().next().map_or(1, char::len_utf8);
        from = if found.is_empty() { found.end() + next } else { found.end() };
        Some(captures)
    })
}

fn replaced(whole: &str, regex: &Regex, replacement: &str, start: usize, nth: usize) -> Result<Value> {
    let (mut out, mut last) = (whole[..start].to_string(), start);
    for (count, captures) in (1..).zip(occurrences(regex, whole, start)) {
        let Some(found) = captures.get(0) else { break };
        if nth != 0 && count < nth {
            continue;
        }
        out.push_str(&whole[last..found.start()]);
        fill(&mut out, replacement, &captures);
        last = found.end();
        super::check_length(out.len())?;
        if nth != 0 {
            break;
        }
    }
    out.push_str(&whole[last..]);
    Ok(Value::Text(out))
}

pub(super) fn replace(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let options = flags(args, 3)?;
    let regex = compiled(text(args, 1)?, Options { global: false, ..options })?;
    replaced(text(args, 0)?, &regex, text(args, 2)?, 0, usize::from(!options.global))
}

fn positive(args: Args, index: usize, name: &str, least: i64) -> Result<usize> {
    if args.len() <= index {
        return Ok(1);
    }
    let n = int(args, index)?;
    match n >= least {
        true => Ok(n as usize),
        false => Err(SqlError::new("22023", format!("invalid value for parameter \"{name}\": {n}"))),
    }
}

/// Where a character stands, counted from 1; one beyond the last is the end, and nothing is behind that.
fn byte_of(text: &str, position: usize) -> Option<usize> {
    text.char_indices().map(|(at, _)| at).chain([text.len()]).nth(position - 1)
}

/// `regexp_replace(text, pattern, replacement, start, n, flags)`.
pub(super) fn replace_nth(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let whole = text(args, 0)?;
    let start = byte_of(whole, positive(args, 3, "start", 1)?);
    let nth = positive(args, 4, "n", 0)?;
    let options = flags(args, 5)?;
    let Some(start) = start else { return Ok(Value::text(whole)) };
    let regex = compiled(text(args, 1)?, Options { global: false, ..options })?;
    replaced(whole, &regex, text(args, 2)?, start, nth)
}

pub(super) fn count(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let whole = text(args, 0)?;
    let start = byte_of(whole, positive(args, 2, "start", 1)?);
    let Some(start) = start else { return Ok(Value::Int(0)) };
    let regex = compiled(text(args, 1)?, flags(args, 3)?)?;
    Ok(Value::Int(occurrences(&regex, whole, start).count() as i64))
}

fn groups(regex: &Regex, captures: &regex::Captures) -> Value {
    let from = usize::from(regex.captures_len() > 1);
    let group = |at: usize| captures.get(at).map_or(Value::Null, |found| Value::text(found.as_str()));
    Value::Array((from..regex.captures_len()).map(group).collect())
}

pub(super) fn first_match(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let options = flags(args, 2)?;
    if options.global {
        return Err(SqlError::new("22023", "regexp_match() does not support the \"global\" option")
            .with_hint("Use the regexp_matches function instead."));
    }
    let regex = compiled(text(args, 1)?, options)?;
    Ok(regex.captures(text(args, 0)?).map_or(Value::Null, |captures| groups(&regex, &captures)))
}

/// All matches, for `regexp_matches`.
pub(super) fn all_matches(args: Args) -> Result<Vec<Value>> {
    let options = flags(args, 2)?;
    let regex = compiled(text(args, 1)?, Options { global: false, ..options })?;
    let limit = if options.global { usize::MAX } else { 1 };
    Ok(occurrences(&regex, text(args, 0)?, 0).take(limit).map(|captures| groups(&regex, &captures)).collect())
}

/// The parts between matches; an empty match at either end, or right after another, splits nothing.
pub(super) fn parts(args: Args) -> Result<Vec<Value>> {
    let whole = text(args, 0)?;
    let regex = compiled(text(args, 1)?, flags(args, 2)?)?;
    let (mut parts, mut last, mut searched) = (Vec::new(), 0, 0);
    for found in occurrences(&regex, whole, 0).filter_map(|captures| captures.get(0)) {
        let splits = found.start() < whole.len() && found.end() > searched;
        searched = found.end();
        if splits {
            parts.push(Value::text(&whole[last..found.start()]));
            last = found.end();
        }
    }
    parts.push(Value::text(&whole[last..]));
    Ok(parts)
}

pub(super) fn split(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    parts(args).map(Value::Array)
}
