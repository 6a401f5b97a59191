//! A server with tenants, and the ways to speak with it.

use crate::harness::{Server, Setup, connect};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::time::{Duration, Instant};
use tokio_postgres::{Client, SimpleQueryMessage};

pub(crate) const SQLITE: Setup = Setup::Sqlite { shards: 3 };
pub(crate) const POSTGRES: Setup = Setup::Postgres { shards: 2 };

/// How long anything may take before a test gives up on it.
const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) admin: Client,
}

/// What a command said.
pub(crate) struct Said {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Said {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|fault| panic!("{fault}: {}{}", self.out, self.err))
    }

    /// The exit code, and the code of what it refused.
    pub(crate) fn refused(&self) -> (i32, String) {
        let said: Value = serde_json::from_str(&self.err).unwrap_or_else(|fault| panic!("{fault}: {}", self.err));
        (self.code, said["error"]["code"].as_str().unwrap().to_owned())
    }
}

impl World {
    /// A server with a table of each kind that can move.
    pub(crate) async fn start(setup: Setup) -> World {
        World::of(Server::start_with_http(setup).await).await
    }

    pub(crate) async fn of(server: Server) -> World {
        let admin = connect(server.url()).await;
        for statement in [
            "CREATE TABLE notes (id bigint PRIMARY KEY, body text, n numeric, f float8) WITH (kind = tenant)",
            "CREATE TABLE users (id bigint PRIMARY KEY, name text) WITH (\"group\" = 'users', buckets = 16)",
            "CREATE TABLE plans (id int PRIMARY KEY) WITH (kind = reference)",
        ] {
            admin.batch_execute(statement).await.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
        }
        World { server, admin }
    }

    pub(crate) async fn client_of(&self, tenant: &str) -> Client {
        let client = connect(self.server.url()).await;
        client.batch_execute(&format!("SET isles.tenant = '{tenant}'")).await.unwrap();
        client
    }

    /// A tenant that is on a shard, with rows. Its name begins with a prefix.
    pub(crate) async fn tenant_on(&self, shard: &str, prefix: &str, rows: usize) -> String {
        for n in 0..1_000 {
            let name = format!("{prefix}{n}");
            self.admin.batch_execute(&format!("CREATE TENANT {name}")).await.unwrap();
            if self.shard_of(&name).await == shard {
                let client = self.client_of(&name).await;
                let insert =
                    format!("INSERT INTO notes SELECT n, 'note ' || n, n * 1.5, n FROM generate_series(1, {rows}) n");
                client.batch_execute(&insert).await.unwrap();
                return name;
            }
            self.admin.batch_execute(&format!("DROP TENANT {name}")).await.unwrap();
        }
        panic!("no tenant is on {shard}");
    }

    pub(crate) async fn shard_of(&self, tenant: &str) -> String {
        self.admin.query_one(&format!("SHOW TENANT {tenant}"), &[]).await.unwrap().get(1)
    }

    /// All rows of a tenant, as text.
    pub(crate) async fn rows_of(&self, tenant: &str) -> Vec<String> {
        let client = self.client_of(tenant).await;
        let found = client.simple_query("SELECT * FROM notes ORDER BY id").await.unwrap();
        let row = |message: SimpleQueryMessage| match message {
            SimpleQueryMessage::Row(row) => {
                Some(format!("{:?}", (0..row.len()).map(|at| row.get(at)).collect::<Vec<_>>()))
            }
            _ => None,
        };
        found.into_iter().filter_map(row).collect()
    }

    fn command(&self, url: &str, arguments: &[&str]) -> Said {
        self.isles(url, &[&["move"], arguments].concat())
    }

    /// Any command of a server's client.
    pub(crate) fn isles(&self, url: &str, arguments: &[&str]) -> Said {
        let mut command = Command::new(env!("CARGO_BIN_EXE_isles"));
        let output = command.args(arguments).args(["--url", url]).output().unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Said { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// `isles move …`
    pub(crate) fn moves(&self, arguments: &[&str]) -> Said {
        self.command(self.server.url(), arguments)
    }

    pub(crate) fn moves_as(&self, role: &str, arguments: &[&str]) -> Said {
        let (_, rest) = self.server.url().split_once('@').unwrap();
        self.command(&format!("postgres://{role}@{rest}"), arguments)
    }

    /// One that must do what it is asked, and answers in JSON.
    pub(crate) fn must(&self, arguments: &[&str]) -> Value {
        let said = self.moves(&[arguments, &["--json"]].concat());
        assert_eq!(said.code, 0, "{arguments:?}: {}{}", said.out, said.err);
        said.json()
    }

    pub(crate) fn password(&self) -> String {
        let (_, rest) = self.server.url().split_once("isles:").unwrap();
        rest.split_once('@').unwrap().0.to_owned()
    }

    /// A request, whole: its status and its body.
    pub(crate) fn request(&self, method: &str, path: &str, who: Option<&str>, body: &str) -> (u16, String) {
        let (status, _, body) = self.request_with(method, path, who, "", body);
        (status, body)
    }

    /// One with headers of its own, each with its end of line: the status, the answer's head and its body.
    pub(crate) fn request_with(
        &self,
        method: &str,
        path: &str,
        who: Option<&str>,
        headers: &str,
        body: &str,
    ) -> (u16, String, String) {
        let authorization =
            who.map_or(String::new(), |who| format!("Authorization: Basic {}\r\n", STANDARD.encode(who)));
        let mut stream = TcpStream::connect(self.server.http()).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let length = body.len();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{authorization}{headers}");
        // One who is refused early need not take the whole body.
        let _ = stream.write_all(format!("{head}Content-Length: {length}\r\n\r\n{body}").as_bytes());
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), head.to_owned(), body.to_owned())
    }

    fn as_admin(&self, method: &str, path: &str, body: &str) -> (u16, Value) {
        let who = format!("isles:{}", self.password());
        let (status, body) = self.request(method, path, Some(&who), body);
        (status, serde_json::from_str(&body).unwrap_or_else(|fault| panic!("{method} {path}: {fault}: {body}")))
    }

    pub(crate) fn get(&self, path: &str) -> (u16, Value) {
        self.as_admin("GET", path, "")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        self.as_admin("POST", path, &body.to_string())
    }

    pub(crate) fn verb(&self, verb: &str, path: &str) -> u16 {
        self.as_admin(verb, path, "").0
    }

    /// Posts what must be done, with this status, and returns the plan.
    pub(crate) fn act(&self, path: &str, body: &Value, wanted: u16) -> Value {
        let (status, answer) = self.post(&format!("/admin/shards/split{path}"), body);
        assert_eq!((status, &answer["success"]), (wanted, &json!(true)), "{path} {body}: {answer}");
        answer["data"].clone()
    }

    /// The status and the code of what is refused.
    pub(crate) fn refused(&self, path: &str, body: &Value) -> (u16, String) {
        let (status, answer) = self.post(path, body);
        assert_eq!(answer["success"], json!(false), "{path} {body}: {answer}");
        assert!(answer["error"]["message"].as_str().is_some_and(|message| !message.is_empty()), "{answer}");
        (status, answer["error"]["code"].as_str().unwrap().to_owned())
    }

    /// A plan, once it is in a stage.
    pub(crate) async fn until_stage(&self, id: &str, stage: &str) -> Value {
        let begun = Instant::now();
        loop {
            let plan = self.get(&format!("/admin/shards/split/{id}")).1["data"].clone();
            if plan["stage"] == stage {
                return plan;
            }
            assert!(begun.elapsed() < PATIENCE, "{stage} is not reached: {plan}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Another shard than the first.
    pub(crate) fn other(&self) -> &'static str {
        "s1"
    }
}

pub(crate) fn id_of(plan: &Value) -> String {
    plan["id"].as_str().unwrap_or_else(|| panic!("{plan}")).to_owned()
}
