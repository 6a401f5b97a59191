//! Constants lifted out of a text, so that texts which differ in nothing else are one.
//!
//!     SELECT v FROM t WHERE k = 7   ──►   SELECT v FROM t WHERE k = $1   and   7, an int4
//!
//! Clients that write values into their texts send a new text each time. What is left when the values are taken out is
//! the same again, and its plan can be kept: [`lift`] takes them out, and [`read`] gives them as parameters.
//!
//! It must mean the same. So it is done in few places, where the grammar takes a parameter wherever it takes a constant
//! and nobody looks at the value before the statement runs: what is compared or added in a WHERE or SET, the rows of an
//! INSERT, the members of an IN. Whatever is not known for sure, in the smallest thing, leaves the text as it is: any
//! comment, escape, dollar, letter that is not ASCII outside of quotes. Constants in other places (LIMIT, ORDER BY 1,
//! types, intervals, patterns) stay where they are, as part of the text.
//!
//! The kind of a constant is part of what is left: `7` is an int4, `7000000000` an int8, `'7'` of no type yet. Binding
//! goes by kinds and not by values, but for conversions of constants, which are done at once where those of parameters
//! wait; [`agrees`] does these, too, and compares everything. A text is lifted only if a first one has agreed.

use crate::bind::{Bound, BoundStatement, put_back, read_literal};
use crate::runtime::is_reserved;
use crate::text::Settings;
use crate::types::{self, Oid};
use isles_kernel::value::{Numeric, Value};

/// Longer texts are rare, and finding out that they are the same costs more than it saves.
pub const MAX_BYTES: usize = 4 << 10;
/// Of one text: a row of a wide table, or some rows of a small one.
const MAX_CONSTANTS: usize = 64;
/// Words that are no operands although they may be names: what follows them is one, with its own sign.
const LEADS_OPERAND: [&str; 2] = ["escape", "zone"];
/// The longest keyword that is known here.
const LONGEST_WORD: usize = 9;

/// A text without its constants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lifted {
    /// Parameters stand for the constants, in their order.
    pub text: String,
    pub constants: Vec<Constant>,
}

/// A constant, as the grammar would read it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Constant {
    Int4(i64),
    Int8(i64),
    /// With a point, or beyond an int8.
    Decimal(String),
    /// In quotes: what it is, others decide.
    Text(String),
}

impl Constant {
    /// The type that its parameter is declared with; 0 for none.
    pub fn declared(&self) -> Oid {
        match self {
            Constant::Int4(_) => types::INT4,
            Constant::Int8(_) => types::INT8,
            Constant::Decimal(_) => types::NUMERIC,
            Constant::Text(_) => Oid(0),
        }
    }

    fn value(&self, ty: Oid, settings: &Settings) -> Option<Value> {
        match self {
            Constant::Int4(n) | Constant::Int8(n) => Some(Value::Int(*n)),
            Constant::Decimal(text) => Numeric::parse(text).ok().map(Value::Numeric),
            Constant::Text(text) => read_literal(text, ty, settings),
        }
    }
}

/// The values of constants whose parameters have turned out to be of these types; None if one cannot be read now: then the
/// text itself says what is wrong with it.
pub fn read(constants: &[Constant], types: &[Oid], settings: &Settings) -> Option<Vec<Value>> {
    if constants.len() != types.len() {
        return None;
    }
    constants.iter().zip(types).map(|(constant, ty)| constant.value(*ty, settings)).collect()
}

/// Whether a lifted text, with these values in the places of its parameters, is bound to what the text itself is.
pub fn agrees(text: &Bound, lifted: &Bound, values: &[Value]) -> bool {
    let (BoundStatement::Rows(text_rows), BoundStatement::Rows(lifted_rows)) = (&text.statement, &lifted.statement)
    else {
        return false;
    };
    if !text.params.is_empty() || lifted.params.len() != values.len() || text.origins != lifted.origins {
        return false;
    }
    let mut filled = lifted_rows.clone();
    put_back(&mut filled, values);
    filled == *text_rows
}

/// Takes the constants out of a text. None if there are none to take, or if it may not be done.
pub fn lift(sql: &str) -> Option<Lifted> {
    if sql.len() > MAX_BYTES {
        return None;
    }
    let tokens = scan(sql)?;
    let mut chooser = Chooser::new(sql, &tokens)?;
    let mut lifted = Lifted { text: String::with_capacity(sql.len()), constants: Vec::new() };
    let mut copied = 0;
    for at in 0..tokens.len() {
        let Some(sign) = chooser.take(at) else { continue };
        let begin = if sign == Sign::Minus { tokens[at - 1].begin } else { tokens[at].begin };
        lifted.constants.push(constant(sql, &tokens[at], sign));
        if lifted.constants.len() > MAX_CONSTANTS {
            return None;
        }
        lifted.text.push_str(&sql[copied..begin]);
        lifted.text.push('$');
        lifted.text.push_str(itoa(lifted.constants.len(), &mut [0; 2]));
        copied = tokens[at].end;
    }
    let end = tokens.last().map_or(0, |token| token.end);
    lifted.text.push_str(sql.get(copied..end).unwrap_or_default());
    (!lifted.constants.is_empty()).then_some(lifted)
}

/// A number below a hundred.
fn itoa(n: usize, digits: &mut [u8; 2]) -> &str {
    *digits = [b'0' + (n / 10 % 10) as u8, b'0' + (n % 10) as u8];
    let from = usize::from(n < 10);
    std::str::from_utf8(&digits[from..]).unwrap_or_default()
}

fn constant(sql: &str, token: &Token, sign: Sign) -> Constant {
    let text = &sql[token.begin..token.end];
    if token.kind == Kind::Text {
        return Constant::Text(text[1..text.len() - 1].replace("''", "'"));
    }
    let signed = if sign == Sign::Minus { format!("-{text}") } else { text.to_owned() };
    // The sign comes later than the size, as in PostgreSQL's scanner.
    let is_int4 = text.parse::<i32>().is_ok();
    match signed.parse::<i64>() {
        Ok(n) if is_int4 => Constant::Int4(n),
        Ok(n) => Constant::Int8(n),
        Err(_) => Constant::Decimal(signed),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sign {
    None,
    Minus,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Word(Word),
    /// In double quotes.
    Name,
    Number,
    Text,
    Compare,
    Plus,
    Minus,
    Operator,
    Open,
    Close,
    Comma,
    /// `.`, `:`, brackets.
    Mark,
}

/// Words that matter here. All but VALUES, SET, BETWEEN and CONFLICT are reserved: a name is never one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Word {
    Select,
    Insert,
    Update,
    Delete,
    Where,
    Set,
    Values,
    In,
    Between,
    And,
    Or,
    Conflict,
    /// Begins a clause in which nothing is lifted.
    Clause,
    Other,
}

impl Word {
    fn of(text: &[u8]) -> Word {
        let mut lower = [0; LONGEST_WORD];
        let Some(lower) = lower.get_mut(..text.len()) else { return Word::Other };
        lower.copy_from_slice(text);
        lower.make_ascii_lowercase();
        match &*lower {
            b"select" => Word::Select,
            b"insert" => Word::Insert,
            b"update" => Word::Update,
            b"delete" => Word::Delete,
            b"where" => Word::Where,
            b"set" => Word::Set,
            b"values" => Word::Values,
            b"in" => Word::In,
            b"between" => Word::Between,
            b"and" => Word::And,
            b"or" => Word::Or,
            b"conflict" => Word::Conflict,
            b"from" | b"group" | b"order" | b"having" | b"limit" | b"offset" | b"fetch" | b"for" | b"union"
            | b"intersect" | b"except" | b"window" | b"returning" => Word::Clause,
            _ => Word::Other,
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Token {
    kind: Kind,
    begin: usize,
    end: usize,
}

/// The tokens of a text of one statement, without a semicolon at its end. None for anything out of the ordinary.
fn scan(sql: &str) -> Option<Vec<Token>> {
    let bytes = sql.as_bytes();
    let mut tokens = Vec::with_capacity(24);
    let mut at = 0;
    while let Some(byte) = bytes.get(at).copied() {
        let begin = at;
        let kind = match byte {
            b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c => {
                at += 1;
                continue;
            }
            b';' => return bytes[at + 1..].iter().all(|byte| byte.is_ascii_whitespace()).then_some(tokens),
            b'a'..=b'z' | b'A'..=b'Z' | b'_' => {
                at = scan_word(bytes, at)?;
                Kind::Word(Word::of(&bytes[begin..at]))
            }
            b'0'..=b'9' => {
                at = scan_number(bytes, at)?;
                Kind::Number
            }
            b'\'' => {
                at = scan_text(bytes, at)?;
                Kind::Text
            }
            b'"' => {
                at = scan_name(bytes, at)?;
                Kind::Name
            }
            b'(' | b')' | b',' | b'.' | b'[' | b']' | b':' => {
                at += 1;
                scan_mark(byte, bytes.get(at).copied())?
            }
            _ if is_operator(byte) => {
                at = scan_operator(bytes, at)?;
                operator(&bytes[begin..at])
            }
            _ => return None,
        };
        tokens.push(Token { kind, begin, end: at });
    }
    Some(tokens)
}

fn is_operator(byte: u8) -> bool {
    b"~!@#^&|`?+-*/%<>=".contains(&byte)
}

/// Whether a byte would go on with a word or number, or begin something of its own right behind one.
fn goes_on(byte: Option<&u8>) -> bool {
    byte.is_some_and(|byte| {
        byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'\'' | b'"') || !byte.is_ascii()
    })
}

fn end_of(bytes: &[u8], from: usize, is_inside: impl Fn(&u8) -> bool) -> usize {
    bytes[from..].iter().position(|byte| !is_inside(byte)).map_or(bytes.len(), |length| from + length)
}

/// A word with a quote right behind it begins a string of another kind, or may.
fn scan_word(bytes: &[u8], at: usize) -> Option<usize> {
    let end = end_of(bytes, at, |byte| byte.is_ascii_alphanumeric() || *byte == b'_');
    let unicode = matches!(bytes[at..end], [b'u' | b'U']) && bytes.get(end) == Some(&b'&');
    (!goes_on(bytes.get(end)) && !unicode).then_some(end)
}

/// Digits, or digits with a point between them.
fn scan_number(bytes: &[u8], at: usize) -> Option<usize> {
    let whole = end_of(bytes, at, u8::is_ascii_digit);
    let end = match bytes.get(whole..) {
        Some([b'.', b'0'..=b'9', ..]) => end_of(bytes, whole + 1, u8::is_ascii_digit),
        _ => whole,
    };
    (!goes_on(bytes.get(end)) && bytes.get(end) != Some(&b'.')).then_some(end)
}

/// A string in plain quotes, which does not go on in another one.
fn scan_text(bytes: &[u8], at: usize) -> Option<usize> {
    let end = scan_quoted(bytes, at, b'\'')?;
    let next = end_of(bytes, end, u8::is_ascii_whitespace);
    (!goes_on(bytes.get(end)) && bytes.get(next) != Some(&b'\'')).then_some(end)
}

fn scan_name(bytes: &[u8], at: usize) -> Option<usize> {
    let end = scan_quoted(bytes, at, b'"')?;
    (!goes_on(bytes.get(end))).then_some(end)
}

/// To behind the closing quote; a doubled one is a quote.
fn scan_quoted(bytes: &[u8], at: usize, quote: u8) -> Option<usize> {
    let mut at = at + 1;
    loop {
        match bytes.get(at)? {
            0 | b'\\' => return None,
            byte if *byte != quote => at += 1,
            _ if bytes.get(at + 1) == Some(&quote) => at += 2,
            _ => return Some(at + 1),
        }
    }
}

fn scan_mark(byte: u8, next: Option<u8>) -> Option<Kind> {
    match (byte, next) {
        (b'(', _) => Some(Kind::Open),
        (b')', _) => Some(Kind::Close),
        (b',', _) => Some(Kind::Comma),
        // A number that begins with a point; an argument by its name.
        (b'.', Some(b'0'..=b'9')) | (b':', Some(b'=')) => None,
        _ => Some(Kind::Mark),
    }
}

/// A run of operators' letters, without a comment in it.
fn scan_operator(bytes: &[u8], at: usize) -> Option<usize> {
    let end = end_of(bytes, at, |byte| is_operator(*byte));
    let comment = bytes[at..end].windows(2).any(|pair| pair == b"--" || pair == b"/*");
    (!comment).then_some(end)
}

fn operator(text: &[u8]) -> Kind {
    match text {
        b"=" | b"<" | b">" | b"<=" | b">=" | b"<>" | b"!=" => Kind::Compare,
        b"+" => Kind::Plus,
        b"-" => Kind::Minus,
        _ => Kind::Operator,
    }
}

/// Which constants are taken.
struct Chooser<'a> {
    sql: &'a str,
    tokens: &'a [Token],
    depth: usize,
    /// Within WHERE or SET.
    in_condition: bool,
    /// Behind VALUES of an INSERT, up to the next clause.
    in_rows: bool,
    /// It may still come to the rows of an INSERT.
    may_have_rows: bool,
    /// The depth of the members of an IN.
    list: Option<usize>,
    /// The AND of a BETWEEN whose first bound was taken.
    bounds: Option<usize>,
    /// Nothing more is taken: an index may have to be found by what follows.
    is_over: bool,
}

impl<'a> Chooser<'a> {
    fn new(sql: &'a str, tokens: &'a [Token]) -> Option<Chooser<'a>> {
        let first = tokens.first().map(|token| token.kind);
        let Some(Kind::Word(Word::Select | Word::Insert | Word::Update | Word::Delete)) = first else { return None };
        Some(Chooser {
            sql,
            tokens,
            depth: 0,
            in_condition: false,
            in_rows: false,
            may_have_rows: first == Some(Kind::Word(Word::Insert)),
            list: None,
            bounds: None,
            is_over: false,
        })
    }

    /// Goes past a token, and says whether it is taken, and with which sign in front of it.
    fn take(&mut self, at: usize) -> Option<Sign> {
        match self.tokens[at].kind {
            Kind::Number | Kind::Text => return self.sign(at).filter(|sign| self.is_taken(at, *sign)),
            Kind::Word(word) => self.pass_word(at, word),
            Kind::Open => {
                self.depth += 1;
                if self.kind(at, 1) == Some(Kind::Word(Word::In)) {
                    self.list = Some(self.depth);
                }
            }
            Kind::Close => {
                if self.list == Some(self.depth) {
                    self.list = None;
                }
                self.depth = self.depth.saturating_sub(1);
            }
            _ => {}
        }
        None
    }

    fn pass_word(&mut self, at: usize, word: Word) {
        // A list of anything but constants is left as it is.
        if self.list == Some(self.depth) {
            self.list = None;
        }
        if self.depth == 0 {
            self.in_rows = word == Word::Values && self.may_have_rows;
        }
        match word {
            Word::Where | Word::Set => self.in_condition = true,
            Word::Clause | Word::Values => self.in_condition = false,
            Word::Select => (self.in_condition, self.may_have_rows) = (false, false),
            Word::Conflict => self.is_over = true,
            Word::And if self.bounds != Some(at) => self.bounds = None,
            _ => {}
        }
    }

    /// The kind of the token so many places before.
    fn kind(&self, at: usize, back: usize) -> Option<Kind> {
        self.tokens.get(at.checked_sub(back)?).map(|token| token.kind)
    }

    /// Whether a number has a sign of its own in front of it; None if that is not sure.
    fn sign(&self, at: usize) -> Option<Sign> {
        if self.kind(at, 1) != Some(Kind::Minus) || self.tokens[at].kind == Kind::Text {
            return Some(Sign::None);
        }
        if self.is_operand(at, 2) {
            // Something is subtracted.
            return Some(Sign::None);
        }
        match self.kind(at, 2)? {
            Kind::Compare | Kind::Plus | Kind::Open | Kind::Comma | Kind::Word(Word::Between | Word::And) => {
                Some(Sign::Minus)
            }
            _ => None,
        }
    }

    fn is_taken(&mut self, at: usize, sign: Sign) -> bool {
        let back = if sign == Sign::Minus { 2 } else { 1 };
        let (lead, next) = (self.kind(at, back), self.tokens.get(at + 1).map(|token| token.kind));
        if self.is_over {
            return false;
        }
        let is_row = self.in_rows && self.depth == 1;
        if is_row || self.list == Some(self.depth) {
            return matches!(lead, Some(Kind::Open | Kind::Comma)) && matches!(next, Some(Kind::Comma | Kind::Close));
        }
        if !self.in_condition {
            return false;
        }
        let ends = ends_operand(next);
        match lead {
            Some(Kind::Compare) => ends,
            Some(Kind::Plus | Kind::Minus) => ends && self.is_operand(at, back + 1),
            Some(Kind::Word(Word::Between)) if next == Some(Kind::Word(Word::And)) => {
                self.bounds = Some(at + 1);
                true
            }
            Some(Kind::Word(Word::And)) => ends && self.bounds.is_some_and(|and| Some(and) == at.checked_sub(back)),
            _ => false,
        }
    }

    /// Whether something stands there that can be added to.
    fn is_operand(&self, at: usize, back: usize) -> bool {
        match self.kind(at, back) {
            Some(Kind::Name | Kind::Close) => true,
            Some(Kind::Word(Word::Other)) => {
                let word = &self.tokens[at - back];
                let word = self.sql[word.begin..word.end].to_ascii_lowercase();
                !is_reserved(&word) && !LEADS_OPERAND.contains(&word.as_str())
            }
            _ => false,
        }
    }
}

/// Whether what stands before is a whole operand, since nothing binds tighter to it.
fn ends_operand(next: Option<Kind>) -> bool {
    match next {
        None | Some(Kind::Close | Kind::Comma) => true,
        Some(Kind::Word(word)) => matches!(word, Word::And | Word::Or | Word::Where | Word::Clause),
        Some(_) => false,
    }
}

#[cfg(test)]
mod tests;
