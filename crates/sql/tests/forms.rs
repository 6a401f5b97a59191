//! Both forms of fragments, as they are printed for both engines: what every shard is asked, and what one is asked that
//! has strangers. `forms.txt` has statements with the texts that they must have.
//!
//! `UPDATE_PLANS=1 cargo test -p isles-sql --test forms` writes the texts as they are now; the diff says what changed.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "plans/given.rs"]
mod given;

use isles_kernel::schema::Schema;
use isles_sql::plan::{Form, Fragment, ParamSource};
use isles_sql::print::Dialect;
use std::fmt::Write;
use std::path::Path;

const TABLES: [&str; 5] = [
    "table users hash users(id) pk id: id int8, name text, age int4",
    "table orders hash users(user_id) pk user_id,id: user_id int8, id int8, total int8",
    "table events hash events(id) pk id: id int8, user_id int8",
    "table plans reference pk id: id int4, name text",
    "table notes tenant pk id: id int8, body text",
];
const ENGINES: [(&str, Dialect); 2] = [("sqlite", Dialect::Sqlite), ("postgres", Dialect::Postgres)];

fn schema() -> Schema {
    let mut schema = Schema::default();
    for line in TABLES {
        let table = given::table(line);
        schema.tables.insert(table.name.clone(), table);
    }
    schema.sequences.insert("numbers".into(), given::sequence("numbers"));
    schema
}

fn texts(fragment: &Fragment, out: &mut String) {
    for (name, engine) in ENGINES {
        let whole = fragment.printed(engine, Form::Whole).expect("printed");
        let owned = fragment.printed(engine, Form::Owned).expect("printed");
        writeln!(out, "{name}: {}", whole.sql).expect("a string");
        if owned.sql == whole.sql {
            assert_eq!(owned.params, whole.params);
            continue;
        }
        writeln!(out, "{name} owned: {}", owned.sql).expect("a string");
        let buckets = |source: &ParamSource| matches!(source, ParamSource::Buckets(_));
        assert!(owned.params.iter().any(buckets) && !whole.params.iter().any(buckets));
        assert_eq!((&owned.columns, owned.writes), (&whole.columns, whole.writes));
    }
}

/// I-11, I-21: every use of a hash table is kept to owned buckets, in a place that is right for its join; and without
/// strangers nothing of that is there.
#[test]
fn fragments_have_the_texts_that_are_written_down() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/forms.txt");
    let written = std::fs::read_to_string(&path).expect("a file");
    let schema = schema();
    let mut now = String::new();
    for sql in written.lines().filter_map(|line| line.strip_prefix("> ")) {
        writeln!(now, "> {sql}").expect("a string");
        let plan = given::planned(&schema, sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
        plan.fragments().into_iter().for_each(|fragment| texts(fragment, &mut now));
        now.push('\n');
    }
    let now = now.trim_end().to_string() + "\n";
    if std::env::var_os("UPDATE_PLANS").is_some() {
        std::fs::write(&path, now).expect("a file");
    } else if now != written {
        let differs = now.lines().zip(written.lines()).find(|(now, written)| now != written);
        panic!("there are other texts now, first: {differs:#?}");
    }
    assert!(written.matches(" owned: ").count() >= 40, "too few are written down");
}
