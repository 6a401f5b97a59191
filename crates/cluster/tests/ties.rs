//! Rows of several shards that are equal in what they are ordered by all come, whatever the order, LIMIT and OFFSET.
//!
//!     rows with few different values ──► three shards ──► ORDER BY, merged ──► as a sort of all rows has them
//!
//! Results that are gathered are merged whole, and those too large for that page by page: both are asked for.
//! A planted bug is for the whole process, so this program has one test, and its parts follow one another.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall say where")]

#[path = "session/harness.rs"]
#[allow(dead_code, reason = "other programs use the rest")]
mod harness;

use harness::{Client, Db};
use isles_sim::rng::Rng;
use isles_sql::planted::{self, Bug};
use std::cmp::Ordering;

/// Rows of the table.
const ROWS: usize = 300;
/// Queries of which some must show the bug.
const QUERIES: usize = 40;
/// Bytes that each row of a large result has besides; all together are more than what is gathered.
const PADDING: usize = 40_000;

/// `id`, `number`, `name`: of the last two there are few.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    id: usize,
    number: Option<u64>,
    name: String,
}

#[derive(Debug, Clone, Copy)]
enum Column {
    Number,
    Name,
}

/// A column of ORDER BY.
#[derive(Debug, Clone, Copy)]
struct Key {
    column: Column,
    descending: bool,
    nulls_first: bool,
}

impl Key {
    fn draw(rng: &mut Rng) -> Key {
        let column = *rng.pick(&[Column::Number, Column::Name]);
        Key { column, descending: rng.chance(1, 2), nulls_first: rng.chance(1, 2) }
    }

    fn sql(self) -> String {
        let column = match self.column {
            Column::Number => "number",
            Column::Name => "name",
        };
        let direction = if self.descending { "DESC" } else { "ASC" };
        format!("{column} {direction} NULLS {}", if self.nulls_first { "FIRST" } else { "LAST" })
    }

    fn compare(self, a: &Row, b: &Row) -> Ordering {
        let null_at = |value: &Option<u64>| value.is_none() != self.nulls_first;
        let turned = |order: Ordering| if self.descending { order.reverse() } else { order };
        match self.column {
            Column::Number => null_at(&a.number).cmp(&null_at(&b.number)).then(turned(a.number.cmp(&b.number))),
            Column::Name => turned(a.name.cmp(&b.name)),
        }
    }
}

struct Query {
    keys: Vec<Key>,
    limit: usize,
    offset: usize,
    padding: usize,
}

impl Query {
    fn draw(rng: &mut Rng) -> Query {
        Query {
            keys: (0..=rng.below(2)).map(|_| Key::draw(rng)).collect(),
            limit: if rng.chance(1, 2) { ROWS } else { rng.below(ROWS as u64) as usize },
            offset: if rng.chance(1, 2) { 0 } else { rng.below(ROWS as u64) as usize },
            padding: if rng.chance(1, 4) { PADDING } else { 0 },
        }
    }

    fn sql(&self) -> String {
        let keys: Vec<String> = self.keys.iter().map(|key| key.sql()).collect();
        let Query { limit, offset, padding, .. } = self;
        let order = keys.join(", ");
        format!("SELECT id, number, name, repeat('x', {padding}) FROM t ORDER BY {order} LIMIT {limit} OFFSET {offset}")
    }

    fn compare(&self, a: &Row, b: &Row) -> Ordering {
        self.keys.iter().fold(Ordering::Equal, |order, key| order.then(key.compare(a, b)))
    }

    /// What is wrong with an answer. Among rows that are equal any order is right, but each of them comes once.
    fn fault(&self, all: &[Row], answer: &[String]) -> Option<String> {
        let mut sorted = all.to_vec();
        sorted.sort_by(|a, b| self.compare(a, b));
        let expected: Vec<Row> = sorted.into_iter().skip(self.offset).take(self.limit).collect();
        let found: Vec<&Row> = answer.iter().map(|line| row_of(all, line)).collect();
        let mut ids: Vec<usize> = found.iter().map(|row| row.id).collect();
        ids.sort_unstable();
        ids.dedup();
        if ids.len() != expected.len() || found.len() != expected.len() {
            return Some(format!("{}: {} rows, {} of them different", self.sql(), found.len(), ids.len()));
        }
        let wrong = found.iter().zip(&expected).position(|(found, expected)| self.compare(found, expected).is_ne());
        wrong.map(|at| format!("{}: row {at} is {:?} instead of {:?}", self.sql(), found[at], expected[at]))
    }
}

fn row_of<'a>(all: &'a [Row], line: &str) -> &'a Row {
    let id: usize = line.split('|').next().unwrap().parse().unwrap();
    &all[id]
}

async fn fill(client: &mut Client, rng: &mut Rng) -> Vec<Row> {
    let row = |id: usize| {
        let number = (!rng.chance(1, 5)).then(|| rng.below(4));
        Row { id, number, name: (*rng.pick(&["a", "B", "ü"])).to_owned() }
    };
    let rows: Vec<Row> = (0..ROWS).map(row).collect();
    let shown = |row: &Row| {
        let number = row.number.map_or("NULL".to_owned(), |number| number.to_string());
        format!("({}, {number}, '{}')", row.id, row.name)
    };
    let values: Vec<String> = rows.iter().map(shown).collect();
    client.run("CREATE TABLE t (id int PRIMARY KEY, number int, name text)").await;
    client.run(&format!("INSERT INTO t VALUES {}", values.join(", "))).await;
    rows
}

/// The faults of queries whose results are gathered, and of those whose are streamed.
async fn faults(client: &mut Client, all: &[Row], rng: &mut Rng) -> [Vec<String>; 2] {
    let mut faults = [Vec::new(), Vec::new()];
    for _ in 0..QUERIES {
        let query = Query::draw(rng);
        let answer = client.run(&query.sql()).await;
        faults[usize::from(query.padding > 0)].extend(query.fault(all, &answer));
    }
    faults
}

/// I-69, planted bug 22: a merge that drops what is equal in its keys loses rows.
#[tokio::test(flavor = "multi_thread")]
async fn rows_that_are_equal_in_their_order_all_come() {
    let db = Db::sqlite(3).await;
    let (mut client, mut rng) = (db.client(), Rng::new(22));
    let all = fill(&mut client, &mut rng).await;
    assert_eq!(faults(&mut client, &all, &mut rng).await, [Vec::<String>::new(), Vec::new()]);
    planted::plant(&[Bug::DroppedTies]);
    let [gathered, streamed] = faults(&mut client, &all, &mut rng).await;
    planted::plant(&[]);
    assert!(!gathered.is_empty() && !streamed.is_empty(), "the bug is there, and no query shows it");
}
