//! `isles move` as people run it.

use crate::harness::{Server, Setup, connect};
use crate::world::{POSTGRES, SQLITE, World, id_of};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio_postgres::Client;

/// Writes rows of its own until it is told to stop, each once; the numbers that were acknowledged.
async fn write_on(client: Client, first: i64, stop: Arc<AtomicBool>) -> i64 {
    let mut n = 0;
    while !stop.load(Ordering::SeqCst) {
        let row = first + n;
        let inserted = client.execute("INSERT INTO notes (id, body) VALUES ($1, 'while it moved')", &[&row]).await;
        inserted.unwrap_or_else(|error| panic!("a writer sees an error: {error:?}"));
        client.execute("UPDATE notes SET body = body || '!' WHERE id = 1", &[]).await.unwrap();
        n += 1;
    }
    n
}

/// There, and back, while clients write: nobody sees an error, and nothing is lost or doubled.
async fn there_and_back_under_load(setup: Setup) {
    let world = World::start(setup).await;
    let name = world.tenant_on("s0", "acme", 500).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = Vec::new();
    for writer in 1..=2 {
        let client = world.client_of(&name).await;
        writers.push(tokio::spawn(write_on(client, writer * 1_000_000, stop.clone())));
    }
    let there = tokio::task::block_in_place(|| world.must(&["run", "--tenant", &name, "--to", world.other()]));
    assert_eq!((&there["phase"], &there["stage"]), (&"completed".into(), &"guarding".into()), "{there}");
    assert_eq!(there["verification"]["status"], "passed");
    assert!(there["backfill"]["totalRowsCopied"].as_u64().unwrap() >= 500, "{there}");
    assert!(there["cutover"]["pauseMicros"].as_u64().unwrap() > 0);
    assert_eq!(world.shard_of(&name).await, world.other());
    let id = id_of(&there);
    let done = tokio::task::block_in_place(|| world.must(&["complete", &id]));
    assert_eq!(done["stage"], "done");
    let back = tokio::task::block_in_place(|| {
        world.must(&["run", "--tenant", &name, "--to", "s0", "--complete", "--from", "s1"])
    });
    assert_eq!((&back["phase"], &back["stage"]), (&"completed".into(), &"done".into()), "{back}");
    assert_eq!(world.shard_of(&name).await, "s0");
    stop.store(true, Ordering::SeqCst);
    let mut written = 0;
    for writer in writers {
        let wrote = writer.await.unwrap();
        assert!(wrote > 0, "a writer has written nothing");
        written += wrote;
    }
    let client = world.client_of(&name).await;
    let counted = client
        .query_one("SELECT count(*), count(DISTINCT id), (SELECT length(body) FROM notes WHERE id = 1) FROM notes", &[])
        .await
        .unwrap();
    assert_eq!((counted.get::<_, i64>(0), counted.get::<_, i64>(1)), (500 + written, 500 + written));
    let bangs = i64::from(counted.get::<_, i32>(2)) - "note 1".len() as i64;
    assert_eq!(bangs, written, "each update once");
}

#[tokio::test(flavor = "multi_thread")]
async fn there_and_back_under_load_on_sqlite() {
    there_and_back_under_load(SQLITE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn there_and_back_under_load_on_postgresql() {
    there_and_back_under_load(POSTGRES).await;
}

/// The runbook, command by command; and what is refused where.
async fn each_step_by_its_command(setup: Setup) {
    let world = World::start(setup).await;
    let name = world.tenant_on("s0", "acme", 40).await;
    let before = world.rows_of(&name).await;
    let plan =
        world.must(&["plan", "--tenant", &name, "--to", "s1", "--description", "it's for room", "--pause-limit", "2s"]);
    assert_eq!((&plan["phase"], &plan["description"]), (&"planning".into(), &"it's for room".into()));
    assert_eq!(plan["options"]["pauseLimitMs"], 2_000);
    let id = &id_of(&plan);
    let wrong = |command: &str| world.moves(&[command, id, "--json"]).refused();
    for command in ["backfill", "tail", "verify", "cutover", "complete"] {
        assert_eq!(wrong(command), (1, "55000".into()), "{command} in planning");
    }
    assert_eq!(world.must(&["start", id])["stage"], "capturing");
    assert_eq!(wrong("start"), (1, "55000".into()));
    let copied = world.must(&["backfill", id]);
    assert_eq!((&copied["phase"], &copied["backfill"]["totalRowsCopied"]), (&"cutover_pending".into(), &40.into()));
    assert_eq!(world.must(&["tail", id])["tail"]["status"], "caught_up");
    assert_eq!(wrong("cutover"), (1, "55000".into()), "it is not verified");
    let verified = world.must(&["verify", id]);
    assert_eq!(
        (&verified["verification"]["status"], &verified["verification"]["rowsCompared"]),
        (&"passed".into(), &40.into())
    );
    assert_eq!(world.must(&["cutover", id])["stage"], "guarding");
    assert_eq!(world.shard_of(&name).await, "s1");
    let text = world.moves(&["status", id]).out;
    assert!(text.contains("phase         completed (guarding)"), "{text}");
    assert!(text.contains(&format!("isles move complete {id}, or isles move rollback {id}")), "{text}");
    world.client_of(&name).await.batch_execute("INSERT INTO notes (id) VALUES (1000)").await.unwrap();
    let undone = world.must(&["rollback", id]);
    assert_eq!((&undone["phase"], &undone["stage"]), (&"rolled_back".into(), &"done".into()));
    assert_eq!(world.shard_of(&name).await, "s0");
    assert_eq!(world.rows_of(&name).await.len(), before.len() + 1, "what was written at the target is kept");
    assert_eq!(wrong("rollback"), (1, "55000".into()));
    assert_eq!(wrong("run"), (1, "55000".into()));
    let listed = world.must(&["list"]);
    assert_eq!((&listed["moves"][0]["id"], &listed["moves"][0]["phase"]), (&plan["id"], &"rolled_back".into()));
    assert_eq!(world.must(&["status"])["moves"].as_array().unwrap().len(), 0, "none is under way");
    assert!(world.moves(&["list"]).out.contains("rolled_back"));
}

#[tokio::test(flavor = "multi_thread")]
async fn each_step_by_its_command_on_sqlite() {
    each_step_by_its_command(SQLITE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_step_by_its_command_on_postgresql() {
    each_step_by_its_command(POSTGRES).await;
}

/// What a dry run tells is what would be, and nothing is.
#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_changes_nothing() {
    let world = World::start(SQLITE).await;
    let name = world.tenant_on("s0", "acme", 5).await;
    let state = || {
        let who = format!("isles:{}", world.server.url().split(['@', ':']).nth(2).unwrap());
        let read = |path: &str| world.request("GET", path, Some(&who), "");
        (read("/admin/routing"), read("/admin/shards/split"))
    };
    let before = state();
    assert_eq!(before.0.0, 200, "{before:?}");
    for arguments in [
        ["plan", "--tenant", &name, "--to", "s1", "--dry-run"].as_slice(),
        &["run", "--tenant", &name, "--to", "s1", "--dry-run", "--complete"],
        &["run", "--share", "users/50%", "--from", "s0", "--to", "s1", "--dry-run"],
    ] {
        let told = world.must(arguments);
        assert_eq!((&told["dryRun"], &told["phase"]), (&true.into(), &"planning".into()));
        assert_eq!(state(), before, "{arguments:?}");
    }
    let text = world.moves(&["plan", "--tenant", &name, "--to", "s1", "--dry-run"]).out;
    assert!(text.contains("nothing was changed") && text.contains("notes"), "{text}");
    // What is refused is refused without being tried, too.
    assert_eq!(world.moves(&["plan", "--tenant", &name, "--to", "s0", "--dry-run", "--json"]).refused().1, "22023");
    let id = &id_of(&world.must(&["plan", "--tenant", &name, "--to", "s1"]));
    let planned = state();
    assert_eq!(world.must(&["rollback", id, "--dry-run"])["phase"], "rolled_back");
    assert_eq!(world.moves(&["cutover", id, "--dry-run", "--json"]).refused(), (1, "55000".into()));
    assert_eq!(state(), planned);
    world.must(&["start", id]);
    world.must(&["backfill", id]);
    world.must(&["verify", id]);
    let routing = state().0;
    assert_eq!(world.must(&["cutover", id, "--dry-run"])["stage"], "switching");
    assert_eq!((state().0, world.shard_of(&name).await.as_str()), (routing, "s0"));
    assert_eq!(world.must(&["status", id])["stage"], "ready");
}

/// A row that is not the same on both sides stops the cutover, is named, and is made equal on request.
#[tokio::test(flavor = "multi_thread")]
async fn a_difference_is_told_and_repaired() {
    let urls: Vec<String> = (0..2).map(|_| isles_sim::pgserver::shared().create_database()).collect();
    let world = World::of(Server::over(&urls).await).await;
    let name = world.tenant_on("s0", "acme", 9).await;
    let id = &id_of(&world.must(&["plan", "--tenant", &name, "--to", "s1"]));
    world.must(&["start", id]);
    world.must(&["backfill", id]);
    let target = connect(&urls[1]).await;
    assert_eq!(target.execute("UPDATE notes SET body = 'damaged' WHERE id = 3", &[]).await.unwrap(), 1);
    let said = world.moves(&["verify", id]);
    assert_eq!(said.code, 1);
    assert!(said.err.contains("1 of 9 rows differ: notes") && said.err.contains("--repair"), "{}", said.err);
    assert_eq!(world.moves(&["cutover", id, "--json"]).refused(), (1, "55000".into()));
    assert_eq!(world.moves(&["run", id, "--json"]).refused(), (1, "rows_differ".into()));
    assert_eq!(world.shard_of(&name).await, "s0");
    assert_eq!(world.must(&["verify", id, "--repair"])["verification"]["repaired"], 1);
    assert_eq!(world.must(&["run", id])["stage"], "guarding");
    assert_eq!(world.shard_of(&name).await, "s1");
    let other = world.tenant_on("s0", "beta", 2).await;
    let id = &id_of(&world.must(&["plan", "--tenant", &other, "--to", "s1"]));
    world.must(&["start", id]);
    world.must(&["backfill", id]);
    let waived = world.must(&["cutover", id, "--no-verify"]);
    assert_eq!((&waived["stage"], &waived["verification"]["status"]), (&"guarding".into(), &"waived".into()));
}

/// Buckets by number and by share, tenants by pattern.
#[tokio::test(flavor = "multi_thread")]
async fn what_moves_is_said_in_many_ways() {
    let world = World::start(SQLITE).await;
    for n in 0..100 {
        world.admin.execute("INSERT INTO users VALUES ($1, 'x')", &[&(n as i64)]).await.unwrap();
    }
    let owner_of = |routing: &serde_json::Value, bucket: u64| {
        let ranges = routing["data"]["groups"]["users"].as_array().unwrap().clone();
        let of = ranges.into_iter().find(|range| range["last"].as_u64().unwrap() >= bucket).unwrap();
        of["shard"].as_str().unwrap().to_owned()
    };
    let first = world.must(&["run", "--buckets", "users/0-1,3", "--to", "s2", "--complete"]);
    assert_eq!(first["buckets"]["ranges"].as_array().unwrap().len(), 2, "{first}");
    let routing = world.get("/admin/routing").1;
    assert_eq!([0, 1, 2, 3].map(|bucket| owner_of(&routing, bucket)), ["s2", "s2", "s0", "s2"]);
    // s0 has 0-5 of 16 buckets, and now 2, 4 and 5.
    let share = world.must(&["run", "--share", "users/50%", "--from", "s0", "--to", "s1", "--complete", "--no-verify"]);
    assert_eq!(
        (&share["verification"]["status"], &share["backfill"]["status"]),
        (&"waived".into(), &"completed".into())
    );
    let routing = world.get("/admin/routing").1;
    assert_eq!([2, 4, 5].map(|bucket| owner_of(&routing, bucket)), ["s0", "s1", "s1"]);
    let counted: i64 = world.admin.query_one("SELECT count(*) FROM users", &[]).await.unwrap().get(0);
    assert_eq!(counted, 100);
    for prefix in ["likea", "likeb", "other"] {
        world.tenant_on("s0", prefix, 2).await;
    }
    let moved = world.must(&["run", "--tenant", "like%", "--from", "s0", "--to", "s1"]);
    let names: Vec<&str> = moved["tenantIds"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
    assert!(names.len() == 2 && names[0].starts_with("likea") && names[1].starts_with("likeb"), "{names:?}");
}

/// Bad input gets a clear refusal, by its code.
#[tokio::test(flavor = "multi_thread")]
async fn bad_input_is_refused() {
    let world = World::start(SQLITE).await;
    let name = world.tenant_on("s0", "acme", 3).await;
    let other = world.tenant_on("s1", "beta", 3).await;
    let refused = |arguments: &[&str]| world.moves(&[arguments, &["--json"]].concat()).refused();
    for (arguments, expected) in [
        (["plan", "--to", "s1"].as_slice(), (2, "usage")),
        (&["plan", "--tenant", &name], (2, "usage")),
        (&["plan", "--tenant", &name, "--buckets", "users/1", "--to", "s1"], (2, "usage")),
        (&["plan", "--tenant", "", "--to", "s1"], (1, "22023")),
        (&["plan", "--tenant", &name, "--to", "nowhere"], (1, "22023")),
        (&["plan", "--tenant", &name, "--to", "No Shard"], (1, "22023")),
        (&["plan", "--tenant", &name, "--from", "s1", "--to", "s2"], (1, "22023")),
        (&["plan", "--tenant", &name, "--tenant", &other, "--to", "s2"], (1, "22023")),
        (&["plan", "--tenant", "nobody%", "--to", "s2"], (1, "no_tenants")),
        (&["plan", "--tenant", &name, "--to", "s1", "--pause-limit", "1 day"], (1, "22023")),
        (&["plan", "--tenant", &name, "--to", "s1", "--pause-limit", "2h"], (1, "22023")),
        (&["plan", "--tenant", &name, "--to", "s1", "--pause-limit", "61s"], (1, "22023")),
        (&["plan", "--buckets", "users", "--to", "s1"], (1, "22023")),
        (&["plan", "--buckets", "users/5-2", "--to", "s1"], (1, "22023")),
        (&["plan", "--buckets", "users/99", "--to", "s1"], (1, "22023")),
        (&["plan", "--buckets", "nothing/1", "--to", "s1"], (1, "22023")),
        (&["plan", "--share", "users", "--to", "s1"], (2, "usage")),
        (&["plan", "--share", "users/0%", "--to", "s1"], (2, "usage")),
        (&["plan", "--share", "users/10%", "--to", "s1"], (2, "usage")),
        (&["plan", "--share", "nothing/10%", "--to", "s1"], (1, "no_buckets")),
        (&["run"], (2, "usage")),
        (&["run", "m0", "--tenant", &name], (2, "usage")),
        (&["run", "m0"], (1, "42704")),
        (&["start"], (2, "usage")),
        (&["start", "m0"], (1, "42704")),
        (&["backfill", "m0"], (1, "42704")),
        (&["tail", "m0"], (1, "42704")),
        (&["verify", "m0", "--repair"], (1, "42704")),
        (&["cutover", "m0", "--no-verify"], (1, "42704")),
        (&["rollback", "it's; drop"], (1, "42704")),
        (&["complete", "m0"], (1, "42704")),
        (&["status", "m0"], (1, "42704")),
        (&["list", "more"], (2, "usage")),
        (&["frobnicate"], (2, "usage")),
    ] {
        assert_eq!(refused(arguments), (expected.0, expected.1.to_owned()), "{arguments:?}");
    }
    world.must(&["plan", "--tenant", &name, "--to", "s1"]);
    assert_eq!(refused(&["plan", "--tenant", &name, "--to", "s2"]), (1, "22023".into()), "a plan moves it already");
    assert_eq!(world.must(&["list"])["moves"].as_array().unwrap().len(), 1);
}

/// Who is not an administrator neither moves nor sees moves.
#[tokio::test(flavor = "multi_thread")]
async fn only_administrators_move() {
    let world = World::start(SQLITE).await;
    let name = world.tenant_on("s0", "acme", 3).await;
    world.admin.batch_execute("CREATE USER bob PASSWORD 'two'").await.unwrap();
    for arguments in [
        ["run", "--tenant", &name, "--to", "s1", "--json"].as_slice(),
        &["plan", "--buckets", "users/1", "--to", "s1", "--dry-run", "--json"],
        &["rollback", "m0", "--json"],
        &["status", "m0", "--json"],
        &["list", "--json"],
    ] {
        assert_eq!(world.moves_as("bob:two", arguments).refused(), (1, "42501".into()), "{arguments:?}");
    }
    assert_eq!(world.moves_as("bob:wrong", &["list", "--json"]).refused(), (2, "28P01".into()));
    assert_eq!(world.must(&["list"])["moves"].as_array().unwrap().len(), 0);
}
