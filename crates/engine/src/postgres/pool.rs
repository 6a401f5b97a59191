//! Connections to one database, lent out clean and taken back clean.
//!
//!     lend ── Conn ── finish(Ended) ──→ reset in the background ──→ back to the pool
//!               └──── dropped, cancelled, lost ──→ query cancelled, connection closed
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

use super::fault;
use super::fence::Shape;
use crate::env::Env;
use crate::error::{Result, ShardError};
use deadpool_postgres::{Manager, ManagerConfig, Object, Pool, PoolError, QueueMode, RecyclingMethod};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio_postgres::config::SslMode;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, NoTls, Row, Statement};

/// Prepared statements of one connection; beyond it the server's memory is worth more than the round trip.
const MAX_PREPARED: usize = 500;
/// A server that does not take our connection by then counts as down.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);
/// A reset that takes longer than this is not worth waiting for.
const RESET_LIMIT: Duration = Duration::from_secs(5);
/// Between two looks at whether all connections are back.
const CLOSE_POLL: Duration = Duration::from_millis(5);
/// Running work that has not ended by then is cut off when the shard closes.
const CLOSE_LIMIT: Duration = Duration::from_secs(30);

/// What every session begins with, and goes back to: `RESET ALL` restores what the startup message said.
const SESSION: &str = "-c default_transaction_read_only=on -c timezone=UTC -c datestyle=ISO,YMD -c extra_float_digits=1 \
                       -c bytea_output=hex -c standard_conforming_strings=on -c synchronous_commit=on -c search_path=public \
                       -c statement_timeout=600000";

/// Brings a session back to where it began. One message, so one round trip; none of it can be undone by a client.
const RESET: &str = "CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ALL; UNLISTEN *; \
                     SELECT pg_catalog.pg_advisory_unlock_all(), _isles.forget_prepared(); DISCARD TEMP; DISCARD SEQUENCES";

/// How a connection's last transaction ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// The server has confirmed COMMIT or ROLLBACK, or there was no transaction.
    Closed,
    /// The transaction is open or failed, and the connection idle: ROLLBACK comes first.
    Open,
}

type FencedTexts = HashMap<(Arc<str>, Shape), Arc<str>>;

pub(super) struct Connections {
    pool: Pool,
    config: Config,
    env: Arc<dyn Env>,
    /// Connections that are lent out or being reset.
    lent: Arc<AtomicUsize>,
    /// Texts that look at the fences, by the texts they were made of and what they claim.
    fenced: Mutex<FencedTexts>,
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
    pub(super) fn new(config: Config, size: usize, env: Arc<dyn Env>) -> Result<Connections> {
        let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
        let manager = Manager::from_config(config.clone(), NoTls, recycling);
        // The one that was used last: its server process is the warmest, and the others may rest.
        let pool = Pool::builder(manager).max_size(size).queue_mode(QueueMode::Lifo).build();
        let pool = pool.map_err(|error| ShardError::invalid(format!("no pool of {size} connections: {error}")))?;
        Ok(Connections { pool, config, env, lent: Arc::default(), fenced: Mutex::default() })
    }

    /// Lends a connection; waits for one if all are out. The caller bounds the wait.
    pub(super) async fn lend(&self) -> Result<Conn> {
        let object = match self.pool.get().await {
            Ok(object) => object,
            Err(PoolError::Backend(error)) => return Err(fault::connecting(error, &self.config)),
            Err(PoolError::Closed) => return Err(ShardError::Unavailable("the shard is closed".into())),
            Err(error) => return Err(ShardError::Unavailable(error.to_string())),
        };
        self.lent.fetch_add(1, Ordering::SeqCst);
        let lent = Lent(self.lent.clone());
        Ok(Conn {
            object: Some(object),
            env: self.env.clone(),
            cancelled: AtomicBool::new(false),
            foreign: AtomicBool::new(false),
            lent: Some(lent),
        })
    }

    /// A text that looks at the fences, made of another one or kept from before.
    pub(super) fn fenced(&self, sql: &Arc<str>, shape: Shape, make: impl FnOnce() -> String) -> Arc<str> {
        let mut fenced = self.fenced.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (sql.clone(), shape);
        if let Some(known) = fenced.get(&key) {
            return known.clone();
        }
        if fenced.len() >= MAX_PREPARED {
            fenced.clear();
        }
        let text: Arc<str> = make().into();
        fenced.insert(key, text.clone());
        text
    }

    /// Forgets all prepared statements, since the schema has changed under them.
    pub(super) fn forget_statements(&self) {
        self.pool.manager().statement_caches.clear();
    }

    /// Lends no more, waits for what is out, and closes.
    pub(super) async fn close(&self) {
        let deadline = self.env.elapsed() + CLOSE_LIMIT;
        self.pool.close();
        while self.lent.load(Ordering::SeqCst) > 0 && self.env.elapsed() < deadline {
            self.env.sleep(CLOSE_POLL).await;
        }
    }
}

/// Counts a connection that is out.
struct Lent(Arc<AtomicUsize>);

impl Drop for Lent {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A connection on loan. Unless it is given back by [`Conn::finish`], dropping it closes it.
pub(super) struct Conn {
    /// None only once it has been given back.
    object: Option<Object>,
    env: Arc<dyn Env>,
    /// A cancel request is on its way, and may hit whatever comes next on this connection.
    cancelled: AtomicBool,
    /// It has run a text that may leave something behind: one that Isles did not compose, or a lock of the session.
    foreign: AtomicBool,
    lent: Option<Lent>,
}

impl std::ops::Deref for Conn {
    type Target = Client;
    fn deref(&self) -> &Client {
        self.object.as_ref().expect("only `finish`, which takes the connection, empties it")
    }
}

impl Conn {
    /// Prepares a statement, or finds it prepared.
    pub(super) async fn prepare(&self, sql: &str) -> Result<Statement> {
        let object = self.object.as_ref().expect("only `finish`, which takes the connection, empties it");
        if object.statement_cache.size() >= MAX_PREPARED {
            object.statement_cache.clear();
        }
        object.prepare_cached(sql).await.map_err(fault::before_commit)
    }

    /// Forgets a prepared statement: the schema has changed under it.
    pub(super) fn forget(&self, sql: &str) {
        if let Some(object) = &self.object {
            object.statement_cache.remove(sql, &[]);
        }
    }

    /// Forgets all prepared statements of this connection.
    pub(super) fn forget_all(&self) {
        if let Some(object) = &self.object {
            object.statement_cache.clear();
        }
    }

    /// Prepares a statement for one use: what it means depends on the transaction.
    pub(super) async fn prepare_once(&self, sql: &str) -> Result<Statement> {
        Client::prepare(self, sql).await.map_err(fault::before_commit)
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
        let token = self.cancel_token();
        self.env.spawn(Box::pin(async move {
            let _ = token.cancel_query(NoTls).await;
        }));
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
        self.lent.take();
        drop(self.object.take());
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
        let (object, lent) = (self.object.take(), self.lent.take());
        let Some(object) = object else { return };
        let env = self.env.clone();
        self.env.spawn(Box::pin(async move {
            let _lent = lent;
            let late = env.sleep(RESET_LIMIT);
            let clean = {
                let reset = std::pin::pin!(reset(&object, ended, foreign));
                matches!(futures::future::select(reset, late).await, futures::future::Either::Left((Ok(()), _)))
            };
            if !clean {
                let token = object.cancel_token();
                drop(Object::take(object));
                let _ = token.cancel_query(NoTls).await;
            }
        }));
    }
}

async fn reset(client: &Client, ended: Ended, foreign: bool) -> std::result::Result<(), tokio_postgres::Error> {
    if ended == Ended::Open {
        client.batch_execute("ROLLBACK").await?;
    }
    if foreign { client.batch_execute(RESET).await } else { Ok(()) }
}

impl Drop for Conn {
    fn drop(&mut self) {
        let Some(object) = self.object.take() else { return };
        // The server notices a closed connection only when it next reads from it, so what runs is cancelled, too:
        // otherwise its locks would outlive the caller's interest in them.
        if !object.is_closed() && !self.cancelled.load(Ordering::SeqCst) {
            let token = object.cancel_token();
            self.env.spawn(Box::pin(async move {
                let _ = token.cancel_query(NoTls).await;
            }));
        }
        drop(Object::take(object));
    }
}
