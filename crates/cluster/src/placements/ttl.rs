//! How long records of a type last, for whoever asks until when a generation must be read.
//!
//! Who keeps records knows best. For built-in types that nobody keeps there is what the types are meant for, and for
//! any other type the longest of those: a generation that is read for too long costs reads, one that is dropped too
//! early loses records.

use super::Kept;
use isles_kernel::placement::{Placement, TypeName};
use std::time::Duration;

/// The longest of the built-in types, and what is assumed of any other.
pub const DEFAULT_TTL: Duration = days(30);

/// Clocks of those who write and of those who judge may differ by this, and a write may have been on its way.
pub(super) const MARGIN: Duration = minutes(5);

/// type, the longest that its records last.
const BUILT_IN: [(&str, Duration); 11] = [
    ("session", hours(1)),
    ("authcode", minutes(10)),
    ("refresh", days(30)),
    ("challenge", minutes(15)),
    ("revocation", days(30)),
    ("credoffer", days(1)),
    ("vprequest", minutes(5)),
    // The lifetime of a token and five minutes, at most an hour.
    ("dpop", hours(1)),
    ("par", minutes(10)),
    ("device", minutes(30)),
    ("ciba", minutes(10)),
];

const fn minutes(count: u64) -> Duration {
    Duration::from_secs(count * 60)
}

const fn hours(count: u64) -> Duration {
    minutes(count * 60)
}

const fn days(count: u64) -> Duration {
    hours(count * 24)
}

/// How long after its last write a generation may still have records: of the types that the placement lists, and of all
/// that are kept, listed or not.
pub(super) fn longest(placement: &Placement, kept: &[Kept]) -> Duration {
    let of = |name: &TypeName| kept.iter().filter(|one| one.what.name == *name).map(|one| one.lasts).max();
    let listed = placement.current().types().map(|(name, _)| of(name).unwrap_or_else(|| built_in(name)));
    listed.chain(kept.iter().map(|one| one.lasts)).max().unwrap_or(DEFAULT_TTL)
}

fn built_in(name: &TypeName) -> Duration {
    BUILT_IN.iter().find(|(known, _)| *known == name.as_str()).map_or(DEFAULT_TTL, |(_, ttl)| *ttl)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_type_has_a_ttl_and_none_is_longer_than_what_is_assumed() {
        for spec in Placement::defaults().registry().types() {
            let (_, ttl) = BUILT_IN.iter().find(|(name, _)| *name == spec.name.as_str()).expect("in the table");
            assert!(*ttl <= DEFAULT_TTL, "{}", spec.name);
        }
    }
}
