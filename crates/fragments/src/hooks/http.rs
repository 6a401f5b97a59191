//! Hooks that are delivered to a URL.
//!
//! A URL is data, so it is not trusted: https only, the name is resolved once, every address that it has must be public,
//! and the connection goes to an address that was looked at, whatever the name says a moment later. Redirects are not
//! followed, proxies of the environment are not asked, and answers are read to a limit. The body is signed, with its time.
//!
//! Invariants (docs/invariants.md):
//!   * I-62  hooks call public addresses only, by https, within limits, with a signed body

use super::{Hook, HookContext};
use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

/// How long a delivery may take, from the name to the end of the answer.
pub const MAX_TIME: Duration = Duration::from_secs(10);
/// Bytes of an answer; nobody needs it but to see that it ended.
const MAX_ANSWER: usize = 64 << 10;
/// Characters of a URL.
const MAX_URL: usize = 2_048;

/// Which addresses a delivery may go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Addresses {
    Public,
    /// This machine too, also without TLS; for tests.
    LoopbackForTests,
}

/// Where and how a hook is delivered.
#[derive(Clone)]
pub struct Delivery {
    uri: Uri,
    secret: Arc<ring::hmac::Key>,
    tls: TlsConnector,
    addresses: Addresses,
}

impl Hook {
    /// A hook whose payload is sent to a URL: that of the delivery, or the one that its trigger names.
    pub fn http(delivery: Delivery) -> Hook {
        let known = delivery.clone();
        let mut hook = Hook::new(move |context, payload| {
            let delivery = delivery.clone();
            async move {
                let delivery = match &context.url {
                    Some(url) => delivery.to(url)?,
                    None => delivery,
                };
                delivery.send(&context, &payload).await
            }
        });
        hook.check_url = Some(Arc::new(move |url| known.to(url).map(|_| ())));
        hook
    }
}

impl Delivery {
    /// Signed by a secret that the receiver knows, to servers that these roots vouch for.
    pub fn new(url: &str, secret: &[u8], roots: RootCertStore, addresses: Addresses) -> Result<Delivery, String> {
        let tls = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let secret = Arc::new(ring::hmac::Key::new(ring::hmac::HMAC_SHA256, secret));
        Ok(Delivery { uri: read_url(url, addresses)?, secret, tls: TlsConnector::from(Arc::new(tls)), addresses })
    }

    /// The same to another URL, which is not trusted more.
    fn to(&self, url: &str) -> Result<Delivery, String> {
        Ok(Delivery { uri: read_url(url, self.addresses)?, ..self.clone() })
    }

    fn host(&self) -> &str {
        host_of(&self.uri)
    }

    fn is_https(&self) -> bool {
        self.uri.scheme_str() == Some("https")
    }

    async fn send(&self, context: &HookContext, payload: &serde_json::Value) -> Result<(), String> {
        match tokio::time::timeout(MAX_TIME, self.send_now(context, payload)).await {
            Ok(sent) => sent,
            Err(_) => Err("the delivery took too long".into()),
        }
    }

    async fn send_now(&self, context: &HookContext, payload: &serde_json::Value) -> Result<(), String> {
        let port = self.uri.port_u16().unwrap_or(if self.is_https() { 443 } else { 80 });
        let found = tokio::net::lookup_host((self.host(), port)).await;
        let found = found.map_err(|error| format!("the host has no address: {error}"))?;
        let address = choose(found, self.addresses)?;
        let stream = TcpStream::connect(address).await.map_err(|error| format!("cannot connect: {error}"))?;
        let request = self.request(context, payload)?;
        if !self.is_https() {
            return exchange(stream, request).await;
        }
        let name = ServerName::try_from(self.host().to_string()).map_err(|error| error.to_string())?;
        let stream = self.tls.connect(name, stream).await.map_err(|error| format!("no TLS: {error}"))?;
        exchange(stream, request).await
    }

    fn request(&self, context: &HookContext, payload: &serde_json::Value) -> Result<Request<Full<Bytes>>, String> {
        let body = payload.to_string();
        let at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let path = self.uri.path_and_query().map_or("/", |path| path.as_str());
        let host = self.uri.authority().map_or("", |authority| authority.as_str());
        Request::post(path)
            .header("host", host)
            .header("content-type", "application/json")
            .header("isles-hook-id", &context.id)
            .header("isles-hook-name", &context.name)
            .header("isles-hook-attempt", context.attempt)
            .header("isles-signature", signature(&self.secret, at, &context.id, &body))
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| error.to_string())
    }
}

/// A URL that something may be sent to, as far as it says so itself.
fn read_url(url: &str, addresses: Addresses) -> Result<Uri, String> {
    if url.len() > MAX_URL {
        return Err(format!("a URL has at most {MAX_URL} characters"));
    }
    let uri: Uri = url.parse().map_err(|_| "this is no URL".to_string())?;
    let is_test = addresses == Addresses::LoopbackForTests;
    match uri.scheme_str() {
        Some("https") => {}
        Some("http") if is_test => {}
        _ => return Err("hooks are delivered by https only".into()),
    }
    let has_user = uri.authority().is_some_and(|authority| authority.as_str().contains('@'));
    if uri.host().is_none_or(str::is_empty) || has_user {
        return Err("the URL has a host and no user".into());
    }
    if let Ok(address) = host_of(&uri).parse::<IpAddr>() {
        choose(std::iter::once(SocketAddr::new(address, 0)), addresses)?;
    }
    Ok(uri)
}

fn host_of(uri: &Uri) -> &str {
    uri.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']')
}

/// `t=time,v1=HMAC-SHA256(time.id.body)`: a receiver checks both, so that an old delivery cannot be sent again.
pub fn signature(secret: &ring::hmac::Key, at: u64, id: &str, body: &str) -> String {
    let tag = ring::hmac::sign(secret, format!("{at}.{id}.{body}").as_bytes());
    let tag: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("t={at},v1={tag}")
}

async fn exchange(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    request: Request<Full<Bytes>>,
) -> Result<(), String> {
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = handshake.map_err(|error| error.to_string())?;
    // It ends with the sender.
    let connection = tokio::spawn(connection);
    let answer = sender.send_request(request).await.map_err(|error| error.to_string());
    let outcome = match answer {
        Err(error) => Err(error),
        Ok(answer) => {
            let status = answer.status();
            let read = Limited::new(answer.into_body(), MAX_ANSWER).collect().await;
            match (status.is_success(), read) {
                (true, Ok(_)) => Ok(()),
                (true, Err(_)) => Err(format!("the answer is longer than {MAX_ANSWER} bytes, or was cut")),
                (false, _) if status.is_redirection() => Err(format!("redirects are not followed: {status}")),
                (false, _) => Err(format!("the receiver said {status}")),
            }
        }
    };
    connection.abort();
    outcome
}

/// One of the addresses, if all of them are allowed.
fn choose(found: impl Iterator<Item = SocketAddr>, allowed: Addresses) -> Result<SocketAddr, String> {
    let mut first = None;
    for address in found {
        let loopback = allowed == Addresses::LoopbackForTests && address.ip().is_loopback();
        if !loopback && !is_public(address.ip()) {
            return Err("the address is not public".into());
        }
        first.get_or_insert(address);
    }
    first.ok_or_else(|| "the host has no address".into())
}

/// Whether an address is one of the public internet.
pub fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_public_v4(address),
        IpAddr::V6(address) => is_public_v6(address),
    }
}

fn is_public_v4(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let special = address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_documentation()
        || a == 0
        || a >= 240
        // Shared by providers, protocol assignments, 6to4 relays, benchmarks.
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || (a == 192 && b == 88 && c == 99)
        || (a == 198 && (b == 18 || b == 19));
    !special
}

fn is_public_v6(address: Ipv6Addr) -> bool {
    let parts = address.segments();
    // Only 2000::/3 is given out. Within it: documentation, 6to4, Teredo and other assignments that lead elsewhere.
    let global = parts[0] & 0xe000 == 0x2000;
    let special = (parts[0] == 0x2001 && (parts[1] < 0x0200 || parts[1] == 0x0db8))
        || parts[0] == 0x2002
        || (parts[0] == 0x3fff && parts[1] < 0x1000);
    global && !special
}

#[cfg(test)]
mod tests {
    use super::*;

    /// I-62: private, link-local, mapped and other special addresses are not called, public ones are.
    #[test]
    fn addresses_that_are_not_public() {
        let refused = [
            "127.0.0.1",
            "10.0.0.1",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "0.0.0.0",
            "100.64.0.1",
            "192.0.0.1",
            "192.0.2.1",
            "198.18.0.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::1",
            "::",
            "::ffff:10.0.0.1",
            "::ffff:8.8.8.8",
            "::127.0.0.1",
            "fe80::1",
            "fc00::1",
            "fd12::1",
            "ff02::1",
            "64:ff9b::a00:1",
            "2001:db8::1",
            "2002:a00:1::",
            "2001::1",
            "3fff::1",
        ];
        for text in refused {
            assert!(!is_public(text.parse().unwrap()), "{text}");
        }
        for text in ["8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "2a00:1450:4001::200e"] {
            assert!(is_public(text.parse().unwrap()), "{text}");
        }
    }

    /// I-62: a name that has a public address and another one is not called at all, so that rebinding gains nothing.
    #[test]
    fn one_bad_address_is_enough() {
        let mixed = ["8.8.8.8:443", "10.0.0.1:443"].map(|text| text.parse::<SocketAddr>().unwrap());
        assert!(choose(mixed.into_iter(), Addresses::Public).is_err());
        assert!(choose(mixed[..1].iter().copied(), Addresses::Public).is_ok());
        assert!(choose(std::iter::empty(), Addresses::Public).is_err());
        let local = "127.0.0.1:80".parse::<SocketAddr>().unwrap();
        assert!(choose([local].into_iter(), Addresses::Public).is_err());
        assert!(choose([local].into_iter(), Addresses::LoopbackForTests).is_ok());
        assert!(choose([mixed[1]].into_iter(), Addresses::LoopbackForTests).is_err());
    }

    /// I-62: https only, with a host and without a user.
    #[test]
    fn urls_that_are_refused() {
        let new = |url: &str| Delivery::new(url, b"secret", RootCertStore::empty(), Addresses::Public);
        for url in [
            "https://10.0.0.1/",
            "https://[::1]/",
            "http://example.org/",
            "ftp://example.org/",
            "https://",
            "https://a@example.org/",
            "/path",
            "file:///etc",
        ] {
            assert!(new(url).is_err(), "{url}");
        }
        assert!(new(&format!("https://example.org/{}", "x".repeat(MAX_URL))).is_err());
        assert!(new("https://example.org/hook?x=1").is_ok());
    }
}
