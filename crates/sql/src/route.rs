//! What the conditions of a block say of its columns: which are equal, and which have values known before any row is
//! read. From these follow the shards that a table's rows can be on, and which tables' rows are on one shard.
//!
//!     a.k = b.k AND a.k = $1        b.k is $1 too
//!     a LEFT JOIN b ON a.k = b.k    says something of b's rows, and nothing of a's, until a condition that no null
//!                                   passes is asked of b
//!
//! Invariants:
//!   * A fact holds for every row that gets through the conditions. The conditions of an outer join wait in
//!     [`Facts::waiting`] until something above them is strict in the side that may be null.
//!   * Two columns are called equal only when equal values of them hash alike. A comparison of an `int4` with a
//!     `numeric` converts the column, and says nothing.

use crate::plan::KeyExprs;
use crate::plan::functions::is_rowless;
use crate::plan::walk::{ColumnRef, conjuncts};
use crate::tree::{CastHow, Display, Expr, ExprKind, Quantifier, RelId};
use crate::types::{self, Oid, Type};
use isles_kernel::value::Value;
use std::collections::{BTreeSet, HashMap};

/// Keys of one statement. A product of lists beyond this asks nearly every shard anyway.
pub const MAX_KEYS: usize = 4_096;

/// Something that holds for all rows of a block.
#[derive(Debug, Clone)]
pub(crate) enum Fact {
    Condition(Expr),
    /// Two columns are one: a subquery's and what it is in there.
    Same(ColumnRef, ColumnRef),
}

/// Conditions of an outer join, which hold where none of its sides is the one of nulls.
#[derive(Debug, Clone)]
struct Waiting {
    /// The relations of each side that may be null, and whether something strict has been asked of it.
    sides: Vec<(BTreeSet<RelId>, bool)>,
    facts: Vec<Fact>,
}

/// A list of values that a column is one of.
#[derive(Debug, Clone)]
enum OneOf {
    Values(Vec<Expr>),
    Elements(Expr),
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    /// Each class is a tree; a root is its own parent.
    parents: Vec<usize>,
    columns: HashMap<ColumnRef, usize>,
    values: Vec<(Expr, usize)>,
    lists: Vec<(usize, OneOf)>,
    waiting: Vec<Waiting>,
    /// A condition is false.
    pub(crate) impossible: bool,
}

/// What the facts of a relation are wanted for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Which of its rows match others: rows that a full join keeps unmatched are no matter.
    Matching,
    /// Which of its rows come through at all.
    Reaching,
}

impl Facts {
    pub(crate) fn learn(&mut self, fact: &Fact) {
        match fact {
            Fact::Condition(condition) => self.condition(condition),
            Fact::Same(a, b) => {
                let (a, b) = (self.column(*a), self.column(*b));
                self.unite(a, b);
            }
        }
    }

    /// These facts hold where none of `sides` is null.
    pub(crate) fn wait(&mut self, sides: Vec<BTreeSet<RelId>>, facts: Vec<Fact>) {
        let sides = sides.into_iter().map(|side| (side, false)).collect();
        self.waiting.push(Waiting { sides, facts });
    }

    /// The facts about the rows of one relation, which may be on the null side of a join.
    pub(crate) fn of_relation(&self, rel: RelId, purpose: Purpose) -> Facts {
        let mut facts = self.clone();
        match purpose {
            Purpose::Reaching => facts.not_null(rel),
            Purpose::Matching => {
                let joins: Vec<usize> = facts.waiting_for(rel);
                let sides = joins.into_iter().flat_map(|at| facts.waiting[at].sides.clone());
                let rels: BTreeSet<RelId> = sides.flat_map(|(side, _)| side).collect();
                rels.into_iter().for_each(|rel| facts.not_null(rel));
            }
        }
        facts
    }

    /// Whether a relation may be null although its row is there.
    pub(crate) fn may_be_null(&self, rel: RelId) -> bool {
        self.waiting.iter().any(|w| w.sides.iter().any(|(side, asked)| !asked && side.contains(&rel)))
    }

    fn waiting_for(&self, rel: RelId) -> Vec<usize> {
        let concerns = |w: &Waiting| w.sides.iter().any(|(side, _)| side.contains(&rel));
        (0..self.waiting.len()).filter(|at| concerns(&self.waiting[*at])).collect()
    }

    fn not_null(&mut self, rel: RelId) {
        for waiting in &mut self.waiting {
            for (side, asked) in &mut waiting.sides {
                *asked |= side.contains(&rel);
            }
        }
        while let Some(at) = self.waiting.iter().position(|w| w.sides.iter().all(|(_, asked)| *asked)) {
            let ready = self.waiting.remove(at);
            ready.facts.iter().for_each(|fact| self.learn(fact));
        }
    }

    fn condition(&mut self, condition: &Expr) {
        for rel in strict_in(condition) {
            self.not_null(rel);
        }
        match &condition.kind {
            ExprKind::And(parts) => parts.iter().for_each(|part| self.condition(part)),
            ExprKind::Const(Value::Null | Value::Bool(false)) => self.impossible = true,
            ExprKind::IsBool { arg, value: Some(true), negated: false } => self.condition(arg),
            ExprKind::Call { display: Display::Operator(operator), args, .. } if operator == "=" => {
                if let [left, right] = args.as_slice() {
                    self.equality(left, right);
                }
            }
            _ => {
                if let Some((column, list)) = one_of(condition) {
                    let class = self.column(column);
                    self.lists.push((class, list));
                }
            }
        }
    }

    fn equality(&mut self, left: &Expr, right: &Expr) {
        match (plain_column(left), plain_column(right)) {
            (Some((a, left)), Some((b, right))) if hash_alike(left, right) => {
                let (a, b) = (self.column(a), self.column(b));
                self.unite(a, b);
            }
            (Some((column, ty)), None) => self.value_of(column, ty, right),
            (None, Some((column, ty))) => self.value_of(column, ty, left),
            _ => {}
        }
    }

    fn value_of(&mut self, column: ColumnRef, ty: Type, value: &Expr) {
        if is_rowless(value) && hash_alike(ty, value.ty) {
            let (column, value) = (self.column(column), self.value(value));
            self.unite(column, value);
        }
    }

    fn fresh(&mut self) -> usize {
        self.parents.push(self.parents.len());
        self.parents.len() - 1
    }

    fn column(&mut self, column: ColumnRef) -> usize {
        match self.columns.get(&column) {
            Some(node) => *node,
            None => {
                let node = self.fresh();
                self.columns.insert(column, node);
                node
            }
        }
    }

    fn value(&mut self, value: &Expr) -> usize {
        match self.values.iter().find(|(known, _)| known == value) {
            Some((_, node)) => *node,
            None => {
                let node = self.fresh();
                self.values.push((value.clone(), node));
                node
            }
        }
    }

    fn root(&self, mut node: usize) -> usize {
        while self.parents[node] != node {
            node = self.parents[node];
        }
        node
    }

    fn unite(&mut self, a: usize, b: usize) {
        let (a, b) = (self.root(a), self.root(b));
        self.parents[a] = b;
    }

    fn class(&self, column: ColumnRef) -> Option<usize> {
        self.columns.get(&column).map(|node| self.root(*node))
    }

    pub(crate) fn equal(&self, a: ColumnRef, b: ColumnRef) -> bool {
        a == b || (self.class(a).is_some() && self.class(a) == self.class(b))
    }

    /// The value that a column has in every row.
    pub(crate) fn value_in(&self, column: ColumnRef) -> Option<&Expr> {
        let class = self.class(column)?;
        self.values.iter().find(|(_, node)| self.root(*node) == class).map(|(value, _)| value)
    }

    fn list_in(&self, column: ColumnRef) -> Option<&OneOf> {
        let class = self.class(column)?;
        self.lists.iter().find(|(node, _)| self.root(*node) == class).map(|(_, list)| list)
    }

    /// The value of each of these columns.
    pub(crate) fn values_in(&self, columns: &[ColumnRef]) -> Option<Vec<Expr>> {
        columns.iter().map(|column| self.value_in(*column).cloned()).collect()
    }

    /// The shard keys that a row can have whose shard key is in `columns`. None for any.
    pub(crate) fn keys(&self, columns: &[ColumnRef]) -> Option<Vec<KeyExprs>> {
        if let ([column], None) = (columns, columns.first().and_then(|c| self.value_in(*c))) {
            if let OneOf::Elements(array) = self.list_in(*column)? {
                return Some(vec![KeyExprs::Elements(array.clone())]);
            }
        }
        let lists: Vec<Vec<Expr>> = columns.iter().map(|c| self.possible(*c)).collect::<Option<_>>()?;
        let count = lists.iter().try_fold(1usize, |n, list| n.checked_mul(list.len()))?;
        if count > MAX_KEYS {
            return None;
        }
        let rows = lists.iter().fold(vec![Vec::new()], |rows: Vec<Vec<Expr>>, list| {
            let with = |row: &Vec<Expr>, value: &Expr| row.iter().cloned().chain([value.clone()]).collect();
            rows.iter().flat_map(|row| list.iter().map(move |value| with(row, value))).collect()
        });
        Some(rows.into_iter().map(KeyExprs::Row).collect())
    }

    fn possible(&self, column: ColumnRef) -> Option<Vec<Expr>> {
        match (self.value_in(column), self.list_in(column)) {
            (Some(value), _) => Some(vec![value.clone()]),
            (None, Some(OneOf::Values(values))) => Some(values.clone()),
            _ => None,
        }
    }
}

/// A column, also where only its type's name is changed.
pub(crate) fn plain_column(expr: &Expr) -> Option<(ColumnRef, Type)> {
    match &expr.kind {
        ExprKind::Column { rel, column } => Some(((*rel, *column), expr.ty)),
        ExprKind::Cast { arg, how: CastHow::Relabel } if hash_alike(arg.ty, expr.ty) => plain_column(arg),
        _ => None,
    }
}

fn one_of(condition: &Expr) -> Option<(ColumnRef, OneOf)> {
    match &condition.kind {
        ExprKind::InList { arg, list, negated: false, .. } => {
            let (column, ty) = plain_column(arg)?;
            let fit = list.iter().all(|value| is_rowless(value) && hash_alike(ty, value.ty));
            fit.then(|| (column, OneOf::Values(list.clone())))
        }
        ExprKind::OverArray { quantifier: Quantifier::Any, operator, left, array, .. } if operator == "=" => {
            let (column, ty) = plain_column(left)?;
            let element = element_of(array.ty.oid)?;
            if !is_rowless(array) || !hash_alike(ty, element.into()) {
                return None;
            }
            match &array.kind {
                ExprKind::Array(values) => Some((column, OneOf::Values(values.clone()))),
                _ => Some((column, OneOf::Elements((**array).clone()))),
            }
        }
        ExprKind::Or(parts) => alternatives(parts),
        _ => None,
    }
}

/// `k = 1 OR k = 2 OR k IN (3, 4)`, where every part is about one column.
fn alternatives(parts: &[Expr]) -> Option<(ColumnRef, OneOf)> {
    let mut found: Option<ColumnRef> = None;
    let mut values = Vec::new();
    for part in parts {
        let (column, list) = conjuncts(Some(part)).into_iter().find_map(alternative)?;
        if *found.get_or_insert(column) != column {
            return None;
        }
        values.extend(list);
    }
    found.map(|column| (column, OneOf::Values(values)))
}

fn alternative(part: &Expr) -> Option<(ColumnRef, Vec<Expr>)> {
    if let ExprKind::Call { display: Display::Operator(operator), args, .. } = &part.kind
        && operator == "="
        && let [left, right] = args.as_slice()
    {
        return column_and_value(left, right).or_else(|| column_and_value(right, left));
    }
    match one_of(part)? {
        (column, OneOf::Values(values)) => Some((column, values)),
        (_, OneOf::Elements(_)) => None,
    }
}

fn column_and_value(column: &Expr, value: &Expr) -> Option<(ColumnRef, Vec<Expr>)> {
    let (column, ty) = plain_column(column)?;
    (is_rowless(value) && hash_alike(ty, value.ty)).then(|| (column, vec![value.clone()]))
}

/// Whether equal values of the two types have one hash.
pub(crate) fn hash_alike(a: Type, b: Type) -> bool {
    let integer = |oid| [types::INT2, types::INT4, types::INT8].contains(&oid);
    let text = |oid| [types::TEXT, types::VARCHAR].contains(&oid);
    match (a.oid, b.oid) {
        // Blanks at the end do not count when `char(n)` is compared, but they are stored.
        (types::BPCHAR, types::BPCHAR) => a.modifier == b.modifier,
        (a, b) => a == b || (integer(a) && integer(b)) || (text(a) && text(b)),
    }
}

fn element_of(array: Oid) -> Option<Oid> {
    const ELEMENTS: [(Oid, Oid); 17] = [
        (types::BOOL_ARRAY, types::BOOL),
        (types::BYTEA_ARRAY, types::BYTEA),
        (types::INT2_ARRAY, types::INT2),
        (types::INT4_ARRAY, types::INT4),
        (types::INT8_ARRAY, types::INT8),
        (types::TEXT_ARRAY, types::TEXT),
        (types::VARCHAR_ARRAY, types::VARCHAR),
        (types::NAME_ARRAY, types::NAME),
        (types::FLOAT4_ARRAY, types::FLOAT4),
        (types::FLOAT8_ARRAY, types::FLOAT8),
        (types::NUMERIC_ARRAY, types::NUMERIC),
        (types::DATE_ARRAY, types::DATE),
        (types::TIME_ARRAY, types::TIME),
        (types::TIMESTAMP_ARRAY, types::TIMESTAMP),
        (types::TIMESTAMPTZ_ARRAY, types::TIMESTAMPTZ),
        (types::UUID_ARRAY, types::UUID),
        (types::OID_ARRAY, types::OID),
    ];
    ELEMENTS.iter().find(|(known, _)| *known == array).map(|(_, element)| *element)
}

/// Relations of which the condition is false or null when they are all nulls.
fn strict_in(condition: &Expr) -> BTreeSet<RelId> {
    match &condition.kind {
        ExprKind::And(parts) => parts.iter().flat_map(strict_in).collect(),
        ExprKind::Or(parts) => {
            let sets = parts.iter().map(strict_in);
            sets.reduce(|a, b| a.intersection(&b).copied().collect()).unwrap_or_default()
        }
        ExprKind::IsNull { arg, negated: true } => null_with(arg),
        ExprKind::IsBool { arg, value: Some(_), negated: false } => null_with(arg),
        ExprKind::InList { arg, .. } => null_with(arg),
        ExprKind::OverArray { quantifier: Quantifier::Any, left, .. } => null_with(left),
        _ => null_with(condition),
    }
}

/// Relations with which, when they are all nulls, the expression is null.
fn null_with(expr: &Expr) -> BTreeSet<RelId> {
    match &expr.kind {
        ExprKind::Column { rel, .. } | ExprKind::Hidden { rel, .. } => BTreeSet::from([*rel]),
        ExprKind::Call { display: Display::Operator(operator), args, .. } if is_strict(operator) => {
            args.iter().flat_map(null_with).collect()
        }
        ExprKind::Cast { arg, .. } => null_with(arg),
        _ => BTreeSet::new(),
    }
}

/// Operators all of whose functions give null for a null.
fn is_strict(operator: &str) -> bool {
    ["=", "<>", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "~~", "~~*", "!~~", "~", "~*"].contains(&operator)
}
