//! INSERT, UPDATE, DELETE. The tenant's key column is generated; only `_shard` is written.

use super::super::{quoted_list, table};
use super::{Names, Printer, Result, columns, lost, quoted, reading, unsupported};
use crate::plan::ParamSource;
use crate::tree::{
    Assignment, Conflict, ConflictAction, Delete, Expr, Insert, InsertColumn, InsertSource, Query, RelationRef,
    Returning, Update,
};
use crate::types::{INT4, TEXT, Type};
use isles_kernel::schema::{BUCKET_COLUMN, TENANT_COLUMN, TENANT_KEY_COLUMN, Table, TableKind};

impl Printer {
    pub(super) fn insert(&mut self, insert: &Insert) -> Result<String> {
        let with = self.with(&insert.ctes)?;
        let target = self.relation(&insert.target)?;
        let table = table(&insert.target)?.clone();
        let hidden = self.hidden_value(&table);
        let names = hidden.iter().map(|(name, _)| name.to_string());
        let names: Vec<String> = names.chain(table.columns.iter().map(|column| column.name.clone())).collect();
        let hidden = hidden.map(|(_, value)| value);
        let rows = match &insert.source {
            InsertSource::Values(rows) => {
                let rows = rows.iter().map(|row| self.inserted_row(insert, row, hidden.as_ref()));
                format!("VALUES {}", rows.collect::<Result<Vec<_>>>()?.join(", "))
            }
            InsertSource::Defaults => format!("VALUES {}", self.inserted_row(insert, &[], hidden.as_ref())?),
            InsertSource::Query(query) if hidden.is_none() => self.inserted_query(insert, query)?,
            InsertSource::Query(_) => return Err(unsupported("INSERT of a query into a sharded table")),
        };
        let conflict = self.conflict(insert, &table)?;
        let returning = self.returning(insert.returning.as_ref())?;
        Ok(format!("{with}INSERT INTO {target} ({}) {rows}{conflict}{returning}", quoted_list(names)))
    }

    fn hidden_value(&mut self, table: &Table) -> Option<(&'static str, String)> {
        let at = table.columns.len();
        let (name, ty, text) = match table.kind {
            TableKind::Hash { .. } => (BUCKET_COLUMN, INT4, "integer"),
            TableKind::Tenant => (TENANT_COLUMN, TEXT, "text"),
            TableKind::Reference | TableKind::Global => return None,
        };
        if table.kind == TableKind::Tenant && self.params.are_for_people() {
            return None;
        }
        let place = self.params.place(ParamSource::Param(at, Type::of(ty)));
        Some((name, format!("{place}::{text}")))
    }

    fn inserted_row(&mut self, insert: &Insert, row: &[Option<Expr>], hidden: Option<&String>) -> Result<String> {
        let mut parts: Vec<String> = hidden.into_iter().cloned().collect();
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

    fn inserted_query(&mut self, insert: &Insert, query: &Query) -> Result<String> {
        let width = query.columns.len();
        let rows = self.query(query, width)?;
        let mut parts = Vec::new();
        for column in &insert.columns {
            parts.push(match column {
                InsertColumn::Source { at, cast: None } => format!("c{at}"),
                InsertColumn::Source { .. } => return Err(unsupported("a conversion of an inserted query")),
                InsertColumn::Default(value) => self.expr(value)?,
            });
        }
        Ok(format!("SELECT {} FROM ({rows}) AS s({})", parts.join(", "), columns(width)))
    }

    fn conflict(&mut self, insert: &Insert, table: &Table) -> Result<String> {
        let Some(Conflict { target, target_filter, action, .. }) = &insert.conflict else { return Ok(String::new()) };
        let is_led = matches!(table.kind, TableKind::Tenant) && !self.params.are_for_people();
        let lead = is_led.then_some(TENANT_KEY_COLUMN);
        let mut arbiter = target.as_ref().map_or(String::new(), |columns| {
            format!(" ({})", quoted_list(lead.into_iter().chain(columns.iter().map(String::as_str))))
        });
        let relation = insert.target.relation.clone();
        if let Some(filter) = target_filter {
            let named = self.names.insert(insert.target.rel, Names::Bare(relation.clone()));
            let filter = self.expr(filter);
            self.names.extend(named.map(|named| (insert.target.rel, named)));
            arbiter.push_str(&format!(" WHERE {}", filter?));
        }
        let ConflictAction::Update { excluded, assignments, filter } = action else {
            return Ok(format!(" ON CONFLICT{arbiter} DO NOTHING"));
        };
        self.names.insert(*excluded, Names::Table { alias: "excluded".into(), relation });
        let set = self.assignments(&insert.target, assignments)?;
        let filter = self.filter(filter.as_ref())?;
        Ok(format!(" ON CONFLICT{arbiter} DO UPDATE SET {set}{filter}"))
    }

    fn assignments(&mut self, target: &RelationRef, assignments: &[Assignment]) -> Result<String> {
        let mut parts = Vec::new();
        for assignment in assignments {
            let column = target.relation.columns.get(assignment.column).ok_or_else(|| lost(target.rel))?;
            parts.push(format!("{} = {}", quoted(&column.name), self.expr(&assignment.value)?));
        }
        Ok(parts.join(", "))
    }

    pub(super) fn update(&mut self, update: &Update) -> Result<String> {
        table(&update.target)?;
        let with = self.with(&update.ctes)?;
        let target = self.relation(&update.target)?;
        let from = self.sources(&update.from)?;
        let set = self.assignments(&update.target, &update.assignments)?;
        let filter = self.filter(update.filter.as_ref())?;
        let returning = self.returning(update.returning.as_ref())?;
        Ok(format!("{with}UPDATE {target} SET {set}{from}{filter}{returning}"))
    }

    pub(super) fn delete(&mut self, delete: &Delete) -> Result<String> {
        table(&delete.target)?;
        let with = self.with(&delete.ctes)?;
        let target = self.relation(&delete.target)?;
        let using = self.sources(&delete.using)?.replacen(" FROM ", " USING ", 1);
        let filter = self.filter(delete.filter.as_ref())?;
        let returning = self.returning(delete.returning.as_ref())?;
        Ok(format!("{with}DELETE FROM {target}{using}{filter}{returning}"))
    }

    fn returning(&mut self, returning: Option<&Returning>) -> Result<String> {
        let Some(returning) = returning else { return Ok(String::new()) };
        let mut parts = Vec::new();
        for target in &returning.targets {
            let cast = reading(target.ty)?;
            let text = self.expr(target)?;
            parts.push(if cast.is_empty() { text } else { format!("({text}){cast}") });
        }
        Ok(format!(" RETURNING {}", parts.join(", ")))
    }
}
