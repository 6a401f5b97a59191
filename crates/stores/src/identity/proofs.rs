//! What passes once: DPoP proofs, pushed authorization requests, SAML requests.

use crate::{Address, Desk, Put, Reply, Result};
use isles_kernel::error::SqlError;
use isles_kernel::id::ResourceId;
use isles_kernel::names::TenantId;
use std::time::Duration;

/// A proof is remembered for the lifetime of what it proves and this much more, since clocks differ.
const DPOP_SKEW: Duration = Duration::from_secs(300);
/// And not longer than this.
const DPOP_CAP: Duration = Duration::from_secs(3_600);

/// How long a proof is remembered: `token_lifetime + 5min`, at most an hour.
pub fn dpop_ttl(lifetime: Duration) -> Duration {
    (lifetime + DPOP_SKEW).min(DPOP_CAP)
}

/// What a proof is known by: the thumbprint of its key and its id, whoever sends it. Long ids are digested, since it is
/// the client that chooses them.
pub fn dpop_key(jkt: &str, jti: &str) -> Result<String> {
    if jkt.is_empty() || jti.is_empty() || jkt.len() > 128 || jti.len() > 4_096 {
        return Err(SqlError::new("22023", "a proof has a key of 1 to 128 bytes and an id of 1 to 4096"));
    }
    use base64::Engine;
    let digest = ring::digest::digest(&ring::digest::SHA256, jti.as_bytes());
    // The length keeps `a` and `bc` apart from `ab` and `c`.
    Ok(format!("{}:{jkt}:{}", jkt.len(), base64::prelude::BASE64_URL_SAFE_NO_PAD.encode(digest)))
}

impl Desk<'_> {
    /// Lets a proof pass once.
    pub async fn pass_proof(
        &mut self,
        tenant: &TenantId,
        (jkt, jti): (&str, &str),
        lifetime: Duration,
    ) -> Result<Reply> {
        self.pass_proof_of(tenant, "dpop", (jkt, jti), lifetime).await
    }

    /// Lets a proof pass once in a store of proofs. All surfaces come here, so a proof has one key on all of them.
    pub(crate) async fn pass_proof_of(
        &mut self,
        tenant: &TenantId,
        store: &str,
        (jkt, jti): (&str, &str),
        lifetime: Duration,
    ) -> Result<Reply> {
        let address = Address::key(dpop_key(jkt, jti)?);
        self.put_if_absent(tenant, store, &address, Put::of("{}").lasting(dpop_ttl(lifetime))).await
    }

    /// Keeps a pushed authorization request. Its id travels as a `request_uri`.
    pub async fn push_request(&mut self, tenant: &TenantId, client: &str, value: &str) -> Result<(String, Reply)> {
        let reply = self.put(tenant, "par", Put::of(value).routed(client).bound(client)).await?;
        let uri = reply.id().and_then(|id| ResourceId::parse(id).ok()).map(|id| id.to_request_uri());
        Ok((uri.unwrap_or_default(), reply))
    }

    /// Uses a pushed request, once, by the client that pushed it.
    pub async fn take_request(&mut self, tenant: &TenantId, request_uri: &str, client: &str) -> Result<Reply> {
        match ResourceId::parse_request_uri(request_uri) {
            Ok(id) => self.take(tenant, "par", &Address::id(id.to_string()), Some(client)).await,
            Err(_) => Ok(Reply::of(crate::Outcome::NotFound)),
        }
    }

    /// Notes a request that was sent to an issuer.
    pub async fn note_saml(
        &mut self,
        tenant: &TenantId,
        (issuer, request): (&str, &str),
        value: &str,
    ) -> Result<Reply> {
        let address = Address::within(format!("issuer:{issuer}"), request);
        self.put_if_absent(tenant, "samlrequest", &address, Put::of(value)).await
    }

    /// Uses the answer to a request, once.
    pub async fn take_saml(&mut self, tenant: &TenantId, (issuer, request): (&str, &str)) -> Result<Reply> {
        self.take(tenant, "samlrequest", &Address::within(format!("issuer:{issuer}"), request), None).await
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn proofs_are_remembered_as_long_as_the_seed_says() {
        for (lifetime, ttl) in [(300, 600), (7_200, 3_600), (60, 360), (3_300, 3_600)] {
            assert_eq!(dpop_ttl(Duration::from_secs(lifetime)), Duration::from_secs(ttl));
        }
    }

    #[test]
    fn proofs_of_different_keys_are_different() {
        assert_ne!(dpop_key("ab", "c").unwrap(), dpop_key("a", "bc").unwrap());
        assert_eq!(dpop_key("a", "日本").unwrap(), dpop_key("a", "日本").unwrap());
        assert!(dpop_key("a", &"x".repeat(4_096)).unwrap().len() < 200);
        assert!(dpop_key("", "x").is_err() && dpop_key("a", "").is_err());
    }
}
