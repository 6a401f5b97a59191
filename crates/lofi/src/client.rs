//! The driver on tokio: it performs the effects of a [`Replica`] and feeds the answers back.
//!
//! One task owns the store and steps the replica; whatever it is asked for waits in line. Readers see the replica only
//! between steps, after what the step changed was kept: what has been shown is there after a crash. If the store fails,
//! the client stops, because its memory is ahead of its store; opening it again goes on from what was kept.

use crate::command::{CommandId, Draft, Outcome, RefusedDraft};
use crate::replica::{Call, CallId, Damaged, Effect, Event, Failure, Health, Moment, Options, Replica, Reply, Request};
use crate::store::{Store, StoreError, Write};
use async_trait::async_trait;
use isles_kernel::sync::RowKey;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{RwLock, RwLockReadGuard, broadcast, mpsc, oneshot, watch};
use tokio::task::{Id, JoinError, JoinHandle, JoinSet};
use tokio::time::Instant;

/// How much longer than a long poll a call may take before it counts as lost.
const CALL_TIMEOUT: Duration = Duration::from_secs(15);
/// Wishes that wait in line for the driver; more make the application wait.
const MAX_WISHES: usize = 64;
/// Notices that a slow listener may be behind. Beyond, it is told how many it has missed, and looks at the replica.
const MAX_NOTICES: usize = 1_024;

/// Whoever brings requests to the server and answers back. It may fail at any time, and answer more than it was asked.
#[async_trait]
pub trait Transport: Send + Sync + 'static {
    async fn call(&self, request: Request) -> Result<Reply, Failure>;
}

/// Something that the application may want to know.
#[derive(Debug, Clone, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "few of them are there at a time, and none for long")]
pub enum Notice {
    /// All rows are gone, because the partition is another one.
    Wiped,
    /// What is seen of these rows has changed.
    Changed(Vec<RowKey>),
    Outcome(Outcome),
    Health(Health),
}

#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Damaged(#[from] Damaged),
    #[error(transparent)]
    Refused(#[from] RefusedDraft),
    #[error("the client has stopped; open it again")]
    Stopped,
}

/// What a handle asks of the driver.
enum Wish {
    Submit(Box<Draft>, oneshot::Sender<Result<CommandId, RefusedDraft>>),
    Acknowledge(CommandId, oneshot::Sender<()>),
    Wipe(oneshot::Sender<()>),
    SetOnline(Event),
}

/// A replica that is kept and synchronized. Dropping it stops it; nothing is lost, and [`Client::close`] says when.
pub struct Client {
    /// None once the store has failed: what is in memory is ahead of it.
    replica: Arc<RwLock<Option<Replica>>>,
    wishes: mpsc::Sender<Wish>,
    notices: broadcast::Sender<Notice>,
    /// Changes with every step.
    steps: watch::Receiver<u64>,
    driver: JoinHandle<Result<(), ClientError>>,
}

impl Client {
    /// Opens what the store has kept, and begins to synchronize.
    pub async fn open(
        mut store: impl Store,
        transport: impl Transport,
        options: Options,
    ) -> Result<Client, ClientError> {
        let call_timeout = CALL_TIMEOUT + Duration::from_millis(options.wait_ms);
        let (store, kept) = off_thread(move || store.load().map(|kept| (store, kept))).await?;
        let replica = Arc::new(RwLock::new(Some(Replica::open(kept, options)?)));
        let (wishes, line) = mpsc::channel(MAX_WISHES);
        let (notices, _) = broadcast::channel(MAX_NOTICES);
        let (stepped, steps) = watch::channel(0);
        let driver = Driver {
            replica: Arc::clone(&replica),
            store: Some(Box::new(store)),
            transport: Arc::new(transport),
            calls: JoinSet::new(),
            under_way: HashMap::new(),
            notices: notices.clone(),
            stepped,
            wake_at: None,
            started: Instant::now(),
            call_timeout,
        };
        Ok(Client { replica, wishes, notices, steps, driver: tokio::spawn(driver.run(line)) })
    }

    /// The replica between two steps: get, list, cursor and the rest. The driver waits while this is held.
    pub async fn view(&self) -> Result<RwLockReadGuard<'_, Replica>, ClientError> {
        let view = self.replica.read().await;
        RwLockReadGuard::try_map(view, Option::as_ref).map_err(|_| ClientError::Stopped)
    }

    /// Takes a command. When this returns it is kept and shown.
    pub async fn submit(&self, draft: Draft) -> Result<CommandId, ClientError> {
        Ok(self.ask(|reply| Wish::Submit(Box::new(draft), reply)).await??)
    }

    /// Forgets a command that was given up.
    pub async fn acknowledge(&self, id: CommandId) -> Result<(), ClientError> {
        self.ask(|reply| Wish::Acknowledge(id, reply)).await
    }

    /// Forgets everything, unsent commands too, and begins anew.
    pub async fn wipe(&self) -> Result<(), ClientError> {
        self.ask(Wish::Wipe).await
    }

    /// The network is there: try at once.
    pub async fn go_online(&self) -> Result<(), ClientError> {
        self.wishes.send(Wish::SetOnline(Event::Online)).await.map_err(|_| ClientError::Stopped)
    }

    /// The network is gone, or should not be used.
    pub async fn go_offline(&self) -> Result<(), ClientError> {
        self.wishes.send(Wish::SetOnline(Event::Offline)).await.map_err(|_| ClientError::Stopped)
    }

    /// Notices from now on.
    pub fn notices(&self) -> broadcast::Receiver<Notice> {
        self.notices.subscribe()
    }

    /// Waits until `holds` is true of the replica; looks at it after each step.
    pub async fn until(&self, holds: impl Fn(&Replica) -> bool) -> Result<(), ClientError> {
        let mut steps = self.steps.clone();
        while !holds(&*self.view().await?) {
            steps.changed().await.map_err(|_| ClientError::Stopped)?;
        }
        Ok(())
    }

    /// Stops, and says what has gone wrong if something has.
    pub async fn close(self) -> Result<(), ClientError> {
        drop(self.wishes);
        self.driver.await.map_err(|_| ClientError::Stopped)?
    }

    async fn ask<T>(&self, wish: impl FnOnce(oneshot::Sender<T>) -> Wish) -> Result<T, ClientError> {
        let (reply, answer) = oneshot::channel();
        self.wishes.send(wish(reply)).await.map_err(|_| ClientError::Stopped)?;
        answer.await.map_err(|_| ClientError::Stopped)
    }
}

struct Driver {
    replica: Arc<RwLock<Option<Replica>>>,
    /// Away while it commits.
    store: Option<Box<dyn Store>>,
    transport: Arc<dyn Transport>,
    calls: JoinSet<Result<Reply, Failure>>,
    under_way: HashMap<Id, CallId>,
    notices: broadcast::Sender<Notice>,
    stepped: watch::Sender<u64>,
    wake_at: Option<Instant>,
    started: Instant,
    call_timeout: Duration,
}

impl Driver {
    async fn run(mut self, mut line: mpsc::Receiver<Wish>) -> Result<(), ClientError> {
        self.step(Event::Tick).await?;
        loop {
            let wake_at = self.wake_at;
            tokio::select! {
                wish = line.recv() => match wish {
                    Some(wish) => self.grant(wish).await?,
                    None => return Ok(()),
                },
                Some(done) = self.calls.join_next_with_id() => self.done(done).await?,
                () = tokio::time::sleep_until(wake_at.unwrap_or_else(Instant::now)), if wake_at.is_some() => {
                    self.step(Event::Tick).await?;
                }
            }
        }
    }

    /// A transport that panicked has not answered; the replica must not wait for it for ever.
    async fn done(&mut self, done: Result<(Id, Result<Reply, Failure>), JoinError>) -> Result<(), ClientError> {
        let (task, result) = match done {
            Ok((task, result)) => (task, result),
            Err(error) => (error.id(), Err(Failure::Unreachable(error.to_string()))),
        };
        match self.under_way.remove(&task) {
            Some(call) => self.step(Event::Answered(call, result)).await,
            None => Ok(()),
        }
    }

    async fn grant(&mut self, wish: Wish) -> Result<(), ClientError> {
        let at = self.moment();
        match wish {
            Wish::SetOnline(event) => self.step(event).await,
            Wish::Submit(draft, reply) => {
                let mut taken = Err(RefusedDraft::QueueFull);
                self.change(|replica| match replica.submit(at, *draft) {
                    Ok((id, effects)) => {
                        taken = Ok(id);
                        Some(effects)
                    }
                    Err(refused) => {
                        taken = Err(refused);
                        None
                    }
                })
                .await?;
                answer(reply, taken)
            }
            Wish::Acknowledge(id, reply) => {
                self.change(|replica| Some(replica.acknowledge(at, id))).await?;
                answer(reply, ())
            }
            Wish::Wipe(reply) => {
                self.change(|replica| Some(replica.wipe(at))).await?;
                answer(reply, ())
            }
        }
    }

    async fn step(&mut self, event: Event) -> Result<(), ClientError> {
        let at = self.moment();
        self.change(|replica| Some(replica.step(at, event))).await
    }

    /// Steps the replica and performs the effects in order; none if nothing has happened. Nobody sees the replica before
    /// they are kept.
    async fn change(&mut self, step: impl FnOnce(&mut Replica) -> Option<Vec<Effect>>) -> Result<(), ClientError> {
        let shared = Arc::clone(&self.replica);
        let mut shared = shared.write().await;
        let Some(effects) = step(shared.as_mut().ok_or(ClientError::Stopped)?) else { return Ok(()) };
        self.wake_at = None;
        let mut rest = Vec::new();
        for effect in effects {
            match effect {
                Effect::Persist(writes) => {
                    if let Err(error) = self.persist(writes).await {
                        *shared = None;
                        return Err(error);
                    }
                }
                other => rest.push(other),
            }
        }
        drop(shared);
        rest.into_iter().for_each(|effect| self.perform(effect));
        self.stepped.send_modify(|steps| *steps = steps.wrapping_add(1));
        Ok(())
    }

    async fn persist(&mut self, writes: Vec<Write>) -> Result<(), ClientError> {
        let mut store = self.store.take().ok_or(ClientError::Stopped)?;
        let store = off_thread(move || store.commit(&writes).map(|()| store)).await?;
        self.store = Some(store);
        Ok(())
    }

    fn perform(&mut self, effect: Effect) {
        // Nobody may be listening.
        let tell = |notice: Notice| drop(self.notices.send(notice));
        match effect {
            Effect::Persist(_) => {}
            Effect::Wiped => tell(Notice::Wiped),
            Effect::Changed(keys) => tell(Notice::Changed(keys)),
            Effect::Outcome(outcome) => tell(Notice::Outcome(outcome)),
            Effect::Health(health) => tell(Notice::Health(health)),
            Effect::Call(call) => self.start(call),
            Effect::Wake { at_ms } => self.wake_at = Some(self.started + Duration::from_millis(at_ms)),
        }
    }

    fn start(&mut self, call: Call) {
        let transport = Arc::clone(&self.transport);
        let limit = self.call_timeout;
        let task = self.calls.spawn(async move {
            let result = tokio::time::timeout(limit, transport.call(call.request)).await;
            result.unwrap_or_else(|_| Err(Failure::Unreachable("no answer in time".into())))
        });
        self.under_way.insert(task.id(), call.id);
    }

    fn moment(&self) -> Moment {
        Moment {
            now_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            random: uuid::Uuid::new_v4().as_u128(),
        }
    }
}

/// The application may have stopped waiting.
fn answer<T>(reply: oneshot::Sender<T>, value: T) -> Result<(), ClientError> {
    drop(reply.send(value));
    Ok(())
}

/// Stores block; the runtime must not.
async fn off_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, ClientError> {
    Ok(tokio::task::spawn_blocking(work).await.map_err(|_| ClientError::Stopped)??)
}
