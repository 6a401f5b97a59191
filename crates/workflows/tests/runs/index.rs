//! The index of runs: every sentence of its design, with more than one index shard.

use crate::harness::{Db, env};
use crate::timers::plan_on_a_shard;
use crate::world::{LIMIT, open, open_with, status, until};
use isles_engine::fence::Claim;
use isles_engine::shard::{Engine, Request, Statement};
use isles_kernel::runs::list::{Entry, Order};
use isles_kernel::runs::places::{shard_name, shard_of};
use isles_kernel::runs::status::Status;
use isles_kernel::value::Value;
use isles_workflows::index::list::Filter;
use isles_workflows::{Code, Context, Create, EngineOptions, Events, Options, Registry, Workflows};
use serde_json::{Value as Json, json};
use std::collections::BTreeSet;

fn registry(shards: u32, previous_shards: Option<u32>, legacy: bool) -> Registry {
    let mut registry = Registry::new();
    let payment = |ctx: Context, input: Json| async move {
        if input["waits"] == json!(true) {
            ctx.wait_for_event::<Json>("wait", "go", None).await?;
        }
        Ok(input)
    };
    let options = Options { shards, previous_shards, legacy, events: Events::new().any("go"), ..Options::default() };
    registry.register("payment", payment, options).unwrap();
    registry.register("notification", payment, Options::default()).unwrap();
    registry
}

fn of(kind: &str) -> Filter {
    Filter { kind: Some(kind.into()), limit: Some(1_000), ..Filter::default() }
}

async fn listed(workflows: &Workflows, filter: &Filter) -> Vec<(String, &'static str)> {
    let page = workflows.list(filter).await.unwrap();
    assert!(page.failed_shards.is_empty() && page.cursor.is_none());
    let mut all: Vec<_> = page.entries.into_iter().map(|entry| (entry.id, entry.status.as_str())).collect();
    all.sort();
    all
}

/// Makes runs, every third of which waits, and lets the index come up to them.
async fn populate(workflows: &Workflows, kind: &str, count: usize) -> Vec<(String, &'static str)> {
    let mut expected = Vec::new();
    for n in 0..count {
        let (id, waits) = (format!("run-{n:03}"), n % 3 == 0);
        workflows.create(kind, &id, &json!({ "n": n, "waits": waits })).await.unwrap();
        if !waits {
            workflows.wait(kind, &id, Some(LIMIT)).await.unwrap();
        }
        expected.push((id, if waits { "waiting" } else { "completed" }));
    }
    caught_up(workflows, kind, &expected).await;
    expected
}

async fn caught_up(workflows: &Workflows, kind: &str, expected: &[(String, &'static str)]) {
    until("the index", || async { listed(workflows, &of(kind)).await == expected }).await;
}

async fn system(db: &Db, sql: &str, params: Vec<Value>) -> Vec<Vec<Value>> {
    db.database.system_session().unwrap().run_text(sql, params).await.unwrap().rows
}

/// Shard naming, shard routing, configuration and its default, the write path to one shard.
pub(crate) async fn index_shards_are_those_of_the_design(db: Db) {
    let workflows = open(&db, registry(4, None, false)).await;
    populate(&workflows, "payment", 24).await;
    workflows.create("notification", "only", &json!({})).await.unwrap();
    caught_up(&workflows, "notification", &[("only".into(), "completed")]).await;
    let rows = system(&db, "SELECT index_shard, id, type FROM isles.run_index", Vec::new()).await;
    assert_eq!(rows.len(), 25, "each run is in one index shard");
    let mut used = BTreeSet::new();
    for row in rows {
        let [Value::Text(shard), Value::Text(id), Value::Text(kind)] = row.as_slice() else { panic!("{row:?}") };
        let shards = if kind == "payment" { 4 } else { 1 };
        assert_eq!(*shard, shard_name(kind, shard_of(id, shards)));
        used.insert(shard.clone());
    }
    assert_eq!(used.len(), 5, "all four, and __index:notification:0: {used:?}");
}

pub(crate) async fn a14_a16_pages_are_newest_first_and_complete(db: Db) {
    let workflows = open(&db, registry(4, None, false)).await;
    let expected = populate(&workflows, "payment", 30).await;
    let attributes = Some(json!({ "customer": "ann" }));
    let create = Create { attributes, ..Create::default() };
    workflows.create_with("payment", "of ann", &json!({}), create).await.unwrap();
    let ended = ("of ann".to_string(), "completed");
    until("one more", || async { listed(&workflows, &of("payment")).await.contains(&ended) }).await;
    for order in [Order::Updated, Order::Created] {
        for status in [None, Some(Status::Waiting), Some(Status::Completed)] {
            let (mut cursor, mut all) = (None, Vec::new());
            loop {
                let filter = Filter { order, status, cursor, limit: Some(4), ..of("payment") };
                let page = workflows.list(&filter).await.unwrap();
                assert!(page.entries.len() <= 4);
                all.extend(page.entries);
                cursor = page.cursor;
                if cursor.is_none() {
                    break;
                }
            }
            let time = |at: usize| all.get(at).map(|entry| entry.at(order));
            assert!((1..all.len()).all(|at| time(at - 1).unwrap().compare(&time(at).unwrap()).is_lt()), "{order:?}");
            let wanted = status.map_or(31, |status| {
                expected.iter().filter(|(_, is)| *is == status.as_str()).count()
                    + usize::from(status == Status::Completed)
            });
            assert_eq!(all.len(), wanted, "{order:?} {status:?}");
            assert!(all.iter().all(|entry| status.is_none_or(|status| entry.status == status)));
        }
    }
    let filter = Filter { attributes: [("customer".into(), json!("ann"))].into(), ..of("payment") };
    assert_eq!(listed(&workflows, &filter).await, [("of ann".into(), "completed")]);
    let newest = workflows.list(&Filter { limit: Some(1), order: Order::Created, ..of("payment") }).await.unwrap();
    assert_eq!(newest.entries[0].id, "of ann");
    for (limit, cursor) in
        [(Some(0), None), (Some(-1), None), (Some(1_000_000), None), (None, Some("no cursor".into()))]
    {
        let error = workflows.list(&Filter { limit, cursor, ..of("payment") }).await.unwrap_err();
        assert_eq!((error.code, error.code.status()), (Code::ValidationError, 400));
    }
    let error = workflows.list(&of("unknown")).await.unwrap_err();
    assert_eq!(error.code, Code::WorkflowTypeUnknown);
}

pub(crate) async fn a20_one_id_in_two_types_is_two_runs(db: Db) {
    let workflows = open(&db, registry(4, None, false)).await;
    workflows.create("payment", "same", &json!({ "n": 1 })).await.unwrap();
    workflows.create("notification", "same", &json!({ "n": 2 })).await.unwrap();
    until("both", || async {
        let page = workflows.list(&Filter::default()).await.unwrap();
        page.entries.len() == 2 && page.entries.iter().all(|entry| entry.status == Status::Completed)
    })
    .await;
    assert_eq!(workflows.get("payment", "same").await.unwrap().input["n"], json!(1));
}

pub(crate) async fn a07_a08_a10_entries_are_mended_and_late_ones_lose(db: Db) {
    let workflows = open(&db, registry(4, None, false)).await;
    let expected = populate(&workflows, "payment", 12).await;
    let created = workflows.get("payment", "run-000").await.unwrap().created_at;
    system(&db, "DELETE FROM isles.run_index WHERE id = 'run-001'", Vec::new()).await;
    let stale = "UPDATE isles.run_index SET status = 'running', version = 0, created_at = 1 WHERE id = 'run-000'";
    system(&db, stale, Vec::new()).await;
    assert_ne!(listed(&workflows, &of("payment")).await, expected);
    assert_eq!(workflows.reindex().await.unwrap().written, 2);
    assert_eq!(listed(&workflows, &of("payment")).await, expected);
    assert_eq!(workflows.reindex().await.unwrap().written, 0, "what is right is not written again");
    let entry = workflows.list(&of("payment")).await.unwrap().entries.into_iter().find(|entry| entry.id == "run-000");
    assert_eq!(entry.unwrap().created_at, created, "the time of creation is the run's own");
    // What the logs have is not lost while nobody follows them.
    workflows.close();
    let workflows = open(&db, registry(4, None, false)).await;
    workflows.send("payment", "run-000", "go", &json!(null), None).await.unwrap();
    workflows.wait("payment", "run-000", Some(LIMIT)).await.unwrap();
    workflows.close();
    let workflows = open(&db, registry(4, None, false)).await;
    let filter = Filter { status: Some(Status::Completed), ..of("payment") };
    until("the entry", || async { listed(&workflows, &filter).await.iter().any(|(id, _)| id == "run-000") }).await;
}

pub(crate) async fn a15_a17_a_resize_loses_and_doubles_nothing(db: Db) {
    let workflows = open(&db, registry(4, None, false)).await;
    let mut expected = populate(&workflows, "payment", 24).await;
    let mut known = 4;
    for (shards, finishes) in [(8, "run-000"), (3, "run-003"), (1, "run-006")] {
        workflows.close();
        // Without the previous count runs would vanish: it is refused.
        let refused = try_open(&db, registry(shards, None, false)).await;
        assert_eq!(refused, Some(Code::InvalidSchema), "{known} to {shards}");
        let workflows = open(&db, registry(shards, Some(known), false)).await;
        assert!(!workflows.is_settled("payment").await.unwrap());
        assert_eq!(listed(&workflows, &of("payment")).await, expected, "reads fan out to both");
        // A run that goes on now is written at its new place; its stale copy passes no filter.
        workflows.send("payment", finishes, "go", &json!(null), None).await.unwrap();
        workflows.wait("payment", finishes, Some(LIMIT)).await.unwrap();
        expected.iter_mut().find(|(id, _)| id == finishes).unwrap().1 = "completed";
        caught_up(&workflows, "payment", &expected).await;
        plant_stale_copy(&db, finishes, shards, known).await;
        let waiting = Filter { status: Some(Status::Waiting), ..of("payment") };
        assert!(!listed(&workflows, &waiting).await.iter().any(|(id, _)| id == finishes));
        assert_eq!(listed(&workflows, &of("payment")).await, expected);
        workflows.close();
        assert_eq!(try_open(&db, registry(shards, None, false)).await, Some(Code::InvalidSchema), "not yet");
        let workflows = open(&db, registry(shards, Some(known), false)).await;
        let resized = workflows.resize("payment").await.unwrap();
        // Entries that the follower takes home meanwhile may be seen by nobody else.
        assert!(resized.may_remove_previous && resized.seen > 0, "{resized:?}");
        assert_eq!(listed(&workflows, &of("payment")).await, expected);
        workflows.close();
        let workflows = open(&db, registry(shards, None, false)).await;
        assert_eq!(listed(&workflows, &of("payment")).await, expected, "finished runs are there, too");
        let rows = system(&db, "SELECT count(*) FROM isles.run_index WHERE type = 'payment'", Vec::new()).await;
        assert_eq!(rows, [[Value::Int(24)]], "no copy is left");
        workflows.close();
        known = shards;
    }
}

async fn try_open(db: &Db, registry: Registry) -> Option<Code> {
    let options = crate::world::options();
    let opened = Workflows::open(db.database.clone(), crate::harness::env(), registry, options).await;
    opened.err().map(|error| error.code)
}

/// What a run was before, at its previous place, as a crash between two writes may leave it.
async fn plant_stale_copy(db: &Db, id: &str, shards: u32, previous: u32) {
    let (home, other) = (shard_of(id, shards), shard_of(id, previous));
    if home == other {
        return;
    }
    // The follower may not have removed the last one yet.
    let sql = "INSERT INTO isles.run_index VALUES ($1, $2, 'payment', 'waiting', 1, 9000000000000, 1, '{}') \
        ON CONFLICT DO NOTHING";
    system(db, sql, vec![Value::Text(shard_name("payment", other)), Value::Text(id.into())]).await;
}

pub(crate) async fn a06_entries_of_earlier_systems_come_home(db: Db) {
    let workflows = open(&db, registry(4, None, false)).await;
    populate(&workflows, "payment", 3).await;
    // One under the name from before there were several, one where the old hash led to.
    let old_hash = shard_name("payment", isles_kernel::hash::legacy::fnv1a32_f64("wf-1") % 4);
    assert_ne!(old_hash, shard_name("payment", shard_of("wf-1", 4)));
    for (shard, id) in [("__index:payment", "order-123"), (old_hash.as_str(), "wf-1")] {
        let sql = "INSERT INTO isles.run_index VALUES ($1, $2, 'payment', 'completed', 1, 2, 1, '{}')";
        system(&db, sql, vec![Value::Text(shard.into()), Value::Text(id.into())]).await;
    }
    workflows.close();
    let workflows = open(&db, registry(4, None, true)).await;
    let found: Vec<String> = listed(&workflows, &of("payment")).await.into_iter().map(|(id, _)| id).collect();
    assert_eq!(found, ["order-123", "run-000", "run-001", "run-002", "wf-1"]);
    let resized = workflows.resize("payment").await.unwrap();
    assert_eq!(resized.moved, 2);
    workflows.close();
    let workflows = open(&db, registry(4, None, false)).await;
    assert_eq!(listed(&workflows, &of("payment")).await.len(), 5);
}

pub(crate) async fn a22_counts_say_what_there_is(db: Db) {
    let workflows = open(&db, registry(4, None, false)).await;
    populate(&workflows, "payment", 9).await;
    let (counts, failed) = workflows.counts(Some("payment")).await.unwrap();
    assert!(failed.is_empty());
    let shown: Vec<(Status, i64)> = counts.iter().map(|count| (count.status, count.runs)).collect();
    assert_eq!(shown, [(Status::Waiting, 3), (Status::Completed, 6)]);
    workflows.delete("payment", "run-001").await.unwrap();
    until("one less", || async { listed(&workflows, &of("payment")).await.len() == 8 }).await;
    let (counts, _) = workflows.counts(None).await.unwrap();
    assert_eq!(counts.iter().map(|count| count.runs).sum::<i64>(), 8);
}

/// An entry that cannot be read stands for an index shard that cannot be asked: the others answer, and it is named.
pub(crate) async fn a19_an_index_shard_that_cannot_be_asked_is_named(db: Db) {
    let workflows = open(&db, registry(4, None, false)).await;
    let expected = populate(&workflows, "payment", 16).await;
    let broken = shard_name("payment", 2);
    let sql = "UPDATE isles.run_index SET status = 'nonsense' WHERE index_shard = $1";
    system(&db, sql, vec![Value::Text(broken.clone())]).await;
    let page = workflows.list(&of("payment")).await.unwrap();
    assert_eq!(page.failed_shards, [broken]);
    assert_eq!(page.to_json()["incomplete"], json!(true));
    let elsewhere = expected.iter().filter(|(id, _)| shard_of(id, 4) != 2).count();
    assert_eq!(page.entries.len(), elsewhere);
    assert!(elsewhere > 0 && elsewhere < 16);
    status(&workflows, "payment", "run-000", "waiting").await;
}

async fn plant(db: &Db, shard: &str, id: &str, status: &str, version: i64) {
    let sql = "INSERT INTO isles.run_index VALUES ($1, $2, 'payment', $3, 1, 9000000000000, $4, '{}')";
    let texts = [shard, id, status].map(|text| Value::Text(text.into()));
    system(db, sql, texts.into_iter().chain([Value::Int(version)]).collect()).await;
}

/// Where each entry of the type is.
async fn entries(db: &Db) -> Vec<(String, String)> {
    let rows = system(db, "SELECT index_shard, id FROM isles.run_index WHERE type = 'payment'", Vec::new()).await;
    let pair = |row: Vec<Value>| match row.as_slice() {
        [Value::Text(shard), Value::Text(id)] => (shard.clone(), id.clone()),
        other => panic!("{other:?}"),
    };
    rows.into_iter().map(pair).collect()
}

/// Entries by the remainder of a hash move with the count, and earlier systems had other names and another hash: whatever
/// lies elsewhere is found before the resize and at home after it, each once, while runs go on; the rest stays.
pub(crate) async fn a03_what_lies_elsewhere_is_found_and_comes_home(db: Db) {
    let workflows = open(&db, registry(4, None, false)).await;
    let mut expected = populate(&workflows, "payment", 24).await;
    workflows.close();
    let by_old_hash = |id: &str, count: u32| shard_name("payment", isles_kernel::hash::legacy::fnv1a32_f64(id) % count);
    let older = ["wf-1", "order-123", "payment-42", "wf-日本", "ü", "😀", "payment-1"];
    for (n, id) in older.into_iter().enumerate() {
        let place = if n % 2 == 0 { "__index:payment".into() } else { by_old_hash(id, 4) };
        plant(&db, &place, id, "completed", 2).await;
        expected.push((id.into(), "completed"));
    }
    // What runs were before, left under the old name and by the old hash over either count.
    for n in [0, 1, 2, 3] {
        let id = format!("run-{n:03}");
        plant(&db, "__index:payment", &id, "running", 0).await;
        for place in [by_old_hash(&id, 4), by_old_hash(&id, 8)] {
            if !entries(&db).await.contains(&(place.clone(), id.clone())) {
                plant(&db, &place, &id, "running", 0).await;
            }
        }
    }
    expected.sort();
    let home = |id: &str| shard_name("payment", shard_of(id, 8));
    let all = entries(&db).await;
    let away = all.iter().filter(|(place, id)| *place != home(id)).count();
    assert!(away > older.len() / 2 && away < all.len(), "some move, and some stay: {all:?}");

    // A process that has the old count stays open: it goes by the record, too.
    let outdated = open(&db, registry(4, None, false)).await;
    let workflows = open(&db, registry(8, Some(4), true)).await;
    assert_eq!(listed(&workflows, &of("payment")).await, expected, "all is found, each once");
    let stale = Filter { status: Some(Status::Running), ..of("payment") };
    assert_eq!(listed(&workflows, &stale).await, [], "what is outdated passes no filter");
    workflows.close();
    for (previous, legacy) in [(None, false), (Some(4), false), (None, true)] {
        let refused = try_open(&db, registry(8, previous, legacy)).await;
        assert_eq!(refused, Some(Code::InvalidSchema), "{previous:?} {legacy}");
    }
    let workflows = open(&db, registry(8, Some(4), true)).await;
    let meanwhile = async {
        for n in 0..8 {
            let id = format!("meanwhile-{n}");
            workflows.create("payment", &id, &json!({})).await.unwrap();
            outdated.wait("payment", &id, Some(LIMIT)).await.unwrap();
        }
    };
    let (resized, ()) = futures::join!(workflows.resize("payment"), meanwhile);
    let resized = resized.unwrap();
    assert!(resized.may_remove_previous && resized.moved <= away as u64, "{resized:?}");
    expected.extend((0..8).map(|n| (format!("meanwhile-{n}"), "completed")));
    expected.sort();
    caught_up(&workflows, "payment", &expected).await;
    caught_up(&outdated, "payment", &expected).await;
    workflows.close();
    outdated.close();
    let workflows = open(&db, registry(8, None, false)).await;
    assert_eq!(listed(&workflows, &of("payment")).await, expected);
    let all = entries(&db).await;
    assert!(all.iter().all(|(place, id)| *place == home(id)), "every entry is at home: {all:?}");
    assert_eq!(all.len(), expected.len(), "no copy is left");
}

/// A run is written to the index when it comes to rest or to its end; steps and beats are no news for it.
pub(crate) async fn a11_steps_are_no_news_for_the_index(db: Db) {
    let mut registry = Registry::new();
    let steps = |ctx: Context, _: Json| async move {
        for n in 0..20 {
            ctx.step(&format!("step {n}"), move || async move { Ok(n) }).await?;
        }
        Ok(())
    };
    registry.register("steps", steps, Options::default()).unwrap();
    let sleeps = |ctx: Context, _: Json| async move {
        ctx.sleep("nap", std::time::Duration::from_millis(100)).await;
        Ok(())
    };
    registry.register("sleeps", sleeps, Options::default()).unwrap();
    let workflows = open(&db, registry).await;
    workflows.create("steps", "x", &json!(null)).await.unwrap();
    workflows.wait("steps", "x", Some(LIMIT)).await.unwrap();
    assert_eq!(workflows.get("steps", "x").await.unwrap().version, 2, "it was created and it has ended");
    // One that is paused stays so when its timer would have fired, and nobody hears of it.
    workflows.create("sleeps", "paused", &json!(null)).await.unwrap();
    status(&workflows, "sleeps", "paused", "sleeping").await;
    let paused = workflows.pause("sleeps", "paused").await.unwrap();
    workflows.create("sleeps", "later", &json!(null)).await.unwrap();
    workflows.wait("sleeps", "later", Some(LIMIT)).await.unwrap();
    let seen = workflows.get("sleeps", "paused").await.unwrap();
    assert_eq!((seen.status, seen.version, seen.updated_at), (Status::Paused, paused.version, paused.updated_at));
    until("the entries", || async {
        let entries = workflows.list(&Filter::default()).await.unwrap().entries;
        let version = |id: &str| entries.iter().find(|entry| entry.id == id).map(|entry| entry.version);
        (version("x"), version("paused")) == (Some(2), Some(paused.version))
    })
    .await;
}

/// There is nothing to switch on: a run is in the index whoever has created it, and whether or not anybody executes it.
pub(crate) async fn a12_runs_are_listed_whoever_creates_them(db: Db) {
    let options = EngineOptions { executes: false, ..crate::world::options() };
    let workflows = open_with(&db, registry(4, None, false), options).await;
    workflows.create("payment", "by rust", &json!({})).await.unwrap();
    db.client().run("SELECT isles.start_run('payment', 'by sql', '{}')").await;
    caught_up(&workflows, "payment", &[("by rust".into(), "created"), ("by sql".into(), "created")]).await;
}

/// A process that has not registered a type lists and manages its runs, and leaves their entries where they belong.
pub(crate) async fn a13_runs_of_types_that_others_execute_are_listed(db: Db) {
    let workflows = open(&db, registry(4, None, false)).await;
    let mut expected = populate(&workflows, "payment", 12).await;
    workflows.close();
    let other = open(&db, Registry::new()).await;
    assert_eq!(listed(&other, &Filter { kind: None, ..of("") }).await, expected);
    assert_eq!(other.types(), [("notification".into(), false), ("payment".into(), false)]);
    assert_eq!(other.get("payment", "run-000").await.unwrap().status, Status::Waiting);
    for id in ["run-000", "run-003", "run-006", "run-009"] {
        other.terminate("payment", id).await.unwrap();
        expected.iter_mut().find(|(known, _)| known == id).unwrap().1 = "terminated";
    }
    caught_up(&other, "payment", &expected).await;
    // What needs its code is refused.
    let create = other.create("payment", "new", &json!({})).await.map(drop);
    let send = other.send("payment", "run-001", "go", &json!(null), None).await.map(drop);
    for refused in [create, send] {
        assert_eq!(refused.unwrap_err().code, Code::WorkflowTypeUnknown);
    }
    for (place, id) in entries(&db).await {
        assert_eq!(place, shard_name("payment", shard_of(&id, 4)), "{id}");
    }
    other.close();
    let workflows = open(&db, registry(4, None, false)).await;
    let waiting = Filter { status: Some(Status::Waiting), ..of("payment") };
    assert_eq!(listed(&workflows, &waiting).await, []);
    assert_eq!(listed(&workflows, &of("payment")).await, expected);
}

/// Writes to the index are not waited for: while it is away runs are created and end, and what it has missed it gets.
pub(crate) async fn runs_do_not_wait_for_the_index(db: Db) {
    let workflows = open(&db, registry(4, None, false)).await;
    let mut expected = populate(&workflows, "payment", 3).await;
    system(&db, "ALTER TABLE isles.run_index RENAME TO run_index_away", Vec::new()).await;
    for n in 3..9 {
        let id = format!("run-{n:03}");
        workflows.create("payment", &id, &json!({})).await.unwrap();
        workflows.wait("payment", &id, Some(LIMIT)).await.unwrap();
        expected.push((id, "completed"));
    }
    let page = workflows.list(&of("payment")).await.unwrap();
    assert_eq!((page.entries.len(), page.failed_shards.len()), (0, 4), "nothing is hidden: {page:?}");
    system(&db, "ALTER TABLE isles.run_index_away RENAME TO run_index", Vec::new()).await;
    until("the index", || async {
        let page = workflows.list(&of("payment")).await.unwrap();
        page.failed_shards.is_empty() && page.entries.len() == expected.len()
    })
    .await;
    caught_up(&workflows, "payment", &expected).await;
}

/// The times of entries that were planted: few, so that most have equal ones.
const TIMES: i64 = 3;

/// Entries by their places, as many as are said, over a few times; every fourth waits.
async fn plant_many(db: &Db, kind: &str, count: usize, shards: u32) -> Vec<Entry> {
    let entry = |n: usize| {
        let id = format!("run-{n:04}");
        let status = if n.is_multiple_of(4) { Status::Waiting } else { Status::Completed };
        let (created_at, updated_at) = (n as i64 * 7 % TIMES, n as i64 % TIMES);
        let place = shard_name(kind, shard_of(&id, shards));
        Entry { place, kind: kind.into(), id, status, created_at, updated_at, version: 1, attributes: "{}".into() }
    };
    let all: Vec<Entry> = (0..count).map(entry).collect();
    plant_entries(db, &all).await;
    all
}

async fn plant_entries(db: &Db, all: &[Entry]) {
    let row = |entry: &Entry| {
        let Entry { place, kind, id, status, created_at, updated_at, version, attributes } = entry;
        format!("('{place}', '{id}', '{kind}', '{status}', {created_at}, {updated_at}, {version}, '{attributes}')")
    };
    for some in all.chunks(500) {
        let rows: Vec<String> = some.iter().map(row).collect();
        system(db, &format!("INSERT INTO isles.run_index VALUES {}", rows.join(", ")), Vec::new()).await;
    }
}

/// All pages of a list.
async fn pages(workflows: &Workflows, filter: &Filter) -> Vec<Entry> {
    let (mut filter, mut all) = (filter.clone(), Vec::new());
    loop {
        let page = workflows.list(&filter).await.unwrap();
        assert_eq!(page.failed_shards, [""; 0]);
        assert!(page.entries.len() as i64 <= filter.limit.unwrap());
        all.extend(page.entries);
        filter.cursor = page.cursor;
        if filter.cursor.is_none() {
            return all;
        }
    }
}

/// Pages of every filter and order against what there is, sorted.
async fn check_pages(workflows: &Workflows, expected: &[Entry], limit: i64) {
    for kind in [None, Some("payment"), Some("notification")] {
        for status in [None, Some(Status::Waiting), Some(Status::Running)] {
            for order in [Order::Updated, Order::Created] {
                let fits = |entry: &&Entry| {
                    kind.is_none_or(|kind| entry.kind == kind) && status.is_none_or(|status| entry.status == status)
                };
                let mut wanted: Vec<Entry> = expected.iter().filter(fits).cloned().collect();
                wanted.sort_by(|a, b| a.at(order).compare(&b.at(order)));
                let kind = kind.map(str::to_owned);
                let filter = Filter { kind, status, order, limit: Some(limit), ..Filter::default() };
                assert_eq!(pages(workflows, &filter).await, wanted, "{filter:?}");
            }
        }
    }
}

/// Entries of many index shards with equal times, page by page: each once and in order, also while they move between two
/// counts, and lie at two places in different versions of one time.
pub(crate) async fn pages_are_exact_with_many_index_shards(db: Db) {
    let quiet = || EngineOptions { executes: false, ..crate::world::options() };
    let workflows = open_with(&db, registry(16, None, false), quiet()).await;
    let mut all = plant_many(&db, "payment", 300, 16).await;
    all.extend(plant_many(&db, "notification", 40, 1).await);
    check_pages(&workflows, &all, 7).await;
    check_pages(&workflows, &all, 50).await;
    workflows.close();

    let workflows = open_with(&db, registry(5, Some(16), false), quiet()).await;
    // Half of them have come home: every second of these has left its copy behind, and of some this is outdated. What the
    // outdated copy is, passes no filter, and where its time is that of the run a page may end between the two.
    let (mut home, mut copies) = (Vec::new(), 0);
    for (n, entry) in all.iter_mut().enumerate().filter(|(_, entry)| entry.kind == "payment").step_by(2) {
        let mut moved = Entry { place: shard_name("payment", shard_of(&entry.id, 5)), ..entry.clone() };
        if moved.place == entry.place {
            continue;
        }
        if n % 3 == 0 {
            (moved.version, moved.status) = (2, Status::Running);
        }
        if n % 4 == 0 {
            copies += 1;
        } else {
            let sql = "DELETE FROM isles.run_index WHERE index_shard = $1 AND id = $2";
            let key = [&entry.place, &entry.id].map(|text| Value::Text(text.clone()));
            system(&db, sql, key.into()).await;
        }
        home.push(moved.clone());
        *entry = moved;
    }
    assert!(copies > 20 && home.len() > 2 * copies - 20, "{copies} of {}", home.len());
    plant_entries(&db, &home).await;
    for limit in [1, 7, 50] {
        // Where two copies are of one version either may be shown.
        let filter = Filter { limit: Some(limit), ..Filter::default() };
        let shown = pages(&workflows, &filter).await;
        let unplaced = |all: &[Entry]| -> Vec<Entry> {
            all.iter().map(|entry| Entry { place: String::new(), ..entry.clone() }).collect()
        };
        let mut wanted = all.clone();
        wanted.sort_by(|a, b| a.at(Order::Updated).compare(&b.at(Order::Updated)));
        assert_eq!(unplaced(&shown), unplaced(&wanted), "{limit}");
    }
    assert!(workflows.resize("payment").await.unwrap().may_remove_previous);
    workflows.close();
    for entry in all.iter_mut().filter(|entry| entry.kind == "payment") {
        entry.place = shard_name("payment", shard_of(&entry.id, 5));
    }
    let workflows = open_with(&db, registry(5, None, false), quiet()).await;
    check_pages(&workflows, &all, 7).await;
    workflows.close();
}

/// What the shards have done: statements, and rows that they returned.
fn work(db: &Db) -> (u64, u64) {
    let all = db.database.shard_work();
    (all.iter().map(|(_, work)| work.statements).sum(), all.iter().map(|(_, work)| work.rows).sum())
}

/// A page is a statement to each shard of the database, for little more than its entries, however many index shards there
/// are.
pub(crate) async fn a_page_asks_as_much_with_many_index_shards_as_with_few(db: Db) {
    let options = EngineOptions { executes: false, ..crate::world::options() };
    let workflows = open_with(&db, registry(64, None, false), options).await;
    plant_many(&db, "payment", 2_000, 64).await;
    // Nobody else asks the shards from now on.
    workflows.close();
    for status in [None, Some(Status::Completed)] {
        let filter = Filter { status, limit: Some(50), ..of("payment") };
        let (statements, rows) = work(&db);
        assert_eq!(workflows.list(&filter).await.unwrap().entries.len(), 50);
        let (statements, rows) = (work(&db).0 - statements, work(&db).1 - rows);
        assert_eq!(statements, 2, "one for each shard");
        assert!((51..=90).contains(&rows), "{rows} rows for a page of 50");
    }
    let (statements, _) = work(&db);
    workflows.counts(Some("payment")).await.unwrap();
    assert_eq!(work(&db).0 - statements, 2, "and so are counts");
}

/// PostgreSQL's statistics, as its server gathers them by itself now and then.
async fn analyze(db: &Db) {
    for name in db.database.shard_names() {
        let shard = db.database.shard(&name).await.unwrap();
        if shard.engine() == Engine::Postgres {
            let claim = Claim::new(db.database.current_routing().version(), Vec::new());
            let statement = Statement::new("ANALYZE isles.run_index", Vec::new());
            shard.execute(Request::write(claim, vec![statement])).await.unwrap();
        }
    }
}

/// A statement with its parameters written into it.
fn with_values(sql: &str, params: &[Value]) -> String {
    fn literal(value: &Value) -> String {
        match value {
            Value::Text(text) => format!("'{text}'"),
            Value::Int(number) => number.to_string(),
            Value::Array(members) => format!("ARRAY[{}]", members.iter().map(literal).collect::<Vec<_>>().join(", ")),
            other => panic!("{other:?}"),
        }
    }
    let all = params.iter().enumerate().rev();
    all.fold(sql.to_owned(), |sql, (at, value)| sql.replace(&format!("${}", at + 1), &literal(value)))
}

/// The shards read a page from an index, in its order: nothing is sorted, and nothing of another type or time is looked at.
pub(crate) async fn a_page_is_read_from_an_index(db: Db) {
    let workflows = open(&db, registry(16, None, false)).await;
    plant_many(&db, "payment", 2_000, 16).await;
    plant_many(&db, "notification", 2_000, 1).await;
    analyze(&db).await;
    for (status, order, index) in [
        (None, Order::Updated, "run_index_by_updated"),
        (None, Order::Created, "run_index_by_created"),
        (Some(Status::Completed), Order::Updated, "run_index_by_status"),
    ] {
        let filter = Filter { status, order, ..of("payment") };
        let (sql, params) = workflows.statement_of_list(&filter).unwrap();
        // A shard numbers parameters as it likes.
        let plan = plan_on_a_shard(&db, &with_values(sql, &params), Vec::new()).await;
        assert!(plan.contains(index), "{plan}");
        for slow in ["Seq Scan", "Sort", "TEMP B-TREE", "SCAN isles"] {
            assert!(!plan.contains(slow), "{plan}");
        }
    }
    workflows.close();
}

/// The indexes of the index of runs, and of what.
async fn indexes(db: &Db) -> Vec<String> {
    let sql = "SELECT indexname FROM pg_indexes WHERE schemaname = 'isles' AND tablename = 'run_index' ORDER BY 1";
    db.client().run(sql).await
}

/// A database that was made with other indexes gets those of today and loses the others, and nothing else changes.
pub(crate) async fn a_database_of_before_gets_the_indexes_of_today(db: Db) {
    let workflows = open(&db, registry(4, None, false)).await;
    let expected = populate(&workflows, "payment", 12).await;
    workflows.close();
    let today = indexes(&db).await;
    let ours = ["run_index_by_created", "run_index_by_status", "run_index_by_updated", "run_index_pkey"];
    assert_eq!(today, ours);
    for (before, name, columns) in [
        ("run_index_by_updated", "run_index_updated", "index_shard, updated_at, id"),
        ("run_index_by_created", "run_index_created", "index_shard, created_at, id"),
        ("run_index_by_status", "run_index_status", "index_shard, status, updated_at, id"),
    ] {
        system(&db, &format!("DROP INDEX isles.{before}"), Vec::new()).await;
        system(&db, &format!("CREATE INDEX {name} ON isles.run_index ({columns})"), Vec::new()).await;
    }
    assert_eq!(indexes(&db).await.len(), 4);
    let workflows = open(&db, registry(4, None, false)).await;
    assert_eq!(indexes(&db).await, today);
    assert_eq!(listed(&workflows, &of("payment")).await, expected);
    workflows.close();
}

/// Entries that a resize has at two places are counted once.
pub(crate) async fn a_resize_doubles_no_count(db: Db) {
    let workflows = open(&db, registry(4, None, false)).await;
    populate(&workflows, "payment", 24).await;
    workflows.close();
    let mut copies = 0;
    for n in 0..24 {
        let id = format!("run-{n:03}");
        if shard_of(&id, 8) != shard_of(&id, 4) {
            // An older copy, as a resize leaves it between its two writes.
            plant(&db, &shard_name("payment", shard_of(&id, 8)), &id, "running", 1).await;
            copies += 1;
        }
    }
    assert!(copies > 3);
    let workflows = open(&db, registry(8, Some(4), false)).await;
    let (counts, failed) = workflows.counts(Some("payment")).await.unwrap();
    let shown: Vec<(Status, i64)> = counts.iter().map(|count| (count.status, count.runs)).collect();
    assert_eq!((shown, failed), (vec![(Status::Waiting, 8), (Status::Completed, 16)], Vec::new()));
}

/// A comparison removes entries whose run is gone, and mends those that say something else than the run in the same or in
/// a later version, as when a shard was restored from a backup.
pub(crate) async fn nothing_is_wrong_after_a_comparison(db: Db) {
    let workflows = open(&db, registry(4, None, false)).await;
    let expected = populate(&workflows, "payment", 12).await;
    let ghost = shard_name("payment", shard_of("ghost", 4));
    plant(&db, &ghost, "ghost", "running", 7).await;
    for (id, set) in [("run-001", "status = 'paused'"), ("run-002", "status = 'paused', version = version + 5")] {
        let sql = format!("UPDATE isles.run_index SET {set} WHERE id = '{id}'");
        system(&db, &sql, Vec::new()).await;
    }
    let answer = db.client().run("SELECT isles.reindex_runs()").await;
    let mended: Json = serde_json::from_str(&answer[0]).unwrap();
    assert_eq!(mended, json!({ "written": 2, "removed": 1 }));
    assert_eq!(listed(&workflows, &of("payment")).await, expected);
    let again = workflows.reindex().await.unwrap();
    assert_eq!((again.written, again.removed), (0, 0));
}

/// A list says of which moment it is, and has whatever happened before.
pub(crate) async fn a_list_has_what_happened_before_its_moment(db: Db) {
    let workflows = open(&db, registry(4, None, false)).await;
    for n in 0..5 {
        let id = format!("run-{n}");
        workflows.create("payment", &id, &json!({})).await.unwrap();
        workflows.wait("payment", &id, Some(LIMIT)).await.unwrap();
        // Ended by now, as the run itself says.
        let ended = (env().now_micros() / 1_000) as i64;
        let mut looks = 0;
        until("a list of a later moment", || {
            looks += 1;
            let (workflows, id) = (&workflows, &id);
            async move {
                let page = workflows.list(&of("payment")).await.unwrap();
                let is_late = page.as_of.is_some_and(|moment| moment > ended);
                let is_there = page.entries.iter().any(|e| e.id == *id && e.status == Status::Completed);
                assert!(is_there || !is_late, "{id} ended at {ended}, and a list of {:?} lacks it", page.as_of);
                is_late
            }
        })
        .await;
        assert!(looks > 0);
    }
    assert!(workflows.index_lag_ms().unwrap() < 60_000);
}
