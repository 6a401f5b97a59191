//! Threads that serve connections, each by itself.
//!
//! A connection stays on the thread that it was given: its messages are read, answered and written there, and nobody is
//! woken for it. Threads that share their work wake each other for each message, and wait for that. What takes long is
//! done elsewhere: long reads and all writes have threads of their own. Tenants whose connections share a thread take turns.

use super::turns::{Seat, Turns};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// One of the threads. It ends, with whatever still runs on it, when this is dropped.
struct Thread {
    handle: Handle,
    /// Connections that it has.
    load: Arc<AtomicUsize>,
    turns: Arc<Turns>,
    _ends: oneshot::Sender<()>,
}

pub(crate) struct Threads {
    all: Vec<Thread>,
}

/// A connection is counted until this is dropped.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Threads {
    /// One for each processor.
    pub(crate) fn start() -> io::Result<Threads> {
        let count = std::thread::available_parallelism().map_or(1, usize::from);
        (0..count).map(Thread::start).collect::<io::Result<Vec<_>>>().map(|all| Threads { all })
    }

    /// Runs a connection on the thread that has the fewest.
    pub(crate) fn spawn<C: Future<Output = ()> + Send + 'static>(&self, connection: impl FnOnce(Seat) -> C) {
        let Some(thread) = self.all.iter().min_by_key(|thread| thread.load.load(Ordering::Relaxed)) else { return };
        thread.load.fetch_add(1, Ordering::Relaxed);
        let counted = Counted(thread.load.clone());
        let connection = connection(thread.turns.seat());
        thread.handle.spawn(async move {
            connection.await;
            drop(counted);
        });
    }
}

impl Thread {
    fn start(number: usize) -> io::Result<Thread> {
        let turns = Arc::<Turns>::default();
        let idle = turns.clone();
        let runtime = Builder::new_current_thread().enable_all().on_thread_park(move || idle.idle()).build()?;
        runtime.spawn(turns.clone().go_round());
        let (handle, (ends, ended)) = (runtime.handle().clone(), oneshot::channel::<()>());
        // Nothing is ever sent.
        let work = move || drop(runtime.block_on(ended));
        std::thread::Builder::new().name(format!("connections-{number}")).spawn(work)?;
        Ok(Thread { handle, load: Arc::default(), turns, _ends: ends })
    }
}
