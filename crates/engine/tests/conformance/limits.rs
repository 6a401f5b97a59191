//! Limits: passing one ends that request only, and the shard serves the next.

use crate::fixtures::World;
use crate::given::*;
use isles_engine::error::ShardError;
use isles_engine::fence::Access;
use isles_engine::shard::{
    Begin, CancelToken, Limits, MAX_PARAMETERS, MAX_SQL_BYTES, MAX_STATEMENTS, Request, Statement,
};
use isles_kernel::value::Value;
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_millis(150);
/// An answer that takes longer was not given by the limit.
const PROMPT: Duration = Duration::from_secs(15);

fn read(statement: Statement, limits: Limits) -> Request {
    Request { limits, ..Request::read(claim(), statement) }
}

fn write(statements: Vec<Statement>, limits: Limits) -> Request {
    Request { limits, ..Request::write(claim(), statements) }
}

fn bump() -> Statement {
    Statement::new("UPDATE users SET n = n + 1 WHERE id = 1", vec![])
}

/// The shard does what it did before.
async fn check_alive(db: &Db) {
    let before = db.n_of(1).await.expect("user 1 is there");
    db.write(vec![bump()]).await.unwrap();
    assert_eq!(db.n_of(1).await, Some(before + 1));
}

async fn with_user(world: &World) -> Db {
    let db = world.shard().await;
    db.put_user(1, "a", 0).await;
    db
}

/// I-45
pub(crate) async fn the_time_limit_ends_a_long_statement(world: World) {
    let db = with_user(&world).await;
    let began = Instant::now();
    let limits = limits(|l| l.time = SHORT);
    assert_eq!(db.execute(read(endless(), limits.clone())).await, Err(ShardError::TimedOut));
    assert_eq!(db.execute(write(vec![bump(), endless()], limits)).await, Err(ShardError::TimedOut));
    assert!(began.elapsed() < PROMPT, "{:?}", began.elapsed());
    assert_eq!(db.n_of(1).await, Some(0), "nothing happened");
    check_alive(&db).await;
}

/// I-45
pub(crate) async fn the_time_limit_holds_for_each_statement_of_a_transaction(world: World) {
    let db = with_user(&world).await;
    let began = Instant::now();
    let begin = Begin { limits: limits(|l| l.time = SHORT), ..Begin::new(claim(), Access::Write) };
    let mut open = db.begin(begin).await.unwrap();
    open.execute(&bump()).await.unwrap();
    open.savepoint("s").await.unwrap();
    assert_eq!(open.execute(&endless()).await, Err(ShardError::TimedOut));
    open.rollback_to("s").await.unwrap();
    open.commit().await.unwrap();
    assert!(began.elapsed() < PROMPT, "{:?}", began.elapsed());
    assert_eq!(db.n_of(1).await, Some(1));
    check_alive(&db).await;
}

/// I-45
pub(crate) async fn a_cancelled_request_ends(world: World) {
    let db = with_user(&world).await;
    for access in [Access::Read, Access::Write] {
        let cancel = CancelToken::default();
        let limits = limits(|l| l.cancel = cancel.clone());
        let request = match access {
            Access::Read => read(endless(), limits),
            Access::Write => write(vec![bump(), endless()], limits),
        };
        let task = tokio::spawn({
            let db = db.clone();
            async move { db.execute(request).await }
        });
        tokio::time::sleep(SHORT).await;
        cancel.cancel();
        assert_eq!(task.await.unwrap(), Err(ShardError::Cancelled));
    }
    assert_eq!(db.n_of(1).await, Some(0), "nothing happened");
    check_alive(&db).await;
}

/// I-45
pub(crate) async fn a_request_cancelled_beforehand_does_nothing(world: World) {
    let db = with_user(&world).await;
    let limits = Limits::default();
    limits.cancel.cancel();
    assert_eq!(db.execute(write(vec![bump()], limits)).await, Err(ShardError::Cancelled));
    assert_eq!(db.n_of(1).await, Some(0));
}

/// I-66: whoever waits for another transaction is answered, too.
pub(crate) async fn a_waiting_request_is_answered_when_it_is_cancelled(world: World) {
    let db = with_user(&world).await;
    let mut open = db.transaction(Access::Write).await;
    open.execute(&bump()).await.unwrap();
    let cancel = CancelToken::default();
    let waiting = write(vec![bump()], limits(|l| l.cancel = cancel.clone()));
    let task = tokio::spawn({
        let db = db.clone();
        async move { db.execute(waiting).await }
    });
    tokio::time::sleep(SHORT).await;
    assert!(!task.is_finished(), "two writers of one row ran at once");
    cancel.cancel();
    let answer = tokio::time::timeout(PROMPT, task).await.expect("an answer").unwrap();
    assert_eq!(answer, Err(ShardError::Cancelled));
    open.commit().await.unwrap();
    assert_eq!(db.n_of(1).await, Some(1));
    check_alive(&db).await;
}

/// I-66
pub(crate) async fn a_waiting_request_is_answered_when_its_time_is_up(world: World) {
    let db = with_user(&world).await;
    let mut open = db.transaction(Access::Write).await;
    open.execute(&bump()).await.unwrap();
    let waiting = write(vec![bump()], limits(|l| l.time = SHORT));
    assert_eq!(db.execute(waiting).await, Err(ShardError::TimedOut));
    open.commit().await.unwrap();
    assert_eq!(db.n_of(1).await, Some(1));
}

fn is_limit<T: std::fmt::Debug>(result: Result<T, ShardError>) {
    match result {
        Err(ShardError::Limit { .. }) => {}
        other => panic!("a limit was expected, not {other:?}"),
    }
}

/// I-45
pub(crate) async fn a_result_has_at_most_the_rows_allowed(world: World) {
    let db = with_user(&world).await;
    let ten = limits(|l| l.rows = 10);
    assert_eq!(db.execute(read(numbers(10), ten.clone())).await.unwrap()[0].rows.len(), 10);
    is_limit(db.execute(read(numbers(11), ten.clone())).await);
    is_limit(db.execute(write(vec![bump(), numbers(11)], ten)).await);
    assert_eq!(db.n_of(1).await, Some(0), "nothing happened");
    check_alive(&db).await;
}

/// I-45
pub(crate) async fn a_result_has_at_most_the_bytes_allowed(world: World) {
    let db = with_user(&world).await;
    db.must("INSERT INTO plans (id, name) VALUES (1, $1)", values![Value::text("x".repeat(50_000))]).await;
    let name = select(&[TEXT], "SELECT name FROM plans", vec![]);
    db.execute(read(name.clone(), limits(|l| l.bytes = 60_000))).await.unwrap();
    is_limit(db.execute(read(name, limits(|l| l.bytes = 40_000))).await);
    is_limit(db.execute(read(numbers(100_000), limits(|l| l.bytes = 40_000))).await);
    check_alive(&db).await;
}

/// `SELECT count(*) … IN ($1, $2, …)` with `count` parameters.
fn with_parameters(count: usize) -> Statement {
    let places: Vec<String> = (1..=count).map(|at| format!("${at}")).collect();
    let sql = format!("SELECT count(*) FROM users WHERE id IN ({})", places.join(","));
    select(&[INT8], &sql, (1..=count as i64).map(Value::Int).collect())
}

/// I-45
pub(crate) async fn parameters_are_limited(world: World) {
    let db = with_user(&world).await;
    let outcomes = db.execute(Request::read(claim(), with_parameters(MAX_PARAMETERS))).await.unwrap();
    assert_eq!(outcomes[0].rows, [values![1]]);
    is_limit(db.execute(Request::read(claim(), with_parameters(MAX_PARAMETERS + 1))).await);
    check_alive(&db).await;
}

/// A missing parameter is an error and never a null.
pub(crate) async fn missing_parameters_are_refused(world: World) {
    check_parameters_refused(&world, values![]).await;
}

/// Whoever sends more parameters than a statement has means another statement.
pub(crate) async fn surplus_parameters_are_refused(world: World) {
    check_parameters_refused(&world, values![1, 2]).await;
}

async fn check_parameters_refused(world: &World, params: Vec<Value>) {
    let db = with_user(world).await;
    let error = db.run("UPDATE users SET n = 7 WHERE id = $1", params).await.unwrap_err();
    assert!(is_refusal(&error), "{error:?}");
    assert_eq!(db.n_of(1).await, Some(0));
    check_alive(&db).await;
}

fn padded(bytes: usize) -> Statement {
    let start = "SELECT count(*) FROM users";
    count_of(&format!("{start}{}", " ".repeat(bytes - start.len())))
}

/// I-45
pub(crate) async fn a_statements_text_is_limited(world: World) {
    let db = with_user(&world).await;
    db.execute(Request::read(claim(), padded(MAX_SQL_BYTES))).await.unwrap();
    is_limit(db.execute(Request::read(claim(), padded(MAX_SQL_BYTES + 1))).await);
    check_alive(&db).await;
}

/// I-45
pub(crate) async fn statements_of_a_request_are_limited(world: World) {
    let db = with_user(&world).await;
    is_limit(db.write(vec![bump(); MAX_STATEMENTS + 1]).await);
    assert_eq!(db.n_of(1).await, Some(0));
    check_alive(&db).await;
}

/// One text holds one statement: what follows it would run under no one's eyes.
pub(crate) async fn two_statements_in_one_text_are_refused(world: World) {
    let db = with_user(&world).await;
    let error = db.run("UPDATE users SET n = 1; UPDATE users SET n = 2", vec![]).await.unwrap_err();
    assert!(is_refusal(&error), "{error:?}");
    assert_eq!(db.n_of(1).await, Some(0));
}
