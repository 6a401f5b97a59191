//! COPY's three formats: bytes in, fields out, and back.
//!
//!     options of the statement ──parse──► CopyOptions
//!     bytes, cut anywhere ──Decoder::feed──► rows of fields ──► (text or binary input of each type)
//!     fields of a row ──Encoder::row──► bytes
//!
//! This file knows lines, delimiters, quotes and nulls. What a field means is its type's business.
//!
//! Invariants:
//!   * However the bytes are cut, the rows are the same.
//!   * A line that does not end is refused at [`CopyLimits::line_bytes`] and never gathered whole.
//!   * What PostgreSQL refuses is refused with its words: 22P04 for data that is not of the format.
//!
//! Bytes are taken to be UTF-8, and a text that is not is refused here (22021), so that nobody behind has to look
//! again.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use isles_kernel::error::SqlError;

pub type Result<T> = std::result::Result<T, SqlError>;

/// Fields of one row; None is null.
pub type Row = Vec<Option<Bytes>>;

/// What a COPY of a binary file begins with.
const SIGNATURE: &[u8; 11] = b"PGCOPY\n\xff\r\n\0";

/// Bits of the binary header that say something a reader has to understand.
const CRITICAL_FLAGS: u32 = 0xffff_0000;

/// The bit of row oids, which no server has written since PostgreSQL 11.
const FLAG_OIDS: u32 = 1 << 16;

/// The longest line that is shown in an error's context, in characters, as PostgreSQL does.
const SHOWN_CHARS_MAX: usize = 100;

/// Bounds of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyLimits {
    /// The longest line, or binary row.
    pub line_bytes: usize,
}

impl Default for CopyLimits {
    /// As long as the longest message of the protocol: what can be inserted can be copied.
    fn default() -> CopyLimits {
        CopyLimits { line_bytes: 64 << 20 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyFormat {
    Text,
    Csv,
    Binary,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyDirection {
    /// `COPY … FROM`.
    In,
    /// `COPY … TO`.
    Out,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyHeader {
    No,
    Yes,
    /// The names of the header must be those of the columns.
    Match,
}

/// Columns that an option speaks of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyColumns {
    None,
    All,
    Named(Vec<String>),
}

/// An option's argument, as the grammar gives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyArgument {
    None,
    Text(String),
    Star,
    Names(Vec<String>),
}

/// How a copy is written, checked whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopyOptions {
    pub format: CopyFormat,
    pub delimiter: u8,
    pub null: String,
    pub header: CopyHeader,
    pub quote: u8,
    pub escape: u8,
    pub force_quote: CopyColumns,
    pub force_not_null: CopyColumns,
    pub force_null: CopyColumns,
}

impl CopyOptions {
    /// What a format is when nothing else was said.
    pub fn of(format: CopyFormat) -> CopyOptions {
        let csv = format == CopyFormat::Csv;
        CopyOptions {
            format,
            delimiter: if csv { b',' } else { b'\t' },
            null: if csv { String::new() } else { "\\N".into() },
            header: CopyHeader::No,
            quote: b'"',
            escape: b'"',
            force_quote: CopyColumns::None,
            force_not_null: CopyColumns::None,
            force_null: CopyColumns::None,
        }
    }

    /// The options of a statement, in its order. Their names are in lower case, as the grammar folds them.
    pub fn parse(direction: CopyDirection, given: &[(String, CopyArgument)]) -> Result<CopyOptions> {
        let mut draft = Draft::default();
        for (name, argument) in given {
            draft.take(direction, name, argument)?;
        }
        draft.check(direction)
    }
}

/// Options as they were given.
#[derive(Default)]
struct Draft {
    format: Option<CopyFormat>,
    delimiter: Option<String>,
    null: Option<String>,
    header: Option<CopyHeader>,
    quote: Option<String>,
    escape: Option<String>,
    encoding: Option<String>,
    freeze: Option<bool>,
    force_quote: Option<CopyColumns>,
    force_not_null: Option<CopyColumns>,
    force_null: Option<CopyColumns>,
}

impl Draft {
    fn take(&mut self, direction: CopyDirection, name: &str, argument: &CopyArgument) -> Result<()> {
        match name {
            "format" => set(&mut self.format, format_named(&text_of(name, argument)?)?),
            "delimiter" => set(&mut self.delimiter, text_of(name, argument)?),
            "null" => set(&mut self.null, text_of(name, argument)?),
            "header" => set(&mut self.header, header_of(direction, argument)?),
            "quote" => set(&mut self.quote, text_of(name, argument)?),
            "escape" => set(&mut self.escape, text_of(name, argument)?),
            "encoding" => set(&mut self.encoding, encoding_of(argument)?),
            "freeze" => set(&mut self.freeze, bool_of(name, argument)?),
            "force_quote" => set(&mut self.force_quote, columns_of(name, argument, CopyColumns::All)?),
            "force_not_null" => set(&mut self.force_not_null, columns_of(name, argument, CopyColumns::None)?),
            "force_null" => set(&mut self.force_null, columns_of(name, argument, CopyColumns::None)?),
            _ => Err(SqlError::new("42601", format!("option \"{name}\" not recognized"))),
        }
    }

    fn check(self, direction: CopyDirection) -> Result<CopyOptions> {
        let format = self.format.unwrap_or(CopyFormat::Text);
        self.check_binary(format)?;
        self.check_csv_only(format, direction)?;
        if self.freeze == Some(true) {
            return Err(SqlError::unsupported("COPY FREEZE is not supported").with_hint("Leave FREEZE out."));
        }
        let defaults = CopyOptions::of(format);
        let quote = one_byte("quote", self.quote.as_deref(), defaults.quote)?;
        let options = CopyOptions {
            format,
            delimiter: one_byte("delimiter", self.delimiter.as_deref(), defaults.delimiter)?,
            null: self.null.unwrap_or(defaults.null),
            header: self.header.unwrap_or(CopyHeader::No),
            quote,
            escape: one_byte("escape", self.escape.as_deref(), quote)?,
            force_quote: self.force_quote.unwrap_or(CopyColumns::None),
            force_not_null: self.force_not_null.unwrap_or(CopyColumns::None),
            force_null: self.force_null.unwrap_or(CopyColumns::None),
        };
        check_characters(&options)?;
        Ok(options)
    }

    fn check_binary(&self, format: CopyFormat) -> Result<()> {
        if format != CopyFormat::Binary {
            return Ok(());
        }
        if self.delimiter.is_some() {
            return Err(SqlError::new("42601", "cannot specify DELIMITER in BINARY mode"));
        }
        if self.null.is_some() {
            return Err(SqlError::new("42601", "cannot specify NULL in BINARY mode"));
        }
        match self.header {
            Some(CopyHeader::Yes | CopyHeader::Match) => {
                Err(SqlError::unsupported("cannot specify HEADER in BINARY mode"))
            }
            _ => Ok(()),
        }
    }

    fn check_csv_only(&self, format: CopyFormat, direction: CopyDirection) -> Result<()> {
        let not_csv = format != CopyFormat::Csv;
        let out = direction == CopyDirection::Out;
        for (given, what, wrong_way, only) in [
            (self.quote.is_some(), "quote", false, ""),
            (self.escape.is_some(), "escape", false, ""),
            (self.force_quote.is_some(), "force quote", !out, "COPY TO"),
            (self.force_not_null.is_some(), "force not null", out, "COPY FROM"),
            (self.force_null.is_some(), "force null", out, "COPY FROM"),
        ] {
            if given && not_csv {
                return Err(SqlError::unsupported(format!("COPY {what} available only in CSV mode")));
            }
            if given && wrong_way {
                return Err(SqlError::unsupported(format!("COPY {what} only available using {only}")));
            }
        }
        Ok(())
    }
}

fn set<T>(slot: &mut Option<T>, value: T) -> Result<()> {
    match slot.replace(value) {
        Some(_) => Err(SqlError::new("42601", "conflicting or redundant options")),
        None => Ok(()),
    }
}

fn text_of(name: &str, argument: &CopyArgument) -> Result<String> {
    match argument {
        CopyArgument::Text(text) => Ok(text.clone()),
        _ => Err(SqlError::new("42601", format!("{name} requires a parameter"))),
    }
}

fn bool_of(name: &str, argument: &CopyArgument) -> Result<bool> {
    let text = match argument {
        CopyArgument::None => return Ok(true),
        CopyArgument::Text(text) => text.to_ascii_lowercase(),
        _ => String::new(),
    };
    match text.as_str() {
        "true" | "on" | "1" => Ok(true),
        "false" | "off" | "0" => Ok(false),
        _ => Err(SqlError::new("42601", format!("{name} requires a Boolean value"))),
    }
}

fn header_of(direction: CopyDirection, argument: &CopyArgument) -> Result<CopyHeader> {
    if let CopyArgument::Text(text) = argument
        && text.eq_ignore_ascii_case("match")
    {
        return match direction {
            CopyDirection::In => Ok(CopyHeader::Match),
            CopyDirection::Out => Err(SqlError::new("22023", "cannot use \"match\" with HEADER in COPY TO")),
        };
    }
    match bool_of("header", argument) {
        Ok(true) => Ok(CopyHeader::Yes),
        Ok(false) => Ok(CopyHeader::No),
        Err(_) => Err(SqlError::new("42601", "header requires a Boolean value or \"match\"")),
    }
}

fn format_named(name: &str) -> Result<CopyFormat> {
    match name {
        "text" => Ok(CopyFormat::Text),
        "csv" => Ok(CopyFormat::Csv),
        "binary" => Ok(CopyFormat::Binary),
        _ => Err(SqlError::new("22023", format!("COPY format \"{name}\" not recognized"))),
    }
}

fn encoding_of(argument: &CopyArgument) -> Result<String> {
    let name = text_of("encoding", argument)?;
    let folded: String = name.chars().filter(char::is_ascii_alphanumeric).collect();
    match folded.to_ascii_lowercase().as_str() {
        "utf8" | "unicode" => Ok(name),
        _ => Err(SqlError::unsupported(format!("encoding \"{name}\" is not supported by COPY"))
            .with_hint("Convert the data to UTF8.")),
    }
}

fn columns_of(name: &str, argument: &CopyArgument, star: CopyColumns) -> Result<CopyColumns> {
    match argument {
        CopyArgument::Star if star == CopyColumns::All => Ok(star),
        CopyArgument::Names(names) => Ok(CopyColumns::Named(names.clone())),
        _ => Err(SqlError::new("22023", format!("argument to option \"{name}\" must be a list of column names"))),
    }
}

fn one_byte(what: &str, given: Option<&str>, default: u8) -> Result<u8> {
    match given.map(str::as_bytes) {
        None => Ok(default),
        Some([byte]) if byte.is_ascii() => Ok(*byte),
        Some(_) => Err(SqlError::unsupported(format!("COPY {what} must be a single one-byte character"))),
    }
}

fn check_characters(options: &CopyOptions) -> Result<()> {
    let invalid = |message: String| Err(SqlError::new("22023", message));
    let (delimiter, csv) = (options.delimiter, options.format == CopyFormat::Csv);
    if matches!(delimiter, b'\r' | b'\n') {
        return invalid("COPY delimiter cannot be newline or carriage return".into());
    }
    if options.null.contains(['\r', '\n']) {
        return invalid("COPY null representation cannot use newline or carriage return".into());
    }
    if options.format == CopyFormat::Text
        && (delimiter == b'\\' || delimiter == b'.' || delimiter.is_ascii_lowercase() || delimiter.is_ascii_digit())
    {
        return invalid(format!("COPY delimiter cannot be \"{}\"", char::from(delimiter)));
    }
    if csv && delimiter == options.quote {
        return invalid("COPY delimiter and quote must be different".into());
    }
    if options.null.as_bytes().contains(&delimiter) {
        return Err(SqlError::unsupported("COPY delimiter must not appear in the NULL specification"));
    }
    if csv && options.null.as_bytes().contains(&options.quote) {
        return Err(SqlError::unsupported("CSV quote character must not appear in the NULL specification"));
    }
    Ok(())
}

/// Which of a copy's columns an option speaks of.
fn flags_of(option: &str, columns: &CopyColumns, names: &[String]) -> Result<Vec<bool>> {
    let named = match columns {
        CopyColumns::None => return Ok(vec![false; names.len()]),
        CopyColumns::All => return Ok(vec![true; names.len()]),
        CopyColumns::Named(named) => named,
    };
    if let Some(stranger) = named.iter().find(|name| !names.contains(name)) {
        return Err(SqlError::new("42P10", format!("{option} column \"{stranger}\" not referenced by COPY")));
    }
    Ok(names.iter().map(|name| named.contains(name)).collect())
}

/// How the lines of a copy end; the first one decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineEnd {
    Newline,
    Return,
    Both,
}

/// Takes bytes, gives rows.
pub struct Decoder {
    options: CopyOptions,
    limits: CopyLimits,
    /// For errors: `COPY {relation}, line 3`.
    relation: String,
    names: Vec<String>,
    force_not_null: Vec<bool>,
    force_null: Vec<bool>,
    /// What has not become rows yet.
    pending: BytesMut,
    /// Bytes of `pending` that are known to hold no end of a line.
    scanned: usize,
    quoted: bool,
    escaped: bool,
    line_end: Option<LineEnd>,
    line: u64,
    header: CopyHeader,
    binary: BinaryPart,
    /// The end marker has come; what follows is ignored in the text formats.
    ended: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BinaryPart {
    Header,
    Extension(usize),
    Rows,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Input {
    More,
    Complete,
}

/// What the scan for the end of a line found.
enum Found {
    /// A line of so many bytes, and so many that end it.
    Line {
        length: usize,
        end: usize,
    },
    /// The end marker, behind so many bytes.
    Marker {
        length: usize,
    },
    Nothing,
}

impl Decoder {
    /// For the named columns of a relation, whose name is shown in errors.
    pub fn new(options: CopyOptions, relation: &str, names: Vec<String>, limits: CopyLimits) -> Result<Decoder> {
        Ok(Decoder {
            force_not_null: flags_of("FORCE_NOT_NULL", &options.force_not_null, &names)?,
            force_null: flags_of("FORCE_NULL", &options.force_null, &names)?,
            header: options.header,
            options,
            limits,
            relation: relation.to_owned(),
            names,
            pending: BytesMut::new(),
            scanned: 0,
            quoted: false,
            escaped: false,
            line_end: None,
            line: 0,
            binary: BinaryPart::Header,
            ended: false,
        })
    }

    /// The line (or binary row) that was read last, from 1.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// Takes some bytes, cut anywhere, and gives the rows that they complete.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<Vec<Row>> {
        if self.ended && self.options.format != CopyFormat::Binary {
            return Ok(Vec::new());
        }
        self.pending.extend_from_slice(bytes);
        let rows = self.rows(Input::More)?;
        if self.pending.len() > self.limits.line_bytes {
            return Err(self.too_long());
        }
        Ok(rows)
    }

    /// There are no more bytes: the row that the last ones are.
    pub fn finish(&mut self) -> Result<Vec<Row>> {
        self.rows(Input::Complete)
    }

    fn rows(&mut self, input: Input) -> Result<Vec<Row>> {
        match self.options.format {
            CopyFormat::Binary => self.binary_rows(input),
            CopyFormat::Text | CopyFormat::Csv => self.lines(input),
        }
    }

    fn lines(&mut self, input: Input) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        while !self.ended {
            let (length, end) = match self.find_line(input)? {
                Found::Line { length, end } => (length, end),
                Found::Marker { length } => {
                    self.ended = true;
                    (length, 0)
                }
                Found::Nothing if input == Input::More || self.pending.is_empty() => break,
                Found::Nothing => (self.pending.len(), 0),
            };
            let line = self.pending.split_to(length).freeze();
            self.pending.advance(end);
            (self.scanned, self.quoted, self.escaped) = (0, false, false);
            if self.ended {
                self.pending.clear();
                if line.is_empty() {
                    break;
                }
            }
            self.line += 1;
            rows.extend(self.row(line)?);
        }
        Ok(rows)
    }

    /// Looks for the end of the first pending line, from where the last look ended.
    fn find_line(&mut self, input: Input) -> Result<Found> {
        let csv = self.options.format == CopyFormat::Csv;
        while let Some(&byte) = self.pending.get(self.scanned) {
            let at = self.scanned;
            if csv {
                self.follow_quotes(byte);
            }
            match byte {
                b'\r' if !self.quoted => match self.end_by_return(at, input)? {
                    Some(end) => return Ok(Found::Line { length: at, end }),
                    None => return Ok(Found::Nothing),
                },
                b'\n' if !self.quoted => {
                    self.end_by_newline()?;
                    return Ok(Found::Line { length: at, end: 1 });
                }
                b'\\' if !csv || at == 0 => match self.backslash(at, input)? {
                    Backslash::Wait => return Ok(Found::Nothing),
                    Backslash::Marker => return Ok(Found::Marker { length: at }),
                    Backslash::Data(bytes) => self.scanned += bytes,
                },
                _ => self.scanned += 1,
            }
        }
        if input == Input::Complete && self.quoted {
            self.line += 1;
            return Err(self.bad("unterminated CSV quoted field"));
        }
        Ok(Found::Nothing)
    }

    /// Whether the scan is inside of quotes after this byte, as PostgreSQL decides it: without looking at fields.
    fn follow_quotes(&mut self, byte: u8) {
        let (quote, escape) = (self.options.quote, self.options.escape);
        let is_escape = byte == escape && escape != quote;
        if self.quoted && is_escape {
            self.escaped = !self.escaped;
        }
        if byte == quote && !self.escaped {
            self.quoted = !self.quoted;
        }
        if !is_escape {
            self.escaped = false;
        }
    }

    /// How many bytes end the line at a carriage return; None while the next byte is not known.
    fn end_by_return(&mut self, at: usize, input: Input) -> Result<Option<usize>> {
        let literal = |decoder: &mut Decoder| {
            decoder.line += 1;
            Err(decoder.stray("carriage return", "\\r"))
        };
        match (self.line_end, self.pending.get(at + 1)) {
            (Some(LineEnd::Newline), _) => literal(self),
            (Some(LineEnd::Return), _) => Ok(Some(1)),
            (_, None) if input == Input::More => Ok(None),
            (_, Some(b'\n')) => {
                self.line_end = Some(LineEnd::Both);
                Ok(Some(2))
            }
            (Some(LineEnd::Both), _) => literal(self),
            (None, _) => {
                self.line_end = Some(LineEnd::Return);
                Ok(Some(1))
            }
        }
    }

    fn end_by_newline(&mut self) -> Result<()> {
        match self.line_end {
            None | Some(LineEnd::Newline) => {
                self.line_end = Some(LineEnd::Newline);
                Ok(())
            }
            Some(LineEnd::Return | LineEnd::Both) => {
                self.line += 1;
                Err(self.stray("newline", "\\n"))
            }
        }
    }

    /// A backslash: part of the data with the byte after it, or the beginning of the end marker `\.`.
    fn backslash(&mut self, at: usize, input: Input) -> Result<Backslash> {
        let csv = self.options.format == CopyFormat::Csv;
        let complete = input == Input::Complete;
        match self.pending.get(at + 1) {
            None if complete => return Ok(Backslash::Data(1)),
            None => return Ok(Backslash::Wait),
            Some(b'.') => {}
            Some(_) if csv => return Ok(Backslash::Data(1)),
            Some(_) => return Ok(Backslash::Data(2)),
        }
        let corrupt = |decoder: &mut Decoder| match csv {
            true => Ok(Backslash::Data(1)),
            false => {
                decoder.line += 1;
                Err(decoder.bad("end-of-copy marker corrupt"))
            }
        };
        let (first, second) = (self.pending.get(at + 2).copied(), self.pending.get(at + 3).copied());
        let fits = match (self.line_end, first, second) {
            (_, None, _) if complete => true,
            (_, None, _) => return Ok(Backslash::Wait),
            (_, Some(byte), _) if byte != b'\r' && byte != b'\n' => return corrupt(self),
            (None, _, _) => true,
            (Some(LineEnd::Newline), Some(byte), _) => byte == b'\n',
            (Some(LineEnd::Return), Some(byte), _) => byte == b'\r',
            (Some(LineEnd::Both), Some(b'\n'), _) => false,
            (Some(LineEnd::Both), _, None) if !complete => return Ok(Backslash::Wait),
            (Some(LineEnd::Both), _, Some(byte)) if byte != b'\n' => return corrupt(self),
            (Some(LineEnd::Both), _, _) => true,
        };
        match fits {
            true => Ok(Backslash::Marker),
            false => {
                self.line += 1;
                Err(self.bad("end-of-copy marker does not match previous newline style"))
            }
        }
    }

    /// The row of a line; None if the line is the header.
    fn row(&mut self, line: Bytes) -> Result<Option<Row>> {
        if line.len() > self.limits.line_bytes {
            return Err(self.too_long());
        }
        let header = std::mem::replace(&mut self.header, CopyHeader::No);
        if header == CopyHeader::Yes {
            return Ok(None);
        }
        // A relation without columns has empty lines.
        let fields = match self.names.is_empty() && line.is_empty() {
            true => Vec::new(),
            false => self.fields(&line)?,
        };
        if header == CopyHeader::Match {
            self.check_header(&fields)?;
            return Ok(None);
        }
        self.check_count(&fields, &line)?;
        self.complete(fields).map(Some)
    }

    fn fields(&self, line: &Bytes) -> Result<Vec<RawField>> {
        match self.options.format {
            CopyFormat::Csv => self.csv_fields(line),
            CopyFormat::Text | CopyFormat::Binary => Ok(self.text_fields(line)),
        }
    }

    fn text_fields(&self, line: &Bytes) -> Vec<RawField> {
        let mut fields = Vec::with_capacity(self.names.len());
        let (mut begin, mut at, mut escapes) = (0, 0, false);
        loop {
            let byte = line.get(at).copied();
            match byte {
                Some(b'\\') => {
                    escapes = true;
                    at += 2;
                    continue;
                }
                Some(byte) if byte != self.options.delimiter => {
                    at += 1;
                    continue;
                }
                _ => {}
            }
            let end = at.min(line.len());
            fields.push(self.text_field(line.slice(begin..end), escapes));
            if byte.is_none() {
                return fields;
            }
            at += 1;
            (begin, escapes) = (at, false);
        }
    }

    fn text_field(&self, raw: Bytes, escapes: bool) -> RawField {
        let null = raw == self.options.null.as_bytes();
        let value = if escapes && !null { unescape(&raw) } else { raw };
        RawField { null, value }
    }

    fn csv_fields(&self, line: &Bytes) -> Result<Vec<RawField>> {
        let mut fields = Vec::with_capacity(self.names.len());
        let mut at = 0;
        loop {
            let (field, next) = self.csv_field(line, at)?;
            fields.push(field);
            match next {
                Some(next) => at = next,
                None => return Ok(fields),
            }
        }
    }

    /// The field that begins at a byte, and where the next one begins.
    fn csv_field(&self, line: &Bytes, begin: usize) -> Result<(RawField, Option<usize>)> {
        let (delimiter, quote, escape) = (self.options.delimiter, self.options.quote, self.options.escape);
        let end = line[begin..].iter().position(|byte| *byte == delimiter || *byte == quote).map(|found| begin + found);
        // Most fields have no quotes and are a piece of the line.
        if end.is_none_or(|end| line[end] == delimiter) {
            let value = line.slice(begin..end.unwrap_or(line.len()));
            let null = value == self.options.null.as_bytes();
            return Ok((RawField { null, value }, end.map(|end| end + 1)));
        }
        let (mut value, mut at, mut quoted) = (BytesMut::new(), begin, false);
        loop {
            let next = line.get(at + 1).copied();
            match line.get(at).copied() {
                None if quoted => return Err(self.bad("unterminated CSV quoted field")),
                None => return Ok((RawField { null: false, value: value.freeze() }, None)),
                Some(byte) if !quoted && byte == delimiter => {
                    return Ok((RawField { null: false, value: value.freeze() }, Some(at + 1)));
                }
                Some(byte) if quoted && byte == escape && next.is_some_and(|n| n == escape || n == quote) => {
                    value.put_u8(next.unwrap_or(byte));
                    at += 2;
                    continue;
                }
                Some(byte) if byte == quote => quoted = !quoted,
                Some(byte) => value.put_u8(byte),
            }
            at += 1;
        }
    }

    fn check_header(&self, fields: &[RawField]) -> Result<()> {
        if fields.len() != self.names.len() {
            let (got, expected) = (fields.len(), self.names.len());
            return Err(self.bad(&format!("wrong number of fields in header line: got {got}, expected {expected}")));
        }
        for (at, (field, name)) in fields.iter().zip(&self.names).enumerate() {
            let number = at + 1;
            if field.null {
                let null = &self.options.null;
                let message = format!(
                    "column name mismatch in header line field {number}: got null value (\"{null}\"), expected \"{name}\""
                );
                return Err(self.bad(&message));
            }
            if field.value != name.as_bytes() {
                let got = String::from_utf8_lossy(&field.value);
                let message =
                    format!("column name mismatch in header line field {number}: got \"{got}\", expected \"{name}\"");
                return Err(self.bad(&message));
            }
        }
        Ok(())
    }

    fn check_count(&self, fields: &[RawField], line: &Bytes) -> Result<()> {
        let message = match self.names.get(fields.len()) {
            Some(missing) => format!("missing data for column \"{missing}\""),
            None if fields.len() > self.names.len() => "extra data after last expected column".to_owned(),
            None => return Ok(()),
        };
        let shown = self.shown(line);
        Err(SqlError::new("22P04", message).within(format!("{}: \"{shown}\"", self.place())))
    }

    /// Nulls as the options have them, and texts that are UTF-8.
    fn complete(&self, fields: Vec<RawField>) -> Result<Row> {
        let mut row = Row::with_capacity(fields.len());
        for (at, field) in fields.into_iter().enumerate() {
            let RawField { mut null, mut value } = field;
            if null && self.force_not_null[at] {
                (null, value) = (false, Bytes::copy_from_slice(self.options.null.as_bytes()));
            } else if !null && self.force_null[at] && value == self.options.null.as_bytes() {
                null = true;
            }
            if !null {
                self.check_text(at, &value)?;
            }
            row.push((!null).then_some(value));
        }
        Ok(row)
    }

    fn check_text(&self, column: usize, value: &[u8]) -> Result<()> {
        let wrong = match std::str::from_utf8(value) {
            Ok(_) => match value.contains(&0) {
                true => vec![0],
                false => return Ok(()),
            },
            Err(fault) => {
                let rest = &value[fault.valid_up_to()..];
                rest[..fault.error_len().unwrap_or(rest.len())].to_vec()
            }
        };
        let bytes: Vec<String> = wrong.iter().map(|byte| format!("0x{byte:02x}")).collect();
        let message = format!("invalid byte sequence for encoding \"UTF8\": {}", bytes.join(" "));
        Err(SqlError::new("22021", message).within(format!("{}, column {}", self.place(), self.names[column])))
    }

    fn binary_rows(&mut self, input: Input) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        while self.binary_header()? {}
        while self.binary == BinaryPart::Rows && !self.ended {
            match self.binary_row()? {
                Some(row) => rows.push(row),
                None => break,
            }
        }
        if self.ended && !self.pending.is_empty() {
            return Err(self.bad("received copy data after EOF marker"));
        }
        match input {
            Input::Complete if self.binary == BinaryPart::Header => Err(self.bad("COPY file signature not recognized")),
            Input::Complete if !self.pending.is_empty() || self.binary != BinaryPart::Rows => {
                Err(self.bad("unexpected EOF in COPY data"))
            }
            _ => Ok(rows),
        }
    }

    /// Reads a piece of the header. False when it has been read or more bytes are needed.
    fn binary_header(&mut self) -> Result<bool> {
        match self.binary {
            BinaryPart::Rows => Ok(false),
            BinaryPart::Extension(left) => {
                let skipped = left.min(self.pending.len());
                self.pending.advance(skipped);
                self.binary = match left - skipped {
                    0 => BinaryPart::Rows,
                    left => BinaryPart::Extension(left),
                };
                Ok(skipped == left)
            }
            BinaryPart::Header => {
                let known = self.pending.len().min(SIGNATURE.len());
                if self.pending[..known] != SIGNATURE[..known] {
                    return Err(self.bad("COPY file signature not recognized"));
                }
                if self.pending.len() < SIGNATURE.len() + 8 {
                    return Ok(false);
                }
                self.pending.advance(SIGNATURE.len());
                let (flags, extension) = (self.pending.get_u32(), self.pending.get_i32());
                self.check_flags(flags)?;
                let extension =
                    usize::try_from(extension).map_err(|_| self.bad("invalid COPY file header (missing length)"))?;
                self.binary = BinaryPart::Extension(extension);
                Ok(true)
            }
        }
    }

    fn check_flags(&self, flags: u32) -> Result<()> {
        if flags & FLAG_OIDS != 0 {
            return Err(self.bad("invalid COPY file header (WITH OIDS)"));
        }
        match flags & CRITICAL_FLAGS {
            0 => Ok(()),
            _ => Err(self.bad("unrecognized critical flags in COPY file header")),
        }
    }

    /// The next whole row. Nothing is taken until all of it is there.
    fn binary_row(&mut self) -> Result<Option<Row>> {
        let mut look = &self.pending[..];
        if look.len() < 2 {
            return Ok(None);
        }
        let count = look.get_i16();
        if count == -1 {
            self.pending.advance(2);
            self.ended = true;
            return Ok(None);
        }
        let expected = self.names.len();
        if usize::try_from(count) != Ok(expected) {
            self.line += 1;
            return Err(self.bad(&format!("row field count is {count}, expected {expected}")));
        }
        let Some(lengths) = self.binary_lengths()? else {
            return Ok(None);
        };
        self.line += 1;
        self.pending.advance(2);
        let mut row = Row::with_capacity(expected);
        for length in lengths {
            self.pending.advance(4);
            row.push(length.map(|length| self.pending.split_to(length).freeze()));
        }
        Ok(Some(row))
    }

    /// The lengths of the fields of the row that begins `pending`, if all of it is there.
    fn binary_lengths(&mut self) -> Result<Option<Vec<Option<usize>>>> {
        let mut look = &self.pending[2..];
        let mut lengths = Vec::with_capacity(self.names.len());
        for _ in 0..self.names.len() {
            if look.len() < 4 {
                return Ok(None);
            }
            let length = match look.get_i32() {
                -1 => None,
                length => match usize::try_from(length) {
                    Ok(length) if length > self.limits.line_bytes => return Err(self.too_long()),
                    Ok(length) => Some(length),
                    Err(_) => {
                        self.line += 1;
                        return Err(self.bad("invalid field size"));
                    }
                },
            };
            if look.len() < length.unwrap_or(0) {
                return Ok(None);
            }
            look.advance(length.unwrap_or(0));
            lengths.push(length);
        }
        Ok(Some(lengths))
    }

    fn place(&self) -> String {
        format!("COPY {}, line {}", self.relation, self.line)
    }

    fn shown(&self, line: &[u8]) -> String {
        let text = String::from_utf8_lossy(&line[..line.len().min(4 * SHOWN_CHARS_MAX)]);
        match text.char_indices().nth(SHOWN_CHARS_MAX) {
            Some((end, _)) => format!("{}...", &text[..end]),
            None => text.into_owned(),
        }
    }

    fn bad(&self, message: &str) -> SqlError {
        SqlError::new("22P04", message).within(self.place())
    }

    fn too_long(&mut self) -> SqlError {
        self.line += 1;
        let limit = self.limits.line_bytes;
        SqlError::new("54000", format!("COPY line is longer than {limit} bytes")).within(self.place())
    }

    /// An end of a line that is none, because the first line ended otherwise.
    fn stray(&self, what: &str, written: &str) -> SqlError {
        match self.options.format {
            CopyFormat::Csv => self
                .bad(&format!("unquoted {what} found in data"))
                .with_hint(format!("Use quoted CSV field to represent {what}.")),
            CopyFormat::Text | CopyFormat::Binary => self
                .bad(&format!("literal {what} found in data"))
                .with_hint(format!("Use \"{written}\" to represent {what}.")),
        }
    }
}

enum Backslash {
    /// More bytes are needed to tell.
    Wait,
    Marker,
    /// So many bytes are data.
    Data(usize),
}

/// A field before nulls are decided.
struct RawField {
    null: bool,
    value: Bytes,
}

/// Takes the backslashes out of a text field.
fn unescape(raw: &[u8]) -> Bytes {
    let mut value = BytesMut::with_capacity(raw.len());
    let mut rest = raw;
    while let Some((&byte, after)) = rest.split_first() {
        rest = after;
        match (byte, rest.split_first()) {
            (b'\\', Some((&escape, after))) => {
                rest = after;
                value.put_u8(unescaped(escape, &mut rest));
            }
            _ => value.put_u8(byte),
        }
    }
    value.freeze()
}

fn unescaped(escape: u8, rest: &mut &[u8]) -> u8 {
    match escape {
        b'b' => 0x08,
        b'f' => 0x0c,
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'v' => 0x0b,
        b'0'..=b'7' => digits(rest, 8, 2, u32::from(escape - b'0')),
        b'x' if rest.first().is_some_and(u8::is_ascii_hexdigit) => digits(rest, 16, 2, 0),
        other => other,
    }
}

/// Up to `most` more digits; the number's low byte, as PostgreSQL takes it.
fn digits(rest: &mut &[u8], radix: u32, most: usize, mut number: u32) -> u8 {
    for _ in 0..most {
        let Some(digit) = rest.first().and_then(|byte| char::from(*byte).to_digit(radix)) else {
            break;
        };
        number = number * radix + digit;
        *rest = &rest[1..];
    }
    (number & 0xff) as u8
}

/// Takes fields, gives bytes. Fields are in the output form of their types: binary ones for the binary format.
pub struct Encoder {
    options: CopyOptions,
    names: Vec<String>,
    force_quote: Vec<bool>,
}

impl Encoder {
    pub fn new(options: CopyOptions, names: Vec<String>) -> Result<Encoder> {
        let force_quote = flags_of("FORCE_QUOTE", &options.force_quote, &names)?;
        Ok(Encoder { options, names, force_quote })
    }

    /// What comes before the rows.
    pub fn begin(&self, out: &mut Vec<u8>) {
        match (self.options.format, self.options.header) {
            (CopyFormat::Binary, _) => {
                out.extend_from_slice(SIGNATURE);
                out.extend_from_slice(&[0; 8]);
            }
            (_, CopyHeader::No) => {}
            (_, CopyHeader::Yes | CopyHeader::Match) => self.header(out),
        }
    }

    fn header(&self, out: &mut Vec<u8>) {
        for (at, name) in self.names.iter().enumerate() {
            self.delimit(at, out);
            match self.options.format {
                CopyFormat::Csv => self.csv_field(name.as_bytes(), self.quoting(name.as_bytes(), false), out),
                CopyFormat::Text | CopyFormat::Binary => self.text_field(name.as_bytes(), out),
            }
        }
        out.push(b'\n');
    }

    pub fn row(&self, fields: &[Option<&[u8]>], out: &mut Vec<u8>) {
        if self.options.format == CopyFormat::Binary {
            return binary_row(fields, out);
        }
        for (at, field) in fields.iter().enumerate() {
            self.delimit(at, out);
            match (field, self.options.format) {
                (None, _) => out.extend_from_slice(self.options.null.as_bytes()),
                (Some(value), CopyFormat::Csv) => {
                    let forced = self.force_quote.get(at).copied().unwrap_or(false);
                    self.csv_field(value, self.quoting(value, forced), out);
                }
                (Some(value), _) => self.text_field(value, out),
            }
        }
        out.push(b'\n');
    }

    /// What comes after the rows.
    pub fn end(&self, out: &mut Vec<u8>) {
        if self.options.format == CopyFormat::Binary {
            out.extend_from_slice(&(-1i16).to_be_bytes());
        }
    }

    fn delimit(&self, at: usize, out: &mut Vec<u8>) {
        if at > 0 {
            out.push(self.options.delimiter);
        }
    }

    fn text_field(&self, value: &[u8], out: &mut Vec<u8>) {
        for byte in value {
            let escape = match byte {
                0x08 => b'b',
                0x0c => b'f',
                b'\n' => b'n',
                b'\r' => b'r',
                b'\t' => b't',
                0x0b => b'v',
                b'\\' => b'\\',
                byte if *byte == self.options.delimiter => *byte,
                byte => {
                    out.push(*byte);
                    continue;
                }
            };
            out.extend_from_slice(&[b'\\', escape]);
        }
    }

    /// A value is quoted when it would be read as something else without.
    fn quoting(&self, value: &[u8], forced: bool) -> Quoting {
        let (delimiter, quote) = (self.options.delimiter, self.options.quote);
        let special = |byte: &u8| *byte == delimiter || *byte == quote || matches!(byte, b'\n' | b'\r');
        let needed = forced
            || value == self.options.null.as_bytes()
            || (self.names.len() == 1 && value == b"\\.")
            || value.iter().any(special);
        if needed { Quoting::Quoted } else { Quoting::Bare }
    }

    fn csv_field(&self, value: &[u8], quoting: Quoting, out: &mut Vec<u8>) {
        if quoting == Quoting::Bare {
            return out.extend_from_slice(value);
        }
        let (quote, escape) = (self.options.quote, self.options.escape);
        out.push(quote);
        for byte in value {
            if *byte == quote || *byte == escape {
                out.push(escape);
            }
            out.push(*byte);
        }
        out.push(quote);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quoting {
    Bare,
    Quoted,
}

fn binary_row(fields: &[Option<&[u8]>], out: &mut Vec<u8>) {
    out.extend_from_slice(&(fields.len() as i16).to_be_bytes());
    for field in fields {
        match field {
            None => out.extend_from_slice(&(-1i32).to_be_bytes()),
            Some(value) => {
                out.extend_from_slice(&(value.len() as i32).to_be_bytes());
                out.extend_from_slice(value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn names(count: usize) -> Vec<String> {
        ["a", "b", "c"].iter().take(count).map(|name| (*name).to_owned()).collect()
    }

    fn decoder(options: CopyOptions, columns: usize) -> Decoder {
        Decoder::new(options, "t", names(columns), CopyLimits { line_bytes: 1000 }).unwrap()
    }

    fn decode_in(mut decoder: Decoder, pieces: &[&[u8]]) -> Result<Vec<Row>> {
        let mut rows = Vec::new();
        for piece in pieces {
            rows.extend(decoder.feed(piece)?);
        }
        rows.extend(decoder.finish()?);
        Ok(rows)
    }

    /// Rows as text: fields by `|`, null as `~`, rows by newlines. However the bytes are cut, the same.
    fn check(options: CopyOptions, columns: usize, input: &[u8], expected: std::result::Result<&str, (&str, &str)>) {
        let shown = |rows: Result<Vec<Row>>| match rows {
            Ok(rows) => Ok(rows
                .iter()
                .map(|row| {
                    let fields: Vec<String> = row
                        .iter()
                        .map(|field| match field {
                            Some(field) => String::from_utf8_lossy(field).into_owned(),
                            None => "~".into(),
                        })
                        .collect();
                    fields.join("|")
                })
                .collect::<Vec<String>>()
                .join("\n")),
            Err(error) => Err((error.sqlstate.to_owned(), error.message)),
        };
        let expected = match expected {
            Ok(rows) => Ok(rows.to_owned()),
            Err((code, message)) => Err((code.to_owned(), message.to_owned())),
        };
        assert_eq!(shown(decode_in(decoder(options.clone(), columns), &[input])), expected, "whole");
        let bytes: Vec<&[u8]> = input.chunks(1).collect();
        assert_eq!(shown(decode_in(decoder(options.clone(), columns), &bytes)), expected, "byte by byte");
        for cut in 0..=input.len() {
            let pieces = [&input[..cut], &input[cut..]];
            assert_eq!(shown(decode_in(decoder(options.clone(), columns), &pieces)), expected, "cut at {cut}");
        }
    }

    fn text() -> CopyOptions {
        CopyOptions::of(CopyFormat::Text)
    }

    fn csv() -> CopyOptions {
        CopyOptions::of(CopyFormat::Csv)
    }

    #[test]
    fn text_fields_nulls_and_escapes() {
        check(text(), 2, b"1\tx\n2\t\\N\n\t\n", Ok("1|x\n2|~\n|"));
        check(text(), 2, b"1\tx", Ok("1|x"));
        check(text(), 1, b"a\\tb\\\\c\\101\\x41\\x4q\\z\n", Ok("a\tb\\cAA\u{4}qz"));
        check(text(), 1, b"a\\\nb\n", Ok("a\nb"));
        check(text(), 2, b"a\\\tb\tc\n", Ok("a\tb|c"));
        check(text(), 1, b"\\\\N\n", Ok("\\N"));
        check(text(), 1, b"\\xzz\n", Ok("xzz"));
        check(text(), 1, b"", Ok(""));
    }

    #[test]
    fn text_lines_end_as_the_first_one_did() {
        check(text(), 1, b"a\r\nb\r\n", Ok("a\nb"));
        check(text(), 1, b"a\rb\r", Ok("a\nb"));
        check(text(), 1, b"a\nb\rc\n", Err(("22P04", "literal carriage return found in data")));
        check(text(), 1, b"a\rb\nc\r", Err(("22P04", "literal newline found in data")));
        check(text(), 1, b"a\r\nb\n", Err(("22P04", "literal newline found in data")));
        check(csv(), 1, b"a\r\nb\rc\r\n", Err(("22P04", "unquoted carriage return found in data")));
    }

    #[test]
    fn the_end_marker_ends_the_data() {
        check(text(), 1, b"a\n\\.\nb\n", Ok("a"));
        check(text(), 1, b"a\n\\.", Ok("a"));
        check(text(), 1, b"a\r\n\\.\r\nb", Ok("a"));
        check(text(), 1, b"a\n\\.b\n", Err(("22P04", "end-of-copy marker corrupt")));
        check(text(), 1, b"a\r\n\\.\n", Err(("22P04", "end-of-copy marker does not match previous newline style")));
        check(text(), 1, b"a\n\\\\.\nb\n", Ok("a\n\\.\nb"));
        check(csv(), 1, b"a\n\\.\nb\n", Ok("a"));
        check(csv(), 1, b"a\n\\.b\n\"\\.\"\n", Ok("a\n\\.b\n\\."));
    }

    #[test]
    fn the_number_of_columns_must_fit() {
        check(text(), 2, b"1\n", Err(("22P04", "missing data for column \"b\"")));
        check(text(), 2, b"1\t2\t3\n", Err(("22P04", "extra data after last expected column")));
        check(csv(), 2, b"\n", Err(("22P04", "missing data for column \"b\"")));
        let error = decode_in(decoder(text(), 2), &[b"1\t2\n3\n"]).unwrap_err();
        assert_eq!(error.context.as_deref(), Some("COPY t, line 2: \"3\""));
    }

    #[test]
    fn csv_quotes_escapes_and_nulls() {
        check(csv(), 2, b"1,x\n2,\n3,\"\"\n", Ok("1|x\n2|~\n3|"));
        check(csv(), 2, b"\"a\"\"b\",\"c,d\"\n", Ok("a\"b|c,d"));
        check(csv(), 2, b"\"a\nb\",c\n", Ok("a\nb|c"));
        check(csv(), 2, b"x\"y,\"z,w\n", Ok("xy,z|w"));
        check(csv(), 1, b"\"abc\n", Err(("22P04", "unterminated CSV quoted field")));
        let escaped = CopyOptions { escape: b'\\', ..csv() };
        check(escaped, 2, b"\"a\\\"b\\\\\",c\\d\n", Ok("a\"b\\|c\\d"));
        let single = CopyOptions { delimiter: b';', quote: b'\'', escape: b'\'', null: "NULL".into(), ..csv() };
        check(single, 2, b"'a;b';NULL\n'NULL';\n", Ok("a;b|~\nNULL|"));
    }

    #[test]
    fn csv_nulls_can_be_forced() {
        let named = |name: &str| CopyColumns::Named(vec![name.to_owned()]);
        check(CopyOptions { force_not_null: named("b"), ..csv() }, 2, b",\n", Ok("~|"));
        check(CopyOptions { force_null: named("b"), ..csv() }, 2, b"\"\",\"\"\n", Ok("|~"));
        let stranger =
            Decoder::new(CopyOptions { force_null: named("x"), ..csv() }, "t", names(1), CopyLimits::default());
        let error = stranger.err().unwrap();
        assert_eq!(
            (error.sqlstate, error.message.as_str()),
            ("42P10", "FORCE_NULL column \"x\" not referenced by COPY")
        );
    }

    #[test]
    fn a_header_is_skipped_or_compared() {
        check(CopyOptions { header: CopyHeader::Yes, ..csv() }, 1, b"anything,at all\n1\n", Ok("1"));
        let matching = CopyOptions { header: CopyHeader::Match, ..csv() };
        check(matching.clone(), 2, b"a,b\n1,2\n", Ok("1|2"));
        let wrong = "column name mismatch in header line field 2: got \"x\", expected \"b\"";
        check(matching.clone(), 2, b"a,x\n1,2\n", Err(("22P04", wrong)));
        check(matching, 2, b"a\n", Err(("22P04", "wrong number of fields in header line: got 1, expected 2")));
    }

    #[test]
    fn texts_are_utf8_without_nul() {
        check(text(), 1, b"\xff\n", Err(("22021", "invalid byte sequence for encoding \"UTF8\": 0xff")));
        check(text(), 1, b"\\0\n", Err(("22021", "invalid byte sequence for encoding \"UTF8\": 0x00")));
        check(text(), 1, "\u{e4}\n".as_bytes(), Ok("\u{e4}"));
        check(csv(), 1, b"\"\xc3\"\n", Err(("22021", "invalid byte sequence for encoding \"UTF8\": 0xc3")));
    }

    #[test]
    fn a_line_without_end_is_refused_at_the_limit() {
        let mut long = decoder(text(), 1);
        assert!(long.feed(&[b'x'; 1000]).unwrap().is_empty());
        assert_eq!(long.feed(b"x").unwrap_err().sqlstate, "54000");
        let mut quoted = decoder(csv(), 1);
        quoted.feed(b"\"").unwrap();
        assert_eq!(quoted.feed(&[b'\n'; 1000]).unwrap_err().sqlstate, "54000");
        let mut claimed = decoder(CopyOptions::of(CopyFormat::Binary), 1);
        claimed.feed(SIGNATURE).unwrap();
        let huge = [&[0u8; 8][..], &1i16.to_be_bytes(), &i32::MAX.to_be_bytes()].concat();
        assert_eq!(claimed.feed(&huge).unwrap_err().sqlstate, "54000", "before any of it has come");
    }

    fn binary(rows: &[u8]) -> Vec<u8> {
        [&SIGNATURE[..], &[0; 8], rows].concat()
    }

    #[test]
    fn binary_rows() {
        let options = || CopyOptions::of(CopyFormat::Binary);
        let row = [&2i16.to_be_bytes()[..], &1i32.to_be_bytes(), b"x", &(-1i32).to_be_bytes()].concat();
        let end = (-1i16).to_be_bytes();
        check(options(), 2, &binary(&[&row[..], &row, &end].concat()), Ok("x|~\nx|~"));
        check(options(), 2, &binary(&row), Ok("x|~"));
        check(options(), 1, &binary(&row), Err(("22P04", "row field count is 2, expected 1")));
        check(options(), 2, &binary(&row[..5]), Err(("22P04", "unexpected EOF in COPY data")));
        let after = binary(&[&end[..], b"x"].concat());
        check(options(), 2, &after, Err(("22P04", "received copy data after EOF marker")));
        let negative = binary(&[&2i16.to_be_bytes()[..], &(-2i32).to_be_bytes()].concat());
        check(options(), 2, &negative, Err(("22P04", "invalid field size")));
        check(options(), 2, b"PGCOPY\n\xff\r\n1", Err(("22P04", "COPY file signature not recognized")));
        let flags = [&SIGNATURE[..], &(1u32 << 20).to_be_bytes(), &[0; 4]].concat();
        check(options(), 2, &flags, Err(("22P04", "unrecognized critical flags in COPY file header")));
        let extended = [&SIGNATURE[..], &[0; 4], &3i32.to_be_bytes(), b"abc", &row].concat();
        check(options(), 2, &extended, Ok("x|~"));
    }

    fn encoded(options: CopyOptions, rows: &[&[Option<&str>]]) -> String {
        let encoder = Encoder::new(options, names(rows[0].len())).unwrap();
        let mut out = Vec::new();
        encoder.begin(&mut out);
        for row in rows {
            let fields: Vec<Option<&[u8]>> = row.iter().map(|field| field.map(str::as_bytes)).collect();
            encoder.row(&fields, &mut out);
        }
        encoder.end(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn encoded_as_postgresql_does() {
        assert_eq!(encoded(text(), &[&[Some("a\tb\\\n"), None]]), "a\\tb\\\\\\n\t\\N\n");
        assert_eq!(encoded(csv(), &[&[Some("a,\"b"), None, Some("")]]), "\"a,\"\"b\",,\"\"\n");
        assert_eq!(encoded(csv(), &[&[Some("\\.")]]), "\"\\.\"\n");
        assert_eq!(encoded(csv(), &[&[Some("\\."), Some("x")]]), "\\.,x\n");
        let forced = CopyOptions { force_quote: CopyColumns::All, header: CopyHeader::Yes, ..csv() };
        assert_eq!(encoded(forced, &[&[Some("x"), None]]), "a,b\n\"x\",\n");
    }

    #[test]
    fn options_are_checked_as_postgresql_does() {
        let word = |text: &str| CopyArgument::Text(text.to_owned());
        let parse = |direction, given: &[(&str, CopyArgument)]| {
            let given: Vec<_> = given.iter().map(|(name, argument)| ((*name).to_owned(), argument.clone())).collect();
            CopyOptions::parse(direction, &given).map_err(|error| (error.sqlstate, error.message))
        };
        use CopyDirection::{In, Out};
        let all = parse(
            Out,
            &[
                ("format", word("csv")),
                ("delimiter", word(";")),
                ("quote", word("'")),
                ("force_quote", CopyArgument::Star),
            ],
        );
        let all = all.unwrap();
        assert_eq!((all.delimiter, all.quote, all.escape, all.force_quote), (b';', b'\'', b'\'', CopyColumns::All));
        for (direction, given, code, message) in [
            (In, vec![("format", word("xml"))], "22023", "COPY format \"xml\" not recognized"),
            (In, vec![("null", word("")), ("null", word(""))], "42601", "conflicting or redundant options"),
            (In, vec![("what", word(""))], "42601", "option \"what\" not recognized"),
            (In, vec![("delimiter", word("ab"))], "0A000", "COPY delimiter must be a single one-byte character"),
            (In, vec![("delimiter", word("a"))], "22023", "COPY delimiter cannot be \"a\""),
            (In, vec![("quote", word("'"))], "0A000", "COPY quote available only in CSV mode"),
            (In, vec![("format", word("binary")), ("null", word("x"))], "42601", "cannot specify NULL in BINARY mode"),
            (
                In,
                vec![("format", word("csv")), ("force_quote", CopyArgument::Star)],
                "0A000",
                "COPY force quote only available using COPY TO",
            ),
            (Out, vec![("header", word("match"))], "22023", "cannot use \"match\" with HEADER in COPY TO"),
            (In, vec![("encoding", word("latin1"))], "0A000", "encoding \"latin1\" is not supported by COPY"),
        ] {
            assert_eq!(parse(direction, &given), Err((code, message.to_owned())));
        }
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(
            rows in prop::collection::vec(prop::collection::vec(prop::option::of("[a-c\\\\.\"',\t\r\n;N]{0,8}"), 3), 1..6),
            format in 0..3usize,
            cut in 1..20usize,
        ) {
            let options = CopyOptions::of([CopyFormat::Text, CopyFormat::Csv, CopyFormat::Binary][format]);
            let encoder = Encoder::new(options.clone(), names(3)).unwrap();
            let mut bytes = Vec::new();
            encoder.begin(&mut bytes);
            for row in &rows {
                let fields: Vec<Option<&[u8]>> = row.iter().map(|field| field.as_deref().map(str::as_bytes)).collect();
                encoder.row(&fields, &mut bytes);
            }
            encoder.end(&mut bytes);
            let pieces: Vec<&[u8]> = bytes.chunks(cut).collect();
            let decoded = decode_in(decoder(options, 3), &pieces).unwrap();
            let expected: Vec<Row> =
                rows.iter().map(|row| row.iter().map(|f| f.clone().map(Bytes::from)).collect()).collect();
            prop_assert_eq!(decoded, expected);
        }

        #[test]
        fn any_bytes_are_rows_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..200), format in 0..3usize) {
            let options = CopyOptions::of([CopyFormat::Text, CopyFormat::Csv, CopyFormat::Binary][format]);
            let whole = decode_in(decoder(options.clone(), 2), &[&bytes]);
            let pieces: Vec<&[u8]> = bytes.chunks(1).collect();
            let piecemeal = decode_in(decoder(options, 2), &pieces);
            prop_assert_eq!(whole, piecemeal);
        }
    }
}
