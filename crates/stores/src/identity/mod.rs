//! The stores of an identity provider, and what is done with them.
//!
//! ```text
//! keymanager, versionmanager                     singletons: signing keys, versions
//! authcode, refresh                              by user and client, together
//! session, revocation, challenge                 by id, or by user and challenge
//! par, device, ciba                              by client
//! dpop                                           by key thumbprint and proof
//! credoffer, vprequest                           by tenant and user, tenant and client
//! samlrequest, ratelimit, permission             by issuer, purpose, tenant
//! ```
//!
//! In reading order:
//!   * [`preset`]   the sixteen kinds
//!   * [`codes`]    authorization codes and refresh tokens
//!   * [`devices`]  grants that somebody else approves: device and CIBA
//!   * [`proofs`]   what passes once: DPoP proofs, pushed requests, SAML requests
//!   * [`keys`]     signing keys, versions, permission changes

mod codes;
mod devices;
mod keys;
mod preset;
mod proofs;

pub use codes::{Grant, Tokens};
pub use devices::{Device, Started, normalized_code};
pub use keys::{KeySet, KeyStatus, SigningKey};
pub use preset::{PRESET, preset};
pub use proofs::{dpop_key, dpop_ttl};
