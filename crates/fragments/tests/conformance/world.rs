//! A database for each test, of every kind.

use isles_cluster::database::{Config, Database};
use isles_engine::env::TokioEnv;
use isles_fragments::adapter::Adapter;
use isles_fragments::adapter::isles::Isles;
use isles_fragments::adapter::memory::Memory;
use isles_fragments::adapter::postgres::Postgres;
use isles_fragments::adapter::sqlite::Sqlite;
use isles_fragments::context::{GlobalScope, ShardContext};
use isles_fragments::query::{Find, Found};
use isles_fragments::schema::{ColumnType, Schema, column};
use isles_fragments::shard::{Shard, Strategy};
use isles_fragments::store::{Fragment, Handle, Store};
use isles_fragments::values::Values;
use isles_fragments::{Error, Value};
use isles_sim::pgserver::{PgOptions, PgServer};
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Memory,
    Sqlite,
    Postgres,
    Isles,
}

pub(crate) struct World {
    pub(crate) adapter: Arc<dyn Adapter>,
    pub(crate) kind: Kind,
    pub(crate) url: Option<String>,
    pub(crate) database: Option<Arc<Database>>,
    pub(crate) folder: tempfile::TempDir,
}

/// One server for all tests of this process.
pub(crate) fn server() -> &'static PgServer {
    static SERVER: OnceLock<PgServer> = OnceLock::new();
    SERVER.get_or_init(|| PgServer::start(PgOptions { fsync: false, settings: vec!["max_connections=1000".into()] }))
}

impl World {
    fn of(kind: Kind, adapter: Arc<dyn Adapter>, folder: tempfile::TempDir) -> World {
        World { adapter, kind, url: None, database: None, folder }
    }

    pub(crate) async fn memory() -> World {
        World::of(Kind::Memory, Arc::new(Memory::new()), tempfile::tempdir().unwrap())
    }

    pub(crate) async fn sqlite() -> World {
        let folder = tempfile::tempdir().unwrap();
        let adapter = Sqlite::open(folder.path().join("fragments.db")).unwrap();
        World::of(Kind::Sqlite, Arc::new(adapter), folder)
    }

    pub(crate) async fn postgres() -> World {
        let url = server().create_database();
        let world = World::of(Kind::Postgres, Arc::new(Postgres::new(&url).unwrap()), tempfile::tempdir().unwrap());
        World { url: Some(url), ..world }
    }

    pub(crate) async fn isles() -> World {
        let folder = tempfile::tempdir().unwrap();
        let config = Config::sqlite(folder.path(), 2);
        let database = Database::open(config, Arc::new(TokioEnv::current())).await.unwrap();
        let world = World::of(Kind::Isles, Arc::new(Isles::new(database.clone(), "isles")), folder);
        World { database: Some(database), ..world }
    }

    /// The fragment of the tests under the strategy `row`.
    pub(crate) async fn app(&self) -> Handle {
        self.app_with(Some(Strategy::Row), fragment()).await.0
    }

    pub(crate) async fn app_with(&self, strategy: Option<Strategy>, fragment: Fragment) -> (Handle, GlobalScope) {
        let (store, global) = Store::open(self.adapter.clone(), strategy).await.unwrap();
        (store.register(fragment, None).await.unwrap(), global)
    }

    /// Runs SQL beside the library.
    pub(crate) async fn sql(&self, sql: &str) {
        match self.kind {
            Kind::Memory => {}
            Kind::Sqlite => {
                let connection = rusqlite::Connection::open(self.folder.path().join("fragments.db")).unwrap();
                connection.execute_batch(sql).unwrap();
            }
            Kind::Postgres => {
                let (client, connection) =
                    tokio_postgres::connect(self.url.as_ref().unwrap(), tokio_postgres::NoTls).await.unwrap();
                tokio::spawn(connection);
                client.batch_execute(sql).await.unwrap();
            }
            Kind::Isles => {
                self.ask(sql).await;
            }
        }
    }

    /// Runs SQL as an administrator of the Isles database; the rows of the last statement.
    pub(crate) async fn ask(&self, sql: &str) -> Vec<Vec<Value>> {
        let login = isles_cluster::session::Login {
            user: "operator".into(),
            database: "isles".into(),
            settings: Vec::new(),
            role: isles_cluster::roles::Role { admin: true, ..Default::default() },
        };
        let mut session = self.database.as_ref().unwrap().session(login).unwrap();
        let mut found = Vec::new();
        for text in session.statements(sql).unwrap() {
            let prepared = session.prepare(&text, &[]).await.unwrap();
            let answer = session.execute(&prepared, Vec::new()).await.unwrap_or_else(|error| panic!("{text}: {error}"));
            if let isles_cluster::session::Answer::Rows(mut rows) = answer {
                found.clear();
                while let Some(batch) = rows.next(100).await.unwrap() {
                    found.extend(batch);
                }
            }
        }
        found
    }
}

pub(crate) fn schema() -> Schema {
    Schema::build("app")
        .table("users", |t| {
            t.column(column("name", ColumnType::String))
                .column(column("email", ColumnType::String).nullable())
                .column(column("age", ColumnType::Integer).nullable())
                .index("users_name", &["name"])
                .index("users_age", &["age"])
                .unique("users_email", &["email"])
        })
        .table("posts", |t| {
            t.reference("authorId", "users")
                .column(column("title", ColumnType::String))
                .column(column("likes", ColumnType::Bigint).default_to(Value::Int(0)))
                .index("posts_author", &["authorId", "title"])
        })
        .table("comments", |t| {
            t.reference("postId", "posts")
                .nullable_reference("replyTo", "comments")
                .column(column("body", ColumnType::Text))
                .column(column("at", ColumnType::Timestamp).default_now())
                .index("comments_post", &["postId"])
        })
        .finish()
        .unwrap()
}

pub(crate) fn fragment() -> Fragment {
    Fragment::new(schema()).outbox()
}

pub(crate) fn shard(name: &str) -> Shard {
    Shard::named(name).unwrap()
}

pub(crate) async fn within<F: Future>(name: &str, future: F) -> F::Output {
    ShardContext.with(shard(name), || future).await
}

pub(crate) fn user(name: &str) -> Values {
    Values::new().set("name", name)
}

/// Makes a user in the shard of the context.
pub(crate) async fn add_user(app: &Handle, id: &'static str, values: Values) -> Result<(), Error> {
    app.handler_tx().mutate(move |m, _| m.create_with_id("users", id, values.clone())).execute().await
}

pub(crate) async fn find(app: &Handle, find: Find) -> Result<Vec<Found>, Error> {
    let tx = app.handler_tx().retrieve(move |r| r.find(find.clone()).map(|_| ()));
    tx.mutate(|_, found| Ok(found.rows(0).to_vec())).execute().await
}

pub(crate) async fn names(app: &Handle) -> Vec<String> {
    let users = find(app, Find::of("users")).await.unwrap();
    users.iter().map(|user| user.values.text("name").unwrap().to_string()).collect()
}

/// A future that is dropped after so many polls, as a process that ends at that point.
pub(crate) struct Killed<F> {
    future: Option<Pin<Box<F>>>,
    polls: usize,
}

pub(crate) fn killed_after<F: Future>(polls: usize, future: F) -> Killed<F> {
    Killed { future: Some(Box::pin(future)), polls }
}

impl<F: Future> Future for Killed<F> {
    /// None if it was killed.
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<F::Output>> {
        if self.polls == 0 {
            self.future = None;
            return Poll::Ready(None);
        }
        self.polls -= 1;
        let future = self.future.as_mut().expect("it is polled until it is ready");
        future.as_mut().poll(context).map(Some)
    }
}
