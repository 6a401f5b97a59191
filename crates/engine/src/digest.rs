//! Summaries of rows that agree across engines.
//!
//! A row's hash is taken over its unit and values in the kernel's binary form, so it does not depend on how an
//! engine stores them. The digest of a set of rows is the sum of their hashes: it does not depend on their order,
//! and digests of adjacent ranges add up. It finds differences; it is no defence against someone who makes them.

use crate::shard::{Digest, StoredRow};
use isles_kernel::change::encode_unit;
use isles_kernel::value::Encoder;
use xxhash_rust::xxh3::xxh3_128;

impl Digest {
    /// Adds a row; `scratch` spares an allocation for each.
    pub fn add_row(&mut self, row: &StoredRow, scratch: &mut Encoder) {
        scratch.bytes.clear();
        encode_unit(scratch, &row.unit);
        scratch.row(&row.values);
        self.rows += 1;
        self.sum = self.sum.wrapping_add(xxh3_128(&scratch.bytes));
    }
}
