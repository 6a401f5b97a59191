//! Transactions of sessions over SQLite shards.

use crate::harness::{Client, Db};
use isles_cluster::session::Status;

async fn table(client: &mut Client) {
    client.run("CREATE TABLE t (id int PRIMARY KEY, v int)").await;
    client.run("INSERT INTO t VALUES (1, 10), (2, 20), (3, 30), (4, 40), (5, 50), (6, 60), (7, 70), (8, 80)").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_is_whole_and_a_rollback_leaves_nothing() {
    let db = Db::sqlite(4).await;
    let mut client = db.client();
    table(&mut client).await;
    client.run("BEGIN").await;
    assert_eq!(client.status(), Status::InTransaction);
    assert_eq!(client.run("UPDATE t SET v = v + 1").await, vec!["UPDATE 8"]);
    assert_eq!(client.run("SELECT sum(v) FROM t").await, vec!["368"]);
    assert_eq!(db.client().run("SELECT sum(v) FROM t").await, vec!["360"], "nobody else sees it");
    client.run("ROLLBACK").await;
    assert_eq!(client.run("SELECT sum(v) FROM t").await, vec!["360"]);
    client.run("BEGIN").await;
    client.run("UPDATE t SET v = v + 1").await;
    assert_eq!(client.run("COMMIT").await, vec!["COMMIT"]);
    assert_eq!(db.client().run("SELECT sum(v) FROM t").await, vec!["368"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_transaction_takes_nothing_but_its_end() {
    let db = Db::sqlite(2).await;
    let mut client = db.client();
    table(&mut client).await;
    client.run("BEGIN").await;
    client.run("UPDATE t SET v = 0 WHERE id = 1").await;
    assert_eq!(client.fails("INSERT INTO t VALUES (1, 1)").await, "23505");
    assert_eq!(client.status(), Status::Failed);
    assert_eq!(client.fails("SELECT 1").await, "25P02");
    assert_eq!(client.run("COMMIT").await, vec!["ROLLBACK"]);
    assert_eq!(client.run("SELECT v FROM t WHERE id = 1").await, vec!["10"]);
    assert_eq!(client.run("COMMIT").await, vec!["COMMIT"]);
    assert_eq!(client.session.take_notices()[0].1.sqlstate, "25P01");
}

#[tokio::test(flavor = "multi_thread")]
async fn savepoints_go_back_on_every_shard() {
    let db = Db::sqlite(4).await;
    let mut client = db.client();
    table(&mut client).await;
    client.run("BEGIN").await;
    client.run("SAVEPOINT first").await;
    client.run("UPDATE t SET v = 0 WHERE id IN (1, 2)").await;
    client.run("SAVEPOINT second").await;
    client.run("UPDATE t SET v = 1").await;
    assert_eq!(client.fails("INSERT INTO t VALUES (3, 3)").await, "23505");
    client.run("ROLLBACK TO second").await;
    assert_eq!(client.run("SELECT sum(v) FROM t").await, vec!["330"]);
    client.run("ROLLBACK TO first").await;
    assert_eq!(client.run("SELECT sum(v) FROM t").await, vec!["360"]);
    client.run("UPDATE t SET v = 100 WHERE id = 8").await;
    client.run("RELEASE first").await;
    assert_eq!(client.fails("ROLLBACK TO second").await, "3B001");
    client.run("ROLLBACK").await;
    assert_eq!(client.run("SELECT sum(v) FROM t").await, vec!["360"]);
}

/// I-19: what was read and has changed since cannot be written upon.
#[tokio::test(flavor = "multi_thread")]
async fn a_stale_snapshot_does_not_write() {
    let db = Db::sqlite(1).await;
    let (mut one, mut two) = (db.client(), db.client());
    table(&mut one).await;
    one.run("BEGIN").await;
    assert_eq!(one.run("SELECT v FROM t WHERE id = 1").await, vec!["10"]);
    two.run("UPDATE t SET v = 11 WHERE id = 1").await;
    assert_eq!(one.run("SELECT v FROM t WHERE id = 1").await, vec!["10"], "a snapshot stays");
    assert_eq!(one.fails("UPDATE t SET v = v + 1 WHERE id = 1").await, "40001");
    one.run("ROLLBACK").await;
    one.run("BEGIN ISOLATION LEVEL READ COMMITTED").await;
    assert_eq!(one.run("SELECT v FROM t WHERE id = 1").await, vec!["11"]);
    two.run("UPDATE t SET v = 12 WHERE id = 1").await;
    assert_eq!(one.run("SELECT v FROM t WHERE id = 1").await, vec!["12"]);
    assert_eq!(one.run("UPDATE t SET v = v + 1 WHERE id = 1 RETURNING v").await, vec!["13"]);
    one.run("COMMIT").await;
}

/// I-19: two transactions that read what the other writes, on two shards, do not both commit.
#[tokio::test(flavor = "multi_thread")]
async fn write_skew_over_two_shards_is_refused() {
    let db = Db::sqlite(4).await;
    let (mut one, mut two) = (db.client(), db.client());
    table(&mut one).await;
    let all = ["BEGIN", "SELECT sum(v) FROM t WHERE id IN (1, 2, 3, 4, 5, 6, 7, 8)"];
    for sql in all {
        one.run(sql).await;
        two.run(sql).await;
    }
    one.run("UPDATE t SET v = 0 WHERE id = 1").await;
    let second = two.try_run("UPDATE t SET v = 0 WHERE id = 2").await;
    let (first, second) = tokio::join!(one.try_run("COMMIT"), async {
        match second {
            Ok(_) => two.try_run("COMMIT").await,
            Err(error) => Err(error),
        }
    });
    let codes: Vec<&str> = [&first, &second].iter().filter_map(|r| r.as_ref().err().map(|e| e.sqlstate)).collect();
    assert!(!codes.is_empty(), "both committed");
    assert!(codes.iter().all(|code| ["40001", "40P01"].contains(code)), "{codes:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_that_wait_for_each_other_are_told() {
    let db = Db::sqlite(4).await;
    let (mut one, mut two) = (db.client(), db.client());
    table(&mut one).await;
    for client in [&mut one, &mut two] {
        client.run("BEGIN ISOLATION LEVEL READ COMMITTED").await;
    }
    // Each takes the rows in another order; on one shard or on many, somebody must be refused or both go through.
    one.run("UPDATE t SET v = v WHERE id = 1").await;
    let other = {
        let mut found = None;
        for id in 2..=8 {
            let tried = tokio::time::timeout(
                std::time::Duration::from_millis(300),
                two.try_run(&format!("UPDATE t SET v = v WHERE id = {id}")),
            )
            .await;
            if let Ok(Ok(_)) = tried {
                found = Some(id);
                break;
            }
            two.run("ROLLBACK").await;
            two.run("BEGIN ISOLATION LEVEL READ COMMITTED").await;
        }
        found.expect("some row is on another shard")
    };
    let crossing = format!("UPDATE t SET v = v WHERE id = {other}");
    let (first, second) = tokio::join!(one.try_run(&crossing), two.try_run("UPDATE t SET v = v WHERE id = 1"));
    let refused = [first, second].into_iter().filter_map(Result::err).map(|error| error.sqlstate).collect::<Vec<_>>();
    assert_eq!(refused, vec!["40P01"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn read_only_transactions_do_not_write() {
    let db = Db::sqlite(2).await;
    let mut client = db.client();
    table(&mut client).await;
    client.run("BEGIN READ ONLY").await;
    assert_eq!(client.run("SHOW transaction_read_only").await, vec!["on"]);
    assert_eq!(client.fails("DELETE FROM t").await, "25006");
    client.run("ROLLBACK").await;
    client.run("SET default_transaction_read_only = on").await;
    assert_eq!(client.fails("DELETE FROM t").await, "25006");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forgotten_transaction_does_not_hold_a_shard_for_ever() {
    let db = Db::sqlite(1).await;
    let (mut one, mut two) = (db.client(), db.client());
    table(&mut one).await;
    one.run("SET idle_in_transaction_session_timeout = '200ms'").await;
    one.run("BEGIN").await;
    one.run("UPDATE t SET v = 0").await;
    assert_eq!(two.run("UPDATE t SET v = v + 1 WHERE id = 1").await, vec!["UPDATE 1"]);
    assert_eq!(one.fails("SELECT 1").await, "25P03");
    one.run("ROLLBACK").await;
    assert_eq!(one.run("SELECT v FROM t WHERE id = 1").await, vec!["11"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn cursors_show_one_moment_and_hold_outlives_it() {
    let db = Db::sqlite(4).await;
    let mut client = db.client();
    table(&mut client).await;
    assert_eq!(client.fails("DECLARE c CURSOR FOR SELECT 1").await, "25P01");
    client.run("BEGIN").await;
    client.run("DECLARE c CURSOR FOR SELECT id FROM t ORDER BY id").await;
    client.run("DECLARE h CURSOR WITH HOLD FOR SELECT id FROM t ORDER BY id DESC").await;
    assert_eq!(client.run("FETCH 2 FROM c").await, vec!["1", "2"]);
    assert_eq!(client.run("MOVE 3 FROM c").await, vec!["MOVE 3"]);
    assert_eq!(client.run("FETCH NEXT FROM c").await, vec!["6"]);
    client.run("COMMIT").await;
    assert_eq!(client.fails("FETCH c").await, "34000");
    assert_eq!(client.run("FETCH 2 FROM h").await, vec!["8", "7"]);
    client.run("CLOSE h").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_are_taken_back_with_their_transaction() {
    let db = Db::sqlite(1).await;
    let mut client = db.client();
    client.run("BEGIN").await;
    client.run("SET application_name = 'x'").await;
    client.run("SET LOCAL statement_timeout = '3s'").await;
    assert_eq!(client.run("SHOW statement_timeout").await, vec!["3s"]);
    client.run("COMMIT").await;
    assert_eq!(client.run("SHOW statement_timeout").await, vec!["0"]);
    assert_eq!(client.run("SHOW application_name").await, vec!["x"]);
    client.run("PREPARE p (int) AS SELECT $1 + 1").await;
    assert_eq!(client.run("EXECUTE p (41)").await, vec!["42"]);
    client.run("DEALLOCATE p").await;
    assert_eq!(client.fails("EXECUTE p (1)").await, "26000");
    assert_eq!(client.run("SHOW default_transaction_isolation").await, vec!["serializable"]);
}

/// The implicit transaction of several statements stands or falls as one.
#[tokio::test(flavor = "multi_thread")]
async fn statements_that_belong_together_stand_or_fall_together() {
    let db = Db::sqlite(4).await;
    let mut client = db.client();
    table(&mut client).await;
    client.session.begin_implicit();
    client.run("UPDATE t SET v = 0").await;
    assert_eq!(client.fails("INSERT INTO t VALUES (1, 1)").await, "23505");
    client.session.end_implicit().await.unwrap();
    assert_eq!(client.run("SELECT sum(v) FROM t").await, vec!["360"]);
    client.session.begin_implicit();
    client.run("UPDATE t SET v = 0").await;
    client.run("DELETE FROM t WHERE id > 4").await;
    client.session.end_implicit().await.unwrap();
    assert_eq!(client.run("SELECT count(*), sum(v) FROM t").await, vec!["4|0"]);
}
