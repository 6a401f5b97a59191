//! Tables that become tenant tables, over real shards, while clients use them.
//!
//! Each test runs over two SQLite files, over two PostgreSQL databases, and over one of each.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall say where")]

mod conflicts;
mod crashes;
mod ends;
#[path = "../session/harness.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod harness;
mod outcome;
mod under_load;
mod world;

/// Runs tests over each engine. One that is not listed is never run, and the compiler says so.
macro_rules! over_engines {
    ($module:ident in $outer:ident: $($test:ident,)*) => {
        mod $outer {
            mod sqlite {
                $(#[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    crate::$module::$test(crate::world::World::open(crate::world::Shards::Sqlite).await).await;
                })*
            }
            mod postgres {
                $(#[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    crate::$module::$test(crate::world::World::open(crate::world::Shards::Postgres).await).await;
                })*
            }
            mod both {
                $(#[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    crate::$module::$test(crate::world::World::open(crate::world::Shards::Both).await).await;
                })*
            }
        }
    };
}

over_engines! {
    conflicts in all_of_conflicts:
    what_stands_in_the_way_is_named_and_nothing_changes,
    rows_without_a_valid_tenant_are_named_and_nothing_changes,
    what_makes_no_sense_is_refused,
}

over_engines! {
    outcome in all_of_outcome:
    a_hash_table_becomes_a_tenant_table_with_all_it_had,
    a_global_table_without_a_key_becomes_one_by_an_expression,
    keys_can_be_changed_afterwards,
}

over_engines! {
    ends in all_of_ends:
    a_cancelled_migration_leaves_no_trace,
    an_invalid_tenant_that_appears_meanwhile_ends_it,
    meanwhile_the_table_keeps_its_shape_and_its_shards,
    a_long_transaction_delays_the_swap_and_not_others,
    a_statement_that_is_cancelled_leaves_the_migration_going,
}

over_engines! {
    under_load in all_of_under_load:
    writers_lose_nothing,
    a_swap_without_the_tail_is_found_out,
}

over_engines! {
    crashes in all_of_crashes:
    upgrade_with_data_interrupted_at_each_step,
    an_undoing_that_was_interrupted_goes_on,
}
