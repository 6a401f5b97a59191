//! What every catalog must do, whatever keeps it. The tests see `dyn Catalog` only; two functions know the store.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall say where")]

use isles_cluster::catalog::*;
use isles_engine::env::{Env, TokioEnv};
use isles_sim::exec::Sim;
use isles_sim::rng::Rng;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

const TTL: Duration = Duration::from_secs(10);

/// Tasks that work at once.
const TASKS: u64 = 8;

/// Well below the poll of a test that must not depend on it.
const SOON: Duration = Duration::from_secs(20);

async fn open_with(options: Options) -> (TempDir, Arc<dyn Catalog>) {
    let folder = tempfile::tempdir().unwrap();
    let env = Arc::new(TokioEnv::current());
    let catalog = SqliteCatalog::open(folder.path().join("catalog.db"), env, options).await.unwrap();
    (folder, Arc::new(catalog))
}

async fn open() -> (TempDir, Arc<dyn Catalog>) {
    open_with(Options::default()).await
}

fn key(name: impl Into<String>) -> Key {
    Key::new(name).unwrap()
}

fn put(name: &str, value: &str) -> Transaction {
    Transaction::new().put(key(name), value)
}

async fn read(catalog: &dyn Catalog, name: &str) -> Option<Record> {
    catalog.get(&key(name)).await.unwrap().value
}

/// Runs `task(catalog, n)` for each n at the same time.
async fn at_once<T, F>(catalog: &Arc<dyn Catalog>, task: impl Fn(Arc<dyn Catalog>, u64) -> F) -> Vec<T>
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    let tasks: Vec<_> = (0..TASKS).map(|n| tokio::spawn(task(catalog.clone(), n))).collect();
    let mut results = Vec::new();
    for task in tasks {
        results.push(task.await.unwrap());
    }
    results
}

async fn take(watch: &mut dyn Watch, count: u64) -> Vec<Commit> {
    let mut commits = Vec::new();
    for _ in 0..count {
        commits.push(watch.next().await.unwrap());
    }
    commits
}

#[tokio::test(flavor = "multi_thread")]
async fn a_record_says_when_it_was_made_and_when_it_changed() {
    let (_folder, catalog) = open().await;
    assert_eq!(catalog.get(&key("a")).await.unwrap(), At { revision: Revision::ZERO, value: None });
    assert_eq!(catalog.commit(put("a", "1")).await.unwrap(), Revision(1));
    assert_eq!(catalog.commit(put("a", "2")).await.unwrap(), Revision(2));
    let record = Record { key: key("a"), value: b"2".to_vec(), revision: Revision(2), created: Revision(1) };
    assert_eq!(catalog.get(&key("a")).await.unwrap(), At { revision: Revision(2), value: Some(record) });

    assert_eq!(catalog.commit(Transaction::new().delete(key("a"))).await.unwrap(), Revision(3));
    assert_eq!(catalog.commit(put("a", "3")).await.unwrap(), Revision(4));
    assert_eq!(read(&*catalog, "a").await.unwrap().created, Revision(4), "a key that comes back is a new one");
}

/// I-8
#[tokio::test(flavor = "multi_thread")]
async fn the_revision_rises_by_one_for_a_change_and_by_none_for_no_change() {
    let (_folder, catalog) = open().await;
    let revision = catalog.commit(put("a", "1").put(key("b"), "1").delete(key("c"))).await.unwrap();
    assert_eq!(revision, Revision(1), "three writes are one commit");
    assert_eq!(catalog.commit(put("a", "1")).await.unwrap(), Revision(2), "the same value is a change");
    for nothing in [
        Transaction::new(),
        Transaction::new().when(Condition::Exists(key("a"))),
        Transaction::new().delete(key("c")).delete(key("d")),
    ] {
        assert_eq!(catalog.commit(nothing).await.unwrap(), Revision(2));
    }
    let lease = catalog.acquire(&key("l"), "me", TTL).await.unwrap();
    catalog.release(&key("l"), lease.token).await.unwrap();
    assert_eq!(catalog.get(&key("a")).await.unwrap().revision, Revision(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_condition_that_fails_is_named_and_nothing_is_written() {
    let (_folder, catalog) = open().await;
    catalog.commit(put("a", "1")).await.unwrap();
    catalog.commit(put("b", "1")).await.unwrap();
    let lease = catalog.acquire(&key("l"), "me", TTL).await.unwrap();
    let other = LeaseToken(lease.token.0 + 1);
    let cases = [
        (Condition::Absent(key("a")), Actual::At(Revision(1))),
        (Condition::Exists(key("z")), Actual::Absent),
        (Condition::At(key("b"), Revision(1)), Actual::At(Revision(2))),
        (Condition::At(key("z"), Revision(1)), Actual::Absent),
        (Condition::At(key("z"), Revision::ZERO), Actual::Absent),
        (Condition::Held(key("l"), other), Actual::Held(lease.token)),
        (Condition::Held(key("m"), lease.token), Actual::Absent),
        (Condition::Held(key("a"), LeaseToken(1)), Actual::Absent),
    ];
    for (expected, actual) in cases {
        let holding = put("a", "2").when(Condition::Exists(key("a"))).when(Condition::Held(key("l"), lease.token));
        let failing = holding.when(expected.clone());
        assert_eq!(catalog.commit(failing).await, Err(CatalogError::Conflict { expected, actual }));
    }
    let at = catalog.get(&key("a")).await.unwrap();
    assert_eq!((at.revision, at.value.unwrap().value), (Revision(2), b"1".to_vec()));
}

/// Adds one to each of the counters, all in one commit. Returns how often somebody else was faster.
async fn increment(catalog: &dyn Catalog, names: &[&str]) -> u64 {
    let mut conflicts = 0;
    loop {
        let mut transaction = Transaction::new();
        for name in names {
            let found = read(catalog, name).await;
            let next = found.as_ref().map_or(0, |record| record.json::<u64>().unwrap()) + 1;
            transaction = transaction.when_as_read(&key(*name), found.as_ref()).put_json(key(*name), &next).unwrap();
        }
        match catalog.commit(transaction).await {
            Ok(_) => return conflicts,
            Err(CatalogError::Conflict { .. }) => conflicts += 1,
            Err(error) => panic!("{error}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn counters_changed_by_many_at_once_are_exact_and_never_torn() {
    const ROUNDS: u64 = 25;
    let (_folder, catalog) = open().await;
    let mut watch = catalog.watch("", Revision(1)).await.unwrap();
    let conflicts = at_once(&catalog, async |catalog, _| {
        let mut conflicts = 0;
        for _ in 0..ROUNDS {
            conflicts += increment(&*catalog, &["x", "y"]).await;
        }
        conflicts
    })
    .await;
    assert!(conflicts.iter().sum::<u64>() > 0, "nobody was in anybody's way, so nothing was tested");
    let page = catalog.list("", None, 10).await.unwrap();
    assert_eq!(page.revision, Revision(TASKS * ROUNDS));
    let values: Vec<u64> = page.records.iter().map(|record| record.json().unwrap()).collect();
    assert_eq!(values, [TASKS * ROUNDS; 2]);
    for n in 1..=TASKS * ROUNDS {
        let commit = watch.next().await.unwrap();
        let values: Vec<u64> = commit.events.iter().map(value_of).collect();
        assert_eq!((commit.revision, values), (Revision(n), vec![n, n]));
    }
}

fn value_of(event: &Event) -> u64 {
    match event {
        Event::Put(record) => record.json().unwrap(),
        Event::Deleted(key) => panic!("{key} was deleted"),
    }
}

/// A model of the catalog: what each key holds, and what each commit did.
#[derive(Default)]
struct Model {
    records: BTreeMap<Key, Record>,
    revision: Revision,
    history: Vec<Commit>,
}

impl Model {
    fn commit(&mut self, transaction: &Transaction) -> Result<Revision> {
        for expected in &transaction.conditions {
            self.check(expected)?;
        }
        let revision = self.revision.next();
        let events: Vec<Event> = transaction.writes.iter().filter_map(|write| self.write(revision, write)).collect();
        if !events.is_empty() {
            self.revision = revision;
            self.history.push(Commit { revision, events });
        }
        Ok(self.revision)
    }

    fn check(&self, expected: &Condition) -> Result<()> {
        let (Condition::Absent(key) | Condition::Exists(key) | Condition::At(key, _)) = expected else { panic!() };
        let found = self.records.get(key).map(|record| record.revision);
        let holds = match expected {
            Condition::Absent(_) => found.is_none(),
            Condition::At(_, revision) => found == Some(*revision),
            _ => found.is_some(),
        };
        let actual = found.map_or(Actual::Absent, Actual::At);
        if holds { Ok(()) } else { Err(CatalogError::Conflict { expected: expected.clone(), actual }) }
    }

    fn write(&mut self, revision: Revision, write: &Write) -> Option<Event> {
        match write {
            Write::Put(key, value) => {
                let created = self.records.get(key).map_or(revision, |record| record.created);
                let record = Record { key: key.clone(), value: value.clone(), revision, created };
                self.records.insert(key.clone(), record.clone());
                Some(Event::Put(record))
            }
            Write::Delete(key) => self.records.remove(key).map(|record| Event::Deleted(record.key)),
        }
    }
}

fn random_transaction(rng: &mut Rng, model: &Model) -> Transaction {
    // Several prefixes, one key that is a prefix of others, and letters of several bytes.
    let mut keys: Vec<Key> = ["a", "a/1", "a/2", "a0", "b/日本", "b/é", "c"].into_iter().map(key).collect();
    let mut transaction = Transaction::new();
    for _ in 0..rng.below(3) {
        let key = rng.pick(&keys).clone();
        let revision = match model.records.get(&key).filter(|_| rng.chance(3, 4)) {
            Some(record) => record.revision,
            None => Revision(rng.below(model.revision.0 + 1)),
        };
        let all = [Condition::Absent(key.clone()), Condition::Exists(key.clone()), Condition::At(key, revision)];
        transaction = transaction.when(rng.pick(&all).clone());
    }
    rng.shuffle(&mut keys);
    for key in keys.into_iter().take(rng.below(4) as usize) {
        transaction = match rng.chance(1, 3) {
            true => transaction.delete(key),
            false => transaction.put(key, rng.bits().to_le_bytes()),
        };
    }
    transaction
}

#[tokio::test(flavor = "multi_thread")]
async fn a_random_history_is_what_a_simple_map_makes_of_it() {
    let (_folder, catalog) = open().await;
    let mut rng = Rng::new(7);
    let mut model = Model::default();
    let mut conflicts = 0;
    for _ in 0..1500 {
        let transaction = random_transaction(&mut rng, &model);
        let expected = model.commit(&transaction);
        conflicts += u64::from(expected.is_err());
        assert_eq!(catalog.commit(transaction).await, expected);
        check_reads(&*catalog, &mut rng, &model).await;
    }
    assert!(conflicts > 100 && model.revision > Revision(500), "{conflicts} {}", model.revision);
    check_watch(&*catalog, &mut rng, &model).await;
}

async fn check_reads(catalog: &dyn Catalog, rng: &mut Rng, model: &Model) {
    let prefix = *rng.pick(&["", "a", "a/", "b/日", "c", "d"]);
    let after = rng.chance(1, 2).then(|| key(*rng.pick(&["a", "a/1", "a/11", "b/", "z"])));
    let limit = rng.below(5) as usize;
    let comes_after = |record: &&Record| after.as_ref().is_none_or(|after| record.key > *after);
    let mut all = model.records.values().filter(|record| record.key.as_str().starts_with(prefix)).filter(comes_after);
    let records: Vec<Record> = all.by_ref().take(limit).cloned().collect();
    let expected = Page { revision: model.revision, records, more: all.next().is_some() };
    assert_eq!(catalog.list(prefix, after.as_ref(), limit).await.unwrap(), expected);
    let key = key(*rng.pick(&["a", "a/1", "c"]));
    let value = model.records.get(&key).cloned();
    assert_eq!(catalog.get(&key).await.unwrap(), At { revision: model.revision, value });
}

async fn check_watch(catalog: &dyn Catalog, rng: &mut Rng, model: &Model) {
    for prefix in ["", "a", "a/", "b/日", "c"] {
        let from = Revision(rng.below(model.revision.0 + 1));
        let mut watch = catalog.watch(prefix, from).await.unwrap();
        for commit in model.history.iter().filter(|commit| commit.revision >= from) {
            let is_within = |event: &&Event| event.key().as_str().starts_with(prefix);
            let events: Vec<Event> = commit.events.iter().filter(is_within).cloned().collect();
            if !events.is_empty() {
                assert_eq!(watch.next().await.unwrap(), Commit { revision: commit.revision, events });
                assert_eq!(watch.position(), commit.revision.next());
            }
        }
    }
}

/// I-3
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_with_an_id_happens_once_however_often_it_is_sent() {
    let (_folder, catalog) = open().await;
    let id = CommitId::random(&TokioEnv::current());
    let first = put("a", "1").delete(key("absent")).when(Condition::Absent(key("a"))).once(id);
    let revisions = at_once(&catalog, |catalog, _| {
        let first = first.clone();
        async move { catalog.commit(first).await.unwrap() }
    })
    .await;
    assert_eq!(revisions, [Revision(1); TASKS as usize]);
    catalog.commit(Transaction::new().delete(key("a"))).await.unwrap();
    assert_eq!(catalog.commit(first).await.unwrap(), Revision(1), "also after its effect is gone");
    assert_eq!(read(&*catalog, "a").await, None);
    for other in [put("a", "2"), put("b", "1"), Transaction::new().delete(key("a")), put("a", "1").put(key("b"), "1")] {
        let refused = catalog.commit(other.once(id)).await;
        assert!(matches!(refused, Err(CatalogError::Invalid(_))), "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn watchers_see_every_commit_once_and_in_order_while_others_commit() {
    const COMMITS: u64 = 40;
    const TOTAL: u64 = TASKS * COMMITS;
    let (_folder, catalog) = open().await;
    let mut before = catalog.watch("n/", Revision::ZERO).await.unwrap();
    let watching = tokio::spawn(async move { take(&mut *before, TOTAL).await });
    let seen = at_once(&catalog, async |catalog, n| {
        for i in 0..COMMITS {
            catalog.commit(put(&format!("n/{n}"), &i.to_string())).await.unwrap();
        }
        // By now there are at least this many commits, and the other tasks go on.
        let mut watch = catalog.watch("n/", Revision(n * COMMITS / TASKS + 1)).await.unwrap();
        take(&mut *watch, TOTAL - n * COMMITS / TASKS).await
    })
    .await;
    let all = watching.await.unwrap();
    assert_eq!(all.iter().map(|commit| commit.revision.0).collect::<Vec<_>>(), (1..=TOTAL).collect::<Vec<_>>());
    for (n, part) in seen.iter().enumerate() {
        assert_eq!(part[..], all[n * COMMITS as usize / TASKS as usize..]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_watcher_is_woken_at_once_and_loses_nothing_when_it_stops_waiting() {
    let (_folder, catalog) = open_with(Options { poll: Duration::from_secs(3600), ..Options::default() }).await;
    let mut watch = catalog.watch("a", Revision(1)).await.unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(20), watch.next()).await.is_err(), "there is no news yet");
    let waiting = tokio::spawn(async move { (watch.next().await.unwrap(), watch) });
    catalog.commit(put("b", "1")).await.unwrap();
    catalog.commit(put("a", "1")).await.unwrap();
    let (commit, mut watch) = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap();
    assert_eq!(commit.revision, Revision(2));
    for _ in 0..3 {
        let _ = tokio::time::timeout(Duration::ZERO, watch.next()).await;
    }
    assert_eq!(watch.position(), Revision(3));
    catalog.commit(put("a", "2")).await.unwrap();
    assert_eq!(tokio::time::timeout(SOON, watch.next()).await.unwrap().unwrap().revision, Revision(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_that_asks_for_forgotten_commits_is_told_to_list() {
    let (_folder, catalog) = open_with(Options { history_commits: 10, ..Options::default() }).await;
    let mut slow = catalog.watch("", Revision::ZERO).await.unwrap();
    for i in 1..=10 {
        catalog.commit(put("a", &i.to_string())).await.unwrap();
    }
    catalog.watch("", Revision::ZERO).await.expect("ten commits are within a history of ten");
    for i in 11..=15 {
        catalog.commit(put("a", &i.to_string())).await.unwrap();
    }
    let compacted = CatalogError::Compacted { oldest: Revision(6) };
    assert_eq!(slow.next().await, Err(compacted.clone()));
    assert_eq!(slow.next().await, Err(compacted.clone()), "it stays so");
    for (from, is_forgotten) in [(0, true), (1, true), (5, true), (6, false), (15, false), (16, false)] {
        let refusal = catalog.watch("", Revision(from)).await.err();
        assert_eq!(refusal, is_forgotten.then(|| compacted.clone()), "from {from}");
    }
    let page = catalog.list("", None, 10).await.unwrap();
    let mut again = catalog.watch("", page.revision.next()).await.unwrap();
    catalog.commit(put("a", "16")).await.unwrap();
    assert_eq!(again.next().await.unwrap().revision, Revision(16));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_from_the_future_learns_that_the_catalog_is_older_than_it_thinks() {
    let (_folder, catalog) = open().await;
    assert!(catalog.watch("", Revision(1)).await.is_ok());
    let refusal = catalog.watch("", Revision(2)).await.err();
    assert_eq!(refusal, Some(CatalogError::Ahead { current: Revision::ZERO }));
}

#[tokio::test(flavor = "multi_thread")]
async fn watchers_are_limited_and_a_dropped_one_leaves_its_place() {
    let (_folder, catalog) = open().await;
    let mut watchers = Vec::new();
    for _ in 0..WATCHERS_MAX {
        watchers.push(catalog.watch("", Revision(1)).await.unwrap());
    }
    assert!(matches!(catalog.watch("", Revision(1)).await.err(), Some(CatalogError::Busy(_))));
    watchers.pop();
    watchers.push(catalog.watch("", Revision(1)).await.unwrap());
    drop(watchers);
    for _ in 0..WATCHERS_MAX {
        assert!(catalog.watch("", Revision(9)).await.is_err());
        drop(catalog.watch("", Revision(1)).await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn typed_values_come_back_as_they_were() {
    #[derive(Serialize, Deserialize, PartialEq, Debug)]
    struct Shard {
        region: String,
        weight: u32,
    }
    let (_folder, catalog) = open().await;
    let shard = Shard { region: "eu".into(), weight: 3 };
    catalog.commit(Transaction::new().put_json(key("shard/a"), &shard).unwrap()).await.unwrap();
    let record = read(&*catalog, "shard/a").await.unwrap();
    assert_eq!(record.json::<Shard>().unwrap(), shard);
    assert!(matches!(record.json::<u64>(), Err(CatalogError::Invalid(_))));
    let not_json = BTreeMap::from([((1, 2), 3)]);
    assert!(matches!(Transaction::new().put_json(key("a"), &not_json), Err(CatalogError::Invalid(_))));
}

#[test]
fn a_key_is_a_text_of_limited_length_without_control_characters() {
    assert!(Key::new("region_shard_config:日 本/:%_'\"").is_ok());
    for bad in ["", "a\0", "a\nb", "\u{7f}"] {
        assert!(matches!(Key::new(bad), Err(CatalogError::Invalid(_))), "{bad:?}");
    }
    assert!(Key::new("k".repeat(KEY_BYTES_MAX - 1)).is_ok());
    assert!(Key::new("k".repeat(KEY_BYTES_MAX)).is_ok());
    assert!(matches!(Key::new("k".repeat(KEY_BYTES_MAX + 1)), Err(CatalogError::Limit { actual: 513, .. })));
    assert!(Key::new("日".repeat(KEY_BYTES_MAX / 3 + 1)).is_err(), "bytes are counted, not characters");
}

type OfSize = fn(usize) -> Transaction;

fn of_writes(count: usize) -> Transaction {
    (0..count).fold(Transaction::new(), |transaction, n| transaction.put(key(format!("k{n}")), "v"))
}

fn of_conditions(count: usize) -> Transaction {
    (0..count).fold(put("x", "v"), |transaction, _| transaction.when(Condition::Absent(key("y"))))
}

fn of_bytes(count: usize) -> Transaction {
    let half = count / 2;
    Transaction::new().put(key("p"), vec![1; half - 1]).put(key("q"), vec![2; count - half - 1])
}

fn of_value(count: usize) -> Transaction {
    Transaction::new().put(key("v"), vec![0; count])
}

#[tokio::test(flavor = "multi_thread")]
async fn each_limit_of_a_transaction_holds_exactly() {
    let (_folder, catalog) = open().await;
    let limits: [(OfSize, usize); 4] = [
        (of_writes, OPERATIONS_MAX),
        (of_conditions, OPERATIONS_MAX),
        (of_bytes, TRANSACTION_BYTES_MAX),
        (of_value, VALUE_BYTES_MAX),
    ];
    for (make, max) in limits {
        catalog.commit(make(max - 1)).await.unwrap();
        let allowed = catalog.commit(make(max)).await.unwrap();
        match catalog.commit(make(max + 1)).await {
            Err(CatalogError::Limit { limit, actual, .. }) => assert_eq!((limit, actual), (max, max + 1)),
            other => panic!("{other:?}"),
        }
        assert_eq!(catalog.get(&key("x")).await.unwrap().revision, allowed, "what is refused changes nothing");
    }
    assert_eq!(read(&*catalog, "v").await.unwrap().value.len(), VALUE_BYTES_MAX);
}

#[tokio::test(flavor = "multi_thread")]
async fn senseless_calls_are_refused() {
    let (_folder, catalog) = open().await;
    for twice in [put("a", "1").put(key("a"), "2"), put("a", "1").delete(key("a"))] {
        assert!(matches!(catalog.commit(twice).await, Err(CatalogError::Invalid(_))));
    }
    assert!(catalog.list("", None, PAGE_RECORDS_MAX).await.is_ok());
    assert!(matches!(catalog.list("", None, PAGE_RECORDS_MAX + 1).await, Err(CatalogError::Limit { .. })));
    let too_long = "k".repeat(KEY_BYTES_MAX + 1);
    assert!(matches!(catalog.list(&too_long, None, 1).await, Err(CatalogError::Limit { .. })));
    assert!(matches!(catalog.watch(&too_long, Revision(1)).await.err(), Some(CatalogError::Limit { .. })));
    assert!(matches!(catalog.list("a\0", None, 1).await, Err(CatalogError::Invalid(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_of_large_records_are_short_and_together_complete() {
    const RECORDS: usize = 11;
    let (_folder, catalog) = open().await;
    for n in 0..RECORDS {
        catalog.commit(Transaction::new().put(key(format!("k{n:02}")), vec![n as u8; VALUE_BYTES_MAX])).await.unwrap();
    }
    let (mut after, mut found, mut pages) = (None, Vec::new(), 0);
    loop {
        let page = catalog.list("k", after.as_ref(), PAGE_RECORDS_MAX).await.unwrap();
        after = page.records.last().map(|record| record.key.clone());
        found.extend(page.records.into_iter().map(|record| record.value[0] as usize));
        pages += 1;
        if !page.more {
            break;
        }
    }
    assert_eq!((found, pages), ((0..RECORDS).collect(), RECORDS.div_ceil(PAGE_BYTES_MAX / VALUE_BYTES_MAX)));
    let mut watch = catalog.watch("k", Revision(1)).await.unwrap();
    assert_eq!(take(&mut *watch, RECORDS as u64).await.len(), RECORDS);
}

/// A catalog in virtual time, which can be opened again.
struct Place {
    sim: Sim,
    path: PathBuf,
}

impl Place {
    async fn open(&self) -> Arc<dyn Catalog> {
        self.open_with(Options::default()).await
    }

    async fn open_with(&self, options: Options) -> Arc<dyn Catalog> {
        Arc::new(SqliteCatalog::open(&self.path, self.sim.node("catalog"), options).await.unwrap())
    }

    async fn sleep(&self, duration: Duration) {
        self.sim.env().sleep(duration).await;
    }
}

fn in_sim(test: impl AsyncFnOnce(&Place)) {
    let folder = tempfile::tempdir().unwrap();
    let place = Place { sim: Sim::new(1), path: folder.path().join("catalog.db") };
    place.sim.run_within(Duration::from_secs(10 * 3600), test(&place)).unwrap();
}

#[test]
fn a_watcher_keeps_up_also_if_its_prefix_has_no_news() {
    in_sim(async |place| {
        let catalog = place.open_with(Options { history_commits: 10, ..Options::default() }).await;
        let mut watch = catalog.watch("quiet/", Revision(1)).await.unwrap();
        let (send, receive) = tokio::sync::oneshot::channel();
        place.sim.env().spawn(Box::pin(async move {
            let _ = send.send(watch.next().await);
        }));
        for i in 1..=100 {
            catalog.commit(put("loud", &i.to_string())).await.unwrap();
            place.sleep(Duration::from_millis(1)).await;
        }
        catalog.commit(put("quiet/a", "1")).await.unwrap();
        assert_eq!(receive.await.unwrap().unwrap().revision, Revision(101));
    });
}

/// I-47
#[test]
fn a_late_holder_is_refused_by_its_token() {
    in_sim(async |place| {
        let (catalog, name) = (place.open().await, key("plan/1"));
        let fenced = |lease: &Lease, value| put("plan/1", value).when(Condition::Held(lease.name.clone(), lease.token));
        let old = catalog.acquire(&name, "old", TTL).await.unwrap();
        assert_eq!(old.expires_in, TTL);
        catalog.commit(fenced(&old, "by old")).await.unwrap();

        place.sleep(TTL / 2).await;
        match catalog.acquire(&name, "new", TTL).await {
            Err(CatalogError::HeldByOther(lease)) => {
                assert_eq!((lease.owner.as_str(), lease.token), ("old", old.token));
                assert!(lease.expires_in <= TTL / 2 && lease.expires_in > TTL / 3);
            }
            other => panic!("{other:?}"),
        }
        place.sleep(TTL / 2).await;
        catalog.commit(fenced(&old, "late, but nobody has taken over")).await.unwrap();
        assert_eq!(catalog.lease(&name).await.unwrap().unwrap().expires_in, Duration::ZERO);
        let new = catalog.acquire(&name, "new", TTL).await.unwrap();
        assert!(new.token > old.token);

        let expected = Condition::Held(name.clone(), old.token);
        let lost = CatalogError::Conflict { expected, actual: Actual::Held(new.token) };
        assert_eq!(catalog.commit(fenced(&old, "late")).await, Err(lost.clone()));
        assert_eq!(catalog.renew(&name, old.token).await, Err(lost));
        catalog.release(&name, old.token).await.expect("giving back what is lost is no error");
        catalog.commit(fenced(&new, "by new")).await.expect("and takes nothing from the new holder");
    });
}

#[test]
fn a_lease_lives_as_long_as_it_is_renewed_and_is_free_once_it_is_released() {
    in_sim(async |place| {
        let (catalog, name) = (place.open().await, key("l"));
        let lease = catalog.acquire(&name, "me", TTL).await.unwrap();
        for _ in 0..5 {
            place.sleep(TTL * 2 / 3).await;
            assert_eq!(catalog.renew(&name, lease.token).await.unwrap(), lease);
            assert!(matches!(catalog.acquire(&name, "you", TTL).await, Err(CatalogError::HeldByOther(_))));
        }
        place.sleep(TTL * 2).await;
        assert_eq!(catalog.renew(&name, lease.token).await.unwrap(), lease, "expired, and taken by nobody");
        catalog.release(&name, lease.token).await.unwrap();
        catalog.release(&name, lease.token).await.unwrap();
        assert_eq!(catalog.lease(&name).await.unwrap(), None);
        assert!(matches!(catalog.renew(&name, lease.token).await, Err(CatalogError::Conflict { .. })));
        let next = catalog.acquire(&name, "you", TTL).await.unwrap();
        assert!(next.token > lease.token, "the token rises although the lease was gone");
    });
}

/// F8, F13
#[test]
fn a_doubled_owner_fences_its_double() {
    in_sim(async |place| {
        let catalog = place.open().await;
        let first = catalog.acquire(&key("l"), "node-1", TTL).await.unwrap();
        let second = catalog.acquire(&key("l"), "node-1", TTL).await.unwrap();
        assert!(second.token > first.token);
        let write = |lease: &Lease| put("x", "1").when(Condition::Held(key("l"), lease.token));
        assert!(matches!(catalog.commit(write(&first)).await, Err(CatalogError::Conflict { .. })));
        catalog.commit(write(&second)).await.unwrap();
    });
}

#[test]
fn tokens_rise_and_leases_last_across_restarts_and_jumps_of_the_wall_clock() {
    const YEAR_MICROS: i64 = 365 * 24 * 3600 * 1_000_000;
    in_sim(async |place| {
        let name = key("l");
        let mut last = LeaseToken(0);
        for skew in [0, YEAR_MICROS, -YEAR_MICROS, 1, -40 * YEAR_MICROS, YEAR_MICROS] {
            let catalog = place.open().await;
            place.sim.set_skew("catalog", skew);
            if last != LeaseToken(0) {
                let early = catalog.acquire(&name, "taker", TTL).await;
                assert!(matches!(early, Err(CatalogError::HeldByOther(lease)) if lease.token == last));
            }
            place.sleep(TTL).await;
            let lease = catalog.acquire(&name, &format!("owner {skew}"), TTL).await.unwrap();
            assert!(lease.token > last);
            last = lease.token;
            place.sim.set_skew("catalog", -skew);
            assert!(matches!(catalog.acquire(&name, "taker", TTL).await, Err(CatalogError::HeldByOther(_))));
        }
        place.open().await.release(&name, last).await.unwrap();
        let again = place.open().await.acquire(&name, "me", TTL).await.unwrap();
        assert!(again.token > last, "also if no lease is left that remembers it");
    });
}

#[test]
fn of_many_that_want_a_lease_one_gets_it_and_no_token_is_given_twice() {
    for seed in 0..20 {
        let folder = tempfile::tempdir().unwrap();
        let place = Place { sim: Sim::new(seed), path: folder.path().join("catalog.db") };
        let results = place.sim.run(async {
            let catalog = place.open().await;
            let (send, mut receive) = tokio::sync::mpsc::unbounded_channel();
            for n in 0..TASKS {
                let (catalog, send) = (catalog.clone(), send.clone());
                place.sim.env().spawn(Box::pin(async move {
                    send.send(catalog.acquire(&key("l"), &format!("owner {n}"), TTL).await).unwrap();
                    send.send(catalog.acquire(&key(format!("own {n}")), "me", TTL).await).unwrap();
                }));
            }
            drop(send);
            let mut results = Vec::new();
            while let Some(result) = receive.recv().await {
                results.push(result);
            }
            results
        });
        let results = results.unwrap();
        let tokens: BTreeSet<LeaseToken> = results.iter().flatten().map(|lease| lease.token).collect();
        let refused = results.iter().filter(|result| matches!(result, Err(CatalogError::HeldByOther(_)))).count();
        assert_eq!((tokens.len() as u64, refused as u64), (TASKS + 1, TASKS - 1), "seed {seed}");
    }
}

#[test]
fn each_limit_of_a_lease_holds_exactly() {
    in_sim(async |place| {
        let catalog = place.open().await;
        let tick = Duration::from_micros(1);
        for (ttl, is_allowed) in [
            (LEASE_TTL_MIN - tick, false),
            (LEASE_TTL_MIN, true),
            (LEASE_TTL_MIN + tick, true),
            (LEASE_TTL_MAX - tick, true),
            (LEASE_TTL_MAX, true),
            (LEASE_TTL_MAX + tick, false),
            (Duration::MAX, false),
        ] {
            assert_eq!(catalog.acquire(&key("l"), "me", ttl).await.is_ok(), is_allowed, "{ttl:?}");
        }
        for (bytes, is_allowed) in [(0, false), (1, true), (OWNER_BYTES_MAX, true), (OWNER_BYTES_MAX + 1, false)] {
            assert_eq!(catalog.acquire(&key("l"), &"o".repeat(bytes), TTL).await.is_ok(), is_allowed, "{bytes}");
            place.sleep(LEASE_TTL_MAX).await;
        }
    });
}

#[test]
fn expired_leases_make_room_and_living_ones_do_not() {
    in_sim(async |place| {
        let catalog = place.open().await;
        let names: Vec<Key> = (0..LEASES_MAX).map(|n| key(format!("short {n}"))).collect();
        for names in names.chunks(100) {
            let acquired = names.iter().map(|name| catalog.acquire(name, "me", LEASE_TTL_MAX / 2));
            futures::future::try_join_all(acquired).await.unwrap();
        }
        assert!(matches!(catalog.acquire(&key("more"), "me", TTL).await, Err(CatalogError::Busy(_))));
        catalog.acquire(&key("short 1"), "me", LEASE_TTL_MAX).await.expect("taking one's own again needs no room");
        place.sleep(LEASE_TTL_MAX / 2).await;
        catalog.acquire(&key("more"), "me", TTL).await.unwrap();
        assert!(catalog.lease(&key("short 1")).await.unwrap().is_some());
        assert!(catalog.lease(&key("short 2")).await.unwrap().is_none());
    });
}
