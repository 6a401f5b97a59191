//! Runs, for those who manage them.

use crate::harness::Db;
use crate::world::{LIMIT, open, status};
use isles_kernel::value::Value;
use isles_workflows::store::Created;
use isles_workflows::{Code, Context, Events, Options, Registry, Workflows};
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use std::time::Duration;

#[derive(Serialize, Deserialize)]
struct Payment {
    amount: u64,
}

fn registry() -> Registry {
    let mut registry = Registry::new();
    let payment = |ctx: Context, input: Payment| async move {
        let amount = ctx.step("charge", move || async move { Ok(input.amount) }).await?;
        let _: Json = ctx.wait_for_event("approval", "approved", None).await?;
        Ok(amount)
    };
    let options = Options { shards: 4, events: Events::new().with::<bool>("approved"), ..Options::default() };
    registry.register("payment", payment, options).unwrap();
    let quick = |_: Context, input: Json| async move { Ok(input) };
    registry.register("quick", quick, Options { retention: Some(Duration::ZERO), ..Options::default() }).unwrap();
    registry
}

async fn ended(workflows: &Workflows, kind: &str, id: &str, input: &Json) {
    workflows.create(kind, id, input).await.unwrap();
    let _ = workflows.wait(kind, id, Some(LIMIT)).await;
}

pub(crate) async fn a23_terminal_is_terminal(db: Db) {
    let workflows = open(&db, registry()).await;
    ended(&workflows, "quick", "done", &json!(1)).await;
    workflows.create("payment", "gone", &json!({ "amount": 5 })).await.unwrap();
    status(&workflows, "payment", "gone", "waiting").await;
    workflows.terminate("payment", "gone").await.unwrap();
    workflows.terminate("payment", "gone").await.unwrap();
    for (kind, id, was) in [("quick", "done", "completed"), ("payment", "gone", "terminated")] {
        for error in [workflows.resume(kind, id).await.unwrap_err(), workflows.pause(kind, id).await.unwrap_err()] {
            assert_eq!((error.code, error.code.status()), (Code::WorkflowNotRunning, 409));
            assert_eq!(error.details.unwrap()["currentStatus"], json!(was));
        }
        assert_eq!(workflows.get(kind, id).await.unwrap().status.as_str(), was);
    }
    assert_eq!(workflows.terminate("quick", "done").await.unwrap_err().code, Code::WorkflowNotRunning);
    // The step of a terminated run still waits for it; nothing wakes it.
    let error = workflows.send("payment", "gone", "approved", &true, None).await.unwrap_err();
    assert_eq!(error.code, Code::WorkflowNotRunning);
}

pub(crate) async fn a29_creating_twice_is_creating_once(db: Db) {
    let workflows = open(&db, registry()).await;
    let creates = (0..8).map(|_| workflows.create("payment", "one", &Payment { amount: 5 }));
    let created = futures::future::join_all(creates).await;
    assert_eq!(created.iter().filter(|created| matches!(created, Ok(Created::New))).count(), 1);
    assert!(created.iter().all(Result::is_ok));
    let error = workflows.create("payment", "one", &Payment { amount: 6 }).await.unwrap_err();
    assert_eq!((error.code, error.code.status()), (Code::WorkflowAlreadyExists, 409));
    assert_eq!(workflows.get("payment", "one").await.unwrap().input, json!({ "amount": 5 }));
}

pub(crate) async fn a13_a35_a36_bad_input_is_told_and_harms_nothing(db: Db) {
    let mut all = registry();
    let twice = |ctx: Context, _: Json| async move {
        ctx.step("same", || async { Ok(1) }).await?;
        ctx.step("same", || async { Ok(2) }).await
    };
    all.register("twice", twice, Options::default()).unwrap();
    assert_eq!(all.register("twice", twice, Options::default()).unwrap_err().code, Code::InvalidSchema);
    for (shards, previous_shards) in [(0, None), (5_000, None), (4, Some(0))] {
        let options = Options { shards, previous_shards, ..Options::default() };
        assert_eq!(all.register("other", twice, options).unwrap_err().code, Code::ValidationError);
    }
    assert!(all.register("no:colons", twice, Options::default()).is_err());
    let workflows = open(&db, all).await;
    workflows.create("payment", "fine", &Payment { amount: 5 }).await.unwrap();
    status(&workflows, "payment", "fine", "waiting").await;

    let payload = json!({ "amount": "five" });
    let cases = [
        (workflows.create("unknown", "x", &1).await.map(drop), Code::WorkflowTypeUnknown, 400),
        (workflows.create("payment", "x", &payload).await.map(drop), Code::ValidationError, 400),
        (
            workflows.create("payment", "__index:payment:0", &Payment { amount: 1 }).await.map(drop),
            Code::ValidationError,
            400,
        ),
        (workflows.create("payment", "", &Payment { amount: 1 }).await.map(drop), Code::ValidationError, 400),
        (workflows.create("quick", "big", &"x".repeat(2 << 20)).await.map(drop), Code::ResultTooLarge, 413),
        (workflows.get("payment", "missing").await.map(drop), Code::WorkflowNotFound, 404),
        (workflows.get("unknown", "x").await.map(drop), Code::WorkflowTypeUnknown, 400),
        (workflows.pause("payment", "missing").await.map(drop), Code::WorkflowNotFound, 404),
        (workflows.terminate("payment", "missing").await.map(drop), Code::WorkflowNotFound, 404),
        (workflows.send("payment", "fine", "unknown", &true, None).await.map(drop), Code::EventInvalid, 400),
        (workflows.send("payment", "fine", "approved", &"perhaps", None).await.map(drop), Code::EventInvalid, 400),
        (workflows.send("payment", "missing", "approved", &true, None).await.map(drop), Code::WorkflowNotFound, 404),
        (workflows.delete("payment", "fine").await, Code::WorkflowNotRunning, 409),
        (workflows.restart("payment", "fine").await.map(drop), Code::WorkflowNotRunning, 409),
    ];
    for (at, (outcome, code, status)) in cases.into_iter().enumerate() {
        let error = outcome.unwrap_err();
        assert_eq!((error.code, error.code.status()), (code, status), "case {at}: {error}");
    }
    let error = workflows.get("payment", "missing").await.unwrap_err();
    assert_eq!(error.message, "there is no run \"missing\" of \"payment\"");
    workflows.create("twice", "x", &json!(null)).await.unwrap();
    let error = workflows.wait("twice", "x", Some(LIMIT)).await.unwrap_err();
    assert!(error.code == Code::ValidationError && error.message.contains("Duplicate step name \"same\""), "{error}");
    // The run that all of this was about is unharmed.
    workflows.send("payment", "fine", "approved", &true, None).await.unwrap();
    assert_eq!(workflows.wait("payment", "fine", Some(LIMIT)).await.unwrap(), json!(5));
    // Nobody has made anything by looking for it.
    assert_eq!(db.client().run("SELECT count(*) FROM isles.runs").await, ["2"]);
}

pub(crate) async fn a_run_is_started_in_the_callers_transaction(db: Db) {
    let workflows = open(&db, registry()).await;
    let mut client = db.client_as(isles_cluster::roles::Role { admin: false, ..Default::default() }, &[]).unwrap();
    client.run("CREATE TABLE orders (id text PRIMARY KEY)").await;
    for (id, end) in [("kept", "COMMIT"), ("dropped", "ROLLBACK")] {
        client.run("BEGIN").await;
        client.run(&format!("INSERT INTO orders VALUES ('{id}')")).await;
        assert_eq!(client.run(&format!("SELECT isles.start_run('quick', '{id}', '{{\"n\": 1}}')")).await, ["t"]);
        client.run(end).await;
    }
    assert_eq!(workflows.wait("quick", "kept", Some(LIMIT)).await.unwrap(), json!({ "n": 1 }));
    assert_eq!(workflows.get("quick", "dropped").await.unwrap_err().code, Code::WorkflowNotFound);
    // In Rust, in a session of one's own.
    client.run("BEGIN").await;
    let made = workflows.create_in(&mut client.session, "quick", "rust", &json!(7), None).await.unwrap();
    let again = workflows.create_in(&mut client.session, "quick", "rust", &json!(7), None).await.unwrap();
    client.run("COMMIT").await;
    assert_eq!((made, again), (Created::New, Created::Existing));
    assert_eq!(workflows.wait("quick", "rust", Some(LIMIT)).await.unwrap(), json!(7));
    for (sql, state) in [
        ("SELECT isles.start_run('unknown', 'x', '1')", "42704"),
        ("SELECT isles.start_run('quick', 'rust', '8')", "23505"),
        ("SELECT isles.start_run('quick', 'x', 'no json')", "22P02"),
        ("SELECT isles.start_run('payment', 'x', '{}')", "22023"),
        ("SELECT isles.start_run('quick', NULL, '1')", "22004"),
        ("SELECT * FROM isles.runs", "42501"),
        ("DELETE FROM isles.runs", "42501"),
    ] {
        assert_eq!(client.fails(sql).await, state, "{sql}");
    }
    let shown = db.client().run("SELECT type, id, status FROM isles.runs ORDER BY id").await;
    assert_eq!(shown, ["quick|kept|completed", "quick|rust|completed"]);
}

pub(crate) async fn runs_are_restarted_and_deleted(db: Db) {
    let workflows = open(&db, registry()).await;
    workflows.create("payment", "x", &Payment { amount: 5 }).await.unwrap();
    status(&workflows, "payment", "x", "waiting").await;
    workflows.terminate("payment", "x").await.unwrap();
    let restarted = workflows.restart("payment", "x").await.unwrap();
    assert_eq!(restarted.attempt, 2);
    status(&workflows, "payment", "x", "waiting").await;
    workflows.send("payment", "x", "approved", &true, None).await.unwrap();
    assert_eq!(workflows.wait("payment", "x", Some(LIMIT)).await.unwrap(), json!(5));
    workflows.delete("payment", "x").await.unwrap();
    assert_eq!(workflows.get("payment", "x").await.unwrap_err().code, Code::WorkflowNotFound);
    assert_eq!(workflows.delete("payment", "x").await.unwrap_err().code, Code::WorkflowNotFound);
    assert_eq!(db.client().run("SELECT count(*) FROM isles.run_steps").await, ["0"]);
    // The id is free again, also for another input, and counts on.
    assert_eq!(workflows.create("payment", "x", &Payment { amount: 6 }).await.unwrap(), Created::New);
    status(&workflows, "payment", "x", "waiting").await;
    let run = workflows.get("payment", "x").await.unwrap();
    assert!(run.attempt == 3 && run.version > restarted.version);
}

pub(crate) async fn a22_runs_are_kept_for_as_long_as_was_said(db: Db) {
    let workflows = open(&db, registry()).await;
    for n in 0..5 {
        ended(&workflows, "quick", &format!("run {n}"), &json!(n)).await;
    }
    workflows.create("payment", "kept", &Payment { amount: 5 }).await.unwrap();
    workflows.reindex().await.unwrap();
    let mut gone = 0;
    crate::world::until("all that have ended go", || async { workflows.sweep_once().await.unwrap() > 0 }).await;
    while workflows.sweep_once().await.unwrap() > 0 {
        gone += 1;
    }
    assert!(gone < 10);
    assert_eq!(workflows.get("quick", "run 0").await.unwrap_err().code, Code::WorkflowNotFound);
    workflows.get("payment", "kept").await.unwrap();
    crate::world::until("the index forgets them", || async {
        let filter = isles_workflows::index::list::Filter { kind: Some("quick".into()), ..Default::default() };
        workflows.list(&filter).await.unwrap().entries.is_empty()
    })
    .await;
}

pub(crate) async fn the_timeline_has_sleeps_and_waits_in_order(db: Db) {
    let mut registry = Registry::new();
    let code = |ctx: Context, _: Json| async move {
        ctx.step("first", || async { Ok(1) }).await?;
        ctx.sleep("nap", Duration::from_millis(10)).await;
        ctx.wait_for_event::<Json>("answer", "go", None).await
    };
    registry.register("line", code, Options { events: Events::new().any("go"), ..Options::default() }).unwrap();
    let workflows = open(&db, registry).await;
    workflows.create("line", "x", &json!(null)).await.unwrap();
    status(&workflows, "line", "x", "waiting").await;
    let (_, steps) = workflows.timeline("line", "x").await.unwrap();
    let shown: Vec<(&str, &str)> = steps.iter().map(|step| (step.name.as_str(), step.kind.as_str())).collect();
    assert_eq!(shown, [("first", "do"), ("nap", "sleep"), ("answer", "wait_for_event")]);
    assert!(steps[0].to_json()["duration"].as_i64().unwrap() >= 0);
    assert!(steps[1].wake_at.unwrap() >= steps[1].started_at + 10);
}

/// A run whose executor is gone for good is paused, terminated and deleted by whoever asks: nobody is left to ask.
pub(crate) async fn a_run_without_an_executor_is_ended_at_once(db: Db) {
    let mut registry = Registry::new();
    registry.register_remote("job", Options::default()).unwrap();
    let workflows = open(&db, registry).await;
    for id in ["ended", "paused"] {
        workflows.create("job", id, &json!(null)).await.unwrap();
    }
    let poll = json!({ "types": ["job"], "worker": "dies", "max": 2, "leaseMs": 1_000 });
    let tasks = workflows.poll(&serde_json::from_value(poll).unwrap()).await.unwrap();
    assert_eq!(tasks["tasks"].as_array().unwrap().len(), 2);
    // While the lease lasts the worker is asked.
    let asked = workflows.terminate("job", "ended").await.unwrap();
    assert_eq!((asked.status.as_str(), asked.control.as_deref()), ("running", Some("terminate")));
    crate::world::until("the end of its lease", || async {
        workflows.terminate("job", "ended").await.is_ok_and(|run| run.status.as_str() == "terminated")
    })
    .await;
    crate::world::until("the end of the other's lease", || async {
        workflows.pause("job", "paused").await.is_ok_and(|run| run.status.as_str() == "paused")
    })
    .await;
    workflows.terminate("job", "paused").await.unwrap();
    for id in ["ended", "paused"] {
        workflows.delete("job", id).await.unwrap();
    }
}

/// A run that kills its worker again and again is ended, as one that kills an executor in this process.
pub(crate) async fn a_run_that_kills_every_worker_is_ended(db: Db) {
    let mut registry = Registry::new();
    registry.register_remote("job", Options::default()).unwrap();
    let workflows = open(&db, registry).await;
    workflows.create("job", "poison", &json!(null)).await.unwrap();
    let poll = json!({ "types": ["job"], "worker": "dies", "leaseMs": 1_000 });
    let poll = serde_json::from_value(poll).unwrap();
    assert_eq!(workflows.poll(&poll).await.unwrap()["tasks"].as_array().unwrap().len(), 1);
    let mut session = db.database.system_session().unwrap();
    let sql = "UPDATE isles.runs SET recoveries = 25, due_at = 1";
    session.run_text(sql, Vec::new()).await.unwrap();
    assert_eq!(workflows.poll(&poll).await.unwrap()["tasks"], json!([]));
    let run = workflows.get("job", "poison").await.unwrap();
    assert_eq!((run.status.as_str(), run.error.unwrap().code), ("errored", Code::InternalError));
}

/// The results of a run that a worker executes have a limit in all, also for another process than the one that gave it out.
pub(crate) async fn the_results_of_a_workers_run_have_a_limit(db: Db) {
    let mut registry = Registry::new();
    let options = Options { result_size_limit: 100, ..Options::default() };
    registry.register_remote("job", options).unwrap();
    let workflows = open(&db, registry).await;
    let another = open(&db, Registry::new()).await;
    workflows.create("job", "x", &json!(null)).await.unwrap();
    let poll = json!({ "types": ["job"], "worker": "w" });
    let tasks = workflows.poll(&serde_json::from_value(poll).unwrap()).await.unwrap();
    let task = &tasks["tasks"][0];
    assert_eq!(task["retry"]["limit"], json!(3));
    let step = |ordinal: u64, bytes: usize| {
        let result = "x".repeat(bytes);
        let step = json!({
            "ordinal": ordinal, "name": format!("step {ordinal}"), "type": "do", "status": "completed",
            "result": result, "startedAt": 1,
        });
        let note = json!({ "type": "job", "id": "x", "token": task["token"], "attempt": 1, "step": step });
        serde_json::from_value(note).unwrap()
    };
    workflows.note_step(step(0, 60)).await.unwrap();
    for one in [&workflows, &another] {
        let error = one.note_step(step(1, 60)).await.unwrap_err();
        assert_eq!((error.code, error.code.status()), (Code::ResultTooLarge, 413));
    }
    another.note_step(step(1, 20)).await.unwrap();
}

/// Far more than one batch goes in one sweep, and what is to go is found by an index.
pub(crate) async fn retention_keeps_up(db: Db) {
    const RUNS: i64 = 1_300;
    let workflows = open(&db, registry()).await;
    let sql = "INSERT INTO isles.runs (run, type, id, status, version, created_at, updated_at, attributes, \
        executor_token, executor, event_seq, update_seq, recoveries, attempt, input, input_hash) \
        SELECT '5:quick/' || $1::text || n, 'quick', $1::text || n, $1::text, 2, 1, 1, '{}', 1, '', 0, 0, 0, 1, 'null', '' \
        FROM generate_series(1, $2::bigint) n";
    for status in ["deleted", "completed"] {
        let params = vec![Value::Text(status.into()), Value::Int(RUNS)];
        db.database.system_session().unwrap().run_text(sql, params).await.unwrap();
    }
    crate::world::until("the index", || async {
        let (counts, _) = workflows.counts(Some("quick")).await.unwrap();
        counts.iter().map(|count| count.runs).sum::<i64>() == RUNS
    })
    .await;
    let plan = crate::timers::plan_on_a_shard(&db, isles_workflows::store::DELETED_RUNS, vec![Value::Int(2)]).await;
    assert!(plan.contains("runs_deleted") && !plan.contains("Seq Scan"), "{plan}");
    // More than one batch of each; a sweep of the engine's own may be beside it.
    assert!(workflows.sweep_once().await.unwrap() > RUNS as u64 / 2);
    let left = "SELECT count(*) FROM isles.runs WHERE status <> 'deleted' OR id LIKE 'deleted%'";
    assert_eq!(db.client().run(left).await, ["0"]);
    // What is left of deleted runs is not in the view.
    assert_eq!(db.client().run("SELECT count(*) FROM isles.workflow_runs").await, ["0"]);
}

/// What creates a run in a transaction goes by the same rules as what creates one outside.
pub(crate) async fn a_run_in_a_transaction_is_created_by_the_same_rules(db: Db) {
    let workflows = open(&db, registry()).await;
    let mut client = db.client_as(isles_cluster::roles::Role { admin: false, ..Default::default() }, &[]).unwrap();
    let attributes = json!({ "customer": "ann" });
    let made = workflows.create_in(&mut client.session, "quick", "x", &json!(1), Some(&attributes)).await.unwrap();
    assert_eq!(made, Created::New);
    let sql = "SELECT isles.start_run('quick', 'y', '1', '{\"customer\": \"bob\"}')";
    assert_eq!(client.run(sql).await, ["t"]);
    assert_eq!(workflows.get("quick", "y").await.unwrap().attributes, json!({ "customer": "bob" }));
    let filter = isles_workflows::index::list::Filter {
        attributes: [("customer".into(), json!("ann"))].into(),
        ..Default::default()
    };
    crate::world::until("the index", || async { workflows.list(&filter).await.unwrap().entries.len() == 1 }).await;
    let listed = "SELECT isles.list_runs(type => 'quick', attributes => '{\"customer\": \"ann\"}')";
    let listed: Json = serde_json::from_str(&db.client().run(listed).await[0]).unwrap();
    assert_eq!((listed["workflows"].as_array().unwrap().len(), &listed["workflows"][0]["id"]), (1, &json!("x")));
    assert_eq!(db.client().fails("SELECT isles.list_runs(attributes => '7')").await, "22023");
    for (input, attributes, code) in [
        (json!("x".repeat(2 << 20)), None, Code::ResultTooLarge),
        (json!(1), Some(json!({ "large": "x".repeat(9_000) })), Code::ResultTooLarge),
        (json!(1), Some(json!(7)), Code::ValidationError),
        (json!(2), None, Code::WorkflowAlreadyExists),
    ] {
        let made = workflows.create_in(&mut client.session, "quick", "x", &input, attributes.as_ref()).await;
        assert_eq!(made.unwrap_err().code, code);
    }
    let unknown = workflows.create_in(&mut client.session, "unknown", "x", &json!(1), None).await.unwrap_err();
    assert_eq!((unknown.code, unknown.code.status()), (Code::WorkflowTypeUnknown, 400));
    // An id that was deleted is free again.
    assert!(workflows.wait("quick", "x", Some(LIMIT)).await.is_ok());
    workflows.delete("quick", "x").await.unwrap();
    let made = workflows.create_in(&mut client.session, "quick", "x", &json!(2), None).await.unwrap();
    assert_eq!(made, Created::New);
    assert_eq!(workflows.wait("quick", "x", Some(LIMIT)).await.unwrap(), json!(2));
}
