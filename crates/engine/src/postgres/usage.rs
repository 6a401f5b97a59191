//! What tenants store, and how a tenant's rows go.
//!
//! Primary keys of tenant tables are led by the tenant, so their indexes answer for a page of tenants, and for the next
//! rows of one.

use super::ddl::{quote, table_name};
use super::fault;
use super::pool::Conn;
use super::tenancy::OWN;
use crate::error::Result;
use crate::usage::{Gathered, TenantRange, UsagePage, loose_names, tenant_key, tenant_of};
use isles_kernel::names::{BucketId, TenantId};
use isles_kernel::schema::{BUCKET_COLUMN, Schema, TENANT_KEY_COLUMN, Table, TableKind};
use std::collections::BTreeMap;
use tokio_postgres::types::{ToSql, Type};

async fn rows(conn: &Conn, sql: &str, params: &[&str]) -> Result<Vec<tokio_postgres::Row>> {
    let statement = conn.prepare_typed(sql, &vec![Type::TEXT; params.len()]).await.map_err(fault::before_commit)?;
    let params: Vec<&(dyn ToSql + Sync)> = params.iter().map(|param| param as &(dyn ToSql + Sync)).collect();
    conn.query(&statement, &params).await.map_err(fault::before_commit)
}

/// In an open snapshot.
pub(super) async fn usage(conn: &Conn, schema: &Schema, range: &TenantRange, limit: usize) -> Result<UsagePage> {
    // Rows of a copy that is being made are not yet anybody's.
    let counts = |table: &&Table| table.kind == TableKind::Tenant && !table.is_internal();
    let tables: Vec<&Table> = schema.tables.values().filter(counts).collect();
    let (tenant, condition) = (quote(TENANT_KEY_COLUMN), range.condition());
    let params: Vec<&str> = condition.iter().map(|(_, key)| *key).collect();
    let filter = condition.map_or("true".into(), |(operator, _)| format!("{tenant} {operator} $1"));
    let mut gathered = Gathered::new(limit);
    for table in &tables {
        let name = table_name(&table.name);
        let sql = format!("SELECT DISTINCT {tenant} FROM {name} WHERE {filter} ORDER BY {tenant} LIMIT {limit}");
        let found = rows(conn, &sql, &params).await?;
        gathered.names(found.iter().map(|row| row.get(0)).collect());
    }
    let Some(last) = gathered.last().map(String::from) else { return Ok(gathered.page(range)) };
    let mut params = params;
    params.push(&last);
    let filter = format!("{filter} AND {tenant} <= ${}", params.len());
    for table in &tables {
        let (name, bytes) = (table_name(&table.name), bytes_of(table));
        let sql = format!(
            "SELECT {tenant}, count(*), coalesce(sum({bytes}), 0)::bigint FROM {name} WHERE {filter} GROUP BY {tenant}"
        );
        for row in rows(conn, &sql, &params).await? {
            gathered.add(row.get(0), row.get(1), row.get(2));
        }
    }
    Ok(gathered.page(range))
}

/// The tenants of a table, after one of them; in an open snapshot.
pub(super) async fn tenants(
    conn: &Conn,
    table: &Table,
    after: Option<&Option<TenantId>>,
    limit: usize,
) -> Result<Vec<Option<TenantId>>> {
    let sql = loose_names(&table_name(&table.name), after, limit);
    let found = rows(conn, &sql, &[after.map_or("", tenant_key)]).await?;
    found.iter().map(|row| tenant_of(row.get(0))).collect()
}

/// In an open snapshot.
pub(super) async fn bucket_rows(conn: &Conn, table: &Table) -> Result<BTreeMap<BucketId, u64>> {
    let (name, bucket) = (table_name(&table.name), quote(BUCKET_COLUMN));
    let sql = format!("SELECT {bucket}::bigint, count(*) FROM {name} GROUP BY {bucket}");
    let found = rows(conn, &sql, &[]).await?;
    Ok(found.iter().map(|row| (BucketId(row.get::<_, i64>(0) as u32), row.get::<_, i64>(1) as u64)).collect())
}

/// The bytes of a row's values as they are stored: what the server has compressed counts as that.
fn bytes_of(table: &Table) -> String {
    let sizes = table.columns.iter().map(|column| format!("coalesce(pg_column_size({}), 0)", quote(&column.name)));
    let sizes: Vec<String> = sizes.collect();
    if sizes.is_empty() { "0".into() } else { sizes.join(" + ") }
}

/// Deletes some rows of a tenant from a table, or all of them, in an open transaction up to its COMMIT.
pub(super) async fn purge(
    conn: &Conn,
    schema: &Schema,
    table: &str,
    tenant: &Option<TenantId>,
    rows: Option<usize>,
) -> Result<u64> {
    let table = schema.table(table)?;
    conn.batch_execute(&format!("BEGIN READ WRITE; {OWN}")).await.map_err(fault::before_commit)?;
    if table.kind != TableKind::Tenant {
        return Ok(0);
    }
    let (name, column) = (table_name(&table.name), quote(TENANT_KEY_COLUMN));
    let sql = match rows {
        Some(rows) => {
            format!(
                "DELETE FROM {name} WHERE ctid = ANY (ARRAY(SELECT ctid FROM {name} WHERE {column} = $1 LIMIT {rows}))"
            )
        }
        None => format!("DELETE FROM {name} WHERE {column} = $1"),
    };
    let statement = conn.prepare_typed(&sql, &[Type::TEXT]).await.map_err(fault::before_commit)?;
    conn.execute(&statement, &[&tenant_key(tenant)]).await.map_err(fault::before_commit)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use isles_sim::pgserver;
    use tokio_postgres::NoTls;

    /// Rows between two names are not read: as many are read as there are names, and one more look finds no further one.
    #[tokio::test(flavor = "multi_thread")]
    async fn names_are_searched_for_and_not_scanned() {
        let url = pgserver::shared().create_database();
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
        tokio::spawn(connection);
        let rows = "CREATE TABLE notes (_tenant text COLLATE \"C\", id bigint, PRIMARY KEY (_tenant, id)); \
                    INSERT INTO notes SELECT 'tenant ' || n % 5, n FROM generate_series(1, 20000) AS n";
        client.batch_execute(rows).await.unwrap();
        for analyzed in [false, true] {
            if analyzed {
                client.batch_execute("ANALYZE notes").await.unwrap();
            }
            let sql = format!("EXPLAIN (ANALYZE, COSTS off, TIMING off) {}", loose_names("notes", None, 10));
            let plan: Vec<String> = client.query(&sql, &[&""]).await.unwrap().iter().map(|row| row.get(0)).collect();
            let scans: Vec<&String> = plan.iter().filter(|step| step.contains(" on notes")).collect();
            assert_eq!(scans.len(), 2, "{plan:#?}");
            for scan in scans {
                assert!(scan.contains("Index Only Scan") && scan.contains("rows=1 "), "{plan:#?}");
            }
        }
    }
}
