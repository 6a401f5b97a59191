//! Inputs of a stage that are read by the values of one before.
//!
//!     read the first ─► its values ─► ask the index for them ─► ask the shards that it names, and those entered before
//!
//! The index is asked when the statement has snapshots already, and says what is so now ([`super::led`]).

use super::led::Led;
use super::run::{Row, Runner};
use super::target::Nobody;
use super::transaction::Txn;
use isles_engine::fence::Access;
use isles_kernel::error::SqlError;
use isles_kernel::routing::RoutingPolicy;
use isles_kernel::value::{Value, key_bytes};
use isles_sql::plan::{Lookup, MAX_LOOKUP_VALUES, Target};
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
        let all = runner.resolver(policy).resolve(&Target::All, &lookup.some.touches, Nobody::IsFine)?;
        let is_by_index = matches!(lookup.some.target, Target::Index(_));
        let places = match is_by_index && (self.led.gives_up() || count > VALUES_PER_SHARD * all.len()) {
            true => all,
            false => {
                let some = &lookup.some;
                runner.choose_within(&some.target, &some.touches, Nobody::IsFine, txn, policy).await?
            }
        };
        runner.shards_at(&lookup.some, places, access, txn, policy).await
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
