//! A transaction of a session: its parts on the shards that it has touched.
//!
//!     read  ── SQLite, repeatable read and above: a snapshot, kept ─┐
//!     write ── SQLite: the shard's writer ◄── nothing changed since ┘ (else 40001)
//!     both  ── PostgreSQL: one transaction there
//!     commit ── no writes: nothing; one shard: its own commit; several, or another schema: the coordinator
//!
//! A shard is entered when a statement first needs it. A SQLite shard has one writer, so a transaction reads from a
//! snapshot for as long as it can and takes the writer at its first write. At `read committed` there is no snapshot to
//! keep: each statement reads what is committed.
//!
//! At `serializable` a transaction that writes must also not depend on what others have changed on shards that it only
//! read: at its end it takes their writers as well, which fails if they have changed since. So everything that it read
//! and wrote holds at the moment of its commit.
//!
//! One that only reads several shards must see them at one moment. So when it enters another one, what it shows of the
//! others must still be what they have. If all its shards are new to it, it looks again; else it fails with 40001.
//!
//! A shard that has strangers, and was not known to, refuses a part that would take them for its own. If the shard is
//! new to the transaction, nothing has been read there: the part begins again with a claim to the shard's own buckets,
//! and whoever entered writes the statement accordingly. Otherwise the transaction fails with 40001.
//!
//! A transaction that changes the schema has a part on every shard, each with the change, and is alone in the database.
//! What it runs afterwards sees its own schema; others see it when it has committed.
//!
//! Invariants (docs/invariants.md):
//!   * I-9   a claim that a shard refuses fails the transaction with 40001, before any effect
//!   * I-19  serializable on SQLite; on PostgreSQL what was asked for, on each shard
//!   * I-20  several shards commit all or none

use super::bounds::Bounds;
use super::unique::Keys;
use super::work::{Sent, rows_of};
use crate::commit::Participant;
use crate::commit::writers::{TxnNumber, Wanted, WriterTurn};
use crate::database::schema::{Change, Next, Turnover};
use crate::database::strangers::keep_to_own;
use crate::database::{Active, Database, SchemaGuard};
use crate::tenants::entry::Pass;
use futures::future::join_all;
use isles_engine::entries::Still;
use isles_engine::error::ShardError;
use isles_engine::fence::{Access, Claim, Claimed};
use isles_engine::shard::{ActsFor, Begin, Engine, Isolation, Outcome, Shard, StateNumber, Statement, Transaction};
use isles_kernel::error::SqlError;
use isles_kernel::names::{GroupName, RoutingVersion, ShardId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Between two looks at shards that change while they are looked at.
const MOMENT_PAUSE: Duration = Duration::from_micros(50);
/// Savepoints that are open at once.
pub(crate) const MAX_SAVEPOINTS: usize = 1_000;

/// What a transaction is, from its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Modes {
    pub(crate) isolation: Isolation,
    pub(crate) read_only: bool,
}

/// A transaction's part on one shard. Dropping it rolls it back, and then passes the turn on.
struct Part {
    transaction: Box<dyn Transaction>,
    access: Access,
    /// The transaction's tenant, or nobody.
    acts_for: ActsFor,
    version: RoutingVersion,
    claimed: Vec<Claimed>,
    turn: Option<WriterTurn>,
}

/// Where a statement wants to go, and what for.
#[derive(Debug, Clone)]
pub(crate) struct Visit {
    pub(crate) shard: ShardId,
    pub(crate) access: Access,
    pub(crate) version: RoutingVersion,
    pub(crate) units: Vec<Claimed>,
    /// What the shard was chosen by.
    pub(crate) still: Option<Still>,
}

impl Visit {
    /// Keeps to the shard's own buckets of a group from here on. Whether it did not before.
    fn keep_to_own(&mut self, database: &Database, group: &GroupName) -> bool {
        database.note_strangers(&self.shard, group);
        keep_to_own(&mut self.units, group)
    }
}

struct Savepoint {
    /// Its name on the shards.
    name: String,
    schema: Arc<SchemaGuard>,
}

pub(crate) struct Txn {
    parts: BTreeMap<ShardId, Part>,
    /// Keys of unique global indexes that it adds. They come after the parts: when these have ended, they may go.
    pub(super) keys: Keys,
    pub(crate) modes: Modes,
    number: TxnNumber,
    /// One for each savepoint that is open.
    savepoints: Vec<Savepoint>,
    next_savepoint: u64,
    /// Commits over several shards before its first snapshot.
    first_moment: Option<u64>,
    /// What indexes have said to it, where it may not have changed when it commits.
    relied_on: Vec<Still>,
    /// Its tenant, which is the same on all its shards; on those that are another tenant's it acts for nobody.
    acts_for: ActsFor,
    /// Keeps others from changing the schema that this transaction has seen; its own, once it has changed it.
    pub(crate) schema: Arc<SchemaGuard>,
    database: Arc<Database>,
    /// Says that it is inside of its tenant.
    pass: Option<Pass>,
    _active: Active,
}

/// Where a transaction is.
#[derive(Default)]
pub(crate) struct Seat {
    /// A shard that it is on.
    pub(crate) on: Option<ShardId>,
    /// What it reads from here on is of a moment that has passed.
    pub(crate) keeps_its_moment: bool,
    /// Shards on which it may have written.
    pub(crate) writes_to: Vec<ShardId>,
}

impl Part {
    /// PostgreSQL keeps its levels on each server by itself.
    fn is_current(&mut self) -> bool {
        self.transaction.is_current() != Some(false)
    }
}

fn moment_passed(why: impl Into<String>) -> SqlError {
    SqlError::new("40001", "could not serialize access due to concurrent update")
        .with_detail(why)
        .with_hint("retry the transaction")
}

/// What a transaction did before its tenant had a shard stands in the way of giving it one.
pub(crate) fn shard_is_new() -> SqlError {
    SqlError::new("40001", "could not serialize access: the tenant has been given its shard meanwhile")
        .with_hint("retry the transaction")
}

fn claims_tenant(visit: &Visit) -> bool {
    visit.units.iter().any(|unit| matches!(unit, Claimed::Tenant(..) | Claimed::Residents(..)))
}

/// As a client sees a shard's error inside of a transaction.
pub(crate) fn people(error: ShardError) -> SqlError {
    error.for_people()
}

impl Txn {
    pub(crate) fn begin(
        database: &Arc<Database>,
        modes: Modes,
        schema: Arc<SchemaGuard>,
        acts_for: ActsFor,
    ) -> Result<Txn, SqlError> {
        let active = database.enter()?;
        let number = database.next_txn();
        // Whoever acts for all tenants only reads, whatever the client has said.
        let modes = Modes { read_only: modes.read_only || acts_for == ActsFor::Everyone, ..modes };
        Ok(Txn {
            parts: BTreeMap::new(),
            keys: Keys::new(number),
            modes,
            number,
            savepoints: Vec::new(),
            next_savepoint: 0,
            first_moment: None,
            relied_on: Vec::new(),
            acts_for,
            schema,
            database: database.clone(),
            pass: None,
            _active: active,
        })
    }

    /// Goes on with keys that a statement has taken before it knew that it would be a transaction.
    pub(super) fn go_on_with(&mut self, keys: Keys) {
        self.number = keys.number();
        self.keys = keys;
    }

    fn take_keys(&mut self) -> Keys {
        std::mem::replace(&mut self.keys, Keys::new(self.number))
    }

    /// A transaction stays with its tenant. The session's may be another when a savepoint has brought a setting back.
    pub(crate) fn check_tenant(&self, acts_for: &ActsFor) -> Result<(), SqlError> {
        match self.acts_for == *acts_for {
            true => Ok(()),
            false => Err(SqlError::new("25001", "the transaction belongs to another tenant")
                .with_hint("set the tenant before the transaction's first savepoint")),
        }
    }

    /// From here to its end it is inside of its tenant; it has one only.
    pub(crate) fn admit(&mut self, pass: Option<Pass>) {
        if self.pass.is_none() {
            self.pass = pass;
        }
    }

    /// Notes what it has written of its tenant's rows.
    pub(crate) fn wrote(&mut self, rows: u64, bytes: u64) {
        if let Some(pass) = &mut self.pass {
            pass.wrote(rows, bytes);
        }
    }

    /// Whether it has been on any shard yet: then its modes are fixed.
    pub(crate) fn has_begun(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Whether nothing that its client has been told depends on anything: then its statement may begin again. A statement
    /// that an index has led nowhere has been on no shard, and is answered all the same.
    pub(crate) fn may_begin_again(&self) -> bool {
        let has_told = self.modes.isolation != Isolation::ReadCommitted && !self.relied_on.is_empty();
        !self.has_begun() && !has_told
    }

    /// The shards that it is on.
    pub(super) fn shards(&self) -> impl Iterator<Item = &ShardId> {
        self.parts.keys()
    }

    /// Whether others wait for it at a SQLite shard's writer.
    pub(super) fn holds_writer(&self) -> bool {
        self.parts.values().any(|part| part.turn.is_some())
    }

    pub(crate) fn is_on(&self, shard: &ShardId) -> bool {
        self.parts.contains_key(shard)
    }

    /// What it reads was found by an index. A serializable transaction is told if that is not so any more when it commits.
    pub(crate) fn rely_on(&mut self, still: Option<&Still>) {
        if self.modes.isolation != Isolation::ReadCommitted || self.database.is_sqlite() {
            self.relied_on.extend(still.cloned());
        }
    }

    /// Whether a statement has no snapshot before it runs: on PostgreSQL, at `read committed`. What it was led by is
    /// compared when it has run.
    pub(crate) fn compares_late(&self) -> bool {
        self.modes.isolation == Isolation::ReadCommitted && !self.database.is_sqlite()
    }

    /// Where it is, for whoever chooses shards for its next fragment.
    pub(crate) fn seat(&self) -> Seat {
        let is_postgres = |shard: &ShardId| self.database.shards.engine(shard) == Some(Engine::Postgres);
        let looks_anew = self.modes.isolation == Isolation::ReadCommitted && self.parts.keys().all(is_postgres);
        let writing = self.parts.iter().filter(|(_, part)| part.access == Access::Write);
        Seat {
            on: self.any_shard(),
            keeps_its_moment: self.has_begun() && !looks_anew,
            writes_to: writing.map(|(shard, _)| shard.clone()).collect(),
        }
    }

    /// A shard that it is on.
    pub(crate) fn any_shard(&self) -> Option<ShardId> {
        self.parts.keys().next().cloned()
    }

    /// Whether a read of a shard may be done outside of the transaction: it sees what is committed, and there is
    /// nothing of its own to see.
    pub(crate) fn reads_committed(&self, shard: &ShardId) -> bool {
        self.modes.isolation == Isolation::ReadCommitted
            && !self.parts.contains_key(shard)
            && self.database.shards.engine(shard) == Some(Engine::Sqlite)
    }

    /// Enters shards, so that what is read of all is of one moment. The visits say afterwards what was claimed, and so how
    /// the statement must be written.
    pub(crate) async fn enter(&mut self, visits: &mut [Visit], bounds: &Bounds) -> Result<(), SqlError> {
        let known: BTreeSet<ShardId> = self.parts.keys().cloned().collect();
        loop {
            self.enter_all(visits, bounds).await?;
            let is_new = self.parts.len() > known.len() && self.parts.len() > 1;
            if !is_new || !self.is_of_one_moment() || self.parts.values_mut().all(Part::is_current) {
                return self.check_looks(known.len(), visits);
            }
            if !known.is_empty() {
                return Err(moment_passed("a shard that was read before has changed"));
            }
            let relied_on = std::mem::take(&mut self.relied_on);
            self.start_over().await;
            self.relied_on = relied_on;
            bounds.check(&*self.database.env)?;
            // Whoever commits all the time must not keep a reader out, nor a reader a simulated clock.
            self.database.env.sleep(MOMENT_PAUSE).await;
        }
    }

    /// What indexes have said must be of the snapshots' moment as well: a key may have come to a shard that is entered
    /// only now, and whoever was led nowhere enters none that would compare it (I-24). Several who were led nowhere must be
    /// so at one moment, too.
    fn check_looks(&self, known: usize, visits: &[Visit]) -> Result<(), SqlError> {
        let is_due = self.parts.len() > known || visits.is_empty();
        match is_due && self.is_of_one_moment() && !self.relied_on.iter().all(Still::holds) {
            false => Ok(()),
            true => Err(moment_passed("a key that it has looked for has been added")),
        }
    }

    /// Leaves out shards that an index has not named, although it has snapshots of others from before the look: nothing may
    /// have come from the ones to the others meanwhile, and, if it only reads, what it has read must still be so.
    pub(super) async fn pass_by(&mut self, shards: Vec<ShardId>, bounds: &Bounds) -> Result<(), SqlError> {
        if shards.is_empty() {
            return Ok(());
        }
        let taken = self.database.latches.shared(&shards);
        let _latch = bounds.wait(&*self.database.env, taken).await?;
        for shard in &shards {
            self.check_moment(shard)?;
        }
        // One that writes promises no moment before its commit.
        match !self.is_of_one_moment() || self.parts.values_mut().all(Part::is_current) {
            true => Ok(()),
            false => Err(moment_passed("a shard that was read before has changed")),
        }
    }

    /// Whether it has snapshots, and an index may yet say which other shards a statement needs. What one says is of the
    /// schema that others know.
    pub(super) fn may_look_later(&self) -> bool {
        self.modes.isolation != Isolation::ReadCommitted && self.has_begun() && !self.schema.is_alone()
    }

    /// Whether it only reads, at a level that promises one moment. One that writes makes sure at its end.
    pub(super) fn is_of_one_moment(&self) -> bool {
        let promised = match self.modes.isolation {
            Isolation::ReadCommitted => false,
            Isolation::RepeatableRead => self.modes.read_only,
            Isolation::Serializable => true,
        };
        promised && self.parts.values().all(|part| part.access == Access::Read)
    }

    /// Enters shards, all under one latch, so that no commit over several of them lies between.
    async fn enter_all(&mut self, visits: &mut [Visit], bounds: &Bounds) -> Result<(), SqlError> {
        let writes = visits.iter().any(|visit| visit.access == Access::Write);
        if writes && self.modes.read_only {
            return Err(SqlError::new("25006", "cannot execute this statement in a read-only transaction"));
        }
        // Turns first, and in one order: whoever waits for a writer must hold no latch.
        let mut ordered: Vec<&mut Visit> = visits.iter_mut().collect();
        ordered.sort_by(|a, b| a.shard.cmp(&b.shard));
        let mut turns = BTreeMap::new();
        for visit in &ordered {
            if self.needs_turn(visit) {
                turns.insert(visit.shard.clone(), self.turn(&visit.shard, bounds).await?);
            }
        }
        let latch = match (ordered.len(), self.modes.isolation) {
            (0 | 1, Isolation::ReadCommitted) => None,
            _ => {
                let taken = self.database.latches.shared(ordered.iter().map(|visit| &visit.shard));
                Some(bounds.wait(&*self.database.env, taken).await?)
            }
        };
        for visit in &ordered {
            self.check_moment(&visit.shard)?;
        }
        for visit in ordered {
            let turn = turns.remove(&visit.shard);
            self.enter_one(visit, turn, bounds).await?;
        }
        drop(latch);
        Ok(())
    }

    /// Whether a shard that is new to the transaction still belongs to the moment of its first snapshot.
    fn check_moment(&mut self, shard: &ShardId) -> Result<(), SqlError> {
        if self.modes.isolation == Isolation::ReadCommitted || self.parts.contains_key(shard) {
            return Ok(());
        }
        let latches = &self.database.latches;
        let first = *self.first_moment.get_or_insert_with(|| latches.now());
        match latches.commit_of(shard) > first {
            false => Ok(()),
            true => Err(moment_passed(format!("a transaction over shard {shard} and others has committed meanwhile"))),
        }
    }

    fn needs_turn(&self, visit: &Visit) -> bool {
        visit.access == Access::Write
            && self.database.shards.engine(&visit.shard) == Some(Engine::Sqlite)
            && self.parts.get(&visit.shard).is_none_or(|part| part.turn.is_none())
    }

    async fn turn(&mut self, shard: &ShardId, bounds: &Bounds) -> Result<WriterTurn, SqlError> {
        wait_for_turn(&self.database, Wanted::Writer(shard.clone()), self.number, bounds).await
    }

    async fn enter_one(
        &mut self,
        visit: &mut Visit,
        turn: Option<WriterTurn>,
        bounds: &Bounds,
    ) -> Result<(), SqlError> {
        let upgrade = turn.is_some();
        match self.parts.get_mut(&visit.shard) {
            None => self.begin_part(visit, turn, bounds).await,
            // It came as nobody, before the shard was its tenant's.
            Some(part) if !upgrade && part.acts_for != self.acts_for && claims_tenant(visit) => Err(shard_is_new()),
            Some(part) if !upgrade => claim_more(part, visit, &self.database, bounds).await,
            Some(part) => {
                let since = match self.modes.isolation {
                    Isolation::ReadCommitted => None,
                    _ => part.transaction.state(),
                };
                // Its claims go on: what was read must still be served here.
                let units = part.claimed.iter().chain(&visit.units).cloned().collect();
                self.upgrade_part(&Visit { units, ..visit.clone() }, since, turn, bounds).await
            }
        }
    }

    /// Begins on a shard that is new to the transaction.
    async fn begin_part(
        &mut self,
        visit: &mut Visit,
        turn: Option<WriterTurn>,
        bounds: &Bounds,
    ) -> Result<(), SqlError> {
        let shard = open_shard(&self.database, &visit.shard).await?;
        loop {
            let begin = self.beginning(visit, None, bounds);
            match shard.begin(begin.clone()).await {
                // Each time it claims less, so this ends.
                Err(ShardError::Strangers { group }) if visit.keep_to_own(&self.database, &group) => {}
                begun => {
                    let transaction = begun.map_err(|error| noted(&self.database, &visit.shard, error))?;
                    return self.add_part(&visit.shard, begin, transaction, turn).await;
                }
            }
        }
    }

    /// Begins again as a writer, if nothing that it has read has changed.
    async fn upgrade_part(
        &mut self,
        visit: &Visit,
        since: Option<StateNumber>,
        turn: Option<WriterTurn>,
        bounds: &Bounds,
    ) -> Result<(), SqlError> {
        let begin = self.beginning(visit, since, bounds);
        let begun = open_shard(&self.database, &visit.shard).await?.begin(begin.clone()).await;
        let transaction = begun.map_err(|error| noted(&self.database, &visit.shard, error))?;
        self.add_part(&visit.shard, begin, transaction, turn).await
    }

    fn beginning(&self, visit: &Visit, since: Option<StateNumber>, bounds: &Bounds) -> Begin {
        Begin {
            claim: Claim { version: visit.version, units: visit.units.clone(), still: visit.still.clone() },
            acts_for: self.database.acts_on(&visit.shard, &self.acts_for),
            // A PostgreSQL transaction cannot become a writing one later.
            access: match self.database.shards.engine(&visit.shard) {
                Some(Engine::Postgres) if !self.modes.read_only => Access::Write,
                _ => visit.access,
            },
            isolation: self.modes.isolation,
            limits: bounds.limits(&*self.database.env),
            since,
        }
    }

    /// Adds a part that has begun so. Whom it acts for is not asked again: the shard may have become its tenant's since.
    async fn add_part(
        &mut self,
        shard: &ShardId,
        begin: Begin,
        mut transaction: Box<dyn Transaction>,
        turn: Option<WriterTurn>,
    ) -> Result<(), SqlError> {
        for savepoint in &self.savepoints {
            transaction.savepoint(&savepoint.name).await.map_err(people)?;
        }
        let Begin { claim, acts_for, access, .. } = begin;
        let part = Part { transaction, access, acts_for, version: claim.version, claimed: claim.units, turn };
        self.parts.insert(shard.clone(), part);
        Ok(())
    }

    /// The open transaction on a shard that has been entered.
    pub(crate) fn on(&mut self, shard: &ShardId, bounds: &Bounds) -> Result<&mut Box<dyn Transaction>, SqlError> {
        let limits = bounds.limits(&*self.database.env);
        let part = self.parts.get_mut(shard).ok_or_else(|| SqlError::new("XX000", "a shard was not entered"))?;
        part.transaction.bound(limits);
        Ok(&mut part.transaction)
    }

    /// Runs statements on shards that have been entered, side by side. Answers come in the order of `work`.
    pub(crate) async fn run(
        &mut self,
        work: Vec<(ShardId, Vec<Statement>)>,
        bounds: &Bounds,
    ) -> Result<Vec<Vec<Outcome>>, SqlError> {
        let limits = bounds.limits(&*self.database.env);
        let (database, works) = (&self.database, &self.database.noted(bounds));
        let mut parts: BTreeMap<&ShardId, &mut Part> = self.parts.iter_mut().collect();
        let mut jobs = Vec::new();
        for (shard, statements) in work {
            let part = parts.remove(&shard).ok_or_else(|| SqlError::new("XX000", "a shard was not entered"))?;
            part.transaction.bound(limits.clone());
            jobs.push(async move {
                let sent = Sent::new(&statements, &*database.env);
                let answer = part.transaction.execute_all(statements).await;
                sent.came(&shard, answer.as_deref().ok().map(rows_of), works);
                // A shard that has come to have strangers says so to those who are inside, too.
                answer.map_err(|error| noted(database, &shard, error))
            });
        }
        join_all(jobs).await.into_iter().collect()
    }

    /// Waits until it is alone in the database, for a change of the schema.
    pub(crate) async fn be_alone(&mut self, bounds: &Bounds) -> Result<(), SqlError> {
        if self.schema.is_alone() {
            return Ok(());
        }
        let _waits = self.database.writers.wait_for_all(self.number)?;
        self.database.upgrade_schema(&self.schema, bounds).await
    }

    /// Changes the schema on every shard. It is alone.
    pub(crate) async fn change_schema(&mut self, change: &Change, bounds: &Bounds) -> Result<(), SqlError> {
        let Next { guard, steps } = self.database.next_schema(&self.schema, change).await?;
        let version = guard.routing(&self.database.routing).version();
        let visit = |shard: &ShardId| Visit {
            shard: shard.clone(),
            access: Access::Write,
            version,
            units: Vec::new(),
            still: None,
        };
        let mut visits: Vec<Visit> = steps.iter().map(|(shard, _)| visit(shard)).collect();
        self.enter(&mut visits, bounds).await?;
        let limits = bounds.limits(&*self.database.env);
        let mut parts: BTreeMap<&ShardId, &mut Part> = self.parts.iter_mut().collect();
        let mut jobs = Vec::new();
        for (shard, step) in steps {
            let part = parts.remove(&shard).ok_or_else(|| SqlError::new("XX000", "a shard was not entered"))?;
            part.transaction.bound(limits.clone());
            jobs.push(async move { part.transaction.change_schema(step).await });
        }
        join_all(jobs).await.into_iter().collect::<Result<Vec<()>, _>>().map_err(people)?;
        self.schema = Arc::new(guard);
        Ok(())
    }

    /// At `read committed` the next statement reads what is committed then.
    pub(crate) fn end_statement(&mut self) {
        if self.modes.isolation == Isolation::ReadCommitted {
            let shards = &self.database.shards;
            self.parts
                .retain(|name, part| part.access == Access::Write || shards.engine(name) == Some(Engine::Postgres));
        }
    }

    /// Marks a place to go back to. Returns its name on the shards.
    pub(crate) async fn savepoint(&mut self) -> Result<String, SqlError> {
        if self.savepoints.len() >= MAX_SAVEPOINTS {
            return Err(SqlError::new("54000", format!("a transaction has at most {MAX_SAVEPOINTS} savepoints")));
        }
        self.next_savepoint += 1;
        let name = format!("isles{}", self.next_savepoint);
        for part in self.parts.values_mut() {
            part.transaction.savepoint(&name).await.map_err(people)?;
        }
        self.savepoints.push(Savepoint { name: name.clone(), schema: self.schema.clone() });
        Ok(name)
    }

    /// Goes back to a place; it stays.
    pub(crate) async fn rollback_to(&mut self, name: &str) -> Result<(), SqlError> {
        for part in self.parts.values_mut() {
            part.transaction.rollback_to(name).await.map_err(people)?;
        }
        if let Some(at) = self.savepoints.iter().position(|known| known.name == name) {
            self.savepoints.truncate(at + 1);
            self.schema = self.savepoints[at].schema.clone();
        }
        Ok(())
    }

    pub(crate) async fn release(&mut self, name: &str) -> Result<(), SqlError> {
        for part in self.parts.values_mut() {
            part.transaction.release(name).await.map_err(people)?;
        }
        let at = self.savepoints.iter().position(|known| known.name == name).unwrap_or(0);
        self.savepoints.truncate(at);
        Ok(())
    }

    /// Rolls back all that it has done, and goes on as if it had only begun.
    pub(crate) async fn start_over(&mut self) {
        self.roll_back_parts().await;
        self.first_moment = None;
        self.relied_on.clear();
    }

    pub(crate) async fn rollback(mut self) {
        self.roll_back_parts().await;
    }

    async fn roll_back_parts(&mut self) {
        let ends = std::mem::take(&mut self.parts).into_values().map(|part| async move {
            // Dropping it would do the same; here it is done before the client hears of it.
            let _ = part.transaction.rollback().await;
            drop(part.turn);
        });
        join_all(ends).await;
    }

    /// Commits all parts or none.
    pub(crate) async fn commit(mut self, bounds: &Bounds) -> Result<(), SqlError> {
        let mut writing = Vec::new();
        let mut reading = Vec::new();
        for (shard, mut part) in std::mem::take(&mut self.parts) {
            let wrote = part.access == Access::Write
                && part.transaction.has_written().await.map_err(|error| noted(&self.database, &shard, error))?;
            if wrote { &mut writing } else { &mut reading }.push((shard, part));
        }
        if self.modes.isolation == Isolation::Serializable {
            reading = self.commit_reads(reading).await?;
        }
        // Writers that hold their shards without having changed them guard what was read there.
        let _guards = match (writing.len(), self.modes.isolation) {
            (0, _) => Vec::new(),
            (_, Isolation::Serializable) => self.guard_reads(reading, bounds).await?,
            _ => Vec::new(),
        };
        // All that it writes to is held by now.
        if !writing.is_empty() && !self.relied_on.iter().all(Still::holds) {
            return Err(moment_passed("a key that it has looked for has been added"));
        }
        match (writing.len(), Turnover::of(&self.database, &self.schema)) {
            (0, None) => Ok(()),
            (1, None) => self.commit_one(writing).await,
            (_, turnover) => self.commit_all(writing, turnover).await,
        }
    }

    /// A PostgreSQL server vouches for what a serializable transaction has read when it commits, and not if it is rolled
    /// back. Returns the parts on other shards.
    async fn commit_reads(&mut self, reading: Vec<(ShardId, Part)>) -> Result<Vec<(ShardId, Part)>, SqlError> {
        let mut rest = Vec::new();
        for (shard, part) in reading {
            match self.database.shards.engine(&shard) {
                Some(Engine::Postgres) => {
                    part.transaction.commit().await.map_err(|error| noted(&self.database, &shard, error))?;
                }
                _ => rest.push((shard, part)),
            }
        }
        Ok(rest)
    }

    async fn commit_one(&mut self, writing: Vec<(ShardId, Part)>) -> Result<(), SqlError> {
        for (shard, part) in writing {
            let committed = match self.keys.is_empty() {
                true => part.transaction.commit().await,
                false => self.commit_holding(&shard, part.transaction).await?,
            };
            committed.map_err(|error| noted(&self.database, &shard, error))?;
            drop(part.turn);
            if self.database.shards.engine(&shard) == Some(Engine::Sqlite) {
                self.database.latches.settle(&shard).await;
            }
        }
        Ok(())
    }

    /// Commits a part that has added keys. It comes to its end whatever becomes of the client, and so do the keys.
    async fn commit_holding(
        &mut self,
        shard: &ShardId,
        transaction: Box<dyn Transaction>,
    ) -> Result<Result<(), ShardError>, SqlError> {
        let (reply, answer) = oneshot::channel();
        let keys = self.take_keys();
        let (database, name) = (self.database.clone(), shard.clone());
        self.database.env.spawn(Box::pin(async move {
            let done = transaction.commit().await;
            match &done {
                Err(error) if !error.nothing_happened() => keys.keep_until_settled(&database, name),
                _ => keys.let_go(&database),
            }
            // A client that has gone needs no answer.
            let _ = reply.send(done);
        }));
        let lost = |_| SqlError::new("08007", "the transaction may have happened: whoever committed it has ended");
        answer.await.map_err(lost)
    }

    async fn commit_all(&mut self, writing: Vec<(ShardId, Part)>, turnover: Option<Turnover>) -> Result<(), SqlError> {
        for (shard, part) in &writing {
            self.database.check_redo(shard, &part.claimed)?;
        }
        let participant =
            |(shard, part): (ShardId, Part)| Participant { shard, transaction: part.transaction, turn: part.turn };
        let (parts, keys) = (writing.into_iter().map(participant).collect(), self.take_keys().into_turns());
        self.database.coordinator.commit(parts, turnover, keys).await
    }

    /// Takes the writers of SQLite shards that were only read, unless they have changed since.
    async fn guard_reads(&mut self, reading: Vec<(ShardId, Part)>, bounds: &Bounds) -> Result<Vec<Part>, SqlError> {
        let mut guards = Vec::new();
        for (shard, part) in reading {
            if part.turn.is_some() || self.database.shards.engine(&shard) != Some(Engine::Sqlite) {
                guards.push(part);
                continue;
            }
            let since = part.transaction.state();
            let turn = self.turn(&shard, bounds).await?;
            let limits = bounds.limits(&*self.database.env);
            let claim = Claim::new(part.version, part.claimed.clone());
            let begin = Begin { since, limits, ..Begin::new(claim, Access::Write) };
            let held = open_shard(&self.database, &shard).await?.begin(begin).await;
            let transaction = held.map_err(|error| noted(&self.database, &shard, error))?;
            guards.push(Part { transaction, access: Access::Write, turn: Some(turn), ..part });
        }
        Ok(guards)
    }
}

async fn claim_more(part: &mut Part, visit: &Visit, database: &Arc<Database>, bounds: &Bounds) -> Result<(), SqlError> {
    let new: Vec<Claimed> = visit.units.iter().filter(|unit| !part.claimed.contains(unit)).cloned().collect();
    if new.is_empty() {
        return if visit.still.as_ref().is_none_or(Still::holds) { Ok(()) } else { Err(people(ShardError::Overtaken)) };
    }
    part.transaction.bound(bounds.limits(&*database.env));
    let claim = Claim { still: visit.still.clone(), ..Claim::new(visit.version, new.clone()) };
    part.transaction.claim(claim).await.map_err(|error| noted(database, &visit.shard, error))?;
    part.claimed.extend(new);
    Ok(())
}

/// Waits for a writer or a key for as long as the statement may.
pub(super) async fn wait_for_turn(
    database: &Database,
    wanted: Wanted,
    number: TxnNumber,
    bounds: &Bounds,
) -> Result<WriterTurn, SqlError> {
    let env = &*database.env;
    let (waiting, limited) = bounds.of_lock(env);
    match waiting.wait(env, database.writers.turn(wanted, number)).await {
        Err(error) if limited && !bounds.cancel.is_cancelled() && error.sqlstate == "57014" => {
            Err(SqlError::new("55P03", "canceling statement due to lock timeout"))
        }
        turn => turn?,
    }
}

/// A shard to send something to.
pub(crate) async fn open_shard(database: &Database, shard: &ShardId) -> Result<Arc<dyn Shard>, SqlError> {
    database.shards.get(shard).await.map_err(people)
}

/// The error as a client sees it. A shard that has stopped is opened anew for those who come after, and they know of its
/// strangers.
pub(crate) fn noted(database: &Arc<Database>, shard: &ShardId, error: ShardError) -> SqlError {
    if let ShardError::Strangers { group } = &error {
        database.note_strangers(shard, group);
    }
    if matches!(error, ShardError::Stopped(_) | ShardError::MayHaveHappened(_)) {
        let (database, shard) = (database.clone(), shard.clone());
        let env = database.env.clone();
        env.spawn(Box::pin(async move {
            // If it cannot be opened, the next one who asks tries again.
            let _ = database.shards.reopen(&shard).await;
        }));
    }
    people(error)
}
