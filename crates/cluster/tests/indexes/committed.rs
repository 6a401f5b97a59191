//! Statements of PostgreSQL transactions, overtaken between the look at an index and their snapshot.
//!
//! A table is locked on the shards' own servers, so that a statement that joins it waits there, after it was led and before
//! it has a snapshot of what it is led to. Meanwhile another client gives its key to a row on another shard.

use super::World;
use super::failures::{settle, users};
use super::harness::Client;
use super::leading::work;
use isles_cluster::database::ShardPlace;
use std::time::Duration;
use tokio_postgres::NoTls;

/// Connections to the shards' own databases, each in a transaction that has locked a table.
struct Locked(Vec<tokio_postgres::Client>);

impl Locked {
    async fn on_all(world: &World, table: &str) -> Locked {
        let mut all = Vec::new();
        for place in &world.config.shards {
            let ShardPlace::Postgres { url } = place else { panic!("a shard of PostgreSQL") };
            let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
            tokio::spawn(connection);
            client.batch_execute(&format!("BEGIN; LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")).await.unwrap();
            all.push(client);
        }
        Locked(all)
    }

    /// Until somebody waits for the lock on a shard.
    async fn is_waited_for(&self) {
        let text = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'relation' \
                    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())";
        loop {
            for client in &self.0 {
                if client.query_one(text, &[]).await.unwrap().get::<_, i64>(0) > 0 {
                    return;
                }
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn let_go(self) {
        for client in self.0 {
            client.batch_execute("ROLLBACK").await.unwrap();
        }
    }
}

/// Ids of two rows on different shards, neither of them the home: the key goes from one to the other and back, so there is
/// always a row with it.
async fn two_shards(world: &World, client: &mut Client) -> (i32, i32) {
    let mut first = None;
    for id in 0..40 {
        let before = work(world);
        client.run(&format!("SELECT n FROM users WHERE id = {id}")).await;
        let on =
            before.into_iter().zip(work(world)).find(|(before, after)| before != after).expect("one was asked").0.0;
        if on == world.database.shard_names()[0] {
            continue;
        }
        match &first {
            None => first = Some((id, on)),
            Some((first, other)) if *other != on => return (*first, id),
            Some(_) => {}
        }
    }
    panic!("all on one shard");
}

/// I-24: (planted bug 10) there is always one row with the key, and every statement that is led by it finds one.
#[tokio::test(flavor = "multi_thread")]
async fn a_statement_at_read_committed_goes_where_its_key_has_gone() {
    let world = World::postgres().await;
    let mut client = users(&world).await;
    client.run("CREATE TABLE plans (id int PRIMARY KEY, step int) WITH (kind = 'reference')").await;
    client.run("INSERT INTO plans VALUES (1, 1)").await;
    client.run("INSERT INTO users SELECT i, 'e' || i, 0 FROM generate_series(0, 39) AS s (i)").await;
    let (mut holder, mut other) = two_shards(&world, &mut client).await;
    client.run(&format!("UPDATE users SET email = 'key' WHERE id = {holder}")).await;
    let shown = client.run("EXPLAIN SELECT u.id FROM users u, plans p WHERE u.email = 'key'").await.join("\n");
    assert!(shown.contains("users_email"), "{shown}");
    for (begun, sql, wanted) in [
        (false, "SELECT count(*) FROM users u JOIN plans p ON p.id = 1 WHERE u.email = 'key'", "1"),
        (true, "SELECT count(*) FROM users u JOIN plans p ON p.id = 1 WHERE u.email = 'key'", "1"),
        (true, "SELECT u.n * 0 FROM users u JOIN plans p ON p.id = 1 WHERE u.email = 'key'", "0"),
        (true, "UPDATE users SET n = n + (SELECT step FROM plans WHERE id = 1) WHERE email = 'key'", "UPDATE 1"),
        (false, "UPDATE users SET n = n + (SELECT step FROM plans WHERE id = 1) WHERE email = 'key'", "UPDATE 1"),
        (true, "DELETE FROM users u USING plans p WHERE p.id = 1 AND u.email = 'key'", "DELETE 1"),
    ] {
        settle(&world).await;
        let locked = Locked::on_all(&world, "plans").await;
        let mut reader = world.client();
        let reading = tokio::spawn(async move {
            reader.run("BEGIN ISOLATION LEVEL READ COMMITTED").await;
            if begun {
                reader.run("SELECT n FROM users WHERE email = 'e39'").await;
            }
            let found = reader.run(sql).await;
            reader.run("ROLLBACK").await;
            found
        });
        locked.is_waited_for().await;
        client.run("BEGIN").await;
        client.run(&format!("UPDATE users SET email = 'none' WHERE id = {holder}")).await;
        client.run(&format!("UPDATE users SET email = 'key' WHERE id = {other}")).await;
        client.run("COMMIT").await;
        std::mem::swap(&mut holder, &mut other);
        locked.let_go().await;
        assert_eq!(reading.await.unwrap(), [wanted], "{sql}");
    }
    assert!(world.database.index_work().overtaken >= 6, "each was overtaken");
}

/// I-24: whoever keeps a snapshot compares when it has it. It waits for a table on the home, after it was led.
#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_keeps_its_snapshot_goes_where_its_key_has_gone() {
    let world = World::postgres().await;
    let mut client = users(&world).await;
    client.run("CREATE TABLE slow (id int PRIMARY KEY) WITH (kind = 'global')").await;
    client.run("INSERT INTO slow VALUES (1)").await;
    client.run("INSERT INTO users SELECT i, 'e' || i, 0 FROM generate_series(0, 39) AS s (i)").await;
    let (mut holder, mut other) = two_shards(&world, &mut client).await;
    client.run(&format!("UPDATE users SET email = 'key' WHERE id = {holder}")).await;
    for level in ["REPEATABLE READ", "SERIALIZABLE", "REPEATABLE READ READ ONLY"] {
        settle(&world).await;
        let locked = Locked::on_all(&world, "slow").await;
        let mut reader = world.client();
        let reading = tokio::spawn(async move {
            reader.run(&format!("BEGIN ISOLATION LEVEL {level}")).await;
            let found = reader.run("SELECT u.id FROM slow s, users u WHERE u.email = 'key' AND u.n < s.id").await;
            reader.run("ROLLBACK").await;
            found
        });
        locked.is_waited_for().await;
        // Two commits of one shard each: there is always a row with the key.
        client.run(&format!("UPDATE users SET email = 'key' WHERE id = {other}")).await;
        client.run(&format!("UPDATE users SET email = 'none' WHERE id = {holder}")).await;
        std::mem::swap(&mut holder, &mut other);
        locked.let_go().await;
        assert_eq!(reading.await.unwrap(), [holder.to_string()], "{level}");
    }
    assert!(world.database.index_work().overtaken >= 3, "each was overtaken");
}
