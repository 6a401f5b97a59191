//! `/workflows`: runs, for those who manage them and for workers of other languages.
//!
//! The rights are those of SQL: administrators do everything here, workers too; any other role that is not locked to a
//! tenant creates runs, as by `isles.start_run`, and is told no more of them. Errors are those of workflows, with their codes:
//! `{"error": {"code": "WORKFLOW_NOT_FOUND", "message": …, "status": 404}}`.

use super::HttpDoor;
use super::admin::gate::{Refusal, admitted};
use axum::Json;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, FromRequest, FromRequestParts, Path, Query, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post, put};
use isles_kernel::error::SqlError;
use isles_kernel::runs::units::parse_duration;
use isles_workflows::commands::{Listing, MAX_WAIT, RemoteType, Verb};
use isles_workflows::{Code, Update, WorkflowError, Workflows};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, broadcast};

/// A result of eight megabytes, and what is around it.
const BODY_BYTES: usize = 9 << 20;
/// How often a stream of updates looks by itself: a run may be executed by another process.
const LOOK: Duration = Duration::from_secs(1);

/// Paths, each with what it answers to.
pub(super) fn routes() -> Vec<(&'static str, MethodRouter<Arc<HttpDoor>>)> {
    let body = || DefaultBodyLimit::max(BODY_BYTES);
    vec![
        ("/workflows", get(list)),
        ("/workflows/_counts", get(counts)),
        ("/workflows/_reindex", post(reindex)),
        ("/workflows/_types", get(types)),
        ("/workflows/_types/{type}", put(register).layer(body())),
        ("/workflows/_types/{type}/resize", post(resize)),
        ("/workflows/_tasks/poll", post(poll).layer(body())),
        ("/workflows/_tasks/{action}", post(task).layer(body())),
        ("/workflows/{type}", get(list_type).post(create).layer(body())),
        ("/workflows/{type}/{id}", get(show).delete(remove)),
        ("/workflows/{type}/{id}/timeline", get(timeline)),
        ("/workflows/{type}/{id}/updates", get(updates)),
        ("/workflows/{type}/{id}/wait", get(wait)),
        ("/workflows/{type}/{id}/{action}", post(act).layer(body())),
    ]
}

/// Why nothing was done.
pub(super) enum Problem {
    Workflow(WorkflowError),
    Refused(Refusal),
}

impl From<WorkflowError> for Problem {
    fn from(error: WorkflowError) -> Problem {
        Problem::Workflow(error)
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Problem {
        Problem::Refused(refusal)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        match self {
            Problem::Refused(refusal) => refusal.into_response(),
            Problem::Workflow(error) => {
                let status = StatusCode::from_u16(error.code.status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
                (status, Json(json!({ "error": error.to_json() }))).into_response()
            }
        }
    }
}

type Answer = Result<Response, Problem>;

fn done(json: Value) -> Answer {
    Ok(Json(json).into_response())
}

/// One who may manage runs.
pub(super) struct Managing {
    workflows: Workflows,
    _place: OwnedSemaphorePermit,
}

/// One who may create runs.
pub(super) struct Creating {
    workflows: Workflows,
    is_admin: bool,
    _place: OwnedSemaphorePermit,
}

/// One who may manage runs and waits for something of them. Such a request has no place among those that do something:
/// however many wait, statements are served.
pub(super) struct Waiting {
    workflows: Workflows,
    place: OwnedSemaphorePermit,
}

fn denied(what: &str) -> Problem {
    Refusal::from(SqlError::new("42501", format!("permission denied: {what}"))).into()
}

impl FromRequestParts<Arc<HttpDoor>> for Managing {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, door: &Arc<HttpDoor>) -> Result<Managing, Problem> {
        let (_, role, place) = admitted(parts, door).await?;
        if !role.admin || role.is_locked() {
            return Err(denied("runs are managed by administrators"));
        }
        Ok(Managing { workflows: door.backend.workflows().await?, _place: place })
    }
}

impl FromRequestParts<Arc<HttpDoor>> for Creating {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, door: &Arc<HttpDoor>) -> Result<Creating, Problem> {
        let (_, role, place) = admitted(parts, door).await?;
        if role.is_locked() {
            return Err(denied("roles of one tenant do not create runs"));
        }
        Ok(Creating { workflows: door.backend.workflows().await?, is_admin: role.admin, _place: place })
    }
}

impl FromRequestParts<Arc<HttpDoor>> for Waiting {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, door: &Arc<HttpDoor>) -> Result<Waiting, Problem> {
        let managing = Managing::from_request_parts(parts, door).await?;
        let place = Arc::clone(&door.waits).try_acquire_owned();
        let place = place.map_err(|_| {
            let error = SqlError::new("53300", "too many requests wait at once");
            Refusal::from(error.with_hint("try again, or raise limits.http_waits"))
        })?;
        Ok(Waiting { workflows: managing.workflows, place })
    }
}

/// Reads a body when its sender is known. What is wrong with it is an error of workflows, as everything else.
async fn body<T: DeserializeOwned>(door: &Arc<HttpDoor>, request: Request) -> Result<T, Problem> {
    let bytes = Bytes::from_request(request, door).await.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            WorkflowError::new(Code::ResultTooLarge, format!("a request has at most {BODY_BYTES} bytes"))
        }
        _ => WorkflowError::invalid("the request's body cannot be read"),
    })?;
    let text = if bytes.iter().all(u8::is_ascii_whitespace) { b"{}" } else { &bytes[..] };
    let unfit = |fault| WorkflowError::invalid(format!("the request's body does not fit: {fault}"));
    Ok(serde_json::from_slice(text).map_err(unfit)?)
}

fn listing(kind: Option<String>, query: BTreeMap<String, String>) -> Result<Listing, Problem> {
    let mut listing = Listing { kind, ..Listing::default() };
    for (name, value) in query {
        match name.as_str() {
            "type" => listing.kind = Some(value),
            "status" => listing.status = Some(value),
            "order" => listing.order = Some(value),
            "limit" => listing.limit = Some(value),
            "cursor" => listing.cursor = Some(value),
            other => match other.strip_prefix("attr.") {
                Some(attribute) => {
                    listing.attributes.insert(attribute.into(), value);
                }
                None => return Err(WorkflowError::invalid(format!("there is no filter \"{other}\"")).into()),
            },
        }
    }
    Ok(listing)
}

async fn list(managing: Managing, Query(query): Query<BTreeMap<String, String>>) -> Answer {
    done(managing.workflows.manage_list(&listing(None, query)?).await?)
}

async fn list_type(
    managing: Managing,
    Path(kind): Path<String>,
    Query(query): Query<BTreeMap<String, String>>,
) -> Answer {
    done(managing.workflows.manage_list(&listing(Some(kind), query)?).await?)
}

async fn counts(managing: Managing, Query(query): Query<BTreeMap<String, String>>) -> Answer {
    done(managing.workflows.manage_counts(query.get("type").map(String::as_str)).await?)
}

async fn types(managing: Managing) -> Answer {
    done(managing.workflows.manage_types())
}

async fn register(
    managing: Managing,
    State(door): State<Arc<HttpDoor>>,
    Path(kind): Path<String>,
    request: Request,
) -> Answer {
    let remote: RemoteType = body(&door, request).await?;
    done(managing.workflows.manage_register(&kind, &remote).await?)
}

async fn reindex(managing: Managing) -> Answer {
    done(managing.workflows.manage_reindex().await?)
}

async fn resize(managing: Managing, Path(kind): Path<String>) -> Answer {
    done(managing.workflows.manage_resize(&kind).await?)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NewRun {
    id: Option<String>,
    #[serde(default)]
    payload: Value,
    attributes: Option<Value>,
}

async fn create(
    creating: Creating,
    State(door): State<Arc<HttpDoor>>,
    Path(kind): Path<String>,
    request: Request,
) -> Answer {
    let new: NewRun = body(&door, request).await?;
    let id = new.id.unwrap_or_else(|| uuid::Uuid::new_v4().to_string());
    let verb = Verb::Create { input: new.payload, attributes: new.attributes };
    let shown = creating.workflows.manage(&kind, &id, verb).await?;
    let status = if shown["created"] == json!(true) { StatusCode::CREATED } else { StatusCode::OK };
    // Who may create may not read: the run may have been there.
    let shown = match creating.is_admin {
        true => shown,
        false => json!({ "type": kind, "id": id, "created": shown["created"] }),
    };
    Ok((status, Json(shown)).into_response())
}

type Run = Path<(String, String)>;

async fn show(managing: Managing, Path((kind, id)): Run) -> Answer {
    done(managing.workflows.manage(&kind, &id, Verb::Get).await?)
}

async fn remove(managing: Managing, Path((kind, id)): Run) -> Answer {
    done(managing.workflows.manage(&kind, &id, Verb::Delete).await?)
}

async fn timeline(managing: Managing, Path((kind, id)): Run) -> Answer {
    done(managing.workflows.manage(&kind, &id, Verb::Timeline).await?)
}

/// Waits for the end of a run, for a bounded time: 200 if it has ended, 202 if it has not.
async fn wait(waiting: Waiting, Path((kind, id)): Run, Query(query): Query<BTreeMap<String, String>>) -> Answer {
    let limit = match query.get("timeout") {
        None => MAX_WAIT,
        Some(text) => parse_duration(text).map_err(|error| WorkflowError::invalid(error.to_string()))?,
    };
    let shown = waiting.workflows.manage(&kind, &id, Verb::Wait { limit }).await?;
    let has_ended = matches!(shown["status"].as_str(), Some("completed" | "errored" | "terminated"));
    Ok((if has_ended { StatusCode::OK } else { StatusCode::ACCEPTED }, Json(shown)).into_response())
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Sent {
    name: String,
    #[serde(default)]
    payload: Value,
    key: Option<String>,
}

async fn act(
    managing: Managing,
    State(door): State<Arc<HttpDoor>>,
    Path((kind, id, action)): Path<(String, String, String)>,
    request: Request,
) -> Answer {
    let verb = match action.as_str() {
        "pause" => Verb::Pause,
        "resume" => Verb::Resume,
        "terminate" => Verb::Terminate,
        "restart" => Verb::Restart,
        "events" => {
            let sent: Sent = body(&door, request).await?;
            Verb::Send { event: sent.name, payload: sent.payload, key: sent.key }
        }
        other => return Err(no_such("action", other).into()),
    };
    done(managing.workflows.manage(&kind, &id, verb).await?)
}

fn no_such(what: &str, name: &str) -> WorkflowError {
    let error = WorkflowError::new(Code::ResourceNotFound, format!("there is no {what} \"{name}\""));
    error.with_hint("GET /openapi.json describes all paths")
}

/// A worker asks for tasks, and waits for some.
async fn poll(waiting: Waiting, State(door): State<Arc<HttpDoor>>, request: Request) -> Answer {
    done(waiting.workflows.poll(&body(&door, request).await?).await?)
}

/// The worker protocol.
async fn task(
    managing: Managing,
    State(door): State<Arc<HttpDoor>>,
    Path(action): Path<String>,
    request: Request,
) -> Answer {
    let workflows = &managing.workflows;
    done(match action.as_str() {
        "heartbeat" => workflows.heartbeat(&body(&door, request).await?).await?,
        "step" => workflows.note_step(body(&door, request).await?).await?,
        "suspend" => workflows.suspend(body(&door, request).await?).await?,
        "finish" => workflows.finish(body(&door, request).await?).await?,
        "obey" => workflows.obey(&body(&door, request).await?).await?,
        other => return Err(no_such("task", other).into()),
    })
}

/// What a stream of updates stands at.
struct Following {
    workflows: Workflows,
    kind: String,
    id: String,
    after: i64,
    ready: VecDeque<Event>,
    live: broadcast::Receiver<Update>,
    has_ended: bool,
    _place: OwnedSemaphorePermit,
}

/// Server-sent events: what the run has told after `Last-Event-ID`, and what it tells. `close` is the last.
async fn updates(
    waiting: Waiting,
    Path((kind, id)): Run,
    Query(query): Query<BTreeMap<String, String>>,
    headers: HeaderMap,
) -> Answer {
    let last = headers.get("last-event-id").and_then(|value| value.to_str().ok()).map(str::to_owned);
    let after = match last.or_else(|| query.get("after").cloned()) {
        None => 0,
        Some(text) => {
            let bad = |_| WorkflowError::invalid(format!("Last-Event-ID is a number, not \"{text}\""));
            text.parse().map_err(bad)?
        }
    };
    // Nothing is kept for runs that there are not.
    waiting.workflows.get(&kind, &id).await?;
    let live = waiting.workflows.listen(&kind, &id)?;
    let following = Following {
        workflows: waiting.workflows,
        kind,
        id,
        after,
        ready: VecDeque::new(),
        live,
        has_ended: false,
        _place: waiting.place,
    };
    let stream = futures::stream::unfold(following, |mut following| async move {
        let event = following.next().await?;
        Some((Ok::<Event, std::convert::Infallible>(event), following))
    });
    Ok(Sse::new(stream).keep_alive(KeepAlive::default()).into_response())
}

impl Following {
    /// The next event; None when all has been said, or the database does not answer: then the client comes again, and
    /// goes on where it was.
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.has_ended {
                return None;
            }
            // Whether it has ended is asked first: what it told before that is there then.
            let run = self.workflows.get(&self.kind, &self.id).await.ok()?;
            let kept = self.workflows.updates(&self.kind, &self.id, self.after).await.ok()?;
            for update in &kept {
                self.after = update.seq.unwrap_or(self.after);
                self.ready.push_back(event_of(update));
            }
            if !kept.is_empty() {
                continue;
            }
            if run.status.is_terminal() {
                self.has_ended = true;
                self.ready.push_back(Event::default().event("close").data("{}"));
                continue;
            }
            match tokio::time::timeout(LOOK, self.live.recv()).await {
                // Those that are kept are read with their numbers.
                Ok(Ok(update)) if update.seq.is_none() => self.ready.push_back(event_of(&update)),
                Ok(Err(broadcast::error::RecvError::Closed)) => {
                    self.live = self.workflows.listen(&self.kind, &self.id).ok()?;
                }
                _ => {}
            }
        }
    }
}

fn event_of(update: &Update) -> Event {
    let event = Event::default().event(&update.name).data(&update.data);
    match update.seq {
        Some(seq) => event.id(seq.to_string()),
        None => event,
    }
}
