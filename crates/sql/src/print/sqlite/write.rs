//! INSERT, UPDATE, DELETE.
//!
//! Hidden columns are the printer's business: an INSERT takes their value from the parameter after the last column,
//! and a conflict on a tenant table is decided by a key that the tenant leads.

use super::super::{quoted, quoted_list, table};
use super::{Names, Printer, Result, alias, unsupported};
use crate::plan::ParamSource;
use crate::tree::{
    Assignment, Conflict, ConflictAction, Delete, Expr, ExprKind, Insert, InsertColumn, InsertSource, RelationRef,
    Returning, Update,
};
use crate::types::{INT4, TEXT, Type};
use isles_kernel::schema::{BUCKET_COLUMN, TENANT_COLUMN, TENANT_KEY_COLUMN, Table, TableKind};

impl Printer {
    pub(super) fn insert(&mut self, insert: &Insert) -> Result<String> {
        let with = self.with(&insert.ctes)?;
        let target = self.target(&insert.target)?;
        let table = table(&insert.target)?.clone();
        let hidden = self.hidden_values(&table);
        let names = hidden.iter().map(|(name, _)| name.to_string());
        let columns: Vec<String> = names.chain(table.columns.iter().map(|column| column.name.clone())).collect();
        let rows = match &insert.source {
            InsertSource::Values(rows) => {
                let rows =
                    rows.iter().map(|row| self.inserted_row(insert, row, &hidden)).collect::<Result<Vec<_>>>()?;
                format!("VALUES {}", rows.join(", "))
            }
            InsertSource::Defaults => format!("VALUES {}", self.inserted_row(insert, &[], &hidden)?),
            InsertSource::Query(query) if hidden.is_empty() => self.inserted_query(insert, query)?,
            InsertSource::Query(_) => return Err(unsupported("INSERT of a query into a sharded table")),
        };
        let conflict = self.conflict(insert, &table)?;
        let returning = self.returning(&insert.target, insert.returning.as_ref())?;
        Ok(format!("{with}INSERT INTO {target} ({}) {rows}{conflict}{returning}", quoted_list(columns)))
    }

    /// The hidden columns and what they are given.
    fn hidden_values(&mut self, table: &Table) -> Vec<(&'static str, String)> {
        let at = table.columns.len();
        match table.kind {
            TableKind::Hash { .. } => {
                vec![(BUCKET_COLUMN, self.params.place(ParamSource::Param(at, Type::of(INT4))))]
            }
            TableKind::Tenant if self.params.are_for_people() => vec![],
            TableKind::Tenant => {
                let tenant = self.params.place(ParamSource::Param(at, Type::of(TEXT)));
                vec![(TENANT_KEY_COLUMN, format!("coalesce({tenant}, '')")), (TENANT_COLUMN, tenant)]
            }
            TableKind::Reference | TableKind::Global => vec![],
        }
    }

    fn inserted_row(&mut self, insert: &Insert, row: &[Option<Expr>], hidden: &[(&str, String)]) -> Result<String> {
        let mut parts: Vec<String> = hidden.iter().map(|(_, value)| value.clone()).collect();
        for column in &insert.columns {
            let value = match column {
                InsertColumn::Source { at, .. } => match row.get(*at) {
                    Some(Some(value)) => value,
                    _ => return Err(unsupported("the word DEFAULT among values")),
                },
                InsertColumn::Default(value) => value,
            };
            parts.push(self.expr(value)?);
        }
        Ok(format!("({})", parts.join(", ")))
    }

    fn inserted_query(&mut self, insert: &Insert, query: &crate::tree::Query) -> Result<String> {
        let rows = self.query(query, query.columns.len())?;
        let mut parts = Vec::new();
        for column in &insert.columns {
            parts.push(match column {
                InsertColumn::Source { at, cast: None } => format!("c{at}"),
                InsertColumn::Source { .. } => return Err(unsupported("a conversion of an inserted query")),
                InsertColumn::Default(value) => self.expr(value)?,
            });
        }
        // Without a WHERE clause SQLite takes ON CONFLICT for a join's ON.
        Ok(format!("SELECT {} FROM ({rows}) WHERE 1", parts.join(", ")))
    }

    fn conflict(&mut self, insert: &Insert, table: &Table) -> Result<String> {
        let Some(Conflict { target, target_filter, action, .. }) = &insert.conflict else { return Ok(String::new()) };
        if target_filter.is_some() {
            return Err(unsupported("ON CONFLICT with a condition on its target"));
        }
        let is_led = matches!(table.kind, TableKind::Tenant) && !self.params.are_for_people();
        let lead = is_led.then_some(TENANT_KEY_COLUMN);
        let target = target.as_ref().map_or(String::new(), |columns| {
            format!(" ({})", quoted_list(lead.into_iter().chain(columns.iter().map(String::as_str))))
        });
        let ConflictAction::Update { excluded, assignments, filter } = action else {
            return Ok(format!(" ON CONFLICT{target} DO NOTHING"));
        };
        let relation = insert.target.relation.clone();
        self.names.insert(*excluded, Names::Table { alias: "excluded".into(), relation });
        let set = self.assignments(&insert.target, assignments)?;
        let filter = self.filter(&[], filter.as_ref())?;
        Ok(format!(" ON CONFLICT{target} DO UPDATE SET {set}{filter}"))
    }

    fn assignments(&mut self, target: &RelationRef, assignments: &[Assignment]) -> Result<String> {
        let mut parts = Vec::new();
        for assignment in assignments {
            let column = target.relation.columns.get(assignment.column);
            let name = column.ok_or_else(|| super::lost(target.rel))?.name.as_str();
            parts.push(format!("{} = {}", quoted(name), self.expr(&assignment.value)?));
        }
        Ok(parts.join(", "))
    }

    pub(super) fn update(&mut self, update: &Update) -> Result<String> {
        table(&update.target)?;
        let with = self.with(&update.ctes)?;
        let target = self.target(&update.target)?;
        let from = self.sources(&update.from)?;
        let set = self.assignments(&update.target, &update.assignments)?;
        let filter = self.filter(&from.conditions, update.filter.as_ref())?;
        let returning = self.returning(&update.target, update.returning.as_ref())?;
        Ok(format!("{with}UPDATE {target} SET {set}{}{filter}{returning}", from.text))
    }

    pub(super) fn delete(&mut self, delete: &Delete) -> Result<String> {
        let table = table(&delete.target)?.clone();
        let with = self.with(&delete.ctes)?;
        let target = self.target(&delete.target)?;
        let filter = if delete.using.is_empty() {
            self.filter(&[], delete.filter.as_ref())?
        } else {
            self.delete_keys(delete, &table)?
        };
        let returning = self.returning(&delete.target, delete.returning.as_ref())?;
        Ok(format!("{with}DELETE FROM {target}{filter}{returning}"))
    }

    /// SQLite deletes from one table: the rows to delete are found by their key.
    fn delete_keys(&mut self, delete: &Delete, table: &Table) -> Result<String> {
        let read = self.relation(&delete.target)?;
        let alias = alias(delete.target.rel);
        let mut names = table.physical_key();
        names.retain(|name| name != TENANT_KEY_COLUMN || !self.params.are_for_people());
        let key = names.iter().map(|name| format!("{alias}.{}", quoted(name))).collect::<Vec<_>>();
        let key = key.join(", ");
        let using = self.sources(&delete.using)?;
        let filter = self.filter(&using.conditions, delete.filter.as_ref())?;
        let others = using.text.strip_prefix(" FROM ").map_or(String::new(), |others| format!(", {others}"));
        Ok(format!(" WHERE ({key}) IN (SELECT {key} FROM {read}{others}{filter})"))
    }

    /// SQLite returns columns of the changed table alone, and does not know its alias there.
    fn returning(&mut self, target: &RelationRef, returning: Option<&Returning>) -> Result<String> {
        let Some(returning) = returning else { return Ok(String::new()) };
        let mut foreign = false;
        for expr in &returning.targets {
            super::walk::expr(expr, &mut |part| {
                foreign |= match &part.kind {
                    ExprKind::Column { rel, .. } | ExprKind::Hidden { rel, .. } => *rel != target.rel,
                    ExprKind::Subquery(_) => true,
                    _ => false,
                };
            });
        }
        if foreign {
            return Err(unsupported("RETURNING of anything but the changed row"));
        }
        let named = self.names.insert(target.rel, Names::Bare(target.relation.clone()));
        let parts = returning.targets.iter().map(|expr| self.expr(expr)).collect::<Result<Vec<_>>>();
        if let Some(named) = named {
            self.names.insert(target.rel, named);
        }
        Ok(format!(" RETURNING {}", parts?.join(", ")))
    }
}
