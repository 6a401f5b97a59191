//! A program with workflows of its own is a whole server: its runs are created, followed and ended over HTTP, live, and
//! they survive that it is killed in the middle.
//!
//! The program is the example `payments`, and this file is its own server.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall say where")]

#[path = "../examples/payments.rs"]
mod payments;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

/// Set for the process that serves.
const SERVES: &str = "ISLES_TEST_SERVES";
const PASSWORD: &str = "three";
/// The longest wait for something that must come.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    if std::env::var_os(SERVES).is_some() {
        return isles_server::run(payments::registry().unwrap());
    }
    updates_are_followed_live_and_go_on_after_a_kill();
    println!("test updates_are_followed_live_and_go_on_after_a_kill ... ok");
    ExitCode::SUCCESS
}

struct Server {
    process: Child,
    http: String,
    url: String,
}

impl Server {
    fn start(data: &Path) -> Server {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--socket", "off", "--json"]);
        command.args(["--shards", "2", "--data"]).arg(data).env(SERVES, "1").env("ISLES_PASSWORD", PASSWORD);
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        let ready: Value = serde_json::from_str(&line).unwrap_or_else(|fault| panic!("{fault}: {line}"));
        let text = |name: &str| ready[name].as_str().unwrap().to_owned();
        Server { process, http: text("http"), url: text("url") }
    }

    fn open(&self, method: &str, path: &str, headers: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.http).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let login = STANDARD.encode(format!("isles:{PASSWORD}"));
        let head = format!("{method} {path} HTTP/1.0\r\nHost: x\r\nAuthorization: Basic {login}\r\n{headers}");
        write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        stream
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let mut answer = String::new();
        self.open(method, path, "", &body.to_string()).read_to_string(&mut answer).unwrap();
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        serde_json::from_str(body).unwrap_or_else(|fault| panic!("{method} {path}: {fault}: {answer}"))
    }

    /// The updates of a run, as they come.
    fn follow(&self, id: &str, last: Option<&str>) -> Updates {
        let headers = last.map_or(String::new(), |last| format!("Last-Event-ID: {last}\r\n"));
        Updates(BufReader::new(self.open("GET", &format!("/workflows/payment/{id}/updates"), &headers, "")))
    }

    fn runs(&self, arguments: &[&str]) -> Value {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.env(SERVES, "1").arg("runs").args(arguments).args(["--json", "--url", &self.url]);
        let output = command.output().unwrap();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|fault| panic!("{arguments:?}: {fault}: {output:?}"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Updates(BufReader<TcpStream>);

impl Updates {
    /// The next one: its id, its name and its data.
    fn next(&mut self) -> (String, String, String) {
        let (mut id, mut event, mut data) = Default::default();
        loop {
            let mut line = String::new();
            assert!(self.0.read_line(&mut line).unwrap() > 0, "the updates have ended");
            let field = |name: &str| line.strip_prefix(name).map(|rest| rest.trim().to_owned());
            if let Some(text) = field("id:") {
                id = text;
            } else if let Some(text) = field("event:") {
                event = text;
            } else if let Some(text) = field("data:") {
                data = text;
            } else if line.trim().is_empty() && !event.is_empty() {
                return (id, event, data);
            }
        }
    }
}

fn update(id: &str, event: &str, data: &str) -> (String, String, String) {
    (id.into(), event.into(), data.into())
}

fn updates_are_followed_live_and_go_on_after_a_kill() {
    let data = tempfile::tempdir().unwrap();
    let server = Server::start(data.path());
    let types = server.ask("GET", "/workflows/_types", &Value::Null);
    assert_eq!(types["types"], json!([{ "type": "payment", "remote": false }]));
    for id in ["live", "killed"] {
        let made = server.ask("POST", "/workflows/payment", &json!({ "id": id, "payload": { "amount": 5 } }));
        assert_eq!(made["created"], json!(true), "{made}");
    }
    // Followed while it runs: what is told comes when it is told.
    let mut followed = server.follow("live", None);
    assert_eq!(followed.next(), update("1", "progress", "\"charged\""));
    let sent = server.runs(&["send", "payment", "live", "--event", "approved", "--payload", "true"]);
    assert_eq!(sent["seq"], json!(1));
    assert_eq!(followed.next(), update("2", "progress", "\"approved\""));
    drop(followed);
    // Somebody who has lost the connection midway goes on after what was seen.
    let mut again = server.follow("live", Some("1"));
    assert_eq!(again.next(), update("2", "progress", "\"approved\""));
    assert_eq!(again.next(), update("3", "progress", "\"shipped\""));
    assert_eq!(again.next().1, "close");
    let ended = server.runs(&["wait", "payment", "live"]);
    assert_eq!((&ended["status"], &ended["result"]), (&json!("completed"), &json!({ "charged": 5 })));

    let mut followed = server.follow("killed", None);
    assert_eq!(followed.next(), update("1", "progress", "\"charged\""));
    // As `kill -9` does.
    drop(server);
    let server = Server::start(data.path());
    let mut again = server.follow("killed", Some("1"));
    server.ask("POST", "/workflows/payment/killed/events", &json!({ "name": "approved", "payload": true }));
    assert_eq!(again.next(), update("2", "progress", "\"approved\""));
    assert_eq!(again.next(), update("3", "progress", "\"shipped\""));
    assert_eq!(again.next().1, "close");
    let shown = server.ask("GET", "/workflows/payment/killed", &Value::Null);
    let attempts: Vec<&Value> = shown["steps"].as_array().unwrap().iter().map(|step| &step["attempts"]).collect();
    assert!(attempts.iter().all(|attempts| attempts.as_i64() <= Some(1)), "{shown}");
}
