//! The kinds of records of an identity provider.
//!
//! Two keys are not those of the original deployment. A DPoP proof is keyed by the thumbprint of its key and its id, and
//! not by `client_id`: who sends a proof chooses the client id, so the same proof would pass once for each. A challenge
//! is keyed by what people look it up with.

use crate::StoreConfig;

const MINUTE: u64 = 60_000;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// name, prefix, group, key, ttl, cap
type Kind = (&'static str, &'static str, &'static str, &'static str, u64, u64);

const KINDS: [Kind; 16] = [
    ("keymanager", "kmg", "", "singleton", 400 * DAY, 400 * DAY),
    ("versionmanager", "vmg", "", "singleton", 400 * DAY, 400 * DAY),
    ("session", "ses", "random-medium-rps", "uuid", HOUR, DAY),
    ("authcode", "acd", "user-client", "userId:clientId", 10 * MINUTE, 10 * MINUTE),
    ("refresh", "rft", "user-client", "userId:clientId", 30 * DAY, 90 * DAY),
    ("challenge", "cha", "random-medium-rps", "userId/challengeId", 10 * MINUTE, 10 * MINUTE),
    ("revocation", "rev", "random-high-rps", "uuid", HOUR, 90 * DAY),
    ("credoffer", "cof", "vc", "tenantId:userId", 10 * MINUTE, DAY),
    ("vprequest", "vpr", "vc", "tenantId:clientId", 5 * MINUTE, 30 * MINUTE),
    ("dpop", "dpp", "client-based", "jkt:jti", 10 * MINUTE, HOUR),
    ("par", "par", "client-based", "client_id", MINUTE, 10 * MINUTE),
    ("device", "dev", "client-based", "client_id", 10 * MINUTE, 30 * MINUTE),
    ("ciba", "cba", "client-based", "client_id", 5 * MINUTE, 10 * MINUTE),
    ("samlrequest", "sml", "client-based", "issuer", 10 * MINUTE, HOUR),
    ("ratelimit", "rtl", "random-high-rps", "purpose", HOUR, DAY),
    ("permission", "pch", "vc", "tenantId", DAY, 400 * DAY),
];

/// How long a refresh token that was just replaced gives its successor again: a client whose answer was lost retries
/// within seconds.
const REFRESH_GRACE_MS: u64 = 10_000;

/// What the preset is called.
pub const PRESET: &str = "identity";

/// The stores of the preset `identity`.
pub fn preset() -> Vec<StoreConfig> {
    let of = |(name, prefix, group, key, ttl_ms, cap_ms): Kind| StoreConfig {
        name: name.into(),
        prefix: prefix.into(),
        group: group.into(),
        key: key.into(),
        ttl_ms,
        cap_ms: Some(cap_ms),
        grace_ms: if name == "refresh" { REFRESH_GRACE_MS } else { 0 },
        rotates: name == "refresh",
        has_alias: matches!(name, "device" | "ciba"),
        is_singleton: group.is_empty(),
        ..StoreConfig::default()
    };
    KINDS.map(of).into()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::StoreSpec;
    use isles_kernel::placement::{Placement, TypeName};

    /// The preset agrees with the placement that is meant for it: groups, prefixes, and every pair of stores.
    #[test]
    fn the_preset_fits_the_preset_of_placement() {
        let placement = Placement::preset();
        let specs: Vec<StoreSpec> = preset().into_iter().map(|config| StoreSpec::check(config).unwrap()).collect();
        assert_eq!(specs.len(), 16);
        for (at, spec) in specs.iter().enumerate() {
            let clash = specs[..at].iter().find_map(|other| spec.conflict_with(other));
            assert_eq!(clash, None, "{}", spec.name);
            if let Some(known) = placement.registry().get(&spec.name) {
                assert_eq!(known.prefix, spec.prefix);
                let group = placement.current().group_of(&spec.name).unwrap();
                assert_eq!(Some(group.group()), spec.group.as_ref(), "{}", spec.name);
            }
        }
        for kind in placement.registry().types() {
            assert!(specs.iter().any(|spec| spec.name == kind.name), "{} is missing", kind.name);
        }
        for singleton in placement.registry().singletons() {
            let name = TypeName::new(singleton).unwrap();
            assert!(specs.iter().find(|spec| spec.name == name).unwrap().is_singleton());
        }
    }
}
