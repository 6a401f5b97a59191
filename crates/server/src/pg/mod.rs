//! PostgreSQL's protocol: the listener and the life of a connection.
//!
//! In reading order:
//!   * [`message`]       what clients send
//!   * [`reply`]         what the server sends
//!   * [`values`]        values in text and binary form
//!   * [`scram`]         proofs of passwords
//!   * [`cancel`]        cancel requests
//!   * [`turns`]         tenants whose connections share a thread
//!   * [`stop`]          how far the server has come in stopping
//!   * [`threads`]       threads that serve connections
//!   * [`local`]         the socket for clients on the same machine
//!   * [`startup`]       from the first byte to a session
//!   * [`conversation`]  every message after that
//!
//!     accept ──► TLS at once? ──► startup::opening ──► TLS? ──► authenticate ──► a place ──► Conversation::run
//!
//! Invariants (docs/invariants.md):
//!   * I-65  Connections are bounded twice: those that have not said who they are, and sessions. Beyond either, the
//!     answer is 53300 at once. Some places are kept for administrators.

pub(crate) mod cancel;
pub(crate) mod conversation;
pub(crate) mod local;
pub(crate) mod message;
pub(crate) mod reply;
pub(crate) mod scram;
pub(crate) mod startup;
mod stop;
mod threads;
mod turns;
pub(crate) mod values;

use crate::backend::Backend;
use crate::config::Limits;
use crate::logins::Logins;
use crate::metrics::{Connected, Door, Metrics};
use crate::serve::Phase;
use crate::tls::{ALPN, Tls};
use cancel::{Cancels, Registration};
use conversation::{Conversation, Surroundings};
use isles_cluster::roles::Role;
use isles_cluster::session::{Login, Session};
use isles_kernel::error::SqlError;
use local::LocalSocket;
use message::Frames;
use reply::Replies;
use scram::ChannelBinding;
use startup::{Encryption, Opening, Refusal, Startup, authenticate, encrypted, opening, refuse};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
pub(crate) use threads::Threads;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use turns::Seat;

/// Connections that have not become sessions, at once. As many as a burst of clients that reconnect brings.
const STARTING_MAX: usize = 500;

/// The first byte of a TLS handshake: no length of a first packet begins with it.
const TLS_HANDSHAKE: u8 = 0x16;

/// Idle time before a silent peer is asked whether it is there, and between questions.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// How long to wait when the system has no more sockets to give, before asking again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What every connection shares.
pub(crate) struct PgDoor {
    pub(crate) backend: Arc<Backend>,
    pub(crate) logins: Arc<Logins>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) limits: Limits,
    pub(crate) tls: Option<Tls>,
    pub(crate) require_tls: bool,
    pub(crate) phase: watch::Receiver<Phase>,
    cancels: Arc<Cancels>,
    starting: Arc<Semaphore>,
    sessions: Arc<Semaphore>,
    admin_sessions: Arc<Semaphore>,
}

/// Who a connection is with.
struct Peer {
    /// None on the socket in the file system.
    address: Option<SocketAddr>,
    encryption: Encryption,
    channel: ChannelBinding,
}

impl PgDoor {
    pub(crate) fn new(
        backend: Arc<Backend>,
        logins: Arc<Logins>,
        metrics: Arc<Metrics>,
        config: &crate::config::Config,
        tls: Option<Tls>,
        phase: watch::Receiver<Phase>,
    ) -> PgDoor {
        let limits = config.limits.clone();
        PgDoor {
            backend,
            logins,
            metrics,
            tls,
            require_tls: config.require_tls,
            phase,
            cancels: Arc::default(),
            starting: Arc::new(Semaphore::new(STARTING_MAX)),
            sessions: Arc::new(Semaphore::new(limits.connections)),
            admin_sessions: Arc::new(Semaphore::new(limits.admin_connections)),
            limits,
        }
    }

    /// Accepts until the server stops. What it returns resolves when the last connection has ended.
    pub(crate) async fn listen(self: Arc<PgDoor>, listener: TcpListener, local: Option<LocalSocket>, threads: Threads) {
        let mut phase = self.phase.clone();
        let connections = task_group();
        loop {
            let accepted = tokio::select! {
                biased;
                _ = phase.wait_for(|phase| *phase >= Phase::Draining) => break,
                accepted = accept(&listener, local.as_ref()) => accepted,
            };
            match accepted {
                Ok(stream) => {
                    let (door, member) = (Arc::clone(&self), connections.0.clone());
                    threads.spawn(|seat| async move {
                        match stream.take_over() {
                            Ok(stream) => door.connection(stream, seat).await,
                            Err(error) => tracing::warn!(%error, "a connection cannot be taken over"),
                        }
                        drop(member);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
        drop((listener, local));
        let (members, mut ended) = connections;
        drop(members);
        // Nothing is ever sent: the channel closes with the last member.
        while ended.recv().await.is_some() {}
    }

    /// The life of a connection.
    async fn connection(self: Arc<PgDoor>, mut stream: Incoming, seat: Seat) {
        let _counted: Connected = self.metrics.connected(Door::Postgres);
        let Ok(starting) = Arc::clone(&self.starting).try_acquire_owned() else {
            return self.turn_away(&mut stream);
        };
        let address = stream.address();
        // Whoever does not say in time who it is, is left; the time of a TLS handshake counts.
        let deadline = tokio::time::Instant::now() + self.limits.startup();
        let opened = tokio::time::timeout_at(deadline, self.open(stream)).await;
        match opened {
            Ok(Some((Transport::Plain(stream), frames, startup, peer))) => {
                self.session(stream, frames, startup, peer, deadline, (starting, seat)).await;
            }
            Ok(Some((Transport::Tls(stream), frames, startup, peer))) => {
                self.session(*stream, frames, startup, peer, deadline, (starting, seat)).await;
            }
            Ok(Some((Transport::Local(stream), frames, startup, peer))) => {
                self.session(stream, frames, startup, peer, deadline, (starting, seat)).await;
            }
            Ok(None) => {}
            Err(_) => tracing::debug!(address = ?address, "a client did not finish its startup in time"),
        }
    }

    /// More connections than can be asked who they are: told so, and not listened to.
    fn turn_away(&self, stream: &mut Incoming) {
        self.metrics.refused("53300");
        let mut replies = Replies::default();
        replies.error(reply::Severity::Fatal, &too_many());
        // It is a courtesy; a full socket buffer is no reason to wait.
        let _ = match stream {
            Incoming::Tcp(stream, _) => stream.try_write(replies.buffer()),
            Incoming::Local(stream) => stream.try_write(replies.buffer()),
        };
    }

    async fn open(&self, stream: Incoming) -> Option<(Transport, Frames, Startup, Peer)> {
        match stream {
            Incoming::Tcp(stream, address) => {
                set_options(&stream);
                self.open_tcp(stream, address).await
            }
            Incoming::Local(stream) => self.open_local(stream).await,
        }
    }

    /// Leads a connection of this machine to its first packet. There is nobody to encrypt it for.
    async fn open_local(&self, mut stream: UnixStream) -> Option<(Transport, Frames, Startup, Peer)> {
        let (mut frames, encryption) = (Frames::new(), Encryption::Unavailable);
        match self.first_packet(&mut stream, &mut frames, encryption).await? {
            First::Startup(startup) => {
                Some((Transport::Local(stream), frames, startup, Peer { address: None, encryption, channel: None }))
            }
            First::Encrypt => None,
        }
    }

    /// Leads a connection to its first packet, through TLS if it asks for it.
    async fn open_tcp(&self, mut stream: TcpStream, address: SocketAddr) -> Option<(Transport, Frames, Startup, Peer)> {
        let address = Some(address);
        let mut frames = Frames::new();
        let mut first = [0];
        let direct = self.tls.is_some() && stream.peek(&mut first).await.ok()? == 1 && first[0] == TLS_HANDSHAKE;
        if !direct {
            let encryption = if self.tls.is_some() { Encryption::Offered } else { Encryption::Unavailable };
            let peer = Peer { address, encryption, channel: None };
            match self.first_packet(&mut stream, &mut frames, encryption).await? {
                First::Startup(startup) => return Some((Transport::Plain(stream), frames, startup, peer)),
                First::Encrypt => {}
            }
        }
        let tls = self.tls.as_ref()?;
        let mut stream = tls.acceptor.accept(stream).await.ok()?;
        if direct && stream.get_ref().1.alpn_protocol() != Some(ALPN) {
            return None;
        }
        let mut frames = encrypted(frames);
        let peer = Peer { address, encryption: Encryption::Established, channel: tls.end_point.clone() };
        match self.first_packet(&mut stream, &mut frames, Encryption::Established).await? {
            First::Startup(startup) => Some((Transport::Tls(Box::new(stream)), frames, startup, peer)),
            First::Encrypt => None,
        }
    }

    async fn first_packet<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: &mut S,
        frames: &mut Frames,
        encryption: Encryption,
    ) -> Option<First> {
        match opening(stream, frames, encryption).await {
            Ok(Opening::Encrypt) => Some(First::Encrypt),
            Ok(Opening::Session(startup)) => Some(First::Startup(startup)),
            Ok(Opening::Cancel { pid, key }) => {
                self.cancels.request(pid, &key);
                None
            }
            Err(refusal) => {
                refuse(stream, refusal).await;
                None
            }
        }
    }

    /// Authenticates a client and speaks with it.
    async fn session<S: AsyncRead + AsyncWrite + Unpin + Send>(
        &self,
        mut stream: S,
        mut frames: Frames,
        startup: Startup,
        peer: Peer,
        deadline: tokio::time::Instant,
        (starting, seat): (OwnedSemaphorePermit, Seat),
    ) {
        let admitted = self.admit(&mut stream, &mut frames, &startup, &peer);
        let (role, _place) = match tokio::time::timeout_at(deadline, admitted).await {
            Ok(Ok(admitted)) => admitted,
            Ok(Err(refusal)) => {
                if let Refusal::Said(error) = &refusal {
                    self.metrics.refused(error.sqlstate);
                    tracing::info!(address = ?peer.address, user = startup.user, code = error.sqlstate, "login refused");
                }
                return refuse(&mut stream, refusal).await;
            }
            Err(_) => return,
        };
        drop(starting);
        match self.begin(startup, role) {
            Ok((session, cancel)) => {
                let around =
                    Surroundings { metrics: Arc::clone(&self.metrics), phase: self.phase.clone(), cancel, seat };
                frames.allow(self.limits.message_bytes);
                Conversation::new(stream, frames, session, around).run().await;
            }
            Err(error) => refuse(&mut stream, Refusal::Said(error)).await,
        }
    }

    /// Proves who it is, and finds a place for it.
    async fn admit<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: &mut S,
        frames: &mut Frames,
        startup: &Startup,
        peer: &Peer,
    ) -> Result<(Role, OwnedSemaphorePermit), Refusal> {
        if self.require_tls && peer.address.is_some() && peer.encryption != Encryption::Established {
            let error = SqlError::new("28000", "this server takes connections with TLS only");
            return Err(error.with_hint("connect with sslmode=require").into());
        }
        if let Some((version, strange)) = &startup.negotiate {
            let mut replies = Replies::default();
            replies.negotiate_version(*version as i32, strange.clone());
            stream.write_all(replies.buffer()).await?;
        }
        // Whether there is a place is known before anybody is asked for a proof, and told after it, so that
        // administrators still come in and strangers do not learn how full it is.
        let place = Arc::clone(&self.sessions).try_acquire_owned();
        // Failed logins of this machine count together.
        let address = peer.address.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |address| address.ip());
        let role = authenticate(stream, frames, &startup.user, address, &self.logins, &peer.channel).await?;
        match place {
            Ok(place) => Ok((role, place)),
            Err(_) if role.admin => match Arc::clone(&self.admin_sessions).try_acquire_owned() {
                Ok(place) => Ok((role, place)),
                Err(_) => Err(too_many().into()),
            },
            Err(_) => Err(too_many().into()),
        }
    }

    fn begin(&self, startup: Startup, role: Role) -> Result<(Session, Registration), SqlError> {
        let login = Login { user: startup.user, database: startup.database, settings: startup.settings, role };
        let session = self.backend.session(login)?;
        let cancel = self.cancels.enter(session.pid(), startup.key_length)?;
        Ok((session, cancel))
    }
}

enum First {
    Startup(Startup),
    Encrypt,
}

enum Transport {
    Plain(TcpStream),
    Tls(Box<tokio_rustls::server::TlsStream<TcpStream>>),
    Local(UnixStream),
}

/// A connection that was accepted, on its way to the thread that serves it.
enum Accepted {
    Tcp(std::net::TcpStream, SocketAddr),
    Local(std::os::unix::net::UnixStream),
}

/// A connection on its thread.
enum Incoming {
    Tcp(TcpStream, SocketAddr),
    Local(UnixStream),
}

async fn accept(listener: &TcpListener, local: Option<&LocalSocket>) -> io::Result<Accepted> {
    let nearby = async {
        match local {
            Some(local) => local.listener.accept().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        accepted = listener.accept() => {
            let (stream, address) = accepted?;
            Ok(Accepted::Tcp(stream.into_std()?, address))
        }
        accepted = nearby => Ok(Accepted::Local(accepted?.0.into_std()?)),
    }
}

impl Accepted {
    /// Of the thread that calls it, from here on.
    fn take_over(self) -> io::Result<Incoming> {
        match self {
            Accepted::Tcp(stream, address) => Ok(Incoming::Tcp(TcpStream::from_std(stream)?, address)),
            Accepted::Local(stream) => UnixStream::from_std(stream).map(Incoming::Local),
        }
    }
}

impl Incoming {
    fn address(&self) -> Option<SocketAddr> {
        match self {
            Incoming::Tcp(_, address) => Some(*address),
            Incoming::Local(_) => None,
        }
    }
}

type TaskGroup = (tokio::sync::mpsc::Sender<()>, tokio::sync::mpsc::Receiver<()>);

/// Members hold the sender; the receiver ends when all of them have.
fn task_group() -> TaskGroup {
    tokio::sync::mpsc::channel(1)
}

fn too_many() -> SqlError {
    SqlError::new("53300", "sorry, too many clients already")
}

/// Small replies leave at once, and a peer that vanished is noticed. Neither is worth failing for.
fn set_options(stream: &TcpStream) {
    let _ = stream.set_nodelay(true);
    let keepalive = socket2::TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    let _ = socket2::SockRef::from(stream).set_tcp_keepalive(&keepalive);
}
