//! What a long statement says while it runs.
//!
//! Notices of most statements are told when they end ([`super::Session::take_notices`]). Work of minutes says how far it
//! is: whoever waits for the statement is handed each notice as it comes.

use isles_kernel::error::SqlError;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Notices that wait to be told. Of progress, the later ones are what matters.
const WAITING_MAX: usize = 100;

#[derive(Default)]
pub struct Progress {
    waiting: Mutex<VecDeque<SqlError>>,
    told: Notify,
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
        drop(waiting);
        self.told.notify_one();
    }

    /// What has been said and not been heard.
    pub fn take(&self) -> Option<SqlError> {
        self.waiting().pop_front()
    }

    /// Waits for the next notice. Whoever stops waiting loses none.
    pub async fn next(&self) -> SqlError {
        loop {
            if let Some(notice) = self.take() {
                return notice;
            }
            self.told.notified().await;
        }
    }
}
