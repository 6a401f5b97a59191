//! Who is next of those who wait for the writer.
//!
//! Each tenant has a line of its own, and the lines take turns. So a tenant with a thousand requests is as far from the
//! writer as one with a single request, and who is alone has everything:
//!
//! ```text
//! acme    ■ ■ ■ ■ ■ ■ ■ ─┐
//! beta    ■ ─────────────┼─► acme, beta, nobody, acme, nobody, acme, acme …
//! nobody  ■ ■ ───────────┘
//! ```
//!
//! Requests that act for nobody are one line: a shard does not know whose clients they come from. The engine's own are
//! another, so that fences and moves do not wait behind either.
//!
//! Invariants (docs/invariants.md):
//!   * I-46  a tenant at full load does not hold up its neighbours, and does not take the last place
//!   * I-65  there are so many places, and no more

use crate::shard::ActsFor;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_64;

/// How long a group takes further requests of those who are in it, once it is of several tenants: about as long as its
/// flush. Who comes meanwhile waits for no more than that, and a flush is still shared by dozens.
const SHARED_TIME: Duration = Duration::from_micros(500);

/// One place of so many is kept for those who have none.
const KEPT_OF: usize = 4;

/// Whose line it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Whose {
    Engine,
    Nobody,
    /// The hash of a tenant's key. Two that have the same share a line, and that harms nobody.
    Tenant(u64),
}

impl Whose {
    pub(super) fn of(acts_for: &ActsFor) -> Whose {
        acts_for.key().map_or(Whose::Nobody, |key| Whose::Tenant(xxh3_64(key.as_bytes())))
    }
}

/// Lines that take turns.
pub(super) struct Lines<T> {
    /// None of them is empty.
    lines: HashMap<Whose, VecDeque<T>>,
    /// Whoever has a line, once, in the order of turns.
    turns: VecDeque<Whose>,
    len: usize,
}

impl<T> Lines<T> {
    pub(super) fn new() -> Lines<T> {
        Lines { lines: HashMap::new(), turns: VecDeque::new(), len: 0 }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many lines there are.
    pub(super) fn lines(&self) -> usize {
        self.turns.len()
    }

    /// Whether there is a place, of `places` in all. Nobody has the last ones while others have none.
    pub(super) fn has_place(&self, whose: Whose, places: usize) -> bool {
        let own = self.lines.get(&whose).map_or(0, VecDeque::len);
        self.len < places && (own == 0 || own < places - places / KEPT_OF)
    }

    pub(super) fn push(&mut self, whose: Whose, item: T) {
        let line = self.lines.entry(whose).or_default();
        if line.is_empty() {
            self.turns.push_back(whose);
        }
        line.push_back(item);
        self.len += 1;
    }

    /// The one whose turn it is.
    pub(super) fn front(&self) -> Option<(Whose, &T)> {
        let whose = *self.turns.front()?;
        Some((whose, self.lines.get(&whose)?.front()?))
    }

    /// Takes it; the turn goes on.
    pub(super) fn pop(&mut self) -> Option<(Whose, T)> {
        let whose = self.turns.pop_front()?;
        let line = self.lines.get_mut(&whose)?;
        let item = line.pop_front()?;
        self.len -= 1;
        if line.is_empty() {
            self.lines.remove(&whose);
        } else {
            self.turns.push_back(whose);
        }
        Some((whose, item))
    }

    /// Takes everything, in the order of turns.
    pub(super) fn take_all(&mut self) -> Vec<(Whose, T)> {
        std::iter::from_fn(|| self.pop()).collect()
    }
}

/// Whose requests a group has, and who may still join it.
pub(super) struct Party {
    began: Duration,
    /// Each once.
    whose: Vec<Whose>,
}

impl Party {
    pub(super) fn new(began: Duration, first: Whose) -> Party {
        Party { began, whose: vec![first] }
    }

    /// Who is not in it joins it at any time, so that nobody waits for a whole group of somebody else. Who is in it goes on
    /// joining for as long as no other is, or the others have not waited long.
    pub(super) fn admits(&self, whose: Whose, now: Duration) -> bool {
        !self.whose.contains(&whose) || !self.is_shared() || now < self.began + SHARED_TIME
    }

    pub(super) fn join(&mut self, whose: Whose) {
        if !self.whose.contains(&whose) {
            self.whose.push(whose);
        }
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.whose.len()
    }

    pub(super) fn is_shared(&self) -> bool {
        self.whose.len() > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ACME: Whose = Whose::Tenant(1);
    const BETA: Whose = Whose::Tenant(2);

    /// I-46
    #[test]
    fn lines_take_turns_and_each_keeps_its_order() {
        let mut lines = Lines::new();
        (0..5).for_each(|n| lines.push(ACME, n));
        lines.push(BETA, 10);
        lines.push(Whose::Nobody, 20);
        lines.push(Whose::Nobody, 21);
        assert_eq!((lines.len(), lines.front()), (8, Some((ACME, &0))));
        let order: Vec<i32> = lines.take_all().into_iter().map(|(_, item)| item).collect();
        assert_eq!(order, [0, 10, 20, 1, 21, 2, 3, 4]);
        assert!(
            lines.is_empty() && lines.lines.is_empty() && lines.turns.is_empty(),
            "nothing is left of who has gone"
        );
    }

    /// I-46: who comes again goes behind those who wait.
    #[test]
    fn who_comes_back_does_not_pass_others() {
        let mut lines = Lines::new();
        lines.push(ACME, 0);
        lines.push(BETA, 10);
        assert_eq!(lines.pop(), Some((ACME, 0)));
        lines.push(ACME, 1);
        assert_eq!(lines.pop(), Some((BETA, 10)));
        assert_eq!(lines.pop(), Some((ACME, 1)));
    }

    /// I-46, I-65
    #[test]
    fn nobody_takes_the_last_place() {
        let mut lines = Lines::new();
        while lines.has_place(ACME, 8) {
            lines.push(ACME, 0);
        }
        assert_eq!(lines.len(), 6);
        assert!(lines.has_place(BETA, 8));
        lines.push(BETA, 0);
        lines.push(Whose::Engine, 0);
        assert!(!lines.has_place(BETA, 8) && !lines.has_place(Whose::Nobody, 8), "there are eight");
        // Few places are places all the same.
        let mut few = Lines::new();
        assert!(few.has_place(ACME, 1));
        few.push(ACME, 0);
        assert!(!few.has_place(ACME, 1));
    }

    /// I-46
    #[test]
    fn a_group_of_several_waits_for_none_of_them() {
        let (began, late) = (Duration::from_secs(7), Duration::from_secs(7) + SHARED_TIME);
        let mut party = Party::new(began, ACME);
        party.join(ACME);
        assert!(party.admits(ACME, late), "it holds nobody up");
        assert!(party.admits(BETA, late), "or it would wait for the next group");
        party.join(BETA);
        assert!(!party.admits(ACME, late) && !party.admits(BETA, late));
        assert!(party.admits(Whose::Nobody, late));
        assert!(party.admits(ACME, began + SHARED_TIME / 2), "a flush is shared by many");
    }
}
