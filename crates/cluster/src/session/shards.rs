//! Statements about shards: what an operator says when there are too few of them, or too many.

use super::plans::{number_field, text_field};
use super::{Answer, Result, Rows, Session};
use crate::database::{NewShard, Owned, ShardPlace};
use isles_kernel::error::SqlError;
use isles_kernel::moves::{Proposal, Units};
use isles_kernel::value::Value;
use isles_sql::bind::utility::ShardStatement;
use isles_sql::tree::Field;

/// The columns of a statement's answer.
pub(super) fn fields(statement: &ShardStatement) -> Option<Vec<Field>> {
    match statement {
        ShardStatement::Create { .. } => Some(vec![text_field("shard")]),
        ShardStatement::Rebalance { .. } => {
            let mut fields: Vec<Field> = ["kind", "what", "source", "target"].map(text_field).into();
            fields.extend([number_field("weight"), text_field("units")]);
            Some(fields)
        }
        _ => None,
    }
}

impl Session {
    pub(super) async fn change_shards(&mut self, statement: &ShardStatement) -> Result<Answer> {
        if self.in_block() || self.has_begun().await {
            return Err(SqlError::new("25001", "shards cannot be changed inside a transaction block"));
        }
        let tag = statement.command_tag();
        let rows = match statement {
            ShardStatement::Create { name, url, region } => {
                let place = match url {
                    Some(url) => ShardPlace::Postgres { url: url.clone() },
                    None => ShardPlace::Sqlite,
                };
                let name =
                    self.database.add_shard(NewShard { name: name.clone(), place, region: region.clone() }).await?;
                vec![vec![Value::text(name.as_str())]]
            }
            ShardStatement::Drain { name, to } => {
                self.database.drain_shard(name, to.clone()).await?;
                return Ok(Answer::Done { tag: tag.into() });
            }
            ShardStatement::Locate { name, region } => {
                self.database.locate_shard(name, region).await?;
                return Ok(Answer::Done { tag: tag.into() });
            }
            ShardStatement::Resume { name } => {
                self.database.resume_shard(name).await?;
                return Ok(Answer::Done { tag: tag.into() });
            }
            ShardStatement::Drop { name } => {
                self.database.remove_shard(name).await?;
                return Ok(Answer::Done { tag: tag.into() });
            }
            ShardStatement::Rebalance { by } => self.database.propose_moves(*by).await?.iter().map(proposed).collect(),
        };
        Ok(Answer::Rows(Rows::new(fields(statement).unwrap_or_default(), rows, tag.into())))
    }
}

/// The last column is for programs: a name may have anything in it that stands between names.
fn proposed(proposal: &Proposal) -> Vec<Value> {
    let kind = match &proposal.units {
        Units::Tenants { .. } => "tenants",
        Units::Buckets { .. } => "buckets",
    };
    vec![
        Value::text(kind),
        Value::Text(proposal.units.to_string()),
        Value::text(proposal.source.as_str()),
        Value::text(proposal.target.as_str()),
        Value::Int(i64::try_from(proposal.weight).unwrap_or(i64::MAX)),
        Value::Text(serde_json::to_string(&proposal.units).unwrap_or_default()),
    ]
}

/// How a shard that can be reached takes part.
pub(super) fn status(draining: bool, owned: Owned) -> &'static str {
    match (draining, owned.is_nothing()) {
        (false, _) => "open",
        (true, false) => "draining",
        (true, true) => "drained",
    }
}
