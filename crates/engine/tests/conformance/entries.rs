//! Entries of global indexes: counts that are changed with their positions, looked for, and cleared.

use crate::fixtures::World;
use crate::given::*;
use isles_engine::entries::{EntriesOf, EntryLook, EntryPart, EntryProbe, EntryProgress, MAX_ENTRIES, Still};
use isles_engine::error::{Result, ShardError};
use isles_engine::fence::{Access, Claim, Claimed, Fence, FenceMode, FenceScope};
use isles_engine::shard::{Begin, Limits, Request};
use isles_kernel::index::key::Part;
use isles_kernel::index::{EntryDelta, IndexKey, KeyRange, Source, StoredEntry};
use isles_kernel::names::{BucketId, RoutingVersion, Seq, ShardId};
use isles_kernel::schema::{ENTRY_BUCKETS, INDEX_NAMESPACE, SchemaChange, Unit, entries_table, entry_group};
use isles_kernel::value::Value;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const TABLE: &str = "_isles_index.1";

fn fence(version: u64, mode: FenceMode) -> Fence {
    let last = BucketId(ENTRY_BUCKETS - 1);
    let scope = FenceScope::Buckets { group: entry_group(), first: BucketId(0), last };
    Fence { scope, version: RoutingVersion(version), mode }
}

/// A shard with entries beside its tables.
async fn indexed(world: &World) -> Db {
    let db = world.shard().await;
    let namespace = SchemaChange::CreateNamespace { namespace: INDEX_NAMESPACE.into() };
    db.alter(vec![namespace, SchemaChange::CreateTable(entries_table(TABLE))]).await;
    db.set_fences(vec![fence(1, FenceMode::Open)], FENCE_TIME).await.unwrap();
    db
}

fn claim_entries(version: u64, buckets: &[u32]) -> Claim {
    let units = buckets.iter().map(|bucket| Claimed::Bucket(entry_group(), BucketId(*bucket))).collect();
    Claim::new(RoutingVersion(version), units)
}

fn source() -> Source {
    Source::log(&ShardId::new("elsewhere").unwrap())
}

fn key(text: &str) -> IndexKey {
    IndexKey::of([Part { value: &Value::text(text), padded: false }]).unwrap()
}

fn delta(text: &str, bucket: u32, rows: i64) -> EntryDelta {
    EntryDelta { key: key(text).0, bucket: BucketId(bucket), rows }
}

/// What a page of a log from `from` to `through` makes of an entry bucket.
fn part(bucket: u32, from: u64, through: u64, deltas: Vec<EntryDelta>) -> EntryPart {
    let progress = EntryProgress { source: source(), from: Seq(from), through: Seq(through) };
    EntryPart { table: TABLE.into(), bucket: BucketId(bucket), progress: Some(progress), deltas }
}

/// The same, of a build that nobody repeats.
fn built(bucket: u32, deltas: Vec<EntryDelta>) -> EntryPart {
    EntryPart { table: TABLE.into(), bucket: BucketId(bucket), progress: None, deltas }
}

async fn maintain(db: &Db, parts: Vec<EntryPart>) -> Result<()> {
    let buckets: Vec<u32> = parts.iter().map(|part| part.bucket.0).collect();
    db.maintain(claim_entries(1, &buckets), parts).await
}

/// Entries as (entry bucket, key, bucket, rows), and positions as (entry bucket, position).
async fn stored(db: &Db) -> (Vec<(u32, Vec<u8>, i64, i64)>, Vec<(u32, i64)>) {
    let (mut entries, mut positions) = (Vec::new(), Vec::new());
    for row in db.rows(TABLE).await {
        let Unit::Bucket(_, own) = row.unit else { panic!("{row:?} has no bucket") };
        match StoredEntry::read(&row.values) {
            Some(StoredEntry::Position { through, .. }) => positions.push((own.0, through.0 as i64)),
            Some(StoredEntry::Count { key, bucket, rows }) => entries.push((own.0, key.to_vec(), bucket, rows)),
            None => panic!("{:?}", row.values),
        }
    }
    (entries, positions)
}

fn entry(own: u32, text: &str, bucket: i64, rows: i64) -> (u32, Vec<u8>, i64, i64) {
    (own, key(text).0, bucket, rows)
}

fn probe(bucket: u32, range: KeyRange) -> EntryProbe {
    EntryProbe { table: TABLE.into(), bucket: BucketId(bucket), range }
}

fn look(probes: impl IntoIterator<Item = EntryProbe>, most: usize) -> EntryLook {
    EntryLook { probes: probes.into_iter().collect(), most, limits: Limits::default() }
}

async fn found(db: &Db, bucket: u32, range: KeyRange) -> Vec<u32> {
    let found = db.entry_buckets(claim_entries(1, &[bucket]), look([probe(bucket, range)], 100)).await.unwrap();
    assert!(!found.is_cut);
    let mut found: Vec<u32> = found.buckets.into_iter().map(|bucket| bucket.0).collect();
    found.sort();
    found.dedup();
    found
}

/// I-23: a batch whose answer was lost is sent again.
pub(crate) async fn a_part_that_is_repeated_counts_once(world: World) {
    let db = indexed(&world).await;
    let first = || vec![part(1, 0, 5, vec![delta("a", 3, 2), delta("b", 3, 1)])];
    for _ in 0..3 {
        maintain(&db, first()).await.unwrap();
        assert_eq!(stored(&db).await, (vec![entry(1, "a", 3, 2), entry(1, "b", 3, 1)], vec![(1, 5)]));
    }
    maintain(&db, vec![part(1, 5, 9, vec![delta("a", 3, -1), delta("b", 3, -1)])]).await.unwrap();
    assert_eq!(stored(&db).await, (vec![entry(1, "a", 3, 1)], vec![(1, 9)]), "what counts nothing is gone");
    maintain(&db, first()).await.unwrap();
    assert_eq!(stored(&db).await, (vec![entry(1, "a", 3, 1)], vec![(1, 9)]), "however late it comes");
    // A batch of one part that is done and one that is not.
    maintain(&db, vec![part(1, 0, 9, vec![delta("a", 3, 7)]), part(2, 0, 9, vec![delta("c", 4, 1)])]).await.unwrap();
    let entries = vec![entry(1, "a", 3, 1), entry(2, "c", 4, 1)];
    assert_eq!(stored(&db).await, (entries, vec![(1, 9), (2, 9)]));
}

/// I-23: a change that is not in the entries is not passed over, and a batch happens whole.
pub(crate) async fn a_part_from_elsewhere_is_refused_with_its_batch(world: World) {
    let db = indexed(&world).await;
    maintain(&db, vec![part(2, 0, 5, vec![delta("a", 3, 1)])]).await.unwrap();
    let before = stored(&db).await;
    for (from, through) in [(4, 9), (6, 9), (0, 9)] {
        let batch = vec![part(1, 0, 5, vec![delta("b", 3, 1)]), part(2, from, through, vec![delta("c", 3, 1)])];
        let refused = maintain(&db, batch).await;
        assert!(matches!(refused, Err(ShardError::Conflict(_))), "{refused:?}");
        assert_eq!(stored(&db).await, before);
    }
    maintain(&db, vec![part(2, 5, 9, vec![delta("c", 3, 1)])]).await.unwrap();
    assert_eq!(stored(&db).await, (vec![entry(2, "a", 3, 1), entry(2, "c", 3, 1)], vec![(2, 9)]));
}

/// I-23: an entry that counts less than nothing is no row, and becomes one later.
pub(crate) async fn entries_are_found_by_key_and_range(world: World) {
    let db = indexed(&world).await;
    let deltas = vec![delta("a", 3, 1), delta("a", 4, 2), delta("ab", 5, 1), delta("b", 6, 1), delta("b", 7, -1)];
    maintain(&db, vec![built(1, deltas), built(2, vec![delta("a", 9, 1)])]).await.unwrap();
    assert_eq!(found(&db, 1, key("a").within()).await, [3, 4]);
    assert_eq!(found(&db, 1, key("ab").within()).await, [5]);
    assert_eq!(found(&db, 1, key("b").within()).await, [6]);
    assert_eq!(found(&db, 1, key("c").within()).await, Vec::<u32>::new());
    assert_eq!(found(&db, 2, key("a").within()).await, [9]);
    assert_eq!(found(&db, 3, key("a").within()).await, Vec::<u32>::new());
    let whole = IndexKey(Vec::new());
    let (ab, b) = (Value::text("ab"), Value::text("b"));
    let part = |value| Part { value, padded: false };
    let from = whole.between(Bound::Included(part(&ab)), Bound::Unbounded).unwrap();
    assert_eq!(found(&db, 1, from).await, [5, 6]);
    let between = whole.between(Bound::Included(part(&ab)), Bound::Excluded(part(&b))).unwrap();
    assert!(found(&db, 1, between).await.contains(&5));
    assert_eq!(found(&db, 1, whole.starting("a")).await, [3, 4, 5]);
    maintain(&db, vec![built(1, vec![delta("b", 7, 2), delta("b", 6, -1)])]).await.unwrap();
    assert_eq!(found(&db, 1, key("b").within()).await, [7]);
    // What comes to nothing is gone, from below and from above.
    maintain(&db, vec![built(3, vec![delta("c", 7, -2), delta("c", 8, 2)])]).await.unwrap();
    maintain(&db, vec![built(3, vec![delta("c", 7, 2), delta("c", 8, -2)])]).await.unwrap();
    assert!(stored(&db).await.0.iter().all(|(own, ..)| *own != 3), "{:?}", stored(&db).await);
    // Several at once.
    let probes = ["a", "b"].map(|text| probe(1, key(text).within()));
    let mut both = db.entry_buckets(claim_entries(1, &[1]), look(probes, 100)).await.unwrap().buckets;
    both.sort();
    assert_eq!(both, [3, 4, 7].map(BucketId));
}

/// I-45: a look reads so many entries and no more, says whether there are others, and keeps to its time.
pub(crate) async fn a_look_reads_no_more_entries_than_it_may(world: World) {
    let db = indexed(&world).await;
    let deltas = |from: u32| (from..from + 500).map(|n| delta(&format!("k{n}"), n, 1)).collect();
    maintain(&db, vec![built(1, deltas(1_000)), built(2, deltas(2_000))]).await.unwrap();
    let claim = || claim_entries(1, &[1, 2]);
    let everything = || IndexKey(Vec::new()).between(Bound::Unbounded, Bound::Unbounded).unwrap();
    for range in [everything(), IndexKey(Vec::new()).starting("k")] {
        let both = || [probe(1, range.clone()), probe(2, range.clone())];
        for (most, read, is_cut) in [(10, 11, true), (499, 500, true), (999, 1_000, true), (1_000, 1_000, false)] {
            let said = db.entry_buckets(claim(), look(both(), most)).await.unwrap();
            assert_eq!((said.read, said.buckets.len(), said.is_cut), (read, read, is_cut), "{most}");
        }
    }
    let keys = (1_000..1_300).map(|n| probe(1, key(&format!("k{n}")).within()));
    let said = db.entry_buckets(claim(), look(keys, 1_000)).await.unwrap();
    assert_eq!((said.read, said.is_cut), (300, false));
    let limits = Limits { time: Duration::ZERO, ..Limits::default() };
    let late = db.entry_buckets(claim(), EntryLook { limits, ..look([probe(1, everything())], 10) }).await;
    assert_eq!(late, Err(ShardError::TimedOut));
    let limits = Limits::default();
    limits.cancel.cancel();
    let cancelled = db.entry_buckets(claim(), EntryLook { limits, ..look([probe(1, everything())], 10) }).await;
    assert_eq!(cancelled, Err(ShardError::Cancelled));
}

/// I-7, I-28: entry buckets are fenced like any others.
pub(crate) async fn entries_are_fenced(world: World) {
    let db = indexed(&world).await;
    maintain(&db, vec![part(1, 0, 5, vec![delta("a", 3, 1)])]).await.unwrap();
    let before = stored(&db).await;
    db.set_fences(vec![fence(2, FenceMode::Closed)], FENCE_TIME).await.unwrap();
    for version in [1, 2, 9] {
        let look = look([probe(1, key("a").within())], 10);
        let claim = || claim_entries(version, &[1]);
        let refused = [
            db.maintain(claim(), vec![part(1, 5, 9, vec![delta("a", 3, 1)])]).await,
            db.maintain(claim(), vec![built(1, vec![delta("a", 3, 1)])]).await,
            db.clear_entries(claim(), TABLE, EntriesOf::Index, 10).await.map(drop),
            db.entry_buckets(claim(), look).await.map(drop),
        ];
        assert!(refused.iter().all(|one| matches!(one, Err(ShardError::Moved { .. }))), "{version}: {refused:?}");
    }
    assert_eq!(stored(&db).await, before);
    db.set_fences(vec![fence(3, FenceMode::Open)], FENCE_TIME).await.unwrap();
    let late = db.maintain(claim_entries(1, &[1]), vec![part(1, 5, 9, vec![delta("a", 3, 1)])]).await;
    assert!(matches!(late, Err(ShardError::Moved { .. })), "{late:?}");
    db.maintain(claim_entries(3, &[1]), vec![part(1, 5, 9, vec![delta("a", 3, 1)])]).await.unwrap();
    assert_eq!(stored(&db).await, (vec![entry(1, "a", 3, 2)], vec![(1, 9)]));
}

/// I-27: what a build that died has counted of a shard is taken out, and nothing else.
pub(crate) async fn entries_are_cleared_by_source(world: World) {
    let db = indexed(&world).await;
    let deltas = vec![delta("a", 3, 1), delta("b", 3, 1), delta("a", 4, 1)];
    maintain(&db, vec![part(1, 0, 5, deltas), part(2, 0, 5, vec![delta("c", 4, 1)])]).await.unwrap();
    let other = Source::log(&ShardId::new("other").unwrap());
    let clear = async |of: &EntriesOf, limit| {
        db.clear_entries(claim_entries(1, &[1, 2]), TABLE, of.clone(), limit).await.unwrap()
    };
    assert_eq!(clear(&EntriesOf::Source(other.clone(), vec![BucketId(9)]), 10).await, 0);
    assert_eq!(clear(&EntriesOf::Source(other, vec![BucketId(3)]), 10).await, 2);
    assert_eq!(stored(&db).await, (vec![entry(1, "a", 4, 1), entry(2, "c", 4, 1)], vec![(1, 5), (2, 5)]));
    let ours = EntriesOf::Source(source(), vec![]);
    assert_eq!(clear(&ours, 10).await, 2);
    assert_eq!(stored(&db).await, (vec![entry(1, "a", 4, 1), entry(2, "c", 4, 1)], vec![]));
    // It begins at the beginning again.
    maintain(&db, vec![part(1, 0, 5, vec![])]).await.unwrap();
    let pages =
        [clear(&EntriesOf::Index, 2).await, clear(&EntriesOf::Index, 2).await, clear(&EntriesOf::Index, 2).await];
    assert_eq!(pages, [2, 1, 0]);
    assert_eq!(stored(&db).await, (vec![], vec![]));
}

pub(crate) async fn batches_of_entries_are_bounded(world: World) {
    let db = indexed(&world).await;
    let many = |count: usize| (0..count).map(|n| delta(&format!("k{n}"), 1, 1)).collect::<Vec<_>>();
    let refused = maintain(&db, vec![built(1, many(MAX_ENTRIES)), built(2, many(1))]).await;
    assert!(matches!(refused, Err(ShardError::Limit { .. })), "{refused:?}");
    let elsewhere = EntryPart { table: "users".into(), ..built(1, many(1)) };
    assert!(is_refusal(&maintain(&db, vec![elsewhere]).await.unwrap_err()));
    assert_eq!(stored(&db).await, (vec![], vec![]));
    maintain(&db, vec![built(1, many(500))]).await.unwrap();
    assert_eq!(stored(&db).await.0.len(), 500);
}

/// I-23: whoever begins to watch knows up to where it has been told nothing.
pub(crate) async fn what_was_committed_is_settled(world: World) {
    let db = indexed(&world).await;
    let start = db.listen().await;
    assert!(db.settled().await.unwrap() >= start);
    for id in 0..5 {
        db.put_user(id, "a", 0).await;
    }
    let settled = db.settled().await.unwrap();
    let log = db.log_after(start).await;
    assert_eq!(log.len(), 5);
    assert!(log.iter().all(|change| change.seq <= settled), "{settled}: {log:?}");
    db.put_user(5, "a", 0).await;
    assert!(db.settled().await.unwrap() > settled);
}

/// I-1, I-24: whoever was led to the shard learns of a key that came before its snapshot; what comes later, with its own
/// commit at the latest, ends nothing that has been done.
pub(crate) async fn what_a_transaction_was_led_by_is_compared_at_its_beginning(world: World) {
    let db = indexed(&world).await;
    let holds = Arc::new(AtomicBool::new(false));
    let claim = || {
        let holds = holds.clone();
        Claim { still: Some(Still(Arc::new(move || holds.load(Ordering::SeqCst)))), ..claim() }
    };
    let read = db.execute(Request::read(claim(), count_of("SELECT count(*) FROM users"))).await;
    assert_eq!(read, Err(ShardError::Overtaken));
    let written = db.execute(Request::write(claim(), vec![insert_user(1, "a", 0)])).await;
    assert_eq!(written, Err(ShardError::Overtaken));
    let begun = db.begin(Begin::new(claim(), Access::Write)).await;
    assert_eq!(begun.err(), Some(ShardError::Overtaken));
    assert_eq!(db.count("users").await, 0);
    holds.store(true, Ordering::SeqCst);
    let mut open = db.begin(Begin::new(claim(), Access::Write)).await.unwrap();
    open.execute(&insert_user(1, "a", 0)).await.unwrap();
    holds.store(false, Ordering::SeqCst);
    open.execute(&insert_user(2, "a", 0)).await.unwrap();
    open.commit().await.unwrap();
    assert_eq!(db.count("users").await, 2);
}
