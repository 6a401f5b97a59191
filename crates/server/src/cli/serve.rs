//! `isles serve`: runs the server until it is told to stop.

use super::files::read_config;
use super::output::{Failure, Format, FormatArgument, Outcome, complain, say, say_json};
use crate::config::{self, Config, File, Given, Invalid, LogFormat};
use crate::serve::{CannotStart, Server};
use isles_workflows::Registry;
use serde_json::json;
use std::path::{Path, PathBuf};
use tracing_subscriber::EnvFilter;

#[derive(clap::Args)]
pub(crate) struct ServeArguments {
    #[command(flatten)]
    given: Given,
    /// A TOML file with any of these settings
    #[arg(long, value_name = "FILE", env = "ISLES_CONFIG")]
    config: Option<PathBuf>,
    /// Say what the configuration comes to, and do nothing
    #[arg(long)]
    check_config: bool,
    #[command(flatten)]
    format: FormatArgument,
}

impl ServeArguments {
    pub(crate) fn format(&self) -> Format {
        self.format.format()
    }
}

pub(crate) fn run(arguments: ServeArguments, registry: Registry) -> Result<Outcome, Failure> {
    let format = arguments.format();
    let config = configuration(arguments.given, arguments.config.as_deref())?;
    if arguments.check_config {
        say_config(&config, format)?;
        return Ok(Outcome::Done);
    }
    start_logs(&config)?;
    let runtime = tokio::runtime::Runtime::new().map_err(|fault| Failure::usage(fault.to_string()))?;
    runtime.block_on(serve(&config, format, registry))
}

async fn serve(config: &Config, format: Format, registry: Registry) -> Result<Outcome, Failure> {
    // Before anything is opened, so that no signal finds a half-open database without a listener.
    let mut stop = StopSignals::new()?;
    let password = std::env::var("ISLES_PASSWORD").ok().filter(|password| !password.is_empty());
    let server = Server::start(config, password, registry).await.map_err(cannot_start)?;
    say_ready(&server, config, format)?;
    let signal = stop.next().await;
    tracing::info!(signal, "told to stop");
    server.stop().await.map_err(|error| {
        Failure::usage(format!("the database was not closed cleanly: {}", error.message)).code(error.sqlstate)
    })?;
    Ok(Outcome::Done)
}

/// What tells the server to stop.
struct StopSignals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
}

impl StopSignals {
    fn new() -> Result<StopSignals, Failure> {
        Ok(StopSignals {
            #[cfg(unix)]
            terminate: tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())
                .map_err(|fault| Failure::usage(fault.to_string()))?,
        })
    }

    #[cfg(unix)]
    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => "SIGINT",
            _ = self.terminate.recv() => "SIGTERM",
        }
    }

    #[cfg(not(unix))]
    async fn next(&mut self) -> &'static str {
        let _ = tokio::signal::ctrl_c().await;
        "interrupt"
    }
}

fn configuration(given: Given, path: Option<&Path>) -> Result<Config, Failure> {
    let folder = path.and_then(Path::parent).map(Path::to_path_buf).unwrap_or_default();
    let file = match path {
        Some(path) => config::parse(&read_config(path)?).map_err(wrong_config)?,
        None => File::default(),
    };
    config::resolve(given, file, &folder).map_err(wrong_config)
}

fn wrong_config(invalid: Invalid) -> Failure {
    let failure = Failure::check(invalid.message).code("invalid_config").field(invalid.field);
    match invalid.hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

fn cannot_start(cannot: CannotStart) -> Failure {
    let failure = Failure::usage(cannot.message).code(cannot.code);
    match cannot.hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

fn say_config(config: &Config, format: Format) -> Result<(), Failure> {
    let http = config.http.map_or("off".to_owned(), |address| address.to_string());
    match format {
        Format::Json => {
            let (stores, presets) = config.stores.names();
            say_json(&json!({"valid": true, "data": config.data, "listen": config.listen, "http": http,
                             "shards": shards_of(config), "strategy": config.strategy, "tls": config.tls.is_some(),
                             "stores": stores, "presets": presets}))
        }
        Format::Text => {
            let (data, shards) = (config.data.display(), shards_of(config));
            let tls = if config.tls.is_some() { "with TLS" } else { "without TLS" };
            say(&format!("valid: {shards} in {data}, PostgreSQL on {} {tls}, HTTP {http}", config.listen));
            Ok(())
        }
    }
}

fn shards_of(config: &Config) -> String {
    match (config.shards.sqlite, config.shards.postgres.len()) {
        (files, _) if !config.shards.said => format!("the shards that are there, or {files} SQLite shards"),
        (files, 0) => format!("{files} SQLite shards"),
        (0, servers) => format!("{servers} PostgreSQL shards"),
        (files, servers) => format!("{files} SQLite and {servers} PostgreSQL shards"),
    }
}

fn say_ready(server: &Server, config: &Config, format: Format) -> Result<(), Failure> {
    let (url, data) = (server.url(), config.data.display());
    match format {
        Format::Json => {
            return say_json(&json!({"ready": true, "url": url, "listen": server.listen,
                                   "socket": server.socket, "http": server.http}));
        }
        Format::Text => {
            say(&format!("isles is ready: {} in {data}", server.shards()));
            say(&format!("  psql {url}"));
        }
    }
    if let Some(http) = server.http {
        let scheme = if config.tls.is_some() { "https" } else { "http" };
        say(&format!("  {scheme}://{http}/sql"));
    }
    if server.password.is_none() {
        complain("hint: the password's file is gone; set a new one with ISLES_PASSWORD");
    }
    Ok(())
}

/// Logs go to standard error; answers go to standard output.
fn start_logs(config: &Config) -> Result<(), Failure> {
    let filter = EnvFilter::try_new(&config.log_level)
        .map_err(|fault| Failure::check(format!("{} is no level of logs: {fault}", config.log_level)).field("log"))?;
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let begun = match config.log_format {
        LogFormat::Json => logs.json().try_init(),
        LogFormat::Text => logs.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).try_init(),
    };
    begun.map_err(|fault| Failure::usage(fault.to_string()))
}
