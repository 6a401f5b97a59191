//! A database in a temporary folder, and clients that speak SQL to it.

use crate::postgres::{server, urls};
use isles_cluster::database::{Config, Database, ShardPlace};
use isles_cluster::roles::Role;
use isles_cluster::session::{Answer, Login, Session, Status};
use isles_engine::env::{Env, TokioEnv};
use isles_engine::postgres::{PostgresOptions, PostgresShard};
use isles_engine::shard::Shard;
use isles_engine::sqlite::{SqliteOptions, SqliteShard};
use isles_kernel::error::SqlError;
use isles_kernel::names::ShardId;
use isles_kernel::value::Value;
use isles_sim::pgserver::PgServer;
use isles_sim::sqlgen::{Compare, Generator};
use isles_sql::text;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// A database that is gone with the test.
pub(crate) struct Db {
    pub(crate) database: Arc<Database>,
    pub(crate) folder: tempfile::TempDir,
}

pub(crate) fn env() -> Arc<dyn Env> {
    Arc::new(TokioEnv::current())
}

impl Db {
    pub(crate) async fn sqlite(shards: usize) -> Db {
        let folder = tempfile::tempdir().expect("a folder");
        let database = Database::open(Config::sqlite(folder.path(), shards), env()).await.expect("it opens");
        Db { database, folder }
    }

    pub(crate) async fn postgres(urls: Vec<String>) -> Db {
        let folder = tempfile::tempdir().expect("a folder");
        let database = Database::open(Config::postgres(folder.path(), urls), env()).await.expect("it opens");
        Db { database, folder }
    }

    pub(crate) fn client(&self) -> Client {
        self.client_as(Role { admin: true, ..Role::default() }, &[]).expect("a session")
    }

    /// A client of a role, with settings of its connection.
    pub(crate) fn client_as(&self, role: Role, settings: &[(&str, &str)]) -> Result<Client, SqlError> {
        let settings = settings.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
        let login = Login { user: "alice".into(), database: "isles".into(), settings, role };
        Ok(Client { session: self.database.session(login)? })
    }

    /// Closes it and opens it again, as a restart does.
    pub(crate) async fn restart(self, shards: usize) -> Db {
        self.database.close().await.expect("it closes");
        let Db { database, folder } = self;
        drop(database);
        let database = Database::open(Config::sqlite(folder.path(), shards), env()).await.expect("it opens again");
        Db { database, folder }
    }
}

const PAUSE: Duration = Duration::from_millis(20);

/// Where databases of one engine are made.
pub(crate) enum World {
    Sqlite,
    Postgres(PgServer),
}

impl World {
    pub(crate) fn both() -> [World; 2] {
        [World::Sqlite, World::Postgres(server())]
    }

    pub(crate) fn config(&self, folder: &Path, shards: usize) -> Config {
        match self {
            World::Sqlite => Config::sqlite(folder, shards),
            World::Postgres(server) => Config::postgres(folder, urls(server, shards)),
        }
    }
}

/// Opens a database. One that was closed just now lets its catalog go with the last of its tasks.
pub(crate) async fn try_open(config: &Config) -> Result<Arc<Database>, SqlError> {
    for _ in 0..500 {
        match Database::open(config.clone(), env()).await {
            Err(error) if error.message.contains("open already") => tokio::time::sleep(PAUSE).await,
            opened => return opened,
        }
    }
    panic!("the catalog is never let go");
}

pub(crate) async fn open(config: &Config) -> Db {
    match try_open(config).await {
        Ok(database) => Db { database, folder: tempfile::tempdir().unwrap() },
        Err(error) => panic!("{error}"),
    }
}

pub(crate) async fn close(db: Db) {
    db.database.close().await.unwrap();
}

/// A shard by itself, while no database has it open.
pub(crate) async fn shard(config: &Config, at: usize) -> Arc<dyn Shard> {
    let id = ShardId::new(format!("s{at}")).unwrap();
    match &config.shards[at] {
        ShardPlace::Sqlite => {
            let path = config.folder.join(id.as_str()).join("shard.db");
            Arc::new(SqliteShard::open(id, &path, env(), SqliteOptions::default()).await.unwrap())
        }
        ShardPlace::Postgres { url } => {
            Arc::new(PostgresShard::open(id, url, env(), PostgresOptions::default()).await.unwrap())
        }
    }
}

pub(crate) struct Client {
    pub(crate) session: Session,
}

fn shown(value: &Value, ty: isles_sql::types::Type) -> String {
    if value.is_null() {
        return "∅".into();
    }
    let mut out = Vec::new();
    text::output(value, ty, &text::Settings::default(), &mut out);
    String::from_utf8(out).expect("texts are UTF-8")
}

impl Client {
    /// Runs one statement and shows what came of it: rows as `a|b`, each on its own, or the tag.
    pub(crate) async fn try_run(&mut self, sql: &str) -> Result<Vec<String>, SqlError> {
        self.try_with(sql, Vec::new()).await
    }

    pub(crate) async fn try_with(&mut self, sql: &str, params: Vec<Value>) -> Result<Vec<String>, SqlError> {
        let prepared = self.session.prepare(sql, &[]).await?;
        match self.session.execute(&prepared, params).await? {
            Answer::Rows(mut rows) => {
                let fields = rows.fields.clone();
                let mut lines = Vec::new();
                while let Some(batch) = rows.next(100).await? {
                    for row in batch {
                        let texts: Vec<String> = row.iter().zip(&*fields).map(|(v, f)| shown(v, f.ty)).collect();
                        lines.push(texts.join("|"));
                    }
                }
                Ok(lines)
            }
            Answer::Done { tag } => Ok(vec![tag]),
            Answer::Empty => Ok(Vec::new()),
            _ => panic!("a copy"),
        }
    }

    pub(crate) async fn run(&mut self, sql: &str) -> Vec<String> {
        match self.try_run(sql).await {
            Ok(lines) => lines,
            Err(error) => panic!("{sql}: {error} {:?}", error.hint),
        }
    }

    /// The SQLSTATE of what must fail.
    pub(crate) async fn fails(&mut self, sql: &str) -> &'static str {
        match self.try_run(sql).await {
            Ok(lines) => panic!("{sql} gave {lines:?}"),
            Err(error) => error.sqlstate,
        }
    }

    pub(crate) fn status(&self) -> Status {
        self.session.status()
    }
}

/// What a statement came to, in a form that two databases agree on.
pub(crate) async fn answer(client: &mut Client, sql: &str, compare: Compare) -> Result<Vec<String>, String> {
    match client.try_run(sql).await {
        Ok(mut lines) => {
            if compare == Compare::Rows {
                lines.sort();
            }
            Ok(lines)
        }
        Err(error) if compare == Compare::Rows => Err(error.sqlstate[..2].into()),
        Err(error) => Err(error.sqlstate.into()),
    }
}

/// A session on each of two databases that must answer alike.
pub(crate) struct Pair {
    pub(crate) one: Client,
    pub(crate) other: Client,
    pub(crate) generator: Generator,
}

impl Pair {
    /// Runs a statement, and goes on to the end of its transaction. Returns how many statements gave rows.
    pub(crate) async fn step(&mut self) -> usize {
        let mut rows = 0;
        loop {
            let statement = self.generator.statement();
            let one = answer(&mut self.one, &statement.sql, statement.compare).await;
            let other = answer(&mut self.other, &statement.sql, statement.compare).await;
            assert_eq!(one, other, "{}", statement.sql);
            assert_eq!(self.one.status(), self.other.status(), "{}", statement.sql);
            rows += usize::from(one.is_ok_and(|lines| lines.len() > 1));
            match self.one.status() {
                Status::Idle => return rows,
                Status::InTransaction => {}
                Status::Failed => {
                    self.generator.abandon_transaction();
                    self.one.run("ROLLBACK").await;
                    self.other.run("ROLLBACK").await;
                    return rows;
                }
            }
        }
    }
}
