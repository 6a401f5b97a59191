//! Commands of clients: each request once, all of it or nothing.
//!
//! ```text
//! check ─► turn of the shard ─► on record? ─► cursor ─► mark ─► commands, one after the other ─► conflicts?
//!                                 │ the answer again              │ no: entry and record, commit
//!                                                                 └ yes: back to the mark, record, commit
//! ```
//!
//! All of it is one transaction, and the turn of the shard is held from its beginning: nothing slips in between a check
//! and what is applied by it, two copies of a request follow each other, and the second one finds the record of the first.
//!
//! A conflict is an outcome, and is recorded: a copy that comes late must not be applied after its client was told that
//! it was not. Rows are compared as they were and as they became, so that a row that was deleted, or that left a scope,
//! counts as well as one that came.
//!
//! Invariants (docs/invariants.md):
//!   * I-3   a request that is sent any number of times has one effect and one answer

use crate::adapter::{Access, Mode, Row, Tick};
use crate::condition::eq;
use crate::error::{Code, Error, Result, refused};
use crate::internal::{OUTBOX, REQUESTS};
use crate::outbox::{Read, Reading, check_cursor};
use crate::schema::ID;
use crate::store::{Fragment, Store};
use crate::uow::apply::{Work, by_id};
use crate::uow::{Attempts, Mutation, Plan, retrieve};
use crate::values::Values;
use isles_kernel::sync::{
    Conflict, ConflictCode, Cursor, EntryId, MAX_CONFLICTS, MAX_PAGE_ENTRIES, OutboxPage, Predicate, RowKey, Scope,
    Status, SubmitRequest, SubmitResponse, Version,
};
use isles_kernel::value::Value;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A command: reads its input, or says what is wrong with it, and returns what is to be done.
pub type Command = Arc<dyn Fn(&serde_json::Value) -> Result<Plan<()>> + Send + Sync>;

/// Entries after a client's cursor that are compared with what it submits. One that has missed more catches up first.
const MAX_BEHIND: i64 = 10_000;
/// How often a request is tried when the database ends its transaction.
const ATTEMPTS: u32 = 5;

/// What became of a request, as it is recorded.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Recorded {
    status: Status,
    entry: Option<Cursor>,
    conflicts: Vec<Conflict>,
}

/// Fragments by their names in the outbox.
type Fragments = BTreeMap<String, Arc<Fragment>>;

/// A command that is ready to run, or why it is not.
type Ready = std::result::Result<(Arc<Fragment>, Plan<()>), Conflict>;

impl Store {
    /// Carries out a request of a client of the caller's shard.
    pub async fn submit(&self, request: &SubmitRequest) -> Result<SubmitResponse> {
        let access = self.scoped()?;
        request.check().map_err(|error| refused(Code::InvalidRequest, error.to_string()))?;
        let scopes = request.commands.iter().flat_map(|command| &command.scopes);
        if let Some(column) = scopes.into_iter().find_map(|scope| hidden_column(&scope.predicate)) {
            return Err(refused(Code::HiddenColumn, format!("a scope cannot name \"{column}\"")));
        }
        self.check_partition(&access, Some(&request.partition))?;
        self.check_bound(&access).await?;
        let digest = digest(request);
        let mut attempt = 0;
        let (recorded, duplicate) = loop {
            match self.submit_once(&access, request, &digest).await {
                Err(Error::Conflict(_)) if attempt < ATTEMPTS => {
                    let surroundings = self.surroundings();
                    surroundings.sleep(Attempts::default().wait(attempt, surroundings.random())).await;
                    attempt += 1;
                }
                done => break done?,
            }
        };
        let page = match self.outbox_page(&access, request.cursor, MAX_PAGE_ENTRIES as usize).await {
            // What has been trimmed meanwhile is not worth an error: the request has its outcome.
            Err(error) if error.refusal() == Some(Code::ResyncRequired) => self.empty_page(&access, request.cursor)?,
            page => page?,
        };
        let Recorded { status, entry, conflicts } = recorded;
        Ok(SubmitResponse { request_id: request.request_id, status, duplicate, entry, conflicts, page })
    }

    fn empty_page(&self, access: &Access, cursor: Cursor) -> Result<OutboxPage> {
        let partition = self.partition(access.owner())?;
        Ok(OutboxPage { partition, entries: Vec::new(), next: cursor, head: cursor, floor: cursor.version() })
    }

    async fn submit_once(&self, access: &Access, request: &SubmitRequest, digest: &str) -> Result<(Recorded, bool)> {
        let mut ready = self.ready(request);
        let (requests, outbox) = (self.internal(REQUESTS)?, self.internal(OUTBOX)?);
        let id = request.request_id.to_string();
        let tx = self.adapter().begin(access, Mode::Write).await?;
        let mut work = Work::begin(self, tx, access.clone(), self.surroundings().new_id(), true).await?;
        let known = work.tx.select(&by_id(&requests, eq(ID, id.as_str()), 1)).await?;
        if let Some(row) = known.first() {
            let again = recorded(row, digest);
            work.tx.roll_back().await;
            return again.map(|recorded| (recorded, true));
        }
        let mut clock = work.clock.clone();
        clock.version -= 1;
        check_cursor(&mut *work.tx, &outbox, &clock, request.cursor).await?;
        if clock.version - i64::try_from(request.cursor.version().get()).unwrap_or(i64::MAX) > MAX_BEHIND {
            return Err(refused(Code::ClientFarBehind, "too much has happened since the cursor")
                .with_hint("catch up, and submit anew"));
        }
        work.tx.mark().await?;
        let (mut conflicts, borders) = run(self, &mut work, &mut ready).await?;
        if conflicts.is_empty() {
            // The new entry has no row yet.
            let mut since = Reading::new(&outbox, request.cursor.version(), usize::MAX)?;
            loop {
                let some = since.some(&mut *work.tx).await?;
                if some.is_empty() || conflicts.len() >= MAX_CONFLICTS {
                    break;
                }
                compare(request, &work, &borders, &some, &mut conflicts);
            }
        }
        let version = work.clock.version;
        if conflicts.is_empty() {
            let entry = match work.changes.is_empty() {
                true => None,
                false => cursor_of(version, &work)?,
            };
            let outcome = Recorded { status: Status::Applied, entry, conflicts };
            work.tx.insert(&requests, &record(&id, digest, &outcome, version, self.new_internal())).await?;
            work.finish(Some(&id)).await?;
            return Ok((outcome, false));
        }
        work.tx.roll_back_to_mark().await?;
        work.tx.tick(Tick::Back).await?;
        conflicts.truncate(MAX_CONFLICTS);
        let outcome = Recorded { status: Status::Conflict, entry: None, conflicts };
        work.tx.insert(&requests, &record(&id, digest, &outcome, version - 1, self.new_internal())).await?;
        work.tx.commit().await?;
        Ok((outcome, false))
    }

    /// Reads the inputs of all commands before any of them runs.
    fn ready(&self, request: &SubmitRequest) -> Vec<Ready> {
        let fragments = self.fragments();
        let one = |(at, command): (usize, &isles_kernel::sync::Command)| -> Ready {
            let found = fragments.get(&command.schema).and_then(|fragment| {
                fragment.commands.get(&command.name).map(|known| (fragment.clone(), known.clone()))
            });
            if let Some(message) = vain(&fragments, command) {
                return Err(conflict(at, ConflictCode::InvalidInput, None, None, message));
            }
            let Some((fragment, known)) = found else {
                let message = format!("there is no command \"{}\"", command.name);
                return Err(conflict(at, ConflictCode::UnknownCommand, None, None, message));
            };
            let plan = known(&command.input);
            let plan =
                plan.map_err(|error| conflict(at, ConflictCode::InvalidInput, None, None, error.public_message()))?;
            Ok((fragment, plan))
        };
        request.commands.iter().enumerate().map(one).collect()
    }
}

/// What a command has read by that no entry ever tells of, so that it would never be in conflict.
fn vain(fragments: &Fragments, command: &isles_kernel::sync::Command) -> Option<String> {
    let published = |schema: &str, table: &str| {
        let fragment = fragments.get(schema).filter(|fragment| fragment.publishes(table));
        fragment.and_then(|fragment| fragment.schema.table(table).ok().cloned())
    };
    let no_table = |schema: &str, table: &str| format!("no table \"{table}\" of schema \"{schema}\" is published");
    for key in &command.reads {
        if published(&key.schema, &key.table).is_none() {
            return Some(no_table(&key.schema, &key.table));
        }
    }
    for scope in &command.scopes {
        let Some(table) = published(&scope.schema, &scope.table) else {
            return Some(no_table(&scope.schema, &scope.table));
        };
        if let Some(column) = some_column(&scope.predicate, &|column| table.type_of(column).is_err()) {
            return Some(format!("table \"{}\" has no column \"{column}\"", scope.table));
        }
    }
    None
}

/// A column that clients do not have, if a predicate names one.
fn hidden_column(predicate: &Predicate) -> Option<&str> {
    some_column(predicate, &|column| column.starts_with('_'))
}

/// A column of a predicate of which something holds.
fn some_column<'a>(predicate: &'a Predicate, is: &impl Fn(&str) -> bool) -> Option<&'a str> {
    match predicate {
        Predicate::All(parts) | Predicate::Any(parts) => parts.iter().find_map(|part| some_column(part, is)),
        Predicate::Not(part) => some_column(part, is),
        Predicate::Eq(column, _)
        | Predicate::Ne(column, _)
        | Predicate::Lt(column, _)
        | Predicate::Lte(column, _)
        | Predicate::Gt(column, _)
        | Predicate::Gte(column, _)
        | Predicate::In(column, _)
        | Predicate::Null(column) => is(column).then_some(column),
    }
}

fn conflict(
    command: usize,
    code: ConflictCode,
    key: Option<RowKey>,
    version: Option<Version>,
    message: String,
) -> Conflict {
    Conflict { command, code, key, version, message }
}

fn cursor_of(version: i64, work: &Work<'_>) -> Result<Option<Cursor>> {
    let wrong = |error: isles_kernel::sync::SyncNameError| refused(Code::InvalidValue, error.to_string());
    let version = Version::new(version.unsigned_abs()).map_err(wrong)?;
    let last = work.clock.last.as_deref().unwrap_or_default();
    let id: EntryId = last.parse().map_err(wrong)?;
    Cursor::at(version, id).map(Some).map_err(wrong)
}

/// Runs the commands: the conflict of the first that does not go, and where the changes of each begin.
async fn run(store: &Store, work: &mut Work<'_>, ready: &mut [Ready]) -> Result<(Vec<Conflict>, Vec<usize>)> {
    let refused_first = ready.iter().find_map(|one| one.as_ref().err().cloned());
    if let Some(conflict) = refused_first {
        return Ok((vec![conflict], Vec::new()));
    }
    let mut borders = Vec::new();
    for (at, one) in ready.iter_mut().enumerate() {
        let Ok((fragment, plan)) = one else { continue };
        borders.push(work.changes.len());
        match apply(store, work, fragment, plan).await {
            Ok(()) => {}
            Err(error) => {
                let code = match &error {
                    Error::CheckFailed(_) => ConflictCode::CheckFailed,
                    Error::Constraint { .. } => ConflictCode::Constraint,
                    Error::Refused(_) => ConflictCode::Rejected,
                    Error::Conflict(_) | Error::MayHaveHappened(_) | Error::Database(_) => return Err(error),
                };
                return Ok((vec![conflict(at, code, None, None, error.public_message())], borders));
            }
        }
    }
    Ok((Vec::new(), borders))
}

async fn apply(store: &Store, work: &mut Work<'_>, fragment: &Arc<Fragment>, plan: &mut Plan<()>) -> Result<()> {
    let queries = plan.queries(fragment)?;
    let answers = retrieve(&mut *work.tx, fragment, &queries).await?;
    let mutation = Mutation::new(store, fragment, store.surroundings().new_id(), 0);
    let ((), mutation) = plan.operations(mutation, &answers)?;
    work.apply(&mutation).await
}

/// What has happened since the cursor to rows that the commands write or have read.
fn compare(request: &SubmitRequest, work: &Work<'_>, borders: &[usize], since: &[Read], conflicts: &mut Vec<Conflict>) {
    for read in since {
        let version = Some(read.entry.version);
        for (n, mutation) in read.entry.mutations.iter().enumerate() {
            let before = read.before.get(n).and_then(Option::as_ref);
            if let Some(place) = work.changes.iter().position(|change| change.mutation.key == mutation.key) {
                let at = borders.partition_point(|border| *border <= place).saturating_sub(1);
                let message = "a row that is written has changed".into();
                conflicts.push(conflict(at, ConflictCode::WriteConflict, Some(mutation.key.clone()), version, message));
            }
            for (at, command) in request.commands.iter().enumerate() {
                if command.reads.contains(&mutation.key) {
                    let message = "a row that was read has changed".into();
                    conflicts.push(conflict(
                        at,
                        ConflictCode::ReadConflict,
                        Some(mutation.key.clone()),
                        version,
                        message,
                    ));
                }
                if command.scopes.iter().any(|scope| touches(scope, mutation, before)) {
                    let message = "rows of a scope have changed".into();
                    conflicts.push(conflict(
                        at,
                        ConflictCode::ScopeConflict,
                        Some(mutation.key.clone()),
                        version,
                        message,
                    ));
                }
            }
        }
    }
}

/// Whether a row was in a scope before a change, or is after it.
fn touches(
    scope: &Scope,
    mutation: &isles_kernel::sync::Mutation,
    before: Option<&isles_kernel::sync::Values>,
) -> bool {
    if scope.schema != mutation.key.schema || scope.table != mutation.key.table {
        return false;
    }
    let meets = |row: &isles_kernel::sync::Values| with_id(&scope.predicate, row, &mutation.key.external_id);
    let mut after = before.cloned().unwrap_or_default();
    after.merge(&mutation.values);
    before.is_some_and(meets) || (mutation.op != isles_kernel::sync::Op::Delete && meets(&after))
}

/// Conditions may name the id, which is not among a row's values.
fn with_id(predicate: &Predicate, row: &isles_kernel::sync::Values, id: &str) -> bool {
    let mut columns: std::collections::BTreeMap<String, serde_json::Value> =
        row.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
    columns.insert(ID.into(), id.into());
    isles_kernel::sync::Values::new(columns).is_ok_and(|row| predicate.matches(&row))
}

fn digest(request: &SubmitRequest) -> String {
    let body = serde_json::to_vec(request).unwrap_or_default();
    let digest = ring::digest::digest(&ring::digest::SHA256, &body);
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn record(id: &str, digest: &str, outcome: &Recorded, version: i64, internal: i64) -> Row {
    let outcome = serde_json::to_string(outcome).unwrap_or_default();
    let values = Values::new().set("digest", digest).set("outcome", Value::Json(outcome)).set("version", version);
    Row { id: id.into(), internal, version: 0, values }
}

fn recorded(row: &Row, digest: &str) -> Result<Recorded> {
    if row.values.text("digest") != Some(digest) {
        return Err(refused(Code::RequestIdReused, "the request id was used for another request"));
    }
    serde_json::from_str(row.values.text("outcome").unwrap_or_default())
        .map_err(|error| refused(Code::InvalidValue, format!("the record of a request is damaged: {error}")))
}
