//! The core: a replica of one partition, as a state machine.
//!
//! [`Replica::step`] takes what has happened and gives what is to be done; [`Replica::submit`] and its neighbours do the
//! same for what the application wants. Time and randomness come with each call ([`Moment`]), so that any history can be
//! replayed. Effects are performed in their order: what is to be kept is kept before anything is sent or shown.
//!
//! Two lanes run side by side, each with at most one call under way:
//!
//! ```text
//! reading     nothing ─► Rows: pages of a snapshot ─► Log: entries up to the last page ─► shown, long polls
//!                          ▲                            │ below the floor, or another log
//!                          └────────────────────────────┴──────── resync, while the old rows are shown
//!
//! submitting  queue ─► pending: kept, then sent until there is an answer ─► applied: shown until the rows have it
//!               ▲         │ conflict                                          └► confirmed
//!               └─────────┴► given up, with the reason
//! ```
//!
//! Invariants (docs/invariants.md):
//!   * I-3   A command is put into another request only when the one before is known not to have been applied. What may
//!     have been applied and cannot be asked for is given up as such, and not sent again.
//!   * I-32  Entries are applied once, in order, each by its number and by the id of the one before.
//!   * I-34  What is shown without its overlay is the server's state at [`Replica::cursor`], at every instant. A log that
//!     does not continue at the cursor leads to a resync, never to a guess.
//!   * The rows of one partition are never shown, and its commands never sent, under another.
//!
//! In reading order:
//!   * `state`   what is kept under which name
//!   * `lanes`   calls, answers, backoff
//!   * `read`    snapshots and entries
//!   * `submit`  requests and their answers
//!   * `turn`    what one step changes, and its effects in order

mod lanes;
mod read;
mod state;
mod submit;
mod turn;

pub use lanes::{Call, CallId, Failure, Health, Phase, Reply, Request, Trouble};
pub use state::Damaged;

use crate::command::{CommandId, CommandState, Draft, GivenUp, MAX_QUEUED, Outcome, Pending, Queued, RefusedDraft};
use crate::query::{Index, Query, Rows};
use crate::row::Row;
use crate::store::{Kept, Write};
use isles_kernel::sync::{Cursor, MAX_WAIT_MS, PartitionId, RowKey};
use lanes::Lane;
use state::{Head, Resync};
use std::collections::BTreeMap;
use turn::Turn;

/// The most rows that a replica holds: they are in memory, at some kilobytes each.
pub const MAX_ROWS: usize = 1_000_000;

/// How a replica behaves.
#[derive(Debug, Clone)]
pub struct Options {
    pub indexes: Vec<Index>,
    /// At most [`MAX_ROWS`].
    pub max_rows: usize,
    /// How long the server may hold a read for which it has nothing.
    pub wait_ms: u64,
    /// The first pause after a failure; each further one doubles it.
    pub backoff_ms: u64,
    /// The longest pause: a server that comes back is found within it.
    pub max_backoff_ms: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            indexes: Vec::new(),
            max_rows: MAX_ROWS,
            wait_ms: MAX_WAIT_MS,
            backoff_ms: 250,
            max_backoff_ms: 60_000,
        }
    }
}

/// When a step happens: the time, and one draw of randomness, from which the step takes what it needs.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// Milliseconds of any clock that does not go backwards while the replica is open.
    pub now_ms: u64,
    /// 128 bits that nobody can guess and that never come again. They become the id of a request.
    pub random: u128,
}

/// What has happened.
#[derive(Debug)]
pub enum Event {
    /// Time has passed; also the first event, which sets things going.
    Tick,
    /// The network is there: try at once.
    Online,
    /// The network is gone: do not try.
    Offline,
    Answered(CallId, Result<Reply, Failure>),
}

/// What is to be done, in this order.
#[derive(Debug, Clone, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "few of them are there at a time, and none for long")]
pub enum Effect {
    /// Keep these, all or none. If that fails, the replica is to be dropped and opened again.
    Persist(Vec<Write>),
    /// All rows are gone, because the partition is another one.
    Wiped,
    /// What is seen of these rows has changed.
    Changed(Vec<RowKey>),
    Outcome(Outcome),
    Health(Health),
    Call(Call),
    /// Step with a [`Event::Tick`] at this time, unless something happens before.
    Wake {
        at_ms: u64,
    },
}

pub struct Replica {
    options: Options,
    head: Head,
    /// The head as the store has it; none if it has none.
    kept_head: Option<Head>,
    /// Rows of the shown generation, and the overlay.
    rows: Rows,
    /// Rows of the generation that a resync fills.
    staging: BTreeMap<RowKey, Row>,
    /// Commands without an outcome, those of the pending request among them.
    queue: BTreeMap<CommandId, Queued>,
    pending: Option<Pending>,
    given_up: BTreeMap<CommandId, GivenUp>,
    reading: Lane,
    submitting: Lane,
    next_call: u64,
    /// Calls from this one on began after the pending request was known to be applied.
    applied_before: u64,
    /// The last read has reached the end of the log. Requests are made only then: an older cursor would meet conflicts
    /// that the replica can see by itself.
    caught_up: bool,
    online: bool,
    /// As it was last told.
    health: Option<Health>,
    /// Left over from a crash or a format of old; deleted by the first step.
    leftovers: Vec<Write>,
}

impl Replica {
    /// Opens what a store has kept. Nothing is sent before the first step.
    pub fn open(kept: Kept, options: Options) -> Result<Replica, Damaged> {
        let mut state = state::read(kept)?;
        let rows = Rows::new(std::mem::take(&mut state.shown), &options.indexes);
        let mut replica = Replica {
            options,
            kept_head: state.kept.then(|| state.head.clone()),
            head: state.head,
            rows,
            staging: state.staging,
            queue: state.queue,
            pending: state.pending,
            given_up: state.given_up,
            reading: Lane::default(),
            submitting: Lane::default(),
            next_call: 0,
            applied_before: 0,
            caught_up: false,
            online: true,
            health: None,
            leftovers: state.leftovers,
        };
        replica.rebase(BTreeMap::new());
        Ok(replica)
    }

    /// What has happened → what is to be done.
    pub fn step(&mut self, at: Moment, event: Event) -> Vec<Effect> {
        let mut turn = Turn::new(at);
        match event {
            Event::Tick => {}
            Event::Online => {
                self.online = true;
                self.reading.retry_now();
                self.submitting.retry_now();
            }
            Event::Offline => {
                self.online = false;
                // What is under way will not be answered, and what is missed has to be read first.
                self.reading.abandon();
                self.submitting.abandon();
                self.caught_up = false;
            }
            Event::Answered(call, result) => self.answered(call, result, &mut turn),
        }
        self.finish(turn)
    }

    /// Takes a command: it is kept, shown at once, and submitted when the server can be reached.
    pub fn submit(&mut self, at: Moment, draft: Draft) -> Result<(CommandId, Vec<Effect>), RefusedDraft> {
        draft.check()?;
        if self.queue.len() + self.given_up.len() >= MAX_QUEUED {
            return Err(RefusedDraft::QueueFull);
        }
        let mut turn = Turn::new(at);
        let id = CommandId(self.head.next_command);
        self.head.next_command += 1;
        self.enqueue(id, Queued { draft, attempts: 0, alone: false }, &mut turn);
        Ok((id, self.finish(turn)))
    }

    /// Forgets a command that was given up.
    pub fn acknowledge(&mut self, at: Moment, id: CommandId) -> Vec<Effect> {
        let mut turn = Turn::new(at);
        if self.given_up.remove(&id).is_some() {
            turn.delete(state::given_up_name(id));
        }
        self.finish(turn)
    }

    /// Forgets everything, unsent commands too, as when a user logs out for good; then begins anew.
    pub fn wipe(&mut self, at: Moment) -> Vec<Effect> {
        let mut turn = Turn::new(at);
        self.forget_rows(&mut turn);
        for id in std::mem::take(&mut self.queue).into_keys() {
            turn.delete(state::command_name(id));
        }
        for id in std::mem::take(&mut self.given_up).into_keys() {
            turn.delete(state::given_up_name(id));
        }
        self.set_pending(None, &mut turn);
        self.finish(turn)
    }

    /// The version and entry that the rows are at; none before there are any.
    pub fn cursor(&self) -> Option<Cursor> {
        self.head.shown.as_ref().map(|shown| shown.cursor)
    }

    pub fn partition(&self) -> Option<&PartitionId> {
        self.head.partition.as_ref()
    }

    /// A row as it is seen: with the edits of unconfirmed commands.
    pub fn get(&self, key: &RowKey) -> Option<&Row> {
        self.rows.get(key)
    }

    pub fn list(&self, query: &Query) -> Vec<(&RowKey, &Row)> {
        self.rows.list(query)
    }

    /// The server's rows at [`Replica::cursor`], without edits.
    pub fn confirmed(&self) -> &BTreeMap<RowKey, Row> {
        &self.rows.base
    }

    /// Commands that were given up and not yet acknowledged.
    pub fn given_up(&self) -> impl Iterator<Item = &GivenUp> {
        self.given_up.values()
    }

    /// How many commands have no outcome yet.
    pub fn unconfirmed(&self) -> usize {
        self.queue.len()
    }

    pub fn state_of(&self, id: CommandId) -> CommandState {
        let pending = self.pending.as_ref().is_some_and(|pending| pending.commands.contains(&id));
        match self.queue.contains_key(&id) {
            true if pending => CommandState::Pending,
            true => CommandState::Queued,
            false if self.given_up.contains_key(&id) => CommandState::GivenUp,
            false => CommandState::Gone,
        }
    }

    pub fn health(&self) -> Health {
        let phase = match (&self.head.resync, self.caught_up) {
            (Some(Resync { .. }), _) => Phase::Resyncing,
            (None, true) => Phase::Live,
            (None, false) => Phase::CatchingUp,
        };
        let trouble = self.reading.trouble.clone().or_else(|| self.submitting.trouble.clone());
        Health { phase, online: self.online, trouble }
    }
}
