//! Sequences: numbers that are unique over all shards, and within each tenant where a tenant table owns them.
//!
//! The catalog has, for each sequence, the last number that has been given away. A process takes a block of numbers by
//! compare-and-set and hands them out from memory, so most calls cost nothing. What a process had not handed out when
//! it crashed is lost, as PostgreSQL loses up to 32 numbers; a process that closes gives its rest back.
//!
//! A sequence that a tenant table owns has a position for each tenant, the null tenant too: gaps would tell a tenant how
//! much its neighbours write, and what one of them sets would stand in the way of the others.
//!
//!     sequence/{name}              where a sequence stands, and tenants begin that have no position of their own
//!     sequence_of/{own}/{tenant}   where it stands for a tenant; nothing after the slash is the null tenant
//!     sequence_gone/{own}          positions of tenants that count no more, and are being removed
//!
//! Tenants' positions are found by a number (`own`), and not by the sequence's name: so it is renamed, restarted for all
//! of them and dropped by changing one record, however many tenants there are. A position is made when its tenant takes
//! its first block. Nothing of it is on a shard, so nothing of it moves.
//!
//! As in PostgreSQL, numbers are never given back by a rollback.

use crate::catalog::{Catalog, CatalogError, Key, Record, Transaction};
use crate::commit::decision::catalog_error;
use crate::execute::inputs::tenant_unset;
use crate::session::settings::Tenant;
use isles_engine::env::Env;
use isles_kernel::error::SqlError;
use isles_kernel::names::TenantId;
use isles_kernel::schema::{Schema, Sequence, TableKind};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Numbers of a block: a write to the catalog's disk is shared by so many rows.
const BLOCK: u64 = 128;
/// How often a block that somebody else was faster with is asked for again.
const ATTEMPTS: usize = 20;
/// Blocks in memory, at some hundred bytes each. Beyond it, half of those that nobody uses are given back.
const BLOCKS_MAX: usize = 10_000;
/// Blocks that are given back by one commit, each with a condition and a write; a commit has at most 100 of either.
const RETURNED_AT_ONCE: usize = 50;
/// Positions that are removed by one commit.
const REMOVED_AT_ONCE: usize = 100;

const GONE: &str = "sequence_gone/";

/// Whose numbers they are.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Whose {
    /// Of a sequence that all share.
    Everyone,
    /// Of a tenant, where a tenant table owns the sequence. None is the null tenant.
    Tenant(Option<TenantId>),
}

impl Whose {
    /// Whose numbers a session draws that has this tenant.
    pub(crate) fn of(schema: &Schema, sequence: &Sequence, tenant: &Tenant) -> Result<Whose, SqlError> {
        match tenant {
            _ if !is_tenants(schema, sequence) => Ok(Whose::Everyone),
            Tenant::Name(name) => Ok(Whose::Tenant(Some(name.clone()))),
            Tenant::None => Ok(Whose::Tenant(None)),
            Tenant::Unset | Tenant::Every => Err(tenant_unset()),
        }
    }
}

/// Whether each tenant has a position of its own.
pub(crate) fn is_tenants(schema: &Schema, sequence: &Sequence) -> bool {
    let owner = sequence.owner.as_ref().and_then(|(table, _)| schema.tables.get(table));
    owner.is_some_and(|table| table.kind == TableKind::Tenant)
}

/// What has a position: a sequence, or a tenant's part in one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Slot {
    pub(crate) name: String,
    pub(crate) whose: Whose,
}

impl Slot {
    pub(crate) fn new(name: &str, whose: &Whose) -> Slot {
        Slot { name: name.into(), whose: whose.clone() }
    }

    pub(crate) fn shared(name: &str) -> Slot {
        Slot { name: name.into(), whose: Whose::Everyone }
    }
}

/// As PostgreSQL keeps it: the last number, and whether it has been given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Position {
    pub(crate) last: i64,
    pub(crate) called: bool,
    /// The number that tenants' positions are found by. None as long as no tenant has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) own: Option<u64>,
}

impl Position {
    /// Before this number.
    pub(crate) fn before(number: i64) -> Position {
        Position { last: number, called: false, own: None }
    }

    /// Of a sequence that has given out nothing.
    pub(crate) fn first(sequence: &Sequence) -> Position {
        Position::before(sequence.start)
    }

    pub(crate) fn set_to(self, value: i64, called: bool) -> Position {
        Position { last: value, called, ..self }
    }
}

/// Numbers that this process may hand out: `next` and `left - 1` more.
#[derive(Debug, Clone)]
struct Block {
    next: i64,
    left: u64,
}

/// A block, and where its rest is given back to.
struct Taken {
    block: Block,
    key: Key,
    increment: i64,
    start: i64,
}

type Shared = Arc<tokio::sync::Mutex<Option<Taken>>>;

/// What the catalog has of a slot.
struct Stored {
    key: Key,
    record: Option<Record>,
    position: Position,
    /// What must hold for a new position to count, and what is recorded with it.
    with: Transaction,
}

pub(crate) struct Sequences {
    catalog: Arc<dyn Catalog>,
    env: Arc<dyn Env>,
    /// One lock for each slot, held while a block is fetched; its content is the block.
    blocks: Mutex<HashMap<Slot, Shared>>,
}

pub(crate) fn key(name: &str) -> Result<Key, SqlError> {
    Key::new(format!("sequence/{name}")).map_err(catalog_error)
}

fn prefix_of(own: u64) -> String {
    format!("sequence_of/{own:016x}/")
}

/// Where a tenant's position is.
pub(crate) fn tenant_key(own: u64, tenant: Option<&TenantId>) -> Result<Key, SqlError> {
    let tenant = tenant.map_or("", TenantId::as_str);
    Key::new(format!("{}{tenant}", prefix_of(own))).map_err(catalog_error)
}

/// Says that the tenants' positions under a number are to be removed.
pub(crate) fn gone_key(own: u64) -> Result<Key, SqlError> {
    Key::new(format!("{GONE}{own:016x}")).map_err(catalog_error)
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
    Some((Block { next, left }, position.set_to(last, true)))
}

impl Sequences {
    pub(crate) fn new(catalog: Arc<dyn Catalog>, env: Arc<dyn Env>) -> Sequences {
        Sequences { catalog, env, blocks: Mutex::default() }
    }

    /// A number that no sequence has for its tenants' positions.
    pub(crate) fn new_own(&self) -> u64 {
        self.env.random()
    }

    async fn slot(&self, slot: Slot) -> Shared {
        let (shared, surplus) = {
            let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
            let surplus = if blocks.len() >= BLOCKS_MAX { idle_half(&mut blocks) } else { Vec::new() };
            (blocks.entry(slot).or_default().clone(), surplus)
        };
        self.give_back(surplus).await;
        shared
    }

    /// The next number.
    pub(crate) async fn next(&self, sequence: &Sequence, whose: &Whose) -> Result<i64, SqlError> {
        let slot = self.slot(Slot::new(&sequence.name, whose)).await;
        let mut held = slot.lock().await;
        let mut taken = match held.take().filter(|taken| taken.block.left > 0) {
            Some(taken) => taken,
            None => self.fetch(sequence, whose).await?,
        };
        let number = taken.block.next;
        taken.block.left -= 1;
        taken.block.next = number.wrapping_add(sequence.increment);
        *held = Some(taken);
        Ok(number)
    }

    async fn get(&self, key: &Key) -> Result<(Option<Record>, Option<Position>), SqlError> {
        let record = self.catalog.get(key).await.map_err(catalog_error)?.value;
        let position = record.as_ref().map(Record::json).transpose().map_err(catalog_error)?;
        Ok((record, position))
    }

    /// Where the sequence itself stands.
    async fn base(&self, sequence: &Sequence) -> Result<Stored, SqlError> {
        let key = key(&sequence.name)?;
        let (record, position) = self.get(&key).await?;
        let position = position.unwrap_or_else(|| Position::first(sequence));
        Ok(Stored { key, record, position, with: Transaction::new() })
    }

    async fn read(&self, sequence: &Sequence, whose: &Whose) -> Result<Stored, SqlError> {
        let mut base = self.base(sequence).await?;
        let Whose::Tenant(tenant) = whose else { return Ok(base) };
        if base.position.own.is_none() {
            // What was drawn while all shared the sequence, and not handed out, comes before what tenants begin with.
            let taken = self.forget_where(|slot| *slot == Slot::shared(&sequence.name));
            self.give_back(taken).await;
            base = self.base(sequence).await?;
        }
        // A tenant's position counts as long as the sequence is the one it was made for.
        let with = Transaction::new().when_as_read(&base.key, base.record.as_ref());
        let (own, with) = match base.position.own {
            Some(own) => (own, with),
            None => {
                let own = self.new_own();
                let first = Position { own: Some(own), ..base.position };
                (own, with.put_json(base.key, &first).map_err(catalog_error)?)
            }
        };
        let key = tenant_key(own, tenant.as_ref())?;
        let (record, position) = self.get(&key).await?;
        let position = position.unwrap_or(Position { own: None, ..base.position });
        Ok(Stored { key, record, position, with })
    }

    async fn fetch(&self, sequence: &Sequence, whose: &Whose) -> Result<Taken, SqlError> {
        for _ in 0..ATTEMPTS {
            let stored = self.read(sequence, whose).await?;
            let (block, position) = block(sequence, stored.position, BLOCK).ok_or_else(|| reached(sequence))?;
            let change = stored.with.when_as_read(&stored.key, stored.record.as_ref());
            let change = change.put_json(stored.key.clone(), &position).map_err(catalog_error)?;
            match self.catalog.commit(change).await {
                Ok(_) => {
                    let (increment, start) = (sequence.increment, sequence.start);
                    return Ok(Taken { block, key: stored.key, increment, start });
                }
                Err(CatalogError::Conflict { .. }) => {}
                // If it happened, the numbers are lost, which is no harm.
                Err(error) => return Err(catalog_error(error)),
            }
        }
        Err(too_busy(sequence))
    }

    /// As `setval`.
    pub(crate) async fn set(
        &self,
        sequence: &Sequence,
        whose: &Whose,
        value: i64,
        called: bool,
    ) -> Result<i64, SqlError> {
        check_value(sequence, value)?;
        let slot = self.slot(Slot::new(&sequence.name, whose)).await;
        let mut held = slot.lock().await;
        for _ in 0..ATTEMPTS {
            let stored = self.read(sequence, whose).await?;
            let change = stored.with.when_as_read(&stored.key, stored.record.as_ref());
            let change = change.put_json(stored.key, &stored.position.set_to(value, called)).map_err(catalog_error)?;
            match self.catalog.commit(change).await {
                Ok(_) => {
                    *held = None;
                    return Ok(value);
                }
                Err(CatalogError::Conflict { .. }) => {}
                Err(error) => return Err(catalog_error(error)),
            }
        }
        Err(too_busy(sequence))
    }

    /// Where a sequence itself stands; for one who is alone.
    pub(crate) async fn position(&self, sequence: &Sequence) -> Result<Position, SqlError> {
        let taken = self.forget_where(|slot| *slot == Slot::shared(&sequence.name));
        self.give_back(taken).await;
        Ok(self.base(sequence).await?.position)
    }

    /// Where a tenant stands, if it has a position under this number.
    pub(crate) async fn position_of(&self, own: u64, tenant: Option<&TenantId>) -> Result<Option<Position>, SqlError> {
        Ok(self.get(&tenant_key(own, tenant)?).await?.1)
    }

    /// The position that is furthest ahead: the sequence's, or that of a tenant. Whoever goes on from there gives nobody's
    /// number again.
    pub(crate) async fn furthest(&self, sequence: &Sequence, base: Position) -> Result<Position, SqlError> {
        let Some(own) = base.own else { return Ok(base) };
        let ahead = |position: &Position| {
            let last = if sequence.increment > 0 { i128::from(position.last) } else { -i128::from(position.last) };
            (last, position.called)
        };
        let (prefix, mut furthest, mut after) = (prefix_of(own), base, None);
        loop {
            let page = self.catalog.list(&prefix, after.as_ref(), REMOVED_AT_ONCE).await.map_err(catalog_error)?;
            for record in &page.records {
                let position: Position = record.json().map_err(catalog_error)?;
                if ahead(&position) > ahead(&furthest) {
                    furthest = position;
                }
            }
            after = page.records.last().map(|record| record.key.clone());
            if !page.more || after.is_none() {
                return Ok(Position { own: None, ..furthest });
            }
        }
    }

    /// Lets a sequence that is made begin; for one who is alone.
    pub(crate) async fn place_first(&self, sequence: &Sequence) -> Result<(), SqlError> {
        self.forget(&sequence.name);
        let stored = self.base(sequence).await?;
        // The first position needs no record, and most sequences that are placed are new.
        if stored.record.is_none() {
            return Ok(());
        }
        let mut change = Transaction::new().delete(stored.key);
        if let Some(own) = stored.position.own {
            change = change.put(gone_key(own)?, "{}");
        }
        self.catalog.commit(change).await.map(drop).map_err(catalog_error)
    }

    /// Forgets what is in memory: the sequence is another one now, or gone.
    pub(crate) fn forget(&self, name: &str) {
        drop(self.forget_where(|slot| slot.name == name));
    }

    /// The same of one position.
    pub(crate) fn forget_slot(&self, slot: &Slot) {
        drop(self.forget_where(|known| known == slot));
    }

    fn forget_where(&self, is: impl Fn(&Slot) -> bool) -> Vec<Shared> {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.extract_if(|slot, _| is(slot)).map(|(_, shared)| shared).collect()
    }

    /// Removes the positions of a tenant that is gone.
    pub(crate) async fn forget_tenant(&self, schema: &Schema, tenant: Option<&TenantId>) -> Result<(), SqlError> {
        let whose = Whose::Tenant(tenant.cloned());
        let mut keys = Vec::new();
        for sequence in schema.sequences.values().filter(|sequence| is_tenants(schema, sequence)) {
            if let Some(own) = self.base(sequence).await?.position.own {
                keys.push(tenant_key(own, tenant)?);
            }
        }
        for keys in keys.chunks(REMOVED_AT_ONCE) {
            self.remove(keys.iter().cloned()).await?;
        }
        drop(self.forget_where(|slot| slot.whose == whose));
        Ok(())
    }

    async fn remove(&self, keys: impl Iterator<Item = Key>) -> Result<(), SqlError> {
        let change = keys.fold(Transaction::new(), Transaction::delete);
        self.catalog.commit(change).await.map(drop).map_err(catalog_error)
    }

    /// Removes positions that count no more, some at a time. What remains when it fails is removed by the next sweep.
    pub(crate) async fn sweep(&self) -> Result<(), SqlError> {
        loop {
            let page = self.catalog.list(GONE, None, REMOVED_AT_ONCE).await.map_err(catalog_error)?;
            for record in &page.records {
                let own = record.key.as_str().strip_prefix(GONE).unwrap_or_default();
                self.remove_all(&format!("sequence_of/{own}/")).await?;
                self.remove(std::iter::once(record.key.clone())).await?;
            }
            if !page.more {
                return Ok(());
            }
        }
    }

    async fn remove_all(&self, prefix: &str) -> Result<(), SqlError> {
        loop {
            let page = self.catalog.list(prefix, None, REMOVED_AT_ONCE).await.map_err(catalog_error)?;
            if page.records.is_empty() {
                return Ok(());
            }
            self.remove(page.records.into_iter().map(|record| record.key)).await?;
        }
    }

    /// Gives back all that was not handed out.
    pub(crate) async fn give_all_back(&self) {
        let taken = self.forget_where(|_| true);
        self.give_back(taken).await;
    }

    /// Gives back what was not handed out, if nobody else has taken numbers since.
    async fn give_back(&self, taken: Vec<Shared>) {
        for some in taken.chunks(RETURNED_AT_ONCE) {
            let mut change = Transaction::new();
            for shared in some {
                let Some(taken) = shared.lock().await.take().filter(|taken| taken.block.left > 0) else { continue };
                let Ok((record, Some(position))) = self.get(&taken.key).await else { continue };
                let Some(used) = taken.used(position) else { continue };
                change = change.when_as_read(&taken.key, record.as_ref());
                match change.put_json(taken.key, &used) {
                    Ok(with) => change = with,
                    Err(_) => return,
                }
            }
            // A rest that is not given back is a gap, which sequences may have.
            if !change.writes.is_empty() {
                let _ = self.catalog.commit(change).await;
            }
        }
    }
}

impl Taken {
    /// The position without the rest of the block; None if somebody else has changed it.
    fn used(&self, position: Position) -> Option<Position> {
        let steps = self.increment.wrapping_mul(self.block.left as i64 - 1);
        let end = position.set_to(self.block.next.wrapping_add(steps), true);
        let used = match self.block.next == self.start {
            true => position.set_to(self.start, false),
            false => position.set_to(self.block.next.wrapping_sub(self.increment), true),
        };
        (position == end).then_some(used)
    }
}

/// Takes out half of the blocks that nobody uses at this moment.
fn idle_half(blocks: &mut HashMap<Slot, Shared>) -> Vec<Shared> {
    let idle = blocks.extract_if(|_, shared| Arc::strong_count(shared) == 1);
    idle.take(BLOCKS_MAX / 2).map(|(_, shared)| shared).collect()
}

fn too_busy(sequence: &Sequence) -> SqlError {
    SqlError::new("40001", format!("sequence \"{}\" is too busy", sequence.name)).with_hint("try again")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{Options, SqliteCatalog};
    use isles_engine::env::TokioEnv;
    use isles_kernel::value::DataType;

    fn sequence(increment: i64, min: i64, max: i64, cycle: bool) -> Sequence {
        let start = if increment > 0 { min } else { max };
        Sequence { name: "s".into(), start, increment, min, max, cycle, ty: DataType::Int8, owner: None }
    }

    fn numbers(sequence: &Sequence, wanted: u64) -> Vec<i64> {
        let mut position = Position::first(sequence);
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

    async fn sequences(folder: &tempfile::TempDir) -> Sequences {
        let env: Arc<dyn Env> = Arc::new(TokioEnv::current());
        let catalog = SqliteCatalog::open(folder.path().join("c.db"), env.clone(), Options::default()).await;
        Sequences::new(Arc::new(catalog.expect("it opens")), env)
    }

    fn of(n: usize) -> Whose {
        Whose::Tenant(Some(TenantId::new(format!("t{n}")).expect("a name")))
    }

    async fn records(sequences: &Sequences, prefix: &str) -> usize {
        sequences.catalog.list(prefix, None, 1_000).await.expect("it lists").records.len()
    }

    #[tokio::test]
    async fn positions_of_tenants_go_with_their_sequence() {
        let folder = tempfile::tempdir().expect("a folder");
        let sequences = sequences(&folder).await;
        let sequence = sequence(1, 1, i64::MAX, false);
        for n in 0..250 {
            assert_eq!(sequences.next(&sequence, &of(n)).await.expect("a number"), 1);
        }
        assert_eq!(records(&sequences, "sequence_of/").await, 250);
        sequences.place_first(&sequence).await.expect("it begins");
        assert_eq!(sequences.next(&sequence, &of(0)).await.expect("a number"), 1);
        sequences.sweep().await.expect("it sweeps");
        assert_eq!(records(&sequences, "sequence_of/").await, 1, "that of the new sequence");
        assert_eq!(records(&sequences, GONE).await, 0);
        assert_eq!(sequences.next(&sequence, &of(0)).await.expect("a number"), 2);
    }

    #[tokio::test]
    async fn what_was_not_handed_out_is_given_back_for_each_tenant() {
        let folder = tempfile::tempdir().expect("a folder");
        let sequences = sequences(&folder).await;
        let sequence = sequence(1, 1, i64::MAX, false);
        let parts: Vec<Whose> = (0..120).map(of).chain([Whose::Tenant(None), Whose::Everyone]).collect();
        for whose in &parts {
            sequences.next(&sequence, whose).await.expect("a number");
        }
        sequences.give_all_back().await;
        for whose in &parts {
            let number = sequences.next(&sequence, whose).await.expect("a number");
            // Tenants begin where the sequence stands that they share nothing of but its beginning.
            assert_eq!(number, 2, "{whose:?}");
        }
    }

    #[test]
    fn blocks_that_somebody_uses_are_kept() {
        let mut blocks: HashMap<Slot, Shared> =
            (0..BLOCKS_MAX).map(|n| (Slot::new("s", &of(n)), Shared::default())).collect();
        let used = blocks[&Slot::new("s", &of(7))].clone();
        assert_eq!(idle_half(&mut blocks).len(), BLOCKS_MAX / 2);
        assert_eq!(blocks.len(), BLOCKS_MAX / 2);
        assert!(Arc::ptr_eq(&used, &blocks[&Slot::new("s", &of(7))]));
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
        let (block, after) = block(&whole, Position::before(0).set_to(i64::MAX - 1, true), 10).expect("one is left");
        assert_eq!((block.next, block.left, after.last), (i64::MAX, 1, i64::MAX));
        assert!(super::block(&whole, after, 1).is_none());
    }
}
