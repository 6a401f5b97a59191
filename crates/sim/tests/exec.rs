//! The executor: order, time, kills and clocks (I-66, I-67, I-68).
#![allow(clippy::unwrap_used)]

use futures::channel::{mpsc, oneshot};
use futures::future::{self, BoxFuture, Either};
use futures::{FutureExt, SinkExt, StreamExt};
use isles_engine::env::Env;
use isles_sim::exec::{Options, Sim, SimEnv, Why};
use isles_sim::trace::{Keep, Sometimes};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);

/// Steps that take no time, for tests that compare times exactly.
fn exact(seed: u64) -> Sim {
    Sim::with(seed, Options { step_micros_max: 0, ..Options::default() })
}

/// A list that tasks append to.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<&'static str>>>);

impl Log {
    fn push(&self, word: &'static str) {
        self.0.lock().unwrap().push(word);
    }

    fn words(&self) -> Vec<&'static str> {
        self.0.lock().unwrap().clone()
    }
}

/// Runs a blocking job and waits for its answer.
async fn blocking<T: Send + 'static>(env: &SimEnv, job: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (send, receive) = oneshot::channel();
    env.blocking(Box::new(move || drop(send.send(job()))));
    receive.await.ok()
}

/// Lets other steps run.
async fn pass() {
    let mut passed = false;
    future::poll_fn(|context| {
        if std::mem::replace(&mut passed, true) {
            return Poll::Ready(());
        }
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await
}

#[test]
fn time_jumps_to_timers_in_due_order() {
    let sim = exact(1);
    let env = sim.env();
    let log = Log::default();
    for (name, minutes) in [("third", 30), ("first", 10), ("second", 20)] {
        let (sleep, log) = (env.sleep(MINUTE * minutes), log.clone());
        env.spawn(sleep.map(move |()| log.push(name)).boxed());
    }
    sim.run(env.sleep(MINUTE * 59)).unwrap();
    assert_eq!(log.words(), ["first", "second", "third"]);
    assert_eq!(env.elapsed(), MINUTE * 59);
}

#[test]
fn a_dropped_sleep_leaves_no_timer() {
    let sim = exact(1);
    let env = sim.env();
    let root = async {
        drop(future::select(env.sleep(MINUTE * 30), env.sleep(MINUTE)).await);
        future::pending::<()>().await
    };
    let stuck = sim.run(root).unwrap_err();
    assert_eq!((stuck.why, stuck.at), (Why::NothingReady, MINUTE));
}

#[test]
fn every_order_of_tasks_and_jobs_is_reached() {
    let mut orders = BTreeSet::new();
    for seed in 0..200 {
        let sim = Sim::new(seed);
        let (env, log) = (sim.env(), Log::default());
        let (a, b, job) = (log.clone(), log.clone(), log.clone());
        env.spawn(async move { a.push("a") }.boxed());
        env.spawn(async move { b.push("b") }.boxed());
        env.blocking(Box::new(move || job.push("job")));
        sim.run(env.sleep(MINUTE)).unwrap();
        assert_eq!(log.words().len(), 3);
        orders.insert(log.words());
    }
    assert_eq!(orders.len(), 6);
}

#[test]
fn polls_of_two_tasks_interleave_in_every_way() {
    let mut orders = BTreeSet::new();
    for seed in 0..500 {
        let sim = Sim::new(seed);
        let (env, log) = (sim.env(), Log::default());
        for words in [["a1", "a2", "a3"], ["b1", "b2", "b3"]] {
            let log = log.clone();
            let task = async move {
                for word in words {
                    log.push(word);
                    pass().await;
                }
            };
            env.spawn(task.boxed());
        }
        sim.run(env.sleep(MINUTE)).unwrap();
        orders.insert(log.words());
    }
    assert_eq!(orders.len(), 20, "6 over 3 ways to merge two lists of 3");
}

#[test]
fn a_timeout_can_overtake_a_task_that_is_ready() {
    let mut winners = BTreeSet::new();
    for seed in 0..100 {
        let sim = Sim::new(seed);
        let env = sim.env();
        let busy = async {
            for _ in 0..10 {
                pass().await;
            }
        };
        let race = future::select(env.sleep(Duration::from_micros(100)), Box::pin(busy));
        let winner = sim.run(async { matches!(race.await, Either::Left(_)) }).unwrap();
        winners.insert(winner);
    }
    assert_eq!(winners.len(), 2, "both the timeout and the task must win in some histories");
}

#[test]
fn a_wait_that_nothing_ends_is_reported_with_the_tasks() {
    let sim = Sim::new(0xbeef);
    let shard = sim.node("shard-1");
    let (keep, lost) = oneshot::channel::<()>();
    shard.spawn_named("wait for the lock", lost.map(drop).boxed());
    let stuck = sim.run(future::pending::<()>()).unwrap_err();
    drop(keep);
    assert_eq!(stuck.why, Why::NothingReady);
    let text = stuck.to_string();
    for part in ["nothing is ready", "shard-1/1 wait for the lock", "root", "replay: cargo xtask sim 0xbeef"] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
}

#[test]
fn a_wait_past_the_deadline_fails_though_others_are_busy() {
    let sim = Sim::new(3);
    let env = sim.env();
    let heartbeat = sim.node("heartbeat");
    let beat = heartbeat.clone();
    heartbeat.spawn(
        async move {
            loop {
                beat.sleep(Duration::from_secs(1)).await;
            }
        }
        .boxed(),
    );
    let stuck = sim.run_within(MINUTE, future::pending::<()>()).unwrap_err();
    assert_eq!(stuck.why, Why::TimeLimit);
    assert!(stuck.at > MINUTE && stuck.at < MINUTE + Duration::from_secs(2), "{:?}", stuck.at);
    sim.run_within(MINUTE, env.sleep(MINUTE / 2)).expect("the limit counts from the beginning of the run");
}

#[test]
fn a_loop_that_never_waits_reaches_the_limit_of_steps() {
    let sim = Sim::with(3, Options { steps_max: 1000, step_micros_max: 0, ..Options::default() });
    let spin = async {
        loop {
            pass().await;
        }
    };
    assert_eq!(sim.run::<()>(spin).unwrap_err().why, Why::StepLimit);
}

#[test]
fn a_kill_drops_tasks_timers_and_jobs_of_that_node_only() {
    let sim = exact(5);
    let (victim, other) = (sim.node("victim"), sim.node("other"));
    let log = Log::default();
    for (env, word) in [(&victim, "victim"), (&other, "other")] {
        let (sleep, after_sleep, job) = (env.sleep(MINUTE), log.clone(), log.clone());
        env.spawn(sleep.map(move |()| after_sleep.push(word)).boxed());
        env.blocking(Box::new(move || job.push(word)));
    }
    sim.kill("victim");
    sim.run(sim.env().sleep(MINUTE * 2)).unwrap();
    assert_eq!(log.words(), ["other", "other"]);
    let seen = sim.sometimes();
    assert_eq!((seen.count("kill"), seen.count("task lost in a kill"), seen.count("job lost in a kill")), (1, 1, 1));
}

#[test]
fn a_kill_closes_channels_and_a_killed_environment_stays_dead() {
    let sim = exact(6);
    let old = sim.node("shard");
    let (mut requests, mut inbox) = mpsc::channel::<oneshot::Sender<u32>>(1);
    old.spawn(
        async move {
            // The first request is answered, the second one waits for ever.
            let first = inbox.next().await.unwrap();
            first.send(1).unwrap();
            let _second = inbox.next().await.unwrap();
            future::pending::<()>().await
        }
        .boxed(),
    );
    let root = async {
        let (send, answer) = oneshot::channel();
        requests.send(send).await.unwrap();
        assert_eq!(answer.await, Ok(1));
        let (send, answer) = oneshot::channel();
        requests.send(send).await.unwrap();
        sim.env().sleep(MINUTE).await;
        sim.kill("shard");
        assert!(answer.await.is_err(), "the answer's sender died with the node");
        assert!(requests.is_closed());

        let log = Log::default();
        let (spawned, job) = (log.clone(), log.clone());
        old.spawn(async move { spawned.push("task of the dead") }.boxed());
        old.blocking(Box::new(move || job.push("job of the dead")));
        let nap = future::select(old.sleep(MINUTE), sim.env().sleep(MINUTE * 2)).await;
        assert!(matches!(nap, Either::Right(_)), "a dead node's timer fired");
        assert_eq!(log.words(), [""; 0]);
        assert!(!sim.is_alive("shard"));
    };
    sim.run(root).unwrap();

    let fresh = sim.node("shard");
    assert!(fresh.is_alive() && !old.is_alive());
    assert_eq!((fresh.name(), fresh.elapsed()), ("shard#2".to_owned(), Duration::ZERO));
    assert_eq!(sim.run(blocking(&fresh, || 7)).unwrap(), Some(7));
    sim.kill("shard");
    sim.kill("shard");
    assert_eq!(sim.sometimes().count("kill"), 2, "the second kill of a dead node is nothing");
}

#[test]
fn each_node_and_each_life_draws_its_own_randomness() {
    let sim = Sim::new(7);
    let mut seen = BTreeSet::new();
    for name in ["a", "b", "a", "b"] {
        let env = sim.node(name);
        assert!(seen.insert(env.random()) && seen.insert(env.random()));
        sim.kill(name);
    }
    let again = Sim::new(7).node("a");
    assert!(seen.contains(&again.random()), "the first life of the same seed");
}

#[test]
fn wall_clocks_are_skewed_and_jump_while_elapsed_time_does_not() {
    let sim = exact(8);
    let (fast, right) = (sim.node("fast"), sim.node("right"));
    sim.set_skew("fast", 5_000_000);
    assert_eq!(fast.now_micros(), right.now_micros() + 5_000_000);
    sim.run(sim.env().sleep(MINUTE)).unwrap();
    let before = fast.now_micros();
    sim.set_skew("fast", -5_000_000);
    assert_eq!(fast.now_micros(), before - 10_000_000, "the clock jumps back");
    assert_eq!((fast.elapsed(), right.elapsed()), (MINUTE, MINUTE));
    sim.kill("fast");
    assert_eq!(sim.node("fast").now_micros(), right.now_micros() - 5_000_000, "a restart does not mend a clock");
}

#[test]
fn a_slow_disk_delays_jobs_and_a_kill_still_takes_them() {
    let mut took = BTreeSet::new();
    for seed in 0..20 {
        let sim = exact(seed);
        let env = sim.node("slow");
        sim.set_blocking_delay("slow", Duration::from_secs(1));
        assert_eq!(sim.run(blocking(&env, || 1)).unwrap(), Some(1));
        assert!(env.elapsed() <= Duration::from_secs(1));
        took.insert(env.elapsed());
        let answer = blocking(&env, || 2);
        let kill = async { sim.kill("slow") };
        assert_eq!(sim.run(future::join(answer, kill)).unwrap().0, None);
    }
    assert!(took.len() > 10, "{took:?}");
}

#[test]
fn a_kill_leaves_no_timer_of_the_node() {
    let sim = exact(1);
    let env = sim.node("slow");
    sim.set_blocking_delay("slow", MINUTE);
    let mut nap = env.sleep(MINUTE);
    let wait_then_kill = async {
        (0..10).for_each(|_| env.blocking(Box::new(|| ())));
        assert!(futures::poll!(&mut nap).is_pending());
        sim.kill("slow");
        future::pending::<()>().await
    };
    let stuck = sim.run(wait_then_kill).unwrap_err();
    assert_eq!((stuck.why, stuck.at), (Why::NothingReady, Duration::ZERO));
    assert!(sim.trace_lines().iter().any(|line| line.contains("kill: 0 tasks, 10 jobs, 11 timers")));
}

#[test]
fn the_order_of_wakes_does_not_reach_the_trace() {
    let run = |reverse: fn(&mut Vec<Waker>)| {
        let sim = Sim::new(9);
        let env = sim.env();
        let parked: Arc<Mutex<Vec<Waker>>> = Arc::default();
        for _ in 0..5 {
            let (parked, mut woken) = (parked.clone(), false);
            let task = future::poll_fn(move |context| {
                if std::mem::replace(&mut woken, true) {
                    return Poll::Ready(());
                }
                parked.lock().unwrap().push(context.waker().clone());
                Poll::Pending
            });
            env.spawn(task.boxed());
        }
        sim.run(env.sleep(MINUTE)).unwrap();
        let mut wakers = std::mem::take(&mut *parked.lock().unwrap());
        assert_eq!(wakers.len(), 5);
        reverse(&mut wakers);
        wakers.into_iter().for_each(Waker::wake);
        sim.run(env.sleep(MINUTE)).unwrap();
        sim.trace_hash()
    };
    assert_eq!(run(|_| ()), run(|wakers| wakers.reverse()));
}

#[test]
fn tasks_do_not_outlive_the_simulation() {
    let held = Arc::new(());
    let sim = Sim::new(1);
    let env = sim.node("n");
    let (task, job, inner) = (held.clone(), held.clone(), env.clone());
    env.spawn(
        async move {
            future::pending::<()>().await;
            drop((task, inner))
        }
        .boxed(),
    );
    sim.run(env.sleep(MINUTE)).unwrap();
    env.blocking(Box::new(move || drop(job)));
    assert_eq!(Arc::strong_count(&held), 3);
    drop(sim);
    assert_eq!(Arc::strong_count(&held), 1);
}

/// A little cluster: clients send to servers over channels, servers write with blocking jobs and answer after a
/// timer, a nemesis kills and restarts servers and turns their clocks.
struct Cluster<'a> {
    sim: &'a Sim,
    servers: Mutex<Vec<mpsc::Sender<Request>>>,
}

/// A number, and where the answer goes.
type Request = (u64, oneshot::Sender<u64>);

const SERVERS: [&str; 3] = ["server-0", "server-1", "server-2"];

impl Cluster<'_> {
    fn start_server(&self, name: &'static str) -> mpsc::Sender<Request> {
        let env = self.sim.node(name);
        let (send, inbox) = mpsc::channel(4);
        env.clone().spawn_named("serve", serve(env, inbox).boxed());
        send
    }

    async fn client(&self, number: u64) {
        let env = self.sim.node(&format!("client-{number}"));
        for round in 0..20 {
            let at = env.random() as usize % SERVERS.len();
            let mut server = self.servers.lock().unwrap()[at].clone();
            let (send, answer) = oneshot::channel();
            let _ = server.send((number * 1000 + round, send)).await;
            match future::select(answer, env.sleep(Duration::from_millis(20))).await {
                Either::Left((Ok(stamp), _)) => env.trace(format_args!("{round} answered {stamp}")),
                Either::Left((Err(_), _)) => env.saw("request lost in a kill"),
                Either::Right(_) => env.saw("request timed out"),
            }
        }
    }

    async fn nemesis(&self) {
        let mut rng = self.sim.rng("nemesis");
        for _ in 0..10 {
            self.sim.env().sleep(Duration::from_millis(rng.range(1..20))).await;
            let at = rng.below(3) as usize;
            self.sim.set_skew(SERVERS[at], rng.below(1000) as i64 - 500);
            self.sim.kill(SERVERS[at]);
            let started = self.start_server(SERVERS[at]);
            self.servers.lock().unwrap()[at] = started;
        }
    }
}

async fn serve(env: Arc<SimEnv>, mut inbox: mpsc::Receiver<Request>) {
    while let Some((request, answer)) = inbox.next().await {
        let worker = env.clone();
        let work = async move {
            blocking(&worker, move || request * 2).await;
            worker.sleep(Duration::from_micros(worker.random() % 25_000)).await;
            let _ = answer.send(worker.now_micros() + request);
        };
        env.spawn(work.boxed());
    }
}

/// The trace of a cluster history: its hash, its whole text, and what it has seen.
fn cluster_history(seed: u64) -> (u128, Vec<String>, Sometimes) {
    let sim = Sim::with(seed, Options { keep: Keep::Whole, ..Options::default() });
    let cluster = Cluster { sim: &sim, servers: Mutex::default() };
    *cluster.servers.lock().unwrap() = SERVERS.map(|name| cluster.start_server(name)).into();
    SERVERS.iter().for_each(|name| sim.set_blocking_delay(name, Duration::from_millis(5)));
    let clients = future::join_all((0..4).map(|number| cluster.client(number)));
    sim.run(future::join(clients, cluster.nemesis())).unwrap();
    (sim.trace_hash(), sim.trace_lines(), sim.sometimes())
}

#[test]
fn same_seed_gives_a_byte_identical_trace() {
    let mut seen = Sometimes::new();
    let faults = ["task lost in a kill", "request lost in a kill", "request timed out", "clock skew", "restart"];
    seen.expect(&faults);
    seen.expect(&["job lost in a kill", "kill", "timer fired", "blocking job"]);
    let mut hashes = BTreeSet::new();
    for seed in 0..20 {
        let (hash, lines, sometimes) = cluster_history(seed);
        let (hash_again, lines_again, sometimes_again) = cluster_history(seed);
        let differing = lines.iter().zip(&lines_again).position(|(one, other)| one != other);
        assert_eq!(differing, None, "seed {seed:#x}");
        assert_eq!((hash, lines.len(), &sometimes), (hash_again, lines_again.len(), &sometimes_again));
        assert!(lines.len() > 300, "{} lines", lines.len());
        hashes.insert(hash);
        seen.merge(&sometimes);
    }
    assert_eq!(hashes.len(), 20, "other seeds give other traces");
    seen.assert_all_at_least(10);
}

/// The product's futures are `Send`, and so are the environments that they hold.
#[test]
fn environments_can_cross_threads() {
    fn assert_send<T: Send + Sync + 'static>(_: &T) {}
    let sim = Sim::new(1);
    assert_send(&sim.env());
    let sleep: BoxFuture<'static, ()> = sim.env().sleep(MINUTE);
    sim.run(sleep).unwrap();
}
