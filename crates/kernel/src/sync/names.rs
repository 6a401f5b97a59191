//! Cursors, identities, keys and values: the words of the wire.

use crate::names::MAX_NAME_BYTES;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use uuid::Uuid;

/// The longest external id of a row, in characters.
pub const MAX_EXTERNAL_ID_CHARS: usize = 128;
/// The longest partition identity: room for a SHA-512 in hexadecimal.
pub const MAX_PARTITION_CHARS: usize = 128;
/// The longest token of a snapshot: a row's key in base64.
pub const MAX_TOKEN_CHARS: usize = 2048;
/// The most columns that a row has, as PostgreSQL's limit of 1,600 less what is hidden.
pub const MAX_COLUMNS: usize = 1_500;
/// The longest name of a column.
pub const MAX_COLUMN_BYTES: usize = MAX_NAME_BYTES;
/// The hidden column of a row's owner. It is no part of what a client sees; see [`Values`].
pub const SHARD_COLUMN: &str = "_shard";
/// The largest version: the integers that every reader of JSON has.
const MAX_VERSION: u64 = (1 << 53) - 1;

/// Why a text or a number is not what it should be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SyncNameError {
    #[error("a {what} may not be empty")]
    Empty { what: &'static str },
    #[error("a {what} has at most {limit} {unit}, this one has {actual}")]
    TooLong { what: &'static str, limit: usize, unit: &'static str, actual: usize },
    #[error("a {what} may not contain {found:?}")]
    BadCharacter { what: &'static str, found: char },
    #[error("a {what} has the form {form}")]
    BadForm { what: &'static str, form: &'static str },
    #[error("a row has at most {MAX_COLUMNS} columns, this one has {0}")]
    TooManyColumns(usize),
}

/// Defines a type whose text form is a string on the wire.
macro_rules! as_text {
    ($name:ident) => {
        impl TryFrom<String> for $name {
            type Error = SyncNameError;
            fn try_from(text: String) -> Result<$name, SyncNameError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.to_string()
            }
        }
    };
}

/// Defines an id that is a UUID in its usual text form.
macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(pub Uuid);

        impl FromStr for $name {
            type Err = SyncNameError;
            fn from_str(text: &str) -> Result<$name, SyncNameError> {
                let bad = SyncNameError::BadForm { what: $what, form: "of a UUID with hyphens" };
                if text.len() != 36 {
                    return Err(bad);
                }
                Uuid::try_parse(text).map($name).map_err(|_| bad)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }

        as_text!($name);
    };
}

uuid_id!(
    /// One committed transaction of a partition. It never changes, also not by a move.
    EntryId,
    "id of an entry"
);
uuid_id!(
    /// One submitted request; chosen by the client, at random, and kept through every retry.
    RequestId,
    "request id"
);

/// The place of an entry in the log of its partition, from 1. 0 is before the first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Version(u64);

impl Version {
    pub const ZERO: Version = Version(0);

    pub fn new(version: u64) -> Result<Version, SyncNameError> {
        match version <= MAX_VERSION {
            true => Ok(Version(version)),
            false => Err(SyncNameError::BadForm { what: "version", form: "of a whole number below 2^53" }),
        }
    }

    pub fn get(self) -> u64 {
        self.0
    }

    /// The version after this one.
    pub fn next(self) -> Version {
        Version(self.0 + 1)
    }
}

impl TryFrom<u64> for Version {
    type Error = SyncNameError;
    fn try_from(version: u64) -> Result<Version, SyncNameError> {
        Version::new(version)
    }
}

impl From<Version> for u64 {
    fn from(version: Version) -> u64 {
        version.0
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How often a row has been changed: its hidden column `_version`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RowVersion(pub u64);

/// A place in the log of a partition: a version, and the id of the entry that has it.
///
/// Its text is `0` for the beginning, and otherwise `17.` with the id's 32 hexadecimal digits. Clients keep it and send
/// it back; they need not read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Cursor {
    version: Version,
    /// None at the beginning, and only there.
    entry: Option<EntryId>,
}

impl Cursor {
    /// Before the first entry.
    pub const START: Cursor = Cursor { version: Version::ZERO, entry: None };

    /// At an entry. A version of 0 is no entry's.
    pub fn at(version: Version, entry: EntryId) -> Result<Cursor, SyncNameError> {
        match version == Version::ZERO {
            true => Err(bad_cursor()),
            false => Ok(Cursor { version, entry: Some(entry) }),
        }
    }

    pub fn version(self) -> Version {
        self.version
    }

    /// The id of the entry that this cursor is at; none at the beginning.
    pub fn entry(self) -> Option<EntryId> {
        self.entry
    }
}

fn bad_cursor() -> SyncNameError {
    SyncNameError::BadForm { what: "cursor", form: "0, or of a version, a period and the id of its entry" }
}

impl FromStr for Cursor {
    type Err = SyncNameError;

    fn from_str(text: &str) -> Result<Cursor, SyncNameError> {
        if text == "0" {
            return Ok(Cursor::START);
        }
        let (version, id) = text.split_once('.').ok_or_else(bad_cursor)?;
        let plain = |digits: &str| !digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit());
        let simple = |id: &str| id.len() == 32 && id.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b));
        if !plain(version) || !simple(id) {
            return Err(bad_cursor());
        }
        let version = version.parse().map_err(|_| bad_cursor()).and_then(Version::new)?;
        Cursor::at(version, EntryId(Uuid::try_parse(id).map_err(|_| bad_cursor())?))
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.entry {
            None => f.write_str("0"),
            Some(entry) => write!(f, "{}.{}", self.version, entry.0.simple()),
        }
    }
}

as_text!(Cursor);

/// Whose data a replica holds, without saying whose: an opaque text that the server derives from the tenant and a
/// secret. A client keeps to one, and wipes when it changes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PartitionId(String);

/// Where the next page of a snapshot begins; opaque to clients.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SnapshotToken(String);

/// Defines an opaque text of characters that need no escape in a URL.
macro_rules! opaque {
    ($name:ident, $what:literal, $limit:ident) => {
        impl FromStr for $name {
            type Err = SyncNameError;
            fn from_str(text: &str) -> Result<$name, SyncNameError> {
                if text.is_empty() {
                    return Err(SyncNameError::Empty { what: $what });
                }
                if let Some(found) = text.chars().find(|c| !c.is_ascii_alphanumeric() && !"-_.~".contains(*c)) {
                    return Err(SyncNameError::BadCharacter { what: $what, found });
                }
                within($what, $limit, "characters", text.len())?;
                Ok($name(text.into()))
            }
        }

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        as_text!($name);
    };
}

opaque!(PartitionId, "partition identity", MAX_PARTITION_CHARS);
opaque!(SnapshotToken, "snapshot token", MAX_TOKEN_CHARS);

/// A row, by its names alone: no shard, no internal id.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "RowKeyForm")]
pub struct RowKey {
    pub schema: String,
    pub table: String,
    #[serde(rename = "externalId")]
    pub external_id: String,
}

#[derive(Deserialize)]
struct RowKeyForm {
    schema: String,
    table: String,
    #[serde(rename = "externalId")]
    external_id: String,
}

impl TryFrom<RowKeyForm> for RowKey {
    type Error = SyncNameError;
    fn try_from(form: RowKeyForm) -> Result<RowKey, SyncNameError> {
        RowKey::new(form.schema, form.table, form.external_id)
    }
}

impl RowKey {
    /// The schema may be empty: a fragment without a namespace.
    pub fn new(
        schema: impl Into<String>,
        table: impl Into<String>,
        external_id: impl Into<String>,
    ) -> Result<RowKey, SyncNameError> {
        let key = RowKey { schema: schema.into(), table: table.into(), external_id: external_id.into() };
        key.check()?;
        Ok(key)
    }

    pub(super) fn check(&self) -> Result<(), SyncNameError> {
        check_table(&self.schema, &self.table)?;
        check_text("external id", &self.external_id)?;
        within("external id", MAX_EXTERNAL_ID_CHARS, "characters", self.external_id.chars().count())
    }
}

impl fmt::Display for RowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}/{}", self.schema, self.table, self.external_id)
    }
}

/// Checks the names of a table. The schema may be empty.
pub(super) fn check_table(schema: &str, table: &str) -> Result<(), SyncNameError> {
    if !schema.is_empty() {
        check_text("schema name", schema)?;
    }
    within("schema name", MAX_NAME_BYTES, "bytes", schema.len())?;
    check_text("table name", table)?;
    within("table name", MAX_NAME_BYTES, "bytes", table.len())
}

pub(super) fn check_text(what: &'static str, text: &str) -> Result<(), SyncNameError> {
    match text.chars().find(|c| c.is_control()) {
        Some(found) => Err(SyncNameError::BadCharacter { what, found }),
        None if text.is_empty() => Err(SyncNameError::Empty { what }),
        None => Ok(()),
    }
}

pub(super) fn within(what: &'static str, limit: usize, unit: &'static str, actual: usize) -> Result<(), SyncNameError> {
    match actual <= limit {
        true => Ok(()),
        false => Err(SyncNameError::TooLong { what, limit, unit, actual }),
    }
}

/// Columns by name. What JSON has no exact form for travels as text: integers beyond 2^53, decimals, bytes, times.
///
/// `_shard` is never among them: who reads one drops it, so that neither a client shows it nor a server stores it.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, serde_json::Value>", into = "BTreeMap<String, serde_json::Value>")]
pub struct Values(BTreeMap<String, serde_json::Value>);

impl Values {
    pub fn new(mut columns: BTreeMap<String, serde_json::Value>) -> Result<Values, SyncNameError> {
        columns.remove(SHARD_COLUMN);
        if columns.len() > MAX_COLUMNS {
            return Err(SyncNameError::TooManyColumns(columns.len()));
        }
        for name in columns.keys() {
            check_text("column name", name)?;
            within("column name", MAX_COLUMN_BYTES, "bytes", name.len())?;
        }
        Ok(Values(columns))
    }

    pub fn get(&self, column: &str) -> Option<&serde_json::Value> {
        self.0.get(column)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &serde_json::Value)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value))
    }

    /// Puts the columns of `changed` in place of those of the same name.
    pub fn merge(&mut self, changed: &Values) {
        self.0.extend(changed.iter().map(|(name, value)| (name.to_owned(), value.clone())));
    }
}

impl TryFrom<BTreeMap<String, serde_json::Value>> for Values {
    type Error = SyncNameError;
    fn try_from(columns: BTreeMap<String, serde_json::Value>) -> Result<Values, SyncNameError> {
        Values::new(columns)
    }
}

impl From<Values> for BTreeMap<String, serde_json::Value> {
    fn from(values: Values) -> BTreeMap<String, serde_json::Value> {
        values.0
    }
}
