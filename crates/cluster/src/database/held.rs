//! Statements that wait: what they want is being cut over, and nobody serves it for a moment.
//!
//! They are many at once, all those of a busy tenant, so there is a limit to their number, and each waits for a limited
//! time (I-65, I-66).

use isles_engine::env::Env;
use isles_kernel::error::SqlError;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Statements that wait at once. Each is a client that would wait anyway; beyond it the server has more to lose.
const MAX_HELD: usize = 10_000;
/// How long one waits: many times the longest cutover.
const LIMIT: Duration = Duration::from_secs(10);

#[derive(Default)]
pub(crate) struct Holding(AtomicUsize);

/// A statement that waits.
pub(crate) struct Held {
    until: Duration,
    /// The news that it knew when it was tried last.
    pub(crate) seen: Option<u64>,
    holding: Arc<Holding>,
}

impl Holding {
    pub(super) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn hold(holding: &Arc<Holding>, env: &dyn Env) -> Result<Held, SqlError> {
        let before = holding.0.fetch_add(1, Ordering::SeqCst);
        let held = Held { until: env.elapsed() + LIMIT, seen: None, holding: holding.clone() };
        match before < MAX_HELD {
            true => Ok(held),
            false => Err(SqlError::new("53300", "too many statements wait for what is being moved")
                .with_hint("retry in a moment")),
        }
    }
}

impl Held {
    pub(crate) fn is_over(&self, env: &dyn Env) -> bool {
        env.elapsed() >= self.until
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.holding.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use isles_engine::env::TokioEnv;

    /// I-65
    #[tokio::test]
    async fn only_so_many_wait() {
        let (holding, env) = (Arc::<Holding>::default(), TokioEnv::current());
        let held: Vec<Held> = (0..MAX_HELD).map(|_| Holding::hold(&holding, &env).unwrap()).collect();
        assert_eq!(Holding::hold(&holding, &env).err().unwrap().sqlstate, "53300");
        drop(held);
        assert_eq!(holding.count(), 0);
        assert!(Holding::hold(&holding, &env).is_ok());
    }
}
