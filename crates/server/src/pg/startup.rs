//! From the first byte to a session that may speak: encryption, the first packet, authentication.
//!
//!     SSLRequest? ─ S, then TLS │ N ──► GSSENCRequest? ─ N ──► CancelRequest: done │ StartupMessage
//!         ──► AuthenticationSASL ⇄ proofs ──► AuthenticationOk
//!
//! [`opening`] and [`authenticate`] are each one state machine over a stream; the listener wraps the stream in TLS
//! between two calls of the first.
//!
//! Invariants (docs/invariants.md):
//!   * I-53  Bytes that came behind a request for encryption close the connection, whatever they are.
//!   * I-54  No SQL is parsed and no shard is asked before authentication; only known parameters are taken.
//!   * I-55  The first packet has at most 10,000 bytes.

use super::cancel::KeyLength;
use super::message::{Frames, Message, Reader, SMALL_MESSAGE_BYTES, decode};
use super::reply::{Replies, Severity};
use super::scram::{ChannelBinding, Exchange, MECHANISM, MECHANISM_PLUS};
use crate::logins::{Candidate, Logins};
use bytes::{Buf, Bytes};
use isles_cluster::roles::Role;
use isles_kernel::error::SqlError;
use isles_sql::planted::{self, Bug};
use pgwire::messages::startup::Authentication;
use std::net::IpAddr;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

const SSL_REQUEST: u32 = 80_877_103;
const GSS_REQUEST: u32 = 80_877_104;
const CANCEL_REQUEST: u32 = 80_877_102;

/// Protocol 3.2, the newest.
const NEWEST: u32 = 3 << 16 | 2;

/// The longest cancel key that the protocol has.
const CANCEL_KEY_BYTES_MAX: usize = 256;

/// Settings that a client may give in its first packet, in lower case. Everything else is refused before a session
/// exists that could refuse it.
const PARAMETERS: [&str; 21] = [
    "application_name",
    "bytea_output",
    "client_encoding",
    "client_min_messages",
    "datestyle",
    "default_transaction_deferrable",
    "default_transaction_isolation",
    "default_transaction_read_only",
    "extra_float_digits",
    "geqo",
    "idle_in_transaction_session_timeout",
    "intervalstyle",
    "isles.default_kind",
    "isles.region",
    "isles.tenant",
    "jit",
    "lock_timeout",
    "search_path",
    "standard_conforming_strings",
    "statement_timeout",
    "timezone",
];

/// What a connection turned out to want.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Opening {
    /// TLS; `S` has been answered.
    Encrypt,
    Cancel {
        pid: i32,
        key: Bytes,
    },
    Session(Startup),
}

/// The first packet of a session.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Startup {
    pub(crate) user: String,
    pub(crate) database: String,
    pub(crate) settings: Vec<(String, String)>,
    pub(crate) key_length: KeyLength,
    /// What the client is to be told of the version: that it asked for more than there is.
    pub(crate) negotiate: Option<(u32, Vec<String>)>,
}

/// Why a connection ends before it has begun.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The client is gone, or has to be left without a word.
    Silent,
    Said(SqlError),
}

impl From<std::io::Error> for Refusal {
    fn from(_: std::io::Error) -> Refusal {
        Refusal::Silent
    }
}

impl From<SqlError> for Refusal {
    fn from(error: SqlError) -> Refusal {
        Refusal::Said(error)
    }
}

/// Whether TLS can be offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Encryption {
    Offered,
    Unavailable,
    /// This connection has it.
    Established,
}

/// Reads until it is known what the connection wants.
pub(crate) async fn opening<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    frames: &mut Frames,
    encryption: Encryption,
) -> Result<Opening, Refusal> {
    let (mut asked_tls, mut asked_gss) = (encryption == Encryption::Established, false);
    loop {
        let mut packet = first_packet(stream, frames).await?;
        match packet.get_u32() {
            SSL_REQUEST if !asked_tls => {
                asked_tls = true;
                alone(frames, &packet)?;
                if encryption == Encryption::Offered {
                    stream.write_all(b"S").await?;
                    return Ok(Opening::Encrypt);
                }
                stream.write_all(b"N").await?;
            }
            GSS_REQUEST if !asked_gss => {
                asked_gss = true;
                alone(frames, &packet)?;
                stream.write_all(b"N").await?;
            }
            CANCEL_REQUEST => return cancel(packet),
            version => return Ok(Opening::Session(startup(version, packet)?)),
        }
        stream.flush().await?;
    }
}

/// A request for encryption has nothing in it and nothing behind it.
fn alone(frames: &Frames, packet: &Bytes) -> Result<(), Refusal> {
    match packet.is_empty() && (frames.buffered() == 0 || planted::has(Bug::KeptLeftovers)) {
        true => Ok(()),
        false => Err(Refusal::Silent),
    }
}

/// What is read of a stream that has become encrypted: nothing that came before TLS is looked at after it.
pub(crate) fn encrypted(before: Frames) -> Frames {
    if planted::has(Bug::KeptLeftovers) { before } else { Frames::new() }
}

/// A packet without a type: its length, and then its contents.
async fn first_packet<S: AsyncRead + Unpin>(stream: &mut S, frames: &mut Frames) -> Result<Bytes, Refusal> {
    loop {
        if let Some(mut header) = frames.raw().get(..4) {
            let length = usize::try_from(header.get_i32()).unwrap_or(0);
            // As PostgreSQL: whoever sends this is no client of ours, and gets no answer.
            if !(8..=SMALL_MESSAGE_BYTES).contains(&length) {
                return Err(Refusal::Silent);
            }
            if frames.buffered() >= length {
                let mut packet = frames.raw().split_to(length).freeze();
                packet.advance(4);
                return Ok(packet);
            }
        }
        if stream.read_buf(frames.room()).await? == 0 {
            return Err(Refusal::Silent);
        }
    }
}

fn cancel(packet: Bytes) -> Result<Opening, Refusal> {
    let mut reader = Reader(packet);
    let pid = reader.i32().map_err(|_| Refusal::Silent)?;
    match reader.0.len() {
        4..=CANCEL_KEY_BYTES_MAX => Ok(Opening::Cancel { pid, key: reader.0 }),
        _ => Err(Refusal::Silent),
    }
}

/// The first packet of a session, after its version.
fn startup(version: u32, packet: Bytes) -> Result<Startup, SqlError> {
    let (major, minor) = (version >> 16, version & 0xffff);
    if major != 3 {
        let message = format!("unsupported frontend protocol {major}.{minor}: server supports 3.0 to 3.2");
        return Err(SqlError::unsupported(message));
    }
    let (mut user, mut database, mut settings, mut strange) = (String::new(), String::new(), Vec::new(), Vec::new());
    for (name, value) in pairs(packet)? {
        match name.as_str() {
            "user" => user = value,
            "database" => database = value,
            "options" => settings.extend(options(&value)?),
            "replication" => replication(&value)?,
            _ if name.starts_with("_pq_.") => strange.push(name),
            _ => settings.push((name, value)),
        }
    }
    if user.is_empty() {
        return Err(SqlError::new("28000", "no PostgreSQL user name specified in startup packet"));
    }
    if let Some((name, _)) = settings.iter().find(|(name, _)| !is_known(name)) {
        return Err(SqlError::new("42704", format!("unrecognized configuration parameter \"{name}\""))
            .with_hint("Set it after connecting, if it is a setting."));
    }
    let negotiate = (version > NEWEST || !strange.is_empty()).then(|| (version.min(NEWEST), strange));
    let key_length = if version >= NEWEST { KeyLength::Long } else { KeyLength::Short };
    let database = if database.is_empty() { user.clone() } else { database };
    Ok(Startup { user, database, settings, key_length, negotiate })
}

fn is_known(name: &str) -> bool {
    let folded = name.to_ascii_lowercase();
    PARAMETERS.contains(&folded.as_str())
}

/// Names and values, until an empty name.
fn pairs(packet: Bytes) -> Result<Vec<(String, String)>, SqlError> {
    let layout = || SqlError::new("08P01", "invalid startup packet layout: expected terminator as last byte");
    let mut reader = Reader(packet);
    let mut pairs = Vec::new();
    loop {
        let name = reader.text().map_err(|_| layout())?;
        if name.is_empty() {
            return if reader.0.is_empty() { Ok(pairs) } else { Err(layout()) };
        }
        pairs.push((name, reader.text().map_err(|_| layout())?));
    }
}

fn replication(value: &str) -> Result<(), SqlError> {
    match value.to_ascii_lowercase().as_str() {
        "false" | "off" | "no" | "0" => Ok(()),
        _ => Err(SqlError::unsupported("the replication protocol is not supported")),
    }
}

/// `-c name=value --name=value`, where a backslash takes the meaning of a space or a backslash away.
fn options(text: &str) -> Result<Vec<(String, String)>, SqlError> {
    let mut settings = Vec::new();
    let mut words = words(text).into_iter();
    while let Some(word) = words.next() {
        let invalid = || SqlError::new("42601", format!("invalid command-line argument for server process: {word}"));
        let setting = match (word.strip_prefix("--"), word.strip_prefix("-c")) {
            (Some(setting), _) => setting.to_owned(),
            (None, Some("")) => words.next().ok_or_else(invalid)?,
            (None, Some(setting)) => setting.to_owned(),
            (None, None) => return Err(invalid()),
        };
        let (name, value) = setting.split_once('=').ok_or_else(invalid)?;
        settings.push((name.replace('-', "_"), value.to_owned()));
    }
    Ok(settings)
}

fn words(text: &str) -> Vec<String> {
    let (mut words, mut word, mut begun) = (Vec::new(), String::new(), false);
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c.is_ascii_whitespace() {
            if std::mem::take(&mut begun) {
                words.push(std::mem::take(&mut word));
            }
            continue;
        }
        begun = true;
        word.extend(if c == '\\' { chars.next() } else { Some(c) });
    }
    if begun {
        words.push(word);
    }
    words
}

/// Leads the client through SCRAM. Whoever fails, for whatever reason, is told the same.
pub(crate) async fn authenticate<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    frames: &mut Frames,
    user: &str,
    address: IpAddr,
    logins: &Logins,
    channel: &ChannelBinding,
) -> Result<Role, Refusal> {
    let Candidate { role, verifier } = logins.begin(user).await?;
    let mut mechanisms = vec![MECHANISM.to_owned()];
    if channel.is_some() {
        mechanisms.insert(0, MECHANISM_PLUS.to_owned());
    }
    ask(stream, Authentication::SASL(mechanisms.clone())).await?;
    let mut first = Reader(password(stream, frames).await?);
    let mechanism = first.text()?;
    if !mechanisms.contains(&mechanism) {
        return Err(SqlError::new("08P01", "client selected an invalid SASL authentication mechanism").into());
    }
    let data = first.value()?.filter(|_| first.0.is_empty());
    let data = data.ok_or_else(|| SqlError::new("08P01", "malformed SCRAM message"))?;
    let exchange = Exchange::begin(&mechanism, &data, verifier, channel)?;
    ask(stream, Authentication::SASLContinue(Bytes::copy_from_slice(exchange.server_first().as_bytes()))).await?;
    let proof = password(stream, frames).await?;
    let signature = exchange.finish(&proof)?;
    let role = logins.judge(user, address, role.filter(|_| signature.is_some()))?;
    let mut replies = Replies::default();
    replies.authentication(Authentication::SASLFinal(Bytes::from(signature.unwrap_or_default())));
    replies.authentication(Authentication::Ok);
    stream.write_all(replies.buffer()).await?;
    Ok(role)
}

async fn ask<S: AsyncWrite + Unpin>(stream: &mut S, question: Authentication) -> Result<(), Refusal> {
    let mut replies = Replies::default();
    replies.authentication(question);
    stream.write_all(replies.buffer()).await?;
    stream.flush().await?;
    Ok(())
}

/// The answer to a question of authentication; nothing else is an answer.
async fn password<S: AsyncRead + Unpin>(stream: &mut S, frames: &mut Frames) -> Result<Bytes, Refusal> {
    loop {
        if let Some(frame) = frames.take()? {
            return match decode(frame)? {
                Message::Password(data) => Ok(data),
                Message::Terminate => Err(Refusal::Silent),
                _ => Err(SqlError::new("08P01", "expected SASL response").into()),
            };
        }
        if stream.read_buf(frames.room()).await? == 0 {
            return Err(Refusal::Silent);
        }
    }
}

/// Says why the connection ends, as far as the client still listens.
pub(crate) async fn refuse<S: AsyncWrite + Unpin>(stream: &mut S, refusal: Refusal) {
    if let Refusal::Said(error) = refusal {
        let mut replies = Replies::default();
        replies.error(Severity::Fatal, &error);
        // The client may be gone; the connection ends either way.
        let _ = stream.write_all(replies.buffer()).await;
        let _ = stream.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn packet(code: u32, contents: &[u8]) -> Vec<u8> {
        [&(contents.len() as u32 + 8).to_be_bytes()[..], &code.to_be_bytes(), contents].concat()
    }

    /// What comes of some bytes, and what was answered.
    async fn opened(bytes: &[u8], encryption: Encryption) -> (Result<Opening, Option<&'static str>>, Vec<u8>) {
        let (mut client, mut server) = tokio::io::duplex(64 << 10);
        client.write_all(bytes).await.unwrap();
        client.shutdown().await.unwrap();
        let found = opening(&mut server, &mut Frames::new(), encryption).await;
        drop(server);
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        let found = found.map_err(|refusal| match refusal {
            Refusal::Silent => None,
            Refusal::Said(error) => Some(error.sqlstate),
        });
        (found, answer)
    }

    const STARTUP: &[u8] = b"user\0ann\0database\0shop\0\0";

    #[tokio::test]
    async fn a_first_packet() {
        let given = packet(NEWEST - 2, b"user\0ann\0options\0-c statement_timeout=5 --isles.tenant=a\\ b\0\0");
        let (found, _) = opened(&given, Encryption::Unavailable).await;
        let settings = vec![("statement_timeout".into(), "5".into()), ("isles.tenant".into(), "a b".into())];
        let expected = Startup {
            user: "ann".into(),
            database: "ann".into(),
            settings,
            key_length: KeyLength::Short,
            negotiate: None,
        };
        assert_eq!(found, Ok(Opening::Session(expected)));
    }

    #[tokio::test]
    async fn versions_are_negotiated_as_postgresql_does() {
        for (version, negotiated, key_length) in [
            (3 << 16, None, KeyLength::Short),
            (3 << 16 | 2, None, KeyLength::Long),
            (3 << 16 | 9999, Some((NEWEST, vec![])), KeyLength::Long),
        ] {
            let Ok(Opening::Session(startup)) = opened(&packet(version, STARTUP), Encryption::Unavailable).await.0
            else {
                panic!("{version}");
            };
            assert_eq!((startup.negotiate, startup.key_length), (negotiated, key_length));
        }
        let option = packet(3 << 16, b"user\0ann\0_pq_.what\x001\0\0");
        let Ok(Opening::Session(startup)) = opened(&option, Encryption::Unavailable).await.0 else { panic!() };
        assert_eq!(startup.negotiate, Some((3 << 16, vec!["_pq_.what".to_owned()])));
        assert_eq!(opened(&packet(2 << 16, STARTUP), Encryption::Unavailable).await.0, Err(Some("0A000")));
    }

    /// I-54
    #[tokio::test]
    async fn only_known_parameters_are_taken() {
        for (contents, expected) in [
            (&b"user\0ann\0shared_preload_libraries\0x\0\0"[..], Err(Some("42704"))),
            (b"user\0ann\0options\0-c evil=1\0\0", Err(Some("42704"))),
            (b"user\0ann\0options\0-x\0\0", Err(Some("42601"))),
            (b"user\0ann\0replication\0true\0\0", Err(Some("0A000"))),
            (b"database\0d\0\0", Err(Some("28000"))),
            (b"user\0ann\0", Err(Some("08P01"))),
            (b"user\0ann\0\0x", Err(Some("08P01"))),
            (b"user\0\xff\0\0", Err(Some("08P01"))),
        ] {
            let (found, _) = opened(&packet(3 << 16, contents), Encryption::Unavailable).await;
            assert_eq!(found.map(|_| ()), expected, "{}", String::from_utf8_lossy(contents));
        }
    }

    /// The session that is begun over TLS by bytes that came before TLS, from a client that says nothing after it.
    async fn injected(follower: &[u8]) -> Option<Startup> {
        let (mut client, mut plain) = tokio::io::duplex(64 << 10);
        client.write_all(&[&packet(SSL_REQUEST, b"")[..], follower].concat()).await.unwrap();
        let mut frames = Frames::new();
        let Ok(Opening::Encrypt) = opening(&mut plain, &mut frames, Encryption::Offered).await else { return None };
        let (mut silent, mut tls) = tokio::io::duplex(64 << 10);
        silent.shutdown().await.unwrap();
        match opening(&mut tls, &mut encrypted(frames), Encryption::Established).await {
            Ok(Opening::Session(startup)) => Some(startup),
            _ => None,
        }
    }

    /// I-53, I-69, planted bug 21: whatever comes behind a request for encryption, and wherever it is cut.
    ///
    /// The bug is for the whole process, so the test that must not meet it is this one as well.
    #[tokio::test]
    async fn nothing_may_follow_a_request_for_encryption() {
        let follower = packet(3 << 16, STARTUP);
        for request in [SSL_REQUEST, GSS_REQUEST] {
            for length in 1..=follower.len() {
                let bytes = [&packet(request, b"")[..], &follower[..length]].concat();
                for encryption in [Encryption::Offered, Encryption::Unavailable] {
                    let (found, answer) = opened(&bytes, encryption).await;
                    assert_eq!((found, answer), (Err(None), vec![]), "{length}");
                }
            }
        }
        assert_eq!(opened(&packet(SSL_REQUEST, b""), Encryption::Offered).await, (Ok(Opening::Encrypt), b"S".to_vec()));
        assert_eq!(opened(&packet(SSL_REQUEST, b""), Encryption::Unavailable).await.1, b"N");
        assert_eq!(injected(&follower).await, None);
        planted::plant(&[Bug::KeptLeftovers]);
        let (kept, begun) = (
            opened(&[&packet(SSL_REQUEST, b"")[..], &[0]].concat(), Encryption::Offered).await,
            injected(&follower).await,
        );
        planted::plant(&[]);
        assert_eq!(
            kept,
            (Ok(Opening::Encrypt), b"S".to_vec()),
            "the bug is there, and bytes behind the request are refused"
        );
        assert_eq!(
            begun.map(|startup| startup.user).as_deref(),
            Some("ann"),
            "the bug is there, and begins no session"
        );
    }

    /// I-55: lengths that cannot be, and packets that do not end.
    #[tokio::test]
    async fn a_first_packet_that_cannot_be_gets_no_answer() {
        for header in [[0, 0, 0, 7], [0xff; 4], [0, 0, 0x27, 0x11], [0x7f, 0xff, 0xff, 0xff], *b"GET "] {
            let bytes = [&header[..], &[0; 20]].concat();
            assert_eq!(opened(&bytes, Encryption::Offered).await, (Err(None), vec![]), "{header:?}");
        }
        let whole = packet(3 << 16, STARTUP);
        for cut in 0..whole.len() {
            assert_eq!(opened(&whole[..cut], Encryption::Offered).await, (Err(None), vec![]), "cut at {cut}");
        }
    }

    #[tokio::test]
    async fn cancel_requests() {
        let request = packet(CANCEL_REQUEST, b"\0\0\0\x07secret key");
        let expected = Opening::Cancel { pid: 7, key: Bytes::from_static(b"secret key") };
        assert_eq!(opened(&request, Encryption::Unavailable).await, (Ok(expected), vec![]));
        for contents in [&b"\0\0\0\x07abc"[..], b"\0\0", &[7; 300]] {
            assert_eq!(opened(&packet(CANCEL_REQUEST, contents), Encryption::Offered).await.0, Err(None));
        }
    }
}
