//! FROM clauses: tables, views, common table expressions, subqueries, functions and joins.

use super::expr::{and, location};
use super::scope::{Item, ItemColumn, Place};
use super::{Binder, MAX_VIEW_DEPTH, Result, typename};
use crate::tree::{
    Body, Distinct, Expr, ExprKind, Field, From, FunctionRef, GroupBy, Join, JoinKind, Query, RelId, Relation,
    RelationColumn, RelationRef, RelationSource, Select,
};
use crate::types::{self, Oid, Type};
use crate::{builtins, system};
use isles_kernel::error::SqlError;
use isles_kernel::schema::{HIDDEN_KEY_COLUMN, Sequence, Table, plain_name, relation_name, relation_parts};
use pg_raw_parse::Node;
use pg_raw_parse::list::NodeList;
use pg_raw_parse::nodes::{self, JoinType};
use std::sync::Arc;

/// What the name of a relation means.
enum Named {
    Table(Arc<Relation>),
    View(String),
}

/// The type of a table's column: what it was declared as, or what its carrier is by itself.
pub(crate) fn column_type(column: &isles_kernel::schema::Column) -> Type {
    match column.sql_type {
        Some(declared) => Type::with(Oid(declared.oid), declared.modifier),
        None => Type::of(types::natural(column.ty)),
    }
}

fn relation_of(table: &Table) -> Relation {
    let column = |column: &isles_kernel::schema::Column| RelationColumn {
        name: column.name.clone(),
        ty: column_type(column),
        not_null: !column.nullable,
    };
    Relation {
        schema: table.namespace().into(),
        name: table.plain_name().into(),
        columns: table.visible_columns().iter().map(column).collect(),
        source: RelationSource::User(Arc::new(table.clone())),
    }
}

pub(super) fn fields_of(relation: &Relation) -> Vec<Field> {
    // The key of a table that was made without one is not for clients to see; it is the last column.
    let visible = relation.columns.iter().filter(|column| column.name != HIDDEN_KEY_COLUMN);
    visible.map(|column| Field { name: column.name.clone(), ty: column.ty }).collect()
}

impl Binder<'_> {
    /// Binds a FROM clause into the innermost scope.
    pub(super) fn bind_from(&mut self, clause: &NodeList) -> Result<Vec<From>> {
        let mut bound = Vec::new();
        for node in clause {
            let (from, mut items) = self.bind_item(node)?;
            self.check_names(&items, node)?;
            items.iter_mut().for_each(|item| item.lateral_only = true);
            self.scope().items.extend(items);
            bound.push(from);
        }
        self.scope().items.iter_mut().for_each(|item| {
            item.lateral_only = false;
            item.lateral_ok = true;
        });
        Ok(bound)
    }

    fn check_names(&mut self, new: &[Item], node: Node<'_>) -> Result<()> {
        for item in new.iter().filter(|item| item.by_name) {
            let clash = |other: &Item| other.by_name && other.name == item.name && same_schema(other, item);
            if let Some(name) = item.name.as_ref().filter(|_| self.scope().items.iter().any(clash)) {
                let message = format!("table name \"{name}\" specified more than once");
                return self.fail("42712", message, location(node));
            }
        }
        Ok(())
    }

    fn bind_item(&mut self, node: Node<'_>) -> Result<(From, Vec<Item>)> {
        self.deeper(|binder| match node {
            Node::RangeVar(var) => binder.range_var(var),
            Node::RangeSubselect(sub) => binder.range_subselect(sub),
            Node::RangeFunction(function) => binder.range_function(function),
            Node::JoinExpr(join) => binder.join(join),
            Node::RangeTableSample(_) => binder.refuse("TABLESAMPLE", -1),
            other => binder.refuse_node(other),
        })
    }

    fn range_var(&mut self, var: &nodes::RangeVar) -> Result<(From, Vec<Item>)> {
        let name = var.relname().unwrap_or_default();
        if var.schemaname().is_none()
            && let Some(found) = self.range_cte(var, name)?
        {
            return Ok(found);
        }
        match self.named_relation(var)? {
            Named::Table(relation) => self.range_table(var, relation),
            Named::View(view) => self.range_view(var, &view),
        }
    }

    fn range_cte(&mut self, var: &nodes::RangeVar, name: &str) -> Result<Option<(From, Vec<Item>)>> {
        let Some(entry) = self.cte(name) else { return Ok(None) };
        entry.uses += 1;
        let entry = entry.clone();
        let Some(columns) = entry.columns else {
            if !entry.readable {
                let message = format!(
                    "recursive query \"{name}\" does not have the form non-recursive-term UNION [ALL] recursive-term"
                );
                return self.fail("42P19", message, var.location);
            }
            let message =
                format!("recursive reference to query \"{name}\" must not appear within its non-recursive term");
            return self.fail("42P19", message, var.location);
        };
        if !entry.readable {
            let message = format!("WITH query \"{name}\" does not have a RETURNING clause");
            return self.fail("0A000", message, var.location);
        }
        let rel = self.new_rel();
        let item = self.aliased(rel, name, &columns, var.alias(), var.location)?;
        self.scope().rels.push(rel);
        Ok(Some((From::Cte { rel, cte: entry.id, columns }, vec![item])))
    }

    fn named_relation(&mut self, var: &nodes::RangeVar) -> Result<Named> {
        let name = var.relname().unwrap_or_default();
        if let Some(catalog) = var.catalogname().filter(|catalog| *catalog != self.context.database) {
            let full = format!("{catalog}.{}.{name}", var.schemaname().unwrap_or_default());
            let message = format!("cross-database references are not implemented: \"{full}\"");
            return self.fail("0A000", message, var.location);
        }
        let found = match var.schemaname() {
            Some(schema) => self.relation_in(schema, name),
            None => {
                let path = self.path.clone();
                let implicit = (!path.iter().any(|schema| schema == "pg_catalog")).then_some("pg_catalog");
                let schemas = implicit.into_iter().chain(path.iter().map(String::as_str));
                schemas.into_iter().find_map(|schema| self.relation_in(schema, name))
            }
        };
        match found {
            Some(found) => Ok(found),
            None if self.names_sequence(var.schemaname(), name).is_some() => {
                self.refuse(format!("reading sequence \"{name}\" as a table"), var.location)
            }
            None => {
                let full = var.schemaname().map_or_else(|| name.to_string(), |schema| format!("{schema}.{name}"));
                let mut error = SqlError::new("42P01", format!("relation \"{full}\" does not exist"));
                if self.later_ctes.contains(&full) {
                    let detail = format!(
                        "There is a WITH item named \"{name}\", but it cannot be referenced from this part of the query."
                    );
                    let hint = "Use WITH RECURSIVE, or re-order the WITH items to remove forward references.";
                    error = error.with_detail(detail).with_hint(hint);
                }
                Err(self.at(error, var.location))
            }
        }
    }

    fn relation_in(&mut self, schema: &str, name: &str) -> Option<Named> {
        if !self.context.schema.has_namespace(schema) {
            return system::relation(schema, name).map(Named::Table);
        }
        let full = relation_name(schema, name);
        if let Some(known) = self.relations.get(&full) {
            return Some(Named::Table(known.clone()));
        }
        if self.context.schema.views.contains_key(&full) {
            return Some(Named::View(full));
        }
        let relation = Arc::new(relation_of(self.context.schema.tables.get(&full)?));
        self.relations.insert(full, relation.clone());
        Some(Named::Table(relation))
    }

    /// The sequence that a name stands for.
    pub(super) fn names_sequence(&self, schema: Option<&str>, name: &str) -> Option<&Sequence> {
        let sequences = &self.context.schema.sequences;
        let schemas = schema.map_or_else(|| self.path.iter().map(String::as_str).collect(), |schema| vec![schema]);
        schemas.into_iter().find_map(|schema| sequences.get(&relation_name(schema, name)))
    }

    fn range_table(&mut self, var: &nodes::RangeVar, relation: Arc<Relation>) -> Result<(From, Vec<Item>)> {
        let rel = self.new_rel();
        let mut item = self.aliased(rel, &relation.name, &fields_of(&relation), var.alias(), var.location)?;
        if var.alias().is_none() {
            item.schema = Some(relation.schema.clone());
        }
        let scope = self.scope();
        scope.rels.push(rel);
        scope.tables.push((rel, relation.clone()));
        Ok((From::Relation(RelationRef { rel, relation }), vec![item]))
    }

    /// A table that is written to: an item of its own, and no view.
    pub(super) fn target_table(&mut self, var: &nodes::RangeVar) -> Result<RelationRef> {
        let name = var.relname().unwrap_or_default();
        if var.schemaname().is_none() && self.cte(name).is_some() {
            let message = format!("relation \"{name}\" cannot be the target of a modifying statement");
            let detail = "A common table expression of that name hides the table, if there is one.";
            return Err(self.at(SqlError::new("42P01", message).with_detail(detail), var.location));
        }
        match self.named_relation(var)? {
            Named::View(view) => self.refuse(format!("writing to view \"{}\"", plain_name(&view)), var.location),
            Named::Table(relation) if !matches!(relation.source, RelationSource::User(_)) => {
                self.fail("42501", format!("permission denied for table {name}"), var.location)
            }
            Named::Table(relation) => {
                let (from, items) = self.range_table(var, relation)?;
                self.scope().items.extend(items);
                match from {
                    From::Relation(target) => Ok(target),
                    _ => self.refuse("this target", var.location),
                }
            }
        }
    }

    /// A view's query takes its place; it sees none of the names around it.
    fn range_view(&mut self, var: &nodes::RangeVar, name: &str) -> Result<(From, Vec<Item>)> {
        let query = self.view_query(name).map_err(|mut error| {
            // A position in the view's text would point into the statement's.
            error.position = None;
            error
        })?;
        let rel = self.new_rel();
        let (schema, plain) = relation_parts(name);
        let mut item = self.aliased(rel, plain, &query.columns, var.alias(), var.location)?;
        if var.alias().is_none() {
            item.schema = Some(schema.into());
        }
        self.scope().rels.push(rel);
        self.view_rels.insert(rel, name.to_string());
        Ok((From::Subquery { rel, query: Box::new(query), lateral: false }, vec![item]))
    }

    fn view_query(&mut self, name: &str) -> Result<Query> {
        if self.views >= MAX_VIEW_DEPTH {
            return Err(SqlError::new("54001", format!("views are nested deeper than {MAX_VIEW_DEPTH} levels")));
        }
        let Some(view) = self.context.schema.views.get(name) else {
            return Err(SqlError::new("42P01", format!("relation \"{name}\" does not exist")));
        };
        let parsed = crate::parse::parse_one(&view.sql)?;
        let select = match parsed.statement() {
            Some(Node::SelectStmt(select)) => select,
            Some(Node::ViewStmt(statement)) => match statement.query() {
                Node::SelectStmt(select) => select,
                other => return self.refuse_node(other),
            },
            _ => return Err(SqlError::unsupported(format!("view \"{name}\" is not a query"))),
        };
        let text = std::mem::replace(&mut self.text, parsed.text().clone());
        let scopes = std::mem::take(&mut self.scopes);
        let ctes = std::mem::take(&mut self.ctes);
        let path = std::mem::replace(&mut self.path, view.search_path().into());
        self.views += 1;
        let query = self.placed(Place::None, |binder| binder.query(select));
        self.views -= 1;
        (self.text, self.scopes, self.ctes, self.path) = (text, scopes, ctes, path);
        let mut query = query?;
        for (field, (column, _)) in query.columns.iter_mut().zip(&view.columns) {
            field.name.clone_from(column);
        }
        Ok(query)
    }

    /// An item under its alias, with the alias' column names.
    fn aliased(
        &mut self,
        rel: RelId,
        name: &str,
        fields: &[Field],
        alias: Option<&nodes::Alias>,
        at: i32,
    ) -> Result<Item> {
        let mut item = Item::of_relation(rel, Some(name.to_string()), fields);
        let Some(alias) = alias else { return Ok(item) };
        let alias_name = alias.aliasname().unwrap_or_default();
        if alias_name != name {
            item.hidden_name = Some(name.to_string());
        }
        item.name = Some(alias_name.to_string());
        rename(&mut item.columns, alias).map_err(|error| self.at(error, at))?;
        Ok(item)
    }

    fn range_subselect(&mut self, sub: &nodes::RangeSubselect) -> Result<(From, Vec<Item>)> {
        let Node::SelectStmt(select) = sub.subquery() else { return self.refuse_node(sub.subquery()) };
        let before = std::mem::replace(&mut self.scope().lateral, sub.lateral);
        let query = self.placed(Place::FromSubquery, |binder| binder.subquery(select));
        self.scope().lateral = before;
        let query = query?;
        let rel = self.new_rel();
        let item = match sub.alias() {
            Some(alias) => {
                let name = alias.aliasname().unwrap_or_default().to_string();
                self.aliased(rel, &name, &query.columns, Some(alias), -1)?
            }
            None => {
                let error = SqlError::new("42601", "subquery in FROM must have an alias");
                return Err(error.with_hint("For example, FROM (SELECT ...) [AS] foo."));
            }
        };
        self.scope().rels.push(rel);
        Ok((From::Subquery { rel, query: Box::new(query), lateral: sub.lateral }, vec![item]))
    }

    fn range_function(&mut self, range: &nodes::RangeFunction) -> Result<(From, Vec<Item>)> {
        let mut functions = range.functions().iter();
        let (Some(Node::NodeList(pair)), None) = (functions.next(), functions.next()) else {
            return self.refuse("ROWS FROM of several functions", -1);
        };
        let Some(node) = pair.get(0) else { return self.refuse("ROWS FROM of no function", -1) };
        let definitions = match pair.get(1) {
            Some(Node::NodeList(list)) if !list.is_empty() => column_definitions(list)?,
            _ => {
                let list = range.coldeflist();
                list.iter().map(column_definition).collect::<Result<Vec<Field>>>()?
            }
        };
        if let Node::FuncCall(call) = node
            && call.args().len() > 1
            && super::call::function_name(call).is_ok_and(|name| name == "unnest")
        {
            let before = std::mem::replace(&mut self.scope().lateral, true);
            let found = self.placed(Place::FromFunction, |binder| binder.unnest_many(range, call));
            self.scope().lateral = before;
            return found;
        }
        let before = std::mem::replace(&mut self.scope().lateral, true);
        let call = self.placed(Place::FromFunction, |binder| binder.call_in_from(node));
        self.scope().lateral = before;
        let call = call?;
        let name = super::names::of_target(node);
        let alias_name = range.alias().and_then(|alias| alias.aliasname());
        let columns = self.function_columns(&call, alias_name.unwrap_or(&name), definitions, location(node))?;
        self.function_item(range, call, columns, &name)
    }

    fn function_columns(&self, call: &Expr, name: &str, definitions: Vec<Field>, at: i32) -> Result<Vec<Field>> {
        let outputs = match &call.kind {
            ExprKind::Call { function, .. } => builtins::function(*function).map(|f| &f.outputs),
            _ => None,
        };
        if call.ty.oid != types::RECORD {
            if !definitions.is_empty() {
                let message = "a column definition list is only allowed for functions returning \"record\"";
                return self.fail("42601", message, at);
            }
            // A single OUT parameter has a name of its own, which no alias of the table changes.
            let name = match outputs.map(Vec::as_slice) {
                Some([(own, _)]) => own,
                _ => name,
            };
            return Ok(vec![Field { name: name.to_string(), ty: call.ty }]);
        }
        match outputs.filter(|outputs| !outputs.is_empty()) {
            Some(_) if !definitions.is_empty() => {
                let message = "a column definition list is redundant for a function with OUT parameters";
                self.fail("42601", message, at)
            }
            Some(outputs) => {
                let field = |(name, oid): &(&str, Oid)| Field { name: (*name).to_string(), ty: Type::of(*oid) };
                Ok(outputs.iter().map(field).collect())
            }
            None if definitions.is_empty() => {
                let message = "a column definition list is required for functions returning \"record\"";
                self.fail("42601", message, at)
            }
            None => Ok(definitions),
        }
    }

    fn function_item(
        &mut self,
        range: &nodes::RangeFunction,
        call: Expr,
        mut columns: Vec<Field>,
        name: &str,
    ) -> Result<(From, Vec<Item>)> {
        let rel = self.new_rel();
        let is_set = matches!(&call.kind, ExprKind::Call { function, .. }
            if builtins::function(*function).is_some_and(|f| f.returns_set));
        if range.ordinality {
            columns.push(Field { name: "ordinality".into(), ty: Type::of(types::INT8) });
        }
        let mut item = self.aliased(rel, name, &columns, range.alias(), -1)?;
        item.hidden_name = None;
        self.scope().rels.push(rel);
        // A record is taken apart by whoever evaluates the function, also where it is only one.
        if is_set || call.ty.oid == types::RECORD {
            let from = FunctionRef { rel, call, columns, ordinality: range.ordinality, lateral: true };
            return Ok((From::Function(from), vec![item]));
        }
        // One value is a query of one row.
        let one = Expr::new(ExprKind::Const(isles_kernel::value::Value::Int(1)), types::INT8);
        let targets = std::iter::once(call).chain(range.ordinality.then_some(one)).collect();
        let query = Box::new(plain_query(targets, Vec::new(), columns));
        Ok((From::Subquery { rel, query, lateral: true }, vec![item]))
    }

    fn join(&mut self, join: &nodes::JoinExpr) -> Result<(From, Vec<Item>)> {
        let kind = match join.jointype {
            JoinType::JOIN_INNER => JoinKind::Inner,
            JoinType::JOIN_LEFT => JoinKind::Left,
            JoinType::JOIN_RIGHT => JoinKind::Right,
            JoinType::JOIN_FULL => JoinKind::Full,
            _ => return self.refuse("this kind of join", -1),
        };
        let (left, left_items) = self.bind_item(join.larg())?;
        let mark = self.scope().items.len();
        let lateral_ok = matches!(kind, JoinKind::Inner | JoinKind::Left);
        let lateral = left_items.iter().cloned().map(|item| Item { lateral_only: true, lateral_ok, ..item });
        self.scope().items.extend(lateral);
        let right = self.bind_item(join.rarg());
        self.scope().items.truncate(mark);
        let (right, right_items) = right?;
        self.check_join_names(&left_items, &right_items)?;
        let using = self.using_columns(join, &left_items, &right_items)?;
        let (on, merged) = match using {
            Some(names) => self.join_using(kind, &names, &left_items, &right_items)?,
            None => (self.join_on(join, &left_items, &right_items)?, Vec::new()),
        };
        let items = self.join_items(join, left_items, right_items, merged)?;
        Ok((From::Join(Box::new(Join { kind, left, right, on })), items))
    }

    fn check_join_names(&self, left: &[Item], right: &[Item]) -> Result<()> {
        for item in right.iter().filter(|item| item.by_name && item.name.is_some()) {
            if left.iter().any(|other| other.by_name && other.name == item.name && same_schema(other, item)) {
                let name = item.name.clone().unwrap_or_default();
                return self.fail("42712", format!("table name \"{name}\" specified more than once"), -1);
            }
        }
        Ok(())
    }

    /// The columns of USING, or those that NATURAL means. None for ON and cross joins.
    fn using_columns(&self, join: &nodes::JoinExpr, left: &[Item], right: &[Item]) -> Result<Option<Vec<String>>> {
        if join.is_natural {
            let right: Vec<&ItemColumn> = visible_columns(right).collect();
            let common = visible_columns(left).filter(|column| right.iter().any(|other| other.name == column.name));
            return Ok(Some(common.map(|column| column.name.clone()).collect()));
        }
        if join.using_clause().is_empty() {
            return Ok(None);
        }
        let mut names: Vec<String> = Vec::new();
        for name in join.using_clause().iter().filter_map(|name| name.sval()) {
            if names.iter().any(|known| known == name) {
                let message = format!("column name \"{name}\" appears more than once in USING clause");
                return self.fail("42701", message, -1);
            }
            names.push(name.to_string());
        }
        Ok(Some(names))
    }

    fn join_on(&mut self, join: &nodes::JoinExpr, left: &[Item], right: &[Item]) -> Result<Option<Expr>> {
        let quals = join.quals();
        if matches!(quals, Node::None) {
            return Ok(None);
        }
        let clean = |item: &Item| Item { lateral_only: false, lateral_ok: true, ..item.clone() };
        let items = left.iter().chain(right).map(clean).collect();
        let before = std::mem::replace(&mut self.scope().items, items);
        let on = self.placed(Place::JoinOn, |binder| binder.condition(quals, "JOIN/ON"));
        self.scope().items = before;
        on.map(Some)
    }

    fn join_using(
        &mut self,
        kind: JoinKind,
        names: &[String],
        left: &[Item],
        right: &[Item],
    ) -> Result<(Option<Expr>, Vec<ItemColumn>)> {
        let (mut parts, mut merged) = (Vec::new(), Vec::new());
        for name in names {
            let l = self.using_column(name, left, "left")?;
            let r = self.using_column(name, right, "right")?;
            parts.push(self.operator("=", Some(l.clone()), r.clone(), -1)?);
            let (mut both, ty) = self.unify(vec![l, r], "JOIN/USING", -1)?;
            let r = both.pop();
            let l = both.pop();
            let expr = match (kind, l, r) {
                (JoinKind::Full, Some(l), Some(r)) => Expr::new(ExprKind::Coalesce(vec![l, r]), ty),
                (JoinKind::Right, _, Some(r)) => r,
                (JoinKind::Inner, Some(l), Some(r)) => {
                    if is_column(&l) || !is_column(&r) {
                        l
                    } else {
                        r
                    }
                }
                (_, Some(l), _) => l,
                _ => return self.refuse("this join", -1),
            };
            merged.push(ItemColumn { name: name.clone(), expr });
        }
        Ok(((!parts.is_empty()).then(|| and(parts)), merged))
    }

    fn using_column(&self, name: &str, items: &[Item], side: &str) -> Result<Expr> {
        let mut found = visible_columns(items).filter(|column| column.name == name);
        match (found.next(), found.next()) {
            (Some(column), None) => Ok(column.expr.clone()),
            (Some(_), Some(_)) => {
                self.fail("42702", format!("common column name \"{name}\" appears more than once in {side} table"), -1)
            }
            (None, _) => self.fail(
                "42703",
                format!("column \"{name}\" specified in USING clause does not exist in {side} table"),
                -1,
            ),
        }
    }

    /// What can be seen of a join: its columns, and its tables by name unless an alias hides them.
    fn join_items(
        &mut self,
        join: &nodes::JoinExpr,
        left: Vec<Item>,
        right: Vec<Item>,
        merged: Vec<ItemColumn>,
    ) -> Result<Vec<Item>> {
        let rest = |items: &[Item]| -> Vec<ItemColumn> {
            let kept = |column: &&ItemColumn| !merged.iter().any(|m| m.name == column.name);
            visible_columns(items).filter(kept).cloned().collect()
        };
        let mut columns = merged.clone();
        columns.extend(rest(&left));
        columns.extend(rest(&right));
        if let Some(alias) = join.alias() {
            rename(&mut columns, alias)?;
            return Ok(vec![joined(alias.aliasname(), columns)]);
        }
        let mut items: Vec<Item> = left.into_iter().chain(right).collect();
        items.retain(|item| item.by_name);
        items.iter_mut().for_each(|item| item.by_column = false);
        let mut own = joined(None, columns);
        own.by_name = false;
        items.push(own);
        if let Some(alias) = join.join_using_alias() {
            let mut using = joined(alias.aliasname(), merged);
            using.by_column = false;
            items.push(using);
        }
        Ok(items)
    }
}

fn is_column(expr: &Expr) -> bool {
    matches!(expr.kind, ExprKind::Column { .. })
}

fn same_schema(a: &Item, b: &Item) -> bool {
    a.schema.is_none() || b.schema.is_none() || a.schema == b.schema
}

fn joined(name: Option<&str>, columns: Vec<ItemColumn>) -> Item {
    Item {
        name: name.map(str::to_string),
        schema: None,
        hidden_name: None,
        columns,
        by_column: true,
        by_name: true,
        lateral_only: false,
        lateral_ok: true,
    }
}

fn visible_columns(items: &[Item]) -> impl Iterator<Item = &ItemColumn> {
    items.iter().filter(|item| item.by_column).flat_map(|item| &item.columns)
}

pub(super) fn rename(columns: &mut [ItemColumn], alias: &nodes::Alias) -> Result<()> {
    let names: Vec<&str> = alias.colnames().iter().filter_map(Node::as_str).collect();
    if names.len() > columns.len() {
        let table = alias.aliasname().unwrap_or_default();
        let (has, given) = (columns.len(), names.len());
        let message = format!("table \"{table}\" has {has} columns available but {given} columns specified");
        return Err(SqlError::new("42P10", message));
    }
    columns.iter_mut().zip(names).for_each(|(column, name)| column.name = name.to_string());
    Ok(())
}

fn column_definitions(list: &NodeList) -> Result<Vec<Field>> {
    list.iter()
        .map(|node| match node {
            Node::ColumnDef(definition) => column_definition(definition),
            other => Err(super::unsupported_node(other)),
        })
        .collect()
}

fn column_definition(definition: &nodes::ColumnDef) -> Result<Field> {
    let Some(ty) = definition.type_name() else {
        return Err(SqlError::new("42601", "a column definition must have a type"));
    };
    Ok(Field { name: definition.colname().unwrap_or_default().to_string(), ty: typename::resolve(ty)? })
}

/// A query of nothing but targets over a FROM clause.
pub(super) fn plain_query(targets: Vec<Expr>, from: Vec<From>, columns: Vec<Field>) -> Query {
    let select = Select { distinct: Distinct::No, targets, from, filter: None, group_by: GroupBy::None, having: None };
    Query {
        ctes: Vec::new(),
        body: Body::Select(Box::new(select)),
        order_by: Vec::new(),
        limit: None,
        offset: None,
        with_ties: false,
        lock: None,
        columns,
    }
}
