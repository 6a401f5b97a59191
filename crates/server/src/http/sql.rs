//! `POST /sql`: statements in a request, their results in the answer.
//!
//!     authenticate ──► a place ──► session ──► statements, in one transaction ──► results │ error
//!
//! A request is a transaction: its statements stand or fall together, and an answer that would be too large undoes
//! them. With `Accept: application/x-ndjson` rows leave as they come, one line each, and the last line says how it
//! ended.

use super::answer::{columns, error_json, row, status_of};
use super::{HttpDoor, Peer};
use crate::metrics::Outcome;
use crate::pg::reply::Format;
use crate::pg::values::{Forms, types_of};
use axum::body::Body;
use axum::extract::{ConnectInfo, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::stream;
use isles_cluster::session::{Answer, Login, Prepared, Rows, Session, Status};
use isles_engine::shard::CancelToken;
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;
use serde::Deserialize;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;
use tokio::sync::mpsc;

/// Rows fetched at a time.
const BATCH_ROWS: usize = 128;

/// Pieces of a streamed answer that wait for the client: a slow reader holds these and no more.
const PIECES_MAX: usize = 4;

/// Bytes of a piece.
const PIECE_BYTES: usize = 16 << 10;

const NDJSON: &str = "application/x-ndjson";
/// Headers that are settings of the session.
const SETTINGS: [(&str, &str); 3] =
    [(TENANT, "isles.tenant"), (NULL_TENANT, "isles.null_tenant"), ("x-isles-region", "isles.region")];
const TENANT: &str = "x-isles-tenant";
const NULL_TENANT: &str = "x-isles-null-tenant";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Request {
    sql: String,
    #[serde(default)]
    params: Vec<serde_json::Value>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// One document.
    Whole,
    /// A line for each row.
    Lines,
}

pub(crate) async fn post_sql(
    State(door): State<Arc<HttpDoor>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
    body: Result<Bytes, axum::extract::rejection::BytesRejection>,
) -> Response {
    match begin(door, peer, &headers, body).await {
        Ok(response) => response,
        Err(error) => refusal(&error),
    }
}

pub(super) fn refusal(error: &SqlError) -> Response {
    with_advice((status_of(error), axum::Json(error_json(error))).into_response(), error)
}

/// An answer which says how to log in, or when to come again, if that is what the error is about.
pub(super) fn with_advice(mut answer: Response, error: &SqlError) -> Response {
    if answer.status() == StatusCode::UNAUTHORIZED {
        let realm = HeaderValue::from_static("Basic realm=\"isles\", charset=\"UTF-8\"");
        answer.headers_mut().insert(header::WWW_AUTHENTICATE, realm);
    }
    if let Some(seconds) = error.retry_after_s {
        answer.headers_mut().insert(header::RETRY_AFTER, seconds.get().into());
    }
    answer
}

async fn begin(
    door: Arc<HttpDoor>,
    peer: Peer,
    headers: &HeaderMap,
    body: Result<Bytes, axum::extract::rejection::BytesRejection>,
) -> Result<Response, SqlError> {
    let place = Arc::clone(&door.requests).try_acquire_owned();
    let place = place.map_err(|_| SqlError::new("53300", "too many requests at once").with_hint("Try again."))?;
    let (user, password) = credentials(headers)?;
    let role = door.logins.with_password(&user, &password, peer.0.ip()).await?;
    let body = body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => SqlError::new("54000", "the request's body is too large"),
        _ => SqlError::new("08P01", "the request's body cannot be read"),
    })?;
    let request: Request = serde_json::from_slice(&body)
        .map_err(|fault| SqlError::new("22023", format!("the request's body is not what it should be: {fault}")))?;
    let settings = settings(headers)?;
    let database = crate::serve::FIRST_ROLE.to_owned();
    let session = door.backend.session(Login { user, database, settings, role })?;
    let shape = match accepts_lines(headers) {
        true => Shape::Lines,
        false => Shape::Whole,
    };
    let (pieces, receiver) = mpsc::channel(PIECES_MAX);
    let running = Running::default();
    let work = Work { door, session, shape, pieces, out: String::new(), rows: 0, running: running.clone() };
    // The session ends in order even if the client does not wait for it.
    tokio::spawn(async move {
        work.run(request).await;
        drop(place);
    });
    let guard = CancelOnDrop(running);
    match shape {
        Shape::Whole => whole(receiver, guard).await,
        Shape::Lines => Ok(lines(receiver, guard)),
    }
}

/// What the work sends: pieces of the answer, or that there is none.
type Piece = Result<String, SqlError>;

async fn whole(mut receiver: mpsc::Receiver<Piece>, guard: CancelOnDrop) -> Result<Response, SqlError> {
    let mut body = String::new();
    while let Some(piece) = receiver.recv().await {
        body.push_str(&piece?);
    }
    drop(guard);
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

fn lines(receiver: mpsc::Receiver<Piece>, guard: CancelOnDrop) -> Response {
    let stream = stream::unfold((receiver, guard), |(mut receiver, guard)| async move {
        let line = match receiver.recv().await? {
            Ok(piece) => piece,
            Err(error) => format!("{}\n", error_json(&error)),
        };
        Some((Ok::<_, std::convert::Infallible>(line), (receiver, guard)))
    });
    ([(header::CONTENT_TYPE, NDJSON)], Body::from_stream(stream)).into_response()
}

/// The token of what runs.
#[derive(Clone, Default)]
struct Running(Arc<Mutex<Option<CancelToken>>>);

/// Cancels what runs when the client goes away.
struct CancelOnDrop(Running);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        if let Some(token) = self.0.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref() {
            token.cancel();
        }
    }
}

/// Name and password: `Basic` as always, or `Bearer name:password`.
pub(super) fn credentials(headers: &HeaderMap) -> Result<(String, String), SqlError> {
    let missing = || SqlError::new("28000", "no credentials").with_hint("Send basic authentication with a role.");
    let given = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok()).ok_or_else(missing)?;
    let (scheme, rest) = given.split_once(' ').ok_or_else(missing)?;
    let text = match scheme.to_ascii_lowercase().as_str() {
        "basic" => STANDARD.decode(rest.trim()).ok().and_then(|bytes| String::from_utf8(bytes).ok()),
        "bearer" => Some(rest.trim().to_owned()),
        _ => None,
    };
    let text = text.ok_or_else(missing)?;
    let (user, password) = text.split_once(':').ok_or_else(missing)?;
    Ok((user.to_owned(), password.to_owned()))
}

pub(super) fn settings(headers: &HeaderMap) -> Result<Vec<(String, String)>, SqlError> {
    // Of two tenants one would be taken, and nobody could say which was meant.
    if headers.contains_key(TENANT) && headers.contains_key(NULL_TENANT) || headers.get_all(TENANT).iter().count() > 1 {
        let error = SqlError::new("22023", format!("a request has one tenant: {TENANT} once, or {NULL_TENANT}"));
        return Err(error);
    }
    let mut settings = vec![("application_name".to_owned(), "http".to_owned())];
    for (header, setting) in SETTINGS {
        let Some(value) = headers.get(header) else { continue };
        let value = std::str::from_utf8(value.as_bytes())
            .map_err(|_| SqlError::new("22021", format!("the header {header} is not UTF-8")))?;
        settings.push((setting.to_owned(), value.to_owned()));
    }
    Ok(settings)
}

fn accepts_lines(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    accept.split(',').any(|kind| kind.split(';').next().is_some_and(|kind| kind.trim() == NDJSON))
}

/// A request that runs.
struct Work {
    door: Arc<HttpDoor>,
    session: Session,
    shape: Shape,
    pieces: mpsc::Sender<Piece>,
    /// What has not been sent.
    out: String,
    rows: usize,
    running: Running,
}

impl Work {
    async fn run(mut self, request: Request) {
        let ended = match self.statements(request).await {
            Ok(()) => self.finish().await,
            Err(error) => {
                self.session.fail();
                // The error that was first is told; what is rolled back cannot fail better.
                let _ = self.session.end_implicit().await;
                Err(error)
            }
        };
        if let Err(error) = ended {
            self.door.metrics.error(error.sqlstate);
            // The client may be gone.
            let _ = self.pieces.send(Err(error)).await;
        }
        *self.running.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.session.close().await;
    }

    async fn finish(&mut self) -> Result<(), SqlError> {
        if self.session.status() != Status::Idle {
            return Err(SqlError::new("25001", "a request may not leave a transaction open")
                .with_hint("Leave out BEGIN: the statements of a request are one transaction."));
        }
        let text = match self.shape {
            Shape::Whole => "]}\n",
            Shape::Lines => "{\"done\":true}\n",
        };
        self.out.push_str(text);
        self.send().await
    }

    async fn statements(&mut self, request: Request) -> Result<(), SqlError> {
        let statements = self.session.statements(&request.sql)?;
        if statements.len() > 1 && !request.params.is_empty() {
            return Err(SqlError::new("42601", "parameters need a request of one statement"));
        }
        if self.shape == Shape::Whole {
            self.out.push_str("{\"results\":[");
        }
        // What a client could be told too late must be undone: a result that is too large, a stream that breaks.
        self.session.begin_implicit();
        for (at, sql) in statements.iter().enumerate() {
            if at > 0 && self.shape == Shape::Whole {
                self.out.push(',');
            }
            let began = Instant::now();
            let ran = self.statement(sql, &request.params).await;
            let outcome = if ran.is_ok() { Outcome::Done } else { Outcome::Failed };
            self.door.metrics.statement(sql, outcome, began.elapsed());
            ran?;
        }
        self.session.end_implicit().await
    }

    async fn statement(&mut self, sql: &str, given: &[serde_json::Value]) -> Result<(), SqlError> {
        let prepared = self.session.prepare(sql, &[]).await?;
        let params = params(&self.session, &prepared, given)?;
        *self.running.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.session.cancel_token());
        match self.session.execute(&prepared, params).await? {
            Answer::Rows(rows) => self.result(rows).await,
            Answer::Done { tag } => self.tag(&tag).await,
            Answer::Empty => Ok(()),
            Answer::CopyIn(_) | Answer::CopyOut(_) => {
                Err(SqlError::unsupported("COPY is not available over HTTP").with_hint("Use PostgreSQL's protocol."))
            }
        }
    }

    async fn tag(&mut self, tag: &str) -> Result<(), SqlError> {
        let tag = serde_json::Value::from(tag);
        match self.shape {
            Shape::Whole => self.out.push_str(&format!("{{\"columns\":[],\"rows\":[],\"tag\":{tag}}}")),
            Shape::Lines => self.out.push_str(&format!("{{\"tag\":{tag}}}\n")),
        }
        self.send_if_large().await
    }

    async fn result(&mut self, mut rows: Rows) -> Result<(), SqlError> {
        let mut forms = Forms::default();
        forms.refresh(&self.session, types_of(&rows.fields));
        self.out.push_str("{\"columns\":");
        columns(&rows.fields, &mut self.out);
        self.out.push_str(if self.shape == Shape::Whole { ",\"rows\":[" } else { "}\n" });
        let mut first = true;
        while let Some(batch) = rows.next(BATCH_ROWS).await? {
            self.count(batch.len())?;
            for values in &batch {
                self.put_row(values, &rows, &forms, std::mem::replace(&mut first, false));
                self.send_if_large().await?;
            }
        }
        let tag = serde_json::Value::from(rows.tag());
        match self.shape {
            Shape::Whole => self.out.push_str(&format!("],\"tag\":{tag}}}")),
            Shape::Lines => self.out.push_str(&format!("{{\"tag\":{tag}}}\n")),
        }
        Ok(())
    }

    fn put_row(&mut self, values: &[Value], rows: &Rows, forms: &Forms, first: bool) {
        match self.shape {
            Shape::Whole => {
                if !first {
                    self.out.push(',');
                }
                row(values, &rows.fields, forms, &mut self.out);
            }
            Shape::Lines => {
                self.out.push_str("{\"row\":");
                row(values, &rows.fields, forms, &mut self.out);
                self.out.push_str("}\n");
            }
        }
    }

    /// An answer that is one document is held whole, so it is bounded.
    fn count(&mut self, rows: usize) -> Result<(), SqlError> {
        self.rows += rows;
        self.door.metrics.rows(rows);
        let limit = self.door.limits.http_rows;
        match self.shape == Shape::Whole && self.rows > limit {
            true => Err(SqlError::new("54000", format!("the answer has more than {limit} rows"))
                .with_hint(format!("Use LIMIT, or send \"Accept: {NDJSON}\"."))),
            false => Ok(()),
        }
    }

    async fn send_if_large(&mut self) -> Result<(), SqlError> {
        let limit = self.door.limits.http_answer_bytes;
        match self.shape {
            Shape::Whole if self.out.len() > limit => {
                Err(SqlError::new("54000", format!("the answer has more than {limit} bytes"))
                    .with_hint(format!("Use LIMIT, or send \"Accept: {NDJSON}\".")))
            }
            Shape::Lines if self.out.len() >= PIECE_BYTES => self.send().await,
            _ => Ok(()),
        }
    }

    async fn send(&mut self) -> Result<(), SqlError> {
        let piece = std::mem::take(&mut self.out);
        let sent = self.pieces.send(Ok(piece)).await;
        sent.map_err(|_| SqlError::new("57014", "the client went away"))
    }
}

/// Parameters by their text, as a client of the protocol sends them.
fn params(session: &Session, prepared: &Prepared, given: &[serde_json::Value]) -> Result<Vec<Value>, SqlError> {
    if given.len() != prepared.params.len() {
        let (given, needed) = (given.len(), prepared.params.len());
        return Err(SqlError::new("08P01", format!("{given} parameters were given, and the statement has {needed}")));
    }
    let mut forms = Forms::default();
    forms.refresh(session, prepared.params.iter().copied());
    let one = |(value, ty): (&serde_json::Value, &isles_sql::types::Oid)| match value {
        serde_json::Value::Null => Ok(Value::Null),
        serde_json::Value::String(text) => forms.read(text.as_bytes(), *ty, Format::Text),
        other => forms.read(other.to_string().as_bytes(), *ty, Format::Text),
    };
    given.iter().zip(&prepared.params).map(one).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::HeaderName::from_static(name), value.parse().unwrap())])
    }

    #[test]
    fn credentials_of_either_kind() {
        let expected = ("ann".to_owned(), "se:cret".to_owned());
        assert_eq!(credentials(&headers("authorization", "Basic YW5uOnNlOmNyZXQ=")), Ok(expected.clone()));
        assert_eq!(credentials(&headers("authorization", "bearer ann:se:cret")), Ok(expected));
        for wrong in ["", "Basic", "Basic !!!", "Digest x", "Bearer ann"] {
            assert_eq!(credentials(&headers("authorization", wrong)).unwrap_err().sqlstate, "28000", "{wrong}");
        }
    }

    #[test]
    fn lines_are_asked_for() {
        assert!(accepts_lines(&headers("accept", "text/html, application/x-ndjson; q=1")));
        assert!(!accepts_lines(&headers("accept", "application/json")));
    }
}
