//! A PostgreSQL server for as long as the demo runs, from the programs that this machine has.
//!
//! PostgreSQL does not run as root, so for root it runs as the user `postgres`.

use crate::cli::output::Failure;
use std::io;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio_postgres::NoTls;

/// A server that does not answer by then will not.
const START_LIMIT: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(50);

pub(super) struct Postgres {
    process: Child,
    folder: PathBuf,
    port: u16,
}

impl Postgres {
    pub(super) fn start() -> io::Result<Postgres> {
        let programs = programs().ok_or_else(|| io::Error::other("initdb and postgres are not found"))?;
        let folder = std::env::temp_dir().join(format!("isles-demo-pg-{}", uuid::Uuid::new_v4()));
        std::fs::create_dir_all(&folder)?;
        let begun = begin(&programs, &folder);
        if begun.is_err() {
            // What cannot be removed from a temporary folder is left to the system.
            let _ = std::fs::remove_dir_all(&folder);
        }
        let (process, port) = begun?;
        Ok(Postgres { process, folder, port })
    }

    /// Makes so many databases, once the server answers.
    pub(super) async fn databases(&self, count: usize) -> Result<Vec<String>, Failure> {
        let failed = |fault: tokio_postgres::Error| Failure::usage(format!("PostgreSQL: {fault}")).code("postgres");
        let (until, url) = (Instant::now() + START_LIMIT, self.url("postgres"));
        let (client, connection) = loop {
            match tokio_postgres::connect(&url, NoTls).await {
                Ok(both) => break both,
                Err(fault) if Instant::now() > until => return Err(failed(fault)),
                Err(_) => tokio::time::sleep(LOOK).await,
            }
        };
        tokio::spawn(connection);
        let mut urls = Vec::new();
        for number in 0..count {
            let name = format!("shard{number}");
            client.batch_execute(&format!("CREATE DATABASE {name}")).await.map_err(failed)?;
            urls.push(self.url(&name));
        }
        Ok(urls)
    }

    fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // Killed, and not asked: what it has written goes with its folder.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn begin(programs: &Path, folder: &Path) -> io::Result<(Child, u16)> {
    let user = server_user(folder)?;
    give(folder, user)?;
    let data = folder.join("data");
    let arguments = ["--no-sync", "--auth=trust", "--locale=C", "--encoding=UTF8", "--username=postgres", "-D"];
    let made = command(&programs.join("initdb"), user).args(arguments).arg(&data).output()?;
    if !made.status.success() {
        return Err(io::Error::other(String::from_utf8_lossy(&made.stderr).trim_end().to_owned()));
    }
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let mut server = command(&programs.join("postgres"), user);
    server.arg("-D").arg(&data).arg("-k").arg(folder).args(["-p", &port.to_string()]);
    for setting in ["listen_addresses=127.0.0.1", "max_connections=100", "max_prepared_transactions=20"] {
        server.args(["-c", setting]);
    }
    let process = server.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    Ok((process, port))
}

/// Where initdb and postgres are: on the path, or where Debian has them, the newest first.
fn programs() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let mut packaged: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .map(|entries| entries.flatten().map(|entry| entry.path().join("bin")).collect())
        .unwrap_or_default();
    packaged.sort();
    folders.extend(packaged.into_iter().rev());
    folders.into_iter().find(|folder| folder.join("initdb").is_file() && folder.join("postgres").is_file())
}

/// Whom the server runs as.
#[derive(Clone, Copy)]
struct User {
    uid: u32,
    gid: u32,
}

/// Another user than root, if we are root: then what we make is root's.
fn server_user(folder: &Path) -> io::Result<Option<User>> {
    use std::os::unix::fs::MetadataExt;
    if std::fs::metadata(folder)?.uid() != 0 {
        return Ok(None);
    }
    let users = std::fs::read_to_string("/etc/passwd")?;
    let fields = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let user = fields
        .into_iter()
        .find(|fields| fields[0] == "postgres")
        .and_then(|fields| Some(User { uid: fields.get(2)?.parse().ok()?, gid: fields.get(3)?.parse().ok()? }));
    user.map(Some).ok_or_else(|| io::Error::other("it does not run as root, and there is no user postgres"))
}

fn give(folder: &Path, user: Option<User>) -> io::Result<()> {
    match user {
        Some(user) => std::os::unix::fs::chown(folder, Some(user.uid), Some(user.gid)),
        None => Ok(()),
    }
}

fn command(program: &Path, user: Option<User>) -> Command {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(program);
    command.current_dir("/").env("LC_ALL", "C");
    if let Some(user) = user {
        command.uid(user.uid).gid(user.gid);
    }
    // An interrupt is for the demo, which stops the server itself.
    command.process_group(0);
    command
}
