//! What a shard must do, whatever engine is behind it: one text of tests for both.
//!
//! Each test below runs on SQLite and on PostgreSQL, under the names `sqlite::…` and `postgres::…`. Its doc comment
//! names the invariant it proves (docs/invariants.md), or the known bug it would have caught.
//!
//! In reading order:
//!   * [`fixtures`]  where shards live; the only file that knows how one is made
//!   * [`given`]     tables, fences, claims, and a shard's handle
//!   * [`seen`]      rows and logs as the tests compare them
//!   * [`random`]    values of each type, from a seed
//!   * [`workload`]  writers that do a bit of everything
//!   * [`copying`]   what a move does with the trait
//!   * [`interleaved`]  a copy and its mirror, in any order
//!
//! `ISLES_TEST_ROUNDS=20` makes the randomized tests go round 20 times as often.

#![allow(clippy::unwrap_used)]

mod fixtures;
mod given;
mod seen;

mod copying;
mod interleaved;
mod random;
mod workload;

mod across;
mod alterations;
mod applies;
mod bindings;
mod changelog;
mod copies;
mod digests;
mod entries;
mod fences;
mod imports;
mod leftovers;
mod limits;
mod reopening;
mod schemas;
mod snapshots;
mod strangers;
mod streams;
mod tenants;
mod transactions;
mod usages;
mod values;

/// Makes each test a `#[test]` for each engine. A test that is not listed is never run, and the compiler says so.
macro_rules! on_both_engines {
    ($($module:ident { $($test:ident,)* })*) => {
        on_engine! { sqlite, Sqlite, $($module { $($test,)* })* }
        on_engine! { postgres, Postgres, $($module { $($test,)* })* }
    };
}

macro_rules! on_engine {
    ($name:ident, $engine:ident, $($module:ident { $($test:ident,)* })*) => {
        mod $name {
            $(mod $module {
                $(#[test]
                fn $test() {
                    crate::fixtures::run(isles_engine::shard::Engine::$engine, crate::$module::$test);
                })*
            })*
        }
    };
}

/// Makes each test a `#[test]` for each way between the engines.
macro_rules! across_engines {
    ($($test:ident,)*) => {
        across_engines! { @ sqlite_to_postgres, Sqlite, Postgres, $($test,)* }
        across_engines! { @ postgres_to_sqlite, Postgres, Sqlite, $($test,)* }
    };
    (@ $name:ident, $from:ident, $to:ident, $($test:ident,)*) => {
        mod $name {
            $(#[test]
            fn $test() {
                use isles_engine::shard::Engine;
                crate::fixtures::run_across(Engine::$from, Engine::$to, crate::across::$test);
            })*
        }
    };
}

on_both_engines! {
    transactions {
        a_commit_is_visible_and_a_rollback_is_not,
        an_open_transaction_is_invisible_to_others,
        dropping_a_transaction_rolls_it_back,
        an_error_ends_the_transaction_until_it_is_rolled_back,
        committing_a_failed_transaction_fails,
        a_savepoint_outlives_an_error_after_it,
        savepoints_nest_and_names_are_used_again,
        a_released_savepoint_goes_with_the_one_around_it,
        a_request_is_atomic_when_its_last_statement_fails,
        a_failed_request_harms_none_beside_it,
        errors_carry_postgresql_codes,
        a_parent_with_children_is_kept,
        affected_counts_the_rows_changed,
        returning_gives_the_rows_changed,
        outcomes_come_in_the_order_of_their_statements,
        cursors_are_fetched_piecemeal_and_side_by_side,
        a_closed_cursor_is_refused,
        a_cursor_does_not_hold_the_whole_result,
        a_cursor_reads_on_after_a_write_in_its_transaction,
        a_read_only_transaction_refuses_writes,
        a_reader_sees_one_snapshot_while_others_commit,
        a_write_is_read_by_the_next_request,
        increments_of_many_tasks_are_exact,
        interactive_increments_are_exact_or_conflict,
    }
    fences {
        what_no_fence_speaks_of_is_refused,
        an_older_version_is_refused_with_the_version_needed,
        all_units_of_a_claim_are_checked,
        a_refused_claim_ends_the_transaction,
        a_read_only_fence_lets_reads_through,
        a_closed_fence_refuses_reads_and_writes_of_any_version,
        a_fence_can_be_opened_again,
        a_pinned_tenant_goes_by_its_own_fence,
        a_fences_version_never_falls,
        a_transaction_open_at_the_fence_commits_before_it_or_fails,
        a_fence_that_cannot_be_set_in_time_changes_nothing,
        no_reader_outlives_a_closed_fence,
        a_read_only_fence_does_not_wait_for_readers,
        writers_that_race_with_a_fence_are_acknowledged_or_refused,
        the_position_behind_a_closed_fence_covers_every_acknowledged_write,
        fences_survive_reopening,
    }
    strangers {
        whoever_takes_whatever_is_there_is_refused,
        without_strangers_whatever_is_there_is_served,
        buckets_are_fenced_beside_the_whole,
        the_fence_around_a_whole_group_is_one_like_others,
        nobody_who_takes_everything_is_inside_when_the_fence_is_set,
        readers_of_their_own_buckets_do_not_notice_the_fence,
        a_snapshot_with_strangers_is_never_read_whole,
        readers_that_race_with_strangers_see_none,
    }
    limits {
        the_time_limit_ends_a_long_statement,
        the_time_limit_holds_for_each_statement_of_a_transaction,
        a_cancelled_request_ends,
        a_request_cancelled_beforehand_does_nothing,
        a_waiting_request_is_answered_when_it_is_cancelled,
        a_waiting_request_is_answered_when_its_time_is_up,
        a_result_has_at_most_the_rows_allowed,
        a_result_has_at_most_the_bytes_allowed,
        parameters_are_limited,
        missing_parameters_are_refused,
        surplus_parameters_are_refused,
        a_statements_text_is_limited,
        statements_of_a_request_are_limited,
        two_statements_in_one_text_are_refused,
    }
    values {
        every_value_comes_back_as_it_was_written,
        every_value_is_the_same_in_a_snapshot,
        every_value_is_the_same_in_the_change_log,
        every_value_is_the_same_after_an_import,
        a_text_with_a_zero_byte_is_refused,
        a_value_that_does_not_fit_its_column_is_refused,
        what_the_other_engine_could_not_keep_is_refused,
        order_by_a_column_is_postgresqls_order,
        equality_of_numerics_ignores_their_scale,
        a_numeric_key_is_unique_by_value,
        intervals_compare_by_their_length,
        null_is_not_the_empty_text,
    }
    changelog {
        each_change_has_its_row_before_and_after,
        a_statement_of_many_rows_logs_each,
        an_upsert_is_an_insert_or_an_update,
        a_cascade_is_logged,
        a_foreign_key_set_null_is_logged,
        what_a_trigger_writes_is_logged,
        a_changed_key_is_a_delete_and_an_insert,
        a_row_that_changes_its_bucket_leaves_the_old_one,
        what_is_rolled_back_is_not_logged,
        a_statement_that_fails_in_its_middle_leaves_nothing,
        changes_of_one_transaction_share_their_number,
        the_log_is_the_same_in_pages_of_any_size,
        a_composite_key_behind_other_columns_is_found,
        a_key_of_any_type_is_logged,
        nothing_is_captured_without_a_reader,
        the_log_is_complete_from_where_a_reader_was_added,
        a_transaction_open_when_a_reader_is_added_is_captured_whole_or_before,
        a_reader_does_not_pass_a_transaction_that_is_still_open,
        a_transaction_of_another_shard_does_not_hold_up_the_log,
        a_change_names_the_schema_it_was_made_under,
        each_reader_has_its_own_position,
        the_log_is_trimmed_behind_the_slowest_reader,
        a_log_at_its_cap_drops_the_slowest_reader,
        pages_of_the_log_are_bounded,
        replaying_the_log_gives_the_table,
    }
    snapshots {
        pages_by_a_key_of_any_type_have_each_row_once,
        pages_by_a_composite_key_have_each_row_once,
        pages_of_tenants_have_their_rows_and_no_others,
        pages_of_buckets_have_their_rows_and_no_others,
        a_range_ends_with_its_bound,
        a_page_out_of_bounds_is_refused,
        a_snapshot_is_stable_while_writers_go_on,
        a_snapshot_knows_its_schema,
        a_snapshot_and_the_changes_after_it_are_the_present,
        a_copy_and_its_tail_in_any_order_end_equal,
        an_insert_during_the_copy_is_applied_once,
        an_increment_during_the_copy_is_applied_once,
        a_row_deleted_during_the_copy_stays_deleted,
        a_row_deleted_and_inserted_again_during_the_copy_is_the_new_one,
        a_row_that_changes_its_key_during_the_copy_leaves_no_ghost,
        mixed_changes_of_one_key_in_one_batch_keep_their_order,
        a_copy_that_is_run_again_copies_what_changed_since,
        a_unique_value_handed_over_is_tailed_in_order,
    }
    applies {
        a_row_that_is_not_newer_changes_nothing,
        a_deleted_row_does_not_come_back,
        a_later_epoch_wins_over_a_higher_position,
        any_order_with_repetitions_ends_in_the_same_rows,
        a_unique_value_that_changes_hands_ends_where_it_belongs,
        position_and_cursor_are_stored_with_the_rows,
        a_batch_that_fails_leaves_nothing,
        a_row_of_another_unit_is_not_clobbered,
        a_tenant_moves_in_beside_one_with_the_same_ids,
        applied_rows_are_not_captured,
        a_child_may_come_before_its_parent,
        applied_rows_set_off_no_cascade_and_no_trigger,
        a_batch_is_bounded,
        a_forgotten_stream_leaves_its_rows_and_nothing_else,
        keys_equal_by_value_are_one_row,
        two_appliers_of_one_stream_do_no_harm,
    }
    copies {
        a_copied_row_loses_against_whatever_is_known,
        a_copied_rival_gives_way_to_a_change,
        copied_rivals_give_way_to_each_other,
        a_rival_of_another_unit_is_not_removed,
        a_copy_that_fails_leaves_nothing,
        copied_rows_are_not_captured_and_set_nothing_off,
        every_value_survives_a_copy,
        values_of_declared_types_survive_a_copy,
        copies_and_changes_in_any_order_end_equal,
    }
    streams {
        an_earlier_driver_changes_nothing,
        a_stream_is_driven_once_it_is_open,
        drivers_of_two_streams_do_not_meet,
        no_batch_of_an_earlier_driver_outlives_the_opening,
        a_streams_driver_survives_reopening,
        a_long_stream_is_forgotten_whole,
    }
    leftovers {
        rows_of_buckets_are_discarded_in_pages,
        rows_of_tenants_are_discarded,
        rows_of_global_tables_are_of_one_bucket,
        what_is_served_is_not_discarded,
        an_earlier_driver_discards_nothing,
        discarding_sets_off_no_cascade_and_no_trigger,
        a_fence_that_opens_ends_the_discarding,
        what_is_discarded_is_not_copied_again,
    }
    entries {
        a_part_that_is_repeated_counts_once,
        a_part_from_elsewhere_is_refused_with_its_batch,
        entries_are_found_by_key_and_range,
        a_look_reads_no_more_entries_than_it_may,
        entries_are_fenced,
        entries_are_cleared_by_source,
        batches_of_entries_are_bounded,
        what_was_committed_is_settled,
        what_a_transaction_was_led_by_is_compared_at_its_beginning,
    }
    imports {
        an_export_is_read_page_by_page_and_imported_elsewhere,
        an_imported_page_is_written_and_captured,
        an_upsert_replaces_rows_of_its_unit,
        an_insert_refuses_the_page_when_a_key_is_there,
        an_import_never_replaces_a_row_of_another_unit,
        an_import_that_claims_is_refused_by_fences,
        tenants_import_beside_each_other,
        tenants_of_any_name_keep_their_order,
        a_row_that_does_not_fit_its_table_is_refused,
    }
    tenants {
        a_read_without_a_predicate_shows_its_tenants_rows,
        no_shape_of_a_query_gets_around_the_fence,
        a_write_without_a_predicate_changes_its_tenants_rows_or_none,
        a_row_does_not_change_its_tenant,
        who_is_refused_takes_nobody_along,
        a_statement_that_writes_reads_others_through_the_fence,
        who_acts_for_everyone_reads_all_rows_and_writes_none,
        what_is_read_for_everyone_is_nobody_elses,
        a_transaction_is_its_tenants_to_the_end,
        foreign_keys_work_within_the_tenant,
        the_fence_outlives_changes_of_the_table,
    }
    bindings {
        another_tenant_is_refused_by_each_way_in,
        a_later_claim_of_another_tenant_is_refused,
        requests_that_act_for_nobody_are_served,
        rows_of_another_tenant_are_not_applied_or_imported,
        a_shard_is_bound_once_and_for_ever,
        a_shard_with_tables_cannot_become_one_tenants,
        a_shard_is_given_to_one_of_many,
    }
    digests {
        an_empty_table_has_the_empty_digest,
        a_digest_is_the_sum_of_its_rows,
        any_single_change_changes_the_digest,
        null_and_empty_and_scale_and_sign_differ,
        the_unit_is_part_of_the_digest,
        equal_rows_have_equal_digests,
        digests_of_adjacent_ranges_add_up,
    }
    schemas {
        a_new_shard_is_empty,
        the_schema_is_what_its_changes_say,
        a_schema_is_adopted_whole_and_at_its_version,
        applying_a_change_twice_applies_it_once,
        a_change_from_another_version_is_refused,
        a_failing_change_leaves_all_as_it_was,
        reserved_and_doubled_names_are_refused,
        names_may_hold_anything_that_is_quoted,
        columns_come_and_go,
        a_column_of_any_type_has_its_default,
        unique_keys_come_and_go,
        a_tenants_unique_key_is_its_own,
        a_tenants_row_may_refer_to_a_reference_table,
        a_dropped_table_is_gone_and_may_come_back_otherwise,
        views_and_triggers_come_and_go,
        rows_and_schema_of_a_transaction_change_together,
        a_savepoint_takes_a_schema_back,
        a_statement_run_before_a_change_is_right_after_it,
        a_schema_change_among_writers_loses_nothing,
    }
    alterations {
        a_renamed_table_keeps_its_rows_and_who_refers_to_it,
        a_copy_takes_the_place_of_its_table,
        tables_of_one_name_in_two_namespaces_are_apart,
        a_renamed_key_column_is_captured_under_its_new_name,
        an_altered_column_has_its_new_shape_and_old_values,
        a_column_is_converted_to_another_type,
        altering_a_parent_leaves_its_children,
        checks_come_and_go,
        foreign_keys_come_and_go,
        keys_over_expressions_and_some_rows_hold,
        a_hidden_key_stays_last,
        a_reference_table_gets_another_key_with_its_rows,
        declared_types_hold_their_values,
        views_sequences_and_comments_are_remembered,
        a_failing_alteration_leaves_all_as_it_was,
        broken_constraints_are_named,
    }
    reopening {
        everything_survives_closing_and_opening,
        defaults_survive_opening_or_are_refused,
        what_was_not_committed_is_gone_after_opening,
        a_closed_shard_refuses,
        closing_twice_is_closing_once,
        closing_lets_running_work_end,
        figures_follow_the_work,
    }
    usages {
        usage_is_told_a_page_of_tenants_at_a_time,
        usage_of_one_tenant_is_its_own,
        rows_are_counted_by_bucket,
        tenants_are_named_a_page_at_a_time,
        bytes_grow_and_shrink_with_the_values,
        a_tenants_rows_go_in_pages_and_are_captured,
        a_purge_of_parents_is_refused_while_children_are_there,
    }
}

/// What only SQLite can say.
#[test]
fn a_replace_logs_the_rows_it_replaces() {
    fixtures::run(isles_engine::shard::Engine::Sqlite, changelog::a_replace_logs_the_rows_it_replaces);
}

across_engines! {
    every_value_survives_the_way_there_and_back,
    every_value_survives_in_the_log,
    a_copy_and_its_tail_end_equal,
    copies_and_changes_in_any_order_end_equal,
    tenants_move_with_their_rows,
    equal_changes_give_equal_schemas,
}
