//! One history on two databases, step by step.

use crate::harness::{Server, Setup};
use isles_sim::sqlgen::{Compare, Generator, Statement};
use std::collections::BTreeMap;
use std::fmt;
use tokio_postgres::{Client, SimpleQueryMessage};

/// What a statement answered, as far as it is compared.
#[derive(Debug, Clone, PartialEq)]
enum Reply {
    Rows { rows: Vec<Vec<Option<String>>>, affected: Option<u64> },
    Error { sqlstate: String, message: String },
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) statements: u64,
    pub(crate) refused: u64,
    pub(crate) failed: u64,
    pub(crate) rows: u64,
    refusals: BTreeMap<String, u64>,
    /// SQLSTATEs of what failed on both, Isles' first.
    failures: BTreeMap<(String, String), u64>,
}

impl Counts {
    pub(crate) fn add(&mut self, other: &Counts) {
        self.statements += other.statements;
        self.refused += other.refused;
        self.failed += other.failed;
        self.rows += other.rows;
        for (reason, count) in &other.refusals {
            *self.refusals.entry(reason.clone()).or_default() += count;
        }
        for (states, count) in &other.failures {
            *self.failures.entry(states.clone()).or_default() += count;
        }
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counts { statements, refused, failed, rows, refusals, failures } = self;
        writeln!(f, "{statements} statements, {rows} rows, {failed} failed on both, {refused} refused:")?;
        let mut reasons: Vec<_> = refusals.iter().collect();
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        reasons.iter().take(25).try_for_each(|(reason, count)| writeln!(f, "{count:6}  {reason}"))?;
        writeln!(f, "failed on both, Isles with and PostgreSQL with:")?;
        failures.iter().try_for_each(|((ours, theirs), count)| writeln!(f, "{count:6}  {ours} {theirs}"))
    }
}

pub(crate) struct History {
    setup: Setup,
    seed: u64,
    pub(crate) counts: Counts,
    disagreements: Vec<String>,
}

/// After so many a history is given up: the tables differ, and everything after follows from that.
const DISAGREEMENTS: usize = 5;
/// How often a statement that reads is run again.
const READ_AGAIN: usize = 2;
/// Statements between two comparisons of whole tables.
const TABLES_EVERY: u64 = 50;

impl History {
    pub(crate) async fn run(setup: Setup, seed: u64, statements: u64) -> History {
        let server = Server::start(setup).await;
        let (isles, oracle) = (server.isles().await, Server::oracle().await);
        let generator = Generator::new(seed);
        for table in generator.tables() {
            let (ours, plain) = table.create();
            must(&isles, &ours).await;
            must(&oracle, &plain).await;
        }
        History::of_sessions(setup, seed, (&isles, &oracle), generator, statements).await
    }

    /// A history over tables that are there, and empty.
    pub(crate) async fn of_sessions(
        setup: Setup,
        seed: u64,
        (isles, oracle): (&Client, &Client),
        mut generator: Generator,
        statements: u64,
    ) -> History {
        let mut history = History { setup, seed, counts: Counts::default(), disagreements: Vec::new() };
        for sql in generator.fill() {
            must(isles, &sql).await;
            must(oracle, &sql).await;
        }
        for n in 0..statements {
            let statement = generator.statement();
            history.step(isles, oracle, &statement, &mut generator).await;
            if n % TABLES_EVERY == TABLES_EVERY - 1 || n + 1 == statements {
                history.compare_tables(isles, oracle, &generator).await;
            }
            if history.disagreements.len() >= DISAGREEMENTS {
                break;
            }
        }
        history
    }

    async fn step(&mut self, isles: &Client, oracle: &Client, statement: &Statement, generator: &mut Generator) {
        self.counts.statements += 1;
        let ours = run(isles, &statement.sql).await;
        if let Reply::Error { sqlstate, message } = &ours
            && sqlstate == "0A000"
        {
            self.counts.refused += 1;
            *self.counts.refusals.entry(message.clone()).or_default() += 1;
            if generator.abandon_transaction() {
                must(isles, "ROLLBACK").await;
                must(oracle, "ROLLBACK").await;
            }
            return;
        }
        let theirs = run(oracle, &statement.sql).await;
        self.count(&ours);
        let agreed = same(&ours, &theirs, statement.compare);
        if !agreed {
            self.disagree(&statement.sql, &ours, &theirs);
        }
        if agreed {
            self.read_again(isles, statement, &ours, &theirs).await;
        }
        let failed = self.count_failure(&ours, &theirs);
        if !agreed || failed {
            // Whatever follows in the same transaction would only repeat the difference, or fail on both.
            if generator.abandon_transaction() {
                must(isles, "ROLLBACK").await;
                must(oracle, "ROLLBACK").await;
            }
        }
    }

    /// What only reads is run again: from the third time on, the plan of a text is found without its values.
    async fn read_again(&mut self, isles: &Client, statement: &Statement, ours: &Reply, theirs: &Reply) {
        let reads = statement.sql.trim_start().get(..6).is_some_and(|word| word.eq_ignore_ascii_case("select"));
        if !reads || matches!(ours, Reply::Error { .. }) {
            return;
        }
        for _ in 0..READ_AGAIN {
            let again = run(isles, &statement.sql).await;
            if !same(&again, theirs, statement.compare) {
                self.disagree(&format!("again {}", statement.sql), &again, theirs);
            }
        }
    }

    fn count_failure(&mut self, ours: &Reply, theirs: &Reply) -> bool {
        let (Reply::Error { sqlstate: ours, .. }, Reply::Error { sqlstate: theirs, .. }) = (ours, theirs) else {
            return false;
        };
        *self.counts.failures.entry((ours.clone(), theirs.clone())).or_default() += 1;
        true
    }

    fn count(&mut self, reply: &Reply) {
        match reply {
            Reply::Rows { rows, .. } => self.counts.rows += rows.len() as u64,
            Reply::Error { .. } => self.counts.failed += 1,
        }
    }

    async fn compare_tables(&mut self, isles: &Client, oracle: &Client, generator: &Generator) {
        for table in generator.tables() {
            let sql = format!("SELECT * FROM {}", table.name);
            let (ours, theirs) = (run(isles, &sql).await, run(oracle, &sql).await);
            if !same(&ours, &theirs, Compare::Rows) {
                self.disagree(&sql, &ours, &theirs);
            }
        }
    }

    fn disagree(&mut self, sql: &str, ours: &Reply, theirs: &Reply) {
        self.disagreements.push(format!("{sql};\n  isles:      {}\n  postgresql: {}", show(ours), show(theirs)));
    }

    pub(crate) fn assert_agreed(&self) {
        let History { setup, seed, disagreements, .. } = self;
        assert!(
            disagreements.is_empty(),
            "{setup:?} disagrees; replay with ISLES_FUZZ_SEED={seed}:\n{}",
            disagreements.join("\n")
        );
    }
}

/// Rows, in order, and in full where there are few.
fn show(reply: &Reply) -> String {
    match reply {
        Reply::Error { sqlstate, message } => format!("ERROR {sqlstate}: {message}"),
        Reply::Rows { rows, affected } => {
            let mut sorted: Vec<String> = rows.iter().map(|row| format!("{row:?}")).collect();
            sorted.sort();
            sorted.truncate(8);
            format!(
                "{} rows, affected {affected:?}: {}",
                rows.len(),
                sorted.join(" ").replace("Some(", "").replace(')', "")
            )
        }
    }
}

fn same(ours: &Reply, theirs: &Reply, compare: Compare) -> bool {
    match (ours, theirs) {
        (Reply::Rows { rows: a, affected: n }, Reply::Rows { rows: b, affected: m }) => {
            n == m && (a == b || (compare != Compare::Ordered && sorted(a) == sorted(b)))
        }
        (Reply::Error { sqlstate: a, .. }, Reply::Error { sqlstate: b, .. }) => compare != Compare::Strictly || a == b,
        _ => false,
    }
}

fn sorted(rows: &[Vec<Option<String>>]) -> Vec<&Vec<Option<String>>> {
    let mut sorted: Vec<_> = rows.iter().collect();
    sorted.sort();
    sorted
}

async fn run(client: &Client, sql: &str) -> Reply {
    match client.simple_query(sql).await {
        Ok(messages) => rows_of(messages),
        Err(error) => match error.as_db_error() {
            Some(db) => Reply::Error { sqlstate: db.code().code().into(), message: db.message().into() },
            None => panic!("the connection broke at {sql}: {error}"),
        },
    }
}

fn rows_of(messages: Vec<SimpleQueryMessage>) -> Reply {
    let (mut rows, mut affected) = (Vec::new(), None);
    for message in messages {
        match message {
            SimpleQueryMessage::Row(row) => {
                rows.push((0..row.len()).map(|n| row.get(n).map(str::to_string)).collect());
            }
            SimpleQueryMessage::CommandComplete(n) => affected = Some(n),
            _ => {}
        }
    }
    Reply::Rows { rows, affected }
}

async fn must(client: &Client, sql: &str) {
    if let Reply::Error { sqlstate, message } = run(client, sql).await {
        panic!("{sql}: {sqlstate} {message}");
    }
}
