//! Texts of statements as keys.
//!
//! Every request looks its statement up. The texts are our own router's and long, so nobody chooses them to collide,
//! and std's hash would cost more than the lookup is worth.

use std::hash::{BuildHasherDefault, Hasher};
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub(crate) type TextHash = BuildHasherDefault<TextHasher>;

#[derive(Default)]
pub(crate) struct TextHasher(u64);

impl Hasher for TextHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64_with_seed(bytes, self.0);
    }

    /// The end of a text; there is only one.
    fn write_u8(&mut self, _: u8) {}

    fn finish(&self) -> u64 {
        self.0
    }
}
