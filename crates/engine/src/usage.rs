//! What tenants store: rows and bytes, a page of tenants at a time.
//!
//!     names of each table ─► the first of all of them: the page's tenants ─► sums of each table up to the last
//!
//! The engines compose the two queries; what is the same for both is here. A page is bounded by its number of tenants,
//! so a shard of a million tenants is measured without holding them.

use crate::error::{Result, ShardError};
use isles_kernel::names::TenantId;
use isles_kernel::schema::{TENANT_KEY_COLUMN, Table, TableKind};
use std::collections::{BTreeMap, BTreeSet};

/// Tenants of one page; beyond it a page is a burden on memory rather than a saving of round trips.
pub const MAX_USAGE_TENANTS: usize = 10_000;

/// What a tenant has on a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantUsage {
    /// None is the null tenant.
    pub tenant: Option<TenantId>,
    pub rows: u64,
    /// Of the values, as the engine stores them; without what indexes and pages add.
    pub bytes: u64,
}

/// Which tenants, in the order of their names' bytes; the null tenant comes first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TenantRange {
    All,
    After(Option<TenantId>),
    Only(Option<TenantId>),
}

/// Some tenants that have rows; `next` is where the following page begins, none at the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsagePage {
    pub tenants: Vec<TenantUsage>,
    pub next: Option<TenantRange>,
}

/// As `_tenant` stores it.
pub(crate) fn tenant_key(tenant: &Option<TenantId>) -> &str {
    tenant.as_ref().map_or("", TenantId::as_str)
}

impl TenantRange {
    /// The condition on `_tenant`, and its parameter.
    pub(crate) fn condition(&self) -> Option<(&'static str, &str)> {
        match self {
            TenantRange::All => None,
            TenantRange::After(tenant) => Some((">", tenant_key(tenant))),
            TenantRange::Only(tenant) => Some(("=", tenant_key(tenant))),
        }
    }
}

/// The names that lead a tenant table's key, after a name that is the first parameter; the table is quoted. Each step is
/// one look into the key's index, so rows between two names are not read, where `DISTINCT` would read all of them.
pub(crate) fn loose_names(table: &str, after: Option<&Option<TenantId>>, limit: usize) -> String {
    // With a condition also where there is nothing before: every step is a search.
    let operator = if after.is_some() { ">" } else { ">=" };
    let next = |operator: &str, name: &str| {
        format!(
            "(SELECT {TENANT_KEY_COLUMN} FROM {table} WHERE {TENANT_KEY_COLUMN} {operator} {name} ORDER BY {TENANT_KEY_COLUMN} LIMIT 1)"
        )
    };
    format!(
        "WITH RECURSIVE names (name) AS (SELECT {} UNION ALL SELECT {} FROM names WHERE name IS NOT NULL) \
         SELECT name FROM names WHERE name IS NOT NULL LIMIT {limit}",
        next(operator, "$1"),
        next(">", "names.name"),
    )
}

/// Only rows of hash tables have buckets.
pub(crate) fn check_has_buckets(table: &Table) -> Result<()> {
    match table.group() {
        Some(_) => Ok(()),
        None => Err(ShardError::invalid(format!("table \"{}\" has no buckets", table.name))),
    }
}

/// Whether a table has tenants.
pub(crate) fn check_has_tenants(table: &Table) -> Result<()> {
    match table.kind {
        TableKind::Tenant => Ok(()),
        _ => Err(ShardError::invalid(format!("table \"{}\" has no tenants", table.name))),
    }
}

/// A stored name as the tenant it is of.
pub(crate) fn tenant_of(name: String) -> Result<Option<TenantId>> {
    let damaged = |_| ShardError::Corrupt("a stored tenant is not valid".into());
    if name.is_empty() { Ok(None) } else { TenantId::new(name).map(Some).map_err(damaged) }
}

/// The tenants of a page, while it is put together.
pub(crate) struct Gathered {
    limit: usize,
    names: BTreeSet<String>,
    more: bool,
    sums: BTreeMap<String, (u64, u64)>,
}

impl Gathered {
    pub(crate) fn new(limit: usize) -> Gathered {
        Gathered { limit, names: BTreeSet::new(), more: false, sums: BTreeMap::new() }
    }

    /// The first names of a table, at most as many as the page has.
    pub(crate) fn names(&mut self, names: Vec<String>) {
        self.more |= names.len() >= self.limit;
        self.names.extend(names);
        while self.names.len() > self.limit {
            self.names.pop_last();
            self.more = true;
        }
    }

    /// The last tenant of the page, once all tables have told their names.
    pub(crate) fn last(&self) -> Option<&str> {
        self.names.last().map(String::as_str)
    }

    /// What a table has of a tenant.
    pub(crate) fn add(&mut self, tenant: String, rows: i64, bytes: i64) {
        let sum = self.sums.entry(tenant).or_default();
        sum.0 += rows.max(0) as u64;
        sum.1 += bytes.max(0) as u64;
    }

    pub(crate) fn page(self, range: &TenantRange) -> UsagePage {
        // A name that is none was not written by Isles, and belongs to nobody who could ask for it.
        let usage = |(name, (rows, bytes)): (String, (u64, u64))| {
            let tenant = if name.is_empty() { None } else { Some(TenantId::new(name).ok()?) };
            Some(TenantUsage { tenant, rows, bytes })
        };
        let goes_on = self.more && !matches!(range, TenantRange::Only(_));
        let next =
            self.names.last().filter(|_| goes_on).map(|last| TenantRange::After(TenantId::new(last.clone()).ok()));
        UsagePage { tenants: self.sums.into_iter().filter_map(usage).collect(), next }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn names(of: &[&str]) -> Vec<String> {
        of.iter().map(|name| (*name).to_string()).collect()
    }

    #[test]
    fn a_page_has_the_first_tenants_of_all_tables() {
        let mut gathered = Gathered::new(2);
        gathered.names(names(&["", "b"]));
        gathered.names(names(&["a"]));
        assert_eq!(gathered.last(), Some("a"));
        gathered.add("a".into(), 1, 10);
        gathered.add(String::new(), 2, 20);
        gathered.add("a".into(), 3, 30);
        let page = gathered.page(&TenantRange::All);
        let a = TenantId::new("a").unwrap();
        let expected = [
            TenantUsage { tenant: None, rows: 2, bytes: 20 },
            TenantUsage { tenant: Some(a.clone()), rows: 4, bytes: 40 },
        ];
        assert_eq!(page.tenants, expected);
        assert_eq!(page.next, Some(TenantRange::After(Some(a))));
    }

    #[test]
    fn the_last_page_has_no_next_one() {
        let mut gathered = Gathered::new(2);
        gathered.names(names(&["a"]));
        assert_eq!(gathered.page(&TenantRange::All).next, None);
        assert_eq!(Gathered::new(2).page(&TenantRange::All), UsagePage { tenants: vec![], next: None });
    }
}
