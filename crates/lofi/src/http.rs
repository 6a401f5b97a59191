//! The transport over HTTP/1.1: one connection for each call.
//!
//! A long poll holds its connection for most of the time anyway, and a connection that a network has dropped
//! silently cannot be met again. It speaks no TLS: on a network that others share, give the client a transport of your
//! own HTTP library, or a proxy on the same machine.

use crate::client::Transport;
use crate::replica::{Failure, Reply, Request};
use async_trait::async_trait;
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::http::uri::Scheme;
use hyper::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header};
use hyper_util::rt::TokioIo;
use isles_kernel::sync::{MAX_ENTRY_BYTES, MAX_PAGE_BYTES, Refusal};
use serde::de::DeserializeOwned;
use tokio::net::TcpStream;

/// The largest answer that is read: a page that its last entry has made longer, with room for what a newer server adds.
const MAX_ANSWER_BYTES: usize = MAX_PAGE_BYTES + MAX_ENTRY_BYTES + (3 << 20);
const HTTP_PORT: u16 = 80;

#[derive(Debug, thiserror::Error)]
pub enum BadAddress {
    #[error("an address has the form http://host:port/path, not {0:?}")]
    Form(String),
    #[error("this transport speaks http only; give the client one of your own for {0:?}")]
    NotHttp(String),
    #[error("{0:?} cannot be a header")]
    Header(String),
}

/// Reaches a server by HTTP.
pub struct HttpTransport {
    host: String,
    port: u16,
    /// What stands before `/_internal`.
    prefix: String,
    headers: HeaderMap,
}

impl HttpTransport {
    /// The address is that of the fragment: `http://127.0.0.1:8080/tasks`. Headers go with every request; they say who
    /// is calling.
    pub fn new(address: &str, headers: &[(&str, &str)]) -> Result<HttpTransport, BadAddress> {
        let form = || BadAddress::Form(address.into());
        let uri: Uri = address.parse().map_err(|_| form())?;
        if uri.scheme() != Some(&Scheme::HTTP) {
            return Err(BadAddress::NotHttp(address.into()));
        }
        if uri.query().is_some() {
            return Err(form());
        }
        let host = uri.host().ok_or_else(form)?.to_owned();
        let prefix = uri.path().trim_end_matches('/').to_owned();
        let mut transport =
            HttpTransport { host, port: uri.port_u16().unwrap_or(HTTP_PORT), prefix, headers: HeaderMap::new() };
        for (name, value) in headers {
            let bad = || BadAddress::Header((*name).into());
            let name = HeaderName::try_from(*name).map_err(|_| bad())?;
            transport.headers.append(name, HeaderValue::try_from(*value).map_err(|_| bad())?);
        }
        Ok(transport)
    }

    async fn send(&self, method: Method, path: &str, body: Vec<u8>) -> Result<(u16, Bytes), Failure> {
        let stream = TcpStream::connect((self.host.as_str(), self.port)).await.map_err(unreachable)?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(unreachable)?;
        let request = self.request(method, path, body)?;
        let exchange = async {
            let answer = sender.send_request(request).await.map_err(unreachable)?;
            let status = answer.status().as_u16();
            let body = Limited::new(answer.into_body(), MAX_ANSWER_BYTES).collect().await;
            Ok((status, body.map_err(unreachable)?.to_bytes()))
        };
        tokio::pin!(connection);
        tokio::pin!(exchange);
        let mut open = true;
        loop {
            tokio::select! {
                done = &mut exchange => return done,
                // The connection ends by itself after the answer; an error of it is the exchange's, too.
                _ = &mut connection, if open => open = false,
            }
        }
    }

    fn request(&self, method: Method, path: &str, body: Vec<u8>) -> Result<hyper::Request<Full<Bytes>>, Failure> {
        let mut request = hyper::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.prefix))
            .header(header::HOST, format!("{}:{}", self.host, self.port))
            .header(header::CONNECTION, "close")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(unreachable)?;
        request.headers_mut().extend(self.headers.clone());
        Ok(request)
    }

    async fn get<T: DeserializeOwned>(&self, path: &str, query: &str) -> Result<T, Failure> {
        read(self.send(Method::GET, &format!("{path}?{query}"), Vec::new()).await?)
    }
}

fn unreachable(error: impl std::fmt::Display) -> Failure {
    Failure::Unreachable(error.to_string())
}

fn read<T: DeserializeOwned>((status, body): (u16, Bytes)) -> Result<T, Failure> {
    match status {
        200 => serde_json::from_slice(&body).map_err(|error| Failure::Unreadable(error.to_string())),
        _ => Err(Failure::Refused(Refusal::read(status, &body))),
    }
}

#[async_trait]
impl Transport for HttpTransport {
    async fn call(&self, request: Request) -> Result<Reply, Failure> {
        match request {
            Request::Outbox(query) => self.get("/_internal/outbox", &query.text()).await.map(Reply::Outbox),
            Request::Snapshot(query) => self.get("/_internal/snapshot", &query.text()).await.map(Reply::Snapshot),
            Request::Submit(request) => {
                let body = serde_json::to_vec(&request).map_err(|error| Failure::Unreadable(error.to_string()))?;
                read(self.send(Method::POST, "/_internal/sync", body).await?).map(|it| Reply::Submit(Box::new(it)))
            }
        }
    }
}
