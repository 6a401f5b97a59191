//! Records, as rows hold them, and outcomes.

use super::Result;
use super::place::NO_GENERATION;
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;
use serde::Serialize;

/// How an operation ended. An error of storage is none of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Ok,
    /// It is past its time.
    Expired,
    /// It may be used once, and was.
    Used,
    /// What passes once has passed before: a proof, a token that was replaced.
    Replayed,
    /// There is no such record, or it is not this tenant's, or not bound to who asks.
    NotFound,
    /// It has changed since it was read, or the name is taken.
    Conflict,
    Revoked,
}

impl Outcome {
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Expired => "expired",
            Outcome::Used => "used",
            Outcome::Replayed => "replayed",
            Outcome::NotFound => "not_found",
            Outcome::Conflict => "conflict",
            Outcome::Revoked => "revoked",
        }
    }
}

/// A record. Times are microseconds since 1970.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its id, or its key if it was stored under one.
    pub id: String,
    pub owner: Option<String>,
    pub binding: Option<String>,
    /// JSON.
    pub value: String,
    /// What the operations keep of it, as JSON.
    pub(super) state: Option<String>,
    /// It rises with each change.
    pub version: i64,
    pub created_at: i64,
    pub expires_at: i64,
    pub cap_at: i64,
    pub used_at: Option<i64>,
    /// What it was used for: in an exchange, the record that was made of it.
    pub used_by: Option<String>,
    pub revoked_at: Option<i64>,
    /// It only says that something has passed, to those who do not know a newer generation yet.
    pub(super) is_note: bool,
}

/// The columns that [`Record::of_row`] reads, in its order.
pub(super) const COLUMNS: &str =
    "owner, binding, value, state, version, created_at, expires_at, cap_at, used_at, used_by, revoked_at, generation";

impl Record {
    pub(super) fn of_row(id: String, row: &[Value]) -> Result<Record> {
        let mut columns = Columns { row, at: 0 };
        Ok(Record {
            id,
            owner: columns.text()?,
            binding: columns.text()?,
            value: columns.text()?.unwrap_or_default(),
            state: columns.text()?,
            version: columns.number()?.unwrap_or_default(),
            created_at: columns.number()?.unwrap_or_default(),
            expires_at: columns.number()?.unwrap_or_default(),
            cap_at: columns.number()?.unwrap_or_default(),
            used_at: columns.number()?,
            used_by: columns.text()?,
            revoked_at: columns.number()?,
            is_note: columns.number()? == Some(NO_GENERATION),
        })
    }

    /// What it is good for at this moment.
    pub fn life(&self, now: i64) -> Outcome {
        match self {
            record if record.expires_at <= now => Outcome::Expired,
            record if record.revoked_at.is_some() => Outcome::Revoked,
            record if record.used_at.is_some() => Outcome::Used,
            _ => Outcome::Ok,
        }
    }

    /// Whether it is bound to who asks. One that is bound to nobody is anybody's.
    pub(super) fn is_bound_to(&self, binding: Option<&str>) -> bool {
        self.binding.is_none() || self.binding.as_deref() == binding
    }
}

struct Columns<'a> {
    row: &'a [Value],
    at: usize,
}

impl Columns<'_> {
    fn next(&mut self) -> &Value {
        self.at += 1;
        self.row.get(self.at - 1).unwrap_or(&Value::Null)
    }

    fn text(&mut self) -> Result<Option<String>> {
        match self.next() {
            Value::Null => Ok(None),
            Value::Text(text) => Ok(Some(text.clone())),
            other => Err(unexpected(other)),
        }
    }

    fn number(&mut self) -> Result<Option<i64>> {
        match self.next() {
            Value::Null => Ok(None),
            Value::Int(number) => Ok(Some(*number)),
            other => Err(unexpected(other)),
        }
    }
}

fn unexpected(value: &Value) -> SqlError {
    SqlError::new("XX001", format!("a record has {value:?} where it should not"))
}

/// What an operation answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    pub outcome: Outcome,
    /// Whenever the outcome is ok, and otherwise where it helps to say why.
    pub record: Option<Record>,
}

impl Reply {
    pub(super) fn of(outcome: Outcome) -> Reply {
        Reply { outcome, record: None }
    }

    pub(super) fn ok(record: Record) -> Reply {
        Reply { outcome: Outcome::Ok, record: Some(record) }
    }

    pub fn is_ok(&self) -> bool {
        self.outcome == Outcome::Ok
    }

    /// The id of a record that is there.
    pub fn id(&self) -> Option<&str> {
        self.record.as_ref().map(|record| record.id.as_str())
    }
}
