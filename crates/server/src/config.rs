//! The configuration of `isles serve`: command line, then environment, then file, then defaults.
//!
//!     Given (arguments, environment) ┐
//!     File (TOML)                    ├──resolve──► Config, checked whole
//!     defaults                       ┘
//!
//! A key that is not known is refused: a misspelt limit is no limit.

use isles_cluster::database::Strategy;
use isles_cluster::placements::Environment;
use isles_kernel::names::RegionName;
use isles_stores::{Declaration, Declared};
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Beside PostgreSQL's own 5432, so that both can run.
const LISTEN: &str = "127.0.0.1:5499";
const HTTP: &str = "127.0.0.1:5480";
const SHARDS: usize = 4;

/// What the command line and the environment say.
#[derive(clap::Args, Debug, Default, Clone)]
pub(crate) struct Given {
    /// Where the database keeps its files
    #[arg(long, value_name = "DIR", env = "ISLES_DATA")]
    pub(crate) data: Option<PathBuf>,
    /// How many SQLite shards a new database has; with --postgres, how many it has before those
    #[arg(long, value_name = "N", env = "ISLES_SHARDS")]
    pub(crate) shards: Option<usize>,
    /// PostgreSQL databases to be the shards, in order; in the environment, with spaces between
    #[arg(long, value_name = "URL", env = "ISLES_POSTGRES", value_delimiter = ' ', hide_env_values = true)]
    pub(crate) postgres: Vec<String>,
    /// How tenants are kept apart; a database keeps what it was made with [default: row]
    #[arg(long, value_name = "STRATEGY", env = "ISLES_STRATEGY", value_enum)]
    pub(crate) strategy: Option<StrategyName>,
    /// What an invalid placement does: refuse its tenant, or warn and go on [default: production]
    #[arg(long, value_name = "ENVIRONMENT", env = "ISLES_ENVIRONMENT", value_enum)]
    pub(crate) environment: Option<EnvironmentName>,
    /// Where the data folder is: the region of the catalog, and of shards that are files
    #[arg(long, value_name = "REGION", env = "ISLES_REGION")]
    pub(crate) region: Option<String>,
    /// The region of each shard, in order, with "-" for none; in the environment, with spaces between
    #[arg(long, value_name = "REGION", env = "ISLES_SHARD_REGIONS", value_delimiter = ' ')]
    pub(crate) shard_regions: Vec<String>,
    /// Where PostgreSQL clients connect [default: 127.0.0.1:5499]
    #[arg(long, value_name = "ADDR", env = "ISLES_LISTEN")]
    pub(crate) listen: Option<String>,
    /// The folder of a socket for PostgreSQL clients on this machine, or "off" [default: the data folder]
    #[arg(long, value_name = "DIR", env = "ISLES_SOCKET")]
    pub(crate) socket: Option<PathBuf>,
    /// Where HTTP is served, or "off" [default: 127.0.0.1:5480]
    #[arg(long, value_name = "ADDR", env = "ISLES_HTTP")]
    pub(crate) http: Option<String>,
    /// The certificate chain for TLS, a PEM file
    #[arg(long, value_name = "FILE", env = "ISLES_TLS_CERTIFICATE", requires = "tls_key")]
    pub(crate) tls_certificate: Option<PathBuf>,
    /// The certificate's key, a PEM file
    #[arg(long, value_name = "FILE", env = "ISLES_TLS_KEY", requires = "tls_certificate")]
    pub(crate) tls_key: Option<PathBuf>,
    /// Refuse connections without TLS, from this machine too
    #[arg(long, env = "ISLES_REQUIRE_TLS")]
    pub(crate) require_tls: bool,
    /// How often each global index is compared with the rows and put right, in seconds; 0 for never [default: once a day]
    #[arg(long, value_name = "SECONDS", env = "ISLES_VERIFY_INDEXES_EVERY")]
    pub(crate) verify_indexes_every: Option<u64>,
    /// How logs are written
    #[arg(long, value_name = "FORMAT", env = "ISLES_LOG_FORMAT", value_enum)]
    pub(crate) log_format: Option<LogFormat>,
    /// What is logged: error, warn, info, debug, trace, or by module
    #[arg(long = "log", value_name = "LEVEL", env = "ISLES_LOG")]
    pub(crate) log_level: Option<String>,
}

/// A [`Strategy`], as people write it.
#[derive(clap::ValueEnum, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum StrategyName {
    /// Tenants share shards
    Row,
    /// Each tenant has a shard of its own
    Adapter,
}

impl From<StrategyName> for Strategy {
    fn from(name: StrategyName) -> Strategy {
        match name {
            StrategyName::Row => Strategy::Row,
            StrategyName::Adapter => Strategy::Adapter,
        }
    }
}

/// An [`Environment`], as people write it.
#[derive(clap::ValueEnum, Deserialize, Debug, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub(crate) enum EnvironmentName {
    /// Refuse whoever needs it
    Production,
    /// Warn, and go on with the last valid one
    Development,
}

impl From<EnvironmentName> for Environment {
    fn from(name: EnvironmentName) -> Environment {
        match name {
            EnvironmentName::Production => Environment::Production,
            EnvironmentName::Development => Environment::Development,
        }
    }
}

#[derive(clap::ValueEnum, Deserialize, Debug, Clone, Copy, PartialEq, Eq, Default)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    #[default]
    Text,
    Json,
}

/// The configuration file.
#[derive(Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct File {
    data: Option<PathBuf>,
    shards: Option<usize>,
    #[serde(default)]
    postgres: Vec<String>,
    strategy: Option<StrategyName>,
    environment: Option<EnvironmentName>,
    region: Option<String>,
    #[serde(default)]
    shard_regions: Vec<String>,
    listen: Option<String>,
    socket: Option<PathBuf>,
    http: Option<String>,
    verify_indexes_every: Option<u64>,
    #[serde(default)]
    tls: FileTls,
    #[serde(default)]
    log: FileLog,
    #[serde(default)]
    limits: Limits,
    #[serde(default)]
    stores: Vec<Declared>,
    #[serde(default)]
    presets: Vec<String>,
}

#[derive(Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
struct FileTls {
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    #[serde(default)]
    require: bool,
}

#[derive(Deserialize, Debug, Default)]
#[serde(deny_unknown_fields)]
struct FileLog {
    format: Option<LogFormat>,
    level: Option<String>,
}

/// Bounds of what clients can make the server do.
#[derive(Deserialize, Debug, Clone, PartialEq, Eq)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Limits {
    /// Sessions at once. PostgreSQL has 100, each a process; ours are cheaper.
    pub(crate) connections: usize,
    /// Sessions kept for administrators when all others are taken.
    pub(crate) admin_connections: usize,
    /// The largest message of a client.
    pub(crate) message_bytes: usize,
    /// From the first byte to the end of authentication.
    pub(crate) startup_seconds: u64,
    /// How long running transactions may go on when the server stops.
    pub(crate) shutdown_seconds: u64,
    /// The largest body of an HTTP request.
    pub(crate) http_body_bytes: usize,
    /// Rows and bytes of an HTTP answer.
    pub(crate) http_rows: usize,
    pub(crate) http_answer_bytes: usize,
    /// HTTP requests that run at once; more are refused.
    pub(crate) http_requests: usize,
    /// Those of them that wait: for updates and ends of runs, and workers for tasks. They take no place of the others.
    pub(crate) http_waits: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connections: 500,
            admin_connections: 3,
            message_bytes: 64 << 20,
            startup_seconds: 10,
            shutdown_seconds: 10,
            http_body_bytes: 8 << 20,
            http_rows: 10_000,
            http_answer_bytes: 32 << 20,
            http_requests: 200,
            http_waits: 1_000,
        }
    }
}

impl Limits {
    pub(crate) fn startup(&self) -> Duration {
        Duration::from_secs(self.startup_seconds)
    }

    pub(crate) fn shutdown(&self) -> Duration {
        Duration::from_secs(self.shutdown_seconds)
    }
}

/// SQLite files come first, so the first of them has the global tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Shards {
    /// Whether anything is said about shards. If not, those are meant that the database has, and the others if it is new.
    pub(crate) said: bool,
    /// How many SQLite files.
    pub(crate) sqlite: usize,
    /// PostgreSQL databases, by their URLs.
    pub(crate) postgres: Vec<String>,
}

/// Where the socket for clients on this machine is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Local {
    /// In the data folder, if that can be.
    Unsaid,
    Folder(PathBuf),
    Off,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TlsFiles {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
}

/// What the server runs with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Config {
    pub(crate) data: PathBuf,
    pub(crate) shards: Shards,
    /// What the database has, if not said.
    pub(crate) strategy: Option<Strategy>,
    pub(crate) environment: Environment,
    /// Of the data folder.
    pub(crate) region: Option<RegionName>,
    /// Of each shard, in order.
    pub(crate) regions: Vec<Option<RegionName>>,
    pub(crate) listen: SocketAddr,
    pub(crate) local: Local,
    pub(crate) http: Option<SocketAddr>,
    pub(crate) tls: Option<TlsFiles>,
    pub(crate) require_tls: bool,
    /// As the database has it, if not said.
    pub(crate) verify_indexes_every: Option<Duration>,
    pub(crate) log_format: LogFormat,
    pub(crate) log_level: String,
    pub(crate) limits: Limits,
    /// Stores that are there when the server is.
    pub(crate) stores: Declaration,
}

/// What is wrong with a configuration.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Invalid {
    pub(crate) field: &'static str,
    pub(crate) message: String,
    pub(crate) hint: Option<&'static str>,
}

fn invalid(field: &'static str, message: impl Into<String>) -> Invalid {
    Invalid { field, message: message.into(), hint: None }
}

/// Reads a configuration file.
pub(crate) fn parse(text: &str) -> Result<File, Invalid> {
    toml::from_str(text).map_err(|fault| invalid("file", told(&fault, text)))
}

/// Where a file is wrong, and how. Neither its lines nor its values are shown: a shard's password may be in them (I-61).
fn told(fault: &toml::de::Error, text: &str) -> String {
    let (kind, rest) = fault.message().split_once(" \"").unwrap_or((fault.message(), ""));
    let message = match rest.rsplit_once("\", expected ") {
        Some((_, expected)) => format!("{kind}, expected {expected}"),
        None => fault.message().to_owned(),
    };
    match fault.span().and_then(|span| text.get(..span.start)) {
        Some(before) => format!("line {}: {message}", before.matches('\n').count() + 1),
        None => message,
    }
}

/// Puts the sources together. Files that are named within `file` are relative to its folder.
pub(crate) fn resolve(given: Given, file: File, folder: &Path) -> Result<Config, Invalid> {
    let beside = |path: PathBuf| folder.join(path);
    let listen = given.listen.or(file.listen).unwrap_or_else(|| LISTEN.to_owned());
    let http = given.http.or(file.http).unwrap_or_else(|| HTTP.to_owned());
    let given_tls = given.tls_certificate.zip(given.tls_key);
    let file_tls = file.tls.certificate.map(beside).zip(file.tls.key.map(beside));
    let config = Config {
        data: given.data.or(file.data.map(beside)).unwrap_or_else(|| "isles-data".into()),
        shards: shards(given.shards, given.postgres, file.shards, file.postgres),
        strategy: given.strategy.or(file.strategy).map(Strategy::from),
        environment: given.environment.or(file.environment).map(Environment::from).unwrap_or_default(),
        region: given.region.or(file.region).map(|name| region("region", &name)).transpose()?,
        regions: regions(if given.shard_regions.is_empty() { file.shard_regions } else { given.shard_regions })?,
        listen: address("listen", &listen)?,
        local: local(
            given.socket.or(file.socket.map(|path| if path == Path::new("off") { path } else { beside(path) })),
        ),
        http: if http == "off" { None } else { Some(address("http", &http)?) },
        tls: given_tls.or(file_tls).map(|(certificate, key)| TlsFiles { certificate, key }),
        require_tls: given.require_tls || file.tls.require,
        verify_indexes_every: given.verify_indexes_every.or(file.verify_indexes_every).map(Duration::from_secs),
        log_format: given.log_format.or(file.log.format).unwrap_or_default(),
        log_level: given.log_level.or(file.log.level).unwrap_or_else(|| "info".to_owned()),
        limits: file.limits,
        stores: Declaration::check(file.stores, file.presets).map_err(|faults| invalid("stores", faults.join("\n")))?,
    };
    check(config)
}

/// Who says anything about shards says all of it: what is given does not add to the file.
fn shards(given: Option<usize>, given_urls: Vec<String>, file: Option<usize>, file_urls: Vec<String>) -> Shards {
    let (count, postgres) = match given.is_some() || !given_urls.is_empty() {
        true => (given, given_urls),
        false => (file, file_urls),
    };
    let unsaid = if postgres.is_empty() { SHARDS } else { 0 };
    Shards { said: count.is_some() || !postgres.is_empty(), sqlite: count.unwrap_or(unsaid), postgres }
}

fn local(folder: Option<PathBuf>) -> Local {
    match folder {
        None => Local::Unsaid,
        Some(folder) if folder == Path::new("off") => Local::Off,
        Some(folder) => Local::Folder(folder),
    }
}

fn region(field: &'static str, name: &str) -> Result<RegionName, Invalid> {
    RegionName::new(name).map_err(|fault| invalid(field, fault.to_string()))
}

fn regions(names: Vec<String>) -> Result<Vec<Option<RegionName>>, Invalid> {
    let one = |name: String| match name.as_str() {
        "-" => Ok(None),
        name => region("shard_regions", name).map(Some),
    };
    names.into_iter().map(one).collect()
}

fn address(field: &'static str, text: &str) -> Result<SocketAddr, Invalid> {
    let text = text.replace("localhost:", "127.0.0.1:");
    text.parse().map_err(|_| Invalid {
        hint: Some("an address is an IP and a port, such as 127.0.0.1:5499 or [::]:5499"),
        ..invalid(field, format!("{text} is no address"))
    })
}

fn check(config: Config) -> Result<Config, Invalid> {
    if config.shards.sqlite == 0 && config.shards.postgres.is_empty() {
        return Err(invalid("shards", "a database has at least one shard"));
    }
    let shards = config.shards.sqlite + config.shards.postgres.len();
    if config.shards.said && config.regions.len() > shards {
        let message = format!("{} regions are named for {shards} shards", config.regions.len());
        return Err(invalid("shard_regions", message));
    }
    let limits = &config.limits;
    for (field, value, least) in [
        ("limits.connections", limits.connections, 1),
        ("limits.message_bytes", limits.message_bytes, 64 << 10),
        ("limits.startup_seconds", limits.startup_seconds as usize, 1),
        ("limits.http_body_bytes", limits.http_body_bytes, 1),
        ("limits.http_requests", limits.http_requests, 1),
        ("limits.http_waits", limits.http_waits, 1),
    ] {
        if value < least {
            return Err(invalid(field, format!("{field} is {value}, and at least {least} is needed")));
        }
    }
    // A length of the protocol has 31 bits.
    if limits.message_bytes > 1 << 30 {
        return Err(invalid("limits.message_bytes", "limits.message_bytes is above 1 GiB"));
    }
    if config.require_tls && config.tls.is_none() {
        return Err(Invalid { hint: Some(TLS_HINT), ..invalid("tls", "TLS is required, and there is no certificate") });
    }
    let addresses = [Some(config.listen), config.http];
    match addresses.into_iter().flatten().find(|address| !address.ip().is_loopback()) {
        Some(address) if config.tls.is_none() => Err(Invalid {
            hint: Some(TLS_HINT),
            ..invalid("listen", format!("{address} can be reached from other machines, and there is no certificate"))
        }),
        _ => Ok(config),
    }
}

const TLS_HINT: &str = "give --tls-certificate and --tls-key, or listen on 127.0.0.1";

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn sqlite(count: usize) -> Shards {
        Shards { said: true, sqlite: count, postgres: Vec::new() }
    }

    fn resolved(given: Given, text: &str) -> Result<Config, Invalid> {
        resolve(given, parse(text)?, Path::new("/etc/isles"))
    }

    #[test]
    fn defaults_need_nothing() {
        let config = resolved(Given::default(), "").unwrap();
        assert_eq!(config.listen.to_string(), "127.0.0.1:5499");
        let unsaid = Shards { said: false, ..sqlite(4) };
        assert_eq!((config.shards, config.data), (unsaid, PathBuf::from("isles-data")));
        assert_eq!(config.limits, Limits::default());
    }

    #[test]
    fn what_is_given_wins_over_the_file_and_the_file_over_defaults() {
        let text = "data = 'd'\nshards = 8\nlisten = '127.0.0.1:1'\nhttp = 'off'\n[limits]\nconnections = 7\n";
        let config = resolved(Given::default(), text).unwrap();
        assert_eq!((config.shards, config.data), (sqlite(8), PathBuf::from("/etc/isles/d")));
        assert_eq!((config.listen.port(), config.http, config.limits.connections), (1, None, 7));
        assert_eq!(config.local, Local::Unsaid);
        let socket = |text: &str| resolved(Given::default(), text).unwrap().local;
        assert_eq!(socket("socket = 'run'"), Local::Folder("/etc/isles/run".into()));
        assert_eq!(socket("socket = 'off'"), Local::Off);
        let given = Given { shards: Some(2), listen: Some("localhost:2".into()), ..Given::default() };
        let config = resolved(given, text).unwrap();
        assert_eq!((config.shards, config.listen.port()), (sqlite(2), 2));
        let given = Given { strategy: Some(StrategyName::Row), ..Given::default() };
        assert_eq!(resolved(Given::default(), text).unwrap().strategy, None);
        assert_eq!(resolved(Given::default(), "strategy = 'adapter'").unwrap().strategy, Some(Strategy::Adapter));
        assert_eq!(resolved(given, "strategy = 'adapter'").unwrap().strategy, Some(Strategy::Row));
        let given = Given { postgres: vec!["postgres://a".into()], ..Given::default() };
        let one = vec!["postgres://a".to_owned()];
        assert_eq!(
            resolved(given.clone(), text).unwrap().shards,
            Shards { said: true, sqlite: 0, postgres: one.clone() }
        );
        let both = Given { shards: Some(3), ..given };
        assert_eq!(resolved(both, text).unwrap().shards, Shards { said: true, sqlite: 3, postgres: one.clone() });
        let file = "shards = 2\npostgres = ['postgres://a']";
        assert_eq!(resolved(Given::default(), file).unwrap().shards, Shards { said: true, sqlite: 2, postgres: one });
    }

    #[test]
    fn regions_and_the_environment_are_read() {
        let text = "shards = 3\nregion = 'weur'\nshard_regions = ['apac', '-']\nenvironment = 'development'";
        let config = resolved(Given::default(), text).unwrap();
        let named = |name: &str| RegionName::new(name).unwrap();
        assert_eq!((config.region, config.regions), (Some(named("weur")), vec![Some(named("apac")), None]));
        assert_eq!(config.environment, Environment::Development);
        let config = resolved(Given::default(), "").unwrap();
        assert_eq!((config.environment, config.region), (Environment::Production, None));
    }

    #[test]
    fn what_is_not_known_is_refused() {
        for text in
            ["port = 1", "[limits]\nconections = 1", "[tls]\ncert = 'x'", "listen = 5", "data =", "strategy = 'rows'"]
        {
            assert_eq!(resolved(Given::default(), text).unwrap_err().field, "file", "{text}");
        }
        for (text, field) in [
            ("region = 'A B'", "region"),
            ("shards = 1\nshard_regions = ['apac', '-']", "shard_regions"),
            ("listen = 'everywhere'", "listen"),
            ("shards = 0", "shards"),
            ("presets = ['identiy']", "stores"),
            ("[[stores]]\nname = 'a'", "stores"),
            ("[limits]\nconnections = 0", "limits.connections"),
            ("[limits]\nmessage_bytes = 1", "limits.message_bytes"),
        ] {
            assert_eq!(resolved(Given::default(), text).unwrap_err().field, field, "{text}");
        }
    }

    #[test]
    fn stores_are_declared_in_the_file() {
        let text = "presets = ['identity']\n[[stores]]\nname = 'ticket'\nprefix = 'tkt'\ngroup = 'vc'\nkey = 'uuid'\n\
                    ttl = '1 hour'\n";
        let config = resolved(Given::default(), text).unwrap();
        assert_eq!(config.stores.names(), (vec!["ticket"], vec!["identity"]));
        let wrong = "presets = ['x']\n[[stores]]\nname = 'a'\ntll = '1 s'\n[[stores]]\nname = 'b'\n";
        let error = resolved(Given::default(), wrong).unwrap_err();
        for fault in ["preset \"x\"", "\"a\": tll: there is no such option", "\"a\": ttl", "\"b\": prefix: is missing"]
        {
            assert!(error.message.contains(fault), "{fault} is missing in {}", error.message);
        }
    }

    #[test]
    fn off_this_machine_only_with_tls() {
        for text in ["listen = '0.0.0.0:5499'", "http = '[::]:80'", "listen = '10.0.0.1:1'"] {
            let error = resolved(Given::default(), text).unwrap_err();
            assert_eq!((error.field, error.hint), ("listen", Some(TLS_HINT)), "{text}");
            let with_tls = format!("{text}\n[tls]\ncertificate = 'c.pem'\nkey = 'k.pem'");
            let tls = resolved(Given::default(), &with_tls).unwrap().tls.unwrap();
            assert_eq!(tls.certificate, Path::new("/etc/isles/c.pem"));
        }
        assert_eq!(resolved(Given::default(), "[tls]\nrequire = true").unwrap_err().field, "tls");
    }
}
