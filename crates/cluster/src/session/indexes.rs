//! Statements about global indexes.

use super::moves::time;
use super::plans::{number_field, text_field};
use super::{Answer, Result, Rows, Session};
use crate::indexes::{IndexInfo, State, Verified};
use isles_kernel::error::SqlError;
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
            fields.extend(["differences", "lookups"].map(number_field));
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
                self.wait_for_index(index).await?;
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

    /// Until an index can be asked, or the statement's time is up.
    async fn wait_for_index(&self, index: &IndexName) -> Result<()> {
        let bounds = self.bounds();
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

fn number(n: u64) -> Value {
    Value::Int(i64::try_from(n).unwrap_or(i64::MAX))
}

fn text(text: Option<&String>) -> Value {
    text.map_or(Value::Null, |text| Value::text(text))
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
    ]
}

fn verified(found: &Verified) -> Vec<Value> {
    [found.entries, found.missing, found.superfluous, found.repaired].map(number).into()
}
