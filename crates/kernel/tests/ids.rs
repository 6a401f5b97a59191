//! Ids and instance names hold for any input.

#![allow(clippy::unwrap_used)]

use isles_kernel::hash::MAX_BUCKETS;
use isles_kernel::id::{Generation, InstanceName, MAX_GENERATION, PAR_URN_PREFIX, ResourceId, TypePrefix, UniquePart};
use isles_kernel::names::{BucketId, RegionName, TenantId};
use proptest::prelude::*;

/// How often each property is tried; `PROPTEST_CASES` says otherwise.
fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(400)
}

fn generation() -> impl Strategy<Value = Generation> {
    prop_oneof![Just(1), Just(2), Just(u32::from(MAX_GENERATION)), 1..=u32::from(MAX_GENERATION)]
        .prop_map(|number| Generation::new(number).unwrap())
}

fn region() -> impl Strategy<Value = RegionName> {
    prop_oneof!["apac|weur|enam|wnam|oc|afr|me", "[a-z0-9_-]{1,63}"].prop_map(|name| RegionName::new(name).unwrap())
}

fn bucket() -> impl Strategy<Value = BucketId> {
    prop_oneof![Just(0), Just(MAX_BUCKETS - 1), 0..MAX_BUCKETS].prop_map(BucketId)
}

fn prefix() -> impl Strategy<Value = TypePrefix> {
    prop_oneof!["ses|acd|par|g2|42", "[a-z0-9]{2,16}"].prop_map(|prefix| TypePrefix::new(&prefix).unwrap())
}

fn unique() -> impl Strategy<Value = UniquePart> {
    "[A-Za-z0-9._~:-]{1,128}".prop_map(|text| UniquePart::new(&text).unwrap())
}

/// Tenants that look like the end of an instance name, and any others.
fn tenant() -> impl Strategy<Value = TenantId> {
    let awkward = "(:|a|apac|ses|3|g2|::|_){1,16}";
    prop_oneof![awkward, "\\PC{1,64}"].prop_filter_map("a tenant", |name| TenantId::new(name).ok())
}

fn id() -> impl Strategy<Value = ResourceId> {
    (generation(), region(), bucket(), prefix(), unique()).prop_map(|(generation, region, bucket, prefix, unique)| {
        ResourceId::mint(generation, region, bucket, prefix, unique).unwrap()
    })
}

fn instance() -> impl Strategy<Value = InstanceName> {
    let generation = prop_oneof![generation(), Just(Generation::LEGACY), Just(Generation::FIRST)];
    (tenant(), region(), prefix(), bucket(), generation).prop_map(|(tenant, region, prefix, bucket, generation)| {
        InstanceName::new(tenant, region, prefix, bucket, generation).unwrap()
    })
}

/// A text with one character taken out, put in or replaced.
fn mutated(text: String) -> impl Strategy<Value = String> {
    let characters: Vec<char> = text.chars().collect();
    let with = prop_oneof![proptest::sample::select(":_g0123+-. \0A٣é".chars().collect::<Vec<_>>()), any::<char>()];
    (0..=characters.len(), 0..3, with).prop_map(move |(at, kind, with)| {
        let mut characters = characters.clone();
        match kind {
            0 => characters.insert(at, with),
            1 if at < characters.len() => characters[at] = with,
            _ if at < characters.len() => drop(characters.remove(at)),
            _ => (),
        }
        characters.into_iter().collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases()))]

    #[test]
    fn an_id_reads_back_as_it_was_minted(id in id()) {
        prop_assert_eq!(ResourceId::parse(&id.to_string()), Ok(id.clone()));
        prop_assert_eq!(ResourceId::parse_request_uri(&id.to_request_uri()), Ok(id));
    }

    #[test]
    fn different_ids_are_different_texts(a in id(), b in id()) {
        prop_assert_eq!(a == b, a.to_string() == b.to_string());
    }

    #[test]
    fn what_parses_prints_as_it_was_written(text in id().prop_flat_map(|id| mutated(id.to_string()))) {
        if let Ok(id) = ResourceId::parse(&text) {
            prop_assert_eq!(id.to_string(), text);
        }
    }

    #[test]
    fn no_text_makes_an_id_parser_panic(text in any::<String>(), tail in ".{0,40}") {
        for text in [text.clone(), format!("g1:apac:{tail}"), format!("g{tail}"), format!("{PAR_URN_PREFIX}{tail}")] {
            if let Ok(id) = ResourceId::parse(&text) {
                prop_assert_eq!(id.to_string(), text.clone());
            }
            let _ = ResourceId::parse_request_uri(&text);
            if let Ok(name) = InstanceName::parse(&text) {
                prop_assert_eq!(name.to_string(), text);
            }
        }
    }

    #[test]
    fn no_bytes_make_an_id_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let text = String::from_utf8_lossy(&bytes);
        let _ = ResourceId::parse(&text);
        let _ = InstanceName::parse(&text);
    }

    #[test]
    fn an_instance_name_reads_back_whatever_the_tenant_is_called(name in instance()) {
        prop_assert_eq!(InstanceName::parse(&name.to_string()), Ok(name));
    }

    #[test]
    fn different_instances_have_different_names(a in instance(), b in instance()) {
        prop_assert_eq!(a == b, a.to_string() == b.to_string());
    }

    #[test]
    fn an_instance_name_that_parses_prints_as_it_was_written(text in instance().prop_flat_map(|name| mutated(name.to_string()))) {
        if let Ok(name) = InstanceName::parse(&text) {
            prop_assert_eq!(name.to_string(), text);
        }
    }
}

#[test]
fn the_edges_of_every_field_read_back() {
    for generation in [1, 2, 9, 10, 99, 100, 999] {
        for bucket in [0, 1, 9, 10, 99_u32, 65_535] {
            for length in [1, 128] {
                let text = format!("g{generation}:me:{bucket}:ab_{}", "Z".repeat(length));
                assert_eq!(ResourceId::parse(&text).unwrap().to_string(), text);
            }
        }
    }
}

#[test]
fn time_ordered_uuids_keep_their_order_in_ids() {
    let context = uuid::ContextV7::new();
    let mint = |seconds: u64| {
        let uuid = uuid::Uuid::new_v7(uuid::Timestamp::from_unix(&context, seconds, 0));
        ResourceId::parse(&format!("g1:apac:3:ses_{uuid}")).unwrap().to_string()
    };
    let ids: Vec<String> = (0..1000).map(|i| mint(1_700_000_000 + i / 100)).collect();
    assert!(ids.windows(2).all(|pair| pair[0] < pair[1]));
}

/// Ids that are minted by processes one after the other, each of which finds the clock further back than the last one,
/// and how many of them are there twice.
fn doubled<Minter: FnMut(u64) -> uuid::Uuid>(mut start: impl FnMut() -> Minter) -> usize {
    let (mut seen, mut doubled) = (std::collections::HashSet::new(), 0);
    for life in 0..200_u64 {
        let mut mint = start();
        for n in 0..200 {
            let uuid = mint(1_700_000_000_000 - life % 10 + n / 100);
            let id = ResourceId::parse(&format!("g1:apac:3:ses_{uuid}")).unwrap();
            doubled += usize::from(!seen.insert(id.to_string()));
        }
    }
    doubled
}

/// I-36, planted bug 19: an id is no clock with a sequence, which would begin again; it has random bits besides.
#[test]
fn ids_are_distinct_though_the_clock_goes_back() {
    let random = || {
        let context = uuid::ContextV7::new();
        move |ms: u64| {
            let (seconds, nanos) = (ms / 1_000, (ms % 1_000) as u32 * 1_000_000);
            uuid::Uuid::new_v7(uuid::Timestamp::from_unix(&context, seconds, nanos))
        }
    };
    assert_eq!(doubled(random), 0);
    let sequence = || {
        let mut next = 0_u16;
        move |ms: u64| {
            next += 1;
            let [high, low] = next.to_be_bytes();
            uuid::Builder::from_unix_timestamp_millis(ms, &[0, 0, 0, 0, 0, 0, 0, 0, high, low]).into_uuid()
        }
    };
    assert!(doubled(sequence) > 0, "the bug is there, and no id shows it");
}
