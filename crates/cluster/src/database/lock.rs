//! The lock on the schema: shared by statements and transactions, exclusive for a transaction that changes it.
//!
//!     shared ──────────────► released
//!       │ upgrade: waits until it is the only one, and nobody new comes in
//!       ▼
//!     exclusive ───────────► released, at the end of the transaction
//!
//! Whoever waits to be alone keeps new ones out, or it would wait for ever. Two that are inside and both wait to be
//! alone wait for each other: the second is refused (40P01). A transaction whose first statement changes the schema
//! does not come in as a shared one, so transactions that begin so wait for each other in turn.

use isles_kernel::error::SqlError;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

#[derive(Default)]
pub(crate) struct SchemaLock {
    state: Mutex<State>,
    /// Told of every change that may let somebody in.
    changed: Notify,
}

#[derive(Default)]
struct State {
    shared: usize,
    exclusive: bool,
    /// Those who wait to be alone.
    wanting: usize,
    /// One of them is inside.
    upgrading: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Shared,
    Exclusive,
}

/// A place inside. Dropping it leaves.
pub(crate) struct Hold {
    lock: Arc<SchemaLock>,
    mode: Mutex<Mode>,
}

fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Somebody who waits to be alone; dropping it lets others in again.
struct Wanting<'a> {
    lock: &'a SchemaLock,
    upgrades: bool,
}

impl Drop for Wanting<'_> {
    fn drop(&mut self) {
        let mut state = unpoisoned(&self.lock.state);
        state.wanting -= 1;
        if self.upgrades {
            state.upgrading = false;
        }
        drop(state);
        self.lock.changed.notify_waiters();
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mode = *unpoisoned(&self.mode);
        let mut state = unpoisoned(&self.lock.state);
        match mode {
            Mode::Shared => state.shared -= 1,
            Mode::Exclusive => state.exclusive = false,
        }
        drop(state);
        self.lock.changed.notify_waiters();
    }
}

impl Hold {
    pub(crate) fn is_exclusive(&self) -> bool {
        *unpoisoned(&self.mode) == Mode::Exclusive
    }

    /// Waits until nobody else is inside. The caller bounds the wait.
    pub(crate) async fn upgrade(&self) -> Result<(), SqlError> {
        if self.is_exclusive() {
            return Ok(());
        }
        let wanting = {
            let mut state = unpoisoned(&self.lock.state);
            if state.upgrading {
                return Err(SqlError::new("40P01", "deadlock detected")
                    .with_detail("two transactions that have read the schema wait for each other to change it")
                    .with_hint("retry the transaction"));
            }
            state.upgrading = true;
            state.wanting += 1;
            Wanting { lock: &self.lock, upgrades: true }
        };
        self.lock
            .wait(|state| {
                let alone = state.shared == 1 && !state.exclusive;
                if alone {
                    (state.shared, state.exclusive) = (0, true);
                }
                alone
            })
            .await;
        *unpoisoned(&self.mode) = Mode::Exclusive;
        drop(wanting);
        Ok(())
    }
}

impl SchemaLock {
    /// Waits until `enter` says that it has come in.
    async fn wait(&self, mut enter: impl FnMut(&mut State) -> bool) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // Before the look: what changes after it is heard of.
            changed.as_mut().enable();
            if enter(&mut unpoisoned(&self.state)) {
                return;
            }
            changed.await;
        }
    }

    fn hold(self: &Arc<Self>, mode: Mode) -> Arc<Hold> {
        Arc::new(Hold { lock: self.clone(), mode: Mutex::new(mode) })
    }

    fn try_shared(state: &mut State) -> bool {
        let free = !state.exclusive && state.wanting == 0;
        if free {
            state.shared += 1;
        }
        free
    }

    /// A shared place, if there is one now.
    pub(crate) fn shared_now(self: &Arc<Self>) -> Option<Arc<Hold>> {
        SchemaLock::try_shared(&mut unpoisoned(&self.state)).then(|| self.hold(Mode::Shared))
    }

    /// Waits for a shared place. The caller bounds the wait.
    pub(crate) async fn shared(self: &Arc<Self>) -> Arc<Hold> {
        self.wait(SchemaLock::try_shared).await;
        self.hold(Mode::Shared)
    }

    /// Waits to be alone, from outside. The caller bounds the wait.
    pub(crate) async fn exclusive(self: &Arc<Self>) -> Arc<Hold> {
        unpoisoned(&self.state).wanting += 1;
        let wanting = Wanting { lock: self, upgrades: false };
        self.wait(|state| {
            let alone = state.shared == 0 && !state.exclusive;
            state.exclusive |= alone;
            alone
        })
        .await;
        let hold = self.hold(Mode::Exclusive);
        drop(wanting);
        hold
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn whoever_waits_to_be_alone_keeps_new_ones_out_and_lets_them_in_when_it_gives_up() {
        let lock = Arc::new(SchemaLock::default());
        let first = lock.shared_now().expect("free");
        let mut alone = Box::pin(lock.exclusive());
        assert!(alone.as_mut().now_or_never().is_none());
        assert!(lock.shared_now().is_none());
        drop(alone);
        let second = lock.shared().now_or_never().expect("the one who waited has gone");
        drop((first, second));
        let hold = lock.exclusive().now_or_never().expect("nobody is inside");
        assert!(hold.is_exclusive() && lock.shared().now_or_never().is_none());
    }

    #[tokio::test]
    async fn the_second_of_two_that_upgrade_is_refused_and_the_first_goes_on() {
        let lock = Arc::new(SchemaLock::default());
        let (first, second) = (lock.shared_now().expect("free"), lock.shared_now().expect("free"));
        let mut waiting = Box::pin(first.upgrade());
        assert!(waiting.as_mut().now_or_never().is_none());
        let refused = second.upgrade().now_or_never().expect("at once").expect_err("a deadlock");
        assert_eq!(refused.sqlstate, "40P01");
        drop(second);
        waiting.now_or_never().expect("it is alone").expect("upgraded");
        assert!(lock.shared_now().is_none());
        drop(first);
        assert!(lock.shared_now().is_some());
    }

    #[tokio::test]
    async fn an_upgrade_that_is_given_up_leaves_a_shared_place() {
        let lock = Arc::new(SchemaLock::default());
        let (first, second) = (lock.shared_now().expect("free"), lock.shared_now().expect("free"));
        let mut waiting = Box::pin(first.upgrade());
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(waiting);
        assert!(!first.is_exclusive());
        assert!(second.upgrade().now_or_never().is_none(), "the first is inside still");
    }
}
