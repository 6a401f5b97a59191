//! What a server and its replicas say to each other: outbox, snapshot, submitted commands.
//!
//! The types here are the wire, and both sides use them: `fragments` serves them, `lofi` asks. They are pure, and they
//! check what they read: a value that breaks a limit or a rule is not made.
//!
//! ```text
//! GET  /_internal/outbox?after=<cursor>&limit=&wait_ms=&partition=   ► OutboxPage
//! GET  /_internal/snapshot?after=<token>&limit=&partition=           ► SnapshotPage
//! POST /_internal/sync   SubmitRequest                               ► SubmitResponse
//! anything else is a Refusal: its code decides the HTTP status, and what a client does about it
//! ```
//!
//! # The log
//!
//! A partition is what one client may see: the rows of one tenant. Its committed transactions are [`Entry`]s with dense
//! versions 1, 2, 3, …, and each entry names the one before it ([`Entry::prev`]). A [`Cursor`] is a version *and* the id
//! of the entry that has it. So a log that begins anew, or another partition's log, cannot be taken for a continuation,
//! even when its numbers fit: the client sees it by itself, and a server that looks at the id refuses with 410.
//!
//! Entries below the *floor* are gone. A cursor may be read from if its version is at least the floor; otherwise the
//! answer is 410 `resync_required`, and the client takes a snapshot.
//!
//! # The snapshot
//!
//! Pages of rows in order of their keys. Each page is one consistent read and says at which cursor it was read; pages
//! of one snapshot may be read at different ones. A client applies the log from the cursor of the *first* page, and
//! has a consistent state once it has reached that of the *last*. A create puts a row and a delete removes one, whatever
//! was there, so that replaying what a page has already seen does no harm.
//!
//! # Submitting
//!
//! A request is one transaction: all of its commands are applied, or none. Its order on the server:
//!   1. parse and check; the partition is the caller's, or 409 `wrong_partition`;
//!   2. a request id that is on record has its recorded answer again, with `duplicate: true`; with another body it is
//!      422 `request_reused`;
//!   3. the cursor is in the log and not below the floor, or 410;
//!   4. plan, check against the entries after the cursor, apply, append the entry (with the request's id) and record
//!      the outcome, in one transaction. A conflict is an outcome and is recorded, too: a copy of the request that
//!      comes late must not be applied after the client was told that it was not.
//!
//! Records of requests are kept at least as long as the entry that had been the newest when they were made. So a request
//! that is neither on record nor below the floor has not happened, and the client may say so; below the floor it
//! may have.
//!
//! Invariants (docs/invariants.md):
//!   * I-3   a request that is sent any number of times has one effect and one answer
//!   * I-31  versions are dense and in order of commit; a cursor stays good when its tenant moves to another shard
//!   * I-32  the id of an entry never changes
//!
//! In reading order:
//!   * `names`      cursors, identities, keys and values of rows
//!   * `log`        entries, pages of the outbox, pages of a snapshot
//!   * `predicate`  conditions on rows, which scopes and local queries are made of
//!   * `submit`     commands, requests, answers, conflicts
//!   * `refusal`    what went wrong, by code

mod log;
mod names;
mod predicate;
mod refusal;
mod submit;

pub use log::{
    Broken, Entry, MAX_ENTRY_BYTES, MAX_ENTRY_MUTATIONS, MAX_PAGE_BYTES, MAX_PAGE_ENTRIES, MAX_PAGE_ROWS, MAX_WAIT_MS,
    Mutation, Op, OutboxPage, OutboxQuery, SnapshotPage, SnapshotQuery, SnapshotRow,
};
pub use names::{
    Cursor, EntryId, MAX_COLUMN_BYTES, MAX_COLUMNS, MAX_EXTERNAL_ID_CHARS, MAX_PARTITION_CHARS, MAX_TOKEN_CHARS,
    PartitionId, RequestId, RowKey, RowVersion, SHARD_COLUMN, SnapshotToken, SyncNameError, Values, Version,
};
pub use predicate::{MAX_PREDICATE_DEPTH, MAX_PREDICATE_NODES, Predicate, compare};
pub use refusal::{Code, Refusal};
pub use submit::{
    Command, Conflict, ConflictCode, InvalidSubmit, MAX_COMMANDS, MAX_CONFLICTS, MAX_READS, MAX_SCOPES,
    MAX_SUBMIT_BYTES, Scope, Status, SubmitRequest, SubmitResponse,
};
