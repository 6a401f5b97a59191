//! One tenant, as its sessions share it.
//!
//!     session ── sits in its tenant ──► Seat     as many as `max_connections` allows (53300)
//!     statement, transaction ── enters ─► Pass   refused once the tenant is being dropped
//!
//! Whoever drops a tenant first says so, here and in the catalog, and then waits until nobody is inside: the count of
//! those who are is raised before they look, so one of the two sees the other.

use super::work::TenantWork;
use super::{Record, State};
use arc_swap::ArcSwapOption;
use isles_kernel::error::SqlError;
use isles_kernel::names::TenantId;
use isles_kernel::quota::{Quota, Quotas};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

pub(crate) struct Entry {
    /// None is the null tenant.
    pub(crate) name: Option<TenantId>,
    record: ArcSwapOption<Record>,
    dropping: AtomicBool,
    /// Statements and transactions that are inside.
    running: AtomicUsize,
    sessions: AtomicU64,
    statements: AtomicU64,
    errors: AtomicU64,
    rows: AtomicU64,
    micros: AtomicU64,
    /// What the metrics have been told.
    pub(super) seen: Mutex<Seen>,
    stored: Mutex<Stored>,
    /// One measurement at a time.
    pub(super) measuring: tokio::sync::Mutex<()>,
}

#[derive(Default)]
pub(super) struct Seen {
    /// All of it, under whatever name.
    pub(super) total: TenantWork,
    /// Under the tenant's own name.
    pub(super) own: TenantWork,
}

/// What a tenant stores, as far as it is known.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Stored {
    pub(super) measured: Option<Measured>,
    /// Bytes written since then, about.
    pub(super) written: u64,
    /// Bytes written by transactions that are open: a measurement does not see them.
    pub(super) pending: u64,
    /// Writes and deletes, and how many of them the measurement may have seen.
    pub(super) changes: u64,
    pub(super) seen: u64,
}

impl Stored {
    fn about(&self, rows: u64, bytes: u64) -> u64 {
        let usual = self.measured.map_or(0, |measured| measured.bytes / measured.rows.max(1));
        bytes.max(rows.saturating_mul(usual))
    }

    /// Whether a measurement could tell something new.
    pub(super) fn is_stale(&self) -> bool {
        self.measured.is_none() || self.changes != self.seen
    }

    /// As far as it is known; None if it was never measured.
    pub(super) fn bytes(&self) -> Option<u64> {
        Some(self.measured?.bytes.saturating_add(self.written).saturating_add(self.pending))
    }
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Measured {
    pub(super) rows: u64,
    pub(super) bytes: u64,
    /// On the env's clock.
    pub(super) at: Duration,
    pub(super) took: Duration,
}

impl Entry {
    pub(super) fn new(name: Option<TenantId>) -> Entry {
        Entry {
            name,
            record: ArcSwapOption::empty(),
            dropping: AtomicBool::new(false),
            running: AtomicUsize::new(0),
            sessions: AtomicU64::new(0),
            statements: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            rows: AtomicU64::new(0),
            micros: AtomicU64::new(0),
            seen: Mutex::default(),
            stored: Mutex::default(),
            measuring: tokio::sync::Mutex::default(),
        }
    }

    /// Takes what the catalog has of it.
    pub(super) fn keep(&self, record: Option<Record>) {
        self.dropping.store(record.is_some_and(|record| record.state == State::Dropping), Ordering::SeqCst);
        self.record.store(record.map(Arc::new));
        // Without a quota nobody has noted what was written: it is measured anew when it is asked for.
        let mut stored = self.stored();
        (stored.measured, stored.written) = (None, 0);
    }

    pub(crate) fn record(&self) -> Option<Record> {
        self.record.load().as_deref().copied()
    }

    pub(crate) fn quotas(&self) -> Quotas {
        self.record.load().as_deref().map(|record| record.quotas).unwrap_or_default()
    }

    /// For messages.
    fn title(&self) -> String {
        self.name.as_ref().map_or("the null tenant".into(), |name| format!("tenant \"{name}\""))
    }

    /// Says which quota it was.
    pub(crate) fn hint(&self, quota: Quota) -> String {
        let value = self.quotas().get(quota).map_or(String::new(), |value| format!(" = {value}"));
        let name = self.name.as_ref().map_or("", TenantId::as_str).replace('"', "\"\"");
        format!("the quota is {}{value}; an administrator changes it by ALTER TENANT \"{name}\" SET", quota.name(),)
    }

    pub(crate) fn beyond(&self, quota: Quota) -> SqlError {
        let title = self.title();
        let error = match quota {
            Quota::Connections => SqlError::new("53300", format!("too many connections for {title}")),
            Quota::StatementTime => SqlError::new("57014", "canceling statement due to statement timeout"),
            Quota::Rows => {
                SqlError::new("54000", format!("the statement returns more rows than {title} may read at once"))
            }
            Quota::Bytes => SqlError::new("53100", format!("{title} stores as much as it may")),
        };
        error.with_hint(self.hint(quota))
    }

    /// Lets a session have this tenant.
    pub(crate) fn sit(self: &Arc<Self>) -> Result<Seat, SqlError> {
        let max = self.quotas().max_connections.unwrap_or(u64::MAX);
        let more = |sessions: u64| (sessions < max).then_some(sessions + 1);
        match self.sessions.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more) {
            Ok(_) => Ok(Seat(self.clone())),
            Err(_) => Err(self.beyond(Quota::Connections)),
        }
    }

    pub(crate) fn sessions(&self) -> u64 {
        self.sessions.load(Ordering::SeqCst)
    }

    /// Lets a statement or a transaction in, unless the tenant is being dropped.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<Pass, SqlError> {
        self.running.fetch_add(1, Ordering::SeqCst);
        let pass = Pass { entry: self.clone(), pending: 0 };
        match self.dropping.load(Ordering::SeqCst) {
            false => Ok(pass),
            true => Err(SqlError::new("55000", format!("{} is being dropped", self.title()))
                .with_hint("DROP TENANT goes on where it stopped; when it is done, the name is free again")),
        }
    }

    pub(crate) fn running(&self) -> usize {
        self.running.load(Ordering::SeqCst)
    }

    pub(crate) fn add(&self, work: TenantWork) {
        let counters = [&self.statements, &self.errors, &self.rows, &self.micros];
        for (counter, count) in counters.into_iter().zip([work.statements, work.errors, work.rows, work.micros]) {
            if count > 0 {
                counter.fetch_add(count, Ordering::Relaxed);
            }
        }
    }

    pub(crate) fn work(&self) -> TenantWork {
        let [statements, errors, rows, micros] =
            [&self.statements, &self.errors, &self.rows, &self.micros].map(|counter| counter.load(Ordering::Relaxed));
        TenantWork { statements, errors, rows, micros }
    }

    /// What it has done since the metrics were told last; it is told now.
    pub(super) fn unseen_work(&self) -> TenantWork {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let total = self.work();
        let unseen = total.since(seen.total);
        seen.total = total;
        unseen
    }

    pub(super) fn stored(&self) -> MutexGuard<'_, Stored> {
        self.stored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a write of `rows` rows, of about `bytes` or of as much as rows of this tenant have.
    pub(crate) fn wrote(&self, rows: u64, bytes: u64) {
        if self.quotas().max_bytes.is_some() {
            let mut stored = self.stored();
            stored.written = stored.written.saturating_add(stored.about(rows, bytes));
            stored.changes += 1;
        }
    }

    /// Notes that there may be less than before.
    pub(crate) fn deleted(&self) {
        if self.quotas().max_bytes.is_some() {
            self.stored().changes += 1;
        }
    }
}

/// A session that has this tenant.
pub(crate) struct Seat(Arc<Entry>);

impl Seat {
    pub(crate) fn entry(&self) -> &Arc<Entry> {
        &self.0
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.sessions.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A statement or transaction that is inside.
pub struct Pass {
    entry: Arc<Entry>,
    /// Bytes that it has written.
    pending: u64,
}

impl Pass {
    /// Notes what a transaction has written that is still open.
    pub(crate) fn wrote(&mut self, rows: u64, bytes: u64) {
        if self.entry.quotas().max_bytes.is_some() {
            let mut stored = self.entry.stored();
            let about = stored.about(rows, bytes);
            stored.pending = stored.pending.saturating_add(about);
            self.pending = self.pending.saturating_add(about);
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if self.pending > 0 {
            // Committed or not: the next measurement tells.
            let mut stored = self.entry.stored();
            stored.pending = stored.pending.saturating_sub(self.pending);
            stored.written = stored.written.saturating_add(self.pending);
            stored.changes += 1;
        }
        self.entry.running.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn entry(max_connections: Option<u64>) -> Arc<Entry> {
        let entry = Entry::new(Some(TenantId::new("acme").unwrap()));
        let quotas = Quotas { max_connections, ..Quotas::default() };
        entry.keep(Some(Record { quotas, state: State::Active }));
        Arc::new(entry)
    }

    /// I-45: at the limit − 1, at the limit, and one beyond.
    #[test]
    fn as_many_sit_as_may() {
        let entry = entry(Some(2));
        let first = entry.sit().unwrap();
        let second = entry.sit().unwrap();
        let refused = entry.sit().err().unwrap();
        assert_eq!(refused.sqlstate, "53300");
        assert!(refused.hint.unwrap().contains("max_connections = 2"));
        drop(second);
        let again = entry.sit().unwrap();
        assert_eq!(entry.sessions(), 2);
        drop((first, again));
        assert_eq!(entry.sessions(), 0);
    }

    #[test]
    fn nobody_enters_what_is_being_dropped() {
        let entry = entry(None);
        let inside = entry.enter().unwrap();
        entry.keep(Some(Record { state: State::Dropping, ..Record::default() }));
        assert_eq!(entry.enter().err().unwrap().sqlstate, "55000");
        assert_eq!(entry.running(), 1, "who was refused is not inside");
        drop(inside);
        assert_eq!(entry.running(), 0);
        entry.keep(None);
        assert!(entry.enter().is_ok());
    }
}
