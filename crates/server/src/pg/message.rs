//! What clients send: frames of bytes, and the messages in them.
//!
//!     bytes ──Frames::take──► kind and body ──decode──► Message
//!
//! Invariants (docs/invariants.md):
//!   * I-55  Any bytes: a message or an error, and no panic. A length is believed only within the limit of its kind,
//!     and memory grows with the bytes that have come, not with the length that was claimed. A message is read
//!     within its own frame and to the end of it, so no two readers can disagree where the next one begins.
//!
//! The crate `pgwire` has readers too. They take numbers from the buffer without asking whether they are there, which
//! panics, do not stop at the end of the frame, and replace what is not UTF-8.

use bytes::{Buf, Bytes, BytesMut};
use isles_kernel::error::SqlError;

/// The largest message that has no reason to be large, as in PostgreSQL: before authentication, every message.
pub(crate) const SMALL_MESSAGE_BYTES: usize = 10_000;

/// Type byte and length.
const HEADER_BYTES: usize = 5;

/// Bytes that the read buffer grows by at a time, however long the message says it is.
const GROWTH_BYTES: usize = 64 << 10;

/// A message of an established session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    Query(String),
    Parse {
        name: String,
        sql: String,
        types: Vec<u32>,
    },
    Bind(Bind),
    Describe(Target, String),
    Close(Target, String),
    Execute {
        portal: String,
        rows_max: usize,
    },
    Flush,
    Sync,
    CopyData(Bytes),
    CopyDone,
    CopyFail(String),
    FunctionCall,
    /// Any answer to a question of authentication.
    Password(Bytes),
    Terminate,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Bind {
    pub(crate) portal: String,
    pub(crate) statement: String,
    pub(crate) formats: Vec<i16>,
    pub(crate) params: Vec<Option<Bytes>>,
    pub(crate) result_formats: Vec<i16>,
}

/// What Describe and Close speak of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    Statement,
    Portal,
}

/// The kinds of messages that there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Query,
    Parse,
    Bind,
    Describe,
    Close,
    Execute,
    Flush,
    Sync,
    CopyData,
    CopyDone,
    CopyFail,
    FunctionCall,
    Password,
    Terminate,
}

impl Kind {
    fn of(byte: u8) -> Option<Kind> {
        Some(match byte {
            b'Q' => Kind::Query,
            b'P' => Kind::Parse,
            b'B' => Kind::Bind,
            b'D' => Kind::Describe,
            b'C' => Kind::Close,
            b'E' => Kind::Execute,
            b'H' => Kind::Flush,
            b'S' => Kind::Sync,
            b'd' => Kind::CopyData,
            b'c' => Kind::CopyDone,
            b'f' => Kind::CopyFail,
            b'F' => Kind::FunctionCall,
            b'p' => Kind::Password,
            b'X' => Kind::Terminate,
            _ => return None,
        })
    }

    /// Whether there may be something to do for it that takes a while.
    pub(crate) fn is_work(self) -> bool {
        !matches!(self, Kind::Close | Kind::Flush | Kind::Sync | Kind::Terminate)
    }

    /// Whether a message of this kind holds data, and so may be as large as the configuration allows.
    fn may_be_large(self) -> bool {
        matches!(self, Kind::Query | Kind::Parse | Kind::Bind | Kind::CopyData | Kind::FunctionCall)
    }
}

/// A message, framed and not yet read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    pub(crate) body: Bytes,
}

/// Bytes that have come, cut into frames.
pub(crate) struct Frames {
    buffer: BytesMut,
    /// The largest message.
    bytes_max: usize,
}

impl Frames {
    /// Before authentication nothing may be large.
    pub(crate) fn new() -> Frames {
        Frames { buffer: BytesMut::new(), bytes_max: SMALL_MESSAGE_BYTES }
    }

    pub(crate) fn allow(&mut self, bytes_max: usize) {
        self.bytes_max = bytes_max;
    }

    /// Where bytes are read into; has room.
    pub(crate) fn room(&mut self) -> &mut BytesMut {
        let missing = match self.header() {
            Ok(Some((_, length))) => (HEADER_BYTES + length).saturating_sub(self.buffer.len()),
            _ => 0,
        };
        self.buffer.reserve(missing.clamp(SMALL_MESSAGE_BYTES, GROWTH_BYTES));
        &mut self.buffer
    }

    pub(crate) fn buffered(&self) -> usize {
        self.buffer.len()
    }

    /// The bytes themselves, for what has no frame: the first packet.
    pub(crate) fn raw(&mut self) -> &mut BytesMut {
        &mut self.buffer
    }

    /// The kind of the next message, if its first byte has come.
    pub(crate) fn next_kind(&self) -> Option<Kind> {
        Kind::of(*self.buffer.first()?)
    }

    /// The next message, if all of it has come. An error is the end of the connection: where the next message begins
    /// is not known.
    pub(crate) fn take(&mut self) -> Result<Option<Frame>, SqlError> {
        match self.header()? {
            Some((kind, length)) if self.buffer.len() >= HEADER_BYTES + length => {
                self.buffer.advance(HEADER_BYTES);
                Ok(Some(Frame { kind, body: self.buffer.split_to(length).freeze() }))
            }
            _ => Ok(None),
        }
    }

    /// The kind of the next message and the length of its body, within the limit.
    fn header(&self) -> Result<Option<(Kind, usize)>, SqlError> {
        let Some(&byte) = self.buffer.first() else {
            return Ok(None);
        };
        let kind =
            Kind::of(byte).ok_or_else(|| SqlError::new("08P01", format!("invalid frontend message type {byte}")))?;
        let Some(mut length) = self.buffer.get(1..HEADER_BYTES) else {
            return Ok(None);
        };
        let length = usize::try_from(length.get_i32()).ok().and_then(|length| length.checked_sub(4));
        let length = length.ok_or_else(|| SqlError::new("08P01", "invalid message length"))?;
        let limit = if kind.may_be_large() { self.bytes_max } else { self.bytes_max.min(SMALL_MESSAGE_BYTES) };
        if length > limit {
            return Err(SqlError::new("54000", "message is too large")
                .with_detail(format!("The message has {length} bytes, and the limit is {limit}.")));
        }
        Ok(Some((kind, length)))
    }
}

/// Reads a message. An error is about this message only; the next one begins after its frame.
pub(crate) fn decode(frame: Frame) -> Result<Message, SqlError> {
    let mut body = Reader(frame.body);
    let message = match frame.kind {
        Kind::Query => Message::Query(body.text()?),
        Kind::Parse => Message::Parse { name: body.text()?, sql: body.text()?, types: body.list(Reader::u32)? },
        Kind::Bind => Message::Bind(Bind {
            portal: body.text()?,
            statement: body.text()?,
            formats: body.list(Reader::i16)?,
            params: body.list(Reader::value)?,
            result_formats: body.list(Reader::i16)?,
        }),
        Kind::Describe => Message::Describe(body.target("DESCRIBE")?, body.text()?),
        Kind::Close => Message::Close(body.target("CLOSE")?, body.text()?),
        // Zero and negative numbers mean all rows.
        Kind::Execute => Message::Execute { portal: body.text()?, rows_max: body.rows_max()? },
        Kind::CopyData => return Ok(Message::CopyData(body.0)),
        Kind::CopyFail => Message::CopyFail(body.text()?),
        Kind::Password => return Ok(Message::Password(body.0)),
        // Its arguments are not looked at, since it is refused.
        Kind::FunctionCall => return Ok(Message::FunctionCall),
        Kind::Flush => Message::Flush,
        Kind::Sync => Message::Sync,
        Kind::CopyDone => Message::CopyDone,
        Kind::Terminate => Message::Terminate,
    };
    match body.0.is_empty() {
        true => Ok(message),
        false => Err(SqlError::new("08P01", "invalid message format")),
    }
}

/// A reader of a body, or of the first packet's parameters.
pub(crate) struct Reader(pub(crate) Bytes);

impl Reader {
    fn short() -> SqlError {
        SqlError::new("08P01", "insufficient data left in message")
    }

    fn need(&self, bytes: usize) -> Result<(), SqlError> {
        if self.0.len() < bytes { Err(Reader::short()) } else { Ok(()) }
    }

    pub(crate) fn i16(&mut self) -> Result<i16, SqlError> {
        self.need(2)?;
        Ok(self.0.get_i16())
    }

    pub(crate) fn i32(&mut self) -> Result<i32, SqlError> {
        self.need(4)?;
        Ok(self.0.get_i32())
    }

    fn u32(&mut self) -> Result<u32, SqlError> {
        self.need(4)?;
        Ok(self.0.get_u32())
    }

    fn rows_max(&mut self) -> Result<usize, SqlError> {
        let given = self.i32()?;
        Ok(usize::try_from(given).ok().filter(|rows| *rows > 0).unwrap_or(usize::MAX))
    }

    fn target(&mut self, message: &str) -> Result<Target, SqlError> {
        self.need(1)?;
        match self.0.get_u8() {
            b'S' => Ok(Target::Statement),
            b'P' => Ok(Target::Portal),
            other => Err(SqlError::new("08P01", format!("invalid {message} message subtype {other}"))),
        }
    }

    /// A text that a zero ends.
    pub(crate) fn text(&mut self) -> Result<String, SqlError> {
        let end = self.0.iter().position(|byte| *byte == 0);
        let end = end.ok_or_else(|| SqlError::new("08P01", "invalid string in message"))?;
        let text = self.0.split_to(end);
        self.0.advance(1);
        utf8(&text).map(str::to_owned)
    }

    /// So many bytes; -1 for none.
    pub(crate) fn value(&mut self) -> Result<Option<Bytes>, SqlError> {
        match self.i32()? {
            -1 => Ok(None),
            length => {
                let length = usize::try_from(length).map_err(|_| Reader::short())?;
                self.need(length)?;
                Ok(Some(self.0.split_to(length)))
            }
        }
    }

    /// A count of 16 bits, and as many items. Room is made as they come: a count alone proves nothing.
    fn list<T>(&mut self, item: impl Fn(&mut Reader) -> Result<T, SqlError>) -> Result<Vec<T>, SqlError> {
        self.need(2)?;
        let count = self.0.get_u16();
        (0..count).map(|_| item(self)).collect()
    }
}

/// The text of some bytes, or PostgreSQL's complaint.
pub(crate) fn utf8(bytes: &[u8]) -> Result<&str, SqlError> {
    std::str::from_utf8(bytes).map_err(|fault| {
        let rest = &bytes[fault.valid_up_to()..];
        let wrong = &rest[..fault.error_len().unwrap_or(rest.len())];
        let shown: Vec<String> = wrong.iter().map(|byte| format!("0x{byte:02x}")).collect();
        SqlError::new("22021", format!("invalid byte sequence for encoding \"UTF8\": {}", shown.join(" ")))
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn framed(kind: u8, body: &[u8]) -> Vec<u8> {
        [&[kind][..], &(body.len() as i32 + 4).to_be_bytes(), body].concat()
    }

    fn frames(bytes: &[u8]) -> Frames {
        let mut frames = Frames::new();
        frames.allow(1 << 20);
        frames.raw().extend_from_slice(bytes);
        frames
    }

    fn read(kind: u8, body: &[u8]) -> Result<Message, SqlError> {
        decode(frames(&framed(kind, body)).take().unwrap().unwrap())
    }

    const BIND: &[u8] = b"p\0s\0\0\x01\0\x01\0\x02\0\0\0\x01x\xff\xff\xff\xff\0\x01\0\x00";

    #[test]
    fn messages_are_read_whole() {
        assert_eq!(read(b'Q', b"select 1\0"), Ok(Message::Query("select 1".into())));
        let parse = Message::Parse { name: "s".into(), sql: "q".into(), types: vec![23] };
        assert_eq!(read(b'P', b"s\0q\0\0\x01\0\0\0\x17"), Ok(parse));
        let bind = Bind {
            portal: "p".into(),
            statement: "s".into(),
            formats: vec![1],
            params: vec![Some(Bytes::from_static(b"x")), None],
            result_formats: vec![0],
        };
        assert_eq!(read(b'B', BIND), Ok(Message::Bind(bind)));
        assert_eq!(read(b'E', b"\0\0\0\0\x05"), Ok(Message::Execute { portal: String::new(), rows_max: 5 }));
        assert_eq!(read(b'E', b"\0\xff\0\0\0"), Ok(Message::Execute { portal: String::new(), rows_max: usize::MAX }));
        assert_eq!(read(b'D', b"Sx\0"), Ok(Message::Describe(Target::Statement, "x".into())));
        assert_eq!(read(b'C', b"P\0"), Ok(Message::Close(Target::Portal, String::new())));
    }

    /// I-55: cut short anywhere, or with a byte too many, a body is an error and never a panic.
    #[test]
    fn a_body_that_ends_early_or_late_is_an_error() {
        for (kind, body) in [
            (b'Q', &b"select 1\0"[..]),
            (b'P', b"s\0q\0\0\x01\0\0\0\x17"),
            (b'B', BIND),
            (b'E', b"\0\0\0\0\x05"),
            (b'D', b"Sx\0"),
            (b'C', b"P\0"),
            (b'f', b"reason\0"),
        ] {
            for cut in 0..body.len() {
                assert_eq!(read(kind, &body[..cut]).unwrap_err().sqlstate, "08P01", "{kind} cut at {cut}");
            }
            let longer = [body, b"x"].concat();
            assert_eq!(read(kind, &longer).unwrap_err().sqlstate, "08P01", "{kind} with a byte too many");
        }
        assert_eq!(read(b'S', b"x").unwrap_err().sqlstate, "08P01");
        assert_eq!(read(b'Q', b"\xff\0").unwrap_err().sqlstate, "22021");
        let negative = b"\0\0\0\0\0\x01\xff\xff\xff\xfe\0\0";
        assert_eq!(read(b'B', negative).unwrap_err().sqlstate, "08P01", "a length of -2");
    }

    /// I-55: a length is refused before anything of it has come, and room is made for what has come.
    #[test]
    fn lengths_are_not_believed() {
        for (header, state) in [
            (&b"Q\x7f\xff\xff\xff"[..], "54000"),
            (b"Q\xff\xff\xff\xff", "08P01"),
            (b"Q\x00\x00\x00\x03", "08P01"),
            (b"S\x00\x00\x40\x00", "54000"),
            (b"z", "08P01"),
        ] {
            assert_eq!(frames(header).take().unwrap_err().sqlstate, state, "{header:?}");
        }
        let mut large = Frames::new();
        large.allow(1 << 30);
        large.raw().extend_from_slice(b"Q\x30\x00\x00\x00");
        assert_eq!(large.take().unwrap(), None);
        assert!(large.room().capacity() <= 2 * GROWTH_BYTES, "{}", large.room().capacity());
    }

    /// I-54: before authentication, nothing above 10 kB.
    #[test]
    fn strangers_send_small_messages() {
        let mut frames = Frames::new();
        frames.raw().extend_from_slice(b"p\x00\x00\x27\x15");
        assert_eq!(frames.take().unwrap_err().sqlstate, "54000");
    }

    #[test]
    fn frames_are_the_same_however_they_are_cut() {
        let bytes = [framed(b'Q', b"a\0"), framed(b'S', b""), framed(b'd', b"data")].concat();
        let mut frames = frames(b"");
        let mut kinds = Vec::new();
        for byte in bytes {
            frames.raw().extend_from_slice(&[byte]);
            kinds.extend(frames.take().unwrap().map(|frame| frame.kind));
        }
        assert_eq!(kinds, [Kind::Query, Kind::Sync, Kind::CopyData]);
    }
}
