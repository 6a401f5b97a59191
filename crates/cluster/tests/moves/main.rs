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
mod under_load;
mod world;

/// Runs tests between each pair of engines. One that is not listed is never run, and the compiler says so.
macro_rules! between_engines {
    ($($module:ident::$test:ident,)*) => {
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
    };
}

between_engines! {
    lifecycle::a_tenant_goes_and_its_rows_are_there,
    lifecycle::no_effect_in_planning,
    lifecycle::each_step_by_its_command,
    lifecycle::move_into_populated_shard_keeps_others,
    lifecycle::buckets_go_and_whole_tables_read_the_same,
    lifecycle::tenants_go_with_their_bucket,
    lifecycle::rollback_is_local_and_append_only,
    lifecycle::rollback_after_cutover_keeps_writes,
    lifecycle::rerun_recopies,
    lifecycle::shard_by_other_column_copied,
    lifecycle::there_and_back_again,
    lifecycle::a_difference_is_found_and_repaired,
    refusals::invalid_plans_are_refused,
    refusals::guard_every_phase_transition,
    refusals::concurrent_moves_same_and_different_tenants,
    refusals::ddl_during_move,
    refusals::two_operators_race,
    under_load::writes_during_a_move_are_all_there_once,
    under_load::transactions_over_a_cutover_commit_or_fail_whole,
    under_load::stale_gateway_write_is_fenced,
    under_load::slow_consumer_log_cap,
}
