//! The tables of records.
//!
//! ```text
//! isles.records_{region}   records of a region: group records-{region}, by instance
//! isles.aliased_{region}   those that have a second name, unique by a global index; the same group
//! isles.records_global     singletons, which are never sharded
//! ```
//!
//! A region has tables of its own, so that a bucket of it can be kept on its shards. Records with a second name have a
//! table of their own, because a global index is paid for by each write of its table.

use super::{Result, Stores};
use isles_kernel::error::SqlError;
use isles_kernel::names::GroupName;
use isles_kernel::placement::KNOWN_REGIONS;
use std::sync::PoisonError;

/// The place of singletons, where others have a region.
pub(super) const GLOBAL: &str = "global";

/// Buckets of a region's records. Instances are hashed over them; so many can be spread over as many shards, and each
/// can move by itself.
const BUCKETS: u32 = 256;

const COLUMNS: &str = "instance text NOT NULL, kind text NOT NULL, key text NOT NULL, tenant text NOT NULL, generation bigint NOT NULL, owner text, \
     binding text, alias text, value text NOT NULL, state text, version bigint NOT NULL, created_at bigint NOT NULL, \
     expires_at bigint NOT NULL, cap_at bigint NOT NULL, used_at bigint, used_by text, revoked_at bigint, \
     PRIMARY KEY (instance, kind, key)";

pub(super) fn name(region: &str, has_alias: bool) -> String {
    let what = if has_alias { "aliased" } else { "records" };
    format!("isles.{what}_{region}")
}

/// The group of both tables of a region.
fn group(region: &str) -> String {
    format!("records-{region}")
}

/// The group of a region's table whose writes can be gathered: one that is sharded, and has no global index.
pub(super) fn gathered_group(table: &str, region: &str) -> Option<GroupName> {
    match region != GLOBAL && table == name(region, false) {
        true => GroupName::new(group(region)).ok(),
        false => None,
    }
}

/// What makes a table, if it is not there.
fn statements(region: &str, has_alias: bool, is_kept: bool) -> Vec<String> {
    let table = name(region, has_alias);
    let plain = table.trim_start_matches("isles.");
    let kind = match region {
        GLOBAL => "kind = 'global'".to_owned(),
        region => {
            let kept = if is_kept { format!(", region = '{region}'") } else { String::new() };
            let group = group(region);
            format!("kind = 'hash', shard_by = 'instance', \"group\" = '{group}', buckets = {BUCKETS}{kept}")
        }
    };
    let mut statements = vec![
        "CREATE SCHEMA IF NOT EXISTS isles".to_owned(),
        format!("CREATE TABLE IF NOT EXISTS {table} ({COLUMNS}) WITH ({kind})"),
        format!("CREATE INDEX IF NOT EXISTS {plain}_expiry ON {table} (expires_at)"),
        format!("CREATE INDEX IF NOT EXISTS {plain}_owner ON {table} (tenant, kind, owner, key)"),
    ];
    if has_alias {
        statements.push(format!(
            "CREATE UNIQUE INDEX IF NOT EXISTS {plain}_alias ON {table} (tenant, kind, alias) WITH (global)"
        ));
    }
    statements
}

impl Stores {
    /// Makes the table of a region, unless it is known to be there.
    pub(super) async fn ensure_table(&self, region: &str, has_alias: bool) -> Result<()> {
        let table = name(region, has_alias);
        if self.has_table(&table) {
            return Ok(());
        }
        // Where shards have regions, records stay in theirs (I-39). A group whose tables were made before is where it is, and
        // its tables are all alike.
        let is_unbound = self.unbound().iter().any(|known| known == region);
        let is_kept = !self.database().placements().regions().is_empty() && !is_unbound;
        if is_unbound {
            tracing::warn!(table, region, "records are not kept in their region: their tables are older than regions");
        }
        for statement in statements(region, has_alias, is_kept) {
            // Another may be making it; both say IF NOT EXISTS.
            match self.ask(&statement, Vec::new()).await {
                Err(error) if matches!(error.sqlstate, "42P06" | "42P07") => {}
                made => drop(made?),
            }
        }
        self.shared.tables.lock().unwrap_or_else(PoisonError::into_inner).insert(table);
        Ok(())
    }

    /// The regions whose records may be on any shard, though shards have regions: their tables were made before.
    pub fn unbound(&self) -> Vec<String> {
        if self.database().placements().regions().is_empty() {
            return Vec::new();
        }
        let is_unbound = |region: &&str| {
            let group = GroupName::new(group(region)).ok();
            group.is_some_and(|group| self.database().is_bound(&group) == Some(false))
        };
        KNOWN_REGIONS.iter().copied().filter(is_unbound).map(str::to_owned).collect()
    }

    pub(super) fn has_table(&self, table: &str) -> bool {
        self.shared.tables.lock().unwrap_or_else(PoisonError::into_inner).contains(table)
    }

    /// The tables that there are, with what each is called.
    pub(super) fn tables(&self) -> Vec<String> {
        self.shared.tables.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Learns which tables there are from before.
    pub(super) async fn learn_tables(&self) -> Result<()> {
        let sql = "SELECT table_name FROM information_schema.tables WHERE table_schema = 'isles'";
        let rows = self.ask(sql, Vec::new()).await?;
        let mut tables = self.shared.tables.lock().unwrap_or_else(PoisonError::into_inner);
        for row in rows {
            let Some(isles_kernel::value::Value::Text(name)) = row.into_iter().next() else {
                return Err(SqlError::new("XX000", "a table has no name"));
            };
            if name.starts_with("records_") || name.starts_with("aliased_") {
                tables.insert(format!("isles.{name}"));
            }
        }
        Ok(())
    }
}
