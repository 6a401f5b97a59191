//! The server: opens the database, opens the doors, and closes both in order.
//!
//!     open: database ─► first role ─► doors ─► ready
//!     stop: Draining (no new connections, idle ones end) ─► Stopping (the rest end) ─► database closed
//!
//! The first start makes the role `isles` with a random password, which is kept in a file that only the owner of the
//! data can read, so that a database can be used by whoever started it, and by nobody else.

use crate::backend::Backend;
use crate::config::Config;
use crate::http::{self, HttpDoor};
use crate::logins::Logins;
use crate::metrics::Metrics;
use crate::pg::local::LocalSocket;
use crate::pg::{PgDoor, Threads};
use crate::tls;
use isles_cluster::roles::{self, Role, Verifier};
use isles_kernel::error::SqlError;
use isles_workflows::Registry;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The role that the first start makes, and the database's name.
pub(crate) const FIRST_ROLE: &str = "isles";

/// Where its password is, within the data folder.
pub(crate) const PASSWORD_FILE: &str = "password";

/// How long connections may take to say goodbye after they were told to.
const GOODBYE: Duration = Duration::from_secs(5);

/// How far the server has come in stopping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Running,
    /// No new connections; those without a transaction end, the others may finish it.
    Draining,
    /// Everything that runs is cancelled.
    Stopping,
}

/// Why the server did not start.
#[derive(Debug)]
pub(crate) struct CannotStart {
    pub(crate) code: &'static str,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

impl CannotStart {
    fn new(code: &'static str, message: impl Into<String>) -> CannotStart {
        CannotStart { code, message: message.into(), hint: None }
    }
}

impl From<SqlError> for CannotStart {
    fn from(error: SqlError) -> CannotStart {
        CannotStart { code: error.sqlstate, message: error.message, hint: error.hint }
    }
}

impl From<roles::RoleError> for CannotStart {
    fn from(error: roles::RoleError) -> CannotStart {
        CannotStart::new("58030", error.to_string())
    }
}

/// A server that answers.
pub(crate) struct Server {
    backend: Arc<Backend>,
    phase: watch::Sender<Phase>,
    doors: Vec<JoinHandle<()>>,
    grace: Duration,
    pub(crate) listen: SocketAddr,
    /// The socket in the file system.
    pub(crate) socket: Option<PathBuf>,
    pub(crate) http: Option<SocketAddr>,
    /// The first role's, if it is known: its file may have been removed.
    pub(crate) password: Option<String>,
}

impl Server {
    /// How many shards there are of each engine, for people.
    pub(crate) fn shards(&self) -> String {
        self.backend.shards()
    }

    /// Opens everything. When it returns, clients can connect.
    pub(crate) async fn start(
        config: &Config,
        given_password: Option<String>,
        registry: Registry,
    ) -> Result<Server, CannotStart> {
        let tls = match &config.tls {
            Some(files) => {
                let loaded = tls::load(&files.certificate, &files.key);
                Some(loaded.map_err(|fault| CannotStart::new("tls", fault))?)
            }
            None => None,
        };
        let backend = Arc::new(Backend::open(config, registry).await?);
        let password = first_role(&backend, &config.data, given_password).await?;
        let logins = Arc::new(Logins::new(backend.catalog()).await?);
        let metrics = Arc::new(Metrics::of(&backend));
        let (phase, watched) = watch::channel(Phase::Running);
        let (pg_listener, listen) = bind(config.listen).await?;
        let local = LocalSocket::open(config, listen.port()).map_err(|fault| CannotStart {
            hint: Some("choose another folder with --socket, or --socket off".into()),
            ..CannotStart::new("listen", fault)
        })?;
        let socket = local.as_ref().map(|local| local.path().to_owned());
        let http_listener = match config.http {
            Some(address) => Some(bind(address).await?),
            None => None,
        };
        let pg = PgDoor::new(
            Arc::clone(&backend),
            Arc::clone(&logins),
            Arc::clone(&metrics),
            config,
            tls.clone(),
            watched.clone(),
        );
        let threads = Threads::start().map_err(|fault| CannotStart::new("listen", fault.to_string()))?;
        let mut doors = vec![tokio::spawn(Arc::new(pg).listen(pg_listener, local, threads))];
        let http = http_listener.as_ref().map(|(_, address)| *address);
        if let Some((listener, _)) = http_listener {
            let limits = config.limits.clone();
            let door = HttpDoor::new(Arc::clone(&backend), logins, metrics, limits, watched);
            doors.push(tokio::spawn(http::listen(door, listener, tls)));
        }
        let grace = config.limits.shutdown();
        Ok(Server { backend, phase, doors, grace, listen, socket, http, password })
    }

    /// A text that can be pasted into psql.
    pub(crate) fn url(&self) -> String {
        let password = self.password.as_deref().unwrap_or("PASSWORD");
        format!("postgres://{FIRST_ROLE}:{}@{}/{FIRST_ROLE}", escaped(password), self.listen)
    }

    /// Stops in order. The database is closed when it returns.
    pub(crate) async fn stop(mut self) -> Result<(), SqlError> {
        tracing::info!("stopping: no new connections, {} s for those that are open", self.grace.as_secs());
        self.phase.send_replace(Phase::Draining);
        if tokio::time::timeout(self.grace, ended(&mut self.doors)).await.is_err() {
            tracing::warn!("stopping: ending what still runs");
            self.phase.send_replace(Phase::Stopping);
            if tokio::time::timeout(GOODBYE, ended(&mut self.doors)).await.is_err() {
                tracing::error!("stopping: connections did not end, and are cut");
            }
        }
        self.doors.iter().for_each(JoinHandle::abort);
        self.backend.close().await
    }
}

async fn ended(doors: &mut Vec<JoinHandle<()>>) {
    while let Some(door) = doors.last_mut() {
        // A door that panicked has ended, too.
        let _ = door.await;
        doors.pop();
    }
}

async fn bind(address: SocketAddr) -> Result<(TcpListener, SocketAddr), CannotStart> {
    let bound = match TcpListener::bind(address).await {
        Ok(listener) => listener.local_addr().map(|local| (listener, local)),
        Err(fault) => Err(fault),
    };
    bound.map_err(|fault| {
        let hint = (fault.kind() == std::io::ErrorKind::AddrInUse)
            .then(|| "another server listens there; choose another address with --listen or --http".to_owned());
        CannotStart { hint, ..CannotStart::new("listen", format!("cannot listen on {address}: {fault}")) }
    })
}

/// Makes the first role, if there is none: with the password that was given, or a random one. Returns the password,
/// as far as it is known.
async fn first_role(backend: &Backend, data: &Path, given: Option<String>) -> Result<Option<String>, CannotStart> {
    let catalog = backend.catalog();
    let path = data.join(PASSWORD_FILE);
    let existing = roles::get(catalog.as_ref(), FIRST_ROLE).await?;
    let password = match (&existing, given) {
        (None, Some(given)) => given,
        (None, None) => random_password()?,
        // A password that is given again is taken again, so that a forgotten one can be replaced.
        (Some(role), Some(given)) if !role.verifier()?.accepts(&given) => given,
        (Some(_), _) => return Ok(read_password(&path)),
    };
    let role = Role {
        settings: existing.map(|role| role.settings).unwrap_or_default(),
        ..Role::admin(&Verifier::of(&password)?)
    };
    // The file is written first: a role whose password nobody knows is of no use.
    write_private(&path, &password)?;
    roles::put(catalog.as_ref(), FIRST_ROLE, &role).await?;
    Ok(Some(password))
}

fn random_password() -> Result<String, CannotStart> {
    use base64::Engine;
    let bytes = roles::random::<18>()?;
    Ok(base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(bytes))
}

/// The password in a data folder's file.
pub(crate) fn read_password(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim_end_matches('\n').to_owned())
}

/// Writes a file that nobody else can read, not even for a moment.
fn write_private(path: &PathBuf, text: &str) -> Result<(), CannotStart> {
    let cannot = |fault: std::io::Error| CannotStart::new("io", format!("cannot write {}: {fault}", path.display()));
    match std::fs::remove_file(path) {
        Err(fault) if fault.kind() != std::io::ErrorKind::NotFound => return Err(cannot(fault)),
        _ => {}
    }
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path).map_err(cannot)?;
    writeln!(file, "{text}").map_err(cannot)?;
    file.sync_all().map_err(cannot)
}

/// A password as a part of a URL.
fn escaped(text: &str) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~".contains(byte);
    text.bytes().map(|byte| if plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_url_can_hold_any_password() {
        assert_eq!(escaped("aZ9-._~"), "aZ9-._~");
        assert_eq!(escaped("p@ss:w/rd \u{e4}"), "p%40ss%3Aw%2Frd%20%C3%A4");
    }

    #[cfg(unix)]
    #[test]
    fn the_password_s_file_is_private() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(PASSWORD_FILE);
        std::fs::write(&path, "old").unwrap();
        write_private(&path, "new").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(read_password(&path).as_deref(), Some("new"));
    }
}
