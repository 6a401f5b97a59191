//! The key of a row in a global index, computed from the row.
//!
//!     users (lower(email), age) WHERE active
//!     (7, 'Ann@b.c', 30, true)   ──►  ('ann@b.c', 30)
//!     (8, 'Bob@b.c', 31, false)  ──►  none: the index leaves it out
//!
//! Whoever keeps entries sees rows as they were and as they are, and needs their keys without asking an engine.
//! Expressions are computed by the functions that SQLite shards call, and that give PostgreSQL's answers.

use crate::bind::BoundKey;
use crate::eval::{Given, can_eval, eval};
use crate::plan::walk::{Visitor, walk};
use crate::runtime::Env;
use crate::text::Settings;
use crate::tree::{Context, Expr, ExprKind};
use crate::types::{self, Type};
use isles_kernel::error::SqlError;
use isles_kernel::schema::{Key, Table};
use isles_kernel::value::Value;
use std::collections::BTreeSet;

/// What a global index is over, ready to be computed. Rows are in the order of the table's columns.
#[derive(Debug, Clone)]
pub struct RowKey {
    parts: Vec<Part>,
    predicate: Option<Expr>,
    columns: Vec<usize>,
    /// Those that every session begins with: what is immutable does not depend on them, but is told.
    settings: Settings,
}

#[derive(Debug, Clone)]
struct Part {
    over: Over,
    ty: Type,
}

#[derive(Debug, Clone)]
enum Over {
    Column(usize),
    /// Over parameters, of which each is the row's column of that number.
    Expression(Expr),
}

impl RowKey {
    /// Refuses a key that only an engine can compute.
    pub fn of(table: &Table, key: &Key) -> Result<RowKey, SqlError> {
        let bound = BoundKey::of(table, key)?;
        let mut columns = Columns::default();
        bound.parts.iter().chain(&bound.predicate).for_each(|expr| columns.expr(expr));
        let BoundKey { parts, predicate } = bound.over(ExprKind::Param);
        if !parts.iter().chain(&predicate).all(can_eval) {
            let message = format!("an expression of global index \"{}\" cannot be computed without a shard", key.name);
            return Err(SqlError::unsupported(message).with_hint("use other functions, or a plain index"));
        }
        let parts = parts.into_iter().map(Part::of).collect();
        Ok(RowKey { parts, predicate, columns: columns.0.into_iter().collect(), settings: Settings::default() })
    }

    /// The value of each part; None for a row that a partial index leaves out.
    pub fn values(&self, row: &[Value]) -> Option<Vec<Value>> {
        if let Some(predicate) = &self.predicate
            && self.computed(predicate, row) != Value::Bool(true)
        {
            return None;
        }
        let value = |part: &Part| match &part.over {
            Over::Column(at) => row.get(*at).cloned().unwrap_or(Value::Null),
            Over::Expression(expr) => self.computed(expr, row),
        };
        Some(self.parts.iter().map(value).collect())
    }

    /// Whether a part is a `character(n)`: blanks at its end do not count.
    pub fn is_padded(&self, part: usize) -> bool {
        self.type_of(part).is_some_and(|ty| ty.oid == types::BPCHAR)
    }

    pub fn type_of(&self, part: usize) -> Option<Type> {
        self.parts.get(part).map(|part| part.ty)
    }

    /// Positions of all columns that it reads, in order.
    pub fn columns(&self) -> &[usize] {
        &self.columns
    }

    /// An error is null. A stored row gives none: its shard has an index over the same expressions, and has computed
    /// them before it took the row.
    fn computed(&self, expr: &Expr, row: &[Value]) -> Value {
        let (mut clock, mut random) = (|| 0, || 0);
        let mut env = Env { settings: &self.settings, clock: &mut clock, random: &mut random };
        eval(expr, &mut env, &Row(row)).unwrap_or(Value::Null)
    }
}

impl Part {
    fn of(expr: Expr) -> Part {
        let ty = expr.ty;
        match expr.kind {
            ExprKind::Param(at) => Part { over: Over::Column(at), ty },
            _ => Part { over: Over::Expression(expr), ty },
        }
    }
}

/// A row's columns as parameters.
pub(crate) struct Row<'a>(pub(crate) &'a [Value]);

impl Given for Row<'_> {
    fn param(&self, index: usize) -> Option<Value> {
        self.0.get(index).cloned()
    }

    fn context(&self, _: &Context, _: Type) -> Option<Value> {
        None
    }
}

#[derive(Default)]
struct Columns(BTreeSet<usize>);

impl Visitor for Columns {
    fn expr(&mut self, expr: &Expr) {
        if let ExprKind::Column { column, .. } = expr.kind {
            self.0.insert(column);
        }
        walk::expr(self, expr);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isles_kernel::names::GroupName;
    use isles_kernel::schema::{Column, Expression, KeyOver, KeyPart, SqlType, TableKind};
    use isles_kernel::value::DataType;

    /// `users (id bigint, email text, code char(4), age int, active boolean)`.
    fn users() -> Table {
        let group = GroupName::new("users").expect("a name");
        let kind = TableKind::Hash { group, shard_by: vec!["id".into()], buckets: 8, regions: vec![] };
        let code = Column::new("code", DataType::Text);
        let columns = vec![
            Column::new("id", DataType::Int8).not_null(),
            Column::new("email", DataType::Text),
            Column { sql_type: Some(SqlType { oid: types::BPCHAR.0, modifier: 8 }), ..code },
            Column::new("age", DataType::Int4),
            Column::new("active", DataType::Bool),
        ];
        Table::new("users", kind, columns, &["id"])
    }

    fn expression(sql: &str) -> Expression {
        Expression { sql: sql.into(), sqlite: String::new(), postgres: sql.into(), columns: Vec::new() }
    }

    fn over(parts: &[&str], predicate: Option<&str>) -> Result<RowKey, SqlError> {
        let part = |sql: &&str| KeyPart {
            over: match users().position(sql) {
                Some(_) => KeyOver::Column((*sql).into()),
                None => KeyOver::Expression(expression(sql)),
            },
            descending: false,
            nulls_first: false,
        };
        let (parts, predicate) = (parts.iter().map(part).collect(), predicate.map(expression));
        RowKey::of(&users(), &Key { parts, predicate, ..Key::unique("k", &[]) })
    }

    fn key(parts: &[&str], predicate: Option<&str>) -> RowKey {
        over(parts, predicate).expect("a key")
    }

    fn row(email: Value, age: Value, active: Value) -> Vec<Value> {
        vec![Value::Int(7), email, Value::text("ab  "), age, active]
    }

    fn ann() -> Vec<Value> {
        row(Value::text("Ann@B.c"), Value::Int(30), Value::Bool(true))
    }

    #[test]
    fn a_column_is_taken_as_it_is() {
        let plain = RowKey::of(&users(), &Key::unique("k", &["email"])).expect("a key");
        assert_eq!(plain.values(&ann()), Some(vec![Value::text("Ann@B.c")]));
        assert_eq!(plain.columns(), [1]);
        assert!(!plain.is_padded(0));
        let code = key(&["code"], None);
        assert_eq!(code.values(&ann()), Some(vec![Value::text("ab  ")]));
        assert!(code.is_padded(0));
    }

    #[test]
    fn an_expression_is_computed() {
        let lower = key(&["lower(email)"], None);
        assert_eq!(lower.values(&ann()), Some(vec![Value::text("ann@b.c")]));
        assert_eq!(lower.columns(), [1]);
        let sum = key(&["age * 2 + id"], None);
        assert_eq!(sum.values(&ann()), Some(vec![Value::Int(67)]));
        assert_eq!(sum.columns(), [0, 3]);
    }

    #[test]
    fn a_row_that_the_predicate_leaves_out_has_no_key() {
        let partial = key(&["email"], Some("active AND age > 17"));
        assert_eq!(partial.values(&ann()), Some(vec![Value::text("Ann@B.c")]));
        let of = |age, active| partial.values(&row(Value::text("x"), age, active));
        assert_eq!(of(Value::Int(17), Value::Bool(true)), None);
        assert_eq!(of(Value::Int(30), Value::Bool(false)), None);
        assert_eq!(of(Value::Null, Value::Bool(true)), None, "unknown is not true");
        assert_eq!(partial.columns(), [1, 3, 4]);
    }

    #[test]
    fn null_is_the_value_of_what_has_none() {
        let parts = key(&["lower(email)", "age", "coalesce(age, 0)"], None);
        let values = parts.values(&row(Value::Null, Value::Null, Value::Null));
        assert_eq!(values, Some(vec![Value::Null, Value::Null, Value::Int(0)]));
        let failing = key(&["1 / age"], None);
        assert_eq!(failing.values(&row(Value::Null, Value::Int(0), Value::Null)), Some(vec![Value::Null]));
    }

    #[test]
    fn parts_come_in_the_order_of_the_index() {
        let parts = key(&["age", "lower(email)", "code", "id"], None);
        let values = vec![Value::Int(30), Value::text("ann@b.c"), Value::text("ab  "), Value::Int(7)];
        assert_eq!(parts.values(&ann()), Some(values));
        assert_eq!([0, 1, 2, 3, 4].map(|part| parts.is_padded(part)), [false, false, true, false, false]);
        assert_eq!(parts.columns(), [0, 1, 2, 3]);
    }

    #[test]
    fn what_only_an_engine_can_compute_is_refused() {
        let error = over(&["(SELECT 1)"], None).expect_err("a query");
        assert_eq!(error.sqlstate, "0A000");
    }
}
