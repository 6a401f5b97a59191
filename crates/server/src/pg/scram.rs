//! SCRAM-SHA-256, the server's half (RFC 5802, 7677), without I/O.
//!
//!     client-first ──First::read──► server-first ──Exchange::finish(client-final)──► server-final, or no
//!
//! Invariants (docs/invariants.md):
//!   * I-56  A name without a role goes through the same steps with a verifier of its own; the only difference is that
//!     no proof fits. A client that could have bound the channel and says that we cannot is refused.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use isles_cluster::roles::{self, RoleError, Verifier};
use isles_kernel::error::SqlError;
use subtle::ConstantTimeEq;

pub(crate) const MECHANISM: &str = "SCRAM-SHA-256";
pub(crate) const MECHANISM_PLUS: &str = "SCRAM-SHA-256-PLUS";

/// Random bytes of the server's part of the nonce, as PostgreSQL's.
const NONCE_BYTES: usize = 18;

/// The hash of the server's certificate that a client binds to, where the connection has one.
pub(crate) type ChannelBinding = Option<Vec<u8>>;

/// What the client said about binding the channel: `n`, `y`, or by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Binding {
    Unsupported,
    /// The client could, and believes that the server cannot.
    Unoffered,
    EndPoint,
}

/// The client's first message.
#[derive(Debug, PartialEq, Eq)]
struct First<'a> {
    binding: Binding,
    /// The header as it came, which the last message repeats.
    header: &'a str,
    bare: &'a str,
    nonce: &'a str,
}

impl<'a> First<'a> {
    fn read(text: &'a str) -> Option<First<'a>> {
        let (flag, rest) = text.split_once(',')?;
        let (authorization, bare) = rest.split_once(',')?;
        // To act as another is not for us.
        if !authorization.is_empty() {
            return None;
        }
        let binding = match flag {
            "n" => Binding::Unsupported,
            "y" => Binding::Unoffered,
            "p=tls-server-end-point" => Binding::EndPoint,
            _ => return None,
        };
        // The name within is ignored, as in PostgreSQL: the first packet has said who it is.
        let mut parts = bare.split(',');
        parts.next()?.strip_prefix("n=")?;
        let nonce = parts.next()?.strip_prefix("r=")?;
        let printable = nonce.bytes().all(|byte| byte.is_ascii_graphic());
        let header = &text[..text.len() - bare.len()];
        (printable && !nonce.is_empty()).then_some(First { binding, header, bare, nonce })
    }
}

/// An exchange that waits for the client's last message.
pub(crate) struct Exchange {
    verifier: Verifier,
    bare: String,
    server_first: String,
    nonce: String,
    /// What `c=` has to be.
    bound: String,
}

fn malformed() -> SqlError {
    SqlError::new("08P01", "malformed SCRAM message")
}

impl Exchange {
    /// Takes the client's first message, for a mechanism that was offered.
    pub(crate) fn begin(
        mechanism: &str,
        message: &[u8],
        verifier: Verifier,
        channel: &ChannelBinding,
    ) -> Result<Exchange, SqlError> {
        let nonce = roles::random::<NONCE_BYTES>().map_err(|error: RoleError| internal(&error))?;
        Exchange::begin_with(mechanism, message, verifier, channel, &STANDARD.encode(nonce))
    }

    fn begin_with(
        mechanism: &str,
        message: &[u8],
        verifier: Verifier,
        channel: &ChannelBinding,
        server_nonce: &str,
    ) -> Result<Exchange, SqlError> {
        let text = std::str::from_utf8(message).map_err(|_| malformed())?;
        let first = First::read(text).ok_or_else(malformed)?;
        let bound = bound(mechanism, &first, channel)?;
        let nonce = format!("{}{server_nonce}", first.nonce);
        let salt = STANDARD.encode(&verifier.salt);
        let server_first = format!("r={nonce},s={salt},i={}", verifier.iterations);
        Ok(Exchange { verifier, bare: first.bare.to_owned(), server_first, nonce, bound })
    }

    pub(crate) fn server_first(&self) -> &str {
        &self.server_first
    }

    /// Takes the client's last message: the server's, if the proof holds; None if it does not.
    pub(crate) fn finish(self, message: &[u8]) -> Result<Option<String>, SqlError> {
        let text = std::str::from_utf8(message).map_err(|_| malformed())?;
        let (without_proof, proof) = text.rsplit_once(",p=").ok_or_else(malformed)?;
        let mut parts = without_proof.split(',');
        let bound = parts.next().and_then(|part| part.strip_prefix("c=")).ok_or_else(malformed)?;
        let nonce = parts.next().and_then(|part| part.strip_prefix("r=")).ok_or_else(malformed)?;
        if bound != self.bound {
            return Err(SqlError::new("28000", "SCRAM channel binding check failed"));
        }
        if !bool::from(nonce.as_bytes().ct_eq(self.nonce.as_bytes())) {
            return Err(malformed());
        }
        let proof = STANDARD.decode(proof).map_err(|_| malformed())?;
        let auth_message = format!("{},{},{without_proof}", self.bare, self.server_first);
        let signature = self.verifier.check_proof(auth_message.as_bytes(), &proof);
        Ok(signature.map(|signature| format!("v={}", STANDARD.encode(signature))))
    }
}

fn internal(error: &RoleError) -> SqlError {
    SqlError::new("XX000", error.to_string())
}

/// What the client's last message has to repeat: its header, and the certificate's hash if it is bound.
fn bound(mechanism: &str, first: &First<'_>, channel: &ChannelBinding) -> Result<String, SqlError> {
    let plus = mechanism == MECHANISM_PLUS;
    match (first.binding, channel) {
        (Binding::EndPoint, Some(hash)) if plus => {
            Ok(STANDARD.encode([first.header.as_bytes(), hash.as_slice()].concat()))
        }
        (Binding::Unsupported, _) if !plus => Ok(STANDARD.encode(first.header)),
        // Somebody between us may have taken the offer out.
        (Binding::Unoffered, None) if !plus => Ok(STANDARD.encode(first.header)),
        (Binding::Unoffered, Some(_)) if !plus => {
            Err(SqlError::new("28000", "SCRAM channel binding negotiation error")
                .with_detail("The client supports SCRAM channel binding but thinks the server does not."))
        }
        _ => Err(malformed()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::num::NonZeroU32;

    fn verifier() -> Verifier {
        let salt = STANDARD.decode("W22ZaJ0SNY7soEsUEjb6gQ==").unwrap();
        Verifier::derive("pencil", &salt, NonZeroU32::new(4096).unwrap())
    }

    const FIRST: &[u8] = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO";
    const SERVER_NONCE: &str = "%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";

    /// I-56: the exchange of RFC 7677.
    #[test]
    fn the_standard_s_own_exchange() {
        let begun = || Exchange::begin_with(MECHANISM, FIRST, verifier(), &None, SERVER_NONCE).unwrap();
        assert_eq!(
            begun().server_first(),
            "r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
        );
        let proof = "dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=";
        let last = format!("c=biws,r=rOprNGfwEbeRWgbNEkqO{SERVER_NONCE},p={proof}");
        let signed = begun().finish(last.as_bytes()).unwrap();
        assert_eq!(signed.as_deref(), Some("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="));
        let wrong = last.replace("dHzb", "eHzb");
        assert_eq!(begun().finish(wrong.as_bytes()).unwrap(), None);
        let replayed = last.replace("%hv", "%hw");
        assert_eq!(begun().finish(replayed.as_bytes()).unwrap_err().sqlstate, "08P01");
        for cut in 0..last.len() {
            assert!(!matches!(begun().finish(&last.as_bytes()[..cut]), Ok(Some(_))), "cut at {cut}");
        }
    }

    /// I-56: no way down from a bound channel.
    #[test]
    fn a_channel_that_could_be_bound_is() {
        let certificate = Some(vec![1, 2, 3]);
        let begin = |mechanism, first: &[u8], channel: &ChannelBinding| {
            Exchange::begin(mechanism, first, verifier(), channel).map(|_| ()).map_err(|error| error.sqlstate)
        };
        let end_point = b"p=tls-server-end-point,,n=,r=abc";
        assert_eq!(begin(MECHANISM_PLUS, end_point, &certificate), Ok(()));
        assert_eq!(begin(MECHANISM, b"n,,n=,r=abc", &certificate), Ok(()));
        assert_eq!(begin(MECHANISM, b"y,,n=,r=abc", &None), Ok(()));
        assert_eq!(begin(MECHANISM, b"y,,n=,r=abc", &certificate), Err("28000"), "downgraded");
        assert_eq!(begin(MECHANISM, end_point, &certificate), Err("08P01"));
        assert_eq!(begin(MECHANISM_PLUS, b"n,,n=,r=abc", &certificate), Err("08P01"));
        assert_eq!(begin(MECHANISM_PLUS, b"p=tls-unique,,n=,r=abc", &certificate), Err("08P01"));
        for broken in [&b""[..], b"n", b"n,,", b"n,a=x,n=,r=abc", b"n,,n=,r=", b"n,,n=", b"\xff", b"n,,n=,r=a b"] {
            assert_eq!(begin(MECHANISM, broken, &None), Err("08P01"), "{broken:?}");
        }
    }
}
