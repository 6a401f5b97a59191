//! docs/sql.md says what is supported on each engine. Each of its examples is run.

#[path = "harness/mod.rs"]
mod harness;

use harness::{Server, Setup};
use tokio_postgres::Client;

#[derive(Debug, Clone, Copy, PartialEq)]
enum Claim {
    Yes,
    Refused,
}

struct Example {
    sql: String,
    sqlite: Claim,
    postgres: Claim,
}

fn document() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/sql.md");
    std::fs::read_to_string(path).expect("docs/sql.md")
}

/// The statements of the block that makes the tables.
fn schema(document: &str) -> String {
    let after = document.split("```sql\n").nth(1).expect("a block of SQL");
    after.split("```").next().expect("its end").to_string()
}

fn claim(cell: &str) -> Claim {
    match cell.trim() {
        "yes" => Claim::Yes,
        "refused" => Claim::Refused,
        other => panic!("a column says {other:?}"),
    }
}

fn examples(document: &str) -> Vec<Example> {
    let rows = document.lines().filter(|line| {
        line.starts_with('|') && line.contains("| `") && (line.ends_with("yes |") || line.ends_with("refused |"))
    });
    rows.map(|row| {
        let (_, rest) = row.split_once("| `").expect("an example");
        let (sql, claims) = rest.rsplit_once("` |").expect("its end");
        let mut cells = claims.split('|');
        let mut next = || claim(cells.next().expect("a column for each engine"));
        Example { sql: sql.to_string(), sqlite: next(), postgres: next() }
    })
    .collect()
}

async fn outcome(client: &Client, sql: &str) -> Result<Claim, String> {
    match client.simple_query(sql).await {
        Ok(_) => Ok(Claim::Yes),
        Err(error) => {
            // Whatever it has begun is over.
            let _ = client.simple_query("ROLLBACK").await;
            let db = error.as_db_error().ok_or_else(|| error.to_string())?;
            match db.code().code() {
                "0A000" => Ok(Claim::Refused),
                code => Err(format!("{code}: {}", db.message())),
            }
        }
    }
}

async fn check(setup: Setup, side: fn(&Example) -> Claim) {
    let document = document();
    let examples = examples(&document);
    assert!(examples.len() > 80, "only {} examples were found", examples.len());
    let server = Server::start(setup).await;
    let client = server.isles().await;
    for statement in schema(&document).lines() {
        client.batch_execute(statement).await.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
    }
    let mut wrong = Vec::new();
    for example in &examples {
        let found = outcome(&client, &example.sql).await;
        if found != Ok(side(example)) {
            wrong.push(format!("{}\n    says {:?}, is {found:?}", example.sql, side(example)));
        }
    }
    assert!(
        wrong.is_empty(),
        "{} of {} are not as docs/sql.md says:\n{}",
        wrong.len(),
        examples.len(),
        wrong.join("\n")
    );
}

#[tokio::test]
async fn sqlite_shards_do_what_the_document_says() {
    check(Setup::Sqlite { shards: 4 }, |example| example.sqlite).await;
}

#[tokio::test]
async fn postgresql_shards_do_what_the_document_says() {
    check(Setup::Postgres { shards: 2 }, |example| example.postgres).await;
}
