//! Bugs that were planted, and what finds them; and what only one kind of database has.

use crate::outbox::all;
use crate::world::{World, add_user, fragment, killed_after, names, shard, user, within};
use isles_fragments::adapter::postgres::Postgres;
use isles_fragments::adapter::{Access, Mode, Tick};
use isles_fragments::shard::Strategy;
use isles_fragments::store::{Planted, Store};
use isles_fragments::surroundings::Surroundings;
use isles_fragments::uow::Attempts;
use isles_fragments::{Error, Value};
use isles_kernel::sync::{Cursor, OutboxQuery};
use isles_sim::pgserver::{PgOptions, PgServer};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Sweeps over the moments of a unit of work until the bug is found; one is enough on a calm machine.
const SWEEPS: usize = 20;
/// Of a writer that meets a cutover: some ten seconds.
const PATIENT: Attempts = Attempts { retries: 100, first_wait_ms: 5, longest_wait_ms: 200 };

/// I-2, planted bug 11: an entry that is written in a transaction of its own is missing after some crash.
#[tokio::test(flavor = "multi_thread")]
async fn an_outbox_entry_in_a_second_transaction_is_found() {
    let world = World::sqlite().await;
    let (adapter, planted) = (world.adapter.clone(), Some(Planted::OutboxApart));
    let opened = Store::open_in(Surroundings::current(), adapter, Some(Strategy::Row), planted).await;
    let (store, global) = opened.unwrap();
    let app = store.register(fragment(), None).await.unwrap();
    let mut lost = 0;
    // How many polls a unit of work takes depends on who is faster, so a sweep may miss the moment.
    for (sweep, polls) in (0..SWEEPS).flat_map(|sweep| (1..60).map(move |polls| (sweep, polls))) {
        if lost > 0 {
            break;
        }
        let name = format!("t{sweep}-{polls}");
        within(&name, async {
            let tx = app.handler_tx().mutate(|m, _| m.create("users", user("x")));
            let _killed = killed_after(polls, tx.execute()).await;
        })
        .await;
        let mut tx = world.adapter.begin(&Access::of_shard(&global, shard(&name)), Mode::Write).await.unwrap();
        tx.tick(Tick::Hold).await.unwrap();
        tx.roll_back().await;
        let (rows, entries) = within(&name, async {
            let page = app.store().outbox(&OutboxQuery::default()).await.unwrap();
            (names(&app).await.len(), page.entries.len())
        })
        .await;
        lost += usize::from(rows != entries);
    }
    assert!(lost > 0, "the planted bug is not found");
}

/// I-30, planted bug 12: versions that are not held until the commit appear out of order, and a reader skips one.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_trusts_loose_versions_is_found() {
    let world = World::postgres().await;
    let url = world.url.clone().unwrap();
    let planted = isles_fragments::adapter::Planted::LooseClock;
    let loose = Arc::new(Postgres::planted(&url, Some(planted)).unwrap());
    let (store, global) = Store::open(loose.clone(), Some(Strategy::Row)).await.unwrap();
    let app = store.register(fragment(), None).await.unwrap();
    // A long transaction takes its version first and commits last.
    let mut long =
        isles_fragments::adapter::Adapter::begin(&*loose, &Access::of_shard(&global, shard("a")), Mode::Write)
            .await
            .unwrap();
    let clock = long.tick(Tick::Next("00000000-0000-0000-0000-000000000001")).await.unwrap();
    assert_eq!(clock.version, 1);
    within("a", add_user(&app, "short", user("x"))).await.unwrap();
    let seen = within("a", app.store().outbox(&OutboxQuery::default())).await.unwrap();
    assert!(seen.check(Cursor::START).is_err(), "version 2 is read before version 1 is there");
    long.roll_back().await;
}

/// I-30: the same two transactions with the real clock: the short one waits for the long one's version.
#[tokio::test(flavor = "multi_thread")]
async fn a_short_transaction_waits_for_the_version_of_a_long_one() {
    let world = World::postgres().await;
    let (app, global) = world.app_with(Some(Strategy::Row), fragment()).await;
    let mut long = world.adapter.begin(&Access::of_shard(&global, shard("a")), Mode::Write).await.unwrap();
    long.tick(Tick::Next("00000000-0000-0000-0000-000000000001")).await.unwrap();
    let short = {
        let app = app.clone();
        tokio::spawn(within("a", async move { add_user(&app, "short", user("x")).await }))
    };
    for _ in 0..10 {
        assert!(within("a", all(&app)).await.entries.is_empty());
    }
    assert!(!short.is_finished());
    long.roll_back().await;
    short.await.unwrap().unwrap();
    let page = within("a", all(&app)).await;
    assert_eq!((page.entries.len(), page.next.version().get()), (1, 1), "the version that was given back is used");
}

/// Waits until somebody in the test's database waits for a lock, and does this to its server process.
async fn do_to_who_waits(world: &World, action: &str) {
    let sql = format!(
        "SELECT {action}(pid)::text FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    );
    let (client, connection) =
        tokio_postgres::connect(world.url.as_ref().unwrap(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    while client.query(&sql, &[]).await.unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A unit of work in one exchange that the server ends before its last statement has not happened, and says so.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_server_ends_before_the_commit_has_not_happened() {
    let world = World::postgres().await;
    let (app, global) = world.app_with(Some(Strategy::Row), fragment()).await;
    for (action, expected) in [("pg_terminate_backend", "08006"), ("pg_cancel_backend", "57014")] {
        let mut long = world.adapter.begin(&Access::of_shard(&global, shard("a")), Mode::Write).await.unwrap();
        long.tick(Tick::Hold).await.unwrap();
        let short = {
            let app = app.clone();
            tokio::spawn(within("a", async move { add_user(&app, "short", user("x")).await }))
        };
        do_to_who_waits(&world, action).await;
        assert_eq!(short.await.unwrap().unwrap_err().sqlstate(), expected);
        long.roll_back().await;
        assert_eq!(within("a", names(&app)).await.len(), 0);
    }
    within("a", add_user(&app, "short", user("x"))).await.unwrap();
    assert_eq!(within("a", all(&app)).await.next.version().get(), 1, "no version is used up");
}

/// The same without a word of the server: nobody can know.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_lost_in_one_exchange_may_have_happened() {
    let server = PgServer::start(PgOptions { fsync: false, settings: Vec::new() });
    let adapter = Arc::new(Postgres::new(&server.create_database()).unwrap());
    let (store, global) = Store::open(adapter.clone(), Some(Strategy::Row)).await.unwrap();
    let app = store.register(fragment(), None).await.unwrap();
    let mut long =
        isles_fragments::adapter::Adapter::begin(&*adapter, &Access::of_shard(&global, shard("a")), Mode::Write)
            .await
            .unwrap();
    long.tick(Tick::Hold).await.unwrap();
    let mut short = Box::pin(within("a", add_user(&app, "short", user("x"))));
    assert!(tokio::time::timeout(Duration::from_millis(200), &mut short).await.is_err(), "it waits for the clock");
    server.kill9();
    let error = short.await.unwrap_err();
    assert!(matches!(error, Error::MayHaveHappened(_)), "{error:?}");
    drop(long);
    server.restart();
    within("a", add_user(&app, "short", user("x"))).await.unwrap();
    assert_eq!(within("a", names(&app)).await, ["x"], "connections that are gone are not lent");
}

/// Writers wait for a clock, and then see what the one before has done, whatever a database has for a default.
#[tokio::test(flavor = "multi_thread")]
async fn a_stricter_default_refuses_nobody_who_waits() {
    let world = World::postgres().await;
    let url = world.url.clone().unwrap();
    let name = url.rsplit('/').next().unwrap().to_string();
    world.sql(&format!("ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'")).await;
    let (store, _) = Store::open(Arc::new(Postgres::new(&url).unwrap()), Some(Strategy::Row)).await.unwrap();
    let app = store.register(fragment(), None).await.unwrap();
    let write = || within("a", async { app.handler_tx().mutate(|m, _| m.create("users", user("x"))).execute().await });
    for _ in 0..5 {
        let done = futures::future::join_all((0..16).map(|_| write())).await;
        done.into_iter().for_each(|done| drop(done.unwrap()));
    }
    assert_eq!(within("a", all(&app)).await.entries.len(), 80);
}

/// I-44: one exchange says its shard to row level security before it writes, and only until its end.
#[tokio::test(flavor = "multi_thread")]
async fn one_exchange_says_its_shard_to_row_level_security() {
    let world = World::postgres().await;
    world.app().await;
    world
        .sql(
            "DROP ROLE IF EXISTS exchange_app; CREATE ROLE exchange_app LOGIN; \
              GRANT ALL ON ALL TABLES IN SCHEMA public TO exchange_app",
        )
        .await;
    let url = world.url.as_ref().unwrap().replace("postgres@", "exchange_app@");
    let (store, _) = Store::open(Arc::new(Postgres::new(&url).unwrap()), Some(Strategy::Row)).await.unwrap();
    let app = store.register(fragment(), None).await.unwrap();
    // One after the other, on one connection.
    for name in ["a", "b", "a"] {
        within(name, async { app.handler_tx().mutate(move |m, _| m.create("users", user(name))).execute().await })
            .await
            .unwrap();
    }
    assert_eq!(within("a", names(&app)).await, ["a", "a"]);
    assert_eq!(within("b", names(&app)).await, ["b"]);
    assert_eq!(within("b", all(&app)).await.next.version().get(), 1);
    world.sql("DROP OWNED BY exchange_app; DROP ROLE exchange_app").await;
}

/// I-31: the cursor of a client goes on while its tenant moves to another shard, and writers write.
#[tokio::test(flavor = "multi_thread")]
async fn cursors_go_on_while_their_tenant_moves() {
    let world = World::isles().await;
    let app = world.app().await;
    /// Written when the tenant is at its new place.
    const AFTER: usize = 10;
    let (moved, finished) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    within("acme", add_user(&app, "u", user("first"))).await.unwrap();
    let place = async || world.ask("SHOW TENANT acme").await[0][1].clone();
    let from = place().await;
    let to = if from == Value::text("s0") { "s1" } else { "s0" };
    let writer = {
        let (app, seen, done) = (app.clone(), moved.clone(), finished.clone());
        tokio::spawn(within("acme", async move {
            let (mut written, mut after) = (1, 0);
            while after < AFTER {
                after += usize::from(seen.load(Ordering::SeqCst));
                let tx = app.handler_tx().retrieve(|r| r.count(isles_fragments::query::Find::of("users")).map(|_| ()));
                // Where everything is slow, a cutover may last longer than others are patient.
                let patient = tx.mutate(|m, _| m.create("users", user("x"))).retry(PATIENT);
                patient.execute().await.unwrap();
                written += 1;
            }
            done.store(true, Ordering::SeqCst);
            written
        }))
    };
    let reader = {
        let (app, done) = (app.clone(), finished.clone());
        tokio::spawn(within("acme", async move {
            let (mut cursor, mut seen) = (Cursor::START, 0);
            loop {
                let last = done.load(Ordering::SeqCst);
                let query = OutboxQuery { after: Some(cursor), wait_ms: Some(200), ..OutboxQuery::default() };
                let page = app.store().outbox(&query).await.unwrap();
                page.check(cursor).expect("dense and in order, across the move");
                seen += page.entries.len();
                cursor = page.next;
                if last && page.entries.is_empty() {
                    break;
                }
            }
            assert_eq!(seen as u64, cursor.version().get());
            cursor.version().get()
        }))
    };
    world.ask(&format!("CREATE MOVE OF TENANTS (acme) TO {to} WITH (auto, complete, unknown_tenants)")).await;
    while place().await == from {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // And on the other side.
    moved.store(true, Ordering::SeqCst);
    let written = writer.await.unwrap();
    assert_eq!(reader.await.unwrap(), written as u64);
    assert_eq!(within("acme", names(&app)).await.len(), written);
}
