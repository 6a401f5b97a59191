//! Plans in the catalog.
//!
//! ```text
//! plan/{id}      a plan, as operators read it
//! moves/active   what all plans move that are not done
//! ```
//!
//! Two plans never move the same thing (I-17): whoever makes one changes the record of all that are active, so of two
//! who plan at once the second reads what the first has planned. Plans that are done stay, for whoever wants to know.

use crate::catalog::{Catalog, CatalogError, Condition, Key, LeaseToken, Record, Transaction};
use crate::commit::decision::catalog_error;
use isles_kernel::error::SqlError;
use isles_kernel::moves::{MoveError, Plan, Units};
use isles_kernel::names::{PlanId, ShardId};
use isles_kernel::routing::RoutingPolicy;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Plans that are active at once: each has a driver, and all are in one record.
pub(crate) const MAX_ACTIVE: usize = 100;
/// Plans that are kept when they are done.
const MAX_DONE: usize = 1_000;
/// How often a change is tried that others overtake.
const ATTEMPTS: usize = 100;
const PREFIX: &str = "plan/";
const PAGE: usize = 1_000;

/// A plan, and the record it was read from.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    pub(crate) plan: Plan,
    pub(crate) record: Record,
}

/// What an active plan is about.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct About {
    pub(crate) source: ShardId,
    pub(crate) target: ShardId,
    pub(crate) units: Units,
}

type Active = BTreeMap<PlanId, About>;

/// Why a change was not made.
pub(crate) enum Unsaved {
    /// The plan has changed, or somebody else drives it.
    Conflict,
    /// It may have been made.
    Unknown(SqlError),
    Error(SqlError),
}

impl From<CatalogError> for Unsaved {
    fn from(error: CatalogError) -> Unsaved {
        match error {
            CatalogError::Conflict { .. } => Unsaved::Conflict,
            CatalogError::MayHaveHappened(_) => Unsaved::Unknown(catalog_error(error)),
            error => Unsaved::Error(catalog_error(error)),
        }
    }
}

fn active_key() -> Key {
    Key::new("moves/active").expect("a constant without control characters")
}

pub(crate) fn plan_key(id: &PlanId) -> Key {
    Key::new(format!("{PREFIX}{id}")).expect("a plan's name is short and plain")
}

/// The lease of whoever drives a plan.
pub(crate) fn lease_key(id: &PlanId) -> Key {
    Key::new(format!("move/{id}")).expect("a plan's name is short and plain")
}

pub(crate) async fn load(catalog: &dyn Catalog, id: &PlanId) -> Result<Option<Stored>, SqlError> {
    let Some(record) = catalog.get(&plan_key(id)).await.map_err(catalog_error)?.value else { return Ok(None) };
    Ok(Some(Stored { plan: record.json().map_err(catalog_error)?, record }))
}

/// All plans, the newest first.
pub(crate) async fn list(catalog: &dyn Catalog) -> Result<Vec<Plan>, SqlError> {
    let (mut plans, mut after): (Vec<Plan>, Option<Key>) = (Vec::new(), None);
    loop {
        let page = catalog.list(PREFIX, after.as_ref(), PAGE).await.map_err(catalog_error)?;
        for record in &page.records {
            plans.push(record.json().map_err(catalog_error)?);
        }
        after = page.records.last().map(|record| record.key.clone());
        if !page.more || after.is_none() {
            break;
        }
    }
    plans.sort_by(|a, b| (b.created_at, &b.id).cmp(&(a.created_at, &a.id)));
    Ok(plans)
}

async fn read_active(catalog: &dyn Catalog) -> Result<(Option<Record>, Active), SqlError> {
    let record = catalog.get(&active_key()).await.map_err(catalog_error)?.value;
    let active = record.as_ref().map_or_else(|| Ok(Active::new()), Record::json).map_err(catalog_error)?;
    Ok((record, active))
}

/// What all plans that are not done are about.
pub(crate) async fn active(catalog: &dyn Catalog) -> Result<Active, SqlError> {
    Ok(read_active(catalog).await?.1)
}

/// The same, and the condition that nothing of it has changed.
pub(crate) async fn active_as_read(catalog: &dyn Catalog) -> Result<(Active, Condition), SqlError> {
    let (record, active) = read_active(catalog).await?;
    Ok((active, record.as_ref().map_or_else(|| Condition::Absent(active_key()), Record::unchanged)))
}

/// Refuses what the plans that are not done leave no room for.
pub(crate) fn check_new(units: &Units, active: &Active, policy: &RoutingPolicy) -> Result<(), SqlError> {
    check_overlap(units, active, policy)?;
    match active.len() < MAX_ACTIVE {
        true => Ok(()),
        false => Err(SqlError::new("54000", format!("at most {MAX_ACTIVE} plans are active at once"))
            .with_hint("complete plans, or roll them back: SHOW MOVES lists them")),
    }
}

/// Refuses what another plan moves already.
fn check_overlap(units: &Units, active: &Active, policy: &RoutingPolicy) -> Result<(), SqlError> {
    match active.iter().find(|(_, other)| other.units.overlaps(units, policy)) {
        None => Ok(()),
        Some((id, _)) => {
            let what = if matches!(units, Units::Tenants { .. }) { "tenants" } else { "buckets" };
            let message = format!("Active split {id} already in progress for one or more {what}");
            let hint = "wait until it is done: complete it or roll it back";
            Err(MoveError::invalid(message).with_hint(hint).for_people())
        }
    }
}

/// Records a new plan, unless it would move what another one moves.
pub(crate) async fn create(catalog: &dyn Catalog, plan: &Plan, policy: &RoutingPolicy) -> Result<(), SqlError> {
    for _ in 0..ATTEMPTS {
        let (record, mut active) = read_active(catalog).await?;
        check_new(&plan.units, &active, policy)?;
        let about =
            About { source: plan.source_shard.clone(), target: plan.target_shard.clone(), units: plan.units.clone() };
        active.insert(plan.id.clone(), about);
        let change = Transaction::new().when_as_read(&active_key(), record.as_ref());
        let change = change.when(Condition::Absent(plan_key(&plan.id)));
        let change =
            change.put_json(active_key(), &active).and_then(|change| change.put_json(plan_key(&plan.id), plan));
        match catalog.commit(change.map_err(catalog_error)?).await {
            Ok(_) => return forget_oldest(catalog).await,
            Err(CatalogError::Conflict { .. }) => {}
            Err(error) => return Err(catalog_error(error)),
        }
    }
    Err(SqlError::new("40001", "plans keep changing").with_hint("try again"))
}

/// Plans that were done long ago go.
async fn forget_oldest(catalog: &dyn Catalog) -> Result<(), SqlError> {
    let done: Vec<Plan> = list(catalog).await?.into_iter().filter(|plan| !plan.is_active()).collect();
    for plan in done.iter().skip(MAX_DONE) {
        let gone = Transaction::new().delete(plan_key(&plan.id));
        catalog.commit(gone).await.map_err(catalog_error)?;
    }
    Ok(())
}

/// Replaces a plan by what has become of it, with whatever else belongs to it, if nobody has changed it meanwhile. A
/// driver names its lease, too.
pub(crate) async fn save(
    catalog: &dyn Catalog,
    stored: &Stored,
    plan: Plan,
    lease: Option<LeaseToken>,
    with: Transaction,
) -> Result<Stored, Unsaved> {
    let key = plan_key(&plan.id);
    let mut change = with.when(stored.record.unchanged());
    if let Some(token) = lease {
        change = change.when(Condition::Held(lease_key(&plan.id), token));
    }
    let value = serde_json::to_vec(&plan)
        .map_err(|error| Unsaved::Error(SqlError::new("XX000", format!("a plan has no JSON form: {error}"))))?;
    let mut change = change.put(key.clone(), value.clone());
    if !plan.is_active() {
        change = without(catalog, change, &plan.id).await.map_err(Unsaved::Error)?;
    }
    let revision = catalog.commit(change).await?;
    Ok(Stored { plan, record: Record { key, value, revision, created: stored.record.created } })
}

/// Takes a plan out of the active ones.
async fn without(catalog: &dyn Catalog, change: Transaction, id: &PlanId) -> Result<Transaction, SqlError> {
    let (record, mut active) = read_active(catalog).await?;
    active.remove(id);
    change.when_as_read(&active_key(), record.as_ref()).put_json(active_key(), &active).map_err(catalog_error)
}
