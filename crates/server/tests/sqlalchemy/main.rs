//! SQLAlchemy's compliance suite for dialects, run against Isles by its own test runner.
//!
//!     requirements.txt ─► a venv under the target folder ─► pytest, over the wire ─► names that passed
//!                                                                  │
//!     plain.txt (what plain PostgreSQL passes) ∖ those that passed ┴─ must be the engine's list, name by name
//!
//! A list may only shrink: a test that fails and is not listed is a regression, and a listed one that passes has to
//! leave the list. Tables are of the kind `tenant`, as in an application with tenants: its foreign keys and unique keys
//! stay on one shard.
//!
//! `ISLES_SQLALCHEMY=record cargo test -p isles --test sqlalchemy` writes all three lists anew.

#[path = "../harness/mod.rs"]
mod harness;

use harness::{Server, Setup, connect};
use isles_sim::pgserver;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Makes new tables tenant tables, and gives the session its tenant.
const OPTIONS: &str = "options=-c%20isles.default_kind%3Dtenant%20-c%20isles.tenant%3Dsuite";

/// Schemas that the suite asks for, as its README.dialects says.
const SCHEMAS: &str = "CREATE SCHEMA test_schema; CREATE SCHEMA test_schema_2";

/// What the suite may ask plain PostgreSQL for, and Isles.
const EVERYTHING: &str = "sqlalchemy.testing.requirements:SuiteRequirements";
const WHAT_ISLES_HAS: &str = "requirements_isles:Requirements";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sqlalchemy")
}

fn records() -> bool {
    std::env::var("ISLES_SQLALCHEMY").is_ok_and(|value| value == "record")
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    // pytest says 1 when a test has failed.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{command:?}: {}\n{text}", output.status);
    text
}

/// The Python of a venv that has what `requirements.txt` says, made once for each version of that file.
fn python() -> &'static PathBuf {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(|| {
        let requirements = folder().join("requirements.txt");
        let text = std::fs::read(&requirements).expect("the requirements");
        let venv = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("sqlalchemy-{:x}", crc(&text)));
        let (python, ready) = (venv.join("bin/python"), venv.join("ready"));
        if !ready.exists() {
            let made = run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv));
            assert!(python.exists(), "python3 makes no venv; Debian's package is python3-venv\n{made}");
            let install = ["-m", "pip", "install", "--disable-pip-version-check", "-q", "-r"];
            let installed = run(Command::new(&python).args(install).arg(&requirements));
            let found = Command::new(&python).args(["-c", "import sqlalchemy, psycopg, pytest"]).status();
            assert!(found.is_ok_and(|status| status.success()), "pip could not install\n{installed}");
            std::fs::write(&ready, "").expect("a marker");
        }
        python
    })
}

/// Tells one content from another.
fn crc(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Runs the suite; returns the names of the tests that passed. `requirements` is a class that says what it may ask for.
fn suite(url: &str, requirements: &str) -> BTreeSet<String> {
    let work = tempfile::tempdir().expect("a folder");
    let config = format!("[sqla_testing]\nrequirement_cls = {requirements}\nprofile_file = profiles.txt\n");
    std::fs::write(work.path().join("setup.cfg"), config).expect("a configuration");
    for entry in std::fs::read_dir(folder().join("suite")).expect("the suite") {
        let path = entry.expect("a file").path();
        if path.is_file() {
            std::fs::copy(&path, work.path().join(path.file_name().expect("a name"))).expect("a copy");
        }
    }
    let url = url.replacen("postgres:", "postgresql+psycopg:", 1);
    let mut pytest = Command::new(python());
    let quiet = ["-q", "-rp", "--tb=no", "-p", "no:cacheprovider", "-p", "no:logging"];
    pytest.args(["-m", "pytest"]).args(quiet).args(["--dburi", &url]);
    pytest.env("PYTHONPATH", ".").env("PYTHONDONTWRITEBYTECODE", "1").current_dir(work.path());
    let output = run(&mut pytest);
    let passed: BTreeSet<String> = output.lines().filter_map(passed).collect();
    assert!(passed.len() > 100, "the suite did not run\n{output}");
    passed
}

/// `PASSED test_suite.py::Class_postgresql+psycopg_15_12::test` without what differs between servers.
fn passed(line: &str) -> Option<String> {
    let (class, test) = line.strip_prefix("PASSED test_suite.py::")?.split_once("::")?;
    let class = class.split_once("_postgresql").map_or(class, |(class, _)| class);
    Some(format!("{class}::{test}"))
}

fn read(list: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(folder().join(list)).unwrap_or_default();
    text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(Into::into).collect()
}

fn write(list: &str, claim: &str, names: &BTreeSet<String>) {
    let mut text = format!("# {claim}\n# Written by: ISLES_SQLALCHEMY=record cargo test -p isles --test sqlalchemy\n");
    names.iter().for_each(|name| text.extend([name.as_str(), "\n"]));
    std::fs::write(folder().join(list), text).expect("the list");
}

/// What plain PostgreSQL passes: as recorded, or found out once.
async fn plain() -> BTreeSet<String> {
    static FOUND: tokio::sync::OnceCell<BTreeSet<String>> = tokio::sync::OnceCell::const_new();
    if !records() {
        return read("plain.txt");
    }
    let found = FOUND.get_or_init(|| async {
        let url = pgserver::shared().create_database();
        connect(&url).await.batch_execute(SCHEMAS).await.expect("schemas");
        let passed = tokio::task::spawn_blocking(move || suite(&url, EVERYTHING)).await.expect("the suite");
        write("plain.txt", "What plain PostgreSQL passes, with everything that the suite can ask for.", &passed);
        passed
    });
    found.await.clone()
}

async fn check(setup: Setup, list: &str) {
    let plain = plain().await;
    let server = Server::start(setup).await;
    let url = format!("{}?{OPTIONS}", server.url());
    connect(server.url()).await.batch_execute(SCHEMAS).await.expect("schemas");
    let passed = tokio::task::spawn_blocking(move || suite(&url, WHAT_ISLES_HAS)).await.expect("the suite");
    let missing: BTreeSet<String> = plain.difference(&passed).cloned().collect();
    println!("{} of {} tests that PostgreSQL passes", plain.len() - missing.len(), plain.len());
    if records() {
        write(list, "What plain PostgreSQL passes and Isles does not. The list may only shrink.", &missing);
        return;
    }
    let known = read(list);
    let broken: Vec<&String> = missing.difference(&known).collect();
    let mended: Vec<&String> = known.difference(&missing).collect();
    assert!(broken.is_empty(), "these have passed before: {broken:#?}");
    assert!(mended.is_empty(), "these pass now; take them out of {list}: {mended:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn isles_over_sqlite_shards_passes_what_it_did() {
    check(Setup::Sqlite { shards: 4 }, "sqlite.txt").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn isles_over_postgresql_shards_passes_what_it_did() {
    check(Setup::Postgres { shards: 2 }, "postgres.txt").await;
}
