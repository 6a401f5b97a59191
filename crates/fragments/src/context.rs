//! The shard of what is running.
//!
//! A context is a task-local value. `with` makes a scope of its own for a future: scopes that run at the same time, also
//! within one task, have one value each and never mix. `set` fills a scope that has no shard yet, once; who wants another
//! shard opens another scope. So nothing that is under way changes its shard, and a unit of work reads the context once.
//!
//! There are three states. Unset is an error as soon as rows are asked for under a strategy: a forgotten shard is never a
//! shared one. None is the shard without a name, chosen on purpose.
//!
//! The global scope takes a [`GlobalScope`], which only the opener of a store is given.

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

    /// Runs a future in a shard.
    pub async fn with<F: Future>(self, shard: Shard, future: F) -> F::Output {
        let current = Current { shard: ShardState::Set(shard), scope: Scope::Scoped };
        CURRENT.scope(RefCell::new(current), future).await
    }

    /// Runs a future in a scope whose shard is unset, as each request begins.
    pub async fn fresh<F: Future>(self, future: F) -> F::Output {
        CURRENT.scope(RefCell::new(Current { shard: ShardState::Unset, scope: Scope::Scoped }), future).await
    }

    pub fn get_scope(self) -> Scope {
        CURRENT.try_with(|current| current.borrow().scope).unwrap_or(Scope::Scoped)
    }

    /// Runs a future that may look at all shards, and writes to none unless it names one by `with`.
    pub async fn with_global<F: Future>(self, _right: &GlobalScope, future: F) -> F::Output {
        CURRENT.scope(RefCell::new(Current { shard: self.get(), scope: Scope::Global }), future).await
    }
}
