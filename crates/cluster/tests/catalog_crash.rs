//! The catalog on a disk that fails and loses power, and under a seeded executor that kills it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall say where")]

use isles_cluster::catalog::*;
use isles_engine::env::Env;
use isles_sim::disk::{Counts, Crash, Disk, Times};
use isles_sim::exec::Sim;
use isles_sim::rng::Rng;
use isles_sim::trace::Sometimes;
use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

const PATH: &str = "/catalog.db";

/// Short, so that forgetting is part of the sweep.
const HISTORY: u64 = 3;

/// Short for the same reason: after it the log begins again.
const CHECKPOINT: usize = 3;

const TTL: Duration = Duration::from_secs(10);

fn key(name: &str) -> Key {
    Key::new(name).unwrap()
}

async fn open_with(sim: &Sim, disk: &Disk, history_commits: u64) -> std::result::Result<SqliteCatalog, OpenError> {
    let vfs = Some(disk.vfs_name().into());
    let options = Options { vfs, history_commits, checkpoint_commits: CHECKPOINT, ..Options::default() };
    SqliteCatalog::open(PATH, sim.node("catalog"), options).await
}

async fn open(sim: &Sim, disk: &Disk) -> std::result::Result<SqliteCatalog, OpenError> {
    open_with(sim, disk, HISTORY).await
}

/// The nth commit sets both counters to n, and makes revision n.
fn step(n: u64) -> Transaction {
    let condition = match n {
        1 => Condition::Absent(key("a")),
        _ => Condition::At(key("a"), Revision(n - 1)),
    };
    let counters = Transaction::new().put_json(key("a"), &n).unwrap().put_json(key("b"), &n).unwrap();
    counters.when(condition).once(CommitId(n.into()))
}

/// What a client of the catalog has been told.
#[derive(Default)]
struct Told {
    committed: u64,
    /// The commit that may have happened.
    in_doubt: Option<u64>,
    token: Option<LeaseToken>,
}

/// Commits, a lease, a checkpoint, an opening, and all of it again; until done or broken.
async fn work(sim: &Sim, disk: &Disk, told: &mut Told) -> std::result::Result<(), ()> {
    for _ in 0..2 {
        let catalog = open(sim, disk).await.map_err(|_| ())?;
        for _ in 0..4 {
            commit(&catalog, told).await?;
        }
        let lease = catalog.acquire(&key("l"), "me", TTL).await.map_err(|_| ())?;
        assert!(Some(lease.token) > told.token);
        told.token = Some(lease.token);
    }
    Ok(())
}

async fn commit(catalog: &SqliteCatalog, told: &mut Told) -> std::result::Result<(), ()> {
    let n = told.committed + 1;
    match catalog.commit(step(n)).await {
        Ok(revision) => {
            assert_eq!(revision, Revision(n));
            told.committed = n;
            return Ok(());
        }
        Err(CatalogError::MayHaveHappened(_)) => told.in_doubt = Some(n),
        // Then it did not, and the check below believes that.
        Err(CatalogError::Stopped(_)) => {}
        Err(error) => panic!("{error}"),
    }
    // I-5: whatever the disk does now, nothing is answered any more.
    for _ in 0..2 {
        assert!(matches!(catalog.commit(step(n)).await, Err(CatalogError::Stopped(_))));
        assert!(matches!(catalog.get(&key("a")).await, Err(CatalogError::Stopped(_))));
    }
    Err(())
}

/// The number of commits that there are; all of them whole.
async fn read(catalog: &SqliteCatalog) -> u64 {
    let page = catalog.list("", None, 10).await.unwrap();
    let values: Vec<u64> = page.records.iter().map(|record| record.json().unwrap()).collect();
    let n = page.revision.0;
    assert_eq!(values, vec![n; if n == 0 { 0 } else { 2 }], "a commit is seen whole, and with its revision");
    let oldest = n.saturating_sub(HISTORY - 1).max(1);
    let mut watch = catalog.watch("", Revision(oldest)).await.unwrap();
    for revision in oldest..=n {
        let commit = watch.next().await.unwrap();
        assert_eq!((commit.revision, commit.events.len()), (Revision(revision), 2));
    }
    n
}

/// What must hold after any failure, however the process ended.
async fn check(sim: &Sim, disk: &Disk, told: &Told) {
    let catalog = open(sim, disk).await.unwrap();
    let found = read(&catalog).await;
    assert!(
        found == told.committed || Some(found) == told.in_doubt,
        "{found}, {}, {:?}",
        told.committed,
        told.in_doubt
    );
    let token = catalog.acquire(&key("l"), "me", TTL).await.unwrap().token;
    assert!(Some(token) > told.token);

    // I-4: what was read is there after the next power cut, too. Not closed, because closing would write.
    disk.crash();
    disk.restart(Crash::AllLost);
    drop(catalog);
    let catalog = open(sim, disk).await.unwrap();
    assert_eq!(read(&catalog).await, found);

    // I-3: sending the last commit again does it, or finds that it is done.
    let last = told.in_doubt.unwrap_or(told.committed);
    if last > 0 {
        assert_eq!(catalog.commit(step(last)).await.unwrap(), Revision(last));
    }
    catalog.commit(step(last + 1)).await.unwrap();
    disk.crash();
    disk.restart(Crash::AllLost);
    drop(catalog);
    let catalog = open(sim, disk).await.unwrap();
    assert_eq!(read(&catalog).await, last + 1);
    assert!(catalog.acquire(&key("l"), "me", TTL).await.unwrap().token > token);
}

/// Runs the workload with a fault, ends the process, and checks what is left. Says whether a commit was in doubt.
fn history(disk: &Disk, seed: u64, break_it: impl Fn(), end_it: impl Fn()) -> bool {
    disk.reset(seed);
    break_it();
    let sim = Sim::new(seed);
    let mut told = Told::default();
    sim.run(async {
        let _ = work(&sim, disk, &mut told).await;
        end_it();
        check(&sim, disk, &told).await;
    })
    .unwrap();
    told.in_doubt.is_some()
}

fn counts_without_fault(disk: &Disk) -> Counts {
    let sim = Sim::new(0);
    sim.run(async { work(&sim, disk, &mut Told::default()).await.unwrap() }).unwrap();
    disk.counts()
}

/// I-1, I-2, I-3, I-4, I-8 under F1 and F2.
#[test]
fn whatever_operation_a_crash_strikes_commits_are_whole_and_kept() {
    let disk = Disk::new(0).unwrap();
    let operations = counts_without_fault(&disk).operations;
    assert!(operations > 50, "{operations}");
    let mut in_doubt = 0;
    for operation in 1..=operations {
        for crash in Crash::ALL {
            let end = || {
                assert!(disk.is_dead(), "operation {operation} was never reached");
                disk.restart(crash);
            };
            let seed = operation * 4 + crash as u64;
            in_doubt += u64::from(history(&disk, seed, || disk.crash_at(operation), end));
        }
    }
    assert!(in_doubt > 20, "{in_doubt}");
}

/// I-6: the process also dies while it opens the catalog again.
#[test]
fn a_crash_during_recovery_changes_nothing() {
    let disk = Disk::new(0).unwrap();
    let operations = counts_without_fault(&disk).operations;
    let deaths = Cell::new(0);
    for operation in (1..=operations).step_by(2) {
        for again in 1..=8 {
            let crash = Crash::ALL[(operation + again) as usize % 4];
            let end = || {
                disk.restart(crash);
                disk.crash_at(disk.counts().operations + again);
                let sim = Sim::new(operation);
                let opened = sim.run(open(&sim, &disk)).unwrap();
                deaths.set(deaths.get() + u64::from(opened.is_err()));
                disk.crash();
                drop(opened);
                disk.restart(crash);
            };
            history(&disk, operation * 8 + again, || disk.crash_at(operation), end);
        }
    }
    assert!(deaths.get() > 50, "{}", deaths.get());
}

/// I-5 under F3 and F4. After the fault the catalog is opened again at once, or after a power cut.
fn sweep_faults(count: u64, set: impl Fn(&Disk, u64)) {
    let disk = Disk::new(0).unwrap();
    for at in 1..=count {
        for power_fails in [false, true] {
            let end = || {
                disk.heal();
                if power_fails {
                    disk.restart(Crash::AllLost);
                }
            };
            history(&disk, at, || set(&disk, at), end);
        }
    }
}

fn counts() -> Counts {
    counts_without_fault(&Disk::new(0).unwrap())
}

#[test]
fn a_sync_that_fails_once_costs_no_commit() {
    sweep_faults(counts().syncs, |disk, at| disk.fail_sync_at(at, Times::Once));
}

#[test]
fn a_sync_that_fails_for_ever_costs_no_commit() {
    sweep_faults(counts().syncs, |disk, at| disk.fail_sync_at(at, Times::Forever));
}

#[test]
fn a_write_that_fails_costs_no_commit() {
    sweep_faults(counts().writes, |disk, at| disk.fail_write_at(at, Times::Once));
    sweep_faults(counts().writes, |disk, at| disk.fail_write_at(at, Times::Forever));
}

#[test]
fn a_read_that_fails_costs_no_commit() {
    sweep_faults(counts().reads, |disk, at| disk.fail_read_at(at, Times::Once));
}

#[test]
fn a_full_disk_costs_no_commit() {
    sweep_faults(counts().operations, |disk, at| disk.full_at(at));
}

/// I-6a
#[test]
fn a_flipped_bit_is_found_or_harmless() {
    let disk = Disk::new(0).unwrap();
    counts_without_fault(&disk);
    let image = disk.read_file(PATH).unwrap();
    let mut found = 0;
    for offset in (0..image.len()).step_by(7) {
        disk.reset(offset as u64);
        disk.replace_file(PATH, image.clone());
        assert!(disk.flip_byte(PATH, offset));
        let sim = Sim::new(1);
        let answer = sim.run(async {
            let catalog = open(&sim, &disk).await.ok()?;
            Some(catalog.list("", None, 10).await.ok()?.records)
        });
        match answer.unwrap() {
            None => found += 1,
            // A record that has vanished, or a value that has changed, would be seen here.
            Some(records) => {
                let values: Vec<u64> = records.iter().map(|record| record.json().unwrap()).collect();
                assert_eq!(values, [8, 8], "byte {offset}");
            }
        }
    }
    assert!(found > 20, "{found}");
}

/// The catalog as its clients see it: there, or not just now.
type Slot = RefCell<Option<Arc<SqliteCatalog>>>;

/// Clients that run while the catalog dies and comes back.
struct World<'a> {
    sim: &'a Sim,
    disk: &'a Disk,
    slot: Slot,
    running: Cell<usize>,
}

impl World<'_> {
    async fn sleep(&self, micros: u64) {
        self.sim.env().sleep(Duration::from_micros(micros)).await;
    }

    async fn catalog(&self) -> Arc<SqliteCatalog> {
        loop {
            if let Some(catalog) = self.slot.borrow().clone() {
                return catalog;
            }
            self.sleep(500).await;
        }
    }

    /// Sends a transaction until it is clear whether it happened. `None` says that it did not.
    async fn settle(&self, transaction: Transaction) -> Option<Revision> {
        loop {
            match self.catalog().await.commit(transaction.clone()).await {
                Ok(revision) => return Some(revision),
                Err(CatalogError::Conflict { .. }) => return None,
                Err(CatalogError::MayHaveHappened(_)) => self.sim.saw("in doubt"),
                Err(CatalogError::Stopped(_) | CatalogError::Busy(_)) => {}
                Err(error) => panic!("{error}"),
            }
            self.sleep(300).await;
        }
    }

    /// Adds one, `times` times.
    async fn count(&self, times: u64, mut rng: Rng) {
        let mut done = 0;
        while done < times {
            self.sleep(rng.below(40_000)).await;
            let Ok(at) = self.catalog().await.get(&key("counter")).await else {
                self.sleep(300).await;
                continue;
            };
            let next = at.value.as_ref().map_or(0, |record| record.json::<u64>().unwrap()) + 1;
            let transaction = Transaction::new().when_as_read(&key("counter"), at.value.as_ref());
            let transaction = transaction.put_json(key("counter"), &next).unwrap();
            let id = CommitId(u128::from(rng.bits()) << 64 | u128::from(rng.bits()));
            match self.settle(transaction.once(id)).await {
                Some(_) => done += 1,
                None => self.sim.saw("conflict"),
            }
        }
        self.running.set(self.running.get() - 1);
    }

    /// Does leased work until the others are done: writes its token, late as well, on the word of its lease only.
    async fn drive(&self, owner: &str, mut rng: Rng) {
        while self.running.get() > 0 {
            let acquired = self.catalog().await.acquire(&key("driver"), owner, LEASE_TTL_MIN).await;
            let Ok(lease) = acquired else {
                self.sleep(5_000).await;
                continue;
            };
            for _ in 0..rng.below(5) {
                // As if the process had been stopped for a while.
                self.sleep(rng.below(150_000)).await;
                let write = Transaction::new().put_json(key("driver"), &lease.token.0).unwrap();
                let write = write.when(Condition::Held(key("driver"), lease.token));
                if self.settle(write).await.is_none() {
                    self.sim.saw("late holder refused");
                    break;
                }
                self.sim.saw("leased write");
            }
        }
    }

    /// Sees every revision exactly once, over all lives of the catalog, until the counter is at `total`.
    async fn watch(&self, total: u64) {
        let (mut position, mut token, mut counter) = (Revision(1), 0, 0);
        while counter < total {
            let Ok(mut watch) = self.catalog().await.watch("", position).await.inspect_err(check_watch_error) else {
                self.sleep(300).await;
                continue;
            };
            while counter < total {
                let Ok(commit) = watch.next().await.inspect_err(check_watch_error) else { break };
                assert_eq!(commit.revision, position, "no gap, no repetition");
                position = position.next();
                assert_eq!(watch.position(), position);
                let [Event::Put(record)] = &commit.events[..] else { panic!("{commit:?}") };
                let value: u64 = record.json().unwrap();
                match record.key.as_str() {
                    "counter" => assert_eq!(std::mem::replace(&mut counter, value) + 1, value),
                    _ => assert!(std::mem::replace(&mut token, value) <= value, "a late holder has written"),
                }
            }
        }
    }

    async fn start(&self) {
        let opened = open_with(self.sim, self.disk, HISTORY_COMMITS_MAX).await;
        *self.slot.borrow_mut() = opened.ok().map(Arc::new);
    }

    /// Waits until the catalog dies at one of its next writes, if there are that many soon.
    async fn die_writing(&self, operations: u64) {
        self.disk.crash_at(self.disk.counts().operations + operations);
        for _ in 0..100 {
            if self.disk.is_dead() {
                return;
            }
            self.sleep(500).await;
        }
    }

    /// Kills the catalog again and again, between its writes and in the middle of one, and starts it again.
    async fn torment(&self, mut rng: Rng) {
        while self.running.get() > 0 {
            self.start().await;
            if self.slot.borrow().is_some() {
                self.sim.set_blocking_delay("catalog", Duration::from_micros(rng.below(4_000)));
                self.sleep(rng.below(150_000)).await;
            }
            if rng.chance(1, 2) {
                self.die_writing(rng.below(12)).await;
            }
            self.disk.crash();
            self.slot.take();
            self.sim.kill("catalog");
            self.disk.restart(*rng.pick(&Crash::ALL));
            self.sim.set_skew("catalog", rng.bits() as i64 >> 14);
        }
        self.start().await;
    }
}

/// A watcher is never behind the history here, and never ahead of the catalog: what it saw was durable (I-4).
fn check_watch_error(error: &CatalogError) {
    assert!(matches!(error, CatalogError::Stopped(_) | CatalogError::Busy(_)), "{error}");
}

/// I-1, I-3, I-4, I-8, I-13, I-47, I-66 under F1, F2, F7, F8, F13.
#[test]
fn clients_of_a_catalog_that_keeps_dying_lose_nothing_and_double_nothing() {
    const CLIENTS: usize = 3;
    const TIMES: u64 = 15;
    let mut sometimes = Sometimes::new();
    let disk = Disk::new(0).unwrap();
    for seed in 1..=40 {
        disk.reset(seed);
        let sim = Sim::new(seed);
        let world = World { sim: &sim, disk: &disk, slot: Slot::default(), running: Cell::new(CLIENTS) };
        let clients = (0..CLIENTS).map(|n| world.count(TIMES, sim.rng(&format!("client {n}"))));
        let total = CLIENTS as u64 * TIMES;
        sim.run(async {
            futures::join!(
                world.torment(sim.rng("torment")),
                futures::future::join_all(clients),
                world.drive("driver 1", sim.rng("driver 1")),
                world.drive("driver 2", sim.rng("driver 2")),
                world.watch(total),
            );
            let catalog = world.catalog().await;
            let record = catalog.get(&key("counter")).await.unwrap().value.unwrap();
            assert_eq!(record.json::<u64>().unwrap(), total);
        })
        .unwrap();
        sometimes.merge(&sim.sometimes());
    }
    for event in ["restart", "job lost in a kill", "in doubt", "conflict", "leased write", "late holder refused"] {
        assert!(sometimes.count(event) >= 20, "{event} was seen too rarely:\n{}", sometimes.table(20));
    }
}
