//! Writers, readers, devices that send again, and the body of the hook; and what each of them was told.
//!
//! Every unit of work makes a row of `marks` with a token of its own, so that it can be found in the log; and it changes
//! one of a few items, so that tokens of one tenant depend on each other.

use crate::shard;
use isles_engine::env::Env;
use isles_fragments::Error;
use isles_fragments::context::ShardContext;
use isles_fragments::error::{Code, Rule, refused};
use isles_fragments::hooks::{Hook, HookContext, Trigger};
use isles_fragments::query::Find;
use isles_fragments::schema::{ColumnType, Schema, column};
use isles_fragments::store::{Fragment, Handle};
use isles_fragments::uow::Plan;
use isles_fragments::values::Values;
use isles_kernel::sync::{
    Command, Cursor, Entry, OutboxQuery, RequestId, SnapshotQuery, SnapshotRow, Status, SubmitRequest,
};
use isles_sim::rng::Rng;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use uuid::Uuid;

pub(crate) const SCHEMA: &str = "app";
pub(crate) const WRITERS: u64 = 2;
/// Units of work of a writer in one life.
const UNITS: u64 = 8;
/// Items of a tenant.
const ITEMS: u64 = 4;
/// Attempts of a hook: more than crashes and failures that end can use up.
const ATTEMPTS: u32 = 10;
const BACKOFF_MS: u64 = 4;
/// Pauses of clients that have something to do, and of those that have not: virtual time is free, statements are not.
const BUSY: Duration = Duration::from_millis(8);
const IDLE: Duration = Duration::from_millis(400);
/// Longer than a body may run.
const FOR_EVER: Duration = Duration::from_secs(1_000);

/// What becomes of a hook: works, fails so often first, fails always, or hangs the first time.
pub(crate) const WORKS: i64 = 0;
pub(crate) const POISON: i64 = 99;
pub(crate) const HANGS: i64 = -1;

/// What a client was told of a unit of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// No answer, or one that says as much.
    Unknown,
    Done,
    /// An error after which nothing has happened.
    Refused,
}

/// A client that reads the log of a tenant; it outlives the server's crashes.
#[derive(Default)]
pub(crate) struct Reader {
    pub(crate) cursor: Option<Cursor>,
    pub(crate) entries: Vec<Entry>,
    pub(crate) snapshots: Vec<(Cursor, Vec<SnapshotRow>)>,
}

/// A request that is sent until it has an answer, and then again.
pub(crate) struct Sent {
    pub(crate) token: String,
    pub(crate) request: SubmitRequest,
    pub(crate) answer: Option<Status>,
}

#[derive(Default)]
pub(crate) struct Told {
    pub(crate) units: BTreeMap<String, Outcome>,
    /// Hooks that units of work have triggered, by their tokens, and what is to become of them.
    pub(crate) triggered: BTreeMap<String, i64>,
    /// How often the body of each hook ran.
    pub(crate) runs: BTreeMap<String, u64>,
    pub(crate) readers: BTreeMap<&'static str, Reader>,
    pub(crate) requests: BTreeMap<&'static str, Vec<Sent>>,
    /// Writers that have ended in this life.
    pub(crate) ended: u64,
    pub(crate) violations: Vec<String>,
    pub(crate) seen: BTreeMap<&'static str, u64>,
}

pub(crate) type Shared = Arc<Mutex<Told>>;

impl Told {
    pub(crate) fn shared() -> Shared {
        Arc::default()
    }

    fn saw(&mut self, what: &'static str) {
        *self.seen.entry(what).or_default() += 1;
    }

    fn note(&mut self, token: &str, answer: &Result<(), Error>) {
        let outcome = match answer {
            Ok(()) => Outcome::Done,
            Err(Error::MayHaveHappened(_)) => Outcome::Unknown,
            Err(_) => Outcome::Refused,
        };
        self.saw(match answer {
            Err(Error::Database(_)) => "unit of work that the database failed",
            _ => "unit of work",
        });
        self.units.insert(token.into(), outcome);
    }
}

pub(crate) fn fragment(told: &Shared, env: &Arc<dyn Env>) -> Fragment {
    let schema = Schema::build(SCHEMA)
        .table("marks", |t| t.column(column("by", ColumnType::String)))
        .table("items", |t| {
            t.column(column("n", ColumnType::Bigint)).column(column("by", ColumnType::String)).index("items_n", &["n"])
        })
        .table("effects", |t| t.column(column("by", ColumnType::String)));
    let mark = |input: &Json| {
        let token = input["token"].as_str().ok_or_else(|| refused(Code::InvalidValue, "a token is needed"))?.to_owned();
        Ok(Plan::new().mutate(move |m, _| m.create_with_id("marks", &token, by(&token))))
    };
    let (told, env) = (told.clone(), env.clone());
    let body = move |context: HookContext, payload: Json| echo(told.clone(), env.clone(), context, payload);
    let hook = Hook::new(body).attempts(ATTEMPTS, BACKOFF_MS);
    Fragment::new(schema.finish().unwrap()).outbox().command("mark", mark).hook("echo", hook)
}

fn by(token: &str) -> Values {
    Values::new().set("by", token)
}

/// The body of the hook: fails or hangs as it was told, and then leaves one row in its shard, however often it runs.
async fn echo(told: Shared, env: Arc<dyn Env>, context: HookContext, payload: Json) -> Result<(), String> {
    let token = payload["token"].as_str().unwrap_or_default().to_owned();
    {
        let mut told = told.lock().unwrap();
        let runs = told.runs.entry(token.clone()).or_default();
        *runs += 1;
        if *runs > 1 {
            told.saw("hook ran again");
        }
        let own = context.shard.name().is_some_and(|name| token.starts_with(&format!("{name}-")));
        if !own {
            told.violations.push(format!("I-33: the hook {token} ran in {:?}", context.shard));
        }
    }
    let fails = payload["fails"].as_i64().unwrap_or_default();
    if fails == HANGS && context.attempt == 1 {
        env.sleep(FOR_EVER).await;
    }
    if i64::from(context.attempt) <= fails {
        told.lock().unwrap().saw("hook failed");
        return Err("as it was told".into());
    }
    let id = token.clone();
    let tx = context.handle.handler_tx().mutate(move |m, _| m.create_with_id("effects", &id, by(&id)));
    match tx.execute().await {
        // Somebody, most likely itself, was here before.
        Ok(()) | Err(Error::Constraint { rule: Rule::Unique, .. }) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

/// A unit of work that does nothing but trigger a hook, and is done.
pub(crate) async fn trigger(app: &Handle, told: &Shared, tenant: &str, token: &str, fails: i64) -> Result<(), String> {
    told.lock().unwrap().triggered.insert(token.into(), fails);
    let id = token.to_owned();
    let tx = async {
        let tx = app.handler_tx().mutate(move |m, _| {
            m.create_with_id("marks", &id, by(&id))?;
            m.trigger_with(Trigger::new("echo", &json!({ "token": id, "fails": fails })).id(&id))
        });
        tx.execute().await
    };
    let done = ShardContext.with(shard(tenant), || tx).await;
    told.lock().unwrap().note(token, &done);
    done.map_err(|error| format!("I-64: without faults a unit of work says: {error}"))
}

pub(crate) struct Client {
    pub(crate) tenant: &'static str,
    pub(crate) app: Handle,
    pub(crate) told: Shared,
    pub(crate) env: Arc<dyn Env>,
    pub(crate) rng: Rng,
}

impl Client {
    async fn pause(&mut self, at_most: Duration) {
        let micros = self.rng.below(at_most.as_micros() as u64);
        self.env.sleep(Duration::from_micros(micros)).await;
    }

    pub(crate) async fn write(mut self, name: String) {
        for at in 0..UNITS {
            let token = format!("{name}-{at}");
            match self.rng.below(8) {
                0 => self.request(&token),
                1 => self.impossible(&token).await,
                _ => self.unit(&token).await,
            }
            self.pause(BUSY).await;
        }
        self.told.lock().unwrap().ended += 1;
    }

    /// Makes a mark, and makes, changes or removes an item as it finds it.
    async fn unit(&mut self, token: &str) {
        let fails = *self.rng.pick(&[WORKS, WORKS, 1, 2, POISON, HANGS]);
        let (triggers, removes) = (self.rng.chance(1, 2), self.rng.chance(1, 4));
        {
            let mut told = self.told.lock().unwrap();
            told.units.insert(token.into(), Outcome::Unknown);
            if triggers {
                told.triggered.insert(token.into(), fails);
            }
        }
        let (item, id, app) = (format!("i{}", self.rng.below(ITEMS)), token.to_owned(), self.app.clone());
        let done = ShardContext.with(shard(self.tenant), || async move {
            let wanted = item.clone();
            let tx = app.handler_tx().retrieve(move |r| r.find(Find::by_id("items", &wanted)).map(|_| ()));
            let tx = tx.mutate(move |m, found| {
                m.create_with_id("marks", &id, by(&id))?;
                match found.first(0) {
                    None => m.create_with_id("items", &item, by(&id).set("n", 0))?,
                    Some(row) if removes => m.delete_checked("items", &row.id)?,
                    Some(row) => {
                        let n = row.values.int("n").unwrap_or_default();
                        m.update_checked("items", &row.id, by(&id).set("n", n + 1))?;
                    }
                }
                if triggers {
                    m.trigger_with(Trigger::new("echo", &json!({ "token": id, "fails": fails })).id(&id))?;
                }
                Ok(())
            });
            tx.execute().await
        });
        let done = done.await;
        self.told.lock().unwrap().note(token, &done);
    }

    /// A unit of work that breaks a rule at its end: nothing of it may remain, neither rows nor hook nor version.
    async fn impossible(&mut self, token: &str) {
        let (id, app) = (token.to_owned(), self.app.clone());
        let done = ShardContext.with(shard(self.tenant), || async move {
            let tx = app.handler_tx().mutate(move |m, _| {
                m.trigger_with(Trigger::new("echo", &json!({ "token": id, "fails": 0 })).id(&id))?;
                m.create_with_id("marks", &id, by(&id))?;
                m.create_with_id("marks", &id, by(&id))
            });
            tx.execute().await
        });
        let done = done.await;
        let mut told = self.told.lock().unwrap();
        told.units.insert(token.into(), Outcome::Refused);
        if done.is_ok() {
            told.violations.push(format!("I-29: {token} was done, and it cannot be"));
        }
    }

    /// Keeps a request; the device sends it.
    fn request(&mut self, token: &str) {
        let partition = self.app.store().partition(&shard(self.tenant)).unwrap();
        let (first, second) = (self.rng.bits(), self.rng.bits());
        let request_id = RequestId(Uuid::from_u64_pair(first, second));
        let mut told = self.told.lock().unwrap();
        let cursor = told.readers.get(self.tenant).and_then(|reader| reader.cursor).unwrap_or(Cursor::START);
        let input = json!({ "token": token });
        let command = Command { schema: SCHEMA.into(), name: "mark".into(), input, reads: vec![], scopes: vec![] };
        let request = SubmitRequest { request_id, partition, cursor, commands: vec![command] };
        told.units.insert(token.into(), Outcome::Unknown);
        told.requests.entry(self.tenant).or_default().push(Sent { token: token.into(), request, answer: None });
    }

    /// Sends requests that have no answer, and now and then one that has; sometimes two copies at once.
    pub(crate) async fn send_again(mut self) {
        let mut pause = BUSY;
        loop {
            self.pause(pause).await;
            let some = {
                let told = self.told.lock().unwrap();
                let all = told.requests.get(self.tenant).map_or(&[][..], Vec::as_slice);
                let open = all.iter().position(|sent| sent.answer.is_none());
                pause = if open.is_some() { BUSY } else { IDLE };
                let any = (!all.is_empty()).then(|| self.rng.below(all.len() as u64) as usize);
                open.or(any).map(|at| (at, all[at].request.clone()))
            };
            let Some((at, request)) = some else { continue };
            let store = self.app.store().clone();
            let answers = ShardContext.with(shard(self.tenant), || async move {
                let (first, second) = futures::join!(store.submit(&request), store.submit(&request));
                [first, second]
            });
            for answer in answers.await {
                let mut told = self.told.lock().unwrap();
                told.saw("request sent again");
                let Ok(answer) = answer else { continue };
                let sent = &mut told.requests.get_mut(self.tenant).unwrap()[at];
                let (before, token) = (sent.answer.replace(answer.status), sent.token.clone());
                if answer.status != Status::Applied || before.is_some_and(|before| before != answer.status) {
                    let violation = format!("I-3: the request {token} was {before:?}, and is {:?}", answer.status);
                    told.violations.push(violation);
                }
                told.units.insert(token, Outcome::Done);
            }
        }
    }

    /// Follows the log, for ever.
    pub(crate) async fn read(mut self) {
        let mut pause = BUSY;
        loop {
            self.pause(pause).await;
            match self.rng.below(8) {
                0 => self.snapshot().await,
                1 => self.read_again().await,
                _ => pause = if self.read_on().await { BUSY } else { IDLE },
            }
        }
    }

    async fn page(&mut self, after: Cursor) -> Option<isles_kernel::sync::OutboxPage> {
        let query = OutboxQuery { after: Some(after), limit: Some(3), wait_ms: Some(20), ..OutboxQuery::default() };
        let page = ShardContext.with(shard(self.tenant), || self.app.store().outbox(&query)).await;
        let violation = match page {
            Ok(page) => match page.check(after) {
                Ok(()) => return Some(page),
                Err(broken) => {
                    format!("I-30: after {after}, {} was given a page that is broken: {broken}", self.tenant)
                }
            },
            Err(error) => match error.refusal() {
                Some(_) => format!("I-31: the cursor {after} of {} is refused: {error}", self.tenant),
                None => return None,
            },
        };
        self.told.lock().unwrap().violations.push(violation);
        None
    }

    /// Whether there was something new, or nothing could be read.
    async fn read_on(&mut self) -> bool {
        let after = self.told.lock().unwrap().readers.entry(self.tenant).or_default().cursor.unwrap_or(Cursor::START);
        let Some(page) = self.page(after).await else { return true };
        let mut told = self.told.lock().unwrap();
        let reader = told.readers.get_mut(self.tenant).unwrap();
        reader.cursor = Some(page.next);
        let is_news = !page.entries.is_empty();
        reader.entries.extend(page.entries);
        is_news
    }

    /// From a place in the past: the same entries again.
    async fn read_again(&mut self) {
        let (at, after) = {
            let told = self.told.lock().unwrap();
            let Some(reader) = told.readers.get(self.tenant).filter(|reader| !reader.entries.is_empty()) else {
                return;
            };
            let at = self.rng.below(reader.entries.len() as u64) as usize;
            (at, reader.entries[..at].last().and_then(Entry::cursor).unwrap_or(Cursor::START))
        };
        let Some(page) = self.page(after).await else { return };
        let mut told = self.told.lock().unwrap();
        told.saw("page read again");
        let known = &told.readers[self.tenant].entries[at..];
        if known.iter().zip(&page.entries).any(|(known, again)| known != again) {
            let violation = format!("I-32: after {after}, {} was given other entries than before", self.tenant);
            told.violations.push(violation);
        }
    }

    async fn snapshot(&mut self) {
        let page = {
            let query = SnapshotQuery::default();
            ShardContext.with(shard(self.tenant), || self.app.store().snapshot(&query)).await
        };
        let Ok(page) = page else { return };
        let mut told = self.told.lock().unwrap();
        told.saw("snapshot");
        let reader = told.readers.entry(self.tenant).or_default();
        reader.snapshots.push((page.cursor, page.rows));
    }
}
