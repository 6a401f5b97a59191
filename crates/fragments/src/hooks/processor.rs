//! Who runs hooks.
//!
//! A processor works for one shard, or globally. It holds a few places for each shard, so that a shard whose hooks hang
//! waits for itself alone, and keeps some of all places for shards that have none, so that many which hang leave room for
//! the others. It is told where hooks are triggered in its process, and goes there; to all shards it goes from time to
//! time, page by page, each round where the last one ended. Several processors may run at once, in one process or many: a claim is a unit of work of its
//! own, and the end of a hook is noted only by the one whose claim is the last.

use super::{COMPLETED, FAILED, HookContext, PENDING, PROCESSING};
use crate::adapter::{Mode, Row, Select, Tick};
use crate::condition::{Condition, Op, compares, eq, is_in};
use crate::context::{GlobalScope, ShardContext};
use crate::error::{Code, Error, Result, refused};
use crate::internal::HOOKS;
use crate::query::Direction;
use crate::shard::Shard;
use crate::store::Handle;
use crate::uow::apply::by_id;
use crate::values::{Values, ms_of, timestamp_ms};
use futures::FutureExt;
use isles_kernel::value::Value;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

/// The longest wait between two attempts.
const LONGEST_BACKOFF_MS: i64 = 3_600_000;
/// Shards that are known to have more due hooks than there were places for; the others are found by the next round.
const MAX_WAITING: usize = 10_000;
/// One place of so many is kept for shards that have none: with a thousand, 250 shards begin at once while others hang.
const KEPT: usize = 4;
/// Rounds of a drain; each ends at least one hook's attempt.
const MAX_ROUNDS: usize = 10_000;
/// Characters of an error that are kept.
const ERROR_CHARS: usize = 2_000;

/// How a processor works.
#[derive(Debug, Clone, Copy)]
pub struct ProcessorOptions {
    /// Hooks of one shard that run at the same time.
    pub per_shard: usize,
    /// Hooks of all shards that run at the same time; a quarter of them are first ones of their shards.
    pub at_once: usize,
    /// How long a body may run.
    pub time_limit_ms: i64,
    /// How long a claim holds; longer than a body may run.
    pub lease_ms: i64,
    /// How often the global processor looks when nobody tells it.
    pub poll_ms: u64,
    /// Shards that are looked at in one round; the others come in the next ones.
    pub shards_per_round: usize,
}

impl Default for ProcessorOptions {
    fn default() -> ProcessorOptions {
        ProcessorOptions {
            per_shard: 8,
            at_once: 1_000,
            time_limit_ms: 30_000,
            lease_ms: 60_000,
            poll_ms: 500,
            shards_per_round: 1_000,
        }
    }
}

/// What a round has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Processed {
    pub completed: u64,
    pub failed: u64,
    pub given_up: u64,
}

impl std::ops::AddAssign for Processed {
    fn add_assign(&mut self, other: Processed) {
        self.completed += other.completed;
        self.failed += other.failed;
        self.given_up += other.given_up;
    }
}

/// A hook that was given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dead {
    pub id: String,
    pub name: String,
    pub attempts: i64,
    pub error: String,
}

#[derive(Debug, Clone)]
enum Reach {
    Shard(Shard),
    Global,
}

/// Runs the hooks of a fragment.
#[derive(Clone)]
pub struct Processor {
    handle: Handle,
    reach: Reach,
    options: ProcessorOptions,
}

/// A claimed hook.
struct Claimed {
    row: Row,
    shard: Shard,
}

impl Processor {
    /// For one shard.
    pub fn of_shard(handle: &Handle, shard: Shard) -> Processor {
        Processor { handle: handle.clone(), reach: Reach::Shard(shard), options: ProcessorOptions::default() }
    }

    /// For all shards.
    pub fn global(handle: &Handle, _right: &GlobalScope) -> Processor {
        Processor { handle: handle.clone(), reach: Reach::Global, options: ProcessorOptions::default() }
    }

    pub fn with_options(mut self, options: ProcessorOptions) -> Processor {
        self.options = options;
        self
    }

    fn namespace(&self) -> &str {
        self.handle.fragment.schema.key()
    }

    fn due(&self, now_ms: i64) -> Condition {
        eq("namespace", self.namespace()).and(is_in("status", [PENDING, PROCESSING])).and(compares(
            "nextAt",
            Op::Le,
            timestamp_ms(now_ms),
        ))
    }

    /// Shards that have due hooks, behind one of them.
    async fn shards_due(&self, after: Option<&Shard>, limit: usize) -> Result<Vec<Shard>> {
        match &self.reach {
            Reach::Shard(shard) => Ok(vec![shard.clone()]),
            Reach::Global => {
                let store = &self.handle.store;
                let table = store.internal(HOOKS)?;
                store.adapter().shards_with(&table, &self.due(store.now_ms()), after, limit).await
            }
        }
    }

    /// The shards of the next round: behind those of the last one, and then from the beginning.
    async fn next_shards(&self, after: &mut Option<Shard>) -> Result<Vec<Shard>> {
        let mut shards = self.shards_due(after.as_ref(), self.options.shards_per_round).await?;
        if after.is_some() && shards.len() < self.options.shards_per_round {
            let more = self.shards_due(None, self.options.shards_per_round - shards.len()).await?;
            let fresh: Vec<Shard> = more.into_iter().filter(|shard| !shards.contains(shard)).collect();
            shards.extend(fresh);
        }
        *after = shards.last().filter(|_| shards.len() >= self.options.shards_per_round).cloned();
        Ok(shards)
    }

    /// Claims at most so many due hooks of a shard; and how many have run out of attempts.
    async fn claim(&self, shard: &Shard, most: usize) -> Result<(Vec<Claimed>, u64)> {
        let store = &self.handle.store;
        let table = store.internal(HOOKS)?;
        let mut tx = store.adapter().begin(&store.access_to(shard).await?, Mode::Write).await?;
        tx.tick(Tick::Hold).await?;
        let now = store.now_ms();
        let order = vec![("nextAt".into(), Direction::Asc), ("id".into(), Direction::Asc)];
        let select = Select { table: table.clone(), condition: self.due(now), order, after: None, limit: most };
        let owner = store.surroundings().new_id().simple().to_string();
        let (mut claimed, mut given_up) = (Vec::new(), 0);
        for mut row in tx.select(&select).await? {
            let attempts = row.values.int("attempts").unwrap_or_default();
            if attempts >= row.values.int("maxAttempts").unwrap_or_default() {
                // The last attempt did not come back.
                let error = "the attempt was not ended before its lease was";
                let set = Values::new().set("status", FAILED).set("owner", Value::Null).set("error", error);
                tx.update(&table, &row.id, row.version, &set).await?;
                given_up += 1;
                continue;
            }
            let set = Values::new()
                .set("status", PROCESSING)
                .set("owner", owner.as_str())
                .set("attempts", attempts + 1)
                .set("nextAt", timestamp_ms(now + self.options.lease_ms));
            if tx.update(&table, &row.id, row.version, &set).await? {
                row.version += 1;
                row.values.0.extend(set.0);
                claimed.push(Claimed { row, shard: shard.clone() });
            }
        }
        tx.commit().await?;
        Ok((claimed, given_up))
    }

    /// Runs a claimed hook in its shard and notes how it ended.
    async fn run_one(self, claimed: Claimed) -> Result<Processed> {
        let Claimed { row, shard } = claimed;
        let name = row.values.text("name").unwrap_or_default().to_string();
        let payload = serde_json::from_str(row.values.text("payload").unwrap_or("null")).unwrap_or_default();
        let attempt = u32::try_from(row.values.int("attempts").unwrap_or(1)).unwrap_or(u32::MAX);
        let home = self.handle.store.home_of(&shard).await?;
        let context = HookContext {
            handle: self.handle.clone(),
            shard: home.clone(),
            id: row.id.clone(),
            name: name.clone(),
            url: row.values.text("url").map(Into::into),
            attempt,
        };
        let outcome = match self.handle.fragment.hooks.get(&name) {
            None => Err(format!("there is no hook \"{name}\"")),
            Some(hook) => {
                let limit = Duration::from_millis(self.options.time_limit_ms.unsigned_abs());
                let body = || AssertUnwindSafe((hook.body)(context, payload)).catch_unwind();
                let surroundings = self.handle.store.surroundings();
                match surroundings.within(limit, ShardContext.with(home, body)).await {
                    None => Err("the time limit was reached".into()),
                    Some(Err(_)) => Err("the hook panicked".into()),
                    Some(Ok(outcome)) => outcome,
                }
            }
        };
        self.note(&shard, &row, attempt, outcome).await
    }

    async fn note(
        &self,
        shard: &Shard,
        row: &Row,
        attempt: u32,
        outcome: std::result::Result<(), String>,
    ) -> Result<Processed> {
        let store = &self.handle.store;
        let table = store.internal(HOOKS)?;
        let max_attempts = row.values.int("maxAttempts").unwrap_or_default();
        let (set, done) = match outcome {
            Ok(()) => (
                Values::new().set("status", COMPLETED).set("owner", Value::Null).set("error", Value::Null),
                Processed { completed: 1, ..Processed::default() },
            ),
            Err(error) => {
                let error: String = error.chars().take(ERROR_CHARS).collect();
                let set = Values::new().set("owner", Value::Null).set("error", error);
                match i64::from(attempt) >= max_attempts {
                    true => (set.set("status", FAILED), Processed { given_up: 1, ..Processed::default() }),
                    false => {
                        let random = store.surroundings().random();
                        let wait = backoff_ms(row.values.int("backoffMs").unwrap_or_default(), attempt, random);
                        let set = set.set("status", PENDING).set("nextAt", timestamp_ms(store.now_ms() + wait));
                        (set, Processed { failed: 1, ..Processed::default() })
                    }
                }
            }
        };
        let mut tx = store.adapter().begin(&store.access_to(shard).await?, Mode::Write).await?;
        tx.tick(Tick::Hold).await?;
        // Whoever has claimed it since has raised its version.
        let own = tx.update(&table, &row.id, row.version, &set).await?;
        tx.commit().await?;
        Ok(if own { done } else { Processed::default() })
    }

    /// Claims what is due, once, and runs it to its end. An error of one shard is told when the others are done.
    pub async fn process_due(&self) -> Result<Processed> {
        let mut processed = Processed::default();
        let mut failed = None;
        let (told, mut ended) = unbounded_channel();
        let (mut running, mut after) = (0, None);
        loop {
            let page = self.shards_due(after.as_ref(), self.options.shards_per_round).await?;
            for shard in &page {
                while running >= self.options.at_once.max(1) {
                    running -= 1;
                    note_end(ended.recv().await, &mut processed, &mut failed);
                }
                let room = self.options.per_shard.min(self.options.at_once - running);
                match self.claim(shard, room).await {
                    Ok((claimed, given_up)) => {
                        processed.given_up += given_up;
                        for claimed in claimed {
                            running += 1;
                            self.handle.store.surroundings().start(told.clone(), self.clone().run_one(claimed));
                        }
                    }
                    Err(error) => failed = Some(error),
                }
            }
            let is_global = matches!(self.reach, Reach::Global);
            after = page.last().filter(|_| is_global && page.len() >= self.options.shards_per_round).cloned();
            if after.is_none() {
                break;
            }
        }
        drop(told);
        for _ in 0..running {
            note_end(ended.recv().await, &mut processed, &mut failed);
        }
        failed.map_or(Ok(processed), Err)
    }

    /// Runs until nothing is due.
    pub async fn drain(&self) -> Result<Processed> {
        let mut all = Processed::default();
        for _ in 0..MAX_ROUNDS {
            let round = self.process_due().await?;
            if round == Processed::default() {
                break;
            }
            all += round;
        }
        Ok(all)
    }

    /// When the next hook of a shard is due, in milliseconds since 1970.
    pub async fn next_wake_ms(&self, shard: &Shard) -> Result<Option<i64>> {
        let store = &self.handle.store;
        let table = store.internal(HOOKS)?;
        let condition = eq("namespace", self.namespace()).and(is_in("status", [PENDING, PROCESSING]));
        let order = vec![("nextAt".into(), Direction::Asc)];
        let mut tx = store.adapter().begin(&store.access_to(shard).await?, Mode::Read).await?;
        let rows = tx.select(&Select { table, condition, order, after: None, limit: 1 }).await?;
        tx.commit().await?;
        Ok(rows.first().and_then(|row| ms_of(row.values.get("nextAt"))))
    }

    /// Runs hooks as they become due, until `stop` resolves. A hook that hangs keeps a place of its own shard only.
    pub async fn run(self, stop: impl Future<Output = ()>) {
        let (told, mut ended) = unbounded_channel();
        let (triggered, surroundings) = (self.handle.store.listen(), self.handle.store.surroundings().clone());
        let poll = Duration::from_millis(self.options.poll_ms);
        let mut places = Places::new(self.options);
        let mut after = None;
        let mut next_round = surroundings.elapsed();
        tokio::pin!(stop);
        loop {
            let mut shards = Vec::from_iter(triggered.take().into_iter().filter(|shard| self.reaches(shard)));
            if surroundings.elapsed() >= next_round {
                match self.next_shards(&mut after).await {
                    Ok(due) => shards.extend(due),
                    Err(error) => tracing::warn!(%error, "hooks were not looked for"),
                }
                next_round = surroundings.elapsed() + poll;
            }
            self.start_in(shards, &told, &mut places).await;
            let rest = next_round.saturating_sub(surroundings.elapsed());
            tokio::select! {
                biased;
                () = &mut stop => return,
                Some(shard) = ended.recv() => places.leave(&shard),
                _ = surroundings.within(rest, triggered.wait()) => {}
            }
            while let Ok(shard) = ended.try_recv() {
                places.leave(&shard);
            }
        }
    }

    fn reaches(&self, shard: &Shard) -> bool {
        match &self.reach {
            Reach::Shard(own) => own == shard,
            Reach::Global => true,
        }
    }

    /// Claims what is due in these shards, and in those that waited for a place, and starts it. A shard that cannot be
    /// asked now keeps no other from its turn.
    async fn start_in(&self, shards: Vec<Shard>, told: &UnboundedSender<Shard>, places: &mut Places) {
        for shard in places.next(shards) {
            let free = places.free(&shard);
            if free == 0 {
                places.wait(shard);
                continue;
            }
            let claimed = match self.claim(&shard, free).await {
                Ok((claimed, given_up)) => {
                    // There may be more.
                    if claimed.len() + given_up as usize >= free {
                        places.wait(shard.clone());
                    }
                    claimed
                }
                Err(error) => {
                    tracing::warn!(%error, ?shard, "hooks of a shard were not claimed");
                    continue;
                }
            };
            for claimed in claimed {
                places.take(&shard);
                let (one, shard) = (self.clone(), shard.clone());
                self.handle.store.surroundings().start(told.clone(), async move {
                    // Whatever happens, the place is given back.
                    match AssertUnwindSafe(one.run_one(claimed)).catch_unwind().await {
                        Ok(Ok(_)) => {}
                        Ok(Err(error)) => tracing::warn!(%error, "the end of a hook was not noted"),
                        Err(_) => tracing::error!("the processor of a hook panicked"),
                    }
                    shard
                });
            }
        }
    }

    /// Hooks of a shard that were given up, in order of their ids.
    pub async fn dead(&self, shard: &Shard, limit: usize) -> Result<Vec<Dead>> {
        let store = &self.handle.store;
        let table = store.internal(HOOKS)?;
        let condition = eq("namespace", self.namespace()).and(eq("status", FAILED));
        let mut tx = store.adapter().begin(&store.access_to(shard).await?, Mode::Read).await?;
        let rows = tx.select(&by_id(&table, condition, limit)).await?;
        tx.commit().await?;
        let dead = |row: Row| Dead {
            name: row.values.text("name").unwrap_or_default().into(),
            attempts: row.values.int("attempts").unwrap_or_default(),
            error: row.values.text("error").unwrap_or_default().into(),
            id: row.id,
        };
        Ok(rows.into_iter().map(dead).collect())
    }

    /// Gives a hook that was given up all of its attempts again.
    pub async fn revive(&self, shard: &Shard, id: &str) -> Result<()> {
        let store = &self.handle.store;
        let table = store.internal(HOOKS)?;
        let mut tx = store.adapter().begin(&store.access_to(shard).await?, Mode::Write).await?;
        tx.tick(Tick::Hold).await?;
        let rows = tx.select(&by_id(&table, eq("id", id), 1)).await?;
        let Some(row) = rows.first().filter(|row| row.values.text("status") == Some(FAILED)) else {
            return Err(refused(Code::NotFound, "no hook with this id was given up"));
        };
        let set = Values::new().set("status", PENDING).set("attempts", 0).set("nextAt", timestamp_ms(store.now_ms()));
        tx.update(&table, id, row.version, &set).await?;
        tx.commit().await?;
        store.tell(shard, false, true);
        Ok(())
    }
}

/// Counts what one hook has come to.
fn note_end(one: Option<Result<Processed>>, processed: &mut Processed, failed: &mut Option<Error>) {
    match one {
        Some(Ok(one)) => *processed += one,
        Some(Err(error)) => *failed = Some(error),
        None => {}
    }
}

/// How many hooks of each shard run, and which shards wait for a place.
struct Places {
    options: ProcessorOptions,
    taken: BTreeMap<Shard, usize>,
    all: usize,
    /// In the order in which they came.
    waiting: VecDeque<Shard>,
}

impl Places {
    fn new(options: ProcessorOptions) -> Places {
        Places { options, taken: BTreeMap::new(), all: 0, waiting: VecDeque::new() }
    }

    /// Places that a shard may take now. Its first one may be one of those that are kept.
    fn free(&self, shard: &Shard) -> usize {
        let taken = self.taken.get(shard).copied().unwrap_or_default();
        let common = self.options.at_once - self.options.at_once / KEPT;
        let ordinary = self.options.per_shard.saturating_sub(taken).min(common.saturating_sub(self.all));
        match taken {
            0 => ordinary.max(self.options.at_once.saturating_sub(self.all).min(1)),
            _ => ordinary,
        }
    }

    fn take(&mut self, shard: &Shard) {
        *self.taken.entry(shard.clone()).or_default() += 1;
        self.all += 1;
    }

    fn leave(&mut self, shard: &Shard) {
        self.all -= 1;
        if let Some(taken) = self.taken.get_mut(shard) {
            *taken -= 1;
        }
        self.taken.retain(|_, taken| *taken > 0);
    }

    /// Notes that a shard has more than there were places for.
    fn wait(&mut self, shard: Shard) {
        if self.waiting.len() < MAX_WAITING {
            self.waiting.push_back(shard);
        }
    }

    /// Those that have waited and could begin, before others.
    fn next(&mut self, others: Vec<Shard>) -> Vec<Shard> {
        let mut known = BTreeSet::new();
        let waiting: Vec<Shard> = self.waiting.drain(..).chain(others).collect();
        waiting.into_iter().filter(|shard| known.insert(shard.clone())).collect()
    }
}

/// Doubles with each attempt; between half of it and all of it, so that what failed together is not tried together.
fn backoff_ms(first: i64, attempt: u32, random: u64) -> i64 {
    let most = first.saturating_mul(1 << attempt.saturating_sub(1).min(20)).clamp(0, LONGEST_BACKOFF_MS);
    most / 2 + (random >> 1) as i64 % (most / 2 + 1)
}
