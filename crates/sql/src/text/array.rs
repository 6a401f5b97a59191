//! Arrays from text. Their output is the kernel's, with members in the session's form.

use super::{Settings, input as member_input, number, type_name};
use crate::types::{INT2VECTOR, Oid, Type};
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;

fn malformed(text: &str, detail: &str) -> SqlError {
    let error = SqlError::new("22P02", format!("malformed array literal: \"{text}\""));
    if detail.is_empty() { error } else { error.with_detail(detail) }
}

fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t'..='\r')
}

/// Reads an array whose members have type `element`.
pub(super) fn input(text: &str, element: Type, settings: &Settings) -> Result<Value, SqlError> {
    let body = text.trim_matches(is_space);
    if body.starts_with('[') {
        return Err(SqlError::unsupported("arrays with explicit bounds are not supported"));
    }
    let members = split(text, body)?;
    let read = |member: Option<String>| match member {
        Some(text) => member_input(&text, element, settings),
        None => Ok(Value::Null),
    };
    members.into_iter().map(read).collect::<Result<_, _>>().map(Value::Array)
}

/// The texts of an array's members; none for a null.
fn split(whole: &str, body: &str) -> Result<Vec<Option<String>>, SqlError> {
    let Some(inner) = body.strip_prefix('{') else {
        return Err(malformed(whole, "Array value must start with \"{\" or dimension information."));
    };
    let mut members = Vec::new();
    let mut chars = inner.chars().peekable();
    let end = || malformed(whole, "Unexpected end of input.");
    while chars.next_if(|c| is_space(*c)).is_some() {}
    if chars.next_if_eq(&'}').is_some() {
        return finish(whole, chars, members);
    }
    loop {
        while chars.next_if(|c| is_space(*c)).is_some() {}
        let (mut member, mut quoted, mut kept) = (String::new(), false, 0);
        loop {
            match chars.next().ok_or_else(end)? {
                '"' => {
                    if quoted || !member.is_empty() {
                        return Err(malformed(whole, "Unexpected array element."));
                    }
                    quoted = true;
                    loop {
                        match chars.next().ok_or_else(end)? {
                            '"' => break,
                            '\\' => member.push(chars.next().ok_or_else(end)?),
                            c => member.push(c),
                        }
                    }
                    kept = member.len();
                }
                '{' => {
                    return Err(SqlError::unsupported("arrays of more than one dimension are not supported"));
                }
                c @ (',' | '}') => {
                    member.truncate(kept);
                    if !quoted && member.is_empty() {
                        return Err(malformed(whole, &format!("Unexpected \"{c}\" character.")));
                    }
                    let null = !quoted && member.eq_ignore_ascii_case("null");
                    members.push(if null { None } else { Some(member) });
                    if c == '}' {
                        return finish(whole, chars, members);
                    }
                    break;
                }
                '\\' => {
                    member.push(chars.next().ok_or_else(end)?);
                    kept = member.len();
                }
                c if is_space(c) => member.push(c),
                _ if quoted => return Err(malformed(whole, "Unexpected array element.")),
                c => {
                    member.push(c);
                    kept = member.len();
                }
            }
        }
    }
}

fn finish(
    whole: &str,
    mut rest: std::iter::Peekable<std::str::Chars<'_>>,
    members: Vec<Option<String>>,
) -> Result<Vec<Option<String>>, SqlError> {
    match rest.next() {
        None => Ok(members),
        Some(_) => Err(malformed(whole, "Junk after closing right brace.")),
    }
}

/// `1 2 3`: the vectors of PostgreSQL's catalogs.
pub(super) fn vector_in(text: &str, ty: Oid) -> Result<Value, SqlError> {
    let member = |word: &str| match ty {
        INT2VECTOR => number::integer(word, "smallint", i16::MIN.into(), i16::MAX.into()),
        _ => number::oid(word, &type_name(crate::types::OID)),
    };
    text.split_ascii_whitespace().map(member).collect::<Result<_, _>>().map(Value::Array)
}
