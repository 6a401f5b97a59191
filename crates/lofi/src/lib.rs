//! The local-first client of Isles.
//!
//! A replica holds the rows of one partition: what one tenant may see. It answers queries from memory, shows commands
//! before the server has confirmed them, keeps them through crashes and days offline, and never hears of shards.
//!
//! The core is [`Replica`]: `step(event) → effects`, without threads, files, sockets, a clock or randomness of its own.
//! Whoever drives it performs the effects and feeds the answers back; [`Client`] does so on tokio, and a browser can do
//! it with its own means.
//!
//! ```text
//!  application ── submit(draft) ──► Replica ── Persist ──► Store      memory, SQLite
//!       ▲   ▲                        │    ▲
//!       │   └── get, list            │    └── Answered ◄── Transport   HTTP
//!       └────── Changed, Outcome ◄───┴─────── Call ─────────►
//! ```
//!
//! In reading order:
//!   * [`row`]      rows, and the edits that a command shows of itself
//!   * [`command`]  commands from draft to outcome
//!   * [`store`]    what a replica keeps, and the trait of whoever keeps it; the store in memory
//!   * [`sqlite`]   the store in a SQLite file
//!   * [`query`]    get and list, with indexes
//!   * [`replica`]  the core
//!   * [`client`]   the driver on tokio
//!   * [`http`]     the transport over HTTP/1.1
//!
//! The types of the wire are those of [`isles_kernel::sync`].

#[cfg(feature = "client")]
pub mod client;
pub mod command;
#[cfg(feature = "http")]
pub mod http;
pub mod query;
pub mod replica;
pub mod row;
#[cfg(feature = "sqlite")]
pub mod sqlite;
pub mod store;

#[cfg(feature = "client")]
pub use client::{Client, ClientError, Notice, Transport};
pub use command::{CommandId, CommandState, Draft, GivenUp, OnConflict, Outcome, Reason, RefusedDraft};
#[cfg(feature = "http")]
pub use http::HttpTransport;
pub use query::{Direction, Index, Query};
pub use replica::{
    Call, CallId, Effect, Event, Failure, Health, Moment, Options, Phase, Replica, Reply, Request, Trouble,
};
pub use row::{Edit, Row};
#[cfg(feature = "sqlite")]
pub use sqlite::SqliteStore;
pub use store::{Kept, MemoryStore, Store, StoreError, Write};
