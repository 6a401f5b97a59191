//! TLS: the server's certificate and key, read from PEM files.

use crate::pg::scram::ChannelBinding;
use std::path::Path;
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// What a client that begins with TLS at once has to ask for, so that nobody else's protocol is taken for ours.
pub(crate) const ALPN: &[u8] = b"postgresql";

#[derive(Clone)]
pub(crate) struct Tls {
    /// For PostgreSQL's protocol.
    pub(crate) acceptor: TlsAcceptor,
    /// For HTTP.
    pub(crate) http: TlsAcceptor,
    /// The hash of our certificate that SCRAM binds to.
    pub(crate) end_point: ChannelBinding,
}

/// Reads a certificate chain and its key. The error is for people.
pub(crate) fn load(certificate: &Path, key: &Path) -> Result<Tls, String> {
    let unreadable = |path: &Path, fault: String| format!("cannot read {}: {fault}", path.display());
    let chain: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(|fault| unreadable(certificate, fault.to_string()))?;
    let first = chain.first().ok_or_else(|| unreadable(certificate, "there is no certificate in it".into()))?;
    let end_point = end_point(first);
    let private = PrivateKeyDer::from_pem_file(key).map_err(|fault| unreadable(key, fault.to_string()))?;
    let config = |protocol: &[u8]| {
        let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|fault| fault.to_string())?
            .with_no_client_auth()
            .with_single_cert(chain.clone(), private.clone_key())
            .map_err(|fault| format!("the certificate and the key do not go together: {fault}"))?;
        config.alpn_protocols = vec![protocol.to_vec()];
        Ok::<_, String>(TlsAcceptor::from(Arc::new(config)))
    };
    Ok(Tls { acceptor: config(ALPN)?, http: config(b"http/1.1")?, end_point })
}

/// `tls-server-end-point` of RFC 5929: the certificate's hash by the function that it was signed with, and SHA-256 in
/// place of MD5 and SHA-1. None where the signature has no such function (Ed25519): then nothing is bound.
pub(crate) fn end_point(certificate: &[u8]) -> ChannelBinding {
    use ring::digest::{SHA256, SHA384, SHA512, digest};
    const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01];
    const ECDSA_SHA2: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03];
    let algorithm = match signature_algorithm(certificate)?.split_last()? {
        (4 | 5 | 11, RSA) | (2, ECDSA_SHA2) => &SHA256,
        (12, RSA) | (3, ECDSA_SHA2) => &SHA384,
        (13, RSA) | (4, ECDSA_SHA2) => &SHA512,
        _ => return None,
    };
    Some(digest(algorithm, certificate).as_ref().to_vec())
}

/// The object identifier of a certificate's outer `signatureAlgorithm`.
fn signature_algorithm(certificate: &[u8]) -> Option<&[u8]> {
    let (body, _) = element(0x30, certificate)?;
    let (_, after_content) = element(0x30, body)?;
    let (algorithm, _) = element(0x30, after_content)?;
    Some(element(0x06, algorithm)?.0)
}

/// The contents of the DER element that begins here, and what follows it.
fn element(tag: u8, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&found, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match first {
        0..=0x7f => (usize::from(first), rest),
        0x81..=0x84 => {
            let count = usize::from(first & 0x7f);
            let digits = rest.get(..count)?;
            (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), &rest[count..])
        }
        _ => return None,
    };
    (found == tag && rest.len() >= length).then(|| rest.split_at(length))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_certificate_is_hashed_by_its_own_function() {
        for (algorithm, bytes) in [
            (&rcgen::PKCS_ECDSA_P256_SHA256, Some(32)),
            (&rcgen::PKCS_ECDSA_P384_SHA384, Some(48)),
            (&rcgen::PKCS_ED25519, None),
        ] {
            let key = rcgen::KeyPair::generate_for(algorithm).unwrap();
            let parameters = rcgen::CertificateParams::new(vec!["localhost".to_owned()]).unwrap();
            let certificate = parameters.self_signed(&key).unwrap();
            assert_eq!(end_point(certificate.der()).map(|hash| hash.len()), bytes);
            for cut in 0..certificate.der().len() {
                end_point(&certificate.der()[..cut]);
            }
        }
    }
}
