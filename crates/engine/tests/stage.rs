//! Queries printed for SQLite and run in a stage, beside what a PostgreSQL 15 answers.
//!
//! `stage/answers.txt` has the statements (`>`) and PostgreSQL's answers: rows as `psql -At` shows them with `∅` for
//! null, or an error (`!`). What Isles refuses (0A000) is marked `>~`; it must be refused, and not answered otherwise.

use isles_engine::env::TokioEnv;
use isles_engine::error::{ShardError, SqlError};
use isles_engine::shard::{CancelToken, Limits, Row, Statement};
use isles_engine::sqlite::stage::Stage;
use isles_kernel::schema::Schema;
use isles_kernel::value::{DataType, Numeric, Value};
use isles_sql::bind::{BindContext, BoundStatement, bind, utility::DefaultKind};
use isles_sql::parse::parse_one;
use isles_sql::plan::{Fragment, ParamSource};
use isles_sql::print::Dialect;
use isles_sql::text::{Settings, output};
use isles_sql::tree::{Context, Field};
use std::sync::Arc;
use std::time::Duration;

struct Answered {
    sql: &'static str,
    refused: bool,
    lines: Vec<&'static str>,
}

fn corpus() -> Vec<Answered> {
    let mut all: Vec<Answered> = Vec::new();
    for line in include_str!("stage/answers.txt").lines() {
        if let Some(sql) = line.strip_prefix(">~ ") {
            all.push(Answered { sql, refused: true, lines: Vec::new() });
        } else if let Some(sql) = line.strip_prefix("> ") {
            all.push(Answered { sql, refused: false, lines: Vec::new() });
        } else if let Some(last) = all.last_mut() {
            last.lines.push(line);
        }
    }
    all
}

fn stage(limits: Limits) -> Stage {
    Stage::new(Arc::new(TokioEnv::current()), limits).expect("a stage")
}

/// A statement without relations, printed for SQLite.
fn statement(sql: &str) -> Result<(Statement, Vec<Field>), SqlError> {
    let (schema, search_path, settings) = (Schema::default(), vec!["public".to_string()], Settings::default());
    let context = BindContext {
        schema: &schema,
        search_path: &search_path,
        database: "isles",
        settings: &settings,
        default_kind: DefaultKind::Hash,
        default_buckets: 8,
    };
    let BoundStatement::Rows(bound) = bind(&parse_one(sql)?, &context, &[])?.statement else {
        panic!("{sql} is not about rows");
    };
    let isles_sql::tree::Statement::Query(query) = &*bound else { panic!("{sql} is not a query") };
    let fields = query.columns.clone();
    let printed = Fragment::new(*bound, fields.clone()).printed(Dialect::Sqlite)?;
    let params = printed.params.iter().map(|source| match source {
        ParamSource::Const(value) => value.clone(),
        ParamSource::Context(Context::Settings, _) => Value::Text(Settings::default().encode()),
        other => panic!("{sql} needs {other:?}"),
    });
    Ok((Statement::new(printed.sql.clone(), params.collect()).returning(printed.columns.clone()), fields))
}

fn shown(row: &Row, fields: &[Field]) -> String {
    let settings = Settings::default();
    let column = |(value, field): (&Value, &Field)| match value {
        Value::Null => "∅".to_string(),
        value => {
            let mut text = Vec::new();
            output(value, field.ty, &settings, &mut text);
            String::from_utf8(text).expect("a text")
        }
    };
    row.iter().zip(fields).map(column).collect::<Vec<_>>().join("|")
}

fn answer(sql: &str) -> Result<Vec<String>, SqlError> {
    let (statement, fields) = statement(sql)?;
    let outcome = stage(Limits::default()).run(&statement).map_err(|error| error.for_people())?;
    Ok(outcome.rows.iter().map(|row| shown(row, &fields)).collect())
}

#[tokio::test]
async fn queries_answer_as_postgresql_does() {
    let mut wrong = Vec::new();
    let corpus = corpus();
    assert!(corpus.len() > 250, "the corpus has been lost");
    for case in &corpus {
        let (mut found, mut expected) = match answer(case.sql) {
            Err(error) if error.sqlstate == "0A000" && case.refused => continue,
            Err(error) => (vec![format!("! {} {}", error.sqlstate, error.message)], case.lines.clone()),
            Ok(rows) => (rows, case.lines.clone()),
        };
        if !case.sql.contains("ORDER BY") {
            found.sort_unstable();
            expected.sort_unstable();
        }
        if case.refused || found != expected {
            wrong.push(format!("{}\n  expected {expected:?}\n  found    {found:?}", case.sql));
        }
    }
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), corpus.len(), wrong.join("\n"));
}

fn ints(name: &str, rows: i64) -> Stage {
    let mut stage = stage(Limits::default());
    let columns = [("x".to_string(), DataType::Int8), ("x".to_string(), DataType::Numeric)];
    stage.create(name, &columns).expect("a table");
    let row = |n: i64| vec![Value::Int(n), Value::Numeric(Numeric::parse(&format!("{n}.50")).expect("a number"))];
    stage.insert(name, (0..rows).map(row).collect()).expect("rows");
    stage
}

#[tokio::test]
async fn staged_rows_are_read_back_and_compared_by_value() {
    let mut stage = ints("in", 3);
    let statement = Statement::new("SELECT c0, c1 FROM \"in\" WHERE c1 >= '1.5' ORDER BY c1 DESC", vec![])
        .returning([DataType::Int8, DataType::Numeric]);
    let rows = stage.run(&statement).expect("rows").rows;
    assert_eq!(rows.iter().map(|row| row[0].clone()).collect::<Vec<_>>(), [Value::Int(2), Value::Int(1)]);
}

#[tokio::test]
async fn a_stage_ends_by_its_limits() {
    let endless = "WITH RECURSIVE r(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) SELECT count(*) FROM r";
    let endless = Statement::new(endless, vec![]).returning([DataType::Int8]);
    let short = Limits { time: Duration::from_millis(20), ..Limits::default() };
    assert_eq!(stage(short).run(&endless), Err(ShardError::TimedOut));

    let cancel = CancelToken::default();
    let mut cancelled = stage(Limits { cancel: cancel.clone(), ..Limits::default() });
    cancel.cancel();
    assert_eq!(cancelled.run(&endless), Err(ShardError::Cancelled));

    let mut few = stage(Limits { rows: 2, ..Limits::default() });
    few.create("in", &[("x".to_string(), DataType::Int8)]).expect("a table");
    let rows = (0..3).map(|n| vec![Value::Int(n)]).collect();
    assert!(matches!(few.insert("in", rows), Err(ShardError::Limit { .. })));
}

/// What ends a statement inside of a function arrives whole, and data that looks like it does not.
#[tokio::test]
async fn errors_of_functions_arrive_whole_and_cannot_be_forged() {
    let mut stage = stage(Limits::default());
    let two = "SELECT _one(x) FROM (SELECT 1 AS x UNION ALL SELECT 2)";
    let error = stage.run(&Statement::new(two, vec![]).returning([DataType::Int8]));
    let Err(ShardError::Statement(error)) = error else { panic!("{error:?}") };
    assert_eq!(error.sqlstate, "21000");
    assert_eq!(error.message, "more than one row returned by a subquery used as an expression");
    // The next error is its own.
    let other = stage.run(&Statement::new("SELECT json('21000')", vec![]).returning([DataType::Int8]));
    assert!(other.is_ok() || !format!("{other:?}").contains("more than one row"), "{other:?}");
    let other = stage.run(&Statement::new("SELECT nothing", vec![]).returning([DataType::Int8]));
    assert!(!format!("{other:?}").contains("more than one row"), "{other:?}");
}

/// Each shard opens connections, and each of these registers the functions; a thousand are open at once.
#[tokio::test]
async fn a_stage_is_cheap() {
    let began = std::time::Instant::now();
    let count = 200;
    for _ in 0..count {
        drop(stage(Limits::default()));
    }
    let each = began.elapsed() / count;
    println!("a stage takes {each:?}");
    assert!(each < Duration::from_millis(20), "{each:?}");
}
