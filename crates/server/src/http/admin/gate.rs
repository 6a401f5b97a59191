//! Who may, what a body is, how answers and refusals look.
//!
//!     a place ─► credentials ─► an administrator ─► body ─► {"success": true, "data": …}
//!         └──────────┴──────────────┴─────────────┴──────► {"success": false, "error": {"code", "message", "hint"}}
//!
//! Nothing is read of a body before its sender is known to be an administrator (I-54, I-59).

use super::super::answer::{error_json, status_of};
use super::super::sql::{credentials, with_advice};
use super::super::{HttpDoor, Peer};
use axum::Json;
use axum::extract::rejection::BytesRejection;
use axum::extract::{ConnectInfo, FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use isles_cluster::database::Database;
use isles_cluster::roles::Role;
use isles_kernel::error::SqlError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;

/// A request of an administrator.
pub(super) struct Admin {
    pub(super) door: Arc<HttpDoor>,
    pub(super) role: String,
    _place: OwnedSemaphorePermit,
}

impl Admin {
    pub(super) fn database(&self) -> &Arc<Database> {
        self.door.backend.database()
    }

    /// Notes who does what, before it is done.
    pub(super) fn note(&self, what: &str, object: &str) {
        tracing::info!(role = %self.role, object, "admin: {what}");
    }
}

impl FromRequestParts<Arc<HttpDoor>> for Admin {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, door: &Arc<HttpDoor>) -> Result<Admin, Refusal> {
        let (role, found, place) = admitted(parts, door).await?;
        match found.admin && !found.is_locked() {
            true => Ok(Admin { door: Arc::clone(door), role, _place: place }),
            false => Err(SqlError::new("42501", "permission denied: this is for administrators").into()),
        }
    }
}

/// One who has logged in, and a place for the request.
pub(in super::super) async fn admitted(
    parts: &mut Parts,
    door: &Arc<HttpDoor>,
) -> Result<(String, Role, OwnedSemaphorePermit), Refusal> {
    let place = Arc::clone(&door.requests).try_acquire_owned();
    let place = place.map_err(|_| SqlError::new("53300", "too many requests at once").with_hint("Try again."))?;
    let ConnectInfo(peer) = ConnectInfo::<Peer>::from_request_parts(parts, door)
        .await
        .map_err(|_| SqlError::new("XX000", "the client's address is not known"))?;
    let (role, password) = credentials(&parts.headers)?;
    let found = door.logins.with_password(&role, &password, peer.0.ip()).await?;
    Ok((role, found, place))
}

/// A body of JSON; an empty one is an empty object.
pub(in super::super) struct Body<T>(pub(in super::super) T);

impl<T: DeserializeOwned> FromRequest<Arc<HttpDoor>> for Body<T> {
    type Rejection = Refusal;

    async fn from_request(request: Request, door: &Arc<HttpDoor>) -> Result<Body<T>, Refusal> {
        let bytes =
            Bytes::from_request(request, door).await.map_err(|rejection: BytesRejection| match rejection.status() {
                StatusCode::PAYLOAD_TOO_LARGE => Refusal::too_large(),
                _ => SqlError::new("08P01", "the request's body cannot be read").into(),
            })?;
        let text = if bytes.iter().all(u8::is_ascii_whitespace) { b"{}" } else { &bytes[..] };
        let invalid = |fault| SqlError::new("22023", format!("Invalid payload: {fault}"));
        serde_json::from_slice(text).map(Body).map_err(|fault| invalid(fault).into())
    }
}

pub(super) fn answer(body: serde_json::Value) -> Response {
    Json(body).into_response()
}

/// What is answered when it is done.
pub(super) fn done(status: StatusCode, data: &impl Serialize) -> Answer {
    Ok((status, Json(json!({"success": true, "data": data}))).into_response())
}

pub(super) type Answer = Result<Response, Refusal>;

/// Why nothing was done.
#[derive(Debug)]
pub(in super::super) struct Refusal {
    status: StatusCode,
    code: &'static str,
    /// Boxed: most answers are none.
    error: Box<SqlError>,
    /// What is wrong with each field, where that is known.
    fields: Option<serde_json::Value>,
}

impl Refusal {
    pub(super) fn coded(status: StatusCode, code: &'static str, error: SqlError) -> Refusal {
        Refusal { status, code, error: Box::new(error), fields: None }
    }

    pub(super) fn with_fields(self, fields: serde_json::Value) -> Refusal {
        Refusal { fields: Some(fields), ..self }
    }

    fn too_large() -> Refusal {
        let error = SqlError::new("54000", "the request's body is too large");
        Refusal::coded(StatusCode::PAYLOAD_TOO_LARGE, error.sqlstate, error)
    }

    /// Of a command to a plan, with the codes of the runbook.
    pub(super) fn of_plan(error: SqlError) -> Refusal {
        let code = match error.sqlstate {
            "22023" => "INVALID_SPLIT",
            "55000" => "INVALID_PHASE",
            "42704" => "SPLIT_NOT_FOUND",
            other => other,
        };
        Refusal { code, ..error.into() }
    }

    /// A body that could not be read, on a path about plans.
    pub(super) fn renamed(self) -> Refusal {
        let code = if self.code == "22023" { "INVALID_SPLIT" } else { self.code };
        Refusal { code, ..self }
    }

    /// Of a new plan: there is no phase yet that could be wrong.
    pub(super) fn of_order(error: SqlError) -> Refusal {
        let code = if error.sqlstate == "22023" { "INVALID_SPLIT" } else { error.sqlstate };
        Refusal { code, ..error.into() }
    }
}

impl From<SqlError> for Refusal {
    fn from(error: SqlError) -> Refusal {
        let status = match error.sqlstate {
            "42704" | "42P01" => StatusCode::NOT_FOUND,
            "42710" | "54000" | "55000" | "55006" => StatusCode::CONFLICT,
            _ => status_of(&error),
        };
        Refusal::coded(status, error.sqlstate, error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut body = error_json(&self.error);
        body["success"] = json!(false);
        body["error"]["code"] = json!(self.code);
        body["error"]["sqlstate"] = json!(self.error.sqlstate);
        if let Some(fields) = self.fields {
            body["error"]["fields"] = fields;
        }
        with_advice((self.status, Json(body)).into_response(), &self.error)
    }
}

pub(in super::super) async fn no_such_path() -> Response {
    let error = SqlError::new("42704", "there is no such path").with_hint("GET /openapi.json describes all paths");
    Refusal { code: "NOT_FOUND", ..error.into() }.into_response()
}

pub(in super::super) async fn no_such_verb() -> Response {
    let error = SqlError::new("0A000", "this path does not answer to this verb");
    let status = StatusCode::METHOD_NOT_ALLOWED;
    Refusal::coded(status, "METHOD_NOT_ALLOWED", error.with_hint("GET /openapi.json describes all paths"))
        .into_response()
}
