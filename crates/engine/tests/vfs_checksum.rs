//! I-6a for database pages: what the disk has changed is reported, never returned as data.

use isles_engine::sqlite::vfs::checksum::{self, VerifyError};
use isles_sim::disk::{Crash, Disk};
use rusqlite::{Connection, OpenFlags, ffi, params};
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

const FLIPS: usize = 2_500;

/// A database with small rows, large values, an index and free pages, closed and wholly in its file.
struct Sample {
    _folder: TempDir,
    path: PathBuf,
    image: Vec<u8>,
    rows: Vec<u8>,
}

fn open(path: &Path, vfs: &str) -> rusqlite::Result<Connection> {
    Connection::open_with_flags_and_vfs(path, OpenFlags::default(), vfs)
}

fn create(path: &Path, vfs: &str) -> Connection {
    let connection = open(path, vfs).expect("open");
    checksum::set_reserve_bytes(&connection).expect("reserve");
    connection
        .execute_batch(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA cell_size_check=ON;
             CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT NOT NULL, body BLOB NOT NULL);
             CREATE INDEX item_name ON item(name);",
        )
        .expect("schema");
    connection
}

/// Rows of sizes from nothing to several pages, the same for the same numbers.
fn insert(connection: &Connection, ids: std::ops::Range<i64>) {
    let sql = "INSERT OR REPLACE INTO item VALUES (?1, ?2, ?3)";
    let mut statement = connection.prepare(sql).expect("prepare");
    for id in ids {
        let length = if id % 17 == 0 { 9_000 } else { (id * 37 % 400) as usize };
        let body: Vec<u8> = (0..length).map(|at| (at as i64 * 31 + id * 7) as u8).collect();
        statement.execute(params![id, format!("name {}", id * 7919 % 1000), body]).expect("insert");
    }
}

/// All rows, by the table and by the index, and what `integrity_check` says.
fn read_all(connection: &Connection) -> rusqlite::Result<Vec<u8>> {
    let mut all = Vec::new();
    for sql in ["SELECT id, name, body FROM item ORDER BY id", "SELECT id, name, '' FROM item ORDER BY name, id"] {
        let mut statement = connection.prepare(sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            all.extend(row.get::<_, i64>(0)?.to_le_bytes());
            all.extend(row.get_ref(1)?.as_bytes()?);
            all.extend(row.get_ref(2)?.as_bytes()?);
        }
    }
    Ok(all)
}

fn integrity(connection: &Connection) -> rusqlite::Result<String> {
    connection.query_row("PRAGMA integrity_check", [], |row| row.get(0))
}

fn sample() -> Sample {
    let vfs = checksum::register(None).expect("register");
    let folder = TempDir::new().expect("folder");
    let path = folder.path().join("sample.db");
    let connection = create(&path, &vfs);
    connection.execute_batch("BEGIN").expect("begin");
    insert(&connection, 0..600);
    connection.execute_batch("COMMIT; DELETE FROM item WHERE id BETWEEN 100 AND 180").expect("commit");
    let rows = read_all(&connection).expect("rows");
    connection.close().expect("close");
    let image = fs::read(&path).expect("image");
    Sample { _folder: folder, path, image, rows }
}

/// What a reader makes of a damaged file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outcome {
    Objected,
    Unchanged,
    Different,
}

fn read_damaged(sample: &Sample, vfs: &str) -> Outcome {
    let read = || -> rusqlite::Result<(Vec<u8>, String)> {
        let connection = open(&sample.path, vfs)?;
        Ok((read_all(&connection)?, integrity(&connection)?))
    };
    match read() {
        Err(_) => Outcome::Objected,
        Ok((_, verdict)) if verdict != "ok" => Outcome::Objected,
        Ok((rows, _)) if rows == sample.rows => Outcome::Unchanged,
        Ok(_) => Outcome::Different,
    }
}

/// Flips one byte at each of [`FLIPS`] places spread over the file, all of the header among them.
fn flip_and_read(sample: &Sample, vfs: &str) -> Vec<Outcome> {
    let step = sample.image.len() / (FLIPS - 100);
    assert!(step > 0, "the file is too small for so many places");
    let places = (0..100).chain((0..FLIPS - 100).map(|place| place * step + place % step));
    let flip_at = |place: usize| {
        let mut damaged = sample.image.clone();
        damaged[place] ^= 1 << (place % 8);
        fs::write(&sample.path, &damaged).expect("write");
        let outcome = read_damaged(sample, vfs);
        for suffix in ["-wal", "-shm", "-journal"] {
            let _ = fs::remove_file(format!("{}{suffix}", sample.path.display()));
        }
        outcome
    };
    places.map(flip_at).collect()
}

fn count(outcomes: &[Outcome], wanted: Outcome) -> usize {
    outcomes.iter().filter(|outcome| **outcome == wanted).count()
}

/// I-6a
#[test]
fn a_flipped_byte_is_reported_or_harmless() {
    let sample = sample();
    let outcomes = flip_and_read(&sample, checksum::NAME);
    assert_eq!(outcomes.len(), FLIPS);
    assert_eq!(count(&outcomes, Outcome::Different), 0);
    // Only pages that nobody reads, the free ones, may be damaged without a word.
    assert!(count(&outcomes, Outcome::Objected) > FLIPS * 3 / 4, "{}", count(&outcomes, Outcome::Objected));
}

/// The test above can fail: SQLite alone returns what the disk has made up.
#[test]
fn without_checksums_a_flipped_byte_is_returned_as_data() {
    let sample = sample();
    let outcomes = flip_and_read(&sample, "unix");
    assert!(count(&outcomes, Outcome::Different) > FLIPS / 10, "{}", count(&outcomes, Outcome::Different));
}

/// I-6a: no page is exempt, read or not.
#[test]
fn every_flip_is_found_by_verify() {
    let sample = sample();
    assert!(checksum::verify_file(&sample.path).expect("verify").bad_pages.is_empty());
    for place in (0..sample.image.len()).step_by(997) {
        let mut damaged = sample.image.clone();
        damaged[place] ^= 0x40;
        fs::write(&sample.path, &damaged).expect("write");
        match checksum::verify_file(&sample.path) {
            Ok(report) if place >= 100 => assert_eq!(report.bad_pages, [place as u32 / 4096 + 1]),
            Ok(report) => assert!(!report.bad_pages.is_empty()),
            Err(error) => assert!(matches!(error, VerifyError::NotOurs) && place < 100, "{place}: {error}"),
        }
    }
}

#[test]
fn a_zeroed_page_and_a_cut_page_are_reported() {
    let sample = sample();
    let pages = sample.image.len() / 4096;
    let objections = (1..pages).filter(|page| {
        let mut damaged = sample.image.clone();
        damaged[page * 4096..(page + 1) * 4096].fill(0);
        fs::write(&sample.path, &damaged).expect("write");
        let outcome = read_damaged(&sample, checksum::NAME);
        assert_ne!(outcome, Outcome::Different);
        outcome == Outcome::Objected
    });
    assert!(objections.count() > pages / 2);
    fs::write(&sample.path, &sample.image[..sample.image.len() - 100]).expect("write");
    assert_eq!(read_damaged(&sample, checksum::NAME), Outcome::Objected);
    let report = checksum::verify_file(&sample.path).expect("verify");
    assert_eq!(report.bad_pages, [pages as u32]);
}

#[test]
fn a_database_survives_growth_checkpoints_rollbacks_and_reopening() {
    let vfs = checksum::register(None).expect("register");
    let folder = TempDir::new().expect("folder");
    let path = folder.path().join("grown.db");
    drop(create(&path, &vfs));
    for round in 0..12_i64 {
        let connection = open(&path, &vfs).expect("open");
        connection
            .execute_batch("PRAGMA synchronous=FULL; PRAGMA cache_size=20; PRAGMA wal_autocheckpoint=50")
            .expect("pragma");
        for batch in 0..8 {
            let from = round * 400 + batch * 50;
            connection.execute_batch("BEGIN").expect("begin");
            insert(&connection, from..from + 50);
            connection.execute_batch("COMMIT; BEGIN").expect("commit");
            insert(&connection, 1_000_000..1_000_200);
            connection.execute_batch("ROLLBACK").expect("rollback");
        }
        let mode = ["PASSIVE", "FULL", "RESTART", "TRUNCATE"][round as usize % 4];
        connection.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |_| Ok(())).expect("checkpoint");
        assert_eq!(integrity(&connection).expect("check"), "ok");
        connection.close().expect("close");
        let report = checksum::verify_file(&path).expect("verify");
        assert!(report.bad_pages.is_empty() && report.replaced_by_log == 0);
    }
    let connection = open(&path, &vfs).expect("open");
    let model = create(&folder.path().join("model.db"), &vfs);
    insert(&model, 0..4_800);
    assert_eq!(read_all(&connection).expect("rows"), read_all(&model).expect("rows"));
}

#[test]
fn several_connections_share_one_checksummed_database() {
    let vfs = checksum::register(None).expect("register");
    let folder = TempDir::new().expect("folder");
    let path = folder.path().join("shared.db");
    let writer = create(&path, &vfs);
    let reader = open(&path, &vfs).expect("open");
    reader.execute_batch("BEGIN; SELECT count(*) FROM item").expect("snapshot");
    insert(&writer, 0..300);
    let count = |connection: &Connection| -> i64 {
        connection.query_row("SELECT count(*) FROM item", [], |row| row.get(0)).expect("count")
    };
    assert_eq!((count(&reader), count(&writer)), (0, 300));
    writer.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).expect("checkpoint");
    assert_eq!(count(&reader), 0);
    reader.execute_batch("COMMIT").expect("commit");
    assert_eq!(count(&reader), 300);
    insert(&reader, 300..400);
    assert_eq!(count(&writer), 400);
}

#[test]
fn a_backup_through_the_checksums_is_readable() {
    let sample = sample();
    let source = open(&sample.path, checksum::NAME).expect("open");
    let path = sample.path.with_extension("copy");
    let mut target = open(&path, checksum::NAME).expect("open");
    checksum::set_reserve_bytes(&target).expect("reserve");
    let backup = rusqlite::backup::Backup::new(&source, &mut target).expect("backup");
    backup.run_to_completion(100, std::time::Duration::ZERO, None).expect("run");
    drop(backup);
    assert_eq!(read_all(&target).expect("rows"), sample.rows);
    target.close().expect("close");
    assert!(checksum::verify_file(&path).expect("verify").bad_pages.is_empty());
}

#[test]
fn a_database_without_room_for_checksums_is_refused() {
    let vfs = checksum::register(None).expect("register");
    let folder = TempDir::new().expect("folder");
    let connection = open(&folder.path().join("bare.db"), &vfs).expect("open");
    let error = connection.execute_batch("CREATE TABLE t(x)").expect_err("no room");
    assert_eq!(error.sqlite_error().map(|error| error.extended_code), Some(ffi::SQLITE_IOERR_WRITE));

    let foreign = folder.path().join("foreign.db");
    open(&foreign, "unix").expect("open").execute_batch("CREATE TABLE t(x)").expect("create");
    let connection = open(&foreign, &vfs).expect("open");
    let error = connection.execute_batch("SELECT * FROM t").expect_err("no checksums");
    assert_eq!(error.sqlite_error().map(|error| error.extended_code), Some(ffi::SQLITE_IOERR_DATA));
    assert!(matches!(checksum::verify_file(&foreign), Err(VerifyError::NotOurs)));
}

#[test]
fn a_crashed_database_is_verified_with_its_log() {
    let vfs = checksum::register(None).expect("register");
    let folder = TempDir::new().expect("folder");
    let path = folder.path().join("live.db");
    let connection = create(&path, &vfs);
    connection.execute_batch("PRAGMA wal_autocheckpoint=0").expect("pragma");
    insert(&connection, 0..50);
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())).expect("checkpoint");
    insert(&connection, 0..200);
    let crashed = folder.path().join("crashed.db");
    let mut image = fs::read(&path).expect("image");
    let last_page = image.len() / 4096;
    // A checkpoint was cut short while it wrote the last page, which the log holds.
    image[(last_page - 1) * 4096 + 50..].fill(9);
    fs::write(&crashed, &image).expect("write");
    let log = fs::read(folder.path().join("live.db-wal")).expect("log");
    fs::write(folder.path().join("crashed.db-wal"), log).expect("write");
    let report = checksum::verify_file(&crashed).expect("verify");
    assert!(report.replaced_by_log > 0);
    assert!(report.bad_pages.is_empty());
}

#[test]
fn registering_twice_or_over_nothing_is_answered() {
    let first = checksum::register(None).expect("register");
    assert_eq!(checksum::register(None).expect("register"), first);
    assert_eq!(checksum::register(Some("unix-none")).expect("register"), "isles-unix-none");
    assert!(checksum::register(Some("no such file system")).is_err());
}

/// I-63: a page that is mapped into memory would not be checked.
#[test]
fn files_are_never_mapped() {
    let sample = sample();
    let connection = open(&sample.path, checksum::NAME).expect("open");
    let mapped: rusqlite::Result<i64> = connection.query_row("PRAGMA mmap_size=1000000", [], |row| row.get(0));
    drop(mapped);
    assert_eq!(read_all(&connection).expect("rows"), sample.rows);
    drop(connection);
    let mut damaged = sample.image.clone();
    let last = damaged.len() - 4096 * 3;
    (1..3).for_each(|page| damaged[last + page * 4096 - 2000] ^= 1);
    fs::write(&sample.path, &damaged).expect("write");
    let connection = open(&sample.path, checksum::NAME).expect("open");
    let _: rusqlite::Result<i64> = connection.query_row("PRAGMA mmap_size=1000000", [], |row| row.get(0));
    assert!(read_all(&connection).is_err());
}

/// A commit is one write to the log, however many pages it changes, and one sync; and it is whole or absent after a crash.
#[test]
fn the_frames_of_a_commit_are_one_write() {
    let disk = Disk::new(7).expect("a disk");
    disk.claim_powersafe_overwrite();
    let vfs = disk.checksum_vfs_name().expect("registered");
    let path = Path::new("frames.db");
    let connection = create(path, &vfs);
    insert(&connection, 0..3);
    let before = disk.counts();
    connection.execute_batch("BEGIN").expect("begin");
    insert(&connection, 3..16);
    connection.execute_batch("COMMIT").expect("commit");
    let after = disk.counts();
    assert!(disk.read_file("frames.db-wal").expect("a log").len() > 6 * 4_096, "several pages");
    assert_eq!((after.writes - before.writes, after.syncs - before.syncs), (1, 1));
    // More than fits into one write, rolled back to a savepoint in between.
    connection.execute_batch("BEGIN; PRAGMA cache_size = 4; SAVEPOINT s").expect("begin");
    insert(&connection, 16..200);
    connection.execute_batch("ROLLBACK TO s").expect("rolled back");
    insert(&connection, 200..300);
    connection.execute_batch("COMMIT").expect("commit");
    let rows = read_all(&connection).expect("rows");
    disk.crash();
    drop(connection);
    disk.restart(Crash::AllLost);
    let connection = open(path, &vfs).expect("open");
    assert_eq!(read_all(&connection).expect("rows"), rows);
    assert_eq!(integrity(&connection).expect("checked"), "ok");
}
