//! Where the buckets of a group are kept, when that is not anywhere.
//!
//! Written as `apac` for all buckets, or as `enam 0-12, weur 13-25, apac 26-31`, which covers each of them once.
//!
//! Invariants (docs/invariants.md):
//!   * I-39  each bucket of a group that is bound has one region, and all tables of the group say which

use super::{Schema, Table, TableKind};
use crate::names::{BucketId, GroupName, RegionName};
use crate::placement::RegionRange;

/// The most regions of a group. A placement has seven; nobody lists more by hand.
pub const MAX_REGIONS: usize = 64;

/// Reads where `buckets` buckets are kept; an error says what is wrong with it.
pub fn read_regions(text: &str, buckets: u32) -> Result<Vec<RegionRange>, String> {
    let mut ranges = Vec::new();
    for part in text.split(',') {
        if ranges.len() == MAX_REGIONS {
            return Err(format!("there are more than {MAX_REGIONS} regions"));
        }
        ranges.push(read_range(part, buckets)?);
    }
    let mut next = 0;
    for range in &ranges {
        if range.first.0 != next || range.last.0 < range.first.0 {
            return Err(format!(
                "bucket {next} is expected where \"{} {}-{}\" stands",
                range.region, range.first, range.last
            ));
        }
        next = range.last.0 + 1;
    }
    match next == buckets {
        true => Ok(ranges),
        false => Err(format!("the regions have {next} buckets, the group has {buckets}")),
    }
}

fn read_range(part: &str, buckets: u32) -> Result<RegionRange, String> {
    let mut words = part.split_whitespace();
    let region = RegionName::new(words.next().unwrap_or_default()).map_err(|fault| fault.to_string())?;
    let (first, last) = match words.next() {
        None => (0, buckets.saturating_sub(1)),
        Some(range) => {
            let number = |text: &str| text.parse::<u32>().ok().filter(|number| *number < buckets);
            let read = range.split_once('-').and_then(|(first, last)| Some((number(first)?, number(last)?)));
            read.ok_or_else(|| format!("\"{range}\" is no range of buckets below {buckets}"))?
        }
    };
    match words.next() {
        None => Ok(RegionRange { region, first: BucketId(first), last: BucketId(last) }),
        Some(extra) => Err(format!("\"{extra}\" is not expected")),
    }
}

/// As [`read_regions`] reads it.
pub fn written_regions(ranges: &[RegionRange]) -> String {
    match ranges {
        [all] => all.region.to_string(),
        ranges => {
            let one = |range: &RegionRange| format!("{} {}-{}", range.region, range.first, range.last);
            ranges.iter().map(one).collect::<Vec<_>>().join(", ")
        }
    }
}

impl Table {
    /// Where its buckets are kept; empty: anywhere.
    pub fn regions(&self) -> &[RegionRange] {
        match &self.kind {
            TableKind::Hash { regions, .. } => regions,
            _ => &[],
        }
    }
}

impl Schema {
    /// Where the buckets of a group are kept; empty: anywhere.
    pub fn regions_of(&self, group: &GroupName) -> &[RegionRange] {
        let bound = self.tables.values().find(|table| table.group() == Some(group) && !table.regions().is_empty());
        bound.map_or(&[], Table::regions)
    }

    /// The region of a bucket; none if it may be anywhere.
    pub fn region_of(&self, group: &GroupName, bucket: BucketId) -> Option<&RegionName> {
        self.regions_of(group).iter().find(|range| range.contains(bucket)).map(|range| &range.region)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for (text, buckets) in [("apac", 8), ("enam 0-12, weur 13-25, apac 26-31", 32), ("a 0-0, b 1-1", 2)] {
            assert_eq!(written_regions(&read_regions(text, buckets).unwrap()), text);
        }
    }

    #[test]
    fn each_bucket_is_in_one_region() {
        for (text, buckets) in [
            ("", 8),
            ("A b", 8),
            ("apac 0-6", 8),
            ("apac 1-7", 8),
            ("apac 0-8", 8),
            ("apac 0-3, enam 3-7", 8),
            ("apac 0-3, enam 5-7", 8),
            ("apac 7-0", 8),
            ("apac, enam", 8),
            ("apac 0-7 x", 8),
            ("apac 0-", 8),
            ("apac -1-7", 8),
        ] {
            assert!(read_regions(text, buckets).is_err(), "{text}");
        }
    }
}
