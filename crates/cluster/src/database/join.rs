//! How a shard comes to a database that is being used.
//!
//! ```text
//! opened, and nobody's ─► schema ─► reference tables: copied, mirrored, compared
//!   ─► alone in the schema: the last changes, fences, the catalog's record ─► everyone knows it
//! ```
//!
//! It owns nothing yet; buckets and tenants are moved to it, or new ones begin there. Until it is recorded nobody asks it
//! anything: a join that is cut short leaves a file or a database that is never looked at again, and a reader of the
//! first shard's log, which is removed at the next start.
//!
//! Statements wait for the last step only, as they do for a change of the schema; the schema stays as it is meanwhile.
//!
//! Invariants (docs/invariants.md):
//!   * I-7   it serves nothing before its fences say so

use super::members::{self, Member, Members};
use super::routing::{self, FENCE_TIME};
use super::shards::{OpenShard, ShardPlace};
use super::{Active, Database, MAX_SHARDS, SchemaGuard, binding};
use crate::catalog::{CommitId, Transaction};
use crate::commit::decision::catalog_error;
use crate::execute::bounds::Bounds;
use isles_engine::error::ShardError;
use isles_engine::shard::{
    Batch, BatchKind, CancelToken, ChangePage, Digest, EVENT_ROWS, Incoming, KeyRange, RowVersion, Shard, StoredRow,
};
use isles_kernel::change::Change;
use isles_kernel::error::SqlError;
use isles_kernel::names::{RegionName, Seq, ShardId, StreamId};
use isles_kernel::schema::{Schema, Table, TableKind, Unit};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// Rows copied at once.
const ROWS: usize = 2_000;
/// The streams of joins, by which those are found that were cut short.
const STREAM_PREFIX: &str = "join-";
/// How often a comparison is made that changes may get between.
const LOOKS: usize = 5;
/// Tables of up to so many rows are compared once more while everyone waits.
const COMPARED_ROWS: u64 = 1_000;
/// How long everyone waits for the transactions that are running, how often, and how long nobody waits in between.
const ALONE_TIME: Duration = Duration::from_secs(2);
const ALONE_TRIES: usize = 30;
const ALONE_PAUSE: Duration = Duration::from_millis(500);

/// A shard that is to come.
#[derive(Debug, Clone)]
pub struct NewShard {
    /// None: the next number.
    pub name: Option<ShardId>,
    pub place: ShardPlace,
    /// Where it is, if that is said.
    pub region: Option<RegionName>,
}

/// Says that a shard is being added, until it is dropped.
struct Joining(Arc<Database>);

impl Drop for Joining {
    fn drop(&mut self) {
        self.0.joining.store(None);
    }
}

impl Database {
    /// Adds a shard. It goes on to its end, whoever waits for it.
    pub async fn add_shard(self: &Arc<Self>, new: NewShard) -> Result<ShardId, SqlError> {
        let active = self.enter()?;
        let (reply, answer) = oneshot::channel();
        let database = self.clone();
        self.env.spawn(Box::pin(async move {
            let added = database.join(new, active).await;
            // Whoever asked may have gone.
            let _ = reply.send(added);
        }));
        answer.await.unwrap_or_else(|_| Err(SqlError::new("57P01", "the database is being closed")))
    }

    async fn join(self: &Arc<Self>, new: NewShard, _active: Active) -> Result<ShardId, SqlError> {
        let _one_at_a_time = self.changing_members.lock().await;
        self.forget_joins().await?;
        let name = self.new_name(new.name.clone())?;
        if new.place == ShardPlace::Sqlite {
            self.give(&name).await?;
        }
        let people = |error: ShardError| error.for_people();
        let shard = self.shards.open_stranger(&name, &new.place).await.map_err(people)?;
        let joined = self.bring_in(&name, &new, &shard).await;
        if joined.is_err() {
            // It stays as it is, and is nobody's. What went wrong before matters more.
            let _ = self.shards.let_go(&name, &new.place, Some(&shard)).await;
        }
        // Whether it has come does not depend on this; what is left goes before the next one comes.
        if let Err(error) = self.forget_joins().await {
            tracing::warn!(shard = %name, %error, "the first shard still keeps its log for a join");
        }
        joined?;
        tracing::info!(shard = %name, engine = ?new.place.engine(), "shard added");
        Ok(name)
    }

    /// A name that no shard has had.
    fn new_name(&self, wanted: Option<ShardId>) -> Result<ShardId, SqlError> {
        let members = self.members();
        if members.shards.len() >= MAX_SHARDS {
            return Err(SqlError::new("54000", format!("a database has at most {MAX_SHARDS} shards")));
        }
        let name = wanted.unwrap_or_else(|| members.new_name());
        members.give(&name)?;
        Ok(name)
    }

    /// Gives a name for good: whatever becomes of the join, its file is not another's.
    async fn give(&self, name: &ShardId) -> Result<(), SqlError> {
        let given = self.change_members(Transaction::new(), |members| members.give(name)).await?;
        self.follow_members(given);
        Ok(())
    }

    async fn bring_in(self: &Arc<Self>, name: &ShardId, new: &NewShard, shard: &OpenShard) -> Result<(), SqlError> {
        let place = &new.place;
        let schema = {
            let guard = self.hold_schema().await?;
            self.joining.store(Some(Arc::new(name.clone())));
            guard.schema.clone()
        };
        let _joining = Joining(self.clone());
        let people = |error: ShardError| error.for_people();
        let mut copy = self.prepare(shard, &schema).await.map_err(people)?;
        let alone = self.alone_for_join(&mut copy).await?;
        self.complete(shard, copy).await.map_err(people)?;
        let member = Member {
            name: name.clone(),
            place: place.clone(),
            region: new.region.clone(),
            draining: None,
            tenant: None,
        };
        let given = |members: &Members| match place {
            ShardPlace::Sqlite => Ok(members.clone()),
            ShardPlace::Postgres { .. } => members.give(name),
        };
        let members =
            self.change_members(Transaction::new(), |members| Ok(given(members)?.with(member.clone()))).await?;
        // From here on nothing may fail: it is recorded.
        self.shards.admit(shard.clone(), place.clone());
        self.indexes.admit(name);
        self.latches.admit(name);
        self.works.admit(name);
        self.follow_members(members);
        drop(alone);
        self.start_sweeper();
        Ok(())
    }

    /// Gives a shard the schema and the reference tables, while others write to these.
    async fn prepare(self: &Arc<Self>, shard: &OpenShard, schema: &Arc<Schema>) -> Result<Copying, ShardError> {
        check_unused(&**shard).await?;
        // Before it has tables: one that has could be shared by tenants.
        binding::settle_new(self.strategy, shard).await?;
        shard.adopt_schema(schema.clone()).await?;
        let mut copy = Copying::begin(self, shard, schema).await?;
        copy.copy().await?;
        copy.compare().await?;
        Ok(copy)
    }

    /// Gives it what is missing, when nobody writes.
    async fn complete(&self, shard: &OpenShard, copy: Copying) -> Result<(), ShardError> {
        copy.finish().await?;
        self.indexes.expect(&**shard).await?;
        shard.set_fences(routing::owned(&self.routing.current(), shard.id()), FENCE_TIME).await
    }

    /// The schema, alone, when no commit over several shards is under way. Between tries others go on, and their changes
    /// are mirrored.
    async fn alone_for_join(self: &Arc<Self>, copy: &mut Copying) -> Result<SchemaGuard, SqlError> {
        let mut tries = 0;
        loop {
            copy.follow().await.map_err(|error| error.for_people())?;
            let bounds = Bounds::new(&*self.env, 2 * ALONE_TIME, CancelToken::default());
            let bounds = Bounds { lock: Some(ALONE_TIME), ..bounds };
            let refused = match self.hold_schema_alone(&bounds).await {
                Ok(guard) => match self.are_commits_done().await? {
                    true => return Ok(guard),
                    false => SqlError::new("55006", "a transaction over several shards is still being carried out"),
                },
                Err(error) => error,
            };
            tries += 1;
            if tries == ALONE_TRIES || self.is_closing() {
                return Err(refused.with_hint("a transaction that does not end may be in the way; try again"));
            }
            self.env.sleep(ALONE_PAUSE).await;
        }
    }

    /// Whether every decided commit is carried out everywhere; whoever asks is alone.
    pub(super) async fn are_commits_done(&self) -> Result<bool, SqlError> {
        Ok(self.coordinator.sweep().await? == 0 && !self.coordinator.is_busy())
    }

    /// Changes the record of which shards there are, and whatever else belongs to it, in one commit. Returns what is
    /// recorded now, which nobody knows of yet.
    pub(super) async fn change_members(
        &self,
        with: Transaction,
        change: impl Fn(&Members) -> Result<Members, SqlError>,
    ) -> Result<Members, SqlError> {
        let (known, record) = members::read(self.catalog.as_ref()).await?.ok_or_else(members::lost)?;
        let with = with.once(CommitId::random(&*self.env)).when(record.unchanged());
        let next = change(&known)?;
        let write = with.put_json(members::key(), &next).map_err(catalog_error)?;
        for _ in 0..2 {
            match self.catalog.commit(write.clone()).await {
                Ok(_) => return Ok(next),
                Err(crate::catalog::CatalogError::MayHaveHappened(_)) => {}
                Err(error) => return Err(catalog_error(error)),
            }
        }
        // Nobody knows which shards there are until the catalog is opened again.
        self.stuck.store(true, std::sync::atomic::Ordering::SeqCst);
        Err(SqlError::new("57P03", "the catalog has not said which shards there are").with_hint("restart"))
    }

    /// Lets everyone know what is recorded.
    pub(super) fn follow_members(&self, members: Members) {
        self.placements.set_regions(members.regions());
        self.members.store(Arc::new(members));
    }

    /// Refuses to change the schema while a shard is being given it.
    pub(super) fn check_joining(&self) -> Result<(), SqlError> {
        match &*self.joining.load() {
            None => Ok(()),
            Some(name) => Err(SqlError::new("55006", format!("cannot change the schema: shard {name} is being added"))
                .with_hint("try again when it is there")),
        }
    }

    /// Removes readers of the log that joins have left which were cut short.
    pub(super) async fn forget_joins(&self) -> Result<(), SqlError> {
        let people = |error: ShardError| error.for_people();
        let first = self.shards.get(&self.first_shard()).await.map_err(people)?;
        let consumers = first.consumers().await.map_err(people)?;
        for left in consumers.iter().filter(|consumer| consumer.stream.as_str().starts_with(STREAM_PREFIX)) {
            first.remove_consumer(&left.stream).await.map_err(people)?;
        }
        Ok(())
    }
}

/// A shard that has been used is somebody's.
async fn check_unused(shard: &dyn Shard) -> Result<(), ShardError> {
    if shard.fences().await?.is_empty() && *shard.schema().await? == Schema::default() {
        return Ok(());
    }
    let error = SqlError::new("55000", "the new shard is not empty: it is or has been a shard already");
    let hint = "give a database that Isles has not used; \"CREATE DATABASE\" makes one";
    Err(ShardError::Statement(error.with_hint(hint)))
}

/// The reference tables, on their way from the first shard to the new shard.
struct Copying {
    database: Arc<Database>,
    first: OpenShard,
    shard: OpenShard,
    stream: StreamId,
    tables: Vec<Table>,
    position: Seq,
}

impl Copying {
    /// From here on changes are captured.
    async fn begin(database: &Arc<Database>, shard: &OpenShard, schema: &Schema) -> Result<Copying, ShardError> {
        let stream =
            StreamId::new(format!("{STREAM_PREFIX}{}", shard.id())).expect("a shard's name is short and plain");
        let tables = schema.tables.values().filter(|table| table.kind == TableKind::Reference).cloned().collect();
        let first = database.shards.get(&database.first_shard()).await?;
        let position = first.add_consumer(&stream).await?;
        Ok(Copying { database: database.clone(), first, shard: shard.clone(), stream, tables, position })
    }

    async fn apply(&self, kind: BatchKind, rows: Vec<Incoming>) -> Result<(), ShardError> {
        self.shard.apply(Batch { kind, ..Batch::new(&self.stream, rows) }).await.map(drop)
    }

    fn version(&self, seq: Seq) -> RowVersion {
        RowVersion { epoch: self.database.routing.current().version(), seq }
    }

    async fn copy(&mut self) -> Result<(), ShardError> {
        for table in &self.tables {
            let mut range = KeyRange::table(&table.name);
            loop {
                let page = self.first.snapshot().await?.page(&range, ROWS).await?;
                let incoming = |row: StoredRow| Incoming {
                    table: table.name.clone(),
                    key: table.key_of(&row.unit, &row.values),
                    unit: row.unit,
                    version: self.version(Seq(0)),
                    row: Some(row.values),
                };
                self.apply(BatchKind::Copy, page.rows.into_iter().map(incoming).collect()).await?;
                range.after = page.next;
                if range.after.is_none() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Applies what has changed on the first shard since.
    async fn follow(&mut self) -> Result<(), ShardError> {
        loop {
            let page = self.first.changes(self.position, *EVENT_ROWS.end()).await?;
            if page.through <= self.position {
                return Ok(());
            }
            self.apply_page(&page).await?;
            self.position = page.through;
            self.first.advance(&self.stream, self.position).await?;
        }
    }

    async fn apply_page(&self, page: &ChangePage) -> Result<(), ShardError> {
        let is_ours = |change: &&Change| {
            change.unit == Unit::Shared && self.tables.iter().any(|table| table.name == change.table)
        };
        let incoming = |change: &Change| Incoming {
            table: change.table.clone(),
            unit: change.unit.clone(),
            key: change.key.clone(),
            version: self.version(change.seq),
            row: change.after.clone(),
        };
        let rows: Vec<Incoming> = page.changes.iter().filter(is_ours).map(incoming).collect();
        if rows.is_empty() { Ok(()) } else { self.apply(BatchKind::Changes, rows).await }
    }

    async fn digests(&self, table: &Table) -> Result<(Digest, Digest), ShardError> {
        let range = KeyRange::table(&table.name);
        let of = async |shard: &OpenShard| shard.snapshot().await?.digest(&range).await;
        Ok((of(&self.first).await?, of(&self.shard).await?))
    }

    /// Whether both have the same rows. Changes that come between are mirrored, and it is looked again.
    async fn compare(&mut self) -> Result<(), ShardError> {
        for at in 0..self.tables.len() {
            let mut looks = 0;
            loop {
                self.follow().await?;
                let (first, new) = self.digests(&self.tables[at]).await?;
                if first == new {
                    break;
                }
                looks += 1;
                if looks == LOOKS {
                    // Someone writes all the time. What is small is compared again when nobody does.
                    match first.rows.max(new.rows) <= COMPARED_ROWS {
                        true => break,
                        false => return Err(differs(&self.tables[at])),
                    }
                }
            }
        }
        Ok(())
    }

    /// Applies the last changes: nobody writes.
    async fn finish(mut self) -> Result<(), ShardError> {
        self.follow().await?;
        let mut after = self.position;
        loop {
            let page = self.first.committed_changes(after, *EVENT_ROWS.end()).await?;
            self.apply_page(&page).await?;
            if page.changes.len() < *EVENT_ROWS.end() {
                break;
            }
            after = page.through;
        }
        for table in &self.tables {
            let range = KeyRange::table(&table.name);
            let page = self.first.snapshot().await?.page(&range, COMPARED_ROWS as usize + 1).await?;
            if page.rows.len() as u64 <= COMPARED_ROWS {
                let (first, new) = self.digests(table).await?;
                if first != new {
                    return Err(differs(table));
                }
            }
        }
        self.shard.forget_stream(&self.stream, None).await
    }
}

fn differs(table: &Table) -> ShardError {
    let message = format!("reference table \"{}\" has other rows on the new shard", table.name);
    ShardError::Statement(SqlError::new("XX001", message).with_hint("try again when fewer write to it"))
}
