//! Text to PostgreSQL's raw tree, by PostgreSQL's own grammar.
//!
//!     text ──scan──► within bounds ──libpg_query──► raw tree
//!
//! The scanner comes first because the grammar has no bounds of its own: it knows just enough of the language
//! (strings, dollar quotes, comments, quoted names) to count what would cost time, memory or stack. It refuses and
//! never changes: what it lets pass is judged by the grammar alone.
//!
//! Statements of our own that the grammar does not know ([`own`]) are read before it.

mod own;

pub use own::{
    IndexOrder, IndexVerb, MigrationOrder, MoveOrder, MoveStatement, OwnStatement, ShardStatement, TenantStatement,
};

use isles_kernel::error::SqlError;
use pg_raw_parse::{Node, Owned, StmtList, raw};
use std::ffi::CString;
use std::sync::{Arc, Mutex, PoisonError};

/// Beyond a statement of a person or a driver, and small enough that parsing it, at some hundred bytes of tree for a
/// byte of text, cannot exhaust memory.
pub const MAX_BYTES: usize = 1 << 20;
/// A row of a bulk insert has few tokens; this bounds the nodes of the tree.
pub const MAX_TOKENS: usize = 300_000;
/// Parentheses, brackets and CASE inside of each other. The grammar's stack has 10,000 entries and fails strangely.
pub const MAX_NESTING: usize = 250;
/// In one text. A longer script is for COPY or for several messages.
pub const MAX_STATEMENTS: usize = 5_000;

/// A statement's raw tree, and the text that positions in it refer to.
pub struct Parsed {
    text: Arc<str>,
    tree: Owned<StmtList>,
    own: Option<OwnStatement>,
}

impl Parsed {
    pub fn text(&self) -> &Arc<str> {
        &self.text
    }

    /// The statement, if it is one that only Isles knows; the tree is empty then.
    pub fn own(&self) -> Option<&OwnStatement> {
        self.own.as_ref()
    }

    /// None for a text of nothing but comments.
    pub fn statement(&self) -> Option<Node<'_>> {
        self.tree.iter().next().map(|raw| raw.stmt())
    }

    /// The position that an error at this byte of the text is reported at.
    pub fn position(&self, location: i32) -> Option<u32> {
        position(&self.text, location)
    }
}

impl std::fmt::Debug for Parsed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Parsed").field(&self.text).finish()
    }
}

/// Characters from 1, as the protocol counts, of a byte of the text; the raw tree has -1 where it knows no location.
pub(crate) fn position(text: &str, location: i32) -> Option<u32> {
    let at = usize::try_from(location).ok()?;
    let before = text.get(..at)?;
    u32::try_from(before.chars().count() + 1).ok()
}

/// The single statements of a text.
pub fn split(sql: &str) -> Result<Vec<Arc<str>>, SqlError> {
    match own::pieces(sql)? {
        Some(pieces) => own::split(sql, &pieces),
        None => split_by_grammar(sql),
    }
}

fn split_by_grammar(sql: &str) -> Result<Vec<Arc<str>>, SqlError> {
    let tree = raw_parse(sql)?;
    let mut statements = Vec::new();
    for raw in tree.iter() {
        let start = usize::try_from(raw.stmt_location).unwrap_or(0);
        let end = match usize::try_from(raw.stmt_len) {
            Ok(0) | Err(_) => sql.len(),
            Ok(len) => start + len,
        };
        statements.push(Arc::from(sql.get(start..end).unwrap_or(sql).trim()));
    }
    Ok(statements)
}

/// The raw tree of a text of one statement.
pub fn parse_one(sql: &str) -> Result<Parsed, SqlError> {
    if own::begins(sql) {
        check_bounds(sql)?;
        let own = own::parse(sql)?;
        return Ok(Parsed { text: Arc::from(sql), tree: raw_parse("")?, own: Some(own) });
    }
    let tree = raw_parse(sql)?;
    if tree.iter().nth(1).is_some() {
        return Err(SqlError::new("42601", "cannot insert multiple commands into a prepared statement"));
    }
    Ok(Parsed { text: Arc::from(sql), tree, own: None })
}

/// libpg_query points file descriptor 2 of the process at a pipe of its own while it parses, and back. Two threads at
/// once would each save the other's pipe as "standard error", and leave the process with a closed one. So one parses
/// at a time; parsing takes microseconds.
static PARSER: Mutex<()> = Mutex::new(());

fn raw_parse(sql: &str) -> Result<Owned<StmtList>, SqlError> {
    check_bounds(sql)?;
    let _alone = PARSER.lock().unwrap_or_else(PoisonError::into_inner);
    match pg_raw_parse::parse(sql) {
        Ok(result) => Ok(result.into_inner()),
        Err(error) => Err(syntax_error(sql, error)),
    }
}

/// The text with all of its constants replaced, as PostgreSQL's own scanner finds them.
#[cfg(test)]
pub(crate) fn normalized(sql: &str) -> Option<String> {
    let _alone = PARSER.lock().unwrap_or_else(PoisonError::into_inner);
    pg_raw_parse::normalize::normalize(sql).ok()
}

fn syntax_error(sql: &str, error: pg_raw_parse::Error) -> SqlError {
    match error {
        pg_raw_parse::Error::Parse(error) => {
            let message = error.to_string();
            SqlError::new(sqlstate(&message), message).at(error_position(sql))
        }
        other => SqlError::new("42601", other.to_string()),
    }
}

/// libpg_query gives the message and not the code.
fn sqlstate(message: &str) -> &'static str {
    const NOT_SYNTAX: &[(&str, &str)] = &[
        ("not yet implemented", "0A000"),
        ("invalid byte sequence", "22021"),
        ("invalid Unicode escape", "22025"),
        ("unsafe use of", "22P06"),
        ("memory exhausted", "54001"),
        ("out of memory", "53200"),
        ("too many open file descriptors", "53000"),
        ("window function", "42P20"),
    ];
    NOT_SYNTAX.iter().find(|(part, _)| message.contains(part)).map_or("42601", |(_, code)| code)
}

/// Where the grammar stopped. [`pg_raw_parse::Error`] keeps this to itself, so the text is parsed again to ask the C
/// library: the caller holds [`PARSER`].
fn error_position(sql: &str) -> Option<u32> {
    let text = CString::new(sql).ok()?;
    // SAFETY: the context is created without a parent and deleted here, after the last use of what was allocated in
    // it, and the thread's own context is restored before that; `pg_query_raw_parse` catches PostgreSQL's jumps
    // itself. Its error and buffer are allocated by malloc, and each is freed once or left (the buffer of a failed
    // parse is null).
    unsafe {
        let context = raw::AllocSetContextCreateInternal(
            std::ptr::null_mut(),
            c"error_position".as_ptr(),
            raw::ALLOCSET_DEFAULT_MINSIZE as raw::Size,
            raw::ALLOCSET_DEFAULT_INITSIZE as raw::Size,
            raw::ALLOCSET_DEFAULT_MAXSIZE as raw::Size,
        );
        let before = raw::MemoryContextSwitchTo(context);
        let result = raw::pg_query_raw_parse(text.as_ptr(), raw::PgQueryParseMode::PG_QUERY_PARSE_DEFAULT as _);
        raw::MemoryContextSwitchTo(before);
        let mut position = None;
        if !result.error.is_null() {
            position = u32::try_from((*result.error).cursorpos).ok().filter(|at| *at > 0);
            raw::pg_query_free_error(result.error);
        }
        raw::MemoryContextDelete(context);
        position
    }
}

fn check_bounds(sql: &str) -> Result<(), SqlError> {
    if sql.len() > MAX_BYTES {
        let message = format!("statement of {} bytes exceeds the limit of {MAX_BYTES}", sql.len());
        return Err(SqlError::new("54000", message).with_hint("Send rows with COPY, or values as parameters."));
    }
    if let Some(at) = sql.bytes().position(|byte| byte == 0) {
        let error = SqlError::new("22021", "invalid byte sequence for encoding \"UTF8\": 0x00");
        return Err(error.at(position(sql, i32::try_from(at).unwrap_or(-1))));
    }
    Scanner::new(sql).run()
}

/// What is open, innermost last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Open {
    Paren,
    Case,
}

/// Counts tokens, nesting and statements.
struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
    tokens: usize,
    statements: usize,
    open: Vec<Open>,
}

impl<'a> Scanner<'a> {
    fn new(sql: &'a str) -> Scanner<'a> {
        Scanner { text: sql.as_bytes(), at: 0, tokens: 0, statements: 0, open: Vec::new() }
    }

    fn run(mut self) -> Result<(), SqlError> {
        while let Some(byte) = self.peek(0) {
            if self.skip_blank() {
                continue;
            }
            self.token(byte)?;
        }
        Ok(())
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.text.get(self.at + ahead).copied()
    }

    /// Skips white space or one comment.
    fn skip_blank(&mut self) -> bool {
        match (self.peek(0), self.peek(1)) {
            (Some(b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c), _) => self.at += 1,
            (Some(b'-'), Some(b'-')) => self.skip_line(),
            (Some(b'/'), Some(b'*')) => self.skip_comment(),
            _ => return false,
        }
        true
    }

    fn skip_line(&mut self) {
        while self.peek(0).is_some_and(|byte| byte != b'\n' && byte != b'\r') {
            self.at += 1;
        }
    }

    /// Comments nest.
    fn skip_comment(&mut self) {
        let mut depth = 0usize;
        while self.at < self.text.len() {
            match (self.peek(0), self.peek(1)) {
                (Some(b'/'), Some(b'*')) => {
                    depth += 1;
                    self.at += 2;
                }
                (Some(b'*'), Some(b'/')) => {
                    depth -= 1;
                    self.at += 2;
                }
                _ => self.at += 1,
            }
            if depth == 0 {
                return;
            }
        }
    }

    fn token(&mut self, byte: u8) -> Result<(), SqlError> {
        self.count_token()?;
        match byte {
            b'\'' => self.skip_quoted(b'\''),
            b'"' => self.skip_quoted(b'"'),
            b'$' => self.skip_dollar(),
            b'(' | b'[' => return self.enter(Open::Paren),
            b')' | b']' => self.leave_paren(),
            b';' => return self.end_statement(),
            _ if is_name_start(byte) => return self.word(),
            b'0'..=b'9' => return self.number(),
            _ => self.at += 1,
        }
        Ok(())
    }

    fn count_token(&mut self) -> Result<(), SqlError> {
        self.tokens += 1;
        if self.tokens > MAX_TOKENS {
            let message = format!("statement exceeds the limit of {MAX_TOKENS} tokens");
            return Err(SqlError::new("54000", message).with_hint("Send rows with COPY, or values as parameters."));
        }
        Ok(())
    }

    fn enter(&mut self, what: Open) -> Result<(), SqlError> {
        if what == Open::Paren {
            self.at += 1;
        }
        self.open.push(what);
        if self.open.len() > MAX_NESTING {
            let message = format!("statement is nested deeper than {MAX_NESTING} levels");
            return Err(SqlError::new("54001", message));
        }
        Ok(())
    }

    /// A CASE without END inside of parentheses is a syntax error, or a name; it ends with them.
    fn leave_paren(&mut self) {
        self.at += 1;
        while self.open.pop().is_some_and(|open| open != Open::Paren) {}
    }

    fn end_statement(&mut self) -> Result<(), SqlError> {
        self.at += 1;
        if !self.open.contains(&Open::Paren) {
            self.open.clear();
        }
        self.statements += 1;
        if self.statements > MAX_STATEMENTS {
            return Err(SqlError::new("54000", format!("text exceeds the limit of {MAX_STATEMENTS} statements")));
        }
        Ok(())
    }

    fn word(&mut self) -> Result<(), SqlError> {
        let start = self.at;
        self.skip_while(|b| is_name_start(b) || b.is_ascii_digit() || b == b'$');
        let word = &self.text[start..self.at];
        if word.eq_ignore_ascii_case(b"e") && self.peek(0) == Some(b'\'') {
            self.skip_escaped();
        } else if word.eq_ignore_ascii_case(b"case") {
            return self.enter(Open::Case);
        } else if word.eq_ignore_ascii_case(b"end") && self.open.last() == Some(&Open::Case) {
            self.open.pop();
        }
        Ok(())
    }

    /// The grammar is of a later PostgreSQL, which reads `0xFF` and `1_000` as numbers. In PostgreSQL 15 they are none.
    fn number(&mut self) -> Result<(), SqlError> {
        let mut start = self.at;
        self.skip_while(|b| b.is_ascii_alphanumeric() || b == b'.' || b == b'_');
        let mut what = "numeric literal";
        if start > 0 && self.text[start - 1] == b'$' {
            (start, what) = (start - 1, "parameter");
        }
        let number = &self.text[start..self.at];
        let of_base = matches!(number, [b'0', b'x' | b'X' | b'o' | b'O' | b'b' | b'B', ..]);
        let junk = if of_base { Some(1) } else { number.iter().position(|byte| *byte == b'_') };
        let Some(junk) = junk else { return Ok(()) };
        let end = number[junk..].iter().position(|byte| *byte == b'.').map_or(number.len(), |at| junk + at);
        let near = String::from_utf8_lossy(&number[..end]);
        let before = String::from_utf8_lossy(&self.text[..start]).chars().count();
        let message = format!("trailing junk after {what} at or near \"{near}\"");
        Err(SqlError::new("42601", message).at(u32::try_from(before + 1).ok()))
    }

    fn skip_while(&mut self, mut accept: impl FnMut(u8) -> bool) {
        while self.peek(0).is_some_and(&mut accept) {
            self.at += 1;
        }
    }

    /// A doubled quote ends one string and begins the next, which for counting is the same as one string.
    fn skip_quoted(&mut self, quote: u8) {
        self.at += 1;
        self.skip_while(|byte| byte != quote);
        self.at += 1;
    }

    /// `E'…'`, where a backslash escapes the quote; also in what continues the string on another line.
    fn skip_escaped(&mut self) {
        loop {
            self.at += 1;
            while let Some(byte) = self.peek(0).filter(|byte| *byte != b'\'') {
                self.at += if byte == b'\\' { 2 } else { 1 };
            }
            self.at += 1;
            let end = self.at;
            while self.skip_blank() {}
            if self.peek(0) != Some(b'\'') {
                return;
            }
            if self.at != end && !self.text[end..self.at].contains(&b'\n') {
                return;
            }
        }
    }

    /// `$tag$ … $tag$`, or a parameter.
    fn skip_dollar(&mut self) {
        let rest = &self.text[self.at..];
        let Some(tag) = dollar_tag(rest) else {
            self.at += 1;
            return;
        };
        let body = &rest[tag.len()..];
        let end = body.windows(tag.len()).position(|window| window == tag);
        self.at += tag.len() + end.map_or(body.len(), |end| end + tag.len());
    }
}

fn is_name_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || byte == b'_' || byte >= 0x80
}

fn dollar_tag(text: &[u8]) -> Option<&[u8]> {
    let name = text[1..].iter().take_while(|byte| is_name_start(**byte) || byte.is_ascii_digit()).count();
    let starts_well = text.get(1).is_some_and(|byte| *byte == b'$' || is_name_start(*byte));
    (starts_well && text.get(name + 1) == Some(&b'$')).then(|| &text[..name + 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(sql: &str) -> SqlError {
        parse_one(sql).expect_err(sql)
    }

    #[test]
    fn a_text_is_split_into_its_statements() {
        let parts = split("select 1; select ';' /* ; */ ;;\n -- end;\n insert into t values ($$;$$)").expect("valid");
        let parts: Vec<&str> = parts.iter().map(|part| &**part).collect();
        assert_eq!(parts, ["select 1", "select ';' /* ; */", "insert into t values ($$;$$)"]);
        assert!(split(" -- nothing\n").expect("valid").is_empty());
        assert!(parse_one("").expect("valid").statement().is_none());
    }

    #[test]
    fn a_prepared_statement_is_one_statement() {
        let error = error("select 1; select 2");
        assert_eq!(error.message, "cannot insert multiple commands into a prepared statement");
    }

    #[test]
    fn syntax_errors_are_postgresql_s_own() {
        let bad = error("selec 1");
        assert_eq!((bad.sqlstate, bad.message.as_str()), ("42601", "syntax error at or near \"selec\""));
        assert_eq!(bad.position, Some(1));
        // Characters and not bytes.
        assert_eq!(error("select 'äöü' fro t x").position, Some(18));
        let bad = error("select 1 +");
        assert_eq!((bad.message.as_str(), bad.position), ("syntax error at end of input", Some(11)));
        let bad = error("select 'abc");
        assert_eq!((bad.message.as_str(), bad.position), ("unterminated quoted string at or near \"'abc\"", Some(8)));
    }

    #[test]
    fn numbers_of_later_versions_are_refused_as_postgresql_15_does() {
        for number in ["0xFF", "0o17", "0b11", "1_000", "1.5_0", "1e1_0"] {
            let bad = error(&format!("select 'ä', {number}"));
            let message = format!("trailing junk after numeric literal at or near \"{number}\"");
            assert_eq!((bad.sqlstate, bad.message, bad.position), ("42601", message, Some(13)));
        }
        for good in ["select a_1, $1, 1e5, 1.5, '0xFF', \"1_0\" -- 1_000", "select $$1_0$$, arr[1:a_b] /* 0xFF */"] {
            assert!(parse_one(good).is_ok(), "{good}");
        }
        assert_eq!(error("select $1_0").message, "trailing junk after parameter at or near \"$1_0\"");
    }

    #[test]
    fn nul_bytes_are_refused() {
        assert_eq!(error("select '\0'").sqlstate, "22021");
    }

    #[test]
    fn size_tokens_nesting_and_statements_are_bounded() {
        assert_eq!(error(&format!("select '{}'", "x".repeat(MAX_BYTES))).sqlstate, "54000");
        assert_eq!(error(&format!("select {}1", "1,".repeat(MAX_TOKENS / 2))).sqlstate, "54000");
        assert_eq!(split(&"select 1;".repeat(MAX_STATEMENTS + 1)).expect_err("too many").sqlstate, "54000");
        let nested = |depth: usize| format!("select {}1{}", "(".repeat(depth), ")".repeat(depth));
        assert!(parse_one(&nested(MAX_NESTING)).is_ok());
        assert_eq!(error(&nested(MAX_NESTING + 1)).sqlstate, "54001");
        let cases = "case when true then ".repeat(MAX_NESTING + 1);
        assert_eq!(error(&format!("select {cases} 1 {}", "end ".repeat(MAX_NESTING + 1))).sqlstate, "54001");
    }

    #[test]
    fn the_scanner_knows_what_is_not_code() {
        let many = "(".repeat(MAX_NESTING + 1);
        for quiet in [
            format!("select '{many}'"),
            format!("select 'it''s {many}'"),
            format!("select e'\\'{many}'"),
            format!("select e'a'\n'\\'{many}'"),
            format!("select $x$ $$ {many} $x$"),
            format!("select \"{many}\" from t"),
            format!("select 1 -- {many}"),
            format!("select /* /* {many} */ {many} */ 1"),
        ] {
            assert!(parse_one(&quiet).is_ok() || error(&quiet).sqlstate == "42601", "{quiet}");
        }
        // What looks like a quote and is none hides nothing.
        for loud in [format!("select $1 {many}"), format!("select a$b$ {many} $b$"), format!("select 'a\\' {many}'")] {
            assert_eq!(error(&loud).sqlstate, "54001", "{loud}");
        }
    }

    #[test]
    fn escapes_that_are_no_text_are_refused() {
        for bad in ["select E'\\xff'", "select E'\\xc3'", "select U&'\\d800'", "select E'\\u0000'"] {
            assert!(matches!(error(bad).sqlstate, "22021" | "42601" | "22025"), "{bad}: {}", error(bad));
        }
    }

    #[test]
    fn many_threads_parse_at_once() {
        std::thread::scope(|scope| {
            for n in 0..8 {
                scope.spawn(move || {
                    for i in 0..50 {
                        assert!(parse_one(&format!("select {n} + {i}")).is_ok());
                        assert_eq!(error("select from from").position, Some(13));
                    }
                });
            }
        });
    }
}
