//! Advisory locks: numbers that applications lock, as PostgreSQL has them.
//!
//!     free ─lock─► held ─unlock, end of the transaction or session─► given to those who wait, in their order
//!
//! One process has the database open, so a table in memory knows all of them, and they end with it, as a PostgreSQL
//! server's do. What a session holds never stands in its own way. A lock of a session is counted and unlocked as often
//! as it was locked; one of a transaction ends with it, or with the savepoint that it came after.
//!
//! A role that is locked to a tenant locks numbers of that tenant's own: it cannot hold up anyone else.
//!
//! Invariants (docs/invariants.md):
//!   * I-45  a session holds at most [`MAX_LOCKS`] of them
//!   * I-66  a wait that would close a cycle is refused at once (40P01); any other ends with its statement's time

use isles_kernel::error::SqlError;
use isles_kernel::names::TenantId;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// Numbers that a session holds at once: a batch job locks one for each thing that it works on.
pub(crate) const MAX_LOCKS: usize = 1_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Shared,
    Exclusive,
}

impl Mode {
    fn conflicts(self, other: Mode) -> bool {
        self == Mode::Exclusive || other == Mode::Exclusive
    }

    /// As PostgreSQL names it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Shared => "ShareLock",
            Mode::Exclusive => "ExclusiveLock",
        }
    }
}

/// What ends a lock that nobody unlocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lifetime {
    Session,
    Transaction,
}

/// Whose numbers: everyone's, or those of a tenant whose roles are locked to it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Space {
    Everyone,
    Tenant(Option<TenantId>),
}

/// A number of 64 bits, or two of 32, which are other ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Number {
    One(i64),
    Two(i64, i64),
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Key {
    pub(crate) space: Space,
    pub(crate) number: Number,
}

/// One of a database's sessions.
type HolderId = u64;

/// The advisory locks of a database.
#[derive(Default)]
pub(crate) struct AdvisoryLocks {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    locks: HashMap<Key, Lock>,
    holders: HashMap<HolderId, Holds>,
    last: HolderId,
}

/// One that somebody holds or waits for.
#[derive(Default)]
struct Lock {
    held: BTreeMap<HolderId, Held>,
    waiting: VecDeque<Waiter>,
}

/// How one session has it.
#[derive(Default)]
struct Held {
    /// How often the session has locked it, in each mode.
    session: [u64; 2],
    /// Whether its transaction has.
    transaction: [bool; 2],
}

impl Held {
    fn has(&self, mode: Mode) -> bool {
        self.session[mode as usize] > 0 || self.transaction[mode as usize]
    }

    fn conflicts(&self, mode: Mode) -> bool {
        [Mode::Shared, Mode::Exclusive].into_iter().any(|held| self.has(held) && held.conflicts(mode))
    }

    fn is_nothing(&self) -> bool {
        !self.has(Mode::Shared) && !self.has(Mode::Exclusive)
    }
}

struct Waiter {
    holder: HolderId,
    mode: Mode,
    lifetime: Lifetime,
    given: oneshot::Sender<()>,
}

/// What one session holds and waits for.
#[derive(Default)]
struct Holds {
    keys: HashSet<Key>,
    /// What its transaction has locked, in order.
    transaction: Vec<(Key, Mode)>,
    waits_for: Option<Key>,
}

impl Lock {
    /// Where one who comes now stands: before those who wait for it already.
    fn place(&self, holder: HolderId) -> usize {
        let own = self.held.get(&holder);
        let waits_for_it = |waiter: &Waiter| own.is_some_and(|own| own.conflicts(waiter.mode));
        self.waiting.iter().position(waits_for_it).unwrap_or(self.waiting.len())
    }

    /// Whom one must wait for who stands at a place of the queue.
    fn in_the_way(&self, holder: HolderId, mode: Mode, place: usize) -> Vec<HolderId> {
        let held = self.held.iter().filter(|(other, held)| **other != holder && held.conflicts(mode));
        let before = self.waiting.iter().take(place).filter(|waiter| waiter.mode.conflicts(mode));
        held.map(|(other, _)| *other).chain(before.map(|waiter| waiter.holder)).collect()
    }
}

impl Table {
    fn in_the_way(&self, holder: HolderId, key: &Key, mode: Mode) -> Vec<HolderId> {
        let Some(lock) = self.locks.get(key) else { return Vec::new() };
        // Whoever has it has it, whoever waits.
        if lock.held.get(&holder).is_some_and(|own| own.has(mode)) {
            return Vec::new();
        }
        lock.in_the_way(holder, mode, lock.place(holder))
    }

    fn give(&mut self, holder: HolderId, key: &Key, mode: Mode, lifetime: Lifetime) {
        let held = self.locks.entry(key.clone()).or_default().held.entry(holder).or_default();
        let holds = self.holders.entry(holder).or_default();
        match lifetime {
            Lifetime::Session => held.session[mode as usize] += 1,
            Lifetime::Transaction => {
                if !std::mem::replace(&mut held.transaction[mode as usize], true) {
                    holds.transaction.push((key.clone(), mode));
                }
            }
        }
        holds.keys.insert(key.clone());
    }

    fn check_room(&self, holder: HolderId, key: &Key) -> Result<(), SqlError> {
        match self.holders.get(&holder) {
            Some(holds) if holds.keys.len() >= MAX_LOCKS && !holds.keys.contains(key) => {
                let error = SqlError::new("54000", format!("a session holds at most {MAX_LOCKS} advisory locks"));
                Err(error.with_hint("unlock those that are not needed any more"))
            }
            _ => Ok(()),
        }
    }

    /// Whether one of these waits, directly or by others, for this holder.
    fn closes_cycle(&self, holder: HolderId, mut next: Vec<HolderId>) -> bool {
        let mut seen = HashSet::new();
        while let Some(other) = next.pop() {
            if other == holder {
                return true;
            }
            if seen.insert(other) {
                next.extend(self.awaited_by(other));
            }
        }
        false
    }

    fn awaited_by(&self, holder: HolderId) -> Vec<HolderId> {
        let awaited = self.holders.get(&holder).and_then(|holds| self.locks.get(holds.waits_for.as_ref()?));
        let place = awaited.and_then(|lock| lock.waiting.iter().position(|waiter| waiter.holder == holder));
        match (awaited, place) {
            (Some(lock), Some(place)) => lock.in_the_way(holder, lock.waiting[place].mode, place),
            _ => Vec::new(),
        }
    }

    /// Takes a lock from its holder, if nothing keeps it there, and gives what is free to those who wait.
    fn settle(&mut self, holder: HolderId, key: &Key) {
        let Some(lock) = self.locks.get_mut(key) else { return };
        if lock.held.get(&holder).is_some_and(Held::is_nothing) {
            lock.held.remove(&holder);
            if let Some(holds) = self.holders.get_mut(&holder) {
                holds.keys.remove(key);
            }
        }
        self.give_to_waiting(key);
        if self.locks.get(key).is_some_and(|lock| lock.held.is_empty() && lock.waiting.is_empty()) {
            self.locks.remove(key);
        }
    }

    fn give_to_waiting(&mut self, key: &Key) {
        let mut place = 0;
        while let Some(lock) = self.locks.get_mut(key) {
            let Some(waiter) = lock.waiting.get(place) else { return };
            if !lock.in_the_way(waiter.holder, waiter.mode, place).is_empty() {
                place += 1;
                continue;
            }
            let Some(waiter) = lock.waiting.remove(place) else { return };
            self.give(waiter.holder, key, waiter.mode, waiter.lifetime);
            if let Some(holds) = self.holders.get_mut(&waiter.holder) {
                holds.waits_for = None;
            }
            // One who has gone meanwhile gives it back by itself.
            let _ = waiter.given.send(());
        }
    }

    /// Takes back one locking of a key.
    fn take(&mut self, holder: HolderId, key: &Key, mode: Mode, lifetime: Lifetime) -> bool {
        let Some(held) = self.locks.get_mut(key).and_then(|lock| lock.held.get_mut(&holder)) else { return false };
        match lifetime {
            Lifetime::Session if held.session[mode as usize] == 0 => return false,
            Lifetime::Session => held.session[mode as usize] -= 1,
            Lifetime::Transaction => held.transaction[mode as usize] = false,
        }
        self.settle(holder, key);
        true
    }

    fn rewind(&mut self, holder: HolderId, mark: usize) {
        let Some(holds) = self.holders.get_mut(&holder).filter(|holds| holds.transaction.len() > mark) else { return };
        for (key, mode) in holds.transaction.split_off(mark) {
            self.take(holder, &key, mode, Lifetime::Transaction);
        }
    }

    fn forget_session(&mut self, holder: HolderId) {
        let keys = self.holders.get(&holder).map(|holds| holds.keys.clone()).unwrap_or_default();
        for key in keys {
            if let Some(held) = self.locks.get_mut(&key).and_then(|lock| lock.held.get_mut(&holder)) {
                held.session = [0, 0];
            }
            self.settle(holder, &key);
        }
    }
}

impl AdvisoryLocks {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One session's part in them.
    pub(crate) fn holder(self: &Arc<Self>) -> Holder {
        let mut table = self.table();
        table.last += 1;
        Holder { locks: self.clone(), id: table.last }
    }
}

/// What a session locks with. When it is dropped, nothing of the session is held.
pub(crate) struct Holder {
    locks: Arc<AdvisoryLocks>,
    id: HolderId,
}

impl Holder {
    /// Locks a key, if nobody is in the way.
    pub(crate) fn try_lock(&self, key: &Key, mode: Mode, lifetime: Lifetime) -> Result<bool, SqlError> {
        let mut table = self.locks.table();
        let awaited = table.locks.get(key).is_some_and(|lock| {
            let has = lock.held.get(&self.id).is_some_and(|own| own.has(mode));
            !has && lock.waiting.iter().any(|waiter| waiter.mode.conflicts(mode))
        });
        if awaited || !table.in_the_way(self.id, key, mode).is_empty() {
            return Ok(false);
        }
        table.check_room(self.id, key)?;
        table.give(self.id, key, mode, lifetime);
        Ok(true)
    }

    /// Locks a key, or says what to wait for.
    pub(crate) fn lock(&self, key: &Key, mode: Mode, lifetime: Lifetime) -> Result<Option<Wait<'_>>, SqlError> {
        let mut table = self.locks.table();
        table.check_room(self.id, key)?;
        let others = table.in_the_way(self.id, key, mode);
        if others.is_empty() {
            table.give(self.id, key, mode, lifetime);
            return Ok(None);
        }
        if table.closes_cycle(self.id, others) {
            let detail = "The sessions that hold this advisory lock wait for one that this session holds.";
            return Err(SqlError::new("40P01", "deadlock detected").with_detail(detail));
        }
        let (given, receiver) = oneshot::channel();
        let lock = table.locks.entry(key.clone()).or_default();
        let place = lock.place(self.id);
        lock.waiting.insert(place, Waiter { holder: self.id, mode, lifetime, given });
        table.holders.entry(self.id).or_default().waits_for = Some(key.clone());
        let wanted = Some((key.clone(), mode, lifetime));
        Ok(Some(Wait { holder: self, wanted, receiver }))
    }

    /// Unlocks what the session has locked once more often; false if it has not.
    pub(crate) fn unlock(&self, key: &Key, mode: Mode) -> bool {
        self.locks.table().take(self.id, key, mode, Lifetime::Session)
    }

    /// Unlocks all that the session has locked, and nothing that its transaction has.
    pub(crate) fn unlock_all(&self) {
        self.locks.table().forget_session(self.id);
    }

    /// How many its transaction has locked.
    pub(crate) fn mark(&self) -> usize {
        self.locks.table().holders.get(&self.id).map_or(0, |holds| holds.transaction.len())
    }

    /// Unlocks what the transaction has locked since a mark.
    pub(crate) fn rewind(&self, mark: usize) {
        self.locks.table().rewind(self.id, mark);
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let mut table = self.locks.table();
        table.rewind(self.id, 0);
        table.forget_session(self.id);
        table.holders.remove(&self.id);
    }
}

/// A place in the queue of a lock. Whoever drops it before its turn leaves the queue.
pub(crate) struct Wait<'a> {
    holder: &'a Holder,
    /// None once it has been given.
    wanted: Option<(Key, Mode, Lifetime)>,
    receiver: oneshot::Receiver<()>,
}

impl Wait<'_> {
    /// Resolves when the lock has been given.
    pub(crate) async fn given(mut self) {
        // The sender is in the table for as long as this is.
        let _ = (&mut self.receiver).await;
        self.wanted = None;
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        let Some((key, mode, lifetime)) = self.wanted.take() else { return };
        let mut table = self.holder.locks.table();
        let id = self.holder.id;
        let is_waiting = table.holders.get_mut(&id).is_some_and(|holds| holds.waits_for.take().is_some());
        if !is_waiting {
            // It was given at the last moment. A transaction has locked nothing after it.
            if lifetime == Lifetime::Transaction
                && let Some(holds) = table.holders.get_mut(&id)
            {
                holds.transaction.pop();
            }
            table.take(id, &key, mode, lifetime);
            return;
        }
        if let Some(lock) = table.locks.get_mut(&key) {
            lock.waiting.retain(|waiter| waiter.holder != id);
        }
        table.settle(id, &key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Lifetime::{Session, Transaction};
    use Mode::{Exclusive, Shared};

    fn key(number: i64) -> Key {
        Key { space: Space::Everyone, number: Number::One(number) }
    }

    fn holders<const N: usize>() -> (Arc<AdvisoryLocks>, [Holder; N]) {
        let locks = Arc::new(AdvisoryLocks::default());
        let holders = [(); N].map(|()| locks.holder());
        (locks, holders)
    }

    fn tries(holder: &Holder, mode: Mode) -> bool {
        holder.try_lock(&key(1), mode, Session).expect("there is room")
    }

    fn waits<'a>(holder: &'a Holder, number: i64, mode: Mode) -> Wait<'a> {
        holder.lock(&key(number), mode, Session).expect("no cycle").expect("somebody is in the way")
    }

    fn locks(holder: &Holder, number: i64, mode: Mode) {
        assert!(holder.lock(&key(number), mode, Session).expect("no cycle").is_none(), "nobody is in the way");
    }

    #[test]
    fn a_session_unlocks_as_often_as_it_has_locked() {
        let (locks, [a, b]) = holders();
        assert!(tries(&a, Exclusive) && tries(&a, Exclusive) && tries(&a, Shared));
        assert!(!tries(&b, Shared));
        assert!(a.unlock(&key(1), Exclusive) && a.unlock(&key(1), Exclusive));
        assert!(!a.unlock(&key(1), Exclusive), "it is not held in this mode any more");
        assert!(tries(&b, Shared) && !tries(&b, Exclusive));
        a.unlock_all();
        assert!(tries(&b, Exclusive));
        drop(b);
        assert!(tries(&a, Exclusive));
        drop(a);
        assert!(locks.table().locks.is_empty() && locks.table().holders.is_empty(), "nothing is left behind");
    }

    #[test]
    fn what_a_transaction_has_locked_ends_with_it_or_with_its_savepoint() {
        let (_locks, [a, b]) = holders();
        let transacts = |number: i64| a.try_lock(&key(number), Exclusive, Transaction) == Ok(true);
        assert!(transacts(1));
        let savepoint = a.mark();
        assert!(transacts(1) && transacts(2));
        assert!(a.try_lock(&key(2), Exclusive, Session) == Ok(true));
        a.rewind(savepoint);
        assert!(!tries(&b, Shared), "the first one came before the savepoint");
        assert_eq!(b.try_lock(&key(2), Shared, Session), Ok(false), "the session has locked it, too");
        a.unlock_all();
        assert_eq!(b.try_lock(&key(2), Shared, Session), Ok(true));
        assert!(!a.unlock(&key(1), Exclusive), "a transaction's lock cannot be unlocked");
        a.rewind(0);
        assert!(tries(&b, Exclusive));
    }

    #[test]
    fn spaces_and_forms_of_numbers_are_apart() {
        let (_locks, [a, b]) = holders();
        let tenant = |name: &str| Space::Tenant(Some(TenantId::new(name).expect("a name")));
        let keys = [
            key(1),
            Key { space: tenant("acme"), number: Number::One(1) },
            Key { space: tenant("zeta"), number: Number::One(1) },
            Key { space: Space::Tenant(None), number: Number::One(1) },
            Key { space: Space::Everyone, number: Number::Two(0, 1) },
        ];
        for (at, key) in keys.iter().enumerate() {
            let holder = if at % 2 == 0 { &a } else { &b };
            assert_eq!(holder.try_lock(key, Exclusive, Session), Ok(true), "{key:?}");
        }
    }

    #[tokio::test]
    async fn who_waits_is_served_in_order_and_nobody_overtakes() {
        let (_locks, [a, b, c, d]) = holders();
        locks(&a, 1, Shared);
        let second = waits(&b, 1, Exclusive);
        let third = waits(&c, 1, Shared);
        assert!(!tries(&d, Shared), "an exclusive one waits");
        assert!(tries(&a, Shared), "who has it has it");
        a.unlock_all();
        second.given().await;
        assert!(!tries(&a, Shared));
        b.unlock_all();
        third.given().await;
        assert!(tries(&a, Shared));
    }

    #[tokio::test]
    async fn who_gives_up_leaves_the_queue_and_what_it_was_given() {
        let (all, [a, b, c]) = holders();
        locks(&a, 1, Shared);
        let gone = waits(&b, 1, Exclusive);
        let next = waits(&c, 1, Shared);
        drop(gone);
        next.given().await;
        c.unlock_all();
        let late = b.lock(&key(1), Exclusive, Transaction).expect("no cycle").expect("it waits");
        a.unlock_all();
        drop(late);
        assert!(tries(&a, Exclusive), "it was given and not taken");
        drop((a, b, c));
        assert!(all.table().locks.is_empty());
    }

    /// I-66: no cycle of waits.
    #[tokio::test]
    async fn a_wait_that_would_close_a_cycle_is_refused() {
        let (_locks, [a, b, c]) = holders();
        locks(&a, 1, Exclusive);
        locks(&b, 2, Exclusive);
        locks(&c, 3, Exclusive);
        let first = waits(&a, 2, Shared);
        let second = waits(&b, 3, Exclusive);
        let refused = c.lock(&key(1), Shared, Session).err().expect("a cycle of three");
        assert_eq!(refused.sqlstate, "40P01");
        c.unlock_all();
        second.given().await;
        b.unlock_all();
        first.given().await;
    }

    #[tokio::test]
    async fn two_who_share_and_want_it_alone_are_a_cycle() {
        let (_locks, [a, b]) = holders();
        locks(&a, 1, Shared);
        locks(&b, 1, Shared);
        let first = waits(&a, 1, Exclusive);
        assert_eq!(b.lock(&key(1), Exclusive, Session).err().map(|error| error.sqlstate), Some("40P01"));
        b.unlock_all();
        first.given().await;
    }

    /// I-45.
    #[test]
    fn a_session_holds_so_many_and_no_more() {
        let (_locks, [a]) = holders();
        for number in 0..MAX_LOCKS as i64 {
            locks(&a, number, Exclusive);
        }
        assert_eq!(a.try_lock(&key(-1), Shared, Session).err().map(|error| error.sqlstate), Some("54000"));
        assert!(tries(&a, Shared), "one that it holds is no new one");
    }
}
