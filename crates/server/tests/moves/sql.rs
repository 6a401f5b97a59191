//! Moves by SQL, over any driver.

use crate::world::{SQLITE, World};
use tokio_postgres::Client;
use tokio_postgres::types::Type;

async fn code(client: &Client, sql: &str) -> String {
    match client.batch_execute(sql).await {
        Ok(()) => "00000".into(),
        Err(error) => error.code().map_or_else(|| error.to_string(), |code| code.code().to_string()),
    }
}

const COLUMNS: [(&str, Type); 19] = [
    ("id", Type::TEXT),
    ("source", Type::TEXT),
    ("target", Type::TEXT),
    ("what", Type::TEXT),
    ("phase", Type::TEXT),
    ("stage", Type::TEXT),
    ("backfill", Type::TEXT),
    ("tail", Type::TEXT),
    ("verification", Type::TEXT),
    ("rows_copied", Type::INT8),
    ("lag", Type::INT8),
    ("pause_ms", Type::FLOAT8),
    ("routing_version", Type::INT8),
    ("started", Type::TIMESTAMPTZ),
    ("updated", Type::TIMESTAMPTZ),
    ("error", Type::TEXT),
    ("rows_expected", Type::INT8),
    ("rows_per_second", Type::FLOAT8),
    ("eta_seconds", Type::FLOAT8),
];

#[tokio::test(flavor = "multi_thread")]
async fn plans_are_made_and_shown_with_types() {
    let world = World::start(SQLITE).await;
    let name = world.tenant_on("s0", "acme", 7).await;
    let made = world.admin.query_one(&format!("CREATE MOVE OF TENANTS ({name}) TO s1"), &[]).await.unwrap();
    let id: String = made.get("id");
    let plan: serde_json::Value = serde_json::from_str(&{
        let text = world.admin.simple_query(&format!("SHOW MOVE {id}")).await.unwrap();
        let row = text.iter().find_map(|message| match message {
            tokio_postgres::SimpleQueryMessage::Row(row) => row.get("plan").map(str::to_owned),
            _ => None,
        });
        row.unwrap()
    })
    .unwrap();
    assert_eq!((&plan["id"], &plan["sourceShard"]), (&id.as_str().into(), &"s0".into()));
    let later =
        world.admin.query_one("CREATE MOVE OF BUCKETS 'users/0' TO s1 WITH (description = 'x')", &[]).await.unwrap();
    let shown = world.admin.query("SHOW MOVES", &[]).await.unwrap();
    assert_eq!(
        [0, 1].map(|at| shown[at].get::<_, String>(0)),
        [later.get::<_, String>(0), id.clone()],
        "the newest first"
    );
    let columns: Vec<(&str, Type)> = shown[0].columns().iter().map(|c| (c.name(), c.type_().clone())).collect();
    assert_eq!(columns, COLUMNS);
    let waiting = &shown[1];
    assert_eq!(
        (waiting.get::<_, &str>(3), waiting.get::<_, &str>(4), waiting.get::<_, i64>(9)),
        (name.as_str(), "planning", 0)
    );
    assert_eq!((waiting.get::<_, Option<i64>>(10), waiting.get::<_, Option<f64>>(11)), (None, None));
    let rolled = world.admin.query_one(&format!("ALTER MOVE {id} ROLLBACK"), &[]).await.unwrap();
    assert_eq!(rolled.get::<_, &str>("phase"), "rolled_back");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plan_runs_by_itself_and_leaves_a_version() {
    let world = World::start(SQLITE).await;
    let name = world.tenant_on("s0", "acme", 7).await;
    let count = world.admin.query("SHOW ROUTING HISTORY", &[]).await.unwrap().len();
    let made =
        world.admin.query_one(&format!("CREATE MOVE OF TENANTS ({name}) TO s1 WITH (auto, complete)"), &[]).await;
    let id: String = made.unwrap().get("id");
    let plan = world.until_stage(&id, "done").await;
    assert_eq!(plan["phase"], "completed", "{plan}");
    let history = world.admin.query("SHOW ROUTING HISTORY", &[]).await.unwrap();
    assert_eq!(history.len(), count + 1);
    assert_eq!(history[0].get::<_, i64>("version"), plan["routingVersionCutover"].as_i64().unwrap());
    assert!(history[0].get::<_, &str>("description").contains(&id));
    assert_eq!(history[0].get::<_, &str>("changes"), format!("tenant {name}: s0 to s1"));
    let shown = world.admin.query_one(&format!("SHOW MOVE {id}"), &[]).await.unwrap();
    assert!(shown.get::<_, f64>("pause_ms") > 0.0);
    assert_eq!(shown.get::<_, i64>("rows_copied"), 7);
}

#[tokio::test(flavor = "multi_thread")]
async fn statements_about_moves_are_refused_by_their_codes() {
    let world = World::start(SQLITE).await;
    let name = world.tenant_on("s0", "acme", 1).await;
    for (sql, expected) in [
        ("ALTER MOVE m0 START".to_owned(), "42704"),
        ("SHOW MOVE m0".into(), "42704"),
        ("SHOW MOVE 'Not a name'".into(), "42704"),
        (format!("CREATE MOVE OF TENANTS ({name}) TO s0"), "22023"),
        (format!("CREATE MOVE OF TENANTS ({name}) TO s9"), "22023"),
        ("CREATE MOVE OF TENANTS (a".into(), "42601"),
        ("ALTER MOVE m0 JUMP".into(), "42601"),
        (format!("BEGIN; CREATE MOVE OF TENANTS ({name}) TO s1"), "25001"),
        ("BEGIN; ALTER MOVE m0 START".into(), "25001"),
        ("BEGIN; SHOW MOVES; SHOW ROUTING HISTORY; COMMIT".into(), "00000"),
        (format!("CREATE MOVE OF TENANTS ({name}) TO s1 WITH (dry_run); SHOW MOVES"), "00000"),
    ] {
        assert_eq!(code(&world.admin, &sql).await, expected, "{sql}");
        let _ = world.admin.batch_execute("ROLLBACK").await;
    }
    assert!(world.admin.query("SHOW MOVES", &[]).await.unwrap().is_empty());
    world.admin.batch_execute("CREATE USER bob PASSWORD 'two'").await.unwrap();
    let (_, rest) = world.server.url().split_once('@').unwrap();
    let bob = crate::harness::connect(&format!("postgres://bob:two@{rest}")).await;
    for sql in [
        "SHOW MOVES",
        "SHOW MOVE m0",
        "SHOW ROUTING HISTORY",
        "CREATE MOVE OF BUCKETS 'users/0' TO s1",
        "ALTER MOVE m0 RUN",
    ] {
        assert_eq!(code(&bob, sql).await, "42501", "{sql}");
    }
}
