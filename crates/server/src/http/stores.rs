//! `/stores`: records that expire, by HTTP.
//!
//! ```text
//! GET  /stores                        which stores there are
//! POST /stores/{store}/{operation}    put, get, take, …: the arguments are the body, the outcome is the answer
//! ```
//!
//! Roles and tenants are those of `/sql`. The tenant is the role's, or the one that the request says; an id of another
//! tenant is like one that is not there. `x-isles-region` says where the request comes from: new records with random keys
//! are stored there.

use super::sql::{credentials, refusal, settings};
use super::{HttpDoor, Peer};
use axum::extract::rejection::BytesRejection;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use bytes::Bytes;
use isles_cluster::session::rights::Rank;
use isles_cluster::session::{Login, Session};
use isles_kernel::error::SqlError;
use isles_stores::MAX_VALUE_BYTES;
use isles_stores::commands::{Given, operation};
use isles_stores::procedures::{region_of, tenant_of};
use serde_json::{Value as Json, json};
use std::sync::Arc;

/// A body is a value and some names; as JSON in JSON a value may be twice as long.
const BODY_BYTES: usize = 4 * MAX_VALUE_BYTES;

pub(super) fn routes() -> Vec<(&'static str, MethodRouter<Arc<HttpDoor>>)> {
    vec![
        ("/stores", get(list)),
        ("/stores/{store}/{operation}", post(operate).layer(DefaultBodyLimit::max(BODY_BYTES))),
    ]
}

/// Who asks. The session says what its role may do and which tenant it is for.
async fn session(door: &HttpDoor, peer: Peer, headers: &HeaderMap) -> Result<Session, SqlError> {
    let (user, password) = credentials(headers)?;
    let role = door.logins.with_password(&user, &password, peer.0.ip()).await?;
    let database = crate::serve::FIRST_ROLE.to_owned();
    door.backend.session(Login { user, database, settings: settings(headers)?, role })
}

fn answered(result: Result<Json, SqlError>) -> Response {
    match result {
        Ok(answer) => (status_of_outcome(&answer), axum::Json(answer)).into_response(),
        Err(error) => refusal(&error),
    }
}

fn status_of_outcome(answer: &Json) -> StatusCode {
    match answer["outcome"].as_str() {
        Some("not_found") => StatusCode::NOT_FOUND,
        Some("expired" | "revoked") => StatusCode::GONE,
        Some("used" | "replayed" | "conflict") => StatusCode::CONFLICT,
        Some("ok") | None => StatusCode::OK,
        // Whatever a poll is told that is no grant.
        Some(_) => StatusCode::BAD_REQUEST,
    }
}

async fn list(State(door): State<Arc<HttpDoor>>, ConnectInfo(peer): ConnectInfo<Peer>, headers: HeaderMap) -> Response {
    let listed = async {
        if session(&door, peer, &headers).await?.rank() == Rank::Tenant {
            return Err(SqlError::new("42501", "permission denied to list stores"));
        }
        let stores = door.backend.stores().list();
        let stores: Vec<Json> = stores.iter().map(|store| json!(store.config())).collect();
        Ok(json!({ "stores": stores }))
    };
    answered(listed.await)
}

async fn operate(
    State(door): State<Arc<HttpDoor>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Path((store, name)): Path<(String, String)>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    answered(run(&door, peer, (&store, &name), &headers, body).await)
}

async fn run(
    door: &HttpDoor,
    peer: Peer,
    (store, name): (&str, &str),
    headers: &HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json, SqlError> {
    let _place = Arc::clone(&door.requests)
        .try_acquire_owned()
        .map_err(|_| SqlError::new("53300", "too many requests at once").with_hint("Try again."))?;
    let session = session(door, peer, headers).await?;
    let (tenant, near) = (tenant_of(&session)?, region_of(&session)?);
    session.close().await;
    let body = body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => SqlError::new("54000", "the request's body is too large"),
        _ => SqlError::new("08P01", "the request's body cannot be read"),
    })?;
    let Some(operation) = operation(name) else {
        return Err(SqlError::new("42883", format!("there is no operation {name}")));
    };
    let body: &[u8] = if body.is_empty() { b"{}" } else { &body };
    let given = serde_json::from_slice(body)
        .map_err(|fault| SqlError::new("22023", format!("the request's body is not a JSON object: {fault}")))?;
    door.backend.stores().desk().near(near).command(&tenant, store, operation, Given(given)).await
}
