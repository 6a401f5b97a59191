//! The bytes between a session and its server, on which two take turns.
//!
//!     the library    connects, proves who we are, runs our own statements   through a [`Tap`]
//!     an exchange    runs what clients ask for                              on the [`Wire`] itself
//!
//! The library ends each request with a Sync of its own, and the server answers each of them with a message, a write to
//! the socket and a new transaction. So whatever belongs together is an exchange: any number of statements, one Sync.
//!
//! Only one of the two has requests under way at a time. Whose turn it is follows from what is owed: each Sync that was
//! sent is answered by one ReadyForQuery, and both are counted here. Whoever comes next takes, and drops, what the other
//! one did not wait for. A tap gives away whole messages only, so that no part of an answer is in the library's buffer
//! when its turn ends.
//!
//! Invariants (docs/invariants.md):
//!   * I-55  no length that the server claims is believed before its bytes are there

use bytes::{Buf, BytesMut};
use postgres_protocol::message::backend::{COPY_IN_RESPONSE_TAG, Header, Message, READY_FOR_QUERY_TAG};
use std::future::Future;
use std::io;
use std::path::Path;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_postgres::Config;
use tokio_postgres::config::Host;

/// A message of the server is at most this long, as in PostgreSQL itself.
const MAX_MESSAGE: i32 = 0x3fff_ffff;
/// Room for what one read from the socket may bring.
const READ_BYTES: usize = 8 * 1024;
/// A buffer that has grown beyond this for one answer is given back.
const KEPT_BYTES: usize = 256 * 1024;
/// The byte that a message begins with, and its length.
const HEAD_BYTES: usize = 5;
/// Messages of ours that the server answers with ReadyForQuery: Sync and Query.
const ANSWERED: [u8; 2] = *b"SQ";

enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Stream {
    fn poll_read(&mut self, cx: &mut Context<'_>, into: &mut BytesMut) -> Poll<io::Result<usize>> {
        into.reserve(READ_BYTES);
        match self {
            Stream::Tcp(stream) => pin!(stream.read_buf(into)).poll(cx),
            Stream::Unix(stream) => pin!(stream.read_buf(into)).poll(cx),
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self {
            Stream::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Stream::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Stream::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

/// Connects to the first host of a configuration that answers.
async fn connect(config: &Config) -> io::Result<Stream> {
    let mut failed = io::Error::new(io::ErrorKind::InvalidInput, "no host is named");
    for at in 0..config.get_hosts().len().max(config.get_hostaddrs().len()) {
        match connect_to(config, at).await {
            Ok(stream) => return Ok(stream),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

async fn connect_to(config: &Config, at: usize) -> io::Result<Stream> {
    let ports = config.get_ports();
    let port = ports.get(at).or(ports.first()).copied().unwrap_or(5432);
    let limit = config.get_connect_timeout().copied();
    match (config.get_hostaddrs().get(at), config.get_hosts().get(at)) {
        (Some(address), _) => tcp(config, (*address, port), limit).await,
        (None, Some(Host::Tcp(name))) => tcp(config, (name.as_str(), port), limit).await,
        (None, Some(Host::Unix(folder))) => unix(&folder.join(format!(".s.PGSQL.{port}")), limit).await,
        (None, None) => Err(io::Error::new(io::ErrorKind::InvalidInput, "no host is named")),
    }
}

async fn tcp(config: &Config, address: impl tokio::net::ToSocketAddrs, limit: Option<Duration>) -> io::Result<Stream> {
    let stream = in_time(limit, TcpStream::connect(address)).await?;
    stream.set_nodelay(true)?;
    let socket = socket2::SockRef::from(&stream);
    if config.get_keepalives() {
        let mut keepalive = socket2::TcpKeepalive::new().with_time(config.get_keepalives_idle());
        if let Some(interval) = config.get_keepalives_interval() {
            keepalive = keepalive.with_interval(interval);
        }
        if let Some(retries) = config.get_keepalives_retries() {
            keepalive = keepalive.with_retries(retries);
        }
        socket.set_tcp_keepalive(&keepalive)?;
    }
    if let Some(limit) = config.get_tcp_user_timeout() {
        socket.set_tcp_user_timeout(Some(*limit))?;
    }
    Ok(Stream::Tcp(stream))
}

async fn unix(path: &Path, limit: Option<Duration>) -> io::Result<Stream> {
    in_time(limit, UnixStream::connect(path)).await.map(Stream::Unix)
}

async fn in_time<T>(limit: Option<Duration>, work: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let Some(limit) = limit else { return work.await };
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "connection timed out");
    tokio::time::timeout(limit, work).await.map_err(late)?
}

/// Sees where messages end in bytes that come in pieces, and counts those that begin with certain bytes.
#[derive(Debug, Default)]
struct Frames {
    head: [u8; HEAD_BYTES],
    /// Bytes of the head that are there.
    known: usize,
    /// Bytes of the message's body that are still to come.
    left: usize,
}

impl Frames {
    /// How many messages of these kinds begin in `bytes`, the first of which continues what came before.
    fn count(&mut self, mut bytes: &[u8], kinds: &[u8]) -> usize {
        let mut count = 0;
        while !bytes.is_empty() {
            let skipped = self.left.min(bytes.len());
            self.left -= skipped;
            bytes = &bytes[skipped..];
            let taken = (HEAD_BYTES - self.known).min(bytes.len());
            self.head[self.known..self.known + taken].copy_from_slice(&bytes[..taken]);
            self.known += taken;
            bytes = &bytes[taken..];
            if self.known == HEAD_BYTES {
                let [kind, length @ ..] = self.head;
                count += usize::from(kinds.contains(&kind));
                self.left = (u32::from_be_bytes(length) as usize).saturating_sub(4);
                self.known = 0;
            }
        }
        count
    }
}

pub(super) struct Wire {
    stream: Stream,
    /// What the server has sent and nobody has taken.
    inbox: BytesMut,
    /// So many bytes of the inbox are whole messages that a tap may give away.
    whole: usize,
    /// What an exchange has still to send.
    outbox: BytesMut,
    /// Exchanges whose end has not been read.
    exchanges: usize,
    /// Requests of the library whose end it has not been given.
    requests: usize,
    /// Messages of the library, as far as they have been sent.
    sent: Frames,
    /// The first packet has no kind, and is not counted.
    has_started: bool,
    /// Nothing more can be sent or read.
    is_lost: bool,
}

/// The end of the stream before the end of an answer.
fn ended() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the server has closed the connection")
}

impl Wire {
    fn new(stream: Stream) -> Wire {
        Wire {
            stream,
            inbox: BytesMut::new(),
            whole: 0,
            outbox: BytesMut::new(),
            exchanges: 0,
            // The startup ends like a request.
            requests: 1,
            sent: Frames::default(),
            has_started: false,
            is_lost: false,
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Nobody can tell any more what an answer belongs to.
    pub(super) fn give_up(&mut self) {
        self.is_lost = true;
    }

    /// Whether the library has still to be given something.
    pub(super) fn has_requests(&self) -> bool {
        self.requests > 0 || self.whole > 0
    }

    /// Begins an exchange. Says how many ends of earlier ones come before its own.
    pub(super) fn begin(&mut self, request: BytesMut) -> usize {
        if self.outbox.is_empty() {
            self.outbox = request;
        } else {
            self.outbox.extend_from_slice(&request);
        }
        self.exchanges += 1;
        self.exchanges - 1
    }

    /// The next message, once it is there. What is still to be sent goes out meanwhile.
    pub(super) fn poll_message(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Message>> {
        let message = self.poll_next(cx);
        if let Poll::Ready(Err(_)) = &message {
            self.is_lost = true;
        }
        message
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Message>> {
        // Sending may have to wait until the server has read, which it may do only when we have.
        self.poll_send(cx)?;
        loop {
            if whole_message(&self.inbox)?.is_some() {
                let message = Message::parse(&mut self.inbox)?.ok_or_else(ended)?;
                if let Message::ReadyForQuery(_) = &message {
                    self.end_one();
                }
                return Poll::Ready(Ok(message));
            }
            match self.stream.poll_read(cx, &mut self.inbox) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(ended())),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn end_one(&mut self) {
        self.exchanges = self.exchanges.saturating_sub(1);
        if self.inbox.is_empty() && self.inbox.capacity() > KEPT_BYTES {
            self.inbox = BytesMut::new();
        }
    }

    /// Sends what the socket takes.
    fn poll_send(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        while !self.outbox.is_empty() {
            match self.stream.poll_write(cx, &self.outbox) {
                Poll::Ready(Ok(0)) => return Err(ended()),
                Poll::Ready(Ok(count)) => self.outbox.advance(count),
                Poll::Ready(Err(error)) => return Err(error),
                Poll::Pending => break,
            }
        }
        Ok(())
    }

    /// Ends exchanges that nobody waits for.
    fn poll_settle(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.exchanges > 0 {
            ready!(self.poll_message(cx))?;
        }
        Poll::Ready(Ok(()))
    }

    /// Makes sure that the inbox begins with whole messages; it has none at the stream's end.
    fn poll_whole(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.whole == 0 {
            while let Some(length) = whole_message(&self.inbox[self.whole..])? {
                // A server that takes in copied rows passes over the Sync behind the statement that asked for it.
                if [READY_FOR_QUERY_TAG, COPY_IN_RESPONSE_TAG].contains(&self.inbox[self.whole]) {
                    self.requests = self.requests.saturating_sub(1);
                }
                self.whole += length;
            }
            if self.whole == 0 && ready!(self.stream.poll_read(cx, &mut self.inbox))? == 0 {
                break;
            }
        }
        Poll::Ready(Ok(()))
    }

    fn count_sent(&mut self, bytes: &[u8]) {
        match std::mem::replace(&mut self.has_started, true) {
            false => self.sent.skip_untagged(bytes),
            true => self.requests += self.sent.count(bytes, &ANSWERED),
        }
    }
}

impl Frames {
    /// Passes over a message without a kind, which the first packet is.
    fn skip_untagged(&mut self, bytes: &[u8]) {
        let length = bytes.first_chunk::<4>().map_or(0, |length| u32::from_be_bytes(*length) as usize);
        self.left = length.saturating_sub(bytes.len());
    }
}

/// The length of the message that `bytes` begin with, if all of it is there.
fn whole_message(bytes: &[u8]) -> io::Result<Option<usize>> {
    let Some(head) = Header::parse(bytes)? else { return Ok(None) };
    if head.len() > MAX_MESSAGE {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the server sends a message that is too long"));
    }
    let length = head.len() as usize + 1;
    Ok((bytes.len() >= length).then_some(length))
}

/// A wire, as the library and the session share it. They are polled by one task, so neither waits for the lock.
#[derive(Clone)]
pub(super) struct Tap(Arc<Mutex<Wire>>);

impl Tap {
    pub(super) async fn connect(config: &Config) -> io::Result<Tap> {
        Ok(Tap(Arc::new(Mutex::new(Wire::new(connect(config).await?)))))
    }

    pub(super) fn wire(&self) -> MutexGuard<'_, Wire> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl AsyncRead for Tap {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut wire = self.wire();
        ready!(wire.poll_settle(cx))?;
        ready!(wire.poll_whole(cx))?;
        let count = wire.whole.min(into.remaining());
        into.put_slice(&wire.inbox[..count]);
        wire.inbox.advance(count);
        wire.whole -= count;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Tap {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut wire = self.wire();
        ready!(wire.poll_settle(cx))?;
        let count = ready!(wire.stream.poll_write(cx, bytes))?;
        wire.count_sent(&bytes[..count]);
        Poll::Ready(Ok(count))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.wire().stream.poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::future::poll_fn;
    use tokio::io::AsyncWriteExt;

    const COMPLETE: &[u8] = b"C\0\0\0\rSELECT 1\0";
    const READY: &[u8] = b"Z\0\0\0\x05I";

    fn run<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(work)
    }

    fn pair() -> (Tap, UnixStream) {
        let (ours, theirs) = UnixStream::pair().expect("two ends");
        let mut wire = Wire::new(Stream::Unix(ours));
        // As after the startup.
        (wire.requests, wire.has_started) = (0, true);
        (Tap(Arc::new(Mutex::new(wire))), theirs)
    }

    async fn next(tap: &Tap) -> io::Result<Message> {
        poll_fn(|cx| tap.wire().poll_message(cx)).await
    }

    #[test]
    fn messages_of_kinds_are_counted_wherever_they_are_cut() {
        let sent = b"B\0\0\0\x06xyE\0\0\0\x04S\0\0\0\x04Q\0\0\0\x09abcd\0P\0\0\0\x07SSS";
        for cut in 0..sent.len() {
            for second in cut..sent.len() {
                let mut frames = Frames::default();
                let parts = [&sent[..cut], &sent[cut..second], &sent[second..]];
                let count: usize = parts.iter().map(|part| frames.count(part, &ANSWERED)).sum();
                assert_eq!(count, 2, "cut at {cut} and {second}");
            }
        }
    }

    /// I-55: bytes of a shard may come one by one.
    #[test]
    fn a_message_is_read_when_all_of_it_is_there() {
        run(async {
            let (tap, mut server) = pair();
            tap.wire().begin(BytesMut::from(&b"S\0\0\0\x04"[..]));
            let send = async {
                for byte in [COMPLETE, READY].concat() {
                    server.write_all(&[byte]).await.expect("sent");
                    tokio::task::yield_now().await;
                }
            };
            let read = async {
                assert!(matches!(next(&tap).await, Ok(Message::CommandComplete(_))));
                assert!(matches!(next(&tap).await, Ok(Message::ReadyForQuery(_))));
            };
            futures::join!(send, read);
        });
    }

    /// I-55: a length is not believed.
    #[test]
    fn a_message_that_claims_too_much_ends_the_connection() {
        for length in [0x4000_0000u32, 0x7fff_ffff, 0xffff_ffff, 0, 3] {
            run(async {
                let (tap, mut server) = pair();
                server.write_all(&[&b"D"[..], &length.to_be_bytes(), b"abc"].concat()).await.expect("sent");
                assert!(next(&tap).await.is_err());
                let wire = tap.wire();
                assert!(wire.is_lost() && wire.inbox.capacity() <= 2 * READ_BYTES);
            });
        }
    }

    /// What an exchange did not wait for is no answer to the library.
    #[test]
    fn the_library_does_not_see_the_end_of_an_exchange() {
        run(async {
            let (mut tap, mut server) = pair();
            assert_eq!(tap.wire().begin(BytesMut::from(&b"S\0\0\0\x04"[..])), 0);
            assert_eq!(tap.wire().begin(BytesMut::from(&b"S\0\0\0\x04"[..])), 1);
            server.write_all(&[COMPLETE, READY, COMPLETE, READY, &b"S\0\0\0\x06a\0"[..]].concat()).await.expect("sent");
            let mut seen = vec![0; 7];
            tap.read_exact(&mut seen).await.expect("read");
            assert_eq!(seen, b"S\0\0\0\x06a\0");
            let wire = tap.wire();
            assert_eq!((wire.exchanges, wire.has_requests()), (0, false));
        });
    }

    #[test]
    fn a_turn_of_the_library_ends_when_it_has_been_given_everything() {
        run(async {
            let (mut tap, mut server) = pair();
            tap.write_all(b"Q\0\0\0\x06x\0").await.expect("sent");
            assert!(tap.wire().has_requests());
            server.write_all(&[COMPLETE, READY].concat()).await.expect("sent");
            let mut some = vec![0; COMPLETE.len()];
            tap.read_exact(&mut some).await.expect("read");
            assert!(tap.wire().has_requests(), "the rest is still to be given");
            let mut rest = vec![0; READY.len()];
            tap.read_exact(&mut rest).await.expect("read");
            assert!(!tap.wire().has_requests());
        });
    }

    proptest! {
        /// I-55: any bytes of a shard are messages or an error.
        #[test]
        fn any_bytes_of_a_server_are_read_without_panic(bytes in any::<Vec<u8>>(), kinds in "[12CDEZTtnNSIA]{0,8}") {
            run(async {
                let (tap, mut server) = pair();
                let mut sent = Vec::new();
                for kind in kinds.bytes() {
                    let some = &bytes[..bytes.len().min(40)];
                    sent.extend([&[kind][..], &(some.len() as u32 + 4).to_be_bytes(), some].concat());
                }
                sent.extend(&bytes);
                server.write_all(&sent).await.expect("sent");
                drop(server);
                while let Ok(message) = next(&tap).await {
                    let _ = super::super::exchange::hear(message);
                }
                assert!(tap.wire().is_lost());
            });
        }
    }
}
