//! Splits a query between the shards and the stage.
//!
//!     SELECT … FROM a, b, c WHERE a.k = b.k AND b.x = c.x AND a.y > 1
//!
//!     stage_1   SELECT columns of a, b that are needed FROM a, b WHERE a.k = b.k AND a.y > 1     (each shard)
//!     stage_2   SELECT columns of c that are needed FROM c                                       (each shard)
//!     then      SELECT … FROM stage_1, stage_2 WHERE stage_1.x = stage_2.x
//!
//! The pieces of a block are the largest sets of its relations that a shard can join by itself; conditions go with
//! the piece that has all of their relations. Queries that stand by themselves (in FROM, in WITH, on a side of a set
//! operation, uncorrelated in an expression) are planned by themselves, and their rows are an input. What is
//! correlated stays where it is, over pieces of its own.
//!
//! Invariants:
//!   * A condition moves only to where it means the same: from WHERE and inner joins to any piece, from an outer
//!     join's ON to the side that may be null, and never into a full join.
//!   * A volatile expression is never copied, and runs in the stage.
//!   * An input that another is read by comes before it ([`super::lookup`]).

use super::build::{column, distinct_names, query_of, select_all, select_of, staged};
use super::functions::{has_subquery, is_volatile};
use super::lookup::{self, Link};
use super::place::{Place, Places, offered_by};
use super::query::{Planner, stage};
use super::walk::{
    ColumnRef, Columns, Rewriter, Visitor, conjunction, offered, outer_relations, outer_relations_of_from,
    relations_of, rewrite, split, walk,
};
use super::{Lookup, Node, ShardsNode, StageInput, StageRows};
use crate::route::{Fact, Facts};
use crate::tree::{
    Body, CteBody, CteId, Display, Distinct, Expr, ExprKind, Field, From, GroupBy, JoinKind, Query, RelId, RelationRef,
    RelationSource, Select, SubqueryKind,
};
use crate::types::{self, Oid};
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;
use std::collections::{BTreeSet, HashMap, HashSet};

impl Planner {
    /// A query that no shard answers, nor each its part.
    pub(super) fn staged(&mut self, query: Query) -> Result<Node, SqlError> {
        match self.in_two_phases(&query)? {
            Some(node) => Ok(node),
            None => self.gathered(query, Vec::new()),
        }
    }

    /// The stage over `inputs` and whatever else the query reads.
    pub(super) fn gathered(&mut self, mut query: Query, inputs: Vec<StageInput>) -> Result<Node, SqlError> {
        let free_param = lookup::free_param(&query);
        let (ctes, values) = (HashMap::new(), HashMap::new());
        let mut stager = Stager { planner: self, inputs, ctes, values, free_param };
        stager.query(&mut query)?;
        stage(stager.inputs, query)
    }
}

struct Stager<'a> {
    planner: &'a mut Planner,
    inputs: Vec<StageInput>,
    /// Common table expressions that are inputs: their names there.
    ctes: HashMap<CteId, String>,
    /// Columns whose values are in an input: which, and where there.
    values: HashMap<ColumnRef, (String, usize)>,
    /// The number of a parameter that nothing uses.
    free_param: usize,
}

/// Relations of a block that go to the shards together.
struct Piece {
    /// What they are in the stage.
    rel: RelId,
    from: Vec<From>,
    parts: Vec<Expr>,
    /// What joins them with others.
    links: Vec<Link>,
}

impl Piece {
    /// Whether all shards would be asked for it, and not if the values of a link are known.
    fn is_led_by(&self, link: &Link) -> bool {
        lookup::extent(&self.from, &self.parts) != lookup::Extent::Narrow && link.leads(&self.from, &self.parts)
    }
}

impl Stager<'_> {
    fn input(&mut self, fields: Vec<Field>, rows: StageRows) -> String {
        let name = self.planner.fresh_input();
        self.inputs.push(StageInput { name: name.clone(), columns: fields, rows });
        name
    }

    fn query(&mut self, query: &mut Query) -> Result<(), SqlError> {
        if query.lock.is_some() {
            let message = "row locks are not supported in a query that joins rows of several shards";
            let hint = "Lock the rows by a query over one table, or over tables joined by their shard keys.";
            return Err(SqlError::unsupported(message).with_hint(hint));
        }
        self.common_tables(query)?;
        match &mut query.body {
            Body::Select(select) => self.select(select)?,
            Body::Values(rows) => rows.iter_mut().flatten().try_for_each(|value| self.subqueries(value))?,
            Body::SetOp { left, right, .. } => {
                self.inner_query(left)?;
                self.inner_query(right)?;
            }
        }
        query.limit.iter_mut().chain(&mut query.offset).try_for_each(|bound| self.subqueries(bound))
    }

    fn common_tables(&mut self, query: &mut Query) -> Result<(), SqlError> {
        for mut cte in std::mem::take(&mut query.ctes) {
            match cte.body {
                CteBody::Query(body) if self.stands_alone(&body) && !is_free(&body) => {
                    let fields = distinct_names(cte.columns.clone());
                    let node = self.planner.node(*body)?;
                    let name = self.input(fields, StageRows::Node(node));
                    self.ctes.insert(cte.id, name);
                    continue;
                }
                CteBody::Query(ref mut body) => self.query(body)?,
                CteBody::Recursive { ref mut start, ref mut step, .. } => {
                    self.inner_query(start)?;
                    self.query(step)?;
                }
                CteBody::Write(_) => return Err(write_in_with()),
            }
            query.ctes.push(cte);
        }
        Ok(())
    }

    /// A query inside of another, which becomes an input if it can: then it has the name of that.
    fn inner_query(&mut self, query: &mut Query) -> Result<Option<String>, SqlError> {
        if !self.stands_alone(query) {
            return self.query(query).map(|()| None);
        }
        if is_free(query) {
            return Ok(None);
        }
        let taken = std::mem::replace(query, query_of(Body::Values(Vec::new()), Vec::new()));
        let columns = taken.columns.clone();
        let node = self.planner.node(taken)?;
        let fields = distinct_names(columns.clone());
        let name = self.input(fields.clone(), StageRows::Node(node));
        *query = select_all(self.planner.fresh_rel(), &name, &fields);
        query.columns = columns;
        Ok(Some(name))
    }

    /// Whether a query reads nothing of the queries around it, and nothing that is in the stage already.
    fn stands_alone(&self, query: &Query) -> bool {
        let mut ties = Ties::default();
        ties.query(query);
        outer_relations(query).is_empty() && !ties.staged && ties.used.is_subset(&ties.defined)
    }

    fn select(&mut self, select: &mut Select) -> Result<(), SqlError> {
        let mut parts = split(select.filter.take());
        let mut items = Vec::new();
        std::mem::take(&mut select.from).into_iter().for_each(|from| flatten(from, &mut items, &mut parts));
        let mut pieces = Vec::new();
        select.from = self.items(items, &mut parts, &mut pieces)?;
        self.semi_joins(&mut parts, &mut pieces)?;
        select.filter = conjunction(parts);
        let deduplicated = pieces.len() == 1 && select.from.len() == 1 && ignores_duplicates(select);
        put_in_order(&mut pieces);
        for piece in pieces {
            self.gather(piece, select, deduplicated)?;
        }
        self.inner_queries(select)
    }

    /// `column IN (SELECT …)`: the query is read first, and the piece of the column by its values.
    fn semi_joins(&mut self, parts: &mut [Expr], pieces: &mut [Piece]) -> Result<(), SqlError> {
        for part in parts {
            let Some((own, query)) = lookup::semi_join(part) else { continue };
            let rel = self.planner.fresh_rel();
            let Some(link) = Link::to_query(own.clone(), rel, query) else { continue };
            let of = |piece: &&mut Piece| link.is_of(&piece.from);
            let Some(piece) = pieces.iter_mut().find(of).filter(|piece| piece.is_led_by(&link)) else { continue };
            if self.stands_alone(query)
                && let Some(name) = self.inner_query(query)?
            {
                self.known(rel, &name, 1);
                piece.links.push(link);
            }
        }
        Ok(())
    }

    /// A relation of the stage whose columns are those of an input.
    fn known(&mut self, rel: RelId, name: &str, columns: usize) {
        self.values.extend((0..columns).map(|at| ((rel, at), (name.to_string(), at))));
    }

    /// What is left of these FROM entries when pieces are taken out. `parts` are conditions that may go with them.
    fn items(
        &mut self,
        items: Vec<From>,
        parts: &mut Vec<Expr>,
        pieces: &mut Vec<Piece>,
    ) -> Result<Vec<From>, SqlError> {
        let mut left = Vec::new();
        let mut groups: Vec<(usize, Vec<From>)> = Vec::new();
        for item in items {
            if self.is_candidate(&item) {
                groups.push((left.len(), vec![item]));
                // Stands for the piece until its columns are known.
                left.push(None);
            } else {
                let item = self.item(item, parts, pieces)?;
                left.push(Some(item));
            }
        }
        merge_groups(&mut groups, parts);
        // Before any piece takes its own conditions away, from which others follow.
        let implied: Vec<Vec<Expr>> = groups.iter().map(|(_, from)| implied_parts(from, parts)).collect();
        for ((at, from), implied) in groups.into_iter().zip(implied) {
            let rel = self.planner.fresh_rel();
            let mut pushed = take_parts(&from, parts);
            pushed.extend(implied);
            if let Some(slot) = left.get_mut(at) {
                *slot = Some(staged(rel, "", &[]));
            }
            let links = lookup::links(&from, parts);
            pieces.push(Piece { rel, from, parts: pushed, links });
        }
        Ok(left.into_iter().flatten().collect())
    }

    /// Whether a FROM entry can go to the shards.
    fn is_candidate(&self, item: &From) -> bool {
        let mut ties = Ties::default();
        ties.from(item);
        let alone = outer_relations_of_from(item).is_empty() && !ties.staged && ties.used.is_subset(&ties.defined);
        alone && !matches!(place_of(std::slice::from_ref(item), &[]), Place::Mixed | Place::Free | Place::Anchored)
    }

    /// An entry that stays in the stage.
    fn item(&mut self, item: From, parts: &mut Vec<Expr>, pieces: &mut Vec<Piece>) -> Result<From, SqlError> {
        match item {
            From::Relation(relation) if relation.relation.source == RelationSource::System => {
                Ok(self.system(&relation))
            }
            From::Cte { rel, cte, columns } => Ok(match self.ctes.get(&cte) {
                Some(name) => {
                    let name = name.clone();
                    self.known(rel, &name, columns.len());
                    staged(rel, &name, &distinct_names(columns))
                }
                None => From::Cte { rel, cte, columns },
            }),
            From::Subquery { rel, mut query, lateral } => {
                if let Some(name) = self.inner_query(&mut query)? {
                    self.known(rel, &name, query.columns.len());
                }
                Ok(From::Subquery { rel, query, lateral })
            }
            From::Join(mut join) => {
                let mut on = split(join.on.take());
                let (left, right) = match join.kind {
                    JoinKind::Inner => {
                        // Under an outer join; above one it would have been taken apart. What may go with the join may
                        // go with either side of it, and what neither takes stays where it was.
                        let above = parts.clone();
                        on.append(parts);
                        let sides = (self.side(join.left, &mut on, pieces)?, self.side(join.right, &mut on, pieces)?);
                        (*parts, on) = on.into_iter().partition(|part| above.contains(part));
                        sides
                    }
                    JoinKind::Left => (self.side(join.left, parts, pieces)?, self.side(join.right, &mut on, pieces)?),
                    JoinKind::Right => (self.side(join.left, &mut on, pieces)?, self.side(join.right, parts, pieces)?),
                    JoinKind::Full => {
                        let (mut none, mut nothing) = (Vec::new(), Vec::new());
                        (self.side(join.left, &mut none, pieces)?, self.side(join.right, &mut nothing, pieces)?)
                    }
                };
                join.left = left;
                join.right = right;
                // A left, right or full join must have a condition, even if none is left of it.
                join.on = conjunction(on).or_else(|| (join.kind != JoinKind::Inner).then(truth));
                Ok(From::Join(join))
            }
            other => Ok(other),
        }
    }

    /// A side of a join, which is one entry before and after.
    fn side(&mut self, from: From, parts: &mut Vec<Expr>, pieces: &mut Vec<Piece>) -> Result<From, SqlError> {
        let mut items = self.items(vec![from], parts, pieces)?;
        items.pop().ok_or_else(|| SqlError::new("XX000", "a side of a join was lost"))
    }

    fn system(&mut self, relation: &RelationRef) -> From {
        let columns = relation.relation.columns.iter();
        let fields: Vec<Field> = columns.map(|c| Field { name: c.name.clone(), ty: c.ty }).collect();
        let source = format!("{}.{}", relation.relation.schema, relation.relation.name);
        let known = self.inputs.iter().find(|i| matches!(&i.rows, StageRows::System(known) if *known == source));
        let name = match known {
            Some(input) => input.name.clone(),
            None => self.input(fields.clone(), StageRows::System(source)),
        };
        staged(relation.rel, &name, &fields)
    }

    /// Makes a piece an input: of its columns, those that the rest of the block reads.
    fn gather(&mut self, piece: Piece, select: &mut Select, deduplicated: bool) -> Result<(), SqlError> {
        let rels = offered_by(&piece.from);
        let mut read = Columns::default();
        read.select(select);
        let needed: Vec<ColumnRef> = read.0.into_iter().filter(|(rel, _)| rels.contains(rel)).collect();
        let (mut targets, mut fields) = (Vec::new(), Vec::new());
        for (rel, at) in &needed {
            let field = piece.from.iter().find_map(|from| field_of(from, *rel, *at));
            let field = field.ok_or_else(|| SqlError::new("XX000", "a column of a piece is not there"))?;
            targets.push(column(*rel, *at, field.ty));
            fields.push(field);
        }
        if targets.is_empty() {
            targets.push(Expr::new(ExprKind::Const(Value::Int(1)), types::INT4));
            fields.push(Field { name: "one".into(), ty: types::INT4.into() });
        }
        let fields = distinct_names(fields);
        let mut part = select_of(targets, piece.from.clone(), conjunction(piece.parts.clone()));
        if deduplicated {
            part.distinct = Distinct::All;
        }
        let place = Places::of_query(&query_of(Body::Values(Vec::new()), Vec::new())).rows(&part);
        let led = self.looked_up(&piece, &part, &fields)?;
        let query = query_of(Body::Select(Box::new(part)), fields.clone());
        let all = match (deduplicated, &place) {
            // The stage removes what duplicates are left between shards.
            (true, Place::Spread(spread)) => super::query::scatter(query, spread)?,
            _ => self.planner.node(query)?,
        };
        let rows = match led {
            Some(Led { input, column, param, some }) => {
                StageRows::Lookup(Box::new(Lookup { input, column, param, some, all }))
            }
            None => StageRows::Node(all),
        };
        let name = self.input(fields.clone(), rows);
        self.known(piece.rel, &name, needed.len());
        self.values.extend(needed.iter().enumerate().map(|(to, from)| (*from, (name.clone(), to))));
        let moved = needed.into_iter().enumerate().map(|(to, from)| (from, to)).collect();
        Moved { rel: piece.rel, moved, stub: staged(piece.rel, &name, &fields) }.select(select);
        Ok(())
    }

    /// How a piece is read by the values of an input that is there already, if they say where its rows are.
    fn looked_up(&mut self, piece: &Piece, part: &Select, fields: &[Field]) -> Result<Option<Led>, SqlError> {
        if lookup::extent(&part.from, &piece.parts) == lookup::Extent::Narrow {
            return Ok(None);
        }
        let param = self.free_param;
        for link in &piece.links {
            let (Some((input, column)), Some(condition)) = (self.values.get(&link.other), link.condition(param)) else {
                continue;
            };
            let (input, column) = (input.clone(), *column);
            let parts = piece.parts.iter().cloned().chain([condition]).collect();
            let some = Select { filter: conjunction(parts), ..part.clone() };
            let node = self.planner.node(query_of(Body::Select(Box::new(some)), fields.to_vec()))?;
            if let Some(some) = lookup::led(node) {
                self.free_param += 1;
                return Ok(Some(Led { input, column, param, some }));
            }
        }
        Ok(None)
    }

    /// Queries inside of a block's expressions, and in its FROM.
    fn inner_queries(&mut self, select: &mut Select) -> Result<(), SqlError> {
        let mut from = std::mem::take(&mut select.from);
        let found = from.iter_mut().try_for_each(|from| self.inner_of_from(from));
        select.from = from;
        found?;
        let mut inner = InnerQueries { stager: self, failed: None };
        select.filter.iter_mut().for_each(|filter| inner.expr(filter));
        rewrite::above_filter(&mut inner, select);
        inner.failed.map_or(Ok(()), Err)
    }

    fn inner_of_from(&mut self, from: &mut From) -> Result<(), SqlError> {
        match from {
            From::Relation(_) | From::Cte { .. } | From::Subquery { .. } => Ok(()),
            From::Function(function) => self.subqueries(&mut function.call),
            From::Join(join) => {
                self.inner_of_from(&mut join.left)?;
                self.inner_of_from(&mut join.right)?;
                join.on.iter_mut().try_for_each(|on| self.subqueries(on))
            }
        }
    }

    fn subqueries(&mut self, expr: &mut Expr) -> Result<(), SqlError> {
        let mut inner = InnerQueries { stager: self, failed: None };
        inner.expr(expr);
        inner.failed.map_or(Ok(()), Err)
    }
}

pub(super) fn write_in_with() -> SqlError {
    SqlError::unsupported("INSERT, UPDATE and DELETE in WITH are not supported")
        .with_hint("Run the statement by itself, with RETURNING, in the same transaction.")
}

struct InnerQueries<'a, 'b> {
    stager: &'a mut Stager<'b>,
    failed: Option<SqlError>,
}

impl Rewriter for InnerQueries<'_, '_> {
    fn expr(&mut self, expr: &mut Expr) {
        if let ExprKind::Subquery(subquery) = &mut expr.kind
            && matches!(subquery.kind, SubqueryKind::Exists { .. })
            && self.stager.stands_alone(&subquery.query)
            && subquery.query.limit.is_none()
        {
            // One row says as much as all of them.
            subquery.query.limit = Some(Expr::new(ExprKind::Const(Value::Int(1)), types::INT8));
        }
        rewrite::expr(self, expr);
    }

    fn query(&mut self, query: &mut Query) {
        if let Err(error) = self.stager.inner_query(query) {
            self.failed.get_or_insert(error);
        }
    }
}

/// How a piece is read by values.
struct Led {
    input: String,
    column: usize,
    param: usize,
    some: Box<ShardsNode>,
}

/// Pieces that others can be read by come first, those of which little is read before the others.
fn put_in_order(pieces: &mut [Piece]) {
    let leads = |piece: &Piece| piece.links.iter().any(|link| piece.is_led_by(link));
    let ranks: Vec<(RelId, (lookup::Extent, bool))> =
        pieces.iter().map(|piece| (piece.rel, (lookup::extent(&piece.from, &piece.parts), leads(piece)))).collect();
    if ranks.iter().any(|(_, (_, leads))| *leads) {
        pieces.sort_by_key(|piece| ranks.iter().find(|(rel, _)| *rel == piece.rel).map(|(_, rank)| *rank));
    }
}

/// What ties a query to where it is.
#[derive(Default)]
struct Ties {
    staged: bool,
    used: BTreeSet<CteId>,
    defined: BTreeSet<CteId>,
}

impl Visitor for Ties {
    fn query(&mut self, query: &Query) {
        self.defined.extend(query.ctes.iter().map(|cte| cte.id));
        walk::query(self, query);
    }

    fn from(&mut self, from: &From) {
        match from {
            From::Relation(relation) => self.staged |= relation.relation.source == RelationSource::Staged,
            From::Cte { cte, .. } => {
                self.used.insert(*cte);
            }
            _ => {}
        }
        walk::from(self, from);
    }
}

/// Whether an expression asks something that is, or will be, in the stage alone.
fn is_tied(expr: &Expr) -> bool {
    let mut ties = Ties::default();
    ties.expr(expr);
    ties.staged || !ties.used.is_subset(&ties.defined)
}

fn is_free(query: &Query) -> bool {
    matches!(Places::of_query(query).top(query), Place::Free)
}

fn truth() -> Expr {
    Expr::new(ExprKind::Const(Value::Bool(true)), types::BOOL)
}

/// Takes inner joins apart: their conditions are as good in WHERE.
fn flatten(from: From, items: &mut Vec<From>, parts: &mut Vec<Expr>) {
    match from {
        From::Join(join) if join.kind == JoinKind::Inner => {
            flatten(join.left, items, parts);
            flatten(join.right, items, parts);
            parts.extend(split(join.on));
        }
        other => items.push(other),
    }
}

/// The place of FROM entries, joined by those of `parts` that are about them alone.
pub(super) fn place_of(from: &[From], parts: &[Expr]) -> Place {
    let rels = offered_by(from);
    let own = parts.iter().filter(|part| relations_of(part).is_subset(&rels)).cloned().collect();
    let select = select_of(Vec::new(), from.to_vec(), conjunction(own));
    let query = query_of(Body::Select(Box::new(select)), Vec::new());
    match &query.body {
        Body::Select(select) => Places::of_query(&query).rows(select),
        _ => Place::Mixed,
    }
}

/// Joins groups that a condition connects, as long as a shard can join them.
fn merge_groups(groups: &mut Vec<(usize, Vec<From>)>, parts: &[Expr]) {
    let parts: Vec<Expr> = parts.iter().filter(|part| !has_subquery(part) && !is_volatile(part)).cloned().collect();
    let mut refused = HashSet::new();
    while let Some((a, b)) = mergeable(groups, &parts, &mut refused) {
        let (_, taken) = groups.remove(b);
        groups[a].1.extend(taken);
        // What could not be joined with the one may be joined with both.
        let changed = groups[a].0;
        refused.retain(|(a, b)| *a != changed && *b != changed);
    }
}

/// Two groups to be joined. Those that cannot be are remembered by their slots: asking again costs as much.
fn mergeable(
    groups: &[(usize, Vec<From>)],
    parts: &[Expr],
    refused: &mut HashSet<(usize, usize)>,
) -> Option<(usize, usize)> {
    let rels: Vec<BTreeSet<RelId>> = groups.iter().map(|(_, from)| offered_by(from)).collect();
    for part in parts {
        let of = relations_of(part);
        let mut touched = (0..groups.len()).filter(|at| !of.is_disjoint(&rels[*at]));
        let (Some(a), Some(b), None) = (touched.next(), touched.next(), touched.next()) else { continue };
        let own = of.iter().all(|rel| rels[a].contains(rel) || rels[b].contains(rel));
        let slots = (groups[a].0, groups[b].0);
        if !own || refused.contains(&slots) {
            continue;
        }
        let both: Vec<From> = groups[a].1.iter().chain(&groups[b].1).cloned().collect();
        if !matches!(place_of(&both, parts), Place::Mixed) {
            return Some((a, b));
        }
        refused.insert(slots);
    }
    None
}

/// Takes the conditions that a piece can check by itself.
fn take_parts(from: &[From], parts: &mut Vec<Expr>) -> Vec<Expr> {
    let rels = offered_by(from);
    let about = |part: &Expr| {
        let of = relations_of(part);
        !of.is_empty() && of.is_subset(&rels) && !is_volatile(part) && !is_tied(part)
    };
    let (about, mut kept): (Vec<Expr>, Vec<Expr>) = std::mem::take(parts).into_iter().partition(about);
    let (asking, mut taken): (Vec<Expr>, Vec<Expr>) = about.into_iter().partition(has_subquery);
    for part in asking {
        // Each subquery may be where the piece is, and yet not two of them.
        let with: Vec<Expr> = taken.iter().cloned().chain([part.clone()]).collect();
        let to = if matches!(place_of(from, &with), Place::Mixed) { &mut kept } else { &mut taken };
        to.push(part);
    }
    *parts = kept;
    taken
}

/// `b.x = 5`, where the conditions are `a.x = b.x` and `a.x = 5` and only `b` is in the piece.
fn implied_parts(from: &[From], parts: &[Expr]) -> Vec<Expr> {
    let rels = offered_by(from);
    let (mut facts, mut known) = (Facts::default(), Facts::default());
    for part in parts {
        facts.learn(&Fact::Condition(part.clone()));
        if relations_of(part).is_subset(&rels) {
            known.learn(&Fact::Condition(part.clone()));
        }
    }
    let implied = |part: &Expr| {
        let ExprKind::Call { function, display, args } = &part.kind else { return None };
        if *display != Display::Operator("=".into()) {
            return None;
        }
        let side = |expr: &Expr| match expr.kind {
            ExprKind::Column { rel, column } => Some((rel, column)),
            _ => None,
        };
        let [left, right] = args.as_slice() else { return None };
        let (a, b) = (side(left)?, side(right)?);
        let value = |column, ty| facts.value_in(column).and_then(|value| typed(value, ty));
        let args = match (rels.contains(&a.0), rels.contains(&b.0)) {
            (true, false) if known.value_in(a).is_none() => vec![left.clone(), value(b, right.ty.oid)?],
            (false, true) if known.value_in(b).is_none() => vec![value(a, left.ty.oid)?, right.clone()],
            _ => return None,
        };
        Some(Expr::new(ExprKind::Call { function: *function, display: display.clone(), args }, types::BOOL))
    };
    let mut found: Vec<Expr> = Vec::new();
    for part in parts.iter().filter_map(implied) {
        if !found.contains(&part) && !parts.contains(&part) {
            found.push(part);
        }
    }
    found
}

/// A value as one of this type, if it is one as it stands.
fn typed(value: &Expr, ty: Oid) -> Option<Expr> {
    match value.kind {
        ExprKind::Const(Value::Int(n)) if ty == types::INT8 || (ty == types::INT4 && i32::try_from(n).is_ok()) => {
            Some(Expr::new(ExprKind::Const(Value::Int(n)), ty))
        }
        _ => (value.ty.oid == ty).then(|| value.clone()),
    }
}

/// The name and type of a relation's column.
fn field_of(from: &From, rel: RelId, at: usize) -> Option<Field> {
    match from {
        From::Relation(relation) if relation.rel == rel => {
            relation.relation.columns.get(at).map(|c| Field { name: c.name.clone(), ty: c.ty })
        }
        From::Subquery { rel: own, query, .. } if *own == rel => query.columns.get(at).cloned(),
        From::Cte { rel: own, columns, .. } if *own == rel => columns.get(at).cloned(),
        From::Function(function) if function.rel == rel => function.columns.get(at).cloned(),
        From::Join(join) => field_of(&join.left, rel, at).or_else(|| field_of(&join.right, rel, at)),
        _ => None,
    }
}

/// Whether a select gives the same of rows and of the distinct ones among them.
fn ignores_duplicates(select: &Select) -> bool {
    let mut calls = Calls::default();
    calls.select(select);
    let deduplicates = select.distinct == Distinct::All || select.group_by != GroupBy::None;
    deduplicates && !calls.counts && !calls.volatile
}

/// Whether there is an expression for which the number of rows matters.
#[derive(Default)]
struct Calls {
    counts: bool,
    volatile: bool,
}

impl Visitor for Calls {
    fn expr(&mut self, expr: &Expr) {
        match &expr.kind {
            ExprKind::Aggregate(call) => {
                let idempotent = ["min", "max", "bool_and", "bool_or", "every", "bit_and", "bit_or"];
                self.counts |= !call.distinct && !idempotent.contains(&call.name.as_str());
            }
            ExprKind::Window(_) => self.counts = true,
            ExprKind::Call { .. } => self.volatile |= is_volatile(expr),
            _ => {}
        }
        walk::expr(self, expr);
    }
}

/// Puts columns of a staged table where columns of a piece were.
struct Moved {
    rel: RelId,
    moved: HashMap<ColumnRef, usize>,
    stub: From,
}

impl Rewriter for Moved {
    fn expr(&mut self, expr: &mut Expr) {
        if let ExprKind::Column { rel, column } = &mut expr.kind
            && let Some(to) = self.moved.get(&(*rel, *column))
        {
            (*rel, *column) = (self.rel, *to);
        }
        rewrite::expr(self, expr);
    }

    fn from(&mut self, from: &mut From) {
        if offered(from) == BTreeSet::from([self.rel]) && matches!(from, From::Relation(_)) {
            *from = self.stub.clone();
        }
        rewrite::from(self, from);
    }
}
