//! `ON CONFLICT` on a table with unique global indexes.
//!
//! A shard sees conflicts with its own rows alone. So the router looks for rows in the way on all of them, and what
//! `DO UPDATE` says becomes an UPDATE of the row that was found.

use super::Upsert;
use super::query::Planner;
use super::walk::{Rewriter, conjunction, rewrite, split};
use super::write::{equals, primary_key};
use crate::bind::BoundKey;
use crate::tree::{Conflict, ConflictAction, Expr, ExprKind, Insert, RelId, Update};
use isles_kernel::error::SqlError;
use isles_kernel::schema::{Key, Table};

impl Planner {
    /// `first` is the number of the first parameter after those of a row's insertion.
    pub(super) fn upsert(
        &mut self,
        insert: &Insert,
        conflict: Conflict,
        table: &Table,
        first: usize,
    ) -> Result<Upsert, SqlError> {
        let mut conflicts = Vec::new();
        for key in arbiters(table, &conflict)? {
            conflicts.push(self.rows_of_key(&insert.target, table, &key)?);
        }
        let update = match conflict.action {
            ConflictAction::Nothing => None,
            action @ ConflictAction::Update { .. } => Some(self.update(update_of(insert, action, table, first)?)?),
        };
        Ok(Upsert { conflicts, update })
    }
}

/// The keys that decide: the one that is named, or all that there are.
fn arbiters(table: &Table, conflict: &Conflict) -> Result<Vec<BoundKey>, SqlError> {
    let primary = Key { columns: table.primary_key.clone(), ..Key::default() };
    let named = |key: &&Key| conflict.key.as_ref() == Some(&key.name);
    let keys: Vec<&Key> = match (&conflict.target, &conflict.key) {
        (Some(_), None) => vec![&primary],
        (Some(_), Some(_)) => table.keys.iter().filter(named).collect(),
        // A hidden key is drawn at random; nothing is meant to conflict with it. A global one is among the others.
        (None, _) => {
            let primary = (!table.hidden_key && table.primary_index().is_none()).then_some(&primary);
            primary.into_iter().chain(table.keys.iter().filter(|key| key.unique)).collect()
        }
    };
    keys.into_iter().map(|key| BoundKey::of(table, key)).collect()
}

/// `UPDATE t SET … WHERE <its primary key> AND <the condition> RETURNING …`.
fn update_of(insert: &Insert, action: ConflictAction, table: &Table, first: usize) -> Result<Update, SqlError> {
    let ConflictAction::Update { excluded, mut assignments, filter } = action else {
        return Err(SqlError::new("XX000", "there is nothing to update"));
    };
    let mut conditions = Vec::new();
    for (at, key) in primary_key(&insert.target, table).into_iter().enumerate() {
        let value = Expr::new(ExprKind::Param(first + at), key.ty);
        conditions.push(equals(key, value)?);
    }
    let mut proposed = Proposed(excluded);
    let mut filter = split(filter);
    filter.iter_mut().for_each(|part| proposed.expr(part));
    conditions.append(&mut filter);
    assignments.iter_mut().for_each(|assignment| proposed.expr(&mut assignment.value));
    Ok(Update {
        ctes: Vec::new(),
        target: insert.target.clone(),
        assignments,
        from: Vec::new(),
        filter: conjunction(conditions),
        returning: insert.returning.clone(),
    })
}

/// Puts the new row's parameters where `excluded` was.
struct Proposed(RelId);

impl Rewriter for Proposed {
    fn expr(&mut self, expr: &mut Expr) {
        match expr.kind {
            ExprKind::Column { rel, column } if rel == self.0 => expr.kind = ExprKind::Param(column),
            _ => rewrite::expr(self, expr),
        }
    }
}
