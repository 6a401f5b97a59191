//! A session's conversation after authentication: every message in every state.
//!
//!     next_frame ──► Conversation::step: one match on state and message ──► replies, gathered
//!                                                     │
//!                    Ready ── error in extended query ──► Skipping ── Sync ──► Ready
//!                    Ready ── COPY … FROM STDIN ──► CopyIn ── CopyDone, CopyFail, error ──► Ready or Skipping
//!
//! Replies leave at Sync and Flush, at the end of a simple query, when they are large, and before the conversation
//! waits for the client; never one by one.
//!
//! Transactions: a statement whose Execute is followed by Sync is alone, and commits by itself. Otherwise, and for a
//! simple query of several statements, everything up to the Sync or the end stands or falls together.
//!
//! Invariants (docs/invariants.md):
//!   * I-45  Statements, portals and what they hold are bounded; beyond, a statement is refused with 54000.
//!   * I-55  Each message has one answer in each state. A client that vanishes, at any byte, ends its session, and its
//!     transaction is rolled back; what it runs is cancelled.
//!   * I-65  Rows are fetched in batches, and the next batch waits until the last one has left: a client that does not
//!     read makes nobody's memory grow.

use super::cancel::Registration;
use super::message::{Bind, Frame, Frames, Kind, Message, Target, decode, utf8};
use super::reply::{COLUMNS_MAX, Format, Replies, Severity};
use super::stop::Stop;
use super::turns::{Seat, Within};
use super::values::{Forms, formats, types_of};
use crate::metrics::{Metrics, Outcome};
use crate::serve::Phase;
use isles_cluster::session::{Answer, CopyIn, CopyOut, Prepared, Progress, Rows, Session, Status};
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;
use isles_sql::types::Oid;
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;

/// Replies go out when they are this large, even if the client has not asked: as much as fits a socket's buffer many
/// times over, and much more than a system call costs.
const FLUSH_BYTES: usize = 16 << 10;

/// The buffer of replies is given back when it has grown beyond this for a large row.
const KEPT_BYTES: usize = 1 << 20;

/// Rows fetched at a time. A batch and the reply buffer are what a slow reader holds.
const BATCH_ROWS: usize = 128;

/// Bytes that are read ahead while a statement runs, to see whether the client is still there.
const READ_AHEAD_BYTES: usize = 64 << 10;

/// Portals of a session at once. A pipeline has one or two.
const PORTALS_MAX: usize = 1_000;

/// The parameters of all portals of a session: two of the largest messages.
const PORTAL_BYTES_MAX: usize = 128 << 20;

/// How long the last words of a conversation may take.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Why a conversation ends.
pub(crate) enum End {
    /// The client is gone.
    Gone,
    /// The client said goodbye.
    Terminated,
    /// The protocol was broken, or a limit of the connection passed.
    Fatal(SqlError),
    /// The server stops.
    Stopped,
}

impl From<std::io::Error> for End {
    fn from(_: std::io::Error) -> End {
        End::Gone
    }
}

type Step<T = ()> = Result<T, End>;

/// What the next message means.
#[derive(Default)]
enum State {
    #[default]
    Ready,
    /// A message of the extended query has failed: everything up to Sync is ignored.
    Skipping,
    CopyIn(Box<Copying>),
}

/// A copy that the client sends.
struct Copying {
    copy: Box<CopyIn>,
    sql: Arc<str>,
    began: Instant,
    then: Then,
}

/// Where a statement came from, and what comes after it.
enum Then {
    /// A simple query, with these statements left.
    Simple(VecDeque<Queued>),
    Extended,
}

/// A statement of a simple query.
struct Queued {
    sql: Arc<str>,
    /// Where it begins in the query's text, in characters: errors tell positions in the whole text.
    offset: u32,
}

/// A prepared statement; None is the empty one.
type Statement = Option<Arc<Prepared>>;

struct Portal {
    statement: Statement,
    /// The statement whose columns it returns.
    shape: Statement,
    formats: Vec<Format>,
    /// Bytes of its parameters, for the limit.
    bytes: usize,
    run: Run,
}

enum Run {
    Fresh(Vec<Value>),
    /// Some rows have been sent.
    Suspended(Rows),
    Done,
}

/// What became of a statement.
enum Ran {
    Complete(String),
    Empty,
    Suspended(Rows),
    CopyIn(Box<CopyIn>),
    Failed(SqlError),
}

/// Whether statements belong together until Sync or the end of the query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Implicit {
    No,
    Begun,
}

/// What the listener gives to a conversation.
pub(crate) struct Surroundings {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) phase: watch::Receiver<Phase>,
    pub(crate) cancel: Registration,
    pub(crate) seat: Seat,
}

pub(crate) struct Conversation<S> {
    wire: Wire<S>,
    session: Session,
    state: State,
    portals: HashMap<String, Portal>,
    portal_bytes: usize,
    implicit: Implicit,
    forms: Forms,
    metrics: Arc<Metrics>,
    seat: Seat,
}

/// The stream and what watches it.
struct Wire<S> {
    stream: S,
    frames: Frames,
    replies: Replies,
    cancel: Registration,
    stop: Stop,
    /// What the session says while it works.
    progress: Arc<Progress>,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Wire<S> {
    /// Sends what has been gathered.
    async fn flush(&mut self) -> Step {
        if self.replies.len() == 0 {
            return Ok(());
        }
        let buffer = self.replies.buffer();
        let sent = async {
            self.stream.write_all(buffer).await?;
            self.stream.flush().await
        };
        tokio::select! {
            biased;
            sent = sent => sent?,
            // A client that does not read would keep the server from stopping.
            () = reached(&mut self.stop, Phase::Stopping) => return Err(End::Stopped),
        }
        if buffer.capacity() > KEPT_BYTES {
            self.replies = Replies::default();
        } else {
            buffer.clear();
        }
        Ok(())
    }

    async fn flush_if_large(&mut self) -> Step {
        if self.replies.len() >= FLUSH_BYTES { self.flush().await } else { Ok(()) }
    }

    /// The next message, waited for until the server stops: at once where nothing is open, else at the end of grace; or
    /// until the client has been idle for too long.
    async fn next_frame(&mut self, stop_at: Phase, idle: Option<Duration>) -> Step<Frame> {
        loop {
            if let Some(frame) = self.frames.take().map_err(End::Fatal)? {
                return Ok(frame);
            }
            self.flush().await?;
            tokio::select! {
                biased;
                read = self.stream.read_buf(self.frames.room()) => {
                    if read? == 0 {
                        return Err(End::Gone);
                    }
                }
                () = reached(&mut self.stop, stop_at) => return Err(End::Stopped),
                () = passed(idle) => return Err(End::Fatal(idle_too_long())),
            }
        }
    }

    /// Waits for some work, and meanwhile for the client to vanish or the server to stop: then the work is cancelled
    /// and its end awaited, because it may hold a transaction.
    ///
    /// The work is pinned by the caller: such futures are large, and would be copied on their way here.
    async fn attend<T>(&mut self, mut work: Pin<&mut (impl Future<Output = T> + ?Sized)>) -> Step<T> {
        let end = loop {
            let ahead = self.frames.buffered() < READ_AHEAD_BYTES;
            tokio::select! {
                biased;
                done = &mut work => return Ok(done),
                read = self.stream.read_buf(self.frames.room()), if ahead => match read {
                    Ok(0) | Err(_) => break End::Gone,
                    Ok(_) => {}
                },
                // Sent before the next look at the work: who says how far it is says so seldom.
                notice = self.progress.next() => {
                    self.replies.notice("NOTICE", &notice);
                    if let Err(end) = self.flush().await {
                        break end;
                    }
                }
                () = reached(&mut self.stop, Phase::Stopping) => break End::Stopped,
            }
        };
        self.cancel.cancel();
        work.await;
        Err(end)
    }
}

/// Resolves when the server has come as far as this in stopping.
async fn reached(stop: &mut Stop, wanted: Phase) {
    poll_fn(|cx| stop.poll_reached(cx, wanted)).await;
}

/// Resolves after this time; never, if there is none.
async fn passed(limit: Option<Duration>) {
    match limit {
        Some(limit) => tokio::time::sleep(limit).await,
        None => std::future::pending().await,
    }
}

fn idle_too_long() -> SqlError {
    SqlError::new("57P05", "terminating connection due to idle-session timeout")
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Conversation<S> {
    pub(crate) fn new(stream: S, frames: Frames, session: Session, around: Surroundings) -> Conversation<S> {
        let Surroundings { metrics, phase, cancel, seat } = around;
        Conversation {
            wire: Wire {
                stream,
                frames,
                replies: Replies::default(),
                cancel,
                stop: Stop::new(phase),
                progress: session.progress(),
            },
            session,
            state: State::Ready,
            portals: HashMap::new(),
            portal_bytes: 0,
            implicit: Implicit::No,
            forms: Forms::default(),
            metrics,
            seat,
        }
    }

    /// Speaks until either side ends it.
    pub(crate) async fn run(mut self) {
        let end = match self.greet().await {
            Ok(()) => loop {
                if let Err(end) = self.step().await {
                    break end;
                }
            },
            Err(end) => end,
        };
        self.end(end).await;
    }

    async fn greet(&mut self) -> Step {
        let (pid, key) = (self.wire.cancel.pid(), self.wire.cancel.key());
        self.tell_parameters();
        self.wire.replies.key_data(pid, key);
        self.ready().await
    }

    /// Says why, if there is anything to say, and rolls back what is open.
    async fn end(mut self, end: End) {
        let last = match end {
            End::Gone | End::Terminated => None,
            End::Fatal(error) => Some(error),
            End::Stopped => Some(SqlError::new("57P01", "terminating connection due to administrator command")),
        };
        self.state = State::Ready;
        self.portals.clear();
        self.wire.cancel.idle();
        self.session.close().await;
        if let Some(error) = last {
            self.metrics.error(error.sqlstate);
            self.wire.replies.error(Severity::Fatal, &error);
            // The client may be gone, and is not waited for if it does not read.
            let said = async {
                let _ = self.wire.stream.write_all(self.wire.replies.buffer()).await;
                let _ = self.wire.stream.shutdown().await;
            };
            let _ = tokio::time::timeout(LAST_WORDS, said).await;
        }
    }

    /// One message. The match is the whole protocol: every message has an answer in every state.
    async fn step(&mut self) -> Step {
        let frame = self.wire.next_frame(self.stop_at(), self.idle_limit()).await?;
        let kind = frame.kind;
        // What is skipped is not even read.
        if matches!(self.state, State::Skipping) && !matches!(kind, Kind::Sync | Kind::Terminate) {
            return Ok(());
        }
        if kind.is_work() {
            self.turn().await;
        }
        let message = match decode(frame) {
            Ok(message) => message,
            Err(error) => return self.unreadable(kind, error).await,
        };
        match (std::mem::take(&mut self.state), message) {
            (_, Message::Terminate) => Err(End::Terminated),

            (State::CopyIn(copying), Message::CopyData(data)) => self.copy_data(copying, &data).await,
            (State::CopyIn(copying), Message::CopyDone) => self.copy_done(*copying).await,
            (State::CopyIn(copying), Message::CopyFail(reason)) => self.copy_fail(*copying, &reason).await,
            // Clients may have sent these before they knew that a copy begins.
            (State::CopyIn(copying), Message::Flush | Message::Sync) => {
                self.state = State::CopyIn(copying);
                Ok(())
            }
            (State::CopyIn(_), _) => Err(End::Fatal(unexpected_in_copy(kind))),

            (State::Ready | State::Skipping, Message::Sync) => self.sync().await,
            (State::Skipping, _) => {
                self.state = State::Skipping;
                Ok(())
            }

            (State::Ready, Message::Query(sql)) => self.query(&sql).await,
            (State::Ready, Message::Parse { name, sql, types }) => self.parse(name, sql, types).await,
            (State::Ready, Message::Bind(bind)) => self.bind(bind).await,
            (State::Ready, Message::Describe(Target::Statement, name)) => self.describe_statement(&name).await,
            (State::Ready, Message::Describe(Target::Portal, name)) => self.describe_portal(&name).await,
            (State::Ready, Message::Close(target, name)) => self.close(target, &name).await,
            (State::Ready, Message::Execute { portal, rows_max }) => self.execute(portal, rows_max).await,
            (State::Ready, Message::Flush) => self.wire.flush().await,
            (State::Ready, Message::FunctionCall) => {
                let error = SqlError::unsupported("calls of functions by the fastpath protocol are not supported");
                self.query_failed(error.with_hint("Use SELECT."), 0).await
            }
            // The copy has failed, and the client has not heard of it yet.
            (State::Ready, Message::CopyData(_) | Message::CopyDone | Message::CopyFail(_)) => Ok(()),
            (State::Ready, Message::Password(_)) => {
                Err(End::Fatal(SqlError::new("08P01", "invalid frontend message type 112")))
            }
        }
    }

    /// Until when a waiting session outlives the order to stop.
    fn stop_at(&self) -> Phase {
        if self.is_open() { Phase::Stopping } else { Phase::Draining }
    }

    /// How long the client may say nothing.
    fn idle_limit(&self) -> Option<Duration> {
        self.session.idle_session_limit().filter(|_| !self.is_open())
    }

    /// Whether something goes on that later messages belong to.
    fn is_open(&self) -> bool {
        self.session.status() != Status::Idle
            || self.implicit == Implicit::Begun
            || matches!(self.state, State::CopyIn(_))
    }

    /// Waits until it is its tenant's turn on this thread.
    async fn turn(&mut self) {
        let within = if self.is_open() { Within::Transaction } else { Within::Nothing };
        self.seat.turn(within).await;
    }

    /// A message whose frame is whole and whose contents are not.
    async fn unreadable(&mut self, kind: Kind, error: SqlError) -> Step {
        match (std::mem::take(&mut self.state), kind) {
            (_, Kind::Terminate) => Err(End::Terminated),
            (State::CopyIn(copying), _) => self.copy_ended(*copying, Err(error)).await,
            (_, Kind::Parse | Kind::Bind | Kind::Describe | Kind::Close | Kind::Execute | Kind::Flush) => {
                self.failed(error).await
            }
            _ => self.query_failed(error, 0).await,
        }
    }

    // ---- simple query

    async fn query(&mut self, sql: &str) -> Step {
        self.session.forget("");
        self.forget_portal("");
        let statements = match may_not_be_one(sql) {
            true => self.split(sql).map(|statements| queue(sql, statements)),
            false => Ok(VecDeque::from([Queued { sql: sql.into(), offset: 0 }])),
        };
        let statements = match statements {
            Ok(statements) => statements,
            Err(error) => return self.query_failed(error, 0).await,
        };
        if statements.is_empty() {
            self.wire.replies.empty_query();
            return self.end_query(None).await;
        }
        if statements.len() > 1 {
            self.begin_implicit();
        }
        self.run_queries(statements).await
    }

    /// The statements of a text. Clients ask with an empty one whether the server is there.
    fn split(&self, sql: &str) -> Result<Vec<Arc<str>>, SqlError> {
        if sql.trim_ascii().is_empty() { Ok(Vec::new()) } else { self.session.statements(sql) }
    }

    async fn run_queries(&mut self, mut rest: VecDeque<Queued>) -> Step {
        while let Some(Queued { sql, offset }) = rest.pop_front() {
            self.turn().await;
            let began = Instant::now();
            let ran = self.run_query(&sql).await?;
            self.count(&sql, &ran, began);
            match ran {
                // The last tag waits for the commit: what could not be committed was not done.
                Ran::Complete(tag) if rest.is_empty() => return self.end_query(Some(tag)).await,
                Ran::Complete(tag) => {
                    self.tell_notices();
                    self.wire.replies.complete(tag);
                }
                Ran::Empty => self.wire.replies.empty_query(),
                Ran::Failed(error) => return self.query_failed(error, offset).await,
                Ran::CopyIn(copy) => {
                    let copying = Copying { copy, sql, began, then: Then::Simple(rest) };
                    self.state = State::CopyIn(Box::new(copying));
                    return Ok(());
                }
                // All rows were asked for.
                Ran::Suspended(_) => {}
            }
        }
        self.end_query(None).await
    }

    async fn run_query(&mut self, sql: &str) -> Step<Ran> {
        let (prepared, values) = match self.wire.attend(pin!(self.session.prepare_text(sql))).await? {
            Ok(prepared) => prepared,
            Err(error) => return Ok(Ran::Failed(error)),
        };
        if prepared.params.len() != values.len() {
            return Ok(Ran::Failed(SqlError::new("42P02", "there is no parameter $1")));
        }
        let is_lifted = !values.is_empty();
        let answer = self.start(&prepared, values).await?;
        match answer {
            Err(error) if is_lifted && error.position.is_some() => Ok(Ran::Failed(self.positioned(sql, error).await?)),
            Ok(Answer::Rows(rows)) => {
                if rows.fields.len() > COLUMNS_MAX {
                    return Ok(Ran::Failed(too_many_columns()));
                }
                self.wire.replies.row_description(&rows.fields, &prepared.origins, &[]);
                Ok(self.send_rows(rows, &[], usize::MAX).await?.0)
            }
            answer => self.answered(answer).await,
        }
    }

    /// An error of a text whose constants were lifted, and whose schema has changed since it was prepared: its position is
    /// that of the text as the client has sent it.
    async fn positioned(&mut self, sql: &str, error: SqlError) -> Step<SqlError> {
        let error = SqlError { position: None, ..error };
        match self.session.in_transaction() {
            true => Ok(error),
            false => Ok(self.prepare(sql, &[]).await?.err().unwrap_or(error)),
        }
    }

    /// Ends a simple query that has failed.
    async fn query_failed(&mut self, mut error: SqlError, offset: u32) -> Step {
        error.position = error.position.map(|at| at + offset);
        self.session.fail();
        self.portals.clear();
        self.portal_bytes = 0;
        self.tell_error(&error);
        self.end_query(None).await
    }

    async fn end_query(&mut self, tag: Option<String>) -> Step {
        match self.end_implicit().await? {
            Ok(()) => {
                self.tell_notices();
                if let Some(tag) = tag {
                    self.wire.replies.complete(tag);
                }
            }
            Err(error) => self.tell_error(&error),
        }
        self.ready().await
    }

    // ---- extended query

    async fn parse(&mut self, name: String, sql: String, types: Vec<u32>) -> Step {
        if name.is_empty() {
            self.session.forget("");
        }
        let types: Vec<Oid> = types.into_iter().map(Oid).collect();
        let prepared = self.prepare_one(&sql, &types).await?;
        match prepared.and_then(|statement| self.session.keep(name, statement)) {
            Ok(()) => {
                self.wire.replies.parse_complete();
                Ok(())
            }
            Err(error) => self.failed(error).await,
        }
    }

    /// The one statement of a text, or none.
    async fn prepare_one(&mut self, sql: &str, types: &[Oid]) -> Step<Result<Statement, SqlError>> {
        if may_not_be_one(sql) {
            match self.split(sql) {
                Ok(statements) if statements.is_empty() => return Ok(Ok(None)),
                Ok(statements) if statements.len() > 1 => {
                    let message = "cannot insert multiple commands into a prepared statement";
                    return Ok(Err(SqlError::new("42601", message)));
                }
                Ok(_) => {}
                Err(error) => return Ok(Err(error)),
            }
        }
        Ok(self.prepare(sql, types).await?.map(Some))
    }

    async fn bind(&mut self, bind: Bind) -> Step {
        match self.portal_of(&bind).await {
            Ok(portal) => {
                self.forget_portal(&bind.portal);
                self.portal_bytes += portal.bytes;
                self.portals.insert(bind.portal, portal);
                self.wire.replies.bind_complete();
                Ok(())
            }
            Err(error) => self.failed(error).await,
        }
    }

    async fn portal_of(&mut self, bind: &Bind) -> Result<Portal, SqlError> {
        let statement = self.session.kept(&bind.statement)?;
        let is_open = self.portals.contains_key(&bind.portal) || self.session.declared(&bind.portal).is_some();
        if !bind.portal.is_empty() && is_open {
            return Err(SqlError::new("42P03", format!("cursor \"{}\" already exists", bind.portal)));
        }
        let bytes = bind.params.iter().flatten().map(bytes::Bytes::len).sum();
        if self.portals.len() >= PORTALS_MAX || self.portal_bytes + bytes > PORTAL_BYTES_MAX {
            return Err(SqlError::new("54000", "too many portals in one session").with_hint("Send Sync more often."));
        }
        let shape = statement.as_ref().map(|prepared| self.session.returns(prepared));
        let types = statement.as_ref().map_or(&[][..], |prepared| prepared.params.as_slice());
        let columns = shape.as_ref().and_then(|shape| shape.fields.as_ref()).map_or(0, |fields| fields.len());
        check_counts(bind, types.len(), columns)?;
        let params = self.params(bind, types).await?;
        let formats = formats(&bind.result_formats, columns)?;
        Ok(Portal { statement, shape, formats, bytes, run: Run::Fresh(params) })
    }

    async fn params(&mut self, bind: &Bind, types: &[Oid]) -> Result<Vec<Value>, SqlError> {
        let formats = formats(&bind.formats, types.len())?;
        self.forms.refresh(&self.session, types.iter().copied());
        let mut values = Vec::with_capacity(types.len());
        for ((bytes, ty), format) in bind.params.iter().zip(types).zip(formats) {
            let named = match (bytes, format) {
                (Some(bytes), Format::Text) => self.session.read_name(*ty, utf8(bytes)?).await,
                _ => None,
            };
            values.push(match (named, bytes) {
                (Some(value), _) => value?,
                (None, Some(bytes)) => self.forms.read(bytes, *ty, format)?,
                (None, None) => Value::Null,
            });
        }
        Ok(values)
    }

    async fn describe_statement(&mut self, name: &str) -> Step {
        let kept = self.session.kept(name);
        let statement = match kept {
            Ok(statement) => statement,
            Err(error) => return self.failed(error).await,
        };
        self.wire.replies.parameters(statement.as_ref().map_or(&[], |prepared| &prepared.params));
        let shape = statement.as_ref().map(|prepared| self.session.returns(prepared));
        self.describe(shape.as_deref(), &[]);
        Ok(())
    }

    async fn describe_portal(&mut self, name: &str) -> Step {
        let portal = self.portals.get(name).map(|portal| (portal.shape.clone(), portal.formats.clone()));
        // A cursor of DECLARE is a portal, too.
        let portal = portal.or_else(|| Some((Some(self.session.declared(name)?), Vec::new())));
        let Some((statement, formats)) = portal else {
            return self.failed(no_portal(name)).await;
        };
        self.describe(statement.as_deref(), &formats);
        Ok(())
    }

    fn describe(&mut self, statement: Option<&Prepared>, formats: &[Format]) {
        match statement.and_then(|prepared| Some((prepared.fields.as_ref()?, &prepared.origins))) {
            Some((fields, origins)) => self.wire.replies.row_description(fields, origins, formats),
            None => self.wire.replies.no_data(),
        }
    }

    /// It is no error to close what is not there.
    async fn close(&mut self, target: Target, name: &str) -> Step {
        match target {
            Target::Statement => self.session.forget(name),
            Target::Portal => self.forget_portal(name),
        }
        self.wire.replies.close_complete();
        Ok(())
    }

    async fn execute(&mut self, name: String, rows_max: usize) -> Step {
        let Some(mut portal) = self.portals.remove(&name) else {
            return self.failed(no_portal(&name)).await;
        };
        let Some(prepared) = portal.statement.clone() else {
            self.portals.insert(name, portal);
            self.wire.replies.empty_query();
            return Ok(());
        };
        let began = Instant::now();
        let ran = self.run_portal(&name, &mut portal, &prepared, rows_max).await?;
        self.count(&prepared.sql, &ran, began);
        match ran {
            Ran::Complete(tag) => {
                self.tell_notices();
                self.wire.replies.complete(tag);
            }
            Ran::Empty => self.wire.replies.empty_query(),
            Ran::Suspended(rows) => {
                portal.run = Run::Suspended(rows);
                self.wire.replies.portal_suspended();
            }
            Ran::CopyIn(copy) => {
                let copying = Copying { copy, sql: Arc::clone(&prepared.sql), began, then: Then::Extended };
                self.state = State::CopyIn(Box::new(copying));
            }
            Ran::Failed(error) => {
                self.portal_bytes = self.portal_bytes.saturating_sub(portal.bytes);
                return self.failed(error).await;
            }
        }
        self.portals.insert(name, portal);
        // Before its Sync, the transaction of a statement that is alone goes on: its portal may be suspended.
        if self.wire.frames.next_kind() != Some(Kind::Sync) {
            self.end_portals_with_transaction();
        }
        self.wire.flush_if_large().await
    }

    async fn run_portal(
        &mut self,
        name: &str,
        portal: &mut Portal,
        prepared: &Arc<Prepared>,
        rows_max: usize,
    ) -> Step<Ran> {
        match std::mem::replace(&mut portal.run, Run::Done) {
            Run::Fresh(params) => {
                if self.wire.frames.next_kind() != Some(Kind::Sync) && self.session.status() == Status::Idle {
                    self.begin_implicit();
                }
                match self.start(prepared, params).await? {
                    Ok(Answer::Rows(rows)) => Ok(self.send_rows(rows, &portal.formats, rows_max).await?.0),
                    answer => self.answered(answer).await,
                }
            }
            Run::Suspended(rows) => Ok(match self.send_rows(rows, &portal.formats, rows_max).await? {
                // The tag counts what this Execute returned.
                (Ran::Complete(_), sent) if prepared.fields.is_some() => Ran::Complete(format!("SELECT {sent}")),
                (ran, _) => ran,
            }),
            Run::Done if prepared.fields.is_some() => Ok(Ran::Complete("SELECT 0".into())),
            Run::Done => Ok(Ran::Failed(SqlError::new("55000", format!("portal \"{name}\" cannot be run")))),
        }
    }

    async fn sync(&mut self) -> Step {
        if let Err(error) = self.end_implicit().await? {
            self.tell_error(&error);
        }
        self.ready().await
    }

    /// An error of the extended query: nothing until Sync is done.
    async fn failed(&mut self, error: SqlError) -> Step {
        self.session.fail();
        self.portals.clear();
        self.portal_bytes = 0;
        self.tell_error(&error);
        self.state = State::Skipping;
        Ok(())
    }

    // ---- copy

    async fn copy_data(&mut self, mut copying: Box<Copying>, data: &[u8]) -> Step {
        let written = self.wire.attend(pin!(copying.copy.write(data))).await?;
        match written {
            Ok(()) => {
                self.state = State::CopyIn(copying);
                Ok(())
            }
            Err(error) => self.copy_ended(*copying, Err(error)).await,
        }
    }

    async fn copy_done(&mut self, copying: Copying) -> Step {
        let Copying { copy, sql, began, then } = copying;
        let finished = self.wire.attend(pin!(copy.finish())).await?;
        self.copy_finished(&sql, began, then, finished).await
    }

    async fn copy_fail(&mut self, copying: Copying, reason: &str) -> Step {
        let Copying { copy, sql, began, then } = copying;
        let error = self.wire.attend(pin!(copy.fail(reason))).await?;
        self.copy_finished(&sql, began, then, Err(error)).await
    }

    /// Ends a copy in the middle: what was written of it is dropped with it.
    async fn copy_ended(&mut self, copying: Copying, result: Result<String, SqlError>) -> Step {
        let Copying { copy, sql, began, then } = copying;
        drop(copy);
        self.copy_finished(&sql, began, then, result).await
    }

    async fn copy_finished(&mut self, sql: &str, began: Instant, then: Then, result: Result<String, SqlError>) -> Step {
        self.wire.cancel.idle();
        let ran = match result {
            Ok(tag) => Ran::Complete(tag),
            Err(error) => Ran::Failed(error),
        };
        self.count(sql, &ran, began);
        match (ran, then) {
            (Ran::Complete(tag), Then::Simple(rest)) if rest.is_empty() => self.end_query(Some(tag)).await,
            (Ran::Complete(tag), Then::Simple(rest)) => {
                self.tell_notices();
                self.wire.replies.complete(tag);
                self.run_queries(rest).await
            }
            (Ran::Complete(tag), Then::Extended) => {
                self.tell_notices();
                self.wire.replies.complete(tag);
                Ok(())
            }
            (Ran::Failed(error), Then::Simple(_)) => self.query_failed(error, 0).await,
            (Ran::Failed(error), Then::Extended) => self.failed(error).await,
            (Ran::Empty | Ran::Suspended(_) | Ran::CopyIn(_), _) => Ok(()),
        }
    }

    async fn copy_out(&mut self, mut copy: CopyOut) -> Step<Ran> {
        self.wire.replies.copy_out(copy.format, copy.columns);
        loop {
            match self.wire.attend(pin!(copy.next())).await? {
                Ok(Some(messages)) => messages.into_iter().for_each(|data| self.wire.replies.copy_data(data)),
                Ok(None) => break,
                Err(error) => return Ok(Ran::Failed(error)),
            }
            self.wire.flush_if_large().await?;
        }
        self.wire.replies.copy_done();
        self.wire.cancel.idle();
        Ok(Ran::Complete(copy.tag()))
    }

    // ---- what both share

    async fn prepare(&mut self, sql: &str, types: &[Oid]) -> Step<Result<Arc<Prepared>, SqlError>> {
        self.wire.attend(pin!(self.session.prepare(sql, types))).await
    }

    async fn start(&mut self, prepared: &Arc<Prepared>, params: Vec<Value>) -> Step<Result<Answer, SqlError>> {
        self.wire.cancel.running(self.session.cancel_token());
        self.wire.attend(pin!(self.session.execute(prepared, params))).await
    }

    /// What a statement without rows came to.
    async fn answered(&mut self, answer: Result<Answer, SqlError>) -> Step<Ran> {
        let ran = match answer {
            Ok(Answer::Done { tag }) => Ran::Complete(tag),
            Ok(Answer::Empty) => Ran::Empty,
            Ok(Answer::CopyIn(copy)) => {
                self.wire.replies.copy_in(copy.format, copy.columns);
                return Ok(Ran::CopyIn(copy));
            }
            Ok(Answer::CopyOut(copy)) => return self.copy_out(*copy).await,
            // Rows are sent by the callers, who know the formats.
            Ok(Answer::Rows(rows)) => Ran::Suspended(rows),
            Err(error) => Ran::Failed(error),
        };
        self.wire.cancel.idle();
        Ok(ran)
    }

    /// Sends at most `rows_max` rows, and tells how many it were.
    async fn send_rows(&mut self, mut rows: Rows, formats: &[Format], rows_max: usize) -> Step<(Ran, usize)> {
        self.forms.refresh(&self.session, types_of(&rows.fields));
        let (mut sent, mut scratch) = (0, Vec::new());
        while sent < rows_max {
            let fetched = self.wire.attend(pin!(rows.next(BATCH_ROWS.min(rows_max - sent)))).await?;
            let batch = match fetched {
                Ok(Some(batch)) => batch,
                Ok(None) => {
                    self.wire.cancel.idle();
                    return Ok((Ran::Complete(rows.tag()), sent));
                }
                Err(error) => return Ok((Ran::Failed(error), sent)),
            };
            self.metrics.rows(batch.len());
            for row in &batch {
                self.put_row(&rows, row, formats, &mut scratch);
                self.wire.flush_if_large().await?;
            }
            sent += batch.len();
            // A large result is no single turn.
            self.turn().await;
        }
        Ok((Ran::Suspended(rows), sent))
    }

    fn put_row(&mut self, rows: &Rows, row: &[Value], formats: &[Format], scratch: &mut Vec<u8>) {
        let replies = &mut self.wire.replies;
        let mark = replies.begin_row(row.len());
        for (at, (value, field)) in row.iter().zip(&*rows.fields).enumerate() {
            if matches!(value, Value::Null) {
                replies.null();
                continue;
            }
            scratch.clear();
            let format = formats.get(at).copied().unwrap_or(Format::Text);
            self.forms.write(value, field.ty, format, scratch);
            replies.value(scratch);
        }
        replies.end_row(mark);
    }

    fn begin_implicit(&mut self) {
        if self.implicit == Implicit::No {
            self.session.begin_implicit();
            self.implicit = Implicit::Begun;
        }
    }

    async fn end_implicit(&mut self) -> Step<Result<(), SqlError>> {
        match std::mem::replace(&mut self.implicit, Implicit::No) {
            Implicit::No => Ok(Ok(())),
            Implicit::Begun => {
                // Portals read in the transaction that ends here.
                self.portals.clear();
                self.portal_bytes = 0;
                self.wire.attend(pin!(self.session.end_implicit())).await
            }
        }
    }

    /// Ready for the next query: what has changed is told first, and everything leaves.
    async fn ready(&mut self) -> Step {
        self.end_portals_with_transaction();
        self.wire.cancel.idle();
        self.tell_notices();
        self.tell_parameters();
        self.wire.replies.ready(self.session.status());
        self.seat.belong_to(self.session.whose());
        self.seat.done();
        self.wire.flush().await
    }

    /// Portals die with their transaction.
    fn end_portals_with_transaction(&mut self) {
        if self.session.status() == Status::Idle && self.implicit == Implicit::No {
            self.portals.clear();
            self.portal_bytes = 0;
        }
    }

    fn tell_parameters(&mut self) {
        for (name, value) in self.session.take_parameter_changes() {
            self.wire.replies.parameter(name, value);
        }
    }

    fn tell_notices(&mut self) {
        for (severity, notice) in self.session.take_notices() {
            self.wire.replies.notice(severity, &notice);
        }
    }

    fn tell_error(&mut self, error: &SqlError) {
        self.wire.cancel.idle();
        self.tell_notices();
        self.metrics.error(error.sqlstate);
        self.wire.replies.error(Severity::Error, error);
    }

    fn count(&self, sql: &str, ran: &Ran, began: Instant) {
        match ran {
            Ran::Complete(tag) => self.metrics.statement(tag, Outcome::Done, began.elapsed()),
            Ran::Failed(_) => self.metrics.statement(sql, Outcome::Failed, began.elapsed()),
            Ran::Empty | Ran::Suspended(_) | Ran::CopyIn(_) => {}
        }
    }

    fn forget_portal(&mut self, name: &str) {
        if let Some(portal) = self.portals.remove(name) {
            self.portal_bytes = self.portal_bytes.saturating_sub(portal.bytes);
        }
    }
}

/// The statements of a query, each with the place where it begins.
fn queue(sql: &str, statements: Vec<Arc<str>>) -> VecDeque<Queued> {
    let (mut from, mut chars) = (0, 0);
    let mut queued = VecDeque::with_capacity(statements.len());
    for statement in statements {
        if let Some(found) = sql[from..].find(&*statement) {
            chars += sql[from..from + found].chars().count();
            from += found;
        }
        let offset = u32::try_from(chars).unwrap_or(0);
        chars += statement.chars().count();
        from = (from + statement.len()).min(sql.len());
        queued.push_back(Queued { sql: statement, offset });
    }
    queued
}

/// Whether a text could hold no statement or several. Most hold one, and are not split to find that out.
fn may_not_be_one(sql: &str) -> bool {
    let text = sql.trim();
    let text = text.strip_suffix(';').unwrap_or(text);
    text.is_empty() || text.contains(';') || text.starts_with("--") || text.starts_with("/*")
}

fn check_counts(bind: &Bind, params: usize, columns: usize) -> Result<(), SqlError> {
    let (given, formats, results) = (bind.params.len(), bind.formats.len(), bind.result_formats.len());
    let message = if formats > 1 && formats != given {
        format!("bind message has {formats} parameter formats but {given} parameters")
    } else if given != params {
        let name = &bind.statement;
        format!("bind message supplies {given} parameters, but prepared statement \"{name}\" requires {params}")
    } else if results > 1 && results != columns {
        format!("bind message has {results} result formats but query has {columns} columns")
    } else {
        return Ok(());
    };
    Err(SqlError::new("08P01", message))
}

fn no_portal(name: &str) -> SqlError {
    SqlError::new("34000", format!("portal \"{name}\" does not exist"))
}

fn too_many_columns() -> SqlError {
    SqlError::new("54011", format!("a result can have at most {COLUMNS_MAX} columns"))
}

fn unexpected_in_copy(kind: Kind) -> SqlError {
    SqlError::new("08P01", format!("unexpected message during COPY from stdin: {kind:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_know_where_they_begin() {
        let sql = "select '\u{e4}'; select 1 ;select 1";
        let statements = ["select '\u{e4}'", "select 1", "select 1"].map(Arc::from).to_vec();
        let offsets: Vec<u32> = queue(sql, statements).iter().map(|queued| queued.offset).collect();
        assert_eq!(offsets, [0, 12, 22]);
    }

    #[test]
    fn texts_that_may_not_be_one_statement() {
        for (sql, expected) in [
            ("select 1", false),
            ("select 1;", false),
            ("select 1; ", false),
            ("", true),
            (" ; ", true),
            ("-- nothing", true),
            ("select 1; select 2", true),
            ("select ';'", true),
        ] {
            assert_eq!(may_not_be_one(sql), expected, "{sql}");
        }
    }
}
