//! Turns of long reads: a tenant that reads all the time leaves room for the others.
//!
//!     read ── short: on the caller's thread, no turn
//!          └─ long: waits for a turn of its tenant ──► pool
//!
//! Long reads are work for the processor alone. A tenant has one processor less than there are, so there is always one for
//! those who come now and then. Its further reads wait in line, its own line: those of others pass by.
//!
//! Invariants (docs/invariants.md):
//!   * I-46  a tenant at full load does not hold up its neighbours

use crate::shard::ActsFor;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

pub(super) struct Turns {
    /// Long reads that one tenant has at once.
    most: usize,
    tenants: Mutex<HashMap<String, Line>>,
}

#[derive(Default)]
struct Line {
    running: usize,
    waiting: VecDeque<oneshot::Sender<Turn>>,
}

/// What became of the wish to read.
pub(super) enum Asked {
    /// It acts for nobody: such reads are of all tenants together.
    NotNeeded,
    Given(Turn),
    Wait(oneshot::Receiver<Turn>),
}

/// The right to read. Dropping it passes it on.
pub(super) struct Turn {
    turns: Arc<Turns>,
    tenant: String,
}

impl Turns {
    pub(super) fn new() -> Arc<Turns> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Turns::of(processors.saturating_sub(1).max(1))
    }

    fn of(most: usize) -> Arc<Turns> {
        Arc::new(Turns { most, tenants: Mutex::default() })
    }

    fn tenants(&self) -> MutexGuard<'_, HashMap<String, Line>> {
        self.tenants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks for a turn.
    pub(super) fn ask(self: &Arc<Turns>, acts_for: &ActsFor) -> Asked {
        let Some(tenant) = acts_for.key().map(str::to_string) else { return Asked::NotNeeded };
        let mut tenants = self.tenants();
        let line = tenants.entry(tenant.clone()).or_default();
        if line.running < self.most {
            line.running += 1;
            return Asked::Given(Turn { turns: self.clone(), tenant });
        }
        let (sender, waiting) = oneshot::channel();
        line.waiting.push_back(sender);
        Asked::Wait(waiting)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut tenants = self.turns.tenants();
        let Some(line) = tenants.get_mut(&self.tenant) else { return };
        let mut next = line.waiting.pop_front();
        if next.is_none() {
            line.running -= 1;
            if line.running == 0 {
                tenants.remove(&self.tenant);
            }
        }
        drop(tenants);
        // Who has gone gives the turn back by dropping it, which passes it on to the one behind.
        if let Some(next) = next.take() {
            let _ = next.send(Turn { turns: self.turns.clone(), tenant: self.tenant.clone() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isles_kernel::names::TenantId;

    fn tenant(name: &str) -> ActsFor {
        ActsFor::Tenant(Some(TenantId::new(name).expect("valid")))
    }

    fn given(asked: Asked) -> Turn {
        match asked {
            Asked::Given(turn) => turn,
            _ => panic!("it must wait, or need not"),
        }
    }

    fn waits(asked: Asked) -> oneshot::Receiver<Turn> {
        match asked {
            Asked::Wait(turn) => turn,
            _ => panic!("it need not wait"),
        }
    }

    /// I-46
    #[test]
    fn a_tenant_has_so_many_turns_and_others_pass_by() {
        let turns = Turns::of(2);
        let ask = |name: &str| turns.ask(&tenant(name));
        let (first, second) = (given(ask("acme")), given(ask("acme")));
        let (third, mut fourth, mut fifth) = (waits(ask("acme")), waits(ask("acme")), waits(ask("acme")));
        // Another tenant does not wait.
        let others = given(ask("beta"));
        assert!(matches!(turns.ask(&ActsFor::Nobody), Asked::NotNeeded));
        assert!(fourth.try_recv().is_err(), "it is the fourth of two");
        drop(third);
        drop(first);
        assert!(fifth.try_recv().is_err(), "the line is kept");
        let fourth = fourth.try_recv().expect("the one before it has gone");
        drop(fourth);
        let fifth = fifth.try_recv().expect("its turn");
        drop((fifth, second, others));
        assert!(turns.tenants().is_empty(), "nothing is left of those who have read");
    }
}
