//! What a long statement says while it runs.
//!
//! Notices of most statements are told when they end ([`super::Session::take_notices`]). Work of minutes says how far it
//! is: whoever waits for the statement is handed each notice as it comes. There is one who waits, and it looks with every
//! step of every statement; so a look that finds nothing takes no lock.

use futures::task::AtomicWaker;
use isles_kernel::error::SqlError;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Poll;

/// Notices that wait to be told. Of progress, the later ones are what matters.
const WAITING_MAX: usize = 100;

#[derive(Default)]
pub struct Progress {
    waiting: Mutex<VecDeque<SqlError>>,
    /// Whether any wait; changed under the lock alone.
    any: AtomicBool,
    told: AtomicWaker,
}

impl Progress {
    fn waiting(&self) -> MutexGuard<'_, VecDeque<SqlError>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn tell(&self, notice: SqlError) {
        let mut waiting = self.waiting();
        if waiting.len() >= WAITING_MAX {
            waiting.pop_front();
        }
        waiting.push_back(notice);
        self.any.store(true, Ordering::Release);
        drop(waiting);
        self.told.wake();
    }

    /// What has been said and not been heard.
    pub fn take(&self) -> Option<SqlError> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let mut waiting = self.waiting();
        let notice = waiting.pop_front();
        self.any.store(!waiting.is_empty(), Ordering::Release);
        notice
    }

    /// Waits for the next notice. Whoever stops waiting loses none; of several who wait, the last one is told.
    pub async fn next(&self) -> SqlError {
        poll_fn(|cx| {
            // In line first, and then a look: what is said in between wakes us.
            self.told.register(cx.waker());
            self.take().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[test]
    fn notices_are_heard_in_order_whoever_waited_before() {
        let progress = Progress::default();
        assert!(progress.next().now_or_never().is_none());
        (0..=WAITING_MAX).for_each(|n| progress.tell(SqlError::new("00000", n.to_string())));
        let heard = |said: Option<SqlError>| said.map(|notice| notice.message);
        assert_eq!(heard(progress.next().now_or_never()).as_deref(), Some("1"), "the oldest one has gone");
        assert_eq!(heard(progress.take()).as_deref(), Some("2"));
        assert_eq!(std::iter::from_fn(|| progress.take()).count(), WAITING_MAX - 2);
        assert!(progress.take().is_none() && progress.next().now_or_never().is_none());
    }

    #[tokio::test]
    async fn one_who_waits_is_woken() {
        let progress = std::sync::Arc::new(Progress::default());
        let teller = progress.clone();
        let told = tokio::spawn(async move {
            tokio::task::yield_now().await;
            teller.tell(SqlError::new("00000", "news"));
        });
        assert_eq!(progress.next().await.message, "news");
        told.await.expect("told");
    }
}
