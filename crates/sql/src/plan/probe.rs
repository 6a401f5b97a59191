//! What the conditions of a block say of the keys of global indexes: which entries name the shards of its rows.
//!
//!     email = $1                         the buckets that hold $1, by an index over email
//!     city = 'Bonn' AND age > 30         a range within 'Bonn', by an index over (city, age)
//!     email = $1 OR phone = $2           the buckets of either, by two indexes
//!     lower(email) LIKE 'ann%'           a range, by an index over lower(email)
//!
//! Invariants:
//!   * A probe is made of conditions that hold for each row of the block, and is of a relation of which each row has a
//!     row in it: the row that an outer join makes up of nulls is in no index.
//!   * Values are compared only where equal values have equal entries ([`hash_alike`]), and bounds only where these are
//!     in one order besides.
//!   * A partial index is asked only if all of its predicate is among the conditions, or follows from one.
//!
//! An index's expressions are known by their text: what the printer makes of a piece of a condition is the text that the
//! index was made with if and only if it is the same expression.

use super::functions::is_rowless;
use super::walk::{Rewriter, conjuncts, rewrite};
use super::{Probe, ProbePart, ProbeRange};
use crate::print;
use crate::route::{Facts, MAX_KEYS, hash_alike, is_strict, plain_column};
use crate::tree::{CastHow, Display, Expr, ExprKind, Quantifier, RelId, RelationRef, RelationSource};
use crate::types::{self, Type};
use isles_kernel::schema::{Key, KeyOver, Table};
use isles_kernel::value::Value;
use std::cmp::Reverse;

/// Alternatives of one statement. With more, nearly every shard is asked anyway.
const MAX_PROBES: usize = 128;

/// A table with global indexes.
pub(super) struct Candidate {
    /// The relation of the block that it is, or is inside of.
    pub(super) leaf: RelId,
    pub(super) of: RelationRef,
}

/// What each row matches one of; None if the conditions say nothing of any index.
pub(super) fn any(candidates: &[Candidate], facts: &Facts) -> Option<Vec<Probe>> {
    if let Some(probe) = best(candidates, facts) {
        return Some(vec![probe]);
    }
    facts.conditions().find_map(|condition| match &condition.kind {
        ExprKind::Or(parts) => of_alternatives(parts, candidates, facts),
        _ => None,
    })
}

/// A probe for each alternative: one that has none may be anywhere.
fn of_alternatives(parts: &[Expr], candidates: &[Candidate], facts: &Facts) -> Option<Vec<Probe>> {
    let mut parts: Vec<&Expr> = parts.iter().rev().collect();
    let mut found = Vec::new();
    while let Some(part) = parts.pop() {
        if let ExprKind::Or(inner) = &part.kind {
            parts.extend(inner.iter().rev());
            continue;
        }
        let mut facts = facts.clone();
        facts.learn(&crate::route::Fact::Condition(part.clone()));
        if facts.impossible {
            continue;
        }
        found.push(best(candidates, &facts)?);
        if found.len() > MAX_PROBES {
            return None;
        }
    }
    (!found.is_empty()).then_some(found)
}

/// Most equalities first; then an index that is unique, then a range, then by name.
fn best(candidates: &[Candidate], facts: &Facts) -> Option<Probe> {
    let present = candidates.iter().filter(|candidate| !facts.may_be_null(candidate.leaf));
    let probes = present.flat_map(|candidate| {
        let seen = Seen { of: &candidate.of, facts };
        let table = match &candidate.of.relation.source {
            RelationSource::User(table) => Some(table),
            RelationSource::System | RelationSource::Staged => None,
        };
        let keys = table.into_iter().flat_map(|table| table.global_keys().map(move |key| (table, key)));
        keys.filter_map(move |(table, key)| Some((seen.probe(table, key)?, key.unique)))
    });
    let worth = |(probe, unique): &(Probe, bool)| {
        (probe.equal.len(), *unique, probe.range.is_some(), Reverse(probe.key.clone()), Reverse(probe.table.clone()))
    };
    probes.max_by_key(worth).map(|(probe, _)| probe)
}

/// What an index is over.
#[derive(Clone, Copy)]
enum Part<'a> {
    /// By position.
    Column(usize),
    /// As it is printed.
    Expression(&'a str),
}

/// A relation, and what holds for its rows.
#[derive(Clone, Copy)]
struct Seen<'a> {
    of: &'a RelationRef,
    facts: &'a Facts,
}

impl Seen<'_> {
    fn probe(&self, table: &Table, key: &Key) -> Option<Probe> {
        if !key.predicate.as_ref().is_none_or(|predicate| self.follows(&predicate.postgres)) {
            return None;
        }
        let parts = parts(table, key)?;
        let (mut equal, mut keys) = (Vec::new(), 1usize);
        for (part, _) in &parts {
            let Some(found) = self.equality(*part) else { break };
            if let ProbePart::Values(values) = &found {
                keys = keys.saturating_mul(values.len());
            }
            if keys > MAX_KEYS {
                break;
            }
            equal.push(found);
        }
        let range = parts.get(equal.len()).and_then(|(part, _)| self.range(*part));
        let used = equal.len() + usize::from(range.is_some());
        if used == 0 {
            return None;
        }
        let over = parts.iter().take(used).map(|(_, name)| name.clone()).collect();
        let entries = key.global.clone()?;
        Some(Probe { table: table.name.clone(), key: key.name.clone(), entries, over, equal, range })
    }

    /// What a part of the index is equal to in every row, the most telling first.
    fn equality(&self, part: Part<'_>) -> Option<ProbePart> {
        let found = self.facts.conditions().filter_map(|condition| self.equal_in(part, condition));
        found.min_by_key(|found| match found {
            ProbePart::Null => 1,
            ProbePart::Values(values) => values.len(),
            ProbePart::Elements(_) => MAX_KEYS,
        })
    }

    fn equal_in(&self, part: Part<'_>, condition: &Expr) -> Option<ProbePart> {
        let constant = |value| ProbePart::Values(vec![Expr::new(ExprKind::Const(value), types::BOOL)]);
        match &condition.kind {
            ExprKind::Call { display: Display::Operator(operator), args, .. } => {
                let [left, right] = args.as_slice() else { return None };
                match operator.as_str() {
                    "=" => self.value(part, left, right).or_else(|| self.value(part, right, left)),
                    "~~" => self.value(part, left, &exact(right)?),
                    _ => None,
                }
                .map(|value| ProbePart::Values(vec![value]))
            }
            ExprKind::IsNull { arg, negated: false } => self.is(part, arg).map(|_| ProbePart::Null),
            ExprKind::InList { arg, list, negated: false, .. } => {
                let ty = self.is(part, arg)?;
                list.iter().all(|value| is_key(value, ty)).then(|| ProbePart::Values(list.clone()))
            }
            ExprKind::OverArray { quantifier: Quantifier::Any, operator, left, array, .. } if operator == "=" => {
                let (ty, element) = (self.is(part, left)?, types::element_of(array.ty.oid)?);
                if !is_rowless(array) || !hash_alike(ty, element.into()) {
                    return None;
                }
                Some(match &array.kind {
                    ExprKind::Array(values) => ProbePart::Values(values.clone()),
                    _ => ProbePart::Elements((**array).clone()),
                })
            }
            ExprKind::Or(parts) => self.equal_in_all(part, parts),
            ExprKind::Not(arg) => self.is(part, arg).map(|_| constant(Value::Bool(false))),
            _ => self.is(part, condition).map(|_| constant(Value::Bool(true))),
        }
    }

    /// `k = 1 OR k IN (2, 3) AND x > 4`.
    fn equal_in_all(&self, part: Part<'_>, alternatives: &[Expr]) -> Option<ProbePart> {
        let mut all = Vec::new();
        for alternative in alternatives {
            let found = conjuncts(Some(alternative)).into_iter().find_map(|condition| self.equal_in(part, condition));
            let ProbePart::Values(values) = found? else { return None };
            all.extend(values);
        }
        Some(ProbePart::Values(all))
    }

    fn value(&self, part: Part<'_>, side: &Expr, value: &Expr) -> Option<Expr> {
        let ty = self.is(part, side)?;
        is_key(value, ty).then(|| value.clone())
    }

    /// The bounds of a part, as far as there are.
    fn range(&self, part: Part<'_>) -> Option<ProbeRange> {
        let mut range = ProbeRange { low: None, high: None };
        for condition in self.facts.conditions() {
            if let Some(found) = self.bounds_in(part, condition) {
                range.low = range.low.or(found.low);
                range.high = range.high.or(found.high);
            }
        }
        (range.low.is_some() || range.high.is_some()).then_some(range)
    }

    fn bounds_in(&self, part: Part<'_>, condition: &Expr) -> Option<ProbeRange> {
        let ExprKind::Call { display: Display::Operator(operator), args, .. } = &condition.kind else { return None };
        let [left, right] = args.as_slice() else { return None };
        if operator == "~~" {
            let (ty, (low, high)) = (self.is(part, left)?, prefix(right)?);
            return hash_alike(ty, right.ty)
                .then_some(ProbeRange { low: Some((low, true)), high: high.map(|h| (h, false)) });
        }
        let above = match operator.as_str() {
            ">" | ">=" => true,
            "<" | "<=" => false,
            _ => return None,
        };
        let inclusive = operator.ends_with('=');
        let (bound, above) = match self.bound(part, left, right) {
            Some(bound) => (bound, above),
            None => (self.bound(part, right, left)?, !above),
        };
        let bound = Some((bound, inclusive));
        Some(if above { ProbeRange { low: bound, high: None } } else { ProbeRange { low: None, high: bound } })
    }

    fn bound(&self, part: Part<'_>, side: &Expr, value: &Expr) -> Option<Expr> {
        // `char(n)` is compared without the blanks that it is stored with, so its order is another one.
        self.value(part, side, value).filter(|value| value.ty.oid != types::BPCHAR)
    }

    /// Whether an expression is this part of the index, and its type.
    fn is(&self, part: Part<'_>, expr: &Expr) -> Option<Type> {
        match part {
            Part::Column(at) => {
                let (column, ty) = plain_column(expr)?;
                self.facts.equal(column, (self.of.rel, at)).then_some(ty)
            }
            Part::Expression(text) => {
                if self.printed(expr).is_some_and(|printed| printed == text) {
                    return Some(expr.ty);
                }
                match &expr.kind {
                    ExprKind::Cast { arg, how: CastHow::Relabel } if hash_alike(arg.ty, expr.ty) => self.is(part, arg),
                    _ => None,
                }
            }
        }
    }

    /// The text of an expression over the relation alone.
    fn printed(&self, expr: &Expr) -> Option<String> {
        let mut expr = expr.clone();
        Owned(self).expr(&mut expr);
        print::text_over_table(&expr, self.of)
    }

    /// Whether a predicate holds for every row.
    fn follows(&self, predicate: &str) -> bool {
        let mut known: Vec<String> = Vec::new();
        for condition in self.facts.conditions() {
            known.extend(self.printed(condition));
            let mut present = Vec::new();
            present_in(condition, &mut present);
            for arg in present {
                let kind = ExprKind::IsNull { arg: Box::new(arg.clone()), negated: true };
                known.extend(self.printed(&Expr::new(kind, types::BOOL)));
            }
        }
        let inner = |text: &str| text.strip_prefix('(').and_then(|text| text.strip_suffix(')')).map(str::to_string);
        known.iter().any(|known| known == predicate) || inner(predicate).is_some_and(|parts| all_known(&parts, &known))
    }
}

/// Whether a text is nothing but known ones with AND between them. Each is closed in itself, as conditions are printed.
fn all_known(text: &str, known: &[String]) -> bool {
    let after = |known: &String| text.strip_prefix(known.as_str());
    known.iter().filter_map(after).any(|rest| match rest.strip_prefix(" AND ") {
        Some(rest) => all_known(rest, known),
        None => rest.is_empty(),
    })
}

/// Expressions that have a value wherever the condition is true.
fn present_in<'a>(condition: &'a Expr, found: &mut Vec<&'a Expr>) {
    match &condition.kind {
        ExprKind::Call { display: Display::Operator(operator), args, .. } if is_strict(operator) => {
            for arg in args {
                found.push(arg);
                present_in(arg, found);
            }
        }
        ExprKind::Cast { arg, .. } | ExprKind::InList { arg, negated: false, .. } => {
            found.push(arg);
            present_in(arg, found);
        }
        ExprKind::OverArray { quantifier: Quantifier::Any, left, .. } => {
            found.push(left);
            present_in(left, found);
        }
        _ => {}
    }
}

/// Puts the relation's own columns where others are that are equal to them.
struct Owned<'a>(&'a Seen<'a>);

impl Rewriter for Owned<'_> {
    fn expr(&mut self, expr: &mut Expr) {
        let Seen { of, facts } = self.0;
        if let ExprKind::Column { rel, column } = &mut expr.kind
            && *rel != of.rel
        {
            let same =
                |at: &usize| of.relation.columns[*at].ty == expr.ty && facts.equal((of.rel, *at), (*rel, *column));
            if let Some(at) = (0..of.relation.columns.len()).find(same) {
                (*rel, *column) = (of.rel, at);
            }
        }
        rewrite::expr(self, expr);
    }
}

/// What an index is over, with names for people.
fn parts<'a>(table: &Table, key: &'a Key) -> Option<Vec<(Part<'a>, String)>> {
    let column = |name: &String| Some((Part::Column(table.position(name)?), name.clone()));
    if key.parts.is_empty() {
        return key.columns.iter().map(column).collect();
    }
    let part = |over: &'a KeyOver| match over {
        KeyOver::Column(name) => column(name),
        KeyOver::Expression(expression) => Some((Part::Expression(&expression.postgres), expression.sql.clone())),
    };
    key.parts.iter().map(|entry| part(&entry.over)).collect()
}

fn is_key(value: &Expr, ty: Type) -> bool {
    is_rowless(value) && hash_alike(ty, value.ty)
}

fn text_of(pattern: &Expr) -> Option<&str> {
    match &pattern.kind {
        ExprKind::Const(Value::Text(text)) if pattern.ty.oid == types::TEXT => Some(text),
        _ => None,
    }
}

fn text(text: String) -> Expr {
    Expr::new(ExprKind::Const(Value::Text(text)), types::TEXT)
}

/// What a pattern of LIKE begins with before its first wildcard, and whether there is one.
fn beginning(pattern: &str) -> Option<(String, bool)> {
    let mut letters = pattern.chars();
    let mut beginning = String::new();
    while let Some(letter) = letters.next() {
        match letter {
            '%' | '_' => return Some((beginning, true)),
            // A pattern that ends with it is an error, which the shards report.
            '\\' => beginning.push(letters.next()?),
            letter => beginning.push(letter),
        }
    }
    Some((beginning, false))
}

/// The only text that a pattern without wildcards matches.
fn exact(pattern: &Expr) -> Option<Expr> {
    match beginning(text_of(pattern)?)? {
        (all, false) => Some(text(all)),
        _ => None,
    }
}

/// The least text that begins as the pattern does, and the least above all that do, in the order of bytes.
fn prefix(pattern: &Expr) -> Option<(Expr, Option<Expr>)> {
    let (low, _) = beginning(text_of(pattern)?)?;
    (!low.is_empty()).then(|| (text(low.clone()), after(&low).map(text)))
}

fn after(prefix: &str) -> Option<String> {
    let mut letters: Vec<char> = prefix.chars().collect();
    while let Some(last) = letters.pop() {
        // Between these two are no characters.
        let next = if last == '\u{D7FF}' { Some('\u{E000}') } else { char::from_u32(u32::from(last) + 1) };
        if let Some(next) = next {
            letters.push(next);
            return Some(letters.into_iter().collect());
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_beginning_of_a_pattern_bounds_what_it_matches() {
        let bounds =
            |pattern: &str| prefix(&text(pattern.into())).map(|(low, high)| (text_of(&low).map(String::from), high));
        let (low, high) = bounds("ab\\%c%d").expect("a beginning");
        assert_eq!((low.as_deref(), high.as_ref().and_then(text_of)), (Some("ab%c"), Some("ab%d")));
        assert_eq!(bounds("%ab"), None);
        assert_eq!(bounds("_ab"), None);
        assert_eq!(bounds("ab\\"), None);
        assert_eq!(after("a\u{D7FF}").as_deref(), Some("a\u{E000}"));
        assert_eq!(after("a\u{10FFFF}").as_deref(), Some("b"));
        assert_eq!(after("\u{10FFFF}"), None);
        assert_eq!(exact(&text("a\\_b".into())).as_ref().and_then(text_of), Some("a_b"));
        assert_eq!(exact(&text("a_b".into())), None);
    }

    #[test]
    fn a_predicate_is_taken_apart_only_where_it_says_and() {
        let known = ["(\"a\" > 1)".to_string(), "\"b\"".to_string(), "(\"c\" IS NOT NULL)".to_string()];
        assert!(all_known("(\"a\" > 1) AND \"b\" AND (\"c\" IS NOT NULL)", &known));
        assert!(!all_known("(\"a\" > 1) OR \"b\"", &known));
        assert!(!all_known("(\"a\" > 1) AND (\"a\" > 2)", &known));
        assert!(!all_known("", &known));
    }
}
