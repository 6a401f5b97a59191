//! Statements about shards.
//!
//!     CREATE SHARD [name] [WITH (url = 'postgres://…', region = '…')]
//!     ALTER SHARD name DRAIN [TO (shard, …)] │ RESUME │ REGION region
//!     DROP SHARD name
//!     SHOW REBALANCE [BY rows │ buckets │ load]
//!
//! Without a URL a shard is a SQLite file.

use super::moves::{options, shard};
use super::{Kind, Tokens};
use isles_kernel::error::SqlError;
use isles_kernel::moves::Weigh;
use isles_kernel::names::{RegionName, ShardId};

#[derive(Debug, Clone, PartialEq)]
pub enum ShardStatement {
    Create {
        name: Option<ShardId>,
        /// Of a PostgreSQL database.
        url: Option<String>,
        region: Option<RegionName>,
    },
    /// Says which region it is in, once.
    Locate {
        name: ShardId,
        region: RegionName,
    },
    Drain {
        name: ShardId,
        /// Empty: to all others.
        to: Vec<ShardId>,
    },
    Resume {
        name: ShardId,
    },
    Drop {
        name: ShardId,
    },
    /// Which moves would even the shards out.
    Rebalance {
        by: Weigh,
    },
}

impl ShardStatement {
    pub fn command_tag(&self) -> &'static str {
        match self {
            ShardStatement::Create { .. } => "CREATE SHARD",
            ShardStatement::Drain { .. } | ShardStatement::Resume { .. } | ShardStatement::Locate { .. } => {
                "ALTER SHARD"
            }
            ShardStatement::Drop { .. } => "DROP SHARD",
            ShardStatement::Rebalance { .. } => "SHOW",
        }
    }
}

/// Reads what follows the first two words.
pub(super) fn parse(verb: &str, tokens: &mut Tokens<'_>) -> Result<ShardStatement, SqlError> {
    match verb {
        "create" => create(tokens),
        "alter" => alter(tokens),
        "drop" => shard(tokens).map(|name| ShardStatement::Drop { name }),
        _ => rebalance(tokens),
    }
}

fn create(tokens: &mut Tokens<'_>) -> Result<ShardStatement, SqlError> {
    let before = tokens.scanner.at;
    let first = tokens.next()?;
    tokens.scanner.at = before;
    let is_unnamed = first.kind == Kind::End || (first.kind == Kind::Word && first.text == "with");
    let name = if is_unnamed { None } else { Some(shard(tokens)?) };
    let (mut url, mut region) = (None, None);
    for option in options(tokens)? {
        match option.name.as_str() {
            "url" => url = Some(option.text(tokens)?),
            "region" => region = Some(region_name(&option.text(tokens)?)?),
            _ => return Err(option.unknown(tokens, "url, region")),
        }
    }
    Ok(ShardStatement::Create { name, url, region })
}

fn region_name(text: &str) -> Result<RegionName, SqlError> {
    RegionName::new(text).map_err(|fault| SqlError::new("22023", fault.to_string()))
}

fn alter(tokens: &mut Tokens<'_>) -> Result<ShardStatement, SqlError> {
    let name = shard(tokens)?;
    let word = tokens.next()?;
    match (word.kind, word.text.as_str()) {
        (Kind::Word, "resume") => Ok(ShardStatement::Resume { name }),
        (Kind::Word, "drain") => {
            let to = if tokens.words(&["to"])? { tokens.list(shard)? } else { Vec::new() };
            Ok(ShardStatement::Drain { name, to })
        }
        (Kind::Word, "region") => {
            let word = tokens.next()?;
            match word.kind {
                Kind::Word | Kind::Name | Kind::Text => {
                    Ok(ShardStatement::Locate { name, region: region_name(&word.text)? })
                }
                _ => Err(tokens.unexpected(&word)),
            }
        }
        _ => Err(tokens.unexpected(&word).with_hint("commands are drain, resume, region")),
    }
}

fn rebalance(tokens: &mut Tokens<'_>) -> Result<ShardStatement, SqlError> {
    if !tokens.words(&["by"])? {
        return Ok(ShardStatement::Rebalance { by: Weigh::default() });
    }
    let word = tokens.next()?;
    let unknown = || tokens.unexpected(&word).with_hint("shards are weighed by rows, buckets or load");
    let by = Weigh::named(&word.text).ok_or_else(unknown)?;
    Ok(ShardStatement::Rebalance { by })
}

#[cfg(test)]
mod tests {
    use super::super::super::parse_one;
    use super::super::OwnStatement;
    use super::*;

    fn parsed(sql: &str) -> Result<ShardStatement, SqlError> {
        match parse_one(sql)?.own() {
            Some(OwnStatement::Shard(statement)) => Ok(statement.clone()),
            other => panic!("{sql}: {other:?}"),
        }
    }

    fn name(text: &str) -> ShardId {
        ShardId::new(text).expect("valid")
    }

    fn region(text: &str) -> RegionName {
        RegionName::new(text).expect("valid")
    }

    #[test]
    fn each_statement_about_shards_is_read() {
        let url = Some("postgres://h/d".to_string());
        let all = [
            ("CREATE SHARD", ShardStatement::Create { name: None, url: None, region: None }),
            (
                "create shard with (url = 'postgres://h/d');",
                ShardStatement::Create { name: None, url: url.clone(), region: None },
            ),
            (
                "CREATE SHARD east WITH (url='postgres://h/d', region = 'apac')",
                ShardStatement::Create { name: Some(name("east")), url, region: Some(region("apac")) },
            ),
            ("ALTER SHARD s1 REGION 'weur'", ShardStatement::Locate { name: name("s1"), region: region("weur") }),
            ("ALTER SHARD s1 REGION weur", ShardStatement::Locate { name: name("s1"), region: region("weur") }),
            ("ALTER SHARD s1 DRAIN", ShardStatement::Drain { name: name("s1"), to: vec![] }),
            (
                "ALTER SHARD \"s1\" DRAIN TO (s2, s3)",
                ShardStatement::Drain { name: name("s1"), to: vec![name("s2"), name("s3")] },
            ),
            ("ALTER SHARD s1 RESUME", ShardStatement::Resume { name: name("s1") }),
            ("DROP SHARD s1", ShardStatement::Drop { name: name("s1") }),
            ("SHOW REBALANCE", ShardStatement::Rebalance { by: Weigh::Rows }),
            ("SHOW REBALANCE BY load", ShardStatement::Rebalance { by: Weigh::Load }),
        ];
        for (sql, expected) in all {
            assert_eq!(parsed(sql).expect(sql), expected);
        }
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        for (sql, code, at) in [
            ("CREATE SHARD s1 WITH (size = 1)", "22023", 23),
            ("CREATE SHARD 'a/b'", "22023", 14),
            ("ALTER SHARD s1 STOP", "42601", 16),
            ("ALTER SHARD s1 DRAIN TO s2", "42601", 25),
            ("DROP SHARD", "42601", 11),
            ("SHOW REBALANCE BY hope", "42601", 19),
            ("DROP SHARD s1 s2", "42601", 15),
        ] {
            let error = parse_one(sql).map(|parsed| parsed.own().cloned()).expect_err(sql);
            assert_eq!((error.sqlstate, error.position), (code, Some(at)), "{sql}: {error:?}");
        }
    }
}
