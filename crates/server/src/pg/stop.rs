//! How far the server has come in stopping, for a task that looks with every step and is hardly ever told.
//!
//! Waiting for a [`watch`] takes locks that all connections share, twice for each statement. Here the task gets in line
//! once and stays there; until it is woken it looks at a number that nobody changes.

use crate::serve::Phase;
use futures::future::BoxFuture;
use std::task::{Context, Poll, Waker};
use tokio::sync::watch;

pub(crate) struct Stop {
    phase: watch::Receiver<Phase>,
    /// As last seen.
    seen: Phase,
    /// Resolves when there is more to see.
    change: BoxFuture<'static, ()>,
    /// The task that is woken then.
    in_line: Option<Waker>,
}

impl Stop {
    pub(crate) fn new(mut phase: watch::Receiver<Phase>) -> Stop {
        let seen = *phase.borrow_and_update();
        Stop { seen, change: change(&phase), phase, in_line: None }
    }

    /// Ready once the server has come as far as this. A sender that is gone means that the server is gone.
    pub(crate) fn poll_reached(&mut self, cx: &mut Context<'_>, wanted: Phase) -> Poll<()> {
        while self.seen < wanted {
            let Ok(has_changed) = self.phase.has_changed() else { return Poll::Ready(()) };
            let is_in_line = self.in_line.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
            if is_in_line && !has_changed {
                return Poll::Pending;
            }
            if self.change.as_mut().poll(cx).is_pending() {
                self.in_line = Some(cx.waker().clone());
                return Poll::Pending;
            }
            self.seen = *self.phase.borrow_and_update();
            (self.change, self.in_line) = (change(&self.phase), None);
        }
        Poll::Ready(())
    }
}

/// Resolves when there is more to see than this receiver has, or nobody is left to say.
fn change(phase: &watch::Receiver<Phase>) -> BoxFuture<'static, ()> {
    let mut phase = phase.clone();
    Box::pin(async move {
        // Gone or changed: either is worth a look.
        let _ = phase.changed().await;
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    async fn reached(stop: &mut Stop, wanted: Phase) {
        poll_fn(|cx| stop.poll_reached(cx, wanted)).await;
    }

    #[tokio::test]
    async fn a_task_that_looked_long_ago_is_woken() {
        let (sender, receiver) = watch::channel(Phase::Running);
        let mut stop = Stop::new(receiver);
        let waits = tokio::spawn(async move {
            // Looks that find nothing, as a statement's steps are.
            for _ in 0..3 {
                let look = poll_fn(|cx| Poll::Ready(stop.poll_reached(cx, Phase::Draining).is_ready()));
                assert!(!look.await);
                tokio::task::yield_now().await;
            }
            reached(&mut stop, Phase::Draining).await;
            reached(&mut stop, Phase::Stopping).await;
            stop
        });
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        sender.send_replace(Phase::Draining);
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        assert!(!waits.is_finished(), "it has come half of the way");
        sender.send_replace(Phase::Stopping);
        waits.await.expect("woken");
    }

    #[tokio::test]
    async fn another_task_may_go_on_waiting() {
        let (sender, receiver) = watch::channel(Phase::Running);
        let mut stop = Stop::new(receiver);
        let look = poll_fn(|cx| Poll::Ready(stop.poll_reached(cx, Phase::Stopping).is_ready()));
        assert!(!look.await);
        let waits = tokio::spawn(async move { reached(&mut stop, Phase::Stopping).await });
        tokio::task::yield_now().await;
        sender.send_replace(Phase::Stopping);
        waits.await.expect("woken");
    }

    #[tokio::test]
    async fn a_server_that_is_gone_has_stopped() {
        let (sender, receiver) = watch::channel(Phase::Running);
        let mut stop = Stop::new(receiver);
        let waits = tokio::spawn(async move { reached(&mut stop, Phase::Stopping).await });
        tokio::task::yield_now().await;
        drop(sender);
        waits.await.expect("woken");
    }
}
