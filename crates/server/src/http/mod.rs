//! HTTP: statements, administration, health, metrics.
//!
//! In reading order:
//!   * [`answer`]  results and errors as JSON
//!   * [`sql`]     `POST /sql`
//!   * [`admin`]   moves, routing, rows of single shards
//!   * [`stores`]  records that expire
//!   * [`workflows`] runs, and workers of other languages
//!
//! ```text
//! POST /sql           statements, with the roles of PostgreSQL's protocol
//!      /admin/…       for administrators
//!      /stores/…      records that expire
//!      /workflows/…   runs of workflows
//! GET  /healthz       the process answers
//! GET  /readyz        the database answers
//! GET  /metrics       for Prometheus
//! GET  /openapi.json  this interface, for programs
//! ```

mod admin;
pub(crate) mod answer;
pub(crate) mod sql;
mod stores;
mod workflows;

use crate::backend::Backend;
use crate::config::Limits;
use crate::logins::Logins;
use crate::metrics::{Audience, Door, Metrics};
use crate::serve::{FIRST_ROLE, Phase};
use crate::tls::Tls;
use admin::gate::{Refusal, admitted};
use axum::Router;
use axum::extract::connect_info::Connected;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{MethodRouter, any, get, post};
use axum::serve::IncomingStream;
use isles_cluster::roles;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_rustls::server::TlsStream;

/// The longest handshake; whoever takes longer is left.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Connections that have been accepted and wait to be served.
const ACCEPTED_MAX: usize = 64;

/// What describes this interface, and the paths of its larger parts.
const OPENAPI: &str = include_str!("openapi/whole.json");
const OPENAPI_PARTS: [&str; 2] = [include_str!("openapi/admin.json"), include_str!("openapi/workflows.json")];

/// The description of all paths, which is put together once.
static DESCRIBED: LazyLock<String> = LazyLock::new(|| {
    let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("a test reads it");
    let mut whole = read(OPENAPI);
    for part in OPENAPI_PARTS {
        if let (Some(paths), serde_json::Value::Object(part)) = (whole["paths"].as_object_mut(), read(part)) {
            paths.extend(part);
        }
    }
    whole.to_string()
});

/// What every request shares.
pub(crate) struct HttpDoor {
    backend: Arc<Backend>,
    logins: Arc<Logins>,
    metrics: Arc<Metrics>,
    limits: Limits,
    phase: watch::Receiver<Phase>,
    requests: Arc<Semaphore>,
    /// Places of requests that wait for something of a run.
    waits: Arc<Semaphore>,
}

impl HttpDoor {
    pub(crate) fn new(
        backend: Arc<Backend>,
        logins: Arc<Logins>,
        metrics: Arc<Metrics>,
        limits: Limits,
        phase: watch::Receiver<Phase>,
    ) -> HttpDoor {
        let requests = Arc::new(Semaphore::new(limits.http_requests));
        let waits = Arc::new(Semaphore::new(limits.http_waits));
        HttpDoor { backend, logins, metrics, limits, phase, requests, waits }
    }
}

/// Serves until the server stops, and lets requests that run end.
pub(crate) async fn listen(door: HttpDoor, listener: TcpListener, tls: Option<Tls>) {
    let mut phase = door.phase.clone();
    let doors = Doors::open(listener, tls, Arc::clone(&door.metrics));
    let routes = routes(door.limits.http_body_bytes);
    let router = routes.into_iter().fold(Router::new(), |router, (path, answers)| router.route(path, answers));
    let router = ["/admin", "/admin/{*path}"]
        .into_iter()
        .fold(router, |router, path| router.route(path, any(admin::no_such_path)))
        .with_state(Arc::new(door));
    let stopped = async move {
        let _ = phase.wait_for(|phase| *phase >= Phase::Draining).await;
    };
    let service = router.into_make_service_with_connect_info::<Peer>();
    if let Err(error) = axum::serve(doors, service).with_graceful_shutdown(stopped).await {
        tracing::error!(%error, "HTTP has ended");
    }
}

/// Every path, and what it answers to. All of them are in the interface's description.
fn routes(body_bytes: usize) -> Vec<(&'static str, MethodRouter<Arc<HttpDoor>>)> {
    let openapi = || async { ([(header::CONTENT_TYPE, "application/json")], DESCRIBED.as_str()) };
    let mut routes = vec![
        ("/sql", post(sql::post_sql).layer(DefaultBodyLimit::max(body_bytes))),
        ("/healthz", get(healthy)),
        ("/readyz", get(ready)),
        ("/metrics", get(metrics)),
        ("/openapi.json", get(openapi)),
    ];
    let admin = admin::routes(body_bytes).into_iter().chain(workflows::routes());
    routes.extend(stores::routes());
    routes.extend(admin.map(|(path, answers)| (path, answers.fallback(admin::no_such_verb))));
    routes
}

/// The process answers. What is said beside that is no reason to end it.
async fn healthy(State(door): State<Arc<HttpDoor>>) -> String {
    format!("ok\n{}", placements_of(&door))
}

/// Whether the database answers: a role is looked up, as for a login.
async fn ready(State(door): State<Arc<HttpDoor>>) -> (StatusCode, String) {
    let running = *door.phase.borrow() == Phase::Running;
    match running && roles::get(door.backend.catalog().as_ref(), FIRST_ROLE).await.is_ok() {
        true => (StatusCode::OK, format!("ready\n{}", placements_of(&door))),
        false => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready\n{}", placements_of(&door))),
    }
}

/// What is to be said of placements, a line each. Names of tenants are not: anybody may ask.
fn placements_of(door: &HttpDoor) -> String {
    let health = door.backend.database().placements().health();
    let mut said = String::new();
    if health.uses_defaults {
        said.push_str("placements: built-in defaults, there is no configuration of tenant \"default\"\n");
    }
    if !health.is_following {
        said.push_str("placements: the catalog is not followed, they are as they were last read\n");
    }
    if !health.invalid.is_empty() {
        said.push_str(&format!("placements: {} configurations are invalid\n", health.invalid.len()));
    }
    said
}

/// Anybody may read how the server does; who names a role that sees all tenants reads what each of them does, too.
async fn metrics(State(door): State<Arc<HttpDoor>>, request: Request) -> Result<impl IntoResponse, Refusal> {
    let (mut parts, _) = request.into_parts();
    let audience = match parts.headers.contains_key(header::AUTHORIZATION) {
        true if !admitted(&mut parts, &door).await?.1.is_locked() => Audience::Everything,
        _ => Audience::WithoutTenants,
    };
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    door.metrics.look().await;
    Ok(([(header::CONTENT_TYPE, kind)], door.metrics.text(audience)))
}

/// Who sent a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Peer(pub(crate) SocketAddr);

impl Connected<IncomingStream<'_, Doors>> for Peer {
    fn connect_info(stream: IncomingStream<'_, Doors>) -> Peer {
        Peer(*stream.remote_addr())
    }
}

/// Connections that are ready to be served. Handshakes run beside each other, so a slow one holds up nobody.
pub(crate) struct Doors {
    ready: mpsc::Receiver<(Io, SocketAddr)>,
    local: std::io::Result<SocketAddr>,
}

impl Doors {
    fn open(listener: TcpListener, tls: Option<Tls>, metrics: Arc<Metrics>) -> Doors {
        let local = listener.local_addr();
        let (accepted, ready) = mpsc::channel(ACCEPTED_MAX);
        tokio::spawn(async move {
            // Ends when the doors are dropped.
            while let Ok(place) = accepted.clone().reserve_owned().await {
                let Some((stream, address)) = accept(&listener, &accepted).await else {
                    return;
                };
                let (tls, counted) = (tls.clone(), metrics.connected(Door::Http));
                tokio::spawn(async move {
                    if let Some(stream) = shake_hands(stream, tls).await {
                        place.send((Io { stream, _counted: counted }, address));
                    }
                });
            }
        });
        Doors { ready, local }
    }
}

/// The next connection; None when nobody wants one any more.
async fn accept<T>(listener: &TcpListener, wanted: &mpsc::Sender<T>) -> Option<(TcpStream, SocketAddr)> {
    loop {
        let accepted = tokio::select! {
            () = wanted.closed() => return None,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok(accepted) => return Some(accepted),
            // The system has no more sockets to give.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

async fn shake_hands(stream: TcpStream, tls: Option<Tls>) -> Option<Transport> {
    let _ = stream.set_nodelay(true);
    match tls {
        None => Some(Transport::Plain(stream)),
        Some(tls) => match tokio::time::timeout(HANDSHAKE, tls.http.accept(stream)).await {
            Ok(Ok(stream)) => Some(Transport::Tls(Box::new(stream))),
            _ => None,
        },
    }
}

impl axum::serve::Listener for Doors {
    type Io = Io;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Io, SocketAddr) {
        match self.ready.recv().await {
            Some(ready) => ready,
            // The acceptor has ended, which it does only with the server.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        match &self.local {
            Ok(address) => Ok(*address),
            Err(fault) => Err(fault.kind().into()),
        }
    }
}

enum Transport {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// A connection, counted while it lives.
pub(crate) struct Io {
    stream: Transport,
    _counted: crate::metrics::Connected,
}

impl AsyncRead for Io {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        match &mut self.stream {
            Transport::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Transport::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Io {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        match &mut self.stream {
            Transport::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Transport::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match &mut self.stream {
            Transport::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Transport::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        match &mut self.stream {
            Transport::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Transport::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::collections::BTreeSet;

    /// What is served is described, and the other way round. That each verb is there, and no other, is for the tests of
    /// the server.
    #[test]
    fn every_path_is_described() {
        let described: serde_json::Value = serde_json::from_str(&DESCRIBED).unwrap();
        let described: BTreeSet<&str> = described["paths"].as_object().unwrap().keys().map(String::as_str).collect();
        let served: BTreeSet<&str> = routes(1).iter().map(|(path, _)| *path).collect();
        assert_eq!(served, described);
    }
}
