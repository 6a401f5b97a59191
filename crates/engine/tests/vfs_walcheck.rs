//! I-6a for the log: rot before the last transaction is reported, whatever a crash can leave behind is accepted.

use isles_engine::sqlite::vfs::walcheck::{WalError, WalReport, check_wal, check_wal_file};
use proptest::prelude::*;
use rusqlite::Connection;
use std::fs;

/// Writes logs as SQLite does, in either byte order and any page size.
#[derive(Clone)]
struct Log {
    big_endian: bool,
    page_bytes: usize,
    salts: [u32; 2],
    sum: [u32; 2],
    bytes: Vec<u8>,
    /// Where each transaction begins.
    transactions: Vec<usize>,
    noise: u32,
}

impl Log {
    fn new(big_endian: bool, page_bytes: usize, generation: u32) -> Log {
        let salts = [1_000 + generation, generation.wrapping_mul(0x9E37_79B9) ^ 0x5bd1_e995];
        let magic = 0x377f_0682 | u32::from(big_endian);
        let fields = [magic, 3_007_000, page_bytes as u32, generation, salts[0], salts[1]];
        let mut bytes: Vec<u8> = fields.iter().flat_map(|field| field.to_be_bytes()).collect();
        let sum = add(big_endian, [0, 0], &bytes);
        bytes.extend(sum.iter().flat_map(|field| field.to_be_bytes()));
        Log { big_endian, page_bytes, salts, sum, bytes, transactions: Vec::new(), noise: generation + 1 }
    }

    /// Appends committed transactions of these lengths.
    fn commits(&mut self, lengths: impl IntoIterator<Item = usize>) {
        for frames in lengths {
            self.transaction(frames, Some(0x1234));
        }
    }

    /// Appends a transaction of that many frames; `None` as the commit mark leaves it unfinished.
    fn transaction(&mut self, frames: usize, commit: Option<u32>) -> &mut Log {
        self.transactions.push(self.bytes.len());
        for frame in 1..=frames {
            let mark = if frame == frames { commit.unwrap_or(0) } else { 0 };
            let page: Vec<u8> = (0..self.page_bytes).map(|_| self.random_byte()).collect();
            let number = 1 + self.noise % 50;
            self.frame(number, mark, &page);
        }
        self
    }

    fn frame(&mut self, number: u32, mark: u32, page: &[u8]) {
        let head = [number.to_be_bytes(), mark.to_be_bytes()].concat();
        self.sum = add(self.big_endian, add(self.big_endian, self.sum, &head), page);
        let tail = [self.salts[0], self.salts[1], self.sum[0], self.sum[1]];
        self.bytes.extend(head);
        self.bytes.extend(tail.iter().flat_map(|field| field.to_be_bytes()));
        self.bytes.extend(page);
    }

    /// Lays this log over the beginning of an older one.
    fn over(&self, older: &Log) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        bytes.extend(older.bytes.iter().skip(bytes.len()));
        bytes
    }

    fn last_begins(&self) -> usize {
        self.transactions[self.transactions.len() - 1]
    }

    fn random_byte(&mut self) -> u8 {
        self.noise = self.noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (self.noise >> 24) as u8
    }
}

fn add(big_endian: bool, mut sum: [u32; 2], bytes: &[u8]) -> [u32; 2] {
    let word = |bytes: &[u8]| {
        let bytes = [bytes[0], bytes[1], bytes[2], bytes[3]];
        if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    };
    for pair in bytes.chunks(8) {
        sum[0] = sum[0].wrapping_add(word(pair)).wrapping_add(sum[1]);
        sum[1] = sum[1].wrapping_add(word(&pair[4..])).wrapping_add(sum[0]);
    }
    sum
}

fn is_corrupt(bytes: &[u8]) -> bool {
    match check_wal(bytes) {
        Ok(_) => false,
        Err(WalError::Corrupt { .. }) => true,
        Err(error) => panic!("{error}"),
    }
}

fn flipped(bytes: &[u8], place: usize, mask: u8) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes[place] ^= mask;
    bytes
}

#[test]
fn a_sound_log_is_accepted_whole() {
    for (big_endian, page_bytes) in [(false, 512), (true, 512), (false, 4096), (true, 65_536)] {
        let mut log = Log::new(big_endian, page_bytes, 3);
        log.transaction(3, Some(9)).transaction(1, Some(9)).transaction(2, None);
        let report = WalReport { committed_frames: 4, uncommitted_frames: 2, commits: 2 };
        assert_eq!(check_wal(&log.bytes).expect("sound"), report);
    }
}

/// I-6a: every byte of a log, in both byte orders, with an older generation behind it and without.
#[test]
fn every_flip_before_the_last_transaction_is_reported() {
    for big_endian in [false, true] {
        let mut log = Log::new(big_endian, 512, 8);
        log.transaction(2, Some(9)).transaction(1, Some(9)).transaction(3, Some(11)).transaction(1, Some(12));
        log.transaction(2, Some(12));
        let mut older = Log::new(big_endian, 512, 7);
        older.commits([1; 12]);
        for bytes in [log.bytes.clone(), log.over(&older)] {
            for place in 0..bytes.len() {
                let corrupt = is_corrupt(&flipped(&bytes, place, 1 << (place % 8)));
                // A commit mark that rots where none was may be reported, too.
                let in_mark = place >= 32 && (4..8).contains(&((place - 32) % 536));
                assert!(corrupt == (place < log.last_begins()) || in_mark && corrupt, "byte {place}");
            }
        }
    }
}

/// The mark of the last commit but one is the hardest place: it is what tells the last two transactions apart.
#[test]
fn a_damaged_commit_mark_is_reported_at_every_position_in_a_sector() {
    for frames_before in 0..70 {
        let mut log = Log::new(false, 512, 1);
        if frames_before > 0 {
            log.transaction(frames_before, Some(70));
        }
        log.transaction(1, Some(0x1234)).transaction(1, None);
        let frame = log.last_begins() - 536;
        for place in (0..24).chain([24, 100, 535]) {
            assert!(is_corrupt(&flipped(&log.bytes, frame + place, 0xff)), "{frames_before} {place}");
        }
        let mut unmarked = log.bytes.clone();
        unmarked[frame + 4..frame + 8].fill(0);
        assert!(is_corrupt(&unmarked));
    }
}

#[test]
fn a_log_cut_anywhere_is_accepted() {
    let mut log = Log::new(false, 512, 1);
    log.transaction(2, Some(9)).transaction(3, Some(9)).transaction(2, Some(9));
    for length in 0..log.bytes.len() {
        let report = check_wal(&log.bytes[..length]).expect("a shorter log");
        let whole = [2, 5, 7].into_iter().filter(|frames| length >= 32 + frames * 536).max().unwrap_or(0);
        assert_eq!(report.committed_frames as usize, whole);
    }
}

/// A transaction that was rolled back is longer than the one that has overwritten its beginning, and that one is
/// torn. The frames behind it are linked to each other, not to its commit.
#[test]
fn the_remains_of_a_rolled_back_transaction_are_no_evidence() {
    let mut base = Log::new(false, 512, 1);
    base.transaction(2, Some(9));
    let (mut rolled_back, mut torn) = (base.clone(), base.clone());
    rolled_back.noise = 77;
    rolled_back.transaction(9, None);
    torn.transaction(4, Some(9));
    for sector in base.bytes.len() / 512 + 1..torn.bytes.len() / 512 {
        let mut bytes = torn.over(&rolled_back);
        let missing = sector * 512..(sector + 1) * 512;
        bytes[missing.clone()].copy_from_slice(&rolled_back.bytes[missing]);
        assert!(!is_corrupt(&bytes), "sector {sector}");
    }
}

/// A device without power-safe overwrite: commits are repeated, and part of a copy is written after the sync.
#[test]
fn a_torn_copy_of_a_commit_frame_is_no_corruption() {
    let mut log = Log::new(false, 512, 1);
    let page = vec![5; 512];
    log.transaction(2, None);
    log.frame(7, 9, &page);
    let copy = log.bytes.len();
    log.frame(7, 9, &page);
    let next = log.bytes.len();
    log.transaction(2, None);
    for place in copy..next {
        let report = check_wal(&flipped(&log.bytes, place, 1)).expect("the commit itself is whole");
        assert_eq!(report.committed_frames, 3);
    }
    // A copy does not prove that its original was synced, and the frame behind the copy does.
    let original = copy - 536;
    assert!((original..copy).all(|place| !is_corrupt(&flipped(&log.bytes[..next], place, 1))));
    assert!((original..copy).all(|place| is_corrupt(&flipped(&log.bytes, place, 1))));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any sectors of the last transaction may be missing, with whatever was there before in their place.
    #[test]
    fn a_torn_last_transaction_is_accepted(
        lengths in prop::collection::vec(1_usize..6, 1..12),
        older_frames in 0_usize..60,
        kept in prop::collection::vec(any::<bool>(), 64),
        big_endian: bool,
        committed: bool,
    ) {
        let mut log = Log::new(big_endian, 512, 2);
        let (last, before) = lengths.split_last().expect("one at least");
        log.commits(before.iter().copied());
        log.transaction(*last, committed.then_some(50));
        let mut older = Log::new(big_endian, 512, 1);
        older.commits((0..older_frames).map(|_| 1));
        let mut bytes = log.over(&older);
        for place in log.last_begins()..log.bytes.len() {
            if !kept[place / 512 % 64] {
                bytes[place] = older.bytes.get(place).copied().unwrap_or(0);
            }
        }
        let report = check_wal(&bytes).expect("torn");
        prop_assert!(report.commits as usize >= before.len());
    }

    /// Any one byte before the last transaction, any change of it.
    #[test]
    fn any_damage_before_the_last_transaction_is_reported(
        lengths in prop::collection::vec(1_usize..6, 2..12),
        place: prop::sample::Index,
        mask in 1_u8..,
        older_frames in 0_usize..60,
        big_endian: bool,
    ) {
        let mut log = Log::new(big_endian, 1024, 2);
        log.commits(lengths);
        let mut older = Log::new(big_endian, 1024, 1);
        older.commits((0..older_frames).map(|_| 1));
        let damaged = flipped(&log.over(&older), place.index(log.last_begins()), mask);
        prop_assert!(is_corrupt(&damaged));
    }

    /// Any bytes at all: an answer, and no panic.
    #[test]
    fn any_bytes_are_answered(mut bytes in prop::collection::vec(any::<u8>(), 0..5_000), header: bool) {
        if header && bytes.len() > 32 {
            bytes[..32].copy_from_slice(&Log::new(false, 512, 1).bytes);
        }
        prop_assert!(check_wal(&bytes).is_ok());
    }
}

/// The same with a log that SQLite has written, and what SQLite makes of it: it forgets, and says nothing.
#[test]
fn rot_that_sqlite_forgets_silently_is_reported() {
    let folder = tempfile::TempDir::new().expect("folder");
    let path = folder.path().join("live.db");
    let log_path = folder.path().join("live.db-wal");
    let connection = Connection::open(&path).expect("open");
    connection
        .execute_batch(
            "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA wal_autocheckpoint=0; CREATE TABLE t(x, y)",
        )
        .expect("schema");
    let mut last_begins = 0;
    for row in 0..40 {
        last_begins = fs::metadata(&log_path).expect("log").len() as usize;
        connection.execute("INSERT INTO t VALUES (?1, ?2)", (row, vec![row as u8; 3_000])).expect("insert");
    }
    let log = fs::read(&log_path).expect("log");
    let report = check_wal_file(&log_path).expect("sound");
    assert_eq!(report.committed_frames as usize, (log.len() - 32) / 4120);

    let copy = folder.path().join("copy.db");
    let copied_log = folder.path().join("copy.db-wal");
    let mut forgotten = 0;
    for place in (0..log.len()).step_by(1_499) {
        fs::copy(&path, &copy).expect("copy");
        fs::write(&copied_log, flipped(&log, place, 0x10)).expect("write");
        let verdict = check_wal_file(&copied_log);
        assert_eq!(matches!(verdict, Err(WalError::Corrupt { .. })), place < last_begins, "byte {place}");
        let recovered = Connection::open(&copy).expect("open");
        let count: rusqlite::Result<i64> = recovered.query_row("SELECT count(*) FROM t", [], |row| row.get(0));
        forgotten += u64::from(count.is_ok_and(|count| count < 39));
        drop(recovered);
        let _ = fs::remove_file(&copied_log);
    }
    assert!(forgotten > 50, "{forgotten}");
}
