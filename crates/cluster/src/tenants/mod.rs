//! Tenants as objects: what is kept of them, and what every session knows of them.
//!
//!     tenant/{name}     a tenant that was created, or is being dropped: its state and its quotas
//!
//! A tenant exists when it was created or when it has rows. Most need no record: an application sets a new name and
//! writes. So what is known of tenants ([`Entry`]) has two sources: their records, all of which are held in memory so
//! that no statement asks the catalog; and their sessions, whose work is counted.
//!
//! In reading order:
//!   * [`entry`]  one tenant: who is in it, what it has done and stored, what its quotas say
//!   * [`work`]   what tenants have done, for metrics, under a bounded number of names
//!   * [`room`]   how much tenants store
//!   * [`list`]   all tenants, a page at a time

pub(crate) mod entry;
pub(crate) mod list;
mod room;
pub(crate) mod work;

use crate::catalog::{Catalog, CatalogError, Key, Transaction};
use crate::commit::decision::catalog_error;
use entry::Entry;
use isles_kernel::error::SqlError;
use isles_kernel::names::TenantId;
use isles_kernel::quota::Quotas;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use work::TenantWork;

/// Records of tenants. All of them are in memory, at some hundred bytes each.
const RECORDS_MAX: usize = 100_000;

/// Tenants that are known without a record, because they have done something since the start. Beyond it, those that did
/// least and have no session are forgotten; what they did is counted under one name.
const KNOWN_MAX: usize = 100_000;

/// How often a change of a record that others change, too, is tried.
const ATTEMPTS: usize = 10;

const PREFIX: &str = "tenant/";
/// Records read at once.
const PAGE: usize = 1_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum State {
    #[default]
    Active,
    /// Its rows are being deleted, or were when somebody died.
    Dropping,
}

impl State {
    pub(crate) fn name(self) -> &'static str {
        match self {
            State::Active => "active",
            State::Dropping => "dropping",
        }
    }
}

/// What is kept of a tenant. Its size is bounded by what it has: a word and four numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Record {
    #[serde(default)]
    pub(crate) state: State,
    #[serde(default)]
    pub(crate) quotas: Quotas,
}

pub(crate) struct Tenants {
    catalog: Arc<dyn Catalog>,
    known: RwLock<BTreeMap<TenantId, Arc<Entry>>>,
    /// The null tenant, which has no record.
    null: Arc<Entry>,
    /// What those have done who have no name of their own in the metrics.
    other: Mutex<TenantWork>,
    /// One change of a record at a time.
    changes: tokio::sync::Mutex<()>,
    /// Whether somebody renews what tenants with a quota store.
    renewing: AtomicBool,
}

fn key_of(name: &TenantId) -> Result<Key, SqlError> {
    Key::new(format!("{PREFIX}{name}")).map_err(catalog_error)
}

impl Tenants {
    pub(crate) async fn open(catalog: Arc<dyn Catalog>) -> Result<Tenants, SqlError> {
        let (mut known, mut after) = (BTreeMap::new(), None);
        loop {
            let page = catalog.list(PREFIX, after.as_ref(), PAGE).await.map_err(catalog_error)?;
            for record in &page.records {
                let name = record.key.as_str().strip_prefix(PREFIX).unwrap_or_default();
                let name = TenantId::new(name).map_err(|error| SqlError::new("XX000", error.to_string()))?;
                let entry = Entry::new(Some(name.clone()));
                entry.keep(Some(record.json().map_err(catalog_error)?));
                known.insert(name, Arc::new(entry));
            }
            after = page.records.last().map(|record| record.key.clone());
            if !page.more || after.is_none() {
                break;
            }
        }
        Ok(Tenants {
            catalog,
            known: RwLock::new(known),
            null: Arc::new(Entry::new(None)),
            other: Mutex::default(),
            changes: tokio::sync::Mutex::default(),
            renewing: AtomicBool::new(false),
        })
    }

    /// What is known of a tenant, if anything is.
    pub(crate) fn find(&self, name: &TenantId) -> Option<Arc<Entry>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).get(name).cloned()
    }

    /// What is known of a tenant, from now on at the latest.
    pub(crate) fn entry(&self, name: Option<&TenantId>) -> Arc<Entry> {
        let Some(name) = name else { return self.null.clone() };
        if let Some(entry) = self.find(name) {
            return entry;
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= RECORDS_MAX + KNOWN_MAX {
            self.forget_idle(&mut known);
        }
        known.entry(name.clone()).or_insert_with(|| Arc::new(Entry::new(Some(name.clone())))).clone()
    }

    /// Forgets the half that did least of those that nobody uses, at once, so that the search is rare.
    fn forget_idle(&self, known: &mut BTreeMap<TenantId, Arc<Entry>>) {
        let is_idle = |entry: &Arc<Entry>| Arc::strong_count(entry) == 1 && entry.record().is_none();
        let mut counts: Vec<u64> =
            known.values().filter(|entry| is_idle(entry)).map(|entry| entry.work().statements).collect();
        counts.sort_unstable();
        let Some(middle) = counts.get(counts.len() / 2).copied() else { return };
        let mut other = self.other.lock().unwrap_or_else(PoisonError::into_inner);
        known.retain(|_, entry| {
            let stays = !is_idle(entry) || entry.work().statements > middle;
            if !stays {
                other.add(entry.unseen_work());
            }
            stays
        });
    }

    /// Tenants with a record, in order, after a name.
    pub(crate) fn recorded_after(&self, after: Option<&TenantId>, limit: usize) -> Vec<Arc<Entry>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let range = known.range::<TenantId, _>((from, Bound::Unbounded));
        range.map(|(_, entry)| entry).filter(|entry| entry.record().is_some()).take(limit).cloned().collect()
    }

    fn records(&self) -> usize {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.values().filter(|entry| entry.record().is_some()).count()
    }

    fn all(&self) -> Vec<Arc<Entry>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.values().chain([&self.null]).cloned().collect()
    }

    /// Changes a tenant's record by compare-and-set: `edit` is given what is there, and says what shall be. What it
    /// came to is what every session knows when this returns.
    pub(crate) async fn change(
        &self,
        name: &TenantId,
        edit: impl Fn(Option<Record>) -> Result<Option<Record>, SqlError>,
    ) -> Result<(), SqlError> {
        let _turn = self.changes.lock().await;
        let key = key_of(name)?;
        for _ in 0..ATTEMPTS {
            let stored = self.catalog.get(&key).await.map_err(catalog_error)?.value;
            let before: Option<Record> =
                stored.as_ref().map(|record| record.json()).transpose().map_err(catalog_error)?;
            let after = edit(before)?;
            if before.is_none() && after.is_some() && self.records() >= RECORDS_MAX {
                let error = SqlError::new("54000", format!("at most {RECORDS_MAX} tenants are created"));
                return Err(error.with_hint("a tenant without quotas need not be created: it exists when it has rows"));
            }
            let transaction = Transaction::new().when_as_read(&key, stored.as_ref());
            let transaction = match &after {
                Some(record) => transaction.put_json(key.clone(), record).map_err(catalog_error)?,
                None => transaction.delete(key.clone()),
            };
            match self.catalog.commit(transaction).await {
                Ok(_) => {
                    self.entry(Some(name)).keep(after);
                    return Ok(());
                }
                Err(CatalogError::Conflict { .. }) => {}
                Err(error) => {
                    // Whether it happened is known by a look, as far as one can be had.
                    if let Ok(read) = self.catalog.get(&key).await
                        && let Ok(record) = read.value.map(|record| record.json()).transpose()
                    {
                        self.entry(Some(name)).keep(record);
                    }
                    return Err(catalog_error(error));
                }
            }
        }
        Err(SqlError::new("40001", format!("tenant \"{name}\" is being changed by others")).with_hint("try again"))
    }

    /// True for the first who asks: that one shall renew what tenants store.
    pub(crate) fn begins_renewing(&self) -> bool {
        !self.renewing.swap(true, Ordering::SeqCst)
    }

    /// Whether a tenant has a quota of bytes.
    pub(crate) fn any_bounded(&self) -> bool {
        self.all().iter().any(|entry| entry.quotas().max_bytes.is_some())
    }
}

pub(crate) fn no_tenant(name: &TenantId) -> SqlError {
    SqlError::new("42704", format!("tenant \"{name}\" does not exist"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::catalog::{Options, SqliteCatalog};
    use isles_engine::env::TokioEnv;

    #[tokio::test]
    async fn tenants_that_did_little_are_forgotten_and_their_work_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let env = Arc::new(TokioEnv::current());
        let catalog = SqliteCatalog::open(folder.path().join("c.db"), env, Options::default()).await.unwrap();
        let tenants = Tenants::open(Arc::new(catalog)).await.unwrap();
        let name = |n: usize| TenantId::new(format!("t{n}")).unwrap();
        let done = |statements| TenantWork { statements, ..TenantWork::default() };
        let held = tenants.entry(Some(&name(0)));
        for n in 0..RECORDS_MAX + KNOWN_MAX {
            tenants.entry(Some(&name(n))).add(done(1 + (n % 2) as u64));
        }
        tenants.entry(Some(&TenantId::new("one more").unwrap()));
        assert!(tenants.all().len() < RECORDS_MAX + KNOWN_MAX);
        assert!(Arc::ptr_eq(&held, &tenants.entry(Some(&name(0)))), "who is in use is kept");
        let works = tenants.work(3);
        let shown: u64 = works.shown.iter().map(|(_, work)| work.statements).sum();
        assert_eq!(shown + works.other.statements, ((RECORDS_MAX + KNOWN_MAX) / 2 * 3) as u64);
    }
}
