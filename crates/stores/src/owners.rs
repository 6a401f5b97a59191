//! Records by their owner, by their alias, and all of a tenant's.
//!
//! An owner's records are in many buckets. They are found on every shard of each region by an index that the shard
//! itself keeps, in the moment of the statement: there is no second copy that could lag behind.

use super::ask::{Desk, text, texts};
use super::place;
use super::record::{COLUMNS, Outcome, Record, Reply};
use super::spec::StoreSpec;
use super::{MAX_OWNER_BYTES, Result, tables};
use isles_cluster::placements::Left;
use isles_kernel::error::SqlError;
use isles_kernel::id::Generation;
use isles_kernel::names::TenantId;
use isles_kernel::value::Value;

/// Records of a page.
pub const MAX_PAGE: usize = 1_000;

/// Live, and no note that only guards: what is noted in several generations is one record.
const LIVE: &str = "used_at IS NULL AND revoked_at IS NULL AND expires_at > $3 AND generation >= 0";

/// Some records of an owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    pub records: Vec<Record>,
    /// Where the next page begins; none after the last.
    pub next: Option<String>,
}

/// How many records of an owner something was done to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owned {
    pub records: u64,
}

impl Desk<'_> {
    /// The tables in which a tenant may have records of a store.
    async fn tables_of(&self, spec: &StoreSpec, tenant: &TenantId) -> Result<Vec<(String, String)>> {
        if spec.is_singleton() {
            return Ok(vec![(tables::GLOBAL.to_owned(), tables::name(tables::GLOBAL, false))]);
        }
        let regions = self.stores.regions(tenant)?.into_iter();
        let mut all: Vec<(String, String)> =
            regions.map(|region| (region.clone(), tables::name(&region, spec.has_alias))).collect();
        if all.iter().any(|(_, table)| !self.stores.has_table(table)) {
            // Another process may have made it, and have put records there.
            self.stores.learn_tables().await?;
        }
        all.retain(|(_, table)| self.stores.has_table(table));
        Ok(all)
    }

    /// The live records of an owner, in an order that stays.
    pub async fn list_by_owner(
        &mut self,
        (tenant, store, owner): (&TenantId, &str, &str),
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page> {
        if !(1..=MAX_PAGE).contains(&limit) {
            return Err(SqlError::new("22023", format!("a page has 1 to {MAX_PAGE} records")));
        }
        let spec = self.stores.spec(store).await?;
        let (from_region, mut from_key) = match after {
            None => (String::new(), String::new()),
            Some(after) => {
                let (region, key) = after.split_once('/').ok_or_else(|| SqlError::new("22023", "not a page's end"))?;
                (region.to_owned(), key.to_owned())
            }
        };
        let now = self.stores.now();
        let mut records = Vec::new();
        for (region, table) in self.tables_of(&spec, tenant).await? {
            if region < from_region {
                continue;
            }
            if region > from_region {
                from_key.clear();
            }
            let wanted = limit + 1 - records.len();
            let sql = format!(
                "SELECT {COLUMNS}, instance, key FROM {table} WHERE tenant = $1 AND kind = $2 AND owner = $4 AND key > $5 \
                 AND {LIVE} ORDER BY key LIMIT {wanted}"
            );
            let params =
                vec![text(tenant.as_str()), text(spec.name.as_str()), Value::Int(now), text(owner), text(&from_key)];
            for row in self.ask(&sql, params).await? {
                let named = texts(vec![row[row.len() - 2..].to_vec()]).remove(0);
                records.push((
                    region.clone(),
                    named[1].clone(),
                    Record::of_row(place::shown(&named[0], &named[1]), &row)?,
                ));
            }
            if records.len() > limit {
                break;
            }
        }
        let more = records.len() > limit;
        records.truncate(limit);
        let next = records.last().filter(|_| more).map(|(region, key, _)| format!("{region}/{key}"));
        Ok(Page { records: records.into_iter().map(|(_, _, record)| record).collect(), next })
    }

    /// Revokes all records of an owner that are there when it is asked, over all shards of a region at once.
    pub async fn revoke_owner(&mut self, tenant: &TenantId, store: &str, owner: &str) -> Result<Owned> {
        if owner.is_empty() || owner.len() > MAX_OWNER_BYTES {
            return Err(SqlError::new("22023", format!("an owner has 1 to {MAX_OWNER_BYTES} bytes")));
        }
        let spec = self.stores.spec(store).await?;
        let mut revoked = 0;
        for (_, table) in self.tables_of(&spec, tenant).await? {
            let sql = format!(
                "UPDATE {table} SET revoked_at = $3, version = version + 1 WHERE tenant = $1 AND kind = $2 AND owner = $4 \
                 AND revoked_at IS NULL AND expires_at > $3 AND generation >= 0 RETURNING key"
            );
            let params =
                vec![text(tenant.as_str()), text(spec.name.as_str()), Value::Int(self.stores.now()), text(owner)];
            revoked += self.ask(&sql, params).await?.len() as u64;
        }
        Ok(Owned { records: revoked })
    }

    /// The live records of a tenant.
    pub async fn count(&mut self, tenant: &TenantId, store: &str) -> Result<u64> {
        let spec = self.stores.spec(store).await?;
        let mut all = 0;
        for (_, table) in self.tables_of(&spec, tenant).await? {
            let sql = format!("SELECT count(*) FROM {table} WHERE tenant = $1 AND kind = $2 AND {LIVE}");
            let params = vec![text(tenant.as_str()), text(spec.name.as_str()), Value::Int(self.stores.now())];
            all += counted(self.ask(&sql, params).await?);
        }
        Ok(all)
    }

    /// The live records of all tenants.
    pub(super) async fn count_all(&mut self, spec: &StoreSpec) -> Result<u64> {
        let mut all = 0;
        self.stores.learn_tables().await?;
        for table in self.stores.tables() {
            let sql = format!("SELECT count(*) FROM {table} WHERE kind = $1 AND expires_at > $2");
            all += counted(self.ask(&sql, vec![text(spec.name.as_str()), Value::Int(self.stores.now())]).await?);
        }
        Ok(all)
    }

    /// When the last record that is there has expired at the latest, of all tenants; 0 if there is none.
    pub(super) async fn last_end(&mut self, spec: &StoreSpec) -> Result<i64> {
        let mut last = 0;
        self.stores.learn_tables().await?;
        for table in self.stores.tables() {
            let end = "CASE WHEN cap_at < expires_at THEN expires_at ELSE cap_at END";
            let sql = format!("SELECT max({end}) FROM {table} WHERE kind = $1");
            let rows = self.ask(&sql, vec![text(spec.name.as_str())]).await?;
            if let Some(Value::Int(end)) = rows.first().and_then(|row| row.first()) {
                last = last.max(*end);
            }
        }
        Ok(last)
    }

    /// The records of a generation that have not expired, of one tenant or of any.
    pub async fn left(&mut self, tenant: Option<&TenantId>, generation: Generation) -> Result<Left> {
        let now = self.stores.now();
        let mut all = Left::default();
        self.stores.learn_tables().await?;
        for table in self.stores.tables().into_iter().filter(|table| !table.ends_with(tables::GLOBAL)) {
            let of_tenant = if tenant.is_some() { " AND tenant = $3" } else { "" };
            let sql = format!(
                "SELECT count(*), max(expires_at) FROM {table} WHERE expires_at > $1 AND generation = $2{of_tenant}"
            );
            let mut params = vec![Value::Int(now), Value::Int(generation.get().into())];
            params.extend(tenant.map(|tenant| text(tenant.as_str())));
            let rows = self.ask(&sql, params).await?;
            if let Some(Value::Int(end)) = rows.first().and_then(|row| row.get(1)) {
                all.last_end = all.last_end.max(Some(*end));
            }
            all.records += counted(rows);
        }
        Ok(all)
    }

    /// Whether no record is left in a generation that has not expired, of one tenant or of any.
    pub async fn is_drained(&mut self, tenant: Option<&TenantId>, generation: Generation) -> Result<bool> {
        let now = self.stores.now();
        self.stores.learn_tables().await?;
        for table in self.stores.tables().into_iter().filter(|table| !table.ends_with(tables::GLOBAL)) {
            let of_tenant = if tenant.is_some() { " AND tenant = $3" } else { "" };
            let sql = format!("SELECT key FROM {table} WHERE expires_at > $1 AND generation = $2{of_tenant} LIMIT 1");
            let mut params = vec![Value::Int(now), Value::Int(generation.get().into())];
            params.extend(tenant.map(|tenant| text(tenant.as_str())));
            if !self.ask(&sql, params).await?.is_empty() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The record that has this alias. Of the regions only those are asked that are given, or all.
    pub async fn get_by_alias(
        &mut self,
        tenant: &TenantId,
        store: &str,
        alias: &str,
        region: Option<&str>,
    ) -> Result<Reply> {
        let spec = self.stores.spec(store).await?;
        if !spec.has_alias {
            return Err(SqlError::new("22023", format!("records of store {store} have no alias")));
        }
        let now = self.stores.now();
        for (in_region, table) in self.tables_of(&spec, tenant).await? {
            if region.is_some_and(|region| region != in_region) {
                continue;
            }
            let sql =
                format!("SELECT {COLUMNS}, instance, key FROM {table} WHERE tenant = $1 AND kind = $2 AND alias = $3");
            let rows = self.ask(&sql, vec![text(tenant.as_str()), text(spec.name.as_str()), text(alias)]).await?;
            let Some(row) = rows.into_iter().next() else { continue };
            let named = texts(vec![row[row.len() - 2..].to_vec()]).remove(0);
            let record = Record::of_row(place::shown(&named[0], &named[1]), &row)?;
            return Ok(match record.life(now) {
                Outcome::Ok => Reply::ok(record),
                outcome => Reply::of(outcome),
            });
        }
        Ok(Reply::of(Outcome::NotFound))
    }
}

fn counted(rows: Vec<Vec<Value>>) -> u64 {
    match rows.first().and_then(|row| row.first()) {
        Some(Value::Int(count)) => u64::try_from(*count).unwrap_or_default(),
        _ => 0,
    }
}
