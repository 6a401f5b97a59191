//! The canonical workload: everything that a shard does, at once, and what its clients are told.
//!
//! Each client writes keys of its own, so that after a crash its rows have one of two states: what it was told, or
//! that and the one step which had not been answered. The [`Story`] holds both, and [`Story::judge`] compares them
//! with what the shard says.

use crate::harness::{
    self, APPLIED_TABLE, BUCKETS, FENCE_TIME, NODE, Observed, claim, fence, group, hash_kind, stream,
};
use isles_engine::error::{Result, ShardError};
use isles_engine::fence::{Access, FenceMode};
use isles_engine::shard::{Batch, Begin, ImportMode, Incoming, Request, RowVersion, Shard, Statement, StoredRow};
use isles_engine::shard::{StreamState, Transaction};
use isles_engine::sqlite::{SqliteOptions, SqliteShard};
use isles_kernel::change::Change;
use isles_kernel::names::{BucketId, RoutingVersion, SchemaVersion, Seq, StreamId};
use isles_kernel::schema::{Check, Column, Deferral, Expression, ForeignKey, Key, OnChange, SchemaChange, Table, Unit};
use isles_kernel::value::{DataType, Value};
use isles_sim::disk::Disk;
use isles_sim::exec::{Sim, SimEnv};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// Clients that write rows of their own; each has the bucket of its number.
pub(crate) const CLIENTS: i64 = 4;
/// Rounds of each client's steps: enough that a crash has some hundred places.
pub(crate) const ROUNDS: i64 = 3;
/// The bucket that the mover closes and opens, which belongs to the last client.
const MOVING_BUCKET: u32 = CLIENTS as u32 - 1;
/// Reads of the client that only reads.
pub(crate) const READS: u64 = 28;
/// A bucket that nobody writes to; its fence only rises.
const IDLE_BUCKET: u32 = BUCKETS - 1;
const FIRST_VERSION: u64 = 1;

pub(crate) fn consumer() -> StreamId {
    stream("consumer")
}

pub(crate) fn source() -> StreamId {
    stream("source")
}

fn table(name: &str, columns: Vec<Column>, primary_key: &[&str]) -> Table {
    let primary_key = primary_key.iter().map(|name| (*name).to_string()).collect();
    Table {
        name: name.into(),
        kind: hash_kind("id"),
        columns,
        primary_key,
        keys: vec![],
        foreign_keys: vec![],
        checks: vec![],
        primary_key_name: None,
        hidden_key: false,
    }
}

fn rebuilding_check() -> Check {
    let text = "id IS NOT NULL".to_string();
    let expression = Expression { sql: text.clone(), sqlite: text.clone(), postgres: text, columns: vec!["id".into()] };
    Check { name: "entries_id".into(), expression }
}

fn tables() -> Vec<SchemaChange> {
    let id = || Column::new("id", DataType::Int8).not_null();
    let mut entries = table("entries", vec![id(), Column::new("body", DataType::Text)], &["id"]);
    entries.keys.push(Key::index("entries_body", &["body"]));
    let line = Column::new("line", DataType::Int8).not_null();
    let mut lines = table("lines", vec![id(), line, Column::new("text", DataType::Text)], &["id", "line"]);
    lines.foreign_keys.push(ForeignKey {
        name: "lines_of".into(),
        columns: vec!["id".into()],
        table: "entries".into(),
        references: vec!["id".into()],
        on_delete: OnChange::Cascade,
        on_update: OnChange::Cascade,
        deferral: Deferral::None,
    });
    let progress = table("progress", vec![id(), Column::new("step", DataType::Int8)], &["id"]);
    let incoming = table(APPLIED_TABLE, vec![id(), Column::new("body", DataType::Text)], &["id"]);
    [entries, lines, progress, incoming].into_iter().map(SchemaChange::CreateTable).collect()
}

/// One change of a client's rows. Each is defined whatever is there, because the step before it may have failed.
#[derive(Clone)]
enum RowOp {
    Put(i64, String),
    Update(i64, String),
    Delete(i64),
    PutLine(i64, i64, String),
    /// Puts the row under another key, which takes its lines along.
    Rename(i64, i64),
    /// Breaks the primary key after it has written something.
    Clash(i64),
}

impl RowOp {
    fn statements(&self, owner: i64) -> Vec<Statement> {
        let int = Value::Int;
        let one = |sql: &str, params: Vec<Value>| vec![Statement::new(sql, params)];
        match self {
            RowOp::Put(id, body) => one(
                "INSERT INTO entries (_bucket, id, body) VALUES ($1, $2, $3) ON CONFLICT DO UPDATE SET body = excluded.body",
                vec![int(owner), int(*id), Value::text(body)],
            ),
            RowOp::Update(id, body) => {
                one("UPDATE entries SET body = $2 WHERE id = $1", vec![int(*id), Value::text(body)])
            }
            RowOp::Delete(id) => one("DELETE FROM entries WHERE id = $1", vec![int(*id)]),
            RowOp::PutLine(id, line, text) => one(
                "INSERT INTO lines (_bucket, id, line, text) SELECT $1, $2, $3, $4
                 WHERE EXISTS (SELECT 1 FROM entries WHERE id = $2) ON CONFLICT DO UPDATE SET text = excluded.text",
                vec![int(owner), int(*id), int(*line), Value::text(text)],
            ),
            RowOp::Rename(from, to) => one(
                "UPDATE entries SET id = $2 WHERE id = $1 AND NOT EXISTS (SELECT 1 FROM entries WHERE id = $2)",
                vec![int(*from), int(*to)],
            ),
            RowOp::Clash(id) => {
                let sql = "INSERT INTO entries (_bucket, id, body) VALUES ($1, $2, 'clash')";
                let insert = Statement::new(sql, vec![int(owner), int(*id)]);
                vec![insert.clone(), insert]
            }
        }
    }

    fn apply(&self, rows: &mut Rows) {
        match self {
            RowOp::Put(id, body) => drop(rows.entries.insert(*id, body.clone())),
            RowOp::Update(id, body) => {
                rows.entries.entry(*id).and_modify(|old| old.clone_from(body));
            }
            RowOp::Delete(id) => {
                rows.entries.remove(id);
                rows.lines.retain(|(of, _), _| of != id);
            }
            RowOp::PutLine(id, line, text) if rows.entries.contains_key(id) => {
                rows.lines.insert((*id, *line), text.clone());
            }
            RowOp::Rename(from, to) if rows.entries.contains_key(from) && !rows.entries.contains_key(to) => {
                let body = rows.entries.remove(from).expect("just seen");
                rows.entries.insert(*to, body);
                let lines = std::mem::take(&mut rows.lines).into_iter();
                rows.lines =
                    lines.map(|((of, line), text)| ((if of == *from { *to } else { of }, line), text)).collect();
            }
            RowOp::PutLine(..) | RowOp::Rename(..) | RowOp::Clash(_) => {}
        }
    }
}

/// How a client sends a step.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sending {
    OneShot,
    Interactive,
    /// With a part that is taken back to a savepoint.
    Savepoint,
    /// Ends in a rollback.
    RolledBack,
    /// Refused by the database as a whole.
    Failing,
    Import,
}

struct Step {
    sending: Sending,
    ops: Vec<RowOp>,
}

/// Rows of a client.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Rows {
    entries: BTreeMap<i64, String>,
    lines: BTreeMap<(i64, i64), String>,
    /// The last step that wrote its number along with its rows.
    step: i64,
}

/// Large enough that some steps fill pages of their own.
fn body(owner: i64, step: i64, bytes: usize) -> String {
    let word = format!("{owner}.{step} ");
    word.repeat(bytes / word.len() + 1)
}

/// The steps of a client: some rounds of the same with other rows.
fn steps(owner: i64) -> Vec<Step> {
    (0..ROUNDS).flat_map(|round| round_of_steps(owner, round)).collect()
}

/// Ids of one client are in its bucket.
fn round_of_steps(owner: i64, round: i64) -> Vec<Step> {
    let id = |n: i64| owner + (n + round * 10) * i64::from(BUCKETS);
    let text = |step: i64, bytes: usize| body(owner, step + round * 9, bytes);
    let step = |sending, ops| Step { sending, ops };
    vec![
        step(Sending::OneShot, vec![RowOp::Put(id(1), text(1, 20)), RowOp::PutLine(id(1), 1, text(1, 9))]),
        step(Sending::OneShot, vec![RowOp::Put(id(2), text(2, 2_500)), RowOp::Update(id(1), text(2, 30))]),
        step(Sending::Failing, vec![RowOp::Put(id(9), text(3, 50)), RowOp::Clash(id(8))]),
        step(Sending::Interactive, vec![RowOp::Put(id(3), text(4, 700)), RowOp::PutLine(id(3), 1, text(4, 9))]),
        step(Sending::Import, vec![RowOp::Put(id(4), text(5, 100)), RowOp::Put(id(2), text(5, 100))]),
        step(Sending::OneShot, vec![RowOp::Delete(id(1)), RowOp::Rename(id(3), id(5))]),
        step(Sending::RolledBack, vec![RowOp::Put(id(7), text(7, 5_000)), RowOp::Delete(id(2))]),
        step(Sending::Savepoint, vec![RowOp::Update(id(5), text(8, 6_000)), RowOp::PutLine(id(4), 2, text(8, 9))]),
        step(Sending::OneShot, vec![RowOp::Put(id(6), text(9, 40))]),
    ]
}

/// Something that is known, and what it is if the last step has happened after all.
#[derive(Debug, Clone, Default)]
pub(crate) struct Known<T> {
    told: T,
    in_doubt: Option<T>,
}

impl<T: PartialEq + Clone> Known<T> {
    fn new(told: T) -> Known<T> {
        Known { told, in_doubt: None }
    }

    fn allows(&self, found: &T) -> bool {
        self.told == *found || self.in_doubt.as_ref() == Some(found)
    }

    /// What the answer to the step says. True if there can be another step.
    fn answered<A>(&mut self, answer: &Result<A>) -> bool {
        match answer {
            Ok(_) => {
                self.told = self.in_doubt.take().unwrap_or_else(|| self.told.clone());
                true
            }
            Err(ShardError::MayHaveHappened(_)) => false,
            // Nothing happened.
            Err(ShardError::Stopped(_) | ShardError::Unavailable(_) | ShardError::Corrupt(_)) => {
                self.in_doubt = None;
                false
            }
            Err(_) => {
                self.in_doubt = None;
                true
            }
        }
    }
}

/// What all clients together have been told.
pub(crate) struct Story {
    /// The power fails when this many answers have been given.
    crash_after_answers: Option<u64>,
    pub(crate) answers: u64,
    pub(crate) sent_after_failure: u64,
    pub(crate) acknowledged_after_failure: u64,
    /// Whether the shard worked once its disk was well again.
    pub(crate) after_healing: Option<Result<()>>,
    /// Reads that were answered.
    pub(crate) reads: u64,
    /// Answers of each kind of error.
    pub(crate) errors: BTreeMap<&'static str, u64>,
    clients: Vec<Known<Rows>>,
    /// The step of each client that somebody has read.
    seen_steps: Vec<i64>,
    /// Version and mode of the moving bucket's fence, and version of the idle bucket's.
    moving: Known<Option<(u64, FenceMode)>>,
    idle: Known<u64>,
    schema: Known<u64>,
    consumer: Known<Option<u64>>,
    /// What the consumer has read of the log.
    pub(crate) log_copy: Vec<Change>,
    seq_seen: Seq,
    applied: Known<(StreamState, BTreeMap<i64, String>)>,
}

impl Story {
    pub(crate) fn new(crash_after_answers: Option<u64>) -> Story {
        Story {
            crash_after_answers,
            answers: 0,
            sent_after_failure: 0,
            acknowledged_after_failure: 0,
            after_healing: None,
            reads: 0,
            errors: BTreeMap::new(),
            clients: (0..CLIENTS).map(|_| Known::new(Rows::default())).collect(),
            seen_steps: vec![0; CLIENTS as usize],
            moving: Known::new(None),
            idle: Known::new(0),
            schema: Known::new(0),
            consumer: Known::new(None),
            log_copy: Vec::new(),
            seq_seen: Seq::ZERO,
            applied: Known::default(),
        }
    }

    /// Compares what a shard says with what its clients were told.
    pub(crate) fn judge(&self, observed: &Observed) -> std::result::Result<(), String> {
        let wrong = |what: &str, known: &dyn std::fmt::Debug, found: &dyn std::fmt::Debug| {
            Err(format!("{what}: {known:?} is known, {found:?} is there"))
        };
        if !self.schema.allows(&observed.schema.version.0) {
            return wrong("schema", &self.schema, &observed.schema.version);
        }
        for (owner, known) in (0..).zip(&self.clients) {
            let found = rows_of(observed, owner);
            if !known.allows(&found) {
                return wrong(&format!("client {owner}"), known, &found);
            }
            let seen = self.seen_steps[owner as usize];
            if found.step < seen {
                return wrong(&format!("client {owner}, as read"), &seen, &found.step);
            }
        }
        let (idle, moving) = fences_of(observed);
        if !self.idle.allows(&idle) {
            return wrong("idle fence", &self.idle, &idle);
        }
        if !self.moving.allows(&moving) {
            return wrong("moving fence", &self.moving, &moving);
        }
        let position = observed.consumers.first().map(|consumer| consumer.position.0);
        if !self.consumer.allows(&position) {
            return wrong("consumer", &self.consumer, &position);
        }
        let applied = (observed.stream.clone(), texts(observed, APPLIED_TABLE));
        if !self.applied.allows(&applied) {
            return wrong("applied rows", &self.applied, &applied);
        }
        if observed.seq < self.seq_seen {
            return wrong("seq", &self.seq_seen, &observed.seq);
        }
        harness::check_log(&self.log_copy, observed)
    }

    /// How far the work got, for tests that must not pass on an empty history.
    pub(crate) fn steps_told(&self) -> i64 {
        self.clients.iter().map(|known| known.told.step).sum()
    }

    pub(crate) fn rows_applied(&self) -> usize {
        self.applied.told.1.len()
    }

    pub(crate) fn schema_told(&self) -> u64 {
        self.schema.told
    }
}

fn texts(observed: &Observed, table: &str) -> BTreeMap<i64, String> {
    let rows = observed.tables.get(table).map_or(&[][..], Vec::as_slice);
    rows.iter()
        .map(|row| match row.values.as_slice() {
            [Value::Int(id), Value::Text(body), ..] => (*id, body.clone()),
            other => panic!("no row of {table}: {other:?}"),
        })
        .collect()
}

fn rows_of(observed: &Observed, owner: i64) -> Rows {
    let own = |id: &i64| id % i64::from(BUCKETS) == owner;
    let stored = |table: &str| observed.tables.get(table).cloned().unwrap_or_default();
    let lines = stored("lines").into_iter().filter_map(|row| match <[Value; 3]>::try_from(row.values) {
        Ok([Value::Int(id), Value::Int(line), Value::Text(text)]) => own(&id).then_some(((id, line), text)),
        other => panic!("no line: {other:?}"),
    });
    let step = stored("progress").into_iter().find_map(|row| match row.values[..] {
        [Value::Int(id), Value::Int(step)] => (id == owner).then_some(step),
        _ => panic!("no progress: {row:?}"),
    });
    let entries = texts(observed, "entries").into_iter().filter(|(id, _)| own(id)).collect();
    Rows { entries, lines: lines.collect(), step: step.unwrap_or(0) }
}

fn fences_of(observed: &Observed) -> (u64, Option<(u64, FenceMode)>) {
    use isles_engine::fence::FenceScope;
    let of = |bucket: u32| {
        let covers = |scope: &FenceScope| match scope {
            FenceScope::Buckets { first, last, .. } => first.0 <= bucket && bucket <= last.0,
            _ => false,
        };
        let fence = observed.fences.iter().find(|fence| covers(&fence.scope));
        fence.map(|fence| (fence.version.0, fence.mode))
    };
    (of(IDLE_BUCKET).map_or(0, |(version, _)| version), of(MOVING_BUCKET))
}

/// Brings a recovered shard to where the workload can go on, whatever it has of the beginning.
pub(crate) async fn finish_set_up(shard: &SqliteShard) -> Result<()> {
    if shard.schema().await?.version == SchemaVersion(0) {
        shard.apply_schema(SchemaVersion(0), tables()).await?;
    }
    shard.add_consumer(&consumer()).await.map(drop)
}

/// How a process life ends when it has not been ended before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Closed,
    /// Killed, with the shard open.
    Killed,
    /// The disk is healed, and the same shard must work again before it is closed.
    Healed,
}

/// A process that serves clients: the shard, the disk under it, and what is told.
#[derive(Clone)]
pub(crate) struct Life {
    pub(crate) disk: Arc<Disk>,
    pub(crate) story: Arc<Mutex<Story>>,
    pub(crate) ending: Ending,
    /// The sync that fails, if one does: what is sent after it must not be acknowledged (I-5).
    pub(crate) failing_sync: Option<u64>,
}

impl Life {
    pub(crate) fn story(&self) -> MutexGuard<'_, Story> {
        self.story.lock().expect("no client has panicked")
    }

    /// Every answer passes here: in some tests the power fails right after it.
    fn note<A>(&self, answer: &Result<A>) {
        let mut story = self.story();
        story.answers += 1;
        if let Err(error) = answer {
            *story.errors.entry(harness::error_name(error)).or_default() += 1;
        }
        if story.crash_after_answers == Some(story.answers) {
            self.disk.crash();
        }
    }

    /// Does a step of which `known` tells the outcome. True if there can be another one.
    async fn step<T: PartialEq + Clone, A>(
        &self,
        known: impl Fn(&mut Story) -> &mut Known<T>,
        after: T,
        sent: impl Future<Output = Result<A>>,
    ) -> bool {
        known(&mut self.story()).in_doubt = Some(after);
        let had_failed = self.failing_sync.is_some_and(|sync| self.disk.counts().syncs >= sync);
        let answer = sent.await;
        if had_failed {
            let mut story = self.story();
            story.sent_after_failure += 1;
            story.acknowledged_after_failure += u64::from(answer.is_ok());
        }
        self.note(&answer);
        known(&mut self.story()).answered(&answer)
    }

    /// Runs the workload until it is done or the disk is dead. True if the shard was opened.
    pub(crate) fn run(&self, sim: &Sim, options: SqliteOptions) -> bool {
        let env = sim.node(NODE);
        let life = self.clone();
        let root = async move {
            let Ok(shard) = harness::open(env.clone(), options).await else { return false };
            if life.set_up(&shard).await {
                life.serve(&env, &shard).await;
            }
            life.end(&shard).await;
            true
        };
        sim.run(root).expect("every step ends")
    }

    async fn end(&self, shard: &SqliteShard) {
        match self.ending {
            Ending::Closed => {}
            Ending::Killed => self.disk.crash(),
            Ending::Healed => {
                self.disk.heal();
                let mut works = shard.seq().await.map(drop);
                if works.is_ok() {
                    let version = self.story().idle.told + 1;
                    let set = shard
                        .set_fences(vec![fence(IDLE_BUCKET..=IDLE_BUCKET, version, FenceMode::Closed)], FENCE_TIME);
                    works = set.await;
                    self.story().idle = Known::new(version);
                }
                self.story().after_healing = Some(works);
            }
        }
        let _ = shard.close().await;
    }

    async fn set_up(&self, shard: &SqliteShard) -> bool {
        let all = vec![fence(0..=BUCKETS - 1, FIRST_VERSION, FenceMode::Open)];
        self.story().idle.in_doubt = Some(FIRST_VERSION);
        let opened = Some((FIRST_VERSION, FenceMode::Open));
        let mut answer = Ok(());
        let goes_on = self
            .step(|story| &mut story.moving, opened, async {
                answer = shard.set_fences(all, FENCE_TIME).await;
                answer.clone()
            })
            .await;
        self.story().idle.answered(&answer);
        if !goes_on {
            return false;
        }
        self.step(|story| &mut story.schema, 1, shard.apply_schema(SchemaVersion(0), tables())).await
            && self.step(|story| &mut story.consumer, Some(0), shard.add_consumer(&consumer())).await
    }

    async fn serve(&self, env: &Arc<SimEnv>, shard: &SqliteShard) {
        let mut ends = Vec::new();
        let mut spawn = |label, task: futures::future::BoxFuture<'static, ()>| {
            let (end, ended) = tokio::sync::oneshot::channel::<()>();
            env.spawn_named(
                label,
                Box::pin(async move {
                    task.await;
                    drop(end);
                }),
            );
            ends.push(ended);
        };
        for owner in 0..CLIENTS {
            let (life, shard) = (self.clone(), shard.clone());
            spawn("client", Box::pin(async move { life.client(&shard, owner).await }));
        }
        let (life, at) = (self.clone(), shard.clone());
        spawn("mover", Box::pin(async move { life.mover(&at).await }));
        let (life, at) = (self.clone(), shard.clone());
        spawn("schema", Box::pin(async move { life.changer(&at).await }));
        let (life, at) = (self.clone(), shard.clone());
        spawn("consumer", Box::pin(async move { life.consumer(&at).await }));
        let (life, at) = (self.clone(), shard.clone());
        spawn("applier", Box::pin(async move { life.applier(&at).await }));
        let (life, at) = (self.clone(), shard.clone());
        spawn("reader", Box::pin(async move { life.reader(&at).await }));
        let _ = futures::future::join_all(ends).await;
    }

    async fn client(&self, shard: &SqliteShard, owner: i64) {
        for (number, step) in (1..).zip(steps(owner)) {
            let mut after = self.story().clients[owner as usize].told.clone();
            let happens = !matches!(step.sending, Sending::Failing | Sending::RolledBack);
            if happens {
                step.ops.iter().for_each(|op| op.apply(&mut after));
                after.step = if step.sending == Sending::Import { after.step } else { number };
            }
            let sent = send(shard, owner, number, &step);
            if !self.step(|story| &mut story.clients[owner as usize], after, sent).await {
                return;
            }
        }
    }

    /// Closes and opens a bucket, as a move does, and lets another fence rise.
    async fn mover(&self, shard: &SqliteShard) {
        for version in 2..18 {
            let mode = if version % 2 == 0 { FenceMode::ReadOnly } else { FenceMode::Open };
            let set = shard.set_fences(vec![fence(MOVING_BUCKET..=MOVING_BUCKET, version, mode)], FENCE_TIME);
            if !self.step(|story| &mut story.moving, Some((version, mode)), set).await {
                return;
            }
            let set = shard.set_fences(vec![fence(IDLE_BUCKET..=IDLE_BUCKET, version, FenceMode::Closed)], FENCE_TIME);
            if !self.step(|story| &mut story.idle, version, set).await {
                return;
            }
        }
    }

    async fn changer(&self, shard: &SqliteShard) {
        let default = Some(Value::text("none"));
        let extra = Column { default, ..Column::new("extra", DataType::Text).not_null() };
        let key = Key::index("lines_text", &["text"]);
        let changes = [
            SchemaChange::AddColumn { table: "entries".into(), column: extra },
            SchemaChange::CreateKey { table: "lines".into(), key },
            SchemaChange::DropKey { table: "entries".into(), key: "entries_body".into() },
            // Rebuilds a table whose rows others refer to.
            SchemaChange::AddCheck { table: "entries".into(), check: rebuilding_check() },
        ];
        for (from, change) in (1..).zip(changes) {
            let sent = shard.apply_schema(SchemaVersion(from), vec![change]);
            if !self.step(|story| &mut story.schema, from + 1, sent).await {
                return;
            }
        }
    }

    /// Reads the log and trims it behind itself.
    async fn consumer(&self, shard: &SqliteShard) {
        let stream = consumer();
        for _ in 0..30 {
            let after = self.story().log_copy.last().map_or(Seq::ZERO, |change| change.seq);
            let page = shard.changes(after, 9).await;
            self.note(&page);
            let Ok(page) = page else { return };
            self.story().log_copy.extend(page.changes);
            let sent = shard.advance(&stream, page.through);
            if !self.step(|story| &mut story.consumer, Some(page.through.0), sent).await {
                return;
            }
        }
    }

    /// Applies rows of another shard: puts, and a delete of what came before.
    async fn applier(&self, shard: &SqliteShard) {
        for seq in 1..20_u64 {
            let (mut state, mut rows) = self.story().applied.told.clone();
            state.position = Seq(seq);
            state.cursor = Some(vec![seq as u8]);
            let put = (seq as i64, body(9, seq as i64, 900));
            let gone = seq as i64 - 2;
            rows.insert(put.0, put.1.clone());
            rows.remove(&gone);
            let changes = vec![incoming(seq, put.0, Some(put.1)), incoming(seq, gone.max(0), None)];
            let cursor = state.cursor.clone();
            let batch = Batch { position: Some(state.position), cursor, ..Batch::new(&source(), changes) };
            if !self.step(|story| &mut story.applied, (state, rows), shard.apply(batch)).await {
                return;
            }
        }
    }

    /// Reads how far each client has come; what was read once must never be undone (I-4).
    async fn reader(&self, shard: &SqliteShard) {
        for round in 0..READS {
            let select = Statement::new("SELECT id, step FROM progress", vec![]).returning([DataType::Int8; 2]);
            let mut request = Request::read(claim(FIRST_VERSION, 0), select.clone());
            if round % 2 == 0 {
                request.statements.push(select);
            }
            let answer = shard.execute(request).await;
            self.note(&answer);
            let seq = shard.seq().await;
            let mut story = self.story();
            story.seq_seen = seq.unwrap_or(story.seq_seen).max(story.seq_seen);
            let Ok(outcomes) = answer else { return };
            story.reads += 1;
            for row in outcomes.iter().flat_map(|outcome| &outcome.rows) {
                let [Value::Int(owner), Value::Int(step)] = row[..] else { panic!("no progress: {row:?}") };
                let seen = &mut story.seen_steps[owner as usize];
                *seen = step.max(*seen);
            }
        }
    }
}

fn incoming(seq: u64, id: i64, body: Option<String>) -> Incoming {
    let bucket = BucketId((id % i64::from(BUCKETS)) as u32);
    Incoming {
        table: APPLIED_TABLE.into(),
        unit: Unit::Bucket(group(), bucket),
        key: vec![Value::Int(id)],
        version: RowVersion { epoch: RoutingVersion(1), seq: Seq(seq) },
        row: body.map(|body| vec![Value::Int(id), Value::Text(body)]),
    }
}

async fn send(shard: &SqliteShard, owner: i64, number: i64, step: &Step) -> Result<()> {
    // Routers know of a cutover after a while; this one learns of it by being refused.
    let claim = claim(if number < 6 { FIRST_VERSION } else { 99 }, owner as u32);
    let progress = Statement::new(
        "INSERT INTO progress (_bucket, id, step) VALUES ($1, $1, $2) ON CONFLICT DO UPDATE SET step = excluded.step",
        vec![Value::Int(owner), Value::Int(number)],
    );
    let statements: Vec<Statement> = step.ops.iter().flat_map(|op| op.statements(owner)).chain([progress]).collect();
    match step.sending {
        Sending::OneShot | Sending::Failing => {
            let answer = shard.execute(Request::write(claim, statements)).await;
            assert!(step.sending == Sending::OneShot || answer.is_err(), "two rows have one key");
            answer.map(drop)
        }
        Sending::Import => {
            let unit = Unit::Bucket(group(), BucketId(owner as u32));
            let width = shard.schema().await?.table("entries")?.columns.len();
            let rows = step.ops.iter().map(|op| import_row(&unit, op, width)).collect();
            shard.import("entries", rows, ImportMode::Upsert).await.map(drop)
        }
        _ => {
            let mut transaction = shard.begin(Begin::new(claim, Access::Write)).await?;
            interact(&mut *transaction, &statements, step.sending).await?;
            if step.sending == Sending::RolledBack { transaction.rollback().await } else { transaction.commit().await }
        }
    }
}

fn import_row(unit: &Unit, op: &RowOp, width: usize) -> StoredRow {
    let RowOp::Put(id, body) = op else { panic!("an import only puts") };
    let extra = std::iter::repeat_n(Value::text("imported"), width - 2);
    let values = [Value::Int(*id), Value::text(body)].into_iter().chain(extra).collect();
    StoredRow { unit: unit.clone(), values }
}

async fn interact(transaction: &mut dyn Transaction, statements: &[Statement], sending: Sending) -> Result<()> {
    if sending == Sending::Savepoint {
        transaction.savepoint("before").await?;
        for statement in statements {
            transaction.execute(statement).await?;
        }
        transaction.rollback_to("before").await?;
    }
    for statement in statements {
        transaction.execute(statement).await?;
    }
    Ok(())
}
