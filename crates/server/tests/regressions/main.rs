//! What other systems got wrong, each as a script with the right answer, on both engines.
//!
//! A script's first comment is what it claims. Scripts are in the format of sqllogictest and run over the wire.

#[path = "../harness/mod.rs"]
mod harness;

use async_trait::async_trait;
use harness::{Server, Setup};
use sqllogictest::{DBOutput, DefaultColumnType, Runner};
use std::path::Path;
use tokio_postgres::{Client, SimpleQueryMessage};

/// A connection of the runner's.
struct Wire(Client);

/// An error as psql prints it.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Told(String);

#[async_trait]
impl sqllogictest::AsyncDB for Wire {
    type Error = Told;
    type ColumnType = DefaultColumnType;

    async fn run(&mut self, sql: &str) -> Result<DBOutput<DefaultColumnType>, Told> {
        let told = |error: tokio_postgres::Error| match error.as_db_error() {
            Some(db) => Told(format!("{}: {}", db.code().code(), db.message())),
            None => Told(error.to_string()),
        };
        Ok(output(self.0.simple_query(sql).await.map_err(told)?))
    }

    async fn shutdown(&mut self) {}
}

fn output(messages: Vec<SimpleQueryMessage>) -> DBOutput<DefaultColumnType> {
    let (mut rows, mut columns, mut affected) = (Vec::new(), None, 0);
    for message in messages {
        match message {
            SimpleQueryMessage::RowDescription(fields) => columns = Some(fields.len()),
            SimpleQueryMessage::Row(row) => {
                rows.push((0..row.len()).map(|n| row.get(n).unwrap_or("NULL").to_string()).collect());
            }
            SimpleQueryMessage::CommandComplete(n) => affected = n,
            _ => {}
        }
    }
    match columns {
        Some(columns) => DBOutput::Rows { types: vec![DefaultColumnType::Any; columns], rows },
        None => DBOutput::StatementComplete(affected),
    }
}

async fn check(setup: Setup, script: &str) {
    let server = Server::start(setup).await;
    let client = std::sync::Mutex::new(Some(server.isles().await));
    let mut runner = Runner::new(|| {
        let client = client.lock().expect("not poisoned").take();
        async move { Ok(Wire(client.expect("a script has one connection"))) }
    });
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/regressions/scripts").join(format!("{script}.slt"));
    runner.run_file_async(&path).await.unwrap_or_else(|error| panic!("{}", error.display(false)));
}

/// One test for each script and engine, and one that finds a script without a test.
macro_rules! scripts {
    ($($name:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test]
            async fn $name() {
                super::check(super::Setup::Sqlite { shards: 4 }, stringify!($name)).await;
            })*
        }

        mod postgres {
            $(#[tokio::test]
            async fn $name() {
                super::check(super::Setup::Postgres { shards: 2 }, stringify!($name)).await;
            })*
        }

        #[test]
        fn every_script_is_run() {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/regressions/scripts");
            let files = std::fs::read_dir(folder).expect("the folder of scripts");
            let mut found: Vec<String> = files
                .map(|file| file.expect("an entry").path().file_stem().expect("a name").to_string_lossy().into_owned())
                .collect();
            found.sort();
            let mut listed = vec![$(stringify!($name).to_string()),*];
            listed.sort();
            assert_eq!(found, listed);
        }
    };
}

scripts! {
    added_column_has_its_default,
    alias_with_where,
    alter_view_cte_window,
    average_is_not_an_average_of_averages,
    comma_and_cross_join,
    comment_inside_a_string,
    comparison_of_sums,
    concatenation,
    count_distinct_over_shards,
    delete_where_not_in,
    delete_where_not_like,
    deviation_has_the_digits_of_its_variance,
    distinct_over_shards,
    failing_ddl_is_reported,
    functions_of_the_server_are_out_of_reach,
    group_by_merges_groups,
    identity_is_unique_over_shards,
    insert_without_a_key,
    join_across_shards,
    join_of_colocated_tables,
    limit_parameter_is_not_the_shard,
    limit_with_a_comma_is_refused,
    minimum_of_texts,
    multi_row_insert_is_atomic,
    negative_numbers_and_subtraction,
    null_literals_and_not,
    offset_past_the_limit,
    on_conflict,
    or_increments_once,
    or_reads_each_row_once,
    order_and_limit_merge,
    parentheses_around_or,
    parentheses_in_arithmetic,
    partial_index_predicate,
    returning_on_insert,
    schemas_are_apart,
    search_path_finds_names,
    second_statement_is_not_dropped,
    set_config_sets,
    shard_key_update_moves_the_row,
    subqueries_span_shards,
    sum_of_nothing_is_null,
    table_without_a_key,
    transactions_over_shards,
    union_is_not_dropped,
    unique_key_without_the_shard_key_is_kept,
    unknown_collation_is_refused,
    unknown_function_is_refused,
    update_from_another_table,
    update_subtraction_with_where,
    without_rowid_is_refused,
}
