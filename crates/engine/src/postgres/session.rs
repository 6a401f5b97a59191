//! A connection to the server, driven by the task that waits for its answer.
//!
//!     waiting task ──┬─ the request   sends, and takes the answer from a channel
//!                    └─ the link      writes to the socket, and reads from it into that channel
//!
//! The library splits a connection in two: a client that makes requests, and a future that moves the bytes, which is
//! meant to run as a task of its own. Then every request wakes that task and its answer wakes the first one again,
//! which costs more than everything else that is done for a short read. So here both are polled together: whoever
//! waits for an answer moves the bytes himself. While nobody waits, nobody reads: a server that has gone is noticed
//! when the session is lent ([`Session::is_alive`]) or used.
//!
//! A future of the client that is polled without the link would wait for ever. Hence the client is private, and every
//! method here drives. Requests that are sent together (`join!`) are polled by one task; each of them drives, and when
//! it reads something for another, the task is woken to look again. Two tasks must not wait on one session: only the
//! one that polled last would be woken.
//!
//! What clients ask for goes past the library ([`socket`](super::socket)): statements that belong together are one
//! [`Exchange`], with one answer. Exchanges and requests of the library take turns, never at once.

use super::exchange::{Answer, Exchange, Heard, Known, hear};
use super::fault::{self, Fault};
use super::socket::Tap;
use crate::error::ShardError;
use crate::text::TextHash;
use bytes::Bytes;
use fallible_iterator::FallibleIterator;
use futures::future::BoxFuture;
use futures::task::noop_waker_ref;
use futures::{SinkExt, StreamExt};
use isles_kernel::value::DataType;
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker, ready};
use tokio::runtime;
use tokio_postgres::tls::NoTlsStream;
use tokio_postgres::types::{BorrowToSql, Oid, ToSql, Type};
use tokio_postgres::{Client, Config, Connection, Error, NoTls, Row, Statement, ToStatement};

/// Prepared statements of one session; beyond it the server's memory is worth more than the round trip.
pub(super) const MAX_PREPARED: usize = 500;

type Result<T> = std::result::Result<T, Error>;

pub(super) struct Session {
    /// How another connection is made, to cancel what runs on this one.
    config: Arc<Config>,
    /// Which runtime watches the socket.
    runtime: runtime::Id,
    client: Client,
    tap: Tap,
    /// An exchange is under way.
    exchanging: AtomicBool,
    /// None once the connection is closed or broken; requests that were not answered by then fail.
    link: Mutex<Option<Link>>,
    /// Requests that wait for an answer at this moment.
    waiting: AtomicUsize,
    arrived: Arc<Arrived>,
    prepared: Mutex<Prepared>,
    /// Rises whenever the schema has changed under what is prepared.
    schema: Arc<AtomicU64>,
}

type Link = Connection<Tap, NoTlsStream>;

/// What has been prepared, and under which schema.
#[derive(Default)]
struct Prepared {
    schema: u64,
    /// By the library, for statements of our own.
    statements: HashMap<Box<str>, Statement, TextHash>,
    /// For exchanges.
    known: HashMap<Box<str>, Arc<Known>, TextHash>,
    /// Of these, those that look at the fences' token, by where the texts are that they were made of: a text is shared by
    /// all who run it, and is kept here, so that no other one can be there.
    by_token: HashMap<usize, (Arc<str>, Arc<Known>)>,
    /// Names of what is not known any more, and is still to be closed.
    forgotten: Vec<String>,
    /// Names that have been given so far.
    names: u64,
}

impl Prepared {
    fn clear(&mut self) {
        self.statements.clear();
        self.by_token.clear();
        let known = self.known.drain();
        self.forgotten.extend(known.map(|(_, known)| known.name.clone()));
    }

    fn new_name(&mut self) -> String {
        self.names += 1;
        format!("i{}", self.names)
    }
}

/// Whoever has begun an exchange, until its end.
struct Exchanging<'a>(&'a AtomicBool);

impl Drop for Exchanging<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Set when the link has something for a request, in place of waking its task: that task is just polling the link.
#[derive(Default)]
struct Arrived(AtomicBool);

impl Wake for Arrived {
    fn wake(self: Arc<Arrived>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Arrived>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The runtime of this thread.
pub(super) fn here() -> Option<runtime::Id> {
    runtime::Handle::try_current().ok().map(|handle| handle.id())
}

/// Where a text is in memory.
fn place_of(text: &Arc<str>) -> usize {
    text.as_ptr() as usize
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts a request that waits.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Session {
    pub(super) async fn connect(config: Arc<Config>, schema: Arc<AtomicU64>) -> std::result::Result<Session, Fault> {
        let tap = Tap::connect(&config).await.map_err(|error| Fault::Lost(error.to_string()))?;
        let (client, link) = config.connect_raw(tap.clone(), NoTls).await?;
        let prepared = Prepared { schema: schema.load(Ordering::SeqCst), ..Prepared::default() };
        Ok(Session {
            config,
            runtime: runtime::Handle::current().id(),
            client,
            tap,
            exchanging: AtomicBool::new(false),
            link: Mutex::new(Some(link)),
            waiting: AtomicUsize::new(0),
            arrived: Arc::default(),
            prepared: Mutex::new(prepared),
            schema,
        })
    }

    /// Takes in what the server has said meanwhile, and says whether it is still there. Nobody waits, so nobody is to
    /// be woken, by this or by the next request.
    pub(super) fn is_alive(&self) -> bool {
        self.move_bytes(&mut Context::from_waker(noop_waker_ref()));
        !self.is_closed()
    }

    /// Whether this runtime watches it.
    pub(super) fn is_near(&self, here: Option<runtime::Id>) -> bool {
        here == Some(self.runtime)
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed() || self.tap.wire().is_lost()
    }

    /// Asks the server, by another connection, to end what runs on this one.
    pub(super) fn cancel(&self) -> BoxFuture<'static, ()> {
        let (token, config) = (self.client.cancel_token(), self.config.clone());
        Box::pin(async move {
            if let Ok(tap) = Tap::connect(&config).await {
                // Whether it helps shows in the answer of what is cancelled.
                let _ = token.cancel_query_raw(tap, NoTls).await;
            }
        })
    }

    /// Takes the answers that are still to come, says goodbye, and closes.
    pub(super) async fn close(self) {
        drop(self.client);
        let link = locked(&self.link).take();
        if let Some(link) = link {
            // It is over, whatever is said last.
            let _ = link.await;
        }
    }

    /// Moves what can be moved, either way. Says whether something has come for one that waits.
    fn move_bytes(&self, cx: &mut Context<'_>) -> bool {
        let mut link = locked(&self.link);
        if link.as_mut().is_some_and(|link| Pin::new(link).poll(cx).is_ready()) {
            // With it go the channels of the answers that will not come.
            *link = None;
        }
        drop(link);
        let arrived = self.arrived.0.swap(false, Ordering::Relaxed);
        if arrived && self.waiting.load(Ordering::Relaxed) > 1 {
            cx.waker().wake_by_ref();
        }
        arrived
    }

    /// Waits for work of the client, and moves the bytes meanwhile.
    async fn drive<T>(&self, work: impl Future<Output = T>) -> T {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let _waiting = Waiting(&self.waiting);
        let arrived = Waker::from(self.arrived.clone());
        let (mut work, mut sent) = (pin!(work), false);
        poll_fn(|cx| {
            if std::mem::replace(&mut sent, true) {
                self.move_bytes(cx);
            }
            loop {
                if let Poll::Ready(done) = work.as_mut().poll(&mut Context::from_waker(&arrived)) {
                    return Poll::Ready(done);
                }
                if !self.move_bytes(cx) {
                    return Poll::Pending;
                }
            }
        })
        .await
    }

    /// Waits until the library has been given what it asked for and nobody waits for: it closes statements by itself.
    async fn quiesce(&self) {
        poll_fn(|cx| {
            if !self.tap.wire().has_requests() || self.is_closed() {
                return Poll::Ready(());
            }
            self.move_bytes(cx);
            match self.tap.wire().has_requests() && !self.is_closed() {
                true => Poll::Pending,
                false => Poll::Ready(()),
            }
        })
        .await;
    }

    /// Sends statements together, and gives the answers to `take`, with the number of the statement, as they come. The
    /// first error ends it: the server's, of which `explain` says what it means, or that of `take`. What is not waited
    /// for then is passed over by whoever comes next.
    pub(super) async fn exchange(
        &self,
        exchange: Exchange,
        explain: impl Fn(usize, Fault) -> ShardError,
        mut take: impl FnMut(usize, Answer) -> crate::error::Result<()>,
    ) -> crate::error::Result<()> {
        if self.exchanging.swap(true, Ordering::Relaxed) || self.waiting.load(Ordering::Relaxed) > 0 {
            return Err(ShardError::Unavailable("the connection is used twice at once".into()));
        }
        let _exchanging = Exchanging(&self.exchanging);
        self.quiesce().await;
        let (parts, request) = (exchange.parts(), self.with_farewells(exchange)?.finish());
        let mut earlier = self.tap.wire().begin(request);
        let (mut part, mut failed) = (0, None);
        poll_fn(|cx| {
            let mut wire = self.tap.wire();
            loop {
                let message = match ready!(wire.poll_message(cx)) {
                    Ok(message) => hear(message),
                    Err(error) => {
                        let lost = || explain(part, Fault::Lost(error.to_string()));
                        return Poll::Ready(Err(failed.take().unwrap_or_else(lost)));
                    }
                };
                match message {
                    Heard::Ready if earlier > 0 => earlier -= 1,
                    _ if earlier > 0 => {}
                    Heard::Answer(answer) => {
                        let ends = matches!(answer, Answer::Ended(_) | Answer::Columns(_));
                        if let Err(error) = take(part, answer) {
                            return Poll::Ready(Err(error));
                        }
                        part += usize::from(ends);
                    }
                    Heard::Failed(fault @ Fault::Nonsense(_)) => {
                        wire.give_up();
                        return Poll::Ready(Err(explain(part, fault)));
                    }
                    Heard::Failed(fault) => failed = failed.take().or_else(|| Some(explain(part, fault))),
                    Heard::Ready => match failed.take() {
                        Some(error) => return Poll::Ready(Err(error)),
                        None if part == parts => return Poll::Ready(Ok(())),
                        // An answer to something else would be taken for ours.
                        None => {
                            wire.give_up();
                            let fault = Fault::Nonsense(format!("{part} of {parts} statements were answered"));
                            return Poll::Ready(Err(explain(part, fault)));
                        }
                    },
                    Heard::Aside => {}
                }
            }
        })
        .await
    }

    /// The same, with closing what has been forgotten in front.
    fn with_farewells(&self, exchange: Exchange) -> crate::error::Result<Exchange> {
        let forgotten = std::mem::take(&mut locked(&self.prepared).forgotten);
        match forgotten.is_empty() {
            true => Ok(exchange),
            false => exchange.behind_closing(&forgotten),
        }
    }

    /// The statements of texts, parsed by the server if they are not known under the schema as it is. Those that are not
    /// are sent together.
    pub(super) async fn know<const N: usize>(&self, texts: [&str; N]) -> crate::error::Result<[Arc<Known>; N]> {
        if !texts.iter().all(|text| self.known(text).is_some()) {
            self.learn(&texts).await?;
        }
        let known = texts.map(|text| self.known(text));
        match known.iter().all(Option::is_some) {
            true => Ok(known.map(|known| known.expect("all are there"))),
            false => Err(ShardError::Conflict("the schema has changed".into())),
        }
    }

    pub(super) fn known(&self, sql: &str) -> Option<Arc<Known>> {
        let prepared = locked(&self.prepared);
        let current = prepared.schema == self.schema.load(Ordering::SeqCst);
        prepared.known.get(sql).filter(|_| current).cloned()
    }

    /// Has the server parse those texts that are not known.
    pub(super) async fn learn(&self, texts: &[&str]) -> crate::error::Result<()> {
        let texts: Vec<(&str, &[DataType])> = texts.iter().map(|text| (*text, &[][..])).collect();
        self.learn_typed(&texts).await
    }

    /// The same for texts whose parameters have types that are known here.
    pub(super) async fn learn_typed(&self, texts: &[(&str, &[DataType])]) -> crate::error::Result<()> {
        let schema = self.schema.load(Ordering::SeqCst);
        let mut exchange = Exchange::default();
        let mut learnt: Vec<(&str, String, Shape)> = Vec::new();
        for (text, types) in texts {
            if self.known(text).is_none() && !learnt.iter().any(|(other, ..)| other == text) {
                let name = locked(&self.prepared).new_name();
                exchange.parse(&name, text, types)?;
                learnt.push((text, name, Shape::default()));
            }
        }
        let asked = self.exchange(
            exchange,
            |_, fault| fault::before_commit(fault),
            |part, answer| learnt.get_mut(part).map_or(Ok(()), |(.., shape)| shape.read(answer)),
        );
        if let Err(error) = asked.await {
            // Some may have been parsed.
            locked(&self.prepared).forgotten.extend(learnt.into_iter().map(|(_, name, _)| name));
            return Err(error);
        }
        for (text, name, shape) in learnt {
            let known = Arc::new(self.typed(text, name, shape).await?);
            let mut prepared = locked(&self.prepared);
            if prepared.schema != schema || prepared.known.len() >= MAX_PREPARED {
                prepared.clear();
            }
            prepared.schema = schema;
            prepared.known.insert(text.into(), known);
        }
        Ok(())
    }

    /// A parsed text with its types. Those that do not come with the server, the library looks up.
    async fn typed(&self, sql: &str, name: String, shape: Shape) -> crate::error::Result<Known> {
        let types = |oids: &[Oid]| oids.iter().map(|oid| Type::from_oid(*oid)).collect::<Option<Vec<Type>>>();
        if let (Some(params), Some(columns)) = (types(&shape.params), types(&shape.columns)) {
            return Ok(Known { name, params, columns });
        }
        let looked_up = self.drive(self.client.prepare(sql)).await.map_err(fault::before_commit)?;
        let columns = looked_up.columns().iter().map(|column| column.type_().clone()).collect();
        Ok(Known { name, params: looked_up.params().to_vec(), columns })
    }

    /// The statement of a text, if it has been prepared under the schema as it is.
    pub(super) fn prepared(&self, sql: &str) -> Option<Statement> {
        let prepared = locked(&self.prepared);
        let current = prepared.schema == self.schema.load(Ordering::SeqCst);
        prepared.statements.get(sql).filter(|_| current).cloned()
    }

    /// Prepares a statement and keeps it.
    pub(super) async fn prepare_kept(&self, sql: &str) -> Result<Statement> {
        let schema = self.schema.load(Ordering::SeqCst);
        let statement = self.prepare_typed(sql, &[]).await?;
        let mut prepared = locked(&self.prepared);
        if prepared.schema != schema || prepared.statements.len() >= MAX_PREPARED {
            prepared.clear();
        }
        prepared.schema = schema;
        prepared.statements.insert(sql.into(), statement.clone());
        Ok(statement)
    }

    /// All texts that are known for exchanges.
    pub(super) fn texts(&self) -> Vec<Arc<str>> {
        locked(&self.prepared).known.keys().map(|text| Arc::from(&**text)).collect()
    }

    /// The statement that was made of this very text to look at the fences' token.
    pub(super) fn known_by_token(&self, sql: &Arc<str>) -> Option<Arc<Known>> {
        let prepared = locked(&self.prepared);
        let current = prepared.schema == self.schema.load(Ordering::SeqCst);
        prepared.by_token.get(&place_of(sql)).filter(|_| current).map(|(_, known)| known.clone())
    }

    /// Keeps it, for as long as it is known.
    pub(super) fn keep_by_token(&self, sql: &Arc<str>, known: &Arc<Known>) {
        let mut prepared = locked(&self.prepared);
        if prepared.by_token.len() >= MAX_PREPARED {
            prepared.by_token.clear();
        }
        // Others may have been forgotten while the server parsed it.
        if prepared.known.values().any(|kept| Arc::ptr_eq(kept, known)) {
            prepared.by_token.insert(place_of(sql), (sql.clone(), known.clone()));
        }
    }

    /// Forgets a statement: the schema has changed under it.
    pub(super) fn forget(&self, sql: &str) {
        if let Some(known) = self.known(sql) {
            self.forget_known(&known);
        }
    }

    pub(super) fn forget_known(&self, known: &Arc<Known>) {
        let mut prepared = locked(&self.prepared);
        let before = prepared.known.len();
        prepared.known.retain(|_, kept| !Arc::ptr_eq(kept, known));
        prepared.by_token.retain(|_, (_, kept)| !Arc::ptr_eq(kept, known));
        // It may have been forgotten meanwhile, and is closed once.
        if prepared.known.len() < before {
            prepared.forgotten.push(known.name.clone());
        }
    }

    pub(super) fn forget_all(&self) {
        locked(&self.prepared).clear();
    }

    pub(super) async fn prepare_typed(&self, sql: &str, types: &[Type]) -> Result<Statement> {
        self.drive(self.client.prepare_typed(sql, types)).await
    }

    /// Runs texts without parameters, one after the other.
    pub(super) async fn batch_execute(&self, sql: &str) -> Result<()> {
        self.drive(self.client.batch_execute(sql)).await
    }

    pub(super) async fn execute<T>(&self, statement: &T, params: &[&(dyn ToSql + Sync)]) -> Result<u64>
    where
        T: ?Sized + ToStatement,
    {
        self.drive(self.client.execute(statement, params)).await
    }

    pub(super) async fn query<T>(&self, statement: &T, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>>
    where
        T: ?Sized + ToStatement,
    {
        self.drive(self.client.query(statement, params)).await
    }

    pub(super) async fn query_one<T>(&self, statement: &T, params: &[&(dyn ToSql + Sync)]) -> Result<Row>
    where
        T: ?Sized + ToStatement,
    {
        self.drive(self.client.query_one(statement, params)).await
    }

    pub(super) async fn query_opt<T>(&self, statement: &T, params: &[&(dyn ToSql + Sync)]) -> Result<Option<Row>>
    where
        T: ?Sized + ToStatement,
    {
        self.drive(self.client.query_opt(statement, params)).await
    }

    /// Runs `COPY … FROM STDIN` and sends it these pieces; returns how many rows the server has taken.
    pub(super) async fn copy_in(&self, statement: &Statement, pieces: Vec<Bytes>) -> Result<u64> {
        let work = async {
            let mut sink = pin!(self.client.copy_in(statement).await?);
            for piece in pieces {
                sink.send(piece).await?;
            }
            sink.finish().await
        };
        self.drive(work).await
    }

    /// Runs a statement and gives its rows to `take` as they come, until it has had enough. Returns how many rows the
    /// server has counted, or the first error: `fault` says what the server's means.
    pub(super) async fn each_row<P, I, E>(
        &self,
        statement: &Statement,
        params: I,
        fault: impl Fn(Error) -> E,
        mut take: impl FnMut(Row) -> std::result::Result<(), E>,
    ) -> std::result::Result<u64, E>
    where
        P: BorrowToSql,
        I: IntoIterator<Item = P>,
        I::IntoIter: ExactSizeIterator,
    {
        let work = async {
            let mut rows = pin!(self.client.query_raw(statement, params).await.map_err(&fault)?);
            while let Some(row) = rows.next().await {
                take(row.map_err(&fault)?)?;
            }
            Ok(rows.rows_affected().unwrap_or(0))
        };
        self.drive(work).await
    }
}

/// The types that the server has told of a parsed text, as numbers.
#[derive(Default)]
struct Shape {
    params: Vec<Oid>,
    columns: Vec<Oid>,
}

impl Shape {
    fn read(&mut self, answer: Answer) -> crate::error::Result<()> {
        let damaged = |_| ShardError::Corrupt("the server describes a statement in a way that makes no sense".into());
        match answer {
            Answer::Params(params) => self.params = params.parameters().collect().map_err(damaged)?,
            Answer::Columns(Some(columns)) => {
                self.columns = columns.fields().map(|field| Ok(field.type_oid())).collect().map_err(damaged)?;
            }
            Answer::Columns(None) | Answer::Row(_) | Answer::Ended(_) => {}
        }
        Ok(())
    }
}
