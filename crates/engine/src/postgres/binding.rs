//! Whose the shard is, stored in `_isles.meta` and asked in each transaction that acts for a tenant.
//!
//! A transaction of a shard that is one tenant's begins with `_isles.verify`, which compares the tenant that the
//! transaction has just said it acts for with the stored one. The server is asked and not our memory: behind an address
//! there may be another database than before, after a failover or a restore. A shard that tenants share asks nothing.
//!
//! Invariants (docs/invariants.md):
//!   * I-44  a bound shard serves no tenant but its own, and says so in the transaction

use super::fault;
use super::pool::Conn;
use super::tenancy;
use crate::binding::Binding;
use crate::error::Result;
use crate::shard::ActsFor;
use isles_kernel::schema::Schema;

/// What tells a transaction, behind its BEGIN, whom it acts for, and has it refused where that is another.
pub(super) fn acting(binding: &Binding, acts_for: &ActsFor) -> String {
    let setting = tenancy::setting(acts_for);
    match (binding, acts_for) {
        (Binding::Shared, _) | (_, ActsFor::Nobody) => setting,
        // Refused by the binding before; the server says so, too, since no tenant is named.
        (Binding::Free | Binding::Tenant(_), ActsFor::Tenant(_) | ActsFor::Everyone) => {
            format!("{setting}; SELECT _isles.verify()")
        }
    }
}

pub(super) async fn load(conn: &Conn) -> Result<Binding> {
    let row = conn.query_one("SELECT bound FROM _isles.meta", &[]).await.map_err(fault::before_commit)?;
    Binding::read(row.get(0))
}

/// Binds in a transaction that the caller ends. Of two who bind at once the second sees what the first did.
pub(super) async fn set(conn: &Conn, schema: &Schema, binding: &Binding) -> Result<()> {
    conn.batch_execute("BEGIN READ WRITE").await.map_err(fault::before_commit)?;
    let row = conn.query_one("SELECT bound FROM _isles.meta FOR UPDATE", &[]).await.map_err(fault::before_commit)?;
    if Binding::read(row.get(0))?.leads_to(binding, schema)? {
        let text = "UPDATE _isles.meta SET bound = $1";
        conn.execute(text, &[&binding.stored()]).await.map_err(fault::before_commit)?;
    }
    Ok(())
}
