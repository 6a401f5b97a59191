//! Who writes next.
//!
//! The queue holds what waits and, when nobody uses it, the writer. Whoever pushes onto an idle queue starts a job
//! on the pool, which runs groups until nothing waits. An interactive transaction takes the writer out and puts it
//! back when it ends; a janitor looks after the queue meanwhile, so that no request waits past its time (I-66).
//!
//! Tenants take turns, in the queue and in a group (`lines`): who has a group full of requests does not put it in front of
//! somebody else's one (I-46).

use super::lines::{Lines, Party, Whose};
use super::writer::{self, Company, GroupResult, Member, More, NoMore, Writer};
use super::{Planted, Shared, checkpoint, log};
use crate::error::{Result, ShardError};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio::sync::oneshot;

/// Groups a job runs before it goes to the end of the pool's own queue, so that one shard cannot hold a thread.
const GROUPS_PER_JOB: usize = 32;
/// How many times as large as usual the WAL may be after rows of another shard: each batch of them changes most pages of
/// an index, and what is moved after every batch is written twice as often. 32 MiB, which are recovered in a moment.
const APPLY_TIMES: u32 = 8;
/// How often the janitor looks for requests whose time is up.
const JANITOR_INTERVAL: Duration = Duration::from_millis(20);

pub(super) struct Queue {
    items: Lines<Item>,
    /// Who wants the shard to be closed when nothing waits any more.
    close: Option<oneshot::Sender<()>>,
    /// The writer, while neither a job nor a transaction has it.
    writer: Option<Box<Writer>>,
    /// A job is running or on its way, or a transaction holds the writer.
    busy: bool,
    closed: bool,
    /// Who waits for the files to be closed, and the writer, until the WAL has been copied.
    closing: Option<Closing>,
    janitor: bool,
    pub(super) checkpoint: checkpoint::Progress,
    /// How many wrote lately: those answered last, and those who waited meanwhile.
    active: Active,
    /// The writer waits for someone to come.
    awaited: bool,
}

#[derive(Clone, Copy, Default)]
struct Active {
    requests: usize,
    /// Lines that they were in.
    lines: usize,
}

type Closing = (Option<Box<Writer>>, oneshot::Sender<()>);

enum Item {
    Member(Box<dyn Member>),
    /// Wants the writer itself; until when, and who.
    Hold {
        deadline: Duration,
        reply: oneshot::Sender<Result<WriterGuard>>,
    },
}

impl Queue {
    pub(super) fn new(writer: Writer) -> Queue {
        Queue {
            items: Lines::new(),
            close: None,
            writer: Some(Box::new(writer)),
            busy: false,
            closed: false,
            closing: None,
            janitor: false,
            checkpoint: checkpoint::Progress::default(),
            active: Active::default(),
            awaited: false,
        }
    }

    /// Nobody wants anything of the writer.
    fn is_quiet(&self) -> bool {
        self.items.is_empty() && self.close.is_none()
    }

    fn note_active(&mut self, answered: usize, lines: usize) {
        self.active = Active { requests: answered + self.items.len(), lines: lines + self.items.lines() };
    }

    /// Lets the writer know that somebody has come, and says whether there is none at work.
    fn wake(&mut self, shared: &Shared) -> bool {
        if self.awaited {
            shared.gathered.notify_one();
        }
        !std::mem::replace(&mut self.busy, true)
    }
}

/// The writer in the hands of an interactive transaction. Dropping it rolls back and gives it back.
pub(super) struct WriterGuard {
    writer: Option<Box<Writer>>,
    shared: Arc<Shared>,
}

impl WriterGuard {
    pub(super) fn writer(&mut self) -> &mut Writer {
        self.writer.as_mut().expect("taken out only when the guard is dropped")
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

impl Drop for WriterGuard {
    fn drop(&mut self) {
        if let Some(mut writer) = self.writer.take() {
            writer.abandon();
            give_back(&self.shared, writer);
        }
    }
}

pub(super) fn push(shared: &Arc<Shared>, member: Box<dyn Member>) -> Result<()> {
    push_item(shared, member.whose(), Item::Member(member))
}

/// Waits for the writer itself.
pub(super) async fn hold(shared: &Arc<Shared>, whose: Whose, deadline: Duration) -> Result<WriterGuard> {
    let (reply, answer) = oneshot::channel();
    push_item(shared, whose, Item::Hold { deadline, reply })?;
    answer.await.map_err(|_| ShardError::Unavailable("the shard was closed".into()))?
}

/// Lets what waits be done, then closes the files.
pub(super) async fn close(shared: &Arc<Shared>) -> Result<()> {
    let (reply, answer) = oneshot::channel();
    let start = {
        let mut queue = shared.queue();
        if std::mem::replace(&mut queue.closed, true) {
            return Ok(());
        }
        queue.close = Some(reply);
        queue.wake(shared)
    };
    if start {
        schedule(shared);
    }
    // An error means that the shard had stopped, and is closed all the same.
    let _ = answer.await;
    Ok(())
}

fn push_item(shared: &Arc<Shared>, whose: Whose, item: Item) -> Result<()> {
    let start = {
        let mut queue = shared.queue();
        // Looked at under the lock: a shard that has stopped takes nothing more into its queue.
        shared.check_running()?;
        if queue.closed {
            return Err(ShardError::Unavailable("the shard is closed".into()));
        }
        if !queue.items.has_place(whose, shared.options.max_queue) {
            return Err(ShardError::Limit {
                what: "the number of waiting writes",
                limit: shared.options.max_queue as u64,
            });
        }
        queue.items.push(whose, item);
        queue.wake(shared)
    };
    if start {
        schedule(shared);
    }
    Ok(())
}

fn schedule(shared: &Arc<Shared>) {
    let job = shared.clone();
    shared.env.blocking(Box::new(move || run(&job)));
}

/// What the writer does next.
enum Next {
    Group(Box<dyn Member>),
    Alone(Box<dyn Member>),
    Apply(Box<dyn Member>),
    Hold { deadline: Duration, reply: oneshot::Sender<Result<WriterGuard>> },
    Close(oneshot::Sender<()>),
    Nothing,
}

/// Takes what comes next; if nothing does, leaves the writer here and the queue idle, in one step.
fn next(shared: &Shared, writer: &mut Option<Box<Writer>>) -> Next {
    let mut queue = shared.queue();
    match queue.items.pop() {
        None => match queue.close.take() {
            Some(reply) => Next::Close(reply),
            None => {
                queue.writer = writer.take();
                queue.busy = false;
                Next::Nothing
            }
        },
        Some((_, Item::Hold { deadline, reply })) => Next::Hold { deadline, reply },
        Some((_, Item::Member(member))) => match member.company() {
            Company::Group => Next::Group(member),
            Company::Alone => Next::Alone(member),
            Company::Applier => Next::Apply(member),
        },
    }
}

/// The job: runs groups until nothing waits or the writer is held.
fn run(shared: &Arc<Shared>) {
    let _guard = StopOnPanic(shared);
    let mut writer = shared.queue().writer.take();
    for _ in 0..GROUPS_PER_JOB {
        match next(shared, &mut writer) {
            Next::Nothing => return,
            Next::Close(reply) => return finish_close(shared, writer.take(), reply),
            Next::Hold { deadline, reply } => {
                let Some(held) = writer.take() else { return };
                if grant(shared, held, deadline, reply) {
                    return;
                }
                writer = shared.queue().writer.take();
            }
            Next::Group(first) => {
                let Some(writer) = &mut writer else { return };
                let mut gathering = Gathering::new(shared, first.whose());
                let answered = run_one(shared, writer, vec![first], &mut gathering);
                shared.queue().note_active(answered, gathering.party.len());
                settle(shared, writer);
            }
            Next::Alone(member) => {
                let Some(writer) = &mut writer else { return };
                let answered = run_one(shared, writer, vec![member], &mut NoMore);
                shared.queue().note_active(answered, 1);
                settle(shared, writer);
            }
            Next::Apply(member) => {
                let Some(writer) = &mut writer else { return };
                let result = writer::run_apply(writer, member);
                answer(shared, writer, result);
                settle_after(shared, writer, APPLY_TIMES);
            }
        }
    }
    shared.queue().writer = writer;
    schedule(shared);
}

/// A job that panics takes the writer with it. Nobody may wait for what will not come: the shard stops.
pub(super) struct StopOnPanic<'a>(pub(super) &'a Shared);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.stop(ShardError::Stopped("the writer has failed".into()));
            refuse_if_stopped(self.0);
            // Whoever waits for the shard to close finds that it has.
            let mut queue = self.0.queue();
            queue.items = Lines::new();
            (queue.close, queue.closing) = (None, None);
        }
    }
}

/// Returns how many were answered.
fn run_one(shared: &Arc<Shared>, writer: &mut Writer, members: Vec<Box<dyn Member>>, more: &mut dyn More) -> usize {
    let result = writer::run_group(writer, members, more);
    let answered = result.answers.len();
    answer(shared, writer, result);
    if writer.plants(Planted::AnswerBeforeCommit) {
        let _ = writer.commit();
    }
    answered
}

/// Publishes the new state and then answers: whoever hears of a commit can see it.
fn answer(shared: &Shared, writer: &mut Writer, result: GroupResult) {
    if let Some(why) = result.fatal {
        shared.stop(ShardError::Stopped(why));
    } else {
        publish(shared, writer);
        shared.commits.fetch_add(1, Ordering::Relaxed);
        shared.transactions.fetch_add(result.answers.len() as u64, Ordering::Relaxed);
    }
    result.answers.into_iter().for_each(|(member, result)| member.finish(result));
}

pub(super) fn publish(shared: &Shared, writer: &mut Writer) {
    // Nobody else commits, so nobody else counts.
    let next = shared.state_number.load(Ordering::SeqCst) + 1;
    let (known, now) = (shared.published.load(), &writer.state);
    if !Arc::ptr_eq(&known.schema, &now.schema) || !Arc::ptr_eq(&known.fences, &now.fences) {
        writer.capture().touched.add_everything();
    }
    shared.changes.note(&writer.capture().touched, next);
    shared.published.store(Arc::new(writer.state.clone()));
    shared.state_number.store(next, Ordering::SeqCst);
}

/// What is due after a commit, and nobody's answer waits for.
pub(super) fn settle(shared: &Arc<Shared>, writer: &mut Writer) {
    settle_after(shared, writer, 1);
}

fn settle_after(shared: &Arc<Shared>, writer: &mut Writer, times: u32) {
    let cap = shared.options.max_log_bytes;
    if shared.check_running().is_ok() && log::is_over_cap(writer.state.log_bytes, cap) {
        trim_to_cap(shared, writer, cap);
    }
    checkpoint::look(shared, writer, times);
    refuse_if_stopped(shared);
}

fn trim_to_cap(shared: &Shared, writer: &mut Writer, cap: u64) {
    let trimmed = writer.begin().and_then(|()| log::enforce_cap(writer, cap));
    match trimmed.map_err(|error| (error, false)).and_then(|()| writer.commit().map_err(|e| (e.error, e.fatal))) {
        Ok(()) => publish(shared, writer),
        Err((error, fatal)) => {
            writer.abandon();
            if fatal {
                shared.stop(error);
            }
        }
    }
}

/// Answers all that waits, once the shard has stopped.
pub(super) fn refuse_if_stopped(shared: &Shared) {
    let Err(error) = shared.check_running() else { return };
    let waiting = shared.queue().items.take_all();
    waiting.into_iter().for_each(|(_, item)| refuse(item, error.clone()));
}

fn refuse(item: Item, error: ShardError) {
    match item {
        Item::Member(member) => member.finish(Err(error)),
        Item::Hold { reply, .. } => {
            let _ = reply.send(Err(error));
        }
    }
}

/// Those who join a group while it runs: first those who have come meanwhile, then, for a moment, those who were
/// answered last and are about to come back. So a flush is shared by all who write, and they come back while others
/// are served. They come one by one, so that who has just come need not wait for those of a tenant that has many.
struct Gathering<'a> {
    shared: &'a Shared,
    party: Party,
    /// When the flush must not wait any longer.
    until: Duration,
    active: Active,
}

impl Gathering<'_> {
    fn new(shared: &Shared, first: Whose) -> Gathering<'_> {
        let active = shared.queue().active;
        let now = shared.env.elapsed();
        Gathering { shared, party: Party::new(now, first), until: now + shared.options.gather, active }
    }

    /// How many make a group complete. One in eight may have stopped; the others should not wait for it. In a group of
    /// several tenants each counts once: none waits for all that another one writes.
    fn wanted(&self) -> usize {
        let active = if self.party.is_shared() { self.active.lines } else { self.active.requests };
        let active = active.min(self.shared.options.max_group);
        active - active / 8
    }

    /// The one whose turn it is, if it may join.
    fn take(&mut self, queue: &mut Queue) -> Option<Box<dyn Member>> {
        let (whose, Item::Member(member)) = queue.items.front()? else { return None };
        if member.company() != Company::Group || !self.party.admits(whose, self.shared.env.elapsed()) {
            return None;
        }
        let (whose, Item::Member(member)) = queue.items.pop()? else { return None };
        self.party.join(whose);
        Some(member)
    }
}

impl More for Gathering<'_> {
    fn more(&mut self, have: usize) -> Option<Box<dyn Member>> {
        if have >= self.shared.options.max_group {
            return None;
        }
        let mut queue = self.shared.queue();
        if queue.is_quiet() && have < self.wanted() {
            let left = self.until.saturating_sub(self.shared.env.elapsed());
            if left.is_zero() {
                return None;
            }
            queue.awaited = true;
            let waited = self.shared.gathered.wait_timeout_while(queue, left, |queue| queue.is_quiet());
            queue = waited.unwrap_or_else(PoisonError::into_inner).0;
            queue.awaited = false;
        }
        self.take(&mut queue)
    }
}

/// Hands the writer to a transaction. Whether it was taken.
fn grant(
    shared: &Arc<Shared>,
    writer: Box<Writer>,
    deadline: Duration,
    reply: oneshot::Sender<Result<WriterGuard>>,
) -> bool {
    if shared.env.elapsed() >= deadline {
        shared.queue().writer = Some(writer);
        let _ = reply.send(Err(ShardError::TimedOut));
        return false;
    }
    start_janitor(shared);
    let guard = WriterGuard { writer: Some(writer), shared: shared.clone() };
    match reply.send(Ok(guard)) {
        Ok(()) => true,
        Err(Ok(mut guard)) => {
            // The one who asked has gone. Take the writer out quietly: this job goes on with it.
            shared.queue().writer = guard.writer.take();
            false
        }
        Err(Err(_)) => false,
    }
}

/// Puts the writer back after a transaction, and goes on with what waits.
fn give_back(shared: &Arc<Shared>, writer: Box<Writer>) {
    let start = {
        let mut queue = shared.queue();
        queue.writer = Some(writer);
        queue.busy = !queue.is_quiet();
        queue.busy
    };
    if start {
        schedule(shared);
    }
}

/// Closes the files now that the WAL has been copied, if somebody waits for that.
pub(super) fn close_if_waiting(shared: &Shared) {
    let closing = shared.queue().closing.take();
    if let Some((writer, reply)) = closing {
        finish_close(shared, writer, reply);
    }
}

fn finish_close(shared: &Shared, writer: Option<Box<Writer>>, reply: oneshot::Sender<()>) {
    {
        let mut queue = shared.queue();
        if queue.checkpoint.is_running() {
            queue.closing = Some((writer, reply));
            return;
        }
    }
    shared.readers.close();
    match writer {
        Some(writer) if shared.check_running().is_ok() => writer.close(),
        stopped => drop(stopped),
    }
    shared.stop(ShardError::Unavailable("the shard is closed".into()));
    shared.lock.lock().unwrap_or_else(PoisonError::into_inner).take();
    let _ = reply.send(());
}

fn start_janitor(shared: &Arc<Shared>) {
    if std::mem::replace(&mut shared.queue().janitor, true) {
        return;
    }
    let watched = Arc::downgrade(shared);
    let env = shared.env.clone();
    shared.env.spawn(Box::pin(async move {
        loop {
            env.sleep(JANITOR_INTERVAL).await;
            let Some(shared) = watched.upgrade() else { return };
            if !sweep(&shared) {
                return;
            }
        }
    }));
}

/// Answers requests whose time is up. Whether there is still something to look after.
fn sweep(shared: &Shared) -> bool {
    let now = shared.env.elapsed();
    let late: Vec<(Item, ShardError)> = {
        let mut queue = shared.queue();
        if queue.writer.is_some() && queue.is_quiet() {
            queue.janitor = false;
            return false;
        }
        let mut late = Vec::new();
        for (whose, item) in queue.items.take_all() {
            match overdue(&item, now) {
                Some(error) => late.push((item, error)),
                None => queue.items.push(whose, item),
            }
        }
        late
    };
    late.into_iter().for_each(|(item, error)| refuse(item, error));
    true
}

fn overdue(item: &Item, now: Duration) -> Option<ShardError> {
    match item {
        Item::Member(member) => writer::expired(&**member, now).err(),
        Item::Hold { deadline, .. } => (now >= *deadline).then_some(ShardError::TimedOut),
    }
}
