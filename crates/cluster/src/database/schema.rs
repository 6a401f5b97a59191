//! The schema of the database, and how a transaction changes it: on all shards, or on none.
//!
//!     exclusive hold ─► step: a change in the open transaction of every shard ─► further steps, rows, …
//!                         │ COMMIT                                     │ ROLLBACK
//!                         ▼                                            ▼
//!     pledges ─► decision, schema and routing in one commit      every shard as it was
//!                of the catalog ─► every shard commits
//!
//! The catalog has the schema that statements are bound to. A transaction that changes it is alone in the database from
//! its first change to its end (see [`super::lock`]), so nobody else sees two schemas. It has a schema of its own
//! meanwhile, in a [`SchemaGuard`]: what it runs is bound to that, and a savepoint remembers which one it was.
//!
//! A statement that changes the schema outside of a transaction is a transaction of its own. So there is one way for a
//! schema to change, and it is the way in which rows of several shards change (`commit`): shards refuse a change for
//! what is in their tables before anything is decided, and a crash leaves all of it or nothing.
//!
//! New tables may bring new groups. Their routing is recorded with the decision and their fences are set in the
//! transactions of the shards, so a group exists if and only if its table was committed.
//!
//! Sequences keep their positions in the catalog, and numbers are not given back by a rollback. But a sequence that is
//! made anew, restarted or altered is so only if the transaction commits: its position is kept with the transaction's
//! schema, and recorded with the decision. One whose name is new needs no such care: whatever stands under its name
//! is removed when it is made.
//!
//! Invariants (docs/invariants.md):
//!   * I-6, I-20  a change is on all shards and in the catalog, or nowhere, whatever crashes
//!   * a table's group is routed and fenced when the table can be named in a statement, and not before

use super::lock::Hold;
use super::routing::{self, NewGroup, Routing};
use super::sequence::{self, Position, Slot, Whose};
use super::shards::ShardSet;
use super::{Database, SCHEMA_LOCK_LIMIT, Strategy};
use crate::catalog::{Catalog, Key, OPERATIONS_MAX, Record, Transaction, Write};
use crate::commit::decision::catalog_error;
use crate::execute::bounds::Bounds;
use isles_engine::shard::SchemaStep;
use isles_kernel::error::SqlError;
use isles_kernel::names::{SchemaVersion, ShardId};
use isles_kernel::routing::RoutingPolicy;
use isles_kernel::schema::{Schema, SchemaChange, Sequence, Table, TableKind, global_bucket};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const CURRENT: &str = "schema/current";
/// Writes of the catalog that a decision, its last piece of redo, the schema and the routing with its history need.
const RESERVED: usize = 6;

/// Tells schemas apart that plans may have been made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Edition {
    Committed(SchemaVersion),
    /// Of a transaction that has not committed. Its version may come again, with another content.
    Own(u64),
}

/// The schema as a statement sees it; it does not change meanwhile.
pub(crate) struct SchemaGuard {
    pub(crate) schema: Arc<Schema>,
    pub(crate) edition: Edition,
    /// What else a transaction has of its own that has changed the schema.
    own: Option<Own>,
    hold: Arc<Hold>,
}

struct Own {
    /// With groups that are new, and the record that it was made from.
    routing: Option<(Arc<RoutingPolicy>, Record)>,
    numbers: Numbers,
    with: Transaction,
}

#[derive(Clone, Default, PartialEq)]
struct Positions {
    /// A tenant's is here only beside that of its sequence, which says by which number it is found.
    at: BTreeMap<Slot, Position>,
    /// Numbers under which tenants' positions count no more, and whose they were.
    gone: BTreeMap<u64, String>,
}

impl Positions {
    /// A sequence begins anew for all: tenants' positions count no more.
    fn begin(&mut self, name: &str, before: Option<Position>, position: Position) {
        self.at.retain(|slot, _| slot.name != name);
        self.at.insert(Slot::shared(name), position);
        let gone = before.and_then(|before| before.own).filter(|own| position.own != Some(*own));
        self.gone.extend(gone.map(|own| (own, name.to_string())));
    }

    fn rename(&mut self, name: &str, to: &str) {
        let named: Vec<Slot> = self.at.keys().filter(|slot| slot.name == name).cloned().collect();
        for slot in named {
            if let Some(position) = self.at.remove(&slot) {
                self.at.insert(Slot::new(to, &slot.whose), position);
            }
        }
    }

    /// Lets a tenant have a position, beside that of its sequence.
    fn put_beside(&mut self, slot: Slot, position: Position, new_own: u64) {
        if let Some(base) = self.at.get_mut(&Slot::shared(&slot.name)) {
            base.own.get_or_insert(new_own);
            self.at.insert(slot, Position { own: None, ..position });
        }
    }

    fn key(&self, slot: &Slot) -> Result<Key, SqlError> {
        match &slot.whose {
            Whose::Everyone => sequence::key(&slot.name),
            Whose::Tenant(tenant) => {
                let own = self.at.get(&Slot::shared(&slot.name)).and_then(|base| base.own);
                let own = own.ok_or_else(|| SqlError::new("XX000", "a tenant's position has no number"))?;
                sequence::tenant_key(own, tenant.as_ref())
            }
        }
    }
}

/// Positions of sequences that hold if the transaction commits.
#[derive(Clone, Default)]
struct Numbers(Arc<Mutex<Positions>>);

impl Numbers {
    fn lock(&self) -> MutexGuard<'_, Positions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SchemaGuard {
    pub(crate) fn new(schema: Arc<Schema>, hold: Arc<Hold>) -> SchemaGuard {
        SchemaGuard { edition: Edition::Committed(schema.version), schema, own: None, hold }
    }

    /// Whether it is the schema of a transaction that has changed it.
    pub(crate) fn is_own(&self) -> bool {
        self.own.is_some()
    }

    pub(crate) fn is_alone(&self) -> bool {
        self.hold.is_exclusive()
    }

    /// The routing that goes with it.
    pub(crate) fn routing(&self, routing: &Routing) -> Arc<RoutingPolicy> {
        match self.own.as_ref().and_then(|own| own.routing.as_ref()) {
            Some((policy, _)) => policy.clone(),
            None => routing.current(),
        }
    }

    /// Positions that are the transaction's own.
    fn numbers(&self) -> Option<&Numbers> {
        self.own.as_ref().map(|own| &own.numbers)
    }
}

fn key() -> Key {
    Key::new(CURRENT).expect("a constant without control characters")
}

/// The schema that holds; every shard has it.
pub(crate) async fn open(catalog: &dyn Catalog, shards: &ShardSet) -> Result<Schema, SqlError> {
    let schema = match catalog.get(&key()).await.map_err(catalog_error)?.value {
        Some(record) => record.json().map_err(catalog_error)?,
        None => Schema::default(),
    };
    for name in &shards.names() {
        check_shard(shards, name, &schema).await?;
    }
    Ok(schema)
}

async fn check_shard(shards: &ShardSet, name: &ShardId, schema: &Schema) -> Result<(), SqlError> {
    let shard = shards.get(name).await.map_err(|error| error.for_people())?;
    let found = shard.schema().await.map_err(|error| error.for_people())?;
    if found.version == schema.version && found.hash() == schema.hash() {
        return Ok(());
    }
    let message = format!(
        "shard {name} has schema version {}, the database has {}: it belongs to another database, or is an old copy",
        found.version, schema.version
    );
    Err(SqlError::new("55000", message))
}

/// The groups that tables are in, and how many buckets each has.
pub(super) fn groups(schema: &Schema) -> Vec<NewGroup> {
    let mut groups: Vec<NewGroup> = schema.tables.values().filter_map(group_of).collect();
    groups.sort_by(|one, other| (&one.group, one.buckets).cmp(&(&other.group, other.buckets)));
    groups.dedup();
    groups
}

fn group_of(table: &Table) -> Option<NewGroup> {
    match &table.kind {
        TableKind::Hash { group, buckets, regions, .. } => {
            Some(NewGroup { group: group.clone(), buckets: *buckets, regions: regions.clone() })
        }
        TableKind::Global => Some(NewGroup { group: global_bucket().0, buckets: 1, regions: Vec::new() }),
        TableKind::Tenant | TableKind::Reference => None,
    }
}

/// A sequence whose next number becomes this one.
pub(crate) struct Restart {
    pub(crate) sequence: String,
    /// Everyone is each tenant, too.
    pub(crate) whose: Whose,
    pub(crate) next: i64,
}

/// What a statement changes.
pub(crate) struct Change {
    pub(crate) changes: Vec<SchemaChange>,
    pub(crate) restarts: Vec<Restart>,
    /// What else the catalog records with the decision, and what must hold for it.
    pub(crate) with: Transaction,
}

impl Change {
    /// With sequences that begin anew for everyone.
    pub(crate) fn of(changes: Vec<SchemaChange>, restarts: Vec<(String, i64)>) -> Change {
        let for_all = |(sequence, next)| Restart { sequence, whose: Whose::Everyone, next };
        Change { changes, restarts: restarts.into_iter().map(for_all).collect(), with: Transaction::new() }
    }

    /// Nothing but sequences that begin anew.
    pub(crate) fn restart(restarts: Vec<Restart>) -> Change {
        Change { changes: Vec::new(), restarts, with: Transaction::new() }
    }
}

/// What a change makes of the schema that a transaction has, and what each shard does for it.
pub(crate) struct Next {
    pub(crate) guard: SchemaGuard,
    pub(crate) steps: Vec<(ShardId, SchemaStep)>,
}

impl Database {
    /// The schema for one who will change it, alone from the beginning.
    pub(crate) async fn hold_schema_alone(&self, bounds: &Bounds) -> Result<SchemaGuard, SqlError> {
        self.check_schema()?;
        let hold = self.wait_alone(bounds, self.schema_lock.exclusive()).await?;
        self.check_schema()?;
        Ok(SchemaGuard::new(self.schema(), hold))
    }

    /// Makes one who is inside the only one.
    pub(crate) async fn upgrade_schema(&self, guard: &SchemaGuard, bounds: &Bounds) -> Result<(), SqlError> {
        self.wait_alone(bounds, guard.hold.upgrade()).await?
    }

    async fn wait_alone<T>(&self, bounds: &Bounds, wait: impl Future<Output = T>) -> Result<T, SqlError> {
        let lock = bounds.lock.map_or(SCHEMA_LOCK_LIMIT, |lock| lock.min(SCHEMA_LOCK_LIMIT));
        let (waiting, limited) = Bounds { lock: Some(lock), ..bounds.clone() }.of_lock(&*self.env);
        match waiting.wait(&*self.env, wait).await {
            Err(error) if limited && !bounds.cancel.is_cancelled() && error.sqlstate == "57014" => {
                Err(SqlError::new("55P03", "canceling statement due to lock timeout")
                    .with_detail("transactions and statements that use the schema do not end"))
            }
            result => result,
        }
    }

    /// Where each tenant has a shard of its own, nothing reads all of them, and no index over them leads anywhere.
    fn check_tenant_indexes(&self, next: &Schema) -> Result<(), SqlError> {
        let of_tenants = next.global_keys().any(|(table, _)| table.kind == TableKind::Tenant);
        match (self.strategy(), of_tenants) {
            (Strategy::Adapter, true) => {
                let error =
                    "a global index on a tenant table is not supported where each tenant has a shard of its own";
                Err(SqlError::unsupported(error).with_hint("a plain index finds a tenant's rows on its shard"))
            }
            _ => Ok(()),
        }
    }

    /// What `change` makes of the schema of one who is alone.
    pub(crate) async fn next_schema(&self, guard: &SchemaGuard, change: &Change) -> Result<Next, SqlError> {
        debug_assert!(guard.is_alone(), "only one who is alone changes the schema");
        self.check_joining()?;
        self.check_moves(&change.changes).await?;
        self.check_migrations(&change.changes).await?;
        self.drain_before(&guard.schema, &change.changes).await?;
        let from = guard.schema.version;
        let applied = guard.schema.apply(&change.changes);
        let next = applied.map_err(|error| isles_engine::error::ShardError::from(error).for_people())?;
        self.check_tenant_indexes(&next)?;
        // From the routing that everyone has: however many steps a transaction makes, its version rises by one.
        let routing = self.routing.with_groups(&groups(&next), &self.members().receiving(), &self.members()).await?;
        let numbers = self.renumber(guard, &next, change).await?;
        let fences = |shard: &ShardId| routing.as_ref().map_or(Vec::new(), |(policy, _)| routing::owned(policy, shard));
        let step = |shard: &ShardId| SchemaStep { from, changes: change.changes.clone(), fences: fences(shard) };
        let steps = self.members().names().map(|shard| (shard.clone(), step(shard))).collect();
        let mut with = guard.own.as_ref().map_or_else(Transaction::new, |own| own.with.clone());
        with.conditions.extend(change.with.conditions.iter().cloned());
        with.writes.extend(change.with.writes.iter().cloned());
        let guard = SchemaGuard {
            schema: Arc::new(next),
            edition: Edition::Own(self.next_txn().0),
            own: Some(Own { routing, numbers, with }),
            hold: guard.hold.clone(),
        };
        Ok(Next { guard, steps })
    }

    /// Where the sequences of the next schema stand.
    async fn renumber(&self, guard: &SchemaGuard, next: &Schema, change: &Change) -> Result<Numbers, SqlError> {
        let known = guard.own.as_ref().map_or_else(Numbers::default, |own| own.numbers.clone());
        let mut numbers = known.lock().clone();
        let before = |name: &str| guard.schema.sequences.get(name);
        for one in &change.changes {
            match one {
                SchemaChange::CreateSequence(new) => self.create_sequence(&mut numbers, new).await?,
                SchemaChange::AlterSequence(new) => {
                    let old = before(&new.name).unwrap_or(new);
                    let position = self.hold_position(&mut numbers, old).await?;
                    // Those who shared nothing will: nobody's number may come again.
                    if sequence::is_tenants(&guard.schema, old) && !sequence::is_tenants(next, new) {
                        let furthest = self.sequences.furthest(old, position).await?;
                        numbers.begin(&new.name, Some(position), furthest);
                    }
                }
                SchemaChange::RenameSequence { sequence, to } => {
                    if let Some(old) = before(sequence) {
                        self.hold_position(&mut numbers, old).await?;
                        numbers.rename(sequence, to);
                    }
                }
                SchemaChange::DropSequence { sequence } => {
                    if let Some(old) = before(sequence) {
                        let position = self.hold_position(&mut numbers, old).await?;
                        numbers.gone.extend(position.own.map(|own| (own, sequence.clone())));
                    }
                    numbers.at.retain(|slot, _| slot.name != *sequence);
                }
                _ => {}
            }
        }
        for restart in &change.restarts {
            let Some(sequence) = next.sequences.get(&restart.sequence) else { continue };
            sequence::check_value(sequence, restart.next)?;
            let position = self.hold_position(&mut numbers, sequence).await?;
            let anew = Position::before(restart.next);
            match &restart.whose {
                Whose::Everyone => numbers.begin(&sequence.name, Some(position), anew),
                whose => numbers.put_beside(Slot::new(&sequence.name, whose), anew, self.sequences.new_own()),
            }
        }
        // The same map as long as nothing in it was placed: numbers are not given back to a savepoint.
        let same = *known.lock() == numbers;
        Ok(if same { known } else { Numbers(Arc::new(Mutex::new(numbers))) })
    }

    /// Where a sequence stands, which is the transaction's own from now on.
    async fn hold_position(&self, numbers: &mut Positions, sequence: &Sequence) -> Result<Position, SqlError> {
        let slot = Slot::shared(&sequence.name);
        if let Some(position) = numbers.at.get(&slot) {
            return Ok(*position);
        }
        let position = self.sequences.position(sequence).await?;
        numbers.at.insert(slot, position);
        Ok(position)
    }

    /// A new sequence is at its beginning: for the transaction alone if everyone knows one of this name.
    async fn create_sequence(&self, numbers: &mut Positions, sequence: &Sequence) -> Result<(), SqlError> {
        if self.schema().sequences.contains_key(&sequence.name) {
            numbers.begin(&sequence.name, None, Position::first(sequence));
            return Ok(());
        }
        self.sequences.place_first(sequence).await
    }

    /// The next number of a sequence, from the transaction's own position if it has one.
    pub(crate) async fn next_number(
        &self,
        guard: &SchemaGuard,
        sequence: &Sequence,
        whose: &Whose,
    ) -> Result<i64, SqlError> {
        match self.own_numbers(guard, sequence, whose).await? {
            None => self.sequences.next(sequence, whose).await,
            Some(numbers) => {
                let mut numbers = numbers.lock();
                let position = numbers.at.get_mut(&Slot::new(&sequence.name, whose)).ok_or_else(no_position)?;
                sequence::advance(sequence, position)
            }
        }
    }

    /// As `setval`.
    pub(crate) async fn set_number(
        &self,
        guard: &SchemaGuard,
        sequence: &Sequence,
        whose: &Whose,
        (value, called): (i64, bool),
    ) -> Result<i64, SqlError> {
        match self.own_numbers(guard, sequence, whose).await? {
            None => self.sequences.set(sequence, whose, value, called).await,
            Some(numbers) => {
                sequence::check_value(sequence, value)?;
                let mut numbers = numbers.lock();
                let position = numbers.at.get_mut(&Slot::new(&sequence.name, whose)).ok_or_else(no_position)?;
                *position = position.set_to(value, called);
                Ok(value)
            }
        }
    }

    /// The transaction's own positions, with that of `whose` among them; None if the sequence is where everyone sees it.
    async fn own_numbers<'a>(
        &self,
        guard: &'a SchemaGuard,
        sequence: &Sequence,
        whose: &Whose,
    ) -> Result<Option<&'a Numbers>, SqlError> {
        let Some(numbers) = guard.numbers() else { return Ok(None) };
        let slot = Slot::new(&sequence.name, whose);
        let (base, known) = {
            let numbers = numbers.lock();
            (numbers.at.get(&Slot::shared(&sequence.name)).copied(), numbers.at.contains_key(&slot))
        };
        match (base, whose) {
            (None, _) => return Ok(None),
            (Some(base), Whose::Tenant(tenant)) if !known => {
                let stored = match base.own {
                    Some(own) => self.sequences.position_of(own, tenant.as_ref()).await?,
                    None => None,
                };
                numbers.lock().put_beside(slot, stored.unwrap_or(base), self.sequences.new_own());
            }
            _ => {}
        }
        Ok(Some(numbers))
    }

    /// Removes tenants' positions that count no more, while others work.
    pub(crate) fn sweep_sequences(self: &Arc<Self>) {
        let database = Arc::downgrade(self);
        self.env.spawn(Box::pin(async move {
            let Some(database) = database.upgrade() else { return };
            // What remains is removed when the database is opened again.
            let _ = database.sequences.sweep().await;
        }));
    }
}

fn no_position() -> SqlError {
    SqlError::new("XX000", "the transaction has no position of the sequence")
}

/// The end of a transaction that has changed the schema: what the catalog records with the decision, and what everyone
/// sees from then on. For as long as it lives, its transaction is alone.
pub(crate) struct Turnover {
    database: Arc<Database>,
    guard: Arc<SchemaGuard>,
}

impl Turnover {
    /// None for a transaction that has left the schema as it was.
    pub(crate) fn of(database: &Arc<Database>, guard: &Arc<SchemaGuard>) -> Option<Turnover> {
        guard.is_own().then(|| Turnover { database: database.clone(), guard: guard.clone() })
    }

    /// What is written with the decision, or not at all.
    pub(crate) fn writes(&self) -> Result<Transaction, SqlError> {
        let mut transaction = Transaction::new().put_json(key(), &*self.guard.schema).map_err(catalog_error)?;
        let Some(own) = &self.guard.own else { return Ok(transaction) };
        transaction.conditions.extend(own.with.conditions.iter().cloned());
        transaction.writes.extend(own.with.writes.iter().cloned());
        if let Some((policy, stored)) = &own.routing {
            transaction = transaction.when(stored.unchanged());
            let before: RoutingPolicy = stored.json().map_err(catalog_error)?;
            let now = self.database.env.now_micros() / 1_000;
            transaction = routing::recorded(transaction, &before, policy, "new groups of tables", now)?;
        }
        let numbers = own.numbers.lock();
        for (slot, position) in &numbers.at {
            transaction = transaction.put_json(numbers.key(slot)?, position).map_err(catalog_error)?;
        }
        // Positions of sequences that are gone do no harm; they go as far as there is room.
        let room = OPERATIONS_MAX.saturating_sub(RESERVED + transaction.writes.len());
        let gone = self.gone();
        let names = gone.iter().map(|name| Ok(Write::Delete(sequence::key(name)?)));
        let tenants = numbers.gone.keys().map(|own| Ok(Write::Put(sequence::gone_key(*own)?, b"{}".to_vec())));
        let writes: Result<Vec<Write>, SqlError> = names.chain(tenants).take(room).collect();
        transaction.writes.extend(writes?);
        Ok(transaction)
    }

    fn gone(&self) -> Vec<String> {
        let before = self.database.schema();
        before.sequences.keys().filter(|name| !self.guard.schema.sequences.contains_key(*name)).cloned().collect()
    }

    /// It is decided: everyone who comes in from now on sees it.
    pub(crate) fn publish(&self) {
        let database = &self.database;
        let before = database.schema();
        database.indexes.follow(&self.guard.schema, &database.routing.current());
        database.schema.store(self.guard.schema.clone());
        let changed = |old: &&Sequence| self.guard.schema.sequences.get(&old.name) != Some(old);
        before.sequences.values().filter(changed).for_each(|old| database.sequences.forget(&old.name));
        let Some(own) = &self.guard.own else { return };
        let numbers = own.numbers.lock();
        // What a tenant restarts for itself leaves its neighbours' blocks alone.
        numbers.at.keys().for_each(|slot| database.sequences.forget_slot(slot));
        numbers.gone.values().for_each(|name| database.sequences.forget(name));
        if !numbers.gone.is_empty() {
            database.sweep_sequences();
        }
        if let Some((policy, _)) = &own.routing {
            database.routing.store(policy.clone());
        }
    }

    /// Nobody knows whether it is decided. Who opens the catalog again does.
    pub(crate) fn leave_in_doubt(&self) {
        self.database.stuck.store(true, Ordering::SeqCst);
    }
}

/// Shared by [`super::Database`]: the schema of the moment.
pub(crate) type Current = arc_swap::ArcSwap<Schema>;
