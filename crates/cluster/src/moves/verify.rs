//! Both sides, compared row by row.
//!
//! ```text
//! giver's snapshot, at F ─┐
//! mirror up to F          ├─ the same range of keys of both ─► equal, or which keys differ
//! taker's snapshot ───────┘
//! ```
//!
//! A snapshot of a PostgreSQL shard may show a little more than its position says, so a difference counts when it is
//! there again with another pair of snapshots. Neither side is blocked meanwhile.

use super::copy::{Reach, next_tenants, reach};
use super::lane::{Halt, Lane};
use super::mirror::Mirror;
use isles_engine::error::ShardError;
use isles_engine::shard::{Incoming, KeyRange, Scope, Snapshot, StoredRow};
use isles_kernel::form;
use isles_kernel::moves::{Difference, MAX_DIFFERENCES, Verification, VerificationStatus};
use isles_kernel::names::TenantId;
use isles_kernel::schema::Table;
use isles_kernel::value::{Value, key_bytes};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Rows compared at once.
const ROWS: usize = 2_000;
/// How often a range that differs is looked at, each time with new snapshots.
const LOOKS: usize = 4;
/// A pair of snapshots is used for so long.
const PAIR_TIME: Duration = Duration::from_secs(1);

/// Both sides at one position.
pub(super) struct Pair {
    giver: Box<dyn Snapshot>,
    taker: Box<dyn Snapshot>,
    until: Duration,
}

impl Pair {
    pub(super) async fn take(lane: &Lane, mirror: &mut Mirror) -> Result<Pair, Halt> {
        let giver = lane.giver().await?.snapshot().await?;
        mirror.to(lane, giver.seq()).await?;
        let taker = lane.taker().await?.snapshot().await?;
        Ok(Pair { giver, taker, until: lane.database.env.elapsed() + PAIR_TIME })
    }

    pub(super) fn table(&self, name: &str) -> Result<Table, Halt> {
        Ok(self.giver.schema().table(name).map_err(ShardError::from)?.clone())
    }

    pub(super) fn both(&mut self) -> (&mut dyn Snapshot, &mut dyn Snapshot) {
        (&mut *self.giver, &mut *self.taker)
    }
}

/// A comparison on its way through the tables.
pub(super) struct Comparison {
    tables: Vec<String>,
    repair: bool,
    found: Verification,
    tenant: Option<String>,
    after: Option<Vec<Value>>,
}

/// Rows of a range that are not the same on both sides.
type Differing = BTreeMap<Vec<u8>, (Option<StoredRow>, Option<StoredRow>)>;

impl Comparison {
    pub(super) fn new(mut tables: Vec<String>, repair: bool) -> Comparison {
        tables.reverse();
        let found = Verification { status: VerificationStatus::Running, repair, ..Verification::default() };
        Comparison { tables, repair, found, tenant: None, after: None }
    }

    /// What was found, when everything has been compared.
    pub(super) fn end(&self) -> Option<Verification> {
        let status = if self.found.differing == 0 { VerificationStatus::Passed } else { VerificationStatus::Failed };
        self.tables.is_empty().then(|| Verification { status, ..self.found.clone() })
    }

    /// Compares for as long as a pair of snapshots lasts.
    pub(super) async fn go_on(&mut self, lane: &Lane, mirror: &mut Mirror) -> Result<(), Halt> {
        let mut pair = Pair::take(lane, mirror).await?;
        while let Some(name) = self.tables.last().cloned() {
            let table = pair.table(&name)?;
            if !self.next_range(lane, mirror, &mut pair, &table).await? {
                self.tables.pop();
                (self.tenant, self.after) = (None, None);
            }
            if lane.database.env.elapsed() >= pair.until {
                break;
            }
        }
        Ok(())
    }

    /// Compares the next range of a table; whether there is another.
    async fn next_range(
        &mut self,
        lane: &Lane,
        mirror: &mut Mirror,
        pair: &mut Pair,
        table: &Table,
    ) -> Result<bool, Halt> {
        let (scope, last) = match reach(lane, table) {
            Reach::Scope(scope) => (scope, None),
            Reach::TenantsOfBuckets => match self.tenants(lane, pair, table).await? {
                Some((tenants, last)) => (Scope::Tenants(tenants), Some(last)),
                None => return Ok(false),
            },
        };
        let range = KeyRange { table: table.name.clone(), scope, after: self.after.clone(), through: None };
        let page = pair.giver.page(&range, ROWS).await?;
        let range = KeyRange { through: page.next.clone(), ..range };
        let differing = difference(table, page.rows.clone(), rows_of(&mut *pair.taker, &range).await?);
        self.found.rows_compared += page.rows.len() as u64;
        if !differing.is_empty() {
            self.look_again(lane, mirror, pair, table, &range).await?;
        }
        self.after = page.next;
        if self.after.is_none() && last.is_some() {
            self.tenant = last;
            return Ok(true);
        }
        Ok(self.after.is_some())
    }

    /// The next tenants that either side has.
    async fn tenants(
        &self,
        lane: &Lane,
        pair: &mut Pair,
        table: &Table,
    ) -> Result<Option<(Vec<Option<TenantId>>, String)>, Halt> {
        let after = self.tenant.as_deref();
        let giver = next_tenants(lane, &mut *pair.giver, table, after).await?;
        let taker = next_tenants(lane, &mut *pair.taker, table, after).await?;
        // Behind the end of a list that was cut there may be more of the other's.
        let end = match (giver.last(), taker.last()) {
            (Some(one), Some(two)) => one.min(two),
            (one, two) => one.or(two).unwrap_or(&None),
        };
        let all: BTreeSet<&Option<TenantId>> = giver.iter().chain(&taker).filter(|tenant| *tenant <= end).collect();
        let last = all.last().map(|tenant| tenant.as_ref().map_or("", TenantId::as_str).to_string());
        Ok(last.map(|last| (all.into_iter().cloned().collect(), last)))
    }

    /// Looks at a range that differs until it does not, or until it is certain that it does.
    async fn look_again(
        &mut self,
        lane: &Lane,
        mirror: &mut Mirror,
        pair: &mut Pair,
        table: &Table,
        range: &KeyRange,
    ) -> Result<(), Halt> {
        let mut differing = Differing::new();
        for look in 0..LOOKS {
            *pair = Pair::take(lane, mirror).await?;
            let giver = rows_of(&mut *pair.giver, range).await?;
            differing = difference(table, giver, rows_of(&mut *pair.taker, range).await?);
            if differing.is_empty() {
                return Ok(());
            }
            if self.repair && look + 2 == LOOKS {
                self.found.repaired += differing.len() as u64;
                repair(lane, table, &differing, pair.giver.seq()).await?;
            }
        }
        self.note(table, &differing);
        Ok(())
    }

    fn note(&mut self, table: &Table, differing: &Differing) {
        self.found.differing += differing.len() as u64;
        for (giver, taker) in differing.values() {
            if self.found.differences.len() >= MAX_DIFFERENCES {
                return;
            }
            let what = match (giver, taker) {
                (Some(_), None) => "missing",
                (None, _) => "extra",
                _ => "different",
            };
            let row = giver.as_ref().or(taker.as_ref());
            let key = row.map_or(Vec::new(), |row| table.key_of(&row.unit, &row.values));
            self.found.differences.push(Difference { table: table.name.clone(), key: shown(&key), what: what.into() });
        }
    }
}

/// A key as people read it.
fn shown(key: &[Value]) -> String {
    let one = |value: &Value| {
        let mut text = String::new();
        form::write(&mut text, value);
        text
    };
    key.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// All rows of a range.
pub(super) async fn rows_of(snapshot: &mut dyn Snapshot, range: &KeyRange) -> Result<Vec<StoredRow>, Halt> {
    let (mut rows, mut after) = (Vec::new(), range.after.clone());
    loop {
        let page = snapshot.page(&KeyRange { after: after.clone(), ..range.clone() }, ROWS).await?;
        rows.extend(page.rows);
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(rows),
        }
    }
}

fn difference(table: &Table, giver: Vec<StoredRow>, taker: Vec<StoredRow>) -> Differing {
    let mut all = Differing::new();
    let key = |row: &StoredRow| key_bytes(&table.key_of(&row.unit, &row.values));
    for row in giver {
        let key = key(&row);
        all.entry(key).or_default().0 = Some(row);
    }
    for row in taker {
        let key = key(&row);
        all.entry(key).or_default().1 = Some(row);
    }
    all.retain(|_, (giver, taker)| giver != taker);
    all
}

/// Gives the taker the giver's rows, and takes from it what the giver has not.
async fn repair(lane: &Lane, table: &Table, differing: &Differing, seq: isles_kernel::names::Seq) -> Result<(), Halt> {
    let one = |(giver, taker): &(Option<StoredRow>, Option<StoredRow>)| {
        let known = giver.as_ref().or(taker.as_ref())?;
        Some(Incoming {
            table: table.name.clone(),
            unit: known.unit.clone(),
            key: table.key_of(&known.unit, &known.values),
            version: lane.version(seq),
            row: giver.as_ref().map(|row| row.values.clone()),
        })
    };
    let rows = differing.values().filter_map(one).collect();
    lane.taker().await?.apply(lane.changes(rows, None)).await?;
    Ok(())
}
