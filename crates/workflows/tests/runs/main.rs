//! Workflows over real shards: two SQLite files, and two PostgreSQL databases.
//!
//! The index of runs has a design, and each of its sentences a test:
//!
//! ```text
//! names `__index:{type}:{n}`          index_shards_are_those_of_the_design; kernel places: index_shards_have_the_names…
//! FNV-1a of the id, modulo            kernel places: a01_a02
//! count of each type, 1 by default    index_shards_are_those_of_the_design
//! a write goes to one shard           index_shards_are_those_of_the_design
//! no run is blocked by index writes   runs_do_not_wait_for_the_index
//! reads fan out, merge, deduplicate   a14_a16; kernel list: a09, a16
//! limit: newest first, then cut       a14_a16; kernel list: a14
//! previous count: writes to the new   a15_a17 (a run goes on at its new place)
//! previous count: reads of the union  a15_a17; a03; kernel places: reads_fan_out_to_the_union_of_both_counts
//! previous count can be removed       a15_a17, a03: when every entry is at home, and not before
//! a list takes the same with many     a_page_asks_as_much…, a_page_is_read_from_an_index, pages_are_exact…
//! ```
//!
//! A system that was built from it has holes, A1 to A38; each is a test here or where it says:
//!
//! ```text
//! A1  the hash is not FNV-1a, and skewed     kernel places: a01_a02
//! A2  UTF-16 or bytes                        kernel places: a01_a02
//! A3  a resize moves by the remainder        a03: what must move comes home while runs go on, and the rest stays
//! A4  counts are not checked                 kernel places: a04; a13_a35_a36
//! A5  names are ambiguous                    kernel names: a05; a13_a35_a36; a20
//! A6  entries under the name without number  a06, a03; kernel places: a06
//! A7  writes are lost                        a07_a08_a10, runs_do_not_wait_for_the_index; tests/simulated.rs (I-51)
//! A8  late writes win                        a07_a08_a10
//! A9  clocks decide                          kernel list: a09
//! A10 the time of creation changes           a07_a08_a10
//! A11 every step is written to the index     a11
//! A12 a setting that indexes nothing         a12: there is no such setting
//! A13 runs of unknown types are not listed   a13_runs_of_types_that_others_execute_are_listed, a13_a35_a36
//! A14 limit without order                    a14_a16; kernel list: a14
//! A15 filters before deduplication           a15_a17, a03
//! A16 copies take places of a page           a14_a16; kernel list: a16
//! A17 the previous count is removed early    a15_a17, a03
//! A18 lists without bound                    a14_a16; kernel list: a18
//! A19 one shard's failure hides the type     a19; runs_do_not_wait_for_the_index; away: runs_go_on…, a_shard_that_hangs…
//! A20 one id in two types                    a20
//! A21 looking makes something                a13_a35_a36 (what is there is counted afterwards)
//! A22 no counts, no retention, no delete     a22_counts…, a22_runs_are_kept…, runs_are_restarted_and_deleted
//! A23 what has ended comes back              a23; kernel status: terminal_is_terminal
//! A24 long steps are taken for dead          a24, a24_a_second_engine…
//! A25 executions interleave                  a25_what_comes_together…, a25_a27; tests/simulated.rs (I-47)
//! A26 failed steps are done again            a26
//! A27 pausing tears a step                   a25_a27
//! A28 only the first of several timers       a28
//! A29 creating twice                         a29
//! A30 one event of a name                    a30
//! A31 updates are lost after a wait          a31_a32
//! A32 updates cannot be followed again       a31_a32; server tests/workflows.rs (Last-Event-ID, close)
//! A33 characters counted as bytes            a33
//! A34 changed code is not noticed            a34; kernel journal
//! A35 errors that say nothing                a13_a35_a36; the_timeline_has_sleeps_and_waits_in_order
//! A36 bad input is an internal error         a13_a35_a36; server tests/workflows.rs
//! A37 no timeout, no cap, overflow           a37; kernel retry: a37
//! A38 no login, waits without bound          server tests/workflows.rs: a38
//! ```

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall say where")]

#[path = "../../../cluster/tests/session/harness.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod harness;

mod away;
mod index;
mod lifecycle;
mod manage;
mod timers;
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
    lifecycle::a25_what_comes_together_is_executed_once,
    lifecycle::transactions_that_meet_are_done_again,
    lifecycle::pausing_tears_no_step_of_another_branch,
    lifecycle::a_conflict_tears_no_step_of_another_branch,
    lifecycle::a_child_that_was_deleted_is_not_executed_again,
    lifecycle::updates_of_branches_are_numbered_without_gaps,
    lifecycle::random_numbers_of_branches_are_the_same_again,
    lifecycle::the_longest_times_do_not_wrap,
    lifecycle::sleeps_that_are_over_are_completed_in_the_journal,
    lifecycle::a24_a_second_engine_does_not_take_a_long_step_for_dead,
    manage::a_run_without_an_executor_is_ended_at_once,
    manage::a_run_that_kills_every_worker_is_ended,
    manage::the_results_of_a_workers_run_have_a_limit,
    manage::retention_keeps_up,
    manage::a_run_in_a_transaction_is_created_by_the_same_rules,
    manage::a23_terminal_is_terminal,
    manage::a29_creating_twice_is_creating_once,
    manage::a13_a35_a36_bad_input_is_told_and_harms_nothing,
    manage::a_run_is_started_in_the_callers_transaction,
    manage::runs_are_restarted_and_deleted,
    manage::a22_runs_are_kept_for_as_long_as_was_said,
    manage::the_timeline_has_sleeps_and_waits_in_order,
    timers::many_timers_fire_once_and_none_early,
    timers::due_runs_are_found_by_an_index,
    index::index_shards_are_those_of_the_design,
    index::a14_a16_pages_are_newest_first_and_complete,
    index::a20_one_id_in_two_types_is_two_runs,
    index::a07_a08_a10_entries_are_mended_and_late_ones_lose,
    index::a15_a17_a_resize_loses_and_doubles_nothing,
    index::a06_entries_of_earlier_systems_come_home,
    index::a03_what_lies_elsewhere_is_found_and_comes_home,
    index::a11_steps_are_no_news_for_the_index,
    index::a12_runs_are_listed_whoever_creates_them,
    index::a13_runs_of_types_that_others_execute_are_listed,
    index::runs_do_not_wait_for_the_index,
    index::a_resize_doubles_no_count,
    index::nothing_is_wrong_after_a_comparison,
    index::a_list_has_what_happened_before_its_moment,
    index::a22_counts_say_what_there_is,
    index::a19_an_index_shard_that_cannot_be_asked_is_named,
    index::pages_are_exact_with_many_index_shards,
    index::a_page_asks_as_much_with_many_index_shards_as_with_few,
    index::a_page_is_read_from_an_index,
    index::a_database_of_before_gets_the_indexes_of_today,
}

/// With more shards than index shards have neighbours on most of them.
#[tokio::test(flavor = "multi_thread")]
async fn pages_are_exact_over_four_shards() {
    index::pages_are_exact_with_many_index_shards(harness::Db::sqlite(4).await).await;
}
