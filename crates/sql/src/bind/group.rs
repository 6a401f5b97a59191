//! What grouping allows: beside aggregates, only what is the same for all rows of a group.

use super::walk::{self, Go};
use super::{Binder, Result};
use crate::tree::{Expr, ExprKind, GroupBy, RelId, RelationSource, Select};
use isles_kernel::error::SqlError;

/// PostgreSQL's limits.
pub(super) const MAX_SETS: usize = 4096;
pub(super) const MAX_CUBE: usize = 12;

pub(super) fn keys(group_by: &GroupBy) -> &[Expr] {
    match group_by {
        GroupBy::None => &[],
        GroupBy::Keys(keys) | GroupBy::Sets { keys, .. } => keys,
    }
}

/// Each of these with each of those.
pub(super) fn product(these: &[Vec<usize>], those: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let both = |a: &Vec<usize>, b: &Vec<usize>| {
        let mut set = a.clone();
        set.extend(b.iter().copied().filter(|key| !a.contains(key)));
        set
    };
    these.iter().flat_map(|a| those.iter().map(move |b| both(a, b))).collect()
}

/// `ROLLUP (a, b)`: (a, b), (a), ().
pub(super) fn rollup(parts: &[Vec<usize>]) -> Vec<Vec<usize>> {
    (0..=parts.len()).rev().map(|count| union(parts[..count].iter())).collect()
}

/// `CUBE (a, b)`: (a, b), (a), (b), ().
pub(super) fn cube(parts: &[Vec<usize>]) -> Vec<Vec<usize>> {
    let count = parts.len();
    let chosen = |mask: usize| (0..count).filter(move |at| mask & (1 << (count - 1 - at)) != 0);
    (0..1usize << count).rev().map(|mask| union(chosen(mask).map(|at| &parts[at]))).collect()
}

fn union<'a>(parts: impl Iterator<Item = &'a Vec<usize>>) -> Vec<usize> {
    let mut set: Vec<usize> = Vec::new();
    for key in parts.flatten() {
        if !set.contains(key) {
            set.push(*key);
        }
    }
    set
}

pub(super) fn contains_aggregate(expr: &Expr) -> bool {
    let mut found = false;
    walk::each(expr, &mut |expr| {
        found |= matches!(expr.kind, ExprKind::Aggregate(_));
        if matches!(expr.kind, ExprKind::Subquery(_)) { Go::Past } else { Go::Deeper }
    });
    found
}

impl Binder<'_> {
    /// Every column outside of aggregates must be a key, or follow from one.
    pub(super) fn check_groups(&mut self, select: &Select) -> Result<()> {
        if !select.is_grouped() {
            return Ok(());
        }
        let keys = keys(&select.group_by);
        let mut offender = None;
        for expr in select.targets.iter().chain(&select.having) {
            self.check_grouped(expr, keys, &mut offender);
        }
        match offender {
            None => Ok(()),
            Some((rel, column, in_subquery)) => Err(self.ungrouped(rel, column, in_subquery)),
        }
    }

    fn check_grouped(&self, expr: &Expr, keys: &[Expr], offender: &mut Option<(RelId, usize, bool)>) {
        let local = self.scopes.last().map(|scope| scope.rels.as_slice()).unwrap_or_default();
        let mut check = |expr: &Expr, in_subquery: bool| -> Go {
            if keys.contains(expr) || matches!(expr.kind, ExprKind::Aggregate(_)) {
                return Go::Past;
            }
            if let ExprKind::Column { rel, column } = expr.kind
                && local.contains(&rel)
                && !self.follows_from(rel, keys)
            {
                offender.get_or_insert((rel, column, in_subquery));
            }
            Go::Deeper
        };
        walk::each(expr, &mut |expr| match &expr.kind {
            ExprKind::Subquery(subquery) if !keys.contains(expr) => {
                walk::query(&subquery.query, &mut |inner| check(inner, true));
                walk::left_of(subquery, &mut |inner| check(inner, false));
                Go::Past
            }
            _ => check(expr, false),
        });
    }

    /// Where a primary key lacks the shard key, shards know a row by both: what follows from the one key for us follows
    /// for them from the other.
    pub(super) fn widen_groups(&self, group_by: &mut GroupBy) {
        let GroupBy::Keys(keys) = group_by else { return };
        let tables = self.scopes.last().map(|scope| scope.tables.as_slice()).unwrap_or_default();
        for (rel, relation) in tables {
            let RelationSource::User(table) = &relation.source else { continue };
            let Some(primary) = table.primary_index() else { continue };
            let key_of = |name: &String| {
                let column = table.position(name)?;
                Some(Expr::new(ExprKind::Column { rel: *rel, column }, relation.columns.get(column)?.ty))
            };
            let declared = primary.columns.iter().all(|name| key_of(name).is_some_and(|key| keys.contains(&key)));
            if declared {
                let whole: Vec<Expr> = table.primary_key.iter().filter_map(key_of).collect();
                keys.extend(whole.into_iter().filter(|key| !keys.contains(key)).collect::<Vec<_>>());
            }
        }
    }

    /// All columns of a table follow from its primary key.
    fn follows_from(&self, rel: RelId, keys: &[Expr]) -> bool {
        let tables = self.scopes.last().map(|scope| scope.tables.as_slice()).unwrap_or_default();
        let Some((_, relation)) = tables.iter().find(|(known, _)| *known == rel) else { return false };
        let RelationSource::User(table) = &relation.source else { return false };
        let is_key = |position: &usize| {
            keys.iter()
                .any(|key| matches!(key.kind, ExprKind::Column { rel: r, column } if r == rel && column == *position))
        };
        let positions = table.key_positions();
        !positions.is_empty() && positions.iter().all(is_key)
    }

    fn ungrouped(&self, rel: RelId, column: usize, in_subquery: bool) -> SqlError {
        let shown = self.shown_column(rel, column);
        let message = match in_subquery {
            true => format!("subquery uses ungrouped column \"{shown}\" from outer query"),
            false => {
                format!("column \"{shown}\" must appear in the GROUP BY clause or be used in an aggregate function")
            }
        };
        SqlError::new("42803", message)
    }

    /// `table.column`, as the statement names them.
    fn shown_column(&self, rel: RelId, column: usize) -> String {
        let wanted = ExprKind::Column { rel, column };
        let items = self.scopes.iter().rev().flat_map(|scope| &scope.items).filter(|item| item.name.is_some());
        for item in items {
            if let Some(found) = item.columns.iter().find(|c| c.expr.kind == wanted) {
                return format!("{}.{}", item.name.as_deref().unwrap_or_default(), found.name);
            }
        }
        "?column?".to_string()
    }
}
