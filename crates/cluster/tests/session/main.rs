//! Sessions, with SQL text, over real shards.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall say where")]

mod deferral;
mod every;
mod explain;
mod harness;
mod locks;
mod numbers;
mod postgres;
mod procedures;
mod schema;
mod statements;
mod strangers;
mod strategy;
mod tenancy;
mod tenants;
mod together;
mod transactions;
mod worlds;

/// Runs tests over two SQLite files, and over two PostgreSQL databases. One that is not listed is never run,
/// and the compiler says so.
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
    deferral::a_deferred_foreign_key_is_checked_at_the_commit,
    deferral::a_foreign_key_says_whether_it_is_deferred,
    deferral::what_an_index_says_and_does_not_need_is_left_out_aloud,
    deferral::nothing_that_is_said_is_without_effect,
    locks::a_number_is_locked_by_one_session_at_a_time,
    locks::a_transaction_unlocks_when_it_ends,
    locks::who_waits_is_served_or_told_in_time,
    locks::who_migrates_is_not_kept_waiting_by_who_waits,
    locks::a_role_that_is_locked_to_a_tenant_holds_up_nobody_else,
    locks::a_transaction_that_is_idle_too_long_unlocks,
    tenants::tenants_are_those_created_and_those_with_rows,
    tenants::quotas_are_set_and_reset,
    tenants::a_tenant_is_dropped_with_its_rows_and_no_others,
    tenants::rows_that_refer_to_their_own_table_are_dropped,
    tenants::a_tenant_has_as_many_sessions_as_may,
    tenants::a_statement_returns_as_many_rows_as_may,
    tenants::a_write_of_too_many_rows_returned_is_undone,
    tenants::a_statement_takes_as_long_as_may,
    tenants::a_tenant_stores_as_much_as_may,
    tenants::a_drop_waits_for_transactions_and_can_be_given_up,
    tenants::roles_manage_and_see_what_is_theirs,
    together::what_comes_to_one_shard_is_one_commit,
    together::one_that_fails_takes_all_with_it,
    together::within_a_transaction_they_are_part_of_it,
    together::those_who_contend_over_shards_all_come_through,
    together::too_many_and_too_few_are_refused,
    procedures::a_procedure_works_in_its_callers_transaction,
    procedures::a_procedure_is_called_as_it_says,
    procedures::the_systems_schema_is_the_systems,
    procedures::what_a_role_called_isles_creates_is_not_the_systems,
}
