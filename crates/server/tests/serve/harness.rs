//! A server process, and clients that speak byte by byte.

use bytes::BytesMut;
use postgres_protocol::authentication::sasl::{ChannelBinding, ScramSha256};
use postgres_protocol::message::frontend;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long anything may take before a test gives up on it.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Server {
    pub(crate) process: Child,
    pub(crate) data: TempDir,
    pub(crate) url: String,
    pub(crate) listen: SocketAddr,
    pub(crate) http: SocketAddr,
    pub(crate) password: String,
}

pub(crate) fn isles() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_isles"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("ISLES_") {
            command.env_remove(name);
        }
    }
    command
}

impl Server {
    pub(crate) fn start(arguments: &[&str]) -> Server {
        Server::start_in(TempDir::new().unwrap(), arguments)
    }

    /// A server whose complaints go to a file.
    pub(crate) fn start_telling(stderr: std::fs::File) -> Server {
        Server::launch(TempDir::new().unwrap(), |command| command.stderr(stderr))
    }

    pub(crate) fn start_in(data: TempDir, arguments: &[&str]) -> Server {
        Server::launch(data, |command| command.args(arguments))
    }

    pub(crate) fn launch(data: TempDir, more: impl FnOnce(&mut Command) -> &mut Command) -> Server {
        let mut command = isles();
        command
            .args(["serve", "--json", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--data"])
            .arg(data.path().join("d"))
            .env("ISLES_LOG", "warn");
        let mut process = more(&mut command).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("the server said {line:?}"));
        let text = |name: &str| ready[name].as_str().unwrap().to_owned();
        let password = std::fs::read_to_string(data.path().join("d/password")).unwrap().trim().to_owned();
        let (listen, http) = (text("listen").parse().unwrap(), text("http").parse().unwrap());
        Server { process, data, url: text("url"), listen, http, password }
    }

    pub(crate) fn raw(&self) -> Raw {
        Raw::connect(self.listen)
    }

    /// A client that has logged in and heard that the server is ready.
    pub(crate) fn session(&self) -> Raw {
        let mut raw = self.raw();
        raw.send(&hello("isles"));
        raw.prove(&self.password).unwrap();
        assert_eq!(raw.until(b'Z').last().map(|(kind, _)| *kind), Some(b'Z'));
        raw
    }

    /// The answer to a request, whole.
    pub(crate) fn http(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.http).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    pub(crate) fn get(&self, path: &str) -> String {
        self.http(&format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"))
    }

    /// The same with the credentials of a role.
    pub(crate) fn get_as(&self, role: &str, password: &str, path: &str) -> String {
        let credentials = format!("Authorization: Bearer {role}:{password}\r\n");
        self.http(&format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{credentials}\r\n"))
    }

    /// Waits until nobody is connected: every session has ended.
    pub(crate) fn wait_until_alone(&self) {
        let begun = Instant::now();
        while !self.get("/metrics").contains("isles_connections{door=\"Postgres\"} 0") {
            assert!(begun.elapsed() < PATIENCE, "sessions did not end:\n{}", self.get("/metrics"));
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Whether the server still does its work.
    pub(crate) fn check_alive(&self) {
        let mut session = self.session();
        session.send(&message(b'S', b""));
        assert_eq!(session.kinds(1), "Z");
    }

    #[cfg(unix)]
    pub(crate) fn terminate(mut self) -> i32 {
        Command::new("kill").args(["-TERM", &self.process.id().to_string()]).status().unwrap();
        self.process.wait().unwrap().code().unwrap_or(-1)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// What a read came to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Heard {
    Message(u8, Vec<u8>),
    Closed,
}

pub(crate) struct Raw {
    pub(crate) stream: TcpStream,
}

impl Raw {
    pub(crate) fn connect(address: SocketAddr) -> Raw {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Raw { stream }
    }

    /// A server that has closed the connection already is found out by reading.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    pub(crate) fn hear(&mut self) -> Heard {
        let mut header = [0; 5];
        if self.stream.read_exact(&mut header).is_err() {
            return Heard::Closed;
        }
        let length = i32::from_be_bytes([header[1], header[2], header[3], header[4]]);
        let mut body = vec![0; usize::try_from(length - 4).unwrap()];
        self.stream.read_exact(&mut body).unwrap();
        Heard::Message(header[0], body)
    }

    /// Messages up to the first of a kind, or to the end.
    pub(crate) fn until(&mut self, last: u8) -> Vec<(u8, Vec<u8>)> {
        let mut heard = Vec::new();
        while let Heard::Message(kind, body) = self.hear() {
            heard.push((kind, body));
            if kind == last {
                break;
            }
        }
        heard
    }

    /// The kinds of the next messages; `.` is the end of the connection.
    pub(crate) fn kinds(&mut self, count: usize) -> String {
        let mut kinds = String::new();
        while kinds.len() < count {
            match self.hear() {
                Heard::Message(kind, _) => kinds.push(char::from(kind)),
                Heard::Closed => {
                    kinds.push('.');
                    break;
                }
            }
        }
        kinds
    }

    /// Everything until the connection ends.
    pub(crate) fn rest(&mut self) -> String {
        self.kinds(usize::MAX)
    }

    /// Answers the server's questions. The SQLSTATE of a refusal, or None for a closed connection.
    pub(crate) fn prove(&mut self, password: &str) -> Result<(), Option<String>> {
        let mut scram = ScramSha256::new(password.as_bytes(), ChannelBinding::unsupported());
        loop {
            let (kind, body) = match self.hear() {
                Heard::Message(kind, body) => (kind, body),
                Heard::Closed => return Err(None),
            };
            let mut out = BytesMut::new();
            match (kind, body.get(..4)) {
                (b'R', Some([0, 0, 0, 0])) => return Ok(()),
                (b'R', Some([0, 0, 0, 10])) => {
                    frontend::sasl_initial_response("SCRAM-SHA-256", scram.message(), &mut out).unwrap();
                }
                (b'R', Some([0, 0, 0, 11])) => {
                    scram.update(&body[4..]).unwrap();
                    frontend::sasl_response(scram.message(), &mut out).unwrap();
                }
                (b'R', Some([0, 0, 0, 12])) => scram.finish(&body[4..]).unwrap(),
                (b'v', _) => {}
                (b'E', _) => return Err(Some(field(&body, b'C'))),
                _ => panic!("unexpected {}", char::from(kind)),
            }
            self.send(&out);
        }
    }
}

/// A field of an error.
pub(crate) fn field(body: &[u8], code: u8) -> String {
    let found = body.split(|byte| *byte == 0).find(|field| field.first() == Some(&code));
    String::from_utf8(found.unwrap_or_default().get(1..).unwrap_or_default().to_vec()).unwrap()
}

pub(crate) fn hello(user: &str) -> Vec<u8> {
    let mut out = BytesMut::new();
    frontend::startup_message([("user", user), ("database", "isles")], &mut out).unwrap();
    out.to_vec()
}

pub(crate) fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    [&[kind][..], &(body.len() as i32 + 4).to_be_bytes(), body].concat()
}
