//! Logins: roles, proofs of passwords, and a limit to guesses.
//!
//! Both doors, PostgreSQL's protocol and HTTP, ask here.
//!
//! Invariants (docs/invariants.md):
//!   * I-56  Whoever has no role is led through the same steps as those who have one.
//!   * I-58  Failed logins are limited for each address and each name. Beyond the limit a login runs as always and
//!     fails as with a wrong password, even with the right one: the limit is not to be seen.
//!
//! A login is judged when its proof is there, and not when it begins: a pool that opens many connections at once has not
//! failed, and one who guesses many times at once is not better off than one who guesses in turn.

use isles_cluster::catalog::Catalog;
use isles_cluster::roles::{self, PASSWORD_BYTES_MAX, Role, StrangerSecret, Verifier};
use isles_kernel::error::SqlError;
use ring::hmac;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Failed logins of one address in a second, and at once.
const ADDRESS_RATE: f64 = 5.0;

/// Failed logins of one name in a second: more than an address has, so that one stranger cannot lock a role out.
const NAME_RATE: f64 = 20.0;

/// Addresses and names that are remembered. Beyond it, those that have recovered are forgotten first, and then all:
/// an attacker with as many addresses is not stopped by counting.
const REMEMBERED_MAX: usize = 10_000;

/// Passwords whose check is remembered for HTTP, where each request brings one, and each check costs milliseconds.
const ACCEPTED_MAX: usize = 1_000;

/// For how long, at the longest: a changed password is wrong after this.
const ACCEPTED_FOR: Duration = Duration::from_secs(10);

/// Who asks to be let in.
pub(crate) struct Candidate {
    /// The role, if there is one.
    pub(crate) role: Option<Role>,
    pub(crate) verifier: Verifier,
}

pub(crate) struct Logins {
    catalog: Arc<dyn Catalog>,
    strangers: StrangerSecret,
    by_address: Buckets<IpAddr>,
    by_name: Buckets<String>,
    /// Of a random key: the digest of who was accepted, and when.
    accepted: Mutex<HashMap<[u8; 32], Instant>>,
    accepted_key: hmac::Key,
}

impl Logins {
    pub(crate) async fn new(catalog: Arc<dyn Catalog>) -> Result<Logins, roles::RoleError> {
        let strangers = StrangerSecret::of(catalog.as_ref()).await?;
        Ok(Logins {
            catalog,
            strangers,
            by_address: Buckets::new(ADDRESS_RATE),
            by_name: Buckets::new(NAME_RATE),
            accepted: Mutex::new(HashMap::new()),
            accepted_key: hmac::Key::new(hmac::HMAC_SHA256, &roles::random::<32>()?),
        })
    }

    /// Begins a login, which [`Logins::judge`] ends.
    pub(crate) async fn begin(&self, name: &str) -> Result<Candidate, SqlError> {
        let found = roles::get(self.catalog.as_ref(), name).await.map_err(|error| unavailable(&error))?;
        let verifier = found.as_ref().and_then(|role| role.verifier().ok());
        match (found, verifier) {
            (Some(role), Some(verifier)) => Ok(Candidate { role: Some(role), verifier }),
            _ => Ok(Candidate { role: None, verifier: self.strangers.verifier(name) }),
        }
    }

    /// Who has proved to be a role is that role, unless too many have failed; who has not, has failed.
    pub(crate) fn judge(&self, name: &str, address: IpAddr, proved: Option<Role>) -> Result<Role, SqlError> {
        let Some(role) = proved else {
            self.by_address.fail(address, Instant::now());
            self.by_name.fail(name.to_owned(), Instant::now());
            return Err(refused(name));
        };
        let now = Instant::now();
        let admitted = self.by_address.admits(&address, now) && self.by_name.admits(&name.to_owned(), now);
        if admitted { Ok(role) } else { Err(refused(name)) }
    }

    /// Logs in with a password in clear, which the connection protects.
    pub(crate) async fn with_password(&self, name: &str, password: &str, address: IpAddr) -> Result<Role, SqlError> {
        let Candidate { role, verifier } = self.begin(name).await?;
        let digest = self.digest(&verifier, password);
        if password.len() > PASSWORD_BYTES_MAX {
            return self.judge(name, address, None);
        }
        if !self.was_accepted(&digest) {
            let password = password.to_owned();
            let checked = tokio::task::spawn_blocking(move || verifier.accepts(&password)).await;
            if !checked.unwrap_or(false) {
                return self.judge(name, address, None);
            }
            self.remember(digest);
        }
        self.judge(name, address, role)
    }

    /// Names a verifier and a password, without either being kept.
    fn digest(&self, verifier: &Verifier, password: &str) -> [u8; 32] {
        let mut context = hmac::Context::with_key(&self.accepted_key);
        context.update(verifier.to_string().as_bytes());
        context.update(&[0]);
        context.update(password.as_bytes());
        let mut digest = [0; 32];
        digest.copy_from_slice(context.sign().as_ref());
        digest
    }

    fn was_accepted(&self, digest: &[u8; 32]) -> bool {
        let accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        accepted.get(digest).is_some_and(|since| since.elapsed() < ACCEPTED_FOR)
    }

    fn remember(&self, digest: [u8; 32]) {
        let mut accepted = self.accepted.lock().unwrap_or_else(PoisonError::into_inner);
        if accepted.len() >= ACCEPTED_MAX {
            accepted.clear();
        }
        accepted.insert(digest, Instant::now());
    }
}

/// One answer for a wrong password, a stranger, and a limit that was passed.
pub(crate) fn refused(name: &str) -> SqlError {
    SqlError::new("28P01", format!("password authentication failed for user \"{name}\""))
}

fn unavailable(error: &roles::RoleError) -> SqlError {
    tracing::error!(%error, "roles cannot be read");
    SqlError::new("57P03", "the catalog of roles cannot be read").with_hint("Try again.")
}

/// A bucket of tokens for each key: each failure takes one, and they come back with time.
struct Buckets<K> {
    rate: f64,
    levels: Mutex<HashMap<K, (f64, Instant)>>,
}

impl<K: std::hash::Hash + Eq> Buckets<K> {
    fn new(rate: f64) -> Buckets<K> {
        Buckets { rate, levels: Mutex::new(HashMap::new()) }
    }

    /// Takes a token. Those who go on failing without one are in debt: a right guess among many wrong ones that come
    /// together must not slip in with the next token.
    fn fail(&self, key: K, now: Instant) {
        let mut levels = self.levels.lock().unwrap_or_else(PoisonError::into_inner);
        if levels.len() >= REMEMBERED_MAX && !levels.contains_key(&key) {
            levels.retain(|_, (_, since)| now.duration_since(*since) < Duration::from_secs(1));
            if levels.len() >= REMEMBERED_MAX {
                levels.clear();
            }
        }
        let (level, since) = levels.entry(key).or_insert((self.rate, now));
        *level = (self.level(*level, *since, now) - 1.0).max(-1.0);
        *since = now;
    }

    /// Whether there is a token. It is not taken.
    fn admits(&self, key: &K, now: Instant) -> bool {
        let levels = self.levels.lock().unwrap_or_else(PoisonError::into_inner);
        levels.get(key).is_none_or(|(level, since)| self.level(*level, *since, now) >= 1.0)
    }

    fn level(&self, level: f64, since: Instant, now: Instant) -> f64 {
        (level + now.saturating_duration_since(since).as_secs_f64() * self.rate).min(self.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I-58
    #[test]
    fn failures_are_limited_and_the_limit_recovers() {
        let (buckets, begun) = (Buckets::new(5.0), Instant::now());
        let after = |millis| begun + Duration::from_millis(millis);
        for failed in 0..5 {
            assert!(buckets.admits(&"a", begun), "after {failed} failures");
            buckets.fail("a", begun);
        }
        assert!(!buckets.admits(&"a", begun) && buckets.admits(&"b", begun), "others are not touched");
        assert!(!buckets.admits(&"a", after(100)));
        assert!(buckets.admits(&"a", after(200)), "one token is back");
        (0..100).for_each(|_| buckets.fail("a", after(200)));
        assert!(!buckets.admits(&"a", after(500)), "the debt is paid first");
        assert!(buckets.admits(&"a", after(600)));
    }

    /// Many who log in at once have not failed.
    #[test]
    fn success_costs_nothing() {
        let (buckets, now) = (Buckets::new(5.0), Instant::now());
        assert!((0..1000).all(|_| buckets.admits(&"a", now)));
    }

    #[test]
    fn the_number_of_names_is_bounded() {
        let buckets = Buckets::new(5.0);
        let now = Instant::now();
        for name in 0..3 * REMEMBERED_MAX {
            buckets.fail(name, now);
        }
        assert!(buckets.levels.lock().map(|levels| levels.len() <= REMEMBERED_MAX).unwrap_or(false));
    }
}
