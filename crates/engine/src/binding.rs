//! Bindings: whose shard it is, where each tenant has a shard of its own.
//!
//!     Shared ──bind(Free), an empty shard──► Free ──bind(Tenant)──► Tenant
//!
//! In a database of many tenants to a shard the shard is shared, and whom a request acts for is all that is asked. In
//! one of a shard for each tenant the shard itself knows its tenant, and refuses every other: should a router ever send
//! a request to the wrong shard, or an operator put a file in another's place, nothing of one tenant reaches another.
//!
//! A binding goes forward only. So whoever has seen that a shard is a tenant's need not look again in the same
//! transaction, and a late writer cannot find the shard given to somebody else.
//!
//! Invariants (docs/invariants.md):
//!   * I-44  a bound shard serves no tenant but its own; the refusal is the shard's, in the request's own transaction

use crate::error::{Result, ShardError};
use crate::fence::Claimed;
use crate::shard::ActsFor;
use isles_kernel::names::TenantId;
use isles_kernel::schema::{Schema, Unit};

/// Whose a shard is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Binding {
    /// Any tenant's: they share the shard.
    #[default]
    Shared,
    /// Nobody's yet; one tenant will have it.
    Free,
    Tenant(TenantId),
}

impl Binding {
    /// Whether a request may act for whom it says, and claim what it claims. One that acts for nobody may: tenant tables
    /// are empty to it.
    pub fn check(&self, acts_for: &ActsFor, units: &[Claimed]) -> Result<()> {
        let claimed = units.iter().filter_map(|unit| match unit {
            Claimed::Tenant(tenant, ..) => Some(tenant),
            Claimed::Bucket(..) | Claimed::Buckets(..) | Claimed::OwnBuckets(..) | Claimed::Shared => None,
            Claimed::Residents(..) => None,
        });
        let acting = match acts_for {
            ActsFor::Nobody => None,
            ActsFor::Tenant(tenant) => Some(tenant),
            // Nobody asks a shard that is one tenant's for all tenants.
            ActsFor::Everyone if *self != Binding::Shared => return Err(ShardError::OtherTenant),
            ActsFor::Everyone => None,
        };
        self.serves(acting.into_iter().chain(claimed))
    }

    /// Whether rows of these units may come from elsewhere.
    pub(crate) fn check_rows<'a>(&self, units: impl IntoIterator<Item = &'a Unit>) -> Result<()> {
        self.serves(units.into_iter().filter_map(|unit| match unit {
            Unit::Tenant(tenant) => Some(tenant),
            Unit::Bucket(..) | Unit::Shared => None,
        }))
    }

    fn serves<'a>(&self, mut tenants: impl Iterator<Item = &'a Option<TenantId>>) -> Result<()> {
        let all_are_served = match self {
            Binding::Shared => true,
            Binding::Free => tenants.next().is_none(),
            Binding::Tenant(own) => tenants.all(|tenant| tenant.as_ref() == Some(own)),
        };
        if all_are_served { Ok(()) } else { Err(ShardError::OtherTenant) }
    }

    /// Whether a shard with this binding and schema may take another one; false if it has it already.
    pub(crate) fn leads_to(&self, wanted: &Binding, schema: &Schema) -> Result<bool> {
        match (self, wanted) {
            (now, wanted) if now == wanted => Ok(false),
            (Binding::Shared, Binding::Free) if schema.tables.is_empty() => Ok(true),
            (Binding::Shared, Binding::Free) => {
                Err(ShardError::statement("55000", "a shard that tenants share cannot become one tenant's"))
            }
            (Binding::Free, Binding::Tenant(_)) => Ok(true),
            (Binding::Tenant(_), Binding::Tenant(_)) => Err(ShardError::OtherTenant),
            _ => Err(ShardError::invalid("a shard's binding goes from shared to free to a tenant's, and never back")),
        }
    }

    /// As it is stored; a shard that tenants share stores nothing.
    pub(crate) fn stored(&self) -> Option<&str> {
        match self {
            Binding::Shared => None,
            Binding::Free => Some(""),
            Binding::Tenant(tenant) => Some(tenant.as_str()),
        }
    }

    pub(crate) fn read(stored: Option<&str>) -> Result<Binding> {
        let damaged = |_| ShardError::Corrupt("the shard's binding cannot be read".into());
        match stored {
            None => Ok(Binding::Shared),
            Some("") => Ok(Binding::Free),
            Some(name) => TenantId::new(name).map(Binding::Tenant).map_err(damaged),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use isles_kernel::names::{BucketId, GroupName};
    use isles_kernel::schema::Schema;

    fn tenant(name: &str) -> TenantId {
        TenantId::new(name).unwrap()
    }

    fn claimed(name: Option<&str>) -> Claimed {
        Claimed::Tenant(name.map(tenant), GroupName::new("tenants").unwrap(), BucketId(0))
    }

    /// I-44
    #[test]
    fn a_bound_shard_serves_its_tenant_and_nobody() {
        let acts = |name: Option<&str>| ActsFor::Tenant(name.map(tenant));
        let bound = Binding::Tenant(tenant("a"));
        assert_eq!(bound.check(&acts(Some("a")), &[claimed(Some("a")), Claimed::Shared]), Ok(()));
        assert_eq!(bound.check(&ActsFor::Nobody, &[Claimed::Shared]), Ok(()));
        for (whom, unit) in [
            (acts(Some("b")), Claimed::Shared),
            (acts(None), Claimed::Shared),
            (acts(Some("a")), claimed(Some("b"))),
            (ActsFor::Nobody, claimed(Some("b"))),
            (ActsFor::Nobody, claimed(None)),
            (ActsFor::Everyone, Claimed::Shared),
        ] {
            assert_eq!(
                bound.check(&whom, std::slice::from_ref(&unit)),
                Err(ShardError::OtherTenant),
                "{whom:?} {unit:?}"
            );
            assert_eq!(Binding::Shared.check(&whom, &[unit]), Ok(()));
        }
        assert_eq!(Binding::Free.check(&acts(Some("a")), &[]), Err(ShardError::OtherTenant));
        assert_eq!(Binding::Free.check(&acts(None), &[]), Err(ShardError::OtherTenant));
        assert_eq!(Binding::Free.check(&ActsFor::Nobody, &[Claimed::Shared]), Ok(()));
    }

    #[test]
    fn a_binding_goes_forward_only() {
        let all = [Binding::Shared, Binding::Free, Binding::Tenant(tenant("a")), Binding::Tenant(tenant("b"))];
        for (at, now) in all.iter().enumerate() {
            for (to, wanted) in all.iter().enumerate() {
                let led = now.leads_to(wanted, &Schema::default());
                match (at, to) {
                    _ if at == to => assert_eq!(led, Ok(false)),
                    (0, 1) | (1, 2 | 3) => assert_eq!(led, Ok(true)),
                    (2 | 3, 2 | 3) => assert_eq!(led, Err(ShardError::OtherTenant)),
                    _ => assert!(led.is_err(), "{now:?} to {wanted:?}"),
                }
                assert_eq!(Binding::read(now.stored()).unwrap(), *now);
            }
        }
    }
}
