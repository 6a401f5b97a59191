//! What a key of a table is over, bound: its columns, and the expressions and the predicate that are kept as text.

use super::expressions::bound_over;
use super::from::column_type;
use super::{BindContext, Result, utility};
use crate::plan::walk::{Rewriter, rewrite};
use crate::print;
use crate::text::Settings;
use crate::tree::{Expr, ExprKind, RelId};
use isles_kernel::error::SqlError;
use isles_kernel::schema::{Expression, Key, KeyOver, Schema, Table};

/// A key's parts and its predicate, over the columns of one row.
#[derive(Debug, Clone)]
pub(crate) struct BoundKey {
    pub(crate) parts: Vec<Expr>,
    /// A partial index has only rows for which this is true.
    pub(crate) predicate: Option<Expr>,
}

impl BoundKey {
    pub(crate) fn of(table: &Table, key: &Key) -> Result<BoundKey> {
        let reader = Reader { table };
        let part = |over: &KeyOver| match over {
            KeyOver::Column(name) => column(table, name),
            KeyOver::Expression(expression) => reader.expression(expression),
        };
        let parts = match key.parts.is_empty() {
            true => key.columns.iter().map(|name| column(table, name)).collect::<Result<_>>()?,
            false => key.parts.iter().map(|entry| part(&entry.over)).collect::<Result<_>>()?,
        };
        let predicate = key.predicate.as_ref().map(|predicate| reader.expression(predicate)).transpose()?;
        Ok(BoundKey { parts, predicate })
    }

    /// The same with something else in the place of each column: a column of a relation, a parameter.
    pub(crate) fn over(&self, put: impl Fn(usize) -> ExprKind) -> BoundKey {
        let (mut key, mut put) = (self.clone(), Put(put));
        key.parts.iter_mut().chain(&mut key.predicate).for_each(|expr| put.expr(expr));
        key
    }
}

/// Puts something else in the place of each column.
struct Put<F>(F);

impl<F: Fn(usize) -> ExprKind> Rewriter for Put<F> {
    fn expr(&mut self, expr: &mut Expr) {
        match expr.kind {
            ExprKind::Column { column, .. } => expr.kind = self.0(column),
            _ => rewrite::expr(self, expr),
        }
    }
}

/// Makes a parameter of each column, by its number.
pub(super) fn over_params(expr: &mut Expr) {
    Put(ExprKind::Param).expr(expr);
}

/// A column, of no relation in particular.
fn column(table: &Table, name: &str) -> Result<Expr> {
    let Some(at) = table.position(name) else {
        return Err(SqlError::new("42703", format!("column \"{name}\" of relation \"{}\" does not exist", table.name)));
    };
    Ok(Expr::new(ExprKind::Column { rel: RelId(0), column: at }, column_type(&table.columns[at])))
}

/// Reads texts over a table. Expressions of keys are immutable and name nothing but the table's columns, so it needs to
/// know no other table, and nothing of any session.
struct Reader<'a> {
    table: &'a Table,
}

impl Reader<'_> {
    /// The text as it was given reads a date as its author's session did, and is what the printer knows the expression
    /// by; the other text means the same in every session.
    fn expression(&self, expression: &Expression) -> Result<Expr> {
        match self.text(&expression.sql) {
            Ok((expr, text)) if text.as_ref() == Some(&expression.postgres) => Ok(expr),
            _ => self.text(&expression.postgres).map(|(expr, _)| expr),
        }
    }

    fn text(&self, sql: &str) -> Result<(Expr, Option<String>)> {
        with_table_alone(self.table, |context| {
            let (_, expr, of) = bound_over(context, self.table, sql)?;
            let text = print::text_over_table(&expr, &of);
            Ok((expr, text))
        })
    }
}

/// What an expression over a row is bound in when it is to mean the same in every session: it needs to know no other table,
/// and no settings but those that every session begins with.
pub(super) fn with_table_alone<T>(table: &Table, bind: impl FnOnce(&BindContext<'_>) -> Result<T>) -> Result<T> {
    let (mut schema, settings) = (Schema::default(), Settings::default());
    schema.namespaces.insert(table.namespace().into());
    schema.tables.insert(table.name.clone(), table.clone());
    bind(&BindContext {
        schema: &schema,
        search_path: &[],
        database: "",
        settings: &settings,
        default_kind: utility::DefaultKind::Hash,
        default_buckets: 1,
        procedures: &crate::bind::procedure::NO_PROCEDURES,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use isles_kernel::names::GroupName;
    use isles_kernel::schema::{Column, TableKind};
    use isles_kernel::value::DataType;

    fn table() -> Table {
        let group = GroupName::new("g").expect("a name");
        let kind = TableKind::Hash { group, shard_by: vec!["id".into()], buckets: 8, regions: vec![] };
        let columns = vec![Column::new("id", DataType::Int8), Column::new("at", DataType::TimestampTz)];
        Table::new("app.things", kind, columns, &["id"])
    }

    #[test]
    fn a_text_that_a_session_reads_in_its_own_way_is_read_as_that_session_did() {
        let expression = |sql: &str, postgres: &str| Expression {
            sql: sql.into(),
            sqlite: String::new(),
            postgres: postgres.into(),
            columns: vec!["at".into()],
        };
        let (table, key) = (table(), Key::index("k", &["id"]));
        let bound = |sql: &str, postgres: &str| {
            let key = Key { predicate: Some(expression(sql, postgres)), ..key.clone() };
            BoundKey::of(&table, &key).expect("a predicate").predicate.expect("a predicate")
        };
        let exact = "at > TIMESTAMPTZ '2024-01-01 02:00:00+02'";
        assert_eq!(bound("at > '2024-01-01'", exact), bound(exact, exact));
        assert_ne!(bound("at > '2024-01-01'", exact), bound(exact, "at > TIMESTAMPTZ '2024-01-01 02:00:00+03'"));
        assert_eq!(bound("at > '31.12.2024'", exact), bound(exact, exact), "what cannot be read here at all");
    }
}
