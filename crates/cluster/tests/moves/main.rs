//! Moves of tenants and buckets, by their plans, over real shards, while clients write.
//!
//! Each test runs between two SQLite files, between two PostgreSQL databases, and from a SQLite file to a PostgreSQL
//! database.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall say where")]

#[path = "../session/harness.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod harness;
mod lifecycle;
mod refusals;
mod shards;
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
    a_drain_goes_on_after_a_restart,
    shards_that_cannot_come_or_go,
    shards_by_statements,
    proposals_even_shards_out,
}

between_engines! {
    under_load in all_of_under_load:
    writes_during_a_move_are_all_there_once,
    transactions_over_a_cutover_commit_or_fail_whole,
    stale_gateway_write_is_fenced,
    slow_consumer_log_cap,
}
