//! The one writer of a shard: many waiting transactions, one disk flush.
//!
//! Requests wait in a queue. A job on the shared thread pool takes as many as wait, runs each within one SQLite
//! transaction, inserts the record of their changes, commits once, and answers all. So a shard needs no thread of its
//! own, and the cost of a flush is shared. A member of several statements has a savepoint around it; one statement
//! takes itself back.
//!
//!     queue → group: BEGIN, { SAVEPOINT, fence, statements, RELEASE | fence, statement }*, record, COMMIT → answers
//!
//! An interactive transaction takes the writer away for as long as it lasts. It begins on committed data only: its
//! answers leave before its commit, and must not reveal what is not durable. Members of a group may see each other's
//! writes, because none of them is answered, not even with an error, before all of it is durable.
//!
//! SQLite sometimes has to roll back everything (an interrupted write, a full disk). The member that caused it is
//! answered and the others run again: they have not been answered, so nobody can tell.
//!
//! Invariants (docs/invariants.md):
//!   * I-1, I-2  a group's rows and its record are one transaction
//!   * I-4       answers come after the flush
//!   * I-5       after an I/O error nothing is acknowledged until the shard has been reopened
//!   * I-7       fences are read and set under the writer, and readers check them after their snapshot
//!   * I-44      so is the binding; it goes forward only, so readers check it before they read

use super::capture;
use super::lines::Whose;
use super::raw::{Db, Role};
use super::{Planted, SqliteOptions, format, log};
use crate::binding::Binding;
use crate::entries::Observed;
use crate::env::Env;
use crate::error::{Result, ShardError};
use crate::fence::{Fence, FenceTable};
use crate::shard::{CancelToken, Outcome, Request};
use isles_kernel::names::{SchemaVersion, Seq, ShardId, StreamId, TxnId};
use isles_kernel::schema::Schema;
use isles_kernel::value::{DataType, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// What a shard knows about itself. Published after each commit that changes it; the writer's own copy is ahead
/// during a group and falls back to the published one if the group fails.
#[derive(Clone, Default)]
pub(super) struct State {
    pub(super) schema: Arc<Schema>,
    pub(super) fences: Arc<FenceTable>,
    pub(super) binding: Arc<Binding>,
    pub(super) seq: Seq,
    /// The last transaction that the log names.
    pub(super) txn: TxnId,
    pub(super) consumers: Arc<BTreeMap<StreamId, Seq>>,
    /// The position up to which the log has been trimmed.
    pub(super) trimmed: Seq,
    pub(super) log_records: u64,
    pub(super) log_bytes: u64,
}

/// Something that wants to write.
pub(super) trait Member: Send {
    /// When its time is up, on the env's clock.
    fn deadline(&self) -> Duration;
    fn cancel(&self) -> Option<&CancelToken>;
    /// In whose line it waits.
    fn whose(&self) -> Whose {
        Whose::Engine
    }
    fn company(&self) -> Company {
        Company::Group
    }
    /// What makes it happen wholly or not at all.
    fn whole_by(&self) -> WholeBy {
        WholeBy::Savepoint
    }
    /// Does the work, inside a transaction. It may be called again if the group had to be rolled back.
    fn run(&mut self, writer: &mut Writer) -> Result<()>;
    /// Answers.
    fn finish(self: Box<Self>, result: Result<()>);
}

/// With whom a member shares its transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Company {
    Group,
    /// Nobody: a record has one schema version.
    Alone,
    /// Nobody, on the applier's connection.
    Applier,
}

/// What makes a member of a group happen wholly or not at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WholeBy {
    /// A savepoint around it, which costs as much as a small statement.
    Savepoint,
    /// It is one statement, which takes back what it did if it fails.
    Itself,
}

/// A [`Request`] in the queue.
pub(super) struct RequestMember {
    pub(super) request: Request,
    pub(super) deadline: Duration,
    pub(super) outcomes: Vec<Outcome>,
    pub(super) reply: oneshot::Sender<Result<Vec<Outcome>>>,
}

impl Member for RequestMember {
    fn deadline(&self) -> Duration {
        self.deadline
    }

    fn cancel(&self) -> Option<&CancelToken> {
        Some(&self.request.limits.cancel)
    }

    fn whose(&self) -> Whose {
        Whose::of(&self.request.acts_for)
    }

    /// Rows that a statement returns may turn out to be too many when it has done all that it does.
    fn whole_by(&self) -> WholeBy {
        match &self.request.statements[..] {
            [one] if one.columns.is_empty() => WholeBy::Itself,
            _ => WholeBy::Savepoint,
        }
    }

    fn run(&mut self, writer: &mut Writer) -> Result<()> {
        self.outcomes.clear();
        writer.state.binding.check(&self.request.acts_for, &self.request.claim.units)?;
        if !writer.plants(Planted::SkipFence) && !writer.plants(Planted::FenceOutsideTransaction) {
            writer.state.fences.check(&self.request.claim, self.request.access)?;
        }
        for statement in &self.request.statements {
            self.outcomes.push(writer.db.run(statement, &self.request.limits, &self.request.acts_for)?);
        }
        Ok(())
    }

    fn finish(self: Box<Self>, result: Result<()>) {
        // A caller who has gone needs no answer.
        let RequestMember { outcomes, reply, .. } = *self;
        let _ = reply.send(result.map(|()| outcomes));
    }
}

/// One of the engine's own writes.
pub(super) struct Task<T, F> {
    pub(super) work: F,
    pub(super) company: Company,
    pub(super) deadline: Duration,
    pub(super) value: Option<T>,
    pub(super) reply: oneshot::Sender<Result<T>>,
}

impl<T: Send, F: FnMut(&mut Writer) -> Result<T> + Send> Member for Task<T, F> {
    fn deadline(&self) -> Duration {
        self.deadline
    }

    fn cancel(&self) -> Option<&CancelToken> {
        None
    }

    fn company(&self) -> Company {
        self.company
    }

    fn run(&mut self, writer: &mut Writer) -> Result<()> {
        self.value = Some((self.work)(writer)?);
        Ok(())
    }

    fn finish(self: Box<Self>, result: Result<()>) {
        let Task { value, reply, .. } = *self;
        let _ = reply.send(result.and_then(|()| value.ok_or_else(|| ShardError::invalid("the work left no value"))));
    }
}

/// The writing connection and what goes with it.
pub(super) struct Writer {
    pub(super) id: ShardId,
    pub(super) db: Db,
    /// Opened when the first rows of another shard arrive.
    applier: Option<Db>,
    pub(super) state: State,
    /// The state as of the last commit.
    committed: State,
    path: PathBuf,
    env: Arc<dyn Env>,
    options: SqliteOptions,
}

/// How a commit ended, when it did not succeed.
pub(super) struct CommitError {
    pub(super) error: ShardError,
    /// The shard must not go on.
    pub(super) fatal: bool,
}

impl Writer {
    /// Opens the shard's file, making it if there is none.
    pub(super) fn open(id: ShardId, path: &Path, env: Arc<dyn Env>, options: &SqliteOptions) -> Result<Writer> {
        let mut db = Db::open(path, Role::Writer, env.clone(), options)?;
        format::prepare(&mut db, path)?;
        let state = format::load(&mut db)?;
        capture::install(&mut db, &state.schema);
        db.schema = Some(state.schema.clone());
        db.release_memory();
        let path = path.to_path_buf();
        let committed = state.clone();
        Ok(Writer { id, db, applier: None, state, committed, path, env, options: options.clone() })
    }

    pub(super) fn applier(&mut self) -> Result<&mut Db> {
        if self.applier.is_none() {
            self.applier = Some(Db::open(&self.path, Role::Applier, self.env.clone(), &self.options)?);
        }
        self.applier.as_mut().ok_or_else(|| ShardError::invalid("no applier"))
    }

    /// Closes the applier's connection, with its cache, until it is needed again.
    pub(super) fn release_applier(&mut self) {
        self.applier = None;
    }

    pub(super) fn capture(&mut self) -> &mut capture::Capture {
        self.db.capture.as_mut().expect("installed when the writer was opened")
    }

    pub(super) fn observed(&self) -> &Observed {
        &self.options.observed
    }

    /// Whether changes go to the log.
    pub(super) fn logs(&self) -> bool {
        self.options.capture_always || !self.state.consumers.is_empty()
    }

    pub(super) fn begin(&mut self) -> Result<()> {
        let enabled = self.logs();
        let only_indexed =
            !self.options.capture_always && self.state.consumers.keys().all(isles_kernel::index::is_index_stream);
        let capture = self.capture();
        capture.clear();
        capture.enabled = enabled;
        capture.only_indexed = only_indexed;
        self.db.own("BEGIN IMMEDIATE", &[], &[]).map(drop)
    }

    /// Turns capture on within a transaction, for a consumer that has just been added.
    pub(super) fn enable_capture(&mut self, stream: &StreamId) {
        let capture = self.capture();
        capture.only_indexed =
            isles_kernel::index::is_index_stream(stream) && (capture.only_indexed || !capture.enabled);
        capture.enabled = true;
    }

    /// Captures within a transaction also what the log does not want: it may become a commit over several shards, and
    /// must be able to tell what it did.
    pub(super) fn capture_redo(&mut self) {
        let logs = self.logs();
        let capture = self.capture();
        capture.enabled = true;
        capture.only_indexed = false;
        capture.redo_only = !logs;
    }

    /// Runs one member of a group, so that it happens wholly or not at all.
    fn run_member(&mut self, member: &mut dyn Member) -> Result<()> {
        self.db.set_watch(member.deadline(), member.cancel().cloned());
        match member.whole_by() {
            WholeBy::Savepoint => self.run_in_savepoint(member),
            WholeBy::Itself => self.run_by_itself(member),
        }
    }

    fn run_in_savepoint(&mut self, member: &mut dyn Member) -> Result<()> {
        self.db.own("SAVEPOINT _isles_member", &[], &[])?;
        let result = self.run_noted(member);
        match &result {
            Ok(()) => drop(self.db.own("RELEASE _isles_member", &[], &[])?),
            Err(_) if self.db.is_autocommit() => {}
            Err(_) => {
                self.db.own("ROLLBACK TO _isles_member", &[], &[])?;
                self.db.own("RELEASE _isles_member", &[], &[])?;
            }
        }
        result
    }

    /// A statement that failed has taken back what it did. What was found wrong after it had ended, which is rare, takes
    /// back the whole group, and the others run again.
    fn run_by_itself(&mut self, member: &mut dyn Member) -> Result<()> {
        let before = self.db.all_changes();
        let result = self.run_noted(member);
        if result.is_err() && self.db.all_changes() != before && !self.db.is_autocommit() {
            self.db.own("ROLLBACK", &[], &[])?;
        }
        result
    }

    /// Runs it, and keeps what is in memory in step with what it did.
    fn run_noted(&mut self, member: &mut dyn Member) -> Result<()> {
        let mark = self.capture().mark();
        let before = self.state.clone();
        let result = member.run(self).and_then(|()| self.check_member());
        self.db.set_watch(Duration::MAX, None);
        match &result {
            Ok(()) if self.capture().mark() != mark => self.capture().txn += 1,
            Ok(()) => {}
            Err(_) => self.rewind(mark, before),
        }
        result
    }

    /// What must hold before a transaction may commit.
    pub(super) fn check_member(&mut self) -> Result<()> {
        if let Some(why) = &self.capture().failed {
            return Err(ShardError::statement("XX000", format!("the change log cannot record this: {why}")));
        }
        // At the commit it would fail the whole group.
        if self.db.deferred_violations() {
            return Err(ShardError::statement("23503", "row violates foreign key constraint"));
        }
        Ok(())
    }

    /// Inserts the record of what was captured, and commits.
    pub(super) fn commit(&mut self) -> std::result::Result<(), CommitError> {
        if self.plants(Planted::RecordInSecondTransaction) {
            let split = self.db.own("COMMIT", &[], &[]).and_then(|_| self.db.own("BEGIN IMMEDIATE", &[], &[]));
            split.map_err(|error| commit_error(error, true))?;
        }
        let result = log::append(self)
            .map_err(|error| (error, false))
            .and_then(|()| self.db.own("COMMIT", &[], &[]).map(drop).map_err(|error| (error, true)));
        match result {
            Ok(()) => {
                self.committed = self.state.clone();
                Ok(())
            }
            Err((error, committing)) => {
                self.abandon();
                Err(commit_error(error, committing))
            }
        }
    }

    /// Takes back everything since the last commit.
    pub(super) fn abandon(&mut self) {
        self.db.close_cursors();
        if !self.db.is_autocommit() {
            // If even this fails, the connection is of no more use: the next BEGIN says so.
            let _ = self.db.own("ROLLBACK", &[], &[]);
        }
        let committed = self.committed.clone();
        self.capture().clear();
        self.restore(committed);
    }

    /// Takes back what is in memory of what was done since `mark`, when the state was `before`.
    pub(super) fn rewind(&mut self, mark: capture::Mark, before: State) {
        self.capture().rewind(mark);
        self.restore(before);
    }

    fn restore(&mut self, state: State) {
        let same = Arc::ptr_eq(&self.state.schema, &state.schema);
        self.state = state;
        if !same {
            self.follow_schema();
        }
    }

    /// Lets the connection know the schema of the state.
    fn follow_schema(&mut self) {
        let schema = self.state.schema.clone();
        self.capture().set_schema(&schema);
        self.db.schema = Some(schema);
    }

    /// Closes the connections of a shard that is well, and with the last of them the log.
    pub(super) fn close(mut self: Box<Self>) {
        self.applier = None;
        // If it cannot be, the log stays, and the next one to open the shard finds it.
        let _ = self.db.checkpoint_on_close();
    }

    /// Changes fences, within a transaction.
    pub(super) fn set_fences(&mut self, fences: &[Fence]) -> Result<()> {
        let mut table = FenceTable::clone(&self.state.fences);
        fences.iter().try_for_each(|fence| table.set(fence))?;
        format::store_fences(&mut self.db, &self.state.fences, &table)?;
        self.state.fences = Arc::new(table);
        Ok(())
    }

    /// Gives the shard to a tenant, within a transaction.
    pub(super) fn bind(&mut self, binding: &Binding) -> Result<()> {
        if self.state.binding.leads_to(binding, &self.state.schema)? {
            format::store_binding(&mut self.db, binding)?;
            self.state.binding = Arc::new(binding.clone());
        }
        Ok(())
    }

    /// Changes the schema, within a transaction.
    pub(super) fn set_schema(&mut self, schema: Schema) -> Result<()> {
        format::store_schema(&mut self.db, &self.state.schema, &schema)?;
        self.state.schema = Arc::new(schema);
        self.follow_schema();
        Ok(())
    }

    pub(super) fn plants(&self, bug: Planted) -> bool {
        self.options.plants(bug)
    }

    pub(super) fn schema_version(&self) -> SchemaVersion {
        self.state.schema.version
    }
}

fn commit_error(error: ShardError, committing: bool) -> CommitError {
    match error {
        ShardError::Stopped(why) if committing => CommitError { error: ShardError::MayHaveHappened(why), fatal: true },
        ShardError::Corrupt(why) if committing => CommitError { error: ShardError::MayHaveHappened(why), fatal: true },
        error @ ShardError::Stopped(_) => CommitError { error, fatal: true },
        error => CommitError { error, fatal: false },
    }
}

/// What a group did.
pub(super) struct GroupResult {
    pub(super) answers: Vec<(Box<dyn Member>, Result<()>)>,
    /// Why the shard must stop, if it must.
    pub(super) fatal: Option<String>,
}

/// Who joins a group that is running.
pub(super) trait More {
    /// The next one, after `have` members; nobody means that it is time to commit.
    fn more(&mut self, have: usize) -> Option<Box<dyn Member>>;
}

/// A group that stays as it is.
pub(super) struct NoMore;

impl More for NoMore {
    fn more(&mut self, _: usize) -> Option<Box<dyn Member>> {
        None
    }
}

/// Runs members as one group, each wholly or not at all.
pub(super) fn run_group(writer: &mut Writer, members: Vec<Box<dyn Member>>, more: &mut dyn More) -> GroupResult {
    let mut waiting = members;
    let mut answers = Vec::new();
    loop {
        match try_group(writer, &mut waiting, more) {
            Attempt::Committed(results) => {
                answers.extend(waiting.into_iter().zip(results));
                return GroupResult { answers, fatal: None };
            }
            // The others run again without the one that broke the transaction.
            Attempt::Broken { at, error } => {
                answers.push((waiting.remove(at), Err(error)));
                if waiting.is_empty() {
                    return GroupResult { answers, fatal: None };
                }
            }
            Attempt::Failed { error, results, fatal } => {
                let failed = waiting.into_iter().zip(results).map(|(member, result)| {
                    let answer = if result.is_ok() { Err(error.clone()) } else { Err(not_happened(&error)) };
                    (member, answer)
                });
                answers.extend(failed);
                return GroupResult { answers, fatal: fatal.then(|| error.to_string()) };
            }
        }
    }
}

/// For a member that had failed by itself: whatever became of the group, nothing of it happened.
fn not_happened(error: &ShardError) -> ShardError {
    match error {
        ShardError::MayHaveHappened(why) => ShardError::Stopped(why.clone()),
        other => other.clone(),
    }
}

enum Attempt {
    Committed(Vec<Result<()>>),
    /// SQLite rolled back everything because of the member at this place.
    Broken {
        at: usize,
        error: ShardError,
    },
    Failed {
        error: ShardError,
        results: Vec<Result<()>>,
        fatal: bool,
    },
}

fn try_group(writer: &mut Writer, members: &mut Vec<Box<dyn Member>>, more: &mut dyn More) -> Attempt {
    if let Err(error) = writer.begin() {
        writer.abandon();
        let fatal = matches!(error, ShardError::Stopped(_));
        return Attempt::Failed { error, results: unharmed(members), fatal };
    }
    let mut results = Vec::with_capacity(members.len());
    loop {
        while let Some(member) = members.get_mut(results.len()) {
            let result = expired(&**member, writer.env.elapsed()).and_then(|()| writer.run_member(&mut **member));
            match result {
                Err(error @ ShardError::Stopped(_)) => {
                    writer.abandon();
                    return Attempt::Failed { error, results: unharmed(members), fatal: true };
                }
                Err(error) if writer.db.is_autocommit() => {
                    writer.abandon();
                    return Attempt::Broken { at: results.len(), error };
                }
                result => results.push(result),
            }
        }
        match more.more(members.len()) {
            Some(joined) => members.push(joined),
            None => break,
        }
    }
    if writer.plants(Planted::AnswerBeforeCommit) {
        return Attempt::Committed(results);
    }
    match writer.commit() {
        Ok(()) => Attempt::Committed(results),
        Err(CommitError { error, fatal }) => Attempt::Failed { error, results, fatal },
    }
}

/// No member is at fault.
fn unharmed(members: &[Box<dyn Member>]) -> Vec<Result<()>> {
    members.iter().map(|_| Ok(())).collect()
}

/// Whether a member's time is up before it has begun.
pub(super) fn expired(member: &dyn Member, now: Duration) -> Result<()> {
    if member.cancel().is_some_and(CancelToken::is_cancelled) {
        return Err(ShardError::Cancelled);
    }
    if now >= member.deadline() { Err(ShardError::TimedOut) } else { Ok(()) }
}

/// Runs a member that applies rows of another shard, in a transaction of the applier's connection.
pub(super) fn run_apply(writer: &mut Writer, mut member: Box<dyn Member>) -> GroupResult {
    let result = expired(&*member, writer.env.elapsed()).and_then(|()| apply_transaction(writer, &mut *member));
    let fatal = match &result {
        Err(ShardError::Stopped(why) | ShardError::MayHaveHappened(why)) => Some(why.clone()),
        _ => None,
    };
    GroupResult { answers: vec![(member, result)], fatal }
}

fn apply_transaction(writer: &mut Writer, member: &mut dyn Member) -> Result<()> {
    let deadline = member.deadline();
    let before = writer.state.clone();
    let db = writer.applier()?;
    db.set_watch(deadline, None);
    db.own("BEGIN IMMEDIATE", &[], &[])?;
    let worked = member.run(writer);
    let db = writer.applier()?;
    db.set_watch(Duration::MAX, None);
    let result =
        worked.and_then(|()| db.own("COMMIT", &[], &[]).map(drop).map_err(|error| commit_error(error, true).error));
    if result.is_err() && !db.is_autocommit() {
        let _ = db.own("ROLLBACK", &[], &[]);
    }
    match &result {
        // The writer's connection does not see these pages; with its count it will do the checkpoint.
        Ok(()) => {
            let pages = db.wal_pages();
            writer.db.set_wal_pages(pages);
            writer.capture().touched.add_everything();
            writer.committed = writer.state.clone();
            if !Arc::ptr_eq(&before.schema, &writer.state.schema) {
                writer.follow_schema();
            }
        }
        Err(_) => writer.state = before,
    }
    result
}

/// Reads one integer of the meta table or a count.
pub(super) fn one_int(db: &mut Db, sql: &str, params: &[Value]) -> Result<Option<i64>> {
    let rows = db.own_text(sql, params, &[DataType::Int8])?;
    Ok(match rows.first().and_then(|row| row.first()) {
        Some(Value::Int(n)) => Some(*n),
        _ => None,
    })
}
