//! The file that an export is: lines of JSON.
//!
//!     {"isles":"tenant","version":1,"tenant":"acme","tables":[{"name":…,"columns":[{"name":…,"type":…}],"key":[…]}]}
//!     [0,"1","first",null]          a row: the number of its table, and its values as PostgreSQL writes them
//!     {"end":{"rows":[1],"sha256":"…"}}
//!
//! The last line has the number of rows of each table, and the digest of all bytes before it. So a file that was cut
//! anywhere, or altered, is known to be before anything of it is kept.

use super::super::output::Failure;
use super::tables::Column;
use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Read, Write};

const VERSION: u32 = 1;

/// The longest line: the largest row that a message of the protocol carries, in JSON.
const LINE_BYTES_MAX: u64 = 512 << 20;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Header {
    isles: String,
    version: u32,
    pub(super) tenant: String,
    pub(super) tables: Vec<FileTable>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileTable {
    pub(super) name: String,
    pub(super) columns: Vec<Column>,
    pub(super) key: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EndLine {
    end: End,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct End {
    rows: Vec<u64>,
    sha256: String,
}

/// What every end line begins with, and no other line.
const END: &[u8] = b"{\"end\"";

/// A row of a table, by its number.
pub(super) struct FileRow {
    pub(super) table: usize,
    pub(super) values: Vec<Option<String>>,
}

fn hex(digest: Context) -> String {
    digest.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn cannot(fault: &dyn std::fmt::Display) -> Failure {
    Failure::usage(format!("the file cannot be written: {fault}")).code("io")
}

pub(super) struct Writer<W: Write> {
    out: W,
    digest: Context,
    rows: Vec<u64>,
}

impl<W: Write> Writer<W> {
    pub(super) fn new(out: W, tenant: &str, tables: Vec<FileTable>) -> Result<Writer<W>, Failure> {
        let rows = vec![0; tables.len()];
        let header = Header { isles: "tenant".into(), version: VERSION, tenant: tenant.into(), tables };
        let mut writer = Writer { out, digest: Context::new(&SHA256), rows };
        let line = serde_json::to_string(&header).map_err(|fault| cannot(&fault))?;
        writer.line(&line).map(|()| writer)
    }

    fn line(&mut self, line: &str) -> Result<(), Failure> {
        for bytes in [line.as_bytes(), b"\n"] {
            self.digest.update(bytes);
            self.out.write_all(bytes).map_err(|fault| cannot(&fault))?;
        }
        Ok(())
    }

    pub(super) fn row(&mut self, table: usize, values: &[Option<String>]) -> Result<(), Failure> {
        let mut line = format!("[{table}");
        for value in values {
            line.push(',');
            line.push_str(&serde_json::to_string(value).map_err(|fault| cannot(&fault))?);
        }
        line.push(']');
        self.rows[table] += 1;
        self.line(&line)
    }

    pub(super) fn rows(&self) -> u64 {
        self.rows.iter().sum()
    }

    /// Writes the end; what was written is given back.
    pub(super) fn finish(mut self) -> Result<W, Failure> {
        let end = EndLine { end: End { rows: self.rows, sha256: hex(self.digest) } };
        let line = serde_json::to_string(&end).map_err(|fault| cannot(&fault))?;
        writeln!(self.out, "{line}").and_then(|()| self.out.flush()).map_err(|fault| cannot(&fault))?;
        Ok(self.out)
    }
}

fn bad(what: impl Into<String>) -> Failure {
    Failure::check(what)
        .code("invalid_file")
        .hint("nothing was changed; the file is not what isles tenants export wrote")
}

pub(super) struct Reader<R: BufRead> {
    input: R,
    digest: Context,
    rows: Vec<u64>,
    line: Vec<u8>,
    number: u64,
    bytes: u64,
    pub(super) header: Header,
}

impl<R: BufRead> Reader<R> {
    pub(super) fn new(input: R) -> Result<Reader<R>, Failure> {
        let header = Header { isles: String::new(), version: 0, tenant: String::new(), tables: Vec::new() };
        let (digest, line) = (Context::new(&SHA256), Vec::new());
        let mut reader = Reader { input, digest, rows: Vec::new(), line, number: 0, bytes: 0, header };
        if !reader.next_line()? {
            return Err(bad("the file is empty"));
        }
        let not_ours = |_| bad("the first line is not the header of a tenant's export");
        let header: Header = serde_json::from_slice(&reader.line).map_err(not_ours)?;
        if header.isles != "tenant" {
            return Err(bad("the first line is not the header of a tenant's export"));
        }
        if header.version != VERSION {
            return Err(bad(format!("the file has version {}, this is for version {VERSION}", header.version)));
        }
        reader.digest.update(&reader.line);
        reader.rows = vec![0; header.tables.len()];
        reader.header = header;
        Ok(reader)
    }

    /// Reads a line, with its end; false if there is none. A last line without its end was cut.
    fn next_line(&mut self) -> Result<bool, Failure> {
        self.line.clear();
        self.number += 1;
        let read = self.input.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut self.line);
        let read = read.map_err(|fault| Failure::usage(format!("the file cannot be read: {fault}")).code("io"))?;
        self.bytes += read as u64;
        match (read, self.line.last()) {
            (0, _) => Ok(false),
            (_, Some(b'\n')) => Ok(true),
            _ => Err(bad(format!("line {} is cut off, or too long", self.number))),
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The next row. None once the end has been read and has turned out to be true of all that came before it.
    pub(super) fn next(&mut self) -> Result<Option<FileRow>, Failure> {
        if !self.next_line()? {
            return Err(bad(format!("the file is cut off after line {}", self.number - 1)));
        }
        if self.line.starts_with(END) {
            return self.check_end().map(|()| None);
        }
        self.digest.update(&self.line);
        let wrong = || bad(format!("line {} is not a row of a table of the file", self.number));
        let cells: Vec<serde_json::Value> = serde_json::from_slice(&self.line).map_err(|_| wrong())?;
        let mut cells = cells.into_iter();
        let table = cells.next().and_then(|cell| cell.as_u64()).and_then(|at| usize::try_from(at).ok());
        let table = table.filter(|at| *at < self.rows.len()).ok_or_else(wrong)?;
        let value = |cell| match cell {
            serde_json::Value::Null => Ok(None),
            serde_json::Value::String(text) => Ok(Some(text)),
            _ => Err(wrong()),
        };
        let values: Vec<Option<String>> = cells.map(value).collect::<Result<_, _>>()?;
        if values.len() != self.header.tables[table].columns.len() {
            return Err(wrong());
        }
        self.rows[table] += 1;
        Ok(Some(FileRow { table, values }))
    }

    fn check_end(&mut self) -> Result<(), Failure> {
        let EndLine { end } = serde_json::from_slice(&self.line).map_err(|_| bad("the last line is not an end"))?;
        if end.rows != self.rows {
            return Err(bad("the file does not have the rows that its end tells"));
        }
        if end.sha256 != hex(self.digest.clone()) {
            return Err(bad("the file was altered: its digest is not that of its end"));
        }
        match self.next_line()? {
            true => Err(bad("the file goes on after its end")),
            false => Ok(()),
        }
    }

    pub(super) fn rows(&self) -> u64 {
        self.rows.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn written() -> Vec<u8> {
        let column = |name: &str| Column { name: name.into(), ty: "text".into() };
        let table = |name: &str| FileTable { name: name.into(), columns: vec![column("a"), column("b")], key: vec![] };
        let mut writer = Writer::new(Vec::new(), "acme", vec![table("x"), table("y")]).unwrap();
        writer.row(0, &[Some("1\n\"\\\u{0}\u{1F600}".into()), None]).unwrap();
        writer.row(1, &[Some(String::new()), Some("{\"end\"".into())]).unwrap();
        writer.finish().unwrap()
    }

    type Cells = Vec<Option<String>>;

    fn read(bytes: &[u8]) -> Result<Vec<(usize, Cells)>, Failure> {
        let mut reader = Reader::new(bytes)?;
        let mut rows = Vec::new();
        while let Some(row) = reader.next()? {
            rows.push((row.table, row.values));
        }
        Ok(rows)
    }

    #[test]
    fn what_is_written_is_read() {
        let rows = read(&written()).unwrap();
        assert_eq!(rows[0], (0, vec![Some("1\n\"\\\u{0}\u{1F600}".into()), None]));
        assert_eq!(rows[1], (1, vec![Some(String::new()), Some("{\"end\"".into())]));
    }

    #[test]
    fn a_file_that_was_cut_anywhere_is_refused() {
        let whole = written();
        for length in 0..whole.len() {
            assert!(read(&whole[..length]).is_err(), "cut at {length}");
        }
    }

    #[test]
    fn a_file_that_was_altered_anywhere_is_refused() {
        let whole = written();
        for at in 0..whole.len() {
            let mut altered = whole.clone();
            altered[at] ^= 1;
            assert!(read(&altered).is_err(), "altered at {at}");
        }
        let mut longer = whole.clone();
        longer.extend_from_slice(b"[0,\"1\",null]\n");
        assert!(read(&longer).is_err());
        // A row that is there twice.
        let lines: Vec<&[u8]> = whole.split_inclusive(|byte| *byte == b'\n').collect();
        assert!(read(&[lines[0], lines[1], lines[1], lines[2], lines[3]].concat()).is_err());
        assert!(read(&[lines[0], lines[2], lines[1], lines[3]].concat()).is_err());
    }
}
