//! Statements that PostgreSQL's grammar does not know: tenants, moves ([`moves`]), shards ([`shards`]), global
//! indexes ([`indexes`]), and tables that become tenant tables ([`migrations`]).
//!
//!     CREATE TENANT [IF NOT EXISTS] name [WITH (quota = value, …)]
//!     ALTER TENANT name SET (quota = value, …) │ RESET (quota, …)
//!     DROP TENANT [IF EXISTS] name
//!     SHOW TENANTS [LIKE 'pattern']
//!     SHOW TENANT name
//!
//! A statement is ours if its first two words say so, and then it is ours to refuse, too: the grammar has none that
//! begins this way. A name is a word, folded to lower case, or a name or a text in quotes: tenants have names that
//! applications give them.

mod indexes;
mod migrations;
mod moves;
mod shards;

pub use indexes::{IndexOrder, IndexVerb};
pub use migrations::MigrationOrder;
pub use moves::{MoveOrder, MoveStatement};
pub use shards::ShardStatement;

use super::{Open, Scanner, check_bounds, is_name_start, position, split_by_grammar};
use isles_kernel::error::SqlError;
use isles_kernel::names::TenantId;
use isles_kernel::quota::{Quota, Quotas};
use std::ops::Range;
use std::sync::Arc;

/// A statement that only Isles knows.
#[derive(Debug, Clone, PartialEq)]
pub enum OwnStatement {
    Tenant(TenantStatement),
    Move(MoveStatement),
    Shard(ShardStatement),
    Index(IndexOrder),
    Migration(MigrationOrder),
}

#[derive(Debug, Clone, PartialEq)]
pub enum TenantStatement {
    Create {
        name: TenantId,
        if_not_exists: bool,
        quotas: Quotas,
    },
    /// None takes a quota away.
    Alter {
        name: TenantId,
        quotas: Vec<(Quota, Option<u64>)>,
    },
    Drop {
        name: TenantId,
        if_exists: bool,
    },
    List {
        like: Option<String>,
    },
    Show {
        name: TenantId,
    },
}

impl TenantStatement {
    pub fn command_tag(&self) -> &'static str {
        match self {
            TenantStatement::Create { .. } => "CREATE TENANT",
            TenantStatement::Alter { .. } => "ALTER TENANT",
            TenantStatement::Drop { .. } => "DROP TENANT",
            TenantStatement::List { .. } | TenantStatement::Show { .. } => "SHOW",
        }
    }
}

/// Whether a text begins with a statement of ours.
pub(super) fn begins(sql: &str) -> bool {
    let mut tokens = Tokens::new(sql);
    let mut word = || match tokens.next() {
        Ok(Token { kind: Kind::Word, text, .. }) => text,
        _ => String::new(),
    };
    let (first, second) = (word(), word());
    match first.as_str() {
        "create" | "alter" => ["tenant", "move", "shard"].contains(&second.as_str()),
        "drop" => ["tenant", "shard"].contains(&second.as_str()),
        "show" => {
            ["tenant", "tenants", "move", "moves", "routing", "rebalance", "migrations"].contains(&second.as_str())
        }
        "check" | "cancel" => second == "migration",
        "verify" => second == "index",
        "wait" => second == "for",
        _ => false,
    }
}

/// The statements of a text that has one of ours; None if it has none. Semicolons in parentheses end no statement.
pub(super) fn pieces(sql: &str) -> Result<Option<Vec<Range<usize>>>, SqlError> {
    // Most texts are told apart without a look at their tokens.
    let has = |word: &str| sql.as_bytes().windows(word.len()).any(|part| part.eq_ignore_ascii_case(word.as_bytes()));
    if !["tenant", "move", "routing", "shard", "rebalance", "verify", "wait", "migration"].into_iter().any(has) {
        return Ok(None);
    }
    check_bounds(sql)?;
    let (mut scanner, mut pieces, mut start) = (Scanner::new(sql), Vec::new(), 0);
    while let Some(byte) = scanner.peek(0) {
        if scanner.skip_blank() {
            continue;
        }
        let (at, inside) = (scanner.at, scanner.open.contains(&Open::Paren));
        scanner.token(byte)?;
        if byte == b';' && !inside {
            pieces.push(start..at);
            start = scanner.at;
        }
    }
    pieces.push(start.min(sql.len())..sql.len());
    Ok(pieces.iter().any(|piece| begins(&sql[piece.clone()])).then_some(pieces))
}

/// Statements of ours as they are, and what the grammar makes of the others.
pub(super) fn split(sql: &str, pieces: &[Range<usize>]) -> Result<Vec<Arc<str>>, SqlError> {
    let mut statements = Vec::new();
    for piece in pieces {
        let text = &sql[piece.clone()];
        if begins(text) {
            statements.push(Arc::from(text.trim()));
            continue;
        }
        let before = u32::try_from(sql[..piece.start].chars().count()).unwrap_or(0);
        let split = split_by_grammar(text);
        statements.extend(split.map_err(|error| SqlError { position: error.position.map(|at| at + before), ..error })?);
    }
    Ok(statements)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// In lower case.
    Word,
    /// In double quotes.
    Name,
    /// In single quotes.
    Text,
    Number,
    Sign,
    End,
}

#[derive(Debug, Clone)]
struct Token {
    kind: Kind,
    text: String,
    at: usize,
}

struct Tokens<'a> {
    sql: &'a str,
    scanner: Scanner<'a>,
}

impl<'a> Tokens<'a> {
    fn new(sql: &'a str) -> Tokens<'a> {
        Tokens { sql, scanner: Scanner::new(sql) }
    }

    fn next(&mut self) -> Result<Token, SqlError> {
        let scanner = &mut self.scanner;
        while scanner.skip_blank() {}
        let at = scanner.at;
        let Some(byte) = scanner.peek(0) else { return Ok(Token { kind: Kind::End, text: String::new(), at }) };
        match byte {
            b'\'' => self.quoted(Kind::Text, byte, "quoted string"),
            b'"' => self.quoted(Kind::Name, byte, "quoted identifier"),
            b'0'..=b'9' => {
                scanner.skip_while(|byte| byte.is_ascii_digit());
                Ok(self.taken(Kind::Number, at))
            }
            byte if is_name_start(byte) => {
                scanner.skip_while(|byte| is_name_start(byte) || byte.is_ascii_digit() || byte == b'$');
                let token = self.taken(Kind::Word, at);
                Ok(Token { text: token.text.to_ascii_lowercase(), ..token })
            }
            _ => {
                scanner.at += 1;
                Ok(self.taken(Kind::Sign, at))
            }
        }
    }

    fn taken(&self, kind: Kind, at: usize) -> Token {
        Token { kind, text: self.sql.get(at..self.scanner.at).unwrap_or_default().to_string(), at }
    }

    /// What stands in quotes, in which a quote is doubled.
    fn quoted(&mut self, kind: Kind, quote: u8, what: &str) -> Result<Token, SqlError> {
        let (at, mut text) = (self.scanner.at, String::new());
        loop {
            let from = self.scanner.at + 1;
            self.scanner.skip_quoted(quote);
            // Without an end, the scanner stands behind the text.
            let closed = self.scanner.at <= self.sql.len();
            let Some(part) = self.sql.get(from..self.scanner.at - 1).filter(|_| closed) else {
                let message = format!("unterminated {what} at or near \"{}\"", &self.sql[at..]);
                return Err(SqlError::new("42601", message).at(self.position(at)));
            };
            text.push_str(part);
            match self.scanner.peek(0) == Some(quote) {
                true => text.push(char::from(quote)),
                false => return Ok(Token { kind, text, at }),
            }
        }
    }

    fn position(&self, at: usize) -> Option<u32> {
        position(self.sql, i32::try_from(at).unwrap_or(-1))
    }

    fn unexpected(&self, token: &Token) -> SqlError {
        let message = match token.kind {
            Kind::End => "syntax error at end of input".to_string(),
            _ => {
                let end = (token.at..=self.scanner.at).rev().find(|end| self.sql.is_char_boundary(*end));
                format!("syntax error at or near \"{}\"", &self.sql[token.at..end.unwrap_or(token.at)])
            }
        };
        SqlError::new("42601", message).at(self.position(token.at))
    }

    fn word(&mut self, wanted: &str) -> Result<(), SqlError> {
        let token = self.next()?;
        if token.kind == Kind::Word && token.text == wanted { Ok(()) } else { Err(self.unexpected(&token)) }
    }

    /// Whether these words come next; they are taken then.
    fn words(&mut self, wanted: &[&str]) -> Result<bool, SqlError> {
        let before = self.scanner.at;
        let first = self.next()?;
        if first.kind != Kind::Word || first.text != wanted[0] {
            self.scanner.at = before;
            return Ok(false);
        }
        wanted[1..].iter().try_for_each(|word| self.word(word)).map(|()| true)
    }

    fn name(&mut self) -> Result<TenantId, SqlError> {
        let token = self.next()?;
        if token.kind == Kind::Word && token.text == "null" {
            return Err(SqlError::unsupported("the null tenant is not an object: it has no quotas and is not dropped"));
        }
        if !matches!(token.kind, Kind::Word | Kind::Name | Kind::Text) {
            return Err(self.unexpected(&token));
        }
        let invalid = |error: isles_kernel::names::NameError| SqlError::new("22023", error.to_string());
        TenantId::new(token.text).map_err(|error| invalid(error).at(self.position(token.at)))
    }

    fn end(&mut self) -> Result<(), SqlError> {
        let mut token = self.next()?;
        if token.kind == Kind::Sign && token.text == ";" {
            token = self.next()?;
            if token.kind != Kind::End {
                return Err(SqlError::new("42601", "cannot insert multiple commands into a prepared statement"));
            }
        }
        if token.kind == Kind::End { Ok(()) } else { Err(self.unexpected(&token)) }
    }

    /// `(item, …)`, at least one.
    fn list<T>(&mut self, item: impl Fn(&mut Self) -> Result<T, SqlError>) -> Result<Vec<T>, SqlError> {
        self.sign("(")?;
        let mut items = vec![item(self)?];
        loop {
            let token = self.next()?;
            match (token.kind, token.text.as_str()) {
                (Kind::Sign, ",") => items.push(item(self)?),
                (Kind::Sign, ")") => return Ok(items),
                _ => return Err(self.unexpected(&token)),
            }
        }
    }

    fn sign(&mut self, wanted: &str) -> Result<(), SqlError> {
        let token = self.next()?;
        if token.kind == Kind::Sign && token.text == wanted { Ok(()) } else { Err(self.unexpected(&token)) }
    }

    fn quota(&mut self) -> Result<Quota, SqlError> {
        let token = self.next()?;
        if !matches!(token.kind, Kind::Word | Kind::Name) {
            return Err(self.unexpected(&token));
        }
        let unknown = || {
            let names = Quota::ALL.map(Quota::name).join(", ");
            let error = SqlError::new("22023", format!("unrecognized quota \"{}\"", token.text));
            error.with_hint(format!("quotas are {names}")).at(self.position(token.at))
        };
        Quota::of_name(&token.text).ok_or_else(unknown)
    }

    fn assignment(&mut self) -> Result<(Quota, u64), SqlError> {
        let quota = self.quota()?;
        self.sign("=")?;
        let token = self.next()?;
        if !matches!(token.kind, Kind::Number | Kind::Text) {
            return Err(self.unexpected(&token));
        }
        let value = quota.read(&token.text);
        value.map(|value| (quota, value)).map_err(|why| SqlError::new("22023", why).at(self.position(token.at)))
    }

    /// Each quota once.
    fn assignments(&mut self) -> Result<Vec<(Quota, u64)>, SqlError> {
        let list = self.list(Tokens::assignment)?;
        once(list.iter().map(|(quota, _)| *quota))?;
        Ok(list)
    }
}

fn once(quotas: impl Iterator<Item = Quota>) -> Result<(), SqlError> {
    let mut seen = Vec::new();
    for quota in quotas {
        if seen.contains(&quota) {
            return Err(SqlError::new("42601", format!("quota {} is set twice", quota.name())));
        }
        seen.push(quota);
    }
    Ok(())
}

/// Reads a statement that [`begins`] as one of ours.
pub(super) fn parse(sql: &str) -> Result<OwnStatement, SqlError> {
    let mut tokens = Tokens::new(sql);
    let (verb, object) = (tokens.next()?.text, tokens.next()?.text);
    let statement = match object.as_str() {
        "tenant" | "tenants" => OwnStatement::Tenant(tenant(&verb, &object, &mut tokens)?),
        "index" | "for" => OwnStatement::Index(indexes::parse(&verb, &mut tokens)?),
        "migration" | "migrations" => OwnStatement::Migration(migrations::parse(&verb, &mut tokens)?),
        "shard" | "rebalance" => OwnStatement::Shard(shards::parse(&verb, &mut tokens)?),
        _ => OwnStatement::Move(moves::parse(&verb, &object, &mut tokens)?),
    };
    tokens.end().map(|()| statement)
}

fn tenant(verb: &str, object: &str, tokens: &mut Tokens<'_>) -> Result<TenantStatement, SqlError> {
    Ok(match (verb, object) {
        ("create", _) => create(tokens)?,
        ("alter", _) => alter(tokens)?,
        ("drop", _) => {
            let if_exists = tokens.words(&["if", "exists"])?;
            TenantStatement::Drop { name: tokens.name()?, if_exists }
        }
        (_, "tenants") => TenantStatement::List { like: like(tokens)? },
        _ => TenantStatement::Show { name: tokens.name()? },
    })
}

fn create(tokens: &mut Tokens<'_>) -> Result<TenantStatement, SqlError> {
    let if_not_exists = tokens.words(&["if", "not", "exists"])?;
    let name = tokens.name()?;
    let mut quotas = Quotas::default();
    if tokens.words(&["with"])? {
        tokens.assignments()?.into_iter().for_each(|(quota, value)| quotas.set(quota, Some(value)));
    }
    Ok(TenantStatement::Create { name, if_not_exists, quotas })
}

fn alter(tokens: &mut Tokens<'_>) -> Result<TenantStatement, SqlError> {
    let name = tokens.name()?;
    let quotas = match tokens.words(&["reset"])? {
        true => {
            let quotas = tokens.list(Tokens::quota)?;
            once(quotas.iter().copied())?;
            quotas.into_iter().map(|quota| (quota, None)).collect()
        }
        false => {
            tokens.word("set")?;
            tokens.assignments()?.into_iter().map(|(quota, value)| (quota, Some(value))).collect()
        }
    };
    Ok(TenantStatement::Alter { name, quotas })
}

fn like(tokens: &mut Tokens<'_>) -> Result<Option<String>, SqlError> {
    if !tokens.words(&["like"])? {
        return Ok(None);
    }
    let token = tokens.next()?;
    if token.kind == Kind::Text { Ok(Some(token.text)) } else { Err(tokens.unexpected(&token)) }
}

#[cfg(test)]
mod tests {
    use super::super::{parse_one, split};
    use super::*;

    fn read(sql: &str) -> TenantStatement {
        match parse_one(sql) {
            Ok(parsed) => match parsed.own() {
                Some(OwnStatement::Tenant(statement)) => statement.clone(),
                other => panic!("{sql}: {other:?}"),
            },
            Err(error) => panic!("{sql}: {error}"),
        }
    }

    fn refused(sql: &str) -> (&'static str, String, Option<u32>) {
        let error = parse_one(sql).expect_err(sql);
        (error.sqlstate, error.message, error.position)
    }

    fn tenant(name: &str) -> TenantId {
        TenantId::new(name).expect("valid")
    }

    #[test]
    fn tenants_are_created_with_quotas() {
        let quotas = Quotas {
            max_connections: Some(5),
            statement_timeout_ms: Some(2_000),
            max_rows: Some(10),
            max_bytes: Some(10 << 30),
        };
        let sql = "create /* x */ Tenant IF NOT EXISTS Acme WITH (max_connections = 5, statement_timeout='2 s', \
                   max_rows = 10, MAX_BYTES = '10 GB');";
        let created = TenantStatement::Create { name: tenant("acme"), if_not_exists: true, quotas };
        assert_eq!(read(sql), created);
        let plain =
            |name| TenantStatement::Create { name: tenant(name), if_not_exists: false, quotas: Quotas::default() };
        assert_eq!(read("CREATE TENANT \"A \"\"b\"\" ;\""), plain("A \"b\" ;"));
        assert_eq!(read("CREATE TENANT 'it''s'"), plain("it's"));
        assert_eq!(read("CREATE TENANT größe"), plain("größe"));
    }

    #[test]
    fn tenants_are_altered_dropped_and_shown() {
        let set = TenantStatement::Alter { name: tenant("a"), quotas: vec![(Quota::Rows, Some(7))] };
        assert_eq!(read("ALTER TENANT a SET (max_rows = 7)"), set);
        let quotas = vec![(Quota::Rows, None), (Quota::Bytes, None)];
        assert_eq!(
            read("ALTER TENANT a RESET (max_rows, max_bytes)"),
            TenantStatement::Alter { name: tenant("a"), quotas }
        );
        assert_eq!(read("DROP TENANT IF EXISTS a"), TenantStatement::Drop { name: tenant("a"), if_exists: true });
        assert_eq!(read("SHOW TENANTS"), TenantStatement::List { like: None });
        assert_eq!(read("show tenants like 'a%' ;"), TenantStatement::List { like: Some("a%".into()) });
        assert_eq!(read("SHOW TENANT 'a'"), TenantStatement::Show { name: tenant("a") });
    }

    #[test]
    fn what_is_wrong_is_told_where_it_is() {
        assert_eq!(refused("CREATE TENANT"), ("42601", "syntax error at end of input".into(), Some(14)));
        assert_eq!(refused("CREATE TENANT a b"), ("42601", "syntax error at or near \"b\"".into(), Some(17)));
        assert_eq!(refused("DROP TENANT a, b"), ("42601", "syntax error at or near \",\"".into(), Some(14)));
        assert_eq!(refused("CREATE TENANT 'a").0, "42601");
        assert_eq!(refused("CREATE TENANT ''").0, "22023");
        assert_eq!(refused(&format!("CREATE TENANT {}", "x".repeat(65))).0, "22023");
        assert_eq!(refused("CREATE TENANT null").0, "0A000");
        assert_eq!(refused("CREATE TENANT a WITH (color = 1)").1, "unrecognized quota \"color\"");
        assert_eq!(refused("CREATE TENANT a WITH (max_rows = -1)").0, "42601");
        assert_eq!(refused("CREATE TENANT a WITH (max_rows = 1, max_rows = 2)").1, "quota max_rows is set twice");
        assert_eq!(refused("CREATE TENANT a WITH (max_rows = 'many')").0, "22023");
        assert_eq!(refused("CREATE TENANT a; SELECT 1").0, "42601");
        assert_eq!(refused("SHOW TENANTS LIKE x").0, "42601");
    }

    #[test]
    fn others_are_not_ours() {
        for sql in [
            "SHOW tenantry",
            "CREATE TABLE tenant (a int)",
            "SELECT 'drop tenant x'",
            "DROP TABLE tenant",
            "SHOW \"tenants\"",
        ] {
            let parsed = parse_one(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
            assert!(parsed.own().is_none(), "{sql}");
        }
    }

    #[test]
    fn a_text_may_have_both() {
        let text = "CREATE TENANT 'a;b'; SELECT ';' -- drop tenant x;\n; drop tenant c;";
        let parts = split(text).expect("valid");
        let parts: Vec<&str> = parts.iter().map(|part| &**part).collect();
        assert_eq!(parts, ["CREATE TENANT 'a;b'", "SELECT ';' -- drop tenant x;", "drop tenant c"]);
        let error = split("CREATE TENANT a; selec 1").expect_err("bad");
        assert_eq!((error.message.as_str(), error.position), ("syntax error at or near \"selec\"", Some(18)));
        // Without one of ours, the grammar alone judges.
        assert_eq!(split("select 'tenant'; select 2").expect("valid").len(), 2);
    }
}
