//! Texts are read, fitted to their type's modifier and written as PostgreSQL does it.
//!
//! `inputs.txt` has one text in each line, with what PostgreSQL 15 made of it: the type's number and modifier, the text,
//! and the value's text or its SQLSTATE and message. A line `set` changes a setting for those after it.
//! `ISLES_INPUT_CASES` names another file of this form.

use isles_sql::text::{self, Settings};
use isles_sql::types::{Oid, Type};

fn plain(text: &str) -> String {
    let mut chars = text.chars();
    let mut out = String::new();
    while let Some(c) = chars.next() {
        out.push(match c {
            '\\' => match chars.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                other => other.unwrap_or(c),
            },
            c => c,
        });
    }
    out
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n").replace('\t', "\\t")
}

fn answer(ty: Type, given: &str, settings: &Settings) -> String {
    let value = text::input(given, ty, settings).and_then(|value| text::apply_modifier(value, ty, true));
    match value {
        Ok(value) => {
            let mut bytes = Vec::new();
            text::binary_out(&value, ty.oid, &mut bytes);
            assert_eq!(text::binary_in(&bytes, ty.oid), Ok(value.clone()), "the binary form of {given}");
            let mut out = Vec::new();
            text::output(&value, ty, settings, &mut out);
            escaped(&String::from_utf8(out).expect("a text"))
        }
        Err(error) => format!("!{} {}", error.sqlstate, escaped(&error.message)),
    }
}

#[test]
fn texts_are_read_and_written_as_postgresql_does() {
    let cases = match std::env::var("ISLES_INPUT_CASES") {
        Ok(path) => std::fs::read_to_string(path).expect("the file of cases"),
        Err(_) => include_str!("inputs.txt").to_string(),
    };
    let mut settings = Settings::default();
    let (mut count, mut wrong) = (0, 0);
    for line in cases.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        if fields[0] == "set" {
            assert_eq!(settings.set(fields[1], fields[2]), Ok(true));
            continue;
        }
        let number = |at: usize| fields[at].parse::<i64>().expect("a number");
        let ty = Type::with(Oid(number(0) as u32), number(1) as i32);
        let given = plain(fields[2]);
        let ours = std::panic::catch_unwind(|| answer(ty, &given, &settings)).unwrap_or_else(|_| "panicked".into());
        count += 1;
        if ours != fields[3] {
            wrong += 1;
            println!("{line}\n    ours: {ours}");
        }
    }
    assert!(count > 0, "there are cases");
    assert_eq!(wrong, 0, "of {count} answers");
}
