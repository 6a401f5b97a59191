//! Where records are: ids, tokens, addresses, and the instances that they lead to.
//!
//! ```text
//! id      g1:apac:3:ses_{uuid}                 leads to one instance
//! token   g1:apac:3:rft_{uuid}.{n}.{secret}    the n-th id of the family g1:apac:3:rft_{uuid}
//! key     user1:client1                        one instance in each generation in force
//! ```
//!
//! Within an instance a record's key is `ses_{uuid}` if it has an id, `={key}` if it is stored under a key of the
//! client's, and `+{route}` and a name if a route has several. The first character keeps the three apart: a prefix is
//! letters and digits.
//!
//! An id is a route and never authority: the tenant is the caller's, and its name is part of the instance. So an id of
//! another tenant leads to an instance where there is no such record, at the cost of one lookup, like any other. One
//! whose parts do not agree leads nowhere, and is looked for all the same, at a place where nothing is ([`decoy`]).

use super::spec::StoreSpec;
use super::{Result, tables};
use isles_kernel::error::SqlError;
use isles_kernel::hash::{BucketCount, bucket_of};
use isles_kernel::id::{Generation, PAR_URN_PREFIX, ResourceId, TypePrefix, UniquePart};
use isles_kernel::names::{BucketId, RegionName, TenantId};
use isles_kernel::placement::{GenerationMap, GroupMap, Placement, Timestamp};
use std::collections::BTreeSet;

/// The longest key, route or name of a client's. Longer than any id.
pub const MAX_KEY_BYTES: usize = 512;

/// What rows have for a generation that are of none: counters, and notes that only guard.
pub(super) const NO_GENERATION: i64 = -1;

/// The key of what is looked for and never there. No other begins with this character.
const NOTHING: &str = "!";

/// How an operation names a record.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    Id(String),
    /// What is hashed is the name as well.
    Key(String),
    /// One of several of a route: a request of an issuer.
    Within {
        route: String,
        name: String,
    },
}

impl Address {
    pub fn id(id: impl Into<String>) -> Address {
        Address::Id(id.into())
    }

    pub fn key(key: impl Into<String>) -> Address {
        Address::Key(key.into())
    }

    pub fn within(route: impl Into<String>, name: impl Into<String>) -> Address {
        Address::Within { route: route.into(), name: name.into() }
    }

    /// What people call it.
    pub(super) fn shown(&self) -> String {
        match self {
            Address::Id(id) => id.clone(),
            Address::Key(key) => key.clone(),
            Address::Within { route, name } => format!("{route} {name}"),
        }
    }
}

/// One place where a record is or may be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Spot {
    pub(super) table: String,
    pub(super) instance: String,
    pub(super) key: String,
    pub(super) generation: Generation,
    pub(super) region: String,
    /// None for a singleton.
    pub(super) group: Option<String>,
    pub(super) space: String,
    pub(super) bucket: u32,
    /// How many buckets its space has.
    pub(super) buckets: u32,
}

/// The part of a token that changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Turn {
    pub(super) number: u64,
    pub(super) secret: String,
}

/// An id that was read: where it leads, and its turn if it is a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Followed {
    pub(super) spot: Spot,
    pub(super) turn: Option<Turn>,
    /// Without the turn.
    pub(super) family: String,
}

pub(super) fn timestamp(micros: i64) -> Timestamp {
    Timestamp::from_microsecond(micros).unwrap_or(Timestamp::MAX)
}

/// The buckets of a store in one generation; none if that generation did not have it.
fn group_in<'a>(map: &'a GenerationMap, spec: &StoreSpec) -> Option<&'a GroupMap> {
    map.group_for(&spec.name, spec.group.as_ref()?)
}

fn unplaced(spec: &StoreSpec) -> SqlError {
    let group = spec.group.as_ref().map_or("", |group| group.as_str());
    SqlError::new("42704", format!("store {} is in group {group}, which the placement does not have", spec.name))
        .with_hint("add the group to the tenant's placement, or alter the store")
}

fn spot(
    spec: &StoreSpec,
    tenant: &TenantId,
    map: &GenerationMap,
    group: &GroupMap,
    bucket: BucketId,
    key: String,
) -> Option<Spot> {
    let (region, generation) = (group.region_of(bucket)?, map.generation());
    let suffix = if generation == Generation::FIRST { String::new() } else { format!(":{generation}") };
    Some(Spot {
        table: tables::name(region.as_str(), spec.has_alias),
        // A space of a later generation has it in its name, and the suffix says it to people.
        instance: format!("{tenant}:{region}:{}:{bucket}{suffix}", group.space()),
        key,
        generation,
        region: region.to_string(),
        group: Some(group.group().to_string()),
        space: group.space().to_string(),
        bucket: bucket.0,
        buckets: group.buckets().get(),
    })
}

fn single(spec: &StoreSpec, tenant: &TenantId, key: String) -> Spot {
    let instance = format!("{tenant}:{}:{}:0", tables::GLOBAL, spec.name);
    let (table, region) = (tables::name(tables::GLOBAL, false), tables::GLOBAL.to_owned());
    let (generation, space) = (Generation::FIRST, spec.name.to_string());
    Spot { table, instance, key, generation, region, group: None, space, bucket: 0, buckets: 1 }
}

/// Where an id leads; none if its parts do not exist or do not agree, and for an id of another store.
pub(super) fn follow(
    spec: &StoreSpec,
    placement: &Placement,
    tenant: &TenantId,
    id: &str,
    now: i64,
) -> Option<Followed> {
    // As a `request_uri` carries it.
    let id = ResourceId::parse(id.strip_prefix(PAR_URN_PREFIX).unwrap_or(id)).ok()?;
    let map = placement.generations().find(|map| map.generation() == id.generation())?;
    if !map.in_force(timestamp(now)) || !spec.accepts(id.prefix(), id.generation()) {
        return None;
    }
    let group = group_in(map, spec)?;
    if group.region_of(id.bucket()) != Some(id.region()) {
        return None;
    }
    let (unique, turn) = match spec.rotates {
        true => split_token(id.unique().as_str())?,
        false => (id.unique().as_str(), None),
    };
    let key = format!("{}_{unique}", id.prefix());
    let family = format!("{}:{}:{}:{key}", id.generation(), id.region(), id.bucket());
    Some(Followed { spot: spot(spec, tenant, map, group, id.bucket(), key)?, turn, family })
}

/// A place where nothing is, for an id that leads nowhere: who asks for it is answered after the same work.
pub(super) fn decoy(spec: &StoreSpec, placement: &Placement, tenant: &TenantId, id: &str) -> Option<Spot> {
    if spec.is_singleton() {
        return Some(single(spec, tenant, NOTHING.to_owned()));
    }
    let map = placement.current();
    let group = group_in(map, spec)?;
    spot(spec, tenant, map, group, group.bucket_of(id), NOTHING.to_owned())
}

/// `{uuid}` or `{uuid}.{n}.{secret}`.
fn split_token(unique: &str) -> Option<(&str, Option<Turn>)> {
    let mut parts = unique.split('.');
    let uuid = parts.next()?;
    let Some(number) = parts.next() else { return Some((uuid, None)) };
    let secret = parts.next()?;
    let canonical = !number.is_empty() && !number.starts_with('0') && number.bytes().all(|byte| byte.is_ascii_digit());
    if !canonical || secret.is_empty() || parts.next().is_some() {
        return None;
    }
    Some((uuid, Some(Turn { number: number.parse().ok()?, secret: secret.to_owned() })))
}

/// The n-th token of a family.
pub(super) fn token(family: &str, turn: &Turn) -> String {
    format!("{family}.{}.{}", turn.number, turn.secret)
}

/// Which region is wanted for a new record.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Wanted<'a> {
    /// It must be this one.
    pub(super) region: Option<&'a RegionName>,
    /// It should be this one. A key says where its record is, so this is for records without; and where the placement
    /// has no such region, its shares say it.
    pub(super) near: Option<&'a RegionName>,
}

/// Where a new record with an id goes, and its id.
pub(super) fn mint(
    spec: &StoreSpec,
    placement: &Placement,
    tenant: &TenantId,
    (route, wanted): (Option<&str>, Wanted<'_>),
    unique: &str,
) -> Result<(Spot, String)> {
    let map = placement.current();
    let group = group_in(map, spec).ok_or_else(|| unplaced(spec))?;
    if let Some(region) = wanted.region {
        check_region(map, region)?;
    }
    let near = wanted.near.filter(|region| has_region(placement, region));
    let bucket = match (route, wanted.region.or(near)) {
        (None, Some(region)) => bucket_in(group, unique, region)?,
        (route, _) => {
            let bucket = group.bucket_of(route.unwrap_or(unique));
            let home = group.region_of(bucket);
            if let (Some(wanted), Some(home)) = (wanted.region, home)
                && wanted != home
            {
                return Err(SqlError::new("22023", format!("the key belongs to region {home}, not {wanted}"))
                    .with_hint("only stores with random keys can choose a region"));
            }
            bucket
        }
    };
    let key = format!("{}_{unique}", spec.prefix);
    let spot = spot(spec, tenant, map, group, bucket, key).ok_or_else(|| unplaced(spec))?;
    let wrong = |error: &dyn std::fmt::Display| SqlError::new("22023", format!("no id can be made: {error}"));
    let region = RegionName::new(spot.region.clone()).map_err(|error| wrong(&error))?;
    let unique = UniquePart::new(unique).map_err(|error| wrong(&error))?;
    let id = ResourceId::mint(map.generation(), region, bucket, TypePrefix::clone(&spec.prefix), unique);
    Ok((spot, id.map_err(|error| wrong(&error))?.to_string()))
}

/// Whether new records can be in a region.
pub(super) fn has_region(placement: &Placement, region: &RegionName) -> bool {
    placement.current().regions().any(|known| known == region)
}

/// A region that is demanded and misspelt, or that the tenant has left, is no place for its records.
fn check_region(map: &GenerationMap, region: &RegionName) -> Result<()> {
    let regions: BTreeSet<&str> = map.regions().map(RegionName::as_str).collect();
    match regions.contains(region.as_str()) {
        true => Ok(()),
        false => Err(SqlError::new("22023", format!("region {region} is not one of the tenant's placement"))
            .with_hint(format!("it has {}", regions.into_iter().collect::<Vec<_>>().join(", ")))),
    }
}

fn bucket_in(group: &GroupMap, unique: &str, region: &RegionName) -> Result<BucketId> {
    let range = group.ranges().iter().find(|range| range.region == *region);
    let count = range.and_then(|range| BucketCount::new(range.bucket_count()));
    let (Some(range), Some(count)) = (range, count) else {
        return Err(SqlError::new("22023", format!("region {region} has no buckets of group {}", group.group())));
    };
    Ok(BucketId(range.first.0 + bucket_of(unique, group.salt(), count).0))
}

/// Where a key is looked for: the current generation, then previous ones that are in force. Never empty.
pub(super) fn of_key(
    spec: &StoreSpec,
    placement: &Placement,
    tenant: &TenantId,
    address: &Address,
    now: i64,
) -> Result<Vec<Spot>> {
    let (route, key) = match address {
        Address::Id(_) => return Err(SqlError::new("22023", "an id is not a key")),
        Address::Key(key) => (key, format!("={key}")),
        Address::Within { route, name } => (route, format!("+{route}\n{name}")),
    };
    check_key("key", route)?;
    if let Address::Within { name, .. } = address {
        check_key("name", name)?;
    }
    if spec.is_singleton() {
        return Ok(vec![single(spec, tenant, key)]);
    }
    let in_force = placement.generations().filter(|map| map.in_force(timestamp(now)));
    let of = |map: &GenerationMap| {
        let group = group_in(map, spec)?;
        spot(spec, tenant, map, group, group.bucket_of(route), key.clone())
    };
    let spots: Vec<Spot> = in_force.filter_map(of).collect();
    match spots.first().is_some_and(|spot| spot.generation == placement.current().generation()) {
        true => Ok(spots),
        false => Err(unplaced(spec)),
    }
}

pub(super) fn check_key(what: &str, key: &str) -> Result<()> {
    if key.is_empty() || key.len() > MAX_KEY_BYTES {
        return Err(SqlError::new("22023", format!("a {what} has 1 to {MAX_KEY_BYTES} bytes")));
    }
    match key.chars().find(|c| c.is_control()) {
        Some(found) => Err(SqlError::new("22023", format!("a {what} may not contain {found:?}"))),
        None => Ok(()),
    }
}

/// What people call a record that was found in an instance: its id, or the key it was stored under.
pub(super) fn shown(instance: &str, key: &str) -> String {
    if let Some(plain) = key.strip_prefix('=') {
        return plain.to_owned();
    }
    if let Some(within) = key.strip_prefix('+') {
        return within.replacen('\n', " ", 1);
    }
    let mut parts = instance.rsplit(':');
    let last = parts.next().unwrap_or_default();
    let (bucket, generation) = match last.strip_prefix('g') {
        Some(_) => (parts.next().unwrap_or_default(), last),
        None => (last, "g1"),
    };
    let region = parts.nth(1).unwrap_or_default();
    format!("{generation}:{region}:{bucket}:{key}")
}

/// Random bytes as a version 4 UUID.
pub(super) fn uuid(mut bytes: [u8; 16]) -> String {
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

/// Random bytes as the secret of a token.
pub(super) fn secret(bytes: [u8; 16]) -> String {
    use base64::Engine;
    base64::prelude::BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod properties;

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::identity::preset;
    use super::*;

    fn spec(name: &str) -> StoreSpec {
        preset()
            .into_iter()
            .map(|config| StoreSpec::check(config).unwrap())
            .find(|spec| spec.name.as_str() == name)
            .unwrap()
    }

    fn tenant(name: &str) -> TenantId {
        TenantId::new(name).unwrap()
    }

    #[test]
    fn an_id_leads_to_the_instance_of_whoever_asks() {
        let (spec, placement) = (spec("session"), Placement::preset());
        let (spot, id) = mint(&spec, &placement, &tenant("acme"), (None, Wanted::default()), "abc123-def456").unwrap();
        let followed = follow(&spec, &placement, &tenant("acme"), &id, 0).unwrap();
        assert_eq!((&followed.spot, &followed.family), (&spot, &id));
        let other = follow(&spec, &placement, &tenant("evil"), &id, 0).unwrap();
        assert!(other.spot.instance.starts_with("evil:") && spot.instance.starts_with("acme:"));
        assert_eq!(shown(&spot.instance, &spot.key), id);
    }

    #[test]
    fn forged_ids_lead_nowhere() {
        let (spec, placement) = (spec("session"), Placement::preset());
        let acme = tenant("acme");
        let good = mint(&spec, &placement, &acme, (None, Wanted::default()), "x").unwrap().1;
        assert!(follow(&spec, &placement, &acme, &good, 0).is_some());
        let region_of_0 =
            placement.current().groups().iter().find(|g| g.group().as_str() == "random-medium-rps").unwrap();
        let home = region_of_0.region_of(BucketId(0)).unwrap();
        let away = ["apac", "enam", "weur"].into_iter().find(|region| *region != home.as_str()).unwrap();
        let forged = [
            format!("g2:{home}:0:ses_x"),
            format!("g1:{home}:32:ses_x"),
            format!("g1:{away}:0:ses_x"),
            format!("g1:{home}:0:acd_x"),
            format!("g1:{home}:00:ses_x"),
            format!("g01:{home}:0:ses_x"),
            "g1:mars:0:ses_x".to_owned(),
            "ses_x".to_owned(),
            String::new(),
        ];
        for id in forged {
            assert!(follow(&spec, &placement, &acme, &id, 0).is_none(), "{id}");
            let decoy = decoy(&spec, &placement, &acme, &id).unwrap();
            assert_eq!(decoy.key, NOTHING);
        }
        let urn = format!("{PAR_URN_PREFIX}{good}");
        assert_eq!(follow(&spec, &placement, &acme, &urn, 0).unwrap().family, good, "as a request_uri carries it");
    }

    #[test]
    fn tokens_are_read_in_their_canonical_form_only() {
        assert_eq!(split_token("u"), Some(("u", None)));
        let turn = |number, secret: &str| Some(Turn { number, secret: secret.into() });
        assert_eq!(split_token("u.12.s"), Some(("u", turn(12, "s"))));
        for wrong in ["u.", "u.1", "u.1.", "u.01.s", "u.0.s", "u.1.s.t", "u.x.s", "u.99999999999999999999.s"] {
            assert_eq!(split_token(wrong), None, "{wrong}");
        }
    }

    /// Codes and refresh families of one user and client share an instance.
    #[test]
    fn colocated_kinds_share_an_instance() {
        let placement = Placement::preset();
        for number in 0..500 {
            let route = format!("user{number}:client{}", number % 7);
            let of = |name| {
                mint(&spec(name), &placement, &tenant("acme"), (Some(&route), Wanted::default()), "u").unwrap().0
            };
            let (code, family) = (of("authcode"), of("refresh"));
            assert_eq!((code.table, code.instance), (family.table, family.instance));
        }
    }

    /// A hint gives way to the key, and to the shares where the placement does not have the region; a region that is
    /// demanded does not.
    #[test]
    fn a_region_is_demanded_or_hinted_at() {
        let (placement, acme) = (Placement::preset(), tenant("acme"));
        let region = |name: &str| RegionName::new(name).unwrap();
        let minted = |store: &str, route: Option<&str>, wanted: Wanted<'_>| {
            mint(&spec(store), &placement, &acme, (route, wanted), "u").map(|(spot, _)| spot.region)
        };
        let (apac, mars) = (region("apac"), region("mars"));
        let near = Wanted { near: Some(&apac), ..Wanted::default() };
        assert_eq!(minted("session", None, near).unwrap(), "apac");
        let home = region(&minted("authcode", Some("user1:client1"), Wanted::default()).unwrap());
        let away = ["apac", "enam", "weur"].map(region).into_iter().find(|other| *other != home).unwrap();
        let near = Wanted { near: Some(&away), ..Wanted::default() };
        assert_eq!(minted("authcode", Some("user1:client1"), near).unwrap(), home.as_str());
        let demanded = Wanted { region: Some(&away), near: Some(&home) };
        assert_eq!(minted("session", None, demanded).unwrap(), away.as_str());
        assert!(minted("authcode", Some("user1:client1"), demanded).unwrap_err().message.contains("belongs to region"));
        for (store, route) in [("session", None), ("authcode", Some("user1:client1"))] {
            let error = minted(store, route, Wanted { near: None, region: Some(&mars) }).unwrap_err();
            assert_eq!((error.sqlstate, error.hint.as_deref()), ("22023", Some("it has apac, enam, weur")));
            // Whoever merely is somewhere is served, by the shares.
            let hinted = minted(store, route, Wanted { near: Some(&mars), region: None }).unwrap();
            assert_eq!(hinted, minted(store, route, Wanted::default()).unwrap(), "{store}");
        }
    }

    #[test]
    fn keys_of_three_forms_never_meet() {
        let (spec, placement) = (spec("challenge"), Placement::preset());
        let keys = |address: Address| of_key(&spec, &placement, &tenant("acme"), &address, 0).unwrap().remove(0).key;
        let all = [keys(Address::key("a")), keys(Address::within("a", "b")), keys(Address::key("a b"))];
        assert_eq!(all.iter().collect::<std::collections::BTreeSet<_>>().len(), 3);
        assert!(of_key(&spec, &placement, &tenant("acme"), &Address::key("a\nb"), 0).is_err());
        assert!(of_key(&spec, &placement, &tenant("acme"), &Address::key(""), 0).is_err());
    }
}
