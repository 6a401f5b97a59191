//! EXPLAIN ANALYZE: what each shard did, with numbers that add up.

use crate::harness::{Client, Db};
use isles_sim::pgserver;
use serde_json::Value;

/// The entries of a plan with rows, as (name, rows), from the top.
async fn executed(client: &mut Client, sql: &str) -> Vec<(String, u64)> {
    let text = client.run(&format!("EXPLAIN (FORMAT JSON, ANALYZE) {sql}")).await.concat();
    let mut found = Vec::new();
    collect(&serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")), &mut found);
    assert!(found.iter().all(|(_, _, ms)| (0.0..60_000.0).contains(ms)), "{text}");
    found.into_iter().map(|(name, rows, _)| (name, rows)).collect()
}

fn collect(entries: &Value, found: &mut Vec<(String, u64, f64)>) {
    for entry in entries.as_array().unwrap() {
        if let Some(rows) = entry.get("rows") {
            let name = entry["name"].as_str().unwrap().to_string();
            found.push((name, rows.as_u64().unwrap(), entry["ms"].as_f64().unwrap()));
        }
        if let Some(below) = entry.get("below") {
            collect(below, found);
        }
    }
}

fn on_shards(executed: &[(String, u64)]) -> Vec<u64> {
    executed.iter().filter(|(name, _)| name.starts_with("Shard ")).map(|(_, rows)| *rows).collect()
}

fn of(executed: &[(String, u64)], name: &str) -> Vec<u64> {
    executed.iter().filter(|(known, _)| known == name).map(|(_, rows)| *rows).collect()
}

async fn numbers_add_up(db: &Db, shards: usize) {
    let mut client = db.client();
    client.run("CREATE TABLE t (id int PRIMARY KEY, v int)").await;
    client.run("CREATE TABLE u (id int PRIMARY KEY, v int) WITH (\"group\" = 'others')").await;
    let inserted = executed(&mut client, "INSERT INTO t SELECT n, n % 10 FROM generate_series(1, 100) n").await;
    assert_eq!(on_shards(&inserted).iter().sum::<u64>(), 100, "{inserted:?}");
    assert_eq!(of(&inserted, "Total"), [100]);
    client.run("INSERT INTO u SELECT n, n FROM generate_series(1, 10) n").await;

    let all = executed(&mut client, "SELECT id FROM t").await;
    assert_eq!((on_shards(&all).len(), on_shards(&all).iter().sum::<u64>()), (shards, 100), "{all:?}");
    assert_eq!((of(&all, "Router"), of(&all, "Total")), (vec![100], vec![100]));

    // Each shard gives at most five, and the router keeps five of them.
    let few = executed(&mut client, "SELECT id FROM t ORDER BY v, id LIMIT 5").await;
    assert_eq!(on_shards(&few), vec![5; shards], "{few:?}");
    assert_eq!((of(&few, "Router"), of(&few, "Total")), (vec![5], vec![5]));

    let one = executed(&mut client, "SELECT v FROM t WHERE id = 7").await;
    assert_eq!((on_shards(&one), of(&one, "Total")), (vec![1], vec![1]), "{one:?}");

    let counted = executed(&mut client, "SELECT v, count(*) FROM t GROUP BY v").await;
    assert_eq!(on_shards(&counted).len(), shards);
    assert_eq!(of(&counted, "Total"), [10], "{counted:?}");

    let joined = executed(&mut client, "SELECT count(*) FROM t JOIN u ON t.v = u.v").await;
    assert_eq!(on_shards(&joined).len(), 2 * shards, "each table on each shard: {joined:?}");
    assert_eq!(on_shards(&joined).iter().sum::<u64>(), 110);
    assert_eq!(of(&joined, "Total"), [1]);

    let updated = executed(&mut client, "UPDATE t SET v = v + 1 WHERE id <= 30").await;
    assert_eq!((on_shards(&updated).iter().sum::<u64>(), of(&updated, "Total")), (30, vec![30]), "{updated:?}");
    client.run("BEGIN").await;
    let deleted = executed(&mut client, "DELETE FROM t WHERE id > 90").await;
    assert_eq!((on_shards(&deleted).iter().sum::<u64>(), of(&deleted, "Total")), (10, vec![10]));
    client.run("ROLLBACK").await;
    assert_eq!(client.run("SELECT count(*) FROM t").await, ["100"]);

    let lines = client.run("EXPLAIN ANALYZE SELECT id FROM t").await;
    let shard_lines = lines.iter().filter(|line| line.trim_start().starts_with("Shard s")).count();
    assert_eq!(shard_lines, shards, "{lines:?}");
    assert!(lines.last().is_some_and(|line| line.starts_with("Total: 100 rows, ")), "{lines:?}");
    let plain = client.run("EXPLAIN SELECT id FROM t").await;
    assert!(!plain.iter().any(|line| line.contains(" ms")), "nothing has run: {plain:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_sqlite_shards_add_up() {
    numbers_add_up(&Db::sqlite(3).await, 3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_of_postgresql_shards_add_up() {
    let urls = (0..2).map(|_| pgserver::shared().create_database()).collect();
    numbers_add_up(&Db::postgres(urls).await, 2).await;
}

/// What the counters of the shards say is what was done, and failures are counted, too.
#[tokio::test(flavor = "multi_thread")]
async fn the_work_of_shards_is_counted() {
    let db = Db::sqlite(3).await;
    let mut client = db.client();
    client.run("CREATE TABLE t (id int PRIMARY KEY, v int)").await;
    let sums = || {
        let all = db.database.shard_work();
        assert_eq!(all.len(), 3);
        let sum =
            |of: fn(&isles_cluster::database::ShardWork) -> u64| all.iter().map(|(_, work)| of(work)).sum::<u64>();
        (sum(|work| work.statements), sum(|work| work.rows), sum(|work| work.errors))
    };
    assert_eq!(sums(), (0, 0, 0));
    client.run("INSERT INTO t SELECT n, n FROM generate_series(1, 50) n").await;
    assert_eq!(sums(), (50, 50, 0), "a statement for each row");
    client.run("SELECT * FROM t").await;
    assert_eq!(sums(), (53, 100, 0));
    client.run("SELECT * FROM t WHERE id = 1").await;
    assert_eq!(sums(), (54, 101, 0));
    assert_eq!(client.fails("INSERT INTO t VALUES (1, 1)").await, "23505");
    assert_eq!(sums(), (55, 101, 1));
}
