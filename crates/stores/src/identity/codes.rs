//! Authorization codes and refresh tokens.
//!
//! A code becomes a family of refresh tokens in one request: whoever has the answer has both, and after a crash there
//! are both or neither. A code that comes twice revokes the family that was made of it (RFC 6749, 4.1.2). Who is not
//! the client that the code was made for is told nothing and changes nothing.

use crate::{Address, Desk, Outcome, Put, Record, Reply, Result};
use isles_kernel::names::TenantId;

/// What a code is made for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    pub user: String,
    pub client: String,
    /// The S256 challenge of PKCE, or whatever else the exchange must come with.
    pub challenge: Option<String>,
    /// Scopes, nonce, redirect address: JSON.
    pub value: String,
}

/// What a code was exchanged for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tokens {
    /// The code, as it was.
    pub code: Record,
    /// The family; its id is the first refresh token.
    pub refresh: Record,
}

fn binding(client: &str, challenge: Option<&str>) -> String {
    format!("{client}\n{}", challenge.unwrap_or_default())
}

impl Desk<'_> {
    pub async fn issue_code(&mut self, tenant: &TenantId, grant: &Grant) -> Result<Reply> {
        let put = Put::of(&grant.value).routed(format!("{}:{}", grant.user, grant.client)).owned(&grant.user);
        self.put(tenant, "authcode", put.bound(binding(&grant.client, grant.challenge.as_deref()))).await
    }

    /// Exchanges a code for a family of refresh tokens. The challenge is computed of the verifier by who calls.
    pub async fn exchange_code(
        &mut self,
        tenant: &TenantId,
        code: &str,
        (client, challenge): (&str, Option<&str>),
    ) -> Result<std::result::Result<Tokens, Outcome>> {
        let bound = binding(client, challenge);
        let family = |code: &Record| Put { owner: code.owner.clone(), ..Put::of(&code.value).bound(client) };
        let exchanged = self.exchange(tenant, ("authcode", code, Some(&bound)), ("refresh", family)).await?;
        Ok(match (exchanged.outcome, exchanged.used, exchanged.made) {
            (Outcome::Ok, Some(code), Some(refresh)) => Ok(Tokens { code, refresh }),
            (outcome, _, _) => Err(outcome),
        })
    }

    /// Replaces a refresh token by its successor.
    pub async fn refresh(&mut self, tenant: &TenantId, token: &str, client: &str) -> Result<Reply> {
        self.rotate(tenant, "refresh", token, Some(client)).await
    }

    /// Ends every session and every family of a user: log out everywhere.
    pub async fn log_out_everywhere(&mut self, tenant: &TenantId, user: &str) -> Result<u64> {
        let mut all = 0;
        for store in ["session", "authcode", "refresh"] {
            all += self.revoke_owner(tenant, store, user).await?.records;
        }
        Ok(all)
    }

    /// Whether an access token was revoked, by its id.
    pub async fn is_revoked(&mut self, tenant: &TenantId, jti: &str) -> Result<bool> {
        Ok(self.get(tenant, "revocation", &Address::key(jti)).await?.is_ok())
    }

    /// Revokes an access token for as long as it would last.
    pub async fn revoke_token(&mut self, tenant: &TenantId, jti: &str, left: std::time::Duration) -> Result<Reply> {
        self.put_at(tenant, "revocation", &Address::key(jti), Put::of("{}").lasting(left)).await
    }
}
