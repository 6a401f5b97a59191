//! Turns of the tenants whose connections share a thread.
//!
//! A thread polls the connections that have something to do one after the other. Without turns, a tenant with many of them
//! has as many shares of the thread, and somebody else's one statement comes behind all of theirs. So tenants take turns,
//! in rounds:
//!
//! ```text
//! a message to work on ─► not yet in this round, or the round is young: at once
//!                      └─ else: in the tenant's own line ─► the next round
//! a round ends ─► the sockets are looked at ─► who has not been in the last one goes first ─► some of each line
//! ```
//!
//! So a statement waits for one statement of each other tenant at most, whatever their number of connections, or of messages
//! that were sent ahead on one. A thread on which only one tenant is asks nobody, and pays nothing. Who has no tenant counts
//! by its role; connections that are being opened count together.
//!
//! A round ends whenever somebody waits, and admits one of each line at least; a line has each connection once. So nobody
//! waits without end (I-66), and there is no room that could run out (I-65).
//!
//! Invariants (docs/invariants.md):
//!   * I-46  a tenant at full load does not hold up its neighbours

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, oneshot};

/// How long a round is young: a tenant's short statements are not told apart, and to look at the sockets costs a hundredth
/// of it.
const ROUND: Duration = Duration::from_micros(100);

/// Of each line, so many are woken for a round. More short statements do not fit in one.
const WOKEN: usize = 8;

/// Whose work it is: a tenant's, or a role's.
pub(crate) type Whose = u64;

/// Connections that have not said who they are.
const STARTING: Whose = 0;

/// Whether a statement belongs to a transaction that is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Within {
    Nothing,
    /// Others may wait for what it holds: it waits for the next round, and not for its line.
    Transaction,
}

/// The turns of one thread.
#[derive(Default)]
pub(crate) struct Turns {
    rounds: Mutex<Rounds>,
    /// There are connections of several.
    shared: AtomicBool,
    /// Somebody waits for the next round.
    wanted: Notify,
}

#[derive(Default)]
struct Rounds {
    /// Whoever has connections.
    present: HashMap<Whose, Present>,
    /// Which round this is.
    number: u64,
    /// When it began; none if nobody has been in it.
    began: Option<Instant>,
    lines: HashMap<Whose, VecDeque<oneshot::Sender<()>>>,
}

#[derive(Default)]
struct Present {
    connections: usize,
    /// The round after the last one that it has been in.
    next: u64,
}

impl Rounds {
    fn arrive(&mut self, whose: Whose) {
        self.present.entry(whose).or_default().connections += 1;
    }

    fn leave(&mut self, whose: Whose) {
        let Some(present) = self.present.get_mut(&whose) else { return };
        present.connections -= 1;
        if present.connections == 0 {
            self.present.remove(&whose);
        }
    }

    /// Whether it may begin now.
    fn admits(&mut self, whose: Whose, now: Instant) -> bool {
        let began = *self.began.get_or_insert(now);
        let Some(present) = self.present.get_mut(&whose) else { return true };
        if present.next <= self.number {
            present.next = self.number + 1;
            return true;
        }
        now.saturating_duration_since(began) < ROUND
    }

    fn wait(&mut self, whose: Whose, within: Within) -> oneshot::Receiver<()> {
        let (sender, turn) = oneshot::channel();
        let line = self.lines.entry(whose).or_default();
        match within {
            Within::Nothing => line.push_back(sender),
            Within::Transaction => line.push_front(sender),
        }
        turn
    }

    /// Begins a round: wakes the first of each line.
    fn next(&mut self) {
        self.end();
        self.lines.retain(|_, line| {
            let mut woken = 0;
            while woken < WOKEN
                && let Some(turn) = line.pop_front()
            {
                // Who has gone meanwhile takes nobody's turn.
                woken += usize::from(turn.send(()).is_ok());
            }
            !line.is_empty()
        });
    }

    /// Nobody has anything to do: whoever comes next begins a round.
    fn end(&mut self) {
        self.began = None;
        self.number += 1;
    }
}

impl Turns {
    /// A panic while the lock was held leaves plain data behind; going on is right.
    fn rounds(&self) -> MutexGuard<'_, Rounds> {
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection comes to the thread.
    pub(crate) fn seat(self: &Arc<Turns>) -> Seat {
        self.arrive(STARTING);
        Seat { turns: self.clone(), whose: STARTING, since: None }
    }

    fn arrive(&self, whose: Whose) {
        let mut rounds = self.rounds();
        rounds.arrive(whose);
        self.shared.store(rounds.present.len() > 1, Ordering::Relaxed);
    }

    fn leave(&self, whose: Whose) {
        let mut rounds = self.rounds();
        rounds.leave(whose);
        self.shared.store(rounds.present.len() > 1, Ordering::Relaxed);
    }

    /// Waits for a turn; returns when it came.
    async fn turn(&self, whose: Whose, within: Within) -> Instant {
        loop {
            let now = Instant::now();
            let turn = {
                let mut rounds = self.rounds();
                if rounds.admits(whose, now) {
                    return now;
                }
                rounds.wait(whose, within)
            };
            self.wanted.notify_one();
            // The sender is never dropped while somebody waits.
            let _ = turn.await;
            if within == Within::Transaction {
                return Instant::now();
            }
        }
    }

    /// Lets rounds follow each other for as long as somebody waits. A task of the thread, which never ends.
    pub(crate) async fn go_round(self: Arc<Turns>) {
        loop {
            self.wanted.notified().await;
            while !self.rounds().lines.is_empty() {
                // Returns when everybody who was ready has been polled, and the sockets have been looked at.
                tokio::task::yield_now().await;
                self.rounds().next();
            }
        }
    }

    /// The thread has nothing to do.
    pub(crate) fn idle(&self) {
        self.rounds().end();
    }
}

/// A connection on its thread.
pub(crate) struct Seat {
    turns: Arc<Turns>,
    whose: Whose,
    /// When it had its turn, if it has one.
    since: Option<Instant>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.turns.leave(self.whose);
    }
}

impl Seat {
    /// From here on it is somebody's.
    pub(crate) fn belong_to(&mut self, whose: Whose) {
        if self.whose != whose {
            self.turns.arrive(whose);
            self.turns.leave(std::mem::replace(&mut self.whose, whose));
        }
    }

    /// Waits for its turn, unless it has one that is not over.
    pub(crate) async fn turn(&mut self, within: Within) {
        if !self.turns.shared.load(Ordering::Relaxed) || self.since.is_some_and(|since| since.elapsed() < ROUND) {
            return;
        }
        self.since = Some(self.turns.turn(self.whose, within).await);
    }

    /// What it had its turn for is done.
    pub(crate) fn done(&mut self) {
        self.since = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOISY: Whose = 1;
    const QUIET: Whose = 2;

    fn later(began: Instant) -> Instant {
        began + ROUND
    }

    /// I-46
    #[test]
    fn a_round_has_each_once_and_more_while_it_is_young() {
        let (mut rounds, began) = (Rounds::default(), Instant::now());
        [NOISY, QUIET].into_iter().for_each(|whose| rounds.arrive(whose));
        assert!(rounds.admits(NOISY, began));
        assert!(rounds.admits(NOISY, began + ROUND / 2), "the round is young");
        assert!(!rounds.admits(NOISY, later(began)));
        assert!(rounds.admits(QUIET, later(began)), "it has not been in this round");
        assert!(!rounds.admits(QUIET, later(began)));
        rounds.next();
        assert!(rounds.admits(NOISY, later(began)));
    }

    /// I-46, I-66
    #[test]
    fn a_round_wakes_the_first_of_each_line() {
        let mut rounds = Rounds::default();
        let mut noisy: Vec<_> = (0..WOKEN + 2).map(|_| rounds.wait(NOISY, Within::Nothing)).collect();
        let mut open = rounds.wait(NOISY, Within::Transaction);
        let mut quiet = rounds.wait(QUIET, Within::Nothing);
        // Who has gone takes nobody's place.
        drop(noisy.remove(0));
        rounds.next();
        assert!(quiet.try_recv().is_ok(), "another's line is not its line");
        assert!(open.try_recv().is_ok(), "others may wait for what it holds");
        let woken = |waiting: &mut Vec<oneshot::Receiver<()>>| {
            waiting.iter_mut().map(|turn| turn.try_recv().is_ok()).collect::<Vec<_>>()
        };
        let first = woken(&mut noisy);
        assert_eq!(first.iter().filter(|woken| **woken).count(), WOKEN - 1);
        assert!(first[..WOKEN - 1].iter().all(|woken| *woken), "the line is kept: {first:?}");
        rounds.next();
        assert!(woken(&mut noisy)[WOKEN - 1..].iter().all(|woken| *woken));
        assert!(rounds.lines.is_empty(), "nothing is left of those who have waited");
    }

    /// Runs work as a thread does that serves connections.
    fn on_a_thread(turns: &Arc<Turns>, work: impl Future<Output = ()>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.spawn(turns.clone().go_round());
        runtime.block_on(work);
    }

    type Order = Arc<Mutex<Vec<Whose>>>;

    /// A connection that works for longer than a round, so many times, without waiting for anything else.
    async fn work(mut seat: Seat, order: Order, times: usize) {
        for _ in 0..times {
            seat.turn(Within::Nothing).await;
            order.lock().expect("unharmed").push(seat.whose);
            // It is what a round is measured by, and nothing is asserted of it.
            let began = Instant::now();
            while began.elapsed() < ROUND {}
            seat.done();
        }
    }

    /// I-46: one statement of the quiet tenant comes before all but one of those that the noisy one has ready: on many
    /// connections, and sent ahead on one.
    #[test]
    fn a_statement_comes_before_those_of_a_tenant_that_has_had_its_turn() {
        for (connections, times) in [(16, 1), (1, 16)] {
            let (turns, order) = (Arc::new(Turns::default()), Order::default());
            on_a_thread(&turns, async {
                let mut tasks = tokio::task::JoinSet::new();
                let seats = [NOISY].repeat(connections).into_iter().chain([QUIET]).map(|whose| {
                    let mut seat = turns.seat();
                    seat.belong_to(whose);
                    seat
                });
                for seat in seats.collect::<Vec<_>>() {
                    let times = if seat.whose == NOISY { times } else { 1 };
                    tasks.spawn(work(seat, order.clone(), times));
                }
                while let Some(ended) = tasks.join_next().await {
                    ended.expect("it does not panic");
                }
            });
            let order = order.lock().expect("unharmed");
            assert_eq!(order.len(), 17);
            assert_eq!(order.iter().position(|whose| *whose == QUIET), Some(1), "{order:?}");
            let rounds = turns.rounds();
            assert!(rounds.present.is_empty() && rounds.lines.is_empty(), "nothing is left of them");
        }
    }

    /// A thread of one tenant has no rounds.
    #[test]
    fn who_is_alone_waits_for_nobody() {
        let (turns, order) = (Arc::new(Turns::default()), Order::default());
        let mut seat = turns.seat();
        seat.belong_to(NOISY);
        // Nobody lets rounds follow each other.
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(work(seat, order.clone(), 8));
        assert_eq!(order.lock().expect("unharmed").len(), 8);
        assert!(turns.rounds().began.is_none());
    }
}
