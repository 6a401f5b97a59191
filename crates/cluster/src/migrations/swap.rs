//! The moment at which the copy takes the table's place.
//!
//! ```text
//! near the end of all logs ─► alone in the database ─► rest of the logs ─► both sides compared ─┐
//!   ┌───────────────────────────────────────────────────────────────────────────────────────────┘
//!   └► names changed on all shards, not committed ─► logs: nothing new ─► decision, schema and record in one commit
//! ```
//!
//! Who is alone has let every statement and transaction end, and keeps new ones waiting. It waits for that only briefly:
//! a transaction that goes on for long would hold up everyone who comes after, so the swap is given up and tried again.
//!
//! The logs are looked at once more when the tables are locked: a commit whose client has gone may have been on its way.
//! Until the decision is recorded nothing has changed; from then on the copy is the table, whatever crashes.

use super::store::{self, State};
use super::work::{Halt, Pair, Tail, Work, owned_scope};
use super::{Phase, Planted, Stop};
use crate::database::SchemaGuard;
use crate::database::schema::Change;
use crate::execute::bounds::Bounds;
use crate::execute::transaction::{Modes, Txn};
use isles_engine::shard::{ActsFor, CancelToken, Digest, EVENT_ROWS, Isolation, KeyRange, StoredRow};
use isles_kernel::error::SqlError;
use isles_kernel::schema::{SchemaChange, Unit};
use isles_kernel::value::Encoder;
use std::sync::Arc;
use std::time::Duration;

/// How long a swap waits to be alone. Whoever comes meanwhile waits, too.
const ALONE_WAIT: Duration = Duration::from_millis(500);
/// Everything while nobody else is served.
const SWAP_TIME: Duration = Duration::from_secs(60);
/// Commits that were decided on before end within this.
const COMMITS_WAIT: Duration = Duration::from_secs(1);
const COMMITS_POLL: Duration = Duration::from_millis(2);
/// Before anybody waits, the copy comes this close to the end of each log.
const SWAP_LAG: usize = 100;
/// Between two tries; twice as long each time, up to a limit, so that most of the time nobody is held up by them.
const AGAIN: Duration = Duration::from_millis(500);
const MAX_AGAIN: Duration = Duration::from_secs(5);
/// Between two looks at the logs meanwhile.
const FOLLOW_PAUSE: Duration = Duration::from_millis(20);
/// Up to so many rows both sides are compared value by value; beyond it they are counted. Half a second, about.
const COMPARED_ROWS: u64 = 50_000;
const PAGE_ROWS: usize = 5_000;

/// Waits to be alone, briefly; None if others do not end.
pub(super) async fn alone(work: &Work) -> Result<Option<(SchemaGuard, Bounds)>, Halt> {
    let bounds = Bounds::new(&*work.database.env, SWAP_TIME, CancelToken::default());
    let brief = Bounds { lock: Some(ALONE_WAIT), ..bounds.clone() };
    match work.database.hold_schema_alone(&brief).await {
        Ok(guard) => Ok(Some((guard, bounds))),
        Err(error) if error.sqlstate == "55P03" => {
            work.database.migrations.note(work.migration().number, |progress| {
                progress.waits = Some("transactions that are running".into());
            });
            Ok(None)
        }
        Err(error) => Err(Halt::Later(error)),
    }
}

/// A transaction of ours, alone.
pub(super) fn begin(work: &Work, guard: SchemaGuard) -> Result<Txn, Halt> {
    let modes = Modes { isolation: Isolation::ReadCommitted, read_only: false };
    Ok(Txn::begin(&work.database, modes, Arc::new(guard), ActsFor::Nobody)?)
}

/// Follows the logs until the copy has taken the table's place.
pub(super) async fn swap(work: &mut Work, pair: &Pair, tails: &mut [Tail]) -> Result<(), Halt> {
    let mut again = AGAIN;
    loop {
        work.note(Phase::Following);
        loop {
            let mut largest = 0;
            for tail in tails.iter_mut() {
                largest = largest.max(work.follow(pair, tail).await?);
            }
            if largest <= SWAP_LAG {
                break;
            }
        }
        work.may_stop(Stop::BeforeSwap)?;
        let waits = work.database.migrations.plants(Planted::NeverSwap);
        if !waits && try_swap(work, pair, tails).await? {
            return Ok(());
        }
        let until = work.database.env.elapsed() + if waits { FOLLOW_PAUSE } else { again };
        again = (again * 2).min(MAX_AGAIN);
        // The log does not grow meanwhile, and an operator is heard.
        while work.database.env.elapsed() < until {
            work.database.env.sleep(FOLLOW_PAUSE).await;
            for tail in tails.iter_mut() {
                work.follow(pair, tail).await?;
            }
        }
    }
}

/// Whether it is done; if not, nothing has changed.
async fn try_swap(work: &mut Work, pair: &Pair, tails: &mut [Tail]) -> Result<bool, Halt> {
    let Some((guard, bounds)) = alone(work).await? else { return Ok(false) };
    work.note(Phase::Swapping);
    let began = work.database.env.elapsed();
    let is_blind = work.database.migrations.plants(Planted::NoDrain);
    if !is_blind {
        if !commits_have_ended(work).await || !drain(work, pair, tails, &bounds).await? {
            return Ok(false);
        }
        compare(work, pair).await?;
    }
    let mut migration = work.migration().clone();
    let change = SchemaChange::ReplaceTable {
        table: migration.table.clone(),
        by: migration.copy.clone(),
        aside: migration.aside.clone(),
    };
    migration.state = State::Cleaning;
    let env = &work.database.env;
    migration.pause_micros = u64::try_from(env.elapsed().saturating_sub(began).as_micros()).ok();
    migration.updated_at = env.now_micros() / 1_000;
    let with = store::replacing(&work.stored, &migration)?;
    let mut txn = begin(work, guard)?;
    let change = Change { changes: vec![change], restarts: Vec::new(), with };
    if let Err(error) = txn.change_schema(&change, &bounds).await {
        txn.rollback().await;
        return Err(refused(error));
    }
    if !is_blind && !is_at_the_end(work, pair, tails).await? {
        txn.rollback().await;
        return Ok(false);
    }
    txn.commit(&bounds).await?;
    tracing::info!(table = %migration.table, pause_micros = migration.pause_micros, "a table is a tenant table now");
    // What the record is now.
    Err(Halt::Changed)
}

/// What a shard refuses for what is in the tables it refuses for ever; what is locked or lost comes again.
fn refused(error: SqlError) -> Halt {
    match &error.sqlstate[..2] {
        "22" | "23" | "42" => Halt::Never(error),
        _ => Halt::Later(error),
    }
}

/// Transactions over several shards that were decided on before.
async fn commits_have_ended(work: &Work) -> bool {
    let env = &work.database.env;
    let until = env.elapsed() + COMMITS_WAIT;
    while work.database.coordinator.is_busy() {
        if env.elapsed() >= until {
            return false;
        }
        env.sleep(COMMITS_POLL).await;
    }
    true
}

/// Brings the rest of all logs. Nobody writes.
async fn drain(work: &mut Work, pair: &Pair, tails: &mut [Tail], bounds: &Bounds) -> Result<bool, Halt> {
    for tail in tails {
        let end = work.shard(&tail.shard).await?.settled().await?;
        while tail.position < end {
            let (before, read) = (tail.position, work.follow(pair, tail).await?);
            if bounds.check(&*work.database.env).is_err() || (read == 0 && tail.position == before) {
                // A transaction that nobody is in may still fill a gap of the log.
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Whether the logs have nothing of the table that the copy has not.
async fn is_at_the_end(work: &Work, pair: &Pair, tails: &[Tail]) -> Result<bool, Halt> {
    for tail in tails {
        let page = work.shard(&tail.shard).await?.committed_changes(tail.position, *EVENT_ROWS.end()).await?;
        let is_new = page.changes.iter().any(|change| change.table == pair.source.name);
        if is_new || page.changes.len() == *EVENT_ROWS.end() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Makes sure that the copy has what the table has.
async fn compare(work: &Work, pair: &Pair) -> Result<(), Halt> {
    let (mut rows, mut copied) = (0, 0);
    for shard in super::work::sources(&work.database, &pair.source) {
        let range = KeyRange::table(&pair.source.name).within(owned_scope(&work.database, &pair.source, &shard));
        rows += work.shard(&shard).await?.snapshot().await?.count(&range).await?;
    }
    for shard in work.database.shard_names() {
        copied += work.shard(&shard).await?.snapshot().await?.count(&KeyRange::table(&pair.copy.name)).await?;
    }
    if rows != copied {
        return Err(differs(pair, &format!("the table has {rows} rows, the copy {copied}")));
    }
    if rows > COMPARED_ROWS {
        return Ok(());
    }
    let mut found = Digest::default();
    for shard in work.database.shard_names() {
        let range = KeyRange::table(&pair.copy.name);
        found = found + work.shard(&shard).await?.snapshot().await?.digest(&range).await?;
    }
    match wanted(work, pair).await? == found {
        true => Ok(()),
        false => Err(differs(pair, "their rows differ")),
    }
}

/// What the copy should have.
async fn wanted(work: &Work, pair: &Pair) -> Result<Digest, Halt> {
    let (mut digest, mut scratch) = (Digest::default(), Encoder::default());
    for shard in super::work::sources(&work.database, &pair.source) {
        let mut snapshot = work.shard(&shard).await?.snapshot().await?;
        let scope = owned_scope(&work.database, &pair.source, &shard);
        let mut range = KeyRange::table(&pair.source.name).within(scope);
        loop {
            let page = snapshot.page(&range, PAGE_ROWS).await?;
            for row in page.rows {
                let unit = Unit::Tenant(super::work::tenant_of(pair, &row.values)?);
                digest.add_row(&StoredRow { unit, values: row.values }, &mut scratch);
            }
            match page.next {
                Some(next) => range.after = Some(next),
                None => break,
            }
        }
    }
    Ok(digest)
}

fn differs(pair: &Pair, how: &str) -> Halt {
    let message = format!("the copy of table \"{}\" is not what the table is", pair.source.plain_name());
    Halt::Never(SqlError::new("55000", message).with_detail(how).with_hint("the table is as it was; begin again"))
}
