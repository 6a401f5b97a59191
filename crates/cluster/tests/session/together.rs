//! Statements that stand or fall together.

use crate::harness::{Client, Db};
use isles_cluster::session::{Given, MAX_TOGETHER};
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;
use std::sync::Arc;

async fn given(client: &mut Client, statements: &[(&str, Vec<Value>)]) -> Vec<Given> {
    let mut given = Vec::new();
    for (sql, params) in statements {
        given.push((client.session.prepare(sql, &[]).await.unwrap(), params.clone()));
    }
    given
}

async fn together(client: &mut Client, statements: &[(&str, Vec<Value>)]) -> Result<Vec<(usize, u64)>, SqlError> {
    let given = given(client, statements).await;
    let outcomes = client.session.execute_together(&given).await?;
    Ok(outcomes.iter().map(|outcome| (outcome.rows.len(), outcome.affected)).collect())
}

async fn tables(db: &Db) -> Client {
    let mut client = db.client();
    client.run("CREATE TABLE a (k text, n bigint, PRIMARY KEY (k, n)) WITH (shard_by = 'k', \"group\" = 'g')").await;
    client.run("CREATE TABLE b (k text PRIMARY KEY, n bigint) WITH (\"group\" = 'g')").await;
    client
}

async fn commits(db: &Db) -> u64 {
    let mut sum = 0;
    for name in db.database.shard_names() {
        sum += db.database.shard(&name).await.unwrap().stats().await.unwrap().commits;
    }
    sum
}

fn text(value: &str) -> Value {
    Value::Text(value.into())
}

pub(crate) async fn what_comes_to_one_shard_is_one_commit(db: Db) {
    let mut client = tables(&db).await;
    let before = commits(&db).await;
    let statements = [
        ("INSERT INTO a VALUES ($1, 1), ($1, 2)", vec![text("x")]),
        ("INSERT INTO b VALUES ($1, 10) ON CONFLICT (k) DO UPDATE SET n = b.n + 1", vec![text("x")]),
        ("UPDATE b SET n = n + 5 WHERE k = $1", vec![text("x")]),
        ("SELECT n FROM a WHERE k = $1 ORDER BY n DESC LIMIT 1", vec![text("x")]),
        ("DELETE FROM a WHERE k = $1 AND n = 1 RETURNING n", vec![text("x")]),
    ];
    let done = together(&mut client, &statements).await.unwrap();
    assert_eq!(done, [(0, 2), (0, 1), (0, 1), (1, 0), (1, 1)]);
    assert_eq!(commits(&db).await, before + 1);
    assert_eq!(client.run("SELECT n FROM b").await, ["15"]);
    assert_eq!(client.run("SELECT n FROM a").await, ["2"]);
}

pub(crate) async fn one_that_fails_takes_all_with_it(db: Db) {
    let mut client = tables(&db).await;
    let insert = "INSERT INTO b VALUES ($1, 1)";
    let on_one = [(insert, vec![text("x")]), (insert, vec![text("x")])];
    assert_eq!(together(&mut client, &on_one).await.unwrap_err().sqlstate, "23505");
    let over_all: Vec<_> = (0..20).chain([0]).map(|n| (insert, vec![Value::Text(format!("y{n}"))])).collect();
    assert_eq!(together(&mut client, &over_all).await.unwrap_err().sqlstate, "23505");
    assert_eq!(client.run("SELECT count(*) FROM b").await, ["0"]);
    // The session is as it was.
    assert_eq!(together(&mut client, &over_all[..20]).await.unwrap().len(), 20);
    assert_eq!(client.run("SELECT count(*) FROM b").await, ["20"]);
}

pub(crate) async fn within_a_transaction_they_are_part_of_it(db: Db) {
    let mut client = tables(&db).await;
    client.run("BEGIN").await;
    let insert = [("INSERT INTO b VALUES ($1, 1)", vec![text("x")])];
    together(&mut client, &insert).await.unwrap();
    assert_eq!(client.run("SELECT count(*) FROM b").await, ["1"]);
    client.run("ROLLBACK").await;
    assert_eq!(client.run("SELECT count(*) FROM b").await, ["0"]);
}

pub(crate) async fn those_who_contend_over_shards_all_come_through(db: Db) {
    let mut client = tables(&db).await;
    for key in ["p", "q", "r", "s"] {
        client.run(&format!("INSERT INTO b VALUES ('{key}', 0)")).await;
    }
    let db = Arc::new(db);
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let db = db.clone();
            tokio::spawn(async move {
                let mut client = db.client();
                let update = "UPDATE b SET n = n + 1 WHERE k = $1";
                // Always in this order, so that nobody waits for one who waits for him.
                let statements: Vec<_> = ["p", "q", "r", "s"].map(|key| (update, vec![text(key)])).into();
                for _ in 0..10 {
                    together(&mut client, &statements).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(client.run("SELECT n FROM b").await, ["40"; 4]);
}

pub(crate) async fn too_many_and_too_few_are_refused(db: Db) {
    let mut client = tables(&db).await;
    let many = vec![("SELECT 1", vec![]); MAX_TOGETHER + 1];
    assert_eq!(together(&mut client, &many).await.unwrap_err().sqlstate, "54000");
    assert_eq!(together(&mut client, &[]).await.unwrap(), []);
    let without = [("SELECT n FROM b WHERE k = $1", vec![])];
    assert_eq!(together(&mut client, &without).await.unwrap_err().sqlstate, "08P01");
}
