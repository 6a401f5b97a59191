//! Errors for people: what a client sees of anything that went wrong, as PostgreSQL would say it.
//!
//! Errors for branching are small enums where they arise; each of them can be shown as a [`SqlError`].

use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

/// An error, a warning or a notice as PostgreSQL reports it to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqlError {
    /// Five characters of SQLSTATE.
    pub sqlstate: &'static str,
    /// Short, lower case, without a period.
    pub message: String,
    pub detail: Option<String>,
    /// What to do about it.
    pub hint: Option<String>,
    /// Where in the statement's text, in characters, from 1.
    pub position: Option<u32>,
    pub table: Option<String>,
    pub column: Option<String>,
    pub constraint: Option<String>,
    /// Where it happened, when the statement's text does not say: `COPY t, line 3`.
    pub context: Option<String>,
    /// The shard that was asked does not serve what was wanted, or not for a moment. Nothing has happened; routed anew,
    /// the same may be sent again.
    pub moved: bool,
    /// Seconds to wait before the same is asked for again, if that is known.
    pub retry_after_s: Option<NonZeroU32>,
}

impl SqlError {
    pub fn new(sqlstate: &'static str, message: impl Into<String>) -> SqlError {
        SqlError {
            sqlstate,
            message: message.into(),
            detail: None,
            hint: None,
            position: None,
            table: None,
            column: None,
            constraint: None,
            context: None,
            moved: false,
            retry_after_s: None,
        }
    }

    /// Says that what was wanted is served elsewhere, or by nobody for a moment.
    pub fn of_move(mut self) -> SqlError {
        self.moved = true;
        self
    }

    /// What Isles does not do: refused, and never done differently.
    pub fn unsupported(message: impl Into<String>) -> SqlError {
        SqlError::new("0A000", message)
    }

    pub fn with_detail(mut self, detail: impl Into<String>) -> SqlError {
        self.detail = Some(detail.into());
        self
    }

    pub fn with_hint(mut self, hint: impl Into<String>) -> SqlError {
        self.hint = Some(hint.into());
        self
    }

    pub fn at(mut self, position: Option<u32>) -> SqlError {
        self.position = self.position.or(position);
        self
    }

    pub fn of_table(mut self, table: impl Into<String>) -> SqlError {
        self.table = Some(table.into());
        self
    }

    pub fn of_column(mut self, column: impl Into<String>) -> SqlError {
        self.column = Some(column.into());
        self
    }

    pub fn within(mut self, context: impl Into<String>) -> SqlError {
        self.context.get_or_insert(context.into());
        self
    }

    /// To be asked again after so long, which is a second at least.
    pub fn retry_after(mut self, wait: Duration) -> SqlError {
        let seconds = u32::try_from(wait.as_secs()).unwrap_or(u32::MAX);
        self.retry_after_s = Some(NonZeroU32::new(seconds).unwrap_or(NonZeroU32::MIN));
        self
    }

    pub fn of_constraint(mut self, constraint: impl Into<String>) -> SqlError {
        self.constraint = Some(constraint.into());
        self
    }
}

impl fmt::Display for SqlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.sqlstate)?;
        if let Some(detail) = &self.detail {
            write!(f, ": {detail}")?;
        }
        Ok(())
    }
}

impl std::error::Error for SqlError {}
