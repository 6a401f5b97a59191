//! What the outside world gives to a store: time, timers, tasks, randomness.
//!
//! Nothing in a store reads a clock, sleeps, starts a task or draws an id by itself, so that the simulator runs the very
//! same code in virtual time and from a seed. Only deliveries over HTTP, which simulations have none of, go by tokio.

use futures::future::{Either, select};
use isles_engine::env::{Env, TokioEnv};
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::UnboundedSender;
use uuid::Uuid;

/// Where ids and secrets come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IdSource {
    /// The operating system: nobody can guess them.
    #[default]
    System,
    /// The environment, which in simulation is the seed.
    Env,
}

/// Time, timers, tasks and randomness.
#[derive(Clone)]
pub struct Surroundings {
    env: Arc<dyn Env>,
    ids: IdSource,
}

impl Surroundings {
    pub fn new(env: Arc<dyn Env>, ids: IdSource) -> Surroundings {
        Surroundings { env, ids }
    }

    /// The real ones, of the runtime that this is called in.
    pub fn current() -> Surroundings {
        Surroundings::new(Arc::new(TokioEnv::current()), IdSource::System)
    }

    /// Milliseconds since 1970.
    pub(crate) fn now_ms(&self) -> i64 {
        i64::try_from(self.env.now_micros() / 1_000).unwrap_or(i64::MAX)
    }

    /// Time that never jumps; deadlines are points on it.
    pub(crate) fn elapsed(&self) -> Duration {
        self.env.elapsed()
    }

    pub(crate) async fn sleep(&self, duration: Duration) {
        self.env.sleep(duration).await;
    }

    /// What a future comes to, or none if it takes longer.
    pub(crate) async fn within<T>(&self, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
        match select(pin!(future), self.env.sleep(limit)).await {
            Either::Left((done, _)) => Some(done),
            Either::Right(_) => None,
        }
    }

    /// Starts a task that tells what it came to. It ends when nobody listens any more.
    pub(crate) fn start<T: Send + 'static>(
        &self,
        told: UnboundedSender<T>,
        task: impl Future<Output = T> + Send + 'static,
    ) {
        self.env.spawn(Box::pin(async move {
            let ended = match select(pin!(told.closed()), pin!(task)).await {
                Either::Left(_) => return,
                Either::Right((ended, _)) => ended,
            };
            // Whoever listened may have gone just now.
            let _ = told.send(ended);
        }));
    }

    pub(crate) fn random(&self) -> u64 {
        match self.ids {
            IdSource::System => {
                let (high, low) = Uuid::new_v4().as_u64_pair();
                // The few bits that are fixed in one half meet others that are not.
                high ^ low.rotate_left(32)
            }
            IdSource::Env => self.env.random(),
        }
    }

    /// An id, roughly in order of time.
    pub(crate) fn new_id(&self) -> Uuid {
        match self.ids {
            IdSource::System => Uuid::now_v7(),
            IdSource::Env => {
                let mut random = [0; 10];
                random[..8].copy_from_slice(&self.env.random().to_le_bytes());
                random[8..].copy_from_slice(&self.env.random().to_le_bytes()[..2]);
                uuid::Builder::from_unix_timestamp_millis(self.now_ms().unsigned_abs(), &random).into_uuid()
            }
        }
    }

    /// A text that nobody guesses.
    pub(crate) fn new_secret(&self) -> String {
        match self.ids {
            IdSource::System => [Uuid::new_v4(), Uuid::new_v4()].map(|id| id.simple().to_string()).concat(),
            IdSource::Env => [self.env.random(), self.env.random()].map(|bits| format!("{bits:016x}")).concat(),
        }
    }
}
