//! I-67 for the disk: one seed, one disk, byte for byte. It is alone in its process, because SQLite's generator is.

use isles_sim::disk::{Crash, Disk, seed_sqlite};
use rusqlite::{Connection, OpenFlags};

fn history(seed: u64, crash: Crash) -> Vec<(String, Vec<u8>)> {
    seed_sqlite(seed as u32);
    let disk = Disk::new(seed).expect("disk");
    let vfs = disk.checksum_vfs_name().expect("register");
    disk.crash_at(60 + seed);
    let work = || -> rusqlite::Result<()> {
        let connection = Connection::open_with_flags_and_vfs("/a.db", OpenFlags::default(), vfs.as_str())?;
        isles_engine::sqlite::vfs::checksum::set_reserve_bytes(&connection).expect("reserve");
        connection.execute_batch("PRAGMA journal_mode=WAL; PRAGMA wal_autocheckpoint=10; CREATE TABLE t(a, b, c)")?;
        (0..100).try_for_each(|_| {
            connection.execute_batch("INSERT INTO t VALUES (random(), randomblob(3000), datetime('now'))")
        })
    };
    assert!(work().is_err() && disk.is_dead());
    disk.restart(crash);
    disk.files()
}

#[test]
fn the_same_seed_leaves_the_same_bytes() {
    let mut torn_in_different_places = std::collections::BTreeSet::new();
    for seed in 0..20 {
        for crash in Crash::ALL {
            let files = history(seed, crash);
            assert!(!files.is_empty());
            assert!(files == history(seed, crash), "seed {seed}, {crash:?}");
            torn_in_different_places.insert(files);
        }
    }
    assert!(torn_in_different_places.len() > 40);
}
