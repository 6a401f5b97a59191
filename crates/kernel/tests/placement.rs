//! Placement through its public surface: the configurations people write, and where keys go under them.

#![allow(clippy::unwrap_used)]

use isles_kernel::hash::BucketCount;
use isles_kernel::id::{Generation, ResourceId, UniquePart};
use isles_kernel::names::{BucketId, GroupName, RegionName};
use isles_kernel::placement::{
    ConfigErrors, IdCheckError, KNOWN_REGIONS, KeptType, KeySchema, LocateError, Placement, PlacementConfig,
    RegionShare, Timestamp, TypeName, apportion, check_kept, impact, validate_change,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The configuration that the original's documentation gives.
fn documented() -> Value {
    json!({
        "version": 2,
        "currentGeneration": 1,
        "baseRegions": { "apac": 20, "enam": 40, "weur": 40 },
        "groups": {
            "user-client": { "totalShards": 64, "members": ["authcode", "refresh"], "description": "Colocated by userId:clientId" },
            "random-high-rps": { "totalShards": 64, "members": ["revocation"], "description": "High RPS endpoints with random UUID keys" },
            "random-medium-rps": { "totalShards": 32, "members": ["session", "challenge"], "description": "Medium RPS endpoints" },
            "client-based": { "totalShards": 32, "members": ["par", "device", "ciba", "dpop"], "description": "client_id based sharding" },
            "vc": { "totalShards": 16, "members": ["credoffer", "vprequest"], "description": "Verifiable Credentials" }
        },
        "previousGenerations": [{ "generation": 0, "totalShards": 20, "validUntil": "2025-02-01T00:00:00Z" }]
    })
}

/// The same after one migration: generation 1 is kept, and the client-based group has doubled.
fn migrated() -> Value {
    let first = documented();
    let mut second = first.clone();
    second["currentGeneration"] = json!(2);
    second["groups"]["client-based"]["totalShards"] = json!(64);
    second["previousGenerations"] = json!([
        { "generation": 1, "groups": first["groups"], "validUntil": "2026-03-01T00:00:00Z" },
        { "generation": 0, "totalShards": 20, "validUntil": "2025-02-01T00:00:00Z" }
    ]);
    second
}

fn with(pointer: &str, value: Value) -> Value {
    set(documented(), pointer, value)
}

/// Sets the value at a JSON pointer, adding the last key if it is not there.
fn set(mut config: Value, pointer: &str, value: Value) -> Value {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    match config.pointer_mut(parent).unwrap_or_else(|| panic!("{parent} is there")) {
        Value::Array(list) => list[key.parse::<usize>().unwrap()] = value,
        Value::Object(object) => drop(object.insert(key.to_owned(), value)),
        other => panic!("{other} at {parent}"),
    }
    config
}

fn without(pointer: &str) -> Value {
    let mut config = documented();
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    config.pointer_mut(parent).unwrap().as_object_mut().unwrap().remove(key).unwrap();
    config
}

fn placement(config: &Value) -> Placement {
    Placement::from_json(&config.to_string()).unwrap_or_else(|errors| panic!("{errors}"))
}

/// `field code`, one for each error.
fn listed(result: Result<(), ConfigErrors>) -> Vec<String> {
    let Err(errors) = result else { return Vec::new() };
    let code = |code| serde_json::to_value(code).unwrap().as_str().unwrap().to_owned();
    errors.errors().iter().map(|error| format!("{} {}", error.field, code(error.code))).collect()
}

fn errors(config: &Value) -> Vec<String> {
    listed(Placement::from_json(&config.to_string()).map(drop))
}

fn messages(config: &Value) -> Vec<String> {
    let errors = Placement::from_json(&config.to_string()).expect_err("the configuration is wrong");
    errors.errors().iter().map(|error| error.message.clone()).collect()
}

fn changes(old: &Value, new: &Value) -> Vec<String> {
    listed(validate_change(&placement(old), &placement(new), &[], at("2026-01-01T00:00:00Z")))
}

fn at(instant: &str) -> Timestamp {
    instant.parse().unwrap()
}

fn name(name: &str) -> TypeName {
    TypeName::new(name).unwrap()
}

fn region(name: &str) -> RegionName {
    RegionName::new(name).unwrap()
}

fn shown(placement: &Placement, type_name: &str, key: &str) -> String {
    let located = placement.locate(&name(type_name), key).unwrap();
    format!("{} {} {} {}", located.generation, located.group, located.bucket, located.region)
}

#[test]
fn the_documented_configuration_is_valid() {
    let placement = placement(&documented());
    assert_eq!(shown(&placement, "authcode", "user1:client1"), "g1 user-client 57 apac");
    assert_eq!(shown(&placement, "refresh", "user1:client1"), "g1 user-client 57 apac");
    assert_eq!(shown(&placement, "dpop", "client123"), "g1 client-based 10 enam");
    assert_eq!(placement.current().groups().len(), 5);
    assert_eq!(placement.current(), Placement::preset().current());
}

#[test]
fn without_a_configuration_every_type_has_20_buckets_in_three_regions() {
    let placement = Placement::defaults();
    for (key, wanted) in [
        ("user1:client1", "g1 default 5 enam"),
        ("user2:client2", "g1 default 1 enam"),
        ("user123:client456", "g1 default 10 weur"),
        ("client456", "g1 default 17 apac"),
        ("tenant1:user123", "g1 default 19 apac"),
    ] {
        for spec in placement.registry().types() {
            assert_eq!(shown(&placement, spec.name.as_str(), key), wanted);
        }
    }
}

#[test]
fn a_configuration_survives_being_written_and_read() {
    for config in [documented(), migrated()] {
        let written = serde_json::to_value(placement(&config).config()).unwrap();
        assert_eq!(written, config);
    }
}

// ---- regions ----

#[test]
fn typed_groups_do_not_skew_regions() {
    for group in Placement::preset().current().groups() {
        for (name, percent) in [("apac", 20), ("enam", 40), ("weur", 40)] {
            let range = group.ranges().iter().find(|range| range.region == region(name)).expect("no region is starved");
            let quota = group.buckets().get() * percent;
            assert!((range.bucket_count() * 100).abs_diff(quota) < 100, "{} in {name}", group.group());
        }
    }
}

#[test]
fn a_session_is_minted_in_the_region_of_its_caller() {
    let placement = placement(&documented());
    for wanted in ["apac", "enam", "weur"] {
        for i in 0..100 {
            let located = placement.locate_in(&name("session"), &format!("uuid-{i}"), &region(wanted)).unwrap();
            assert_eq!(located.region, region(wanted));
            let id = placement.mint(&name("session"), &located, UniquePart::new("x").unwrap()).unwrap();
            assert_eq!(placement.check_id(&id).unwrap().located, located);
        }
    }
    let nowhere = placement.locate_in(&name("session"), "x", &region("oc"));
    assert!(matches!(nowhere, Err(LocateError::EmptyRegion { .. })));
    let keyed = placement.locate_in(&name("refresh"), "user1:client1", &region("enam"));
    assert!(matches!(keyed, Err(LocateError::OtherRegion { .. })), "a key that is hashed again settles the region");
}

#[test]
fn messages_about_regions_are_those_people_know() {
    for (pointer, value, wanted) in [
        ("/baseRegions", json!({"apac": 20, "mars": 80}), "Invalid region key: mars"),
        ("/baseRegions", json!({"apac": 120, "enam": -20}), "Region enam has negative percentage: -20"),
        ("/baseRegions", json!({"apac": 50, "enam": 40}), "Region distribution must sum to 100, got 90"),
        ("/baseRegions", json!({"apac": 100, "enam": 50}), "Region distribution must sum to 100, got 150"),
        ("/baseRegions", json!({}), "Region distribution must sum to 100, got 0"),
        ("/groups/vc/totalShards", json!(2), "Total shards (2) must be >= active region count (3)"),
    ] {
        let messages = messages(&with(pointer, value));
        assert!(messages.iter().any(|message| message == wanted), "{messages:?}");
    }
}

#[test]
fn distributions_of_the_original_are_accepted() {
    for shares in [
        json!({"enam": 100}),
        json!({"apac": 0, "enam": 50, "weur": 50}),
        json!({"apac": 1, "enam": 1, "weur": 98}),
        json!({"apac": 14, "weur": 14, "enam": 14, "wnam": 14, "oc": 14, "afr": 15, "me": 15}),
    ] {
        assert_eq!(errors(&with("/baseRegions", shares)), [""; 0]);
    }
}

#[test]
fn key_order_does_not_change_placement() {
    let shuffled = r#"{"groups":{"default":{"members":[],"totalShards":20}},"baseRegions":{"weur":40,"apac":20,"enam":40},"currentGeneration":1,"version":2}"#;
    let shuffled = Placement::from_json(shuffled).unwrap();
    assert_eq!(shuffled.current(), Placement::defaults().current());
    assert_eq!(validate_change(&Placement::defaults(), &shuffled, &[], at("2026-01-01T00:00:00Z")), Ok(()));
}

// ---- groups ----

#[test]
fn colocated_types_cannot_have_different_counts() {
    assert_eq!(
        errors(&with("/groups/user-client/overrides", json!({"refresh": 32}))),
        ["groups.user-client.overrides.refresh colocation_override"]
    );
    assert_eq!(errors(&with("/groups/user-client/overrides", json!({"refresh": 64}))), [""; 0], "the same count");
    let mut keyed = with("/groups/client-based/overrides", json!({"dpop": 64}));
    keyed["groups"]["client-based"]["key"] = json!("client_id");
    assert_eq!(errors(&keyed), ["groups.client-based.overrides.dpop colocation_override"]);
}

#[test]
fn a_colocated_type_cannot_fall_out_of_its_group() {
    let alone = with("/groups/user-client/members", json!(["authcode"]));
    assert_eq!(errors(&alone), ["groups missing_type"]);
    let apart = set(alone, "/groups/other", json!({"totalShards": 64, "members": ["refresh"]}));
    assert_eq!(
        errors(&apart),
        ["groups.other.members[0] colocation_split", "groups.user-client.members[0] colocation_split"]
    );
}

#[test]
fn an_override_gives_a_type_its_own_buckets_where_nothing_is_colocated() {
    let placement = placement(&with("/groups/client-based/overrides", json!({"dpop": 64})));
    let dpop = placement.locate(&name("dpop"), "client123").unwrap();
    let par = placement.locate(&name("par"), "client123").unwrap();
    assert_eq!(
        (dpop.bucket, dpop.space.as_str(), dpop.group.as_str()),
        (BucketId(42), "client-based-dpop", "client-based")
    );
    assert_eq!((par.bucket, par.space.as_str()), (BucketId(10), "client-based"));
}

#[test]
fn the_same_key_has_the_same_count_and_salt_in_every_group() {
    let mut split = with("/groups/client-based/members", json!(["device", "ciba", "dpop"]));
    split["groups"]["pushed"] = json!({"totalShards": 16, "members": ["par"], "salt": "s"});
    assert_eq!(
        errors(&split),
        [
            "groups.client-based.totalShards same_key_count",
            "groups.pushed.totalShards same_key_count",
            "groups.client-based.salt same_key_salt",
            "groups.pushed.salt same_key_salt",
        ]
    );
    split["groups"]["pushed"] = json!({"totalShards": 32, "members": ["par"]});
    assert_eq!(errors(&split), [""; 0]);
}

#[test]
fn random_keys_need_no_common_count() {
    assert_eq!(errors(&with("/groups/random-high-rps/totalShards", json!(7))), [""; 0]);
}

#[test]
fn singletons_are_never_sharded() {
    for singleton in ["keymanager", "versionmanager", "KeyManager"] {
        let config = with("/groups/vc/members", json!(["credoffer", "vprequest", singleton]));
        assert_eq!(errors(&config), ["groups.vc.members[2] singleton"]);
    }
    let mut declared = with("/singletons", json!(["ledger"]));
    declared["types"] = json!({"ledger": {"prefix": "led", "key": "uuid"}});
    assert_eq!(errors(&declared), ["types.ledger singleton"]);
    let located = Placement::defaults().locate(&name("keymanager"), "x");
    assert!(matches!(located, Err(LocateError::Singleton { .. })));
}

#[test]
fn a_deployment_can_add_types() {
    let spec = json!({"prefix": "inv", "key": "tenantId:userId", "legacyPrefixes": ["invoice"]});
    let mut config = with("/types", json!({"invoice": spec}));
    assert_eq!(errors(&config), ["groups missing_type"]);
    config["groups"]["vc"]["members"] = json!(["credoffer", "vprequest", "invoice"]);
    let placement = placement(&config);
    let located = placement.locate(&name("invoice"), "acme:u1").unwrap();
    let id = placement.mint(&name("invoice"), &located, UniquePart::new("1").unwrap()).unwrap();
    assert_eq!(placement.check_id(&id).unwrap().spec.name, name("invoice"));
    let old: ResourceId = id.to_string().replace("inv_", "invoice_").parse().unwrap();
    assert_eq!(placement.check_id(&old).unwrap().located, located);
}

#[test]
fn a_default_group_takes_the_types_that_no_group_names() {
    let mut config = without("/groups/vc");
    assert_eq!(errors(&config), ["groups missing_type", "groups missing_type"]);
    config["groups"]["default"] = json!({"totalShards": 20, "members": []});
    assert_eq!(placement(&config).locate(&name("vprequest"), "x").unwrap().group.as_str(), "default");
}

#[test]
fn counts_are_whole_and_bounded() {
    for (bad, code) in [
        (json!(0), "out_of_range"),
        (json!(-1), "out_of_range"),
        (json!(65_537), "out_of_range"),
        (json!(1_000_000_000), "out_of_range"),
        (json!(u64::MAX), "wrong_kind"),
        (json!(20.5), "wrong_kind"),
        (json!(64.0), "wrong_kind"),
        (json!("64"), "wrong_kind"),
        (json!(true), "wrong_kind"),
        (json!([64]), "wrong_kind"),
        (json!(null), "missing_field"),
    ] {
        let field = "groups.user-client.totalShards";
        assert_eq!(errors(&with("/groups/user-client/totalShards", bad)), [format!("{field} {code}")]);
    }
}

#[test]
fn every_error_is_reported_at_once_and_by_name() {
    let config = json!({
        "version": 3,
        "baseRegions": {"apac": -1, "mars": 50, "enam": 2.5},
        "groups": {
            "user-client": {"totalShards": 0, "members": ["authcode", "authcode", "nobody", 7], "salt": "", "more": 1},
            "a.b": "x",
            "UPPER": {"members": [], "overrides": {"par": 8}},
            "x-g2": {"totalShards": 8, "members": ["KeyManager"]}
        },
        "previousGenerations": [{"generation": 7}, {"generation": 7, "totalShards": 8, "validUntil": "2025-02-01"}],
        "extra": true
    });
    let mut found = errors(&config);
    found.retain(|error| !error.ends_with("missing_type"));
    assert_eq!(
        found,
        [
            "extra unknown_field",
            "version out_of_range",
            "currentGeneration missing_field",
            "baseRegions.apac negative_share",
            "baseRegions.enam wrong_kind",
            "baseRegions.mars unknown_region",
            "groups.UPPER.totalShards missing_field",
            "groups.UPPER.members empty_group",
            "groups.UPPER bad_name",
            "groups.UPPER.overrides.par not_member",
            "groups[\"a.b\"] wrong_kind",
            "groups.user-client.more unknown_field",
            "groups.user-client.totalShards out_of_range",
            "groups.user-client.salt out_of_range",
            "groups.user-client.members[1] duplicate_member",
            "groups.user-client.members[0] duplicate_member",
            "groups.user-client.members[2] unknown_type",
            "groups.user-client.members[3] wrong_kind",
            "groups.x-g2.members[0] singleton",
            "groups.x-g2 bad_name",
            "previousGenerations[0].validUntil missing_field",
            "previousGenerations[0] not_routable",
            "previousGenerations[1].generation generation_order",
            "previousGenerations[1].validUntil bad_timestamp",
        ]
    );
}

#[test]
fn a_key_written_twice_is_an_error() {
    let text = documented().to_string().replace("\"apac\":20", "\"apac\":20,\"apac\":20,\"enam\":-20");
    let found = listed(Placement::from_json(&text).map(drop));
    assert!(found.contains(&"baseRegions.apac duplicate_key".to_owned()), "{found:?}");
    let text = documented().to_string().replace("\"vc\":{", "\"vc\":{\"totalShards\":16,");
    assert_eq!(listed(Placement::from_json(&text).map(drop))[0], "groups.vc wrong_kind");
}

#[test]
fn text_that_is_no_configuration_is_one_error() {
    for (text, code) in
        [("", "malformed"), ("{", "malformed"), ("[]", "malformed"), ("null", "malformed"), ("7", "malformed")]
    {
        assert_eq!(listed(Placement::from_json(text).map(drop)), [format!(" {code}")], "{text}");
    }
    let deep = "[".repeat(100_000);
    assert_eq!(listed(Placement::from_json(&deep).map(drop)), [" malformed"]);
    let large = " ".repeat((1 << 20) + 1);
    assert_eq!(listed(Placement::from_json(&large).map(drop)), [" too_large"]);
}

#[test]
fn bucket_spaces_with_one_name_are_refused() {
    let mut config = with("/groups/client-based/overrides", json!({"dpop": 64}));
    config["groups"]["random-high-rps"]["members"] = json!([]);
    config["groups"]["client-based-dpop"] = json!({"totalShards": 8, "members": ["revocation"]});
    config["groups"].as_object_mut().unwrap().remove("random-high-rps");
    assert_eq!(errors(&config), ["groups.client-based-dpop duplicate_key"]);
}

// ---- generations ----

#[test]
fn writes_go_to_the_current_generation_and_reads_follow_by_recency_until_they_expire() {
    let placement = placement(&migrated());
    let read = |now| {
        let located = placement.read_path(&name("dpop"), "client123", at(now)).unwrap();
        let one = |l: &isles_kernel::placement::Located| format!("{} {} {}", l.generation, l.bucket, l.space);
        located.iter().map(one).collect::<Vec<_>>()
    };
    assert_eq!(placement.locate(&name("dpop"), "client123").unwrap().generation.get(), 2);
    assert_eq!(read("2025-01-31T23:59:59Z"), ["g2 42 client-based-g2", "g1 10 client-based", "g0 2 default-g0"]);
    assert_eq!(read("2025-02-01T00:00:00Z"), ["g2 42 client-based-g2", "g1 10 client-based"]);
    assert_eq!(read("2026-03-01T00:00:00Z"), ["g2 42 client-based-g2"]);
}

#[test]
fn a_record_hashed_under_the_old_count_is_still_found_after_the_count_changes() {
    let (old, new) = (placement(&documented()), placement(&migrated()));
    for i in 0..500 {
        let key = format!("client{i}");
        let written = old.locate(&name("dpop"), &key).unwrap();
        let read = new.read_path(&name("dpop"), &key, at("2026-01-01T00:00:00Z")).unwrap();
        assert!(read.contains(&written), "{key}");
    }
}

#[test]
fn an_id_is_never_remapped_when_a_group_shrinks() {
    let mut grown = documented();
    grown["groups"]["client-based"]["totalShards"] = json!(64);
    let mut shrunk = migrated();
    shrunk["previousGenerations"][0]["groups"]["client-based"]["totalShards"] = json!(64);
    shrunk["groups"]["client-based"]["totalShards"] = json!(32);
    let (old, new) = (placement(&grown), placement(&shrunk));
    let located = old.locate(&name("dpop"), "client123").unwrap();
    assert_eq!(located.bucket, BucketId(42), "beyond the buckets of the next generation");
    let id = old.mint(&name("dpop"), &located, UniquePart::new("jti").unwrap()).unwrap();
    assert_eq!(new.check_id(&id).unwrap().located, located);
}

#[test]
fn generation_0_is_read_by_key_and_named_by_no_id() {
    let placement = placement(&documented());
    assert_eq!(placement.previous()[0].generation(), Generation::LEGACY);
    assert!(ResourceId::parse("g0:apac:16:ses_x").is_err());
    assert_eq!(errors(&with("/currentGeneration", json!(0))), ["currentGeneration out_of_range"]);
}

#[test]
fn previous_generations_are_below_the_current_one_distinct_and_ordered() {
    let entry = |generation| json!({"generation": generation, "totalShards": 20, "validUntil": "2025-02-01T00:00:00Z"});
    let list = |current: u64, generations: &[i64]| {
        let entries: Vec<Value> = generations.iter().map(|generation| entry(*generation)).collect();
        let config = set(documented(), "/currentGeneration", json!(current));
        errors(&set(config, "/previousGenerations", json!(entries)))
    };
    assert_eq!(list(7, &[6, 5, 4, 3, 2]), [""; 0]);
    assert_eq!(list(7, &[6, 5, 4, 3, 2, 1]), ["previousGenerations too_many"]);
    assert_eq!(list(7, &[7]), ["previousGenerations[0].generation generation_order"]);
    assert_eq!(list(7, &[3, 5]), ["previousGenerations[1].generation generation_order"]);
    assert_eq!(list(7, &[3, 3]), ["previousGenerations[1].generation generation_order"]);
    assert_eq!(list(7, &[-1]), ["previousGenerations[0].generation out_of_range"]);
    assert_eq!(list(1000, &[]), ["currentGeneration out_of_range"]);
}

#[test]
fn an_expiry_is_an_rfc_3339_instant() {
    let with_expiry = |text: &str| errors(&with("/previousGenerations/0/validUntil", json!(text)));
    for good in ["2025-02-01T00:00:00Z", "2025-02-01T00:00:00.123Z", "2025-02-01T09:00:00+09:00"] {
        assert_eq!(with_expiry(good), [""; 0]);
    }
    for bad in [
        "",
        "soon",
        "2025-02-01",
        "2025-02-01T00:00Z",
        "2025-02-01 00:00:00Z",
        "2025-02-30T00:00:00Z",
        "2025-02-01T00:00:00",
        "2025-02-01T00:00:00Z[UTC]",
        "2025-02-01T00:00:00+09",
        "2025-02-01T25:00:00Z",
        "２０２５-02-01T00:00:00Z",
    ] {
        assert_eq!(with_expiry(bad), ["previousGenerations[0].validUntil bad_timestamp"], "{bad}");
    }
}

#[test]
fn a_previous_generation_records_its_own_regions() {
    let mut config = migrated();
    config["baseRegions"] = json!({"enam": 100});
    config["previousGenerations"][0]["regions"] = json!({"apac": 20, "enam": 40, "weur": 40});
    let old = placement(&documented()).locate(&name("par"), "client1").unwrap();
    let new = placement(&config).read_path(&name("par"), "client1", at("2026-01-01T00:00:00Z")).unwrap();
    assert_eq!(new[1], old);
    assert_eq!(new[0].region, region("enam"));
}

// ---- changes ----

#[test]
fn a_migration_is_a_valid_change() {
    assert_eq!(changes(&documented(), &migrated()), [""; 0]);
    assert_eq!(changes(&documented(), &documented()), [""; 0]);
}

#[test]
fn count_salt_group_and_regions_change_only_with_the_generation() {
    for (pointer, value, wanted) in [
        ("/groups/vc/totalShards", json!(32), "groups.vc.totalShards mapping_changed"),
        ("/groups/vc/salt", json!("s1"), "groups.vc.salt mapping_changed"),
        ("/groups/client-based/overrides", json!({"dpop": 64}), "groups.client-based.overrides.dpop mapping_changed"),
        ("/baseRegions", json!({"apac": 40, "enam": 40, "weur": 20}), "baseRegions mapping_changed"),
    ] {
        let found = changes(&documented(), &with(pointer, value));
        assert!(found.contains(&wanted.to_owned()), "{found:?}");
    }
    let mut regrouped = without("/groups/vc");
    regrouped["groups"]["wallet"] = json!({"totalShards": 16, "members": ["credoffer", "vprequest"]});
    assert_eq!(changes(&documented(), &regrouped), ["groups.wallet.members mapping_changed"]);
}

#[test]
fn a_reset_cannot_reuse_a_generation_number() {
    assert_eq!(
        changes(&migrated(), &documented()),
        ["currentGeneration generation_fell", "previousGenerations generation_dropped"]
    );
    let fallback = serde_json::to_value(PlacementConfig::fallback()).unwrap();
    assert!(changes(&documented(), &fallback).iter().any(|error| error.ends_with("mapping_changed")));
}

#[test]
fn a_generation_is_kept_until_it_expires() {
    let mut forgotten = migrated();
    forgotten["previousGenerations"] = json!([]);
    assert_eq!(changes(&documented(), &forgotten), ["previousGenerations generation_dropped"]);
    assert_eq!(changes(&migrated(), &forgotten), ["previousGenerations generation_dropped"]);
    let late = at("2026-03-01T00:00:00Z");
    assert_eq!(listed(validate_change(&placement(&migrated()), &placement(&forgotten), &[], late)), [""; 0]);
}

#[test]
fn a_previous_generation_keeps_its_mapping() {
    let mut forged = migrated();
    forged["previousGenerations"][0]["groups"]["vc"]["totalShards"] = json!(8);
    assert_eq!(changes(&documented(), &forged), ["previousGenerations[0].groups.vc.totalShards mapping_changed"]);
    let mut moved = migrated();
    moved["baseRegions"] = json!({"enam": 100});
    let found = changes(&documented(), &moved);
    assert!(found.contains(&"previousGenerations[0].regions mapping_changed".to_owned()), "{found:?}");
}

#[test]
fn a_retired_generation_cannot_return() {
    let mut retired = migrated();
    retired["previousGenerations"] = json!([migrated()["previousGenerations"][0]]);
    assert_eq!(changes(&retired, &migrated()), ["previousGenerations[1].generation generation_reused"]);
}

#[test]
fn a_type_keeps_its_key_and_its_prefixes() {
    let typed = |spec: Value| {
        let config = with("/types", json!({"invoice": spec}));
        set(config, "/groups/vc/members", json!(["credoffer", "vprequest", "invoice"]))
    };
    let old = typed(json!({"prefix": "inv", "key": "orderId"}));
    assert_eq!(changes(&old, &typed(json!({"prefix": "inv", "key": "uuid"}))), ["types.invoice.key type_changed"]);
    assert_eq!(
        changes(&old, &typed(json!({"prefix": "bil", "key": "orderId"}))),
        ["types.invoice.prefix type_changed"]
    );
    let kept = typed(json!({"prefix": "bil", "key": "orderId", "legacyPrefixes": ["inv"]}));
    assert_eq!(changes(&old, &kept), [""; 0]);
}

// ---- ids ----

#[test]
fn an_id_is_followed_only_if_all_its_parts_exist() {
    let placement = placement(&documented());
    let check =
        |text: &str| placement.check_id(&ResourceId::parse(text).unwrap()).map(|checked| checked.located.bucket);
    assert_eq!(check("g1:apac:26:ses_abc123"), Ok(BucketId(26)));
    assert_eq!(check("g1:apac:26:session_abc123"), Ok(BucketId(26)));
    assert!(matches!(check("g2:apac:26:ses_x"), Err(IdCheckError::UnknownGeneration { .. })));
    assert!(matches!(check("g1:apac:26:xyz_x"), Err(IdCheckError::UnknownType { .. })));
    assert!(matches!(check("g1:apac:32:ses_x"), Err(IdCheckError::BucketOutOfRange { .. })));
    assert!(matches!(check("g1:mars:26:ses_x"), Err(IdCheckError::UnknownRegion { .. })));
    assert!(matches!(check("g1:oc:26:ses_x"), Err(IdCheckError::WrongRegion { .. })));
    assert!(matches!(check("g1:enam:26:ses_x"), Err(IdCheckError::WrongRegion { .. })));
}

#[test]
fn exactly_the_ids_that_can_be_minted_pass_the_check() {
    let placement = placement(&migrated());
    let mut passed = 0;
    for map in placement.generations().filter(|map| !map.generation().is_legacy()) {
        for (type_name, group) in map.types() {
            let prefix = &placement.registry().get(type_name).unwrap().prefix;
            for bucket in (0..70).map(BucketId) {
                for region_name in KNOWN_REGIONS {
                    let text = format!("{}:{region_name}:{bucket}:{prefix}_x", map.generation());
                    let checked = placement.check_id(&ResourceId::parse(&text).unwrap());
                    let owned = group.region_of(bucket).is_some_and(|home| home.as_str() == region_name);
                    assert_eq!(checked.is_ok(), owned, "{text}");
                    passed += usize::from(owned);
                }
            }
        }
    }
    let buckets = |map: &isles_kernel::placement::GenerationMap| {
        map.types().map(|(_, group)| group.buckets().get() as usize).sum::<usize>()
    };
    assert_eq!(passed, placement.generations().take(2).map(buckets).sum::<usize>());
}

// ---- properties ----

/// One to seven regions and percentages that sum to 100; some may be 0.
fn shares() -> impl Strategy<Value = Vec<RegionShare>> {
    let regions = proptest::sample::subsequence(KNOWN_REGIONS.to_vec(), 1..=KNOWN_REGIONS.len()).prop_shuffle();
    regions.prop_flat_map(|regions| {
        let cuts = proptest::collection::vec(0..=100u32, regions.len() - 1);
        cuts.prop_map(move |mut cuts| {
            cuts.extend([0, 100]);
            cuts.sort();
            let percents = cuts.windows(2).map(|pair| pair[1] - pair[0]);
            regions.iter().zip(percents).map(|(name, percent)| RegionShare { region: region(name), percent }).collect()
        })
    })
}

/// The properties of one division; `shares` are in any order.
fn check_division(count: u32, shares: &[RegionShare]) {
    let buckets = BucketCount::new(count).unwrap();
    let active = shares.iter().filter(|share| share.percent > 0).count();
    let Ok(ranges) = apportion(buckets, shares) else {
        assert!(active > count as usize, "refused {count} {shares:?}");
        return;
    };
    assert_eq!(ranges.len(), active);
    let mut next = 0;
    for range in &ranges {
        assert!(range.first.0 == next && range.first <= range.last, "{count} {shares:?} {ranges:?}");
        next = range.last.0 + 1;
    }
    assert_eq!(next, count, "exact cover");
    let percent = |name: &RegionName| shares.iter().find(|share| share.region == *name).unwrap().percent;
    for pair in ranges.windows(2) {
        let (before, after) = (percent(&pair[0].region), percent(&pair[1].region));
        assert!((after, &pair[0].region) < (before, &pair[1].region), "canonical order");
        assert!(pair[0].bucket_count() >= pair[1].bucket_count(), "a larger share has no fewer buckets");
    }
    let full = ranges.iter().filter(|range| count * percent(&range.region) >= 100).count() == active;
    for range in ranges.iter().filter(|_| full) {
        assert!((range.bucket_count() * 100).abs_diff(count * percent(&range.region)) < 100, "within one of its quota");
    }
    let mut reversed = shares.to_vec();
    reversed.reverse();
    assert_eq!(apportion(buckets, &reversed).unwrap(), ranges);
}

/// Changes that break a rule: where, to what.
fn breaking() -> Vec<(&'static str, Value)> {
    vec![
        ("/version", json!(1)),
        ("/version", json!("2")),
        ("/currentGeneration", json!(0)),
        ("/currentGeneration", json!(1.5)),
        ("/currentGeneration", json!(1000)),
        ("/baseRegions/apac", json!(21)),
        ("/baseRegions/apac", json!(-20)),
        ("/baseRegions/apac", json!(20.5)),
        ("/baseRegions/enam", json!(null)),
        ("/baseRegions/mars", json!(0)),
        ("/groups/user-client/totalShards", json!(0)),
        ("/groups/user-client/totalShards", json!(2)),
        ("/groups/user-client/totalShards", json!(1e9)),
        ("/groups/user-client/members", json!([])),
        ("/groups/user-client/members", json!("authcode")),
        ("/groups/user-client/members/1", json!("session")),
        ("/groups/user-client/members/1", json!("refres")),
        ("/groups/user-client/members/1", json!("keymanager")),
        ("/groups/user-client/members/1", json!(null)),
        ("/groups/random-high-rps/overrides", json!({"session": 8})),
        ("/groups/random-high-rps/overrides", json!({"revocation": 0})),
        ("/groups/random-high-rps/salt", json!("")),
        ("/groups/random-high-rps/salt", json!("a\nb")),
        ("/groups/random-high-rps/key", json!("client_id")),
        ("/groups/random-high-rps/description", json!(7)),
        ("/groups/random-high-rps/totalshards", json!(64)),
        ("/groups/vc", json!(16)),
        ("/groups/VC", json!({"totalShards": 16, "members": ["session"]})),
        ("/groups/vc-g7", json!({"totalShards": 16, "members": ["session"]})),
        ("/previousGenerations/0/validUntil", json!("tomorrow")),
        ("/previousGenerations/0/validUntil", json!(null)),
        ("/previousGenerations/0/generation", json!(1)),
        ("/previousGenerations/0/generation", json!(-1)),
        ("/previousGenerations/0/totalShards", json!(0)),
        ("/previousGenerations/0/totalShards", json!(null)),
        ("/previousGenerations/0/regions", json!({"apac": 99})),
        ("/previousGenerations/0/groups", json!({"default": {"totalShards": 8, "members": []}})),
        ("/previousGenerations/0/deprecatedAt", json!(0)),
        ("/singletons", json!(["session"])),
        ("/types", json!({"session": {"prefix": "sss", "key": "uuid"}})),
        ("/types", json!({"invoice": {"prefix": "ses", "key": "uuid"}})),
        ("/types", json!({"invoice": {"prefix": "i", "key": ""}})),
        ("/typo", json!(1)),
    ]
}

/// Changes that break none.
fn harmless() -> Vec<(&'static str, Value)> {
    vec![
        ("/groups/vc/description", json!("wallets")),
        ("/groups/vc/description", json!(null)),
        ("/groups/vc/members", json!(["vprequest", "credoffer"])),
        ("/groups/vc/salt", json!("s1")),
        ("/groups/vc/totalShards", json!(65_536)),
        ("/groups/vc/overrides", json!({"credoffer": 3})),
        ("/groups/client-based/key", json!("client_id")),
        ("/groups/client-based/overrides", json!({})),
        ("/groups/user-client/totalShards", json!(3)),
        ("/groups/user-client/overrides", json!(null)),
        ("/baseRegions/oc", json!(0)),
        ("/currentGeneration", json!(999)),
        ("/previousGenerations/0/totalShards", json!(7)),
        ("/previousGenerations/0/salt", json!("old")),
        ("/previousGenerations/0/regions", json!({"me": 100})),
        ("/previousGenerations", json!([])),
        ("/singletons", json!(["ledger"])),
        ("/types", json!({})),
    ]
}

/// `/groups/vc/members/1` as errors name it: `groups.vc.members[1]`.
fn field_of(pointer: &str) -> String {
    pointer.split('/').skip(1).fold(String::new(), |path, part| match part.parse::<usize>() {
        Ok(index) => format!("{path}[{index}]"),
        Err(_) if path.is_empty() => part.to_owned(),
        Err(_) => format!("{path}.{part}"),
    })
}

#[test]
fn each_broken_rule_is_reported_at_the_field_that_breaks_it() {
    for (pointer, value) in breaking() {
        let found = errors(&with(pointer, value.clone()));
        let field = field_of(pointer);
        let names = |error: &String| error.starts_with(&field) || field.starts_with(error.split(' ').next().unwrap());
        assert!(found.iter().any(names), "{pointer} = {value}: {found:?}");
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (0..100i64).prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        proptest::sample::select(vec!["session", "refresh", "default", "apac", "g1", "keymanager"])
            .prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 6, |inner| {
        let key = prop_oneof![
            ".{0,8}",
            proptest::sample::select(vec!["totalShards", "members", "overrides", "salt", "apac", "session", "default"])
                .prop_map(str::to_owned),
        ];
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            proptest::collection::btree_map(key, inner, 0..6).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Every place in a configuration, as JSON pointers.
fn pointers(value: &Value, path: &str, out: &mut Vec<String>) {
    match value {
        Value::Object(object) => object.iter().for_each(|(key, value)| {
            let path = format!("{path}/{key}");
            pointers(value, &path, out);
            out.push(path);
        }),
        Value::Array(list) => list.iter().enumerate().for_each(|(i, value)| {
            let path = format!("{path}/{i}");
            pointers(value, &path, out);
            out.push(path);
        }),
        _ => (),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn regions_cover_the_buckets_exactly_for_every_count(shares in shares()) {
        (1..=256).for_each(|count| check_division(count, &shares));
        check_division(65_536, &shares);
    }

    #[test]
    fn all_of_several_broken_rules_are_reported(picked in proptest::sample::subsequence((0..breaking().len()).collect::<Vec<_>>(), 1..6)) {
        let mut config = documented();
        let mut applied: Vec<&str> = Vec::new();
        for (pointer, value) in picked.into_iter().map(|i| breaking().swap_remove(i)) {
            // A change inside what another one replaced would hide it, and two changes can mend each other: a
            // sum, a member's only place, a generation's order.
            let nested = |other: &&str| pointer.starts_with(*other) || other.starts_with(pointer);
            let tangled = ["Regions", "members", "/generation", "0/groups"].iter().any(|part| pointer.contains(part));
            if applied.iter().any(|other| tangled || nested(other)) {
                continue;
            }
            config = set(config, pointer, value);
            applied.push(pointer);
        }
        let found = errors(&config);
        for pointer in applied {
            let field = field_of(pointer);
            let names = |error: &String| error.starts_with(&field) || field.starts_with(error.split(' ').next().unwrap());
            prop_assert!(found.iter().any(names), "{pointer} in {config}: {found:?}");
        }
    }

    #[test]
    fn harmless_changes_leave_a_configuration_valid(picked in proptest::sample::subsequence((0..harmless().len()).collect::<Vec<_>>(), 0..8)) {
        let mut config = documented();
        for (pointer, value) in picked.into_iter().map(|i| harmless().swap_remove(i)) {
            if config.pointer(pointer.rsplit_once('/').unwrap().0).is_some() {
                config = set(config, pointer, value);
            }
        }
        prop_assert_eq!(errors(&config), [""; 0]);
    }

    #[test]
    fn no_configuration_makes_validation_panic(at in any::<proptest::sample::Index>(), value in any_json()) {
        let mut places = Vec::new();
        pointers(&migrated(), "", &mut places);
        let config = set(migrated(), at.get(&places).as_str(), value);
        if let Ok(placement) = Placement::from_json(&config.to_string()) {
            for spec in placement.registry().types() {
                placement.read_path(&spec.name, "key", Timestamp::UNIX_EPOCH).unwrap();
            }
        }
    }

    #[test]
    fn no_text_makes_reading_panic(text in ".{0,200}", json in any_json()) {
        let _ = Placement::from_json(&text);
        let _ = Placement::from_json(&json.to_string());
    }

    #[test]
    fn a_key_is_in_one_bucket_of_one_region_for_all_types_of_its_group(key in ".{0,40}") {
        let placement = placement(&documented());
        for map in placement.generations() {
            for group in map.groups() {
                let bucket = group.bucket_of(&key);
                prop_assert_eq!(group.ranges().iter().filter(|range| range.contains(bucket)).count(), 1);
            }
        }
        let places: BTreeSet<String> = ["authcode", "refresh"].map(|member| shown(&placement, member, &key)).into();
        prop_assert_eq!(places.len(), 1);
    }
}

/// A type that no configuration lists, and is kept.
fn kept(name: &str, group: &str, key: &str) -> KeptType {
    let (group, key) = (GroupName::new(group).unwrap(), KeySchema::new(key).unwrap());
    KeptType { name: TypeName::new(name).unwrap(), group, key }
}

fn changes_under(old: &Value, new: &Value, kept: &[KeptType]) -> Vec<String> {
    listed(validate_change(&placement(old), &placement(new), kept, at("2026-01-01T00:00:00Z")))
}

/// Every member has a count of its own, so the group's count is that of no type that is listed.
#[test]
fn a_group_without_members_of_its_own_keeps_its_count_and_salt() {
    let own = json!({ "par": 64, "device": 64, "ciba": 64, "dpop": 64 });
    let old = with("/groups/client-based/overrides", own);
    let count = set(old.clone(), "/groups/client-based/totalShards", json!(40));
    assert_eq!(changes(&old, &count), ["groups.client-based.totalShards mapping_changed"]);
    let empty = with("/groups/default", json!({ "totalShards": 20, "members": [] }));
    let count = set(empty.clone(), "/groups/default/totalShards", json!(21));
    assert_eq!(changes(&empty, &count), ["groups.default.totalShards mapping_changed"]);
    let salt = set(empty.clone(), "/groups/default/salt", json!("s"));
    assert_eq!(changes(&empty, &salt), ["groups.default.salt mapping_changed"]);
    assert_eq!(changes(&empty, &empty), [""; 0]);
}

/// Under the name that it has, under another, and in favour of the default group.
#[test]
fn a_group_that_something_is_kept_in_does_not_go() {
    let all = [kept("audit", "default", "uuid"), kept("ratelimit", "random-high-rps", "purpose")];
    let old = with("/groups/default", json!({ "totalShards": 20, "members": [] }));
    assert_eq!(changes_under(&old, &old, &all), [""; 0]);
    assert_eq!(changes_under(&old, &documented(), &all), ["groups.default group_in_use"]);
    // What was in the default group would be in one of its own.
    let waiting = [kept("ticket", "tickets", "uuid")];
    let own = set(old.clone(), "/groups/tickets", json!({ "totalShards": 20, "members": ["session"] }));
    let own = set(own, "/groups/random-medium-rps/members", json!(["challenge"]));
    assert!(changes_under(&old, &own, &waiting).contains(&"groups.tickets group_in_use".to_owned()));
    // A new generation may leave out no group that is in use, and any other.
    let left = json!({ "totalShards": 20, "members": ["session", "challenge", "revocation"] });
    let mut new = set(migrated(), "/groups/random-medium-rps", left);
    new["groups"].as_object_mut().unwrap().remove("random-high-rps");
    assert_eq!(listed(check_kept(&placement(&new), &all[1..])), ["groups.random-high-rps group_in_use"]);
    assert_eq!(listed(check_kept(&placement(&new), &[])), [""; 0]);
    let with_default = set(new, "/groups/default", json!({ "totalShards": 20, "members": [] }));
    assert_eq!(listed(check_kept(&placement(&with_default), &all)), [""; 0]);
    assert_eq!(changes_under(&documented(), &with_default, &all[1..]), [""; 0]);
}

/// What is kept obeys the rules of what is listed: the same key, the same count; and the key that its group names.
#[test]
fn what_is_kept_is_keyed_as_its_group_and_its_peers_are() {
    let of = |config: &Value, kept: &[KeptType]| listed(check_kept(&placement(config), kept));
    let x = kept("x", "vc", "client_id");
    assert_eq!(of(&documented(), std::slice::from_ref(&x)), ["groups.vc.totalShards same_key_count"]);
    let equal = with("/groups/vc/totalShards", json!(32));
    assert_eq!(of(&equal, std::slice::from_ref(&x)), [""; 0]);
    let salted = set(equal, "/groups/vc/salt", json!("s"));
    assert_eq!(of(&salted, std::slice::from_ref(&x)), ["groups.vc.salt same_key_salt"]);
    assert_eq!(of(&documented(), &[kept("x", "vc", "userId:clientId")]), ["groups.vc.members colocation_split"]);
    assert_eq!(of(&documented(), &[kept("x", "user-client", "userId:clientId")]), [""; 0]);
    // Two that nobody lists owe each other the same, and random keys owe nothing.
    let both = |key: &str| [kept("a", "vc", key), kept("b", "client-based", key)];
    assert_eq!(of(&documented(), &both("purpose")), ["groups.client-based.totalShards same_key_count"]);
    assert_eq!(of(&documented(), &both("uuid")), [""; 0]);
    let keyed = with("/groups/user-client/key", json!("userId:clientId"));
    assert_eq!(of(&keyed, &[kept("x", "user-client", "purpose")]), ["groups.user-client.key key_mismatch"]);
}

#[test]
fn what_is_kept_is_among_what_a_change_would_move() {
    let (old, new) = (placement(&documented()), placement(&migrated()));
    let all = [kept("samlrequest", "client-based", "issuer"), kept("permission", "vc", "tenantId")];
    let ways = impact(&old, &new, &all, 500);
    let of = |kept: &str| ways.iter().find(|way| way.types.iter().any(|name| name.as_str() == kept)).unwrap();
    assert_eq!((of("samlrequest").buckets_before, of("samlrequest").buckets), (Some(32), 64));
    assert!(of("samlrequest").moved > 100 && of("permission").moved == 0);
}
