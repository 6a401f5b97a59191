//! Which moves would even shards out.
//!
//! Each group of buckets is balanced by itself, its pinned tenants with it. The heaviest shard gives to the lightest what
//! comes closest to half their difference, until they are about even or nothing that could be moved makes them more so.
//! It is only said; whoever wants it lets it be carried out, as moves like any other.

use super::{MAX_SPANS, MAX_TENANTS, Span, Units};
use crate::names::{BucketId, GroupName, ShardId, TenantId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Shards that differ by less than one part of so many count as even.
const TOLERANCE: u64 = 20;
/// Things that move in one proposal for a group.
const MAX_STEPS: usize = 10_000;

/// By what shards are weighed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Weigh {
    /// By rows that are stored.
    #[default]
    Rows,
    /// By buckets, whatever is in them.
    Buckets,
    /// By statements of tenants since the server was started. Of tables without tenants nothing is known.
    Load,
}

impl Weigh {
    pub fn named(name: &str) -> Option<Weigh> {
        [Weigh::Rows, Weigh::Buckets, Weigh::Load].into_iter().find(|weigh| weigh.name() == name)
    }

    pub fn name(self) -> &'static str {
        match self {
            Weigh::Rows => "rows",
            Weigh::Buckets => "buckets",
            Weigh::Load => "load",
        }
    }
}

/// Something that can be moved by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece {
    Bucket(BucketId),
    /// It is pinned, and does not go with its bucket.
    Tenant(TenantId),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weighed {
    pub piece: Piece,
    pub shard: ShardId,
    pub weight: u64,
}

/// A move that would make things more even.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Proposal {
    pub units: Units,
    pub source: ShardId,
    pub target: ShardId,
    pub weight: u64,
}

/// What would even out the pieces of a group over shards; pieces elsewhere stay there.
pub fn balance(group: &GroupName, pieces: &[Weighed], shards: &[ShardId]) -> Vec<Proposal> {
    let mut loads: BTreeMap<&ShardId, u64> = shards.iter().map(|shard| (shard, 0)).collect();
    let mut places: Vec<&ShardId> = pieces.iter().map(|piece| &piece.shard).collect();
    for piece in pieces {
        loads.entry(&piece.shard).and_modify(|load| *load = load.saturating_add(piece.weight));
    }
    let mean = loads.values().sum::<u64>() / (loads.len() as u64).max(1);
    for _ in 0..MAX_STEPS {
        let heaviest = loads.iter().max_by_key(|(_, load)| **load).map(|(shard, load)| (*shard, *load));
        let lightest = loads.iter().min_by_key(|(_, load)| **load).map(|(shard, load)| (*shard, *load));
        let (Some((from, most)), Some((to, least))) = (heaviest, lightest) else { break };
        let gap = most - least;
        if gap <= (mean / TOLERANCE).max(1) {
            break;
        }
        let fits = |at: &usize| places[*at] == from && pieces[*at].weight > 0 && pieces[*at].weight < gap;
        let Some(at) = (0..pieces.len()).filter(fits).min_by_key(|at| (gap / 2).abs_diff(pieces[*at].weight)) else {
            break;
        };
        places[at] = to;
        loads.insert(from, most - pieces[at].weight);
        loads.insert(to, least + pieces[at].weight);
    }
    gathered(group, pieces, &places)
}

/// The pieces that have another place, by where they come from and go to.
fn gathered(group: &GroupName, pieces: &[Weighed], places: &[&ShardId]) -> Vec<Proposal> {
    type Gathered = (Vec<(Span, u64)>, Vec<(TenantId, u64)>);
    let mut moves: BTreeMap<(&ShardId, &ShardId), Gathered> = BTreeMap::new();
    for (piece, place) in pieces.iter().zip(places).filter(|(piece, place)| piece.shard != ***place) {
        let (spans, tenants) = moves.entry((&piece.shard, place)).or_default();
        match &piece.piece {
            Piece::Bucket(bucket) => spans.push((Span::one(*bucket), piece.weight)),
            Piece::Tenant(tenant) => tenants.push((tenant.clone(), piece.weight)),
        }
    }
    let mut proposals = Vec::new();
    for ((source, target), (spans, tenants)) in moves {
        let one = |units, weight| Proposal { units, source: source.clone(), target: target.clone(), weight };
        for (spans, weight) in parted(joined(spans), MAX_SPANS) {
            proposals.push(one(Units::buckets(group.clone(), spans), weight));
        }
        for (tenants, weight) in parted(tenants, MAX_TENANTS) {
            proposals.push(one(Units::tenants(tenants), weight));
        }
    }
    proposals.sort_by_key(|proposal| std::cmp::Reverse(proposal.weight));
    proposals
}

/// Buckets that touch are one range.
fn joined(mut spans: Vec<(Span, u64)>) -> Vec<(Span, u64)> {
    spans.sort();
    let mut ranges: Vec<(Span, u64)> = Vec::new();
    for (span, weight) in spans {
        match ranges.last_mut() {
            Some((before, sum)) if before.last.0 + 1 == span.first.0 => {
                before.last = span.last;
                *sum = sum.saturating_add(weight);
            }
            _ => ranges.push((span, weight)),
        }
    }
    ranges
}

/// As many parts as plans are needed, with the weight of each.
fn parted<T>(all: Vec<(T, u64)>, most: usize) -> Vec<(Vec<T>, u64)> {
    let mut parts: Vec<(Vec<T>, u64)> = Vec::new();
    for (one, weight) in all {
        match parts.last_mut() {
            Some((those, sum)) if those.len() < most => {
                those.push(one);
                *sum = sum.saturating_add(weight);
            }
            _ => parts.push((vec![one], weight)),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shard(n: usize) -> ShardId {
        ShardId::new(format!("s{n}")).expect("valid")
    }

    fn group() -> GroupName {
        GroupName::new("g").expect("valid")
    }

    fn loads(pieces: &[Weighed], shards: usize) -> Vec<u64> {
        let of = |n| pieces.iter().filter(|piece| piece.shard == shard(n)).map(|piece| piece.weight).sum();
        (0..shards).map(of).collect()
    }

    /// What becomes of pieces when proposals are carried out.
    fn carried_out(pieces: &[Weighed], proposals: &[Proposal]) -> Vec<Weighed> {
        let mut after = pieces.to_vec();
        for proposal in proposals {
            for piece in &mut after {
                let moves = match (&proposal.units, &piece.piece) {
                    (Units::Buckets { buckets }, Piece::Bucket(bucket)) => buckets.contains(&group(), *bucket),
                    (Units::Tenants { tenants }, Piece::Tenant(tenant)) => tenants.contains(tenant),
                    _ => false,
                };
                if moves {
                    assert_eq!(piece.shard, proposal.source, "{proposal:?}");
                    piece.shard = proposal.target.clone();
                }
            }
        }
        after
    }

    fn bucket(n: usize, on: usize, weight: u64) -> Weighed {
        Weighed { piece: Piece::Bucket(BucketId(n as u32)), shard: shard(on), weight }
    }

    #[test]
    fn a_new_shard_gets_its_share() {
        let pieces: Vec<Weighed> = (0..64).map(|n| bucket(n, n / 16, 1)).collect();
        let shards: Vec<ShardId> = (0..5).map(shard).collect();
        let proposals = balance(&group(), &pieces, &shards);
        assert_eq!(loads(&carried_out(&pieces, &proposals), 5).iter().max(), Some(&13));
        assert!(proposals.iter().all(|proposal| proposal.target == shard(4)), "{proposals:?}");
        assert_eq!(balance(&group(), &carried_out(&pieces, &proposals), &shards), []);
    }

    #[test]
    fn what_is_too_heavy_for_anyone_stays() {
        let pieces = [bucket(0, 0, 1_000), bucket(1, 1, 10), bucket(2, 1, 10)];
        assert_eq!(balance(&group(), &pieces, &[shard(0), shard(1)]), []);
        assert_eq!(balance(&group(), &pieces, &[shard(0)]), []);
        assert_eq!(balance(&group(), &[], &[]), []);
    }

    /// What is more than one plan takes is several.
    #[test]
    fn a_proposal_is_a_plan_that_can_be_made() {
        let pieces: Vec<Weighed> = (0..6_000).map(|n| bucket(n, 0, u64::from(n % 2 == 0))).collect();
        let tenant = |n: usize| TenantId::new(format!("t{n}")).expect("valid");
        let pinned = (0..3_000).map(|n| Weighed { piece: Piece::Tenant(tenant(n)), shard: shard(2), weight: 1 });
        let pieces: Vec<Weighed> = pieces.into_iter().chain(pinned).collect();
        let proposals = balance(&group(), &pieces, &[shard(0), shard(1), shard(2)]);
        let size = |units: &Units| match units {
            Units::Buckets { buckets } => buckets.ranges.len(),
            Units::Tenants { tenants } => tenants.len(),
        };
        let sizes: Vec<usize> = proposals.iter().map(|proposal| size(&proposal.units)).collect();
        assert!(sizes.iter().all(|size| *size <= 1_000) && sizes.iter().sum::<usize>() > 1_500, "{sizes:?}");
        assert!(loads(&carried_out(&pieces, &proposals), 3).iter().all(|load| load.abs_diff(2_000) <= 100));
    }

    proptest! {
        /// Proposals can be carried out, never make the heaviest shard heavier, and leave nothing to propose that was not
        /// too coarse before.
        #[test]
        fn proposals_make_shards_more_even(
            weights in proptest::collection::vec((0usize..6, 0u64..1_000, any::<bool>()), 0..80),
            shards in 1usize..6,
        ) {
            let piece = |(n, (on, weight, pinned)): (usize, &(usize, u64, bool))| match pinned {
                false => bucket(n, *on, *weight),
                true => {
                    let tenant = TenantId::new(format!("t{n}")).expect("valid");
                    Weighed { piece: Piece::Tenant(tenant), shard: shard(*on), weight: *weight }
                }
            };
            let pieces: Vec<Weighed> = weights.iter().enumerate().map(piece).collect();
            let names: Vec<ShardId> = (0..shards).map(shard).collect();
            let proposals = balance(&group(), &pieces, &names);
            let after = carried_out(&pieces, &proposals);
            let (before, now) = (loads(&pieces, shards), loads(&after, shards));
            prop_assert_eq!(before.iter().sum::<u64>(), now.iter().sum::<u64>());
            prop_assert!(now.iter().max() <= before.iter().max());
            prop_assert!(proposals.iter().all(|one| one.source != one.target && one.weight > 0));
            for (was, is) in pieces.iter().zip(&after) {
                prop_assert!(names.contains(&was.shard) || was.shard == is.shard, "it was not ours to move");
            }
        }
    }
}
