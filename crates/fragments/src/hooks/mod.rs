//! What happens after a commit.
//!
//! A hook is triggered by a unit of work and stored with its rows, so it runs if they are committed, and never if they
//! are not. A processor claims hooks that are due, shard by shard, and runs each in the shard of its row; what the body
//! triggers is of that shard, too. The global processor only looks for work in all shards; it runs nothing in none.
//!
//! ```text
//! pending ─► processing (leased) ─► completed
//!    ▲            │ failed, or the lease ran out: attempts + 1 ─► failed, when there are no attempts left
//!    └────────────┘ after a wait that doubles
//! ```
//!
//! An attempt counts when it is claimed, so that a body that ends its process counts as well. A hook that was given up
//! stays, is listed, and can be revived.
//!
//! Invariants (docs/invariants.md):
//!   * I-33  only what is committed is claimed
//!   * I-35  a shard has a few places at a time, and one that fails or hangs takes no other's
//!
//! In reading order:
//!   * this file     hooks, triggers
//!   * [`processor`] who runs them
//!   * [`http`]      those that are delivered to a URL

pub mod http;
mod processor;

pub use processor::{Dead, Processed, Processor, ProcessorOptions};

use crate::adapter::Row;
use crate::error::{Code, Result, refused};
use crate::schema::MAX_ID;
use crate::shard::Shard;
use crate::store::{Fragment, Handle, Store};
use crate::values::{Values, timestamp_ms};
use futures::future::BoxFuture;
use isles_kernel::value::Value;
use std::future::Future;
use std::sync::Arc;
use uuid::Uuid;

/// Bytes of a payload: it is stored with the transaction, and may be sent.
pub const MAX_PAYLOAD: usize = 256 << 10;
/// Attempts of one hook: with waits that double up to an hour, more than a day.
pub const MAX_ATTEMPTS: u32 = 50;

pub(crate) const PENDING: &str = "pending";
pub(crate) const PROCESSING: &str = "processing";
pub(crate) const COMPLETED: &str = "completed";
pub(crate) const FAILED: &str = "failed";

/// What a body is told.
#[derive(Clone)]
pub struct HookContext {
    /// Units of work of this handle are of the hook's shard.
    pub handle: Handle,
    pub shard: Shard,
    /// The same for every attempt.
    pub id: String,
    pub name: String,
    /// Where its trigger wants it delivered.
    pub url: Option<String>,
    /// From 1.
    pub attempt: u32,
}

type Body =
    Arc<dyn Fn(HookContext, serde_json::Value) -> BoxFuture<'static, std::result::Result<(), String>> + Send + Sync>;

type CheckUrl = Arc<dyn Fn(&str) -> std::result::Result<(), String> + Send + Sync>;

/// A hook of a fragment.
#[derive(Clone)]
pub struct Hook {
    pub(crate) body: Body,
    pub(crate) max_attempts: u32,
    pub(crate) backoff_ms: u64,
    /// Says what is wrong with a URL that a trigger names; none where there is nothing to deliver.
    pub(crate) check_url: Option<CheckUrl>,
}

impl Hook {
    /// Runs a function. What it does must bear to be done again: a process may end behind it and before that is noted.
    pub fn new<F>(body: impl Fn(HookContext, serde_json::Value) -> F + Send + Sync + 'static) -> Hook
    where
        F: Future<Output = std::result::Result<(), String>> + Send + 'static,
    {
        let body: Body = Arc::new(move |context, payload| Box::pin(body(context, payload)));
        Hook { body, max_attempts: 8, backoff_ms: 500, check_url: None }
    }

    /// How often it is tried, and how long it waits the first time.
    pub fn attempts(mut self, max_attempts: u32, backoff_ms: u64) -> Hook {
        self.max_attempts = max_attempts.clamp(1, MAX_ATTEMPTS);
        self.backoff_ms = backoff_ms;
        self
    }
}

/// A hook that is to run.
#[derive(Debug, Clone)]
pub struct Trigger {
    hook: String,
    payload: String,
    id: Option<String>,
    at_ms: Option<i64>,
    url: Option<String>,
}

impl Trigger {
    pub fn new(hook: &str, payload: &serde_json::Value) -> Trigger {
        Trigger { hook: hook.into(), payload: payload.to_string(), id: None, at_ms: None, url: None }
    }

    /// An id of its own, once in a shard and fragment: a second one fails its unit of work.
    pub fn id(mut self, id: &str) -> Trigger {
        self.id = Some(id.into());
        self
    }

    /// Not before this time, in milliseconds since 1970.
    pub fn at_ms(mut self, at_ms: i64) -> Trigger {
        self.at_ms = Some(at_ms);
        self
    }

    /// Another URL than the hook's own, for a hook that is delivered over HTTP: each tenant may have one.
    pub fn to(mut self, url: &str) -> Trigger {
        self.url = Some(url.into());
        self
    }

    pub(crate) fn check(&self, fragment: &Fragment) -> Result<()> {
        let Some(hook) = fragment.hooks.get(&self.hook) else {
            return Err(refused(Code::UnknownHook, format!("there is no hook \"{}\"", self.hook)));
        };
        if let Some(url) = &self.url {
            let check = hook.check_url.as_ref().ok_or_else(|| {
                refused(Code::InvalidRequest, format!("hook \"{}\" is not delivered to a URL", self.hook))
            })?;
            check(url).map_err(|why| refused(Code::AddressRefused, why))?;
        }
        if self.payload.len() > MAX_PAYLOAD {
            return Err(refused(Code::TooLarge, format!("a payload has at most {MAX_PAYLOAD} bytes")));
        }
        let room = MAX_ID - fragment.schema.key().len() - 1;
        let is_id = |id: &String| (1..=room).contains(&id.chars().count()) && !id.contains(char::is_control);
        match self.id.as_ref().is_none_or(is_id) {
            true => Ok(()),
            false => Err(refused(Code::InvalidValue, format!("the id of a hook has 1 to {room} characters"))
                .with_hint("control characters are not among them")),
        }
    }

    pub(crate) fn row(&self, store: &Store, fragment: &Fragment, unit: Uuid) -> Row {
        let (namespace, now_ms) = (fragment.schema.key(), store.now_ms());
        let id = self.id.clone().unwrap_or_else(|| store.surroundings().new_id().simple().to_string());
        // A fragment's hooks are known when they are triggered; see `check`.
        let policy = fragment.hooks.get(&self.hook).map_or((1, 0), |hook| (hook.max_attempts, hook.backoff_ms));
        let values = Values::new()
            .set("namespace", namespace)
            .set("name", self.hook.as_str())
            .set("payload", Value::Json(self.payload.clone()))
            .set("status", PENDING)
            .set("attempts", 0)
            .set("maxAttempts", i64::from(policy.0))
            .set("backoffMs", i64::try_from(policy.1).unwrap_or(i64::MAX))
            .set("nextAt", timestamp_ms(self.at_ms.unwrap_or(now_ms)))
            .set("createdAt", timestamp_ms(now_ms))
            .set("url", self.url.clone())
            .set("unitOfWork", unit.to_string());
        Row { id: format!("{namespace}/{id}"), internal: store.new_internal(), version: 0, values }
    }
}
