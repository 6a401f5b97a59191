//! A fresh Isles, over SQLite or PostgreSQL shards, and a fresh database of plain PostgreSQL beside it.

// Several test programs share this file, and none uses all of it.
#![allow(dead_code)]

use isles_sim::pgserver;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use tokio_postgres::{Client, NoTls};

#[derive(Debug, Clone, Copy)]
pub(crate) enum Setup {
    Sqlite {
        shards: usize,
    },
    Postgres {
        shards: usize,
    },
    /// So many of each: SQLite files first.
    Both {
        each: usize,
    },
}

impl Setup {
    fn arguments(self) -> Vec<String> {
        match self {
            Setup::Sqlite { shards } => vec!["--shards".into(), shards.to_string()],
            Setup::Postgres { shards } => {
                let urls = (0..shards).map(|_| pgserver::shared().create_database());
                urls.flat_map(|url| ["--postgres".to_string(), url]).collect()
            }
            Setup::Both { each } => {
                let setups = [Setup::Sqlite { shards: each }, Setup::Postgres { shards: each }];
                setups.into_iter().flat_map(Setup::arguments).collect()
            }
        }
    }
}

pub(crate) struct Server {
    process: Child,
    url: String,
    /// Where it answers to HTTP, if it does.
    http: String,
    data: tempfile::TempDir,
}

impl Server {
    pub(crate) async fn start(setup: Setup) -> Server {
        Server::launch("off", |command| command.args(setup.arguments()))
    }

    /// One that answers to HTTP, too.
    pub(crate) async fn start_with_http(setup: Setup) -> Server {
        Server::launch("127.0.0.1:0", |command| command.args(setup.arguments()))
    }

    /// In a folder that one has left, without a word about shards.
    pub(crate) async fn again(data: tempfile::TempDir) -> Server {
        Server::launch_in(data, "off", |command| command)
    }

    fn launch(http: &str, more: impl FnOnce(&mut Command) -> &mut Command) -> Server {
        Server::launch_in(tempfile::tempdir().expect("a temporary folder"), http, more)
    }

    fn launch_in(data: tempfile::TempDir, http: &str, more: impl FnOnce(&mut Command) -> &mut Command) -> Server {
        let mut command = Command::new(env!("CARGO_BIN_EXE_isles"));
        command.args(["serve", "--listen", "127.0.0.1:0", "--http", http, "--data"]).arg(data.path());
        let mut process = more(&mut command).stdout(Stdio::piped()).spawn().expect("isles starts");
        let mut lines = BufReader::new(process.stdout.take().expect("piped")).lines();
        let mut address = |scheme: &str| {
            let found = lines.find_map(|line| {
                let line = line.expect("a line");
                line.find(scheme).map(|at| line[at..].split_whitespace().next().unwrap_or_default().to_string())
            });
            found.expect("isles prints its addresses")
        };
        let url = address("postgres://");
        let http = if http == "off" { String::new() } else { address("http://") };
        let http = http.trim_start_matches("http://").trim_end_matches("/sql").to_string();
        // Whoever prints into a pipe that nobody reads stops.
        std::thread::spawn(move || lines.for_each(drop));
        Server { process, url, http, data }
    }

    /// Isles over PostgreSQL databases that are there already.
    pub(crate) async fn over(urls: &[String]) -> Server {
        Server::launch("off", |command| command.args(urls.iter().flat_map(|url| ["--postgres", url])))
    }

    /// Stops it in good order, and leaves its folder.
    pub(crate) async fn stop(self) -> tempfile::TempDir {
        // SAFETY: a process of ours, which has not been waited for.
        unsafe { libc::kill(self.process.id() as i32, libc::SIGTERM) };
        let mut server = self;
        server.process.wait().expect("it ends");
        std::mem::replace(&mut server.data, tempfile::tempdir().expect("a temporary folder"))
    }

    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The same by the socket in its data folder.
    pub(crate) fn socket_url(&self) -> String {
        let (head, rest) = self.url.split_once('@').expect("a user");
        let (address, database) = rest.split_once('/').expect("a database");
        let port = address.rsplit(':').next().expect("a port");
        format!("{head}@/{database}?host={}&port={port}", self.data.path().display())
    }

    /// Host and port of its HTTP door.
    pub(crate) fn http(&self) -> &str {
        &self.http
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    pub(crate) async fn isles(&self) -> Client {
        let client = connect(&self.url).await;
        client.batch_execute("SET isles.tenant = 'acme'; SET TimeZone = 'UTC'").await.expect("settings");
        client
    }

    /// A fresh database of plain PostgreSQL.
    pub(crate) async fn oracle() -> Client {
        let client = connect(&pgserver::shared().create_database()).await;
        client.batch_execute("SET TimeZone = 'UTC'").await.expect("settings");
        client
    }
}

pub(crate) async fn connect(url: &str) -> Client {
    let (client, connection) =
        tokio_postgres::connect(url, NoTls).await.unwrap_or_else(|error| panic!("{url}: {error}"));
    tokio::spawn(connection);
    client
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
