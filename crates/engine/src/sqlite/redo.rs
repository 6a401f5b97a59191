//! What a transaction over several shards did on one of them, so that it can be done again.
//!
//!     rows ─ schema step ─ rows ─ schema step ─ … ─ rows
//!
//! In the order in which it was done: rows are put back under the schema that they were written under.
//!
//! Invariant: decoding any bytes returns pieces or an error, never panics.

use super::capture::Capture;
use crate::error::{Result, ShardError};
use crate::shard::SchemaStep;
use isles_kernel::names::SchemaVersion;
use isles_kernel::value::{Damaged, Decoder, Encoder};

/// The layout; raised when it changes.
const FORMAT: u8 = 2;

const ROWS: u8 = 0;
const SCHEMA: u8 = 1;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece {
    /// A record, as the change log has it.
    Rows(Vec<u8>),
    Schema(SchemaStep),
}

/// All that was captured; rows that come last are of schema `now`.
pub(super) fn encode(capture: &Capture, now: SchemaVersion) -> Result<Vec<u8>> {
    let mut out = Encoder { bytes: vec![FORMAT] };
    for chapter in &capture.chapters {
        if !chapter.record.is_empty() {
            rows(&mut out, &chapter.record.finish(chapter.schema));
        }
        step(&mut out, &chapter.then)?;
    }
    if !capture.record.is_empty() {
        rows(&mut out, &capture.record.finish(now));
    }
    Ok(out.bytes)
}

fn rows(out: &mut Encoder, record: &[u8]) {
    out.bytes.push(ROWS);
    out.blob(record);
}

fn step(out: &mut Encoder, step: &SchemaStep) -> Result<()> {
    let body = serde_json::to_vec(step).map_err(|error| ShardError::invalid(error.to_string()))?;
    // JSON has no NaN and no infinite floats; a default that would be lost is refused now rather than missed later.
    if serde_json::from_slice::<SchemaStep>(&body).ok().as_ref() != Some(step) {
        return Err(ShardError::invalid("a default of the schema cannot be stored"));
    }
    out.bytes.push(SCHEMA);
    out.blob(&body);
    Ok(())
}

pub(super) fn decode(redo: &[u8]) -> std::result::Result<Vec<Piece>, Damaged> {
    let mut input = Decoder::new(redo);
    if input.byte()? != FORMAT {
        return Err(Damaged);
    }
    let mut pieces = Vec::new();
    while !input.is_empty() {
        let tag = input.byte()?;
        let body = input.blob()?;
        pieces.push(match tag {
            ROWS => Piece::Rows(body.to_vec()),
            SCHEMA => Piece::Schema(serde_json::from_slice(body).map_err(|_| Damaged)?),
            _ => return Err(Damaged),
        });
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn pieces_come_back_in_their_order() {
        let mut capture = Capture::default();
        let then = SchemaStep { from: SchemaVersion(3), changes: vec![], fences: vec![] };
        capture.close_chapter(SchemaVersion(3), then.clone());
        let after = SchemaStep { from: SchemaVersion(4), ..then.clone() };
        capture.close_chapter(SchemaVersion(4), after.clone());
        let redo = encode(&capture, SchemaVersion(5)).expect("it can be told");
        assert_eq!(decode(&redo).ok(), Some(vec![Piece::Schema(then), Piece::Schema(after)]));
    }

    proptest! {
        #[test]
        fn decoding_any_redo_never_panics(mut bytes in any::<Vec<u8>>()) {
            bytes.insert(0, FORMAT);
            let _ = decode(&bytes);
        }
    }
}
