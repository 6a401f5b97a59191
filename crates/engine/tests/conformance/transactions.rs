//! Transactions: all or nothing, isolated, and PostgreSQL's rules after an error.

use crate::fixtures::World;
use crate::given::*;
use crate::seen::{awaited_changes, check_log};
use isles_engine::error::{Result, ShardError};
use isles_engine::fence::Access;
use isles_engine::shard::{Begin, CursorId, Isolation, Request, Statement, Transaction};
use isles_kernel::schema::OnChange;
use isles_kernel::value::Value;

const BUMP: &str = "UPDATE users SET n = n + 1 WHERE id = $1";

fn all_users() -> Statement {
    count_of("SELECT count(*) FROM users")
}

async fn count_in(transaction: &mut dyn Transaction) -> i64 {
    int(&transaction.execute(&all_users()).await.expect("a count").rows[0][0])
}

/// I-2
pub(crate) async fn a_commit_is_visible_and_a_rollback_is_not(world: World) {
    let db = world.shard().await;
    let mut kept = db.transaction(Access::Write).await;
    kept.execute(&insert_user(1, "kept", 0)).await.unwrap();
    kept.commit().await.unwrap();
    let mut dropped = db.transaction(Access::Write).await;
    dropped.execute(&insert_user(2, "gone", 0)).await.unwrap();
    assert_eq!(count_in(&mut *dropped).await, 2, "a transaction sees its own writes");
    dropped.rollback().await.unwrap();
    assert_eq!(db.rows("users").await, vec![user_row(1, "kept", 0)]);
}

/// I-2
pub(crate) async fn an_open_transaction_is_invisible_to_others(world: World) {
    let db = world.shard().await;
    let mut open = db.transaction(Access::Write).await;
    open.execute(&insert_user(1, "a", 0)).await.unwrap();
    assert_eq!(db.count("users").await, 0);
    assert_eq!(db.rows("users").await, vec![]);
    open.commit().await.unwrap();
    assert_eq!(db.count("users").await, 1);
}

/// I-2
pub(crate) async fn dropping_a_transaction_rolls_it_back(world: World) {
    let db = world.shard().await;
    let mut open = db.transaction(Access::Write).await;
    open.execute(&insert_user(1, "gone", 0)).await.unwrap();
    drop(open);
    db.put_user(1, "next", 0).await;
    assert_eq!(db.rows("users").await, vec![user_row(1, "next", 0)]);
}

/// I-2
pub(crate) async fn an_error_ends_the_transaction_until_it_is_rolled_back(world: World) {
    let db = world.shard().await;
    let mut open = db.transaction(Access::Write).await;
    open.execute(&insert_user(1, "a", 0)).await.unwrap();
    let error = open.execute(&insert_user(1, "b", 0)).await.unwrap_err();
    assert_eq!(sqlstate(&error), "23505");
    let error = open.execute(&insert_user(2, "c", 0)).await.unwrap_err();
    assert_eq!(sqlstate(&error), "25P02");
    open.rollback().await.unwrap();
    assert_eq!(db.count("users").await, 0);
}

/// I-2
pub(crate) async fn committing_a_failed_transaction_fails(world: World) {
    let db = world.shard().await;
    let mut open = db.transaction(Access::Write).await;
    open.execute(&insert_user(1, "a", 0)).await.unwrap();
    open.execute(&insert_user(1, "b", 0)).await.unwrap_err();
    let error = open.commit().await.unwrap_err();
    assert!(error.nothing_happened(), "{error}");
    assert_eq!(db.count("users").await, 0);
}

/// I-2
pub(crate) async fn a_savepoint_outlives_an_error_after_it(world: World) {
    let db = world.shard().await;
    let mut open = db.transaction(Access::Write).await;
    open.execute(&insert_user(1, "kept", 0)).await.unwrap();
    open.savepoint("s").await.unwrap();
    open.execute(&insert_user(2, "gone", 0)).await.unwrap();
    open.execute(&insert_user(1, "twice", 0)).await.unwrap_err();
    open.rollback_to("s").await.unwrap();
    open.execute(&insert_user(3, "kept", 0)).await.unwrap();
    open.commit().await.unwrap();
    assert_eq!(db.rows("users").await, vec![user_row(1, "kept", 0), user_row(3, "kept", 0)]);
}

/// I-2
pub(crate) async fn savepoints_nest_and_names_are_used_again(world: World) {
    let db = world.shard().await;
    let mut open = db.transaction(Access::Write).await;
    for id in 1..=3 {
        open.savepoint("s").await.unwrap();
        open.execute(&insert_user(id, "x", 0)).await.unwrap();
    }
    open.rollback_to("s").await.unwrap();
    assert_eq!(count_in(&mut *open).await, 2, "the youngest of the name is meant");
    open.release("s").await.unwrap();
    open.rollback_to("s").await.unwrap();
    assert_eq!(count_in(&mut *open).await, 1, "a release uncovers the one before");
    open.savepoint("an \"odd\" Name").await.unwrap();
    open.execute(&insert_user(4, "x", 0)).await.unwrap();
    open.rollback_to("an \"odd\" Name").await.unwrap();
    open.release("s").await.unwrap();
    open.release("s").await.unwrap();
    assert_eq!(sqlstate(&open.release("s").await.unwrap_err()), "3B001");
    open.rollback().await.unwrap();
}

/// I-2
pub(crate) async fn a_released_savepoint_goes_with_the_one_around_it(world: World) {
    let db = world.shard().await;
    let mut open = db.transaction(Access::Write).await;
    open.savepoint("outer").await.unwrap();
    open.savepoint("inner").await.unwrap();
    open.execute(&insert_user(1, "gone", 0)).await.unwrap();
    open.release("inner").await.unwrap();
    open.rollback_to("outer").await.unwrap();
    open.commit().await.unwrap();
    assert_eq!(db.count("users").await, 0);
}

/// I-2
pub(crate) async fn a_request_is_atomic_when_its_last_statement_fails(world: World) {
    let db = world.shard().await;
    let start = db.listen().await;
    let request = vec![insert_user(1, "a", 0), insert_user(2, "b", 0), insert_user(1, "c", 0)];
    assert_eq!(sqlstate(&db.write(request).await.unwrap_err()), "23505");
    assert_eq!(db.count("users").await, 0);
    db.put_user(3, "d", 0).await;
    check_log(&db, start, &["users 3 + (3 'd' 0)"]).await;
}

/// I-2
pub(crate) async fn a_failed_request_harms_none_beside_it(world: World) {
    let db = world.shard().await;
    db.put_user(0, "taken", 0).await;
    let start = db.listen().await;
    let tasks: Vec<_> = (0..40i64)
        .map(|at| {
            let db = db.clone();
            let id = if at % 2 == 0 { 0 } else { at };
            tokio::spawn(async move { db.write(vec![insert_user(100 + at, "x", 0), insert_user(id, "y", 0)]).await })
        })
        .collect();
    for (at, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.await.unwrap().is_ok(), at % 2 == 1, "request {at}");
    }
    assert_eq!(db.count("users").await, 1 + 2 * 20);
    assert_eq!(awaited_changes(&db, start, 2 * 20).await.len(), 2 * 20);
}

/// Codes on which both engines agree.
pub(crate) async fn errors_carry_postgresql_codes(world: World) {
    let mut tables = family(OnChange::NoAction);
    tables.extend([users(), plans()]);
    let db = world.shard_with(tables).await;
    db.must("INSERT INTO plans (id, name) VALUES (1, 'x')", vec![]).await;
    for (sql, code) in [
        ("INSERT INTO plans (id, name) VALUES (1, 'again')", "23505"),
        ("INSERT INTO plans (id, name) VALUES (2, NULL)", "23502"),
        ("INSERT INTO plans (id) VALUES (2)", "23502"),
        ("INSERT INTO children (id, parent) VALUES (1, 77)", "23503"),
        ("INSERT INTO nowhere (id) VALUES (1)", "42P01"),
        ("UPDATE plans SET missing = 1", "42703"),
        ("SELECT missing FROM plans", "42703"),
        ("SELEC 1", "42601"),
        ("INSERT INTO plans (id, name) VALUES (3, 'x'", "42601"),
    ] {
        let error = db.run(sql, vec![]).await.unwrap_err();
        assert!(matches!(error, ShardError::Statement(_)), "{sql}: {error:?}");
        assert_eq!(sqlstate(&error), code, "{sql}: {error}");
    }
    assert_eq!(db.count("plans").await, 1);
    assert_eq!(db.count("children").await, 0);
}

pub(crate) async fn a_parent_with_children_is_kept(world: World) {
    let db = world.shard_with(family(OnChange::NoAction)).await;
    db.must("INSERT INTO parents (id) VALUES (1)", vec![]).await;
    db.must("INSERT INTO children (id, parent) VALUES (1, 1)", vec![]).await;
    let error = db.run("DELETE FROM parents", vec![]).await.unwrap_err();
    assert_eq!(sqlstate(&error), "23503");
    assert_eq!(db.count("parents").await, 1);
}

pub(crate) async fn affected_counts_the_rows_changed(world: World) {
    let db = world.shard().await;
    let insert = "INSERT INTO plans (id, name) VALUES (1, 'a'), (2, 'b'), (3, 'c')";
    assert_eq!(db.must(insert, vec![]).await, 3);
    assert_eq!(db.must("UPDATE plans SET name = 'd' WHERE id > 1", vec![]).await, 2);
    assert_eq!(db.must("UPDATE plans SET name = 'd' WHERE id > 10", vec![]).await, 0);
    assert_eq!(db.must("DELETE FROM plans WHERE id = 3", vec![]).await, 1);
    assert_eq!(db.must("INSERT INTO plans (id, name) VALUES (1, 'z') ON CONFLICT (id) DO NOTHING", vec![]).await, 0);
    let outcomes = db
        .write(vec![Statement::new("DELETE FROM plans", vec![]), Statement::new("UPDATE plans SET name = 'e'", vec![])])
        .await
        .unwrap();
    assert_eq!(outcomes.iter().map(|outcome| outcome.affected).collect::<Vec<_>>(), [2, 0]);
}

pub(crate) async fn returning_gives_the_rows_changed(world: World) {
    let db = world.shard().await;
    let insert =
        select(&[INT8, TEXT], "INSERT INTO plans (id, name) VALUES (1, 'a'), (2, 'b') RETURNING id, name", vec![]);
    let update = select(&[TEXT], "UPDATE plans SET name = $1 WHERE id = 2 RETURNING name", values!["c"]);
    let delete = select(&[INT8], "DELETE FROM plans WHERE id = 1 RETURNING id", vec![]);
    let outcomes = db.write(vec![insert, update, delete]).await.unwrap();
    assert_eq!(outcomes[0].rows, [values![1, "a"], values![2, "b"]]);
    assert_eq!(outcomes[0].affected, 2);
    assert_eq!((outcomes[1].rows.clone(), outcomes[1].affected), (vec![values!["c"]], 1));
    assert_eq!((outcomes[2].rows.clone(), outcomes[2].affected), (vec![values![1]], 1));
}

pub(crate) async fn outcomes_come_in_the_order_of_their_statements(world: World) {
    let db = world.shard().await;
    let outcomes = db.write(vec![all_users(), insert_user(1, "a", 0), all_users()]).await.unwrap();
    let counts: Vec<_> = outcomes.iter().map(|outcome| outcome.rows.first().map(|row| int(&row[0]))).collect();
    assert_eq!(counts, [Some(0), None, Some(1)]);
}

async fn drain(transaction: &mut dyn Transaction, cursor: CursorId, rows: usize) -> Vec<i64> {
    let mut all = Vec::new();
    loop {
        let page = transaction.fetch(cursor, rows).await.expect("a cursor's page");
        assert!(page.rows.len() <= rows, "{} rows were fetched instead of {rows}", page.rows.len());
        all.extend(page.rows.iter().map(|row| int(&row[0])));
        if page.done {
            return all;
        }
    }
}

pub(crate) async fn cursors_are_fetched_piecemeal_and_side_by_side(world: World) {
    let db = world.shard().await;
    let mut open = db.transaction(Access::Read).await;
    let small = open.open(&numbers(5)).await.unwrap();
    let large = open.open(&numbers(100)).await.unwrap();
    let first = open.fetch(large, 30).await.unwrap();
    assert_eq!((first.rows.len(), first.done), (30, false));
    assert_eq!(drain(&mut *open, small, 2).await, (1..=5).collect::<Vec<_>>());
    open.close(small).await.unwrap();
    assert_eq!(drain(&mut *open, large, 7).await, (31..=100).collect::<Vec<_>>());
    let empty = open.open(&select(&[INT8], "SELECT id FROM users", vec![])).await.unwrap();
    assert_eq!(drain(&mut *open, empty, 7).await, Vec::<i64>::new());
    open.rollback().await.unwrap();
}

pub(crate) async fn a_closed_cursor_is_refused(world: World) {
    let db = world.shard().await;
    let mut open = db.transaction(Access::Read).await;
    let cursor = open.open(&numbers(5)).await.unwrap();
    open.close(cursor).await.unwrap();
    assert!(open.fetch(cursor, 1).await.is_err());
}

/// I-45: 20 MB pass through a cursor of 100 kB.
pub(crate) async fn a_cursor_does_not_hold_the_whole_result(world: World) {
    let db = world.shard().await;
    db.must("INSERT INTO plans (id, name) VALUES (1, $1)", values![Value::text("x".repeat(10_000))]).await;
    let sql = "WITH RECURSIVE t(x) AS (SELECT CAST(1 AS bigint) UNION ALL SELECT x + 1 FROM t WHERE x < 2000) \
               SELECT x, name FROM t CROSS JOIN plans";
    let begin = Begin { limits: limits(|l| l.bytes = 100_000), ..Begin::new(claim(), Access::Read) };
    let mut open = db.begin(begin).await.unwrap();
    let cursor = open.open(&select(&[INT8, TEXT], sql, vec![])).await.unwrap();
    assert_eq!(drain(&mut *open, cursor, 5).await.len(), 2_000);
    let cursor = open.open(&select(&[INT8, TEXT], sql, vec![])).await.unwrap();
    let error = open.fetch(cursor, 50).await.unwrap_err();
    assert!(matches!(error, ShardError::Limit { .. }), "{error:?}");
}

pub(crate) async fn a_cursor_reads_on_after_a_write_in_its_transaction(world: World) {
    let db = world.shard().await;
    for id in 1..=20 {
        db.put_user(id, "x", 0).await;
    }
    let mut open = db.transaction(Access::Write).await;
    let cursor = open.open(&select(&[INT8], "SELECT id FROM users ORDER BY id", vec![])).await.unwrap();
    assert_eq!(open.fetch(cursor, 5).await.unwrap().rows.len(), 5);
    open.execute(&Statement::new("UPDATE users SET n = 1", vec![])).await.unwrap();
    assert_eq!(drain(&mut *open, cursor, 5).await, (6..=20).collect::<Vec<_>>());
    open.commit().await.unwrap();
    assert_eq!(db.n_of(20).await, Some(1));
}

pub(crate) async fn a_read_only_transaction_refuses_writes(world: World) {
    let db = world.shard().await;
    for sql in ["INSERT INTO plans (id, name) VALUES (1, 'a')", "DELETE FROM plans"] {
        let mut open = db.transaction(Access::Read).await;
        let error = open.execute(&Statement::new(sql, vec![])).await.unwrap_err();
        assert_eq!(sqlstate(&error), "25006", "{sql}: {error}");
        drop(open);
        let request = Request::read(claim(), Statement::new(sql, vec![]));
        assert_eq!(sqlstate(&db.execute(request).await.unwrap_err()), "25006", "{sql}");
    }
    assert_eq!(db.count("plans").await, 0);
}

/// I-22
pub(crate) async fn a_reader_sees_one_snapshot_while_others_commit(world: World) {
    let db = world.shard().await;
    db.put_user(1, "a", 0).await;
    let begin = Begin { isolation: Isolation::RepeatableRead, ..Begin::new(claim(), Access::Read) };
    let mut open = db.begin(begin).await.unwrap();
    assert_eq!(count_in(&mut *open).await, 1);
    db.put_user(2, "b", 0).await;
    db.must("DELETE FROM users WHERE id = 1", vec![]).await;
    db.put_user(3, "c", 0).await;
    assert_eq!(count_in(&mut *open).await, 1);
    let ids = open.execute(&select(&[INT8], "SELECT id FROM users", vec![])).await.unwrap();
    assert_eq!(ids.rows, [values![1]]);
    open.commit().await.unwrap();
    assert_eq!(db.count("users").await, 2);
}

/// I-22: an answer is visible to every request that begins after it.
pub(crate) async fn a_write_is_read_by_the_next_request(world: World) {
    let db = world.shard().await;
    db.put_user(1, "a", 0).await;
    for n in 1..=50 {
        db.must(BUMP, values![1]).await;
        assert_eq!(db.n_of(1).await, Some(n));
    }
}

/// I-19
pub(crate) async fn increments_of_many_tasks_are_exact(world: World) {
    let db = world.shard().await;
    db.put_user(1, "a", 0).await;
    let task = |db: Db| async move {
        for _ in 0..25 {
            db.must(BUMP, values![1]).await;
        }
    };
    let tasks: Vec<_> = (0..8).map(|_| tokio::spawn(task(db.clone()))).collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(db.n_of(1).await, Some(200));
}

/// Reads a counter and writes it back by one higher.
async fn read_modify_write(db: &Db) -> Result<()> {
    let begin = Begin { isolation: Isolation::Serializable, ..Begin::new(claim(), Access::Write) };
    let mut open = db.begin(begin).await?;
    let read = open.execute(&select(&[INT8], "SELECT n FROM users WHERE id = 1", vec![])).await?;
    let next = int(&read.rows[0][0]) + 1;
    open.execute(&Statement::new("UPDATE users SET n = $1 WHERE id = 1", values![next])).await?;
    open.commit().await
}

/// I-19: a conflict means that nothing happened, so the one who tries again doubles nothing.
pub(crate) async fn interactive_increments_are_exact_or_conflict(world: World) {
    let db = world.shard().await;
    db.put_user(1, "a", 0).await;
    let task = |db: Db| async move {
        let mut done = 0;
        while done < 10 {
            match read_modify_write(&db).await {
                Ok(()) => done += 1,
                Err(ShardError::Conflict(_)) => {}
                Err(other) => panic!("{other:?}"),
            }
        }
    };
    let tasks: Vec<_> = (0..4).map(|_| tokio::spawn(task(db.clone()))).collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(db.n_of(1).await, Some(40));
}
