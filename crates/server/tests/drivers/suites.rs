//! Suites in the languages of their drivers: a program that gets a URL, tells each test, and fails if one does.

use crate::harness::{Server, Setup};
use crate::packages;
use isles_sim::pgserver;
use std::process::Command;

fn psycopg(url: &str) {
    let python = packages::python(include_str!("psycopg/requirements.txt"));
    let suite = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/drivers/psycopg/suite.py");
    // Without -B Python would leave its bytecode beside the sources.
    passes(Command::new(python).args(["-B", suite, url]));
}

fn asyncpg(url: &str) {
    let python = packages::python(include_str!("asyncpg/requirements.txt"));
    let suite = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/drivers/asyncpg/suite.py");
    passes(Command::new(python).args(["-B", suite, url]));
}

fn node_postgres(url: &str) {
    let folder = packages::node(include_str!("node/package.json"), include_str!("node/package-lock.json"));
    // Modules are looked for beside the program, so it is put there.
    let suite = folder.join(format!("suite-{}.js", std::process::id()));
    std::fs::write(&suite, include_str!("node/suite.js")).expect("the folder can be written");
    passes(Command::new("node").arg(&suite).arg(url));
    std::fs::remove_file(suite).expect("it was written");
}

fn passes(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    println!("{said}");
    assert!(output.status.success(), "{command:?}: {}", output.status);
    assert!(said.contains("ok  "), "no test ran");
}

/// Runs a suite on Isles with each engine, and on PostgreSQL.
async fn everywhere(suite: fn(&str)) {
    suite(&pgserver::shared().create_database());
    for setup in [Setup::Sqlite { shards: 3 }, Setup::Postgres { shards: 2 }] {
        println!("{setup:?}");
        suite(Server::start(setup).await.url());
    }
}

#[tokio::test]
async fn psycopg_does_with_isles_what_it_does_with_postgresql() {
    everywhere(psycopg).await;
}

#[tokio::test]
async fn asyncpg_does_with_isles_what_it_does_with_postgresql() {
    everywhere(asyncpg).await;
}

#[tokio::test]
async fn node_postgres_does_with_isles_what_it_does_with_postgresql() {
    everywhere(node_postgres).await;
}
