//! Migrations that do not come to the end they were meant to, and what holds while they are under way.

use crate::world::{BY_OWNER, World, shard};
use isles_cluster::migrations::{MigrationInfo, Phase, Planted, State};
use isles_cluster::moves::Order;
use isles_cluster::moves::moves::{Options, Units};
use isles_kernel::error::SqlError;
use isles_kernel::names::TenantId;
use tokio::task::JoinHandle;

/// Begins a migration that follows its table, and does not go on.
async fn following(world: World) -> (World, JoinHandle<Result<Vec<String>, SqlError>>) {
    let world = world.reopen(Some(Planted::NeverSwap)).await;
    let running = world.begin(BY_OWNER);
    let is_following =
        |info: &MigrationInfo| info.progress.as_ref().and_then(|known| known.phase) == Some(Phase::Following);
    world.until("the copy", is_following).await;
    (world, running)
}

/// I-72
pub(crate) async fn a_cancelled_migration_leaves_no_trace(world: World) {
    let before = world.with_notes(1_200).await.run("SELECT id, owner, body FROM notes ORDER BY id").await;
    let (world, running) = following(world).await;
    let mut client = world.client();
    let shown = client.run("SHOW MIGRATIONS").await;
    assert!(shown[0].starts_with("notes|owner|copying|following|1200|1200|∅|"), "{shown:?}");
    client.run("INSERT INTO notes VALUES (5000, 'tenant 1', 'meanwhile')").await;
    assert_eq!(client.run("CANCEL MIGRATION notes").await, ["CANCEL MIGRATION"]);
    let error = running.await.unwrap().expect_err("it was cancelled");
    assert_eq!((error.sqlstate, error.message.as_str()), ("57014", "the migration was cancelled"));
    assert_eq!(world.until_over().await, State::Cancelled);
    assert_eq!(world.traces().await, Vec::<String>::new());
    let mut wanted = before;
    wanted.push("5000|tenant 1|meanwhile".into());
    assert_eq!(client.run("SELECT id, owner, body FROM notes ORDER BY id").await, wanted);
    assert_eq!(client.fails("CANCEL MIGRATION notes").await, "42704");
    // It can be begun again.
    world.database().plant_migration(None);
    client.run(BY_OWNER).await;
    assert_eq!(world.until_over().await, State::Done);
    let mut one = world.client_of("tenant 1").await;
    assert_eq!(one.run("SELECT count(*) FROM notes").await, ["301"]);
}

/// I-71, I-72
pub(crate) async fn an_invalid_tenant_that_appears_meanwhile_ends_it(world: World) {
    world.with_notes(40).await;
    let (world, running) = following(world).await;
    let mut client = world.client();
    client.run("INSERT INTO notes VALUES (77, 'tenant 1', 'good')").await;
    client.run("UPDATE notes SET owner = '' WHERE id = 6").await;
    let error = running.await.unwrap().expect_err("a row has no tenant");
    let message = "a row of table \"notes\" cannot be given to a tenant";
    assert_eq!((error.sqlstate, error.message.as_str()), ("23514", message));
    assert_eq!(error.detail.as_deref(), Some("the tenant's name is empty: Key (id)=(6)"));
    assert_eq!(world.until_over().await, State::Failed);
    let shown = client.run("SHOW MIGRATIONS").await;
    assert!(shown[0].starts_with("notes|owner|failed|") && shown[0].contains("Key (id)=(6)"), "{shown:?}");
    assert_eq!(world.traces().await, Vec::<String>::new());
    assert_eq!(client.run("SELECT count(*), count(owner) FROM notes").await, ["41|31"]);
    let both = client.run("SELECT owner, body FROM notes WHERE id IN (6, 77) ORDER BY id").await;
    assert_eq!(both, ["|note 6", "tenant 1|good"]);
    client.run("UPDATE notes SET owner = 'tenant 9' WHERE id = 6").await;
    world.database().plant_migration(None);
    client.run(BY_OWNER).await;
    assert_eq!(world.until_over().await, State::Done);
    let mut nine = world.client_of("tenant 9").await;
    assert_eq!(nine.run("SELECT id, body FROM notes").await, ["6|note 6"]);
}

/// I-17
pub(crate) async fn meanwhile_the_table_keeps_its_shape_and_its_shards(world: World) {
    let mut client = world.with_notes(40).await;
    client.run("CREATE INDEX notes_body ON notes (body)").await;
    client.run("CREATE TABLE others (id bigint PRIMARY KEY)").await;
    drop(client);
    let (world, running) = following(world).await;
    let mut client = world.client();
    for sql in [
        "ALTER TABLE notes ADD COLUMN more text",
        "CREATE INDEX notes_owner ON notes (owner)",
        "DROP INDEX notes_body",
        "ALTER TABLE notes RENAME TO letters",
        "CREATE TABLE tags (note bigint REFERENCES notes (id) PRIMARY KEY)",
        "DROP TABLE notes",
        BY_OWNER,
    ] {
        assert_eq!(client.fails(sql).await, "55006", "{sql}");
    }
    client.run("ALTER TABLE others ADD COLUMN more text").await;
    // Nobody can name the copy, nor count its rows.
    assert_eq!(client.run("SHOW TABLES").await.len(), 2);
    assert_eq!(client.run("SHOW TENANTS").await, Vec::<String>::new());
    let copy = world.migration().await.unwrap().migration.copy.replace('.', ".\"") + "\"";
    assert_eq!(client.fails(&format!("SELECT * FROM {copy}")).await, "42P01");
    assert_eq!(client.fails(&format!("DROP TABLE {copy}")).await, "3F000");
    let schemas = "SELECT count(*) FROM information_schema.tables WHERE table_schema LIKE '\\_isles%'";
    assert_eq!(client.run(schemas).await, ["0"]);
    // Rows and tenants stay where they are.
    let home = world.database().current_routing().shard_of_tenant(&TenantId::new("tenant 1").unwrap()).clone();
    let target = if home == shard(0) { shard(1) } else { shard(0) };
    let units = Units::tenants([TenantId::new("tenant 1").unwrap()]);
    let order = Order { source: None, target, units, description: None, options: Options::default() };
    assert_eq!(world.database().plan_move(order.clone()).await.expect_err("they stay").sqlstate, "55006");
    world.database().plant_migration(None);
    running.await.unwrap().unwrap();
    assert_eq!(world.until_over().await, State::Done);
    world.database().plan_move(order).await.expect("afterwards they may go");
}

/// I-66: a swap waits for a transaction that does not end, but lets others go on meanwhile.
pub(crate) async fn a_long_transaction_delays_the_swap_and_not_others(world: World) {
    world.with_notes(40).await;
    let (world, running) = following(world).await;
    let (mut holding, mut client) = (world.client(), world.client());
    holding.run("BEGIN").await;
    holding.run("SELECT count(*) FROM notes").await;
    world.database().plant_migration(None);
    world.until("the wait", |info| info.progress.as_ref().is_some_and(|known| known.waits.is_some())).await;
    let began = std::time::Instant::now();
    for id in 100..120 {
        client.run(&format!("INSERT INTO notes VALUES ({id}, 'tenant 1', 'meanwhile')")).await;
    }
    assert!(began.elapsed() < std::time::Duration::from_secs(20), "others wait for {:?}", began.elapsed());
    holding.run("COMMIT").await;
    running.await.unwrap().unwrap();
    let mut one = world.client_of("tenant 1").await;
    assert_eq!(one.run("SELECT count(*) FROM notes").await, ["30"]);
}

/// I-72
pub(crate) async fn a_statement_that_is_cancelled_leaves_the_migration_going(world: World) {
    world.with_notes(40).await;
    let world = world.reopen(Some(Planted::NeverSwap)).await;
    let mut impatient = world.client();
    impatient.run("SET statement_timeout = '5s'").await;
    let error = impatient.try_run(BY_OWNER).await.expect_err("it takes longer");
    assert_eq!(error.sqlstate, "57014");
    assert_eq!(error.detail.as_deref(), Some("the migration goes on without this statement"));
    assert_eq!(world.migration().await.unwrap().migration.state, State::Copying);
    world.database().plant_migration(None);
    assert_eq!(world.until_over().await, State::Done);
    assert_eq!(impatient.fails("SELECT count(*) FROM notes").await, "55000");
}
