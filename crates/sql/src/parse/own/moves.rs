//! Statements about moves.
//!
//!     CREATE MOVE OF TENANTS (name, …) │ BUCKETS 'group/0-7,9' [FROM shard] TO shard [WITH (option [= value], …)]
//!     ALTER MOVE id START │ BACKFILL │ TAIL │ VERIFY │ CUTOVER │ ROLLBACK │ COMPLETE │ RUN [WITH (option [= value], …)]
//!     SHOW MOVES
//!     SHOW MOVE id
//!     SHOW ROUTING HISTORY
//!
//! `MOVE` alone is PostgreSQL's, and is about cursors.

use super::{Kind, Token, Tokens};
use isles_kernel::error::SqlError;
use isles_kernel::moves::{Command, Options, Units};
use isles_kernel::names::{NameError, ShardId};

#[derive(Debug, Clone, PartialEq)]
pub enum MoveStatement {
    Create(Box<MoveOrder>),
    Alter {
        id: String,
        command: Command,
        dry_run: bool,
    },
    List,
    Show {
        id: String,
    },
    /// The versions of the routing.
    History,
}

/// What is to be moved, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct MoveOrder {
    /// None: where it is.
    pub source: Option<ShardId>,
    pub target: ShardId,
    pub units: Units,
    pub description: Option<String>,
    pub options: Options,
    pub dry_run: bool,
}

impl MoveStatement {
    pub fn command_tag(&self) -> &'static str {
        match self {
            MoveStatement::Create { .. } => "CREATE MOVE",
            MoveStatement::Alter { .. } => "ALTER MOVE",
            MoveStatement::List | MoveStatement::Show { .. } | MoveStatement::History => "SHOW",
        }
    }
}

/// Reads what follows the first two words.
pub(super) fn parse(verb: &str, object: &str, tokens: &mut Tokens<'_>) -> Result<MoveStatement, SqlError> {
    match (verb, object) {
        ("create", _) => create(tokens).map(|order| MoveStatement::Create(Box::new(order))),
        ("alter", _) => alter(tokens),
        (_, "moves") => Ok(MoveStatement::List),
        (_, "routing") => tokens.word("history").map(|()| MoveStatement::History),
        _ => Ok(MoveStatement::Show { id: named(tokens)?.text }),
    }
}

fn create(tokens: &mut Tokens<'_>) -> Result<MoveOrder, SqlError> {
    tokens.word("of")?;
    let units = match tokens.words(&["tenants"])? {
        true => Units::tenants(tokens.list(Tokens::name)?),
        false => {
            tokens.word("buckets")?;
            let token = tokens.next()?;
            if token.kind != Kind::Text {
                return Err(tokens.unexpected(&token));
            }
            let units = Units::of_bucket_text(&token.text);
            units.map_err(|error| error.for_people().at(tokens.position(token.at)))?
        }
    };
    let source = if tokens.words(&["from"])? { Some(shard(tokens)?) } else { None };
    tokens.word("to")?;
    let target = shard(tokens)?;
    let mut order = MoveOrder { source, target, units, description: None, options: Options::default(), dry_run: false };
    for option in options(tokens)? {
        match option.name.as_str() {
            "auto" => order.options.auto = option.flag(tokens)?,
            "complete" => order.options.complete = option.flag(tokens)?,
            "verify" => order.options.waive_verification = !option.flag(tokens)?,
            "pause_limit" => order.options.pause_limit_ms = option.millis(tokens)?,
            "unknown_tenants" => order.options.unknown_tenants = option.flag(tokens)?,
            "description" => order.description = Some(option.text(tokens)?),
            "dry_run" => order.dry_run = option.flag(tokens)?,
            _ => {
                return Err(option
                    .unknown(tokens, "auto, complete, verify, unknown_tenants, pause_limit, description, dry_run"));
            }
        }
    }
    Ok(order)
}

fn alter(tokens: &mut Tokens<'_>) -> Result<MoveStatement, SqlError> {
    let id = named(tokens)?.text;
    let word = tokens.next()?;
    let (mut command, known) = match (word.kind, word.text.as_str()) {
        (Kind::Word, "start") => (Command::Start, "dry_run"),
        (Kind::Word, "backfill") => (Command::Backfill, "dry_run"),
        (Kind::Word, "tail") => (Command::Tail, "dry_run"),
        (Kind::Word, "verify") => (Command::Verify { repair: false }, "repair, dry_run"),
        (Kind::Word, "cutover") => (Command::Cutover { waive: false }, "verify, dry_run"),
        (Kind::Word, "rollback") => (Command::Rollback, "dry_run"),
        (Kind::Word, "complete") => (Command::Complete, "dry_run"),
        (Kind::Word, "run") => (Command::Run { complete: false }, "complete, dry_run"),
        _ => {
            let hint = "commands are start, backfill, tail, verify, cutover, rollback, complete, run";
            return Err(tokens.unexpected(&word).with_hint(hint));
        }
    };
    let mut dry_run = false;
    for option in options(tokens)? {
        match (&mut command, option.name.as_str()) {
            (Command::Verify { repair }, "repair") => *repair = option.flag(tokens)?,
            (Command::Cutover { waive }, "verify") => *waive = !option.flag(tokens)?,
            (Command::Run { complete }, "complete") => *complete = option.flag(tokens)?,
            (_, "dry_run") => dry_run = option.flag(tokens)?,
            _ => return Err(option.unknown(tokens, known)),
        }
    }
    Ok(MoveStatement::Alter { id, command, dry_run })
}

/// A word, or anything in quotes.
fn named(tokens: &mut Tokens<'_>) -> Result<Token, SqlError> {
    let token = tokens.next()?;
    if matches!(token.kind, Kind::Word | Kind::Name | Kind::Text) { Ok(token) } else { Err(tokens.unexpected(&token)) }
}

pub(super) fn shard(tokens: &mut Tokens<'_>) -> Result<ShardId, SqlError> {
    let token = named(tokens)?;
    let invalid = |error: NameError| SqlError::new("22023", error.to_string()).at(tokens.position(token.at));
    ShardId::new(token.text.clone()).map_err(invalid)
}

/// `name` or `name = value`.
pub(super) struct Choice {
    pub(super) name: String,
    value: Option<Token>,
    at: usize,
}

/// What follows WITH, each option once.
pub(super) fn options(tokens: &mut Tokens<'_>) -> Result<Vec<Choice>, SqlError> {
    if !tokens.words(&["with"])? {
        return Ok(Vec::new());
    }
    let choices = tokens.list(choice)?;
    for (at, choice) in choices.iter().enumerate() {
        if choices[..at].iter().any(|before| before.name == choice.name) {
            let error = SqlError::new("42601", format!("option {} is set twice", choice.name));
            return Err(error.at(tokens.position(choice.at)));
        }
    }
    Ok(choices)
}

fn choice(tokens: &mut Tokens<'_>) -> Result<Choice, SqlError> {
    let name = tokens.next()?;
    if !matches!(name.kind, Kind::Word | Kind::Name) {
        return Err(tokens.unexpected(&name));
    }
    let before = tokens.scanner.at;
    let sign = tokens.next()?;
    let value = match (sign.kind, sign.text.as_str()) {
        (Kind::Sign, "=") => {
            let value = tokens.next()?;
            if matches!(value.kind, Kind::Sign | Kind::End) {
                return Err(tokens.unexpected(&value));
            }
            Some(value)
        }
        _ => {
            tokens.scanner.at = before;
            None
        }
    };
    Ok(Choice { name: name.text, value, at: name.at })
}

impl Choice {
    fn wrong(&self, tokens: &Tokens<'_>, wanted: &str) -> SqlError {
        let given = self.value.as_ref().map_or("nothing".to_string(), |value| format!("\"{}\"", value.text));
        let error = SqlError::new("22023", format!("option {} is {wanted}, not {given}", self.name));
        error.at(tokens.position(self.value.as_ref().map_or(self.at, |value| value.at)))
    }

    pub(super) fn unknown(&self, tokens: &Tokens<'_>, known: &str) -> SqlError {
        let error = SqlError::new("22023", format!("unrecognized option \"{}\"", self.name));
        error.with_hint(format!("options are {known}")).at(tokens.position(self.at))
    }

    /// On, if nothing is said.
    fn flag(&self, tokens: &Tokens<'_>) -> Result<bool, SqlError> {
        match self.value.as_ref().map(|value| value.text.to_ascii_lowercase()).as_deref() {
            None | Some("on" | "true" | "1" | "yes") => Ok(true),
            Some("off" | "false" | "0" | "no") => Ok(false),
            Some(_) => Err(self.wrong(tokens, "on or off")),
        }
    }

    pub(super) fn text(&self, tokens: &Tokens<'_>) -> Result<String, SqlError> {
        let text = self.value.as_ref().filter(|value| matches!(value.kind, Kind::Text | Kind::Word));
        text.map(|value| value.text.clone()).ok_or_else(|| self.wrong(tokens, "a text"))
    }

    /// Milliseconds, or a text with a unit.
    fn millis(&self, tokens: &Tokens<'_>) -> Result<u64, SqlError> {
        let wrong = || self.wrong(tokens, "a time such as 500, '500ms' or '1s'");
        let text = self.value.as_ref().map(|value| value.text.trim()).ok_or_else(wrong)?;
        let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let factor = match text[digits..].trim() {
            "" | "ms" => 1,
            "s" => 1_000,
            _ => return Err(wrong()),
        };
        let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
        number.checked_mul(factor).ok_or_else(wrong)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::parse_one;
    use super::super::OwnStatement;
    use super::*;
    use isles_kernel::names::TenantId;

    fn read(sql: &str) -> MoveStatement {
        match parse_one(sql) {
            Ok(parsed) => match parsed.own() {
                Some(OwnStatement::Move(statement)) => statement.clone(),
                other => panic!("{sql}: {other:?}"),
            },
            Err(error) => panic!("{sql}: {error}"),
        }
    }

    fn refused(sql: &str) -> (&'static str, String) {
        let error = parse_one(sql).expect_err(sql);
        (error.sqlstate, error.message)
    }

    fn shard(name: &str) -> ShardId {
        ShardId::new(name).expect("valid")
    }

    #[test]
    fn moves_of_tenants_and_buckets_are_ordered() {
        let tenants = ["acme", "It's"].map(|name| TenantId::new(name).expect("valid"));
        let options = Options {
            auto: true,
            complete: true,
            waive_verification: true,
            pause_limit_ms: 2_000,
            ..Options::default()
        };
        let order = MoveOrder {
            source: Some(shard("s0")),
            target: shard("s-1"),
            units: Units::tenants(tenants),
            description: Some("more room".into()),
            options,
            dry_run: true,
        };
        let sql = "create move of tenants ('It''s', Acme, acme) FROM s0 TO 's-1' WITH (auto, complete = on, \
                   verify = off, pause_limit = '2 s', description = 'more room', dry_run);";
        assert_eq!(read(sql), MoveStatement::Create(Box::new(order)));
        let order = MoveOrder {
            source: None,
            target: shard("s1"),
            units: Units::of_bucket_text("users/0-7,9").expect("valid"),
            description: None,
            options: Options { pause_limit_ms: 500, ..Options::default() },
            dry_run: false,
        };
        let sql = "CREATE MOVE OF BUCKETS 'users/0-7,9' TO s1 WITH (pause_limit = 500)";
        assert_eq!(read(sql), MoveStatement::Create(Box::new(order)));
    }

    #[test]
    fn plans_are_told_and_shown() {
        let alter = |command, dry_run| MoveStatement::Alter { id: "m01".into(), command, dry_run };
        for (sql, expected) in [
            ("ALTER MOVE m01 START", alter(Command::Start, false)),
            ("ALTER MOVE 'm01' backfill", alter(Command::Backfill, false)),
            ("ALTER MOVE m01 TAIL", alter(Command::Tail, false)),
            ("ALTER MOVE m01 VERIFY", alter(Command::Verify { repair: false }, false)),
            ("ALTER MOVE m01 VERIFY WITH (repair)", alter(Command::Verify { repair: true }, false)),
            ("ALTER MOVE m01 CUTOVER WITH (verify = off)", alter(Command::Cutover { waive: true }, false)),
            ("ALTER MOVE m01 ROLLBACK WITH (dry_run)", alter(Command::Rollback, true)),
            ("ALTER MOVE m01 COMPLETE", alter(Command::Complete, false)),
            ("ALTER MOVE m01 RUN WITH (complete = true)", alter(Command::Run { complete: true }, false)),
            ("SHOW MOVES", MoveStatement::List),
            ("show move m01 ;", MoveStatement::Show { id: "m01".into() }),
            ("SHOW ROUTING HISTORY", MoveStatement::History),
        ] {
            assert_eq!(read(sql), expected, "{sql}");
        }
    }

    #[test]
    fn what_is_wrong_is_told() {
        for (sql, code) in [
            ("CREATE MOVE", "42601"),
            ("CREATE MOVE OF TENANTS () TO s1", "42601"),
            ("CREATE MOVE OF TENANTS (a)", "42601"),
            ("CREATE MOVE OF TENANTS (a) TO 'No'", "22023"),
            ("CREATE MOVE OF TENANTS ('') TO s1", "22023"),
            ("CREATE MOVE OF TENANTS (null) TO s1", "0A000"),
            ("CREATE MOVE OF BUCKETS 'users' TO s1", "22023"),
            ("CREATE MOVE OF BUCKETS users TO s1", "42601"),
            ("CREATE MOVE OF TENANTS (a) TO s1 WITH (auto, auto)", "42601"),
            ("CREATE MOVE OF TENANTS (a) TO s1 WITH (auto = maybe)", "22023"),
            ("CREATE MOVE OF TENANTS (a) TO s1 WITH (pause_limit = '1 day')", "22023"),
            ("CREATE MOVE OF TENANTS (a) TO s1 WITH (pause_limit = '99999999999999999999s')", "22023"),
            ("CREATE MOVE OF TENANTS (a) TO s1 WITH (color = 1)", "22023"),
            ("CREATE MOVE OF TENANTS (a) TO s1 more", "42601"),
            ("ALTER MOVE m1", "42601"),
            ("ALTER MOVE m1 DANCE", "42601"),
            ("ALTER MOVE m1 START WITH (repair)", "22023"),
            ("ALTER MOVE m1 CUTOVER WITH (verify = )", "42601"),
            ("ALTER MOVE m1 START; SELECT 1", "42601"),
            ("SHOW MOVE", "42601"),
            ("SHOW MOVES now", "42601"),
            ("SHOW ROUTING", "42601"),
        ] {
            assert_eq!(refused(sql).0, code, "{sql}: {}", refused(sql).1);
        }
    }

    #[test]
    fn cursors_still_move() {
        for sql in ["MOVE 3 IN c", "MOVE c", "SELECT 'show moves'", "CREATE TABLE move (a int)", "DROP TABLE move"] {
            assert!(parse_one(sql).unwrap_or_else(|error| panic!("{sql}: {error}")).own().is_none(), "{sql}");
        }
    }
}
