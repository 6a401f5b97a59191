//! Routes: those of a fragment, and `/_internal`.
//!
//! A request begins with an unset shard. The resolver reads it from what the request is authenticated by, before the
//! handler of any route runs, the internal ones' neither; a path that no route has is not resolved. A store with the strategy `row` is not mounted
//! without a resolver.
//!
//! ```text
//! GET  /_internal            what there is: partition, schemas, routes
//! GET  /_internal/outbox     entries behind a cursor; waits for them if asked to
//! GET  /_internal/snapshot   rows
//! POST /_internal/sync       commands
//! ```

use crate::context::ShardContext;
use crate::error::{Code, Error, Refusal, Result, refused};
use crate::shard::{Shard, Strategy};
use crate::store::Store;
use async_trait::async_trait;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use isles_kernel::sync::{self, MAX_SUBMIT_BYTES, OutboxQuery, SnapshotQuery, SubmitRequest};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Reads the shard of a request from what it is authenticated by.
#[async_trait]
pub trait Resolver: Send + Sync + 'static {
    async fn resolve(&self, request: &Parts) -> Result<Shard>;
}

/// `Authorization: Bearer {shard}.{end}.{tag}`, signed by a secret of the application, and valid until its end.
pub struct SignedToken(ring::hmac::Key);

impl SignedToken {
    pub fn new(secret: &[u8]) -> SignedToken {
        SignedToken(ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret))
    }

    /// The token of a shard for a while, for those who have logged in.
    pub fn token(&self, shard: &Shard, valid: Duration) -> String {
        let end = now_s().saturating_add(valid.as_secs());
        let signed = format!("{}.{end}", BASE64.encode(shard.key()));
        let tag = ring::hmac::sign(&self.0, signed.as_bytes());
        format!("{signed}.{}", BASE64.encode(tag))
    }

    fn read(&self, token: &str, now_s: u64) -> Option<Shard> {
        let (signed, tag) = token.rsplit_once('.')?;
        // In constant time.
        ring::hmac::verify(&self.0, signed.as_bytes(), &BASE64.decode(tag).ok()?).ok()?;
        let (name, end) = signed.split_once('.')?;
        if end.parse::<u64>().ok()? <= now_s {
            return None;
        }
        let key = String::from_utf8(BASE64.decode(name).ok()?).ok()?;
        match key.strip_prefix('s') {
            Some(name) => Shard::named(name).ok(),
            None => Some(Shard::None),
        }
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[async_trait]
impl Resolver for SignedToken {
    async fn resolve(&self, request: &Parts) -> Result<Shard> {
        let text = |headers: &HeaderMap| Some(headers.get(header::AUTHORIZATION)?.to_str().ok()?.to_string());
        let token = text(&request.headers).and_then(|value| Some(value.strip_prefix("Bearer ")?.trim().to_string()));
        token
            .and_then(|token| self.read(&token, now_s()))
            .ok_or_else(|| refused(Code::Unauthenticated, "the request has no valid token"))
    }
}

/// Believes a header. **For tests, and behind a proxy that sets it itself**: whoever can send the header chooses the shard.
pub struct HeaderForTests(pub &'static str);

#[async_trait]
impl Resolver for HeaderForTests {
    async fn resolve(&self, request: &Parts) -> Result<Shard> {
        let value = request.headers.get(self.0);
        let value = value.ok_or_else(|| refused(Code::ShardUnset, format!("the request has no header {}", self.0)))?;
        let name = value.to_str().map_err(|_| refused(Code::ShardInvalid, "the shard is not a text"))?;
        Shard::named(name)
    }
}

#[derive(Clone)]
struct Mounted {
    store: Store,
    resolver: Option<Arc<dyn Resolver>>,
}

/// Routes of fragments together with `/_internal`, all of them in the shard of their request.
pub fn mount(store: &Store, resolver: Option<Arc<dyn Resolver>>, routes: Router) -> Result<Router> {
    if resolver.is_none() && store.strategy() == Some(Strategy::Row) {
        return Err(refused(Code::ResolverRequired, "the strategy row needs a resolver")
            .with_hint("say how a request is authenticated, and whose shard that is"));
    }
    let mounted = Mounted { store: store.clone(), resolver };
    let internal = Router::new()
        .route("/_internal", get(describe))
        .route("/_internal/outbox", get(outbox))
        .route("/_internal/snapshot", get(snapshot))
        .route("/_internal/sync", post(submit))
        .layer(DefaultBodyLimit::max(MAX_SUBMIT_BYTES))
        .with_state(store.clone());
    Ok(routes.merge(internal).layer(middleware::from_fn_with_state(mounted, in_shard)))
}

async fn in_shard(State(mounted): State<Mounted>, request: Request<Body>, next: Next) -> Response {
    let Mounted { store, resolver } = mounted;
    let (parts, body) = request.into_parts();
    let resolved = match &resolver {
        Some(resolver) => resolver.resolve(&parts).await.map(Some),
        None => Ok(None),
    };
    let request = Request::from_parts(parts, body);
    match (resolved, store.strategy()) {
        (Err(error), _) => error.into_response(),
        (Ok(Some(shard)), _) => ShardContext.with(shard, || next.run(request)).await,
        // Routes of an unshared database, or of one whose fragments set the shard themselves.
        (Ok(None), _) => ShardContext.fresh(|| next.run(request)).await,
    }
}

impl IntoResponse for Error {
    /// Status and code as [`Error::http`] has them: clients know most of the codes, and go by the status of the others.
    fn into_response(self) -> Response {
        let (status, code) = self.http();
        let mut error = serde_json::json!({ "code": code, "message": self.public_message() });
        if let Error::Refused(Refusal { hint: Some(hint), .. }) = &self {
            error["hint"] = hint.as_str().into();
        }
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::json!({ "error": error }).to_string();
        (status, [(header::CONTENT_TYPE, "application/json")], body).into_response()
    }
}

fn json(value: &impl serde::Serialize) -> Response {
    match serde_json::to_string(value) {
        Ok(body) => ([(header::CONTENT_TYPE, "application/json")], body).into_response(),
        Err(error) => refused(Code::InvalidValue, error.to_string()).into_response(),
    }
}

/// A query's values need no escape; one that has some is not ours.
fn pairs(uri: &Uri) -> Vec<(&str, &str)> {
    let query = uri.query().unwrap_or_default();
    query.split('&').filter(|pair| !pair.is_empty()).map(|pair| pair.split_once('=').unwrap_or((pair, ""))).collect()
}

fn number<T: std::str::FromStr>(name: &str, value: &str) -> Result<Option<T>> {
    let number = value.parse().map_err(|_| refused(Code::InvalidRequest, format!("{name} is not a number")))?;
    Ok(Some(number))
}

fn unknown(name: &str) -> Error {
    refused(Code::InvalidRequest, format!("there is no parameter {name}"))
}

fn outbox_query(uri: &Uri) -> Result<OutboxQuery> {
    let mut query = OutboxQuery::default();
    for (name, value) in pairs(uri) {
        match name {
            "after" => {
                let cursor = value.parse().map_err(|_| refused(Code::InvalidCursor, "this is not a cursor"))?;
                query.after = Some(cursor);
            }
            "limit" => query.limit = number(name, value)?,
            "wait_ms" => query.wait_ms = number(name, value)?,
            "partition" => query.partition = Some(partition(value)?),
            _ => return Err(unknown(name)),
        }
    }
    Ok(query)
}

fn partition(value: &str) -> Result<sync::PartitionId> {
    value.parse().map_err(|_| refused(Code::InvalidRequest, "this is not a partition"))
}

fn snapshot_query(uri: &Uri) -> Result<SnapshotQuery> {
    let mut query = SnapshotQuery::default();
    for (name, value) in pairs(uri) {
        match name {
            "after" => {
                let token = value.parse().map_err(|_| refused(Code::InvalidCursor, "this is not a token"))?;
                query.after = Some(token);
            }
            "limit" => query.limit = number(name, value)?,
            "partition" => query.partition = Some(partition(value)?),
            _ => return Err(unknown(name)),
        }
    }
    Ok(query)
}

async fn describe(State(store): State<Store>) -> Response {
    let described = || -> Result<serde_json::Value> {
        let access = store.scoped()?;
        let schemas: Vec<serde_json::Value> = store
            .fragments()
            .iter()
            .map(|(key, fragment)| {
                let published = fragment.schema.tables().filter(|table| fragment.publishes(&table.name));
                let tables: Vec<&str> = published.map(|table| table.name.as_str()).collect();
                serde_json::json!({ "schema": key, "version": fragment.schema.version(), "tables": tables })
            })
            .collect();
        Ok(serde_json::json!({ "partition": store.partition(access.owner())?, "schemas": schemas }))
    };
    match described() {
        Ok(body) => json(&body),
        Err(error) => error.into_response(),
    }
}

async fn outbox(State(store): State<Store>, uri: Uri) -> Response {
    let page = match outbox_query(&uri) {
        Ok(query) => store.outbox(&query).await,
        Err(error) => Err(error),
    };
    page.map_or_else(IntoResponse::into_response, |page| json(&page))
}

async fn snapshot(State(store): State<Store>, uri: Uri) -> Response {
    let page = match snapshot_query(&uri) {
        Ok(query) => store.snapshot(&query).await,
        Err(error) => Err(error),
    };
    page.map_or_else(IntoResponse::into_response, |page| json(&page))
}

async fn submit(State(store): State<Store>, body: Bytes) -> Response {
    let request = SubmitRequest::read(&body).map_err(|error| match error {
        sync::InvalidSubmit::TooLarge(_) => refused(Code::TooLarge, error.to_string()),
        other => refused(Code::InvalidRequest, other.to_string()),
    });
    let answer = match request {
        Ok(request) => store.submit(&request).await,
        Err(error) => Err(error),
    };
    answer.map_or_else(IntoResponse::into_response, |answer| json(&answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A token is good until its end, and its end is signed with it.
    #[test]
    fn tokens_end() {
        let tokens = SignedToken::new(b"secret");
        let acme = Shard::named("acme").unwrap();
        let token = tokens.token(&acme, Duration::from_secs(60));
        let end: u64 = token.split('.').nth(1).unwrap().parse().unwrap();
        assert_eq!(tokens.read(&token, end - 1), Some(acme));
        assert_eq!(tokens.read(&token, end), None);
        let longer = token.replace(&end.to_string(), &(end + 60).to_string());
        assert_eq!(tokens.read(&longer, end), None);
        assert_eq!(SignedToken::new(b"other").read(&token, end - 1), None);
    }

    /// Routes answer with the status and the code of the error, and hints with it.
    #[tokio::test]
    async fn answers_have_the_codes_of_their_errors() {
        use isles_kernel::error::SqlError;
        for (error, status, code) in [
            (Error::Conflict("x".into()), 409, "conflict"),
            (Error::MayHaveHappened("x".into()), 503, "may_have_happened"),
            (Error::Database(SqlError::new("XX000", "of another tenant")), 500, "database_error"),
            (Error::broken(crate::error::Rule::Unique), 422, "constraint"),
            (refused(Code::ShardNotBound, "x"), 403, "shard_not_bound"),
            (refused(Code::GlobalScope, "x").with_hint("a hint"), 403, "global_scope"),
            (refused(Code::ResyncRequired, "x"), 410, "resync_required"),
        ] {
            let response = error.into_response();
            assert_eq!(response.status().as_u16(), status);
            let body = axum::body::to_bytes(response.into_body(), 1_000).await.unwrap();
            let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
            assert_eq!(body["error"]["code"], code);
            assert!(!body.to_string().contains("of another tenant"), "a database's words are not for clients");
            assert_eq!(body["error"].get("hint").is_some(), code == "global_scope");
        }
    }
}
