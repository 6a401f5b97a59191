//! Rows that a move has left.
//!
//! A reader finds their keys, so that the writer is not held while a table is searched for the rows of a bucket; the
//! writer deletes them by key, in the transaction in which it asks for the stream's driver and the fences. Whoever could
//! write a row of these units meanwhile is the driver itself.
//!
//! It runs on the applier's connection: nothing is captured, no trigger fires and no foreign key is checked.

use super::raw::Db;
use super::snapshot::{DIGEST_TIME, RangeQuery, in_buckets};
use super::writer::{Company, Writer};
use super::{OWN_WRITE_TIME, SqliteShard, ddl, reader, stream};
use crate::discard::{check_range, refuse_served};
use crate::error::{Result, ShardError};
use crate::fence::Claimed;
use crate::shard::{DriverToken, KeyRange, Row, Scope};
use isles_kernel::names::StreamId;
use isles_kernel::schema::Table;
use std::sync::Arc;

/// Who discards, and what must hold for it.
pub(super) struct Leave {
    pub(super) stream: StreamId,
    pub(super) driver: DriverToken,
    pub(super) unserved: Vec<Claimed>,
}

pub(super) async fn discard(shard: &SqliteShard, leave: Leave, range: &KeyRange, rows: usize) -> Result<u64> {
    check_range(range, &leave.unserved, rows)?;
    let schema = shard.shared.published.load().schema.clone();
    let query = RangeQuery::keys(schema.table(&range.table)?, range, rows)?;
    let find = move |db: &mut Db| db.own_text(&query.sql, &query.params, &query.columns);
    let keys = reader::with_reader(&shard.shared, DIGEST_TIME, find).await?;
    let range = range.clone();
    let work = move |writer: &mut Writer| {
        // The keys mean nothing under another schema.
        if !Arc::ptr_eq(&writer.state.schema, &schema) {
            return Err(ShardError::Conflict("the schema has changed".into()));
        }
        let fences = writer.state.fences.clone();
        let db = writer.applier()?;
        stream::check(db, &leave.stream, Some(leave.driver))?;
        refuse_served(&fences, &leave.unserved)?;
        delete(db, schema.table(&range.table)?, &range.scope, &keys)
    };
    shard.submit(OWN_WRITE_TIME, Company::Applier, work).await
}

fn delete(db: &mut Db, table: &Table, scope: &Scope, keys: &[Row]) -> Result<u64> {
    let key = table.physical_key();
    let matched = (1..).zip(&key).map(|(n, name)| format!("{} = ${n}", ddl::quoted(name)));
    // A tenant is in the key.
    let still = match scope {
        Scope::Buckets(_, ranges) if table.group().is_some() => Some(in_buckets(ranges)),
        _ => None,
    };
    let conditions: Vec<String> = matched.chain(still).collect();
    let sql = format!("DELETE FROM {} WHERE {}", ddl::quoted(&table.name), conditions.join(" AND "));
    let prepared = db.prepare_own(&sql)?;
    let mut deleted = 0;
    for key in keys {
        db.run_bound(&prepared, key.iter())?;
        deleted += db.changes();
    }
    Ok(deleted)
}
