//! Who waits for which shard's writer, and for which key.
//!
//! A transaction that writes to a SQLite shard holds its writer to the end. Two that write to two shards in different
//! order would wait for each other for ever. Here everyone asks for a writer before the shard is asked; a ring of
//! waiting transactions is found when it closes, and the one that closed it is refused (40P01), as PostgreSQL does.
//!
//! A key of a unique global index is held in the same way by whoever is about to add it, to the end of its transaction:
//! of two who add one key, the second waits for the first, and then sees its row (I-26). A statement on its own has a
//! number while it holds keys, and is said to wait for the writer of the shard that it goes to.
//!
//! A transaction waits for one writer or key at a time, so the transactions that one waits for, directly and not, form a
//! chain, and a ring is a chain that leads back. One who waits to be alone with the schema waits for all others at once:
//! a chain that leads to it leads back, whoever began it.

use isles_kernel::error::SqlError;
use isles_kernel::names::ShardId;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// A transaction of this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct TxnNumber(pub(crate) u64);

/// What one holds and others wait for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wanted {
    Writer(ShardId),
    /// Of the index with these entries.
    Key(Arc<str>, Vec<u8>),
}

impl fmt::Display for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wanted::Writer(shard) => write!(f, "the writer of shard {shard}"),
            Wanted::Key(..) => f.write_str("a key of a unique index"),
        }
    }
}

#[derive(Default)]
pub(crate) struct Writers {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    turns: BTreeMap<Wanted, Turn>,
    /// What each waiting transaction waits for.
    waits: HashMap<TxnNumber, Wanted>,
    /// Who waits for all others to end.
    for_all: Option<TxnNumber>,
    /// Statements on their own that are at a shard; they wait for its writer and hold none.
    alone: BTreeMap<ShardId, usize>,
}

#[derive(Default)]
struct Turn {
    holder: Option<TxnNumber>,
    /// In the order they came.
    waiting: VecDeque<(TxnNumber, oneshot::Sender<()>)>,
}

impl State {
    /// Whether `holder`, or somebody it waits for, is `me`.
    fn leads_to(&self, holder: TxnNumber, me: TxnNumber) -> bool {
        let mut at = holder;
        // The chain has no ring yet, so it ends; each step is another waiting transaction.
        for _ in 0..=self.waits.len() {
            if at == me || self.for_all == Some(at) {
                return true;
            }
            let next = self.waits.get(&at).and_then(|wanted| self.turns.get(wanted)).and_then(|turn| turn.holder);
            match next {
                Some(next) => at = next,
                None => return false,
            }
        }
        false
    }
}

/// The right to a shard's writer, or to a key.
pub(crate) struct WriterTurn {
    writers: Arc<Writers>,
    wanted: Wanted,
    txn: TxnNumber,
}

/// Says that a statement on its own, which holds keys, waits for a shard's writer, until it is dropped.
pub(crate) struct Waits {
    writers: Arc<Writers>,
    txn: TxnNumber,
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.writers.state().waits.remove(&self.txn);
    }
}

/// A statement on its own at a shard, until it is dropped.
pub(crate) struct AtShard {
    writers: Arc<Writers>,
    shard: ShardId,
}

impl Drop for AtShard {
    fn drop(&mut self) {
        if let Some(count) = self.writers.state().alone.get_mut(&self.shard) {
            *count -= 1;
        }
    }
}

/// Says that a transaction waits for all others, until it is dropped.
pub(crate) struct WaitForAll {
    writers: Arc<Writers>,
}

impl Drop for WaitForAll {
    fn drop(&mut self) {
        self.writers.state().for_all = None;
    }
}

/// A place in the queue; dropping it gives the place up, or the turn that has come meanwhile.
struct Waiting {
    writers: Arc<Writers>,
    wanted: Wanted,
    txn: TxnNumber,
    done: bool,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if !self.done {
            self.writers.leave(&self.wanted, self.txn);
        }
    }
}

impl Drop for WriterTurn {
    fn drop(&mut self) {
        self.writers.leave(&self.wanted, self.txn);
    }
}

fn deadlock(wanted: &Wanted) -> SqlError {
    SqlError::new("40P01", "deadlock detected")
        .with_detail(format!("the transaction waits for {wanted}, whose holder waits for it"))
        .with_hint("retry the transaction")
}

impl Writers {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the turn of `txn` at a writer or a key, which it does not hold yet. The caller bounds the wait.
    pub(crate) async fn turn(self: &Arc<Self>, wanted: Wanted, txn: TxnNumber) -> Result<WriterTurn, SqlError> {
        let turn = || WriterTurn { writers: self.clone(), wanted: wanted.clone(), txn };
        let granted = {
            let mut state = self.state();
            let holder = state.turns.entry(wanted.clone()).or_default().holder;
            match holder {
                None => {
                    state.turns.entry(wanted.clone()).or_default().holder = Some(txn);
                    return Ok(turn());
                }
                Some(holder) if state.leads_to(holder, txn) => return Err(deadlock(&wanted)),
                Some(_) => {
                    let (grant, granted) = oneshot::channel();
                    state.waits.insert(txn, wanted.clone());
                    state.turns.entry(wanted.clone()).or_default().waiting.push_back((txn, grant));
                    granted
                }
            }
        };
        let mut waiting = Waiting { writers: self.clone(), wanted: wanted.clone(), txn, done: false };
        let result = granted.await;
        waiting.done = result.is_ok();
        result.map(|()| turn()).map_err(|_| SqlError::new("57014", "canceling statement due to user request"))
    }

    /// Lets it be known that a statement on its own, which holds keys as `txn`, goes to a shard's writer; refused if the
    /// writer's holder waits for one of the keys.
    pub(crate) fn waits_at(self: &Arc<Self>, shard: &ShardId, txn: TxnNumber) -> Result<Waits, SqlError> {
        let wanted = Wanted::Writer(shard.clone());
        let mut state = self.state();
        if let Some(holder) = state.turns.get(&wanted).and_then(|turn| turn.holder)
            && state.leads_to(holder, txn)
        {
            return Err(deadlock(&wanted));
        }
        state.waits.insert(txn, wanted);
        Ok(Waits { writers: self.clone(), txn })
    }

    /// Lets it be known that `txn` waits for all others; refused if one of them waits for it. Only one waits so at a
    /// time.
    pub(crate) fn wait_for_all(self: &Arc<Self>, txn: TxnNumber) -> Result<WaitForAll, SqlError> {
        let mut state = self.state();
        let waits_for_it = |other: &&TxnNumber| **other != txn && state.leads_to(**other, txn);
        if let Some(wanted) = state.waits.keys().find(waits_for_it).and_then(|other| state.waits.get(other)) {
            return Err(deadlock(wanted));
        }
        let is_asked = |wanted: &Wanted| match wanted {
            Wanted::Writer(shard) => state.alone.get(shard).is_some_and(|count| *count > 0),
            Wanted::Key(..) => false,
        };
        let mut held = state.turns.iter().filter(|(_, turn)| turn.holder == Some(txn)).map(|(wanted, _)| wanted);
        if let Some(wanted) = held.find(|wanted| is_asked(wanted)) {
            return Err(deadlock(wanted));
        }
        state.for_all = Some(txn);
        Ok(WaitForAll { writers: self.clone() })
    }

    /// Lets it be known that a statement on its own goes to a shard's writer; refused if the writer's holder waits for
    /// all others, of which it would be one.
    pub(crate) fn at_shard(self: &Arc<Self>, shard: &ShardId) -> Result<AtShard, SqlError> {
        let mut state = self.state();
        let wanted = Wanted::Writer(shard.clone());
        let holder = state.turns.get(&wanted).and_then(|turn| turn.holder);
        if holder.is_some() && holder == state.for_all {
            return Err(deadlock(&wanted));
        }
        match state.alone.get_mut(shard) {
            Some(count) => *count += 1,
            None => drop(state.alone.insert(shard.clone(), 1)),
        }
        Ok(AtShard { writers: self.clone(), shard: shard.clone() })
    }

    /// Gives up a turn or a place in the queue, and lets the next one in.
    fn leave(&self, wanted: &Wanted, txn: TxnNumber) {
        let mut state = self.state();
        let state = &mut *state;
        if state.waits.get(&txn) == Some(wanted) {
            state.waits.remove(&txn);
        }
        let Some(turn) = state.turns.get_mut(wanted) else { return };
        turn.waiting.retain(|(waiting, _)| *waiting != txn);
        if turn.holder != Some(txn) {
            return;
        }
        turn.holder = None;
        while let Some((next, grant)) = turn.waiting.pop_front() {
            state.waits.remove(&next);
            turn.holder = Some(next);
            if grant.send(()).is_ok() {
                return;
            }
            turn.holder = None;
        }
        // There are few writers, and any number of keys.
        if matches!(wanted, Wanted::Key(..)) {
            state.turns.remove(wanted);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    fn shard(n: usize) -> ShardId {
        ShardId::new(format!("s{n}")).expect("valid")
    }

    fn writer(n: usize) -> Wanted {
        Wanted::Writer(shard(n))
    }

    #[tokio::test]
    async fn a_ring_is_found_by_the_one_who_closes_it() {
        let writers = Arc::new(Writers::default());
        let mut turns = Vec::new();
        for n in 0..3 {
            turns.push(writers.turn(writer(n), TxnNumber(n as u64)).await.expect("free"));
        }
        let (s1, s2) = (shard(1), shard(2));
        let mut first = Box::pin(writers.turn(Wanted::Writer(s1.clone()), TxnNumber(0)));
        let mut second = Box::pin(writers.turn(Wanted::Writer(s2.clone()), TxnNumber(1)));
        assert!(first.as_mut().now_or_never().is_none() && second.as_mut().now_or_never().is_none());
        let error = writers.turn(writer(0), TxnNumber(2)).await.err().expect("a ring");
        assert_eq!(error.sqlstate, "40P01");
        drop(turns.pop());
        assert!(second.now_or_never().is_some_and(|turn| turn.is_ok()), "the next one's turn has come");
    }

    #[tokio::test]
    async fn one_who_waits_for_all_waits_for_whoever_waits_for_it() {
        let writers = Arc::new(Writers::default());
        let _held = writers.turn(writer(0), TxnNumber(1)).await.expect("free");
        {
            let _all = writers.wait_for_all(TxnNumber(1)).expect("nobody waits");
            let error = writers.turn(writer(0), TxnNumber(2)).await.err().expect("a ring");
            assert_eq!(error.sqlstate, "40P01");
        }
        let s0 = shard(0);
        let mut waiting = Box::pin(writers.turn(Wanted::Writer(s0.clone()), TxnNumber(2)));
        assert!(waiting.as_mut().now_or_never().is_none());
        let error = writers.wait_for_all(TxnNumber(1)).err().expect("a ring");
        assert_eq!(error.sqlstate, "40P01");
    }

    #[tokio::test]
    async fn a_statement_on_its_own_is_one_of_all_others() {
        let writers = Arc::new(Writers::default());
        let _held = writers.turn(writer(0), TxnNumber(1)).await.expect("free");
        let elsewhere = writers.at_shard(&shard(1)).expect("its writer is free");
        let there = writers.at_shard(&shard(0)).expect("nobody waits for it");
        assert_eq!(writers.wait_for_all(TxnNumber(1)).err().expect("a ring").sqlstate, "40P01");
        drop(there);
        let _all = writers.wait_for_all(TxnNumber(1)).expect("it has gone");
        assert_eq!(writers.at_shard(&shard(0)).err().expect("a ring").sqlstate, "40P01");
        drop(elsewhere);
    }

    #[tokio::test]
    async fn whoever_gives_up_its_place_is_passed_over() {
        let writers = Arc::new(Writers::default());
        let held = writers.turn(writer(0), TxnNumber(1)).await.expect("free");
        let s0 = shard(0);
        let mut gone = Box::pin(writers.turn(Wanted::Writer(s0.clone()), TxnNumber(2)));
        let mut next = Box::pin(writers.turn(Wanted::Writer(s0.clone()), TxnNumber(3)));
        assert!(gone.as_mut().now_or_never().is_none() && next.as_mut().now_or_never().is_none());
        drop(gone);
        drop(held);
        let turn = next.now_or_never().expect("its turn").expect("granted");
        drop(turn);
        assert!(writers.state().waits.is_empty());
        assert!(writers.turn(writer(0), TxnNumber(4)).now_or_never().is_some());
    }
}
