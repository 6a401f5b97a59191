//! What a session finds when what it uses has moved meanwhile: each thing that a session can have, over a cutover.
//!
//! ```text
//! held                                  after the cutover
//! nothing                               goes on at the target
//! a prepared statement, by either name  goes on at the target, with the columns it was told
//! settings, the tenant                  as they were
//! a portal, half read                   the rest of what it saw first
//! a cursor, with and without HOLD       the same
//! BEGIN, and nothing else               goes on at the target
//! BEGIN, and what does not move         goes on, each at its place
//! BEGIN, and a read, on SQLite          40001, at its COMMIT at the latest; nothing has happened, and a retry does it
//! BEGIN, and a read, on PostgreSQL      the cutover is given up; it commits at the source
//! BEGIN, and a write                    the cutover is given up; it commits at the source
//! the same, behind a savepoint          the same
//! a pipeline that has written           the same
//! COPY FROM, nothing sent yet           goes on at the target
//! COPY FROM, rows on their way          whole, at the source or at the target
//! COPY TO, half read                    the rest of what it saw first
//! ```

use crate::harness::Client;
use crate::world::{World, by_itself, tenants};
use isles_cluster::database::ShardPlace;
use isles_cluster::moves::moves::{Event, Options, Plan, Stage};
use isles_cluster::session::{Answer, Rows, Status};
use isles_kernel::value::Value;
use std::time::{Duration, Instant};

/// Rows of the tenant: more than a portal reads at once.
const ROWS: usize = 400;

/// Within this a write is answered that waits for nobody.
const SERVED: Duration = Duration::from_secs(5);

/// A tenant on the first shard, and a plan that is ready to cut over.
struct Scene {
    world: World,
    name: String,
    plan: Plan,
}

impl Scene {
    async fn new(world: World) -> Scene {
        let name = world.tenant_on(0, "acme").await;
        let mut client = world.client_of(&name).await;
        let rows: Vec<String> = (0..ROWS).map(|n| format!("({n}, 'of {n}', 0)")).collect();
        client.run(&format!("INSERT INTO notes (id, body, n) VALUES {}", rows.join(", "))).await;
        let options = Options { auto: false, pause_limit_ms: 300, ..by_itself() };
        let plan = world.copied(tenants(&[&name]), options).await;
        world.command(&plan, Event::WaiveVerification).await.unwrap();
        Scene { world, name, plan }
    }

    async fn client(&self) -> Client {
        self.world.client_of(&self.name).await
    }

    /// The cutover does not come while somebody is in its way: it is given up, or still waits.
    async fn is_held_up(&self) {
        let version = self.world.version();
        self.world.command(&self.plan, Event::Cutover).await.unwrap();
        let until = Instant::now() + SERVED;
        while Instant::now() < until {
            let plan = self.world.database().move_plan(self.plan.id.as_str()).await.unwrap();
            assert_eq!((plan.routing_version_cutover, self.world.version()), (None, version), "{plan:?}");
            if plan.cutover.aborted.is_some() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// The cutover comes, sooner or later: a busy machine may need longer than the pause limit.
    async fn goes_over(&self) {
        for _ in 0..20 {
            let rests = |plan: &Plan| matches!(plan.stage, Stage::Ready | Stage::Guarding);
            if self.world.until(&self.plan, "rest", rests).await.stage == Stage::Guarding {
                break;
            }
            self.world.command(&self.plan, Event::Cutover).await.unwrap();
        }
        self.world.until_stage(&self.plan, Stage::Guarding).await;
        assert_eq!(self.world.shard_of(&self.name).await, "s1");
    }

    /// What the tenant has now of one note.
    async fn n_of(&self, id: usize) -> String {
        self.client().await.run(&format!("SELECT n FROM notes WHERE id = {id}")).await.concat()
    }
}

async fn rest(rows: &mut Rows) -> Vec<i64> {
    let mut ids = Vec::new();
    while let Some(batch) = rows.next(100).await.unwrap() {
        ids.extend(batch.iter().map(|row| match row[0] {
            Value::Int(id) => id,
            ref other => panic!("no id: {other:?}"),
        }));
    }
    ids
}

/// I-9, I-16: a statement on its own, simple or prepared before, by the protocol or by PREPARE, goes to the target.
pub(crate) async fn statements_go_on_at_the_target(world: World) {
    let scene = Scene::new(world).await;
    let mut client = scene.client().await;
    let read = client.session.prepare("SELECT n FROM notes WHERE id = $1", &[]).await.unwrap();
    let write = client.session.prepare("UPDATE notes SET n = n + 1 WHERE id = $1", &[]).await.unwrap();
    client.session.keep("w".into(), Some(write.clone())).unwrap();
    let columns = read.fields.clone().unwrap();
    client.run("PREPARE up(bigint) AS UPDATE notes SET n = n + 10 WHERE id = $1").await;
    client.run("EXECUTE up(1)").await;
    scene.goes_over().await;
    let Answer::Done { tag } = client.session.execute(&write, vec![Value::Int(1)]).await.unwrap() else { panic!() };
    assert_eq!(tag, "UPDATE 1");
    let kept = client.session.kept("w").unwrap().unwrap();
    client.session.execute(&kept, vec![Value::Int(1)]).await.unwrap();
    assert_eq!(client.run("EXECUTE up(1)").await, ["UPDATE 1"]);
    let Answer::Rows(mut rows) = client.session.execute(&read, vec![Value::Int(1)]).await.unwrap() else { panic!() };
    assert_eq!(rest(&mut rows).await, [22]);
    assert_eq!(*rows.fields, *columns, "it has the columns that it was described with");
    assert_eq!(client.run("UPDATE notes SET n = n + 1 WHERE id = 1").await, ["UPDATE 1"]);
    assert_eq!(scene.n_of(1).await, "23");
    assert_eq!(client.run("INSERT INTO notes (id) VALUES (1000)").await, ["INSERT 0 1"]);
    assert_eq!(client.run("DELETE FROM notes WHERE id = 1000").await, ["DELETE 1"]);
}

/// I-16: what a session was told to be, it is.
pub(crate) async fn settings_stay_as_they_are(world: World) {
    let scene = Scene::new(world).await;
    let mut client = scene.client().await;
    client.run("SET application_name = 'matrix'").await;
    client.run("SET statement_timeout = '7s'").await;
    client.run("SET search_path = public").await;
    client.run("SET TIME ZONE 'Europe/Berlin'").await;
    let names = ["application_name", "statement_timeout", "search_path", "timezone", "isles.tenant"];
    let all = async |client: &mut Client| {
        let mut values = Vec::new();
        for name in names {
            values.extend(client.run(&format!("SHOW {name}")).await);
        }
        values
    };
    let before = all(&mut client).await;
    client.run("BEGIN").await;
    client.run("SET LOCAL statement_timeout = '3s'").await;
    scene.goes_over().await;
    assert_eq!(client.run("SHOW statement_timeout").await, ["3s"]);
    client.run("UPDATE notes SET n = 5 WHERE id = 1").await;
    client.run("COMMIT").await;
    assert_eq!(all(&mut client).await, before);
    assert_eq!((before[0].as_str(), before[4].as_str()), ("matrix", scene.name.as_str()));
    assert_eq!(scene.n_of(1).await, "5");
}

/// I-16: (citus #6029) what a portal or a cursor began to read, it reads to its end, though the source's copy goes.
pub(crate) async fn portals_and_cursors_end_as_they_began(world: World) {
    let scene = Scene::new(world).await;
    let mut portal = scene.client().await;
    let prepared = portal.session.prepare("SELECT id FROM notes ORDER BY id", &[]).await.unwrap();
    let Answer::Rows(mut rows) = portal.session.execute(&prepared, Vec::new()).await.unwrap() else { panic!() };
    let mut seen: Vec<i64> = rows.next(10).await.unwrap().unwrap().iter().map(|_| 0).collect();
    let mut holding = scene.client().await;
    holding.run("BEGIN").await;
    holding.run("DECLARE h CURSOR WITH HOLD FOR SELECT id FROM notes ORDER BY id").await;
    holding.run("COMMIT").await;
    assert_eq!(holding.run("FETCH 2 FROM h").await, ["0", "1"]);
    let mut copying = scene.client().await;
    let copy = copying.session.prepare("COPY (SELECT id FROM notes ORDER BY id) TO STDOUT", &[]).await.unwrap();
    let Answer::CopyOut(mut copy) = copying.session.execute(&copy, Vec::new()).await.unwrap() else { panic!() };
    scene.goes_over().await;
    scene.client().await.run("DELETE FROM notes WHERE id >= 300").await;
    seen.extend(rest(&mut rows).await);
    assert_eq!((seen.len(), seen.last()), (ROWS, Some(&(ROWS as i64 - 1))), "all that was there when it began");
    assert_eq!(holding.run("FETCH ALL FROM h").await.len(), ROWS - 2);
    let mut bytes = Vec::new();
    while let Some(piece) = copy.next().await.unwrap() {
        bytes.extend(piece.concat());
    }
    assert_eq!(bytes.iter().filter(|byte| **byte == b'\n').count(), ROWS);
    drop((rows, copy));
    assert_eq!(portal.run("SELECT count(*) FROM notes").await, ["300"], "what comes later is of the target");
}

/// I-9, I-15: a transaction that has not been to what moves begins at the target.
pub(crate) async fn transactions_that_have_seen_nothing_go_on(world: World) {
    let scene = Scene::new(world).await;
    let mut begun = scene.client().await;
    begun.run("BEGIN").await;
    let mut elsewhere = scene.client().await;
    elsewhere.run("BEGIN").await;
    elsewhere.run("SELECT name FROM plans").await;
    let mut saved = scene.client().await;
    saved.run("BEGIN").await;
    saved.run("SAVEPOINT a").await;
    scene.goes_over().await;
    for (client, id) in [(&mut begun, 1), (&mut elsewhere, 2), (&mut saved, 3)] {
        let done = match client.try_run(&format!("UPDATE notes SET n = 7 WHERE id = {id}")).await {
            Ok(_) => client.try_run("COMMIT").await,
            Err(error) => Err(error),
        };
        match done {
            Ok(_) => assert_eq!(scene.n_of(id).await, "7"),
            // What it has read is of a shard that has changed since, and it is told.
            Err(error) => {
                assert_eq!((error.sqlstate, id), ("40001", 2), "{error}");
                let _ = client.try_run("ROLLBACK").await;
                assert_eq!(scene.n_of(id).await, "0", "nothing of it has happened");
            }
        }
        assert_eq!(client.status(), Status::Idle);
    }
}

/// I-9, I-15: one that has only read. On SQLite the cutover does not wait for it: it is told with 40001, and does it
/// again. A PostgreSQL shard is not fenced while it is there.
pub(crate) async fn a_transaction_that_has_read_is_told(world: World) {
    let waits = matches!(world.config.shards[0], ShardPlace::Postgres { .. });
    let scene = Scene::new(world).await;
    let mut client = scene.client().await;
    client.run("BEGIN ISOLATION LEVEL SERIALIZABLE").await;
    assert_eq!(client.run("SELECT n FROM notes WHERE id = 1").await, ["0"]);
    client.run("SAVEPOINT a").await;
    if waits {
        scene.is_held_up().await;
        client.run("UPDATE notes SET n = 100 WHERE id = 1").await;
        client.run("COMMIT").await;
        scene.goes_over().await;
    } else {
        scene.goes_over().await;
        scene.client().await.run("UPDATE notes SET n = 100 WHERE id = 1").await;
        let told = match client.try_run("UPDATE notes SET n = n + 1 WHERE id = 1").await {
            Ok(_) => client.try_run("COMMIT").await,
            Err(error) => Err(error),
        };
        assert_eq!(told.unwrap_err().sqlstate, "40001");
        let _ = client.try_run("ROLLBACK").await;
    }
    assert_eq!(client.status(), Status::Idle);
    assert_eq!(scene.n_of(1).await, "100", "and nothing else has happened");
    client.run("BEGIN").await;
    assert_eq!(client.run("SELECT n FROM notes WHERE id = 1").await, ["100"]);
    client.run("UPDATE notes SET n = n + 1 WHERE id = 1").await;
    client.run("COMMIT").await;
    assert_eq!(scene.n_of(1).await, "101");
}

/// I-12, I-15: (vitess #9453) one that has written keeps the cutover from coming, commits at the source, and is there.
pub(crate) async fn a_transaction_that_has_written_commits_first(world: World) {
    let is_postgres = matches!(world.config.shards[0], ShardPlace::Postgres { .. });
    let scene = Scene::new(world).await;
    let mut client = scene.client().await;
    client.run("BEGIN").await;
    client.run("UPDATE notes SET n = 1 WHERE id = 1").await;
    client.run("SAVEPOINT a").await;
    client.run("UPDATE notes SET n = 99 WHERE id = 1").await;
    scene.is_held_up().await;
    if is_postgres {
        let mut other = scene.client().await;
        // It waits for the cutover that is being tried, and not for the transaction.
        let served = tokio::time::timeout(12 * SERVED, other.run("UPDATE notes SET n = 1 WHERE id = 9"));
        assert_eq!(served.await.expect("the source serves others"), ["UPDATE 1"]);
    }
    client.run("ROLLBACK TO a").await;
    client.run("UPDATE notes SET n = n + 1 WHERE id = 1").await;
    client.run("COMMIT").await;
    scene.goes_over().await;
    assert_eq!(scene.n_of(1).await, "2");
}

/// I-12, I-15: the same for statements that stand and fall together without a BEGIN.
pub(crate) async fn a_pipeline_that_has_written_commits_first(world: World) {
    let scene = Scene::new(world).await;
    let mut client = scene.client().await;
    client.session.begin_implicit();
    client.run("UPDATE notes SET n = 1 WHERE id = 3").await;
    scene.is_held_up().await;
    client.run("UPDATE notes SET n = n + 1 WHERE id = 3").await;
    client.session.end_implicit().await.unwrap();
    scene.goes_over().await;
    assert_eq!(scene.n_of(3).await, "2");
}

/// I-9, I-15: a COPY is one transaction: whole at the source, or whole at the target, or nothing and an error.
pub(crate) async fn copies_over_a_cutover_are_whole(world: World) {
    let scene = Scene::new(world).await;
    let mut client = scene.client().await;
    // Nothing has been sent to a shard.
    let prepared = client.session.prepare("COPY notes (id, body) FROM STDIN", &[]).await.unwrap();
    let Answer::CopyIn(mut empty) = client.session.execute(&prepared, Vec::new()).await.unwrap() else { panic!() };
    // Some thousand rows are on their way: they are on the source, and the cutover waits for them.
    let mut busy = scene.client().await;
    let prepared = busy.session.prepare("COPY notes (id, body) FROM STDIN", &[]).await.unwrap();
    let Answer::CopyIn(mut copy) = busy.session.execute(&prepared, Vec::new()).await.unwrap() else { panic!() };
    for n in 10_000..12_500 {
        copy.write(format!("{n}\tcopied\n").as_bytes()).await.unwrap();
    }
    scene.is_held_up().await;
    assert_eq!(copy.finish().await.unwrap(), "COPY 2500");
    scene.goes_over().await;
    for n in 20_000..20_010 {
        empty.write(format!("{n}\tcopied\n").as_bytes()).await.unwrap();
    }
    let copied = match empty.finish().await {
        Ok(tag) => {
            assert_eq!(tag, "COPY 10");
            10
        }
        Err(error) => {
            assert_eq!(error.sqlstate, "40001", "{error}");
            0
        }
    };
    let count = format!("{}", 2_500 + copied);
    assert_eq!(scene.client().await.run("SELECT count(*) FROM notes WHERE body = 'copied'").await, [count]);
}
