//! INSERT, UPDATE and DELETE.
//!
//! The word DEFAULT, and every column that an INSERT leaves out, become the column's default expression here. What is
//! assigned to a column has the column's type and modifier when it leaves this file.

use super::call::NEXTVAL;
use super::expr::location;
use super::from::{column_type, fields_of, plain_query};
use super::query::{Target, Unknowns};
use super::scope::{Item, Place};
use super::{Binder, Result};
use crate::builtins::{self, CastContext};
use crate::tree::*;
use crate::types::{self, Oid, Type};
use isles_kernel::error::SqlError;
use isles_kernel::schema::{Column, Key, PUBLIC, Table, relation_parts};
use isles_kernel::value::Value;
use pg_raw_parse::Node;
use pg_raw_parse::list::{CastNodeList, NodeList};
use pg_raw_parse::nodes::{self, OnConflictAction, OverridingKind};
use std::sync::Arc;

/// The stored table of a target.
fn table_of(target: &RelationRef) -> Result<Arc<Table>> {
    match &target.relation.source {
        RelationSource::User(table) => Ok(table.clone()),
        RelationSource::System | RelationSource::Staged => {
            Err(SqlError::new("42501", format!("permission denied for table {}", target.relation.name)))
        }
    }
}

/// Not PostgreSQL's: the random number that identifies a row of a table without a primary key
/// ([`isles_kernel::schema::HIDDEN_KEY_DEFAULT`]). No name of SQL means it.
pub const ROW_ID: Oid = Oid(15_999);

/// What stands for a column in a row of an INSERT.
enum Given {
    Default,
    Value(Expr),
}

/// The key by which `ON CONFLICT` finds rows.
struct Arbiter {
    columns: Vec<String>,
    filter: Option<Expr>,
    /// Its name; none for the primary key of each shard.
    key: Option<String>,
}

impl Arbiter {
    fn primary(table: &Table) -> Arbiter {
        match table.primary_index() {
            Some(key) => Arbiter::of(key, None),
            None => Arbiter { columns: table.primary_key.clone(), filter: None, key: None },
        }
    }

    fn of(key: &Key, filter: Option<Expr>) -> Arbiter {
        Arbiter { columns: key.columns.clone(), filter, key: Some(key.name.clone()) }
    }
}

/// Whether a key is unique over its columns, for some rows or all, on one shard or over all of them.
fn is_over_columns(key: &Key) -> bool {
    key.unique && (key.parts.is_empty() || key.parts.len() == key.columns.len())
}

/// The same, for all rows.
fn is_whole(key: &Key) -> bool {
    is_over_columns(key) && key.predicate.is_none()
}

impl Binder<'_> {
    /// What a statement names in its WITH is not seen after it.
    pub(super) fn with_own_ctes<T>(&mut self, bind: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let mark = self.ctes.len();
        let bound = bind(self);
        self.ctes.truncate(mark);
        bound
    }

    pub(super) fn insert(&mut self, insert: &nodes::InsertStmt) -> Result<Insert> {
        self.with_own_ctes(|binder| binder.insert_here(insert))
    }

    fn insert_here(&mut self, insert: &nodes::InsertStmt) -> Result<Insert> {
        let ctes = self.with_clause(insert.with_clause())?;
        let Some(var) = insert.relation() else { return self.refuse("INSERT without a table", -1) };
        self.scoped(|binder| {
            let target = binder.target_table(var)?;
            let table = table_of(&target)?;
            let named = binder.insert_columns(insert.cols(), &table)?;
            // The source does not see the table.
            let scopes = std::mem::take(&mut binder.scopes);
            let names = table.columns.iter().map(|column| column.name.clone()).collect();
            let before = binder.insert_target.replace((table.name.clone(), names));
            let source = binder.insert_source(insert, &table, named);
            binder.insert_target = before;
            binder.scopes = scopes;
            let (source, columns) = source?;
            let conflict = match insert.on_conflict_clause() {
                Some(clause) => binder.conflict(clause, &target, &table)?,
                None => None,
            };
            let returning = binder.returning(insert.returning_clause())?;
            Ok(Insert { ctes, target, columns, source, conflict, returning })
        })
    }

    /// Positions of the named columns; all of them, if none is named.
    fn insert_columns(&mut self, list: &NodeList, table: &Table) -> Result<Named> {
        let mut positions: Vec<usize> = Vec::new();
        for node in list {
            let Node::ResTarget(target) = node else { return self.refuse_node(node) };
            let name = target.name().unwrap_or_default();
            if !target.indirection().is_empty() {
                return self.refuse("assigning to a part of a column", target.location);
            }
            let position = self.column_of(table, name, target.location)?;
            if positions.contains(&position) {
                return self.fail("42701", format!("column \"{name}\" specified more than once"), target.location);
            }
            positions.push(position);
        }
        Ok(match positions.is_empty() {
            true => Named { positions: (0..table.visible_columns().len()).collect(), explicit: false },
            false => Named { positions, explicit: true },
        })
    }

    fn column_of(&self, table: &Table, name: &str, at: i32) -> Result<usize> {
        match table.visible_columns().iter().position(|column| column.name == name) {
            Some(position) => Ok(position),
            None => {
                let message = format!("column \"{name}\" of relation \"{}\" does not exist", table.name);
                self.fail("42703", message, at)
            }
        }
    }

    fn insert_source(
        &mut self,
        insert: &nodes::InsertStmt,
        table: &Table,
        named: Named,
    ) -> Result<(InsertSource, Vec<InsertColumn>)> {
        let overriding = insert.override_;
        match insert.select_stmt() {
            Node::None => {
                let columns = self.insert_defaults(table, &[])?;
                Ok((InsertSource::Defaults, columns))
            }
            Node::SelectStmt(select) if is_plain_values(select) => self.insert_values(select, table, named, overriding),
            Node::SelectStmt(select) => self.insert_query(select, table, named, overriding),
            other => self.refuse_node(other),
        }
    }

    fn insert_values(
        &mut self,
        select: &nodes::SelectStmt,
        table: &Table,
        named: Named,
        overriding: OverridingKind::Type,
    ) -> Result<(InsertSource, Vec<InsertColumn>)> {
        let mut rows: Vec<Vec<Given>> = Vec::new();
        for node in select.values_lists() {
            let Node::NodeList(list) = node else { return self.refuse_node(node) };
            let row = self.scoped(|binder| binder.insert_row(list))?;
            if rows.first().is_some_and(|first| first.len() != row.len()) {
                let at = list.first().map_or(-1, location);
                return self.fail("42601", "VALUES lists must all be the same length", at);
            }
            rows.push(row);
        }
        let width = rows.first().map_or(0, Vec::len);
        let positions = self.insert_positions(named, width, select)?;
        let mut bound = Vec::with_capacity(rows.len());
        for row in rows {
            let mut values = Vec::with_capacity(row.len());
            for (given, position) in row.into_iter().zip(&positions) {
                values.push(Some(self.insert_value(given, (table, *position), overriding)?));
            }
            bound.push(values);
        }
        let columns = self.insert_defaults(table, &positions)?;
        Ok((InsertSource::Values(bound), columns))
    }

    fn insert_row(&mut self, list: &NodeList) -> Result<Vec<Given>> {
        let mut row = Vec::with_capacity(list.len());
        for node in list {
            row.push(match node {
                Node::SetToDefault(_) => Given::Default,
                node => Given::Value(self.placed(Place::Values, |binder| binder.expr(node))?),
            });
        }
        Ok(row)
    }

    /// The columns that a source of so many columns is for.
    fn insert_positions(&self, named: Named, width: usize, select: &nodes::SelectStmt) -> Result<Vec<usize>> {
        let mut positions = named.positions;
        let first = select.values_lists().first().and_then(|row| row.as_node_list()).and_then(NodeList::first);
        let at = first.map_or(-1, location);
        if width > positions.len() {
            return self.fail("42601", "INSERT has more expressions than target columns", at);
        }
        if width < positions.len() && named.explicit {
            return self.fail("42601", "INSERT has more target columns than expressions", at);
        }
        positions.truncate(width);
        Ok(positions)
    }

    fn insert_value(
        &mut self,
        given: Given,
        (table, position): (&Table, usize),
        overriding: OverridingKind::Type,
    ) -> Result<Expr> {
        let column = &table.columns[position];
        let value = match given {
            Given::Default => return self.default_of(table, column),
            Given::Value(value) => value,
        };
        match &column.identity {
            Some(_) if overriding == OverridingKind::OVERRIDING_USER_VALUE => self.default_of(table, column),
            Some(identity) if identity.always && overriding != OverridingKind::OVERRIDING_SYSTEM_VALUE => {
                Err(always_identity(&column.name))
            }
            _ => self.assigned(value, column, -1),
        }
    }

    fn insert_query(
        &mut self,
        select: &nodes::SelectStmt,
        table: &Table,
        named: Named,
        overriding: OverridingKind::Type,
    ) -> Result<(InsertSource, Vec<InsertColumn>)> {
        let query = self.query_with(select, Unknowns::Keep)?;
        let positions = self.insert_positions(named, query.columns.len(), select)?;
        let mut ignored = Vec::new();
        for position in &positions {
            match &table.columns[*position].identity {
                Some(_) if overriding == OverridingKind::OVERRIDING_USER_VALUE => ignored.push(*position),
                Some(identity) if identity.always && overriding != OverridingKind::OVERRIDING_SYSTEM_VALUE => {
                    return Err(always_identity(&table.columns[*position].name));
                }
                _ => {}
            }
        }
        let query = self
            .convert_columns(query, &mut |binder, at, expr| binder.assigned(expr, &table.columns[positions[at]], -1))?;
        let mut columns = self.insert_defaults(table, &positions)?;
        for position in ignored {
            columns[position] = InsertColumn::Default(self.default_of(table, &table.columns[position])?);
        }
        Ok((InsertSource::Query(Box::new(query)), columns))
    }

    /// For each column where its value comes from: from the source, if it is for it, or its default.
    fn insert_defaults(&mut self, table: &Table, positions: &[usize]) -> Result<Vec<InsertColumn>> {
        let mut columns = Vec::with_capacity(table.columns.len());
        for (position, column) in table.columns.iter().enumerate() {
            columns.push(match positions.iter().position(|known| *known == position) {
                Some(at) => InsertColumn::Source { at, cast: None },
                None => InsertColumn::Default(self.default_of(table, column)?),
            });
        }
        Ok(columns)
    }

    /// A column's default, of the column's type.
    fn default_of(&mut self, table: &Table, column: &Column) -> Result<Expr> {
        if let Some(identity) = &column.identity {
            let name = Expr::new(ExprKind::Const(Value::Text(identity.sequence.clone())), types::TEXT);
            let display = Display::Function("nextval".into());
            let call = ExprKind::Call { function: NEXTVAL, display, args: vec![name] };
            return self.assigned(Expr::new(call, types::INT8), column, -1);
        }
        if column.is_hidden() {
            let display = Display::Function("_isles_row_id".into());
            return Ok(Expr::new(ExprKind::Call { function: ROW_ID, display, args: Vec::new() }, types::INT8));
        }
        if let Some(text) = &column.default_sql {
            let expr = self.default_text(&table.name, text)?;
            return self.assigned(expr, column, -1);
        }
        let value = column.default.clone().unwrap_or(Value::Null);
        Ok(Expr::new(ExprKind::Const(value), column_type(column)))
    }

    /// An expression that was kept as text with a table: its names are looked up in the table's schema and `public`,
    /// whatever the session's path.
    pub(super) fn default_text(&mut self, table: &str, text: &str) -> Result<Expr> {
        let path = Arc::from([relation_parts(table).0.to_string(), PUBLIC.to_string()]);
        let before = std::mem::replace(&mut self.path, path);
        let expr = self.expression_text(text);
        self.path = before;
        expr
    }

    /// What is assigned to a column, with its conversion.
    fn assigned(&mut self, expr: Expr, column: &Column, at: i32) -> Result<Expr> {
        let (from, to) = (expr.ty.oid, column_type(column));
        match self.coerce_to_target(expr, to, CastContext::Assignment) {
            Ok(Some(expr)) => Ok(expr),
            Ok(None) => {
                let (name, from, to) = (&column.name, builtins::type_name(from), builtins::type_name(to.oid));
                let message = format!("column \"{name}\" is of type {to} but expression is of type {from}");
                let hint = "You will need to rewrite or cast the expression.";
                Err(self.at(SqlError::new("42804", message).with_hint(hint), at))
            }
            Err(error) => Err(self.at(error, at)),
        }
    }

    fn conflict(
        &mut self,
        clause: &nodes::OnConflictClause,
        target: &RelationRef,
        table: &Table,
    ) -> Result<Option<Conflict>> {
        let update = match clause.action {
            OnConflictAction::ONCONFLICT_NONE => return Ok(None),
            action => action == OnConflictAction::ONCONFLICT_UPDATE,
        };
        let arbiter = match clause.infer() {
            Some(infer) => Some(self.arbiter(infer, table)?),
            None if update => {
                let error =
                    SqlError::new("42601", "ON CONFLICT DO UPDATE requires inference specification or constraint name");
                return Err(self.at(error.with_hint("For example, ON CONFLICT (column_name)."), clause.location));
            }
            None => None,
        };
        let action = match update {
            true => self.conflict_update(clause, target, table)?,
            false => ConflictAction::Nothing,
        };
        Ok(Some(match arbiter {
            Some(Arbiter { columns, filter, key }) => {
                Conflict { target: Some(columns), target_filter: filter, key, action }
            }
            None => Conflict { target: None, target_filter: None, key: None, action },
        }))
    }

    fn arbiter(&mut self, infer: &nodes::InferClause, table: &Table) -> Result<Arbiter> {
        if let Some(name) = infer.conname() {
            let mut keys = table.keys.iter().filter(|key| key.constraint && is_whole(key));
            return match keys.find(|key| key.name == name) {
                _ if !table.hidden_key && name == table.primary_key_name() => Ok(Arbiter::primary(table)),
                Some(key) => Ok(Arbiter::of(key, None)),
                None => {
                    let message = format!("constraint \"{name}\" for table \"{}\" does not exist", table.name);
                    self.fail("42704", message, infer.location)
                }
            };
        }
        let mut names = Vec::new();
        for node in infer.index_elems() {
            let Node::IndexElem(element) = node else { return self.refuse_node(node) };
            let Some(name) = element.name() else {
                return self.refuse("an expression in ON CONFLICT", infer.location);
            };
            if !table.visible_columns().iter().any(|column| column.name == name) {
                return Err(self.missing_column(None, name, infer.location));
            }
            names.push(name.to_string());
        }
        let filter = match infer.where_clause() {
            Node::None => None,
            node => Some(self.placed(Place::ConflictTarget, |binder| binder.condition(node, "WHERE"))?),
        };
        let same = |key: &[String]| key.iter().all(|c| names.contains(c)) && names.iter().all(|c| key.contains(c));
        if !table.hidden_key && same(table.declared_key()) {
            return Ok(Arbiter::primary(table));
        }
        if let Some(key) = table.keys.iter().find(|key| is_whole(key) && same(&key.columns)) {
            return Ok(Arbiter::of(key, None));
        }
        match self.partial_arbiter(table, same, filter)? {
            Some(arbiter) => Ok(arbiter),
            None => {
                let message = "there is no unique or exclusion constraint matching the ON CONFLICT specification";
                self.fail("42P10", message, -1)
            }
        }
    }

    /// A partial unique index whose predicate is the one that was written. PostgreSQL can prove more; what cannot be
    /// proved here is an error, as it is there.
    fn partial_arbiter(
        &mut self,
        table: &Table,
        same: impl Fn(&[String]) -> bool,
        filter: Option<Expr>,
    ) -> Result<Option<Arbiter>> {
        let Some(filter) = filter else { return Ok(None) };
        for key in table.keys.iter().filter(|key| is_over_columns(key) && same(&key.columns)) {
            let Some(predicate) = &key.predicate else { continue };
            let parsed = crate::parse::parse_one(&format!("SELECT {}", predicate.sql))?;
            let Some(Node::SelectStmt(select)) = parsed.statement() else { continue };
            let Some(target) = select.target_list().iter().next() else { continue };
            if self.condition(target.val(), "WHERE")? == filter {
                return Ok(Some(Arbiter::of(key, Some(filter))));
            }
        }
        Ok(None)
    }

    fn conflict_update(
        &mut self,
        clause: &nodes::OnConflictClause,
        target: &RelationRef,
        table: &Table,
    ) -> Result<ConflictAction> {
        let excluded = self.new_rel();
        let fields = fields_of(&target.relation);
        let mark = self.scope().items.len();
        self.scope().items.push(Item::of_relation(excluded, Some("excluded".into()), &fields));
        self.scope().rels.push(excluded);
        let assignments = self.assignments(clause.target_list(), table);
        let filter = match clause.where_clause() {
            Node::None => Ok(None),
            node => self.placed(Place::Where, |binder| binder.condition(node, "WHERE")).map(Some),
        };
        self.scope().items.truncate(mark);
        Ok(ConflictAction::Update { excluded, assignments: assignments?, filter: filter? })
    }

    fn assignments(&mut self, list: &CastNodeList<nodes::ResTarget>, table: &Table) -> Result<Vec<Assignment>> {
        let mut bound: Vec<Assignment> = Vec::new();
        for target in list.iter() {
            let name = target.name().unwrap_or_default();
            let at = target.location;
            let column = self.column_of(table, name, at)?;
            if !target.indirection().is_empty() {
                return self.refuse("assigning to a part of a column", at);
            }
            if bound.iter().any(|known| known.column == column) {
                return self.fail("42601", format!("multiple assignments to same column \"{name}\""), at);
            }
            let value = self.assignment_value(target.val(), (table, column), at)?;
            bound.push(Assignment { column, value });
        }
        Ok(bound)
    }

    fn assignment_value(&mut self, node: Node<'_>, (table, column): (&Table, usize), at: i32) -> Result<Expr> {
        let column = &table.columns[column];
        let node = match node {
            Node::MultiAssignRef(multi) => match multi.source() {
                Node::RowExpr(row) => self.row_part(row, multi)?,
                Node::SubLink(link) => return self.subquery_part(link, multi, column),
                _ => {
                    let message = "source for a multiple-column UPDATE item must be a sub-SELECT or ROW() expression";
                    return self.fail("0A000", message, at);
                }
            },
            node => node,
        };
        if let Node::SetToDefault(_) = node {
            return self.default_of(table, column);
        }
        if column.identity.as_ref().is_some_and(|identity| identity.always) {
            let error = SqlError::new("428C9", format!("column \"{}\" can only be updated to DEFAULT", column.name));
            let detail = format!("Column \"{}\" is an identity column defined as GENERATED ALWAYS.", column.name);
            return Err(error.with_detail(detail));
        }
        let value = self.placed(Place::UpdateSource, |binder| binder.expr(node))?;
        self.assigned(value, column, location(node).max(at))
    }

    fn row_part<'n>(&self, row: &'n nodes::RowExpr, multi: &nodes::MultiAssignRef) -> Result<Node<'n>> {
        let wanted = usize::try_from(multi.ncolumns).unwrap_or(0);
        let part = usize::try_from(multi.colno - 1).ok().and_then(|at| row.args().get(at));
        match part.filter(|_| row.args().len() == wanted) {
            Some(node) => Ok(node),
            None => self.fail("42601", "number of columns does not match number of values", row.location),
        }
    }

    /// `(a, b) = (SELECT x, y …)`: each column has the query for itself, and takes one value of it.
    fn subquery_part(&mut self, link: &nodes::SubLink, multi: &nodes::MultiAssignRef, column: &Column) -> Result<Expr> {
        let Node::SelectStmt(select) = link.subselect() else { return self.refuse_node(link.subselect()) };
        let query = self.subquery(select)?;
        if usize::try_from(multi.ncolumns) != Ok(query.columns.len()) {
            return self.fail("42601", "number of columns does not match number of values", link.location);
        }
        let mut volatile = false;
        super::walk::query(&query, &mut |expr| {
            volatile |= super::resolve::is_volatile(expr);
            super::walk::Go::Past
        });
        if volatile {
            return self.refuse("a volatile query for several columns", link.location);
        }
        let at = usize::try_from(multi.colno - 1).unwrap_or(0);
        let field = query.columns[at].clone();
        let rel = self.new_rel();
        let value = Expr::new(ExprKind::Column { rel, column: at }, field.ty);
        let from = vec![From::Subquery { rel, query: Box::new(query), lateral: false }];
        let ty: Type = field.ty;
        let one = plain_query(vec![value], from, vec![field]);
        let subquery = Subquery { kind: SubqueryKind::Scalar, query: one };
        self.assigned(Expr::new(ExprKind::Subquery(Box::new(subquery)), ty), column, link.location)
    }

    pub(super) fn update(&mut self, update: &nodes::UpdateStmt) -> Result<Update> {
        self.with_own_ctes(|binder| binder.update_here(update))
    }

    fn update_here(&mut self, update: &nodes::UpdateStmt) -> Result<Update> {
        let ctes = self.with_clause(update.with_clause())?;
        let Some(var) = update.relation() else { return self.refuse("UPDATE without a table", -1) };
        self.scoped(|binder| {
            let target = binder.target_table(var)?;
            let table = table_of(&target)?;
            let from = binder.beside_target(update.from_clause())?;
            let assignments = binder.assignments(update.target_list(), &table)?;
            let filter = binder.write_filter(update.where_clause())?;
            let returning = binder.returning(update.returning_clause())?;
            Ok(Update { ctes, target, assignments, from, filter, returning })
        })
    }

    pub(super) fn delete(&mut self, delete: &nodes::DeleteStmt) -> Result<Delete> {
        self.with_own_ctes(|binder| binder.delete_here(delete))
    }

    fn delete_here(&mut self, delete: &nodes::DeleteStmt) -> Result<Delete> {
        let ctes = self.with_clause(delete.with_clause())?;
        let Some(var) = delete.relation() else { return self.refuse("DELETE without a table", -1) };
        self.scoped(|binder| {
            let target = binder.target_table(var)?;
            let using = binder.beside_target(delete.using_clause())?;
            let filter = binder.write_filter(delete.where_clause())?;
            let returning = binder.returning(delete.returning_clause())?;
            Ok(Delete { ctes, target, using, filter, returning })
        })
    }

    /// FROM of UPDATE and USING of DELETE: what is lateral there may not refer to the target.
    fn beside_target(&mut self, clause: &NodeList) -> Result<Vec<From>> {
        self.scope().items.iter_mut().for_each(|item| {
            item.lateral_only = true;
            item.lateral_ok = false;
        });
        self.bind_from(clause)
    }

    fn write_filter(&mut self, node: Node<'_>) -> Result<Option<Expr>> {
        match node {
            Node::None => Ok(None),
            node => self.placed(Place::Where, |binder| binder.condition(node, "WHERE")).map(Some),
        }
    }

    fn returning(&mut self, clause: Option<&nodes::ReturningClause>) -> Result<Option<Returning>> {
        let Some(clause) = clause else { return Ok(None) };
        if !clause.options().is_empty() {
            return self.refuse("RETURNING WITH", -1);
        }
        let mut targets: Vec<Target> = Vec::new();
        for node in clause.exprs() {
            let Node::ResTarget(target) = node else { return self.refuse_node(node) };
            self.target(target, Place::Returning, &mut targets)?;
        }
        let (mut exprs, mut columns) = (Vec::new(), Vec::new());
        for target in targets {
            let expr = self.resolve_unknown(target.expr)?;
            columns.push(Field { name: target.name, ty: expr.ty });
            exprs.push(expr);
        }
        Ok(Some(Returning { targets: exprs, columns }))
    }
}

/// The columns that an INSERT is for, in its order.
struct Named {
    positions: Vec<usize>,
    /// Whether they were written down.
    explicit: bool,
}

fn is_plain_values(select: &nodes::SelectStmt) -> bool {
    !select.values_lists().is_empty()
        && select.sort_clause().is_empty()
        && matches!((select.limit_count(), select.limit_offset()), (Node::None, Node::None))
        && select.locking_clause().is_empty()
        && select.with_clause().is_none()
}

fn always_identity(name: &str) -> SqlError {
    SqlError::new("428C9", format!("cannot insert a non-DEFAULT value into column \"{name}\""))
        .with_detail(format!("Column \"{name}\" is an identity column defined as GENERATED ALWAYS."))
        .with_hint("Use OVERRIDING SYSTEM VALUE to override.")
}
