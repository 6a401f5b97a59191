//! Where a query's rows are: whether one shard can answer it, or each shard its own part, or none.
//!
//! A [`Place`] is found from the inside out. A subquery in FROM has one by itself; the block that it is in puts the
//! places of its relations together, by what its conditions say of their shard keys. A subquery in an expression, and
//! a lateral one, is asked whether all the rows it can see for a row of the outer block are where that row is
//! ([`Place::Anchored`]).
//!
//! Invariants:
//!   * [`Place::Spread`]: the rows that the shards give, each by itself, are together the rows of the query.
//!   * Every other place but [`Place::Mixed`]: one shard gives the rows of the query.
//!
//! Whatever is not understood is [`Place::Mixed`], for which the stage is always right.

use super::functions::uses_sequence;
use super::probe::{self, Candidate};
use super::walk::{
    ColumnRef, Rewriter, Visitor, conjuncts, offered, outer_relations_of_from, own_relation, rewrite, walk,
};
use super::{IndexTarget, KeyExprs, Probe, Target};
use crate::route::{Fact, Facts, Purpose, plain_column};
use crate::tree::{
    Body, Cte, CteBody, CteId, Distinct, Expr, ExprKind, From, GroupBy, JoinKind, Query, RelId, RelationRef,
    RelationSource, Select, SetOp, WindowCall,
};
use isles_kernel::names::GroupName;
use isles_kernel::schema::{Table, TableKind};
use std::cell::Cell;
use std::collections::{BTreeSet, HashMap};

#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// Nothing stored is read.
    Free,
    /// Reference tables alone: any shard.
    Reference,
    Home,
    Tenant,
    /// The shard of one key.
    Single(Single),
    Spread(Spread),
    /// Where the outer row is.
    Anchored,
    /// Not on any one shard, nor in independent parts.
    Mixed,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Single {
    pub(crate) group: GroupName,
    pub(crate) key: Vec<Expr>,
}

#[derive(Debug, Clone)]
pub(crate) struct Spread {
    pub(crate) group: GroupName,
    /// The columns that hold the shard key, or would if the query showed them.
    pub(crate) key: Vec<ColumnRef>,
    /// The keys that rows can have; None for any.
    pub(crate) keys: Option<Vec<KeyExprs>>,
    /// What rows match one of, of the keys of global indexes; None where no index says anything.
    pub(crate) any: Option<Vec<Probe>>,
    /// The tables with global indexes of which each row has a row in it.
    pub(crate) indexed: Vec<RelationRef>,
    pub(crate) impossible: bool,
}

impl Spread {
    pub(crate) fn target(&self) -> Target {
        match &self.keys {
            _ if self.impossible => Target::Nowhere,
            Some(keys) => Target::Keys { group: self.group.clone(), keys: keys.clone() },
            None => match &self.any {
                Some(any) => Target::Index(IndexTarget { group: self.group.clone(), any: any.clone() }),
                None => Target::All,
            },
        }
    }
}

/// A place, and what can be said of the rows to whoever uses them.
#[derive(Debug, Clone)]
pub(crate) struct Located {
    pub(crate) place: Place,
    facts: Vec<Fact>,
    /// The column that each output is, if it is one.
    outputs: Vec<Option<ColumnRef>>,
}

impl Located {
    fn nowhere_known(place: Place) -> Located {
        Located { place, facts: Vec::new(), outputs: Vec::new() }
    }
}

/// What a query inside of another may rely on.
#[derive(Clone, Copy)]
struct Outer<'a> {
    facts: &'a Facts,
    /// Where the outer row is.
    anchor: Option<&'a Spread>,
}

/// A select's FROM and WHERE.
struct Block {
    place: Place,
    /// What holds inside of it, with what its outer joins wait for.
    facts: Facts,
    /// What holds for each of its rows.
    learned: Vec<Fact>,
}

/// One entry of a FROM clause.
struct Leaf {
    rel: RelId,
    place: Place,
}

pub(crate) struct Places {
    ctes: HashMap<CteId, Cte>,
    next_rel: Cell<u32>,
    /// Uses of common table expressions that may still be looked into.
    uses_left: Cell<u32>,
}

/// An expression that uses another twice, which uses another twice, and so on, is as long as it is deep, and has
/// exponentially many uses. Beyond this many it is the stage's, where each expression is computed once.
const MAX_CTE_USES: u32 = 256;

/// Relations that exist only in thought are numbered from here: copies of a common table expression for each use.
const FIRST_IMAGINED: u32 = 1 << 30;

#[derive(Default)]
struct CollectCtes(HashMap<CteId, Cte>);

impl Visitor for CollectCtes {
    fn query(&mut self, query: &Query) {
        self.0.extend(query.ctes.iter().map(|cte| (cte.id, cte.clone())));
        walk::query(self, query);
    }
}

impl Places {
    pub(crate) fn of_query(query: &Query) -> Places {
        let mut found = CollectCtes::default();
        found.query(query);
        Places { ctes: found.0, next_rel: Cell::new(FIRST_IMAGINED), uses_left: Cell::new(MAX_CTE_USES) }
    }

    /// Where a whole statement's query is; its own ORDER BY and LIMIT are the merge's business.
    pub(crate) fn top(&self, query: &Query) -> Place {
        match self.body(query, no_outer(&Facts::default())).place {
            Place::Free => Place::Free,
            _ if uses_sequence(query) => Place::Mixed,
            place => place,
        }
    }

    /// Where the rows are that a select groups, sorts and computes from.
    pub(crate) fn rows(&self, select: &Select) -> Place {
        self.block(select, no_outer(&Facts::default())).place
    }

    fn imagined(&self) -> RelId {
        self.next_rel.set(self.next_rel.get() + 1);
        RelId(self.next_rel.get())
    }

    /// A query inside of another: its LIMIT is over all of its rows.
    fn query(&self, query: &Query, outer: Outer<'_>) -> Located {
        let mut located = self.body(query, outer);
        let limited = query.limit.is_some() || query.offset.is_some() || query.with_ties;
        let spread = matches!(located.place, Place::Spread(_));
        if (limited && spread) || (!matches!(located.place, Place::Free) && uses_sequence(query)) {
            located.place = Place::Mixed;
        }
        located
    }

    fn body(&self, query: &Query, outer: Outer<'_>) -> Located {
        let mut located = match &query.body {
            Body::Select(select) => self.select(select, query.columns.len(), outer),
            Body::Values(rows) => {
                let exprs: Vec<&Expr> = rows.iter().flatten().collect();
                Located::nowhere_known(self.with_subqueries(Place::Free, &exprs, outer))
            }
            Body::SetOp { op, all, left, right } => {
                let (left, right) = (self.query(left, outer), self.query(right, outer));
                self.set_operation(*op, *all, &left, &right)
            }
        };
        let bounds: Vec<&Expr> = query.limit.iter().chain(&query.offset).collect();
        located.place = self.with_subqueries(located.place, &bounds, outer);
        located
    }

    fn set_operation(&self, op: SetOp, all: bool, left: &Located, right: &Located) -> Located {
        let (Place::Spread(a), Place::Spread(b)) = (&left.place, &right.place) else {
            return match (&left.place, &right.place) {
                (Place::Spread(_), _) | (_, Place::Spread(_)) => Located::nowhere_known(Place::Mixed),
                (a, b) => Located::nowhere_known(together(a, b)),
            };
        };
        let positions = key_outputs(left, a).filter(|found| key_outputs(right, b).as_ref() == Some(found));
        let independent = (op == SetOp::Union && all) || positions.is_some();
        if a.group != b.group || !independent {
            return Located::nowhere_known(Place::Mixed);
        }
        let rel = self.imagined();
        let key = match positions {
            Some(positions) => positions.into_iter().map(|at| (rel, at)).collect(),
            None => vec![(self.imagined(), 0); a.key.len()],
        };
        let keys = match (&a.keys, &b.keys, op) {
            (Some(a), Some(b), _) => Some(a.iter().chain(b).cloned().collect()),
            _ => None,
        };
        let any = match (&a.any, &b.any) {
            (Some(a), Some(b)) => Some(a.iter().chain(b).cloned().collect()),
            _ => None,
        };
        let (indexed, impossible) = (Vec::new(), a.impossible && b.impossible);
        let spread = Spread { group: a.group.clone(), key, keys, any, indexed, impossible };
        let outputs = (0..left.outputs.len()).map(|at| Some((rel, at))).collect();
        Located { place: Place::Spread(spread), facts: Vec::new(), outputs }
    }

    fn select(&self, select: &Select, visible: usize, outer: Outer<'_>) -> Located {
        let Block { mut place, facts, learned } = self.block(select, outer);
        if let Place::Spread(spread) = &place
            && !independent(select, spread, &facts)
        {
            place = Place::Mixed;
        }
        let rolled_up = matches!(select.group_by, GroupBy::Sets { .. });
        let output = |target: &Expr| plain_column(target).map(|(column, _)| column).filter(|_| !rolled_up);
        let outputs = select.targets.iter().take(visible).map(output).collect();
        Located { place, facts: learned, outputs }
    }

    /// The place of a select's FROM and WHERE and of all its subqueries, and what its conditions say.
    fn block(&self, select: &Select, outer: Outer<'_>) -> Block {
        let mut facts = outer.facts.clone();
        let (mut leaves, mut learned) = (Vec::new(), Vec::new());
        for from in &select.from {
            learned.extend(self.collect(from, outer, &mut leaves, &mut facts));
        }
        learned.extend(conjuncts(select.filter.as_ref()).into_iter().cloned().map(Fact::Condition));
        learned.iter().for_each(|fact| facts.learn(fact));
        let mut place = combine(&leaves, &select.from, &facts, outer);
        place = self.with_laterals(place, select, &facts, outer);
        let exprs = block_exprs(select);
        let anchor = anchor_of(&place).or(outer.anchor.cloned());
        let place = self.with_subqueries(place, &exprs, Outer { facts: &facts, anchor: anchor.as_ref() });
        Block { place, facts, learned }
    }

    /// The leaves of a FROM entry; returns the facts that hold for its rows.
    fn collect(&self, from: &From, outer: Outer<'_>, leaves: &mut Vec<Leaf>, facts: &mut Facts) -> Vec<Fact> {
        match from {
            From::Relation(relation) => {
                leaves.push(Leaf { rel: relation.rel, place: place_of_relation(relation) });
                Vec::new()
            }
            // These can depend on relations beside them, and are asked when all of those are known.
            From::Function(_) => Vec::new(),
            From::Subquery { lateral: true, .. } if !outer_relations_of_from(from).is_empty() => Vec::new(),
            From::Subquery { rel, query, .. } => self.derived(*rel, self.query(query, outer), leaves),
            From::Cte { rel, cte, .. } => self.derived(*rel, self.cte(*cte, outer), leaves),
            From::Join(join) => {
                let left = self.collect(&join.left, outer, leaves, facts);
                let right = self.collect(&join.right, outer, leaves, facts);
                let on = conjuncts(join.on.as_ref()).into_iter().cloned().map(Fact::Condition);
                let (left_rels, right_rels) = (offered(&join.left), offered(&join.right));
                match join.kind {
                    JoinKind::Inner => left.into_iter().chain(right).chain(on).collect(),
                    JoinKind::Left => {
                        facts.wait(vec![right_rels], right.into_iter().chain(on).collect());
                        left
                    }
                    JoinKind::Right => {
                        facts.wait(vec![left_rels], left.into_iter().chain(on).collect());
                        right
                    }
                    JoinKind::Full => {
                        facts.wait(vec![left_rels.clone()], left);
                        facts.wait(vec![right_rels.clone()], right);
                        facts.wait(vec![left_rels, right_rels], on.collect());
                        Vec::new()
                    }
                }
            }
        }
    }

    fn derived(&self, rel: RelId, located: Located, leaves: &mut Vec<Leaf>) -> Vec<Fact> {
        leaves.push(Leaf { rel, place: located.place.clone() });
        links(rel, located)
    }

    /// A use of a common table expression. Each use has relations of its own, or two uses would seem to be one.
    fn cte(&self, id: CteId, outer: Outer<'_>) -> Located {
        let Some(left) = self.uses_left.get().checked_sub(1) else { return Located::nowhere_known(Place::Mixed) };
        self.uses_left.set(left);
        match self.ctes.get(&id).map(|cte| &cte.body) {
            Some(CteBody::Query(query)) => self.query(&self.copied(query), outer),
            Some(CteBody::Recursive { start, step, .. }) => {
                // Inside, the expression itself adds nothing to where it is.
                let mut known =
                    Places { ctes: self.ctes.clone(), next_rel: self.next_rel.clone(), uses_left: Cell::new(left) };
                known.ctes.remove(&id);
                let parts = [known.query(start, outer).place, known.query(step, outer).place];
                self.uses_left.set(known.uses_left.get());
                match together(&parts[0], &parts[1]) {
                    Place::Spread(_) => Located::nowhere_known(Place::Mixed),
                    place => Located::nowhere_known(place),
                }
            }
            Some(CteBody::Write(_)) => Located::nowhere_known(Place::Mixed),
            // A recursive expression's own use; a staged one is a relation by now.
            None => Located::nowhere_known(Place::Free),
        }
    }

    fn copied(&self, query: &Query) -> Query {
        let mut copy = query.clone();
        let mut renaming = Renaming { places: self, renamed: HashMap::new() };
        renaming.query(&mut copy);
        // Uses may come before definitions in the walk's order, so the columns are renamed when all are known.
        RenamedColumns(&renaming.renamed).query(&mut copy);
        copy
    }

    fn with_laterals(&self, place: Place, select: &Select, facts: &Facts, outer: Outer<'_>) -> Place {
        let anchor = anchor_of(&place).or(outer.anchor.cloned());
        let inner = Outer { facts, anchor: anchor.as_ref() };
        let mut laterals = Vec::new();
        select.from.iter().for_each(|from| collect_laterals(from, &mut laterals));
        laterals.into_iter().fold(place, |place, from| match from {
            From::Subquery { query, .. } => attached(&place, &self.query(query, inner).place),
            From::Function(function) => self.with_subqueries(place, &[&function.call], inner),
            _ => place,
        })
    }

    fn with_subqueries(&self, place: Place, exprs: &[&Expr], outer: Outer<'_>) -> Place {
        let mut found = Subqueries::default();
        exprs.iter().for_each(|expr| found.expr(expr));
        found.0.iter().fold(place, |place, query| attached(&place, &self.query(query, outer).place))
    }
}

fn no_outer(facts: &Facts) -> Outer<'_> {
    Outer { facts, anchor: None }
}

fn place_of_relation(relation: &RelationRef) -> Place {
    match &relation.relation.source {
        RelationSource::System | RelationSource::Staged => Place::Mixed,
        RelationSource::User(table) => match &table.kind {
            TableKind::Hash { group, .. } => Place::Spread(Spread {
                group: group.clone(),
                key: shard_key(table).into_iter().map(|column| (relation.rel, column)).collect(),
                keys: None,
                any: None,
                indexed: table.global_keys().next().map(|_| relation.clone()).into_iter().collect(),
                impossible: false,
            }),
            TableKind::Tenant => Place::Tenant,
            TableKind::Reference => Place::Reference,
            TableKind::Global => Place::Home,
        },
    }
}

/// Positions of a table's shard key; none unless it is hashed.
pub(crate) fn shard_key(table: &Table) -> Vec<usize> {
    match &table.kind {
        TableKind::Hash { shard_by, .. } => shard_by.iter().filter_map(|name| table.position(name)).collect(),
        _ => Vec::new(),
    }
}

/// What is known of a subquery's rows, in the words of the block that it is in.
fn links(rel: RelId, located: Located) -> Vec<Fact> {
    let same = |(at, column): (usize, Option<ColumnRef>)| column.map(|column| Fact::Same((rel, at), column));
    located.facts.into_iter().chain(located.outputs.into_iter().enumerate().filter_map(same)).collect()
}

fn key_outputs(located: &Located, spread: &Spread) -> Option<Vec<usize>> {
    let mut facts = Facts::default();
    located.facts.iter().for_each(|fact| facts.learn(fact));
    let holds = |key: ColumnRef| located.outputs.iter().position(|out| out.is_some_and(|out| facts.equal(out, key)));
    spread.key.iter().map(|key| holds(*key)).collect()
}

fn anchor_of(place: &Place) -> Option<Spread> {
    match place {
        Place::Spread(spread) => Some(spread.clone()),
        _ => None,
    }
}

/// Two places that one shard must serve; nothing is spread.
fn together(a: &Place, b: &Place) -> Place {
    match (a, b) {
        (Place::Mixed, _) | (_, Place::Mixed) => Place::Mixed,
        (Place::Free, other) | (other, Place::Free) => other.clone(),
        (Place::Reference, other) | (other, Place::Reference) => other.clone(),
        (Place::Home, Place::Home) => Place::Home,
        (Place::Tenant, Place::Tenant) => Place::Tenant,
        (Place::Anchored, Place::Anchored) => Place::Anchored,
        (Place::Single(a), Place::Single(b)) if a == b => Place::Single(a.clone()),
        (Place::Anchored, spread @ Place::Spread(_)) | (spread @ Place::Spread(_), Place::Anchored) => spread.clone(),
        (Place::Anchored, single @ Place::Single(_)) | (single @ Place::Single(_), Place::Anchored) => single.clone(),
        _ => Place::Mixed,
    }
}

/// A block's place with a subquery's, which each of its rows asks.
fn attached(block: &Place, subquery: &Place) -> Place {
    match (block, subquery) {
        // Not anchored, so the rows are of other shards too.
        (_, Place::Spread(_)) => Place::Mixed,
        (block, subquery) => together(block, subquery),
    }
}

/// The place of a block's relations.
fn combine(leaves: &[Leaf], from: &[From], facts: &Facts, outer: Outer<'_>) -> Place {
    let (hashed, others): (Vec<&Leaf>, Vec<&Leaf>) =
        leaves.iter().partition(|leaf| matches!(leaf.place, Place::Spread(_) | Place::Single(_)));
    let rest = others.iter().fold(Place::Free, |place, leaf| together(&place, &leaf.place));
    if hashed.is_empty() || matches!(rest, Place::Mixed | Place::Home | Place::Tenant) {
        return hashed.iter().fold(rest, |place, leaf| together(&place, &leaf.place));
    }
    if let Some(anchor) = outer.anchor
        && hashed.iter().all(|leaf| is_anchored(leaf, anchor, facts))
    {
        return Place::Anchored;
    }
    if matches!(rest, Place::Anchored) {
        return Place::Mixed;
    }
    single(&hashed, facts).map(Place::Single).unwrap_or_else(|| spread(&hashed, leaves, from, facts))
}

fn is_anchored(leaf: &Leaf, anchor: &Spread, facts: &Facts) -> bool {
    let facts = facts.of_relation(leaf.rel, Purpose::Reaching);
    match &leaf.place {
        Place::Spread(spread) => spread.group == anchor.group && same_key(&spread.key, &anchor.key, &facts),
        Place::Single(single) => {
            single.group == anchor.group && facts.values_in(&anchor.key).as_ref() == Some(&single.key)
        }
        _ => false,
    }
}

fn same_key(a: &[ColumnRef], b: &[ColumnRef], facts: &Facts) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| facts.equal(*a, *b))
}

/// The one key that all of these relations' rows have.
fn single(hashed: &[&Leaf], facts: &Facts) -> Option<Single> {
    let mut keys = hashed.iter().map(|leaf| match &leaf.place {
        Place::Single(single) => Some(single.clone()),
        Place::Spread(spread) => {
            let facts = facts.of_relation(leaf.rel, Purpose::Reaching);
            facts.values_in(&spread.key).map(|key| Single { group: spread.group.clone(), key })
        }
        _ => None,
    });
    let first = keys.next()??;
    keys.all(|key| key.as_ref() == Some(&first)).then_some(first)
}

/// All on the shard of one of them, the driver, row by row.
fn spread(hashed: &[&Leaf], leaves: &[Leaf], from: &[From], facts: &Facts) -> Place {
    let spreads = |leaf: &&Leaf| match &leaf.place {
        Place::Spread(spread) => Some((leaf.rel, spread.clone())),
        _ => None,
    };
    let Some(all) = hashed.iter().map(spreads).collect::<Option<Vec<_>>>() else { return Place::Mixed };
    let driver = all.iter().find(|(rel, _)| !facts.may_be_null(*rel)).or(all.first());
    let Some((driver_rel, driver)) = driver else { return Place::Mixed };
    let colocated = all.iter().all(|(rel, leaf)| {
        rel == driver_rel || {
            let facts = facts.of_relation(*rel, Purpose::Matching);
            leaf.group == driver.group && same_key(&leaf.key, &driver.key, &facts)
        }
    });
    if !colocated || !from.iter().any(|from| is_tied(from, leaves)) {
        return Place::Mixed;
    }
    let present = |leaf: &&(RelId, Spread)| !facts.may_be_null(leaf.0);
    Place::Spread(Spread {
        group: driver.group.clone(),
        key: driver.key.clone(),
        keys: facts.keys(&driver.key).or(driver.keys.clone()),
        any: probes(&all, facts).or_else(|| all.iter().filter(present).find_map(|(_, leaf)| leaf.any.clone())),
        indexed: all.iter().filter(present).flat_map(|(_, leaf)| leaf.indexed.clone()).collect(),
        impossible: facts.impossible || driver.impossible,
    })
}

/// What global indexes say of the rows of these relations, which are all on the shard of each row.
fn probes(all: &[(RelId, Spread)], facts: &Facts) -> Option<Vec<Probe>> {
    let candidate = |(leaf, spread): &(RelId, Spread)| {
        let leaf = *leaf;
        spread.indexed.clone().into_iter().map(move |of| Candidate { leaf, of })
    };
    let candidates: Vec<Candidate> = all.iter().flat_map(candidate).collect();
    if candidates.is_empty() { None } else { probe::any(&candidates, facts) }
}

/// Whether each row of this entry has a row of a spread relation in it, so that no two shards give the same.
fn is_tied(from: &From, leaves: &[Leaf]) -> bool {
    match from {
        From::Join(join) => match join.kind {
            JoinKind::Inner => is_tied(&join.left, leaves) || is_tied(&join.right, leaves),
            JoinKind::Left => is_tied(&join.left, leaves),
            JoinKind::Right => is_tied(&join.right, leaves),
            JoinKind::Full => is_tied(&join.left, leaves) && is_tied(&join.right, leaves),
        },
        other => {
            let spread = |leaf: &Leaf| matches!(leaf.place, Place::Spread(_)) && Some(leaf.rel) == own_relation(other);
            leaves.iter().any(spread)
        }
    }
}

/// Whether what a select does with its rows (grouping, DISTINCT, windows) stays inside of one shard key.
fn independent(select: &Select, spread: &Spread, facts: &Facts) -> bool {
    let grouped = match &select.group_by {
        GroupBy::None => true,
        GroupBy::Keys(keys) => has_key(keys, spread, facts),
        GroupBy::Sets { keys, sets } => sets.iter().all(|set| {
            let keys: Vec<Expr> = set.iter().filter_map(|at| keys.get(*at).cloned()).collect();
            has_key(&keys, spread, facts)
        }),
    };
    let distinct = match &select.distinct {
        Distinct::No => true,
        Distinct::All => has_key(&select.targets, spread, facts),
        Distinct::On(exprs) => has_key(exprs, spread, facts),
    };
    let mut windows = Windows::default();
    select.targets.iter().for_each(|target| windows.expr(target));
    grouped && distinct && windows.0.iter().all(|window| has_key(&window.partition_by, spread, facts))
}

/// Whether rows that agree in these expressions agree in the shard key.
fn has_key(exprs: &[Expr], spread: &Spread, facts: &Facts) -> bool {
    let columns: Vec<ColumnRef> =
        exprs.iter().filter_map(|expr| plain_column(expr).map(|(column, _)| column)).collect();
    let held = |key: &ColumnRef| {
        let by = |column: &&ColumnRef| !facts.may_be_null(column.0) && facts.equal(**column, *key);
        facts.value_in(*key).is_some() || columns.iter().any(|column| by(&column))
    };
    !spread.key.is_empty() && spread.key.iter().all(held)
}

fn collect_laterals<'a>(from: &'a From, found: &mut Vec<&'a From>) {
    match from {
        From::Join(join) => {
            collect_laterals(&join.left, found);
            collect_laterals(&join.right, found);
        }
        From::Subquery { lateral: true, .. } if !outer_relations_of_from(from).is_empty() => found.push(from),
        From::Function(_) => found.push(from),
        _ => {}
    }
}

/// Every expression of a block, but for what is in its FROM entries' own queries.
fn block_exprs(select: &Select) -> Vec<&Expr> {
    let mut exprs: Vec<&Expr> = select.targets.iter().chain(&select.filter).chain(&select.having).collect();
    match &select.group_by {
        GroupBy::None => {}
        GroupBy::Keys(keys) | GroupBy::Sets { keys, .. } => exprs.extend(keys),
    }
    if let Distinct::On(on) = &select.distinct {
        exprs.extend(on);
    }
    select.from.iter().for_each(|from| join_conditions(from, &mut exprs));
    exprs
}

fn join_conditions<'a>(from: &'a From, found: &mut Vec<&'a Expr>) {
    if let From::Join(join) = from {
        found.extend(&join.on);
        join_conditions(&join.left, found);
        join_conditions(&join.right, found);
    }
}

/// The subqueries of expressions, not those inside of subqueries.
#[derive(Default)]
struct Subqueries(Vec<Query>);

impl Visitor for Subqueries {
    fn query(&mut self, query: &Query) {
        self.0.push(query.clone());
    }
}

/// Window calls, not those of subqueries.
#[derive(Default)]
struct Windows(Vec<WindowCall>);

impl Visitor for Windows {
    fn expr(&mut self, expr: &Expr) {
        if let ExprKind::Window(call) = &expr.kind {
            self.0.push((**call).clone());
        }
        walk::expr(self, expr);
    }

    fn query(&mut self, _: &Query) {}
}

struct Renaming<'a> {
    places: &'a Places,
    renamed: HashMap<RelId, RelId>,
}

impl Rewriter for Renaming<'_> {
    fn from(&mut self, from: &mut From) {
        let rename = |rel: &mut RelId, renamed: &mut HashMap<RelId, RelId>| {
            let fresh = self.places.imagined();
            renamed.insert(*rel, fresh);
            *rel = fresh;
        };
        match from {
            From::Relation(relation) => rename(&mut relation.rel, &mut self.renamed),
            From::Subquery { rel, .. } | From::Cte { rel, .. } => rename(rel, &mut self.renamed),
            From::Function(function) => rename(&mut function.rel, &mut self.renamed),
            From::Join(_) => {}
        }
        rewrite::from(self, from);
    }
}

struct RenamedColumns<'a>(&'a HashMap<RelId, RelId>);

impl Rewriter for RenamedColumns<'_> {
    fn expr(&mut self, expr: &mut Expr) {
        if let ExprKind::Column { rel, .. } | ExprKind::Hidden { rel, .. } = &mut expr.kind {
            *rel = self.0.get(rel).copied().unwrap_or(*rel);
        }
        rewrite::expr(self, expr);
    }
}

/// The relations of a set of FROM entries.
pub(crate) fn offered_by(from: &[From]) -> BTreeSet<RelId> {
    from.iter().flat_map(offered).collect()
}
