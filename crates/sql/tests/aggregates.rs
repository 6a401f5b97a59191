//! Our aggregates give PostgreSQL's answers.
//!
//! `aggregates.txt` has one aggregate over some rows in each line, with what PostgreSQL 15 answered: its number and
//! name, the numbers of its arguments' types, the rows (arguments separated by `|`, rows by `;`), the type and text of
//! the result.

use isles_kernel::value::Value;
use isles_sql::runtime::{self, Env};
use isles_sql::text::{self, Settings};
use isles_sql::types::{Oid, Type};

fn oid(text: &str) -> Oid {
    Oid(text.parse().expect("a number"))
}

fn answer(fields: &[&str], settings: &Settings) -> String {
    let types: Vec<Oid> = fields[2].split(',').filter(|ty| !ty.is_empty()).map(oid).collect();
    let (mut clock, mut random) = (|| 0, || 0);
    let mut env = Env { settings, clock: &mut clock, random: &mut random };
    let Some(aggregate) = runtime::aggregate(oid(fields[0])) else { return "not computed".into() };
    let mut state = aggregate.start(&types, &[]);
    for row in fields[3].split(';').filter(|row| !row.is_empty()) {
        let read = |(text, ty): (&str, &Oid)| match text {
            "\\N" => Value::Null,
            text => text::input(text, Type::of(*ty), settings).expect("a value"),
        };
        let args: Vec<Value> = row.split('|').zip(&types).map(read).collect();
        if let Err(error) = state.step(&mut env, &args) {
            return format!("!{} {}", error.sqlstate, error.message);
        }
    }
    match state.value(&mut env) {
        Ok(Value::Null) => "\\N".into(),
        Ok(value) => {
            let mut out = Vec::new();
            text::output(&value, Type::of(oid(fields[4])), settings, &mut out);
            String::from_utf8(out).expect("a text")
        }
        Err(error) => format!("!{} {}", error.sqlstate, error.message),
    }
}

#[test]
fn aggregates_answer_as_postgresql_does() {
    let settings = Settings::default();
    let (mut count, mut wrong) = (0, 0);
    for line in include_str!("aggregates.txt").lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let ours = answer(&fields, &settings);
        count += 1;
        if ours != fields[5] {
            wrong += 1;
            println!("{line}\n    ours: {ours}");
        }
    }
    assert!(count > 0, "there are cases");
    assert_eq!(wrong, 0, "of {count} answers");
}
