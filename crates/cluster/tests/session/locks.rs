//! Advisory locks: who holds a number keeps others waiting, and nobody for ever (I-66).

use crate::harness::{Client, Db};
use isles_cluster::roles::Role;
use isles_cluster::session::Status;
use std::time::Duration;

/// So long that a client which waits would be seen to go on.
const MOMENT: Duration = Duration::from_millis(50);

fn of_tenant(name: &str) -> Role {
    let settings = [("isles.tenant", name), ("isles.tenant_locked", "on")];
    let settings = settings.map(|(name, value)| (name.to_string(), value.to_string())).into();
    Role { admin: false, settings, ..Role::default() }
}

/// A client that waits for a statement in a task of its own.
fn later(mut client: Client, sql: &'static str) -> tokio::task::JoinHandle<(Client, Result<Vec<String>, String>)> {
    tokio::spawn(async move {
        let answer = client.try_run(sql).await.map_err(|error| error.sqlstate.to_string());
        (client, answer)
    })
}

pub(crate) async fn a_number_is_locked_by_one_session_at_a_time(db: Db) {
    let (mut one, mut other) = (db.client(), db.client());
    assert_eq!(one.run("SELECT pg_advisory_lock(1), pg_try_advisory_lock(1)").await, ["|t"]);
    assert_eq!(other.run("SELECT pg_try_advisory_lock(1), pg_try_advisory_lock(0, 1)").await, ["f|t"]);
    assert_eq!(other.run("SELECT pg_try_advisory_lock_shared(1)").await, ["f"]);
    assert_eq!(one.run("SELECT pg_advisory_unlock(1)").await, ["t"]);
    assert_eq!(other.run("SELECT pg_try_advisory_lock(1)").await, ["f"], "it was locked twice");
    assert_eq!(one.run("SELECT pg_advisory_unlock(1), pg_advisory_unlock(1)").await, ["t|f"]);
    let warnings = one.session.take_notices();
    assert_eq!(warnings[0].1.message, "you don't own a lock of type ExclusiveLock");
    assert_eq!(other.run("SELECT pg_try_advisory_lock(1)").await, ["t"]);
    assert_eq!(one.run("SELECT pg_try_advisory_lock_shared(1), pg_try_advisory_lock(NULL)").await, ["f|∅"]);
    other.run("SELECT pg_advisory_unlock_all()").await;
    assert_eq!(one.run("SELECT pg_try_advisory_lock_shared(1), pg_try_advisory_lock(0, 1)").await, ["t|t"]);
    assert_eq!(other.run("SELECT pg_try_advisory_lock_shared(1), pg_try_advisory_lock(1)").await, ["t|f"]);
    for sql in ["SELECT pg_advisory_lock(1) FROM generate_series(1, 2)", "SELECT 1 WHERE pg_try_advisory_lock(5)"] {
        assert_eq!(one.fails(sql).await, "0A000", "{sql}");
    }
}

pub(crate) async fn a_transaction_unlocks_when_it_ends(db: Db) {
    let (mut one, mut other) = (db.client(), db.client());
    let taken = "SELECT pg_try_advisory_xact_lock(1)";
    assert_eq!(one.run(taken).await, ["t"]);
    assert_eq!(other.run(taken).await, ["t"], "a statement on its own is a transaction");
    for end in ["COMMIT", "ROLLBACK"] {
        one.run("BEGIN").await;
        one.run("SELECT pg_advisory_xact_lock(1)").await;
        assert_eq!(one.run("SELECT pg_advisory_unlock(1)").await, ["f"]);
        assert_eq!(other.run(taken).await, ["f"]);
        one.run(end).await;
        assert_eq!(other.run(taken).await, ["t"]);
    }
    one.run("BEGIN").await;
    one.run("SELECT pg_advisory_xact_lock(1)").await;
    one.run("SAVEPOINT a").await;
    one.run("SELECT pg_advisory_xact_lock(2), pg_advisory_lock(3)").await;
    one.run("ROLLBACK TO a").await;
    let all = "SELECT pg_try_advisory_xact_lock(1), pg_try_advisory_xact_lock(2), pg_try_advisory_xact_lock(3)";
    assert_eq!(other.run(all).await, ["f|t|f"], "what a session has locked outlives the savepoint");
    one.fails("SELECT 1 / 0").await;
    one.run("ROLLBACK").await;
    assert_eq!(other.run(all).await, ["t|t|f"]);
    one.run("DISCARD ALL").await;
    assert_eq!(other.run(all).await, ["t|t|t"]);
    one.run("SELECT pg_advisory_lock(3)").await;
    one.session.close().await;
    assert_eq!(other.run(all).await, ["t|t|t"], "a session that has ended holds nothing");
}

/// I-66.
pub(crate) async fn who_waits_is_served_or_told_in_time(db: Db) {
    let (mut one, mut other) = (db.client(), db.client());
    one.run("SELECT pg_advisory_lock(1)").await;
    other.run("SET lock_timeout = 20").await;
    assert_eq!(other.fails("SELECT pg_advisory_lock(1)").await, "55P03");
    other.run("SET lock_timeout = 0").await;
    other.run("SET statement_timeout = 20").await;
    assert_eq!(other.fails("SELECT pg_advisory_lock_shared(1)").await, "57014");
    other.run("SET statement_timeout = 0").await;
    let cancel = other.session.cancel_token();
    let waiting = later(other, "SELECT pg_advisory_lock(1)");
    cancel.cancel();
    let (other, answer) = waiting.await.unwrap();
    assert_eq!(answer, Err("57014".into()));
    let waiting = later(other, "SELECT pg_advisory_lock(1)");
    tokio::time::sleep(MOMENT).await;
    assert!(!waiting.is_finished());
    assert_eq!(one.run("SELECT pg_advisory_unlock(1)").await, ["t"]);
    let (mut other, answer) = waiting.await.unwrap();
    assert_eq!(answer, Ok(vec![String::new()]));
    assert_eq!(one.run("SELECT pg_try_advisory_lock(1)").await, ["f"], "who gave up has nothing");
    one.run("SELECT pg_advisory_lock(2)").await;
    let waiting = later(one, "SELECT pg_advisory_lock(1)");
    tokio::time::sleep(MOMENT).await;
    let begun = std::time::Instant::now();
    assert_eq!(other.fails("SELECT pg_advisory_lock(2)").await, "40P01");
    assert!(begun.elapsed() < Duration::from_secs(10));
    other.session.close().await;
    assert!(waiting.await.unwrap().1.is_ok());
}

pub(crate) async fn who_migrates_is_not_kept_waiting_by_who_waits(db: Db) {
    let (mut one, other) = (db.client(), db.client());
    one.run("SELECT pg_advisory_lock(1)").await;
    let waiting = later(other, "SELECT pg_advisory_lock(1)");
    let mut third = db.client();
    third.run("BEGIN").await;
    let in_transaction = later(third, "SELECT pg_advisory_xact_lock(1)");
    tokio::time::sleep(MOMENT).await;
    one.run("SET lock_timeout = 2000").await;
    one.run("CREATE TABLE migrated (id int PRIMARY KEY, v int)").await;
    one.run("INSERT INTO migrated VALUES (1, 1)").await;
    one.run("SELECT pg_advisory_unlock_all()").await;
    let (mut other, _) = waiting.await.unwrap();
    assert_eq!(other.run("SELECT v FROM migrated").await, ["1"]);
    other.session.close().await;
    let (mut third, answer) = in_transaction.await.unwrap();
    assert!(answer.is_ok());
    assert_eq!(third.run("SELECT v FROM migrated").await, ["1"], "it sees what was there when it had the lock");
}

pub(crate) async fn a_role_that_is_locked_to_a_tenant_holds_up_nobody_else(db: Db) {
    let mut owner = db.client();
    let mut acme = db.client_as(of_tenant("acme"), &[]).unwrap();
    let mut second = db.client_as(of_tenant("acme"), &[]).unwrap();
    let mut zeta = db.client_as(of_tenant("zeta"), &[]).unwrap();
    for client in [&mut owner, &mut acme, &mut zeta] {
        assert_eq!(client.run("SELECT pg_try_advisory_lock(1)").await, ["t"]);
    }
    assert_eq!(second.run("SELECT pg_try_advisory_lock(1)").await, ["f"], "roles of one tenant share its numbers");
    let mut plain = db.client();
    plain.run("SET isles.tenant = 'acme'").await;
    assert_eq!(plain.run("SELECT pg_try_advisory_lock(1)").await, ["f"], "a tenant that is chosen changes nothing");
}

pub(crate) async fn a_transaction_that_is_idle_too_long_unlocks(db: Db) {
    let (mut one, mut other) = (db.client(), db.client());
    one.run("SET idle_in_transaction_session_timeout = 30").await;
    one.run("BEGIN").await;
    one.run("SELECT pg_advisory_xact_lock(1)").await;
    other.run("SET statement_timeout = 60000").await;
    other.run("SELECT pg_advisory_lock(1)").await;
    assert_eq!(one.fails("SELECT 1").await, "25P03");
    assert_eq!(one.status(), Status::Failed);
    one.run("ROLLBACK").await;
}
