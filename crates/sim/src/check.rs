//! What must hold of a history: list-append.
//!
//! Clients append unique elements to lists and read whole lists. A list shows in what order it was written, so a
//! history of such transactions can be judged without knowing what the database did inside:
//!
//! ```text
//! history → versions: the order of appends to each key; reads that no order explains
//!         → graph:    which transaction comes before which, and why
//!         → cycles:   a cycle means that no serial order exists; its edges name the anomaly
//! ```
//!
//! The method is that of Elle (Kingsbury, Alvaro: "Elle: inferring isolation anomalies from experimental
//! observations"). On list-append it is exact here: without a cycle, any topological order of the graph is a serial
//! execution that gives every read its value.
//!
//! Invariants (docs/invariants.md):
//!   * I-3   A transaction with an unknown outcome happened wholly or not at all. It counts as committed if and only
//!     if a transaction that counts saw one of its appends.
//!   * I-19  Transactions are serializable and respect real time.
//!
//! Nothing here knows about the simulator: histories of real processes are judged by the same code.

mod cycles;
mod graph;
mod versions;

use std::collections::BTreeMap;
use std::fmt;

/// Names a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(pub u64);

/// A member of a list; appended to one key at most once in a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Element(pub u64);

/// One operation of a transaction, with its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Append {
        key: Key,
        element: Element,
    },
    /// `None` if the answer never came.
    Read {
        key: Key,
        elements: Option<Vec<Element>>,
    },
}

/// How a transaction ended, as its client knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Committed,
    Aborted,
    /// It may have happened.
    Indeterminate,
}

/// One transaction as its client saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Txn {
    /// The client; only for people who read the report.
    pub process: u64,
    /// Points of one clock that all clients share. A transaction precedes another in real time if it completed at an
    /// earlier point than the other was invoked; equal points say nothing.
    pub invoked_at: u64,
    /// `None` if the client never heard of it again. An indeterminate transaction may take effect even after this.
    pub completed_at: Option<u64>,
    pub ops: Vec<Op>,
    pub outcome: Outcome,
}

/// All transactions of a run, in any order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct History {
    pub txns: Vec<Txn>,
    /// All lists after the last transaction had ended. A key that is not in it is an empty list.
    pub final_state: Option<BTreeMap<Key, Vec<Element>>>,
}

/// What the database promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Some serial order explains all answers.
    Serializable,
    /// And a transaction that ended before another began comes before it.
    StrictSerializable,
}

/// What can be wrong with a history, the most elementary first. A history is reported by the first that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A read has an element twice.
    DuplicateElement,
    /// A read has an element that nobody appended.
    PhantomElement,
    /// G1a: a read has an element of an aborted transaction.
    AbortedRead,
    /// A transaction's reads disagree with its own reads and appends before them.
    Internal,
    /// The final state misses an element of a committed transaction.
    LostAppend,
    /// Two reads of a list are not prefixes of one list, or a transaction's appends are not in its own order.
    IncompatibleOrder,
    /// G1b: a read ends between two appends of another transaction.
    IntermediateRead,
    /// G0: a cycle of appends.
    WriteCycle,
    /// G1c: a cycle of appends and reads of them.
    CircularInformationFlow,
    /// A cycle with one read that misses a later append.
    GSingle,
    /// A cycle with several reads that miss later appends.
    G2Item,
    /// A cycle that exists only because real time orders two of its transactions.
    RealTime,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::DuplicateElement => "duplicate element",
            Kind::PhantomElement => "phantom element",
            Kind::AbortedRead => "aborted read (G1a)",
            Kind::Internal => "internal inconsistency",
            Kind::LostAppend => "lost append",
            Kind::IncompatibleOrder => "incompatible order",
            Kind::IntermediateRead => "intermediate read (G1b)",
            Kind::WriteCycle => "write cycle (G0)",
            Kind::CircularInformationFlow => "circular information flow (G1c)",
            Kind::GSingle => "anti-dependency cycle with one rw edge (G-single)",
            Kind::G2Item => "anti-dependency cycle (G2-item)",
            Kind::RealTime => "real-time violation",
        })
    }
}

/// Why a history is wrong, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Anomaly {
    pub kind: Kind,
    /// Indices into [`History::txns`]; the final state has the index after the last.
    pub txns: Vec<usize>,
    /// What happened, step by step, and the transactions involved.
    pub text: String,
}

impl fmt::Display for Anomaly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.kind, self.text)
    }
}

/// Why a history did not pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The history cannot be judged: a mistake of the test, not of the database.
    Malformed(String),
    Anomaly(Anomaly),
}

impl Failure {
    /// The kind of anomaly, if it is one.
    pub fn kind(&self) -> Option<Kind> {
        match self {
            Failure::Malformed(_) => None,
            Failure::Anomaly(anomaly) => Some(anomaly.kind),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Malformed(why) => write!(f, "malformed history: {why}"),
            Failure::Anomaly(anomaly) => anomaly.fmt(f),
        }
    }
}

impl std::error::Error for Failure {}

/// How much was checked, so that a run can show that it was not nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Checked {
    /// Transactions that count as committed.
    pub txns: usize,
    /// Reads that were compared with the versions.
    pub reads: usize,
    /// Reasons for one transaction to come before another.
    pub edges: usize,
}

/// Judges a history.
pub fn check(history: &History, level: Level) -> Result<Checked, Failure> {
    well_formed(history)?;
    let final_read = history.final_state.as_ref().map(final_read);
    let txns: Vec<&Txn> = history.txns.iter().chain(&final_read).collect();
    let versions = versions::Versions::new(&txns, final_read.is_some())?;
    cycles::check(&versions, level)
}

fn well_formed(history: &History) -> Result<(), Failure> {
    for (index, txn) in history.txns.iter().enumerate() {
        match (txn.completed_at, txn.outcome) {
            (None, Outcome::Committed) => return malformed(format!("T{index} committed but never completed")),
            (Some(completed_at), _) if completed_at < txn.invoked_at => {
                return malformed(format!("T{index} completed before it was invoked"));
            }
            _ => {}
        }
    }
    Ok(())
}

fn malformed<T>(why: String) -> Result<T, Failure> {
    Err(Failure::Malformed(why))
}

/// The final state, as one more transaction that reads everything after all others have ended.
fn final_read(state: &BTreeMap<Key, Vec<Element>>) -> Txn {
    let read = |(key, elements): (&Key, &Vec<Element>)| Op::Read { key: *key, elements: Some(elements.clone()) };
    let ops = state.iter().map(read).collect();
    Txn { process: 0, invoked_at: u64::MAX, completed_at: Some(u64::MAX), ops, outcome: Outcome::Committed }
}
