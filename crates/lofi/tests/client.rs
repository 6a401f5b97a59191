//! The driver on tokio, with real stores and real sockets.

#![allow(clippy::unwrap_used)]

#[path = "model/server.rs"]
#[allow(dead_code)]
mod server;

use async_trait::async_trait;
use isles_kernel::sync::*;
use isles_lofi::*;
use isles_sim::rng::Rng;
use serde_json::json;
use server::Tenant;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// The model's server, called directly. It has no long polls: an empty answer waits until something is there.
#[derive(Clone)]
struct Direct {
    state: Arc<Mutex<(Tenant, Rng)>>,
    news: Arc<tokio::sync::Notify>,
}

impl Direct {
    fn new() -> Direct {
        let mut rng = Rng::new(1);
        let mut tenant = Tenant::new("a");
        tenant.write(&mut rng);
        Direct { state: Arc::new(Mutex::new((tenant, rng))), news: Arc::default() }
    }

    fn with<T>(&self, work: impl FnOnce(&mut Tenant, &mut Rng) -> T) -> T {
        let mut state = self.state.lock().unwrap();
        let (tenant, rng) = &mut *state;
        work(tenant, rng)
    }

    fn answer(&self, request: &Request) -> Result<Reply, Failure> {
        self.with(|tenant, rng| tenant.answer(request, rng)).map_err(Failure::Refused)
    }
}

#[async_trait]
impl Transport for Direct {
    async fn call(&self, request: Request) -> Result<Reply, Failure> {
        loop {
            let news = self.news.notified();
            let answer = self.answer(&request)?;
            match (&answer, &request) {
                (Reply::Outbox(page), Request::Outbox(query)) if page.entries.is_empty() && query.wait() > 0 => {
                    news.await;
                }
                _ => {
                    self.news.notify_waiters();
                    return Ok(answer);
                }
            }
        }
    }
}

fn draft(id: &str) -> Draft {
    let key = RowKey::new("s", "t", id).unwrap();
    let input = json!({"id": id, "mark": id});
    let command = Command { schema: "s".into(), name: "add".into(), input, reads: vec![], scopes: vec![] };
    let values = serde_json::from_value(json!({"n": 1, "list": "l0"})).unwrap();
    Draft { command, edits: vec![Edit { op: Op::Create, key, values }], on_conflict: OnConflict::GiveUp }
}

fn key(id: &str) -> RowKey {
    RowKey::new("s", "t", id).unwrap()
}

#[tokio::test]
async fn two_clients_see_each_other_and_one_works_offline_over_a_restart() {
    let server = Direct::new();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("replica.db");
    let first = Client::open(SqliteStore::open(&path).unwrap(), server.clone(), Options::default()).await.unwrap();
    let second = Client::open(MemoryStore::default(), server.clone(), Options::default()).await.unwrap();

    let id = first.submit(draft("x")).await.unwrap();
    assert!(first.view().await.unwrap().get(&key("x")).is_some(), "shown at once");
    second.until(|replica| replica.confirmed().contains_key(&key("x"))).await.unwrap();
    first.until(|replica| replica.state_of(id) == CommandState::Gone).await.unwrap();

    first.go_offline().await.unwrap();
    let offline = first.submit(draft("y")).await.unwrap();
    second.submit(draft("z")).await.unwrap();
    second.until(|replica| replica.unconfirmed() == 0).await.unwrap();
    assert_eq!(first.view().await.unwrap().state_of(offline), CommandState::Queued);
    first.close().await.unwrap();

    let first = Client::open(SqliteStore::open(&path).unwrap(), server.clone(), Options::default()).await.unwrap();
    assert!(first.view().await.unwrap().get(&key("y")).is_some(), "kept over the restart");
    first.until(|replica| replica.unconfirmed() == 0).await.unwrap();
    let head = server.with(|tenant, _| tenant.head());
    for client in [&first, &second] {
        client.until(|replica| replica.cursor() == Some(head)).await.unwrap();
        let rows = server.with(|tenant, _| tenant.rows.clone());
        assert_eq!(client.view().await.unwrap().confirmed(), &rows);
    }
    assert_eq!(server.with(|tenant, _| tenant.executed.clone()).into_values().sum::<u32>(), 3);
    first.close().await.unwrap();
    second.close().await.unwrap();
}

/// Fails from the second commit on.
struct Failing(MemoryStore, u32);

impl Store for Failing {
    fn load(&mut self) -> Result<Kept, StoreError> {
        self.0.load()
    }

    fn commit(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        self.1 += 1;
        match self.1 {
            1 => self.0.commit(writes),
            _ => Err(StoreError::new("the disk is full")),
        }
    }
}

#[tokio::test]
async fn a_store_that_fails_stops_the_client_and_nothing_is_acknowledged() {
    let server = Direct::new();
    let client = Client::open(Failing(MemoryStore::default(), 0), server.clone(), Options::default()).await.unwrap();
    assert!(matches!(client.submit(draft("x")).await, Err(ClientError::Stopped)));
    assert!(matches!(client.view().await, Err(ClientError::Stopped)));
    let error = client.close().await.unwrap_err().to_string();
    assert!(error.contains("the disk is full"), "{error}");
    assert!(server.with(|tenant, _| tenant.executed.is_empty()), "what is not kept is not sent");
}

/// A transport that panics for each request that the test does not name.
struct Panicking(Direct);

#[async_trait]
impl Transport for Panicking {
    async fn call(&self, request: Request) -> Result<Reply, Failure> {
        assert!(!matches!(request, Request::Submit(_)), "a bug of the transport");
        self.0.call(request).await
    }
}

#[tokio::test]
async fn a_transport_that_panics_has_not_answered() {
    let client = Client::open(MemoryStore::default(), Panicking(Direct::new()), Options::default()).await.unwrap();
    let id = client.submit(draft("x")).await.unwrap();
    client.until(|replica| matches!(replica.health().trouble, Some(Trouble::Unreachable(_)))).await.unwrap();
    assert_eq!(client.view().await.unwrap().state_of(id), CommandState::Pending, "it is tried again");
    client.close().await.unwrap();
}

/// A server of one connection that answers with these bytes, whatever it is asked; what it was asked.
async fn answers(bytes: Vec<u8>) -> (String, tokio::task::JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}/tasks/", listener.local_addr().unwrap());
    let task = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut asked = Vec::new();
        while !asked.windows(4).any(|end| end == b"\r\n\r\n") {
            let mut buffer = [0; 1024];
            let count = stream.read(&mut buffer).await.unwrap();
            assert!(count > 0);
            asked.extend_from_slice(&buffer[..count]);
        }
        // The client may have seen enough before the end.
        let _ = stream.write_all(&bytes).await;
        String::from_utf8(asked).unwrap()
    });
    (address, task)
}

fn http(status: &str, body: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
}

async fn ask(bytes: Vec<u8>) -> (Result<Reply, Failure>, String) {
    let (address, task) = answers(bytes).await;
    let transport = HttpTransport::new(&address, &[("authorization", "Bearer t")]).unwrap();
    let query = OutboxQuery { wait_ms: Some(5), ..OutboxQuery::default() };
    (transport.call(Request::Outbox(query)).await, task.await.unwrap())
}

#[tokio::test]
async fn http_answers_are_replies_refusals_or_failures() {
    let page = Direct::new().with(|tenant, rng| tenant.answer(&Request::Outbox(OutboxQuery::default()), rng)).unwrap();
    let Reply::Outbox(page) = page else { panic!("a page") };
    let (reply, asked) = ask(http("200 OK", &serde_json::to_string(&page).unwrap())).await;
    assert_eq!(reply, Ok(Reply::Outbox(page)));
    assert!(asked.starts_with("GET /tasks/_internal/outbox?after=0&wait_ms=5 HTTP/1.1\r\n"), "{asked}");
    assert!(asked.contains("authorization: Bearer t\r\n"), "{asked}");

    let body = Refusal::new(Code::ResyncRequired, "gone").body().to_string();
    let (reply, _) = ask(http("410 Gone", &body)).await;
    assert_eq!(reply, Err(Failure::Refused(Refusal::new(Code::ResyncRequired, "gone"))));
    let (reply, _) = ask(http("502 Bad Gateway", "<html>")).await;
    assert!(matches!(reply, Err(Failure::Refused(Refusal { code: Code::Unavailable, .. }))), "{reply:?}");
    let (reply, _) = ask(http("200 OK", "{\"partition\":")).await;
    assert!(matches!(reply, Err(Failure::Unreadable(_))), "{reply:?}");
    let (reply, _) = ask(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n{".to_vec()).await;
    assert!(matches!(reply, Err(Failure::Unreachable(_))), "cut off: {reply:?}");
    let (reply, _) = ask(b"SSH-2.0-x\r\n\r\n".to_vec()).await;
    assert!(matches!(reply, Err(Failure::Unreachable(_))), "{reply:?}");
    let endless = [b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n".to_vec(), vec![b' '; 16 << 20]].concat();
    let (reply, _) = ask(endless).await;
    assert!(matches!(reply, Err(Failure::Unreachable(_))), "too large");
}

#[tokio::test]
async fn nobody_there_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let transport = HttpTransport::new(&address, &[]).unwrap();
    let reply = transport.call(Request::Outbox(OutboxQuery::default())).await;
    assert!(matches!(reply, Err(Failure::Unreachable(_))), "{reply:?}");
}

#[test]
fn addresses_are_checked() {
    assert!(HttpTransport::new("http://127.0.0.1:8080/tasks", &[]).is_ok());
    assert!(HttpTransport::new("https://example.com", &[]).is_err());
    assert!(HttpTransport::new("127.0.0.1:8080", &[]).is_err());
    assert!(HttpTransport::new("http://h/?a=b", &[]).is_err());
    assert!(HttpTransport::new("http://h", &[("bad header", "x")]).is_err());
    assert!(HttpTransport::new("http://h", &[("x", "bad\nvalue")]).is_err());
}
