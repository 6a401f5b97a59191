//! The list-append checker: each anomaly by its name, and agreement with brute force (I-3, I-19).
//!
//! A history is written as text, one transaction a line: when it was invoked and completed, how it ended, what it did.
//! `a1=2` appends 2 to key 1, `r1=2,3` reads [2, 3] from key 1, `r1=?` never got its answer.
#![allow(clippy::unwrap_used)]

use isles_sim::check::{Element, Failure, History, Key, Kind, Level, Op, Outcome, Txn, check};
use isles_sim::rng::Rng;
use isles_sim::trace::Sometimes;
use std::collections::{BTreeMap, BTreeSet};

fn parse(text: &str) -> History {
    let mut history = History::default();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        match line.strip_prefix("final") {
            Some(lists) => history.final_state = Some(lists.split_whitespace().map(parse_list).collect()),
            None => history.txns.push(parse_txn(history.txns.len() as u64, line)),
        }
    }
    history
}

fn parse_txn(process: u64, line: &str) -> Txn {
    let mut words = line.split_whitespace();
    let (invoked_at, completed_at) = words.next().unwrap().split_once("..").unwrap();
    let outcome = match words.next().unwrap() {
        "ok" => Outcome::Committed,
        "fail" => Outcome::Aborted,
        "info" => Outcome::Indeterminate,
        other => panic!("unknown outcome {other}"),
    };
    let ops = words.map(parse_op).collect();
    let invoked_at = invoked_at.parse().unwrap();
    Txn { process, invoked_at, completed_at: completed_at.parse().ok(), ops, outcome }
}

fn parse_op(word: &str) -> Op {
    let (name, list) = word.split_at(1);
    let (key, elements) = parse_list(list.trim_end_matches('?'));
    match name {
        "a" => Op::Append { key, element: elements[0] },
        "r" => Op::Read { key, elements: (!list.ends_with('?')).then_some(elements) },
        other => panic!("unknown operation {other}"),
    }
}

fn parse_list(word: &str) -> (Key, Vec<Element>) {
    let (key, elements) = word.split_once('=').unwrap();
    let elements = elements.split(',').filter(|element| !element.is_empty());
    (Key(key.parse().unwrap()), elements.map(|element| Element(element.parse().unwrap())).collect())
}

/// The first history must be reported by exactly this name, the second one, which is nearly the same, must pass.
#[track_caller]
fn wrong(kind: Kind, bad: &str, good: &str) {
    let failure = check(&parse(bad), Level::StrictSerializable).expect_err("the bad history passes");
    assert_eq!(failure.kind(), Some(kind), "{failure}");
    assert!(failure.to_string().starts_with(&kind.to_string()));
    passes(good);
    // Without real time the same must be found, except what real time alone forbids.
    let without_time = check(&parse(bad), Level::Serializable).err().and_then(|failure| failure.kind());
    assert_eq!(without_time, Some(kind).filter(|&kind| kind != Kind::RealTime));
}

#[track_caller]
fn passes(good: &str) {
    for level in [Level::StrictSerializable, Level::Serializable] {
        let checked = check(&parse(good), level).unwrap_or_else(|failure| panic!("{level:?}: {failure}"));
        assert!(checked.txns > 0 && checked.reads > 0);
    }
}

#[track_caller]
fn is_malformed(history: &str) {
    let failure = check(&parse(history), Level::Serializable).expect_err("the history passes");
    assert!(matches!(failure, Failure::Malformed(_)), "{failure}");
}

#[test]
fn duplicate_element_is_found() {
    wrong(Kind::DuplicateElement, "0..1 ok a1=1 \n 2..3 ok r1=1,1", "0..1 ok a1=1 \n 2..3 ok r1=1");
    wrong(Kind::DuplicateElement, "0..1 ok a1=1 r1=1,1", "0..1 ok a1=1 r1=1");
    wrong(Kind::DuplicateElement, "0..1 ok a1=1 \n final 1=1,1", "0..1 ok a1=1 \n final 1=1");
}

#[test]
fn phantom_element_is_found() {
    wrong(Kind::PhantomElement, "0..1 ok a1=1 \n 2..3 ok r1=1,9", "0..1 ok a1=1 \n 2..3 ok r1=1");
    wrong(Kind::PhantomElement, "0..1 ok a2=1 \n 2..3 ok r1=1", "0..1 ok a2=1 \n 2..3 ok r2=1");
}

#[test]
fn aborted_read_is_found() {
    wrong(Kind::AbortedRead, "0..1 fail a1=1 \n 2..3 ok r1=1", "0..1 fail a1=1 \n 2..3 ok r1=");
    // What an aborted transaction read is nobody's concern.
    passes("0..1 fail a1=1 \n 2..3 fail r1=1 \n 4..5 ok r1=");
}

#[test]
fn internal_inconsistency_is_found() {
    wrong(Kind::Internal, "0..1 ok a1=1 r1=", "0..1 ok a1=1 r1=1");
    wrong(Kind::Internal, "0..1 ok r1=1 a1=1", "0..1 ok r1= a1=1");
    wrong(Kind::Internal, "0..1 ok r1= a1=1 r1=", "0..1 ok r1= a1=1 r1=1");
    // A read that cannot be repeated: another transaction came between.
    wrong(Kind::Internal, "0..9 ok a1=1 \n 0..9 ok r1= r1=1", "0..9 ok a1=1 \n 0..9 ok r1=1 r1=1");
    wrong(Kind::Internal, "0..9 ok a1=1 a1=2 r1=2,1", "0..9 ok a1=1 a1=2 r1=1,2");
}

#[test]
fn lost_append_is_found() {
    wrong(Kind::LostAppend, "0..1 ok a1=1 \n 2..3 ok r1=1 \n final", "0..1 ok a1=1 \n 2..3 ok r1=1 \n final 1=1");
    wrong(Kind::LostAppend, "0..9 ok a1=1 \n 0..9 ok a1=2 \n final 1=2", "0..9 ok a1=1 \n 0..9 ok a1=2 \n final 1=2,1");
    // Seen in part, an unknown outcome is a commit, and all of it must be there.
    wrong(Kind::LostAppend, "0..1 info a1=1 a2=1 \n final 1=1 2=", "0..1 info a1=1 a2=1 \n final 1=1 2=1");
    passes("0..1 info a1=1 a2=1 \n final 1= 2=");
}

#[test]
fn incompatible_order_is_found() {
    let appends = "0..9 ok a1=1 \n 0..9 ok a1=2 \n";
    let history = |reads| format!("{appends} {reads}");
    wrong(
        Kind::IncompatibleOrder,
        &history("0..9 ok r1=1,2 \n 0..9 ok r1=2,1"),
        &history("0..9 ok r1=1,2 \n 0..9 ok r1=1,2"),
    );
    wrong(Kind::IncompatibleOrder, &history("0..9 ok r1=2 \n 0..9 ok r1=1,2"), &history("0..9 ok r1=1 \n final 1=1,2"));
}

#[test]
fn appends_of_one_transaction_out_of_their_order_are_found() {
    wrong(Kind::IncompatibleOrder, "0..9 ok a1=1 a1=2 \n 0..9 ok r1=2,1", "0..9 ok a1=1 a1=2 \n 0..9 ok r1=1,2");
    wrong(Kind::IncompatibleOrder, "0..9 ok a1=1 a1=2 \n 0..9 ok r1=2", "0..9 ok a1=1 a1=2 \n 0..9 ok r1=");
}

#[test]
fn intermediate_read_is_found() {
    wrong(Kind::IntermediateRead, "0..9 ok a1=1 a1=2 \n 0..9 ok r1=1", "0..9 ok a1=1 a1=2 \n 0..9 ok r1=1,2");
    // One's own intermediate state may be read, and so may the state between two transactions.
    passes("0..9 ok a1=1 r1=1 a1=2 \n 0..9 ok r1=1,2");
    passes("0..9 ok a1=1 \n 0..9 ok a1=2 \n 0..9 ok r1=1");
    wrong(
        Kind::IntermediateRead,
        "0..9 ok a1=1 a1=2 \n 0..9 ok r1=1 a1=3 r1=1,3 \n 0..9 ok r1=1,3",
        "0..9 ok a1=1 a1=2 \n 0..9 ok r1=1,2 a1=3 r1=1,2,3",
    );
}

#[test]
fn write_cycle_is_found() {
    let appends = "0..9 ok a1=1 a2=1 \n 0..9 ok a1=2 a2=2 \n";
    let history = |reads| format!("{appends} {reads}");
    wrong(Kind::WriteCycle, &history("final 1=1,2 2=2,1"), &history("final 1=1,2 2=1,2"));
    // One transaction's appends with another's between them.
    wrong(
        Kind::WriteCycle,
        "0..9 ok a1=1 a1=3 \n 0..9 ok a1=2 \n final 1=1,2,3",
        "0..9 ok a1=1 a1=3 \n 0..9 ok a1=2 \n final 1=1,3,2",
    );
}

#[test]
fn circular_information_flow_is_found() {
    wrong(
        Kind::CircularInformationFlow,
        "0..9 ok a1=1 r2=1 \n 0..9 ok a2=1 r1=1",
        "0..9 ok a1=1 r2=1 \n 0..9 ok a2=1 r1=",
    );
}

#[test]
fn anti_dependency_cycle_with_one_edge_is_found() {
    // Half of a transaction is seen.
    wrong(Kind::GSingle, "0..9 ok a1=1 a2=1 \n 0..9 ok r1=1 r2=", "0..9 ok a1=1 a2=1 \n 0..9 ok r1=1 r2=1");
    // A lost update: both read the same list, and both appended.
    wrong(
        Kind::GSingle,
        "0..9 ok r1= a1=1 \n 0..9 ok r1= a1=2 \n final 1=1,2",
        "0..9 ok r1= a1=1 \n 0..9 ok r1=1 a1=2 \n final 1=1,2",
    );
    // The append that was missed is in nobody's read: T2 saw T1's other append.
    wrong(
        Kind::GSingle,
        "0..9 ok a1=1 \n 0..9 ok a1=2 a2=1 \n 0..9 ok r1=1 r2=1",
        "0..9 ok a1=1 \n 0..9 ok a1=2 a2=1 \n 0..9 ok r1=1 r2=",
    );
}

#[test]
fn anti_dependency_cycle_is_found() {
    // Write skew.
    wrong(Kind::G2Item, "0..9 ok r1= a2=1 \n 0..9 ok r2= a1=1", "0..9 ok r1= a2=1 \n 0..9 ok r2=1 a1=1");
    // A lost update whose appends nobody saw: whatever their order, one of the two reads is wrong.
    wrong(Kind::G2Item, "0..9 ok r1= a1=1 \n 0..9 ok r1= a1=2", "0..9 ok r1= a1=1 \n 0..9 ok a1=2");
    // A long fork: two readers see two appends in opposite orders.
    wrong(
        Kind::G2Item,
        "0..9 ok a1=1 \n 0..9 ok a2=1 \n 0..9 ok r1=1 r2= \n 0..9 ok r1= r2=1",
        "0..9 ok a1=1 \n 0..9 ok a2=1 \n 0..9 ok r1=1 r2= \n 0..9 ok r1=1 r2=1",
    );
}

#[test]
fn real_time_violation_is_found() {
    // A stale read. Equal points of time say nothing.
    wrong(Kind::RealTime, "0..1 ok a1=1 \n 2..3 ok r1=", "0..2 ok a1=1 \n 2..3 ok r1=");
    // Appends in the wrong order.
    wrong(Kind::RealTime, "0..1 ok a1=1 \n 2..3 ok a1=2 \n final 1=2,1", "0..1 ok a1=1 \n 2..3 ok a1=2 \n final 1=1,2");
    // A read of the future.
    wrong(Kind::RealTime, "0..1 ok r1=1 \n 2..3 ok a1=1", "0..3 ok r1=1 \n 2..3 ok a1=1");
    // Real time across a chain of transactions that have nothing to do with it.
    wrong(
        Kind::RealTime,
        "0..1 ok a1=1 \n 2..3 ok r2= \n 4..5 ok r2= \n 6..7 ok r1=",
        "0..6 ok a1=1 \n 2..3 ok r2= \n 4..5 ok r2= \n 6..7 ok r1=",
    );
}

#[test]
fn an_unknown_outcome_happens_at_any_later_time_or_never() {
    passes("0..1 info a1=1 \n 2..3 ok r1= \n 4..5 ok r1=1");
    passes("0.. info a1=1 \n 2..3 ok r1= \n 4..5 ok r1=");
    passes("0.. info r1=? a1=1 \n 2..3 ok r1=1");
    // But not before it began, and having happened it stays.
    wrong(Kind::RealTime, "0..1 ok r1=1 \n 2.. info a1=1", "0..1 ok r1= \n 2.. info a1=1");
    wrong(
        Kind::RealTime,
        "0.. info a1=1 \n 2..3 ok r1=1 \n 4..5 ok r1=",
        "0.. info a1=1 \n 2..4 ok r1=1 \n 4..5 ok r1=",
    );
    // Its own reads count from the moment that somebody sees it, also through another of its kind.
    wrong(
        Kind::AbortedRead,
        "0..1 fail a1=1 \n 2.. info r1=1 a2=1 \n 3.. info r2=1 a3=1 \n 4..5 ok r3=1",
        "0..1 fail a1=1 \n 2.. info r1=1 a2=1 \n 3.. info r2=1 a3=1 \n 4..5 ok r3=",
    );
}

#[test]
fn a_history_that_cannot_be_judged_is_malformed() {
    is_malformed("0..1 ok a1=1 \n 2..3 ok a1=1");
    is_malformed("0..1 fail a1=1 \n 2..3 ok a1=1");
    is_malformed("0.. ok a1=1");
    is_malformed("5..4 ok a1=1");
    passes("0..1 ok a1=1 \n 2..3 ok a2=1 \n 4..5 ok r1=1");
}

#[test]
fn a_report_explains_each_edge_of_the_cycle() {
    let history = parse("0..1 ok a1=1 a2=7 \n 2..3 ok r1=1 a3=1 \n 4..5 ok r3=1 r2= \n final 1=1 2=7 3=1");
    let failure = check(&history, Level::Serializable).unwrap_err();
    let expected = "\
anti-dependency cycle with one rw edge (G-single)
  T2 read key 2 up to nothing, before T0 appended 7 (rw)
  T0 appended 1 to key 1, and T1 read up to it (wr)
  T1 appended 1 to key 3, and T2 read up to it (wr)
where
  T0 of process 0, 0..1, Committed: append 1 to key 1, append 7 to key 2
  T1 of process 1, 2..3, Committed: read key 1 as [1], append 1 to key 3
  T2 of process 2, 4..5, Committed: read key 3 as [1], read key 2 as []";
    assert_eq!(failure.to_string(), expected);
}

#[test]
fn the_shortest_of_several_cycles_is_reported() {
    // T0..T3 form a cycle of four through keys 1 to 4; T4 and T5 one of two.
    let history = parse(
        "0..9 ok a1=1 r4=1 \n 0..9 ok r1=1 a2=1 \n 0..9 ok r2=1 a3=1 \n 0..9 ok r3=1 a4=1
         0..9 ok a5=1 r6=1 \n 0..9 ok a6=1 r5=1",
    );
    let Failure::Anomaly(anomaly) = check(&history, Level::Serializable).unwrap_err() else { panic!() };
    assert_eq!((anomaly.kind, anomaly.txns), (Kind::CircularInformationFlow, vec![4, 5]));
}

/// How large the histories of a property are.
struct Size {
    txns: u64,
    keys: u64,
    /// How far the interval of a transaction reaches around the moment at which it happens.
    reach: u64,
}

/// Runs random transactions one after another on a model. Their intervals overlap, some abort, some never answer.
fn serial_history(rng: &mut Rng, size: &Size) -> History {
    let mut state: BTreeMap<Key, Vec<Element>> = BTreeMap::new();
    let mut txns = Vec::new();
    for number in 0..size.txns {
        let outcome = *rng.pick(&[
            Outcome::Committed,
            Outcome::Committed,
            Outcome::Committed,
            Outcome::Aborted,
            Outcome::Indeterminate,
        ]);
        let mut after = state.clone();
        let mut ops: Vec<Op> =
            (0..rng.range(1..5)).map(|at| random_op(rng, size, number * 10 + at, &mut after)).collect();
        if outcome == Outcome::Committed || (outcome == Outcome::Indeterminate && rng.chance(1, 2)) {
            state = after;
        }
        if outcome == Outcome::Indeterminate && rng.chance(1, 2) {
            ops.iter_mut().for_each(forget_answer);
        }
        let moment = 1000 + number * 10;
        let completed_at = moment + rng.below(size.reach);
        let completed_at = (outcome == Outcome::Committed || rng.chance(1, 2)).then_some(completed_at);
        txns.push(Txn {
            process: rng.below(8),
            invoked_at: moment - rng.below(size.reach),
            completed_at,
            ops,
            outcome,
        });
    }
    History { txns, final_state: Some(state) }
}

fn random_op(rng: &mut Rng, size: &Size, element: u64, state: &mut BTreeMap<Key, Vec<Element>>) -> Op {
    let (key, element) = (Key(rng.below(size.keys)), Element(element));
    let list = state.entry(key).or_default();
    if rng.chance(1, 2) {
        return Op::Read { key, elements: Some(list.clone()) };
    }
    list.push(element);
    Op::Append { key, element }
}

fn forget_answer(op: &mut Op) {
    if let Op::Read { elements, .. } = op {
        *elements = None;
    }
}

#[test]
fn serial_executions_with_overlapping_intervals_always_pass() {
    let mut edges = 0;
    for seed in 0..2000 {
        let mut rng = Rng::new(seed);
        let size = Size { txns: rng.range(1..60), keys: rng.range(1..8), reach: rng.range(1..200) };
        let mut history = serial_history(&mut rng, &size);
        if rng.chance(1, 2) {
            history.final_state = None;
        }
        rng.shuffle(&mut history.txns);
        for level in [Level::Serializable, Level::StrictSerializable] {
            let checked = check(&history, level).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
            edges += checked.edges;
        }
    }
    assert!(edges > 200_000, "{edges} edges");
}

/// A read that counts, to be corrupted.
fn committed_read<'h>(
    rng: &mut Rng,
    history: &'h mut History,
    fits: fn(&[Element]) -> bool,
) -> Option<&'h mut Vec<Element>> {
    let committed = history.txns.iter_mut().filter(|txn| txn.outcome == Outcome::Committed);
    let mut reads: Vec<&mut Vec<Element>> = committed.flat_map(|txn| &mut txn.ops).filter_map(answer).collect();
    reads.retain(|elements| fits(elements));
    let at = (!reads.is_empty()).then(|| rng.below(reads.len() as u64) as usize)?;
    Some(reads.swap_remove(at))
}

fn answer(op: &mut Op) -> Option<&mut Vec<Element>> {
    match op {
        Op::Read { elements, .. } => elements.as_mut(),
        Op::Append { .. } => None,
    }
}

/// Corrupts one read of each random history and demands that it is caught, in at least 500 histories.
fn always_caught(fits: fn(&[Element]) -> bool, corrupt: fn(&mut Rng, &mut Vec<Element>), kinds: &[Kind]) {
    let mut caught = 0;
    for seed in 0..1000 {
        let mut rng = Rng::new(seed);
        let mut history = serial_history(&mut rng, &Size { txns: 30, keys: 3, reach: 50 });
        let Some(read) = committed_read(&mut rng, &mut history, fits) else { continue };
        corrupt(&mut rng, read);
        let failure = check(&history, Level::Serializable).expect_err("the corruption is not caught");
        assert!(failure.kind().is_some_and(|kind| kinds.contains(&kind)), "seed {seed}: {failure}");
        caught += 1;
    }
    assert!(caught > 500, "{caught}");
}

#[test]
fn an_element_missing_in_the_middle_of_a_read_is_caught() {
    let drop_one = |rng: &mut Rng, read: &mut Vec<Element>| {
        read.remove(rng.below(read.len() as u64 - 1) as usize);
    };
    always_caught(|read| read.len() > 1, drop_one, &[Kind::IncompatibleOrder, Kind::Internal]);
}

#[test]
fn two_elements_in_the_wrong_order_are_caught() {
    let swap = |rng: &mut Rng, read: &mut Vec<Element>| {
        let at = rng.below(read.len() as u64 - 1) as usize;
        read.swap(at, at + 1);
    };
    always_caught(|read| read.len() > 1, swap, &[Kind::IncompatibleOrder, Kind::Internal]);
}

#[test]
fn an_element_read_twice_is_caught() {
    let double = |rng: &mut Rng, read: &mut Vec<Element>| {
        let element = *rng.pick(read);
        read.insert(rng.below(read.len() as u64 + 1) as usize, element);
    };
    always_caught(|read| !read.is_empty(), double, &[Kind::DuplicateElement]);
}

/// Cuts a read before an element whose transaction had completed when the reader was invoked.
#[test]
fn a_stale_read_is_caught() {
    let mut caught = BTreeMap::new();
    for seed in 0..1000 {
        let mut rng = Rng::new(seed);
        let mut history = serial_history(&mut rng, &Size { txns: 30, keys: 3, reach: 50 });
        if make_stale(&mut rng, &mut history) {
            let failure = check(&history, Level::StrictSerializable).expect_err("the stale read is not caught");
            *caught.entry(failure.kind().unwrap()).or_insert(0) += 1;
        }
    }
    assert!(caught.values().sum::<u32>() > 500 && caught[&Kind::RealTime] > 50, "{caught:?}");
}

fn make_stale(rng: &mut Rng, history: &mut History) -> bool {
    let all = history.txns.clone();
    let appended_by = |key, element| all.iter().find(|txn| txn.ops.contains(&Op::Append { key, element }));
    let mut stale = Vec::new();
    for (txn, body) in all.iter().enumerate().filter(|(_, txn)| txn.outcome == Outcome::Committed) {
        for (at, op) in body.ops.iter().enumerate() {
            let Op::Read { key, elements: Some(elements) } = op else { continue };
            let is_old = |txn: &Txn| txn.outcome == Outcome::Committed && txn.completed_at < Some(body.invoked_at);
            let cuts = (0..elements.len()).filter(|&cut| appended_by(*key, elements[cut]).is_some_and(is_old));
            stale.extend(cuts.map(|cut| (txn, at, cut)));
        }
    }
    if stale.is_empty() {
        return false;
    }
    let &(txn, at, cut) = rng.pick(&stale);
    answer(&mut history.txns[txn].ops[at]).unwrap().truncate(cut);
    true
}

/// Whether some serial order explains a small history, by trying all of them.
fn brute_force(history: &History, level: Level) -> bool {
    let unknown: Vec<usize> = with_outcome(history, Outcome::Indeterminate);
    (0..1_u32 << unknown.len()).any(|chosen| {
        let mut txns = with_outcome(history, Outcome::Committed);
        txns.extend(unknown.iter().enumerate().filter(|(bit, _)| chosen >> bit & 1 == 1).map(|(_, txn)| txn));
        some_order_explains(history, level, &mut BTreeMap::new(), &txns)
    })
}

fn with_outcome(history: &History, outcome: Outcome) -> Vec<usize> {
    (0..history.txns.len()).filter(|&txn| history.txns[txn].outcome == outcome).collect()
}

fn some_order_explains(
    history: &History,
    level: Level,
    state: &mut BTreeMap<Key, Vec<Element>>,
    left: &[usize],
) -> bool {
    if left.is_empty() {
        state.retain(|_, list| !list.is_empty());
        let mut last = history.final_state.clone().unwrap_or_else(|| state.clone());
        last.retain(|_, list| !list.is_empty());
        return last == *state;
    }
    left.iter().any(|&next| {
        let must_wait = |&&other: &&usize| {
            let (first, second) = (&history.txns[other], &history.txns[next]);
            first.outcome == Outcome::Committed && first.completed_at < Some(second.invoked_at)
        };
        if level == Level::StrictSerializable && left.iter().any(|other| must_wait(&other)) {
            return false;
        }
        let mut after = state.clone();
        let rest: Vec<usize> = left.iter().copied().filter(|&other| other != next).collect();
        history.txns[next].ops.iter().all(|op| explains(op, &mut after))
            && some_order_explains(history, level, &mut after, &rest)
    })
}

fn explains(op: &Op, state: &mut BTreeMap<Key, Vec<Element>>) -> bool {
    match op {
        Op::Append { key, element } => state.entry(*key).or_default().push(*element),
        Op::Read { elements: None, .. } => {}
        Op::Read { key, elements: Some(elements) } => return state.entry(*key).or_default() == elements,
    }
    true
}

/// Changes a small history in one of the ways in which databases go wrong, or in a harmless one.
fn mutate(rng: &mut Rng, history: &mut History) {
    let all = history.txns.len() as u64;
    let txn = rng.below(all) as usize;
    let invoked_at = history.txns[txn].invoked_at;
    match rng.below(8) {
        0 => history.final_state = None,
        1 => history.txns[txn].outcome = Outcome::Indeterminate,
        2 => history.txns[txn].invoked_at = invoked_at.saturating_sub(rng.below(100)),
        3 => swap_everywhere(rng, history),
        7 => history.final_state.iter_mut().flat_map(|state| state.values_mut()).for_each(|list| corrupt(rng, list)),
        4 if history.txns[txn].outcome == Outcome::Indeterminate => history.txns[txn].outcome = Outcome::Aborted,
        _ => {
            let reads: Vec<&mut Vec<Element>> = history.txns[txn].ops.iter_mut().filter_map(answer).collect();
            reads.into_iter().for_each(|read| corrupt(rng, read));
        }
    }
}

fn corrupt(rng: &mut Rng, read: &mut Vec<Element>) {
    let at = rng.below(read.len() as u64 + 1) as usize;
    match rng.below(8) {
        0 => read.insert(at, Element(rng.below(60))),
        1 if at < read.len() => drop(read.remove(at)),
        2 if at < read.len() => read.swap(0, at),
        3 | 4 => read.truncate(at),
        _ => {}
    }
}

/// Two neighbours of the final state change places in every read: the order of the list is another one.
fn swap_everywhere(rng: &mut Rng, history: &mut History) {
    let Some(state) = &mut history.final_state else { return };
    let Some(list) = state.values_mut().find(|list| list.len() > 1) else { return };
    let at = rng.below(list.len() as u64 - 1) as usize;
    let (one, other) = (list[at], list[at + 1]);
    list.swap(at, at + 1);
    for read in history.txns.iter_mut().flat_map(|txn| &mut txn.ops).filter_map(answer) {
        let has = |element| read.iter().position(|&member| member == element);
        if let (Some(one), Some(other)) = (has(one), has(other)) {
            read.swap(one, other);
        }
    }
}

/// The checker says no if and only if no serial order exists. Each name must have come up.
#[test]
fn verdicts_agree_with_brute_force() {
    let mut seen = Sometimes::new();
    let kinds: BTreeSet<String> = ALL_KINDS.iter().map(Kind::to_string).collect();
    kinds.iter().for_each(|kind| seen.expect(&[kind]));
    for seed in 0..20_000 {
        let mut rng = Rng::new(seed);
        let size = Size { txns: rng.range(2..6), keys: rng.range(1..4), reach: rng.range(1..100) };
        let mut history = serial_history(&mut rng, &size);
        (0..rng.below(4)).for_each(|_| mutate(&mut rng, &mut history));
        for level in [Level::Serializable, Level::StrictSerializable] {
            let verdict = check(&history, level);
            let expected = brute_force(&history, level);
            assert_eq!(verdict.is_ok(), expected, "seed {seed}, {level:?}: {verdict:?}\n{history:#?}");
            seen.saw(&verdict.map_or_else(|failure| failure.kind().unwrap().to_string(), |_| "passed".to_owned()));
        }
    }
    seen.assert_all_at_least(10);
}

const ALL_KINDS: [Kind; 12] = [
    Kind::DuplicateElement,
    Kind::PhantomElement,
    Kind::AbortedRead,
    Kind::Internal,
    Kind::LostAppend,
    Kind::IncompatibleOrder,
    Kind::IntermediateRead,
    Kind::WriteCycle,
    Kind::CircularInformationFlow,
    Kind::GSingle,
    Kind::G2Item,
    Kind::RealTime,
];

/// A history as large as a run has them. Keys are given up after some time, as the workloads do it.
fn large_history(txns: u64) -> History {
    let mut rng = Rng::new(1);
    let size = Size { txns, keys: 10, reach: 100 };
    let mut state = BTreeMap::new();
    let mut history = History::default();
    for number in 0..txns {
        if number % 200 == 0 {
            state.clear();
        }
        let mut op = |at| rename(random_op(&mut rng, &size, number * 4 + at, &mut state), number / 200);
        let ops = (0..4).map(&mut op).collect();
        let moment = 1000 + number * 10;
        let invoked_at = moment - rng.below(size.reach);
        let completed_at = Some(moment + rng.below(size.reach));
        history.txns.push(Txn { process: number % 16, invoked_at, completed_at, ops, outcome: Outcome::Committed });
    }
    history
}

fn rename(op: Op, generation: u64) -> Op {
    let new = |key: Key| Key(generation * 10 + key.0);
    match op {
        Op::Append { key, element } => Op::Append { key: new(key), element },
        Op::Read { key, elements } => Op::Read { key: new(key), elements },
    }
}

/// Real time alone makes one chain of all transactions, so this also shows that depth costs no stack.
#[test]
fn a_large_history_is_linear_in_edges() {
    let history = large_history(100_000);
    let began = std::time::Instant::now();
    let checked = check(&history, Level::StrictSerializable).unwrap();
    println!("{} transactions, {} edges, {:?}", checked.txns, checked.edges, began.elapsed());
    assert_eq!(checked.txns, 100_000);
    assert!((500_000..1_200_000).contains(&checked.edges), "{}", checked.edges);
}

/// One stale read among a hundred thousand transactions is found, and the report is still a short cycle.
#[test]
fn one_stale_read_in_a_large_history_is_explained_briefly() {
    let mut history = large_history(100_000);
    // Key 2500 lives from T50000 to T50199. The reader comes at the end of its life and sees its beginning.
    let of_key = |op: &Op| matches!(op, Op::Read { key: Key(2500), elements: Some(list) } if list.len() > 30);
    let mut read = history.txns.iter().flat_map(|txn| &txn.ops).find(|&op| of_key(op)).cloned().unwrap();
    answer(&mut read).unwrap().truncate(3);
    let invoked_at = history.txns[50_199].invoked_at;
    let completed_at = Some(invoked_at + 1);
    history.txns.push(Txn { process: 99, invoked_at, completed_at, ops: vec![read], outcome: Outcome::Committed });
    let Failure::Anomaly(anomaly) = check(&history, Level::StrictSerializable).unwrap_err() else { panic!() };
    assert_eq!(anomaly.kind, Kind::RealTime, "{anomaly}");
    assert_eq!(anomaly.txns.len(), 2, "{anomaly}");
}
