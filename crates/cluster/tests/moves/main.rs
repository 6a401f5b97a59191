//! Moves of tenants and buckets, by their plans, over real shards, while clients write.
//!
//! Each test runs between two SQLite files, between two PostgreSQL databases, and from a SQLite file to a PostgreSQL
//! database.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall say where")]

mod compared;
mod every;
#[path = "../session/harness.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod harness;
mod lifecycle;
mod matrix;
mod owners;
mod peers;
mod refusals;
mod shards;
mod targets;
mod under_load;
mod world;

/// Runs tests between each pair of engines. One that is not listed is never run, and the compiler says so.
macro_rules! between_engines {
    ($module:ident in $outer:ident: $($test:ident,)*) => {
        mod $outer {
            mod sqlite_to_sqlite {
                $(#[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    crate::$module::$test(crate::world::World::open(crate::world::Pair::Sqlite).await).await;
                })*
            }
            mod postgres_to_postgres {
                $(#[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    crate::$module::$test(crate::world::World::open(crate::world::Pair::Postgres).await).await;
                })*
            }
            mod sqlite_to_postgres {
                $(#[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    crate::$module::$test(crate::world::World::open(crate::world::Pair::SqliteToPostgres).await).await;
                })*
            }
        }
    };
}

between_engines! {
    lifecycle in all_of_lifecycle:
    a_tenant_goes_and_its_rows_are_there,
    no_effect_in_planning,
    each_step_by_its_command,
    move_into_populated_shard_keeps_others,
    buckets_go_and_whole_tables_read_the_same,
    tenants_go_with_their_bucket,
    rollback_is_local_and_append_only,
    rollback_after_cutover_keeps_writes,
    rerun_recopies,
    shard_by_other_column_copied,
    there_and_back_again,
    a_difference_is_found_and_repaired,
    a_mirror_that_forgets_deletes_is_found_out,
}

between_engines! {
    refusals in all_of_refusals:
    invalid_plans_are_refused,
    guard_every_phase_transition,
    concurrent_moves_same_and_different_tenants,
    ddl_during_move,
    two_operators_race,
}

between_engines! {
    shards in all_of_shards:
    a_shard_comes_and_takes_part,
    a_shard_comes_while_reference_tables_change,
    a_shard_is_drained_and_goes,
    the_first_shard_is_drained_and_goes,
    global_tables_go_and_come_back,
    global_tables_of_an_old_database_stay_where_they_are,
    a_drain_goes_on_after_a_restart,
    shards_that_cannot_come_or_go,
    shards_by_statements,
    proposals_even_shards_out,
}

between_engines! {
    owners in all_of_owners:
    a_tenant_goes_to_a_shard_that_nobody_has_had,
    a_shard_of_one_tenant_is_drained_and_goes,
}

between_engines! {
    under_load in all_of_under_load:
    writes_during_a_move_are_all_there_once,
    transactions_over_a_cutover_commit_or_fail_whole,
    stale_gateway_write_is_fenced,
    slow_consumer_log_cap,
}

between_engines! {
    matrix in all_of_matrix:
    statements_go_on_at_the_target,
    settings_stay_as_they_are,
    portals_and_cursors_end_as_they_began,
    transactions_that_have_seen_nothing_go_on,
    a_transaction_that_has_read_is_told,
    a_transaction_that_has_written_commits_first,
    a_pipeline_that_has_written_commits_first,
    copies_over_a_cutover_are_whole,
}

between_engines! {
    peers in all_of_peers:
    plans_from_before_a_switch_follow_it,
    a_dry_run_changes_nothing,
    undone_at_every_stage_and_then_done,
    keys_that_sort_strangely_are_copied_once,
    values_are_the_same_copied_and_mirrored,
    one_key_again_and_again_in_one_transaction,
    a_row_in_the_way_gives_way,
    large_transactions_at_the_hand_over_are_whole,
    an_idle_tenant_on_a_busy_shard_moves,
    a_large_value_that_does_not_change_stays,
    what_does_not_move_is_not_touched,
    a_hot_row_does_not_keep_a_move_from_its_end,
    copied_rows_are_no_changes,
    a_row_whose_bucket_changes_is_there_once,
}

between_engines! {
    every in all_of_every:
    all_tenants_are_read_once_at_every_stage,
    all_tenants_are_read_once_while_one_goes_to_and_fro,
}

between_engines! {
    compared in all_of_compared:
    an_open_transaction_of_another_tenant_is_no_difference,
    a_row_is_repaired_whatever_is_known_of_it,
    what_was_waived_is_not_compared_at_the_cutover,
    rows_that_came_by_the_mirror_are_counted_before_they_are_compared,
    tenants_of_a_bucket_are_compared_at_the_cutover,
    a_table_that_comes_while_rows_are_mirrored_is_compared,
    a_comparison_goes_on_with_another_driver,
    a_reader_that_stays_stops_nobody,
    a_dry_run_is_refused_what_a_plan_is,
    names_that_nobody_has_are_refused,
    rows_of_buckets_are_counted_before_they_are_copied,
}

between_engines! {
    targets in all_of_targets:
    a_target_with_other_tables_takes_nothing,
}
