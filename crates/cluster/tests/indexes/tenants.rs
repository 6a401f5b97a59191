//! Global indexes of tenant tables: what an administrator who reads all tenants is led by.

use super::World;
use super::failures::settle;
use super::harness::{Client, Db};
use super::jobs::damage_entry;
use super::leading::{asked, plan_of, wait_for_phase, work};
use isles_cluster::database::{Config, Strategy};
use isles_kernel::names::TenantId;

const TENANTS: usize = 12;

fn name(at: usize) -> String {
    format!("tenant{at}")
}

async fn client_of(db: &Db, tenant: &str) -> Client {
    let mut client = db.client();
    client.run(&format!("SET isles.tenant = '{tenant}'")).await;
    client
}

async fn administrator(db: &Db) -> Client {
    let mut client = db.client();
    client.run("SET isles.tenant_scope = 'all'").await;
    client
}

/// Tenants with notes, two of whose senders are everyone's.
async fn notes(db: &Db) {
    let mut client = db.client();
    client.run("CREATE TABLE notes (id int PRIMARY KEY, sender text, n int) WITH (kind = 'tenant')").await;
    for at in 0..TENANTS {
        let mut client = client_of(db, &name(at)).await;
        client
            .run(&format!("INSERT INTO notes VALUES (1, 'all', 0), (2, 'own{at}', 0), (3, 'third{}', 0)", at % 3))
            .await;
    }
}

async fn indexed(db: &Db) {
    notes(db).await;
    let mut client = db.client();
    client.run("CREATE INDEX notes_sender ON notes (sender) WITH (global)").await;
    client.run("WAIT FOR INDEX notes_sender").await;
}

/// Which rows have a sender, by the index, and they are those that all shards give.
async fn by_sender(admin: &mut Client, sender: &str) -> Vec<String> {
    let columns = "SELECT _tenant, id FROM notes WHERE";
    let mut led = admin.run(&format!("{columns} sender = '{sender}'")).await;
    let mut all = admin.run(&format!("{columns} sender || '' = '{sender}'")).await;
    led.sort();
    all.sort();
    assert_eq!(led, all, "{sender}");
    led
}

async fn senders(admin: &mut Client) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let names = (0..TENANTS).map(|at| format!("own{at}")).chain((0..3).map(|at| format!("third{at}")));
    for sender in names.chain(["all".into(), "nobody".into()]) {
        found.push(by_sender(admin, &sender).await);
    }
    found
}

async fn verified(db: &Db) -> Vec<String> {
    db.client().run("VERIFY INDEX notes_sender").await
}

/// I-24: a question by an index over all tenants goes to the shards that have the key, and gives what all shards give; a
/// tenant's own statements know nothing of it.
pub(crate) async fn an_index_over_all_tenants_leads_administrators(db: World) {
    indexed(&db).await;
    let mut admin = administrator(&db).await;
    let plan = admin.run("EXPLAIN SELECT * FROM notes WHERE sender = 'own3'").await.join("\n");
    assert!(plan.contains("Index: notes_sender (sender = 'own3')") && plan.contains("on shards 1"), "{plan}");
    assert_eq!(by_sender(&mut admin, "own3").await, ["tenant3|2"]);
    assert_eq!(by_sender(&mut admin, "all").await.len(), TENANTS);
    assert_eq!(by_sender(&mut admin, "third1").await.len(), TENANTS / 3);
    assert_eq!(by_sender(&mut admin, "nobody").await, Vec::<String>::new());
    settle(&db).await;
    for at in 0..TENANTS {
        let before = work(&db);
        let found = admin.run(&format!("SELECT _tenant FROM notes WHERE sender = 'own{at}'")).await;
        assert_eq!(found, [name(at)]);
        assert_eq!(asked(&before, &work(&db)), 1);
    }
    let found = admin.run("SELECT count(*) FROM notes WHERE sender IN ('own1', 'own2') OR sender LIKE 'third%'").await;
    assert_eq!(found, [(2 + TENANTS).to_string()]);
    let joined = "SELECT count(*) FROM notes a JOIN notes b ON b.sender = a.sender WHERE a._tenant = 'tenant4'";
    assert_eq!(admin.run(joined).await, [(TENANTS + 1 + TENANTS / 3).to_string()]);
    let mut client = client_of(&db, "tenant3").await;
    let plan = client.run("EXPLAIN SELECT * FROM notes WHERE sender = 'own3'").await.join("\n");
    assert!(!plan.contains("notes_sender"), "{plan}");
    assert_eq!(client.run("SELECT id FROM notes WHERE sender = 'own4'").await, Vec::<String>::new());
    assert_eq!(verified(&db).await, [format!("{}|0|0|0", entries(&db).await)]);
}

/// I-23, I-24: what tenants write is found at once, and is in the entries in the end.
pub(crate) async fn an_index_over_all_tenants_follows_what_tenants_write(db: World) {
    indexed(&db).await;
    let mut admin = administrator(&db).await;
    for at in 0..TENANTS {
        let mut client = client_of(&db, &name(at)).await;
        client.run(&format!("INSERT INTO notes VALUES (10, 'new{at}', 0)")).await;
        assert_eq!(by_sender(&mut admin, &format!("new{at}")).await, [format!("{}|10", name(at))]);
        client.run(&format!("UPDATE notes SET sender = 'changed{at}' WHERE id = 10")).await;
        assert_eq!(by_sender(&mut admin, &format!("new{at}")).await, Vec::<String>::new());
        assert_eq!(by_sender(&mut admin, &format!("changed{at}")).await.len(), 1);
        client.run("BEGIN").await;
        client.run("DELETE FROM notes WHERE id = 1").await;
        client.run("ROLLBACK").await;
        client.run("DELETE FROM notes WHERE id = 2").await;
        assert_eq!(by_sender(&mut admin, &format!("own{at}")).await, Vec::<String>::new());
    }
    assert_eq!(by_sender(&mut admin, "all").await.len(), TENANTS);
    settle(&db).await;
    assert_eq!(by_sender(&mut admin, "all").await.len(), TENANTS);
    assert_eq!(verified(&db).await, [format!("{}|0|0|0", entries(&db).await)]);
    let before = senders(&mut admin).await;
    drop(admin);
    let db = db.reopen().await;
    let mut admin = administrator(&db).await;
    assert_eq!(senders(&mut admin).await, before);
    db.client().run("WAIT FOR INDEX notes_sender").await;
    assert_eq!(senders(&mut admin).await, before);
    db.client().run("REINDEX INDEX notes_sender").await;
    db.client().run("WAIT FOR INDEX notes_sender").await;
    assert_eq!(senders(&mut admin).await, before);
    assert_eq!(verified(&db).await[0].split('|').skip(1).collect::<Vec<_>>(), ["0", "0", "0"]);
}

/// Waits until nothing of a move is left.
async fn until_done(client: &mut Client, plan: &str) {
    wait_for_phase(client, plan, "completed").await;
    while client.run(&format!("SHOW MOVE {plan}")).await[0].split('|').nth(5) != Some("done") {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
}

/// Different keys and buckets that have rows.
async fn entries(db: &Db) -> usize {
    let mut admin = administrator(db).await;
    let policy = db.database.current_routing();
    let rows = admin.run("SELECT _tenant, sender FROM notes").await;
    let place = |row: &String| {
        let (tenant, sender) = row.split_once('|').unwrap();
        (policy.bucket_of_tenant(&TenantId::new(tenant).unwrap()), sender.to_string())
    };
    rows.iter().map(place).collect::<std::collections::BTreeSet<_>>().len()
}

/// I-28: tenants that move, alone or with their bucket, are found where they are, and no entry changes; and those that are
/// dropped are not found any more.
pub(crate) async fn an_index_over_all_tenants_outlives_moves_and_tenants(db: World) {
    indexed(&db).await;
    settle(&db).await;
    let mut admin = administrator(&db).await;
    let before = senders(&mut admin).await;
    let compared = verified(&db).await;
    let mut operator = db.client();
    for at in 0..3 {
        let policy = db.database.current_routing();
        let from = policy.shard_of_tenant(&TenantId::new(name(at)).unwrap()).to_string();
        let to = if from == "s1" { "s2" } else { "s1" };
        let plan =
            plan_of(&mut operator, &format!("CREATE MOVE OF TENANTS ({}) TO {to} WITH (auto, complete)", name(at)))
                .await;
        for _ in 0..3 {
            assert_eq!(senders(&mut admin).await, before);
        }
        until_done(&mut operator, &plan).await;
        assert_eq!(senders(&mut admin).await, before);
    }
    assert_eq!(verified(&db).await, compared, "tenants of one bucket are on several shards");
    let bucket = db.database.current_routing().bucket_of_tenant(&TenantId::new(name(5)).unwrap());
    let from = db.database.current_routing().shard_of_tenant(&TenantId::new(name(5)).unwrap()).to_string();
    let to = if from == "s3" { "s0" } else { "s3" };
    let plan =
        plan_of(&mut operator, &format!("CREATE MOVE OF BUCKETS 'tenants/{bucket}' TO {to} WITH (auto, complete)"))
            .await;
    until_done(&mut operator, &plan).await;
    assert_eq!(senders(&mut admin).await, before);
    // Where tenants of one bucket are on several shards, a build counts all of them, and each once.
    operator.run("REINDEX INDEX notes_sender").await;
    operator.run("WAIT FOR INDEX notes_sender").await;
    assert_eq!(verified(&db).await, compared);
    for at in [0, 5] {
        client_of(&db, &name(at)).await.run("UPDATE notes SET sender = 'moved' WHERE id = 2").await;
    }
    assert_eq!(by_sender(&mut admin, "moved").await.len(), 2);
    for at in [0, 1, 5] {
        operator.run(&format!("DROP TENANT {}", name(at))).await;
    }
    assert_eq!(by_sender(&mut admin, "moved").await, Vec::<String>::new());
    assert_eq!(by_sender(&mut admin, "all").await.len(), TENANTS - 3);
    settle(&db).await;
    assert_eq!(by_sender(&mut admin, "all").await.len(), TENANTS - 3);
    assert_eq!(verified(&db).await[0].split('|').skip(1).collect::<Vec<_>>(), ["0", "0", "0"]);
}

/// What is wrong is found, told and put right, wherever the tenants of its bucket are.
pub(crate) async fn an_index_over_all_tenants_is_compared_and_repaired(db: World) {
    indexed(&db).await;
    settle(&db).await;
    let mut operator = db.client();
    let policy = db.database.current_routing();
    let tenant = TenantId::new(name(0)).unwrap();
    let to = if policy.shard_of_tenant(&tenant).as_str() == "s1" { "s2" } else { "s1" };
    let plan =
        plan_of(&mut operator, &format!("CREATE MOVE OF TENANTS ({tenant}) TO {to} WITH (auto, complete)")).await;
    until_done(&mut operator, &plan).await;
    let bucket = policy.bucket_of_tenant(&tenant);
    damage_entry(&db, "notes_sender", "own0", bucket, -1).await;
    damage_entry(&db, "notes_sender", "nobody", bucket, 2).await;
    assert_eq!(verified(&db).await[0].split('|').skip(1).collect::<Vec<_>>(), ["1", "1", "0"]);
    assert_eq!(operator.run("VERIFY INDEX notes_sender REPAIR").await[0].split('|').nth(3), Some("2"));
    assert_eq!(verified(&db).await[0].split('|').skip(1).collect::<Vec<_>>(), ["0", "0", "0"]);
    assert_eq!(by_sender(&mut administrator(&db).await, "own0").await.len(), 1);
}

/// I-41: what would tell a tenant of others, or lead nowhere, is refused.
pub(crate) async fn a_unique_index_over_all_tenants_is_refused(db: World) {
    notes(&db).await;
    let mut client = db.client();
    let error =
        client.try_run("CREATE UNIQUE INDEX u ON notes (sender) WITH (global)").await.expect_err("it is refused");
    assert!(error.sqlstate == "0A000" && error.hint.is_some_and(|hint| hint.contains("others")));
    client.run("CREATE UNIQUE INDEX u ON notes (sender)").await;
    let folder = tempfile::tempdir().unwrap();
    let config = Config { strategy: Some(Strategy::Adapter), ..Config::sqlite(folder.path(), 2) };
    let db = Db::open(folder, &config).await;
    let mut client = db.client();
    client.run("CREATE TABLE notes (id int PRIMARY KEY, sender text) WITH (kind = 'tenant')").await;
    assert_eq!(client.fails("CREATE INDEX i ON notes (sender) WITH (global)").await, "0A000");
    client.run("CREATE INDEX i ON notes (sender)").await;
}
