//! Statements that are sent together and answered together.
//!
//!     Bind Execute · Bind Execute · … · Sync  ──►  rows, end · rows, end · … · ReadyForQuery
//!
//! The server runs them in order, and none after one that fails. Unless one of them is BEGIN, they are one transaction,
//! which ends with them: whatever it has set, and every lock that it has taken, goes when the answer comes.

use super::fault::Fault;
use super::value::{decode, encode, type_of};
use crate::error::{Result, ShardError};
use crate::shard::Row;
use bytes::BytesMut;
use fallible_iterator::FallibleIterator;
use isles_kernel::value::{DataType, Value};
use postgres_protocol::IsNull;
use postgres_protocol::message::backend::{DataRowBody, Message, ParameterDescriptionBody, RowDescriptionBody};
use postgres_protocol::message::frontend;
use std::io;
use tokio_postgres::types::{ToSql, Type};

/// Values travel in their binary form, both ways.
const BINARY: i16 = 1;

/// A statement that the server has parsed, under a name of ours.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) name: String,
    pub(super) params: Vec<Type>,
    pub(super) columns: Vec<Type>,
}

/// What is to be sent.
#[derive(Debug, Default)]
pub(super) struct Exchange {
    bytes: BytesMut,
    /// Statements in it.
    parts: usize,
}

/// A message cannot be written that is longer than the protocol can say.
fn too_long(error: io::Error) -> ShardError {
    ShardError::statement("54000", format!("the request is too long: {error}"))
}

impl Exchange {
    /// Statements so far, which is the number of the next one.
    pub(super) fn parts(&self) -> usize {
        self.parts
    }

    /// Has a text parsed under a name, and its types told. The server finds those of parameters that are not given.
    pub(super) fn parse(&mut self, name: &str, sql: &str, types: &[DataType]) -> Result<()> {
        if sql.contains('\0') {
            return Err(ShardError::statement("22021", "invalid byte sequence for encoding \"UTF8\": 0x00"));
        }
        let types = types.iter().map(|ty| type_of(*ty).oid());
        frontend::parse(name, sql, types, &mut self.bytes).map_err(too_long)?;
        frontend::describe(b'S', name, &mut self.bytes).map_err(too_long)?;
        self.parts += 1;
        Ok(())
    }

    /// The same, with closing statements of these names in front.
    pub(super) fn behind_closing(self, names: &[String]) -> Result<Exchange> {
        let mut bytes = BytesMut::new();
        for name in names {
            frontend::close(b'S', name, &mut bytes).map_err(too_long)?;
        }
        bytes.extend_from_slice(&self.bytes);
        Ok(Exchange { bytes, parts: self.parts })
    }

    /// Runs a statement. Its first parameters are `values`, the others `more`.
    pub(super) fn run(&mut self, known: &Known, values: &[Value], more: &[&(dyn ToSql + Sync)]) -> Result<()> {
        if values.len() + more.len() != known.params.len() {
            let given = values.len() + more.len();
            let message = format!("the statement has {} parameters, {given} are given", known.params.len());
            return Err(ShardError::statement("08P01", message));
        }
        let (own, others) = known.params.split_at(values.len());
        let values = values.iter().zip(own).map(|(value, ty)| Given::Value(value, ty));
        let more = more.iter().zip(others).map(|(value, ty)| Given::Ours(*value, ty));
        let mut refused = None;
        let bound = frontend::bind(
            "",
            &known.name,
            [BINARY],
            values.chain(more),
            |given, out| {
                given
                    .write(out)
                    .map_err(|error| Box::<dyn std::error::Error + Sync + Send>::from(note(&mut refused, error)))
            },
            [BINARY],
            &mut self.bytes,
        );
        match bound {
            Ok(()) => {}
            Err(frontend::BindError::Serialization(error)) => return Err(too_long(error)),
            Err(frontend::BindError::Conversion(error)) => {
                return Err(refused.unwrap_or_else(|| ShardError::Invalid(error.to_string())));
            }
        }
        frontend::execute("", 0, &mut self.bytes).map_err(too_long)?;
        self.parts += 1;
        Ok(())
    }

    /// All of it, with what ends it.
    pub(super) fn finish(mut self) -> BytesMut {
        frontend::sync(&mut self.bytes);
        self.bytes
    }
}

/// Keeps an error, whose way leads through the library, which takes any.
fn note(kept: &mut Option<ShardError>, error: ShardError) -> String {
    let text = error.to_string();
    *kept = Some(error);
    text
}

/// A parameter and the type that the server expects.
enum Given<'a> {
    Value(&'a Value, &'a Type),
    Ours(&'a (dyn ToSql + Sync), &'a Type),
}

impl Given<'_> {
    fn write(self, out: &mut BytesMut) -> Result<IsNull> {
        match self {
            Given::Value(value, _) if value.is_null() => Ok(IsNull::Yes),
            Given::Value(value, ty) => encode(value, ty, out).map(|()| IsNull::No),
            Given::Ours(value, ty) => match value.to_sql_checked(ty, out) {
                Ok(tokio_postgres::types::IsNull::Yes) => Ok(IsNull::Yes),
                Ok(tokio_postgres::types::IsNull::No) => Ok(IsNull::No),
                Err(error) => Err(ShardError::Invalid(error.to_string())),
            },
        }
    }
}

/// What the server says to one statement.
pub(super) enum Answer {
    Row(DataRowBody),
    /// The types of a parsed text's parameters.
    Params(ParameterDescriptionBody),
    /// Those of its columns; a statement without rows has none.
    Columns(Option<RowDescriptionBody>),
    /// It has ended, and touched so many rows.
    Ended(u64),
}

/// What one message means to whoever waits.
pub(super) enum Heard {
    Answer(Answer),
    /// A statement has failed, and none after it is run.
    Failed(Fault),
    /// All has been answered.
    Ready,
    /// Nothing that anyone waits for.
    Aside,
}

pub(super) fn hear(message: Message) -> Heard {
    match message {
        Message::DataRow(row) => Heard::Answer(Answer::Row(row)),
        Message::ParameterDescription(params) => Heard::Answer(Answer::Params(params)),
        Message::RowDescription(columns) => Heard::Answer(Answer::Columns(Some(columns))),
        Message::NoData => Heard::Answer(Answer::Columns(None)),
        Message::CommandComplete(complete) => match complete.tag() {
            Ok(tag) => Heard::Answer(Answer::Ended(touched(tag))),
            Err(error) => Heard::Failed(Fault::Nonsense(error.to_string())),
        },
        Message::EmptyQueryResponse => Heard::Answer(Answer::Ended(0)),
        Message::ErrorResponse(error) => Heard::Failed(Fault::of_fields(&error)),
        Message::ReadyForQuery(_) => Heard::Ready,
        Message::ParseComplete
        | Message::BindComplete
        | Message::CloseComplete
        | Message::NoticeResponse(_)
        | Message::ParameterStatus(_)
        | Message::NotificationResponse(_) => Heard::Aside,
        _ => Heard::Failed(Fault::Nonsense("the server sent a message that was not asked for".into())),
    }
}

/// The number at the end of a command's tag, as in `INSERT 0 5`.
fn touched(tag: &str) -> u64 {
    tag.rsplit(' ').next().and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// Reads the columns of a row as values of these types.
pub(super) fn read_row(row: &DataRowBody, columns: &[Type], types: &[DataType]) -> Result<Row> {
    let damaged = || ShardError::Corrupt("the server sent a row that makes no sense".into());
    let (bytes, mut ranges) = (row.buffer(), row.ranges());
    let mut values = Vec::with_capacity(types.len());
    for (ty, expected) in columns.iter().zip(types) {
        let range = ranges.next().map_err(|_| damaged())?.ok_or_else(damaged)?;
        let raw = range.map(|range| bytes.get(range).ok_or_else(damaged)).transpose()?;
        values.push(decode(raw, ty, *expected)?);
    }
    if values.len() == types.len() { Ok(values) } else { Err(damaged()) }
}

#[cfg(test)]
mod tests {
    use super::touched;

    #[test]
    fn a_tag_tells_how_many_rows_were_touched() {
        assert_eq!(touched("INSERT 0 5"), 5);
        assert_eq!(touched("SELECT 12"), 12);
        assert_eq!(touched("BEGIN"), 0);
        assert_eq!(touched(""), 0);
    }
}
