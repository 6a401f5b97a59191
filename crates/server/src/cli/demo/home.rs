//! Where the demo lives: a folder, a server in it, and PostgreSQL databases if it takes some.

use super::postgres::Postgres;
use super::{Engine, MoveArguments};
use crate::cli::output::{Failure, complain};
use crate::config::{self, File, Given};
use crate::serve::Server;
use isles_workflows::Registry;
use std::path::{Path, PathBuf};

pub(super) struct Home {
    server: Server,
    pub(super) engine: Engine,
    /// Lives as long as the server that has databases in it.
    postgres: Option<Postgres>,
    folder: Folder,
}

/// A folder that goes when it is not needed any more, unless it was named.
struct Folder {
    path: PathBuf,
    stays: bool,
}

impl Folder {
    fn open(named: Option<&Path>) -> Result<Folder, Failure> {
        let path = named.map_or_else(
            || std::env::temp_dir().join(format!("isles-demo-{}", uuid::Uuid::new_v4())),
            Path::to_path_buf,
        );
        let cannot = |fault: std::io::Error| {
            Failure::usage(format!("cannot make folder {}: {fault}", path.display())).code("io")
        };
        std::fs::create_dir_all(&path).map_err(cannot)?;
        if std::fs::read_dir(&path).map_err(cannot)?.next().is_some() {
            let hint = "the demo writes only where nothing is: name a folder that is new or empty";
            return Err(Failure::usage(format!("{} is not empty", path.display())).code("not_empty").hint(hint));
        }
        Ok(Folder { stays: named.is_some(), path })
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.stays {
            // What cannot be removed from a temporary folder is left to the system.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

impl Home {
    pub(super) async fn open(arguments: &MoveArguments) -> Result<Home, Failure> {
        let folder = Folder::open(arguments.data.as_deref())?;
        let (engine, postgres) = choose(arguments)?;
        let (files, databases) = match engine {
            Engine::Sqlite => (2, 0),
            Engine::Postgres => (0, 2),
            Engine::Both => (1, 1),
        };
        let urls = match &postgres {
            Some(server) => server.databases(databases).await?,
            None => arguments.postgres.iter().take(databases).cloned().collect(),
        };
        if urls.len() < databases {
            return Err(Failure::usage(format!("{databases} PostgreSQL databases are needed")).field("postgres"));
        }
        let given = Given {
            data: Some(folder.path.clone()),
            shards: Some(files),
            postgres: urls,
            listen: Some("127.0.0.1:0".into()),
            http: Some("off".into()),
            ..Given::default()
        };
        let config = config::resolve(given, File::default(), Path::new(""))
            .map_err(|invalid| Failure::check(invalid.message).field(invalid.field))?;
        let server = Server::start(&config, None, Registry::new()).await.map_err(|cannot| {
            let failure = Failure::usage(cannot.message).code(cannot.code);
            match cannot.hint {
                Some(hint) => failure.hint(hint),
                None => failure,
            }
        })?;
        Ok(Home { server, engine, postgres, folder })
    }

    pub(super) fn url(&self) -> String {
        self.server.url()
    }

    pub(super) async fn close(self) -> Result<(), Failure> {
        let closed = self.server.stop().await;
        drop(self.postgres);
        drop(self.folder);
        closed.map_err(|error| Failure::usage(error.message).code(error.sqlstate))
    }
}

/// What is asked for, or the most that this machine can show.
fn choose(arguments: &MoveArguments) -> Result<(Engine, Option<Postgres>), Failure> {
    match arguments.engine {
        Some(Engine::Sqlite) => Ok((Engine::Sqlite, None)),
        Some(engine) if !arguments.postgres.is_empty() => Ok((engine, None)),
        Some(engine) => {
            let hint = "install PostgreSQL, or name empty databases with --postgres";
            let started = Postgres::start().map_err(|fault| {
                Failure::usage(format!("cannot start PostgreSQL: {fault}")).code("no_postgres").hint(hint)
            });
            Ok((engine, Some(started?)))
        }
        None if !arguments.postgres.is_empty() => Ok((Engine::Both, None)),
        None => match Postgres::start() {
            Ok(server) => Ok((Engine::Both, Some(server))),
            Err(fault) => {
                complain(&format!("no PostgreSQL ({fault}): the tenant moves between two SQLite files"));
                Ok((Engine::Sqlite, None))
            }
        },
    }
}
