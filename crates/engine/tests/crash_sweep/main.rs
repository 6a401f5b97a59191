//! A shard is killed at every operation of its disk, and everything it was trusted with is looked for afterwards.
//!
//! A clean run of the canonical [`workload`] counts the operations that reach the disk. Then the run is repeated once
//! for each operation and each way to lose power; the process dies there, a new one opens the file, and what the new
//! one says is compared with what clients of the old one had been told.
//!
//! Invariants (docs/invariants.md):
//!   * I-1   every acknowledged write is there
//!   * I-2   transactions are whole: rows, log, positions
//!   * I-3   what was not answered happened once or not at all
//!   * I-4   what any client has seen survives
//!   * I-5   after a failed sync nothing is acknowledged until the shard has been reopened
//!   * I-6   a crash during recovery changes nothing
//!   * I-6a  a damaged file is reported or harmless
//!   * I-29  the log is exactly the committed changes
//!   * I-69  the sweep finds the bugs that are planted for it

#[path = "../harness/mod.rs"]
mod harness;
mod workload;

use harness::{LOG, NODE, Observed, PATH};
use isles_engine::error::ShardError;
use isles_engine::fence::FenceMode;
use isles_engine::shard::{Request, Shard, Statement};
use isles_engine::sqlite::{Planted, SqliteOptions, SqliteShard};
use isles_kernel::names::Seq;
use isles_kernel::value::{DataType, Value};
use isles_sim::disk::{Counts, Crash, Disk, Times};
use isles_sim::exec::Sim;
use std::sync::{Arc, Mutex};
use workload::{Ending, Life, Story};

/// One order of events; the sweep is over crashes, not over orders, which `simulation` draws.
const SEED: u64 = 11;

/// Answers that a probe of a recovered shard must get.
const PROBE_BUCKET: u32 = 9;

fn new_disk() -> Arc<Disk> {
    Arc::new(Disk::new(SEED).expect("a disk"))
}

fn with_bug(disk: &Disk, planted: Option<Planted>) -> SqliteOptions {
    SqliteOptions { planted, ..harness::options(disk) }
}

/// What is different in a life from the clean one.
struct Plan {
    seed: u64,
    planted: Option<Planted>,
    answers: Option<u64>,
    ending: Ending,
    failing_sync: Option<u64>,
}

impl Plan {
    fn new(seed: u64) -> Plan {
        Plan { seed, planted: None, answers: None, ending: Ending::Closed, failing_sync: None }
    }

    /// Makes the disk new, lets `prepare` put faults on it, and runs the workload in one process life.
    fn live(self, disk: &Arc<Disk>, prepare: impl FnOnce(&Disk)) -> Life {
        disk.reset(self.seed);
        disk.claim_powersafe_overwrite();
        prepare(disk);
        let story = Arc::new(Mutex::new(Story::new(self.answers)));
        let life = Life { disk: disk.clone(), story, ending: self.ending, failing_sync: self.failing_sync };
        life.run(&Sim::new(SEED), with_bug(disk, self.planted));
        life
    }
}

/// A run without faults: what there is to sweep over.
fn clean_run(disk: &Arc<Disk>, planted: Option<Planted>) -> (Counts, u64) {
    let life = Plan { planted, ..Plan::new(SEED) }.live(disk, |_| {});
    let story = life.story();
    // The client whose bucket is fenced is refused now and then.
    assert!(story.steps_told() >= (workload::CLIENTS - 1) * 9, "{} steps", story.steps_told());
    assert_eq!((story.schema_told(), story.rows_applied()), (5, 2));
    assert!(story.log_copy.len() > 20 && story.errors.contains_key("statement") && story.errors.contains_key("moved"));
    (disk.counts(), story.answers)
}

/// Opens the shard in a new process life and reads all of it.
fn reopen(disk: &Disk) -> Result<Observed, ShardError> {
    let sim = Sim::new(SEED);
    let env = sim.node(NODE);
    let options = harness::options(disk);
    let root = async {
        let shard = harness::open(env, options).await?;
        let observed = harness::observe(&shard, &workload::source()).await;
        shard.close().await?;
        observed
    };
    sim.run(root).expect("reopening ends")
}

/// Looks whether the shard keeps every promise of the story, and still works.
fn verify(disk: &Disk, life: &Life) -> Result<Observed, String> {
    let observed = reopen(disk).map_err(|error| format!("the shard does not open: {error}"))?;
    life.story().judge(&observed)?;
    harness::integrity_check(disk)?;
    let again = probe(disk).map_err(|error| format!("the shard does not work: {error}"))?;
    harness::check_log(&life.story().log_copy, &again)?;
    let rows = again.tables["entries"].len() - observed.tables.get("entries").map_or(0, Vec::len);
    if rows != 1 || again.seq <= observed.seq {
        return Err(format!("a new write left {rows} rows and position {}", again.seq));
    }
    Ok(observed)
}

/// Writes to a recovered shard, after whatever it had not got round to.
fn probe(disk: &Disk) -> Result<Observed, ShardError> {
    let sim = Sim::new(SEED + 1);
    let env = sim.node(NODE);
    let options = harness::options(disk);
    let root = async {
        let shard = harness::open(env, options).await?;
        workload::finish_set_up(&shard).await?;
        let bucket = PROBE_BUCKET..=PROBE_BUCKET;
        shard.set_fences(vec![harness::fence(bucket, 100, FenceMode::Open)], harness::FENCE_TIME).await?;
        shard.execute(Request::write(harness::claim(100, PROBE_BUCKET), vec![probe_insert()])).await?;
        let observed = harness::observe(&shard, &workload::source()).await;
        shard.close().await?;
        observed
    };
    sim.run(root).expect("a write ends")
}

fn probe_insert() -> Statement {
    let sql = "INSERT INTO entries (_bucket, id, body) VALUES ($1, $2, 'probe')";
    Statement::new(sql, vec![Value::Int(i64::from(PROBE_BUCKET)), Value::Int(i64::from(PROBE_BUCKET))])
}

/// What a sweep did.
#[derive(Debug, Default)]
struct Swept {
    points: u64,
    /// The first few promises that were broken.
    broken: Vec<String>,
}

impl Swept {
    fn point(&mut self, name: impl FnOnce() -> String, verdict: Result<(), String>) {
        self.points += 1;
        if let Err(why) = verdict {
            self.broken.push(format!("{}: {why}", name()));
        }
    }

    #[track_caller]
    fn assert_kept(&self, sweep: &str, least: u64) {
        println!("{sweep}: {} points", self.points);
        assert!(self.points >= least, "{sweep}: only {} points", self.points);
        assert!(self.broken.is_empty(), "{sweep}: {} broken, the first: {}", self.broken.len(), self.broken.join("\n"));
    }
}

/// Crashes at each operation, or, to see whether a planted bug is found, until a promise is broken.
fn sweep(crash: Crash, planted: Option<Planted>) -> Swept {
    let disk = new_disk();
    let operations = clean_run(&disk, planted).0.operations;
    let mut swept = Swept::default();
    for operation in 1..=operations {
        let life = Plan { planted, ..Plan::new(operation) }.live(&disk, |disk| disk.crash_at(operation));
        assert!(disk.is_dead(), "operation {operation} of {operations} was not reached");
        disk.restart(crash);
        let name = || format!("crash at operation {operation} of {operations}, {crash:?}");
        swept.point(name, verify(&disk, &life).map(drop));
        if planted.is_some() && !swept.broken.is_empty() {
            break;
        }
    }
    swept
}

/// I-1, I-2, I-3, I-29
#[test]
fn every_promise_survives_a_killed_process() {
    sweep(Crash::Killed, None).assert_kept("crash, nothing lost", 500);
}

#[test]
fn every_promise_survives_a_power_cut_that_loses_all_unsynced_writes() {
    sweep(Crash::AllLost, None).assert_kept("crash, all unsynced lost", 500);
}

#[test]
fn every_promise_survives_a_power_cut_that_loses_some_unsynced_writes() {
    sweep(Crash::SomeLost, None).assert_kept("crash, some unsynced lost", 500);
}

#[test]
fn every_promise_survives_a_power_cut_that_tears_writes() {
    sweep(Crash::Torn, None).assert_kept("crash, writes torn", 500);
}

/// The same planted bug is found by one of the ways to crash.
#[track_caller]
fn assert_found(planted: Planted, crash: Crash, expected: &str) {
    let swept = sweep(crash, Some(planted));
    let found = swept.broken.first().unwrap_or_else(|| panic!("{planted:?} passed {} points", swept.points));
    println!("{planted:?} found after {} points: {}", swept.points, found.chars().take(100).collect::<String>());
    assert!(found.contains(expected), "{planted:?} was found as something else: {found}");
}

/// Planted bug 3
#[test]
fn the_sweep_finds_acknowledged_writes_lost_without_sync() {
    assert_found(Planted::NoSync, Crash::AllLost, "is known");
}

/// Planted bug 3, in its other form
#[test]
fn the_sweep_finds_answers_that_come_before_the_commit() {
    assert_found(Planted::AnswerBeforeCommit, Crash::Killed, "is known");
}

/// Planted bug 11
#[test]
fn the_sweep_finds_a_record_in_a_second_transaction() {
    assert_found(Planted::RecordInSecondTransaction, Crash::Killed, "the log");
}

/// I-4: the power fails right after each answer, to a read or a write, and nothing that a client has seen is gone.
#[test]
fn what_a_client_has_seen_survives_a_power_cut_right_after() {
    let disk = new_disk();
    let answers = clean_run(&disk, None).1;
    let mut swept = Swept::default();
    for crash in [Crash::AllLost, Crash::Torn] {
        for answer in 1..=answers {
            let life = Plan { answers: Some(answer), ..Plan::new(answer) }.live(&disk, |_| {});
            assert!(disk.is_dead());
            disk.restart(crash);
            swept.point(|| format!("power cut after answer {answer}, {crash:?}"), verify(&disk, &life).map(drop));
        }
    }
    swept.assert_kept("power cut after an answer", 150);
}

/// One crash after another: the workload dies at the first operation, each recovery after it at the next one.
struct Crashes {
    first: (u64, Crash),
    recoveries: Vec<(u64, Crash)>,
}

impl Crashes {
    /// Runs the lives. Returns the first one, what each recovery has read in full, and whether the last one died.
    fn live(&self, disk: &Arc<Disk>) -> (Life, Vec<Observed>, bool) {
        let (operation, crash) = self.first;
        let life = Plan::new(operation).live(disk, |disk| disk.crash_at(operation));
        disk.restart(crash);
        let (mut read, mut has_died) = (Vec::new(), true);
        for (operation, crash) in &self.recoveries {
            disk.crash_at(disk.counts().operations + operation);
            read.extend(reopen(disk).ok());
            has_died = disk.is_dead();
            disk.restart(*crash);
        }
        (life, read, has_died)
    }

    /// Crashes at each operation of the next recovery, `depth` recoveries deep, and looks whether the end is the same:
    /// what one life has read in full, the next ones read, too.
    fn sweep(&mut self, disk: &Arc<Disk>, crash: Crash, depth: u32, swept: &mut Swept) {
        // The innermost recovery is swept whole, those around it at every other operation.
        for operation in (1..).step_by(if depth > 1 { 2 } else { 1 }) {
            self.recoveries.push((operation, crash));
            let (life, read, has_died) = self.live(disk);
            let verdict = verify(disk, &life).and_then(|observed| match read.iter().find(|read| **read != observed) {
                Some(read) => Err(format!("{read:?} was read, and then {observed:?}")),
                None => Ok(()),
            });
            swept.point(
                || format!("crash at operation {:?}, in recovery at {:?}", self.first, self.recoveries),
                verdict,
            );
            if depth > 1 && has_died {
                self.sweep(disk, crash, depth - 1, swept);
            }
            self.recoveries.pop();
            if !has_died {
                return;
            }
        }
    }
}

/// Sweeps recoveries after crashes that are spread over the workload.
fn sweep_recoveries(first: Crash, then: Crash) -> Swept {
    const FIRST_CRASHES: u64 = 7;
    let disk = new_disk();
    let operations = clean_run(&disk, None).0.operations;
    let mut swept = Swept::default();
    for number in 1..=FIRST_CRASHES {
        let first = (operations * number / FIRST_CRASHES - number, first);
        Crashes { first, recoveries: Vec::new() }.sweep(&disk, then, 2, &mut swept);
    }
    swept
}

/// I-6
#[test]
fn a_killed_process_and_power_cuts_during_its_recovery_change_nothing() {
    sweep_recoveries(Crash::Killed, Crash::AllLost).assert_kept("power cuts during recovery, two deep", 1_000);
}

/// I-6
#[test]
fn torn_writes_and_torn_writes_during_recovery_change_nothing() {
    sweep_recoveries(Crash::Torn, Crash::Torn).assert_kept("torn writes during recovery, two deep", 1_000);
}

/// Reads a shard in a new life, writes to it, loses power, and looks whether the write is there and all that was read.
/// The shard is not closed in between, which would move its log into the file.
fn survives_a_later_power_cut(disk: &Disk, life: &Life) -> Result<(), String> {
    let sim = Sim::new(SEED);
    let env = sim.node(NODE);
    let options = harness::options(disk);
    let root = async {
        let shard = harness::open(env, options).await?;
        let first = harness::observe(&shard, &workload::source()).await?;
        workload::finish_set_up(&shard).await?;
        let bucket = PROBE_BUCKET..=PROBE_BUCKET;
        shard.set_fences(vec![harness::fence(bucket, 99, FenceMode::Open)], harness::FENCE_TIME).await?;
        let seen = harness::observe(&shard, &workload::source()).await;
        disk.crash();
        seen.map(|seen| (first, seen))
    };
    let lived: Result<_, ShardError> = sim.run(root).expect("a write ends");
    let (first, seen) = lived.map_err(|error| format!("the shard does not work: {error}"))?;
    life.story().judge(&first)?;
    disk.restart(Crash::AllLost);
    let found = reopen(disk).map_err(|error| format!("the shard does not open: {error}"))?;
    if found != seen {
        return Err(format!("{seen:?} was read before the power cut, and then {found:?}"));
    }
    harness::integrity_check(disk)
}

/// One sync fails, and later ones succeed without the data of the failed one.
fn sweep_failing_syncs(ending: Ending) -> Swept {
    let disk = new_disk();
    let syncs = clean_run(&disk, None).0.syncs;
    let mut swept = Swept::default();
    let (mut sent, mut in_doubt) = (0, 0);
    for sync in 1..=syncs {
        let plan = Plan { ending, failing_sync: Some(sync), ..Plan::new(sync) };
        let life = plan.live(&disk, |disk| disk.fail_sync_at(sync, Times::Once));
        if disk.counts().syncs < sync {
            break;
        }
        disk.heal();
        disk.restart(Crash::Killed);
        let story = life.story();
        sent += story.sent_after_failure;
        in_doubt += story.errors.get("may have happened").copied().unwrap_or(0);
        let acknowledged = story.acknowledged_after_failure;
        drop(story);
        let name = || format!("sync {sync} of {syncs} fails, then {ending:?}");
        match acknowledged {
            0 => swept.point(name, survives_a_later_power_cut(&disk, &life)),
            n => swept.point(name, Err(format!("{n} steps were acknowledged after the failure"))),
        }
    }
    assert!(sent > 0 && in_doubt > 0, "{sent} steps were sent after a failure, {in_doubt} were in doubt");
    swept
}

/// I-5
#[test]
fn after_a_failed_sync_nothing_is_acknowledged_until_the_shard_is_reopened() {
    sweep_failing_syncs(Ending::Closed).assert_kept("sync fails, shard closed", 40);
}

/// I-5: the kernel takes the data of a failed sync for written, so that the next process finds it in the log, and
/// syncing the log again does not make it durable.
#[test]
fn what_a_failed_sync_left_in_the_log_is_not_taken_for_durable() {
    sweep_failing_syncs(Ending::Killed).assert_kept("sync fails, process killed", 40);
}

/// I-5: a reader lets a checkpoint get half way; the sync at its end, which is due for both halves, fails; and the
/// checkpoint of the closing connection does only the second half again.
#[test]
fn a_checkpoint_whose_sync_failed_is_done_again_from_its_beginning() {
    let disk = new_disk();
    let mut failed = 0;
    for sync in 1..=12 {
        disk.reset(sync);
        disk.claim_powersafe_overwrite();
        let sim = Sim::new(SEED);
        let work = async {
            // More than the pages of the set-up, which the first half is to hold.
            let options = SqliteOptions { checkpoint_pages: 60, ..harness::options(&disk) };
            let shard = harness::open(sim.node(NODE), options).await.expect("open");
            workload::finish_set_up(&shard).await.expect("set up");
            let snapshot = shard.snapshot().await.expect("snapshot");
            let version = write_fences(&shard, 1..30).await.expect("write");
            drop(snapshot);
            disk.fail_sync_at(disk.counts().syncs + sync, Times::Once);
            let version = write_fences(&shard, version + 1..60).await.unwrap_or_else(|(told, _)| told);
            failed += u64::from(shard.seq().await.is_err());
            shard.close().await.expect("close");
            version
        };
        let told = sim.run(work).expect("it ends");
        disk.heal();
        // The next life begins a log of its own, and with it the old one is gone for good.
        let sim = Sim::new(SEED);
        let work = async {
            let shard = harness::open(sim.node(NODE), harness::options(&disk)).await.expect("open");
            let told = write_fences(&shard, told + 1..told + 2).await;
            disk.crash();
            told.expect("write")
        };
        let told = sim.run(work).expect("it ends");
        disk.restart(Crash::AllLost);
        let found = reopen(&disk).expect("the shard opens");
        let version = found.fences.first().map_or(0, |fence| fence.version.0 / 200);
        assert!(version >= told && found.schema.version.0 == 1, "version {told} was told, {version} is there");
        harness::integrity_check(&disk).expect("whole");
    }
    assert!(failed > 6, "{failed} shards stopped");
}

/// Sets one fence after another. Returns the last version that was told, with the error that ended it.
async fn write_fences(
    shard: &SqliteShard,
    versions: std::ops::Range<u64>,
) -> std::result::Result<u64, (u64, ShardError)> {
    let mut told = versions.start - 1;
    for version in versions {
        // Many fences, so that each commit writes several pages.
        let fences =
            (0..100).map(|bucket| harness::fence(bucket..=bucket, version * 200 + u64::from(bucket), FenceMode::Open));
        shard.set_fences(fences.collect(), harness::FENCE_TIME).await.map_err(|error| (told, error))?;
        told = version;
    }
    Ok(told)
}

/// A shard that is closed takes nothing more, however many wait.
#[test]
fn a_shard_with_a_full_queue_is_closed_all_the_same() {
    let disk = new_disk();
    let sim = Sim::new(SEED);
    let work = async {
        let options = SqliteOptions { max_queue: 1, ..harness::options(&disk) };
        let shard = harness::open(sim.node(NODE), options).await.expect("open");
        let stream = workload::source();
        let (waited, closed) = futures::future::join(shard.add_consumer(&stream), shard.close()).await;
        assert!(waited.is_ok() && closed.is_ok());
        shard.seq().await
    };
    let seq = sim.run(work).expect("it ends");
    assert!(matches!(seq, Err(ShardError::Unavailable(_))), "{seq:?}");
}

/// The disk fails as `fault` says at number n, for n in steps over `numbers`; nothing that was told may be lost.
fn sweep_faults(numbers: u64, step: usize, ending: Ending, fault: impl Fn(&Disk, u64)) -> (Swept, Vec<Life>) {
    let disk = new_disk();
    let mut swept = Swept::default();
    let mut lives = Vec::new();
    for number in (1..=numbers).step_by(step) {
        let life = Plan { ending, ..Plan::new(number) }.live(&disk, |disk| fault(disk, number));
        disk.heal();
        disk.restart(Crash::AllLost);
        swept.point(|| format!("fault at {number} of {numbers}, then {ending:?}"), verify(&disk, &life).map(drop));
        lives.push(life);
    }
    (swept, lives)
}

fn errors(lives: &[Life], name: &str) -> u64 {
    lives.iter().map(|life| life.story().errors.get(name).copied().unwrap_or(0)).sum()
}

/// F3
#[test]
fn failed_writes_lose_nothing_that_was_told() {
    let counts = clean_run(&new_disk(), None).0;
    for (times, step) in [(Times::Once, 2), (Times::Forever, 5)] {
        let fault = |disk: &Disk, number| disk.fail_write_at(number, times);
        let (swept, lives) = sweep_faults(counts.writes, step, Ending::Closed, fault);
        swept.assert_kept(&format!("writes fail {times:?}"), 80);
        assert!(errors(&lives, "stopped") > 0 && errors(&lives, "may have happened") > 0);
    }
}

/// F3
#[test]
fn failed_reads_lose_nothing_that_was_told() {
    let counts = clean_run(&new_disk(), None).0;
    for (times, step) in [(Times::Once, 3), (Times::Forever, 11)] {
        let fault = |disk: &Disk, number| disk.fail_read_at(number, times);
        let (swept, lives) = sweep_faults(counts.reads, step, Ending::Closed, fault);
        swept.assert_kept(&format!("reads fail {times:?}"), 20);
        assert!(errors(&lives, "stopped") + errors(&lives, "unavailable") > 0);
        // Every step of the workload is a valid one but for one in each round of a client's, which breaks a key.
        let statements = lives.iter().map(|life| life.story().errors.get("statement").copied().unwrap_or(0)).max();
        assert!(
            statements <= Some((workload::CLIENTS * workload::ROUNDS) as u64),
            "a failed read was called a wrong statement"
        );
    }
}

/// F3: SQLite ends the transaction of a failed read by itself; ending it once more is an error of ours, which must not
/// take the place of the disk's.
#[test]
fn a_read_that_the_disk_fails_is_not_called_a_wrong_statement() {
    let disk = new_disk();
    clean_run(&disk, None);
    let mut failed = 0;
    for read in 1..=20 {
        let sim = Sim::new(SEED);
        let work = async {
            let shard = harness::open(sim.node(NODE), harness::options(&disk)).await.expect("open");
            let select = || Statement::new("SELECT id FROM entries", vec![]).returning([DataType::Int8]);
            let mut request = Request::read(harness::claim(99, 0), select());
            request.statements.push(select());
            disk.fail_read_at(disk.counts().reads + read, Times::Once);
            let answers = (shard.execute(request).await.err(), shard.changes(Seq::ZERO, 1).await.err());
            disk.heal();
            shard.close().await.expect("close");
            answers
        };
        let (rows, changes) = sim.run(work).expect("it ends");
        for error in [rows, changes].into_iter().flatten() {
            failed += u64::from(matches!(error, ShardError::Unavailable(_)));
            let expected = matches!(error, ShardError::Unavailable(_) | ShardError::Trimmed { .. });
            assert!(expected, "read {read} failed, and the caller was told: {error:?}");
        }
    }
    assert!(failed > 5, "{failed} reads failed");
}

/// F4: writes are refused, reads go on, and with space again the same shard writes again.
#[test]
fn a_full_disk_refuses_writes_and_loses_nothing() {
    let operations = clean_run(&new_disk(), None).0.operations;
    let (swept, lives) = sweep_faults(operations, 3, Ending::Healed, |disk, number| disk.full_at(number));
    swept.assert_kept("the disk is full", 150);
    assert!(errors(&lives, "disk full") > 100, "{}", errors(&lives, "disk full"));
    assert_eq!(errors(&lives, "stopped") + errors(&lives, "may have happened"), 0);
    let served = lives.iter().filter(|life| life.story().after_healing.is_some()).count();
    let broken = lives.iter().find_map(|life| life.story().after_healing.clone()?.err());
    assert!(served > 100 && broken.is_none(), "{served} shards were open, {broken:?}");
    let has_set_up = |life: &&Life| life.story().schema_told() > 0 && life.story().answers > 5;
    let read = lives.iter().filter(has_set_up).all(|life| life.story().reads == workload::READS);
    assert!(read, "reads go on");
}

/// F4, and the process is killed while the disk is full: what was refused has not happened.
#[test]
fn what_a_full_disk_refused_does_not_come_back() {
    let operations = clean_run(&new_disk(), None).0.operations;
    let disk = new_disk();
    let mut swept = Swept::default();
    for operation in (1..=operations).step_by(3) {
        let plan = Plan { ending: Ending::Killed, ..Plan::new(operation) };
        let life = plan.live(&disk, |disk| disk.full_at(operation));
        disk.heal();
        disk.restart(Crash::Killed);
        swept.point(|| format!("full at {operation} of {operations}, then killed"), verify(&disk, &life).map(drop));
    }
    swept.assert_kept("the disk is full, process killed", 150);
}

/// A file of a shard, byte after byte of which rots.
fn sweep_rot(
    files: &[(String, Vec<u8>)],
    file: &str,
    flips: usize,
    allows: impl Fn(usize, &Observed) -> bool,
) -> Swept {
    let disk = new_disk();
    let (mut swept, mut reported) = (Swept::default(), 0);
    let length = files.iter().find(|(name, _)| name == file).expect("the file is there").1.len();
    for offset in (0..length).step_by((length / flips).max(1)) {
        disk.reset(offset as u64);
        disk.claim_powersafe_overwrite();
        files.iter().for_each(|(name, bytes)| disk.replace_file(name, bytes.clone()));
        assert!(disk.flip_byte(file, offset));
        let verdict = match reopen(&disk) {
            Err(_) => {
                reported += 1;
                Ok(())
            }
            Ok(observed) if allows(offset, &observed) => Ok(()),
            Ok(observed) => Err(format!("the shard says {observed:?}")),
        };
        swept.point(|| format!("byte {offset} of {file} has rotted"), verdict);
    }
    println!("{reported} of {} flips of {file} were reported", swept.points);
    assert!(reported > swept.points / 2, "{reported} of {} were reported", swept.points);
    swept
}

/// I-6a
#[test]
fn a_rotten_byte_of_the_file_is_reported_or_harmless() {
    let disk = new_disk();
    clean_run(&disk, None);
    let files = disk.files();
    assert_eq!(files.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), [PATH]);
    let whole = reopen(&disk).expect("nothing is wrong");
    sweep_rot(&files, PATH, 2_000, |_, observed| *observed == whole).assert_kept("rot in the file", 2_000);
}

/// Where the last transaction of a log begins.
fn last_transaction(log: &[u8]) -> usize {
    const HEADER_BYTES: usize = 32;
    const FRAME_BYTES: usize = 24 + 4096;
    let frames = (log.len() - HEADER_BYTES) / FRAME_BYTES;
    let begins = |frame: usize| HEADER_BYTES + frame * FRAME_BYTES;
    let commits: Vec<usize> = (0..frames).filter(|frame| log[begins(*frame) + 4..][..4] != [0; 4]).collect();
    assert!(commits.len() > 20, "{} transactions", commits.len());
    begins(commits[commits.len() - 2] + 1)
}

/// I-6a: a log that a killed process left. Its last transaction cannot be told from a torn one, and may be missing.
#[test]
fn a_rotten_byte_of_the_log_is_reported_or_harmless() {
    let disk = new_disk();
    let life = Life {
        disk: disk.clone(),
        story: Arc::new(Mutex::new(Story::new(None))),
        ending: Ending::Killed,
        failing_sync: None,
    };
    disk.claim_powersafe_overwrite();
    life.run(&Sim::new(SEED), SqliteOptions { checkpoint_pages: u32::MAX, ..harness::options(&disk) });
    disk.restart(Crash::Killed);
    let files = disk.files();
    let log = disk.read_file(LOG).expect("the process left a log");
    let last = last_transaction(&log);
    let whole = reopen(&disk).expect("nothing is wrong");
    life.story().judge(&whole).expect("nothing is lost");
    disk.reset(SEED);
    disk.claim_powersafe_overwrite();
    files.iter().for_each(|(name, bytes)| disk.replace_file(name, bytes.clone()));
    disk.replace_file(LOG, log[..last].to_vec());
    let without_last = reopen(&disk).expect("nothing is wrong");
    assert_ne!(whole, without_last);
    let allows = |offset: usize, observed: &Observed| *observed == whole || offset >= last && *observed == without_last;
    sweep_rot(&files, LOG, 2_000, allows).assert_kept("rot in the log", 2_000);
}
