//! Runs ordinary async code on one thread, in virtual time, in an order drawn from a seed.
//!
//! The product asks its [`Env`] for time, timers, tasks and blocking work. [`SimEnv`] answers from a [`Sim`], which
//! owns all of them and takes one step at a time:
//!
//! ```text
//! some step is ready     → time moves a little, due timers fire, one ready step runs
//! no step is ready       → time jumps to the next timer
//! and there is no timer  → [`Stuck`]
//! ```
//!
//! A step is one poll of a task or one whole blocking job. All ready steps are equally likely, so every interleaving
//! of polls and jobs is reached by some seed. Time moves between steps too, by a random amount: otherwise a timeout
//! could never overtake a task that is ready, as it does on a busy machine.
//!
//! Tasks, timers and jobs belong to a node. [`Sim::kill`] drops those of one node at once, as a crash does (F1);
//! [`Sim::node`] then starts it again with a fresh environment, and the old one stays dead.
//!
//! Invariants (docs/invariants.md):
//!   * I-66  Virtual time past the deadline with the root pending is a failure, and so is a wait that nothing ends.
//!   * I-67  The same seed and the same code give a byte-identical trace.
//!
//! What I-67 needs of this file: the ready steps are sorted, because some channels wake their waiters in an order of
//! their own (tokio's `watch` draws it from a generator of the thread). What it needs of the code under test:
//! `select!` must be biased, for the same reason, and nobody may iterate over a `HashMap`.
//!
//! No lock is held while foreign code runs (polls, jobs, wakers, destructors): all of it may call back into the
//! environment.

use crate::rng::Rng;
use crate::trace::{Keep, Sometimes, Trace};
use futures::future::BoxFuture;
use isles_engine::env::Env;
use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

/// Steps of one run. A history of the workloads takes some ten thousand; only a loop that never waits takes more
/// than this, and it is found within seconds.
pub const STEPS_MAX: u64 = 2_000_000;

/// Virtual time of one run. Every wait of the product has a deadline of minutes at most, so that after an hour
/// somebody waits without one (I-66).
pub const TIME_MAX: Duration = Duration::from_secs(3600);

/// What a step takes at most: about a poll with some work in it. With more, timeouts of milliseconds would fire in
/// most histories and hide what comes after them.
pub const STEP_MICROS_MAX: u64 = 20;

/// Lines of the trace that a failure prints.
pub const LINES_KEPT: usize = 40;

/// Pending tasks that a failure names.
const PENDING_NAMED: usize = 20;

/// The wall clock at the beginning of every history: 2026-01-01. Any fixed moment would do, except 0, which hides
/// mistakes of sign.
const WALL_BEGAN_MICROS: u64 = 1_767_225_600_000_000;

/// The node of the test itself: the root runs here, and it cannot be killed.
const HARNESS: &str = "harness";

/// The limits of a simulation, and how much of its trace is kept.
#[derive(Clone, Debug)]
pub struct Options {
    pub steps_max: u64,
    pub time_max: Duration,
    pub step_micros_max: u64,
    pub keep: Keep,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            steps_max: STEPS_MAX,
            time_max: TIME_MAX,
            step_micros_max: STEP_MICROS_MAX,
            keep: Keep::Last(LINES_KEPT),
        }
    }
}

/// One simulated history: its nodes, tasks, clocks, trace and counters.
///
/// It alone keeps the world alive; environments hold weak references. So a task may own its environment without
/// keeping itself alive after the history.
pub struct Sim {
    world: Arc<World>,
}

impl Sim {
    pub fn new(seed: u64) -> Sim {
        Sim::with(seed, Options::default())
    }

    pub fn with(seed: u64, options: Options) -> Sim {
        let state = State::new(seed, &options);
        Sim { world: Arc::new(World { seed, options, state: Mutex::new(state) }) }
    }

    pub fn seed(&self) -> u64 {
        self.world.seed
    }

    /// A stream of randomness for a part of the harness, independent of all others.
    pub fn rng(&self, label: &str) -> Rng {
        Rng::new(self.world.seed).fork("harness").fork(label)
    }

    /// The environment of the test itself.
    pub fn env(&self) -> Arc<SimEnv> {
        self.node(HARNESS)
    }

    /// The environment of a node. It is started if it is new or was killed.
    pub fn node(&self, name: &str) -> Arc<SimEnv> {
        let home = self.world.state().home(self.world.seed, name);
        Arc::new(SimEnv { world: Arc::downgrade(&self.world), home })
    }

    /// Whether a node was started and not killed since.
    pub fn is_alive(&self, name: &str) -> bool {
        self.world.state().nodes.get(name).is_some_and(|home| home.is_alive())
    }

    /// Crashes a node: its tasks, timers and queued jobs are gone, and what they held is dropped. Other nodes see
    /// their channels to it close.
    ///
    /// Destructors run, which a real crash would not allow. So cut the power of the node's disk first, or closing
    /// files will write what a crash loses.
    pub fn kill(&self, name: &str) {
        assert!(name != HARNESS, "the test itself cannot be killed");
        let lost = self.world.state().kill(name);
        drop(lost);
    }

    /// Sets how far a node's wall clock is ahead of true time (F8). Called again, the clock jumps, backwards too.
    pub fn set_skew(&self, name: &str, skew_micros: i64) {
        self.world.state().set_skew(name, skew_micros);
    }

    /// Makes the blocking jobs of a node begin late, each by a random delay up to `delay_max`: a slow disk (F7).
    pub fn set_blocking_delay(&self, name: &str, delay_max: Duration) {
        self.world.state().set_blocking_delay(name, delay_max);
    }

    /// Runs `root` to its end, and everything else as far as it gets meanwhile.
    pub fn run<T>(&self, root: impl Future<Output = T>) -> Result<T, Stuck> {
        self.run_within(self.world.options.time_max, root)
    }

    /// Runs `root` to its end, which it must reach within `limit` of virtual time.
    pub fn run_within<T>(&self, limit: Duration, root: impl Future<Output = T>) -> Result<T, Stuck> {
        let mut root = pin!(root);
        let id = self.add_root();
        let deadline = self.elapsed().saturating_add(limit);
        for _ in 0..self.world.options.steps_max {
            match self.world.next_step(deadline) {
                Err(why) => return Err(self.world.stuck(why)),
                Ok((next, waker)) if next == id => {
                    if let Poll::Ready(value) = root.as_mut().poll(&mut Context::from_waker(&waker)) {
                        self.world.finish(id);
                        return Ok(value);
                    }
                }
                Ok((next, waker)) => self.world.step(next, &waker),
            }
        }
        Err(self.world.stuck(Why::StepLimit))
    }

    fn add_root(&self) -> WorkId {
        let harness = self.env();
        self.world.state().add(&self.world, &harness.home, "root", Body::Root)
    }

    /// True time since the history began.
    pub fn elapsed(&self) -> Duration {
        self.world.state().now
    }

    /// Adds a line to the trace.
    pub fn trace(&self, text: impl Display) {
        let text = text.to_string();
        self.world.state().note(&HARNESS, format_args!("{text}"));
    }

    /// The hash of the trace so far (I-67).
    pub fn trace_hash(&self) -> u128 {
        self.world.state().trace.hash()
    }

    /// The lines of the trace that are kept.
    pub fn trace_lines(&self) -> Vec<String> {
        self.world.state().trace.lines().map(str::to_owned).collect()
    }

    /// Counts an event of this history (I-68).
    pub fn saw(&self, event: &str) {
        self.world.state().sometimes.saw(event);
    }

    /// What this history has counted so far.
    pub fn sometimes(&self) -> Sometimes {
        self.world.state().sometimes.clone()
    }
}

impl Drop for Sim {
    /// A failed assertion in a task or in the test says what failed; this says how to see it again.
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.world.replay_hint(&self.trace_lines()));
        }
    }
}

/// The environment of one node, from its start to its crash. Once it is dead it does nothing any more.
pub struct SimEnv {
    world: Weak<World>,
    home: Arc<Home>,
}

impl SimEnv {
    /// The name of the node, with the number of its start from the second on: `shard-1#2`.
    pub fn name(&self) -> String {
        self.home.to_string()
    }

    pub fn is_alive(&self) -> bool {
        self.home.is_alive()
    }

    /// Adds a line to the trace.
    pub fn trace(&self, text: impl Display) {
        let text = text.to_string();
        self.with(|state, home| state.note(home, format_args!("{text}")));
    }

    /// Counts an event of this history (I-68).
    pub fn saw(&self, event: &str) {
        self.with(|state, _| state.sometimes.saw(event));
    }

    /// Runs a task in the background, under a name that failures and the trace show.
    pub fn spawn_named(&self, label: &'static str, task: BoxFuture<'static, ()>) {
        self.add(label, Body::Task(Some(task)));
    }

    fn add(&self, label: &'static str, body: Body) {
        if let Some(world) = self.world.upgrade().filter(|_| self.is_alive()) {
            world.state().add(&world, &self.home, label, body);
        }
    }

    /// What a dead or finished world would answer is never seen by live code, so any value will do.
    fn with<T: Default>(&self, read: impl FnOnce(&mut State, &Home) -> T) -> T {
        self.world.upgrade().map(|world| read(&mut world.state(), &self.home)).unwrap_or_default()
    }
}

impl Env for SimEnv {
    fn now_micros(&self) -> u64 {
        let true_micros = WALL_BEGAN_MICROS + self.with(|state, _| state.now).as_micros() as u64;
        true_micros.saturating_add_signed(self.home.skew_micros.load(Relaxed))
    }

    fn elapsed(&self) -> Duration {
        self.with(|state, home| state.now.saturating_sub(home.began))
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        let due = self.with(|state, _| state.now).saturating_add(duration);
        Box::pin(Sleep { world: self.world.clone(), home: self.home.clone(), due, timer: None })
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.spawn_named("task", task);
    }

    fn blocking(&self, job: Box<dyn FnOnce() + Send>) {
        self.add("job", Body::Job(job));
    }

    fn random(&self) -> u64 {
        lock(&self.home.rng).bits()
    }
}

/// One life of a node.
struct Home {
    name: String,
    /// 1 for the first start.
    life: u64,
    began: Duration,
    alive: AtomicBool,
    /// How far the wall clock is ahead of true time.
    skew_micros: AtomicI64,
    /// What [`Env::random`] draws from.
    rng: Mutex<Rng>,
    /// By how much blocking jobs begin late at most.
    blocking_delay: Mutex<Duration>,
}

impl Home {
    fn new(seed: u64, name: &str, life: u64, began: Duration) -> Home {
        Home {
            name: name.to_owned(),
            life,
            began,
            alive: AtomicBool::new(true),
            skew_micros: AtomicI64::new(0),
            rng: Mutex::new(Rng::new(seed).fork("node").fork(name).fork(&life.to_string())),
            blocking_delay: Mutex::new(Duration::ZERO),
        }
    }

    /// The next life. The machine's clock and disk are what they were; memory and randomness are new.
    fn reborn(&self, seed: u64, began: Duration) -> Home {
        let next = Home::new(seed, &self.name, self.life + 1, began);
        next.skew_micros.store(self.skew_micros.load(Relaxed), Relaxed);
        *lock(&next.blocking_delay) = *lock(&self.blocking_delay);
        next
    }

    fn is_alive(&self) -> bool {
        self.alive.load(Relaxed)
    }
}

impl Display for Home {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.life {
            1 => f.write_str(&self.name),
            life => write!(f, "{}#{life}", self.name),
        }
    }
}

/// Names a task or a job for the whole history.
type WorkId = u64;

/// A task or a job that is not finished.
struct Work {
    home: Arc<Home>,
    label: &'static str,
    body: Body,
    /// Whether it is in [`State::ready`].
    is_ready: bool,
    /// When a task was polled last.
    ran_at: Option<Duration>,
    waker: Waker,
}

enum Body {
    /// Lives on the stack of [`Sim::run`], so that it may borrow from the test.
    Root,
    /// `None` while it is being polled.
    Task(Option<BoxFuture<'static, ()>>),
    Job(Box<dyn FnOnce() + Send>),
}

/// Timers by due time, then by age.
type TimerKey = (Duration, u64);

struct Timer {
    home: Arc<Home>,
    waker: Waker,
}

/// Everything that the environments share.
struct World {
    seed: u64,
    options: Options,
    state: Mutex<State>,
}

struct State {
    /// True time since the history began.
    now: Duration,
    /// Draws the next step, what it takes, and delays.
    order: Rng,
    /// The latest life of each node.
    nodes: BTreeMap<String, Arc<Home>>,
    work: BTreeMap<WorkId, Work>,
    /// What can run now. Sorted: the order in which wakers were called must not matter.
    ready: Vec<WorkId>,
    timers: BTreeMap<TimerKey, Timer>,
    /// The last id given to a task, a job or a timer.
    last_id: u64,
    trace: Trace,
    sometimes: Sometimes,
}

impl State {
    fn new(seed: u64, options: &Options) -> State {
        State {
            now: Duration::ZERO,
            order: Rng::new(seed).fork("order"),
            nodes: BTreeMap::new(),
            work: BTreeMap::new(),
            ready: Vec::new(),
            timers: BTreeMap::new(),
            last_id: 0,
            trace: Trace::new(options.keep),
            sometimes: Sometimes::new(),
        }
    }

    fn new_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn note(&mut self, home: &dyn Display, text: fmt::Arguments<'_>) {
        self.trace.line(format_args!("{} {home}: {text}", Clock(self.now)));
    }

    fn home(&mut self, seed: u64, name: &str) -> Arc<Home> {
        let next = match self.nodes.get(name) {
            Some(home) if home.is_alive() => return home.clone(),
            Some(dead) => Arc::new(dead.reborn(seed, self.now)),
            None => Arc::new(Home::new(seed, name, 1, self.now)),
        };
        if next.life > 1 {
            self.sometimes.saw("restart");
        }
        self.note(&next, format_args!("start"));
        self.nodes.insert(name.to_owned(), next.clone());
        next
    }

    /// The latest life of a node that the test has started; a name that it never started is a mistake in it.
    fn started(&self, name: &str) -> Arc<Home> {
        self.nodes.get(name).cloned().unwrap_or_else(|| panic!("no node {name:?} was started"))
    }

    /// Takes all that belongs to a node, for the caller to drop without the lock, in the order of ids.
    fn kill(&mut self, name: &str) -> (Vec<Work>, Vec<Timer>) {
        let home = self.started(name);
        if !home.alive.swap(false, Relaxed) {
            return (Vec::new(), Vec::new());
        }
        let work: Vec<Work> = extract(&mut self.work, |work| Arc::ptr_eq(&work.home, &home));
        let timers: Vec<Timer> = extract(&mut self.timers, |timer| Arc::ptr_eq(&timer.home, &home));
        self.ready.retain(|id| self.work.contains_key(id));
        let jobs = work.iter().filter(|work| matches!(work.body, Body::Job(_))).count();
        let tasks = work.len() - jobs;
        self.note(&home, format_args!("kill: {tasks} tasks, {jobs} jobs, {} timers", timers.len()));
        self.sometimes.saw("kill");
        self.sometimes.add("task lost in a kill", tasks as u64);
        self.sometimes.add("job lost in a kill", jobs as u64);
        (work, timers)
    }

    fn set_skew(&mut self, name: &str, skew_micros: i64) {
        let home = self.started(name);
        home.skew_micros.store(skew_micros, Relaxed);
        self.note(&home, format_args!("skew {skew_micros} us"));
        self.sometimes.saw("clock skew");
    }

    fn set_blocking_delay(&mut self, name: &str, delay_max: Duration) {
        let home = self.started(name);
        *lock(&home.blocking_delay) = delay_max;
        self.note(&home, format_args!("blocking delay {} us", delay_max.as_micros()));
        self.sometimes.saw("slow disk");
    }

    /// Adds a task or a job. It is ready at once, except a job whose node has a slow disk.
    fn add(&mut self, world: &Arc<World>, home: &Arc<Home>, label: &'static str, body: Body) -> WorkId {
        let id = self.new_id();
        let delay = match body {
            Body::Job(_) => self.draw_blocking_delay(home),
            _ => Duration::ZERO,
        };
        let waker = Waker::from(Arc::new(WorkWaker { world: Arc::downgrade(world), id }));
        let timer = Timer { home: home.clone(), waker: waker.clone() };
        self.work.insert(id, Work { home: home.clone(), label, body, is_ready: false, ran_at: None, waker });
        if delay.is_zero() {
            self.make_ready(id);
        } else {
            self.timers.insert((self.now + delay, id), timer);
        }
        id
    }

    fn draw_blocking_delay(&mut self, home: &Home) -> Duration {
        match lock(&home.blocking_delay).as_micros() as u64 {
            0 => Duration::ZERO,
            micros_max => Duration::from_micros(self.order.below(micros_max + 1)),
        }
    }

    /// Puts a task or a job among the ready ones. One that is finished or killed stays away.
    fn make_ready(&mut self, id: WorkId) {
        let Some(work) = self.work.get_mut(&id).filter(|work| !work.is_ready) else { return };
        work.is_ready = true;
        let at = self.ready.partition_point(|&other| other < id);
        self.ready.insert(at, id);
    }

    /// Moves time on: a little if there is something to do, else to the next timer. Returns the timers now due.
    fn move_time(&mut self, deadline: Duration, step_micros_max: u64) -> Result<Vec<Timer>, Why> {
        self.now = match self.timers.first_key_value() {
            _ if !self.ready.is_empty() => self.now + Duration::from_micros(self.order.below(step_micros_max + 1)),
            Some((&(due, _), _)) => self.now.max(due),
            None => return Err(Why::NothingReady),
        };
        if self.now > deadline {
            return Err(Why::TimeLimit);
        }
        Ok(self.take_due())
    }

    fn take_due(&mut self) -> Vec<Timer> {
        let mut due = Vec::new();
        while let Some(entry) = self.timers.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let timer = entry.remove();
            self.note(&timer.home, format_args!("timer"));
            self.sometimes.saw("timer fired");
            due.push(timer);
        }
        due
    }

    /// Takes one of the ready steps. The waker comes along because a poll needs it after the lock is gone.
    fn take_ready(&mut self) -> Option<(WorkId, Waker)> {
        if self.ready.is_empty() {
            return None;
        }
        let id = self.ready.remove(self.order.below(self.ready.len() as u64) as usize);
        let now = self.now;
        let work = self.work.get_mut(&id)?;
        work.is_ready = false;
        work.ran_at = Some(now);
        self.trace.line(format_args!("{} {}/{id} {}", Clock(now), work.home, work.label));
        Some((id, work.waker.clone()))
    }

    /// The tasks that are not finished, and since when they wait.
    fn pending(&self) -> Vec<String> {
        let name = |(id, work): (&WorkId, &Work)| match work.ran_at {
            Some(ran_at) => format!("{}/{id} {}, ran at {}", work.home, work.label, Clock(ran_at)),
            None => format!("{}/{id} {}, never ran", work.home, work.label),
        };
        self.work.iter().map(name).collect()
    }
}

impl World {
    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Moves time on and draws what runs next. A timer whose task is gone makes nothing ready, hence the loop; each
    /// round without result takes at least one timer away.
    fn next_step(&self, deadline: Duration) -> Result<(WorkId, Waker), Why> {
        loop {
            let due = self.state().move_time(deadline, self.options.step_micros_max)?;
            due.into_iter().for_each(|timer| timer.waker.wake());
            if let Some(next) = self.state().take_ready() {
                return Ok(next);
            }
        }
    }

    /// Polls a task once, or runs a job to its end.
    fn step(&self, id: WorkId, waker: &Waker) {
        if let Some(mut task) = self.take_task(id) {
            let poll = task.as_mut().poll(&mut Context::from_waker(waker));
            self.put_back(id, task, poll);
        } else if let Some(Body::Job(job)) = self.finish(id) {
            self.state().sometimes.saw("blocking job");
            job();
        }
    }

    fn take_task(&self, id: WorkId) -> Option<BoxFuture<'static, ()>> {
        match &mut self.state().work.get_mut(&id)?.body {
            Body::Task(task) => task.take(),
            _ => None,
        }
    }

    /// Keeps a task for its next poll. If it is finished, or its node was killed during the poll, it is dropped, and
    /// only after the lock is gone.
    fn put_back(&self, id: WorkId, task: BoxFuture<'static, ()>, poll: Poll<()>) {
        if poll.is_ready() {
            drop(self.finish(id));
        } else if let Some(work) = self.state().work.get_mut(&id) {
            work.body = Body::Task(Some(task));
            return;
        }
        drop(task);
    }

    fn finish(&self, id: WorkId) -> Option<Body> {
        let mut state = self.state();
        state.ready.retain(|&ready| ready != id);
        state.work.remove(&id).map(|work| work.body)
    }

    fn stuck(&self, why: Why) -> Stuck {
        let state = self.state();
        let lines: Vec<String> = state.trace.lines().map(str::to_owned).collect();
        Stuck { why, at: state.now, pending: state.pending(), hint: self.replay_hint(&lines) }
    }

    fn replay_hint(&self, lines: &[String]) -> String {
        let last = &lines[lines.len().saturating_sub(LINES_KEPT)..];
        format!("last steps:\n  {}\nreplay: cargo xtask sim {:#x}", last.join("\n  "), self.seed)
    }
}

/// Makes a task or a job ready. It may outlive the history, in a channel that somebody keeps.
struct WorkWaker {
    world: Weak<World>,
    id: WorkId,
}

impl Wake for WorkWaker {
    fn wake(self: Arc<Self>) {
        if let Some(world) = self.world.upgrade() {
            world.state().make_ready(self.id);
        }
    }
}

struct Sleep {
    world: Weak<World>,
    home: Arc<Home>,
    due: Duration,
    /// The timer that will wake this, once it has been polled.
    timer: Option<TimerKey>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Some(world) = self.world.upgrade().filter(|_| self.home.is_alive()) else { return Poll::Pending };
        let mut state = world.state();
        if state.now >= self.due {
            return Poll::Ready(());
        }
        let key = self.timer.unwrap_or_else(|| (self.due, state.new_id()));
        self.timer = Some(key);
        let timer = Timer { home: self.home.clone(), waker: context.waker().clone() };
        let replaced = state.timers.insert(key, timer);
        drop(state);
        drop(replaced);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        let Some((world, key)) = self.world.upgrade().zip(self.timer) else { return };
        let timer = world.state().timers.remove(&key);
        drop(timer);
    }
}

/// Why a run ended before its root did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// All wait for each other, or for something that was lost.
    NothingReady,
    /// Time went on, but the root did not end (I-66).
    TimeLimit,
    /// Steps were taken, but the root did not end: somebody polls without waiting.
    StepLimit,
}

impl Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Why::NothingReady => "nothing is ready and no timer is pending",
            Why::TimeLimit => "the limit of virtual time is reached",
            Why::StepLimit => "the limit of steps is reached",
        })
    }
}

/// A run whose root did not end.
#[derive(Clone)]
pub struct Stuck {
    pub why: Why,
    /// Virtual time of the failure.
    pub at: Duration,
    /// The tasks and jobs that were not finished.
    pub pending: Vec<String>,
    /// The last steps and the command that replays the history.
    pub hint: String,
}

impl Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "stuck at {}: {}", Clock(self.at), self.why)?;
        writeln!(f, "pending:")?;
        for task in self.pending.iter().take(PENDING_NAMED) {
            writeln!(f, "  {task}")?;
        }
        if self.pending.len() > PENDING_NAMED {
            writeln!(f, "  and {} more", self.pending.len() - PENDING_NAMED)?;
        }
        f.write_str(&self.hint)
    }
}

/// As for people: `expect` and `unwrap` in tests print this, and it must be readable there.
impl fmt::Debug for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Display::fmt(self, f)
    }
}

impl std::error::Error for Stuck {}

/// Virtual time as the trace shows it: seconds with microseconds.
struct Clock(Duration);

impl Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}", self.0.as_secs(), self.0.subsec_micros())
    }
}

/// Takes the matching values out of a map, in the order of its keys.
fn extract<K: Ord, V>(map: &mut BTreeMap<K, V>, matches: impl Fn(&V) -> bool) -> Vec<V> {
    map.extract_if(.., |_, value| matches(value)).map(|(_, value)| value).collect()
}

/// A panic in a task poisons nothing: no lock is held while foreign code runs.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
