//! Quotas of records: how many live ones a store may have, in an instance and of an owner.
//!
//! ```text
//! put ─► the counter rises, the record is inserted: one request ─────────────────────────► ok
//!            └─ the counter would pass the quota: nothing has happened
//!                  └─► a transaction: hold the counters ─► count the rows ─► insert, or refuse (53400)
//! ```
//!
//! A counter is a row beside the records that it counts: of their table and instance, under the kind `#{store}`. So it is
//! on their shard, changes in their transaction, and goes with them when their bucket moves or is restored.
//!
//! A counter is a bound from above. What adds a record raises it; what ends one (`take`, `revoke`, `delete`, expiry, a
//! sweep) leaves it alone, so only additions pay. When it reaches the quota, the rows are counted while it is held, and it
//! becomes what they are. Counting them at each addition would cost as many rows as the quota is large; a counter that
//! falls as well would be written by every use of a record, and expiry writes nothing that could lower it.
//!
//! All additions to an instance write its counter, so of two at once one waits, or is told 40001 and tries again: neither
//! decides by a count from before the other. On PostgreSQL, too, where two transactions that merely counted would both
//! find the last place free.
//!
//! Counting costs the shard's writer, and who is refused may ask again at once. So after it has taken a while, it is not
//! repeated for some fifty times as long: within that pause what is over the bound is refused without a look. A place
//! that was freed is then seen late, never too early.
//!
//! What counts:
//!   * Live records: neither expired, swept or not, nor used, nor revoked. Nothing is removed to make a place.
//!   * Each generation by itself: an instance of a previous one fills no place of the current one.
//!   * Of a tenant: every instance has its part of `max_per_tenant`, which makes it a bound that one shard can keep.
//!     A tenant whose keys are uneven is refused before it has reached the sum.
//!
//! An owner is bounded in each instance, which is all of its records where the key leads them to one bucket.
//!
//! A counter lasts as long as the records that it has counted can last. So where there is none, nothing that it would
//! have counted is left, and it begins with one; unless the store had records before it had a quota: until the last of
//! those can have expired, rows are counted where there is no counter.

use super::Result;
use super::ask::{Asked, Desk, Rows, text, text_or_null};
use super::place::{NO_GENERATION, Spot};
use super::record::Record;
use super::spec::StoreSpec;
use futures::future::BoxFuture;
use isles_cluster::session::Session;
use isles_engine::env::Env;
use isles_kernel::error::SqlError;
use isles_kernel::names::TenantId;
use isles_kernel::value::Value;
use std::time::Duration;

/// The largest quota of an instance. To count so many rows takes a shard's writer about a second, once in a minute.
pub const MAX_RECORDS: u64 = 1_000_000;
/// The largest quota of a tenant: what all instances of a large placement may have.
pub const MAX_TENANT_RECORDS: u64 = 1_000_000_000;
/// Rows that are counted in no time: a fraction of a millisecond.
const CHEAP_ROWS: i64 = 256;
/// The pause for each row that was counted. A row takes about one microsecond, so counting takes a fiftieth of the time.
const PAUSE_MICROS: i64 = 50;
/// What a counter says of which nobody knows yet what it should say: more than any quota.
const UNKNOWN: i64 = i64::MAX / 2;
/// How often an addition is tried when others change the same counter, and how long it pauses between.
const ATTEMPTS: usize = 16;
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const MAX_PAUSE: Duration = Duration::from_millis(50);
/// The longest that who is refused is told to wait: a record may be used or deleted at any time.
const MAX_WAIT_MICROS: i64 = 60_000_000;

/// Which quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RecordQuota {
    /// Of an instance.
    Records,
    /// Of an owner in an instance.
    PerOwner,
    /// Of a tenant: each instance has an equal part.
    PerTenant,
}

impl RecordQuota {
    /// As options and messages name it.
    pub fn name(self) -> &'static str {
        match self {
            RecordQuota::Records => "max_records",
            RecordQuota::PerOwner => "max_per_owner",
            RecordQuota::PerTenant => "max_per_tenant",
        }
    }

    /// Who has so many, for messages.
    fn reached(self, max: i64) -> String {
        match self {
            RecordQuota::Records => format!("its instance has {max} live ones"),
            RecordQuota::PerOwner => format!("its owner has {max} live ones in the instance"),
            RecordQuota::PerTenant => format!("its instance has {max} live ones, its part of the tenant's"),
        }
    }
}

/// What a record that is there already means for one that is put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meeting {
    /// There is none: the key is new.
    Nothing,
    /// One that has not expired stays, and nothing is added.
    Stays,
    /// A live one is replaced, and nothing is added.
    Replaced,
}

/// A record that is to be added.
#[derive(Clone, Copy)]
pub(super) struct Adding<'a> {
    pub(super) spec: &'a StoreSpec,
    pub(super) spot: &'a Spot,
    pub(super) tenant: &'a TenantId,
    pub(super) record: &'a Record,
    pub(super) meeting: Meeting,
}

/// A counter, and how far it may rise.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Counter {
    key: String,
    owner: Option<String>,
    quota: RecordQuota,
    max: i64,
}

/// What a counter says while it is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Held {
    /// There are not more live records than this.
    bound: i64,
    /// Until then the rows are not counted.
    pause_until: i64,
    /// When the first of those expires that were live when they were counted.
    first_end: Option<i64>,
}

/// Why a record was not added.
struct Refused {
    counter: Counter,
    held: Held,
}

/// What came of an addition that was decided while its counters were held.
enum Decided {
    Done(Vec<Rows>),
    Refused(Refused),
}

impl StoreSpec {
    pub(super) fn is_counted(&self) -> bool {
        self.config().counting.is_some()
    }
}

impl Counter {
    /// The counters of a record: that of its owner and that of the instance.
    fn all_of(adding: &Adding<'_>) -> Vec<Counter> {
        let config = adding.spec.config();
        let epoch = config.counting.map_or(0, |counting| counting.epoch);
        let signed = |max: u64| i64::try_from(max).unwrap_or(i64::MAX);
        let mut all = Vec::new();
        if let (Some(owner), Some(max)) = (&adding.record.owner, config.max_per_owner) {
            let (key, owner) = (format!("{epoch}={owner}"), Some(owner.clone()));
            all.push(Counter { key, owner, quota: RecordQuota::PerOwner, max: signed(max) });
        }
        let part = |max: u64| (RecordQuota::PerTenant, max / u64::from(adding.spot.buckets.max(1)));
        let of_instance = config.max_records.map(|max| (RecordQuota::Records, max));
        let tightest = of_instance.into_iter().chain(config.max_per_tenant.map(part)).min_by_key(|(_, max)| *max);
        if let Some((quota, max)) = tightest {
            all.push(Counter { key: epoch.to_string(), owner: None, quota, max: signed(max) });
        }
        all
    }

    fn on_key(&self, adding: &Adding<'_>) -> Vec<Value> {
        vec![text(&adding.spot.instance), text(&format!("#{}", adding.spec.name)), text(&self.key)]
    }

    /// What makes a counter that begins with so much, or does something to the one that is there. Of the columns of a
    /// record it uses `version` for its bound, `created_at` for the end of its pause and `used_at` for the first end. It
    /// is of no generation, so it keeps none from being drained.
    fn upsert(&self, adding: &Adding<'_>, begin: i64, change: &str) -> Asked {
        let sql = format!(
            "INSERT INTO {} AS r (instance, kind, key, tenant, value, version, created_at, expires_at, cap_at, generation) \
             VALUES ($1, $2, $3, $4, 'null', $5, 0, $6, $6, {NO_GENERATION}) ON CONFLICT (instance, kind, key) DO UPDATE SET {change} \
             expires_at = CASE WHEN r.expires_at < excluded.expires_at THEN excluded.expires_at ELSE r.expires_at END \
             RETURNING version, created_at, used_at",
            adding.spot.table
        );
        let mut params = self.on_key(adding);
        params.extend([text(adding.tenant.as_str()), Value::Int(begin), Value::Int(adding.record.cap_at)]);
        (sql, params)
    }

    /// Raises the counter, and fails if that would pass the quota: a counter is never null. One that has expired has
    /// counted nothing that is left.
    fn rise(&self, adding: &Adding<'_>) -> Asked {
        let change = "version = CASE WHEN r.expires_at <= $7 THEN 1 WHEN r.version < $8 THEN r.version + 1 END,";
        let (sql, mut params) = self.upsert(adding, 1, change);
        params.extend([Value::Int(adding.record.created_at), Value::Int(self.max)]);
        (sql, params)
    }

    /// Holds the counter until the transaction ends.
    async fn hold(&self, session: &mut Session, adding: &Adding<'_>) -> Result<Held> {
        let (sql, params) = self.upsert(adding, UNKNOWN, "");
        let rows = session.run_text(&sql, params).await?.rows;
        let (bound, pause_until) = (number(&rows, 0).unwrap_or(UNKNOWN), number(&rows, 1).unwrap_or(0));
        Ok(Held { bound, pause_until, first_end: number(&rows, 2) })
    }

    /// What the rows say.
    async fn count(&self, session: &mut Session, adding: &Adding<'_>) -> Result<Held> {
        let of_owner = if self.owner.is_some() { " AND tenant = $4 AND owner = $5" } else { "" };
        let live = "used_at IS NULL AND revoked_at IS NULL AND expires_at > $3";
        let sql = format!(
            "SELECT count(CASE WHEN {live} THEN 1 END), count(*), min(CASE WHEN {live} THEN expires_at END) FROM {} \
             WHERE instance = $1 AND kind = $2{of_owner}",
            adding.spot.table
        );
        let now = adding.record.created_at;
        let mut params = vec![text(&adding.spot.instance), text(adding.spec.name.as_str()), Value::Int(now)];
        if self.owner.is_some() {
            params.extend([text(adding.tenant.as_str()), text_or_null(self.owner.as_deref())]);
        }
        let rows = session.run_text(&sql, params).await?.rows;
        let (bound, counted) = (number(&rows, 0).unwrap_or(UNKNOWN), number(&rows, 1).unwrap_or(0));
        Ok(Held { bound, pause_until: now + pause_after(counted), first_end: number(&rows, 2) })
    }

    async fn write(&self, session: &mut Session, adding: &Adding<'_>, held: Held) -> Result<()> {
        let sql = format!(
            "UPDATE {} SET version = $4, created_at = $5, used_at = $6 WHERE instance = $1 AND kind = $2 AND key = $3",
            adding.spot.table
        );
        let mut params = self.on_key(adding);
        params.extend([Value::Int(held.bound), Value::Int(held.pause_until)]);
        params.push(held.first_end.map_or(Value::Null, Value::Int));
        session.run_text(&sql, params).await.map(drop)
    }
}

/// How long rows are not counted again, after so many were.
fn pause_after(counted: i64) -> i64 {
    match counted <= CHEAP_ROWS {
        true => 0,
        false => counted.saturating_mul(PAUSE_MICROS),
    }
}

fn number(rows: &Rows, at: usize) -> Option<i64> {
    match rows.first()?.get(at)? {
        Value::Int(number) => Some(*number),
        _ => None,
    }
}

impl Refused {
    /// For who asks: which quota, how to change it, and when to try again.
    fn error(&self, adding: &Adding<'_>) -> SqlError {
        let (store, quota, now) = (&adding.spec.name, self.counter.quota, adding.record.created_at);
        let said = adding.spec.config().quotas().find(|(known, _)| *known == quota).map_or(0, |(_, max)| max);
        let place = self.held.first_end.unwrap_or(i64::MAX).min(now + MAX_WAIT_MICROS).max(self.held.pause_until);
        let seconds = u64::try_from((place - now).max(1)).unwrap_or(1).div_ceil(1_000_000);
        let reached = quota.reached(self.counter.max);
        SqlError::new("53400", format!("store \"{store}\" has no place for another record: {reached}"))
            .with_detail("records that have not expired are never removed for others")
            .with_hint(format!(
                "the quota is {} = {said}; an administrator changes it by isles.alter_store('{store}', {} => …)",
                quota.name(),
                quota.name()
            ))
            .of_constraint(quota.name())
            .retry_after(Duration::from_secs(seconds))
    }
}

impl Adding<'_> {
    /// Whether counters that are not there have nothing to count.
    fn is_counted_whole(&self) -> bool {
        let whole_from = self.spec.config().counting.map_or(u64::MAX, |counting| counting.whole_from_ms);
        u64::try_from(self.record.created_at / 1_000).is_ok_and(|now| now >= whole_from)
    }

    /// Whether a record is added. What is there is kept from others meanwhile.
    async fn adds(&self, session: &mut Session) -> Result<bool> {
        if self.meeting == Meeting::Nothing {
            return Ok(true);
        }
        let live = match self.meeting {
            Meeting::Replaced => " AND used_at IS NULL AND revoked_at IS NULL",
            _ => "",
        };
        let sql = format!(
            "SELECT expires_at FROM {} WHERE instance = $1 AND kind = $2 AND key = $3{live} FOR UPDATE",
            self.spot.table
        );
        let key = vec![text(&self.spot.instance), text(self.spec.name.as_str()), text(&self.spot.key)];
        let rows = session.run_text(&sql, key).await?.rows;
        Ok(number(&rows, 0).is_none_or(|end| end <= self.record.created_at))
    }

    /// Within a transaction: the statements, if there is a place.
    async fn decide(&self, session: &mut Session, counters: &[Counter], statements: Vec<Asked>) -> Result<Decided> {
        let mut held = Vec::with_capacity(counters.len());
        for counter in counters {
            held.push(counter.hold(session, self).await?);
        }
        if self.adds(session).await? {
            if let Some(refused) = self.settle(session, counters, &mut held).await? {
                return Ok(Decided::Refused(refused));
            }
            for (counter, held) in counters.iter().zip(held) {
                counter.write(session, self, Held { bound: held.bound + 1, ..held }).await?;
            }
        }
        let mut all = Vec::with_capacity(statements.len());
        for (sql, params) in statements {
            all.push(session.run_text(&sql, params).await?.rows);
        }
        Ok(Decided::Done(all))
    }

    /// Counts the rows of counters that have reached their quota. The first that stays there refuses, and remembers what
    /// it has counted.
    async fn settle(&self, session: &mut Session, counters: &[Counter], held: &mut [Held]) -> Result<Option<Refused>> {
        for (counter, held) in counters.iter().zip(held) {
            if held.bound < counter.max {
                continue;
            }
            if self.record.created_at >= held.pause_until {
                *held = counter.count(session, self).await?;
                counter.write(session, self, *held).await?;
            }
            if held.bound >= counter.max {
                return Ok(Some(Refused { counter: counter.clone(), held: *held }));
            }
        }
        Ok(None)
    }

    /// The same as a transaction: the session's, or one of its own, which is tried again when others are in the way.
    async fn decide_alone(
        &self,
        env: &dyn Env,
        session: &mut Session,
        counters: &[Counter],
        statements: &[Asked],
    ) -> Result<Decided> {
        if session.in_transaction() {
            return self.decide(session, counters, statements.to_vec()).await;
        }
        let (mut attempt, mut pause) = (0, FIRST_PAUSE);
        loop {
            attempt += 1;
            session.begin_implicit();
            let decided = self.decide(session, counters, statements.to_vec()).await;
            if decided.is_err() {
                session.fail();
            }
            let ended = session.end_implicit().await;
            match decided.and_then(|decided| ended.map(|()| decided)) {
                Err(error) if attempt < ATTEMPTS && matches!(error.sqlstate, "40001" | "40P01") => {
                    env.sleep(pause).await;
                    pause = (pause * 2).min(MAX_PAUSE);
                }
                decided => return decided,
            }
        }
    }
}

impl Desk<'_> {
    /// Runs statements that may add a record, if the quotas of its store leave a place for it.
    pub(super) fn ask_counted<'b>(
        &'b mut self,
        adding: Adding<'b>,
        statements: Vec<Asked>,
    ) -> BoxFuture<'b, Result<Vec<Rows>>> {
        Box::pin(async move {
            let counters = Counter::all_of(&adding);
            if counters.is_empty() {
                return self.ask_together(statements).await;
            }
            // An error would end the client's transaction, and what is replaced must be looked at first.
            let at_once = adding.is_counted_whole() && adding.meeting != Meeting::Replaced && !self.in_transaction();
            if at_once && counters.iter().all(|counter| counter.max > 0) {
                let rises = counters.iter().map(|counter| counter.rise(&adding));
                let all = self.ask_together(rises.chain(statements.iter().cloned()).collect()).await;
                match all {
                    Err(error) if error.sqlstate == "23502" => {}
                    all => return all.map(|mut all| all.split_off(counters.len())),
                }
            }
            let stores = self.stores.clone();
            let decided = match self.lent_session() {
                Some(session) => adding.decide_alone(stores.env(), session, &counters, &statements).await?,
                None => {
                    let mut session = stores.session()?;
                    let decided = adding.decide_alone(stores.env(), &mut session, &counters, &statements).await;
                    stores.give_back(session);
                    decided?
                }
            };
            match decided {
                Decided::Done(all) => Ok(all),
                Decided::Refused(refused) => {
                    self.stores.shared.meter.refused(&adding.spec.name, refused.counter.quota);
                    Err(refused.error(&adding))
                }
            }
        })
    }
}
