//! Stores: one suite for all of them, and a SQLite store that dies at every operation of its disk.

#![allow(clippy::unwrap_used)]

use isles_kernel::sync::{RowKey, RowVersion, Values};
use isles_lofi::store::Generation;
use isles_lofi::{Kept, MemoryStore, Row, SqliteStore, Store, Write};
use isles_sim::disk::{Crash, Disk};
use isles_sim::rng::Rng;
use serde_json::json;
use std::path::Path;

fn key(id: u64) -> RowKey {
    RowKey::new("s", "t", format!("r{id}")).unwrap()
}

fn row(n: u64) -> Row {
    let values: Values = serde_json::from_value(json!({"n": n, "text": "x".repeat(100), "none": null})).unwrap();
    Row { version: RowVersion(n), values }
}

/// Commits as a replica makes them: rows of two generations with the record that belongs to them.
fn commits(seed: u64, count: u64) -> Vec<Vec<Write>> {
    let mut rng = Rng::new(seed);
    (1..=count)
        .map(|at| {
            let mut writes: Vec<Write> = (0..rng.range(1..6))
                .map(|_| {
                    let (generation, id) = (Generation(rng.below(2)), rng.below(12));
                    match rng.below(10) {
                        0 => Write::DropGeneration(generation),
                        1 | 2 => Write::DeleteRow(generation, key(id)),
                        3 => Write::Delete(format!("command/{id}")),
                        4 => Write::Put(format!("command/{id}"), json!({"at": at})),
                        _ => Write::PutRow(generation, key(id), row(at)),
                    }
                })
                .collect();
            writes.push(Write::Put("head".into(), json!({"cursor": at})));
            writes
        })
        .collect()
}

/// What every store does.
fn conforms(mut open: impl FnMut(Option<Box<dyn Store>>) -> Box<dyn Store>) {
    let mut store = open(None);
    let mut model = Kept::default();
    assert_eq!(store.load().unwrap(), model, "a new store is empty");
    for (at, writes) in commits(7, 60).iter().enumerate() {
        store.commit(writes).unwrap();
        model.apply(writes);
        assert_eq!(store.load().unwrap(), model, "after commit {at}");
        if at % 20 == 19 {
            store = open(Some(store));
            assert_eq!(store.load().unwrap(), model, "opened again after commit {at}");
        }
    }
    store.commit(&[]).unwrap();
    assert_eq!(store.load().unwrap(), model);
}

#[test]
fn a_store_in_memory_conforms() {
    conforms(|old| old.unwrap_or_else(|| Box::new(MemoryStore::default())));
}

#[test]
fn a_store_in_a_sqlite_file_conforms() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("replica.db");
    conforms(|old| {
        drop(old);
        Box::new(SqliteStore::open(&path).unwrap())
    });
}

#[test]
fn a_sqlite_file_has_one_user() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("replica.db");
    let mut first = SqliteStore::open(&path).unwrap();
    first.commit(&commits(1, 1)[0]).unwrap();
    assert!(SqliteStore::open(&path).is_err());
    drop(first);
    SqliteStore::open(&path).unwrap();
}

#[test]
fn a_file_of_another_layout_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("replica.db");
    rusqlite::Connection::open(&path).unwrap().pragma_update(None, "user_version", 99).unwrap();
    let error = SqliteStore::open(&path).err().unwrap().to_string();
    assert!(error.contains("layout 99"), "{error}");
}

const FILE: &str = "/replica.db";
const COMMITS: u64 = 12;

/// Opens the store and commits until something fails; how many commits were acknowledged.
fn live(disk: &Disk, story: &[Vec<Write>]) -> usize {
    let Ok(mut store) = SqliteStore::open_with_vfs(Path::new(FILE), disk.vfs_name()) else { return 0 };
    story.iter().take_while(|writes| store.commit(writes).is_ok()).count()
}

/// I-2, I-34: after a crash at any operation, rows and cursor are those of the last acknowledged commit, or of the one
/// that was under way; never of half a commit.
#[test]
fn a_crash_at_any_operation_leaves_whole_commits() {
    let disk = Disk::new(1).unwrap();
    let story = commits(11, COMMITS);
    let states: Vec<Kept> = (0..=story.len())
        .map(|count| {
            let mut kept = Kept::default();
            story[..count].iter().for_each(|writes| kept.apply(writes));
            kept
        })
        .collect();
    disk.reset(1);
    assert_eq!(live(&disk, &story), story.len());
    let operations = disk.counts().operations;
    assert!(operations > 30, "{operations}");
    let mut under_way = 0;
    for at in 1..=operations {
        for crash in Crash::ALL {
            disk.reset(at);
            disk.crash_at(at);
            let acknowledged = live(&disk, &story);
            disk.restart(crash);
            let mut store = SqliteStore::open_with_vfs(Path::new(FILE), disk.vfs_name()).unwrap();
            let kept = store.load().unwrap();
            let found = states.iter().position(|state| *state == kept);
            let found = found.unwrap_or_else(|| panic!("operation {at}, {crash:?}: half a commit is there"));
            assert!(
                found == acknowledged || found == acknowledged + 1,
                "operation {at}, {crash:?}: {acknowledged} commits were acknowledged, {found} are there"
            );
            under_way += usize::from(found == acknowledged + 1);
            // It goes on from there.
            story[found..].iter().for_each(|writes| store.commit(writes).unwrap());
            assert_eq!(store.load().unwrap(), states[story.len()]);
        }
    }
    println!("{operations} operations, {under_way} times the commit under way was there");
}
