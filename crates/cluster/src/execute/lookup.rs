//! Inputs of a stage that are read by the values of one before.
//!
//!     read the first ─► its values ─► ask the index for them ─► ask the shards that it names, and those entered before
//!
//! The index is asked when the statement has snapshots already, and says what is so now. So shards that the transaction
//! is on are asked whether or not they are named: what they show may have gone since. Of a shard that is not asked it must
//! be certain that it had no such row at the moment of the snapshots: nothing that was read has changed since, and nothing
//! was committed there together with a shard that was read. Whatever comes later, the look itself tells (I-24).

use super::led::Led;
use super::run::{Row, Runner};
use super::target::{Nobody, Places};
use super::transaction::Txn;
use isles_engine::fence::Access;
use isles_kernel::error::SqlError;
use isles_kernel::names::ShardId;
use isles_kernel::routing::RoutingPolicy;
use isles_kernel::value::{Value, key_bytes};
use isles_sql::plan::{IndexTarget, Lookup, MAX_LOOKUP_VALUES, ShardsNode, Target};
use std::collections::BTreeSet;

/// With more values for each shard an index is not asked: of fifty shards it would leave out one.
const VALUES_PER_SHARD: usize = 4;

impl Runner<'_> {
    /// Rows that have one of the values that a column of `rows` has.
    pub(super) async fn look_up(
        &self,
        lookup: &Lookup,
        rows: &[Row],
        access: Access,
        txn: &mut Txn,
        policy: &RoutingPolicy,
    ) -> Result<Vec<Row>, SqlError> {
        let Some(values) = distinct(rows.iter().map(|row| &row[lookup.column])) else {
            return self.node(&lookup.all, access, txn, policy).await;
        };
        // Nothing equals nothing.
        if values.is_empty() {
            return Ok(Vec::new());
        }
        let mut params = self.params.to_vec();
        params.resize(params.len().max(lookup.param + 1), Value::Null);
        let count = values.len();
        params[lookup.param] = Value::Array(values);
        let runner = Runner { params: &params, led: Led::default(), ..*self };
        let places = match &lookup.some.target {
            Target::Index(target) => {
                let all = runner.resolver(policy).resolve(&Target::All, &lookup.some.touches, Nobody::IsFine)?;
                match self.led.gives_up() || count > VALUES_PER_SHARD * all.len() {
                    true => all,
                    false => runner.places_by_index(&lookup.some, target, all, txn, policy).await?,
                }
            }
            target => runner.choose(target, &lookup.some.touches, Nobody::IsFine, txn.seat(), policy).await?,
        };
        runner.shards_at(&lookup.some, places, access, txn, policy).await
    }

    /// Those of `all` that an index names, and those that must be asked besides.
    async fn places_by_index(
        &self,
        node: &ShardsNode,
        target: &IndexTarget,
        all: Places,
        txn: &mut Txn,
        policy: &RoutingPolicy,
    ) -> Result<Places, SqlError> {
        let seat = txn.seat();
        if !seat.keeps_its_moment {
            return self.choose(&node.target, &node.touches, Nobody::IsFine, seat, policy).await;
        }
        let entered: Vec<ShardId> = txn.shards().cloned().collect();
        if !txn.is_of_one_moment() || all.keys().all(|shard| entered.contains(shard)) {
            return Ok(all);
        }
        let Some(found) = self.look(target, policy).await? else { return Ok(all) };
        let places = self.resolver(policy).led(&target.group, &found, &entered, &node.touches, Nobody::IsFine)?;
        let passed_by = all.keys().filter(|shard| !places.contains_key(*shard)).cloned().collect();
        txn.pass_by(passed_by, self.bounds).await?;
        Ok(places)
    }
}

/// The values that are no nulls, each once; None if they are too many.
fn distinct<'a>(values: impl Iterator<Item = &'a Value>) -> Option<Vec<Value>> {
    let (mut seen, mut found) = (BTreeSet::new(), Vec::new());
    for value in values.filter(|value| !value.is_null()) {
        if seen.insert(key_bytes(std::slice::from_ref(value))) {
            found.push(value.clone());
        }
        if found.len() > MAX_LOOKUP_VALUES {
            return None;
        }
    }
    Some(found)
}
