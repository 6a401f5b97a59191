//! An administrator's questions over all tenants while tenants move: each row is there once, at every stage.

use crate::world::{World, buckets, tenants};
use isles_cluster::moves::moves::{Event, Options, Stage};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const QUESTIONS: [&str; 5] = [
    "SELECT count(*), count(DISTINCT _tenant || '/' || id) FROM notes",
    "SELECT count(*) FROM notes n JOIN tags t ON t._tenant = n._tenant AND t.note = n.id",
    "SELECT count(*) FROM notes n FULL JOIN tags t ON t._tenant = n._tenant AND t.note = n.id AND t.tag = 'a'",
    "SELECT _tenant, count(*) FROM notes GROUP BY _tenant ORDER BY _tenant COLLATE \"C\"",
    "SELECT count(*) FROM notes WHERE slug = 'slug 1'",
];

async fn answers(world: &World) -> Vec<Vec<String>> {
    let mut client = world.db.client();
    client.run("SET isles.tenant_scope = 'all'").await;
    let mut all = Vec::new();
    for level in ["READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"] {
        for sql in QUESTIONS {
            client.run(&format!("BEGIN ISOLATION LEVEL {level}")).await;
            all.push(client.run(sql).await);
            client.run("COMMIT").await;
        }
    }
    for sql in QUESTIONS {
        all.push(client.run(sql).await);
    }
    all
}

/// Some tenants on each shard.
async fn peopled(world: &World) -> (String, String) {
    let one = world.tenant_with_rows("acme", 6).await;
    let other = world.tenant_with_rows("borealis", 4).await;
    let third = world.tenant_on(1, "cirrus").await;
    let mut client = world.client_of(&third).await;
    client.run("INSERT INTO notes (id, slug) SELECT g, 'slug ' || g FROM generate_series(1, 5) g").await;
    client.run("INSERT INTO tags VALUES (1, 'a'), (2, 'b')").await;
    (one, other)
}

/// I-11: a tenant that moves, alone or with its bucket, is there once before, during and after, also when it goes back.
pub(crate) async fn all_tenants_are_read_once_at_every_stage(world: World) {
    let (name, other) = peopled(&world).await;
    let before = answers(&world).await;
    assert_eq!(before[0], ["15|15"]);
    let bucket = world.bucket_of(&other).0;
    for units in [tenants(&[&name]), buckets("tenants", bucket, bucket)] {
        let plan = world.plan(units, Options::default()).await.unwrap();
        world.command(&plan, Event::StartDualWrite).await.unwrap();
        world.until_stage(&plan, Stage::Capturing).await;
        assert_eq!(answers(&world).await, before, "captured");
        world.command(&plan, Event::RunBackfill).await.unwrap();
        world.until_stage(&plan, Stage::Ready).await;
        assert_eq!(answers(&world).await, before, "copied");
        world.database().run_move(plan.id.as_str(), false).await.unwrap();
        world.until_stage(&plan, Stage::Guarding).await;
        assert_eq!(answers(&world).await, before, "served by the target, and the source has its rows still");
        world.command(&plan, Event::Rollback).await.unwrap();
        world.until(&plan, "the end", |plan| !plan.is_active()).await;
        assert_eq!(answers(&world).await, before, "back again");
    }
    world.move_wholly(1, tenants(&[&name])).await;
    assert_eq!(answers(&world).await, before, "pinned elsewhere");
    assert_eq!(world.shard_of(&name).await, "s1");
    // Its bucket goes elsewhere, and it does not go with it.
    let bucket = world.bucket_of(&name).0;
    world.move_wholly(1, buckets("tenants", bucket, bucket)).await;
    assert_eq!(answers(&world).await, before);
    let world = world.restart().await;
    assert_eq!(answers(&world).await, before, "after a restart");
    world.move_wholly(0, tenants(&[&name])).await;
    assert_eq!(answers(&world).await, before);
    world.client_of(&name).await.run("DELETE FROM tags").await;
    world.db.client().run(&format!("DROP TENANT \"{name}\"")).await;
    let mut client = world.db.client();
    client.run("SET isles.tenant_scope = 'all'").await;
    assert_eq!(client.run("SELECT count(*) FROM notes").await, ["9"], "a tenant that is dropped is in no answer");
}

/// I-9, I-11: while a tenant goes to and fro, nobody who reads all tenants sees it twice, or not at all, or an error.
pub(crate) async fn all_tenants_are_read_once_while_one_goes_to_and_fro(world: World) {
    let (name, _) = peopled(&world).await;
    let (ends, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut readers = Vec::new();
    for sql in ["SELECT count(*), count(DISTINCT _tenant || '/' || id) FROM notes", "SELECT count(*), 15 FROM notes"] {
        let (mut client, ends, asked) = (world.db.client(), ends.clone(), asked.clone());
        client.run("SET isles.tenant_scope = 'all'").await;
        readers.push(tokio::spawn(async move {
            while !ends.load(Ordering::SeqCst) {
                assert_eq!(client.run(sql).await, ["15|15"]);
                asked.fetch_add(1, Ordering::SeqCst);
            }
        }));
    }
    for round in 0..3 {
        world.move_wholly(1 - round % 2, tenants(&[&name])).await;
    }
    ends.store(true, Ordering::SeqCst);
    for reader in readers {
        reader.await.unwrap();
    }
    assert!(asked.load(Ordering::SeqCst) > 10, "hardly anything was asked");
}
