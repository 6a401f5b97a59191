//! Placements of tenants: which bucket and region each key has.
//!
//! A change names the state that it was made from, by `If-Match`; without it the answer is 428, and 412 when that state
//! is not the one of now. So of two administrators who change the same thing, one does, and the other looks again.

use super::gate::{Admin, Answer, Body, Refusal, done};
use axum::extract::{Path, RawQuery};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::IntoResponse;
use isles_cluster::placements::{Change, ChangeError, Changed, DEFAULT_TENANT, ETag, Migration, Placements};
use isles_kernel::error::SqlError;
use isles_kernel::placement::PlacementConfig;
use percent_encoding::percent_decode_str;
use serde::Deserialize;
use serde_json::{Value, json};
use std::sync::Arc;

/// Entries of a history that are shown at once.
const SHOWN_MAX: usize = 100;

/// What a query says, with the names that it may have.
struct Query(Vec<(String, String)>);

impl Query {
    fn read(query: Option<&str>, names: &[&str]) -> Result<Query, SqlError> {
        let mut found = Vec::new();
        for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !names.contains(&name) {
                let message = format!("there is no parameter \"{name}\"");
                return Err(SqlError::new("22023", message).with_hint(format!("parameters are {}", names.join(", "))));
            }
            let value = value.replace('+', " ");
            let value = percent_decode_str(&value).decode_utf8();
            let value = value.map_err(|_| SqlError::new("22021", format!("parameter \"{name}\" is not UTF-8")))?;
            found.push((name.to_owned(), value.into_owned()));
        }
        Ok(Query(found))
    }

    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    fn number(&self, name: &str) -> Result<Option<u64>, SqlError> {
        let number = |text: &str| text.parse().map_err(|_| SqlError::new("22023", format!("{name} is a whole number")));
        self.get(name).map(number).transpose()
    }

    fn tenant(&self) -> &str {
        self.get("tenant").unwrap_or(DEFAULT_TENANT)
    }
}

/// As it was sent: a key that is there twice is still there twice, and told.
fn text(config: &PlacementConfig) -> Result<String, SqlError> {
    serde_json::to_string(config).map_err(|fault| SqlError::new("22023", format!("Invalid payload: {fault}")))
}

fn placements(admin: &Admin) -> &Arc<Placements> {
    admin.database().placements()
}

/// The state that a change was made from.
fn if_match(headers: &HeaderMap) -> Result<ETag, Refusal> {
    let Some(value) = headers.get(header::IF_MATCH) else {
        let error = SqlError::new("22023", "the header If-Match is missing");
        let hint = "GET /admin/sharding/config answers with the ETag of now; one of a tenant without a record is \"0\"";
        return Err(Refusal::coded(StatusCode::PRECONDITION_REQUIRED, "PRECONDITION_REQUIRED", error.with_hint(hint)));
    };
    let etag = value.to_str().ok().and_then(ETag::parse);
    etag.ok_or_else(|| SqlError::new("22023", "If-Match is not an ETag of a placement").into())
}

fn refused(error: ChangeError) -> Refusal {
    match error {
        ChangeError::Stale { .. } => {
            Refusal::coded(StatusCode::PRECONDITION_FAILED, "PRECONDITION_FAILED", error.for_people())
        }
        ChangeError::Invalid(ref errors) => {
            let fields = json!(errors.errors());
            Refusal::coded(StatusCode::UNPROCESSABLE_ENTITY, "INVALID_CONFIG", error.for_people()).with_fields(fields)
        }
        ChangeError::Other(error) => error.into(),
    }
}

fn tagged(etag: ETag, answer: Answer) -> Answer {
    let mut answer = answer?.into_response();
    if let Ok(value) = HeaderValue::from_str(&etag.to_string()) {
        answer.headers_mut().insert(header::ETAG, value);
    }
    Ok(answer)
}

fn changed(tenant: &str, outcome: Result<Changed, ChangeError>) -> Answer {
    let Changed { etag, generation, number, config, warnings } = outcome.map_err(refused)?;
    let data = json!({
        "tenant": tenant,
        "etag": etag,
        "currentGeneration": generation,
        "entry": number,
        "config": config,
        "warnings": warnings,
    });
    tagged(etag, done(StatusCode::OK, &data))
}

pub(super) async fn show(admin: Admin, RawQuery(query): RawQuery) -> Answer {
    let query = Query::read(query.as_deref(), &["tenant"])?;
    let status = placements(&admin).status(query.tenant()).await?;
    let (etag, source, config) = placements(&admin).get(query.tenant()).await?;
    let data = json!({
        "tenant": query.tenant(),
        "etag": etag,
        "source": source.name(),
        "config": config,
        "generations": status.generations,
        "errors": status.errors.unwrap_or_default(),
    });
    tagged(etag, done(StatusCode::OK, &data))
}

pub(super) async fn put(
    admin: Admin,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Result<Body<PlacementConfig>, Refusal>,
) -> Answer {
    let query = Query::read(query.as_deref(), &["tenant", "reason"])?;
    let if_match = if_match(&headers)?;
    let Body(config) = body?;
    admin.note("put the placement", query.tenant());
    let change = Change { tenant: query.tenant(), by: &admin.role, if_match, reason: query.get("reason") };
    changed(query.tenant(), placements(&admin).put(&change, &text(&config)?).await)
}

/// What a migration changes, and why.
fn migration(mut body: Value) -> Result<(Migration, Option<String>), SqlError> {
    let invalid = |fault: String| SqlError::new("22023", format!("Invalid payload: {fault}"));
    let reason = match body.as_object_mut().and_then(|body| body.remove("reason")) {
        None | Some(Value::Null) => None,
        Some(Value::String(reason)) => Some(reason),
        Some(_) => return Err(invalid("reason is a text".to_owned())),
    };
    let migration = serde_json::from_value(body).map_err(|fault| invalid(fault.to_string()))?;
    Ok((migration, reason))
}

pub(super) async fn migrate(
    admin: Admin,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
    body: Result<Body<Value>, Refusal>,
) -> Answer {
    let query = Query::read(query.as_deref(), &["tenant", "reason"])?;
    let if_match = if_match(&headers)?;
    let Body(body) = body?;
    let (migration, reason) = migration(body)?;
    admin.note("migrate the placement", query.tenant());
    let reason = reason.as_deref().or(query.get("reason"));
    let change = Change { tenant: query.tenant(), by: &admin.role, if_match, reason };
    changed(query.tenant(), placements(&admin).migrate(&change, migration).await)
}

pub(super) async fn remove(
    admin: Admin,
    Path(number): Path<String>,
    RawQuery(query): RawQuery,
    headers: HeaderMap,
) -> Answer {
    let query = Query::read(query.as_deref(), &["tenant", "reason"])?;
    let if_match = if_match(&headers)?;
    let number: u32 = number.parse().map_err(|_| SqlError::new("22023", "a generation is a number"))?;
    admin.note("remove a generation of the placement", query.tenant());
    let change = Change { tenant: query.tenant(), by: &admin.role, if_match, reason: query.get("reason") };
    changed(query.tenant(), placements(&admin).remove_generation(&change, number).await)
}

pub(super) async fn validate(
    admin: Admin,
    RawQuery(query): RawQuery,
    body: Result<Body<PlacementConfig>, Refusal>,
) -> Answer {
    let query = Query::read(query.as_deref(), &["tenant"])?;
    let Body(config) = body?;
    let errors = match placements(&admin).validate(query.tenant(), &text(&config)?).await? {
        Ok(_) => json!([]),
        Err(errors) => json!(errors.errors()),
    };
    done(StatusCode::OK, &json!({ "valid": errors == json!([]), "errors": errors }))
}

/// What is tried.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Tried {
    Migration(TriedMigration),
    Config(Box<PlacementConfig>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct TriedMigration {
    migration: Value,
}

pub(super) async fn dry_run(admin: Admin, RawQuery(query): RawQuery, body: Result<Body<Tried>, Refusal>) -> Answer {
    let query = Query::read(query.as_deref(), &["tenant"])?;
    let Body(body) = body?;
    let run = match body {
        Tried::Migration(tried) => {
            placements(&admin).dry_run_migration(query.tenant(), migration(tried.migration)?.0).await
        }
        Tried::Config(config) => placements(&admin).dry_run(query.tenant(), &text(&config)?).await,
    };
    let run = run.map_err(refused)?;
    tagged(run.etag, done(StatusCode::OK, &run))
}

pub(super) async fn history(admin: Admin, RawQuery(query): RawQuery) -> Answer {
    let query = Query::read(query.as_deref(), &["tenant", "limit"])?;
    let limit = query.number("limit")?.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
    if limit.is_some_and(|limit| !(1..=SHOWN_MAX).contains(&limit)) {
        return Err(SqlError::new("22023", format!("limit is between 1 and {SHOWN_MAX}")).into());
    }
    done(StatusCode::OK, &placements(&admin).history(query.tenant(), limit).await?)
}

pub(super) async fn diff(admin: Admin, RawQuery(query): RawQuery) -> Answer {
    let query = Query::read(query.as_deref(), &["tenant", "from", "to"])?;
    let from = query.number("from")?.ok_or_else(|| SqlError::new("22023", "parameter \"from\" is missing"))?;
    done(StatusCode::OK, &placements(&admin).diff(query.tenant(), from, query.number("to")?).await?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn names_in_a_query_may_hold_anything() {
        let query = Query::read(Some("tenant=a%3Ab%20c+d&from=7"), &["tenant", "from"]).unwrap();
        assert_eq!((query.tenant(), query.number("from").unwrap()), ("a:b c d", Some(7)));
        assert_eq!(Query::read(None, &[]).unwrap().tenant(), "default");
        for bad in ["colour=1", "tenant=%ff"] {
            assert!(Query::read(Some(bad), &["tenant"]).is_err(), "{bad}");
        }
        assert!(Query::read(Some("from=x"), &["from"]).unwrap().number("from").is_err());
    }
}
