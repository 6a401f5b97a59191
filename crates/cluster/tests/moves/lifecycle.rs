//! What a move does, step by step.

use crate::world::{World, buckets, by_itself, tenants};
use isles_cluster::moves::Planted;
use isles_cluster::moves::moves::{
    BackfillStatus, Event, Options, Phase, Stage, TailStatus, Units, VerificationStatus,
};
use isles_kernel::names::{BucketId, GroupName};

/// The whole way: rows are copied, equal, served by the target, and gone from the source.
pub(crate) async fn a_tenant_goes_and_its_rows_are_there(world: World) {
    let name = world.tenant_with_rows("acme", 30).await;
    let other = world.tenant_with_rows("other", 5).await;
    let (before, others) = (world.rows_of(&name).await, world.rows_of(&other).await);
    let version = world.version();
    let plan = world.move_to(1, tenants(&[&name])).await;
    assert_eq!((plan.phase, plan.backfill.status), (Phase::Completed, BackfillStatus::Completed));
    assert_eq!(plan.verification.status, VerificationStatus::Passed);
    assert_eq!(plan.backfill.total_rows_copied, 90);
    assert_eq!(plan.routing_version_cutover.unwrap().0, version + 1);
    assert_eq!(world.shard_of(&name).await, "s1");
    assert_eq!(world.rows_of(&name).await, before);
    world.command(&plan, Event::Complete).await.unwrap();
    let plan = world.until_stage(&plan, Stage::Done).await;
    assert_eq!(plan.phase, Phase::Completed);
    assert_eq!((world.rows_of(&name).await, world.rows_of(&other).await), (before, others));
    assert_eq!((world.stored_on(0, "notes").await, world.stored_on(1, "notes").await), (5, 30));
    let world = world.restart().await;
    assert_eq!(world.rows_of(&name).await.len(), 90);
}

/// W5b: a plan that has only been made changes nothing anywhere.
pub(crate) async fn no_effect_in_planning(world: World) {
    let name = world.tenant_with_rows("acme", 3).await;
    let version = world.version();
    let plan = world.plan(tenants(&[&name]), Options::default()).await.unwrap();
    world.client_of(&name).await.run("UPDATE notes SET n = n + 1").await;
    assert_eq!(world.stored_on(1, "notes").await, 0);
    assert_eq!(world.consumers_on(0).await, 0, "nothing is captured");
    assert_eq!(world.version(), version);
    let plan = world.command(&plan, Event::Rollback).await.unwrap();
    assert_eq!((plan.phase, plan.stage), (Phase::RolledBack, Stage::Done));
}

/// The runbook: each step by its command, each phase as it is named there.
pub(crate) async fn each_step_by_its_command(world: World) {
    let name = world.tenant_with_rows("acme", 10).await;
    let plan = world.plan(tenants(&[&name]), Options::default()).await.unwrap();
    assert_eq!((plan.phase, plan.tail.status), (Phase::Planning, TailStatus::Pending));
    let plan = world.command(&plan, Event::StartDualWrite).await.unwrap();
    assert_eq!(plan.phase, Phase::DualWrite);
    let plan = world.until_stage(&plan, Stage::Capturing).await;
    world.client_of(&name).await.run("INSERT INTO notes (id) VALUES (100)").await;
    let plan = world.command(&plan, Event::RunBackfill).await.unwrap();
    assert_eq!((plan.phase, plan.backfill.status), (Phase::Backfill, BackfillStatus::Running));
    let plan = world.until_stage(&plan, Stage::Ready).await;
    assert_eq!((plan.phase, plan.tail.status), (Phase::CutoverPending, TailStatus::CaughtUp));
    assert_eq!(world.command(&plan, Event::Cutover).await.unwrap_err().sqlstate, "55000", "it is not verified");
    world.command(&plan, Event::Verify { repair: false }).await.unwrap();
    let plan = world.until(&plan, "verification", |p| p.verification.status == VerificationStatus::Passed).await;
    assert_eq!(plan.verification.rows_compared, 31);
    world.command(&plan, Event::Cutover).await.unwrap();
    let plan = world.until_stage(&plan, Stage::Guarding).await;
    assert_eq!(plan.phase, Phase::Completed);
    assert!(plan.cutover.pause_micros.is_some_and(|pause| pause > 0));
    assert_eq!(world.rows_of(&name).await.len(), 31);
}

/// W3: what the target has of others is untouched, also where keys are the same.
pub(crate) async fn move_into_populated_shard_keeps_others(world: World) {
    let name = world.tenant_with_rows("acme", 10).await;
    let resident = world.tenant_on(1, "resident").await;
    world.client_of(&resident).await.run("INSERT INTO notes (id, body, slug) VALUES (1, 'mine', 'slug 1')").await;
    let before = (world.rows_of(&name).await, world.rows_of(&resident).await);
    world.move_wholly(1, tenants(&[&name])).await;
    assert_eq!((world.rows_of(&name).await, world.rows_of(&resident).await), before);
}

/// I-11, I-21: whole tables read the same before, during and after, and rows that are not a shard's own are not touched.
pub(crate) async fn buckets_go_and_whole_tables_read_the_same(world: World) {
    let mut client = world.db.client();
    for n in 0..200 {
        client.run(&format!("INSERT INTO users VALUES ({n}, 'user {n}', {n})")).await;
    }
    let all = "SELECT count(*), sum(n), min(name), max(name) FROM users";
    let before = client.run(all).await;
    let (left, right) = (world.stored_on(0, "users").await, world.stored_on(1, "users").await);
    assert_eq!(left + right, 200);
    let plan = world.plan(buckets("users", 0, 3), Options { complete: false, ..by_itself() }).await.unwrap();
    loop {
        assert_eq!(client.run(all).await, before);
        let now = world.database().move_plan(plan.id.as_str()).await.unwrap();
        if now.stage == Stage::Guarding {
            break;
        }
        assert!(now.is_active(), "{now:?}");
    }
    assert_eq!(client.run(all).await, before);
    assert_eq!(world.stored_on(0, "users").await, left, "the source keeps its rows for a while");
    assert!(world.stored_on(1, "users").await > right);
    assert_eq!(client.run("UPDATE users SET n = n + 1").await, ["UPDATE 200"]);
    assert_eq!(client.run("DELETE FROM users WHERE n > 100").await, ["DELETE 100"]);
    let after = client.run(all).await;
    world.command(&plan, Event::Complete).await.unwrap();
    world.until_stage(&plan, Stage::Done).await;
    assert_eq!(client.run(all).await, after);
    assert_eq!(world.stored_on(0, "users").await + world.stored_on(1, "users").await, 100);
}

/// A bucket of tenants takes them all along, also those that nobody knew when the move began.
pub(crate) async fn tenants_go_with_their_bucket(world: World) {
    let names: Vec<String> = {
        let mut names = Vec::new();
        for prefix in ["a", "b", "c", "d", "e"] {
            names.push(world.tenant_with_rows(prefix, 2).await);
        }
        names
    };
    let group = GroupName::new("tenants").unwrap();
    let spans: Vec<BucketId> = names.iter().map(|name| world.bucket_of(name)).collect();
    let late = {
        let candidates = (0..10_000).map(|n| format!("late{n}"));
        candidates.into_iter().find(|name| spans.contains(&world.bucket_of(name))).unwrap()
    };
    let units = Units::buckets(group, spans.iter().map(|bucket| isles_cluster::moves::moves::Span::one(*bucket)));
    let mut before = Vec::new();
    for name in &names {
        before.push(world.rows_of(name).await);
    }
    let plan = world.plan(units, Options::default()).await.unwrap();
    world.command(&plan, Event::StartDualWrite).await.unwrap();
    let plan = world.until_stage(&plan, Stage::Capturing).await;
    world.client_of(&late).await.run("INSERT INTO notes (id, body) VALUES (1, 'late')").await;
    world.database().run_move(plan.id.as_str(), true).await.unwrap();
    let plan = world.until_stage(&plan, Stage::Done).await;
    assert_eq!(plan.phase, Phase::Completed, "{plan:?}");
    for (name, rows) in names.iter().zip(before) {
        assert_eq!((world.shard_of(name).await.as_str(), world.rows_of(name).await), ("s1", rows));
    }
    assert_eq!(world.rows_of(&late).await, ["1|late|0|∅"]);
    assert_eq!(world.stored_on(0, "notes").await, 0);
}

/// I-12: (W7) undoing a move before the cutover touches neither routing nor source, and nothing of other plans.
pub(crate) async fn rollback_is_local_and_append_only(world: World) {
    let name = world.tenant_with_rows("acme", 10).await;
    let other = world.tenant_with_rows("other", 10).await;
    let moved = world.move_to(1, tenants(&[&other])).await;
    let (before, version) = (world.rows_of(&name).await, world.version());
    for stage in [Stage::Capturing, Stage::Ready] {
        let plan = world.plan(tenants(&[&name]), Options::default()).await.unwrap();
        world.command(&plan, Event::StartDualWrite).await.unwrap();
        world.until_stage(&plan, Stage::Capturing).await;
        if stage == Stage::Ready {
            world.command(&plan, Event::RunBackfill).await.unwrap();
            world.until_stage(&plan, Stage::Ready).await;
        }
        world.command(&plan, Event::Rollback).await.unwrap();
        let plan = world.until_stage(&plan, Stage::Done).await;
        assert_eq!((plan.phase, plan.backfill.status), (Phase::RolledBack, BackfillStatus::Pending));
        assert_eq!(world.stored_on(1, "notes").await, 10, "of the other tenant");
    }
    assert_eq!((world.rows_of(&name).await, world.version()), (before, version));
    assert_eq!(world.shard_of(&other).await, "s1");
    let history = world.database().routing_history(10).await.unwrap();
    assert_eq!(history[0].version.0, version);
    assert!(history[0].description.contains(moved.id.as_str()), "{history:?}");
}

/// W8: what was written after the cutover is there after a rollback, with a routing version of its own.
pub(crate) async fn rollback_after_cutover_keeps_writes(world: World) {
    let name = world.tenant_with_rows("acme", 10).await;
    let plan = world.move_to(1, tenants(&[&name])).await;
    let mut client = world.client_of(&name).await;
    client.run("INSERT INTO notes (id, body) VALUES (100, 'after')").await;
    client.run("UPDATE notes SET n = 7 WHERE id = 3").await;
    client.run("DELETE FROM notes WHERE id = 4").await;
    let before = world.rows_of(&name).await;
    let version = world.version();
    world.command(&plan, Event::Rollback).await.unwrap();
    let plan = world.until_stage(&plan, Stage::Done).await;
    assert_eq!((plan.phase, plan.rollback_version.unwrap().0), (Phase::RolledBack, version + 1));
    assert_eq!((world.shard_of(&name).await.as_str(), world.rows_of(&name).await), ("s0", before));
    assert_eq!(world.stored_on(1, "notes").await, 0);
    client.run("UPDATE notes SET n = n + 1").await;
}

/// W8: a move that was undone is made again from the beginning.
pub(crate) async fn rerun_recopies(world: World) {
    let name = world.tenant_with_rows("acme", 10).await;
    let plan = world.plan(tenants(&[&name]), Options::default()).await.unwrap();
    world.command(&plan, Event::StartDualWrite).await.unwrap();
    world.until_stage(&plan, Stage::Capturing).await;
    world.command(&plan, Event::RunBackfill).await.unwrap();
    world.until_stage(&plan, Stage::Ready).await;
    world.command(&plan, Event::Rollback).await.unwrap();
    world.until_stage(&plan, Stage::Done).await;
    world.client_of(&name).await.run("DELETE FROM notes WHERE id < 5").await;
    let before = world.rows_of(&name).await;
    let plan = world.move_wholly(1, tenants(&[&name])).await;
    assert_eq!(plan.backfill.total_rows_copied, 15);
    assert_eq!(world.rows_of(&name).await, before);
}

/// W9: a table that is placed by another column than its key is copied, too.
pub(crate) async fn shard_by_other_column_copied(world: World) {
    let mut client = world.db.client();
    client
        .run(
            "CREATE TABLE orders (id bigint, customer text, PRIMARY KEY (id, customer)) \
                WITH (kind = 'hash', shard_by = 'customer', \"group\" = 'orders', buckets = 8)",
        )
        .await;
    for n in 0..60 {
        client.run(&format!("INSERT INTO orders VALUES ({n}, 'c{}')", n % 7)).await;
    }
    let all = "SELECT id, customer FROM orders ORDER BY id";
    let before = client.run(all).await;
    world.move_wholly(1, buckets("orders", 0, 3)).await;
    assert_eq!(client.run(all).await, before);
    assert_eq!((world.stored_on(0, "orders").await, world.stored_on(1, "orders").await), (0, 60));
}

/// I-18: moving there and back some times leaves everything as it was.
pub(crate) async fn there_and_back_again(world: World) {
    let name = world.tenant_with_rows("acme", 10).await;
    let mut client = world.db.client();
    for n in 0..50 {
        client.run(&format!("INSERT INTO users VALUES ({n}, 'user {n}')")).await;
    }
    let all = "SELECT * FROM users ORDER BY id";
    let (before, users) = (world.rows_of(&name).await, client.run(all).await);
    for round in 0..3 {
        let target = 1 - round % 2;
        world.move_wholly(target, tenants(&[&name])).await;
        world.move_wholly(target, buckets("users", 2, 5)).await;
        assert_eq!((world.rows_of(&name).await, client.run(all).await), (before.clone(), users.clone()));
        assert_eq!(world.shard_of(&name).await, format!("s{target}"));
    }
}

/// Planted bug 5: a deleted row that stays with the target is a difference, and the cutover does not come.
pub(crate) async fn a_mirror_that_forgets_deletes_is_found_out(world: World) {
    let name = world.tenant_with_rows("acme", 10).await;
    let world = world.reopen_with(|config| config.planted_move = Some(Planted::IgnoreDeletes)).await;
    let plan = world.plan(tenants(&[&name]), Options::default()).await.unwrap();
    world.command(&plan, Event::StartDualWrite).await.unwrap();
    world.until_stage(&plan, Stage::Capturing).await;
    world.command(&plan, Event::RunBackfill).await.unwrap();
    world.until_stage(&plan, Stage::Ready).await;
    world.client_of(&name).await.run("DELETE FROM notes WHERE id < 3").await;
    world.database().run_move(plan.id.as_str(), false).await.unwrap();
    let plan = world.until(&plan, "a verdict", |p| p.verification.status == VerificationStatus::Failed).await;
    assert_eq!((plan.stage, plan.verification.differing), (Stage::Ready, 9), "three notes and their six tags");
    assert!(plan.verification.differences.iter().all(|found| found.what == "extra"));
}

/// A row that is not the same on both sides stops the cutover, is named, and is made equal on request.
pub(crate) async fn a_difference_is_found_and_repaired(world: World) {
    let name = world.tenant_with_rows("acme", 10).await;
    let plan = world.plan(tenants(&[&name]), Options::default()).await.unwrap();
    world.command(&plan, Event::StartDualWrite).await.unwrap();
    world.until_stage(&plan, Stage::Capturing).await;
    world.command(&plan, Event::RunBackfill).await.unwrap();
    let plan = world.until_stage(&plan, Stage::Ready).await;
    world.damage(1, &name, 3).await;
    world.command(&plan, Event::Verify { repair: false }).await.unwrap();
    let plan = world.until(&plan, "a verdict", |p| p.verification.status == VerificationStatus::Failed).await;
    assert_eq!(plan.verification.differing, 1);
    let found = &plan.verification.differences[0];
    assert_eq!(
        (found.table.as_str(), found.key.as_str(), found.what.as_str()),
        ("notes", format!("{name}, 3").as_str(), "missing")
    );
    assert_eq!(world.command(&plan, Event::Cutover).await.unwrap_err().sqlstate, "55000");
    world.command(&plan, Event::Verify { repair: true }).await.unwrap();
    let plan = world.until(&plan, "a verdict", |p| p.verification.status == VerificationStatus::Passed).await;
    assert_eq!(plan.verification.repaired, 1);
    world.command(&plan, Event::Cutover).await.unwrap();
    world.until_stage(&plan, Stage::Guarding).await;
    assert_eq!(world.rows_of(&name).await.len(), 30);
}
