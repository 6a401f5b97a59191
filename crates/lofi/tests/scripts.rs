//! The core, step by step: one claim for each test, against the server of the model.

#![allow(clippy::unwrap_used)]

#[path = "model/server.rs"]
#[allow(dead_code)]
mod server;

use isles_kernel::sync::*;
use isles_lofi::command::{MAX_EDITS, MAX_QUEUED};
use isles_lofi::*;
use isles_sim::rng::Rng;
use serde_json::json;
use server::{Moved, Tenant};

/// One replica, its store, its server, and the calls under way.
struct Bench {
    replica: Replica,
    kept: Kept,
    tenant: Tenant,
    rng: Rng,
    now_ms: u64,
    calls: Vec<Call>,
    outcomes: Vec<Outcome>,
    changed: Vec<RowKey>,
    wiped: bool,
    wake: Option<u64>,
}

impl Bench {
    fn new() -> Bench {
        Bench::with(Options::default())
    }

    fn with(options: Options) -> Bench {
        let mut bench = Bench {
            replica: Replica::open(Kept::default(), options).unwrap(),
            kept: Kept::default(),
            tenant: Tenant::new("a"),
            rng: Rng::new(1),
            now_ms: 0,
            calls: vec![],
            outcomes: vec![],
            changed: vec![],
            wiped: false,
            wake: None,
        };
        bench.tenant.write(&mut bench.rng);
        bench.step(Event::Tick);
        bench
    }

    /// With all that the server has.
    fn live() -> Bench {
        let mut bench = Bench::new();
        bench.catch_up();
        assert_eq!(bench.replica.health().phase, Phase::Live);
        bench
    }

    fn moment(&mut self) -> Moment {
        let random = (u128::from(self.rng.bits()) << 64) | u128::from(self.rng.bits());
        Moment { now_ms: self.now_ms, random }
    }

    fn step(&mut self, event: Event) {
        if matches!(event, Event::Offline) {
            self.calls.clear();
        }
        let at = self.moment();
        let effects = self.replica.step(at, event);
        self.perform(effects);
    }

    fn perform(&mut self, effects: Vec<Effect>) {
        self.wake = None;
        for effect in effects {
            match effect {
                Effect::Persist(writes) => self.kept.apply(&writes),
                Effect::Wiped => self.wiped = true,
                Effect::Changed(keys) => self.changed.extend(keys),
                Effect::Outcome(outcome) => self.outcomes.push(outcome),
                Effect::Call(call) => self.calls.push(call),
                Effect::Wake { at_ms } => self.wake = Some(at_ms),
                Effect::Health(_) => {}
            }
        }
    }

    /// Answers one call of a kind by `answer`.
    fn answer(
        &mut self,
        kind: fn(&Request) -> bool,
        answer: impl FnOnce(&mut Bench, &Request) -> Result<Reply, Failure>,
    ) {
        let at = self.calls.iter().position(|call| kind(&call.request)).expect("such a call is under way");
        let call = self.calls.remove(at);
        let result = answer(self, &call.request);
        self.step(Event::Answered(call.id, result));
    }

    fn serve(&mut self, kind: fn(&Request) -> bool) {
        self.answer(kind, served);
    }

    /// Reads until the replica has what the server has.
    fn catch_up(&mut self) {
        for _ in 0..100 {
            if self.replica.cursor() == Some(self.tenant.head()) && self.replica.health().phase == Phase::Live {
                return;
            }
            self.now_ms += 1_000;
            self.step(Event::Tick);
            self.serve(is_read);
        }
        panic!("the replica does not catch up: {:?}", self.replica.health());
    }

    fn submit(&mut self, draft: Draft) -> CommandId {
        let at = self.moment();
        let (id, effects) = self.replica.submit(at, draft).unwrap();
        self.perform(effects);
        id
    }

    fn crash(&mut self) {
        self.calls.clear();
        self.replica = Replica::open(self.kept.clone(), Options::default()).unwrap();
        self.step(Event::Tick);
    }

    fn submitted(&self) -> Vec<SubmitRequest> {
        let of = |call: &Call| match &call.request {
            Request::Submit(request) => Some(request.clone()),
            _ => None,
        };
        self.calls.iter().filter_map(of).collect()
    }

    fn reasons(&self) -> Vec<&Reason> {
        self.replica.given_up().map(|given_up| &given_up.reason).collect()
    }
}

fn served(bench: &mut Bench, request: &Request) -> Result<Reply, Failure> {
    bench.tenant.answer(request, &mut bench.rng).map_err(Failure::Refused)
}

fn refused(code: Code) -> impl FnOnce(&mut Bench, &Request) -> Result<Reply, Failure> {
    move |_, _| Err(Failure::Refused(Refusal::new(code, "no")))
}

fn is_read(request: &Request) -> bool {
    !is_submit(request)
}

fn is_submit(request: &Request) -> bool {
    matches!(request, Request::Submit(_))
}

fn is_snapshot(request: &Request) -> bool {
    matches!(request, Request::Snapshot(_))
}

fn key(id: &str) -> RowKey {
    RowKey::new("s", "t", id).unwrap()
}

fn values(json: serde_json::Value) -> Values {
    serde_json::from_value(json).unwrap()
}

fn draft(name: &str, id: &str) -> Draft {
    let command = Command {
        schema: "s".into(),
        name: name.into(),
        input: json!({"id": id, "mark": format!("{name}-{id}")}),
        reads: vec![],
        scopes: vec![],
    };
    let edit = Edit { op: Op::Create, key: key(id), values: values(json!({"n": 1, "list": "l0"})) };
    Draft { command, edits: vec![edit], on_conflict: OnConflict::GiveUp }
}

fn reading(id: &str, read: &str) -> Draft {
    let mut draft = draft("add", id);
    draft.command.reads.push(key(read));
    draft
}

/// A transaction of somebody else's on one row.
fn foreign(bench: &mut Bench, id: &str) {
    let request = SubmitRequest {
        request_id: RequestId(uuid::Uuid::from_u128(u128::from(bench.rng.bits()))),
        partition: bench.tenant.partition.clone(),
        cursor: bench.tenant.head(),
        commands: vec![draft("add", id).command],
    };
    bench.tenant.answer(&Request::Submit(request), &mut bench.rng).unwrap();
}

#[test]
fn a_fresh_replica_reads_a_snapshot_and_then_the_log() {
    let mut bench = Bench::new();
    assert!(is_snapshot(&bench.calls[0].request));
    assert_eq!((bench.replica.cursor(), bench.calls.len()), (None, 1));
    bench.catch_up();
    assert_eq!(bench.replica.confirmed(), &bench.tenant.rows);
    let Request::Outbox(query) = &bench.calls[0].request else { panic!("a long poll") };
    assert_eq!((query.after, query.wait_ms), (Some(bench.tenant.head()), Some(MAX_WAIT_MS)));
    foreign(&mut bench, "x");
    bench.changed.clear();
    bench.serve(is_read);
    assert_eq!(bench.changed, [key("x")]);
    assert_eq!(bench.replica.confirmed(), &bench.tenant.rows);
}

#[test]
fn a_command_is_shown_at_once_and_until_the_rows_have_it() {
    let mut bench = Bench::live();
    let id = bench.submit(draft("add", "x"));
    assert_eq!(bench.changed.last(), Some(&key("x")));
    assert_eq!((bench.replica.state_of(id), bench.replica.unconfirmed()), (CommandState::Pending, 1));
    assert!(bench.replica.get(&key("x")).is_some() && !bench.replica.confirmed().contains_key(&key("x")));
    // The answer is capped: it comes with older entries only, and the command is shown on.
    for at in 0..5 {
        foreign(&mut bench, &format!("y{at}"));
    }
    bench.serve(is_submit);
    assert!(bench.outcomes.is_empty());
    assert!(bench.replica.get(&key("x")).is_some() && !bench.replica.confirmed().contains_key(&key("x")));
    bench.changed.clear();
    bench.catch_up();
    assert_eq!(bench.outcomes, [Outcome::Confirmed { id, entry: Some(bench.tenant.head()) }]);
    assert_eq!(bench.replica.confirmed(), &bench.tenant.rows);
    assert!(!bench.changed.contains(&key("x")), "what was shown is what came: nothing flickers");
}

#[test]
fn an_entry_of_our_own_confirms_before_its_answer_comes() {
    let mut bench = Bench::live();
    let id = bench.submit(draft("add", "x"));
    let request = bench.submitted().remove(0);
    bench.tenant.answer(&Request::Submit(request), &mut bench.rng).unwrap();
    bench.serve(is_read);
    assert_eq!(bench.outcomes, [Outcome::Confirmed { id, entry: Some(bench.tenant.head()) }]);
    // The answer comes late, and changes nothing.
    bench.serve(is_submit);
    assert_eq!((bench.outcomes.len(), bench.replica.unconfirmed()), (1, 0));
    assert_eq!(bench.tenant.executed["add-x"], 1);
}

/// I-3: after a crash the same request is sent, with the same id and body, and is applied once.
#[test]
fn a_crash_sends_the_same_request_again() {
    let mut bench = Bench::live();
    bench.submit(draft("add", "x"));
    let first = bench.submitted();
    bench.tenant.answer(&Request::Submit(first[0].clone()), &mut bench.rng).unwrap();
    bench.crash();
    assert_eq!(bench.submitted(), first);
    assert!(bench.replica.get(&key("x")).is_some(), "it is shown after the crash, too");
    bench.serve(is_submit);
    bench.catch_up();
    assert_eq!((bench.replica.unconfirmed(), bench.tenant.executed["add-x"]), (0, 1));
}

#[test]
fn answers_that_come_twice_or_late_change_nothing() {
    let mut bench = Bench::live();
    let poll = bench.calls[0].clone();
    foreign(&mut bench, "x");
    let page = bench.tenant.answer(&poll.request, &mut bench.rng).unwrap();
    bench.calls.clear();
    bench.step(Event::Answered(poll.id, Ok(page.clone())));
    let (cursor, calls) = (bench.replica.cursor(), bench.calls.clone());
    bench.step(Event::Answered(poll.id, Ok(page)));
    bench.step(Event::Answered(poll.id, Err(Failure::Refused(Refusal::new(Code::WrongPartition, "late")))));
    assert_eq!((bench.replica.cursor(), bench.calls.clone()), (cursor, calls));
    assert!(!bench.wiped);
}

#[test]
fn a_write_conflict_is_tried_again_under_another_id() {
    let mut bench = Bench::live();
    bench.submit(draft("add", "x"));
    let first = bench.submitted();
    foreign(&mut bench, "x");
    bench.serve(is_submit);
    let second = bench.submitted();
    assert_ne!(first[0].request_id, second[0].request_id);
    assert_eq!(second[0].cursor, bench.tenant.head());
    bench.serve(is_submit);
    bench.catch_up();
    assert_eq!((bench.replica.unconfirmed(), bench.reasons().len()), (0, 0));
    assert_eq!(bench.tenant.executed["add-x"], 2, "the foreign one and ours");
}

#[test]
fn a_command_that_meets_conflicts_for_ever_is_given_up() {
    let mut bench = Bench::live();
    let id = bench.submit(draft("add", "x"));
    for _ in 0..isles_lofi::command::MAX_ATTEMPTS {
        foreign(&mut bench, "x");
        bench.serve(is_submit);
    }
    assert_eq!(bench.replica.state_of(id), CommandState::GivenUp);
    assert!(matches!(bench.reasons()[..], [Reason::Conflict(Conflict { code: ConflictCode::WriteConflict, .. })]));
    assert!(bench.submitted().is_empty());
}

#[test]
fn a_read_conflict_is_told_with_its_reason_and_kept_until_acknowledged() {
    let mut bench = Bench::live();
    let id = bench.submit(reading("x", "y"));
    foreign(&mut bench, "y");
    bench.serve(is_submit);
    let Reason::Conflict(conflict) = bench.reasons()[0].clone() else { panic!("{:?}", bench.reasons()) };
    assert_eq!((conflict.code, conflict.key), (ConflictCode::ReadConflict, Some(key("y"))));
    assert!(bench.replica.get(&key("x")).is_none(), "it is not shown any more");
    bench.crash();
    assert_eq!(bench.replica.state_of(id), CommandState::GivenUp);
    let at = bench.moment();
    let effects = bench.replica.acknowledge(at, id);
    bench.perform(effects);
    bench.crash();
    assert_eq!(bench.replica.state_of(id), CommandState::Gone);
    assert!(!bench.tenant.executed.contains_key("add-x"));
}

#[test]
fn a_command_made_offline_is_given_up_when_what_it_read_has_changed() {
    let mut bench = Bench::live();
    bench.step(Event::Offline);
    bench.submit(reading("x", "y"));
    let mut patient = reading("z", "y");
    patient.on_conflict = OnConflict::Retry;
    bench.submit(patient);
    bench.submit(draft("add", "w"));
    foreign(&mut bench, "y");
    bench.step(Event::Online);
    bench.catch_up();
    assert!(matches!(bench.reasons()[..], [Reason::Stale { code: ConflictCode::ReadConflict, .. }]));
    bench.serve(is_submit);
    bench.catch_up();
    assert!(bench.tenant.executed.contains_key("add-z") && bench.tenant.executed.contains_key("add-w"));
    assert!(!bench.tenant.executed.contains_key("add-x"));
}

#[test]
fn one_bad_command_does_not_hold_up_the_others() {
    let mut bench = Bench::live();
    bench.step(Event::Offline);
    for id in ["x", "bad", "y"] {
        bench.submit(draft("add", id));
    }
    bench.step(Event::Online);
    bench.catch_up();
    assert_eq!(bench.submitted()[0].commands.len(), 3);
    for _ in 0..4 {
        bench.answer(is_submit, |bench, request| {
            let Request::Submit(submit) = request else { unreachable!() };
            match submit.commands.iter().any(|command| command.input["id"] == "bad") {
                true => Err(Failure::Refused(Refusal::new(Code::InvalidRequest, "bad"))),
                false => served(bench, request),
            }
        });
    }
    bench.catch_up();
    assert!(matches!(bench.reasons()[..], [Reason::Refused(_)]));
    assert_eq!((bench.replica.unconfirmed(), bench.tenant.executed.len()), (0, 2));
}

/// Another partition: nothing of the old one is shown, and nothing that was meant for it is sent.
#[test]
fn a_changed_partition_wipes_and_gives_commands_up() {
    let mut bench = Bench::live();
    bench.submit(draft("add", "x"));
    bench.submit(draft("add", "y"));
    assert!(!bench.replica.confirmed().is_empty());
    bench.tenant = Tenant::new("b");
    bench.serve(is_submit);
    assert!(bench.wiped && bench.replica.list(&Query::table("s", "t")).is_empty());
    assert_eq!((bench.replica.partition(), bench.replica.cursor()), (None, None));
    assert!(bench.kept.rows.is_empty(), "the store has nothing of it either");
    let may: Vec<bool> = bench.reasons().iter().map(|reason| reason.may_have_happened()).collect();
    assert_eq!(may, [true, false], "the first was on its way");
    bench.catch_up();
    assert_eq!(bench.replica.partition(), Some(&bench.tenant.partition));
    assert!(bench.submitted().is_empty() && bench.tenant.executed.is_empty());
}

#[test]
fn below_the_floor_old_rows_are_shown_until_the_new_ones_are_whole() {
    let mut bench = Bench::live();
    bench.step(Event::Offline);
    let old = bench.replica.confirmed().clone();
    for at in 0..9 {
        foreign(&mut bench, &format!("y{at}"));
    }
    bench.tenant.floor = bench.tenant.head().version().get();
    bench.submit(draft("add", "x"));
    bench.step(Event::Online);
    bench.serve(is_read);
    assert_eq!(bench.replica.health().phase, Phase::Resyncing);
    bench.now_ms += 1_000;
    bench.step(Event::Tick);
    let mut pages = 0;
    while bench.replica.health().phase == Phase::Resyncing {
        assert_eq!(bench.replica.confirmed(), &old);
        assert!(bench.replica.get(&key("x")).is_some());
        // A crash in the middle goes on with the next page.
        if pages == 1 {
            bench.crash();
        }
        bench.serve(is_read);
        pages += 1;
        foreign(&mut bench, "y0");
    }
    assert!(pages >= 4, "{pages} pages and the log up to the last");
    bench.catch_up();
    bench.serve(is_submit);
    bench.catch_up();
    assert_eq!(bench.replica.confirmed(), &bench.tenant.rows);
    assert_eq!((bench.replica.unconfirmed(), bench.tenant.executed["add-x"]), (0, 1));
    assert_eq!(bench.kept.rows.len(), 1, "one generation is kept");
}

/// I-34, planted bug 13: the target of a move begins its versions anew, and its numbers fit: nobody but the ids can tell.
#[test]
fn a_log_that_begins_anew_is_noticed_even_when_its_numbers_fit() {
    for how in [Moved::RestartsAndRefuses, Moved::RestartsBlindly] {
        for behind_by in [-1_i64, 0, 1, 3] {
            let mut bench = Bench::live();
            foreign(&mut bench, "x");
            foreign(&mut bench, "y");
            bench.serve(is_read);
            let cursor = bench.replica.cursor().unwrap();
            bench.tenant.move_to_another_shard(how);
            let target = i64::try_from(cursor.version().get()).unwrap() + behind_by;
            for at in 0..target {
                foreign(&mut bench, &format!("z{at}"));
            }
            assert_eq!(i64::try_from(bench.tenant.head().version().get()).unwrap(), target);
            bench.serve(is_read);
            assert_eq!(bench.replica.health().phase, Phase::Resyncing, "{how:?}, {behind_by}");
            assert_eq!(bench.replica.cursor(), Some(cursor), "nothing of the other log is applied");
            bench.catch_up();
            assert_eq!(bench.replica.confirmed(), &bench.tenant.rows, "{how:?}, {behind_by}");
        }
    }
}

#[test]
fn rows_read_at_the_beginning_of_a_log_are_read_again_with_its_first_entry() {
    let mut bench = Bench::new();
    bench.tenant = Tenant::new("a");
    bench.calls.clear();
    bench.crash();
    bench.catch_up();
    assert_eq!(bench.replica.cursor(), Some(Cursor::START));
    // The log gets entries and begins anew before the replica looks again.
    foreign(&mut bench, "x");
    bench.tenant.move_to_another_shard(Moved::RestartsBlindly);
    foreign(&mut bench, "y");
    bench.serve(is_read);
    bench.catch_up();
    assert_eq!(bench.replica.confirmed(), &bench.tenant.rows);
    assert_eq!(bench.replica.confirmed().len(), 2);
}

#[test]
fn what_cannot_be_asked_for_any_more_is_told_as_uncertain() {
    let mut bench = Bench::live();
    let id = bench.submit(draft("add", "x"));
    bench.answer(is_submit, |bench, request| {
        served(bench, request).unwrap();
        Err(Failure::Unreachable("lost".into()))
    });
    for _ in 0..9 {
        foreign(&mut bench, "y");
    }
    bench.calls.clear();
    bench.tenant.floor = bench.tenant.head().version().get();
    bench.tenant.raise_floor(&mut bench.rng);
    bench.crash();
    bench.answer(is_submit, refused(Code::ResyncRequired));
    assert_eq!(bench.replica.state_of(id), CommandState::GivenUp);
    assert!(bench.reasons()[0].may_have_happened());
    bench.catch_up();
    assert!(bench.submitted().is_empty(), "it is not sent again");
    assert_eq!(bench.tenant.executed["add-x"], 1);
}

#[test]
fn pauses_double_up_to_a_bound_and_end_when_the_network_is_back() {
    let mut bench = Bench::live();
    let mut pauses = Vec::new();
    for _ in 0..12 {
        bench.answer(is_read, |_, _| Err(Failure::Unreachable("no route".into())));
        assert!(bench.calls.is_empty());
        let wake = bench.wake.unwrap();
        pauses.push(wake - bench.now_ms);
        bench.now_ms = wake - 1;
        bench.step(Event::Tick);
        assert!(bench.calls.is_empty(), "not before its time");
        bench.now_ms = wake;
        bench.step(Event::Tick);
    }
    assert!((125..=250).contains(&pauses[0]) && (1_000..=2_000).contains(&pauses[3]), "{pauses:?}");
    assert!(pauses[8..].iter().all(|pause| (30_000..=60_000).contains(pause)), "{pauses:?}");
    bench.answer(is_read, |_, _| Err(Failure::Unreachable("no route".into())));
    bench.step(Event::Offline);
    assert_eq!(bench.wake, None);
    bench.step(Event::Online);
    assert_eq!(bench.calls.len(), 1, "at once");
    bench.answer(is_read, |_, _| {
        Err(Failure::Refused(Refusal::new(Code::TooManyRequests, "slow down").with_retry_after_ms(90_000)))
    });
    assert_eq!(bench.wake, Some(bench.now_ms + 90_000));
}

#[test]
fn a_server_without_snapshots_is_read_from_the_beginning_of_its_log() {
    let mut bench = Bench::new();
    bench.answer(is_snapshot, refused(Code::SnapshotUnavailable));
    bench.catch_up();
    assert_eq!(bench.replica.confirmed(), &bench.tenant.rows);
    // Below the floor there is no way on; the rows stay.
    bench.tenant.floor = 9;
    bench.serve(is_read);
    bench.now_ms += 1_000;
    bench.step(Event::Tick);
    bench.answer(is_snapshot, refused(Code::SnapshotUnavailable));
    assert!(matches!(bench.replica.health().trouble, Some(Trouble::NoSnapshot(_))));
    assert_eq!(bench.replica.confirmed(), &bench.tenant.rows);
}

#[test]
fn a_replica_has_limits() {
    let mut bench = Bench::with(Options { max_rows: 1, ..Options::default() });
    foreign(&mut bench, "x");
    foreign(&mut bench, "y");
    bench.serve(is_read);
    assert_eq!(bench.replica.health().trouble, Some(Trouble::TooManyRows { limit: 1 }));
    assert!(bench.kept.rows.is_empty() && bench.replica.cursor().is_none());

    let at = bench.moment();
    let mut wide = draft("add", "x");
    wide.edits = vec![wide.edits[0].clone(); MAX_EDITS + 1];
    assert!(matches!(bench.replica.submit(at, wide), Err(RefusedDraft::TooManyEdits(_))));
    let mut large = draft("add", "x");
    large.command.input = json!("x".repeat(MAX_SUBMIT_BYTES));
    assert!(matches!(bench.replica.submit(at, large), Err(RefusedDraft::TooLarge(_))));
    let nameless = draft("", "x");
    assert!(matches!(bench.replica.submit(at, nameless), Err(RefusedDraft::Invalid(_))));
    assert_eq!(bench.replica.unconfirmed(), 0);
}

#[test]
fn the_queue_has_an_end() {
    let mut bench = Bench::live();
    bench.step(Event::Offline);
    let mut plain = draft("nothing", "x");
    plain.edits.clear();
    for _ in 0..MAX_QUEUED {
        bench.submit(plain.clone());
    }
    let at = bench.moment();
    assert!(matches!(bench.replica.submit(at, plain), Err(RefusedDraft::QueueFull)));
    assert_eq!(bench.replica.unconfirmed(), MAX_QUEUED);
    bench.step(Event::Online);
    assert!(bench.submitted().is_empty(), "what was missed is read first");
    bench.catch_up();
    assert_eq!(bench.submitted()[0].commands.len(), MAX_COMMANDS);
}

#[test]
fn records_of_another_format_are_refused_and_left_alone() {
    let mut kept = Kept::default();
    kept.apply(&[Write::Put("head".into(), json!({"format": 99}))]);
    let error = Replica::open(kept, Options::default()).err().unwrap().to_string();
    assert!(error.contains("format 99"), "{error}");
}

#[test]
fn wiping_forgets_everything_and_begins_anew() {
    let mut bench = Bench::live();
    bench.submit(draft("add", "x"));
    let at = bench.moment();
    let effects = bench.replica.wipe(at);
    bench.calls.clear();
    bench.perform(effects);
    assert!(bench.wiped && bench.replica.unconfirmed() == 0 && bench.replica.cursor().is_none());
    assert!(bench.kept.rows.is_empty() && bench.kept.records.keys().all(|name| name == "head"));
    bench.catch_up();
    assert_eq!(bench.replica.confirmed(), &bench.tenant.rows);
}

#[test]
fn lists_are_ordered_and_bounded() {
    let mut bench = Bench::new();
    bench.tenant = Tenant::new("a");
    for (id, n) in [("a", json!(2)), ("b", json!(null)), ("c", json!(10)), ("d", json!(1.5)), ("e", json!(2))] {
        let edit = Edit { op: Op::Create, key: key(id), values: values(json!({"n": n})) };
        bench.submit(Draft { edits: vec![edit], ..draft("add", id) });
    }
    let ids = |query: &Query| {
        let found = bench.replica.list(query);
        found.into_iter().map(|(key, _)| key.external_id.clone()).collect::<Vec<_>>().join("")
    };
    let all = Query::table("s", "t");
    assert_eq!(ids(&all), "abcde");
    assert_eq!(ids(&all.clone().order_by("n", Direction::Ascending)), "daecb");
    assert_eq!(ids(&all.clone().order_by("n", Direction::Descending)), "bcaed");
    let page = Query { offset: 1, ..all.clone().order_by("n", Direction::Ascending).limit(2) };
    assert_eq!(ids(&page), "ae");
    assert_eq!(ids(&all.matching(Predicate::Gte("n".into(), json!(2)))), "ace");
    assert_eq!(ids(&Query::table("s", "other")), "");
}
