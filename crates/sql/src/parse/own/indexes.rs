//! Statements about global indexes that PostgreSQL's grammar does not know. `SHOW INDEXES` and `REINDEX INDEX` it does.
//!
//!     VERIFY INDEX [schema.]name [REPAIR]
//!     WAIT FOR INDEX [schema.]name

use super::{Kind, Tokens};
use isles_kernel::error::SqlError;

#[derive(Debug, Clone, PartialEq)]
pub struct IndexOrder {
    pub verb: IndexVerb,
    /// As it was written: its schema, if it was said, and itself.
    pub index: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexVerb {
    /// Compares its entries with the rows.
    Verify,
    /// The same, and puts right what differs.
    Repair,
    /// Returns when it can be asked.
    Wait,
}

/// Reads what follows the first two words.
pub(super) fn parse(verb: &str, tokens: &mut Tokens<'_>) -> Result<IndexOrder, SqlError> {
    if verb == "wait" {
        tokens.word("index")?;
        return Ok(IndexOrder { verb: IndexVerb::Wait, index: name(tokens)? });
    }
    let index = name(tokens)?;
    let verb = if tokens.words(&["repair"])? { IndexVerb::Repair } else { IndexVerb::Verify };
    Ok(IndexOrder { verb, index })
}

pub(super) fn name(tokens: &mut Tokens<'_>) -> Result<Vec<String>, SqlError> {
    let mut parts = vec![identifier(tokens)?];
    loop {
        let before = tokens.scanner.at;
        let token = tokens.next()?;
        if token.kind != Kind::Sign || token.text != "." {
            tokens.scanner.at = before;
            return Ok(parts);
        }
        parts.push(identifier(tokens)?);
    }
}

fn identifier(tokens: &mut Tokens<'_>) -> Result<String, SqlError> {
    let token = tokens.next()?;
    match token.kind {
        Kind::Word | Kind::Name if !token.text.is_empty() => Ok(token.text),
        _ => Err(tokens.unexpected(&token)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::{parse_one, split};
    use super::super::OwnStatement;
    use super::*;

    fn parsed(sql: &str) -> IndexOrder {
        match parse_one(sql).unwrap_or_else(|error| panic!("{sql}: {error}")).own() {
            Some(OwnStatement::Index(order)) => order.clone(),
            other => panic!("{sql}: {other:?}"),
        }
    }

    #[test]
    fn each_statement_about_indexes_is_read() {
        let order =
            |verb, index: &[&str]| IndexOrder { verb, index: index.iter().map(|part| (*part).into()).collect() };
        assert_eq!(parsed("VERIFY INDEX Users_Email"), order(IndexVerb::Verify, &["users_email"]));
        assert_eq!(parsed("verify index a.\"B c\" repair;"), order(IndexVerb::Repair, &["a", "B c"]));
        assert_eq!(parsed("WAIT FOR INDEX users_email"), order(IndexVerb::Wait, &["users_email"]));
        assert_eq!(split("SELECT 1; WAIT FOR INDEX i; VERIFY INDEX i").expect("valid").len(), 3);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        for (sql, at) in [
            ("VERIFY INDEX", 13),
            ("VERIFY INDEX 'i'", 14),
            ("VERIFY INDEX i AND j", 16),
            ("WAIT FOR GODOT", 10),
            ("WAIT FOR INDEX a.", 18),
        ] {
            let error = parse_one(sql).map(|parsed| parsed.own().cloned()).expect_err(sql);
            assert_eq!((error.sqlstate, error.position), ("42601", Some(at)), "{sql}: {error:?}");
        }
    }
}
