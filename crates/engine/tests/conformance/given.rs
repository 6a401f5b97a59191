//! What the tests start from: tables of each kind, fences that let everything through, and a shard's handle with the
//! few calls that every test makes.
//!
//! Buckets are `id % 8` here. The engines store a bucket and do not compute it, so any rule serves.

use crate::fixtures::World;
use crate::seen;
use isles_engine::error::{Result, ShardError};
use isles_engine::fence::{Access, Claim, Claimed, Fence, FenceMode, FenceScope};
use isles_engine::shard::{
    ActsFor, Begin, Engine, KeyRange, Limits, Outcome, Request, Row, Shard, Statement, StoredRow, Transaction,
};
use isles_kernel::change::Change;
use isles_kernel::names::{BucketId, GroupName, RoutingVersion, SchemaVersion, Seq, StreamId, TenantId};
use isles_kernel::schema::{Column, Deferral, ForeignKey, OnChange, SchemaChange, Table, TableKind, Unit};
use isles_kernel::value::{DataType, Numeric, Value};
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const BUCKETS: u32 = 8;
/// Time for a fence that is expected to be set.
pub(crate) const FENCE_TIME: Duration = Duration::from_secs(20);

pub(crate) const INT8: DataType = DataType::Int8;
pub(crate) const TEXT: DataType = DataType::Text;

/// Anything a test writes where a [`Value`] is meant.
pub(crate) trait IntoValue {
    fn into_value(self) -> Value;
}

impl IntoValue for Value {
    fn into_value(self) -> Value {
        self
    }
}

impl IntoValue for i64 {
    fn into_value(self) -> Value {
        Value::Int(self)
    }
}

impl IntoValue for &str {
    fn into_value(self) -> Value {
        Value::text(self)
    }
}

impl IntoValue for Option<&str> {
    fn into_value(self) -> Value {
        self.map_or(Value::Null, Value::text)
    }
}

/// A row or a list of parameters.
macro_rules! values {
    ($($value:expr),* $(,)?) => { vec![$($crate::given::IntoValue::into_value($value)),*] };
}
pub(crate) use values;

pub(crate) fn numeric(text: &str) -> Value {
    Value::Numeric(Numeric::parse(text).expect("a valid numeric"))
}

pub(crate) fn users_group() -> GroupName {
    GroupName::new("users").expect("valid")
}

fn tenants_group() -> GroupName {
    GroupName::new("tenants").expect("valid")
}

pub(crate) fn tenant(name: &str) -> Option<TenantId> {
    Some(TenantId::new(name).expect("valid"))
}

pub(crate) fn acts_for(name: Option<&str>) -> ActsFor {
    ActsFor::Tenant(name.and_then(tenant))
}

pub(crate) fn stream(name: &str) -> StreamId {
    StreamId::new(name).expect("valid")
}

pub(crate) fn bucket_of(id: i64) -> BucketId {
    BucketId(id.rem_euclid(i64::from(BUCKETS)) as u32)
}

pub(crate) fn bucket(id: i64) -> Unit {
    Unit::Bucket(users_group(), bucket_of(id))
}

/// A table whose key columns are not null and whose other columns are nullable.
pub(crate) fn table(name: &str, kind: TableKind, columns: &[(&str, DataType)], key: &[&str]) -> Table {
    let column = |(name, ty): &(&str, DataType)| {
        let column = Column::new(name, *ty);
        if key.contains(name) { column.not_null() } else { column }
    };
    Table {
        name: name.into(),
        kind,
        columns: columns.iter().map(column).collect(),
        primary_key: key.iter().map(|name| name.to_string()).collect(),
        keys: vec![],
        foreign_keys: vec![],
        checks: vec![],
        primary_key_name: None,
        hidden_key: false,
    }
}

pub(crate) fn by_hash(shard_by: &str) -> TableKind {
    TableKind::Hash { group: users_group(), shard_by: vec![shard_by.into()], buckets: BUCKETS, regions: vec![] }
}

pub(crate) fn users() -> Table {
    table("users", by_hash("id"), &[("id", INT8), ("email", TEXT), ("n", INT8)], &["id"])
}

pub(crate) fn notes() -> Table {
    table("notes", TableKind::Tenant, &[("id", INT8), ("body", TEXT)], &["id"])
}

pub(crate) fn plans() -> Table {
    let mut plans = table("plans", TableKind::Reference, &[("id", INT8), ("name", TEXT)], &["id"]);
    plans.columns[1].nullable = false;
    plans
}

/// Parents and children in one unit; the child's foreign key does `on_delete`.
pub(crate) fn family(on_delete: OnChange) -> Vec<Table> {
    let parents = table("parents", TableKind::Reference, &[("id", INT8)], &["id"]);
    let mut children = table("children", TableKind::Reference, &[("id", INT8), ("parent", INT8)], &["id"]);
    children.foreign_keys = vec![ForeignKey {
        name: "children_parent".into(),
        columns: vec!["parent".into()],
        table: "parents".into(),
        references: vec!["id".into()],
        on_delete,
        on_update: OnChange::NoAction,
        deferral: Deferral::None,
    }];
    vec![parents, children]
}

/// A claim of every unit the tests write to, routed with `version`.
pub(crate) fn claim_at(version: u64) -> Claim {
    let buckets = (0..BUCKETS).map(|bucket| Claimed::Bucket(users_group(), BucketId(bucket)));
    let tenants = [None, tenant("acme"), tenant("beta")];
    let tenants = tenants.into_iter().map(|tenant| Claimed::Tenant(tenant, tenants_group(), BucketId(0)));
    let units = buckets.chain(tenants).chain([Claimed::Shared]).collect();
    Claim::new(RoutingVersion(version), units)
}

pub(crate) fn claim() -> Claim {
    claim_at(1)
}

pub(crate) fn claim_bucket(version: u64, bucket: u32) -> Claim {
    Claim::new(RoutingVersion(version), vec![Claimed::Bucket(users_group(), BucketId(bucket))])
}

pub(crate) fn claim_tenant(version: u64, tenant: Option<TenantId>) -> Claim {
    let units = vec![Claimed::Tenant(tenant, tenants_group(), BucketId(0))];
    Claim::new(RoutingVersion(version), units)
}

pub(crate) fn fence_buckets(first: u32, last: u32, version: u64, mode: FenceMode) -> Fence {
    let scope = FenceScope::Buckets { group: users_group(), first: BucketId(first), last: BucketId(last) };
    Fence { scope, version: RoutingVersion(version), mode }
}

pub(crate) fn fence_tenant(tenant: Option<TenantId>, version: u64, mode: FenceMode) -> Fence {
    Fence { scope: FenceScope::Tenant(tenant), version: RoutingVersion(version), mode }
}

/// Fences under which [`claim`] is let through.
pub(crate) fn all_open() -> Vec<Fence> {
    let version = RoutingVersion(1);
    let last = BucketId(BUCKETS - 1);
    let buckets = |group| FenceScope::Buckets { group, first: BucketId(0), last };
    let scopes = [buckets(users_group()), buckets(tenants_group()), FenceScope::Shared];
    scopes.into_iter().map(|scope| Fence { scope, version, mode: FenceMode::Open }).collect()
}

pub(crate) fn insert_user(id: i64, email: &str, n: i64) -> Statement {
    let params = values![i64::from(bucket_of(id).0), id, email, n];
    Statement::new("INSERT INTO users (_bucket, id, email, n) VALUES ($1, $2, $3, $4)", params)
}

/// An insert into a tenant table: the engines differ in who fills `_tenant`.
pub(crate) fn insert_note(engine: Engine, tenant: Option<&str>, id: i64, body: &str) -> Statement {
    match engine {
        Engine::Sqlite => Statement::new(
            "INSERT INTO notes (_tenant, _shard, id, body) VALUES ($1, $2, $3, $4)",
            values![tenant.unwrap_or(""), tenant, id, body],
        ),
        Engine::Postgres => {
            Statement::new("INSERT INTO notes (_shard, id, body) VALUES ($1, $2, $3)", values![tenant, id, body])
        }
    }
}

pub(crate) fn user_row(id: i64, email: &str, n: i64) -> StoredRow {
    StoredRow { unit: bucket(id), values: values![id, email, n] }
}

/// A select whose columns have the types `columns`.
pub(crate) fn select(columns: &[DataType], sql: &str, params: Vec<Value>) -> Statement {
    Statement::new(sql, params).returning(columns.to_vec())
}

pub(crate) fn count_of(sql: &str) -> Statement {
    select(&[INT8], sql, vec![])
}

/// Counts for as long as it is let; both engines have to be stopped from outside.
pub(crate) fn endless() -> Statement {
    count_of(
        "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t WHERE x < 2000000000) SELECT count(*) FROM t",
    )
}

/// The numbers from 1 to `last`, one row each.
pub(crate) fn numbers(last: i64) -> Statement {
    let sql =
        "WITH RECURSIVE t(x) AS (SELECT CAST(1 AS bigint) UNION ALL SELECT x + 1 FROM t WHERE x < $1) SELECT x FROM t";
    select(&[INT8], sql, values![last])
}

pub(crate) fn limits(edit: impl FnOnce(&mut Limits)) -> Limits {
    let mut limits = Limits::default();
    edit(&mut limits);
    limits
}

/// A shard, with the calls that tests make most.
#[derive(Clone)]
pub(crate) struct Db {
    shard: Arc<dyn Shard>,
}

impl Deref for Db {
    type Target = dyn Shard;
    fn deref(&self) -> &(dyn Shard + 'static) {
        &*self.shard
    }
}

impl Db {
    pub(crate) fn new(shard: Arc<dyn Shard>) -> Db {
        Db { shard }
    }

    pub(crate) fn into_shard(self) -> Arc<dyn Shard> {
        self.shard
    }

    /// Creates `tables` and opens every fence.
    pub(crate) async fn set_up(self, tables: Vec<Table>) -> Db {
        let changes = tables.into_iter().map(SchemaChange::CreateTable).collect();
        self.apply_schema(SchemaVersion(0), changes).await.expect("the tables are valid");
        self.set_fences(all_open(), FENCE_TIME).await.expect("a new shard takes fences");
        self
    }

    pub(crate) async fn alter(&self, changes: Vec<SchemaChange>) {
        let from = self.schema().await.expect("a schema").version;
        self.apply_schema(from, changes).await.expect("the schema change is valid");
    }

    /// Runs one statement as a transaction of its own.
    pub(crate) async fn run(&self, sql: &str, params: Vec<Value>) -> Result<Outcome> {
        self.write(vec![Statement::new(sql, params)]).await.map(|mut outcomes| outcomes.remove(0))
    }

    /// Runs one statement that must succeed; tells how many rows it changed.
    pub(crate) async fn must(&self, sql: &str, params: Vec<Value>) -> u64 {
        self.run(sql, params).await.unwrap_or_else(|error| panic!("{sql}: {error}")).affected
    }

    pub(crate) async fn write(&self, statements: Vec<Statement>) -> Result<Vec<Outcome>> {
        self.execute(Request::write(claim(), statements)).await
    }

    pub(crate) async fn put_user(&self, id: i64, email: &str, n: i64) {
        self.write(vec![insert_user(id, email, n)]).await.expect("a user is inserted");
    }

    pub(crate) async fn put_note(&self, tenant: Option<&str>, id: i64, body: &str) {
        self.write_note(tenant, id, body).await.expect("a note is inserted");
    }

    pub(crate) async fn write_note(&self, tenant: Option<&str>, id: i64, body: &str) -> Result<Outcome> {
        self.write_for(acts_for(tenant), insert_note(self.engine(), tenant, id, body)).await
    }

    /// Runs one statement for a tenant.
    pub(crate) async fn write_for(&self, acts_for: ActsFor, statement: Statement) -> Result<Outcome> {
        let request = Request::write(claim(), vec![statement.writing()]).acting_for(acts_for);
        self.execute(request).await.map(|mut outcomes| outcomes.remove(0))
    }

    pub(crate) async fn query(&self, columns: &[DataType], sql: &str, params: Vec<Value>) -> Vec<Row> {
        let request = Request::read(claim(), select(columns, sql, params));
        self.execute(request).await.unwrap_or_else(|error| panic!("{sql}: {error}")).remove(0).rows
    }

    pub(crate) async fn count(&self, table: &str) -> i64 {
        let rows = self.query(&[INT8], &format!("SELECT count(*) FROM {table}"), vec![]).await;
        int(&rows[0][0])
    }

    /// The value of `n` of a user.
    pub(crate) async fn n_of(&self, id: i64) -> Option<i64> {
        let rows = self.query(&[INT8], "SELECT n FROM users WHERE id = $1", values![id]).await;
        rows.first().map(|row| int(&row[0]))
    }

    /// An interactive transaction with every unit claimed.
    pub(crate) async fn transaction(&self, access: Access) -> Box<dyn Transaction> {
        self.begin(Begin::new(claim(), access)).await.expect("a transaction begins")
    }

    /// All rows of a table, in key order, whatever the fences say.
    pub(crate) async fn rows(&self, table: &str) -> Vec<StoredRow> {
        let mut snapshot = self.snapshot().await.expect("a snapshot");
        seen::all_rows(&mut *snapshot, &KeyRange::table(table), &mut || 500).await
    }

    /// Every change after a position.
    pub(crate) async fn log_after(&self, after: Seq) -> Vec<Change> {
        seen::all_changes(self, after, 50).await
    }

    /// Begins to read the log under the name `test`.
    pub(crate) async fn listen(&self) -> Seq {
        self.add_consumer(&stream("test")).await.expect("a consumer is added")
    }
}

pub(crate) fn int(value: &Value) -> i64 {
    match value {
        Value::Int(n) => *n,
        other => panic!("{other:?} is no integer"),
    }
}

/// The code a client sees.
pub(crate) fn sqlstate(error: &ShardError) -> &'static str {
    error.for_people().sqlstate
}

/// An argument out of bounds is refused as such, and not as a failure of the shard.
pub(crate) fn is_refusal(error: &ShardError) -> bool {
    matches!(error, ShardError::Invalid(_) | ShardError::Limit { .. } | ShardError::Statement(_))
}

impl World {
    /// A shard with users, notes and plans that serves everything.
    pub(crate) async fn shard(&self) -> Db {
        self.shard_with(vec![users(), notes(), plans()]).await
    }

    pub(crate) async fn shard_with(&self, tables: Vec<Table>) -> Db {
        self.empty().await.set_up(tables).await
    }
}
