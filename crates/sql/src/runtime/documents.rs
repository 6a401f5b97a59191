//! Functions and operators of `json` and `jsonb`.
//!
//! A `json` is its text: what is taken out of it stands as it was written. A `jsonb` is a value, and what is made of it
//! is written anew. The functions of both kinds share their code and differ in that.

use super::{Env, Result, at, boolean, members, text, unexpected};
use crate::text::json::{self, Flavour, Json};
use crate::text::text_of;
use crate::types::*;
use isles_kernel::error::SqlError;
use isles_kernel::value::{Numeric, Value};

type Args<'a> = &'a [Value];
type Types<'a> = &'a [Oid];

fn document(args: Args, index: usize) -> Result<Json> {
    json::parse(text(args, index)?, Flavour::Jsonb)
}

fn made(json: &Json) -> Result<Value> {
    Ok(Value::Json(json::text_of(json)))
}

/// Appends a value of any type as JSON, as `to_json` makes it.
pub(super) fn write(out: &mut String, value: &Value, ty: Oid, env: &Env) -> Result<()> {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
        Value::Json(text) => out.push_str(text),
        Value::Int(_) if matches!(ty, INT2 | INT4 | INT8) => out.push_str(&text_of(value, ty, env.settings)),
        Value::Numeric(n) if !matches!(n.as_str(), "NaN" | "Infinity" | "-Infinity") => out.push_str(n.as_str()),
        Value::Float(x) if x.is_finite() => out.push_str(&text_of(value, ty, env.settings)),
        Value::Date(_) | Value::Timestamp(_) | Value::TimestampTz(_) => {
            // In ISO's own form, whatever the session's style.
            let settings = crate::text::Settings {
                date_style: crate::text::Settings::default().date_style,
                ..env.settings.clone()
            };
            let mut shown = text_of(value, ty, &settings);
            if !matches!(value, Value::Date(_)) {
                shown = shown.replacen(' ', "T", 1);
                if matches!(value, Value::TimestampTz(_)) && has_short_offset(&shown) {
                    let at = shown.find(" BC").unwrap_or(shown.len());
                    shown.insert_str(at, ":00");
                }
            }
            json::write_text(out, &shown);
        }
        Value::Array(list) => {
            let element = element_of(ty).unwrap_or(TEXT);
            out.push('[');
            for (at, member) in list.iter().enumerate() {
                out.push_str(if at > 0 { "," } else { "" });
                write(out, member, element, env)?;
            }
            out.push(']');
        }
        _ => json::write_text(out, &text_of(value, ty, env.settings)),
    }
    Ok(())
}

/// `+00` at the end, and not `+05:30`.
fn has_short_offset(shown: &str) -> bool {
    let body = shown.trim_end_matches(" BC");
    body.rfind(['+', '-']).is_some_and(|at| at > 10 && !body[at..].contains(':'))
}

/// Appends a value as the key of an object.
pub(super) fn write_key(out: &mut String, value: &Value, ty: Oid, env: &Env) -> Result<()> {
    match value {
        Value::Json(_) | Value::Array(_) => {
            Err(SqlError::new("22023", "key value must be scalar, not array, composite, or json"))
        }
        Value::Bool(b) => {
            json::write_text(out, if *b { "true" } else { "false" });
            Ok(())
        }
        _ => {
            json::write_text(out, &text_of(value, ty, env.settings));
            Ok(())
        }
    }
}

fn kind(types: Types, index: usize) -> Oid {
    types.get(index).copied().unwrap_or(TEXT)
}

fn finished(text: String, binary: bool) -> Result<Value> {
    if binary { json::canonical_text(&text).map(Value::Json) } else { Ok(Value::Json(text)) }
}

pub(super) fn to_json<const BINARY: bool>(env: &mut Env, args: Args, types: Types) -> Result<Value> {
    let mut out = String::new();
    write(&mut out, at(args, 0), kind(types, 0), env)?;
    finished(out, BINARY)
}

pub(super) fn build_array<const BINARY: bool>(env: &mut Env, args: Args, types: Types) -> Result<Value> {
    let mut out = String::from("[");
    for index in 0..args.len() {
        out.push_str(if index > 0 { ", " } else { "" });
        write(&mut out, at(args, index), kind(types, index), env)?;
    }
    out.push(']');
    finished(out, BINARY)
}

pub(super) fn build_object<const BINARY: bool>(env: &mut Env, args: Args, types: Types) -> Result<Value> {
    if !args.len().is_multiple_of(2) {
        let name = if BINARY { "jsonb_build_object" } else { "json_build_object" };
        return Err(SqlError::new("22023", "argument list must have even number of elements")
            .with_hint(format!("The arguments of {name}() must consist of alternating keys and values.")));
    }
    let mut out = String::from("{");
    for index in (0..args.len()).step_by(2) {
        out.push_str(if index > 0 { ", " } else { "" });
        if at(args, index).is_null() {
            let message = if BINARY {
                format!("argument {}: key must not be null", index + 1)
            } else {
                format!("argument {} cannot be null", index + 1)
            };
            let error = SqlError::new("22023", message);
            return Err(if BINARY { error } else { error.with_hint("Object keys should be text.") });
        }
        write_key(&mut out, at(args, index), kind(types, index), env)?;
        out.push_str(if BINARY { ": " } else { " : " });
        write(&mut out, at(args, index + 1), kind(types, index + 1), env)?;
    }
    out.push('}');
    finished(out, BINARY)
}

pub(super) fn object_from_texts<const BINARY: bool>(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let first = members(args, 0)?;
    let pairs: Vec<(&Value, &Value)> = match args.len() {
        1 if first.len() % 2 != 0 => return Err(SqlError::new("2202E", "array must have even number of elements")),
        1 => first.chunks(2).map(|pair| (&pair[0], &pair[1])).collect(),
        _ if first.is_empty() != members(args, 1)?.is_empty() => {
            return Err(SqlError::new("2202E", "wrong number of array subscripts"));
        }
        _ if first.len() != members(args, 1)?.len() => {
            return Err(SqlError::new("2202E", "mismatched array dimensions"));
        }
        _ => first.iter().zip(members(args, 1)?).collect(),
    };
    let mut out = String::from("{");
    for (index, (key, value)) in pairs.into_iter().enumerate() {
        out.push_str(if index > 0 { ", " } else { "" });
        let Value::Text(key) = key else {
            return Err(SqlError::new("22004", "null value not allowed for object key"));
        };
        json::write_text(&mut out, key);
        out.push_str(if BINARY { ": " } else { " : " });
        match value {
            Value::Text(value) => json::write_text(&mut out, value),
            _ => out.push_str("null"),
        }
    }
    out.push('}');
    finished(out, BINARY)
}

/// A part of a document by a key or an index, as the text it is.
fn part(text: &str, step: &Step) -> Result<Option<String>> {
    let Some(found) = json::members(text)? else { return Ok(None) };
    let is_object = text.trim_start().starts_with('{');
    let found = match step {
        Step::Key(key) if is_object => found.iter().rev().find(|member| member.key.as_deref() == Some(key)),
        Step::Index(index) if !is_object => place(*index, found.len()).map(|at| &found[at]),
        _ => None,
    };
    Ok(found.map(|member| member.text.to_string()))
}

enum Step {
    Key(String),
    Index(i64),
}

fn place(index: i64, length: usize) -> Option<usize> {
    let at = if index < 0 { length as i64 + index } else { index };
    usize::try_from(at).ok().filter(|at| *at < length)
}

/// A JSON text as SQL text: strings without quotes, null as null.
fn plain(text: &str) -> Result<Value> {
    let trimmed = text.trim();
    Ok(match trimmed.as_bytes().first() {
        Some(b'"') => match json::parse(trimmed, Flavour::Jsonb)? {
            Json::Text(text) => Value::Text(text),
            _ => Value::Null,
        },
        Some(b'n') => Value::Null,
        _ => Value::text(trimmed),
    })
}

fn step_of(value: &Value) -> Result<Step> {
    match value {
        Value::Text(key) => Ok(Step::Key(key.clone())),
        Value::Int(index) => Ok(Step::Index(*index)),
        other => Err(unexpected(other)),
    }
}

/// A `jsonb` that is no array or object is stored as an array of one.
fn bare(args: Args, types: Types) -> Result<Option<String>> {
    let (text, first) = (text(args, 0)?, matches!(at(args, 1), Value::Int(0 | -1)));
    let scalar = types.first() == Some(&JSONB) && first && !text.starts_with(['[', '{']);
    Ok(scalar.then(|| text.to_string()))
}

fn taken(args: Args, types: Types) -> Result<Option<String>> {
    match bare(args, types)? {
        Some(text) => Ok(Some(text)),
        None => part(text(args, 0)?, &step_of(at(args, 1))?),
    }
}

pub(super) fn field(_: &mut Env, args: Args, types: Types) -> Result<Value> {
    Ok(taken(args, types)?.map_or(Value::Null, Value::Json))
}

pub(super) fn field_text(_: &mut Env, args: Args, types: Types) -> Result<Value> {
    match taken(args, types)? {
        Some(found) => plain(&found),
        None => Ok(Value::Null),
    }
}

fn follow(args: Args) -> Result<Option<String>> {
    let mut current = text(args, 0)?.trim().to_string();
    let path: &[Value] = match at(args, 1) {
        Value::Array(path) => path,
        _ => &args[1..],
    };
    for step in path {
        let Value::Text(step) = step else { return Ok(None) };
        let step = match (current.starts_with('['), step.trim().parse::<i64>()) {
            (true, Ok(index)) => Step::Index(index),
            (true, Err(_)) => return Ok(None),
            (false, _) => Step::Key(step.clone()),
        };
        match part(&current, &step)? {
            Some(found) => current = found,
            None => return Ok(None),
        }
    }
    Ok(Some(current))
}

pub(super) fn path(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(follow(args)?.map_or(Value::Null, Value::Json))
}

pub(super) fn path_text(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    follow(args)?.map_or(Ok(Value::Null), |found| plain(&found))
}

pub(super) fn type_of(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(Value::text(match json::parse(text(args, 0)?, Flavour::Json)? {
        Json::Object(_) => "object",
        Json::Array(_) => "array",
        Json::Text(_) => "string",
        Json::Bool(_) => "boolean",
        Json::Number(_) => "number",
        Json::Null => {
            // A number too large for a numeric is a number still.
            if text(args, 0)?.trim() == "null" { "null" } else { "number" }
        }
    }))
}

pub(super) fn array_length(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    match json::parse(text(args, 0)?, Flavour::Json)? {
        Json::Array(members) => Ok(Value::Int(members.len() as i64)),
        Json::Object(_) => Err(SqlError::new("22023", "cannot get array length of a non-array")),
        _ => Err(SqlError::new("22023", "cannot get array length of a scalar")),
    }
}

fn contains_document(whole: &Json, part: &Json, top: bool) -> bool {
    match (whole, part) {
        (Json::Object(whole), Json::Object(part)) => part.iter().all(|(key, value)| {
            whole.iter().any(|(known, held)| known == key && contains_document(held, value, false))
        }),
        (Json::Array(whole), Json::Array(part)) => {
            part.iter().all(|value| whole.iter().any(|held| contains_document(held, value, false)))
        }
        // At the top an array may contain a bare value.
        (Json::Array(whole), scalar) if top && !matches!(scalar, Json::Object(_)) => {
            whole.iter().any(|held| contains_document(held, scalar, false))
        }
        (Json::Number(a), Json::Number(b)) => Numeric::compare(a.as_str(), b.as_str()).is_eq(),
        (a, b) => a == b,
    }
}

pub(super) fn contains(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(Value::Bool(contains_document(&document(args, 0)?, &document(args, 1)?, true)))
}

pub(super) fn contained(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(Value::Bool(contains_document(&document(args, 1)?, &document(args, 0)?, true)))
}

fn has_key(json: &Json, key: &str) -> bool {
    match json {
        Json::Object(members) => members.iter().any(|(known, _)| known == key),
        Json::Array(members) => members.iter().any(|member| matches!(member, Json::Text(text) if text == key)),
        Json::Text(text) => text == key,
        _ => false,
    }
}

pub(super) fn exists(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    Ok(Value::Bool(has_key(&document(args, 0)?, text(args, 1)?)))
}

pub(super) fn exists_any(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let json = document(args, 0)?;
    Ok(Value::Bool(members(args, 1)?.iter().any(|key| matches!(key, Value::Text(key) if has_key(&json, key)))))
}

pub(super) fn exists_all(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let json = document(args, 0)?;
    let held = |key: &Value| match key {
        Value::Text(key) => has_key(&json, key),
        _ => true,
    };
    Ok(Value::Bool(members(args, 1)?.iter().all(held)))
}

pub(super) fn concat(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let list = |json: Json| match json {
        Json::Array(members) => members,
        other => vec![other],
    };
    made(&match (document(args, 0)?, document(args, 1)?) {
        (Json::Object(mut a), Json::Object(b)) => {
            a.extend(b);
            Json::Object(json::canonical(a))
        }
        (a, b) => Json::Array([list(a), list(b)].concat()),
    })
}

pub(super) fn delete(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let refused = |message: &str| Err(SqlError::new("22023", message));
    made(&match (document(args, 0)?, at(args, 1)) {
        (Json::Null | Json::Bool(_) | Json::Number(_) | Json::Text(_), _) => {
            return refused("cannot delete from scalar");
        }
        (Json::Object(_), Value::Int(_)) => return refused("cannot delete from object using integer index"),
        (Json::Array(mut list), Value::Int(index)) => {
            if let Some(at) = place(*index, list.len()) {
                list.remove(at);
            }
            Json::Array(list)
        }
        (json, Value::Text(key)) => without(json, &|known| known == key),
        (json, Value::Array(keys)) => {
            without(json, &|known| keys.iter().any(|key| matches!(key, Value::Text(key) if key == known)))
        }
        (_, other) => return Err(unexpected(other)),
    })
}

fn without(json: Json, gone: &dyn Fn(&str) -> bool) -> Json {
    match json {
        Json::Object(members) => Json::Object(members.into_iter().filter(|(key, _)| !gone(key)).collect()),
        Json::Array(members) => {
            let kept = |member: &Json| !matches!(member, Json::Text(text) if gone(text));
            Json::Array(members.into_iter().filter(kept).collect())
        }
        other => other,
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Change {
    Set { create: bool },
    Insert { after: bool },
    Delete,
}

fn changed(json: Json, path: &[Value], depth: usize, value: &Json, change: Change) -> Result<Json> {
    if depth == 0 && !matches!(json, Json::Array(_) | Json::Object(_)) {
        let what = if change == Change::Delete { "cannot delete path in scalar" } else { "cannot set path in scalar" };
        return Err(SqlError::new("22023", what));
    }
    let step = match path.get(depth) {
        Some(Value::Text(step)) => step,
        Some(_) => {
            return Err(SqlError::new("22004", format!("path element at position {} is null", depth + 1)));
        }
        None => return Ok(json),
    };
    let last = depth + 1 == path.len();
    match json {
        Json::Object(mut members) => {
            match members.iter().position(|(key, _)| key == step) {
                Some(_) if last && matches!(change, Change::Insert { .. }) => {
                    return Err(SqlError::new("22023", "cannot replace existing key")
                        .with_hint("Try using the function jsonb_set to replace key value."));
                }
                Some(at) if last && change == Change::Delete => drop(members.remove(at)),
                Some(at) if last => members[at].1 = value.clone(),
                Some(at) => {
                    let (key, inner) = members.remove(at);
                    members.insert(at, (key, changed(inner, path, depth + 1, value, change)?));
                }
                None if last && matches!(change, Change::Set { create: true } | Change::Insert { .. }) => {
                    members.push((step.clone(), value.clone()));
                }
                None => {}
            }
            Ok(Json::Object(json::canonical(members)))
        }
        Json::Array(mut list) => {
            let index: i64 = step.trim().parse().map_err(|_| {
                let message = format!("path element at position {} is not an integer: \"{step}\"", depth + 1);
                SqlError::new("22P02", message)
            })?;
            let found = place(index, list.len());
            match found {
                Some(at) if last => match change {
                    Change::Set { .. } => list[at] = value.clone(),
                    Change::Insert { after } => list.insert(at + usize::from(after), value.clone()),
                    Change::Delete => drop(list.remove(at)),
                },
                Some(at) => {
                    let inner = list.remove(at);
                    list.insert(at, changed(inner, path, depth + 1, value, change)?);
                }
                None if last && matches!(change, Change::Set { create: true } | Change::Insert { .. }) => {
                    let end = if index < 0 { 0 } else { list.len() };
                    list.insert(end, value.clone());
                }
                None => {}
            }
            Ok(Json::Array(list))
        }
        scalar => Ok(scalar),
    }
}

pub(super) fn set(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let create = args.len() < 4 || boolean(args, 3)?;
    if !create && is_empty(&document(args, 0)?) {
        return Ok(at(args, 0).clone());
    }
    made(&changed(document(args, 0)?, members(args, 1)?, 0, &document(args, 2)?, Change::Set { create })?)
}

pub(super) fn insert(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let after = args.len() > 3 && boolean(args, 3)?;
    made(&changed(document(args, 0)?, members(args, 1)?, 0, &document(args, 2)?, Change::Insert { after })?)
}

/// Nothing in it: whatever the path, nothing changes.
fn is_empty(json: &Json) -> bool {
    match json {
        Json::Array(members) => members.is_empty(),
        Json::Object(members) => members.is_empty(),
        _ => false,
    }
}

pub(super) fn delete_path(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    if is_empty(&document(args, 0)?) {
        return Ok(at(args, 0).clone());
    }
    made(&changed(document(args, 0)?, members(args, 1)?, 0, &Json::Null, Change::Delete)?)
}

fn stripped(json: Json) -> Json {
    match json {
        Json::Object(members) => {
            let kept = members.into_iter().filter(|(_, value)| *value != Json::Null);
            Json::Object(kept.map(|(key, value)| (key, stripped(value))).collect())
        }
        Json::Array(members) => Json::Array(members.into_iter().map(stripped).collect()),
        other => other,
    }
}

/// Without spaces, as `json_strip_nulls` writes it.
fn write_tight(out: &mut String, json: &Json) {
    match json {
        Json::Array(members) => {
            out.push('[');
            for (at, member) in members.iter().enumerate() {
                out.push_str(if at > 0 { "," } else { "" });
                write_tight(out, member);
            }
            out.push(']');
        }
        Json::Object(members) => {
            out.push('{');
            for (at, (key, member)) in members.iter().enumerate() {
                out.push_str(if at > 0 { "," } else { "" });
                json::write_text(out, key);
                out.push(':');
                write_tight(out, member);
            }
            out.push('}');
        }
        other => json::write(out, other),
    }
}

pub(super) fn strip_nulls<const BINARY: bool>(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let flavour = if BINARY { Flavour::Jsonb } else { Flavour::Json };
    let json = stripped(json::parse(text(args, 0)?, flavour)?);
    if BINARY {
        return made(&json);
    }
    let mut out = String::new();
    write_tight(&mut out, &json);
    Ok(Value::Json(out))
}

fn write_pretty(out: &mut String, json: &Json, depth: usize) {
    let indent = |out: &mut String, depth: usize| {
        out.push('\n');
        out.extend(std::iter::repeat_n(' ', depth * 4));
    };
    match json {
        Json::Array(members) => {
            out.push('[');
            for (at, member) in members.iter().enumerate() {
                out.push_str(if at > 0 { "," } else { "" });
                indent(out, depth + 1);
                write_pretty(out, member, depth + 1);
            }
            indent(out, depth);
            out.push(']');
        }
        Json::Object(members) => {
            out.push('{');
            for (at, (key, member)) in members.iter().enumerate() {
                out.push_str(if at > 0 { "," } else { "" });
                indent(out, depth + 1);
                json::write_text(out, key);
                out.push_str(": ");
                write_pretty(out, member, depth + 1);
            }
            indent(out, depth);
            out.push('}');
        }
        other => json::write(out, other),
    }
}

pub(super) fn pretty(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    let mut out = String::new();
    write_pretty(&mut out, &document(args, 0)?, 0);
    Ok(Value::Text(out))
}

fn cannot_cast(json: &Json, to: &str) -> SqlError {
    let from = match json {
        Json::Null => "null",
        Json::Bool(_) => "boolean",
        Json::Number(_) => "numeric",
        Json::Text(_) => "string",
        Json::Array(_) => "array",
        Json::Object(_) => "object",
    };
    SqlError::new("22023", format!("cannot cast jsonb {from} to type {to}"))
}

pub(super) fn to_bool(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    match document(args, 0)? {
        Json::Bool(b) => Ok(Value::Bool(b)),
        other => Err(cannot_cast(&other, "boolean")),
    }
}

pub(super) fn to_numeric(_: &mut Env, args: Args, _: Types) -> Result<Value> {
    match document(args, 0)? {
        Json::Number(n) => Ok(Value::Numeric(n)),
        other => Err(cannot_cast(&other, "numeric")),
    }
}

pub(super) fn to_int<const BYTES: u8>(env: &mut Env, args: Args, types: Types) -> Result<Value> {
    let name = ["smallint", "integer", "bigint"][usize::from(BYTES / 4)];
    match document(args, 0)? {
        Json::Number(n) => super::math::numeric_to_int::<BYTES>(env, &[Value::Numeric(n)], types),
        other => Err(cannot_cast(&other, name)),
    }
}

pub(super) fn to_real(env: &mut Env, args: Args, types: Types) -> Result<Value> {
    match document(args, 0)? {
        Json::Number(n) => super::math::numeric_to_real(env, &[Value::Numeric(n)], types),
        other => Err(cannot_cast(&other, "real")),
    }
}

pub(super) fn to_float(env: &mut Env, args: Args, types: Types) -> Result<Value> {
    match document(args, 0)? {
        Json::Number(n) => super::math::numeric_to_float(env, &[Value::Numeric(n)], types),
        other => Err(cannot_cast(&other, "double precision")),
    }
}

/// The members of a document's top level, for the functions that return rows.
pub(super) fn elements(args: Args, as_text: bool) -> Result<Vec<Value>> {
    let given = text(args, 0)?;
    let name = if as_text { "json_array_elements_text" } else { "json_array_elements" };
    match json::members(given)? {
        Some(found) if given.trim_start().starts_with('[') => {
            found.into_iter().map(|member| piece(member.text, as_text)).collect()
        }
        Some(_) => Err(SqlError::new("22023", format!("cannot call {name} on a non-array"))),
        None => Err(SqlError::new("22023", format!("cannot call {name} on a scalar"))),
    }
}

pub(super) fn pairs(args: Args, as_text: bool) -> Result<Vec<(String, Value)>> {
    let given = text(args, 0)?;
    match json::members(given)? {
        Some(found) if given.trim_start().starts_with('{') => found
            .into_iter()
            .map(|member| Ok((member.key.clone().unwrap_or_default(), piece(member.text, as_text)?)))
            .collect(),
        Some(_) => Err(SqlError::new("22023", "cannot deconstruct an array as an object")),
        None => Err(SqlError::new("22023", "cannot deconstruct a scalar")),
    }
}

fn piece(text: &str, as_text: bool) -> Result<Value> {
    if as_text { plain(text) } else { Ok(Value::Json(text.into())) }
}
