//! In what order each list was written, and the reads that no order explains.
//!
//! The longest read of a key is its order, and every other read must be a prefix of it. So only the longest read is
//! looked at element by element, and the others are compared with it as memory.
//!
//! Appends of committed transactions that no read has seen come after all that were seen, in an unknown order among
//! themselves: had one come earlier, the longest read would contain it.

use super::{Anomaly, Element, Failure, Key, Kind, Op, Outcome, Txn, malformed};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Elements of a list that a report shows; the newest ones matter.
const ELEMENTS_SHOWN: usize = 8;

/// One element in the order of its key.
#[derive(Clone, Copy)]
pub(super) struct Version {
    pub(super) element: Element,
    /// The transaction that appended it.
    pub(super) txn: usize,
    /// How many elements that transaction appended to this key before.
    place: usize,
    /// Whether that transaction appends nothing more to this key.
    is_last: bool,
}

/// One list.
pub(super) struct List<'h> {
    pub(super) key: Key,
    /// The longest read, and who made it.
    longest: &'h [Element],
    reader: usize,
    /// The versions that were seen, in order, then the others.
    pub(super) order: Vec<Version>,
}

impl List<'_> {
    /// How many versions have a known place in the order.
    pub(super) fn seen(&self) -> usize {
        self.longest.len()
    }
}

/// What a transaction knew of a key before its own appends.
#[derive(Clone, Copy)]
pub(super) struct Base {
    pub(super) txn: usize,
    /// Index into [`Versions::lists`].
    pub(super) list: usize,
    /// How many versions it saw.
    pub(super) length: usize,
}

/// A history whose reads are all explained by one order for each key.
pub(super) struct Versions<'h> {
    pub(super) txns: &'h [&'h Txn],
    /// Whether the last transaction is the read of the final state.
    has_final: bool,
    /// Whether a transaction counts as committed.
    pub(super) counts: Vec<bool>,
    pub(super) lists: Vec<List<'h>>,
    pub(super) bases: Vec<Base>,
    pub(super) reads: usize,
    /// Index into `lists`. Only looked up: iterating over it would make reports differ from run to run.
    by_key: HashMap<Key, usize>,
    /// Who appended what.
    appends: HashMap<(Key, Element), Version>,
}

impl<'h> Versions<'h> {
    pub(super) fn new(txns: &'h [&'h Txn], has_final: bool) -> Result<Versions<'h>, Failure> {
        let mut versions = Versions {
            txns,
            has_final,
            counts: txns.iter().map(|txn| txn.outcome == Outcome::Committed).collect(),
            lists: Vec::new(),
            bases: Vec::new(),
            reads: 0,
            by_key: HashMap::new(),
            appends: index_appends(txns)?,
        };
        versions.find_longest_reads();
        versions.check_elements()?;
        versions.check_own_operations()?;
        versions.check_final_state()?;
        versions.check_prefixes()?;
        versions.order_appends();
        versions.check_places()?;
        versions.check_intermediate_reads()?;
        Ok(versions)
    }

    /// Finds the longest read of each key, and with it the indeterminate transactions that count. One that comes to
    /// count brings its own reads, hence the list of work.
    fn find_longest_reads(&mut self) {
        let mut work: Vec<usize> = (0..self.txns.len()).filter(|&txn| self.counts[txn]).collect();
        while let Some(txn) = work.pop() {
            for (key, elements) in reads(self.txns[txn]) {
                self.note_read(txn, key, elements, &mut work);
            }
        }
    }

    fn note_read(&mut self, reader: usize, key: Key, elements: &'h [Element], work: &mut Vec<usize>) {
        let index = self.list_of(key);
        let list = &mut self.lists[index];
        let new = match elements.strip_prefix(list.longest) {
            Some(new) => new,
            None if list.longest.starts_with(elements) => &[],
            None => elements,
        };
        if elements.len() > list.longest.len() {
            (list.longest, list.reader) = (elements, reader);
        }
        for &element in new {
            let writer = self.appends.get(&(key, element)).map(|version| version.txn);
            if let Some(txn) = writer.filter(|&txn| self.is_hidden(txn)) {
                self.counts[txn] = true;
                work.push(txn);
            }
        }
    }

    fn list_of(&mut self, key: Key) -> usize {
        let next = self.lists.len();
        let index = *self.by_key.entry(key).or_insert(next);
        if index == next {
            self.lists.push(List { key, longest: &[], reader: 0, order: Vec::new() });
        }
        index
    }

    /// Whether a transaction may have happened, and nobody is known to have seen it.
    fn is_hidden(&self, txn: usize) -> bool {
        self.txns[txn].outcome == Outcome::Indeterminate && !self.counts[txn]
    }

    /// The transactions that count as committed.
    pub(super) fn counting(&self) -> impl Iterator<Item = usize> {
        (0..self.txns.len()).filter(|&txn| self.counts[txn])
    }

    /// All reads that count.
    fn all_reads(&self) -> impl Iterator<Item = (usize, Key, &'h [Element])> {
        self.counting().flat_map(|txn| reads(self.txns[txn]).map(move |(key, elements)| (txn, key, elements)))
    }

    /// Elements that occur twice, that nobody appended, or whose transaction aborted. A prefix of the longest read
    /// has no element that the longest read does not have.
    fn check_elements(&mut self) -> Result<(), Failure> {
        for list in &self.lists {
            self.check_elements_of(list.reader, list.key, list.longest)?;
        }
        self.reads = self.all_reads().count();
        for (reader, key, elements) in self.all_reads() {
            if !self.lists[self.by_key[&key]].longest.starts_with(elements) {
                self.check_elements_of(reader, key, elements)?;
            }
        }
        Ok(())
    }

    fn check_elements_of(&self, reader: usize, key: Key, elements: &[Element]) -> Result<(), Failure> {
        let mut seen = HashSet::with_capacity(elements.len());
        let (who, what) = (self.name(reader), show_list(elements));
        for element in elements {
            if !seen.insert(element) {
                let text = format!("{who} read key {} as {what}, with {} twice", key.0, element.0);
                return self.anomaly(Kind::DuplicateElement, &[reader], text);
            }
            let Some(version) = self.appends.get(&(key, *element)) else {
                let text = format!("{who} read key {} as {what}, but nobody appended {}", key.0, element.0);
                return self.anomaly(Kind::PhantomElement, &[reader], text);
            };
            if self.txns[version.txn].outcome == Outcome::Aborted {
                let writer = self.name(version.txn);
                let text =
                    format!("{who} read key {} as {what}, but {writer} aborted its append of {}", key.0, element.0);
                return self.anomaly(Kind::AbortedRead, &[version.txn, reader], text);
            }
        }
        Ok(())
    }

    /// Compares each transaction with itself, and notes what it knew of each key before its own appends.
    fn check_own_operations(&mut self) -> Result<(), Failure> {
        for txn in 0..self.txns.len() {
            if self.counts[txn] {
                self.check_own_operations_of(txn)?;
            }
        }
        Ok(())
    }

    fn check_own_operations_of(&mut self, txn: usize) -> Result<(), Failure> {
        let mut own: BTreeMap<Key, Own<'h>> = BTreeMap::new();
        for op in &self.txns[txn].ops {
            match op {
                Op::Append { key, element } => own.entry(*key).or_default().appended.push(*element),
                Op::Read { elements: None, .. } => {}
                Op::Read { key, elements: Some(elements) } => {
                    if !own.entry(*key).or_default().explains(elements) {
                        return self.internal(txn, *key, elements);
                    }
                }
            }
        }
        for (key, own) in own {
            let Some(base) = own.base else { continue };
            if own.appended.iter().any(|element| base.contains(element)) {
                return self.internal(txn, key, base);
            }
            let list = self.list_of(key);
            self.bases.push(Base { txn, list, length: base.len() });
        }
        Ok(())
    }

    fn internal<T>(&self, txn: usize, key: Key, elements: &[Element]) -> Result<T, Failure> {
        let (who, what) = (self.name(txn), show_list(elements));
        let text = format!("{who} read key {} as {what}, which its own operations contradict", key.0);
        self.anomaly(Kind::Internal, &[txn], text)
    }

    /// Whatever is committed must be in the final state.
    fn check_final_state(&self) -> Result<(), Failure> {
        let Some(last) = self.txns.len().checked_sub(1).filter(|_| self.has_final) else { return Ok(()) };
        let is_in = |(key, elements): (Key, &'h [Element])| elements.iter().map(move |&element| (key, element));
        let present: HashSet<(Key, Element)> = reads(self.txns[last]).flat_map(is_in).collect();
        for txn in self.counting() {
            if let Some((key, element)) = appends(self.txns[txn]).find(|append| !present.contains(append)) {
                let who = self.name(txn);
                let text = format!("{who} appended {} to key {}, but the final state misses it", element.0, key.0);
                return self.anomaly(Kind::LostAppend, &[txn, last], text);
            }
        }
        Ok(())
    }

    fn check_prefixes(&self) -> Result<(), Failure> {
        for (reader, key, elements) in self.all_reads() {
            let list = &self.lists[self.by_key[&key]];
            if list.longest.starts_with(elements) {
                continue;
            }
            let (one, other) = (self.name(reader), self.name(list.reader));
            let (short, long) = (show_list(elements), show_list(list.longest));
            let differ = elements.iter().zip(list.longest).take_while(|(one, other)| one == other).count();
            let text = format!("{one} read key {} as {short}, and {other} as {long}; place {differ} differs", key.0);
            return self.anomaly(Kind::IncompatibleOrder, &[reader, list.reader], text);
        }
        Ok(())
    }

    /// Puts the versions of each key into order, those that nobody saw at the end.
    fn order_appends(&mut self) {
        for list in &mut self.lists {
            let find = |element| self.appends[&(list.key, element)];
            list.order = list.longest.iter().copied().map(find).collect();
        }
        let seen: HashSet<(Key, Element)> = self.all_seen().collect();
        let all = self.counting().flat_map(|txn| appends(self.txns[txn]));
        let unseen: Vec<(Key, Element)> = all.filter(|append| !seen.contains(append)).collect();
        for append in unseen {
            let list = self.list_of(append.0);
            self.lists[list].order.push(self.appends[&append]);
        }
    }

    fn all_seen(&self) -> impl Iterator<Item = (Key, Element)> {
        self.lists.iter().flat_map(|list| list.longest.iter().map(|&element| (list.key, element)))
    }

    /// The appends of one transaction must be seen in the order in which it made them, without a gap.
    fn check_places(&self) -> Result<(), Failure> {
        for list in &self.lists {
            let mut seen: HashMap<usize, usize> = HashMap::new();
            let is_one_of_many = |version: &&Version| version.place > 0 || !version.is_last;
            for version in list.order[..list.seen()].iter().filter(is_one_of_many) {
                let place = seen.entry(version.txn).or_default();
                if version.place != *place {
                    return self.misplaced(list, version);
                }
                *place += 1;
            }
        }
        Ok(())
    }

    fn misplaced<T>(&self, list: &List<'_>, version: &Version) -> Result<T, Failure> {
        let (reader, writer) = (self.name(list.reader), self.name(version.txn));
        let (key, element, what) = (list.key.0, version.element.0, show_list(list.longest));
        let text = format!("{reader} read key {key} as {what}, but {writer} did not append {element} in this order");
        self.anomaly(Kind::IncompatibleOrder, &[version.txn, list.reader], text)
    }

    fn check_intermediate_reads(&self) -> Result<(), Failure> {
        for base in self.bases.iter().filter(|base| base.length > 0) {
            let list = &self.lists[base.list];
            let version = list.order[base.length - 1];
            if !version.is_last {
                let (reader, writer) = (self.name(base.txn), self.name(version.txn));
                let (key, element) = (list.key.0, version.element.0);
                let text =
                    format!("{reader} read key {key} up to {element}, but {writer} appended more after {element}");
                return self.anomaly(Kind::IntermediateRead, &[version.txn, base.txn], text);
            }
        }
        Ok(())
    }

    /// How a report calls a transaction.
    pub(super) fn name(&self, txn: usize) -> String {
        match self.has_final && txn + 1 == self.txns.len() {
            true => "the final read".to_owned(),
            false => format!("T{txn}"),
        }
    }

    /// A failure with the transactions written out below its text.
    pub(super) fn anomaly<T>(&self, kind: Kind, txns: &[usize], text: String) -> Result<T, Failure> {
        let shown = txns.iter().map(|&txn| format!("\n  {}", self.show(txn))).collect::<String>();
        Err(Failure::Anomaly(Anomaly { kind, txns: txns.to_vec(), text: format!("{text}\nwhere{shown}") }))
    }

    fn show(&self, txn: usize) -> String {
        let Txn { process, invoked_at, completed_at, ops, outcome } = self.txns[txn];
        let completed_at = completed_at.map(|at| at.to_string()).unwrap_or_default();
        let ops: Vec<String> = ops.iter().map(show_op).collect();
        let head = match invoked_at {
            &u64::MAX => self.name(txn),
            _ => format!("{} of process {process}, {invoked_at}..{completed_at}, {outcome:?}", self.name(txn)),
        };
        format!("{head}: {}", ops.join(", "))
    }
}

/// What a transaction has done to one key so far.
#[derive(Default)]
struct Own<'h> {
    /// What it read, without its own appends.
    base: Option<&'h [Element]>,
    appended: Vec<Element>,
}

impl<'h> Own<'h> {
    /// Whether a read shows the base and then the own appends. The first read makes the base.
    fn explains(&mut self, elements: &'h [Element]) -> bool {
        let Some(base) = elements.strip_suffix(self.appended.as_slice()) else { return false };
        *self.base.get_or_insert(base) == base
    }
}

/// Who appended what. Elements are unique for each key: otherwise nobody could tell whose append a read shows.
fn index_appends(txns: &[&Txn]) -> Result<HashMap<(Key, Element), Version>, Failure> {
    let mut index: HashMap<(Key, Element), Version> = HashMap::new();
    for (txn, body) in txns.iter().enumerate() {
        let mut before: BTreeMap<Key, Version> = BTreeMap::new();
        for (key, element) in appends(body) {
            let place = before.get(&key).map_or(0, |before| before.place + 1);
            let version = Version { element, txn, place, is_last: true };
            if let Some(first) = index.insert((key, element), version) {
                let why = format!("T{} and T{txn} both append {} to key {}", first.txn, element.0, key.0);
                return malformed(why);
            }
            let before = before.insert(key, version).and_then(|before| index.get_mut(&(key, before.element)));
            before.into_iter().for_each(|version| version.is_last = false);
        }
    }
    Ok(index)
}

fn appends(txn: &Txn) -> impl Iterator<Item = (Key, Element)> {
    txn.ops.iter().filter_map(|op| match op {
        Op::Append { key, element } => Some((*key, *element)),
        Op::Read { .. } => None,
    })
}

fn reads(txn: &Txn) -> impl Iterator<Item = (Key, &[Element])> {
    txn.ops.iter().filter_map(|op| match op {
        Op::Read { key, elements: Some(elements) } => Some((*key, elements.as_slice())),
        _ => None,
    })
}

fn show_op(op: &Op) -> String {
    match op {
        Op::Append { key, element } => format!("append {} to key {}", element.0, key.0),
        Op::Read { key, elements: Some(elements) } => format!("read key {} as {}", key.0, show_list(elements)),
        Op::Read { key, elements: None } => format!("read key {} without answer", key.0),
    }
}

/// A list as a report shows it: its end, since the beginning is the same in all reads.
pub(super) fn show_list(elements: &[Element]) -> String {
    let hidden = elements.len().saturating_sub(ELEMENTS_SHOWN);
    let shown: Vec<String> = elements[hidden..].iter().map(|element| element.0.to_string()).collect();
    match hidden {
        0 => format!("[{}]", shown.join(", ")),
        _ => format!("[{hidden} more, {}]", shown.join(", ")),
    }
}
