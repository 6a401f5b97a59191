//! Each message of the protocol around a cutover, as bytes.
//!
//! ```text
//! after it                          answered as ever, once, by the target; the client does not notice
//! while writers are held            the same, when the cutover has come
//! in a transaction, on SQLite       40001 for what writes, at its COMMIT at the latest, and nothing has happened
//! in a transaction, on PostgreSQL   the cutover is given up; answered as ever, by the source
//! ```

use crate::harness::Setup;
use crate::wire::{Heard, Raw, field, hello, message};
use crate::world::World;
use serde_json::Value;
use std::time::{Duration, Instant};
use tokio_postgres::Client;

const SQLITE: Setup = Setup::Sqlite { shards: 2 };
const POSTGRES: Setup = Setup::Postgres { shards: 2 };
/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);
const SYNC: (u8, &[u8]) = (b'S', b"");
const FLUSH: (u8, &[u8]) = (b'H', b"");

fn query(sql: &str) -> Vec<u8> {
    message(b'Q', format!("{sql}\0").as_bytes())
}

fn parse(name: &str, sql: &str) -> Vec<u8> {
    message(b'P', format!("{name}\0{sql}\0\0\0").as_bytes())
}

/// Binds a portal, without parameters, with all columns as text.
fn bind(portal: &str, statement: &str) -> Vec<u8> {
    message(b'B', format!("{portal}\0{statement}\0\0\0\0\0\0\0").as_bytes())
}

fn describe(what: char, name: &str) -> Vec<u8> {
    message(b'D', format!("{what}{name}\0").as_bytes())
}

fn close(what: char, name: &str) -> Vec<u8> {
    message(b'C', format!("{what}{name}\0").as_bytes())
}

/// Zero rows are all.
fn execute(portal: &str, rows: u8) -> Vec<u8> {
    message(b'E', &[portal.as_bytes(), &[0, 0, 0, 0, rows]].concat())
}

fn plain((kind, body): (u8, &[u8])) -> Vec<u8> {
    message(kind, body)
}

/// What one message, or a few that belong together, do at a cutover. Each has a note of its own, whose `n` counts effects.
struct Case {
    name: &'static str,
    /// Sent and answered before the cutover, and the kinds of the answers.
    before: (Vec<u8>, &'static str),
    sent: Vec<u8>,
    /// The kinds of the answers, outside of a transaction or at the source.
    answers: &'static str,
    /// What is added to the note.
    effect: i64,
}

fn case(name: &'static str, sent: Vec<u8>, answers: &'static str, effect: i64) -> Case {
    Case { name, before: (Vec::new(), ""), sent, answers, effect }
}

fn cases(id: impl Fn(usize) -> String) -> Vec<Case> {
    let mut all: Vec<Case> = Vec::new();
    let up = |at: usize| format!("UPDATE notes SET n = n + 1 WHERE id = {}", id(at));
    let get = |at: usize| format!("SELECT n FROM notes WHERE id = {}", id(at));
    let three = "SELECT id FROM notes WHERE id IN (1, 2, 3)";
    let sync = || plain(SYNC);
    let at = |all: &Vec<Case>| all.len() + 1;
    let n = at(&all);
    all.push(case("Query that writes", query(&up(n)), "CZ", 1));
    let n = at(&all);
    all.push(case("Query that reads", query(&get(n)), "TDCZ", 0));
    let n = at(&all);
    all.push(case("Query of two statements", query(&format!("{}; {}", up(n), get(n))), "CTDCZ", 1));
    let n = at(&all);
    let whole = [parse("", &up(n)), bind("", ""), execute("", 0), sync()].concat();
    all.push(case("Parse, Bind, Execute, Sync", whole, "12CZ", 1));
    let n = at(&all);
    all.push(Case {
        before: ([parse("s", &up(n)), sync()].concat(), "1Z"),
        ..case("Bind and Execute of what was parsed before", [bind("", "s"), execute("", 0), sync()].concat(), "2CZ", 1)
    });
    let n = at(&all);
    all.push(case("Parse", [parse("s", &up(n)), sync()].concat(), "1Z", 0));
    let n = at(&all);
    all.push(Case {
        before: ([parse("s", &get(n)), sync()].concat(), "1Z"),
        ..case("Describe of a statement", [describe('S', "s"), sync()].concat(), "tTZ", 0)
    });
    let n = at(&all);
    all.push(Case {
        before: ([parse("s", &get(n)), sync()].concat(), "1Z"),
        ..case("Describe of a portal", [bind("", "s"), describe('P', ""), execute("", 0), sync()].concat(), "2TDCZ", 0)
    });
    all.push(case(
        "Execute with a limit, and the rest",
        [parse("", three), bind("", ""), execute("", 2), execute("", 0), sync()].concat(),
        "12DDsDCZ",
        0,
    ));
    let n = at(&all);
    all.push(Case {
        before: ([parse("s", &up(n)), sync()].concat(), "1Z"),
        ..case("Close of a statement", [close('S', "s"), sync()].concat(), "3Z", 0)
    });
    let n = at(&all);
    all.push(Case {
        before: ([parse("s", &up(n)), sync()].concat(), "1Z"),
        ..case("Close of a portal", [bind("p", "s"), close('P', "p"), sync()].concat(), "23Z", 0)
    });
    let n = at(&all);
    all.push(case(
        "Flush",
        [parse("", &up(n)), bind("", ""), execute("", 0), plain(FLUSH), sync()].concat(),
        "12CZ",
        1,
    ));
    all.push(case("Sync", sync(), "Z", 0));
    let n = at(&all);
    let twice = [parse("s", &up(n)), bind("", "s"), execute("", 0), bind("", "s"), execute("", 0), sync()].concat();
    all.push(case("a pipeline", twice, "12C2CZ", 2));
    let n = at(&all);
    let row = format!("{}\t1\n", 1_000 + n);
    all.push(Case {
        before: (query("COPY notes (id, n) FROM STDIN"), "G"),
        ..case(COPIED, [message(b'd', row.as_bytes()), message(b'c', b"")].concat(), "CZ", 0)
    });
    all.push(Case {
        before: (query("COPY notes (id, n) FROM STDIN"), "G"),
        ..case("CopyData and CopyFail", [message(b'd', b"9\t9\n"), message(b'f', b"why\0")].concat(), "EZ", 0)
    });
    let n = at(&all);
    let copy = query(&format!("COPY ({}) TO STDOUT", get(n)));
    all.push(case("COPY TO", copy, "HdcCZ", 0));
    all.push(case("FunctionCall", message(b'F', b"\0\0\0\x01\0\0\0\0\0\0"), "EZ", 0));
    all
}

/// The row that [`cases`] copies.
fn copied(cases: &[Case]) -> usize {
    1_001 + cases.iter().position(|case| case.name == COPIED).unwrap()
}

/// The case that inserts instead of updating its note.
const COPIED: &str = "CopyData and CopyDone";
/// A note that is no case's.
const HELD: usize = 60;
/// What is compared is not the point here.
const CUTOVER: &str = "CUTOVER WITH (verify = off)";

/// A tenant whose rows are copied and mirrored, and nothing else missing but the cutover.
struct Scene {
    world: World,
    name: String,
    plan: String,
}

impl Scene {
    async fn new(setup: Setup, pause_limit: &str) -> Scene {
        let world = World::start(setup).await;
        let name = world.tenant_on("s0", "acme", 0).await;
        let client = world.client_of(&name).await;
        client.batch_execute("INSERT INTO notes (id, n) SELECT g, 0 FROM generate_series(1, 60) g").await.unwrap();
        let make = format!("CREATE MOVE OF TENANTS ({name}) TO s1 WITH (verify = off, pause_limit = '{pause_limit}')");
        let plan: String = world.admin.query_one(&make, &[]).await.unwrap().get("id");
        let scene = Scene { world, name, plan };
        for (command, stage) in [("START", "capturing"), ("BACKFILL", "ready")] {
            scene.tell(command).await;
            scene.world.until_stage(&scene.plan, stage).await;
        }
        scene
    }

    async fn tell(&self, command: &str) {
        self.world.admin.batch_execute(&format!("ALTER MOVE {} {command}", self.plan)).await.unwrap();
    }

    fn plan(&self) -> Value {
        self.world.get(&format!("/admin/shards/split/{}", self.plan)).1["data"].clone()
    }

    async fn goes_over(&self) {
        self.tell(CUTOVER).await;
        self.has_gone_over().await;
    }

    /// A busy machine may need longer than the pause limit: then it is tried again.
    async fn has_gone_over(&self) {
        let begun = Instant::now();
        loop {
            let plan = self.plan();
            match plan["stage"].as_str() {
                Some("guarding") => return,
                Some("ready") => self.tell(CUTOVER).await,
                _ => {}
            }
            assert!(begun.elapsed() < PATIENCE, "{plan}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// A cutover is tried, and comes to nothing.
    async fn is_given_up(&self) {
        let attempts = |plan: &Value| plan["cutover"]["attempts"].as_u64().unwrap();
        let before = attempts(&self.plan());
        self.tell(CUTOVER).await;
        let begun = Instant::now();
        loop {
            let plan = self.plan();
            if plan["stage"] == "ready" && attempts(&plan) > before {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{plan}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn until_some_are_held(&self) {
        let begun = Instant::now();
        let held = || {
            let text = self.world.request("GET", "/metrics", None, "").1;
            let line = text.lines().find(|line| line.contains("held_statements ")).map(str::to_owned);
            line.expect("the metric is there").rsplit(' ').next().and_then(|n| n.parse::<u64>().ok())
        };
        while held() == Some(0) {
            assert!(begun.elapsed() < PATIENCE, "nobody is held: {}", self.plan());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// A session of the tenant that speaks in bytes, and what cancels it.
    fn session(&self) -> (Raw, Vec<u8>) {
        let url = self.world.server.url();
        let (login, rest) = url.trim_start_matches("postgres://").split_once('@').unwrap();
        let (user, password) = login.split_once(':').unwrap();
        let mut raw = Raw::connect(rest.split('/').next().unwrap().parse().unwrap());
        raw.send(&hello(user));
        raw.prove(password).unwrap();
        let key = raw.until(b'Z').into_iter().find(|(kind, _)| *kind == b'K').unwrap().1;
        raw.send(&query(&format!("SET isles.tenant = '{}'", self.name)));
        assert_eq!(raw.kinds(2), "CZ");
        (raw, key)
    }

    async fn n_of(&self, id: usize) -> Option<i64> {
        let client = self.world.client_of(&self.name).await;
        let rows = client.query(&format!("SELECT n::bigint FROM notes WHERE id = {id}"), &[]).await.unwrap();
        rows.first().map(|row| row.get(0))
    }

    /// Every case has had its effect, once.
    async fn check_effects(&self, cases: &[Case]) {
        assert_eq!(self.world.shard_of(&self.name).await, "s1");
        for (at, case) in cases.iter().enumerate() {
            assert_eq!(self.n_of(at + 1).await, Some(case.effect), "{}", case.name);
        }
        assert_eq!(self.n_of(copied(cases)).await, Some(1));
    }
}

/// The answers up to so many, with the SQLSTATE of an error among them.
fn answers(raw: &mut Raw, count: usize) -> (String, Option<String>) {
    let (mut kinds, mut error) = (String::new(), None);
    while kinds.len() < count {
        match raw.hear() {
            Heard::Message(b'N' | b'S', _) => {}
            Heard::Message(kind, body) => {
                if kind == b'E' {
                    error = Some(field(&body, b'C'));
                }
                kinds.push(char::from(kind));
            }
            Heard::Closed => return (kinds + ".", error),
        }
    }
    (kinds, error)
}

fn begin_case(raw: &mut Raw, case: &Case) {
    raw.send(&case.before.0);
    assert_eq!(answers(raw, case.before.1.len()).0, case.before.1, "{}, before", case.name);
}

fn check_answers(raw: &mut Raw, case: &Case) {
    let (kinds, error) = answers(raw, case.answers.len());
    assert_eq!(kinds, case.answers, "{}: {error:?}", case.name);
    assert_eq!(error.as_deref(), refusal(case), "{}", case.name);
}

/// The SQLSTATE of what is refused wherever it is sent.
fn refusal(case: &Case) -> Option<&'static str> {
    match case.name {
        "CopyData and CopyFail" => Some("57014"),
        "FunctionCall" => Some("0A000"),
        _ => None,
    }
}

/// Outside of a transaction nobody notices that the target serves.
async fn after_the_cutover(setup: Setup) {
    let scene = Scene::new(setup, "10s").await;
    let cases = cases(|at| at.to_string());
    let mut sessions: Vec<Raw> = Vec::new();
    for case in &cases {
        let mut raw = scene.session().0;
        begin_case(&mut raw, case);
        sessions.push(raw);
    }
    scene.goes_over().await;
    for (raw, case) in sessions.iter_mut().zip(&cases) {
        raw.send(&case.sent);
        check_answers(raw, case);
    }
    scene.check_effects(&cases).await;
}

/// Whose transaction keeps a cutover from ending: on SQLite another tenant's, which has the target's only writer while the
/// source is fenced already; on PostgreSQL one of the tenant's own, which the fence waits for.
async fn begin_holding(scene: &Scene, setup: Setup) -> Client {
    let name = match setup {
        Setup::Sqlite { .. } => scene.world.tenant_on("s1", "other", HELD).await,
        _ => scene.name.clone(),
    };
    let holder = scene.world.client_of(&name).await;
    holder.batch_execute(&format!("BEGIN; UPDATE notes SET n = n + 1 WHERE id = {HELD}")).await.unwrap();
    holder
}

/// Who comes while writers are held waits, and goes on at the target.
async fn during_a_cutover(setup: Setup) {
    let scene = Scene::new(setup, "10s").await;
    let cases = cases(|at| at.to_string());
    let mut sessions: Vec<Raw> = Vec::new();
    for case in &cases {
        let mut raw = scene.session().0;
        begin_case(&mut raw, case);
        sessions.push(raw);
    }
    let holder = begin_holding(&scene, setup).await;
    scene.tell(CUTOVER).await;
    scene.world.until_stage(&scene.plan, "switching").await;
    for (raw, case) in sessions.iter_mut().zip(&cases) {
        raw.send(&case.sent);
    }
    if matches!(setup, Setup::Sqlite { .. }) {
        scene.until_some_are_held().await;
    }
    assert_eq!(scene.plan()["stage"], "switching", "they were sent meanwhile");
    holder.batch_execute("COMMIT").await.unwrap();
    for (raw, case) in sessions.iter_mut().zip(&cases) {
        check_answers(raw, case);
    }
    scene.has_gone_over().await;
    scene.check_effects(&cases).await;
}

/// Sends a case and COMMIT, and gathers the SQLSTATEs of what is refused.
fn end_in_transaction(raw: &mut Raw, case: &Case) -> Vec<String> {
    raw.send(&[case.sent.clone(), query("COMMIT")].concat());
    let (mut ready, mut refused) = (0, Vec::new());
    while ready < 2 {
        match raw.hear() {
            Heard::Message(b'Z', _) => ready += 1,
            Heard::Message(b'E', body) => refused.push(field(&body, b'C')),
            Heard::Message(..) => {}
            Heard::Closed => panic!("{}: the session has ended", case.name),
        }
    }
    refused
}

/// A session that has read a note in a transaction that is still open.
fn begin_transaction(scene: &Scene, case: &Case) -> Raw {
    let mut raw = scene.session().0;
    raw.send(&query(&format!("BEGIN; SELECT n FROM notes WHERE id = {HELD}")));
    assert_eq!(answers(&mut raw, 5).0, "CTDCZ", "{}", case.name);
    begin_case(&mut raw, case);
    raw
}

/// What a transaction does after the cutover that it began before: nothing, and it is told.
async fn in_a_transaction_on_sqlite() {
    let scene = Scene::new(SQLITE, "10s").await;
    let cases = cases(|at| at.to_string());
    let mut sessions: Vec<Raw> = cases.iter().map(|case| begin_transaction(&scene, case)).collect();
    scene.goes_over().await;
    for (raw, case) in sessions.iter_mut().zip(&cases) {
        let refused = end_in_transaction(raw, case);
        let writes = case.effect > 0 || case.name == COPIED;
        match refusal(case) {
            Some(own) => assert_eq!(refused.first().map(String::as_str), Some(own), "{}", case.name),
            None if writes => assert_eq!(refused, ["40001"], "{}", case.name),
            // What only reads sees the moment at which it began.
            None => assert!(refused.iter().all(|state| state == "40001"), "{}: {refused:?}", case.name),
        }
    }
    for (at, case) in cases.iter().enumerate() {
        assert_eq!(scene.n_of(at + 1).await, Some(0), "{}: nothing has happened", case.name);
    }
    assert_eq!(scene.n_of(copied(&cases)).await, None);
}

/// There the cutover does not come before they have ended.
async fn in_a_transaction_on_postgres() {
    let scene = Scene::new(POSTGRES, "300ms").await;
    let cases = cases(|at| at.to_string());
    // Each of them has a connection to the shard, and of those there is a limit.
    for cases in cases.chunks(6) {
        let mut sessions: Vec<Raw> = cases.iter().map(|case| begin_transaction(&scene, case)).collect();
        scene.is_given_up().await;
        for (raw, case) in sessions.iter_mut().zip(cases) {
            let refused = end_in_transaction(raw, case);
            assert_eq!(refused.first().map(String::as_str), refusal(case), "{}", case.name);
        }
    }
    scene.goes_over().await;
    scene.check_effects(&cases).await;
}

/// I-9
#[tokio::test(flavor = "multi_thread")]
async fn each_message_during_a_cutover_goes_on_at_the_target_over_sqlite() {
    during_a_cutover(SQLITE).await;
}

/// I-9
#[tokio::test(flavor = "multi_thread")]
async fn each_message_during_a_cutover_goes_on_at_the_target_over_postgres() {
    during_a_cutover(POSTGRES).await;
}

/// I-9, I-15
#[tokio::test(flavor = "multi_thread")]
async fn each_message_in_a_transaction_over_a_cutover_does_nothing_over_sqlite() {
    in_a_transaction_on_sqlite().await;
}

/// I-9, I-15
#[tokio::test(flavor = "multi_thread")]
async fn each_message_in_a_transaction_comes_before_the_cutover_over_postgres() {
    in_a_transaction_on_postgres().await;
}

/// I-9
#[tokio::test(flavor = "multi_thread")]
async fn each_message_after_a_cutover_goes_to_the_target_over_sqlite() {
    after_the_cutover(SQLITE).await;
}

/// I-9
#[tokio::test(flavor = "multi_thread")]
async fn each_message_after_a_cutover_goes_to_the_target_over_postgres() {
    after_the_cutover(POSTGRES).await;
}
