//! Values in texts: the same texts again and again with other values, whose plans are found without them.
//!
//! Each text is compared with PostgreSQL's answer, and with Isles's own answer to the text with a comment behind it, which
//! keeps its constants: rows, names, errors and their positions are the same.

use crate::harness::{Server, Setup};
use tokio_postgres::{Client, SimpleQueryMessage};

/// The first time a text is noted, the second time its plan is made, and then it is used.
const ROUNDS: u64 = 5;

const COLUMNS: &str = "id bigint PRIMARY KEY, k int, name varchar(10), code char(4), price numeric(8,2), ok boolean, \
                       at timestamptz, day date, ratio float8, small smallint, note text";

/// What a client sees of an answer.
#[derive(Debug, PartialEq)]
enum Seen {
    Rows { names: Vec<String>, rows: Vec<Vec<Option<String>>>, affected: Option<u64> },
    Error { sqlstate: String, message: String, detail: Option<String>, position: String },
}

async fn run(client: &Client, sql: &str) -> Seen {
    let messages = match client.simple_query(sql).await {
        Ok(messages) => messages,
        Err(error) => {
            let db = error.as_db_error().unwrap_or_else(|| panic!("the connection broke at {sql}: {error}"));
            return Seen::Error {
                sqlstate: db.code().code().into(),
                message: db.message().into(),
                detail: db.detail().map(str::to_string),
                position: format!("{:?}", db.position()),
            };
        }
    };
    let (mut names, mut rows, mut affected) = (Vec::new(), Vec::new(), None);
    for message in messages {
        match message {
            SimpleQueryMessage::RowDescription(columns) => {
                names = columns.iter().map(|column| column.name().to_string()).collect();
            }
            SimpleQueryMessage::Row(row) => {
                rows.push((0..row.len()).map(|n| row.get(n).map(str::to_string)).collect());
            }
            SimpleQueryMessage::CommandComplete(n) => affected = Some(n),
            _ => {}
        }
    }
    rows.sort();
    Seen::Rows { names, rows, affected }
}

/// Texts that write, each with other values every time.
fn writes(n: u64) -> Vec<String> {
    let (m, large) = (n + 10, 5_000_000_000 + n);
    vec![
        format!("INSERT INTO v (id, k, name) VALUES ({n}, {n}, 'name {n}')"),
        format!("INSERT INTO v (id, k, name) VALUES ({large}, -{n}, 'it''s {n}'), ({m}, {m}, NULL)"),
        format!(
            "INSERT INTO v (id, price, ok, at, day, ratio, small, code, note) VALUES (-{m}, {n}.255, 'true', \
             '2024-01-31 10:0{n}:00+02', '2024-02-1{n}', {n}, {n}, 'c{n}', 'note {n}')"
        ),
        format!("INSERT INTO v (id, k) VALUES ({m}, 1)"),
        format!("INSERT INTO v (id, name) VALUES ({n}00, 'longer than ten letters {n}')"),
        format!("INSERT INTO v (id, small) VALUES ({n}01, 4000{n})"),
        format!("INSERT INTO v (id, day) VALUES ({n}02, 'no day {n}')"),
        format!("INSERT INTO v (id, k) VALUES ({n}, 7) ON CONFLICT (id) DO UPDATE SET k = excluded.k + 1"),
        format!("UPDATE v SET k = k + {m}, name = 'x{n}' WHERE id = {n}"),
        format!("UPDATE v SET k = k + -{m}, price = {n}.5 WHERE id = {large}"),
        format!("UPDATE v SET ratio = ratio - {n}, price = {n} WHERE id IN (-{m}, {m})"),
        format!("UPDATE v SET note = 'all {n}' WHERE small >= {n} AND ok = 'yes' RETURNING id, note"),
        format!("UPDATE v SET name = 'much too long for it {n}' WHERE id = {n}"),
        format!("DELETE FROM v WHERE id = {m} AND k > {n}"),
    ]
}

/// Texts that only read.
fn reads(n: u64) -> Vec<String> {
    let large = 5_000_000_000 + n;
    vec![
        format!("SELECT id, k, name FROM v WHERE id = {n}"),
        format!("SELECT id, k, name FROM v WHERE id = {large};"),
        format!("SELECT id FROM v WHERE k = {n} OR k = -{n}"),
        format!("SELECT id FROM v WHERE k = {large}"),
        format!("SELECT id FROM v WHERE k > {n}.5 AND k < 1000000000000000000000"),
        format!("SELECT id, name FROM v WHERE name = 'x{n}' OR name = 'it''s {n}'"),
        format!("SELECT id FROM v WHERE code = 'c{n}'"),
        format!("SELECT id, price FROM v WHERE price > {n} ORDER BY 1 LIMIT {}", n + 1),
        format!("SELECT id FROM v WHERE ok = '{}'", if n.is_multiple_of(2) { "t" } else { "off" }),
        format!("SELECT id FROM v WHERE day >= '2024-02-1{n}' AND at < '2024-03-0{}'", n + 1),
        format!("SELECT id FROM v WHERE day <= 'today' AND k <> {n}"),
        format!("SELECT count(*) FROM v WHERE id BETWEEN -{n} AND {large}"),
        format!("SELECT k, count(*) AS c FROM v WHERE id > {n} GROUP BY 1 HAVING count(*) > 0 ORDER BY 1"),
        format!("SELECT id FROM v WHERE id IN ({n}, {large}, -{})", n + 10),
        format!("SELECT id FROM v WHERE id IN (SELECT id FROM v WHERE k > {n}) AND id < {large}"),
        format!("SELECT id + {n} AS sum, '{n}' AS text, {n} AS int FROM v WHERE id = {n}"),
        format!("SELECT ratio FROM v WHERE ratio = {n} AND ratio + 1 > {n} AND small + {n} > 0"),
        // What is wrong is told as it would be otherwise.
        format!("SELECT id FROM v WHERE id = {n} AND nothing = {n}"),
        format!("SELECT id FROM v WHERE id = 'no number {n}'"),
        format!("SELECT id FROM v WHERE day = '2024-13-0{n}' AND id = 1"),
        format!("SELECT id FROM v WHERE id = {n} / 0"),
        format!("SELECT id FROM v WHERE k + {n} = 'x'"),
        format!("SELECT id FROM v WHERE name = {n}"),
        format!("SELECT id FROM v WHERE id = {n} AND AND k = 1"),
    ]
}

fn is_error(seen: &Seen) -> bool {
    matches!(seen, Seen::Error { .. })
}

/// Errors of PostgreSQL are compared by their codes: other tests compare words.
fn agree(ours: &Seen, theirs: &Seen) -> bool {
    match (ours, theirs) {
        (Seen::Error { sqlstate: ours, .. }, Seen::Error { sqlstate: theirs, .. }) => ours == theirs,
        _ => ours == theirs,
    }
}

pub(crate) async fn texts_agree(setup: Setup) {
    let server = Server::start(setup).await;
    let (isles, oracle) = (server.isles().await, Server::oracle().await);
    let create = format!("CREATE TABLE v ({COLUMNS})");
    isles.batch_execute(&format!("{create} WITH (kind = 'hash', shard_by = 'id')")).await.expect("created");
    oracle.batch_execute(&create).await.expect("created");
    let mut errors = 0;
    for n in 0..ROUNDS {
        for sql in writes(n) {
            let (ours, theirs) = (run(&isles, &sql).await, run(&oracle, &sql).await);
            assert!(agree(&ours, &theirs), "{sql}\n  isles {ours:?}\n  postgresql {theirs:?}");
            errors += usize::from(is_error(&ours));
        }
        for sql in reads(n) {
            let (ours, theirs) = (run(&isles, &sql).await, run(&oracle, &sql).await);
            assert!(agree(&ours, &theirs), "{sql}\n  isles {ours:?}\n  postgresql {theirs:?}");
            let whole = run(&isles, &format!("{sql} --")).await;
            assert_eq!(ours, whole, "{sql}");
            errors += usize::from(is_error(&ours));
        }
    }
    assert!(errors > 20, "{errors} were wrong");
    changes_of_the_schema_are_seen(&isles, &oracle).await;
}

/// A plan that is kept is one of its schema and its settings.
async fn changes_of_the_schema_are_seen(isles: &Client, oracle: &Client) {
    for change in [
        "ALTER TABLE v ADD COLUMN more int DEFAULT 5",
        "ALTER TABLE v RENAME COLUMN more TO less",
        "SET DateStyle = 'ISO, DMY'",
        "SET TimeZone = 'America/New_York'",
        "ALTER TABLE v DROP COLUMN less",
        "DROP TABLE v",
    ] {
        isles.batch_execute(change).await.expect("changed");
        oracle.batch_execute(change).await.expect("changed");
        for n in 1..4 {
            for sql in [
                format!("SELECT * FROM v WHERE id = {n}"),
                format!("SELECT more FROM v WHERE id = {n}"),
                format!("SELECT less FROM v WHERE id = {n}"),
                format!("SELECT id, at FROM v WHERE day > '0{n}/03/2023' AND at > '2024-01-31 04:0{n}:00'"),
            ] {
                let (ours, theirs) = (run(isles, &sql).await, run(oracle, &sql).await);
                assert!(agree(&ours, &theirs), "{change}: {sql}\n  isles {ours:?}\n  postgresql {theirs:?}");
                assert_eq!(ours, run(isles, &format!("{sql} --")).await, "{change}: {sql}");
            }
        }
    }
}
