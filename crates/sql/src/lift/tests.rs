use super::*;
use crate::parse::{normalized, parse_one};
use proptest::prelude::*;

/// What is left, and the constants as people write them.
fn shown(sql: &str) -> Option<String> {
    let Lifted { text, constants } = lift(sql)?;
    let constants: Vec<String> = constants
        .iter()
        .map(|constant| match constant {
            Constant::Int4(n) => format!("{n}"),
            Constant::Int8(n) => format!("{n}::int8"),
            Constant::Decimal(text) => format!("{text}::numeric"),
            Constant::Text(text) => format!("'{text}'"),
        })
        .collect();
    Some(format!("{text} | {}", constants.join(", ")))
}

/// A minus behind a word subtracts only if the word can be a name.
#[test]
fn a_sign_behind_a_keyword_is_its_numbers_own() {
    for word in ["not", "NOT", "case when", "else", "like", "at time zone", "like 'a' escape"] {
        assert_eq!(shown(&format!("select v from t where k = a {word} -7")), None);
        assert_eq!(shown(&format!("select v from t where k = a {word} +7")), None);
    }
    let left = shown("update t set k = k -7 where k = \"when\" - 3");
    assert_eq!(left.as_deref(), Some("update t set k = k -$1 where k = \"when\" - $2 | 7, 3"));
}

#[test]
fn constants_are_taken_from_where_nobody_looks_at_them() {
    for (sql, expected) in [
        ("select v from t where k = 7", "select v from t where k = $1 | 7"),
        ("SELECT v FROM t WHERE k=7 ;", "SELECT v FROM t WHERE k=$1 | 7"),
        ("select v from t where k = -7 or k<>0012", "select v from t where k = $1 or k<>$2 | -7, 12"),
        ("select v from t where k = 2147483647", "select v from t where k = $1 | 2147483647"),
        ("select v from t where k = 2147483648", "select v from t where k = $1 | 2147483648::int8"),
        ("select v from t where k = -2147483648", "select v from t where k = $1 | -2147483648::int8"),
        (
            "select v from t where k = 9223372036854775808",
            "select v from t where k = $1 | 9223372036854775808::numeric",
        ),
        ("select v from t where k = -9223372036854775808", "select v from t where k = $1 | -9223372036854775808::int8"),
        ("select v from t where k > 1.50", "select v from t where k > $1 | 1.50::numeric"),
        ("select v from t where n = 'it''s' and (k = 1)", "select v from t where n = $1 and (k = $2) | 'it's', 1"),
        ("select v from t where k in (1, -2,3) limit 5", "select v from t where k in ($1, $2,$3) limit 5 | 1, -2, 3"),
        (
            "select v from t where k between 1 and -2 and a = 3",
            "select v from t where k between $1 and $2 and a = $3 | 1, -2, 3",
        ),
        (
            "insert into t (k, v) values (1, 'a'), (2, default)",
            "insert into t (k, v) values ($1, $2), ($3, default) | 1, 'a', 2",
        ),
        ("update t set n = n + 1, m = m - 2 where k = 7", "update t set n = n + $1, m = m - $2 where k = $3 | 1, 2, 7"),
        ("update t set n = n + -123 where k = 7", "update t set n = n + $1 where k = $2 | -123, 7"),
        ("delete from t where k = 7 returning 5", "delete from t where k = $1 returning 5 | 7"),
        ("select v from t where k = 7 for update", "select v from t where k = $1 for update | 7"),
        ("select \"a'b\", 'x' from t where \"k\" = 7", "select \"a'b\", 'x' from t where \"k\" = $1 | 7"),
        (
            "select v from t where k = (select 1 from u where b = 2)",
            "select v from t where k = (select 1 from u where b = $1) | 2",
        ),
    ] {
        assert_eq!(shown(sql).as_deref(), Some(expected), "{sql}");
    }
}

#[test]
fn what_is_not_sure_is_left_alone() {
    for sql in [
        "",
        "select 1",
        "select v from t order by 1 limit 2",
        "select v from t group by 1 having count(*) > 5",
        "explain select v from t where k = 7",
        "set x = 5",
        "create table t (k int default 5)",
        "with x as (select 1) select v from t where k = 7",
        "select v from t where k = 7::int8",
        "select v from t where k = 7 + 1",
        "select v from t where k = 7 is true",
        "select v from t where d = date '2024-01-01'",
        "select v from t where n = E'a'",
        "select v from t where n = U&'a'",
        "select v from t where n = 'a' 'b'",
        "select v from t where n = 'a'\n'b'",
        "select v from t where n = 'a\\b'",
        "select v from t where n = $$a$$",
        "select v from t where n = $1 and k = 7",
        "select v from t where k = 7 -- and",
        "select v from t where k = /* 7 */ 8",
        "select v from t where k = 0x7",
        "select v from t where k = 7and n = 8",
        "select v from t where n = 'a'and k = 8",
        "select v from t where k = 1e5",
        "select v from t where k = .5",
        "select v from t where k = 5.",
        "select v from t where k =-7",
        "select v from t where n like 'a%'",
        "select v from t where k = any('{1,2}')",
        "select v from t where f(a := 5)",
        "select v from t where k = 7; select 1",
        "select \u{e4} from t where k = 7",
        "select v from t where k in (select 1, 2)",
        "insert into t select 1, 2 union values (3, 4)",
        "insert into t (k) values (f(1, 2))",
        "select v from t where (a, b) = (1, 2)",
    ] {
        assert_eq!(shown(sql), None, "{sql}");
    }
    let over = "insert into t values (1) on conflict (k) where v = 5 do update set v = 6";
    let expected = "insert into t values ($1) on conflict (k) where v = 5 do update set v = 6 | 1";
    assert_eq!(shown(over).as_deref(), Some(expected));
}

#[test]
fn a_text_that_is_long_is_left_alone() {
    let many = |count: usize| format!("select v from t where k in ({}0)", "1,".repeat(count - 1));
    assert_eq!(lift(&many(MAX_CONSTANTS)).map(|lifted| lifted.constants.len()), Some(MAX_CONSTANTS));
    assert_eq!(lift(&many(MAX_CONSTANTS + 1)), None);
    let long = |length: usize| format!("select v from t where k = '{}'", "x".repeat(length - 28));
    assert_eq!(long(MAX_BYTES).len(), MAX_BYTES);
    assert!(lift(&long(MAX_BYTES)).is_some() && lift(&long(MAX_BYTES + 1)).is_none());
}

/// With every parameter the same.
fn squashed(sql: &str) -> String {
    let mut out = String::new();
    let mut letters = sql.chars().peekable();
    while let Some(letter) = letters.next() {
        out.push(letter);
        while letter == '$' && letters.next_if(char::is_ascii_digit).is_some() {}
    }
    out
}

/// Pieces of texts: what the scanner must tell apart, and enough of the language that some texts are one.
fn piece() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "select",
        "v",
        "from t",
        "where",
        "k =",
        "=",
        "7",
        "-7",
        "-",
        "+",
        "1.5",
        "7e1",
        "0x7",
        "'a'",
        "'it''s'",
        "''",
        "E'\\''",
        "u&'a'",
        "$$a$$",
        "$1",
        "'a\n'",
        "\"q'q\"",
        "--",
        "\n",
        "/* 7 */",
        "and",
        "or",
        "between",
        "in (",
        "(",
        ")",
        ",",
        "::",
        "int",
        "not",
        "is null",
        "like",
        "limit 5",
        "order by 1",
        "group by 2",
        "k >= 5",
        "a = 'b'",
        "and k <> 12",
        "set",
        "values (",
        "update t set k = 5",
        "insert into t values (1, 'x')",
        "select v from t where k = 9000000000",
        "delete from t where",
        "interval '1'",
        "date '2024-01-01'",
        "case when",
        "then",
        "end",
        "collate \"C\"",
        "\u{e4}",
        "returning 1",
        ";",
        "b'1'",
        "x'f'",
        "@",
        "->",
        "->>",
        "'k'",
        "[",
        "]",
        "[1]",
        ".",
        "t.k",
        "any(",
        "array[1,2]",
        "'{1}'",
        "null",
        "true",
        ":=",
        "=>",
        "f(",
        "row(",
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    /// PostgreSQL's scanner finds the same constants in a text and in what is left of it, but for those that were taken.
    #[test]
    fn the_scanner_agrees_with_postgresql_s(
        pieces in prop::collection::vec((piece(), prop::sample::select(vec!["", " ", "\n", " ", " "])), 1..14),
        begin in prop::sample::select(vec!["", "select v from t where ", "update t set ", "insert into t values (", "delete from t where k ="]),
    ) {
        let text: String = pieces.iter().flat_map(|(piece, blank)| [*piece, *blank]).collect();
        let text = format!("{begin}{text}");
        if let Some(lifted) = lift(&text)
            && parse_one(&text).is_ok()
        {
            prop_assert!(parse_one(&lifted.text).is_ok(), "{text} left {}", lifted.text);
            let (whole, left) = (normalized(&text), normalized(&lifted.text));
            let end = |text: String| squashed(text.trim_end_matches([' ', '\n', ';']));
            prop_assert_eq!(whole.map(end), left.map(end), "{} left {}", text, lifted.text);
        }
    }

    #[test]
    fn any_text_is_lifted_without_panic(text in any::<String>()) {
        let _ = lift(&text);
        let _ = lift(&format!("select v from t where k = {text}"));
    }
}
