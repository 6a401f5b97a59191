//! Calls to the server: what is asked, what may come back, and how long to wait after a failure.

use super::{Effect, Moment, Options, Replica};
use crate::replica::turn::Turn;
use isles_kernel::sync::{
    Cursor, OutboxPage, OutboxQuery, Refusal, SnapshotPage, SnapshotQuery, SubmitRequest, SubmitResponse,
};

/// The most that a server can make a client wait by `retryAfterMs`.
const MAX_RETRY_AFTER_MS: u64 = 3_600_000;
/// Beyond this many doublings the pause is at its longest for any sensible setting.
const MAX_DOUBLINGS: u32 = 16;

/// A call of this process life. Its answer is taken once; others with its number are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId(pub(super) u64);

#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    pub id: CallId,
    pub request: Request,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    Outbox(OutboxQuery),
    Snapshot(SnapshotQuery),
    Submit(SubmitRequest),
}

#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    Outbox(OutboxPage),
    Snapshot(SnapshotPage),
    Submit(Box<SubmitResponse>),
}

/// Why there is no reply.
#[derive(Debug, Clone, PartialEq)]
pub enum Failure {
    /// No answer came, or not in time. The request may have been executed.
    Unreachable(String),
    /// The answer is not one that this program can read.
    Unreadable(String),
    Refused(Refusal),
}

/// How far the rows are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// A snapshot is being read. Rows that were there before are shown until it is whole.
    Resyncing,
    CatchingUp,
    /// The rows are as new as the last answer was.
    Live,
}

/// What stands in the way. The replica goes on trying.
#[derive(Debug, Clone, PartialEq)]
pub enum Trouble {
    Unreachable(String),
    Unreadable(String),
    Refused(Refusal),
    /// The server's log did not continue where the replica was, or contradicted itself. The rows are read anew.
    Broken(String),
    TooManyRows {
        limit: usize,
    },
    /// The log does not reach back far enough, and the server has no snapshots.
    NoSnapshot(Refusal),
}

#[derive(Debug, Clone, PartialEq)]
pub struct Health {
    pub phase: Phase,
    pub online: bool,
    pub trouble: Option<Trouble>,
}

/// What a call under way has asked for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Asked {
    Rows,
    Log(Cursor),
    Outcome,
}

/// One call at a time.
#[derive(Debug, Default)]
pub(super) struct Lane {
    call: Option<(CallId, Asked)>,
    /// Since the last success.
    failures: u32,
    not_before_ms: u64,
    pub(super) trouble: Option<Trouble>,
}

impl Lane {
    fn is_free(&self, now_ms: u64) -> bool {
        self.call.is_none() && self.not_before_ms <= now_ms
    }

    fn take(&mut self, id: CallId) -> Option<Asked> {
        self.call.take_if(|(under_way, _)| *under_way == id).map(|(_, asked)| asked)
    }

    /// Does not wait for the answer any more.
    pub(super) fn abandon(&mut self) {
        self.call = None;
    }

    pub(super) fn retry_now(&mut self) {
        self.not_before_ms = 0;
    }

    pub(super) fn succeed(&mut self) {
        *self = Lane { call: self.call, ..Lane::default() };
    }

    /// Waits before the next call: twice as long after each failure, and half of it at random, so that the clients of a
    /// server that comes back do not all come at once.
    pub(super) fn fail(&mut self, at: Moment, options: &Options, trouble: Trouble) {
        let pause = options.backoff_ms.saturating_mul(1 << self.failures.min(MAX_DOUBLINGS));
        let pause = pause.min(options.max_backoff_ms);
        let jitter = (at.random % u128::from(pause / 2 + 1)) as u64;
        let asked = match &trouble {
            Trouble::Refused(refusal) => refusal.retry_after_ms.unwrap_or(0).min(MAX_RETRY_AFTER_MS),
            _ => 0,
        };
        self.failures = self.failures.saturating_add(1);
        self.not_before_ms = at.now_ms.saturating_add((pause - jitter).max(asked));
        self.trouble = Some(trouble);
    }
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Trouble {
        match failure {
            Failure::Unreachable(why) => Trouble::Unreachable(why),
            Failure::Unreadable(why) => Trouble::Unreadable(why),
            Failure::Refused(refusal) => Trouble::Refused(refusal),
        }
    }
}

impl Replica {
    /// Takes an answer, if it is the one that is waited for. Late ones and copies change nothing.
    pub(super) fn answered(&mut self, call: CallId, result: Result<Reply, Failure>, turn: &mut Turn) {
        if let Some(asked) = self.reading.take(call) {
            self.read_answered(call, asked, result, turn);
        } else if self.submitting.take(call).is_some() {
            self.submit_answered(result, turn);
        }
    }

    pub(super) fn start_calls(&mut self, turn: &mut Turn) {
        if !self.online {
            return;
        }
        if self.head.shown.is_none() && self.head.resync.is_none() {
            self.begin_resync(turn);
        }
        let now_ms = turn.at.now_ms;
        if self.reading.is_free(now_ms) {
            let (asked, request) = self.next_read();
            self.reading.call = Some(self.call(asked, request, turn));
        }
        if self.submitting.is_free(now_ms)
            && let Some(request) = self.next_submit(turn)
        {
            self.submitting.call = Some(self.call(Asked::Outcome, Request::Submit(request), turn));
        }
    }

    fn call(&mut self, asked: Asked, request: Request, turn: &mut Turn) -> (CallId, Asked) {
        let id = CallId(self.next_call);
        self.next_call += 1;
        turn.calls.push(Call { id, request });
        (id, asked)
    }

    /// When a lane may call again that waits after a failure.
    pub(super) fn wake_at(&self, now_ms: u64) -> Option<u64> {
        let waits = |lane: &Lane| Some(lane.not_before_ms).filter(|at| lane.call.is_none() && *at > now_ms);
        let submits = !self.queue.is_empty();
        let times = [waits(&self.reading), waits(&self.submitting).filter(|_| submits)];
        times.into_iter().flatten().min().filter(|_| self.online)
    }

    pub(super) fn news_of_health(&mut self) -> Option<Health> {
        let health = self.health();
        let news = self.health.as_ref() != Some(&health);
        self.health = Some(health.clone());
        news.then_some(health)
    }
}

impl Effect {
    /// Whether this is something for the application, and not for the driver.
    pub fn is_news(&self) -> bool {
        matches!(self, Effect::Wiped | Effect::Changed(_) | Effect::Outcome(_) | Effect::Health(_))
    }
}
