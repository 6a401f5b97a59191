//! A real PostgreSQL server for tests: in a temporary folder, on a free port, gone when the test is.
//!
//!     PgServer::start ── initdb (once per server) ── postgres on 127.0.0.1:port and on a socket in the folder
//!           │ kill9 ⇄ restart                           │ create_database → URL
//!           └ Drop, or the death of the test process ───┴→ server killed, folder removed
//!
//! PostgreSQL refuses to run as root, so as root it runs as `postgres`, or as `nobody` where there is no such user.
//!
//! A watchdog process holds the read end of a pipe. Its end closes when this process is gone, however it went, and
//! the watchdog then stops the server: neither a panic, nor a signal, nor a static that is never dropped leaves a
//! server behind.

use std::ffi::CString;
use std::io;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How often a taken port is answered by choosing another one.
const START_ATTEMPTS: u32 = 10;
/// A server that is not there by then will not come; recovery after a kill takes well under a second in tests.
const START_LIMIT: Duration = Duration::from_secs(30);
/// Between two looks at whether the server is there or gone.
const POLL: Duration = Duration::from_millis(10);
/// Processes that were killed are gone by then.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// How the server runs.
#[derive(Debug, Clone)]
pub struct PgOptions {
    /// Off is faster, and loses commits when the machine dies; a killed server loses nothing either way.
    pub fsync: bool,
    /// More settings, as `name=value`.
    pub settings: Vec<String>,
}

impl Default for PgOptions {
    fn default() -> PgOptions {
        PgOptions { fsync: true, settings: Vec::new() }
    }
}

/// A running server; dropping it kills it and removes its folder.
pub struct PgServer {
    folder: tempfile::TempDir,
    bin: PathBuf,
    user: Option<User>,
    options: PgOptions,
    port: u16,
    postmaster: Mutex<Option<Child>>,
    /// Lives as long as the server; see the module's header.
    _watchdog: Child,
    databases: AtomicU64,
}

/// Whom the server runs as, when we are root.
#[derive(Clone, Copy)]
struct User {
    uid: u32,
    gid: u32,
}

impl PgServer {
    pub fn start(options: PgOptions) -> PgServer {
        PgServer::try_start(options).expect("a PostgreSQL server is needed for this test")
    }

    pub fn try_start(options: PgOptions) -> io::Result<PgServer> {
        let bin = find_binaries()?;
        let user = server_user();
        let folder = tempfile::Builder::new().prefix("isles-pg-").tempdir()?;
        give(folder.path(), user)?;
        let data = folder.path().join("data");
        let arguments = ["--no-sync", "--auth=trust", "--locale=C", "--encoding=UTF8", "--username=postgres", "-D"];
        let made = run_as(&bin.join("initdb"), user).args(arguments).arg(&data).output()?;
        if !made.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&made.stderr).into_owned()));
        }
        let watchdog = watch(folder.path())?;
        let postmaster = Mutex::new(None);
        let databases = AtomicU64::new(0);
        let mut server = PgServer { folder, bin, user, options, port: 0, postmaster, _watchdog: watchdog, databases };
        server.start_on_free_port()?;
        Ok(server)
    }

    fn start_on_free_port(&mut self) -> io::Result<()> {
        for attempt in 1.. {
            self.port = free_port()?;
            match self.restart_now() {
                Err(error) if attempt >= START_ATTEMPTS => return Err(error),
                // Another process may have taken the port between our look and the server's bind.
                Err(_) => continue,
                Ok(()) => break,
            }
        }
        Ok(())
    }

    /// The address of a database of this server.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// The same, by the socket in the server's folder.
    pub fn socket_url(&self, database: &str) -> String {
        format!("postgres://postgres@/{database}?host={}&port={}", self.folder.path().display(), self.port)
    }

    /// One of the programs that come with the server.
    pub fn program(&self, name: &str) -> PathBuf {
        // What is on the path may be a link to some of them.
        let real = self.bin.join("postgres").canonicalize().ok();
        let beside = real.and_then(|postgres| Some(postgres.parent()?.join(name)));
        beside.filter(|program| program.is_file()).unwrap_or_else(|| self.bin.join(name))
    }

    /// The process that all of the server's others are children of; 0 while it is stopped.
    pub fn pid(&self) -> u32 {
        self.postmaster.lock().unwrap_or_else(std::sync::PoisonError::into_inner).as_ref().map_or(0, Child::id)
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Makes an empty database and returns its URL.
    pub fn create_database(&self) -> String {
        let name = format!("test{}", self.databases.fetch_add(1, Ordering::Relaxed));
        self.run_sql("postgres", &format!("CREATE DATABASE {name}"));
        self.url(&name)
    }

    /// Runs SQL as the superuser, in a database. It has a thread of its own, so it can be called from anywhere.
    pub fn run_sql(&self, database: &str, sql: &str) {
        let (url, sql) = (self.url(database), sql.to_string());
        let run = move || -> Result<(), tokio_postgres::Error> {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.expect("a runtime can be made").block_on(async {
                let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await?;
                tokio::spawn(connection);
                client.batch_execute(&sql).await
            })
        };
        std::thread::spawn(run).join().expect("the thread does not panic").expect("the statement is valid");
    }

    /// Kills the server with SIGKILL: postmaster and all its children, none of which sees it coming.
    pub fn kill9(&self) {
        let Some(mut postmaster) = self.take_postmaster() else { return };
        let pid = postmaster.id() as i32;
        // Stopped, it cannot start another child while we collect them.
        signal(pid, libc::SIGSTOP);
        // A fork that was under way is done before it stops.
        wait_until(KILL_LIMIT, || status(pid).is_none_or(|(state, _)| state == 'T' || state == 'Z'));
        let children = children_of(pid);
        signal(pid, libc::SIGKILL);
        children.iter().for_each(|child| signal(*child, libc::SIGKILL));
        let _ = postmaster.wait();
        wait_until(KILL_LIMIT, || children.iter().all(|child| is_gone(*child)));
    }

    /// Stops the server as a crash would, but lets it tell its children; recovery runs at the next start.
    pub fn stop_immediate(&self) {
        let Some(mut postmaster) = self.take_postmaster() else { return };
        let children = children_of(postmaster.id() as i32);
        signal(postmaster.id() as i32, libc::SIGQUIT);
        let _ = postmaster.wait();
        wait_until(KILL_LIMIT, || children.iter().all(|child| is_gone(*child)));
    }

    /// Starts the server again, on the same port and data; a running one is stopped first.
    pub fn restart(&self) {
        self.stop_immediate();
        self.restart_now().unwrap_or_else(|error| panic!("the server did not start: {error}\n{}", self.log()));
    }

    /// What the server has logged.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn take_postmaster(&self) -> Option<Child> {
        self.postmaster.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take()
    }

    fn restart_now(&self) -> io::Result<()> {
        let folder = self.folder.path();
        let log = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("log"))?;
        let mut command = run_as(&self.bin.join("postgres"), self.user);
        command.arg("-D").arg(folder.join("data")).arg("-k").arg(folder).arg("-p").arg(self.port.to_string());
        let fixed = [
            "listen_addresses=127.0.0.1",
            "max_connections=200",
            "shared_buffers=64MB",
            "max_prepared_transactions=20",
        ];
        let fsync = if self.options.fsync { "fsync=on" } else { "fsync=off" };
        for setting in fixed.into_iter().chain([fsync]).chain(self.options.settings.iter().map(String::as_str)) {
            command.args(["-c", setting]);
        }
        let mut child = command.stdout(log.try_clone()?).stderr(log).stdin(Stdio::null()).spawn()?;
        self.wait_for(&mut child)?;
        *self.postmaster.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(child);
        Ok(())
    }

    /// Waits until the server says `ready` in its own file, which it writes only when it takes connections.
    fn wait_for(&self, child: &mut Child) -> io::Result<()> {
        let file = self.folder.path().join("data/postmaster.pid");
        let began = Instant::now();
        loop {
            if let Some(status) = child.try_wait()? {
                return Err(io::Error::other(format!("the server ended with {status}: {}", self.log())));
            }
            let state = std::fs::read_to_string(&file).unwrap_or_default();
            let mut lines = state.lines();
            let ours = lines.next().and_then(|pid| pid.trim().parse().ok()) == Some(child.id());
            if ours && lines.any(|line| line.trim() == "ready") {
                return Ok(());
            }
            if began.elapsed() > START_LIMIT {
                let _ = child.kill();
                return Err(io::Error::other(format!("the server did not get ready: {}", self.log())));
            }
            sleep(POLL);
        }
    }
}

impl Drop for PgServer {
    fn drop(&mut self) {
        self.kill9();
        // The watchdog finds no server and removes the folder, should we fail to.
        drop(self._watchdog.stdin.take());
        let _ = self._watchdog.wait();
    }
}

/// The server that the tests of one process share; each takes a database of its own.
pub fn shared() -> &'static PgServer {
    static SHARED: OnceLock<PgServer> = OnceLock::new();
    SHARED.get_or_init(|| PgServer::start(PgOptions { fsync: false, ..PgOptions::default() }))
}

fn find_binaries() -> io::Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let mut packaged: Vec<PathBuf> = std::fs::read_dir("/usr/lib/postgresql")
        .map(|entries| entries.flatten().map(|entry| entry.path().join("bin")).collect())
        .unwrap_or_default();
    packaged.sort();
    folders.extend(packaged.into_iter().rev());
    let complete = |folder: &PathBuf| folder.join("initdb").is_file() && folder.join("postgres").is_file();
    folders
        .into_iter()
        .find(complete)
        .ok_or_else(|| io::Error::other("no initdb and postgres in PATH or /usr/lib/postgresql"))
}

fn server_user() -> Option<User> {
    // SAFETY: `geteuid` has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    root.then(|| ["postgres", "nobody"].iter().find_map(|name| look_up(name)))?
}

fn look_up(name: &str) -> Option<User> {
    let name = CString::new(name).ok()?;
    // SAFETY: the name ends in a zero byte; the entry is read before any other call could overwrite it.
    let entry = unsafe { libc::getpwnam(name.as_ptr()).as_ref() }?;
    Some(User { uid: entry.pw_uid, gid: entry.pw_gid })
}

fn give(folder: &Path, user: Option<User>) -> io::Result<()> {
    match user {
        Some(user) => std::os::unix::fs::chown(folder, Some(user.uid), Some(user.gid)),
        None => Ok(()),
    }
}

fn run_as(program: &Path, user: Option<User>) -> Command {
    let mut command = Command::new(program);
    command.current_dir("/").env("LC_ALL", "C");
    if let Some(user) = user {
        command.uid(user.uid).gid(user.gid);
    }
    command
}

/// Starts the process that stops the server once we are gone.
fn watch(folder: &Path) -> io::Result<Child> {
    let script = "cat >/dev/null; pid=$(head -n 1 \"$1/data/postmaster.pid\" 2>/dev/null) && kill -QUIT \"$pid\" 2>/dev/null; \
                  for i in 1 2 3 4 5 6 7 8 9 10; do [ -e \"$1/data/postmaster.pid\" ] && sleep 0.2; done; rm -rf \"$1\"";
    Command::new("sh")
        .args(["-c", script, "watchdog"])
        .arg(folder)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // A signal to the group of the test must not reach the watchdog, who is to clean up after it.
        .process_group(0)
        .spawn()
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

fn signal(pid: i32, signal: i32) {
    // SAFETY: `kill` takes any numbers; the pid is of our own child or grandchild.
    unsafe { libc::kill(pid, signal) };
}

/// The processes whose parent is `pid`, from /proc.
fn children_of(pid: i32) -> Vec<i32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|child| status(*child).is_some_and(|(_, parent)| parent == pid)).collect()
}

/// State and parent of a process. The name, in parentheses, may contain anything, so fields count from its end.
fn status(pid: i32) -> Option<(char, i32)> {
    let line = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = line.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

/// A zombie counts as gone: it holds nothing, and whether anyone reaps it is not up to us.
fn is_gone(pid: i32) -> bool {
    status(pid).is_none_or(|(state, _)| state == 'Z' || state == 'X')
}

fn wait_until(limit: Duration, done: impl Fn() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < limit, "killed processes are still there");
        sleep(POLL);
    }
}
