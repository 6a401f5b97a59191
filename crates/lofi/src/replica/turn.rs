//! What one step changes. Nothing leaves the replica before the end of the step, and then in one order: kept, shown,
//! told, sent.

use super::lanes::Call;
use super::state::{self, HEAD, PENDING};
use super::{Effect, Moment, Replica};
use crate::command::{CommandId, GivenUp, Outcome, Pending, Queued, Reason};
use crate::query::Before;
use crate::store::Write;
use isles_kernel::sync::{Cursor, RowKey};
use serde::Serialize;

pub(super) struct Turn {
    pub(super) at: Moment,
    writes: Vec<Write>,
    /// What was seen of rows before this step touched them.
    pub(super) before: Before,
    /// Rows or commands have changed, so the overlay has to be played again.
    pub(super) rebase: bool,
    /// Rows that look different already.
    changed: Vec<RowKey>,
    pub(super) wiped: bool,
    outcomes: Vec<Outcome>,
    pub(super) calls: Vec<Call>,
}

impl Turn {
    pub(super) fn new(at: Moment) -> Turn {
        Turn {
            at,
            writes: Vec::new(),
            before: Before::new(),
            rebase: false,
            changed: Vec::new(),
            wiped: false,
            outcomes: Vec::new(),
            calls: Vec::new(),
        }
    }

    pub(super) fn write(&mut self, write: Write) {
        self.writes.push(write);
    }

    pub(super) fn put(&mut self, name: String, record: &impl Serialize) {
        // Our own types become JSON: they have no maps with keys that are not texts.
        let body = serde_json::to_value(record).expect("a record of a replica has a JSON form");
        self.writes.push(Write::Put(name, body));
    }

    pub(super) fn delete(&mut self, name: String) {
        self.writes.push(Write::Delete(name));
    }
}

impl Replica {
    /// Starts what can be started, and puts the effects in order.
    pub(super) fn finish(&mut self, mut turn: Turn) -> Vec<Effect> {
        self.start_calls(&mut turn);
        let mut writes = std::mem::take(&mut self.leftovers);
        writes.append(&mut turn.writes);
        if self.kept_head.as_ref() != Some(&self.head) {
            let body = serde_json::to_value(&self.head).expect("the head of a replica has a JSON form");
            writes.push(Write::Put(HEAD.into(), body));
            self.kept_head = Some(self.head.clone());
        }
        let changed = match turn.rebase {
            true => self.rebase(std::mem::take(&mut turn.before)),
            false => turn.changed,
        };
        let mut effects = Vec::new();
        if !writes.is_empty() {
            effects.push(Effect::Persist(writes));
        }
        if turn.wiped {
            effects.push(Effect::Wiped);
        }
        if !changed.is_empty() {
            effects.push(Effect::Changed(changed));
        }
        effects.extend(turn.outcomes.into_iter().map(Effect::Outcome));
        effects.extend(self.news_of_health().map(Effect::Health));
        effects.extend(turn.calls.into_iter().map(Effect::Call));
        effects.extend(self.wake_at(turn.at.now_ms).map(|at_ms| Effect::Wake { at_ms }));
        effects
    }

    /// Plays the edits of all unconfirmed commands over the rows.
    pub(super) fn rebase(&mut self, before: Before) -> Vec<RowKey> {
        let queue = &self.queue;
        self.rows.rebase(before, queue.values().flat_map(|queued| &queued.draft.edits))
    }

    pub(super) fn enqueue(&mut self, id: CommandId, queued: Queued, turn: &mut Turn) {
        turn.put(state::command_name(id), &queued);
        turn.changed = self.rows.append(&queued.draft.edits);
        self.queue.insert(id, queued);
    }

    pub(super) fn set_pending(&mut self, pending: Option<Pending>, turn: &mut Turn) {
        match &pending {
            Some(pending) => turn.put(PENDING.into(), pending),
            None if self.pending.is_some() => turn.delete(PENDING.into()),
            None => {}
        }
        self.pending = pending;
    }

    pub(super) fn confirm(&mut self, id: CommandId, entry: Option<Cursor>, turn: &mut Turn) {
        if self.leave_queue(id, turn).is_some() {
            turn.outcomes.push(Outcome::Confirmed { id, entry });
        }
    }

    pub(super) fn give_up(&mut self, id: CommandId, reason: Reason, turn: &mut Turn) {
        let Some(queued) = self.leave_queue(id, turn) else { return };
        let given_up = GivenUp { id, draft: queued.draft, reason, partition: self.head.partition.clone() };
        turn.put(state::given_up_name(id), &given_up);
        turn.outcomes.push(Outcome::GivenUp(given_up.clone()));
        self.given_up.insert(id, given_up);
    }

    fn leave_queue(&mut self, id: CommandId, turn: &mut Turn) -> Option<Queued> {
        let queued = self.queue.remove(&id)?;
        turn.delete(state::command_name(id));
        turn.rebase = true;
        Some(queued)
    }
}
