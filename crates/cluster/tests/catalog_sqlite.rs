//! What holds of the catalog in a SQLite file only: opening it, its settings, and what it says of a bad file.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall say where")]

use isles_cluster::catalog::*;
use isles_engine::env::{Env, TokioEnv};
use rusqlite::Connection;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

async fn open(path: &Path) -> std::result::Result<SqliteCatalog, OpenError> {
    SqliteCatalog::open(path, Arc::new(TokioEnv::current()), Options::default()).await
}

async fn refusal(path: &Path) -> OpenError {
    match open(path).await {
        Ok(_) => panic!("{} was opened", path.display()),
        Err(error) => error,
    }
}

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

fn put(name: &str, value: &str) -> Transaction {
    Transaction::new().put(key(name), value)
}

/// A folder with a catalog in it that has two commits.
async fn existing() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("catalog.db");
    let catalog = open(&path).await.unwrap();
    catalog.commit(put("a", "1")).await.unwrap();
    catalog.commit(put("a", "2")).await.unwrap();
    catalog.close().await;
    (folder, path)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_committed_is_there_after_opening_again() {
    let (_folder, path) = existing().await;
    let catalog = open(&path).await.unwrap();
    let at = catalog.get(&key("a")).await.unwrap();
    assert_eq!((at.revision, at.value.unwrap().value), (Revision(2), b"2".to_vec()));
    assert_eq!(catalog.watch("", Revision(1)).await.unwrap().next().await.unwrap().revision, Revision(1));
    assert_eq!(catalog.commit(put("a", "3")).await.unwrap(), Revision(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_opener_is_refused_by_name_until_the_first_is_gone() {
    let (_folder, path) = existing().await;
    let first = open(&path).await.unwrap();
    let error = refusal(&path).await;
    assert!(matches!(&error, OpenError::Locked(locked) if *locked == path), "{error}");
    assert!(error.to_string().contains(path.to_str().unwrap()));
    first.commit(put("a", "3")).await.expect("the first one is not disturbed");
    first.close().await;
    assert_eq!(open(&path).await.unwrap().get(&key("a")).await.unwrap().revision, Revision(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn watchers_do_not_keep_a_closed_catalog_open() {
    let (_folder, path) = existing().await;
    let catalog = open(&path).await.unwrap();
    let mut watch = catalog.watch("", Revision(3)).await.unwrap();
    catalog.close().await;
    assert!(matches!(watch.next().await, Err(CatalogError::Stopped(_))));
    open(&path).await.unwrap();
}

/// The lock and the file are given back by closing, and not by the last one who forgets the catalog.
#[tokio::test(flavor = "multi_thread")]
async fn a_closed_catalog_can_be_opened_however_many_still_have_it() {
    let (_folder, path) = existing().await;
    let catalog = Arc::new(open(&path).await.unwrap());
    let other = catalog.clone();
    catalog.close().await;
    let next = open(&path).await.unwrap();
    assert_eq!(next.commit(put("a", "3")).await.unwrap(), Revision(3));
    assert!(matches!(other.get(&key("a")).await, Err(CatalogError::Stopped(_))));
    assert!(matches!(other.commit(put("a", "4")).await, Err(CatalogError::Stopped(_))));
    other.close().await;
    assert_eq!(next.get(&key("a")).await.unwrap().revision, Revision(3), "it is the next one's now");
    next.close().await;
    assert_eq!(open(&path).await.unwrap().get(&key("a")).await.unwrap().revision, Revision(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_another_program_has_open_is_refused() {
    let (_folder, path) = existing().await;
    let other = Connection::open(&path).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert!(matches!(refusal(&path).await, OpenError::Locked(_)));
    drop(other);
    open(&path).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn paths_that_cannot_be_opened_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    for bad in [folder.path().join("missing/catalog.db"), file.join("catalog.db"), folder.path().into()] {
        let error = refusal(&bad).await;
        assert!(matches!(&error, OpenError::Unavailable { path, .. } if *path == bad), "{error:?}");
        assert!(error.to_string().contains(bad.to_str().unwrap()));
    }
    assert!(matches!(refusal(Path::new("a\0b")).await, OpenError::Unavailable { .. }));
    let env = Arc::new(TokioEnv::current());
    let options = Options { vfs: Some("no such file system".into()), ..Options::default() };
    let error = SqliteCatalog::open(folder.path().join("c"), env, options).await.err().unwrap();
    assert!(matches!(error, OpenError::Unavailable { .. }), "{error:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_no_catalog_is_refused_and_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("catalog.db");
    for text in ["hello".to_owned(), "this is no database at all\n".repeat(1000)] {
        std::fs::write(&path, &text).unwrap();
        assert!(matches!(refusal(&path).await, OpenError::NotACatalog { .. }));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
    }
    std::fs::remove_file(&path).unwrap();
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
    let before = std::fs::read(&path).unwrap();
    assert!(matches!(refusal(&path).await, OpenError::NotACatalog { .. }));
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_catalog_of_a_newer_program_is_refused_and_left_alone() {
    let (_folder, path) = existing().await;
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 2).unwrap();
    let error = refusal(&path).await;
    assert!(matches!(error, OpenError::Newer { found: 2, known: 1, .. }), "{error:?}");
    Connection::open(&path).unwrap().pragma_update(None, "user_version", 1).unwrap();
    open(&path).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_catalog_is_refused() {
    let (_folder, path) = existing().await;
    let image = std::fs::read(&path).unwrap();
    let mut overwritten = image.clone();
    overwritten[4096..].fill(0xaa);
    for damaged in [&overwritten[..], &image[..image.len() - 4096], &image[..5000]] {
        std::fs::write(&path, damaged).unwrap();
        let error = refusal(&path).await;
        assert!(matches!(error, OpenError::Damaged { .. }), "{error:?}");
    }
    std::fs::write(&path, image).unwrap();
    Connection::open(&path).unwrap().execute_batch("DROP TABLE leases").unwrap();
    assert!(matches!(refusal(&path).await, OpenError::Damaged { .. }));
}

/// I-6a
#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_has_changed_by_itself_stops_the_catalog() {
    let (_folder, path) = existing().await;
    Connection::open(&path).unwrap().execute("UPDATE records SET value = x'39'", []).unwrap();
    let catalog = open(&path).await.unwrap();
    let mut watch = catalog.watch("", Revision(3)).await.unwrap();
    assert!(matches!(catalog.get(&key("a")).await, Err(CatalogError::Stopped(_))));
    assert!(matches!(catalog.commit(put("b", "1")).await, Err(CatalogError::Stopped(_))));
    assert!(matches!(watch.next().await, Err(CatalogError::Stopped(_))));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_history_is_from_1_to_its_limit() {
    let folder = tempfile::tempdir().unwrap();
    let cases = [(0, false), (1, true), (HISTORY_COMMITS_MAX, true), (HISTORY_COMMITS_MAX + 1, false)];
    for (history_commits, is_allowed) in cases {
        let options = Options { history_commits, ..Options::default() };
        let opened = SqliteCatalog::open(folder.path().join("c"), Arc::new(TokioEnv::current()), options).await;
        assert_eq!(opened.is_ok(), is_allowed, "{history_commits}");
        if let Ok(catalog) = opened {
            catalog.close().await;
        }
    }
    let options = Options { history_commits: 1, ..Options::default() };
    let catalog = SqliteCatalog::open(folder.path().join("c"), Arc::new(TokioEnv::current()), options).await.unwrap();
    for n in 1..=3 {
        assert_eq!(catalog.commit(put("a", "x")).await.unwrap(), Revision(n));
        let refusal = catalog.watch("", Revision(n - 1)).await.err();
        assert_eq!(refusal, (n > 1).then_some(CatalogError::Compacted { oldest: Revision(n) }));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn large_values_shorten_the_history_and_not_the_revision() {
    let (_folder, path) = existing().await;
    let catalog = open(&path).await.unwrap();
    let commits = (HISTORY_BYTES_MAX / VALUE_BYTES_MAX) as u64 + 3;
    for _ in 0..commits {
        catalog.commit(Transaction::new().put(key("big"), vec![7; VALUE_BYTES_MAX])).await.unwrap();
    }
    let Some(CatalogError::Compacted { oldest }) = catalog.watch("", Revision(1)).await.err() else { panic!() };
    assert!(oldest > Revision(3) && oldest < Revision(commits), "{oldest}");
    catalog.close().await;
    let catalog = open(&path).await.unwrap();
    assert_eq!(catalog.watch("", Revision(1)).await.err(), Some(CatalogError::Compacted { oldest }));
    assert_eq!(catalog.get(&key("a")).await.unwrap().revision, Revision(2 + commits));
    let bytes = std::fs::metadata(&path).unwrap().len();
    assert!(bytes < 2 * HISTORY_BYTES_MAX as u64, "{bytes}");
}

type Job = Box<dyn FnOnce() + Send>;

/// An environment whose blocking work waits until the test lets it go, as on a disk that hangs.
struct Hanging {
    tokio: TokioEnv,
    /// `None` while nothing hangs.
    held: Mutex<Option<Vec<Job>>>,
}

impl Hanging {
    fn new() -> Arc<Hanging> {
        Arc::new(Hanging { tokio: TokioEnv::current(), held: Mutex::new(None) })
    }

    fn hang(&self) {
        *self.held.lock().unwrap() = Some(Vec::new());
    }

    fn go_on(&self) {
        let jobs = self.held.lock().unwrap().take().unwrap();
        jobs.into_iter().for_each(|job| self.tokio.blocking(job));
    }
}

impl Env for Hanging {
    fn now_micros(&self) -> u64 {
        self.tokio.now_micros()
    }

    fn elapsed(&self) -> Duration {
        self.tokio.elapsed()
    }

    fn sleep(&self, duration: Duration) -> futures::future::BoxFuture<'static, ()> {
        self.tokio.sleep(duration)
    }

    fn spawn(&self, task: futures::future::BoxFuture<'static, ()>) {
        self.tokio.spawn(task);
    }

    fn blocking(&self, job: Job) {
        match &mut *self.held.lock().unwrap() {
            Some(held) => held.push(job),
            None => self.tokio.blocking(job),
        }
    }

    fn random(&self) -> u64 {
        self.tokio.random()
    }
}

/// I-66
#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_hangs_ends_the_wait_and_the_same_commit_sent_again_tells_what_became_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let env = Hanging::new();
    let options = Options { answer_within: Duration::from_millis(50), ..Options::default() };
    let catalog = SqliteCatalog::open(folder.path().join("c"), env.clone(), options).await.unwrap();
    env.hang();
    let transaction = put("a", "1").when(Condition::Absent(key("a"))).once(CommitId(1));
    assert!(matches!(catalog.commit(transaction.clone()).await, Err(CatalogError::MayHaveHappened(_))));
    assert!(matches!(catalog.acquire(&key("l"), "me", LEASE_TTL_MIN).await, Err(CatalogError::MayHaveHappened(_))));
    assert!(matches!(catalog.get(&key("a")).await, Err(CatalogError::Busy(_))));
    env.go_on();
    let settled = loop {
        match catalog.commit(transaction.clone()).await {
            Err(CatalogError::MayHaveHappened(_)) => {}
            settled => break settled,
        }
    };
    assert_eq!(settled, Ok(Revision(1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_wait_are_limited() {
    let folder = tempfile::tempdir().unwrap();
    let env = Hanging::new();
    let catalog = SqliteCatalog::open(folder.path().join("c"), env.clone(), Options::default()).await.unwrap();
    env.hang();
    let name = key("a");
    let mut waiting: Vec<_> = (0..4096).map(|_| catalog.get(&name)).collect();
    for call in &mut waiting {
        assert!(futures::poll!(call).is_pending());
    }
    assert!(matches!(catalog.get(&key("a")).await, Err(CatalogError::Busy(_))));
    env.go_on();
    for call in waiting {
        call.await.unwrap();
    }
    catalog.get(&key("a")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_environment_that_drops_its_work_stops_the_catalog_and_leaves_nobody_waiting() {
    let folder = tempfile::tempdir().unwrap();
    let env = Hanging::new();
    let catalog = SqliteCatalog::open(folder.path().join("c"), env.clone(), Options::default()).await.unwrap();
    env.hang();
    let mut call = Box::pin(catalog.commit(put("a", "1")));
    assert!(futures::poll!(&mut call).is_pending());
    drop(env.held.lock().unwrap().take());
    assert!(matches!(call.await, Err(CatalogError::Stopped(_))), "it never began");
    assert!(matches!(catalog.get(&key("a")).await, Err(CatalogError::Stopped(_))));
}
