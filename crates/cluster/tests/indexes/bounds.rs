//! What indexes take is bounded: entries that a look reads, additions that are noted, and how far entries are behind.

use super::World;
use super::failures::{by_email, settle, users};
use super::harness::Client;
use super::leading::{asked, work};
use isles_cluster::indexes::Limits;
use std::time::Duration;

async fn limited(world: World, change: impl FnOnce(&mut Limits)) -> World {
    world.reopen_with(|config| change(&mut config.index_limits)).await
}

/// The fields of an index as operators see it.
async fn shown(client: &mut Client) -> Vec<String> {
    client.run("SHOW INDEXES").await[0].split('|').map(str::to_string).collect()
}

async fn is_used(client: &mut Client) -> bool {
    shown(client).await[4] == "t"
}

/// A long range ends its look as soon as all shards are named, and one that names few reads so many entries and no more.
pub(crate) async fn a_long_range_reads_few_entries(world: World) {
    let world = limited(world, |limits| limits.entries = 500).await;
    let mut client = world.client();
    client.run("CREATE TABLE visits (id int PRIMARY KEY, owner text, at int) WITH (\"group\" = 'visits')").await;
    client.run("CREATE INDEX visits_at ON visits (at) WITH (global)").await;
    client.run("WAIT FOR INDEX visits_at").await;
    client.run("INSERT INTO visits SELECT i, 'x', i FROM generate_series(1, 8000) AS s (i)").await;
    settle(&world).await;
    for sql in ["SELECT count(*) FROM visits WHERE at > 0", "SELECT id FROM visits WHERE at > 7990 ORDER BY at LIMIT 3"]
    {
        client.run(sql).await;
    }
    let before = world.database.index_work();
    assert_eq!(client.run("SELECT count(*) FROM visits WHERE at > 10").await, ["7990"]);
    let top = client.run("SELECT id FROM visits WHERE at > 5 ORDER BY at LIMIT 3").await;
    assert_eq!(top, ["6", "7", "8"]);
    let after = world.database.index_work();
    let read = after.read - before.read;
    assert!(read > 0 && read < 2 * 4 * 150, "{read} entries were read");
    assert_eq!(after.fallbacks, before.fallbacks, "the index has named all shards");
    let shown = client.run("EXPLAIN SELECT * FROM visits WHERE at > 5").await.join("\n");
    assert!(shown.contains("Found: all shards have such rows"), "{shown}");
    // All rows of one owner are on one shard: many entries, and never more than one shard is named.
    client.run("CREATE TABLE files (id int, owner text, PRIMARY KEY (owner, id)) WITH (shard_by = 'owner')").await;
    client.run("CREATE INDEX files_id ON files (id) WITH (global)").await;
    client.run("WAIT FOR INDEX files_id").await;
    client.run("INSERT INTO files SELECT i, 'ann' FROM generate_series(1, 9000) AS s (i)").await;
    settle(&world).await;
    let before = world.database.index_work();
    assert_eq!(client.run("SELECT count(*) FROM files WHERE id > 100").await, ["8900"]);
    let after = world.database.index_work();
    assert_eq!(after.fallbacks, before.fallbacks + 1, "more entries than a look reads");
    assert!(after.read - before.read < 4 * 700, "{} entries were read", after.read - before.read);
    let before = work(&world);
    assert_eq!(client.run("SELECT count(*) FROM files WHERE id BETWEEN 7 AND 9").await, ["3"]);
    assert_eq!(asked(&before, &work(&world)), 1, "a short range leads to the one shard");
}

/// I-24: writes of other keys do not overtake a range, although it goes over all entry buckets.
pub(crate) async fn a_range_is_overtaken_by_its_own_keys_only(world: World) {
    let mut client = users(&world).await;
    client.run("INSERT INTO users SELECT i, 'a' || i, 0 FROM generate_series(1, 3) AS s (i)").await;
    settle(&world).await;
    let writer = tokio::spawn({
        let mut client = world.client();
        async move {
            for id in 100..400 {
                client.run(&format!("INSERT INTO users VALUES ({id}, 'z{id}', 0)")).await;
            }
        }
    });
    let before = world.database.index_work();
    let mut looks = 0;
    while !writer.is_finished() {
        let sql = "SELECT id FROM users WHERE email > 'a1' AND email < 'a3' ORDER BY id";
        assert_eq!(client.run(sql).await, ["2"]);
        looks += 1;
    }
    writer.await.unwrap();
    let after = world.database.index_work();
    assert!(looks > 5, "{looks} looks meanwhile");
    assert!(after.lookups - before.lookups >= looks - 1, "{looks} looks, {} led", after.lookups - before.lookups);
    assert!(after.fallbacks - before.fallbacks <= looks / 5, "{} asked all shards", after.fallbacks - before.fallbacks);
}

/// Many rows with one value take a note for each bucket, so the index goes on leading.
pub(crate) async fn rows_with_one_value_are_noted_once_for_each_bucket(world: World) {
    let world = limited(world, |limits| limits.additions = 500).await;
    let mut client = world.client();
    client.run("CREATE TABLE users (id int PRIMARY KEY, email text, n int) WITH (buckets = 64)").await;
    client.run("CREATE INDEX users_email ON users (email) WITH (global)").await;
    client.run("WAIT FOR INDEX users_email").await;
    for from in [0, 3_000] {
        client
            .run(&format!("INSERT INTO users SELECT i + {from}, 'same', 0 FROM generate_series(1, 3000) AS s (i)"))
            .await;
        assert!(is_used(&mut client).await);
    }
    assert_eq!(world.database.index_work().fallbacks, 0);
    assert_eq!(client.run("SELECT count(*) FROM users WHERE email = 'same'").await, ["6000"]);
    settle(&world).await;
    assert!(client.run("VERIFY INDEX users_email").await[0].ends_with("|0|0|0"));
}

/// I-23: where more is written than can be noted all shards are asked, and when that is applied the index leads again.
pub(crate) async fn what_was_forgotten_is_read_when_it_is_applied(world: World) {
    let world = limited(world, |limits| limits.additions = 50).await;
    let mut client = users(&world).await;
    for round in 0..3 {
        let first = 1_000 * round;
        let before = world.database.index_work().fallbacks;
        client
            .run(&format!(
                "INSERT INTO users SELECT i, 'e' || i, 0 FROM generate_series({first}, {}) AS s (i)",
                first + 499
            ))
            .await;
        for id in (first..first + 500).step_by(50) {
            assert_eq!(by_email(&mut client, &format!("e{id}")).await, [id.to_string()]);
        }
        assert!(world.database.index_work().fallbacks > before, "it could not be asked");
        settle(&world).await;
        assert!(is_used(&mut client).await);
        let before = work(&world);
        assert_eq!(by_email(&mut client, &format!("e{}", first + 7)).await, [(first + 7).to_string()]);
        assert_eq!(asked(&before, &work(&world)), 1);
    }
    assert_eq!(client.run("VERIFY INDEX users_email").await, ["1500|0|0|0"]);
}

/// Writes wait, each a little, while entries are further behind than they may be, and never where they keep up.
pub(crate) async fn writes_wait_for_entries_that_are_far_behind(world: World) {
    let mut client = users(&world).await;
    client.run("INSERT INTO users SELECT i, 'e' || i, 0 FROM generate_series(1, 2000) AS s (i)").await;
    client.run("UPDATE users SET email = email || 'x'").await;
    assert_eq!(world.database.index_work().delays, 0, "no write waits in ordinary times");
    let world = limited(world, |limits| limits.lag = 20).await;
    let mut client = world.client();
    client.run("CREATE TABLE plain (id int PRIMARY KEY)").await;
    client.run("WAIT FOR INDEX users_email").await;
    for round in 0..20 {
        let first = 10_000 + 100 * round;
        let last = first + 99;
        client
            .run(&format!("INSERT INTO users SELECT i, 'e' || i, 0 FROM generate_series({first}, {last}) AS s (i)"))
            .await;
        let began = std::time::Instant::now();
        client.run(&format!("INSERT INTO plain VALUES ({round})")).await;
        client.run("SELECT count(*) FROM users WHERE email = 'e7x'").await;
        assert!(began.elapsed() < Duration::from_secs(5));
    }
    let work = world.database.index_work();
    assert!(work.delays > 0 && work.delayed_ms > 0, "{work:?}");
    assert!(work.delayed_ms <= 1_100 * work.delays, "a wait is bounded: {work:?}");
    settle(&world).await;
    let delays = world.database.index_work().delays;
    client.run("INSERT INTO users VALUES (1, 'late', 0) ON CONFLICT (id) DO NOTHING").await;
    assert_eq!(world.database.index_work().delays, delays, "they have caught up");
    assert!(client.run("VERIFY INDEX users_email").await[0].ends_with("|0|0|0"));
}

/// A lag is of changes that wait for an index, and begins when they do.
pub(crate) async fn lag_is_of_what_an_index_waits_for(world: World) {
    let mut client = world.client();
    client.run("CREATE TABLE users (id int PRIMARY KEY, email text, n int)").await;
    client.run("INSERT INTO users SELECT i, 'e' || i % 10, 0 FROM generate_series(1, 500) AS s (i)").await;
    client.run("CREATE INDEX users_email ON users (email) WITH (global)").await;
    let began = std::time::Instant::now();
    let mut id = 1_000;
    let (mut behind, mut applied) = (0, 0);
    while began.elapsed() < Duration::from_millis(1_500) || id < 1_050 {
        client.run(&format!("INSERT INTO users VALUES ({id}, 'new', 0)")).await;
        id += 1;
        for info in world.database.global_indexes().await.unwrap() {
            assert!(info.lag_ms < 60_000, "{info:?}");
            behind = info.lag.max(behind);
            applied = applied.max(info.applied.len());
        }
    }
    assert!(behind > 0, "there was some");
    assert_eq!(applied, 4, "a position for each shard");
    // On PostgreSQL what is written to the entries moves the end of the log as well.
    let began = std::time::Instant::now();
    loop {
        settle(&world).await;
        let info = &world.database.global_indexes().await.unwrap()[0];
        if (info.lag, info.lag_ms) == (0, 0) {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "{info:?}");
    }
}

/// On SQLite an update that leaves all indexed columns as they are costs the log and the appliers nothing.
#[tokio::test(flavor = "multi_thread")]
async fn an_update_of_other_columns_is_no_change_for_an_index() {
    let world = World::sqlite().await;
    let mut client = users(&world).await;
    client.run("INSERT INTO users SELECT i, 'e' || i, 0 FROM generate_series(1, 100) AS s (i)").await;
    settle(&world).await;
    let changes = world.database.index_work().changes;
    for id in 1..=20 {
        client.run(&format!("UPDATE users SET n = n + 1 WHERE id = {id}")).await;
    }
    settle(&world).await;
    assert_eq!(world.database.index_work().changes, changes);
    client.run("UPDATE users SET n = 0, email = 'new' WHERE id = 7").await;
    client.run("UPDATE users SET id = 1007 WHERE id = 8").await;
    settle(&world).await;
    assert!(world.database.index_work().changes >= changes + 2);
    assert_eq!(by_email(&mut client, "new").await, ["7"]);
    // Whatever a predicate or an expression is over may matter.
    client.run("CREATE INDEX users_busy ON users (email) WITH (global) WHERE n > 0").await;
    client.run("WAIT FOR INDEX users_busy").await;
    client.run("UPDATE users SET n = 5 WHERE id = 9").await;
    settle(&world).await;
    for index in ["users_email", "users_busy"] {
        assert!(client.run(&format!("VERIFY INDEX {index}")).await[0].ends_with("|0|0|0"), "{index}");
    }
}
