//! Moves of tenants and buckets from one shard to another, while both serve traffic.
//!
//! A [`Plan`] is the whole state of a move. It is changed by [`Plan::step`] alone, and says by [`Plan::script`] what
//! its driver has to do next; this module does no I/O. The plan is a record of the catalog, changed by
//! compare-and-set, so a driver that dies is followed by another one that goes on from the record.
//!
//! ```text
//! Planned ─► Preparing ─► Capturing ─► Copying ─► Tailing ─► Ready ⇄ Verifying
//! planning   dual_write   dual_write   backfill   tailing    │ cutover_pending
//!                                                            ▼
//!                                       Ready ◄─ Unfencing ◄─ Switching     the source is fenced
//!                                                            │ routing version + 1: the point of no return
//!                                                            ▼
//!                            Cleaning ◄─ Guarding ◄──────── Settling        completed
//!                               │           │ rollback: Switching and Settling in the other direction
//!                               ▼           ▼
//!                             Done       Cleaning ─► Done                   rolled_back
//! ```
//!
//! Before the point of no return a rollback removes the target's copy. After it the changes of the target are mirrored
//! back to the source, so a rollback is another switch, with another routing version, and loses nothing.
//!
//! Invariants (docs/invariants.md):
//!   * I-7   At every instant at most one shard accepts writes for what moves.
//!   * I-8   A switch raises the routing version by exactly one, and nothing else does.
//!   * I-12  Until the routing has changed, a rollback leaves it as it was, and the source serves.
//!   * I-13  Every script may be repeated from its beginning, by anyone, at any time.
//!
//! # Why two drivers do no harm
//!
//! A lease says who drives, but a driver that was stopped for a while believes that it still does. What it may do late:
//!   * change the plan: refused, the record has changed;
//!   * apply or discard rows: refused, the stream has another driver;
//!   * set a fence: refused, if the fence has a later version. That is why the source is closed at the *new* version
//!     before the target opens, and why the tail is drained once more in between: a late driver may have opened the
//!     source again at the old version, and what was written there meanwhile counts.
//!
//! The model in `crates/kernel/tests/moves_model.rs` runs through every interleaving of two drivers, two routers and
//! two shards.

mod balance;
mod command;
mod plan;
mod step;
mod text;
mod units;

pub use balance::{Piece, Proposal, Weigh, Weighed, balance};
pub use command::Command;
pub use plan::{
    Backfill, BackfillStatus, Cutover, Difference, Direction, MAX_DESCRIPTION_CHARS, MAX_DIFFERENCES, Options, Phase,
    Plan, Request, Stage, TableCopy, TablePolicy, Tail, TailStatus, Verification, VerificationStatus, tables_of,
};
pub use step::{Effect, Event, MoveError};
pub use units::{Buckets, MAX_SPANS, MAX_TENANTS, Pins, Span, Units};
