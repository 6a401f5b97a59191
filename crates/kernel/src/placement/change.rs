//! Checks the step from one configuration to the next.
//!
//! A record is found by hashing its key again, so what a generation says about a type may never change while
//! the generation is known: not its count, salt, group, or regions. What must change becomes a new generation.
//!
//! Invariants:
//!   * A generation number means one mapping for ever; numbers only rise and are not reused.
//!   * The generation that was current is kept as a previous one, and each previous one until it expires.
//!   * That holds for every group of a generation, whether or not it has members: types that are kept and not listed
//!     ([`KeptType`]) may be in it.

use super::errors::{ConfigErrors, ErrorCode, FieldError, at};
use super::kept::{KeptType, kept_stay};
use super::registry::TypeName;
use super::{GenerationMap, GroupMap, Placement};
use jiff::Timestamp;

/// Every way in which `new` may not replace `old` at the instant `now`, while these types are kept.
pub fn validate_change(
    old: &Placement,
    new: &Placement,
    kept: &[KeptType],
    now: Timestamp,
) -> Result<(), ConfigErrors> {
    let mut errors = Vec::new();
    generation_rises(old, new, &mut errors);
    types_stay(old, new, &mut errors);
    for map in old.generations() {
        match new.generations().position(|candidate| candidate.generation() == map.generation()) {
            Some(index) => {
                mapping_stays(map, new, index, &mut errors);
                report_new(kept_stay(map, new, index, kept), &mut errors);
            }
            None => may_be_dropped(map, now, &mut errors),
        }
    }
    nothing_returns(old, new, &mut errors);
    ConfigErrors::none_of(errors)
}

fn fail(errors: &mut Vec<FieldError>, field: String, code: ErrorCode, message: String) {
    errors.push(FieldError { field, code, message });
}

fn generation_rises(old: &Placement, new: &Placement, errors: &mut Vec<FieldError>) {
    let (from, to) = (old.current().generation(), new.current().generation());
    if to < from {
        let message = format!("must not fall, it is {} already; got {}", from.get(), to.get());
        fail(errors, "currentGeneration".to_owned(), ErrorCode::GenerationFell, message);
    }
}

fn types_stay(old: &Placement, new: &Placement, errors: &mut Vec<FieldError>) {
    for spec in old.registry().types() {
        let path = at("types", spec.name.as_str());
        let Some(now) = new.registry().get(&spec.name) else { continue };
        if now.key != spec.key {
            let message = format!("the key of {} is {} and cannot change", spec.name, spec.key);
            fail(errors, at(&path, "key"), ErrorCode::TypeChanged, message);
        }
        let readable = |prefix| new.registry().by_prefix(prefix).is_some_and(|owner| owner.name == spec.name);
        if !std::iter::once(&spec.prefix).chain(&spec.legacy_prefixes).all(readable) {
            let message = format!("a prefix of {} that ids carry is gone; keep it in legacyPrefixes", spec.name);
            fail(errors, at(&path, "prefix"), ErrorCode::TypeChanged, message);
        }
    }
}

fn mapping_stays(map: &GenerationMap, new: &Placement, index: usize, errors: &mut Vec<FieldError>) {
    let Some(now) = new.generations().nth(index) else { return };
    let path = path_of(index);
    let of_types = map.types().flat_map(|(name, group)| differences(&path, name, group, now.group_of(name)));
    let of_groups = map.groups().iter().filter(|group| !group.is_override()).flat_map(|group| {
        let found = now.group_named(group.group());
        found.map_or_else(Vec::new, |found| group_differences(&path, group, found))
    });
    let number = map.generation().get();
    let changed = |(field, what)| {
        let message = format!("{what} of generation {number} cannot change; raise currentGeneration");
        FieldError { field, code: ErrorCode::MappingChanged, message }
    };
    report_new(of_types.chain(of_groups).map(changed).collect(), errors);
}

/// Reports each field once, however many types and groups are led elsewhere by it.
fn report_new(found: Vec<FieldError>, errors: &mut Vec<FieldError>) {
    for error in found {
        if !errors.iter().any(|known| known.field == error.field && known.code == error.code) {
            errors.push(error);
        }
    }
}

/// Where the generation of an index is written.
pub(super) fn path_of(index: usize) -> String {
    if index == 0 { String::new() } else { format!("previousGenerations[{}]", index - 1) }
}

/// What leads a key of type `name` elsewhere than before.
pub(super) fn differences(
    path: &str,
    name: &TypeName,
    old: &GroupMap,
    new: Option<&GroupMap>,
) -> Vec<(String, &'static str)> {
    let groups = at(path, "groups");
    let Some(new) = new else { return vec![(groups, "a member")] };
    let group = at(&groups, new.group().as_str());
    if new.group() != old.group() {
        return vec![(at(&group, "members"), "the group of a member")];
    }
    let mut found = group_differences(path, old, new);
    let has_other_count = new.buckets() != old.buckets() || new.space() != old.space();
    if has_other_count && (new.is_override() || new.space() != old.space()) {
        let count = at(&group, "totalShards");
        found.retain(|(field, _)| *field != count);
        found.insert(0, (at(&at(&group, "overrides"), name.as_str()), "the count"));
    }
    found
}

/// The same of all that is in a group, listed or not.
fn group_differences(path: &str, old: &GroupMap, new: &GroupMap) -> Vec<(String, &'static str)> {
    let group = at(&at(path, "groups"), new.group().as_str());
    let mut found = Vec::new();
    if new.buckets() != old.buckets() {
        found.push((at(&group, "totalShards"), "the count"));
    } else if new.ranges() != old.ranges() {
        let field = if path.is_empty() { "baseRegions".to_owned() } else { at(path, "regions") };
        found.push((field, "the regions"));
    }
    if new.salt() != old.salt() {
        found.push((at(&group, "salt"), "the salt"));
    }
    found
}

fn may_be_dropped(map: &GenerationMap, now: Timestamp, errors: &mut Vec<FieldError>) {
    let number = map.generation().get();
    let message = match map.valid_until() {
        None => format!("must record generation {number}, which was current"),
        Some(until) if now < until => format!("generation {number} is read until {until} and cannot be dropped yet"),
        Some(_) => return,
    };
    fail(errors, "previousGenerations".to_owned(), ErrorCode::GenerationDropped, message);
}

fn nothing_returns(old: &Placement, new: &Placement, errors: &mut Vec<FieldError>) {
    for (i, map) in new.previous().iter().enumerate() {
        let known = old.generations().any(|candidate| candidate.generation() == map.generation());
        if !known && map.generation() < old.current().generation() {
            let message = format!("generation {} was retired and cannot return", map.generation().get());
            fail(errors, format!("previousGenerations[{i}].generation"), ErrorCode::GenerationReused, message);
        }
    }
}
