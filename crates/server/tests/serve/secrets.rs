//! Secrets stay where they belong: whatever is done with them, nothing that the server says has one in it.

use crate::door::Certified;
use crate::harness::{Raw, Server, isles};
use base64::Engine;
use isles_sim::pgserver;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Output;
use tokio_postgres::{Client, NoTls};

/// Of the first role, given by the environment.
const FIRST: &str = "canary-first-8c1f";
/// Of a role, and the one that it has afterwards.
const ROLE: &str = "canary-role-77ab";
const CHANGED: &str = "canary-changed-50de";
/// What somebody guesses.
const GUESSED: &str = "canary-guessed-0b66";
/// Of a PostgreSQL shard, of one that is not there, and of one in a file that cannot be read.
const SHARD: &str = "canary-shard-e3b0";
const ABSENT: &str = "canary-absent-91d4";
const MISTAKEN: &str = "canary-mistaken-2f7a";
/// What a SCRAM verifier is made of.
const STORED_KEY: [u8; 32] = *b"canary-stored-key-of-32-bytes--!";
const SERVER_KEY: [u8; 32] = *b"canary-server-key-of-32-bytes--!";

fn in_base64(bytes: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

/// Every form in which a secret could be seen.
fn secrets() -> Vec<String> {
    let passwords = [FIRST, ROLE, CHANGED, GUESSED, SHARD, ABSENT, MISTAKEN].map(str::to_owned);
    let credentials =
        [("isles", FIRST), ("ann", CHANGED)].map(|(role, password)| in_base64(format!("{role}:{password}").as_bytes()));
    let keys = [STORED_KEY, SERVER_KEY].map(|key| in_base64(&key));
    [&passwords[..], &credentials, &keys].concat()
}

/// All that was said, with where it came from.
#[derive(Default)]
struct Said(Vec<(String, String)>);

impl Said {
    fn add(&mut self, whence: impl Into<String>, text: impl Into<String>) {
        self.0.push((whence.into(), text.into()));
    }

    fn add_output(&mut self, whence: &str, output: &Output) {
        self.add(whence, String::from_utf8_lossy(&output.stdout));
        self.add(whence, String::from_utf8_lossy(&output.stderr));
    }

    /// Something was said there that has this in it: what follows is no silence.
    fn assert_has(&self, whence: &str, part: &str) {
        let found = self.0.iter().any(|(from, text)| from.contains(whence) && text.contains(part));
        assert!(found, "nothing with {part:?} was said by {whence}: {:#?}", self.of(whence));
    }

    fn of(&self, whence: &str) -> Vec<&String> {
        self.0.iter().filter(|(from, _)| from.contains(whence)).map(|(_, text)| text).collect()
    }

    fn assert_silent_of(&self, secrets: &[String]) {
        for (whence, text) in &self.0 {
            let told = secrets.iter().find(|secret| text.contains(secret.as_str()));
            assert!(told.is_none(), "{whence} tells {told:?}:\n{text}");
        }
    }
}

async fn connect(server: &Server, role: &str, password: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) =
        tokio_postgres::connect(&format!("postgres://{role}:{password}@{}/isles", server.listen), NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// Everything of an answer or an error, as text.
async fn ask(client: &Client, sql: &str) -> String {
    match client.simple_query(sql).await {
        Ok(messages) => format!("{messages:?}"),
        Err(error) => format!("{error:?}"),
    }
}

/// Statements that are about secrets, and those that could show them.
async fn speak_sql(server: &Server, said: &mut Said) {
    let admin = connect(server, "isles", FIRST).await.unwrap();
    let verifier =
        format!("SCRAM-SHA-256$4096:{}${}:{}", in_base64(&[7; 16]), in_base64(&STORED_KEY), in_base64(&SERVER_KEY));
    for sql in [
        format!("CREATE USER ann PASSWORD '{ROLE}'"),
        format!("CREATE USER ann PASSWORD '{ROLE}'"),
        format!("CREATE USER bob PASSWORD '{ROLE}' CREATEDB"),
        format!("CREATE USER bob PASSWORD '{ROLE}' CONNECTION LIMIT nonsense"),
        format!("EXPLAIN CREATE USER bob PASSWORD '{ROLE}'"),
        format!("PREPARE p AS CREATE USER bob PASSWORD '{ROLE}'"),
        format!("BEGIN; CREATE USER bob PASSWORD '{ROLE}'"),
        "ROLLBACK".into(),
        format!("CREATE USER eve PASSWORD '{verifier}'"),
        format!("CREATE USER mal PASSWORD 'SCRAM-SHA-256$1:{}'", in_base64(&STORED_KEY)),
        format!("ALTER ROLE nobody PASSWORD '{ROLE}'"),
    ] {
        said.add("an answer", ask(&admin, &sql).await);
    }
    let ann = connect(server, "ann", ROLE).await.unwrap();
    said.add("an answer", ask(&ann, &format!("ALTER ROLE isles PASSWORD '{GUESSED}'")).await);
    let refused = connect(server, "ann", GUESSED).await.map(drop).unwrap_err();
    said.add("a refusal", format!("{refused:?}"));
    for client in [&admin, &ann] {
        for sql in [
            "SHOW ALL",
            "SHOW SHARDS",
            "SHOW TABLES",
            "SELECT * FROM pg_settings",
            "SELECT * FROM pg_roles",
            "SELECT * FROM pg_authid",
            "SELECT * FROM pg_shadow",
            "SELECT * FROM pg_user",
            "SELECT * FROM pg_db_role_setting",
            "SELECT * FROM pg_stat_activity",
            "SELECT * FROM pg_prepared_statements",
            "SELECT * FROM pg_foreign_server",
            "SELECT * FROM pg_user_mapping",
        ] {
            said.add(sql, ask(client, sql).await);
        }
    }
    said.add("an answer", ask(&ann, &format!("ALTER ROLE ann PASSWORD '{CHANGED}'")).await);
    assert!(connect(server, "ann", CHANGED).await.is_ok());
}

fn request(server: &Server, method: &str, path: &str, authorization: &str, body: &str) -> String {
    let length = body.len();
    server.http(&format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: {authorization}\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    ))
}

/// Every page that can be read, for an administrator and another role.
fn speak_http(server: &Server, said: &mut Said) {
    let described = server.get("/openapi.json");
    let described: Value = serde_json::from_str(described.split_once("\r\n\r\n").unwrap().1).unwrap();
    let paths: Vec<&String> = described["paths"].as_object().unwrap().keys().collect();
    assert!(paths.iter().any(|path| path.starts_with("/admin/")), "{paths:?}");
    let basic = |role: &str, password: &str| format!("Basic {}", in_base64(format!("{role}:{password}").as_bytes()));
    let senders = [basic("isles", FIRST), format!("Bearer ann:{CHANGED}")];
    for path in paths {
        for sender in &senders {
            said.add(format!("GET {path}"), request(server, "GET", path, sender, ""));
        }
    }
    let sql = format!(r#"{{"sql":"CREATE USER ann PASSWORD '{ROLE}'"}}"#);
    let absent = format!(r#"{{"url":"postgres://isles:{ABSENT}@127.0.0.1:1/nowhere"}}"#);
    for sender in &senders {
        said.add("POST /sql", request(server, "POST", "/sql", sender, &sql));
        said.add("POST /admin/shards", request(server, "POST", "/admin/shards", sender, &absent));
    }
}

/// Who guesses once for each door of HTTP: more often, and the others would not be let in either.
fn guess_by_http(server: &Server, said: &mut Said) {
    for path in ["/sql", "/admin/shards"] {
        said.add("a guess", request(server, "POST", path, &format!("Bearer isles:{GUESSED}"), "{}"));
    }
}

/// The commands, with secrets in their arguments, their environment and their files.
fn run_commands(server: &Server, said: &mut Said) {
    let address = server.listen;
    let right = format!("postgres://isles:{FIRST}@{address}/isles");
    let wrong = format!("postgres://isles:{GUESSED}@{address}/isles");
    let nobody = format!("postgres://isles:{GUESSED}@127.0.0.1:1/isles");
    let absent = format!("postgres://isles:{ABSENT}@127.0.0.1:1/nowhere");
    let folder = tempfile::TempDir::new().unwrap();
    let mistaken = format!("\"postgres://isles:{MISTAKEN}@127.0.0.1:1/nowhere\"");
    let [unclosed, no_list] = [("unclosed", "["), ("no_list", "")].map(|(name, bracket)| {
        let path = folder.path().join(name).with_extension("toml");
        std::fs::write(&path, format!("\npostgres = {bracket}{mistaken}\nlisten = '127.0.0.1:0'\n")).unwrap();
        path.display().to_string()
    });
    let data = folder.path().join("d").display().to_string();
    for arguments in [
        &["sql", "--url", &right, "-c", "SHOW SHARDS"][..],
        &["sql", "--url", &wrong, "-c", "SHOW SHARDS"],
        &["sql", "--url", &nobody, "-c", "SHOW SHARDS"],
        &["shards", "list", "--url", &right],
        &["shards", "list", "--url", &right, "--json"],
        &["shards", "add", "--url", &right, "--postgres", &absent],
        &["tenants", "list", "--url", &right],
        &["serve", "--check-config", "--json", "--postgres", &absent],
        &["serve", "--postgres", &absent, "--data", &data, "--listen", "127.0.0.1:0", "--http", "off"],
        &["serve", "--config", &unclosed, "--check-config"],
        &["serve", "--config", &no_list, "--check-config"],
        &["serve", "--help"],
    ] {
        let output = isles().env("ISLES_POSTGRES", &absent).args(arguments).output().unwrap();
        said.add_output(&format!("isles {} {}", arguments[0], arguments[1]), &output);
    }
}

fn files_below(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files_below(&path) } else { vec![path] }).collect()
}

/// What the server leaves: its files, but for the one that has the password, and a copy of a shard. The catalog has to know
/// where shards are and with which passwords, and what is kept of those of roles; others cannot look into the folder.
fn look_at_files(data: &Path, said: &mut Said) {
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(std::fs::metadata(data).unwrap().permissions().mode() & 0o777, 0o700);
    let shard = data.join("s0/shard.db");
    let copy = data.join("copy.backup");
    said.add_output("isles backup", &isles().arg("backup").arg(&shard).arg("--to").arg(&copy).output().unwrap());
    let is_private = |path: &PathBuf| path.ends_with("password") || path.display().to_string().contains("catalog.db");
    for path in files_below(data).into_iter().filter(|path| !is_private(path)) {
        said.add(path.display().to_string(), String::from_utf8_lossy(&std::fs::read(&path).unwrap()));
    }
    let catalog = std::fs::read(data.join("catalog.db")).unwrap();
    let catalog = String::from_utf8_lossy(&catalog);
    let of_roles = [FIRST, ROLE, CHANGED, GUESSED];
    assert!(of_roles.iter().all(|password| !catalog.contains(password)), "the catalog has a password of a role");
}

/// I-61: passwords, SCRAM keys and addresses with passwords are in no log at any level, no error, metric, SHOW, page of
/// HTTP, output of a command, shard or backup.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn no_secret_is_told() {
    let folder = tempfile::TempDir::new().unwrap();
    let log = folder.path().join("log");
    let shard = pgserver::shared().create_database().replace("postgres@", &format!("postgres:{SHARD}@"));
    assert!(shard.contains(SHARD));
    let mut server = Server::launch(tempfile::TempDir::new().unwrap(), |command| {
        command
            .args(["--shards", "1", "--postgres", &shard, "--log", "trace", "--log-format", "json"])
            .env("ISLES_PASSWORD", FIRST)
            .stderr(std::fs::File::create(&log).unwrap())
    });
    assert_eq!(server.password, FIRST);
    let mut said = Said::default();
    speak_sql(&server, &mut said).await;
    speak_http(&server, &mut said);
    run_commands(&server, &mut said);
    guess_by_http(&server, &mut said);
    said.add("metrics", server.get("/metrics"));
    let data = std::mem::replace(&mut server.data, tempfile::TempDir::new().unwrap());
    assert_eq!(server.terminate(), 0);
    said.add("the log", std::fs::read_to_string(&log).unwrap());
    look_at_files(&data.path().join("d"), &mut said);
    for (whence, part) in [
        ("the log", "login refused"),
        ("SHOW ALL", "server_version"),
        ("pg_roles", "ann"),
        ("metrics", "isles_connections"),
        ("an answer", "42710"),
        ("a refusal", "28P01"),
        ("a guess", "28P01"),
        ("GET /admin/", "\"success\":true"),
        ("GET /admin/", "42501"),
        ("isles sql", "sqlite"),
        ("isles sql", "password authentication failed"),
        ("isles shards", "s0"),
        ("POST /admin/shards", "127.0.0.1"),
        ("isles serve --config", "line 2: invalid type: string, expected a sequence"),
        ("shard.db", "SQLite format 3"),
        ("copy.backup", "SQLite format 3"),
    ] {
        said.assert_has(whence, part);
    }
    said.assert_silent_of(&secrets());
}

/// I-61: of a key for TLS nothing is told, whether it is used, attacked, or in the place of the certificate.
#[cfg(unix)]
#[test]
fn no_key_is_told() {
    let certified = Certified::new();
    let (certificate, key) = (certified.path("cert.pem"), certified.path("key.pem"));
    let text = std::fs::read_to_string(&key).unwrap();
    let lines: Vec<String> = text.lines().filter(|line| !line.starts_with("--")).map(str::to_owned).collect();
    assert!(lines.len() > 1, "{} lines of a key", lines.len());
    let folder = tempfile::TempDir::new().unwrap();
    let log = folder.path().join("log");
    let server = Server::launch(tempfile::TempDir::new().unwrap(), |command| {
        command
            .args(["--tls-certificate", &certificate, "--tls-key", &key, "--require-tls", "--log", "trace"])
            .stderr(std::fs::File::create(&log).unwrap())
    });
    let mut said = Said::default();
    let url = format!("{}?sslmode=require", server.url.replace("127.0.0.1", "localhost"));
    let shown = isles().args(["sql", "--url", &url, "--tls-ca", &certificate, "-c", "SHOW ALL"]).output().unwrap();
    said.add_output("isles sql", &shown);
    Raw::connect(server.listen).send(&[0x16, 3, 1, 0, 2, 1, 0]);
    assert_eq!(server.terminate(), 0);
    said.add("the log", std::fs::read_to_string(&log).unwrap());
    for (certificate, key) in [(&key, &certificate), (&key, &key), (&certificate, &certificate)] {
        let refused = isles()
            .args(["serve", "--http", "off", "--listen", "127.0.0.1:0", "--data"])
            .arg(folder.path().join("d"))
            .args(["--tls-certificate", certificate, "--tls-key", key])
            .output()
            .unwrap();
        said.add_output("isles serve", &refused);
    }
    said.assert_has("isles sql", "server_version");
    said.assert_has("the log", "told to stop");
    said.assert_has("isles serve", "error: ");
    said.assert_silent_of(&lines);
}
