//! What code does through its context.
//!
//! Everything that must not happen twice goes through here: it is noted in the journal when it is done, and read from
//! there when the code is executed again. What code asks for gets its place when it asks, and not when it waits, so
//! several steps can be joined; branches of code that run beside each other have a [`Context::branch`] each.
//!
//! Something that has to wait (for a time, an event, another attempt) never comes back in this execution: when nothing
//! else goes on, the run is suspended, and executed again when it is due.
//!
//! Code between the steps must be deterministic: no clock, no randomness, no input or output but by the context.
//!
//! Invariants (docs/invariants.md):
//!   * I-48  what the journal has is never done again, also if it has failed
//!   * I-49  [`Context::transact`] commits what it does with its entry

use crate::engine::Engine;
use crate::error::{Code, Result, WorkflowError, bad_name, mismatch};
use crate::lease::{Halt, Lease, Seen, With, is_final};
use crate::lines::end;
use crate::lock;
use crate::registry::{Definition, OnOverflow};
use crate::runs::{Create, MAX_RESULT_BYTES, RunEvent, Step, Update};
use futures::future::FutureExt;
use isles_cluster::session::Session;
use isles_kernel::hash::fnv1a32;
use isles_kernel::runs::journal::{Asked, Kind, Place, Replay, State as EntryState};
use isles_kernel::runs::names::check_name;
use isles_kernel::runs::retry::Retry;
use isles_kernel::runs::status::{Control, Status};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value as Json, json};
use std::collections::{BTreeMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Attempts of a step that are remembered one by one.
const MAX_HISTORY: usize = 20;
/// The longest sleep: a thousand years, so that no time overflows.
const MAX_SLEEP_MS: i64 = 1_000 * 366 * 24 * 3_600_000;
/// The longest wait before code begins again whose transaction met another one: some commits of a shard.
const CONFLICT_MS: u64 = 20;
/// A run that waits for another one looks by itself, should nobody tell it.
const CHILD_LOOK_MS: i64 = 5_000;

/// How one step is executed.
#[derive(Debug, Clone, Default)]
pub struct StepOptions {
    /// As the workflow says, if not said.
    pub retry: Option<Retry>,
    /// How long one attempt may take.
    pub timeout: Option<Duration>,
}

/// What a step's code is told.
#[derive(Debug, Clone)]
pub struct StepInfo {
    /// The same in every attempt and for no other step: what the outside can tell repetitions by.
    pub id: String,
    /// From 1.
    pub attempt: u32,
}

/// What code does everything with.
#[derive(Clone)]
pub struct Context {
    pub(crate) shared: Arc<Shared>,
    branch: String,
}

/// What all branches of one execution share.
pub(crate) struct Shared {
    /// Held by who tells an update: their numbers are in the order in which they can be read.
    pub(crate) telling: futures::lock::Mutex<()>,
    pub(crate) lease: Lease,
    pub(crate) definition: Arc<Definition>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) state: Mutex<State>,
}

/// Where one execution stands.
#[derive(Default)]
pub(crate) struct State {
    replay: Replay,
    journal: BTreeMap<Place, Step>,
    events: VecDeque<RunEvent>,
    pub(crate) seen: Seen,
    /// What goes on: steps, writes.
    pub(crate) active: usize,
    /// What waits, and until when.
    pub(crate) blocked: BTreeMap<Place, Option<i64>>,
    /// Entries that are not noted yet, and go with the next write: those that are pending with one that ends the lease,
    /// those that time has made final with any.
    unsaved: BTreeMap<Place, Step>,
    pub(crate) halt: Option<Halt>,
    /// The code cannot go on, whatever it does.
    pub(crate) fatal: Option<WorkflowError>,
    update_seq: i64,
    bytes: u64,
    /// Random numbers that each branch has drawn.
    drawn: BTreeMap<String, u64>,
    /// How often something without a name of its own was asked for.
    unnamed: BTreeMap<String, u32>,
}

impl State {
    pub(crate) fn new(steps: Vec<Step>, events: Vec<RunEvent>, seen: Seen, update_seq: i64) -> State {
        let asked = |step: &Step| (step.place.clone(), Asked { kind: step.kind, name: step.name.clone() });
        let replay = Replay::new(steps.iter().map(asked));
        let bytes = steps.iter().filter_map(|step| step.result.as_ref()).map(|text| text.len() as u64).sum();
        let journal = steps.into_iter().map(|step| (step.place.clone(), step)).collect();
        State { replay, journal, events: events.into(), seen, update_seq, bytes, ..State::default() }
    }

    /// Whether it has to stop, and something goes on that would be torn.
    pub(crate) fn must_drain(&self) -> bool {
        self.active > 0 && self.halt.as_ref().is_some_and(Halt::lets_steps_end)
    }

    /// Entries that an execution before has not saved: what waited there goes on waiting.
    pub(crate) fn goes_on_with(&mut self, unsaved: Vec<Step>) {
        for step in unsaved {
            if !self.journal.get(&step.place).is_some_and(is_final) {
                self.replay.learn(step.place.clone(), Asked { kind: step.kind, name: step.name.clone() });
                self.journal.insert(step.place.clone(), step.clone());
                self.unsaved.insert(step.place.clone(), step);
            }
        }
    }

    pub(crate) fn all_unsaved(&self) -> Vec<Step> {
        self.unsaved.values().cloned().collect()
    }

    /// The run rests if nothing goes on and something waits.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.active == 0 && !self.blocked.is_empty()
    }

    /// What a run that rests is, and when it is due.
    pub(crate) fn rest(&self) -> (Status, Option<i64>) {
        let waits = |place: &Place| {
            let step = self.unsaved.get(place).or_else(|| self.journal.get(place));
            step.is_some_and(|step| matches!(step.kind, Kind::WaitForEvent | Kind::Child))
        };
        let status = if self.blocked.keys().any(waits) { Status::Waiting } else { Status::Sleeping };
        // The earliest of all, whichever began to wait first.
        (status, self.blocked.values().filter_map(|wake| *wake).min())
    }

    pub(crate) fn end(&self) -> Result<()> {
        self.replay.end().map_err(|error| mismatch(&error))
    }
}

/// Something goes on, until it is dropped.
struct Active(Arc<Shared>);

impl Active {
    fn new(shared: &Arc<Shared>) -> Active {
        lock(&shared.state).active += 1;
        Active(shared.clone())
    }
}

impl Drop for Active {
    fn drop(&mut self) {
        lock(&self.0.state).active -= 1;
    }
}

/// Something waits, until it is dropped.
struct Blocked(Arc<Shared>, Place);

impl Drop for Blocked {
    fn drop(&mut self) {
        lock(&self.0.state).blocked.remove(&self.1);
    }
}

impl Shared {
    fn now(&self) -> i64 {
        self.lease.lines.now()
    }

    /// What stands at a place, if anything is noted there.
    fn noted(&self, place: &Place) -> Option<Step> {
        lock(&self.state).journal.get(place).cloned()
    }

    /// Waits for ever: the run is suspended, and executed again.
    async fn block(self: &Arc<Self>, step: Step) -> ! {
        let place = step.place.clone();
        {
            let mut state = lock(&self.state);
            state.blocked.insert(place.clone(), step.wake_at);
            if state.journal.get(&place) != Some(&step) {
                state.unsaved.insert(place.clone(), step);
            }
        }
        let _blocked = Blocked(self.clone(), place);
        std::future::pending().await
    }

    /// Ends the execution: what code does after this does not count.
    async fn halt(&self, halt: Halt) -> ! {
        {
            let mut state = lock(&self.state);
            // Where the run is lost there is nothing to wait for.
            if state.halt.as_ref().is_none_or(|known| known.lets_steps_end() && !halt.lets_steps_end()) {
                state.halt = Some(halt);
            }
        }
        std::future::pending().await
    }

    /// Ends the execution of code whose transaction did not commit. Those that met come back one after the other.
    async fn conflict(&self, active: Active, halt: Halt) -> ! {
        if halt == Halt::Again {
            let env = self.lease.lines.env();
            env.sleep(Duration::from_millis(env.random() % CONFLICT_MS)).await;
        }
        // Not before: a run of which nothing goes on could rest meanwhile.
        drop(active);
        self.halt(halt).await
    }

    async fn fail(&self, error: WorkflowError) -> ! {
        lock(&self.state).fatal.get_or_insert(error);
        std::future::pending().await
    }

    /// Pausing and terminating happen between steps. Nothing begins while the execution is about to end.
    async fn boundary(&self) {
        let (control, halts) = {
            let state = lock(&self.state);
            (state.seen.control, state.halt.is_some())
        };
        if halts {
            return std::future::pending().await;
        }
        if let Some(control @ (Control::Pause | Control::Terminate)) = control {
            self.halt(Halt::Asked(control)).await;
        }
    }

    /// Notes an entry, and takes it as noted.
    async fn note(self: &Arc<Self>, step: Step, with: With) {
        let (update_seq, passed) = {
            let mut state = lock(&self.state);
            if matches!(with, With::Update(..)) {
                state.update_seq += 1;
            }
            let passed: Vec<Step> = state.unsaved.values().filter(|step| is_final(step)).cloned().collect();
            (state.update_seq, passed)
        };
        let with = match with {
            With::Update(_, name, data) => With::Update(update_seq, name, data),
            with => with,
        };
        match self.lease.note(&step, with, update_seq, &passed).await {
            Ok(seen) => {
                lock(&self.state).unsaved.retain(|place, _| !passed.iter().any(|step| step.place == *place));
                self.is_noted(step, seen);
            }
            Err(halt) => self.halt(halt).await,
        }
    }

    fn is_noted(&self, step: Step, seen: Seen) {
        let mut state = lock(&self.state);
        state.bytes += step.result.as_ref().map_or(0, |text| text.len() as u64);
        state.seen.control = seen.control;
        state.unsaved.remove(&step.place);
        state.journal.insert(step.place.clone(), step);
        drop(state);
        self.engine.saw_write();
    }

    /// A result as it is kept, if there is room for it.
    fn encode<T: Serialize>(&self, value: &T) -> Result<String> {
        let text = serde_json::to_string(value)
            .map_err(|error| WorkflowError::invalid(format!("the result cannot be written as JSON: {error}")))?;
        let (bytes, limit) = (lock(&self.state).bytes + text.len() as u64, self.definition.options.result_size_limit);
        if text.len() <= MAX_RESULT_BYTES && bytes <= limit {
            return Ok(text);
        }
        let limit = limit.min(MAX_RESULT_BYTES as u64);
        let message = format!("the result size limit is {limit} bytes; with this result there are {bytes}");
        let retriable = self.definition.options.on_overflow == OnOverflow::Retry;
        Err(WorkflowError { retriable, ..WorkflowError::new(Code::ResultTooLarge, message) })
    }
}

/// What is final, for the code.
fn outcome<T: DeserializeOwned>(step: &Step) -> Result<T> {
    match (&step.error, &step.result) {
        (Some(error), _) => Err(error.clone()),
        (None, result) => serde_json::from_str(result.as_deref().unwrap_or("null")).map_err(|error| {
            let message = format!("what was noted of \"{}\" does not read as what the code wants: {error}", step.name);
            WorkflowError { retriable: false, ..WorkflowError::new(Code::NonDeterminism, message) }
        }),
    }
}

impl Context {
    pub(crate) fn new(shared: Arc<Shared>) -> Context {
        Context { shared, branch: String::new() }
    }

    /// The run's type.
    pub fn kind(&self) -> &str {
        self.shared.lease.key.kind()
    }

    /// The run's id.
    pub fn id(&self) -> &str {
        self.shared.lease.key.id()
    }

    /// A context for code that runs beside other code: its steps are counted by themselves.
    pub fn branch(&self, name: &str) -> Context {
        let branch = if self.branch.is_empty() { name.to_owned() } else { format!("{}/{name}", self.branch) };
        Context { shared: self.shared.clone(), branch }
    }

    /// The place of what is asked for; the run fails if it is not what the journal has there.
    fn ask(&self, kind: Kind, name: &str) -> std::result::Result<(Place, String), WorkflowError> {
        check_name("name", name).map_err(bad_name)?;
        check_branch(&self.branch)?;
        let asked = Asked { kind, name: name.into() };
        let place = lock(&self.shared.state).replay.ask(&self.branch, &asked);
        place.map(|place| (place, asked.name)).map_err(|error| mismatch(&error))
    }

    /// A name for something that has none, the same in each execution.
    fn unnamed(&self, what: &str) -> String {
        let mut state = lock(&self.shared.state);
        let count = state.unnamed.entry(format!("{}\n{what}", self.branch)).or_default();
        *count += 1;
        format!("{what}#{count}")
    }

    /// Does something once, and keeps its result. A step that fails is tried again as the workflow's options say.
    pub fn step<T, F, Fut>(&self, name: &str, work: F) -> impl Future<Output = Result<T>> + Send + use<T, F, Fut>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        F: FnOnce() -> Fut + Send + 'static,
        Fut: Future<Output = Result<T>> + Send + 'static,
    {
        self.step_with(name, StepOptions::default(), |_| work())
    }

    /// As [`Context::step`], with options of its own and with what tells its repetitions apart.
    pub fn step_with<T, F, Fut>(
        &self,
        name: &str,
        options: StepOptions,
        work: F,
    ) -> impl Future<Output = Result<T>> + Send + use<T, F, Fut>
    where
        T: Serialize + DeserializeOwned + Send + 'static,
        F: FnOnce(StepInfo) -> Fut + Send + 'static,
        Fut: Future<Output = Result<T>> + Send + 'static,
    {
        let (asked, shared) = (self.ask(Kind::Step, name), self.shared.clone());
        async move {
            let (place, name) = match asked {
                Ok(asked) => asked,
                Err(error) => shared.fail(error).await,
            };
            let (step, retry) = match begin(&shared, place, name, &options).await {
                Begun::Done(step) => return outcome(&step),
                Begun::Attempt(step, retry) => (step, retry),
            };
            let active = Active::new(&shared);
            let info = info(&shared, &step);
            let timeout = options.timeout.or(shared.definition.options.step_timeout);
            let result = attempt(&shared, work(info), timeout).await;
            let encoded = match &result {
                Ok(value) => shared.encode(value),
                Err(error) => Err(error.clone()),
            };
            let step = end_attempt(&shared, step, encoded, &retry);
            if !is_final(&step) {
                drop(active);
                shared.block(step).await;
            }
            shared.note(step.clone(), With::Nothing).await;
            match step.error {
                Some(error) => Err(error),
                None => result,
            }
        }
    }

    /// Does something in the database, in one transaction with its entry in the journal: it happens once, whatever
    /// crashes.
    pub fn transact<T, F>(&self, name: &str, work: F) -> impl Future<Output = Result<T>> + Send + use<T, F>
    where
        T: Serialize + DeserializeOwned + Send + Sync + 'static,
        F: for<'a> FnOnce(&'a mut Session) -> futures::future::BoxFuture<'a, Result<T>> + Send + 'static,
    {
        let (asked, shared) = (self.ask(Kind::Step, name), self.shared.clone());
        async move {
            let (place, name) = match asked {
                Ok(asked) => asked,
                Err(error) => shared.fail(error).await,
            };
            let (step, retry) = match begin(&shared, place, name, &StepOptions::default()).await {
                Begun::Done(step) => return outcome(&step),
                Begun::Attempt(step, retry) => (step, retry),
            };
            let active = Active::new(&shared);
            let place = shared.engine.transactions.acquire().await;
            let mut session = match shared.lease.lines.session() {
                Ok(session) => session,
                Err(error) => shared.halt(Halt::Trouble(WorkflowError::of_sql(error))).await,
            };
            session.begin_implicit();
            let result = work(&mut session).await;
            let encoded = match &result {
                Ok(value) => shared.encode(value),
                Err(error) => Err(error.clone()),
            };
            let step = end_attempt(&shared, step, encoded, &retry);
            if step.error.is_some() || !is_final(&step) {
                session.fail();
                let _ = end(&mut session).await;
                drop(place);
                if !is_final(&step) {
                    drop(active);
                    shared.block(step).await;
                }
                shared.note(step.clone(), With::Nothing).await;
                return outcome(&step);
            }
            let update_seq = lock(&shared.state).update_seq;
            let seen = match shared.lease.note_in(&mut session, &step, update_seq).await {
                Ok(seen) => seen,
                Err(halt) => {
                    session.fail();
                    let _ = end(&mut session).await;
                    drop(place);
                    shared.conflict(active, halt).await
                }
            };
            if let Err(error) = end(&mut session).await {
                // It may have happened, if the error does not say otherwise. Whoever executes the run next reads whether
                // it has.
                drop(place);
                shared.conflict(active, Halt::unless_repeated(error)).await
            }
            drop(place);
            shared.is_noted(step, seen);
            drop(active);
            result
        }
    }

    /// Waits for some time.
    pub fn sleep(&self, name: &str, time: Duration) -> impl Future<Output = ()> + Send + use<> {
        let ms = bounded_ms(time);
        self.rest(Kind::Sleep, name, move |now| now.saturating_add(ms))
    }

    /// Waits until a moment, in milliseconds since 1970. One that has passed is not waited for.
    pub fn sleep_until(&self, name: &str, moment_ms: i64) -> impl Future<Output = ()> + Send + use<> {
        self.rest(Kind::SleepUntil, name, move |now| moment_ms.min(now.saturating_add(MAX_SLEEP_MS)))
    }

    fn rest(
        &self,
        kind: Kind,
        name: &str,
        wake: impl FnOnce(i64) -> i64 + Send + 'static,
    ) -> futures::future::BoxFuture<'static, ()> {
        let (asked, shared) = (self.ask(kind, name), self.shared.clone());
        async move {
            let (place, name) = match asked {
                Ok(asked) => asked,
                Err(error) => shared.fail(error).await,
            };
            let now = shared.now();
            let step = shared.noted(&place).unwrap_or_else(|| {
                let step = new_step(place, kind, name, now);
                Step { wake_at: Some(wake(now)), ..step }
            });
            // A sleep whose time has come is over, whether that is noted or not: time does not come back.
            if step.wake_at.is_some_and(|wake_at| wake_at > now) && !is_final(&step) {
                shared.boundary().await;
                shared.block(step).await;
            }
            let noted = shared.noted(&step.place);
            let ended = Step { state: EntryState::Completed, ended_at: Some(now), ..step };
            match noted {
                None => {
                    let _active = Active::new(&shared);
                    shared.note(ended, With::Nothing).await;
                }
                Some(noted) if is_final(&noted) => {}
                // It goes with whatever is noted next.
                Some(_) => drop(lock(&shared.state).unsaved.insert(ended.place.clone(), ended)),
            }
        }
        .boxed()
    }

    /// Takes the next event of a name from the run's queue, or waits for one. The name of the step is its own, so one
    /// event can be waited for several times.
    pub fn wait_for_event<T: DeserializeOwned + Send + 'static>(
        &self,
        name: &str,
        event: &str,
        timeout: Option<Duration>,
    ) -> impl Future<Output = Result<T>> + Send + use<T> {
        let (asked, shared, event) = (self.ask(Kind::WaitForEvent, name), self.shared.clone(), event.to_owned());
        async move {
            let (place, name) = match asked {
                Ok(asked) => asked,
                Err(error) => shared.fail(error).await,
            };
            let now = shared.now();
            let noted = shared.noted(&place);
            if let Some(step) = noted.as_ref().filter(|step| is_final(step)) {
                return outcome(step);
            }
            let step = noted.unwrap_or_else(|| {
                let wake_at = timeout.map(|timeout| now.saturating_add(bounded_ms(timeout)));
                Step { wake_at, ..new_step(place, Kind::WaitForEvent, name, now) }
            });
            let came = {
                let mut state = lock(&shared.state);
                let at = state.events.iter().position(|one| one.name == event);
                at.and_then(|at| state.events.remove(at))
            };
            let active = Active::new(&shared);
            let ended = Step { state: EntryState::Completed, attempts: 1, ended_at: Some(now), ..step.clone() };
            if let Some(came) = came {
                let ended = Step { result: Some(came.payload), ..ended };
                shared.note(ended.clone(), With::Event(came.seq)).await;
                return outcome(&ended);
            }
            if step.wake_at.is_some_and(|wake_at| wake_at <= now) {
                let message = format!("waiting for event \"{event}\" timed out");
                let error = WorkflowError { retriable: false, ..WorkflowError::new(Code::EventTimeout, message) };
                let ended = Step { state: EntryState::Failed, error: Some(error), ..ended };
                shared.note(ended.clone(), With::Nothing).await;
                return outcome(&ended);
            }
            drop(active);
            shared.boundary().await;
            shared.block(step).await
        }
    }

    /// Tells those who listen, and those who come later: once, and kept.
    pub fn emit<T: Serialize>(&self, name: &str, data: &T) -> impl Future<Output = Result<()>> + Send + use<T> {
        let asked = self.ask(Kind::Emit, &self.unnamed(name));
        let (shared, update, data) = (self.shared.clone(), name.to_owned(), self.shared.encode(data));
        async move {
            let (place, name) = match asked {
                Ok(asked) => asked,
                Err(error) => shared.fail(error).await,
            };
            if shared.noted(&place).is_some() {
                return Ok(());
            }
            check_update(&shared.definition, &update)?;
            let data = data?;
            shared.boundary().await;
            let _active = Active::new(&shared);
            let _telling = shared.telling.lock().await;
            let now = shared.now();
            let step = new_step(place, Kind::Emit, name, now);
            let step = Step { state: EntryState::Completed, ended_at: Some(now), ..step };
            shared.note(step, With::Update(0, update.clone(), data.clone())).await;
            let seq = Some(lock(&shared.state).update_seq);
            shared.engine.tell(&shared.lease.key, Update { seq, name: update, data, at: now });
            Ok(())
        }
    }

    /// Tells those who listen now. It is not kept, and not told again when the code is executed again.
    pub fn broadcast<T: Serialize>(&self, name: &str, data: &T) -> Result<()> {
        check_update(&self.shared.definition, name)?;
        let data = self.shared.encode(data)?;
        if !lock(&self.shared.state).replay.is_replaying(&self.branch) {
            let update = Update { seq: None, name: name.into(), data, at: self.shared.now() };
            self.shared.engine.tell(&self.shared.lease.key, update);
        }
        Ok(())
    }

    /// The time, in milliseconds since 1970: the same when the code is executed again.
    pub fn now(&self) -> impl Future<Output = i64> + Send + use<> {
        let asked = self.ask(Kind::Value, &self.unnamed("now"));
        let shared = self.shared.clone();
        async move {
            let (place, name) = match asked {
                Ok(asked) => asked,
                Err(error) => shared.fail(error).await,
            };
            if let Some(noted) = shared.noted(&place).and_then(|step| outcome(&step).ok()) {
                return noted;
            }
            shared.boundary().await;
            let _active = Active::new(&shared);
            let now = shared.now();
            let step = new_step(place, Kind::Value, name, now);
            let step =
                Step { state: EntryState::Completed, result: Some(now.to_string()), ended_at: Some(now), ..step };
            shared.note(step, With::Nothing).await;
            now
        }
    }

    /// A random number: the same when the code is executed again, and another one in each run. It is drawn from the run's
    /// name and from how many the branch has drawn, so it is no secret.
    pub fn random(&self) -> u64 {
        let drawn = {
            let mut state = lock(&self.shared.state);
            let drawn = state.drawn.entry(self.branch.clone()).or_default();
            *drawn += 1;
            *drawn
        };
        let seed = format!("{}/{}/{}/{drawn}", self.shared.lease.key.as_str(), self.shared.lease.attempt, self.branch);
        let mix = |salt: &str| u64::from(fnv1a32(&format!("{salt}{seed}")));
        splitmix((mix("a") << 32) | mix("b"))
    }

    /// Whether the run goes through code that was added later: true for runs that come here for the first time, and false
    /// for those that went on without it.
    pub fn patched(&self, marker: &str) -> impl Future<Output = bool> + Send + use<> {
        // A marker may be called what the step that it leads to is called.
        let asked = Asked { kind: Kind::Patch, name: format!("patch:{marker}") };
        let may_mark = lock(&self.shared.state).replay.may_mark(&self.branch, &asked);
        let place = may_mark.then(|| self.ask(Kind::Patch, &asked.name));
        let shared = self.shared.clone();
        async move {
            let (place, name) = match place {
                None => return false,
                Some(Ok(asked)) => asked,
                Some(Err(error)) => shared.fail(error).await,
            };
            if shared.noted(&place).is_none() {
                shared.boundary().await;
                let _active = Active::new(&shared);
                let now = shared.now();
                let step = new_step(place, Kind::Patch, name, now);
                let step = Step { state: EntryState::Completed, ended_at: Some(now), ..step };
                shared.note(step, With::Nothing).await;
            }
            true
        }
    }

    /// Starts another run. It goes on by itself; [`Context::child`] waits for one.
    pub fn start_child<In: Serialize>(
        &self,
        name: &str,
        kind: &str,
        id: &str,
        input: &In,
    ) -> impl Future<Output = Result<()>> + Send + use<In> {
        let (asked, shared) = (self.ask(Kind::Child, name), self.shared.clone());
        let (kind, id, input) = (kind.to_owned(), id.to_owned(), serde_json::to_value(input));
        async move {
            let (place, name) = match asked {
                Ok(asked) => asked,
                Err(error) => shared.fail(error).await,
            };
            if let Some(step) = shared.noted(&place).filter(is_final) {
                return outcome(&step);
            }
            shared.boundary().await;
            let _active = Active::new(&shared);
            let input = input.map_err(|error| WorkflowError::invalid(error.to_string()))?;
            let now = shared.now();
            let created = create_child(&shared, &kind, &id, &input).await;
            let step = Step { attempts: 1, ended_at: Some(now), ..new_step(place, Kind::Child, name, now) };
            let step = match created {
                Ok(()) => Step { state: EntryState::Completed, ..step },
                Err(error) => Step { state: EntryState::Failed, error: Some(error), ..step },
            };
            shared.note(step.clone(), With::Nothing).await;
            outcome(&step)
        }
    }

    /// Starts another run and waits for its result.
    pub fn child<In: Serialize, Out: DeserializeOwned + Send + 'static>(
        &self,
        name: &str,
        kind: &str,
        id: &str,
        input: &In,
    ) -> impl Future<Output = Result<Out>> + Send + use<In, Out> {
        let (asked, shared) = (self.ask(Kind::Child, name), self.shared.clone());
        let (kind, id, input) = (kind.to_owned(), id.to_owned(), serde_json::to_value(input));
        async move {
            let (place, name) = match asked {
                Ok(asked) => asked,
                Err(error) => shared.fail(error).await,
            };
            let noted = shared.noted(&place);
            if let Some(step) = noted.as_ref().filter(|step| is_final(step)) {
                return outcome(step);
            }
            shared.boundary().await;
            let active = Active::new(&shared);
            let input = input.map_err(|error| WorkflowError::invalid(error.to_string()))?;
            let now = shared.now();
            let was_created = noted.is_some();
            let step = noted.unwrap_or_else(|| new_step(place, Kind::Child, name, now));
            let step = Step { attempts: 1, ..step };
            // One that was created before is looked at and not created again: it may have ended and been deleted.
            let created = match was_created {
                true => Ok(()),
                false => create_child(&shared, &kind, &id, &input).await,
            };
            let ended = match created {
                Err(error) => Some(Err(error)),
                Ok(()) => match shared.engine.outcome(&kind, &id).await {
                    Ok(outcome) => outcome,
                    Err(error) if error.code == Code::WorkflowNotFound => Some(Err(was_deleted(&kind, &id))),
                    Err(error) => shared.halt(Halt::Trouble(error)).await,
                },
            };
            let Some(ended) = ended else {
                drop(active);
                let wake_at = Some(shared.now() + CHILD_LOOK_MS);
                shared.block(Step { wake_at, ..step }).await
            };
            let step = Step { ended_at: Some(shared.now()), wake_at: None, ..step };
            let step = match ended {
                Ok(result) => Step { state: EntryState::Completed, result: Some(result), ..step },
                Err(error) => {
                    let error = WorkflowError { retriable: false, ..error };
                    Step { state: EntryState::Failed, error: Some(error), ..step }
                }
            };
            shared.note(step.clone(), With::Nothing).await;
            outcome(&step)
        }
    }
}

fn splitmix(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

fn check_branch(branch: &str) -> Result<()> {
    match branch.is_empty() {
        true => Ok(()),
        false => check_name("branch", branch).map_err(bad_name),
    }
}

fn check_update(definition: &Definition, name: &str) -> Result<()> {
    check_name("update", name).map_err(bad_name)?;
    let known = &definition.options.updates;
    match known.is_empty() || known.iter().any(|one| one == name) {
        true => Ok(()),
        false => Err(WorkflowError::invalid(format!("\"{}\" has no update \"{name}\"", definition.kind))),
    }
}

fn new_step(place: Place, kind: Kind, name: String, now: i64) -> Step {
    Step {
        place,
        name,
        kind,
        state: EntryState::Pending,
        attempts: 0,
        result: None,
        error: None,
        wake_at: None,
        started_at: now,
        ended_at: None,
        history: Vec::new(),
    }
}

/// A time as milliseconds that can be added to any other.
fn bounded_ms(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(MAX_SLEEP_MS).min(MAX_SLEEP_MS)
}

fn was_deleted(kind: &str, id: &str) -> WorkflowError {
    let message = format!("run \"{id}\" of \"{kind}\" was deleted before its result was read");
    WorkflowError { retriable: false, ..WorkflowError::new(Code::WorkflowNotFound, message) }
        .with_hint("keep runs that others wait for: a longer retention")
}

async fn create_child(shared: &Arc<Shared>, kind: &str, id: &str, input: &Json) -> Result<()> {
    let create = Create { attributes: None, parent: Some(shared.lease.key.as_str().to_owned()) };
    match shared.engine.create(kind, id, input, create).await {
        Ok(_) => Ok(()),
        Err(error) if error.code == Code::Unavailable => shared.halt(Halt::Trouble(error)).await,
        Err(error) => Err(WorkflowError { retriable: false, ..error }),
    }
}

/// How a step stands when the code comes to it.
enum Begun {
    Done(Step),
    Attempt(Step, Retry),
}

/// Finds out whether a step is to be done now; if it has to wait for its next attempt, it does.
async fn begin(shared: &Arc<Shared>, place: Place, name: String, options: &StepOptions) -> Begun {
    let now = shared.now();
    let noted = shared.noted(&place);
    if let Some(step) = noted.as_ref().filter(|step| is_final(step)) {
        return Begun::Done(step.clone());
    }
    let retry = options.retry.unwrap_or(shared.definition.options.retry);
    if let Err(error) = retry.check() {
        shared.fail(WorkflowError::invalid(error.to_string())).await;
    }
    shared.boundary().await;
    let step = noted.unwrap_or_else(|| new_step(place, Kind::Step, name, now));
    if step.wake_at.is_some_and(|wake_at| wake_at > now) {
        shared.block(step).await;
    }
    Begun::Attempt(Step { attempts: step.attempts + 1, wake_at: None, ..step }, retry)
}

fn info(shared: &Shared, step: &Step) -> StepInfo {
    let id = format!("{}/{}/{}", shared.lease.key.as_str(), shared.lease.attempt, step.place);
    StepInfo { id, attempt: u32::try_from(step.attempts).unwrap_or(u32::MAX) }
}

/// One attempt of a step's code. A panic is a failure like any other.
async fn attempt<T>(
    shared: &Shared,
    work: impl Future<Output = Result<T>> + Send,
    timeout: Option<Duration>,
) -> Result<T> {
    let work = AssertUnwindSafe(work).catch_unwind().map(|done| match done {
        Ok(done) => done,
        Err(panic) => Err(WorkflowError::failed(format!("the step panicked: {}", panic_text(&*panic)))),
    });
    let Some(timeout) = timeout else { return work.await };
    let limit = shared.lease.lines.env().sleep(timeout);
    match futures::future::select(Box::pin(work), limit).await {
        futures::future::Either::Left((done, _)) => done,
        futures::future::Either::Right(_) => {
            Err(WorkflowError::failed(format!("the step took longer than {} ms", timeout.as_millis())))
        }
    }
}

pub(crate) fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it did not say why".into())
}

/// What a step is after an attempt: final, or pending until the next one.
fn end_attempt(shared: &Shared, step: Step, result: Result<String>, retry: &Retry) -> Step {
    let now = shared.now();
    let error = match result {
        Ok(result) => {
            return Step {
                state: EntryState::Completed,
                result: Some(result),
                error: None,
                ended_at: Some(now),
                ..step
            };
        }
        Err(error) => error,
    };
    let attempt = u32::try_from(step.attempts).unwrap_or(u32::MAX);
    let mut history = step.history;
    if history.len() < MAX_HISTORY {
        history.push(json!({ "attempt": attempt, "error": error.message, "timestamp": now }));
    }
    let step = Step { history, ..step };
    let wait = if error.retriable { retry.after(attempt, shared.lease.lines.env().random()) } else { None };
    if let Some(wait) = wait {
        let wake_at = Some(now.saturating_add(bounded_ms(wait)));
        return Step { state: EntryState::Pending, error: Some(error), wake_at, ..step };
    }
    let error = match error.retriable {
        // All attempts were used.
        true => {
            let message = format!("Step \"{}\" failed after {attempt} attempts: {}", step.name, error.message);
            let details = json!({ "step": step.name, "attempts": attempt });
            WorkflowError::new(Code::StepRetryExhausted, message).with_details(details)
        }
        false => error,
    };
    let error = WorkflowError { retriable: false, ..error };
    Step { state: EntryState::Failed, error: Some(error), ended_at: Some(now), wake_at: None, ..step }
}
