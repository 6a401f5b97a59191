//! What happens after a commit.

use crate::world::{Kind, World, add_user, find, fragment, killed_after, names, shard, user, within};
use isles_fragments::Error;
use isles_fragments::context::{GlobalScope, ShardContext, ShardState};
use isles_fragments::error::{Code, Rule};
use isles_fragments::hooks::{Hook, HookContext, Processed, Processor, ProcessorOptions, Trigger};
use isles_fragments::query::Find;
use isles_fragments::schema::Schema;
use isles_fragments::shard::{Shard, Strategy};
use isles_fragments::store::{Fragment, Handle};
use serde_json::json;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis() as i64
}

async fn app(world: &World, name: &str, hook: Hook) -> (Handle, GlobalScope) {
    world.app_with(Some(Strategy::Row), fragment().hook(name, hook)).await
}

/// Writes who it runs for into its own shard, and triggers a child.
fn writer() -> Hook {
    Hook::new(|context: HookContext, payload| async move {
        let seen = ShardContext.get();
        if seen != ShardState::Set(context.shard.clone()) {
            return Err(format!("runs in {seen:?}"));
        }
        let depth = payload["depth"].as_i64().unwrap_or(0);
        let tx = context.handle.handler_tx().mutate(move |m, _| {
            m.create("users", user(&format!("hook {depth}")))?;
            if depth > 0 {
                m.trigger("write", &json!({ "depth": depth - 1 }))?;
            }
            Ok(())
        });
        tx.execute().await.map_err(|error| error.to_string())
    })
}

async fn trigger(app: &Handle, hook: &'static str) -> Result<(), Error> {
    app.handler_tx().mutate(move |m, _| m.trigger(hook, &json!({ "depth": 1 }))).execute().await
}

/// I-33: it runs after the commit, once, and what it triggers is of its shard.
pub(crate) async fn hooks_run_after_the_commit_in_their_shard(world: World) {
    let (app, _) = app(&world, "write", writer()).await;
    within("a", trigger(&app, "write")).await.unwrap();
    assert!(within("a", names(&app)).await.is_empty());
    let done = Processor::of_shard(&app, shard("a")).drain().await.unwrap();
    assert_eq!(done, Processed { completed: 2, ..Processed::default() }, "and its child");
    assert_eq!(within("a", names(&app)).await.len(), 2);
    assert!(ShardContext.with(Shard::None, || names(&app)).await.is_empty());
    assert_eq!(Processor::of_shard(&app, shard("a")).drain().await.unwrap(), Processed::default());
}

pub(crate) async fn a_processor_of_a_shard_leaves_others_alone(world: World) {
    let (app, _) = app(&world, "write", writer()).await;
    for name in ["a", "b"] {
        within(name, trigger(&app, "write")).await.unwrap();
    }
    Processor::of_shard(&app, shard("a")).drain().await.unwrap();
    assert_eq!(within("a", names(&app)).await.len(), 2);
    assert!(within("b", names(&app)).await.is_empty());
    assert_eq!(Processor::of_shard(&app, Shard::None).drain().await.unwrap(), Processed::default());
}

/// The global processor looks everywhere and runs nothing in the shard without a name, but for its own hooks.
pub(crate) async fn a_global_processor_runs_each_hook_in_the_shard_of_its_row(world: World) {
    let (app, global) = app(&world, "write", writer()).await;
    for own in [shard("a"), shard("b"), Shard::None] {
        ShardContext.with(own, || trigger(&app, "write")).await.unwrap();
    }
    let done = Processor::global(&app, &global).drain().await.unwrap();
    assert_eq!(done, Processed { completed: 6, ..Processed::default() });
    for own in [shard("a"), shard("b"), Shard::None] {
        assert_eq!(ShardContext.with(own, || names(&app)).await.len(), 2);
    }
}

/// I-35: retries are bounded, wait longer each time, and what is given up is kept, listed, and can be revived.
pub(crate) async fn failures_are_tried_again_and_given_up(world: World) {
    let tries = Arc::new(Mutex::new(Vec::new()));
    let seen = tries.clone();
    let hook = Hook::new(move |context: HookContext, _| {
        seen.lock().unwrap().push((context.id.clone(), context.attempt));
        let attempt = context.attempt;
        async move { if attempt > 100 { Ok(()) } else { Err(format!("no {attempt}")) } }
    });
    let (app, _) = app(&world, "fail", hook.attempts(3, 1)).await;
    within("a", trigger(&app, "fail")).await.unwrap();
    let processor = Processor::of_shard(&app, shard("a"));
    let mut all = Processed::default();
    for _ in 0..200 {
        all += processor.process_due().await.unwrap();
        if all.given_up > 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(all, Processed { completed: 0, failed: 2, given_up: 1 });
    let tried = tries.lock().unwrap().clone();
    assert_eq!(tried.iter().map(|(_, attempt)| *attempt).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(tried.iter().all(|(id, _)| *id == tried[0].0), "one id for all attempts");
    let dead = processor.dead(&shard("a"), 10).await.unwrap();
    assert_eq!((dead.len(), dead[0].attempts, dead[0].error.as_str()), (1, 3, "no 3"));
    assert!(processor.dead(&shard("b"), 10).await.unwrap().is_empty());
    let elsewhere = processor.revive(&shard("b"), &dead[0].id).await.unwrap_err();
    assert_eq!(elsewhere.refusal(), Some(Code::NotFound));
    processor.revive(&shard("a"), &dead[0].id).await.unwrap();
    processor.process_due().await.unwrap();
    assert_eq!(tries.lock().unwrap().len(), 4);
}

/// I-35: a hook that ends its process is not tried for ever.
pub(crate) async fn stuck_hooks_count_as_attempts(world: World) {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let hook = Hook::new(move |_, _| {
        counted.fetch_add(1, Ordering::Relaxed);
        std::future::pending()
    });
    let (app, _) = app(&world, "hang", hook.attempts(2, 1)).await;
    within("a", trigger(&app, "hang")).await.unwrap();
    let options = ProcessorOptions { lease_ms: 30, time_limit_ms: 60_000, ..ProcessorOptions::default() };
    let processor = Processor::of_shard(&app, shard("a")).with_options(options);
    let mut rounds = 0;
    while processor.dead(&shard("a"), 1).await.unwrap().is_empty() {
        // The process ends while the body runs.
        let _ended = tokio::time::timeout(Duration::from_millis(300), processor.process_due()).await;
        tokio::time::sleep(Duration::from_millis(15)).await;
        rounds += 1;
        assert!(rounds < 300, "it is tried for ever");
    }
    let runs = runs.load(Ordering::Relaxed);
    assert!((1..=2).contains(&runs), "{runs} runs of two attempts");
    assert!(processor.dead(&shard("a"), 1).await.unwrap()[0].error.contains("lease"));
}

/// One whose lease has run out notes nothing over the one who came after.
pub(crate) async fn late_owners_change_nothing(world: World) {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let (slow, runs) = (gate.clone(), Arc::new(AtomicUsize::new(0)));
    let counted = runs.clone();
    let hook = Hook::new(move |_, _| {
        let (slow, first) = (slow.clone(), counted.fetch_add(1, Ordering::Relaxed) == 0);
        async move {
            if first {
                let _opened = slow.acquire().await;
                return Err("late".into());
            }
            Ok(())
        }
    });
    let (app, _) = app(&world, "slow", hook.attempts(5, 1)).await;
    within("a", trigger(&app, "slow")).await.unwrap();
    let options = ProcessorOptions { lease_ms: 1, time_limit_ms: 60_000, ..ProcessorOptions::default() };
    let processor = Processor::of_shard(&app, shard("a")).with_options(options);
    let late = tokio::spawn({
        let processor = processor.clone();
        async move { processor.process_due().await.unwrap() }
    });
    while runs.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    let mut done = Processed::default();
    while done.completed == 0 {
        done += processor.process_due().await.unwrap();
    }
    gate.add_permits(1);
    assert_eq!(late.await.unwrap(), Processed::default(), "its end is nobody's");
    assert_eq!(processor.drain().await.unwrap(), Processed::default(), "it stays completed");
}

pub(crate) async fn ids_of_hooks_are_of_a_shard(world: World) {
    let (app, _) = app(&world, "write", writer()).await;
    let daily =
        || app.handler_tx().mutate(|m, _| m.trigger_with(Trigger::new("write", &json!({})).id("daily"))).execute();
    within("a", async { daily().await }).await.unwrap();
    within("b", async { daily().await }).await.unwrap();
    let again = within("a", async { daily().await }).await.unwrap_err();
    assert!(matches!(again, Error::Constraint { rule: Rule::Unique, .. }), "{again:?}");
    let unknown = app.handler_tx().mutate(|m, _| m.trigger("nope", &json!({})));
    assert!(unknown.execute().await.is_err());
    within("a", async {
        let tx = app.handler_tx().mutate(|m, _| m.trigger("nope", &json!({})));
        assert_eq!(tx.execute().await.unwrap_err().refusal(), Some(Code::UnknownHook));
        for bad in ["", "a\0", "a\nb", &"x".repeat(200)] {
            let trigger = Trigger::new("write", &json!({})).id(bad);
            let tx = app.handler_tx().mutate(move |m, _| m.trigger_with(trigger.clone()));
            assert_eq!(tx.execute().await.unwrap_err().refusal(), Some(Code::InvalidValue), "{bad:?}");
        }
        let large = json!("x".repeat(300_000));
        let tx = app.handler_tx().mutate(move |m, _| m.trigger("write", &large));
        assert_eq!(tx.execute().await.unwrap_err().refusal(), Some(Code::TooLarge));
    })
    .await;
}

pub(crate) async fn hooks_wait_for_their_time(world: World) {
    let (app, global) = app(&world, "write", writer()).await;
    let later = now_ms() + 3_600_000;
    within("a", async {
        let tx = app.handler_tx().mutate(move |m, _| {
            m.trigger_with(Trigger::new("write", &json!({})).at_ms(later))?;
            m.trigger_with(Trigger::new("write", &json!({})).at_ms(later - 1_000))
        });
        tx.execute().await.unwrap();
    })
    .await;
    assert_eq!(Processor::global(&app, &global).drain().await.unwrap(), Processed::default());
    let processor = Processor::of_shard(&app, shard("a"));
    assert_eq!(processor.next_wake_ms(&shard("a")).await.unwrap(), Some(later - 1_000));
    assert_eq!(processor.next_wake_ms(&shard("b")).await.unwrap(), None);
    within("a", async {
        let tx = app.handler_tx().mutate(|m, _| m.trigger_with(Trigger::new("write", &json!({})).at_ms(now_ms() - 1)));
        tx.execute().await.unwrap();
    })
    .await;
    assert_eq!(processor.drain().await.unwrap().completed, 1);
}

/// I-35: a shard whose hooks all hang takes its own places only; another one's hook runs within a second of its commit.
pub(crate) async fn a_shard_that_hangs_delays_no_other(world: World) {
    let ran = Arc::new(tokio::sync::Notify::new());
    let told = ran.clone();
    let hook = Hook::new(move |context: HookContext, _| {
        let told = told.clone();
        async move {
            if context.shard == shard("bad") {
                std::future::pending::<()>().await;
            }
            told.notify_one();
            Ok(())
        }
    });
    let (app, global) = app(&world, "work", hook).await;
    within("bad", async {
        let tx = app.handler_tx().mutate(|m, _| (0..50).try_for_each(|_| m.trigger("work", &json!({}))));
        tx.execute().await.unwrap();
    })
    .await;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let options = ProcessorOptions { poll_ms: 50, ..ProcessorOptions::default() };
    let processor = Processor::global(&app, &global).with_options(options);
    let running = tokio::spawn(processor.run(async move {
        let _stopped = stopped.await;
    }));
    for _ in 0..5 {
        within("good", trigger(&app, "work")).await.unwrap();
        // Far above the bound of one second: the machine may be busy, and a shard that waits for the hanging one would
        // wait for half a minute.
        tokio::time::timeout(Duration::from_secs(15), ran.notified()).await.expect("it runs");
    }
    drop(stop);
    running.await.unwrap();
}

/// Hangs in shards whose names begin with `bad`, and tells of the others.
fn hanging(told: &Arc<tokio::sync::Notify>) -> Hook {
    let told = told.clone();
    Hook::new(move |context: HookContext, _| {
        let told = told.clone();
        async move {
            if context.shard.name().is_some_and(|name| name.starts_with("bad")) {
                std::future::pending::<()>().await;
            }
            told.notify_one();
            Ok(())
        }
    })
}

async fn trigger_many(app: &Handle, name: &str, count: usize) {
    within(name, async {
        let tx = app.handler_tx().mutate(move |m, _| (0..count).try_for_each(|_| m.trigger("work", &json!({}))));
        tx.execute().await.unwrap();
    })
    .await;
}

/// I-35: shards that hang take their places and no more: some are kept for those that have none.
pub(crate) async fn many_that_hang_leave_places_for_the_others(world: World) {
    let ran = Arc::new(tokio::sync::Notify::new());
    let (app, global) = app(&world, "work", hanging(&ran)).await;
    for n in 0..5 {
        trigger_many(&app, &format!("bad{n}"), 20).await;
    }
    let options = ProcessorOptions { at_once: 40, poll_ms: 50, ..ProcessorOptions::default() };
    let running = tokio::spawn(Processor::global(&app, &global).with_options(options).run(std::future::pending()));
    for name in ["good", "other"] {
        trigger_many(&app, name, 1).await;
        tokio::time::timeout(Duration::from_secs(15), ran.notified()).await.expect("there is a place for it");
    }
    running.abort();
}

/// I-35: shards beyond one round have their turn in the next, though those before them have always something due.
pub(crate) async fn rounds_come_to_all_shards(world: World) {
    let ran = Arc::new(tokio::sync::Notify::new());
    let (app, global) = app(&world, "work", hanging(&ran)).await;
    for n in 0..6 {
        trigger_many(&app, &format!("bad{n}"), 5).await;
    }
    // Another process triggers it: the processor is not told.
    let elsewhere = world.app_with(Some(Strategy::Row), fragment().hook("work", hanging(&ran))).await.0;
    trigger_many(&elsewhere, "good", 1).await;
    let options = ProcessorOptions { per_shard: 1, poll_ms: 20, shards_per_round: 3, ..ProcessorOptions::default() };
    let running = tokio::spawn(Processor::global(&app, &global).with_options(options).run(std::future::pending()));
    tokio::time::timeout(Duration::from_secs(15), ran.notified()).await.expect("its round comes");
    running.abort();
    // Who looks once looks at all, too.
    trigger_many(&elsewhere, "later", 1).await;
    let short = ProcessorOptions { time_limit_ms: 1, ..options };
    let _bad_ones_fail = Processor::global(&app, &global).with_options(short).process_due().await.unwrap();
    tokio::time::timeout(Duration::from_secs(15), ran.notified()).await.expect("it is among all");
}

/// Every processor of a store is told of a trigger, and goes by it long before it would look by itself.
pub(crate) async fn all_processors_are_told_of_a_trigger(world: World) {
    let ran = Arc::new(tokio::sync::Notify::new());
    let (app, global) = app(&world, "work", hanging(&ran)).await;
    let other = Schema::build("other").table("things", |t| t).finish().unwrap();
    let other = app.store().register(Fragment::new(other).hook("work", hanging(&ran)), None).await.unwrap();
    let options = ProcessorOptions { poll_ms: 3_600_000, ..ProcessorOptions::default() };
    let run =
        |of: &Handle| tokio::spawn(Processor::global(of, &global).with_options(options).run(std::future::pending()));
    let running = [run(&app), run(&other)];
    for n in 0..6 {
        let of = if n % 2 == 0 { &other } else { &app };
        trigger_many(of, &format!("good{n}"), 1).await;
        tokio::time::timeout(Duration::from_secs(15), ran.notified()).await.expect("it is told");
    }
    running.into_iter().for_each(|one| one.abort());
}

/// Who runs what is due keeps to the number of hooks that may run at once, too.
pub(crate) async fn a_drain_runs_no_more_at_once_than_it_may(world: World) {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (count, seen) = (now.clone(), most.clone());
    let hook = Hook::new(move |_, _| {
        let count = count.clone();
        seen.fetch_max(count.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        async move {
            tokio::task::yield_now().await;
            count.fetch_sub(1, Ordering::SeqCst);
            Ok(())
        }
    });
    let (app, global) = app(&world, "work", hook).await;
    for n in 0..6 {
        trigger_many(&app, &format!("t{n}"), 5).await;
    }
    let options = ProcessorOptions { at_once: 3, shards_per_round: 2, ..ProcessorOptions::default() };
    let done = Processor::global(&app, &global).with_options(options).drain().await.unwrap();
    assert_eq!(done, Processed { completed: 30, ..Processed::default() });
    assert!((1..=3).contains(&most.load(Ordering::SeqCst)), "{most:?}");
}

/// A trigger may name a URL of its tenant's, by the same rules as the hook's own (I-62).
#[tokio::test(flavor = "multi_thread")]
async fn triggers_name_where_they_are_delivered() {
    use isles_fragments::hooks::http::{Addresses, Delivery};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let world = World::memory().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://127.0.0.1:{}/of-acme", listener.local_addr().unwrap().port());
    let received = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut request = Vec::new();
        while !String::from_utf8_lossy(&request).ends_with("{\"n\":1}") {
            let mut part = [0; 4096];
            let read = stream.read(&mut part).await.unwrap();
            request.extend_from_slice(&part[..read]);
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
        String::from_utf8(request).unwrap()
    });
    let delivery = |addresses| {
        let roots = tokio_rustls::rustls::RootCertStore::empty();
        Delivery::new("https://hooks.example.org/", b"secret", roots, addresses).unwrap()
    };
    let fragment = fragment()
        .hook("test", Hook::http(delivery(Addresses::LoopbackForTests)))
        .hook("real", Hook::http(delivery(Addresses::Public)))
        .hook("own", writer());
    let (app, _) = world.app_with(Some(Strategy::Row), fragment).await;
    let to = async |hook: &'static str, url: &str| {
        let trigger = Trigger::new(hook, &json!({ "n": 1 })).to(url);
        within("acme", async { app.handler_tx().mutate(move |m, _| m.trigger_with(trigger.clone())).execute().await })
            .await
    };
    for bad in
        [url.as_str(), "https://10.0.0.1/", "https://[::ffff:10.0.0.1]/", "ftp://example.org", "https://u@example.org/"]
    {
        let error = to("real", bad).await.unwrap_err();
        assert_eq!((error.refusal(), error.http().0), (Some(Code::AddressRefused), 403), "{bad}");
    }
    assert_eq!(to("own", "https://example.org/").await.unwrap_err().refusal(), Some(Code::InvalidRequest));
    to("test", &url).await.unwrap();
    let done = Processor::of_shard(&app, shard("acme")).drain().await.unwrap();
    assert_eq!(done, Processed { completed: 1, ..Processed::default() });
    assert!(received.await.unwrap().starts_with("POST /of-acme "));
}

/// I-33: a unit of work that fails, or is killed before its commit, triggers nothing.
pub(crate) async fn what_is_not_committed_triggers_nothing(world: World) {
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = runs.clone();
    let hook = Hook::new(move |_, _| {
        counted.fetch_add(1, Ordering::Relaxed);
        async { Ok(()) }
    });
    let (app, _) = app(&world, "work", hook).await;
    let processor = Processor::of_shard(&app, shard("a"));
    within("a", async {
        add_user(&app, "u", user("x")).await.unwrap();
        let tx = app.handler_tx().mutate(|m, _| {
            m.trigger("work", &json!({}))?;
            m.create_with_id("users", "u", user("again"))
        });
        assert!(tx.execute().await.is_err());
        assert_eq!(processor.drain().await.unwrap(), Processed::default());
        for polls in 1..30 {
            let tx = app.handler_tx().mutate(|m, _| {
                m.create("users", user("y"))?;
                m.trigger("work", &json!({}))
            });
            let _killed = killed_after(polls, tx.execute()).await;
        }
        processor.drain().await.unwrap();
        let rows = find(&app, Find::of("users")).await.unwrap().len();
        assert_eq!(runs.load(Ordering::Relaxed), rows - 1, "one for each row that was committed with it");
        assert!(rows > 1 || world.kind == Kind::Memory);
    })
    .await;
}

/// I-62: a delivery over TLS to a receiver that checks the signature; redirects, errors, long answers and slow ones fail.
#[tokio::test(flavor = "multi_thread")]
async fn deliveries_are_signed_and_bounded() {
    use isles_fragments::hooks::http::{Addresses, Delivery, signature};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio_rustls::rustls::{RootCertStore, ServerConfig, pki_types::PrivateKeyDer};
    let certified = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
    let key = PrivateKeyDer::try_from(certified.signing_key.serialize_der()).unwrap();
    let config =
        ServerConfig::builder().with_no_client_auth().with_single_cert(vec![certified.cert.der().clone()], key);
    let acceptor = tokio_rustls::TlsAcceptor::from(Arc::new(config.unwrap()));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let answers = Arc::new(Mutex::new(vec![
        "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok".to_string(),
        "HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\ncontent-length: 0\r\n\r\n".into(),
        "HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n".into(),
        format!("HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n{}", "x".repeat(100_000)),
    ]));
    let received = Arc::new(Mutex::new(Vec::new()));
    let (told, saying) = (received.clone(), answers.clone());
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = acceptor.accept(stream).await else { continue };
            let mut request = Vec::new();
            while !String::from_utf8_lossy(&request).ends_with("{\"depth\":1}") {
                let mut part = [0; 4096];
                let read = stream.read(&mut part).await.unwrap();
                request.extend_from_slice(&part[..read]);
            }
            told.lock().unwrap().push(String::from_utf8(request).unwrap());
            let answer = saying.lock().unwrap().remove(0);
            let _written = stream.write_all(answer.as_bytes()).await;
            let _closed = stream.shutdown().await;
        }
    });
    let mut roots = RootCertStore::empty();
    roots.add(certified.cert.der().clone()).unwrap();
    let url = format!("https://localhost:{port}/hook");
    let to = |roots, addresses| Delivery::new(&url, b"secret", roots, addresses).unwrap();
    let world = World::memory().await;
    let fragment = fragment()
        .hook("send", Hook::http(to(roots.clone(), Addresses::LoopbackForTests)).attempts(1, 1))
        .hook("public only", Hook::http(to(roots, Addresses::Public)).attempts(1, 1))
        .hook("stranger", Hook::http(to(RootCertStore::empty(), Addresses::LoopbackForTests)).attempts(1, 1));
    let (app, _) = world.app_with(Some(Strategy::Row), fragment).await;
    let processor = Processor::of_shard(&app, shard("a"));
    let mut errors = Vec::new();
    for hook in ["send", "send", "send", "send", "public only", "stranger"] {
        within("a", trigger(&app, hook)).await.unwrap();
        let done = processor.drain().await.unwrap();
        if done.completed == 0 {
            let dead = processor.dead(&shard("a"), 100).await.unwrap();
            errors.push(dead.last().unwrap().error.clone());
        }
    }
    assert_eq!(errors.len(), 5, "{errors:?}");
    for (error, part) in errors.iter().zip(["redirects", "500", "longer", "not public", "TLS"]) {
        assert!(error.contains(part), "{error} is not about {part}");
    }
    let requests = received.lock().unwrap().clone();
    assert_eq!(requests.len(), 4, "the others were not sent");
    let header = |name: &str| {
        let line = requests[0].lines().find(|line| line.starts_with(name)).expect(name);
        line.split_once(": ").unwrap().1.to_string()
    };
    let (signed, id) = (header("isles-signature"), header("isles-hook-id"));
    let at: u64 = signed.trim_start_matches("t=").split(',').next().unwrap().parse().unwrap();
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA256, b"secret");
    assert_eq!(signed, signature(&key, at, &id, "{\"depth\":1}"));
    assert!(!requests[0].contains("secret"));
}
