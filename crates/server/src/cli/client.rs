//! How client commands find their server: one place for all of them.
//!
//!     --url, ISLES_URL, or the default address ─► password: in the URL, ISLES_PASSWORD, the data folder ─► connection

use super::output::Failure;
use crate::serve::{FIRST_ROLE, PASSWORD_FILE, read_password};
use futures::stream::{self, StreamExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::mpsc;
use tokio_postgres::error::DbError;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect};
use tokio_postgres::{AsyncMessage, Client, Config, Connection};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio_rustls::rustls::{self, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

const DEFAULT_URL: &str = "postgres://127.0.0.1:5499/isles";

/// Where `isles serve` keeps its data when nothing else is said.
const DEFAULT_DATA: &str = "isles-data";

/// Notices that wait to be shown; more are dropped, since they are remarks.
const NOTICES_MAX: usize = 1_000;

#[derive(clap::Args, Clone)]
pub(crate) struct ServerArguments {
    /// The server, as postgres://user:password@host:port/database
    #[arg(long, value_name = "URL", env = "ISLES_URL", hide_env_values = true)]
    url: Option<String>,
    /// The data folder of a server on this machine, whose password is taken
    #[arg(long, value_name = "DIR", env = "ISLES_DATA")]
    data: Option<PathBuf>,
    /// Certificates that the server's must be signed by, a PEM file; without it any is taken, as sslmode=require does
    #[arg(long, value_name = "FILE", env = "ISLES_TLS_CA")]
    tls_ca: Option<PathBuf>,
}

/// A connection to a server.
pub(crate) struct Link {
    pub(crate) client: Client,
    pub(crate) notices: mpsc::Receiver<DbError>,
    pub(crate) database: String,
}

impl ServerArguments {
    /// Connects. The connection's task ends with the client.
    pub(crate) async fn connect(&self) -> Result<Link, Failure> {
        let config = self.config(|name| std::env::var(name).ok())?;
        let tls = MakeTls::new(self.tls_ca.as_deref())?;
        let (client, connection) = config.connect(tls).await.map_err(|error| unreachable(&config, &error))?;
        let (sender, notices) = mpsc::channel(NOTICES_MAX);
        tokio::spawn(follow(connection, sender));
        let database = config.get_dbname().unwrap_or(FIRST_ROLE).to_owned();
        Ok(Link { client, notices, database })
    }

    /// What to connect with, given the environment.
    fn config(&self, variable: impl Fn(&str) -> Option<String>) -> Result<Config, Failure> {
        let url = self.url.as_deref().unwrap_or(DEFAULT_URL);
        let mut config = Config::from_str(url).map_err(|fault| {
            let hint = "a URL is postgres://user:password@host:port/database";
            Failure::usage(format!("the server's URL is not valid: {fault}")).code("invalid_url").hint(hint)
        })?;
        if config.get_user().is_none() {
            config.user(FIRST_ROLE);
        }
        if config.get_password().is_none()
            && let Some(password) = variable("ISLES_PASSWORD").or_else(|| self.password_of_data())
        {
            config.password(password);
        }
        if config.get_application_name().is_none() {
            config.application_name("isles");
        }
        Ok(config)
    }

    fn password_of_data(&self) -> Option<String> {
        let folder = self.data.as_deref().unwrap_or(Path::new(DEFAULT_DATA));
        read_password(&folder.join(PASSWORD_FILE))
    }
}

fn unreachable(config: &Config, error: &tokio_postgres::Error) -> Failure {
    if let Some(refusal) = error.as_db_error() {
        let failure = Failure::usage(refusal.message()).code(refusal.code().code());
        return match refusal.hint() {
            Some(hint) => failure.hint(hint),
            None if refusal.code().code() == "28P01" => {
                failure.hint("give the password in the URL, in ISLES_PASSWORD, or name the data folder with --data")
            }
            None => failure,
        };
    }
    let hosts: Vec<String> = config.get_ports().iter().map(u16::to_string).collect();
    let cause = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    Failure::usage(format!("cannot connect (port {}): {cause}", hosts.join(", ")))
        .code("unreachable")
        .hint("start a server with isles serve, or name one with --url or ISLES_URL")
}

/// Keeps the connection going and collects what the server remarks.
async fn follow<T: AsyncRead + AsyncWrite + Unpin>(
    mut connection: Connection<tokio_postgres::Socket, T>,
    notices: mpsc::Sender<DbError>,
) {
    let mut messages = stream::poll_fn(move |cx| connection.poll_message(cx));
    while let Some(Ok(message)) = messages.next().await {
        if let AsyncMessage::Notice(notice) = message {
            let _ = notices.try_send(notice);
        }
    }
}

/// TLS for the client, by rustls.
#[derive(Clone)]
struct MakeTls(Arc<ClientConfig>);

impl MakeTls {
    fn new(authorities: Option<&Path>) -> Result<MakeTls, Failure> {
        let provider = Arc::new(default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|fault| Failure::usage(fault.to_string()))?;
        let config = match authorities {
            Some(path) => builder.with_root_certificates(roots(path)?).with_no_client_auth(),
            None => builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
                .with_no_client_auth(),
        };
        Ok(MakeTls(Arc::new(config)))
    }
}

fn roots(path: &Path) -> Result<RootCertStore, Failure> {
    let cannot = |fault: &dyn std::fmt::Display| {
        Failure::usage(format!("cannot read {}: {fault}", path.display())).code("unreadable_file")
    };
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(path).map_err(|fault| cannot(&fault))? {
        roots.add(certificate.map_err(|fault| cannot(&fault))?).map_err(|fault| cannot(&fault))?;
    }
    Ok(roots)
}

/// Takes any certificate, whose owner proves to have its key: what `sslmode=require` promises, and no more.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

impl MakeTlsConnect<tokio_postgres::Socket> for MakeTls {
    type Stream = Encrypted;
    type TlsConnect = Connector;
    type Error = rustls::pki_types::InvalidDnsNameError;

    fn make_tls_connect(&mut self, host: &str) -> Result<Connector, Self::Error> {
        Ok(Connector { config: Arc::clone(&self.0), name: ServerName::try_from(host)?.to_owned() })
    }
}

struct Connector {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl TlsConnect<tokio_postgres::Socket> for Connector {
    type Stream = Encrypted;
    type Error = std::io::Error;
    type Future = futures::future::BoxFuture<'static, std::io::Result<Encrypted>>;

    fn connect(self, stream: tokio_postgres::Socket) -> Self::Future {
        Box::pin(async move { Ok(Encrypted(TlsConnector::from(self.config).connect(self.name, stream).await?)) })
    }
}

struct Encrypted(tokio_rustls::client::TlsStream<tokio_postgres::Socket>);

impl tokio_postgres::tls::TlsStream for Encrypted {
    fn channel_binding(&self) -> ChannelBinding {
        let certificates = self.0.get_ref().1.peer_certificates();
        match certificates.and_then(<[_]>::first).and_then(|certificate| crate::tls::end_point(certificate)) {
            Some(hash) => ChannelBinding::tls_server_end_point(hash),
            None => ChannelBinding::none(),
        }
    }
}

impl AsyncRead for Encrypted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Encrypted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn found(url: Option<&str>, data: Option<&Path>, password: Option<&str>) -> (String, Option<String>) {
        let arguments = ServerArguments { url: url.map(Into::into), data: data.map(Into::into), tls_ca: None };
        let variable = |name: &str| password.filter(|_| name == "ISLES_PASSWORD").map(Into::into);
        let config = arguments.config(variable).map_err(|_| ()).unwrap();
        let password = config.get_password().map(|password| String::from_utf8(password.to_vec()).unwrap());
        (config.get_user().unwrap().to_owned(), password)
    }

    #[test]
    fn the_password_is_in_the_url_or_the_environment_or_the_data() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(PASSWORD_FILE), "kept\n").unwrap();
        let data = Some(folder.path());
        let ann = Some("postgres://ann:url@localhost/x");
        assert_eq!(found(ann, data, Some("env")), ("ann".into(), Some("url".into())));
        assert_eq!(found(None, data, Some("env")), ("isles".into(), Some("env".into())));
        assert_eq!(found(None, data, None), ("isles".into(), Some("kept".into())));
    }
}
