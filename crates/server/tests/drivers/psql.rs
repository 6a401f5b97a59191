//! psql: what it prints on Isles is what it prints on PostgreSQL.
//!
//! The scripts run on both, and the outputs are compared line by line. What can not be the same is left out of them or
//! of the comparison: sizes on disk, places in PostgreSQL's source, and on SQLite the values of a broken key.

use crate::harness::{Server, Setup};
use isles_sim::pgserver;
use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

const SCHEMA: &str = include_str!("psql/schema.sql");
const DESCRIBE: &str = include_str!("psql/describe.sql");
const DATA: &str = include_str!("psql/data.sql");

/// What Isles puts where the schema of the scripts has variables.
const KINDS: [(&str, &str); 3] = [
    ("reference", "WITH (kind = 'reference')"),
    ("people", "WITH (\"group\" = 'people')"),
    ("orders", "WITH (shard_by = 'person', \"group\" = 'people')"),
];

enum Psql<'a> {
    Postgres(&'a str),
    Isles(&'a Server),
}

impl Psql<'_> {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("psql");
        let (url, kinds) = match self {
            Psql::Postgres(url) => (*url, false),
            Psql::Isles(server) => (server.url(), true),
        };
        command.args(["-X", "-d", url]);
        for (name, value) in KINDS {
            command.args(["-v", &format!("{name}={}", if kinds { value } else { "" })]);
        }
        command.args(arguments).env("PGTZ", "UTC").env("LC_ALL", "C.UTF-8").env_remove("PGOPTIONS");
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("psql starts")
    }

    fn said(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("it is text").trim().to_owned()
    }

    /// What it says to a script, errors among the answers as they come.
    fn script(&self, script: &str) -> String {
        let mut command = self.command(&["-a"]);
        let (reader, writer) = std::io::pipe().expect("a pipe");
        command.stdin(Stdio::piped()).stdout(writer.try_clone().expect("a pipe")).stderr(writer);
        let mut child = command.spawn().expect("psql starts");
        // The command holds the other end of the pipe.
        drop(command);
        let mut stdin = child.stdin.take().expect("piped");
        let script = script.to_owned();
        let writing = std::thread::spawn(move || stdin.write_all(script.as_bytes()).expect("psql reads"));
        let said = std::io::read_to_string(reader).expect("it is text");
        writing.join().expect("the script was written");
        assert!(child.wait().expect("psql ends").success(), "{said}");
        said
    }
}

/// What PostgreSQL's answers to the scripts are, in a database whose names are those of Isles.
fn expected() -> &'static [String; 3] {
    static EXPECTED: OnceLock<[String; 3]> = OnceLock::new();
    EXPECTED.get_or_init(|| {
        let server = pgserver::shared();
        server.run_sql("postgres", "CREATE ROLE isles SUPERUSER CREATEDB CREATEROLE REPLICATION BYPASSRLS LOGIN");
        server.run_sql("postgres", "CREATE DATABASE isles OWNER isles");
        server.run_sql("isles", "ALTER SCHEMA public OWNER TO isles");
        let url = server.url("isles").replace("postgres@", "isles@");
        [SCHEMA, DESCRIBE, DATA].map(|script| Psql::Postgres(&url).script(script))
    })
}

/// The lines that must be the same.
fn comparable(text: &str, setup: Setup) -> Vec<&str> {
    let hidden = |line: &&str| {
        let ours = line.starts_with("Options: kind=");
        let place = line.starts_with("LOCATION:  ") || line.starts_with("You are connected to ");
        let values = line.starts_with("DETAIL:  Failing row contains ")
            || matches!(setup, Setup::Sqlite { .. }) && line.starts_with("DETAIL:  Key (");
        ours || place || values
    };
    text.lines().filter(|line| !hidden(line)).collect()
}

async fn agrees(setup: Setup) {
    let server = Server::start(setup).await;
    for (script, expected) in [SCHEMA, DESCRIBE, DATA].iter().zip(expected()) {
        let said = Psql::Isles(&server).script(script);
        let (got, expected) = (comparable(&said, setup), comparable(expected, setup));
        let differs = got.iter().zip(&expected).position(|(got, expected)| got != expected);
        if let Some(at) = differs {
            let near = at.saturating_sub(8)..(at + 4).min(got.len());
            panic!("expected {:?} at the end of\n{}", expected[at], got[near].join("\n"));
        }
        assert_eq!(got.len(), expected.len(), "{said}");
    }
}

#[tokio::test]
async fn psql_on_sqlite_shards_prints_what_it_prints_on_postgresql() {
    agrees(Setup::Sqlite { shards: 3 }).await;
}

#[tokio::test]
async fn psql_on_postgresql_shards_prints_what_it_prints_on_postgresql() {
    agrees(Setup::Postgres { shards: 2 }).await;
}

/// A script ends with 3 at its first error if it is told to, and `-1` undoes what it has done.
#[tokio::test]
async fn scripts_end_as_psql_ends_them() {
    for setup in [Setup::Sqlite { shards: 2 }, Setup::Postgres { shards: 2 }] {
        let server = Server::start(setup).await;
        let psql = Psql::Isles(&server);
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name).display().to_string();
        psql.said(&["-c", "CREATE TABLE t (id int PRIMARY KEY, v text)"]);
        std::fs::write(path("bad"), "INSERT INTO t VALUES (1);\nSELECT 1/0;\nINSERT INTO t VALUES (2);\n").unwrap();
        std::fs::write(path("good"), "INSERT INTO t VALUES (3);\nINSERT INTO t VALUES (4);\n").unwrap();
        let rows = || psql.said(&["-At", "-c", "SELECT string_agg(id::text, ',' ORDER BY id) FROM t"]);
        let code = |arguments: &[&str]| psql.run(arguments).status.code();
        assert_eq!(code(&["-1", "-v", "ON_ERROR_STOP=1", "-f", &path("bad")]), Some(3));
        assert_eq!(rows(), "", "one transaction");
        assert_eq!(code(&["-v", "ON_ERROR_STOP=1", "-f", &path("bad")]), Some(3));
        assert_eq!(rows(), "1", "until the error");
        assert_eq!(code(&["-f", &path("bad")]), Some(0));
        assert_eq!(rows(), "1,2", "in spite of the error");
        assert_eq!(code(&["-1", "-f", &path("good")]), Some(0));
        assert_eq!(rows(), "1,2,3,4");
        assert_eq!(code(&["-c", "SELECT 1/0"]), Some(1));
        assert_eq!(code(&["-c", "SELECT 1"]), Some(0));
        // Copies to and from files.
        let (out, back) = (path("rows.csv"), format!("\\copy t FROM '{}' CSV HEADER", path("rows.csv")));
        assert_eq!(psql.said(&["-c", &format!("\\copy t TO '{out}' CSV HEADER")]), "COPY 4");
        psql.said(&["-c", "TRUNCATE t"]);
        assert_eq!(psql.said(&["-c", &back]), "COPY 4");
        assert_eq!(rows(), "1,2,3,4");
        let told = psql.said(&["-c", "\\conninfo"]);
        assert!(told.contains("database \"isles\" as user \"isles\""), "{told}");
    }
}
