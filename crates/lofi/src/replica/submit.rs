//! The submitting lane: one request at a time, the same until its outcome is known.
//!
//! A command leaves a request for another one only if the first is known not to have been applied: the server has
//! recorded a conflict, or has refused it for what it is, which it does every time. Anything else is sent again.

use super::Replica;
use super::lanes::{CallId, Failure, Reply, Trouble};
use super::state::command_name;
use super::turn::Turn;
use crate::command::{Applied, CommandId, MAX_ATTEMPTS, MAX_COMMAND_BYTES, OnConflict, Pending, Reason};
use isles_kernel::sync::{
    Code, Command, Conflict, ConflictCode, Cursor, MAX_COMMANDS, RequestId, Status, SubmitRequest, SubmitResponse,
};

impl Replica {
    /// The pending request, or a new one of what waits.
    pub(super) fn next_submit(&mut self, turn: &mut Turn) -> Option<SubmitRequest> {
        match &self.pending {
            Some(pending) if pending.answer == Applied::Unknown => Some(pending.request.clone()),
            Some(_) => None,
            None => self.form_request(turn),
        }
    }

    fn form_request(&mut self, turn: &mut Turn) -> Option<SubmitRequest> {
        if !self.caught_up || self.head.resync.is_some() {
            return None;
        }
        let (cursor, partition) = (self.cursor()?, self.head.partition.clone()?);
        let (commands, bodies): (Vec<CommandId>, Vec<Command>) = self.batch().into_iter().unzip();
        if commands.is_empty() {
            return None;
        }
        let request_id = RequestId(uuid_of(turn.at.random));
        let request = SubmitRequest { request_id, partition, cursor, commands: bodies };
        self.set_pending(Some(Pending { request: request.clone(), commands, answer: Applied::Unknown }), turn);
        Some(request)
    }

    /// The commands of the next request: from the first on, as many as fit.
    fn batch(&self) -> Vec<(CommandId, Command)> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        for (id, queued) in &self.queue {
            let command = &queued.draft.command;
            // What has no JSON form was refused as a draft.
            bytes += serde_json::to_vec(command).map_or(0, |body| body.len() + 1);
            let fits = bytes <= MAX_COMMAND_BYTES && batch.len() < MAX_COMMANDS && !queued.alone;
            if !batch.is_empty() && !fits {
                break;
            }
            batch.push((*id, command.clone()));
            if queued.alone {
                break;
            }
        }
        batch
    }

    pub(super) fn submit_answered(&mut self, result: Result<Reply, Failure>, turn: &mut Turn) {
        let Some(pending) = self.pending.clone() else { return };
        match result {
            Ok(Reply::Submit(response)) => self.outcome_came(&pending, *response, turn),
            Ok(_) => self.submitting_failed(Trouble::Unreadable("the answer is of another kind".into()), turn),
            Err(failure) => self.submit_failed(pending, failure, turn),
        }
    }

    fn submitting_failed(&mut self, trouble: Trouble, turn: &Turn) {
        self.submitting.fail(turn.at, &self.options, trouble);
    }

    fn outcome_came(&mut self, pending: &Pending, response: SubmitResponse, turn: &mut Turn) {
        let request = &pending.request;
        if response.request_id != request.request_id || response.page.partition != request.partition {
            return self.submitting_failed(Trouble::Unreadable("the answer is to another request".into()), turn);
        }
        self.submitting.succeed();
        match (response.status, response.entry) {
            (Status::Applied, None) => self.confirm_pending(None, turn),
            (Status::Applied, Some(entry)) => {
                self.applied_before = self.next_call;
                self.set_pending(Some(Pending { answer: Applied::At(entry), ..pending.clone() }), turn);
            }
            (Status::Conflict, _) => self.resolve(pending, &response.conflicts, turn),
        }
        if self.head.resync.is_some() {
            return;
        }
        match response.page.check(request.cursor).and_then(|()| self.absorb(&response.page, turn)) {
            Ok(()) => {
                let head = response.page.head.version();
                self.caught_up &= self.cursor().is_some_and(|cursor| cursor.version() >= head);
            }
            Err(broken) => self.diverged(broken, turn),
        }
    }

    /// The pending request has been applied: its commands have their outcome.
    pub(super) fn confirm_pending(&mut self, entry: Option<Cursor>, turn: &mut Turn) {
        let Some(pending) = self.pending.clone() else { return };
        self.set_pending(None, turn);
        self.submitting.abandon();
        self.submitting.succeed();
        for id in pending.commands {
            self.confirm(id, entry, turn);
        }
    }

    /// Lets go of the edits of a request that the rows have caught up with.
    pub(super) fn settle(&mut self, turn: &mut Turn) {
        let (Some(pending), Some(cursor)) = (&self.pending, self.cursor()) else { return };
        if let Applied::At(entry) = pending.answer
            && entry.version() <= cursor.version()
        {
            self.confirm_pending(Some(entry), turn);
        }
    }

    /// Lets go of a request that was applied before a read began which has reached the end of the log. The rows have it,
    /// even if its entry is of a log that has begun anew since and its version tells nothing.
    pub(super) fn settle_at_the_end(&mut self, read: CallId, turn: &mut Turn) {
        let applied = self.pending.as_ref().and_then(|pending| match pending.answer {
            Applied::At(entry) => Some(entry),
            Applied::Unknown => None,
        });
        if let Some(entry) = applied.filter(|_| read.0 >= self.applied_before) {
            self.confirm_pending(Some(entry), turn);
        }
    }

    /// None of the commands was applied: those that may be tried again go back to the queue.
    fn resolve(&mut self, pending: &Pending, conflicts: &[Conflict], turn: &mut Turn) {
        self.set_pending(None, turn);
        let named = conflicts.iter().any(|conflict| conflict.command < pending.commands.len());
        for (at, id) in pending.commands.iter().enumerate() {
            let conflict = conflicts.iter().find(|conflict| conflict.command == at).cloned();
            match conflict {
                Some(conflict) => self.in_conflict(*id, conflict, turn),
                // A conflict of nobody in particular: each goes alone, so that its own shows.
                None if !named => {
                    let message = "the server did not say which command met a conflict".into();
                    let code = ConflictCode::WriteConflict;
                    self.in_conflict(*id, Conflict { command: at, code, key: None, version: None, message }, turn);
                }
                None => {}
            }
        }
    }

    fn in_conflict(&mut self, id: CommandId, conflict: Conflict, turn: &mut Turn) {
        let Some(queued) = self.queue.get_mut(&id) else { return };
        let again = match conflict.code {
            ConflictCode::WriteConflict => true,
            ConflictCode::ReadConflict | ConflictCode::ScopeConflict => queued.draft.on_conflict == OnConflict::Retry,
            _ => false,
        };
        queued.attempts += 1;
        match again && queued.attempts < MAX_ATTEMPTS {
            true => {
                queued.alone |= conflict.key.is_none();
                turn.put(command_name(id), queued);
            }
            false => self.give_up(id, Reason::Conflict(conflict), turn),
        }
    }

    fn submit_failed(&mut self, pending: Pending, failure: Failure, turn: &mut Turn) {
        let code = match &failure {
            Failure::Refused(refusal) => Some(refusal.code),
            _ => None,
        };
        match (code, failure) {
            (Some(Code::WrongPartition), failure) => {
                self.partition_changed(turn);
                self.submitting_failed(failure.into(), turn);
            }
            (Some(Code::ResyncRequired), _) => {
                self.set_pending(None, turn);
                self.caught_up = false;
                for id in pending.commands {
                    self.give_up(id, Reason::OutcomeUnknown(pending.request.request_id), turn);
                }
            }
            (Some(Code::ClientFarBehind | Code::RequestReused | Code::InvalidCursor), failure) => {
                self.set_pending(None, turn);
                self.caught_up = false;
                self.submitting_failed(failure.into(), turn);
            }
            (Some(Code::InvalidRequest | Code::TooLarge), Failure::Refused(refusal)) => {
                self.set_pending(None, turn);
                self.refused(&pending.commands, Reason::Refused(refusal), turn);
            }
            (_, failure) => self.submitting_failed(failure.into(), turn),
        }
    }

    /// The server will never take this request. If it has several commands, each is tried alone to find the one.
    fn refused(&mut self, commands: &[CommandId], reason: Reason, turn: &mut Turn) {
        if let [id] = commands {
            return self.give_up(*id, reason, turn);
        }
        for id in commands {
            if let Some(queued) = self.queue.get_mut(id) {
                queued.alone = true;
                turn.put(command_name(*id), queued);
            }
        }
    }
}

/// A UUID of version 4 with these bits.
fn uuid_of(random: u128) -> uuid::Uuid {
    uuid::Builder::from_random_bytes(random.to_be_bytes()).into_uuid()
}
