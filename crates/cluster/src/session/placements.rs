//! Placements by SQL: the procedures `isles.placement_…`, for administrators.
//!
//! ```text
//! placement_status([tenant])                              generations, and when each may be removed
//! placement_get([tenant])                                 ETag, source, configuration
//! placement_set(config, etag [, tenant, reason])          another configuration
//! placement_migrate(change, etag [, tenant, reason])      a new generation
//! placement_remove_generation(generation, etag [, tenant, reason])
//! placement_validate(config [, tenant])                   what is wrong with one, a row for each field
//! placement_dry_run(config [, tenant, migration])         which keys would move, as JSON
//! placement_history([tenant, limit])                      who changed what, when
//! placement_diff(from [, to, tenant])                     what differs, a row for each field
//! ```
//!
//! A change is one commit of the catalog and no part of a transaction on shards, so it is refused inside of one.

use super::rights::Rank;
use super::{Procedure, Result, Session};
use crate::database::Database;
use crate::placements::{Change, Changed, DEFAULT_TENANT, ETag, Migration, Placements};
use async_trait::async_trait;
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;
use isles_sql::bind::procedure::{Param, Signature};
use isles_sql::tree::Field;
use isles_sql::types::{INT8, Oid, TEXT, Type};
use std::sync::Arc;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Verb {
    Status,
    Get,
    Set,
    Migrate,
    RemoveGeneration,
    Validate,
    DryRun,
    History,
    Diff,
}

const VERBS: [(&str, Verb); 9] = [
    ("placement_status", Verb::Status),
    ("placement_get", Verb::Get),
    ("placement_set", Verb::Set),
    ("placement_migrate", Verb::Migrate),
    ("placement_remove_generation", Verb::RemoveGeneration),
    ("placement_validate", Verb::Validate),
    ("placement_dry_run", Verb::DryRun),
    ("placement_history", Verb::History),
    ("placement_diff", Verb::Diff),
];

/// Name, type, and whether it may be left out.
type Params = &'static [(&'static str, Oid, bool)];
type Columns = &'static [(&'static str, Oid)];

impl Verb {
    fn params(self) -> Params {
        match self {
            Verb::Status | Verb::Get => &[("tenant", TEXT, true)],
            Verb::Set => {
                &[("config", TEXT, false), ("etag", TEXT, false), ("tenant", TEXT, true), ("reason", TEXT, true)]
            }
            Verb::Migrate => {
                &[("change", TEXT, false), ("etag", TEXT, false), ("tenant", TEXT, true), ("reason", TEXT, true)]
            }
            Verb::RemoveGeneration => {
                &[("generation", INT8, false), ("etag", TEXT, false), ("tenant", TEXT, true), ("reason", TEXT, true)]
            }
            Verb::Validate => &[("config", TEXT, false), ("tenant", TEXT, true)],
            Verb::DryRun => &[("config", TEXT, true), ("tenant", TEXT, true), ("migration", TEXT, true)],
            Verb::History => &[("tenant", TEXT, true), ("limit", INT8, true)],
            Verb::Diff => &[("from", INT8, false), ("to", INT8, true), ("tenant", TEXT, true)],
        }
    }

    fn columns(self) -> Columns {
        match self {
            Verb::Status => &[
                ("tenant", TEXT),
                ("source", TEXT),
                ("etag", TEXT),
                ("generation", INT8),
                ("state", TEXT),
                ("valid_until", TEXT),
                ("groups", INT8),
                ("types", INT8),
                ("records", INT8),
                ("last_ends", TEXT),
                ("errors", TEXT),
            ],
            Verb::Get => &[("etag", TEXT), ("source", TEXT), ("config", TEXT)],
            Verb::Set | Verb::Migrate | Verb::RemoveGeneration => {
                &[("etag", TEXT), ("generation", INT8), ("entry", INT8), ("warnings", TEXT)]
            }
            Verb::Validate => &[("field", TEXT), ("code", TEXT), ("message", TEXT)],
            Verb::DryRun => &[("result", TEXT)],
            Verb::History => &[
                ("entry", INT8),
                ("at", TEXT),
                ("action", TEXT),
                ("by", TEXT),
                ("generation", INT8),
                ("reason", TEXT),
                ("replaced", TEXT),
                ("config", TEXT),
            ],
            Verb::Diff => &[("field", TEXT), ("old", TEXT), ("new", TEXT)],
        }
    }

    fn changes(self) -> bool {
        matches!(self, Verb::Set | Verb::Migrate | Verb::RemoveGeneration)
    }
}

impl Database {
    /// Lets administrators ask for placements and change them.
    pub(crate) fn register_placements(&self) {
        VERBS.iter().for_each(|(name, verb)| self.register(name, Arc::new(*verb)));
    }
}

#[async_trait]
impl Procedure for Verb {
    fn signature(&self) -> Signature {
        let param =
            |(name, ty, optional): &(&str, Oid, bool)| Param { name: (*name).into(), ty: *ty, optional: *optional };
        let column = |(name, ty): &(&str, Oid)| Field { name: (*name).into(), ty: Type::of(*ty) };
        Signature {
            params: self.params().iter().map(param).collect(),
            columns: self.columns().iter().map(column).collect(),
        }
    }

    fn rank(&self) -> Rank {
        Rank::Admin
    }

    async fn call(&self, session: &mut Session, args: Vec<Value>) -> Result<Vec<Vec<Value>>> {
        if self.changes() && (session.in_block() || session.has_begun().await) {
            return Err(SqlError::new("25001", "placements cannot be changed inside a transaction block"));
        }
        let (placements, by) = (session.database.placements().clone(), session.user.clone());
        let args = Args { verb: *self, values: args };
        self.carry_out(&placements, &by, &args).await
    }
}

/// Arguments by name.
struct Args {
    verb: Verb,
    values: Vec<Value>,
}

impl Args {
    fn value(&self, name: &str) -> Option<&Value> {
        let at = self.verb.params().iter().position(|(known, _, _)| *known == name)?;
        self.values.get(at).filter(|value| **value != Value::Null)
    }

    fn text(&self, name: &str) -> Option<&str> {
        match self.value(name) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    fn needed(&self, name: &str) -> Result<&str> {
        self.text(name).ok_or_else(|| SqlError::new("22004", format!("argument \"{name}\" may not be null")))
    }

    fn number(&self, name: &str) -> Result<Option<u64>> {
        match self.value(name) {
            Some(Value::Int(number)) => u64::try_from(*number)
                .map(Some)
                .map_err(|_| SqlError::new("22023", format!("argument \"{name}\" may not be negative"))),
            _ => Ok(None),
        }
    }

    fn tenant(&self) -> &str {
        self.text("tenant").unwrap_or(DEFAULT_TENANT)
    }

    fn change<'a>(&'a self, by: &'a str) -> Result<Change<'a>> {
        let etag = self.needed("etag")?;
        let if_match = ETag::parse(etag).ok_or_else(|| SqlError::new("22023", format!("not an ETag: {etag}")))?;
        Ok(Change { tenant: self.tenant(), by, if_match, reason: self.text("reason") })
    }
}

fn migration(text: &str) -> Result<Migration> {
    serde_json::from_str(text).map_err(|fault| SqlError::new("22023", format!("not a migration: {fault}")))
}

impl Verb {
    async fn carry_out(self, placements: &Placements, by: &str, args: &Args) -> Result<Vec<Vec<Value>>> {
        let tenant = args.tenant();
        match self {
            Verb::Status => status(placements, tenant).await,
            Verb::Get => {
                let (etag, source, config) = placements.get(tenant).await?;
                Ok(vec![vec![text(etag), text(source.name()), json(&config)]])
            }
            Verb::Set => changed(placements.put(&args.change(by)?, args.needed("config")?).await),
            Verb::Migrate => changed(placements.migrate(&args.change(by)?, migration(args.needed("change")?)?).await),
            Verb::RemoveGeneration => {
                let number = args.number("generation")?.unwrap_or_default();
                let number = u32::try_from(number).unwrap_or(u32::MAX);
                changed(placements.remove_generation(&args.change(by)?, number).await)
            }
            Verb::Validate => {
                let errors = placements.validate(tenant, args.needed("config")?).await?.err();
                let errors = errors.iter().flat_map(|errors| errors.errors());
                let code = |code| serde_json::to_value(code).ok().and_then(|code| code.as_str().map(str::to_owned));
                Ok(errors.map(|e| vec![text(&e.field), optional(code(e.code)), text(&e.message)]).collect())
            }
            Verb::DryRun => {
                let run = match (args.text("config"), args.text("migration")) {
                    (Some(config), None) => placements.dry_run(tenant, config).await,
                    (None, Some(change)) => placements.dry_run_migration(tenant, migration(change)?).await,
                    _ => return Err(SqlError::new("22023", "a dry run is of a configuration or of a migration")),
                };
                Ok(vec![vec![json(&run.map_err(|error| error.for_people())?)]])
            }
            Verb::History => {
                let limit = args.number("limit")?.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX));
                let entries = placements.history(tenant, limit).await?;
                let row = |entry: &crate::placements::HistoryEntry| {
                    vec![
                        number(entry.number),
                        text(entry.when()),
                        text(entry.action.name()),
                        text(&entry.by),
                        number(entry.generation.into()),
                        optional(entry.reason.clone()),
                        text(entry.replaced),
                        text(&entry.config),
                    ]
                };
                Ok(entries.iter().map(row).collect())
            }
            Verb::Diff => {
                let from = args.number("from")?.unwrap_or_default();
                let found = placements.diff(tenant, from, args.number("to")?).await?;
                let value = |value: &Option<serde_json::Value>| optional(value.as_ref().map(ToString::to_string));
                Ok(found.iter().map(|one| vec![text(&one.field), value(&one.old), value(&one.new)]).collect())
            }
        }
    }
}

async fn status(placements: &Placements, tenant: &str) -> Result<Vec<Vec<Value>>> {
    let status = placements.status(tenant).await?;
    let errors =
        status.errors.as_ref().map(|errors| errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
    let row = |one: &crate::placements::GenerationStatus| {
        vec![
            text(&status.tenant),
            text(status.source.name()),
            text(status.etag),
            number(one.generation.into()),
            text(one.state.name()),
            optional(one.valid_until.clone()),
            number(one.groups as u64),
            number(one.types as u64),
            one.records.map_or(Value::Null, number),
            optional(one.last_ends.clone()),
            optional(errors.clone()),
        ]
    };
    Ok(status.generations.iter().map(row).collect())
}

fn changed(outcome: std::result::Result<Changed, crate::placements::ChangeError>) -> Result<Vec<Vec<Value>>> {
    let Changed { etag, generation, number: entry, warnings, .. } = outcome.map_err(|error| error.for_people())?;
    let warnings = (!warnings.is_empty()).then(|| warnings.join("\n"));
    Ok(vec![vec![text(etag), number(generation.get().into()), number(entry), optional(warnings)]])
}

fn text(value: impl ToString) -> Value {
    Value::Text(value.to_string())
}

fn optional(value: Option<String>) -> Value {
    value.map_or(Value::Null, Value::Text)
}

fn number(value: u64) -> Value {
    Value::Int(i64::try_from(value).unwrap_or(i64::MAX))
}

fn json(value: &impl serde::Serialize) -> Value {
    Value::Text(serde_json::to_string(value).unwrap_or_default())
}
