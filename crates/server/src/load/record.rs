//! What one client was told has happened to its rows, and what it does next.
//!
//! A client has keys of its own, so it knows what each of them must hold: nobody else writes there. A row that is
//! inserted again has another `life`, so one that has come back from the dead is told from one that was brought back.
//!
//! ```text
//! draw ─► act ─► statement ─► answer ─┬─ settle: the answer must be what the record says; then the record moves on
//!                                     └─ doubt: an error, so the key may hold either, and is left alone
//! ```

use std::collections::BTreeMap;

/// Keys of a client: few enough that each is inserted, counted up and deleted many times in a short run.
pub(crate) const KEYS: i64 = 200;

/// What a row holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    /// How often the key was inserted.
    pub(crate) life: i64,
    /// How often it was counted up in this life.
    pub(crate) n: i64,
}

/// What a client does with one of its keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    Read,
    Insert {
        life: i64,
    },
    CountUp,
    /// Twice in one transaction.
    CountUpTwice,
    Delete,
}

#[derive(Debug, Clone, Default)]
struct Key {
    lives: i64,
    held: Option<Held>,
    is_doubtful: bool,
}

/// What a client was told.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    first: i64,
    keys: Vec<Key>,
    seed: u64,
    /// Writes that were acknowledged.
    pub(crate) writes: u64,
}

impl Record {
    pub(crate) fn new(client: usize) -> Record {
        let first = client as i64 * KEYS;
        Record { first, keys: vec![Key::default(); KEYS as usize], seed: client as u64 + 1, writes: 0 }
    }

    /// Splitmix: the same client does the same in every run.
    fn random(&mut self) -> u64 {
        self.seed = self.seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.seed ^ (self.seed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// What to do next, and with which key.
    pub(crate) fn draw(&mut self) -> (i64, Act) {
        let mut at = (self.random() % KEYS as u64) as usize;
        if self.keys[at].is_doubtful {
            at = self.keys.iter().position(|key| !key.is_doubtful).unwrap_or(at);
        }
        let chance = self.random() % 100;
        let act = match (&self.keys[at].held, chance) {
            (_, 0..50) => Act::Read,
            (None, _) => Act::Insert { life: self.keys[at].lives + 1 },
            (Some(_), 50..78) => Act::CountUp,
            (Some(_), 78..82) => Act::CountUpTwice,
            (Some(_), _) => Act::Delete,
        };
        (self.first + at as i64, act)
    }

    /// Compares an answer with what it must be, and notes what it acknowledges.
    pub(crate) fn settle(&mut self, id: i64, act: Act, answer: Option<Held>) -> Result<(), String> {
        let key = &mut self.keys[(id - self.first) as usize];
        let counted = |by| key.held.map(|held| Held { n: held.n + by, ..held });
        let (expected, after) = match act {
            Act::Read => (key.held, key.held),
            Act::Insert { life } => (Some(Held { life, n: 0 }), Some(Held { life, n: 0 })),
            Act::CountUp => (counted(1), counted(1)),
            Act::CountUpTwice => (counted(2), counted(2)),
            Act::Delete => (key.held, None),
        };
        if answer != expected {
            key.is_doubtful = true;
            return Err(format!("key {id}: {act:?} answered {answer:?}, and {expected:?} was expected"));
        }
        if let Act::Insert { life } = act {
            key.lives = life;
        }
        key.held = after;
        self.writes += u64::from(act != Act::Read);
        Ok(())
    }

    /// Leaves a key alone whose statement failed: it may hold either.
    pub(crate) fn doubt(&mut self, id: i64) {
        self.keys[(id - self.first) as usize].is_doubtful = true;
    }

    /// What the rows of this client must be, and what is wrong with those that were found. Takes them out of `found`.
    pub(crate) fn compare(&self, found: &mut BTreeMap<i64, Held>) -> Vec<String> {
        let ids = (self.first..).zip(&self.keys);
        let look = |(id, key): (i64, &Key)| match (key.held, found.remove(&id)) {
            _ if key.is_doubtful => None,
            (expected, row) if expected == row => None,
            (Some(expected), None) => Some(format!("key {id} is lost: {expected:?}")),
            (None, Some(row)) => Some(format!("key {id} has come back: {row:?}")),
            (expected, row) => Some(format!("key {id} is {row:?} and not {expected:?}")),
        };
        ids.filter_map(look).collect()
    }

    /// Rows that must be there.
    pub(crate) fn rows(&self) -> u64 {
        self.keys.iter().filter(|key| key.held.is_some() && !key.is_doubtful).count() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record that has seen every act.
    fn busy() -> (Record, BTreeMap<i64, Held>) {
        let (mut record, mut rows) = (Record::new(3), BTreeMap::<i64, Held>::new());
        for _ in 0..20_000 {
            let (id, act) = record.draw();
            let held = rows.get(&id).copied();
            let up = |by| held.map(|held| Held { n: held.n + by, ..held });
            let (answer, after) = match act {
                Act::Read => (held, held),
                Act::Insert { life } => (Some(Held { life, n: 0 }), Some(Held { life, n: 0 })),
                Act::CountUp => (up(1), up(1)),
                Act::CountUpTwice => (up(2), up(2)),
                Act::Delete => (held, None),
            };
            record.settle(id, act, answer).expect("it did what was asked");
            match after {
                Some(after) => rows.insert(id, after),
                None => rows.remove(&id),
            };
        }
        (record, rows)
    }

    #[test]
    fn rows_that_are_as_acknowledged_are_right() {
        let (record, rows) = busy();
        assert!(record.writes > 5_000 && record.rows() == rows.len() as u64 && record.rows() > 20);
        let mut found = rows;
        assert_eq!(record.compare(&mut found), Vec::<String>::new());
        assert!(found.is_empty());
    }

    /// Lost, doubled, of an earlier life, and back from the dead: each is found.
    #[test]
    fn rows_that_are_not_as_acknowledged_are_found() {
        let (record, rows) = busy();
        let (&id, &held) = rows.iter().find(|(_, held)| held.life > 1).expect("some were inserted again");
        let dead = (0..KEYS).map(|at| 3 * KEYS + at).find(|id| !rows.contains_key(id)).expect("some are deleted");
        let mut lost = rows.clone();
        lost.remove(&id);
        assert!(record.compare(&mut lost)[0].contains("is lost"));
        for wrong in [Held { n: held.n + 1, ..held }, Held { life: held.life - 1, ..held }] {
            let mut found = rows.clone();
            found.insert(id, wrong);
            assert!(record.compare(&mut found)[0].contains("and not"));
        }
        let mut risen = rows;
        risen.insert(dead, held);
        assert!(record.compare(&mut risen)[0].contains("has come back"));
    }

    #[test]
    fn an_answer_that_cannot_be_is_refused() {
        let mut record = Record::new(0);
        record.settle(5, Act::Insert { life: 1 }, Some(Held { life: 1, n: 0 })).expect("it was inserted");
        assert!(record.settle(5, Act::CountUp, Some(Held { life: 1, n: 2 })).is_err());
        assert_eq!(record.rows(), 0, "nobody knows any more what it holds");
    }
}
