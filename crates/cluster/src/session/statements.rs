//! Statements that a session keeps by name. Those of the protocol's Parse and those of SQL's PREPARE share their names,
//! as with PostgreSQL: a driver may prepare by one and deallocate by the other.
//!
//! Invariants (docs/invariants.md):
//!   * I-45  their number and the bytes of their texts are bounded; beyond, a statement is refused with 54000.

use super::{Prepared, Result};
use isles_kernel::error::SqlError;
use isles_sql::system::StatementFact;
use std::collections::HashMap;
use std::sync::Arc;

/// Statements of a session. Drivers keep some hundreds.
pub(crate) const MAX_NAMED: usize = 5_000;
/// The texts of all of them.
const MAX_NAMED_BYTES: usize = 32 << 20;

/// Who named a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NamedBy {
    Protocol,
    Sql,
}

/// A statement; None is the empty one, which the protocol can prepare.
type Statement = Option<Arc<Prepared>>;

struct Kept {
    statement: Statement,
    by: NamedBy,
    /// When, as PostgreSQL counts.
    since: i64,
}

#[derive(Default)]
pub(crate) struct Statements {
    kept: HashMap<String, Kept>,
    bytes: usize,
}

fn bytes_of(statement: &Statement) -> usize {
    statement.as_ref().map_or(0, |prepared| prepared.sql.len())
}

impl Statements {
    /// Keeps a statement. The one without a name takes the place of the last one without.
    pub(crate) fn keep(&mut self, name: String, statement: Statement, by: NamedBy, since: i64) -> Result<()> {
        if name.is_empty() {
            self.forget("");
        } else if self.kept.contains_key(&name) {
            return Err(SqlError::new("42P05", format!("prepared statement \"{name}\" already exists")));
        }
        if self.kept.len() >= MAX_NAMED || self.bytes + bytes_of(&statement) > MAX_NAMED_BYTES {
            let error = SqlError::new("54000", "too many prepared statements in one session");
            return Err(error.with_hint("Deallocate those that are not used."));
        }
        self.bytes += bytes_of(&statement);
        self.kept.insert(name, Kept { statement, by, since });
        Ok(())
    }

    pub(crate) fn get(&self, name: &str) -> Result<&Statement> {
        self.kept.get(name).map(|kept| &kept.statement).ok_or_else(|| missing(name))
    }

    /// Whether there was one.
    pub(crate) fn forget(&mut self, name: &str) -> bool {
        let Some(kept) = self.kept.remove(name) else { return false };
        self.bytes = self.bytes.saturating_sub(bytes_of(&kept.statement));
        true
    }

    pub(crate) fn forget_all(&mut self) {
        *self = Statements::default();
    }

    /// What `pg_prepared_statements` shows: all that have a name.
    pub(crate) fn facts(&self) -> Vec<StatementFact> {
        let fact = |(name, kept): (&String, &Kept)| StatementFact {
            name: name.clone(),
            statement: kept.statement.as_ref().map_or_else(String::new, |prepared| prepared.sql.to_string()),
            since: kept.since,
            params: kept.statement.as_ref().map_or_else(Vec::new, |prepared| prepared.params.clone()),
            from_sql: kept.by == NamedBy::Sql,
        };
        let mut facts: Vec<StatementFact> = self.kept.iter().filter(|(name, _)| !name.is_empty()).map(fact).collect();
        facts.sort_by(|a, b| a.name.cmp(&b.name));
        facts
    }
}

pub(crate) fn missing(name: &str) -> SqlError {
    let message = match name {
        "" => "unnamed prepared statement does not exist".to_owned(),
        name => format!("prepared statement \"{name}\" does not exist"),
    };
    SqlError::new("26000", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I-45: beyond the limit a name is refused, and taken again once another one is gone.
    #[test]
    fn a_session_keeps_so_many_statements_and_no_more() {
        let mut statements = Statements::default();
        let mut keep = |name: String| statements.keep(name, None, NamedBy::Protocol, 0);
        (0..MAX_NAMED).for_each(|n| keep(n.to_string()).expect("within the limit"));
        assert_eq!(keep("more".into()).expect_err("beyond it").sqlstate, "54000");
        assert_eq!(keep("7".into()).expect_err("taken").sqlstate, "42P05");
        assert!(statements.forget("7") && !statements.forget("7"));
        statements.keep("more".into(), None, NamedBy::Sql, 0).expect("there is room");
        assert_eq!(statements.get("7").map(|_| ()).expect_err("gone").sqlstate, "26000");
    }
}
