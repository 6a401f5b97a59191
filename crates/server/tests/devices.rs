//! Devices against a real service: an Isles database of two SQLite shards, fragments over HTTP on a real socket.

#![allow(clippy::unwrap_used)]

use axum::Router;
use isles_cluster::database::{Config, Database};
use isles_cluster::roles::Role;
use isles_cluster::session::{Answer, Login};
use isles_engine::env::TokioEnv;
use isles_fragments::adapter::isles::Isles;
use isles_fragments::schema::{ColumnType, Schema, column};
use isles_fragments::shard::{Shard, Strategy};
use isles_fragments::store::{Fragment, Store};
use isles_fragments::uow::Plan;
use isles_fragments::values::Values;
use isles_fragments::web::{SignedToken, mount};
use isles_kernel::sync::{Command, Op, RowKey};
use isles_lofi::*;
use serde_json::{Value as Json, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Far more than anything here takes; what is not there by then will not come.
const LIMIT: Duration = Duration::from_secs(60);

struct Service {
    address: String,
    database: Arc<Database>,
    tokens: Arc<SignedToken>,
    _folder: tempfile::TempDir,
}

fn fragment() -> Fragment {
    let schema = Schema::build("tasks").table("task", |table| {
        table.column(column("title", ColumnType::String)).column(column("done", ColumnType::Bool))
    });
    let text = |input: &Json, name: &str| input[name].as_str().unwrap_or_default().to_owned();
    Fragment::new(schema.finish().unwrap())
        .outbox()
        .command("add", move |input| {
            let (id, title) = (text(input, "id"), text(input, "title"));
            Ok(Plan::new().mutate(move |work, _| {
                let values = Values::new().set("title", title.as_str()).set("done", false);
                work.create_with_id("task", &id, values)
            }))
        })
        .command("finish", move |input| {
            let id = text(input, "id");
            Ok(Plan::new().mutate(move |work, _| work.update("task", &id, Values::new().set("done", true))))
        })
}

impl Service {
    async fn start() -> Service {
        let folder = tempfile::tempdir().unwrap();
        let config = Config::sqlite(folder.path(), 2);
        let database = Database::open(config, Arc::new(TokioEnv::current())).await.unwrap();
        let adapter = Arc::new(Isles::new(database.clone(), "isles"));
        let (store, _) = Store::open(adapter, Some(Strategy::Row)).await.unwrap();
        store.register(fragment(), None).await.unwrap();
        let tokens = Arc::new(SignedToken::new(b"a secret of this test"));
        let routes = Router::new().nest("/tasks", mount(&store, Some(tokens.clone()), Router::new()).unwrap());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}/tasks", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, routes).await });
        Service { address, database, tokens, _folder: folder }
    }

    fn transport(&self, tenant: &str) -> HttpTransport {
        let token = format!("Bearer {}", self.tokens.token(&Shard::named(tenant).unwrap(), 10 * LIMIT));
        HttpTransport::new(&self.address, &[("authorization", &token)]).unwrap()
    }

    async fn device(&self, tenant: &str) -> Client {
        Client::open(MemoryStore::default(), self.transport(tenant), Options::default()).await.unwrap()
    }

    /// The first column of an administrator's statement.
    async fn admin(&self, sql: &str) -> Result<Vec<String>, String> {
        let role = Role { admin: true, ..Role::default() };
        let login = Login { user: "operator".into(), database: "isles".into(), settings: vec![], role };
        let mut session = self.database.session(login).map_err(|error| error.to_string())?;
        let prepared = session.prepare(sql, &[]).await.map_err(|error| error.to_string())?;
        let mut found = Vec::new();
        if let Answer::Rows(mut rows) = session.execute(&prepared, vec![]).await.map_err(|error| error.to_string())? {
            while let Some(batch) = rows.next(100).await.map_err(|error| error.to_string())? {
                found.extend(batch.into_iter().filter_map(|row| match row.into_iter().next() {
                    Some(isles_kernel::value::Value::Text(text)) => Some(text),
                    _ => None,
                }));
            }
        }
        Ok(found)
    }

    /// Moves a tenant to the shard that it is not on.
    async fn move_tenant(&self, tenant: &str) {
        let mut refused = Vec::new();
        for shard in self.admin("SHOW SHARDS").await.unwrap() {
            let order = format!("CREATE MOVE OF TENANTS ('{tenant}') TO {shard} WITH (auto, complete)");
            refused.extend(self.admin(&order).await.err());
        }
        assert_eq!(refused.len(), 1, "one of two shards has the tenant already: {refused:?}");
        let deadline = Instant::now() + LIMIT;
        while self.database.moves().await.unwrap().iter().any(|plan| plan.is_active()) {
            assert!(Instant::now() < deadline, "the move does not end");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

fn key(id: &str) -> RowKey {
    RowKey::new("tasks", "task", id).unwrap()
}

fn draft(name: &str, id: &str, op: Op, values: Json) -> Draft {
    let mut input = values.clone();
    input["id"] = json!(id);
    let command = Command { schema: "tasks".into(), name: name.into(), input, reads: vec![], scopes: vec![] };
    let edit = Edit { op, key: key(id), values: serde_json::from_value(values).unwrap() };
    Draft { command, edits: vec![edit], on_conflict: OnConflict::GiveUp }
}

async fn add(device: &Client, tenant: &str, id: &str) {
    let values = json!({"title": format!("{tenant}: {id}"), "done": false});
    device.submit(draft("add", id, Op::Create, values)).await.unwrap();
}

async fn finish(device: &Client, id: &str) {
    device.submit(draft("finish", id, Op::Update, json!({"done": true}))).await.unwrap();
}

async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(LIMIT, future).await.unwrap_or_else(|_| panic!("{what} takes too long"))
}

/// Waits until all have an outcome for everything and are at the same entry; the ids that they have.
async fn converge(devices: &[&Client]) -> BTreeSet<String> {
    for device in devices {
        let quiet = |replica: &Replica| replica.unconfirmed() == 0 && replica.health().phase == Phase::Live;
        within("an outcome", device.until(quiet)).await.unwrap();
    }
    let mut newest = None;
    for device in devices {
        let cursor = device.view().await.unwrap().cursor();
        newest = newest.max(cursor.map(|cursor| cursor.version()));
    }
    let mut ids = Vec::new();
    for device in devices {
        let there = |replica: &Replica| replica.cursor().map(|cursor| cursor.version()) == newest;
        within("the newest entry", device.until(there)).await.unwrap();
        let view = device.view().await.unwrap();
        assert_eq!(view.given_up().count(), 0, "{:?}", view.given_up().collect::<Vec<_>>());
        ids.push(view.confirmed().clone());
    }
    assert!(ids.windows(2).all(|pair| pair[0] == pair[1]), "{ids:#?}");
    ids.remove(0).into_keys().map(|key| key.external_id).collect()
}

fn ids(expected: &[&str]) -> BTreeSet<String> {
    expected.iter().map(|id| (*id).into()).collect()
}

async fn no_canary(device: &Client, own: &str) {
    let view = device.view().await.unwrap();
    for (key, row) in view.list(&Query::table("tasks", "task")) {
        let title = row.values.get("title").and_then(Json::as_str).unwrap();
        assert!(title.starts_with(own), "{own} sees {key}: {title}");
        assert!(row.values.get("_shard").is_none());
    }
}

/// I-31, I-34, I-41: two tenants, two devices each, one of them offline for a while and restarted, one tenant moved to
/// another shard meanwhile: edits converge, cursors go on, and nothing of one tenant appears at the other.
#[tokio::test(flavor = "multi_thread")]
async fn devices_converge_while_their_tenant_moves() {
    let service = Service::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("laptop.db");
    let open = |path: &Path| SqliteStore::open(path).unwrap();
    let laptop = Client::open(open(&file), service.transport("acme"), Options::default()).await.unwrap();
    let phone = service.device("acme").await;
    let others = [service.device("globex").await, service.device("globex").await];

    add(&laptop, "acme", "one").await;
    add(&phone, "acme", "two").await;
    // The same ids at another tenant: they are other rows.
    add(&others[0], "globex", "one").await;
    add(&others[1], "globex", "secret").await;
    assert_eq!(converge(&[&laptop, &phone]).await, ids(&["one", "two"]));
    assert_eq!(converge(&[&others[0], &others[1]]).await, ids(&["one", "secret"]));

    laptop.go_offline().await.unwrap();
    add(&laptop, "acme", "offline").await;
    finish(&laptop, "two").await;
    add(&phone, "acme", "three").await;
    converge(&[&phone]).await;
    laptop.close().await.unwrap();

    let mut notices = phone.notices();
    let before = phone.view().await.unwrap().cursor().unwrap();
    let writing = async {
        for at in 0..20 {
            add(&phone, "acme", &format!("moving-{at:02}")).await;
            within("an outcome", phone.until(|replica| replica.unconfirmed() == 0)).await.unwrap();
        }
    };
    tokio::join!(service.move_tenant("acme"), writing);

    let laptop = Client::open(open(&file), service.transport("acme"), Options::default()).await.unwrap();
    assert!(laptop.view().await.unwrap().get(&key("offline")).is_some(), "kept while it was off");
    finish(&phone, "one").await;
    add(&others[0], "globex", "late").await;
    let there = converge(&[&laptop, &phone]).await;
    assert_eq!(there.len(), 24, "{there:?}");
    assert_eq!(converge(&[&others[0], &others[1]]).await, ids(&["one", "secret", "late"]));
    let view = phone.view().await.unwrap();
    for id in ["one", "two"] {
        assert_eq!(view.get(&key(id)).unwrap().values.get("done"), Some(&json!(true)), "{id}");
    }
    assert!(view.cursor().unwrap().version().get() >= before.version().get() + 22, "versions go on");
    drop(view);
    while let Ok(notice) = notices.try_recv() {
        let resync = matches!(notice, Notice::Health(Health { phase: Phase::Resyncing, .. }) | Notice::Wiped);
        assert!(!resync, "the move was noticed: {notice:?}");
    }
    for device in [&laptop, &phone] {
        no_canary(device, "acme").await;
    }
    for device in &others {
        no_canary(device, "globex").await;
    }
}

/// A device that comes to belong to another tenant shows nothing of the first, and sends nothing that was meant for it.
#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_changes_hands_is_wiped() {
    let service = Service::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tablet.db");
    let open = |path: &Path| SqliteStore::open(path).unwrap();
    let tablet = Client::open(open(&file), service.transport("acme"), Options::default()).await.unwrap();
    add(&tablet, "acme", "one").await;
    converge(&[&tablet]).await;
    tablet.go_offline().await.unwrap();
    add(&tablet, "acme", "private").await;
    tablet.close().await.unwrap();

    let other = service.device("globex").await;
    add(&other, "globex", "theirs").await;
    converge(&[&other]).await;
    let tablet = Client::open(open(&file), service.transport("globex"), Options::default()).await.unwrap();
    within("a new partition", tablet.until(|replica| replica.get(&key("theirs")).is_some())).await.unwrap();
    let view = tablet.view().await.unwrap();
    assert_eq!(view.list(&Query::table("tasks", "task")).len(), 1);
    let reasons: Vec<_> = view.given_up().map(|given_up| given_up.reason.clone()).collect();
    assert_eq!(reasons, [Reason::PartitionChanged(None)]);
    drop(view);
    assert_eq!(converge(&[&other]).await, ids(&["theirs"]));
}
