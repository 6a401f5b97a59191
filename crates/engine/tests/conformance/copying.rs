//! What a move does with the trait: rows of a snapshot and changes of a log become rows to apply.

use crate::given::Db;
use isles_engine::shard::{Batch, BatchKind, Digest, Incoming, KeyRange, RowVersion, Snapshot, StoredRow};
use isles_kernel::change::Change;
use isles_kernel::names::{RoutingVersion, Seq, StreamId};
use isles_kernel::schema::Table;
use isles_sim::rng::Rng;

/// The routing version under which the source owns its rows.
pub(crate) const EPOCH: RoutingVersion = RoutingVersion(1);

pub(crate) fn version(seq: u64) -> RowVersion {
    RowVersion { epoch: EPOCH, seq: Seq(seq) }
}

/// A row of a snapshot, as new as the snapshot.
pub(crate) fn copied(table: &Table, row: StoredRow, seq: Seq) -> Incoming {
    Incoming {
        table: table.name.clone(),
        key: table.key_of(&row.unit, &row.values),
        unit: row.unit,
        version: version(seq.0),
        row: Some(row.values),
    }
}

/// A change of a log, as new as its position.
pub(crate) fn tailed(change: &Change) -> Incoming {
    Incoming {
        table: change.table.clone(),
        unit: change.unit.clone(),
        key: change.key.clone(),
        version: version(change.seq.0),
        row: change.after.clone(),
    }
}

pub(crate) fn batch(stream: &StreamId, rows: Vec<Incoming>) -> Batch {
    Batch::new(stream, rows)
}

pub(crate) fn copies(stream: &StreamId, rows: Vec<Incoming>) -> Batch {
    Batch { kind: BatchKind::Copy, ..batch(stream, rows) }
}

/// Copies a table of a snapshot into another shard, in pages of random sizes.
pub(crate) async fn copy(snapshot: &mut dyn Snapshot, table: &Table, target: &Db, stream: &StreamId, rng: &mut Rng) {
    let mut range = KeyRange::table(&table.name);
    loop {
        let page = snapshot.page(&range, rng.range(1..9) as usize).await.expect("a page");
        let seq = snapshot.seq();
        let rows = page.rows.into_iter().map(|row| copied(table, row, seq)).collect();
        target.apply(batch(stream, rows)).await.expect("a copied page applies");
        match page.next {
            Some(next) => range.after = Some(next),
            None => return,
        }
    }
}

/// Shuffles rows, doubles some, and cuts them into batches.
pub(crate) fn scrambled(rng: &mut Rng, mut rows: Vec<Incoming>) -> Vec<Vec<Incoming>> {
    let twice: Vec<Incoming> = rows.iter().filter(|_| rng.chance(1, 3)).cloned().collect();
    rows.extend(twice);
    rng.shuffle(&mut rows);
    let mut batches = Vec::new();
    while !rows.is_empty() {
        let size = rng.range(1..12).min(rows.len() as u64) as usize;
        batches.push(rows.split_off(rows.len() - size));
    }
    batches
}

pub(crate) async fn digest(db: &Db, table: &str) -> Digest {
    let mut snapshot = db.snapshot().await.expect("a snapshot");
    snapshot.digest(&KeyRange::table(table)).await.expect("a digest")
}

/// Two shards hold the same rows of a table, by digest and one by one.
pub(crate) async fn check_equal(source: &Db, target: &Db, table: &str) {
    assert_eq!(target.rows(table).await, source.rows(table).await);
    assert_eq!(digest(target, table).await, digest(source, table).await);
}
