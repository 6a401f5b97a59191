//! Plans of INSERT, UPDATE and DELETE.
//!
//!     INSERT           the router computes each row, finds its shard, and inserts it there
//!     UPDATE, DELETE   each shard by itself, where FROM, USING and subqueries are with the rows ([`ModifyPlan`])
//!     the rest         the rows are read first, and then written by key ([`RewritePlan`]): a shard key changes, or the
//!                      key of a unique global index, or rows of other shards have a say, or RETURNING reads a
//!                      relation that is not the target
//!
//! The last is because SQLite's RETURNING sees the changed table alone.

use super::build::{all_columns, column, query_of, select_of};
use super::functions::{has_subquery, is_sequence_alone, is_volatile, is_volatile_statement};
use super::place::{Place, Places, shard_key};
use super::query::{Planner, touches};
use super::unique::{changes_unique_key, unique_global_keys};
use super::walk::{Rewriter, Visitor, conjunction, relations_of, rewrite, walk};
use super::{
    Fragment, InsertPlan, InsertRows, InsertTarget, ModifyPlan, Plan, QueryPlan, RewriteKind, RewritePlan, Target,
};
use crate::builtins;
use crate::scope::predicate_of;
use crate::tree::{
    Assignment, Body, CastHow, Conflict, ConflictAction, Cte, CteBody, Delete, Display, Distinct, Expr, ExprKind,
    Field, From, Insert, InsertColumn, InsertSource, OrderKey, Query, RelId, RelationColumn, RelationRef,
    RelationSource, Returning, Select, Statement, Update,
};
use crate::types::{self, Oid, Type};
use isles_kernel::error::SqlError;
use isles_kernel::schema::{BUCKET_COLUMN, Table, TableKind};
use isles_kernel::value::Value;
use std::sync::Arc;

/// `int4eq`, `array_eq`.
const INT4_EQUALS: Oid = Oid(65);
const ARRAY_EQUALS: Oid = Oid(744);

/// A statement inside of WITH that writes.
#[derive(Default)]
struct Writes(bool);

impl Writes {
    fn ctes(&mut self, ctes: &[Cte]) {
        self.0 |= ctes.iter().any(|cte| matches!(cte.body, CteBody::Write(_)));
    }
}

impl Visitor for Writes {
    fn query(&mut self, query: &Query) {
        self.ctes(&query.ctes);
        walk::query(self, query);
    }
}

pub(super) fn refuse_writes_in_with(statement: &Statement) -> Result<(), SqlError> {
    let mut writes = Writes::default();
    match statement {
        Statement::Query(_) => {}
        Statement::Insert(insert) => writes.ctes(&insert.ctes),
        Statement::Update(update) => writes.ctes(&update.ctes),
        Statement::Delete(delete) => writes.ctes(&delete.ctes),
    }
    walk::statement(&mut writes, statement);
    if writes.0 { Err(super::stage::write_in_with()) } else { Ok(()) }
}

fn table_of(target: &RelationRef) -> Result<Arc<Table>, SqlError> {
    match &target.relation.source {
        RelationSource::User(table) => Ok(table.clone()),
        RelationSource::System | RelationSource::Staged => {
            let message = format!("permission denied: \"{}\" is a system catalog", target.relation.name);
            Err(SqlError::new("42501", message))
        }
    }
}

/// The table with its hidden key, if it has one: whoever writes whole rows must have all of their columns.
fn whole(target: &RelationRef, table: &Table) -> RelationRef {
    let mut relation = (*target.relation).clone();
    for column in table.columns.iter().skip(relation.columns.len()) {
        let ty = match column.sql_type {
            Some(ty) => Type::with(Oid(ty.oid), ty.modifier),
            None => Type::of(types::natural(column.ty)),
        };
        relation.columns.push(RelationColumn { name: column.name.clone(), ty, not_null: !column.nullable });
    }
    RelationRef { rel: target.rel, relation: Arc::new(relation) }
}

fn insert_target(table: &Table) -> InsertTarget {
    match table.kind {
        TableKind::Hash { .. } => InsertTarget::Bucket,
        TableKind::Tenant => InsertTarget::Tenant,
        TableKind::Reference => InsertTarget::Every,
        TableKind::Global => InsertTarget::Home,
    }
}

fn fields_of(target: &RelationRef) -> Vec<Field> {
    target.relation.columns.iter().map(|c| Field { name: c.name.clone(), ty: c.ty }).collect()
}

/// How many parameters of a row's insertion are the row's: its columns, and the hidden one.
fn own_parameters(target: &RelationRef, table: &Table) -> usize {
    target.relation.columns.len() + usize::from(!table.hidden_columns().is_empty())
}

/// Inserts one row of parameters.
fn insert_row(target: &RelationRef, conflict: Option<Conflict>, returning: Option<Returning>) -> Fragment {
    let columns = &target.relation.columns;
    let param = |(at, ty): (usize, Type)| Some(Expr::new(ExprKind::Param(at), ty));
    let fields = returning.as_ref().map_or_else(Vec::new, |returning| returning.columns.clone());
    let statement = Statement::Insert(Insert {
        ctes: Vec::new(),
        target: target.clone(),
        columns: (0..columns.len()).map(|at| InsertColumn::Source { at, cast: None }).collect(),
        source: InsertSource::Values(vec![columns.iter().map(|c| c.ty).enumerate().map(param).collect()]),
        conflict,
        returning,
    });
    Fragment::new(statement, fields)
}

impl Planner {
    pub(super) fn insert(&mut self, mut insert: Insert) -> Result<InsertPlan, SqlError> {
        let table = table_of(&insert.target)?;
        insert.target = whole(&insert.target, &table);
        let conflict_key = check_conflict(&table, insert.conflict.as_ref())?;
        check_row_expressions(&insert, &table)?;
        let returning = insert.returning.as_ref().map(|returning| returning.columns.clone());
        let mut extra = Extra { first: own_parameters(&insert.target, &table), found: Vec::new() };
        extra.renumber(&mut insert);
        let first = extra.first + extra.found.len();
        let upsert = match insert.conflict.take_if(|_| unique_global_keys(&table).next().is_some()) {
            Some(conflict) => Some(Box::new(self.upsert(&insert, conflict, &table, first)?)),
            None => None,
        };
        let row = insert_row(&insert.target, insert.conflict.take(), insert.returning.take());
        let touches = touches(&row.statement);
        let mut defaults = Vec::new();
        let unique = self.unique_checks(&insert.target, &table)?;
        let rows = self.insert_rows(insert, &table, &mut defaults)?;
        Ok(InsertPlan {
            rows,
            row,
            extra: extra.found,
            defaults,
            shard_key: shard_key(&table),
            target: insert_target(&table),
            touches,
            returning,
            conflict_key,
            unique,
            upsert,
            table,
        })
    }

    fn insert_rows(
        &mut self,
        insert: Insert,
        table: &Table,
        defaults: &mut Vec<(usize, Expr)>,
    ) -> Result<InsertRows, SqlError> {
        let fields = fields_of(&insert.target);
        match insert.source {
            InsertSource::Defaults => {
                let row = insert.columns.iter().enumerate().map(|(at, column)| default_of(table, at, column, &fields));
                Ok(InsertRows::Values(vec![row.collect::<Result<_, _>>()?]))
            }
            InsertSource::Values(rows) => {
                let whole = rows.into_iter().map(|row| complete(table, &insert.columns, row, &fields));
                let rows: Vec<Vec<Expr>> = whole.collect::<Result<_, _>>()?;
                if !rows.iter().flatten().any(has_subquery) {
                    return Ok(InsertRows::Values(rows));
                }
                let mut query = query_of(Body::Values(rows), fields);
                query.ctes = insert.ctes;
                Ok(InsertRows::Query(self.query(query)?))
            }
            InsertSource::Query(mut query) => {
                query.ctes.splice(0..0, insert.ctes);
                let mut columns = insert.columns;
                take_sequences(&mut query, &mut columns);
                let rows = self.mapped(*query, &columns, fields, defaults);
                Ok(InsertRows::Query(self.query(rows)?))
            }
        }
    }

    /// The query whose columns are the table's.
    fn mapped(
        &mut self,
        mut query: Query,
        columns: &[InsertColumn],
        fields: Vec<Field>,
        defaults: &mut Vec<(usize, Expr)>,
    ) -> Query {
        let in_order = |(at, column): (usize, &InsertColumn)| match column {
            InsertColumn::Source { at: source, cast: None } => at == *source,
            _ => false,
        };
        if columns.len() == query.columns.len() && columns.iter().enumerate().all(in_order) {
            query.columns = fields;
            return query;
        }
        let rel = self.fresh_rel();
        let mut targets = Vec::new();
        for (at, column) in columns.iter().enumerate() {
            targets.push(mapped_column(rel, at, column, &query, &fields, defaults));
        }
        if let Body::Select(select) = &mut query.body
            && can_substitute(select)
        {
            substitute(rel, select, targets, &mut query.order_by);
            query.columns = fields;
            return query;
        }
        let ctes = std::mem::take(&mut query.ctes);
        let from = From::Subquery { rel, query: Box::new(query), lateral: false };
        let mut outer = query_of(Body::Select(Box::new(select_of(targets, vec![from], None))), fields);
        outer.ctes = ctes;
        outer
    }

    pub(super) fn update(&mut self, update: Update) -> Result<Plan, SqlError> {
        let table = table_of(&update.target)?;
        let key = shard_key(&table);
        let moves = update.assignments.iter().any(|assignment| key.contains(&assignment.column));
        let rows = Affected {
            ctes: update.ctes.clone(),
            target: whole(&update.target, &table),
            assignments: update.assignments.clone(),
            from: update.from.clone(),
            filter: update.filter.clone(),
            returning: update.returning.clone(),
            kind: RewriteKind::Update,
        };
        if moves || changes_unique_key(&table, &update.assignments) {
            return self.rewrite(rows, table);
        }
        self.modify(Statement::Update(update), rows, table)
    }

    pub(super) fn delete(&mut self, delete: Delete) -> Result<Plan, SqlError> {
        let table = table_of(&delete.target)?;
        let rows = Affected {
            ctes: delete.ctes.clone(),
            target: whole(&delete.target, &table),
            assignments: Vec::new(),
            from: delete.using.clone(),
            filter: delete.filter.clone(),
            returning: delete.returning.clone(),
            kind: RewriteKind::Delete,
        };
        self.modify(Statement::Delete(delete), rows, table)
    }

    /// In place if the shards can, and else by reading and writing.
    fn modify(&mut self, statement: Statement, rows: Affected, table: Arc<Table>) -> Result<Plan, SqlError> {
        let read = rows.query(rows.expressions());
        let place = Places::of_query(&read).top(&read);
        let target = match (&table.kind, place) {
            _ if rows.returns_others() => None,
            (TableKind::Hash { .. }, Place::Single(single)) => Some(single.target()),
            (TableKind::Hash { .. }, Place::Spread(spread)) => Some(spread.target()),
            (TableKind::Tenant, Place::Tenant) => Some(Target::Tenant),
            (TableKind::Global, Place::Home) => Some(Target::Home),
            (TableKind::Reference, Place::Reference) => Some(Target::Every),
            _ => None,
        };
        let Some(target) = target else { return self.rewrite(rows, table) };
        let every = table.kind == TableKind::Reference;
        if every && is_volatile_statement(&statement) {
            return Err(volatile_copies(&table));
        }
        let returning = rows.returning.map(|returning| returning.columns);
        let touches = touches(&statement);
        let fragment = Fragment::new(statement, returning.clone().unwrap_or_default());
        Ok(Plan::Modify(ModifyPlan { fragment, target, touches, returning, every }))
    }

    fn rewrite(&mut self, rows: Affected, table: Arc<Table>) -> Result<Plan, SqlError> {
        let mut targets = all_columns(rows.target.rel, &fields_of(&rows.target));
        let mut fields = named("old", &rows.target);
        if rows.kind == RewriteKind::Update {
            targets.extend(rows.new_row());
            fields.extend(named("new", &rows.target));
        }
        if let Some(returning) = &rows.returning {
            targets.extend(rows.returned(returning)?);
            fields.extend(returning.columns.iter().cloned());
        }
        let mut query = rows.query(targets);
        query.columns = fields;
        if let Body::Select(select) = &mut query.body
            && !rows.from.is_empty()
        {
            select.distinct = Distinct::On(primary_key(&rows.target, &table));
        }
        let read = QueryPlan { locks: true, ..self.query(query)? };
        let insert = insert_row(&rows.target, None, None);
        let delete = delete_row(&rows.target, &table)?;
        let (update, unique) = match rows.kind {
            RewriteKind::Update => (update_row(&rows.target, &table)?, self.unique_checks(&rows.target, &table)?),
            RewriteKind::Delete => (None, Vec::new()),
        };
        Ok(Plan::Rewrite(RewritePlan {
            rows: read,
            kind: rows.kind,
            delete,
            touches: touches(&insert.statement),
            insert,
            update,
            shard_key: shard_key(&table),
            target: insert_target(&table),
            returning: rows.returning.map(|returning| returning.columns),
            unique,
            table,
        }))
    }
}

fn volatile_copies(table: &Table) -> SqlError {
    let message = format!("a volatile function in a change of reference table \"{}\" is not supported", table.name);
    SqlError::unsupported(message).with_hint("Every copy would get another value; compute it first, and pass it in.")
}

/// What an UPDATE or DELETE reads.
struct Affected {
    ctes: Vec<Cte>,
    target: RelationRef,
    assignments: Vec<Assignment>,
    from: Vec<From>,
    filter: Option<Expr>,
    returning: Option<Returning>,
    kind: RewriteKind,
}

impl Affected {
    /// The rows that are changed, and `targets` of each.
    fn query(&self, targets: Vec<Expr>) -> Query {
        let columns = targets.iter().map(|target| Field { name: "column".into(), ty: target.ty }).collect();
        let from = std::iter::once(From::Relation(self.target.clone())).chain(self.from.iter().cloned()).collect();
        let select = select_of(targets, from, self.filter.clone());
        let mut query = query_of(Body::Select(Box::new(select)), columns);
        query.ctes = self.ctes.clone();
        query
    }

    fn expressions(&self) -> Vec<Expr> {
        let assigned = self.assignments.iter().map(|assignment| &assignment.value);
        assigned.chain(self.returning.iter().flat_map(|returning| &returning.targets)).cloned().collect()
    }

    /// Whether RETURNING reads anything but the changed row, which SQLite's does not.
    fn returns_others(&self) -> bool {
        let mut targets = self.returning.iter().flat_map(|returning| &returning.targets);
        targets.any(|target| has_subquery(target) || relations_of(target).iter().any(|rel| *rel != self.target.rel))
    }

    fn new_row(&self) -> Vec<Expr> {
        let value = |(at, old): (usize, Expr)| self.assigned(at).cloned().unwrap_or(old);
        all_columns(self.target.rel, &fields_of(&self.target)).into_iter().enumerate().map(value).collect()
    }

    fn assigned(&self, column: usize) -> Option<&Expr> {
        self.assignments.iter().find(|assignment| assignment.column == column).map(|assignment| &assignment.value)
    }

    /// RETURNING sees the row as it is afterwards.
    fn returned(&self, returning: &Returning) -> Result<Vec<Expr>, SqlError> {
        let mut targets = returning.targets.clone();
        let mut after = Afterwards { affected: self, volatile: false };
        targets.iter_mut().for_each(|target| after.expr(target));
        if after.volatile {
            let message = "RETURNING of a column set by a volatile function is not supported when rows move";
            return Err(SqlError::unsupported(message).with_hint("Compute the value first, and pass it in."));
        }
        Ok(targets)
    }
}

struct Afterwards<'a> {
    affected: &'a Affected,
    volatile: bool,
}

impl Rewriter for Afterwards<'_> {
    fn expr(&mut self, expr: &mut Expr) {
        match expr.kind {
            ExprKind::Column { rel, column } if rel == self.affected.target.rel => {
                if let Some(value) = self.affected.assigned(column) {
                    self.volatile |= is_volatile(value);
                    *expr = value.clone();
                }
            }
            _ => rewrite::expr(self, expr),
        }
    }
}

fn named(prefix: &str, target: &RelationRef) -> Vec<Field> {
    let name = |field: Field| Field { name: format!("{prefix}_{}", field.name), ty: field.ty };
    fields_of(target).into_iter().map(name).collect()
}

pub(super) fn primary_key(target: &RelationRef, table: &Table) -> Vec<Expr> {
    let columns = &target.relation.columns;
    let key = |at: usize| columns.get(at).map(|key| column(target.rel, at, key.ty));
    table.key_positions().into_iter().filter_map(key).collect()
}

/// The condition that a row has the primary key, and is of the bucket, of the parameters from `first` on.
fn is_row(target: &RelationRef, table: &Table, first: usize) -> Result<Option<Expr>, SqlError> {
    let mut parts = Vec::new();
    for (at, key) in primary_key(target, table).into_iter().enumerate() {
        let value = Expr::new(ExprKind::Param(first + at), key.ty);
        parts.push(equals(key, value)?);
    }
    if matches!(table.kind, TableKind::Hash { .. }) {
        let bucket = Expr::new(ExprKind::Hidden { rel: target.rel, column: BUCKET_COLUMN }, types::INT4);
        let value = Expr::new(ExprKind::Param(first + table.primary_key.len()), types::INT4);
        let display = Display::Operator("=".into());
        let args = vec![bucket, value];
        parts.push(Expr::new(ExprKind::Call { function: INT4_EQUALS, display, args }, types::BOOL));
    }
    parts.extend(predicate_of(target));
    Ok(conjunction(parts))
}

/// Deletes one row by its key.
fn delete_row(target: &RelationRef, table: &Table) -> Result<Fragment, SqlError> {
    let filter = is_row(target, table, 0)?;
    let delete = Delete { ctes: Vec::new(), target: target.clone(), using: Vec::new(), filter, returning: None };
    Ok(Fragment::new(Statement::Delete(delete), Vec::new()))
}

/// Gives one row, found by its key, its new columns. None where all columns are the key's, and nothing can change.
fn update_row(target: &RelationRef, table: &Table) -> Result<Option<Fragment>, SqlError> {
    let columns = target.relation.columns.iter().enumerate();
    let set = columns.map(|(column, c)| Assignment { column, value: Expr::new(ExprKind::Param(column), c.ty) });
    let key = table.key_positions();
    let assignments: Vec<Assignment> = set.filter(|assignment| !key.contains(&assignment.column)).collect();
    if assignments.is_empty() {
        return Ok(None);
    }
    let update = Update {
        ctes: Vec::new(),
        target: target.clone(),
        assignments,
        from: Vec::new(),
        filter: is_row(target, table, target.relation.columns.len())?,
        returning: None,
    };
    Ok(Some(Fragment::new(Statement::Update(update), Vec::new())))
}

/// `left = right`, of one type.
pub(super) fn equals(left: Expr, right: Expr) -> Result<Expr, SqlError> {
    let ty = left.ty.oid;
    let as_text = |arg: Expr| Expr::new(ExprKind::Cast { arg: Box::new(arg), how: CastHow::Relabel }, types::TEXT);
    if ty == types::VARCHAR {
        return equals(as_text(left), as_text(right));
    }
    let known = builtins::operators_named("=").iter().find(|op| op.left == Some(ty) && op.right == ty);
    let function = match known {
        Some(operator) => operator.function,
        None if builtins::element_of(ty).is_some() => ARRAY_EQUALS,
        None => return Err(SqlError::new("42883", format!("type {} has no equality", ty.0))),
    };
    let display = Display::Operator("=".into());
    Ok(Expr::new(ExprKind::Call { function, display, args: vec![left, right] }, types::BOOL))
}

/// The columns by which ON CONFLICT DO UPDATE finds a row. Refuses what would need to look at other shards, unless the
/// router looks.
fn check_conflict(table: &Table, conflict: Option<&Conflict>) -> Result<Option<Vec<usize>>, SqlError> {
    let Some(conflict) = conflict else { return Ok(None) };
    let key = shard_key(table);
    let positions: Option<Vec<usize>> =
        conflict.target.as_ref().map(|names| names.iter().filter_map(|name| table.position(name)).collect());
    let on_shard = unique_global_keys(table).next().is_none();
    if let Some(positions) = &positions
        && on_shard
        && key.iter().any(|column| !positions.contains(column))
    {
        let hint = "Two rows that conflict must be on one shard: name the shard key's columns too.";
        return Err(SqlError::unsupported("ON CONFLICT must include the shard key").with_hint(hint));
    }
    match &conflict.action {
        ConflictAction::Nothing => Ok(None),
        ConflictAction::Update { assignments, .. } => {
            if assignments.iter().any(|assignment| key.contains(&assignment.column)) {
                let hint = "Update the row in a statement of its own; it moves to its new shard.";
                return Err(SqlError::unsupported("ON CONFLICT DO UPDATE may not change the shard key").with_hint(hint));
            }
            Ok(positions)
        }
    }
}

/// What ON CONFLICT and RETURNING compute must be known to the shard that the row goes to.
fn check_row_expressions(insert: &Insert, table: &Table) -> Result<(), SqlError> {
    let mut exprs = Vec::new();
    if let Some(conflict) = &insert.conflict {
        exprs.extend(&conflict.target_filter);
        if let ConflictAction::Update { assignments, filter, .. } = &conflict.action {
            exprs.extend(assignments.iter().map(|assignment| &assignment.value).chain(filter));
        }
    }
    exprs.extend(insert.returning.iter().flat_map(|returning| &returning.targets));
    if table.kind == TableKind::Reference && exprs.iter().any(|expr| is_volatile(expr)) {
        return Err(volatile_copies(table));
    }
    let targets: Vec<Expr> = exprs.into_iter().cloned().collect();
    if !targets.iter().any(has_subquery) {
        return Ok(());
    }
    let select = select_of(targets, vec![From::Relation(insert.target.clone())], None);
    let query = query_of(Body::Select(Box::new(select)), Vec::new());
    let is_known = match (Places::of_query(&query).top(&query), &table.kind) {
        (Place::Mixed | Place::Anchored, _) => false,
        // Each shard would compute something else for its copy of the row.
        (place, TableKind::Reference) => matches!(place, Place::Reference),
        _ => true,
    };
    match is_known {
        true => Ok(()),
        false => {
            let message = "a subquery over other shards in ON CONFLICT or RETURNING of an INSERT is not supported";
            Err(SqlError::unsupported(message).with_hint("Ask for it in a statement of its own."))
        }
    }
}

/// Gives the client's parameters that ON CONFLICT and RETURNING use numbers after those of the row.
struct Extra {
    first: usize,
    found: Vec<(usize, Type)>,
}

impl Extra {
    fn renumber(&mut self, insert: &mut Insert) {
        if let Some(conflict) = &mut insert.conflict {
            conflict.target_filter.iter_mut().for_each(|filter| self.expr(filter));
            if let ConflictAction::Update { assignments, filter, .. } = &mut conflict.action {
                assignments.iter_mut().for_each(|assignment| self.expr(&mut assignment.value));
                filter.iter_mut().for_each(|filter| self.expr(filter));
            }
        }
        let returning = insert.returning.iter_mut().flat_map(|returning| &mut returning.targets);
        returning.for_each(|target| self.expr(target));
    }
}

impl Rewriter for Extra {
    fn expr(&mut self, expr: &mut Expr) {
        if let ExprKind::Param(param) = &mut expr.kind {
            let at = self.found.iter().position(|(known, _)| known == param).unwrap_or_else(|| {
                self.found.push((*param, expr.ty));
                self.found.len() - 1
            });
            *param = self.first + at;
        }
        rewrite::expr(self, expr);
    }
}

/// A row of values, in the table's order, with defaults.
fn complete(
    table: &Table,
    columns: &[InsertColumn],
    row: Vec<Option<Expr>>,
    fields: &[Field],
) -> Result<Vec<Expr>, SqlError> {
    let value = |(at, column): (usize, &InsertColumn)| match column {
        InsertColumn::Source { at: source, cast } => match (row.get(*source).cloned().flatten(), cast) {
            (Some(value), None) => Ok(value),
            (Some(value), Some(cast)) => Ok(filled(cast, &value)),
            (None, _) => default_of(table, at, column, fields),
        },
        InsertColumn::Default(default) => Ok(default.clone()),
    };
    columns.iter().enumerate().map(value).collect()
}

fn default_of(table: &Table, at: usize, column: &InsertColumn, fields: &[Field]) -> Result<Expr, SqlError> {
    if let InsertColumn::Default(default) = column {
        return Ok(default.clone());
    }
    let stored = table.columns.get(at);
    if stored.is_some_and(|stored| stored.default_sql.is_some() || stored.identity.is_some()) {
        let message = format!("DEFAULT of column \"{}\" was not bound", fields[at].name);
        return Err(SqlError::new("XX000", message));
    }
    let value = stored.and_then(|stored| stored.default.clone()).unwrap_or(Value::Null);
    Ok(Expr::new(ExprKind::Const(value), fields[at].ty))
}

/// The cast of a source's column, with the value in the column's place.
fn filled(cast: &Expr, value: &Expr) -> Expr {
    struct Fill<'a>(&'a Expr);
    impl Rewriter for Fill<'_> {
        fn expr(&mut self, expr: &mut Expr) {
            match expr.kind {
                ExprKind::Column { .. } => *expr = self.0.clone(),
                _ => rewrite::expr(self, expr),
            }
        }
    }
    let mut cast = cast.clone();
    Fill(value).expr(&mut cast);
    cast
}

/// Takes numbers of sequences out of a query, for the router to give each row its own as it gives defaults.
fn take_sequences(query: &mut Query, columns: &mut [InsertColumn]) {
    let Body::Select(select) = &mut query.body else { return };
    if select.distinct != Distinct::No || query.limit.is_some() || query.offset.is_some() {
        return;
    }
    for column in columns {
        let InsertColumn::Source { at, cast: None } = column else { continue };
        let sorted = query.order_by.iter().any(|order| order.key == OrderKey::Output(*at));
        let Some(target) = select.targets.get_mut(*at).filter(|target| is_sequence_alone(target) && !sorted) else {
            continue;
        };
        let null = Expr::new(ExprKind::Const(Value::Null), target.ty);
        *column = InsertColumn::Default(std::mem::replace(target, null));
    }
}

fn mapped_column(
    rel: RelId,
    at: usize,
    from: &InsertColumn,
    query: &Query,
    fields: &[Field],
    defaults: &mut Vec<(usize, Expr)>,
) -> Expr {
    match from {
        InsertColumn::Source { at: source, cast } => {
            let ty = query.columns.get(*source).map_or(fields[at].ty, |field| field.ty);
            let value = column(rel, *source, ty);
            cast.as_ref().map_or(value.clone(), |cast| filled(cast, &value))
        }
        InsertColumn::Default(default) if is_volatile(default) => {
            defaults.push((at, default.clone()));
            Expr::new(ExprKind::Const(Value::Null), fields[at].ty)
        }
        InsertColumn::Default(default) => default.clone(),
    }
}

/// Whether a select's targets can be computed with without computing anything twice or changing which rows there are.
fn can_substitute(select: &Select) -> bool {
    select.distinct == Distinct::No && !select.targets.iter().any(is_volatile)
}

/// Puts `targets`, which read relation `rel`, over a select's own, which stay as hidden ones where it sorts by them.
fn substitute(rel: RelId, select: &mut Select, mut targets: Vec<Expr>, order_by: &mut [crate::tree::OrderBy]) {
    struct Substitute<'a> {
        rel: RelId,
        values: &'a [Expr],
    }
    impl Rewriter for Substitute<'_> {
        fn expr(&mut self, expr: &mut Expr) {
            match expr.kind {
                ExprKind::Column { rel, column } if rel == self.rel => *expr = self.values[column].clone(),
                _ => rewrite::expr(self, expr),
            }
        }
    }
    let mut over = Substitute { rel, values: &select.targets };
    targets.iter_mut().for_each(|target| over.expr(target));
    if !order_by.is_empty() {
        let before = targets.len();
        targets.append(&mut select.targets);
        for order in order_by {
            let OrderKey::Output(at) = order.key;
            order.key = OrderKey::Output(before + at);
        }
    }
    select.targets = targets;
}
