//! Expressions of a wanted type.
//!
//! An expression is a template in which `{type}` stands for another expression. Templates are chosen so that no
//! data-dependent error can arise from small values: divisors are constants, multiplications have a small side.

use super::Ty;
use crate::rng::Rng;

/// A column that can be named where an expression stands.
#[derive(Debug, Clone)]
pub(super) struct Visible {
    pub(super) name: String,
    pub(super) ty: Ty,
}

/// Templates by the type they give. `{x}` are subexpressions; `{lit:x}` are constants.
fn templates(ty: Ty) -> &'static [&'static str] {
    match ty {
        Ty::Bool => &[
            "({int4} < {int4})",
            "({int4} = {int4})",
            "({int8} >= {int8})",
            "({int4} <> {int8})",
            "({text} = {text})",
            "({text} < {text})",
            "({varchar} = {text})",
            "({numeric} > {numeric})",
            "({numeric} = {int4})",
            "({float8} <= {float8})",
            "({date} < {date})",
            "({timestamp} >= {timestamp})",
            "({timestamptz} = {timestamptz})",
            "({date} = {timestamp})",
            "({interval} < {interval})",
            "({uuid} = {uuid})",
            "({uuid} < {uuid})",
            "({bytea} <= {bytea})",
            "({bool} = {bool})",
            "({bool} AND {bool})",
            "({bool} OR {bool})",
            "(NOT {bool})",
            "({int4} IS NULL)",
            "({text} IS NOT NULL)",
            "({int4} IS DISTINCT FROM {int4})",
            "({text} IS NOT DISTINCT FROM {text})",
            "({int4} BETWEEN {int4} AND {int4})",
            "({date} BETWEEN {date} AND {date})",
            "({int4} IN ({lit:int4}, {lit:int4}, {int4}))",
            "({text} NOT IN ({lit:text}, {lit:text}))",
            "({text} IN ({lit:text}, NULL))",
            "({text} LIKE {pattern})",
            "({text} NOT LIKE {pattern})",
            "({text} ILIKE {pattern})",
            "({text} ~ {regex})",
            "({text} !~* {regex})",
            "({bool} IS TRUE)",
            "({bool} IS NOT FALSE)",
            "({bool} IS UNKNOWN)",
            "starts_with({text}, {lit:text})",
            "({int4} = ANY (ARRAY[{lit:int4}, {lit:int4}]))",
            "({text} <> ALL (ARRAY[{lit:text}, {lit:text}]))",
            "coalesce({bool}, {bool})",
            "CASE WHEN {bool} THEN {bool} ELSE {bool} END",
            "(({int4}, {text}) = ({int4}, {text}))",
            "(({int4}, {text}) < ({int4}, {text}))",
            "({int4} < ALL (ARRAY[{lit:int4}, {lit:int4}]))",
            "({int2} = {int4})",
        ],
        Ty::Int2 => &["(({lit:int2})::smallint)", "coalesce({int2}, {int2})", "greatest({int2}, {int2})"],
        Ty::Int4 => &[
            "({int4} + {int4})",
            "({int4} - {int4})",
            "({int4} * {lit:int4})",
            "({int4} / {nonzero})",
            "({int4} % {nonzero})",
            "(- {int4})",
            "abs({int4})",
            "length({text})",
            "octet_length({text})",
            "position({lit:text} in {text})",
            "strpos({text}, {text})",
            "greatest({int4}, {int4})",
            "least({int4}, {int4}, {int4})",
            "coalesce({int4}, {int4})",
            "nullif({int4}, {int4})",
            "CASE WHEN {bool} THEN {int4} ELSE {int4} END",
            "CASE {int4} WHEN {lit:int4} THEN {int4} WHEN {lit:int4} THEN {int4} END",
            "({bool})::integer",
            "({int4} & {int4})",
            "({int4} | {lit:int4})",
            "({int4} # {int4})",
            "(~ {int4})",
            "mod({int4}, {nonzero})",
            "({int8} % 1000)::integer",
            "({numeric})::integer",
            "({float8})::integer",
            "extract(year from {date})::integer",
            "extract(dow from {timestamp})::integer",
            "ascii({text})",
            "({date} - {date})",
            "char_length({varchar})",
            "array_length(string_to_array({text}, 'a'), 1)",
            "(({int4})::text)::integer",
            "({int2} + {int4})",
            "div({int4}, {nonzero})::integer",
        ],
        Ty::Int8 => &[
            "({int8} + {int4})",
            "({int8} - {int8})",
            "({int4})::bigint",
            "({int8} * {lit:int4})",
            "({int8} / {nonzero})",
            "({int8} % {nonzero})",
            "coalesce({int8}, {int4})",
            "abs({int8})",
            "CASE WHEN {bool} THEN {int8} END",
            "({int8} & {int8})",
            "greatest({int8}, {int4})",
            "(({int8})::text)::bigint",
            "({int4}::bigint << 3)",
            "nullif({int8}, {int4})",
        ],
        Ty::Numeric => &[
            "({numeric} + {numeric})",
            "({numeric} - {int4})",
            "({numeric} * {lit:numeric})",
            "({numeric} / {nonzero})",
            "round({numeric}, 1)",
            "round({numeric})",
            "trunc({numeric}, 1)",
            "ceil({numeric})",
            "floor({numeric})",
            "abs({numeric})",
            "(- {numeric})",
            "({int4})::numeric",
            "coalesce({numeric}, {int4})",
            "({numeric})::numeric(10,1)",
            "mod({numeric}, {nonzero})",
            "greatest({numeric}, {numeric})",
            "CASE WHEN {bool} THEN {numeric} ELSE {numeric} END",
            "sign({numeric})",
            "(({numeric})::text)::numeric",
            "power({lit:numeric}, 2)",
            "extract(epoch from {interval})",
            "extract(second from {timestamp})",
            "date_part('day', {date})::numeric",
        ],
        Ty::Float8 => &[
            "({float8} + {float8})",
            "({float8} * {lit:float8})",
            "({float8} / {nonzero})",
            "(- {float8})",
            "abs({float8})",
            "({int4})::double precision",
            "floor({float8})",
            "ceil({float8})",
            "round({float8})",
            "coalesce({float8}, {float8})",
            "trunc({float8})",
            "sqrt(abs({int4}))",
            "({numeric})::double precision",
            "sign({float8})",
            "date_part('hour', {timestamp})",
            "nullif({float8}, {float8})",
        ],
        Ty::Text => &[
            "({text} || {text})",
            "lower({text})",
            "upper({text})",
            "trim({text})",
            "substr({text}, 2)",
            "substring({text} from 1 for 2)",
            "replace({text}, {lit:text}, {lit:text})",
            "left({text}, 2)",
            "right({text}, 1)",
            "coalesce({text}, {text})",
            "reverse({text})",
            "repeat({text}, 2)",
            "lpad({text}, 5, 'x')",
            "rpad({text}, 3)",
            "split_part({text}, 'a', 1)",
            "concat({text}, {int4}, {bool})",
            "concat_ws('-', {text}, {text})",
            "initcap({text})",
            "({int4})::text",
            "({numeric})::text",
            "({bool})::text",
            "({date})::text",
            "({timestamp})::text",
            "({interval})::text",
            "({uuid})::text",
            "({float8})::text",
            "CASE WHEN {bool} THEN {text} ELSE {text} END",
            "nullif({text}, {text})",
            "md5({text})",
            "translate({text}, 'ab', 'xy')",
            "({text} || {int4})",
            "format('%s-%s', {text}, {int4})",
            "greatest({text}, {text})",
            "btrim({text}, 'a')",
            "overlay({text} placing 'zz' from 1 for 1)",
            "to_char({date}, 'YYYY-MM-DD')",
            "to_char({timestamp}, 'HH24:MI:SS Mon DD')",
            "regexp_replace({text}, 'a', 'X', 'g')",
            "encode({bytea}, 'hex')",
            "quote_literal({text})",
            "array_to_string(ARRAY[{text}, {text}], ',')",
            "({varchar})::text",
            "to_hex(abs({int4}))",
            "({bytea})::text",
            "chr(65 + abs({int4}) % 20)",
        ],
        Ty::Varchar => &["({text})::varchar", "coalesce({varchar}, {varchar})", "({text})::varchar(3)"],
        Ty::Date => &[
            "({date} + {lit:int4})",
            "({date} - {lit:int4})",
            "({timestamp})::date",
            "coalesce({date}, {date})",
            "greatest({date}, {date})",
            "CASE WHEN {bool} THEN {date} END",
            "(({date})::text)::date",
            "date_trunc('month', {timestamp})::date",
            "make_date(2024, 2, 1 + abs({int4}) % 20)",
        ],
        Ty::Timestamp => &[
            "({timestamp} + {interval})",
            "({timestamp} - {interval})",
            "({date})::timestamp",
            "date_trunc('day', {timestamp})",
            "date_trunc('hour', {timestamp})",
            "coalesce({timestamp}, {timestamp})",
            "({date} + {interval})",
            "({timestamptz} AT TIME ZONE 'UTC')",
            "least({timestamp}, {timestamp})",
            "(({timestamp})::text)::timestamp",
        ],
        Ty::TimestampTz => &[
            "({timestamptz} + {interval})",
            "({timestamp} AT TIME ZONE 'UTC')",
            "coalesce({timestamptz}, {timestamptz})",
            "date_trunc('day', {timestamptz})",
            "({timestamp} AT TIME ZONE 'Europe/Berlin')",
            "({timestamp})::timestamptz",
        ],
        Ty::Interval => &[
            "({interval} + {interval})",
            "({interval} * 2)",
            "(- {interval})",
            "({timestamp} - {timestamp})",
            "coalesce({interval}, {interval})",
            "justify_hours({interval})",
            "make_interval(days => {lit:int4})",
            "(({interval})::text)::interval",
        ],
        Ty::Uuid => {
            &["coalesce({uuid}, {uuid})", "(({uuid})::text)::uuid", "CASE WHEN {bool} THEN {uuid} ELSE {uuid} END"]
        }
        Ty::Bytea => &[
            "({bytea} || {bytea})",
            "coalesce({bytea}, {bytea})",
            "decode(md5({text}), 'hex')",
            "substr({bytea}, 1, 2)",
            "convert_to({text}, 'UTF8')",
        ],
    }
}

/// A constant: from small pools, so that equal ones meet.
pub(super) fn literal(rng: &mut Rng, ty: Ty) -> String {
    if rng.chance(1, 14) {
        return format!("NULL::{}", ty.cast());
    }
    value(rng, ty)
}

/// A constant that is not null.
pub(super) fn value(rng: &mut Rng, ty: Ty) -> String {
    const TEXTS: [&str; 12] = ["", "a", "b", "ab", "Ab", "ba", "a b", "abc", "xyz", "O''Hara", "ä", "%_"];
    match ty {
        Ty::Bool => (*rng.pick(&["true", "false"])).into(),
        Ty::Int2 | Ty::Int4 => match rng.below(20) {
            0 => format!("({})", -(rng.below(100) as i64)),
            n if n < 4 => rng.below(1000).to_string(),
            _ => rng.below(12).to_string(),
        },
        Ty::Int8 => match rng.below(12) {
            0 => "3000000000".into(),
            1 => format!("({})", -(rng.below(50) as i64)),
            _ => rng.below(40).to_string(),
        },
        Ty::Numeric => format!("{}.{}", rng.below(30), rng.pick(&["0", "5", "25", "125", "10"])),
        Ty::Float8 => format!(
            "({}{}.{})::double precision",
            rng.pick(&["", "-", ""]),
            rng.below(30),
            rng.pick(&["0", "5", "25", "75"])
        ),
        Ty::Text => format!("'{}'", rng.pick(&TEXTS)),
        Ty::Varchar => format!("'{}'::varchar", rng.pick(&TEXTS)),
        Ty::Date => format!("date '2024-{:02}-{:02}'", 1 + rng.below(12), 1 + rng.below(28)),
        Ty::Timestamp => format!(
            "timestamp '2024-{:02}-{:02} {:02}:{:02}:00'",
            1 + rng.below(12),
            1 + rng.below(28),
            rng.below(24),
            rng.pick(&[0, 15, 30])
        ),
        Ty::TimestampTz => format!("timestamptz '2024-0{}-1{} 12:00:00+00'", 1 + rng.below(9), rng.below(9)),
        Ty::Interval => (*rng.pick(&[
            "interval '1 day'",
            "interval '2 hours'",
            "interval '1 month'",
            "interval '90 minutes'",
            "interval '-3 days'",
            "interval '1 year 2 mons 3 days 04:05:06'",
            "interval '0'",
        ]))
        .into(),
        Ty::Uuid => format!("'00000000-0000-4000-8000-0000000000{:02x}'::uuid", rng.below(24)),
        Ty::Bytea => (*rng.pick(&["'\\x'::bytea", "'\\x00'::bytea", "'\\x0aff'::bytea", "'\\x61'::bytea"])).into(),
    }
}

/// An expression of type `ty` over the visible columns.
pub(super) fn expr(rng: &mut Rng, ty: Ty, visible: &[Visible], depth: u32) -> String {
    let columns: Vec<&Visible> = visible.iter().filter(|column| column.ty == ty).collect();
    let column_wanted = !columns.is_empty() && rng.chance(if depth == 0 { 3 } else { 2 }, 4);
    if column_wanted {
        return rng.pick(&columns).name.clone();
    }
    if depth == 0 || rng.chance(1, 5) {
        return literal(rng, ty);
    }
    let template = *rng.pick(templates(ty));
    fill(rng, template, visible, depth - 1)
}

/// Puts expressions into a template.
pub(super) fn fill(rng: &mut Rng, template: &str, visible: &[Visible], depth: u32) -> String {
    let mut out = String::new();
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        let close = open + rest[open..].find('}').expect("a template closes what it opens");
        out.push_str(&rest[..open]);
        out.push_str(&hole(rng, &rest[open + 1..close], visible, depth));
        rest = &rest[close + 1..];
    }
    out.push_str(rest);
    out
}

fn hole(rng: &mut Rng, name: &str, visible: &[Visible], depth: u32) -> String {
    match name {
        "nonzero" => (*rng.pick(&["1", "2", "3", "7", "(-2)"])).into(),
        "pattern" => (*rng.pick(&["'a%'", "'%b%'", "'_b'", "'%'", "''", "'A_%'", "'a\\%'", "'%ä%'"])).into(),
        "regex" => (*rng.pick(&["'^a'", "'b$'", "'[a-c]+'", "'a.c'", "'(ab|xyz)'", "'a{1,2}'"])).into(),
        _ => match name.strip_prefix("lit:") {
            Some(ty) => literal(rng, named(ty)),
            None => expr(rng, named(name), visible, depth),
        },
    }
}

fn named(name: &str) -> Ty {
    Ty::ALL.into_iter().find(|ty| format!("{ty:?}").to_lowercase() == name).unwrap_or_else(|| panic!("no type {name}"))
}
