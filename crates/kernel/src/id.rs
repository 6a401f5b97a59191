//! Ids that say where their record is, and the names of the places they lead to.
//!
//! ```text
//! g{generation}:{region}:{shard}:{type}_{uuid}     a resource id; `shard` is a bucket
//! {tenant}:{region}:{type}:{shard}                 an instance name of generation 1
//! {tenant}:{region}:{type}:{shard}:g{generation}   an instance name of any other generation
//! ```
//!
//! Parsing here is about form; whether the generation, region, bucket and type exist is asked of
//! [`Placement::check_id`](crate::placement::Placement::check_id). An id is a route and never authority.
//!
//! Invariants:
//!   * I-36  Ids of different parts are different texts: uniqueness of the uuid is uniqueness of the id.
//!   * I-37  An id names a bucket, never a shard, so it stays right when buckets move.
//!   * I-38  Parsing what was printed gives the same id; parsing anything else is an error and never a panic.
//!
//! Only the canonical form is accepted: were `g01` or `+3` read as `g1` and `3`, one record would have many ids,
//! and a check for reuse by text would miss its twin. Instance names carry the generation because two
//! generations may send different keys to bucket 3: with one name for both, neither could be drained. Generation
//! 1 goes without, so that names from before there were generations stay valid. A tenant may contain colons, so
//! an instance name is read from its right end, where every part is bounded.

use crate::hash::MAX_BUCKETS;
use crate::names::{BucketId, NameError, RegionName, TenantId};
use serde::Serialize;
use std::fmt;
use std::str::FromStr;

/// The last generation. Ids hold it in three digits.
pub const MAX_GENERATION: u16 = 999;

/// The longest type prefix, in bytes. Prefixes are 3 letters now; the longest old one is `session`.
pub const MAX_PREFIX_BYTES: usize = 16;

/// The longest unique part, in bytes. A UUID has 36; proof ids chosen by clients may be longer.
pub const MAX_UNIQUE_BYTES: usize = 128;

/// The longest id or instance name that is looked at, in bytes. Each canonical one is shorter: the longest
/// tenant has 64 characters of 4 bytes, the longest region 63 bytes.
pub const MAX_ID_BYTES: usize = 512;

/// What a pushed authorization request's id is preceded by when it travels as a `request_uri`.
pub const PAR_URN_PREFIX: &str = "urn:ietf:params:oauth:request_uri:";

/// A part of an id or instance name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum IdField {
    Id,
    Tenant,
    Generation,
    Region,
    Shard,
    Type,
    Uuid,
}

impl fmt::Display for IdField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IdField::Id => "id",
            IdField::Tenant => "tenant",
            IdField::Generation => "generation",
            IdField::Region => "region",
            IdField::Shard => "shard",
            IdField::Type => "type",
            IdField::Uuid => "uuid",
        })
    }
}

/// Why a text is not an id or instance name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    #[error("the {field} is missing")]
    Missing { field: IdField },
    #[error("the {field} is longer than {limit} bytes")]
    TooLong { field: IdField, limit: usize },
    #[error("the {field} may not contain {found:?}")]
    BadCharacter { field: IdField, found: char },
    #[error("the {field} is not a number in its shortest form")]
    NotCanonical { field: IdField },
    #[error("the {field} is not in {min}..={max}")]
    OutOfRange { field: IdField, min: u32, max: u32 },
    #[error("the id does not begin with {PAR_URN_PREFIX}")]
    NotRequestUri,
}

impl IdError {
    /// The part at fault.
    pub fn field(&self) -> IdField {
        match self {
            IdError::Missing { field }
            | IdError::TooLong { field, .. }
            | IdError::BadCharacter { field, .. }
            | IdError::NotCanonical { field }
            | IdError::OutOfRange { field, .. } => *field,
            IdError::NotRequestUri => IdField::Id,
        }
    }

    /// A stable name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            IdError::Missing { .. } => "missing",
            IdError::TooLong { .. } => "too_long",
            IdError::BadCharacter { .. } => "bad_character",
            IdError::NotCanonical { .. } => "not_canonical",
            IdError::OutOfRange { .. } => "out_of_range",
            IdError::NotRequestUri => "not_request_uri",
        }
    }

    /// What to do about it.
    pub fn hint(&self) -> &'static str {
        match (self, self.field()) {
            (IdError::NotRequestUri, _) => "a request uri is urn:ietf:params:oauth:request_uri: and then an id",
            (_, IdField::Generation) => "a generation is g1 to g999, without leading zeros",
            (_, IdField::Region) => "a region is lower-case letters, such as apac, enam or weur",
            (_, IdField::Shard) => "a shard is a number from 0, without sign or leading zeros",
            (_, IdField::Type) => "a type is 2 to 16 lower-case letters or digits before an underscore, such as ses_",
            (_, IdField::Uuid) => "a uuid is 1 to 128 letters, digits or any of - . _ ~ :",
            (_, IdField::Tenant) => "a tenant is 1 to 64 characters, none of them a control character",
            (_, IdField::Id) => "an id looks like g1:apac:3:ses_abc123-def456",
        }
    }
}

/// A version of a group's hashing: its bucket count, salt and region shares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct Generation(u16);

impl Generation {
    pub const FIRST: Generation = Generation(1);

    /// Generation 0: what was written before ids carried a generation. It can be read as a previous generation,
    /// by key, and no id can name it.
    pub const LEGACY: Generation = Generation(0);

    /// A generation that ids can name: 1 to [`MAX_GENERATION`].
    pub fn new(number: u32) -> Result<Generation, IdError> {
        match u16::try_from(number) {
            Ok(n @ 1..=MAX_GENERATION) => Ok(Generation(n)),
            _ => Err(IdError::OutOfRange { field: IdField::Generation, min: 1, max: u32::from(MAX_GENERATION) }),
        }
    }

    pub fn get(self) -> u16 {
        self.0
    }

    /// None after the last one.
    pub fn next(self) -> Option<Generation> {
        (self.0 < MAX_GENERATION).then(|| Generation(self.0 + 1))
    }

    pub fn is_legacy(self) -> bool {
        self == Generation::LEGACY
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "g{}", self.0)
    }
}

/// How ids and instance names call a type: `ses`, `acd`; 2 to [`MAX_PREFIX_BYTES`] lower-case letters or digits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct TypePrefix(String);

impl TypePrefix {
    pub fn new(prefix: &str) -> Result<TypePrefix, IdError> {
        let field = IdField::Type;
        if prefix.len() < 2 {
            return Err(IdError::Missing { field });
        }
        if prefix.len() > MAX_PREFIX_BYTES {
            return Err(IdError::TooLong { field, limit: MAX_PREFIX_BYTES });
        }
        let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        match prefix.chars().find(|c| !allowed(*c)) {
            Some(found) => Err(IdError::BadCharacter { field, found }),
            None => Ok(TypePrefix(prefix.to_owned())),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for TypePrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The unique part of an id. Usually a UUID; anything that is safe in a URL and unique will do.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct UniquePart(String);

impl UniquePart {
    pub fn new(text: &str) -> Result<UniquePart, IdError> {
        let field = IdField::Uuid;
        if text.is_empty() {
            return Err(IdError::Missing { field });
        }
        if text.len() > MAX_UNIQUE_BYTES {
            return Err(IdError::TooLong { field, limit: MAX_UNIQUE_BYTES });
        }
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | '~' | ':');
        match text.chars().find(|c| !allowed(*c)) {
            Some(found) => Err(IdError::BadCharacter { field, found }),
            None => Ok(UniquePart(text.to_owned())),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for UniquePart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A self-routing id: `g1:apac:3:ses_abc123-def456`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ResourceId {
    generation: Generation,
    region: RegionName,
    bucket: BucketId,
    prefix: TypePrefix,
    unique: UniquePart,
}

impl ResourceId {
    /// Makes the id of a new record. The caller gives the uuid, and with it the promise that it is unique.
    pub fn mint(
        generation: Generation,
        region: RegionName,
        bucket: BucketId,
        prefix: TypePrefix,
        unique: UniquePart,
    ) -> Result<ResourceId, IdError> {
        if generation.is_legacy() {
            return Err(IdError::OutOfRange { field: IdField::Generation, min: 1, max: u32::from(MAX_GENERATION) });
        }
        in_bounds(bucket)?;
        Ok(ResourceId { generation, region, bucket, prefix, unique })
    }

    /// Reads the canonical form, and nothing but it.
    pub fn parse(text: &str) -> Result<ResourceId, IdError> {
        bounded(text)?;
        let mut parts = text.splitn(4, ':');
        let mut part = |field| parts.next().filter(|part| !part.is_empty()).ok_or(IdError::Missing { field });
        let generation = named_generation(part(IdField::Generation)?)?;
        let region = region(part(IdField::Region)?)?;
        let bucket = bucket(part(IdField::Shard)?)?;
        let (prefix, unique) = part(IdField::Type)?.split_once('_').ok_or(IdError::Missing { field: IdField::Type })?;
        ResourceId::mint(generation, region, bucket, TypePrefix::new(prefix)?, UniquePart::new(unique)?)
    }

    /// Reads an id as OAuth's `request_uri` carries it: after [`PAR_URN_PREFIX`].
    ///
    /// A function of its own, because an id that parses with and without a prefix would have two texts.
    pub fn parse_request_uri(text: &str) -> Result<ResourceId, IdError> {
        bounded(text)?;
        ResourceId::parse(text.strip_prefix(PAR_URN_PREFIX).ok_or(IdError::NotRequestUri)?)
    }

    /// The id as a `request_uri`.
    pub fn to_request_uri(&self) -> String {
        format!("{PAR_URN_PREFIX}{self}")
    }

    pub fn generation(&self) -> Generation {
        self.generation
    }

    pub fn region(&self) -> &RegionName {
        &self.region
    }

    pub fn bucket(&self) -> BucketId {
        self.bucket
    }

    pub fn prefix(&self) -> &TypePrefix {
        &self.prefix
    }

    pub fn unique(&self) -> &UniquePart {
        &self.unique
    }
}

impl fmt::Display for ResourceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}:{}_{}", self.generation, self.region, self.bucket, self.prefix, self.unique)
    }
}

impl FromStr for ResourceId {
    type Err = IdError;
    fn from_str(text: &str) -> Result<ResourceId, IdError> {
        ResourceId::parse(text)
    }
}

/// The name of the place where one tenant's records of one type and bucket are: `default:apac:ses:3`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct InstanceName {
    tenant: TenantId,
    region: RegionName,
    prefix: TypePrefix,
    bucket: BucketId,
    generation: Generation,
}

impl InstanceName {
    pub fn new(
        tenant: TenantId,
        region: RegionName,
        prefix: TypePrefix,
        bucket: BucketId,
        generation: Generation,
    ) -> Result<InstanceName, IdError> {
        in_bounds(bucket)?;
        Ok(InstanceName { tenant, region, prefix, bucket, generation })
    }

    /// The place of an id's record, for a tenant that is already known: an id does not say whose it is.
    pub fn of_id(tenant: TenantId, id: &ResourceId) -> InstanceName {
        InstanceName {
            tenant,
            region: id.region.clone(),
            prefix: id.prefix.clone(),
            bucket: id.bucket,
            generation: id.generation,
        }
    }

    pub fn parse(text: &str) -> Result<InstanceName, IdError> {
        bounded(text)?;
        let (rest, last) = last_part(text, IdField::Shard)?;
        // A shard is digits, so a last part that begins with `g` can only be the generation.
        let (rest, shard, generation) = match last.strip_prefix('g') {
            None => (rest, last, Generation::FIRST),
            Some(_) => {
                let (rest, shard) = last_part(rest, IdField::Shard)?;
                (rest, shard, suffix_generation(last)?)
            }
        };
        let (rest, prefix) = last_part(rest, IdField::Type)?;
        let (tenant, region_name) = last_part(rest, IdField::Region)?;
        let tenant = TenantId::new(tenant).map_err(|fault| name_fault(IdField::Tenant, fault))?;
        InstanceName::new(tenant, region(region_name)?, TypePrefix::new(prefix)?, bucket(shard)?, generation)
    }

    pub fn tenant(&self) -> &TenantId {
        &self.tenant
    }

    pub fn region(&self) -> &RegionName {
        &self.region
    }

    pub fn prefix(&self) -> &TypePrefix {
        &self.prefix
    }

    pub fn bucket(&self) -> BucketId {
        self.bucket
    }

    pub fn generation(&self) -> Generation {
        self.generation
    }
}

impl fmt::Display for InstanceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}:{}", self.tenant, self.region, self.prefix, self.bucket)?;
        match self.generation {
            Generation::FIRST => Ok(()),
            generation => write!(f, ":{generation}"),
        }
    }
}

impl FromStr for InstanceName {
    type Err = IdError;
    fn from_str(text: &str) -> Result<InstanceName, IdError> {
        InstanceName::parse(text)
    }
}

fn bounded(text: &str) -> Result<(), IdError> {
    match text.len() <= MAX_ID_BYTES {
        true => Ok(()),
        false => Err(IdError::TooLong { field: IdField::Id, limit: MAX_ID_BYTES }),
    }
}

fn in_bounds(bucket: BucketId) -> Result<(), IdError> {
    match bucket.0 < MAX_BUCKETS {
        true => Ok(()),
        false => Err(IdError::OutOfRange { field: IdField::Shard, min: 0, max: MAX_BUCKETS - 1 }),
    }
}

fn last_part(text: &str, field: IdField) -> Result<(&str, &str), IdError> {
    text.rsplit_once(':').filter(|(_, last)| !last.is_empty()).ok_or(IdError::Missing { field })
}

fn named_generation(text: &str) -> Result<Generation, IdError> {
    let field = IdField::Generation;
    let digits = text.strip_prefix('g').ok_or(IdError::Missing { field })?;
    Generation::new(number(field, digits)?)
}

/// The generation at the end of an instance name: any but 1, which is written by leaving it out.
fn suffix_generation(text: &str) -> Result<Generation, IdError> {
    match text {
        "g0" => Ok(Generation::LEGACY),
        "g1" => Err(IdError::NotCanonical { field: IdField::Generation }),
        _ => named_generation(text),
    }
}

fn region(text: &str) -> Result<RegionName, IdError> {
    RegionName::new(text).map_err(|fault| name_fault(IdField::Region, fault))
}

fn bucket(text: &str) -> Result<BucketId, IdError> {
    let bucket = BucketId(number(IdField::Shard, text)?);
    in_bounds(bucket).map(|()| bucket)
}

fn name_fault(field: IdField, fault: NameError) -> IdError {
    match fault {
        NameError::Empty { .. } => IdError::Missing { field },
        NameError::TooLong { limit, .. } => IdError::TooLong { field, limit },
        NameError::BadCharacter { found, .. } => IdError::BadCharacter { field, found },
    }
}

/// Decimal digits without sign or leading zeros. Nine of them always fit a u32, and no field needs more.
fn number(field: IdField, digits: &str) -> Result<u32, IdError> {
    let shortest = digits == "0" || !digits.starts_with('0');
    let plain = (1..=9).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    match plain && shortest {
        true => digits.parse().map_err(|_| IdError::NotCanonical { field }),
        false => Err(IdError::NotCanonical { field }),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn parts(text: &str) -> (u16, String, u32, String, String) {
        let id = ResourceId::parse(text).unwrap_or_else(|fault| panic!("{text}: {fault}"));
        assert_eq!(id.to_string(), text);
        (id.generation.get(), id.region.to_string(), id.bucket.0, id.prefix.to_string(), id.unique.to_string())
    }

    fn expect(text: &str, wanted: (u16, &str, u32, &str, &str)) {
        let (generation, region, bucket, prefix, unique) = wanted;
        assert_eq!(parts(text), (generation, region.into(), bucket, prefix.into(), unique.into()), "{text}");
    }

    #[test]
    fn ids_of_the_original_parse_to_the_same_parts() {
        expect("g1:apac:3:ses_abc123-def456", (1, "apac", 3, "ses", "abc123-def456"));
        expect("g1:apac:3:session_abc123", (1, "apac", 3, "session", "abc123"));
        expect("g15:weur:12:ac_xyz789", (15, "weur", 12, "ac", "xyz789"));
        expect("g2:weur:8:ac_xyz", (2, "weur", 8, "ac", "xyz"));
        expect("g1:enam:0:ch_123", (1, "enam", 0, "ch", "123"));
        expect("g3:wnam:15:rt_abc", (3, "wnam", 15, "rt", "abc"));
        expect("g10:apac:100:dpp_jti4", (10, "apac", 100, "dpp", "jti4"));
        expect("g999:weur:999:par_uuid5", (999, "weur", 999, "par", "uuid5"));
        expect("g1:weur:5:dpp_abc-123_XYZ.456", (1, "weur", 5, "dpp", "abc-123_XYZ.456"));
        expect("g1:apac:5:dpp_abc:def:ghi:123", (1, "apac", 5, "dpp", "abc:def:ghi:123"));
        let device = "GmRhmhcxhwAzkoEqiMEg_DnyEysNkuNhszIyS";
        expect(&format!("g1:apac:3:dev_{device}"), (1, "apac", 3, "dev", device));
        expect("g1:apac:3:cba_auth-req-12345-abcde", (1, "apac", 3, "cba", "auth-req-12345-abcde"));
    }

    fn refused(text: &str) -> (&'static str, IdField) {
        let fault = ResourceId::parse(text).expect_err(text);
        assert!(!fault.hint().is_empty());
        (fault.code(), fault.field())
    }

    #[test]
    fn only_the_canonical_form_is_an_id() {
        assert_eq!(refused(""), ("missing", IdField::Generation));
        assert_eq!(refused("1:apac:3:ses_x"), ("missing", IdField::Generation));
        assert_eq!(refused("g1-apac-3-ses_x"), ("not_canonical", IdField::Generation));
        assert_eq!(refused("g-1:apac:3:ses_x"), ("not_canonical", IdField::Generation));
        assert_eq!(refused("g01:apac:3:ses_x"), ("not_canonical", IdField::Generation));
        assert_eq!(refused("g+1:apac:3:ses_x"), ("not_canonical", IdField::Generation));
        assert_eq!(refused("G1:apac:3:ses_x"), ("missing", IdField::Generation));
        assert_eq!(refused("g0:apac:3:ses_x"), ("out_of_range", IdField::Generation));
        assert_eq!(refused("g1000:apac:3:ses_x"), ("out_of_range", IdField::Generation));
        assert_eq!(refused("g99999999999999999999:apac:3:ses_x"), ("not_canonical", IdField::Generation));
        assert_eq!(refused("g1"), ("missing", IdField::Region));
        assert_eq!(refused("g1::3:ses_x"), ("missing", IdField::Region));
        assert_eq!(refused("g1:APAC:3:ses_x"), ("bad_character", IdField::Region));
        assert_eq!(refused("g1:apac:session_abc"), ("not_canonical", IdField::Shard));
        assert_eq!(refused("g1:apac:dpp_test"), ("not_canonical", IdField::Shard));
        assert_eq!(refused("g1:apac:abc:ses_x"), ("not_canonical", IdField::Shard));
        assert_eq!(refused("g1:apac:-3:ses_x"), ("not_canonical", IdField::Shard));
        assert_eq!(refused("g1:apac:03:ses_x"), ("not_canonical", IdField::Shard));
        assert_eq!(refused("g1:apac:00:ses_x"), ("not_canonical", IdField::Shard));
        assert_eq!(refused("g1:apac:٣:ses_x"), ("not_canonical", IdField::Shard));
        assert_eq!(refused("g1:apac:65536:ses_x"), ("out_of_range", IdField::Shard));
        assert_eq!(refused("g1:apac:3"), ("missing", IdField::Type));
        assert_eq!(refused("g1:apac:3:abc"), ("missing", IdField::Type));
        assert_eq!(refused("g1:apac:3:_abc"), ("missing", IdField::Type));
        assert_eq!(refused("g1:apac:3:Ses_abc"), ("bad_character", IdField::Type));
        assert_eq!(refused("g1:apac:3:ses_"), ("missing", IdField::Uuid));
        assert_eq!(refused("g1:apac:3:ses_a b"), ("bad_character", IdField::Uuid));
        assert_eq!(refused("g1:apac:3:ses_a\n"), ("bad_character", IdField::Uuid));
        assert_eq!(refused(" g1:apac:3:ses_a"), ("missing", IdField::Generation));
        assert_eq!(refused(&format!("g1:apac:3:ses_{}", "x".repeat(129))), ("too_long", IdField::Uuid));
        assert_eq!(refused(&"x".repeat(MAX_ID_BYTES + 1)), ("too_long", IdField::Id));
    }

    #[test]
    fn a_request_uri_is_read_only_where_one_is_expected() {
        let uri = "urn:ietf:params:oauth:request_uri:g1:apac:3:par_abc123-def456";
        let id = ResourceId::parse_request_uri(uri).unwrap();
        assert_eq!(id, ResourceId::parse("g1:apac:3:par_abc123-def456").unwrap());
        assert_eq!(id.to_request_uri(), uri);
        assert!(ResourceId::parse(uri).is_err());
        assert!(ResourceId::parse_request_uri(PAR_URN_PREFIX).is_err());
        assert_eq!(ResourceId::parse_request_uri("g1:apac:3:par_x"), Err(IdError::NotRequestUri));
    }

    #[test]
    fn instance_names_of_the_original_are_those_of_generation_1() {
        for (text, tenant, region, prefix, bucket) in [
            ("default:apac:ses:3", "default", "apac", "ses", 3),
            ("default:weur:acd:8", "default", "weur", "acd", 8),
            ("default:enam:cha:12", "default", "enam", "cha", 12),
            ("a:b:c:apac:ses:3", "a:b:c", "apac", "ses", 3),
        ] {
            let name = InstanceName::parse(text).unwrap();
            let found = (name.tenant().as_str(), name.region().as_str(), name.prefix().as_str(), name.bucket().0);
            assert_eq!(found, (tenant, region, prefix, bucket));
            assert_eq!((name.generation(), name.to_string()), (Generation::FIRST, text.to_owned()));
        }
    }

    #[test]
    fn instance_names_differ_between_generations() {
        let id = |generation| ResourceId::parse(&format!("g{generation}:apac:3:ses_x")).unwrap();
        let name = |generation| InstanceName::of_id(TenantId::new("default").unwrap(), &id(generation)).to_string();
        assert_eq!(name(1), "default:apac:ses:3");
        assert_eq!(name(2), "default:apac:ses:3:g2");
        assert_eq!(InstanceName::parse("default:apac:ses:3:g2").unwrap().generation().get(), 2);
        assert_eq!(InstanceName::parse("default:apac:ses:3:g0").unwrap().generation(), Generation::LEGACY);
    }

    #[test]
    fn only_the_canonical_form_is_an_instance_name() {
        for bad in [
            "",
            "default",
            "default:apac:ses",
            ":apac:ses:3",
            "default:apac:ses:3:g1",
            "default:apac:ses:3:g02",
            "default:apac:ses:3:g1000",
            "default:apac:ses:3:g",
            "default:apac:ses:03",
            "default:apac:ses:3:",
            "default:APAC:ses:3",
            "default:apac::3",
            "def\nault:apac:ses:3",
        ] {
            assert!(InstanceName::parse(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn no_id_names_the_legacy_generation() {
        let region = RegionName::new("apac").unwrap();
        let prefix = TypePrefix::new("ses").unwrap();
        let unique = UniquePart::new("x").unwrap();
        let minted = ResourceId::mint(Generation::LEGACY, region, BucketId(0), prefix, unique);
        assert_eq!(minted.map_err(|fault| fault.field()), Err(IdField::Generation));
    }
}
