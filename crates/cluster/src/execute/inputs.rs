//! What a statement is given when it runs: the client's parameters, and what the session knows.

use crate::database::routing::bits_of;
use crate::session::settings::Tenant;
use isles_engine::env::Env;
use isles_engine::shard::{ActsFor, Engine, Statement};
use isles_kernel::error::SqlError;
use isles_kernel::names::{BucketId, ShardId};
use isles_kernel::residents::Residents;
use isles_kernel::routing::RoutingPolicy;
use isles_kernel::schema::EVERY_TENANT_GROUP;
use isles_kernel::value::Value;
use isles_sql::plan::{Form, Fragment, ParamSource, Printed};
use isles_sql::print::Dialect;
use isles_sql::system::SystemFunctions;
use isles_sql::text::Settings;
use isles_sql::tree::Context;
use isles_sql::types::Type;
use std::sync::Arc;

/// What the session knows, the same for a whole statement.
pub(crate) trait Known: Send + Sync {
    /// The value of a context, as a value of this type.
    fn context(&self, context: &Context, ty: Type) -> Result<Value, SqlError>;
    fn tenant(&self) -> &Tenant;
    /// What values look like and mean in this session.
    fn settings(&self) -> &Settings;
    /// The functions that need the schema, for a stage.
    fn system(&self) -> Arc<dyn SystemFunctions>;
}

/// The client's parameters and the session's knowledge.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a> {
    pub(crate) params: &'a [Value],
    pub(crate) known: &'a dyn Known,
    pub(crate) env: &'a Arc<dyn Env>,
}

/// Whose buckets a statement keeps to: those that a shard has in the routing that the statement goes by.
#[derive(Clone, Copy)]
pub(crate) struct Owner<'a> {
    pub(crate) shard: &'a ShardId,
    pub(crate) policy: &'a RoutingPolicy,
}

pub(crate) fn dialect(engine: Engine) -> Dialect {
    match engine {
        Engine::Sqlite => Dialect::Sqlite,
        Engine::Postgres => Dialect::Postgres,
    }
}

pub(crate) fn tenant_unset() -> SqlError {
    SqlError::new("55000", "the statement needs a tenant, and the session has none")
        .with_hint("SET isles.tenant = 'name', or SET isles.null_tenant = on")
}

impl Inputs<'_> {
    pub(crate) fn param(&self, n: usize) -> Result<Value, SqlError> {
        let missing = || SqlError::new("42P02", format!("there is no parameter ${}", n + 1));
        self.params.get(n).cloned().ok_or_else(missing)
    }

    pub(crate) fn context(&self, context: &Context, ty: Type) -> Result<Value, SqlError> {
        match context {
            Context::Tenant => tenant_key(self.known.tenant()),
            context => self.known.context(context, ty),
        }
    }

    fn source(&self, source: &ParamSource, owner: Option<Owner<'_>>) -> Result<Value, SqlError> {
        match (source, owner) {
            (ParamSource::Param(n, _), _) => self.param(*n),
            (ParamSource::Context(context, ty), _) => self.context(context, *ty),
            (ParamSource::Const(value), _) => Ok(value.clone()),
            (ParamSource::Buckets(group), Some(owner)) if group.as_str() == EVERY_TENANT_GROUP => {
                Ok(Value::Text(Residents::of(owner.policy, owner.shard).text()))
            }
            (ParamSource::Buckets(group), Some(owner)) => Ok(Value::Bytes(bits_of(owner.policy, group, owner.shard))),
            (ParamSource::Buckets(_), None) => Err(SqlError::new("XX000", "a statement asks for buckets of no shard")),
        }
    }

    /// A fragment as an engine runs it.
    pub(crate) fn statement(&self, fragment: &Fragment, engine: Engine) -> Result<Statement, SqlError> {
        let printed = fragment.printed(dialect(engine), Form::Whole)?;
        self.filled(&printed, None)
    }

    /// A fragment with parameters that are its own: where it takes them in their order, as they are.
    pub(crate) fn statement_of(
        &self,
        fragment: &Fragment,
        engine: Engine,
        params: Vec<Value>,
    ) -> Result<Statement, SqlError> {
        let printed = fragment.printed(dialect(engine), Form::Whole)?;
        let in_order = |(at, source): (usize, &ParamSource)| matches!(source, ParamSource::Param(n, _) if *n == at);
        match printed.params.len() == params.len() && printed.params.iter().enumerate().all(in_order) {
            true => Ok(of_printed(&printed, params)),
            false => Inputs { params: &params, ..*self }.filled(&printed, None),
        }
    }

    /// A fragment that keeps to the buckets of its shard.
    pub(crate) fn owned_statement(
        &self,
        fragment: &Fragment,
        engine: Engine,
        owner: Owner<'_>,
    ) -> Result<Statement, SqlError> {
        let printed = fragment.printed(dialect(engine), Form::Owned)?;
        self.filled(&printed, Some(owner))
    }

    fn filled(&self, printed: &Printed, owner: Option<Owner<'_>>) -> Result<Statement, SqlError> {
        let params = printed.params.iter().map(|source| self.source(source, owner)).collect::<Result<_, _>>()?;
        Ok(of_printed(printed, params))
    }
}

fn of_printed(printed: &Printed, params: Vec<Value>) -> Statement {
    let statement = Statement::new(printed.sql.clone(), params).returning(printed.columns.clone()).composed();
    Statement { writes: printed.writes, ..statement }
}

/// A statement that is for one tenant, of a session that reads all of them.
fn no_one_tenant() -> SqlError {
    let error = SqlError::new("25006", "the statement is for one tenant, and the session reads all of them");
    error.with_hint("RESET isles.tenant_scope")
}

/// As `_tenant` stores it.
fn tenant_key(tenant: &Tenant) -> Result<Value, SqlError> {
    match tenant {
        Tenant::Unset => Err(tenant_unset()),
        Tenant::Every => Err(no_one_tenant()),
        Tenant::None => Ok(Value::text("")),
        Tenant::Name(name) => Ok(Value::text(name.as_str())),
    }
}

/// As `_shard` stores it.
pub(crate) fn tenant_value(tenant: &Tenant) -> Result<Value, SqlError> {
    match tenant {
        Tenant::Unset => Err(tenant_unset()),
        Tenant::Every => Err(no_one_tenant()),
        Tenant::None => Ok(Value::Null),
        Tenant::Name(name) => Ok(Value::text(name.as_str())),
    }
}

/// Whose rows a shard may show and change for a session.
pub(crate) fn acts_for(tenant: &Tenant) -> ActsFor {
    match tenant {
        Tenant::Unset => ActsFor::Nobody,
        Tenant::Every => ActsFor::Everyone,
        Tenant::None => ActsFor::Tenant(None),
        Tenant::Name(name) => ActsFor::Tenant(Some(name.clone())),
    }
}

/// Where a tenant lives, and the bucket it hashes to.
pub(crate) fn tenant_place(tenant: &Tenant, policy: &RoutingPolicy) -> Result<(ShardId, BucketId), SqlError> {
    let nowhere = || SqlError::new("XX000", "the tenant's bucket has no shard");
    match tenant {
        Tenant::Unset => Err(tenant_unset()),
        Tenant::Every => Err(no_one_tenant()),
        Tenant::Name(name) => Ok((policy.shard_of_tenant(name).clone(), policy.bucket_of_tenant(name))),
        Tenant::None => {
            let bucket = policy.bucket_of_null_tenant();
            let shard = policy.shard_of_bucket(policy.tenant_group(), bucket).ok_or_else(nowhere)?;
            Ok((shard.clone(), bucket))
        }
    }
}
