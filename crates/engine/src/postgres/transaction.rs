//! Requests and interactive transactions.
//!
//!     execute   BEGIN, whom for, fence, statements ─┬→ COMMIT ─→ answer   (a write: two round trips)
//!               whom for, fence, statements ─→ answer                     (a read: one)
//!               whom for, statement with the fence in it ─→ answer        (a single read that Isles composed: one)
//!     begin     BEGIN, whom for, fence ─ statement ─ statement … ─ COMMIT
//!
//! Statements that do not depend on an answer are one [`Exchange`]. Without a BEGIN it is a transaction by itself, and
//! read only. The COMMIT of a write waits for the answers before it: only then do we know that no limit was passed, and
//! that a connection lost before it means "nothing happened".
//!
//! A bound that is passed (time, cancel, rows, bytes) ends the request here, and a cancel request ends it in the server.
//! The server's own `statement_timeout` is set as well: it works even when we are gone.
//!
//! Invariants (docs/invariants.md):
//!   * I-3   only a COMMIT that was sent and not answered is "may have happened"
//!   * I-7   the fence is checked in the transaction, before its first statement
//!   * I-44  so is whose the shard is, where it is one tenant's
//!   * I-45  passing a bound ends that statement only

use super::binding::{self, Acting};
use super::ddl::quote;
use super::entries;
use super::exchange::{self, Answer, Exchange, Known};
use super::fault;
use super::fence::{self, ENTER, Entry, Shape};
use super::pledge::{self, PgPledge};
use super::pool::{Conn, Connections, Ended};
use super::scan::{self, Kind};
use super::schema;
use super::value::{Param, Raw, decode};
use crate::binding::Binding;
use crate::entries::Observed;
use crate::env::Env;
use crate::error::{Result, ShardError};
use crate::fence::{Access, Claim, Claimed, FenceScope};
use crate::shard::{
    ActsFor, Begin, CursorId, CursorPage, Isolation, Limits, MAX_PARAMETERS, MAX_SQL_BYTES, MAX_STATEMENTS, Outcome,
    Pledge, Request, Row, SchemaStep, Statement, Transaction,
};
use async_trait::async_trait;
use futures::future::{Either, select};
use isles_kernel::names::{GroupName, PledgeId, ShardId};
use isles_kernel::schema::Schema;
use isles_kernel::value::{DataType, Value};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;
use tokio_postgres::types::ToSql;

/// The server ends a statement by itself at the time limit; we wait a little longer for its answer.
const GRACE: Duration = Duration::from_millis(500);
/// A statement we have cancelled answers within this, or the connection is given up.
const CANCEL_LIMIT: Duration = Duration::from_secs(2);
/// Open cursors of a transaction, each of which holds resources in the server.
const MAX_CURSORS: usize = 1_000;

const COMMIT: &str = "COMMIT";
/// In front of the COMMIT of a transaction that has run a foreign text, which may have made its commit asynchronous; but
/// then others would see what a crash takes back, and readers of the log would have been given positions that come again
/// (I-4).
const SYNCHRONOUS: &str = "SET LOCAL synchronous_commit = on";

/// Ends a transaction.
async fn commit(conn: &Conn) -> Result<()> {
    let [synchronous, commit] = conn.know([SYNCHRONOUS, COMMIT]).await?;
    let mut exchange = Exchange::default();
    if conn.has_run_foreign() {
        exchange.run(&synchronous, &[], &[])?;
    }
    exchange.run(&commit, &[], &[])?;
    conn.exchange(exchange, |_, fault| fault::during_commit(fault), |_, _| Ok(())).await
}

/// What rows and bytes a request may still return; shared by its statements, which run side by side.
struct Budget {
    rows: AtomicUsize,
    bytes: AtomicUsize,
    limits: Limits,
}

impl Budget {
    fn new(limits: &Limits) -> Budget {
        Budget { rows: AtomicUsize::new(0), bytes: AtomicUsize::new(0), limits: limits.clone() }
    }

    fn take(&self, bytes: usize) -> Result<()> {
        if self.rows.fetch_add(1, Ordering::Relaxed) >= self.limits.rows {
            return Err(ShardError::Limit { what: "the result's rows", limit: self.limits.rows as u64 });
        }
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > self.limits.bytes {
            return Err(ShardError::Limit { what: "the result's bytes", limit: self.limits.bytes as u64 });
        }
        Ok(())
    }
}

pub(super) fn check_statement(statement: &Statement) -> Result<()> {
    if statement.sql.len() > MAX_SQL_BYTES {
        return Err(ShardError::Limit { what: "the statement's text", limit: MAX_SQL_BYTES as u64 });
    }
    if statement.params.len() > MAX_PARAMETERS {
        return Err(ShardError::Limit { what: "the number of parameters", limit: MAX_PARAMETERS as u64 });
    }
    Ok(())
}

/// The text that begins a transaction. There are few, so that they stay parsed.
fn begin_text(isolation: Isolation, access: Access) -> &'static str {
    match (isolation, access) {
        (Isolation::ReadCommitted, Access::Read) => "BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY",
        (Isolation::ReadCommitted, Access::Write) => "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
        (Isolation::RepeatableRead, Access::Read) => "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
        (Isolation::RepeatableRead, Access::Write) => "BEGIN ISOLATION LEVEL REPEATABLE READ READ WRITE",
        (Isolation::Serializable, Access::Read) => "BEGIN ISOLATION LEVEL SERIALIZABLE READ ONLY",
        (Isolation::Serializable, Access::Write) => "BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE",
    }
}

/// Tells the server the time limit of statements, until the transaction ends.
const LIMIT_TIME: &str = "SELECT pg_catalog.set_config('statement_timeout', $1, true)";

/// A time limit, as the server takes it. Zero would mean none.
fn time_text(time: Duration) -> String {
    time.as_millis().clamp(1, i32::MAX as u128).to_string()
}

/// Waits for `work` until the caller cancels or the time is over. The outer error is ours: the work has not ended.
pub(super) async fn bounded<T>(
    env: &dyn Env,
    limits: &Limits,
    time: Duration,
    work: impl Future<Output = Result<T>> + Unpin,
) -> Result<Result<T>> {
    if limits.cancel.is_cancelled() {
        return Err(ShardError::Cancelled);
    }
    if time.is_zero() {
        return Err(ShardError::TimedOut);
    }
    let cancelled = pin!(limits.cancel.cancelled());
    match select(work, select(cancelled, env.sleep(time))).await {
        Either::Left((result, _)) => Ok(result),
        Either::Right((Either::Left(_), _)) => Err(ShardError::Cancelled),
        Either::Right((Either::Right(_), _)) => Err(ShardError::TimedOut),
    }
}

/// Who is told of changes before they are committed, and the schema that they are written under, as last seen.
#[derive(Debug, Clone)]
pub(super) struct Watch {
    pub(super) shard: ShardId,
    pub(super) observed: Observed,
    pub(super) schema: Arc<Schema>,
}

/// A request, and what is sent before its statements.
struct Asked<'a> {
    request: &'a Request,
    watch: &'a Watch,
    /// Whom it acts for.
    acting: Acting,
}

impl Asked<'_> {
    fn entry(&self) -> Entry {
        Entry::new(self.request.claim.clone(), self.request.access)
    }
}

/// Runs a whole request.
pub(super) async fn execute(
    connections: &Connections,
    env: &dyn Env,
    binding: &Binding,
    watch: &Watch,
    request: &Request,
) -> Result<Vec<Outcome>> {
    if request.statements.len() > MAX_STATEMENTS {
        return Err(ShardError::Limit { what: "the number of statements", limit: MAX_STATEMENTS as u64 });
    }
    request.statements.iter().try_for_each(check_statement)?;
    binding.check(&ActsFor::Nobody, &request.claim.units)?;
    let asked = Asked { request, watch, acting: binding::acting(binding, &request.acts_for) };
    let began = env.elapsed();
    for last_try in [false, true] {
        let committing = AtomicBool::new(false);
        let spent = if last_try { env.elapsed() - began } else { Duration::ZERO };
        let left = request.limits.time.saturating_sub(spent);
        let work = async {
            match request.statements.as_slice() {
                [one] if request.access == Access::Read && one.composed && !request.claim.units.is_empty() => {
                    read_alone(connections, &asked, one).await.map(|outcome| vec![outcome])
                }
                _ => attempt(connections, &asked, left, &committing).await,
            }
        };
        let work = std::pin::pin!(work);
        match bounded(env, &request.limits, left, work).await {
            Ok(Err(error)) if !last_try && fault::is_stale_statement(&error) => connections.forget_statements(),
            Ok(result) => return result,
            // The COMMIT was out: neither "cancelled" nor "timed out" would be true.
            Err(_) if committing.load(Ordering::SeqCst) => {
                return Err(ShardError::MayHaveHappened("the time limit passed during commit".into()));
            }
            Err(error) => return Err(error),
        }
    }
    Err(ShardError::Conflict("the schema keeps changing".into()))
}

/// How often a read goes by the token of the fences, before it looks at the fences themselves.
const BY_TOKEN: usize = 2;

/// A statement that only reads and looks at the fences itself: no transaction around it, nothing to clean up after it.
async fn read_alone(connections: &Connections, asked: &Asked<'_>, statement: &Statement) -> Result<Outcome> {
    let conn = connections.lend().await?;
    let answer = match read_by_token(connections, &conn, asked, statement).await {
        Ok(Some(outcome)) => Ok(outcome),
        Ok(None) => read_by_fences(connections, &conn, asked, statement).await,
        Err(error) => Err(error),
    };
    let answer = answer.and_then(|outcome| asked.request.claim.check_still().map(|()| outcome));
    match &answer {
        Err(ShardError::Unavailable(_)) => {}
        Err(error) => {
            give_up(&conn, error);
            conn.finish(Ended::Closed);
        }
        Ok(_) => conn.finish(Ended::Closed),
    }
    answer
}

/// Reads if the fences are those that we know, and let it in. None if they do not, or keep changing.
async fn read_by_token(
    connections: &Connections,
    conn: &Conn,
    asked: &Asked<'_>,
    statement: &Statement,
) -> Result<Option<Outcome>> {
    let mut past = None;
    for _ in 0..BY_TOKEN {
        let known = connections.fences(conn, past).await?;
        past = Some(known.token);
        if known.table.check(&asked.request.claim, Access::Read).is_err() {
            continue;
        }
        let fenced = match conn.known_by_token(&statement.sql) {
            Some(fenced) => fenced,
            None => learn_by_token(connections, conn, statement).await?,
        };
        match read_fenced(conn, &fenced, asked, statement, &[&known.token], fault::before_commit).await {
            Err(error) if fence::says_refused(&error) => {}
            answer => return answer.map(Some),
        }
    }
    Ok(None)
}

/// Has the server parse a statement that looks at the fences' token, if it has not yet.
async fn learn_by_token(connections: &Connections, conn: &Conn, statement: &Statement) -> Result<Arc<Known>> {
    let sql = connections.fenced(&statement.sql, Shape::Token, statement.params.len());
    let known = conn.knows(&sql).await?;
    conn.keep_by_token(&statement.sql, &known);
    Ok(known)
}

async fn read_by_fences(
    connections: &Connections,
    conn: &Conn,
    asked: &Asked<'_>,
    statement: &Statement,
) -> Result<Outcome> {
    let entry = asked.entry();
    let sql = connections.fenced(&statement.sql, entry.shape(), statement.params.len());
    let params = entry.params();
    let read = || read_by_text(conn, &sql, asked, statement, &params, |fault| entry.refusal(fault));
    match read().await {
        // Why, is asked. If the fences have changed meanwhile and there is no reason any more, the read is tried again.
        Err(error) if fence::says_refused(&error) => {
            entry.look(conn).await?;
            read().await
        }
        answer => answer,
    }
}

async fn read_by_text(
    conn: &Conn,
    sql: &str,
    asked: &Asked<'_>,
    statement: &Statement,
    fence: &[&(dyn ToSql + Sync)],
    explain: impl Fn(fault::Fault) -> ShardError,
) -> Result<Outcome> {
    let known = conn.knows(sql).await?;
    read_fenced(conn, &known, asked, statement, fence, explain).await
}

/// Runs a statement that takes `fence` behind its own parameters.
async fn read_fenced(
    conn: &Conn,
    known: &Arc<Known>,
    asked: &Asked<'_>,
    statement: &Statement,
    fence: &[&(dyn ToSql + Sync)],
    explain: impl Fn(fault::Fault) -> ShardError,
) -> Result<Outcome> {
    let Asked { request, acting, .. } = asked;
    let own = known.params.len().saturating_sub(fence.len());
    if own != statement.params.len() || known.columns.len() != statement.columns.len() {
        conn.forget_known(known);
        return Err(ShardError::Conflict("the schema has changed".into()));
    }
    let mut exchange = Exchange::default();
    acting.ask(conn, &mut exchange).await?;
    let own = exchange.parts();
    exchange.run(known, &statement.params, fence)?;
    let (budget, mut rows) = (Budget::new(&request.limits), Vec::new());
    let take = |part: usize, answer: Answer| match answer {
        Answer::Row(row) if part == own => {
            budget.take(row.buffer().len())?;
            rows.push(exchange::read_row(&row, &known.columns, &statement.columns)?);
            Ok(())
        }
        _ => Ok(()),
    };
    conn.exchange(exchange, |_, fault| explain(fault), take).await?;
    Ok(Outcome { rows, affected: 0 })
}

async fn attempt(
    connections: &Connections,
    asked: &Asked<'_>,
    left: Duration,
    committing: &AtomicBool,
) -> Result<Vec<Outcome>> {
    let request = asked.request;
    let conn = connections.lend().await?;
    let known = match learn_all(&conn, request).await {
        Ok(known) => known,
        Err(error) => {
            conn.finish(Ended::Closed);
            return Err(error);
        }
    };
    match run_all(&conn, asked, left, &known).await {
        Ok(outcomes) if request.access == Access::Read => {
            conn.finish(Ended::Closed);
            request.claim.check_still().map(|()| outcomes)
        }
        Ok(outcomes) => {
            // Compared first: what it adds itself does not overtake it.
            let seen = match request.claim.check_still() {
                Ok(()) => entries::observe(&conn, &asked.watch.shard, &asked.watch.observed, &asked.watch.schema).await,
                overtaken => overtaken,
            };
            if let Err(error) = seen {
                conn.finish(Ended::Open);
                return Err(error);
            }
            committing.store(true, Ordering::SeqCst);
            let answer = commit(&conn).await;
            committing.store(false, Ordering::SeqCst);
            conn.finish(if answer.is_ok() { Ended::Closed } else { Ended::Open });
            answer.map(|()| outcomes)
        }
        Err(error) => {
            give_up(&conn, &error);
            // Without a BEGIN, an error has ended it.
            conn.finish(if request.access == Access::Read { Ended::Closed } else { Ended::Open });
            Err(error)
        }
    }
}

/// A result that passed a limit still flows; the server is asked to stop it.
fn give_up(conn: &Conn, error: &ShardError) {
    if matches!(error, ShardError::Limit { .. }) {
        conn.cancel();
    }
}

/// Has the server parse what it does not know, in one round trip.
async fn learn_all(conn: &Conn, request: &Request) -> Result<Vec<Arc<Known>>> {
    let missing: Vec<&str> =
        request.statements.iter().map(|statement| &*statement.sql).filter(|sql| conn.known(sql).is_none()).collect();
    if !missing.is_empty() {
        conn.learn(&missing).await?;
    }
    let mut known = Vec::with_capacity(request.statements.len());
    for statement in &request.statements {
        known.push(learn(conn, statement).await?);
    }
    Ok(known)
}

async fn learn(conn: &Conn, statement: &Statement) -> Result<Arc<Known>> {
    if !statement.composed {
        conn.runs_foreign();
    }
    let mut known = conn.knows(&statement.sql).await?;
    if !has_columns(&known, statement) {
        // It may have been parsed before the schema changed.
        conn.forget(&statement.sql);
        known = conn.knows(&statement.sql).await?;
    }
    if !has_columns(&known, statement) {
        let message =
            format!("the statement has {} columns, {} are expected", known.columns.len(), statement.columns.len());
        return Err(ShardError::statement("42804", message));
    }
    Ok(known)
}

fn has_columns(known: &Known, statement: &Statement) -> bool {
    statement.columns.is_empty() || known.columns.len() == statement.columns.len()
}

/// Sends everything up to the COMMIT of a write, or all of a read, and collects the answers.
async fn run_all(conn: &Conn, asked: &Asked<'_>, left: Duration, known: &[Arc<Known>]) -> Result<Vec<Outcome>> {
    let (Asked { request, acting, .. }, entry) = (asked, asked.entry());
    let begin = begin_text(Isolation::ReadCommitted, request.access);
    let [begin, limit, enter, ..] = conn.know([begin, LIMIT_TIME, ENTER, SYNCHRONOUS, COMMIT]).await?;
    let mut exchange = Exchange::default();
    if request.access == Access::Write {
        exchange.run(&begin, &[], &[])?;
    }
    exchange.run(&limit, &[], &[&time_text(left)])?;
    acting.ask(conn, &mut exchange).await?;
    if !entry.is_empty() {
        entry.ask(&mut exchange, &enter)?;
    }
    let own = exchange.parts();
    let explain = |part: usize, fault| if part < own { entry.refusal(fault) } else { fault::before_commit(fault) };
    let statements: Vec<&Statement> = request.statements.iter().collect();
    run_statements(conn, exchange, &statements, known, request.access, &Budget::new(&request.limits), explain).await
}

/// Sends statements behind what an exchange has already, and collects their answers.
async fn run_statements(
    conn: &Conn,
    mut exchange: Exchange,
    statements: &[&Statement],
    known: &[Arc<Known>],
    access: Access,
    budget: &Budget,
    explain: impl Fn(usize, fault::Fault) -> ShardError,
) -> Result<Vec<Outcome>> {
    let own = exchange.parts();
    for (statement, known) in statements.iter().zip(known) {
        exchange.run(known, &statement.params, &[])?;
    }
    let mut outcomes: Vec<Outcome> = statements.iter().map(|_| Outcome::default()).collect();
    let take = |part: usize, answer: Answer| {
        let Some(at) = part.checked_sub(own) else { return Ok(()) };
        match answer {
            Answer::Row(row) => {
                budget.take(row.buffer().len())?;
                if !statements[at].columns.is_empty() {
                    outcomes[at].rows.push(exchange::read_row(&row, &known[at].columns, &statements[at].columns)?);
                }
            }
            Answer::Ended(touched) => outcomes[at].affected = touched,
            Answer::Params(_) | Answer::Columns(_) => {}
        }
        Ok(())
    };
    conn.exchange(exchange, explain, take).await?;
    for (outcome, statement) in outcomes.iter_mut().zip(statements) {
        // The server counts the rows of a SELECT, too.
        let modifies = access == Access::Write && outcome.affected > 0 && scan::kind(&statement.sql) == Kind::Modifies;
        if !modifies {
            outcome.affected = 0;
        }
    }
    Ok(outcomes)
}

pub(super) fn read_row(row: &tokio_postgres::Row, types: &[DataType]) -> Result<Row> {
    types.iter().enumerate().map(|(at, ty)| read_value(row, at, *ty)).collect()
}

pub(super) fn read_value(row: &tokio_postgres::Row, at: usize, ty: DataType) -> Result<Value> {
    let raw: Option<Raw<'_>> = row.try_get(at).map_err(fault::before_commit)?;
    decode(raw.map(|raw| raw.0), row.columns()[at].type_(), ty)
}

/// Begins an interactive transaction.
pub(super) async fn begin(
    shard: &ShardId,
    connections: &Arc<Connections>,
    control: &Arc<Connections>,
    env: &Arc<dyn Env>,
    binding: Arc<Binding>,
    watch: Watch,
    begin: Begin,
) -> Result<PgTransaction> {
    let (limits, time) = (begin.limits.clone(), begin.limits.time);
    let work = async {
        let conn = connections.lend().await?;
        let opening = Opening {
            text: begin_text(begin.isolation, begin.access),
            time,
            acting: binding::acting(&binding, &begin.acts_for),
        };
        let mut transaction = PgTransaction {
            shard: shard.clone(),
            conn: None,
            clients: connections.clone(),
            control: control.clone(),
            env: env.clone(),
            binding,
            watch,
            access: begin.access,
            isolation: begin.isolation,
            limits: begin.limits,
            server_limit: time,
            failed: false,
            cursors: BTreeMap::new(),
            next_cursor: 0,
            changed: None,
        };
        match transaction.enter(&conn, Some(opening), begin.claim).await {
            Ok(()) => {
                transaction.conn = Some(conn);
                Ok(transaction)
            }
            Err(error) => {
                conn.finish(Ended::Open);
                Err(error)
            }
        }
    };
    bounded(env.as_ref(), &limits, time, Box::pin(work)).await?
}

/// What is sent first in a transaction.
struct Opening {
    text: &'static str,
    time: Duration,
    acting: Acting,
}

impl Opening {
    async fn ask(&self, conn: &Conn, exchange: &mut Exchange) -> Result<()> {
        let [begin, limit] = conn.know([self.text, LIMIT_TIME]).await?;
        exchange.run(&begin, &[], &[])?;
        exchange.run(&limit, &[], &[&time_text(self.time)])?;
        self.acting.ask(conn, exchange).await
    }
}

/// What is open under a cursor's number.
enum Cursor {
    /// In the server, under a name of its own.
    Declared { name: String, columns: Arc<[DataType]> },
    /// Here: the rows of a statement that writes, which the server has run to its end.
    Held(VecDeque<Row>),
}

pub(super) struct PgTransaction {
    shard: ShardId,
    /// None once the connection is lost or has been given back.
    conn: Option<Conn>,
    /// Where the connection is from.
    clients: Arc<Connections>,
    /// For looking at the fences with a fresh snapshot.
    control: Arc<Connections>,
    env: Arc<dyn Env>,
    /// Whose the shard was when the transaction began.
    binding: Arc<Binding>,
    watch: Watch,
    access: Access,
    isolation: Isolation,
    limits: Limits,
    /// What the server has been told of the time limit.
    server_limit: Duration,
    /// After an error, until a savepoint is rolled back to.
    failed: bool,
    cursors: BTreeMap<CursorId, Cursor>,
    next_cursor: u32,
    /// Once it has changed the schema: the groups that it has made. Nobody else knows them yet.
    changed: Option<BTreeSet<GroupName>>,
}

impl Drop for PgTransaction {
    /// Rolls back. The connection is here only between two steps, when it is idle: so it can be used again.
    fn drop(&mut self) {
        if let Some(conn) = self.conn.take() {
            self.give_back(conn, Ended::Open);
        }
    }
}

fn aborted() -> ShardError {
    ShardError::statement("25P02", "current transaction is aborted, commands ignored until end of transaction block")
}

fn lost() -> ShardError {
    ShardError::Unavailable("the transaction's connection is gone".into())
}

/// Waits for a statement's work on `conn`, within the limits. Says, too, whether the connection can be used again.
///
/// What passes its bounds is cancelled in the server. If it then answers, the transaction can go on from a savepoint.
async fn within<T>(
    env: &dyn Env,
    limits: &Limits,
    conn: &Conn,
    work: impl Future<Output = Result<T>> + Send,
) -> (Result<T>, bool) {
    let mut work = Box::pin(work);
    match bounded(env, limits, limits.time + GRACE, work.as_mut()).await {
        Ok(result) => {
            let usable = !matches!(result, Err(ShardError::Unavailable(_)));
            (result, usable)
        }
        Err(error) => {
            conn.cancel();
            let ended = matches!(select(work, env.sleep(CANCEL_LIMIT)).await, Either::Left(_));
            (Err(error), ended)
        }
    }
}

async fn run(conn: &Conn, statement: &Statement, access: Access, limits: &Limits) -> Result<Outcome> {
    let known = [learn(conn, statement).await?];
    let budget = Budget::new(limits);
    let explain = |_, fault| fault::before_commit(fault);
    match run_statements(conn, Exchange::default(), &[statement], &known, access, &budget, explain).await {
        Err(error) if fault::is_stale_statement(&error) => {
            conn.forget(&statement.sql);
            Err(ShardError::Conflict("the schema has changed".into()))
        }
        result => result.map(|mut outcomes| outcomes.pop().unwrap_or_default()),
    }
}

/// Sends statements without waiting in between. The server runs them in order, and none after one that fails.
async fn run_many(conn: &Conn, statements: &[Statement], access: Access, limits: &Limits) -> Result<Vec<Outcome>> {
    let mut known = Vec::with_capacity(statements.len());
    for statement in statements {
        known.push(learn(conn, statement).await?);
    }
    let statements: Vec<&Statement> = statements.iter().collect();
    let explain = |_, fault| fault::before_commit(fault);
    run_statements(conn, Exchange::default(), &statements, &known, access, &Budget::new(limits), explain).await
}

async fn plain(conn: &Conn, sql: &str) -> Result<()> {
    conn.batch_execute(sql).await.map_err(fault::before_commit)
}

/// Declares a cursor. Its parameters are those of the statement within it.
async fn declare(conn: &Conn, name: &str, statement: &Statement) -> Result<()> {
    if !statement.composed {
        conn.runs_foreign();
    }
    let text = format!("DECLARE {name} NO SCROLL CURSOR FOR {}", statement.sql);
    let known = conn.prepare_once(&text).await?;
    if known.params().len() != statement.params.len() {
        let message =
            format!("the statement has {} parameters, {} are given", known.params().len(), statement.params.len());
        return Err(ShardError::statement("08P01", message));
    }
    let params: Vec<Param> =
        statement.params.iter().zip(known.params()).map(|(value, ty)| Param::new(value, ty)).collect::<Result<_>>()?;
    conn.each_row(&known, params, fault::before_commit, |_| Ok(())).await.map(drop)
}

/// Opens a statement that may or may not be one that a cursor can read. Which it is, only the server can say, and a
/// wrong guess would end the transaction: hence the savepoint.
async fn declare_or_run(
    conn: &Conn,
    name: &str,
    statement: &Statement,
    access: Access,
    limits: &Limits,
) -> Result<Option<Outcome>> {
    plain(conn, "SAVEPOINT _isles_cursor").await?;
    match declare(conn, name, statement).await {
        Ok(()) => plain(conn, "RELEASE _isles_cursor").await.map(|()| None),
        Err(ShardError::Statement(error)) if error.sqlstate == "0A000" || error.sqlstate == "42601" => {
            plain(conn, "ROLLBACK TO _isles_cursor; RELEASE _isles_cursor").await?;
            run(conn, statement, access, limits).await.map(Some)
        }
        Err(error) => Err(error),
    }
}

async fn open(
    conn: &Conn,
    name: &str,
    statement: &Statement,
    access: Access,
    limits: &Limits,
) -> Result<Option<Outcome>> {
    match scan::kind(&statement.sql) {
        Kind::Reads => declare(conn, name, statement).await.map(|()| None),
        Kind::Unclear => declare_or_run(conn, name, statement, access, limits).await,
        Kind::Modifies => run(conn, statement, access, limits).await.map(Some),
    }
}

async fn fetch(conn: &Conn, name: &str, columns: &[DataType], rows: usize, limits: &Limits) -> Result<CursorPage> {
    // Not cached: under the same name there may be another query the next time.
    let known = conn.prepare_once(&format!("FETCH FORWARD {rows} FROM {name}")).await?;
    if known.columns().len() != columns.len() {
        return Err(ShardError::statement("42804", "the cursor has other columns than expected"));
    }
    let budget = Budget::new(limits);
    let none: [Param; 0] = [];
    let mut page = Vec::new();
    let take = |row: tokio_postgres::Row| {
        budget.take(row.raw_size_bytes())?;
        page.push(read_row(&row, columns)?);
        Ok(())
    };
    conn.each_row(&known, none, fault::before_commit, take).await?;
    Ok(CursorPage { done: page.len() < rows, rows: page })
}

impl PgTransaction {
    /// Takes the connection for one step. Should the caller drop the step halfway, the connection goes with it.
    fn take(&mut self) -> Result<Conn> {
        self.conn.take().ok_or_else(lost)
    }

    fn take_live(&mut self) -> Result<Conn> {
        if self.failed { Err(aborted()) } else { self.take() }
    }

    /// Puts the connection back after a step, and remembers what an error did to the transaction.
    fn end_step<T>(&mut self, conn: Conn, (result, usable): (Result<T>, bool)) -> Result<T> {
        if let Err(error) = &result {
            self.failed = true;
            give_up(&conn, error);
        }
        if usable {
            self.conn = Some(conn);
        }
        result
    }

    /// Gives the connection back when the transaction has ended. What was prepared under a schema of its own goes.
    fn give_back(&self, conn: Conn, ended: Ended) {
        if self.changed.is_some() {
            conn.forget_all();
        }
        conn.finish(ended);
    }

    async fn step(&mut self, conn: Conn, sql: String) -> Result<()> {
        let done = within(self.env.as_ref(), &self.limits, &conn, plain(&conn, &sql)).await;
        self.end_step(conn, done)
    }

    /// Tells the server of a time limit that is not the one it knows.
    async fn tell_limit(&mut self) -> Result<()> {
        if self.limits.time == self.server_limit {
            return Ok(());
        }
        let conn = self.take_live()?;
        let limit = self.limits.time.as_millis().clamp(1, i32::MAX as u128);
        self.step(conn, format!("SET LOCAL statement_timeout = {limit}")).await?;
        self.server_limit = self.limits.time;
        Ok(())
    }

    /// Begins, if it has not begun, and passes the fences of `claim`.
    async fn enter(&self, conn: &Conn, begin: Option<Opening>, claim: Claim) -> Result<()> {
        self.binding.check(&ActsFor::Nobody, &claim.units)?;
        let led = Claim { still: claim.still.clone(), ..Claim::new(claim.version, Vec::new()) };
        let (own, others) = self.split(claim);
        self.enter_units(conn, begin, others, self.isolation).await?;
        if !own.units.is_empty() {
            // Others do not see the groups that this transaction has made, so there is nothing to compare with.
            self.enter_units(conn, None, own, Isolation::ReadCommitted).await?;
        }
        // Whoever keeps a snapshot has it by now; who takes one for each statement compares when that has run.
        led.check_still()
    }

    /// The units of groups that the transaction has made, and the others.
    fn split(&self, claim: Claim) -> (Claim, Claim) {
        let is_own = |unit: &Claimed| match (unit, &self.changed) {
            (Claimed::Bucket(group, _) | Claimed::Buckets(group, ..) | Claimed::OwnBuckets(group, ..), Some(own)) => {
                own.contains(group)
            }
            _ => false,
        };
        let (own, others) = claim.units.into_iter().partition(is_own);
        (Claim::new(claim.version, own), Claim::new(claim.version, others))
    }

    /// Tells the observer what is about to be committed.
    async fn observe(&mut self, conn: Conn) -> Result<Conn> {
        if self.watch.observed.interested().is_none() || self.access == Access::Read {
            return Ok(conn);
        }
        let work = entries::observe(&conn, &self.shard, &self.watch.observed, &self.watch.schema);
        let (result, usable) = within(self.env.as_ref(), &self.limits, &conn, work).await;
        match result {
            Ok(()) => Ok(conn),
            Err(error) => {
                if usable {
                    self.give_back(conn, Ended::Open);
                }
                Err(error)
            }
        }
    }

    async fn enter_units(&self, conn: &Conn, begin: Option<Opening>, claim: Claim, isolation: Isolation) -> Result<()> {
        let entry = Entry::new(claim, self.access);
        let [enter] = conn.know([ENTER]).await?;
        let mut exchange = Exchange::default();
        if let Some(begin) = begin {
            begin.ask(conn, &mut exchange).await?;
        }
        let own = exchange.parts();
        if !entry.is_empty() {
            entry.ask(&mut exchange, &enter)?;
        }
        let mut seen = String::new();
        let take = |part: usize, answer: Answer| match answer {
            Answer::Row(row) if part == own => fence::read_seen(&row, &enter).map(|text| seen = text),
            _ => Ok(()),
        };
        conn.exchange(exchange, |_, fault| entry.refusal(fault), take).await?;
        if isolation == Isolation::ReadCommitted || entry.is_empty() {
            return Ok(());
        }
        let control = self.control.lend().await?;
        let now = entry.look(&control).await;
        control.finish(Ended::Closed);
        if now? == seen {
            Ok(())
        } else {
            Err(ShardError::Conflict("a unit has moved since the transaction began".into()))
        }
    }
}

#[async_trait]
impl Transaction for PgTransaction {
    async fn claim(&mut self, claim: Claim) -> Result<()> {
        let conn = self.take_live()?;
        let done = within(self.env.as_ref(), &self.limits, &conn, self.enter(&conn, None, claim)).await;
        self.end_step(conn, done)
    }

    async fn execute(&mut self, statement: &Statement) -> Result<Outcome> {
        check_statement(statement)?;
        self.tell_limit().await?;
        let conn = self.take_live()?;
        let work = run(&conn, statement, self.access, &self.limits);
        let done = within(self.env.as_ref(), &self.limits, &conn, work).await;
        self.end_step(conn, done)
    }

    async fn execute_all(&mut self, statements: Vec<Statement>) -> Result<Vec<Outcome>> {
        statements.iter().try_for_each(check_statement)?;
        self.tell_limit().await?;
        let conn = self.take_live()?;
        let work = run_many(&conn, &statements, self.access, &self.limits);
        let done = within(self.env.as_ref(), &self.limits, &conn, work).await;
        self.end_step(conn, done)
    }

    async fn open(&mut self, statement: &Statement) -> Result<CursorId> {
        check_statement(statement)?;
        self.tell_limit().await?;
        if self.cursors.len() >= MAX_CURSORS {
            return Err(ShardError::Limit { what: "the number of cursors", limit: MAX_CURSORS as u64 });
        }
        let conn = self.take_live()?;
        self.next_cursor += 1;
        let id = CursorId(self.next_cursor);
        let name = format!("_isles_cursor_{}", id.0);
        let work = open(&conn, &name, statement, self.access, &self.limits);
        let done = within(self.env.as_ref(), &self.limits, &conn, work).await;
        let cursor = match self.end_step(conn, done)? {
            None => Cursor::Declared { name, columns: statement.columns.clone() },
            Some(outcome) => Cursor::Held(outcome.rows.into()),
        };
        self.cursors.insert(id, cursor);
        Ok(id)
    }

    async fn fetch(&mut self, cursor: CursorId, rows: usize) -> Result<CursorPage> {
        if self.failed {
            return Err(aborted());
        }
        let (name, columns) = match self.cursors.get_mut(&cursor) {
            None => return Err(ShardError::statement("34000", format!("cursor {} does not exist", cursor.0))),
            Some(Cursor::Held(held)) => {
                let page: Vec<Row> = held.drain(..rows.min(held.len())).collect();
                return Ok(CursorPage { rows: page, done: held.is_empty() });
            }
            Some(Cursor::Declared { name, columns }) => (name.clone(), columns.clone()),
        };
        let conn = self.take_live()?;
        let work = fetch(&conn, &name, &columns, rows, &self.limits);
        let done = within(self.env.as_ref(), &self.limits, &conn, work).await;
        self.end_step(conn, done)
    }

    async fn close(&mut self, cursor: CursorId) -> Result<()> {
        match self.cursors.remove(&cursor) {
            Some(Cursor::Declared { name, .. }) if !self.failed => {
                let conn = self.take_live()?;
                self.step(conn, format!("CLOSE {name}")).await
            }
            _ => Ok(()),
        }
    }

    async fn change_schema(&mut self, step: SchemaStep) -> Result<()> {
        self.tell_limit().await?;
        let conn = self.take_live()?;
        let done = within(self.env.as_ref(), &self.limits, &conn, schema::step(&conn, &step)).await;
        // The server would refuse what was prepared under another schema.
        conn.forget_all();
        let own = self.changed.get_or_insert_default();
        own.extend(step.fences.iter().filter_map(|fence| match &fence.scope {
            FenceScope::Buckets { group, .. } => Some(group.clone()),
            _ => None,
        }));
        self.end_step(conn, done)
    }

    async fn savepoint(&mut self, name: &str) -> Result<()> {
        let conn = self.take_live()?;
        self.step(conn, format!("SAVEPOINT {}", quote(name))).await
    }

    async fn rollback_to(&mut self, name: &str) -> Result<()> {
        let conn = self.take()?;
        if self.changed.is_some() {
            conn.forget_all();
        }
        self.step(conn, format!("ROLLBACK TO SAVEPOINT {}", quote(name))).await?;
        self.failed = false;
        Ok(())
    }

    async fn release(&mut self, name: &str) -> Result<()> {
        let conn = self.take_live()?;
        self.step(conn, format!("RELEASE SAVEPOINT {}", quote(name))).await
    }

    async fn commit(mut self: Box<Self>) -> Result<()> {
        if self.failed {
            // The server would answer such a COMMIT with a friendly ROLLBACK.
            return Err(aborted());
        }
        let (env, time) = (self.env.clone(), self.limits.time + GRACE);
        let conn = self.take_live()?;
        let conn = self.observe(conn).await?;
        let answer = {
            let commit = std::pin::pin!(commit(&conn));
            match select(commit, env.sleep(time)).await {
                Either::Left((answer, _)) => answer,
                Either::Right(_) => Err(ShardError::MayHaveHappened("the time limit passed during commit".into())),
            }
        };
        match answer {
            // Nobody waits for the answer any more, so nobody knows when the connection is clean.
            Err(ShardError::MayHaveHappened(_)) => drop(conn),
            Err(_) => self.give_back(conn, Ended::Open),
            Ok(()) => {
                self.give_back(conn, Ended::Closed);
                if self.changed.is_some() {
                    self.clients.forget_statements();
                    self.control.forget_statements();
                }
            }
        }
        answer
    }

    async fn rollback(mut self: Box<Self>) -> Result<()> {
        let Some(conn) = self.conn.take() else { return Ok(()) };
        let (env, time) = (self.env.clone(), self.limits.time);
        let ended = {
            let rollback = std::pin::pin!(conn.batch_execute("ROLLBACK"));
            matches!(select(rollback, env.sleep(time)).await, Either::Left((Ok(()), _)))
        };
        if ended {
            self.give_back(conn, Ended::Closed);
        }
        // Otherwise the connection is closed, and the server rolls back by itself.
        Ok(())
    }

    fn bound(&mut self, limits: Limits) {
        self.limits = limits;
    }

    async fn has_written(&mut self) -> Result<bool> {
        let conn = self.take_live()?;
        let work = async { conn.row("SELECT pg_current_xact_id_if_assigned() IS NOT NULL", &[]).await };
        let done = within(self.env.as_ref(), &self.limits, &conn, work).await;
        Ok(self.end_step(conn, done)?.get(0))
    }

    async fn pledge(mut self: Box<Self>, id: &PledgeId, _forget: Vec<PledgeId>) -> Result<Box<dyn Pledge>> {
        let conn = self.take_live()?;
        let conn = self.observe(conn).await?;
        let text = pledge::prepare_text(id, &self.shard);
        let work = async {
            let xid: String = conn.row("SELECT pg_current_xact_id()::text", &[]).await?.get(0);
            plain(&conn, &text).await.map(|()| xid)
        };
        let (result, usable) = within(self.env.as_ref(), &self.limits, &conn, work).await;
        match result {
            Ok(xid) => {
                self.give_back(conn, Ended::Closed);
                let changed = self.changed.is_some().then(|| self.clients.clone());
                let (control, env) = (self.control.clone(), self.env.clone());
                Ok(Box::new(PgPledge { control, changed, env, shard: self.shard.clone(), id: id.clone(), xid }))
            }
            Err(error) => {
                // If it is lost, the server may have prepared: nobody decides on it, and so it will be revoked.
                if usable {
                    self.give_back(conn, Ended::Open);
                }
                Err(pledge::refusal(error))
            }
        }
    }
}
