//! Names of types, functions and relations, as PostgreSQL reads and writes them.

use super::data;
use isles_kernel::error::SqlError;

/// The oid of the schema `public`, as in every PostgreSQL database.
pub(super) const PUBLIC_OID: u32 = 2_200;
pub(super) const PG_CATALOG_OID: u32 = 11;
/// PostgreSQL gives `information_schema` a number at `initdb`; this is the one of the server that the relations' own
/// numbers are from.
pub(super) const INFORMATION_SCHEMA_OID: u32 = 13_207;

pub(super) const SCHEMAS: [(u32, &str); 3] =
    [(PG_CATALOG_OID, "pg_catalog"), (PUBLIC_OID, "public"), (INFORMATION_SCHEMA_OID, "information_schema")];

pub(super) fn schema_oid(name: &str) -> Option<u32> {
    SCHEMAS.iter().find(|(_, schema)| *schema == name).map(|(oid, _)| *oid)
}

/// A name, in quotes where it would not be read back as itself.
pub(super) fn quote_identifier(name: &str) -> String {
    let mut bytes = name.bytes();
    let starts = bytes.next().is_some_and(|b| b.is_ascii_lowercase() || b == b'_');
    let plain = starts && bytes.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
    let reserved = data::keyword(name).is_some_and(|keyword| keyword.category != "U");
    if plain && !reserved { name.into() } else { format!("\"{}\"", name.replace('"', "\"\"")) }
}

pub(super) fn quote_list(names: &[&str]) -> String {
    names.iter().map(|name| quote_identifier(name)).collect::<Vec<_>>().join(", ")
}

/// Splits a possibly qualified name: quotes are taken off, and what is not in quotes is made lower case.
pub(super) fn split_name(text: &str) -> Result<Vec<String>, SqlError> {
    let invalid = || SqlError::new("42602", "invalid name syntax");
    let mut parts = Vec::new();
    let mut rest = text.trim();
    loop {
        let (part, after) = take_part(rest).ok_or_else(invalid)?;
        parts.push(part);
        match after.trim_start() {
            "" => return Ok(parts),
            more => rest = more.strip_prefix('.').ok_or_else(invalid)?.trim_start(),
        }
    }
}

fn take_part(text: &str) -> Option<(String, &str)> {
    if let Some(quoted) = text.strip_prefix('"') {
        return take_quoted(quoted);
    }
    let end = text.find(|c: char| c == '.' || c.is_whitespace() || c == '"').unwrap_or(text.len());
    (end > 0).then(|| (text[..end].to_lowercase(), &text[end..]))
}

fn take_quoted(text: &str) -> Option<(String, &str)> {
    let mut part = String::new();
    let mut rest = text;
    loop {
        let end = rest.find('"')?;
        part.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix('"') {
            Some(more) => {
                part.push('"');
                rest = more;
            }
            None => return (!part.is_empty()).then_some((part, rest)),
        }
    }
}

/// What `format_type` says of a type without a modifier's text.
fn plain_type_name(row: &data::TypeRow) -> Option<&'static str> {
    Some(match row.name {
        "bool" => "boolean",
        "int2" => "smallint",
        "int4" => "integer",
        "int8" => "bigint",
        "float4" => "real",
        "float8" => "double precision",
        "varchar" => "character varying",
        "varbit" => "bit varying",
        "numeric" | "interval" | "bit" => row.name,
        _ => return None,
    })
}

/// `format_type(oid, modifier)`; `None` for a modifier that was not given.
pub(crate) fn format_type(oid: u32, modifier: Option<i32>) -> String {
    if oid == 0 {
        return "-".into();
    }
    let Some(row) = data::type_row(oid) else { return "???".into() };
    if row.is_array
        && let Some(element) = data::type_row(row.element)
    {
        return format!("{}[]", format_type(element.oid, modifier));
    }
    let limit = modifier.filter(|m| *m >= 0);
    match row.name {
        "bpchar" => character(modifier),
        "bit" if limit.is_none() => {
            if modifier.is_some() {
                "\"bit\"".into()
            } else {
                "bit".into()
            }
        }
        "time" => time("time", limit, "without time zone"),
        "timetz" => time("time", limit, "with time zone"),
        "timestamp" => time("timestamp", limit, "without time zone"),
        "timestamptz" => time("timestamp", limit, "with time zone"),
        "interval" => format!("interval{}", limit.map(interval_modifier).unwrap_or_default()),
        "numeric" => format!("numeric{}", limit.map(numeric_modifier).unwrap_or_default()),
        "varchar" => format!("character varying{}", limit.map(|m| format!("({})", m - 4)).unwrap_or_default()),
        "bit" | "varbit" => {
            format!(
                "{}{}",
                plain_type_name(row).unwrap_or(row.name),
                limit.map(|m| format!("({m})")).unwrap_or_default()
            )
        }
        name => plain_type_name(row).map_or_else(|| quote_identifier(name), str::to_string),
    }
}

/// Without any modifier it is `character`; with the modifier of none it is `bpchar`, since `character` alone is
/// `character(1)`.
fn character(modifier: Option<i32>) -> String {
    match modifier {
        None => "character".into(),
        Some(m) if m < 0 => "bpchar".into(),
        Some(m) => format!("character({})", m - 4),
    }
}

fn time(name: &str, precision: Option<i32>, zone: &str) -> String {
    match precision {
        Some(precision) => format!("{name}({precision}) {zone}"),
        None => format!("{name} {zone}"),
    }
}

fn numeric_modifier(modifier: i32) -> String {
    let modifier = modifier - 4;
    // A scale is eleven bits, with sign.
    let scale = ((modifier & 0x7ff) ^ 1_024) - 1_024;
    format!("({},{scale})", (modifier >> 16) & 0xffff)
}

/// Fields in the upper half, precision in the lower; all fields and no precision are not said.
fn interval_modifier(modifier: i32) -> String {
    const YEAR: i32 = 1 << 2;
    const MONTH: i32 = 1 << 1;
    const DAY: i32 = 1 << 3;
    const HOUR: i32 = 1 << 10;
    const MINUTE: i32 = 1 << 11;
    const SECOND: i32 = 1 << 12;
    let fields = match (modifier >> 16) & 0x7fff {
        YEAR => " year",
        MONTH => " month",
        DAY => " day",
        HOUR => " hour",
        MINUTE => " minute",
        SECOND => " second",
        f if f == YEAR | MONTH => " year to month",
        f if f == DAY | HOUR => " day to hour",
        f if f == DAY | HOUR | MINUTE => " day to minute",
        f if f == DAY | HOUR | MINUTE | SECOND => " day to second",
        f if f == HOUR | MINUTE => " hour to minute",
        f if f == HOUR | MINUTE | SECOND => " hour to second",
        f if f == MINUTE | SECOND => " minute to second",
        _ => "",
    };
    match modifier & 0xffff {
        0xffff => fields.into(),
        precision => format!("{fields}({precision})"),
    }
}

/// The built-in type of a name as SQL writes it: `integer`, `varchar(20)`, `timestamp with time zone`, `pg_catalog.int4[]`.
pub(super) fn parse_type(text: &str) -> Result<u32, SqlError> {
    let missing = || SqlError::new("42704", format!("type \"{}\" does not exist", text.trim()));
    let (base, is_array) = strip_array(text.trim());
    let base = strip_modifier(base);
    let name = spelled_out(&base.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" "));
    let oid = match name {
        Some(name) => type_named(name),
        None => {
            let parts = split_name(base)?;
            match &parts[..] {
                [name] => type_named(name),
                [schema, name] => match schema_oid(schema) {
                    None => return Err(SqlError::new("3F000", format!("schema \"{schema}\" does not exist"))),
                    Some(PG_CATALOG_OID) => type_named(name),
                    Some(_) => None,
                },
                _ => None,
            }
        }
    };
    let row = oid.and_then(data::type_row).ok_or_else(missing)?;
    let oid = if is_array { row.array } else { row.oid };
    if oid == 0 { Err(missing()) } else { Ok(oid) }
}

pub(super) fn type_named(name: &str) -> Option<u32> {
    data::types().find(|row| row.name == name).map(|row| row.oid)
}

fn strip_array(text: &str) -> (&str, bool) {
    match text.strip_suffix(']').and_then(|t| t.rsplit_once('[')) {
        Some((base, bounds)) if bounds.trim().bytes().all(|b| b.is_ascii_digit()) => {
            (strip_array(base.trim_end()).0, true)
        }
        _ => (text, false),
    }
}

/// Takes `(10,2)` out of the name, also from `timestamp(3) with time zone`.
fn strip_modifier(text: &str) -> &str {
    match (text.find('('), text.ends_with(')')) {
        (Some(at), true) if !text.starts_with('"') => text[..at].trim_end(),
        _ => text,
    }
}

/// The catalog's name of what SQL spells otherwise.
fn spelled_out(words: &str) -> Option<&'static str> {
    let (first, rest) = words.split_once('(').unwrap_or((words, ""));
    let zone = rest.rsplit_once(')').map_or("", |(_, zone)| zone.trim());
    match first.trim_end() {
        "timestamp" if zone == "with time zone" => return Some("timestamptz"),
        "time" if zone == "with time zone" => return Some("timetz"),
        "timestamp" if zone == "without time zone" => return Some("timestamp"),
        "time" if zone == "without time zone" => return Some("time"),
        _ => {}
    }
    Some(match words {
        "boolean" => "bool",
        "smallint" => "int2",
        "integer" | "int" => "int4",
        "bigint" => "int8",
        "real" => "float4",
        "double precision" | "float" => "float8",
        "decimal" | "dec" | "numeric" => "numeric",
        "character varying" | "char varying" | "varchar" => "varchar",
        "character" | "char" => "bpchar",
        "bit varying" => "varbit",
        "timestamp without time zone" => "timestamp",
        "timestamp with time zone" => "timestamptz",
        "time without time zone" => "time",
        "time with time zone" => "timetz",
        _ => return None,
    })
}

/// A function with its parameters, as `regprocedure` writes it.
pub(super) fn function_signature(row: &data::FunctionRow) -> String {
    let args: Vec<String> = row.args.iter().map(|oid| format_type(*oid, None)).collect();
    format!("{}({})", quote_identifier(row.name), args.join(","))
}

/// What `pg_get_function_arguments` shows, or with [`Shown::Identity`] `pg_get_function_identity_arguments`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    All,
    Identity,
}

pub(super) fn function_arguments(row: &data::FunctionRow, shown: Shown) -> String {
    let types = row.all_args.as_ref().unwrap_or(&row.args);
    let mode = |at: usize| row.modes.get(at).copied().unwrap_or("i");
    let input = |at: &usize| matches!(mode(*at), "i" | "b" | "v");
    let inputs: Vec<usize> = (0..types.len()).filter(input).collect();
    let first_default = inputs.len().saturating_sub(row.defaults.len());
    let visible = |at: &usize| match shown {
        // The columns of a result table belong to the result.
        Shown::All => mode(*at) != "t",
        Shown::Identity => input(at),
    };
    let parameter = |at: usize| {
        let name = row.names.get(at).filter(|name| !name.is_empty());
        let name = name.map(|name| format!("{} ", quote_identifier(name))).unwrap_or_default();
        let nth = inputs.iter().position(|input| *input == at).filter(|nth| *nth >= first_default);
        let default = nth.filter(|_| shown == Shown::All).and_then(|nth| row.defaults.get(nth - first_default));
        let default = default.map(|default| format!(" DEFAULT {default}")).unwrap_or_default();
        format!("{}{name}{}{default}", mode_word(mode(at)), format_type(types[at], None))
    };
    (0..types.len()).filter(visible).map(parameter).collect::<Vec<_>>().join(", ")
}

fn mode_word(mode: &str) -> &'static str {
    match mode {
        "o" => "OUT ",
        "b" => "INOUT ",
        "v" => "VARIADIC ",
        _ => "",
    }
}

pub(super) fn function_result(row: &data::FunctionRow) -> String {
    let set = if row.returns_set { "SETOF " } else { "" };
    format!("{set}{}", format_type(row.result, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The oracle's own answers.
    #[test]
    fn types_are_written_as_postgresql_writes_them() {
        let say = |oid, modifier: i32| format_type(oid, Some(modifier));
        assert_eq!(say(1043, 24), "character varying(20)");
        assert_eq!(say(1042, -1), "bpchar");
        assert_eq!(format_type(1042, None), "character");
        assert_eq!(say(1042, 9), "character(5)");
        assert_eq!(say(1700, 655_366), "numeric(10,2)");
        assert_eq!(say(1015, 24), "character varying(20)[]");
        assert_eq!(say(1083, 3), "time(3) without time zone");
        assert_eq!(say(18, -1), "\"char\"");
        assert_eq!(say(1184, -1), "timestamp with time zone");
        assert_eq!(say(22, -1), "int2vector");
        assert_eq!(say(1560, -1), "\"bit\"");
        assert_eq!(say(1186, (4 << 16) | 0xffff), "interval year");
        assert_eq!(say(99_999, -1), "???");
    }

    #[test]
    fn types_are_read_as_postgresql_reads_them() {
        let names = [
            ("int4", 23),
            ("INTEGER", 23),
            ("varchar(3)[]", 1_015),
            ("pg_catalog.int4", 23),
            ("\"char\"", 18),
            ("char", 1_042),
            ("timestamp(3) with time zone", 1_184),
            ("timestamp  with  time zone", 1_184),
            ("numeric(10,2)", 1_700),
            ("double precision", 701),
            ("_int4", 1_007),
        ];
        for (name, oid) in names {
            assert_eq!(parse_type(name).expect(name), oid, "{name}");
        }
        assert_eq!(parse_type("nope").expect_err("none").message, "type \"nope\" does not exist");
        assert_eq!(parse_type("x.int4").expect_err("none").sqlstate, "3F000");
    }

    #[test]
    fn names_are_split_and_quoted() {
        assert_eq!(split_name("Public.\"Us\"\"er\"").expect("valid"), ["public", "Us\"er"]);
        for bad in ["", "a.", ".a", "\"a", "a b"] {
            assert_eq!(split_name(bad).expect_err(bad).sqlstate, "42602", "{bad}");
        }
        assert_eq!(quote_identifier("users"), "users");
        assert_eq!(quote_identifier("Users"), "\"Users\"");
        assert_eq!(quote_identifier("select"), "\"select\"");
        assert_eq!(quote_identifier("between"), "\"between\"");
        assert_eq!(quote_identifier("abort"), "abort");
    }

    #[test]
    fn functions_show_their_parameters() {
        let named = |name: &str| data::functions().find(|f| f.name == name).expect("there");
        let all = |name| function_arguments(named(name), Shown::All);
        assert_eq!(all("json_each"), "from_json json, OUT key text, OUT value json");
        assert_eq!(all("concat"), "VARIADIC \"any\"");
        assert!(all("make_interval").starts_with("years integer DEFAULT 0, months integer DEFAULT 0"));
        assert_eq!(function_arguments(named("json_each"), Shown::Identity), "from_json json");
        assert_eq!(function_result(named("json_each")), "SETOF record");
    }
}
