//! A copy and its mirror, interleaved at random.
//!
//! A source with a consumer is written to, while ranges of several of its snapshots are copied to a target and changes
//! of its log are mirrored there: ranges from any snapshot in any order, some of them again and late, batches of changes
//! again and held up, too. Unique values pass from row to row, rows go and come back, keys, units and tenants' rows change. In the end
//! both shards have the same rows.

use crate::copying::{batch, check_equal, copied, copies, tailed};
use crate::fixtures::World;
use crate::given::*;
use isles_engine::error::ShardError;
use isles_engine::shard::{Applied, Batch, DriverToken, KeyRange, Request, Snapshot, Statement};
use isles_kernel::names::Seq;
use isles_kernel::schema::{Key, Table, TableKind};
use isles_kernel::value::Value;
use isles_sim::rng::Rng;
use std::time::{Duration, Instant};

const STEPS: usize = 100;
const SNAPSHOTS: usize = 3;
/// Few, so that rows meet.
const ROOMS: u64 = 2;
const SEATS: u64 = 6;
const GUESTS: u64 = 4;

/// Sharded by room, with two unique keys.
fn seats() -> Table {
    let columns = [("room", INT8), ("id", INT8), ("guest", TEXT), ("badge", INT8)];
    let mut seats = table("seats", by_hash("room"), &columns, &["room", "id"]);
    seats.keys = vec![Key::unique("one_seat", &["room", "guest"]), Key::unique("one_badge", &["room", "badge"])];
    seats
}

/// Of tenants, with a unique key.
fn desks() -> Table {
    let mut desks = table("notes", TableKind::Tenant, &[("id", INT8), ("body", TEXT)], &["id"]);
    desks.keys = vec![Key::unique("one_body", &["body"])];
    desks
}

fn guest(rng: &mut Rng) -> Value {
    if rng.chance(1, 6) { Value::Null } else { Value::text(format!("guest {}", rng.below(GUESTS))) }
}

fn badge(rng: &mut Rng) -> Value {
    if rng.chance(1, 3) { Value::Null } else { Value::Int(rng.below(GUESTS) as i64) }
}

fn some(rng: &mut Rng, below: u64) -> i64 {
    rng.below(below) as i64
}

/// One transaction on the seats of a room.
fn some_seats(rng: &mut Rng) -> Vec<Statement> {
    let (room, id, other) = (some(rng, ROOMS), some(rng, SEATS), some(rng, SEATS));
    let insert = |rng: &mut Rng| {
        let params = values![i64::from(bucket_of(room).0), room, id, guest(rng), badge(rng)];
        Statement::new("INSERT INTO seats (_bucket, room, id, guest, badge) VALUES ($1, $2, $3, $4, $5)", params)
    };
    let sit = |id: i64, guest: Value| {
        Statement::new("UPDATE seats SET guest = $1 WHERE room = $2 AND id = $3", values![guest, room, id])
    };
    let leave = || Statement::new("DELETE FROM seats WHERE room = $1 AND id = $2", values![room, id]);
    match rng.below(9) {
        0..=2 => vec![insert(rng)],
        3 => vec![sit(id, guest(rng))],
        4 => vec![Statement::new(
            "UPDATE seats SET badge = $1 WHERE room = $2 AND id = $3",
            values![badge(rng), room, id],
        )],
        5 => vec![leave()],
        6 => vec![leave(), insert(rng)],
        7 => {
            let name = guest(rng);
            vec![sit(id, Value::Null), sit(other, name)]
        }
        _ => {
            let to = some(rng, ROOMS);
            let sql = "UPDATE seats SET room = $1, _bucket = $2, id = $3 WHERE room = $4 AND id = $5";
            vec![Statement::new(sql, values![to, i64::from(bucket_of(to).0), other, room, id])]
        }
    }
}

async fn write_desk(db: &Db, rng: &mut Rng) -> Result<(), ShardError> {
    let name = if rng.chance(1, 2) { Some("acme") } else { None };
    let (id, key) = (some(rng, SEATS), name.unwrap_or(""));
    let body = guest(rng);
    let text = match &body {
        Value::Text(text) => text.clone(),
        _ => String::new(),
    };
    let statement = match rng.below(5) {
        0 | 1 => insert_note(db.engine(), name, id, &text),
        2 => Statement::new("UPDATE notes SET body = $1 WHERE _tenant = $2 AND id = $3", values![body, key, id]),
        3 => Statement::new("DELETE FROM notes WHERE _tenant = $1 AND id = $2", values![key, id]),
        _ => {
            let to = some(rng, SEATS);
            Statement::new("UPDATE notes SET id = $1 WHERE _tenant = $2 AND id = $3", values![to, key, id])
        }
    };
    db.write_for(acts_for(name), statement).await.map(drop)
}

async fn write(db: &Db, rng: &mut Rng) {
    let done = match rng.chance(2, 3) {
        true => db.execute(Request::write(claim(), some_seats(rng))).await.map(drop),
        false => write_desk(db, rng).await,
    };
    match done {
        Ok(()) => {}
        // Two rows with one key or value: the workload is meant to try.
        Err(ShardError::Statement(error)) if error.sqlstate == "23505" => {}
        Err(other) => panic!("{other:?}"),
    }
}

/// A move under way.
struct Moving {
    source: Db,
    target: Db,
    rng: Rng,
    snapshots: Vec<Box<dyn Snapshot>>,
    /// Where the mirror stands in the source's log.
    position: Seq,
    /// Changes that are held up on their way.
    held: Vec<Batch>,
    /// What has been sent, to be sent again.
    copied: Vec<Batch>,
    mirrored: Vec<Batch>,
    seen: Applied,
}

impl Moving {
    async fn send(&mut self, batch: Batch) {
        let batch = Batch { driver: Some(DriverToken(1)), ..batch };
        let applied = self.target.apply(batch.clone()).await.unwrap_or_else(|error| panic!("{error}: {batch:#?}"));
        if batch.kind == isles_engine::shard::BatchKind::Copy {
            assert_eq!(applied.written + applied.stale, batch.rows.len() as u64);
            self.seen.written += applied.written;
            self.seen.stale += applied.stale;
        }
    }

    async fn take_snapshot(&mut self) {
        let taken = self.source.snapshot().await.expect("a snapshot");
        if self.snapshots.len() == SNAPSHOTS {
            let at = self.rng.below(SNAPSHOTS as u64) as usize;
            self.snapshots[at] = taken;
        } else {
            self.snapshots.push(taken);
        }
    }

    /// Copies some rows after a key, of any of the snapshots; says where they ended.
    async fn copy_some(&mut self, table: &Table, after: Option<Vec<Value>>) -> Option<Vec<Value>> {
        let at = self.rng.below(self.snapshots.len() as u64) as usize;
        let range = KeyRange { after, ..KeyRange::table(&table.name) };
        let size = self.rng.range(1..6) as usize;
        let page = self.snapshots[at].page(&range, size).await.expect("a page");
        let rows = page.rows.into_iter().map(|row| copied(table, row, Seq::ZERO)).collect();
        let chunk = copies(&stream("move"), rows);
        self.send(chunk.clone()).await;
        self.copied.push(chunk);
        page.next
    }

    async fn copy_anywhere(&mut self) {
        let (table, after) = match self.rng.chance(1, 2) {
            true => (seats(), values![some(&mut self.rng, ROOMS), some(&mut self.rng, SEATS) - 1]),
            false => (desks(), values![*self.rng.pick(&["", "acme"]), some(&mut self.rng, SEATS) - 1]),
        };
        self.copy_some(&table, Some(after)).await;
    }

    /// Takes the next changes, which are held up or mirrored at once; whether the last one was among them.
    async fn mirror_some(&mut self) -> bool {
        let page = self.source.changes(self.position, self.rng.range(1..5) as usize).await.expect("a page");
        let rows = page.changes.iter().map(tailed).collect();
        self.held.push(Batch { position: Some(page.through), ..batch(&stream("move"), rows) });
        self.position = page.through;
        if self.rng.chance(1, 2) {
            self.let_go().await;
        }
        page.changes.iter().any(|change| change.table == "plans")
    }

    /// Mirrors any of the changes that are held up.
    async fn let_go(&mut self) {
        if !self.held.is_empty() {
            let at = self.rng.below(self.held.len() as u64) as usize;
            let changes = self.held.swap_remove(at);
            self.send(changes.clone()).await;
            self.mirrored.push(changes);
        }
    }

    async fn send_again(&mut self) {
        let sent = if self.rng.chance(2, 3) { &self.copied } else { &self.mirrored };
        if !sent.is_empty() {
            let again = self.rng.pick(sent).clone();
            self.send(again).await;
        }
    }

    async fn step(&mut self) {
        match self.rng.below(14) {
            0..=5 => write(&self.source.clone(), &mut self.rng).await,
            6 | 7 => self.take_snapshot().await,
            8..=10 => self.copy_anywhere().await,
            11 => drop(self.mirror_some().await),
            12 => self.let_go().await,
            _ => self.send_again().await,
        }
    }

    /// Copies every range once, each from a snapshot of its own, and whatever else in between.
    async fn copy_all(&mut self) {
        for table in [seats(), desks()] {
            let mut after = None;
            loop {
                after = self.copy_some(&table, after).await;
                self.step().await;
                if after.is_none() {
                    break;
                }
            }
        }
    }

    /// Mirrors up to a change that comes after all others.
    async fn catch_up(&mut self) {
        self.source.must("INSERT INTO plans (id, name) VALUES (1, 'the last')", vec![]).await;
        let patience = Instant::now() + Duration::from_secs(20);
        while !self.mirror_some().await {
            assert!(Instant::now() < patience, "the log does not come to its end");
        }
        while !self.held.is_empty() {
            self.let_go().await;
            self.send_again().await;
            self.send_again().await;
        }
    }
}

/// Moves the rows of a new shard of one world to one of another.
pub(crate) async fn check(from: &World, to: &World, seed: u64) {
    let tables = || vec![seats(), desks(), plans()];
    let (source, target) = (from.shard_with(tables()).await, to.shard_with(tables()).await);
    let mut rng = Rng::new(seed);
    for _ in 0..STEPS {
        write(&source, &mut rng).await;
    }
    let position = source.listen().await;
    target.open_stream(&stream("move"), DriverToken(1)).await.expect("it opens");
    let mut moving = Moving {
        source,
        target,
        rng,
        position,
        snapshots: Vec::new(),
        held: Vec::new(),
        copied: Vec::new(),
        mirrored: Vec::new(),
        seen: Applied::default(),
    };
    moving.take_snapshot().await;
    for _ in 0..STEPS {
        moving.step().await;
    }
    moving.copy_all().await;
    for _ in 0..STEPS / 2 {
        moving.step().await;
    }
    moving.catch_up().await;
    for _ in 0..STEPS / 4 {
        moving.send_again().await;
    }
    for table in ["seats", "notes", "plans"] {
        check_equal(&moving.source, &moving.target, table).await;
    }
    assert!(moving.seen.written > 0 && moving.seen.stale > 0, "seed {seed}: {:?}", moving.seen);
}
