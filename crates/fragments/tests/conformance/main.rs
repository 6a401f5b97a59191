//! What a fragment can rely on, on every database: one suite for memory, SQLite, PostgreSQL and Isles.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall say where")]

mod hooks;
mod isolation;
mod migrations;
mod outbox;
mod planted;
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
        checks_hold_under_concurrency,
        absent_checks_hold_under_concurrency,
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
        the_first_strategy_stays,
        a_database_of_one_shard_is_bound_to_it,
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
        what_is_not_committed_triggers_nothing;
    migrations:
        a_schema_grows_with_its_rows,
        an_interrupted_migration_goes_on_at_any_step,
        a_plan_changes_nothing_and_prints_sql,
        a_database_ahead_of_the_code_is_refused,
        tables_without_shards_get_them_first_at_any_interruption,
        rows_without_a_shard_get_theirs,
        two_schemas_with_one_name_collide;
    web:
        internal_routes_are_those_of_the_requests_shard,
        routes_run_in_the_shard_of_the_request,
        bad_requests_have_codes_and_change_nothing;
}
