//! The reading lane: snapshots, entries, resync.
//!
//! A resync reads into a generation of its own while the old rows are shown. Its pages are read at different places of
//! the log, so that the rows become a state of the server only when the log has been applied from the first page's
//! place to the last one's; then the generations are swapped, in one commit.

use super::Replica;
use super::lanes::{Asked, CallId, Failure, Reply, Request, Trouble};
use super::state::{Resync, Shown, Stage};
use super::turn::Turn;
use crate::command::{Applied, OnConflict, Reason};
use crate::row::Row;
use crate::store::{Generation, Write};
use isles_kernel::sync::{
    Broken, Code, ConflictCode, Cursor, Entry, Mutation, Op, OutboxPage, OutboxQuery, PartitionId, RowKey,
    SnapshotPage, SnapshotQuery, Version,
};
use std::collections::BTreeSet;

impl Replica {
    pub(super) fn next_read(&self) -> (Asked, Request) {
        let partition = self.head.partition.clone();
        let (after, wait_ms) = match (&self.head.resync, &self.head.shown) {
            (Some(Resync { stage: Stage::Rows { next, .. }, .. }), _) => {
                let query = SnapshotQuery { after: next.clone(), limit: None, partition };
                return (Asked::Rows, Request::Snapshot(query));
            }
            (Some(Resync { stage: Stage::Log { cursor, .. }, .. }), _) => (*cursor, 0),
            (None, Some(shown)) if self.caught_up => (shown.cursor, self.options.wait_ms),
            (None, Some(shown)) => (shown.cursor, 0),
            (None, None) => (Cursor::START, 0),
        };
        let wait_ms = Some(wait_ms).filter(|wait| *wait > 0);
        (Asked::Log(after), Request::Outbox(OutboxQuery { after: Some(after), limit: None, wait_ms, partition }))
    }

    pub(super) fn read_answered(
        &mut self,
        call: CallId,
        asked: Asked,
        result: Result<Reply, Failure>,
        turn: &mut Turn,
    ) {
        match (asked, result) {
            (_, Err(failure)) => self.read_failed(failure, turn),
            (Asked::Rows, Ok(Reply::Snapshot(page))) => self.rows_came(page, turn),
            (Asked::Log(after), Ok(Reply::Outbox(page))) => {
                self.entries_came(after, &page, turn);
                if self.caught_up {
                    self.settle_at_the_end(call, turn);
                }
            }
            (_, Ok(_)) => self.reading_failed(Trouble::Unreadable("the answer is of another kind".into()), turn),
        }
    }

    fn read_failed(&mut self, failure: Failure, turn: &mut Turn) {
        let code = match &failure {
            Failure::Refused(refusal) => Some(refusal.code),
            _ => None,
        };
        match (code, failure) {
            (Some(Code::WrongPartition), failure) => {
                self.partition_changed(turn);
                self.reading_failed(failure.into(), turn);
            }
            (Some(Code::ResyncRequired | Code::InvalidCursor), failure) => {
                self.begin_resync(turn);
                self.reading_failed(failure.into(), turn);
            }
            (Some(Code::SnapshotUnavailable), Failure::Refused(refusal)) => match self.head.shown {
                None => self.begin_at_the_start(turn),
                Some(_) => self.reading_failed(Trouble::NoSnapshot(refusal), turn),
            },
            (_, failure) => self.reading_failed(failure.into(), turn),
        }
    }

    fn reading_failed(&mut self, trouble: Trouble, turn: &Turn) {
        self.reading.fail(turn.at, &self.options, trouble);
    }

    /// Throws away what an earlier resync has read, and begins with the first page. What is shown stays.
    pub(super) fn begin_resync(&mut self, turn: &mut Turn) {
        self.drop_staging(turn);
        let stage = Stage::Rows { from: None, next: None };
        self.head.resync = Some(Resync { generation: self.new_generation(), stage });
        self.caught_up = false;
        self.reading.abandon();
    }

    fn drop_staging(&mut self, turn: &mut Turn) {
        if let Some(resync) = self.head.resync.take() {
            turn.write(Write::DropGeneration(resync.generation));
        }
        self.staging.clear();
    }

    fn new_generation(&mut self) -> Generation {
        let generation = Generation(self.head.next_generation);
        self.head.next_generation += 1;
        generation
    }

    /// A server without snapshots: the log from its beginning is all there is.
    fn begin_at_the_start(&mut self, turn: &mut Turn) {
        self.drop_staging(turn);
        self.head.log_only = true;
        self.head.shown = Some(Shown { generation: self.new_generation(), cursor: Cursor::START });
    }

    /// The first answer says whose rows these are; an answer with another identity means that they are not ours.
    fn is_our_partition(&mut self, partition: &PartitionId, turn: &mut Turn) -> bool {
        match &self.head.partition {
            None => self.head.partition = Some(partition.clone()),
            Some(ours) if ours == partition => {}
            Some(_) => {
                self.partition_changed(turn);
                let trouble = Trouble::Broken("the partition has changed".into());
                self.reading_failed(trouble, turn);
                return false;
            }
        }
        true
    }

    /// Forgets all rows. Commands are not for the new partition: they are given up, and kept for the application.
    pub(super) fn partition_changed(&mut self, turn: &mut Turn) {
        let pending = self.pending.clone();
        if let Some(pending) = &pending
            && let Applied::At(entry) = pending.answer
        {
            for id in &pending.commands {
                self.confirm(*id, Some(entry), turn);
            }
        }
        for id in self.queue.keys().copied().collect::<Vec<_>>() {
            let sent = pending.as_ref().filter(|pending| pending.commands.contains(&id));
            let sent = sent.map(|pending| pending.request.request_id);
            self.give_up(id, Reason::PartitionChanged(sent), turn);
        }
        self.set_pending(None, turn);
        self.forget_rows(turn);
    }

    pub(super) fn forget_rows(&mut self, turn: &mut Turn) {
        for key in self.rows.base.keys() {
            self.rows.note(&mut turn.before, key);
        }
        self.rows.base.clear();
        self.drop_staging(turn);
        if let Some(shown) = self.head.shown.take() {
            turn.write(Write::DropGeneration(shown.generation));
        }
        self.head.partition = None;
        self.head.log_only = false;
        self.caught_up = false;
        self.reading.abandon();
        self.submitting.abandon();
        turn.rebase = true;
        turn.wiped = true;
    }

    fn rows_came(&mut self, page: SnapshotPage, turn: &mut Turn) {
        if !self.is_our_partition(&page.partition, turn) {
            return;
        }
        let Some(Resync { generation, stage: Stage::Rows { from, next } }) = self.head.resync.clone() else { return };
        let from = from.unwrap_or(page.cursor);
        let stuck = page.next.is_some() && (page.next == next || page.rows.is_empty());
        if stuck || page.cursor.version() < from.version() {
            self.begin_resync(turn);
            return self.reading_failed(Trouble::Broken("the snapshot does not go on".into()), turn);
        }
        if self.proves_nothing(from) && page.cursor != from {
            return self.begin_resync(turn);
        }
        if self.staging.len() + page.rows.len() > self.options.max_rows {
            return self.reading_failed(Trouble::TooManyRows { limit: self.options.max_rows }, turn);
        }
        for found in page.rows {
            let row = Row { version: found.version, values: found.values };
            turn.write(Write::PutRow(generation, found.key.clone(), row.clone()));
            self.staging.insert(found.key, row);
        }
        let stage = match page.next {
            Some(next) => Stage::Rows { from: Some(from), next: Some(next) },
            None => Stage::Log { cursor: from, reach: page.cursor },
        };
        self.head.resync = Some(Resync { generation, stage });
        self.swap_if_whole(turn);
    }

    fn entries_came(&mut self, after: Cursor, page: &OutboxPage, turn: &mut Turn) {
        self.caught_up = false;
        if !self.is_our_partition(&page.partition, turn) {
            return;
        }
        let rows = match &self.head.resync {
            Some(_) => self.staging.len(),
            None => self.rows.base.len(),
        };
        let created = page.entries.iter().flat_map(|entry| &entry.mutations).filter(|it| it.op == Op::Create).count();
        if rows + created > self.options.max_rows {
            return self.reading_failed(Trouble::TooManyRows { limit: self.options.max_rows }, turn);
        }
        let absorbed = page.check(after).and_then(|()| match &self.head.resync {
            Some(_) => self.absorb_staged(page, turn),
            None => self.absorb(page, turn),
        });
        match absorbed {
            Ok(()) => {
                self.reading.succeed();
                self.caught_up = self.is_at(page.head);
            }
            Err(broken) => self.diverged(broken, turn),
        }
    }

    fn is_at(&self, head: Cursor) -> bool {
        self.head.resync.is_none() && self.cursor().is_some_and(|cursor| cursor.version() >= head.version())
    }

    /// The log is not the one that the rows came from. They are read anew; nothing of it is applied.
    pub(super) fn diverged(&mut self, broken: Broken, turn: &mut Turn) {
        self.begin_resync(turn);
        self.reading_failed(Trouble::Broken(broken.to_string()), turn);
    }

    /// Applies the entries that are new to what is shown.
    pub(super) fn absorb(&mut self, page: &OutboxPage, turn: &mut Turn) -> Result<(), Broken> {
        for entry in &page.entries {
            let Some(shown) = &self.head.shown else { return Ok(()) };
            let (generation, cursor) = (shown.generation, shown.cursor);
            if let Some(next) = next_cursor(entry, cursor)? {
                if self.proves_nothing(cursor) {
                    self.begin_resync(turn);
                    return Ok(());
                }
                self.apply(entry, generation, turn);
                self.head.shown = Some(Shown { generation, cursor: next });
            }
        }
        self.settle(turn);
        Ok(())
    }

    /// The beginning of a log has no entry that would tell it from the beginning of another one. So rows that were read
    /// there are not continued but read again, once the log has an entry.
    fn proves_nothing(&self, cursor: Cursor) -> bool {
        cursor == Cursor::START && !self.head.log_only
    }

    fn apply(&mut self, entry: &Entry, generation: Generation, turn: &mut Turn) {
        let pending = self.pending.as_ref().map(|pending| pending.request.request_id);
        let ours = entry.request_id.is_some() && entry.request_id == pending;
        for mutation in &entry.mutations {
            let before = self.rows.base.get(&mutation.key).cloned();
            let after = changed(before.clone(), mutation);
            if !ours {
                let reason = |code, key| Reason::Stale { code, key, version: entry.version };
                self.give_up_stale(&mutation.key, before.as_ref(), after.as_ref(), reason, turn);
            }
            self.rows.note(&mut turn.before, &mutation.key);
            match after {
                Some(row) => {
                    turn.write(Write::PutRow(generation, mutation.key.clone(), row.clone()));
                    self.rows.base.insert(mutation.key.clone(), row);
                }
                None if before.is_some() => {
                    turn.write(Write::DeleteRow(generation, mutation.key.clone()));
                    self.rows.base.remove(&mutation.key);
                }
                None => {}
            }
        }
        turn.rebase = true;
        if ours {
            self.confirm_pending(entry.cursor(), turn);
        }
    }

    /// Gives up commands that have read what somebody else has changed now. Those of the pending request are the
    /// server's to judge.
    fn give_up_stale(
        &mut self,
        key: &RowKey,
        before: Option<&Row>,
        after: Option<&Row>,
        reason: impl Fn(ConflictCode, RowKey) -> Reason,
        turn: &mut Turn,
    ) {
        let pending: BTreeSet<_> = self.pending.iter().flat_map(|pending| &pending.commands).copied().collect();
        let (before, after) = (before.map(|row| &row.values), after.map(|row| &row.values));
        let waiting = self.queue.iter().filter(|(id, _)| !pending.contains(id));
        let wary = waiting.filter(|(_, queued)| queued.draft.on_conflict == OnConflict::GiveUp);
        let stale: Vec<_> =
            wary.filter_map(|(id, queued)| Some((*id, queued.draft.command.against(key, before, after)?))).collect();
        for (id, code) in stale {
            self.give_up(id, reason(code, key.clone()), turn);
        }
    }

    /// Applies entries to the rows of a resync. Their pages may have seen some already, which does no harm: a create
    /// puts a row and a delete removes one, whatever is there, and the last write of a column wins either way.
    fn absorb_staged(&mut self, page: &OutboxPage, turn: &mut Turn) -> Result<(), Broken> {
        for entry in &page.entries {
            let Some(Resync { generation, stage: Stage::Log { cursor, reach } }) = self.head.resync else { break };
            let Some(next) = next_cursor(entry, cursor)? else { continue };
            if next.version() == reach.version() && next != reach {
                return Err(Broken::NotNext { version: reach.version(), after: cursor });
            }
            for mutation in &entry.mutations {
                match changed(self.staging.get(&mutation.key).cloned(), mutation) {
                    Some(row) => {
                        turn.write(Write::PutRow(generation, mutation.key.clone(), row.clone()));
                        self.staging.insert(mutation.key.clone(), row);
                    }
                    None => {
                        turn.write(Write::DeleteRow(generation, mutation.key.clone()));
                        self.staging.remove(&mutation.key);
                    }
                }
            }
            self.head.resync = Some(Resync { generation, stage: Stage::Log { cursor: next, reach } });
        }
        self.swap_if_whole(turn);
        Ok(())
    }

    /// Shows the new generation once it is a state that the server has had.
    fn swap_if_whole(&mut self, turn: &mut Turn) {
        let Some(Resync { generation, stage: Stage::Log { cursor, reach } }) = self.head.resync else { return };
        if cursor.version() < reach.version() {
            return;
        }
        let new = std::mem::take(&mut self.staging);
        let keys: BTreeSet<RowKey> = self.rows.base.keys().chain(new.keys()).cloned().collect();
        let had_rows = self.head.shown.is_some();
        for key in keys {
            let (before, after) = (self.rows.base.get(&key).cloned(), new.get(&key));
            if before.as_ref() == after {
                continue;
            }
            self.rows.note(&mut turn.before, &key);
            if had_rows {
                let reason = |code, key| Reason::StaleAfterResync { code, key };
                self.give_up_stale(&key, before.as_ref(), after, reason, turn);
            }
        }
        if let Some(old) = self.head.shown.replace(Shown { generation, cursor }) {
            turn.write(Write::DropGeneration(old.generation));
        }
        self.head.resync = None;
        self.rows.base = new;
        turn.rebase = true;
        self.settle(turn);
    }
}

/// Where the log is after `entry`; none if it is known already.
fn next_cursor(entry: &Entry, cursor: Cursor) -> Result<Option<Cursor>, Broken> {
    let broken = Broken::NotNext { version: entry.version, after: cursor };
    if entry.version > cursor.version() {
        return entry.cursor().filter(|_| entry.follows(cursor)).map(Some).ok_or(broken);
    }
    let same_place = entry.version == cursor.version() && entry.version != Version::ZERO;
    match same_place && Some(entry.id) != cursor.entry() {
        true => Err(broken),
        false => Ok(None),
    }
}

/// The row after a mutation. An update of a row that is not there has nothing to change.
fn changed(before: Option<Row>, mutation: &Mutation) -> Option<Row> {
    match (mutation.op, before) {
        (Op::Create, _) => Some(Row { version: mutation.version, values: mutation.values.clone() }),
        (Op::Update, Some(mut row)) => {
            row.version = mutation.version;
            row.values.merge(&mutation.values);
            Some(row)
        }
        (Op::Update, None) | (Op::Delete, _) => None,
    }
}
