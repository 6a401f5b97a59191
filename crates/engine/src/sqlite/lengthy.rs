//! Reads that were too long for their caller's thread lately.
//!
//! A read begins on its caller's thread, which serves others as well, and starts over on the pool when its budget is used
//! up. What was done until then is lost, and the others have waited for it. So a text that was too long is not tried there
//! the next times. It counts for one tenant: another one may have few rows.

use crate::shard::{ActsFor, Statement};
use std::sync::atomic::{AtomicU64, Ordering};
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Texts that are remembered; one that comes to the place of another takes it.
const PLACES: usize = 1_024;
/// How many times a text goes to the pool at once before it is tried again: it may have become short.
const TIMES: u64 = 64;
/// The low bits of a place say how many times are left, the others which text it is.
const LEFT: u64 = 0xff;

pub(super) struct Lengthy([AtomicU64; PLACES]);

/// One text of one tenant.
#[derive(Clone, Copy)]
pub(super) struct Mark(u64);

impl Mark {
    pub(super) fn of(acts_for: &ActsFor, statement: &Statement) -> Mark {
        let tenant = acts_for.key().map_or(0, |key| xxh3_64(key.as_bytes()));
        Mark(xxh3_64_with_seed(statement.sql.as_bytes(), tenant))
    }

    fn tag(self) -> u64 {
        self.0 & !LEFT
    }
}

impl Lengthy {
    pub(super) fn new() -> Lengthy {
        Lengthy([const { AtomicU64::new(0) }; PLACES])
    }

    fn place(&self, mark: Mark) -> &AtomicU64 {
        &self.0[(mark.0 >> 8) as usize % PLACES]
    }

    /// Whether it is not worth trying this time.
    pub(super) fn skips(&self, mark: Mark) -> bool {
        let known = self.place(mark).load(Ordering::Relaxed);
        let skips = known & !LEFT == mark.tag() && known & LEFT > 0;
        if skips {
            // Two at once may count as one.
            self.place(mark).store(known - 1, Ordering::Relaxed);
        }
        skips
    }

    /// It was too long.
    pub(super) fn note(&self, mark: Mark) {
        self.place(mark).store(mark.tag() | TIMES, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isles_kernel::names::TenantId;

    /// What was too long goes elsewhere for a while, for that tenant only, and is then tried again.
    #[test]
    fn what_was_too_long_is_not_tried_for_a_while() {
        let tenant = |name: &str| ActsFor::Tenant(Some(TenantId::new(name).expect("valid")));
        let [text, other] = ["SELECT count(*) FROM notes", "SELECT 1"].map(|sql| Statement::new(sql, vec![]));
        let lengthy = Lengthy::new();
        let mark = Mark::of(&tenant("a"), &text);
        assert!(!lengthy.skips(mark));
        lengthy.note(mark);
        assert!(!lengthy.skips(Mark::of(&tenant("b"), &text)) && !lengthy.skips(Mark::of(&tenant("a"), &other)));
        assert_eq!((0..).take_while(|_| lengthy.skips(mark)).count() as u64, TIMES);
        lengthy.note(mark);
        assert!(lengthy.skips(mark));
    }
}
