//! `ON CONFLICT` on a table that has unique global indexes.
//!
//! No shard can tell whether a row conflicts with one of another shard, nor whether what `DO UPDATE` sets is taken there.
//! So the router looks for the row that is in the way, updates it by its primary key, or inserts the new one.

use super::query::Planner;
use super::unique::unique_global_keys;
use super::walk::{Rewriter, conjunction, rewrite};
use super::write::{equals, primary_key};
use super::{QueryPlan, Upsert};
use crate::bind::BoundKey;
use crate::tree::{Conflict, ConflictAction, Expr, ExprKind, RelId, RelationRef, Returning, Update};
use isles_kernel::error::SqlError;
use isles_kernel::schema::{Key, Table};

/// Whether the router decides what conflicts.
pub(super) fn is_routers(table: &Table) -> bool {
    unique_global_keys(table).next().is_some()
}

impl Planner {
    /// Parameters from `first` on are the primary key of a row that is in the way.
    pub(super) fn upsert(
        &mut self,
        target: &RelationRef,
        table: &Table,
        conflict: Conflict,
        returning: Option<Returning>,
        first: usize,
    ) -> Result<Upsert, SqlError> {
        let mut conflicts: Vec<QueryPlan> = Vec::new();
        for key in arbiters(table, &conflict) {
            conflicts.push(self.rows_of_key(target, table, &BoundKey::of(table, &key)?)?);
        }
        let update = match conflict.action {
            ConflictAction::Nothing => None,
            ConflictAction::Update { excluded, assignments, filter } => {
                let mut update = Update {
                    ctes: Vec::new(),
                    target: target.clone(),
                    assignments,
                    from: Vec::new(),
                    filter,
                    returning,
                };
                Proposed(excluded).update(&mut update);
                update.filter = conjunction(has_key(target, table, first)?.into_iter().chain(update.filter).collect());
                Some(self.update(update)?)
            }
        };
        Ok(Upsert { conflicts, update })
    }
}

/// The keys by which rows may be in the way: the one that is named, or all.
fn arbiters(table: &Table, conflict: &Conflict) -> Vec<Key> {
    let columns: Vec<&str> = table.primary_key.iter().map(String::as_str).collect();
    let primary = (!table.hidden_key).then(|| Key::unique(&table.primary_key_name(), &columns));
    let all = primary.into_iter().chain(table.keys.iter().filter(|key| key.unique).cloned());
    let Some(named) = &conflict.target else { return all.collect() };
    let same = |key: &Key| {
        key.columns.len() == named.len()
            && named.iter().all(|name| key.columns.contains(name))
            && key.predicate.is_some() == conflict.target_filter.is_some()
    };
    all.filter(same).take(1).collect()
}

/// The row has the primary key of these parameters.
fn has_key(target: &RelationRef, table: &Table, first: usize) -> Result<Vec<Expr>, SqlError> {
    let keys = primary_key(target, table).into_iter().enumerate();
    keys.map(|(at, key)| equals(key.clone(), Expr::new(ExprKind::Param(first + at), key.ty))).collect()
}

/// `excluded` is the row that the parameters are.
struct Proposed(RelId);

impl Proposed {
    fn update(&mut self, update: &mut Update) {
        update.assignments.iter_mut().for_each(|assignment| self.expr(&mut assignment.value));
        update.filter.iter_mut().for_each(|filter| self.expr(filter));
    }
}

impl Rewriter for Proposed {
    fn expr(&mut self, expr: &mut Expr) {
        match expr.kind {
            ExprKind::Column { rel, column } if rel == self.0 => expr.kind = ExprKind::Param(column),
            _ => rewrite::expr(self, expr),
        }
    }
}
