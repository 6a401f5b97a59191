//! Statements to the database, over sessions that are kept.
//!
//! What stands or falls together is given together. A statement guards the others by failing: it sets a column that must
//! not be null to `CASE WHEN … THEN … END`, and where the condition does not hold, nothing of the request happens. So a
//! late executor's writes are refused by the shard itself, in one request, on both engines.

use crate::error::{Code, Result, WorkflowError};
use crate::lock;
use futures::future::BoxFuture;
use isles_cluster::database::Database;
use isles_cluster::session::{Given, MAX_TOGETHER, Prepared, Session};
use isles_engine::env::Env;
use isles_engine::shard::Outcome;
use isles_kernel::error::SqlError;
use isles_kernel::names::ShardId;
use isles_kernel::value::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Sessions that are kept for the next statement.
const IDLE_MAX: usize = 256;
/// How often something that met another transaction, or rows that were being moved, is sent again.
const TRIES: u32 = 40;
/// The wait before it is, at first.
const RETRY: Duration = Duration::from_millis(2);
/// And at most.
const RETRY_MAX: Duration = Duration::from_millis(200);
/// How long one shard may take for its part of an answer that goes on without it: a list, a count, a write to the index.
/// Much longer than a shard in health takes, and short enough for whoever waits.
pub(crate) const PART_TIME: Duration = Duration::from_secs(5);
/// The same of a look for what is due: those of the other shards wait for it.
const LOOK_TIME: Duration = Duration::from_secs(1);
/// A shard that has not answered a look in time is left out of looks for so long: they come several times in a second.
const SHUNNED: Duration = Duration::from_secs(10);
/// `not_null_violation`: a guard did not hold.
pub(crate) const GUARD: &str = "23502";
pub(crate) const UNIQUE: &str = "23505";
/// `query_canceled`: the time was up.
const TIMED_OUT: &str = "57014";

/// A statement and its parameters.
pub(crate) type Said = (&'static str, Vec<Value>);

/// What a statement gave.
#[derive(Debug, Default)]
pub(crate) struct Reply {
    pub(crate) rows: Vec<Vec<Value>>,
    pub(crate) affected: u64,
}

impl Reply {
    pub(crate) fn int(&self, row: usize, column: usize) -> Option<i64> {
        int(self.rows.get(row)?.get(column)?)
    }
}

pub(crate) fn int(value: &Value) -> Option<i64> {
    match value {
        Value::Int(number) => Some(*number),
        _ => None,
    }
}

pub(crate) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::Text(text) => Some(text),
        _ => None,
    }
}

/// Rust's values as SQL's.
pub(crate) trait IntoValue {
    fn into_value(self) -> Value;
}

impl IntoValue for Value {
    fn into_value(self) -> Value {
        self
    }
}

impl IntoValue for i64 {
    fn into_value(self) -> Value {
        Value::Int(self)
    }
}

impl IntoValue for &str {
    fn into_value(self) -> Value {
        Value::Text(self.into())
    }
}

impl IntoValue for String {
    fn into_value(self) -> Value {
        Value::Text(self)
    }
}

impl IntoValue for bool {
    fn into_value(self) -> Value {
        Value::Bool(self)
    }
}

impl<T: IntoValue> IntoValue for Option<T> {
    fn into_value(self) -> Value {
        self.map_or(Value::Null, T::into_value)
    }
}

/// Parameters of a statement.
macro_rules! params {
    ($($value:expr),* $(,)?) => { vec![$($crate::lines::IntoValue::into_value($value)),*] };
}
pub(crate) use params;

/// A session and the statements that it has prepared.
struct Line {
    session: Session,
    prepared: HashMap<&'static str, Arc<Prepared>>,
}

/// Futures of sessions are boxed where they begin, so that those of steps and lists do not hold them.
type Saying<'a, T> = BoxFuture<'a, std::result::Result<T, SqlError>>;

/// Prepares and runs a statement in a session.
pub(crate) fn say<'a>(session: &'a mut Session, sql: &'a str, params: Vec<Value>) -> Saying<'a, Outcome> {
    Box::pin(async move { session.run_text(sql, params).await })
}

/// Commits what belongs together in a session, or rolls it back if a statement has failed.
pub(crate) fn end(session: &mut Session) -> Saying<'_, ()> {
    Box::pin(async move { session.end_implicit().await })
}

fn prepare<'a>(session: &'a mut Session, sql: &'a str) -> Saying<'a, Arc<Prepared>> {
    Box::pin(async move { session.prepare(sql, &[]).await })
}

fn run(session: &mut Session, prepared: Arc<Prepared>, params: Vec<Value>) -> Saying<'_, Outcome> {
    Box::pin(async move { session.run(&prepared, params).await })
}

fn run_together(session: &mut Session, given: Vec<Given>) -> Saying<'_, Vec<Outcome>> {
    Box::pin(async move { session.execute_together(&given).await })
}

fn query_each(session: &mut Session, given: Vec<Given>) -> Saying<'_, Vec<std::result::Result<Outcome, SqlError>>> {
    Box::pin(async move { session.query_each(&given, PART_TIME).await })
}

/// What one shard has of an answer.
pub(crate) type OfShard = (ShardId, std::result::Result<Vec<Vec<Value>>, SqlError>);

fn query_shards<'a>(
    session: &'a mut Session,
    given: Given,
    time: Duration,
    without: &'a BTreeSet<ShardId>,
) -> Saying<'a, Vec<OfShard>> {
    Box::pin(async move { session.query_shards(&given, time, without).await })
}

impl Line {
    async fn prepare(&mut self, all: Vec<Said>) -> std::result::Result<Vec<Given>, SqlError> {
        let mut given = Vec::with_capacity(all.len());
        for (sql, params) in all {
            let known = self.prepared.get(sql).cloned();
            let prepared = match known {
                Some(prepared) => prepared,
                None => {
                    let prepared = prepare(&mut self.session, sql).await?;
                    self.prepared.insert(sql, prepared.clone());
                    prepared
                }
            };
            given.push((prepared, params));
        }
        Ok(given)
    }

    async fn together(&mut self, all: Vec<Said>) -> std::result::Result<Vec<Reply>, SqlError> {
        let mut given = self.prepare(all).await?;
        if given.len() == 1
            && let Some((prepared, params)) = given.pop()
        {
            return Ok(vec![run(&mut self.session, prepared, params).await?.into()]);
        }
        let outcomes = run_together(&mut self.session, given).await?;
        Ok(outcomes.into_iter().map(Reply::from).collect())
    }
}

impl From<Outcome> for Reply {
    fn from(outcome: Outcome) -> Reply {
        Reply { rows: outcome.rows, affected: outcome.affected }
    }
}

/// Whether the same may be sent again: nothing has happened.
pub(crate) fn may_repeat(error: &SqlError) -> bool {
    error.moved || matches!(error.sqlstate, "40001" | "40P01" | "55P03")
}

/// All lines to one database.
pub(crate) struct Lines {
    database: Arc<Database>,
    env: Arc<dyn Env>,
    idle: Mutex<Vec<Line>>,
    /// Shards that have not answered a look in time, and until when they are not asked.
    shunned: Mutex<BTreeMap<ShardId, Duration>>,
}

impl Lines {
    pub(crate) fn new(database: Arc<Database>, env: Arc<dyn Env>) -> Lines {
        Lines { database, env, idle: Mutex::default(), shunned: Mutex::default() }
    }

    pub(crate) fn database(&self) -> &Arc<Database> {
        &self.database
    }

    pub(crate) fn env(&self) -> &Arc<dyn Env> {
        &self.env
    }

    /// Milliseconds since 1970.
    pub(crate) fn now(&self) -> i64 {
        (self.env.now_micros() / 1_000) as i64
    }

    /// A session that may write to the tables of runs.
    pub(crate) fn session(&self) -> std::result::Result<Session, SqlError> {
        self.database.system_session()
    }

    fn take(&self) -> std::result::Result<Line, SqlError> {
        if let Some(line) = lock(&self.idle).pop() {
            return Ok(line);
        }
        Ok(Line { session: self.session()?, prepared: HashMap::new() })
    }

    /// One statement.
    pub(crate) async fn one(&self, sql: &'static str, params: Vec<Value>) -> Result<Reply> {
        let replies = self.together(vec![(sql, params)]).await?;
        Ok(replies.into_iter().next().unwrap_or_default())
    }

    /// Statements that stand or fall together.
    pub(crate) async fn together(&self, all: Vec<Said>) -> Result<Vec<Reply>> {
        self.try_together(all).await.map_err(WorkflowError::of_sql)
    }

    /// As [`Lines::together`], for whoever looks at SQLSTATEs.
    pub(crate) fn try_together(&self, all: Vec<Said>) -> BoxFuture<'_, std::result::Result<Vec<Reply>, SqlError>> {
        // Boxed, so that the future of every step does not hold that of a statement.
        Box::pin(self.repeat(all))
    }

    /// Queries that do not belong together: an answer or an error for each. They are as many requests as there are shards
    /// that they come to.
    pub(crate) async fn each(&self, all: Vec<Said>) -> Vec<std::result::Result<Reply, SqlError>> {
        let (mut asked, mut replies) = (Vec::with_capacity(all.len()), Vec::with_capacity(all.len()));
        for some in all.chunks(MAX_TOGETHER) {
            match self.ask_each(some.to_vec()).await {
                Ok(answers) => asked.extend(answers),
                Err(error) => asked.extend(some.iter().map(|_| Err(error.clone()))),
            }
        }
        for (said, reply) in all.into_iter().zip(asked) {
            replies.push(match reply {
                Err(error) if may_repeat(&error) => match self.in_time(self.try_together(vec![said])).await {
                    Some(again) => again.map(|replies| replies.into_iter().next().unwrap_or_default()),
                    None => Err(error),
                },
                reply => reply.map(Reply::from),
            });
        }
        replies
    }

    /// What comes before a shard's part of the time is up.
    pub(crate) async fn in_time<T>(&self, work: impl Future<Output = T> + Send) -> Option<T> {
        match futures::future::select(Box::pin(work), self.env.sleep(PART_TIME)).await {
            futures::future::Either::Left((done, _)) => Some(done),
            futures::future::Either::Right(_) => None,
        }
    }

    /// A query of each shard by itself, with a LIMIT of each: what is on one that cannot be reached waits, and nothing else
    /// does.
    pub(crate) async fn by_shard(&self, (sql, params): Said) -> std::result::Result<Vec<OfShard>, SqlError> {
        let without = self.shunned();
        let mut line = self.take()?;
        let given = line.prepare(vec![(sql, params)]).await?.pop();
        let Some(given) = given else { return Ok(Vec::new()) };
        let answers = query_shards(&mut line.session, given, LOOK_TIME, &without).await?;
        self.give_back(line);
        for (shard, answer) in &answers {
            if let Err(error) = answer {
                tracing::debug!(%shard, %error, "a shard does not say which runs it has");
                if error.sqlstate == TIMED_OUT {
                    lock(&self.shunned).insert(shard.clone(), self.env.elapsed() + SHUNNED);
                }
            }
        }
        Ok(answers)
    }

    fn shunned(&self) -> BTreeSet<ShardId> {
        let (now, mut shunned) = (self.env.elapsed(), lock(&self.shunned));
        shunned.retain(|_, until| *until > now);
        shunned.keys().cloned().collect()
    }

    async fn ask_each(
        &self,
        all: Vec<Said>,
    ) -> std::result::Result<Vec<std::result::Result<Outcome, SqlError>>, SqlError> {
        let mut line = self.take()?;
        let given = line.prepare(all).await?;
        let answers = query_each(&mut line.session, given).await?;
        self.give_back(line);
        Ok(answers)
    }

    async fn repeat(&self, all: Vec<Said>) -> std::result::Result<Vec<Reply>, SqlError> {
        let mut wait = RETRY;
        for attempt in 1.. {
            // A line that an error or a dropped future leaves in between is not used again.
            let mut line = self.take()?;
            match line.together(all.clone()).await {
                Ok(replies) => {
                    self.give_back(line);
                    return Ok(replies);
                }
                Err(error) if may_repeat(&error) && attempt < TRIES => {
                    self.env.sleep(wait).await;
                    wait = (wait * 2).min(RETRY_MAX);
                }
                Err(error) if matches!(error.sqlstate, GUARD | UNIQUE) => {
                    self.give_back(line);
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
        unreachable!("the loop ends by returning")
    }

    fn give_back(&self, line: Line) {
        let mut idle = lock(&self.idle);
        if idle.len() < IDLE_MAX {
            idle.push(line);
        }
    }
}

/// A guard that did not hold is news for the caller; everything else is an error.
pub(crate) fn unless_guarded(result: std::result::Result<Vec<Reply>, SqlError>) -> Result<Option<Vec<Reply>>> {
    match result {
        Ok(replies) => Ok(Some(replies)),
        Err(error) if error.sqlstate == GUARD => Ok(None),
        Err(error) => Err(WorkflowError::of_sql(error)),
    }
}

/// A column that should be there.
pub(crate) fn missing(what: &str) -> WorkflowError {
    WorkflowError::new(Code::InternalError, format!("a row of runs has no {what}"))
}
