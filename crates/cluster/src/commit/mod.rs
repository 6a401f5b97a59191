//! Commits over several shards: all or none, after any crash.
//!
//!     pledge on every shard ─► latch ─► decision in the catalog ─► commit on every shard ─► forget
//!        │ one refuses            the commit point, with the redo      │ one fails
//!        ▼                        of the shards that need it           ▼
//!     roll back the others                                    stop it, reopen it, redeem
//!
//! A transaction that wrote to one shard commits there and comes nowhere near this.
//!
//! Before the decision is in the catalog nothing has happened: a crash rolls every pledge back, at once on SQLite and
//! by the recovery on PostgreSQL. Once it is there everything has happened: a shard that a crash kept from committing
//! gets the redo (SQLite) or the word (PostgreSQL) before it serves anyone. [`decision`] says how it is kept.
//!
//! A transaction that has changed the schema commits this way too, however many shards there are: the decision and the
//! new schema are one commit of the catalog. Nobody else comes in before all its shards have it.
//!
//! What has begun is carried to its end by a task of its own. A client that goes away takes its own future with it,
//! and with it the only one who knows what was pledged.
//!
//! In reading order:
//!   * [`decision`]  what the catalog keeps of a commit, and how it is carried out after a crash
//!   * [`latch`]     a reader of several shards sees all of a commit or nothing
//!   * [`writers`]   who waits for which shard's writer, and rings of them
//!
//! Invariants (docs/invariants.md):
//!   * I-4   a client is told of a commit after all its shards show it
//!   * I-6   recovery can be repeated, and interrupted, at any point
//!   * I-20  a transaction over several shards happens on all of them or on none

pub(crate) mod decision;
pub(crate) mod latch;
#[cfg(test)]
mod sweep;
pub(crate) mod writers;

use crate::catalog::{self, Catalog};
use crate::database::schema::Turnover;
use crate::database::shards::ShardSet;
use decision::{Decided, Decision};
use futures::future::join_all;
use isles_engine::env::Env;
use isles_engine::error::ShardError;
use isles_engine::shard::{Engine, Pledge, Transaction};
use isles_kernel::error::SqlError;
use isles_kernel::names::{PledgeId, ShardId};
use latch::Latches;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;
use writers::WriterTurn;

/// Shards of one transaction: each holds a pledge, and the catalog's record names them all.
pub(crate) const MAX_PARTICIPANTS: usize = 1_000;
/// Between two attempts to carry out what is decided. A shard that is down stays down for seconds.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// How long a client waits for a shard that cannot carry out what is decided, before it is told so.
const CARRY_OUT_LIMIT: Duration = Duration::from_secs(10);

/// Bugs that a coordinator can be told to have. A harness that does not find them proves nothing (I-69).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// The first shard commits before the decision is recorded.
    CommitBeforeDecision,
    /// The decision is forgotten before the shards have committed.
    ForgetBeforeCommit,
    /// Shards commit without the latch, and readers of several see a half of it.
    SkipLatch,
    /// The client is answered before there is a decision.
    AnswerBeforeDecision,
    /// Not a bug but a death: the coordinator goes no further than its pledges.
    DieAfterPledge,
    /// The coordinator goes no further than its decision.
    DieAfterDecision,
}

/// A shard's part of a transaction.
pub(crate) struct Participant {
    pub(crate) shard: ShardId,
    pub(crate) transaction: Box<dyn Transaction>,
    /// Its turn at the shard's writer, which passes on when it has ended.
    pub(crate) turn: Option<WriterTurn>,
}

/// A shard's part of a transaction that can commit.
struct Pledged {
    shard: ShardId,
    pledge: Box<dyn Pledge>,
    _turn: Option<WriterTurn>,
}

/// Commits transactions over several shards.
pub(crate) struct Coordinator {
    catalog: Arc<dyn Catalog>,
    shards: Arc<ShardSet>,
    env: Arc<dyn Env>,
    latches: Arc<Latches>,
    /// All names of this database's pledges begin with it, and no other database's do.
    prefix: String,
    /// Pledges of transactions that are running: nobody else may take them back.
    running: Mutex<BTreeSet<PledgeId>>,
    /// Markers that shards still keep although their decisions are gone.
    forgettable: Mutex<BTreeMap<ShardId, Vec<PledgeId>>>,
    /// Shards that have lost their part of a decided transaction: nothing over several shards is committed there.
    broken: Mutex<BTreeSet<ShardId>>,
    planted: Option<Planted>,
}

/// How the decision went.
enum Verdict {
    Recorded,
    /// It is certain that there is none.
    Refused(SqlError),
    /// The catalog's answer was lost.
    Unknown(SqlError),
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the pledges of a database are called: by its own random number.
pub(crate) fn pledge_prefix(database: u64) -> String {
    format!("isles-{database:016x}-")
}

impl Coordinator {
    pub(crate) fn new(
        catalog: Arc<dyn Catalog>,
        shards: Arc<ShardSet>,
        env: Arc<dyn Env>,
        latches: Arc<Latches>,
        prefix: String,
        planted: Option<Planted>,
    ) -> Coordinator {
        Coordinator {
            catalog,
            shards,
            env,
            latches,
            prefix,
            running: Mutex::default(),
            forgettable: Mutex::default(),
            broken: Mutex::default(),
            planted,
        }
    }

    /// Commits all parts or none. The answer comes when every shard shows it; the keys that it adds are held as long.
    pub(crate) async fn commit(
        self: &Arc<Self>,
        parts: Vec<Participant>,
        turnover: Option<Turnover>,
        keys: Vec<WriterTurn>,
    ) -> Result<(), SqlError> {
        if parts.len() > MAX_PARTICIPANTS {
            let message = format!("a transaction writes to at most {MAX_PARTICIPANTS} shards");
            return Err(SqlError::new("54000", message));
        }
        if let Some(part) = parts.iter().find(|part| lock(&self.broken).contains(&part.shard)) {
            return Err(lost_part(&part.shard));
        }
        let (reply, answer) = oneshot::channel();
        let coordinator = self.clone();
        self.env.spawn(Box::pin(async move { coordinator.run(parts, turnover, keys, reply).await }));
        let lost = |_| SqlError::new("08007", "the transaction may have happened: its coordinator has ended");
        answer.await.map_err(lost)?
    }

    async fn run(
        self: Arc<Self>,
        parts: Vec<Participant>,
        mut turnover: Option<Turnover>,
        keys: Vec<WriterTurn>,
        reply: oneshot::Sender<Result<(), SqlError>>,
    ) {
        let id = self.new_id();
        lock(&self.running).insert(id.clone());
        let (mut reply, mut keys) = (Some(reply), Some(keys));
        if self.planted == Some(Planted::AnswerBeforeDecision) {
            let _ = reply.take().map(|reply| reply.send(Ok(())));
        }
        let answer = |result| {
            // A client that has gone needs no answer.
            let _ = reply.map(|reply| reply.send(result));
        };
        let result = self.drive(&id, parts, turnover.as_ref()).await;
        let decided = match result {
            Ok(decided) => {
                // All shards have the schema: others may come in.
                turnover.take();
                keys.take();
                answer(Ok(()));
                Some(decided)
            }
            Err(Stopped { error, decided, in_doubt }) => {
                if in_doubt {
                    // It may yet happen, when somebody opens the database again. Until then nobody adds its keys.
                    std::mem::forget(keys.take());
                }
                answer(Err(error));
                decided
            }
        };
        if let Some(decided) = decided {
            self.finish(&id, decided).await;
        }
        drop((turnover, keys));
        lock(&self.running).remove(&id);
    }

    fn new_id(&self) -> PledgeId {
        let name = format!("{}{:016x}{:016x}", self.prefix, self.env.random(), self.env.random());
        PledgeId::new(name).expect("a prefix and 32 digits are a short plain name")
    }

    async fn drive(
        &self,
        id: &PledgeId,
        parts: Vec<Participant>,
        turnover: Option<&Turnover>,
    ) -> Result<Decided, Stopped> {
        let mut pledged = self.pledge_all(id, parts).await?;
        let names: Vec<ShardId> = pledged.iter().map(|part| part.shard.clone()).collect();
        let is_latched = self.planted != Some(Planted::SkipLatch);
        let latch = if is_latched { Some(self.latches.exclusive(&names).await) } else { None };
        if self.planted == Some(Planted::CommitBeforeDecision)
            && let Some(first) = pledged.pop()
        {
            let _ = first.pledge.commit().await;
        }
        if self.planted == Some(Planted::DieAfterPledge) {
            return Err(died());
        }
        let decision = decision_of(&pledged);
        let redo: Vec<u8> = pledged.iter().filter_map(|part| part.pledge.redo()).flatten().copied().collect();
        match self.decide(id, &decision, &redo, turnover).await {
            Verdict::Recorded => {}
            Verdict::Refused(error) => {
                roll_back(pledged).await;
                return Err(Stopped::undone(error));
            }
            // Neither the one nor the other may be done now. Dropping the pledges stops the shards that would forget
            // them; whoever opens the catalog again knows.
            Verdict::Unknown(error) => return Err(Stopped::in_doubt(error)),
        }
        if self.planted == Some(Planted::DieAfterDecision) {
            return Err(died());
        }
        if self.planted == Some(Planted::ForgetBeforeCommit) {
            let _ = decision::forget(&*self.catalog, id, decision.chunks).await;
        }
        let late = self.commit_all(pledged).await;
        if is_latched {
            self.latches.count(&names);
        }
        drop(latch);
        let decided = Decided { decision, late };
        match decided.late.is_empty() {
            true => Ok(decided),
            false => self.wait_for_late(id, decided).await,
        }
    }

    /// Records the decision, and with it what else is decided.
    async fn decide(&self, id: &PledgeId, decision: &Decision, redo: &[u8], turnover: Option<&Turnover>) -> Verdict {
        let with = match turnover.map_or_else(|| Ok(catalog::Transaction::new()), Turnover::writes) {
            Ok(with) => with,
            Err(error) => return Verdict::Refused(error),
        };
        let verdict = decision::record(&*self.catalog, &*self.env, id, decision, redo, with).await;
        match (&verdict, turnover) {
            (Verdict::Recorded, Some(turnover)) => turnover.publish(),
            (Verdict::Unknown(_), Some(turnover)) => turnover.leave_in_doubt(),
            _ => {}
        }
        verdict
    }

    /// Every shard promises, or none does.
    async fn pledge_all(&self, id: &PledgeId, parts: Vec<Participant>) -> Result<Vec<Pledged>, Stopped> {
        let forgettable: Vec<Vec<PledgeId>> = {
            let mut known = lock(&self.forgettable);
            parts.iter().map(|part| known.remove(&part.shard).unwrap_or_default()).collect()
        };
        let shards: Vec<ShardId> = parts.iter().map(|part| part.shard.clone()).collect();
        let each = parts.into_iter().zip(forgettable.clone()).map(|(part, forget)| async move {
            let pledge = part.transaction.pledge(id, forget).await?;
            Ok(Pledged { shard: part.shard, pledge, _turn: part.turn })
        });
        let results: Vec<Result<Pledged, ShardError>> = join_all(each).await;
        let refusal = results.iter().find_map(|result| result.as_ref().err().cloned());
        match refusal {
            None => Ok(results.into_iter().flatten().collect()),
            Some(error) => {
                self.still_forgettable(&shards, forgettable);
                roll_back(results.into_iter().flatten().collect()).await;
                self.revoke_lost(id, &shards).await;
                Err(Stopped::undone(pledge_error(&error)))
            }
        }
    }

    /// Their transaction did not happen, and so they were not forgotten.
    fn still_forgettable(&self, shards: &[ShardId], pledges: Vec<Vec<PledgeId>>) {
        let mut known = lock(&self.forgettable);
        for (shard, forget) in shards.iter().zip(pledges) {
            known.entry(shard.clone()).or_default().extend(forget);
        }
    }

    /// A server that was lost while it prepared may have done so.
    async fn revoke_lost(&self, id: &PledgeId, shards: &[ShardId]) {
        for shard in shards.iter().filter(|shard| self.shards.engine(shard) == Some(Engine::Postgres)) {
            if let Ok(shard) = self.shards.get(shard).await {
                // If it cannot be reached, the recovery takes the pledge back: there is no decision for it.
                let _ = shard.revoke(id).await;
            }
        }
    }

    /// Every shard keeps its promise. Returns those that could not.
    async fn commit_all(&self, pledged: Vec<Pledged>) -> Vec<ShardId> {
        let each = pledged.into_iter().map(|part| async move {
            let done = part.pledge.commit().await;
            (part.shard, done)
        });
        join_all(each).await.into_iter().filter(|(_, done)| done.is_err()).map(|(shard, _)| shard).collect()
    }

    /// Carries the decision out on shards that could not do so by themselves, for as long as a client waits.
    async fn wait_for_late(&self, id: &PledgeId, mut decided: Decided) -> Result<Decided, Stopped> {
        let deadline = self.env.elapsed() + CARRY_OUT_LIMIT;
        while !decided.late.is_empty() {
            if let Some(shard) = self.redeem_late(id, &mut decided).await {
                // The record of the decision stays, for whoever repairs it.
                lock(&self.broken).insert(shard.clone());
                return Err(Stopped::in_doubt(lost_part(&shard)));
            }
            if decided.late.is_empty() || self.env.elapsed() >= deadline {
                break;
            }
            self.env.sleep(RETRY_INTERVAL).await;
        }
        if decided.late.is_empty() {
            return Ok(decided);
        }
        let message = format!("the transaction is committed, but shard {} cannot show it yet", decided.late[0]);
        let error = SqlError::new("08007", message).with_hint("it will, once the shard can be reached again");
        Err(Stopped { error, decided: Some(decided), in_doubt: false })
    }

    /// Opening a shard anew redeems what is decided for it; a server is given the word. Returns a shard that can never
    /// do so.
    async fn redeem_late(&self, id: &PledgeId, decided: &mut Decided) -> Option<ShardId> {
        let (mut still_late, mut lost) = (Vec::new(), None);
        for shard in std::mem::take(&mut decided.late) {
            let done = match self.shards.engine(&shard) {
                Some(Engine::Sqlite) => self.shards.reopen(&shard).await.map(drop).map_err(|error| error.for_people()),
                _ => self.give_word(id, &decided.decision, &shard).await,
            };
            if let Err(error) = done {
                lost = lost.or((error.sqlstate == "XX001").then(|| shard.clone()));
                still_late.push(shard);
            }
        }
        decided.late = still_late;
        lost
    }

    async fn give_word(&self, id: &PledgeId, decision: &Decision, shard: &ShardId) -> Result<(), SqlError> {
        let open = self.shards.get(shard).await.map_err(|error| error.for_people())?;
        match decision.participants.iter().find(|part| part.shard == *shard) {
            Some(part) => decision::redeem(&*self.catalog, &*open, id, part).await,
            None => Ok(()),
        }
    }

    /// Ends a commit that nobody waits for any more.
    async fn finish(&self, id: &PledgeId, mut decided: Decided) {
        while !decided.late.is_empty() && !self.shards.is_closed() {
            self.env.sleep(RETRY_INTERVAL).await;
            if let Some(shard) = self.redeem_late(id, &mut decided).await {
                lock(&self.broken).insert(shard);
                return;
            }
        }
        if !decided.late.is_empty() {
            return;
        }
        // If the catalog cannot be told, the record stays, and the next recovery finds that all is done.
        if decision::forget(&*self.catalog, id, decided.decision.chunks).await.is_ok() {
            let mut known = lock(&self.forgettable);
            for part in decided.decision.participants.iter().filter(|part| part.redo.is_some()) {
                known.entry(part.shard.clone()).or_default().push(id.clone());
            }
        }
    }

    /// Whether a commit is on its way, or its record not yet removed.
    pub(crate) fn is_busy(&self) -> bool {
        !lock(&self.running).is_empty()
    }

    /// Takes back pledges that nobody has decided on and nobody is about to. Returns how many decisions wait for their
    /// shards.
    pub(crate) async fn sweep(&self) -> Result<usize, SqlError> {
        decision::recover(&*self.catalog, &self.shards, &self.prefix, || lock(&self.running).clone()).await
    }
}

/// Why a commit went no further, and what is left to do if it was decided.
struct Stopped {
    error: SqlError,
    decided: Option<Decided>,
    /// Nobody here can find out whether it has happened, or make it happen.
    in_doubt: bool,
}

impl Stopped {
    fn undone(error: SqlError) -> Stopped {
        Stopped { error, decided: None, in_doubt: false }
    }

    fn in_doubt(error: SqlError) -> Stopped {
        Stopped { error, decided: None, in_doubt: true }
    }
}

fn lost_part(shard: &ShardId) -> SqlError {
    let message = format!("shard {shard} has lost its part of a transaction that is committed on others");
    SqlError::new("XX001", message).with_hint("somebody has rolled back a prepared transaction of Isles on its server")
}

fn died() -> Stopped {
    Stopped::in_doubt(SqlError::new("08007", "the coordinator was told to die"))
}

async fn roll_back(pledged: Vec<Pledged>) {
    for part in pledged {
        // A pledge that cannot be taken back stops its shard, or is taken back by the recovery.
        let _ = part.pledge.rollback().await;
    }
}

fn pledge_error(error: &ShardError) -> SqlError {
    let people = error.for_people();
    match error {
        ShardError::Limit { .. } => people.with_hint("write less in one transaction, or keep it to one shard"),
        _ => people,
    }
}

fn decision_of(pledged: &[Pledged]) -> Decision {
    Decision::new(pledged.iter().map(|part| (part.shard.clone(), part.pledge.redo().map(<[u8]>::len))))
}
