//! What a fragment can rely on, on every database: one suite for memory, SQLite, PostgreSQL and Isles.
//!
//! What shards of fragments must be, and what shows it. Names without a path are tests of this suite.
//!
//! | shards | test |
//! |---|---|
//! | create, update, delete, find and check are in the shard | `shards_do_not_see_each_other`, `explicit_shards_are_refused` |
//! | the strategy `row`, on every adapter | all of `isolation` |
//! | the strategy `adapter`, on every adapter | `a_database_of_one_shard_is_bound_to_it`, `what_was_before_a_database_became_one_shard_is_apart` |
//! | the outbox route has one shard's entries, also behind middleware | `internal_routes_are_those_of_the_requests_shard` |
//! | sync and its conflicts are of one shard | `conflicts_are_of_the_own_shard`, `the_same_id_in_another_shard_is_another_request` |
//! | hooks by shard, and a global processor | `a_processor_of_a_shard_leaves_others_alone`, `a_global_processor_runs_each_hook_in_the_shard_of_its_row` |
//! | joins | `deep_joins_stay_in_the_shard` |
//! | no direct access under a strategy | `direct_access_is_refused_with_a_strategy` |
//! | clients never see a shard | `entries_tell_the_changes_without_shards`; `crates/server/tests/devices.rs` |
//!
//! | mistakes that others have made | test |
//! |---|---|
//! | an upgrade makes indexes on a column before the column | `tables_without_shards_get_them_first_at_any_interruption` |
//! | hooks of tenants are never found by the usual processor | `a_global_processor_runs_each_hook_in_the_shard_of_its_row` |
//! | a global processor runs hooks outside of their shard | the same |
//! | entries of the adapter in memory are nobody's | `the_entry_is_of_the_shard_of_its_unit_of_work`, on `memory` |
//! | row and entry take their shard at different times | `the_shard_is_captured_when_the_unit_of_work_is_made` |
//! | cursors fail on an index with the shard, or name it | `cursors_go_through_any_index_and_name_no_shard` |
//! | a cursor skips entries where a database is one shard | `a_database_of_one_shard_is_bound_to_it`, `versions_are_dense_in_each_shard_under_concurrency` |
//! | references are resolved in other shards | `references_to_another_shard_are_like_absent_ones` |
//! | entries name ids of other shards | `entries_tell_the_changes_without_shards`, `random_histories_are_those_of_separate_databases` |
//! | a write of nothing is published | `what_changes_nothing_publishes_nothing` |
//! | a request's id is taken by another shard | `the_same_id_in_another_shard_is_another_request` |
//! | a hook's id is taken by another shard | `ids_of_hooks_are_of_a_shard` |
//! | a strategy that comes late drops what was attached | `the_first_strategy_stays`, `internal_routes_are_those_of_the_requests_shard` |
//! | filling in shards rewrites tables, and cannot be repeated | `tables_without_shards_get_them_first_at_any_interruption` |
//! | an update moves a row to another shard | `explicit_shards_are_refused` |
//! | a database of one shard fails on its own settings | `a_database_of_one_shard_is_bound_to_it` |
//!
//! | what was tried out | test |
//! |---|---|
//! | two scopes at once mix their shards | `concurrent_scopes_never_mix` |
//! | foreign keys cross shards | `references_to_another_shard_are_like_absent_ones` |
//! | unique keys cross shards, and none has any where the shard is null | `unique_keys_are_of_a_shard_also_of_the_one_without_a_name` |
//! | two who check each other's row both commit | `checks_hold_under_concurrency`, `absent_checks_hold_under_concurrency` |
//! | an index on the shard alone reads all of the tenant's rows | `every_index_is_led_by_the_shard` |
//! | one clock for all makes all wait | `writers_of_different_shards_do_not_wait`; the benchmark's `clocks` |
//! | a fence that is forgotten | `row_level_security_holds_without_the_predicate`, `rows_of_others_are_not_believed` |
//!
//! | property | test |
//! |---|---|
//! | 1 one shard's doings change nothing that another sees | `random_histories_are_those_of_separate_databases` |
//! | 2, 3 one shard of many, a database of one shard and no strategy are the same | the same |
//! | 4 no context is an error, everywhere | `without_a_shard_nothing_is_read_or_written`, `bad_requests_have_codes_and_change_nothing` |
//! | 5 scopes never mix, retries keep their shard, none has two | `concurrent_scopes_never_mix`, `the_shard_is_captured_when_the_unit_of_work_is_made`, `a_shard_is_set_once` |
//! | 6 nobody names a hidden column | `explicit_shards_are_refused`, `scopes_do_not_name_hidden_columns` |
//! | 7 references to another shard are like those to nothing | `references_to_another_shard_are_like_absent_ones` |
//! | 8 unique keys are a shard's | `unique_keys_are_of_a_shard_also_of_the_one_without_a_name` |
//! | 9 deep joins | `deep_joins_stay_in_the_shard` |
//! | 10 the second fence | `row_level_security_holds_without_the_predicate`, `rows_of_others_are_not_believed` |
//! | 11 versions are dense, in commit order, over crashes | `versions_are_dense_in_each_shard_under_concurrency`, `a_killed_writer_leaves_rows_and_entry_or_neither`; `crates/fragments/tests/simulated`, `crates/fragments/tests/killed.rs` |
//! | 12 writers of different shards do not wait | `writers_of_different_shards_do_not_wait` |
//! | 13 entries have no shard and nothing of others | `entries_tell_the_changes_without_shards` |
//! | 14 a request has one effect, however often it comes | `a_request_has_one_effect_and_one_answer`, `copies_at_the_same_time_have_one_effect`, `a_killed_request_is_done_once_when_it_comes_again`; `crates/fragments/tests/simulated` |
//! | 15 every kind of conflict, of the own shard | `written_keys_conflict`, `read_keys_conflict_also_with_deletes`, `scopes_conflict_with_what_came_left_or_went`, `conflicts_are_of_the_own_shard` |
//! | 16 another partition is refused, and wipes | `wrong_partitions_and_old_cursors_are_refused`; `crates/server/tests/devices.rs` |
//! | 17 hooks run in their row's shard, and so do theirs | `hooks_run_after_the_commit_in_their_shard`, `a_global_processor_runs_each_hook_in_the_shard_of_its_row` |
//! | 18 fairness; what hangs, fails or crashes comes to an end | `a_shard_that_hangs_delays_no_other`, `stuck_hooks_count_as_attempts`, `failures_are_tried_again_and_given_up`; `crates/fragments/tests/simulated` |
//! | 19 upgrades, interrupted at each step | `an_interrupted_migration_goes_on_at_any_step`, `tables_without_shards_get_them_first_at_any_interruption` |
//! | 20 another strategy than the database's is refused | `the_first_strategy_stays` |
//! | 21 histories of checks are serializable | `checked_histories_are_serializable` |

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall say where")]

mod hooks;
mod isolation;
mod migrations;
mod outbox;
mod planted;
mod retention;
mod rows;
mod sync;
mod web;
mod world;

/// Each of these takes a database of its own, and is a test for every kind of it.
macro_rules! on_all {
    ($($file:ident: $($test:ident),+ $(,)?;)+) => {
        on_all! { @kind memory: $($file: $($test),+;)+ }
        on_all! { @kind sqlite: $($file: $($test),+;)+ }
        on_all! { @kind postgres: $($file: $($test),+;)+ }
        on_all! { @kind isles: $($file: $($test),+;)+ }
    };
    (@kind $kind:ident: $($file:ident: $($test:ident),+;)+) => {
        mod $kind {
            $($(
                #[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    crate::$file::$test(crate::world::World::$kind().await).await;
                }
            )+)+
        }
    };
}

on_all! {
    rows:
        rows_are_created_found_updated_and_deleted,
        values_of_all_types_come_back,
        versions_are_checked_and_units_of_work_are_tried_again,
        a_row_that_was_made_again_is_another_row,
        joins_counts_and_orders,
        cursors_go_through_any_index_and_name_no_shard,
        parts_of_texts_are_taken_as_they_are,
        checks_hold_at_the_commit,
        first_writers_of_a_shard_do_not_collide,
        checks_hold_under_concurrency,
        absent_checks_hold_under_concurrency,
        checked_histories_are_serializable,
        services_run_in_one_transaction_with_their_handler,
        what_fails_leaves_nothing,
        bad_input_has_codes,
        retries_are_for_what_reads;
    isolation:
        without_a_shard_nothing_is_read_or_written,
        shards_do_not_see_each_other,
        deep_joins_stay_in_the_shard,
        explicit_shards_are_refused,
        references_to_another_shard_are_like_absent_ones,
        unique_keys_are_of_a_shard_also_of_the_one_without_a_name,
        concurrent_scopes_never_mix,
        the_shard_is_captured_when_the_unit_of_work_is_made,
        a_shard_is_set_once,
        names_of_shards_have_limits,
        the_global_scope_reads_all_and_writes_none,
        direct_access_is_refused_with_a_strategy,
        a_unit_of_work_that_is_made_in_a_scope_is_of_it,
        the_first_strategy_stays,
        a_database_of_one_shard_is_bound_to_it,
        what_was_before_a_database_became_one_shard_is_apart,
        without_a_strategy_there_is_one_shard,
        random_histories_are_those_of_separate_databases;
    outbox:
        versions_are_dense_in_each_shard_under_concurrency,
        entries_tell_the_changes_without_shards,
        what_changes_nothing_publishes_nothing,
        units_of_work_that_fail_leave_no_gap,
        the_entry_is_of_the_shard_of_its_unit_of_work,
        a_killed_writer_leaves_rows_and_entry_or_neither,
        readers_wait_for_news,
        readers_are_told_of_what_others_commit,
        pages_of_large_entries_are_cut_by_their_bytes,
        below_the_floor_readers_begin_anew,
        cursors_of_another_log_are_refused,
        snapshots_and_entries_make_the_same_rows,
        partitions_are_opaque_and_differ;
    sync:
        a_request_has_one_effect_and_one_answer,
        copies_at_the_same_time_have_one_effect,
        a_killed_request_is_done_once_when_it_comes_again,
        the_same_id_with_another_body_is_refused,
        the_same_id_in_another_shard_is_another_request,
        written_keys_conflict,
        read_keys_conflict_also_with_deletes,
        scopes_conflict_with_what_came_left_or_went,
        scopes_do_not_name_hidden_columns,
        reads_of_what_is_not_published_are_refused,
        conflicts_are_of_the_own_shard,
        a_command_that_fails_undoes_those_before_it,
        commands_see_what_those_before_them_did,
        wrong_partitions_and_old_cursors_are_refused,
        entries_of_an_answer_are_capped;
    hooks:
        hooks_run_after_the_commit_in_their_shard,
        a_processor_of_a_shard_leaves_others_alone,
        a_global_processor_runs_each_hook_in_the_shard_of_its_row,
        failures_are_tried_again_and_given_up,
        stuck_hooks_count_as_attempts,
        late_owners_change_nothing,
        ids_of_hooks_are_of_a_shard,
        hooks_wait_for_their_time,
        a_shard_that_hangs_delays_no_other,
        many_that_hang_leave_places_for_the_others,
        rounds_come_to_all_shards,
        all_processors_are_told_of_a_trigger,
        a_drain_runs_no_more_at_once_than_it_may,
        what_is_not_committed_triggers_nothing;
    migrations:
        a_schema_grows_with_its_rows,
        an_interrupted_migration_goes_on_at_any_step,
        clients_begin_anew_when_what_they_may_see_grows,
        two_who_migrate_at_once_do_each_step_once,
        a_plan_changes_nothing_and_prints_sql,
        a_database_ahead_of_the_code_is_refused,
        tables_without_shards_get_them_first_at_any_interruption,
        rows_without_a_shard_get_theirs,
        two_schemas_with_one_name_collide;
    retention:
        old_entries_go_by_count_and_by_age,
        records_of_conflicts_alone_go,
        a_killed_clearing_is_ended_by_the_next,
        hooks_that_are_done_go;
    web:
        internal_routes_are_those_of_the_requests_shard,
        routes_run_in_the_shard_of_the_request,
        bad_requests_have_codes_and_change_nothing;
}
