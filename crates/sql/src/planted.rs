//! Bugs that tests plant, to see that each is caught. Only a build with the feature `planted` has any: the binary that
//! people run answers every question here with "no".

use std::sync::atomic::{AtomicU32, Ordering};

/// A bug, or a fence that is taken away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// Statements do not carry the tenant.
    Unscoped,
    /// The arms of a set operation do not.
    UnscopedSetOperation,
    /// Queries in WITH do not.
    UnscopedCte,
    /// Subqueries do not.
    UnscopedSubquery,
    /// Nobody looks whether a finished plan is scoped.
    Unproven,
    /// Shards show and change whatever a statement asks for.
    OpenStorage,
    /// Of rows that are equal in what they are ordered by, a merge of several shards' rows keeps one (planted bug 22).
    DroppedTies,
    /// What a client sent behind its request for TLS is read as if it had come encrypted (planted bug 21).
    KeptLeftovers,
}

static PLANTED: AtomicU32 = AtomicU32::new(0);

fn bit(bug: Bug) -> u32 {
    1 << bug as u32
}

/// Plants these bugs and no others, in the whole process.
#[cfg(feature = "planted")]
pub fn plant(bugs: &[Bug]) {
    PLANTED.store(bugs.iter().fold(0, |bits, bug| bits | bit(*bug)), Ordering::SeqCst);
}

pub fn has(bug: Bug) -> bool {
    cfg!(feature = "planted") && PLANTED.load(Ordering::Relaxed) & bit(bug) != 0
}
