//! Types that are kept and that no configuration lists: they name their group themselves.
//!
//! A key of theirs is hashed like any other. So what a configuration must not do to the types that it lists, it must not
//! do to these: leave them without buckets, lead their keys elsewhere within a generation, or give types that are keyed by
//! the same values different counts.
//!
//! Such a type is in the group that it names, and where a generation has no such group, in the default one. Both must be
//! asked of the generation as a whole ([`GenerationMap::group_for`]): a group that is added takes keys from the default
//! one, and a group that is dropped gives them to it.

use super::change::{differences, path_of};
use super::errors::{ConfigErrors, ErrorCode, FieldError, at};
use super::registry::{Colocation, KeySchema, TypeName};
use super::{GenerationMap, GroupMap, Placement};
use crate::names::GroupName;

/// A type that is kept, as it says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptType {
    pub name: TypeName,
    /// The group that it is in where no group has it as a member.
    pub group: GroupName,
    pub key: KeySchema,
}

/// One that a configuration does not list, and its buckets there.
struct Placed<'a> {
    kept: &'a KeptType,
    group: &'a GroupMap,
}

/// Every way in which the current generation is no place for types that are kept.
pub fn check_kept(placement: &Placement, kept: &[KeptType]) -> Result<(), ConfigErrors> {
    let mut errors = Vec::new();
    let mut placed: Vec<Placed<'_>> = Vec::new();
    for one in kept.iter().filter(|one| placement.registry().get(&one.name).is_none()) {
        let Some(group) = placement.current().group_for(&one.name, &one.group) else {
            errors.push(gone("", one));
            continue;
        };
        if let Some(key) = group.key().filter(|key| **key != one.key) {
            let message = format!("{} is kept in this group and keyed by {}, its group by {key}", one.name, one.key);
            let field = at(&at("groups", group.group().as_str()), "key");
            errors.push(FieldError { field, code: ErrorCode::KeyMismatch, message });
        }
        let one = Placed { kept: one, group };
        errors.extend(apart_from_listed(placement, &one));
        errors.extend(placed.iter().find_map(|other| apart(&one, (&other.kept.name, &other.kept.key, other.group))));
        placed.push(one);
    }
    ConfigErrors::none_of(errors)
}

fn apart_from_listed(placement: &Placement, one: &Placed<'_>) -> Option<FieldError> {
    let listed = placement.current().types().filter(|(_, group)| !group.is_override());
    let mut listed = listed.filter_map(|(name, group)| Some((name, &placement.registry().get(name)?.key, group)));
    listed.find_map(|other| apart(one, other))
}

/// Why two types that are keyed by the same values do not meet.
fn apart(one: &Placed<'_>, (name, key, group): (&TypeName, &KeySchema, &GroupMap)) -> Option<FieldError> {
    if one.kept.key != *key {
        return None;
    }
    let path = at("groups", one.group.group().as_str());
    let fault = |field: &str, code, what: &str| {
        let message = format!("{} and {name} are keyed by {key} and must have the same {what}", one.kept.name);
        Some(FieldError { field: at(&path, field), code, message })
    };
    match key.colocation() {
        Colocation::Unrelated => None,
        Colocation::Required if one.group.group() != group.group() => {
            fault("members", ErrorCode::ColocationSplit, "group")
        }
        _ if one.group.buckets() != group.buckets() => fault("totalShards", ErrorCode::SameKeyCount, "count"),
        _ if one.group.salt() != group.salt() => fault("salt", ErrorCode::SameKeySalt, "salt"),
        _ => None,
    }
}

fn gone(path: &str, kept: &KeptType) -> FieldError {
    let field = at(&at(path, "groups"), kept.group.as_str());
    let message = format!("{} is kept in this group, which is not there", kept.name);
    FieldError { field, code: ErrorCode::GroupInUse, message }
}

/// Every way in which a generation that stays leads keys of such types elsewhere.
pub(super) fn kept_stay(map: &GenerationMap, new: &Placement, index: usize, kept: &[KeptType]) -> Vec<FieldError> {
    let Some(now) = new.generations().nth(index) else { return Vec::new() };
    let (path, mut errors) = (path_of(index), Vec::new());
    // Of those that are members before and after, the members are compared.
    let is_member = |one: &&KeptType| map.group_of(&one.name).is_some() && now.group_of(&one.name).is_some();
    for one in kept.iter().filter(|one| !is_member(one)) {
        let Some(group) = map.group_for(&one.name, &one.group) else { continue };
        let Some(found) = now.group_for(&one.name, &one.group) else {
            errors.push(gone(&path, one));
            continue;
        };
        if found.group() != group.group() {
            let field = at(&at(&path, "groups"), one.group.as_str());
            let (from, to, number) = (group.group(), found.group(), map.generation().get());
            let message = format!(
                "{} is kept in group {from} of generation {number}, and would be in {to}; raise currentGeneration",
                one.name
            );
            errors.push(FieldError { field, code: ErrorCode::GroupInUse, message });
            continue;
        }
        for (field, what) in differences(&path, &one.name, group, Some(found)) {
            let number = map.generation().get();
            let message = format!("{what} of generation {number} cannot change; raise currentGeneration");
            errors.push(FieldError { field, code: ErrorCode::MappingChanged, message });
        }
    }
    errors
}
