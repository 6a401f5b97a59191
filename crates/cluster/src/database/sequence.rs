//! Sequences: numbers that are unique over all shards.
//!
//! The catalog has, for each sequence, the last number that has been given away. A process takes a block of numbers by
//! compare-and-set and hands them out from memory, so most calls cost nothing. What a process had not handed out when
//! it crashed is lost, as PostgreSQL loses up to 32 numbers; a process that closes gives its rest back.
//!
//! As in PostgreSQL, numbers are never given back by a rollback.

use crate::catalog::{Catalog, CatalogError, Key, Record, Transaction};
use crate::commit::decision::catalog_error;
use isles_kernel::error::SqlError;
use isles_kernel::schema::Sequence;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Numbers of a block: a write to the catalog's disk is shared by so many rows.
const BLOCK: u64 = 128;
/// How often a block that somebody else was faster with is asked for again.
const ATTEMPTS: usize = 20;

/// As PostgreSQL keeps it: the last number, and whether it has been given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Position {
    pub(crate) last: i64,
    pub(crate) called: bool,
}

impl Position {
    /// Of a sequence that has given out nothing.
    pub(crate) fn first(sequence: &Sequence) -> Position {
        Position { last: sequence.start, called: false }
    }
}

/// Numbers that this process may hand out: `next` and `left - 1` more.
#[derive(Debug, Clone, Copy)]
struct Block {
    next: i64,
    left: u64,
}

pub(crate) struct Sequences {
    catalog: Arc<dyn Catalog>,
    /// One lock for each sequence, held while a block is fetched; its content is the block.
    blocks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<Option<Block>>>>>,
}

pub(crate) fn key(name: &str) -> Result<Key, SqlError> {
    Key::new(format!("sequence/{name}")).map_err(catalog_error)
}

fn reached(sequence: &Sequence) -> SqlError {
    let (which, bound) = if sequence.increment > 0 { ("maximum", sequence.max) } else { ("minimum", sequence.min) };
    let message = format!("nextval: reached {which} value of sequence \"{}\" ({bound})", sequence.name);
    SqlError::new("2200H", message)
}

/// The number after `last`, if there is one.
fn following(sequence: &Sequence, last: i64) -> Option<i64> {
    let next = last.checked_add(sequence.increment).filter(|next| (sequence.min..=sequence.max).contains(next));
    match (next, sequence.cycle) {
        (Some(next), _) => Some(next),
        (None, true) => Some(if sequence.increment > 0 { sequence.min } else { sequence.max }),
        (None, false) => None,
    }
}

/// Moves a position to the next number.
pub(crate) fn advance(sequence: &Sequence, position: &mut Position) -> Result<i64, SqlError> {
    let (block, after) = block(sequence, *position, 1).ok_or_else(|| reached(sequence))?;
    *position = after;
    Ok(block.next)
}

/// Whether a sequence may be set to a value.
pub(crate) fn check_value(sequence: &Sequence, value: i64) -> Result<(), SqlError> {
    if (sequence.min..=sequence.max).contains(&value) {
        return Ok(());
    }
    let message = format!(
        "setval: value {value} is out of bounds for sequence \"{}\" ({}..{})",
        sequence.name, sequence.min, sequence.max
    );
    Err(SqlError::new("22003", message))
}

/// The next block from a position, without going round.
fn block(sequence: &Sequence, position: Position, wanted: u64) -> Option<(Block, Position)> {
    let next = if position.called { following(sequence, position.last)? } else { position.last };
    let room = if sequence.increment > 0 { sequence.max.abs_diff(next) } else { next.abs_diff(sequence.min) };
    let left = (room / sequence.increment.unsigned_abs()).saturating_add(1).min(wanted);
    let steps = i64::try_from(left - 1).unwrap_or(i64::MAX);
    let last = next.saturating_add(sequence.increment.saturating_mul(steps));
    Some((Block { next, left }, Position { last, called: true }))
}

impl Sequences {
    pub(crate) fn new(catalog: Arc<dyn Catalog>) -> Sequences {
        Sequences { catalog, blocks: Mutex::default() }
    }

    fn slot(&self, name: &str) -> Arc<tokio::sync::Mutex<Option<Block>>> {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.entry(name.to_string()).or_default().clone()
    }

    /// The next number.
    pub(crate) async fn next(&self, sequence: &Sequence) -> Result<i64, SqlError> {
        Ok(self.take(sequence, 1).await?[0])
    }

    /// The next `count` numbers.
    pub(crate) async fn take(&self, sequence: &Sequence, count: u64) -> Result<Vec<i64>, SqlError> {
        let slot = self.slot(&sequence.name);
        let mut held = slot.lock().await;
        let mut numbers = Vec::new();
        while (numbers.len() as u64) < count {
            let missing = count - numbers.len() as u64;
            let mut block = match held.take().filter(|block| block.left > 0) {
                Some(block) => block,
                None => self.fetch(sequence, missing.max(BLOCK)).await?,
            };
            let taken = block.left.min(missing);
            for _ in 0..taken {
                numbers.push(block.next);
                block.left -= 1;
                block.next = block.next.wrapping_add(sequence.increment);
            }
            *held = Some(block);
        }
        Ok(numbers)
    }

    async fn read(&self, sequence: &Sequence) -> Result<(Key, Option<Record>, Position), SqlError> {
        let key = key(&sequence.name)?;
        let stored = self.catalog.get(&key).await.map_err(catalog_error)?.value;
        let position = match &stored {
            Some(record) => record.json().map_err(catalog_error)?,
            None => Position::first(sequence),
        };
        Ok((key, stored, position))
    }

    async fn fetch(&self, sequence: &Sequence, wanted: u64) -> Result<Block, SqlError> {
        for _ in 0..ATTEMPTS {
            let (key, stored, position) = self.read(sequence).await?;
            let (block, position) = block(sequence, position, wanted).ok_or_else(|| reached(sequence))?;
            let change = Transaction::new().when_as_read(&key, stored.as_ref());
            let change = change.put_json(key, &position).map_err(catalog_error)?;
            match self.catalog.commit(change).await {
                Ok(_) => return Ok(block),
                Err(CatalogError::Conflict { .. }) => {}
                // If it happened, the numbers are lost, which is no harm.
                Err(error) => return Err(catalog_error(error)),
            }
        }
        Err(SqlError::new("40001", format!("sequence \"{}\" is too busy", sequence.name)))
    }

    /// As `setval`.
    pub(crate) async fn set(&self, sequence: &Sequence, value: i64, called: bool) -> Result<i64, SqlError> {
        check_value(sequence, value)?;
        let slot = self.slot(&sequence.name);
        let mut held = slot.lock().await;
        let change = Transaction::new().put_json(key(&sequence.name)?, &Position { last: value, called });
        self.catalog.commit(change.map_err(catalog_error)?).await.map_err(catalog_error)?;
        *held = None;
        Ok(value)
    }

    /// Where a sequence stands; for one who is alone.
    pub(crate) async fn position(&self, sequence: &Sequence) -> Result<Position, SqlError> {
        self.give_back([sequence].into_iter()).await;
        Ok(self.read(sequence).await?.2)
    }

    /// Lets a sequence that is made, altered or renamed begin here; for one who is alone.
    pub(crate) async fn place(&self, sequence: &Sequence, position: Position) -> Result<(), SqlError> {
        self.forget(&sequence.name);
        let key = key(&sequence.name)?;
        let stored = self.catalog.get(&key).await.map_err(catalog_error)?.value;
        // The first position needs no record, and most sequences that are placed are new.
        let change = match (stored, position == Position::first(sequence)) {
            (None, true) => return Ok(()),
            (Some(_), true) => Transaction::new().delete(key),
            (_, false) => Transaction::new().put_json(key, &position).map_err(catalog_error)?,
        };
        self.catalog.commit(change).await.map(drop).map_err(catalog_error)
    }

    /// Forgets what is in memory: the sequence is another one now, or gone.
    pub(crate) fn forget(&self, name: &str) {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }

    /// Gives back what was not handed out, if nobody else has taken numbers since.
    pub(crate) async fn give_back(&self, sequences: impl Iterator<Item = &Sequence>) {
        for sequence in sequences {
            let slot = self.slot(&sequence.name);
            let mut held = slot.lock().await;
            let Some(rest) = held.take().filter(|block| block.left > 0) else { continue };
            let Ok((key, stored, position)) = self.read(sequence).await else { return };
            let steps = sequence.increment.wrapping_mul(rest.left as i64 - 1);
            if position != (Position { last: rest.next.wrapping_add(steps), called: true }) {
                continue;
            }
            let used = match rest.next == sequence.start {
                true => Position { last: sequence.start, called: false },
                false => Position { last: rest.next.wrapping_sub(sequence.increment), called: true },
            };
            let change = Transaction::new().when_as_read(&key, stored.as_ref()).put_json(key, &used);
            // A rest that is not given back is a gap, which sequences may have.
            if let Ok(change) = change {
                let _ = self.catalog.commit(change).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isles_kernel::value::DataType;

    fn sequence(increment: i64, min: i64, max: i64, cycle: bool) -> Sequence {
        let start = if increment > 0 { min } else { max };
        Sequence { name: "s".into(), start, increment, min, max, cycle, ty: DataType::Int8, owner: None }
    }

    fn numbers(sequence: &Sequence, wanted: u64) -> Vec<i64> {
        let mut position = Position { last: sequence.start, called: false };
        let mut out = Vec::new();
        while let Some((block, after)) = block(sequence, position, 3) {
            out.extend((0..block.left as i64).map(|n| block.next + n * sequence.increment));
            position = after;
            if out.len() as u64 >= wanted {
                break;
            }
        }
        out
    }

    #[test]
    fn blocks_give_the_numbers_that_single_calls_would() {
        assert_eq!(numbers(&sequence(1, 1, 5, false), 9), vec![1, 2, 3, 4, 5]);
        assert_eq!(numbers(&sequence(2, 1, 6, false), 9), vec![1, 3, 5]);
        assert_eq!(numbers(&sequence(-1, -3, -1, false), 9), vec![-1, -2, -3]);
        assert_eq!(numbers(&sequence(2, 1, 4, true), 6), vec![1, 3, 1, 3, 1, 3]);
    }

    #[test]
    fn the_end_of_the_range_does_not_overflow() {
        let whole = sequence(1, i64::MIN, i64::MAX, false);
        let (block, after) = block(&whole, Position { last: i64::MAX - 1, called: true }, 10).expect("one is left");
        assert_eq!((block.next, block.left, after.last), (i64::MAX, 1, i64::MAX));
        assert!(super::block(&whole, after, 1).is_none());
    }
}
