//! What is in force, and how it is followed.
//!
//! All records are in memory, compiled, behind one pointer. A change is published by the one who made it, at once, and
//! by whoever follows the catalog, in the order of its commits; the later of the two does nothing.
//!
//! A new placement is in force from the moment it is published. Who must not overlap with those who still work by the
//! old one [enters](Placements::enter): it waits until they have left. They leave soon, because each is one operation.
//! Nobody new can join them: an operation counts itself first and looks then whether its placement is still the one.

use super::record::{self, ETag, is_default, read_config, tenant_of};
use super::{DEFAULT_TENANT, Environment, InForce, MAX_TENANTS, PlacementError, Placements, Source, Why};
use crate::catalog::{Catalog, CatalogError, Commit, Event, Key, Record, Revision};
use crate::commit::decision::catalog_error;
use arc_swap::ArcSwap;
use isles_engine::env::Env;
use isles_kernel::error::SqlError;
use isles_kernel::placement::Placement;
use std::collections::{BTreeMap, HashMap};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::Duration;

/// Records read at once.
const PAGE: usize = 100;
/// How long one who enters waits for those who are inside an older placement: longer than any operation takes.
const ENTER_LIMIT: Duration = Duration::from_secs(30);
const ENTER_POLL: Duration = Duration::from_millis(1);
/// How soon the catalog is asked again after it has failed.
const FOLLOW_AGAIN: Duration = Duration::from_secs(1);

/// Who is inside a placement.
#[derive(Debug, Default)]
pub(super) struct Users(AtomicUsize);

impl Users {
    fn are_gone(&self) -> bool {
        self.0.load(Ordering::SeqCst) == 0
    }
}

type Outcome = Result<Arc<InForce>, Arc<PlacementError>>;

/// One tenant's record, compiled.
#[derive(Clone)]
struct Entry {
    revision: Revision,
    outcome: Outcome,
    /// The last valid one, if this is not.
    last_valid: Option<Arc<Placement>>,
}

/// All records at one moment.
pub(super) struct Known {
    tenants: HashMap<String, Entry>,
    /// For tenants without a record: that of `default`, or what is built in.
    shared: Outcome,
    /// Commits up to this one have been seen.
    followed: Revision,
}

impl Known {
    pub(super) fn of(&self, tenant: &str) -> Result<Arc<InForce>, PlacementError> {
        let outcome = self.tenants.get(tenant).map_or(&self.shared, |entry| &entry.outcome);
        outcome.clone().map_err(|error| (*error).clone())
    }

    pub(super) fn has(&self, tenant: &str) -> bool {
        self.tenants.contains_key(tenant)
    }

    pub(super) fn count(&self) -> usize {
        self.tenants.len()
    }

    /// How many tenants have a record that is not valid.
    pub(super) fn invalid(&self) -> Vec<String> {
        let is_invalid = |entry: &Entry| match &entry.outcome {
            Err(_) => true,
            Ok(in_force) => in_force.source != Source::Configured,
        };
        let mut names: Vec<String> =
            self.tenants.iter().filter(|(_, entry)| is_invalid(entry)).map(|(name, _)| name.clone()).collect();
        names.sort();
        names
    }

    /// Those that are in force.
    pub(super) fn placements(&self) -> impl Iterator<Item = &Placement> {
        let outcomes = self.tenants.values().map(|entry| &entry.outcome).chain([&self.shared]);
        outcomes.filter_map(|outcome| outcome.as_ref().ok()).map(|in_force| &*in_force.placement)
    }

    /// The same, with whose they are.
    pub(super) fn named_placements(&self) -> Vec<(String, Arc<Placement>)> {
        let own = self.tenants.iter().map(|(name, entry)| (name.clone(), &entry.outcome));
        let all = own.chain([(DEFAULT_TENANT.to_owned(), &self.shared)]);
        let mut all: Vec<(String, Arc<Placement>)> =
            all.filter_map(|(name, outcome)| Some((name, outcome.as_ref().ok()?.placement.clone()))).collect();
        all.sort_by(|one, other| one.0.cmp(&other.0));
        all.dedup_by(|one, other| one.0 == other.0);
        all
    }

    pub(super) fn last_valid(&self, tenant: &str) -> Option<Arc<Placement>> {
        self.tenants.get(tenant).and_then(|entry| entry.last_valid.clone())
    }
}

fn in_force(placement: Arc<Placement>, source: Source, etag: ETag, before: Vec<Arc<Users>>) -> Arc<InForce> {
    Arc::new(InForce { placement, source, etag, users: Arc::default(), peers: Vec::new(), before })
}

/// Those who are inside what is replaced, or inside what it has replaced.
fn users_of(outcome: &Outcome) -> Vec<Arc<Users>> {
    let Ok(old) = outcome else { return Vec::new() };
    still_there(std::iter::once(&old.users).chain(&old.peers).chain(&old.before))
}

fn still_there<'a>(users: impl Iterator<Item = &'a Arc<Users>>) -> Vec<Arc<Users>> {
    users.filter(|users| !users.are_gone()).cloned().collect()
}

fn built_in() -> Arc<Placement> {
    Arc::new(Placement::defaults())
}

/// An operation that goes by a placement, until it is dropped.
#[derive(Debug)]
pub struct Entered {
    found: Arc<InForce>,
    /// Among the tenants that go by what they inherit.
    _heir: Option<Heir>,
}

impl Entered {
    pub fn in_force(&self) -> &Arc<InForce> {
        &self.found
    }
}

impl Deref for Entered {
    type Target = InForce;

    fn deref(&self) -> &InForce {
        &self.found
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.found.users.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Operations that go by what their tenants inherit, by tenant: one that gets a record of its own waits for its own, and
/// not for those of all who inherit the same.
#[derive(Debug, Default)]
pub(super) struct Heirs(Mutex<HashMap<String, usize>>);

impl Heirs {
    fn counts(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn enter(self: &Arc<Self>, tenant: &str) -> Heir {
        *self.counts().entry(tenant.to_owned()).or_default() += 1;
        Heir { heirs: self.clone(), tenant: tenant.to_owned() }
    }

    /// Whoever changes what all inherit waits for all of them.
    fn has(&self, tenant: &str) -> bool {
        let counts = self.counts();
        if is_default(tenant) { !counts.is_empty() } else { counts.contains_key(tenant) }
    }
}

/// One of the [`Heirs`], until it is dropped.
#[derive(Debug)]
struct Heir {
    heirs: Arc<Heirs>,
    tenant: String,
}

impl Drop for Heir {
    fn drop(&mut self) {
        let mut counts = self.heirs.counts();
        if let Some(count) = counts.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.tenant);
            }
        }
    }
}

/// A tenant that nobody enters, until it is dropped.
pub(super) struct Closed<'a> {
    placements: &'a Placements,
    tenant: String,
}

impl Closed<'_> {
    fn new<'a>(placements: &'a Placements, tenant: &str) -> Closed<'a> {
        let tenant = tenant.to_owned();
        let mut closed = placements.closed.lock().unwrap_or_else(PoisonError::into_inner);
        *closed.entry(tenant.clone()).or_default() += 1;
        placements.closings.fetch_add(1, Ordering::SeqCst);
        Closed { placements, tenant }
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        let mut closed = self.placements.closed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(times) = closed.get_mut(&self.tenant) {
            *times -= 1;
            if *times == 0 {
                closed.remove(&self.tenant);
            }
        }
        self.placements.closings.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Placements {
    /// Reads all records.
    pub(crate) async fn open(
        catalog: Arc<dyn Catalog>,
        env: Arc<dyn Env>,
        environment: Environment,
    ) -> Result<Arc<Placements>, SqlError> {
        let shared = Ok(in_force(built_in(), Source::Defaults(Why::Missing), ETag::NONE, Vec::new()));
        let known = Known { tenants: HashMap::new(), shared, followed: Revision::ZERO };
        let placements = Placements {
            catalog,
            env,
            environment,
            known: ArcSwap::from_pointee(known),
            publishing: Mutex::new(()),
            keepers: RwLock::default(),
            closed: Mutex::default(),
            closings: AtomicUsize::new(0),
            heirs: Arc::default(),
            regions: ArcSwap::default(),
            invalid: Mutex::default(),
            is_following: AtomicBool::new(true),
        };
        placements.read_all().await.map_err(catalog_error)?;
        if !placements.known.load().has(DEFAULT_TENANT) {
            tracing::info!(
                "tenants without a placement of their own have the built-in defaults: no record of tenant \"default\""
            );
        }
        Ok(Arc::new(placements))
    }

    /// Follows the catalog for as long as it is open and anybody holds the placements.
    pub(crate) fn follow(self: &Arc<Self>) {
        let (weak, env, catalog) = (Arc::downgrade(self), self.env.clone(), Arc::downgrade(&self.catalog));
        self.env.spawn(Box::pin(async move {
            while let Some(placements) = weak.upgrade() {
                let from = placements.known.load().followed.next();
                drop(placements);
                let Err(error) = follow_from(&weak, &catalog, from).await else { return };
                let Some(placements) = weak.upgrade() else { return };
                placements.is_following.store(false, Ordering::SeqCst);
                match error {
                    CatalogError::Compacted { .. } | CatalogError::Ahead { .. } => {
                        // The history does not tell what happened; the records do.
                        let _ = placements.read_all().await;
                    }
                    CatalogError::Stopped(_) => return,
                    error => tracing::warn!(%error, "placements are as they were last read"),
                }
                drop(placements);
                env.sleep(FOLLOW_AGAIN).await;
            }
        }));
    }

    /// Goes by what is in force for a tenant, once nobody goes by what was before.
    pub async fn enter(&self, tenant: &str) -> Result<Entered, SqlError> {
        let deadline = self.env.elapsed() + ENTER_LIMIT;
        loop {
            let found = self.of(tenant).map_err(|error| error.for_people())?;
            if self.is_closed(tenant) || !found.before.iter().all(|users| users.are_gone()) {
                self.wait_for_others(deadline).await?;
                continue;
            }
            let heir = (found.etag == ETag::NONE).then(|| self.heirs.enter(tenant));
            found.users.0.fetch_add(1, Ordering::SeqCst);
            let entered = Entered { found, _heir: heir };
            // Else it came too late to be seen by those who enter the next one, or by who has closed it.
            let is_still = self.known.load().of(tenant).is_ok_and(|now| Arc::ptr_eq(&now, &entered.found));
            if is_still && !self.is_closed(tenant) {
                return Ok(entered);
            }
        }
    }

    async fn wait_for_others(&self, deadline: Duration) -> Result<(), SqlError> {
        if self.env.elapsed() >= deadline {
            let message = "operations under the last placement do not end";
            return Err(SqlError::new("57P03", message).with_hint("retry"));
        }
        self.env.sleep(ENTER_POLL).await;
        Ok(())
    }

    /// Waits until nobody of a tenant goes by what it inherits, and lets nobody of it enter until what is returned is
    /// dropped: who looks meanwhile whether anything was written by it sees all that ever will be.
    pub(super) async fn close(&self, tenant: &str) -> Result<Closed<'_>, SqlError> {
        let closed = Closed::new(self, tenant);
        let deadline = self.env.elapsed() + ENTER_LIMIT;
        while self.heirs.has(tenant) {
            self.wait_for_others(deadline).await?;
        }
        Ok(closed)
    }

    fn is_closed(&self, tenant: &str) -> bool {
        if self.closings.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever changes the record of `default` changes what all have who have none.
        closed.contains_key(tenant) || (closed.contains_key(DEFAULT_TENANT) && !self.known.load().has(tenant))
    }

    /// Reads every record, from wherever the catalog is.
    async fn read_all(&self) -> Result<(), CatalogError> {
        let (mut records, mut after, mut first): (Vec<Record>, Option<Key>, Option<Revision>) = Default::default();
        loop {
            let page = self.catalog.list(record::PREFIX, after.as_ref(), PAGE).await?;
            first.get_or_insert(page.revision);
            after = page.records.last().map(|record| record.key.clone());
            records.extend(page.records);
            if !page.more || after.is_none() {
                break;
            }
        }
        if records.len() > MAX_TENANTS {
            // Somebody else has written them. Who is left out would be given another placement than its own.
            tracing::warn!(
                limit = MAX_TENANTS,
                actual = records.len(),
                "more tenants have a placement than there should be"
            );
        }
        let mut changes: BTreeMap<String, Option<Record>> =
            self.known.load().tenants.keys().map(|name| (name.clone(), None)).collect();
        for record in records {
            if let Some(tenant) = tenant_of(&record.key) {
                changes.insert(tenant.to_owned(), Some(record));
            }
        }
        self.publish(changes, Publisher::Follower(first.unwrap_or(Revision::ZERO)));
        self.is_following.store(true, Ordering::SeqCst);
        Ok(())
    }

    /// Takes over a record that this process has written.
    pub(super) fn publish_own(&self, tenant: &str, record: Record) {
        let revision = record.revision;
        self.publish(BTreeMap::from([(tenant.to_owned(), Some(record))]), Publisher::Author(revision));
    }

    fn publish(&self, changes: BTreeMap<String, Option<Record>>, publisher: Publisher) {
        let _alone = self.publishing.lock().unwrap_or_else(PoisonError::into_inner);
        let old = self.known.load_full();
        let mut followed = old.followed;
        match publisher {
            // The follower has seen this commit, and perhaps what came after it.
            Publisher::Author(revision) if revision <= old.followed => return,
            Publisher::Author(_) => {}
            Publisher::Follower(revision) => followed = followed.max(revision),
        }
        let (mut tenants, mut touched, mut homeless) = (old.tenants.clone(), false, Vec::new());
        for (tenant, record) in changes {
            let known = tenants.get(&tenant);
            let is_news = match &record {
                Some(record) => known.is_none_or(|known| known.revision < record.revision),
                None => known.is_some_and(|known| known.revision <= followed),
            };
            if !is_news {
                continue;
            }
            touched = true;
            match record {
                Some(record) => {
                    let entry = self.entry(&tenant, &record, known, &old.shared);
                    tenants.insert(tenant, entry);
                }
                None => homeless.extend(tenants.remove(&tenant).map(|entry| users_of(&entry.outcome))),
            }
        }
        if !touched && followed == old.followed {
            return;
        }
        let shared = match touched {
            true => shared(&tenants, &old.shared, homeless.into_iter().flatten()),
            false => old.shared.clone(),
        };
        self.known.store(Arc::new(Known { tenants, shared, followed }));
    }

    fn entry(&self, tenant: &str, record: &Record, known: Option<&Entry>, shared: &Outcome) -> Entry {
        let (revision, etag) = (record.revision, ETag::of(record.revision));
        let before = users_of(known.map_or(shared, |known| &known.outcome));
        let errors = match read_config(record) {
            Ok(placement) => {
                let placement = Arc::new(placement);
                let outcome = Ok(in_force(placement.clone(), Source::Configured, etag, before));
                return Entry { revision, outcome, last_valid: Some(placement) };
            }
            Err(errors) => errors,
        };
        self.count_invalid(tenant, &errors);
        let last_valid = known.and_then(|known| known.last_valid.clone());
        let outcome = match self.environment {
            Environment::Production => {
                tracing::error!(tenant, %errors, "CRITICAL: the placement configuration is invalid, its tenant is refused");
                Err(Arc::new(PlacementError { tenant: tenant.to_owned(), etag, errors: Arc::new(errors) }))
            }
            Environment::Development => {
                tracing::warn!(tenant, %errors, "the placement configuration is invalid, the last valid one stays in force");
                let (placement, source) = match &last_valid {
                    Some(placement) => (placement.clone(), Source::LastValid),
                    None => (built_in(), Source::Defaults(Why::Invalid)),
                };
                Ok(in_force(placement, source, etag, before))
            }
        };
        Entry { revision, outcome, last_valid }
    }

    /// The in-memory form of what a commit of the catalog changed.
    fn take_over(&self, commit: Commit) {
        let named = |event: Event| match event {
            Event::Put(record) => tenant_of(&record.key).map(str::to_owned).map(|name| (name, Some(record))),
            Event::Deleted(key) => tenant_of(&key).map(|name| (name.to_owned(), None)),
        };
        let changes: BTreeMap<String, Option<Record>> = commit.events.into_iter().filter_map(named).collect();
        for tenant in changes.keys() {
            let is_shared = is_default(tenant);
            tracing::info!(tenant, is_shared, revision = %commit.revision, "placement read from the catalog");
        }
        self.publish(changes, Publisher::Follower(commit.revision));
    }
}

/// What tenants without a record have. It is made anew with every change: those who are inside the old one are counted
/// there, and one who has got a record of its own waits for them; were all counted in one place, they would never be
/// gone. `homeless` are inside records that are gone.
fn shared(tenants: &HashMap<String, Entry>, old: &Outcome, homeless: impl Iterator<Item = Arc<Users>>) -> Outcome {
    let (placement, source) = match tenants.get(DEFAULT_TENANT).map(|entry| &entry.outcome) {
        Some(Err(error)) => return Err(error.clone()),
        Some(Ok(default)) if default.source == Source::Configured => (default.placement.clone(), Source::Inherited),
        Some(Ok(default)) => (default.placement.clone(), default.source),
        None => (built_in(), Source::Defaults(Why::Missing)),
    };
    let (peers, mut before) = match old {
        // Nobody need wait for those who go by the same placement.
        Ok(old) if old.placement == placement => {
            (still_there(std::iter::once(&old.users).chain(&old.peers)), still_there(old.before.iter()))
        }
        other => (Vec::new(), users_of(other)),
    };
    before.extend(homeless);
    Ok(Arc::new(InForce { placement, source, etag: ETag::NONE, users: Arc::default(), peers, before }))
}

/// Who publishes, and at which commit.
#[derive(Clone, Copy)]
enum Publisher {
    /// This process has made the commit.
    Author(Revision),
    /// Every commit up to this one has been read.
    Follower(Revision),
}

/// Ends with the placements or with the catalog.
async fn follow_from(weak: &Weak<Placements>, catalog: &Weak<dyn Catalog>, from: Revision) -> Result<(), CatalogError> {
    let Some(open) = catalog.upgrade() else { return Ok(()) };
    let mut watch = open.watch(record::PREFIX, from).await?;
    drop(open);
    // It may have failed before.
    if let Some(placements) = weak.upgrade() {
        placements.is_following.store(true, Ordering::SeqCst);
    }
    loop {
        let commit = watch.next().await?;
        let Some(placements) = weak.upgrade() else { return Ok(()) };
        placements.take_over(commit);
    }
}
