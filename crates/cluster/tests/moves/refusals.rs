//! What is refused, and that nothing has changed then.

use crate::world::{World, buckets, by_itself, shard, tenant, tenants};
use isles_cluster::moves::Order;
use isles_cluster::moves::moves::{Event, Options, Phase, Stage, Units};

/// All invalid plans of the runbook, and those that a limit refuses.
pub(crate) async fn invalid_plans_are_refused(world: World) {
    let name = world.tenant_with_rows("acme", 1).await;
    let away = world.tenant_on(1, "away").await;
    let order = |units: Units| world.order(units, Options::default());
    let long = "x".repeat(1_001);
    let too_long = Options { pause_limit_ms: 0, ..Options::default() };
    let cases = [
        (order(tenants(&[])), "22023", "tenantIds required for shard split"),
        (Order { source: Some(shard(1)), ..order(tenants(&[&name])) }, "22023", "source and target shard must differ"),
        (Order { source: Some(shard(0)), target: shard(0), ..order(tenants(&[&name])) }, "22023", "must differ"),
        (
            Order { source: Some(shard(0)), ..order(tenants(&[&name, &away])) },
            "22023",
            "Tenants not routed to source shard s0: away",
        ),
        (order(tenants(&[&name, &away])), "22023", "on several shards"),
        (Order { target: shard(9), ..order(tenants(&[&name])) }, "22023", "there is no shard s9"),
        (Order { source: Some(shard(9)), ..order(tenants(&[&name])) }, "22023", "there is no shard s9"),
        (Order { source: Some(shard(0)), ..order(buckets("users", 3, 99)) }, "22023", "has no bucket 99"),
        (Order { source: Some(shard(0)), ..order(buckets("nothing", 0, 1)) }, "22023", "has no bucket 1"),
        (Order { description: Some(long), ..order(tenants(&[&name])) }, "22023", "at most 1000 characters"),
        (Order { options: too_long, ..order(tenants(&[&name])) }, "22023", "a pause is limited"),
    ];
    for (order, sqlstate, words) in cases {
        let refused = world.database().plan_move(order.clone()).await.unwrap_err();
        assert_eq!(refused.sqlstate, sqlstate, "{order:?}: {refused}");
        assert!(refused.message.contains(words), "{refused} should speak of {words}");
    }
    let many = Units::tenants((0..1_001).map(|n| tenant(&format!("t{n}"))));
    assert!(world.plan(many, Options::default()).await.is_err());
    assert!(world.database().moves().await.unwrap().is_empty());
    assert_eq!(world.database().move_plan("nobody").await.unwrap_err().sqlstate, "42704");
}

/// W11: a command that does not fit where the plan is is refused, and the plan stays as it is.
pub(crate) async fn guard_every_phase_transition(world: World) {
    let name = world.tenant_with_rows("acme", 3).await;
    let all = || {
        [
            Event::StartDualWrite,
            Event::RunBackfill,
            Event::Verify { repair: false },
            Event::WaiveVerification,
            Event::Cutover,
            Event::Complete,
        ]
    };
    let refused = async |plan: &isles_cluster::moves::moves::Plan, allowed: &[Event]| {
        let before = world.database().move_plan(plan.id.as_str()).await.unwrap();
        for event in all().into_iter().filter(|event| !allowed.contains(event)) {
            let error = world.command(plan, event.clone()).await.unwrap_err();
            assert_eq!(error.sqlstate, "55000", "{event:?} in {:?}", before.stage);
            assert!(error.hint.is_some(), "{event:?} in {:?}", before.stage);
        }
        let after = world.database().move_plan(plan.id.as_str()).await.unwrap();
        assert_eq!(before.stage, after.stage);
    };
    let plan = world.plan(tenants(&[&name]), Options::default()).await.unwrap();
    refused(&plan, &[Event::StartDualWrite]).await;
    world.command(&plan, Event::StartDualWrite).await.unwrap();
    world.until_stage(&plan, Stage::Capturing).await;
    refused(&plan, &[Event::RunBackfill]).await;
    world.command(&plan, Event::RunBackfill).await.unwrap();
    world.until_stage(&plan, Stage::Ready).await;
    refused(&plan, &[Event::RunBackfill, Event::Verify { repair: false }, Event::WaiveVerification]).await;
    world.command(&plan, Event::WaiveVerification).await.unwrap();
    world.command(&plan, Event::Cutover).await.unwrap();
    world.until_stage(&plan, Stage::Guarding).await;
    refused(&plan, &[Event::Complete]).await;
    world.command(&plan, Event::Complete).await.unwrap();
    world.until_stage(&plan, Stage::Done).await;
    refused(&plan, &[Event::Complete]).await;
    assert_eq!(world.command(&plan, Event::Rollback).await.unwrap_err().sqlstate, "55000");
}

/// I-17: two plans never move the same thing; different ones go side by side.
pub(crate) async fn concurrent_moves_same_and_different_tenants(world: World) {
    let one = world.tenant_with_rows("one", 5).await;
    let two = world.tenant_with_rows("two", 5).await;
    let first = world.plan(tenants(&[&one]), Options::default()).await.unwrap();
    let refused = world.plan(tenants(&[&one, &two]), Options::default()).await.unwrap_err();
    assert!(refused.message.contains(&format!("Active split {} already in progress", first.id)), "{refused}");
    let bucket = world.bucket_of(&one).0;
    assert!(world.plan(buckets("tenants", bucket, bucket), Options::default()).await.is_err());
    let second = world.plan(tenants(&[&two]), by_itself()).await.unwrap();
    world.database().run_move(first.id.as_str(), false).await.unwrap();
    for plan in [&first, &second] {
        world.until_stage(plan, Stage::Guarding).await;
    }
    assert_eq!((world.rows_of(&one).await.len(), world.rows_of(&two).await.len()), (15, 15));
}

/// A table whose rows are on their way keeps its shape; others change, and new ones come.
pub(crate) async fn ddl_during_move(world: World) {
    let name = world.tenant_with_rows("acme", 5).await;
    let mut client = world.db.client();
    let plan = world.move_to(1, tenants(&[&name])).await;
    for sql in ["ALTER TABLE notes ADD COLUMN x int", "DROP TABLE tags", "CREATE UNIQUE INDEX u ON notes (body)"] {
        let refused = client.try_run(sql).await.unwrap_err();
        assert_eq!(refused.sqlstate, "55006", "{sql}");
        assert!(refused.hint.is_some_and(|hint| hint.contains(plan.id.as_str())));
    }
    client.run("ALTER TABLE users ADD COLUMN x int").await;
    client.run("CREATE TABLE drafts (id int PRIMARY KEY) WITH (kind = 'tenant')").await;
    world.client_of(&name).await.run("INSERT INTO drafts VALUES (1)").await;
    world.command(&plan, Event::Rollback).await.unwrap();
    let plan = world.until_stage(&plan, Stage::Done).await;
    assert_eq!(plan.phase, Phase::RolledBack);
    assert_eq!(world.client_of(&name).await.run("SELECT id FROM drafts").await, ["1"], "it came along");
    client.run("ALTER TABLE notes ADD COLUMN x int").await;
}

/// Two who give orders at once: each order is carried out or refused, and the plan is one of the two.
pub(crate) async fn two_operators_race(world: World) {
    let name = world.tenant_with_rows("acme", 5).await;
    let plans = futures::future::join_all((0..8).map(|_| world.plan(tenants(&[&name]), Options::default()))).await;
    let made: Vec<_> = plans.into_iter().flatten().collect();
    assert_eq!(made.len(), 1, "one of them was first");
    let plan = &made[0];
    let orders = [Event::StartDualWrite, Event::Rollback, Event::StartDualWrite, Event::Rollback];
    let done = futures::future::join_all(orders.into_iter().map(|order| world.command(plan, order))).await;
    assert!(done.iter().any(Result::is_ok));
    let ended = world.until(plan, "an end", |plan| matches!(plan.stage, Stage::Done | Stage::Capturing)).await;
    if ended.stage == Stage::Capturing {
        world.command(plan, Event::Rollback).await.unwrap();
        world.until_stage(plan, Stage::Done).await;
    }
    assert_eq!(world.rows_of(&name).await.len(), 15);
}
