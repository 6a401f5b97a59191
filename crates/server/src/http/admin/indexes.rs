//! Global indexes: what they are, comparing and rebuilding them, jobs, and entries by hand.
//!
//! Fields have the names of SHOW INDEXES' columns and of jobs, with underscores.

use super::gate::{Admin, Answer, Body, Refusal, done};
use axum::extract::{Path, RawQuery};
use axum::http::StatusCode;
use isles_cluster::indexes::{EntryChange, EntryOutcome, IndexInfo, Job, PAGE_LIMIT, Verified};
use isles_cluster::session::Login;
use isles_kernel::error::SqlError;
use isles_kernel::names::ShardId;
use serde::Deserialize;
use serde_json::{Map, Value, json};

/// Entries of a page, if not said.
const ENTRIES: usize = 100;

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct Verify {
    #[serde(default)]
    repair: bool,
    /// All, if nothing is said.
    #[serde(default)]
    shards: Vec<String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

fn shown(info: &IndexInfo) -> Value {
    json!({
        "index": info.name,
        "table": info.table,
        "unique": info.unique,
        "state": info.state,
        "used": info.is_used,
        "lag": info.lag,
        "lag_ms": info.lag_ms,
        "pending": info.pending,
        "shards_built": info.shards.0,
        "shards": info.shards.1,
        "rows_built": info.rows_built,
        "rows_total": info.rows_total,
        "waits_for": info.waits,
        "lookups": info.lookups,
        "verified_at": info.verified_at,
        "differences": info.differences,
        "entries": info.entries_then,
        "applied": info.applied.iter().map(|(shard, seq)| (shard.to_string(), json!(seq.0))).collect::<Map<_, _>>(),
        "error": info.error,
    })
}

fn named(name: String) -> Result<ShardId, SqlError> {
    ShardId::new(name).map_err(|error| SqlError::new("22023", error.to_string()))
}

pub(super) async fn list(admin: Admin) -> Answer {
    let infos = admin.database().global_indexes().await?;
    done(StatusCode::OK, &infos.iter().map(shown).collect::<Vec<_>>())
}

pub(super) async fn show(admin: Admin, Path(name): Path<String>) -> Answer {
    let entries = admin.database().entries_of_index(&name)?;
    let infos = admin.database().global_indexes().await?;
    let gone = || SqlError::new("42704", format!("there is no global index \"{name}\""));
    let info = infos.iter().find(|info| info.entries == entries).ok_or_else(gone)?;
    done(StatusCode::OK, &shown(info))
}

pub(super) async fn verify(admin: Admin, Path(name): Path<String>, body: Result<Body<Verify>, Refusal>) -> Answer {
    let Body(Verify { repair, shards }) = body?;
    let database = admin.database();
    let entries = database.entries_of_index(&name)?;
    let shards = shards.into_iter().map(named).collect::<Result<Vec<_>, _>>()?;
    let known = database.shard_names();
    if let Some(unknown) = shards.iter().find(|shard| !known.contains(shard)) {
        return Err(SqlError::new("42704", format!("there is no shard {unknown}")).into());
    }
    if repair {
        admin.note("repair an index", &name);
    }
    let found = match shards.is_empty() {
        true => database.verify_index(&entries, repair).await?,
        false => database.verify_index_on(&entries, &shards, repair).await?,
    };
    done(StatusCode::OK, &verified(&found))
}

/// What was found, with some of the differences.
fn verified(found: &Verified) -> Value {
    let told = found.told.iter().map(|(key, bucket, is, should)| {
        json!({"key_value": format!("\\x{key}"), "bucket": bucket, "counted": is, "rows": should})
    });
    let mut shown = json!(found);
    shown["some"] = told.collect();
    shown
}

pub(super) async fn rebuild(admin: Admin, Path(name): Path<String>, body: Result<Body<Nothing>, Refusal>) -> Answer {
    let Body(Nothing {}) = body?;
    let entries = admin.database().entries_of_index(&name)?;
    admin.note("rebuild an index", &name);
    admin.database().rebuild_index(&entries).await?;
    done(StatusCode::ACCEPTED, &json!({ "index": name }))
}

/// Goes the way of `DROP INDEX`, which waits for whoever uses the table.
pub(super) async fn remove(admin: Admin, Path(name): Path<String>) -> Answer {
    admin.database().entries_of_index(&name)?;
    admin.note("drop an index", &name);
    let quoted: Vec<String> = name.split('.').map(|part| format!("\"{}\"", part.replace('"', "\"\""))).collect();
    let login = Login {
        user: admin.role.clone(),
        database: crate::serve::FIRST_ROLE.to_owned(),
        settings: Vec::new(),
        role: isles_cluster::roles::Role { admin: true, ..Default::default() },
    };
    let mut session = admin.database().session(login)?;
    let dropped = async {
        let prepared = session.prepare(&format!("DROP INDEX {}", quoted.join(".")), &[]).await?;
        session.execute(&prepared, Vec::new()).await.map(drop)
    };
    let dropped: Result<(), SqlError> = dropped.await;
    session.close().await;
    dropped?;
    done(StatusCode::OK, &json!({ "index": name }))
}

pub(super) async fn jobs(admin: Admin) -> Answer {
    done(StatusCode::OK, &admin.database().index_jobs())
}

pub(super) async fn enqueue(admin: Admin, body: Result<Body<Value>, Refusal>) -> Answer {
    let Body(job) = body?;
    let job = Job::from_json(job)?;
    admin.note("enqueue an index job", &job.table_name);
    done(StatusCode::ACCEPTED, &admin.database().enqueue_index_job(job)?)
}

pub(super) async fn entries(admin: Admin, Path(name): Path<String>, RawQuery(query): RawQuery) -> Answer {
    let (mut shard, mut cursor, mut limit) = (None, None, ENTRIES);
    for pair in query.as_deref().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let (field, value) = pair.split_once('=').unwrap_or((pair, ""));
        match field {
            "shard" => shard = Some(named(value.to_owned())?),
            "cursor" => cursor = Some(value).filter(|value| !value.is_empty()),
            "limit" => limit = value.parse().map_err(|_| SqlError::new("22023", "limit is a whole number"))?,
            _ => {
                let error = SqlError::new("22023", format!("there is no parameter \"{field}\""));
                return Err(error.with_hint("parameters are shard, cursor, limit").into());
            }
        }
    }
    let missing = || SqlError::new("22023", "parameter \"shard\" is missing").with_hint("?shard=s0");
    let shard = shard.ok_or_else(missing)?;
    if !PAGE_LIMIT.contains(&limit) {
        let (low, high) = (PAGE_LIMIT.start(), PAGE_LIMIT.end());
        return Err(SqlError::new("22023", format!("limit is between {low} and {high}")).into());
    }
    done(StatusCode::OK, &admin.database().index_entries(&name, &shard, cursor, limit).await?)
}

pub(super) async fn maintain(admin: Admin, body: Result<Body<Value>, Refusal>) -> Answer {
    let Body(batch) = body?;
    let changes = EntryChange::from_json(batch)?;
    admin.note("maintain entries", &changes.len().to_string());
    let outcomes: Vec<EntryOutcome> = admin.database().maintain_entries(&changes).await?;
    done(StatusCode::OK, &json!({ "outcomes": outcomes }))
}
