//! Whose the shard is, stored in `_isles.meta` and asked in each transaction that acts for a tenant.
//!
//! A transaction of a shard that is one tenant's begins with `_isles.verify`, which compares the tenant that the
//! transaction has just said it acts for with the stored one. The server is asked and not our memory: behind an address
//! there may be another database than before, after a failover or a restore. A shard that tenants share asks nothing.
//!
//! Invariants (docs/invariants.md):
//!   * I-44  a bound shard serves no tenant but its own, and says so in the transaction

use super::exchange::Exchange;
use super::fault;
use super::pool::Conn;
use super::tenancy::{self, Setting};
use crate::binding::Binding;
use crate::error::Result;
use crate::shard::ActsFor;
use isles_kernel::schema::Schema;

/// Whom a transaction acts for.
pub(super) struct Acting {
    setting: Option<Setting>,
    /// Whether the server is asked if the shard is that tenant's.
    verifies: bool,
}

const VERIFY: &str = "SELECT _isles.verify()";

impl Acting {
    /// Has an exchange say so, behind its BEGIN, and be refused where the shard is another's.
    pub(super) async fn ask(&self, conn: &Conn, exchange: &mut Exchange) -> Result<()> {
        if let Some(setting) = &self.setting {
            let known = conn.knows(setting.text()).await?;
            exchange.run(&known, &[], &[&setting.value()])?;
        }
        if self.verifies {
            exchange.run(&*conn.knows(VERIFY).await?, &[], &[])?;
        }
        Ok(())
    }
}

pub(super) fn acting(binding: &Binding, acts_for: &ActsFor) -> Acting {
    // A binding has refused others before; the server does, too, since no tenant is named.
    let verifies = !matches!((binding, acts_for), (Binding::Shared, _) | (_, ActsFor::Nobody));
    Acting { setting: tenancy::setting(acts_for), verifies }
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
