//! Constants that are lifted out of a text mean what they mean in it.

use super::*;
use crate::lift::{Constant, Lifted, agrees, lift, read};
use proptest::prelude::*;

fn bound_with(schema: &Schema, sql: &str, types: &[Oid]) -> Result<Bound> {
    let path = ["public".to_string()];
    let settings = Settings::default();
    let context = BindContext {
        schema,
        search_path: &path,
        database: "isles",
        settings: &settings,
        default_kind: utility::DefaultKind::Hash,
        default_buckets: 8,
        procedures: &crate::bind::procedure::NO_PROCEDURES,
    };
    bind(&parse_one(sql)?, &context, types)
}

/// A lifted text as it would be kept: bound, with the kinds of its constants.
struct Kept {
    text: String,
    types: Vec<Oid>,
    bound: Bound,
}

fn kinds(constants: &[Constant]) -> Vec<Oid> {
    constants.iter().map(Constant::declared).collect()
}

/// What a text that has come twice leaves, if anything.
fn kept(schema: &Schema, sql: &str) -> Option<Kept> {
    let Lifted { text, constants } = lift(sql)?;
    let types = kinds(&constants);
    let (itself, bound) = (bound_in(schema, sql).ok()?, bound_with(schema, &text, &types).ok()?);
    let values = read(&constants, &bound.params, &Settings::default())?;
    agrees(&itself, &bound, &values).then_some(Kept { text, types, bound })
}

/// What must hold of each text that leaves the same: either it is bound to the same, or it is not run this way.
fn check(schema: &Schema, kept: &Kept, sql: &str) -> Option<bool> {
    let Lifted { text, constants } = lift(sql)?;
    if text != kept.text || kinds(&constants) != kept.types {
        return None;
    }
    let Some(values) = read(&constants, &kept.bound.params, &Settings::default()) else { return Some(false) };
    let itself = bound_in(schema, sql).unwrap_or_else(|error| panic!("{sql}: {error:?}, but {} is kept", kept.text));
    assert!(agrees(&itself, &kept.bound, &values), "{sql}\nis not {}", kept.text);
    Some(true)
}

/// A lifted text with other constants in the places of the parameters.
fn written(text: &str, constants: &[String]) -> String {
    let mut parts = text.split('$');
    let mut out = parts.next().unwrap_or_default().to_string();
    for (part, constant) in parts.zip(constants) {
        out += constant;
        out += part.trim_start_matches(|letter: char| letter.is_ascii_digit());
    }
    out
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

const TEXTS: [&str; 34] = [
    "",
    " ",
    "a",
    "7",
    " 7 ",
    "-7",
    "1.5",
    "true",
    "f",
    "on",
    "null",
    "NULL",
    "NaN",
    "infinity",
    "it's",
    "2024-01-31",
    "31/1/2024",
    "January 8, 1999",
    "2024-01-31 10:00:00+02",
    "10:00",
    "now",
    "today",
    "{a,b}",
    "{}",
    "{1,null}",
    "[1]",
    "{\"a\": 1}",
    "9000000000",
    "0123456789012345678901234567890123456789 and more than forty",
    "\u{e4}\u{6f22}",
    "1 day",
    "P1D",
    "users",
    "6f1c2ab8-08b3-4b2c-9d3a-5d3c5a0c1e11",
];

/// Constants of each kind.
fn constants_of(ty: Oid) -> BoxedStrategy<String> {
    match ty {
        types::INT4 => prop::sample::select(vec![0, 1, 7, 42, -1, 2_147_483_647, -2_147_483_647])
            .prop_map(|n: i64| n.to_string())
            .boxed(),
        types::INT8 => prop::sample::select(vec![2_147_483_648, 9_223_372_036_854_775_807, -3_000_000_000])
            .prop_map(|n: i64| n.to_string())
            .boxed(),
        types::NUMERIC => {
            prop::sample::select(vec!["0.0", "1.50", "-12.345", "123456789012345678901234567890", "0.000000001"])
                .prop_map(str::to_string)
                .boxed()
        }
        _ => prop::sample::select(TEXTS.to_vec()).prop_map(quoted).boxed(),
    }
}

fn any_constant() -> impl Strategy<Value = String> {
    prop::sample::select(vec![types::INT4, types::INT4, types::INT8, types::NUMERIC, Oid(0), Oid(0), Oid(0)])
        .prop_flat_map(constants_of)
}

const COLUMNS: [&str; 20] = [
    "id",
    "email",
    "name",
    "age",
    "active",
    "created_at",
    "balance",
    "tags",
    "profile",
    "token",
    "born",
    "score",
    "raw",
    "doc",
    "kind",
    "ratio",
    "code",
    "wake",
    "ts",
    "span",
];

fn column_name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(COLUMNS.to_vec())
}

fn condition() -> impl Strategy<Value = String> {
    let operator = prop::sample::select(vec!["=", "<", ">", "<=", ">=", "<>", "!="]);
    prop_oneof![
        (column_name(), operator.clone(), any_constant()).prop_map(|(c, o, v)| format!("{c} {o} {v}")),
        (column_name(), operator, any_constant(), any_constant()).prop_map(|(c, o, v, w)| format!("{c} + {v} {o} {w}")),
        (column_name(), prop::collection::vec(any_constant(), 1..4))
            .prop_map(|(c, v)| format!("{c} in ({})", v.join(", "))),
        (column_name(), any_constant(), any_constant()).prop_map(|(c, v, w)| format!("{c} between {v} and {w}")),
        (column_name(), any_constant()).prop_map(|(c, v)| format!("not (coalesce({c}, {c}) = {v})")),
    ]
}

fn statement() -> impl Strategy<Value = String> {
    let conditions = || prop::collection::vec(condition(), 1..3).prop_map(|all| all.join(" and "));
    let row =
        |count: usize| prop::collection::vec(any_constant(), count).prop_map(|row| format!("({})", row.join(", ")));
    prop_oneof![
        conditions().prop_map(|c| format!("select id, name from users where {c} order by 1 limit 3")),
        conditions().prop_map(|c| format!("select count(*) from users u where {c} group by age having count(*) > 1")),
        conditions()
            .prop_map(|c| format!("select o.id from orders o where user_id in (select id from users where {c})")),
        (column_name(), any_constant(), conditions())
            .prop_map(|(n, v, c)| format!("update users set {n} = {v} where {c}")),
        (column_name(), any_constant(), conditions())
            .prop_map(|(n, v, c)| format!("update users set {n} = {n} + {v} where {c}")),
        conditions().prop_map(|c| format!("delete from users where {c} returning id")),
        (column_name(), row(1), row(1)).prop_map(|(n, a, b)| format!("insert into users ({n}) values {a}, {b}")),
        (column_name(), row(2))
            .prop_map(|(n, a)| format!("insert into users (id, {n}) values {a} on conflict do nothing")),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    /// If one text agrees with what is left of it, each other one that leaves the same does.
    #[test]
    fn what_agrees_once_agrees_with_all_values(
        (sql, others) in statement().prop_flat_map(|sql| {
            let types = lift(&sql).map(|lifted| kinds(&lifted.constants)).unwrap_or_default();
            let others = types.into_iter().map(constants_of).collect::<Vec<_>>();
            (Just(sql), prop::collection::vec(others, 4))
        })
    ) {
        let schema = schema();
        if let Some(kept) = kept(&schema, &sql) {
            prop_assert_eq!(check(&schema, &kept, &sql), Some(true));
            for other in others {
                check(&schema, &kept, &written(&kept.text, &other));
            }
        }
    }
}

/// The ordinary texts are kept: a test above of which none is would prove nothing.
#[test]
fn ordinary_texts_are_lifted() {
    let schema = schema();
    for sql in [
        "select name from users where id = 7",
        "select name from users where id = 7000000000",
        "select name from users where email = 'a@b' and age > 5",
        "select name from users where name = 'a' and code = 'b'",
        "select name from users where balance > 1.5 and score < 7",
        "select name from users where token = '6f1c2ab8-08b3-4b2c-9d3a-5d3c5a0c1e11' and born >= '2024-01-31'",
        "select name from users where created_at < '2024-01-31 10:00:00+02' and active = 'true'",
        "select name from users where id in (1, 2, 3) order by name limit 10",
        "select name from users where id between 1 and 10",
        "insert into users (id, email, name, age, balance) values (1, 'a', 'b', 5, 1.50), (2, 'c', 'd', 6, 7)",
        "insert into orders (user_id, amount) values (1, 2.5)",
        "update users set age = age + 1, name = 'x' where id = 5",
        "update users set balance = balance - 5 where id = 5 and kind = 3",
        "delete from users where id = 5",
    ] {
        assert!(kept(&schema, sql).is_some(), "{sql}");
    }
}

/// Texts that real clients send, with what they were bound to when PostgreSQL was asked.
#[test]
fn the_corpus_means_the_same_when_it_is_lifted() {
    let schema = schema();
    let mut lifted = 0;
    for case in include_str!("corpus.txt").trim_start_matches("> ").split("\n> ") {
        let sql = case.lines().next().unwrap_or_default();
        if let Some(kept) = kept(&schema, sql) {
            lifted += usize::from(check(&schema, &kept, sql) == Some(true));
        }
    }
    assert!(lifted >= 20, "{lifted} of the corpus were lifted");
}
