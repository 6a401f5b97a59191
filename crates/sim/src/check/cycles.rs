//! Which transaction comes before which, and the cycle that shows that no serial order exists.
//!
//! The reasons for one transaction to come before another:
//!
//! ```text
//! ww        it appended the version before the other's append
//! wr        it appended the version that the other read up to
//! rw        it read up to the version before the other's append
//! realtime  it had completed before the other was invoked
//! ```
//!
//! Realtime edges from each transaction to all later ones would be a quadratic number. Instead, time is a chain of
//! extra vertices, the frontiers: a transaction leads to the first frontier after its completion, each frontier leads
//! to the next, and the last frontier before an invocation leads to that transaction. Likewise the readers of the
//! last known version of a key lead through one extra vertex to all appends whose place is unknown. So the graph is
//! linear in the history.
//!
//! The name of an anomaly is that of the weakest set of edges that has a cycle.

use super::graph::{Components, Edge, Graph, Vertex};
use super::versions::{List, Versions};
use super::{Checked, Failure, Kind, Level};
use std::collections::BTreeSet;

/// Vertices that the search for a short cycle may visit. It only runs for a history that has failed, and this takes
/// about a second.
const VISITS_MAX: usize = 2_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reason {
    Ww,
    Wr,
    Rw,
    Realtime,
    /// From an extra vertex: continues the edge that led to it.
    Onward,
}

/// Why an edge exists, enough to explain it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Label {
    reason: Reason,
    /// Index into [`Versions::lists`].
    list: u32,
    /// Index into [`List::order`] of the later version, or of the version read for wr.
    version: u32,
}

pub(super) fn check(versions: &Versions<'_>, level: Level) -> Result<Checked, Failure> {
    let graph = build(versions, level);
    if !graph.components(|_| true).are_single() {
        return report(versions, &graph);
    }
    let txns = versions.counting().count();
    Ok(Checked { txns, reads: versions.reads, edges: graph.edges().len() })
}

fn build(versions: &Versions<'_>, level: Level) -> Graph<Label> {
    let mut builder = Builder { versions, edges: Vec::new(), vertices: versions.txns.len() };
    builder.add_appends();
    builder.add_reads();
    builder.add_unplaced_appends();
    if level == Level::StrictSerializable {
        builder.add_realtime();
    }
    Graph::new(builder.vertices, builder.edges)
}

struct Builder<'v> {
    versions: &'v Versions<'v>,
    edges: Vec<Edge<Label>>,
    /// Transactions first, extra vertices after them.
    vertices: usize,
}

impl Builder<'_> {
    /// Adds an edge, except from a transaction to itself: nobody comes before itself.
    fn add(&mut self, from: usize, to: usize, reason: Reason, list: usize, version: usize) {
        if from != to {
            let label = Label { reason, list: list as u32, version: version as u32 };
            self.edges.push(Edge { from: from as Vertex, to: to as Vertex, label });
        }
    }

    fn add_vertex(&mut self) -> usize {
        self.vertices += 1;
        self.vertices - 1
    }

    /// Each version comes after the one before it; those of unknown place come after the last known one.
    fn add_appends(&mut self) {
        for (index, list) in self.versions.lists.iter().enumerate() {
            for later in 1..list.order.len() {
                let Some(earlier) = later.min(list.seen()).checked_sub(1) else { continue };
                self.add(list.order[earlier].txn, list.order[later].txn, Reason::Ww, index, later);
            }
        }
    }

    /// A reader comes after the version it read up to and before the next one.
    fn add_reads(&mut self) {
        for base in &self.versions.bases {
            let list = &self.versions.lists[base.list];
            if let Some(last) = base.length.checked_sub(1) {
                self.add(list.order[last].txn, base.txn, Reason::Wr, base.list, last);
            }
            if base.length < list.seen() {
                self.add(base.txn, list.order[base.length].txn, Reason::Rw, base.list, base.length);
            }
        }
    }

    /// Whoever read all known versions of a key comes before every append of unknown place.
    fn add_unplaced_appends(&mut self) {
        let mut readers: Vec<Vec<usize>> = vec![Vec::new(); self.versions.lists.len()];
        for base in &self.versions.bases {
            let list = &self.versions.lists[base.list];
            if base.length == list.seen() && list.order.len() > list.seen() {
                readers[base.list].push(base.txn);
            }
        }
        for (index, readers) in readers.iter().enumerate().filter(|(_, readers)| !readers.is_empty()) {
            self.add_unplaced_appends_of(index, readers);
        }
    }

    fn add_unplaced_appends_of(&mut self, index: usize, readers: &[usize]) {
        let list = &self.versions.lists[index];
        let unplaced: Vec<(usize, usize)> =
            (list.seen()..list.order.len()).map(|at| (at, list.order[at].txn)).collect();
        let appenders: BTreeSet<usize> = unplaced.iter().map(|&(_, txn)| txn).collect();
        let (both, only_readers): (Vec<usize>, Vec<usize>) = readers.iter().partition(|txn| appenders.contains(txn));
        let hub = self.add_vertex();
        for reader in only_readers {
            self.add(reader, hub, Reason::Rw, index, list.seen());
        }
        for &(at, txn) in &unplaced {
            self.add(hub, txn, Reason::Onward, index, at);
        }
        // Those who read and append would lead to themselves through the hub. Two of them are a cycle already, and
        // the shortest possible, so edges between two are enough.
        let targets = match both.as_slice() {
            [_, _, ..] => unplaced.iter().filter(|(_, txn)| both[..2].contains(txn)).copied().collect(),
            _ => unplaced,
        };
        for &reader in both.iter().take(2) {
            for &(at, txn) in &targets {
                self.add(reader, txn, Reason::Rw, index, at);
            }
        }
    }

    /// The chain of frontiers. An indeterminate transaction never completes: it may take effect at any later time.
    fn add_realtime(&mut self) {
        let mut last_frontier = None;
        let mut completed: Vec<usize> = Vec::new();
        for (_, event, txn) in self.events() {
            if event == Event::Completed {
                completed.push(txn);
                continue;
            }
            if !completed.is_empty() {
                let frontier = self.add_vertex();
                completed.drain(..).for_each(|txn| self.add(txn, frontier, Reason::Realtime, 0, 0));
                last_frontier.into_iter().for_each(|last| self.add(last, frontier, Reason::Onward, 0, 0));
                last_frontier = Some(frontier);
            }
            last_frontier.into_iter().for_each(|last| self.add(last, txn, Reason::Onward, 0, 0));
        }
    }

    /// Invocations and completions in the order of time; at one point of time, invocations come first.
    fn events(&self) -> Vec<(u64, Event, usize)> {
        let mut events = Vec::with_capacity(self.versions.txns.len() * 2);
        for txn in self.versions.counting() {
            let body = self.versions.txns[txn];
            events.push((body.invoked_at, Event::Invoked, txn));
            let completed_at = body.completed_at.filter(|_| body.outcome == super::Outcome::Committed);
            events.extend(completed_at.map(|at| (at, Event::Completed, txn)));
        }
        events.sort_unstable();
        events
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Invoked,
    Completed,
}

/// A kind of cycle: one edge of the first reasons, all others of the second.
type Shape = (Kind, Reason, &'static [Reason]);

/// The kinds of cycles, the most elementary first. The edges of each row contain those of the rows above it.
const SHAPES: [Shape; 5] = [
    (Kind::WriteCycle, Reason::Ww, &[Reason::Ww]),
    (Kind::CircularInformationFlow, Reason::Wr, &[Reason::Ww, Reason::Wr]),
    (Kind::GSingle, Reason::Rw, &[Reason::Ww, Reason::Wr]),
    (Kind::G2Item, Reason::Rw, &[Reason::Ww, Reason::Wr, Reason::Rw]),
    (Kind::RealTime, Reason::Realtime, &[Reason::Ww, Reason::Wr, Reason::Rw, Reason::Realtime]),
];

fn report<T>(versions: &Versions<'_>, graph: &Graph<Label>) -> Result<T, Failure> {
    let found = SHAPES.iter().find_map(|shape| Some((shape.0, find_cycle(graph, shape)?)));
    let (kind, cycle) = found.expect("a component of two vertices has a cycle, and the last shapes admit every cycle");
    let hops = hops(&cycle);
    let lines: Vec<String> = hops.iter().map(|hop| format!("  {}", explain(versions, hop))).collect();
    let mut txns: Vec<usize> = hops.iter().map(|hop| hop.from as usize).collect();
    txns.sort_unstable();
    txns.dedup();
    versions.anomaly(kind, &txns, lines.join("\n"))
}

/// The shortest cycle of a shape that the visits suffice for. The first candidates are in the smallest components,
/// where cycles are short. The first search of a shape may use up all visits and always has enough to find a cycle
/// if its candidate is on one.
fn find_cycle(graph: &Graph<Label>, (_, first, rest): &Shape) -> Option<Vec<Edge<Label>>> {
    let follows = |label: Label| label.reason == Reason::Onward || rest.contains(&label.reason);
    let components = graph.components(|label| label.reason == *first || follows(label));
    let mut visits = VISITS_MAX.max(4 * graph.edges().len());
    let mut best: Option<Vec<Edge<Label>>> = None;
    for edge in candidates(graph, &components, *first) {
        let counts = |label: Label| label.reason != Reason::Onward;
        let path = graph.shortest_path((edge.to, edge.from), &components, follows, counts, &mut visits);
        let cycle = path.map(|path| [vec![edge], path].concat());
        let is_shorter = |cycle: &Vec<Edge<Label>>| best.as_ref().is_none_or(|best| length(cycle) < length(best));
        best = cycle.filter(is_shorter).or(best);
        if visits == 0 || best.as_ref().is_some_and(|best| length(best) == 2) {
            break;
        }
    }
    best
}

/// The edges that may begin a cycle: those inside a component.
fn candidates(graph: &Graph<Label>, components: &Components, first: Reason) -> Vec<Edge<Label>> {
    let fits = |edge: &&Edge<Label>| edge.label.reason == first && components.share(edge.from, edge.to);
    let mut edges: Vec<Edge<Label>> = graph.edges().iter().filter(fits).copied().collect();
    edges.sort_by_key(|edge| components.size(edge.from));
    edges
}

fn length(cycle: &[Edge<Label>]) -> usize {
    cycle.iter().filter(|edge| edge.label.reason != Reason::Onward).count()
}

/// The edges between transactions: an edge to an extra vertex and those onward from it become one.
fn hops(cycle: &[Edge<Label>]) -> Vec<Edge<Label>> {
    let mut hops: Vec<Edge<Label>> = Vec::new();
    for edge in cycle {
        match hops.last_mut().filter(|_| edge.label.reason == Reason::Onward) {
            Some(hop) => {
                hop.to = edge.to;
                hop.label.version = edge.label.version;
            }
            None => hops.push(*edge),
        }
    }
    hops
}

fn explain(versions: &Versions<'_>, hop: &Edge<Label>) -> String {
    let (from, to) = (versions.name(hop.from as usize), versions.name(hop.to as usize));
    let Label { reason, list, version } = hop.label;
    if matches!(reason, Reason::Realtime | Reason::Onward) {
        let completed_at = versions.txns[hop.from as usize].completed_at.unwrap_or(u64::MAX);
        let invoked_at = versions.txns[hop.to as usize].invoked_at;
        return format!("{from} completed at {completed_at}, before {to} was invoked at {invoked_at} (realtime)");
    }
    let list = &versions.lists[list as usize];
    let (key, at) = (list.key.0, version as usize);
    let element = list.order[at].element.0;
    match reason {
        Reason::Wr => format!("{from} appended {element} to key {key}, and {to} read up to it (wr)"),
        Reason::Rw => format!("{from} read key {key} up to {}, before {to} appended {element} (rw)", before(list, at)),
        _ => format!("{from} appended {} to key {key}, before {to} appended {element} (ww)", before(list, at)),
    }
}

/// The known version before another one, for people.
fn before(list: &List<'_>, at: usize) -> String {
    match at.min(list.seen()).checked_sub(1) {
        Some(earlier) => list.order[earlier].element.0.to_string(),
        None => "nothing".to_owned(),
    }
}
