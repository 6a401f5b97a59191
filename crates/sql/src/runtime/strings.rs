//! Texts and bytes.
//!
//! Positions and lengths count characters. Letters change their case as in PostgreSQL's "C" locale: only those of
//! ASCII, so that both engines agree whatever the server's locale.

use super::{Env, Result, at, bytes, check_length, int, members, text, unexpected};
use crate::text::{cut, escaped_bytes, hex_bytes, text_of};
use crate::types::*;
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;
use md5::Digest;

type Args<'a> = &'a [Value];
type Types<'a> = &'a [Oid];

fn out(text: impl Into<String>) -> Result<Value> {
    Ok(Value::Text(text.into()))
}

fn count(n: usize) -> Result<Value> {
    Ok(Value::Int(n as i64))
}

pub(super) fn length(_: &mut Env, args: Args, types: Types) -> Result<Value> {
    let text = text(args, 0)?;
    count(if types.first() == Some(&BPCHAR) { text.trim_end_matches(' ') } else { text }.chars().count())
}

pub(super) fn octet_length(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    count(match at(args, 0) {
        Value::Bytes(b) => b.len(),
        _ => text(args, 0)?.len(),
    })
}

pub(super) fn bit_length(env: &mut Env, args: Args, types: Types) -> Result<Value> {
    match octet_length(env, args, types)? {
        Value::Int(n) => Ok(Value::Int(n * 8)),
        other => Ok(other),
    }
}

pub(super) fn lower(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    out(text(args, 0)?.to_ascii_lowercase())
}

pub(super) fn upper(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    out(text(args, 0)?.to_ascii_uppercase())
}

pub(super) fn initcap(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let mut inside = false;
    let change = |c: char| {
        let changed = if inside { c.to_ascii_lowercase() } else { c.to_ascii_uppercase() };
        inside = c.is_ascii_alphanumeric();
        changed
    };
    out(text(args, 0)?.chars().map(change).collect::<String>())
}

pub(super) fn concat(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (a, b) = (text(args, 0)?, text(args, 1)?);
    check_length(a.len() + b.len())?;
    out(format!("{a}{b}"))
}

/// A value as text, for the functions that take any.
fn shown(env: &Env, args: Args, types: Types, index: usize) -> String {
    let ty = types.get(index).copied().unwrap_or(TEXT);
    let shown = text_of(at(args, index), ty, env.settings);
    if ty == BOOL {
        shown
    } else if ty == BPCHAR {
        shown.trim_end_matches(' ').to_string()
    } else {
        shown
    }
}

pub(super) fn concat_any(env: &mut Env, args: Args, types: Types) -> Result<Value> {
    let left =
        if matches!(at(args, 0), Value::Text(_)) { text(args, 0)?.to_string() } else { inout(env, args, types, 0) };
    let right =
        if matches!(at(args, 1), Value::Text(_)) { text(args, 1)?.to_string() } else { inout(env, args, types, 1) };
    out(left + &right)
}

/// A value as a cast to text gives it.
fn inout(env: &Env, args: Args, types: Types, index: usize) -> String {
    match at(args, index) {
        Value::Bool(b) => b.to_string(),
        _ => shown(env, args, types, index),
    }
}

pub(super) fn concat_all(env: &mut Env, args: Args, types: Types) -> Result<Value> {
    let mut joined = String::new();
    for index in (0..args.len()).filter(|index| !args[*index].is_null()) {
        joined.push_str(&shown(env, args, types, index));
    }
    out(joined)
}

pub(super) fn concat_separated(env: &mut Env, args: Args, types: Types) -> Result<Value> {
    if at(args, 0).is_null() {
        return Ok(Value::Null);
    }
    let indexes = (1..args.len()).filter(|index| !args[*index].is_null());
    let parts: Vec<String> = indexes.map(|index| shown(env, args, types, index)).collect();
    out(parts.join(text(args, 0)?))
}

/// The characters from `start` (from 1) on, `length` of them.
fn slice(text: &str, start: i64, length: Option<i64>) -> Result<String> {
    let end = match length {
        Some(length) if length < 0 => {
            return Err(SqlError::new("22011", "negative substring length not allowed"));
        }
        Some(length) => start.saturating_add(length),
        None => i64::MAX,
    };
    let from = start.max(1);
    let wanted = usize::try_from(end.saturating_sub(from)).unwrap_or(0);
    Ok(text.chars().skip((from - 1) as usize).take(wanted).collect())
}

pub(super) fn substring(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let length = if args.len() > 2 { Some(int(args, 2)?) } else { None };
    out(slice(text(args, 0)?, int(args, 1)?, length)?)
}

pub(super) fn substring_bytes(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (data, start) = (bytes(args, 0)?, int(args, 1)?);
    let end = match args.len() {
        2 => i64::MAX,
        _ if int(args, 2)? < 0 => return Err(SqlError::new("22011", "negative substring length not allowed")),
        _ => start.saturating_add(int(args, 2)?),
    };
    let from = (start.max(1) - 1).min(data.len() as i64) as usize;
    let to = (end.max(1) - 1).clamp(from as i64, data.len() as i64) as usize;
    Ok(Value::Bytes(data[from..to].to_vec()))
}

pub(super) fn position(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (whole, part) = (text(args, 0)?, text(args, 1)?);
    count(whole.find(part).map_or(0, |at| whole[..at].chars().count() + 1))
}

pub(super) fn position_bytes(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (whole, part) = (bytes(args, 0)?, bytes(args, 1)?);
    let found = if part.is_empty() { Some(0) } else { whole.windows(part.len()).position(|window| window == part) };
    count(found.map_or(0, |at| at + 1))
}

fn set(args: Args) -> Result<Vec<char>> {
    if args.len() < 2 { Ok(vec![' ']) } else { Ok(text(args, 1)?.chars().collect()) }
}

pub(super) fn trim(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    out(text(args, 0)?.trim_matches(&set(args)?[..]))
}

pub(super) fn trim_left(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    out(text(args, 0)?.trim_start_matches(&set(args)?[..]))
}

pub(super) fn trim_right(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    out(text(args, 0)?.trim_end_matches(&set(args)?[..]))
}

pub(super) fn trim_bytes(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (data, set) = (bytes(args, 0)?, bytes(args, 1)?);
    let from = data.iter().take_while(|byte| set.contains(byte)).count();
    let tail = data[from..].iter().rev().take_while(|byte| set.contains(byte)).count();
    Ok(Value::Bytes(data[from..data.len() - tail].to_vec()))
}

/// The text cut to `width` characters, and what must be added to reach it.
fn padding(args: Args) -> Result<(String, String)> {
    let fill = if args.len() > 2 { text(args, 2)? } else { " " };
    let width = int(args, 1)?.max(0) as usize;
    check_length(width)?;
    let kept: String = text(args, 0)?.chars().take(width).collect();
    let missing = width - kept.chars().count();
    Ok((kept, fill.chars().cycle().take(if fill.is_empty() { 0 } else { missing }).collect()))
}

pub(super) fn pad_left(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    padding(args).and_then(|(kept, fill)| out(fill + &kept))
}

pub(super) fn pad_right(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    padding(args).and_then(|(kept, fill)| out(kept + &fill))
}

pub(super) fn repeat(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (text, times) = (text(args, 0)?, int(args, 1)?.max(0) as usize);
    check_length(text.len().saturating_mul(times))?;
    out(text.repeat(times))
}

pub(super) fn replace(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (whole, from, to) = (text(args, 0)?, text(args, 1)?, text(args, 2)?);
    if from.is_empty() {
        return out(whole);
    }
    check_length(whole.len() + whole.matches(from).count() * to.len())?;
    out(whole.replace(from, to))
}

pub(super) fn reverse(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    out(text(args, 0)?.chars().rev().collect::<String>())
}

pub(super) fn left(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (text, n) = (text(args, 0)?, int(args, 1)?);
    let kept = if n >= 0 { n as usize } else { text.chars().count().saturating_sub(n.unsigned_abs() as usize) };
    out(text.chars().take(kept).collect::<String>())
}

pub(super) fn right(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (text, n) = (text(args, 0)?, int(args, 1)?);
    let skipped = if n >= 0 { text.chars().count().saturating_sub(n as usize) } else { n.unsigned_abs() as usize };
    out(text.chars().skip(skipped).collect::<String>())
}

pub(super) fn split_part(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (whole, separator, n) = (text(args, 0)?, text(args, 1)?, int(args, 2)?);
    if n == 0 {
        return Err(SqlError::new("22023", "field position must not be zero"));
    }
    let parts: Vec<&str> = if separator.is_empty() { vec![whole] } else { whole.split(separator).collect() };
    let index = if n > 0 { n - 1 } else { parts.len() as i64 + n };
    out(usize::try_from(index).ok().and_then(|index| parts.get(index)).copied().unwrap_or(""))
}

pub(super) fn translate(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (whole, from, to) = (text(args, 0)?, text(args, 1)?, text(args, 2)?);
    let to: Vec<char> = to.chars().collect();
    let change = |c: char| match from.chars().position(|known| known == c) {
        Some(index) => to.get(index).copied(),
        None => Some(c),
    };
    out(whole.chars().filter_map(change).collect::<String>())
}

pub(super) fn ascii(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(Value::Int(text(args, 0)?.chars().next().map_or(0, |c| c as i64)))
}

pub(super) fn chr(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let n = int(args, 0)?;
    match n {
        0 => Err(SqlError::new("54000", "null character not permitted")),
        _ if n < 0 => Err(SqlError::new("22023", "character number must be positive")),
        _ => match u32::try_from(n).ok().and_then(char::from_u32) {
            Some(c) => out(c),
            None => Err(SqlError::new("54000", format!("requested character too large for encoding: {n}"))),
        },
    }
}

pub(super) fn starts_with(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(Value::Bool(text(args, 0)?.starts_with(text(args, 1)?)))
}

fn data(args: Args<'_>) -> Result<&[u8]> {
    match at(args, 0) {
        Value::Bytes(b) => Ok(b),
        Value::Text(s) => Ok(s.as_bytes()),
        other => Err(unexpected(other)),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(super) fn md5(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    out(hex(&md5::Md5::digest(data(args)?)))
}

pub(super) fn sha<const BITS: u32>(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let data = data(args)?;
    Ok(Value::Bytes(match BITS {
        224 => sha2::Sha224::digest(data).to_vec(),
        256 => sha2::Sha256::digest(data).to_vec(),
        384 => sha2::Sha384::digest(data).to_vec(),
        _ => sha2::Sha512::digest(data).to_vec(),
    }))
}

const BASE64: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
/// A line of base64, as mail has them.
const LINE: usize = 76;

fn base64(bytes: &[u8]) -> String {
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        if text.len() % (LINE + 1) == LINE {
            text.push('\n');
        }
        let word = chunk.iter().fold(0u32, |word, byte| word << 8 | u32::from(*byte)) << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let digit = BASE64[(word >> (18 - 6 * place)) as usize & 63];
            text.push(if place > chunk.len() { '=' } else { char::from(digit) });
        }
    }
    text
}

fn from_base64(text: &str) -> Result<Vec<u8>> {
    let refused =
        |c: char| SqlError::new("22023", format!("invalid symbol \"{c}\" found while decoding base64 sequence"));
    let end = || SqlError::new("22023", "invalid base64 end sequence");
    let (mut bytes, mut word, mut digits, mut padding) = (Vec::new(), 0u32, 0, 0);
    for c in text.chars().filter(|c| !matches!(c, ' ' | '\t' | '\n' | '\r')) {
        let digit = match BASE64.iter().position(|known| char::from(*known) == c) {
            Some(digit) if padding == 0 => digit as u32,
            Some(_) => return Err(end()),
            None if c == '=' => {
                padding += 1;
                if digits < 2 || padding > 2 {
                    return Err(SqlError::new("22023", "unexpected \"=\" while decoding base64 sequence"));
                }
                0
            }
            None => return Err(refused(c)),
        };
        word = word << 6 | digit;
        digits += 1;
        if digits == 4 {
            bytes.extend_from_slice(&word.to_be_bytes()[1..4 - padding]);
            (word, digits) = (0, 0);
        }
    }
    if digits == 0 {
        Ok(bytes)
    } else {
        Err(end().with_hint("Input data is missing padding, is truncated, or is otherwise corrupted."))
    }
}

fn unknown_encoding(name: &str) -> SqlError {
    SqlError::new("22023", format!("unrecognized encoding: \"{name}\""))
}

pub(super) fn encode(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (data, how) = (bytes(args, 0)?, text(args, 1)?);
    match how.to_ascii_lowercase().as_str() {
        "hex" => out(hex(data)),
        "base64" => out(base64(data)),
        "escape" => {
            let mut text = String::new();
            for byte in data {
                match byte {
                    b'\\' => text.push_str("\\\\"),
                    0 | 0x80.. => text.push_str(&format!("\\{byte:03o}")),
                    _ => text.push(char::from(*byte)),
                }
            }
            out(text)
        }
        _ => Err(unknown_encoding(how)),
    }
}

pub(super) fn decode(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (data, how) = (text(args, 0)?, text(args, 1)?);
    match how.to_ascii_lowercase().as_str() {
        "hex" => hex_bytes(data).map(Value::Bytes),
        "base64" => from_base64(data).map(Value::Bytes),
        "escape" => {
            let bytes = escaped_bytes(data);
            bytes.map(Value::Bytes).ok_or_else(|| SqlError::new("22P02", "invalid input syntax for type bytea"))
        }
        _ => Err(unknown_encoding(how)),
    }
}

/// PostgreSQL's words that cannot be names without quotes.
#[rustfmt::skip]
const RESERVED: &[&str] = &[
    "all", "analyse", "analyze", "and", "any", "array", "as", "asc", "asymmetric", "authorization", "between", "bigint",
    "binary", "bit", "boolean", "both", "case", "cast", "char", "character", "check", "coalesce", "collate", "collation",
    "column", "concurrently", "constraint", "create", "cross", "current_catalog", "current_date", "current_role",
    "current_schema", "current_time", "current_timestamp", "current_user", "dec", "decimal", "default", "deferrable",
    "desc", "distinct", "do", "else", "end", "except", "exists", "extract", "false", "fetch", "float", "for", "foreign",
    "freeze", "from", "full", "grant", "greatest", "group", "grouping", "having", "ilike", "in", "initially", "inner",
    "inout", "int", "integer", "intersect", "interval", "into", "is", "isnull", "join", "lateral", "leading", "least",
    "left", "like", "limit", "localtime", "localtimestamp", "national", "natural", "nchar", "none", "normalize", "not",
    "notnull", "null", "nullif", "numeric", "offset", "on", "only", "or", "order", "out", "outer", "overlaps", "overlay",
    "placing", "position", "precision", "primary", "real", "references", "returning", "right", "row", "select",
    "session_user", "setof", "similar", "smallint", "some", "substring", "symmetric", "table", "tablesample", "then",
    "time", "timestamp", "to", "trailing", "treat", "trim", "true", "union", "unique", "user", "using", "values",
    "varchar", "variadic", "verbose", "when", "where", "window", "with", "xmlattributes", "xmlconcat", "xmlelement",
    "xmlexists", "xmlforest", "xmlnamespaces", "xmlparse", "xmlpi", "xmlroot", "xmlserialize", "xmltable",
];

/// Whether a word in small letters is a name only in quotes.
pub(crate) fn is_reserved(word: &str) -> bool {
    RESERVED.binary_search(&word).is_ok()
}

pub(crate) fn quoted_identifier(name: &str) -> String {
    let plain = name.bytes().all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_'))
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && !name.is_empty()
        && !is_reserved(name);
    if plain { name.to_string() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

fn quoted_literal(text: &str) -> String {
    let escape = if text.contains('\\') { " E" } else { "" };
    format!("{}'{}'", escape.trim_start(), text.replace('\\', "\\\\").replace('\'', "''"))
}

pub(super) fn quote_ident(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    out(quoted_identifier(text(args, 0)?))
}

pub(super) fn quote_literal(env: &mut Env, args: Args, types: Types) -> Result<Value> {
    out(quoted_literal(&inout(env, args, types, 0)))
}

pub(super) fn quote_nullable(env: &mut Env, args: Args, types: Types) -> Result<Value> {
    if at(args, 0).is_null() { out("NULL") } else { quote_literal(env, args, types) }
}

/// `format('%s %I %L', …)`.
pub(super) fn format_text(env: &mut Env, args: Args, types: Types) -> Result<Value> {
    if at(args, 0).is_null() {
        return Ok(Value::Null);
    }
    let bad = |message: String| SqlError::new("22023", message);
    let mut result = String::new();
    let mut chars = text(args, 0)?.chars().peekable();
    let mut next = 1;
    while let Some(c) = chars.next() {
        if c != '%' {
            result.push(c);
            continue;
        }
        if chars.next_if_eq(&'%').is_some() {
            result.push('%');
            continue;
        }
        let mut digits = String::new();
        while let Some(digit) = chars.next_if(char::is_ascii_digit) {
            digits.push(digit);
        }
        let mut index = None;
        if !digits.is_empty() && chars.next_if_eq(&'$').is_some() {
            index = digits.parse::<usize>().ok();
            if index == Some(0) {
                return Err(bad("format specifies argument 0, but arguments are numbered from 1".into()));
            }
            digits.clear();
        }
        let left = chars.next_if_eq(&'-').is_some();
        while let Some(digit) = chars.next_if(char::is_ascii_digit) {
            digits.push(digit);
        }
        let few = || bad("too few arguments for format()".into());
        let mut width: i64 = digits.parse().unwrap_or(0);
        if digits.is_empty() && chars.next_if_eq(&'*').is_some() {
            width = if at(args, next).is_null() { 0 } else { int(args, next)? };
            next += 1;
        }
        let kind = chars.next().ok_or_else(|| {
            bad("unterminated format() type specifier".into()).with_hint("For a single \"%\" use \"%%\".")
        })?;
        let place = index.unwrap_or(next);
        if !matches!(kind, 's' | 'I' | 'L') {
            let message = format!("unrecognized format() type specifier \"{kind}\"");
            return Err(bad(message).with_hint("For a single \"%\" use \"%%\"."));
        }
        if place >= args.len() {
            return Err(few());
        }
        next = place + 1;
        let null = at(args, place).is_null();
        let piece = match kind {
            's' if null => String::new(),
            'L' if null => "NULL".into(),
            'I' if null => return Err(SqlError::new("22004", "null values cannot be formatted as an SQL identifier")),
            's' => shown(env, args, types, place),
            'I' => quoted_identifier(&shown(env, args, types, place)),
            _ => quoted_literal(&shown(env, args, types, place)),
        };
        let missing = " ".repeat((width.unsigned_abs() as usize).saturating_sub(piece.chars().count()).min(MAX_WIDTH));
        result += &if left || width < 0 { piece + &missing } else { missing + &piece };
        check_length(result.len())?;
    }
    out(result)
}

/// More spaces than this in one place are a mistake.
const MAX_WIDTH: usize = 1 << 20;

pub(super) fn overlay(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (whole, part, start) = (text(args, 0)?, text(args, 1)?, int(args, 2)?);
    let length = if args.len() > 3 { int(args, 3)? } else { part.chars().count() as i64 };
    if start <= 0 {
        return Err(SqlError::new("22011", "negative substring length not allowed"));
    }
    if i32::try_from(start.saturating_add(length)).is_err() {
        return Err(SqlError::new("22003", "integer out of range"));
    }
    let head = slice(whole, 1, Some(start - 1))?;
    let tail = slice(whole, start.saturating_add(length), None)?;
    out(head + part + &tail)
}

pub(super) fn get_byte(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (data, index) = (bytes(args, 0)?, int(args, 1)?);
    let byte = usize::try_from(index).ok().and_then(|at| data.get(at));
    byte.map(|byte| Value::Int((*byte).into())).ok_or_else(|| {
        SqlError::new("2202E", format!("index {index} out of valid range, 0..{}", data.len() as i64 - 1))
    })
}

pub(super) fn set_byte(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let (mut data, index, byte) = (bytes(args, 0)?.to_vec(), int(args, 1)?, int(args, 2)?);
    let last = data.len() as i64 - 1;
    match usize::try_from(index).ok().and_then(|at| data.get_mut(at)) {
        Some(place) => {
            *place = byte as u8;
            Ok(Value::Bytes(data))
        }
        None => Err(SqlError::new("2202E", format!("index {index} out of valid range, 0..{last}"))),
    }
}

pub(super) fn concat_bytes(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(Value::Bytes([bytes(args, 0)?, bytes(args, 1)?].concat()))
}

pub(super) fn to_text(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    out(text(args, 0)?)
}

pub(super) fn bpchar_to_text(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    out(text(args, 0)?.trim_end_matches(' '))
}

pub(super) fn to_name(_: &mut Env, args: Args, types: Types) -> Result<Value> {
    let text = text(args, 0)?;
    out(cut(if types.first() == Some(&BPCHAR) { text.trim_end_matches(' ') } else { text }, 63))
}

pub(super) fn to_char_type(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    out(cut(text(args, 0)?, 1))
}

pub(super) fn char_to_int(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(Value::Int(text(args, 0)?.bytes().next().map_or(0, |b| i64::from(b as i8))))
}

fn zero_byte() -> SqlError {
    SqlError::new("22021", "invalid byte sequence for encoding \"UTF8\": 0x00")
}

pub(super) fn convert_from(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let encoding = text(args, 1)?.to_ascii_uppercase();
    if !matches!(encoding.as_str(), "UTF8" | "UTF-8" | "UNICODE" | "SQL_ASCII") {
        return Err(SqlError::unsupported(format!("encoding \"{encoding}\" is not supported")));
    }
    let data = bytes(args, 0)?;
    match std::str::from_utf8(data) {
        Ok(text) if !text.contains('\0') => out(text),
        Ok(_) => Err(zero_byte()),
        Err(error) if data[..error.valid_up_to()].contains(&0) => Err(zero_byte()),
        Err(error) => {
            let wrong = data[error.valid_up_to()..].iter().take(error.error_len().unwrap_or(1));
            let wrong: Vec<String> = wrong.map(|byte| format!("0x{byte:02x}")).collect();
            Err(SqlError::new("22021", format!("invalid byte sequence for encoding \"UTF8\": {}", wrong.join(" "))))
        }
    }
}

pub(super) fn convert_to(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let encoding = text(args, 1)?.to_ascii_uppercase();
    if !matches!(encoding.as_str(), "UTF8" | "UTF-8" | "UNICODE" | "SQL_ASCII") {
        return Err(SqlError::unsupported(format!("encoding \"{encoding}\" is not supported")));
    }
    Ok(Value::Bytes(text(args, 0)?.as_bytes().to_vec()))
}

pub(super) fn array_to_string(env: &mut Env, args: Args, types: Types) -> Result<Value> {
    if at(args, 0).is_null() || at(args, 1).is_null() {
        return Ok(Value::Null);
    }
    let element = types.first().and_then(|ty| element_of(*ty)).unwrap_or(TEXT);
    let null = if at(args, 2).is_null() { None } else { Some(text(args, 2)?.to_string()) };
    let member = |value: &Value| match value.is_null() {
        true => null.clone(),
        false => Some(text_of(value, element, env.settings)),
    };
    let parts: Vec<String> = members(args, 0)?.iter().filter_map(member).collect();
    out(parts.join(text(args, 1)?))
}

/// The parts of a text; a part that is the null text is null.
pub(super) fn split(args: Args) -> Result<Vec<Value>> {
    let whole = text(args, 0)?;
    let null = if at(args, 2).is_null() { None } else { Some(text(args, 2)?) };
    let part = |part: &str| if Some(part) == null { Value::Null } else { Value::text(part) };
    if whole.is_empty() {
        return Ok(vec![]);
    }
    Ok(match at(args, 1) {
        Value::Null => whole.chars().map(|c| part(c.encode_utf8(&mut [0; 4]))).collect(),
        Value::Text(separator) if separator.is_empty() => vec![part(whole)],
        Value::Text(separator) => whole.split(separator.as_str()).map(part).collect(),
        other => return Err(unexpected(other)),
    })
}

pub(super) fn string_to_array(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    if at(args, 0).is_null() { Ok(Value::Null) } else { split(args).map(Value::Array) }
}
