//! A line between a shard and its server that can be cut.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Between shard and server: sees what goes to the server, and cuts the line on demand.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    /// Cut as soon as a statement that begins with this text has been sent to be run; empty for never.
    cut_after: Arc<Mutex<&'static str>>,
}

/// The messages of one connection to the server.
#[derive(Default)]
struct Sent {
    bytes: Vec<u8>,
    /// The first packet has no kind.
    has_started: bool,
    /// Texts by the names under which they were parsed.
    parsed: BTreeMap<String, String>,
}

impl Sent {
    /// Whether these bytes end a message that has a statement run which begins with `wanted`.
    fn runs(&mut self, bytes: &[u8], wanted: &str) -> bool {
        self.bytes.extend_from_slice(bytes);
        let mut found = false;
        loop {
            let head = usize::from(self.has_started);
            let Some(length) = self.bytes.get(head..head + 4) else { return found };
            let end = head + u32::from_be_bytes(length.try_into().expect("four bytes")) as usize;
            if self.bytes.len() < end {
                return found;
            }
            let message: Vec<u8> = self.bytes.drain(..end).collect();
            let kind = if self.has_started { message[0] } else { 0 };
            self.has_started = true;
            let body = String::from_utf8_lossy(&message[head + 4..]).into_owned();
            let mut texts = body.split('\0').map(str::to_owned);
            let (first, second) = (texts.next().unwrap_or_default(), texts.next().unwrap_or_default());
            let run = match kind {
                b'P' => {
                    self.parsed.insert(first, second);
                    None
                }
                // A portal's name, and the statement's.
                b'B' => self.parsed.get(&second).cloned(),
                b'Q' => Some(first),
                _ => None,
            };
            found |= run.is_some_and(|text| !wanted.is_empty() && text.starts_with(wanted));
        }
    }
}

impl Proxy {
    pub(crate) async fn start(server: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let cut_after = Arc::new(Mutex::new(""));
        let cut = cut_after.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", server)).await.expect("the server is there");
                tokio::spawn(forward(client, server, cut.clone()));
            }
        });
        Proxy { port, cut_after }
    }

    pub(crate) fn cut_after(&self, text: &'static str) {
        *self.cut_after.lock().expect("not poisoned") = text;
    }
}

async fn forward(client: TcpStream, server: TcpStream, cut: Arc<Mutex<&'static str>>) {
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let back = tokio::spawn(async move {
        let _ = tokio::io::copy(&mut from_server, &mut to_client).await;
    });
    let (mut buffer, mut sent) = (vec![0; 1 << 16], Sent::default());
    while let Ok(length @ 1..) = from_client.read(&mut buffer).await {
        let text = *cut.lock().expect("not poisoned");
        let found = sent.runs(&buffer[..length], text);
        if found {
            // No answer reaches the client, whatever the server makes of it.
            back.abort();
        }
        if to_server.write_all(&buffer[..length]).await.is_err() || found {
            break;
        }
    }
    back.abort();
}
