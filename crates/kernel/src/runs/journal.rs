//! What a run has done, and whether its code still does the same.
//!
//! Each thing that code does through its context has a place: the branch it is in, and its number within the branch, in
//! the order in which the code asked. When a run is executed again, the code asks for the same things in the same order,
//! and gets what was noted at each place. If the name or the kind at a place is another one, the code has changed or is
//! not deterministic; nobody knows then what was meant, so the run is stopped.
//!
//! Invariants (docs/invariants.md):
//!   * I-48  an entry that is final never changes, and code that does not match it gets an error

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

/// Entries of one run. A run that needs more is several runs: each execution reads them all.
pub const MAX_ENTRIES: usize = 100_000;

/// What was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Work whose result is kept.
    Step,
    Sleep,
    SleepUntil,
    WaitForEvent,
    /// An update that is kept.
    Emit,
    /// A time or random number.
    Value,
    /// Another run was started, or waited for.
    Child,
    /// Which version of the code the run goes through.
    Patch,
}

impl Kind {
    pub const ALL: [Kind; 8] = [
        Kind::Step,
        Kind::Sleep,
        Kind::SleepUntil,
        Kind::WaitForEvent,
        Kind::Emit,
        Kind::Value,
        Kind::Child,
        Kind::Patch,
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Step => "do",
            Kind::Sleep => "sleep",
            Kind::SleepUntil => "sleep_until",
            Kind::WaitForEvent => "wait_for_event",
            Kind::Emit => "emit",
            Kind::Value => "value",
            Kind::Child => "child",
            Kind::Patch => "patch",
        }
    }
}

impl FromStr for Kind {
    type Err = ();

    fn from_str(text: &str) -> Result<Kind, ()> {
        Kind::ALL.into_iter().find(|kind| kind.as_str() == text).ok_or(())
    }
}

/// How far an entry has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// It waits for a time, an event, or its next attempt.
    Pending,
    /// Final.
    Completed,
    /// Final, too: code that catches the error catches the same one next time.
    Failed,
}

impl State {
    pub fn as_str(self) -> &'static str {
        match self {
            State::Pending => "pending",
            State::Completed => "completed",
            State::Failed => "failed",
        }
    }
}

impl FromStr for State {
    type Err = ();

    fn from_str(text: &str) -> Result<State, ()> {
        [State::Pending, State::Completed, State::Failed].into_iter().find(|state| state.as_str() == text).ok_or(())
    }
}

/// Where an entry stands. The empty branch is the code itself.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    pub branch: String,
    pub ordinal: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.branch.as_str() {
            "" => write!(f, "{}", self.ordinal),
            branch => write!(f, "{branch}:{}", self.ordinal),
        }
    }
}

/// What is asked for at a place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    pub kind: Kind,
    pub name: String,
}

impl fmt::Display for Asked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} \"{}\"", self.kind.as_str(), self.name)
    }
}

/// Code and journal do not go together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    #[error("at {place} the journal has {noted}, and the code asks for {asked}")]
    NonDeterminism { place: Place, noted: Asked, asked: Asked },
    #[error("the code has ended, and the journal has {noted} at {place}")]
    EndedEarly { place: Place, noted: Asked },
    #[error("Duplicate step name \"{name}\": each name may be used once")]
    Duplicate { name: String },
    #[error("a run has at most {MAX_ENTRIES} steps")]
    TooMany,
}

/// Follows code through its journal.
#[derive(Debug, Default)]
pub struct Replay {
    noted: BTreeMap<Place, Asked>,
    next: BTreeMap<String, u32>,
    names: BTreeSet<(String, String)>,
    /// Places that the code has come to.
    reached: usize,
}

impl Replay {
    pub fn new(entries: impl IntoIterator<Item = (Place, Asked)>) -> Replay {
        Replay { noted: entries.into_iter().collect(), ..Replay::default() }
    }

    /// Takes in an entry that was not written yet.
    pub fn learn(&mut self, place: Place, asked: Asked) {
        self.noted.insert(place, asked);
    }

    /// The place of the next thing that the code asks for in a branch.
    pub fn ask(&mut self, branch: &str, asked: &Asked) -> Result<Place, Mismatch> {
        let next = self.next.entry(branch.into()).or_default();
        let place = Place { branch: branch.into(), ordinal: *next };
        if let Some(noted) = self.noted.get(&place)
            && noted != asked
        {
            return Err(Mismatch::NonDeterminism { place, noted: noted.clone(), asked: asked.clone() });
        }
        if !self.names.insert((branch.into(), asked.name.clone())) {
            return Err(Mismatch::Duplicate { name: asked.name.clone() });
        }
        if self.reached >= MAX_ENTRIES {
            return Err(Mismatch::TooMany);
        }
        *next += 1;
        self.reached += 1;
        Ok(place)
    }

    /// Whether a marker of a newer version of the code may be set at the next place: nothing else is noted there. Where
    /// the journal goes on without the marker, the run passed here before the marker was in the code.
    pub fn may_mark(&self, branch: &str, asked: &Asked) -> bool {
        let ordinal = self.next.get(branch).copied().unwrap_or_default();
        let place = Place { branch: branch.into(), ordinal };
        self.noted.get(&place).is_none_or(|noted| noted == asked)
    }

    /// Whether the journal has more in a branch than the code has come to.
    pub fn is_replaying(&self, branch: &str) -> bool {
        let ordinal = self.next.get(branch).copied().unwrap_or_default();
        self.noted.contains_key(&Place { branch: branch.into(), ordinal })
    }

    /// Code that has ended must have come to all that is noted.
    pub fn end(&self) -> Result<(), Mismatch> {
        let left = self
            .noted
            .iter()
            .find(|(place, _)| place.ordinal >= self.next.get(&place.branch).copied().unwrap_or_default());
        match left {
            Some((place, noted)) => Err(Mismatch::EndedEarly { place: place.clone(), noted: noted.clone() }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn step(name: &str) -> Asked {
        Asked { kind: Kind::Step, name: name.into() }
    }

    fn noted(names: &[&str]) -> Vec<(Place, Asked)> {
        let place = |ordinal: usize| Place { branch: String::new(), ordinal: ordinal as u32 };
        names.iter().enumerate().map(|(at, name)| (place(at), step(name))).collect()
    }

    /// I-48: whatever prefix of a journal is there, the code is led through it, and the next place is the one after.
    #[test]
    fn every_prefix_of_a_journal_leads_to_the_same_next_step() {
        let names = ["a", "b", "c", "d"];
        for length in 0..=names.len() {
            let mut replay = Replay::new(noted(&names[..length]));
            for (at, name) in names.iter().enumerate() {
                assert_eq!(replay.ask("", &step(name)).unwrap().ordinal, at as u32);
            }
            replay.end().unwrap();
        }
    }

    /// A34: changed code is found at the first place where it differs, by name and by kind.
    #[test]
    fn a34_changed_code_is_found() {
        let mut replay = Replay::new(noted(&["a", "b"]));
        replay.ask("", &step("a")).unwrap();
        let changed = replay.ask("", &step("c")).unwrap_err();
        assert_eq!(changed.to_string(), "at 1 the journal has do \"b\", and the code asks for do \"c\"");
        let mut replay = Replay::new(noted(&["a"]));
        assert!(replay.ask("", &Asked { kind: Kind::Sleep, name: "a".into() }).is_err());
        assert!(matches!(Replay::new(noted(&["a"])).end(), Err(Mismatch::EndedEarly { .. })));
    }

    #[test]
    fn branches_count_by_themselves() {
        let mut replay = Replay::default();
        let order = [("x", "1"), ("y", "1"), ("x", "2"), ("", "1")];
        let places: Vec<String> =
            order.iter().map(|(branch, name)| replay.ask(branch, &step(name)).unwrap().to_string()).collect();
        assert_eq!(places, ["x:0", "y:0", "x:1", "0"]);
        assert_eq!(replay.ask("x", &step("1")), Err(Mismatch::Duplicate { name: "1".into() }));
    }

    #[test]
    fn a_marker_is_set_where_the_journal_has_not_gone_on() {
        let marker = Asked { kind: Kind::Patch, name: "v2".into() };
        assert!(Replay::default().may_mark("", &marker), "a run that comes here first takes the new way");
        assert!(!Replay::new(noted(&["a"])).may_mark("", &marker), "a run that went on without it keeps the old way");
    }
}
