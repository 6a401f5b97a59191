//! FROM: relations, joins, functions that return rows, and LATERAL.
//!
//! SQLite has no LATERAL. A function's arguments may refer to earlier relations all the same; a lateral subquery is
//! taken apart if it is one of these, and otherwise refused:
//!   * a plain select: its relations join its neighbours', its filter their conditions
//!   * a select that gives one row for sure, or at most one: each of its columns becomes a scalar subquery

use super::super::call::{self, Callee, Op};
use super::{Names, Printer, Result, alias, column_names, joined, unsupported, walk};
use crate::builtins;
use crate::planted::{self, Bug};
use crate::tree::{
    Body, Distinct, Expr, ExprKind, From, FunctionRef, GroupBy, Join, JoinKind, Query, RelId, RelationRef,
    RelationSource, Select,
};
use isles_kernel::schema::{TableKind, tenant_view};
use isles_kernel::value::Value;

/// A printed FROM clause, and conditions that belong into the WHERE clause beside it.
pub(super) struct FromText {
    pub(super) text: String,
    pub(super) conditions: Vec<String>,
}

/// A printed item. A lateral subquery that gave its columns away has no text left.
struct Item {
    text: Option<String>,
    conditions: Vec<String>,
}

impl Item {
    fn of(text: String) -> Item {
        Item { text: Some(text), conditions: Vec::new() }
    }
}

/// How many rows a query gives, as far as its form tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rows {
    One,
    AtMostOne,
    Any,
}

pub(super) fn rows_of(query: &Query) -> Rows {
    let bounded = match query.limit.as_ref().map(|limit| &limit.kind) {
        Some(ExprKind::Const(Value::Int(0 | 1))) if !query.with_ties => Rows::AtMostOne,
        _ => Rows::Any,
    };
    let free = query.limit.is_none() && query.offset.is_none();
    match &query.body {
        Body::Select(select) if is_one_group(select) && select.having.is_none() && free => Rows::One,
        Body::Select(select) if is_one_group(select) => Rows::AtMostOne,
        Body::Select(select) if select.from.is_empty() && select.group_by == GroupBy::None => match &select.filter {
            None if free => Rows::One,
            _ => Rows::AtMostOne,
        },
        Body::Values(rows) if rows.len() == 1 && free => Rows::One,
        Body::Values(rows) if rows.len() == 1 => Rows::AtMostOne,
        _ => bounded,
    }
}

fn is_one_group(select: &Select) -> bool {
    matches!(&select.group_by, GroupBy::Keys(keys) if keys.is_empty())
}

impl Printer {
    pub(super) fn sources(&mut self, items: &[From]) -> Result<FromText> {
        let mut earlier = Vec::new();
        let mut out = FromText { text: String::new(), conditions: Vec::new() };
        for from in items {
            let item = self.source_of(from, &earlier)?;
            walk::relations(from, &mut earlier);
            out.conditions.extend(item.conditions);
            if let Some(text) = item.text {
                out.text.push_str(if out.text.is_empty() { " FROM " } else { ", " });
                // SQLite reads commas and joins from left to right: these would take in what stands before them.
                let apart = out.text != " FROM " && keeps_right(from);
                out.text.push_str(&if apart { format!("({text})") } else { text });
            }
        }
        Ok(out)
    }

    /// `earlier` are the relations that a lateral item may refer to.
    fn source_of(&mut self, from: &From, earlier: &[RelId]) -> Result<Item> {
        match from {
            From::Relation(relation) => self.relation(relation).map(Item::of),
            From::Subquery { rel, query, .. } if walk::refers_to(query, earlier) => self.lateral(*rel, query),
            From::Subquery { rel, query, .. } => {
                let text = self.fenced(query)?;
                self.number(*rel, None);
                Ok(Item::of(format!("({text}) AS {}", alias(*rel))))
            }
            From::Cte { rel, cte, .. } => {
                self.number(*rel, None);
                Ok(Item::of(format!("x{} AS {}", cte.0, alias(*rel))))
            }
            From::Function(function) => self.function(function).map(Item::of),
            From::Join(join) => self.join(join, earlier),
        }
    }

    fn number(&mut self, rel: RelId, ordinality: Option<usize>) {
        self.names.insert(rel, Names::Numbered { alias: alias(rel), ordinality });
    }

    /// A relation that is read. A tenant table is read through a view of the shard's, which has one tenant's rows.
    pub(super) fn relation(&mut self, of: &RelationRef) -> Result<String> {
        let relation = &of.relation;
        let name = match &relation.source {
            RelationSource::User(table) if table.kind == TableKind::Tenant && self.uses_views() => {
                super::super::quoted(&tenant_view(&table.name))
            }
            // The shard has it under one name, with its schema in it.
            RelationSource::User(table) => super::super::quoted(&table.name),
            RelationSource::Staged => super::super::quoted(&relation.name),
            RelationSource::System => {
                return Err(unsupported(format!("relation {}.{}", relation.schema, relation.name)));
            }
        };
        self.names.insert(of.rel, Names::Table { alias: alias(of.rel), relation: relation.clone() });
        Ok(format!("{name} AS {}", alias(of.rel)))
    }

    fn uses_views(&self) -> bool {
        !self.params.are_for_people() && !planted::has(Bug::OpenStorage)
    }

    /// The table that a statement writes to.
    pub(super) fn target(&mut self, of: &RelationRef) -> Result<String> {
        let name = super::super::quoted(&super::super::table(of)?.name);
        self.names.insert(of.rel, Names::Table { alias: alias(of.rel), relation: of.relation.clone() });
        Ok(format!("{name} AS {}", alias(of.rel)))
    }

    /// A subquery's rows. SQLite would copy a volatile expression to every place that uses it; it leaves a subquery
    /// with an OFFSET alone.
    fn fenced(&mut self, query: &Query) -> Result<String> {
        let text = self.query(query, query.columns.len())?;
        let open = query.limit.is_none() && query.offset.is_none() && !query.with_ties;
        Ok(match walk::has_volatile(query) {
            true if open => format!("{text} LIMIT -1 OFFSET 0"),
            true => format!("SELECT * FROM ({text}) LIMIT -1 OFFSET 0"),
            false => text,
        })
    }

    fn join(&mut self, join: &Join, earlier: &[RelId]) -> Result<Item> {
        // SQLite looks rows of a view up by an index on the right of a left join, and on neither side of a right join.
        if join.kind == JoinKind::Right {
            let (left, right, on) = (join.right.clone(), join.left.clone(), join.on.clone());
            return self.join(&Join { kind: JoinKind::Left, left, right, on }, earlier);
        }
        let left = self.source_of(&join.left, earlier)?;
        let mut seen = earlier.to_vec();
        walk::relations(&join.left, &mut seen);
        if let From::Subquery { rel, query, .. } = &join.right
            && walk::refers_to(query, &seen)
        {
            return self.lateral_join(join, left, *rel, query);
        }
        let right = self.source_of(&join.right, &seen)?;
        let (Some(left_text), Some(right_text)) = (left.text, right.text) else {
            return Err(unsupported("this use of LATERAL"));
        };
        let outer = join.kind != JoinKind::Inner;
        if outer && (!left.conditions.is_empty() || !right.conditions.is_empty()) {
            return Err(unsupported("LATERAL under an outer join"));
        }
        let right_text = if matches!(join.right, From::Join(_)) { format!("({right_text})") } else { right_text };
        let on = self.on(join)?;
        let text = format!("{left_text} {} {right_text}{on}", word(join.kind));
        Ok(Item { text: Some(text), conditions: [left.conditions, right.conditions].concat() })
    }

    fn on(&mut self, join: &Join) -> Result<String> {
        match (&join.on, join.kind) {
            (Some(on), _) => Ok(format!(" ON {}", self.condition(on)?)),
            (None, JoinKind::Inner) => Ok(String::new()),
            (None, _) => Ok(" ON 1".into()),
        }
    }

    fn lateral(&mut self, rel: RelId, query: &Query) -> Result<Item> {
        match rows_of(query) {
            Rows::One => {
                self.inline_scalars(rel, query)?;
                Ok(Item { text: None, conditions: Vec::new() })
            }
            Rows::AtMostOne => {
                self.inline_scalars(rel, query)?;
                let exists = format!("EXISTS ({})", self.query(query, query.columns.len())?);
                Ok(Item { text: None, conditions: vec![exists] })
            }
            Rows::Any => {
                let select = plain_select(query).ok_or_else(|| unsupported("this form of LATERAL"))?;
                let from = self.sources(&select.from)?;
                let mut conditions = from.conditions;
                if let Some(filter) = &select.filter {
                    conditions.push(self.condition(filter)?);
                }
                let texts = select.targets.iter().map(|target| self.expr(target)).collect::<Result<_>>()?;
                self.names.insert(rel, Names::Inline(texts));
                Ok(Item { text: from.text.strip_prefix(" FROM ").map(String::from), conditions })
            }
        }
    }

    /// Each column as a subquery of its own.
    fn inline_scalars(&mut self, rel: RelId, query: &Query) -> Result<()> {
        if walk::has_volatile(query) {
            return Err(unsupported("LATERAL with a volatile function"));
        }
        let rows = self.query(query, query.columns.len())?;
        let texts = (0..query.columns.len()).map(|at| format!("(SELECT c{at} FROM ({rows}))")).collect();
        self.names.insert(rel, Names::Inline(texts));
        Ok(())
    }

    fn lateral_join(&mut self, join: &Join, left: Item, rel: RelId, query: &Query) -> Result<Item> {
        match join.kind {
            JoinKind::Inner => self.lateral_inner(join, left, rel, query),
            JoinKind::Left => self.lateral_left(join, left, rel, query),
            JoinKind::Right | JoinKind::Full => Err(unsupported("LATERAL under RIGHT or FULL JOIN")),
        }
    }

    fn lateral_inner(&mut self, join: &Join, left: Item, rel: RelId, query: &Query) -> Result<Item> {
        let right = self.lateral(rel, query)?;
        let mut conditions = [left.conditions, right.conditions].concat();
        if let Some(on) = &join.on {
            conditions.push(self.condition(on)?);
        }
        let texts: Vec<String> = left.text.into_iter().chain(right.text).collect();
        let text = if texts.is_empty() { None } else { Some(texts.join(" JOIN ")) };
        Ok(Item { text, conditions })
    }

    fn lateral_left(&mut self, join: &Join, left: Item, rel: RelId, query: &Query) -> Result<Item> {
        let always = join.on.as_ref().is_none_or(|on| on.kind == ExprKind::Const(Value::Bool(true)));
        if rows_of(query) != Rows::Any && always {
            self.inline_scalars(rel, query)?;
            return Ok(left);
        }
        let select = plain_select(query).ok_or_else(|| unsupported("this form of LEFT JOIN LATERAL"))?;
        // An expression could be something other than null where there is no row.
        if !select.targets.iter().all(|target| matches!(target.kind, ExprKind::Column { .. })) {
            return Err(unsupported("LEFT JOIN LATERAL with expressions"));
        }
        let from = self.sources(&select.from)?;
        let texts = select.targets.iter().map(|target| self.expr(target)).collect::<Result<_>>()?;
        self.names.insert(rel, Names::Inline(texts));
        let mut conditions = from.conditions;
        for condition in select.filter.iter().chain(&join.on) {
            conditions.push(self.condition(condition)?);
        }
        let (Some(left_text), Some(right_text)) = (left.text, from.text.strip_prefix(" FROM ")) else {
            return Err(unsupported("this form of LEFT JOIN LATERAL"));
        };
        let inner = own_relations(select);
        if !select.targets.iter().all(|target| is_column_of(target, &inner)) {
            return Err(unsupported("LEFT JOIN LATERAL with columns of another relation"));
        }
        let on = if conditions.is_empty() { "1".into() } else { joined(&conditions, " AND ") };
        Ok(Item { text: Some(format!("{left_text} LEFT JOIN ({right_text}) ON {on}")), conditions: left.conditions })
    }

    fn function(&mut self, of: &FunctionRef) -> Result<String> {
        let ExprKind::Call { function, args, .. } = &of.call.kind else {
            return Err(unsupported("this expression in FROM"));
        };
        let info = builtins::function(*function).filter(|info| info.returns_set);
        let settings = super::expr::needs_settings(*function);
        let width = of.columns.len() - usize::from(of.ordinality);
        let fits = width <= call::ROWS_COLUMNS && args.len() + usize::from(settings) <= call::ROWS_ARGS;
        if info.is_none() || !fits {
            return self.single_row(of);
        }
        let callee = Callee {
            op: Op::Function(*function),
            args: args.iter().map(|arg| arg.ty.oid).collect(),
            result: of.call.ty,
            settings,
        };
        let text = self.call_text(call::ROWS, &callee, args)?;
        self.number(of.rel, of.ordinality.then_some(width));
        Ok(format!("{text} AS {}", alias(of.rel)))
    }

    /// A function that returns one value, in FROM.
    fn single_row(&mut self, of: &FunctionRef) -> Result<String> {
        let width = of.columns.len() - usize::from(of.ordinality);
        if width != 1 || !walk::is_constant(&of.call) {
            return Err(unsupported("this function in FROM"));
        }
        let value = self.expr(&of.call)?;
        self.number(of.rel, of.ordinality.then_some(width));
        Ok(format!("(SELECT {value} AS {}, 1 AS n) AS {}", column_names(1), alias(of.rel)))
    }
}

fn word(kind: JoinKind) -> &'static str {
    match kind {
        // Not CROSS JOIN: SQLite would keep the order of such a join.
        JoinKind::Inner => "JOIN",
        JoinKind::Left => "LEFT JOIN",
        JoinKind::Right => "RIGHT JOIN",
        JoinKind::Full => "FULL JOIN",
    }
}

fn keeps_right(from: &From) -> bool {
    match from {
        From::Join(join) => {
            matches!(join.kind, JoinKind::Right | JoinKind::Full) || keeps_right(&join.left) || keeps_right(&join.right)
        }
        _ => false,
    }
}

/// A select without anything that looks at more than one row.
fn plain_select(query: &Query) -> Option<&Select> {
    let Body::Select(select) = &query.body else { return None };
    let mut windows = false;
    select.targets.iter().for_each(|target| {
        walk::expr(target, &mut |part| windows |= matches!(part.kind, ExprKind::Window(_)));
    });
    let plain = query.ctes.is_empty()
        && query.limit.is_none()
        && query.offset.is_none()
        && select.group_by == GroupBy::None
        && select.having.is_none()
        && select.distinct == Distinct::No
        && !windows
        && !walk::has_volatile(query);
    plain.then_some(select)
}

fn own_relations(select: &Select) -> Vec<RelId> {
    let mut out = Vec::new();
    select.from.iter().for_each(|item| walk::relations(item, &mut out));
    out
}

fn is_column_of(expr: &Expr, relations: &[RelId]) -> bool {
    matches!(&expr.kind, ExprKind::Column { rel, .. } if relations.contains(rel))
}
