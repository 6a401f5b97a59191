//! Cancel requests: which session a key belongs to.
//!
//! Invariants (docs/invariants.md):
//!   * I-57  A key works for its own session only. It is random, of 4 bytes for protocol 3.0 and 32 from 3.2 on, is
//!     compared in constant time, and whoever sends one learns nothing of what became of it.

use bytes::Bytes;
use isles_cluster::roles;
use isles_engine::shard::CancelToken;
use isles_kernel::error::SqlError;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};
use subtle::ConstantTimeEq;

/// Bytes of a key that a client of protocol 3.0 can hold.
const SHORT_KEY_BYTES: usize = 4;

/// Which keys a client can hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyLength {
    Short,
    Long,
}

/// All sessions that can be cancelled.
#[derive(Default)]
pub(crate) struct Cancels {
    sessions: Mutex<HashMap<i32, Arc<Slot>>>,
}

struct Slot {
    key: Bytes,
    /// Of the statement that runs; None between statements, so that a late request hits nothing.
    running: Mutex<Option<CancelToken>>,
}

impl Cancels {
    /// Enters a session under its number, which is the one that `pg_backend_pid()` tells.
    pub(crate) fn enter(self: &Arc<Cancels>, pid: i32, length: KeyLength) -> Result<Registration, SqlError> {
        let random = roles::random::<32>().map_err(|error| SqlError::new("XX000", error.to_string()))?;
        let key = match length {
            KeyLength::Short => Bytes::copy_from_slice(&random[..SHORT_KEY_BYTES]),
            KeyLength::Long => Bytes::copy_from_slice(&random),
        };
        let slot = Arc::new(Slot { key, running: Mutex::new(None) });
        match self.sessions.lock().unwrap_or_else(PoisonError::into_inner).entry(pid) {
            Entry::Vacant(place) => place.insert(Arc::clone(&slot)),
            // Numbers are random, so this is rare enough to be worth another try of the client's.
            Entry::Occupied(_) => return Err(SqlError::new("57P03", "the session's number is taken; connect again")),
        };
        Ok(Registration { pid, slot, cancels: Arc::clone(self) })
    }

    /// Cancels what the session runs, if the key is right. Nobody is told.
    pub(crate) fn request(&self, pid: i32, key: &[u8]) {
        let slot = self.sessions.lock().unwrap_or_else(PoisonError::into_inner).get(&pid).cloned();
        let Some(slot) = slot else {
            return;
        };
        if slot.key.ct_eq(key).into()
            && let Some(token) = slot.running.lock().unwrap_or_else(PoisonError::into_inner).as_ref()
        {
            token.cancel();
        }
    }
}

/// A session's entry; dropping it removes it.
pub(crate) struct Registration {
    pid: i32,
    slot: Arc<Slot>,
    cancels: Arc<Cancels>,
}

impl Registration {
    pub(crate) fn pid(&self) -> i32 {
        self.pid
    }

    pub(crate) fn key(&self) -> Bytes {
        self.slot.key.clone()
    }

    /// From here a request cancels this statement.
    pub(crate) fn running(&self, token: CancelToken) {
        *self.slot.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(token);
    }

    /// From here a request cancels nothing.
    pub(crate) fn idle(&self) {
        *self.slot.running.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Cancels what runs: the client is gone, or the server stops.
    pub(crate) fn cancel(&self) {
        if let Some(token) = self.slot.running.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            token.cancel();
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.cancels.sessions.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.pid);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// I-57
    #[test]
    fn a_key_cancels_its_own_statement_while_it_runs() {
        let cancels = Arc::new(Cancels::default());
        let (mine, other) = (cancels.enter(1, KeyLength::Long).unwrap(), cancels.enter(2, KeyLength::Short).unwrap());
        assert!(cancels.enter(1, KeyLength::Long).is_err());
        assert_eq!((mine.key().len(), other.key().len()), (32, 4));
        let (my_token, other_token) = (CancelToken::default(), CancelToken::default());
        mine.running(my_token.clone());
        other.running(other_token.clone());
        for (pid, key) in [
            (mine.pid(), other.key()),
            (other.pid(), mine.key()),
            (mine.pid(), mine.key().slice(..31)),
            (0, mine.key()),
        ] {
            cancels.request(pid, &key);
        }
        cancels.request(mine.pid(), b"");
        assert!(!my_token.is_cancelled() && !other_token.is_cancelled());
        cancels.request(mine.pid(), &mine.key());
        assert!(my_token.is_cancelled() && !other_token.is_cancelled());
        other.idle();
        cancels.request(other.pid(), &other.key());
        assert!(!other_token.is_cancelled(), "a late request hits nothing");
        let (pid, key) = (mine.pid(), mine.key());
        drop(mine);
        cancels.request(pid, &key);
        assert_eq!(cancels.sessions.lock().unwrap().len(), 1);
    }
}
