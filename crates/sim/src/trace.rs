//! What happened in a history: every step in order, and how often the rare things happened.
//!
//! Invariants (docs/invariants.md):
//!   * I-67  The same seed and the same code give a byte-identical trace.
//!   * I-68  No run passes without having seen what it claims to test.
//!
//! A history has millions of steps and a run has thousands of histories, so a trace keeps a hash of all its lines
//! and only the last few lines as text. The hash decides whether two traces are equal; the text is for people. The
//! whole text is kept on request, to find the first line in which two traces differ.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::{self, Write};

/// FNV-1a with 128 bits: the offset and the prime of its definition. Traces are compared by hash alone, and with
/// 128 bits two of a billion traces do not meet by chance.
const FNV_OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
const FNV_PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;

/// How much of a trace stays in memory as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// The last lines: enough to see what led to a failure.
    Last(usize),
    /// Everything, to compare two traces line by line.
    Whole,
}

/// The steps of one history.
#[derive(Debug)]
pub struct Trace {
    keep: Keep,
    /// FNV-1a of all lines with their line ends.
    hash: u128,
    /// How many lines there were; `lines` holds the last of them.
    count: u64,
    lines: VecDeque<String>,
}

impl Trace {
    pub fn new(keep: Keep) -> Trace {
        Trace { keep, hash: FNV_OFFSET, count: 0, lines: VecDeque::new() }
    }

    /// Appends a line.
    pub fn line(&mut self, text: fmt::Arguments<'_>) {
        let mut line = self.room();
        // Writing to a string cannot fail; a `Display` that fails leaves what it wrote, equally in every replay.
        let _ = line.write_fmt(text);
        line.push('\n');
        self.hash = line.bytes().fold(self.hash, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(FNV_PRIME));
        line.pop();
        self.count += 1;
        self.lines.push_back(line);
    }

    /// An empty string for the next line: the oldest one when the text is full, so that steps do not allocate.
    fn room(&mut self) -> String {
        match self.keep {
            Keep::Last(limit) if self.lines.len() >= limit.max(1) => {
                let mut oldest = self.lines.pop_front().unwrap_or_default();
                oldest.clear();
                oldest
            }
            _ => String::new(),
        }
    }

    /// Equal for equal traces, and for no others.
    pub fn hash(&self) -> u128 {
        self.hash
    }

    /// How many lines were written, kept or not.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The lines that are kept, oldest first.
    pub fn lines(&self) -> impl Iterator<Item = &str> {
        self.lines.iter().map(String::as_str)
    }
}

/// How often each event was seen. A history counts, a run merges its histories and asserts at its end.
///
/// A run that expects an event says so with [`Sometimes::expect`]: an event that never happens counts nothing, and
/// without the expectation nobody would miss it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sometimes {
    counts: BTreeMap<String, u64>,
}

impl Sometimes {
    pub fn new() -> Sometimes {
        Sometimes::default()
    }

    /// Enters events that the run has to see.
    pub fn expect(&mut self, events: &[&str]) {
        for event in events {
            self.add(event, 0);
        }
    }

    /// Counts an event that happened.
    pub fn saw(&mut self, event: &str) {
        self.add(event, 1);
    }

    /// Counts an event that happened `times` times.
    pub fn add(&mut self, event: &str, times: u64) {
        match self.counts.get_mut(event) {
            Some(count) => *count += times,
            None => drop(self.counts.insert(event.to_owned(), times)),
        }
    }

    /// How often `event` was seen.
    pub fn count(&self, event: &str) -> u64 {
        self.counts.get(event).copied().unwrap_or(0)
    }

    /// Adds the counts and the expectations of another history.
    pub fn merge(&mut self, other: &Sometimes) {
        for (event, times) in &other.counts {
            self.add(event, *times);
        }
    }

    /// The table, if every event was seen at least `least` times; why not, if one was not.
    pub fn check_all_at_least(&self, least: u64) -> Result<String, String> {
        if self.counts.is_empty() {
            return Err("no event was expected or seen".into());
        }
        let table = self.table(least);
        match self.counts.values().all(|&count| count >= least) {
            true => Ok(table),
            false => Err(format!("events seen fewer than {least} times:\n{table}")),
        }
    }

    /// As [`Sometimes::check_all_at_least`], for a test, which fails with the reason.
    #[track_caller]
    pub fn assert_all_at_least(&self, least: u64) -> String {
        self.check_all_at_least(least).unwrap_or_else(|reason| panic!("{reason}"))
    }

    /// One line for each event; those seen fewer than `least` times are marked.
    pub fn table(&self, least: u64) -> String {
        let width = self.counts.keys().map(|event| event.chars().count()).max().unwrap_or(0);
        let mut table = String::new();
        for (event, &count) in &self.counts {
            let mark = if count < least { "  <- too few" } else { "" };
            table.push_str(&format!("  {event:width$} {count:>10}{mark}\n"));
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(keep: Keep, lines: &[&str]) -> Trace {
        let mut trace = Trace::new(keep);
        lines.iter().for_each(|line| trace.line(format_args!("{line}")));
        trace
    }

    #[test]
    fn hash_is_fnv_1a_of_the_text() {
        assert_eq!(trace(Keep::Whole, &[]).hash(), FNV_OFFSET);
        let one_byte = (FNV_OFFSET ^ u128::from(b'\n')).wrapping_mul(FNV_PRIME);
        assert_eq!(trace(Keep::Whole, &[""]).hash(), one_byte);
    }

    #[test]
    fn hash_tells_order_and_line_ends_apart_and_ignores_what_is_kept() {
        let hash = |lines| trace(Keep::Whole, lines).hash();
        assert_ne!(hash(&["a", "b"]), hash(&["b", "a"]));
        assert_ne!(hash(&["ab", ""]), hash(&["a", "b"]));
        assert_eq!(hash(&["a", "b", "c"]), trace(Keep::Last(1), &["a", "b", "c"]).hash());
    }

    #[test]
    fn last_lines_are_kept_within_the_limit() {
        let trace = trace(Keep::Last(2), &["first", "second", "3"]);
        assert_eq!(trace.lines().collect::<Vec<_>>(), ["second", "3"]);
        assert_eq!(trace.count(), 3);
    }

    #[test]
    fn counts_merge_and_a_full_table_passes() {
        let mut run = Sometimes::new();
        run.expect(&["crash", "timer fired"]);
        let mut history = Sometimes::new();
        history.saw("crash");
        history.add("timer fired", 5);
        run.merge(&history);
        run.merge(&history);
        assert_eq!((run.count("crash"), run.count("timer fired")), (2, 10));
        assert_eq!(run.assert_all_at_least(2), "  crash                2\n  timer fired         10\n");
    }

    #[test]
    fn an_expected_event_that_never_happened_fails_the_run() {
        let mut run = Sometimes::new();
        run.expect(&["crash", "timer fired"]);
        run.add("timer fired", 10);
        let reason = run.check_all_at_least(10).expect_err("a crash was expected");
        assert!(reason.contains("crash                0  <- too few"), "{reason}");
    }

    #[test]
    fn an_empty_registry_is_not_a_pass() {
        assert_eq!(Sometimes::new().check_all_at_least(10), Err("no event was expected or seen".into()));
    }
}
