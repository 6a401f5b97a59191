//! Both sides, compared row by row.
//!
//! ```text
//! giver's snapshot ────────────────────┐
//! mirror up to what the snapshot shows ├─ the same range of keys of both ─► equal, or which keys differ
//! taker's snapshot ────────────────────┘
//! ```
//!
//! Neither side is blocked meanwhile, and what is mirrored later changes nothing about what was found: so a comparison may
//! take any number of such pairs, and whoever takes over from its driver goes on where it was.
//!
//! What is read is rows, and not digests: a shard computes those from the same rows, on the same way, and a digest that
//! differs would have them read a second time.

use super::copy::{Reach, next_tenants, reach};
use super::lane::{Halt, Lane};
use super::mirror::Mirror;
use super::pace::{Others, Pace};
use isles_engine::shard::{Engine, Incoming, KeyRange, Scope, Snapshot, StoredRow};
use isles_kernel::error::SqlError;
use isles_kernel::form;
use isles_kernel::moves::{Difference, MAX_DIFFERENCES, Plan, Verification, VerificationStatus, tables_of};
use isles_kernel::names::TenantId;
use isles_kernel::schema::Table;
use isles_kernel::value::{Damaged, Decoder, Encoder, Value, key_bytes};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Rows compared at once, at most.
const ROWS: usize = 2_000;
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
        let mut giver = lane.giver().await?.snapshot().await?;
        mirror.follow_snapshot(lane, &mut *giver).await?;
        let taker = lane.taker().await?.snapshot().await?;
        Ok(Pair { giver, taker, until: lane.database.env.elapsed() + PAIR_TIME })
    }

    /// A table as both have it. None: it is so new that the giver's snapshot has not seen it, and so without rows there.
    fn table(&self, lane: &Lane, name: &str) -> Result<Option<Table>, Halt> {
        let of = |snapshot: &dyn Snapshot| snapshot.schema().tables.get(name).cloned();
        match (of(&*self.giver), of(&*self.taker)) {
            (Some(_), None) => {
                Err(Halt::Later(SqlError::new("55000", format!("shard {} has no table \"{name}\" yet", lane.taker))))
            }
            (table, _) => Ok(table),
        }
    }

    /// The rows of a range that are not the same on both sides.
    async fn differing(&mut self, table: &Table, range: &KeyRange) -> Result<Differing, Halt> {
        let giver = rows_of(&mut *self.giver, range).await?;
        Ok(difference(table, giver, rows_of(&mut *self.taker, range).await?))
    }
}

/// How far a comparison is within a table.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Mark {
    table: String,
    /// Tenants up to this one are compared, where all tenants of a bucket are.
    tenant: Option<String>,
    /// The last key that was compared.
    after: Option<Vec<Value>>,
}

impl Mark {
    /// As the plan keeps it.
    fn encode(&self) -> String {
        let mut out = Encoder::default();
        out.value(&Value::text(self.table.as_str()));
        out.value(&self.tenant.as_ref().map_or(Value::Null, |name| Value::text(name.as_str())));
        out.bool(self.after.is_some());
        out.row(self.after.as_deref().unwrap_or_default());
        hex(&out.bytes)
    }

    /// None: it cannot be read, and the comparison begins anew.
    fn decode(text: &str) -> Option<Mark> {
        let bytes: Option<Vec<u8>> =
            (0..text.len()).step_by(2).map(|at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok()).collect();
        Mark::read(&bytes?).ok()
    }

    fn read(bytes: &[u8]) -> Result<Mark, Damaged> {
        let mut input = Decoder::new(bytes);
        let Value::Text(table) = input.value()? else { return Ok(Mark::default()) };
        let tenant = match input.value()? {
            Value::Text(name) => Some(name),
            _ => None,
        };
        let has_key = input.value()? == Value::Bool(true);
        let key = input.row()?;
        Ok(Mark { table, tenant, after: has_key.then_some(key) })
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What is compared: the tables that there were when capture began, and those that have come since.
pub(super) fn tables(lane: &Lane, plan: &Plan) -> BTreeSet<String> {
    let now = tables_of(&lane.units, &lane.database.schema(), &lane.policy());
    plan.table_policies.keys().cloned().chain(now.into_keys()).collect()
}

/// A comparison on its way through the tables.
pub(super) struct Comparison {
    /// Those that are left, the next one last.
    tables: Vec<String>,
    found: Verification,
    mark: Mark,
    pace: Pace,
}

/// Rows of a range that are not the same on both sides.
type Differing = BTreeMap<Vec<u8>, (Option<StoredRow>, Option<StoredRow>)>;

/// What was seen of one range.
struct Seen {
    range: KeyRange,
    differing: Differing,
}

impl Comparison {
    /// Goes on with what was found of these tables, or begins.
    pub(super) fn new(tables: BTreeSet<String>, found: Verification) -> Comparison {
        let mark = found.mark.as_deref().and_then(Mark::decode);
        let found = match &mark {
            Some(_) => found,
            None => Verification { repair: found.repair, ..Verification::default() },
        };
        let mark = mark.unwrap_or_default();
        let tables = tables.into_iter().filter(|name| *name >= mark.table).rev().collect();
        // Nobody waits for one who reads: all share the processors, whatever the engine.
        let pace = Pace::new(Engine::Postgres);
        Comparison { tables, found: Verification { status: VerificationStatus::Running, ..found }, mark, pace }
    }

    /// What was found so far, and how far that is.
    pub(super) fn so_far(&self) -> Verification {
        Verification { mark: Some(self.mark.encode()), ..self.found.clone() }
    }

    /// What was found, when everything has been compared.
    pub(super) fn end(&self) -> Option<Verification> {
        let status = if self.found.differing == 0 { VerificationStatus::Passed } else { VerificationStatus::Failed };
        self.tables.is_empty().then(|| Verification { status, mark: None, ..self.found.clone() })
    }

    /// Compares for as long as a pair of snapshots lasts.
    pub(super) async fn go_on(&mut self, lane: &Lane, mirror: &mut Mirror) -> Result<(), Halt> {
        let env = lane.database.env.clone();
        let mut pair = Pair::take(lane, mirror).await?;
        while let Some(name) = self.tables.last().cloned() {
            let Some(table) = pair.table(lane, &name)? else {
                self.next_table();
                continue;
            };
            let (before, began, rows) = (lane.work_of_others(), env.elapsed(), self.found.rows_compared);
            if let Some(seen) = self.next_range(lane, &mut pair, &table).await?
                && !seen.differing.is_empty()
            {
                self.look_again(lane, mirror, &mut pair, &table, &seen.range).await?;
            }
            let others = if lane.work_of_others() == before { Others::Idle } else { Others::Working };
            match (self.found.rows_compared - rows) as usize {
                // Nothing was there: that says nothing about how long rows take.
                0 => {}
                rows => env.sleep(self.pace.learn(rows, env.elapsed().saturating_sub(began), others)).await,
            }
            if env.elapsed() >= pair.until {
                break;
            }
        }
        Ok(())
    }

    /// Compares all that is left in one pair of snapshots, if that is no more than so many rows; the name of a table whose
    /// rows are not the same.
    pub(super) async fn at_once(
        &mut self,
        lane: &Lane,
        mirror: &mut Mirror,
        most: u64,
    ) -> Result<Option<String>, Halt> {
        let mut pair = Pair::take(lane, mirror).await?;
        while let Some(name) = self.tables.last().cloned() {
            let Some(table) = pair.table(lane, &name)? else {
                self.next_table();
                continue;
            };
            match self.next_range(lane, &mut pair, &table).await? {
                Some(seen) if !seen.differing.is_empty() => return Ok(Some(name)),
                _ if self.found.rows_compared > most => break,
                _ => {}
            }
        }
        Ok(None)
    }

    fn next_table(&mut self) {
        self.tables.pop();
        self.mark = Mark { table: self.tables.last().cloned().unwrap_or_default(), ..Mark::default() };
    }

    /// Compares the next range of a table, and goes behind it. None: there was no more.
    async fn next_range(&mut self, lane: &Lane, pair: &mut Pair, table: &Table) -> Result<Option<Seen>, Halt> {
        let (scope, last) = match reach(lane, table) {
            Reach::Scope(scope) => (scope, None),
            Reach::TenantsOfBuckets => match self.tenants(lane, pair, table).await? {
                Some((tenants, last)) => (Scope::Tenants(tenants), Some(last)),
                None => {
                    self.next_table();
                    return Ok(None);
                }
            },
        };
        let range = KeyRange { table: table.name.clone(), scope, after: self.mark.after.clone(), through: None };
        let page = pair.giver.page(&range, self.pace.rows().min(ROWS)).await?;
        let range = KeyRange { through: page.next.clone(), ..range };
        self.found.rows_compared += page.rows.len() as u64;
        let differing = difference(table, page.rows, rows_of(&mut *pair.taker, &range).await?);
        self.mark = Mark { table: table.name.clone(), after: page.next, ..self.mark.clone() };
        match (&self.mark.after, last) {
            (Some(_), _) => {}
            (None, Some(last)) => self.mark.tenant = Some(last),
            (None, None) => self.next_table(),
        }
        Ok(Some(Seen { range, differing }))
    }

    /// The next tenants that either side has.
    async fn tenants(
        &self,
        lane: &Lane,
        pair: &mut Pair,
        table: &Table,
    ) -> Result<Option<(Vec<Option<TenantId>>, String)>, Halt> {
        let after = self.mark.tenant.as_deref();
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

    /// Looks at a range that differs with new snapshots; makes it equal if that is wanted, and looks whether it is.
    async fn look_again(
        &mut self,
        lane: &Lane,
        mirror: &mut Mirror,
        pair: &mut Pair,
        table: &Table,
        range: &KeyRange,
    ) -> Result<(), Halt> {
        *pair = Pair::take(lane, mirror).await?;
        let mut differing = pair.differing(table, range).await?;
        if self.found.repair && !differing.is_empty() {
            let before = differing.len();
            repair(lane, table, &differing, pair.giver.seq()).await?;
            *pair = Pair::take(lane, mirror).await?;
            differing = pair.differing(table, range).await?;
            self.found.repaired += before.saturating_sub(differing.len()) as u64;
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
async fn rows_of(snapshot: &mut dyn Snapshot, range: &KeyRange) -> Result<Vec<StoredRow>, Halt> {
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

/// Gives the taker the giver's rows, and takes from it what the giver has not, whatever the taker knows of them: a row may
/// have come to harm after the last change of it was mirrored.
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
    lane.taker().await?.apply(lane.repair(rows)).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_comes_back_as_it_was() {
        let key = vec![Value::text("acme"), Value::Int(7), Value::Null];
        for tenant in [None, Some(String::new()), Some("acme".to_string())] {
            for after in [None, Some(Vec::new()), Some(key.clone())] {
                let mark = Mark { table: "notes".into(), tenant: tenant.clone(), after };
                assert_eq!(Mark::decode(&mark.encode()), Some(mark));
            }
        }
        assert_eq!((Mark::decode("zz"), Mark::decode("0"), Mark::decode("äöü")), (None, None, None));
    }
}
