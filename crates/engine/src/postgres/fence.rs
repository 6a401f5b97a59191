//! Fences in PostgreSQL: checked in the request's transaction, changed only when nobody is inside.
//!
//!     request     BEGIN ─ shared locks on its units ─ read fences ─ statements ─ COMMIT (locks go)
//!     set_fences  BEGIN ─ exclusive locks on the units ─ rewrite fences ─────── COMMIT (locks go)
//!
//! A request takes its locks first and reads the fences after, with a snapshot taken after: `_isles.enter` is
//! volatile, and in READ COMMITTED each statement of a volatile function has a snapshot of its own. So either the
//! request has its locks and `set_fences` waits until it has ended, or it waits and then sees the new fences. When
//! `set_fences` returns, no transaction that the fences refuse is still running.
//!
//! REPEATABLE READ and SERIALIZABLE have one snapshot, which may be older than the locks. There, once the locks are
//! held, the fences are read again on another connection ([`Entry::look`]). Both answers must agree, or the transaction
//! conflicts: its snapshot is of a time before the unit came or went. Locking the fences' rows would not do: a
//! tenant that has just been pinned has no row in the old snapshot to lock.
//!
//! Locks are advisory ones of class [`LOCK_CLASS`]. A unit's number is the hash of its name, modulo [`SLOTS`], twice:
//! an even number for writers, the odd one after it for readers. Two units of one slot wait for each other needlessly
//! and never wrongly. Slots bound how many locks a change of a whole group takes. Readers have numbers of their own,
//! so that making a unit read-only does not wait for them, nor they for it (I-14).
//!
//! A statement that only reads and is alone takes no locks: it looks at the fences in its own snapshot. As they hardly
//! ever change, it looks no further than at their token, which a trigger renews with every change ([`Stamped`]).
//!
//! Invariants (docs/invariants.md):
//!   * I-7   the refusal is the shard's, in the request's own transaction
//!   * the meaning of a fence is that of [`FenceTable`]; `_isles.look` says the same in SQL

use super::exchange::{self, Exchange, Known};
use super::fault::{self, Fault};
use super::pool::Conn;
use super::stream;
use crate::discard;
use crate::error::{Result, ShardError};
use crate::fence::{Access, Claim, Claimed, Fence, FenceMode, FenceScope, FenceTable};
use crate::shard::DriverToken;
use isles_kernel::names::{BucketId, GroupName, RoutingVersion, StreamId, TenantId};
use isles_kernel::schema::Unit;
use isles_kernel::value::{DataType, Value};
use postgres_protocol::message::backend::DataRowBody;
use std::collections::BTreeSet;
use std::time::Duration;
use tokio_postgres::Statement;
use tokio_postgres::types::ToSql;
use xxhash_rust::xxh3::xxh3_64;

/// The class of our advisory locks: "isle".
pub(super) const LOCK_CLASS: i32 = 0x6973_6c65;
/// Units share so many locks. A server has some 6,400 by default, for all its sessions.
const SLOTS: u64 = 1_000;

pub(super) const ENTER: &str = "SELECT _isles.enter($1, $2, $3, $4, $5, $6)";
/// What a reading statement that looks at the fences itself says when they refuse it.
const REFUSED: &str = "isles: refused by a fence";
/// In a statement that only reads and is alone: it looks at the fences with the snapshot that it reads with. The
/// condition depends on nothing in the statement, so it is tried once, and before the first row. A fence that refuses is
/// an error of the cast, and why it refuses is asked afterwards.
const UNCHANGED: &str =
    "coalesce((SELECT CASE WHEN token = $k THEN 'true' ELSE $no END FROM _isles.fence_token), $no)::boolean";
/// The same for whoever does not know the token, or knows of a fence that refuses him. Most claims are to one bucket or
/// one tenant, and need no function, whose mere presence would cost half as much as the look at the table.
const ONE_BUCKET: &str = "coalesce((SELECT $ok FROM _isles.fence \
     WHERE kind = 'bucket' AND name = $g AND first <= $b AND last >= $b), $no)::boolean";
const ONE_TENANT: &str = "coalesce((SELECT $ok FROM _isles.fence WHERE kind = 'tenant' AND name = $t), \
     (SELECT $ok FROM _isles.fence WHERE kind = 'bucket' AND name = $g AND first <= $b AND last >= $b), $no)::boolean";
/// Not a constant: the server would find out that it is no boolean when it plans.
const PASSES: &str = "CASE WHEN version <= $v AND mode <> 'closed' THEN 'true' ELSE $no END";
const MANY_UNITS: &str = "(SELECT _isles.look_within($v, false, $t, $g, $b) IS NOT NULL)";

/// All fences, and the token that they have. Whoever finds it in his snapshot has these fences there: they are changed
/// together, and no token comes a second time, not even after a restore.
#[derive(Debug)]
pub(super) struct Stamped {
    pub(super) token: i64,
    pub(super) table: FenceTable,
}

/// What a reading statement looks at, as far as its text depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Shape {
    Token,
    Bucket,
    Tenant,
    Many,
}

impl Shape {
    /// A reading statement with so many parameters that looks at the fences, too; what it takes for that comes after its own
    /// parameters.
    ///
    /// There are no locks: should a unit move away meanwhile, the statement shows it as it was at its snapshot.
    pub(super) fn around(self, sql: &str, count: usize) -> String {
        format!("SELECT q.* FROM ({sql}) AS q WHERE {}", self.condition(count))
    }

    fn condition(self, count: usize) -> String {
        let (text, kinds): (_, &[(&str, &str)]) = match self {
            Shape::Token => (UNCHANGED, &[("$k", "bigint")]),
            Shape::Bucket => (ONE_BUCKET, &[("$v", "bigint"), ("$g", "text"), ("$b", "bigint")]),
            Shape::Tenant => (ONE_TENANT, &[("$v", "bigint"), ("$t", "text"), ("$g", "text"), ("$b", "bigint")]),
            Shape::Many => (MANY_UNITS, &[("$v", "bigint"), ("$t", "text[]"), ("$g", "text[]"), ("$b", "bigint[]")]),
        };
        let text = text.replace("$ok", PASSES).replace("$no", &format!("'{REFUSED}'"));
        let names = kinds.iter().zip(count + 1..);
        names.fold(text, |text, ((name, kind), at)| text.replace(name, &format!("${at}::{kind}")))
    }
}

const LOOK: &str = "SELECT _isles.look($1, $2, $3, $4, $5)";

/// One look at the fences. The server looks up bucket by bucket.
#[derive(Debug)]
enum Look {
    Bucket(GroupName, BucketId),
    Tenant(Option<TenantId>, GroupName, BucketId),
    Shared,
    /// All tenants that have a fence of their own and are among the residents, which are a text.
    Residents(GroupName, String),
    /// Whether whatever is there of a group may be taken.
    Whole(GroupName),
}

/// Stands for a bucket where all tenants are looked up.
const EVERY_TENANT: i64 = -1;

/// A claim, as `_isles.enter` takes it.
#[derive(Debug)]
pub(super) struct Entry {
    looks: Vec<Look>,
    claimed: RoutingVersion,
    version: i64,
    writes: bool,
    /// For each look: the tenant ('' for the null one), null if it is for none; the residents for all of them.
    tenants: Vec<Option<String>>,
    /// For each look: the group, null for shared tables.
    groups: Vec<Option<String>>,
    /// For each look: the bucket, null for shared tables and for a whole group.
    buckets: Vec<Option<i64>>,
}

impl Entry {
    pub(super) fn new(claim: Claim, access: Access) -> Entry {
        let looks = looks_of(claim.units);
        let count = looks.len();
        let mut entry = Entry {
            claimed: claim.version,
            version: i64::try_from(claim.version.0).unwrap_or(i64::MAX),
            writes: access == Access::Write,
            tenants: Vec::with_capacity(count),
            groups: Vec::with_capacity(count),
            buckets: Vec::with_capacity(count),
            looks,
        };
        for look in &entry.looks {
            let number = |bucket: &BucketId| Some(i64::from(bucket.0));
            let (tenant, group, bucket) = match look {
                Look::Bucket(group, bucket) => (None, Some(group), number(bucket)),
                Look::Tenant(tenant, group, bucket) => (Some(tenant_text(tenant)), Some(group), number(bucket)),
                Look::Shared => (None, None, None),
                Look::Residents(group, residents) => (Some(residents.clone()), Some(group), Some(EVERY_TENANT)),
                Look::Whole(group) => (None, Some(group), None),
            };
            entry.tenants.push(tenant);
            entry.groups.push(group.map(ToString::to_string));
            entry.buckets.push(bucket);
        }
        entry
    }

    /// The locks to take: in one order everywhere, so that two requests do not wait for each other in a ring.
    fn slots(&self) -> Vec<i32> {
        let access = if self.writes { Access::Write } else { Access::Read };
        let slots: BTreeSet<i32> =
            self.looks.iter().flat_map(look_slots).map(|slot| lock_number(slot, access)).collect();
        slots.into_iter().collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.looks.is_empty()
    }

    pub(super) fn shape(&self) -> Shape {
        match self.looks.as_slice() {
            [Look::Bucket(..)] => Shape::Bucket,
            [Look::Tenant(..)] => Shape::Tenant,
            _ => Shape::Many,
        }
    }

    /// The parameters of its [`Shape::condition`].
    pub(super) fn params(&self) -> Vec<&(dyn ToSql + Sync)> {
        match self.shape() {
            Shape::Token | Shape::Bucket => vec![&self.version, &self.groups[0], &self.buckets[0]],
            Shape::Tenant => vec![&self.version, &self.tenants[0], &self.groups[0], &self.buckets[0]],
            Shape::Many => vec![&self.version, &self.tenants, &self.groups, &self.buckets],
        }
    }

    /// Has an exchange take the locks and check the fences, by [`ENTER`]. What it says is read by [`read_seen`].
    pub(super) fn ask(&self, exchange: &mut Exchange, enter: &Known) -> Result<()> {
        let slots = self.slots();
        exchange.run(enter, &[], &[&self.version, &self.writes, &self.tenants, &self.groups, &self.buckets, &slots])
    }

    /// Takes the locks and checks the fences, in the open transaction of `conn`. Returns what was seen.
    pub(super) async fn enter(&self, conn: &Conn, statement: &Statement) -> Result<String> {
        let slots = self.slots();
        let params: [&(dyn ToSql + Sync); 6] =
            [&self.version, &self.writes, &self.tenants, &self.groups, &self.buckets, &slots];
        let row = conn.query_one(statement, &params).await.map_err(|error| self.refusal(error))?;
        row.try_get(0).map_err(fault::before_commit)
    }

    /// Checks the fences as they are now, without locks: the caller holds them.
    pub(super) async fn look(&self, conn: &Conn) -> Result<String> {
        let statement = conn.prepare(LOOK).await?;
        let params: [&(dyn ToSql + Sync); 5] =
            [&self.version, &self.writes, &self.tenants, &self.groups, &self.buckets];
        let row = conn.query_one(&statement, &params).await.map_err(|error| self.refusal(error))?;
        row.try_get(0).map_err(fault::before_commit)
    }

    /// Turns the refusal that `_isles.look` raises into our own.
    pub(super) fn refusal(&self, fault: impl Into<Fault>) -> ShardError {
        let fault = fault.into();
        let raised = fault.said().map(|said| (said.code.as_str(), said.detail.as_deref().unwrap_or_default()));
        let refusal = match raised {
            Some((fault::MOVED, detail)) => self.moved(detail),
            Some((fault::STRANGERS, detail)) => {
                GroupName::new(detail).ok().map(|group| ShardError::Strangers { group })
            }
            _ => None,
        };
        refusal.unwrap_or_else(|| fault::before_commit(fault))
    }

    /// `detail` is the look that was refused, and the version that it needs.
    fn moved(&self, detail: &str) -> Option<ShardError> {
        let (at, needed) = detail.split_once(' ')?;
        let unit = match self.looks.get(at.parse::<usize>().ok()?)? {
            Look::Bucket(group, bucket) => Unit::Bucket(group.clone(), *bucket),
            Look::Tenant(tenant, _, _) => Unit::Tenant(tenant.clone()),
            Look::Residents(..) => Unit::Tenant(None),
            Look::Shared => Unit::Shared,
            Look::Whole(_) => return None,
        };
        Some(ShardError::Moved { unit, claimed: self.claimed, needed: RoutingVersion(needed.parse().ok()?) })
    }
}

/// What was seen of the fences, from the row that [`ENTER`] gives.
pub(super) fn read_seen(row: &DataRowBody, enter: &Known) -> Result<String> {
    match exchange::read_row(row, &enter.columns, &[DataType::Text])?.pop() {
        Some(Value::Text(seen)) => Ok(seen),
        _ => Err(ShardError::Corrupt("the fences say nothing".into())),
    }
}

/// Whether a statement says that a fence has refused it. A text of a client can say so, too; [`Entry::look`] tells.
pub(super) fn says_refused(error: &ShardError) -> bool {
    matches!(error, ShardError::Statement(error) if error.sqlstate == "22P02" && error.message.contains(REFUSED))
}

/// What the server looks up for a claim: where its units are, and then whether whatever is there may be taken.
fn looks_of(units: Vec<Claimed>) -> Vec<Look> {
    let (mut looks, mut whole) = (Vec::with_capacity(units.len()), BTreeSet::new());
    let each = |group: &GroupName, first: BucketId, last: BucketId| -> Vec<Look> {
        (first.0..=last.0).map(|bucket| Look::Bucket(group.clone(), BucketId(bucket))).collect()
    };
    for unit in units {
        match unit {
            Claimed::Bucket(group, bucket) => looks.push(Look::Bucket(group, bucket)),
            Claimed::Buckets(group, first, last) => {
                looks.extend(each(&group, first, last));
                whole.insert(group);
            }
            Claimed::OwnBuckets(group, first, last) => looks.extend(each(&group, first, last)),
            Claimed::Tenant(tenant, group, bucket) => looks.push(Look::Tenant(tenant, group, bucket)),
            Claimed::Residents(group, residents) => looks.push(Look::Residents(group, residents.text())),
            Claimed::Shared => looks.push(Look::Shared),
        }
    }
    looks.extend(whole.into_iter().map(Look::Whole));
    looks
}

fn tenant_text(tenant: &Option<TenantId>) -> String {
    tenant.as_ref().map_or(String::new(), |tenant| tenant.as_str().into())
}

fn slot(name: &str) -> i32 {
    (xxh3_64(name.as_bytes()) % SLOTS) as i32
}

fn bucket_slot(group: &GroupName, bucket: u32) -> i32 {
    slot(&format!("bucket {bucket} {group}"))
}

fn tenant_slot(tenant: &Option<TenantId>) -> i32 {
    slot(&format!("tenant {}", tenant_text(tenant)))
}

/// Whoever reads all tenants has this one, and whoever changes the fence of any.
fn every_tenant_slot() -> i32 {
    slot("every tenant")
}

fn whole_slot(group: &GroupName) -> i32 {
    slot(&format!("whole {group}"))
}

/// A tenant goes by its own fence or by its bucket's, so it locks both.
fn look_slots(look: &Look) -> impl Iterator<Item = i32> {
    let (first, second) = match look {
        Look::Bucket(group, bucket) => (bucket_slot(group, bucket.0), None),
        Look::Tenant(tenant, group, bucket) => (tenant_slot(tenant), Some(bucket_slot(group, bucket.0))),
        Look::Residents(..) => (every_tenant_slot(), None),
        Look::Shared => (slot("shared"), None),
        Look::Whole(group) => (whole_slot(group), None),
    };
    [first].into_iter().chain(second)
}

fn lock_number(slot: i32, access: Access) -> i32 {
    slot * 2 + i32::from(access == Access::Read)
}

/// The locks that a change of fences needs: writers' always, readers' if the change refuses any of them.
fn change_locks(old: &FenceTable, fences: &[Fence]) -> BTreeSet<i32> {
    let mut locks = BTreeSet::new();
    for fence in fences {
        let slots = scope_slots(&fence.scope);
        locks.extend(slots.iter().map(|slot| lock_number(*slot, Access::Write)));
        if refuses_readers(old, fence) {
            locks.extend(slots.iter().map(|slot| lock_number(*slot, Access::Read)));
        }
    }
    locks
}

fn scope_slots(scope: &FenceScope) -> BTreeSet<i32> {
    match scope {
        FenceScope::Tenant(tenant) => BTreeSet::from([tenant_slot(tenant), every_tenant_slot()]),
        FenceScope::Shared => BTreeSet::from([slot("shared")]),
        FenceScope::Whole { group } => BTreeSet::from([whole_slot(group)]),
        FenceScope::Buckets { group, first, last } => {
            // A range this long hits nearly every slot; taking them all is as good, and bounded.
            if u64::from(last.0.saturating_sub(first.0)) >= SLOTS * 4 {
                return (0..SLOTS as i32).collect();
            }
            (first.0..=last.0).map(|bucket| bucket_slot(group, bucket)).collect()
        }
    }
}

/// Whether a reader that runs now could be one that the new fence refuses: the fence closes, or its version is above
/// one that readers came in with. A tenant that is pinned anew was let in by its bucket's fence, at any version.
fn refuses_readers(old: &FenceTable, fence: &Fence) -> bool {
    if fence.mode == FenceMode::Closed {
        return true;
    }
    // Open, it refuses nobody: its version is asked of none.
    if matches!(fence.scope, FenceScope::Whole { .. }) {
        return false;
    }
    let old = old.fences();
    let mut same = old.iter().filter(|other| other.scope.overlaps(&fence.scope)).peekable();
    let newly_pinned = matches!(fence.scope, FenceScope::Tenant(_)) && same.peek().is_none();
    newly_pinned || same.any(|other| other.version < fence.version && other.mode != FenceMode::Closed)
}

/// Changes fences once nobody is inside them, or not at all.
pub(super) async fn set(
    conn: &Conn,
    driven: Option<(&StreamId, DriverToken)>,
    fences: &[Fence],
    time: Duration,
) -> Result<()> {
    // Zero would mean no limit to PostgreSQL.
    let limit = time.as_millis().clamp(1, i32::MAX as u128);
    let begin = format!(
        "BEGIN READ WRITE; SET LOCAL lock_timeout = {limit}; SET LOCAL statement_timeout = {limit}; \
         LOCK TABLE _isles.fence IN SHARE ROW EXCLUSIVE MODE"
    );
    let check = async {
        match driven {
            Some((stream, driver)) => stream::check(conn, stream, Some(driver)).await,
            None => Ok(()),
        }
    };
    // Clients may be waiting: what needs no answer to another is sent together with it.
    let (begun, checked, known) = futures::join!(conn.batch_execute(&begin), check, load(conn));
    begun.map_err(fault::before_commit)?;
    checked?;
    let mut table = FenceTable::from_fences(known?)?;
    let locks: Vec<i32> = change_locks(&table, fences).into_iter().collect();
    fences.iter().try_for_each(|fence| table.set(fence))?;
    let lock = format!("SELECT pg_advisory_xact_lock({LOCK_CLASS}, slot) FROM unnest($1::int[]) AS slot");
    // Nobody sees what is stored before the transaction ends.
    let params: [&(dyn ToSql + Sync); 1] = [&locks];
    let (locked, stored) = futures::join!(conn.rows(&lock, &params), store(conn, &table));
    locked.map(drop).and(stored)
}

/// Opens fences of units that nobody knows yet, within a transaction: there is nobody inside to wait for.
pub(super) async fn open_missing(conn: &Conn, fences: &[Fence]) -> Result<()> {
    let lock = "LOCK TABLE _isles.fence IN SHARE ROW EXCLUSIVE MODE";
    conn.batch_execute(lock).await.map_err(fault::before_commit)?;
    let known = FenceTable::from_fences(load(conn).await?)?;
    let mut table = known.clone();
    fences.iter().try_for_each(|fence| table.set_missing(fence))?;
    if table == known { Ok(()) } else { store(conn, &table).await }
}

/// Refuses if anyone may read one of these units. Until the transaction of `conn` ends, no fence lets anyone in: who
/// changes one waits for it.
pub(super) async fn refuse_served(conn: &Conn, units: &[Claimed]) -> Result<()> {
    let slots = units.iter().flat_map(|unit| match unit {
        Claimed::Buckets(group, first, last) | Claimed::OwnBuckets(group, first, last) => {
            scope_slots(&FenceScope::Buckets { group: group.clone(), first: *first, last: *last })
        }
        unit => looks_of(vec![unit.clone()]).iter().flat_map(look_slots).collect(),
    });
    let slots: BTreeSet<i32> = slots.map(|slot| lock_number(slot, Access::Write)).collect();
    let lock = format!("SELECT pg_advisory_xact_lock_shared({LOCK_CLASS}, slot) FROM unnest($1::int[]) AS slot");
    conn.query(&lock, &[&slots.into_iter().collect::<Vec<_>>()]).await.map_err(fault::before_commit)?;
    discard::refuse_served(&FenceTable::from_fences(load(conn).await?)?, units)
}

pub(super) async fn load(conn: &Conn) -> Result<Vec<Fence>> {
    let text = "SELECT kind, name, first, last, version, mode FROM _isles.fence";
    let rows = conn.rows(text, &[]).await?;
    let fences: Result<Vec<Fence>> = rows.iter().map(fence_of).collect();
    // Through the table, which gives them the one order that both engines have.
    Ok(FenceTable::from_fences(fences?)?.fences())
}

/// The fences and their token, as of one moment.
pub(super) async fn load_stamped(conn: &Conn) -> Result<Stamped> {
    let text =
        "SELECT kind, name, first, last, version, mode, token FROM _isles.fence_token LEFT JOIN _isles.fence ON true";
    let rows = conn.rows(text, &[]).await?;
    let token =
        rows.first().map(|row| row.get(6)).ok_or_else(|| ShardError::Corrupt("the fences have no token".into()))?;
    let fences = rows.iter().filter(|row| row.get::<_, Option<&str>>(0).is_some()).map(fence_of);
    let fences: Result<Vec<Fence>> = fences.collect();
    Ok(Stamped { token, table: FenceTable::from_fences(fences?)? })
}

fn fence_of(row: &tokio_postgres::Row) -> Result<Fence> {
    let damaged = || ShardError::Corrupt("a stored fence is not valid".into());
    let name: &str = row.get(1);
    let number = |at: usize| u32::try_from(row.get::<_, i64>(at)).map(BucketId).map_err(|_| damaged());
    let scope = match row.get::<_, &str>(0) {
        "bucket" => FenceScope::Buckets {
            group: GroupName::new(name).map_err(|_| damaged())?,
            first: number(2)?,
            last: number(3)?,
        },
        "tenant" if name.is_empty() => FenceScope::Tenant(None),
        "tenant" => FenceScope::Tenant(Some(TenantId::new(name).map_err(|_| damaged())?)),
        "shared" => FenceScope::Shared,
        "whole" => FenceScope::Whole { group: GroupName::new(name).map_err(|_| damaged())? },
        _ => return Err(damaged()),
    };
    let mode = match row.get::<_, &str>(5) {
        "open" => FenceMode::Open,
        "readonly" => FenceMode::ReadOnly,
        "closed" => FenceMode::Closed,
        _ => return Err(damaged()),
    };
    let version = RoutingVersion(u64::try_from(row.get::<_, i64>(4)).map_err(|_| damaged())?);
    Ok(Fence { scope, version, mode })
}

/// Rewrites all fences: they are few, and runs stay disjoint because the table keeps them so.
async fn store(conn: &Conn, table: &FenceTable) -> Result<()> {
    let (mut kinds, mut names, mut firsts, mut lasts, mut versions, mut modes) =
        (vec![], vec![], vec![], vec![], vec![], vec![]);
    for fence in table.fences() {
        let (kind, name, first, last) = match &fence.scope {
            FenceScope::Buckets { group, first, last } => ("bucket", group.to_string(), first.0, last.0),
            FenceScope::Tenant(tenant) => ("tenant", tenant_text(tenant), 0, 0),
            FenceScope::Shared => ("shared", String::new(), 0, 0),
            FenceScope::Whole { group } => ("whole", group.to_string(), 0, 0),
        };
        kinds.push(kind);
        names.push(name);
        firsts.push(i64::from(first));
        lasts.push(i64::from(last));
        versions
            .push(i64::try_from(fence.version.0).map_err(|_| ShardError::invalid("a routing version is below 2^63"))?);
        modes.push(match fence.mode {
            FenceMode::Open => "open",
            FenceMode::ReadOnly => "readonly",
            FenceMode::Closed => "closed",
        });
    }
    let insert = "INSERT INTO _isles.fence (kind, name, first, last, version, mode) \
                  SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[])";
    // Prepared first, or it would be sent before the other.
    conn.prepare(insert).await?;
    let params: [&(dyn ToSql + Sync); 6] = [&kinds, &names, &firsts, &lasts, &versions, &modes];
    let (deleted, inserted) =
        futures::join!(conn.batch_execute("DELETE FROM _isles.fence"), conn.rows(insert, &params));
    deleted.map_err(fault::before_commit)?;
    inserted.map(drop)
}
