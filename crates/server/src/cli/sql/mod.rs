//! `isles sql`: statements to a server, from the command line, a file, or a prompt.
//!
//! In reading order:
//!   * [`split`]  where statements end
//!   * [`copy`]   rows that are copied
//!   * [`show`]   results and errors
//!
//! A text of `-c` goes to the server whole and is one transaction; the statements of a file and of the prompt go one by
//! one. The first error ends everything but the prompt.
//!
//! The rows of `COPY … FROM STDIN` follow the statement, up to a line `\.`, in a file and at the prompt; with `-c` they
//! are read from standard input. `\copy` reads and writes files.
//!
//! Exit codes: 0 done, 1 a statement failed, 2 no server, or no such file.

mod copy;
pub(crate) mod show;
mod split;

use super::client::{Link, ServerArguments};
use super::files::read_text;
use super::output::{Failure, Format, FormatArgument, Outcome, block_on, complain, say};
use copy::{Direction, Fault, Place};
use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;
use show::Answered;
use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::{Path, PathBuf};
use std::time::Instant;
use tokio_postgres::SimpleQueryMessage;

/// The largest script that is read. `\copy` reads files of any size.
const SCRIPT_BYTES_MAX: usize = 256 << 20;

/// Lines of the prompt that are remembered.
const HISTORY_LINES: usize = 1_000;

const HELP: &str = "\\d          tables
\\d NAME     columns of a table
\\copy       copy from and to files: \\copy t from 'file' csv
\\dt         tables
\\l          databases
\\shards     shards
\\timing     show how long statements take
\\?          this
\\q          quit
A statement ends with a semicolon.";

#[derive(clap::Args)]
pub(crate) struct SqlArguments {
    #[command(flatten)]
    server: ServerArguments,
    /// Run this, and end
    #[arg(short = 'c', long, value_name = "SQL")]
    command: Vec<String>,
    /// Run the statements of this file, and end
    #[arg(short = 'f', long, value_name = "FILE")]
    file: Vec<PathBuf>,
    /// Answer in CSV
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    #[command(flatten)]
    format: FormatArgument,
}

impl SqlArguments {
    pub(crate) fn format(&self) -> Format {
        self.format.format()
    }

    fn shape(&self) -> Shape {
        match (self.csv, self.format()) {
            (true, _) => Shape::Csv,
            (false, Format::Json) => Shape::Json,
            (false, Format::Text) => Shape::Table,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    Table,
    Json,
    Csv,
}

pub(crate) fn run(arguments: SqlArguments) -> Result<Outcome, Failure> {
    block_on(speak(arguments))
}

async fn speak(arguments: SqlArguments) -> Result<Outcome, Failure> {
    let shape = arguments.shape();
    let files: Vec<String> =
        arguments.file.iter().map(|path| read_text(path, SCRIPT_BYTES_MAX)).collect::<Result<_, _>>()?;
    let mut speaker = Speaker { link: arguments.server.connect().await?, shape, timing: false };
    for text in &arguments.command {
        if speaker.command_line(text).await? == Outcome::CheckFailed {
            return Ok(Outcome::CheckFailed);
        }
    }
    for text in &files {
        if speaker.script(text).await? == Outcome::CheckFailed {
            return Ok(Outcome::CheckFailed);
        }
    }
    match (arguments.command.is_empty() && files.is_empty(), std::io::stdin().is_terminal()) {
        (false, _) => Ok(Outcome::Done),
        (true, true) => speaker.prompt().await,
        (true, false) => speaker.script(&standard_input()?).await,
    }
}

fn standard_input() -> Result<String, Failure> {
    let mut text = String::new();
    let read = std::io::stdin().take(SCRIPT_BYTES_MAX as u64 + 1).read_to_string(&mut text);
    read.map_err(|fault| Failure::usage(format!("cannot read standard input: {fault}")))?;
    if text.len() > SCRIPT_BYTES_MAX {
        let message = format!("standard input is larger than {SCRIPT_BYTES_MAX} bytes");
        return Err(Failure::usage(message).code("file_too_large").hint("copy rows by \\copy"));
    }
    Ok(text)
}

struct Speaker {
    link: Link,
    shape: Shape,
    timing: bool,
}

impl Speaker {
    /// Statements one by one, until one fails.
    async fn script(&mut self, text: &str) -> Result<Outcome, Failure> {
        let mut rest = text;
        while !split::holds_nothing(rest) {
            let begin = split::content(rest);
            let outcome = if begin.starts_with('\\') {
                let (line, after) = begin.split_once('\n').unwrap_or((begin, ""));
                rest = after;
                self.line_of_script(line).await?
            } else {
                let (statement, after) = split::first(rest).unwrap_or((rest.trim(), ""));
                match copy::direction_of(statement) {
                    Some(Direction::In) => {
                        let (rows, after) = rows_of_script(after);
                        rest = after;
                        self.copy_in(statement, rows.as_bytes()).await?
                    }
                    _ => {
                        rest = after;
                        self.send(statement).await?
                    }
                }
            };
            if outcome == Outcome::CheckFailed {
                return Ok(Outcome::CheckFailed);
            }
        }
        Ok(Outcome::Done)
    }

    /// A script's line that begins with a backslash.
    async fn line_of_script(&mut self, line: &str) -> Result<Outcome, Failure> {
        match command_of(line.trim()) {
            Command::Copy => self.copy_command(line).await,
            Command::Query(sql) => self.send(&sql).await,
            Command::Quit | Command::Help | Command::Timing | Command::Unknown => {
                complain(&format!("{line} is no command of a script"));
                Ok(Outcome::CheckFailed)
            }
        }
    }

    /// The text of `-c`. Rows that it copies come from standard input.
    async fn command_line(&mut self, text: &str) -> Result<Outcome, Failure> {
        if text.trim_start().starts_with("\\copy") {
            return self.copy_command(text).await;
        }
        let split = split::split(text);
        let statements: Vec<&String> =
            split.statements.iter().chain(Some(&split.rest).filter(|rest| !rest.is_empty())).collect();
        match statements[..] {
            [statement] if copy::direction_of(statement) == Some(Direction::In) => {
                self.copy_in(statement, std::io::stdin()).await
            }
            [_, _, ..] if statements.iter().any(|statement| copy::direction_of(statement).is_some()) => {
                complain("a text of several statements cannot copy: give each a -c of its own, or use -f");
                Ok(Outcome::CheckFailed)
            }
            _ => self.send(text).await,
        }
    }

    async fn copy_command(&mut self, line: &str) -> Result<Outcome, Failure> {
        let Some((statement, direction, place)) = copy::command(line) else {
            complain("\\copy needs a table or query, FROM or TO, and a file: \\copy t from 'file' csv");
            return Ok(Outcome::CheckFailed);
        };
        match (direction, place) {
            (Direction::In, Place::Standard) => self.copy_in(&statement, std::io::stdin()).await,
            (Direction::Out, Place::Standard) => self.send(&statement).await,
            (Direction::In, Place::File(path)) => match File::open(&path) {
                Ok(file) => self.copy_in(&statement, file).await,
                Err(fault) => Ok(no_file(&path, &fault)),
            },
            (Direction::Out, Place::File(path)) => match File::create(&path) {
                Ok(file) => {
                    let copied = copy::receive(&self.link.client, &statement, std::io::BufWriter::new(file)).await;
                    let copied = copied.map(|()| Answered { tag: "COPY".into(), ..Answered::default() });
                    self.copied(copied, &statement)
                }
                Err(fault) => Ok(no_file(&path, &fault)),
            },
        }
    }

    async fn copy_in(&mut self, statement: &str, rows: impl Read) -> Result<Outcome, Failure> {
        let copied = copy::send(&self.link.client, statement, rows).await;
        let copied = copied.map(|count| Answered { tag: format!("COPY {count}"), ..Answered::default() });
        self.copied(copied, statement)
    }

    fn copied(&mut self, copied: Result<Answered, Fault>, statement: &str) -> Result<Outcome, Failure> {
        match copied {
            Ok(answered) => {
                self.show(&answered);
                Ok(Outcome::Done)
            }
            Err(Fault::Server(error)) => self.failed(&error, statement),
            Err(Fault::Local(fault)) => {
                complain(&format!("the copy has ended: {fault}"));
                Ok(Outcome::CheckFailed)
            }
        }
    }

    /// Sends a text and shows what comes of it.
    async fn send(&mut self, sql: &str) -> Result<Outcome, Failure> {
        if copy::direction_of(sql) == Some(Direction::Out) {
            // The rows are all that is shown, so that they can be read as they are.
            let copied = copy::receive(&self.link.client, sql, std::io::stdout()).await;
            return match copied {
                Ok(()) => Ok(Outcome::Done),
                Err(fault) => self.copied(Err(fault), sql),
            };
        }
        let began = Instant::now();
        let answer = self.link.client.simple_query(sql).await;
        // What the server remarked came before the answer, and its task may not have read it yet.
        tokio::task::yield_now().await;
        while let Ok(notice) = self.link.notices.try_recv() {
            complain(&show::error(&notice, sql));
        }
        let outcome = match answer {
            Ok(messages) => {
                answers(sql, messages).iter().for_each(|answered| self.show(answered));
                Outcome::Done
            }
            Err(error) => self.failed(&error, sql)?,
        };
        if self.timing {
            say(&format!("Time: {:.3} ms", began.elapsed().as_secs_f64() * 1000.0));
        }
        Ok(outcome)
    }

    fn show(&self, answered: &Answered) {
        match self.shape {
            Shape::Table => say(&show::table(answered)),
            Shape::Json => say(&show::json_line(answered)),
            Shape::Csv if answered.columns.is_some() => say(show::csv(answered).trim_end_matches('\n')),
            Shape::Csv => {}
        }
    }

    /// A statement's failure is shown; the connection's is ours.
    fn failed(&self, error: &tokio_postgres::Error, sql: &str) -> Result<Outcome, Failure> {
        let Some(refusal) = error.as_db_error() else {
            return Err(Failure::usage(format!("the connection has ended: {error}")).code("unreachable"));
        };
        match self.shape {
            Shape::Json => complain(&show::error_json(refusal)),
            Shape::Table | Shape::Csv => complain(&show::error(refusal, sql)),
        }
        match self.link.client.is_closed() {
            true => Err(Failure::usage("the server has ended the connection").code("unreachable")),
            false => Ok(Outcome::CheckFailed),
        }
    }

    async fn prompt(&mut self) -> Result<Outcome, Failure> {
        let broken = |fault: ReadlineError| Failure::usage(format!("cannot read the terminal: {fault}"));
        let settings = rustyline::Config::builder().max_history_size(HISTORY_LINES).map_err(broken)?.build();
        let mut editor = DefaultEditor::with_config(settings).map_err(broken)?;
        let history = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".isles_history"));
        if let Some(path) = &history {
            // There is none at first.
            let _ = editor.load_history(path);
        }
        say("\\? for help, \\q to quit");
        self.converse(&mut editor).await?;
        if let Some(path) = &history {
            let _ = editor.save_history(path);
        }
        Ok(Outcome::Done)
    }

    async fn converse(&mut self, editor: &mut DefaultEditor) -> Result<(), Failure> {
        let mut pending = String::new();
        loop {
            let sign = if pending.is_empty() { "=> " } else { "-> " };
            let line = match editor.readline(&format!("{}{sign}", self.link.database)) {
                Ok(line) => line,
                // Interrupted: what was begun is forgotten.
                Err(ReadlineError::Interrupted) => {
                    pending.clear();
                    continue;
                }
                Err(_) => return Ok(()),
            };
            if pending.is_empty() && line.trim_start().starts_with('\\') {
                let _ = editor.add_history_entry(line.trim());
                match self.command(line.trim()).await? {
                    Next::Quit => return Ok(()),
                    Next::GoOn => continue,
                }
            }
            pending.push_str(&line);
            pending.push('\n');
            let split = split::split(&pending);
            if !split.statements.is_empty() {
                let _ = editor.add_history_entry(pending.trim());
            }
            for statement in &split.statements {
                match copy::direction_of(statement) {
                    Some(Direction::In) => {
                        let rows = typed_rows(editor);
                        self.copy_in(statement, rows.as_bytes()).await?;
                    }
                    _ => drop(self.send(statement).await?),
                }
            }
            if !split.statements.is_empty() || split.rest.is_empty() {
                pending = split.rest;
            }
        }
    }

    async fn command(&mut self, line: &str) -> Result<Next, Failure> {
        match command_of(line) {
            Command::Quit => return Ok(Next::Quit),
            Command::Help => say(HELP),
            Command::Timing => {
                self.timing = !self.timing;
                say(if self.timing { "Timing is on." } else { "Timing is off." });
            }
            Command::Query(sql) => {
                self.send(&sql).await?;
            }
            Command::Copy => {
                self.copy_command(line).await?;
            }
            Command::Unknown => complain(&format!("{line} is no command; \\? lists them")),
        }
        Ok(Next::GoOn)
    }
}

/// The rows behind a statement, up to their end, and what comes after them.
fn rows_of_script(text: &str) -> (&str, &str) {
    // They begin on the line after the statement's.
    let rows = text.split_once('\n').map_or("", |(_, rows)| rows);
    let mut at = 0;
    for line in rows.split_inclusive('\n') {
        if line.trim_end_matches(['\r', '\n']) == copy::END {
            return (&rows[..at], &rows[at + line.len()..]);
        }
        at += line.len();
    }
    (rows, "")
}

/// Rows that are typed, up to their end.
fn typed_rows(editor: &mut DefaultEditor) -> String {
    say(
        "Enter the rows, each on a line (a tab is Ctrl-V and Tab), and end with a backslash and a period on a line by itself.",
    );
    let mut rows = String::new();
    while let Ok(line) = editor.readline(">> ") {
        if line == copy::END {
            break;
        }
        rows.push_str(&line);
        rows.push('\n');
    }
    rows
}

fn no_file(path: &Path, fault: &std::io::Error) -> Outcome {
    complain(&format!("cannot open {}: {fault}", path.display()));
    Outcome::CheckFailed
}

enum Next {
    GoOn,
    Quit,
}

#[derive(Debug, PartialEq, Eq)]
enum Command {
    Quit,
    Help,
    Timing,
    Query(String),
    Copy,
    Unknown,
}

/// What a line that begins with a backslash asks for.
fn command_of(line: &str) -> Command {
    let mut words = line.split_whitespace();
    let command = words.next().unwrap_or_default();
    let name = words.next().map(|name| name.trim_end_matches(';'));
    match (command, name) {
        ("\\q", _) => Command::Quit,
        ("\\?", _) => Command::Help,
        ("\\timing", _) => Command::Timing,
        ("\\copy", _) => Command::Copy,
        ("\\d", Some(name)) => Command::Query(columns_query(name)),
        ("\\d" | "\\dt", _) => Command::Query(TABLES.to_owned()),
        ("\\l", _) => Command::Query("SELECT datname AS \"Name\" FROM pg_catalog.pg_database ORDER BY 1".to_owned()),
        ("\\shards", _) => Command::Query("SHOW SHARDS".to_owned()),
        _ => Command::Unknown,
    }
}

const TABLES: &str = "SELECT table_schema AS \"Schema\", table_name AS \"Name\", table_type AS \"Type\" \
     FROM information_schema.tables WHERE table_schema NOT IN ('pg_catalog', 'information_schema') ORDER BY 1, 2";

fn columns_query(name: &str) -> String {
    let (schema, table) = name.split_once('.').unwrap_or(("public", name));
    let literal = |text: &str| format!("'{}'", text.replace('\'', "''"));
    format!(
        "SELECT column_name AS \"Column\", data_type AS \"Type\", \
         CASE is_nullable WHEN 'NO' THEN 'not null' ELSE '' END AS \"Nullable\", column_default AS \"Default\" \
         FROM information_schema.columns WHERE table_schema = {} AND table_name = {} ORDER BY ordinal_position",
        literal(schema),
        literal(table)
    )
}

/// The answers of the statements of a text, in their order. The client library tells how many rows a statement
/// touched and not its tag, which is made of the statement's first words.
fn answers(sql: &str, messages: Vec<SimpleQueryMessage>) -> Vec<Answered> {
    let split = split::split(sql);
    let mut statements = split.statements.iter().chain(Some(&split.rest));
    let (mut answers, mut current) = (Vec::new(), Answered::default());
    for message in messages {
        match message {
            SimpleQueryMessage::RowDescription(columns) => {
                current.columns = Some(columns.iter().map(|column| column.name().to_owned()).collect());
            }
            SimpleQueryMessage::Row(row) => {
                current.rows.push((0..row.len()).map(|at| row.get(at).map(str::to_owned)).collect());
            }
            SimpleQueryMessage::CommandComplete(count) => {
                current.tag = tag_of(statements.next().map_or("", String::as_str), count, current.columns.is_some());
                answers.push(std::mem::take(&mut current));
            }
            _ => {}
        }
    }
    answers
}

fn tag_of(statement: &str, count: u64, rows: bool) -> String {
    let words: Vec<String> = statement
        .lines()
        .filter(|line| !line.trim_start().starts_with("--"))
        .flat_map(str::split_whitespace)
        .map(|word| word.trim_end_matches(';').to_ascii_uppercase())
        .take(2)
        .collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["INSERT", ..] => format!("INSERT 0 {count}"),
        [word @ ("UPDATE" | "DELETE" | "COPY" | "MERGE"), ..] => format!("{word} {count}"),
        [word @ ("CREATE" | "DROP" | "ALTER"), what] => format!("{word} {what}"),
        [word, ..] if !rows => (*word).to_owned(),
        _ => format!("SELECT {count}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_of_the_prompt() {
        assert_eq!(command_of("\\q"), Command::Quit);
        assert_eq!(command_of("\\dt"), Command::Query(TABLES.into()));
        assert_eq!(command_of("\\x"), Command::Unknown);
        let Command::Query(sql) = command_of("\\d it's") else { panic!() };
        assert!(sql.contains("table_name = 'it''s'"), "{sql}");
    }

    #[test]
    fn tags_are_postgresql_s() {
        assert_eq!(tag_of("insert into t values (1);", 1, false), "INSERT 0 1");
        assert_eq!(tag_of("-- x\ncreate table t (a int);", 0, false), "CREATE TABLE");
        assert_eq!(tag_of("begin;", 0, false), "BEGIN");
        assert_eq!(tag_of("select 1", 1, true), "SELECT 1");
        assert_eq!(tag_of("delete from t", 3, false), "DELETE 3");
    }
}
