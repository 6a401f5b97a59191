//! Several statements that stand or fall together, all known beforehand.
//!
//!     plans ── each resolved with one routing ──► all on one shard ──► one request: one transaction, one flush
//!                                            └──► otherwise: None, and the caller opens a transaction
//!
//!     queries that do not belong together ── those of one shard ──► one request there, all shards at the same time
//!     a query of many shards, by shard ── one request each ──► an answer or an error of each
//!
//! An interactive transaction takes a SQLite shard's writer for itself and flushes for itself. A request shares both, and
//! it can be sent again when a bucket has moved, since nothing of it has been answered.
//!
//! Invariants (docs/invariants.md):
//!   * I-2   the statements of one request are all there after a crash, or none is
//!   * I-9   what has moved is routed anew, and the caller does not notice
//!   * I-21  all of them are resolved with one routing version

use super::led::Led;
use super::run::{OnShard, Output, Runner, Within, claim_once, collect, only};
use super::target::{Nobody, Places};
use super::transaction::{Seat, noted};
use super::unique::Keys;
use crate::database::strangers::keep_to_own;
use isles_engine::error::ShardError;
use isles_engine::fence::{Access, Claimed};
use isles_engine::shard::{MAX_STATEMENTS, Outcome, Statement};
use isles_kernel::error::SqlError;
use isles_kernel::names::ShardId;
use isles_kernel::routing::RoutingPolicy;
use isles_kernel::value::Value;
use isles_sql::plan::{Fragment, InsertPlan, InsertRows, InsertTarget, Node, Plan, QueryPlan, ShardsNode};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::Arc;

/// One of the statements: its plan, and a runner with its parameters.
pub(crate) struct Part<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) runner: Runner<'a>,
}

/// What a part comes to on the shard.
enum Work<'a> {
    /// Its keys lead nowhere.
    Nothing,
    Query(&'a ShardsNode),
    Modify(&'a Fragment),
    Insert {
        target: InsertTarget,
        on: OnShard,
    },
}

/// A part with its claims.
struct Piece<'a> {
    units: Vec<Claimed>,
    work: Work<'a>,
}

/// Parts that have come to one shard.
#[derive(Default)]
struct Joined<'a> {
    shard: Option<ShardId>,
    pieces: Vec<Piece<'a>>,
    keys: Option<Keys>,
}

/// Whether the shard that a part needs is the one that the others need.
enum Fits {
    Yes,
    No,
}

/// Runs parts as one request. None if they do not come to one shard, or need more than a request can do.
pub(crate) async fn run_together(parts: &[Part<'_>]) -> Result<Option<Vec<Output>>, SqlError> {
    let Some(first) = parts.first() else { return Ok(Some(Vec::new())) };
    let uses_tenant = || parts.iter().any(|part| part.plan.uses_tenant());
    let attempt = |policy: Arc<RoutingPolicy>| async move { attempt(parts, &policy).await };
    first.runner.until_settled(uses_tenant, attempt).await
}

/// Runs queries that do not belong together. Those that come to one shard are one request there, and fail with it; any
/// other is run by itself.
pub(crate) async fn run_each(parts: &[Part<'_>]) -> Vec<Result<Output, SqlError>> {
    let mut shards: BTreeMap<Option<ShardId>, Vec<(usize, Part<'_>)>> = BTreeMap::new();
    for (at, part) in parts.iter().enumerate() {
        let place = part.place().await;
        shards.entry(place).or_default().push((at, part.again()));
    }
    let asks = shards.into_iter().map(|(shard, own)| async move {
        let (places, own): (Vec<usize>, Vec<Part<'_>>) = own.into_iter().unzip();
        let outputs = match shard {
            Some(_) => own[0].runner.in_time(run_together(&own)).await,
            None => Ok(None),
        };
        let outputs = match outputs {
            Ok(Some(outputs)) => outputs.into_iter().map(Ok).collect(),
            Ok(None) => {
                let alone = own.iter().map(|part| part.runner.in_time(part.runner.run(part.plan, Within::Nothing)));
                futures::future::join_all(alone).await
            }
            Err(error) => own.iter().map(|_| Err(error.clone())).collect(),
        };
        places.into_iter().zip(outputs)
    });
    let mut outputs: Vec<_> = futures::future::join_all(asks).await.into_iter().flatten().collect();
    outputs.sort_by_key(|(at, _)| *at);
    outputs.into_iter().map(|(_, output)| output).collect()
}

/// What one shard gives of a query, or why it gives nothing.
pub(crate) type OfShard = (ShardId, Result<Vec<Vec<Value>>, SqlError>);

/// Runs a query on each of its shards by itself: one that cannot be reached keeps no other from answering. What LIMIT says
/// it says of each shard. Those that are left out are not asked.
pub(crate) async fn run_by_shard(part: &Part<'_>, without: &BTreeSet<ShardId>) -> Result<Vec<OfShard>, SqlError> {
    let Plan::Query(QueryPlan { root: Node::Shards(node), locks: false, .. }) = part.plan else {
        return Err(SqlError::new("0A000", "only a query whose rows are those of shards is asked of each"));
    };
    let policy = part.runner.schema.routing(&part.runner.database.routing);
    let places = part.places(node, &policy).await?;
    let shards: Vec<ShardId> = places.keys().filter(|shard| !without.contains(*shard)).cloned().collect();
    let asks = shards.into_iter().map(|shard| async move {
        let rows = part.runner.in_time(part.run_on(node, &shard)).await;
        (shard, rows)
    });
    Ok(futures::future::join_all(asks).await)
}

impl Runner<'_> {
    /// What a shard gives before the statement's time is up, also if the shard never answers.
    async fn in_time<T>(&self, work: impl Future<Output = Result<T, SqlError>>) -> Result<T, SqlError> {
        self.bounds.wait(&*self.database.env, work).await?
    }
}

impl Part<'_> {
    async fn places(&self, node: &ShardsNode, policy: &RoutingPolicy) -> Result<Places, SqlError> {
        self.runner.choose(&node.target, &node.touches, Nobody::IsFine, Seat::default(), policy).await
    }

    /// What a shard has of a query's rows; nothing if all of it has moved away.
    async fn run_on(&self, node: &ShardsNode, shard: &ShardId) -> Result<Vec<Vec<Value>>, SqlError> {
        let attempt = |policy: Arc<RoutingPolicy>| async move {
            let places = self.places(node, &policy).await?;
            let Some(units) = places.get(shard) else { return Ok(Vec::new()) };
            let outcome = self.runner.ask(&node.fragment, (shard, units, None), &policy, Access::Read).await?;
            self.runner.trim(node, outcome.rows)
        };
        self.runner.until_settled(|| self.plan.uses_tenant(), attempt).await
    }

    fn again(&self) -> Part<'_> {
        Part { plan: self.plan, runner: Runner { led: Led::default(), ..self.runner } }
    }

    /// The one shard that a query comes to; none if there are several, or that is found out in another way.
    async fn place(&self) -> Option<ShardId> {
        let Plan::Query(QueryPlan { root: Node::Shards(node), locks: false, .. }) = self.plan else { return None };
        let policy = self.runner.schema.routing(&self.runner.database.routing);
        let chosen =
            self.runner.choose(&node.target, &node.touches, Nobody::IsFine, Seat::default(), &policy).await.ok()?;
        only(&chosen).map(|(shard, ..)| shard.clone())
    }
}

async fn attempt(parts: &[Part<'_>], policy: &Arc<RoutingPolicy>) -> Result<Option<Vec<Output>>, SqlError> {
    let mut joined = Joined::default();
    for part in parts {
        if let Fits::No = joined.add(part, policy).await? {
            return Ok(None);
        }
    }
    let Joined { shard, mut pieces, mut keys } = joined;
    let Some(shard) = shard else { return Ok(Some(parts.iter().map(|_| Output::default()).collect())) };
    let writes = pieces.iter().any(|piece| matches!(piece.work, Work::Modify(_) | Work::Insert { .. }));
    let access = if writes { Access::Write } else { Access::Read };
    loop {
        let statements = statements(parts, &pieces, &shard, policy)?;
        if statements.iter().map(Vec::len).sum::<usize>() > MAX_STATEMENTS {
            return Ok(None);
        }
        let counts: Vec<usize> = statements.iter().map(Vec::len).collect();
        let units = claims(&pieces);
        let runner = &parts[0].runner;
        let holding = keys.take();
        let had_keys = holding.is_some();
        let all: Vec<Statement> = statements.into_iter().flatten().collect();
        let error = match runner.send((&shard, &units, None), policy, access, all, holding).await? {
            Ok(outcomes) => return outputs(parts, pieces, counts, outcomes, &shard).map(Some),
            Err(error) => error,
        };
        // Each time it claims less, so this ends.
        let kept = matches!(&error, ShardError::Strangers { group } if keep_all(&mut pieces, group));
        let shown = noted(runner.database, &shard, error);
        match kept {
            false => return Err(shown),
            // The keys went with the request, and so a transaction has to hold them anew.
            true if had_keys => return Ok(None),
            true => {}
        }
    }
}

impl<'a> Joined<'a> {
    async fn add(&mut self, part: &'a Part<'a>, policy: &Arc<RoutingPolicy>) -> Result<Fits, SqlError> {
        let seat = Seat { on: self.shard.clone(), ..Seat::default() };
        match part.plan {
            Plan::Query(QueryPlan { root: Node::Shards(node), locks: false, .. }) => {
                let nobody = if node.must_run { Nobody::MustRun } else { Nobody::IsFine };
                let places = part.runner.choose(&node.target, &node.touches, nobody, seat, policy).await?;
                Ok(self.add_at(&places, Work::Query(node)))
            }
            Plan::Modify(plan) => {
                let places = part.runner.choose(&plan.target, &plan.touches, Nobody::IsFine, seat, policy).await?;
                Ok(self.add_at(&places, Work::Modify(&plan.fragment)))
            }
            Plan::Insert(plan) if plan.upsert.is_none() => self.add_insert(part, plan, policy).await,
            _ => Ok(Fits::No),
        }
    }

    async fn add_insert(
        &mut self,
        part: &'a Part<'a>,
        plan: &InsertPlan,
        policy: &Arc<RoutingPolicy>,
    ) -> Result<Fits, SqlError> {
        let InsertRows::Values(exprs) = &plan.rows else { return Ok(Fits::No) };
        if !plan.unique.is_empty() && self.keys.is_some() {
            return Ok(Fits::No);
        }
        let rows = part.runner.evaluate_rows(exprs).await?;
        part.runner.check_conflicts(plan, &rows)?;
        if !plan.unique.is_empty() {
            self.keys = Some(Box::pin(part.runner.reserve_alone(&plan.table, &plan.unique, &rows, policy)).await?);
        }
        let mut placed = part.runner.place_rows(plan, rows, policy)?;
        match (placed.shards.pop_first(), placed.shards.is_empty()) {
            (Some((shard, on)), true) => {
                let units = on.units.clone();
                Ok(self.add_on(&shard, Piece { units, work: Work::Insert { target: plan.target, on } }))
            }
            _ => Ok(Fits::No),
        }
    }

    fn add_at(&mut self, places: &Places, work: Work<'a>) -> Fits {
        match only(places) {
            // Led by an index: the look would have to be compared with the snapshot of this part alone.
            Some((_, _, Some(_))) => Fits::No,
            Some((shard, units, None)) => self.add_on(shard, Piece { units: units.to_vec(), work }),
            None if places.is_empty() => {
                self.pieces.push(Piece { units: Vec::new(), work: Work::Nothing });
                Fits::Yes
            }
            None => Fits::No,
        }
    }

    fn add_on(&mut self, shard: &ShardId, piece: Piece<'a>) -> Fits {
        if self.shard.get_or_insert_with(|| shard.clone()) != shard {
            return Fits::No;
        }
        self.pieces.push(piece);
        Fits::Yes
    }
}

/// The statements of each part.
fn statements(
    parts: &[Part<'_>],
    pieces: &[Piece<'_>],
    shard: &ShardId,
    policy: &RoutingPolicy,
) -> Result<Vec<Vec<Statement>>, SqlError> {
    let of = |(part, piece): (&Part<'_>, &Piece<'_>)| match &piece.work {
        Work::Nothing => Ok(Vec::new()),
        Work::Query(node) => Ok(vec![part.runner.on_shard(&node.fragment, shard, &piece.units, policy)?]),
        Work::Modify(fragment) => Ok(vec![part.runner.on_shard(fragment, shard, &piece.units, policy)?]),
        Work::Insert { on, .. } => Ok(on.statements.clone()),
    };
    parts.iter().zip(pieces).map(of).collect()
}

fn claims(pieces: &[Piece<'_>]) -> Vec<Claimed> {
    let mut units = Vec::new();
    pieces.iter().flat_map(|piece| &piece.units).for_each(|unit| claim_once(&mut units, unit.clone()));
    units
}

/// Keeps every part to the buckets that the shard owns; whether that changes anything.
fn keep_all(pieces: &mut [Piece<'_>], group: &isles_kernel::names::GroupName) -> bool {
    // All of them, so no short cut.
    pieces.iter_mut().fold(false, |kept, piece| keep_to_own(&mut piece.units, group) | kept)
}

/// What each part gave.
fn outputs(
    parts: &[Part<'_>],
    pieces: Vec<Piece<'_>>,
    counts: Vec<usize>,
    outcomes: Vec<Outcome>,
    shard: &ShardId,
) -> Result<Vec<Output>, SqlError> {
    let mut outcomes = outcomes.into_iter();
    let each = parts.iter().zip(pieces).zip(counts);
    let output = |((part, piece), count): ((&Part<'_>, Piece<'_>), usize)| {
        let mut own: Vec<Outcome> = outcomes.by_ref().take(count).collect();
        match piece.work {
            Work::Nothing => Ok(Output::default()),
            Work::Query(node) => {
                let rows = own.pop().unwrap_or_default().rows;
                Ok(Output { rows: part.runner.trim(node, rows)?, affected: 0 })
            }
            Work::Modify(_) => {
                let Outcome { rows, affected } = own.pop().unwrap_or_default();
                Ok(Output { rows, affected })
            }
            Work::Insert { target, on } => Ok(collect(target, vec![(shard.clone(), on.order, own)])),
        }
    };
    each.map(output).collect()
}
