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

use crate::text::TextHash;
use bytes::Bytes;
use futures::task::noop_waker_ref;
use futures::{SinkExt, StreamExt};
use std::collections::HashMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use tokio_postgres::tls::NoTlsStream;
use tokio_postgres::types::{BorrowToSql, ToSql, Type};
use tokio_postgres::{CancelToken, Client, Config, Connection, Error, NoTls, Row, Socket, Statement, ToStatement};

/// Prepared statements of one session; beyond it the server's memory is worth more than the round trip.
pub(super) const MAX_PREPARED: usize = 500;

type Result<T> = std::result::Result<T, Error>;

pub(super) struct Session {
    client: Client,
    /// None once the connection is closed or broken; requests that were not answered by then fail.
    link: Mutex<Option<Link>>,
    /// Requests that wait for an answer at this moment.
    waiting: AtomicUsize,
    arrived: Arc<Arrived>,
    prepared: Mutex<Prepared>,
    /// Rises whenever the schema has changed under what is prepared.
    schema: Arc<AtomicU64>,
}

type Link = Connection<Socket, NoTlsStream>;

/// What has been prepared, and under which schema.
#[derive(Default)]
struct Prepared {
    schema: u64,
    statements: HashMap<Box<str>, Statement, TextHash>,
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
    pub(super) async fn connect(config: &Config, schema: Arc<AtomicU64>) -> Result<Session> {
        let (client, link) = config.connect(NoTls).await?;
        let prepared = Prepared { schema: schema.load(Ordering::SeqCst), ..Prepared::default() };
        Ok(Session {
            client,
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

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    pub(super) fn cancel_token(&self) -> CancelToken {
        self.client.cancel_token()
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
            prepared.statements.clear();
        }
        prepared.schema = schema;
        prepared.statements.insert(sql.into(), statement.clone());
        Ok(statement)
    }

    /// All texts that are prepared.
    pub(super) fn texts(&self) -> Vec<Arc<str>> {
        locked(&self.prepared).statements.keys().map(|text| Arc::from(&**text)).collect()
    }

    /// Forgets a statement: the schema has changed under it.
    pub(super) fn forget(&self, sql: &str) {
        locked(&self.prepared).statements.remove(sql);
    }

    pub(super) fn forget_all(&self) {
        locked(&self.prepared).statements.clear();
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
