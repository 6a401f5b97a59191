//! `isles demo`: what the shards do, on four real ones.
//!
//! Opens a catalog and four SQLite shards, writes the notes of a few tenants where the routing sends them, and moves
//! one tenant to another shard while it has rows: copy, fence, tail, compare, route. Then a writer that has not heard
//! of the move comes late, and the shard refuses it. Run it again and it goes on with the same data.

use super::output::{Failure, Format, FormatArgument, Outcome, say, say_json};
use isles_cluster::catalog::{Catalog, Key, Options, SqliteCatalog, Transaction};
use isles_engine::env::{Env, TokioEnv};
use isles_engine::error::ShardError;
use isles_engine::fence::{Claim, Claimed, Fence, FenceMode, FenceScope};
use isles_engine::shard::{
    ActsFor, Batch, Digest, Incoming, KeyRange, Request, RowVersion, Scope, Shard, Snapshot, Statement,
};
use isles_engine::sqlite::fleet::Fleet;
use isles_engine::sqlite::{SqliteOptions, SqliteShard};
use isles_kernel::hash::BucketCount;
use isles_kernel::names::{GroupName, RoutingVersion, SchemaVersion, ShardId, StreamId, TenantId};
use isles_kernel::routing::{RoutingChange, RoutingMove, RoutingPolicy};
use isles_kernel::schema::{Column, SchemaChange, Table, TableKind};
use isles_kernel::value::{DataType, Value};
use serde_json::json;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SHARDS: usize = 4;
const BUCKETS: u32 = 64;
const TENANTS: [&str; 8] = ["acme", "borealis", "corvid", "dune", "ember", "fjord", "grove", "harbor"];
const NOTES_PER_TENANT: usize = 250;
/// The tenant that moves.
const MOVING: &str = "acme";
/// Shards open at once; the demo has four.
const OPEN_SHARDS: usize = 16;
const PAGE_ROWS: usize = 100;
const ROUTING_KEY: &str = "routing/current";

#[derive(clap::Args)]
pub(crate) struct DemoArguments {
    /// Where the demo keeps its files
    #[arg(long, value_name = "DIR", default_value = "isles-data")]
    data: PathBuf,
    #[command(flatten)]
    format: FormatArgument,
}

impl DemoArguments {
    pub(crate) fn format(&self) -> Format {
        self.format.format()
    }
}

pub(crate) fn run(arguments: DemoArguments) -> Result<Outcome, Failure> {
    let runtime = tokio::runtime::Runtime::new().map_err(|fault| Failure::usage(fault.to_string()))?;
    runtime.block_on(async {
        let mut demo = Demo::open(&arguments).await?;
        let told = demo.tell().await;
        demo.close().await?;
        told.map(|()| Outcome::Done)
    })
}

struct Demo {
    catalog: SqliteCatalog,
    fleet: Fleet,
    policy: RoutingPolicy,
    format: Format,
    env: Arc<dyn Env>,
}

fn failed(error: ShardError) -> Failure {
    let people = error.for_people();
    let failure = Failure::usage(people.message).code(people.sqlstate);
    match people.hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

fn broken(error: impl std::fmt::Display) -> Failure {
    Failure::usage(error.to_string()).code("internal")
}

fn shard_name(n: usize) -> Result<ShardId, Failure> {
    ShardId::new(format!("s{n}")).map_err(broken)
}

fn tenant(name: &str) -> Result<TenantId, Failure> {
    TenantId::new(name).map_err(broken)
}

fn notes() -> Table {
    Table {
        name: "notes".into(),
        kind: TableKind::Tenant,
        columns: vec![Column::new("id", DataType::Int8).not_null(), Column::new("body", DataType::Text)],
        primary_key: vec!["id".into()],
        keys: vec![],
        foreign_keys: vec![],
        checks: vec![],
        primary_key_name: None,
        hidden_key: false,
    }
}

impl Demo {
    async fn open(arguments: &DemoArguments) -> Result<Demo, Failure> {
        let folder = arguments.data.join("demo");
        std::fs::create_dir_all(&folder)
            .map_err(|fault| Failure::usage(format!("cannot make folder {}: {fault}", folder.display())))?;
        let env: Arc<dyn Env> = Arc::new(TokioEnv::current());
        let catalog = SqliteCatalog::open(folder.join("catalog.db"), env.clone(), Options::default());
        let catalog = catalog.await.map_err(broken)?;
        let fleet = Fleet::new(folder, env.clone(), SqliteOptions::default(), OPEN_SHARDS);
        let policy = load_policy(&catalog).await?;
        Ok(Demo { catalog, fleet, policy, format: arguments.format(), env })
    }

    async fn close(self) -> Result<(), Failure> {
        self.fleet.close().await.map_err(failed)?;
        self.catalog.close().await;
        Ok(())
    }

    async fn tell(&mut self) -> Result<(), Failure> {
        self.prepare_shards().await?;
        self.write_notes().await?;
        self.move_tenant().await?;
        self.come_late().await
    }

    /// One line for people, one object for programs.
    fn say(&self, text: &str, value: &serde_json::Value) -> Result<(), Failure> {
        match self.format {
            Format::Text => say(text),
            Format::Json => say_json(value)?,
        }
        Ok(())
    }

    async fn shard(&self, id: &ShardId) -> Result<SqliteShard, Failure> {
        self.fleet.get(id).await.map_err(failed)
    }

    /// Each shard serves the buckets that the routing gives it, and nothing else.
    async fn prepare_shards(&self) -> Result<(), Failure> {
        for n in 0..SHARDS {
            let id = shard_name(n)?;
            let shard = self.shard(&id).await?;
            if shard.schema().await.map_err(failed)?.version == SchemaVersion::ZERO {
                let create = vec![SchemaChange::CreateTable(notes())];
                shard.apply_schema(SchemaVersion::ZERO, create).await.map_err(failed)?;
                let fences = self.bucket_fences(&id);
                shard.set_fences(fences, Duration::from_secs(5)).await.map_err(failed)?;
            }
        }
        let version = self.policy.version();
        let text = format!("{SHARDS} SQLite shards, {BUCKETS} buckets of tenants over them, routing version {version}");
        self.say(&text, &json!({"step": "shards", "shards": SHARDS, "buckets": BUCKETS, "routingVersion": version}))
    }

    fn bucket_fences(&self, id: &ShardId) -> Vec<Fence> {
        let group = self.policy.tenant_group();
        let ranges = self.policy.ranges(group).unwrap_or_default().iter().filter(|range| range.shard == *id);
        let scope = |first, last| FenceScope::Buckets { group: group.clone(), first, last };
        let version = RoutingVersion(1);
        ranges.map(|r| Fence { scope: scope(r.first, r.last), version, mode: FenceMode::Open }).collect()
    }

    /// What a router that knows `policy` says when it sends something for a tenant.
    fn claim(&self, policy: &RoutingPolicy, tenant: &TenantId) -> Claim {
        let unit =
            Claimed::Tenant(Some(tenant.clone()), policy.tenant_group().clone(), policy.bucket_of_tenant(tenant));
        Claim { version: policy.version(), units: vec![unit] }
    }

    async fn write_notes(&self) -> Result<(), Failure> {
        let began = Instant::now();
        let run = self.env.now_micros();
        let mut writes = tokio::task::JoinSet::new();
        for name in TENANTS {
            let tenant = tenant(name)?;
            let shard = self.shard(self.policy.shard_of_tenant(&tenant)).await?;
            let claim = self.claim(&self.policy, &tenant);
            for n in 0..NOTES_PER_TENANT {
                let (shard, request) = (shard.clone(), insert(claim.clone(), &tenant, run, n));
                writes.spawn(async move { shard.execute(request).await });
            }
        }
        let rows = writes.len();
        while let Some(done) = writes.join_next().await {
            done.map_err(broken)?.map_err(failed)?;
        }
        let ms = began.elapsed().as_millis();
        let flushes = self.flushes().await?;
        let text =
            format!("{rows} notes written, each durable before its answer, in {ms} ms with {flushes} disk flushes");
        self.say(&text, &json!({"step": "writes", "rows": rows, "ms": ms as u64, "flushes": flushes}))
    }

    async fn flushes(&self) -> Result<u64, Failure> {
        let mut commits = 0;
        for n in 0..SHARDS {
            commits += self.shard(&shard_name(n)?).await?.stats().await.map_err(failed)?.commits;
        }
        Ok(commits)
    }

    /// Copy, fence, tail, compare, route.
    async fn move_tenant(&mut self) -> Result<(), Failure> {
        let tenant = tenant(MOVING)?;
        let from = self.policy.shard_of_tenant(&tenant).clone();
        let to = self.next_shard(&from)?;
        let (source, target) = (self.shard(&from).await?, self.shard(&to).await?);
        let stream = StreamId::new("demo-move").map_err(broken)?;
        let epoch = self.policy.version();
        source.add_consumer(&stream).await.map_err(failed)?;
        let mut snapshot = source.snapshot().await.map_err(failed)?;
        let copied = copy(&mut *snapshot, &target, &stream, &tenant, epoch).await?;
        // The application goes on writing: this note is in no page of the copy.
        let claim = self.claim(&self.policy, &tenant);
        let late = insert(claim, &tenant, self.env.now_micros(), NOTES_PER_TENANT);
        source.execute(late).await.map_err(failed)?;
        fence(&source, &tenant, epoch.next(), FenceMode::Closed).await?;
        let tailed = tail(&source, &target, &stream, &tenant, epoch, snapshot.seq()).await?;
        drop(snapshot);
        let (there, here) = (digest(&source, &tenant).await?, digest(&target, &tenant).await?);
        if there != here {
            return Err(Failure::check(format!("the copies of {tenant} differ: {there:?} and {here:?}")));
        }
        self.route(&tenant, &from, &to).await?;
        fence(&target, &tenant, self.policy.version(), FenceMode::Open).await?;
        clean_up(&source, &target, &stream).await?;
        let version = self.policy.version();
        let text = format!(
            "tenant {tenant} moved from {from} to {to}: {copied} rows copied, {tailed} tailed, {} rows equal on \
             both; routing version {version}",
            here.rows
        );
        let value = json!({"step": "move", "tenant": tenant, "from": from, "to": to, "copied": copied, "tailed": tailed,
                           "rows": here.rows, "routingVersion": version});
        self.say(&text, &value)
    }

    fn next_shard(&self, from: &ShardId) -> Result<ShardId, Failure> {
        let names = (0..SHARDS).map(shard_name).collect::<Result<Vec<_>, _>>()?;
        let at = names.iter().position(|name| name == from).unwrap_or(0);
        Ok(names[(at + 1) % SHARDS].clone())
    }

    /// The new routing version, by compare-and-set: of two who change it at once, one is refused.
    async fn route(&mut self, tenant: &TenantId, from: &ShardId, to: &ShardId) -> Result<(), Failure> {
        let pin = RoutingMove::Pin { tenant: tenant.clone(), from: from.clone(), to: to.clone() };
        let next = self.policy.apply(&RoutingChange { moves: vec![pin] }).map_err(broken)?;
        let key = Key::new(ROUTING_KEY).map_err(broken)?;
        let stored = self.catalog.get(&key).await.map_err(broken)?;
        let change = Transaction::new().when_as_read(&key, stored.value.as_ref());
        let change = change.put_json(key, &next).map_err(broken)?;
        self.catalog.commit(change).await.map_err(broken)?;
        self.policy = next;
        Ok(())
    }

    /// A router that has slept through the move.
    async fn come_late(&self) -> Result<(), Failure> {
        let tenant = tenant(MOVING)?;
        let owner = self.policy.shard_of_tenant(&tenant).clone();
        let before = (0..SHARDS).map(shard_name).collect::<Result<Vec<_>, _>>()?;
        let at = before.iter().position(|name| *name == owner).unwrap_or(0);
        let old = &before[(at + SHARDS - 1) % SHARDS];
        let mut claim = self.claim(&self.policy, &tenant);
        claim.version = RoutingVersion(claim.version.0 - 1);
        let write = insert(claim, &tenant, self.env.now_micros(), 0);
        match self.shard(old).await?.execute(write).await {
            Err(refused @ ShardError::Moved { .. }) => {
                let text = format!("a router with the old map writes to {old}, and the shard refuses: {refused}");
                self.say(&text, &json!({"step": "late", "shard": old, "refused": refused.to_string()}))
            }
            Err(other) => Err(failed(other)),
            Ok(_) => Err(Failure::check(format!("{old} took a write for {tenant}, which has moved"))),
        }
    }
}

async fn load_policy(catalog: &SqliteCatalog) -> Result<RoutingPolicy, Failure> {
    let key = Key::new(ROUTING_KEY).map_err(broken)?;
    if let Some(record) = catalog.get(&key).await.map_err(broken)?.value {
        return record.json().map_err(broken);
    }
    let shards = (0..SHARDS).map(shard_name).collect::<Result<Vec<_>, _>>()?;
    let group = GroupName::new("tenants").map_err(broken)?;
    let buckets = BucketCount::new(BUCKETS).ok_or_else(|| broken("a bucket count out of bounds"))?;
    let policy = RoutingPolicy::new(group, buckets, &shards).map_err(broken)?;
    let first = Transaction::new().when_as_read(&key, None).put_json(key, &policy).map_err(broken)?;
    catalog.commit(first).await.map_err(broken)?;
    Ok(policy)
}

/// Ids differ between runs, so that the demo can go on with what it left.
fn insert(claim: Claim, tenant: &TenantId, run: u64, n: usize) -> Request {
    let sql = "INSERT INTO notes (_tenant, _shard, id, body) VALUES ($1, $1, $2, $3)";
    let id = (run * 1_000) as i64 + n as i64;
    let values = vec![Value::text(tenant.as_str()), Value::Int(id), Value::text(format!("note {n} of {tenant}"))];
    let insert = Statement::new(sql, values).writing();
    Request::write(claim, vec![insert]).acting_for(ActsFor::Tenant(Some(tenant.clone())))
}

fn rows_of(tenant: &TenantId) -> KeyRange {
    KeyRange::table("notes").within(Scope::Tenants(vec![Some(tenant.clone())]))
}

async fn copy(
    snapshot: &mut dyn Snapshot,
    target: &SqliteShard,
    stream: &StreamId,
    tenant: &TenantId,
    epoch: RoutingVersion,
) -> Result<u64, Failure> {
    let mut range = rows_of(tenant);
    let mut copied = 0;
    loop {
        let page = snapshot.page(&range, PAGE_ROWS).await.map_err(failed)?;
        let version = RowVersion { epoch, seq: snapshot.seq() };
        let rows = page.rows.into_iter().map(|row| Incoming {
            table: range.table.clone(),
            key: notes().key_of(&row.unit, &row.values),
            unit: row.unit,
            version,
            row: Some(row.values),
        });
        let batch = Batch::new(stream, rows.collect());
        copied += target.apply(batch).await.map_err(failed)?.written;
        match page.next {
            Some(next) => range.after = Some(next),
            None => return Ok(copied),
        }
    }
}

async fn tail(
    source: &SqliteShard,
    target: &SqliteShard,
    stream: &StreamId,
    tenant: &TenantId,
    epoch: RoutingVersion,
    after: isles_kernel::names::Seq,
) -> Result<u64, Failure> {
    let end = source.seq().await.map_err(failed)?;
    let unit = isles_kernel::schema::Unit::Tenant(Some(tenant.clone()));
    let (mut at, mut tailed) = (after, 0);
    while at < end {
        let page = source.changes(at, 500).await.map_err(failed)?;
        let mine = page.changes.into_iter().filter(|change| change.unit == unit);
        let rows: Vec<Incoming> = mine
            .map(|change| Incoming {
                table: change.table,
                unit: change.unit,
                key: change.key,
                version: RowVersion { epoch, seq: change.seq },
                row: change.after,
            })
            .collect();
        let batch = Batch { position: Some(page.through), ..Batch::new(stream, rows) };
        let applied = target.apply(batch).await.map_err(failed)?;
        tailed += applied.written + applied.deleted;
        at = page.through;
    }
    Ok(tailed)
}

async fn digest(shard: &SqliteShard, tenant: &TenantId) -> Result<Digest, Failure> {
    shard.snapshot().await.map_err(failed)?.digest(&rows_of(tenant)).await.map_err(failed)
}

async fn fence(
    shard: &SqliteShard,
    tenant: &TenantId,
    version: RoutingVersion,
    mode: FenceMode,
) -> Result<(), Failure> {
    let fence = Fence { scope: FenceScope::Tenant(Some(tenant.clone())), version, mode };
    shard.set_fences(vec![fence], Duration::from_secs(5)).await.map_err(failed)
}

/// The loser's rows go, and so do the means of the move.
async fn clean_up(source: &SqliteShard, target: &SqliteShard, stream: &StreamId) -> Result<(), Failure> {
    source.purge("notes", &Some(tenant(MOVING)?), None).await.map_err(failed)?;
    source.remove_consumer(stream).await.map_err(failed)?;
    target.forget_stream(stream, None).await.map_err(failed)
}
