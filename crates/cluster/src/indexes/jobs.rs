//! Requests to compare an index with the rows of some shards, and to put it right.
//!
//! ```text
//! a job ─► queue ─► all that wait for one table, together ─► one pass ─► what it found, told to each
//! ```
//!
//! Indexes follow the change logs by themselves, so nothing depends on jobs: they are for whoever has reason to doubt some
//! shards, such as after a restore. That is why they are kept in memory only, and are gone after a restart.
//!
//! A job does not say what to change. It names shards, which are scanned: whatever order jobs come in, and however often,
//! the rows are the truth. Jobs that wait together for one table become one pass over the shards and indexes of all of
//! them; the indexes that statements were led by lately come first.

use super::json::Fields;
use super::lock;
use super::verify::Verified;
use super::watch::Watched;
use crate::database::Database;
use isles_kernel::error::SqlError;
use isles_kernel::names::ShardId;
use isles_sql::types::{TIMESTAMPTZ, Type};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;
use tokio::sync::Notify;

/// Jobs that wait. Those for one table are one pass, however many they are, so a full queue is somebody's loop.
const MAX_QUEUED: usize = 1_000;
/// Jobs that are done and can still be seen.
const MAX_KEPT: usize = 1_000;
/// Indexes that a job names.
const MAX_INDEXES: usize = 100;
/// A pass waits a moment for others that want the same.
const LINGER: Duration = Duration::from_millis(50);
/// The worker looks so often even if nobody tells it anything, to see whether the database is still open.
const INTERVAL: Duration = Duration::from_secs(5);

/// What has happened to rows of a table, on which shards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "type", rename = "maintain_index")]
pub struct Job {
    pub database_id: String,
    pub table_name: String,
    pub operation: Operation,
    pub shard_ids: BTreeSet<ShardId>,
    pub affected_indexes: BTreeSet<String>,
    /// For people: a comparison looks at all that an index is over.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_columns: Option<Vec<String>>,
    pub created_at: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Operation {
    Update,
    Delete,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum JobState {
    Queued,
    Running,
    Done,
    Failed,
}

/// A job, and what has become of it.
#[derive(Debug, Clone, Serialize)]
pub struct JobInfo {
    pub id: u64,
    pub state: JobState,
    pub job: Job,
    /// What was found on its shards, in its indexes.
    #[serde(flatten)]
    pub found: Verified,
    /// Indexes that were left out, since they are being built: a build counts all rows.
    pub left_out: Vec<String>,
    pub error: Option<String>,
    /// Milliseconds since 1970.
    pub queued_at: u64,
    pub finished_at: Option<u64>,
}

impl Job {
    /// Reads a job. What is not known is refused, and every refusal names its field.
    pub fn from_json(value: Value) -> Result<Job, SqlError> {
        let mut fields = Fields::of(value, "a job")?;
        let kind: String = fields.take("type")?;
        if kind != "maintain_index" {
            return Err(fields
                .refuse("type", format!("\"{kind}\" is no type of a job"))
                .with_hint("maintain_index is one"));
        }
        let shards: Vec<Value> = fields.take("shard_ids")?;
        let shard_ids = shards.into_iter().map(|shard| fields.shard("shard_ids", shard)).collect::<Result<_, _>>()?;
        let job = Job {
            database_id: fields.take("database_id")?,
            table_name: fields.take("table_name")?,
            operation: fields.take("operation")?,
            shard_ids,
            affected_indexes: fields.take("affected_indexes")?,
            updated_columns: fields.take_if_there("updated_columns")?,
            created_at: fields.take("created_at")?,
        };
        job.check(&fields)?;
        fields.end()?;
        Ok(job)
    }

    /// What can be told without the database.
    fn check(&self, fields: &Fields) -> Result<(), SqlError> {
        if self.shard_ids.is_empty() {
            return Err(fields.refuse("shard_ids", "it names no shard"));
        }
        match self.affected_indexes.len() {
            0 => return Err(fields.refuse("affected_indexes", "it names no index")),
            1..=MAX_INDEXES => {}
            n => return Err(fields.refuse("affected_indexes", format!("{n} indexes are more than {MAX_INDEXES}"))),
        }
        if self.operation == Operation::Delete && self.updated_columns.is_some() {
            return Err(fields.refuse("updated_columns", "a DELETE updates no columns"));
        }
        let time =
            isles_sql::text::input(&self.created_at, Type::of(TIMESTAMPTZ), &isles_sql::text::Settings::default());
        time.map(drop).map_err(|error| fields.refuse("created_at", error.message))
    }
}

/// The jobs of a database.
#[derive(Default)]
pub(super) struct Jobs {
    list: Mutex<List>,
    /// One has come.
    news: Notify,
}

#[derive(Default)]
struct List {
    /// In the order in which they came; the number of the next one.
    jobs: VecDeque<JobInfo>,
    next: u64,
    done: u64,
    failed: u64,
}

impl List {
    fn in_state(&self, state: JobState) -> impl Iterator<Item = &JobInfo> {
        self.jobs.iter().filter(move |job| job.state == state)
    }

    /// Forgets the oldest that are done.
    fn trim(&mut self) {
        let is_over = |job: &JobInfo| matches!(job.state, JobState::Done | JobState::Failed);
        let mut over = self.jobs.iter().filter(|job| is_over(job)).count().saturating_sub(MAX_KEPT);
        self.jobs.retain(|job| {
            let goes = over > 0 && is_over(job);
            over -= usize::from(goes);
            !goes
        });
    }

    /// Takes all that wait for one table: that of the job of the highest rank, or of the oldest of these.
    fn take(&mut self, rank: impl Fn(&Job) -> u64) -> Vec<(u64, Job)> {
        let first = self.in_state(JobState::Queued).min_by_key(|info| (std::cmp::Reverse(rank(&info.job)), info.id));
        let Some(table) = first.map(|info| info.job.table_name.clone()) else { return Vec::new() };
        let together = |info: &&mut JobInfo| info.state == JobState::Queued && info.job.table_name == table;
        let taken = self.jobs.iter_mut().filter(together).map(|info| {
            info.state = JobState::Running;
            (info.id, info.job.clone())
        });
        taken.collect()
    }

    fn finish(&mut self, id: u64, at: u64, outcome: Outcome) {
        match outcome.error {
            None => self.done += 1,
            Some(_) => self.failed += 1,
        }
        if let Some(info) = self.jobs.iter_mut().find(|info| info.id == id) {
            info.state = if outcome.error.is_none() { JobState::Done } else { JobState::Failed };
            (info.found, info.left_out, info.error) = (outcome.found, outcome.left_out, outcome.error);
            info.finished_at = Some(at);
        }
        self.trim();
    }
}

impl Jobs {
    /// How many wait or run, are done, and have failed.
    pub(super) fn counts(&self) -> (usize, u64, u64) {
        let list = lock(&self.list);
        let open = list.in_state(JobState::Queued).count() + list.in_state(JobState::Running).count();
        (open, list.done, list.failed)
    }

    fn add(&self, job: Job, at: u64) -> Result<JobInfo, SqlError> {
        let mut list = lock(&self.list);
        if list.in_state(JobState::Queued).count() >= MAX_QUEUED {
            let error = SqlError::new("53400", format!("{MAX_QUEUED} jobs wait already"));
            return Err(error.with_hint("try again when some are done"));
        }
        let info = JobInfo {
            id: list.next,
            state: JobState::Queued,
            job,
            found: Verified::default(),
            left_out: Vec::new(),
            error: None,
            queued_at: at,
            finished_at: None,
        };
        list.next += 1;
        list.jobs.push_back(info.clone());
        drop(list);
        self.news.notify_one();
        Ok(info)
    }
}

/// What has become of a job.
#[derive(Default)]
struct Outcome {
    found: Verified,
    left_out: Vec<String>,
    error: Option<String>,
}

/// What a pass has found, by index and shard; an index without shards was left out.
type Found = BTreeMap<String, BTreeMap<ShardId, Result<Verified, SqlError>>>;

impl Database {
    /// Takes a job, which is done later.
    pub fn enqueue_index_job(&self, job: Job) -> Result<JobInfo, SqlError> {
        self.check_job(&job)?;
        self.indexes.jobs.add(job, self.env.now_micros() / 1_000)
    }

    /// All jobs that are known, the newest first.
    pub fn index_jobs(&self) -> Vec<JobInfo> {
        lock(&self.indexes.jobs.list).jobs.iter().rev().cloned().collect()
    }

    /// Whether a job is about what there is.
    fn check_job(&self, job: &Job) -> Result<(), SqlError> {
        let refuse =
            |code, field: &str, why: String| Err(SqlError::new(code, format!("a job: field \"{field}\": {why}")));
        if job.database_id != self.name {
            return refuse("42704", "database_id", format!("there is no database \"{}\"", job.database_id));
        }
        let schema = self.schema();
        let Some(table) = schema.tables.get(&job.table_name) else {
            return refuse("42P01", "table_name", format!("relation \"{}\" does not exist", job.table_name));
        };
        let known = self.shard_names();
        if let Some(shard) = job.shard_ids.iter().find(|shard| !known.contains(shard)) {
            return refuse("42704", "shard_ids", format!("there is no shard {shard}"));
        }
        let has = |name: &&String| table.global_keys().any(|key| table.key_relation(&key.name) == **name);
        if let Some(name) = job.affected_indexes.iter().find(|name| !has(name)) {
            let why = format!("table \"{}\" has no global index \"{name}\"", table.name);
            return refuse("42704", "affected_indexes", why);
        }
        match job.updated_columns.iter().flatten().find(|column| table.position(column).is_none()) {
            Some(column) => refuse("42704", "updated_columns", format!("there is no column \"{column}\"")),
            None => Ok(()),
        }
    }

    /// How much statements were led by the indexes of a job, lately.
    fn rank_of(&self, job: &Job) -> u64 {
        let indexes = self.indexes.watch.all();
        let named = indexes.iter().filter(|index| job.affected_indexes.contains(&index.definition.name));
        named.map(|index| index.lookups_lately()).max().unwrap_or(0)
    }

    /// Does all jobs that wait, those of one table at once.
    async fn do_jobs(&self) {
        loop {
            let taken = lock(&self.indexes.jobs.list).take(|job| self.rank_of(job));
            if taken.is_empty() || self.is_closing() {
                return;
            }
            let found = self.pass(&taken).await;
            let at = self.env.now_micros() / 1_000;
            let mut list = lock(&self.indexes.jobs.list);
            taken.iter().for_each(|(id, job)| list.finish(*id, at, outcome(job, &found)));
        }
    }

    /// One pass over all that some jobs of one table name, each index and shard once.
    async fn pass(&self, jobs: &[(u64, Job)]) -> Found {
        let named: BTreeSet<&String> = jobs.iter().flat_map(|(_, job)| &job.affected_indexes).collect();
        let mut indexes: Vec<Arc<Watched>> = self.indexes.watch.all();
        indexes.retain(|index| named.contains(&index.definition.name));
        indexes.sort_by_key(|index| std::cmp::Reverse(index.lookups_lately()));
        let mut found = Found::new();
        for index in indexes {
            let of_index = found.entry(index.definition.name.clone()).or_default();
            let names_it = |job: &Job| job.affected_indexes.contains(&index.definition.name);
            let shards = jobs.iter().filter(|(_, job)| names_it(job)).flat_map(|(_, job)| &job.shard_ids);
            for shard in shards.collect::<BTreeSet<_>>() {
                let verified = self.verify_shard(&index, shard, true).await;
                if matches!(&verified, Err(error) if error.sqlstate == "55000") {
                    break;
                }
                of_index.insert(shard.clone(), verified);
            }
            index.rank();
        }
        tracing::info!(jobs = jobs.len(), indexes = found.len(), "index jobs are done");
        found
    }
}

/// What a pass has found of what one job wanted.
fn outcome(job: &Job, found: &Found) -> Outcome {
    let mut outcome = Outcome::default();
    for name in &job.affected_indexes {
        let Some(of_index) = found.get(name) else {
            outcome.error = Some(format!("index \"{name}\" was dropped"));
            continue;
        };
        if job.shard_ids.iter().any(|shard| !of_index.contains_key(shard)) {
            outcome.left_out.push(name.clone());
        }
        for verified in job.shard_ids.iter().filter_map(|shard| of_index.get(shard)) {
            match verified {
                Ok(verified) => outcome.found.add(verified.clone()),
                Err(error) => outcome.error = Some(error.message.clone()),
            }
        }
    }
    outcome
}

/// Does jobs for as long as the database is open.
pub(super) fn start(database: &Arc<Database>) {
    let (weak, env, indexes): (Weak<Database>, _, _) =
        (Arc::downgrade(database), database.env.clone(), database.indexes.clone());
    database.env.spawn(Box::pin(async move {
        loop {
            futures::future::select(Box::pin(indexes.jobs.news.notified()), env.sleep(INTERVAL)).await;
            let is_idle = lock(&indexes.jobs.list).in_state(JobState::Queued).next().is_none();
            if !is_idle {
                env.sleep(LINGER).await;
            }
            let Some(database) = weak.upgrade() else { return };
            if database.shards.is_closed() || database.is_closing() {
                return;
            }
            database.do_jobs().await;
        }
    }));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn given() -> Value {
        json!({
            "type": "maintain_index", "database_id": "isles", "table_name": "users", "operation": "UPDATE",
            "shard_ids": [0, "s2"], "affected_indexes": ["users_email"], "updated_columns": ["email"],
            "created_at": "2026-01-02T03:04:05.678Z",
        })
    }

    #[test]
    fn a_job_is_read_as_it_is_written() {
        let job = Job::from_json(given()).unwrap();
        let names: Vec<&str> = job.shard_ids.iter().map(ShardId::as_str).collect();
        assert_eq!((names, job.operation), (vec!["s0", "s2"], Operation::Update));
        let mut expected = given();
        expected["shard_ids"] = json!(["s0", "s2"]);
        assert_eq!(serde_json::to_value(&job).unwrap(), expected);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (field, value) in [
            ("type", json!("build_index")),
            ("type", json!(7)),
            ("database_id", json!(7)),
            ("table_name", Value::Null),
            ("operation", json!("INSERT")),
            ("operation", json!("DELETE")),
            ("shard_ids", json!([])),
            ("shard_ids", json!([-1])),
            ("shard_ids", json!([1.5])),
            ("shard_ids", json!(["S 1"])),
            ("shard_ids", json!("s1")),
            ("affected_indexes", json!([])),
            ("affected_indexes", json!("users_email")),
            ("affected_indexes", json!((0..101).map(|n| n.to_string()).collect::<Vec<_>>())),
            ("updated_columns", json!("email")),
            ("created_at", json!("yesterdayish")),
            ("priority", json!(1)),
        ] {
            let mut job = given();
            job[field] = value.clone();
            let error = Job::from_json(job).unwrap_err();
            // What a DELETE must not have is another field.
            let named = if value == "DELETE" { "updated_columns" } else { field };
            assert!(error.message.contains(&format!("\"{named}\"")), "{field} {value}: {}", error.message);
            assert_eq!(error.sqlstate, "22023");
        }
        for field in ["type", "database_id", "table_name", "operation", "shard_ids", "affected_indexes", "created_at"] {
            let mut job = given();
            job.as_object_mut().unwrap().remove(field);
            let error = Job::from_json(job).unwrap_err();
            assert!(error.message.contains(&format!("\"{field}\": it is missing")), "{}", error.message);
        }
        assert!(Job::from_json(json!([])).is_err());
    }

    fn job(table: &str, index: &str, shard: u64) -> Job {
        let mut value = given();
        value["table_name"] = json!(table);
        value["affected_indexes"] = json!([index]);
        value["shard_ids"] = json!([shard]);
        Job::from_json(value).unwrap()
    }

    #[test]
    fn jobs_of_one_table_are_taken_together_and_the_most_used_first() {
        let jobs = Jobs::default();
        for (table, index, shard) in [("a", "a1", 0), ("b", "b1", 0), ("a", "a2", 1), ("b", "b1", 3), ("c", "c1", 0)] {
            jobs.add(job(table, index, shard), 1).unwrap();
        }
        let mut list = lock(&jobs.list);
        let rank = |job: &Job| if job.table_name == "b" { 9 } else { 0 };
        let ids = |taken: Vec<(u64, Job)>| taken.into_iter().map(|(id, _)| id).collect::<Vec<_>>();
        assert_eq!(ids(list.take(rank)), [1, 3]);
        assert_eq!(ids(list.take(rank)), [0, 2]);
        assert_eq!(ids(list.take(rank)), [4]);
        assert_eq!(ids(list.take(rank)), Vec::<u64>::new());
    }

    /// I-65
    #[test]
    fn the_queue_is_bounded_and_so_is_what_is_kept() {
        let jobs = Jobs::default();
        for _ in 0..MAX_QUEUED {
            jobs.add(job("a", "a1", 0), 1).unwrap();
        }
        assert_eq!(jobs.add(job("a", "a1", 0), 1).unwrap_err().sqlstate, "53400");
        let taken = lock(&jobs.list).take(|_| 0);
        assert_eq!(taken.len(), MAX_QUEUED);
        for (id, _) in taken {
            lock(&jobs.list).finish(id, 2, Outcome::default());
        }
        jobs.add(job("a", "a1", 0), 1).unwrap();
        let last = lock(&jobs.list).take(|_| 0);
        lock(&jobs.list).finish(last[0].0, 2, Outcome { error: Some("no".into()), ..Outcome::default() });
        let kept = lock(&jobs.list).jobs.len();
        assert_eq!((kept, jobs.counts()), (MAX_KEPT, (0, MAX_QUEUED as u64, 1)));
    }
}
