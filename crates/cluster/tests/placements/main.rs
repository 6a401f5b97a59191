//! Placements: configurations of tenants, their generations, and what is kept in a region.
//!
//! What concerns shards runs over SQLite files and over PostgreSQL databases.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall say where")]

mod changes;
mod following;
#[path = "../session/harness.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod harness;
mod regions;
mod statements;

/// Runs tests over each engine. One that is not listed is never run, and the compiler says so.
macro_rules! on_both_engines {
    ($($test:ident,)*) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                crate::regions::$test(crate::regions::Regional::open(isles_engine::shard::Engine::Sqlite).await).await;
            })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                crate::regions::$test(crate::regions::Regional::open(isles_engine::shard::Engine::Postgres).await).await;
            })*
        }
    };
}

on_both_engines! {
    rows_of_a_region_are_nowhere_else,
    buckets_do_not_leave_their_region,
    a_drain_and_a_rebalance_stay_in_the_region,
    a_region_needs_a_shard,
    buckets_of_one_group_are_in_several_regions,
    a_shard_keeps_its_region,
    a_new_shard_serves_its_region,
    a_placement_needs_shards_in_its_regions,
}
