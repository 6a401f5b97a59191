//! Carries out plans.
//!
//!     Plan ── target resolved ──► shards and claims ──► fragments, printed ──► rows, merged ──► limit, offset
//!                                      │ one shard, no transaction: one request
//!                                      └ otherwise: a transaction, the session's or one for this statement
//!
//! A statement on its own that goes to one shard is one request, and shares its flush with others (group commit). One
//! that writes to several shards, or reads several, is a transaction of its own.
//!
//! A statement on its own that a shard refuses, because what it wants has moved, is routed anew and sent again; so is
//! one that conflicts with another transaction. Inside of a transaction the client must do that (40001).
//!
//! A shard that has strangers is asked for the buckets that it owns in the routing that the statement goes by. Which form
//! of a fragment it gets, its claims say; whether there are strangers, a shard says by refusing the other form.
//!
//! Invariants (docs/invariants.md):
//!   * I-9   a stale route is refused by the shard; the client of a single statement never sees that
//!   * I-11  a fragment whose claims are kept to own buckets is sent in the form that keeps to them, and in no other
//!   * I-20  what is written to several shards is written to all or none
//!   * I-21  all shards of a statement are resolved with one routing version

use super::bounds::{Bounds, Tally};
use super::evaluate;
use super::inputs::{Inputs, Known, Owner, acts_for, dialect, tenant_value};
use super::led::{Led, LedPart};
use super::merge;
use super::numbers;
use super::stream::{Shape, Stream};
use super::target::{Nobody, Places, Resolver, global_claim};
use super::transaction::{Modes, Seat, Txn, Visit, noted, open_shard, shard_is_new};
use super::unique::{Keys, execute_holding};
use super::work::{Sent, rows_of};
use crate::database::binding::Need;
use crate::database::strangers::keep_to_own;
use crate::database::{Database, Held, SchemaGuard, Strategy};
use crate::moves::Planted;
use isles_engine::entries::Still;
use isles_engine::error::ShardError;
use isles_engine::fence::{Access, Claim, Claimed};
use isles_engine::shard::{ActsFor, Engine, Isolation, MAX_STATEMENTS, Outcome, Request, Statement};
use isles_engine::sqlite::stage::Stage;
use isles_kernel::error::SqlError;
use isles_kernel::names::ShardId;
use isles_kernel::routing::RoutingPolicy;
use isles_kernel::schema::{Table, TableKind};
use isles_kernel::value::{DataType, Value, key_bytes};
use isles_sql::explain;
use isles_sql::plan::{
    Form, Fragment, InsertPlan, InsertRows, InsertTarget, Merge, ModifyPlan, Node, Plan, QueryPlan, RewriteKind,
    RewritePlan, ShardsNode, StageNode, StageRows, Touch,
};
use isles_sql::types::{Type, carrier};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

/// A statement that waits for a cutover looks again after so long, if nobody tells it earlier.
const HELD_LOOK: Duration = Duration::from_millis(50);
/// How often a statement that conflicts with another is sent again.
pub(crate) const ATTEMPTS: u32 = 8;
/// After so many attempts indexes are not asked any more.
const LED_ATTEMPTS: u32 = 3;
/// Before the second attempt; it doubles each time, to half a second in all. A cutover takes tens of milliseconds.
pub(crate) const FIRST_PAUSE: Duration = Duration::from_millis(4);

pub(super) type Row = Vec<Value>;
/// Where a row goes: a shard, what is claimed there, and the hidden column's value.
type RowPlace = (ShardId, Claimed, Option<Value>);
/// A table of a stage: its name, columns and rows.
type Gathered = (String, Vec<(String, DataType)>, Vec<Row>);
pub(crate) type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What a plan gave.
#[derive(Debug, Default)]
pub(crate) struct Output {
    pub(crate) rows: Vec<Row>,
    /// Rows that were inserted, updated or deleted.
    pub(crate) affected: u64,
}

/// Rows of system relations, and numbers of sequences: what the router knows and no shard does.
pub(crate) trait Sources: Known {
    /// The rows of a relation of `pg_catalog` or `information_schema`.
    fn system_rows(&self, relation: &str) -> Result<Vec<Row>, SqlError>;
    /// The name of a sequence by its number in the system relations.
    fn sequence_name(&self, oid: i64) -> Option<String>;

    /// The sequence that a text names, as SQL writes names.
    fn find_sequence(&self, text: &str) -> Result<String, SqlError>;
    fn next_value<'a>(&'a self, name: &'a str) -> Boxed<'a, Result<i64, SqlError>>;
    fn set_value<'a>(&'a self, name: &'a str, value: i64, called: bool) -> Boxed<'a, Result<i64, SqlError>>;
    fn current_value(&self, name: &str) -> Result<i64, SqlError>;
    fn last_value(&self) -> Result<i64, SqlError>;
    /// A key for a row of a table that has none of its own: random, and so unique over all shards without asking them.
    fn row_id(&self) -> i64;
}

/// What carries out one statement.
pub(crate) struct Runner<'a> {
    pub(crate) database: &'a Arc<Database>,
    pub(crate) schema: &'a Arc<SchemaGuard>,
    pub(crate) sources: &'a dyn Sources,
    pub(crate) params: &'a [Value],
    pub(crate) bounds: &'a Bounds,
    pub(crate) led: Led,
}

/// Where a statement runs: in the session's transaction, or in none.
pub(crate) enum Within<'a> {
    Transaction(&'a mut Txn),
    Nothing,
}

impl<'a> Runner<'a> {
    pub(super) fn inputs(&self) -> Inputs<'_> {
        Inputs { params: self.params, known: self.sources, env: &self.database.env }
    }

    pub(super) fn acts_for(&self) -> ActsFor {
        acts_for(self.sources.tenant())
    }

    /// Carries out a plan within a transaction or on its own.
    pub(crate) async fn run(&self, plan: &Plan, within: Within<'_>) -> Result<Output, SqlError> {
        let holds_writer = matches!(&within, Within::Transaction(txn) if txn.holds_writer());
        if !holds_writer && self.writes_indexed(plan) {
            self.database.hold_back(self.bounds).await?;
        }
        match within {
            Within::Transaction(txn) => {
                txn.check_tenant(&self.acts_for())?;
                let begins = txn.may_begin_again();
                let (mut attempt, mut pause, mut held) = (0, FIRST_PAUSE, None);
                loop {
                    attempt += 1;
                    let policy = self.routing(|| plan.uses_tenant(), Some(&mut *txn)).await?;
                    // Boxed, here and below: the way of most statements, one request, stays a small future.
                    let output = Box::pin(self.run_within(plan, txn, &policy)).await;
                    txn.end_statement();
                    match output {
                        // The first statement of a transaction is as one on its own: nothing of it has happened.
                        Err(error) if error.moved && begins => {
                            self.led.forget();
                            txn.start_over().await;
                            self.hold(&mut held, error).await?;
                        }
                        Err(error) if begins && attempt < ATTEMPTS && self.is_tried_again(&error) => {
                            self.forget_led(attempt);
                            txn.start_over().await;
                            self.pause(&mut pause).await?;
                        }
                        output => return output,
                    }
                }
            }
            Within::Nothing => self.run_alone(plan).await,
        }
    }

    /// Whether what a plan writes may have to be brought to entries of global indexes.
    fn writes_indexed(&self, plan: &Plan) -> bool {
        match plan {
            Plan::Query(_) => false,
            Plan::Insert(plan) => plan.table.global_keys().next().is_some(),
            Plan::Rewrite(plan) => plan.table.global_keys().next().is_some(),
            // Its table is in the text only.
            Plan::Modify(_) => self.schema.schema.global_keys().next().is_some(),
        }
    }

    async fn run_alone(&self, plan: &Plan) -> Result<Output, SqlError> {
        let attempt = |policy: Arc<RoutingPolicy>| async move { self.attempt_alone(plan, &policy).await };
        self.until_settled(|| plan.uses_tenant(), attempt).await
    }

    /// Attempts something that is on its own until it has happened or failed: with another routing when what it wants has
    /// moved, and once more when it conflicts with others.
    ///
    /// The routing is given away and not lent: of a future that borrows it, for any time, the compiler cannot tell that it
    /// can be sent.
    pub(super) async fn until_settled<T, F>(
        &self,
        uses_tenant: impl FnOnce() -> bool,
        attempt_with: impl Fn(Arc<RoutingPolicy>) -> F,
    ) -> Result<T, SqlError>
    where
        F: Future<Output = Result<T, SqlError>>,
    {
        let mut pause = FIRST_PAUSE;
        let mut policy = self.routing(uses_tenant, None).await?;
        let (mut attempt, mut held) = (0, None);
        loop {
            attempt += 1;
            match attempt_with(policy.clone()).await {
                Err(error) if error.moved => {
                    self.led.forget();
                    policy = self.hold(&mut held, error).await?;
                }
                Err(error) if attempt < ATTEMPTS && self.is_tried_again(&error) => {
                    self.forget_led(attempt);
                    self.pause(&mut pause).await?;
                    policy = self.database.routing.refresh().await?;
                }
                result => return result,
            }
        }
    }

    /// What indexes have said is of another moment; one that keys are added to all the time is not asked for ever.
    pub(super) fn forget_led(&self, attempt: u32) {
        self.led.forget();
        if attempt >= LED_ATTEMPTS {
            self.led.give_up();
        }
    }

    /// Between two attempts, each time twice as long.
    pub(super) async fn pause(&self, pause: &mut Duration) -> Result<(), SqlError> {
        self.bounds.check(&*self.database.env)?;
        self.database.env.sleep(*pause).await;
        *pause *= 2;
        Ok(())
    }

    /// Whether nothing has happened of a statement, and it may go better the next time.
    pub(super) fn is_tried_again(&self, error: &SqlError) -> bool {
        let unknown = matches!(error.sqlstate, "08007" | "57P03") && self.database.moves.plants(Planted::RetryUnknown);
        unknown || matches!(error.sqlstate, "40001" | "40P01")
    }

    /// Waits until what was refused may be served: elsewhere, or here again. Returns the routing to try then. Statements
    /// that are held have a limit, and each of them has one.
    async fn hold(&self, held: &mut Option<Held>, refused: SqlError) -> Result<Arc<RoutingPolicy>, SqlError> {
        let env = &*self.database.env;
        let hold = match held {
            Some(held) => held,
            None => held.insert(self.database.hold()?),
        };
        if hold.is_over(env) {
            return Err(refused);
        }
        // The first refusal may be of an old map; what is told after we asked is not missed.
        let (seen, news) = (hold.seen, self.database.routing.news());
        hold.seen = Some(news);
        if seen == Some(news) {
            let wait = futures::future::select(Box::pin(self.database.routing.news_since(news)), env.sleep(HELD_LOOK));
            self.bounds.wait(env, wait).await?;
        }
        self.database.routing.refresh().await
    }

    async fn attempt_alone(&self, plan: &Plan, policy: &Arc<RoutingPolicy>) -> Result<Output, SqlError> {
        if let Some(trace) = &self.bounds.trace {
            trace.begin_again();
        }
        if let Some(output) = self.in_one_request(plan, policy).await? {
            return Ok(output);
        }
        let read_only = matches!(plan, Plan::Query(query) if !query.locks);
        let isolation = if read_only { Isolation::RepeatableRead } else { Isolation::ReadCommitted };
        let mut txn = Txn::begin(self.database, Modes { isolation, read_only }, self.schema.clone(), self.acts_for())?;
        let output = Box::pin(self.run_within(plan, &mut txn, policy)).await?;
        if read_only {
            txn.rollback().await;
        } else {
            txn.commit(self.bounds).await?;
        }
        Ok(output)
    }

    /// A query whose result is read as the client reads it; None if it is not one of rows that the shards give.
    pub(crate) async fn stream(&self, plan: &Plan) -> Result<Option<Stream>, SqlError> {
        let Plan::Query(QueryPlan { root: Node::Shards(node), locks: false, .. }) = plan else { return Ok(None) };
        let (mut attempt, mut pause, mut held) = (0, FIRST_PAUSE, None);
        loop {
            attempt += 1;
            match self.stream_once(plan, node).await {
                Err(error) if error.moved => drop(self.hold(&mut held, error).await?),
                Err(error) if attempt < ATTEMPTS && self.is_tried_again(&error) => {
                    self.forget_led(attempt);
                    self.pause(&mut pause).await?;
                }
                stream => return stream.map(Some),
            }
        }
    }

    async fn stream_once(&self, plan: &Plan, node: &ShardsNode) -> Result<Stream, SqlError> {
        let policy = self.routing(|| plan.uses_tenant(), None).await?;
        let nobody = if node.must_run { Nobody::MustRun } else { Nobody::IsFine };
        let places = self.choose(&node.target, &node.touches, nobody, Seat::default(), &policy).await?;
        let modes = Modes { isolation: Isolation::RepeatableRead, read_only: true };
        let mut txn = Txn::begin(self.database, modes, self.schema.clone(), self.acts_for())?;
        let mut visits = self.visits(&places, Access::Read, &policy);
        txn.enter(&mut visits, self.bounds).await?;
        let on = |visit: &Visit| self.on_shard(&node.fragment, &visit.shard, &visit.units, &policy);
        let work = visits.iter().map(|visit| Ok((visit.shard.clone(), on(visit)?))).collect::<Result<_, SqlError>>()?;
        let shape = Shape {
            keys: match &node.merge {
                Merge::Concat => None,
                Merge::Ordered(keys) => Some(keys.clone()),
            },
            offset: evaluate::count(node.offset.as_ref(), self.inputs(), "OFFSET")?,
            limit: evaluate::count(node.limit.as_ref(), self.inputs(), "LIMIT")?,
            visible: node.visible,
        };
        Stream::open(self.database.clone(), txn, work, shape, self.bounds.clone()).await
    }

    /// The routing of the moment. Where each tenant has a shard of its own, the session's has it from here on, if its
    /// tables are used.
    async fn routing(
        &self,
        uses_tenant: impl FnOnce() -> bool,
        txn: Option<&mut Txn>,
    ) -> Result<Arc<RoutingPolicy>, SqlError> {
        match self.database.strategy() {
            Strategy::Adapter if uses_tenant() => Box::pin(self.routing_to_tenant(txn)).await,
            Strategy::Row | Strategy::Adapter => Ok(self.schema.routing(&self.database.routing)),
        }
    }

    async fn routing_to_tenant(&self, txn: Option<&mut Txn>) -> Result<Arc<RoutingPolicy>, SqlError> {
        let need = self.database.choose_shard(self.sources.tenant()).await?;
        let Need::Shard(tenant, shard) = need else { return Ok(self.schema.routing(&self.database.routing)) };
        if txn.is_some_and(|txn| txn.is_on(&shard)) {
            self.database.give_shard_later(tenant, shard);
            return Err(shard_is_new());
        }
        self.bounds.wait(&*self.database.env, self.database.give_shard(&tenant, &shard)).await??;
        let policy = self.schema.routing(&self.database.routing);
        // A transaction that has made groups has a routing of its own, from before.
        if policy.is_pinned(&tenant) { Ok(policy) } else { Err(shard_is_new()) }
    }

    pub(super) fn resolver<'b>(&'b self, policy: &'b RoutingPolicy) -> Resolver<'b> {
        Resolver { database: self.database, policy, inputs: self.inputs(), prefer: None }
    }

    /// The fast way: a plan that comes to one shard.
    async fn in_one_request(&self, plan: &Plan, policy: &Arc<RoutingPolicy>) -> Result<Option<Output>, SqlError> {
        match plan {
            Plan::Query(QueryPlan { root: Node::Shards(node), locks: false, .. }) => {
                let nobody = if node.must_run { Nobody::MustRun } else { Nobody::IsFine };
                let places = self.choose(&node.target, &node.touches, nobody, Seat::default(), policy).await?;
                let rows = match only(&places) {
                    Some(place) => self.ask(&node.fragment, place, policy, Access::Read).await?.rows,
                    None if places.is_empty() => Vec::new(),
                    None => return Ok(None),
                };
                Ok(Some(Output { rows: self.trim(node, rows)?, affected: 0 }))
            }
            Plan::Modify(plan) => {
                let places = self.choose(&plan.target, &plan.touches, Nobody::IsFine, Seat::default(), policy).await?;
                let Some(place) = only(&places) else { return Ok(None) };
                let outcome = self.ask(&plan.fragment, place, policy, Access::Write).await?;
                Ok(Some(Output { rows: outcome.rows, affected: outcome.affected }))
            }
            Plan::Insert(plan) if plan.upsert.is_none() => {
                let InsertRows::Values(exprs) = &plan.rows else { return Ok(None) };
                let rows = self.evaluate_rows(exprs).await?;
                self.check_conflicts(plan, &rows)?;
                let keys = match plan.unique.is_empty() {
                    true => None,
                    false => Some(Box::pin(self.reserve_alone(&plan.table, &plan.unique, &rows, policy)).await?),
                };
                let work = self.place_rows(plan, rows, policy)?;
                if work.shards.len() != 1 || work.shards.values().any(|on| on.statements.len() > MAX_STATEMENTS) {
                    return self.insert_over(plan, work, keys, policy).await.map(Some);
                }
                let (shard, on) = work.shards.into_iter().next().expect("there is one");
                let answer = self.send((&shard, &on.units, None), policy, Access::Write, on.statements, keys).await?;
                let outcomes = answer.map_err(|error| noted(self.database, &shard, error))?;
                Ok(Some(collect(plan.target, vec![(shard, on.order, outcomes)])))
            }
            _ => Ok(None),
        }
    }

    /// An insert over several shards, on its own.
    async fn insert_over(
        &self,
        plan: &InsertPlan,
        work: Placed,
        keys: Option<Keys>,
        policy: &RoutingPolicy,
    ) -> Result<Output, SqlError> {
        let modes = Modes { isolation: Isolation::ReadCommitted, read_only: false };
        let mut txn = Txn::begin(self.database, modes, self.schema.clone(), self.acts_for())?;
        if let Some(keys) = keys {
            txn.go_on_with(keys);
        }
        let output = self.insert_placed(plan, work, &mut txn, policy).await?;
        txn.commit(self.bounds).await?;
        Ok(output)
    }

    fn engine(&self, shard: &ShardId) -> Result<Engine, SqlError> {
        self.database.shards.engine(shard).ok_or_else(|| SqlError::new("XX000", format!("there is no shard {shard}")))
    }

    /// A fragment as a shard runs it, with what it claims there.
    pub(super) fn on_shard(
        &self,
        fragment: &Fragment,
        shard: &ShardId,
        units: &[Claimed],
        policy: &RoutingPolicy,
    ) -> Result<Statement, SqlError> {
        let engine = self.engine(shard)?;
        match units.iter().any(|unit| matches!(unit, Claimed::OwnBuckets(..))) {
            true => self.inputs().owned_statement(fragment, engine, Owner { shard, policy }),
            false => self.inputs().statement(fragment, engine),
        }
    }

    /// A fragment on one shard, as a request.
    pub(super) async fn ask(
        &self,
        fragment: &Fragment,
        (shard, units, still): Place<'_>,
        policy: &RoutingPolicy,
        access: Access,
    ) -> Result<Outcome, SqlError> {
        let mut units = Cow::Borrowed(units);
        loop {
            let statement = self.on_shard(fragment, shard, &units, policy)?;
            let error = match self.send((shard, &units, still), policy, access, vec![statement], None).await? {
                Ok(mut outcomes) => return Ok(outcomes.pop().unwrap_or_default()),
                Err(error) => error,
            };
            // Each time it claims less, so this ends.
            let kept = matches!(&error, ShardError::Strangers { group } if keep_to_own(units.to_mut(), group));
            let shown = noted(self.database, shard, error);
            if !kept {
                return Err(shown);
            }
        }
    }

    /// Sends a request, which adds these keys. The inner error is the shard's.
    pub(super) async fn send(
        &self,
        (shard, units, still): Place<'_>,
        policy: &RoutingPolicy,
        access: Access,
        statements: Vec<Statement>,
        keys: Option<Keys>,
    ) -> Result<Result<Vec<Outcome>, ShardError>, SqlError> {
        let _active = self.database.enter()?;
        let engine = self.engine(shard)?;
        let at_writer = match (access, engine) {
            (Access::Write, Engine::Sqlite) => Some(self.database.writers.at_shard(shard)?),
            _ => None,
        };
        let claim = Claim { still: still.cloned(), ..Claim::new(policy.version(), units.to_vec()) };
        let limits = self.bounds.limits(&*self.database.env);
        // What uses no tenant table needs no tenant, which costs a PostgreSQL shard a transaction.
        let uses_tenants = units.iter().any(|unit| matches!(unit, Claimed::Tenant(..) | Claimed::Residents(..)));
        let acts_for = if uses_tenants { self.database.acts_on(shard, &self.acts_for()) } else { ActsFor::Nobody };
        let request = Request { claim, acts_for, access, statements, limits };
        let open = open_shard(self.database, shard).await?;
        let sent = Sent::new(&request.statements, &*self.database.env);
        let answer = match keys {
            Some(keys) => execute_holding(self.database, shard, open, request, keys).await?,
            None => open.execute(request).await,
        };
        drop(at_writer);
        if engine == Engine::Sqlite {
            self.database.latches.settle(shard).await;
        }
        sent.came(shard, answer.as_deref().ok().map(rows_of), &self.database.noted(self.bounds));
        Ok(answer)
    }

    /// Carries out a plan in a transaction. If it is the first, and learns of strangers on a shard that it has been on
    /// already, as one with several fragments can, it begins again.
    async fn run_within(&self, plan: &Plan, txn: &mut Txn, policy: &Arc<RoutingPolicy>) -> Result<Output, SqlError> {
        if !txn.has_begun() {
            self.ask_indexes(plan, policy).await?;
        }
        let is_first = txn.may_begin_again();
        loop {
            let known = self.database.known_strangers();
            match self.run_plan(plan, txn, policy).await {
                // Each time more is known, so this ends.
                Err(error) if is_first && error.sqlstate == "40001" && self.database.known_strangers() > known => {
                    self.bounds.check(&*self.database.env)?;
                    txn.start_over().await;
                }
                output => return output,
            }
        }
    }

    pub(super) async fn run_plan(
        &self,
        plan: &Plan,
        txn: &mut Txn,
        policy: &Arc<RoutingPolicy>,
    ) -> Result<Output, SqlError> {
        match plan {
            Plan::Query(plan) => {
                let access = if plan.locks { Access::Write } else { Access::Read };
                let rows = self.node(&plan.root, access, txn, policy).await?;
                Ok(Output { rows, affected: 0 })
            }
            Plan::Insert(plan) => self.insert(plan, txn, policy).await,
            Plan::Modify(plan) => self.modify(plan, txn, policy).await,
            Plan::Rewrite(plan) => self.rewrite(plan, txn, policy).await,
        }
    }

    pub(super) fn visits(&self, places: &Places, access: Access, policy: &RoutingPolicy) -> Vec<Visit> {
        let visit = |(shard, units): (&ShardId, &Vec<Claimed>)| Visit {
            shard: shard.clone(),
            access,
            version: policy.version(),
            units: units.clone(),
            still: places.still.clone(),
        };
        places.iter().map(visit).collect()
    }

    pub(super) fn node<'b>(
        &'b self,
        node: &'b Node,
        access: Access,
        txn: &'b mut Txn,
        policy: &'b RoutingPolicy,
    ) -> Boxed<'b, Result<Vec<Row>, SqlError>> {
        Box::pin(async move {
            match node {
                Node::Shards(node) => self.shards(node, access, txn, policy).await,
                Node::Stage(node) => self.stage(node, access, txn, policy).await,
            }
        })
    }

    async fn shards(
        &self,
        node: &ShardsNode,
        access: Access,
        txn: &mut Txn,
        policy: &RoutingPolicy,
    ) -> Result<Vec<Row>, SqlError> {
        let nobody = if node.must_run { Nobody::MustRun } else { Nobody::IsFine };
        let places = self.choose_within(&node.target, &node.touches, nobody, txn, policy).await?;
        self.shards_at(node, places, access, txn, policy).await
    }

    /// The rows of a fragment that runs there.
    pub(super) async fn shards_at(
        &self,
        node: &ShardsNode,
        mut places: Places,
        access: Access,
        txn: &mut Txn,
        policy: &RoutingPolicy,
    ) -> Result<Vec<Row>, SqlError> {
        txn.rely_on(places.still.as_ref());
        let late = txn.compares_late().then(|| places.still.take()).flatten();
        if let (Some(place), Access::Read, None) = (only(&places), access, &late)
            && txn.reads_committed(place.0)
        {
            let outcome = self.ask(&node.fragment, place, policy, access).await?;
            return self.trim(node, outcome.rows);
        }
        let mut outcomes = self.on_shards(&node.fragment, &places, access, txn, policy).await?;
        let part = LedPart { fragment: &node.fragment, target: &node.target, touches: &node.touches, access };
        outcomes.extend(self.catch_up(&part, late, &places, txn, policy).await?);
        let results: Vec<Vec<Row>> = outcomes.into_iter().map(|outcome| outcome.rows).collect();
        let began = self.database.env.elapsed();
        let rows = match &node.merge {
            Merge::Concat => results.into_iter().flatten().collect(),
            Merge::Ordered(_) if results.len() < 2 => results.into_iter().flatten().collect(),
            Merge::Ordered(keys) => {
                merge::check_keys(keys)?;
                merge::merge_sorted(results, keys)
            }
        };
        let rows = self.trim(node, rows)?;
        self.note_router(&node.fragment, self.engine_of(&places), rows.len(), began)?;
        Ok(rows)
    }

    /// A fragment on its shards, within a transaction: an answer for each.
    pub(super) async fn on_shards(
        &self,
        fragment: &Fragment,
        places: &Places,
        access: Access,
        txn: &mut Txn,
        policy: &RoutingPolicy,
    ) -> Result<Vec<Outcome>, SqlError> {
        let mut visits = self.visits(places, access, policy);
        txn.enter(&mut visits, self.bounds).await?;
        let mut work = Vec::with_capacity(visits.len());
        for visit in visits {
            let statement = self.on_shard(fragment, &visit.shard, &visit.units, policy)?;
            work.push((visit.shard, vec![statement]));
        }
        Ok(txn.run(work, self.bounds).await?.into_iter().flatten().collect())
    }

    /// Notes what the router made of a fragment's rows, or computed itself, if anybody wants to know.
    fn note_router(&self, fragment: &Fragment, engine: Engine, rows: usize, began: Duration) -> Result<(), SqlError> {
        if let Some(trace) = &self.bounds.trace {
            let sql = fragment.printed(dialect(engine), Form::Whole)?.sql.clone();
            trace.note(sql, explain::Place::Router, rows as u64, self.database.env.elapsed().saturating_sub(began));
        }
        Ok(())
    }

    /// The engine of the first of some shards: whose text of a fragment stands for all.
    fn engine_of(&self, places: &Places) -> Engine {
        places.keys().find_map(|shard| self.database.shards.engine(shard)).unwrap_or(Engine::Sqlite)
    }

    /// Applies offset and limit, and drops columns that were for merging alone.
    pub(super) fn trim(&self, node: &ShardsNode, mut rows: Vec<Row>) -> Result<Vec<Row>, SqlError> {
        if let Some(offset) = evaluate::count(node.offset.as_ref(), self.inputs(), "OFFSET")? {
            rows.drain(..offset.min(rows.len()));
        }
        if let Some(limit) = evaluate::count(node.limit.as_ref(), self.inputs(), "LIMIT")? {
            rows.truncate(limit);
        }
        if rows.first().is_some_and(|row| row.len() > node.visible) {
            rows.iter_mut().for_each(|row| row.truncate(node.visible));
        }
        let mut tally = Tally::new(self.bounds);
        rows.iter().try_for_each(|row| tally.add(row))?;
        Ok(rows)
    }

    async fn stage(
        &self,
        node: &StageNode,
        access: Access,
        txn: &mut Txn,
        policy: &RoutingPolicy,
    ) -> Result<Vec<Row>, SqlError> {
        let mut inputs: Vec<Gathered> = Vec::with_capacity(node.inputs.len());
        for input in &node.inputs {
            let rows = match &input.rows {
                StageRows::Node(node) => self.node(node, access, txn, policy).await?,
                StageRows::Lookup(lookup) => {
                    let before = inputs.iter().find(|(name, ..)| *name == lookup.input);
                    let missing = || SqlError::new("XX000", "an input that another is read by is not there");
                    let (_, _, rows) = before.ok_or_else(missing)?;
                    self.look_up(lookup, rows, access, txn, policy).await?
                }
                StageRows::System(relation) => self.sources.system_rows(relation)?,
            };
            let mut columns = Vec::with_capacity(input.columns.len());
            for field in &input.columns {
                let untold =
                    || SqlError::unsupported(format!("column \"{}\" has a type that is not supported", field.name));
                // A column of the system's tables whose type has no values of ours is null or a text.
                let known = match &input.rows {
                    StageRows::System(_) => Some(carrier(field.ty.oid).unwrap_or(DataType::Text)),
                    StageRows::Node(_) | StageRows::Lookup(_) => carrier(field.ty.oid),
                };
                columns.push((field.name.clone(), known.ok_or_else(untold)?));
            }
            inputs.push((input.name.clone(), columns, rows));
        }
        let query = numbers::numbered_query(&node.query, self.sources, self.inputs()).await?;
        let statement = self.inputs().statement(query.as_ref().unwrap_or(&node.query), Engine::Sqlite)?;
        let (env, limits) = (self.database.env.clone(), self.bounds.limits(&*self.database.env));
        let system = self.sources.system();
        let work = move || {
            let mut stage = Stage::new(env, limits)?;
            stage.know(system);
            for (name, columns, rows) in inputs {
                stage.create(&name, &columns)?;
                stage.insert(&name, rows)?;
            }
            stage.run(&statement)
        };
        let began = self.database.env.elapsed();
        let outcome = on_pool(self.database, work).await?.map_err(|error: ShardError| error.for_people())?;
        self.note_router(&node.query, Engine::Sqlite, outcome.rows.len(), began)?;
        Ok(outcome.rows)
    }

    async fn modify(&self, plan: &ModifyPlan, txn: &mut Txn, policy: &RoutingPolicy) -> Result<Output, SqlError> {
        let mut places = self.choose_within(&plan.target, &plan.touches, Nobody::IsFine, txn, policy).await?;
        txn.rely_on(places.still.as_ref());
        let late = txn.compares_late().then(|| places.still.take()).flatten();
        let mut outcomes = self.on_shards(&plan.fragment, &places, Access::Write, txn, policy).await?;
        let access = Access::Write;
        let part = LedPart { fragment: &plan.fragment, target: &plan.target, touches: &plan.touches, access };
        outcomes.extend(self.catch_up(&part, late, &places, txn, policy).await?);
        if plan.every {
            outcomes.truncate(1);
        }
        Ok(Output {
            affected: outcomes.iter().map(|outcome| outcome.affected).sum(),
            rows: outcomes.into_iter().flat_map(|outcome| outcome.rows).collect(),
        })
    }

    /// Rows of expressions, computed in order.
    pub(super) async fn evaluate_rows(&self, rows: &[Vec<isles_sql::tree::Expr>]) -> Result<Vec<Row>, SqlError> {
        let width = rows.first().map_or(0, Vec::len);
        let mut flat = Vec::with_capacity(rows.len() * width);
        for row in rows {
            for expr in row {
                let numbered = numbers::numbered(expr, self.sources, self.inputs()).await?;
                flat.push(numbered.map_or(Cow::Borrowed(expr), Cow::Owned));
            }
        }
        let values = evaluate::values(&flat, self.inputs())?;
        let mut values = values.into_iter();
        Ok(rows.iter().map(|row| values.by_ref().take(row.len()).collect()).collect())
    }

    /// Whole rows from the values of some columns; the others are computed, row by row.
    pub(crate) async fn fill(
        &self,
        template: &[isles_sql::tree::Expr],
        places: &[usize],
        given: Vec<Row>,
    ) -> Result<Vec<Row>, SqlError> {
        let computed: Vec<usize> = (0..template.len()).filter(|at| !places.contains(at)).collect();
        let exprs: Vec<isles_sql::tree::Expr> = computed.iter().map(|at| template[*at].clone()).collect();
        let defaults = self.evaluate_rows(&vec![exprs; given.len()]).await?;
        let whole = |(given, defaults): (Row, Row)| {
            let mut row = vec![Value::Null; template.len()];
            places.iter().zip(given).for_each(|(at, value)| row[*at] = value);
            computed.iter().zip(defaults).for_each(|(at, value)| row[*at] = value);
            row
        };
        Ok(given.into_iter().zip(defaults).map(whole).collect())
    }

    /// Inserts whole rows within a transaction. Returns how many. The first ones of a transaction wait for a cutover, as a
    /// first statement does: nothing of them has happened.
    pub(crate) async fn insert_rows(
        &self,
        plan: &InsertPlan,
        mut rows: Vec<Row>,
        txn: &mut Txn,
    ) -> Result<u64, SqlError> {
        if !txn.holds_writer() && plan.table.global_keys().next().is_some() {
            self.database.hold_back(self.bounds).await?;
        }
        let begins = txn.may_begin_again();
        let mut held = None;
        loop {
            let policy = self.routing(|| plan.uses_tenant(), Some(&mut *txn)).await?;
            let sent = if begins { rows.clone() } else { std::mem::take(&mut rows) };
            match self.insert_whole(plan, sent, txn, &policy).await {
                Err(error) if error.moved && begins => {
                    txn.start_over().await;
                    self.hold(&mut held, error).await?;
                }
                inserted => return inserted.map(|output| output.affected),
            }
        }
    }

    async fn insert_whole(
        &self,
        plan: &InsertPlan,
        rows: Vec<Row>,
        txn: &mut Txn,
        policy: &Arc<RoutingPolicy>,
    ) -> Result<Output, SqlError> {
        self.reserve(&plan.table, &plan.unique, &rows, &BTreeSet::new(), txn, policy).await?;
        let work = self.place_rows(plan, rows, policy)?;
        self.insert_placed(plan, work, txn, policy).await
    }

    /// The rows of an insert that come from a query, with the defaults that the router computes.
    async fn query_rows(
        &self,
        plan: &InsertPlan,
        query: &QueryPlan,
        txn: &mut Txn,
        policy: &RoutingPolicy,
    ) -> Result<Vec<Row>, SqlError> {
        let mut rows = self.node(&query.root, Access::Read, txn, policy).await?;
        for row in &mut rows {
            for (at, expr) in &plan.defaults {
                let expr = numbers::numbered(expr, self.sources, self.inputs()).await?.unwrap_or_else(|| expr.clone());
                row[*at] = evaluate::value(&expr, self.inputs())?;
            }
        }
        Ok(rows)
    }

    async fn insert(&self, plan: &InsertPlan, txn: &mut Txn, policy: &Arc<RoutingPolicy>) -> Result<Output, SqlError> {
        let rows = match &plan.rows {
            InsertRows::Values(exprs) => self.evaluate_rows(exprs).await?,
            InsertRows::Query(query) => self.query_rows(plan, query, txn, policy).await?,
        };
        self.check_conflicts(plan, &rows)?;
        if let Some(upsert) = &plan.upsert {
            return self.upsert(plan, upsert, rows, txn, policy).await;
        }
        self.insert_whole(plan, rows, txn, policy).await
    }

    pub(super) async fn insert_placed(
        &self,
        plan: &InsertPlan,
        placed: Placed,
        txn: &mut Txn,
        policy: &RoutingPolicy,
    ) -> Result<Output, SqlError> {
        txn.enter(&mut self.visits(&placed.places(), Access::Write, policy), self.bounds).await?;
        let (mut work, mut orders) = (Vec::new(), Vec::new());
        for (shard, on) in placed.shards {
            work.push((shard.clone(), on.statements));
            orders.push((shard, on.order));
        }
        let outcomes = txn.run(work, self.bounds).await?;
        let parts =
            orders.into_iter().zip(outcomes).map(|((shard, order), outcomes)| (shard, order, outcomes)).collect();
        Ok(collect(plan.target, parts))
    }

    /// `ON CONFLICT DO UPDATE` may not change a row twice.
    pub(super) fn check_conflicts(&self, plan: &InsertPlan, rows: &[Row]) -> Result<(), SqlError> {
        let Some(columns) = &plan.conflict_key else { return Ok(()) };
        let mut seen = BTreeSet::new();
        for row in rows {
            let key: Vec<Value> = columns.iter().map(|at| row[*at].clone()).collect();
            if !key.iter().any(Value::is_null) && !seen.insert(key_bytes(&key)) {
                let message = "ON CONFLICT DO UPDATE command cannot affect row a second time";
                let hint = "Ensure that no rows proposed for insertion within the same command have duplicate constrained values.";
                return Err(SqlError::new("21000", message).with_hint(hint));
            }
        }
        Ok(())
    }

    pub(super) fn place_rows(
        &self,
        plan: &InsertPlan,
        rows: Vec<Row>,
        policy: &RoutingPolicy,
    ) -> Result<Placed, SqlError> {
        let mut placed = Placed::default();
        for (at, row) in rows.into_iter().enumerate() {
            let places = self.row_places(&self.resolver(policy), &plan.table, &plan.shard_key, plan.target, &row)?;
            self.place_row(plan, (at, row), places, &mut placed)?;
        }
        // Expressions of ON CONFLICT and RETURNING may read reference tables.
        if plan.touches.contains(&Touch::Shared) {
            placed.shards.values_mut().for_each(|on| claim_once(&mut on.units, Claimed::Shared));
        }
        Ok(placed)
    }

    /// Adds a row to where it goes.
    fn place_row(
        &self,
        plan: &InsertPlan,
        (at, row): (usize, Row),
        mut places: Vec<RowPlace>,
        placed: &mut Placed,
    ) -> Result<(), SqlError> {
        let last = places.pop();
        for (shard, unit, hidden) in places {
            let statement = self.insertion(plan, row.clone(), hidden, &shard)?;
            placed.add(shard, unit, at, statement);
        }
        if let Some((shard, unit, hidden)) = last {
            let statement = self.insertion(plan, row, hidden, &shard)?;
            placed.add(shard, unit, at, statement);
        }
        Ok(())
    }

    /// The statement that inserts a row on a shard.
    fn insertion(
        &self,
        plan: &InsertPlan,
        row: Row,
        hidden: Option<Value>,
        shard: &ShardId,
    ) -> Result<Statement, SqlError> {
        let params = self.insertion_params(plan, row, hidden)?;
        self.inputs().statement_of(&plan.row, self.engine(shard)?, params)
    }

    fn insertion_params(&self, plan: &InsertPlan, mut row: Row, hidden: Option<Value>) -> Result<Row, SqlError> {
        row.reserve_exact(usize::from(hidden.is_some()) + plan.extra.len());
        row.extend(hidden);
        for (n, _) in &plan.extra {
            row.push(self.inputs().param(*n)?);
        }
        Ok(row)
    }

    /// One row, where it goes, and the parameters of its insertion.
    pub(super) fn placed_row(
        &self,
        plan: &InsertPlan,
        row: &Row,
        policy: &RoutingPolicy,
    ) -> Result<(Placed, Row), SqlError> {
        let places = self.row_places(&self.resolver(policy), &plan.table, &plan.shard_key, plan.target, row)?;
        let params = self.insertion_params(plan, row.clone(), places.last().and_then(|(.., hidden)| hidden.clone()))?;
        let mut placed = Placed::default();
        self.place_row(plan, (0, row.clone()), places, &mut placed)?;
        Ok((placed, params))
    }

    /// Where a row goes: shards, what is claimed there, and the hidden column's value.
    fn row_places(
        &self,
        resolver: &Resolver<'_>,
        table: &Table,
        shard_key: &[usize],
        target: InsertTarget,
        row: &Row,
    ) -> Result<Vec<RowPlace>, SqlError> {
        match (target, &table.kind) {
            (InsertTarget::Bucket, TableKind::Hash { group, .. }) => {
                let key: Vec<(Value, Type)> =
                    shard_key.iter().map(|at| (row[*at].clone(), column_type(table, *at))).collect();
                match resolver.place(group, &key)? {
                    Some((shard, bucket)) => {
                        let hidden = Value::Int(i64::from(bucket.0));
                        Ok(vec![(shard, Claimed::Bucket(group.clone(), bucket), Some(hidden))])
                    }
                    None => Err(null_key(table, shard_key, row)),
                }
            }
            (InsertTarget::Tenant, _) => {
                let tenant = self.sources.tenant();
                let (shard, _) = super::inputs::tenant_place(tenant, resolver.policy)?;
                Ok(vec![(shard, resolver.tenant_claim()?, Some(tenant_value(tenant)?))])
            }
            (InsertTarget::Every, _) => {
                Ok(self.database.members().names().map(|shard| (shard.clone(), Claimed::Shared, None)).collect())
            }
            (InsertTarget::Home, _) => Ok(vec![(resolver.home()?, global_claim(), None)]),
            (InsertTarget::Bucket, _) => Err(SqlError::new("XX000", "only rows of a hash table have buckets")),
        }
    }

    async fn rewrite(
        &self,
        plan: &RewritePlan,
        txn: &mut Txn,
        policy: &Arc<RoutingPolicy>,
    ) -> Result<Output, SqlError> {
        let found = self.node(&plan.rows.root, Access::Write, txn, policy).await?;
        self.reserve_new(plan, &found, txn, policy).await?;
        let mut steps = Rewrite::default();
        let mut rows = Vec::with_capacity(found.len());
        for (at, row) in found.into_iter().enumerate() {
            rows.push(self.rewrite_row(plan, at, row, policy, &mut steps)?);
        }
        // All rows go before the first comes: they may take each other's keys.
        for placed in [steps.deletes, steps.updates, steps.inserts] {
            txn.enter(&mut self.visits(&placed.places(), Access::Write, policy), self.bounds).await?;
            let work = placed.shards.into_iter().map(|(shard, on)| (shard, on.statements)).collect();
            txn.run(work, self.bounds).await?;
        }
        let affected = rows.len() as u64;
        if plan.returning.is_none() {
            rows.clear();
        }
        Ok(Output { rows, affected })
    }

    /// Says what becomes of one row: old columns, new columns, and what is returned. Returns the last.
    fn rewrite_row(
        &self,
        plan: &RewritePlan,
        at: usize,
        mut row: Row,
        policy: &RoutingPolicy,
        steps: &mut Rewrite,
    ) -> Result<Row, SqlError> {
        let resolver = self.resolver(policy);
        let width = plan.table.columns.len();
        let mut rest = row.split_off(width);
        let old = row;
        let key = |row: &Row| -> Row { plan.table.key_positions().into_iter().map(|at| row[at].clone()).collect() };
        let places = |row: &Row| self.row_places(&resolver, &plan.table, &plan.shard_key, plan.target, row);
        let add = |to: &mut Placed, fragment: &Fragment, (shard, unit, params): (ShardId, Claimed, Row)| {
            let inputs = Inputs { params: &params, ..self.inputs() };
            let statement = inputs.statement(fragment, self.engine(&shard)?)?;
            to.add(shard, unit, at, statement);
            Ok::<(), SqlError>(())
        };
        let new = (plan.kind == RewriteKind::Update).then(|| {
            let returned = rest.split_off(width);
            std::mem::replace(&mut rest, returned)
        });
        match (&new, &plan.update) {
            (Some(new), Some(update)) if key_bytes(&key(new)) == key_bytes(&key(&old)) => {
                for (shard, unit, hidden) in places(new)? {
                    let params = new.iter().cloned().chain(key(new)).chain(hidden).collect();
                    add(&mut steps.updates, update, (shard, unit, params))?;
                }
            }
            _ => {
                for (shard, unit, hidden) in places(&old)? {
                    add(
                        &mut steps.deletes,
                        &plan.delete,
                        (shard, unit, key(&old).into_iter().chain(hidden).collect()),
                    )?;
                }
                for (shard, unit, hidden) in new.as_ref().map_or(Ok(Vec::new()), places)? {
                    let params = new.iter().flatten().cloned().chain(hidden).collect();
                    add(&mut steps.inserts, &plan.insert, (shard, unit, params))?;
                }
            }
        }
        Ok(rest)
    }
}

/// What an update or delete by key does, in this order.
#[derive(Default)]
struct Rewrite {
    deletes: Placed,
    updates: Placed,
    inserts: Placed,
}

/// Statements for shards, and which row each is for.
#[derive(Default)]
pub(super) struct Placed {
    pub(super) shards: BTreeMap<ShardId, OnShard>,
}

#[derive(Default)]
pub(super) struct OnShard {
    pub(super) units: Vec<Claimed>,
    /// The rows' places in the input.
    pub(super) order: Vec<usize>,
    pub(super) statements: Vec<Statement>,
}

impl Placed {
    pub(super) fn places(&self) -> Places {
        self.shards.iter().map(|(shard, on)| (shard.clone(), on.units.clone())).collect()
    }

    fn add(&mut self, shard: ShardId, unit: Claimed, row: usize, statement: Statement) {
        let on = self.shards.entry(shard).or_default();
        claim_once(&mut on.units, unit);
        on.order.push(row);
        on.statements.push(statement);
    }
}

pub(super) fn claim_once(units: &mut Vec<Claimed>, unit: Claimed) {
    if !units.contains(&unit) {
        units.push(unit);
    }
}

/// A shard, what is claimed there, and what it was chosen by.
pub(super) type Place<'a> = (&'a ShardId, &'a [Claimed], Option<&'a Still>);

pub(super) fn only(places: &Places) -> Option<Place<'_>> {
    let mut each = places.iter();
    match (each.next(), each.next()) {
        (Some((shard, units)), None) => Some((shard, units, places.still.as_ref())),
        _ => None,
    }
}

/// What an insert gave, in the order of its rows. Copies of one row count once.
pub(super) fn collect(target: InsertTarget, mut parts: Vec<(ShardId, Vec<usize>, Vec<Outcome>)>) -> Output {
    if target == InsertTarget::Every {
        parts.truncate(1);
    }
    let each = parts.into_iter().flat_map(|(_, order, outcomes)| order.into_iter().zip(outcomes));
    let ordered: BTreeMap<usize, Outcome> = each.collect();
    Output {
        affected: ordered.values().map(|outcome| outcome.affected).sum(),
        rows: ordered.into_values().flat_map(|outcome| outcome.rows).collect(),
    }
}

pub(crate) fn column_type(table: &Table, at: usize) -> Type {
    let column = &table.columns[at];
    match column.sql_type {
        Some(ty) => Type::with(isles_sql::types::Oid(ty.oid), ty.modifier),
        None => Type::of(isles_sql::types::natural(column.ty)),
    }
}

fn null_key(table: &Table, shard_key: &[usize], row: &Row) -> SqlError {
    let column = shard_key.iter().find(|at| row[**at].is_null()).map_or("", |at| table.columns[*at].name.as_str());
    let shown = table.plain_name();
    let message = format!("null value in column \"{column}\" of relation \"{shown}\" violates not-null constraint");
    SqlError::new("23502", message).of_table(&table.name).of_column(column)
}

/// Runs work that blocks away from the threads that serve sessions.
pub(crate) async fn on_pool<T: Send + 'static>(
    database: &Database,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, SqlError> {
    let (reply, answer) = tokio::sync::oneshot::channel();
    database.env.blocking(Box::new(move || {
        let _ = reply.send(work());
    }));
    answer.await.map_err(|_| SqlError::new("57P01", "the work was dropped"))
}
