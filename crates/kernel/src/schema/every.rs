//! The schema as it looks to whoever reads the rows of all tenants.
//!
//!     notes (id, body), kind tenant   ──►   notes (_tenant, id, body), kind hash, by _tenant
//!
//! On a shard a tenant table is one table with `_tenant` in front of every key. Whoever may see all tenants sees it as what
//! it is there: rows spread over the shards by `_tenant`, and unique only together with it. So all that is known of hash
//! tables (which joins stay on a shard, which keys lead where, what is grouped or merged) holds for these without another
//! word. They can be read and not written.
//!
//! `_shard` stays hidden. `_tenant` is the tenant's name, and empty for the null tenant.

use super::{Column, Key, KeyOver, KeyPart, Schema, TENANT_KEY_COLUMN, Table, TableKind, every_tenant_group};
use crate::value::DataType;

impl Schema {
    /// This schema, with every tenant table as a hash table by `_tenant`.
    pub fn of_every_tenant(&self) -> Schema {
        let mut every = self.clone();
        every.tables.values_mut().filter(|table| table.kind == TableKind::Tenant).for_each(show_tenants);
        every
    }
}

fn show_tenants(table: &mut Table) {
    let lead = || TENANT_KEY_COLUMN.to_string();
    // Nothing is created by this: how many buckets there are, the routing says.
    let (group, shard_by) = (every_tenant_group(), vec![lead()]);
    table.kind = TableKind::Hash { group, shard_by, buckets: 1, regions: Vec::new() };
    table.columns.insert(0, Column::new(TENANT_KEY_COLUMN, DataType::Text).not_null());
    table.primary_key.insert(0, lead());
    table.keys.iter_mut().filter(|key| key.unique).for_each(lead_by_tenant);
    // Within a tenant, which no such table is for.
    table.foreign_keys.clear();
}

fn lead_by_tenant(key: &mut Key) {
    if !key.parts.is_empty() {
        let over = KeyOver::Column(TENANT_KEY_COLUMN.into());
        key.parts.insert(0, KeyPart { over, descending: false, nulls_first: false });
    }
    key.columns.insert(0, TENANT_KEY_COLUMN.into());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tenant_table_is_spread_and_unique_by_its_tenant() {
        let column = |name| Column::new(name, DataType::Text);
        let mut notes = Table::new("notes", TableKind::Tenant, vec![column("id"), column("tag")], &["id"]);
        notes.keys = vec![Key::unique("by_tag", &["tag"]), Key::index("some", &["tag"])];
        let plans = Table::new("plans", TableKind::Reference, vec![column("id")], &["id"]);
        let tables = [&notes, &plans].map(|table| (table.name.clone(), table.clone())).into();
        let schema = Schema { tables, ..Schema::default() };
        let every = schema.of_every_tenant();
        assert_eq!(every.tables["plans"], plans);
        let notes = &every.tables["notes"];
        assert_eq!(notes.group(), Some(&every_tenant_group()));
        let names: Vec<&str> = notes.columns.iter().map(|column| column.name.as_str()).collect();
        assert_eq!(names, ["_tenant", "id", "tag"]);
        assert_eq!(notes.primary_key, ["_tenant", "id"]);
        assert_eq!(notes.keys[0].columns, ["_tenant", "tag"]);
        assert_eq!(notes.keys[1].columns, ["tag"], "one that is not unique stays as it is");
    }
}
