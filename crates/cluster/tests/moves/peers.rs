//! What went wrong with moves elsewhere, and must not go wrong here.
//!
//! | bug | test |
//! |---|---|
//! | vitess #9453, #9481: a transaction from before the switch commits on the source after it | `a_transaction_that_has_written_commits_first` |
//! | vitess #14360: reads and writes are switched apart, and the sides diverge | `writes_during_a_move_are_all_there_once` |
//! | vitess #6951: a switch before the tail has caught up | `guard_every_phase_transition`, planted bug 4 |
//! | vitess #15701, #15707: plans from before the switch, long after it | `plans_from_before_a_switch_follow_it` |
//! | vitess #7059, #6527, #7061: clients see errors, or wait for the end of their patience | `a_hot_row_does_not_keep_a_move_from_its_end` |
//! | vitess #12992: a dry run that acts | `a_dry_run_changes_nothing` |
//! | vitess #18020, #16906, #17782, #17616: a cancel leaves something behind | `undone_at_every_stage_and_then_done` |
//! | vitess #20924: writes are switched before reads | there is one switch for both; `guard_every_phase_transition` |
//! | vitess #6622, #9546, #9715: keys that sort in another way in the copy than in the tail | `keys_that_sort_strangely_are_copied_once` |
//! | vitess #13944, #17107, #9207: JSON null, generated and binary columns | `values_are_the_same_copied_and_mirrored` |
//! | vitess #20565: insert, delete and insert of one key in one batch | `one_key_again_and_again_in_one_transaction` |
//! | vitess #12859, #20602 and others: the comparison itself is wrong | `a_difference_is_found_and_repaired` |
//! | pgdog #874: rows at the hand-over from copy to tail | `large_transactions_at_the_hand_over_are_whole` |
//! | pgdog #1121, #1123, #1201: a lag that is read as 0, or never falls on a busy shard | `an_idle_tenant_on_a_busy_shard_moves` |
//! | pgdog #940: a large value that has not changed becomes empty | `a_large_value_that_does_not_change_stays` |
//! | pgdog #866: deletes by other columns than the key | `keys_that_sort_strangely_are_copied_once` |
//! | pgdog #869, #968, #1489: reference tables twice, rows of no tenant | `what_does_not_move_is_not_touched` |
//! | pgdog #894, #914, #1028: the target goes away during the copy | `moves_lose_nothing_under_faults` ("shard away"), `a_target_without_room_is_waited_for` |
//! | pgdog #1347, citus #7426: the target has other tables | `a_target_with_other_tables_takes_nothing`, `what_does_not_move_is_not_touched` |
//! | citus #6050: a table is made during the move | `ddl_during_move` |
//! | citus #6580: a move that is given up leaves rows | `undone_at_every_stage_and_then_done` |
//! | citus #6790: a move hangs under writes of one row | `a_hot_row_does_not_keep_a_move_from_its_end` |
//! | citus #6029: readers find the old copy gone | `portals_and_cursors_end_as_they_began` |
//! | citus #6873: copied rows are published as new ones | `copied_rows_are_no_changes` |
//! | citus #8214: a changed key leaves its row where it was | `a_row_whose_bucket_changes_is_there_once` |
//! | spqr #1991: a move from a shard to itself deletes; stages are skipped after a crash | `invalid_plans_are_refused`, `a_move_survives_a_crash_at_every_operation` |
//! | spqr #2813, #2867, #2722: a lock survives a failure | `undone_at_every_stage_and_then_done` |
//! | spqr #2056, #1987, #2133: the same is moved twice | `concurrent_moves_same_and_different_tenants` |

use crate::world::{World, by_itself, shard, tenant, tenants};
use isles_cluster::moves::Intent;
use isles_cluster::moves::moves::{Event, Options, Phase, Stage, VerificationStatus};
use isles_engine::shard::{Batch, Incoming, RowVersion};
use isles_kernel::names::{RoutingVersion, Seq, StreamId};
use isles_kernel::schema::Unit;
use isles_kernel::value::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// Vitess #15701, #15707: statements that were planned before a switch go where each of the next ones says.
pub(crate) async fn plans_from_before_a_switch_follow_it(world: World) {
    let name = world.tenant_with_rows("acme", 3).await;
    let mut client = world.client_of(&name).await;
    let up = client.session.prepare("UPDATE notes SET n = n + 1 WHERE id = $1", &[]).await.unwrap();
    for round in 0..6 {
        client.session.execute(&up, vec![Value::Int(1)]).await.unwrap();
        world.move_wholly(1 - round % 2, tenants(&[&name])).await;
        client.session.execute(&up, vec![Value::Int(1)]).await.unwrap();
        assert_eq!(client.run("SELECT n FROM notes WHERE id = 1").await, [format!("{}", (round + 1) * 2)]);
    }
    assert_eq!((world.stored_on(0, "notes").await, world.stored_on(1, "notes").await), (3, 0));
}

/// Vitess #12992: what is only asked for leaves plans, routing and rows as they are, at each step.
pub(crate) async fn a_dry_run_changes_nothing(world: World) {
    let name = world.tenant_with_rows("acme", 3).await;
    let order = || world.order(tenants(&[&name]), by_itself());
    let version = world.version();
    let tried = world.database().order_move(order(), Intent::Try).await.unwrap();
    assert_eq!(tried.phase, Phase::Planning);
    assert!(world.database().moves().await.unwrap().is_empty());
    let plan = world.copied(tenants(&[&name]), Options::default()).await;
    assert!(world.database().order_move(order(), Intent::Try).await.is_err(), "as it would be refused");
    let before = world.database().move_plan(plan.id.as_str()).await.unwrap();
    assert!(world.database().try_command(plan.id.as_str(), Event::Cutover).await.is_err(), "it is not verified");
    for command in [Event::Rollback, Event::WaiveVerification, Event::Verify { repair: true }] {
        world.database().try_command(plan.id.as_str(), command).await.unwrap();
    }
    let after = world.database().move_plan(plan.id.as_str()).await.unwrap();
    assert_eq!((after.stage, &after.verification), (before.stage, &before.verification));
    assert_eq!((world.version(), world.shard_of(&name).await.as_str()), (version, "s0"));
    assert_eq!(world.rows_of(&name).await.len(), 9);
}

/// I-12: (vitess #18020, citus #6580, spqr #2867) undone at each stage, a move leaves nothing, and then it is made.
pub(crate) async fn undone_at_every_stage_and_then_done(world: World) {
    let name = world.tenant_with_rows("acme", 40).await;
    let (before, version) = (world.rows_of(&name).await, world.version());
    let stages = [Stage::Planned, Stage::Preparing, Stage::Capturing, Stage::Copying, Stage::Ready, Stage::Verifying];
    for stage in stages {
        let plan = world.plan(tenants(&[&name]), Options::default()).await.unwrap();
        if stage > Stage::Planned {
            world.command(&plan, Event::StartDualWrite).await.unwrap();
        }
        if stage > Stage::Preparing {
            world.until_stage(&plan, Stage::Capturing).await;
        }
        if stage > Stage::Capturing {
            world.command(&plan, Event::RunBackfill).await.unwrap();
        }
        if stage > Stage::Copying {
            world.until_stage(&plan, Stage::Ready).await;
        }
        if stage > Stage::Ready {
            world.command(&plan, Event::Verify { repair: false }).await.unwrap();
        }
        world.command(&plan, Event::Rollback).await.unwrap();
        let undone = world.until_stage(&plan, Stage::Done).await;
        assert_eq!(undone.phase, Phase::RolledBack, "{stage:?}: {undone:?}");
        assert_eq!(world.version(), version, "{stage:?}");
        let left = (world.stored_on(1, "notes").await, world.stored_on(1, "tags").await);
        assert_eq!((left, world.consumers_on(0).await, world.consumers_on(1).await), ((0, 0), 0, 0), "{stage:?}");
        world.client_of(&name).await.run("UPDATE notes SET n = 0 WHERE id = 1").await;
    }
    world.move_wholly(1, tenants(&[&name])).await;
    assert_eq!((world.rows_of(&name).await, world.version()), (before, version + 1));
}

/// Vitess #6622, pgdog #866: keys of several columns, not the first ones, that sort in every way; copied or mirrored.
pub(crate) async fn keys_that_sort_strangely_are_copied_once(world: World) {
    let mut client = world.db.client();
    client
        .run(
            "CREATE TABLE things (note text, k2 int, other text, k1 text, PRIMARY KEY (k1, k2)) WITH (kind = 'tenant')",
        )
        .await;
    let name = world.tenant_on(0, "acme").await;
    let mut client = world.client_of(&name).await;
    let keys = [
        "", " ", "a", "A", "ä", "Ä", "z", "Z", "0", "00", "10", "9", "🦀", "a b", "a-b", "ab", "é", "e\u{301}", "ß",
        "ss",
    ];
    let insert = "INSERT INTO things (note, k2, other, k1) VALUES ($1, $2, $3, $4)";
    let row =
        |key: &str, n: i64| vec![Value::text(format!("{key} {n}")), Value::Int(n), Value::text("x"), Value::text(key)];
    for key in keys {
        for n in -30..30 {
            client.try_with(insert, row(key, n)).await.unwrap();
        }
    }
    let plan = world.copied(tenants(&[&name]), Options::default()).await;
    for key in keys {
        client.try_with("DELETE FROM things WHERE k1 = $1 AND k2 < 0", vec![Value::text(key)]).await.unwrap();
        client
            .try_with("UPDATE things SET other = 'y' WHERE k1 = $1 AND k2 = 7", vec![Value::text(key)])
            .await
            .unwrap();
        client.try_with(insert, row(key, 100)).await.unwrap();
        client.try_with("UPDATE things SET k2 = 200 WHERE k1 = $1 AND k2 = 8", vec![Value::text(key)]).await.unwrap();
    }
    let all = "SELECT k1, k2, note, other FROM things";
    let sorted = |mut rows: Vec<String>| {
        rows.sort();
        rows
    };
    let before = sorted(client.run(all).await);
    assert_eq!(before.len(), keys.len() * 31);
    let done = world.end(&plan).await;
    assert_eq!(done.verification.status, VerificationStatus::Passed);
    assert_eq!(sorted(client.run(all).await), before);
    assert_eq!(world.stored_on(1, "things").await, before.len());
}

/// Vitess #13944, #9207: each type, its edges and NULL: the same by the copy, by the mirror, and by what clients read.
pub(crate) async fn values_are_the_same_copied_and_mirrored(world: World) {
    let mut client = world.db.client();
    client
        .run(
            "CREATE TABLE kinds (id int PRIMARY KEY, b boolean, s smallint, i int, l bigint, r real, d double precision, \
             m numeric, t text, v varchar(20), y bytea, j jsonb, u uuid, da date, ti time, ts timestamp, tz timestamptz) \
             WITH (kind = 'tenant')",
        )
        .await;
    let name = world.tenant_on(0, "acme").await;
    let mut client = world.client_of(&name).await;
    let rows = [
        "true, 32767, 2147483647, 9223372036854775807, 1.5, 1e308, 12345678901234567890.123456789, 'a''b', 'v', '\\x00ff10', \
         '{\"a\": null, \"b\": [1, \"x\"]}', '00000000-0000-0000-0000-000000000001', '2024-02-29', '23:59:59.999999', \
         '1999-12-31 23:59:59.999999', '2024-06-01 12:00:00+02'",
        "false, -32768, -2147483648, -9223372036854775808, -0.0, 'NaN', 'NaN', '', '', '\\x', 'null', \
         'ffffffff-ffff-ffff-ffff-ffffffffffff', '0001-01-01', '00:00', '0001-01-01 00:00:00', '0001-01-01 00:00:00+00'",
        "NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL",
        "true, 0, 0, 0, 'Infinity', '-Infinity', 0.00, '🦀 \\ %', '007', '\\xdeadbeef', '\"text\"', \
         '12345678-1234-1234-1234-123456789abc', '9999-12-31', '12:00', '9999-12-31 23:59:59', '2038-01-19 03:14:08+00'",
    ];
    for (n, row) in rows.iter().enumerate() {
        client.run(&format!("INSERT INTO kinds VALUES ({n}, {row})")).await;
    }
    let plan = world.copied(tenants(&[&name]), Options::default()).await;
    for (n, row) in rows.iter().enumerate() {
        client.run(&format!("INSERT INTO kinds VALUES ({}, {row})", n + 10)).await;
    }
    let all = "SELECT * FROM kinds ORDER BY id";
    let before = client.run(all).await;
    let done = world.end(&plan).await;
    assert_eq!((done.verification.status, done.verification.differing), (VerificationStatus::Passed, 0));
    let after = client.run(all).await;
    assert_eq!(after, before);
    let without_id = |row: &String| row.split_once('|').unwrap().1.to_string();
    for n in 0..rows.len() {
        assert_eq!(without_id(&after[n]), without_id(&after[n + rows.len()]), "copied as mirrored");
    }
}

/// Vitess #20565: one key is inserted, deleted and inserted again in one transaction, while it is mirrored.
pub(crate) async fn one_key_again_and_again_in_one_transaction(world: World) {
    let name = world.tenant_with_rows("acme", 5).await;
    let plan = world.copied(tenants(&[&name]), Options::default()).await;
    let mut client = world.client_of(&name).await;
    client.run("BEGIN").await;
    for round in 0..20 {
        client.run(&format!("INSERT INTO notes (id, body, n) VALUES (100, 'again', {round})")).await;
        client.run("DELETE FROM notes WHERE id = 3").await;
        client.run(&format!("INSERT INTO notes (id, body, n) VALUES (3, 'back', {round})")).await;
        if round < 19 {
            client.run("DELETE FROM notes WHERE id = 100").await;
        }
    }
    client.run("COMMIT").await;
    let before = world.rows_of(&name).await;
    assert!(before.contains(&"100|again|19|∅".into()) && before.contains(&"3|back|19|∅".into()), "{before:?}");
    world.end(&plan).await;
    assert_eq!(world.rows_of(&name).await, before);
}

/// A row on the target that should not be there, and has the unique value of one that comes, gives way to it.
pub(crate) async fn a_row_in_the_way_gives_way(world: World) {
    let name = world.tenant_with_rows("acme", 5).await;
    let before = world.rows_of(&name).await;
    let plan = world.captured(tenants(&[&name]), Options::default()).await;
    // Somebody has had a hand in the target's tables: another row there has the unique value of one that comes.
    let unit = Unit::Tenant(Some(tenant(&name)));
    let row = vec![Value::Int(777), Value::Null, Value::Int(0), Value::text("slug 3")];
    let version = RowVersion { epoch: RoutingVersion(1), seq: Seq(1) };
    let stray = Incoming {
        table: "notes".into(),
        unit,
        key: vec![Value::text(name.as_str()), Value::Int(777)],
        version,
        row: Some(row),
    };
    let stream = StreamId::new("stray").unwrap();
    let target = world.database().shard(&shard(1)).await.unwrap();
    target.apply(Batch::new(&stream, vec![stray])).await.unwrap();
    target.forget_stream(&stream, None).await.unwrap();
    world.command(&plan, Event::RunBackfill).await.unwrap();
    world.until_stage(&plan, Stage::Ready).await;
    let done = world.end(&plan).await;
    assert_eq!((done.verification.status, done.verification.differing), (VerificationStatus::Passed, 0));
    assert_eq!((world.stored_on(0, "notes").await, world.stored_on(1, "notes").await), (0, 5));
    assert_eq!(world.rows_of(&name).await, before);
}

/// Pgdog #874: transactions of many rows that begin before the copy and end within or after it.
pub(crate) async fn large_transactions_at_the_hand_over_are_whole(world: World) {
    let name = world.tenant_with_rows("acme", 0).await;
    let mut client = world.client_of(&name).await;
    let rows: Vec<String> = (0..500).map(|n| format!("({n}, 0)")).collect();
    client.run(&format!("INSERT INTO notes (id, n) VALUES {}", rows.join(", "))).await;
    let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (stopped, counted) = (stop.clone(), rounds.clone());
    let writer = tokio::spawn(async move {
        while !stopped.load(Ordering::SeqCst) {
            client.run("BEGIN").await;
            client.run("UPDATE notes SET n = n + 1 WHERE id < 250").await;
            client.run("UPDATE notes SET n = n + 1 WHERE id >= 250").await;
            client.run("COMMIT").await;
            counted.fetch_add(1, Ordering::SeqCst);
            // The mirror of a debug build must be able to follow.
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    });
    // There and back, until some transactions have met a move.
    for round in 0.. {
        world.move_wholly(1 - round % 2, tenants(&[&name])).await;
        if round % 2 == 1 && rounds.load(Ordering::SeqCst) > 2 {
            break;
        }
    }
    stop.store(true, Ordering::SeqCst);
    writer.await.unwrap();
    let rounds = rounds.load(Ordering::SeqCst);
    let found = world.client_of(&name).await.run("SELECT min(n), max(n), count(*) FROM notes").await;
    assert_eq!(found, [format!("{rounds}|{rounds}|500")]);
}

/// Pgdog #1121, #1201: a tenant that does nothing, beside one that never stops, has a lag that is known and falls.
pub(crate) async fn an_idle_tenant_on_a_busy_shard_moves(world: World) {
    let name = world.tenant_with_rows("idle", 10).await;
    let busy = world.tenant_with_rows("busy", 10).await;
    let stop = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicU64::new(0));
    let mut writers = Vec::new();
    for n in 0..3 {
        let (mut client, stopped, done) = (world.client_of(&busy).await, stop.clone(), done.clone());
        writers.push(tokio::spawn(async move {
            while !stopped.load(Ordering::SeqCst) {
                client.run(&format!("UPDATE notes SET n = n + 1 WHERE id = {n}")).await;
                done.fetch_add(1, Ordering::SeqCst);
            }
        }));
    }
    let plan = world.plan(tenants(&[&name]), Options::default()).await.unwrap();
    assert_eq!(plan.tail.lag, None, "a lag that nobody has measured is not 0");
    let before = done.load(Ordering::SeqCst);
    world.end(&plan).await;
    assert!(done.load(Ordering::SeqCst) > before, "it was busy all the time");
    stop.store(true, Ordering::SeqCst);
    for writer in writers {
        writer.await.unwrap();
    }
    let sum = world.client_of(&busy).await.run("SELECT sum(n) FROM notes").await;
    assert_eq!(sum, [done.load(Ordering::SeqCst).to_string()]);
    assert_eq!((world.shard_of(&name).await.as_str(), world.rows_of(&name).await.len()), ("s1", 30));
}

/// Pgdog #940: a value of a megabyte, beside which another column changes while the row is mirrored.
pub(crate) async fn a_large_value_that_does_not_change_stays(world: World) {
    let name = world.tenant_on(0, "acme").await;
    let mut client = world.client_of(&name).await;
    let large: String = (0..40_000).map(|n| format!("{:025}", n * 7919)).collect();
    client.try_with("INSERT INTO notes (id, body) VALUES (1, $1)", vec![Value::text(large.as_str())]).await.unwrap();
    let plan = world.copied(tenants(&[&name]), Options::default()).await;
    client.run("UPDATE notes SET n = 5, slug = 'new' WHERE id = 1").await;
    world.end(&plan).await;
    assert_eq!(client.run("SELECT n, slug, length(body) FROM notes").await, ["5|new|1000000"]);
    assert_eq!(client.run("SELECT body FROM notes").await, [large]);
}

/// Pgdog #869, #1489, citus #7426: reference tables are there once, and rows of no tenant and of others stay.
pub(crate) async fn what_does_not_move_is_not_touched(world: World) {
    let name = world.tenant_with_rows("acme", 5).await;
    let mut nobody = world.db.client();
    nobody.run("INSERT INTO plans VALUES (0, 'free'), (1, 'paid')").await;
    nobody.run("SET isles.null_tenant = on").await;
    nobody.run("INSERT INTO notes (id, body) VALUES (1, 'of nobody'), (2, 'of nobody')").await;
    let plan = world.copied(tenants(&[&name]), Options::default()).await;
    nobody.run("UPDATE plans SET name = 'gratis' WHERE id = 0").await;
    nobody.run("UPDATE notes SET n = 9 WHERE id = 1").await;
    world.end(&plan).await;
    assert_eq!(nobody.run("SELECT id, n FROM notes ORDER BY id").await, ["1|9", "2|0"]);
    assert_eq!(nobody.run("SELECT * FROM plans ORDER BY id").await, ["0|gratis", "1|paid"]);
    let joined = "SELECT p.name, count(*) FROM notes JOIN plans p ON p.id = notes.n GROUP BY p.name";
    assert_eq!(world.client_of(&name).await.run(joined).await, ["gratis|5"]);
    assert_eq!((world.stored_on(0, "plans").await, world.stored_on(1, "plans").await), (2, 2));
    assert_eq!(world.stored_on(0, "notes").await + world.stored_on(1, "notes").await, 7);
}

/// I-14: (citus #6790, vitess #7059) many who change one row without a pause see no error, and the move ends.
pub(crate) async fn a_hot_row_does_not_keep_a_move_from_its_end(world: World) {
    let name = world.tenant_with_rows("acme", 3).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = Vec::new();
    for _ in 0..6 {
        let (mut client, stopped) = (world.client_of(&name).await, stop.clone());
        writers.push(tokio::spawn(async move {
            let mut done = 0;
            while !stopped.load(Ordering::SeqCst) {
                assert_eq!(client.run("UPDATE notes SET n = n + 1 WHERE id = 1").await, ["UPDATE 1"]);
                done += 1;
            }
            done
        }));
    }
    for round in 0..2 {
        world.move_wholly(1 - round, tenants(&[&name])).await;
    }
    stop.store(true, Ordering::SeqCst);
    let mut sum = 0;
    for writer in writers {
        sum += writer.await.unwrap();
    }
    assert_eq!(world.client_of(&name).await.run("SELECT n FROM notes WHERE id = 1").await, [sum.to_string()]);
}

/// Citus #6873: rows that come by a copy or a mirror are no changes of the target, for whoever reads its log.
pub(crate) async fn copied_rows_are_no_changes(world: World) {
    let name = world.tenant_with_rows("acme", 10).await;
    let resident = world.tenant_on(1, "resident").await;
    let target = world.database().shard(&shard(1)).await.unwrap();
    let reader = StreamId::new("reader").unwrap();
    let from = target.add_consumer(&reader).await.unwrap();
    let plan = world.copied(tenants(&[&name]), Options::default()).await;
    world.client_of(&name).await.run("UPDATE notes SET n = n + 1").await;
    world.client_of(&resident).await.run("INSERT INTO notes (id) VALUES (1)").await;
    world.end(&plan).await;
    world.client_of(&name).await.run("UPDATE notes SET n = 50 WHERE id = 5").await;
    let page = target.changes(from, 1_000).await.unwrap();
    let units: Vec<&Unit> = page.changes.iter().map(|change| &change.unit).collect();
    let of = |name: &str| Unit::Tenant(Some(tenant(name)));
    assert_eq!(units, [&of(&resident), &of(&name)], "what clients did there, and nothing else");
    target.remove_consumer(&reader).await.unwrap();
}

/// Citus #8214: a row whose key changes during a move, and with it its bucket and perhaps its shard, is there once.
pub(crate) async fn a_row_whose_bucket_changes_is_there_once(world: World) {
    let mut client = world.db.client();
    let rows: Vec<String> = (0..100).map(|n| format!("({n}, 'user {n}', {n})")).collect();
    client.run(&format!("INSERT INTO users VALUES {}", rows.join(", "))).await;
    let plan = world.captured(crate::world::buckets("users", 0, 3), Options::default()).await;
    let (mut changed, mut refused) = (0, 0);
    for n in 0..100 {
        if n == 50 {
            world.command(&plan, Event::RunBackfill).await.unwrap();
        }
        match client.try_run(&format!("UPDATE users SET id = {} WHERE id = {n}", n + 1_000)).await {
            Ok(tag) => {
                assert_eq!(tag, ["UPDATE 1"]);
                changed += 1;
            }
            // A key that cannot change is refused by name, before anything has happened.
            Err(error) => {
                assert_eq!(error.sqlstate, "0A000", "{error}");
                refused += 1;
            }
        }
    }
    assert!(changed == 100 || refused == 100, "{changed} changed, {refused} refused");
    world.until_stage(&plan, Stage::Ready).await;
    world.end(&plan).await;
    assert_eq!(client.run("SELECT count(*), sum(n) FROM users").await, ["100|4950"]);
    assert_eq!(world.stored_on(0, "users").await + world.stored_on(1, "users").await, 100);
    let lost =
        client.run(&format!("SELECT count(*) FROM users WHERE id >= {}", if changed > 0 { 1_000 } else { 0 })).await;
    assert_eq!(lost, ["100"]);
}
