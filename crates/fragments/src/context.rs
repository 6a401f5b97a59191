//! The shard of what is running.
//!
//! A context is a task-local value. `with` makes a scope of its own for what a function begins and its future goes on
//! with: units of work that are made in the function are of the scope, too. Scopes that run at the same time, also within
//! one task, have one value each and never mix. `set` fills a scope that has no shard yet, once; who wants another
//! shard opens another scope. So nothing that is under way changes its shard, and a unit of work reads the context once.
//!
//! There are three states. Unset is an error as soon as rows are asked for under a strategy: a forgotten shard is never a
//! shared one. None is the shard without a name, chosen on purpose.
//!
//! The global scope takes a [`GlobalScope`], which only the opener of a store is given. Request code has a handle, and
//! from there no way to one: it cannot be made,
//!
//! ```compile_fail,E0423
//! let right = isles_fragments::context::GlobalScope(());
//! ```
//!
//! nor copied,
//!
//! ```compile_fail,E0599
//! fn another(right: &isles_fragments::context::GlobalScope) -> isles_fragments::context::GlobalScope {
//!     (*right).clone()
//! }
//! ```
//!
//! and the database, which a store could be opened over again, is not given out:
//!
//! ```compile_fail,E0624
//! fn database(handle: &isles_fragments::store::Handle) {
//!     let adapter = handle.store().adapter();
//! }
//! ```

use crate::error::{Code, Result, refused};
use crate::shard::Shard;
use std::cell::RefCell;
use std::future::Future;

/// What a scope says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShardState {
    Unset,
    Set(Shard),
}

/// How far retrievals reach.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The shard of the context.
    Scoped,
    /// All shards; for maintenance.
    Global,
}

/// The right to look at all shards. It cannot be made, copied or found: whoever opens a store is given one, and a request
/// is not.
#[derive(Debug)]
pub struct GlobalScope(());

impl GlobalScope {
    pub(crate) fn new() -> GlobalScope {
        GlobalScope(())
    }
}

#[derive(Debug, Clone)]
struct Current {
    shard: ShardState,
    scope: Scope,
}

tokio::task_local! {
    static CURRENT: RefCell<Current>;
}

/// The helpers that handlers, services and middleware use.
#[derive(Debug, Clone, Copy, Default)]
pub struct ShardContext;

impl ShardContext {
    /// The shard of this scope; unset outside of any.
    pub fn get(self) -> ShardState {
        CURRENT.try_with(|current| current.borrow().shard.clone()).unwrap_or(ShardState::Unset)
    }

    /// Gives the scope its shard. A scope that has another one already keeps it.
    pub fn set(self, shard: Shard) -> Result<()> {
        let set = CURRENT.try_with(|current| {
            let mut current = current.borrow_mut();
            match &current.shard {
                ShardState::Set(other) if *other != shard => false,
                _ => {
                    current.shard = ShardState::Set(shard);
                    true
                }
            }
        });
        match set {
            Ok(true) => Ok(()),
            Ok(false) => Err(refused(Code::ShardMixed, "the shard of a request is set once")
                .with_hint("use `with` to work in another shard for a while")),
            Err(_) => Err(refused(Code::ShardUnset, "there is no shard context here")
                .with_hint("shards are set within a request or within `with`")),
        }
    }

    /// Runs a function and its future in a shard. A unit of work that is made before is of the shard where it was made.
    pub async fn with<F: Future>(self, shard: Shard, work: impl FnOnce() -> F) -> F::Output {
        within(Current { shard: ShardState::Set(shard), scope: Scope::Scoped }, work).await
    }

    /// Runs them in a scope whose shard is unset, as each request begins.
    pub async fn fresh<F: Future>(self, work: impl FnOnce() -> F) -> F::Output {
        within(Current { shard: ShardState::Unset, scope: Scope::Scoped }, work).await
    }

    pub fn get_scope(self) -> Scope {
        CURRENT.try_with(|current| current.borrow().scope).unwrap_or(Scope::Scoped)
    }

    /// Runs what may look at all shards, and writes to none unless it names one by `with`.
    pub async fn with_global<F: Future>(self, _right: &GlobalScope, work: impl FnOnce() -> F) -> F::Output {
        within(Current { shard: self.get(), scope: Scope::Global }, work).await
    }
}

async fn within<F: Future>(current: Current, work: impl FnOnce() -> F) -> F::Output {
    // On the heap: scopes are nested, and what handlers do is large.
    CURRENT.scope(RefCell::new(current), Box::pin(async move { work().await })).await
}
