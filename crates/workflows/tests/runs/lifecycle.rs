//! What code does, and what is kept of it.

use crate::harness::Db;
use crate::world::{Done, LIMIT, open, open_with, options, status, until};
use futures::FutureExt;
use isles_kernel::runs::retry::{Backoff, Retry};
use isles_kernel::value::Value;
use isles_workflows::error::Result;
use isles_workflows::{
    Code, Context, EngineOptions, Events, OnOverflow, Options, Planted, Registry, StepOptions, WorkflowError, Workflows,
};
use serde_json::{Value as Json, json};
use std::time::Duration;

fn fast(limit: u32, backoff: Backoff) -> Retry {
    Retry { limit, delay: Duration::from_millis(5), backoff, ..Retry::default() }
}

async fn result(workflows: &Workflows, kind: &str, id: &str) -> Result<Json> {
    workflows.wait(kind, id, Some(LIMIT)).await
}

pub(crate) async fn steps_are_done_once_and_in_order(db: Db) {
    let done = Done::default();
    let (mut registry, counted) = (Registry::new(), done.clone());
    let chain = move |ctx: Context, input: Json| {
        let done = counted.clone();
        async move {
            let value = input["value"].as_i64().unwrap_or_default();
            let count = |name: &'static str, result: i64| {
                let done = done.clone();
                move || async move {
                    done.add(name);
                    Ok(result)
                }
            };
            let a = ctx.step("a", count("a", value + 1)).await?;
            let b = ctx.step("b", count("b", a * 2)).await?;
            ctx.sleep("between", Duration::from_millis(20)).await;
            let c = ctx.step("c", count("c", b + 10)).await?;
            Ok(json!({ "a": a, "b": b, "c": c, "d": format!("result:{c}") }))
        }
    };
    registry.register("chain", chain, Options::default()).unwrap();
    let workflows = open(&db, registry).await;
    for (id, value, expected) in [
        ("five", 5, json!({ "a": 6, "b": 12, "c": 22, "d": "result:22" })),
        ("more", 42, json!({ "a": 43, "b": 86, "c": 96, "d": "result:96" })),
    ] {
        workflows.create("chain", id, &json!({ "value": value })).await.unwrap();
        assert_eq!(result(&workflows, "chain", id).await.unwrap(), expected);
    }
    assert_eq!(["a", "b", "c"].map(|name| done.count(name)), [2, 2, 2]);
    let (run, steps) = workflows.timeline("chain", "five").await.unwrap();
    let names: Vec<&str> = steps.iter().map(|step| step.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "between", "c"]);
    assert!(run.updated_at >= run.created_at && steps.iter().all(|step| step.started_at >= run.created_at));
}

pub(crate) async fn a_run_sleeps_waits_and_ends(db: Db) {
    let mut registry = Registry::new();
    let greet = |ctx: Context, name: String| async move {
        let greeting: String = ctx.step("greet", move || async move { Ok(format!("Hello, {name}!")) }).await?;
        ctx.sleep_until("until", ctx.now().await + 50).await;
        let approved: bool = ctx.wait_for_event("approval", "approved", None).await?;
        Ok(if approved { greeting } else { "rejected".into() })
    };
    let options = Options { events: Events::new().with::<bool>("approved"), ..Options::default() };
    registry.register("greet", greet, options).unwrap();
    let workflows = open(&db, registry).await;
    for (id, approved, expected) in [("yes", true, "Hello, Alice!"), ("no", false, "rejected")] {
        workflows.create("greet", id, &"Alice").await.unwrap();
        status(&workflows, "greet", id, "waiting").await;
        workflows.send("greet", id, "approved", &approved, None).await.unwrap();
        assert_eq!(result(&workflows, "greet", id).await.unwrap(), json!(expected));
    }
    let (_, steps) = workflows.timeline("greet", "yes").await.unwrap();
    let kinds: Vec<&str> = steps.iter().map(|step| step.kind.as_str()).collect();
    assert_eq!(kinds, ["do", "value", "sleep_until", "wait_for_event"]);
}

fn failing(
    done: &Done,
    failures: u64,
) -> impl Fn(Context, Json) -> futures::future::BoxFuture<'static, Result<u64>> + use<> {
    let done = done.clone();
    move |ctx, _| {
        let done = done.clone();
        let id = ctx.id().to_owned();
        async move {
            let work = move || async move {
                match done.add(&id) {
                    count if count <= failures => Err(WorkflowError::failed(format!("failure {count}"))),
                    count => Ok(count),
                }
            };
            ctx.step("fails", work).await
        }
        .boxed()
    }
}

pub(crate) async fn a_step_is_tried_again_until_it_succeeds(db: Db) {
    let done = Done::default();
    let mut registry = Registry::new();
    for (kind, backoff) in
        [("fixed", Backoff::Fixed), ("linear", Backoff::Linear), ("exponential", Backoff::Exponential)]
    {
        let options = Options { retry: fast(3, backoff), ..Options::default() };
        registry.register(kind, failing(&done, 2), options).unwrap();
    }
    let workflows = open(&db, registry).await;
    for kind in ["fixed", "linear", "exponential"] {
        workflows.create(kind, kind, &json!(null)).await.unwrap();
        assert_eq!(result(&workflows, kind, kind).await.unwrap(), json!(3));
        let (_, steps) = workflows.timeline(kind, kind).await.unwrap();
        assert_eq!((steps[0].attempts, steps[0].history.len()), (3, 2));
        assert_eq!(steps[0].history[0]["attempt"], json!(1));
    }
}

pub(crate) async fn a_step_that_keeps_failing_ends_the_run(db: Db) {
    let done = Done::default();
    let mut registry = Registry::new();
    let options = Options { retry: fast(3, Backoff::Fixed), ..Options::default() };
    registry.register("failing", failing(&done, 99), options).unwrap();
    let workflows = open(&db, registry).await;
    workflows.create("failing", "x", &json!(null)).await.unwrap();
    let error = result(&workflows, "failing", "x").await.unwrap_err();
    assert_eq!(error.code, Code::StepRetryExhausted);
    assert_eq!(error.message, "Step \"fails\" failed after 3 attempts: failure 3");
    assert_eq!(error.details, Some(json!({ "step": "fails", "attempts": 3 })));
    assert_eq!(done.count("x"), 3);
    assert_eq!(workflows.get("failing", "x").await.unwrap().status.as_str(), "errored");
}

pub(crate) async fn an_error_that_is_final_is_not_tried_again(db: Db) {
    let done = Done::default();
    let (mut registry, counted) = (Registry::new(), done.clone());
    let code = move |ctx: Context, _: Json| {
        let done = counted.clone();
        async move {
            let work = move || async move {
                done.add("step");
                Err::<(), _>(WorkflowError::non_retriable("never"))
            };
            ctx.step("fails", work).await
        }
    };
    registry.register("final", code, Options { retry: fast(5, Backoff::Fixed), ..Options::default() }).unwrap();
    let panics = |ctx: Context, _: Json| async move {
        ctx.step("panics", || async { if true { panic!("oh no") } else { Ok(()) } }).await
    };
    registry.register("panics", panics, Options { retry: fast(2, Backoff::Fixed), ..Options::default() }).unwrap();
    let workflows = open(&db, registry).await;
    workflows.create("final", "x", &json!(null)).await.unwrap();
    let error = result(&workflows, "final", "x").await.unwrap_err();
    assert_eq!((error.code, error.message.as_str(), done.count("step")), (Code::StepFailed, "never", 1));
    workflows.create("panics", "x", &json!(null)).await.unwrap();
    let error = result(&workflows, "panics", "x").await.unwrap_err();
    assert!(error.message.contains("after 2 attempts") && error.message.contains("oh no"), "{error}");
}

/// The code catches the error, and is executed again later: the step is not.
pub(crate) async fn a26_a_failed_step_is_not_done_again(db: Db) {
    let done = Done::default();
    let (mut registry, counted) = (Registry::new(), done.clone());
    let code = move |ctx: Context, _: Json| {
        let done = counted.clone();
        async move {
            let work = move || async move {
                done.add("step");
                Err::<(), _>(WorkflowError::non_retriable("never"))
            };
            let caught = ctx.step("fails", work).await.unwrap_err();
            ctx.sleep("one", Duration::from_millis(10)).await;
            ctx.sleep("two", Duration::from_millis(10)).await;
            Ok(caught.message)
        }
    };
    registry.register("caught", code, Options::default()).unwrap();
    let workflows = open(&db, registry).await;
    workflows.create("caught", "x", &json!(null)).await.unwrap();
    assert_eq!(result(&workflows, "caught", "x").await.unwrap(), json!("never"));
    assert_eq!(done.count("step"), 1);
}

pub(crate) async fn a24_a_long_step_is_not_taken_for_dead(db: Db) {
    let done = Done::default();
    let (mut registry, counted) = (Registry::new(), done.clone());
    let code = move |ctx: Context, _: Json| {
        let done = counted.clone();
        async move {
            let work = move || async move {
                done.add("step");
                tokio::time::sleep(Duration::from_millis(1_500)).await;
                Ok(())
            };
            ctx.step("long", work).await
        }
    };
    registry.register("long", code, Options::default()).unwrap();
    let short = EngineOptions { lease: Duration::from_millis(300), ..options() };
    let workflows = open_with(&db, registry, short).await;
    workflows.create("long", "x", &json!(null)).await.unwrap();
    result(&workflows, "long", "x").await.unwrap();
    assert_eq!(done.count("step"), 1, "its lease was renewed five times over");
}

pub(crate) async fn a25_a27_pausing_and_terminating_happen_between_steps(db: Db) {
    let done = Done::default();
    let (mut registry, counted) = (Registry::new(), done.clone());
    let (gate, _) = tokio::sync::watch::channel(false);
    let opened = gate.subscribe();
    let code = move |ctx: Context, _: Json| {
        let (done, mut opened) = (counted.clone(), opened.clone());
        async move {
            let id = ctx.id().to_owned();
            let (first, second) = (format!("{id} 1"), format!("{id} 2"));
            let (one, two) = (done.clone(), done);
            ctx.step("one", move || async move {
                one.add(&first);
                let _ = opened.wait_for(|open| *open).await;
                Ok(())
            })
            .await?;
            ctx.step("two", move || async move { Ok(two.add(&second)) }).await
        }
    };
    registry.register("slow", code, Options::default()).unwrap();
    let workflows = open(&db, registry).await;
    for id in ["paused", "ended"] {
        workflows.create("slow", id, &json!(null)).await.unwrap();
        until("the first step", || async { done.count(&format!("{id} 1")) == 1 }).await;
    }
    let asked = workflows.pause("slow", "paused").await.unwrap();
    assert_eq!((asked.status.as_str(), asked.control.as_deref()), ("running", Some("pause")));
    workflows.pause("slow", "paused").await.unwrap();
    workflows.terminate("slow", "ended").await.unwrap();
    gate.send_replace(true);
    status(&workflows, "slow", "paused", "paused").await;
    status(&workflows, "slow", "ended", "terminated").await;
    assert_eq!((done.count("paused 2"), done.count("ended 2")), (0, 0));
    workflows.resume("slow", "paused").await.unwrap();
    result(&workflows, "slow", "paused").await.unwrap();
    assert_eq!(["paused 1", "paused 2", "ended 1", "ended 2"].map(|name| done.count(name)), [1, 1, 1, 0]);
    assert_eq!(result(&workflows, "slow", "ended").await.unwrap_err().code, Code::WorkflowNotRunning);
}

pub(crate) async fn a28_the_earliest_of_parallel_sleeps_wakes(db: Db) {
    let done = Done::default();
    let (mut registry, counted) = (Registry::new(), done.clone());
    let code = move |ctx: Context, _: Json| {
        let done = counted.clone();
        async move {
            let (long, short) = (ctx.branch("long"), ctx.branch("short"));
            let short = async move {
                short.sleep("short", Duration::from_millis(20)).await;
                short.step("after", move || async move { Ok(done.add("after")) }).await
            };
            let long = async move { long.wait_for_event::<Json>("wait", "go", Some(Duration::from_secs(3_600))).await };
            let (long, short) = futures::join!(long, short);
            long?;
            short
        }
    };
    let options = Options { events: Events::new().any("go"), ..Options::default() };
    registry.register("both", code, options).unwrap();
    let workflows = open(&db, registry).await;
    workflows.create("both", "x", &json!(null)).await.unwrap();
    until("the short one", || async { done.count("after") == 1 }).await;
    workflows.send("both", "x", "go", &json!(1), None).await.unwrap();
    assert_eq!(result(&workflows, "both", "x").await.unwrap(), json!(1));
    assert_eq!(done.count("after"), 1);
}

pub(crate) async fn a30_events_are_a_queue_and_each_is_taken_once(db: Db) {
    let mut registry = Registry::new();
    let code = |ctx: Context, wanted: u32| async move {
        let mut got: Vec<i64> = Vec::new();
        for n in 0..wanted {
            got.push(ctx.wait_for_event(&format!("wait {n}"), "number", None).await?);
        }
        Ok(got)
    };
    let options = Options { events: Events::new().with::<i64>("number").with::<i64>("other"), ..Options::default() };
    registry.register("numbers", code, options).unwrap();
    let workflows = open(&db, registry).await;
    workflows.create("numbers", "x", &6).await.unwrap();
    for number in [1, 2, 3] {
        // Sent twice with one key, it is there once; and before the code asks, it waits.
        let key = format!("key {number}");
        let first = workflows.send("numbers", "x", "number", &number, Some(&key)).await.unwrap();
        let again = workflows.send("numbers", "x", "number", &number, Some(&key)).await.unwrap();
        assert_eq!(first, again);
        workflows.send("numbers", "x", "other", &number, None).await.unwrap();
    }
    let sends = (4..=5).map(|_| workflows.send("numbers", "x", "number", &7, None));
    for sent in futures::future::join_all(sends).await {
        sent.unwrap();
    }
    workflows.send("numbers", "x", "number", &9, None).await.unwrap();
    assert_eq!(result(&workflows, "numbers", "x").await.unwrap(), json!([1, 2, 3, 7, 7, 9]));
}

pub(crate) async fn an_event_that_does_not_come_is_an_error_of_the_wait(db: Db) {
    let mut registry = Registry::new();
    let code = |ctx: Context, _: Json| async move {
        let waited = ctx.wait_for_event::<Json>("wait", "go", Some(Duration::from_millis(30))).await;
        let error = waited.unwrap_err();
        ctx.sleep("later", Duration::from_millis(10)).await;
        Err::<(), _>(error)
    };
    registry.register("wait", code, Options { events: Events::new().any("go"), ..Options::default() }).unwrap();
    let workflows = open(&db, registry).await;
    workflows.create("wait", "x", &json!(null)).await.unwrap();
    let error = result(&workflows, "wait", "x").await.unwrap_err();
    assert!(error.code == Code::EventTimeout && error.message.contains("timed out"), "{error}");
}

pub(crate) async fn a31_a32_updates_are_kept_numbered_and_told_once(db: Db) {
    let mut registry = Registry::new();
    let code = |ctx: Context, _: Json| async move {
        ctx.emit("progress", &0).await?;
        ctx.wait_for_event::<Json>("start", "go", None).await?;
        ctx.broadcast("live", &"only now")?;
        ctx.emit("progress", &50).await?;
        ctx.sleep("between", Duration::from_millis(10)).await;
        ctx.emit("progress", &100).await?;
        Ok(())
    };
    registry.register("told", code, Options { events: Events::new().any("go"), ..Options::default() }).unwrap();
    let workflows = open(&db, registry).await;
    workflows.create("told", "x", &json!(null)).await.unwrap();
    status(&workflows, "told", "x", "waiting").await;
    let mut live = workflows.listen("told", "x").unwrap();
    workflows.send("told", "x", "go", &json!(null), None).await.unwrap();
    result(&workflows, "told", "x").await.unwrap();
    let mut heard = Vec::new();
    while let Ok(update) = live.recv().await {
        heard.push((update.seq, update.data));
    }
    assert_eq!(heard, [(None, "\"only now\"".into()), (Some(2), "50".into()), (Some(3), "100".into())]);
    // Whoever comes later, or was away, goes on after the last number.
    let all = workflows.updates("told", "x", 0).await.unwrap();
    assert_eq!(all.iter().map(|update| update.data.as_str()).collect::<Vec<_>>(), ["0", "50", "100"]);
    assert_eq!(workflows.updates("told", "x", 2).await.unwrap().len(), 1);
}

pub(crate) async fn a33_sizes_are_bytes_and_have_limits(db: Db) {
    let mut registry = Registry::new();
    let code = |ctx: Context, sizes: Vec<usize>| async move {
        for (n, size) in sizes.into_iter().enumerate() {
            // Three bytes for each character.
            ctx.step(&format!("step {n}"), move || async move { Ok("日".repeat(size / 3)) }).await?;
        }
        Ok(())
    };
    let limited = Options { result_size_limit: 1_024, retry: fast(2, Backoff::Fixed), ..Options::default() };
    registry.register("fail", code, limited.clone()).unwrap();
    registry.register("retry", code, Options { on_overflow: OnOverflow::Retry, ..limited }).unwrap();
    let workflows = open(&db, registry).await;
    for (id, sizes, is_fine) in [("a", vec![99, 99], true), ("b", vec![600, 600], false), ("c", vec![2_001], false)] {
        workflows.create("fail", id, &sizes).await.unwrap();
        let outcome = result(&workflows, "fail", id).await;
        assert_eq!(outcome.is_ok(), is_fine, "{id}");
        if let Err(error) = outcome {
            assert!(error.code == Code::ResultTooLarge && error.message.contains("result size limit"), "{error}");
        }
    }
    let (_, steps) = workflows.timeline("fail", "b").await.unwrap();
    assert_eq!((steps[0].state.as_str(), steps[1].state.as_str(), steps[1].attempts), ("completed", "failed", 1));
    workflows.create("retry", "d", &vec![2_001]).await.unwrap();
    let error = result(&workflows, "retry", "d").await.unwrap_err();
    assert!(error.message.contains("failed after 2 attempts"), "{error}");
}

fn registered<F, Fut>(kind: &str, code: F) -> Registry
where
    F: Fn(Context, Json) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<Json>> + Send + 'static,
{
    let mut registry = Registry::new();
    let options = Options { events: Events::new().any("go"), ..Options::default() };
    registry.register(kind, code, options).unwrap();
    registry
}

pub(crate) async fn a34_changed_code_is_stopped_and_patches_lead_on(db: Db) {
    let old = |ctx: Context, _: Json| async move {
        ctx.step("charge", || async { Ok(1) }).await?;
        ctx.wait_for_event::<Json>("wait", "go", None).await?;
        ctx.step("ship", || async { Ok(json!("old")) }).await
    };
    let workflows = open(&db, registered("order", old)).await;
    for id in ["changed", "patched"] {
        workflows.create("order", id, &json!(null)).await.unwrap();
        status(&workflows, "order", id, "waiting").await;
    }
    workflows.close();
    // The name of a step that was done is another one now.
    let renamed = |ctx: Context, _: Json| async move {
        ctx.step("charge card", || async { Ok(1) }).await?;
        ctx.wait_for_event::<Json>("wait", "go", None).await?;
        Ok(json!("renamed"))
    };
    let workflows = open(&db, registered("order", renamed)).await;
    workflows.send("order", "changed", "go", &json!(null), None).await.unwrap();
    let error = result(&workflows, "order", "changed").await.unwrap_err();
    assert_eq!(error.code, Code::NonDeterminism);
    assert_eq!(error.message, "at 0 the journal has do \"charge\", and the code asks for do \"charge card\"");
    workflows.close();
    let patched = |ctx: Context, _: Json| async move {
        ctx.step("charge", || async { Ok(1) }).await?;
        if ctx.patched("check stock").await {
            ctx.step("check stock", || async { Ok(2) }).await?;
        }
        ctx.wait_for_event::<Json>("wait", "go", None).await?;
        let is_new = ctx.patched("ship by air").await;
        ctx.step("ship", move || async move { Ok(json!(if is_new { "air" } else { "old" })) }).await
    };
    let workflows = open(&db, registered("order", patched)).await;
    workflows.create("order", "new", &json!(null)).await.unwrap();
    for id in ["patched", "new"] {
        workflows.send("order", id, "go", &json!(null), None).await.unwrap();
        assert_eq!(result(&workflows, "order", id).await.unwrap(), json!("air"), "{id}");
    }
    let names = |steps: Vec<isles_workflows::Step>| steps.into_iter().map(|step| step.name).collect::<Vec<_>>();
    let (_, steps) = workflows.timeline("order", "patched").await.unwrap();
    assert!(!names(steps).contains(&"check stock".to_string()), "it went on without, and stays so");
    let (_, steps) = workflows.timeline("order", "new").await.unwrap();
    assert!(names(steps).contains(&"check stock".to_string()));
}

pub(crate) async fn a37_a_step_has_its_time(db: Db) {
    let code = |ctx: Context, _: Json| async move {
        let timeout = Some(Duration::from_millis(30));
        let options = StepOptions { retry: Some(Retry::never()), timeout };
        ctx.step_with("slow", options, |_| async {
            tokio::time::sleep(Duration::from_secs(600)).await;
            Ok(json!(1))
        })
        .await
    };
    let workflows = open(&db, registered("slow", code)).await;
    workflows.create("slow", "x", &json!(null)).await.unwrap();
    let error = result(&workflows, "slow", "x").await.unwrap_err();
    assert!(error.message.contains("longer than 30 ms"), "{error}");
}

pub(crate) async fn branches_run_beside_each_other(db: Db) {
    let code = |ctx: Context, _: Json| async move {
        let work = |name: &'static str| {
            let branch = ctx.branch(name);
            async move {
                let mut sum = 0;
                for n in 0..3_i64 {
                    sum += branch.step(&format!("step {n}"), move || async move { Ok(n) }).await?;
                    branch.sleep(&format!("sleep {n}"), Duration::from_millis(5)).await;
                }
                Ok::<i64, WorkflowError>(sum)
            }
        };
        let (a, b, c) = futures::join!(work("a"), work("b"), work("c"));
        // Steps that are asked for in one place need no branch.
        let direct = futures::join!(ctx.step("x", || async { Ok(10) }), ctx.step("y", || async { Ok(20) }));
        Ok(json!(a? + b? + c? + direct.0? + direct.1?))
    };
    let workflows = open(&db, registered("wide", code)).await;
    workflows.create("wide", "x", &json!(null)).await.unwrap();
    assert_eq!(result(&workflows, "wide", "x").await.unwrap(), json!(39));
    let (_, steps) = workflows.timeline("wide", "x").await.unwrap();
    assert_eq!(steps.len(), 20);
}

pub(crate) async fn children_are_runs_and_their_results_come_back(db: Db) {
    let mut registry = Registry::new();
    let child = |ctx: Context, n: i64| async move {
        ctx.sleep("a moment", Duration::from_millis(20)).await;
        if n < 0 { Err(WorkflowError::non_retriable("below zero")) } else { Ok(n * 2) }
    };
    registry.register("child", child, Options::default()).unwrap();
    let parent = |ctx: Context, n: i64| async move {
        ctx.start_child("beside", "child", &format!("{}-beside", ctx.id()), &1).await?;
        ctx.child::<i64, i64>("double", "child", &format!("{}-child", ctx.id()), &n).await
    };
    registry.register("parent", parent, Options::default()).unwrap();
    let workflows = open(&db, registry).await;
    workflows.create("parent", "good", &21).await.unwrap();
    assert_eq!(result(&workflows, "parent", "good").await.unwrap(), json!(42));
    assert_eq!(result(&workflows, "child", "good-beside").await.unwrap(), json!(2));
    workflows.create("parent", "bad", &-1).await.unwrap();
    assert_eq!(result(&workflows, "parent", "bad").await.unwrap_err().message, "below zero");
}

pub(crate) async fn time_and_randomness_are_the_same_again(db: Db) {
    let done = Done::default();
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let (counted, noted) = (done.clone(), seen.clone());
    let code = move |ctx: Context, _: Json| {
        let (done, seen) = (counted.clone(), noted.clone());
        async move {
            done.add("executions");
            let (now, drawn) = (ctx.now().await, (ctx.random(), ctx.random()));
            seen.lock().unwrap().push((now, drawn));
            ctx.sleep("a moment", Duration::from_millis(20)).await;
            Ok(json!([now, drawn.0 != drawn.1]))
        }
    };
    let workflows = open(&db, registered("drawn", code)).await;
    workflows.create("drawn", "x", &json!(null)).await.unwrap();
    assert_eq!(result(&workflows, "drawn", "x").await.unwrap()[1], json!(true));
    let seen = seen.lock().unwrap();
    assert!(seen.len() >= 2 && seen.iter().all(|one| *one == seen[0]), "{seen:?}");
}

pub(crate) async fn effects_in_the_database_commit_with_their_step(db: Db) {
    db.client().run("CREATE TABLE counters (id text PRIMARY KEY, n bigint NOT NULL)").await;
    let done = Done::default();
    let counted = done.clone();
    let code = move |ctx: Context, _: Json| {
        let done = counted.clone();
        async move {
            let id = ctx.id().to_owned();
            ctx.transact("count", move |session| {
                let id = id.clone();
                async move {
                    let upsert =
                        "INSERT INTO counters VALUES ($1, 1) ON CONFLICT (id) DO UPDATE SET n = counters.n + 1";
                    session.run_text(upsert, vec![Value::Text(id)]).await?;
                    match done.add("tries") {
                        // What was written is taken back with the step.
                        1 => Err(WorkflowError::failed("not yet")),
                        count => Ok(json!(count)),
                    }
                }
                .boxed()
            })
            .await
        }
    };
    let mut registry = Registry::new();
    registry.register("counter", code, Options { retry: fast(3, Backoff::Fixed), ..Options::default() }).unwrap();
    let workflows = open(&db, registry).await;
    workflows.create("counter", "x", &json!(null)).await.unwrap();
    assert_eq!(result(&workflows, "counter", "x").await.unwrap(), json!(2));
    assert_eq!(db.client().run("SELECT id, n FROM counters").await, ["x|1"]);
}

pub(crate) async fn a_crash_between_steps_repeats_none(db: Db) {
    let done = Done::default();
    let (gate, _) = tokio::sync::watch::channel(false);
    let registry = |done: &Done, opened: tokio::sync::watch::Receiver<bool>| {
        let done = done.clone();
        registered("steps", move |ctx: Context, _: Json| {
            let (done, mut opened) = (done.clone(), opened.clone());
            async move {
                let (one, gate, two) = (done.clone(), done.clone(), done);
                ctx.step("one", move || async move { Ok(one.add("one")) }).await?;
                ctx.step("gate", move || async move {
                    gate.add("gate");
                    let _ = opened.wait_for(|open| *open).await;
                    Ok(())
                })
                .await?;
                ctx.step("two", move || async move { Ok(json!(two.add("two"))) }).await
            }
        })
    };
    let workflows = open(&db, registry(&done, gate.subscribe())).await;
    for n in 0..10 {
        workflows.create("steps", &format!("run {n}"), &json!(null)).await.unwrap();
    }
    // Who is at the gate has the step before it in the journal.
    until("ten at the gate", || async { done.count("gate") == 10 }).await;
    // The executors are gone in the middle of a step; the next life takes the runs over at once.
    workflows.close();
    gate.send_replace(true);
    let workflows = open(&db, registry(&done, gate.subscribe())).await;
    for n in 0..10 {
        result(&workflows, "steps", &format!("run {n}")).await.unwrap();
    }
    assert_eq!((done.count("one"), done.count("two")), (10, 10));
}

/// Events, timers, resumes and a second process come at the same time: each step is done once, by one of them.
pub(crate) async fn a25_what_comes_together_is_executed_once(db: Db) {
    const RUNS: usize = 8;
    const ROUNDS: i64 = 4;
    let done = Done::default();
    let registry = || {
        let done = done.clone();
        registered("busy", move |ctx: Context, _: Json| {
            let done = done.clone();
            async move {
                for n in 0..ROUNDS {
                    let waits = format!("wait {n}");
                    let _ = ctx.wait_for_event::<Json>(&waits, "go", Some(Duration::from_millis(40))).await;
                    let (counted, step) = (done.clone(), format!("{} {n}", ctx.id()));
                    ctx.step(&format!("step {n}"), move || async move { Ok(counted.add(&step)) }).await?;
                }
                Ok(json!("done"))
            }
        })
    };
    let one = open(&db, registry()).await;
    let two = open_with(&db, registry(), EngineOptions { takes_over: false, ..options() }).await;
    let ids: Vec<String> = (0..RUNS).map(|n| format!("run {n}")).collect();
    let disturb = ids.iter().enumerate().map(|(n, id)| {
        let (creates, other) = if n % 2 == 0 { (&one, &two) } else { (&two, &one) };
        async move {
            creates.create("busy", id, &json!(null)).await.unwrap();
            while !creates.get("busy", id).await.unwrap().status.is_terminal() {
                // Any of these may come too late.
                let sends = other.send("busy", id, "go", &1, None);
                let _ = futures::join!(sends, creates.pause("busy", id), other.resume("busy", id));
                let _ = creates.resume("busy", id).await;
            }
        }
    });
    futures::future::join_all(disturb).await;
    for id in &ids {
        assert_eq!(result(&one, "busy", id).await.unwrap(), json!("done"));
        for n in 0..ROUNDS {
            assert_eq!(done.count(&format!("{id} {n}")), 1, "{id}, step {n}");
        }
    }
}

/// A transaction that meets another one where it is committed is done again at once, and not when the lease of its run has
/// ended, which is in an hour here.
pub(crate) async fn transactions_that_meet_are_done_again(db: Db) {
    const RUNS: usize = 100;
    let mut client = db.client();
    client.run("CREATE TABLE counters (id text PRIMARY KEY, n bigint NOT NULL)").await;
    let code = |ctx: Context, _: Json| async move {
        let id = ctx.id().to_owned();
        ctx.step("before", || async { Ok(1) }).await?;
        ctx.transact("count", move |session| {
            async move {
                let sql = "INSERT INTO counters VALUES ($1, 1) ON CONFLICT (id) DO UPDATE SET n = counters.n + 1";
                session.run_text(sql, vec![Value::Text(id)]).await?;
                Ok(json!("counted"))
            }
            .boxed()
        })
        .await
    };
    let mut registry = Registry::new();
    registry.register("count", code, Options { retry: fast(1_000, Backoff::Fixed), ..Options::default() }).unwrap();
    let workflows = open_with(&db, registry, EngineOptions { lease: Duration::from_secs(3_600), ..options() }).await;
    let ids: Vec<String> = (0..RUNS).map(|n| format!("run {n}")).collect();
    let created = ids.iter().map(|id| workflows.create("count", id, &Json::Null));
    assert!(futures::future::join_all(created).await.iter().all(Result::is_ok));
    for id in &ids {
        assert_eq!(result(&workflows, "count", id).await.unwrap(), json!("counted"));
    }
    assert_eq!(client.run("SELECT count(*), min(n), max(n) FROM counters").await, [format!("{RUNS}|1|1")]);
}

/// Steps that wait for a gate each, and are counted.
fn gated(
    done: &Done,
    name: &'static str,
    gate: &tokio::sync::watch::Sender<bool>,
) -> impl Future<Output = Result<()>> + Send + use<> {
    let (done, mut opened) = (done.clone(), gate.subscribe());
    async move {
        done.add(name);
        let _ = opened.wait_for(|open| *open).await;
        done.add(&format!("{name} ended"));
        Ok(())
    }
}

/// A step that runs is not torn, also if another branch comes to its next step first: the run pauses when it has ended.
pub(crate) async fn pausing_tears_no_step_of_another_branch(db: Db) {
    let done = Done::default();
    let (short, long) = (tokio::sync::watch::Sender::new(false), tokio::sync::watch::Sender::new(false));
    let (counted, gates) = (done.clone(), (short.clone(), long.clone()));
    let code = move |ctx: Context, _: Json| {
        let (done, (short, long)) = (counted.clone(), gates.clone());
        async move {
            let (a, b) = (ctx.branch("a"), ctx.branch("b"));
            let (one, two) = (gated(&done, "short", &short), gated(&done, "long", &long));
            let after = done.clone();
            let first = async move {
                a.step("short", move || one).await?;
                a.step("after", move || async move { Ok(after.add("after")) }).await
            };
            let (first, second) = futures::join!(first, b.step("long", move || two));
            first?;
            second?;
            Ok(json!("both"))
        }
    };
    let workflows = open(&db, registered("wide", code)).await;
    workflows.create("wide", "x", &json!(null)).await.unwrap();
    until("both steps", || async { done.count("short") == 1 && done.count("long") == 1 }).await;
    workflows.pause("wide", "x").await.unwrap();
    short.send_replace(true);
    until("the short one's entry", || async { workflows.timeline("wide", "x").await.unwrap().1.len() == 1 }).await;
    long.send_replace(true);
    status(&workflows, "wide", "x", "paused").await;
    assert_eq!((done.count("long ended"), done.count("after")), (1, 0));
    workflows.resume("wide", "x").await.unwrap();
    assert_eq!(result(&workflows, "wide", "x").await.unwrap(), json!("both"));
    assert_eq!(["short", "long", "after"].map(|name| done.count(name)), [1, 1, 1]);
}

/// A transaction that meets another one is done again, and tears no step of another branch.
pub(crate) async fn a_conflict_tears_no_step_of_another_branch(db: Db) {
    let (done, long) = (Done::default(), tokio::sync::watch::Sender::new(false));
    let (counted, gate) = (done.clone(), long.clone());
    let code = move |ctx: Context, _: Json| {
        let (done, long) = (counted.clone(), gate.clone());
        async move {
            let (a, b) = (ctx.branch("a"), ctx.branch("b"));
            let (tries, begun) = (done.clone(), done.clone());
            let key = format!("4:wide/{}", ctx.id());
            let meets = a.transact("meets", move |session| {
                async move {
                    session.run_text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ", Vec::new()).await?;
                    let sql = "SELECT due_at FROM isles.runs WHERE run = $1";
                    session.run_text(sql, vec![Value::Text(key)]).await?;
                    // The run is written to by the other branch; what was read is of before.
                    tries.add("tries");
                    until("the other branch", || async { begun.count("long") > 0 }).await;
                    Ok(())
                }
                .boxed()
            });
            let (looked, work) = (done.clone(), gated(&done, "long", &long));
            let other = async move {
                until("a look", || async { looked.count("tries") > 0 }).await;
                b.step("short", || async { Ok(()) }).await?;
                b.step("long", move || work).await
            };
            let (met, other) = futures::join!(meets, other);
            met?;
            other?;
            Ok(json!("both"))
        }
    };
    let workflows = open(&db, registered("wide", code)).await;
    workflows.create("wide", "x", &json!(null)).await.unwrap();
    until("the long step", || async { done.count("long") == 1 }).await;
    // Time for the conflict to come; whether it comes is asserted below.
    tokio::time::sleep(Duration::from_millis(200)).await;
    long.send_replace(true);
    assert_eq!(result(&workflows, "wide", "x").await.unwrap(), json!("both"));
    assert!(done.count("tries") > 1, "no conflict came");
    assert_eq!((done.count("long"), done.count("long ended")), (1, 1));
}

/// A child that has ended and was deleted before its parent looked is not executed a second time.
pub(crate) async fn a_child_that_was_deleted_is_not_executed_again(db: Db) {
    let (done, mut registry) = (Done::default(), Registry::new());
    let counted = done.clone();
    let child = move |ctx: Context, _: Json| {
        let done = counted.clone();
        async move {
            ctx.step("once", move || async move { Ok(done.add("child")) }).await?;
            ctx.wait_for_event::<Json>("wait", "go", None).await
        }
    };
    registry.register("child", child, Options { events: Events::new().any("go"), ..Options::default() }).unwrap();
    let parent = |ctx: Context, n: i64| async move { ctx.child::<i64, Json>("one", "child", "of x", &n).await };
    registry.register("parent", parent, Options::default()).unwrap();
    let workflows = open(&db, registry).await;
    workflows.create("parent", "x", &1).await.unwrap();
    status(&workflows, "child", "of x", "waiting").await;
    status(&workflows, "parent", "x", "waiting").await;
    workflows.pause("parent", "x").await.unwrap();
    workflows.send("child", "of x", "go", &json!(null), None).await.unwrap();
    status(&workflows, "child", "of x", "completed").await;
    workflows.delete("child", "of x").await.unwrap();
    workflows.resume("parent", "x").await.unwrap();
    let error = result(&workflows, "parent", "x").await.unwrap_err();
    assert!(error.code == Code::WorkflowNotFound && error.message.contains("was deleted"), "{error}");
    assert_eq!(done.count("child"), 1);
}

/// Updates and steps of branches come to the shard in any order: the number of updates only rises, and they are told in
/// the order of their numbers.
pub(crate) async fn updates_of_branches_are_numbered_without_gaps(db: Db) {
    const EACH: i64 = 25;
    let code = |ctx: Context, _: Json| async move {
        let telling = |name: &'static str| {
            let branch = ctx.branch(name);
            async move {
                for n in 0..EACH {
                    branch.emit("told", &n).await?;
                }
                Ok::<(), WorkflowError>(())
            }
        };
        let working = |name: &'static str| {
            let branch = ctx.branch(name);
            async move {
                for n in 0..EACH {
                    branch.step(&format!("step {n}"), move || async move { Ok(n) }).await?;
                }
                Ok::<(), WorkflowError>(())
            }
        };
        let all = futures::join!(telling("a"), working("b"), telling("c"), working("d"));
        [all.0, all.1, all.2, all.3].into_iter().collect::<Result<Vec<()>>>()?;
        Ok(json!(null))
    };
    let workflows = open(&db, registered("told", code)).await;
    for id in ["x", "y", "z"] {
        workflows.create("told", id, &json!(null)).await.unwrap();
    }
    for id in ["x", "y", "z"] {
        result(&workflows, "told", id).await.unwrap();
        let told: Vec<Option<i64>> =
            workflows.updates("told", id, 0).await.unwrap().iter().map(|update| update.seq).collect();
        assert_eq!(told, (1..=2 * EACH).map(Some).collect::<Vec<_>>());
        let run = workflows.get("told", id).await.unwrap();
        assert_eq!(run.attempt, 1);
    }
    let counted = db.client().run("SELECT DISTINCT update_seq, executor_token FROM isles.runs").await;
    assert_eq!(counted, [format!("{}|2", 2 * EACH)], "each was executed once");
}

/// What a branch draws does not depend on how far others are.
pub(crate) async fn random_numbers_of_branches_are_the_same_again(db: Db) {
    let seen: std::sync::Arc<std::sync::Mutex<Vec<(String, u64)>>> = std::sync::Arc::default();
    let noted = seen.clone();
    let code = move |ctx: Context, _: Json| {
        let seen = noted.clone();
        async move {
            let drawing = |name: &'static str, naps: [u64; 3]| {
                let (branch, seen) = (ctx.branch(name), seen.clone());
                async move {
                    for (n, nap) in naps.into_iter().enumerate() {
                        branch.sleep(&format!("nap {n}"), Duration::from_millis(nap)).await;
                        seen.lock().unwrap().push((format!("{name}{n}"), branch.random()));
                    }
                }
            };
            futures::join!(drawing("a", [1, 10, 200]), drawing("b", [60, 300, 10]));
            Ok(json!(null))
        }
    };
    let workflows = open(&db, registered("drawn", code)).await;
    workflows.create("drawn", "x", &json!(null)).await.unwrap();
    result(&workflows, "drawn", "x").await.unwrap();
    let mut seen = seen.lock().unwrap().clone();
    assert!(seen.len() > 6, "it was executed several times");
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 6, "each is drawn once: {seen:?}");
}

/// Times without end are without end, and do not come out as times that have passed.
pub(crate) async fn the_longest_times_do_not_wrap(db: Db) {
    let code = |ctx: Context, input: Json| async move {
        if input == json!("retry") {
            let (delay, cap) = (Duration::MAX, Duration::MAX);
            let retry = Retry { limit: 2, delay, cap, backoff: Backoff::Fixed, ..Retry::default() };
            let options = StepOptions { retry: Some(retry), ..StepOptions::default() };
            return ctx.step_with("fails", options, |_| async { Err(WorkflowError::failed("once")) }).await;
        }
        ctx.wait_for_event::<Json>("wait", "go", Some(Duration::MAX)).await
    };
    let workflows = open(&db, registered("long", code)).await;
    workflows.create("long", "wait", &json!("wait")).await.unwrap();
    workflows.create("long", "retry", &json!("retry")).await.unwrap();
    status(&workflows, "long", "wait", "waiting").await;
    status(&workflows, "long", "retry", "sleeping").await;
    for id in ["wait", "retry"] {
        let run = workflows.get("long", id).await.unwrap();
        assert!(run.due_at.unwrap() > run.created_at + 1_000_000_000_000, "{:?}", run.due_at);
    }
    workflows.send("long", "wait", "go", &json!(1), None).await.unwrap();
    assert_eq!(workflows.wait("long", "wait", Some(Duration::MAX)).await.unwrap(), json!(1));
}

/// A sleep that was slept is completed in the journal, and it cost no write of its own.
pub(crate) async fn sleeps_that_are_over_are_completed_in_the_journal(db: Db) {
    let code = |ctx: Context, _: Json| async move {
        ctx.sleep("one", Duration::from_millis(20)).await;
        ctx.step("between", || async { Ok(1) }).await?;
        ctx.sleep("two", Duration::from_millis(20)).await;
        Ok(json!("rested"))
    };
    let workflows = open(&db, registered("rests", code)).await;
    workflows.create("rests", "x", &json!(null)).await.unwrap();
    result(&workflows, "rests", "x").await.unwrap();
    let (_, steps) = workflows.timeline("rests", "x").await.unwrap();
    let shown: Vec<(&str, &str)> = steps.iter().map(|step| (step.name.as_str(), step.state.as_str())).collect();
    assert_eq!(shown, [("one", "completed"), ("between", "completed"), ("two", "completed")]);
    assert!(steps.iter().all(|step| step.ended_at >= Some(step.wake_at.unwrap_or_default())));
}

async fn long_steps_under(db: &Db, planted: Option<Planted>) -> u64 {
    let done = Done::default();
    let (mut registry, counted) = (Registry::new(), done.clone());
    let code = move |ctx: Context, _: Json| {
        let done = counted.clone();
        async move {
            let work = move || async move {
                done.add("step");
                tokio::time::sleep(Duration::from_millis(2_500)).await;
                Ok(())
            };
            ctx.step("long", work).await
        }
    };
    registry.register("long", code, Options::default()).unwrap();
    let short = EngineOptions { lease: Duration::from_millis(600), planted, takes_over: false, ..options() };
    let workflows = open_with(db, registry.clone(), short.clone()).await;
    let another = open_with(db, registry, short).await;
    let id = format!("{planted:?}");
    workflows.create("long", &id, &json!(null)).await.unwrap();
    let ended = result(&workflows, "long", &id).await;
    // With the bug it is given up after a while: it never comes to its end.
    assert!(ended.is_ok() || planted.is_some(), "{ended:?}");
    workflows.close();
    another.close();
    done.count("step")
}

/// A second engine would take the run as soon as its lease ends; it is renewed, and a lease that is not is noticed here.
pub(crate) async fn a24_a_second_engine_does_not_take_a_long_step_for_dead(db: Db) {
    assert_eq!(long_steps_under(&db, None).await, 1);
    assert!(long_steps_under(&db, Some(Planted::LeaseNotRenewed)).await > 1, "the planted bug was not noticed");
}
