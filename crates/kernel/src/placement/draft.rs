//! What could be read of a configuration, and the tables it becomes once nothing is wrong with it.
//!
//! A draft holds each field that was usable, with the path to report it by. [`tables`] turns the drafts of a
//! generation into bucket spaces and names them. Names are checked where they are made, so this step can still
//! fail: a group and another group's override may want the same name.

use super::apportion::{RegionShare, apportion};
use super::errors::{ConfigErrors, ErrorCode, FieldError};
use super::registry::{KeySchema, TypeName};
use super::{GenerationMap, GroupMap};
use crate::hash::BucketCount;
use crate::id::Generation;
use crate::names::GroupName;
use jiff::Timestamp;
use std::collections::BTreeMap;

pub(super) const GENERATION_ENDING: &str = "a group name may not end in -g and a number";

/// A group with the fields that could be read.
pub(super) struct GroupDraft {
    pub(super) path: String,
    pub(super) name: Option<GroupName>,
    /// The field that holds the count.
    pub(super) count_path: String,
    pub(super) buckets: Option<BucketCount>,
    pub(super) salt: Option<String>,
    pub(super) key: Option<KeySchema>,
    pub(super) members: Vec<MemberDraft>,
}

pub(super) struct MemberDraft {
    pub(super) path: String,
    pub(super) name: TypeName,
    /// A count other than the group's.
    pub(super) own: Option<OwnCount>,
}

pub(super) struct OwnCount {
    pub(super) path: String,
    pub(super) buckets: BucketCount,
}

pub(super) struct PreviousDraft {
    pub(super) generation: Option<Generation>,
    pub(super) valid_until: Option<Timestamp>,
    pub(super) shares: Option<Vec<RegionShare>>,
    pub(super) groups: Vec<GroupDraft>,
}

impl PreviousDraft {
    pub(super) fn compile(self, base: &[RegionShare]) -> Result<GenerationMap, ConfigErrors> {
        let generation = self.generation.expect("a draft without errors is complete");
        let shares = self.shares.as_deref().unwrap_or(base);
        tables(generation, self.valid_until, self.groups, shares)
    }
}

/// Bucket spaces of generations are told apart by this ending, so no group may have it by itself.
pub(super) fn ends_like_a_generation(name: &str) -> bool {
    let digits = name.rsplit_once("-g").map(|(_, digits)| digits);
    digits.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Makes the tables of a generation. Names of bucket spaces are checked here, where they are made.
pub(super) fn tables(
    generation: Generation,
    valid_until: Option<Timestamp>,
    drafts: Vec<GroupDraft>,
    shares: &[RegionShare],
) -> Result<GenerationMap, ConfigErrors> {
    let mut errors = Vec::new();
    let mut groups: BTreeMap<GroupName, GroupMap> = BTreeMap::new();
    let mut fail = |field: &str, code, message| errors.push(FieldError { field: field.to_owned(), code, message });
    for (path, base, map) in drafts.into_iter().flat_map(|draft| spaces(draft, shares)) {
        match space_name(&base, generation) {
            Err(message) => fail(&path, ErrorCode::BadName, message),
            Ok(space) if groups.contains_key(&space) => {
                fail(&path, ErrorCode::DuplicateKey, format!("{base} is also the name of another group"));
            }
            Ok(space) => drop(groups.insert(space.clone(), GroupMap { space, ..map })),
        }
    }
    ConfigErrors::none_of(errors)?;
    Ok(GenerationMap::new(generation, valid_until, groups.into_values().collect()))
}

fn space_name(base: &str, generation: Generation) -> Result<GroupName, String> {
    if ends_like_a_generation(base) {
        return Err(GENERATION_ENDING.to_owned());
    }
    let name = match generation {
        Generation::FIRST => base.to_owned(),
        generation => format!("{base}-{generation}"),
    };
    GroupName::new(name).map_err(|fault| fault.to_string())
}

/// The bucket spaces of a group: one for the members that share its count, one for each member with its own.
fn spaces(draft: GroupDraft, shares: &[RegionShare]) -> Vec<(String, String, GroupMap)> {
    let whole = "a draft without errors is complete";
    let name = draft.name.expect(whole);
    let map = |buckets: BucketCount, members: Vec<TypeName>| GroupMap {
        group: name.clone(),
        space: name.clone(),
        is_override: false,
        buckets,
        salt: draft.salt.clone(),
        key: draft.key.clone(),
        ranges: apportion(buckets, shares).expect("the counts and shares of a draft without errors were tried"),
        members,
    };
    let (own, shared): (Vec<_>, Vec<_>) = draft.members.into_iter().partition(|member| member.own.is_some());
    let mut shared: Vec<TypeName> = shared.into_iter().map(|member| member.name).collect();
    shared.sort();
    let mut all = vec![(draft.path, name.to_string(), map(draft.buckets.expect(whole), shared))];
    for member in own {
        let own = member.own.expect("partitioned by it");
        all.push((
            own.path,
            format!("{name}-{}", member.name),
            GroupMap { is_override: true, ..map(own.buckets, vec![member.name.clone()]) },
        ));
    }
    all
}
