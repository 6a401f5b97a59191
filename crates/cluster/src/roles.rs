//! Roles: who may log in, and how that is proved.
//!
//!     role/{name}       a role: its verifier, whether it administers, what its sessions begin with
//!     role-secret       what the salts of roles that do not exist are made of
//!
//! Passwords are not kept. A [`Verifier`] is what SCRAM needs to check a proof of one, in PostgreSQL's own form
//! `SCRAM-SHA-256$<iterations>:<salt>$<stored key>:<server key>`, so it can be carried over from `pg_authid` and back.
//!
//! Invariants (docs/invariants.md):
//!   * I-56  A name that is no role gets a verifier too, always the same one and never a right one, so that the
//!     exchange does not tell who exists. A verifier below 4,096 iterations is refused; new ones have 15,000.

use crate::catalog::{Catalog, CatalogError, Condition, Key, Revision, Transaction};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::rand::{SecureRandom, SystemRandom};
use ring::{digest, hmac, pbkdf2};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::str::FromStr;
use subtle::ConstantTimeEq;

/// Iterations of new verifiers. About 5 ms of one core for a client that logs in, and as much for each guess.
pub const ITERATIONS: NonZeroU32 = NonZeroU32::new(15_000).expect("is not zero");

/// The fewest iterations of a verifier that is accepted: PostgreSQL's default, which RFC 7677 asks for.
pub const ITERATIONS_MIN: u32 = 4_096;

/// The most: beyond this one login would cost a client seconds, and is more likely a slip.
const ITERATIONS_MAX: u32 = 10_000_000;

/// Bytes of a salt, as PostgreSQL's.
const SALT_BYTES: usize = 16;

/// Bytes of SHA-256.
const HASH_BYTES: usize = 32;

const PREFIX: &str = "role/";
/// Roles read at once.
const PAGE: usize = 1_000;

/// The longest name of a role, as PostgreSQL's names.
const NAME_BYTES_MAX: usize = 63;

/// The longest password. Longer ones are slips, and hashing them is work that a stranger could ask for.
pub const PASSWORD_BYTES_MAX: usize = 1024;

#[derive(Debug, thiserror::Error)]
pub enum RoleError {
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    #[error("{0}")]
    Invalid(String),
}

pub type Result<T> = std::result::Result<T, RoleError>;

/// Settings of a role: more than an application has, and few enough to set at each login.
pub const SETTINGS_MAX: usize = 100;

/// The setting of a role that names its tenant, and the one that says that its sessions cannot choose another.
pub const TENANT: &str = "isles.tenant";
pub const TENANT_LOCKED: &str = "isles.tenant_locked";

/// Who may log in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Role {
    /// In its text form; nobody can log in without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verifier: Option<String>,
    #[serde(default = "yes")]
    pub login: bool,
    /// Whether it may do everything, and use the connections that are kept for administrators.
    #[serde(default)]
    pub admin: bool,
    /// What its sessions begin with: `ALTER ROLE … SET`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub settings: BTreeMap<String, String>,
}

fn yes() -> bool {
    true
}

impl Role {
    /// An administrator with a password.
    pub fn admin(verifier: &Verifier) -> Role {
        Role { verifier: Some(verifier.to_string()), login: true, admin: true, settings: BTreeMap::new() }
    }

    /// What proves it; none for a role that does not log in.
    pub fn verifier(&self) -> Result<Verifier> {
        match &self.verifier {
            Some(verifier) if self.login => verifier.parse(),
            _ => Err(RoleError::Invalid("the role cannot log in".into())),
        }
    }

    pub fn tenant(&self) -> Option<&str> {
        self.settings.get(TENANT).map(String::as_str).filter(|tenant| !tenant.is_empty())
    }

    /// Whether its sessions have its tenant and cannot change it.
    pub fn is_locked(&self) -> bool {
        self.settings.get(TENANT_LOCKED).is_some_and(|value| value == "on" || value == "true")
    }

    fn check(&self) -> Result<()> {
        self.verifier.as_ref().map_or(Ok(()), |verifier| verifier.parse::<Verifier>().map(drop))
    }
}

/// The role of this name.
pub async fn get(catalog: &dyn Catalog, name: &str) -> Result<Option<Role>> {
    Ok(read(catalog, name).await?.map(|(role, _)| role))
}

/// The role of this name, and which change of it this is.
pub async fn read(catalog: &dyn Catalog, name: &str) -> Result<Option<(Role, Revision)>> {
    let Ok(key) = key_of(name) else {
        return Ok(None);
    };
    match catalog.get(&key).await?.value {
        Some(record) => Ok(Some((record.json()?, record.revision))),
        None => Ok(None),
    }
}

/// All roles with their names.
pub async fn all(catalog: &dyn Catalog) -> Result<Vec<(String, Role)>> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = catalog.list(PREFIX, after.as_ref(), PAGE).await?;
        for record in &page.records {
            let name = record.key.as_str().strip_prefix(PREFIX).unwrap_or_default();
            found.push((name.to_string(), record.json()?));
        }
        after = page.records.last().map(|record| record.key.clone());
        if !page.more || after.is_none() {
            return Ok(found);
        }
    }
}

/// Sets a role that was read; false if it has changed since.
pub async fn replace(catalog: &dyn Catalog, name: &str, role: &Role, at: Revision) -> Result<bool> {
    let key = key_of(name)?;
    role.check()?;
    let transaction = Transaction::new().when(Condition::At(key.clone(), at)).put_json(key, role)?;
    held(catalog.commit(transaction).await)
}

/// Removes a role; false if there is none of this name.
pub async fn remove(catalog: &dyn Catalog, name: &str) -> Result<bool> {
    let key = key_of(name)?;
    held(catalog.commit(Transaction::new().when(Condition::Exists(key.clone())).delete(key)).await)
}

/// Whether the conditions of a commit held.
fn held(committed: std::result::Result<Revision, CatalogError>) -> Result<bool> {
    match committed {
        Ok(_) => Ok(true),
        Err(CatalogError::Conflict { .. }) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Makes a role, or returns false if there is one of this name.
pub async fn create(catalog: &dyn Catalog, name: &str, role: &Role) -> Result<bool> {
    let key = key_of(name)?;
    role.check()?;
    let transaction = Transaction::new().when(Condition::Absent(key.clone())).put_json(key, role)?;
    held(catalog.commit(transaction).await)
}

/// Sets a role, whether or not there is one of this name.
pub async fn put(catalog: &dyn Catalog, name: &str, role: &Role) -> Result<()> {
    role.check()?;
    let transaction = Transaction::new().put_json(key_of(name)?, role)?;
    catalog.commit(transaction).await?;
    Ok(())
}

fn key_of(name: &str) -> Result<Key> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(RoleError::Invalid(format!("a role's name has 1 to {NAME_BYTES_MAX} bytes")));
    }
    Ok(Key::new(format!("{PREFIX}{name}"))?)
}

/// What the verifiers of strangers are made of. Made once for the life of the catalog: if it changed with a restart,
/// so would the strangers' salts, and only theirs.
#[derive(Clone)]
pub struct StrangerSecret(Vec<u8>);

impl StrangerSecret {
    pub async fn of(catalog: &dyn Catalog) -> Result<StrangerSecret> {
        let key = Key::new("role-secret")?;
        let made = random::<HASH_BYTES>()?;
        let transaction = Transaction::new().when(Condition::Absent(key.clone())).put(key.clone(), made.to_vec());
        match catalog.commit(transaction).await {
            Ok(_) | Err(CatalogError::Conflict { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        match catalog.get(&key).await?.value {
            Some(record) => Ok(StrangerSecret(record.value)),
            None => Err(RoleError::Invalid("the catalog lost a record that was just written".into())),
        }
    }

    /// The verifier of a name that is no role: looks like one, and no proof fits.
    pub fn verifier(&self, name: &str) -> Verifier {
        let part = |label: &str| sign(&self.0, format!("{label}:{name}").as_bytes());
        Verifier {
            iterations: ITERATIONS,
            salt: part("salt")[..SALT_BYTES].to_vec(),
            stored_key: part("stored"),
            server_key: part("server"),
        }
    }
}

/// What is kept of a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Verifier {
    pub iterations: NonZeroU32,
    pub salt: Vec<u8>,
    stored_key: [u8; HASH_BYTES],
    server_key: [u8; HASH_BYTES],
}

impl std::fmt::Debug for Verifier {
    /// Keys stay out of logs.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Verifier").field("iterations", &self.iterations).finish_non_exhaustive()
    }
}

impl Verifier {
    /// A new verifier of a password. Takes milliseconds.
    pub fn of(password: &str) -> Result<Verifier> {
        Ok(Verifier::derive(password, &random::<SALT_BYTES>()?, ITERATIONS))
    }

    pub fn derive(password: &str, salt: &[u8], iterations: NonZeroU32) -> Verifier {
        let salted = salted(password, salt, iterations);
        let client_key = sign(&salted, b"Client Key");
        Verifier {
            iterations,
            salt: salt.to_vec(),
            stored_key: hash(&client_key),
            server_key: sign(&salted, b"Server Key"),
        }
    }

    /// Whether this is its password. Takes milliseconds.
    pub fn accepts(&self, password: &str) -> bool {
        let tried = Verifier::derive(password, &self.salt, self.iterations);
        tried.stored_key.ct_eq(&self.stored_key).into()
    }

    /// Checks the proof that SCRAM's client sends: the signature that proves the server in turn, if it holds.
    pub fn check_proof(&self, auth_message: &[u8], proof: &[u8]) -> Option<[u8; HASH_BYTES]> {
        let proof: &[u8; HASH_BYTES] = proof.try_into().ok()?;
        let signature = sign(&self.stored_key, auth_message);
        let mut client_key = [0; HASH_BYTES];
        for (key, (proof, signature)) in client_key.iter_mut().zip(proof.iter().zip(&signature)) {
            *key = proof ^ signature;
        }
        let holds: bool = hash(&client_key).ct_eq(&self.stored_key).into();
        holds.then(|| sign(&self.server_key, auth_message))
    }
}

impl std::fmt::Display for Verifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (salt, stored, server) =
            (STANDARD.encode(&self.salt), STANDARD.encode(self.stored_key), STANDARD.encode(self.server_key));
        write!(f, "SCRAM-SHA-256${}:{salt}${stored}:{server}", self.iterations)
    }
}

impl FromStr for Verifier {
    type Err = RoleError;

    fn from_str(text: &str) -> Result<Verifier> {
        parse(text).ok_or_else(|| RoleError::Invalid("a verifier is not of SCRAM-SHA-256's form".into()))
    }
}

fn parse(text: &str) -> Option<Verifier> {
    let (first, second) = text.strip_prefix("SCRAM-SHA-256$")?.split_once('$')?;
    let (iterations, salt) = first.split_once(':')?;
    let (stored, server) = second.split_once(':')?;
    let key = |text: &str| <[u8; HASH_BYTES]>::try_from(STANDARD.decode(text).ok()?).ok();
    let iterations = iterations.parse().ok().filter(|count| (ITERATIONS_MIN..=ITERATIONS_MAX).contains(count))?;
    Some(Verifier {
        iterations: NonZeroU32::new(iterations)?,
        salt: STANDARD.decode(salt).ok()?,
        stored_key: key(stored)?,
        server_key: key(server)?,
    })
}

/// SASLprep where it applies; a password it does not take is used as it is, as PostgreSQL and libpq do.
fn salted(password: &str, salt: &[u8], iterations: NonZeroU32) -> [u8; HASH_BYTES] {
    let prepared = stringprep::saslprep(password).unwrap_or(password.into());
    let mut out = [0; HASH_BYTES];
    pbkdf2::derive(pbkdf2::PBKDF2_HMAC_SHA256, iterations, salt, prepared.as_bytes(), &mut out);
    out
}

fn sign(key: &[u8], message: &[u8]) -> [u8; HASH_BYTES] {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), message);
    let mut out = [0; HASH_BYTES];
    out.copy_from_slice(tag.as_ref());
    out
}

fn hash(bytes: &[u8]) -> [u8; HASH_BYTES] {
    let mut out = [0; HASH_BYTES];
    out.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    out
}

/// Random bytes that nobody can guess.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let filled = SystemRandom::new().fill(&mut bytes);
    filled.map_err(|_| RoleError::Invalid("the system has no randomness to give".into()))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// I-56: the example of RFC 7677, section 3.
    #[test]
    fn the_standard_s_own_example() {
        let salt = STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        let verifier = Verifier::derive("pencil", &salt, NonZeroU32::new(4096).unwrap());
        let nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
        let message =
            format!("n=user,r=rOprNGfwEbeRWgbNEkqO,r={nonce},s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096,c=biws,r={nonce}");
        let proof = STANDARD.decode("dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=").unwrap();
        let signature = verifier.check_proof(message.as_bytes(), &proof).unwrap();
        assert_eq!(STANDARD.encode(signature), "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
        assert!(verifier.check_proof(message.as_bytes(), &proof[..31]).is_none());
        assert!(verifier.check_proof(b"another exchange", &proof).is_none());
        assert!(verifier.accepts("pencil"));
        assert!(!verifier.accepts("pencils"));
    }

    /// I-56: a verifier that PostgreSQL 15 made of the password `secret`.
    #[test]
    fn verifiers_are_written_as_postgresql_writes_them() {
        let verifier = Verifier::of("secret").unwrap();
        assert_eq!(verifier.iterations, ITERATIONS);
        assert_eq!(verifier.to_string().parse::<Verifier>().unwrap(), verifier);
        for weak in ["SCRAM-SHA-256$4095:AAAA$", "md5abc", "", "SCRAM-SHA-256$x:$:"] {
            assert!(weak.parse::<Verifier>().is_err(), "{weak}");
        }
        let weak = Verifier::derive("secret", b"salt", NonZeroU32::new(4095).unwrap());
        assert!(weak.to_string().parse::<Verifier>().is_err());
    }

    /// I-56
    #[test]
    fn a_stranger_s_salt_is_always_the_same() {
        let secret = StrangerSecret(vec![7; 32]);
        let (once, again, other) = (secret.verifier("eve"), secret.verifier("eve"), secret.verifier("mallory"));
        assert_eq!(once, again);
        assert_ne!(once.salt, other.salt);
        assert_eq!((once.iterations, once.salt.len()), (ITERATIONS, SALT_BYTES));
    }
}
