//! Connections to one database, lent out clean and taken back clean.
//!
//!     lend ── Conn ── finish(Ended) ──→ reset in the background ──→ back to the pool
//!               └──── dropped, cancelled, lost ──→ query cancelled, connection closed
//!
//! A connection is a [`Session`], which moves its bytes only while somebody waits on it. So one that rests in the pool
//! costs nothing, and is looked at when it is lent: if its server has gone, another one is made.
//!
//! A socket is watched by the runtime that made it. Where threads have runtimes of their own, an answer to another
//! thread's request would wake two of them; so each is lent what its own runtime watches, and the pool grows if that is
//! not there.
//!
//! A client's SQL can leave settings, a role, temporary tables, prepared statements, session locks, cursors and
//! LISTEN behind. [`RESET`] is PostgreSQL's `DISCARD ALL` but for our own prepared statements, which cost a round trip
//! each to make again; those that SQL made are dropped by name. It runs when a connection comes back and not when
//! it is lent: a session lock that waits in the pool would block everyone else. Whatever is in doubt is closed. A
//! connection that has run nothing but texts that Isles composed has nothing to reset.
//!
//! Every session is read only unless a transaction says otherwise. Requests send BEGIN and their statements without
//! waiting in between, so should a BEGIN ever fail (a cancel that comes at that very moment), the statements after
//! it would run, and commit, on their own, without a fence. Being read only, they fail.
//!
//! Invariants (docs/invariants.md):
//!   * I-43  a connection carries nothing from its last user
//!   * I-66  every wait has a deadline: the caller's

use super::exchange::Known;
use super::fault;
use super::fence::{self, Shape, Stamped};
use super::session::{self, MAX_PREPARED, Session};
use crate::env::Env;
use crate::error::{Result, ShardError};
use crate::shard::Clients;
use crate::text::TextHash;
use arc_swap::ArcSwapOption;
use futures::FutureExt;
use futures::future::{BoxFuture, Either, join, select};
use std::collections::{BTreeSet, HashMap};
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_postgres::config::SslMode;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Config, Row, Statement};

/// A server that does not take our connection by then counts as down.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// A reset that takes longer than this is not worth waiting for.
const RESET_LIMIT: Duration = Duration::from_secs(5);
/// Between two looks at whether all connections are back.
const CLOSE_POLL: Duration = Duration::from_millis(5);
/// Running work that has not ended by then is cut off when the shard closes.
const CLOSE_LIMIT: Duration = Duration::from_secs(30);

/// Of so many connections, what they have prepared is worth preparing elsewhere; and so many texts of them.
const WARM_SESSIONS: usize = 4;
const WARM_TEXTS: usize = 64;

/// What every session begins with, and goes back to: `RESET ALL` restores what the startup message said.
const SESSION: &str = "-c default_transaction_read_only=on -c timezone=UTC -c datestyle=ISO,YMD -c extra_float_digits=1 \
                       -c bytea_output=hex -c standard_conforming_strings=on -c synchronous_commit=on -c search_path=public \
                       -c statement_timeout=600000 -c row_security=on";

/// Brings a session back to where it began. One message, so one round trip; none of it can be undone by a client.
const RESET: &str = "CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ROLE; RESET ALL; UNLISTEN *; \
                     SELECT pg_catalog.pg_advisory_unlock_all(), _isles.forget_prepared(); DISCARD TEMP; DISCARD SEQUENCES";

/// How a connection's last transaction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// The server has confirmed COMMIT or ROLLBACK, or there was no transaction.
    Closed,
    /// The transaction is open or failed, and the connection idle: ROLLBACK comes first.
    Open,
}

type FencedTexts = HashMap<(Arc<str>, Shape), Arc<str>, TextHash>;

/// Boxed, since a session is large and moves with every loan.
type Idle = Mutex<Vec<Box<Session>>>;

pub(super) struct Connections {
    config: Arc<Config>,
    env: Arc<dyn Env>,
    size: usize,
    /// One for each connection that is lent out or being reset. Closed when the shard is.
    permits: Arc<Semaphore>,
    /// Clean connections. The one that came back last is lent first: its server process is the warmest, and the others
    /// may rest.
    idle: Arc<Idle>,
    /// One more is being made.
    growing: Arc<AtomicBool>,
    /// Rises whenever the schema has changed under what is prepared.
    schema: Arc<AtomicU64>,
    /// Texts that look at the fences, by the texts they were made of and what they claim.
    fenced: Mutex<FencedTexts>,
    /// The fences as last seen.
    fences: ArcSwapOption<Stamped>,
}

/// Reads a URL into what tokio-postgres needs. The URL may hold a password, so nothing of it goes into the error.
pub(super) fn parse_url(url: &str) -> Result<Config> {
    let mut config: Config = url.parse().map_err(|_| ShardError::invalid("the shard's URL is not a PostgreSQL URL"))?;
    if config.get_ssl_mode() == SslMode::Require {
        return Err(ShardError::invalid(
            "the shard's URL has sslmode=require, and connections with TLS are not supported yet",
        ));
    }
    if config.get_hosts().is_empty() {
        return Err(ShardError::invalid("the shard's URL names no host"));
    }
    if config.get_user().is_none() {
        return Err(ShardError::invalid("the shard's URL names no user"));
    }
    let options = format!("{} {SESSION}", config.get_options().unwrap_or_default());
    config.options(options.trim());
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(CONNECT_LIMIT);
    }
    if config.get_application_name().is_none() {
        config.application_name("isles");
    }
    Ok(config)
}

impl Connections {
    pub(super) fn new(config: Config, size: usize, env: Arc<dyn Env>) -> Connections {
        Connections {
            config: Arc::new(config),
            env,
            size,
            permits: Arc::new(Semaphore::new(size)),
            idle: Arc::default(),
            growing: Arc::default(),
            schema: Arc::default(),
            fenced: Mutex::default(),
            fences: ArcSwapOption::empty(),
        }
    }

    /// Lends a connection; waits for one if all are out. The caller bounds the wait.
    pub(super) async fn lend(&self) -> Result<Conn> {
        let permit = match self.permits.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => match self.permits.clone().acquire_owned().await {
                Ok(permit) => permit,
                Err(_) => return Err(ShardError::Unavailable("the shard is closed".into())),
            },
        };
        let here = session::here();
        let session = match self.rested(here) {
            Some(session) => session,
            None => self.connect().await?,
        };
        if !session.is_near(here) {
            self.grow();
        }
        Ok(Conn {
            session: Some(session),
            home: Some(Home { permit, idle: self.idle.clone() }),
            env: self.env.clone(),
            cancelled: AtomicBool::new(false),
            foreign: AtomicBool::new(false),
        })
    }

    #[expect(clippy::vec_box, reason = "a session is lent in its box, so that lending it moves a pointer")]
    fn resting(&self) -> MutexGuard<'_, Vec<Box<Session>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connections that there are.
    pub(super) fn count(&self) -> usize {
        let lent = self.size.saturating_sub(self.permits.available_permits());
        lent + self.resting().len()
    }

    /// What the connections that were used last have prepared.
    pub(super) fn texts(&self) -> BTreeSet<Arc<str>> {
        let resting = self.resting();
        let last = resting.iter().rev().take(WARM_SESSIONS);
        last.flat_map(|session| session.texts()).take(WARM_TEXTS).collect()
    }

    /// Makes connections until as many rest as there are clients, as long as there may be more and the server lets them
    /// in. Each takes it a process that has yet to read what the tables are, and us a proof of the password.
    pub(super) async fn warm(&self, clients: &Clients) {
        let rested = || self.resting().len();
        while rested() < clients.count && self.count() < self.size {
            let Ok(permit) = self.permits.clone().try_acquire_owned() else { return };
            let Ok(session) = self.connect().await else { return };
            for text in &clients.texts {
                // One that cannot be parsed here is none that will be run here.
                let _ = session.learn(&[text]).await;
            }
            Home { permit, idle: self.idle.clone() }.take_back(session);
        }
    }

    /// Boxed: it is rare, and large, and would be a part of every request's future.
    fn connect(&self) -> BoxFuture<'_, Result<Box<Session>>> {
        let session = Session::connect(self.config.clone(), self.schema.clone());
        let connected = session.map(|session| match session {
            Ok(session) => Ok(Box::new(session)),
            Err(error) => Err(fault::connecting(error, &self.config)),
        });
        connected.boxed()
    }

    /// A connection from the pool whose server is still there.
    fn rested(&self, here: Option<runtime::Id>) -> Option<Box<Session>> {
        loop {
            // Looked at without the lock, since a look reads from the socket.
            let session = self.take_resting(here)?;
            if session.is_alive() {
                return Some(session);
            }
        }
    }

    /// One that this thread's own runtime watches, or any.
    fn take_resting(&self, here: Option<runtime::Id>) -> Option<Box<Session>> {
        let mut resting = self.resting();
        match resting.iter().rposition(|session| session.is_near(here)) {
            Some(at) => Some(resting.swap_remove(at)),
            None => resting.pop(),
        }
    }

    /// Makes another connection on this thread's runtime, while one of another's is used, if there may be more. Only one
    /// is made at a time.
    fn grow(&self) {
        if self.count() >= self.size || self.growing.swap(true, Ordering::Relaxed) {
            return;
        }
        let session = Session::connect(self.config.clone(), self.schema.clone());
        let (permits, idle, growing) = (self.permits.clone(), self.idle.clone(), self.growing.clone());
        // Not by the environment, which has a runtime of its own.
        tokio::spawn(async move {
            if let Ok(permit) = permits.try_acquire_owned()
                && let Ok(session) = session.await
            {
                Home { permit, idle }.take_back(Box::new(session));
            }
            growing.store(false, Ordering::Relaxed);
        });
    }

    /// The fences as last seen, but not those that have a token which is known to be of the past.
    pub(super) async fn fences(&self, conn: &Conn, past: Option<i64>) -> Result<Arc<Stamped>> {
        match self.fences.load_full() {
            Some(known) if Some(known.token) != past => Ok(known),
            _ => {
                let now = Arc::new(fence::load_stamped(conn).await?);
                self.fences.store(Some(now.clone()));
                Ok(now)
            }
        }
    }

    /// A text with so many parameters that looks at the fences, made of another one or kept from before.
    pub(super) fn fenced(&self, sql: &Arc<str>, shape: Shape, params: usize) -> Arc<str> {
        let mut fenced = self.fenced.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (sql.clone(), shape);
        if let Some(known) = fenced.get(&key) {
            return known.clone();
        }
        if fenced.len() >= MAX_PREPARED {
            fenced.clear();
        }
        let text: Arc<str> = shape.around(sql, params).into();
        fenced.insert(key, text.clone());
        text
    }

    /// Forgets all prepared statements, since the schema has changed under them.
    pub(super) fn forget_statements(&self) {
        self.schema.fetch_add(1, Ordering::SeqCst);
    }

    /// Lends no more, waits for what is out, and closes.
    pub(super) async fn close(&self) {
        let deadline = self.env.elapsed() + CLOSE_LIMIT;
        self.permits.close();
        while self.permits.available_permits() < self.size && self.env.elapsed() < deadline {
            self.env.sleep(CLOSE_POLL).await;
        }
        let idle = std::mem::take(&mut *self.resting());
        let goodbye = futures::future::join_all(idle.into_iter().map(|session| session.close()));
        within_limit(self.env.as_ref(), goodbye).await;
    }
}

/// Waits for a farewell, but not for ever.
async fn within_limit<T>(env: &dyn Env, work: impl Future<Output = T>) -> Option<T> {
    match select(pin!(work), env.sleep(RESET_LIMIT)).await {
        Either::Left((done, _)) => Some(done),
        Either::Right(_) => None,
    }
}

/// Where a connection goes back to.
struct Home {
    permit: OwnedSemaphorePermit,
    idle: Arc<Idle>,
}

impl Home {
    fn take_back(self, session: Box<Session>) {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(session);
        // Only now may the next one look for it.
        drop(self.permit);
    }
}

/// A connection on loan. Unless it is given back by [`Conn::finish`], dropping it closes it.
pub(super) struct Conn {
    /// None only once it has been given back.
    session: Option<Box<Session>>,
    home: Option<Home>,
    env: Arc<dyn Env>,
    /// A cancel request is on its way, and may hit whatever comes next on this connection.
    cancelled: AtomicBool,
    /// It has run a text that may leave something behind: one that Isles did not compose, or a lock of the session.
    foreign: AtomicBool,
}

impl std::ops::Deref for Conn {
    type Target = Session;
    fn deref(&self) -> &Session {
        self.session.as_ref().expect("only `finish`, which takes the connection, empties it")
    }
}

impl Conn {
    /// Prepares a statement, or finds it prepared.
    pub(super) async fn prepare(&self, sql: &str) -> Result<Statement> {
        match self.prepared(sql) {
            Some(statement) => Ok(statement),
            None => self.prepare_kept(sql).await.map_err(fault::before_commit),
        }
    }

    /// The statement of a text, for exchanges.
    pub(super) async fn knows(&self, sql: &str) -> Result<Arc<Known>> {
        match self.known(sql) {
            Some(known) => Ok(known),
            None => self.know([sql]).await.map(|[known]| known),
        }
    }

    /// Prepares a statement for one use: what it means depends on the transaction.
    pub(super) async fn prepare_once(&self, sql: &str) -> Result<Statement> {
        self.prepare_typed(sql, &[]).await.map_err(fault::before_commit)
    }

    /// Runs one of our own statements, prepared once per connection.
    pub(super) async fn rows(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Vec<Row>> {
        let statement = self.prepare(sql).await?;
        self.query(&statement, params).await.map_err(fault::before_commit)
    }

    /// As [`Conn::rows`], for a statement that gives exactly one row.
    pub(super) async fn row(&self, sql: &str, params: &[&(dyn ToSql + Sync)]) -> Result<Row> {
        let statement = self.prepare(sql).await?;
        self.query_one(&statement, params).await.map_err(fault::before_commit)
    }

    /// Asks the server to end what runs on this connection. The connection will not be lent again.
    pub(super) fn cancel(&self) {
        self.cancelled.store(true, Ordering::SeqCst);
        let cancel = Session::cancel(self);
        self.env.spawn(cancel);
    }

    /// Remembers that a text is run which may leave something behind.
    pub(super) fn runs_foreign(&self) {
        self.foreign.store(true, Ordering::Relaxed);
    }

    pub(super) fn has_run_foreign(&self) -> bool {
        self.foreign.load(Ordering::Relaxed)
    }

    /// Gives back a connection that ran nothing but our own reading statements: there is nothing to reset.
    pub(super) fn keep(mut self) {
        if let (Some(session), Some(home)) = (self.session.take(), self.home.take()) {
            home.take_back(session);
        }
    }

    /// Gives the connection back. The reset goes on in the background; nobody waits for it.
    pub(super) fn finish(mut self, ended: Ended) {
        if self.cancelled.load(Ordering::SeqCst) || self.is_closed() {
            return;
        }
        let foreign = self.has_run_foreign();
        if ended == Ended::Closed && !foreign {
            return self.keep();
        }
        let (Some(session), Some(home)) = (self.session.take(), self.home.take()) else { return };
        let env = self.env.clone();
        self.env.spawn(Box::pin(async move {
            match within_limit(env.as_ref(), reset(&session, ended, foreign)).await {
                Some(Ok(())) => home.take_back(session),
                _ => {
                    drop(home);
                    give_up(env.as_ref(), session).await;
                }
            }
        }));
    }
}

async fn reset(session: &Session, ended: Ended, foreign: bool) -> std::result::Result<(), tokio_postgres::Error> {
    if ended == Ended::Open {
        session.batch_execute("ROLLBACK").await?;
    }
    if foreign { session.batch_execute(RESET).await } else { Ok(()) }
}

/// Ends a connection that something may still run on. The server notices a closed connection only when it next reads
/// from it, so what runs is cancelled, too: otherwise its locks would outlive the caller's interest in them.
async fn give_up(env: &dyn Env, session: Box<Session>) {
    let cancel = session.cancel();
    // Side by side: what the session holds goes when it closes, and no request to cancel should hold that up.
    within_limit(env, join(cancel, session.close())).await;
}

impl Drop for Conn {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        if session.is_closed() {
            return;
        }
        let (env, cancelled) = (self.env.clone(), self.cancelled.load(Ordering::SeqCst));
        self.env.spawn(Box::pin(async move {
            match cancelled {
                true => drop(within_limit(env.as_ref(), session.close()).await),
                false => give_up(env.as_ref(), session).await,
            }
        }));
    }
}
