//! Our functions give PostgreSQL's answers.
//!
//! `functions.txt` has one call in each line, with what PostgreSQL 15 answered: the function's number and name, the
//! numbers of its arguments' types, the arguments, and the type and text of the result, or its SQLSTATE and message. A line
//! `zone` sets the session's time zone for those after it. `ISLES_FUNCTION_CASES` names another file of this form.

use isles_kernel::value::Value;
use isles_sql::runtime::{self, Env};
use isles_sql::text::{self, Settings};
use isles_sql::types::{Oid, Type};

struct Case<'a> {
    line: &'a str,
    function: Oid,
    types: Vec<Oid>,
    args: Vec<&'a str>,
    result: Oid,
    answer: &'a str,
}

fn oid(text: &str) -> Oid {
    Oid(text.parse().expect("a number"))
}

fn case(line: &str) -> Case<'_> {
    let fields: Vec<&str> = line.split('\t').collect();
    let types: Vec<Oid> = fields[2].split(',').filter(|ty| !ty.is_empty()).map(oid).collect();
    let args = fields[3..3 + types.len()].to_vec();
    let [result, answer] = fields[3 + types.len()..] else { panic!("{line}") };
    Case { line, function: oid(fields[0]), types, args, result: oid(result), answer }
}

fn plain(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('n') => out.push('\n'),
                Some('t') => out.push('\t'),
                Some('r') => out.push('\r'),
                Some(c) => out.push(c),
                None => out.push('\\'),
            },
            c => out.push(c),
        }
    }
    out
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n").replace('\t', "\\t").replace('\r', "\\r")
}

fn answer(case: &Case, settings: &Settings) -> String {
    let mut seed = 0u64;
    let mut random = move || {
        seed += 1;
        seed
    };
    let mut clock = || 0;
    let mut env = Env { settings, clock: &mut clock, random: &mut random };
    let read = |(text, ty): (&&str, &Oid)| match *text {
        "\\N" => Value::Null,
        text => text::input(&plain(text), Type::of(*ty), settings).expect(case.line),
    };
    let args: Vec<Value> = case.args.iter().zip(&case.types).map(read).collect();
    let Some(scalar) = runtime::scalar(case.function) else { return "not computed".into() };
    match (scalar.call)(&mut env, &args, &case.types) {
        Ok(Value::Null) => "\\N".into(),
        Ok(value) => {
            let mut out = Vec::new();
            text::output(&value, Type::of(case.result), settings, &mut out);
            escaped(&String::from_utf8(out).expect("a text"))
        }
        Err(error) => format!("!{} {}", error.sqlstate, escaped(&error.message)),
    }
}

#[test]
fn functions_answer_as_postgresql_does() {
    let path = std::env::var("ISLES_FUNCTION_CASES");
    let cases = match &path {
        Ok(path) => std::fs::read_to_string(path).expect("the file of cases"),
        Err(_) => include_str!("functions.txt").to_string(),
    };
    let mut settings = Settings::default();
    let (mut count, mut wrong) = (0, 0);
    for line in cases.lines() {
        if let Some(zone) = line.strip_prefix("zone\t") {
            settings.set("timezone", zone).expect("a zone");
            continue;
        }
        let case = case(line);
        let ours = std::panic::catch_unwind(|| answer(&case, &settings)).unwrap_or_else(|_| "panicked".into());
        count += 1;
        if ours != case.answer {
            wrong += 1;
            println!("{line}\n    ours: {ours}");
        }
    }
    assert!(count > 0, "there are cases");
    assert_eq!(wrong, 0, "of {count} answers");
}
