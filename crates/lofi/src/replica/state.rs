//! What a replica keeps, and under which name: `head`, `pending`, `command/<id>`, `given_up/<id>`, and rows.

use crate::command::{CommandId, GivenUp, Pending, Queued};
use crate::row::Row;
use crate::store::{Generation, Kept, Write};
use isles_kernel::sync::{Cursor, PartitionId, RowKey, SnapshotToken};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The form of the records; raised when it changes.
const FORMAT: u32 = 1;

pub(super) const HEAD: &str = "head";
pub(super) const PENDING: &str = "pending";
const COMMAND: &str = "command/";
const GIVEN_UP: &str = "given_up/";

/// What the store has is not a replica's, or not of a version that is known. Wiping it loses unsent commands, so it is
/// for the application to decide.
#[derive(Debug, thiserror::Error)]
pub enum Damaged {
    #[error("the local record {name:?} cannot be read: {error}")]
    Record { name: String, error: serde_json::Error },
    #[error("the local record {0:?} has no number")]
    Name(String),
    #[error("the local records have format {0}, this program knows {FORMAT}")]
    Format(u32),
    #[error("the pending request names command {0}, which is not there")]
    NoCommand(CommandId),
}

/// The one record that says where the replica is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Head {
    format: u32,
    pub(super) partition: Option<PartitionId>,
    /// None before the first snapshot is whole.
    pub(super) shown: Option<Shown>,
    pub(super) resync: Option<Resync>,
    /// The server has no snapshots: the log is read from its beginning.
    pub(super) log_only: bool,
    pub(super) next_generation: u64,
    pub(super) next_command: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Shown {
    pub(super) generation: Generation,
    pub(super) cursor: Cursor,
}

/// A snapshot that is being read, into a generation of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Resync {
    pub(super) generation: Generation,
    pub(super) stage: Stage,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Stage {
    Rows {
        /// Where the first page was read; none before there is one.
        from: Option<Cursor>,
        next: Option<SnapshotToken>,
    },
    /// All pages are there. The log is applied from the first page's cursor; at the last one's the rows are a state that
    /// the server has had.
    Log { cursor: Cursor, reach: Cursor },
}

impl Default for Head {
    fn default() -> Head {
        Head {
            format: FORMAT,
            partition: None,
            shown: None,
            resync: None,
            log_only: false,
            next_generation: 1,
            next_command: 1,
        }
    }
}

pub(super) fn command_name(id: CommandId) -> String {
    format!("{COMMAND}{:020}", id.0)
}

pub(super) fn given_up_name(id: CommandId) -> String {
    format!("{GIVEN_UP}{:020}", id.0)
}

/// A replica as it was kept.
pub(super) struct State {
    pub(super) head: Head,
    /// Whether the head was there, or is the one of a new replica.
    pub(super) kept: bool,
    pub(super) shown: BTreeMap<RowKey, Row>,
    pub(super) staging: BTreeMap<RowKey, Row>,
    pub(super) queue: BTreeMap<CommandId, Queued>,
    pub(super) pending: Option<Pending>,
    pub(super) given_up: BTreeMap<CommandId, GivenUp>,
    pub(super) leftovers: Vec<Write>,
}

pub(super) fn read(mut kept: Kept) -> Result<State, Damaged> {
    let record = kept.records.remove(HEAD);
    let is_kept = record.is_some();
    let head = match record {
        Some(record) => read_head(record)?,
        None => Head::default(),
    };
    let pending = kept.records.remove(PENDING).map(|record| parse(PENDING, record)).transpose()?;
    let queue = numbered(&kept, COMMAND)?;
    let given_up = numbered(&kept, GIVEN_UP)?;
    check_pending(pending.as_ref(), &queue)?;
    let mut take = |generation: Option<Generation>| generation.and_then(|it| kept.rows.remove(&it)).unwrap_or_default();
    let shown = take(head.shown.as_ref().map(|shown| shown.generation));
    let staging = take(head.resync.as_ref().map(|resync| resync.generation));
    let leftovers = kept.rows.into_keys().map(Write::DropGeneration).collect();
    Ok(State { head, kept: is_kept, shown, staging, queue, pending, given_up, leftovers })
}

fn read_head(record: serde_json::Value) -> Result<Head, Damaged> {
    #[derive(Deserialize)]
    struct Format {
        format: u32,
    }
    let Format { format } = parse(HEAD, record.clone())?;
    match format {
        FORMAT => parse(HEAD, record),
        other => Err(Damaged::Format(other)),
    }
}

fn parse<T: DeserializeOwned>(name: &str, record: serde_json::Value) -> Result<T, Damaged> {
    serde_json::from_value(record).map_err(|error| Damaged::Record { name: name.into(), error })
}

fn numbered<T: DeserializeOwned>(kept: &Kept, prefix: &str) -> Result<BTreeMap<CommandId, T>, Damaged> {
    let named = kept.records.iter().filter_map(|(name, record)| Some((name, name.strip_prefix(prefix)?, record)));
    named
        .map(|(name, number, record)| {
            let number = number.parse().map_err(|_| Damaged::Name(name.clone()))?;
            Ok((CommandId(number), parse(name, record.clone())?))
        })
        .collect()
}

fn check_pending(pending: Option<&Pending>, queue: &BTreeMap<CommandId, Queued>) -> Result<(), Damaged> {
    let mut commands = pending.iter().flat_map(|pending| &pending.commands);
    match commands.find(|id| !queue.contains_key(id)) {
        Some(id) => Err(Damaged::NoCommand(*id)),
        None => Ok(()),
    }
}
