//! Hashes a shard key to a bucket.
//!
//! The hash is FNV-1a, 32 bits, over the UTF-16 code units of the key, each unit taken whole:
//!
//! ```text
//! key ──(`key:salt` when the group has a salt)──► fnv1a32 ──► % buckets ──► BucketId
//! ```
//!
//! Invariants:
//!   * The result depends on the text alone, so every process that knows a group's count and salt agrees.
//!   * A [`BucketCount`] is never zero, so the remainder always exists.
//!
//! UTF-16 and not UTF-8, because the systems whose ids are read here hash `charCodeAt`; the two agree on ASCII
//! and on nothing else. Keys are not normalized: two spellings of one letter are two keys, as they are in SQL.
//! [`legacy`] keeps one old hash whose rounding error is part of where old data lies; nothing new uses it.

use crate::names::BucketId;
use serde::Serialize;
use std::fmt;

const FNV_OFFSET_BASIS: u32 = 0x811c_9dc5;
const FNV_PRIME: u32 = 0x0100_0193;

/// The most buckets a group may have.
///
/// A bucket is the smallest thing that moves, so there must be some for each shard; ten for each of 6,500 shards
/// is more than anyone runs. Every table of buckets stays small enough to be held by every router.
pub const MAX_BUCKETS: u32 = 65_536;

/// How many buckets a group has: 1 to [`MAX_BUCKETS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct BucketCount(u32);

impl BucketCount {
    pub const ONE: BucketCount = BucketCount(1);

    /// None unless `count` is in 1..=[`MAX_BUCKETS`].
    pub fn new(count: u32) -> Option<BucketCount> {
        (1..=MAX_BUCKETS).contains(&count).then_some(BucketCount(count))
    }

    pub fn get(self) -> u32 {
        self.0
    }

    pub fn contains(self, bucket: BucketId) -> bool {
        bucket.0 < self.0
    }
}

impl fmt::Display for BucketCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// FNV-1a over UTF-16 code units.
pub fn fnv1a32(text: &str) -> u32 {
    fold(text.encode_utf16())
}

/// The bucket of a key in a group. A salted key is `{key}:{salt}`.
pub fn bucket_of(key: &str, salt: Option<&str>, buckets: BucketCount) -> BucketId {
    let hash = match salt {
        None => fnv1a32(key),
        Some(salt) => fold(key.encode_utf16().chain([u16::from(b':')]).chain(salt.encode_utf16())),
    };
    BucketId(hash % buckets.0)
}

fn fold(units: impl Iterator<Item = u16>) -> u32 {
    units.fold(FNV_OFFSET_BASIS, |hash, unit| (hash ^ u32::from(unit)).wrapping_mul(FNV_PRIME))
}

/// Hashes that only find data written by older systems.
pub mod legacy {
    use super::{FNV_OFFSET_BASIS, FNV_PRIME};

    /// FNV-1a as JavaScript computes it with `(hash * prime) >>> 0`.
    ///
    /// The product is a double, so its lowest bits are rounded away and most results are even: with 4 buckets,
    /// three quarters of all keys fall into the first.
    pub fn fnv1a32_f64(text: &str) -> u32 {
        text.encode_utf16().fold(FNV_OFFSET_BASIS, |hash, unit| {
            // `^` makes a signed 32-bit number in JavaScript, so the product may be negative.
            let mixed = (hash ^ u32::from(unit)).cast_signed();
            let product = f64::from(mixed) * f64::from(FNV_PRIME);
            // Below 2^56 in magnitude and whole, so the i64 is exact; the u32 keeps its low bits, as `>>> 0` does.
            (product as i64) as u32
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// key, legacy hash, [legacy % 4, % 8], hash, [hash % 4, % 8, % 20, % 32, % 64].
    type Vector<'a> = (&'a str, u32, [u32; 2], u32, [u32; 5]);

    fn vectors() -> Vec<Vector<'static>> {
        vec![
            ("", 2166136261, [1, 5], 2166136261, [1, 5, 1, 5, 5]),
            ("a", 3826002220, [0, 4], 3826002220, [0, 4, 0, 12, 44]),
            ("b", 3876335076, [0, 4], 3876335077, [1, 5, 17, 5, 37]),
            ("foobar", 249808880, [0, 0], 3214735720, [0, 0, 0, 8, 40]),
            ("wf-1", 3389145760, [0, 0], 3633073122, [2, 2, 2, 2, 34]),
            ("wf-2", 3405923376, [0, 0], 3616295503, [3, 7, 3, 15, 15]),
            ("order-123", 105727056, [0, 0], 2768817946, [2, 2, 6, 26, 26]),
            ("payment-1", 982453196, [0, 4], 3978142079, [3, 7, 19, 31, 63]),
            ("payment-42", 2654424706, [2, 2], 4170760406, [2, 6, 6, 22, 22]),
            ("user1:client1", 3084331756, [0, 4], 4082085305, [1, 1, 5, 25, 57]),
            ("user2:client2", 2101869146, [2, 2], 4054315981, [1, 5, 1, 13, 13]),
            ("user123:client456", 811255488, [0, 0], 3007927490, [2, 2, 10, 2, 2]),
            ("user-123:client-abc", 2466928896, [0, 0], 2500433101, [1, 5, 1, 13, 13]),
            ("client123", 1015234897, [1, 1], 2213591722, [2, 2, 2, 10, 42]),
            ("client456", 1932071096, [0, 0], 3506508677, [1, 5, 17, 5, 5]),
            ("user123", 807003672, [0, 0], 122042374, [2, 6, 14, 6, 6]),
            ("tenant1:user123", 3776379332, [0, 4], 3292865419, [3, 3, 19, 11, 11]),
            ("did:web:example.com", 2386981512, [0, 0], 4245751709, [1, 5, 9, 29, 29]),
            ("550e8400-e29b-41d4-a716-446655440000", 1369284184, [0, 0], 2292069672, [0, 0, 12, 8, 40]),
            ("é", 1812687940, [0, 4], 1812687940, [0, 4, 0, 4, 4]),
            ("ü", 2030796988, [0, 4], 2030796987, [3, 3, 7, 27, 59]),
            ("日本", 1610399396, [0, 4], 1610399396, [0, 4, 16, 4, 36]),
            ("😀", 3409036472, [0, 0], 3409036472, [0, 0, 12, 24, 56]),
            ("wf-日本", 147922360, [0, 0], 1256316862, [2, 6, 2, 30, 62]),
        ]
    }

    fn buckets(count: u32) -> BucketCount {
        BucketCount::new(count).unwrap()
    }

    fn check((key, old, old_mods, new, new_mods): Vector<'_>) {
        assert_eq!(legacy::fnv1a32_f64(key), old, "legacy hash of {key:?}");
        assert_eq!([4, 8].map(|n| legacy::fnv1a32_f64(key) % n), old_mods, "legacy remainders of {key:?}");
        assert_eq!(fnv1a32(key), new, "hash of {key:?}");
        let found = [4, 8, 20, 32, 64].map(|n| bucket_of(key, None, buckets(n)).0);
        assert_eq!(found, new_mods, "buckets of {key:?}");
    }

    #[test]
    fn both_hashes_agree_with_the_systems_they_come_from() {
        vectors().into_iter().for_each(check);
        check((&"x".repeat(1000), 2844858848, [0, 0], 131170661, [1, 5, 1, 5, 37]));
    }

    #[test]
    fn a_series_of_keys_spreads_where_the_old_hash_piles_up() {
        let keys: Vec<String> = (0..5).map(|i| format!("idx-limit-{i}")).collect();
        let old: Vec<u32> = keys.iter().map(|key| legacy::fnv1a32_f64(key) % 4).collect();
        let new: Vec<u32> = keys.iter().map(|key| fnv1a32(key) % 4).collect();
        assert_eq!((old, new), (vec![0, 2, 0, 0, 0], vec![3, 0, 1, 2, 3]));
    }

    #[test]
    fn the_hash_is_over_utf16_and_not_bytes() {
        assert_eq!(fnv1a32("é"), 0x6c0b_6c44);
        assert_ne!(fnv1a32("é"), 0x1e9d_e8c1, "this is the hash of its UTF-8 bytes");
    }

    #[test]
    fn a_salt_is_hashed_after_a_colon() {
        let n = buckets(MAX_BUCKETS);
        assert_eq!(bucket_of("client123", Some("s1"), n), bucket_of("client123:s1", None, n));
        assert_eq!(bucket_of("k", Some("日"), n), bucket_of("k:日", None, n));
        assert_ne!(bucket_of("client123", Some("s1"), n), bucket_of("client123", None, n));
    }

    #[test]
    fn a_bucket_count_is_1_to_65536() {
        assert_eq!(BucketCount::new(0), None);
        assert_eq!(BucketCount::new(MAX_BUCKETS + 1), None);
        assert_eq!(BucketCount::new(1), Some(BucketCount::ONE));
        assert_eq!(bucket_of("anything", None, BucketCount::ONE), BucketId(0));
    }

    /// The share of each bucket in 100,000 keys, in hundredths of a percent.
    fn shares(hash: fn(&str) -> u32, n: u32, key: fn(u32) -> String) -> Vec<u32> {
        let mut counts = vec![0u32; n as usize];
        (0..100_000).for_each(|i| counts[(hash(&key(i)) % n) as usize] += 1);
        counts.into_iter().map(|count| count / 10).collect()
    }

    fn uuid_like(i: u32) -> String {
        let high = u64::from(i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let low = (high ^ (high >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        uuid::Builder::from_random_bytes(((u128::from(high) << 64) | u128::from(low)).to_be_bytes())
            .into_uuid()
            .to_string()
    }

    #[test]
    fn every_bucket_gets_its_share_within_one_point() {
        let kinds: [fn(u32) -> String; 3] =
            [uuid_like, |i| format!("order-{i}"), |i| format!("user{i}:client{}", i % 97)];
        for key in kinds {
            for n in [2, 3, 4, 8, 16, 20, 32, 64] {
                let ideal = 10_000 / n;
                for (bucket, share) in shares(fnv1a32, n, key).into_iter().enumerate() {
                    assert!(share.abs_diff(ideal) <= 100, "{} of {n} has {share}/10000, like {}", bucket, key(1));
                }
            }
        }
    }

    #[test]
    fn float_rounding_puts_three_quarters_of_old_keys_into_one_of_four_buckets() {
        let found = shares(legacy::fnv1a32_f64, 4, uuid_like);
        for (share, documented) in found.iter().zip([7490, 530, 1270, 720]) {
            assert!(share.abs_diff(documented) <= 100, "{found:?}");
        }
    }
}
