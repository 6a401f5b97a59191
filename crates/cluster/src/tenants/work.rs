//! What tenants have done, for metrics.
//!
//! A label for each tenant would let an application that makes tenants fill the memory of whoever scrapes. So only the
//! busiest have a name of their own, and the rest is counted under one. Which are the busiest changes, and a counter
//! must never fall: each look adds what was done since the last one, to the tenant's own counter or to the rest's. So
//! both only rise, and nothing is counted twice or lost.

use super::Tenants;
use isles_kernel::names::TenantId;
use std::sync::PoisonError;

/// The name that the rest is counted under. A tenant that is called so is part of it.
pub const OTHER: &str = "other";

/// What a tenant has done since the database was opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TenantWork {
    pub statements: u64,
    /// Statements that failed.
    pub errors: u64,
    /// Rows that its statements returned, or changed.
    pub rows: u64,
    /// The time of its statements together.
    pub micros: u64,
}

impl TenantWork {
    pub(crate) fn add(&mut self, more: TenantWork) {
        self.statements += more.statements;
        self.errors += more.errors;
        self.rows += more.rows;
        self.micros += more.micros;
    }

    pub(crate) fn since(self, earlier: TenantWork) -> TenantWork {
        TenantWork {
            statements: self.statements.saturating_sub(earlier.statements),
            errors: self.errors.saturating_sub(earlier.errors),
            rows: self.rows.saturating_sub(earlier.rows),
            micros: self.micros.saturating_sub(earlier.micros),
        }
    }
}

/// The busiest tenants, and the rest.
#[derive(Debug, Clone, Default)]
pub struct TenantWorks {
    /// None is the null tenant.
    pub shown: Vec<(Option<TenantId>, TenantWork)>,
    pub other: TenantWork,
}

impl Tenants {
    pub(crate) fn work(&self, most: usize) -> TenantWorks {
        let mut entries = self.all();
        // One look at a time.
        let mut other = self.other.lock().unwrap_or_else(PoisonError::into_inner);
        let named = |name: &Option<TenantId>| name.as_ref().is_none_or(|name| name.as_str() != OTHER);
        entries.sort_by_cached_key(|entry| (!named(&entry.name), std::cmp::Reverse(entry.work().statements)));
        let mut shown = Vec::new();
        for (at, entry) in entries.iter().enumerate() {
            let unseen = entry.unseen_work();
            let total = entry.work();
            if at >= most || !named(&entry.name) {
                other.add(unseen);
            } else if total.statements > 0 {
                let mut seen = entry.seen.lock().unwrap_or_else(PoisonError::into_inner);
                seen.own.add(unseen);
                shown.push((entry.name.clone(), seen.own));
            }
        }
        TenantWorks { shown, other: *other }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::catalog::{Options, SqliteCatalog};
    use isles_engine::env::TokioEnv;
    use std::sync::Arc;

    #[tokio::test]
    async fn the_busiest_have_names_and_no_counter_falls() {
        let folder = tempfile::tempdir().unwrap();
        let env = Arc::new(TokioEnv::current());
        let catalog = SqliteCatalog::open(folder.path().join("c.db"), env, Options::default()).await.unwrap();
        let tenants = Tenants::open(Arc::new(catalog)).await.unwrap();
        let name = |name: &str| TenantId::new(name).unwrap();
        let does = |who: &str, statements| {
            tenants.entry(Some(&name(who))).add(TenantWork { statements, ..TenantWork::default() });
        };
        let told = || {
            let works = tenants.work(2);
            let shown = works.shown.iter().map(|(name, work)| (name.as_ref().unwrap().to_string(), work.statements));
            (shown.collect::<Vec<_>>(), works.other.statements)
        };
        does("a", 5);
        does("b", 3);
        does("c", 1);
        does(OTHER, 100);
        assert_eq!(told(), (vec![("a".into(), 5), ("b".into(), 3)], 101));
        // c overtakes b: what it did before stays with the rest, and what b does now comes there.
        does("c", 6);
        does("b", 1);
        assert_eq!(told(), (vec![("c".into(), 6), ("a".into(), 5)], 102));
        does("b", 10);
        assert_eq!(told(), (vec![("b".into(), 13), ("c".into(), 6)], 102));
    }
}
