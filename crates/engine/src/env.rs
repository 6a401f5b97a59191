//! What the outside world gives to a shard: time, randomness, tasks, threads.
//!
//! Nothing in the product reads a clock or starts a task on its own. It asks its [`Env`], so that the simulator
//! can run the very same code with virtual time, one thread and a seed.

use futures::future::BoxFuture;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Clock, timers, randomness, tasks and blocking work.
pub trait Env: Send + Sync + 'static {
    /// Wall clock, microseconds since 1970. It may jump; order nothing by it.
    fn now_micros(&self) -> u64;

    /// Monotonic time since this environment began. Deadlines are points on this line.
    fn elapsed(&self) -> Duration;

    /// Resolves after `duration`.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;

    /// Runs a task in the background.
    fn spawn(&self, task: BoxFuture<'static, ()>);

    /// Runs work that may block (disk, SQLite) away from the threads that serve requests. The pool is shared by
    /// all shards: there is no thread per shard.
    fn blocking(&self, job: Box<dyn FnOnce() + Send>);

    /// Random bits; from the seed in simulation.
    fn random(&self) -> u64;
}

/// The real world: tokio's runtime and the machine's clocks.
pub struct TokioEnv {
    runtime: tokio::runtime::Handle,
    began: Instant,
}

impl TokioEnv {
    /// The environment of the runtime that this is called in.
    pub fn current() -> TokioEnv {
        TokioEnv { runtime: tokio::runtime::Handle::current(), began: Instant::now() }
    }
}

impl Env for TokioEnv {
    fn now_micros(&self) -> u64 {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        since_1970.as_micros() as u64
    }

    fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        self.runtime.spawn(task);
    }

    fn blocking(&self, job: Box<dyn FnOnce() + Send>) {
        self.runtime.spawn_blocking(job);
    }

    fn random(&self) -> u64 {
        use std::hash::{BuildHasher, RandomState};
        RandomState::new().hash_one(self.began.elapsed().as_nanos())
    }
}
