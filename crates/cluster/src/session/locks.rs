//! `pg_advisory_lock` and its kin.
//!
//! One who waits holds no schema: whoever has the lock may change it meanwhile, as migrations do.

use super::settings::Tenant;
use super::{Result, Session};
use crate::advisory::{Key, Lifetime, Mode, Number, Space, Wait};
use isles_kernel::error::SqlError;
use isles_kernel::value::Value;
use isles_sql::types::Oid;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Function {
    Lock(Lifetime, Mode),
    Try(Lifetime, Mode),
    Unlock(Mode),
    UnlockAll,
}

/// By their numbers in `pg_proc`: those of one number, then those of two.
#[rustfmt::skip]
const FUNCTIONS: &[(u32, Function)] = &[
    (2880, Function::Lock(Lifetime::Session, Mode::Exclusive)),
    (2881, Function::Lock(Lifetime::Session, Mode::Shared)),
    (2882, Function::Try(Lifetime::Session, Mode::Exclusive)),
    (2883, Function::Try(Lifetime::Session, Mode::Shared)),
    (2884, Function::Unlock(Mode::Exclusive)),
    (2885, Function::Unlock(Mode::Shared)),
    (2886, Function::Lock(Lifetime::Session, Mode::Exclusive)),
    (2887, Function::Lock(Lifetime::Session, Mode::Shared)),
    (2888, Function::Try(Lifetime::Session, Mode::Exclusive)),
    (2889, Function::Try(Lifetime::Session, Mode::Shared)),
    (2890, Function::Unlock(Mode::Exclusive)),
    (2891, Function::Unlock(Mode::Shared)),
    (2892, Function::UnlockAll),
    (3089, Function::Lock(Lifetime::Transaction, Mode::Exclusive)),
    (3090, Function::Lock(Lifetime::Transaction, Mode::Shared)),
    (3091, Function::Try(Lifetime::Transaction, Mode::Exclusive)),
    (3092, Function::Try(Lifetime::Transaction, Mode::Shared)),
    (3093, Function::Lock(Lifetime::Transaction, Mode::Exclusive)),
    (3094, Function::Lock(Lifetime::Transaction, Mode::Shared)),
    (3095, Function::Try(Lifetime::Transaction, Mode::Exclusive)),
    (3096, Function::Try(Lifetime::Transaction, Mode::Shared)),
];

fn function(oid: Oid) -> Option<Function> {
    FUNCTIONS.iter().find(|(known, _)| *known == oid.0).map(|(_, function)| *function)
}

pub(super) fn is_function(oid: Oid) -> bool {
    function(oid).is_some()
}

/// A value of the type `void`.
fn nothing() -> Value {
    Value::text("")
}

impl Session {
    pub(super) async fn call_lock(&mut self, oid: Oid, args: &[Value]) -> Result<Value> {
        let number = match args {
            [] => None,
            [Value::Int(number)] => Some(Number::One(*number)),
            [Value::Int(first), Value::Int(second)] => Some(Number::Two(*first, *second)),
            // As any function that is strict.
            _ => return Ok(Value::Null),
        };
        match (function(oid), number) {
            (Some(Function::Lock(lifetime, mode)), Some(number)) => self.lock(number, mode, lifetime).await,
            (Some(Function::Try(lifetime, mode)), Some(number)) => {
                let is_locked = self.locks.try_lock(&self.lock_key(number), mode, lifetime)?;
                self.note_lock(lifetime).await;
                Ok(Value::Bool(is_locked))
            }
            (Some(Function::Unlock(mode)), Some(number)) => Ok(Value::Bool(self.unlock(number, mode))),
            (Some(Function::UnlockAll), None) => {
                self.locks.unlock_all();
                Ok(nothing())
            }
            _ => Err(SqlError::new("XX000", "a function of advisory locks has other arguments")),
        }
    }

    /// A role that is locked to a tenant has numbers of the tenant's own.
    fn lock_key(&self, number: Number) -> Key {
        let space = match (self.tenant_is_fixed, &self.settings.meaning().tenant) {
            (false, _) => Space::Everyone,
            (true, Tenant::Name(tenant)) => Space::Tenant(Some(tenant.clone())),
            (true, Tenant::Unset | Tenant::None | Tenant::Every) => Space::Tenant(None),
        };
        Key { space, number }
    }

    async fn lock(&mut self, number: Number, mode: Mode, lifetime: Lifetime) -> Result<Value> {
        let (locks, key) = (self.locks.clone(), self.lock_key(number));
        if let Some(wait) = locks.lock(&key, mode, lifetime)? {
            self.wait_for_lock(wait).await?;
        }
        self.note_lock(lifetime).await;
        Ok(nothing())
    }

    async fn wait_for_lock(&mut self, wait: Wait<'_>) -> Result<()> {
        // While it is held nobody takes the transaction for one that waits for its client.
        let slot = self.slot.clone();
        let mut slot = slot.lock().await;
        let env = self.database.env.clone();
        let bounds = self.bounds();
        let (waiting, limited) = bounds.of_lock(&*env);
        let waited = waiting.wait(&*env, wait.given()).await;
        slot.touch(env.elapsed());
        match waited {
            Err(error) if limited && !bounds.cancel.is_cancelled() && error.sqlstate == "57014" => {
                Err(SqlError::new("55P03", "canceling statement due to lock timeout"))
            }
            waited => waited,
        }
    }

    fn unlock(&mut self, number: Number, mode: Mode) -> bool {
        let was_locked = self.locks.unlock(&self.lock_key(number), mode);
        if !was_locked {
            self.warn("01000", &format!("you don't own a lock of type {}", mode.name()));
        }
        was_locked
    }

    /// A transaction that has locked something, and then waits for its client too long, is ended as one with rows is.
    async fn note_lock(&mut self, lifetime: Lifetime) {
        if lifetime == Lifetime::Session || self.open.is_none() {
            return;
        }
        let mut slot = self.slot.lock().await;
        slot.note_locks(&self.locks, self.idle_limit(), self.database.env.elapsed());
        drop(slot);
        if self.idle_limit().is_some() {
            self.watch_idle();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isles_sql::builtins;

    #[test]
    fn every_function_is_known_by_its_name() {
        for (oid, function) in FUNCTIONS {
            let name = builtins::function(Oid(*oid)).expect("PostgreSQL has it").name;
            let (lifetime, mode) = match function {
                Function::Lock(lifetime, mode) | Function::Try(lifetime, mode) => (*lifetime, *mode),
                Function::Unlock(mode) => (Lifetime::Session, *mode),
                Function::UnlockAll => (Lifetime::Session, Mode::Exclusive),
            };
            assert_eq!(name.starts_with("pg_try_"), matches!(function, Function::Try(..)), "{name}");
            assert_eq!(
                name.contains("unlock"),
                matches!(function, Function::Unlock(_) | Function::UnlockAll),
                "{name}"
            );
            assert_eq!(name.contains("_xact_"), lifetime == Lifetime::Transaction, "{name}");
            assert_eq!(name.ends_with("_shared"), mode == Mode::Shared, "{name}");
        }
        let named = |name: &str| builtins::functions_named(name).len();
        let all = ["pg_advisory_lock", "pg_advisory_xact_lock", "pg_try_advisory_lock", "pg_try_advisory_xact_lock"];
        let all =
            all.into_iter().chain(["pg_advisory_unlock"]).map(|name| named(name) + named(&format!("{name}_shared")));
        assert_eq!(all.sum::<usize>() + named("pg_advisory_unlock_all"), FUNCTIONS.len());
    }
}
