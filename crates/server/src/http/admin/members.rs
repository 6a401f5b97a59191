//! Shards that come, are emptied, and go.

use super::gate::{Admin, Answer, Body, Refusal, done};
use axum::extract::{Path, RawQuery};
use axum::http::StatusCode;
use isles_cluster::database::{NewShard, ShardPlace};
use isles_kernel::error::SqlError;
use isles_kernel::moves::Weigh;
use isles_kernel::names::{RegionName, ShardId};
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub(super) struct NewMember {
    name: Option<String>,
    /// Of a PostgreSQL database; a SQLite file if there is none.
    url: Option<String>,
    region: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct Drain {
    /// To all others, if nothing is said.
    #[serde(default)]
    to: Vec<String>,
}

fn named(name: String) -> Result<ShardId, SqlError> {
    ShardId::new(name).map_err(|error| SqlError::new("22023", error.to_string()))
}

pub(super) async fn list(admin: Admin) -> Answer {
    done(StatusCode::OK, &admin.database().shard_infos())
}

pub(super) async fn add(admin: Admin, body: Result<Body<NewMember>, Refusal>) -> Answer {
    let Body(new) = body?;
    let name = new.name.map(named).transpose()?;
    let place = new.url.map_or(ShardPlace::Sqlite, |url| ShardPlace::Postgres { url });
    let region = new.region.map(RegionName::new).transpose();
    let region = region.map_err(|error| SqlError::new("22023", error.to_string()))?;
    admin.note("add a shard", name.as_ref().map_or("", ShardId::as_str));
    let name = admin.database().add_shard(NewShard { name, place, region }).await?;
    done(StatusCode::CREATED, &json!({ "shard": name }))
}

pub(super) async fn drain(admin: Admin, Path(name): Path<String>, body: Result<Body<Drain>, Refusal>) -> Answer {
    let Body(drain) = body?;
    let name = named(name)?;
    let to = drain.to.into_iter().map(named).collect::<Result<Vec<_>, _>>()?;
    admin.note("drain", name.as_str());
    admin.database().drain_shard(&name, to).await?;
    done(StatusCode::ACCEPTED, &json!({ "shard": name }))
}

pub(super) async fn resume(admin: Admin, Path(name): Path<String>) -> Answer {
    let name = named(name)?;
    admin.note("resume", name.as_str());
    admin.database().resume_shard(&name).await?;
    done(StatusCode::OK, &json!({ "shard": name }))
}

pub(super) async fn remove(admin: Admin, Path(name): Path<String>) -> Answer {
    let name = named(name)?;
    admin.note("remove", name.as_str());
    admin.database().remove_shard(&name).await?;
    done(StatusCode::OK, &json!({ "shard": name }))
}

pub(super) async fn proposals(admin: Admin, RawQuery(query): RawQuery) -> Answer {
    let unknown = || SqlError::new("22023", "shards are weighed by rows, buckets or load").with_hint("?by=rows");
    let by = match query.as_deref().filter(|query| !query.is_empty()) {
        None => Weigh::default(),
        Some(query) => query.strip_prefix("by=").and_then(Weigh::named).ok_or_else(unknown)?,
    };
    done(StatusCode::OK, &admin.database().propose_moves(by).await?)
}
