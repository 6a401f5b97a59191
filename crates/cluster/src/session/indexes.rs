//! Statements about global indexes.

use super::copy::{qualified, quoted};
use super::moves::time;
use super::plans::{number_field, text_field};
use super::settings::WAIT_FOR_INDEXES;
use super::{Answer, Result, Rows, Session};
use crate::execute::bounds::Bounds;
use crate::indexes::{IndexInfo, State, Verified};
use isles_engine::shard::Isolation;
use isles_kernel::error::SqlError;
use isles_kernel::schema::{Key, Schema, SchemaChange, relation_name, relation_parts};
use isles_kernel::value::Value;
use isles_sql::bind::utility::{IndexName, IndexStatement};
use isles_sql::tree::Field;
use isles_sql::types::{BOOL, TIMESTAMPTZ, Type};
use std::time::Duration;

/// How often one who waits for an index looks.
const POLL: Duration = Duration::from_millis(20);

fn flag_field(name: &str) -> Field {
    Field { name: name.into(), ty: Type::of(BOOL) }
}

/// The columns of a statement's answer.
pub(super) fn fields(statement: &IndexStatement) -> Option<Vec<Field>> {
    match statement {
        IndexStatement::List => {
            let mut fields = vec![text_field("index"), text_field("table"), flag_field("unique"), text_field("state")];
            fields.push(flag_field("used"));
            fields.extend(["lag", "lag_ms", "pending", "shards_built", "shards", "rows_built"].map(number_field));
            fields.extend(["waits_for", "error"].map(text_field));
            fields.push(number_field("rows_total"));
            fields.push(Field { name: "verified_at".into(), ty: Type::of(TIMESTAMPTZ) });
            fields.extend(["differences", "lookups", "entries"].map(number_field));
            fields.push(text_field("applied"));
            Some(fields)
        }
        IndexStatement::Verify { .. } => {
            Some(["entries", "missing", "superfluous", "repaired"].map(number_field).into())
        }
        IndexStatement::Rebuild(_) | IndexStatement::Wait(_) => None,
    }
}

impl Session {
    pub(super) async fn index(&mut self, statement: &IndexStatement) -> Result<Answer> {
        let tag = statement.command_tag();
        let rows = match statement {
            IndexStatement::List => self.database.global_indexes().await?.iter().map(row).collect(),
            _ if self.in_block() || self.has_begun().await => {
                return Err(SqlError::new("25001", format!("{tag} cannot run inside a transaction block")));
            }
            IndexStatement::Rebuild(index) => {
                self.database.rebuild_index(&self.entries_of(index)?).await?;
                return Ok(Answer::Done { tag: tag.into() });
            }
            IndexStatement::Wait(index) => {
                let bounds = self.bounds();
                self.wait_for_index(index, &bounds).await?;
                return Ok(Answer::Done { tag: tag.into() });
            }
            IndexStatement::Verify { index, repair } => {
                vec![verified(&self.database.verify_index(&self.entries_of(index)?, *repair).await?)]
            }
        };
        Ok(Answer::Rows(Rows::new(fields(statement).unwrap_or_default(), rows, tag.into())))
    }

    fn entries_of(&self, index: &IndexName) -> Result<String> {
        let schema = self.database.schema();
        let key = schema.tables.get(&index.table).and_then(|table| table.keys.iter().find(|key| key.name == index.key));
        key.and_then(|key| key.global.clone())
            .ok_or_else(|| SqlError::new("42704", format!("index \"{}\" does not exist", index.key)))
    }

    /// Waits for the unique global indexes that a change of the schema has made. If the rows are not unique, the index
    /// goes again, and the change has failed.
    pub(super) async fn wait_for_unique(&mut self, changes: &[SchemaChange]) -> Result<()> {
        // Who does not wait is told by the state of the index.
        if !self.settings.is_on(WAIT_FOR_INDEXES) {
            return Ok(());
        }
        for made in unique_keys(changes) {
            let bounds = self.schema_bounds();
            let Err(error) = self.wait_for_index(&made.index, &bounds).await else { continue };
            if self.entries_of(&made.index).is_err() {
                // Somebody has dropped it meanwhile.
                continue;
            }
            self.drop_made(&made).await;
            return Err(match error.sqlstate {
                "55000" => SqlError::new("23505", format!("could not create unique index \"{}\"", made.index.key))
                    .with_detail(error.message)
                    .of_table(&made.index.table)
                    .of_constraint(made.index.key),
                _ => error,
            });
        }
        Ok(())
    }

    /// Drops what a statement has made and nobody is told of. Whoever has cancelled the statement has not cancelled this: an
    /// index that stays would be asked by every insert.
    async fn drop_made(&mut self, made: &Made) {
        let cancelled = std::mem::take(&mut self.cancel);
        let dropped = async {
            let prepared = self.prepare_now(&made.drop, &[]).await?;
            Box::pin(self.execute_now(&prepared, Vec::new())).await
        };
        if let Err(error) = dropped.await {
            tracing::warn!(index = %made.index.key, %error, "a unique index that could not be made is still there");
            let message = format!("index \"{}\" is still there: drop it", made.index.key);
            self.notices.push(("WARNING", SqlError::new("01000", message)));
        }
        self.cancel = cancelled;
    }

    /// In a transaction that goes on, nobody could be told that rows which are there have a key in common: that is known when
    /// the index has been built, after the commit. So a unique global index is made there over a table without rows only.
    /// The transaction is alone; above `read committed` it may have a snapshot from before, and then only what it has made
    /// itself is known to have none.
    pub(super) async fn check_unique_within(&mut self, changes: &[SchemaChange], schema: &Schema) -> Result<()> {
        for change in changes {
            let SchemaChange::CreateKey { table, key } = change else { continue };
            if !key.unique || key.global.is_none() || !schema.tables.contains_key(table) {
                continue;
            }
            let may_be_old =
                self.modes().isolation != Isolation::ReadCommitted && self.database.schema().tables.contains_key(table);
            if may_be_old || self.has_rows(table).await? {
                let message = format!("unique global index \"{}\" cannot be made inside a transaction block", key.name);
                return Err(SqlError::new("25001", message)
                    .with_detail("Whether the rows that are there are unique is known when it has been built.")
                    .with_hint("make it in a statement of its own, or while its table has no rows")
                    .of_table(table));
            }
        }
        Ok(())
    }

    async fn has_rows(&mut self, table: &str) -> Result<bool> {
        let (_, rows) = self.query(&format!("SELECT 1 FROM {} LIMIT 1", qualified(table))).await?;
        Ok(!rows.is_empty())
    }

    /// Until an index can be asked, or the statement's time is up.
    async fn wait_for_index(&self, index: &IndexName, bounds: &Bounds) -> Result<()> {
        loop {
            let entries = self.entries_of(index)?;
            let infos = self.database.global_indexes().await?;
            let info = infos.into_iter().find(|info| info.entries == entries);
            match info {
                Some(info) if info.is_used => return Ok(()),
                Some(IndexInfo { state: State::Failed, error, .. }) => {
                    let error = error.unwrap_or_else(|| "its build has failed".into());
                    return Err(SqlError::new("55000", format!("index \"{}\" cannot be used: {error}", index.key)));
                }
                _ => bounds.wait(&*self.database.env, self.database.env.sleep(POLL)).await?,
            }
        }
    }
}

/// A unique global index that a statement has made, and the statement that drops it.
struct Made {
    index: IndexName,
    drop: String,
}

fn unique_keys(changes: &[SchemaChange]) -> Vec<Made> {
    let made = |table: &str, key: &Key| {
        let (namespace, _) = relation_parts(table);
        let drop = match key.constraint {
            true => format!("ALTER TABLE {} DROP CONSTRAINT {}", qualified(table), quoted(&key.name)),
            false => format!("DROP INDEX {}", qualified(&relation_name(namespace, &key.name))),
        };
        Made { index: IndexName { table: table.into(), key: key.name.clone() }, drop }
    };
    let of = |change: &SchemaChange| match change {
        SchemaChange::CreateTable(table) => {
            table.global_keys().filter(|key| key.unique).map(|key| made(&table.name, key)).collect()
        }
        SchemaChange::CreateKey { table, key } if key.unique && key.global.is_some() => vec![made(table, key)],
        _ => Vec::new(),
    };
    changes.iter().flat_map(of).collect()
}

fn number(n: u64) -> Value {
    Value::Int(i64::try_from(n).unwrap_or(i64::MAX))
}

fn text(text: Option<&String>) -> Value {
    text.map_or(Value::Null, Value::text)
}

fn row(info: &IndexInfo) -> Vec<Value> {
    vec![
        Value::text(&info.name),
        Value::text(&info.table),
        Value::Bool(info.unique),
        Value::text(info.state.name()),
        Value::Bool(info.is_used),
        number(info.lag),
        number(info.lag_ms),
        number(info.pending as u64),
        number(info.shards.0 as u64),
        number(info.shards.1 as u64),
        info.rows_built.map_or(Value::Null, number),
        text(info.waits.as_ref()),
        text(info.error.as_ref()),
        info.rows_total.map_or(Value::Null, number),
        info.verified_at.map_or(Value::Null, time),
        info.differences.map_or(Value::Null, number),
        number(info.lookups),
        info.entries_then.map_or(Value::Null, number),
        Value::Text(info.applied.iter().map(|(shard, seq)| format!("{shard}:{seq}")).collect::<Vec<_>>().join(", ")),
    ]
}

fn verified(found: &Verified) -> Vec<Value> {
    [found.entries, found.missing, found.superfluous, found.repaired].map(number).into()
}
