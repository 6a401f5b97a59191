//! Both sides, compared: what is no difference, what is one, and what becomes of it.

use crate::world::{Pair, World, buckets, shard, tenant, tenants};
use isles_cluster::moves::Intent;
use isles_cluster::moves::moves::{Command, Event, Options, Phase, Plan, Stage, Units, VerificationStatus};
use isles_engine::shard::RowVersion;
use isles_kernel::names::{BucketId, RoutingVersion, Seq};
use std::time::Duration;

/// Newer than anything that a move brings: of a routing that has not come.
const UNHEARD_OF: RowVersion = RowVersion { epoch: RoutingVersion(1_000), seq: Seq(1) };

async fn verdict(world: &World, plan: &Plan) -> Plan {
    let is_over = |status| matches!(status, VerificationStatus::Passed | VerificationStatus::Failed);
    world.until(plan, "a verdict", |plan| is_over(plan.verification.status)).await
}

async fn verified(world: &World, plan: &Plan) -> Plan {
    world.command(plan, Event::Verify { repair: false }).await.unwrap();
    verdict(world, plan).await
}

/// On PostgreSQL a transaction that has written keeps a place in the log, and what is committed behind it is in snapshots:
/// that is no difference, neither when both sides are compared nor at the cutover.
pub(crate) async fn an_open_transaction_of_another_tenant_is_no_difference(world: World) {
    let name = world.tenant_with_rows("acme", 20).await;
    let other = world.tenant_with_rows("other", 1).await;
    let plan = world.copied(tenants(&[&name]), Options { pause_limit_ms: 10_000, ..Options::default() }).await;
    let mut open = world.client_of(&other).await;
    // A SQLite shard has one writer: there nobody else writes meanwhile.
    if world.pair == Pair::Postgres {
        open.run("BEGIN").await;
        open.run("UPDATE notes SET n = n + 1").await;
    }
    let mut writer = world.client_of(&name).await;
    writer.run("UPDATE notes SET n = n + 1 WHERE id < 10").await;
    writer.run("INSERT INTO notes (id, body) VALUES (100, 'behind the gap')").await;
    writer.run("DELETE FROM notes WHERE id = 19").await;
    let compared = verified(&world, &plan).await;
    assert_eq!(compared.verification.status, VerificationStatus::Passed, "{compared:?}");
    let before = world.rows_of(&name).await;
    world.command(&plan, Event::Cutover).await.unwrap();
    let served =
        world.until(&plan, "the cutover", |plan| plan.stage == Stage::Guarding || plan.cutover.aborted.is_some()).await;
    assert_eq!((served.stage, served.cutover.aborted), (Stage::Guarding, None));
    if world.pair == Pair::Postgres {
        open.run("COMMIT").await;
    }
    assert_eq!(world.rows_of(&name).await, before);
    world.command(&plan, Event::Complete).await.unwrap();
    world.until_stage(&plan, Stage::Done).await;
    assert_eq!(world.rows_of(&name).await, before);
}

/// A row that has come to harm is made equal also if what is known of it is as new as can be; and its next change comes
/// through.
pub(crate) async fn a_row_is_repaired_whatever_is_known_of_it(world: World) {
    let name = world.tenant_with_rows("acme", 10).await;
    let plan = world.copied(tenants(&[&name]), Options::default()).await;
    world.damage_as(1, &name, 3, UNHEARD_OF).await;
    assert_eq!(verified(&world, &plan).await.verification.differing, 1);
    world.command(&plan, Event::Verify { repair: true }).await.unwrap();
    let repaired = verdict(&world, &plan).await.verification;
    assert_eq!((repaired.status, repaired.repaired, repaired.differing), (VerificationStatus::Passed, 1, 0));
    world.client_of(&name).await.run("UPDATE notes SET n = 7, slug = 'another' WHERE id = 3").await;
    let compared = verified(&world, &plan).await;
    assert_eq!(compared.verification.status, VerificationStatus::Passed, "{compared:?}");
    let before = world.rows_of(&name).await;
    world.end(&plan).await;
    assert_eq!(world.rows_of(&name).await, before);
}

/// Who waives the comparison takes the rows as they are, at the cutover, too.
pub(crate) async fn what_was_waived_is_not_compared_at_the_cutover(world: World) {
    let name = world.tenant_with_rows("acme", 10).await;
    let plan = world.copied(tenants(&[&name]), Options { pause_limit_ms: 10_000, ..Options::default() }).await;
    world.damage(1, &name, 3).await;
    assert_eq!(verified(&world, &plan).await.verification.status, VerificationStatus::Failed);
    let cutover = Command::Cutover { waive: true };
    world.database().tell_move(plan.id.as_str(), cutover, Intent::Do).await.unwrap();
    let served =
        world.until(&plan, "the cutover", |plan| plan.stage == Stage::Guarding || plan.cutover.aborted.is_some()).await;
    assert_eq!((served.stage, served.cutover.aborted), (Stage::Guarding, None));
    assert_eq!(world.rows_of(&name).await.len(), 29);
}

/// I-14: what a cutover compares is bounded by the rows that are there, and not by those that were there to be copied.
pub(crate) async fn rows_that_came_by_the_mirror_are_counted_before_they_are_compared(world: World) {
    let name = world.tenant_on(0, "acme").await;
    let plan = world.copied(tenants(&[&name]), Options { pause_limit_ms: 10_000, ..Options::default() }).await;
    assert_eq!(plan.backfill.total_rows_copied, 0);
    let insert = "INSERT INTO notes (id, body) SELECT n, 'mirrored' FROM generate_series(1, 3000) n";
    world.client_of(&name).await.run(insert).await;
    let compared = verified(&world, &plan).await.verification;
    assert_eq!((compared.status, compared.rows_compared), (VerificationStatus::Passed, 3_000));
    // Only one who reads all of it sees this.
    world.damage_as(1, &name, 2_999, UNHEARD_OF).await;
    world.command(&plan, Event::Cutover).await.unwrap();
    let served =
        world.until(&plan, "the cutover", |plan| plan.stage == Stage::Guarding || plan.cutover.aborted.is_some()).await;
    assert_eq!((served.stage, served.cutover.aborted), (Stage::Guarding, None));
}

/// Tenants that go with their bucket are compared once more at the cutover, as those that go by name.
pub(crate) async fn tenants_of_a_bucket_are_compared_at_the_cutover(world: World) {
    let name = world.tenant_with_rows("acme", 10).await;
    let (group, BucketId(bucket)) = (world.database().current_routing().tenant_group().clone(), world.bucket_of(&name));
    let options = Options { pause_limit_ms: 10_000, ..Options::default() };
    let plan = world.copied(buckets(group.as_str(), bucket, bucket), options).await;
    assert_eq!(verified(&world, &plan).await.verification.rows_compared, 30);
    world.damage(1, &name, 3).await;
    let version = world.version();
    world.command(&plan, Event::Cutover).await.unwrap();
    let aborted = world.until(&plan, "an abort", |plan| plan.cutover.aborted.is_some()).await;
    assert!(aborted.cutover.aborted.is_some_and(|why| why.contains("has other rows")));
    world.until_stage(&plan, Stage::Ready).await;
    assert_eq!(world.version(), version);
    world.client_of(&name).await.run("UPDATE notes SET n = 0").await;
}

/// A table that comes while rows are mirrored is mirrored, and so it is compared.
pub(crate) async fn a_table_that_comes_while_rows_are_mirrored_is_compared(world: World) {
    let name = world.tenant_with_rows("acme", 5).await;
    let plan = world.captured(tenants(&[&name]), Options::default()).await;
    world.db.client().run("CREATE TABLE extras (id bigint PRIMARY KEY) WITH (kind = 'tenant')").await;
    world.client_of(&name).await.run("INSERT INTO extras SELECT n FROM generate_series(1, 7) n").await;
    world.command(&plan, Event::RunBackfill).await.unwrap();
    world.until_stage(&plan, Stage::Ready).await;
    let compared = verified(&world, &plan).await.verification;
    assert_eq!((compared.status, compared.rows_compared), (VerificationStatus::Passed, 22));
    world.end(&plan).await;
    assert_eq!((world.stored_on(0, "extras").await, world.stored_on(1, "extras").await), (0, 7));
}

/// I-13: a comparison survives its driver; each row is compared once all the same.
pub(crate) async fn a_comparison_goes_on_with_another_driver(world: World) {
    let name = world.tenant_with_rows("acme", 5).await;
    let insert = "INSERT INTO notes (id, body) SELECT n, 'one of many' FROM generate_series(1000, 8999) n";
    world.client_of(&name).await.run(insert).await;
    let plan = world.copied(tenants(&[&name]), Options::default()).await;
    world.command(&plan, Event::Verify { repair: false }).await.unwrap();
    for _ in 0..10 {
        world.database().replace_drivers().await.unwrap();
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    let compared = verdict(&world, &plan).await.verification;
    assert_eq!((compared.status, compared.rows_compared), (VerificationStatus::Passed, 8_015));
    assert_eq!(compared.mark, None);
}

/// I-14: a transaction that only reads, and stays, keeps a switch from happening; it never stops a tenant half way.
pub(crate) async fn a_reader_that_stays_stops_nobody(world: World) {
    let name = world.tenant_with_rows("acme", 5).await;
    let options = Options { auto: true, pause_limit_ms: 1_500, ..Options::default() };
    let plan = world.database().plan_move(world.order(tenants(&[&name]), options)).await.unwrap();
    world.until_stage(&plan, Stage::Guarding).await;
    let version = world.version();
    let mut reader = world.client_of(&name).await;
    reader.run("BEGIN READ ONLY").await;
    assert_eq!(reader.run("SELECT count(*) FROM notes").await, ["5"]);
    world.command(&plan, Event::Rollback).await.unwrap();
    // Which readers are waited for is the giver's engine's matter.
    if world.pair != Pair::Sqlite {
        let is_over = |plan: &Plan| plan.stage == Stage::Guarding && plan.cutover.aborted.is_some();
        world.until(&plan, "an abort", is_over).await;
        assert_eq!((world.version(), world.shard_of(&name).await), (version, shard(1).to_string()));
        let mut writer = world.client_of(&name).await;
        let written = tokio::time::timeout(Duration::from_secs(5), writer.run("UPDATE notes SET n = n + 1")).await;
        assert_eq!(written.expect("the tenant is served"), ["UPDATE 5"]);
        assert_eq!(reader.run("SELECT count(*) FROM notes").await, ["5"], "nor is the reader");
        reader.run("COMMIT").await;
        while world.command(&plan, Event::Rollback).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    let undone = world.until_stage(&plan, Stage::Done).await;
    assert_eq!((undone.phase, world.version()), (Phase::RolledBack, version + 1));
    assert_eq!(world.shard_of(&name).await, "s0");
}

/// A name that nobody has is refused, unless it is said that it is meant.
pub(crate) async fn names_that_nobody_has_are_refused(world: World) {
    let known = world.tenant_with_rows("acme", 3).await;
    let typo = world.tenant_on(0, "acmee").await;
    let order = |name: &str, options: Options| world.order(tenants(&[name]), options);
    for intent in [Intent::Try, Intent::Do] {
        let refused = world.database().order_move(order(&typo, Options::default()), intent).await.unwrap_err();
        assert!(refused.sqlstate == "22023" && refused.message.contains(&typo), "{refused:?}");
        assert!(refused.hint.is_some_and(|hint| hint.contains("unknown_tenants")));
    }
    let tried = world.database().order_move(order(&known, Options::default()), Intent::Try).await.unwrap();
    assert_eq!(tried.backfill.rows_expected, Some(9), "what would be copied");
    let meant = Options { unknown_tenants: true, ..Options::default() };
    world.database().order_move(order(&typo, meant), Intent::Do).await.unwrap();
    let plan = world.copied(tenants(&[&known]), Options::default()).await;
    assert_eq!((plan.backfill.rows_expected, plan.backfill.total_rows_copied), (Some(9), 9));
}

/// Rows of buckets are counted before they are copied, those of the tenants that hash to them, too.
pub(crate) async fn rows_of_buckets_are_counted_before_they_are_copied(world: World) {
    world.db.client().run("INSERT INTO users SELECT n, 'u' FROM generate_series(1, 100) n").await;
    let name = world.tenant_with_rows("acme", 4).await;
    let (group, BucketId(bucket)) = (world.database().current_routing().tenant_group().clone(), world.bucket_of(&name));
    for units in [buckets("users", 0, 3), buckets(group.as_str(), bucket, bucket)] {
        let plan = world.copied(units, Options::default()).await.backfill;
        assert!(plan.total_rows_copied > 0);
        assert_eq!(plan.rows_expected, Some(plan.total_rows_copied));
    }
}

/// What a plan would be refused for, a dry run is refused for, too.
pub(crate) async fn a_dry_run_is_refused_what_a_plan_is(world: World) {
    for n in 0..100 {
        let name = world.tenant_on(0, &format!("many{n}x")).await;
        world.plan(tenants(&[&name]), Options::default()).await.unwrap();
    }
    let name = world.tenant_on(0, "acme").await;
    let options = Options { unknown_tenants: true, ..Options::default() };
    let order = || world.order(Units::tenants([tenant(&name)]), options.clone());
    for intent in [Intent::Try, Intent::Do] {
        let refused = world.database().order_move(order(), intent).await.unwrap_err();
        assert_eq!(refused.sqlstate, "54000", "{intent:?}: {refused}");
    }
}
