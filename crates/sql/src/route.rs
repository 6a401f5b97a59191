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
use crate::types::{self, Type};
use isles_kernel::value::Value;
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

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
    /// Conditions that hold, one by one.
    conditions: Vec<Arc<Expr>>,
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
    pub(crate) fn of_relation(&self, rel: RelId, purpose: Purpose) -> Cow<'_, Facts> {
        if self.waiting_for(rel).is_empty() {
            return Cow::Borrowed(self);
        }
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
        Cow::Owned(facts)
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
            _ => self.single(condition),
        }
    }

    fn single(&mut self, condition: &Expr) {
        self.conditions.push(Arc::new(condition.clone()));
        match &condition.kind {
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
        let value = canonical(value);
        match self.values.iter().find(|(known, _)| *known == value) {
            Some((_, node)) => *node,
            None => {
                let node = self.fresh();
                self.values.push((value, node));
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

    pub(crate) fn conditions(&self) -> impl Iterator<Item = &Expr> {
        self.conditions.iter().map(AsRef::as_ref)
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
        if let [column] = columns
            && self.value_in(*column).is_none()
            && let Some(OneOf::Elements(array)) = self.list_in(*column)
        {
            return Some(vec![KeyExprs::Elements(array.clone())]);
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

/// One expression for one integer: the 5 of an `int4` column and the 5 of an `int8` column are one key.
fn canonical(value: &Expr) -> Expr {
    match &value.kind {
        ExprKind::Const(Value::Int(n)) if is_integer(value.ty) => {
            Expr::new(ExprKind::Const(Value::Int(*n)), types::INT8)
        }
        // From a shorter integer to a longer one, which cannot fail.
        ExprKind::Cast { arg, how: CastHow::Function(_) } if value.ty.oid == types::INT8 && is_integer(arg.ty) => {
            match canonical(arg) {
                constant @ Expr { kind: ExprKind::Const(_), .. } => constant,
                _ => value.clone(),
            }
        }
        _ => value.clone(),
    }
}

fn is_integer(ty: Type) -> bool {
    [types::INT2, types::INT4, types::INT8].contains(&ty.oid)
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
            fit.then(|| (column, OneOf::Values(list.iter().map(canonical).collect())))
        }
        ExprKind::OverArray { quantifier: Quantifier::Any, operator, left, array, .. } if operator == "=" => {
            let (column, ty) = plain_column(left)?;
            let element = types::element_of(array.ty.oid)?;
            if !is_rowless(array) || !hash_alike(ty, element.into()) {
                return None;
            }
            match &array.kind {
                ExprKind::Array(values) => Some((column, OneOf::Values(values.iter().map(canonical).collect()))),
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
    (is_rowless(value) && hash_alike(ty, value.ty)).then(|| (column, vec![canonical(value)]))
}

/// Whether equal values of the two types have one hash.
pub(crate) fn hash_alike(a: Type, b: Type) -> bool {
    let text = |oid| [types::TEXT, types::VARCHAR].contains(&oid);
    match (a.oid, b.oid) {
        // Blanks at the end do not count when `char(n)` is compared, but they are stored.
        (types::BPCHAR, types::BPCHAR) => a.modifier == b.modifier,
        _ => a.oid == b.oid || (is_integer(a) && is_integer(b)) || (text(a.oid) && text(b.oid)),
    }
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
pub(crate) fn is_strict(operator: &str) -> bool {
    ["=", "<>", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "~~", "~~*", "!~~", "~", "~*"].contains(&operator)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::fixture::{and, col, equal, int};
    use crate::types::Oid;

    fn facts(conditions: &[Expr]) -> Facts {
        let mut facts = Facts::default();
        conditions.iter().for_each(|condition| facts.learn(&Fact::Condition(condition.clone())));
        facts
    }

    fn value(facts: &Facts, rel: u32) -> Option<Expr> {
        facts.value_in((RelId(rel), 0)).cloned()
    }

    #[test]
    fn values_pass_through_equal_columns() {
        let facts = facts(&[equal(col(1, 0), col(2, 0)), equal(col(3, 0), col(2, 0)), equal(int(5), col(3, 0))]);
        for rel in [1, 2, 3] {
            assert_eq!(value(&facts, rel), Some(int(5)));
        }
        assert_eq!(value(&facts, 4), None);
    }

    #[test]
    fn the_condition_of_an_outer_join_says_nothing_of_the_side_that_is_kept() {
        let mut facts = Facts::default();
        let on = and(vec![equal(col(1, 0), col(2, 0)), equal(col(2, 0), int(5))]);
        facts.wait(vec![BTreeSet::from([RelId(2)])], vec![Fact::Condition(on)]);
        assert_eq!((value(&facts, 1), value(&facts, 2)), (None, None));
        assert!(facts.may_be_null(RelId(2)));
        let of_null_side = facts.of_relation(RelId(2), Purpose::Reaching);
        assert_eq!(value(&of_null_side, 2), Some(int(5)));
        // A condition that no null passes makes the join an inner one.
        facts.learn(&Fact::Condition(equal(col(2, 1), int(1))));
        assert_eq!((value(&facts, 1), value(&facts, 2)), (Some(int(5)), Some(int(5))));
    }

    #[test]
    fn a_full_join_keeps_both_sides_until_both_are_asked_for() {
        let full = || {
            let mut facts = Facts::default();
            let sides = vec![BTreeSet::from([RelId(1)]), BTreeSet::from([RelId(2)])];
            facts.wait(sides, vec![Fact::Condition(equal(col(1, 0), int(5)))]);
            facts
        };
        let mut facts = full();
        facts.learn(&Fact::Condition(equal(col(1, 1), int(1))));
        assert_eq!(value(&facts, 1), None, "the row may have no partner");
        facts.learn(&Fact::Condition(equal(col(2, 1), int(1))));
        assert_eq!(value(&facts, 1), Some(int(5)));
        assert_eq!(value(&full().of_relation(RelId(1), Purpose::Reaching), 1), None);
        assert_eq!(value(&full().of_relation(RelId(1), Purpose::Matching), 1), Some(int(5)));
    }

    #[test]
    fn keys_are_the_product_of_lists_within_a_limit() {
        let in_list = |at: usize, n: i64| {
            let list = (0..n).map(int).collect();
            let kind = ExprKind::InList { arg: Box::new(col(1, at)), list, equal: Oid(467), negated: false };
            Expr::new(kind, types::BOOL)
        };
        let key = [(RelId(1), 0), (RelId(1), 1)];
        assert_eq!(facts(&[in_list(0, 3), in_list(1, 2)]).keys(&key).map(|keys| keys.len()), Some(6));
        assert_eq!(facts(&[in_list(0, 3)]).keys(&key).map(|keys| keys.len()), None);
        assert_eq!(facts(&[in_list(0, 100), in_list(1, 100)]).keys(&key).map(|keys| keys.len()), None);
    }

    #[test]
    fn only_types_whose_equal_values_hash_alike_say_something() {
        let ty = |oid| Type::of(oid);
        assert!(hash_alike(ty(types::INT4), ty(types::INT8)));
        assert!(hash_alike(ty(types::VARCHAR), ty(types::TEXT)));
        assert!(!hash_alike(ty(types::INT4), ty(types::NUMERIC)));
        assert!(!hash_alike(ty(types::FLOAT4), ty(types::FLOAT8)));
        assert!(!hash_alike(ty(types::TIMESTAMP), ty(types::TIMESTAMPTZ)));
        assert!(!hash_alike(Type::with(types::BPCHAR, 7), Type::with(types::BPCHAR, 9)));
    }

    #[test]
    fn a_list_of_alternatives_is_of_one_column() {
        let or = |parts| Expr::new(ExprKind::Or(parts), types::BOOL);
        let key = [(RelId(1), 0)];
        let one = or(vec![equal(col(1, 0), int(1)), and(vec![equal(col(1, 1), int(9)), equal(int(2), col(1, 0))])]);
        assert_eq!(facts(&[one]).keys(&key).map(|keys| keys.len()), None, "the first equality of a part decides");
        let same = or(vec![equal(col(1, 0), int(1)), equal(int(2), col(1, 0))]);
        assert_eq!(facts(&[same]).keys(&key).map(|keys| keys.len()), Some(2));
        let two = or(vec![equal(col(1, 0), int(1)), equal(int(2), col(1, 1))]);
        assert_eq!(facts(&[two]).keys(&key).map(|keys| keys.len()), None);
    }
}
