//! The one source of randomness of a history.
//!
//! A history draws everything from one seed: the order of tasks, the faults, the workload. The generator is
//! xoshiro256** and is written out here, so that no upgrade of a library changes what an old seed replays.
//! Integers only: floating point rounds differently from machine to machine.
//!
//! [`Rng::fork`] derives a stream from the seed and a label, not from the position of the parent. So one more
//! draw in the workload does not move every fault of the history.

use std::ops::Range;

/// A deterministic stream of random numbers.
#[derive(Clone, Debug)]
pub struct Rng {
    /// What the stream was made from; forks are derived from it.
    seed: u64,
    state: [u64; 4],
}

impl Rng {
    /// The stream of `seed`. Neighbouring seeds give unrelated streams.
    pub fn new(seed: u64) -> Rng {
        let mut mixer = seed;
        Rng { seed, state: [(); 4].map(|()| splitmix(&mut mixer)) }
    }

    /// An independent stream. The same label gives the same stream, whatever was drawn before.
    pub fn fork(&self, label: &str) -> Rng {
        let mut mixer = self.seed;
        for byte in label.bytes() {
            mixer = splitmix(&mut mixer) ^ u64::from(byte);
        }
        Rng::new(splitmix(&mut mixer))
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        let state = &mut self.state;
        let result = state[1].wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = state[1] << 17;
        state[2] ^= state[0];
        state[3] ^= state[1];
        state[1] ^= state[2];
        state[0] ^= state[3];
        state[2] ^= shifted;
        state[3] = state[3].rotate_left(45);
        result
    }

    /// A number below `bound`, which is not 0. The bias of at most `bound` / 2^64 is invisible to any test.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "there is no number below 0");
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in `range`, which is not empty.
    pub fn range(&mut self, range: Range<u64>) -> u64 {
        assert!(range.start < range.end, "the range {range:?} is empty");
        range.start + self.below(range.end - range.start)
    }

    /// True in `numerator` of `denominator` cases.
    pub fn chance(&mut self, numerator: u64, denominator: u64) -> bool {
        self.below(denominator) < numerator
    }

    /// One of `items`, which are not empty.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }

    /// Puts `items` into a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

/// The next number of splitmix64. It turns any seed, 0 too, into a good state.
fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// A number that a variable of the environment gives, in decimal or as `0x…`: a seed, or how many.
pub fn number_from_env(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    let number = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None => text.parse(),
    };
    Some(number.unwrap_or_else(|_| panic!("{variable} is no number: {text}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(mut rng: Rng) -> [u64; 4] {
        [(); 4].map(|()| rng.bits())
    }

    /// The reference outputs of splitmix64 for the seed 1234567, and of xoshiro256** for the state 1, 2, 3, 4.
    #[test]
    fn generators_give_the_published_numbers() {
        let mut seed = 1234567;
        assert_eq!(splitmix(&mut seed), 6457827717110365317);
        assert_eq!(splitmix(&mut seed), 3203168211198807973);
        let rng = Rng { seed: 0, state: [1, 2, 3, 4] };
        assert_eq!(first(rng), [11520, 0, 1509978240, 1215971899390074240]);
    }

    #[test]
    fn fork_depends_on_seed_and_label_only() {
        let mut parent = Rng::new(7);
        let early = first(parent.fork("disk"));
        parent.bits();
        assert_eq!(early, first(parent.fork("disk")));
        assert_ne!(early, first(parent.fork("net")));
        assert_ne!(early, first(Rng::new(8).fork("disk")));
        assert_ne!(first(parent.fork("ab")), first(parent.fork("ba")));
    }

    #[test]
    fn range_reaches_every_number_and_no_other() {
        let mut rng = Rng::new(1);
        let mut counts = [0; 10];
        for _ in 0..10_000 {
            counts[rng.range(5..15) as usize - 5] += 1;
        }
        assert!(counts.iter().all(|&count| (800..1200).contains(&count)), "{counts:?}");
    }

    #[test]
    fn chance_holds_its_rate() {
        let mut rng = Rng::new(2);
        let hits = (0..10_000).filter(|_| rng.chance(1, 4)).count();
        assert!((2300..2700).contains(&hits), "{hits}");
        assert!(!(0..1000).any(|_| rng.chance(0, 3)));
        assert!((0..1000).all(|_| rng.chance(3, 3)));
    }

    #[test]
    fn shuffle_and_pick_reach_every_outcome() {
        let mut rng = Rng::new(3);
        let mut orders = std::collections::BTreeSet::new();
        let mut picks = std::collections::BTreeSet::new();
        for _ in 0..1000 {
            let mut items = [1, 2, 3, 4];
            rng.shuffle(&mut items);
            orders.insert(items);
            picks.insert(*rng.pick(&items));
        }
        assert_eq!((orders.len(), picks.len()), (24, 4));
    }
}
