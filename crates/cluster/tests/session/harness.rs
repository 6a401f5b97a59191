//! A database in a temporary folder, and clients that speak SQL to it.

use isles_cluster::database::{Config, Database};
use isles_cluster::roles::Role;
use isles_cluster::session::{Answer, Login, Session, Status};
use isles_engine::env::{Env, TokioEnv};
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;
use isles_sql::text;
use std::sync::Arc;

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
        let config = Config::sqlite(folder.path(), shards);
        Db::open(folder, &config).await
    }

    pub(crate) async fn postgres(urls: Vec<String>) -> Db {
        let folder = tempfile::tempdir().expect("a folder");
        let config = Config::postgres(folder.path(), urls);
        Db::open(folder, &config).await
    }

    pub(crate) async fn open(folder: tempfile::TempDir, config: &Config) -> Db {
        let database = Database::open(config.clone(), env()).await.expect("it opens");
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
        let config = Config::sqlite(self.folder.path(), shards);
        self.reopen(&config).await
    }

    /// The same, with shards of any kind.
    pub(crate) async fn reopen(self, config: &Config) -> Db {
        self.database.close().await.expect("it closes");
        let Db { database, folder } = self;
        // Tasks of the database hold it until they have seen that it is closed.
        let held = Arc::downgrade(&database);
        drop(database);
        let begun = std::time::Instant::now();
        while held.strong_count() > 0 && begun.elapsed() < std::time::Duration::from_secs(10) {
            tokio::time::sleep(std::time::Duration::from_millis(2)).await;
        }
        Db::open(folder, config).await
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

    /// Runs `COPY … FROM STDIN` with this text.
    pub(crate) async fn copy(&mut self, sql: &str, text: &str) -> Result<String, SqlError> {
        let prepared = self.session.prepare(sql, &[]).await?;
        let Answer::CopyIn(mut copy) = self.session.execute(&prepared, Vec::new()).await? else { panic!("{sql}") };
        copy.write(text.as_bytes()).await?;
        copy.finish().await
    }

    pub(crate) fn status(&self) -> Status {
        self.session.status()
    }
}
