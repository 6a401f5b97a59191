//! Plans of queries.
//!
//!     one shard can answer       the query as it is, there
//!     each shard its own part    the query on each, rows put together, in order if it has one
//!     partial aggregates         groups on each shard, and groups of these in the stage ([`super::aggregate`])
//!     anything else              the stage ([`super::stage`])

use super::build::operator;
use super::functions::is_rowless;
use super::place::{Place, Places, Single, Spread};
use super::walk::{Visitor, walk};
use super::{Fragment, KeyExprs, Merge, MergeKey, Node, QueryPlan, ShardsNode, StageNode, Target, Touch};
use crate::tree::{
    Body, Cte, CteBody, CteId, Expr, ExprKind, Field, From, GroupBy, JoinKind, OrderKey, Query, RelId, RelationSource,
    Statement,
};
use crate::types::{self, Oid};
use isles_kernel::error::SqlError;
use isles_kernel::schema::TableKind;
use isles_kernel::value::Value;
use std::collections::HashMap;

/// `int8pl`.
const ADD_INT8: Oid = Oid(463);

/// Makes plans. Relations and staged tables that it adds have numbers that no other has in the statement.
pub(crate) struct Planner {
    pub(super) next_rel: u32,
    pub(super) next_input: u32,
}

impl Planner {
    pub(crate) fn new(next_rel: u32) -> Planner {
        Planner { next_rel, next_input: 1 }
    }

    pub(super) fn fresh_rel(&mut self) -> RelId {
        self.next_rel += 1;
        RelId(self.next_rel - 1)
    }

    pub(super) fn fresh_input(&mut self) -> String {
        self.next_input += 1;
        format!("stage_{}", self.next_input - 1)
    }

    pub(crate) fn query(&mut self, mut query: Query) -> Result<QueryPlan, SqlError> {
        inline_ctes(&mut query);
        let locks = has_lock(&query);
        let fields = query.columns.clone();
        Ok(QueryPlan { fields, root: self.node(query)?, locks })
    }

    /// The plan of a query that stands by itself.
    pub(super) fn node(&mut self, query: Query) -> Result<Node, SqlError> {
        match Places::of_query(&query).top(&query) {
            Place::Free => stage(Vec::new(), query),
            // One copy of a reference table's rows stands for all, and it must be the same for all who lock it.
            Place::Reference if has_lock(&query) => whole(query, Target::First),
            Place::Reference => whole(query, Target::Any),
            Place::Home => whole(query, Target::Home),
            Place::Tenant => whole(query, Target::Tenant),
            Place::Single(single) => whole(query, single.target()),
            Place::Spread(spread) if can_merge(&query) => scatter(query, &spread),
            Place::Spread(_) | Place::Anchored | Place::Mixed => self.staged(query),
        }
    }
}

impl Single {
    pub(super) fn target(&self) -> Target {
        Target::Keys { group: self.group.clone(), keys: vec![KeyExprs::Row(self.key.clone())] }
    }
}

/// A stage over its inputs.
pub(super) fn stage(inputs: Vec<super::StageInput>, query: Query) -> Result<Node, SqlError> {
    let fields = query.columns.clone();
    let query = Fragment::new(Statement::Query(query), fields);
    Ok(Node::Stage(Box::new(StageNode { inputs, query })))
}

/// A query that one shard answers.
fn whole(query: Query, target: Target) -> Result<Node, SqlError> {
    let must_run = matches!(target, Target::Keys { .. }) && gives_rows_of_nothing(&query);
    let fields = query.columns.clone();
    let visible = fields.len();
    let statement = Statement::Query(query);
    let touches = touches(&statement);
    let fragment = Fragment::new(statement, fields);
    let merge = Merge::Concat;
    let node = ShardsNode { fragment, target, touches, merge, limit: None, offset: None, visible, must_run };
    Ok(Node::Shards(Box::new(node)))
}

/// Whether the router can put the parts of this query together.
fn can_merge(query: &Query) -> bool {
    let bounds = query.limit.iter().chain(&query.offset);
    !query.with_ties && bounds.into_iter().all(is_rowless)
}

/// A query of which each shard answers its own part.
pub(super) fn scatter(mut query: Query, spread: &Spread) -> Result<Node, SqlError> {
    let visible = query.columns.len();
    show_hidden(&mut query);
    let merge = merge_of(&query);
    let (limit, offset) = (query.limit.clone(), query.offset.take());
    query.limit = pushed_limit(query.limit.take(), offset.as_ref());
    let fields = query.columns.clone();
    let statement = Statement::Query(query);
    let node = ShardsNode {
        target: spread.target(),
        touches: touches(&statement),
        fragment: Fragment::new(statement, fields),
        merge,
        limit,
        offset,
        visible,
        must_run: false,
    };
    Ok(Node::Shards(Box::new(node)))
}

/// Makes the targets that are there for ORDER BY alone columns of the result: the router merges by them.
fn show_hidden(query: &mut Query) {
    if let Body::Select(select) = &query.body {
        for target in select.targets.iter().skip(query.columns.len()) {
            query.columns.push(Field { name: "_order".into(), ty: target.ty });
        }
    }
}

fn merge_of(query: &Query) -> Merge {
    let key = |order: &crate::tree::OrderBy| {
        let OrderKey::Output(column) = order.key;
        let ty = query.columns.get(column)?.ty;
        Some(MergeKey { column, ty, descending: order.descending, nulls_first: order.nulls_first })
    };
    match query.order_by.as_slice() {
        [] => Merge::Concat,
        orders => orders.iter().map(key).collect::<Option<_>>().map_or(Merge::Concat, Merge::Ordered),
    }
}

/// How many rows of each shard can matter: those that the offset skips may all be one shard's.
fn pushed_limit(limit: Option<Expr>, offset: Option<&Expr>) -> Option<Expr> {
    let (limit, offset) = match (limit, offset) {
        (None, _) => return None,
        (Some(limit), None) => return Some(limit),
        (Some(limit), Some(offset)) => (limit, offset.clone()),
    };
    if let (Some(limit), Some(offset)) = (constant(&limit), constant(&offset))
        && limit >= 0
        && offset >= 0
    {
        let sum = Value::Int(limit.saturating_add(offset));
        return Some(Expr::new(ExprKind::Const(sum), types::INT8));
    }
    // A null offset skips nothing; a null limit is none, and the sum is null as well.
    let zero = Expr::new(ExprKind::Const(Value::Int(0)), types::INT8);
    let offset = Expr::new(ExprKind::Coalesce(vec![offset, zero]), types::INT8);
    Some(operator(ADD_INT8, "+", vec![limit, offset], types::INT8))
}

/// An integer that is written in the statement.
fn constant(expr: &Expr) -> Option<i64> {
    match &expr.kind {
        ExprKind::Const(Value::Int(n)) => Some(*n),
        ExprKind::Cast { arg, .. } if expr.ty.oid == types::INT8 => constant(arg),
        _ => None,
    }
}

/// Whether a query can have rows although no row of a hashed table comes into it.
fn gives_rows_of_nothing(query: &Query) -> bool {
    let Body::Select(select) = &query.body else { return true };
    let in_all = match &select.group_by {
        GroupBy::None => false,
        GroupBy::Keys(keys) => keys.is_empty(),
        GroupBy::Sets { sets, .. } => sets.iter().any(Vec::is_empty),
    };
    in_all || !select.from.iter().any(needs_rows)
}

/// Whether each row of a FROM entry has a row of a hashed table in it.
fn needs_rows(from: &From) -> bool {
    match from {
        From::Relation(relation) => match &relation.relation.source {
            RelationSource::User(table) => matches!(table.kind, TableKind::Hash { .. }),
            RelationSource::System | RelationSource::Staged => false,
        },
        From::Subquery { query, .. } => !gives_rows_of_nothing(query),
        From::Cte { .. } | From::Function(_) => false,
        From::Join(join) => match join.kind {
            JoinKind::Inner => needs_rows(&join.left) || needs_rows(&join.right),
            JoinKind::Left => needs_rows(&join.left),
            JoinKind::Right => needs_rows(&join.right),
            JoinKind::Full => needs_rows(&join.left) && needs_rows(&join.right),
        },
    }
}

#[derive(Default)]
struct Touched(Vec<Touch>);

impl Touched {
    fn source(&mut self, source: &RelationSource) {
        let touch = match source {
            RelationSource::System | RelationSource::Staged => return,
            RelationSource::User(table) => match &table.kind {
                TableKind::Hash { group, .. } => Touch::Group(group.clone()),
                TableKind::Tenant => Touch::Tenant,
                TableKind::Reference => Touch::Shared,
                TableKind::Global => Touch::Global,
            },
        };
        if !self.0.contains(&touch) {
            self.0.push(touch);
        }
    }
}

impl Visitor for Touched {
    fn from(&mut self, from: &From) {
        if let From::Relation(relation) = from {
            self.source(&relation.relation.source);
        }
        walk::from(self, from);
    }
}

/// What a fragment touches.
pub(super) fn touches(statement: &Statement) -> Vec<Touch> {
    let mut touched = Touched::default();
    match statement {
        Statement::Query(_) => {}
        Statement::Insert(insert) => touched.source(&insert.target.relation.source),
        Statement::Update(update) => touched.source(&update.target.relation.source),
        Statement::Delete(delete) => touched.source(&delete.target.relation.source),
    }
    walk::statement(&mut touched, statement);
    touched.0
}

#[derive(Default)]
struct Locks(bool);

impl Visitor for Locks {
    fn query(&mut self, query: &Query) {
        self.0 |= query.lock.is_some();
        walk::query(self, query);
    }
}

pub(super) fn has_lock(query: &Query) -> bool {
    let mut locks = Locks::default();
    locks.query(query);
    locks.0
}

/// Uses of common table expressions.
#[derive(Default)]
struct Uses(HashMap<CteId, usize>);

impl Visitor for Uses {
    fn from(&mut self, from: &From) {
        if let From::Cte { cte, .. } = from {
            *self.0.entry(*cte).or_default() += 1;
        }
        walk::from(self, from);
    }
}

/// Puts common table expressions that are used once where they are used, and drops those that are not used: what is
/// a subquery can be planned with what is around it. As PostgreSQL does, unless told otherwise.
pub(super) fn inline_ctes(query: &mut Query) {
    super::walk::Rewriter::query(&mut Inlining::default(), query);
}

#[derive(Default)]
struct Inlining {
    ready: HashMap<CteId, Query>,
}

impl super::walk::Rewriter for Inlining {
    fn query(&mut self, query: &mut Query) {
        let mut uses = Uses::default();
        uses.query(query);
        let mut kept: Vec<Cte> = Vec::new();
        for mut cte in std::mem::take(&mut query.ctes) {
            super::walk::rewrite::cte_body(self, &mut cte.body);
            let count = uses.0.get(&cte.id).copied().unwrap_or(0);
            match cte.body {
                CteBody::Query(body) if count == 1 && cte.materialized != Some(true) && can_move(&body) => {
                    self.ready.insert(cte.id, *body);
                }
                CteBody::Query(_) | CteBody::Recursive { .. } if count == 0 => {}
                body => kept.push(Cte { body, ..cte }),
            }
        }
        super::walk::rewrite::query(self, query);
        query.ctes = kept;
    }

    fn from(&mut self, from: &mut From) {
        if let From::Cte { rel, cte, .. } = from
            && let Some(query) = self.ready.remove(cte)
        {
            *from = From::Subquery { rel: *rel, query: Box::new(query), lateral: false };
            return;
        }
        super::walk::rewrite::from(self, from);
    }
}

fn can_move(query: &Query) -> bool {
    !super::functions::is_volatile_query(query) && !has_lock(query)
}
