//! What is special to SQLite shards: bad files and folders, hardening, many shards, backup of a live one.

use isles_engine::env::{Env, TokioEnv};
use isles_engine::error::{Result, ShardError};
use isles_engine::fence::{Access, Claim, Claimed, Fence, FenceMode, FenceScope};
use isles_engine::shard::{
    ActsFor, Batch, Begin, DriverToken, ImportMode, Incoming, KeyRange, Request, RowVersion, Shard, Statement,
    StoredRow, StreamState,
};
use isles_engine::sqlite::fleet::Fleet;
use isles_engine::sqlite::{SqliteOptions, SqliteShard};
use isles_kernel::names::{PledgeId, RoutingVersion, SchemaVersion, Seq, ShardId, StreamId, TenantId};
use isles_kernel::schema::{Column, SchemaChange, Table, TableKind, Unit};
use isles_kernel::value::{DataType, Value};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

fn env() -> Arc<dyn Env> {
    Arc::new(TokioEnv::current())
}

fn id(name: &str) -> ShardId {
    ShardId::new(name).expect("valid")
}

async fn open(path: &Path) -> Result<SqliteShard> {
    SqliteShard::open(id("tested"), path, env(), SqliteOptions::default()).await
}

fn notes() -> Table {
    Table {
        name: "notes".into(),
        kind: TableKind::Reference,
        columns: vec![Column::new("id", DataType::Int8).not_null(), Column::new("body", DataType::Text)],
        primary_key: vec!["id".into()],
        keys: vec![],
        foreign_keys: vec![],
        checks: vec![],
        primary_key_name: None,
        hidden_key: false,
    }
}

async fn with_notes(path: &Path) -> SqliteShard {
    let shard = open(path).await.expect("opens");
    shard.apply_schema(SchemaVersion::ZERO, vec![SchemaChange::CreateTable(notes())]).await.expect("schema");
    shard
}

fn write(sql: &str, params: Vec<Value>) -> Request {
    Request::write(Claim::default(), vec![Statement::new(sql, params)])
}

async fn insert(shard: &SqliteShard, n: i64, body: &str) -> Result<()> {
    let insert = write("INSERT INTO notes (id, body) VALUES ($1, $2)", vec![Value::Int(n), Value::text(body)]);
    shard.execute(insert).await.map(drop)
}

async fn count(shard: &SqliteShard) -> Result<i64> {
    let select = Statement::new("SELECT count(*) FROM notes", vec![]).returning([DataType::Int8]);
    let outcome = shard.execute(Request::read(Claim::default(), select)).await?;
    match outcome[0].rows[0][0] {
        Value::Int(n) => Ok(n),
        _ => panic!("a count is an integer"),
    }
}

#[track_caller]
fn check_message(error: &ShardError, parts: &[&str]) {
    let message = error.to_string();
    parts.iter().for_each(|part| assert!(message.contains(part), "{part:?} is not in {message:?}"));
}

async fn refused(path: &Path) -> ShardError {
    match open(path).await {
        Ok(_) => panic!("{} was opened", path.display()),
        Err(error) => error,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_folder_is_said_and_not_made() {
    let dir = tempfile::tempdir().expect("folder");
    let path = dir.path().join("nowhere").join("shard.db");
    let error = refused(&path).await;
    assert!(matches!(error, ShardError::Unavailable(_)), "{error:?}");
    check_message(&error, &["nowhere", "No such file"]);
    assert!(!dir.path().join("nowhere").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_path_that_cannot_be_written_is_said() {
    let dir = tempfile::tempdir().expect("folder");
    let file = dir.path().join("a-file");
    std::fs::write(&file, "x").expect("written");
    // A file where a folder must be stops root as well, whom permissions do not.
    let error = refused(&file.join("shard.db")).await;
    assert!(matches!(error, ShardError::Unavailable(_)), "{error:?}");
    check_message(&error, &["a-file"]);
    std::fs::create_dir(dir.path().join("shard.db")).expect("folder");
    let error = refused(&dir.path().join("shard.db")).await;
    assert!(matches!(error, ShardError::Unavailable(_)), "{error:?}");
}

/// A file that is not ours is left as it was.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_is_not_a_shard_is_refused_and_untouched() {
    let dir = tempfile::tempdir().expect("folder");
    let text = dir.path().join("text.db");
    std::fs::write(&text, "these are the notes of a whole summer\n".repeat(500)).expect("written");
    let foreign = dir.path().join("foreign.db");
    rusqlite::Connection::open(&foreign).expect("open").execute_batch("CREATE TABLE t (a)").expect("table");
    for path in [text, foreign] {
        let before = std::fs::read(&path).expect("read");
        let error = refused(&path).await;
        assert!(matches!(error, ShardError::Invalid(_) | ShardError::Corrupt(_)), "{error:?}");
        check_message(&error, &[".db"]);
        assert!(std::fs::read(&path).expect("read") == before, "{} was changed", path.display());
    }
}

/// I-6a
#[tokio::test(flavor = "multi_thread")]
async fn a_corrupt_page_is_an_error_of_whoever_reads_it() {
    let dir = tempfile::tempdir().expect("folder");
    let path = dir.path().join("shard.db");
    let shard = with_notes(&path).await;
    for n in 0..400 {
        insert(&shard, n, &"x".repeat(200)).await.expect("insert");
    }
    shard.close().await.expect("closes");
    let size = std::fs::metadata(&path).expect("file").len();
    let file = std::fs::File::options().write(true).read(true).open(&path).expect("open");
    let mut byte = [0];
    file.read_exact_at(&mut byte, size - 2_000).expect("read");
    file.write_all_at(&[byte[0] ^ 1], size - 2_000).expect("write");
    let shard = open(&path).await.expect("opens: the page is not one it needs");
    let select = Statement::new("SELECT id, body FROM notes", vec![]).returning([DataType::Int8, DataType::Text]);
    let error = shard.execute(Request::read(Claim::default(), select)).await.expect_err("a damaged page");
    assert!(matches!(error, ShardError::Corrupt(_)), "{error:?}");
    assert_eq!(error.for_people().sqlstate, "XX001");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_is_open_in_one_place() {
    let dir = tempfile::tempdir().expect("folder");
    let path = dir.path().join("shard.db");
    let first = with_notes(&path).await;
    check_message(&refused(&path).await, &["in use by another process"]);
    first.close().await.expect("closes");
    let second = open(&path).await.expect("the lock went with the first");
    insert(&second, 1, "a").await.expect("insert");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_newer_format_is_refused() {
    let dir = tempfile::tempdir().expect("folder");
    let path = dir.path().join("shard.db");
    with_notes(&path).await.close().await.expect("closes");
    let vfs = isles_engine::sqlite::vfs::checksum::register(None).expect("registered");
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE;
    let raw = rusqlite::Connection::open_with_flags_and_vfs(&path, flags, vfs.as_str()).expect("open");
    raw.pragma_update(None, "user_version", 6).expect("newer");
    drop(raw);
    check_message(&refused(&path).await, &["has format 6", "knows 5"]);
}

/// Before the fifth format streams had no driver.
const NO_DRIVERS: &str = "ALTER TABLE _isles_stream DROP COLUMN driver;";

/// I-13: streams of a file of the fourth format are there, nobody drives them, and they can be opened.
#[tokio::test(flavor = "multi_thread")]
async fn streams_of_the_fourth_format_can_be_driven() {
    let dir = tempfile::tempdir().expect("folder");
    let path = dir.path().join("shard.db");
    let shard = with_notes(&path).await;
    let move_1 = StreamId::new("move-1").expect("valid");
    let at = Batch { position: Some(Seq(7)), cursor: Some(vec![7]), ..Batch::new(&move_1, vec![]) };
    shard.apply(at).await.expect("applies");
    shard.close().await.expect("closes");
    let vfs = isles_engine::sqlite::vfs::checksum::register(None).expect("registered");
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE;
    let raw = rusqlite::Connection::open_with_flags_and_vfs(&path, flags, vfs.as_str()).expect("open");
    raw.execute_batch(&format!("{NO_DRIVERS} PRAGMA user_version = 4;")).expect("as the fourth format was");
    drop(raw);
    for token in [1, 2] {
        let shard = open(&path).await.expect("it is upgraded, and the second time it is what it should be");
        let driven = |token| Batch { driver: Some(DriverToken(token)), ..Batch::new(&move_1, vec![]) };
        assert_eq!(shard.apply(driven(token)).await, Err(ShardError::Superseded));
        let state = shard.open_stream(&move_1, DriverToken(token)).await.expect("opens");
        assert_eq!(state, StreamState { position: Seq(7), cursor: Some(vec![7]) });
        shard.apply(driven(token)).await.expect("applies");
        shard.close().await.expect("closes");
    }
}

/// A stream's versions go in several transactions, so that others write in between.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_stream_is_forgotten_in_chunks() {
    let dir = tempfile::tempdir().expect("folder");
    let shard = with_notes(&dir.path().join("shard.db")).await;
    let row = |id: i64| Incoming {
        table: "notes".into(),
        unit: Unit::Shared,
        key: vec![Value::Int(id)],
        version: RowVersion { epoch: RoutingVersion(1), seq: Seq(1) },
        row: None,
    };
    let long = StreamId::new("long").expect("valid");
    shard.apply(Batch::new(&long, (0..10_000).map(row).collect())).await.expect("applies");
    let before = shard.stats().await.expect("stats").commits;
    shard.forget_stream(&long, None).await.expect("forgotten");
    let commits = shard.stats().await.expect("stats").commits - before;
    assert!(commits >= 5, "10,000 versions went in {commits} commits");
}

/// I-44: a file of the second format, whose tenant tables had no views, gets them.
#[tokio::test(flavor = "multi_thread")]
async fn tenant_tables_of_the_second_format_are_fenced() {
    let dir = tempfile::tempdir().expect("folder");
    let path = dir.path().join("shard.db");
    let shard = open(&path).await.expect("opens");
    let table = Table { kind: TableKind::Tenant, ..notes() };
    shard.apply_schema(SchemaVersion::ZERO, vec![SchemaChange::CreateTable(table)]).await.expect("schema");
    let row = |name: &str| StoredRow {
        unit: Unit::Tenant(Some(TenantId::new(name).expect("valid"))),
        values: vec![Value::Int(1), Value::text(name)],
    };
    shard.import("notes", vec![row("acme"), row("beta")], ImportMode::Insert).await.expect("rows");
    shard.close().await.expect("closes");
    let vfs = isles_engine::sqlite::vfs::checksum::register(None).expect("registered");
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE;
    let raw = rusqlite::Connection::open_with_flags_and_vfs(&path, flags, vfs.as_str()).expect("open");
    let old = "DROP VIEW \"_isles_tenant.notes\"; PRAGMA user_version = 2;";
    raw.execute_batch(&format!("{NO_DRIVERS} {old}")).expect("as the second format was");
    drop(raw);
    for _ in 0..2 {
        let shard = open(&path).await.expect("it is upgraded");
        let select = "SELECT body FROM \"_isles_tenant.notes\"";
        let read = Request::read(Claim::default(), Statement::new(select, vec![]).returning([DataType::Text]));
        let acme = ActsFor::Tenant(Some(TenantId::new("acme").expect("valid")));
        let outcome = shard.execute(read.acting_for(acme)).await.expect("it is read");
        assert_eq!(outcome[0].rows, [vec![Value::text("acme")]]);
        shard.close().await.expect("closes");
    }
}

/// A file of the first format, which knew no pledges, is brought to the present one with all that is in it.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_the_first_format_is_upgraded() {
    let dir = tempfile::tempdir().expect("folder");
    let path = dir.path().join("shard.db");
    let shard = with_notes(&path).await;
    insert(&shard, 1, "kept").await.expect("insert");
    shard.close().await.expect("closes");
    let vfs = isles_engine::sqlite::vfs::checksum::register(None).expect("registered");
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE;
    let raw = || rusqlite::Connection::open_with_flags_and_vfs(&path, flags, vfs.as_str()).expect("open");
    let old = format!("{NO_DRIVERS} DROP TABLE _isles_pledge; PRAGMA user_version = 1;");
    raw().execute_batch(&old).expect("as the first format was");
    for _ in 0..2 {
        let shard = open(&path).await.expect("it is upgraded, and the second time it is what it should be");
        assert_eq!(count(&shard).await, Ok(1));
        shard.close().await.expect("closes");
    }
    let format: i64 = raw().pragma_query_value(None, "user_version", |row| row.get(0)).expect("a number");
    let pledges: i64 = raw().query_row("SELECT count(*) FROM _isles_pledge", [], |row| row.get(0)).expect("the table");
    assert_eq!((format, pledges), (5, 0));
    // And a pledge can be made and kept.
    let shard = open(&path).await.expect("opens");
    let begin = Begin::new(Claim::default(), Access::Write);
    let mut transaction = shard.begin(begin).await.expect("begins");
    let insert = Statement::new("INSERT INTO notes (id, body) VALUES (2, 'pledged')", vec![]);
    transaction.execute(&insert).await.expect("inserts");
    let pledge = transaction.pledge(&PledgeId::new("isles-test").expect("valid"), vec![]).await.expect("pledges");
    pledge.commit().await.expect("is kept");
    assert_eq!(count(&shard).await, Ok(2));
}

/// I-63: what a statement from above may not do.
#[tokio::test(flavor = "multi_thread")]
async fn hostile_statements_are_refused() {
    let dir = tempfile::tempdir().expect("folder");
    let shard = with_notes(&dir.path().join("shard.db")).await;
    insert(&shard, 1, "kept").await.expect("insert");
    let attached = dir.path().join("stolen.db");
    let hostile = [
        format!("ATTACH '{}' AS stolen", attached.display()),
        "DETACH main".into(),
        "PRAGMA journal_mode = DELETE".into(),
        "PRAGMA foreign_keys = OFF".into(),
        "PRAGMA writable_schema = ON".into(),
        "CREATE TABLE t (a)".into(),
        "DROP TABLE notes".into(),
        "ALTER TABLE notes RENAME TO n".into(),
        "CREATE TEMP TABLE t (a)".into(),
        "CREATE TRIGGER t AFTER INSERT ON notes BEGIN DELETE FROM notes; END".into(),
        "VACUUM".into(),
        "VACUUM INTO '/tmp/stolen.db'".into(),
        "REINDEX".into(),
        "ANALYZE".into(),
        "BEGIN".into(),
        "COMMIT".into(),
        "ROLLBACK".into(),
        "SAVEPOINT s".into(),
        "RELEASE _isles_member".into(),
        "DELETE FROM _isles_log".into(),
        "DELETE FROM _ISLES_FENCE".into(),
        "INSERT INTO _isles_meta (name, value) VALUES ('x', 1)".into(),
        "UPDATE sqlite_schema SET sql = ''".into(),
        "SELECT load_extension('x')".into(),
        "INSERT INTO notes (id) VALUES (2); DELETE FROM notes".into(),
    ];
    for sql in hostile {
        let error = shard.execute(write(&sql, vec![])).await.expect_err(&sql);
        assert!(matches!(error, ShardError::Statement(_)), "{sql}: {error:?}");
        assert_eq!(count(&shard).await.expect("count"), 1, "{sql}");
    }
    for sql in ["SELECT body FROM _isles_log", "SELECT sql FROM sqlite_schema", "SELECT name FROM pragma_table_list"] {
        let select = Statement::new(sql, vec![]).returning([DataType::Text]);
        shard.execute(Request::read(Claim::default(), select)).await.expect_err(sql);
    }
    assert!(!attached.exists());
    insert(&shard, 2, "still open").await.expect("insert");
}

/// I-63: a text in double quotes is a name, and a name that is not there is an error.
#[tokio::test(flavor = "multi_thread")]
async fn a_misspelt_column_is_no_text() {
    let dir = tempfile::tempdir().expect("folder");
    let shard = with_notes(&dir.path().join("shard.db")).await;
    let select = Statement::new("SELECT \"bdoy\" FROM notes", vec![]).returning([DataType::Text]);
    let error = shard.execute(Request::read(Claim::default(), select)).await.expect_err("no such column");
    assert_eq!(error.for_people().sqlstate, "42703");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_closes_idle_shards_under_its_cap_and_reopens_them() {
    let dir = tempfile::tempdir().expect("folder");
    let fleet = Fleet::new(dir.path().to_path_buf(), env(), SqliteOptions::default(), 4);
    for n in 0..12i64 {
        let shard = fleet.get(&id(&format!("s{n}"))).await.expect("opens");
        shard.apply_schema(SchemaVersion::ZERO, vec![SchemaChange::CreateTable(notes())]).await.expect("schema");
        insert(&shard, n, "first").await.expect("insert");
        assert!(fleet.figures().open_shards <= 5, "{:?}", fleet.figures());
    }
    for n in 0..12i64 {
        let shard = fleet.get(&id(&format!("s{n}"))).await.expect("opens again");
        assert_eq!(count(&shard).await.expect("count"), 1);
    }
    fleet.close().await.expect("closes");
    assert_eq!(fleet.figures().open_shards, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shard_that_is_in_use_is_not_closed_by_the_cap() {
    let dir = tempfile::tempdir().expect("folder");
    let fleet = Fleet::new(dir.path().to_path_buf(), env(), SqliteOptions::default(), 1);
    let held = fleet.get(&id("held")).await.expect("opens");
    held.apply_schema(SchemaVersion::ZERO, vec![SchemaChange::CreateTable(notes())]).await.expect("schema");
    let transaction = held.begin(Begin::new(Claim::default(), Access::Write)).await.expect("begins");
    for n in 0..5 {
        fleet.get(&id(&format!("other{n}"))).await.expect("opens");
    }
    transaction.commit().await.expect("commits");
    insert(&held, 1, "still open").await.expect("insert");
}

/// Many ask for one shard at once, and it is opened once.
#[tokio::test(flavor = "multi_thread")]
async fn a_shard_is_opened_once_however_many_ask() {
    let dir = tempfile::tempdir().expect("folder");
    let fleet = Arc::new(Fleet::new(dir.path().to_path_buf(), env(), SqliteOptions::default(), 2));
    let mut askers = tokio::task::JoinSet::new();
    for n in 0..200u64 {
        let fleet = fleet.clone();
        askers.spawn(async move { fleet.get(&id(&format!("s{}", n % 5))).await.map(drop) });
    }
    while let Some(asked) = askers.join_next().await {
        asked.expect("no panic").expect("opens");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backup_of_a_live_shard_is_one_moment_of_it() {
    let dir = tempfile::tempdir().expect("folder");
    let shard = with_notes(&dir.path().join("shard.db")).await;
    shard.add_consumer(&StreamId::new("reader").expect("valid")).await.expect("consumer");
    for n in 0..2_000 {
        insert(&shard, n, &"y".repeat(300)).await.expect("insert");
    }
    let (done, writer) = (Arc::new(AtomicBool::new(false)), shard.clone());
    let stop = done.clone();
    // Each transaction adds one row and takes one away: whatever moment the backup has, it has 2,000 rows.
    let writing = tokio::spawn(async move {
        let mut n = 2_000;
        while !stop.load(Ordering::Relaxed) {
            let add =
                Statement::new("INSERT INTO notes (id, body) VALUES ($1, $2)", vec![Value::Int(n), Value::text("z")]);
            let remove = Statement::new("DELETE FROM notes WHERE id = $1", vec![Value::Int(n - 2_000)]);
            writer.execute(Request::write(Claim::default(), vec![add, remove])).await.expect("write");
            n += 1;
        }
        n - 2_000
    });
    let copied = Arc::new(AtomicU64::new(0));
    let seen = copied.clone();
    let to = dir.path().join("backup.db");
    let on_progress = Arc::new(move |progress: isles_engine::sqlite::backup::BackupProgress| {
        seen.store(progress.pages_copied, Ordering::Relaxed);
    });
    let report = shard.backup(&to, on_progress).await.expect("backup");
    done.store(true, Ordering::Relaxed);
    assert!(writing.await.expect("writer") > 0, "nothing was written during the backup");
    assert_eq!(copied.load(Ordering::Relaxed), report.pages);
    let restored = open(&to).await.expect("a backup opens as a shard");
    assert_eq!(count(&restored).await.expect("count"), 2_000);
    assert_eq!(restored.seq().await.expect("seq"), report.seq);
    let digest = restored.snapshot().await.expect("snapshot").digest(&KeyRange::table("notes")).await.expect("digest");
    assert_eq!(digest.rows, 2_000);
    let again = shard.backup(&to, Arc::new(|_| {})).await.expect_err("the file exists");
    check_message(&again, &["exists already"]);
}

/// How often a log has begun anew; SQLite counts it in the log's head.
fn beginnings(wal: &std::path::Path) -> u32 {
    let bytes = std::fs::read(wal).unwrap_or_default();
    bytes.get(12..16).map_or(0, |number| u32::from_be_bytes(number.try_into().expect("four bytes")))
}

/// It is copied beside the writer, which goes on; so it is never copied to its end unless the writer sees to it.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_begins_anew_while_others_write_and_read() {
    let dir = tempfile::tempdir().expect("folder");
    let path = dir.path().join("shard.db");
    let wal = path.with_extension("db-wal");
    let options = SqliteOptions { checkpoint_pages: 50, ..SqliteOptions::default() };
    let shard = SqliteShard::open(id("tested"), &path, env(), options).await.expect("opens");
    shard.apply_schema(SchemaVersion::ZERO, vec![SchemaChange::CreateTable(notes())]).await.expect("schema");
    let stop = Arc::new(AtomicBool::new(false));
    let reading = tokio::spawn({
        let (shard, stop) = (shard.clone(), stop.clone());
        async move {
            while !stop.load(Ordering::Relaxed) {
                count(&shard).await.expect("counted");
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
        }
    });
    let writers = (0..4).map(|writer| {
        let (shard, stop) = (shard.clone(), stop.clone());
        tokio::spawn(async move {
            let mut written = 0;
            while !stop.load(Ordering::Relaxed) {
                let note = "a note of some length ".repeat(100);
                insert(&shard, writer * 1_000_000 + written, &note).await.expect("inserted");
                written += 1;
            }
            written
        })
    });
    let writers: Vec<_> = writers.collect();
    let (began, patience) = (beginnings(&wal), std::time::Instant::now() + Duration::from_secs(60));
    while beginnings(&wal) < began + 3 && std::time::Instant::now() < patience {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let seen = beginnings(&wal) - began;
    stop.store(true, Ordering::Relaxed);
    reading.await.expect("it ends");
    let mut all = 0;
    for writer in writers {
        all += writer.await.expect("it ends");
    }
    assert!(seen >= 3, "the log began anew {seen} times while {all} rows were written");
    assert_eq!(count(&shard).await.expect("counted"), all);
    shard.close().await.expect("closed");
    assert!(!wal.exists(), "the last one to close the file copies its log");
    assert_eq!(count(&open(&path).await.expect("opens")).await.expect("counted"), all);
}

/// Someone who holds the writer and does nothing costs others their time limit, and no more (I-66).
#[tokio::test(flavor = "multi_thread")]
async fn a_request_behind_an_idle_transaction_ends_in_time() {
    let dir = tempfile::tempdir().expect("folder");
    let shard = with_notes(&dir.path().join("shard.db")).await;
    let holder = shard.begin(Begin::new(Claim::default(), Access::Write)).await.expect("begins");
    let mut waiting = write("INSERT INTO notes (id) VALUES (1)", vec![]);
    waiting.limits.time = Duration::from_millis(100);
    assert_eq!(shard.execute(waiting).await, Err(ShardError::TimedOut));
    holder.rollback().await.expect("rolls back");
    insert(&shard, 2, "after").await.expect("insert");
    assert_eq!(count(&shard).await.expect("count"), 1);
}

/// I-46: lines take turns. The notes are numbered in the order in which they are written.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_does_not_wait_behind_all_that_another_tenant_writes() {
    let dir = tempfile::tempdir().expect("folder");
    let shard = with_notes(&dir.path().join("shard.db")).await;
    let note = |tenant: &str| {
        let insert = "INSERT INTO notes (id, body) SELECT coalesce(max(id), 0) + 1, $1 FROM notes";
        let acts_for = ActsFor::Tenant(Some(TenantId::new(tenant).expect("valid")));
        let (shard, request) = (shard.clone(), write(insert, vec![Value::text(tenant)]).acting_for(acts_for));
        async move { shard.execute(request).await }
    };
    let holding = shard.begin(Begin::new(Claim::default(), Access::Write)).await.expect("the writer");
    let names = [["noisy"].repeat(20), vec!["quiet", "other"]].concat();
    let mut all = futures::future::join_all(names.into_iter().map(note));
    // They wait in this order.
    assert!(futures::poll!(&mut all).is_pending());
    holding.rollback().await.expect("given back");
    all.await.into_iter().for_each(|written| drop(written.expect("written")));
    let select = Statement::new("SELECT id FROM notes WHERE body <> 'noisy' ORDER BY id", vec![]);
    let found = shard.execute(Request::read(Claim::default(), select.returning([DataType::Int8]))).await.expect("read");
    assert_eq!(found[0].rows, [[Value::Int(2)], [Value::Int(3)]]);
    assert_eq!(count(&shard).await.expect("counted"), 22);
}

/// A group member that SQLite punishes with a rollback of everything harms nobody else.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_interrupted_does_not_take_its_group_along() {
    let dir = tempfile::tempdir().expect("folder");
    let shard = with_notes(&dir.path().join("shard.db")).await;
    let holder = shard.begin(Begin::new(Claim::default(), Access::Write)).await.expect("begins");
    // All of these wait behind the holder and form one group.
    let mut members = tokio::task::JoinSet::new();
    for n in 0..20 {
        let shard = shard.clone();
        members.spawn(async move { insert(&shard, n, "small").await });
    }
    let endless = "INSERT INTO notes (id) WITH RECURSIVE c(n) AS (SELECT 1000 UNION ALL SELECT n + 1 FROM c)
                   SELECT n FROM c LIMIT 100000000";
    let mut endless = write(endless, vec![]);
    endless.limits.time = Duration::from_millis(300);
    let slow = shard.clone();
    let slow = tokio::spawn(async move { slow.execute(endless).await });
    tokio::task::yield_now().await;
    holder.rollback().await.expect("rolls back");
    assert_eq!(slow.await.expect("no panic"), Err(ShardError::TimedOut));
    while let Some(member) = members.join_next().await {
        member.expect("no panic").expect("insert");
    }
    assert_eq!(count(&shard).await.expect("count"), 20);
}

/// I-7: what has moved in since a reader's snapshot is open now, and its rows are not in the snapshot.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_cannot_claim_what_came_after_its_snapshot() {
    let dir = tempfile::tempdir().expect("folder");
    let shard = with_notes(&dir.path().join("shard.db")).await;
    let open = Fence { scope: FenceScope::Shared, version: RoutingVersion(1), mode: FenceMode::Open };
    let claim = Claim::new(RoutingVersion(1), vec![Claimed::Shared]);
    let mut reader = shard.begin(Begin::new(Claim::default(), Access::Read)).await.expect("begins");
    shard.set_fences(vec![open], Duration::from_secs(5)).await.expect("fences");
    let refused = reader.claim(claim.clone()).await;
    assert!(matches!(refused, Err(ShardError::Moved { .. })), "{refused:?}");
    let mut later = shard.begin(Begin::new(Claim::default(), Access::Read)).await.expect("begins");
    later.claim(claim).await.expect("its snapshot is of after the move");
}

/// A reader keeps its snapshot as long as nothing has changed, and no longer.
#[tokio::test(flavor = "multi_thread")]
async fn a_read_sees_every_write_that_was_acknowledged_before_it() {
    let dir = tempfile::tempdir().expect("folder");
    let shard = with_notes(&dir.path().join("shard.db")).await;
    for n in 0..500 {
        insert(&shard, n, "a").await.expect("insert");
        assert_eq!(count(&shard).await.expect("count"), n + 1);
        assert_eq!(count(&shard).await.expect("count"), n + 1, "again, from the snapshot that was kept");
    }
}
