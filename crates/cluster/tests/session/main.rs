//! Sessions, with SQL text, over real shards.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on shall say where")]

mod explain;
mod harness;
mod postgres;
mod schema;
mod statements;
mod strangers;
mod strategy;
mod tenancy;
mod tenants;
mod transactions;
mod worlds;

/// Runs tests of tenants over two SQLite files, and over two PostgreSQL databases. One that is not listed is never run,
/// and the compiler says so.
macro_rules! on_both_engines {
    ($($test:ident,)*) => {
        mod over_sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                crate::tenants::$test(crate::harness::Db::sqlite(2).await).await;
            })*
        }
        mod over_postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                let urls = || [(); 2].map(|()| isles_sim::pgserver::shared().create_database());
                let urls = tokio::task::spawn_blocking(urls).await.unwrap();
                crate::tenants::$test(crate::harness::Db::postgres(urls.into()).await).await;
            })*
        }
    };
}

on_both_engines! {
    tenants_are_those_created_and_those_with_rows,
    quotas_are_set_and_reset,
    a_tenant_is_dropped_with_its_rows_and_no_others,
    rows_that_refer_to_their_own_table_are_dropped,
    a_tenant_has_as_many_sessions_as_may,
    a_statement_returns_as_many_rows_as_may,
    a_write_of_too_many_rows_returned_is_undone,
    a_statement_takes_as_long_as_may,
    a_tenant_stores_as_much_as_may,
    a_drop_waits_for_transactions_and_can_be_given_up,
    roles_manage_and_see_what_is_theirs,
}
