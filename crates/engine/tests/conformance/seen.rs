//! What a shard shows: its rows page by page, its change log as lines of text, and a model that replays the log.

use crate::given::Db;
use isles_engine::shard::{Engine, KeyRange, Snapshot, StoredRow};
use isles_kernel::change::{Change, Op};
use isles_kernel::names::Seq;
use isles_kernel::schema::{Table, Unit};
use isles_kernel::value::{Encoder, Value};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// All rows of a range, read in pages whose sizes `page` tells.
pub(crate) async fn all_rows(
    snapshot: &mut dyn Snapshot,
    range: &KeyRange,
    page: &mut (dyn FnMut() -> usize + Send),
) -> Vec<StoredRow> {
    let mut range = range.clone();
    let mut rows = Vec::new();
    loop {
        let size = page();
        let page = snapshot.page(&range, size).await.expect("a page");
        assert!(page.rows.len() <= size, "a page of {size} has {} rows", page.rows.len());
        rows.extend(page.rows);
        match page.next {
            Some(next) => {
                assert_ne!(range.after.as_ref(), Some(&next), "paging goes on");
                range.after = Some(next);
            }
            None => return rows,
        }
    }
}

/// Every change after a position, in pages of `limit`. Positions rise strictly within and between pages.
pub(crate) async fn all_changes(db: &Db, after: Seq, limit: usize) -> Vec<Change> {
    let mut changes: Vec<Change> = Vec::new();
    let mut at = after;
    loop {
        let page = db.changes(at, limit).await.expect("a page of the log");
        assert!(page.changes.len() <= limit, "a page of {limit} has {} changes", page.changes.len());
        assert!(page.through >= at, "the log went back from {at} to {}", page.through);
        for change in &page.changes {
            assert!(change.seq > at && change.seq <= page.through, "{} is not in {at}..={}", change.seq, page.through);
            at = change.seq;
        }
        if page.changes.is_empty() {
            return changes;
        }
        at = page.through;
        changes.extend(page.changes);
    }
}

/// A change as one line: `users 3 + (3 'a' 0)`, `notes @acme ~ (1 'a') > (1 'b')`, `plans * - (1 'x')`.
pub(crate) fn line(change: &Change) -> String {
    let unit = match &change.unit {
        Unit::Bucket(_, bucket) => bucket.to_string(),
        Unit::Tenant(tenant) => format!("@{}", tenant.as_ref().map_or("", |tenant| tenant.as_str())),
        Unit::Shared => "*".into(),
    };
    let images: Vec<String> = change.before.iter().chain(&change.after).map(|row| shown(row)).collect();
    let op = match change.op {
        Op::Insert => "+",
        Op::Update => "~",
        Op::Delete => "-",
    };
    assert_eq!(change.before.is_some(), change.op != Op::Insert, "{change:?}");
    assert_eq!(change.after.is_some(), change.op != Op::Delete, "{change:?}");
    format!("{} {unit} {op} {}", change.table, images.join(" > "))
}

fn shown(row: &[Value]) -> String {
    let value = |value: &Value| match value {
        Value::Null => "null".into(),
        Value::Int(n) => n.to_string(),
        Value::Text(text) => format!("'{text}'"),
        other => format!("{other:?}"),
    };
    format!("({})", row.iter().map(value).collect::<Vec<_>>().join(" "))
}

/// Checks the log after `after`, line by line, and that each change names the key of its row.
pub(crate) async fn check_log(db: &Db, after: Seq, expected: &[&str]) {
    assert_eq!(awaited_lines(db, after, expected.len()).await, expected);
}

/// As [`check_log`] for one statement's changes of many rows, whose order is the engine's.
pub(crate) async fn check_log_unordered(db: &Db, after: Seq, expected: &[&str]) {
    let mut lines = awaited_lines(db, after, expected.len()).await;
    let mut expected: Vec<String> = expected.iter().map(|line| line.to_string()).collect();
    lines.sort();
    expected.sort();
    assert_eq!(lines, expected);
}

/// What the log has, once there is as much as that: on PostgreSQL the log goes no further than the oldest who may
/// still write to it, and one whose statement has failed is a moment longer at it.
pub(crate) async fn awaited_changes(db: &Db, after: Seq, count: usize) -> Vec<Change> {
    let patience = Instant::now() + Duration::from_secs(20);
    loop {
        let changes = db.log_after(after).await;
        if changes.len() >= count || db.engine() == Engine::Sqlite || Instant::now() > patience {
            return changes;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn awaited_lines(db: &Db, after: Seq, count: usize) -> Vec<String> {
    let schema = db.schema().await.expect("a schema");
    let changes = awaited_changes(db, after, count).await;
    for change in &changes {
        let image = change.after.as_ref().or(change.before.as_ref()).expect("a change has an image");
        let table = schema.table(&change.table).expect("the table is there");
        assert_eq!(change.key, table.key_of(&change.unit, image), "{change:?}");
    }
    changes.iter().map(line).collect()
}

/// Rows by table and key, as the log says they are.
#[derive(Debug, Default)]
pub(crate) struct Model {
    rows: BTreeMap<(String, Vec<u8>), StoredRow>,
}

impl Model {
    pub(crate) fn of(table: &Table, rows: Vec<StoredRow>) -> Model {
        let mut model = Model::default();
        for row in rows {
            let key = table.key_of(&row.unit, &row.values);
            let twice = model.rows.insert((table.name.clone(), encoded(&key)), row);
            assert_eq!(twice, None, "a key is there twice");
        }
        model
    }

    /// Replays a change; what it says was there must be what is there (I-29).
    pub(crate) fn replay(&mut self, change: &Change) {
        let place = (change.table.clone(), encoded(&change.key));
        let before = self.rows.remove(&place).map(|row| row.values);
        assert_eq!(before, change.before, "what was there before {}", line(change));
        if let Some(after) = &change.after {
            self.rows.insert(place, StoredRow { unit: change.unit.clone(), values: after.clone() });
        }
    }

    /// Replays a change over rows that may be newer already, as a copy is.
    pub(crate) fn overwrite(&mut self, change: &Change) {
        let place = (change.table.clone(), encoded(&change.key));
        self.rows.remove(&place);
        if let Some(after) = &change.after {
            self.rows.insert(place, StoredRow { unit: change.unit.clone(), values: after.clone() });
        }
    }

    pub(crate) fn check(&self, table: &Table, rows: Vec<StoredRow>) {
        let actual = Model::of(table, rows);
        let mine = self.rows.iter().filter(|((name, _), _)| *name == table.name);
        let mine: Vec<&StoredRow> = mine.map(|(_, row)| row).collect();
        assert_eq!(mine, actual.rows.values().collect::<Vec<_>>(), "the log and table {} differ", table.name);
    }
}

pub(crate) fn encoded(key: &[Value]) -> Vec<u8> {
    let mut encoder = Encoder::default();
    encoder.row(key);
    encoder.bytes
}
