//! Timers: many at once, none early, each once, and the next found by an index.

use crate::harness::Db;
use crate::world::{Done, LIMIT, open, options, until_within};
use isles_engine::fence::Claim;
use isles_engine::shard::{Engine, Request, Statement};
use isles_kernel::names::ShardId;
use isles_kernel::value::{DataType, Value};
use isles_sim::rng::number_from_env as number;
use isles_workflows::{Context, EngineOptions, Options, Registry};
use std::sync::{Arc, Mutex};

/// Timers that fire if nobody says how many; as many others do not.
const TIMERS: u64 = 2_000;
/// Rows of one statement.
const CHUNK: u64 = 10_000;

fn now_ms() -> i64 {
    (crate::harness::env().now_micros() / 1_000) as i64
}

/// Runs as they are when they sleep: number `n` until `first` and `n` times `apart` milliseconds.
async fn sleepers(db: &Db, name: &str, count: u64, first: i64, apart: i64) {
    let sql = "INSERT INTO isles.runs (run, type, id, status, version, created_at, updated_at, attributes, \
        executor_token, executor, due_at, event_seq, update_seq, recoveries, attempt, input, input_hash) \
        SELECT '5:timer/' || $1::text || n, 'timer', $1::text || n, 'sleeping', 2, 1, 1, '{}', 1, '', \
        $4::bigint + $5::bigint * n, 0, 0, 0, 1, ($4::bigint + $5::bigint * n)::text, '' \
        FROM generate_series($2::bigint, $3::bigint) n";
    let mut session = db.database.system_session().unwrap();
    for from in (0..count).step_by(CHUNK as usize) {
        let to = (from + CHUNK).min(count) - 1;
        let numbers = [from as i64, to as i64, first, apart].map(Value::Int);
        let params = std::iter::once(Value::Text(name.into())).chain(numbers).collect();
        assert_eq!(session.run_text(sql, params).await.unwrap().affected, to - from + 1);
    }
}

/// I-50: of many timers each fires once and none before its time; those whose time has not come are left alone.
/// `ISLES_TEST_TIMERS` is how many there are.
pub(crate) async fn many_timers_fire_once_and_none_early(db: Db) {
    const HOUR: i64 = 3_600_000;
    let count = number("ISLES_TEST_TIMERS").unwrap_or(TIMERS);
    let (done, early) = (Done::default(), Arc::new(Mutex::new(Vec::new())));
    let (counted, noted) = (done.clone(), early.clone());
    let code = move |ctx: Context, due: i64| {
        let (done, early) = (counted.clone(), noted.clone());
        async move {
            ctx.sleep_until("until", due).await;
            if now_ms() < due {
                early.lock().unwrap().push(ctx.id().to_owned());
            }
            done.add("fired");
            done.add(ctx.id());
            Ok(())
        }
    };
    let mut registry = Registry::new();
    registry.register("timer", code, Options::default()).unwrap();
    let waiting = EngineOptions { executes: false, ..options() };
    let tables = crate::world::open_with(&db, registry.clone(), waiting).await;
    let now = now_ms();
    sleepers(&db, "far ", count, now + HOUR, 1).await;
    // Some are due already, and some are not yet when they are looked for first.
    sleepers(&db, "near ", count, now, 1).await;
    tables.close();
    let workflows = open(&db, registry).await;
    // Longer with more of them: how fast they are is for the benchmark to say.
    let patience = LIMIT + std::time::Duration::from_millis(10 * count);
    until_within(patience, "all that are due", || async { done.count("fired") >= count }).await;
    until_within(patience, "their ends", || async {
        let ended = "SELECT count(*) FROM isles.runs WHERE status = 'completed'";
        db.client().run(ended).await == [count.to_string()]
    })
    .await;
    assert_eq!(*early.lock().unwrap(), Vec::<String>::new());
    assert_eq!(done.count("fired"), count);
    assert!((0..count).all(|n| done.count(&format!("near {n}")) == 1));
    let left = "SELECT count(*) FROM isles.runs WHERE status = 'sleeping' AND version = 2 AND executor_token = 1";
    assert_eq!(db.client().run(left).await, [count.to_string()]);
    workflows.close();
}

/// How a shard carries a statement of a plan out, in its own words.
pub(crate) async fn plan_on_a_shard(db: &Db, sql: &str, params: Vec<Value>) -> String {
    let mut session = db.database.system_session().unwrap();
    let explained = session.run_text(&format!("EXPLAIN {sql}"), params.clone()).await.unwrap();
    let lines = explained.rows.iter().filter_map(|row| match row.first() {
        Some(Value::Text(line)) => Some(line.trim_start()),
        _ => None,
    });
    let text: Vec<&str> =
        lines.filter_map(|line| line.strip_prefix("SQL (")?.split_once("): ")).map(|two| two.1).collect();
    let [text] = text.as_slice() else { panic!("one fragment: {:?}", explained.rows) };
    let name: ShardId = db.database.shard_names().into_iter().next().unwrap();
    let shard = db.database.shard(&name).await.unwrap();
    let (explain, columns) = match shard.engine() {
        Engine::Sqlite => ("EXPLAIN QUERY PLAN", vec![DataType::Int8, DataType::Int8, DataType::Int8, DataType::Text]),
        Engine::Postgres => ("EXPLAIN (COSTS off)", vec![DataType::Text]),
    };
    let claim = Claim::new(db.database.current_routing().version(), Vec::new());
    let statement = Statement::new(format!("{explain} {text}"), params).returning(columns);
    let rows = shard.execute(Request::read(claim, statement)).await.unwrap().remove(0).rows;
    let line = |row: Vec<Value>| match row.last() {
        Some(Value::Text(line)) => line.clone(),
        other => panic!("{other:?}"),
    };
    rows.into_iter().map(line).collect::<Vec<_>>().join("\n")
}

/// What is due next is read from an index: no shard looks at runs that sleep or are of other types. The PostgreSQL server
/// has no statistics of the table, as after many writes at once, and finds it nevertheless.
pub(crate) async fn due_runs_are_found_by_an_index(db: Db) {
    let mut registry = Registry::new();
    registry.register("timer", |_: Context, due: i64| async move { Ok(due) }, Options::default()).unwrap();
    let workflows = open(&db, registry).await;
    sleepers(&db, "far ", 20_000, now_ms() + 3_600_000, 1).await;
    let params = vec![Value::Text("timer".into()), Value::Int(now_ms()), Value::Int(256)];
    let plan = plan_on_a_shard(&db, isles_workflows::DUE, params).await;
    let by_index =
        ["USING COVERING INDEX isles.runs_due (type=? AND due_at<?)", "Index Cond: ((type = 'timer'::text) AND"];
    assert!(plan.contains("runs_due") && by_index.iter().any(|by| plan.contains(by)), "{plan}");
    for slow in ["Seq Scan", "TEMP B-TREE", "SCAN "] {
        assert!(!plan.contains(slow), "{plan}");
    }
    workflows.close();
}
