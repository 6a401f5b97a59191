//! Statements that global indexes lead to their shards.
//!
//! What an index says is of the moment at which it is asked. So all indexes that a statement wants are asked before its
//! first snapshot is taken, and what they said must still hold then (I-24).
//!
//! A transaction that has snapshots already asks an index as well, for the shards that it has not entered:
//!   * Those that it is on are asked whether or not they are named: rows that have gone since are in their snapshots, and
//!     not in the index.
//!   * Of one that is neither entered nor named it must be certain that it had no such row at the moment of the
//!     snapshots. It has none now, and nothing was committed there together with a shard that was read. One that only
//!     reads makes sure that nothing which it has read has changed since, for then it may as well have looked at that
//!     moment; one that writes makes sure at its commit that no such key has come.
//!   * At `read committed` on SQLite all shards are asked: a statement that is overtaken in the middle of such a
//!     transaction could not begin again.
//!
//! At `read committed` on PostgreSQL a statement takes its snapshot when it runs, and there is nothing to compare before. So
//! it is compared afterwards: if keys were added since the look, it looks again and runs on the shards that it has not
//! been on, until nothing was added between a look and the end of what was run by it. Each shard then shows a moment
//! within the statement, as it would if all had been asked, and those that were not asked had no such row at its end.
//!
//! Where rows of the statement's own transaction are, no index knows before it commits; so the shards that it writes to
//! are asked as well.

use super::evaluate;
use super::run::Runner;
use super::target::{Nobody, Places, Resolver};
use super::transaction::{Seat, Txn};
use crate::database::Database;
use crate::indexes::find::{Found, Look, Said, Wanted};
use crate::indexes::watch::Watched;
use isles_engine::entries::Still;
use isles_engine::fence::{Access, Claimed};
use isles_engine::shard::Outcome;
use isles_kernel::error::SqlError;
use isles_kernel::index::key::{NoOrder, Part};
use isles_kernel::index::{IndexKey, KeyRange};
use isles_kernel::names::{BucketId, ShardId};
use isles_kernel::routing::RoutingPolicy;
use isles_kernel::value::Value;
use isles_sql::plan::{Fragment, IndexTarget, Node, Plan, Probe, ProbePart, ProbeRange, StageRows, Target, Touch};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Keys of one statement. Beyond this nearly every shard has one of them.
const MAX_KEYS: usize = 4_096;
/// Buckets or shards that are named to people.
const MAX_LISTED: usize = 16;
/// What EXPLAIN says of an index that cannot be read.
const UNREADABLE: &str = "cannot be asked now, so all shards are";

/// What indexes have said to one statement.
#[derive(Default)]
pub(crate) struct Led {
    /// By the target's place in the plan; none for one that could not be asked.
    found: Mutex<HashMap<usize, Option<Arc<Found>>>>,
    /// All shards are asked from here on: keys were added all the time.
    gives_up: AtomicBool,
    /// Targets that have been counted: one that looks again is one statement's all the same.
    counted: Mutex<HashSet<usize>>,
}

impl Led {
    /// Whatever was said is of another moment.
    pub(crate) fn forget(&self) {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    pub(crate) fn give_up(&self) {
        self.gives_up.store(true, Ordering::Relaxed);
        self.forget();
    }

    pub(super) fn gives_up(&self) -> bool {
        self.gives_up.load(Ordering::Relaxed)
    }

    /// Whether a target is counted for the first time.
    fn is_first(&self, target: &IndexTarget) -> bool {
        self.counted.lock().unwrap_or_else(PoisonError::into_inner).insert(place_of(target))
    }

    fn get(&self, target: &IndexTarget) -> Option<Option<Arc<Found>>> {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).get(&place_of(target)).cloned()
    }

    fn put(&self, target: &IndexTarget, found: Option<Arc<Found>>) {
        self.found.lock().unwrap_or_else(PoisonError::into_inner).insert(place_of(target), found);
    }
}

/// A fragment that an index may lead.
pub(crate) struct LedPart<'a> {
    pub(crate) fragment: &'a Fragment,
    pub(crate) target: &'a Target,
    pub(crate) touches: &'a [Touch],
    pub(crate) access: Access,
}

fn place_of(target: &IndexTarget) -> usize {
    std::ptr::from_ref(target) as usize
}

impl Runner<'_> {
    /// Where a fragment runs. Without a transaction, or before its first snapshot, indexes are asked.
    pub(crate) async fn choose(
        &self,
        target: &Target,
        touches: &[Touch],
        nobody: Nobody,
        seat: Seat,
        policy: &RoutingPolicy,
    ) -> Result<Places, SqlError> {
        let resolver = Resolver { prefer: seat.on, ..self.resolver(policy) };
        let Target::Index(target) = target else { return resolver.resolve(target, touches, nobody) };
        let found = match self.led.get(target) {
            Some(found) => found,
            None if seat.keeps_its_moment => {
                self.note(target, None);
                None
            }
            None => {
                let found = self.look(target, touches, policy).await?;
                // Where this comes to several shards, a transaction goes on with it.
                self.led.put(target, found.clone());
                found
            }
        };
        match found {
            None => resolver.resolve(&Target::All, touches, nobody),
            Some(found) => resolver.led(&target.group, &found, &seat.writes_to, touches, nobody),
        }
    }

    /// Where a fragment of a transaction runs, wherever that is already.
    pub(super) async fn choose_within(
        &self,
        target: &Target,
        touches: &[Touch],
        nobody: Nobody,
        txn: &mut Txn,
        policy: &RoutingPolicy,
    ) -> Result<Places, SqlError> {
        let seat = txn.seat();
        let index = match target {
            Target::Index(index) if txn.may_look_later() && self.led.get(index).is_none() => index,
            _ => return self.choose(target, touches, nobody, seat, policy).await,
        };
        let all = self.resolver(policy).resolve(&Target::All, touches, nobody)?;
        let entered: Vec<ShardId> = txn.shards().cloned().collect();
        if all.keys().all(|shard| entered.contains(shard)) {
            return Ok(all);
        }
        let Some(found) = self.look(index, touches, policy).await? else { return Ok(all) };
        let places = self.resolver(policy).led(&index.group, &found, &entered, touches, nobody)?;
        let passed_by = all.keys().filter(|shard| !places.contains_key(*shard)).cloned().collect();
        txn.pass_by(passed_by, self.bounds).await?;
        Ok(places)
    }

    /// Runs a part on the shards that keys have come to since the look that led it, if it has been overtaken. `asked` are
    /// those that it has run on.
    pub(crate) async fn catch_up(
        &self,
        part: &LedPart<'_>,
        mut still: Option<Still>,
        asked: &Places,
        txn: &mut Txn,
        policy: &RoutingPolicy,
    ) -> Result<Vec<Outcome>, SqlError> {
        let mut outcomes = Vec::new();
        let mut asked: BTreeSet<ShardId> = asked.keys().cloned().collect();
        for look in 1.. {
            if still.as_ref().is_none_or(Still::holds) {
                break;
            }
            self.bounds.check(&*self.database.env)?;
            self.forget_led(look);
            let more = self.choose(part.target, part.touches, Nobody::IsFine, txn.seat(), policy).await?;
            still = more.still.clone();
            let is_new = |(shard, _): &(&ShardId, &Vec<Claimed>)| !asked.contains(*shard);
            let more: Places =
                more.iter().filter(is_new).map(|(shard, units)| (shard.clone(), units.clone())).collect();
            asked.extend(more.keys().cloned());
            outcomes.extend(self.on_shards(part.fragment, &more, part.access, txn, policy).await?);
        }
        Ok(outcomes)
    }

    /// Asks all indexes that a plan wants, before its first snapshot.
    pub(crate) async fn ask_indexes(&self, plan: &Plan, policy: &RoutingPolicy) -> Result<(), SqlError> {
        for (target, touches) in targets(plan) {
            if self.led.get(target).is_none() {
                let found = self.look(target, touches, policy).await?;
                self.led.put(target, found);
            }
        }
        Ok(())
    }

    /// What an index says; None if all shards are to be asked.
    async fn look(
        &self,
        target: &IndexTarget,
        touches: &[Touch],
        policy: &RoutingPolicy,
    ) -> Result<Option<Arc<Found>>, SqlError> {
        let Some(wanted) = self.wanted(target)? else { return Ok(None) };
        let said = match self.led.gives_up() {
            true => Said::Nothing,
            false => self.ask_for(target, touches, &wanted, policy).await?,
        };
        self.note(target, matches!(said, Said::Found(_) | Said::Enough).then_some(&wanted));
        Ok(match said {
            Said::Found(found) => Some(Arc::new(found)),
            Said::Enough | Said::TooMany | Said::Nothing => None,
        })
    }

    /// Counts a statement, which is led or asks all shards.
    fn note(&self, target: &IndexTarget, led_by: Option<&[Wanted]>) {
        match led_by {
            None => self.database.indexes.note_fallback(),
            Some(wanted) if self.led.is_first(target) => self.database.indexes.note_lookup(wanted),
            Some(_) => {}
        }
    }

    async fn ask_for(
        &self,
        target: &IndexTarget,
        touches: &[Touch],
        wanted: &[Wanted],
        policy: &RoutingPolicy,
    ) -> Result<Said, SqlError> {
        let resolver = self.resolver(policy);
        let all = resolver.owners(touches).len();
        let is_enough =
            |found: &BTreeSet<BucketId>| !found.is_empty() && resolver.shards_of(&target.group, found).len() >= all;
        Look { database: self.database, policy, bounds: self.bounds, is_enough: &is_enough }.find(wanted).await
    }

    /// What indexes say now to each probe of a plan, in words, by where the probe is in memory.
    pub(crate) async fn probed(&self, plan: &Plan) -> HashMap<usize, String> {
        let policy = self.schema.routing(&self.database.routing);
        let mut said = HashMap::new();
        for (target, touches) in targets(plan) {
            for probe in &target.any {
                let words = self.probe_in_words(target, touches, probe, &policy).await;
                said.insert(std::ptr::from_ref(probe) as usize, words);
            }
        }
        for probe in looked_up(plan) {
            said.insert(std::ptr::from_ref(probe) as usize, self.lookup_in_words(probe));
        }
        said
    }

    async fn probe_in_words(
        &self,
        target: &IndexTarget,
        touches: &[Touch],
        probe: &Probe,
        policy: &RoutingPolicy,
    ) -> String {
        let Some(index) = watched(self.database, probe) else { return UNREADABLE.into() };
        let Ok(Some(ranges)) = self.ranges(probe, &index) else {
            return "has no such key, so all shards are asked".into();
        };
        match self.ask_for(target, touches, &[Wanted { index, ranges }], policy).await {
            Ok(Said::Found(found)) => {
                let resolver = self.resolver(policy);
                let shards = resolver.shards_of(&target.group, &found.buckets);
                let (buckets, shards) = (listed(found.buckets.iter()), listed(shards.into_iter()));
                format!("buckets {buckets}, on shards {shards}, not yet applied {}", found.unapplied)
            }
            Ok(Said::Enough) => "all shards have such rows".into(),
            Ok(Said::TooMany) => {
                let most = self.database.indexes.watch.limits().entries;
                format!("more than {most} entries of a shard, so all shards are asked")
            }
            Ok(Said::Nothing) | Err(_) => UNREADABLE.into(),
        }
    }

    /// Of an index that is asked for values which are not known yet.
    fn lookup_in_words(&self, probe: &Probe) -> String {
        match watched(self.database, probe).filter(|index| index.can_be_read()) {
            Some(index) => format!("asked when the values are known, not yet applied {}", index.waiting()),
            None => UNREADABLE.into(),
        }
    }

    /// The keys that a target asks for; None if it cannot be said, or an index is not there.
    fn wanted(&self, target: &IndexTarget) -> Result<Option<Vec<Wanted>>, SqlError> {
        let mut wanted = Vec::new();
        let mut keys = 0;
        for probe in &target.any {
            let Some(index) = watched(self.database, probe) else { return Ok(None) };
            let Some(ranges) = self.ranges(probe, &index)? else { return Ok(None) };
            keys += ranges.len();
            if keys > MAX_KEYS {
                return Ok(None);
            }
            wanted.push(Wanted { index, ranges });
        }
        Ok(Some(wanted))
    }

    /// The keys of a probe. Empty: nothing matches.
    fn ranges(&self, probe: &Probe, index: &Watched) -> Result<Option<Vec<KeyRange>>, SqlError> {
        let mut rows: Vec<Vec<Value>> = vec![Vec::new()];
        for part in &probe.equal {
            let values = self.part_values(part)?;
            if rows.len().saturating_mul(values.len()) > MAX_KEYS {
                return Ok(None);
            }
            let with = |row: &Vec<Value>, value: &Value| row.iter().cloned().chain([value.clone()]).collect();
            rows = rows.iter().flat_map(|row| values.iter().map(move |value| with(row, value))).collect();
        }
        let range = match &probe.range {
            None => None,
            Some(range) => match self.bounds_of(range)? {
                None => return Ok(Some(Vec::new())),
                bounds => bounds,
            },
        };
        let ranges: Result<Vec<KeyRange>, NoOrder> =
            rows.iter().map(|row| key_range(index, row, range.as_ref())).collect();
        // A value of a type that no key can have: the statement itself says what that means.
        Ok(ranges.ok())
    }

    fn part_values(&self, part: &ProbePart) -> Result<Vec<Value>, SqlError> {
        let known = |values: Vec<Value>| values.into_iter().filter(|value| !value.is_null()).collect();
        Ok(match part {
            ProbePart::Null => vec![Value::Null],
            ProbePart::Values(exprs) => known(evaluate::values(exprs, self.inputs())?),
            ProbePart::Elements(array) => match evaluate::value(array, self.inputs())? {
                Value::Array(members) => known(members),
                _ => Vec::new(),
            },
        })
    }

    /// Both bounds; None if one of them is null, for then nothing matches.
    fn bounds_of(&self, range: &ProbeRange) -> Result<Option<[Bound<Value>; 2]>, SqlError> {
        let bound = |bound: &Option<(isles_sql::tree::Expr, bool)>| -> Result<Option<Bound<Value>>, SqlError> {
            let Some((expr, inclusive)) = bound else { return Ok(Some(Bound::Unbounded)) };
            Ok(match (evaluate::value(expr, self.inputs())?, inclusive) {
                (Value::Null, _) => None,
                (value, true) => Some(Bound::Included(value)),
                (value, false) => Some(Bound::Excluded(value)),
            })
        };
        Ok(match (bound(&range.low)?, bound(&range.high)?) {
            (Some(low), Some(high)) => Some([low, high]),
            _ => None,
        })
    }
}

fn watched(database: &Database, probe: &Probe) -> Option<Arc<Watched>> {
    database.indexes.watch.get(&probe.entries)
}

fn key_range(index: &Watched, row: &[Value], range: Option<&[Bound<Value>; 2]>) -> Result<KeyRange, NoOrder> {
    let part = |(at, value)| Part { value, padded: index.definition.is_padded(at) };
    let key = IndexKey::of(row.iter().enumerate().map(part))?;
    match range {
        None => Ok(key.within()),
        Some([low, high]) => {
            let at = row.len();
            let bound = |bound| as_part(bound, index.definition.is_padded(at));
            key.between(bound(low), bound(high))
        }
    }
}

fn as_part(bound: &Bound<Value>, padded: bool) -> Bound<Part<'_>> {
    match bound {
        Bound::Included(value) => Bound::Included(Part { value, padded }),
        Bound::Excluded(value) => Bound::Excluded(Part { value, padded }),
        Bound::Unbounded => Bound::Unbounded,
    }
}

/// Some of the buckets or shards that an index has named, and how many they are.
fn listed<T: std::fmt::Display>(all: impl ExactSizeIterator<Item = T>) -> String {
    let count = all.len();
    let mut some: Vec<String> = all.take(MAX_LISTED).map(|one| one.to_string()).collect();
    if count > some.len() {
        some.push(format!("{} more", count - some.len()));
    }
    match count {
        0 => "0".into(),
        _ => format!("{count} ({})", some.join(", ")),
    }
}

/// All targets of a plan that are found by indexes, and what is touched there, but for those that wait for values of
/// others.
fn targets(plan: &Plan) -> Vec<(&IndexTarget, &[Touch])> {
    let mut found = Vec::new();
    match plan {
        Plan::Query(query) => collect(&query.root, &mut found),
        Plan::Modify(modify) => found.extend(of(&modify.target, &modify.touches)),
        Plan::Rewrite(rewrite) => collect(&rewrite.rows.root, &mut found),
        Plan::Insert(insert) => {
            if let isles_sql::plan::InsertRows::Query(query) = &insert.rows {
                collect(&query.root, &mut found);
            }
        }
    }
    found
}

fn of<'a>(target: &'a Target, touches: &'a [Touch]) -> Option<(&'a IndexTarget, &'a [Touch])> {
    match target {
        Target::Index(target) => Some((target, touches)),
        _ => None,
    }
}

fn collect<'a>(node: &'a Node, found: &mut Vec<(&'a IndexTarget, &'a [Touch])>) {
    match node {
        Node::Shards(node) => found.extend(of(&node.target, &node.touches)),
        Node::Stage(stage) => {
            stage.inputs.iter().filter_map(|input| input.rows.node()).for_each(|node| collect(node, found));
        }
    }
}

/// Probes for values of something else.
fn looked_up(plan: &Plan) -> Vec<&Probe> {
    let mut found = Vec::new();
    match plan {
        Plan::Query(query) => collect_lookups(&query.root, &mut found),
        Plan::Modify(_) => {}
        Plan::Rewrite(rewrite) => collect_lookups(&rewrite.rows.root, &mut found),
        Plan::Insert(insert) => {
            if let isles_sql::plan::InsertRows::Query(query) = &insert.rows {
                collect_lookups(&query.root, &mut found);
            }
        }
    }
    found
}

fn collect_lookups<'a>(node: &'a Node, found: &mut Vec<&'a Probe>) {
    let Node::Stage(stage) = node else { return };
    for input in &stage.inputs {
        match &input.rows {
            StageRows::Lookup(lookup) => {
                found.extend(
                    of(&lookup.some.target, &lookup.some.touches).into_iter().flat_map(|(target, _)| &target.any),
                );
            }
            rows => rows.node().into_iter().for_each(|node| collect_lookups(node, found)),
        }
    }
}
