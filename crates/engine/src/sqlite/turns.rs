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

    /// Waits for a turn. None for one who acts for nobody: such reads are of all tenants together.
    pub(super) async fn take(self: &Arc<Turns>, acts_for: &ActsFor) -> Option<Turn> {
        let tenant = acts_for.key()?.to_string();
        let waiting = {
            let mut tenants = self.tenants();
            let line = tenants.entry(tenant.clone()).or_default();
            if line.running < self.most {
                line.running += 1;
                return Some(Turn { turns: self.clone(), tenant });
            }
            let (sender, waiting) = oneshot::channel();
            line.waiting.push_back(sender);
            waiting
        };
        waiting.await.ok()
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
    use futures::FutureExt;
    use isles_kernel::names::TenantId;

    fn tenant(name: &str) -> ActsFor {
        ActsFor::Tenant(Some(TenantId::new(name).expect("valid")))
    }

    /// I-46
    #[test]
    fn a_tenant_has_so_many_turns_and_others_pass_by() {
        let turns = Turns::of(2);
        let take = |name: &str| {
            let (turns, whom) = (turns.clone(), tenant(name));
            async move { turns.take(&whom).await }.boxed()
        };
        let first = take("acme").now_or_never().flatten().expect("a turn");
        let _second = take("acme").now_or_never().flatten().expect("a second one");
        let (mut third, mut fourth, mut fifth) = (take("acme"), take("acme"), take("acme"));
        for waits in [&mut third, &mut fourth, &mut fifth] {
            assert!(waits.now_or_never().is_none(), "it is the third of two");
        }
        let others = take("beta").now_or_never().flatten();
        assert!(others.is_some(), "another tenant does not wait");
        assert!(turns.take(&ActsFor::Nobody).now_or_never().expect("no wait").is_none());
        drop(third);
        drop(first);
        assert!(fifth.as_mut().now_or_never().is_none(), "the line is kept");
        let fourth = fourth.now_or_never().flatten().expect("the one before it has gone");
        drop(fourth);
        let fifth = fifth.now_or_never().flatten().expect("its turn");
        drop((fifth, _second, others));
        assert!(turns.tenants().is_empty(), "nothing is left of those who have read");
    }
}
