//! Unique keys over all shards.
//!
//!     hold the key ─► look for rows that have it ─► write ─► commit ─► let the key go
//!
//! No shard can see that another has a row with the same key. So whoever adds a key holds it, in the memory of this
//! process, from before it looks until its transaction is over; of two who add one key the second waits for the first,
//! and then finds its row. Nothing is written for that, so a crash leaves nothing behind (I-26).
//!
//! A key is looked for by its index. Where the index says that nobody has it, nobody has: whoever could add it would have
//! to hold it. Otherwise the rows themselves are asked, as they are committed now, and, on shards that the transaction
//! writes to, as it sees them. While an index is built all shards are asked.
//!
//! A commit whose answer is lost may yet happen: its keys are held until the shard knows.
//!
//! Invariants (docs/invariants.md):
//!   * I-26  never two committed rows with one key; a key is let go by whatever ends its transaction

use super::bounds::Bounds;
use super::led::Led;
use super::run::{ATTEMPTS, FIRST_PAUSE, Output, Runner, only};
use super::target::{Nobody, Places};
use super::transaction::{Modes, Seat, Txn, wait_for_turn};
use crate::commit::writers::{TxnNumber, Waits, Wanted, WriterTurn};
use crate::database::Database;
use crate::indexes::Planted;
use crate::indexes::define::Definition;
use crate::indexes::find;
use isles_engine::error::ShardError;
use isles_engine::fence::Access;
use isles_engine::shard::{Engine, Isolation, Outcome, Request, Shard};
use isles_kernel::error::SqlError;
use isles_kernel::hash::BucketCount;
use isles_kernel::index::IndexKey;
use isles_kernel::names::{BucketId, SchemaVersion, ShardId};
use isles_kernel::routing::RoutingPolicy;
use isles_kernel::schema::Table;
use isles_kernel::value::{Value, key_bytes};
use isles_sql::plan::{InsertPlan, Node, QueryPlan, RewriteKind, RewritePlan, ShardsNode, UniqueCheck, Upsert};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Keys that one transaction may add: each is held in memory until it ends.
const MAX_KEYS: usize = 1_000_000;
/// Keys that an index is asked for at once.
const KEYS_AT_ONCE: usize = 256;
/// A shard that does not know yet what became of a commit is asked again after this.
const RETRY: Duration = Duration::from_millis(200);
/// How often `ON CONFLICT` looks again, because the row that it was about to change has gone.
const UPSERT_ATTEMPTS: u32 = 8;

type Row = Vec<Value>;

/// Keys that a transaction holds.
pub(crate) struct Keys {
    number: TxnNumber,
    held: BTreeMap<Wanted, WriterTurn>,
}

impl Keys {
    pub(crate) fn new(number: TxnNumber) -> Keys {
        Keys { number, held: BTreeMap::new() }
    }

    pub(crate) fn number(&self) -> TxnNumber {
        self.number
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    pub(crate) fn into_turns(self) -> Vec<WriterTurn> {
        self.held.into_values().collect()
    }

    /// Waits for keys, one after the other. Returns those that were held before.
    async fn hold(
        &mut self,
        wanted: BTreeSet<Wanted>,
        database: &Database,
        bounds: &Bounds,
    ) -> Result<BTreeSet<Wanted>, SqlError> {
        let mut known = BTreeSet::new();
        for key in wanted {
            if self.held.contains_key(&key) {
                known.insert(key);
                continue;
            }
            if self.held.len() >= MAX_KEYS {
                let message = format!("a transaction adds at most {MAX_KEYS} keys to unique global indexes");
                return Err(SqlError::new("54000", message));
            }
            let turn = wait_for_turn(database, key.clone(), self.number, bounds).await?;
            self.held.insert(key, turn);
        }
        Ok(known)
    }

    /// Lets go: what it was held for has happened, or has not.
    pub(crate) fn let_go(self, database: &Database) {
        if database.indexes.plants(Planted::KeysKept) {
            std::mem::forget(self);
        }
    }

    /// Lets go, once a shard is sure of what has become of a commit whose answer was lost.
    pub(crate) fn keep_until_settled(self, database: &Arc<Database>, shard: ShardId) {
        let (database, env) = (Arc::downgrade(database), database.env.clone());
        let asked = env.clone();
        env.spawn(Box::pin(async move {
            while let Some(database) = database.upgrade().filter(|database| !database.shards.is_closed()) {
                if settle(&database, &shard).await.is_ok() {
                    break;
                }
                drop(database);
                asked.sleep(RETRY).await;
            }
            drop(self);
        }));
    }
}

/// Sends a request that adds keys. It is carried to its end whatever becomes of the one who waits for it: the keys must
/// not be let go before.
pub(super) async fn execute_holding(
    database: &Arc<Database>,
    shard: &ShardId,
    open: Arc<dyn Shard>,
    request: Request,
    keys: Keys,
) -> Result<Result<Vec<Outcome>, ShardError>, SqlError> {
    let waits: Option<Waits> = match database.shards.engine(shard) {
        Some(Engine::Sqlite) => Some(database.writers.waits_at(shard, keys.number)?),
        _ => None,
    };
    let (reply, answer) = oneshot::channel();
    let (holder, name) = (database.clone(), shard.clone());
    database.env.spawn(Box::pin(async move {
        let done = open.execute(request).await;
        drop(waits);
        match &done {
            Err(error) if !error.nothing_happened() => keys.keep_until_settled(&holder, name),
            _ => keys.let_go(&holder),
        }
        // One who has gone needs no answer.
        let _ = reply.send(done);
    }));
    let lost = |_| SqlError::new("08007", "the statement may have happened: whoever carried it out has ended");
    answer.await.map_err(lost)
}

/// A key that a row adds.
struct Added<'a> {
    check: &'a UniqueCheck,
    key: IndexKey,
    row: &'a Row,
    /// What the key is made of.
    values: Row,
}

impl Added<'_> {
    fn wanted(&self) -> Wanted {
        Wanted::Key(Arc::from(self.check.entries.as_str()), self.key.0.clone())
    }
}

/// All keys that rows add to the unique global indexes of a table. A row with a null in a key adds none.
fn added<'a>(table: &Table, unique: &'a [UniqueCheck], rows: &'a [Row]) -> Result<Vec<Added<'a>>, SqlError> {
    let mut all = Vec::new();
    for check in unique {
        let definition = definition(table, check)?;
        for row in rows {
            let Some(values) = definition.values_of(row).filter(|values| !values.iter().any(Value::is_null)) else {
                continue;
            };
            let key = definition.key_from(&values).map_err(|error| SqlError::new("0A000", error.to_string()))?;
            all.push(Added { check, key, row, values });
        }
    }
    Ok(all)
}

fn definition(table: &Table, check: &UniqueCheck) -> Result<Definition, SqlError> {
    let key = table.keys.iter().find(|key| key.name == check.key);
    let definition = key.and_then(|key| Definition::of(table, key, SchemaVersion(0), BucketCount::ONE));
    definition.ok_or_else(|| SqlError::new("XX000", format!("index \"{}\" has no definition", check.key)))
}

fn duplicate(table: &Table, added: &Added<'_>) -> SqlError {
    let name = &added.check.key;
    let message = format!("duplicate key value violates unique constraint \"{name}\"");
    let error = SqlError::new("23505", message).of_table(&table.name).of_constraint(name.clone());
    match definition(table, added.check) {
        Ok(definition) => error.with_detail(format!("{} already exists.", definition.shown(&added.values))),
        Err(_) => error,
    }
}

/// Refuses rows of one statement that have a key in common.
fn check_among(table: &Table, all: &[Added<'_>]) -> Result<(), SqlError> {
    let mut seen: BTreeMap<(&str, &IndexKey), &Added<'_>> = BTreeMap::new();
    for added in all {
        // Long values may share a key and be different.
        let same = |other: &&Added<'_>| !added.key.is_cut() || key_bytes(&other.values) == key_bytes(&added.values);
        if seen.insert((&added.check.entries, &added.key), added).is_some_and(|other| same(&other)) {
            return Err(duplicate(table, added));
        }
    }
    Ok(())
}

impl Runner<'_> {
    /// Holds the keys that rows add, for a statement on its own, and makes sure that nobody has them.
    pub(super) async fn reserve_alone(
        &self,
        table: &Table,
        unique: &[UniqueCheck],
        rows: &[Row],
        policy: &Arc<RoutingPolicy>,
    ) -> Result<Keys, SqlError> {
        let all = added(table, unique, rows)?;
        check_among(table, &all)?;
        let mut keys = Keys::new(self.database.next_txn());
        keys.hold(all.iter().map(Added::wanted).collect(), self.database, self.bounds).await?;
        self.check_added(table, &all, &BTreeSet::new(), &BTreeSet::new(), None, policy).await?;
        Ok(keys)
    }

    /// The same within a transaction. Rows with the primary keys `instead` are the ones that these rows take the place of.
    pub(super) async fn reserve(
        &self,
        table: &Table,
        unique: &[UniqueCheck],
        rows: &[Row],
        instead: &BTreeSet<Vec<u8>>,
        txn: &mut Txn,
        policy: &Arc<RoutingPolicy>,
    ) -> Result<(), SqlError> {
        let all = added(table, unique, rows)?;
        check_among(table, &all)?;
        let wanted = all.iter().map(Added::wanted).collect();
        let known = txn.keys.hold(wanted, self.database, self.bounds).await?;
        self.check_added(table, &all, &known, instead, Some(txn), policy).await
    }

    /// Makes sure that no row has these keys, which are held; `known` were held before, so the transaction itself may have
    /// added them.
    async fn check_added(
        &self,
        table: &Table,
        all: &[Added<'_>],
        known: &BTreeSet<Wanted>,
        instead: &BTreeSet<Vec<u8>>,
        mut txn: Option<&mut Txn>,
        policy: &Arc<RoutingPolicy>,
    ) -> Result<(), SqlError> {
        let (own, new): (Vec<&Added<'_>>, Vec<&Added<'_>>) =
            all.iter().partition(|added| known.contains(&added.wanted()));
        let mut doubtful = own;
        for some in new.chunks(KEYS_AT_ONCE) {
            if !self.nobody_has(some, policy).await {
                doubtful.extend(some);
            }
        }
        for added in doubtful {
            let found = self.look_for(&added.check.rows, added.row, txn.as_deref_mut(), policy).await?;
            if found.iter().any(|row| !instead.contains(&key_bytes(row))) {
                return Err(duplicate(table, added));
            }
        }
        Ok(())
    }

    /// Whether indexes say that no row has any of these keys.
    async fn nobody_has(&self, some: &[&Added<'_>], policy: &RoutingPolicy) -> bool {
        let mut by_index: BTreeMap<&str, Vec<IndexKey>> = BTreeMap::new();
        for added in some {
            by_index.entry(&added.check.entries).or_default().push(added.key.clone());
        }
        let mut wanted = Vec::new();
        for (entries, keys) in by_index {
            let Some(index) = self.database.indexes.watch.get(entries) else { return false };
            wanted.push(find::Wanted { index, ranges: keys.into_iter().map(IndexKey::within).collect() });
        }
        // One that cannot be asked now does not say anything; the rows do.
        let is_enough = |found: &BTreeSet<BucketId>| !found.is_empty();
        let look = find::Look { database: self.database, policy, bounds: self.bounds, is_enough: &is_enough };
        matches!(look.find(&wanted).await, Ok(find::Said::Found(found)) if found.buckets.is_empty())
    }

    /// The primary keys of rows that a plan finds for a row: as the transaction sees them where it writes, and elsewhere as
    /// they are committed now.
    async fn look_for(
        &self,
        plan: &QueryPlan,
        params: &[Value],
        txn: Option<&mut Txn>,
        policy: &Arc<RoutingPolicy>,
    ) -> Result<Vec<Row>, SqlError> {
        let runner = Runner { params, led: Led::default(), ..*self };
        let Node::Shards(node) = &plan.root else {
            return Err(SqlError::new("XX000", "rows with a key are found on shards"));
        };
        let Some(txn) = txn else { return runner.look_elsewhere(node, &[], policy).await };
        if txn.schema.is_alone() {
            return runner.node(&plan.root, Access::Write, txn, policy).await;
        }
        let writes = txn.seat().writes_to;
        let mut found = runner.look_within(node, &writes, txn, policy).await?;
        // One that keeps its moment does not see what came later, even where it writes.
        let is_old = |shard: &&ShardId| {
            txn.modes.isolation != Isolation::ReadCommitted
                && self.database.shards.engine(shard) == Some(Engine::Postgres)
        };
        let (old, fresh): (Vec<ShardId>, Vec<ShardId>) = writes.iter().cloned().partition(|shard| is_old(&shard));
        let elsewhere = runner.look_elsewhere(node, &fresh, policy).await?;
        if !old.is_empty() && found.is_empty() && !elsewhere.is_empty() {
            let error = SqlError::new("40001", "could not serialize access due to concurrent update");
            return Err(error.with_hint("retry the transaction"));
        }
        found.extend(elsewhere);
        Ok(found)
    }

    async fn look_within(
        &self,
        node: &ShardsNode,
        shards: &[ShardId],
        txn: &mut Txn,
        policy: &RoutingPolicy,
    ) -> Result<Vec<Row>, SqlError> {
        let mut places = self.resolver(policy).resolve(&node.target, &node.touches, Nobody::IsFine)?;
        places.shards.retain(|shard, _| shards.contains(shard));
        if places.is_empty() {
            return Ok(Vec::new());
        }
        let outcomes = self.on_shards(&node.fragment, &places, Access::Write, txn, policy).await?;
        Ok(outcomes.into_iter().flat_map(|outcome| outcome.rows).collect())
    }

    /// What is committed on all shards but these.
    async fn look_elsewhere(
        &self,
        node: &ShardsNode,
        except: &[ShardId],
        policy: &Arc<RoutingPolicy>,
    ) -> Result<Vec<Row>, SqlError> {
        let (mut policy, mut pause) = (policy.clone(), FIRST_PAUSE);
        for attempt in 1.. {
            match self.look_once(node, except, &policy).await {
                Err(error) if error.moved || (attempt < ATTEMPTS && self.is_tried_again(&error)) => {
                    self.forget_led(attempt);
                    self.pause(&mut pause).await?;
                    pause = pause.min(RETRY);
                    policy = self.database.routing.refresh().await?;
                }
                found => return found,
            }
        }
        Ok(Vec::new())
    }

    async fn look_once(
        &self,
        node: &ShardsNode,
        except: &[ShardId],
        policy: &RoutingPolicy,
    ) -> Result<Vec<Row>, SqlError> {
        let mut places = self.choose(&node.target, &node.touches, Nobody::IsFine, Seat::default(), policy).await?;
        places.shards.retain(|shard, _| !except.contains(shard));
        match only(&places) {
            Some(place) => Ok(self.ask(&node.fragment, place, policy, Access::Read).await?.rows),
            None if places.is_empty() => Ok(Vec::new()),
            None => self.look_at_all(node, &places, policy).await,
        }
    }

    async fn look_at_all(
        &self,
        node: &ShardsNode,
        places: &Places,
        policy: &RoutingPolicy,
    ) -> Result<Vec<Row>, SqlError> {
        let modes = Modes { isolation: Isolation::RepeatableRead, read_only: true };
        let mut txn = Txn::begin(self.database, modes, self.schema.clone(), self.acts_for())?;
        let outcomes = self.on_shards(&node.fragment, places, Access::Read, &mut txn, policy).await?;
        txn.rollback().await;
        Ok(outcomes.into_iter().flat_map(|outcome| outcome.rows).collect())
    }

    /// Before rows are written that an update has computed: `found` has of each the old columns, the new ones, and more.
    pub(super) async fn reserve_new(
        &self,
        plan: &RewritePlan,
        found: &[Row],
        txn: &mut Txn,
        policy: &Arc<RoutingPolicy>,
    ) -> Result<(), SqlError> {
        if plan.unique.is_empty() || plan.kind != RewriteKind::Update {
            return Ok(());
        }
        let (width, key) = (plan.table.columns.len(), plan.table.key_positions());
        let instead =
            found.iter().map(|row| key_bytes(&key.iter().map(|at| row[*at].clone()).collect::<Row>())).collect();
        let new: Vec<Row> = found.iter().map(|row| row[width..2 * width].to_vec()).collect();
        self.reserve(&plan.table, &plan.unique, &new, &instead, txn, policy).await
    }

    /// `ON CONFLICT`, one row after the other.
    pub(super) async fn upsert(
        &self,
        plan: &InsertPlan,
        upsert: &Upsert,
        rows: Vec<Row>,
        txn: &mut Txn,
        policy: &Arc<RoutingPolicy>,
    ) -> Result<Output, SqlError> {
        let mut output = Output::default();
        for row in rows {
            let done = self.upsert_row(plan, upsert, row, txn, policy).await?;
            output.affected += done.affected;
            output.rows.extend(done.rows);
        }
        Ok(output)
    }

    async fn upsert_row(
        &self,
        plan: &InsertPlan,
        upsert: &Upsert,
        row: Row,
        txn: &mut Txn,
        policy: &Arc<RoutingPolicy>,
    ) -> Result<Output, SqlError> {
        for _ in 0..UPSERT_ATTEMPTS {
            let all = added(&plan.table, &plan.unique, std::slice::from_ref(&row))?;
            let wanted = all.iter().map(Added::wanted).collect();
            txn.keys.hold(wanted, self.database, self.bounds).await?;
            let (work, params) = self.placed_row(plan, &row, policy)?;
            // From here on the row's own shard does not change under a SQLite transaction's hands.
            txn.enter(&mut self.visits(&work.places(), Access::Write, policy), self.bounds).await?;
            let Some(key) = self.first_conflict(upsert, &params, txn, policy).await? else {
                self.reserve(&plan.table, &plan.unique, std::slice::from_ref(&row), &BTreeSet::new(), txn, policy)
                    .await?;
                return self.insert_placed(plan, work, txn, policy).await.map_err(came_meanwhile);
            };
            let Some(update) = &upsert.update else { return Ok(Output::default()) };
            let of_found: Row = params.iter().chain(&key).cloned().collect();
            let runner = Runner { params: &of_found, led: Led::default(), ..*self };
            let done = Box::pin(runner.run_plan(update, txn, policy)).await?;
            // Its WHERE was false, or it has gone.
            if done.affected > 0 || self.first_conflict(upsert, &params, txn, policy).await?.is_some() {
                return Ok(done);
            }
        }
        Err(SqlError::new("40001", "could not serialize access due to concurrent delete"))
    }

    /// The primary key of a row that conflicts with a new one.
    async fn first_conflict(
        &self,
        upsert: &Upsert,
        params: &[Value],
        txn: &mut Txn,
        policy: &Arc<RoutingPolicy>,
    ) -> Result<Option<Row>, SqlError> {
        for conflict in &upsert.conflicts {
            if let Some(found) = self.look_for(conflict, params, Some(&mut *txn), policy).await?.into_iter().next() {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }
}

/// A row with the same key was committed after the look: the next look finds it.
fn came_meanwhile(error: SqlError) -> SqlError {
    match error.sqlstate {
        "23505" => SqlError::new("40001", "could not serialize access due to concurrent insert")
            .with_hint("retry the transaction"),
        _ => error,
    }
}

/// Waits until a shard is sure of all commits that have come to it; one that has stopped is opened anew first.
async fn settle(database: &Database, shard: &ShardId) -> Result<(), ShardError> {
    match database.shards.get(shard).await?.settled().await {
        Err(ShardError::Stopped(_)) => database.shards.reopen(shard).await?.settled().await.map(drop),
        settled => settled.map(drop),
    }
}
