//! Statements about tables that become tenant tables. `ALTER TABLE … SET (kind = 'tenant', …)`, which begins it,
//! PostgreSQL's grammar knows.
//!
//!     CHECK MIGRATION [schema.]table BY 'expression'
//!     CANCEL MIGRATION [schema.]table
//!     SHOW MIGRATIONS

use super::indexes::name;
use super::{Kind, Tokens};
use isles_kernel::error::SqlError;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MigrationOrder {
    /// What stands in the way; nothing is changed.
    Check {
        /// As it was written: its schema, if it was said, and itself.
        table: Vec<String>,
        tenant_by: String,
    },
    Cancel {
        table: Vec<String>,
    },
    List,
}

/// Reads what follows the first two words.
pub(super) fn parse(verb: &str, tokens: &mut Tokens<'_>) -> Result<MigrationOrder, SqlError> {
    if verb == "show" {
        return Ok(MigrationOrder::List);
    }
    let table = name(tokens)?;
    if verb == "cancel" {
        return Ok(MigrationOrder::Cancel { table });
    }
    tokens.word("by")?;
    let token = tokens.next()?;
    match token.kind {
        Kind::Text => Ok(MigrationOrder::Check { table, tenant_by: token.text }),
        _ => Err(tokens.unexpected(&token)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{parse_one, split};
    use super::super::OwnStatement;
    use super::*;

    fn parsed(sql: &str) -> MigrationOrder {
        match parse_one(sql).unwrap_or_else(|error| panic!("{sql}: {error}")).own() {
            Some(OwnStatement::Migration(order)) => order.clone(),
            other => panic!("{sql}: {other:?}"),
        }
    }

    #[test]
    fn each_statement_about_migrations_is_read() {
        let table = |parts: &[&str]| parts.iter().map(|part| (*part).to_string()).collect::<Vec<_>>();
        let check = MigrationOrder::Check { table: table(&["app", "Notes"]), tenant_by: "lower('x' || owner)".into() };
        assert_eq!(parsed("check migration app.\"Notes\" by 'lower(''x'' || owner)';"), check);
        assert_eq!(parsed("CANCEL MIGRATION Notes"), MigrationOrder::Cancel { table: table(&["notes"]) });
        assert_eq!(parsed("SHOW MIGRATIONS"), MigrationOrder::List);
        assert_eq!(split("SHOW MIGRATIONS; SELECT 1; CANCEL MIGRATION n").expect("valid").len(), 3);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        for (sql, at) in [
            ("CHECK MIGRATION notes", 22),
            ("CHECK MIGRATION notes BY owner", 26),
            ("CANCEL MIGRATION", 17),
            ("SHOW MIGRATIONS OF notes", 17),
        ] {
            let error = parse_one(sql).map(|parsed| parsed.own().cloned()).expect_err(sql);
            assert_eq!((error.sqlstate, error.position), ("42601", Some(at)), "{sql}: {error:?}");
        }
    }
}
