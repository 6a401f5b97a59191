//! The crash disk under a real SQLite: what was acknowledged survives, and the harness sees it when it does not.

use isles_engine::sqlite::vfs::walcheck::{self, WalError};
use isles_engine::sqlite::vfs::{base::BaseVfs, checksum};
use isles_sim::disk::{Crash, Disk, Times};
use rusqlite::{Connection, ErrorCode, OpenFlags, params};
use std::path::Path;

const PATH: &str = "/shard.db";
const LOG: &str = "/shard.db-wal";

/// What a client of the database has been told.
#[derive(Default)]
struct Acknowledged {
    /// Committed, and the client knows.
    rows: Vec<i64>,
    /// The row whose commit has not been answered.
    in_doubt: Option<i64>,
}

fn open(vfs: &str, synchronous: &str) -> rusqlite::Result<Connection> {
    let connection = Connection::open_with_flags_and_vfs(PATH, OpenFlags::default(), vfs)?;
    checksum::set_reserve_bytes(&connection).expect("reserve");
    connection.execute_batch(&format!(
        "PRAGMA journal_mode=WAL; PRAGMA synchronous={synchronous}; PRAGMA wal_autocheckpoint=12;
         PRAGMA cache_size=8; CREATE TABLE IF NOT EXISTS entry(id INTEGER PRIMARY KEY, body BLOB NOT NULL);"
    ))?;
    Ok(connection)
}

fn body(id: i64) -> Vec<u8> {
    (0..200 + id % 7 * 900).map(|at| (at + id) as u8).collect()
}

fn commit(connection: &Connection, id: i64, told: &mut Acknowledged) -> rusqlite::Result<()> {
    told.in_doubt = Some(id);
    connection.execute_batch("BEGIN IMMEDIATE")?;
    connection.execute("INSERT INTO entry VALUES (?1, ?2)", params![id, body(id)])?;
    connection.execute_batch("COMMIT")?;
    told.in_doubt = None;
    told.rows.push(id);
    Ok(())
}

/// A transaction that is larger than the cache, so that its pages reach the log, and that is then taken back.
fn roll_back(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch("BEGIN IMMEDIATE")?;
    for id in 1_000..1_012 {
        connection.execute("INSERT INTO entry VALUES (?1, ?2)", params![id, vec![7_u8; 4_000]])?;
    }
    connection.execute_batch("ROLLBACK")
}

/// Commits of one piece of work: enough that there are some hundred operations to die at.
const COMMITS: i64 = 20;

/// Commits, rollbacks, checkpoints and reopenings, until done or dead. The connections are kept: the dead are
/// dropped by the caller, when it likes.
fn work(vfs: &str, synchronous: &str, told: &mut Acknowledged, kept: &mut Vec<Connection>) -> rusqlite::Result<()> {
    let first = told.rows.last().copied().unwrap_or(0) + 1;
    kept.push(open(vfs, synchronous)?);
    for id in first..first + COMMITS {
        let connection = &kept[kept.len() - 1];
        commit(connection, id, told)?;
        match id % 10 {
            2 | 6 => roll_back(connection)?,
            4 => connection.query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(()))?,
            8 => {
                kept.pop().expect("one is open").close().map_err(|(_, error)| error)?;
                kept.push(open(vfs, synchronous)?);
            }
            _ => {}
        }
    }
    Ok(())
}

fn recover(vfs: &str) -> rusqlite::Result<Vec<i64>> {
    let connection = open(vfs, "FULL")?;
    let verdict: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    assert_eq!(verdict, "ok");
    let mut statement = connection.prepare("SELECT id, body FROM entry ORDER BY id")?;
    let rows = statement.query_map([], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(1)?)))?;
    let rows: Vec<(i64, Vec<u8>)> = rows.collect::<rusqlite::Result<_>>()?;
    assert!(rows.iter().all(|(id, bytes)| *bytes == body(*id)));
    Ok(rows.into_iter().map(|(id, _)| id).collect())
}

/// Whether recovery has kept all that was promised, and nothing that was never asked for.
fn is_kept(told: &Acknowledged, recovered: &[i64]) -> bool {
    let with_doubt: Vec<i64> = told.rows.iter().copied().chain(told.in_doubt).collect();
    recovered == told.rows || recovered == with_doubt
}

/// A disk of its own for each variant of the file system.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Variant {
    Bare,
    Powersafe,
    Checksummed,
}

fn disk(variant: Variant, seed: u64) -> (Disk, String) {
    let disk = Disk::new(seed).expect("disk");
    if variant != Variant::Bare {
        disk.claim_powersafe_overwrite();
    }
    let vfs = match variant {
        Variant::Checksummed => disk.checksum_vfs_name().expect("register"),
        _ => disk.vfs_name().to_owned(),
    };
    (disk, vfs)
}

/// Lets the process die at every operation, in every way, and counts crashes and broken promises.
fn sweep(variant: Variant, synchronous: &str) -> (u64, u64) {
    let (counting, vfs) = disk(variant, 1);
    work(&vfs, synchronous, &mut Acknowledged::default(), &mut Vec::new()).expect("no faults");
    let operations = counting.counts().operations;
    assert!(operations > 100, "{operations}");
    let (disk, vfs) = disk(variant, 1);
    let (mut crashes, mut broken) = (0, 0);
    for crash in Crash::ALL {
        for operation in 1..=operations {
            disk.reset(operation * 4 + crash as u64);
            if variant != Variant::Bare {
                disk.claim_powersafe_overwrite();
            }
            disk.crash_at(operation);
            let (mut told, mut kept) = (Acknowledged::default(), Vec::new());
            let _ = work(&vfs, synchronous, &mut told, &mut kept);
            if operation % 2 == 0 || !disk.is_dead() {
                kept.clear();
            }
            assert!(disk.is_dead());
            disk.restart(crash);
            if synchronous == "FULL" {
                // I-6a: a crash is never taken for corruption.
                walcheck::check_and_sync(Some(&vfs), Path::new(PATH)).expect("torn at most");
            }
            let recovered = recover(&vfs).expect("recovery");
            crashes += 1;
            broken += u64::from(!is_kept(&told, &recovered));
        }
    }
    (crashes, broken)
}

/// I-1, I-2
#[test]
fn every_acknowledged_commit_survives_every_crash() {
    let (crashes, broken) = sweep(Variant::Bare, "FULL");
    assert!(crashes > 400, "{crashes}");
    assert_eq!(broken, 0);
}

/// I-1, I-2
#[test]
fn every_acknowledged_commit_survives_with_powersafe_overwrite() {
    assert_eq!(sweep(Variant::Powersafe, "FULL").1, 0);
}

/// I-1, I-2: with the file system that production uses.
#[test]
fn every_acknowledged_commit_survives_under_checksums() {
    assert_eq!(sweep(Variant::Checksummed, "FULL").1, 0);
}

/// Planted bug 3: an acknowledgement before the sync. A harness that does not see it proves nothing.
#[test]
fn commits_acknowledged_before_the_sync_are_seen_to_be_lost() {
    let (crashes, broken) = sweep(Variant::Bare, "NORMAL");
    assert!(broken > crashes / 20, "{broken} of {crashes}");
}

/// Killed, recovered, working again, and then the power fails: counts the histories in which the second life had
/// found a commit that the first never answered, and those in which something that the second life had read is gone.
fn second_lives(open_log: impl Fn(&str)) -> (u64, u64) {
    let (disk, vfs) = disk(Variant::Powersafe, 1);
    work(&vfs, "FULL", &mut Acknowledged::default(), &mut Vec::new()).expect("no faults");
    let operations = disk.counts().operations;
    let (mut found, mut broken) = (0, 0);
    for (first, second) in (1..=operations).flat_map(|first| [1, 4, 9].map(|second| (first, second))) {
        disk.reset(first * 100 + second);
        disk.claim_powersafe_overwrite();
        disk.crash_at(first);
        let (mut told, mut kept) = (Acknowledged::default(), Vec::new());
        let _ = work(&vfs, "FULL", &mut told, &mut kept);
        kept.clear();
        disk.restart(Crash::Killed);
        open_log(&vfs);
        let connection = open(&vfs, "FULL").expect("recovery");
        let mut statement = connection.prepare("SELECT id FROM entry ORDER BY id").expect("prepare");
        let read = statement.query_map([], |row| row.get(0)).expect("read").collect::<rusqlite::Result<Vec<i64>>>();
        let mut told_again = Acknowledged { rows: read.expect("read"), in_doubt: None };
        found += u64::from(told_again.rows.len() > told.rows.len());
        disk.crash_at(disk.counts().operations + second);
        let next = told_again.rows.last().copied().unwrap_or(0) + 1;
        let _ = (next..next + 3).try_for_each(|id| commit(&connection, id, &mut told_again));
        disk.restart(Crash::Torn);
        open_log(&vfs);
        broken += u64::from(!is_kept(&told_again, &recover(&vfs).expect("recovery")));
    }
    (found, broken)
}

/// I-4, I-6: what a shard has answered from must survive, although the life that wrote it never synced it.
#[test]
fn what_a_second_life_has_read_survives_the_power_cut() {
    let (found, broken) = second_lives(|vfs| {
        walcheck::check_and_sync(Some(vfs), Path::new(PATH)).expect("torn at most");
    });
    assert!(found > 0, "the case was never met");
    assert_eq!(broken, 0);
}

/// The test above can fail: SQLite alone answers from a log that nobody has synced.
#[test]
fn without_the_sync_a_second_life_answers_from_what_is_then_lost() {
    assert!(second_lives(|_| {}).1 > 0);
}

/// I-5: the process stops at a failed sync, as a shard does.
#[test]
fn a_failed_sync_breaks_no_promise_that_was_made() {
    let (disk, vfs) = disk(Variant::Checksummed, 1);
    work(&vfs, "FULL", &mut Acknowledged::default(), &mut Vec::new()).expect("no faults");
    let syncs = disk.counts().syncs;
    assert!(syncs > 10, "{syncs}");
    for times in [Times::Once, Times::Forever] {
        for sync in 1..=syncs {
            disk.reset(sync);
            disk.fail_sync_at(sync, times);
            let (mut told, mut kept) = (Acknowledged::default(), Vec::new());
            let _ = work(&vfs, "FULL", &mut told, &mut kept);
            disk.heal();
            disk.restart(Crash::AllLost);
            walcheck::check_and_sync(Some(&vfs), Path::new(PATH)).expect("torn at most");
            assert!(is_kept(&told, &recover(&vfs).expect("recovery")), "{sync} {times:?}");
        }
    }
}

fn raw_file(disk: &Disk, name: &std::ffi::CStr) -> isles_engine::sqlite::vfs::base::BaseFile {
    use isles_engine::sqlite::vfs::Filename;
    use rusqlite::ffi::{SQLITE_OPEN_CREATE, SQLITE_OPEN_MAIN_DB, SQLITE_OPEN_READWRITE};
    let vfs = BaseVfs::find(Some(disk.vfs_name())).expect("registered");
    // SAFETY: the disk reads nothing but the terminated name.
    let name = unsafe { Filename::from_raw(name.as_ptr()) };
    vfs.open(name, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_MAIN_DB).expect("open").0
}

/// I-5: this is why nothing may be acknowledged after a failed sync, even if the next one succeeds.
#[test]
fn a_sync_that_succeeds_does_not_make_up_for_one_that_failed() {
    let disk = Disk::new(1).expect("disk");
    disk.replace_file("/a", vec![0; 4]);
    disk.fail_sync_at(1, Times::Once);
    let mut file = raw_file(&disk, c"/a");
    file.write(&[1, 1], 0).expect("write");
    assert!(file.sync(0).is_err());
    file.write(&[2, 2], 2).expect("write");
    file.sync(0).expect("the second sync");
    assert_eq!(disk.read_file("/a"), Some(vec![1, 1, 2, 2]));
    disk.restart(Crash::AllLost);
    assert_eq!(disk.read_file("/a"), Some(vec![0, 0, 2, 2]));
}

/// F2
#[test]
fn writes_are_torn_at_sectors_and_names_are_lost_with_their_directory() {
    let mut sizes = std::collections::BTreeSet::new();
    let mut mixed = 0;
    for seed in 0..200 {
        let disk = Disk::new(seed).expect("disk");
        disk.replace_file("/old", vec![0; 2_000]);
        let mut file = raw_file(&disk, c"/old");
        file.write(&[1; 1_500], 100).expect("write");
        let mut new = raw_file(&disk, c"/new");
        new.write(&[1; 10], 0).expect("write");
        new.sync(0).expect("sync");
        disk.restart(Crash::Torn);
        let bytes = disk.read_file("/old").expect("durable name");
        assert!(bytes[..100].iter().chain(&bytes[1_600..]).all(|byte| *byte == 0));
        let sectors = [&bytes[100..512], &bytes[512..1024], &bytes[1024..1536], &bytes[1536..1600]];
        assert!(sectors.iter().all(|sector| sector.iter().all(|byte| *byte == sector[0])));
        mixed += u64::from(sectors.iter().any(|sector| sector[0] != sectors[0][0]));
        sizes.insert(disk.read_file("/new").map(|bytes| bytes.len()));
    }
    assert!(mixed > 20, "{mixed}");
    assert_eq!(sizes.into_iter().collect::<Vec<_>>(), [None, Some(10)]);
}

/// F4
#[test]
fn a_full_disk_refuses_the_commit_and_keeps_the_rest() {
    let (disk, vfs) = disk(Variant::Checksummed, 1);
    let mut told = Acknowledged::default();
    let connection = open(&vfs, "FULL").expect("open");
    commit(&connection, 1, &mut told).expect("room");
    let used = disk.files().iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>();
    disk.set_quota(Some(used + 9_000));
    let error = (2..50).find_map(|id| commit(&connection, id, &mut told).err()).expect("full");
    assert_eq!(error.sqlite_error_code(), Some(ErrorCode::DiskFull));
    disk.set_quota(None);
    if !connection.is_autocommit() {
        connection.execute_batch("ROLLBACK").expect("rollback");
    }
    let refused = told.in_doubt.take().expect("refused");
    commit(&connection, refused, &mut told).expect("room again");
    disk.full_at(disk.counts().operations + 1);
    assert!((60..90).any(|id| commit(&connection, id, &mut told).is_err()));
    disk.heal();
    disk.restart(Crash::AllLost);
    assert!(is_kept(&told, &recover(&vfs).expect("recovery")));
}

/// F3
#[test]
fn failed_reads_and_writes_are_errors_and_nothing_else() {
    let (disk, vfs) = disk(Variant::Checksummed, 1);
    work(&vfs, "FULL", &mut Acknowledged::default(), &mut Vec::new()).expect("no faults");
    let counts = disk.counts();
    let mut failures = 0;
    for number in 1..=counts.writes.max(counts.reads) {
        disk.reset(number);
        if number % 2 == 0 {
            disk.claim_powersafe_overwrite();
        }
        disk.fail_write_at(number, Times::Once);
        disk.fail_read_at(number * 2, Times::Once);
        let (mut told, mut kept) = (Acknowledged::default(), Vec::new());
        failures += u64::from(work(&vfs, "FULL", &mut told, &mut kept).is_err());
        disk.heal();
        disk.restart(Crash::SomeLost);
        assert!(is_kept(&told, &recover(&vfs).expect("recovery")), "{number}");
    }
    assert!(failures > 50, "{failures}");
}

/// F20, I-6a
#[test]
fn rot_in_the_log_of_a_killed_process_is_reported() {
    let (disk, vfs) = disk(Variant::Powersafe, 1);
    let connection = open(&vfs, "FULL").expect("open");
    connection.execute_batch("PRAGMA wal_autocheckpoint=0").expect("pragma");
    let mut told = Acknowledged::default();
    (1..6).for_each(|id| commit(&connection, id, &mut told).expect("commit"));
    let last_begins = disk.read_file(LOG).expect("log").len();
    commit(&connection, 6, &mut told).expect("commit");
    disk.restart(Crash::Killed);
    let log = disk.read_file(LOG).expect("log");
    for offset in (0..log.len()).step_by(97) {
        disk.replace_file(LOG, log.clone());
        assert!(disk.flip_byte(LOG, offset));
        let verdict = walcheck::check_and_sync(Some(&vfs), Path::new(PATH));
        assert_eq!(matches!(verdict, Err(WalError::Corrupt { .. })), offset < last_begins, "{offset}");
    }
    assert!(!disk.flip_byte(LOG, log.len()));
}

#[test]
fn connections_of_one_life_lock_each_other_out() {
    let (disk, vfs) = disk(Variant::Bare, 1);
    let (one, two) = (open(&vfs, "FULL").expect("open"), open(&vfs, "FULL").expect("open"));
    let mut told = Acknowledged::default();
    one.execute_batch("BEGIN IMMEDIATE").expect("begin");
    let error = commit(&two, 1, &mut told).expect_err("one writer at a time");
    assert_eq!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy));
    one.execute_batch("COMMIT").expect("commit");
    let count = |connection: &Connection| -> i64 {
        connection.query_row("SELECT count(*) FROM entry", [], |row| row.get(0)).expect("count")
    };
    two.execute_batch("BEGIN").expect("begin");
    assert_eq!(count(&two), 0);
    commit(&one, 1, &mut told).expect("commit");
    assert_eq!((count(&one), count(&two)), (1, 0));
    let blocked: i64 = one.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get(0)).expect("checkpoint");
    assert_eq!(blocked, 1);
    two.execute_batch("COMMIT").expect("commit");
    assert_eq!(count(&two), 1);
    drop((one, two));
    assert!(disk.read_file(LOG).is_none(), "the last connection removes the log");
}

#[test]
fn rollback_journals_work_and_lock_as_well() {
    let disk = Disk::new(1).expect("disk");
    let connect = || Connection::open_with_flags_and_vfs(PATH, OpenFlags::default(), disk.vfs_name()).expect("open");
    let (one, two) = (connect(), connect());
    one.execute_batch("CREATE TABLE t(x); INSERT INTO t VALUES (1); BEGIN; SELECT * FROM t").expect("read");
    two.execute_batch("BEGIN; INSERT INTO t VALUES (2)").expect("reserve");
    assert!(two.execute_batch("COMMIT").is_err(), "a reader is in the way");
    assert!(connect().execute_batch("SELECT * FROM t").is_err(), "a writer is waiting");
    one.execute_batch("COMMIT").expect("commit");
    two.execute_batch("COMMIT").expect("commit");
    let sum: i64 = one.query_row("SELECT sum(x) FROM t", [], |row| row.get(0)).expect("sum");
    assert_eq!(sum, 3);
}

#[test]
fn the_dead_touch_nothing() {
    let (disk, vfs) = disk(Variant::Bare, 1);
    let (mut told, mut kept) = (Acknowledged::default(), Vec::new());
    work(&vfs, "FULL", &mut told, &mut kept).expect("no faults");
    kept[0].execute_batch("BEGIN IMMEDIATE; DELETE FROM entry").expect("open transaction");
    disk.restart(Crash::Killed);
    let before = disk.files();
    assert!(kept[0].execute_batch("COMMIT").is_err());
    assert!(kept[0].execute_batch("SELECT * FROM entry").is_err());
    kept.clear();
    assert!(disk.files() == before);
    assert!(is_kept(&told, &recover(&vfs).expect("recovery")));
    disk.crash();
    assert!(open(&vfs, "FULL").is_err());
}

#[test]
fn disks_do_not_know_of_each_other() {
    let histories = (0..4).map(|seed| {
        std::thread::spawn(move || {
            let (disk, vfs) = disk(Variant::Checksummed, seed);
            for _ in 0..5 {
                let mut told = Acknowledged::default();
                work(&vfs, "FULL", &mut told, &mut Vec::new()).expect("no faults");
                disk.restart(Crash::AllLost);
                assert!(is_kept(&told, &recover(&vfs).expect("recovery")));
                disk.reset(seed);
            }
            vfs
        })
    });
    let names: std::collections::BTreeSet<String> =
        histories.collect::<Vec<_>>().into_iter().map(|history| history.join().expect("no panic")).collect();
    assert_eq!(names.len(), 4);
    assert!(names.iter().all(|name| open(name, "FULL").is_err()), "a disk that is gone cannot be opened");
}
