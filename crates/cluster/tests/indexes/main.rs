//! Global indexes, with SQL text, over real shards: what a statement by an index gives is what all shards would.
//!
//! Each test runs over SQLite files and over PostgreSQL databases.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall say where")]

mod bounds;
mod committed;
mod failures;
#[path = "../session/harness.rs"]
#[allow(dead_code, reason = "shared with the tests of sessions")]
mod harness;
mod jobs;
mod leading;
mod tenants;
mod unique;

use harness::Db;
use isles_cluster::database::Config;
use isles_cluster::indexes::Planted;

const SHARDS: usize = 4;

/// A database, and how it is opened again.
pub(crate) struct World {
    db: Db,
    config: Config,
}

impl World {
    async fn sqlite() -> World {
        World::open(|folder| Config::sqlite(folder, SHARDS)).await
    }

    async fn postgres() -> World {
        let urls = || [(); SHARDS].map(|()| isles_sim::pgserver::shared().create_database());
        let urls = tokio::task::spawn_blocking(urls).await.unwrap();
        World::open(|folder| Config::postgres(folder, urls.into())).await
    }

    async fn open(config: impl FnOnce(&std::path::Path) -> Config) -> World {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        World { db: Db::open(folder, &config).await, config }
    }

    /// The same with a bug.
    async fn with_bug(bug: Planted) -> World {
        World::open(|folder| Config { planted_index: Some(bug), ..Config::sqlite(folder, SHARDS) }).await
    }

    /// Closes it and opens it again, as a restart does.
    pub(crate) async fn reopen(self) -> World {
        World { db: self.db.reopen(&self.config).await, config: self.config }
    }

    /// The same, with a configuration that is a little different.
    pub(crate) async fn reopen_with(mut self, change: impl FnOnce(&mut Config)) -> World {
        change(&mut self.config);
        self.reopen().await
    }
}

impl std::ops::Deref for World {
    type Target = Db;

    fn deref(&self) -> &Db {
        &self.db
    }
}

/// Runs tests over four shards of each engine. One that is not listed is never run, and the compiler says so.
macro_rules! on_both_engines {
    ($of:ident: $($test:ident,)*) => {
        mod $of {
            mod over_sqlite {
                $(#[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    crate::$of::$test(crate::World::sqlite().await).await;
                })*
            }
            mod over_postgres {
                $(#[tokio::test(flavor = "multi_thread")]
                async fn $test() {
                    crate::$of::$test(crate::World::postgres().await).await;
                })*
            }
        }
    };
}

mod runs {
    on_both_engines! {
        failures:
        update_visible_before_apply,
        lost_enqueue_impossible,
        insert_between_scan_and_compare,
        keys_are_stored_values,
        duplicate_key_delete,
        update_by_indexed_column,
        build_on_populated_table,
        insert_during_build,
        composite_prefix_and_range,
        move_keeps_index,
    }
    on_both_engines! {
        leading:
        an_index_leads_to_the_shards_that_have_the_key,
        a_transaction_sees_its_own_rows,
        who_was_led_nowhere_keeps_its_moment,
        an_index_is_dropped_with_its_entries,
        columns_may_move,
        expressions_and_some_rows_are_indexed,
        shards_come_and_go,
        rows_that_move_to_a_new_shard_count_once,
        a_join_asks_the_shards_of_its_values,
        a_join_by_values_gives_what_any_join_gives,
        a_join_by_values_sees_its_own_transaction,
        a_join_by_values_is_of_one_moment,
        a_transaction_goes_where_an_index_leads,
        a_transaction_passes_by_no_row,
        explain_names_what_an_index_has_found,
    }
    on_both_engines! {
        bounds:
        a_long_range_reads_few_entries,
        a_range_is_overtaken_by_its_own_keys_only,
        rows_with_one_value_are_noted_once_for_each_bucket,
        what_was_forgotten_is_read_when_it_is_applied,
        writes_wait_for_entries_that_are_far_behind,
        lag_is_of_what_an_index_waits_for,
    }
    on_both_engines! {
        jobs:
        a_job_mends_the_shards_that_it_names,
        jobs_that_wait_together_are_one_pass,
        a_job_about_what_there_is_not_is_refused,
        entries_are_shown_by_shard,
        reordered_jobs,
        a_batch_is_confirmed_by_the_rows,
        indexes_are_compared_now_and_then,
        nobody_waits_for_a_comparison,
    }
    on_both_engines! {
        tenants:
        an_index_over_all_tenants_leads_administrators,
        an_index_over_all_tenants_follows_what_tenants_write,
        an_index_over_all_tenants_outlives_moves_and_tenants,
        an_index_over_all_tenants_is_compared_and_repaired,
        a_unique_index_over_all_tenants_is_refused,
    }
    on_both_engines! {
        unique:
        unique_across_shards,
        rows_of_one_statement_are_unique_too,
        no_phantom_reservations,
        updates_keep_keys_unique,
        a_transaction_knows_its_own_keys,
        contended_keys_have_one_owner,
        a_key_is_waited_for,
        a_ring_of_keys_is_found,
        duplicates_are_named,
        duplicates_are_refused_in_a_transaction,
        a_unique_index_that_was_cancelled_is_gone,
        keys_stay_unique_while_an_index_is_built_and_rows_move,
        keys_are_free_after_a_restart,
        upserts_find_what_is_in_the_way,
        contended_upserts_count_once,
        a_primary_key_without_the_shard_key_is_unique,
        updates_keep_such_a_primary_key,
        upserts_find_such_a_primary_key,
        such_a_primary_key_is_shown_and_grouped_by,
        such_a_table_changes_and_moves,
    }
}
