//! Moves where each tenant has a shard of its own.

use crate::shards::{add, until_drained};
use crate::world::{World, shard, tenants};
use isles_cluster::database::Strategy;
use isles_cluster::moves::Order;
use isles_cluster::moves::moves::{Event, Options, Phase, Stage};

/// The same engines, a shard for each tenant: `acme` has the first and `beta` the second, each with some rows.
async fn owned(world: World) -> World {
    let world = World::open_as(world.pair, Strategy::Adapter).await;
    for (name, rows) in [("acme", 30), ("beta", 5)] {
        let mut client = world.client_of(name).await;
        for n in 0..rows {
            client.run(&format!("INSERT INTO notes (id, body, slug) VALUES ({n}, 'of {name}', 'slug {n}')")).await;
            client.run(&format!("INSERT INTO tags VALUES ({n}, 'a')")).await;
        }
    }
    world
}

/// Each shard and the tenant that it is for.
async fn owners(world: &World) -> Vec<String> {
    let lines = world.db.client().run("SHOW SHARDS").await;
    let pair = |line: &String| {
        let parts: Vec<&str> = line.split('|').collect();
        format!("{} {}", parts[0], parts[3])
    };
    lines.iter().map(pair).collect()
}

async fn refusal(world: &World, target: usize, names: &[&str]) -> &'static str {
    let order = Order { target: shard(target), ..world.order(tenants(names), Options::default()) };
    world.database().plan_move(order).await.unwrap_err().sqlstate
}

/// I-44: a tenant goes alone, to a shard that no other has had, and both shards stay its own: there and back, and after a
/// restart.
pub(crate) async fn a_tenant_goes_to_a_shard_that_nobody_has_had(world: World) {
    let world = owned(world).await;
    let (acme, beta) = (world.rows_of("acme").await, world.rows_of("beta").await);
    assert_eq!(refusal(&world, 1, &["acme"]).await, "55000", "it is beta's");
    assert_eq!(add(&world).await, shard(2));
    assert_eq!(refusal(&world, 2, &["acme", "beta"]).await, "22023", "it would have two");
    assert_eq!(refusal(&world, 2, &["late"]).await, "22023", "it has no shard");
    let mut client = world.client_of("acme").await;
    let plan = world.move_to(2, tenants(&["acme"])).await;
    assert_eq!((plan.phase, plan.backfill.total_rows_copied), (Phase::Completed, 60));
    assert_eq!(owners(&world).await, ["s0 acme", "s1 beta", "s2 acme"]);
    assert_eq!((world.shard_of("acme").await.as_str(), world.rows_of("acme").await), ("s2", acme.clone()));
    client.run("UPDATE notes SET n = 1 WHERE id = 1").await;
    assert_eq!(client.run("SELECT count(*) FROM users").await, ["0"], "other tables are read on all shards");
    // Nobody gets the shard that it is leaving, and the other tenant does not come to the one that it has.
    let mut late = world.client_of("late").await;
    assert_eq!(late.fails("SELECT count(*) FROM notes").await, "53000");
    assert_eq!(refusal(&world, 0, &["beta"]).await, "55000");
    world.command(&plan, Event::Rollback).await.unwrap();
    assert_eq!(world.until_stage(&plan, Stage::Done).await.phase, Phase::RolledBack);
    assert_eq!((world.shard_of("acme").await.as_str(), world.stored_on(2, "notes").await), ("s0", 0));
    assert_eq!(client.run("SELECT n FROM notes WHERE id = 1").await, ["1"], "what was written there is here");
    assert_eq!(refusal(&world, 2, &["beta"]).await, "55000", "it has been acme's");
    world.move_wholly(2, tenants(&["acme"])).await;
    assert_eq!((world.stored_on(0, "notes").await, world.stored_on(2, "notes").await), (0, 30));
    client.run("UPDATE notes SET n = 0 WHERE id = 1").await;
    drop((client, late));
    let world = world.restart().await;
    assert_eq!(owners(&world).await, ["s0 acme", "s1 beta", "s2 acme"]);
    assert_eq!((world.rows_of("acme").await, world.rows_of("beta").await), (acme.clone(), beta.clone()));
    world.move_wholly(0, tenants(&["acme"])).await;
    assert_eq!((world.shard_of("acme").await.as_str(), world.rows_of("acme").await), ("s0", acme));
    let mut beta_client = world.client_of("beta").await;
    assert_eq!(beta_client.run("SELECT count(*) FROM notes WHERE body <> 'of beta'").await, ["0"]);
    assert_eq!(world.rows_of("beta").await, beta);
}

/// I-44: a drain waits for a shard that its tenant can have, takes everything else along, and the shard goes.
pub(crate) async fn a_shard_of_one_tenant_is_drained_and_goes(world: World) {
    let world = owned(world).await;
    let mut client = world.db.client();
    client.run("INSERT INTO users SELECT n, 'u' FROM generate_series(1, 100) n").await;
    client.run("CREATE TABLE settings (id int PRIMARY KEY) WITH (kind = 'global')").await;
    client.run("INSERT INTO settings VALUES (1)").await;
    let acme = world.rows_of("acme").await;
    let nowhere = world.database().drain_shard(&shard(0), vec![]).await.unwrap_err();
    assert_eq!((nowhere.sqlstate, nowhere.hint.is_some()), ("53000", true), "{nowhere:?}");
    add(&world).await;
    world.database().drain_shard(&shard(0), vec![]).await.unwrap();
    let mut tenant = world.client_of("acme").await;
    tenant.run("UPDATE notes SET n = n + 1").await;
    until_drained(&world, &shard(0)).await;
    tenant.run("UPDATE notes SET n = n - 1").await;
    assert_eq!(world.shard_of("acme").await, "s2");
    world.database().remove_shard(&shard(0)).await.unwrap();
    drop((client, tenant));
    let world = world.restart().await;
    assert_eq!(owners(&world).await, ["s1 beta", "s2 acme"]);
    assert_eq!(world.rows_of("acme").await, acme);
    let mut client = world.db.client();
    assert_eq!(client.run("SELECT (SELECT count(*) FROM users), (SELECT count(*) FROM settings)").await, ["100|1"]);
    let mut late = world.client_of("late").await;
    assert_eq!(late.fails("INSERT INTO notes (id) VALUES (1)").await, "53000");
    add(&world).await;
    late.run("INSERT INTO notes (id) VALUES (1)").await;
    assert_eq!(owners(&world).await, ["s1 beta", "s2 acme", "s3 late"]);
}
