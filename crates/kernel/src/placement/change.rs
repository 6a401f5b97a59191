//! Checks the step from one configuration to the next.
//!
//! A record is found by hashing its key again, so what a generation says about a type may never change while
//! the generation is known: not its count, salt, group, or regions. What must change becomes a new generation.
//!
//! Invariants:
//!   * A generation number means one mapping for ever; numbers only rise and are not reused.
//!   * The generation that was current is kept as a previous one, and each previous one until it expires.

use super::errors::{ConfigErrors, ErrorCode, FieldError, at};
use super::registry::TypeName;
use super::{GenerationMap, GroupMap, Placement};
use jiff::Timestamp;

/// Every way in which `new` may not replace `old` at the instant `now`.
pub fn validate_change(old: &Placement, new: &Placement, now: Timestamp) -> Result<(), ConfigErrors> {
    let mut errors = Vec::new();
    generation_rises(old, new, &mut errors);
    types_stay(old, new, &mut errors);
    for map in old.generations() {
        match new.generations().position(|candidate| candidate.generation() == map.generation()) {
            Some(index) => mapping_stays(map, new, index, &mut errors),
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
    let path = if index == 0 { String::new() } else { format!("previousGenerations[{}]", index - 1) };
    let mut reported = Vec::new();
    for (name, group) in map.types() {
        for (field, what) in differences(&path, name, group, now.group_of(name)) {
            if !reported.contains(&field) {
                let message =
                    format!("{what} of generation {} cannot change; raise currentGeneration", map.generation().get());
                fail(errors, field.clone(), ErrorCode::MappingChanged, message);
                reported.push(field);
            }
        }
    }
}

/// What leads a key of type `name` elsewhere than before.
fn differences(path: &str, name: &TypeName, old: &GroupMap, new: Option<&GroupMap>) -> Vec<(String, &'static str)> {
    let groups = at(path, "groups");
    let Some(new) = new else { return vec![(groups, "a member")] };
    let group = at(&groups, new.group().as_str());
    if new.group() != old.group() {
        return vec![(at(&group, "members"), "the group of a member")];
    }
    let mut found = Vec::new();
    if new.buckets() != old.buckets() || new.space() != old.space() {
        let own = new.space() != old.space() || new.is_override();
        let field = if own { at(&at(&group, "overrides"), name.as_str()) } else { at(&group, "totalShards") };
        found.push((field, "the count"));
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
