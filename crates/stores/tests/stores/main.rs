//! Stores over real shards: what each operation promises, whoever asks at once, while placements change and buckets move.
//!
//! Each test runs over SQLite files and over PostgreSQL databases, with a clock that the test sets.
//!
//! `cargo xtask logins` runs the test under load with more flows.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall say where")]

mod dropped;
mod generations;
#[path = "../../../cluster/tests/session/harness.rs"]
#[allow(dead_code, reason = "shared with the tests of sessions")]
mod harness;
mod holes;
mod identity;
mod load;
mod operations;
mod quotas;
mod races;
mod regions;
mod simulated;
mod surfaces;
mod world;

/// Runs tests over three shards of each engine. One that is not listed is never run, and the compiler says so.
macro_rules! on_both_engines {
    ($of:ident: $($test:ident,)*) => {
        on_both_engines! { $of, sqlite, postgres: $($test,)* }
    };
    ($of:ident, $sqlite:ident, $postgres:ident: $($test:ident,)*) => {
        mod $of {
            mod over_sqlite {
                $(#[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    crate::$of::$test(crate::world::World::$sqlite().await).await;
                })*
            }
            mod over_postgres {
                $(#[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    crate::$of::$test(crate::world::World::$postgres().await).await;
                })*
            }
        }
    };
}

mod runs {
    on_both_engines! {
        operations:
        a_record_is_put_and_read_by_its_id,
        a_record_expires_at_its_time_and_is_extended_up_to_its_cap,
        a_record_is_taken_once_by_whom_it_is_bound_to,
        what_is_absent_is_put_once,
        a_value_is_swapped_if_it_is_as_it_was_read,
        tokens_rotate_and_their_reuse_revokes_the_family,
        an_owners_records_are_listed_and_revoked,
        stores_are_defined_once,
        limits_are_kept,
        what_has_expired_is_swept,
        a_token_that_is_not_the_current_one_changes_nothing,
        a_forged_id_costs_a_lookup,
        a_region_that_the_tenant_does_not_have_is_no_error_as_a_hint,
    }
    on_both_engines! {
        races:
        a_write_that_is_refused_refuses_no_other,
        of_many_who_take_a_code_one_has_it,
        of_many_who_claim_an_offer_one_has_it,
        of_many_who_put_a_proof_one_passes,
        of_many_who_swap_a_value_each_sees_the_last,
        of_many_who_rotate_a_token_all_get_one_successor,
        of_many_who_rotate_without_grace_the_family_is_revoked,
        of_many_who_exchange_a_code_one_has_it,
        a_counter_allows_as_many_as_its_limit,
        of_many_who_poll_an_approved_device_one_is_granted,
        versions_rise_without_gaps,
        a_hot_counter_counts_everyone,
    }
    on_both_engines! {
        generations:
        a_new_generation_reads_what_the_last_has_written,
        a_proof_passes_once_over_a_change_of_generation,
        one_with_an_old_placement_and_one_with_a_new_one_meet,
        what_replaces_a_record_by_key_removes_it_from_the_last_generation,
        a_code_of_the_last_generation_is_exchanged_once,
        a_family_of_the_last_generation_rotates_where_it_is,
        a_generation_ends_at_its_time,
        old_prefixes_are_read_in_old_generations,
        a_placement_that_stores_do_not_fit_is_refused,
        a_generation_is_read_for_as_long_as_its_records_may_last,
        permission_changes_are_numbered_over_generations,
        notes_that_only_guard_hold_no_generation,
        generations_change_for_ever_while_proofs_pass,
        a_record_on_its_way_to_the_next_generation_is_found,
    }
    on_both_engines! {
        identity:
        a_login_goes_through,
        device_codes_are_polled_as_the_standard_says,
        signing_keys_rotate,
        single_use_requests_are_used_once,
        permission_changes_are_numbered,
        ids_of_another_tenant_are_like_missing_ones,
    }
    on_both_engines! {
        surfaces:
        stores_are_defined_and_used_by_sql,
        a_tenants_role_reaches_its_own_records,
        devices_keys_and_versions_are_used_by_sql,
        new_ids_are_minted_in_the_region_of_the_session,
        a_region_is_first_met_within_a_transaction,
        a_table_that_is_missing_within_a_transaction_is_made_for_the_next,
    }
    on_both_engines! {
        quotas:
        b24_beyond_its_quota_a_store_refuses_and_evicts_nothing,
        of_many_at_the_edge_as_many_pass_as_there_are_places,
        transactions_at_the_edge_take_one_place_each,
        expired_records_take_no_place,
        what_ends_a_record_frees_its_place,
        what_replaces_a_record_needs_no_place,
        a_code_without_a_place_for_its_token_stays,
        records_with_aliases_are_counted,
        owners_and_tenants_have_their_parts,
        rows_are_not_counted_for_each_who_is_refused,
        a_quota_is_set_changed_and_taken_away,
        quotas_that_make_no_sense_are_refused,
        each_generation_counts_by_itself,
        a_count_goes_with_its_bucket,
    }
    on_both_engines! {
        dropped:
        records_of_a_dropped_tenant_are_dropped,
        a_tenant_that_is_being_dropped_gets_no_records,
    }
    on_both_engines! {
        regions, sqlite_in_regions, postgres_in_regions:
        records_of_a_region_are_on_its_shards,
        a_region_is_led_to_when_it_has_a_shard,
    }
    on_both_engines! {
        load:
        logins_go_on_while_generations_change_and_buckets_move,
    }
}
