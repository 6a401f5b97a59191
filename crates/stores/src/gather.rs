//! Writes of many clients to one shard, as one request.
//!
//! ```text
//! client ─┐
//! client ─┼─► queue of a shard ── all that wait, while another request is on its way ──► one request ─► an answer for each
//! client ─┘
//! ```
//!
//! A SQLite shard has one writer, and requests share its flush. But each request passes a session, routing, fences and a
//! queue by itself, which costs several times what a row costs. So what comes while others are being written waits for
//! them, and then goes together. Whoever comes alone does not wait.
//!
//! Each stands for itself: if the request fails because of one of them, they are sent one by one. A request of which
//! nobody knows whether it has happened is not sent again.

use super::ask::Rows;
use super::{Result, Stores};
use futures::channel::oneshot;
use isles_cluster::session::{Given, MAX_TOGETHER};
use isles_kernel::error::SqlError;
use isles_kernel::names::ShardId;
use isles_kernel::value::Value;
use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

/// Requests of one shard that are on their way: the next is made ready while one is flushed.
const COURIERS: usize = 2;
/// Statements of one request. A write waits for no more than so many others.
const MAX_GATHERED: usize = 256;
const _: () = assert!(MAX_GATHERED <= MAX_TOGETHER);

/// A statement, and who waits for what comes of it.
struct Waiting {
    sql: String,
    params: Vec<Value>,
    tell: oneshot::Sender<Result<Rows>>,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<Waiting>,
    under_way: usize,
}

/// The queues of all shards. One that nobody waits in is not kept.
#[derive(Default)]
pub(super) struct Gather {
    queues: Mutex<HashMap<ShardId, Queue>>,
}

/// One of those who send what waits for a shard.
struct Courier {
    stores: Stores,
    shard: ShardId,
    /// It has found nothing more, and is not counted any longer.
    has_left: bool,
}

impl Drop for Courier {
    fn drop(&mut self) {
        if !self.has_left {
            self.stores.shared.gather.lose(&self.shard);
        }
    }
}

/// Whether who comes to a queue must bring a courier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Joined {
    First,
    Waits,
}

impl Gather {
    fn with<T>(&self, work: impl FnOnce(&mut HashMap<ShardId, Queue>) -> T) -> T {
        work(&mut self.queues.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn join(&self, shard: &ShardId, one: Waiting) -> Joined {
        self.with(|queues| {
            let queue = queues.entry(shard.clone()).or_default();
            queue.waiting.push(one);
            match queue.under_way < COURIERS {
                true => {
                    queue.under_way += 1;
                    Joined::First
                }
                false => Joined::Waits,
            }
        })
    }

    /// Some that wait for a shard; if there are none, the courier has left. Both in one step: who comes between a look and
    /// a leave would wait for a courier that is not there.
    fn take_or_leave(&self, shard: &ShardId) -> Option<Vec<Waiting>> {
        self.with(|queues| {
            let queue = queues.get_mut(shard)?;
            if !queue.waiting.is_empty() {
                return Some(queue.waiting.drain(..queue.waiting.len().min(MAX_GATHERED)).collect());
            }
            queue.under_way -= 1;
            if queue.under_way == 0 {
                queues.remove(shard);
            }
            None
        })
    }

    /// A courier has ended in the middle. If it was the last one, those who wait are told, by the end of their channels.
    fn lose(&self, shard: &ShardId) {
        let lost = self.with(|queues| {
            let queue = queues.get_mut(shard)?;
            queue.under_way -= 1;
            if queue.under_way > 0 { None } else { queues.remove(shard) }
        });
        drop(lost);
    }
}

/// Whether nothing has happened of a request because of what one of its statements is, so that the others may succeed.
fn is_of_one(error: &SqlError) -> bool {
    matches!(error.sqlstate.get(..2), Some("21" | "22" | "23" | "40" | "42" | "54"))
}

impl Stores {
    /// Runs a statement that writes to a shard, together with others that do.
    pub(super) async fn write_gathered(&self, shard: ShardId, sql: String, params: Vec<Value>) -> Result<Rows> {
        let (tell, told) = oneshot::channel();
        if self.shared.gather.join(&shard, Waiting { sql, params, tell }) == Joined::First {
            let courier = Courier { stores: self.clone(), shard, has_left: false };
            self.env().spawn(Box::pin(courier.send_all()));
        }
        told.await.map_err(|_| SqlError::new("57P01", "the database is being closed"))?
    }

    /// Unless all is done, the parameters are there as before.
    async fn send_gathered(&self, waiting: &mut [Waiting]) -> Result<Option<Vec<Rows>>> {
        let mut session = self.session()?;
        let mut prepared = Vec::with_capacity(waiting.len());
        for one in waiting.iter() {
            prepared.push(session.prepare(&one.sql, &[]).await?);
        }
        let params = waiting.iter_mut().map(|one| std::mem::take(&mut one.params));
        let given: Vec<Given> = prepared.into_iter().zip(params).collect();
        let outcomes = session.execute_in_one_request(&given).await;
        match outcomes {
            Ok(Some(outcomes)) => {
                self.give_back(session);
                Ok(Some(outcomes.into_iter().map(|outcome| outcome.rows).collect()))
            }
            other => {
                waiting.iter_mut().zip(given).for_each(|(one, (_, params))| one.params = params);
                other.map(|_| None)
            }
        }
    }
}

impl Courier {
    async fn send_all(mut self) {
        loop {
            let Some(mut waiting) = self.stores.shared.gather.take_or_leave(&self.shard) else {
                self.has_left = true;
                return;
            };
            match self.stores.send_gathered(&mut waiting).await {
                // Who does not wait any more need not be told.
                Ok(Some(all)) => waiting.into_iter().zip(all).for_each(|(one, rows)| drop(one.tell.send(Ok(rows)))),
                Ok(None) => self.send_each(waiting).await,
                Err(error) if waiting.len() > 1 && is_of_one(&error) => self.send_each(waiting).await,
                Err(error) => waiting.into_iter().for_each(|one| drop(one.tell.send(Err(error.clone())))),
            }
        }
    }

    async fn send_each(&self, waiting: Vec<Waiting>) {
        let sent = waiting.into_iter().map(|one| async move {
            let rows = self.stores.ask(&one.sql, one.params).await;
            drop(one.tell.send(rows));
        });
        futures::future::join_all(sent).await;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn waiting() -> (Waiting, oneshot::Receiver<Result<Rows>>) {
        let (tell, told) = oneshot::channel();
        (Waiting { sql: String::new(), params: Vec::new(), tell }, told)
    }

    /// However they come and go: where somebody waits, there is a courier who will look again.
    #[test]
    fn nobody_waits_where_no_courier_is_under_way() {
        let (gather, shard) = (Gather::default(), ShardId::new("s0").unwrap());
        let mut told = Vec::new();
        for wanted in [Joined::First, Joined::First, Joined::Waits] {
            let (one, receiver) = waiting();
            assert_eq!(gather.join(&shard, one), wanted);
            told.push(receiver);
        }
        assert_eq!(gather.take_or_leave(&shard).unwrap().len(), 3);
        // Both couriers find nothing, and from that moment on who comes brings one.
        assert!(gather.take_or_leave(&shard).is_none());
        let (one, _told) = waiting();
        assert_eq!(gather.join(&shard, one), Joined::First);
        assert_eq!(gather.take_or_leave(&shard).unwrap().len(), 1);
        assert!(gather.take_or_leave(&shard).is_none() && gather.take_or_leave(&shard).is_none());
        assert!(gather.with(|queues| queues.is_empty()), "what nobody waits in is not kept");
        // One that ends in the middle leaves nobody waiting for ever.
        let (one, mut told) = waiting();
        assert_eq!(gather.join(&shard, one), Joined::First);
        gather.lose(&shard);
        assert!(told.try_recv().is_err(), "the channel has ended");
    }
}
