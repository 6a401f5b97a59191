//! Workflows over real shards: two SQLite files, and two PostgreSQL databases.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall say where")]

#[path = "../../../cluster/tests/session/harness.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod harness;
mod index;
mod lifecycle;
mod manage;
mod world;

/// Runs tests over two SQLite files, and over two PostgreSQL databases. One that is not listed is never run, and the
/// compiler says so.
macro_rules! on_both_engines {
    ($($module:ident::$test:ident,)*) => {
        mod over_sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                crate::$module::$test(crate::harness::Db::sqlite(2).await).await;
            })*
        }
        mod over_postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                let urls = || [(); 2].map(|()| isles_sim::pgserver::shared().create_database());
                let urls = tokio::task::spawn_blocking(urls).await.unwrap();
                crate::$module::$test(crate::harness::Db::postgres(urls.into()).await).await;
            })*
        }
    };
}

on_both_engines! {
    lifecycle::steps_are_done_once_and_in_order,
    lifecycle::a_run_sleeps_waits_and_ends,
    lifecycle::a_step_is_tried_again_until_it_succeeds,
    lifecycle::a_step_that_keeps_failing_ends_the_run,
    lifecycle::an_error_that_is_final_is_not_tried_again,
    lifecycle::a26_a_failed_step_is_not_done_again,
    lifecycle::a24_a_long_step_is_not_taken_for_dead,
    lifecycle::a25_a27_pausing_and_terminating_happen_between_steps,
    lifecycle::a28_the_earliest_of_parallel_sleeps_wakes,
    lifecycle::a30_events_are_a_queue_and_each_is_taken_once,
    lifecycle::an_event_that_does_not_come_is_an_error_of_the_wait,
    lifecycle::a31_a32_updates_are_kept_numbered_and_told_once,
    lifecycle::a33_sizes_are_bytes_and_have_limits,
    lifecycle::a34_changed_code_is_stopped_and_patches_lead_on,
    lifecycle::a37_a_step_has_its_time,
    lifecycle::branches_run_beside_each_other,
    lifecycle::children_are_runs_and_their_results_come_back,
    lifecycle::time_and_randomness_are_the_same_again,
    lifecycle::effects_in_the_database_commit_with_their_step,
    lifecycle::a_crash_between_steps_repeats_none,
    manage::a23_terminal_is_terminal,
    manage::a29_creating_twice_is_creating_once,
    manage::a13_a35_a36_bad_input_is_told_and_harms_nothing,
    manage::a_run_is_started_in_the_callers_transaction,
    manage::runs_are_restarted_and_deleted,
    manage::a22_runs_are_kept_for_as_long_as_was_said,
    manage::the_timeline_has_sleeps_and_waits_in_order,
    index::index_shards_are_those_of_the_design,
    index::a14_a16_pages_are_newest_first_and_complete,
    index::a20_one_id_in_two_types_is_two_runs,
    index::a07_a08_a10_entries_are_mended_and_late_ones_lose,
    index::a15_a17_a_resize_loses_and_doubles_nothing,
    index::a06_entries_of_earlier_systems_come_home,
    index::a22_counts_say_what_there_is,
    index::a19_an_index_shard_that_cannot_be_asked_is_named,
}
