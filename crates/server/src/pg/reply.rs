//! What the server sends: messages gathered in one buffer.
//!
//! Nothing here writes to a socket. A reply that is one of many costs no system call; whoever owns the buffer decides
//! when it goes out.

use bytes::{BufMut, Bytes, BytesMut};
use isles_cluster::session::{CopyFormat, Status};
use isles_kernel::error::SqlError;
use isles_kernel::schema::relation_parts;
use isles_sql::bind::Origin;
use isles_sql::tree::Field;
use isles_sql::types::Oid;
use pgwire::messages::copy::{CopyData, CopyDone, CopyInResponse, CopyOutResponse};
use pgwire::messages::data::{FieldDescription, NoData, ParameterDescription, RowDescription};
use pgwire::messages::extendedquery::{BindComplete, CloseComplete, ParseComplete, PortalSuspended};
use pgwire::messages::response::{
    CommandComplete, EmptyQueryResponse, ErrorResponse, NoticeResponse, ReadyForQuery, TransactionStatus,
};
use pgwire::messages::startup::{Authentication, BackendKeyData, NegotiateProtocolVersion, ParameterStatus, SecretKey};

/// The most columns of a result, as in PostgreSQL.
pub(crate) const COLUMNS_MAX: usize = 1664;

/// The form of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Text,
    Binary,
}

impl Format {
    pub(crate) fn code(self) -> i16 {
        match self {
            Format::Text => 0,
            Format::Binary => 1,
        }
    }
}

/// How bad it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Severity {
    Error,
    /// The connection ends with it.
    Fatal,
}

impl Severity {
    fn word(self) -> &'static str {
        match self {
            Severity::Error => "ERROR",
            Severity::Fatal => "FATAL",
        }
    }
}

/// Replies that have not gone out.
#[derive(Default)]
pub(crate) struct Replies {
    buffer: BytesMut,
}

impl Replies {
    pub(crate) fn buffer(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    pub(crate) fn len(&self) -> usize {
        self.buffer.len()
    }

    fn put(&mut self, message: impl pgwire::messages::Message) {
        let begin = self.buffer.len();
        // Only a message beyond its limit is refused: a name or a tag of 30 kB. Half a message would be worse than none.
        if message.encode(&mut self.buffer).is_err() {
            self.buffer.truncate(begin);
            tracing::error!("a reply was longer than the protocol allows and was left out");
        }
    }

    pub(crate) fn authentication(&mut self, message: Authentication) {
        self.put(message);
    }

    pub(crate) fn negotiate_version(&mut self, version: i32, strange_options: Vec<String>) {
        self.put(NegotiateProtocolVersion::new(version, strange_options));
    }

    pub(crate) fn parameter(&mut self, name: String, value: String) {
        self.put(ParameterStatus::new(name, value));
    }

    pub(crate) fn key_data(&mut self, pid: i32, key: Bytes) {
        self.put(BackendKeyData::new(pid, SecretKey::Bytes(key)));
    }

    pub(crate) fn ready(&mut self, status: Status) {
        self.put(ReadyForQuery::new(match status {
            Status::Idle => TransactionStatus::Idle,
            Status::InTransaction => TransactionStatus::Transaction,
            Status::Failed => TransactionStatus::Error,
        }));
    }

    pub(crate) fn parse_complete(&mut self) {
        self.put(ParseComplete::new());
    }

    pub(crate) fn bind_complete(&mut self) {
        self.put(BindComplete::new());
    }

    pub(crate) fn close_complete(&mut self) {
        self.put(CloseComplete::new());
    }

    pub(crate) fn no_data(&mut self) {
        self.put(NoData::new());
    }

    pub(crate) fn portal_suspended(&mut self) {
        self.put(PortalSuspended::new());
    }

    pub(crate) fn empty_query(&mut self) {
        self.put(EmptyQueryResponse::new());
    }

    pub(crate) fn complete(&mut self, tag: String) {
        self.put(CommandComplete::new(tag));
    }

    pub(crate) fn parameters(&mut self, types: &[Oid]) {
        self.put(ParameterDescription::new(types.iter().map(|oid| oid.0).collect()));
    }

    /// The columns of a result; where each comes from, if that is known; the format of each, or text for all.
    pub(crate) fn row_description(&mut self, fields: &[Field], origins: &[Origin], formats: &[Format]) {
        let described = |(at, field): (usize, &Field)| {
            let format = formats.get(at).copied().unwrap_or(Format::Text).code();
            let (oid, modifier) = (field.ty.oid, field.ty.modifier);
            let Origin { relation, column } = origins.get(at).copied().unwrap_or_default();
            let (name, length) = (field.name.clone(), type_length(oid));
            FieldDescription::new(name, relation as i32, column, oid.0, length, modifier, format)
        };
        self.put(RowDescription::new(fields.iter().enumerate().map(described).collect()));
    }

    pub(crate) fn copy_in(&mut self, format: CopyFormat, columns: usize) {
        let code = copy_code(format);
        self.put(CopyInResponse::new(code as i8, columns as i16, vec![code; columns]));
    }

    pub(crate) fn copy_out(&mut self, format: CopyFormat, columns: usize) {
        let code = copy_code(format);
        self.put(CopyOutResponse::new(code as i8, columns as i16, vec![code; columns]));
    }

    pub(crate) fn copy_data(&mut self, data: Vec<u8>) {
        self.put(CopyData::new(Bytes::from(data)));
    }

    pub(crate) fn copy_done(&mut self) {
        self.put(CopyDone::new());
    }

    pub(crate) fn error(&mut self, severity: Severity, error: &SqlError) {
        self.put(ErrorResponse::new(report(severity.word(), error)));
    }

    pub(crate) fn notice(&mut self, severity: &str, notice: &SqlError) {
        self.put(NoticeResponse::new(report(severity, notice)));
    }

    /// Begins a row, whose values are put one by one; what it returns ends it.
    pub(crate) fn begin_row(&mut self, columns: usize) -> RowMark {
        let begin = self.buffer.len();
        self.buffer.put_u8(b'D');
        self.buffer.put_i32(0);
        self.buffer.put_i16(columns as i16);
        RowMark(begin)
    }

    pub(crate) fn null(&mut self) {
        self.buffer.put_i32(-1);
    }

    pub(crate) fn value(&mut self, bytes: &[u8]) {
        self.buffer.put_i32(bytes.len() as i32);
        self.buffer.put_slice(bytes);
    }

    pub(crate) fn end_row(&mut self, mark: RowMark) {
        let length = (self.buffer.len() - mark.0 - 1) as i32;
        self.buffer[mark.0 + 1..mark.0 + 5].copy_from_slice(&length.to_be_bytes());
    }
}

/// Where a row began.
#[derive(Clone, Copy)]
pub(crate) struct RowMark(usize);

fn copy_code(format: CopyFormat) -> i16 {
    match format {
        CopyFormat::Text | CopyFormat::Csv => Format::Text.code(),
        CopyFormat::Binary => Format::Binary.code(),
    }
}

/// The fields of an error or a notice. No text may hold a zero, which ends it on the wire.
fn report(severity: &str, error: &SqlError) -> Vec<(u8, String)> {
    let mut fields = vec![
        (b'S', severity.to_owned()),
        (b'V', severity.to_owned()),
        (b'C', error.sqlstate.to_owned()),
        (b'M', error.message.replace('\0', "\u{fffd}")),
    ];
    let optional = [
        (b'D', &error.detail),
        (b'H', &error.hint),
        (b'W', &error.context),
        (b'c', &error.column),
        (b'n', &error.constraint),
    ];
    for (code, text) in optional {
        fields.extend(text.iter().map(|text| (code, text.replace('\0', "\u{fffd}"))));
    }
    if let Some((schema, table)) = error.table.as_deref().map(relation_parts) {
        fields.extend([(b's', schema), (b't', table)].map(|(code, name)| (code, name.replace('\0', "\u{fffd}"))));
    }
    fields.extend(error.position.iter().map(|at| (b'P', at.to_string())));
    fields
}

/// Bytes of a type's values, -1 where they vary and -2 for C strings: `pg_type.typlen`.
fn type_length(oid: Oid) -> i16 {
    match oid.0 {
        16 | 18 => 1,
        21 => 2,
        23 | 24 | 26 | 28 | 29 | 700 | 1082 | 2202..=2206 | 4089 | 4096 | 2278 => 4,
        27 => 6,
        20 | 701 | 790 | 1083 | 1114 | 1184 | 3220 => 8,
        1266 => 12,
        1186 | 2950 => 16,
        19 => 64,
        2275 | 705 => -2,
        _ => -1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_carries_every_field() {
        let error = SqlError::new("23505", "duplicate\0key")
            .with_detail("Key exists.")
            .with_hint("Do not.")
            .at(Some(7))
            .of_table("t")
            .of_column("c")
            .of_constraint("t_pkey")
            .within("COPY t, line 1");
        let mut replies = Replies::default();
        replies.error(Severity::Error, &error);
        let text = String::from_utf8_lossy(&replies.buffer()[5..]).replace('\0', "|");
        assert_eq!(
            text,
            "SERROR|VERROR|C23505|Mduplicate\u{fffd}key|DKey exists.|HDo not.|WCOPY t, line 1|cc|nt_pkey|spublic|tt|P7||"
        );
    }

    #[test]
    fn a_row_knows_its_length() {
        let mut replies = Replies::default();
        let mark = replies.begin_row(2);
        replies.value(b"abc");
        replies.null();
        replies.end_row(mark);
        assert_eq!(&replies.buffer()[..], b"D\0\0\0\x11\0\x02\0\0\0\x03abc\xff\xff\xff\xff");
    }

    #[test]
    fn a_tag_beyond_the_protocol_s_limit_leaves_nothing_half_written() {
        let mut replies = Replies::default();
        replies.complete("x".repeat(40_000));
        assert_eq!(replies.len(), 0);
    }
}
