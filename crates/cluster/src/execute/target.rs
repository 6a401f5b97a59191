//! Where a fragment runs: its target, resolved with the parameters and the routing of the moment.

use super::evaluate;
use super::inputs::{Inputs, tenant_place};
use super::key;
use crate::database::Database;
use crate::database::routing::claimed_of;
use crate::database::strangers::keep_to_own;
use crate::indexes::find::Found;
use crate::session::settings::Tenant;
use isles_engine::entries::Still;
use isles_engine::fence::Claimed;
use isles_kernel::error::SqlError;
use isles_kernel::names::{BucketId, GroupName, ShardId, TenantId};
use isles_kernel::residents::Residents;
use isles_kernel::routing::RoutingPolicy;
use isles_kernel::schema::{EVERY_TENANT_GROUP, global_bucket};
use isles_kernel::value::Value;
use isles_sql::plan::{KeyExprs, Target, Touch};
use isles_sql::types::Type;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;

/// Shards and what is claimed on each.
#[derive(Default)]
pub(crate) struct Places {
    pub(crate) shards: BTreeMap<ShardId, Vec<Claimed>>,
    /// What they were chosen by, if that can change without the routing.
    pub(crate) still: Option<Still>,
}

impl Deref for Places {
    type Target = BTreeMap<ShardId, Vec<Claimed>>;

    fn deref(&self) -> &Self::Target {
        &self.shards
    }
}

impl FromIterator<(ShardId, Vec<Claimed>)> for Places {
    fn from_iter<I: IntoIterator<Item = (ShardId, Vec<Claimed>)>>(shards: I) -> Places {
        Places { shards: shards.into_iter().collect(), still: None }
    }
}

/// Whether a fragment runs even where nothing matches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Nobody {
    IsFine,
    /// Then any shard is asked.
    MustRun,
}

/// All rows of global tables.
pub(crate) fn global_claim() -> Claimed {
    let (group, bucket) = global_bucket();
    Claimed::Bucket(group, bucket)
}

/// Whether a group is that of all tenants' rows.
fn is_every_tenant(group: &GroupName) -> bool {
    group.as_str() == EVERY_TENANT_GROUP
}

pub(crate) struct Resolver<'a> {
    pub(crate) database: &'a Database,
    pub(crate) policy: &'a RoutingPolicy,
    pub(crate) inputs: Inputs<'a>,
    /// A shard that the transaction is on already, for what may be read anywhere.
    pub(crate) prefer: Option<ShardId>,
}

impl Resolver<'_> {
    pub(crate) fn resolve(&self, target: &Target, touches: &[Touch], nobody: Nobody) -> Result<Places, SqlError> {
        let places = match target {
            Target::Any => self.whole(touches, [self.any()])?,
            Target::First => self.whole(touches, [self.database.first_shard()])?,
            Target::Home => self.whole(touches, [self.home()?])?,
            Target::All | Target::Index(_) => self.whole(touches, self.owners(touches))?,
            Target::Every => self.whole(touches, self.database.shard_names())?,
            Target::Tenant => {
                let (shard, _) = tenant_place(self.inputs.known.tenant(), self.policy)?;
                self.whole(touches, [shard])?
            }
            Target::Keys { group, keys } => self.of_keys(group, keys, touches)?,
            Target::Nowhere => Places::default(),
        };
        match (places.is_empty(), nobody) {
            (true, Nobody::MustRun) => self.whole(touches, [self.any()]),
            _ => Ok(places),
        }
    }

    /// Shards that an index has named, and others that are asked besides.
    pub(crate) fn led(
        &self,
        group: &GroupName,
        found: &Found,
        besides: &[ShardId],
        touches: &[Touch],
        nobody: Nobody,
    ) -> Result<Places, SqlError> {
        let owners = self.owners(touches);
        let named = self.shards_of(group, &found.buckets);
        let all: BTreeSet<ShardId> =
            named.into_iter().chain(besides).filter(|shard| owners.contains(*shard)).cloned().collect();
        let places = match (all.is_empty(), nobody) {
            (true, Nobody::MustRun) => self.whole(touches, [self.any()])?,
            _ => self.whole(touches, all)?,
        };
        Ok(Places { still: Some(found.still.clone()), ..places })
    }

    fn any(&self) -> ShardId {
        let drawn = || {
            let members = self.database.members();
            members.shards[self.database.env.random() as usize % members.shards.len()].name.clone()
        };
        self.prefer.clone().unwrap_or_else(drawn)
    }

    /// Where the global tables are.
    pub(crate) fn home(&self) -> Result<ShardId, SqlError> {
        self.policy.home().cloned().ok_or_else(|| SqlError::new("XX000", "the global tables are not routed"))
    }

    /// Shards that have buckets of what is touched; where that is all tenants, those that have tenants.
    pub(crate) fn owners(&self, touches: &[Touch]) -> BTreeSet<ShardId> {
        let groups = touches.iter().filter_map(|touch| match touch {
            Touch::Group(group) if is_every_tenant(group) => self.policy.ranges(self.policy.tenant_group()),
            Touch::Group(group) => self.policy.ranges(group),
            _ => None,
        });
        let owners = groups.flatten().map(|range| &range.shard);
        let every = touches.iter().any(|touch| matches!(touch, Touch::Group(group) if is_every_tenant(group)));
        let pinned = self.policy.pins().filter(|_| every).map(|(_, shard)| shard);
        owners.chain(pinned).cloned().collect()
    }

    /// Shards that have rows of these buckets. Tenants that are pinned are not where their bucket is.
    pub(crate) fn shards_of(&self, group: &GroupName, buckets: &BTreeSet<BucketId>) -> BTreeSet<&ShardId> {
        let policy = self.policy;
        if !is_every_tenant(group) {
            return buckets.iter().filter_map(|bucket| policy.shard_of_bucket(group, *bucket)).collect();
        }
        policy.shards_of_tenants(buckets)
    }

    /// Each shard, with claims to all it has of what is touched.
    fn whole(&self, touches: &[Touch], shards: impl IntoIterator<Item = ShardId>) -> Result<Places, SqlError> {
        let claims = |shard: ShardId| {
            let claims: Result<Vec<Vec<Claimed>>, SqlError> =
                touches.iter().map(|touch| self.claims(touch, &shard)).collect();
            Ok((shard, claims?.concat()))
        };
        shards.into_iter().map(claims).collect()
    }

    fn claims(&self, touch: &Touch, shard: &ShardId) -> Result<Vec<Claimed>, SqlError> {
        Ok(match touch {
            Touch::Group(group) if is_every_tenant(group) => {
                let group = self.policy.tenant_group();
                let residents = Claimed::Residents(group.clone(), Arc::new(Residents::of(self.policy, shard)));
                let mut claims = self.kept(claimed_of(self.policy, group, shard), group, shard);
                claims.push(residents);
                claims
            }
            Touch::Group(group) => self.kept(claimed_of(self.policy, group, shard), group, shard),
            Touch::Shared => vec![Claimed::Shared],
            Touch::Global => vec![global_claim()],
            Touch::Tenant => vec![self.tenant_claim()?],
        })
    }

    /// Claims to whatever a shard has; to its own buckets where it is known to have others, too.
    fn kept(&self, mut claims: Vec<Claimed>, group: &GroupName, shard: &ShardId) -> Vec<Claimed> {
        if self.database.has_strangers(shard, group) {
            keep_to_own(&mut claims, group);
        }
        claims
    }

    pub(crate) fn tenant_claim(&self) -> Result<Claimed, SqlError> {
        let tenant = self.inputs.known.tenant();
        let (_, bucket) = tenant_place(tenant, self.policy)?;
        let name = match tenant {
            Tenant::Name(name) => Some(name.clone()),
            _ => None,
        };
        Ok(Claimed::Tenant(name, self.policy.tenant_group().clone(), bucket))
    }

    fn of_keys(&self, group: &GroupName, keys: &[KeyExprs], touches: &[Touch]) -> Result<Places, SqlError> {
        if is_every_tenant(group) {
            return self.of_tenants(keys, touches);
        }
        let mut buckets: BTreeMap<ShardId, BTreeSet<BucketId>> = BTreeMap::new();
        for key in keys {
            for values in self.values(key)? {
                if let Some((shard, bucket)) = self.place(group, &values)? {
                    buckets.entry(shard).or_default().insert(bucket);
                }
            }
        }
        // Each shard is asked for all of the keys, so it would show those of the others if it had strangers among them.
        let claim = match buckets.len() {
            0 | 1 => |group: &GroupName, bucket| Claimed::Bucket(group.clone(), bucket),
            _ => |group: &GroupName, bucket| Claimed::Buckets(group.clone(), bucket, bucket),
        };
        let mut places = Places::default();
        for (shard, buckets) in buckets {
            let mut claims: Vec<Claimed> = buckets.into_iter().map(|bucket| claim(group, bucket)).collect();
            claims = self.kept(claims, group, &shard);
            for touch in touches.iter().filter(|touch| !matches!(touch, Touch::Group(named) if named == group)) {
                claims.extend(self.claims(touch, &shard)?);
            }
            places.shards.insert(shard, claims);
        }
        Ok(places)
    }

    /// The shards of tenants, whose names are the keys.
    fn of_tenants(&self, keys: &[KeyExprs], touches: &[Touch]) -> Result<Places, SqlError> {
        let mut shards = BTreeSet::new();
        for key in keys {
            for values in self.values(key)? {
                let [(Value::Text(name), _)] = values.as_slice() else { continue };
                let tenant = match TenantId::new(name.as_str()) {
                    Ok(name) => Tenant::Name(name),
                    Err(_) if name.is_empty() => Tenant::None,
                    // No tenant is called so.
                    Err(_) => continue,
                };
                shards.insert(tenant_place(&tenant, self.policy)?.0);
            }
        }
        self.whole(touches, shards)
    }

    fn values(&self, key: &KeyExprs) -> Result<Vec<Vec<(Value, Type)>>, SqlError> {
        match key {
            KeyExprs::Row(exprs) => {
                let row = exprs.iter().map(|expr| Ok((evaluate::value(expr, self.inputs)?, expr.ty)));
                Ok(vec![row.collect::<Result<_, SqlError>>()?])
            }
            KeyExprs::Elements(array) => {
                let ty = isles_sql::types::element_of(array.ty.oid).map_or(array.ty, Type::of);
                match evaluate::value(array, self.inputs)? {
                    Value::Array(members) => Ok(members.into_iter().map(|member| vec![(member, ty)]).collect()),
                    _ => Ok(Vec::new()),
                }
            }
        }
    }

    /// Where a key's row is; None if a part of it is null.
    pub(crate) fn place(
        &self,
        group: &GroupName,
        values: &[(Value, Type)],
    ) -> Result<Option<(ShardId, BucketId)>, SqlError> {
        let unknown = || SqlError::new("XX000", format!("group {group} is not routed"));
        let buckets = self.policy.buckets(group).ok_or_else(unknown)?;
        let Some(bucket) = key::bucket(values, buckets)? else { return Ok(None) };
        let shard = self.policy.shard_of_bucket(group, bucket).ok_or_else(unknown)?;
        Ok(Some((shard.clone(), bucket)))
    }
}
