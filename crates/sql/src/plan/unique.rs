//! What a row must not meet: rows on any shard that have its key.
//!
//! A shard keeps its own keys unique. A unique global index has rows of one key on different shards, none of which can
//! see the other; so whoever adds a row looks for such rows first.

use super::build::{query_of, select_of};
use super::query::Planner;
use super::walk::{conjunction, split};
use super::write::{equals, primary_key};
use super::{QueryPlan, UniqueCheck};
use crate::bind::BoundKey;
use crate::tree::{Assignment, Body, ExprKind, Field, From, Query, RelationRef};
use isles_kernel::error::SqlError;
use isles_kernel::schema::{Key, Table};

/// The keys that no shard keeps unique by itself.
pub(super) fn unique_global_keys(table: &Table) -> impl Iterator<Item = &Key> {
    table.global_keys().filter(|key| key.unique)
}

/// Whether rows get other keys by these assignments, or come into an index that had left them out.
pub(super) fn changes_unique_key(table: &Table, assignments: &[Assignment]) -> bool {
    let name = |assignment: &Assignment| table.columns.get(assignment.column).map(|column| column.name.as_str());
    let mut assigned = assignments.iter().filter_map(name);
    assigned.any(|column| unique_global_keys(table).any(|key| key.uses(column)))
}

impl Planner {
    /// A check for each unique global index.
    pub(super) fn unique_checks(&mut self, target: &RelationRef, table: &Table) -> Result<Vec<UniqueCheck>, SqlError> {
        let mut checks = Vec::new();
        for key in unique_global_keys(table) {
            let rows = self.rows_of_key(target, table, &BoundKey::of(table, key)?)?;
            let entries = key.global.clone().unwrap_or_default();
            checks.push(UniqueCheck { key: key.name.clone(), entries, rows });
        }
        Ok(checks)
    }

    pub(super) fn rows_of_key(
        &mut self,
        target: &RelationRef,
        table: &Table,
        key: &BoundKey,
    ) -> Result<QueryPlan, SqlError> {
        let query = self.same_key(target, table, key)?;
        self.query(query)
    }

    /// Finds the primary keys of rows that have the key of a row whose columns are the parameters. A row that a partial
    /// index leaves out has no key.
    fn same_key(&mut self, target: &RelationRef, table: &Table, key: &BoundKey) -> Result<Query, SqlError> {
        let of = RelationRef { rel: self.fresh_rel(), relation: target.relation.clone() };
        let theirs = key.over(|column| ExprKind::Column { rel: of.rel, column });
        let own = key.over(ExprKind::Param);
        let pairs = theirs.parts.into_iter().zip(own.parts);
        let mut conditions = pairs.map(|(theirs, own)| equals(theirs, own)).collect::<Result<Vec<_>, _>>()?;
        conditions.extend(split(theirs.predicate).into_iter().chain(split(own.predicate)));
        let targets = primary_key(&of, table);
        let columns = table.primary_key.iter().zip(&targets);
        let columns = columns.map(|(name, target)| Field { name: name.clone(), ty: target.ty }).collect();
        let select = select_of(targets, vec![From::Relation(of)], conjunction(conditions));
        Ok(query_of(Body::Select(Box::new(select)), columns))
    }
}
