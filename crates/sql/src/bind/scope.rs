//! What names can be seen from where.
//!
//! Each query has a scope; scopes stand on each other, and a name is looked up from the innermost outwards. A scope
//! holds items: a table or subquery of the FROM clause, or the columns of a join. An item can be seen by its own name
//! (`t.x`), by its columns' names (`x`), or both; the tables of a join are seen by name and the join by its columns.

use super::{Binder, Result};
use crate::tree::{CastHow, CteId, Expr, ExprKind, Field, RelId, RelationSource};
use crate::types;
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;

/// One query's names.
#[derive(Debug, Default)]
pub(super) struct Scope {
    pub items: Vec<Item>,
    /// Relations that belong to this query: a column of another one is an outer reference.
    pub rels: Vec<RelId>,
    /// Whether a lateral item is being bound, which sees the items before it.
    pub lateral: bool,
    /// Stored relations, for what depends on their keys.
    pub tables: Vec<(RelId, std::sync::Arc<crate::tree::Relation>)>,
    pub aggregates: bool,
    pub windows: bool,
    /// Named windows of the query.
    pub named_windows: Vec<(String, super::call::WindowSpec)>,
    /// Keys of the GROUP BY, for GROUPING(…).
    pub group_keys: Option<Vec<Expr>>,
    pub saw_grouping: bool,
    /// The one set-returning function among the targets.
    pub set_function: Option<crate::tree::FunctionRef>,
    /// Or those that take arrays apart in step.
    pub lockstep: Option<super::lockstep::Lockstep>,
}

#[derive(Debug, Clone)]
pub(super) struct Item {
    pub name: Option<String>,
    /// For a table without an alias, which can be named with its schema.
    pub schema: Option<String>,
    /// The table's own name, if an alias hides it.
    pub hidden_name: Option<String>,
    pub columns: Vec<ItemColumn>,
    /// Whether `x` finds its columns, and whether `name.x` does.
    pub by_column: bool,
    pub by_name: bool,
    /// Only for what is lateral to it, while the FROM clause is still being bound.
    pub lateral_only: bool,
    /// False on the wrong side of an outer join.
    pub lateral_ok: bool,
}

#[derive(Debug, Clone)]
pub(super) struct ItemColumn {
    pub name: String,
    pub expr: Expr,
}

impl Item {
    pub(super) fn of_relation(rel: RelId, name: Option<String>, fields: &[Field]) -> Item {
        let column = |(at, field): (usize, &Field)| ItemColumn {
            name: field.name.clone(),
            expr: Expr::new(ExprKind::Column { rel, column: at }, field.ty),
        };
        Item {
            name,
            schema: None,
            hidden_name: None,
            columns: fields.iter().enumerate().map(column).collect(),
            by_column: true,
            by_name: true,
            lateral_only: false,
            lateral_ok: true,
        }
    }
}

/// A common table expression that can be named.
#[derive(Debug, Clone)]
pub(super) struct CteEntry {
    pub name: String,
    pub id: CteId,
    /// None while the start of a recursive one is being bound: it may not name itself there.
    pub columns: Option<Vec<Field>>,
    /// Whether uses are counted: how often a recursive one named itself.
    pub uses: usize,
    /// False for a data-modifying one without RETURNING, which has no rows, and for one that cannot be recursive.
    pub readable: bool,
}

/// Where in a statement an expression stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    None,
    Target,
    Where,
    Having,
    Filter,
    JoinOn,
    FromFunction,
    FromSubquery,
    GroupBy,
    OrderBy,
    DistinctOn,
    Limit,
    Offset,
    Returning,
    Values,
    UpdateSource,
    Default,
    WindowPartition,
    WindowOrder,
    WindowFrame,
    ConflictTarget,
}

impl Place {
    /// As PostgreSQL calls it in "… are not allowed in".
    pub(super) fn says(self) -> &'static str {
        match self {
            Place::None | Place::Target => "SELECT",
            Place::Where => "WHERE",
            Place::Having => "HAVING",
            Place::Filter => "FILTER",
            Place::JoinOn => "JOIN conditions",
            Place::FromFunction => "functions in FROM",
            Place::FromSubquery => "FROM clause of their own query level",
            Place::GroupBy => "GROUP BY",
            Place::OrderBy => "ORDER BY",
            Place::DistinctOn => "DISTINCT ON",
            Place::Limit => "LIMIT",
            Place::Offset => "OFFSET",
            Place::Returning => "RETURNING",
            Place::Values => "VALUES",
            Place::UpdateSource => "UPDATE",
            Place::Default => "DEFAULT expressions",
            Place::WindowPartition => "window PARTITION BY",
            Place::WindowOrder => "window ORDER BY",
            Place::WindowFrame => "window frame",
            Place::ConflictTarget => "index expressions",
        }
    }

    pub(super) fn allows_aggregates(self) -> bool {
        matches!(
            self,
            Place::None
                | Place::Target
                | Place::Having
                | Place::OrderBy
                | Place::DistinctOn
                | Place::WindowPartition
                | Place::WindowOrder
        )
    }

    pub(super) fn allows_windows(self) -> bool {
        matches!(self, Place::None | Place::Target | Place::OrderBy | Place::DistinctOn)
    }
}

/// What a column's name means.
enum Found {
    Expr(Expr),
    Nothing,
}

impl Binder<'_> {
    pub(super) fn scope(&mut self) -> &mut Scope {
        if self.scopes.is_empty() {
            self.scopes.push(Scope::default());
        }
        self.scopes.last_mut().expect("a scope was just made sure of")
    }

    /// Runs in a scope of its own.
    pub(super) fn scoped<T>(&mut self, run: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.scopes.push(Scope::default());
        let result = run(self);
        self.scopes.pop();
        result
    }

    /// `x`.
    pub(super) fn column(&mut self, name: &str, location: i32) -> Result<Option<Expr>> {
        for level in (0..self.scopes.len()).rev() {
            if let Found::Expr(expr) = self.column_in(level, name, location)? {
                return Ok(Some(expr));
            }
        }
        Ok(None)
    }

    fn column_in(&self, level: usize, name: &str, location: i32) -> Result<Found> {
        let scope = &self.scopes[level];
        let mut found: Option<&Expr> = None;
        let visible = |item: &&Item| item.by_column && (!item.lateral_only || scope.lateral);
        for item in scope.items.iter().filter(visible) {
            for column in item.columns.iter().filter(|column| column.name == name) {
                if found.is_some() {
                    return self.fail("42702", format!("column reference \"{name}\" is ambiguous"), location);
                }
                self.check_lateral(item, location)?;
                found = Some(&column.expr);
            }
        }
        Ok(found.map_or(Found::Nothing, |expr| Found::Expr(expr.clone())))
    }

    fn check_lateral(&self, item: &Item, location: i32) -> Result<()> {
        if !item.lateral_only || item.lateral_ok {
            return Ok(());
        }
        let name = item.name.clone().unwrap_or_default();
        let error = SqlError::new("42P10", format!("invalid reference to FROM-clause entry for table \"{name}\""))
            .with_detail("The combining JOIN type must be INNER or LEFT for a LATERAL reference.");
        Err(self.at(error, location))
    }

    /// The item of a name, from the innermost scope that has one.
    pub(super) fn item(&self, schema: Option<&str>, name: &str, location: i32) -> Result<Option<Item>> {
        for scope in self.scopes.iter().rev() {
            let visible = |item: &&Item| item.by_name && (!item.lateral_only || scope.lateral);
            let named = |item: &&Item| {
                item.name.as_deref() == Some(name) && (schema.is_none() || item.schema.as_deref() == schema)
            };
            let mut found = scope.items.iter().filter(visible).filter(named);
            let Some(item) = found.next() else { continue };
            if found.next().is_some() {
                return self.fail("42P09", format!("table reference \"{name}\" is ambiguous"), location);
            }
            self.check_lateral(item, location)?;
            return Ok(Some(item.clone()));
        }
        Ok(None)
    }

    /// `t.x`.
    pub(super) fn qualified_column(
        &mut self,
        schema: Option<&str>,
        table: &str,
        name: &str,
        location: i32,
    ) -> Result<Expr> {
        let Some(item) = self.item(schema, table, location)? else {
            return Err(self.missing_table(table, location));
        };
        let mut found = item.columns.iter().filter(|column| column.name == name);
        match (found.next(), found.next()) {
            (Some(column), None) => Ok(column.expr.clone()),
            (Some(_), Some(_)) => self.fail("42702", format!("column reference \"{name}\" is ambiguous"), location),
            (None, _) if name == "tableoid" => self.table_oid(&item, location),
            (None, _) => Err(self.missing_column(Some(table), name, location)),
        }
    }

    /// The number of a system relation itself: rows of `pg_description` refer to it.
    fn table_oid(&self, item: &Item, location: i32) -> Result<Expr> {
        let rel = item.columns.first().and_then(|column| match column.expr.kind {
            ExprKind::Column { rel, .. } => Some(rel),
            _ => None,
        });
        let tables = self.scopes.iter().flat_map(|scope| &scope.tables);
        let relation = tables.into_iter().find(|(known, _)| Some(*known) == rel).map(|(_, relation)| relation);
        let Some(relation) = relation.filter(|relation| relation.source == RelationSource::System) else {
            return self.refuse("system column \"tableoid\"", location);
        };
        let name = Value::Text(format!("{}.{}", relation.schema, relation.name));
        let name = Box::new(Expr::new(ExprKind::Const(name), types::TEXT));
        let class = Expr::new(ExprKind::Cast { arg: name, how: CastHow::InOut }, types::REGCLASS);
        Ok(Expr::new(ExprKind::Cast { arg: Box::new(class), how: CastHow::Relabel }, types::OID))
    }

    /// `errorMissingRTE`: the table may be there under another name, or out of reach.
    pub(super) fn missing_table(&self, name: &str, location: i32) -> SqlError {
        let all = || self.scopes.iter().rev().flat_map(|scope| &scope.items);
        let invalid = || SqlError::new("42P01", format!("invalid reference to FROM-clause entry for table \"{name}\""));
        let error = if let Some(item) = all().find(|item| item.hidden_name.as_deref() == Some(name)) {
            let alias = item.name.clone().unwrap_or_default();
            invalid().with_hint(format!("Perhaps you meant to reference the table alias \"{alias}\"."))
        } else if all().any(|item| item.name.as_deref() == Some(name)) {
            let says = format!(
                "There is an entry for table \"{name}\", but it cannot be referenced from this part of the query."
            );
            invalid().with_hint(says)
        } else {
            SqlError::new("42P01", format!("missing FROM-clause entry for table \"{name}\""))
        };
        self.at(error, location)
    }

    pub(super) fn missing_column(&self, table: Option<&str>, name: &str, location: i32) -> SqlError {
        let message = match table {
            Some(table) => format!("column {table}.{name} does not exist"),
            None => format!("column \"{name}\" does not exist"),
        };
        let error = SqlError::new("42703", message);
        let error = match self.similar_column(table, name).or_else(|| self.hidden_column(table, name)) {
            Some(hint) => error.with_hint(hint),
            None => error,
        };
        self.at(error, location)
    }

    /// A table that has the column, but cannot be seen from here: the target of an INSERT.
    fn hidden_column(&self, table: Option<&str>, name: &str) -> Option<String> {
        let (target, columns) = self.insert_target.as_ref().filter(|_| table.is_none())?;
        columns.iter().any(|column| column == name).then(|| {
            format!(
                "There is a column named \"{name}\" in table \"{target}\", but it cannot be referenced from this part of \
                 the query."
            )
        })
    }

    /// The nearest name that the writer may have meant, as PostgreSQL guesses it.
    fn similar_column(&self, table: Option<&str>, name: &str) -> Option<String> {
        let mut best: Vec<(String, String)> = Vec::new();
        let mut least = (name.chars().count() / 2).min(MAX_FUZZY_DISTANCE - 1) + 1;
        for scope in self.scopes.iter().rev() {
            for item in scope.items.iter().filter(|item| item.by_name) {
                let Some(item_name) = &item.name else { continue };
                let penalty = table.map_or(0, |table| distance(table, item_name));
                for column in &item.columns {
                    let far = distance(name, &column.name) + penalty;
                    if far < least {
                        least = far;
                        best.clear();
                    }
                    if far == least && least <= name.chars().count() / 2 {
                        best.push((item_name.clone(), column.name.clone()));
                    }
                }
            }
        }
        match best.as_slice() {
            [(table, column)] => Some(format!("Perhaps you meant to reference the column \"{table}.{column}\".")),
            [(t1, c1), (t2, c2)] => {
                Some(format!("Perhaps you meant to reference the column \"{t1}.{c1}\" or the column \"{t2}.{c2}\"."))
            }
            _ => None,
        }
    }

    /// How many queries out a relation is: 0 for the innermost.
    pub(super) fn level_of(&self, rel: RelId) -> Option<usize> {
        self.scopes.iter().rev().position(|scope| scope.rels.contains(&rel))
    }

    pub(super) fn cte(&mut self, name: &str) -> Option<&mut CteEntry> {
        self.ctes.iter_mut().rev().find(|cte| cte.name == name)
    }
}

/// `MAX_FUZZY_DISTANCE` of PostgreSQL.
const MAX_FUZZY_DISTANCE: usize = 3;

/// Levenshtein's.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, ca) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, cb) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(ca != *cb);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
